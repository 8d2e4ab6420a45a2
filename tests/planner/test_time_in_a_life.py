"""Times in a drone's life: idle clock, last sign of life, patience with listings and with the pool."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.model import (
    Breaker,
    BreakerState,
    Drone,
    DroneState,
    Fault,
    FaultKind,
    PolledOverlay,
    RemoteState,
    Slot,
    SlotState,
    Snapshot,
)
from provisioner.planner.breakers import BACKOFF_POLICIES, OVERLAY_SCOPE, after_failure
from tests.planner.scenes import DOWN, NOW, drone, jobs, plan_of, remote_of, slot_of, snapshot

S = DroneState


def idle_slot(there: Drone, **more: object) -> Slot:
    return slot_of(replace(there, state=S.IDLE), **more)


def test_the_idle_clock_begins_at_the_end_of_the_job_though_the_slot_ad_keeps_an_older_time() -> None:
    """HTCondor's ad at the end of a job has the NumDynamicSlotsTime of its beginning (BUG A)."""
    worked = drone("kit-ab12-1", S.BUSY, age_s=600, jobs=1, jobs_started=0)
    plan = plan_of(snapshot(drones=[worked], slots=[idle_slot(worked, jobs_started=1, idle_since=NOW - 590)]))
    (move,) = plan.moves
    assert (move.drone.state, move.drone.idle_at) == (S.IDLE, NOW)
    assert plan.drains == ()


def test_a_job_between_two_looks_starts_the_idle_clock_where_the_slot_says() -> None:
    idle = drone("kit-ab12-1", S.IDLE, age_s=100, jobs_started=1, busy_at=NOW - 500)
    (move,) = plan_of(snapshot(drones=[idle], slots=[slot_of(idle, jobs_started=2, idle_since=NOW - 7)])).moves
    assert move.drone.idle_at == NOW - 7


def test_the_last_sign_of_life_of_a_drone_without_other_news_is_recorded_now_and_then() -> None:
    busy = drone("kit-ab12-1", S.BUSY, age_s=36_000, heard_at=NOW - 400, idle_at=0.0)
    (move,) = plan_of(snapshot(drones=[busy])).moves
    assert move.drone == replace(busy, heard_at=NOW - 1)
    assert plan_of(snapshot(drones=[replace(busy, heard_at=NOW - 200)])).moves == ()


def test_a_lost_drone_has_cost_its_work_up_to_when_it_was_missed() -> None:
    begun = NOW - 36_000
    gone = drone(
        "kit-ab12-1",
        S.BUSY,
        age_s=36_000,
        heard_at=begun,
        missing_at=NOW - 700,
        work_gpu_milli=1000,
        work_at=begun,
    )
    (move,) = plan_of(snapshot(drones=[gone], slots=[], remotes=[])).moves
    assert (move.drone.state, move.drone.lost_gpu_s) == (S.LOST, 35_300)


def test_a_drone_taken_back_into_service_stays_so_though_an_older_ad_says_draining() -> None:
    back = drone("kit-ab12-1", S.BUSY, age_s=2, heard_at=NOW - 20)
    older = slot_of(back, state=SlotState.DRAINING, heard_at=NOW - 20)
    assert plan_of(snapshot(drones=[back], slots=[older])).moves == ()
    (move,) = plan_of(snapshot(drones=[back], slots=[replace(older, heard_at=NOW - 1)])).moves
    assert (move.drone.state, move.drone.leaving) == (S.DRAINING, S.DONE)


def test_a_drone_that_nobody_asked_to_drain_is_in_service_again_when_its_slot_is() -> None:
    drains = drone("kit-ab12-1", S.DRAINING, leaving=S.DONE, joined_at=NOW - 900, busy_at=NOW - 800, jobs=1)
    busy = slot_of(replace(drains, state=S.BUSY))
    (move,) = plan_of(snapshot(drones=[drains], slots=[busy])).moves
    assert (move.drone.state, move.drone.leaving) == (S.BUSY, None)
    asked = replace(drains, asked_at=NOW - 60)
    (move,) = plan_of(snapshot(drones=[asked], slots=[busy])).moves
    assert (move.drone.state, move.drone.leaving) == (S.DRAINING, S.DONE)


