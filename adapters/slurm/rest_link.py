"""One slurmrestd: the way to it, who we are to it, which version of its API is spoken, and what its silence means."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
from aiohttp.client_proto import ResponseHandler

from adapters.shared import http
from adapters.shared.commands.settings import SshSettings
from adapters.shared.printing import printable
from adapters.slurm.settings import SlurmRestConfig
from provisioner.config.units import SecretUnreadableError
from provisioner.interfaces import AdapterError, AuthError, OutcomeUnknownError, UnavailableError
from provisioner.model import FaultKind

SPOKEN = ("v0.0.45", "v0.0.44", "v0.0.43", "v0.0.42", "v0.0.41", "v0.0.40")
"""Versions of the API, newest first; what we ask for is told in the same way by all of them."""
LARGEST_ANSWER = 64 * 1024**2
"""Bytes of one answer; what is longer is not listened to any longer."""
_WIDTH = 6
"""Connections at a time: slurmrestd works on as many as it has threads, and slurmctld does not like a storm."""
_KNOWN_TO_EXIST = tuple(f"v0.0.{number}" for number in range(36, 51))
_TOKEN_OLD_S = 1.0
_SCONTROL_SAYS = "SLURM_JWT="
_NOT_OURS = (1007,)
"""Slurm's number for a token that it does not believe (``Protocol authentication error``)."""


class TooLong(UnavailableError):
    """The answer is longer than anything that we have asked for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What slurmrestd said, and what it complained of."""

    status: int
    body: Mapping[str, Any]
    complaints: Sequence[tuple[int, str]]
    """Slurm's error number (0: none) and words."""

    @property
    def said(self) -> str:
        words = "; ".join(text for _, text in self.complaints)
        return printable(words, 400) or f"HTTP {self.status} without a word"

    def complains_of(self, *numbers: int) -> bool:
        return any(number in numbers for number, _ in self.complaints)

    def items(self, key: str) -> Sequence[Mapping[str, Any]]:
        """The list that the answer is about. UnavailableError if it is not there or torn."""
        found = self.body.get(key)
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise UnavailableError(f"slurmrestd gives an answer without a list of `{key}`")
        return found


