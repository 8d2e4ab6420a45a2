"""Who leaves, and who is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner import model, reasons
from provisioner.estimates import Estimates
from provisioner.planner.retirement import CANCEL_AFTER_S
from provisioner.planner.states import MIN_IDLE_GAPS, idle_limit
from provisioner.reasons import IdleTimeout
from tests.planner import scenes
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
    with_site,
)

S = model.DroneState


def there(state: S, age_s: float = 60.0, **more: object) -> model.Drone:
    return drone("kit-ab12-1", state, age_s=age_s, **more)


def checking(each: model.Drone, **more: object) -> list[model.Slot]:
    return [slot_of(each, state=model.SlotState.CHECKING, **more)]


def overdue(state: S, for_s: float, limit_s: float) -> reasons.StateTimeout:
    return reasons.StateTimeout(state.value, for_s, limit_s)


UNSEEN_POOL = model.Breaker(
    model.Scope("overlay"), model.BreakerState.ACTIVE, since=NOW - 30, blind_until=NOW - 30
)
SETTLING = model.Breaker(
    model.Scope("overlay"), model.BreakerState.ACTIVE, since=NOW - 5, until=NOW + 25
)
CHECKS = there(S.JOINED, 302)
OLD = drone("kit-ab12-1", S.BUSY, V100)
BACK = there(S.BUSY, 500)
PENDING = model.RemoteDrone(BACK.id, model.RemoteState.PENDING, "r1", reason="preempted")
DRAINED = there(
    S.DRAINING, 70, leaving=S.DONE, joined_at=NOW - 500, idle_at=NOW - 400, asked_at=NOW - 70
)
REFUSED = replace(DRAINED, since=NOW - 2, asked_at=NOW - 2, asked=1, drain_refusal="no")
RUNS_OUT = replace(
    DRAINED, leaving=S.CANCELLED, jobs=1, asked_at=NOW - 900, drain_mode=model.DrainMode.NONE
)
DEAF = there(S.STOPPING, 99, asked=1, asked_at=NOW - 99, leaving=S.FAILED, joined_at=NOW - 200)
WORKS = [slot_of(DEAF, state=model.SlotState.BUSY, jobs=1, begun_at=NOW - 50)]
STAYS = None
AGAIN = overdue(S.STOPPING, 99, 60)


@pytest.mark.parametrize(
    ("each", "leaves", "given"),
    [
        # ---- idle
        (there(S.IDLE, 612), (S.DRAINING, S.UNUSED, IdleTimeout(612, 600, "time-out")), {}),
        # Waiting jobs that fit it are for the negotiator, but not for ever.
        (there(S.IDLE, 700), STAYS, {"waiting": 1}),
        (
            there(S.IDLE, 1900),
            (S.DRAINING, S.UNUSED, IdleTimeout(1900, 600, "time-out")),
            {"waiting": 1},
        ),
        # A claimed slot without a running job is busy.
        (there(S.BUSY, 9999, jobs=0), STAYS, {"slots": [slot_of(there(S.BUSY), jobs=0)]}),
        # ---- each state has an end
        (
            there(S.QUEUED, 86401),
            (S.STOPPING, S.CANCELLED, overdue(S.QUEUED, 86401, 86400)),
            {"waiting": 1},
        ),
        (
            there(S.BOOTING, 601),
            (S.STOPPING, S.JOIN_TIMEOUT, overdue(S.BOOTING, 601, 600)),
            {"waiting": 1},
        ),
        (CHECKS, (S.STOPPING, S.FAILED, overdue(S.JOINED, 301, 300)), {"slots": checking(CHECKS)}),
        # A slot heard of long ago does not show what its drone does now.
        (there(S.JOINED, 400), STAYS, {"slots": checking(CHECKS, heard_at=NOW - 350)}),
        (
            DRAINED,
            (S.DRAINING, S.DONE, reasons.DrainRepeated(70)),
            {"slots": [slot_of(DRAINED, heard_at=NOW - 69)]},
        ),
        # ---- asked to stop, and still there; an owner's claim and an operator's request hold
        # though it works
        (DEAF, (S.STOPPING, S.FAILED, AGAIN), {}),
        (DEAF, STAYS, {"slots": WORKS}),
        (DEAF, (S.STOPPING, S.FAILED, AGAIN), {"slots": [replace(WORKS[0], begun_at=NOW - 120)]}),
        (
            replace(DEAF, notice_at=NOW - 99, leaving=S.PREEMPTED),
            (S.STOPPING, S.PREEMPTED, AGAIN),
            {"slots": WORKS},
        ),
        # ---- what cannot be seen
        (there(S.BOOTING, 9999), STAYS, {"overlay_fault": DOWN}),
        (there(S.BOOTING, 9999), STAYS, {"breakers": [UNSEEN_POOL], "slots": []}),
        (there(S.QUEUED, idle_at=NOW - 100), STAYS, {"breakers": [SETTLING]}),
        (there(S.QUEUED, idle_at=NOW - 999), STAYS, {"overlay_fault": DOWN}),
        (there(S.IDLE, 9999), STAYS, {"site_fault": DOWN}),
        (there(S.IDLE, 9999), STAYS, {"overlay_fault": DOWN}),
        # ---- fresh jobs keep queued drones though they start none
        (there(S.QUEUED), STAYS, {"waiting": 0, "fresh": 1}),
        # ---- out of the pool, back in the queue, without a type
        (
            there(S.IDLE, unslotted_at=NOW - 301),
            (S.STOPPING, S.LOST, reasons.LeftPool(301, 300)),
            {"slots": []},
        ),
        (
            BACK,
            (S.STOPPING, S.PREEMPTED, reasons.Requeued("preempted")),
            {"waiting": 1, "remotes": [PENDING], "slots": []},
        ),
        (OLD, (S.DRAINING, S.DONE, reasons.TypeRemoved("topas/v100")), {"types": (A100,)}),
        # ---- empty, and asked to drain in vain: the overlay refused, not the site
        (DRAINED, (S.STOPPING, S.DONE, overdue(S.DRAINING, 69, 60)), {"slots": [slot_of(DRAINED)]}),
        (
            REFUSED,
            (S.STOPPING, S.DONE, reasons.DrainRefused("", "no")),
            {"slots": [slot_of(REFUSED)]},
        ),
        (RUNS_OUT, STAYS, {"slots": [slot_of(RUNS_OUT, state=model.SlotState.BUSY, jobs=1)]}),
    ],
)
def test_who_leaves_and_who_stays(
    each: model.Drone, leaves: tuple[S, S, reasons.Reason] | None, given: dict[str, object]
) -> None:
    plan = plan_for(drones=[each], **given)
    assert [(a.drone.state, a.drone.leaving, a.reason) for a in plan.leaves] == (
        [leaves] if leaves else []
    )
    assert all(drain.mode is model.DrainMode.PEACEFUL for drain in plan.drains)


def test_a_drone_that_does_not_heed_three_notices_is_killed() -> None:
    deaf = there(S.STOPPING, 300, asked=3, asked_at=NOW - 61)
    (stop,) = plan_for(drones=[deaf]).stops
    assert (stop.kill, stop.drone.asked) == (True, 4)


def test_drones_waiting_at_a_site_are_withdrawn_when_no_job_needs_them_any_more() -> None:
    waiting = [drone(f"kit-ab12-{i}", S.QUEUED, age_s=100 - i) for i in range(4)]
    first = plan_for(waiting=1, drones=waiting)
    assert not first.acts, "a queue that looks empty may be one that restarts"
    marked = {m.drone.id: m.drone for m in first.moves}
    assert {each.idle_at for each in marked.values()} == {NOW}

    def unneeded_for(seconds: float) -> model.Plan:
        then = [
            replace(marked[d.id], idle_at=NOW - seconds) if d.id in marked else d for d in waiting
        ]
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


def test_a_drone_that_checks_its_gpus_now_and_then_still_leaves_when_idle() -> None:
    """Each check makes it `joined` for a moment: that is no work, and no new beginning."""
    idle = drone("kit-ab12-1", S.IDLE, age_s=590, idle_at=NOW - 590)
    (checks,) = plan_for(drones=[idle], slots=[slot_of(idle, state=model.SlotState.CHECKING)]).moves
    assert (checks.drone.state, checks.drone.idle_at) == (S.JOINED, NOW - 590)
    again = replace(snapshot(drones=[checks.drone], slots=[slot_of(idle)]), now=NOW + 20)
    (drain,) = plan_of(again).drains
    assert drain.reason == reasons.IdleTimeout(610, 600, "time-out")


@pytest.mark.parametrize("mode", [model.DrainMode.PEACEFUL, model.DrainMode.FAST])
def test_a_drain_without_effect_is_asked_for_again_ever_more_rarely(mode: model.DrainMode) -> None:
    """A refused drain was never tried again: a "draining" drone went on taking jobs."""
    busy = drone(
        "kit-ab12-1",
        S.DRAINING,
        leaving=S.CANCELLED,
        joined_at=NOW - 9000,
        jobs=1,
        busy_at=NOW - 9000,
    )
    busy = replace(busy, drain_refusal="not authorized", asked=1, drain_mode=mode)
    slot = slot_of(busy, state=model.SlotState.BUSY, jobs=1, free_gpu_milli=0)

    def again(since_s: float, asked_s: float, **more: object) -> list[model.Drain]:
        there = replace(busy, since=NOW - since_s, asked_at=NOW - asked_s)
        return list(plan_for(drones=[there], slots=[replace(slot, **more)]).drains)

    assert again(20, 20) == []
    (first,) = again(31, 31)
    assert (first.mode, first.reason) == (mode, reasons.DrainRepeated(31, "not authorized"))
    assert (first.drone.state, first.drone.since, first.drone.leaving) == (
        S.DRAINING,
        NOW - 31,
        S.CANCELLED,
    )
    assert again(600, 100) == [] and len(again(600, 201)) == 1
    assert again(80_000, 599) == [] and len(again(80_000, 601)) == 1
    assert again(600, 600, state=model.SlotState.DRAINING) == [], "it drains"


def ask(
    kind: model.RequestKind, *ids: str, mode: model.DrainMode = model.DrainMode.PEACEFUL
) -> model.OperatorRequest:
    return model.OperatorRequest(
        5, NOW - 1, kind, tuple(map(model.DroneId, ids)), "broken fan", "anna", mode
    )


def test_an_operator_may_drain_a_busy_drone_and_kill_one() -> None:
    there = [drone("kit-ab12-1", S.BUSY), drone("kit-ab12-2", S.BUSY)]
    requests = [
        ask(model.RequestKind.DRAIN, "kit-ab12-1", mode=model.DrainMode.GRACEFUL),
        ask(model.RequestKind.KILL, "kit-ab12-2"),
    ]
    plan = plan_for(drones=there, requests=requests)
    assert [(d.drone.id, d.mode) for d in plan.drains] == [("kit-ab12-1", model.DrainMode.GRACEFUL)]
    assert [(s.drone.id, s.kill) for s in plan.stops] == [("kit-ab12-2", True)]
    assert plan.drains[0].reason == reasons.OperatorRequested("anna", "broken fan")
    assert plan.requests_done == (5, 5)


def test_an_operator_who_names_an_unknown_drone_is_told() -> None:
    plan = plan_for(requests=[ask(model.RequestKind.DRAIN, "kit-ab12-99")])
    assert why(plan, "drone:kit-ab12-99") == [reasons.UnknownDrone("kit-ab12-99")]


def test_a_drain_waits_for_an_overlay_that_cannot_be_asked() -> None:
    there = drone("kit-ab12-1", S.BUSY)
    plan = plan_for(
        drones=[there], requests=[ask(model.RequestKind.DRAIN, there.id)], overlay_fault=DOWN
    )
    assert not plan.acts
    assert plan.requests_done == (), "it is not forgotten"
    assert why(plan, f"drone:{there.id}") == [
        reasons.StaleView("overlay", 1.0, 120.0, "connection refused")
    ]


def test_a_kill_needs_no_view_at_all() -> None:
    there = drone("kit-ab12-1", S.BUSY)
    kill = ask(model.RequestKind.KILL, there.id)
    (stop,) = plan_for(drones=[there], requests=[kill], overlay_fault=DOWN, site_fault=DOWN).stops
    assert stop.kill


def test_a_drone_that_is_let_run_out_is_taken_out_of_the_counting() -> None:
    there = drone("kit-ab12-1", S.BUSY)
    slots = [slot_of(there, free_gpu_milli=1000, free_cpus=8, free_memory_mib=20480)]
    request = ask(model.RequestKind.DRAIN, there.id, mode=model.DrainMode.NONE)
    (drain,) = plan_for(drones=[there], slots=slots, requests=[request]).drains
    assert (drain.mode, drain.drone.state) == (model.DrainMode.NONE, S.DRAINING)
    assert len(plan_for(waiting=1, drones=[drain.drone], slots=slots).starts) == 1


def test_the_record_of_a_drone_whose_site_is_no_longer_configured_ends_by_a_kill() -> None:
    left = drone("kit-ab12-1", S.BUSY, V100)
    snap = snapshot(drones=[left], requests=[ask(model.RequestKind.KILL, left.id)])
    sites = {name: policy for name, policy in snap.policy.sites.items() if name != "topas"}
    (move,) = plan_of(
        replace(snap, policy=replace(snap.policy, sites=sites), sites={}, types=())
    ).moves
    assert (move.was, move.drone.state) == (S.BUSY, S.LOST)
    assert move.reason == reasons.OperatorRequested("anna", "broken fan")


STRAY = model.RemoteDrone(
    model.DroneId("kit-old1-3"), model.RemoteState.RUNNING, "r3", "a100", started_at=NOW - 900
)
GRACE_S = model.Policy().orphan_grace_s


def orphaned(
    remote: model.RemoteDrone = STRAY, *, jobs: int | None = 1, age_s: float = 0.0, **more: object
) -> model.Snapshot:
    """A drone without a record, whose slot in our pool has so many jobs; None: it is not in our pool."""
    slot = slot_of(drone(remote.drone_id, S.BUSY), jobs=jobs or 0)
    made = snapshot(remotes=[remote], slots=[slot] if jobs is not None else [], **more)
    return replace(made, orphans={remote.drone_id: NOW - age_s})


def test_a_drone_that_ended_on_record_is_stopped_where_it_is_still_listed() -> None:
    lost = replace(orphaned(), ended={STRAY.drone_id: S.LOST})
    (orphan,) = plan_of(lost).orphans
    assert (orphan.drone_id, orphan.remote_id, orphan.reason) == (
        "kit-old1-3",
        "r3",
        reasons.Orphan("lost"),
    )


@pytest.mark.parametrize("age_s", [0.0, GRACE_S - 1.0, GRACE_S, 100 * GRACE_S])
@pytest.mark.parametrize("jobs", [1, 0, None])
@pytest.mark.parametrize("birth", ["old1", "ab12"])
def test_a_lost_record_costs_no_job(age_s: float, jobs: int | None, birth: str) -> None:
    """An orphan that certainly runs nothing is stopped after the grace; any other waits for an operator's word."""
    stray = replace(STRAY, drone_id=model.DroneId(f"kit-{birth}-3"))
    plan = plan_of(orphaned(stray, jobs=jobs, age_s=age_s))
    if age_s < GRACE_S or jobs != 0:
        kept = reasons.OrphansKept("topas", f"kit-{birth}", 1, NOW - age_s + GRACE_S)
        assert plan.orphans == () and kept in why(plan, "site:topas")
    else:
        assert [orphan.reason for orphan in plan.orphans] == [reasons.Orphan()]


