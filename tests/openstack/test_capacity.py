"""GPUs of flavours, the quota, hosts as nodes, and the claims of the owner's servers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from adapters.openstack.capacity import (
    FlavorSize,
    Occupancy,
    OwnerRequests,
    allowed,
    claims,
    gpus_of,
    host_id,
    host_names,
    nodes,
    owner_load,
    owners,
    size_of,
)
from adapters.openstack.records import Flavor, Limits, Server, ServerFault
from adapters.openstack.registry import ServerNames
from adapters.openstack.settings import OpenStackOwnerConfig, OpenStackSiteConfig
from provisioner.model import DroneId, DroneType, Node, OwnerDemand, OwnerLoad


@pytest.mark.parametrize(
    ("extra", "count"),
    [
        ({}, 0),
        ({"hw:cpu_policy": "dedicated", "resources:VCPU": "8", "trait:CUSTOM_GPU_H100": "required"}, 0),
        ({"resources:VGPU": "1"}, 1),
        ({"resources:PGPU": "2"}, 2),
        ({"resources1:VGPU": "1", "resources_GPU2:VGPU": "1"}, 2),
        ({"resources:CUSTOM_GPU_H100": "4"}, 4),
        ({"resources:CUSTOM_PCI_10DE_2330": "2"}, 2),
        ({"resources:CUSTOM_BAREMETAL_GPU": "1"}, 1),
        ({"resources:CUSTOM_BAREMETAL_LARGE": "1", "resources:CUSTOM_MAGIC": "3"}, 0),
        ({"pci_passthrough:alias": "h100:1"}, 1),
        ({"pci_passthrough:alias": "a100-80:2, ib:1"}, 2),
        ({"pci_passthrough:alias": "nvidia_l40s:1,nvme:4"}, 1),
        ({"pci_passthrough:alias": "tesla-t4:1,tesla-t4:1"}, 2),
        ({"pci_passthrough:alias": "mlx5:2"}, 0),
        ({"pci_passthrough:alias": "quickassist:1"}, 0),
        ({"pci_passthrough:alias": "accelerator:3"}, 3),
        ({"pci_passthrough:alias": "accelerator:3", "resources:VGPU": "1"}, 1),
        ({"accel:device_profile": "gpu-profile", "resources:VGPU": "1"}, 1),
    ],
)
def test_what_a_flavour_asks_for(extra: dict[str, str], count: int) -> None:
    assert gpus_of(extra) == count


@pytest.mark.parametrize(
    "extra",
    [
        {"accel:device_profile": "gpu-profile"},
        {"resources:VGPU": "many"},
        {"resources:VGPU": ""},
        {"pci_passthrough:alias": "h100"},
        {"pci_passthrough:alias": "h100:²"},
        {"pci_passthrough:alias": "h100:-1"},
    ],
)
def test_a_number_that_is_not_told(extra: dict[str, str]) -> None:
    assert gpus_of(extra) is None


def test_no_host_has_a_thousand_gpus() -> None:
    assert gpus_of({"resources:VGPU": "100000"}) == 64
    assert gpus_of({"resources:VGPU": "9" * 5000}) is None


LIMITS = Limits(instances=(10, 4), cpus=(100, 60), memory_mib=(400_000, 100_000))
LARGE = Flavor("gpu.a100.1", vcpus=16, memory_mib=65_536, disk_mib=0)
SMALL = Flavor("gpu.t4.1", vcpus=4, memory_mib=8192, disk_mib=0)
FLAVORS = {"a100": LARGE, "t4": SMALL}


def test_the_narrowest_limit_counts_for_each_type() -> None:
    assert allowed(LIMITS, FLAVORS) == {"a100": 2, "t4": 6}
    assert allowed(LIMITS._replace(memory_mib=(400_000, 334_464)), FLAVORS) == {"a100": 1, "t4": 6}


def test_a_limit_that_is_none_does_not_count() -> None:
    assert allowed(LIMITS._replace(cpus=(-1, 60)), FLAVORS) == {"a100": 4, "t4": 6}
    assert allowed(LIMITS._replace(cpus=(-1, 60), memory_mib=(-1, 0)), FLAVORS) == {"a100": 6, "t4": 6}
    assert allowed(LIMITS._replace(instances=(-1, 4), cpus=(-1, 60), memory_mib=(-1, 0)), FLAVORS) is None


def test_a_quota_that_was_lowered_below_what_is_used_allows_nothing() -> None:
    assert allowed(LIMITS._replace(instances=(3, 4)), FLAVORS) == {"a100": 0, "t4": 0}
    assert allowed(LIMITS._replace(cpus=(0, 60)), FLAVORS) == {"a100": 0, "t4": 0}


def test_what_a_flavour_does_not_use_is_no_limit_to_it() -> None:
    nothing = replace(LARGE, vcpus=0)
    assert allowed(LIMITS._replace(cpus=(60, 60), instances=(-1, 4), memory_mib=(-1, 0)), {"odd": nothing}) == {}


NAMES = ServerNames("kit", "cloud")
OURS, THEIRS = "79a929b39a1f4d79b2d4dd4184f373de", "0f6b0c6f4d0e4b36a8a4ad5b1b8a6c11"
A100 = DroneType("cloud", "a100", gpu_milli=1000, cpus=14, memory_mib=60_000, disk_mib=90_000)
WHOLE = DroneType("cloud", "whole", gpu_milli=4000, cpus=60, memory_mib=240_000, disk_mib=400_000)
CPU = DroneType("cloud", "cpu", gpu_milli=0, cpus=4, memory_mib=8000, disk_mib=20_000)
TYPES = (A100, WHOLE, CPU)
FLAVOR = Flavor("gpu.a100.1", 16, 65_536, 102_400, {"pci_passthrough:alias": "a100:1"})
DRONE = Server(
    "s1",
    "kit-a1b2-7",
    "ACTIVE",
    launched_at=1.0,
    host_id=host_id(OURS, "gk-gpu-01"),
    flavor=FLAVOR,
    metadata=NAMES.metadata(DroneId("kit-a1b2-7"), "a100"),
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
    forgotten = replace(DRONE, metadata=NAMES.metadata(DroneId("kit-a1b2-7"), "v100"))
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
    """Both listings have a server if the owner's project is ours."""
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


