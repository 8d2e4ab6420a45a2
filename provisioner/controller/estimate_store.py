"""Estimates and completed jobs on record: read at the start, written regularly, forgotten where an operator asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import structlog

from provisioner.controller.clock import Clock
from provisioner.controller.estimation import EstimateCollector
from provisioner.model import CompletedJob, OverlayView
from provisioner.store import EstimateReset, Store, StoreError

log = structlog.get_logger()

KEEP_EVERY_S = 600.0
"""A crash loses what was learned since: at most so much."""
ASK_EVERY_S = 60.0
"""Interval at which requests to forget are read."""


@dataclass(slots=True)
class EstimateStore:
    """The estimates on record: read at the start, written regularly, and forgotten where an operator asks.

    Call :meth:`begin` before the first tick, :meth:`turn` between ticks, :meth:`end` after the last. A store that fails
    is reported; it ends nothing.
    """

    estimation: EstimateCollector
    store: Store
    clock: Clock
    event: Callable[..., Awaitable[None]]
    """:meth:`Controller.event <provisioner.controller.loop.Controller.event>`: logs and records."""
    _kept_at: float = 0.0
    _asked_at: float = 0.0
    _spares: bool = False
    """The recorded samples could not be read: they can be restored until the next write."""
    _forgot: dict[int, EstimateReset] = field(default_factory=dict)
    """Forgotten here, and still on record as to be forgotten: what is learned anew meanwhile is not forgotten again."""

    async def begin(self, waiting_cost: float) -> None:
        """Restore the estimates of an earlier controller."""
        now = self._kept_at = self.clock.now()
        try:
            known = await self.store.estimate_samples()
        except StoreError as error:
            self._spares = True
            await self.event("estimates.reset", warn=True, message=str(error)[:2000])
        else:
            if known is not None:
                self.estimation.recall(known, now, waiting_cost)
                away_s = round(max(0.0, now - known.at))
                log.info("estimates.restored", run_times=len(known.runs), sites=len(known.sites), away_s=away_s)
        await self._forget()

    async def turn(self) -> None:
        """Write and forget what is due."""
        now = self.clock.now()
        if now - self._asked_at >= ASK_EVERY_S:
            await self._forget()
        if now - self._kept_at >= KEEP_EVERY_S:
            await self._keep()

    async def end(self) -> None:
        """Write the estimates a last time."""
        if not self._spares:
            await self._keep()

    async def _forget(self) -> None:
        self._asked_at = self.clock.now()
        try:
            asked = await self.store.estimate_resets()
        except StoreError as error:
            log.error("estimates.forget_failed", message=str(error))
            return
        for each in asked:
            if each.id not in self._forgot:
                self.estimation.forget(each.what)
                self._forgot[each.id] = each
        if self._forgot and not self._spares:
            await self._keep()

    async def _keep(self) -> None:
        """Record the estimates and the requests to forget that are carried out. A failure is tried again later."""
        now = self._kept_at = self.clock.now()
        try:
            await self.store.record_estimates(self.estimation.samples(now), tuple(self._forgot))
        except StoreError as error:
            log.error("estimates.write_failed", message=str(error))
            return
        self._spares, forgot, self._forgot = False, self._forgot, {}
        for each in forgot.values():
            await self.event("estimates.forgotten", what=each.what, by=each.by, reason=each.reason)


@dataclass(slots=True)
class CompletedJobRecorder:
    """Completed jobs, recorded once each: the overlay reports every one in many polls.

    After a restart all reported jobs are offered to the store again: it knows those that it has.
    """

    _recorded: Mapping[tuple[str, float], CompletedJob] = field(default_factory=dict)
    """By job and end. Those that are not reported any more are dropped, which bounds it."""
    _seen: tuple[CompletedJob, ...] = ()

    async def keep(self, store: Store, view: OverlayView | None) -> None:
        """Record the new jobs of a poll. A write that fails is tried again at the next tick."""
        told = view.completions if view is not None else None
        if told is None or told == self._seen:
            return
        known = {(each.job_id, each.ended_at): each for each in told}
        new = [each for key, each in known.items() if key not in self._recorded]
        if new:
            try:
                await store.record_completed(new)
            except StoreError as error:
                log.error("completed_jobs.write_failed", message=str(error), jobs=len(new))
                return
        self._recorded, self._seen = known, told
