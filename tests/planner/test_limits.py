"""Number of drones that each limit allows, to the last one: types, breakers, free places of sites, downtimes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner import reasons
from provisioner.model import (
    Breaker,
    BreakerState,
    DroneId,
    DroneState,
    DroneType,
    Fault,
    FaultKind,
    Node,
    OperatorRequest,
    Policy,
    RemoteDrone,
    RemoteState,
    RequestKind,
    Reserve,
    Snapshot,
)
from provisioner.planner.matching import Resources, count_fits
from provisioner.planner.owner import FreeResources
from provisioner.planner.views import check_views
from tests.planner.scenes import A100, NOW, V100, drone, jobs, node, plan_of, snapshot, started, why

MANY = jobs(waiting=50)
ROOMY = {"max_drones": 100, "max_pending": 100, "max_starts_per_tick": 100}
CPU = DroneType("topas", "cpu", 0, 8, 20480, 0, price=0.1)


def _viewed(snap: Snapshot, **view: object) -> Snapshot:
    """The same, with more in the view of topas."""
    reading = snap.sites["topas"]
    assert reading.view is not None
    return replace(snap, sites={**snap.sites, "topas": replace(reading, view=replace(reading.view, **view))})  # type: ignore[arg-type]


@pytest.mark.parametrize("most", [1, 3, 5])
def test_the_limit_of_a_type_holds_to_the_last_drone(most: int) -> None:
    there = [drone("kit-ab12-1", DroneState.BUSY)]
    kind = replace(A100, max_drones=most)
    plan = plan_of(snapshot(classes=[MANY], drones=there, types=(kind,), limits=ROOMY))
    assert len(plan.starts) == most - 1
    assert why(plan, "class:small") == [reasons.LimitReached("max_drones", "topas/a100", most, most)]


def test_strays_count_with_the_gpus_of_their_sites_largest_type() -> None:
    quad = replace(A100, name="quad", gpu_milli=4000)
    stray = RemoteDrone(DroneId("kit-zzzz-9"), RemoteState.UNKNOWN, "r9")
    for limits, policy in (({"max_gpu_milli": 6000}, Policy()), ({}, Policy(max_gpu_milli=6000))):
        snap = snapshot(classes=[MANY], types=(A100, quad), remotes=[stray], limits=ROOMY | limits, policy=policy)
        gpus = sum(start.drone.gpu_milli for start in plan_of(snap).starts)
        assert gpus == 2000, "six allowed, four of them taken"


def test_a_drone_that_is_written_off_counts_as_a_stray_where_another_site_lists_it() -> None:
    old = drone("kit-ab12-1", DroneState.BUSY, kind=replace(A100, site="old", name="v100"))
    quad = replace(A100, name="quad", gpu_milli=4000)
    kill = OperatorRequest(1, NOW - 5, RequestKind.KILL, (old.id,), "its site was renamed", "anna")
    stray = RemoteDrone(old.id, RemoteState.RUNNING, "r1")
    policy = Policy(max_gpu_milli=6000)
    snap = snapshot(classes=[MANY], types=(A100, quad), remotes=[stray], requests=[kill], limits=ROOMY, policy=policy)
    plan = plan_of(replace(snap, drones={old.id: old}))  # the judge has nothing against it
    assert [move.drone.state for move in plan.moves if move.drone.id == old.id] == [DroneState.LOST]
    gpus = sum(start.drone.gpu_milli for start in plan.starts)
    assert gpus == 1000, "six allowed, four of them those of a stray, and one on record until the plan is carried out"


def test_a_degraded_breaker_lets_one_drone_start_at_a_time() -> None:
    fault = Fault(FaultKind.UNKNOWN, "boom", NOW - 60, of_order=True)
    for scope in ("topas", "topas/a100"):
        breaker = Breaker(scope, BreakerState.DEGRADED, NOW - 60, 2, 0.0, fault)
        plan = plan_of(snapshot(classes=[MANY], limits=ROOMY, breakers=[breaker]))
        assert len(plan.starts) == 1
        assert why(plan, "class:small") == [reasons.Probing(scope)]


def test_a_probed_type_starts_no_other_while_its_probe_is_on_the_way() -> None:
    fault = Fault(FaultKind.UNKNOWN, "boom", NOW - 600)
    breaker = Breaker("topas/a100", BreakerState.PROBING, NOW - 300, 2, 0.0, fault)
    before = drone("kit-ab12-1", DroneState.QUEUED, age_s=400.0)
    probe = drone("kit-ab12-2", DroneState.QUEUED, age_s=200.0)
    assert len(plan_of(snapshot(classes=[MANY], drones=[before], limits=ROOMY, breakers=[breaker])).starts) == 1
    snap = snapshot(classes=[MANY], drones=[before, probe], limits=ROOMY, breakers=[breaker])
    assert plan_of(snap).starts == ()


def test_gpus_in_all_bind_gpu_types_only_and_types_that_are_not_configured_do_no_harm() -> None:
    small = jobs(waiting=9, id="cpu", gpu_milli=0)
    free = {"a100": 4, "v100": 4, "cpu": 6, "unheard-of": 3}
    snap = snapshot(classes=[MANY, small], types=(A100, V100, CPU), free=free, limits=ROOMY)
    kinds = started(plan_of(_viewed(snap, free_gpu_milli=5000)))
    gpus = [kind for kind in kinds if kind != "topas/cpu"]
    assert (len(gpus), len(kinds) - len(gpus)) == (5, 6)


def test_a_type_that_a_site_does_not_list_as_free_has_no_room_there() -> None:
    plan = plan_of(snapshot(classes=[MANY], free={"v100": 4}, limits=ROOMY))
    assert plan.starts == () and why(plan, "class:small") == [reasons.SiteFull("topas/a100")]


def test_a_quota_holds_to_the_last_drone_and_counts_what_was_asked_for_and_not_answered() -> None:
    asked = drone("kit-ab12-1", DroneState.REQUESTED, age_s=5.0)
    plan = plan_of(snapshot(classes=[MANY], quota={"a100": 3}, limits=ROOMY))
    assert len(plan.starts) == 3 and why(plan, "class:small") == [reasons.SiteQuota("topas/a100")]
    plan = plan_of(snapshot(classes=[MANY], drones=[asked], quota={"a100": 3}, limits=ROOMY))
    assert len(plan.starts) == 2


def test_a_downtime_that_has_begun_to_bind_is_told_with_the_time_that_is_left() -> None:
    def refusal(in_s: float) -> list[object]:
        return why(plan_of(_viewed(snapshot(classes=[MANY], limits=ROOMY), downtime_at=NOW + in_s)), "class:small")

    assert refusal(300.0 + 1799.0) == [reasons.Downtime("topas", NOW + 2099.0, 1799.0, 1800.0)]
    assert refusal(300.0) == [reasons.Downtime("topas", NOW + 300.0, 0.0, 1800.0)]
    assert refusal(100.0) == [reasons.Downtime("topas", NOW + 100.0, 0.0, 1800.0)], "never less than no time"
    assert not any(isinstance(each, reasons.Downtime) for each in refusal(300.0 + 1800.0))


# ---------------------------------------------------------------------------------------------------- nodes and amounts


def test_the_fullest_nodes_are_filled_first_and_what_finds_no_room_is_counted() -> None:
    free_nodes = FreeResources.of(
        [node("wide", 8), node("full", 8, free_gpus=2), node("other", 8, kinds=("v100",))], (), 0.0
    )
    assert free_nodes.count(A100) == 10
    assert free_nodes.book(A100, 3) == 0
    assert {name: node_room.free.gpu_milli for name, node_room in free_nodes.nodes.items()} == {
        "wide": 7000,
        "full": 0,
        "other": 8000,
    }
    assert free_nodes.book(A100, 0) == 0 and free_nodes.count(A100) == 7
    assert free_nodes.book(A100, 9) == 2 and free_nodes.count(A100) == 0
    assert free_nodes.nodes["other"].free.gpu_milli == 8000


@pytest.mark.parametrize(("whole_mib", "free_mib", "count"), [(0, 0, 4), (1, 0, 0), (1000, 300, 3), (1000, 299, 2)])
def test_disk_binds_where_a_node_tells_it(whole_mib: int, free_mib: int, count: int) -> None:
    kind = replace(A100, disk_mib=100)
    told = Node("w1", ("a100",), 4000, 192, 1 << 20, whole_mib, 4000, 192, 1 << 20, free_mib)
    assert FreeResources.of([told], (), 0.0).count(kind) == count


def test_the_disk_that_free_gpus_keep_is_kept_where_it_is_told() -> None:
    rule = Reserve(("*",), disk_mib=100)
    kind = replace(CPU, disk_mib=50)
    for whole_mib, count in ((1000, 12), (0, 24)):
        told = Node("w1", ("cpu",), 4000, 192, 1 << 20, whole_mib, 4000, 192, 1 << 20, whole_mib)
        assert FreeResources.of([told], (rule,), 0.0).count(kind) == count


def test_amounts_that_are_not_asked_for_do_not_bind() -> None:
    assert count_fits(Resources(0, 1, 0, 0), Resources(0, 5, 0, 0)) == 5
    assert count_fits(Resources(0, 0, 7, 0), Resources(0, 0, 20, 0)) == 2
    assert count_fits(Resources(0, 0, 0, 7), Resources(0, 0, 0, 20)) == 2
    assert count_fits(Resources(1000, 1, 1, 1), Resources(3000, 2, 2, 9)) == 2
    assert count_fits(Resources(1000, 1, 1, 1), Resources(3000, 2, 9, 1)) == 1
    assert count_fits(Resources(0, 0, -5, 0), Resources(4000, 9, 9, 9)) == 0, "less than nothing is nothing"
    assert count_fits(Resources(1000, -1, -5, -5), Resources(4000, 0, 0, 0)) == 4
    assert count_fits(Resources(500, 0, 0, 0), Resources(1700, 0, 0, 0)) == 3, (
        "two on the one device that is free, one on the rest"
    )
    assert Resources(1, 2, 3, 4).plus(Resources(10, 20, 30, 40)) == Resources(11, 22, 33, 44)
    assert Resources(1, 2, 3, 4).plus(Resources(1, 1, 1, 1), -2) == Resources(-1, 0, 1, 2)


def test_settled_drones_count_against_every_limit() -> None:
    """Most drones are settled at most times: busy and as they were. Rules do not go through them one by one."""
    there = [drone(f"kit-ab12-{n}", DroneState.BUSY, heard_at=NOW - 2) for n in (1, 2, 3)]
    kind = replace(A100, max_drones=5)
    for snap in (
        snapshot(classes=[MANY], drones=there, types=(kind,), limits=ROOMY),
        snapshot(classes=[MANY], drones=there, limits=ROOMY | {"max_drones": 5}),
        snapshot(classes=[MANY], drones=there, limits=ROOMY | {"max_gpu_milli": 5000}),
        snapshot(classes=[MANY], drones=there, limits=ROOMY, policy=Policy(max_drones=5)),
        snapshot(classes=[MANY], drones=there, limits=ROOMY, policy=Policy(max_gpu_milli=5000)),
    ):
        assert check_views(snap).split.changing == {}, "the story is about settled ones"
        assert len(plan_of(snap).starts) == 2


def test_what_binds_at_a_full_site_is_told_as_the_site_tells_it() -> None:
    full = snapshot(classes=[MANY], free={"a100": 0}, limits=ROOMY)
    assert why(plan_of(full), "class:small") == [reasons.SiteFull("topas/a100")]
    lacking = _viewed(full, lacks={"a100": "memory"})
    assert why(plan_of(lacking), "class:small") == [reasons.SiteFull("topas/a100", "memory")]


def test_what_one_type_takes_of_free_places_all_others_lose_in_proportion() -> None:
    other = jobs(waiting=50, id="other", vram_mib=1)
    snap = snapshot(classes=[other], types=(A100, V100), free={"a100": 4, "v100": 8}, limits=ROOMY | {"max_drones": 6})
    kinds = started(plan_of(snap))
    assert len(kinds) == 6 and kinds.count(V100.key) == 6, "the cheaper type first"
    queued = [drone(f"kit-ab12-{n}", DroneState.SUBMITTED, V100) for n in range(1, 5)]
    snap = snapshot(classes=[MANY], drones=queued, types=(A100, V100), free={"a100": 4, "v100": 8}, limits=ROOMY)
    assert len(started(plan_of(snap))) <= 4
