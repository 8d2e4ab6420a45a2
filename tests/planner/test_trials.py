"""One job class that gets no job into a drone type backs off there alone: no user can ban a type for others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.model import (
    Breaker,
    BreakerState,
    Drone,
    DroneState,
    EndKind,
    Eviction,
    Fault,
    FaultKind,
    JobClass,
    Plan,
    RemoteDrone,
    RemoteEnd,
    RemoteState,
    Snapshot,
    class_scope,
)
from provisioner.planner.validation import validate_plan
from provisioner.reasons import Probing, StartsUnmatched
from tests.planner.scenes import A100, NOW, SMALL, V100, drone, plan_for, plan_of, slot_of, snapshot, why, with_pool

B = BreakerState
PARALLEL = replace(SMALL, id="parallel", owner="eve", oldest_at=NOW - 5000, waiting=3)
PLAIN = replace(SMALL, id="plain", owner="alice", oldest_at=NOW - 5000, waiting=2)
SCOPE = class_scope(A100.key, "parallel")


def idled(name: str = "kit-ab12-1", for_class: str = "parallel", **more: object) -> Drone:
    """A drone that leaves after an hour in the pool without a job."""
    return drone(
        name,
        DroneState.DRAINING,
        age_s=3600,
        **{
            "for_class": for_class,
            "leaving": DroneState.UNUSED,
            "started_at": NOW - 3600,
            "joined_at": NOW - 3500,
            "idle_at": NOW - 3500,
            **more,
        },
    )


def ends(each: Drone, fault: FaultKind | None = None) -> RemoteDrone:
    kind = EndKind.FAULT if fault else EndKind.EXITED
    end = RemoteEnd(kind, NOW - 1, None if fault else 0, "held" if fault else "", fault)
    return RemoteDrone(each.id, RemoteState.ENDED, end=end)


def after(*drones: Drone, classes: tuple[JobClass, ...] = (PARALLEL, PLAIN), **more: object) -> tuple[Snapshot, Plan]:
    """A plan of the moment at which these drones have ended at their site."""
    seen = snapshot(classes=classes, drones=drones, slots=[], remotes=[ends(each) for each in drones], **more)
    return seen, plan_of(seen)


def banned(until: float = NOW + 600, at: float = NOW - 60, state: BreakerState = B.BANNED) -> Breaker:
    return Breaker(SCOPE, state, at, 1, until, Fault(FaultKind.JOBS, "idled", at, of_order=True, accepted=True))


def started(plan: Plan) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in plan.starts:
        found[each.drone.for_class] = found.get(each.drone.for_class, 0) + 1
    return found


def test_parallel_jobs_that_match_no_drone_do_not_ban_the_type_for_plain_jobs() -> None:
    gone = [idled(f"kit-ab12-{i}") for i in range(3)]
    seen, plan = after(*gone)
    assert {b.scope: (b.state, b.failures) for b in plan.breakers} == {SCOPE: (B.BANNED, 1)}
    assert started(plan) == {"plain": 2}
    (reason,) = why(plan, "class:parallel")
    assert isinstance(reason, StartsUnmatched) and (reason.type, reason.until) == (A100.key, NOW + 600)
    assert not validate_plan(seen, plan)


def test_while_a_queue_does_not_answer_no_class_is_blamed_and_none_is_cleared() -> None:
    """Jobs of a schedd that hangs get no drone, whatever they ask for."""
    blamed, _ = after(idled())
    cleared, _ = after(breakers=[banned(NOW - 1, state=B.DEGRADED)], classes=(PLAIN,))
    for whole in (blamed, cleared):
        partial = with_pool(whole, unheard=("b",))
        assert SCOPE in {b.scope for b in plan_of(whole).breakers}
        assert SCOPE not in {b.scope for b in plan_of(partial).breakers}


def test_the_class_uses_another_type_on_which_it_does_not_back_off() -> None:
    seen, plan = after(idled(), types=[A100, V100], free={"a100": 9, "v100": 9})
    assert {each.drone.type for each in plan.starts if each.drone.for_class == "parallel"} == {V100.key}
    assert not validate_plan(seen, plan)


def test_drones_of_one_batch_are_one_failure() -> None:
    late = idled("kit-ab12-9")
    _, plan = after(late, breakers=[banned(at=NOW - 30)])
    assert plan.breakers == ()


def test_after_the_pause_one_drone_is_tried_and_only_one() -> None:
    over = banned(until=NOW - 1)
    seen = snapshot(classes=[PARALLEL], breakers=[over])
    plan = plan_of(seen)
    assert started(plan) == {"parallel": 1}
    assert why(plan, "class:parallel")[-1] == Probing(SCOPE)
    trying = drone("kit-ab12-7", DroneState.BOOTING, for_class="parallel")
    again = plan_for(classes=[PARALLEL], drones=[trying], breakers=[banned(state=B.PROBING)])
    assert again.starts == ()
    assert Probing(SCOPE) in why(again, "class:parallel")


def test_a_drone_that_is_tried_does_not_idle_three_times_as_long() -> None:
    idle = drone("kit-ab12-7", DroneState.IDLE, for_class="parallel", age_s=700)
    seen = snapshot(classes=[PARALLEL], drones=[idle], slots=[slot_of(idle)])
    assert plan_of(seen).drains == ()
    (drain,) = plan_of(replace(seen, breakers={SCOPE: banned(state=B.PROBING)})).drains
    assert drain.drone.id == idle.id


def test_a_drone_with_work_for_the_class_ends_its_back_off_and_leaves_no_record() -> None:
    trying = drone("kit-ab12-1", DroneState.IDLE, for_class="parallel")
    working = slot_of(drone("kit-ab12-1", DroneState.BUSY))
    some = replace(PARALLEL, running=1)
    (changed,) = plan_of(
        snapshot(classes=[some], drones=[trying], slots=[working], breakers=[banned(state=B.PROBING)])
    ).breakers
    assert (changed.scope, changed.state, changed.forgotten) == (SCOPE, B.ACTIVE, True)


def test_a_class_that_has_left_the_queue_is_forgotten_once_its_pause_is_over() -> None:
    assert plan_for(classes=[PLAIN], breakers=[banned()]).breakers == ()
    (changed,) = plan_for(classes=[PLAIN], breakers=[banned(until=NOW - 1)]).breakers
    assert changed.forgotten


@pytest.mark.parametrize(
    "job",
    [
        replace(PARALLEL, oldest_at=NOW - 60),
        replace(PARALLEL, oldest_at=NOW - 9000, idle_at=NOW - 60),
        replace(PARALLEL, waiting=0, running=3),
    ],
    ids=["submitted while the drone left", "evicted while the drone left", "all run"],
)
def test_jobs_that_did_not_wait_all_the_time_are_not_blamed(job: JobClass) -> None:
    _, plan = after(idled(), classes=(job,))
    assert plan.breakers == ()


def test_without_a_negotiation_cycle_no_class_is_blamed() -> None:
    seen, _ = after(idled())
    assert plan_of(with_pool(seen, negotiated_at=NOW - 3550)).breakers == ()


def test_a_drone_that_the_pool_never_saw_is_still_the_types_fault() -> None:
    _, plan = after(idled(joined_at=0.0, idle_at=0.0))
    assert [b.scope for b in plan.breakers] == [A100.key]


@pytest.mark.parametrize("state", [DroneState.BUSY, DroneState.BOOTING])
def test_a_job_that_fills_the_memory_of_its_drone_does_not_slow_the_type(state: DroneState) -> None:
    """It may do so between two looks; its queue tells that it ran there."""
    full = drone("kit-ab12-1", state, age_s=300, for_class="parallel")
    seen = snapshot(classes=[PLAIN], drones=[full], slots=[], remotes=[ends(full, FaultKind.DRONE)])
    told = (Eviction(full.id, "1.0", NOW - 2, 1000, 1.0),) if state is DroneState.BOOTING else ()
    plan = plan_of(with_pool(seen, evictions=told))
    assert [m.drone.state for m in plan.moves] == [DroneState.FAILED]
    assert plan.breakers == ()
    assert started(plan) == {"plain": 2}
