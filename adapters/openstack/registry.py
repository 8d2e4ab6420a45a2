"""The servers of one controller at one site: all that are there, and those that were deleted of late.

Nova leaves the servers of a cell that is down silently out of every listing that is filtered, paged
by hand or sorted (``nova/api/openstack/compute/servers.py``, _is_cell_down_supported); by their
tag, drones would seem gone. So the listing is of the whole project without any filter, tells such
servers as UNKNOWN, and ours are picked out by their metadata.

Deleted servers are listed as changes, for as long as Nova keeps their rows, without tags and
metadata, by their name alone. Changes are listed since the newest change that the cloud itself has
reported, less a margin for the clocks of its API and its conductors. Our clock only bounds it, so
that one server of next year does not end all news: where it is wrong, more is listed than is
needed, never less.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from adapters.openstack.servers import GONE, MAX_REASON, Server, server_phase
from adapters.shared.drone_ids import is_drone_id
from adapters.shared.duplicates import Seniority, epoch_of, notice, seniority
from adapters.shared.printing import printable
from provisioner.interfaces import UnavailableError
from provisioner.model import DroneId, RemoteDrone, RemoteEnd, RemoteState
from provisioner.values import factory, frozen

if TYPE_CHECKING:
    from adapters.openstack.nova import OpenStackCloud

MARGIN_S = 300.0
"""Largest difference of clocks within one cloud: a change listed twice costs less than one that is missed."""
_MAX_GONE = 5000
_MAX_TAG = 60

DRONE_KEY, CONTROLLER_KEY, SITE_KEY, TYPE_KEY, EPOCH_KEY = (
    f"provisioner_{key}" for key in ("drone", "controller", "site", "type", "epoch")
)


def tag(text: str) -> str:
    """Return ``text`` as a tag of a server: the end of its hash where it is longer than a tag may be."""
    return text if len(text) <= _MAX_TAG else hashlib.sha256(text.encode()).hexdigest()[:40]


class ServerNames(NamedTuple):
    """Names, tags and metadata of the servers of one controller at one site."""

    controller: str
    site: str

    @property
    def group_tag(self) -> str:
        return tag(f"{self.controller}.{self.site}")

    def is_ours(self, drone_id: str) -> bool:
        return is_drone_id(drone_id, self.controller)

    def tags(self, drone_id: DroneId) -> list[str]:
        return ["gpu-drone", self.group_tag, tag(drone_id)]

    def metadata(self, drone_id: DroneId, kind: str, epoch: int = 0) -> Mapping[str, str]:
        return {
            DRONE_KEY: drone_id,
            CONTROLLER_KEY: self.controller,
            SITE_KEY: self.site,
            TYPE_KEY: kind,
            EPOCH_KEY: str(epoch),
        }

    def drone_id(self, server: Server) -> DroneId | None:
        """Return the drone that a server is; None if it is no drone of this controller at this site."""
        found = server.metadata
        drone_id = server.metadata.get(DRONE_KEY, "")
        if server.status in GONE and not found:  # listed for the first time, it has its name alone
            return DroneId(server.name) if self.is_ours(server.name) else None
        here = (found.get(CONTROLLER_KEY), found.get(SITE_KEY)) == (self.controller, self.site)
        return DroneId(drone_id) if here and self.is_ours(drone_id) else None


@frozen
class RegistryView:
    """Result of one poll."""

    servers: tuple[Server, ...] = ()
    """Ours that are there; those of a cell that is down with all that was known of them, as UNKNOWN."""
    gone: Mapping[str, Server] = factory(dict)
    """Ours that were there or have been deleted of late, by id, as last known. DELETED: the cloud
    says so; any other status: it is not listed any more, for no known reason."""
    others: tuple[Server, ...] = ()
    """All else in the project."""


class ServerRegistry:
    """The known servers, updated by polls."""

    def __init__(
        self,
        names: ServerNames,
        *,
        keep_s: float,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._names = names
        self._keep_s = keep_s
        self._clock = clock
        self._wall_clock = wall_clock
        self._there: dict[str, Server] = {}
        self._gone: dict[str, tuple[Server, float]] = {}
        """Ours, each with the time since when that is known."""
        self._newest = 0.0
        """The newest change that the cloud has reported, by its clock."""

    async def poll(self, cloud: OpenStackCloud) -> RegistryView:
        """List our servers: two calls and their pages. Merges nothing if it raises what ``cloud`` raises."""
        listed = self._completed(await cloud.servers())
        newest = max([self._newest, *(server.updated_at for server in listed)])
        deleted = await self._deleted(cloud, newest)
        self._newest = max([newest, *(server.updated_at for server in deleted.values())])
        self._merge(listed, deleted)
        ours = [
            server for server in self._there.values() if self._names.drone_id(server) is not None
        ]
        others = [server for server in self._there.values() if self._names.drone_id(server) is None]
        # Older ones are forgotten once they are not listed any more.
        oldest = self._clock() - self._keep_s
        kept = [(i, each) for i, each in self._gone.items() if each[1] > oldest or i in deleted]
        self._gone = dict(kept[-_MAX_GONE:])
        lately = {
            server_id: server for server_id, (server, since) in self._gone.items() if since > oldest
        }
        return RegistryView(tuple(ours), lately, tuple(others))

    def _merge(self, listed: Iterable[Server], deleted: Mapping[str, Server]) -> None:
        """Update the servers that are there and those that are gone."""
        before = self._there
        self._there = {}
        for server in listed:
            # A deleted one is listed again only from an old copy of Nova's tables. One that was
            # missing for a while, or soft-deleted, may come back.
            was_deleted = server.id in self._gone and self._gone[server.id][0].status == "DELETED"
            if server.id not in deleted and not was_deleted:
                self._gone.pop(server.id, None)
                self._there[server.id] = server
        for server in [*(before[i] for i in before.keys() - self._there.keys()), *deleted.values()]:
            known = before.get(server.id) or self._gone.get(server.id, (server, 0.0))[0]
            if self._names.drone_id(known) is not None:
                since = self._gone[server.id][1] if server.id in self._gone else self._clock()
                latest = _ended(known, server) if server.status in GONE else known
                self._gone[server.id] = latest, since

    def _completed(self, listed: Sequence[Server]) -> Sequence[Server]:
        """Return a full listing in which servers of a cell that is down, which have no name, are as they were known.

        Raises UnavailableError if one may be ours.
        """
        known = {server_id: server for server_id, (server, _) in self._gone.items()} | self._there
        bare = {server.id for server in listed if server.status == "UNKNOWN" and not server.name}
        if strange := bare - known.keys():
            raise UnavailableError(
                f"a part of the cloud (a cell) does not answer, and {len(strange)} servers in it may be drones"
            )
        return [
            replace(known[s.id], status="UNKNOWN", task="", power=0) if s.id in bare else s
            for s in listed
        ]

    async def _deleted(self, cloud: OpenStackCloud, newest: float) -> Mapping[str, Server]:
        """Return servers that were deleted of late, those between two lives of this controller included."""
        if newest <= MARGIN_S:  # an empty project: there is no time to ask from
            return {}
        since = min(newest, self._wall_clock()) - self._keep_s - MARGIN_S
        changed = await cloud.servers(name=f"^{re.escape(self._names.controller)}-", since=since)
        return {server.id: server for server in changed if server.status in GONE}


def _ended(known: Server, deleted: Server) -> Server:
    """Return the known facts of a server, with what the record of a deleted one still has."""
    if known.status in GONE:
        return replace(known, status=deleted.status)
    return replace(
        known,
        status=deleted.status,
        task=deleted.task,
        power=deleted.power or known.power,
        updated_at=max(known.updated_at, deleted.updated_at),
        launched_at=deleted.launched_at or known.launched_at,
        terminated_at=deleted.terminated_at or known.terminated_at,
        fault=deleted.fault or known.fault,
    )


MAX_SERVER_NOTICES = 10
_OVER = (RemoteState.STOPPED, RemoteState.ENDED)


@frozen
class ServerListing:
    """Our drones as the cloud reports them, and the servers to clean up."""

    drones: Mapping[DroneId, RemoteDrone]
    surplus: tuple[str, ...] = ()
    """Ids of servers that are a drone which another server is already: to be deleted."""
    over: Mapping[DroneId, Server] = factory(dict)
    """To be deleted, once it is known how they ended."""
    unsettled: Mapping[DroneId, Server] = factory(dict)
    """Gone, and how is not known yet. What the cloud says to be deleted is listed as STOPPED until
    then, for as long as ``RegistryView.gone`` has it; what is merely not listed any more is left
    out."""
    notices: tuple[str, ...] = ()


def listing(
    view: RegistryView,
    ends: Mapping[DroneId, RemoteEnd],
    asked: Collection[DroneId],
    hosts: Mapping[str, str],
    names: ServerNames,
    now: float,
) -> ServerListing:
    """Return the drones that servers represent.

    ``asked`` are drones that this controller asked to leave. ``hosts`` are names of hosts by their
    ids.
    """
    drones: dict[DroneId, RemoteDrone] = {}
    surplus = []
    notices = []
    over: dict[DroneId, Server] = {}
    unsettled: dict[DroneId, Server] = {}

    def add(
        drone_id: DroneId, server: Server, state: RemoteState, started_at: float, **more: Any
    ) -> None:
        # The beginning of a host's id groups drones on one host whose name is not known.
        node = hosts.get(server.host_id) or printable(server.host_id[:12], 12)
        slot = f"{server.id}@{node}" if node else ""
        kind = server.metadata.get(TYPE_KEY, "")
        more |= {"node": node, "slot": slot, "epoch": _epoch(server)}
        drones[drone_id] = RemoteDrone(drone_id, state, server.id, kind, started_at, **more)

    for drone_id, several in _by_drone(view.servers, names).items():
        server, *rest = several
        phase = server_phase(server)
        pending = phase.state is RemoteState.PENDING
        started_at = 0.0 if pending else min(server.launched_at, now)
        # Our own request to leave is no notice.
        notice_at = (
            min(server.updated_at or now, now) if phase.leaving and drone_id not in asked else 0.0
        )
        blocked = phase.fault if pending else None
        reason = printable(phase.why, MAX_REASON)
        more = {"reason": reason, "notice_at": notice_at, "blocked": blocked, "final": phase.final}
        add(drone_id, server, phase.state, started_at, **more)
        if phase.state is RemoteState.STOPPED:
            over[drone_id] = server
        for other in rest:
            both = (server.id, _epoch(server)), (other.id, _epoch(other))
            notices.append(notice(drone_id, *both))
            # One of a cell that is down may be the better one, and could not be deleted now anyway.
            silent = "UNKNOWN" in (server.status, other.status)
            surplus += [other.id] if not silent and not server_phase(other).leaving else []
    for drone_id, several in _by_drone(view.gone.values(), names).items():
        server = max(several, key=lambda each: (each.launched_at > 0, each.updated_at))
        if drone_id in drones:
            continue
        if (end := ends.get(drone_id)) is not None:
            add(drone_id, server, RemoteState.ENDED, min(server.launched_at, end.at), end=end)
            continue
        unsettled[drone_id] = server
        if server.status in GONE:
            reason = "was deleted, and its cloud has not said yet by whom"
            add(drone_id, server, RemoteState.STOPPED, server.launched_at, reason=reason)
    return ServerListing(
        drones, tuple(surplus), over, unsettled, tuple(notices[:MAX_SERVER_NOTICES])
    )


async def servers_of(
    cloud: OpenStackCloud,
    names: ServerNames,
    drone_ids: Collection[DroneId],
    known: Iterable[Server],
) -> Mapping[DroneId, Sequence[Server]]:
    """Return the servers of these drones that the cloud lists now, those with most to lose first.

    Servers in a cell that is down are not listed by tag: they are taken as ``known``.
    """
    listed = await cloud.servers(tag=names.group_tag)
    silent = [server for server in known if server.status == "UNKNOWN"]
    servers = {
        server.id: server for server in (*silent, *listed) if server.status not in GONE
    }.values()
    return {
        drone_id: each
        for drone_id, each in _by_drone(servers, names).items()
        if drone_id in drone_ids
    }


def _by_drone(servers: Iterable[Server], names: ServerNames) -> Mapping[DroneId, Sequence[Server]]:
    """Return servers by the drone that they are, those with most to lose first."""
    found: dict[DroneId, list[Server]] = {}
    for server in sorted(servers, key=_seniority):
        if (drone_id := names.drone_id(server)) is not None:
            found.setdefault(drone_id, []).append(server)
    return found


def _epoch(server: Server) -> int:
    return epoch_of(server.metadata.get(EPOCH_KEY, ""))


def _seniority(server: Server) -> Seniority:
    phase = server_phase(server)
    return seniority(
        server.id,
        server.created_at,
        server.launched_at,
        is_ending=phase.leaving or phase.final,
        has_ended=phase.state in _OVER,
    )
