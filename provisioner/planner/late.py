"""Which drones wait at their site, and for a while yet: no reason not to start others where there is room now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from provisioner.model import Drone, DroneId, DroneState, DroneType, RemoteDrone, SiteView, Snapshot, TypeKey
from provisioner.planner.guard import Trust

LATE_S = 600.0
"""A drone that its site expects to start later than this, or that a limit holds there, comes late: about what a drone
needs from its order to its first job."""
ROOMLESS_S = 180.0
"""So does one that has waited for so long, and for twice as long as is usual, while what is free goes to those before
it: who was to make room for it did not, or others came before it."""
_WAITS = (DroneState.SUBMITTED, DroneState.QUEUED)


def late_ones(
    snapshot: Snapshot, trust: Trust, types: Mapping[TypeKey, DroneType], drones: Iterable[Drone]
) -> frozenset[DroneId]:
    """Of ``drones`` those that come late: by what the site says of their start, or of a limit, or, where it says
    nothing, by what drones of the type usually wait there, or by what is free there."""
    found: set[DroneId] = set()
    untold: dict[TypeKey, list[Drone]] = {}
    for drone in drones:
        if drone.state not in _WAITS:
            continue
        view = trust.site_view(snapshot, drone.site)
        remote = view.drones.get(drone.id) if view is not None else None
        if remote is None:
            continue
        told = _told_late(snapshot, drone, remote)
        if told:
            found.add(drone.id)
        elif told is None and drone.awaits_room:
            untold.setdefault(drone.type, []).append(drone)
    for key, waiting in untold.items():
        kind = types.get(key)
        view = trust.site_view(snapshot, kind.site) if kind is not None else None
        if kind is not None and view is not None:
            found |= {drone.id for drone in _roomless(snapshot, view, kind, waiting)}
    return frozenset(found)


def _told_late(snapshot: Snapshot, drone: Drone, remote: RemoteDrone) -> bool | None:
    """None where neither the site nor experience tells that it is late, nor the site when it will start."""
    if remote.blocked is not None:
        return True
    if remote.expected_start_at:
        return remote.expected_start_at > snapshot.now + LATE_S
    usual = snapshot.estimates.delays.get(drone.type)
    return True if usual is not None and usual.queue_s > LATE_S else None


def _roomless(snapshot: Snapshot, view: SiteView, kind: DroneType, waiting: list[Drone]) -> Iterator[Drone]:
    """Those that wait too long already, and that nothing is free for once the others before them have theirs."""
    usual = snapshot.estimates.delays.get(kind.key)
    too_long_s = max(ROOMLESS_S, 2.0 * usual.queue_s if usual is not None else 0.0)
    if snapshot.now - min(drone.requested_at for drone in waiting) <= too_long_s:
        return
    free = _free(view, kind)
    if free is None:
        return
    for drone in sorted(waiting, key=lambda d: (d.requested_at, d.id))[free:]:
        if snapshot.now - drone.requested_at > too_long_s:
            yield drone


def _free(view: SiteView, kind: DroneType) -> int | None:
    """Drones of a type that what is free would do for, at the most; None if that is not told."""
    if view.nodes:
        if not kind.gpu_milli:
            return None
        milli = sum(node.free_gpu_milli for node in view.nodes if kind.name in node.types)
        return milli // kind.gpu_milli
    return view.free.get(kind.name, 0) if view.free is not None else None
