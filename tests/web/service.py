"""A small web service for the pages alone, and a browser that looks at it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files

from aiohttp import web

from provisioner.answers.errors import VerbError
from provisioner.store.reader import Reader
from provisioner.web.pages import render

POLICY = "default-src 'self'"


class PageService:
    """Serves the pages of a record on a free port of this host, each rendered in a thread."""

    def __init__(self, reader: Reader, port: int = 0) -> None:
        self.reader, self.port = reader, port
        self.streams: list[web.StreamResponse] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _page(self, request: web.Request) -> web.Response:
        headers = {"Content-Security-Policy": POLICY}
        try:
            text = await asyncio.to_thread(render, request.path, self.reader, dict(request.query))
        except VerbError as error:
            return web.Response(text=str(error), status=404, headers=headers)
        return web.Response(text=text, content_type="text/html", headers=headers)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        self.streams.append(answer)
        await self._closing.wait()
        return answer

    async def _tell(self, kind: str) -> None:
        for stream in self.streams:
            await stream.write(f"event: {kind}\ndata: {{}}\n\n".encode())

    async def _start(self) -> None:
        self._closing = asyncio.Event()
        app = web.Application()
        app.router.add_get("/api/v1/events/stream", self._stream)
        app.router.add_static("/static", str(files("provisioner.web") / "static"))
        app.router.add_get("/{path:.*}", self._page)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    def tell(self, kind: str) -> None:
        """Send an event to all who listen."""
        asyncio.run_coroutine_threadsafe(self._tell(kind), self._loop).result(10)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    async def _stop(self) -> None:
        self._closing.set()
        await self._runner.cleanup()

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@contextmanager
def serving(reader: Reader, port: int = 0) -> Iterator[PageService]:
    service = PageService(reader, port)
    service.start()
    try:
        yield service
    finally:
        service.stop()
