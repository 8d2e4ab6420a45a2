"""Sites whose drones leave something behind that must be cleared away, and that grant us a quota: clouds."""

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
    EndKind,
    Fault,
    FaultKind,
    OrderOutcome,
    OrderResult,
    RemoteDrone,
    RemoteEnd,
    RemoteState,
    SitePolicy,
    SiteView,
)
from provisioner.planner.breakers import update_by_order_results
from provisioner.planner.lifecycle import observe
from tests.planner.scenes import NOW, drone, jobs, node, plan_of, slot_of, snapshot, started, why

S = DroneState
VM = DroneType("cloud", "h100", 1000, 8, 20480, 0, vram_mib=81920, capability=90)
MIG = replace(VM, name="mig", vram_mib=10240, price=0.2)


def over(drone_id: str, **more: object) -> RemoteDrone:
    return RemoteDrone(drone_id, RemoteState.STOPPED, "vm-1", reason="SHUTOFF", **more)  # type: ignore[arg-type]


def listed(*remotes: RemoteDrone) -> SiteView:
    return SiteView("cloud", NOW, {remote.drone_id: remote for remote in remotes})


# -------------------------------------------------------------------------------------------- what is over and not gone


def test_a_machine_that_is_over_counts_against_the_cap_and_is_no_supply() -> None:
    was = drone("kit-ab12-1", S.BUSY, VM)
    snap = snapshot(
        classes=[jobs(waiting=2)], types=(VM,), drones=[was], slots=[], remotes=[over(was.id)], limits={"max_drones": 2}
    )
    plan = plan_of(snap)
    [move] = plan.moves
    assert (move.drone.state, move.drone.leaving, move.drone.asked) == (S.STOPPING, None, 1)
    assert started(plan) == [VM.key], "one place is left under the cap, and the one that is over takes no job"
    assert reasons.LimitReached("max_drones", "cloud", 2, 2) in why(plan, "class:small")
    assert plan.stops == (), "its site clears it away by itself"


def test_its_end_is_what_the_site_found_out_once_it_is_gone() -> None:
    was = drone("kit-ab12-1", S.BUSY, VM)
    policy = SitePolicy("cloud")
    seen = observe(was, listed(over(was.id)), None, pool_fresh=True, policy=policy, doubted=False, now=NOW)
    assert seen is not None and seen.drone.goes
    for end, state in (
        (RemoteEnd(EndKind.EXITED, NOW, 0), S.DONE),
        (RemoteEnd(EndKind.EXITED, NOW, 71, "no GPU"), S.FAILED),
        (RemoteEnd(EndKind.PREEMPTED, NOW, None, "suspended by its owner"), S.PREEMPTED),
    ):
        gone = RemoteDrone(was.id, RemoteState.ENDED, "vm-1", end=end)
        ended = observe(seen.drone, listed(gone), None, pool_fresh=True, policy=policy, doubted=False, now=NOW)
        assert ended is not None and ended.drone.state is state


def test_a_machine_that_never_joined_ends_so_though_its_site_was_asked() -> None:
    was = drone("kit-ab12-1", S.STOPPING, VM, leaving=S.JOIN_TIMEOUT, asked=1, asked_at=NOW - 20)
    policy = SitePolicy("cloud")
    seen = observe(was, listed(over(was.id)), None, pool_fresh=True, policy=policy, doubted=False, now=NOW)
    assert seen is not None and seen.drone.leaving is S.JOIN_TIMEOUT and seen.drone.asked_at == NOW - 20
    gone = RemoteDrone(was.id, RemoteState.ENDED, "vm-1", end=RemoteEnd(EndKind.STOPPED, NOW))
    ended = observe(seen.drone, listed(gone), None, pool_fresh=True, policy=policy, doubted=False, now=NOW)
    assert ended is not None and ended.drone.state is S.JOIN_TIMEOUT


