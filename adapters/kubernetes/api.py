"""Calls of the Kubernetes API, and its errors as those of adapters.

Sources: "Kubernetes API Concepts" (pages, watches, 410 Gone), "API conventions" (Status), RFC 9110
(429).
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, Self

import aiohttp

from adapters.kubernetes.credentials import ServerAccess, read_access
from adapters.kubernetes.settings import KubernetesSiteConfig
from adapters.shared import http
from adapters.shared.json_records import Record, mapping, mappings, text
from adapters.shared.printing import printable
from provisioner.interfaces import (
    AdapterError,
    AuthError,
    OutcomeUnknownError,
    RejectedError,
    UnavailableError,
)
from provisioner.model import FaultKind
from provisioner.values import frozen

Query = Sequence[tuple[str, str]]

_MAX_PAGE_BYTES = 64 * 1024**2
_MAX_EVENT_BYTES = 8 * 1024**2
_PAGE = "500"
_MAX_LIST_PAGES = 1000
_MAX_RETRY_AFTER_S = 300.0
_GONE = 410


class ExpiredError(UnavailableError):
    """The resource version is too old: the collection has to be listed again."""


class BusyError(UnavailableError):
    """The API server does not serve a read now, and may have said for how long."""

    def __init__(
        self, message: str, kind: FaultKind | None = None, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(message, kind)
        self.retry_after_s = retry_after_s


@frozen
class ApiReply:
    status: int
    body: Record
    retry_after_s: float = 0.0

    @property
    def message(self) -> str:
        words = printable(text(self.body, "message") or f"status {self.status}", 400)
        return (
            f"{words} (try again after {self.retry_after_s:g} s)" if self.retry_after_s else words
        )

    @property
    def reason(self) -> str:
        return text(self.body, "reason")


# Words of an answer with status 403 or 422, or of a refusal within a create, with their meaning;
# the first counts.
_REFUSALS = (
    # "exceeded quota" is the ResourceQuota plugin; "is forbidden: User" is RBAC. Both have the same
    # status and reason.
    (r"exceeded quota|quota exceeded|insufficient quota", FaultKind.QUOTA),
    (r"must specify .* for:|status unknown for quota", FaultKind.CONFIG),
    (r"being terminated|namespaces .* not found", FaultKind.CONFIG),
    (r"denied the request|violates podsecurity|admission webhook", FaultKind.CONFIG),
    (
        r"(maximum|minimum) .* (usage|limit)|limit to request ratio|no priorityclass|is forbidden: pod",
        FaultKind.CONFIG,
    ),
)


def _denied(reply: ApiReply) -> AuthError:
    """Return the error for credentials that are not accepted (401), or that lack a right (403)."""
    remedy = (
        "renew the token of the kubeconfig"
        if reply.status == 401
        else "apply `provisioner render kubernetes`"
    )
    return AuthError(f"{reply.message}: {remedy}")


def order_error(reply: ApiReply) -> AdapterError:
    """Return the error for an order that was refused."""
    message = reply.message
    status = reply.status
    if status in (401, 403):
        words = message.lower()
        kind = next((kind for pattern, kind in _REFUSALS if re.search(pattern, words)), None)
        # All else that is forbidden lacks a right: `pods is forbidden: User "x" cannot create
        # resource ...`.
        return RejectedError(message, kind) if kind is not None else _denied(reply)
    if status == 500 and "failed calling webhook" in message:  # before anything was stored
        return RejectedError(message, FaultKind.DOWN)
    if status == 503 and text(reply.body, "kind") == "Status":  # else a proxy may have passed it on
        return UnavailableError(message)
    if status >= 500:
        return OutcomeUnknownError(message)
    other = FaultKind.CONFIG if status in (400, 404, 405, 406, 413, 415, 422) else FaultKind.UNKNOWN
    return RejectedError(
        message, {409: FaultKind.CAPACITY, 429: FaultKind.THROTTLED}.get(status, other)
    )


def read_error(reply: ApiReply) -> AdapterError:
    """Return the error for a read that was refused."""
    if reply.status == _GONE:
        return ExpiredError(reply.message)
    if reply.status in (401, 403):
        return _denied(reply)
    kind = {429: FaultKind.THROTTLED, 404: FaultKind.CONFIG}.get(reply.status)
    return BusyError(reply.message, kind, reply.retry_after_s)


class KubernetesApi:
    """HTTP to one API server. Credentials are read at the first call, and again when they expire or are refused.

    A path without a leading slash, as ``pods/kit-1``, is in the namespace of the drones.
    """

    def __init__(self, config: KubernetesSiteConfig) -> None:
        self._config = config
        self._access: ServerAccess | None = None
        self._reading = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._http = http.session(aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.close()

    async def namespace(self) -> str:
        """Return the namespace of the drones. Raises AuthError."""
        return (await self._current()).namespace

    async def read(self, path: str, query: Query = (), *, optional: bool = False) -> Record | None:
        """Return an object; None if it does not exist and is ``optional``. Raises UnavailableError or AuthError."""
        reply = await self._call("GET", path, query)
        if optional and reply.reason == "NotFound":
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
            items = (page or {}).get("items")
            meta = mapping(page, "metadata")
            # Go writes an empty list as null
            if not isinstance(items, list) and not (items is None and meta):
                raise UnavailableError("a list has no `items`")
            found += mappings(items)
            if not (token := text(meta, "continue")):
                return found, text(meta, "resourceVersion")
            more = [("continue", token)]
        raise UnavailableError(f"there are more than {_MAX_LIST_PAGES} pages")

    async def watch(
        self, path: str, query: Query, version: str, limit_s: int
    ) -> AsyncIterator[tuple[str, Record]]:
        """Yield an empty event once the server has accepted, then its events, until it ends the watch.

        Raises ExpiredError, other errors as :meth:`read`, and those of a connection.
        """
        asked = [
            *query,
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(limit_s)),
        ]
        asked.append(("resourceVersion", version))
        access = await self._current()
        try:
            async with (
                asyncio.timeout(limit_s + self._config.deadline),
                self._http.get(
                    _url(access, path),
                    params=asked,
                    headers=access.headers,
                    ssl=access.trust,
                    allow_redirects=False,
                    trace_request_ctx=[],
                ) as response,
            ):
                if response.status != 200:
                    raw = await response.content.read(_MAX_EVENT_BYTES)
                    refusal = _reply(response.status, raw, response.headers)
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

    async def order(
        self,
        method: str,
        path: str,
        body: Record | None = None,
        query: Query = (),
        *,
        accepted: Collection[str] = (),
    ) -> ApiReply:
        """Send an order once; return the reply if it is a success or its reason is one of ``accepted``.

        Raises:
            UnavailableError: it was not sent, or nothing is there.
            AuthError, RejectedError: it was refused, and nothing was done.
            OutcomeUnknownError: it was sent, and the reply is missing.
        """
        reply = await self._call(method, path, query, body)
        if 200 <= reply.status < 300 or reply.reason in accepted:
            return reply
        raise order_error(reply)

    async def _call(
        self, method: str, path: str, query: Query, body: Record | None = None
    ) -> ApiReply:
        """Make one call, and make it again with new credentials if those were refused."""
        sent: list[bool] = []

        async def authorized() -> ApiReply:
            for last in (False, True):
                access = await self._current()
                found = await http.exchange(
                    self._http,
                    method,
                    _url(access, path),
                    query,
                    body=body,
                    headers=access.headers,
                    trust=access.trust,
                    sent=sent,
                    largest=_MAX_PAGE_BYTES,
                )
                reply = _reply(found.status, found.raw, found.headers)
                if reply.status != 401 or last:
                    break
                sent.clear()
                self._drop(access, reply)
            return reply

        return await http.answered(
            authorized(),
            "",
            deadline_s=self._config.deadline,
            sent=sent if method != "GET" else (),
            errors=Exception,  # credentials may hold anything
        )

    def _drop(self, access: ServerAccess, reply: ApiReply) -> None:
        if reply.status == 401 and self._access is access:
            self._access = None

    async def _current(self) -> ServerAccess:
        async with self._reading:
            if self._access is None or time.monotonic() > self._access.until:
                self._access = await read_access(self._config)
            return self._access


def _url(access: ServerAccess, path: str) -> str:
    if path.startswith("/"):
        return access.server + path
    group = "/apis/batch/v1" if path.startswith("jobs") else "/api/v1"
    return f"{access.server}{group}/namespaces/{access.namespace}/{path}"


def _reply(status: int, raw: bytes, headers: Mapping[str, str]) -> ApiReply:
    wait = headers.get("retry-after", "")
    return ApiReply(
        status, _parsed(raw), min(float(wait), _MAX_RETRY_AFTER_S) if wait.isdecimal() else 0.0
    )


def _parsed(raw: bytes) -> Record:
    try:
        return mapping(json.loads(raw))
    except (ValueError, RecursionError):
        return {"message": printable(raw[:600].decode(errors="replace").strip(), 300)}


def _event(event: Record) -> tuple[str, Record]:
    kind = text(event, "type")
    found = mapping(event, "object")
    if kind != "ERROR":
        return kind, found
    code: Any = found.get("code")
    raise read_error(ApiReply(code if isinstance(code, int) else 500, found))
