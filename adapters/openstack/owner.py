"""What the owner of the hardware wants of it and has of it: his servers that found no host, and those that have one.

Nova knows no queue: a create that finds no host becomes a server in ERROR, and nobody tries it again but its owner. So
one that found no room claims it for a while (``wait``) after it failed, that its owner may try again and find it; then
no more, or what he has long forgotten, or made anew under another name, would stand for room for ever. One that he has
made anew under its own name claims nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from adapters.openstack.capacity import FlavorSize, size_of
from adapters.openstack.errors import of_server
from adapters.openstack.records import Server
from adapters.openstack.registry import DRONE
from adapters.openstack.settings import OpenStackOwnerConfig
from adapters.openstack.states import GONE
from adapters.shared.printing import printable
from provisioner.model import WHOLE_GPU, FaultKind, Node, OwnerDemand, OwnerLoad

_MOST_NOTICES = 10
_MOST_CLAIMS = 500
_MOST_NAMES = 3


@dataclass(frozen=True, slots=True)
class OwnerRequests:
    """Claims, and what a person should know of servers that are none."""

    claims: tuple[OwnerDemand, ...] = ()
    notices: tuple[str, ...] = ()


def owners(servers: Iterable[Server], owner: OpenStackOwnerConfig) -> Sequence[Server]:
    """Of a project's servers those that come before us: no drones, whoever's they are, and only names that count."""
    pattern = re.compile(owner.names)
    return [each for each in servers if DRONE not in each.metadata and pattern.search(each.name)]


def claims(
    theirs: Sequence[Server], nodes: Sequence[Node], places: Mapping[str, str], owner: OpenStackOwnerConfig, now: float
) -> OwnerRequests:
    """Servers of the owner (``owners``) that wait for room: a claim for each size that some node could hold.

    Those without a GPU claim nothing unless one like them stands on one of our nodes: elsewhere in the cloud there are
    hosts for them, of which we do not know whether they are full.
    """
    without = any(each.host_id in places and not size_of(each).gpu_milli for each in theirs)
    anew = _newest_placed(theirs)
    groups: dict[FlavorSize, list[Server]] = {}
    for server in theirs:
        size = size_of(server)
        if (size.gpu_milli or without) and _waits(server, anew, owner.wait, now):
            groups.setdefault(size, []).append(server)
    found, never = [], []
    for size, waiting in groups.items():
        could = tuple(node.name for node in nodes if size.within(node))
        if could:
            found.append(_claim(size, waiting, () if len(could) == len(nodes) else could, now))
        elif nodes:
            never.append(_hopeless(size, waiting))
    found.sort(key=lambda claim: claim.since)
    notices = tuple(_bounded(never))
    if more := found[_MOST_CLAIMS:]:
        notices += (f"owner: {len(more)} further sizes of waiting servers are not looked at",)
    return OwnerRequests(tuple(found[:_MOST_CLAIMS]), notices)


def running(theirs: Iterable[Server], places: Mapping[str, str]) -> OwnerLoad:
    """Return what the owner's servers hold of our nodes, those that are off included."""
    total, count = FlavorSize(), 0
    for server in theirs:
        if server.host_id in places and server.status not in GONE:
            total, count = total + size_of(server), count + 1
    return OwnerLoad(count, total.gpu_milli, total.cpus, total.memory_mib)


def _waits(server: Server, anew: Mapping[str, float], wait_s: float, now: float) -> bool:
    """Return since when a server waits.

    Nova reports the present as the last change of a server that is on no host yet: that one waits since its creation.
    """
    if server.host_id or server.launched_at or server.task == "deleting":
        return False
    if server.status == "BUILD":
        return now - server.created_at <= wait_s
    if server.status != "ERROR" or server.fault is None or of_server(server.fault) is not FaultKind.CAPACITY:
        return False
    return now - (server.updated_at or server.created_at) <= wait_s and anew.get(server.name, 0.0) <= server.created_at


def _newest_placed(theirs: Iterable[Server]) -> Mapping[str, float]:
    """By name, when the newest was made of those that have a host or may yet find one."""
    newest: dict[str, float] = {}
    for each in theirs:
        if each.host_id or each.launched_at or each.status == "BUILD":
            newest[each.name] = max(each.created_at, newest.get(each.name, 0.0))
    return newest


def _claim(size: FlavorSize, waiting: Sequence[Server], nodes: tuple[str, ...], now: float) -> OwnerDemand:
    return OwnerDemand(
        count=len(waiting),
        gpu_milli=size.gpu_milli,
        cpus=size.cpus,
        memory_mib=size.memory_mib,
        since=min([now, *(server.created_at for server in waiting if server.created_at)]),
        disk_mib=size.disk_mib,
        nodes=nodes,
        who=_names(waiting),
    )


def _names(servers: Collection[Server]) -> str:
    names = sorted({server.name for server in servers})
    more = ", ..." if len(names) > _MOST_NAMES else ""
    return printable(", ".join(names[:_MOST_NAMES]) + more)


def _hopeless(size: FlavorSize, waiting: Sequence[Server]) -> str:
    return printable(
        f"owner: {len(waiting)} servers ({_names(waiting)}) find no host with {size.gpu_milli // WHOLE_GPU} GPUs,"
        f" {size.cpus} CPUs, {size.memory_mib} MiB and a disk of {size.disk_mib} MiB here even if all were empty: no"
        " room is made for them",
        400,
    )


def _bounded(lines: Sequence[str]) -> Iterator[str]:
    if len(lines) <= _MOST_NOTICES:
        yield from lines
        return
    yield from lines[: _MOST_NOTICES - 1]
    yield f"owner: {len(lines) - _MOST_NOTICES + 1} further sizes fit no node"
