"""Watch over job classes that use little of their GPUs."""

from __future__ import annotations

import asyncio

import structlog

from provisioner.controller.clock import Clock
from provisioner.controller.journal import EventWriter
from provisioner.controller.periodic import WorkContext
from provisioner.controller.polling import fault_of
from provisioner.formatting import excerpt
from provisioner.model import LowUseAction
from provisioner.store import Store
from provisioner.usage import describe_use, low_use, usage_report
from provisioner.values import define

log = structlog.get_logger()

WATCH_EVERY_S = 600.0


@define
class LowUseWatch:
    """Call :meth:`turn` between ticks."""

    store: Store
    clock: Clock
    event: EventWriter
    _next_at: float = 0.0
    _known: frozenset[str] = frozenset()

    async def turn(self, work: WorkContext) -> None:
        """Report the classes whose use has become low."""
        now = self.clock.now()
        policy = work.policy.low_use
        if policy.action is LowUseAction.NONE or now < self._next_at:
            return
        self._next_at = now + WATCH_EVERY_S
        since = now - policy.window_s
        try:
            runs = await self.store.use(since, now)
            low = low_use(
                await asyncio.to_thread(usage_report, runs, tuple(work.types), since, now), policy
            )
        except Exception as error:  # whatever is on record: this must not end the controller
            log.error("gpus.read_failed", message=excerpt(fault_of(error, now).message))
            return
        for each in low:
            if each.name not in self._known:
                await self.event(
                    "gpus.underused", warn=True, job_class=each.name, why=describe_use(each)
                )
        self._known = frozenset(each.name for each in low)
