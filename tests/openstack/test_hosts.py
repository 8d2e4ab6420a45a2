"""Hosts as nodes: names behind ids, what servers hold there, what is free, which drone types fit."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from adapters.openstack.capacity import FlavorSize, Occupancy, host_id, host_names, nodes, size_of
from adapters.openstack.records import Server, ServerFlavor
from adapters.openstack.registry import metadata
from adapters.openstack.settings import OpenStackSiteConfig
from provisioner.model import DroneId, DroneType, Node

OURS, THEIRS = "79a929b39a1f4d79b2d4dd4184f373de", "0f6b0c6f4d0e4b36a8a4ad5b1b8a6c11"
A100 = DroneType("cloud", "a100", gpu_milli=1000, cpus=14, memory_mib=60_000, disk_mib=90_000)
WHOLE = DroneType("cloud", "whole", gpu_milli=4000, cpus=60, memory_mib=240_000, disk_mib=400_000)
CPU = DroneType("cloud", "cpu", gpu_milli=0, cpus=4, memory_mib=8000, disk_mib=20_000)
TYPES = (A100, WHOLE, CPU)
FLAVOR = ServerFlavor("gpu.a100.1", 16, 65_536, 102_400, {"pci_passthrough:alias": "a100:1"})
DRONE = Server(
    "s1",
    "kit-a1b2-7",
    "ACTIVE",
    launched_at=1.0,
    host_id=host_id(OURS, "gk-gpu-01"),
    flavor=FLAVOR,
    metadata=metadata(DroneId("kit-a1b2-7"), "a100", "kit", "cloud"),
)
THEIR = replace(DRONE, id="t1", name="etp-1", host_id=host_id(THEIRS, "gk-gpu-01"), metadata={})
EMPTY = Node(
    "gk-gpu-01",
    ("a100", "whole", "cpu"),
    4000,
    64,
    262_144,
    1_000_000,
    free_gpu_milli=4000,
    free_cpus=64,
    free_memory_mib=262_144,
    free_disk_mib=1_000_000,
)


def config(**more: Any) -> OpenStackSiteConfig:
    hosts = [{"names": ["gk-gpu-01", "gk-gpu-02"], "gpus": 4, "cpus": 64, "memory": "256 GiB", "disk": "1000000 MiB"}]
    types = {kind.name: {"flavor": f"gpu.{kind.name}"} for kind in TYPES}
    return OpenStackSiteConfig.model_validate(
        {"cloud": "gridka", "image": "drone", "types": types, "hosts": hosts, **more}
    )


def found(ours: list[Server], others: list[Server] | None = None, **more: Any) -> Occupancy:
    told = config(**more)
    return nodes(told, TYPES, ours, others or [], host_names(told.hosts, [OURS, THEIRS]))


def first(ours: list[Server], others: list[Server] | None = None, **more: Any) -> Node:
    return found(ours, others, **more).nodes[0]


def free(node: Node) -> FlavorSize:
    return FlavorSize(node.free_gpu_milli, node.free_cpus, node.free_memory_mib, node.free_disk_mib)


def test_a_hosts_id_is_what_nova_makes_of_it() -> None:
    """nova.utils.generate_hostid: sha224 of the project's id and the host's name."""
    assert host_id(OURS, "gk-gpu-01") == hashlib.sha224(f"{OURS}gk-gpu-01".encode()).hexdigest()
    assert len(host_id(OURS, "gk-gpu-01")) == 56


def test_each_project_has_its_own_ids_of_the_same_hosts() -> None:
    found = host_names(config().hosts, [OURS, THEIRS])
    assert (len(found), sorted(set(found.values()))) == (4, ["gk-gpu-01", "gk-gpu-02"])
    assert host_names(config().hosts, ["", OURS]) == host_names(config().hosts, [OURS])


def test_an_empty_host_is_free() -> None:
    assert found([]) == Occupancy((EMPTY, replace(EMPTY, name="gk-gpu-02")))
    assert found([], hosts=[]) == Occupancy()


def test_a_drone_holds_its_types_gpus_and_its_flavours_rest() -> None:
    assert free(first([DRONE])) == FlavorSize(3000, 48, 196_608, 897_600)
    shares = replace(DRONE, flavor=replace(FLAVOR, extra={}))  # whatever its flavour says of GPUs, or hides
    assert free(first([shares])).gpu_milli == 3000
    assert free(first([replace(DRONE, flavor=None)])) == FlavorSize(3000, 50, 202_144, 910_000)
    forgotten = replace(DRONE, metadata=metadata(DroneId("kit-a1b2-7"), "v100", "kit", "cloud"))
    assert free(first([forgotten])).gpu_milli == 3000


def test_the_owners_server_holds_what_its_flavour_tells() -> None:
    two = replace(FLAVOR, extra={"resources:VGPU": "2"})
    assert free(first([], [replace(THEIR, flavor=two)])) == FlavorSize(2000, 48, 196_608, 897_600)
    assert free(first([DRONE], [THEIR])).gpu_milli == 2000


@pytest.mark.parametrize(
    "server", [replace(DRONE, status="SHUTOFF"), replace(DRONE, task="deleting"), replace(DRONE, status="UNKNOWN")]
)
def test_what_is_over_or_not_known_holds_its_place(server: Server) -> None:
    assert free(first([server])).gpu_milli == 3000


def test_what_is_on_no_host_holds_nothing() -> None:
    waits = replace(DRONE, status="BUILD", host_id="", launched_at=0.0)
    assert first([waits]) == EMPTY
    assert found([waits]).notices == ()


def test_the_other_host_is_not_touched() -> None:
    assert found([DRONE]).nodes[1] == replace(EMPTY, name="gk-gpu-02")


def test_a_server_that_is_listed_twice_holds_once() -> None:
    """Where the owner's project is ours, both listings have it."""
    assert first([DRONE], [DRONE]) == first([DRONE])


