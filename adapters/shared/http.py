"""HTTP exchanges with a site: bounded in size and time, without redirects, cookies or a proxy."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import field
from types import SimpleNamespace
from typing import Any

import aiohttp

from adapters.shared.printing import printable
from provisioner.interfaces import AdapterError, OutcomeUnknownError, UnavailableError
from provisioner.values import T, frozen

HTTP_ERRORS = (aiohttp.ClientError, OSError, ValueError)
"""Errors of :func:`exchange`."""


class ResponseTooLongError(ValueError):
    """The answer is longer than anything that was asked for."""


@frozen
class Reply:
    status: int
    raw: bytes
    headers: Mapping[str, str] = field(repr=False)
    """In lower case. One of them may be a token."""


def session(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
    """Return a session that owns ``connector`` and sends nothing of the environment and of earlier answers."""
    traces = aiohttp.TraceConfig()
    traces.on_request_headers_sent.append(_note_sent)
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"Accept": "application/json", "Accept-Encoding": "identity"},
        auto_decompress=False,  # a few bytes could become very many
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=[traces],
        trust_env=False,
    )


async def exchange(
    to: aiohttp.ClientSession,
    method: str,
    url: str,
    query: Sequence[tuple[str, str]] = (),
    *,
    body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str],
    trust: ssl.SSLContext | bool = True,
    sent: list[bool],
    largest: int,
) -> Reply:
    """Make one call. ``sent`` is not empty once anything was sent: without that a failed call has done nothing.

    Raises ResponseTooLongError for more than ``largest`` bytes, and what aiohttp and asyncio raise.
    """
    async with to.request(
        method,
        url,
        params=query,
        json=body,
        headers=headers,
        ssl=trust,
        allow_redirects=False,  # our token is for this one
        trace_request_ctx=sent,
    ) as response:
        raw = bytearray()
        async for piece in response.content.iter_any():
            raw += piece
            if len(raw) > largest:
                raise ResponseTooLongError(f"it says more than {largest // 1024**2} MiB")
        return Reply(
            response.status,
            bytes(raw),
            {name.lower(): text for name, text in response.headers.items()},
        )


async def answered(
    call: Awaitable[T],
    where: str,
    *,
    deadline_s: float,
    sent: Collection[bool] = (),
    errors: type[Exception] | tuple[type[Exception], ...] = HTTP_ERRORS,
) -> T:
    """Await a call within its deadline. ``where``: the beginning of messages.

    Without an answer it raises OutcomeUnknownError if anything was ``sent``, else UnavailableError.
    """
    try:
        async with asyncio.timeout(deadline_s):
            return await call
    except AdapterError:
        raise
    except TimeoutError:
        why = f"no answer within {deadline_s:g} s"
    except errors as error:
        why = words_of(error)
    raise (OutcomeUnknownError if sent else UnavailableError)(f"{where}{why}")


async def _note_sent(_: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
    context.trace_request_ctx.append(True)


def words_of(error: Exception) -> str:
    """Return what is wrong with a call, in words."""
    # the message of the error has the address of a Python object
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = getattr(error, "certificate_error", None) or error.os_error
        return printable(f"cannot connect to {error.host}:{error.port}: {cause}")
    return printable(str(error) or type(error).__name__)
