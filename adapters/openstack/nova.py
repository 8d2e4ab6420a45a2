"""A cloud by way of its REST APIs: Nova, and Glance, Neutron and Cinder as far as servers leave things with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, Self
from urllib.parse import quote

from adapters.openstack import parsing
from adapters.openstack.errors import of_answer
from adapters.openstack.records import Flavor, Image, Limits, Port, Server, ServerAction, Volume
from adapters.openstack.session import EXTRA_SPECS, Login, OpenStackReply, OpenStackSession, ServiceMissingError, listed
from adapters.shared.printing import printable
from provisioner.interfaces import OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import FaultKind

if TYPE_CHECKING:
    from adapters.openstack.settings import CloudAccess

_GONE = frozenset({"DELETED", "SOFT_DELETED"})
_BEING_DELETED = frozenset({"deleting", "soft-deleting"})
_BEING_STOPPED = frozenset({"powering-off", *_BEING_DELETED})
_RUNS = frozenset({"ACTIVE", "BUILD", "REBOOT", "HARD_REBOOT", "PASSWORD", "REBUILD", "RESCUE", "UNKNOWN"})
"""Statuses of a guest that runs, will, or may."""


class OpenStackCloud:
    """One project of one cloud (``cloud.Cloud``)."""

    def __init__(self, access: CloudAccess, *, deadline_s: float, parallel: int) -> None:
        self.project = ""
        self.user = ""
        self._deadline_s = deadline_s
        self._link = OpenStackSession(access, parallel=parallel, entered=self._entered)

    async def __aenter__(self) -> Self:
        await self._link.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._link.__aexit__(*exc)

    def _entered(self, login: Login) -> None:
        self.project, self.user = login.project, login.user

    # ------------------------------------------------------------------------------------------------------- servers

    async def servers(self, *, tag: str = "", name: str = "", since: float = 0.0) -> Sequence[Server]:
        asked = {"tags": tag, "name": name, "changes-since": parsing.moment(since) if since > 0 else ""}
        query = [(key, word) for key, word in asked.items() if word]
        return [parsing.server(each) for each in await self._pages("compute", "/servers/detail", "servers", query)]

    async def create(self, server: Mapping[str, Any], hints: Mapping[str, str], *, deadline_s: float) -> str:
        body = {"server": dict(server), **({"os:scheduler_hints": dict(hints)} if hints else {})}
        answer = await self._link.order("compute", "POST", "/servers", body, deadline_s=deadline_s)
        made = answer.body.get("server")
        server_id = made.get("id") if isinstance(made, dict) else None
        if not isinstance(server_id, str) or not parsing.is_id(server_id):
            raise OutcomeUnknownError("compute: it takes a server and does not tell its id")
        return server_id

    async def delete(self, server_id: str) -> None:
        answer = await self._order("compute", "DELETE", _server(server_id), settled=(404, 409))
        if answer.status != 409:
            return
        now = await self._now(server_id)
        if now is not None and now.status not in _GONE and now.task not in _BEING_DELETED:
            raise of_answer(409, *answer.complaint, text=f"compute: {answer.said}")

    async def shut_down(self, server_id: str) -> None:
        path = f"{_server(server_id)}/action"
        answer = await self._order("compute", "POST", path, {"os-stop": None}, settled=(404, 409))
        if answer.status not in (404, 409):
            return
        # It is gone, not running, locked, or not running yet: Nova knows nothing to stop (404) of a server that it has
        # just accepted.
        now = await self._now(server_id)
        if now is not None and now.status in _RUNS and now.task not in _BEING_STOPPED:
            raise of_answer(409, *answer.complaint, text=f"compute: {answer.said}")

    async def _now(self, server_id: str) -> Server | None:
        told = await self._read("compute", _server(server_id), lacking=(404,))
        record = told.get("server") if told is not None else None
        if told is None:
            return None
        if not isinstance(record, dict):
            raise UnavailableError("compute: it gives an answer without a `server`")
        return parsing.server(record)

    async def console(self, server_id: str, lines: int) -> str:
        if lines <= 0:
            return ""
        path, body = f"{_server(server_id)}/action", {"os-getConsoleOutput": {"length": lines}}
        told = await self._read("compute", path, body=body, lacking=(404, 409, 501))
        return parsing.text(told or {}, "output")

    async def actions(self, server_id: str) -> Sequence[ServerAction]:
        told = await self._read("compute", f"{_server(server_id)}/os-instance-actions", lacking=(404,))
        if told is None:
            return []
        records = listed("compute", told, "instanceActions")
        return sorted((parsing.action(each) for each in records), key=lambda each: each.at, reverse=True)

    # --------------------------------------------------------------------------------------------- what there is to use

    async def limits(self) -> Limits:
        told = await self._read("compute", "/limits")
        limits = (told or {}).get("limits")
        absolute = limits.get("absolute") if isinstance(limits, dict) else None
        if not isinstance(absolute, dict):
            raise UnavailableError("compute: it gives an answer without `limits`")
        return parsing.limits(absolute)

    async def flavors(self) -> Sequence[Flavor]:
        flavors = [parsing.flavor(each) for each in await self._pages("compute", "/flavors/detail", "flavors")]
        if await self._link.microversion(deadline_s=self._deadline_s) >= EXTRA_SPECS:
            return flavors
        return [replace(each, extra=await self._extra_specs(each.id)) for each in flavors]

    async def _extra_specs(self, flavor_id: str) -> Mapping[str, str]:
        told = await self._read("compute", f"/flavors/{quote(flavor_id, safe='')}/os-extra_specs", lacking=(403, 404))
        return parsing.texts((told or {}).get("extra_specs"))

    async def images(self, name_or_id: str) -> Sequence[Image]:
        if parsing.is_id(name_or_id):
            told = await self._read("image", f"/images/{name_or_id}", lacking=(400, 404))
            if told is not None:
                return [parsing.image(told)]
        records = await self._pages("image", "/images", "images", [("name", name_or_id)])
        # Glance takes a name that begins with an operator (`in:`) for one.
        images = [found for each in records if (found := parsing.image(each)).name == name_or_id]
        return sorted(images, key=lambda each: each.created_at, reverse=True)

    async def networks(self) -> Mapping[str, str]:
        return await self._network_names("/networks", "networks")

    async def security_groups(self) -> Mapping[str, str]:
        return await self._network_names("/security-groups", "security_groups")

    async def _network_names(self, path: str, key: str) -> Mapping[str, str]:
        records = await self._pages("network", path, key, [("fields", "id"), ("fields", "name")])
        return {parsing.identity(each, "network or security group"): parsing.text(each, "name") for each in records}

    async def key_pairs(self) -> Sequence[str]:
        records = await self._pages("compute", "/os-keypairs", "keypairs")
        pairs = [each["keypair"] for each in records if isinstance(each.get("keypair"), dict)]
        return [name for each in pairs if (name := parsing.text(each, "name"))]

    # ---------------------------------------------------------------------------------------- what servers leave behind

    async def ports(self) -> Sequence[Port]:
        """Return the project's ports of servers."""
        fields = [("fields", each) for each in ("id", "device_id", "device_owner", "status")]
        found = await self._ours_of("network", "/ports", "ports", fields, mine="project_id")
        ports = [parsing.port(each) for each in found]
        return [each for each in ports if each.device_owner.startswith("compute:")]

    async def delete_port(self, port_id: str) -> None:
        await self._order("network", "DELETE", f"/ports/{_safe(port_id)}", settled=(404,))

    async def volumes(self) -> Sequence[Volume]:
        """None where the cloud offers no volume service."""
        return [parsing.volume(each) for each in await self._ours_of("block-storage", "/volumes/detail", "volumes", [])]

    async def delete_volume(self, volume_id: str) -> None:
        await self._order("block-storage", "DELETE", f"/volumes/{_safe(volume_id)}", settled=(404,))

    async def _ours_of(
        self, service: str, path: str, key: str, query: Sequence[tuple[str, str]], *, mine: str = ""
    ) -> list[Mapping[str, Any]]:
        """``mine``: the filter for our project, of a service that shows an admin the whole cloud's."""
        if mine:
            login = await self._link.login(deadline_s=self._deadline_s)
            query = [*query, (mine, login.project)]
        try:
            return await self._pages(service, path, key, query)
        except ServiceMissingError:
            return []

    # -------------------------------------------------------------------------------------------------------- the link

    async def _read(self, service: str, path: str, **more: Any) -> Mapping[str, Any] | None:
        return await self._link.read(service, path, deadline_s=self._deadline_s, **more)

    async def _pages(
        self, service: str, path: str, key: str, query: Sequence[tuple[str, str]] = ()
    ) -> list[Mapping[str, Any]]:
        return await self._link.pages(service, path, key, query, deadline_s=self._deadline_s)

    async def _order(self, service: str, method: str, path: str, *body: Any, settled: Sequence[int]) -> OpenStackReply:
        return await self._link.order(service, method, path, *body, settled=settled, deadline_s=self._deadline_s)


