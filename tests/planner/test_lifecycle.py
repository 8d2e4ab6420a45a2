"""What views and receipts make of a drone."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given, strategies as st

from provisioner import model, reasons
from provisioner.keys import OVERLAY_SCOPE
from provisioner.planner import lifecycle
from provisioner.planner.lifecycle import (
    apply_drain_result,
    apply_stop_result,
    observe,
    shift_drone,
)
from provisioner.planner.states import STATE_RULES
from tests.planner.scenes import (
    NOW,
    drone,
    plan_for,
    plan_of,
    remote_of,
    slot_of,
    snapshot,
    with_pool,
    with_site,
)

S = model.DroneState
LIMITS = model.SitePolicy("topas")
IN_POOL = {S.JOINED, S.IDLE, S.BUSY, S.DRAINING, S.STOPPING}
NEXT = {
    S.REQUESTED: {S.SUBMITTED, S.QUEUED, S.BOOTING, *IN_POOL},
    S.SUBMITTED: {S.QUEUED, S.BOOTING, *IN_POOL},
    S.QUEUED: {S.BOOTING, *IN_POOL},
    S.BOOTING: {S.QUEUED, *IN_POOL},
    S.JOINED: {S.QUEUED, *IN_POOL} - {S.JOINED},
    S.IDLE: {S.QUEUED, *IN_POOL} - {S.IDLE},
    S.BUSY: {S.QUEUED, *IN_POOL} - {S.BUSY},
    S.DRAINING: IN_POOL - {S.DRAINING},
    S.STOPPING: set[S](),
}
"""Live states that may follow each state; every final state may follow any."""


def test_every_live_state_stands_in_the_table_and_leads_only_to_known_ones() -> None:
    assert set(STATE_RULES) == set(S) - model.ENDS
    assert all(rule.limit and rule.ends_as in model.ENDS for rule in STATE_RULES.values())


LIVE = [state for state in S if not state.ended]


def observed(before: model.Drone, remote: model.RemoteState, slot: model.Slot | None = None) -> S:
    listed = model.RemoteDrone(before.id, remote, before.remote_id)
    view = model.SiteView("topas", NOW, {before.id: listed})
    move = observe(before, view, slot, pool_fresh=True, policy=LIMITS, doubted=False, now=NOW)
    return move.drone.state if move is not None else before.state


@pytest.mark.parametrize("listed", [each for each in model.RemoteState if each.value != "ended"])
@pytest.mark.parametrize("state", LIVE)
def test_a_listing_changes_a_state_as_the_table_says(state: S, listed: model.RemoteState) -> None:
    times = {"started_at": NOW - 60, "joined_at": NOW - 30} if state in IN_POOL else {}
    before = replace(drone("kit-ab12-1", state), **times)  # type: ignore[arg-type]
    assert observed(before, listed) is lifecycle.BY_LISTING.get((state, listed), state)


@pytest.mark.parametrize("shown", model.SlotState)
@pytest.mark.parametrize("state", LIVE)
def test_a_slot_changes_a_state_as_the_table_says(state: S, shown: model.SlotState) -> None:
    before = replace(drone("kit-ab12-1", state, age_s=60), asked_at=0.0, started_at=0.0)
    slot = model.Slot(before.id, shown, NOW)
    after = lifecycle.BY_SLOT.get((state, shown), state)
    assert observed(before, model.RemoteState.UNKNOWN, slot) is after


def test_no_table_begins_or_leads_to_an_end() -> None:
    for table in (lifecycle.BY_LISTING, lifecycle.BY_SLOT):
        assert not model.ENDS & {*table.values(), *(state for state, _ in table)}


def gone(state: S, missing_s: float, age_s: float = 60.0, **more: object) -> model.Drone:
    return drone("kit-ab12-1", state, age_s=age_s, missing_at=NOW - missing_s, **more)


BOOTING = drone("kit-ab12-1", S.BOOTING, age_s=60)
OTHERS = {"remotes": [remote_of(drone("kit-ab12-2", S.BOOTING))]}
FOUND_WORK = drone("kit-ab12-1", S.DRAINING, leaving=S.UNUSED, busy_at=NOW - 5, started_at=NOW - 60)
ENDED = model.RemoteDrone(BOOTING.id, model.RemoteState.ENDED, BOOTING.remote_id)
EXITED = replace(ENDED, end=model.RemoteEnd(model.EndKind.EXITED, NOW, 0))
NO_WORD = reasons.EndedAtSite("fault", None, "its site does not say how", 60.0, 0)


@pytest.mark.parametrize(
    ("before", "given", "after"),
    [
        # An order that fresh listings lack is not lost before its time.
        (drone("kit-ab12-1", S.REQUESTED, age_s=100), {}, None),
        (
            drone("kit-ab12-1", S.REQUESTED, age_s=121),
            {},
            (S.FAILED, reasons.NeverArrived(121, 120)),
        ),
        # An accepted order has longer to appear than a listed drone to come back; an older listing
        # says nothing of it.
        (gone(S.SUBMITTED, 100, 200), {"waiting": 1, **OTHERS}, None),
        (
            gone(S.SUBMITTED, 130, 200),
            {"waiting": 1, **OTHERS},
            (S.LOST, reasons.Disappeared(129, 120)),
        ),
        (
            drone("kit-ab12-1", S.SUBMITTED, age_s=10),
            {"waiting": 1, "remotes": [], "site_age_s": 20},
            None,
        ),
        # Missing once is not gone, and a listing without it is wrong if the pool hears from it.
        (BOOTING, {"remotes": []}, (S.BOOTING, reasons.NotInListing())),
        (gone(S.BOOTING, 60), OTHERS, (S.LOST, reasons.Disappeared(59, 30))),
        (gone(S.BUSY, 400, heard_at=NOW - 31), {"remotes": []}, None),
        # A slot that was not heard from is not alive.
        (BOOTING, {"slots": [slot_of(BOOTING, heard_at=NOW - 901)]}, None),
        # An end of which the site reports nothing is an end; a drone that found work after all was
        # not unused.
        (BOOTING, {"remotes": [ENDED]}, (S.FAILED, NO_WORD)),
        (
            FOUND_WORK,
            {"remotes": [EXITED]},
            (S.DONE, reasons.EndedAtSite("exited", 0, "", 60.0, 0)),
        ),
    ],
)
def test_what_becomes_of_a_drone(
    before: model.Drone, given: dict[str, object], after: tuple[S, object] | None
) -> None:
    moves = plan_for(drones=[before], **given).moves
    assert [(move.drone.state, move.reason) for move in moves] == ([after] if after else [])


@pytest.mark.parametrize(
    ("state", "remote", "becomes"),
    [
        (S.REQUESTED, model.RemoteState.PENDING, S.QUEUED),
        (S.REQUESTED, model.RemoteState.UNKNOWN, S.SUBMITTED),
        (S.QUEUED, model.RemoteState.RUNNING, S.BOOTING),
        (S.BOOTING, model.RemoteState.UNKNOWN, S.BOOTING),
        (S.STOPPING, model.RemoteState.RUNNING, S.STOPPING),
        (S.IDLE, model.RemoteState.PENDING, S.QUEUED),
    ],
)
def test_listings_move_a_drone_on_and_unknown_is_alive(
    state: S, remote: model.RemoteState, becomes: S
) -> None:
    before = drone("kit-ab12-1", state)
    move = seen(before, replace(remote_of(before), state=remote))
    assert (move.drone.state if move else before.state) is becomes


def test_a_drone_that_joined_before_its_site_listed_it_as_running_stays_in_the_pool() -> None:
    queued = drone("kit-ab12-1", S.QUEUED)
    (move,) = plan_for(drones=[queued], slots=[slot_of(queued)]).moves
    assert move.drone.state is S.IDLE
    late = seen(move.drone, replace(remote_of(move.drone), state=model.RemoteState.PENDING))
    assert late is None or late.drone.state is S.IDLE


@pytest.mark.parametrize(
    ("slot_state", "becomes"),
    [
        (model.SlotState.CHECKING, S.JOINED),
        (model.SlotState.BUSY, S.BUSY),
        (model.SlotState.DRAINING, S.DRAINING),
    ],
)
def test_a_slot_makes_a_booting_drone_join(slot_state: model.SlotState, becomes: S) -> None:
    slot = slot_of(BOOTING, state=slot_state, jobs=1, jobs_started=1)
    (move,) = plan_for(drones=[BOOTING], slots=[slot]).moves
    assert (move.drone.state, move.drone.joined_at) == (becomes, NOW)


ENDINGS = [
    ({}, model.RemoteEnd(model.EndKind.EXITED, NOW, 0), S.UNUSED),
    (
        {"busy_at": NOW - 50, "jobs_started": 1},
        model.RemoteEnd(model.EndKind.EXITED, NOW, 0),
        S.DONE,
    ),
    ({}, model.RemoteEnd(model.EndKind.EXITED, NOW, 71, "gpu check failed"), S.FAILED),
    ({}, model.RemoteEnd(model.EndKind.EXITED, NOW, 73), S.JOIN_TIMEOUT),
    ({"leaving": S.JOIN_TIMEOUT}, model.RemoteEnd(model.EndKind.STOPPED, NOW), S.JOIN_TIMEOUT),
    ({"leaving": S.CANCELLED}, model.RemoteEnd(model.EndKind.EXITED, NOW, 143), S.CANCELLED),
    ({"leaving": S.DONE}, model.RemoteEnd(model.EndKind.PREEMPTED, NOW), S.PREEMPTED),
    ({}, model.RemoteEnd(model.EndKind.FAULT, NOW, None, "node fault"), S.FAILED),
    ({}, model.RemoteEnd(model.EndKind.STOPPED, NOW), S.CANCELLED),
]


@pytest.mark.parametrize(("more", "how", "becomes"), ENDINGS)
def test_each_kind_of_end(more: dict[str, object], how: model.RemoteEnd, becomes: S) -> None:
    assert lifecycle.end_state(drone("kit-ab12-1", S.BOOTING, **more), how) is becomes


def test_a_refused_drain_keeps_the_overlays_own_words() -> None:
    """A refused drain left no trace: the site's next listing overwrote the words."""
    there = drone(
        "kit-ab12-1", S.DRAINING, leaving=S.CANCELLED, joined_at=NOW - 500, jobs=1, asked_at=NOW - 5
    )
    fault = model.Fault(model.FaultKind.DENIED, "condor_drain: exit 1: not authorized", NOW)
    move = apply_drain_result(
        there, model.OrderResult(there.id, model.OrderOutcome.REJECTED, fault=fault)
    )
    assert move is not None and move.reason == reasons.DrainRefused("denied", fault.message)
    assert (move.drone.drain_refusal, move.drone.site_reason) == (fault.message, there.site_reason)
    assert move.drone.asked == there.asked + 1
    busy = slot_of(move.drone, state=model.SlotState.BUSY, jobs=1)
    seen = plan_for(
        drones=[move.drone], slots=[busy], remotes=[replace(remote_of(there), reason="running")]
    )
    assert [m.drone.drain_refusal for m in seen.moves] == [fault.message], (
        "neither view makes it forgotten"
    )
    drains = slot_of(move.drone, state=model.SlotState.DRAINING, jobs=1)
    obeyed = plan_for(drones=[move.drone], slots=[drains])
    assert [m.drone.drain_refusal for m in obeyed.moves] == [""], "it drains after all"


