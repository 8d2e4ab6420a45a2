"""What deleted servers have left behind: ports and volumes that Nova made for them and did not take away.

Only what is known to be of a drone's server is touched. Such things eat quotas: nobody misses them until nothing more
can be started (field notes, B 46).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from adapters.openstack.nova import Cloud
from adapters.openstack.records import Port, Server, Volume
from adapters.openstack.states import GONE

_OF_NOVA = "compute:"
"""Prefix of ``device_owner`` of a port that Nova bound to a server (Neutron API reference, "device_owner")."""
_FREE = ("available", "error", "error_deleting")
"""Statuses in which Cinder deletes a volume."""


@dataclass(frozen=True, slots=True)
class Leavings:
    """Ids of what is to be deleted."""

    ports: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()


def leavings(gone: Mapping[str, Server], ports: Iterable[Port], volumes: Iterable[Volume]) -> Leavings:
    """``gone``: our servers that the cloud says to be deleted, by id, with what was last known of them."""
    boot = {volume for server in gone.values() for volume in server.volumes}
    return Leavings(
        tuple(port.id for port in ports if port.device_id in gone and port.device_owner.startswith(_OF_NOVA)),
        tuple(each.id for each in volumes if each.id in boot and each.status in _FREE),
    )


_AGAIN_S = 60.0
"""A sweep that failed is tried again after so long."""
_LATE_S = 300.0
"""So long after a server has gone Nova and Cinder may still be about to clear up themselves."""
_MOST = 20_000


class ResourceCleanup:
    """Deletion of ports and volumes that deleted servers left behind.

    ``every_s`` is the interval; 0 disables it.
    """

    def __init__(self, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s, self._clock = every_s, clock
        self._unswept: dict[str, tuple[Server, float]] = {}
        """And since when it is known to be gone."""
        self._swept: set[str] = set()
        self._next_at = 0.0

    def due(self, gone: Mapping[str, Server]) -> bool:
        """Whether there is something to look at. ``gone``: ours that are there no more, as a look has shown."""
        now = self._clock()
        self._swept &= gone.keys()
        for server_id, server in gone.items():
            if server.status in GONE and server_id not in self._swept and len(self._unswept) < _MOST:
                self._unswept.setdefault(server_id, (server, now))
        return bool(self._every_s and self._unswept) and now >= self._next_at

    async def sweep(self, cloud: Cloud) -> None:
        """Look for leftovers and delete them. If ``cloud`` raises, the next attempt is soon."""
        now = self._clock()
        self._next_at = now + min(_AGAIN_S, self._every_s)
        servers = {server_id: server for server_id, (server, _) in self._unswept.items()}
        left = leavings(servers, await cloud.ports(), await cloud.volumes())
        for port in left.ports:
            await cloud.delete_port(port)
        for volume in left.volumes:
            await cloud.delete_volume(volume)
        done = {server_id for server_id, (_, since) in self._unswept.items() if since <= now - _LATE_S}
        self._unswept = {server_id: each for server_id, each in self._unswept.items() if server_id not in done}
        self._swept |= done
        self._next_at = now + self._every_s