def test_an_orphan_that_waits_at_its_site_is_stopped_after_the_grace() -> None:
    waits = replace(STRAY, state=model.RemoteState.PENDING)
    assert plan_of(orphaned(waits, jobs=None, age_s=GRACE_S - 1)).orphans == ()
    assert len(plan_of(orphaned(waits, jobs=None, age_s=GRACE_S + 1)).orphans) == 1


def settled(
    kind: model.RequestKind, stray: model.RemoteDrone = STRAY, **more: object
) -> model.Plan:
    """An operator's word about the orphans at TOpAS."""
    request = model.OperatorRequest(
        1, NOW, kind, (model.DroneId("topas"),), "the record was lost", "anna"
    )
    return plan_of(orphaned(stray, requests=[request], **more))


def test_orphans_are_adopted_or_stopped_by_an_operators_word() -> None:
    asked = reasons.OperatorRequested("anna", "the record was lost")
    plan = settled(model.RequestKind.STOP_ORPHANS)
    assert [(each.drone_id, each.reason) for each in plan.orphans] == [("kit-old1-3", asked)]
    plan = settled(model.RequestKind.ADOPT_ORPHANS)
    (move,) = plan.moves
    assert (move.was, move.drone.state, move.reason, plan.orphans) == (None, S.BOOTING, asked, ())
    assert (move.drone.type, move.drone.gpu_milli, move.drone.remote_id) == (A100.key, 1000, "r3")
    assert plan.requests_done == (1,) and why(plan, "site:topas") == []
    (waiting,) = settled(
        model.RequestKind.ADOPT_ORPHANS, replace(STRAY, state=model.RemoteState.PENDING)
    ).moves
    assert (waiting.drone.state, waiting.drone.started_at) == (S.QUEUED, 0.0)
    unknown = settled(model.RequestKind.ADOPT_ORPHANS, replace(STRAY, type="h100"))
    assert unknown.moves == () and why(unknown, "drone:kit-old1-3") == [
        reasons.TypeRemoved("topas/h100")
    ]
    blind = settled(model.RequestKind.ADOPT_ORPHANS, site_age_s=1e6)
    assert blind.moves == () and blind.requests_done == (), "it waits for a view of the site"


