"""HTTP to the services of one cloud: login at Keystone, addresses of its catalogue, versions and pages."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
import time
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import aiohttp

from adapters.openstack.clouds import HTTP_URL, Access, read_access, trusted_certificates
from adapters.openstack.servers import fault_in, order_error, read_error
from adapters.openstack.settings import CloudAccess
from adapters.shared import http
from adapters.shared.json_records import Record, mapping, mappings, moment, text
from adapters.shared.printing import printable
from provisioner.interfaces import AdapterError, AuthError, UnavailableError
from provisioner.model import Credential, FaultKind
from provisioner.values import frozen

Query = Sequence[tuple[str, str]]
Version = tuple[int, int]

NEWEST_VERSION: Version = (2, 90)
"""The newest microversion of Nova that we ask for."""
OLDEST_VERSION: Version = (2, 61)
"""Flavours are listed with their extra specs (Rocky). 2.37 is `networks: none`, 2.47 the flavour
within a server, 2.52 tags when a server is made; 2.69: servers of a cell that is down are listed,
too."""

_MAX_PAGES = 500
_MAX_REPLY_BYTES = 32 * 1024**2
"""Bytes of one answer, which is one page; of a longer one no more is read."""
_ECHO = re.compile(r"\S{64,}")
"""Nova says a value that it refuses once more, and user data hold what a drone joins its pool with."""
_API_PATHS = {"compute": "/v2.1", "network": "/v2.0", "image": "/v2", "block-storage": "/v3"}
"""Path to append to an address without a version, as those of Neutron and Glance mostly are."""
_VERSIONED = re.compile(r"/v\d+(\.\d+)?(/|$)")
_MICROVERSION = re.compile(r"(\d{1,3})\.(\d{1,5})")
_VOLUME_TYPES = ("block-storage", "volumev3", "block-store", "volumev2", "volume")
"""Types of Cinder in catalogues, the best first (OpenStack's service-types authority)."""
_RENEWED_BEFORE_S = 60.0
"""A token is not used in its last minute: Nova passes it on, to Neutron and Glance, while it works on an order."""
_DEFAULT_LIFE_S = 300.0
_KEYSTONE_TOKEN = re.compile(r"[\x21-\x7e]{1,16384}")


class ServiceMissingError(UnavailableError):
    """The catalogue has no such service for us."""

    kind = FaultKind.CONFIG


@frozen
class OpenStackReply:
    """Reply of a service."""

    status: int
    body: Record
    whole: bool
    """``body`` is all of it: it was a JSON object, or nothing at all, as 202 and 204 may be."""
    beginning: str
    """Text of a reply that is no JSON object."""
    headers: Mapping[str, str] = field(repr=False)
    """In lower case. One of them may be a token."""

    @property
    def fault(self) -> tuple[str, str]:
        key, words = fault_in(self.body)
        return key, words or self.beginning

    def __str__(self) -> str:
        """Return the fault for people: words, status, when to come again, and its id in the cloud's own log."""
        words = _ECHO.sub(lambda echo: f"{echo[0][:12]}...", self.fault[1].strip())
        parts = [f"HTTP {self.status}"]
        if wait := self.headers.get("retry-after"):
            parts.append(
                f"try again after {printable(wait, 40)}" + (" s" if wait.isdecimal() else "")
            )
        if request := self.headers.get("x-openstack-request-id"):
            parts.append(printable(request, 60))
        return f"{printable(words, 300) or 'no message'} ({', '.join(parts)})"


@frozen
class Login:
    """A login, and the catalogue."""

    token: str = field(repr=False)
    access: Access
    trust: ssl.SSLContext | bool = field(repr=False)
    catalogue: Sequence[tuple[str, str, str]]
    """Type, region and address of each service with our interface."""
    good_until: float
    """By the monotonic clock."""
    version: Version = (0, 0)

    def url(self, service: str) -> str:
        """Return the versioned address of a service. Raises ServiceMissingError."""
        used = self.access.region or next(
            (region for kind, region, _ in self.catalogue if kind == "compute"), ""
        )
        for wanted in _VOLUME_TYPES if service == "block-storage" else (service,):
            for kind, region, url in self.catalogue:
                if (kind, region) == (wanted, used):
                    return (
                        url if _VERSIONED.search(urlsplit(url).path) else url + _API_PATHS[service]
                    )
        regions = (
            ", ".join(sorted({printable(region, 64) for _, region, _ in self.catalogue})) or "none"
        )
        raise ServiceMissingError(
            f"{self.access.source}: no service `{service}` in region `{printable(used, 64)}` with interface"
            f" `{self.access.interface}` in the catalogue: set `region` (there are {regions}) or `interface`"
        )


class OpenStackSession:
    """HTTP to a cloud. It logs in at its first call; connections are kept, shared, and at most ``parallel``."""

    def __init__(self, access: CloudAccess, *, deadline_s: float, parallel: int) -> None:
        self.project = ""
        self.user = ""
        """Ids of where and who we are; empty before the first login."""
        self.credential: Credential | None = None
        """The account that logged in last, with the end of its application credential or password."""
        self._settings = access
        self._deadline_s = deadline_s
        self._parallel = parallel
        self._http: aiohttp.ClientSession | None = None
        self._current: Login | None = None
        self._login_lock = asyncio.Lock()
        self._logins = 0
        """Logins that were tried to their end."""
        self._login_error: AdapterError | None = None

    async def __aenter__(self) -> Self:
        self._http = http.session(aiohttp.TCPConnector(limit=self._parallel))
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def read(
        self,
        service: str,
        path: str,
        query: Query = (),
        *,
        body: Record | None = None,
        lacking: Collection[int] = (),
    ) -> Record | None:
        """Return the answer at ``path``; None if the status is one of ``lacking``.

        Raises UnavailableError without an answer that can be parsed, and AuthError if it is not
        allowed.
        """
        method = "GET" if body is None else "POST"
        call = self._authorized(service, method, path, query, body, [])
        reply = await http.answered(call, f"{service}: ", deadline_s=self._deadline_s)
        if reply.status in lacking:
            return None
        if reply.status != 200:
            raise read_error(reply.status, reply.fault[0], f"{service}: {reply}")
        if not reply.whole:
            raise UnavailableError(f"{service}: its answer is no JSON object, or not all of it")
        return reply.body

    async def pages(self, service: str, path: str, key: str, query: Query = ()) -> list[Record]:
        """Return all pages of a list. Raises as :meth:`each_page`."""
        return [each async for page in self.each_page(service, path, key, query) for each in page]

    async def each_page(
        self, service: str, path: str, key: str, query: Query = ()
    ) -> AsyncGenerator[list[Record], None]:
        """Yield the pages of a list, each within the deadline, in the page size of the service.

        With a ``limit`` Nova would silently leave out the servers of a cell that is down. Of the
        link to the next page only its marker is used: its address is often one from behind a proxy,
        and the token goes only to addresses of the catalogue. Raises UnavailableError if a page is
        missing.
        """
        markers: set[str] = set()
        marker: Query = ()
        for _ in range(_MAX_PAGES):
            page = await self.read(service, path, [*query, *marker])
            yield listed(service, page, key)
            following = _next_marker(page or {}, key)
            if following is None:
                return
            if not following or following in markers:
                raise UnavailableError(f"{service}: the pages of `{key}` lead nowhere")
            markers.add(following)
            marker = [("marker", following)]
        raise UnavailableError(f"{service}: there are more than {_MAX_PAGES} pages of `{key}`")

    async def order(
        self,
        service: str,
        method: str,
        path: str,
        body: Record | None = None,
        *,
        accepted: Collection[int] = (),
        deadline_s: float | None = None,
    ) -> OpenStackReply:
        """Send an order once, and return the reply if it is a success or its status is one of ``accepted``.

        Raises:
            UnavailableError: it was not sent, or nothing is there.
            AuthError, RejectedError: it was rejected, and nothing was done.
            OutcomeUnknownError: it was sent, and the reply is missing or cannot be parsed.
        """
        sent: list[bool] = []
        call = self._authorized(service, method, path, (), body, sent)
        limit_s = self._deadline_s if deadline_s is None else deadline_s
        reply = await http.answered(call, f"{service}: ", deadline_s=limit_s, sent=sent)
        if 200 <= reply.status < 300 or reply.status in accepted:
            return reply
        raise order_error(reply.status, *reply.fault, words=f"{service}: {reply}")

    async def _authorized(
        self,
        service: str,
        method: str,
        path: str,
        query: Query,
        body: Record | None,
        sent: list[bool],
    ) -> OpenStackReply:
        """Send a request, and send it again with a new token if the token was refused."""
        refused = None
        for _ in range(2):
            login = await self._login(refused)
            headers = {"X-Auth-Token": login.token}
            if service == "compute":
                headers["OpenStack-API-Version"] = "compute {}.{}".format(*login.version)
            how: Any = {"query": query, "body": body, "headers": headers, "sent": sent}
            reply = await self._exchange(login.trust, method, login.url(service) + path, **how)
            if reply.status == 406 and service == "compute":
                self._current = None  # a login finds out the version
                raise UnavailableError(f"compute: it is of another release than before: {reply}")
            if reply.status != 401:
                return reply
            sent.clear()
            refused = login
        raise AuthError(f"{service}: it refuses a token that Keystone has just given: {reply}")

    async def _exchange(
        self, trust: ssl.SSLContext | bool, method: str, url: str, **how: Any
    ) -> OpenStackReply:
        """Make one call, as :func:`adapters.shared.http.exchange`."""
        if self._http is None:
            raise UnavailableError("the site is not connected")
        reply = await http.exchange(
            self._http, method, url, trust=trust, largest=_MAX_REPLY_BYTES, **how
        )
        if not reply.raw.strip():
            return OpenStackReply(reply.status, {}, reply.status in (202, 204), "", reply.headers)
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(parsed := json.loads(reply.raw), dict):
                return OpenStackReply(reply.status, parsed, True, "", reply.headers)
        beginning = " ".join(reply.raw[:600].decode(errors="replace").split())
        return OpenStackReply(reply.status, {}, False, beginning, reply.headers)

    async def _login(self, refused: Login | None = None) -> Login:
        """Return a valid login other than ``refused``. Raises AuthError, or UnavailableError without an answer."""
        before = self._logins
        async with self._login_lock:
            login = self._current
            if login is not None and login is not refused and time.monotonic() < login.good_until:
                return login
            if self._logins != before and self._login_error is not None:
                # Who waited while another was refused is so, too: a wrong password many times locks
                # accounts.
                raise type(self._login_error)(str(self._login_error), self._login_error.kind)
            self._current = self._login_error = None
            try:
                self._current = login = await self._new_login()
            except AdapterError as error:
                self._login_error = error
                self._logins += 1
                raise
            self._logins += 1
            return login

    async def _new_login(self) -> Login:
        access = read_access(self._settings)
        trust = trusted_certificates(access)
        where = f"keystone at {access.auth_url}"
        try:
            url = f"{access.auth_url}/auth/tokens"
            reply = await self._exchange(
                trust, "POST", url, body={"auth": access.identity}, headers={}, sent=[]
            )
            token = reply.headers.get("x-subject-token", "")
            described = reply.body.get("token")
            is_token = _KEYSTONE_TOKEN.fullmatch(token) and isinstance(described, dict)
            if reply.status not in (200, 201) or not is_token:
                raise _login_refusal(where, access, reply)
            described = mapping(described)
            if not (project := text(described, "project", "id")):
                raise AuthError(
                    f"{access.source}: the token is for no project: set `project_name`",
                    FaultKind.CONFIG,
                )
            self.project = project
            self.user = text(described, "user", "id")
            good_until = time.monotonic() + _life_s(described) - _RENEWED_BEFORE_S
            login = Login(
                token,
                access,
                trust,
                _catalogue(described.get("catalog"), access.interface),
                good_until,
            )
            where = "compute"
            login = replace(login, version=await self._microversion(login))
            ends = await self._credential_end(login, described)
            self.credential = Credential("cloud", access.source, access.user, not_after=ends)
            return login
        except http.HTTP_ERRORS as error:
            raise UnavailableError(f"{where}: {http.words_of(error)}") from None

    async def _credential_end(self, login: Login, described: Record) -> float:
        """Return when the application credential or the password ends; 0: never, or Keystone does not tell us."""
        access = login.access
        given = mapping(access.identity, "identity", "application_credential")
        if not given:
            return moment(described, "user", "password_expires_at")
        name = text(described, "application_credential", "id") or text(given, "id")
        url = f"{access.auth_url}/users/{self.user}/application_credentials/{name}"
        reply = await self._exchange(
            login.trust, "GET", url, headers={"X-Auth-Token": login.token}, sent=[]
        )
        return moment(reply.body, "application_credential", "expires_at")

    async def _microversion(self, login: Login) -> Version:
        """Return the newest microversion that Nova and this adapter support."""
        url = login.url("compute")
        # The address may go on after the version (`/v2.1/PROJECT`), where there is nothing to be
        # read.
        root = url[: found.end()] if (found := _VERSIONED.search(url)) else url
        headers = {"X-Auth-Token": login.token}
        reply = await self._exchange(
            login.trust, "GET", f"{root.rstrip('/')}/", headers=headers, sent=[]
        )
        if reply.status != 200 or not reply.whole:
            raise read_error(
                reply.status, reply.fault[0], f"compute: it does not tell its version: {reply}"
            )
        newest = _MICROVERSION.fullmatch(str(mapping(reply.body, "version").get("version")))
        if newest is None or (version := (int(newest[1]), int(newest[2]))) < OLDEST_VERSION:
            theirs = f"up to {newest[0]}" if newest else "not at all"
            message = f"compute: it speaks microversions {theirs}, and at least 2.61 is wanted (Nova of Rocky, 2018)"
            raise UnavailableError(
                f"{message}: another `region`, or another cloud", FaultKind.CONFIG
            )
        return min(version, NEWEST_VERSION)


def _login_refusal(keystone: str, access: Access, reply: OpenStackReply) -> AdapterError:
    words = str(reply).replace(access.secret, "***")
    # One that was revoked is not refused but not found.
    revoked = reply.status == 404 and "application credential" in words.lower()
    if reply.status in (401, 403) or revoked:
        return AuthError(f"{keystone}: {access.user} ({access.source}) is refused: {words}")
    if 300 <= reply.status <= 308 or reply.status in (400, 404, 405):
        what = f"it does not understand the login: check `auth_url` of {access.source}"
        return UnavailableError(f"{keystone}: {what}: {words}", FaultKind.CONFIG)
    if reply.status < 300:
        return UnavailableError(f"{keystone}: it gives an answer that is no token")
    return UnavailableError(
        f"{keystone}: {words}", FaultKind.THROTTLED if reply.status == 429 else None
    )


def _life_s(token: Record) -> float:
    try:  # by Keystone's clock alone, which need not agree with ours
        issued, expires = (
            datetime.fromisoformat(str(token.get(key))) for key in ("issued_at", "expires_at")
        )
        return max(0.0, (expires - issued).total_seconds())
    except (ValueError, TypeError):  # no times, or one of them without a zone
        return _DEFAULT_LIFE_S


def _catalogue(catalogue: object, interface: str) -> Sequence[tuple[str, str, str]]:
    # Odd entries of a catalogue are left out.
    return [
        (
            text(service, "type"),
            text(each, "region_id") or text(each, "region"),
            text(each, "url").rstrip("/"),
        )
        for service in mappings(catalogue)
        for each in mappings(service, "endpoints")
        if text(each, "interface") == interface and HTTP_URL.fullmatch(text(each, "url"))
    ]


def listed(service: str, page: Record | None, key: str) -> list[Record]:
    """Return the list in an answer. Raises UnavailableError if it is missing or truncated."""
    items = (page or {}).get(key)
    if not isinstance(items, list) or len(items) != len(mappings(items)):
        raise UnavailableError(f"{service}: it gives an answer without a list of `{key}`")
    return items


def _next_marker(page: Record, key: str) -> str | None:
    """Return the marker of the next page, empty if its link has none; None at the end."""
    links = [
        each.get("href") for each in mappings(page, f"{key}_links") if each.get("rel") == "next"
    ]
    href = next(iter(links), page.get("next"))  # Glance
    if not href:
        return None
    try:
        return parse_qs(urlsplit(str(href)).query).get("marker", [""])[0]
    except ValueError:
        return ""