def test_one_that_is_not_cleared_away_is_asked_for_and_at_last_without_notice() -> None:
    was = drone("kit-ab12-1", S.STOPPING, VM, age_s=100, asked=1, asked_at=NOW - 100, busy_at=NOW - 900)
    remote = over(was.id)
    plan = plan_of(snapshot(types=(VM,), drones=[was], slots=[], remotes=[remote]))
    [stop] = plan.stops
    assert isinstance(stop.reason, reasons.StateTimeout) and not stop.kill and stop.drone.leaving is None
    late = replace(stop.drone, asked=3, asked_at=NOW - 100)
    [stop] = plan_of(snapshot(types=(VM,), drones=[late], slots=[], remotes=[remote])).stops
    assert stop.kill


def test_a_slot_ad_that_outlives_its_machine_brings_nothing_to_life() -> None:
    was = drone("kit-ab12-1", S.STOPPING, VM, joined_at=NOW - 500)
    slot = slot_of(drone("kit-ab12-1", S.IDLE, VM), VM)
    plan = plan_of(snapshot(classes=[jobs()], types=(VM,), drones=[was], slots=[slot], remotes=[over(was.id)]))
    assert started(plan) == [VM.key], "its free slot is not believed"


def test_strays_that_are_over_are_left_to_their_site() -> None:
    plan = plan_of(snapshot(types=(VM,), remotes=[over("kit-ab12-9")]))
    assert plan.orphans == ()


def test_many_that_end_at_once_are_no_outage() -> None:
    ended = [drone(f"kit-ab12-{n}", S.STOPPING, VM, started_at=NOW - 900, busy_at=NOW - 800) for n in range(8)]
    busy = drone("kit-ab12-9", S.BUSY, VM)
    plan = plan_of(snapshot(classes=[jobs(waiting=1)], types=(VM,), drones=[*ended, busy], remotes=[over(busy.id)]))
    assert started(plan) == [VM.key]


# ---------------------------------------------------------------------------------------------------- never to start


@pytest.mark.parametrize("fault", [FaultKind.CAPACITY, FaultKind.QUOTA])
def test_a_machine_in_error_is_taken_back_at_once_and_its_type_backs_off(fault: FaultKind) -> None:
    was = drone("kit-ab12-1", S.QUEUED, VM)
    failed = RemoteDrone(was.id, RemoteState.PENDING, "vm-1", reason="No valid host", blocked=fault, final=True)
    snap = snapshot(classes=[jobs(waiting=3)], types=(VM,), drones=[was], remotes=[failed])
    plan = plan_of(snap)
    [stop], [breaker] = plan.stops, plan.breakers
    assert (stop.drone.leaving, stop.reason) == (
        S.FAILED,
        reasons.StartBlocked("cloud/h100", fault.value, "No valid host"),
    )
    assert (breaker.scope, breaker.state) == ("cloud/h100", BreakerState.BANNED)
    assert plan.starts == ()
    again = plan_of(replace(snap, drones={was.id: stop.drone}, breakers={breaker.scope: breaker}))
    assert (again.breakers, again.stops, again.starts) == ((), (), ()), "counted once, asked once"


def probed(fault: FaultKind, *, since: float = NOW - 60) -> Breaker:
    met = Fault(fault, "kit-ab12-1 waits: it failed after all", since, of_order=True, accepted=True)
    return Breaker("cloud/h100", BreakerState.PROBING, since, 2, 0.0, met)


def test_a_cloud_that_accepts_the_probe_has_shown_nothing_yet() -> None:
    """202 is its answer to everything: only a machine that runs shows that there is room again."""
    breaker = probed(FaultKind.CAPACITY)
    accepted = OrderResult(DroneId("kit-ab12-2"), OrderOutcome.OK, "vm-2")
    assert (
        update_by_order_results({breaker.scope: breaker}, "cloud", {accepted.drone_id: VM.key}, [accepted], NOW) == []
    )
    was = drone("kit-ab12-2", S.SUBMITTED, VM, age_s=5)
    waits = RemoteDrone(was.id, RemoteState.PENDING, "vm-2", reason="BUILD")
    snap = snapshot(classes=[jobs(waiting=9)], types=(VM,), drones=[was], remotes=[waits], breakers=[breaker])
    plan = plan_of(snap)
    assert (plan.starts, plan.breakers) == ((), ()), "one is tried"
    failed = replace(waits, reason="No valid host", blocked=FaultKind.CAPACITY, final=True)
    [again] = plan_of(
        snapshot(classes=[jobs(waiting=9)], types=(VM,), drones=[was], remotes=[failed], breakers=[breaker])
    ).breakers
    assert (again.state, again.failures) == (BreakerState.BANNED, 3), "and each time for longer"
    runs = RemoteDrone(was.id, RemoteState.RUNNING, "vm-2", started_at=NOW)
    plan = plan_of(snapshot(classes=[jobs(waiting=9)], types=(VM,), drones=[was], remotes=[runs], breakers=[breaker]))
    assert [b.state for b in plan.breakers] == [BreakerState.ACTIVE] and started(plan)


