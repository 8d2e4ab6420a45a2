"""Changes to the record by a plan or by results of orders, computed once for every kind of store; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter

from provisioner.model import Breaker, Drone, DroneId, DroneState, OwnerClaimBackoff, Plan, Snapshot, StateChange
from provisioner.reasons import Reason
from provisioner.store import CommittedState, Transition


@dataclass(frozen=True, slots=True)
class RecordChange:
    """The last record of each drone concerned, and the transitions that led there, in order."""

    drones: Mapping[DroneId, Drone]
    transitions: tuple[Transition, ...]
    breakers: tuple[Breaker, ...]


def change_by_plan(plan: Plan) -> RecordChange:
    """Return the change that has to be recorded before ``plan`` is acted on."""
    written: list[tuple[Drone, DroneState | None, Reason]] = [
        (each.drone, each.was, each.reason) for each in plan.moves
    ]
    written += [(start.drone, None, start.reason) for start in plan.starts]
    written += [(drain.drone, drain.was, drain.reason) for drain in plan.drains]
    written += [(stop.drone, stop.was, stop.reason) for stop in plan.stops]
    return _change(written, plan.breakers, plan.tick)


def change_by_results(tick: int, moves: Sequence[StateChange], breakers: Sequence[Breaker]) -> RecordChange:
    """Return the change by the results of the orders of tick ``tick``."""
    return _change([(move.drone, move.was, move.reason) for move in moves], breakers, tick)


def _change(
    written: Iterable[tuple[Drone, DroneState | None, Reason]], breakers: Sequence[Breaker], tick: int
) -> RecordChange:
    drones: dict[DroneId, Drone] = {}
    transitions: list[Transition] = []
    for drone, was, reason in written:
        drones[drone.id] = drone
        if was is not drone.state:
            transitions.append(Transition(drone.id, drone.since, was, drone.state, reason, tick))
    return RecordChange(drones, tuple(transitions), tuple(breakers))


def state_after_plan(state: CommittedState, change: RecordChange, plan: Plan, snapshot: Snapshot) -> CommittedState:
    """Return the state once ``plan``, made of ``snapshot``, is committed with its ``change``."""
    after = state_after(state, change, plan.tick, snapshot.next_serial)
    return replace(after, recorded_at=plan.at, recorded_drift_s=snapshot.drift_s, patience=patience_of(plan))


def state_after(state: CommittedState, change: RecordChange, tick: int = 0, least_serial: int = 1) -> CommittedState:
    """Return the state once ``change`` is committed. Old states stay as they were: snapshots refer to them.

    ``least_serial`` is the first serial number that nobody uses, as far as the controller knows.
    """
    drones = state.drones
    if change.drones:
        drones = {**drones, **change.drones}
        for drone_id, drone in change.drones.items():
            if drone.state.ended:
                del drones[drone_id]
    breakers = state.breakers
    if change.breakers:
        breakers = {**breakers, **{breaker.scope: breaker for breaker in change.breakers}}
        for breaker in change.breakers:
            if breaker.forgotten:
                del breakers[breaker.scope]
    used = (serial_of(drone_id) for drone_id in change.drones)
    return replace(
        state,
        tick=max(tick, state.tick),
        next_serial=max(state.next_serial, least_serial, *(serial + 1 for serial in used if serial is not None)),
        drones=drones,
        breakers=breakers,
    )


def patience_of(plan: Plan) -> Mapping[str, OwnerClaimBackoff]:
    """Return the back-off of owners' claims that ``plan`` leaves for the next tick, by site."""
    return {each.site: each for each in plan.patience}


def serial_of(drone_id: str) -> int | None:
    """Return the serial number at the end of a drone id; None if it has none."""
    digits = drone_id.rpartition("-")[2]
    return int(digits) if len(digits) <= 18 and digits.isascii() and digits.isdecimal() else None


def without_refreshes(plan: Plan) -> Plan:
    """Return ``plan`` without moves that only refresh a drone's record."""
    moves = tuple(move for move in plan.moves if move.was is not move.drone.state)
    return plan if len(moves) == len(plan.moves) else replace(plan, moves=moves)


def repeats(plan: Plan, before: Plan | None) -> bool:
    """Return True if ``plan``, one tick later, equals ``before`` and does nothing."""
    return before is not None and not plan.acts and _content(plan) == _content(before)


_content = attrgetter(*(f.name for f in fields(Plan) if f.name not in ("tick", "at")))
