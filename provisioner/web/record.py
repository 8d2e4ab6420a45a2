"""The record as the service reads it: in a few threads, the same answer once for all who ask."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from functools import partial
from html import escape
from threading import Lock
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakValueDictionary

from provisioner import formatting
from provisioner.answers.errors import VerbError
from provisioner.model import Slot, Snapshot
from provisioner.store import StoreError, StoreUnusableError, Views
from provisioner.store.database import Place, database_of
from provisioner.store.reader import Reader, RecordPosition

READ_THREADS = 2
GLANCE_THREADS = 2
VITAL_THREADS = 2
"""Threads for health, metrics and the status alone: nothing that callers choose waits there."""
RUNNING_OF_CALLER = 1
"""Reads of one caller that run at once, so that a thread is left for the others."""
MOST_WAITING_OF_CALLER = 50
MOST_WAITING_READS = 200
MOST_WAITING_GLANCES = 4000
"""More reads at once are refused: each would only wait for those before it. All clients of the
stream may come at once, as after a restart: a browser whose stream is refused does not try again.
"""
ANSWER_KEPT_S = 2.0
"""An answer is given again for so long, if nothing new is on record: its ages are as much too small."""
MOST_ANSWERS_KEPT = 64
BUSY_KEPT_S = 30.0
"""While all threads are busy, an answer of an older version is given again for so long."""
READER_SILENCE_S = 10.0
"""Time without an answer after which the record is away."""
PAGE_BEGIN = '<main id="main" tabindex="-1">'
LEAST_COMPRESSED = 1024
COMPRESSION_LEVEL = 3
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
    version: str = ""
    """Version of the record that it was made of."""
    zipped: bool = False
    """``body`` is compressed with gzip, as long ones are."""
    made_at: float = 0.0

    def with_notice(self, notice: str) -> Answered:
        """Return a page with a notice on top; other answers have no place for one."""
        if self.content_type != "text/html":
            return self
        body = gzip.decompress(self.body) if self.zipped else self.body
        text = f'{PAGE_BEGIN}<p class="badge bad">{escape(notice)}</p>'
        return self._replace(body=body.replace(PAGE_BEGIN.encode(), text.encode(), 1), zipped=False)

    def compressed(self) -> Answered:
        if len(self.body) <= LEAST_COMPRESSED:
            return self
        return self._replace(body=gzip.compress(self.body, COMPRESSION_LEVEL), zipped=True)


T = TypeVar("T")
CALLER_KEY: ContextVar[Hashable] = ContextVar("caller_key", default=None)
"""Caller that a read is for: their name, or where they come from."""


class SharedReader(Reader):
    """A reader that decodes the bulk of the record once for all answers: nobody may change what it returns."""

    def __init__(self, path: Place) -> None:
        super().__init__(path)
        self.database = database_of(path, READER_SILENCE_S)
        self._kept: dict[object, tuple[RecordPosition, Any]] = {}
        self._locks: defaultdict[object, Lock] = defaultdict(Lock)

    def _once(self, key: object, read: Callable[[], T]) -> T:
        """Return what ``read`` returned since the record changed; one thread reads, others wait for it."""
        with self._locks[key]:
            position = self.position()
            kept = self._kept.get(key)
            if kept is not None and kept[0] == position:
                return cast(T, kept[1])
            # gone before the new one is there: with 10,000 drones each takes 10 to 40 MiB
            del kept
            self._kept.pop(key, None)
            found = read()
            self._kept[key] = position, found
            return found

    def views(self) -> Views | None:
        return self._once("views", super().views)

    def slots(self) -> tuple[Slot, ...]:
        snapshot = self.snapshot()
        view = snapshot.overlay.view if snapshot else None
        return view.slots if view else ()

    def snapshot(self, tick: int | None = None) -> Snapshot | None:
        if tick is not None:
            return super().snapshot(tick)
        return self._once("snapshot", super().snapshot)


class SharedRecord:
    """A :class:`Reader` for many callers at once."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._pool = ThreadPoolExecutor(READ_THREADS, "record")
        self._glances = ThreadPoolExecutor(GLANCE_THREADS, "glance")
        self._vital = ThreadPoolExecutor(VITAL_THREADS, "vital")
        self._waiting: Counter[object] = Counter()
        """Reads that wait or run, by threads, and those for long reads by caller."""
        self._turns: WeakValueDictionary[object, asyncio.Semaphore] = WeakValueDictionary()
        self._answers: OrderedDict[str, tuple[str, float, asyncio.Future[Answered]]] = OrderedDict()
        self.newest: OrderedDict[str, Answered] = OrderedDict()
        """The newest answer for each key, should the database go away."""
        self._read_at = time.time()
        self._away: tuple[float, str] = (0.0, "")
        """Time until which the record is not asked, for as long as the last try took, and why."""
        self._holder: tuple[float, int] = (0.0, 0)
        self._position: tuple[RecordPosition | None, float] = (None, 0.0)

    def close(self) -> None:
        for pool in (self._pool, self._glances, self._vital):
            pool.shutdown(wait=False, cancel_futures=True)

    @property
    def _busy(self) -> bool:
        return self._waiting[self._pool] >= READ_THREADS

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in a thread. Raises :class:`TooManyReadsError` if too many calls, or of a caller, wait."""
        caller = CALLER_KEY.get()
        if self._waiting[caller] >= MOST_WAITING_OF_CALLER:
            raise TooManyReadsError
        self._waiting[caller] += 1
        try:
            return await self._run(self._pool, MOST_WAITING_READS, function, *args)
        finally:
            self._waiting[caller] -= 1
            self._waiting += Counter()  # without those that are 0

    async def glance(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function that takes milliseconds, which does not wait for longer ones; else as :meth:`run`."""
        return await self._run(self._glances, MOST_WAITING_GLANCES, function, *args)

    async def _run(
        self, pool: ThreadPoolExecutor, most: int, function: Callable[..., T], *args: Any
    ) -> T:
        if self._waiting[pool] >= most:
            raise TooManyReadsError
        self._waiting[pool] += 1
        try:
            async with self._turns.setdefault(
                (pool, CALLER_KEY.get()), asyncio.Semaphore(RUNNING_OF_CALLER)
            ):
                return await self._call(pool, function, *args)
        finally:
            self._waiting[pool] -= 1

    async def _call(self, pool: ThreadPoolExecutor, function: Callable[..., T], *args: Any) -> T:
        call = partial(copy_context().run, function, *args)
        return await asyncio.get_running_loop().run_in_executor(pool, call)

    async def version(self, *, vital: bool = False) -> str:
        """Return a text that differs when an answer may differ in more than its ages."""
        return await (
            self._call(self._vital, self._version) if vital else self.glance(self._version)
        )

    def _version(self) -> str:
        now = time.monotonic()
        until, why = self._away
        if now < until:
            raise StoreUnusableError(why)
        try:
            position = self.reader.position()
        except StoreError as error:
            age = formatting.age(time.time() - self._read_at)
            why = f"{error}. The record was last read {age} ago, at {formatting.iso(self._read_at)}"
            failed_at = time.monotonic()
            self._away = failed_at + (failed_at - now), why
            raise StoreUnusableError(why) from error
        self._read_at = time.time()
        known, since = self._position
        if position != known:
            self._position = position, (since := now)
        if now - self._holder[0] > 1.0:  # it locks the record's lock file for a moment
            holder = self.reader.holder()
            self._holder = now, holder.pid if holder else 0
        return "-".join(
            map(str, (*position, self._holder[1], int(max(0.0, now - since) // STALE_STEP_S)))
        )

    async def answer(
        self, key: str, version: str, make: Callable[[], Answered], *, vital: bool = False
    ) -> Answered:
        """Return the answer of ``make``, or one for the same key that is not old, of this version unless busy.

        ``vital``: it is one of few that all may ask for, and it does not wait for others.
        """
        known_version, made_at, future = self._answers.get(key, ("", 0.0, None))
        age_s = time.monotonic() - made_at
        made = future is not None and future.done()
        as_new = known_version == version and (not made or age_s <= ANSWER_KEPT_S)
        will_do = not made if vital else self._busy and (not made or age_s <= BUSY_KEPT_S)
        if future is None or not (as_new or will_do):
            call = partial(self._call, self._vital) if vital else self.run
            known_version = version
            future = asyncio.ensure_future(call(partial(_made, make)))
            self._answers[key] = version, time.monotonic(), future
        self._answers.move_to_end(key)
        while len(self._answers) > MOST_ANSWERS_KEPT:
            self._answers.popitem(last=False)
        try:
            self.newest[key] = (await asyncio.shield(future))._replace(version=known_version)
            self.newest.move_to_end(key)
            if len(self.newest) > MOST_ANSWERS_KEPT:
                self.newest.popitem(last=False)
            return self.newest[key]
        except VerbError:  # as good an answer as any: nothing has that id
            raise
        except BaseException:
            if future.done() and self._answers.get(key, (None, None, None))[2] is future:
                del self._answers[key]
            raise


def _made(make: Callable[[], Answered]) -> Answered:
    return make().compressed()._replace(made_at=time.time())
