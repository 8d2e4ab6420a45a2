"""Recovery of ended runs that no poll has shown, after an outage of the controller or of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from math import inf

import structlog

from provisioner.controller.clock import Clock
from provisioner.controller.journal import EventWriter, write_store
from provisioner.controller.periodic import WorkContext
from provisioner.controller.polling import fault_of
from provisioner.controller.sanitize import Sanitizer
from provisioner.formatting import excerpt
from provisioner.interfaces import SupportsPastRuns
from provisioner.model import OverlayView
from provisioner.store import Store
from provisioner.values import define, factory

log = structlog.get_logger()

GAP_S = 600.0
"""Runs of a shorter gap are in the next poll: those of a quarter of an hour are."""
BEFORE_S = 900.0
"""A queue may report a run so long after its end."""
LONGEST_S = 7 * 86400.0
AGAIN_S = 300.0
RUNS_AT_ONCE = 1000
"""Written at once, so that no tick waits for all."""


@define
class PastRuns:
    """Call :meth:`turn` between ticks, and :meth:`begin` before the first one."""

    store: Store
    clock: Clock
    event: EventWriter
    _read_at: float = 0.0
    """Time up to which the runs are known; 0: a new record."""
    _silent: Mapping[str, float] = factory(dict)
    """Queues that do not answer, with the time up to which their runs are known."""
    _since: float | None = None
    """Begin of the time whose runs are missing."""
    _again_at: float = 0.0
    _task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._read_at = self.store.committed.recorded_at

    async def turn(self, work: WorkContext) -> None:
        """Begin a recovery if runs are missing and none is under way."""
        view = work.view
        if view is None or view.completions is None:
            return
        at = view.completions_at or view.taken_at
        self._note_gaps(view, at)
        now = self.clock.now()
        idle = self._task is None or self._task.done()
        if isinstance(work.overlay, SupportsPastRuns) and idle and now >= self._again_at:
            since, self._since = self._since, None
            if since is not None:
                since = max(since - BEFORE_S, now - LONGEST_S)
                recovery = self._recover(work.overlay, since)
                self._task = work.group.create_task(recovery, name="past-runs")

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _note_gaps(self, view: OverlayView, at: float) -> None:
        known = self._read_at
        missing = [self._since] if self._since is not None else []
        if known and at - known > GAP_S:
            missing.append(known)
        missing += [since for name, since in self._silent.items() if name not in view.unheard]
        self._since = min(missing, default=None)
        self._silent = {name: self._silent.get(name, known or at) for name in view.unheard}
        self._read_at = at

    async def _recover(self, overlay: SupportsPastRuns, since: float) -> None:
        drift_s = self.clock.drift_s()
        began = self.clock.now()
        try:
            runs, notices = await overlay.past_runs(since + drift_s)
        except Exception as error:  # whatever the pool answers: this must not end the controller
            log.error("past_runs.read_failed", message=excerpt(fault_of(error, began).message))
            self._retry(since)
            return
        view = OverlayView(began, (), (), completions=tuple(runs), notices=tuple(notices))
        sound = Sanitizer().sanitized(view, began, drift_s)
        for notice in sound.notices:
            log.warning("past_runs.incomplete", message=notice)
        found = sound.completions or ()
        for start in range(0, len(found), RUNS_AT_ONCE):
            some = found[start : start + RUNS_AT_ONCE]
            if not await write_store(
                "completed_jobs.write_failed", self.store.record_completed(some)
            ):
                self._retry(since)
                return
        hours = round((began - since) / 3600, 1)
        await self.event("past_runs.recovered", runs=len(found), hours=hours)

    def _retry(self, since: float) -> None:
        self._since = min(since + BEFORE_S, self._since or inf)
        self._again_at = self.clock.now() + AGAIN_S