NOW = 1_800_000_000.0
TWO_GPUS = Flavor("gpu.2", 32, 131_072, 102_400, {"resources:VGPU": "2"})
PLAIN = replace(TWO_GPUS, extra={})
NO_HOST = ServerFault(500, "No valid host was found. There are not enough hosts available.")
FAILED = Server("t1", "etp-train-1", "ERROR", created_at=NOW - 90, updated_at=NOW - 60, flavor=TWO_GPUS, fault=NO_HOST)
RUNS = replace(
    FAILED,
    id="t2",
    name="etp-train-2",
    status="ACTIVE",
    fault=None,
    launched_at=NOW - 70,
    host_id=host_id(THEIRS, "gk-gpu-01"),
)
ONE = OwnerDemand(1, 2000, 32, 131_072, NOW - 90, disk_mib=102_400, who="etp-train-1")
PLACES = host_names(config().hosts, [OURS, THEIRS])


def owner(**more: Any) -> OpenStackOwnerConfig:
    return OpenStackOwnerConfig.model_validate({"cloud": "etp", **more})


def wanted(*servers: Server, hosts: Sequence[dict[str, Any]] | None = None, **more: Any) -> OwnerRequests:
    told = config(**({"hosts": hosts} if hosts is not None else {}))
    here = nodes(told, TYPES, [], servers, PLACES).nodes
    settings = owner(**more)
    return claims(owners(servers, settings), here, PLACES, settings, NOW)


# -------------------------------------------------------------------------------------------------------------- waiting


def test_a_server_that_found_no_host_claims_room() -> None:
    assert wanted(FAILED) == OwnerRequests((ONE,))


@pytest.mark.parametrize("task", ["", "scheduling"])
def test_one_that_looks_for_a_host_claims_room(task: str) -> None:
    looks = replace(FAILED, status="BUILD", task=task, fault=None, updated_at=NOW)
    assert wanted(looks).claims == (ONE,)
    assert (
        wanted(replace(looks, created_at=NOW - 3601)) == OwnerRequests()
    )  # stuck: Nova shows the present as its last change


@pytest.mark.parametrize(
    "server",
    [
        RUNS,
        replace(RUNS, status="SHUTOFF"),
        replace(FAILED, status="BUILD", fault=None, host_id=host_id(THEIRS, "gk-gpu-01")),
        replace(FAILED, launched_at=NOW - 80),
        replace(FAILED, task="deleting"),
        replace(FAILED, fault=None),
        replace(FAILED, fault=ServerFault(413, "Quota exceeded for cores: Requested 32, but used 32 of 40")),
        replace(FAILED, fault=ServerFault(500, "Image 1b2c could not be found.")),
        replace(FAILED, status="SHELVED_OFFLOADED", fault=None),
    ],
)
def test_what_leaving_drones_do_not_mend_is_none(server: Server) -> None:
    assert wanted(server) == OwnerRequests()


