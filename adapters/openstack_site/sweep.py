"""What deleted servers have left behind: ports and volumes that Nova made for them and did not take away.

Only what is known to be of a drone's server is touched. Such things eat quotas: nobody misses them until nothing more
can be started (field notes, B 46).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from adapters.openstack_site.records import Port, Server, Volume

_OF_NOVA = "compute:"
"""How ``device_owner`` of a port begins that Nova has bound to a server (Neutron's API reference, "device_owner")."""
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
