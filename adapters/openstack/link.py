"""The way to the services of one cloud: who is asked with which token, in which version, and what a silence means."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, urlsplit

import aiohttp

from adapters.openstack.faults import of_answer, of_question
from adapters.openstack.keystone import Keystone, Login
from adapters.openstack.wire import Answer, Wire
from adapters.shared.printing import printable
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
"""What follows an address that names no version, as those of Neutron and Glance mostly do."""
_VERSIONED = re.compile(r"/v\d+(\.\d+)?(/|$)")
_MICROVERSION = re.compile(r"(\d{1,3})\.(\d{1,5})")


class Link:
    """HTTP to a cloud. Logs in when first asked; connections are kept and shared."""

    def __init__(self, settings: CloudAccess, *, parallel: int, entered: Callable[[Login], None]) -> None:
        self._wire = Wire(parallel)
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
        """What is at ``path``, or what a question with a body is answered; None if the status is one of ``lacking``.
        Tried again, within the deadline, where a service stutters.

        Raises:
            UnavailableError: no answer, or none that can be understood.
            AuthError: we are not accepted, or may not ask this.
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
        """All pages of a list, each within the deadline, as large as the service makes them: a ``limit`` of ours would
        have Nova leave the servers of a cell that is down out without a word. UnavailableError if one is missing.

        Of the link to the next page only its marker is believed: the address in it is often one from behind a proxy,
        and our token goes where the catalogue says and nowhere else.
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
    ) -> Answer:
        """Something is to be done, and is asked for once; the answer, if it is a yes or one of ``settled``.

        Raises:
            UnavailableError: it was not asked, or is not there.
            AuthError, RejectedError: it said no, and nothing was done.
            Unsure: it was told, and did not answer, or not so that it could be understood.
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
        """Who we are now."""
        try:
            async with asyncio.timeout(deadline_s):
                return await self._keystone.login()
        except TimeoutError:
            raise UnavailableError(f"keystone: no answer within {deadline_s:g} s") from None

    async def microversion(self, *, deadline_s: float) -> Version:
        """The one that is spoken with Nova."""
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
    ) -> Answer:
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
    ) -> Answer:
        """The answer to us. With a token that is refused nothing was done: once more with a new one."""
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
    ) -> Answer:
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
        """The newest microversion that Nova and we speak. Found out once for an address; two that do so at a time
        find the same."""
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

    async def _told(self, login: Login, url: str) -> Answer:
        return await self._wire.exchange("GET", url, headers={"X-Auth-Token": login.token}, trust=login.trust, sent=[])


def _silence(service: str, sent: Sequence[bool], why: str) -> AdapterError:
    return OutcomeUnknownError(f"{service}: {why}") if sent else UnavailableError(f"{service}: {why}")


def _why(error: Exception) -> str:
    return printable(str(error) or type(error).__name__)


def _address(service: str, url: str) -> str:
    return url if _VERSIONED.search(urlsplit(url).path) else url + _API[service]


def listed(service: str, page: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    """The list that an answer is about. UnavailableError if it is not there or torn."""
    items = (page or {}).get(key)
    if not isinstance(items, list) or not all(isinstance(each, dict) for each in items):
        raise UnavailableError(f"{service}: it gives an answer without a list of `{key}`")
    return items


def _next(page: Mapping[str, Any] | None, key: str) -> str | None:
    """The marker of the next page, empty if there is none in the link to it; None at the end."""
    links = (page or {}).get(f"{key}_links")
    offered = [each for each in links if isinstance(each, dict)] if isinstance(links, list) else []
    href = next((each.get("href") for each in offered if each.get("rel") == "next"), (page or {}).get("next"))  # Glance
    if not href:
        return None
    try:
        return parse_qs(urlsplit(str(href)).query).get("marker", [""])[0]
    except ValueError:
        return ""