states = st.sampled_from([s for s in S if s not in model.ENDS])
remotes = st.sampled_from([None, *model.RemoteState])
slots = st.sampled_from([None, *model.SlotState])


@given(states, remotes, slots, st.booleans(), st.booleans(), st.floats(0, 1e5))
def test_no_view_whatever_makes_a_step_that_the_table_does_not_know(
    state: S,
    remote: model.RemoteState | None,
    slot: model.SlotState | None,
    pool: bool,
    listed: bool,
    age_s: float,
) -> None:
    before = drone(
        "kit-ab12-1",
        state,
        age_s=age_s,
        leaving=S.DONE if state in (S.DRAINING, S.STOPPING) else None,
    )
    end = (
        model.RemoteEnd(model.EndKind.EXITED, NOW, 0) if remote is model.RemoteState.ENDED else None
    )
    there = {before.id: model.RemoteDrone(before.id, remote, end=end)} if remote else {}
    view = model.SiteView("topas", NOW - 1, there)
    seen = (
        model.Slot(before.id, slot, NOW - 1, jobs=int(slot is model.SlotState.BUSY))
        if slot
        else None
    )
    move = observe(
        before,
        view if listed else None,
        seen,
        pool_fresh=pool,
        policy=LIMITS,
        doubted=False,
        now=NOW,
    )
    if move is not None and move.drone.state is not state:
        assert move.drone.state in NEXT[state] | model.ENDS
        assert move.drone.since == NOW


