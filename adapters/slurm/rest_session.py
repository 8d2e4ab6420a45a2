"""HTTP session with slurmrestd: connections, tokens, the version of its API, and what a missing answer means."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
from aiohttp.client_proto import ResponseHandler

from adapters.shared import http
from adapters.shared.commands.choice import optional_package
from adapters.shared.commands.settings import SshSettings
from adapters.shared.printing import printable
from adapters.slurm.settings import SlurmRestConfig
from provisioner.config.units import SecretUnreadableError
from provisioner.interfaces import AdapterError, AuthError, OutcomeUnknownError, UnavailableError
from provisioner.model import FaultKind

SUPPORTED_VERSIONS = ("v0.0.45", "v0.0.44", "v0.0.43", "v0.0.42", "v0.0.41", "v0.0.40")
"""Versions of the API, newest first, that answer our questions in the same way."""
MAX_RESPONSE_BYTES = 64 * 1024**2
MAX_CONNECTIONS = 6
"""slurmrestd works on as many requests as it has threads, and slurmctld suffers from many at a time."""
_TOKEN_PREFIX = "SLURM_JWT="  # printed by ``scontrol token``
_AUTHENTICATION_ERROR = 1007
"""Slurm's number for an invalid token (``Protocol authentication error``)."""


class RestResponseTooLargeError(UnavailableError):
    """The answer is longer than anything that we have requested."""


@dataclass(frozen=True, slots=True)
class RestResponse:
    """An answer of slurmrestd and the errors in it."""

    status: int
    body: Mapping[str, Any]
    errors: Sequence[tuple[int, str]]
    """Slurm's error number (0: none) and text."""

    @property
    def message(self) -> str:
        text = "; ".join(text for _, text in self.errors)
        return printable(text, 400) or f"HTTP {self.status} without a message"

    @property
    def is_complete(self) -> bool:
        return self.status == 200 and not self.errors

    def items(self, key: str) -> Sequence[Mapping[str, Any]]:
        """Return the list that the answer is about. UnavailableError if it is missing or incomplete."""
        found = self.body.get(key)
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise UnavailableError(f"slurmrestd answers without a list of `{key}`")
        return found


@dataclass(slots=True)
class _Request:
    """A request, and whether something of it has been sent."""

    method: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    body: Mapping[str, Any] | None = None
    sent: list[bool] = field(default_factory=list)


