"""A copy of a collection of the API server, kept current by a list and a watch.

A poll reads the copy and calls nothing. How old the copy may be is known from what the server said
last: an event, a bookmark, or the beginning or end of a watch. A watch is short, so that a
connection that died in silence is noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from adapters.kubernetes.api import BusyError, ExpiredError, KubernetesApi, Query
from adapters.shared import http
from adapters.shared.json_records import Record, mapping, text
from provisioner.interfaces import AdapterError, UnavailableError

T = TypeVar("T")

_WATCH_S = (20, 35)
"""Length of one watch, drawn at random so that watches of many controllers do not begin together."""
_WATCH_PAUSE_S = 1.0
"""Longest pause between two watches, drawn at random: a server may end each of them at once."""
_ERROR_PAUSE_S = (0.2, 30.0)
"""First and longest pause after an error; each is drawn between half of it and all of it."""


class ResourceCache(Generic[T]):
    """Parsed objects of one collection by ``namespace/name``.

    ``parse`` is called for each object that is new or changed, ``gone``, if given, with the last
    state of each one that was deleted.
    """

    def __init__(
        self,
        api: KubernetesApi,
        path: str,
        parse: Callable[[Record], T],
        query: Query = (),
        gone: Callable[[T], None] | None = None,
    ) -> None:
        self._api = api
        self._path = path
        self._parse = parse
        self._query = query
        self._gone = gone
        self.items: dict[str, T] = {}
        self.heard_at = 0.0
        """Wall clock of the last sign that the copy is complete; 0 before the first list."""
        self.error: AdapterError | None = UnavailableError(
            "the API server has not answered the first list yet"
        )
        """The error since the last success; None after it."""
        self._version = ""
        self._newer: dict[str, tuple[int, T]] = {}
        """Objects of :meth:`add` that the watch has not reached, with their versions."""
        self._tried = asyncio.Event()
        """The first list has come or failed."""
        self._task: asyncio.Task[None] | None = None

    def begin(self, site: str) -> None:
        self._task = asyncio.create_task(
            self._follow(), name=f"watch of {self._path} at site {site}"
        )

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def current(self, deadline_s: float) -> Mapping[str, T]:
        """Return the copy, once the first list has come or failed. Raises what keeps it from being updated.

        A poll never hurries the task: during an outage the pauses between its tries are those of
        the back-off.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._tried.wait()
        if self.error is not None:
            raise type(self.error)(str(self.error), self.error.kind)
        return self._latest()

    def add(self, found: Record) -> None:
        """Include an object that a call has returned, until the watch reaches its version."""
        version = _number(text(found, "metadata", "resourceVersion"))
        self._newer[_key(found)] = version, self._parse(found)
        self._reach(self._version)

    def _latest(self) -> dict[str, T]:
        return {**self.items, **{key: each for key, (_, each) in self._newer.items()}}

    def _reach(self, version: str) -> None:
        self._version = version
        self._newer = {key: each for key, each in self._newer.items() if each[0] > _number(version)}

    async def _follow(self) -> None:
        pause_s = _ERROR_PAUSE_S[0]
        while True:
            wait_s = random.uniform(0.0, _WATCH_PAUSE_S)
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except ExpiredError:
                self._version = ""
            except Exception as error:  # whatever it is, the copy must not stay as it is for ever
                if self.error is None:
                    pause_s = _ERROR_PAUSE_S[0]
                self.error = (
                    error
                    if isinstance(error, AdapterError)
                    else UnavailableError(http.words_of(error))
                )
                self._tried.set()
                wait_s = random.uniform(pause_s / 2, pause_s)
                if isinstance(error, BusyError):
                    wait_s = max(wait_s, error.retry_after_s)
                pause_s = min(2 * pause_s, _ERROR_PAUSE_S[1])
            await asyncio.sleep(wait_s)

    async def _list(self) -> None:
        found, version = await self._api.pages(self._path, self._query)
        items = {_key(each): self._parse(each) for each in found}
        before = self._latest()
        self.items = items
        self._reach(version)
        for key in before.keys() - self._latest().keys():
            if self._gone is not None:
                self._gone(before[key])
        self._heard()

    async def _watch(self) -> None:
        """Apply the events of one watch."""
        events = self._api.watch(self._path, self._query, self._version, random.randint(*_WATCH_S))
        async for kind, found in events:
            if kind:
                newer = text(found, "metadata", "resourceVersion") or self._version
                self._version = ""  # a list follows if the event cannot be applied
                self._apply(kind, found)
                self._reach(newer)
            self._heard()
        self._heard()

    def _apply(self, kind: str, found: Record) -> None:
        key = _key(found)
        if kind in ("ADDED", "MODIFIED"):
            self.items[key] = self._parse(found)
        elif kind == "DELETED":
            self.items.pop(key, None)
            if self._gone is not None:
                self._gone(self._parse(found))

    def _heard(self) -> None:
        self.heard_at = time.time()
        self.error = None
        self._tried.set()


def _number(version: str) -> int:
    """Return a resource version as an integer: within one collection, a greater one is newer ("API Concepts")."""
    return int(version) if version.isdecimal() else 0


def _key(found: Record) -> str:
    meta = mapping(found, "metadata")
    return f"{text(meta, 'namespace')}/{text(meta, 'name')}"