def test_members_adopt_what_carries_the_name_of_their_record() -> None:
    """A fail-over of the database may have lost its start. Another record's drones stay orphans."""
    ours = replace(STRAY, drone_id=model.DroneId("kit-ab12-3"))
    shared = replace(orphaned(ours, age_s=2 * GRACE_S), adopts=True)
    plan = plan_of(shared)
    (move,) = plan.moves
    assert (move.was, move.drone.id, move.drone.state) == (None, ours.drone_id, S.BOOTING)
    assert (move.reason, plan.orphans) == (reasons.StartLost(), ())
    for other in (
        replace(orphaned(STRAY), adopts=True),
        replace(orphaned(replace(ours, type="h100")), adopts=True),
        replace(shared, ended={ours.drone_id: S.LOST}),
        replace(shared, unlisted=frozenset({"topas"})),
        replace(shared, twins={"kit-ab12": "kit-ab12-7"}),
    ):
        assert plan_of(other).moves == ()


def test_beside_a_living_twin_nothing_is_started_or_stopped() -> None:
    """Not even an orphan after its grace, nor a drone of our own that has been idle for long."""
    own = drone("kit-ab12-1", age_s=1e5)
    made = orphaned(jobs=0, age_s=1e6, classes=[jobs(waiting=9)], drones=[own], free={"a100": 9})
    listed = {**made.sites["topas"].view.drones, own.id: remote_of(own)}
    made = with_site(made, drones=listed)
    beside = plan_of(replace(made, twins={"kit-old1": "kit-old1-7"}))
    assert (beside.starts, beside.drains, beside.stops, beside.orphans) == ((), (), (), ())
    assert why(beside, "all") == [reasons.LiveTwin("kit-old1", "kit-old1-7")]
    assert plan_of(made).orphans and plan_of(made).starts


