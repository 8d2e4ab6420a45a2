"""A web service on free ports and sockets, in the event loop of the test, over the record of the tests of verbs."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from provisioner.config.models import WebSection
from provisioner.web.record import SharedReader
from provisioner.web.serve import listen
from provisioner.web.server import WebService
from tests.cli.conftest import (
    _filled as _filled,
    _own_environment as _own_environment,
    cli as cli,
    on as on,
    record as record,
    running as running,
)
from tests.labs.ports import free_port as free_port

ME = pwd.getpwuid(os.geteuid()).pw_name
API = "/api/v1"


@dataclass(frozen=True)
class Answer:
    """Answer of the service."""

    status: int
    headers: Any
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Served:
    """A running service, and ways to reach it."""

    def __init__(self, service: WebService, section: WebSection, path: Path) -> None:
        self.service, self.section, self.path = service, section, path
        self.url = f"http://{section.listen}"

    async def ask(
        self, path: str, *, method: str = "GET", unix: Path | None = None, **more: Any
    ) -> Answer:
        """One request, by loopback or through a unix socket."""
        connector = aiohttp.UnixConnector(str(unix)) if unix else None
        base = "http://localhost" if unix else self.url
        url = path if path.startswith("http") else base + path
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(method, url, **more) as found,
        ):
            return Answer(found.status, found.headers, await found.text())

    async def change(
        self, path: str, reason: str = "test", unix: Path | None = None, **more: Any
    ) -> Answer:
        """Ask for a change, through the unix socket unless another way is named."""
        json = {"reason": reason} | more.pop("json", {})
        unix = None if "loopback" in more and more.pop("loopback") else unix or self.path
        return await self.ask(f"{API}{path}", method="POST", unix=unix, json=json, **more)


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve(record: Path, tmp_path: Path) -> AsyncIterator[Serve]:
    """Start a service with a section of the configuration."""
    async with AsyncExitStack() as stack:

        async def start(store: Path = record, **section: Any) -> Served:
            made = WebSection.model_validate({"listen": f"127.0.0.1:{free_port()}", **section})
            service = WebService(SharedReader(store), made)
            runner = web.AppRunner(
                service.app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0
            )
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            path = made.socket or tmp_path / f"web-{os.urandom(3).hex()}.sock"
            await listen(runner, made, path)
            return Served(service, made, path)

        yield start


async def until(what: Callable[[], object], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