def seen(
    before: model.Drone,
    remote: model.RemoteDrone | None = None,
    slot: model.Slot | None = None,
    at: float = NOW,
) -> model.StateChange | None:
    """Return the drone after a listing with (or without) it and a slot."""
    there = {before.id: remote} if remote else {model.DroneId("kit-ab12-9"): remote_of(before)}
    view = model.SiteView("topas", at - 1, there)
    return observe(before, view, slot, pool_fresh=True, policy=LIMITS, doubted=False, now=at)


NEWS = {"started_at": NOW - 9, "reason": "up", "node": "n1", "slot": "s1"}
TOLD = model.RemoteDrone(model.DroneId("kit-ab12-1"), model.RemoteState.RUNNING, "4711", **NEWS)


@pytest.mark.parametrize("state", [S.REQUESTED, S.SUBMITTED, S.QUEUED])
def test_all_that_a_listing_tells_goes_on_record_and_what_it_does_not_tell_stays(state: S) -> None:
    before = drone("kit-ab12-1", state, missing_at=NOW - 5)
    move = seen(before, TOLD)
    assert move is not None
    news = {
        "remote_id": "4711",
        "started_at": NOW - 9,
        "site_reason": "up",
        "node": "n1",
        "site_slot": "s1",
    }
    at = before.submitted_at or NOW
    assert move.drone == replace(
        before, state=S.BOOTING, since=NOW, submitted_at=at, missing_at=0.0, **news
    )
    assert move.reason == reasons.SeenAtSite("running", "up")
    assert seen(move.drone, TOLD) is None, "told once"
    silent = seen(
        move.drone,
        model.RemoteDrone(before.id, model.RemoteState.RUNNING, reason="still up"),
        at=NOW + 15,
    )
    assert silent is not None and silent.drone == replace(move.drone, site_reason="still up")


