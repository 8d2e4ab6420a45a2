"""Circuit breakers and doubt, as data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner import model, reasons
from provisioner.keys import OVERLAY_SCOPE
from provisioner.planner.breakers import update_by_order_results
from provisioner.planner.context import check_views
from provisioner.reasons import Probing, StartsUnmatched
from tests.planner import scenes
from tests.planner.scenes import (
    A100,
    DOWN,
    NOW,
    drone,
    plan_for,
    plan_of,
    remote_of,
    slot_of,
    snapshot,
    why,
)

B, K = model.BreakerState, model.FaultKind


def fault(
    kind: model.FaultKind = model.FaultKind.DOWN, at: float = NOW, of_order: bool = False
) -> model.Fault:
    return model.Fault(kind, f"a {kind} fault", at, of_order)


REQUESTED = drone("kit-ab12-1", model.DroneState.REQUESTED)
HAS_ARRIVED = {"drones": [REQUESTED], "remotes": [replace(remote_of(REQUESTED), remote_id="4711")]}
QUEUED = drone("kit-ab12-2", model.DroneState.QUEUED)
RUNS = replace(remote_of(QUEUED), state=model.RemoteState.RUNNING)
IN_POOL = [slot_of(replace(QUEUED, state=model.DroneState.IDLE))]
IDLE, AT_WORK = (
    drone("kit-ab12-1", state) for state in (model.DroneState.IDLE, model.DroneState.BUSY)
)


TOPAS = model.Scope("topas")


def tripped(
    state: B, kind: K, scope: model.Scope = TOPAS, until: float = NOW + 100, **more: bool
) -> model.Breaker:
    return model.Breaker(scope, state, NOW - 60, 2, until, replace(fault(kind, NOW - 15), **more))


BAD_NODES = tripped(B.PROBING, K.NODE, A100.scope, of_order=True, accepted=True)


@pytest.mark.parametrize(
    ("known", "given", "after"),
    [
        # A ban leads only to probing, and there is no other overlay: it is never banned.
        (tripped(B.BANNED, K.DRONE, A100.scope, NOW - 1), {}, (B.PROBING, 2)),
        (tripped(B.DEGRADED, K.DOWN, OVERLAY_SCOPE, 0.0), {"overlay_fault": DOWN}, (B.DEGRADED, 3)),
        # A listing that works clears what a poll has met, and nothing that orders have met.
        (tripped(B.BANNED, K.DENIED), {}, (B.ACTIVE, 0)),
        (tripped(B.BANNED, K.DENIED, of_order=True), {}, None),
        (tripped(B.BANNED, K.DOWN, of_order=True), {}, None),
        # An order that has arrived after all speaks for its site, but not for what drones met after
        # they were accepted.
        (tripped(B.DEGRADED, K.DOWN, of_order=True), {"drones": [REQUESTED]}, None),
        (tripped(B.DEGRADED, K.DOWN, of_order=True), HAS_ARRIVED, (B.ACTIVE, 0)),
        (tripped(B.DEGRADED, K.DOWN, of_order=True, accepted=True), HAS_ARRIVED, None),
        (tripped(B.DEGRADED, K.DOWN, of_order=True), {"drones": [QUEUED], "remotes": [RUNS]}, None),
        # A drone that works clears the blame of its type.
        (
            tripped(B.PROBING, K.DRONE, A100.scope),
            {"drones": [IDLE], "slots": [slot_of(AT_WORK)]},
            (B.ACTIVE, 0),
        ),
        (tripped(B.PROBING, K.DRONE, A100.scope), {"drones": [IDLE]}, None),
        # The same failed look is counted once.
        (replace(tripped(B.DEGRADED, K.DOWN), fault=DOWN), {"site_fault": DOWN}, None),
        # Machines that fail as they boot are cured by one in the pool, not by one that boots.
        (BAD_NODES, {"drones": [QUEUED], "remotes": [RUNS]}, None),
        (BAD_NODES, {"drones": [QUEUED], "remotes": [RUNS], "slots": IN_POOL}, (B.ACTIVE, 0)),
    ],
)
def test_what_clears_a_breaker_and_what_does_not(
    known: model.Breaker, given: dict[str, object], after: tuple[B, int] | None
) -> None:
    changed = plan_for(breakers=[known], **given).breakers
    assert [(breaker.scope, breaker.state, breaker.failures) for breaker in changed] == (
        [(known.scope, *after)] if after else []
    )


@pytest.mark.parametrize(("outage_s", "hidden"), [(30, False), (300, True)])
def test_a_short_outage_hides_nothing_and_a_long_one_does(outage_s: float, hidden: bool) -> None:
    away = model.Breaker(
        OVERLAY_SCOPE, B.DEGRADED, NOW - outage_s, 1, 0.0, fault(), blind_until=NOW - 5000
    )
    (after,) = plan_for(breakers=[away]).breakers
    assert (after.state, after.blind_until) == (B.ACTIVE, NOW if hidden else NOW - 5000)


def test_an_accepted_order_clears_what_orders_had_tripped_but_not_the_blame_for_dying_drones() -> (
    None
):
    one = [model.OrderResult(model.DroneId("kit-ab12-1"), model.OrderOutcome.OK, "1")]
    types = {model.DroneId("kit-ab12-1"): A100.scope}
    quota = {A100.scope: tripped(B.PROBING, K.QUOTA, A100.scope, of_order=True)}
    dying = {A100.scope: tripped(B.PROBING, K.DRONE, A100.scope)}
    assert [b.state for b in update_by_order_results(quota, types, one, NOW)] == [B.ACTIVE]
    assert update_by_order_results(dying, types, one, NOW) == []


def test_a_site_that_never_answers_a_start_is_banned_though_its_listings_work() -> None:
    breakers: list[model.Breaker] = []
    states = []
    for serial in range(3):
        plan = plan_for(waiting=1, breakers=breakers)
        assert len(plan.starts) == 1
        unsure = [
            model.OrderResult(
                model.DroneId(f"kit-ab12-{serial}"), model.OrderOutcome.UNKNOWN, fault=fault()
            )
        ]
        known = {b.scope: b for b in breakers}
        breakers = update_by_order_results(known, {unsure[0].drone_id: A100.scope}, unsure, NOW)
        states.append(breakers[0].state)
    assert states == [B.DEGRADED, B.DEGRADED, B.BANNED]
    assert plan_for(waiting=1, breakers=breakers).starts == ()


@pytest.mark.parametrize(
    ("state", "gone_s"), [(model.DroneState.BOOTING, 400), (model.DroneState.SUBMITTED, 200)]
)
def test_a_type_whose_drones_vanish_before_they_work_is_slowed(
    state: model.DroneState, gone_s: float
) -> None:
    plan = plan_for(
        waiting=5, drones=[drone("kit-ab12-1", state, missing_at=NOW - gone_s)], remotes=[]
    )
    assert [m.drone.state for m in plan.moves] == [model.DroneState.LOST]
    assert [b.scope for b in plan.breakers] == [A100.scope]
    assert len(plan.starts) == 1, "one is tried, not five"


@pytest.mark.parametrize(("outage_s", "settles_s"), [(17, 17), (60, 60), (1800, 60)])
def test_after_an_outage_the_pool_settles_before_drones_are_started(
    outage_s: int, settles_s: int
) -> None:
    away = model.Breaker(OVERLAY_SCOPE, B.DEGRADED, NOW - outage_s, 3, 0.0, fault())
    plan = plan_for(waiting=2, breakers=[away])
    assert plan.starts == ()
    (reason,) = why(plan, "all")
    assert isinstance(reason, reasons.BackingOff) and reason.until == NOW + settles_s
    (back,) = plan.breakers
    later = plan_of(
        replace(
            snapshot(classes=[scenes.jobs(waiting=2)], breakers=[back]), now=NOW + settles_s + 1
        )
    )
    assert len(later.starts) == 2


@pytest.mark.parametrize(
    ("kind", "failures", "first_s", "longest_s", "scope"),
    [
        (model.FaultKind.DOWN, 3, 10, 300, "topas"),
        (model.FaultKind.DENIED, 1, 120, 1800, "topas"),
        (model.FaultKind.CAPACITY, 1, 60, 600, A100.key),
        (model.FaultKind.QUOTA, 1, 120, 1800, A100.key),
        (model.FaultKind.CONFIG, 1, 600, 7200, A100.key),
        (model.FaultKind.NODE, 3, 60, 1800, A100.key),
        (model.FaultKind.BLACK_HOLE, 2, 1800, 21600, "topas"),
    ],
)
def test_refused_orders_ban_what_the_fault_concerns_for_a_pause_that_doubles(
    kind: model.FaultKind, failures: int, first_s: float, longest_s: float, scope: str
) -> None:
    i = model.DroneId("kit-ab12-1")
    refused = [model.OrderResult(i, model.OrderOutcome.REJECTED, fault=fault(kind))]
    known: dict[model.Scope, model.Breaker] = {}
    pauses = []
    for _ in range(failures + 12):
        (after,) = update_by_order_results(known, {i: A100.scope}, refused, NOW)
        known = {after.scope: after}
        pauses.append(after.until - NOW if after.state is B.BANNED else None)
    assert list(map(str, known)) == [scope]
    assert pauses[: failures + 2] == [None] * (failures - 1) + [
        first_s,
        2 * first_s,
        min(longest_s, 4 * first_s),
    ]
    assert pauses[-1] == longest_s


@pytest.mark.parametrize(
    ("missing", "listed", "more", "doubted"),
    [
        (2, 0, {}, 0),
        (3, 0, {}, 3),
        (3, 3, {}, 3),
        (3, 4, {}, 0),
        (3, 0, {"missing_at": NOW - 302}, 0),
        (3, 0, {"state": model.DroneState.SUBMITTED}, 0),
        (3, 0, {"state": model.DroneState.STOPPING, "leaving": model.DroneState.CANCELLED}, 0),
    ],
)
def test_a_listing_that_lacks_half_of_a_sites_drones_at_once_is_doubted(
    missing: int, listed: int, more: dict[str, object], doubted: int
) -> None:
    gone = [
        replace(drone(f"kit-ab12-{i}", model.DroneState.BOOTING), **more) for i in range(missing)
    ]
    there = [drone(f"kit-ab12-{9 + i}", model.DroneState.BOOTING) for i in range(listed)]
    # Before them in the record one that is on its way, and is not listed yet.
    order = drone("kit-ab12-0-0", model.DroneState.REQUESTED, age_s=1)
    snap = snapshot(drones=[order, *gone, *there], remotes=[remote_of(each) for each in there])
    found = check_views(snap).sites["topas"]
    assert found == (reasons.AllVanished("topas", doubted) if doubted else None)
    if doubted:
        plan = plan_of(snap)
        assert not plan.acts and why(plan, "site:topas") == [found]


BOOTS, WORKS, QUEUES = (
    drone("kit-ab12-1", state)
    for state in (model.DroneState.BOOTING, model.DroneState.BUSY, model.DroneState.QUEUED)
)
STOPS = drone("kit-ab12-1", model.DroneState.STOPPING, leaving=model.DroneState.CANCELLED)


@pytest.mark.parametrize(
    ("there", "end", "blamed"),
    [
        (BOOTS, model.RemoteEnd(model.EndKind.EXITED, NOW, 1), "drone"),
        (BOOTS, model.RemoteEnd(model.EndKind.EXITED, NOW, 71, contained=True), ""),
        (BOOTS, model.RemoteEnd(model.EndKind.EXITED, NOW, 0), "drone"),
        (WORKS, model.RemoteEnd(model.EndKind.EXITED, NOW, 1), ""),
        (QUEUES, model.RemoteEnd(model.EndKind.FAULT, NOW), ""),
        (WORKS, model.RemoteEnd(model.EndKind.FAULT, NOW, fault=K.CONFIG), "config"),
        (WORKS, model.RemoteEnd(model.EndKind.FAULT, NOW, fault=K.DRONE), ""),
        (IDLE, model.RemoteEnd(model.EndKind.FAULT, NOW, fault=K.DRONE), "drone"),
        (STOPS, model.RemoteEnd(model.EndKind.FAULT, NOW, fault=K.CONFIG), ""),
        (BOOTS, model.RemoteEnd(model.EndKind.PREEMPTED, NOW), ""),
    ],
)
def test_a_bad_end_is_blamed_on_the_type(
    there: model.Drone, end: model.RemoteEnd, blamed: str
) -> None:
    ended = replace(remote_of(there), state=model.RemoteState.ENDED, end=end)
    plan = plan_for(drones=[there], remotes=[ended], slots=[])
    assert [b.fault.kind for b in plan.breakers if b.fault and b.scope == A100.scope] == (
        [blamed] if blamed else []
    )


def test_the_answers_of_a_batch_count_once_and_a_refusal_outweighs_an_accepted_order() -> None:
    ids, key = [model.DroneId(f"kit-ab12-{i}") for i in range(3)], A100.scope
    full = fault(model.FaultKind.QUOTA)
    known = {key: model.Breaker(key, B.PROBING, NOW - 9, 2, 0.0, replace(full, of_order=True))}
    batch = [
        model.OrderResult(ids[0], model.OrderOutcome.OK, "1"),
        *(model.OrderResult(i, model.OrderOutcome.REJECTED, fault=full) for i in ids[1:]),
    ]
    (after,) = update_by_order_results(known, dict.fromkeys(ids, key), batch, NOW)
    assert (after.state, after.failures, after.until) == (B.BANNED, 3, NOW + 480)
    assert after.fault is not None and after.fault.of_order


@pytest.mark.parametrize(
    ("there", "more", "scope"),
    [
        (QUEUES, {}, A100.key),
        (QUEUES, {"blocked": model.FaultKind.DENIED}, "topas"),
        (QUEUES, {"blocked": model.FaultKind.CAPACITY}, None),
        (replace(QUEUES, leaving=model.DroneState.CANCELLED), {}, None),
        (replace(QUEUES, started_at=NOW - 5), {}, None),
        (BOOTS, {}, None),
    ],
)
def test_what_waits_for_nothing_that_comes_by_waiting_backs_off_where_the_fault_lies(
    there: model.Drone, more: dict[str, object], scope: str | None
) -> None:
    held = {"state": model.RemoteState.PENDING, "blocked": K.CONFIG, "reason": "no such partition"}
    plan = plan_for(drones=[there], remotes=[replace(remote_of(there), **held | more)])
    assert [str(breaker.scope) for breaker in plan.breakers] == ([scope] if scope else [])
    for breaker in plan.breakers:
        assert (
            breaker.fault is not None
            and breaker.fault.message == "kit-ab12-1 waits: no such partition"
        )


# ----------------- A job class that gets no job into a drone type backs off there alone: no user
# can ban it for others

PARALLEL = replace(scenes.SMALL, id="parallel", owner="eve", oldest_at=NOW - 5000, waiting=3)
PLAIN = replace(scenes.SMALL, id="plain", owner="alice", oldest_at=NOW - 5000, waiting=2)
SCOPE = replace(A100.scope, class_id="parallel")


def idled(name: str = "kit-ab12-1", **more: object) -> model.Drone:
    """A drone that leaves after an hour in the pool without a job."""
    times = {
        "started_at": NOW - 3600,
        "joined_at": NOW - 3500,
        "idle_at": NOW - 3500,
        "for_class": "parallel",
    }
    drains = model.DroneState.DRAINING
    return drone(name, drains, age_s=3600, **{"leaving": model.DroneState.UNUSED, **times, **more})


def ends(each: model.Drone, fault: model.FaultKind | None = None) -> model.RemoteDrone:
    kind = model.EndKind.FAULT if fault else model.EndKind.EXITED
    end = model.RemoteEnd(kind, NOW - 1, None if fault else 0, "held" if fault else "", fault)
    return model.RemoteDrone(each.id, model.RemoteState.ENDED, end=end)


def after(
    *drones: model.Drone, classes: tuple[model.JobClass, ...] = (PARALLEL, PLAIN), **more: object
) -> tuple[model.Snapshot, model.Plan]:
    """A plan of the moment at which these drones have ended at their site."""
    seen = snapshot(
        classes=classes, drones=drones, slots=[], remotes=[ends(each) for each in drones], **more
    )
    return seen, plan_of(seen)


def banned(
    until: float = NOW + 600, at: float = NOW - 60, state: model.BreakerState = B.BANNED
) -> model.Breaker:
    return model.Breaker(
        SCOPE, state, at, 1, until, model.Fault(K.JOBS, "idled", at, of_order=True, accepted=True)
    )


def started_for(plan: model.Plan) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in plan.starts:
        found[each.drone.for_class] = found.get(each.drone.for_class, 0) + 1
    return found


def test_parallel_jobs_that_match_no_drone_do_not_ban_the_type_for_plain_jobs() -> None:
    gone = [idled(f"kit-ab12-{i}") for i in range(3)]
    _, plan = after(*gone)
    assert {b.scope: (b.state, b.failures) for b in plan.breakers} == {SCOPE: (B.BANNED, 1)}
    assert started_for(plan) == {"plain": 2}
    (reason,) = why(plan, "class:parallel")
    assert isinstance(reason, StartsUnmatched) and (reason.type, reason.until) == (
        A100.key,
        NOW + 600,
    )
    _, elsewhere = after(*gone, types=[A100, scenes.V100], free={"a100": 9, "v100": 9})
    assert {each.drone.type for each in elsewhere.starts if each.drone.for_class == "parallel"} == {
        scenes.V100.key
    }


def test_while_a_queue_does_not_answer_no_class_is_blamed_and_none_is_cleared() -> None:
    """Jobs of a schedd that hangs get no drone, whatever they ask for."""
    blamed, _ = after(idled())
    cleared, _ = after(breakers=[banned(NOW - 1, state=B.DEGRADED)], classes=(PLAIN,))
    for whole in (blamed, cleared):
        partial = scenes.with_pool(whole, unheard=("b",))
        assert SCOPE in {b.scope for b in plan_of(whole).breakers}
        assert SCOPE not in {b.scope for b in plan_of(partial).breakers}


def test_drones_of_one_batch_are_one_failure() -> None:
    late = idled("kit-ab12-9")
    _, plan = after(late, breakers=[banned(at=NOW - 30)])
    assert plan.breakers == ()


def test_after_the_pause_one_drone_is_tried_and_only_one() -> None:
    plan = plan_for(classes=[PARALLEL], breakers=[banned(until=NOW - 1)])
    assert started_for(plan) == {"parallel": 1}
    assert why(plan, "class:parallel")[-1] == Probing(str(SCOPE))
    trying = drone("kit-ab12-7", model.DroneState.BOOTING, for_class="parallel")
    again = plan_for(classes=[PARALLEL], drones=[trying], breakers=[banned(state=B.PROBING)])
    assert again.starts == ()
    assert Probing(str(SCOPE)) in why(again, "class:parallel")


def test_a_drone_that_is_tried_does_not_idle_three_times_as_long() -> None:
    idle = drone("kit-ab12-7", model.DroneState.IDLE, for_class="parallel", age_s=700)
    seen = snapshot(classes=[PARALLEL], drones=[idle], slots=[slot_of(idle)])
    assert plan_of(seen).drains == ()
    (drain,) = plan_of(replace(seen, breakers={SCOPE: banned(state=B.PROBING)})).drains
    assert drain.drone.id == idle.id


def test_a_drone_with_work_for_the_class_ends_its_back_off_and_leaves_no_record() -> None:
    trying = drone("kit-ab12-1", model.DroneState.IDLE, for_class="parallel")
    working = slot_of(drone("kit-ab12-1", model.DroneState.BUSY))
    some = replace(PARALLEL, running=1)
    (changed,) = plan_for(
        classes=[some], drones=[trying], slots=[working], breakers=[banned(state=B.PROBING)]
    ).breakers
    assert (changed.scope, changed.state, changed.forgotten) == (SCOPE, B.ACTIVE, True)


def test_a_class_that_has_left_the_queue_is_forgotten_once_its_pause_is_over() -> None:
    assert plan_for(classes=[PLAIN], breakers=[banned()]).breakers == ()
    (changed,) = plan_for(classes=[PLAIN], breakers=[banned(until=NOW - 1)]).breakers
    assert changed.forgotten


@pytest.mark.parametrize(
    ("job", "pool"),
    [
        ({"oldest_at": NOW - 60}, {}),
        ({"oldest_at": NOW - 9000, "idle_at": NOW - 60}, {}),
        ({"waiting": 0, "running": 3}, {}),
        ({}, {"negotiated_at": NOW - 3550}),
    ],
    ids=[
        "submitted while the drone left",
        "evicted while the drone left",
        "all run",
        "no negotiation cycle",
    ],
)
def test_jobs_that_did_not_wait_all_the_time_are_not_blamed(
    job: dict[str, object], pool: dict[str, object]
) -> None:
    seen, _ = after(idled(), classes=(replace(PARALLEL, **job),))
    assert plan_of(scenes.with_pool(seen, **pool)).breakers == ()


def test_a_drone_that_the_pool_never_saw_is_still_the_types_fault() -> None:
    _, plan = after(idled(joined_at=0.0, idle_at=0.0))
    assert [b.scope for b in plan.breakers] == [A100.scope]


@pytest.mark.parametrize("state", [model.DroneState.BUSY, model.DroneState.BOOTING])
def test_a_job_that_fills_the_memory_of_its_drone_does_not_slow_the_type(
    state: model.DroneState,
) -> None:
    """It may do so between two looks; its queue tells that it ran there."""
    full = drone("kit-ab12-1", state, age_s=300, for_class="parallel")
    seen = snapshot(
        classes=[PLAIN], drones=[full], slots=[], remotes=[ends(full, model.FaultKind.DRONE)]
    )
    told = (
        (model.Eviction(full.id, "1.0", NOW - 2, 1000, 1.0),)
        if state is model.DroneState.BOOTING
        else ()
    )
    plan = plan_of(scenes.with_pool(seen, evictions=told))
    assert [m.drone.state for m in plan.moves] == [model.DroneState.FAILED]
    assert plan.breakers == ()
    assert started_for(plan) == {"plain": 2}


def test_the_trouble_of_a_failing_type_has_the_meaning_of_the_exit_code() -> None:
    """The record had it, and the line said only that the drone ended failed."""
    before = drone(1, model.DroneState.BOOTING, started_at=NOW - 9)
    end = model.RemoteEnd(model.EndKind.EXITED, NOW - 1, 71)
    remote = model.RemoteDrone(before.id, model.RemoteState.ENDED, end=end)
    (breaker,) = (
        b
        for b in plan_of(snapshot(drones=[before], remotes=[remote])).breakers
        if str(b.scope) == before.type
    )
    assert breaker.fault is not None and "exit code 71: GPU check failed" in breaker.fault.message
