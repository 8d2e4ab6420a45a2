"""The test cloud with something in it: a flavour, an image, a network, and a site's settings that name them."""

from __future__ import annotations

from typing import Any

from adapters.openstack import registry
from adapters.openstack.settings import OpenStackSiteConfig
from provisioner.model import Bootstrap, DroneId, DroneType, StartOrder
from tests.openstack.clouded import Clouded

SITE, CONTROLLER = "cloud", "kit"
A100 = DroneType(SITE, "a100", gpu_milli=1000, cpus=8, memory_mib=16384, disk_mib=10240, walltime_s=3600.0)
IMAGE = "11111111-0000-4000-8000-000000000001"
NETWORK = "22222222-0000-4000-8000-000000000001"


def flavor(name: str = "gpu.a100.1", **more: Any) -> dict[str, Any]:
    told = {"id": f"id-of-{name}", "name": name, "vcpus": 8, "ram": 16384, "disk": 10}
    return {**told, "extra_specs": {"pci_passthrough:alias": "a100:1"}, **more}


def image(number: int = 1, **more: Any) -> dict[str, Any]:
    told = {"id": f"{IMAGE[:-1]}{number}", "name": "drone", "status": "active", "min_disk": 0, "min_ram": 0}
    return {**told, "created_at": f"2026-11-21T23:00:0{number}Z", **more}


def stocked(**more: Any) -> Clouded:
    """``more``: fields of :class:`Clouded`."""
    clouded = Clouded(**more)
    clouded.lists |= {
        "flavors": [flavor()],
        "images": [image()],
        "networks": [{"id": NETWORK, "name": "drones"}],
        "security-groups": [],
        "os-keypairs": [],
        "ports": [],
        "volumes": [],
    }
    return clouded


def config(clouded: Clouded, **more: Any) -> OpenStackSiteConfig:
    """Settings of the site, with the secret in the environment (``CLOUD_SECRET``)."""
    auth = {
        "url": f"{clouded.url}/identity",
        "application_credential_id": "abc",
        "application_credential_secret": {"env": "CLOUD_SECRET"},
    }
    types = {"a100": {"flavor": "gpu.a100.1"}}
    told = {"auth": auth, "image": "drone", "networks": ["drones"], "types": types, "deadline": "10s", **more}
    return OpenStackSiteConfig.model_validate(told)


def drone(serial: int, controller: str = CONTROLLER) -> DroneId:
    return DroneId(f"{controller}-a1b2-{serial}")


def order(serial: int, **more: Any) -> StartOrder:
    """``more``: fields of :class:`Bootstrap`."""
    told = {"script": b"#!/bin/sh\nexec sleep 1000\n", **more}
    return StartOrder(drone(serial), A100, 600.0, 30.0, Bootstrap(**told))


def has(clouded: Clouded, drone_id: DroneId, controller: str = CONTROLLER, **more: Any) -> str:
    """Give the cloud a server of a drone; its id."""
    told = {
        "tags": registry.tags(drone_id, controller, SITE),
        "metadata": dict(registry.metadata(drone_id, "a100", controller, SITE)),
        **more,
    }
    return clouded.add(drone_id, **told)


def created(clouded: Clouded) -> list[str]:
    """Names of the servers that were asked for."""
    return [body["server"]["name"] for body in clouded.bodies if "server" in body]
