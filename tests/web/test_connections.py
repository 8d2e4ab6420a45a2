"""A peer that holds connections, silent, slow or unread, keeps nobody else from an answer."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import NameOID

from provisioner.config.models import WebSection
from provisioner.web import serve as serving
from provisioner.web.record import SharedReader
from provisioner.web.server import WebService
from tests.web.conftest import free_port, until
from tests.web.test_identity import Authority

FILES = 160
"""File descriptors of the service: fewer than the connections that are opened."""
HELD = 300
HALF = b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nX: "
SLOW_BODY = (
    b"POST /api/v1/reload HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 99\r\n\r\n{"
)
STREAM = b"GET /api/v1/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
KEPT = b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n"
PIPELINED = KEPT * 400
SILENT = b""
WHOLE = b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


OTHER_PEER = "127.0.0.2"


def connect(place: str | int, peer: str = "127.0.0.1") -> socket.socket:
    """Return a connection to a port of this host, from an address of it, or to a unix socket."""
    if isinstance(place, int):
        return socket.create_connection(("127.0.0.1", place), 20, source_address=(peer, 0))
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(20)
    made.connect(place)
    return made


def answer(
    place: str | int, context: ssl.SSLContext | None = None, peer: str = "127.0.0.1"
) -> bytes:
    """Return the first line of the answer of a service to a request for its health."""
    with connect(place, peer) as plain, context.wrap_socket(plain) if context else plain as made:
        made.sendall(WHOLE)
        return made.recv(4096).partition(b"\r\n")[0]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


def tls_section(authority: Authority) -> dict[str, str]:
    """Return the files of a listener with TLS that asks for certificates."""
    certificate, key = authority.issue("host", (NameOID.COMMON_NAME, "localhost"))
    return {"certificate": str(certificate), "key": str(key), "client_ca": str(authority.file)}


@contextmanager
def process(
    record: Path, authority: Authority, files: int = FILES
) -> Iterator[tuple[int, int, str]]:
    """Start a service as a process with few file descriptors; return its ports and its socket."""
    plain, tls, path = free_port(), free_port(), str(record.parent / "web.sock")
    section = {
        "listen": f"127.0.0.1:{plain}",
        "tls": {**tls_section(authority), "listen": f"127.0.0.1:{tls}"},
    }
    config = record.parent / "provisioner.yaml"
    tree = {
        "controller": "kit",
        "store": {"path": str(record)},
        "overlay": {"adapter": "embedded"},
        "web": section,
    }
    config.write_text(json.dumps({**tree, "sites": ["sites/*.yaml"]}))
    command = [
        sys.executable,
        "-m",
        "provisioner.cli",
        "serve",
        "-c",
        str(config),
        "--log-level",
        "error",
    ]
    limit = (
        f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", f"{limit}; os.execv(sys.argv[1], sys.argv[1:])", *command],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for _ in range(600):
            with suppress(OSError):
                answer(path)
                if listening(plain) and listening(tls):
                    break
            assert started.poll() is None
            time.sleep(0.1)
        yield plain, tls, path
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(30)


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    """Allow this process the connections that it opens."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_of_any_kind_leave_the_others_their_answers(
    record: Path, authority: Authority
) -> None:
    """Hold more connections than the service has files, at each listener and in each way that costs nothing.

    The holder's own request comes last, in the queue of the same listener. In that of another it may be
    accepted before it is sent, and then displaced by those that still wait.
    """
    context = ssl.create_default_context(cafile=str(authority.file))
    context.check_hostname = False
    with process(record, authority) as (plain, tls, path):
        for place in (plain, tls, path):
            for sent in (SILENT, HALF, SLOW_BODY, STREAM, KEPT, PIPELINED):
                with ExitStack() as held:
                    for _ in range(HELD):
                        made = held.enter_context(connect(place))
                        with suppress(OSError):  # it was displaced
                            made.sendall(sent)
                    healthy = {
                        answer(plain, peer=OTHER_PEER),
                        answer(tls, context, OTHER_PEER),
                        answer(path),
                        answer(place, context if place == tls else None),
                    }
                assert healthy == {b"HTTP/1.1 200 OK"}, (place, sent[:30])


def test_a_client_that_leaves_early_does_not_end_the_service(
    record: Path, authority: Authority
) -> None:
    """A write to a client that has gone is a SIGPIPE, which ends a command line."""
    with process(record, authority) as (plain, _, path):
        with connect(path) as made:
            service, _, _ = struct.unpack(
                "3i", made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            )
        os.kill(service, signal.SIGPIPE)
        assert answer(plain) == b"HTTP/1.1 200 OK"


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the limits short."""
    for name in ("REQUEST_TIMEOUT_S", "HANDSHAKE_TIMEOUT_S", "ANSWER_TIMEOUT_S", "SWEEP_S"):
        for module in ("connections", "api"):
            with suppress(ImportError, AttributeError):
                monkeypatch.setattr(f"provisioner.web.{module}.{name}", 0.3)


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Return all that a service sends until it ends the connection."""
    async with asyncio.timeout(20):
        with suppress(ConnectionError):
            return await reader.read()
        return b""


@asynccontextmanager
async def here(record: Path, **section: Any) -> AsyncIterator[int]:
    """Run the service in the loop of the test; return its port."""
    port = free_port()
    made = WebSection.model_validate({"listen": f"127.0.0.1:{port}", **section})
    task = asyncio.create_task(
        serving._serve(WebService(SharedReader(record), made), record.parent / "web.sock")
    )
    try:
        await until(lambda: listening(port))
        yield port
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await task


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.usefixtures("brief")
async def test_requests_that_are_not_complete_in_time_are_ended(
    record: Path, authority: Authority
) -> None:
    tls = {**tls_section(authority), "listen": f"127.0.0.1:{free_port()}"}
    async with here(record, tls=tls) as port:
        tls_port = int(str(tls["listen"]).rpartition(":")[2])
        cases: list[tuple[int | str, bytes]] = [
            *(
                (place, sent)
                for place in (port, str(record.parent / "web.sock"))
                for sent in (SILENT, HALF, KEPT)
            ),
            (str(record.parent / "web.sock"), SLOW_BODY),
            (tls_port, SILENT),
            (tls_port, b"\x16\x03\x01\x02\x00\x01"),
        ]
        for place, sent in cases:
            reader, writer = await asyncio.open_connection(
                sock=await asyncio.to_thread(connect, place)
            )
            writer.write(sent)
            said = await ended(reader)
            assert (b" 408 " in said) == (sent == SLOW_BODY), (place, sent)
            writer.close()


@pytest.mark.usefixtures("brief")
async def test_answers_that_nobody_takes_are_ended(record: Path) -> None:
    async with here(record) as port:
        for place in (port, str(record.parent / "web.sock")):
            made = await asyncio.to_thread(connect, place)
            made.setblocking(False)
            many = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400

            def gone(made: socket.socket = made, many: bytes = many) -> bool:
                try:
                    made.send(many)
                except BlockingIOError:
                    return False
                except OSError:
                    return True
                return False

            await until(gone)
            made.close()
