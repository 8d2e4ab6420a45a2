"""Server-sent events: steps of drones and events of the controller, read once for all clients."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog
from aiohttp import web

from provisioner.cli import options as opt
from provisioner.cli import output as out
from provisioner.cli.status import EVENT_COLUMNS, Happening, StreamPosition, happenings
from provisioner.store import StoreError
from provisioner.store.reader import RecordPosition
from provisioner.web.record import SharedRecord, TooManyReadsError

log = structlog.get_logger()

POLL_S = 1.0
KEEP_ALIVE_S = 15.0
"""A comment is sent after such a silence, so that proxies keep the connection."""
WRITE_TIMEOUT_S = 30.0
"""A client that takes nothing for this long is cut off."""
QUEUE_LENGTH = 1000
"""So are clients that are further behind than this."""
MOST_CLIENTS = 2000
PAGE_LENGTH = 500
RETRY_MS = 2000

Message = tuple[Happening | None, bytes]
"""Text to send, and the happening that it tells; None: a new tick, which tells nothing else."""


def messages(record: SharedRecord, after: StreamPosition) -> list[tuple[Happening, bytes]]:
    """Return what happened after a position, at most a page of it, each with its text."""
    found = happenings(record.reader, 0.0, after, PAGE_LENGTH)
    rows = out.Listing("", EVENT_COLUMNS, found).plain()
    return [(h, _text(h, row)) for h, row in zip(found, rows, strict=True)]


def _text(happening: Happening, row: dict[str, out.Cell]) -> bytes:
    return f"id: {happening.position}\nevent: {happening.kind}\ndata: {out.dumps(row)}\n\n".encode()


class EventStream:
    """The stream of what happens, for any number of clients."""

    def __init__(self, record: SharedRecord) -> None:
        self._record = record
        self._position: StreamPosition | None = None
        """Newest position that clients were sent; None: nobody listens."""
        self._seen: RecordPosition | None = None
        self._clients: dict[asyncio.Queue[Message], asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Read the record for the clients until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            if not self._clients:
                self._position = self._seen = None
                continue
            with suppress(TooManyReadsError):
                try:
                    await self._poll()
                except StoreError as error:  # it may come again: a new version, a full disk
                    log.warning("stream.read_failed", why=str(error))

    async def _poll(self) -> None:
        newest = await self._record.glance(self._record.reader.position)
        if newest == self._seen:
            return
        self._position = position = self._position or StreamPosition(newest.step, newest.event)
        if newest.step < position.step or newest.event < position.event:  # another record is in its place
            await self.cut_off()
            return
        while found := await self._record.glance(messages, self._record, position):
            for message in found:
                self._send(message)
            self._position = position = found[-1][0].position
        if self._seen and newest.tick != self._seen.tick:  # without an id: it is not sent again
            self._send((None, f'event: tick\ndata: {{"tick":{newest.tick}}}\n\n'.encode()))
        self._seen = newest

    async def cut_off(self, *_: object) -> None:
        """End the stream of all clients: those that want to go on come again with their position."""
        for task in self._clients.values():
            task.cancel()
        self._clients.clear()
        self._position = self._seen = None

    async def _newest(self) -> StreamPosition:
        newest = await self._record.glance(self._record.reader.position)
        return StreamPosition(newest.step, newest.event)

    def _send(self, message: Message) -> None:
        for queue, task in list(self._clients.items()):
            try:
                queue.put_nowait(message)
            except asyncio.QueueFull:
                log.warning("stream.client_cut_off", behind=queue.qsize())
                del self._clients[queue]
                task.cancel()

    async def serve(self, request: web.Request, last_id: str) -> web.StreamResponse:
        """Send the stream from behind the position ``last_id``, or from now on, until the client leaves."""
        if len(self._clients) >= MOST_CLIENTS:
            raise web.HTTPServiceUnavailable(text="too many clients listen", headers={"Retry-After": "60"})
        wanted = opt.parsed(StreamPosition.parsed, "Last-Event-ID", last_id) if last_id else None
        newest = await self._newest()
        position = StreamPosition(*map(min, wanted, newest)) if wanted else newest  # it may be one of another record
        response = web.StreamResponse(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        response.content_type = "text/event-stream"
        task, queue = asyncio.current_task(), asyncio.Queue[Message](QUEUE_LENGTH)
        assert task is not None
        self._position = self._position or newest
        self._clients[queue] = task
        try:
            await response.prepare(request)
            await _write(response, f"retry: {RETRY_MS}\nid: {position}\n\n".encode())
            while page := await self._record.glance(messages, self._record, position):
                for happening, text in page:
                    await _write(response, text)
                    position = happening.position
            while True:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        told, text = await queue.get()
                except TimeoutError:
                    await _write(response, b": still here\n\n")
                    continue
                sent = told is not None and getattr(told.position, told.kind) <= getattr(position, told.kind)
                if not sent:
                    await _write(response, text)
        except (TimeoutError, ConnectionError, asyncio.CancelledError, StoreError, TooManyReadsError):
            if request.transport is not None:
                request.transport.abort()  # it may hold unsent data, which nobody takes
        finally:
            self._clients.pop(queue, None)
        return response


async def _write(response: web.StreamResponse, text: bytes) -> None:
    async with asyncio.timeout(WRITE_TIMEOUT_S):
        await response.write(text)