class RestLink:
    """HTTP to slurmrestd. Connects when first asked; connections are kept and shared."""

    def __init__(self, settings: SlurmRestConfig) -> None:
        self._settings = settings
        self.where = f"slurmrestd at {settings.url}" + (f" on {settings.ssh.host}" if settings.ssh else "")
        self._stack = contextlib.AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None
        self._version = ""
        self._finding = asyncio.Lock()
        self._token, self._read_at = "", -_TOKEN_OLD_S

    async def __aenter__(self) -> Self:
        settings = self._settings
        if settings.ssh is not None:
            way, width = await self._over_ssh(settings.ssh), min(_WIDTH, settings.ssh.max_sessions)
        else:
            way, width = _direct(settings), _WIDTH
        self._session = await self._stack.enter_async_context(http.session(_Connector(way, limit=width)))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._session = None
        await self._stack.aclose()

    async def _over_ssh(self, settings: SshSettings) -> Way:
        try:
            from adapters.shared.commands.forward import Forward
            from adapters.shared.commands.ssh import SshRunner
        except ImportError as error:
            if error.name != "asyncssh":
                raise
            message = "a socket over ssh needs the Python package asyncssh: pip install 'gpu-drone-provisioner[ssh]'"
            raise UnavailableError(message, FaultKind.CONFIG) from None
        runner = await self._stack.enter_async_context(SshRunner(settings))
        return Forward(runner, self._settings.url.removeprefix("unix:")).connect

    # --------------------------------------------------------------------------------------------------------- asking

    async def read(self, path: str, query: Sequence[tuple[str, str]] = (), *, deadline_s: float) -> Answer:
        """What is at ``path``, whole and without complaint. ``{}`` in it stands for the version of the API."""
        answer = await self.ask("GET", path, query, deadline_s=deadline_s)
        if answer.status != 200 or answer.complaints:
            raise UnavailableError(f"{self.where}: {answer.said}")
        return answer

    async def ask(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        *,
        body: Mapping[str, Any] | None = None,
        deadline_s: float,
    ) -> Answer:
        """One call and its answer, a no included.

        Raises:
            UnavailableError: it was not asked, or is not there; of a question also: no answer.
            AuthError: it does not accept us.
            Unsure: it was told something, and did not answer.
        """
        sent: list[bool] = []
        try:
            async with asyncio.timeout(deadline_s):
                version = await self._spoken() if "{}" in path else ""
                sent.clear()
                answer = await self._admitted(method, path.format(version), query, body, sent)
        except TimeoutError:
            raise self._silence(method, sent, f"no answer within {deadline_s:g} s") from None
        except TooLong:
            raise
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._silence(method, sent, printable(str(error) or type(error).__name__)) from None
        if answer.status == 404 and not answer.body and path.startswith("slurm/{}/"):
            self._version = ""  # another release in its place: found out again at the next call
            raise UnavailableError(f"{self.where}: it does not offer {path.format(version)}")
        return answer

    def _silence(self, method: str, sent: Sequence[bool], why: str) -> AdapterError:
        if method == "GET" or not sent:
            return UnavailableError(f"{self.where}: {why}")
        return OutcomeUnknownError(f"{self.where}: {why}")

    async def _spoken(self) -> str:
        """The version of the API that both sides speak."""
        if not self._version:
            async with self._finding:
                if not self._version:
                    self._version = await self._found()
        return self._version

    async def _found(self) -> str:
        for version in SPOKEN:
            if await self._offers(version):
                return version
        offered = [version for version in _KNOWN_TO_EXIST if version not in SPOKEN and await self._offers(version)]
        theirs = f"offers {', '.join(offered)}" if offered else "offers no version of Slurm's API that is known here"
        raise UnavailableError(
            f"{self.where}: it {theirs}, and we speak {min(SPOKEN)} to {max(SPOKEN)} (Slurm 23.11 and later): use"
            " `transport: tools`",
            FaultKind.CONFIG,
        )

    async def _offers(self, version: str) -> bool:
        answer = await self._admitted("GET", f"slurm/{version}/ping/", (), None, [])
        if answer.status not in (200, 404):
            raise UnavailableError(f"{self.where}: {answer.said}")
        return answer.status == 200

    async def _admitted(
        self, method: str, path: str, query: Sequence[tuple[str, str]], body: Mapping[str, Any] | None, sent: list[bool]
    ) -> Answer:
        """The answer to us. A token that is refused is read again: it may have been changed a moment ago."""
        token = self._our_token()
        answer = await self._exchange(method, path, query, body, token, sent)
        if _refuses_us(answer) and (anew := self._our_token(anew=True)) != token:
            sent.clear()  # nothing was done: that was said
            answer = await self._exchange(method, path, query, body, anew, sent)
        if _refuses_us(answer):
            who = f"the token of {self._settings.token}" if self._settings.token else "no token was given, and that"
            raise AuthError(f"{self.where}: {who} is refused: {answer.said}")
        if answer.status == 403:
            raise AuthError(f"{self.where}: {answer.said}")
        return answer

    def _our_token(self, *, anew: bool = False) -> str:
        if self._settings.token is None:
            return ""
        now = asyncio.get_running_loop().time()
        if anew or now - self._read_at >= _TOKEN_OLD_S:
            try:
                self._token = self._settings.token.read().removeprefix(_SCONTROL_SAYS).strip()
            except SecretUnreadableError as error:
                raise AuthError(f"{self.where}: {error}") from None
            if not (self._token.isascii() and self._token.isprintable()) or " " in self._token:
                raise AuthError(f"{self.where}: in {self._settings.token} there is no token")
            self._read_at = now
        return self._token

    async def _exchange(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        body: Mapping[str, Any] | None,
        token: str,
        sent: list[bool],
    ) -> Answer:
        assert self._session is not None, "not entered"
        url = self._settings.url if self._settings.url.startswith("http") else "http://localhost"
        headers = {"X-SLURM-USER-NAME": self._settings.user, "X-SLURM-USER-TOKEN": token} if token else {}
        where = f"{url.rstrip('/')}/{path}"
        try:
            reply = await http.exchange(
                self._session, method, where, query, body=body, headers=headers, sent=sent, largest=LARGEST_ANSWER
            )
        except http.TooLong as error:
            raise TooLong(f"{self.where}: {error} of {path}") from None
        return _answer(reply.status, reply.raw)


