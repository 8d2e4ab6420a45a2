"""Free resources of a Slurm cluster, HoreKa's nodes in many states, and downtimes of all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapters.slurm.capacity import NodeMismatch, list_nodes, next_downtime, resolve_types
from adapters.slurm.records import Partition, Reservation, SlurmNode
from adapters.slurm.settings import SlurmSiteConfig
from adapters.slurm.tools import SINFO_NODE_COLUMNS, parse_nodes, parse_partitions
from provisioner.model import DroneType, Node
from provisioner.planner.owner import FreeResources

NOW = 1_800_000_000.0
HOUR_S = 3600.0
A100 = DroneType("horeka", "a100", 1000, 8, 20480, 0, vram_mib=40960, walltime_s=12 * HOUR_S)
FULL = DroneType("horeka", "a100x4", 4000, 152, 491520, 0, vram_mib=40960, walltime_s=12 * HOUR_S)
H100 = DroneType("horeka", "h100", 1000, 8, 20480, 0, vram_mib=95830, walltime_s=12 * HOUR_S)
CPU = DroneType("horeka", "cpu", 0, 8, 16384, 0, walltime_s=12 * HOUR_S)
SIZE: Any = {
    "cpus": 152,
    "memory_mib": 512_000,
    "gpus": {"a100": 4},
    "used_gpus": {"a100": 0},
    "threads_per_core": 2,
}
NODE = SlurmNode(
    "hkn0801", "IDLE", partitions=("accelerated",), features=("LSDF", "BEEOND"), **SIZE
)
H100_NODE = replace(
    NODE, name="hkn0901", partitions=("accelerated-h100",), gpus={"h100": 4}, used_gpus={}
)
ACCELERATED = Partition("accelerated", nodes=("hkn0801",), max_s=48 * HOUR_S, tier=10)
ACCELERATED_H100 = Partition("accelerated-h100", nodes=("hkn0901",), max_s=48 * HOUR_S, tier=10)
PARTITIONS = (ACCELERATED, ACCELERATED_H100)


def config(**more: Any) -> SlurmSiteConfig:
    h100 = {"partition": "accelerated-h100", "gres": "gpu:h100"}
    types = {"a100": {"gres": "gpu:a100"}, "a100x4": {"gres": "gpu:a100"}, "h100": h100}
    return SlurmSiteConfig.model_validate({"partition": "accelerated", "types": types, **more})


def one(
    node: SlurmNode = NODE,
    *types: DroneType,
    partition: Partition = ACCELERATED,
    reserved: Reservation | None = None,
    downtime_at: float = 0.0,
    **more: Any,
) -> Node:
    others = [reserved] if reserved else []
    [found] = listed([node], types or (A100,), (partition,), others, downtime_at, **more)
    return found


def listed(
    cluster: Sequence[SlurmNode],
    kinds: Sequence[DroneType] = (A100,),
    partitions: Sequence[Partition] = PARTITIONS,
    reservations: Sequence[Reservation] = (),
    downtime_at: float = 0.0,
    ours: Sequence[str] = (),
    **more: Any,
) -> tuple[Node, ...]:
    settings = config(**more)
    resolved = resolve_types(kinds, partitions, settings)
    times: Any = {"now": NOW, "downtime_at": downtime_at, **({"ours": ours} if ours else {})}
    return list_nodes(cluster, partitions, resolved, settings, reservations, **times)


def free(node: Node) -> tuple[int, int, int]:
    return node.free_gpu_milli, node.free_cpus, node.free_memory_mib


def test_free_is_what_slurm_has_not_allocated() -> None:
    busy = replace(
        NODE, state="MIXED", used_cpus=50, used_memory_mib=100_000, used_gpus={"a100": 3}
    )
    assert one(busy) == Node("hkn0801", ("a100",), 4000, 152, 512_000, 0, 1000, 102, 412_000, 0)


def test_nodes_of_other_partitions_and_such_as_do_not_exist_are_left_out() -> None:
    cluster = [
        NODE,
        H100_NODE,
        replace(NODE, name="hkn0001", partitions=("cpuonly",)),
        replace(NODE, state="FUTURE"),
    ]
    found = listed(cluster, (A100, FULL, H100))
    assert {node.name: node.types for node in found} == {
        "hkn0801": ("a100", "a100x4"),
        "hkn0901": ("h100",),
    }


@pytest.mark.parametrize(
    ("state", "flags"),
    [
        *((state, ()) for state in ("DOWN", "SOMETHING_NEW")),
        *(
            ("MIXED", (flag,))
            for flag in ("DRAIN", "PLANNED", "RESERVED", "MAINTENANCE", "NOT_RESPONDING")
        ),
    ],
)
def test_nothing_is_free_where_slurm_starts_nothing_now(state: str, flags: tuple[str, ...]) -> None:
    found = one(replace(NODE, state=state, flags=frozenset(flags)))
    assert free(found) == (0, 0, 0)
    assert (found.types, found.gpu_milli, found.cpus) == (("a100",), 4000, 152)  # it has not gone


@pytest.mark.parametrize(
    "flags",
    [("POWERED_DOWN", "CLOUD"), ("POWERING_UP", "NOT_RESPONDING", "CLOUD"), ("COMPLETING",)],
)
def test_a_node_that_slurm_boots_for_its_job_is_free(flags: tuple[str, ...]) -> None:
    assert free(one(replace(NODE, flags=frozenset(flags)))) == (4000, 152, 512_000)


def test_a_node_planned_for_the_owner_is_shown_free_for_his_claim_takes_it() -> None:
    planned = replace(NODE, flags=frozenset({"PLANNED"}), partitions=("accelerated", "owners"))
    assert free(one(planned)) == (0, 0, 0)
    assert free(one(planned, owner={"partitions": ["owners"]})) == (4000, 152, 512_000)


@pytest.mark.parametrize(
    ("change", "partition", "mismatch"),
    [
        ({"partitions": ("cpuonly",)}, {}, ("partition", "accelerated", "cpuonly")),
        ({"gpus": {"h100": 4}}, {}, ("gpus", "1 a100", "0 a100")),
        (
            {},
            {"max_memory_per_cpu_mib": 100},
            ("cpus", "205 (for its 20480 MiB, by MaxMemPerCPU)", "152"),
        ),
    ],
)
def test_a_node_that_lacks_something_hosts_no_drone(
    change: Mapping[str, Any], partition: Mapping[str, Any], mismatch: tuple[str, str, str]
) -> None:
    node, partitions = replace(NODE, **change), (replace(ACCELERATED, **partition),)
    assert listed([node], (A100,), partitions) == ()
    [kind] = resolve_types((A100,), partitions, config())
    assert kind.mismatch(node) == NodeMismatch(*mismatch)


@pytest.mark.parametrize(
    ("constraint", "hosts"),
    [
        *((met, True) for met in ("LSDF&BEEOND", "NONE|LSDF", "[rack1*2&rack2*4]")),
        ("LSDF,NONE", False),
    ],
)
def test_constraints_that_are_plain_are_judged(constraint: str, hosts: bool) -> None:
    found = listed([NODE], constraint=constraint)
    assert bool(found) is hosts


def test_any_gpu_is_any_type_of_gpu_and_a_gpu_without_type_is_one() -> None:
    either = replace(A100, name="either")
    mixed = replace(NODE, gpus={"a100": 2, "h100": 2}, used_gpus={"h100": 1})
    assert free(one(mixed, either))[0] == 3000
    assert one(replace(NODE, gpus={"": 4}), either).types == ("either",)


@pytest.mark.parametrize(
    ("gres", "used", "free_gpus"),
    [
        *(
            ("gpu:4(S:0-1)", f"gpu:(null):{used}", 4 - int(used[0]))
            for used in ("4(IDX:0-3)", "3(IDX:0-2)", "0(IDX:N/A)")
        ),
        ("gpu:a100:4(S:0-1)", "gpu:(null):3(IDX:0,2-3)", 1),
        ("gpu:a100:4,shard:a100:16", "gpu:a100:1(IDX:3),shard:a100:5(1/4,4/4,0/4,0/4)", 1),
        ("gpu:4,mps:400", "gpu:(null):0(IDX:N/A),mps:(null):100(0/100,0/100,100/100,0/100)", 3),
    ],
)
def test_gpus_in_use_are_not_free_however_the_tools_name_them(
    gres: str, used: str, free_gpus: int
) -> None:
    row = (
        "hkn0801",
        "mixed",
        "accelerated*",
        "(null)",
        "8/144/0/152",
        "512000",
        "20480",
        gres,
        used,
        "2",
    )
    [node] = parse_nodes(_table(row), "@")
    any_type = replace(A100, name="any")
    assert free(one(node, any_type))[0] == 1000 * free_gpus


def _table(row: Sequence[str]) -> str:
    headings = [heading for heading, _ in SINFO_NODE_COLUMNS.values()]
    return "".join("".join(f"{cell}@" for cell in cells) + "\n" for cells in (headings, row))


def test_a_node_with_gpus_of_two_types_shows_those_of_which_most_is_free() -> None:
    """One number cannot say "one A100 and two H100": drones would be asked for that have no GPU."""
    both = {"types": {"a100": {"gres": "gpu:a100"}, "h100": {"gres": "gpu:h100"}}}
    mixed = replace(NODE, gpus={"a100": 2, "h100": 2}, used_gpus={"a100": 1})
    shown = one(mixed, A100, H100, CPU, **both)
    assert (shown.types, shown.gpu_milli, shown.free_gpu_milli) == (("h100", "cpu"), 2000, 2000)


@pytest.mark.parametrize("change", [{"up": False}, {"max_s": 11 * HOUR_S}])
def test_a_partition_that_is_down_or_too_short_takes_no_drone(change: Mapping[str, Any]) -> None:
    assert free(one(partition=replace(ACCELERATED, **change)))[0] == 0


def test_memory_costs_cpus_where_the_partition_limits_it_per_cpu() -> None:
    greedy = replace(A100, gpu_milli=0, cpus=1, memory_mib=8192)
    limited = replace(ACCELERATED, max_memory_per_cpu_mib=1200)
    found = one(NODE, replace(greedy, name="cpu"), partition=limited)
    assert (found.free_cpus, found.free_memory_mib) == (152, 152 * 1200)


def reservation(starts_h: float, ends_h: float) -> Reservation:
    return Reservation("course", NOW + starts_h * HOUR_S, NOW + ends_h * HOUR_S, ("hkn0801",))


@pytest.mark.parametrize(
    ("starts_h", "ends_h", "gpus"), [(-1, 2, 0), (11.9, 20, 0), (12.0, 20, 4000), (-5, 0, 4000)]
)
def test_a_node_reserved_for_others_before_the_drone_would_be_done_is_not_free(
    starts_h: float, ends_h: float, gpus: int
) -> None:
    assert free(one(reserved=reservation(starts_h, ends_h)))[0] == gpus


def test_before_a_downtime_of_the_whole_site_drones_live_shorter_and_the_node_is_free_until_then() -> (
    None
):
    whole = reservation(5, 9)
    assert free(one(reserved=whole)) == (0, 0, 0)
    assert free(one(reserved=whole, downtime_at=whole.starts_at))[0] == 4000


def test_a_reservation_of_our_own_is_for_the_types_that_ask_for_it_and_they_run_nowhere_else() -> (
    None
):
    active = reservation(-1, 20)
    marked = replace(NODE, flags=frozenset({"RESERVED"}))
    types = {"a100": {"gres": "gpu:a100", "reservation": "course"}, "a100x4": {"gres": "gpu:a100"}}
    inside = one(marked, A100, FULL, reserved=active, types=types)
    assert (inside.types, inside.free_gpu_milli) == (("a100",), 4000)
    outside = one(replace(NODE, name="hkn0802"), A100, FULL, reserved=active, types=types)
    assert (outside.types, outside.free_gpu_milli) == (("a100x4",), 4000)


def test_a_drone_that_wants_its_node_alone_finds_none_that_is_in_use() -> None:
    alone = {"submit": {"exclusive": True}}
    assert free(one(NODE, FULL, **alone))[0] == 4000
    assert free(one(replace(NODE, used_cpus=2), FULL, **alone)) == (0, 0, 0)


def printed(version: str, before: str = "", after: str = "") -> Partition:
    """Return the partition `accelerated` of a real cluster, with one setting changed, as scontrol prints it."""
    text = (
        (Path(__file__).parent / f"recorded/{version}/partitions.txt").read_text().splitlines()[0]
    )
    assert f" {before}" in text
    [found] = parse_partitions(text.replace(f" {before}", f" {after}", 1) + "\n")
    return found


WHOLE = printed("24.11", "OverSubscribe=NO", "OverSubscribe=EXCLUSIVE")
FOR_ONE_USER = printed("22.05", "ExclusiveUser=NO", "ExclusiveUser=YES")


def places(node: Node, *kinds: DroneType) -> tuple[int, ...]:
    """Return how many drones of each type the planner would start there, each type alone."""
    return tuple(FreeResources.of([node], ()).count(kind) for kind in kinds)


@pytest.mark.parametrize(
    ("partition", "more"),
    [
        (WHOLE, {}),
        (printed("22.05", "OverSubscribe=NO", "OverSubscribe=EXCLUSIVE"), {}),
        (printed("26.05", "Exclusive=NO", "Exclusive=NODE"), {}),
        (printed("26.05", "Exclusive=NO", "Exclusive=TOPO"), {}),
        (ACCELERATED, {"submit": {"exclusive": True}}),
        (FOR_ONE_USER, {"submit": {"exclusive": True}}),
    ],
)
def test_an_empty_node_that_is_given_as_a_whole_has_one_place_for_each_size(
    partition: Partition, more: Mapping[str, Any]
) -> None:
    both = one(NODE, A100, FULL, partition=partition, **more)
    assert places(both, A100, FULL) == (1, 1)
    small = one(NODE, A100, partition=partition, **more)
    assert (places(small, A100), small.gpu_milli, small.free_gpu_milli) == ((1,), 4000, 1000)
    room = FreeResources.of([both], ())
    assert (room.book(A100, 3), room.count(A100), room.count(FULL), room.count(CPU)) == (2, 0, 0, 0)
    used = replace(NODE, state="MIXED", used_cpus=2)
    for ours in ((), (NODE.name,)):
        [busy] = listed([used], (A100, FULL), (partition,), ours=ours, **more)
        assert (places(busy, A100, FULL), free(busy)) == ((0, 0), (0, 0, 0))


def test_a_node_in_a_partition_that_shares_and_in_one_that_does_not() -> None:
    shared = Partition("shared", nodes=(NODE.name,))
    types = {"a100": {"gres": "gpu:a100"}, "cpu": {"partition": "shared"}}
    node = one(
        replace(NODE, partitions=("accelerated", "shared")), A100, CPU, partition=WHOLE, types=types
    )
    assert node.types == ("a100",)  # its partition is not among those of this listing
    [node] = listed(
        [replace(NODE, partitions=("accelerated", "shared"))],
        (A100, CPU),
        (WHOLE, shared),
        types=types,
    )
    assert (node.types, places(node, A100, CPU)) == (("a100", "cpu"), (1, 19))
    room = FreeResources.of([node], ())
    assert (room.book(CPU, 1), room.count(A100), room.count(CPU)) == (0, 0, 18)


@pytest.mark.parametrize(
    ("partition", "more"),
    [
        (FOR_ONE_USER, {}),
        (printed("26.05", "Exclusive=NO", "Exclusive=USER"), {}),
        (ACCELERATED, {"submit": {"exclusive": "user"}}),
    ],
)
def test_a_node_for_one_user_is_free_if_it_is_empty_or_ours(
    partition: Partition, more: Mapping[str, Any]
) -> None:
    used = replace(NODE, state="MIXED", used_cpus=8, used_gpus={"a100": 1})
    assert places(one(NODE, A100, partition=partition, **more), A100) == (4,)
    assert places(one(used, A100, partition=partition, **more), A100) == (0,)
    assert places(one(used, A100, partition=partition, ours=(NODE.name,), **more), A100) == (3,)


def test_a_partition_for_jobs_of_several_nodes_takes_no_drone() -> None:
    assert free(one(partition=printed("24.11", "MinNodes=0", "MinNodes=2")))[0] == 0
    assert free(one(partition=printed("24.11", "MinNodes=0", "MinNodes=1")))[0] == 4000


@pytest.mark.parametrize("sharing", ["NO", "YES:4", "FORCE:2"])
def test_partitions_that_share_nodes_have_a_place_for_each_gpu(sharing: str) -> None:
    shared = printed("24.11", "OverSubscribe=NO", f"OverSubscribe={sharing}")
    assert places(one(NODE, A100, FULL, partition=shared), A100, FULL) == (4, 1)


CLUSTER = (
    NODE,
    replace(NODE, name="hkn0802"),
    H100_NODE,
    replace(NODE, name="hkn0001", partitions=("cpuonly",)),
)
DEAD = replace(NODE, name="hkn0803", state="DOWN")  # need not be in it
OURS = ("hkn0801", "hkn0802", "hkn0901")
ONE, REST = OURS[:1], OURS[1:]


def reserved(
    starts: float, ends: float, nodes: Sequence[str] = OURS, name: str = "maintenance"
) -> Reservation:
    return Reservation(name, NOW + starts, NOW + ends, tuple(nodes))


@pytest.mark.parametrize(
    ("reservations", "downtime_in"),
    [
        ((), 0),
        ((reserved(7200, 9000), reserved(3600, 5000, name="earlier")), 3600),
        ((reserved(-60, 7200),), 0),  # it has begun
        ((reserved(-60, 3600), reserved(10_000, 12_000, name="next")), 10_000),
        ((reserved(3600, 7200, ("hkn0001",)),), 0),  # drones never go there
        ((reserved(3600, 20_000, ONE), reserved(7200, 9000, REST, "rest")), 7200),
        # one after the other
        ((reserved(3600, 20_000, ONE), reserved(20_000, 30_000, REST, "rest")), 0),
    ],
)
def test_the_next_time_when_all_our_nodes_are_reserved_is_the_downtime(
    reservations: Sequence[Reservation], downtime_in: float
) -> None:
    assert downtime(*reservations) == downtime_in


def downtime(*reservations: Reservation, **more: Any) -> float:
    """Return seconds from now; 0 without."""
    at = next_downtime(
        reservations, (*CLUSTER, DEAD), resolve_types((A100, H100), PARTITIONS, config(**more)), NOW
    )
    return at - NOW if at else 0.0


def test_a_reservation_that_all_drones_run_in_is_for_us() -> None:
    assert downtime(reserved(3600, 7200, name="ours"), reservation="ours") == 0
