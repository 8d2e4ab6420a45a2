"""What stands between the OpenStack lab and who calls it: an HTTP server per service that counts and fails to order."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str
    """Path and query, as it came."""
    headers: Mapping[str, str]
    """Names in small letters."""
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body or b"{}")


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    half: bool = False
    """The connection is closed after half of the body."""


def answer(status: int, document: object = None, **headers: str) -> Answer:
    """One of JSON, or an empty one."""
    if document is None:
        return Answer(status, b"", headers)
    return Answer(
        status, json.dumps(document).encode(), {"Content-Type": "application/json", **headers}
    )


@dataclass(kw_only=True)
class Fault:
    """What happens to the calls that it fits, instead of, or after, what they ask for."""

    method: str = ""
    """A regular expression that the whole method fits; nothing: any."""
    path: str = ""
    """A regular expression that is found in path and query; nothing: any."""
    times: int | None = None
    """Only so many calls."""
    status: int | None = None
    """Answer this at once; the service is not asked."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    cut: Literal["", "before", "after"] = ""
    """Close the connection without an answer, before the service is asked, or after it has done it."""
    half: bool = False
    """Close the connection after half of the answer's body."""
    page: int = 0
    """The service is asked for pages of so many."""
    late_s: float = 0
    """The answer comes so much later than the service gave it."""

    def fits(self, method: str, target: str) -> bool:
        fits = re.fullmatch(self.method or ".*", method) and re.search(self.path, target)
        return self.times != 0 and bool(fits)


@dataclass(frozen=True, slots=True)
class Call:
    """One that has come."""

    method: str
    target: str
    status: int
    """0: no answer was given."""
    took_s: float


class Front:
    """One service as the catalogue tells it, on a port of its own from ``start`` until ``stop``.

    ``upstream`` is the port on loopback where the real one listens; a fake overrides ``respond``
    instead.
    """

    def __init__(self, name: str, upstream: int = 0) -> None:
        self.name, self.upstream = name, upstream
        self._calls: list[Call] = []
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        front = self

        class Connection(_Connection):
            def serve(self, request: Request) -> Answer | None:
                return front._serve(request)

        self._server = _Server(("127.0.0.1", 0), Connection)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name=f"front-{name}"
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No connection is taken any more, and those that are held are let go."""
        self._over.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    # -------------------------------------------------------------------------------------------------------
    # faults

    @contextmanager
    def failing(self, **fault: Any) -> Iterator[Fault]:
        """``Fault(**fault)`` holds inside. The one that was given first is asked first."""
        each = Fault(**fault)
        with self._lock:
            self._faults.append(each)
        try:
            yield each
        finally:
            with self._lock:
                self._faults = [other for other in self._faults if other is not each]

    def heal(self) -> None:
        """No fault holds any more."""
        with self._lock:
            self._faults.clear()

    def _fault(self, request: Request) -> Fault:
        with self._lock:
            for each in self._faults:
                if each.fits(request.method, request.target):
                    if each.times is not None:
                        each.times -= 1
                    return each
        return Fault()

    # --------------------------------------------------------------------------------------------------------
    # calls

    @property
    def seen(self) -> int:
        """How many calls have been answered, for ``calls(after=...)``."""
        return len(self._calls)

    def calls(self, method: str = "", path: str = "", *, after: int = 0) -> list[Call]:
        """Those that fit (as ``Fault`` says), without the first ``after`` of all."""
        wanted = Fault(method=method, path=path)
        return [call for call in self._calls[after:] if wanted.fits(call.method, call.target)]

    def _serve(self, request: Request) -> Answer | None:
        began = time.monotonic()
        fault = self._fault(request)
        given: Answer | None = None
        if fault.status is not None:
            given = Answer(fault.status, fault.body.encode(), fault.headers)
        elif fault.cut != "before":
            given = self.respond(_paged(request, fault.page) if fault.page else request)
        if given is not None and fault.half:
            given = replace(given, half=True)
        if fault.late_s:
            self._over.wait(fault.late_s)
        if fault.cut or self._over.is_set():
            given = None
        self._calls.append(
            Call(
                request.method,
                request.target,
                given.status if given else 0,
                time.monotonic() - began,
            )
        )
        return given

    def respond(self, request: Request) -> Answer:
        """What the service says."""
        headers = {name: value for name, value in request.headers.items() if name not in _OF_A_HOP}
        with closing(
            http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=120)
        ) as service:
            try:
                service.request(request.method, request.target, request.body or None, headers)
                said = service.getresponse()
                body = said.read()
            except OSError as error:
                return answer(
                    502,
                    {"error": {"code": 502, "message": f"{self.name} does not answer: {error}"}},
                )
            return Answer(
                said.status,
                body,
                {k: v for k, v in said.getheaders() if k.lower() not in _OF_A_HOP},
            )


def _paged(request: Request, size: int) -> Request:
    return replace(
        request, target=f"{request.target}{'&' if '?' in request.target else '?'}limit={size}"
    )


_OF_A_HOP = {
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "date",
    "server",
    "expect",
}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 120

    def serve(self, request: Request) -> Answer | None:
        raise NotImplementedError

    def _one(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, self.path, headers, self._body())
        given = self.serve(request)
        if given is None:
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        with suppress(OSError):  # who asked may have gone
            self.send_response(given.status)
            for name, value in given.headers.items():
                self.send_header(name, value)
            if given.status != 204:
                self.send_header("Content-Length", str(len(given.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(given.body[: len(given.body) // 2] if given.half else given.body)
            if given.half:
                self.close_connection = True

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _one

    def log_message(self, *_: object) -> None:
        """Calls are written down by the front."""