def test_a_failure_claims_for_a_while_only() -> None:
    assert wanted(replace(FAILED, updated_at=NOW - 3599)).claims == (ONE,)
    assert wanted(replace(FAILED, updated_at=NOW - 3601)) == OwnerRequests()
    assert wanted(replace(FAILED, updated_at=NOW - 121), wait="2min") == OwnerRequests()
    assert wanted(replace(FAILED, updated_at=NOW + 900)).claims == (ONE,)  # its clock is ahead


def test_one_that_was_made_anew_claims_nothing() -> None:
    again = replace(RUNS, name=FAILED.name, created_at=NOW - 30)
    assert wanted(FAILED, again) == OwnerRequests()
    looks = replace(again, status="BUILD", host_id="", launched_at=0.0)
    assert [claim.count for claim in wanted(FAILED, looks).claims] == [1]
    assert wanted(FAILED, replace(again, created_at=NOW - 500)).claims == (ONE,)  # that one was there before
    assert wanted(FAILED, replace(FAILED, id="t3", created_at=NOW - 30)).claims == (replace(ONE, count=2),)


def test_drones_and_servers_of_other_names_are_none() -> None:
    drone = replace(DRONE, status="ERROR", host_id="", launched_at=0.0, fault=NO_HOST, updated_at=NOW, created_at=NOW)
    assert wanted(drone) == OwnerRequests()
    assert wanted(FAILED, names="^etp-") == OwnerRequests((ONE,))
    assert wanted(FAILED, names="^web-") == OwnerRequests()


def test_servers_alike_are_one_claim_since_the_first_of_them() -> None:
    three = [replace(FAILED, id=f"t{n}", name=f"etp-{n}", created_at=NOW - n) for n in (5, 90, 30)]
    other = replace(FAILED, id="o", name="big", flavor=replace(TWO_GPUS, vcpus=64), created_at=NOW - 10)
    assert wanted(*three, other).claims == (
        replace(ONE, count=3, who="etp-30, etp-5, etp-90"),
        OwnerDemand(1, 2000, 64, 131_072, NOW - 10, disk_mib=102_400, who="big"),
    )


def test_only_hosts_that_could_hold_it_are_claimed() -> None:
    small = {"names": ["gk-gpu-01"], "gpus": 1, "cpus": 64, "memory": "256 GiB", "disk": "1000000 MiB"}
    large = {"names": ["gk-gpu-02"], "gpus": 4, "cpus": 64, "memory": "256 GiB", "disk": "1000000 MiB"}
    assert wanted(FAILED, hosts=[small, large]).claims == (replace(ONE, nodes=("gk-gpu-02",)),)
    assert wanted(FAILED, hosts=[small]) == OwnerRequests(
        (),
        (
            "owner: 1 servers (etp-train-1) find no host with 2 GPUs, 32 CPUs, 131072 MiB and a disk of 102400 MiB here"
            " even if all were empty: no room is made for them",
        ),
    )


def test_servers_without_a_gpu_claim_only_where_such_are_seen() -> None:
    plain = replace(FAILED, flavor=PLAIN)
    assert wanted(plain) == OwnerRequests()
    elsewhere = replace(RUNS, flavor=PLAIN, host_id=host_id(THEIRS, "web-7"))
    assert wanted(plain, elsewhere) == OwnerRequests()
    assert wanted(plain, replace(RUNS, flavor=PLAIN)).claims == (replace(ONE, gpu_milli=0),)


def test_what_he_calls_them_is_made_fit_for_a_line() -> None:
    [claim] = wanted(replace(FAILED, name="\x1b[2J" * 100)).claims
    assert claim.who.isprintable() and len(claim.who) <= 200


def test_many_sizes_that_fit_nowhere_are_summed_up() -> None:
    huge = [replace(FAILED, id=f"t{n}", flavor=replace(TWO_GPUS, vcpus=1000 + n)) for n in range(30)]
    found = wanted(*huge)
    assert (found.claims, len(found.notices)) == ((), 10)
    assert found.notices[-1] == "owner: 21 further sizes fit no node"


# ---------------------------------------------------------------------------------------------------------- the load


def test_what_he_holds_of_our_hosts() -> None:
    elsewhere = replace(RUNS, id="t3", host_id=host_id(THEIRS, "web-7"))
    off = replace(RUNS, id="t4", status="SHUTOFF")
    assert owner_load([FAILED, RUNS, elsewhere, off], PLACES) == OwnerLoad(2, 4000, 64, 262_144)
    assert owner_load([], PLACES) == OwnerLoad()
