"""The command line as a client of the web service: ``--url`` or PROVISIONER_URL instead of a record."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from email.message import Message as HTTPMessage
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from provisioner.answers.errors import Exit, UsageError, VerbError, reported
from provisioner.answers.forms import dumps
from provisioner.answers.query import API, Format, Query, RecordQuestion, written
from provisioner.cli import options as opt, output as out
from provisioner.cli.pipes import closed_pipes_raise

TIMEOUT_S = 60.0
"""Silence after which an answer is taken for lost: a stream has a comment more often."""
RETRY_S = 2.0


class ServiceUnavailableError(VerbError):
    """Error of a service that does not answer now, but may soon."""


def answer(question: RecordQuestion, query: Query, host: opt.Host) -> out.Rendered:
    """Return the answer of the service to a question."""
    if host.local:
        raise UsageError("--local does not work with --url: the service writes times in UTC")
    page = out.page_of(query, host)
    asked = {**written(query), "output": [query.output.value]}
    if query.output.for_people and page.color:
        asked["color"] = ["true"]
    if query.output.for_people and page.width:
        asked["width"] = [str(page.width)]
    path = question.path.replace("{id}", quote(getattr(query, "id", ""), safe=""))
    body, headers = _call(host, "GET", f"{path}?{urlencode(asked, doseq=True)}")
    text = body.decode()
    if stale := headers.get("Provisioner-Stale"):
        out.note(unquote(stale))
    if host.watch and query.output is Format.JSON:
        text = dumps(json.loads(text)) + "\n"
    return out.Rendered(text, unquote(headers.get("Provisioner-Scope", "")))


def post(where: opt.Where, path: str, **body: str | None) -> None:
    """Request a change, and tell the person that it is on record."""
    given = {name: value for name, value in body.items() if value is not None}
    answered = json.loads(_call(where, "POST", path, json.dumps(given).encode())[0])
    out.note(f"request {answered['request']} recorded: {answered['said']}")
    if not answered["controller_runs"]:
        out.note("no controller runs: the next one will carry it out")


def names(where: opt.Where, path: str, query: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names in a list."""
    asked = urlencode({"output": "name", **query}, doseq=True)
    return _call(where, "GET", f"{path}?{asked}")[0].decode().splitlines()


def followed(where: opt.Where, last: str = "") -> Iterator[Mapping[str, Any]]:
    """Yield what happens behind the position ``last`` or from now on, across restarts of the service."""
    begun = False
    while True:
        try:
            with _opened(where, "GET", "/events/stream", last_id=last) as response:
                begun = True
                for line in response:
                    name, _, value = line.decode().strip().partition(": ")
                    if name == "id":
                        last = value
                    elif name == "data":
                        yield json.loads(value)
        except (ServiceUnavailableError, OSError, http.client.HTTPException):
            if not begun:
                raise
        time.sleep(RETRY_S)


def _call(
    where: opt.Where, method: str, path: str, body: bytes | None = None
) -> tuple[bytes, HTTPMessage]:
    cut_short = reported(
        OSError, http.client.HTTPException, prefix=f"no whole answer from {where.url}: "
    )
    with _opened(where, method, path, body) as response, cut_short:
        return response.read(), response.headers


def _opened(
    where: opt.Where, method: str, path: str, body: bytes | None = None, last_id: str = ""
) -> http.client.HTTPResponse:
    """Send a request and return the response. Raises :class:`VerbError`, for a problem with its exit code."""
    url = where.url or ""
    connection, prefix = _connection(url)
    headers = {"Content-Type": "application/json"} if body is not None else {}
    headers |= {"Last-Event-ID": last_id} if last_id else {}
    if token := bearer_token(where):
        if not (token.isascii() and token.isprintable()):
            raise VerbError("the bearer token is not one line of ASCII: is its file the right one?")
        headers["Authorization"] = f"Bearer {token}"
    try:
        with closed_pipes_raise():
            connection.request(method, f"{prefix}{API}{path}", body, headers)
        response = connection.getresponse()
        if response.status < 300 and response.headers.get_content_type() != "text/html":
            return response
        told = response.read()
    except (OSError, http.client.HTTPException) as error:
        advice = "is `provisioner serve` running there?"
        raise ServiceUnavailableError(f"no answer from {url}: {error}", advice) from None
    kind = ServiceUnavailableError if response.status >= 500 else VerbError
    try:
        problem = json.loads(told)
        lines = str(problem["detail"]).splitlines()
        code = Exit(problem.get("exit_code", Exit.FAILED))
    except (ValueError, KeyError, TypeError):
        wrong = f"{url} answers {response.status} {response.reason}, and is no provisioner"
        log_in = [
            "a proxy that asks for a log-in is for browsers: use the address for tokens and certificates"
        ]
        raise kind(wrong, *log_in * (response.status < 400)) from None
    raise kind(*lines, code=code)


class _UnixConnection(http.client.HTTPConnection):
    """Connection to a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _connection(url: str) -> tuple[http.client.HTTPConnection, str]:
    """Return a connection, and the path before that of the API."""
    with reported(ValueError, prefix=f"--url {url}: ", code=Exit.USAGE):
        parts = urlsplit(url)
        port = urlsplit(url).port
    if parts.scheme == "unix" and parts.path:
        return _UnixConnection(parts.path), ""
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--url {url}: write https://HOST:PORT or unix:PATH")
    if parts.scheme == "http":
        return http.client.HTTPConnection(
            parts.hostname, port, timeout=TIMEOUT_S
        ), parts.path.rstrip("/")
    context = ssl.create_default_context()
    if certificate := os.environ.get("X509_USER_CERT"):
        with reported(OSError, prefix="X509_USER_CERT, X509_USER_KEY: "):
            context.load_cert_chain(certificate, os.environ.get("X509_USER_KEY"))
    made = http.client.HTTPSConnection(parts.hostname, port, timeout=TIMEOUT_S, context=context)
    return made, parts.path.rstrip("/")


def bearer_token(where: opt.Where) -> str:
    """Return the token to send; empty: none.

    That of ``--token-file``; else, over https alone, the one that the WLCG Bearer Token Discovery
    finds.
    """
    if where.token_file is not None:
        from provisioner.config.models import is_loopback

        parts = urlsplit(where.url or "")
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise UsageError(
                f"--token-file: it would go to {parts.hostname} in the clear; write https://"
            )
        return where.token_file.read_text("utf-8-sig").strip()
    if not (where.url or "").startswith("https:"):
        return ""
    if token := os.environ.get("BEARER_TOKEN", "").strip():
        return token
    if named := os.environ.get("BEARER_TOKEN_FILE"):
        return Path(named).read_text("utf-8-sig").strip()
    name = f"bt_u{os.geteuid()}"
    for directory in filter(None, (os.environ.get("XDG_RUNTIME_DIR"), "/tmp")):
        path = Path(directory) / name
        if path.is_file() and path.stat().st_uid == os.geteuid():
            return path.read_text("utf-8-sig").strip()
    return ""
