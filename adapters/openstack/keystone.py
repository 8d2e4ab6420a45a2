"""Keystone: a token, for how long it is good, and the catalogue of the cloud's services."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import aiohttp

from adapters.openstack.clouds import Access, ApplicationCredential, Domain, Named, Password, access, trust
from adapters.openstack.wire import Answer, Wire
from adapters.shared.printing import printable
from provisioner.config.messages import choices
from provisioner.interfaces import AdapterError, AuthError, UnavailableError
from provisioner.model import FaultKind

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


class NoService(UnavailableError):
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
    """Who we are for now, and where everything is."""

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
        raise NoService(f"{self.source}: in the catalogue {printable(message, 600)}")


class Keystone:
    """Logs in when first asked, anew before the token ends, and once more when a service refuses it."""

    def __init__(self, settings: CloudAccess, wire: Wire, entered: Callable[[Login], None]) -> None:
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
        """The login that is good now, another than ``refused``.

        Raises:
            AuthError: it does not accept us, or what is set for it is no good.
            UnavailableError: it does not answer, or not as a Keystone does.
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

    async def _asked(self, wanted: Access, believed: ssl.SSLContext | bool) -> Answer:
        url, body = f"{wanted.auth_url}/auth/tokens", _identity(wanted.who)
        try:
            return await self._wire.exchange("POST", url, body=body, headers={}, trust=believed, sent=[])
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = printable(str(error) or type(error).__name__)
            raise UnavailableError(f"keystone at {wanted.auth_url}: {why}") from None

    def _refusal(self, wanted: Access, answer: Answer) -> AdapterError:
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
    """What is POSTed (Identity API v3, "Password authentication", "Authenticating with an Application Credential")."""
    if isinstance(who, ApplicationCredential):
        named = {"id": who.id} if who.id else {"name": who.name, "user": _named(who.user)}
        method = {"application_credential": {**named, "secret": who.secret}}
        return {"auth": {"identity": {"methods": ["application_credential"], **method}}}
    user = {**_named(who.user), "password": who.password}
    identity = {"methods": ["password"], "password": {"user": user}}
    return {"auth": {"identity": identity, "scope": {"project": _named(who.project)}}}


def _named(whom: Named) -> dict[str, Any]:
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
