"""Past of an OpenStack site by Nova's times of servers, and of deleted ones while Nova keeps their rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from adapters.openstack.capacity import owners, size_of
from adapters.openstack.servers import GONE, Flavor, Server
from adapters.openstack.settings import OpenStackOwnerConfig
from provisioner.history import MAX_HISTORY_ROWS, PastStart, SiteHistoryView, known_since, use_steps

if TYPE_CHECKING:
    from adapters.openstack.nova import OpenStackCloud


async def past_servers(cloud: OpenStackCloud, since: float) -> Sequence[Server]:
    """Return the servers of a project: those that exist, and those that changed or were deleted after a time."""
    found = {server.id: server for server in await cloud.servers(since=since)}
    return [*found.values(), *(server for server in await cloud.servers() if server.id not in found)]


def site_history(
    ours: Sequence[Server],
    flavors: Mapping[str, Flavor],
    theirs: Iterable[Server],
    owner: OpenStackOwnerConfig | None,
    hosts: Collection[str],
    since: float,
    now: float,
) -> SiteHistoryView:
    """Return the past of a site.

    ``flavors``: by drone type. ``hosts``: ids of the hosts of this site. Nova names no host of a deleted server: those
    of the owner count if their flavour has been seen here. The use is known since the oldest deletion.
    """
    mine = sorted(ours, key=lambda server: -server.created_at)
    names = {flavor.name: kind for kind, flavor in flavors.items()}
    starts = [
        PastStart(names[server.flavor.name], server.launched_at, server.launched_at - server.created_at)
        for server in mine[:MAX_HISTORY_ROWS]
        if server.flavor and server.flavor.name in names and 0 < server.created_at <= server.launched_at <= now
    ]
    first = sorted(owners(theirs, owner), key=lambda server: -server.created_at) if owner else []
    here = {server.flavor.name for server in first if server.flavor and server.host_id in hosts}
    held = [each for each in first if each.host_id in hosts or (_is_over(each) and _flavor_of(each) in here)]
    ends = [server.terminated_at for server in held if _is_over(server) and since <= server.terminated_at <= now]
    steps = use_steps(_holds(held[:MAX_HISTORY_ROWS], now), known_since(ends, since), now) if ends else ()
    return SiteHistoryView(steps, tuple(starts), max(len(mine), len(first)) > MAX_HISTORY_ROWS)


def _is_over(server: Server) -> bool:
    return server.status in GONE


def _flavor_of(server: Server) -> str:
    return server.flavor.name if server.flavor else ""


def _holds(servers: Iterable[Server], now: float) -> Iterator[tuple[float, float, int]]:
    """Yield start, end and GPUs, in thousandths, of servers. A server that is shut off holds its GPUs."""
    for server in servers:
        yield server.launched_at, server.terminated_at if _is_over(server) else now, size_of(server).gpu_milli
