"""An order becomes the JSON of POST /servers, or is refused with the reason."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from adapters.openstack.creation import ResolvedNames, check_order, server_request
from adapters.openstack.records import Server
from adapters.openstack.registry import named
from adapters.openstack.settings import OpenStackSiteConfig
from adapters.shared.parcel import UnfitError
from provisioner.model import Bootstrap, DroneId, DroneType, StartOrder

H100 = DroneType("gridka", "h100", gpu_milli=1000, cpus=16, memory_mib=131072, disk_mib=102400)
DRONE = Bootstrap(b"#!/bin/sh\nexit 0\n", {"DRONE_COLLECTOR": "pool:9618"}, {"token": b"secret"})
IMAGE, NETWORK = "70a599e0-31e7-49b7-b260-868f441e862b", "e4a2b1f0-9b57-4f0e-8f52-0d9c6f1d3b11"
GROUP = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
IDS = ResolvedNames("17", IMAGE)


def order(kind: DroneType = H100, bootstrap: Bootstrap | None = DRONE, number: str = "7") -> StartOrder:
    return StartOrder(DroneId(f"kit-ab12-{number}"), kind, 600.0, 30.0, bootstrap)


def asked(
    ids: ResolvedNames = IDS, special: Mapping[str, object] = {}, **more: object
) -> tuple[dict[str, Any], dict[str, str]]:
    told = {"cloud": "x", "image": "drone", "types": {"h100": {"flavor": "gpu.1", **special}}, **more}
    return server_request(order(), OpenStackSiteConfig.model_validate(told), ids, b"#!/bin/sh\n")


def test_little_is_asked_for_where_little_is_told() -> None:
    body, hints = asked()
    assert hints == {}
    assert base64.b64decode(body.pop("user_data")) == b"#!/bin/sh\n"
    assert body == {
        "name": "kit-ab12-7",
        "flavorRef": "17",
        "imageRef": IMAGE,
        "networks": "auto",
        "metadata": {
            "provisioner_drone": "kit-ab12-7",
            "provisioner_controller": "kit",
            "provisioner_site": "gridka",
            "provisioner_type": "h100",
        },
        "tags": ["gpu-drone", "kit.gridka", "kit-ab12-7"],
    }


def test_its_server_is_known_again_by_what_was_asked_for() -> None:
    body, _ = asked(metadata={"cost_centre": "wlcg"})
    server = Server("1", body["name"], "ACTIVE", metadata=body["metadata"], tags=frozenset(body["tags"]))
    found = named(server, "kit", "gridka")
    assert found is not None
    assert (found.drone_id, found.type) == ("kit-ab12-7", "h100")
    assert body["metadata"]["cost_centre"] == "wlcg"


def test_what_is_told_is_asked_for_and_of_a_type_before_the_site() -> None:
    body, hints = asked(
        replace(IDS, networks=(NETWORK,), security_groups=("drones", "egress")),
        {"availability_zone": "gpu", "metadata": {"tier": "2"}},
        availability_zone="nova",
        key_pair="anna",
        config_drive=False,
        server_group=GROUP,
        metadata={"tier": "1", "cost_centre": "wlcg"},
    )
    assert body["networks"] == [{"uuid": NETWORK}]
    assert body["security_groups"] == [{"name": "drones"}, {"name": "egress"}]
    assert (body["availability_zone"], body["key_name"], body["config_drive"]) == ("gpu", "anna", False)
    assert (body["metadata"]["tier"], body["metadata"]["cost_centre"]) == ("2", "wlcg")
    assert hints == {"group": GROUP}


def test_without_a_network_nothing_is_guarded() -> None:
    body, _ = asked(replace(IDS, networks=(), security_groups=("drones",)))
    assert body["networks"] == "none"
    assert "security_groups" not in body


def test_a_boot_volume_is_made_of_the_image_and_goes_with_the_server() -> None:
    body, _ = asked(boot_volume={"size": "40.5 GiB"})
    assert "imageRef" not in body
    assert body["block_device_mapping_v2"] == [
        {
            "boot_index": 0,
            "uuid": IMAGE,
            "source_type": "image",
            "destination_type": "volume",
            "volume_size": 41,
            "delete_on_termination": True,
        }
    ]
    body, _ = asked(boot_volume={"size": "40 GiB", "type": "ssd"})
    assert body["block_device_mapping_v2"][0]["volume_type"] == "ssd"


def test_a_request_that_nova_would_not_read_is_refused() -> None:
    config = OpenStackSiteConfig.model_validate(
        {
            "cloud": "x",
            "image": "drone",
            "types": {"h100": {"flavor": "gpu.1"}},
            "metadata": {f"{n:03}{'k' * 190}": "é" * 255 for n in range(100)},
        }
    )
    with pytest.raises(UnfitError, match="may be 114688"):
        server_request(order(), config, IDS, b"x")


@pytest.mark.parametrize(
    "bad",
    [
        order(number="x"),
        order(number="01"),
        replace(order(), drone_id=DroneId("kit-two-ab12-1")),
        order(bootstrap=None),
        order(replace(H100, gpu_milli=500)),
        order(replace(H100, gpu_milli=-1000)),
        order(replace(H100, cpus=0)),
        order(replace(H100, memory_mib=0)),
        order(replace(H100, walltime_s=-1.0)),
        replace(order(), grace_s=-1.0),
        order(H100, replace(DRONE, files={"../token": b""})),
        order(H100, replace(DRONE, files={"/etc/passwd": b""})),
        order(H100, replace(DRONE, files={"a b": b""})),
        order(H100, replace(DRONE, files={".site/step": b""})),
        order(H100, replace(DRONE, env={"A": "\0"})),
        order(H100, replace(DRONE, env={"A": "\ud800"})),
        order(H100, replace(DRONE, env={"A B": "x"})),
    ],
)
def test_what_can_never_be_a_server_is_refused(bad: StartOrder) -> None:
    with pytest.raises(UnfitError):
        check_order(bad, "kit")


def test_a_good_order_is_not_refused() -> None:
    for kind in (H100, replace(H100, gpu_milli=8000), replace(H100, gpu_milli=0), replace(H100, walltime_s=86400.0)):
        check_order(order(kind), "kit")
