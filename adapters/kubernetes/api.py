"""Calls of the Kubernetes API, and its errors as those of adapters.

Sources: "Kubernetes API Concepts" (pages, watches, 410 Gone), "API conventions" (Status), RFC 9110 (429).
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import aiohttp

from adapters.kubernetes.credentials import ServerAccess, read_access
from adapters.kubernetes.records import Record, mapping, mappings, text
from adapters.kubernetes.settings import KubernetesSiteConfig
from adapters.shared import http
from adapters.shared.printing import printable
from provisioner.interfaces import AdapterError, AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import FaultKind

Query = Sequence[tuple[str, str]]

_MAX_PAGE_BYTES = 64 * 1024**2
_MAX_EVENT_BYTES = 8 * 1024**2
_PAGE = "500"
_MAX_LIST_PAGES = 1000
_HTTP_ERRORS = (aiohttp.ClientError, OSError, ValueError)
_GONE = 410


class ExpiredError(UnavailableError):
    """The resource version is too old: the collection has to be listed again."""


@dataclass(frozen=True, slots=True)
class ApiReply:
    status: int
    body: Record

    @property
    def message(self) -> str:
        return printable(text(self.body, "message") or f"status {self.status}", 400)

    @property
    def reason(self) -> str:
        return text(self.body, "reason")


# Words of an answer with status 403 or 422, or of a refusal within a create, with their meaning; the first counts.
_REFUSALS = (
    # "exceeded quota" is the ResourceQuota plugin; "is forbidden: User" is RBAC. Both have the same status and reason.
    (r"exceeded quota|quota exceeded|insufficient quota", FaultKind.QUOTA),
    (r"must specify .* for:|status unknown for quota", FaultKind.CONFIG),
    (r"being terminated|namespaces .* not found", FaultKind.CONFIG),
    (r"denied the request|violates podsecurity|admission webhook", FaultKind.CONFIG),
    (r"(maximum|minimum) .* (usage|limit)|limit to request ratio|no priorityclass|is forbidden: pod", FaultKind.CONFIG),
)


def order_error(reply: ApiReply) -> AdapterError:
    """Return the error for an order that was refused."""
    message, status = reply.message, reply.status
    if status == 401:
        return AuthError(message)
    if status == 403:
        words = message.lower()
        kind = next((kind for pattern, kind in _REFUSALS if re.search(pattern, words)), None)
        # All else that is forbidden lacks a right: `pods is forbidden: User "x" cannot create resource ...`.
        return RejectedError(message, kind) if kind is not None else AuthError(message)
    if status == 429:
        return RejectedError(message, FaultKind.THROTTLED)
    if status in (400, 404, 405, 406, 413, 415, 422):
        return RejectedError(message, FaultKind.CONFIG)
    if status == 409:
        return RejectedError(message, FaultKind.CAPACITY)
    if status == 500 and "failed calling webhook" in message:  # before anything was stored
        return RejectedError(message, FaultKind.DOWN)
    if status == 503:
        return UnavailableError(message)
    return OutcomeUnknownError(message) if status >= 500 else RejectedError(message, FaultKind.UNKNOWN)


def read_error(reply: ApiReply) -> AdapterError:
    """Return the error for a read that was refused."""
    if reply.status == _GONE:
        return ExpiredError(reply.message)
    if reply.status in (401, 403):
        return AuthError(reply.message)
    kind = {429: FaultKind.THROTTLED, 404: FaultKind.CONFIG}.get(reply.status)
    return UnavailableError(reply.message, kind)


class KubernetesApi:
    """HTTP to one API server. Credentials are read at the first call, and again when they expire or are refused."""

    def __init__(self, config: KubernetesSiteConfig) -> None:
        self._config = config
        self._http: aiohttp.ClientSession | None = None
        self._access: ServerAccess | None = None
        self._reading = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._http = http.session(aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def namespace(self) -> str:
        """Return the namespace of the drones. Raises AuthError."""
        return (await self._current()).namespace

    async def read(self, path: str, query: Query = (), *, lacking: Collection[int] = ()) -> Record | None:
        """Return an object; None if the status is one of ``lacking``. Raises UnavailableError or AuthError."""
        try:
            async with asyncio.timeout(self._config.deadline):
                reply = await self._exchange("GET", path, query, None, [])
        except TimeoutError:
            raise UnavailableError(f"no answer within {self._config.deadline:g} s") from None
        except _HTTP_ERRORS as error:
            raise UnavailableError(_words(error)) from None
        if reply.status in lacking:
            return None
        if reply.status != 200:
            raise read_error(reply)
        return reply.body

    async def pages(self, path: str, query: Query = ()) -> tuple[list[Record], str]:
        """Return all objects of a collection, in pages, and its resource version. Raises as :meth:`read`."""
        found: list[Record] = []
        more: Query = ()
        for _ in range(_MAX_LIST_PAGES):
            page = await self.read(path, [*query, ("limit", _PAGE), *more])
            items, meta = (page or {}).get("items"), mapping((page or {}).get("metadata"))
            if not isinstance(items, list) and not (items is None and meta):  # Go writes an empty list as null
                raise UnavailableError("a list has no `items`")
            found += mappings(items)
            if not (token := text(meta, "continue")):
                return found, text(meta, "resourceVersion")
            more = [("continue", token)]
        raise UnavailableError(f"there are more than {_MAX_LIST_PAGES} pages")

    async def watch(self, path: str, query: Query, version: str, limit_s: int) -> AsyncIterator[tuple[str, Record]]:
        """Yield an empty event once the server has accepted, then its events, until it ends the watch.

        Raises:
            ExpiredError: the version is too old.
            UnavailableError: the connection failed, or nothing ended it in time.
            AuthError: it is not allowed.
        """
        asked = [*query, ("watch", "1"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", str(limit_s))]
        asked.append(("resourceVersion", version))
        access, session = await self._current(), self._session()
        try:
            async with (
                asyncio.timeout(limit_s + self._config.deadline),
                session.get(
                    access.server + path,
                    params=asked,
                    headers=access.headers,
                    ssl=access.trust,
                    allow_redirects=False,
                    trace_request_ctx=[],
                ) as response,
            ):
                if response.status != 200:
                    refusal = ApiReply(response.status, _parsed(await response.content.read(_MAX_EVENT_BYTES)))
                    self._drop(access, refusal)
                    raise read_error(refusal)
                yield "", {}
                rest = b""
                async for piece in response.content.iter_any():
                    *lines, rest = (rest + piece).split(b"\n")
                    if len(rest) > _MAX_EVENT_BYTES:
                        raise UnavailableError("an event is larger than 8 MiB")
                    for line in filter(None, lines):
                        yield _event(_parsed(line))
        except TimeoutError:
            raise UnavailableError("the server did not end a watch in time") from None
        except _HTTP_ERRORS as error:
            raise UnavailableError(_words(error)) from None

    async def order(
        self, method: str, path: str, body: Record | None = None, query: Query = (), *, accepted: Collection[int] = ()
    ) -> ApiReply:
        """Send an order once; return the reply if it is a success or its status is one of ``accepted``.

        Raises:
            UnavailableError: it was not sent, or nothing is there.
            AuthError, RejectedError: it was refused, and nothing was done.
            OutcomeUnknownError: it was sent, and the reply is missing.
        """
        sent: list[bool] = []
        try:
            async with asyncio.timeout(self._config.deadline):
                reply = await self._exchange(method, path, query, body, sent)
        except TimeoutError:
            why = f"no answer within {self._config.deadline:g} s"
        except _HTTP_ERRORS as error:
            why = _words(error)
        else:
            if 200 <= reply.status < 300 or reply.status in accepted:
                return reply
            raise order_error(reply)
        raise (OutcomeUnknownError if sent else UnavailableError)(why)

    async def _exchange(self, method: str, path: str, query: Query, body: Record | None, sent: list[bool]) -> ApiReply:
        """Make one call, and make it again with new credentials if those were refused."""
        access, session = await self._current(), self._session()
        for last in (False, True):
            reply = await http.exchange(
                session,
                method,
                access.server + path,
                query,
                body=body,
                headers=access.headers,
                trust=access.trust,
                sent=sent,
                largest=_MAX_PAGE_BYTES,
            )
            if reply.status != 401 or last:
                break
            sent.clear()
            self._drop(access, ApiReply(401, {}))
            access = await self._current()
        return ApiReply(reply.status, _parsed(reply.raw))

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            raise UnavailableError("the site is not connected")
        return self._http

    def _drop(self, access: ServerAccess, reply: ApiReply) -> None:
        if reply.status == 401 and self._access is access:
            self._access = None

    async def _current(self) -> ServerAccess:
        async with self._reading:
            if self._access is None or time.monotonic() > self._access.until:
                self._access = await read_access(self._config)
            return self._access


def _parsed(raw: bytes) -> Record:
    try:
        return mapping(json.loads(raw))
    except (ValueError, RecursionError):
        return {"message": printable(raw[:600].decode(errors="replace").strip(), 300)}


def _event(event: Record) -> tuple[str, Record]:
    kind, found = text(event, "type"), mapping(event.get("object"))
    if kind != "ERROR":
        return kind, found
    code: Any = found.get("code")
    raise read_error(ApiReply(code if isinstance(code, int) else 500, found))


def _words(error: Exception) -> str:
    return printable(str(error) or type(error).__name__)


def selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in labels.items())
