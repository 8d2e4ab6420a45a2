"""Watch over the clock: doubts about it, and the times on record when it is set."""

from __future__ import annotations

from dataclasses import replace

from provisioner import formatting, reasons
from provisioner.controller.clock import Clock
from provisioner.controller.journal import EventWriter, write_store
from provisioner.controller.periodic import WorkContext
from provisioner.model import DroneState, StateChange
from provisioner.planner.breakers import shift_breaker
from provisioner.planner.lifecycle import shift_drone
from provisioner.store import Store
from provisioner.values import define

CLOCK_ADVICE = (
    "Until this is resolved no record is deleted and no limit ends a drone. Set the clock (NTP) if it is wrong. If it "
    "is right, wait: the controller trusts it after an hour or as soon as NTP synchronizes it, and a clock behind "
    "the record at its next start."
)
MOVED_ADVICE = (
    "The controller did not run for this time, or the clock was wrong. The time does not count towards limits of "
    "drones. If the host's clock is wrong now, set it."
)
CLOCK_STEP_S = 30.0
"""A wall clock that is off by more is worth an event."""


@define
class ClockWatch:
    """Call :meth:`settle` at the start and before each tick."""

    clock: Clock
    store: Store
    event: EventWriter
    doubted: bool = False
    _stepped: bool = False

    async def settle(self, *, start: bool = False) -> None:
        """Set the clock where it is due, and report the begin and the end of a doubt."""
        by_s = self.clock.due_s()
        moved = await self._move_times(by_s, start=start) if by_s or start else False
        if by_s and moved:
            self.clock.settle()
            await self.event("clock.set", by_s=round(by_s, 1), advice=MOVED_ADVICE)
        if self.clock.doubted() is not self.doubted:
            self.doubted = not self.doubted
            drift_s = round(self.clock.drift_s(), 1)
            if self.doubted:
                await self.event("clock.doubted", warn=True, drift_s=drift_s, advice=CLOCK_ADVICE)
            else:
                await self.event("clock.trusted", drift_s=drift_s)

    async def _move_times(self, by_s: float, *, start: bool) -> bool:
        """Move the times on record with the clock. Return False if that cannot be recorded.

        The clock must not be set then: limits would pass, now or after a restart. At the ``start``
        an order whose result was not recorded gets none any more: ``order_confirm`` counts from
        now.
        """
        now = self.clock.now() + by_s
        moves = []
        for drone in self.store.drones.values():
            new = shift_drone(drone, by_s, now)
            if start and drone.state is DroneState.REQUESTED:
                new = replace(new, since=now)
            if new != drone:
                moves.append(StateChange(new, new.state, reasons.OutcomeUnknown("")))
        if not by_s and not moves:
            return True
        moved = [shift_breaker(each, by_s) for each in self.store.breakers.values()] if by_s else []
        results = self.store.record_results(
            self.store.tick, moves, moved, set_to=now if by_s else None
        )
        return await write_store("clock.set_failed", results)

    async def turn(self, work: WorkContext) -> None:
        """Report a clock that was set, and its end."""
        self.clock.now()  # notices a step since the begin of the tick, which may be one to doubt
        drift = self.clock.drift_s()
        doubted = self.doubted or self.clock.doubted()
        stepped = abs(drift) > CLOCK_STEP_S and not doubted
        if stepped is not self._stepped:
            self._stepped = stepped
            await self.event(
                "clock.stepped" if stepped else "clock.caught_up",
                warn=stepped,
                drift_s=round(drift, 1),
            )

    def notices(self) -> tuple[str, ...]:
        """Return the notice of a doubt."""
        if not self.doubted:
            return ()
        off = formatting.age(abs(self.clock.drift_s()))
        return (f"The host's clock differs from the record by {off}. {CLOCK_ADVICE}",)