# ----------------------------------------------------------------------------------------------------------- connecting


class _OneAnswer(ResponseHandler):
    """slurmrestd 26.05 says a second time, as plain text, that it closes after a no, and aiohttp would take neither for
    an answer. What follows the end of an answer that closes the connection is left unheard."""

    _left: int | None = None

    def data_received(self, data: bytes) -> None:
        if self._left is None and (head := _CLOSING_HEAD.match(data)) and (length := _LENGTH.search(head[0])):
            self._left = head.end() + int(length[1])
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
        if data:
            super().data_received(data)


_CLOSING_HEAD = re.compile(rb"HTTP/1\.[01] (?:(?!\r\n\r\n).)*?\r\nconnection: *close\r\n.*?\r\n\r\n", re.I | re.S)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,12})\r\n", re.I)

Way = Callable[[Callable[[], _OneAnswer]], Awaitable[_OneAnswer]]
"""Makes a connection for what the function makes, and returns that."""


class _Connector(aiohttp.BaseConnector):
    """Connections by one way, kept and counted as aiohttp does."""

    def __init__(self, way: Way, *, limit: int) -> None:
        super().__init__(limit=limit)
        self._way = way

    async def _create_connection(self, req: object, traces: object, timeout: object) -> ResponseHandler:
        loop = asyncio.get_running_loop()
        return await self._way(lambda: _OneAnswer(loop))


def _direct(settings: SlurmRestConfig) -> Way:
    async def to_socket(ends: Callable[[], _OneAnswer]) -> _OneAnswer:
        return (await asyncio.get_running_loop().create_unix_connection(ends, path))[1]

    async def to_port(ends: Callable[[], _OneAnswer]) -> _OneAnswer:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(ends, host, port, ssl=believed, happy_eyeballs_delay=0.25))[1]

    path, url, believed = settings.url.removeprefix("unix:"), urlsplit(settings.url), _believed(settings)
    host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    return to_socket if settings.url.startswith("unix:") else to_port


def _believed(settings: SlurmRestConfig) -> ssl.SSLContext | None:
    if not settings.url.startswith("https:"):
        return None
    try:
        return ssl.create_default_context(cafile=str(settings.ca) if settings.ca else None)
    except (OSError, ssl.SSLError) as error:
        message = f"the authorities of {settings.ca} cannot be read: {printable(str(error))}"
        raise UnavailableError(message, FaultKind.CONFIG) from None


def _refuses_us(answer: Answer) -> bool:
    return answer.status == 401 or answer.complains_of(*_NOT_OURS)


def _answer(status: int, raw: bytes) -> Answer:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        if status == 200:
            raise ValueError("its answer is no JSON, or not all of it")
        words = printable(" ".join(raw[:400].decode(errors="replace").split()), 200)
        return Answer(status, {}, [(0, f"HTTP {status} {words}".strip())])
    errors = body.get("errors")
    return Answer(status, body, [_complaint(each) for each in errors] if isinstance(errors, list) else [])


def _complaint(error: object) -> tuple[int, str]:
    if not isinstance(error, dict):
        return 0, str(error)[:400]
    number = error.get("error_number")
    words = [str(error.get(key) or "") for key in ("description", "error")]
    return number if isinstance(number, int) else 0, ": ".join(word for word in words if word)[:400]