@pytest.mark.parametrize("fault", [FaultKind.CAPACITY, FaultKind.QUOTA])
def test_one_of_the_same_batch_that_starts_later_shows_no_room_for_more(fault: FaultKind) -> None:
    met = Fault(fault, "kit-ab12-1 waits: quota exceeded", NOW - 5, of_order=True, accepted=True)
    breaker = Breaker("cloud/h100", BreakerState.BANNED, NOW - 5, 2, NOW + 100, met)
    for age_s, cured in ((30.0, False), (2.0, True)):
        was = drone("kit-ab12-2", S.QUEUED, VM, age_s=age_s)
        runs = RemoteDrone(was.id, RemoteState.RUNNING, "vm-2", started_at=NOW - 1)
        snap = snapshot(classes=[jobs(waiting=9)], types=(VM,), drones=[was], remotes=[runs], breakers=[breaker])
        plan = plan_of(snap)
        assert bool(started(plan)) is bool(plan.breakers) is cured


def test_machines_that_fail_as_they_boot_are_cured_by_one_in_the_pool() -> None:
    breaker = probed(FaultKind.NODE)
    was = drone("kit-ab12-2", S.SUBMITTED, VM, age_s=5)
    runs = RemoteDrone(was.id, RemoteState.RUNNING, "vm-2", started_at=NOW)
    plan = plan_of(snapshot(types=(VM,), drones=[was], remotes=[runs], breakers=[breaker]))
    assert plan.breakers == (), "it boots, as the others did"
    slot = slot_of(drone("kit-ab12-2", S.IDLE, VM), VM)
    plan = plan_of(snapshot(types=(VM,), drones=[was], remotes=[runs], slots=[slot], breakers=[breaker]))
    assert [b.state for b in plan.breakers] == [BreakerState.ACTIVE]


# ------------------------------------------------------------------------------------------------------------- quota


def test_no_more_are_asked_for_than_the_quota_leaves() -> None:
    snap = snapshot(classes=[jobs(waiting=5)], types=(VM,), quota={"h100": 2})
    plan = plan_of(snap)
    assert started(plan) == [VM.key] * 2
    assert reasons.SiteQuota("cloud/h100") in why(plan, "class:small")


def test_types_share_a_quota_in_proportion() -> None:
    snap = snapshot(classes=[jobs(waiting=9)], types=(replace(VM, max_drones=2), MIG), quota={"h100": 4, "mig": 8})
    kinds = started(plan_of(snap))
    assert len(kinds) <= 8 and kinds.count(VM.key) / 4 + kinds.count(MIG.key) / 8 <= 1.0


def test_an_order_of_unknown_outcome_counts_against_the_quota() -> None:
    asked = drone("kit-ab12-1", S.REQUESTED, VM)
    plan = plan_of(snapshot(classes=[jobs(waiting=5)], types=(VM,), drones=[asked], quota={"h100": 2}))
    assert started(plan) == [VM.key]


def test_a_quota_holds_where_nodes_have_room_and_where_one_may_queue() -> None:
    room = [node("gk1", 8, kinds=("h100",))]
    told = snapshot(classes=[jobs(waiting=5)], types=(VM,), nodes=room, quota={"h100": 1})
    assert started(plan_of(told)) == [VM.key]
    queues = snapshot(
        classes=[jobs(waiting=5)], types=(VM,), nodes=room, quota={"h100": 1}, limits={"queue_when_full": True}
    )
    assert started(plan_of(queues)) == [VM.key]


def test_where_no_quota_is_told_there_is_none() -> None:
    assert len(started(plan_of(snapshot(classes=[jobs(waiting=5)], types=(VM,))))) == 5
