"""Our servers as drones: what the cloud says of each, in the seam's words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from adapters.openstack.names import DRONE, group_tag, is_ours, named
from adapters.openstack.records import Server
from adapters.openstack.roll import Muster
from adapters.openstack.states import GONE, LONGEST, meaning
from adapters.shared.printing import printable
from provisioner.model import DroneId, RemoteDrone, RemoteEnd, RemoteState

_MOST_NOTICES = 10
_RANKS = {RemoteState.RUNNING: 0, RemoteState.UNKNOWN: 1, RemoteState.PENDING: 2}


@dataclass(frozen=True, slots=True)
class Listing:
    """All of ours that the cloud tells of."""

    drones: Mapping[DroneId, RemoteDrone]
    surplus: tuple[str, ...] = ()
    """Ids of servers that are a drone which another server is already: to be deleted."""
    over: Mapping[DroneId, Server] = field(default_factory=dict)
    """To be deleted, once it is known how they ended."""
    unsettled: Mapping[DroneId, Server] = field(default_factory=dict)
    """Gone, and how is not known yet. What the cloud says to be deleted is told as OVER until then, for as long as
    ``Muster.gone`` has it; what is merely not listed any more is not told."""
    notices: tuple[str, ...] = ()


def listing(
    muster: Muster,
    ends: Mapping[DroneId, RemoteEnd],
    asked: Collection[DroneId],
    places: Mapping[str, str],
    controller: str,
    site: str,
    now: float,
) -> Listing:
    """``ends``: as far as they are known. ``asked``: whom this controller has asked to leave. ``places``: names of
    hosts by their ids."""
    by_drone: dict[DroneId, list[tuple[Server, str]]] = {}
    for server in muster.servers:
        who = named(server, controller, site)
        if who is not None:
            by_drone.setdefault(who.drone_id, []).append((server, who.type))
    drones: dict[DroneId, RemoteDrone] = {}
    over: dict[DroneId, Server] = {}
    surplus: list[str] = []
    notices = list(_strays(muster.others, controller, site))
    for drone_id, several in by_drone.items():
        (server, kind), *rest = sorted(several, key=lambda each: _seniority(each[0]))
        drones[drone_id] = _there(server, drone_id, kind, drone_id in asked, places, now)
        if drones[drone_id].state is RemoteState.STOPPED:
            over[drone_id] = server
        for other, _ in rest:
            notices.append(f"{drone_id} is there twice, as {server.id} and {other.id}")
            # One of which nothing is told may be the better one, and could not be deleted now anyway.
            surplus += [other.id] if "UNKNOWN" not in (server.status, other.status) else []
    unsettled: dict[DroneId, Server] = {}
    for drone_id, server, kind in _gone(muster.gone.values(), controller, site):
        if drone_id in by_drone:
            continue
        if (end := ends.get(drone_id)) is not None:
            drones[drone_id] = _ended(server, drone_id, kind, end, places)
            continue
        unsettled[drone_id] = server
        if server.status in GONE:
            drones[drone_id] = _untold(server, drone_id, kind, places)
    return Listing(drones, tuple(surplus), over, unsettled, tuple(notices[:_MOST_NOTICES]))


def _strays(others: Iterable[Server], controller: str, site: str) -> Iterable[str]:
    """What says that it is ours, and is no drone of ours."""
    tag = group_tag(controller, site)
    for server in others:
        if tag in server.tags:
            told = printable(server.metadata.get(DRONE, ""), 80) or "nothing"
            yield f"server {server.id} carries our tag, and {told} as its drone id"


def _gone(servers: Iterable[Server], controller: str, site: str) -> Sequence[tuple[DroneId, Server, str]]:
    """With drone id and type; the last of a drone's servers, the one that ran before others. What is told of a deleted
    one for the first time has its name alone."""
    found: dict[DroneId, tuple[DroneId, Server, str]] = {}
    for server in servers:
        who = named(server, controller, site)
        drone_id = who.drone_id if who is not None else DroneId(server.name)
        if who is None and (server.metadata or not is_ours(server.name, controller)):
            continue
        other = found.get(drone_id)
        if other is None or _rank(server) >= _rank(other[1]):
            found[drone_id] = drone_id, server, who.type if who is not None else ""
    return [*found.values()]


def _rank(server: Server) -> tuple[bool, float]:
    return server.launched_at > 0, server.updated_at


def _seniority(server: Server) -> tuple[int, bool, float, str]:
    """First the one that has most to lose: one that runs, one that may, one that waits, one that waits in vain, one
    that is over; of two alike the one that was launched, then the older."""
    means = meaning(server)
    rank = 3 if means.final else _RANKS.get(means.state, 4)
    return rank, not server.launched_at, server.created_at, server.id


# ---------------------------------------------------------------------------------------------------------- one server


def _there(
    server: Server, drone_id: DroneId, kind: str, asked: bool, places: Mapping[str, str], now: float
) -> RemoteDrone:
    means = meaning(server)
    node = _node(server, places)
    pending = means.state is RemoteState.PENDING
    return RemoteDrone(
        drone_id=drone_id,
        state=means.state,
        remote_id=server.id,
        type=kind,
        started_at=min(server.launched_at, now) if not pending else 0.0,
        reason=printable(means.why, LONGEST),
        node=node,
        slot=_slot(server, node),
        # Our own request to leave is no notice.
        notice_at=min(server.updated_at or now, now) if means.leaving and not asked else 0.0,
        blocked=means.fault if pending else None,
        final=means.final,
    )


def _ended(server: Server, drone_id: DroneId, kind: str, end: RemoteEnd, places: Mapping[str, str]) -> RemoteDrone:
    node = _node(server, places)
    return RemoteDrone(
        drone_id=drone_id,
        state=RemoteState.ENDED,
        remote_id=server.id,
        type=kind,
        started_at=min(server.launched_at, end.at),
        end=end,
        node=node,
        slot=_slot(server, node),
    )


def _untold(server: Server, drone_id: DroneId, kind: str, places: Mapping[str, str]) -> RemoteDrone:
    return RemoteDrone(
        drone_id=drone_id,
        state=RemoteState.STOPPED,
        remote_id=server.id,
        type=kind,
        started_at=server.launched_at,
        reason="was deleted, and its cloud has not said yet by whom",
        node=_node(server, places),
    )


def _node(server: Server, places: Mapping[str, str]) -> str:
    """The host's name, where it is known; else the beginning of its id, by which drones on one host are seen to be."""
    return places.get(server.host_id) or printable(server.host_id[:12], 12)


def _slot(server: Server, node: str) -> str:
    return f"{server.id}@{node}" if node else ""
