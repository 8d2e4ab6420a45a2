"""Starts that nothing cuts in the middle: one call of a site at a time, each to its end, whoever still waits for it.

A submit that is cut has happened or not, and nobody knows. So a caller that gives up only keeps from being asked what
has not been asked yet, and what was asked without an answer keeps its drone from being asked for again until it would
have shown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from provisioner.model import DroneId, OrderResult

Work = Callable[[asyncio.Event], Awaitable[Sequence[OrderResult]]]
"""Starts drones. Once the event is set, its caller has given up: nothing more is to be asked for."""


class Starts:
    """Starts of one site. ``may_come_s``: time for which a start without an answer may still succeed."""

    def __init__(self, site: str, may_come_s: float) -> None:
        self._site, self._may_come_s = site, may_come_s
        self._turn = asyncio.Lock()
        self._under_way: dict[asyncio.Task[Sequence[OrderResult]], frozenset[DroneId]] = {}
        """Those too whose caller has given up."""
        self._unsure: dict[DroneId, float] = {}
        """Until when, by the steady clock."""

    async def run(self, drone_ids: Iterable[DroneId], work: Work) -> Sequence[OrderResult]:
        """``work`` in its turn, in a task of its own."""
        given_up = asyncio.Event()
        task = asyncio.create_task(self._in_turn(work, given_up), name=f"start at site {self._site}")
        self._under_way[task] = frozenset(drone_ids)
        task.add_done_callback(self._done)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            given_up.set()
            raise

    async def _in_turn(self, work: Work, given_up: asyncio.Event) -> Sequence[OrderResult]:
        async with self._turn:
            return [] if given_up.is_set() else await work(given_up)

    def _done(self, task: asyncio.Task[Sequence[OrderResult]]) -> None:
        self._under_way.pop(task, None)
        if not task.cancelled():
            task.exception()  # whoever gave up does not ask for it

    async def settled(self, drone_ids: Collection[DroneId]) -> None:
        """Wait for starts of any of these drones: else one might come up after it was stopped."""
        if any(not each.isdisjoint(drone_ids) for each in self._under_way.values()):
            async with self._turn:
                pass

    async def close(self, patience_s: float) -> None:
        """Wait for starts under way, for a limited time."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=patience_s)
        left = list(self._under_way)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    # ------------------------------------------------------------------------------------------ asked without an answer

    def without_answer(self, drone_ids: Iterable[DroneId]) -> None:
        """Nobody knows what came of asking for these."""
        now = time.monotonic()
        self._unsure = {drone_id: at for drone_id, at in self._unsure.items() if at > now}
        self._unsure |= dict.fromkeys(drone_ids, now + self._may_come_s)

    def there(self, drone_ids: Iterable[DroneId]) -> None:
        """Record that these drones are listed."""
        for drone_id in drone_ids:
            self._unsure.pop(drone_id, None)

    def may_come(self, drone_id: DroneId) -> bool:
        """Return whether an earlier start of it may still succeed."""
        return self._unsure.get(drone_id, 0.0) > time.monotonic()
