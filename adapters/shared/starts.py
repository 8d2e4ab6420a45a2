"""Starts that run to their end although their caller gives up, and results of orders.

A submit that is cut off may have happened. So a caller that gives up only prevents orders that were
not sent yet, and an order without an answer keeps its drone from being started again until it would
have shown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable

from adapters.shared.printing import printable
from provisioner.interfaces import AdapterError, OutcomeUnknownError
from provisioner.model import DroneId, Fault, FaultKind, OrderOutcome, OrderResult, OrderResults


def done(drone_id: DroneId, remote_id: str = "") -> OrderResult:
    return OrderResult(drone_id, OrderOutcome.OK, remote_id)


def failed(drone_id: DroneId, error: AdapterError) -> OrderResult:
    """Return the result of an order that raised an error: unknown or rejected."""
    unknown = isinstance(error, OutcomeUnknownError)
    outcome = OrderOutcome.UNKNOWN if unknown else OrderOutcome.REJECTED
    return OrderResult(
        drone_id, outcome, "", Fault(error.kind, printable(str(error), 700), time.time())
    )


def rejected(drone_id: DroneId, kind: FaultKind, message: str) -> OrderResult:
    return OrderResult(
        drone_id, OrderOutcome.REJECTED, "", Fault(kind, printable(message, 300), time.time())
    )


def outcome_unknown(drone_id: DroneId, message: str) -> OrderResult:
    fault = Fault(FaultKind.UNKNOWN, printable(message, 300), time.time())
    return OrderResult(drone_id, OrderOutcome.UNKNOWN, "", fault)


class Starts:
    """Starts of one site, one call at a time. A start without an answer may still succeed for ``may_come_s``."""

    def __init__(self, site: str, may_come_s: float) -> None:
        self._site = site
        self._may_come_s = may_come_s
        self._turn = asyncio.Lock()
        self._under_way: dict[asyncio.Task[OrderResults], frozenset[DroneId]] = {}
        """With those whose caller has given up."""
        self._unanswered: dict[DroneId, float] = {}
        """Monotonic time from which on it cannot succeed any more."""

    async def run(
        self,
        drone_ids: Iterable[DroneId],
        work: Callable[[asyncio.Event], Awaitable[OrderResults]],
    ) -> OrderResults:
        """Run ``work`` in its turn, in a task of its own. It sends no more orders once its event is set."""
        given_up = asyncio.Event()

        async def in_turn() -> OrderResults:
            async with self._turn:
                return [] if given_up.is_set() else await work(given_up)

        task = asyncio.create_task(in_turn(), name=f"start at site {self._site}")
        self._under_way[task] = frozenset(drone_ids)
        task.add_done_callback(self._done)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            given_up.set()
            raise

    def _done(self, task: asyncio.Task[OrderResults]) -> None:
        self._under_way.pop(task, None)
        if not task.cancelled():
            task.exception()  # a caller that gave up does not ask for it

    async def settled(self, drone_ids: Collection[DroneId]) -> None:
        """Wait for starts of any of these drones: else one might come up after it was stopped."""
        if any(not each.isdisjoint(drone_ids) for each in self._under_way.values()):
            async with self._turn:
                pass

    async def close(self, timeout_s: float) -> None:
        """Wait for starts under way, for a limited time."""
        if self._under_way:
            _, left = await asyncio.wait(self._under_way, timeout=timeout_s)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def without_answer(self, drone_ids: Iterable[DroneId]) -> None:
        """Record that these starts may have succeeded."""
        now = time.monotonic()
        self._unanswered = {drone_id: at for drone_id, at in self._unanswered.items() if at > now}
        self._unanswered |= dict.fromkeys(drone_ids, now + self._may_come_s)

    def there(self, drone_ids: Iterable[DroneId]) -> None:
        """Record that these drones are listed."""
        for drone_id in drone_ids:
            self._unanswered.pop(drone_id, None)

    def may_come(self, drone_id: DroneId) -> bool:
        """Return whether an earlier start of it may still succeed."""
        return self._unanswered.get(drone_id, 0.0) > time.monotonic()
