"""HTTP session with slurmrestd: connections, tokens, the version of its API, and what a missing answer means."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler

from adapters.shared import http, optional_packages
from adapters.shared.printing import printable
from adapters.slurm.settings import SlurmRestConfig
from provisioner.config.units import SecretUnreadableError
from provisioner.interfaces import AuthError, UnavailableError
from provisioner.model import FaultKind
from provisioner.values import frozen

if TYPE_CHECKING:
    from adapters.shared.commands.ssh import SshRunner

JsonObject = Mapping[str, Any]
SUPPORTED_VERSIONS = ("v0.0.45", "v0.0.44", "v0.0.43", "v0.0.42", "v0.0.41", "v0.0.40")
"""Versions of the API, newest first, that answer our questions in the same way."""
MAX_RESPONSE_BYTES = 64 * 1024**2
MAX_CONNECTIONS = 6
"""slurmrestd works on as many requests as it has threads, and slurmctld suffers from many at a time."""
_AUTHENTICATION_ERROR = 1007  # the token is invalid


class RestResponseTooLargeError(UnavailableError):
    """The answer is longer than anything that we have requested."""


@frozen
class RestResponse:
    """An answer of slurmrestd and the errors in it."""

    status: int
    body: JsonObject
    errors: Sequence[tuple[int, str]]
    """Slurm's error number (0: none) and text."""

    @property
    def message(self) -> str:
        text = "; ".join(text for _, text in self.errors)
        return printable(text, 400) or f"HTTP {self.status} without a message"

    @property
    def is_complete(self) -> bool:
        return self.status == 200 and not self.errors

    def items(self, key: str) -> Sequence[JsonObject]:
        """Return the list that the answer is about. UnavailableError if it is missing or incomplete."""
        found = self.body.get(key)
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise UnavailableError(f"slurmrestd answers without a list of `{key}`")
        return found


class RestSession:
    """HTTP to slurmrestd. Connects with the first request; connections are kept and shared."""

    def __init__(self, settings: SlurmRestConfig, deadline_s: float) -> None:
        self._settings = settings
        self._deadline_s = deadline_s
        self.where = f"slurmrestd at {settings.url}" + (
            f" on {settings.ssh.host}" if settings.ssh else ""
        )
        self._stack = contextlib.AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None
        self._version = ""
        self._version_lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._session = await self._stack.enter_async_context(http.session(await self._connector()))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._session = None
        await self._stack.aclose()

    async def _connector(self) -> aiohttp.BaseConnector:
        settings = self._settings
        connector: aiohttp.BaseConnector
        if settings.ssh is not None:
            with optional_packages("ssh", "a socket over ssh needs", "asyncssh"):
                from adapters.shared.commands.ssh import SshRunner
            runner = await self._stack.enter_async_context(SshRunner(settings.ssh))
            connector = _SshConnector(
                runner, settings.url.removeprefix("unix:"), settings.ssh.max_sessions
            )
        elif settings.url.startswith("unix:"):
            connector = aiohttp.UnixConnector(
                settings.url.removeprefix("unix:"), limit=MAX_CONNECTIONS
            )
        else:
            connector = aiohttp.TCPConnector(ssl=_ssl_context(settings), limit=MAX_CONNECTIONS)
        connector._factory = cast(
            "partial[ResponseHandler]", partial(_SingleResponse, loop=asyncio.get_running_loop())
        )
        return connector

    async def read(self, path: str) -> RestResponse:
        """Return a complete answer without errors. ``{}`` in ``path`` stands for the version of the API."""
        return self.checked(await self.request("GET", path))

    def checked(self, response: RestResponse) -> RestResponse:
        """Return the answer to a question. UnavailableError if it is incomplete or has errors."""
        if not response.is_complete:
            raise UnavailableError(f"{self.where}: {response.message}")
        return response

    async def request(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        *,
        body: JsonObject | None = None,
        deadline_s: float | None = None,
    ) -> RestResponse:
        """Return the answer to one request, a refusal included.

        UnavailableError if nothing was sent or a question (GET) has no answer, OutcomeUnknownError
        if an order was sent and not answered, AuthError if our token is not accepted.
        """
        sent: list[bool] = []

        async def exchanged() -> RestResponse:
            full_path = path.format(await self._api_version() if "{}" in path else "")
            response = await self._exchange(method, full_path, query, body, sent)
            if response.status == 404 and not response.body and path.startswith("slurm/{}/"):
                self._version = ""  # another release replaced it: negotiated again at the next call
                raise UnavailableError(f"{self.where}: it does not offer {full_path}")
            return response

        return await http.answered(
            exchanged(),
            f"{self.where}: ",
            deadline_s=deadline_s or self._deadline_s,
            sent=sent if method != "GET" else (),
        )

    async def _api_version(self) -> str:
        """Return the version of the API that both sides support."""
        async with self._version_lock:
            if self._version:
                return self._version
            for version in SUPPORTED_VERSIONS:
                response = await self._exchange("GET", f"slurm/{version}/ping/")
                if response.status == 200:
                    self._version = version
                    return version
                if response.status != 404:
                    raise UnavailableError(f"{self.where}: {response.message}")
        raise UnavailableError(
            f"{self.where}: it offers no supported version of Slurm's API,"
            f" {SUPPORTED_VERSIONS[-1]} to {SUPPORTED_VERSIONS[0]} (Slurm 23.11 and later): use `transport: tools`",
            FaultKind.CONFIG,
        )

    async def _exchange(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        body: JsonObject | None = None,
        sent: list[bool] | None = None,
    ) -> RestResponse:
        """Return the answer to a request with our token."""
        assert self._session is not None, "not entered"
        settings = self._settings
        token = self._current_token()
        url = settings.url if settings.url.startswith("http") else "http://localhost"
        try:
            reply = await http.exchange(
                self._session,
                method,
                f"{url.rstrip('/')}/{path}",
                query,
                body=body,
                headers={"X-SLURM-USER-NAME": settings.user, "X-SLURM-USER-TOKEN": token}
                if token
                else {},
                sent=[] if sent is None else sent,
                largest=MAX_RESPONSE_BYTES,
            )
        except http.ResponseTooLongError as error:
            raise RestResponseTooLargeError(f"{self.where}: {error} of {path}") from None
        response = await asyncio.to_thread(_parse_response, reply.status, reply.raw)
        if response.status == 401 or any(
            number == _AUTHENTICATION_ERROR for number, _ in response.errors
        ):
            what = (
                f"the token of {settings.token}" if settings.token else "a request without a token"
            )
            raise AuthError(f"{self.where}: {what} is rejected: {response.message}")
        if response.status == 403:
            raise AuthError(f"{self.where}: {response.message}")
        return response

    def _current_token(self) -> str:
        if self._settings.token is None:
            return ""
        try:
            # printed by `scontrol token`
            token = self._settings.token.read().removeprefix("SLURM_JWT=").strip()
        except SecretUnreadableError as error:
            raise AuthError(f"{self.where}: {error}") from None
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise AuthError(f"{self.where}: {self._settings.token} contains no token")
        return token


