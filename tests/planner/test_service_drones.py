"""Drones with an inference server: no supply for jobs, and none of the rules for jobs applies to them."""

from __future__ import annotations

from dataclasses import replace

from provisioner.model import DroneState, InferenceServer
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