class RestSession:
    """HTTP to slurmrestd. Connects with the first request; connections are kept and shared."""

    def __init__(self, settings: SlurmRestConfig, deadline_s: float) -> None:
        self._settings, self._deadline_s = settings, deadline_s
        self.where = f"slurmrestd at {settings.url}" + (f" on {settings.ssh.host}" if settings.ssh else "")
        self._stack = contextlib.AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None
        self._version = ""
        self._version_lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        settings = self._settings
        if settings.ssh is not None:
            connect, limit = await self._over_ssh(settings.ssh), min(MAX_CONNECTIONS, settings.ssh.max_sessions)
        else:
            connect, limit = _direct(settings), MAX_CONNECTIONS
        self._session = await self._stack.enter_async_context(http.session(_Connector(connect, limit=limit)))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._session = None
        await self._stack.aclose()

    async def _over_ssh(self, settings: SshSettings) -> Connect:
        with optional_package("asyncssh", "ssh", "a socket over ssh needs"):
            from adapters.shared.commands.forward import Forward
            from adapters.shared.commands.ssh import SshRunner
        runner = await self._stack.enter_async_context(SshRunner(settings))
        return Forward(runner, self._settings.url.removeprefix("unix:")).connect

    # ------------------------------------------------------------------------------------------------------- requests

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
        body: Mapping[str, Any] | None = None,
        deadline_s: float | None = None,
    ) -> RestResponse:
        """Return the answer to one request, a refusal included.

        Raises:
            UnavailableError: nothing was sent, or a question (GET) has no answer.
            AuthError: it does not accept our token.
            OutcomeUnknownError: an order was sent, and not answered.
        """
        request = _Request(method, path, query, body)
        deadline_s = self._deadline_s if deadline_s is None else deadline_s
        try:
            async with asyncio.timeout(deadline_s):
                version = await self._api_version() if "{}" in path else ""
                request.path = path.format(version)
                response = await self._authenticated(request)
        except TimeoutError:
            raise self._no_answer(request, f"no answer within {deadline_s:g} s") from None
        except http.ResponseTooLongError as error:
            raise RestResponseTooLargeError(f"{self.where}: {error} of {request.path}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._no_answer(request, printable(str(error) or type(error).__name__)) from None
        if response.status == 404 and not response.body and path.startswith("slurm/{}/"):
            self._version = ""  # another release replaced it: negotiated again at the next call
            raise UnavailableError(f"{self.where}: it does not offer {request.path}")
        return response

    def _no_answer(self, request: _Request, why: str) -> AdapterError:
        if request.method == "GET" or not request.sent:
            return UnavailableError(f"{self.where}: {why}")
        return OutcomeUnknownError(f"{self.where}: {why}")

    async def _api_version(self) -> str:
        """Return the version of the API that both sides support."""
        async with self._version_lock:
            self._version = self._version or await self._negotiate()
            return self._version

    async def _negotiate(self) -> str:
        for version in SUPPORTED_VERSIONS:
            if await self._offers(version):
                return version
        raise UnavailableError(
            f"{self.where}: it offers none of the versions of Slurm's API that we support,"
            f" {SUPPORTED_VERSIONS[-1]} to {SUPPORTED_VERSIONS[0]} (Slurm 23.11 and later): use `transport: tools`",
            FaultKind.CONFIG,
        )

    async def _offers(self, version: str) -> bool:
        response = await self._authenticated(_Request("GET", f"slurm/{version}/ping/"))
        if response.status not in (200, 404):
            raise UnavailableError(f"{self.where}: {response.message}")
        return response.status == 200

    async def _authenticated(self, request: _Request) -> RestResponse:
        """Return the answer to a request with our token."""
        response = await self._exchange(request, self._current_token())
        if response.status == 401 or any(number == _AUTHENTICATION_ERROR for number, _ in response.errors):
            what = f"the token of {self._settings.token}" if self._settings.token else "a request without a token"
            raise AuthError(f"{self.where}: {what} is rejected: {response.message}")
        if response.status == 403:
            raise AuthError(f"{self.where}: {response.message}")
        return response

    def _current_token(self) -> str:
        if self._settings.token is None:
            return ""
        try:
            token = self._settings.token.read().removeprefix(_TOKEN_PREFIX).strip()
        except SecretUnreadableError as error:
            raise AuthError(f"{self.where}: {error}") from None
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise AuthError(f"{self.where}: {self._settings.token} contains no token")
        return token

    async def _exchange(self, request: _Request, token: str) -> RestResponse:
        assert self._session is not None, "not entered"
        url = self._settings.url if self._settings.url.startswith("http") else "http://localhost"
        reply = await http.exchange(
            self._session,
            request.method,
            f"{url.rstrip('/')}/{request.path}",
            request.query,
            body=request.body,
            headers={"X-SLURM-USER-NAME": self._settings.user, "X-SLURM-USER-TOKEN": token} if token else {},
            sent=request.sent,
            largest=MAX_RESPONSE_BYTES,
        )
        return await asyncio.to_thread(_parse_response, reply.status, reply.raw)


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
    errors = body.get("errors")
    return RestResponse(status, body, [_parse_error(each) for each in errors] if isinstance(errors, list) else [])


def _parse_error(error: object) -> tuple[int, str]:
    if not isinstance(error, dict):
        return 0, str(error)[:400]
    number = error.get("error_number")
    texts = [str(error.get(key) or "") for key in ("description", "error")]
    return number if isinstance(number, int) else 0, ": ".join(text for text in texts if text)[:400]


# ---------------------------------------------------------------------------------------------------------- connections


class _SingleResponse(ResponseHandler):
    """A protocol that ignores what follows an answer that closes the connection.

    slurmrestd 26.05 announces a second time, as plain text, that it closes after a refusal, and aiohttp would accept
    neither as an answer.
    """

    _left: int | None = None

    def data_received(self, data: bytes) -> None:
        if self._left is None and (head := _CLOSING_HEAD.match(data)) and (length := _CONTENT_LENGTH.search(head[0])):
            self._left = head.end() + int(length[1])
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
        if data:
            super().data_received(data)


_CLOSING_HEAD = re.compile(rb"HTTP/1\.[01] (?:(?!\r\n\r\n).)*?\r\nconnection: *close\r\n.*?\r\n\r\n", re.I | re.S)
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,12})\r\n", re.I)


Connect = Callable[[Callable[[], _SingleResponse]], Awaitable[_SingleResponse]]
"""Connects the protocol that the function makes, and returns it."""


class _Connector(aiohttp.BaseConnector):
    """Connections made by one function, kept and counted as aiohttp does."""

    def __init__(self, connect: Connect, *, limit: int) -> None:
        super().__init__(limit=limit)
        self._connect = connect

    async def _create_connection(self, req: object, traces: object, timeout: object) -> ResponseHandler:
        loop = asyncio.get_running_loop()
        return await self._connect(lambda: _SingleResponse(loop))


def _direct(settings: SlurmRestConfig) -> Connect:
    """Return the function that connects from this host, to a unix socket or over the network."""
    url, context = urlsplit(settings.url), _ssl_context(settings)

    async def connect(protocol: Callable[[], _SingleResponse]) -> _SingleResponse:
        loop = asyncio.get_running_loop()
        if settings.url.startswith("unix:"):
            return (await loop.create_unix_connection(protocol, settings.url.removeprefix("unix:")))[1]
        host, port = url.hostname or "", url.port or (443 if context else 80)
        return (await loop.create_connection(protocol, host, port, ssl=context, happy_eyeballs_delay=0.25))[1]

    return connect


def _ssl_context(settings: SlurmRestConfig) -> ssl.SSLContext | None:
    if not settings.url.startswith("https:"):
        return None
    try:
        return ssl.create_default_context(cafile=str(settings.ca) if settings.ca else None)
    except (OSError, ssl.SSLError) as error:
        message = f"the certificate authorities in {settings.ca} cannot be read: {printable(str(error))}"
        raise UnavailableError(message, FaultKind.CONFIG) from None