def test_too_much_trouble_at_once_is_probably_ours() -> None:
    ill = [drone(f"kit-ab12-{i}", S.BUSY, unslotted_at=NOW - 400) for i in range(5)]
    well = [drone(f"kit-ab12-{i}", S.BUSY) for i in range(5, 20)]
    snap = snapshot(
        classes=[jobs(waiting=3)], drones=[*ill, *well], slots=[slot_of(d) for d in well]
    )
    plan = plan_of(snap)
    assert not plan.acts
    assert why(plan, "all") == [reasons.TooManyUnhealthy(5, 20, 0.2)]
    calm = replace(snap, policy=replace(snap.policy, max_unhealthy_fraction=0.5))
    assert len(plan_of(calm).stops) == 5


@pytest.mark.parametrize("leaving", [S.DONE, S.CANCELLED])
@pytest.mark.parametrize("working", [0, 1])
def test_an_operator_takes_a_draining_drone_back_into_service_whoever_drained_it(
    leaving: S, working: int
) -> None:
    news = {
        "joined_at": NOW - 500,
        "busy_at": NOW - 400,
        "jobs": working,
        "jobs_started": 1,
        "asked_at": NOW - 60,
    }
    drains = drone("kit-ab12-1", S.DRAINING, leaving=leaving, asked=1, **news)
    slot = slot_of(drains, state=model.SlotState.DRAINING, jobs=working, heard_at=NOW - 2)
    request = ask(model.RequestKind.DRAIN, drains.id, mode=model.DrainMode.RESUME)
    plan = plan_for(drones=[drains], slots=[slot], requests=[request], limits={"stopping_s": 900})
    (back,) = plan.drains
    assert (back.mode, back.reason) == (
        model.DrainMode.RESUME,
        reasons.OperatorRequested("anna", "broken fan"),
    )
    assert (back.drone.state, back.drone.leaving, back.drone.asked_at) == (
        S.BUSY if working else S.IDLE,
        None,
        0.0,
    )
    assert plan.requests_done == (5,)


