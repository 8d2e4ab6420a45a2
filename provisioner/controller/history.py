"""Reading of the past of sites and pool, once, while too little has been measured; see :mod:`provisioner.history`.

Adapters read it from files and databases that can be slow and contain values that users wrote. So
each call is a task of its own with a deadline, a failure is only recorded as an event, and
impossible values are left out.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from statistics import fmean
from typing import NamedTuple

from provisioner import formatting
from provisioner.controller.clock import Clock
from provisioner.controller.estimation import EstimateCollector
from provisioner.controller.journal import EventWriter
from provisioner.controller.periodic import WorkContext
from provisioner.controller.polling import fault_of, within
from provisioner.controller.sanitize import MAX_NUMBER
from provisioner.history import (
    HISTORY_S,
    MAX_HISTORY_ROWS,
    PastStart,
    RunHistoryView,
    SiteHistoryView,
)
from provisioner.interfaces import SupportsRunHistory, SupportsSiteHistory
from provisioner.model import CompletedJob, DroneType, Fault

HISTORY_DEADLINE_S = 60.0
FIRST_TICK_WAIT_S = 5.0
"""Longest time that the first tick waits for answers: without them it decides without any estimate."""
ASK_AGAIN_S = 3600.0
MAX_TRIES = 3
TOO_SLOW_S = 40.0
"""A call that fails after a longer time is not repeated: the next one would be as large a query."""
LONGEST_RUN_S = 366 * 86400.0
STARTS_KEPT = 200
"""Number of starts of each drone type that count: the newest."""


class HistoryCall(NamedTuple):
    """A call in progress."""

    asked_at: float
    adapter: object
    task: asyncio.Task[SiteHistoryView | RunHistoryView | Fault]


@dataclass(slots=True)
class HistoryLoader:
    """Reader of all histories: call :meth:`begin` before the first tick and :meth:`turn` between ticks."""

    estimation: EstimateCollector
    clock: Clock
    event: EventWriter
    _calls: dict[str, HistoryCall] = field(default_factory=dict)
    """Calls in progress by site, or "" for the pool."""
    _tries: Counter[str] = field(default_factory=Counter)
    _next_at: dict[str, float] = field(default_factory=dict)

    async def begin(
        self,
        work: WorkContext,
        stop: asyncio.Event,
    ) -> None:
        """Start the calls, and wait for answers up to :data:`FIRST_TICK_WAIT_S`, or until ``stop`` is set."""
        await self.turn(work)
        if self._calls:
            answers = asyncio.ensure_future(
                asyncio.wait([call.task for call in self._calls.values()])
            )
            stopped = asyncio.ensure_future(stop.wait())
            try:
                await asyncio.wait(
                    {answers, stopped},
                    timeout=FIRST_TICK_WAIT_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                answers.cancel()
                stopped.cancel()
            await self.turn(work)

    async def turn(self, work: WorkContext) -> None:
        """Add the answers that have arrived to the estimates, and start the calls that are due."""
        adapters: dict[str, object] = {"": work.overlay, **work.sites}
        for scope, call in list(self._calls.items()):
            # the site was removed, or has another configuration
            if adapters.get(scope) is not call.adapter:
                self._calls.pop(scope).task.cancel()
                self._next_at.pop(scope, None)
            elif call.task.done():
                await self._take_in(scope, self._calls.pop(scope), work.types)
        now = self.clock.now()
        for scope, adapter in adapters.items():
            if (
                now < self._next_at.get(scope, 0.0)
                or scope in self._calls
                or not self.estimation.wants_history(scope)
            ):
                continue
            self._tries[scope] += 1
            self._next_at[scope] = now + ASK_AGAIN_S if self._tries[scope] < MAX_TRIES else inf
            # or SupportsRunHistory, which has the same method
            if isinstance(adapter, SupportsSiteHistory):
                task = work.group.create_task(
                    self._ask(scope, adapter, now), name=f"history:{scope or 'overlay'}"
                )
                self._calls[scope] = HistoryCall(now, adapter, task)

    def close(self) -> None:
        """Cancel the calls in progress."""
        for call in self._calls.values():
            call.task.cancel()

    async def _ask(
        self, scope: str, adapter: SupportsSiteHistory | SupportsRunHistory, now: float
    ) -> SiteHistoryView | RunHistoryView | Fault:
        try:
            return await within(HISTORY_DEADLINE_S, adapter.history(now - HISTORY_S))
        except Exception as error:  # as of any call of an adapter
            if self.clock.now() - now >= TOO_SLOW_S:
                self._next_at[scope] = inf
            return fault_of(error, now)

    async def _take_in(self, scope: str, call: HistoryCall, types: Iterable[DroneType]) -> None:
        """Add an answer to the estimates, and report it. It is dropped if an operator had them forgotten meanwhile."""
        name, now, answer = scope or "overlay", self.clock.now(), call.task.result()
        if scope in self.estimation.histories or call.asked_at <= self.estimation.forgotten_at:
            self._next_at[scope] = inf
            return
        if isinstance(answer, Fault):
            again = (
                ""
                if self._next_at[scope] == inf
                else f"; the next attempt is in {formatting.age(ASK_AGAIN_S)}"
            )
            await self.event(
                "history.read_failed",
                warn=True,
                of=name,
                why=formatting.excerpt(answer.message) + again,
            )
            return
        self._next_at[scope] = inf
        if answer in (SiteHistoryView(), RunHistoryView()):
            return  # it has no records
        try:
            if isinstance(answer, RunHistoryView):
                self.estimation.learn_runs(
                    sane_runs(answer.runs, now), now, left_out=answer.left_out
                )
            else:
                queues = mean_queues(
                    scope, answer.starts, {kind.name for kind in types if kind.site == scope}, now
                )
                self.estimation.learn_site(
                    scope, held_at(answer, now), queues, now, left_out=answer.left_out
                )
        except Exception as error:  # values of types that an adapter should not return
            await self.event(
                "history.read_failed",
                warn=True,
                of=name,
                why=formatting.excerpt(fault_of(error, now).message),
            )
            return
        past = self.estimation.histories[scope]
        await self.event(
            "history.read",
            of=name,
            owner_s=round(past.use_s),
            types=len(past.queues),
            jobs=past.jobs,
            left_out=past.left_out,
        )


def held_at(past: SiteHistoryView, now: float) -> Callable[[float], int | None]:
    """Return the owner's use as a function of time, which returns None before the first known step."""
    sane = [step for step in past.owner_steps if 0 < step[0] <= now and 0 <= step[1] < MAX_NUMBER]
    steps = sorted(sane[-2 * MAX_HISTORY_ROWS - 1 :])
    times = [at for at, _ in steps]

    def held(at: float) -> int | None:
        n = bisect_right(times, at)
        return int(steps[n - 1][1]) if n else None

    return held


def mean_queues(
    site: str, starts: Iterable[PastStart], types: Collection[str], now: float
) -> Mapping[str, float]:
    """Return the mean queue times by type key, of the newest :data:`STARTS_KEPT` starts of each of these types."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    # names are from ads, which may hold anything
    ours = (each for each in starts if each.type in types)
    sane = (each for each in ours if 0 < each.started_at <= now and 0 <= each.queue_s <= HISTORY_S)
    for each in sorted(sane, key=lambda each: -each.started_at)[:MAX_HISTORY_ROWS]:
        if len(found[each.type]) < STARTS_KEPT:
            found[each.type].append(each.queue_s)
    return {f"{site}/{kind}": fmean(queues) for kind, queues in found.items()}


def sane_runs(jobs: Iterable[CompletedJob], now: float) -> list[CompletedJob]:
    """Return the completed jobs with possible times, oldest first."""
    sane = [
        each
        for each in jobs
        if not each.unfinished
        and 0 < each.run_s <= LONGEST_RUN_S
        and now - HISTORY_S <= each.ended_at <= now
    ]
    return sorted(sane, key=lambda each: each.ended_at)[-MAX_HISTORY_ROWS:]