@pytest.mark.parametrize("state", [S.QUEUED, S.BOOTING])
def test_an_empty_listing_of_a_small_site_is_not_believed_at_once(state: S) -> None:
    there = [drone(f"kit-ab12-{i}", state, missing_at=NOW - 46) for i in (1, 2)]
    plan = plan_of(snapshot(classes=[jobs(waiting=2)], drones=there, remotes=[], limits={"max_drones": 2}))
    assert (plan.moves, plan.starts) == ((), ())
    later = [replace(each, missing_at=NOW - 302) for each in there]
    assert {m.drone.state for m in plan_of(snapshot(drones=later, remotes=[])).moves} == {S.LOST}


def test_an_accepted_order_has_longer_to_appear_in_a_listing_than_a_listed_drone_to_come_back() -> None:
    others = [remote_of(drone("kit-ab12-2", S.QUEUED))]
    accepted = drone("kit-ab12-1", S.SUBMITTED, age_s=200, missing_at=NOW - 100)
    wanted = [jobs(waiting=1)]
    assert plan_of(snapshot(classes=wanted, drones=[accepted], remotes=others)).moves == ()
    accepted = replace(accepted, missing_at=NOW - 130)
    (move,) = plan_of(snapshot(classes=wanted, drones=[accepted], remotes=others)).moves
    assert move.drone.state is S.LOST


def test_a_machine_that_is_over_keeps_the_start_that_its_site_tells() -> None:
    booting = drone("kit-ab12-1", S.SUBMITTED)
    over = replace(remote_of(booting), state=RemoteState.STOPPED, started_at=NOW - 30)
    (move,) = plan_of(snapshot(drones=[booting], remotes=[over])).moves
    assert (move.drone.state, move.drone.started_at) == (S.STOPPING, NOW - 30)


def away_for(outage_s: float, there: Drone) -> Snapshot:
    """The first look after an outage in which the look of every tick failed."""
    known: dict[str, Breaker] = {}
    usual = snapshot(drones=[there])
    site = usual.sites["topas"]
    assert usual.overlay.view is not None and site.view is not None
    at = NOW
    while at < NOW + outage_s:
        fault = Fault(FaultKind.DOWN, "no answer within its deadline", at - 1)
        seen = replace(
            usual,
            now=at,
            overlay=PolledOverlay(replace(usual.overlay.view, taken_at=NOW - 1), fault),
            sites={"topas": replace(site, view=replace(site.view, taken_at=at - 1))},
            breakers=known,
        )
        plan = plan_of(seen)
        assert not plan.acts
        known = {**known, **{breaker.scope: breaker for breaker in plan.breakers}}
        at += 15
    return replace(
        usual,
        now=at,
        overlay=PolledOverlay(replace(usual.overlay.view, taken_at=at - 1)),
        sites={"topas": replace(site, view=replace(site.view, taken_at=at - 1))},
        breakers=known,
    )


def test_after_a_long_outage_of_the_pool_no_drone_is_blamed_for_not_joining_in_it() -> None:
    back = away_for(1800, drone("kit-ab12-1", S.BOOTING, age_s=60))
    plan = plan_of(back)
    assert plan.stops == ()
    (after,) = plan.breakers
    assert (after.scope, after.blind_until) == (OVERLAY_SCOPE, back.now)


@pytest.mark.parametrize(("outage_s", "settles_s"), [(30, 30), (60, 60), (1800, 60)])
def test_after_an_outage_the_pool_settles_for_as_long_and_a_minute_at_most(outage_s: float, settles_s: float) -> None:
    back = away_for(outage_s, drone("kit-ab12-1", S.BOOTING, age_s=60))
    (after,) = plan_of(back).breakers
    assert after.until - back.now == settles_s


def test_each_failure_in_a_row_backs_off_for_twice_as_long() -> None:
    rule = BACKOFF_POLICIES[FaultKind.DOWN]
    breaker, pauses = Breaker("topas"), []
    for _ in range(rule.after + 3):
        breaker = after_failure(breaker, DOWN, NOW)
        if breaker.state is BreakerState.BANNED:
            pauses.append(breaker.until - NOW)
    assert pauses == [rule.base_s, 2 * rule.base_s, 4 * rule.base_s, 8 * rule.base_s]