@pytest.mark.parametrize("state", [S.BUSY, S.STOPPING, S.QUEUED])
def test_an_operator_who_takes_back_what_does_not_drain_is_told(state: S) -> None:
    there = drone("kit-ab12-1", state, asked_at=NOW - 5 if state is S.STOPPING else 0.0)
    request = ask(model.RequestKind.DRAIN, there.id, mode=model.DrainMode.RESUME)
    plan = plan_for(waiting=1, drones=[there], requests=[request])
    assert plan.leaves == ()
    assert why(plan, "drone:kit-ab12-1") == [reasons.NotDraining("kit-ab12-1", state.value)]
    assert plan.requests_done == (5,)


WORKED = {"busy_at": NOW - 400, "jobs_started": 1}
TAKEN_BACK = (model.Eviction(model.DroneId("kit-ab12-1"), "1.0", NOW - 2, 1000, 300.0),)


@pytest.mark.parametrize(
    ("more", "evictions", "exit_code", "becomes"),
    [
        (WORKED, None, 0, S.DONE),
        (WORKED | {"jobs": 1}, None, 0, S.CANCELLED),
        ({}, None, 0, S.CANCELLED),
        # The job's end and the drone's lay between two looks: its queue tells which it was.
        (WORKED | {"jobs": 1}, (), 0, S.DONE),
        (WORKED | {"jobs": 1}, TAKEN_BACK, 0, S.CANCELLED),
        (WORKED | {"jobs": 1}, (), 143, S.CANCELLED),
    ],
)
def test_a_drone_that_an_operator_drained_after_its_jobs_is_done(
    more: dict[str, object],
    evictions: tuple[model.Eviction, ...] | None,
    exit_code: int,
    becomes: S,
) -> None:
    gone = drone(
        "kit-ab12-1",
        S.DRAINING,
        leaving=S.CANCELLED,
        joined_at=NOW - 500,
        asked_at=NOW - 60,
        **more,
    )
    end = model.RemoteEnd(model.EndKind.EXITED, NOW - 1, exit_code)
    over = replace(scenes.remote_of(gone), state=model.RemoteState.ENDED, end=end)
    (move,) = plan_for(drones=[gone], slots=[], remotes=[over], evictions=evictions).moves
    assert move.drone.state is becomes