def _parse_response(status: int, raw: bytes) -> RestResponse:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        if status == 200:
            raise ValueError("its answer is invalid or incomplete JSON")
        text = printable(" ".join(raw[:400].decode(errors="replace").split()), 200)
        return RestResponse(status, {}, [(0, f"HTTP {status} {text}".strip())])
    errors: list[tuple[int, str]] = []
    for error in body["errors"] if isinstance(body.get("errors"), list) else ():
        each = error if isinstance(error, dict) else {"error": error}
        number = each.get("error_number")
        texts = [str(each.get(key) or "") for key in ("description", "error")]
        errors.append(
            (number if isinstance(number, int) else 0, ": ".join(filter(None, texts))[:400])
        )
    return RestResponse(status, body, errors)


class _SingleResponse(ResponseHandler):
    """A protocol that ignores what follows an answer that closes the connection.

    slurmrestd 26.05 announces a second time, as plain text, that it closes after a refusal, and
    aiohttp would accept neither as an answer.
    """

    _left: int | None = None

    def data_received(self, data: bytes) -> None:
        if (
            self._left is None
            and (head := _CLOSING_HEAD.match(data))
            and (length := _CONTENT_LENGTH.search(head[0]))
        ):
            self._left = head.end() + int(length[1])
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
        if data:
            super().data_received(data)


_CLOSING_HEAD = re.compile(
    rb"HTTP/1\.[01] (?:(?!\r\n\r\n).)*?\r\nconnection: *close\r\n.*?\r\n\r\n", re.I | re.S
)
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,12})\r\n", re.I)


class _SshConnector(aiohttp.BaseConnector):
    """Connections to a unix socket on a login node, kept and counted as aiohttp does."""

    def __init__(self, runner: SshRunner, path: str, sessions: int) -> None:
        super().__init__(limit=min(MAX_CONNECTIONS, sessions))
        self._runner = runner
        self._path = path

    async def _create_connection(
        self, req: object, traces: object, timeout: object
    ) -> ResponseHandler:
        return await self._runner.connect_unix(self._path, self._factory)


def _ssl_context(settings: SlurmRestConfig) -> ssl.SSLContext | bool:
    if not settings.url.startswith("https:"):
        return True
    try:
        return ssl.create_default_context(cafile=str(settings.ca) if settings.ca else None)
    except (OSError, ssl.SSLError) as error:
        message = (
            f"the certificate authorities in {settings.ca} cannot be read: {printable(str(error))}"
        )
        raise UnavailableError(message, FaultKind.CONFIG) from None
