"""Slots that the pool still lists of drones that died without leaving it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog

from provisioner.controller.calls import fault_of, within
from provisioner.controller.clock import Clock
from provisioner.interfaces import SupportsForget
from provisioner.model import (
    DroneId,
    Fault,
    FaultKind,
    OrderOutcome,
    OrderResult,
    PolledOverlay,
    PolledSite,
    RemoteState,
    StateChange,
)
from provisioner.reasons import EndedAtSite, Preempted

log = structlog.get_logger()

DEADLINE_S = 30.0
ATTEMPTS = 3
AGAIN_S = 60.0
"""Pause after an attempt that failed."""
AT_ONCE = 50
"""Drones of one call."""
KEPT_S = 3600.0
"""After that a pool has forgotten the slot by itself."""
SAME_TIME_S = 2.0
"""Times of a pool are whole seconds, and its clock is known as exactly."""


@dataclass(frozen=True, slots=True)
class _Dead:
    """A drone that ended, by the controller's clock."""

    ended_at: float
    attempts: int = 0
    tried_at: float = 0.0


@dataclass(slots=True)
class DeadSlots:
    """Has an overlay remove slots of dead drones, in the background. Only a site's own word counts for a death: a drone
    that is merely missing in listings may live.

    Drones of an earlier life of the controller are not known here: the pool forgets their slots in time.
    """

    overlay: object
    clock: Clock
    _dead: dict[DroneId, _Dead] = field(default_factory=dict)
    _task: asyncio.Task[Sequence[OrderResult]] | None = None
    _failing: bool = False
    """The newest attempt failed, and that was reported."""

    def note(self, moves: Iterable[StateChange]) -> None:
        """Note the drones that ended, by a plan that is on record."""
        if not isinstance(self.overlay, SupportsForget):
            return
        for move in moves:
            drone = move.drone
            if drone.state.ended and isinstance(move.reason, EndedAtSite | Preempted):
                self._dead[drone.id] = _Dead(drone.ended_at)

    def turn(
        self,
        group: asyncio.TaskGroup,
        pool: PolledOverlay,
        sites: Iterable[PolledSite],
        live: Mapping[DroneId, object],
    ) -> None:
        """Begin to remove what is still listed, if nothing is under way."""
        if self._task is None and isinstance(self.overlay, SupportsForget) and (due := self._due(pool, sites, live)):
            self._task = group.create_task(self._removed(self.overlay, due), name="forget-drones")

    def answered(self) -> Fault | None:
        """Return the fault of an attempt that failed, once until one succeeds."""
        if self._task is None or not self._task.done():
            return None
        receipts, self._task = self._task.result(), None
        now, fault = self.clock.now(), None
        for receipt in receipts:
            dead = self._dead.pop(receipt.drone_id, None)
            if receipt.answer is OrderOutcome.OK or dead is None:
                continue
            fault = receipt.fault or Fault(FaultKind.UNKNOWN, "no reason given", now)
            if dead.attempts + 1 < ATTEMPTS:
                self._dead[receipt.drone_id] = replace(dead, attempts=dead.attempts + 1, tried_at=now)
        done = [receipt.drone_id for receipt in receipts if receipt.answer is OrderOutcome.OK]
        if done:
            log.info("slots.removed", drones=", ".join(done))
        known, self._failing = self._failing, fault is not None
        return None if known else fault

    def close(self) -> None:
        """Break off what is under way."""
        if self._task is not None:
            self._task.cancel()

    def _due(
        self, pool: PolledOverlay, sites: Iterable[PolledSite], live: Mapping[DroneId, object]
    ) -> Mapping[DroneId, float]:
        """Return the dead drones whose slots a look after their end shows, each with its end."""
        view, now = pool.view, self.clock.now()
        if not self._dead or view is None or pool.fault is not None:
            return {}
        heard_at = {slot.drone_id: slot.heard_at for slot in view.slots if slot.drone_id in self._dead}
        there = {
            drone.drone_id
            for reading in sites
            if reading.view is not None
            for drone in reading.view.drones.values()
            if drone.state is not RemoteState.ENDED
        }
        due: dict[DroneId, float] = {}
        for drone_id, dead in list(self._dead.items()):
            if view.taken_at <= dead.ended_at:
                continue
            alive = drone_id in live or drone_id in there
            heard = heard_at.get(drone_id)
            if alive or heard is None or heard > dead.ended_at + SAME_TIME_S or now - dead.ended_at > KEPT_S:
                del self._dead[drone_id]
            elif (not dead.attempts or now - dead.tried_at >= AGAIN_S) and len(due) < AT_ONCE:
                due[drone_id] = dead.ended_at
        return due

    async def _removed(self, overlay: SupportsForget, ended_at: Mapping[DroneId, float]) -> Sequence[OrderResult]:
        """Return one receipt for each drone, whatever happens."""
        drift_s = self.clock.drift_s()
        silence = Fault(FaultKind.UNKNOWN, "the adapter gave no receipt for it", self.clock.now())
        try:
            wall = {drone_id: at + drift_s for drone_id, at in ended_at.items()}
            answered = {r.drone_id: r for r in await within(DEADLINE_S, overlay.forget(wall))}
        except Exception as error:
            silence, answered = fault_of(error, self.clock.now()), {}
        return [answered.get(i) or OrderResult(i, OrderOutcome.UNKNOWN, fault=silence) for i in ended_at]
