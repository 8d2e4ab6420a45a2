"""Work beside the polls of a site, such as the deletion of what ended drones have left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from adapters.shared.printing import printable
from provisioner.interfaces import OBSERVING, AdapterError
from provisioner.worker_process import WorkerProcess

T = TypeVar("T")


async def side_by_side(calls: Iterable[Awaitable[T]], most: int) -> list[T]:
    """Await calls, ``most`` of them at a time, and return their results in order."""
    width = asyncio.Semaphore(most)

    async def one(call: Awaitable[T]) -> T:
        async with width:
            return await call

    return await asyncio.gather(*map(one, calls))


class Housekeeping:
    """Rounds of work between polls, one at a time.

    The first poll begins none: a caller that polls but once (``provisioner check``) changes
    nothing.
    """

    def __init__(self, site: str, parallel: int = 1) -> None:
        """``parallel``: tasks of a round that run at a time."""
        self._site = site
        self._parallel = parallel
        self._polled_before = False
        self._round: asyncio.Task[None] | None = None
        self.notices: tuple[str, ...] = ()
        """One line on the last task that failed in the newest round; empty if none did."""

    def begin(self, tasks: Callable[[], Iterable[Awaitable[None]]]) -> None:
        """Begin a round after a poll, unless one is under way. ``tasks`` returns its work.

        The polls of a standby begin none.
        """
        if OBSERVING.get():
            return
        if self._polled_before and (self._round is None or self._round.done()):
            self._round = asyncio.create_task(
                self._run(tasks), name=f"housekeeping of site {self._site}"
            )
        self._polled_before = True

    async def close(self) -> None:
        """Cancel the round under way. What it has not done is done after a later poll."""
        if self._round is not None:
            self._round.cancel()
            await asyncio.wait([self._round])

    async def _run(self, tasks: Callable[[], Iterable[Awaitable[None]]]) -> None:
        """Run the tasks, each by itself: a failure does not stop the others."""
        failures: list[str] = []

        async def attempt(task: Awaitable[None]) -> None:
            try:
                await task
            except AdapterError as error:  # then after the next poll
                failures.append(f"housekeeping: {error}")
            except Exception as error:  # a mistake of ours
                failures.append(f"housekeeping: {type(error).__name__}: {error}")

        await side_by_side(map(attempt, tasks()), self._parallel)
        self.notices = tuple(printable(line, 300) for line in failures[-1:])


async def close_all(workers: dict[str, WorkerProcess]) -> None:
    """End the children, and forget them."""
    closing = [worker.close() for worker in workers.values()]
    workers.clear()
    await asyncio.gather(*closing)
