"""The witness of a run: planners that do what must not be done are found out, and owners and faults are told apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from provisioner.model import Drone, DroneState, Plan, Snapshot, Stop
from provisioner.planner import decide
from provisioner.reasons import Unneeded
from provisioner.simulator.world import START_EPOCH, Scenario
from tests.simulator.witness import Course, watched
from tests.simulator.worlds import calm


@dataclass(frozen=True)
class Spoiled:
    """The planner itself, but for the drones that it also asks to end: for a quarter of an hour,
    whenever it finds one that ``hates`` is true of. The checker that would refuse such plans is
    away."""

    hates: Callable[[Drone], bool]

    def __call__(self, snapshot: Snapshot) -> Plan:
        plan, now = decide(snapshot), snapshot.now
        after = {move.drone.id: move.drone for move in plan.moves}
        live = [after.get(drone.id, drone) for drone in snapshot.drones.values()]
        asked = {action.drone.id for action in plan.asks}
        stops = tuple(
            Stop(
                replace(
                    d,
                    state=DroneState.STOPPING,
                    since=now,
                    leaving=DroneState.CANCELLED,
                    asked_at=now,
                    asked=1,
                ),
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
    return replace(
        calm(), planner=lambda: Spoiled(hates), judge=lambda snapshot, plan: (), limit_s=2 * 3600.0
    )


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
    seen = watched(
        spoiled(
            lambda drone: drone.state in (DroneState.BOOTING, DroneState.JOINED, DroneState.IDLE)
        )
    )
    assert seen.outcome.jobs_done == 12
    (line,) = seen.violations
    assert "can be explained" in line
    assert seen.courses[Course.VAIN] > 12
