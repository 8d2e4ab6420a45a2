"""GPUs of flavours, the quota, hosts as nodes, and the claims of the owner's servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from adapters.openstack import capacity
from adapters.openstack.registry import ServerNames
from adapters.openstack.servers import Flavor, Limits, Server, ServerFault
from adapters.openstack.settings import OpenStackOwnerConfig, OpenStackSiteConfig
from provisioner.model import DroneId, DroneType, Node, OwnerDemand, OwnerLoad
from provisioner.resources import Resources


@pytest.mark.parametrize(
    ("extra", "count"),
    [
        ({}, 0),
        (
            {
                "hw:cpu_policy": "dedicated",
                "resources:VCPU": "8",
                "trait:CUSTOM_GPU_H100": "required",
            },
            0,
        ),
        ({"resources1:VGPU": "1", "resources_GPU2:VGPU": "1"}, 2),
        ({"resources:CUSTOM_GPU_H100": "4"}, 4),
        ({"resources:CUSTOM_PCI_10DE_2330": "2"}, 2),
        ({"resources:CUSTOM_BAREMETAL_LARGE": "1", "resources:CUSTOM_MAGIC": "3"}, 0),
        ({"pci_passthrough:alias": "a100-80:2, ib:1"}, 2),
        ({"pci_passthrough:alias": "mlx5:2"}, 0),
        ({"pci_passthrough:alias": "accelerator:3"}, 3),
        ({"pci_passthrough:alias": "accelerator:3", "resources:VGPU": "1"}, 1),
        ({"resources:VGPU": "100000"}, 64),
        # a number that is not told
        ({"resources:VGPU": "9" * 5000}, None),
        ({"accel:device_profile": "gpu-profile"}, None),
        ({"pci_passthrough:alias": "h100:-1"}, None),
    ],
)
def test_what_a_flavour_asks_for(extra: dict[str, str], count: int | None) -> None:
    assert capacity.gpus_of(extra) == count


LIMITS = Limits(instances=(10, 4), cpus=(100, 60), memory_mib=(400_000, 100_000))
LARGE = Flavor("gpu.a100.1", vcpus=16, memory_mib=65_536, disk_mib=0)
SMALL = Flavor("gpu.t4.1", vcpus=4, memory_mib=8192, disk_mib=0)
FLAVORS = {"a100": LARGE, "t4": SMALL}


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({}, {"a100": 2, "t4": 6}),
        ({"instances": (-1, 4), "cpus": (-1, 60), "memory_mib": (-1, 0)}, None),
        ({"instances": (3, 4)}, {"a100": 0, "t4": 0}),  # lowered below what is used
    ],
)
def test_the_narrowest_limit_counts_for_each_type(
    limits: dict[str, Any], left: dict[str, int] | None
) -> None:
    assert capacity.allowed(LIMITS._replace(**limits), FLAVORS) == left


NAMES = ServerNames("kit", "cloud")
OURS, THEIRS = "79a929b39a1f4d79b2d4dd4184f373de", "0f6b0c6f4d0e4b36a8a4ad5b1b8a6c11"
A100 = DroneType("cloud", "a100", gpu_milli=1000, cpus=14, memory_mib=60_000, disk_mib=90_000)
WHOLE = DroneType("cloud", "whole", gpu_milli=4000, cpus=60, memory_mib=240_000, disk_mib=400_000)
CPU = DroneType("cloud", "cpu", gpu_milli=0, cpus=4, memory_mib=8000, disk_mib=20_000)
TYPES = (A100, WHOLE, CPU)
FLAVOR = Flavor("gpu.a100.1", 16, 65_536, 102_400, {"pci_passthrough:alias": "a100:1"})
MARKS = NAMES.metadata(DroneId("kit-a1b2-7"), "a100")
HERE, THERE = capacity.host_id(OURS, "gk-gpu-01"), capacity.host_id(THEIRS, "gk-gpu-01")
DRONE = Server(
    "s1", "kit-a1b2-7", "ACTIVE", launched_at=1.0, host_id=HERE, flavor=FLAVOR, metadata=MARKS
)
THEIR = replace(DRONE, id="t1", name="etp-1", host_id=THERE, metadata={})
EMPTY = Node("gk-gpu-01", ("a100", "whole", "cpu"), *(4000, 64, 262_144, 1_000_000) * 2)


def config(**more: Any) -> OpenStackSiteConfig:
    hosts = [
        {
            "names": ["gk-gpu-01", "gk-gpu-02"],
            "gpus": 4,
            "cpus": 64,
            "memory": "256 GiB",
            "disk": "1000000 MiB",
        }
    ]
    types = {kind.name: {"flavor": f"gpu.{kind.name}"} for kind in TYPES}
    return OpenStackSiteConfig.model_validate(
        {"cloud": "gridka", "image": "drone", "types": types, "hosts": hosts, **more}
    )


def found(ours: list[Server], others: list[Server] | None = None, **more: Any) -> Any:
    told = config(**more)
    return capacity.nodes(
        told, TYPES, ours, others or [], capacity.host_names(told.hosts, [OURS, THEIRS])
    )


def first(ours: list[Server], others: list[Server] | None = None, **more: Any) -> Node:
    node: Node = found(ours, others, **more)[0][0]
    return node


def free(node: Node) -> Resources:
    return Resources(node.free_gpu_milli, node.free_cpus, node.free_memory_mib, node.free_disk_mib)


def test_an_empty_host_is_free() -> None:
    assert found([]) == ((EMPTY, replace(EMPTY, name="gk-gpu-02")), ())
    assert found([], hosts=[]) == ((), ())
    assert found([DRONE])[0][1] == replace(EMPTY, name="gk-gpu-02"), "the other host is not touched"
    assert first([DRONE], boot_volume={"size": "40 GiB"}).free_disk_mib == EMPTY.disk_mib, (
        "its disk is a volume"
    )


ONE_HELD = Resources(3000, 48, 196_608, 897_600)


@pytest.mark.parametrize(
    ("ours", "others", "left"),
    [
        # a drone holds its type's GPUs, whatever its flavour says of them or hides, and its
        # flavour's rest
        ([DRONE], [], ONE_HELD),
        ([replace(DRONE, flavor=replace(FLAVOR, extra={}))], [], ONE_HELD),
        ([replace(DRONE, flavor=None)], [], Resources(3000, 50, 202_144, 910_000)),
        # what is over or not known holds its place; what is on no host holds nothing
        ([replace(DRONE, status="UNKNOWN")], [], ONE_HELD),
        (
            [replace(DRONE, status="BUILD", host_id="", launched_at=0.0)],
            [],
            Resources(4000, 64, 262_144, 1_000_000),
        ),
        # the owner's holds what its flavour tells; one in both listings (the project may be the
        # same) holds once
        ([DRONE], [THEIR], Resources(2000, 32, 131_072, 795_200)),
        ([DRONE], [DRONE], ONE_HELD),
        ([replace(DRONE, id=f"s{n}") for n in range(9)], [], Resources(0, 0, 0, 78_400)),
    ],
)
def test_what_servers_hold_of_their_host(
    ours: list[Server], others: list[Server], left: Resources
) -> None:
    assert free(first(ours, others)) == left
    assert found(ours, others)[1] == ()


def test_what_cannot_be_counted_is_told() -> None:
    lost = replace(DRONE, host_id=capacity.host_id(OURS, "gk-gpu-77"))
    hidden = replace(THEIR, flavor=replace(FLAVOR, name="odd", extra={"accel:device_profile": "p"}))
    assert found([lost])[1] == ("1 drones are on hosts that `hosts` does not name",)
    assert found([], [hidden])[1] == (
        "flavor odd does not tell how many GPUs it has: one is counted",
    )


NOW = 1_800_000_000.0
TWO_GPUS = Flavor("gpu.2", 32, 131_072, 102_400, {"resources:VGPU": "2"})
NO_HOST = ServerFault(500, "No valid host was found. There are not enough hosts available.")
FAILED = Server(
    "t1",
    "etp-train-1",
    "ERROR",
    created_at=NOW - 90,
    updated_at=NOW - 60,
    flavor=TWO_GPUS,
    fault=NO_HOST,
)
RUNS = replace(
    FAILED, id="t2", name="etp-2", status="ACTIVE", fault=None, launched_at=NOW - 70, host_id=THERE
)
ONE = OwnerDemand(1, 2000, 32, 131_072, NOW - 90, disk_mib=102_400, who="etp-train-1")
PLACES = capacity.host_names(config().hosts, [OURS, THEIRS])


def wanted(*servers: Server, hosts: Sequence[dict[str, Any]] | None = None, **more: Any) -> Any:
    """Claims and notices."""
    told = config(**({"hosts": hosts} if hosts is not None else {}))
    here, _ = capacity.nodes(told, TYPES, [], servers, PLACES)
    settings = OpenStackOwnerConfig.model_validate({"cloud": "etp", **more})
    return capacity.claims(capacity.owners(servers, settings), here, PLACES, settings, NOW)


LOOKS = replace(FAILED, status="BUILD", fault=None, updated_at=NOW)
AGAIN = replace(RUNS, name=FAILED.name, created_at=NOW - 30)
PLAIN = replace(TWO_GPUS, extra={})


@pytest.mark.parametrize(
    ("servers", "more"),
    [
        ([FAILED], {}),
        ([LOOKS], {}),
        ([FAILED, replace(AGAIN, created_at=NOW - 500)], {}),  # that one was there before
    ],
)
def test_a_server_without_a_host_claims_room(servers: list[Server], more: dict[str, str]) -> None:
    assert wanted(*servers, **more) == ((ONE,), ())


@pytest.mark.parametrize(
    ("servers", "more"),
    [
        # leaving drones do not mend it
        ([RUNS], {}),
        ([replace(LOOKS, host_id=THERE)], {}),
        ([replace(FAILED, task="deleting")], {}),
        (
            [
                replace(
                    FAILED,
                    fault=ServerFault(
                        413, "Quota exceeded for cores: Requested 32, but used 32 of 40"
                    ),
                )
            ],
            {},
        ),
        # it waits for too long; Nova shows the present as the last change of one that is on no host
        ([replace(LOOKS, created_at=NOW - 3601)], {}),
        ([replace(FAILED, updated_at=NOW - 121)], {"wait": "2min"}),
        # it was made anew, is a drone, has another name, or has no GPU where no such servers are
        # seen
        ([FAILED, AGAIN], {}),
        ([replace(FAILED, metadata=DRONE.metadata)], {}),
        ([FAILED], {"names": "^web-"}),
        (
            [
                replace(FAILED, flavor=PLAIN),
                replace(RUNS, flavor=PLAIN, host_id=capacity.host_id(THEIRS, "web-7")),
            ],
            {},
        ),
    ],
)
def test_what_claims_nothing(servers: list[Server], more: dict[str, str]) -> None:
    assert wanted(*servers, **more) == ((), ())


def test_servers_alike_are_one_claim_since_the_first_of_them() -> None:
    three = [replace(FAILED, id=f"t{n}", name=f"etp-{n}", created_at=NOW - n) for n in (5, 90, 30)]
    assert wanted(*three)[0] == (replace(ONE, count=3, who="etp-30, etp-5, etp-90"),)
    looks = replace(AGAIN, status="BUILD", host_id="", launched_at=0.0)
    assert [claim.count for claim in wanted(FAILED, looks)[0]] == [1]
    assert wanted(replace(FAILED, flavor=PLAIN), replace(RUNS, flavor=PLAIN))[0] == (
        replace(ONE, gpu_milli=0),
    )
    [claim] = wanted(replace(FAILED, name="\x1b[2J" * 100))[0]
    assert claim.who.isprintable() and len(claim.who) <= 200


def test_only_hosts_that_could_hold_it_are_claimed() -> None:
    small = {
        "names": ["gk-gpu-01"],
        "gpus": 1,
        "cpus": 64,
        "memory": "256 GiB",
        "disk": "1000000 MiB",
    }
    large = {**small, "names": ["gk-gpu-02"], "gpus": 4}
    assert wanted(FAILED, hosts=[small, large])[0] == (replace(ONE, nodes=("gk-gpu-02",)),)
    assert wanted(FAILED, hosts=[small]) == (
        (),
        (
            "owner: 1 servers (etp-train-1) find no host with 2 GPUs, 32 CPUs, 131072 MiB and a disk of 102400 MiB here"
            " even if all were empty: no room is made for them",
        ),
    )


def test_what_the_owner_holds_of_our_hosts() -> None:
    elsewhere = replace(RUNS, id="t3", host_id=capacity.host_id(THEIRS, "web-7"))
    off = replace(RUNS, id="t4", status="SHUTOFF")
    assert capacity.owner_load([FAILED, RUNS, elsewhere, off], PLACES) == OwnerLoad(
        2, 4000, 64, 262_144
    )