def test_the_first_notice_of_an_end_is_told_and_ours_counts_if_it_came_before() -> None:
    before = drone(
        "kit-ab12-1", S.BOOTING, remote_id="4711", site_reason="up", node="n1", site_slot="s1"
    )
    noticed = replace(TOLD, notice_at=NOW - 3, reason="preempted")
    first = seen(before, noticed)
    assert first is not None
    assert (first.drone.notice_at, first.reason) == (NOW - 3, reasons.PreemptionNotice("preempted"))
    assert seen(first.drone, replace(noticed, notice_at=NOW - 1)) is None
    ours = seen(
        replace(before, state=S.STOPPING, notice_at=NOW - 20, leaving=S.CANCELLED),
        replace(TOLD, reason="x"),
    )
    assert ours is not None and (ours.drone.notice_at, type(ours.reason)) == (
        NOW - 20,
        reasons.SeenAtSite,
    )


@pytest.mark.parametrize(("state", "asked"), [(S.QUEUED, 1), (S.BUSY, 1), (S.STOPPING, 2)])
def test_a_machine_that_is_over_counts_as_asked_to_stop_and_keeps_its_start(
    state: S, asked: int
) -> None:
    before = drone("kit-ab12-1", state, asked=2 if state is S.STOPPING else 0, asked_at=NOW - 40)
    over = replace(TOLD, state=model.RemoteState.STOPPED)
    move = seen(before, over)
    assert move is not None and (move.drone.state, move.drone.asked) == (S.STOPPING, asked)
    assert move.drone.started_at == (before.started_at or NOW - 9)
    assert seen(move.drone, replace(over, started_at=0.0)) is None, "what it no longer tells stays"


