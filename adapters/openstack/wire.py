"""One HTTP exchange with a service of the cloud, and what it said."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp

from adapters.openstack.faults import complaint
from adapters.shared import http
from adapters.shared.printing import printable

LARGEST_ANSWER = 32 * 1024**2
"""Bytes of one answer, which is one page; what is longer is not listened to any longer."""
_LONGEST_WORDS = 300
_ECHO = re.compile(r"\S{64,}")
"""Nova says a value that it refuses once more, and user data hold what a drone joins its pool with."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a service said."""

    status: int
    body: Mapping[str, Any]
    """Empty if it was no JSON object."""
    whole: bool
    """It was one, or nothing at all, as 202 and 204 may be."""
    words: str
    """The beginning of what is no JSON object."""
    headers: Mapping[str, str] = field(repr=False)
    """In lower case. One of them may be a token."""

    @property
    def complaint(self) -> tuple[str, str]:
        """Key and words of the fault in it, if it is one."""
        key, words = complaint(self.body)
        return key, words or self.words

    @property
    def said(self) -> str:
        """The fault for people: words, status, when to come again, and under which id the cloud's own log has it."""
        words = _ECHO.sub(lambda echo: f"{echo[0][:12]}...", self.complaint[1].strip())
        words = printable(words, _LONGEST_WORDS) or "not a word"
        parts = [f"HTTP {self.status}"]
        if wait := self.headers.get("retry-after"):
            parts.append(f"try again after {printable(wait, 40)}" + (" s" if wait.isdecimal() else ""))
        if request := self.headers.get("x-openstack-request-id"):
            parts.append(printable(request, 60))
        return f"{words} ({', '.join(parts)})"


class Wire:
    """Connections to all services of one cloud, kept and counted together."""

    def __init__(self, parallel: int) -> None:
        self._parallel = parallel
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = http.session(aiohttp.TCPConnector(limit=self._parallel))
        return self

    async def __aexit__(self, *exc: object) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def exchange(
        self,
        method: str,
        url: str,
        query: Sequence[tuple[str, str]] = (),
        *,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str],
        trust: ssl.SSLContext | bool,
        sent: list[bool],
    ) -> Answer:
        """One call and its answer; raises and ``sent`` as in :func:`adapters.shared.http.exchange`."""
        assert self._session is not None, "not entered"
        session, largest = self._session, LARGEST_ANSWER
        reply = await http.exchange(
            session, method, url, query, body=body, headers=headers, trust=trust, sent=sent, largest=largest
        )
        return _answer(reply.status, reply.raw, reply.headers)


def _answer(status: int, raw: bytes, headers: Mapping[str, str]) -> Answer:
    if not raw.strip():
        return Answer(status, {}, status in (202, 204), "", headers)
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, dict):
        return Answer(status, body, True, "", headers)
    return Answer(status, {}, False, " ".join(raw[:600].decode(errors="replace").split()), headers)
