"""Runs that ended while the controller was off, or a schedd did not answer, are read from histories once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from provisioner.controller.past_runs import AGAIN_S, BEFORE_S, LONGEST_S, PastRuns
from provisioner.interfaces import UnavailableError
from provisioner.model import CompletedJob, OverlayView
from tests.controller.world import work
from tests.store.story import DONE, TemporaryStore, drone, record, starts

HOUR = 3600.0
STOPPED_AT = 100.0
"""Time of the last tick on record."""


@dataclass
class Pool:
    """A recovery over a real store, and a pool with histories that may be silent."""

    runs: tuple[CompletedJob, ...] = ()
    notices: tuple[str, ...] = ()
    answers: bool = True
    at: float = STOPPED_AT
    drift: float = 0.0
    asked: list[float] = field(default_factory=list)
    events: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    async def begin(self) -> Pool:
        self.store = TemporaryStore(keep_s=1e12)
        await record(self.store, starts(1, drone(1), at=STOPPED_AT))
        self.recovery = PastRuns(self.store, self, self.event)  # type: ignore[arg-type]
        self.recovery.begin()
        return self

    def now(self) -> float:
        return self.at

    def drift_s(self) -> float:
        return self.drift

    async def event(self, name: str, **fields: object) -> None:
        self.events.append((name, fields))

    async def past_runs(self, since: float) -> tuple[Sequence[CompletedJob], Sequence[str]]:
        self.asked.append(since)
        if not self.answers:
            raise UnavailableError("no schedd answers")
        return [run for run in self.runs if run.ended_at > since], self.notices

    async def turn(self, at: float, **of_view: object) -> list[str]:
        """Take a turn with a view of this time. Return the ids of all runs on record."""
        self.at = at
        view = OverlayView(at, (), (), completions=(), completions_at=at)
        async with asyncio.TaskGroup() as group:
            context = work(group, overlay=self, view=replace(view, **of_view))  # type: ignore[arg-type]
            await self.recovery.turn(context)
        return [run.job_id for run in self.store.reader().completions(0.0, 1e12)]


def run(job: str, ended_at: float) -> CompletedJob:
    return replace(DONE, job_id=job, ended_at=ended_at, submitted_at=ended_at - 50)


async def test_runs_of_an_outage_are_recorded_once() -> None:
    pool = await Pool(runs=(run("s#1.0", 2 * HOUR), run("s#2.0", 5 * HOUR))).begin()
    assert await pool.turn(9 * HOUR) == ["s#1.0", "s#2.0"]
    assert pool.asked == [STOPPED_AT - BEFORE_S]
    assert [name for name, _ in pool.events] == ["past_runs.recovered"]
    assert pool.events[0][1]["runs"] == 2
    await pool.turn(9 * HOUR + 60)
    assert len(pool.asked) == 1


async def test_a_short_restart_reads_no_history_and_a_long_outage_no_more_than_a_week() -> None:
    pool = await Pool().begin()
    await pool.turn(STOPPED_AT + 500)
    assert not pool.asked
    pool = await Pool().begin()
    await pool.turn(STOPPED_AT + 30 * 24 * HOUR)
    assert pool.asked == [pool.at - LONGEST_S]


async def test_a_recovery_that_failed_is_repeated_until_it_succeeds() -> None:
    pool = await Pool(runs=(run("s#1.0", 2 * HOUR),), answers=False).begin()
    assert not await pool.turn(9 * HOUR)
    await pool.turn(9 * HOUR + 60)
    assert len(pool.asked) == 1, "not at once"
    pool.answers = True
    assert await pool.turn(9 * HOUR + AGAIN_S) == ["s#1.0"]
    assert pool.asked == [STOPPED_AT - BEFORE_S] * 2


async def test_runs_of_a_schedd_that_was_silent_are_read_when_it_is_back() -> None:
    pool = await Pool(runs=(run("s#1.0", HOUR),)).begin()
    for at in range(1, 20):
        await pool.turn(STOPPED_AT + at * 500, unheard=("s",) if at > 2 else ())
    assert not pool.asked
    assert await pool.turn(STOPPED_AT + 20 * 500) == ["s#1.0"]
    assert pool.asked == [STOPPED_AT + 2 * 500 - BEFORE_S]


async def test_times_are_those_of_the_controllers_clock() -> None:
    pool = await Pool(runs=(run("s#1.0", 2 * HOUR),), drift=1800.0).begin()
    await pool.turn(9 * HOUR)
    assert pool.asked == [STOPPED_AT - BEFORE_S + 1800.0]
    [found] = pool.store.reader().completions(0.0, 1e12)
    assert found.ended_at == 2 * HOUR - 1800.0


async def test_a_view_without_completions_says_nothing() -> None:
    pool = await Pool().begin()
    await pool.turn(9 * HOUR, completions=None)
    assert not pool.asked