@pytest.mark.parametrize(
    ("more", "becomes"),
    [
        ({"missing_at": NOW - 31}, S.LOST),
        ({"missing_at": NOW - 30}, None),
        ({"missing_at": NOW - 31, "busy_at": NOW - 900, "leaving": S.DONE}, S.DONE),
        ({"missing_at": NOW - 31, "leaving": S.CANCELLED}, S.CANCELLED),
        ({"submitted_at": NOW - 1}, None),
        ({"submitted_at": 0.0, "requested_at": NOW - 2}, S.BOOTING),
    ],
)
def test_a_drone_is_gone_when_listings_have_lacked_it_for_so_long(
    more: dict[str, object], becomes: S | None
) -> None:
    move = seen(drone("kit-ab12-1", S.BOOTING, **more))
    assert (move.drone.state if move else None) is becomes


def test_evictions_count_from_the_notice_on_with_half_a_minute_for_two_clocks() -> None:
    there = drone("kit-ab12-1", S.BUSY, notice_at=NOW - 100, work_gpu_milli=1000, work_at=NOW - 500)
    end = model.RemoteEnd(model.EndKind.PREEMPTED, NOW, None, "owner")
    over = replace(remote_of(there), state=model.RemoteState.ENDED, end=end)
    at_limit = model.Eviction(there.id, "1.0", NOW - 130, 500, 60.0)
    for evictions, lost, jobs_lost in (
        ((at_limit,), 30.0, 1),
        ((at_limit, replace(at_limit, at=NOW - 1, lost_s=100.0)), 80.0, 2),
        # earlier in its life, and its queue tells of no other
        ((replace(at_limit, at=NOW - 131),), 0.0, 0),
        (None, 500.0, 1),
    ):
        (move,) = plan_for(drones=[there], remotes=[over], evictions=evictions).moves
        assert (move.drone.lost_gpu_s, move.drone.lost_jobs) == (lost, jobs_lost)
        assert move.reason == reasons.Preempted(
            "owner", 100.0, 30.0, lost, jobs_lost, "GPU-seconds"
        )


def test_answers_to_a_stop_are_news_only_where_they_are_trouble() -> None:
    there = drone("kit-ab12-1", S.STOPPING)
    fault = model.Fault(model.FaultKind.DENIED, "not yours", NOW)
    for outcome, reason in (
        (model.OrderOutcome.REJECTED, reasons.OrderRefused("denied", "not yours")),
        (model.OrderOutcome.UNKNOWN, reasons.OutcomeUnknown("not yours")),
    ):
        move = apply_stop_result(there, model.OrderResult(there.id, outcome, fault=fault))
        assert move == model.StateChange(
            replace(there, site_reason="not yours"), S.STOPPING, reason
        )
    assert apply_stop_result(there, model.OrderResult(there.id, model.OrderOutcome.OK)) is None


def test_times_of_a_drone_go_with_its_clock_and_never_beyond_now() -> None:
    names = [f.name for f in fields(model.Drone) if f.name == "since" or f.name.endswith("_at")]
    names = [name for name in names if name not in ("retires_at", "ended_at")]
    there = replace(
        drone("kit-ab12-1", S.BUSY), **{name: NOW - 100 - i for i, name in enumerate(names)}
    )
    earlier = shift_drone(there, -7200.5, NOW)
    assert [getattr(earlier, name) for name in names] == [
        NOW - 7300.5 - i for i in range(len(names))
    ]
    later = shift_drone(there, 105.0, NOW)
    assert [getattr(later, name) for name in names] == [
        min(NOW, NOW + 5 - i) for i in range(len(names))
    ]
    assert shift_drone(drone("kit-ab12-1", S.QUEUED), -5.0, NOW).started_at == 0.0


# --------------------- Times in a drone's life: idle clock, last sign of life, patience with
# listings and with the pool


def idle_slot(there: model.Drone, **more: object) -> model.Slot:
    return slot_of(replace(there, state=S.IDLE), **more)


def test_the_idle_clock_begins_at_the_end_of_the_job_though_the_slot_ad_keeps_an_older_time() -> (
    None
):
    """HTCondor's ad at the end of a job has the NumDynamicSlotsTime of its beginning (BUG A)."""
    worked = drone("kit-ab12-1", S.BUSY, age_s=600, jobs=1, jobs_started=0)
    plan = plan_for(
        drones=[worked], slots=[idle_slot(worked, jobs_started=1, idle_since=NOW - 590)]
    )
    (move,) = plan.moves
    assert (move.drone.state, move.drone.idle_at) == (S.IDLE, NOW)
    assert plan.drains == ()