# ------------------------------------------------ How long an idle drone is kept, where another
# would take long to come


@pytest.mark.parametrize(
    ("came_s", "site_s", "limit_s"),
    [(599, None, 600), (700, None, 700), (90000, None, 1800), (-99000, None, 600), (30, 60, 60)],
)
def test_a_drone_is_kept_while_another_would_be_coming(
    came_s: float, site_s: float | None, limit_s: float
) -> None:
    idle = drone("kit-ab12-1", S.IDLE, started_at=NOW - 99999, joined_at=NOW - 99999 + came_s)
    sites = {"topas": model.SitePolicy("topas", idle_timeout_s=site_s)}
    by = "slow-start" if limit_s > 600 else "time-out"
    assert idle_limit(idle, model.Policy(idle_timeout_s=600, sites=sites)) == (limit_s, by)


def test_what_was_learned_shortens_the_time_out_and_says_so() -> None:
    idle, policy = drone("kit-ab12-1", S.IDLE, idle_at=NOW - 31), model.Policy(idle_timeout_s=600)
    few, many = (
        Estimates(idle_s={"topas": 26.0}, gaps={"topas": gaps})
        for gaps in (MIN_IDLE_GAPS - 1, MIN_IDLE_GAPS)
    )
    assert idle_limit(idle, policy, few) == (26.0, "start-cost")
    assert idle_limit(idle, policy, many) == (26.0, "gaps")
    assert idle_limit(idle, policy, Estimates(idle_s={"topas": 9000.0})) == (600.0, "time-out")
    [drain] = plan_of(replace(snapshot(drones=[idle]), estimates=few)).drains
    assert drain.reason == IdleTimeout(31, 26, "start-cost")
    assert drain.reason.describe().startswith(
        "idle 31 s > 26 s, the cost of another start at its site, learned from"
    )


@pytest.mark.parametrize("own", [True, None])
def test_a_fixed_time_out_is_neither_shortened_nor_lengthened(own: bool | None) -> None:
    estimates = Estimates(idle_s={"topas": 26.0})
    sites = {"topas": model.SitePolicy("topas", idle_fixed=own)}
    policy = model.Policy(idle_timeout_s=600, idle_fixed=own is None, sites=sites)
    for came_s in (30, 900):
        idle = drone("kit-ab12-1", S.IDLE, started_at=NOW - 9999, joined_at=NOW - 9999 + came_s)
        assert idle_limit(idle, policy, estimates) == (600.0, "fixed")
    loose = replace(
        policy, idle_fixed=True, sites={"topas": model.SitePolicy("topas", idle_fixed=False)}
    )
    assert idle_limit(drone("kit-ab12-1"), loose, estimates).by == "start-cost"
