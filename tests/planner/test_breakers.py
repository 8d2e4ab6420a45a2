"""Circuit breakers and doubt, as data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner import reasons
from provisioner.model import (
    Breaker,
    BreakerState,
    Drone,
    DroneId,
    DroneState,
    EndKind,
    Fault,
    FaultKind,
    OrderOutcome,
    OrderResult,
    PolledSite,
    RemoteEnd,
    RemoteState,
    Snapshot,
)
from provisioner.planner.breakers import (
    OVERLAY_SCOPE,
    after_failure,
    shift_breaker,
    update_by_order_results,
)
from provisioner.planner.context import check_views
from provisioner.reasons import Reason
from tests.planner.scenes import A100, DOWN, NOW, drone, jobs, plan_for, plan_of, remote_of, slot_of, snapshot, why

B = BreakerState


def fault(kind: FaultKind = FaultKind.DOWN, at: float = NOW, of_order: bool = False) -> Fault:
    return Fault(kind, f"a {kind} fault", at, of_order)


def test_a_banned_breaker_leads_only_to_probing() -> None:
    over = Breaker("topas/a100", B.BANNED, NOW - 90, 3, NOW - 1, fault(FaultKind.DRONE))
    (after,) = plan_for(breakers=[over]).breakers
    assert after.state is B.PROBING


def test_the_same_failed_look_is_counted_once() -> None:
    snap = snapshot(site_fault=DOWN)
    (first,) = plan_of(snap).breakers
    assert first.failures == 1
    assert plan_for(site_fault=DOWN, breakers=[first]).breakers == ()


def test_the_overlay_is_never_banned_there_is_no_other() -> None:
    worn = Breaker(OVERLAY_SCOPE, B.DEGRADED, NOW - 99, 50, 0.0, fault(at=NOW - 15))
    (after,) = plan_for(overlay_fault=DOWN, breakers=[worn]).breakers
    assert (after.state, after.failures) == (B.DEGRADED, 51)


def test_an_accepted_order_clears_what_orders_had_tripped_but_not_the_blame_for_dying_drones() -> None:
    one = [OrderResult(DroneId("kit-ab12-1"), OrderOutcome.OK, "1")]
    types = {DroneId("kit-ab12-1"): "topas/a100"}
    quota = {"topas/a100": Breaker("topas/a100", B.PROBING, NOW, 2, 0, fault(FaultKind.QUOTA, of_order=True))}
    dying = {"topas/a100": Breaker("topas/a100", B.PROBING, NOW, 4, 0, fault(FaultKind.DRONE))}
    assert [b.state for b in update_by_order_results(quota, "topas", types, one, NOW)] == [B.ACTIVE]
    assert update_by_order_results(dying, "topas", types, one, NOW) == []


def test_a_listing_that_works_does_not_clear_refused_credentials() -> None:
    """Nor anything else that orders met: a site that lists well and never answers a start is not hammered for ever."""
    for kind in (FaultKind.DENIED, FaultKind.DOWN):
        banned = Breaker("topas", B.BANNED, NOW - 5, 3, NOW + 100, fault(kind, of_order=True))
        plan = plan_for(waiting=1, breakers=[banned])
        assert plan.breakers == ()
        assert plan.starts == ()


def test_a_site_that_never_answers_a_start_is_banned_though_its_listings_work() -> None:
    breakers: list[Breaker] = []
    states = []
    for serial in range(3):
        plan = plan_for(waiting=1, breakers=breakers)
        assert len(plan.starts) == 1
        unsure = [OrderResult(DroneId(f"kit-ab12-{serial}"), OrderOutcome.UNKNOWN, fault=fault())]
        known = {b.scope: b for b in breakers}
        breakers = update_by_order_results(known, "topas", {unsure[0].drone_id: A100.key}, unsure, NOW)
        states.append(breakers[0].state)
    assert states == [B.DEGRADED, B.DEGRADED, B.BANNED]
    assert plan_for(waiting=1, breakers=breakers).starts == ()


def test_an_order_that_arrived_after_all_speaks_for_its_site() -> None:
    worn = Breaker("topas", B.DEGRADED, NOW - 60, 2, 0.0, fault(of_order=True))
    asked = drone("kit-ab12-1", DroneState.REQUESTED)
    arrived = replace(remote_of(asked), remote_id="4711")
    assert plan_for(drones=[asked], breakers=[worn]).breakers == ()
    (after,) = plan_for(drones=[asked], remotes=[arrived], breakers=[worn]).breakers
    assert after.state is B.ACTIVE


def test_credentials_that_a_look_was_denied_are_good_again_when_a_look_succeeds() -> None:
    denied = Breaker("topas", B.BANNED, NOW - 5, 1, NOW + 100, fault(FaultKind.DENIED))
    (after,) = plan_for(breakers=[denied]).breakers
    assert after.state is B.ACTIVE


def test_an_overlay_that_admits_nobody_is_left_in_peace_and_its_outages_stay_known() -> None:
    refused = [OrderResult(DroneId("kit-ab12-1"), OrderOutcome.REJECTED, fault=fault(FaultKind.DENIED))]
    admitted = [OrderResult(DroneId("kit-ab12-2"), OrderOutcome.OK)]
    types = {DroneId(f"kit-ab12-{i}"): OVERLAY_SCOPE for i in (1, 2)}
    known = {OVERLAY_SCOPE: Breaker(OVERLAY_SCOPE, blind_until=NOW - 50)}
    (banned,) = update_by_order_results(known, OVERLAY_SCOPE, types, refused, NOW)
    plan = plan_for(waiting=1, breakers=[banned])
    assert plan.starts == ()
    assert why(plan, "all") == [reasons.BackingOff(OVERLAY_SCOPE, NOW + 120, "denied", "a denied fault")]
    (well,) = update_by_order_results({OVERLAY_SCOPE: banned}, OVERLAY_SCOPE, types, admitted, NOW)
    assert well == Breaker(OVERLAY_SCOPE, since=NOW, blind_until=NOW - 50)


def test_when_all_drones_of_a_site_vanish_at_once_the_site_is_left_alone() -> None:
    there = [drone(f"kit-ab12-{i}", DroneState.BOOTING) for i in range(3)]
    plan = plan_for(waiting=9, drones=there, remotes=[])
    assert not plan.acts
    assert why(plan, "site:topas") == [reasons.AllVanished("topas", 3)]


def test_a_drone_that_works_clears_its_types_blame() -> None:
    blamed = Breaker("topas/a100", B.PROBING, NOW - 5, 4, 0, fault(FaultKind.DRONE))
    trying = drone("kit-ab12-1", DroneState.IDLE)
    slot = slot_of(drone("kit-ab12-1", DroneState.BUSY))
    (after,) = plan_for(drones=[trying], slots=[slot], breakers=[blamed]).breakers
    assert (after.scope, after.state) == (A100.key, B.ACTIVE)


@pytest.mark.parametrize(
    ("state", "more"),
    [(DroneState.BOOTING, {"missing_at": NOW - 400}), (DroneState.SUBMITTED, {"missing_at": NOW - 200})],
)
def test_a_type_whose_drones_vanish_before_they_work_is_slowed(state: DroneState, more: dict[str, object]) -> None:
    plan = plan_for(waiting=5, drones=[drone("kit-ab12-1", state, **more)], remotes=[])
    assert [m.drone.state for m in plan.moves] == [DroneState.LOST]
    assert [b.scope for b in plan.breakers] == ["topas/a100"]
    assert len(plan.starts) == 1, "one is tried, not five"


def test_a_short_outage_hides_nothing_and_a_long_one_does() -> None:
    short = Breaker(OVERLAY_SCOPE, B.DEGRADED, NOW - 30, 1, 0.0, fault(), blind_until=NOW - 5000)
    long = Breaker(OVERLAY_SCOPE, B.DEGRADED, NOW - 300, 9, 0.0, fault(), blind_until=NOW - 5000)
    (after,) = plan_for(breakers=[short]).breakers
    assert (after.state, after.blind_until) == (B.ACTIVE, NOW - 5000)
    (after,) = plan_for(breakers=[long]).breakers
    assert (after.state, after.blind_until) == (B.ACTIVE, NOW)


@pytest.mark.parametrize(("outage_s", "settles_s"), [(17, 17), (60, 60), (1800, 60)])
def test_after_an_outage_the_pool_comes_to_itself_before_drones_are_started_for_it(
    outage_s: int, settles_s: int
) -> None:
    away = Breaker(OVERLAY_SCOPE, B.DEGRADED, NOW - outage_s, 3, 0.0, fault())
    plan = plan_for(waiting=2, breakers=[away])
    assert plan.starts == ()
    (reason,) = why(plan, "all")
    assert isinstance(reason, reasons.BackingOff) and reason.until == NOW + settles_s
    (back,) = plan.breakers
    later = plan_of(replace(snapshot(classes=[jobs(waiting=2)], breakers=[back]), now=NOW + settles_s + 1))
    assert len(later.starts) == 2


@pytest.mark.parametrize(
    ("kind", "failures", "first_s", "longest_s", "scope"),
    [
        (FaultKind.DOWN, 3, 10, 300, "topas"),
        (FaultKind.UNKNOWN, 3, 30, 600, "topas"),
        (FaultKind.DENIED, 1, 120, 1800, "topas"),
        (FaultKind.THROTTLED, 1, 60, 900, "topas"),
        (FaultKind.CAPACITY, 1, 60, 600, A100.key),
        (FaultKind.QUOTA, 1, 120, 1800, A100.key),
        (FaultKind.CONFIG, 1, 600, 7200, A100.key),
        (FaultKind.NODE, 3, 60, 1800, A100.key),
        (FaultKind.DRONE, 3, 60, 3600, A100.key),
        (FaultKind.JOBS, 1, 600, 7200, A100.key),
        (FaultKind.BLACK_HOLE, 2, 1800, 21600, "topas"),
    ],
)
def test_refused_orders_ban_what_the_fault_concerns_for_a_pause_that_doubles(
    kind: FaultKind, failures: int, first_s: float, longest_s: float, scope: str
) -> None:
    i = DroneId("kit-ab12-1")
    refused = [OrderResult(i, OrderOutcome.REJECTED, fault=fault(kind))]
    known: dict[str, Breaker] = {}
    pauses = []
    for _ in range(failures + 12):
        (after,) = update_by_order_results(known, "topas", {i: A100.key}, refused, NOW)
        known = {after.scope: after}
        pauses.append(after.until - NOW if after.state is B.BANNED else None)
    assert list(known) == [scope]
    assert pauses[: failures + 2] == [None] * (failures - 1) + [first_s, 2 * first_s, min(longest_s, 4 * first_s)]
    assert pauses[-1] == longest_s


def test_a_site_that_goes_on_failing_is_degraded_since_its_first_failure() -> None:
    first = after_failure(Breaker("topas", since=NOW - 500), fault(), NOW)
    second = after_failure(first, fault(), NOW + 15)
    third = after_failure(second, fault(), NOW + 30)
    assert (first.since, second.since, third.since) == (NOW, NOW, NOW + 30)
    assert after_failure(replace(first, state=B.PROBING), fault(), NOW).state is B.BANNED, (
        "the first failure of a probe"
    )


def test_a_breaker_goes_with_its_clock_and_times_that_never_were_stay_so() -> None:
    breaker = Breaker("topas", B.BANNED, NOW, 3, NOW + 60, fault())
    assert shift_breaker(breaker, -7200.5) == replace(breaker, since=NOW - 7200.5, until=NOW - 7140.5)
    assert shift_breaker(replace(breaker, blind_until=NOW - 9), 3.0).blind_until == NOW - 6


def test_views_are_told_with_their_age_and_what_is_wrong_with_them() -> None:
    def doubts(snap: Snapshot) -> tuple[Reason | None, Reason | None]:
        judged = check_views(snap)
        return judged.overlay, judged.sites["topas"]

    assert doubts(snapshot()) == (None, None)
    assert doubts(snapshot(overlay_age_s=121, site_age_s=121)) == (
        reasons.StaleView("overlay", 121, 120, "too old"),
        reasons.StaleView("site:topas", 121, 120, "too old"),
    )
    assert doubts(snapshot(overlay_age_s=120, site_age_s=120)) == (None, None)
    assert doubts(snapshot(overlay_fault=DOWN, site_fault=DOWN)) == (
        reasons.StaleView("overlay", 1, 120, "connection refused"),
        reasons.StaleView("site:topas", 1, 120, "connection refused"),
    )
    never = replace(snapshot(view=False), sites={"topas": PolledSite("topas", None)})
    assert doubts(never) == (
        reasons.StaleView("overlay", -1, 120, "never seen"),
        reasons.StaleView("site:topas", -1, 120, "never seen"),
    )
    busy = snapshot(site_age_s=7)
    busy = replace(busy, sites={"topas": replace(busy.sites["topas"], busy=True)})
    assert doubts(busy)[1] == reasons.StaleView("site:topas", 7, 120, "its last orders are still under way")


@pytest.mark.parametrize(
    ("missing", "listed", "more", "doubted"),
    [
        (2, 0, {}, 0),
        (3, 0, {}, 3),
        (4, 0, {}, 4),
        (3, 3, {}, 3),
        (3, 4, {}, 0),
        (3, 0, {"missing_at": NOW - 300}, 3),
        (3, 0, {"missing_at": NOW - 302}, 0),
        (3, 0, {"state": DroneState.SUBMITTED}, 0),
        (3, 0, {"state": DroneState.REQUESTED}, 0),
        (3, 0, {"state": DroneState.STOPPING, "leaving": DroneState.CANCELLED}, 0),
    ],
)
def test_a_listing_that_lacks_half_of_a_sites_drones_at_once_is_doubted(
    missing: int, listed: int, more: dict[str, object], doubted: int
) -> None:
    gone = [replace(drone(f"kit-ab12-{i}", DroneState.BOOTING), **more) for i in range(missing)]
    there = [drone(f"kit-ab12-{9 + i}", DroneState.BOOTING) for i in range(listed)]
    # Before them in the record one that is on its way, and is not listed yet.
    order = drone("kit-ab12-0-0", DroneState.REQUESTED, age_s=1)
    snap = snapshot(drones=[order, *gone, *there], remotes=[remote_of(each) for each in there])
    found = check_views(snap).sites["topas"]
    assert found == (reasons.AllVanished("topas", doubted) if doubted else None)


def test_an_order_that_is_accepted_clears_the_site_of_its_drone_and_no_other_blame() -> None:
    asked = drone("kit-ab12-1", DroneState.REQUESTED)
    arrived = replace(remote_of(asked), remote_id="4711")
    listing = Breaker("topas", B.DEGRADED, NOW - 60, 2, 0.0, fault(of_order=True))
    hold = Breaker("topas", B.DEGRADED, NOW - 60, 2, 0.0, replace(fault(of_order=True), accepted=True))
    for worn, cleared in ((listing, True), (hold, False)):
        plan = plan_for(drones=[asked], remotes=[arrived], breakers=[worn])
        assert bool(plan.breakers) is cleared
    old = drone("kit-ab12-2", DroneState.QUEUED)
    runs = replace(remote_of(old), state=RemoteState.RUNNING)
    assert plan_for(drones=[old], remotes=[runs], breakers=[listing]).breakers == ()


@pytest.mark.parametrize(
    ("state", "end", "blamed"),
    [
        (DroneState.BOOTING, RemoteEnd(EndKind.EXITED, NOW, 1), "drone"),
        (DroneState.BUSY, RemoteEnd(EndKind.EXITED, NOW, 1), ""),
        (DroneState.BOOTING, RemoteEnd(EndKind.EXITED, NOW, 73), "drone"),
        (DroneState.BOOTING, RemoteEnd(EndKind.EXITED, NOW, 0), "drone"),
        (DroneState.IDLE, RemoteEnd(EndKind.EXITED, NOW, 0), ""),
        (DroneState.QUEUED, RemoteEnd(EndKind.FAULT, NOW), ""),
        (DroneState.QUEUED, RemoteEnd(EndKind.FAULT, NOW, fault=FaultKind.CONFIG), "config"),
        (DroneState.BUSY, RemoteEnd(EndKind.FAULT, NOW, fault=FaultKind.CONFIG), "config"),
        (DroneState.BUSY, RemoteEnd(EndKind.FAULT, NOW, fault=FaultKind.DRONE), ""),
        (DroneState.IDLE, RemoteEnd(EndKind.FAULT, NOW, fault=FaultKind.DRONE), "drone"),
        (DroneState.STOPPING, RemoteEnd(EndKind.FAULT, NOW, fault=FaultKind.CONFIG), ""),
        (DroneState.BOOTING, RemoteEnd(EndKind.PREEMPTED, NOW), ""),
    ],
)
def test_a_bad_end_is_blamed_on_the_type(state: DroneState, end: RemoteEnd, blamed: str) -> None:
    there = drone("kit-ab12-1", state, leaving=DroneState.CANCELLED if state is DroneState.STOPPING else None)
    ended = replace(remote_of(there), state=RemoteState.ENDED, end=end)
    plan = plan_for(drones=[there], remotes=[ended], slots=[])
    assert [b.fault.kind for b in plan.breakers if b.fault and b.scope == A100.key] == ([blamed] if blamed else [])


def test_the_answers_of_a_batch_count_once_and_a_refusal_outweighs_an_accepted_order() -> None:
    ids, key = [DroneId(f"kit-ab12-{i}") for i in range(3)], str(A100.key)
    full = fault(FaultKind.QUOTA)
    known = {key: Breaker(key, B.PROBING, NOW - 9, 2, 0.0, replace(full, of_order=True))}
    batch = [
        OrderResult(ids[0], OrderOutcome.OK, "1"),
        *(OrderResult(i, OrderOutcome.REJECTED, fault=full) for i in ids[1:]),
    ]
    (after,) = update_by_order_results(known, "topas", dict.fromkeys(ids, key), batch, NOW)
    assert (after.state, after.failures, after.until) == (B.BANNED, 3, NOW + 480)
    assert after.fault is not None and after.fault.of_order


@pytest.mark.parametrize(
    ("there", "more", "scope"),
    [
        (drone("kit-ab12-1", DroneState.QUEUED), {}, A100.key),
        (drone("kit-ab12-1", DroneState.SUBMITTED), {}, A100.key),
        (drone("kit-ab12-1", DroneState.QUEUED), {"blocked": FaultKind.DENIED}, "topas"),
        (drone("kit-ab12-1", DroneState.QUEUED), {"blocked": FaultKind.CAPACITY}, None),
        (drone("kit-ab12-1", DroneState.QUEUED), {"blocked": None}, None),
        (drone("kit-ab12-1", DroneState.QUEUED, leaving=DroneState.CANCELLED), {}, None),
        (drone("kit-ab12-1", DroneState.QUEUED, started_at=NOW - 5), {}, None),
        (drone("kit-ab12-1", DroneState.BOOTING), {}, None),
    ],
)
def test_what_waits_for_nothing_that_comes_by_waiting_backs_off_where_the_fault_lies(
    there: Drone, more: dict[str, object], scope: str | None
) -> None:
    told = replace(remote_of(there), state=RemoteState.PENDING, blocked=FaultKind.CONFIG, reason="no such partition")
    plan = plan_for(drones=[there], remotes=[replace(told, **more)])
    assert [breaker.scope for breaker in plan.breakers] == ([scope] if scope else [])
    for breaker in plan.breakers:
        assert breaker.fault is not None and breaker.fault.message == "kit-ab12-1 waits: no such partition"
