"""Lines in the log: plans, changes of drones and breakers, and calls of the store that fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import structlog

from provisioner import formatting, reasons
from provisioner.descriptions import ClassNames
from provisioner.model import (
    Breaker,
    Breakers,
    BreakerState,
    DroneState,
    OverlayView,
    Plan,
    StateChange,
)
from provisioner.reasons import Reason
from provisioner.store import StoreError

log = structlog.get_logger()

T = TypeVar("T")


EventWriter = Callable[..., Awaitable[None]]
"""Logs and records an event: :meth:`Controller.event <provisioner.controller.loop.Controller.event>`."""


async def read_store(failed: str, call: Awaitable[T], otherwise: T) -> T:
    """Return the answer of the store; ``otherwise``, after the log event ``failed``, if it failed."""
    try:
        return await call
    except StoreError as error:
        log.error(failed, message=str(error))
        return otherwise


async def write_store(failed: str, call: Awaitable[None]) -> bool:
    """Await a write of the store. Return False, after the log event ``failed``, if it failed."""
    try:
        await call
    except StoreError as error:
        log.error(failed, message=str(error))
        return False
    return True


def log_plan(plan: Plan) -> None:
    for start in plan.starts:
        of = {"type": start.drone.type, "for_class": start.drone.for_class}
        log.info("drone.start_ordered", drone=start.drone.id, **of, **_why(start.reason))
    for drain in plan.drains:
        log.info(
            "drone.drain_ordered", drone=drain.drone.id, mode=drain.mode.value, **_why(drain.reason)
        )
    for stop in plan.stops:
        log.info("drone.stop_ordered", drone=stop.drone.id, kill=stop.kill, **_why(stop.reason))
    log_moves(plan.moves)
    if plan.acts or plan.moves:
        log.info(
            "tick.acted",
            tick=plan.tick,
            starts=len(plan.starts),
            drains=len(plan.drains),
            stops=len(plan.stops),
        )


_BAD_ENDS = frozenset({DroneState.FAILED, DroneState.LOST, DroneState.JOIN_TIMEOUT})


def log_moves(moves: Sequence[StateChange]) -> None:
    for move in moves:
        state = move.drone.state
        refused = isinstance(move.reason, reasons.OrderRefused)
        if state is move.was and not refused:
            continue
        tell = log.warning if refused or state in _BAD_ENDS else log.info
        tell(
            "drone.state_changed",
            drone=move.drone.id,
            was=str(move.was),
            state=str(state),
            **_why(move.reason),
        )


def log_breakers(
    before: Breakers, changed: Iterable[Breaker], view: OverlayView | None = None
) -> None:
    """Log the breakers whose state has changed. ``view``: of the overlay, which names the job classes."""
    names = ClassNames(view)
    for breaker in changed:
        was = before[breaker.scope].state if breaker.scope in before else BreakerState.ACTIVE
        if breaker.state is was:
            continue
        banned = breaker.state is BreakerState.BANNED
        more = {"until": formatting.iso(breaker.until)} if banned else {}
        if breaker.fault:
            more |= {
                "fault": breaker.fault.kind.value,
                "why": formatting.excerpt(breaker.fault.message),
            }
        tell = log.warning if banned else log.info
        if breaker.scope.class_id:
            more["job_class"] = names.of(breaker.scope.class_id)
        scope = names.in_key(str(breaker.scope))
        tell("breaker.changed", scope=scope, was=was.value, state=breaker.state.value, **more)


def _why(reason: Reason) -> dict[str, str]:
    return {"reason": reason.kind, "why": reason.describe()}
