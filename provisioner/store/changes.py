"""What a plan or its receipts change on record, worked out once for every kind of store; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter

from provisioner.model import Breaker, Drone, DroneId, DroneState, OwnerClaimBackoff, Plan, StateChange
from provisioner.reasons import Reason
from provisioner.store import Transition

_Written = tuple[Drone, DroneState | None, Reason]


@dataclass(frozen=True, slots=True)
class Change:
    """The last record of each drone concerned, and the steps that led there, in order."""

    drones: Mapping[DroneId, Drone]
    steps: tuple[Transition, ...]
    breakers: tuple[Breaker, ...]


@dataclass(frozen=True, slots=True)
class Mirror:
    """What a store keeps in memory of its record: replaced whole after a commit, never changed in place."""

    tick: int = 0
    next_serial: int = 1
    drones: Mapping[DroneId, Drone] = field(default_factory=dict)
    """Recorded and not ended."""
    breakers: Mapping[str, Breaker] = field(default_factory=dict)
    at: float = 0.0
    """Time of the newest recorded tick, on the controller's clock; 0 before the first."""
    drift_s: float = 0.0
    """Lead of the host's wall clock over it, in seconds."""
    patience: Mapping[str, OwnerClaimBackoff] = field(default_factory=dict)
    """By site, as the newest plan left it."""


def remembered(plan: Plan) -> Mapping[str, OwnerClaimBackoff]:
    """Return what a plan leaves for the next tick to remember, by site."""
    return {each.site: each for each in plan.patience}


def planned(plan: Plan) -> Change:
    """What has to be on record before ``plan`` is acted on."""
    written: list[_Written] = [(move.drone, move.was, move.reason) for move in plan.moves]
    written += [(start.drone, None, start.reason) for start in plan.starts]
    written += [(drain.drone, drain.was, drain.reason) for drain in plan.drains]
    written += [(stop.drone, stop.was, stop.reason) for stop in plan.stops]
    return _change(written, plan.breakers, plan.tick)


def settled(tick: int, moves: Sequence[StateChange], breakers: Sequence[Breaker]) -> Change:
    """What the receipts of tick ``tick`` change."""
    return _change([(move.drone, move.was, move.reason) for move in moves], breakers, tick)


def _change(written: Iterable[_Written], breakers: Sequence[Breaker], tick: int) -> Change:
    drones: dict[DroneId, Drone] = {}
    steps: list[Transition] = []
    for drone, was, reason in written:
        drones[drone.id] = drone
        if was is not drone.state:
            steps.append(Transition(drone.id, drone.since, was, drone.state, reason, tick))
    return Change(drones, tuple(steps), tuple(breakers))


def after(mirror: Mirror, change: Change, tick: int, least_serial: int = 1) -> Mirror:
    """Return the mirror once ``change`` is committed. Old mirrors stay as they were: snapshots refer to them.

    ``least_serial``: what the controller has found to be the first serial number that nobody uses.
    """
    drones = mirror.drones
    if change.drones:
        drones = {**drones, **change.drones}
        for drone_id, drone in change.drones.items():
            if drone.state.ended:
                del drones[drone_id]
    breakers = mirror.breakers
    if change.breakers:
        breakers = {**breakers, **{breaker.scope: breaker for breaker in change.breakers}}
        for breaker in change.breakers:
            if breaker.forgotten:
                del breakers[breaker.scope]
    return replace(
        mirror,
        tick=max(tick, mirror.tick),
        next_serial=next_serial(max(mirror.next_serial, least_serial), change.drones),
        drones=drones,
        breakers=breakers,
    )


def next_serial(least: int, drone_ids: Iterable[DroneId]) -> int:
    """The first serial number beyond ``least`` and beyond those of ``drone_ids``."""
    return max((least, *(serial + 1 for drone_id in drone_ids if (serial := serial_of(drone_id)) is not None)))


def serial_of(drone_id: str) -> int | None:
    """The serial number at the end of a drone id; None if it has none."""
    digits = drone_id.rpartition("-")[2]
    return int(digits) if len(digits) <= 18 and digits.isascii() and digits.isdecimal() else None


def news(plan: Plan) -> Plan:
    """What a plan says that is worth keeping: without moves that only refresh a drone's record."""
    moves = tuple(move for move in plan.moves if move.was is not move.drone.state)
    return plan if len(moves) == len(plan.moves) else replace(plan, moves=moves)


def repeats(plan: Plan, before: Plan | None) -> bool:
    """Whether ``plan``, one tick later, says what ``before`` said. What acts is never a repetition."""
    return before is not None and not plan.acts and _said(plan) == _said(before)


_said = attrgetter(*(f.name for f in fields(Plan) if f.name not in ("tick", "at")))
