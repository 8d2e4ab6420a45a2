"""A server with AUDITOR's REST interface, as far as its HTCondor collector and its APEL plug-in use it.

The AUDITOR server itself is not on PyPI. Both clients are the real ones of PyPI.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.labs import htcondor

Record = dict[str, Any]


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


@dataclass
class AuditorServer:
    """Records by their ids. A second one of an id is refused, as AUDITOR does."""

    port: int = 0
    records: dict[str, Record] = field(default_factory=dict)

    async def add(self, request: web.Request) -> web.Response:
        record = await request.json()
        if record["record_id"] in self.records:
            return web.Response(status=500, text="RECORD_EXISTS")
        begin, end = _at(record["start_time"]), _at(record["stop_time"])
        self.records[record["record_id"]] = {
            **record,
            "runtime": int((end - begin).total_seconds()),
        }
        return web.Response()

    async def healthy(self, _: web.Request) -> web.Response:
        return web.Response()

    async def query(self, request: web.Request) -> web.Response:
        found = [each for each in self.records.values() if matches(each, request.query)]
        lines = "".join(f"{json.dumps(each)}\n" for each in found)
        return web.Response(text=lines, content_type="application/json")


def matches(record: Record, query: Mapping[str, str]) -> bool:
    """Return True if a record passes the filters of a query: times, and values that meta contains."""
    for name, wanted in query.items():
        key, _, operator = name.rstrip("]").replace("]", "").partition("[")
        if key == "stop_time":
            stop, limit = _at(record["stop_time"]), _at(wanted)
            passes = stop >= limit if operator == "gte" else stop < limit
        elif key == "runtime":
            passes = record["runtime"] > int(wanted)
        else:
            passes = wanted in (record["meta"].get(operator.partition("[")[0]) or ())
        if not passes:
            return False
    return True


@contextmanager
def running_auditor() -> Iterator[AuditorServer]:
    """Run the server on a free port of this host."""
    server = AuditorServer()
    ready, over = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        app = web.Application()
        app.add_routes(
            [
                web.post("/record", server.add),
                web.get("/records", server.query),
                web.get("/health_check", server.healthy),
            ]
        )
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.port = runner.addresses[0][1]
        ready.set()
        await over.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


def make_host_certificate(directory: Path) -> None:
    """Make ``hostcert.pem`` and ``hostkey.pem``, with which the APEL plug-in signs its messages."""
    made = ("-keyout", directory / "hostkey.pem", "-out", directory / "hostcert.pem")
    words = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=ce.test")
    subprocess.run([*words, *made], check=True, capture_output=True)


def run_plugin(name: str, *words: str | Path, env: Mapping[str, str] = {}) -> str:
    """Run a program of AUDITOR from PyPI to its end, and return what it printed."""
    programs = htcondor.fetched("get-auditor.sh") / "bin"
    done = subprocess.run(
        [programs / "python", programs / name, *words],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