def _server(server_id: str) -> str:
    return f"/servers/{_safe(server_id)}"


def _safe(told: str) -> str:
    """Return an id that is safe in a URL: another text could lead to another object, or to all of them."""
    if not parsing.is_id(told):
        raise RejectedError(f"`{printable(told, 60)}` is no id of a thing in a cloud", FaultKind.CONFIG)
    return told


class Cloud(Protocol):
    """One project of one cloud.

    Reads raise UnavailableError or AuthError and may be retried within their deadline. Writes are tried once and
    raise OutcomeUnknownError where their outcome is unknown.
    """

    project: str
    """Id of the project that we are in; empty before the first login."""
    user: str
    """Id of who we are."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def servers(self, *, tag: str = "", name: str = "", since: float = 0.0) -> Sequence[Server]:
        """List all pages of the project's servers.

        ``tag`` selects by tag, ``name`` by a regular expression, ``since`` those that changed after it, deleted ones
        included (without their tags). Without a filter, servers of cells that are down are listed as UNKNOWN; with
        one they are missing. Raises UnavailableError if a page is missing.
        """
        ...

    async def create(self, server: Mapping[str, Any], hints: Mapping[str, str], *, deadline_s: float) -> str:
        """Create a server and return its id. Raises RejectedError (QUOTA, CAPACITY, CONFIG, THROTTLED)."""
        ...

    async def delete(self, server_id: str) -> None:
        """Already gone is done."""
        ...

    async def shut_down(self, server_id: str) -> None:
        """Shut a server down (os-stop): its guest is told, and cut off after the image's or Nova's shutdown timeout.

        A server that is gone or not running is a success. Raises RejectedError if it does not run yet.
        """
        ...

    async def console(self, server_id: str, lines: int) -> str:
        """Return the end of a server's console output; empty where there is none."""
        ...

    async def actions(self, server_id: str) -> Sequence[ServerAction]:
        """Return a server's actions, newest first; empty where it is gone."""
        ...

    async def limits(self) -> Limits: ...

    async def flavors(self) -> Sequence[Flavor]:
        """All that the project may use, with extra specs."""
        ...

    async def images(self, name_or_id: str) -> Sequence[Image]:
        """Return the image with this id, else those with this name, newest first."""
        ...

    async def networks(self) -> Mapping[str, str]:
        """Names by id, of the networks that the project may use."""
        ...

    async def security_groups(self) -> Mapping[str, str]:
        """Names by id."""
        ...

    async def key_pairs(self) -> Sequence[str]:
        """Names."""
        ...

    async def ports(self) -> Sequence[Port]:
        """Return the project's ports of servers."""
        ...

    async def delete_port(self, port_id: str) -> None: ...

    async def volumes(self) -> Sequence[Volume]: ...

    async def delete_volume(self, volume_id: str) -> None: ...
