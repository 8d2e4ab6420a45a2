"""Watch over job classes that use little of their GPUs: events, and holds where the policy wants them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from provisioner.controller.clock import Clock
from provisioner.controller.polling import fault_of, within
from provisioner.formatting import excerpt
from provisioner.interfaces import HoldResult, SupportsHold
from provisioner.model import DroneType, JobClass, LowUseAction, LowUsePolicy, OverlayView
from provisioner.store import Store
from provisioner.usage import MeasuredUse, class_name, describe_use, low_use, usage_report

log = structlog.get_logger()

WATCH_EVERY_S = 600.0
HOLD_DEADLINE_S = 20.0
HOLD_REASON = "low GPU use"  # begins the reason of each hold
SHARE_REMEDY = "Ask for a share of a GPU (+GpuMilli) or use more of it"
# where the type that would do has no shares
FEWER_REMEDY = "Ask for fewer GPUs or use more of them"
RELEASE = "condor_release lets these jobs run as they are"


class ClassHold(NamedTuple):
    """Hold of the idle jobs of a class."""

    name: str
    jobs: JobClass
    reason: str
    result: HoldResult = HoldResult()


@dataclass(slots=True)
class LowUseWatch:
    """Call :meth:`turn` between ticks. Holds are made by a task of their own, and reported at the turn after."""

    overlay: object
    store: Store
    clock: Clock
    event: Callable[..., Awaitable[None]]
    """:meth:`Controller.event <provisioner.controller.loop.Controller.event>`: logs and records."""
    _next_at: float = 0.0
    _known: frozenset[str] = frozenset()
    _holds: asyncio.Task[list[ClassHold]] | None = None

    async def turn(
        self,
        group: asyncio.TaskGroup,
        policy: LowUsePolicy,
        types: Collection[DroneType],
        view: OverlayView | None,
    ) -> None:
        """Report the classes whose use has become low and, with ``hold``, hold the idle jobs of all of them."""
        await self.report_holds()
        now = self.clock.now()
        if policy.action is LowUseAction.NONE or now < self._next_at:
            return
        self._next_at, since = now + WATCH_EVERY_S, now - policy.window_s
        try:
            runs = await self.store.use(since, now)
            low = low_use(
                await asyncio.to_thread(usage_report, runs, tuple(types), since, now), policy
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
        if policy.action is LowUseAction.HOLD and view is not None and self._holds is None:
            await self._begin_holds(group, low, types, view)

    async def report_holds(self) -> None:
        """Report the holds that are done: the jobs of each class, and each fault once."""
        if self._holds is None or not self._holds.done():
            return
        done, self._holds = self._holds.result(), None
        faults: dict[str, str] = {}
        for each in done:
            if each.result.jobs:
                await self.event(
                    "jobs.held", job_class=each.name, jobs=each.result.jobs, why=each.reason
                )
            faults = dict.fromkeys(each.result.faults, each.name) | faults
        for why, name in faults.items():
            await self.event("jobs.hold_failed", warn=True, job_class=name, why=excerpt(why))

    def close(self) -> None:
        """Break off the holds under way."""
        if self._holds is not None:
            self._holds.cancel()

    async def _begin_holds(
        self,
        group: asyncio.TaskGroup,
        low: Sequence[MeasuredUse],
        types: Collection[DroneType],
        view: OverlayView,
    ) -> None:
        """Begin to hold the idle jobs of the classes for which another type would save GPU-hours."""
        by_name, holds = {each.name: each for each in low if each.saved_s > 0}, list[ClassHold]()
        shared = {kind.key for kind in types if kind.shares > 1}
        for jobs in view.classes:
            use = by_name.get(class_name(jobs))
            if use is not None and jobs.waiting + jobs.fresh:
                remedy = SHARE_REMEDY if shared & use.fits.keys() else FEWER_REMEDY
                holds.append(
                    ClassHold(
                        use.name, jobs, f"{HOLD_REASON}: {describe_use(use)}. {remedy}; {RELEASE}"
                    )
                )
        if holds and not isinstance(self.overlay, SupportsHold):
            await self.event("jobs.hold_failed", warn=True, why="this overlay cannot hold jobs")
        elif holds and isinstance(self.overlay, SupportsHold):
            self._holds = group.create_task(self._hold_all(self.overlay, holds), name="hold-jobs")

    async def _hold_all(self, overlay: SupportsHold, holds: Sequence[ClassHold]) -> list[ClassHold]:
        """Hold the jobs of one class after the other. A class that fails does not keep the others from it."""
        done = []
        for each in holds:
            try:
                answer = await within(HOLD_DEADLINE_S, overlay.hold(each.jobs, each.reason))
                result = HoldResult(int(answer.jobs), tuple(map(str, answer.faults)))
            except Exception as error:  # as of any call of an adapter
                result = HoldResult(faults=(fault_of(error, self.clock.now()).message,))
            done.append(each._replace(result=result))
        return done