def test_nothing_is_less_than_free() -> None:
    many = [replace(DRONE, id=f"s{n}") for n in range(9)]
    assert free(first(many)) == FlavorSize(0, 0, 0, 78_400)


def test_a_boot_volume_is_on_no_hosts_disk() -> None:
    node = first([DRONE], boot_volume={"size": "40 GiB"})
    assert node.free_disk_mib == 1_000_000


@pytest.mark.parametrize(
    ("told", "types"),
    [
        ({}, ("a100", "whole", "cpu")),
        ({"types": ["a100"]}, ("a100",)),
        ({"gpus": 2}, ("a100", "cpu")),
        ({"cpus": 8}, ("cpu",)),
        ({"memory": "32 GiB"}, ("cpu",)),
        ({"disk": "100000 MiB"}, ("a100", "cpu")),
        ({"cpus": 1}, ()),
    ],
)
def test_which_types_fit_an_empty_host(told: dict[str, Any], types: tuple[str, ...]) -> None:
    host = {"names": ["a"], "gpus": 4, "cpus": 64, "memory": "256 GiB", "disk": "1000000 MiB", **told}
    assert first([], hosts=[host]).types == types


def test_what_cannot_be_placed_is_told() -> None:
    lost = replace(DRONE, host_id=host_id(OURS, "gk-gpu-77"))
    assert found([lost]).notices == ("1 of our servers are on hosts that `hosts` does not name",)
    assert found([lost], hosts=[]).notices == ()
    assert found([], [replace(THEIR, host_id=host_id(THEIRS, "web-7"))]).notices == ()


def test_gpus_that_are_not_counted_are_one_and_told() -> None:
    hidden = replace(THEIR, flavor=replace(FLAVOR, name="odd", extra={"accel:device_profile": "p"}))
    assert size_of(hidden).gpu_milli == 1000
    assert found([], [hidden]).notices == ("flavor odd does not tell how many GPUs it has: one is counted",)
