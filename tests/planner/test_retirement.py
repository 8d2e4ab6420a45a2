"""Who leaves, and who is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner import reasons
from provisioner.estimates import Estimates
from provisioner.formatting import describe
from provisioner.model import (
    Breaker,
    BreakerState,
    Drain,
    DrainMode,
    DroneId,
    DroneState,
    EndKind,
    Eviction,
    OperatorRequest,
    Plan,
    Policy,
    RemoteDrone,
    RemoteEnd,
    RemoteState,
    RequestKind,
    SitePolicy,
    SlotState,
)
from provisioner.planner.retirement import CANCEL_AFTER_S, MIN_IDLE_GAPS, idle_limit
from provisioner.reasons import IdleTimeout
from tests.planner.scenes import (
    A100,
    DOWN,
    NOW,
    V100,
    drone,
    jobs,
    plan_for,
    plan_of,
    remote_of,
    slot_of,
    snapshot,
    why,
    with_pool,
)

S = DroneState


def test_an_idle_drone_leaves_after_its_time_out() -> None:
    plan = plan_for(drones=[drone("kit-ab12-1", S.IDLE, age_s=612)])
    (drain,) = plan.drains
    assert drain.reason == reasons.IdleTimeout(612, 600, "time-out")
    assert drain.mode is DrainMode.PEACEFUL
    assert (drain.drone.state, drain.drone.leaving) == (S.DRAINING, S.UNUSED)


def test_an_idle_drone_that_a_waiting_job_fits_is_kept_for_the_negotiator_but_not_for_ever() -> None:
    young, old = drone("kit-ab12-1", S.IDLE, age_s=700), drone("kit-ab12-1", S.IDLE, age_s=1900)
    assert plan_for(waiting=1, drones=[young]).drains == ()
    assert len(plan_for(waiting=1, drones=[old]).drains) == 1


def test_a_busy_drone_never_leaves_for_being_idle() -> None:
    assert not plan_for(drones=[drone("kit-ab12-1", S.BUSY, age_s=99999)]).acts


def test_a_claimed_slot_without_a_running_job_is_busy() -> None:
    there = drone("kit-ab12-1", S.BUSY, age_s=9999, jobs=0)
    slots = [slot_of(there, state=SlotState.BUSY, jobs=0)]
    assert not plan_for(drones=[there], slots=slots).acts


OVERDUE = [
    (S.QUEUED, 86401, S.CANCELLED, {}),
    (S.BOOTING, 601, S.JOIN_TIMEOUT, {}),
    (S.JOINED, 302, S.FAILED, {}),
    (S.STOPPING, 99, S.CANCELLED, {"asked": 1, "leaving": S.CANCELLED}),
]


@pytest.mark.parametrize(("state", "age_s", "ends_as", "more"), OVERDUE)
def test_each_state_has_an_end(state: S, age_s: float, ends_as: S, more: dict[str, object]) -> None:
    late = drone("kit-ab12-1", state, age_s=age_s, asked_at=NOW - age_s if state is S.STOPPING else 0.0, **more)
    slots = [slot_of(late, state=SlotState.CHECKING)] if state is S.JOINED else []
    plan = plan_for(waiting=1, drones=[late], slots=slots)
    (stop,) = plan.stops
    assert isinstance(stop.reason, reasons.StateTimeout)
    assert stop.reason.state == state.value
    assert (stop.drone.state, stop.drone.leaving) == (S.STOPPING, ends_as)


def test_a_drone_that_does_not_heed_three_notices_is_killed() -> None:
    deaf = drone("kit-ab12-1", S.STOPPING, age_s=300, asked=3, asked_at=NOW - 61)
    (stop,) = plan_for(drones=[deaf]).stops
    assert stop.kill
    assert stop.drone.asked == 4


def test_a_slot_heard_of_long_ago_does_not_tell_what_its_drone_does_now() -> None:
    checking = drone("kit-ab12-1", S.JOINED, age_s=400)
    old = slot_of(checking, state=SlotState.CHECKING, heard_at=NOW - 350)
    assert plan_for(drones=[checking], slots=[old]).stops == ()
    drained = drone("kit-ab12-1", S.DRAINING, leaving=S.DONE, age_s=70, joined_at=NOW - 500, idle_at=NOW - 400)
    old = slot_of(drained, heard_at=NOW - 69)
    assert plan_for(drones=[drained], slots=[old]).stops == ()


def test_a_drone_that_no_order_reached_and_that_took_a_job_since_is_not_asked_again_while_it_works() -> None:
    deaf = drone("kit-ab12-1", S.STOPPING, age_s=99, asked=1, asked_at=NOW - 99, leaving=S.FAILED, joined_at=NOW - 200)
    works = slot_of(deaf, state=SlotState.BUSY, jobs=1, begun_at=NOW - 50)
    assert plan_for(drones=[deaf], slots=[works]).stops == ()
    assert len(plan_for(drones=[deaf], slots=[replace(works, begun_at=NOW - 120)]).stops) == 1
    for more in ({"notice_at": NOW - 99, "leaving": S.PREEMPTED}, {"leaving": S.CANCELLED}):  # an owner, an operator
        asked = replace(deaf, **more)
        assert len(plan_for(drones=[asked], slots=[works]).stops) == 1


def test_while_the_pool_is_out_of_sight_nobody_is_blamed_for_not_joining() -> None:
    late = drone("kit-ab12-1", S.BOOTING, age_s=9999)
    assert not plan_for(drones=[late], overlay_fault=DOWN).acts
    back = Breaker("overlay", BreakerState.ACTIVE, since=NOW - 30, blind_until=NOW - 30)
    assert not plan_for(drones=[late], breakers=[back], slots=[]).acts


def test_drones_waiting_at_a_site_are_withdrawn_when_no_job_needs_them_any_more() -> None:
    waiting = [drone(f"kit-ab12-{i}", S.QUEUED, age_s=100 - i) for i in range(4)]
    first = plan_for(waiting=1, drones=waiting)
    assert not first.acts, "a queue that looks empty may be one that restarts"
    marked = {m.drone.id: m.drone for m in first.moves}
    assert {each.idle_at for each in marked.values()} == {NOW}

    def unneeded_for(seconds: float) -> Plan:
        then = [replace(marked[d.id], idle_at=NOW - seconds) if d.id in marked else d for d in waiting]
        return plan_for(waiting=1, drones=then)

    assert not unneeded_for(CANCEL_AFTER_S - 1).acts
    plan = unneeded_for(CANCEL_AFTER_S)
    assert {s.drone.id for s in plan.stops} == {"kit-ab12-1", "kit-ab12-2", "kit-ab12-3"}
    assert plan.stops[0].reason == reasons.Unneeded("queued")
    assert plan.stops[0].drone.leaving is S.CANCELLED


def test_a_drone_that_a_job_needs_again_starts_its_wait_anew() -> None:
    spared = drone("kit-ab12-1", S.QUEUED, idle_at=NOW - 59)
    (move,) = plan_for(waiting=1, drones=[spared]).moves
    assert (move.drone.state, move.drone.idle_at) == (S.QUEUED, 0.0)


def test_a_mark_does_not_hide_what_the_site_says() -> None:
    submitted = drone("kit-ab12-1", S.SUBMITTED)
    (move,) = plan_for(drones=[submitted]).moves
    assert (move.was, move.drone.state, move.drone.idle_at) == (S.SUBMITTED, S.QUEUED, NOW)
    assert isinstance(move.reason, reasons.SeenAtSite)


def test_while_the_pool_comes_to_itself_after_an_outage_nothing_queued_is_withdrawn() -> None:
    settling = Breaker("overlay", BreakerState.ACTIVE, since=NOW - 5, until=NOW + 25)
    queued = drone("kit-ab12-1", S.QUEUED, idle_at=NOW - 100)
    assert not plan_for(drones=[queued], breakers=[settling]).acts


def test_a_drone_that_checks_its_gpus_now_and_then_still_leaves_when_idle() -> None:
    """Each check makes it `joined` for a moment: that is no work, and no new beginning."""
    idle = drone("kit-ab12-1", S.IDLE, age_s=590, idle_at=NOW - 590)
    (checks,) = plan_for(drones=[idle], slots=[slot_of(idle, state=SlotState.CHECKING)]).moves
    assert (checks.drone.state, checks.drone.idle_at) == (S.JOINED, NOW - 590)
    again = replace(snapshot(drones=[checks.drone], slots=[slot_of(idle)]), now=NOW + 20)
    (drain,) = plan_of(again).drains
    assert drain.reason == reasons.IdleTimeout(610, 600, "time-out")


def test_the_time_of_its_first_check_is_not_idle_time() -> None:
    checked = drone("kit-ab12-1", S.JOINED, age_s=280)
    (move,) = plan_for(drones=[checked], slots=[slot_of(checked, idle_since=NOW - 280)]).moves
    assert (move.drone.state, move.drone.idle_at) == (S.IDLE, NOW)


def test_fresh_jobs_keep_queued_drones_though_they_start_none() -> None:
    plan = plan_for(waiting=0, fresh=1, drones=[drone("kit-ab12-1", S.QUEUED)])
    assert not plan.acts


def test_nothing_leaves_a_site_that_cannot_be_seen() -> None:
    idle = drone("kit-ab12-1", S.IDLE, age_s=9999)
    assert not plan_for(drones=[idle], site_fault=DOWN).acts


def test_nothing_leaves_while_the_overlay_cannot_be_seen() -> None:
    idle, queued = drone("kit-ab12-1", S.IDLE, age_s=9999), drone("kit-ab12-2", S.QUEUED)
    assert not plan_for(drones=[idle, queued], overlay_fault=DOWN).acts


def test_a_drone_that_fell_out_of_the_pool_is_ended_after_its_limit() -> None:
    away = drone("kit-ab12-1", S.IDLE, age_s=2000, unslotted_at=NOW - 301)
    (stop,) = plan_for(drones=[away], slots=[]).stops
    assert stop.reason == reasons.LeftPool(301, 300)
    assert stop.drone.leaving is S.LOST


def test_a_preempted_drone_that_its_site_put_back_into_the_queue_does_not_start_again() -> None:
    back = drone("kit-ab12-1", S.BUSY, age_s=500)
    pending = RemoteDrone(back.id, RemoteState.PENDING, "r1", reason="preempted")
    (stop,) = plan_for(waiting=1, drones=[back], remotes=[pending], slots=[]).stops
    assert stop.drone.leaving is S.PREEMPTED
    assert stop.reason == reasons.SeenAtSite("pending", "preempted")


def test_a_drone_of_a_type_that_is_no_longer_configured_drains() -> None:
    old = drone("kit-ab12-1", S.BUSY, V100)
    (drain,) = plan_for(drones=[old], types=(A100,)).drains
    assert drain.reason == reasons.TypeRemoved("topas/v100")


def test_an_empty_drone_that_did_not_follow_its_drain_is_stopped_by_its_site() -> None:
    stuck = drone(
        "kit-ab12-1", S.DRAINING, leaving=S.DONE, age_s=70, joined_at=NOW - 500, idle_at=NOW - 400, asked_at=NOW - 70
    )
    (stop,) = plan_for(drones=[stuck], slots=[slot_of(stuck)]).stops
    assert stop.drone.leaving is S.DONE


def test_a_refused_drain_of_an_idle_drone_becomes_a_stop_at_once() -> None:
    stuck = drone(
        "kit-ab12-1",
        S.DRAINING,
        leaving=S.DONE,
        age_s=2,
        asked=1,
        joined_at=NOW - 500,
        idle_at=NOW - 400,
        asked_at=NOW - 2,
    )
    refused = replace(stuck, drain_refusal="condor_drain: exit 1: not authorized")
    (stop,) = plan_for(drones=[refused], slots=[slot_of(refused)]).stops
    assert stop.reason == reasons.DrainRefused("", refused.drain_refusal), "the overlay refused, not the site"


@pytest.mark.parametrize("mode", [DrainMode.PEACEFUL, DrainMode.FAST])
def test_a_drain_without_effect_is_asked_for_again_ever_more_rarely(mode: DrainMode) -> None:
    """A refused drain was never tried again: a "draining" drone went on taking jobs."""
    busy = drone("kit-ab12-1", S.DRAINING, leaving=S.CANCELLED, joined_at=NOW - 9000, jobs=1, busy_at=NOW - 9000)
    busy = replace(busy, drain_refusal="not authorized", asked=1, drain_mode=mode)
    slot = slot_of(busy, state=SlotState.BUSY, jobs=1, free_gpu_milli=0)

    def again(since_s: float, asked_s: float, **more: object) -> list[Drain]:
        there = replace(busy, since=NOW - since_s, asked_at=NOW - asked_s)
        return list(plan_for(drones=[there], slots=[replace(slot, **more)]).drains)

    assert again(20, 20) == []
    (first,) = again(31, 31)
    assert (first.mode, first.reason) == (mode, reasons.DrainRepeated(31, "not authorized"))
    assert (first.drone.state, first.drone.since, first.drone.leaving) == (S.DRAINING, NOW - 31, S.CANCELLED)
    assert again(600, 100) == [] and len(again(600, 201)) == 1
    assert again(80_000, 599) == [] and len(again(80_000, 601)) == 1
    assert again(600, 600, state=SlotState.DRAINING) == [], "it drains"


def test_a_drone_that_is_let_run_out_is_not_asked_again() -> None:
    there = drone("kit-ab12-1", S.DRAINING, leaving=S.CANCELLED, joined_at=NOW - 9000, jobs=1, asked_at=NOW - 900)
    there = replace(there, drain_mode=DrainMode.NONE)
    slot = slot_of(there, state=SlotState.BUSY, jobs=1)
    assert plan_for(drones=[there], slots=[slot]).drains == ()


def test_a_draining_drone_goes_back_into_service_when_jobs_wait_that_it_can_run() -> None:
    half = drone("kit-ab12-1", S.DRAINING, leaving=S.DONE, asked_at=NOW - 5, age_s=5, joined_at=NOW - 500, jobs=1)
    slot = slot_of(half, state=SlotState.DRAINING, jobs=1, free_gpu_milli=500)
    small = jobs(waiting=1, gpu_milli=500, cpus=1, memory_mib=1000)
    plan = plan_for(classes=[small], drones=[half], slots=[slot])
    (drain,) = plan.drains
    assert (drain.mode, drain.reason) == (DrainMode.RESUME, reasons.DemandReturned("small", 1))
    assert plan.starts == ()


def ask(kind: RequestKind, *ids: str, mode: DrainMode = DrainMode.PEACEFUL) -> OperatorRequest:
    return OperatorRequest(5, NOW - 1, kind, tuple(map(DroneId, ids)), "broken fan", "anna", mode)


def test_an_operator_may_drain_a_busy_drone_and_kill_one() -> None:
    there = [drone("kit-ab12-1", S.BUSY), drone("kit-ab12-2", S.BUSY)]
    requests = [ask(RequestKind.DRAIN, "kit-ab12-1", mode=DrainMode.GRACEFUL), ask(RequestKind.KILL, "kit-ab12-2")]
    plan = plan_for(drones=there, requests=requests)
    assert [(d.drone.id, d.mode) for d in plan.drains] == [("kit-ab12-1", DrainMode.GRACEFUL)]
    assert [(s.drone.id, s.kill) for s in plan.stops] == [("kit-ab12-2", True)]
    assert plan.drains[0].reason == reasons.OperatorRequested("anna", "broken fan")
    assert plan.requests_done == (5, 5)


def test_an_operator_who_names_an_unknown_drone_is_told() -> None:
    plan = plan_for(requests=[ask(RequestKind.DRAIN, "kit-ab12-99")])
    assert why(plan, "drone:kit-ab12-99") == [reasons.UnknownDrone("kit-ab12-99")]


def test_a_drain_waits_for_an_overlay_that_cannot_be_asked() -> None:
    there = drone("kit-ab12-1", S.BUSY)
    plan = plan_for(drones=[there], requests=[ask(RequestKind.DRAIN, there.id)], overlay_fault=DOWN)
    assert not plan.acts
    assert plan.requests_done == (), "it is not forgotten"
    assert why(plan, f"drone:{there.id}") == [reasons.StaleView("overlay", 1.0, 120.0, "connection refused")]


def test_a_kill_needs_no_view_at_all() -> None:
    there = drone("kit-ab12-1", S.BUSY)
    snap = snapshot(drones=[there], requests=[ask(RequestKind.KILL, there.id)], overlay_fault=DOWN, site_fault=DOWN)
    (stop,) = plan_of(snap).stops
    assert stop.kill


def test_a_drone_that_is_being_stopped_cannot_be_drained_any_more() -> None:
    there = drone("kit-ab12-1", S.STOPPING, age_s=5, asked=1, asked_at=NOW - 5, joined_at=NOW - 500)
    plan = plan_for(drones=[there], requests=[ask(RequestKind.DRAIN, there.id)])
    assert not plan.acts
    assert plan.requests_done == (5,)


def test_a_drone_that_is_let_run_out_is_taken_out_of_the_counting() -> None:
    there = drone("kit-ab12-1", S.BUSY)
    slots = [slot_of(there, free_gpu_milli=1000, free_cpus=8, free_memory_mib=20480)]
    request = ask(RequestKind.DRAIN, there.id, mode=DrainMode.NONE)
    (drain,) = plan_for(drones=[there], slots=slots, requests=[request]).drains
    assert (drain.mode, drain.drone.state) == (DrainMode.NONE, S.DRAINING)
    assert len(plan_for(waiting=1, drones=[drain.drone], slots=slots).starts) == 1


def test_the_record_of_a_drone_whose_site_is_no_longer_configured_ends_by_a_kill() -> None:
    left = drone("kit-ab12-1", S.BUSY, V100)
    snap = snapshot(drones=[left], requests=[ask(RequestKind.KILL, left.id)])
    sites = {name: policy for name, policy in snap.policy.sites.items() if name != "topas"}
    (move,) = plan_of(replace(snap, policy=replace(snap.policy, sites=sites), sites={}, types=())).moves
    assert (move.was, move.drone.state) == (S.BUSY, S.LOST)
    assert move.reason == reasons.OperatorRequested("anna", "broken fan")


def test_while_the_brake_is_on_a_person_may_still_act_and_so_end_the_trouble() -> None:
    ill = [drone(f"kit-ab12-{i}", S.BUSY, unslotted_at=NOW - 400) for i in range(5)]
    plan = plan_for(drones=ill, slots=[], requests=[ask(RequestKind.KILL, *(d.id for d in ill))])
    assert len(plan.stops) == 5
    assert why(plan, "all") == [reasons.TooManyUnhealthy(5, 5, 0.2)]


def test_what_carries_our_tag_without_a_record_is_stopped() -> None:
    stray = RemoteDrone(DroneId("kit-old1-3"), RemoteState.RUNNING, "r3")
    (orphan,) = plan_for(remotes=[stray]).orphans
    assert (orphan.drone_id, orphan.remote_id, orphan.reason) == ("kit-old1-3", "r3", reasons.Orphan())
    lost = replace(snapshot(remotes=[stray]), ended={stray.drone_id: S.LOST})
    assert plan_of(lost).orphans[0].reason == reasons.Orphan("lost")


def test_too_much_trouble_at_once_is_probably_ours() -> None:
    ill = [drone(f"kit-ab12-{i}", S.BUSY, unslotted_at=NOW - 400) for i in range(5)]
    well = [drone(f"kit-ab12-{i}", S.BUSY) for i in range(5, 20)]
    snap = snapshot(classes=[jobs(waiting=3)], drones=[*ill, *well], slots=[slot_of(d) for d in well])
    plan = plan_of(snap)
    assert not plan.acts
    assert why(plan, "all") == [reasons.TooManyUnhealthy(5, 20, 0.2)]
    calm = replace(snap, policy=replace(snap.policy, max_unhealthy_fraction=0.5))
    assert len(plan_of(calm).stops) == 5


@pytest.mark.parametrize("leaving", [S.DONE, S.CANCELLED])
@pytest.mark.parametrize("working", [0, 1])
def test_an_operator_takes_a_draining_drone_back_into_service_whoever_drained_it(leaving: S, working: int) -> None:
    drains = drone(
        "kit-ab12-1",
        S.DRAINING,
        leaving=leaving,
        joined_at=NOW - 500,
        busy_at=NOW - 400,
        jobs=working,
        jobs_started=1,
        asked_at=NOW - 60,
        asked=1,
    )
    slot = slot_of(drains, state=SlotState.DRAINING, jobs=working, heard_at=NOW - 2)
    request = ask(RequestKind.DRAIN, drains.id, mode=DrainMode.RESUME)
    plan = plan_for(drones=[drains], slots=[slot], requests=[request], limits={"stopping_s": 900})
    (back,) = plan.drains
    assert (back.mode, back.reason) == (DrainMode.RESUME, reasons.OperatorRequested("anna", "broken fan"))
    assert (back.drone.state, back.drone.leaving, back.drone.asked_at) == (S.BUSY if working else S.IDLE, None, 0.0)
    assert plan.requests_done == (5,)


@pytest.mark.parametrize("state", [S.BUSY, S.STOPPING, S.QUEUED])
def test_an_operator_who_takes_back_what_does_not_drain_is_told(state: S) -> None:
    there = drone("kit-ab12-1", state, asked_at=NOW - 5 if state is S.STOPPING else 0.0)
    request = ask(RequestKind.DRAIN, there.id, mode=DrainMode.RESUME)
    plan = plan_for(waiting=1, drones=[there], requests=[request])
    assert plan.leaves == ()
    assert why(plan, "drone:kit-ab12-1") == [reasons.NotDraining("kit-ab12-1", state.value)]
    assert plan.requests_done == (5,)


@pytest.mark.parametrize(
    ("more", "becomes"),
    [
        ({"busy_at": NOW - 400, "jobs_started": 2}, S.DONE),
        ({"busy_at": NOW - 400, "jobs_started": 2, "jobs": 1}, S.CANCELLED),
        ({}, S.CANCELLED),
    ],
)
def test_a_drone_that_an_operator_drained_after_its_jobs_is_done(more: dict[str, object], becomes: S) -> None:
    gone = drone("kit-ab12-1", S.DRAINING, leaving=S.CANCELLED, joined_at=NOW - 500, asked_at=NOW - 60, **more)
    over = replace(remote_of(gone), state=RemoteState.ENDED, end=RemoteEnd(EndKind.EXITED, NOW - 1, 0))
    (move,) = plan_for(drones=[gone], slots=[], remotes=[over]).moves
    assert move.drone.state is becomes


@pytest.mark.parametrize(
    ("evicted", "exit_code", "becomes"), [(False, 0, S.DONE), (True, 0, S.CANCELLED), (False, 143, S.CANCELLED)]
)
def test_a_job_that_ended_with_a_drained_drone_is_lost_only_if_the_queue_says_so(
    evicted: bool, exit_code: int, becomes: S
) -> None:
    """The job's end and the drone's lay between two looks: the drone was recorded as taken back from its job."""
    gone = drone(
        "kit-ab12-1",
        S.DRAINING,
        leaving=S.CANCELLED,
        joined_at=NOW - 500,
        asked_at=NOW - 60,
        busy_at=NOW - 400,
        jobs_started=1,
        jobs=1,
    )
    over = replace(remote_of(gone), state=RemoteState.ENDED, end=RemoteEnd(EndKind.EXITED, NOW - 1, exit_code))
    seen = snapshot(drones=[gone], slots=[], remotes=[over])
    told = (Eviction(gone.id, "1.0", NOW - 2, 1000, 300.0),) if evicted else ()
    (move,) = plan_of(with_pool(seen, evictions=told)).moves
    assert move.drone.state is becomes


# ------------------------------------------------ How long an idle drone is kept, where another would take long to come


@pytest.mark.parametrize(("came_s", "limit_s"), [(30, 600), (599, 600), (700, 700), (1800, 1800), (90000, 1800)])
def test_a_drone_is_kept_as_long_as_another_would_take_to_come(came_s: float, limit_s: float) -> None:
    idle = drone("kit-ab12-1", S.IDLE, started_at=NOW - 99999, joined_at=NOW - 99999 + came_s)
    by = "slow-start" if limit_s > 600 else "time-out"
    assert idle_limit(idle, Policy(idle_timeout_s=600)) == (limit_s, by)


def test_of_one_of_which_nobody_knows_when_it_began_the_time_out_holds() -> None:
    assert idle_limit(drone("kit-ab12-1", S.IDLE, joined_at=NOW - 50, started_at=0.0), Policy()).limit_s == 600


def test_a_site_may_have_a_time_out_of_its_own() -> None:
    policy = Policy(idle_timeout_s=600, sites={"topas": SitePolicy("topas", idle_timeout_s=60)})
    assert idle_limit(drone("kit-ab12-1", S.IDLE), policy).limit_s == 60
    assert policy.idle_timeout_at("horeka") == 600


def test_what_was_learned_shortens_the_time_out_and_says_so() -> None:
    idle, policy = drone("kit-ab12-1", S.IDLE, idle_at=NOW - 31), Policy(idle_timeout_s=600)
    few, many = (Estimates(idle_s={"topas": 26.0}, gaps={"topas": gaps}) for gaps in (MIN_IDLE_GAPS - 1, MIN_IDLE_GAPS))
    assert idle_limit(idle, policy, few) == (26.0, "start-cost")
    assert idle_limit(idle, policy, many) == (26.0, "gaps")
    assert idle_limit(idle, policy, Estimates(idle_s={"topas": 9000.0})) == (600.0, "time-out")
    [drain] = plan_of(replace(snapshot(drones=[idle]), estimates=few)).drains
    assert drain.reason == IdleTimeout(31, 26, "start-cost")
    assert describe(drain.reason) == (
        "idle 31 s > 26 s, what another start costs at its site, learned from the drones that came there"
    )


@pytest.mark.parametrize("own", [True, None])
def test_a_fixed_time_out_is_neither_shortened_nor_lengthened(own: bool | None) -> None:
    estimates = Estimates(idle_s={"topas": 26.0})
    policy = Policy(idle_timeout_s=600, idle_fixed=own is None, sites={"topas": SitePolicy("topas", idle_fixed=own)})
    for came_s in (30, 900):
        idle = drone("kit-ab12-1", S.IDLE, started_at=NOW - 9999, joined_at=NOW - 9999 + came_s)
        assert idle_limit(idle, policy, estimates) == (600.0, "fixed")
    loose = replace(policy, idle_fixed=True, sites={"topas": SitePolicy("topas", idle_fixed=False)})
    assert idle_limit(drone("kit-ab12-1"), loose, estimates).by == "start-cost"
