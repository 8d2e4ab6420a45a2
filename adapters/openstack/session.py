"""The way to the services of one cloud: who is asked with which token, in which version, and what a silence means."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, urlsplit

import aiohttp

from adapters.openstack.clouds import Access, ApplicationCredential, Domain, NamedReference, Password, access, trust
from adapters.openstack.errors import complaint, of_answer, of_question
from adapters.shared import http
from adapters.shared.printing import printable
from provisioner.config.messages import choices
from provisioner.interfaces import AdapterError, AuthError, OutcomeUnknownError, UnavailableError
from provisioner.model import FaultKind

if TYPE_CHECKING:
    from adapters.openstack.settings import CloudAccess

Query = Sequence[tuple[str, str]]
Version = tuple[int, int]

SPOKEN: Version = (2, 90)
"""The newest microversion of Nova that we ask for."""
OLDEST: Version = (2, 52)
"""Tags when a server is made (Pike's last but one). 2.37 is `networks: none`, 2.47 the flavour within a server."""
EXTRA_SPECS: Version = (2, 61)
"""From here on flavours are listed with their extra specs. (2.69: servers of a cell that is down are listed, too.)"""

_TRIES = 3
_PAUSE_S = 0.2
_PASSING = (502, 503, 504)
_MOST_PAGES = 500
_API = {"compute": "/v2.1", "network": "/v2.0", "image": "/v2", "block-storage": "/v3"}
"""Path to append to an address without a version, as those of Neutron and Glance mostly are."""
_VERSIONED = re.compile(r"/v\d+(\.\d+)?(/|$)")
_MICROVERSION = re.compile(r"(\d{1,3})\.(\d{1,5})")


class OpenStackSession:
    """HTTP to a cloud. Logs in when first asked; connections are kept and shared."""

    def __init__(self, settings: CloudAccess, *, parallel: int, entered: Callable[[Login], None]) -> None:
        self._wire = OpenStackHttp(parallel)
        self._keystone = Keystone(settings, self._wire, entered)
        self._versions: dict[str, Version] = {}
        """Microversion by Nova's address."""

    async def __aenter__(self) -> Self:
        await self._wire.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._wire.__aexit__(*exc)

    # -------------------------------------------------------------------------------------------------------- asking

    async def read(
        self,
        service: str,
        path: str,
        query: Query = (),
        *,
        body: Mapping[str, Any] | None = None,
        lacking: Collection[int] = (),
        deadline_s: float,
    ) -> Mapping[str, Any] | None:
        """Return the answer at ``path``; None if the status is one of ``lacking``. Retries within the deadline.

        Raises:
            UnavailableError: no answer, or one that cannot be parsed.
            AuthError: the credentials are not accepted, or do not allow this.
        """
        method = "GET" if body is None else "POST"
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._patiently(method, service, path, query, body)
        except TimeoutError:
            raise UnavailableError(f"{service}: no answer within {deadline_s:g} s") from None
        if answer.status in lacking:
            return None
        if answer.status != 200:
            raise of_question(answer.status, answer.complaint[0], f"{service}: {answer.said}")
        if not answer.whole:
            raise UnavailableError(f"{service}: its answer is no JSON object, or not all of it")
        return answer.body

    async def pages(
        self, service: str, path: str, key: str, query: Query = (), *, deadline_s: float
    ) -> list[Mapping[str, Any]]:
        """Return all pages of a list, each within the deadline, in the page size of the service.

        With a ``limit`` Nova would silently leave out the servers of a cell that is down. Of the link to the next
        page only its marker is used: its address is often one from behind a proxy, and the token goes only to
        addresses of the catalogue. Raises UnavailableError if a page is missing.
        """
        found: list[Mapping[str, Any]] = []
        markers: set[str] = set()
        marker: list[tuple[str, str]] = []
        for _ in range(_MOST_PAGES):
            page = await self.read(service, path, [*query, *marker], deadline_s=deadline_s)
            found += listed(service, page, key)
            told = _next(page, key)
            if told is None:
                return found
            if not told or told in markers:
                raise UnavailableError(f"{service}: the pages of `{key}` lead nowhere")
            markers.add(told)
            marker = [("marker", told)]
        raise UnavailableError(f"{service}: there are more than {_MOST_PAGES} pages of `{key}`")

    async def order(
        self,
        service: str,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        settled: Collection[int] = (),
        deadline_s: float,
    ) -> OpenStackReply:
        """Something is to be done, and is asked for once; the answer, if it is a yes or one of ``settled``.

        Raises:
            UnavailableError: it was not asked, or is not there.
            AuthError, RejectedError: it said no, and nothing was done.
            OutcomeUnknownError: the request was sent, and its answer is missing or cannot be parsed.
        """
        sent: list[bool] = []
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._admitted(method, service, path, (), body, sent)
        except TimeoutError:
            raise _silence(service, sent, f"no answer within {deadline_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _silence(service, sent, _why(error)) from None
        if not 200 <= answer.status < 300 and answer.status not in settled:
            raise of_answer(answer.status, *answer.complaint, text=f"{service}: {answer.said}")
        return answer

    async def login(self, *, deadline_s: float) -> Login:
        """Return the current login."""
        try:
            async with asyncio.timeout(deadline_s):
                return await self._keystone.login()
        except TimeoutError:
            raise UnavailableError(f"keystone: no answer within {deadline_s:g} s") from None

    async def microversion(self, *, deadline_s: float) -> Version:
        """Return the microversion that is used with Nova."""
        try:
            async with asyncio.timeout(deadline_s):
                return await self._spoken(await self._keystone.login())
        except TimeoutError:
            raise UnavailableError(f"compute: no answer within {deadline_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UnavailableError(f"compute: {_why(error)}") from None

    # ------------------------------------------------------------------------------------------------------- exchanges

    async def _patiently(
        self, method: str, service: str, path: str, query: Query, body: Mapping[str, Any] | None
    ) -> OpenStackReply:
        for attempt in range(_TRIES):
            last = attempt == _TRIES - 1
            try:
                answer = await self._admitted(method, service, path, query, body, [])
            except (aiohttp.ClientError, OSError, ValueError) as error:
                if last or not isinstance(error, aiohttp.ClientConnectionError):
                    raise UnavailableError(f"{service}: {_why(error)}") from None
            else:
                if last or answer.status not in _PASSING or "retry-after" in answer.headers:
                    return answer
            await asyncio.sleep(_PAUSE_S * 2**attempt)
        raise AssertionError("the last try returns or raises")

    async def _admitted(
        self,
        method: str,
        service: str,
        path: str,
        query: Query,
        body: Mapping[str, Any] | None,
        sent: list[bool],
    ) -> OpenStackReply:
        """Send a request, and send it again with a new token if the token was refused."""
        login = await self._keystone.login()
        answer = await self._exchange(login, method, service, path, query, body, sent)
        if answer.status == 401:
            sent.clear()
            login = await self._keystone.login(refused=login)
            answer = await self._exchange(login, method, service, path, query, body, sent)
        if answer.status == 401:
            raise AuthError(f"{service}: it refuses a token that Keystone has just given: {answer.said}")
        return answer

    async def _exchange(
        self,
        login: Login,
        method: str,
        service: str,
        path: str,
        query: Query,
        body: Mapping[str, Any] | None,
        sent: list[bool],
    ) -> OpenStackReply:
        url = _address(service, login.url(service))
        headers = {"X-Auth-Token": login.token}
        if service == "compute":
            headers["OpenStack-API-Version"] = "compute {}.{}".format(*await self._spoken(login))
        answer = await self._wire.exchange(
            method, f"{url}{path}", query, body=body, headers=headers, trust=login.trust, sent=sent
        )
        if answer.status == 406 and url in self._versions:
            del self._versions[url]
            raise UnavailableError(f"{service}: it is of another release than before: {answer.said}")
        return answer

    async def _spoken(self, login: Login) -> Version:
        """Return the newest microversion that Nova and this adapter support, found out once for an address."""
        url = _address("compute", login.url("compute"))
        if (known := self._versions.get(url)) is not None:
            return known
        # The address may go on after the version (`/v2.1/PROJECT`), where there is nothing to be read.
        root = url[: found.end()] if (found := _VERSIONED.search(url)) else url
        answer = await self._told(login, f"{root.rstrip('/')}/")
        if answer.status == 401:
            answer = await self._told(await self._keystone.login(refused=login), f"{root.rstrip('/')}/")
        told = answer.body.get("version")
        newest = _MICROVERSION.fullmatch(str(told.get("version"))) if isinstance(told, dict) else None
        if answer.status != 200 or not answer.whole:
            raise of_question(
                answer.status, answer.complaint[0], f"compute: it does not tell its version: {answer.said}"
            )
        if newest is None or (version := (int(newest[1]), int(newest[2]))) < OLDEST:
            theirs = f"it speaks microversions up to {newest[0]}" if newest else "it speaks no microversions"
            message = f"compute: {theirs}, and at least {OLDEST[0]}.{OLDEST[1]} is wanted (Nova of Pike, 2017)"
            raise UnavailableError(f"{message}: another `region`, or another cloud", FaultKind.CONFIG)
        self._versions[url] = min(version, SPOKEN)
        return self._versions[url]

    async def _told(self, login: Login, url: str) -> OpenStackReply:
        return await self._wire.exchange("GET", url, headers={"X-Auth-Token": login.token}, trust=login.trust, sent=[])


def _silence(service: str, sent: Sequence[bool], why: str) -> AdapterError:
    return OutcomeUnknownError(f"{service}: {why}") if sent else UnavailableError(f"{service}: {why}")


def _why(error: Exception) -> str:
    return printable(str(error) or type(error).__name__)


def _address(service: str, url: str) -> str:
    return url if _VERSIONED.search(urlsplit(url).path) else url + _API[service]


def listed(service: str, page: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    """Return the list in an answer. Raises UnavailableError if it is missing or truncated."""
    items = (page or {}).get(key)
    if not isinstance(items, list) or not all(isinstance(each, dict) for each in items):
        raise UnavailableError(f"{service}: it gives an answer without a list of `{key}`")
    return items


def _next(page: Mapping[str, Any] | None, key: str) -> str | None:
    """Return the marker of the next page, empty if its link has none; None at the end."""
    links = (page or {}).get(f"{key}_links")
    offered = [each for each in links if isinstance(each, dict)] if isinstance(links, list) else []
    href = next((each.get("href") for each in offered if each.get("rel") == "next"), (page or {}).get("next"))  # Glance
    if not href:
        return None
    try:
        return parse_qs(urlsplit(str(href)).query).get("marker", [""])[0]
    except ValueError:
        return ""


LARGEST_ANSWER = 32 * 1024**2
"""Bytes of one answer, which is one page; what is longer is not listened to any longer."""
_LONGEST_WORDS = 300
_ECHO = re.compile(r"\S{64,}")
"""Nova says a value that it refuses once more, and user data hold what a drone joins its pool with."""


@dataclass(frozen=True, slots=True)
class OpenStackReply:
    """Reply of a service."""

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


class OpenStackHttp:
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
    ) -> OpenStackReply:
        """One call and its answer; raises and ``sent`` as in :func:`adapters.shared.http.exchange`."""
        assert self._session is not None, "not entered"
        session, largest = self._session, LARGEST_ANSWER
        reply = await http.exchange(
            session, method, url, query, body=body, headers=headers, trust=trust, sent=sent, largest=largest
        )
        return _answer(reply.status, reply.raw, reply.headers)


def _answer(status: int, raw: bytes, headers: Mapping[str, str]) -> OpenStackReply:
    if not raw.strip():
        return OpenStackReply(status, {}, status in (202, 204), "", headers)
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, dict):
        return OpenStackReply(status, body, True, "", headers)
    return OpenStackReply(status, {}, False, " ".join(raw[:600].decode(errors="replace").split()), headers)


if TYPE_CHECKING:
    from adapters.openstack.settings import CloudAccess

SERVICES: Mapping[str, tuple[str, ...]] = {
    "compute": ("compute",),
    "network": ("network",),
    "image": ("image",),
    "block-storage": ("block-storage", "volumev3", "block-store", "volumev2", "volume"),
}
"""Services that we ask -> their types in catalogues, the best first (OpenStack's service-types authority)."""
_RENEWED_BEFORE_S = 60.0
"""A token is not used in its last minute: Nova passes it on, to Neutron and Glance, while it works on an order."""
_UNTOLD_LIFE_S = 300.0
_TOKEN = re.compile(r"[\x21-\x7e]{1,16384}")
_URL = re.compile(r"https?://[^\s?#@]+")


class ServiceMissingError(UnavailableError):
    """The catalogue has no such service for us."""

    kind = FaultKind.CONFIG


@dataclass(frozen=True, slots=True)
class Endpoint:
    service: str
    interface: str
    region: str
    url: str


@dataclass(frozen=True, slots=True)
class Login:
    """A login that is valid now, and the catalogue."""

    token: str = field(repr=False)
    project: str
    user: str
    endpoints: Sequence[Endpoint]
    region: str
    interface: str
    source: str
    trust: ssl.SSLContext | bool = field(repr=False)
    good_until: float
    """By the loop's clock."""

    def url(self, service: str) -> str:
        """Where a service is, without a slash at the end. NoService, saying what there is."""
        offered = [each for each in self.endpoints if each.interface == self.interface]
        region = self.region or next((each.region for each in offered if each.service == "compute"), "")
        here = [each for each in offered if each.region == region]
        for kind in SERVICES[service]:
            for each in here:
                if each.service == kind:
                    return each.url
        regions = sorted({each.region for each in self.endpoints})
        if self.region and self.region not in regions:
            message = f"there is no region `{printable(self.region, 64)}`: {choices(self.region, regions)}"
        else:
            of = f" in region `{printable(region, 64)}`" if region else ""
            message = (
                f"there is no service `{service}`{of} with interface `{self.interface}`: set `region` or `interface`,"
                " or ask the cloud's operator"
            )
        raise ServiceMissingError(f"{self.source}: in the catalogue {printable(message, 600)}")


class Keystone:
    """Logs in when first asked, anew before the token ends, and once more when a service refuses it."""

    def __init__(self, settings: CloudAccess, wire: OpenStackHttp, entered: Callable[[Login], None]) -> None:
        self._settings = settings
        self._wire = wire
        self._entered = entered
        """Told of each login."""
        self._login: Login | None = None
        self._one = asyncio.Lock()
        self._done = 0
        """Logins that were tried to their end."""
        self._failure: AdapterError | None = None

    async def login(self, refused: Login | None = None) -> Login:
        """Return a valid login other than ``refused``.

        Raises:
            AuthError: Keystone does not accept the credentials, or they are invalid.
            UnavailableError: Keystone does not answer, or not as a Keystone does.
        """
        if (good := self._good(refused)) is not None:
            return good
        before = self._done
        async with self._one:
            if (good := self._good(refused)) is not None:
                return good
            if self._done != before and self._failure is not None:
                # Who waited while another was refused is so, too: a wrong password many times locks accounts.
                raise type(self._failure)(str(self._failure), self._failure.kind)
            try:
                self._login, self._failure = await self._log_in(), None
            except AdapterError as error:
                self._login, self._failure = None, error
                self._done += 1
                raise
            self._done += 1
            self._entered(self._login)
            return self._login

    def _good(self, refused: Login | None) -> Login | None:
        login = self._login
        if login is None or login is refused or asyncio.get_running_loop().time() >= login.good_until:
            return None
        return login

    async def _log_in(self) -> Login:
        wanted = access(self._settings)
        believed = trust(wanted)
        answer = await self._asked(wanted, believed)
        token = answer.headers.get("x-subject-token", "")
        told = answer.body.get("token")
        if answer.status not in (200, 201) or not _TOKEN.fullmatch(token) or not isinstance(told, dict):
            raise self._refusal(wanted, answer)
        project, user = _id(told, "project"), _id(told, "user")
        if not project:
            raise AuthError(f"{wanted.source}: the token is for no project: set `project_name`", FaultKind.CONFIG)
        return Login(
            token=token,
            project=project,
            user=user,
            endpoints=_endpoints(told.get("catalog")),
            region=wanted.region,
            interface=wanted.interface,
            source=wanted.source,
            trust=believed,
            good_until=asyncio.get_running_loop().time() + _life_s(told) - _RENEWED_BEFORE_S,
        )

    async def _asked(self, wanted: Access, believed: ssl.SSLContext | bool) -> OpenStackReply:
        url, body = f"{wanted.auth_url}/auth/tokens", _identity(wanted.who)
        try:
            return await self._wire.exchange("POST", url, body=body, headers={}, trust=believed, sent=[])
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = printable(str(error) or type(error).__name__)
            raise UnavailableError(f"keystone at {wanted.auth_url}: {why}") from None

    def _refusal(self, wanted: Access, answer: OpenStackReply) -> AdapterError:
        where, said = f"keystone at {wanted.auth_url}", answer.said.replace(wanted.who.secret, "***")
        # One that was revoked is not refused but not found.
        revoked = answer.status == 404 and "application credential" in answer.said.lower()
        if answer.status in (401, 403) or revoked:
            return AuthError(f"{where}: {wanted.who} ({wanted.source}) is refused: {said}")
        if answer.status in (300, 301, 302, 307, 308, 404, 405):
            return UnavailableError(
                f"{where}: it is no Keystone v3: check `auth_url` of {wanted.source}: {said}", FaultKind.CONFIG
            )
        if answer.status == 400:
            return UnavailableError(f"{where}: it does not understand {wanted.source}: {said}", FaultKind.CONFIG)
        if answer.status == 429:
            return UnavailableError(f"{where}: {said}", FaultKind.THROTTLED)
        if answer.status < 300:
            return UnavailableError(f"{where}: it gives an answer that is no token")
        return UnavailableError(f"{where}: {said}")


# ------------------------------------------------------------------------------------------------------------- asking


def _identity(who: ApplicationCredential | Password) -> Mapping[str, Any]:
    """Return the body of a login.

    Source: Identity API v3, "Password authentication" and "Authenticating with an Application Credential".
    """
    if isinstance(who, ApplicationCredential):
        named = {"id": who.id} if who.id else {"name": who.name, "user": _named(who.user)}
        method = {"application_credential": {**named, "secret": who.secret}}
        return {"auth": {"identity": {"methods": ["application_credential"], **method}}}
    user = {**_named(who.user), "password": who.password}
    identity = {"methods": ["password"], "password": {"user": user}}
    return {"auth": {"identity": identity, "scope": {"project": _named(who.project)}}}


def _named(whom: NamedReference) -> dict[str, Any]:
    return {"id": whom.id} if whom.id else {"name": whom.name, "domain": _domain(whom.domain)}


def _domain(domain: Domain) -> dict[str, str]:
    return {"id": domain.id} if domain.id else {"name": domain.name}


# ------------------------------------------------------------------------------------------------------------- answers


def _id(told: Mapping[str, Any], key: str) -> str:
    found = told.get(key)
    identity = found.get("id") if isinstance(found, dict) else None
    return identity if isinstance(identity, str) else ""


def _life_s(told: Mapping[str, Any]) -> float:
    """By Keystone's clock alone, which need not agree with ours."""
    try:
        issued, expires = (datetime.fromisoformat(str(told.get(key))) for key in ("issued_at", "expires_at"))
        return max(0.0, (expires - issued).total_seconds())
    except (ValueError, TypeError):  # no times, or one of them without a zone
        return _UNTOLD_LIFE_S


def _endpoints(catalogue: object) -> Sequence[Endpoint]:
    """Those that we could use; what is odd in a catalogue is left out."""
    found = []
    for service in catalogue if isinstance(catalogue, list) else ():
        offered = service.get("endpoints") if isinstance(service, dict) else None
        for each in offered if isinstance(offered, list) else ():
            if not isinstance(each, dict):
                continue
            kind, interface, url = service.get("type"), each.get("interface"), each.get("url")
            region = each.get("region_id") or each.get("region") or ""
            if not (isinstance(kind, str) and isinstance(interface, str) and isinstance(region, str)):
                continue
            if isinstance(url, str) and _URL.fullmatch(url):
                found.append(Endpoint(kind, interface, region, url.rstrip("/")))
    return found
