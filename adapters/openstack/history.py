"""Past of an OpenStack site by Nova's times of servers, and of deleted ones while Nova keeps their rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from adapters.openstack.capacity import owners, size_of
from adapters.openstack.servers import GONE, Flavor, Server, nova_time, parse_server
from adapters.openstack.settings import OpenStackOwnerConfig
from provisioner.history import MAX_HISTORY_ROWS, PastStart, SiteHistoryView, known_since, use_steps

if TYPE_CHECKING:
    from adapters.openstack.nova import OpenStackCloud


READING_S = 20.0
"""Time after which no further page of a project's servers is read."""


async def past_servers(
    cloud: OpenStackCloud, since: float, clock: Callable[[], float] = time.monotonic
) -> tuple[Sequence[Server], bool]:
    """Return the servers of a project, and whether some are left out.

    They are those that exist and, the newest first, those that changed or were deleted after a
    time.
    """
    found = {server.id: server for server in await cloud.servers()}
    began_at = clock()
    left_out = False
    pages = cloud.each_page(
        "compute", "/servers/detail", "servers", [("changes-since", nova_time(since))]
    )
    async with aclosing(pages):
        async for page in pages:
            found |= {server.id: server for server in map(parse_server, page)}
            left_out = len(found) > MAX_HISTORY_ROWS or clock() - began_at > READING_S
            if left_out:
                break
    return list(found.values()), left_out


def site_history(
    ours: Sequence[Server],
    flavors: Mapping[str, Flavor],
    theirs: Iterable[Server],
    owner: OpenStackOwnerConfig | None,
    hosts: Collection[str],
    since: float,
    now: float,
    *,
    left_out: bool = False,
) -> SiteHistoryView:
    """Return the past of a site. ``left_out``: the oldest servers are missing.

    ``flavors``: by drone type. ``hosts``: ids of the hosts of this site. Nova names no host of a
    deleted server: those of the owner count if their flavour has been seen here. The use is known
    since the oldest deletion.
    """
    mine = sorted(ours, key=lambda server: -server.created_at)
    starts = [
        PastStart(kind, server.launched_at, server.launched_at - server.created_at)
        for server in mine[:MAX_HISTORY_ROWS]
        for kind, flavor in flavors.items()
        if _flavor_of(server) == flavor.name and 0 < server.created_at <= server.launched_at <= now
    ]
    left_out = left_out or len(mine) > MAX_HISTORY_ROWS
    first = sorted(owners(theirs, owner), key=lambda server: -server.created_at) if owner else []
    left_out = left_out or len(first) > MAX_HISTORY_ROWS
    held = _held_here(first[:MAX_HISTORY_ROWS], hosts)
    ended = [server for server in held if _is_over(server) and since <= server.terminated_at <= now]
    if not ended:
        return SiteHistoryView((), tuple(starts), left_out)
    known_at = known_since([server.terminated_at for server in ended], since)
    if left_out:  # older ones may have been deleted since
        known_at = max(known_at, min(server.created_at for server in ended))
    return SiteHistoryView(use_steps(_holds(held, now), known_at, now), tuple(starts), left_out)


def _held_here(servers: Sequence[Server], hosts: Collection[str]) -> Sequence[Server]:
    """Return the servers that are on these hosts, and those that are over and probably were."""
    here = {server.flavor.name for server in servers if server.flavor and server.host_id in hosts}
    return [
        each
        for each in servers
        if each.host_id in hosts or (_is_over(each) and _flavor_of(each) in here)
    ]


def _is_over(server: Server) -> bool:
    return server.status in GONE


def _flavor_of(server: Server) -> str:
    return server.flavor.name if server.flavor else ""


def _holds(servers: Iterable[Server], now: float) -> Iterator[tuple[float, float, int]]:
    """Yield start, end and GPUs, in thousandths, of servers. A server that is shut off holds its GPUs."""
    for server in servers:
        yield (
            server.launched_at,
            server.terminated_at if _is_over(server) else now,
            size_of(server).gpu_milli,
        )
