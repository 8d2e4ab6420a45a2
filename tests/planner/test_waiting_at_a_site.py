"""Sites with queues: what holds a drone up there, when it will start, and when the site goes down."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner import reasons
from provisioner.controller.actuation import batches
from provisioner.model import (
    BreakerState,
    Drone,
    DroneState,
    DroneType,
    FaultKind,
    RemoteDrone,
    RemoteState,
    Snapshot,
    StartOrder,
)
from provisioner.planner import decide
from provisioner.planner.validation import validate_plan
from tests.planner.scenes import NOW, drone, jobs, node, plan_of, snapshot, started, why

S = DroneState
A100 = DroneType("horeka", "a100", 1000, 8, 20480, 0, vram_mib=40960, capability=80, walltime_s=172800.0)
CLOUD = DroneType("cloud", "v100", 1000, 8, 20480, 0, vram_mib=32768, capability=70, price=9.0)

H100 = replace(A100, name="h100", vram_mib=95000, price=3.0)


def queued(name: str = "kit-ab12-1", kind: DroneType = A100, **more: object) -> Drone:
    return drone(name, S.QUEUED, kind, **more)  # type: ignore[arg-type]


def waits(of: Drone, reason: str = "", blocked: FaultKind | None = None, start_in_s: float = 0.0) -> RemoteDrone:
    at = NOW + start_in_s if start_in_s else 0.0
    return RemoteDrone(of.id, RemoteState.PENDING, "17_0", reason=reason, expected_start_at=at, blocked=blocked)


def down_in(snap: Snapshot, left_s: float, site: str = "horeka") -> Snapshot:
    reading = snap.sites[site]
    assert reading.view is not None
    view = replace(reading.view, downtime_at=NOW + left_s)
    return replace(snap, sites={**snap.sites, site: replace(reading, view=view)})


# --------------------------------------------------------------------------------------------------------- obstacles


def test_a_limit_that_one_drone_met_is_not_met_by_more() -> None:
    held = queued()
    remote = waits(held, "QOSMaxJobsPerUserLimit", FaultKind.QUOTA)
    plan = plan_of(snapshot(classes=[jobs(waiting=5)], types=(A100,), drones=[held], remotes=[remote]))
    assert plan.starts == () and plan.stops == (), "it keeps its place in the queue"
    assert reasons.StartBlocked("horeka/a100", "quota", "QOSMaxJobsPerUserLimit") in why(plan, "class:small")


def test_other_types_are_started_meanwhile() -> None:
    held = queued()
    remote = waits(held, "AssocGrpGRES", FaultKind.QUOTA)
    plan = plan_of(snapshot(classes=[jobs(waiting=3)], types=(A100, CLOUD), drones=[held], remotes=[remote]))
    assert started(plan) == [CLOUD.key] * 2


def test_a_plain_wait_is_no_obstacle() -> None:
    held = queued()
    plan = plan_of(snapshot(classes=[jobs(waiting=3)], types=(A100,), drones=[held], remotes=[waits(held, "Priority")]))
    assert started(plan) == [A100.key] * 2


@pytest.mark.parametrize("fault", [FaultKind.CONFIG, FaultKind.NODE])
def test_a_drone_that_will_never_start_is_taken_back_and_its_type_backs_off(fault: FaultKind) -> None:
    held = queued()
    snap = snapshot(classes=[jobs(waiting=3)], types=(A100,), drones=[held], remotes=[waits(held, "Bad", fault)])
    plan = plan_of(snap)
    [stop] = plan.stops
    assert (stop.drone.leaving, stop.reason) == (S.FAILED, reasons.StartBlocked("horeka/a100", fault.value, "Bad"))
    [breaker] = plan.breakers
    assert breaker.scope == "horeka/a100" and breaker.fault is not None
    assert (breaker.fault.kind, breaker.fault.message) == (fault, "kit-ab12-1 waits: Bad")
    assert plan.starts == ()
    # The next tick: it is on its way out, counted once, and nothing new is asked for.
    later = replace(snap, drones={held.id: stop.drone}, breakers={breaker.scope: breaker})
    again = plan_of(later)
    assert again.breakers == () and again.stops == ()
    if fault is FaultKind.CONFIG:
        assert breaker.state is BreakerState.BANNED
        left = [
            each for each in why(again, "class:small") if isinstance(each, reasons.BackingOff | reasons.StartBlocked)
        ]
        assert left, "the reason is told as long as it holds"


# ---------------------------------------------------------------------------------------------------- expected starts


def test_a_drone_that_its_site_expects_late_keeps_no_job_from_room_that_is_there() -> None:
    late = queued()
    snap = snapshot(
        classes=[jobs(waiting=1)],
        types=(A100, CLOUD),
        drones=[late],
        remotes=[waits(late, "Priority", None, 7200)],
        free={"a100": 0, "v100": 2},
    )
    plan = plan_of(snap)
    assert started(plan) == [CLOUD.key]
    assert plan.starts[0].reason == reasons.JobsWaiting("small", 1, 0, 1)


def test_one_that_starts_soon_does() -> None:
    soon = queued()
    snap = snapshot(
        classes=[jobs(waiting=1)],
        types=(A100, CLOUD),
        drones=[soon],
        remotes=[waits(soon, "Priority", None, 300)],
        free={"a100": 0, "v100": 2},
    )
    plan = plan_of(snap)
    assert plan.starts == ()
    assert why(plan, "class:small") == [reasons.DemandCovered(1, 1)]


def test_where_room_is_not_told_one_late_drone_is_as_good_as_two() -> None:
    late = queued()
    snap = snapshot(
        classes=[jobs(waiting=1)], types=(A100, CLOUD), drones=[late], remotes=[waits(late, "Priority", None, 7200)]
    )
    plan = plan_of(snap)
    assert plan.starts == ()
    assert why(plan, "class:small") == [reasons.DemandCovered(1, 1)]


def test_room_that_one_of_ours_is_not_given_is_no_room() -> None:
    """Idle GPUs that Slurm keeps for others: else a drone would be asked for and withdrawn again every minute."""
    late = queued()
    snap = snapshot(
        classes=[jobs(waiting=1)],
        types=(A100,),
        drones=[late],
        remotes=[waits(late, "Priority", None, 7200)],
        free={"a100": 5},
    )
    assert plan_of(snap).starts == ()


def test_of_two_that_wait_the_late_one_goes_when_one_is_enough() -> None:
    late, soon = queued(idle_at=NOW - 300), queued("kit-ab12-2", CLOUD)
    remotes = [waits(late, "Priority", None, 7200), waits(soon)]
    plan = plan_of(snapshot(classes=[jobs(waiting=1)], types=(A100, CLOUD), drones=[late, soon], remotes=remotes))
    assert [stop.drone.id for stop in plan.stops] == [late.id]
    assert plan.starts == ()


@pytest.mark.parametrize(("waited_s", "free", "elsewhere"), [(300, 1, 1), (300, 2, 0), (300, 0, 2), (100, 0, 0)])
def test_one_whose_room_others_have_taken_keeps_no_job_from_room_elsewhere(
    waited_s: float, free: int, elsewhere: int
) -> None:
    there = [queued(f"kit-ab12-{n}", age_s=waited_s + n) for n in range(2)]
    free_by_type = {"a100": free, "v100": 5}
    plan = plan_of(snapshot(classes=[jobs(waiting=2)], types=(A100, CLOUD), drones=there, free=free_by_type))
    assert started(plan) == [CLOUD.key] * elsewhere


def test_so_it_is_where_nodes_tell_what_is_free() -> None:
    there = [queued(f"kit-ab12-{n}", age_s=300.0) for n in range(2)]
    nodes = [node("n1", 4, free_gpus=1), node("n2", 4, free_gpus=0)]
    snap = snapshot(classes=[jobs(waiting=2)], types=(A100, CLOUD), drones=there, nodes=nodes, free={"v100": 5})
    assert started(plan_of(snap)) == [CLOUD.key]


def test_a_machine_that_is_being_made_on_its_node_has_its_room() -> None:
    made = [queued(f"kit-ab12-{n}", age_s=300.0, node="n1") for n in range(2)]
    nodes = [node("n1", 4, free_gpus=1)]
    snap = snapshot(classes=[jobs(waiting=4)], types=(A100, CLOUD), drones=made, nodes=nodes, free={"v100": 5})
    assert started(plan_of(snap)) == [A100.key, CLOUD.key]


def test_a_short_queue_comes_before_a_long_one() -> None:
    dear = replace(CLOUD, price=50.0)
    late = queued()
    snap = snapshot(
        classes=[jobs(waiting=2)],
        types=(A100, dear),
        drones=[late],
        remotes=[waits(late, "Priority", None, 7200)],
        free={"a100": 0, "v100": 0},
        limits={"queue_when_full": True},
    )
    assert started(plan_of(snap)) == [dear.key]


def test_two_late_queues_are_stood_in_until_one_of_them_moves() -> None:
    """Withdrawn as one too many, a type without a late drone looks free again, and is asked for again every 100 s."""
    late, other = queued(idle_at=NOW - 300), queued("kit-ab12-2", H100, idle_at=NOW - 300)
    remotes = [waits(each, "Priority", None, 7200) for each in (late, other)]
    snap = snapshot(
        classes=[jobs(waiting=1)],
        types=(A100, H100),
        drones=[late, other],
        remotes=remotes,
        free={"a100": 5, "h100": 5},
    )
    plan = plan_of(snap)
    assert plan.stops == () and plan.starts == ()


@pytest.mark.parametrize("late_s", [900, 3500, 7200])
def test_late_is_late_within_the_hour_too(late_s: float) -> None:
    late = queued()
    snap = snapshot(
        classes=[jobs(waiting=1)],
        types=(A100, CLOUD),
        drones=[late],
        remotes=[waits(late, "Priority", None, late_s)],
        free={"a100": 5, "v100": 2},
    )
    assert started(plan_of(snap)) == [CLOUD.key]


def test_one_that_a_limit_holds_keeps_no_job_from_room_that_is_there() -> None:
    held = queued()
    snap = snapshot(
        classes=[jobs(waiting=1)],
        types=(A100, CLOUD),
        drones=[held],
        remotes=[waits(held, "QOSMaxJobsPerUserLimit", FaultKind.QUOTA)],
        free={"a100": 0, "v100": 2},
    )
    assert started(plan_of(snap)) == [CLOUD.key]


# --------------------------------------------------------------------------------------------------------- downtimes


def test_before_a_downtime_a_drone_is_given_what_is_left() -> None:
    snap = down_in(snapshot(classes=[jobs(waiting=1)], types=(A100,)), 7200)
    plan = plan_of(snap)
    [start] = plan.starts
    assert start.walltime_s == 7200 - 300
    [batch] = batches(plan, {A100.key: A100}, snap.policy)
    [order] = batch.starts
    assert isinstance(order, StartOrder)
    assert order.type == replace(A100, walltime_s=6900.0)


def test_an_order_says_how_long_the_drone_may_be_on_its_way() -> None:
    snap = snapshot(classes=[jobs(waiting=1)], types=(A100,))
    [site] = snap.policy.sites
    limits = snap.policy.sites[site]
    at_site = replace(limits, order_confirm_s=1.0, queued_s=3 * 86400.0, booting_s=20.0, joining_s=300.0)
    policy = replace(snap.policy, sites={site: at_site})
    [batch] = batches(plan_of(snap), {A100.key: A100}, policy)
    assert [order.comes_within_s for order in batch.starts] == [3 * 86400.0 + 321.0]


def test_one_far_away_changes_nothing() -> None:
    [start] = plan_of(down_in(snapshot(classes=[jobs(waiting=1)], types=(A100,)), 3 * 86400)).starts
    assert start.walltime_s == 0.0


def test_shortly_before_it_nothing_is_started() -> None:
    plan = plan_of(down_in(snapshot(classes=[jobs(waiting=1)], types=(A100,)), 1500))
    assert plan.starts == ()
    assert why(plan, "class:small") == [reasons.Downtime("horeka", NOW + 1500, 1200.0, 1800.0)]


def test_a_long_job_gets_no_drone_that_the_downtime_would_cut_short() -> None:
    long = jobs(waiting=1, walltime_s=10800.0)
    plan = plan_of(down_in(snapshot(classes=[long], types=(A100,)), 7200))
    assert plan.starts == ()
    assert why(plan, "class:small") == [reasons.Downtime("horeka", NOW + 7200, 6900.0, 10800.0)]
    elsewhere = plan_of(down_in(snapshot(classes=[long], types=(A100, CLOUD)), 7200))
    assert started(elsewhere) == [CLOUD.key]


def test_a_downtime_that_has_begun_is_the_sites_affair() -> None:
    plan = plan_of(down_in(snapshot(classes=[jobs(waiting=1)], types=(A100,)), -60))
    assert started(plan) == [A100.key]


def test_the_checker_faults_a_drone_that_lives_into_the_downtime() -> None:
    snap = snapshot(classes=[jobs(waiting=1)], types=(A100,))
    assert "downtime" in " ".join(map(str, validate_plan(down_in(snap, 7200), decide(snap))))