def test_the_last_sign_of_life_of_a_drone_without_other_news_is_recorded_now_and_then() -> None:
    busy = drone("kit-ab12-1", S.BUSY, age_s=36_000, heard_at=NOW - 1000, idle_at=0.0)
    (move,) = plan_for(drones=[busy]).moves
    assert move.drone == replace(busy, heard_at=NOW - 1)
    assert plan_for(drones=[replace(busy, heard_at=NOW - 800)]).moves == ()


def test_a_lost_drone_has_cost_its_work_up_to_when_it_was_missed() -> None:
    begun = NOW - 36_000
    work = {"heard_at": begun, "work_gpu_milli": 1000, "work_at": begun}
    gone = drone("kit-ab12-1", S.BUSY, age_s=36_000, missing_at=NOW - 700, **work)
    (move,) = plan_for(drones=[gone], slots=[], remotes=[]).moves
    assert (move.drone.state, move.drone.lost_gpu_s) == (S.LOST, 35_300)


def test_a_drone_taken_back_into_service_stays_so_though_an_older_ad_says_draining() -> None:
    back = drone("kit-ab12-1", S.BUSY, age_s=2, heard_at=NOW - 20)
    older = slot_of(back, state=model.SlotState.DRAINING, heard_at=NOW - 20)
    assert plan_for(drones=[back], slots=[older]).moves == ()
    (move,) = plan_for(drones=[back], slots=[replace(older, heard_at=NOW - 1)]).moves
    assert (move.drone.state, move.drone.leaving) == (S.DRAINING, S.DONE)


def test_a_drone_that_nobody_asked_to_drain_is_in_service_again_when_its_slot_is() -> None:
    drains = drone(
        "kit-ab12-1", S.DRAINING, leaving=S.DONE, joined_at=NOW - 900, busy_at=NOW - 800, jobs=1
    )
    busy = slot_of(replace(drains, state=S.BUSY))
    (move,) = plan_for(drones=[drains], slots=[busy]).moves
    assert (move.drone.state, move.drone.leaving) == (S.BUSY, None)
    asked = replace(drains, asked_at=NOW - 60)
    (move,) = plan_for(drones=[asked], slots=[busy]).moves
    assert (move.drone.state, move.drone.leaving) == (S.DRAINING, S.DONE)


@pytest.mark.parametrize("state", [S.QUEUED, S.BOOTING])
def test_an_empty_listing_of_a_small_site_is_not_believed_at_once(state: S) -> None:
    there = [drone(f"kit-ab12-{i}", state, missing_at=NOW - 46) for i in (1, 2)]
    plan = plan_for(waiting=2, drones=there, remotes=[], limits={"max_drones": 2})
    assert (plan.moves, plan.starts) == ((), ())
    later = [replace(each, missing_at=NOW - 302) for each in there]
    assert {m.drone.state for m in plan_for(drones=later, remotes=[]).moves} == {S.LOST}


def away_for(outage_s: float, there: model.Drone) -> model.Snapshot:
    """The first look after an outage in which the look of every tick failed."""
    known: dict[str, model.Breaker] = {}
    usual = snapshot(drones=[there])
    at = NOW
    while at < NOW + outage_s:
        fault = model.Fault(model.FaultKind.DOWN, "no answer within its deadline", at - 1)
        seen = with_site(replace(usual, now=at, breakers=known), taken_at=at - 1)
        plan = plan_of(replace(seen, overlay=replace(seen.overlay, fault=fault)))
        assert not plan.acts
        known = {**known, **{breaker.scope: breaker for breaker in plan.breakers}}
        at += 15
    return with_pool(
        with_site(replace(usual, now=at, breakers=known), taken_at=at - 1), taken_at=at - 1
    )


def test_after_a_long_outage_of_the_pool_no_drone_is_blamed_for_not_joining_in_it() -> None:
    back = away_for(1800, drone("kit-ab12-1", S.BOOTING, age_s=60))
    plan = plan_of(back)
    assert plan.stops == ()
    (after,) = plan.breakers
    assert (after.scope, after.blind_until) == (OVERLAY_SCOPE, back.now)
