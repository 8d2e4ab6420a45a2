"""Watch over job classes that use little of their GPUs: events, and holds where the policy wants them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

import structlog

from provisioner.controller.clock import Clock
from provisioner.controller.polling import fault_of, within
from provisioner.formatting import excerpt
from provisioner.interfaces import SupportsHold
from provisioner.model import DroneType, LowUseAction, LowUsePolicy, OverlayView
from provisioner.store import Store, StoreError
from provisioner.usage import MeasuredUse, class_name, describe_use, low_use, usage_report

log = structlog.get_logger()

WATCH_EVERY_S = 600.0
HOLD_DEADLINE_S = 20.0
HOLD_REASON = "low GPU use"  # begins the reason of each hold
REMEDY = "Ask for a share of a GPU (+GpuMilli) or use more of it; condor_release lets these jobs run as they are"


@dataclass(slots=True)
class LowUseWatch:
    """Call :meth:`turn` between ticks."""

    overlay: object
    store: Store
    clock: Clock
    event: Callable[..., Awaitable[None]]
    """:meth:`Controller.event <provisioner.controller.loop.Controller.event>`: logs and records."""
    _next_at: float = 0.0
    _known: frozenset[str] = frozenset()

    async def turn(self, policy: LowUsePolicy, types: Collection[DroneType], view: OverlayView | None) -> None:
        """Report the classes whose use has become low and, with ``hold``, hold the idle jobs of all of them."""
        now = self.clock.now()
        if policy.action is LowUseAction.NONE or now < self._next_at:
            return
        self._next_at, since = now + WATCH_EVERY_S, now - policy.window_s
        try:
            drones, runs = await self.store.runs(since)
        except StoreError as error:
            log.error("gpus.read_failed", message=str(error))
            return
        low = low_use(usage_report(drones, runs, types, since, now), policy)
        for each in low:
            if each.name not in self._known:
                await self.event("gpus.underused", warn=True, job_class=each.name, why=describe_use(each))
        self._known = frozenset(each.name for each in low)
        if policy.action is LowUseAction.HOLD and view is not None:
            await self._hold(low, view)

    async def _hold(self, low: Sequence[MeasuredUse], view: OverlayView) -> None:
        by_name, overlay = {each.name: each for each in low}, self.overlay
        for jobs in view.classes:
            use = by_name.get(class_name(jobs))
            if use is None or not jobs.waiting + jobs.fresh:
                continue
            if not isinstance(overlay, SupportsHold):
                await self.event("jobs.hold_failed", warn=True, why="this overlay cannot hold jobs")
                return
            reason = f"{HOLD_REASON}: {describe_use(use)}. {REMEDY}"
            try:
                held = await within(HOLD_DEADLINE_S, overlay.hold(jobs, reason))
            except Exception as error:  # as of any call of an adapter
                why = excerpt(fault_of(error, self.clock.now()).message)
                await self.event("jobs.hold_failed", warn=True, job_class=use.name, why=why)
                return
            if held:
                await self.event("jobs.held", job_class=use.name, jobs=held, why=reason)
