"""Drones with an inference server: no supply for jobs, and none of the rules for jobs applies to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from provisioner.model import (
    Drone,
    DroneId,
    DroneState,
    Fault,
    FaultKind,
    InferenceServer,
    OperatorRequest,
    PolledServices,
    RequestKind,
    Service,
    ServicesView,
    Slot,
    SlotState,
    Snapshot,
)
from provisioner.planner.retirement import CANCEL_AFTER_S
from provisioner.reasons import NothingFits
from tests.planner.scenes import A100, NOW, drone, jobs, plan_of, snapshot

SERVER = InferenceServer("cms", ("deepmet:3",), "exec tritonserver")
TRITON = replace(A100, name="triton", server=SERVER, price=0.1)


def test_a_job_never_gets_a_drone_with_a_server() -> None:
    plan = plan_of(snapshot(classes=[jobs(waiting=2)], types=[TRITON, A100]))
    assert {start.drone.type for start in plan.starts} == {A100.key}
    alone = plan_of(snapshot(classes=[jobs()], types=[TRITON]))
    assert not alone.starts
    (why,) = [each.reason for each in alone.refusals if isinstance(each.reason, NothingFits)]
    assert (why.dimension, why.available) == ("server", "a server of cms")


def test_a_waiting_server_is_no_supply_and_is_not_cancelled_for_want_of_jobs() -> None:
    waiting = drone("kit-1", DroneState.QUEUED, TRITON, age_s=2 * CANCEL_AFTER_S, service="cms")
    waiting = replace(waiting, idle_at=NOW - 2 * CANCEL_AFTER_S)
    plan = plan_of(snapshot(classes=[jobs()], drones=[waiting], types=[TRITON, A100]))
    assert [start.drone.type for start in plan.starts] == [A100.key]
    assert not plan.stops and not plan.moves


CMS = Service("cms", at_least=1, unready_s=60.0)


def world(
    *drones: Drone,
    slots: Iterable[Slot] = (),
    forged: Iterable[Slot] = (),
    taken_at: float = NOW - 1,
    **more: Any,
) -> Snapshot:
    """A snapshot with these drones of the service, its servers, and slots that the overlay lists."""
    made = snapshot(drones=drones, types=[TRITON, A100], slots=forged, **more)
    view = ServicesView(taken_at, slots=tuple(slots))
    policy = replace(made.policy, services=(CMS,))
    return replace(made, policy=policy, services=PolledServices(view))


def served(state: DroneState = DroneState.IDLE, age_s: float = 600.0, **more: object) -> Drone:
    joined = {"joined_at": NOW - age_s} if state is DroneState.DRAINING else {}
    return drone("kit-1", state, TRITON, age_s, service="cms", **{**joined, **more})


def server(state: SlotState, requests: int = 0) -> Slot:
    return Slot(DroneId("kit-1"), state, NOW - 1, jobs=requests)


def test_a_drone_boots_until_its_server_is_ready() -> None:
    booting = served(DroneState.BOOTING, age_s=30.0)
    assert not plan_of(world(booting)).moves
    (move,) = plan_of(world(booting, slots=[server(SlotState.IDLE)])).moves
    assert (move.drone.state, move.drone.joined_at) == (DroneState.IDLE, NOW)
    (move,) = plan_of(world(booting, slots=[server(SlotState.BUSY, 3)])).moves
    assert (move.drone.state, move.drone.jobs, move.drone.idle_at) == (DroneState.BUSY, 3, 0.0)


def test_a_slot_of_the_overlay_is_not_a_server() -> None:
    """A job with a drone's token can advertise any."""
    booting = served(DroneState.BOOTING, age_s=30.0)
    forged = server(SlotState.BUSY, 1)
    plan = plan_of(world(booting, forged=[forged]))
    assert not plan.moves and not plan.drains


def test_a_server_that_is_not_ready_for_long_is_replaced() -> None:
    (move,) = plan_of(world(served())).moves
    assert move.drone.unslotted_at == NOW
    for for_s, stops in ((59.0, 0), (61.0, 1)):
        plan = plan_of(world(served(unslotted_at=NOW - for_s)))
        assert [each.reason.kind for each in plan.stops] == ["left-pool"] * stops
    assert not plan_of(world(served(unslotted_at=NOW - 61), taken_at=NOW - 900)).stops, "unseen"
    back = plan_of(world(served(unslotted_at=NOW - 59), slots=[server(SlotState.IDLE)]))
    assert back.moves[0].drone.unslotted_at == 0.0


def test_a_server_is_idle_for_as_long_as_its_service_wants_it() -> None:
    """The idle timeout of drones for jobs is 10 minutes."""
    idle = served(age_s=36_000.0)
    plan = plan_of(world(idle, slots=[server(SlotState.IDLE)]))
    assert not plan.drains and not plan.stops


def test_an_operator_drains_a_server_while_the_overlay_is_away() -> None:
    """A server leaves by its own pool."""
    request = OperatorRequest(1, NOW, RequestKind.DRAIN, (DroneId("kit-1"),), "", "ann")
    away = Fault(FaultKind.DOWN, "no answer", NOW)
    idle = world(served(), slots=[server(SlotState.IDLE)], requests=[request], overlay_fault=away)
    (drain,) = plan_of(idle).drains
    assert drain.drone.state is DroneState.DRAINING
    unseen = plan_of(replace(idle, services=PolledServices(fault=away)))
    assert not unseen.drains and unseen.refusals[0].reason.kind == "stale-view"


def test_a_drained_server_is_stopped_once_it_works_on_nothing() -> None:
    draining = served(
        DroneState.DRAINING, age_s=5.0, leaving=DroneState.CANCELLED, asked_at=NOW - 5
    )
    working = replace(draining, jobs=2)
    assert not plan_of(world(working, slots=[server(SlotState.DRAINING, 2)])).stops
    (stop,) = plan_of(world(draining, slots=[server(SlotState.DRAINING)])).stops
    assert (stop.reason.kind, stop.drone.leaving) == ("server-drained", DroneState.CANCELLED)
    late = replace(working, since=NOW - 40)
    (stop,) = plan_of(world(late, slots=[server(SlotState.DRAINING, 2)])).stops
    assert stop.reason.kind == "state-timeout", "the grace of its site is 30 s"


def test_a_drone_whose_type_has_another_service_now_leaves() -> None:
    other = replace(TRITON, server=replace(SERVER, service="atlas"))
    plan = plan_of(replace(world(served(), slots=[server(SlotState.IDLE)]), types=(other, A100)))
    assert [each.reason.kind for each in plan.drains] == ["type-removed"]
