"""The servers of one controller at one site: all of them now and then, between only those that have changed.

Nova leaves the servers of a cell that is down silently out of every listing that is filtered, paged by hand or sorted
(``nova/api/openstack/compute/servers.py``, _is_cell_down_supported); by their tag, drones would seem gone. So a full
listing is of the whole project without any filter, tells such servers as UNKNOWN, and ours are picked out by their
metadata. A listing of changes is filtered by name: a server that it lacks has not changed, or is in such a cell.

Changes are listed since the newest change that the cloud itself has reported, less a margin for the clocks of its API
and its conductors. Our clock only bounds it, so that one server of next year does not end all news: where it is wrong,
more is listed than is needed, never less. Deleted servers are listed there for as long as Nova keeps their rows,
without tags and metadata, by their name alone.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from adapters.openstack.records import Server
from adapters.openstack.states import GONE, MAX_REASON, server_phase
from adapters.shared.printing import printable
from provisioner.interfaces import UnavailableError
from provisioner.model import DroneId, RemoteDrone, RemoteEnd, RemoteState

if TYPE_CHECKING:
    from adapters.openstack.nova import OpenStackCloud

MARGIN_S = 300.0
"""Largest difference of clocks within one cloud: a change listed twice costs less than one that is missed."""
_MAX_GONE = 5000


# --------------------------------------------------------------------------------------------------- names of servers

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DRONE_ID_FORMAT = re.compile(rf"(?P<controller>{_LABEL})-[a-z0-9]{{1,32}}-(?:0|[1-9][0-9]{{0,17}})")
_MAX_ID = 63
_MAX_TAG = 60

DRONE_KEY, CONTROLLER_KEY, SITE_KEY, TYPE_KEY = (
    f"provisioner_{key}" for key in ("drone", "controller", "site", "type")
)


def tag(text: str) -> str:
    """Return ``text`` as a tag of a server: the end of its hash where it is longer than a tag may be."""
    return text if len(text) <= _MAX_TAG else hashlib.sha256(text.encode()).hexdigest()[:40]


@dataclass(frozen=True, slots=True)
class ServerNames:
    """Names, tags and metadata of the servers of one controller at one site."""

    controller: str
    site: str

    @property
    def group_tag(self) -> str:
        return tag(f"{self.controller}.{self.site}")

    def is_ours(self, drone_id: str) -> bool:
        """Return whether it is an id of a drone of this controller."""
        found = _DRONE_ID_FORMAT.fullmatch(drone_id)
        return found is not None and found["controller"] == self.controller and len(drone_id) <= _MAX_ID

    def tags(self, drone_id: DroneId) -> list[str]:
        return ["gpu-drone", self.group_tag, tag(drone_id)]

    def metadata(self, drone_id: DroneId, kind: str) -> Mapping[str, str]:
        return {DRONE_KEY: drone_id, CONTROLLER_KEY: self.controller, SITE_KEY: self.site, TYPE_KEY: kind}

    def drone(self, server: Server) -> tuple[DroneId, str] | None:
        """Return the drone that a server is and its type; None if it is no drone of this controller at this site."""
        found, drone_id = server.metadata, server.metadata.get(DRONE_KEY, "")
        here = (found.get(CONTROLLER_KEY), found.get(SITE_KEY)) == (self.controller, self.site)
        return (DroneId(drone_id), found.get(TYPE_KEY, "")) if here and self.is_ours(drone_id) else None


# --------------------------------------------------------------------------------------------------------- registry


@dataclass(frozen=True, slots=True)
class RegistryView:
    """Result of one poll."""

    servers: tuple[Server, ...] = ()
    """Ours that are there; those of a cell that is down with all that was known of them, as UNKNOWN."""
    gone: Mapping[str, Server] = field(default_factory=dict)
    """Ours that were there or have been deleted of late, by id, as last known. DELETED: the cloud says so; any other
    status: it is not listed any more, for no known reason."""
    others: tuple[Server, ...] = ()
    """All else in the project, as of the last full listing."""


class ServerRegistry:
    """The known servers, updated by polls.

    A poll is one call and its pages; a full one, at first, each ``full_s`` and after any failure, is two calls.
    """

    def __init__(
        self,
        names: ServerNames,
        *,
        full_s: float,
        keep_s: float,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._names = names
        self._full_s, self._keep_s = full_s, keep_s
        self._clock, self._wall_clock = clock, wall_clock
        self._servers: dict[str, Server] = {}
        self._others: dict[str, Server] = {}
        self._gone: dict[str, tuple[Server, float]] = {}
        """Each with the time since when that is known."""
        self._newest = 0.0
        """The newest change that the cloud has reported, by its clock."""
        self._full_at = -math.inf

    async def poll(self, cloud: OpenStackCloud) -> RegistryView:
        """List our servers.

        Raises what ``cloud`` raises, and UnavailableError for a listing that may lack some of ours. Then nothing is
        merged, and the next poll is a full one.
        """
        began_at, last_full_at = self._clock(), self._full_at
        self._full_at = -math.inf
        if began_at >= last_full_at + self._full_s or not self._newest:
            everything = await cloud.servers()
            self._check(everything)
            newest = max([self._newest, *(server.updated_at for server in everything)])
            changed = await self._changed(cloud, min(self._newest or newest, newest - self._keep_s))
            self._replace(everything)
            self._newest, last_full_at = newest, began_at
        else:
            changed = await self._changed(cloud, self._newest)
        self._newest = max([self._newest, *(server.updated_at for server in changed)])
        if self._merge(changed):
            self._full_at = last_full_at
        return RegistryView(tuple(self._servers.values()), self._lately_gone(changed), tuple(self._others.values()))

    def distrust(self) -> None:
        """Make the next poll a full one.

        An order was given that Nova may not report as a change: a server that is deleted before it is on a host
        leaves no record.
        """
        self._full_at = -math.inf

    async def _changed(self, cloud: OpenStackCloud, since: float) -> Sequence[Server]:
        """Return servers that changed since the last poll.

        After a restart this finds those deleted meanwhile, if it was not too long. In an empty project there is no
        time to ask from, and earlier servers are not looked for.
        """
        if since <= MARGIN_S:
            return ()
        since = min(since, self._wall_clock()) - MARGIN_S
        return await cloud.servers(name=f"^{re.escape(self._names.controller)}-", since=since)

    def _check(self, everything: Iterable[Server]) -> None:
        """Raise if a server of which only the id is known may be one of ours."""
        known = self._servers.keys() | self._others.keys() | self._gone.keys()
        strange = sum(1 for each in everything if _is_bare(each) and each.id not in known)
        if strange:
            raise UnavailableError(
                f"a part of the cloud (a cell) does not answer, and {strange} servers in it may be ours"
            )

    def _replace(self, everything: Iterable[Server]) -> None:
        """Replace the known servers by a full listing. Servers that it lacks are gone."""
        before = self._servers | {server_id: server for server_id, (server, _) in self._gone.items()}
        ours: dict[str, Server] = {}
        others: dict[str, Server] = {}
        for server in everything:
            if _is_bare(server) and server.id in self._others:
                others[server.id] = self._others[server.id]
            elif _is_bare(server):
                ours[server.id] = replace(before[server.id], status="UNKNOWN", task="", power=0)
            elif self._names.drone(server) is not None:
                ours[server.id] = server
            else:
                others[server.id] = server
        for server in [server for server_id, server in self._servers.items() if server_id not in ours]:
            self._is_gone(server)
        self._servers, self._others = {}, others
        for server in ours.values():
            self._is_there(server)

    def _merge(self, changed: Iterable[Server]) -> bool:
        """Merge a listing of changes, and return whether it is consistent with the known facts."""
        sound = True
        for server in changed:
            if _is_bare(server):
                sound = False  # not to be had in a filtered listing, and nothing to go by
            elif server.status in GONE:
                self._others.pop(server.id, None)
                known = self._servers.get(server.id) or self._gone.get(server.id, (server, 0.0))[0]
                if known is not server or self._names.is_ours(server.name):
                    self._is_gone(_ended(known, server))
            elif self._names.drone(server) is not None:
                sound = self._is_there(server) and sound
        return sound

    def _is_there(self, server: Server) -> bool:
        """Return whether a listed server can exist.

        A deleted one is listed again only from an old copy of Nova's tables. One that was missing for a while, or
        soft-deleted, may come back.
        """
        if server.id in self._gone and self._gone[server.id][0].status == "DELETED":
            return False
        self._gone.pop(server.id, None)
        self._servers[server.id] = server
        return True

    def _is_gone(self, server: Server) -> None:
        self._servers.pop(server.id, None)
        since = self._gone[server.id][1] if server.id in self._gone else self._clock()
        self._gone[server.id] = server, since

    def _lately_gone(self, changed: Iterable[Server]) -> Mapping[str, Server]:
        """Return servers that went recently. Older ones are forgotten once they are not listed any more."""
        oldest, listed = self._clock() - self._keep_s, {server.id for server in changed}
        kept = [(i, each) for i, each in self._gone.items() if each[1] > oldest or i in listed]
        self._gone = dict(kept[-_MAX_GONE:])
        return {server_id: server for server_id, (server, since) in self._gone.items() if since > oldest}


def _is_bare(server: Server) -> bool:
    """Return whether it is of a cell that is down (2.69): then not even its name is listed."""
    return server.status == "UNKNOWN" and not server.name


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


# --------------------------------------------------------------------------------------------------- servers as drones

MAX_SERVER_NOTICES = 10
_RANKS = {RemoteState.RUNNING: 0, RemoteState.UNKNOWN: 1, RemoteState.PENDING: 2}


@dataclass(frozen=True, slots=True)
class ServerListing:
    """Our drones as the cloud reports them, and the servers to clean up."""

    drones: Mapping[DroneId, RemoteDrone]
    surplus: tuple[str, ...] = ()
    """Ids of servers that are a drone which another server is already: to be deleted."""
    over: Mapping[DroneId, Server] = field(default_factory=dict)
    """To be deleted, once it is known how they ended."""
    unsettled: Mapping[DroneId, Server] = field(default_factory=dict)
    """Gone, and how is not known yet. What the cloud says to be deleted is listed as STOPPED until then, for as long as
    ``RegistryView.gone`` has it; what is merely not listed any more is left out."""
    notices: tuple[str, ...] = ()


def listing(
    view: RegistryView,
    ends: Mapping[DroneId, RemoteEnd],
    asked: Collection[DroneId],
    hosts: Mapping[str, str],
    names: ServerNames,
    now: float,
) -> ServerListing:
    """Return the drones that a set of servers represents.

    ``ends`` are the known ends. ``asked`` are drones that this controller asked to leave. ``hosts`` are names of hosts
    by their ids.
    """
    by_drone: dict[DroneId, list[tuple[Server, str]]] = {}
    for server in view.servers:
        if (drone := names.drone(server)) is not None:
            by_drone.setdefault(drone[0], []).append((server, drone[1]))
    drones: dict[DroneId, RemoteDrone] = {}
    over: dict[DroneId, Server] = {}
    surplus: list[str] = []
    notices = list(_strays(view.others, names))
    for drone_id, several in by_drone.items():
        (server, kind), *rest = sorted(several, key=lambda each: _seniority(each[0]))
        drones[drone_id] = _listed_drone(server, drone_id, kind, drone_id in asked, hosts, now)
        if drones[drone_id].state is RemoteState.STOPPED:
            over[drone_id] = server
        for other, _ in rest:
            notices.append(f"{drone_id} is there twice, as {server.id} and {other.id}")
            # One of a cell that is down may be the better one, and could not be deleted now anyway.
            surplus += [other.id] if "UNKNOWN" not in (server.status, other.status) else []
    unsettled: dict[DroneId, Server] = {}
    for drone_id, (server, kind) in _gone(view.gone.values(), names).items():
        if drone_id in by_drone:
            continue
        if (end := ends.get(drone_id)) is not None:
            started_at = min(server.launched_at, end.at)
            drones[drone_id] = _drone(
                server, drone_id, kind, hosts, state=RemoteState.ENDED, started_at=started_at, end=end
            )
            continue
        unsettled[drone_id] = server
        if server.status in GONE:
            reason = "was deleted, and its cloud has not said yet by whom"
            drones[drone_id] = _drone(
                server, drone_id, kind, hosts, state=RemoteState.STOPPED, started_at=server.launched_at, reason=reason
            )
    return ServerListing(drones, tuple(surplus), over, unsettled, tuple(notices[:MAX_SERVER_NOTICES]))


def _strays(others: Iterable[Server], names: ServerNames) -> Iterable[str]:
    """Yield a notice of each server that carries our tag and is no drone of ours."""
    for server in others:
        if names.group_tag in server.tags:
            drone_id = printable(server.metadata.get(DRONE_KEY, ""), 80) or "nothing"
            yield f"server {server.id} carries our tag, and {drone_id} as its drone id"


def _gone(servers: Iterable[Server], names: ServerNames) -> Mapping[DroneId, tuple[Server, str]]:
    """Return gone servers with drone type by drone: the last server of each drone that has run.

    A deleted server that is listed for the first time has its name alone.
    """
    found: dict[DroneId, tuple[Server, str]] = {}
    for server in sorted(servers, key=lambda each: (each.launched_at > 0, each.updated_at)):
        if (drone := names.drone(server)) is not None:
            found[drone[0]] = server, drone[1]
        elif not server.metadata and names.is_ours(server.name):
            found[DroneId(server.name)] = server, ""
    return found


def _seniority(server: Server) -> tuple[int, bool, float, str]:
    """Return a sort key: servers with most to lose first.

    The order is: running, possibly running, waiting, waiting in vain, over. Of two alike the launched one comes
    first, then the older.
    """
    phase = server_phase(server)
    rank = 3 if phase.final else _RANKS.get(phase.state, 4)
    return rank, not server.launched_at, server.created_at, server.id


def _listed_drone(
    server: Server, drone_id: DroneId, kind: str, asked: bool, hosts: Mapping[str, str], now: float
) -> RemoteDrone:
    phase = server_phase(server)
    pending = phase.state is RemoteState.PENDING
    return _drone(
        server,
        drone_id,
        kind,
        hosts,
        state=phase.state,
        started_at=min(server.launched_at, now) if not pending else 0.0,
        reason=printable(phase.why, MAX_REASON),
        # Our own request to leave is no notice.
        notice_at=min(server.updated_at or now, now) if phase.leaving and not asked else 0.0,
        blocked=phase.fault if pending else None,
        final=phase.final,
    )


def _drone(server: Server, drone_id: DroneId, kind: str, hosts: Mapping[str, str], **more: Any) -> RemoteDrone:
    # The beginning of a host's id groups drones on one host whose name is not known.
    node = hosts.get(server.host_id) or printable(server.host_id[:12], 12)
    slot = f"{server.id}@{node}" if node else ""
    return RemoteDrone(drone_id, remote_id=server.id, type=kind, node=node, slot=slot, **more)
