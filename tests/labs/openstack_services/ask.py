"""What a tenant has, as openstacksdk sees it: one JSON document. On stdin the cloud, as in clouds.yaml."""

from __future__ import annotations

import json
import sys

import openstack


def main() -> None:
    cloud = openstack.connection.Connection(**json.load(sys.stdin), compute_default_microversion="2.90")
    servers = [
        {
            "id": each.id,
            "name": each.name,
            "status": each.status,
            "tags": list(each.tags or ()),
            "metadata": dict(each.metadata or {}),
            "flavor": each.flavor.original_name,
            "fault": each.fault,
        }
        for each in cloud.compute.servers(details=True)
    ]
    ports = [
        {"id": each.id, "name": each.name, "device_id": each.device_id, "status": each.status, "tags": each.tags}
        for each in cloud.network.ports()
    ]
    volumes = [
        {
            "id": each.id,
            "name": each.name,
            "status": each.status,
            "metadata": each.metadata,
            "servers": [attached["server_id"] for attached in each.attachments],
        }
        for each in cloud.block_storage.volumes(details=True)
    ]
    images = [{"id": each.id, "name": each.name, "status": each.status} for each in cloud.image.images()]
    keypairs = [{"name": each.name} for each in cloud.compute.keypairs()]
    found = {"servers": servers, "ports": ports, "volumes": volumes, "images": images, "keypairs": keypairs}
    json.dump(found, sys.stdout)


main()
