"""The witness of a run: planners that do what must not be done are found out, and owners and faults are told apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from provisioner.model import Drone, DroneState, Headroom, Plan, Snapshot, Stop
from provisioner.planner import decide
from provisioner.reasons import Unneeded
from provisioner.simulator.faults import ServiceFault, ServiceFaultKind
from provisioner.simulator.sites import GpuPool
from provisioner.simulator.world import START_EPOCH, Scenario
from tests.simulator.owner_queue import OwnerSteps
from tests.simulator.wild import NEXT_HOUR
from tests.simulator.witness import Course, watched
from tests.simulator.worlds import calm, small


@dataclass(frozen=True)
class Spoiled:
    """The planner itself, but for the drones that it also asks to end: for a quarter of an hour, whenever it finds one
    that ``hates`` is true of. The checker that would refuse such plans is away."""

    hates: Callable[[Drone], bool]

    def __call__(self, snapshot: Snapshot) -> Plan:
        plan, now = decide(snapshot), snapshot.now
        after = {move.drone.id: move.drone for move in plan.moves}
        live = [after.get(drone.id, drone) for drone in snapshot.drones.values()]
        asked = {action.drone.id for action in plan.asks}
        stops = tuple(
            Stop(
                replace(d, state=DroneState.STOPPING, since=now, leaving=DroneState.CANCELLED, asked_at=now, asked=1),
                d.state,
                Unneeded(d.state.value),
            )
            for d in live
            if now - START_EPOCH < 900.0
            and d.id not in asked
            and not d.is_leaving
            and not d.state.ended
            and self.hates(d)
        )
        return replace(plan, stops=(*plan.stops, *stops))


def spoiled(hates: Callable[[Drone], bool]) -> Scenario:
    return replace(calm(), planner=lambda: Spoiled(hates), judge=lambda snapshot, plan: (), limit_s=2 * 3600.0)


def test_a_planner_in_its_senses_is_found_guilty_of_nothing() -> None:
    seen = watched(calm())
    assert seen.violations == ()
    assert seen.courses == {Course.WORKED: 4}
    assert (seen.ours, seen.most) == (4, 12)


def test_who_stops_a_drone_that_works_is_found_out() -> None:
    seen = watched(spoiled(lambda drone: drone.jobs > 0))
    assert seen.outcome.metrics.attempts_lost > 0
    assert all("while job" in line and line.endswith("ran: unneeded") for line in seen.violations)
    assert len(seen.violations) == seen.outcome.metrics.attempts_lost


def test_who_starts_and_withdraws_by_turns_is_found_out() -> None:
    seen = watched(spoiled(lambda drone: drone.state in (DroneState.BOOTING, DroneState.JOINED, DroneState.IDLE)))
    assert seen.outcome.jobs_done == 12
    (line,) = seen.violations
    assert "can be explained" in line
    assert seen.courses[Course.VAIN] > 12


def test_what_an_owner_takes_is_the_owners_doing() -> None:
    (site,) = calm().facilities
    owned = replace(site, pools=(GpuPool("gpus", 4),), owner=OwnerSteps(((60.0, 4), (200.0, 0)), "gpus"))
    seen = watched(replace(calm(), facilities=(owned,)))
    assert seen.violations == ()
    assert seen.causes["the owner's claim"] == seen.outcome.metrics.attempts_lost > 0


def test_an_order_that_comes_late_was_given_when_no_job_ran() -> None:
    """Drones are asked to go while they boot; the order comes when they work."""
    late = ServiceFault(ServiceFaultKind.LATE, "kit", "stop", amount=30.0)
    asked = spoiled(lambda drone: drone.state is DroneState.BOOTING)
    seen = watched(replace(asked, service_faults=(late,), policy=replace(asked.policy, max_drones=2)))
    assert seen.causes["an order given before the job began"] == seen.outcome.metrics.attempts_lost > 0
    assert not any("while job" in line for line in seen.violations)


def test_warm_drones_need_no_job() -> None:
    warm = Headroom("warm", cpus=2, count=2, to_h=NEXT_HOUR)
    seen = watched(
        Scenario((small(gpus=4),), (), policy=replace(calm().policy, headroom=(warm,)), least_s=300.0, interval_s=10.0)
    )
    assert seen.violations == ()
    assert (seen.warm, seen.ours, seen.most) == (2, 2, 2)
