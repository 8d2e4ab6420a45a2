"""The record as the service reads it: in a few threads, the same answer once for all who ask."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple, TypeVar

from provisioner.store.reader import Reader, RecordPosition

READ_THREADS = 4
MOST_WAITING_READS = 200
"""More reads at once are refused: each would only wait for those before it."""
ANSWER_KEPT_S = 2.0
"""An answer is given again for so long, if nothing new is on record: its ages are as much too small."""
MOST_ANSWERS_KEPT = 32
STALE_STEP_S = 30.0
"""Without anything new on record its version changes this often: what is said of old views changes with their age."""


class TooManyReadsError(Exception):
    """Too many reads are waiting."""


class Answered(NamedTuple):
    """Answer in the form that was asked for."""

    body: bytes
    content_type: str
    scope: str = ""
    """Line for people about what is and is not in it."""
    more: str = ""
    """Cursor of the rows that a limit left out; empty: none."""


T = TypeVar("T")


class SharedRecord:
    """A :class:`Reader` for many callers at once."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._pool = ThreadPoolExecutor(READ_THREADS, "record")
        self._waiting = 0
        self._answers: OrderedDict[str, tuple[str, float, asyncio.Future[Answered]]] = OrderedDict()
        self._holder: tuple[float, int] = (0.0, 0)
        self._position: tuple[RecordPosition | None, float] = (None, 0.0)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in a thread. Raises :class:`TooManyReadsError` if too many calls wait."""
        if self._waiting >= MOST_WAITING_READS:
            raise TooManyReadsError
        self._waiting += 1
        try:
            call = partial(copy_context().run, function, *args)
            return await asyncio.get_running_loop().run_in_executor(self._pool, call)
        finally:
            self._waiting -= 1

    async def version(self) -> str:
        """Return a text that differs when an answer may differ in more than its ages."""
        return await self.run(self._version)

    def _version(self) -> str:
        now = time.monotonic()
        position, (known, since) = self.reader.position(), self._position
        if position != known:
            self._position = position, (since := now)
        if now - self._holder[0] > 1.0:  # it locks the record's lock file for a moment
            holder = self.reader.holder()
            self._holder = now, holder.pid if holder else 0
        return "-".join(map(str, (*position, self._holder[1], int(max(0.0, now - since) // STALE_STEP_S))))

    async def answer(self, key: str, version: str, make: Callable[[], Answered]) -> Answered:
        """Return the answer of ``make``, or one for the same key and version that is not old."""
        known_version, made_at, future = self._answers.get(key, ("", 0.0, None))
        old = time.monotonic() - made_at > ANSWER_KEPT_S
        if future is None or known_version != version or (future.done() and old):
            future = asyncio.ensure_future(self.run(make))
            self._answers[key] = version, time.monotonic(), future
            self._answers.move_to_end(key)
            while len(self._answers) > MOST_ANSWERS_KEPT:
                self._answers.popitem(last=False)
        try:
            return await asyncio.shield(future)
        except BaseException:
            if future.done() and self._answers.get(key, (None, None, None))[2] is future:
                del self._answers[key]
            raise
