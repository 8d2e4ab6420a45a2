"""Server-sent events: steps of drones and events of the controller, read once for all clients."""

from __future__ import annotations

import asyncio
import time

import structlog
from aiohttp import web

from provisioner.answers.columns import Cell, Listing
from provisioner.answers.errors import parsed
from provisioner.answers.events import EVENT_COLUMNS, Happening, StreamPosition, happenings
from provisioner.answers.forms import dumps
from provisioner.store import StoreError
from provisioner.store.reader import RecordPosition
from provisioner.web.record import SharedRecord, TooManyReadsError

log = structlog.get_logger()

POLL_S = 1.0
KEEP_ALIVE_S = 15.0
"""A comment is sent after such a silence, so that proxies keep the connection."""
WRITE_TIMEOUT_S = 30.0
"""A client that takes nothing for this long is cut off."""
MOST_CLIENTS = 2000
PAGE_LENGTH = 500
RETRY_MS = 2000

Message = tuple[StreamPosition, bytes]
"""Text to send, and the position behind it."""


def messages(record: SharedRecord, after: StreamPosition) -> list[Message]:
    """Return what happened after a position, at most a page of it."""
    found = happenings(record.reader, 0.0, after, PAGE_LENGTH)
    rows = Listing("", EVENT_COLUMNS, found).plain()
    return [
        (happening.position, _text(happening, row))
        for happening, row in zip(found, rows, strict=True)
    ]


def _text(happening: Happening, row: dict[str, Cell]) -> bytes:
    return f"id: {happening.position}\nevent: {happening.kind}\ndata: {dumps(row)}\n\n".encode()


class EventStream:
    """The stream of what happens, for any number of clients.

    Each client reads the record from its own position on. Clients at the same position share one
    reading.
    """

    def __init__(self, record: SharedRecord) -> None:
        self._record = record
        self._seen: RecordPosition | None = None
        """Newest position of the record; None: nobody listens."""
        self._changed = asyncio.Event()
        self._failed = False
        self._pages: dict[StreamPosition, asyncio.Future[list[Message]]] = {}
        """Readings since the record changed, by the position after which they begin."""
        self._clients: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Wake the clients when the record has changed, until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            if not self._clients:
                self._seen = None
                continue
            try:
                newest = await self._record.glance(self._record.reader.position)
            except (StoreError, TooManyReadsError) as error:
                # it may come again: a new version, a full disk
                log.warning("stream.read_failed", why=str(error))
                continue
            seen = self._seen
            self._seen = newest
            # another record is in its place
            if seen and (newest.step < seen.step or newest.event < seen.event):
                await self.cut_off()
            if newest != seen or self._failed:
                self._failed = False
                self._pages.clear()
                self._changed.set()
                self._changed = asyncio.Event()

    async def cut_off(self, *_: object) -> None:
        """End the stream of all clients: those that want to go on come again with their position."""
        for task in self._clients:
            task.cancel()
        self._clients.clear()

    async def _page(self, after: StreamPosition) -> list[Message]:
        """Return the messages after a position; none if they cannot be read now."""
        if after not in self._pages:
            self._pages[after] = asyncio.ensure_future(
                self._record.glance(messages, self._record, after)
            )
        try:
            return await asyncio.shield(self._pages[after])
        except (StoreError, TooManyReadsError) as error:
            if not self._failed:
                log.warning("stream.read_failed", why=str(error))
            self._failed = True
            return []

    async def serve(self, request: web.Request, last_id: str, until: float) -> web.StreamResponse:
        """Send the stream from behind the position ``last_id``, or from now on.

        It ends when the client leaves, and at the time ``until``.
        """
        if len(self._clients) >= MOST_CLIENTS:
            raise web.HTTPServiceUnavailable(
                text="too many clients listen", headers={"Retry-After": "60"}
            )
        wanted = parsed(StreamPosition.parsed, "Last-Event-ID", last_id) if last_id else None
        newest = await self._record.glance(self._record.reader.position)
        position = StreamPosition(newest.step, newest.event)
        if wanted is not None:  # it may be one of another record
            position = StreamPosition(*map(min, wanted, position))
        response = web.StreamResponse(
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        response.content_type = "text/event-stream"
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            async with asyncio.timeout(until - time.time()):
                await response.prepare(request)
                await _write(response, f"retry: {RETRY_MS}\nid: {position}\n\n".encode())
                await self._send(response, position, newest.tick)
        except (TimeoutError, ConnectionError, asyncio.CancelledError):
            if request.transport is not None:
                request.transport.abort()  # it may hold unsent data, which nobody takes
        finally:
            self._clients.discard(task)
        return response

    async def _send(
        self, response: web.StreamResponse, position: StreamPosition, tick: int
    ) -> None:
        """Send what happens after a position and a tick, until cancelled."""
        while True:
            changed = self._changed
            while page := await self._page(position):
                for behind, text in page:
                    await _write(response, text)
                    position = behind
            if self._seen and self._seen.tick != tick:  # without an id: it is not sent again
                tick = self._seen.tick
                await _write(response, f'event: tick\ndata: {{"tick":{tick}}}\n\n'.encode())
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await changed.wait()
            except TimeoutError:
                await _write(response, b": still here\n\n")


async def _write(response: web.StreamResponse, text: bytes) -> None:
    async with asyncio.timeout(WRITE_TIMEOUT_S):
        await response.write(text)
