"""Identity of callers: tokens, client certificates, the header of a reverse proxy, and accounts of this host."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple

from aiohttp import web

from provisioner.answers.errors import VerbError
from provisioner.config.models import (
    Role,
    WebProxySection,
    WebSection,
    WebSubjectSection,
    is_loopback,
    parse_dn,
)
from provisioner.formatting import sanitize
from provisioner.web.connections import credentials_of
from provisioner.web.tokens import TokenVerifier

NAME_LENGTH = 200
SHORT_NAMES = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "userId": "UID",
}
"""Short names of attributes of subjects; others have the same name in a DN."""


class Caller(NamedTuple):
    """Sender of a request."""

    name: str = ""
    """Recorded as the one who asked for a change; empty: not known."""
    role: Role | None = None
    """None: only public pages."""
    until: float = inf
    """Time at which the token expires."""


class Authenticator:
    """Finder of the caller of a request, by the socket that it came through.

    A token counts on every socket. One that is not valid is refused, whatever the socket would
    allow without it.
    """

    def __init__(self, section: WebSection, tokens: TokenVerifier) -> None:
        self._tokens = tokens
        self._proxy = section.proxy
        self._subjects = section.tls.subjects if section.tls else ()
        self._operators = {uid_of(name) for name in section.operators.users} | {0, os.geteuid()}
        self._operator_groups = {gid_of(name) for name in section.operators.groups}
        self.proxy_uids = {uid_of(name) for name in self._proxy.users} if self._proxy else set()

    async def caller(self, request: web.Request) -> Caller:
        """Return the caller. Raises :class:`aiohttp.web.HTTPException` for one who is refused."""
        transport = request.transport
        if transport is None:
            raise web.HTTPBadRequest(text="the connection is closed")
        place = transport.get_extra_info("sockname")
        tls = transport.get_extra_info("ssl_object")
        by_proxy = self.is_proxied(request)
        if by_proxy and peer_of(transport)[0] not in self.proxy_uids:
            raise web.HTTPForbidden(text="this socket is for the reverse proxy alone")
        if (token := bearer_of(request)) is not None:
            return Caller(*await self._tokens.verify(token))
        if by_proxy and self._proxy:
            return proxied(self._proxy, request)
        if isinstance(place, str | bytes):
            # it may ask another host
            return await asyncio.to_thread(self._of_account, *peer_of(transport))
        if tls is not None:
            return certified(self._subjects, tls.getpeercert() or {})
        # a name that some page made to mean this host (DNS rebinding)
        if not is_loopback(named_host(request)):
            raise web.HTTPMisdirectedRequest(
                text="address this service by `localhost` or a loopback address"
            )
        return Caller("", Role.READ)

    def is_proxied(self, request: web.Request) -> bool:
        """Return True if the request came through the socket of the proxy."""
        place = request.transport.get_extra_info("sockname") if request.transport else None
        return self._proxy is not None and place == str(self._proxy.socket)

    def _of_account(self, uid: int, gid: int) -> Caller:
        name, groups = account(uid, gid, int(time.time() // 60))
        operates = uid in self._operators or not self._operator_groups.isdisjoint(groups)
        return Caller(name, Role.OPERATE if operates else Role.READ)


def bearer_of(request: web.Request) -> str | None:
    """Return the bearer token of a request; None: it has none."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def named_host(request: web.Request) -> str:
    """Return the host that a request is addressed to; empty for a header that names none."""
    try:
        return request.url.host or ""
    except ValueError:
        return ""


def peer_of(transport: Any) -> tuple[int, int]:
    """Return user and group of the process at the other end of a unix socket."""
    return credentials_of(transport.get_extra_info("socket"))


@lru_cache(maxsize=256)
def account(uid: int, gid: int, minute: int) -> tuple[str, frozenset[int]]:
    """Return name and groups of an account as they are in this minute."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}", frozenset([gid])
    return name, frozenset(os.getgrouplist(name, gid))


def uid_of(name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise VerbError(
            f"web: no user `{name}` on this host; correct `operators.users` or `proxy.users`"
        ) from None


def gid_of(name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise VerbError(
            f"web: no group `{name}` on this host; correct `operators.groups`"
        ) from None


def proxied(section: WebProxySection, request: web.Request) -> Caller:
    """Return the user that the reverse proxy names, with the highest role of their groups."""

    def header(name: str) -> str:
        values = request.headers.getall(name, [])
        if len(values) > 1:  # one of them may be the client's own
            raise web.HTTPBadRequest(
                text=f"the proxy sent {len(values)} headers {name}: it must set one"
            )
        return "".join(values).strip()

    name = sanitize(header("X-Remote-User"), NAME_LENGTH)
    listed = header("X-Remote-Groups")
    if not name:
        return Caller()
    groups = {group.strip() for group in listed.split(section.group_separator)} | {"*"}
    return Caller(name, Role.highest(section.groups.get(group) for group in groups))


def certified(subjects: Sequence[WebSubjectSection], certificate: Mapping[str, Any]) -> Caller:
    """Return the subject of a client certificate that TLS has verified."""
    parts = [
        (SHORT_NAMES.get(key, key), value)
        for rdn in certificate.get("subject", ())
        for key, value in rdn
    ]
    name = sanitize("".join(f"/{key}={value}" for key, value in parts), NAME_LENGTH)
    for subject in subjects:
        wanted = parse_dn(subject.dn)
        if [key for key, _ in wanted] == [key for key, _ in parts] and all(
            fnmatchcase(value, pattern)
            for (_, value), (_, pattern) in zip(parts, wanted, strict=True)
        ):
            return Caller(name, subject.role)
    return Caller(name)
