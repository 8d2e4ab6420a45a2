"""Settled drones: busy, full, in their time, and as they were, by their site and by the pool. Nearly all drones are,
at nearly any time, and no rule has anything to say of them but that they count: so they are told apart first, in one
pass, and every rule goes through the others alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from provisioner.model import (
    Drone,
    DroneId,
    DroneState,
    DroneType,
    RemoteDrone,
    RemoteState,
    SitePolicy,
    SiteView,
    Slot,
    SlotState,
    Snapshot,
    TypeKey,
)

HEARD_EVERY_S = 300.0
"""Interval at which the last sign of life of a drone without other news is recorded."""
_SLACK_S = 1.0
"""So long before its time is over a drone no longer counts as settled."""


@dataclass(frozen=True, slots=True)
class Sifted:
    """All drones on record."""

    others: Mapping[DroneId, Drone]
    """Those that are not settled, in the order of the record."""
    settled: Mapping[TypeKey, int] = field(default_factory=dict)
    """How many are, by type. Their types are configured, and of the size that they were when they were asked for."""


@dataclass(slots=True)
class _Shelf:
    """The settled drones of one type, and what they are judged by."""

    kind: DroneType
    listed: Mapping[DroneId, RemoteDrone]
    oldest: float
    """Who started before has lived, or will soon have lived, for as long as he may."""
    count: int = 0


def sift(snapshot: Snapshot, slots: Mapping[DroneId, Slot], views: Mapping[str, SiteView]) -> Sifted:
    """Tell the settled drones from the others. ``slots`` and ``views``: those that can be believed."""
    shelves = _shelves(snapshot, views)
    busy, slot_busy, running = DroneState.BUSY, SlotState.BUSY, RemoteState.RUNNING
    others: dict[DroneId, Drone] = {}
    for drone_id, drone in snapshot.drones.items():
        # Said in one breath, without a call: this is all that a large site costs at most ticks.
        if (
            drone.state is busy
            and (slot := slots.get(drone_id)) is not None
            and (shelf := shelves.get(drone.type)) is not None
            and (remote := shelf.listed.get(drone_id)) is not None
            and slot.state is slot_busy
            and (slot.free_gpu_milli if drone.gpu_milli else slot.free_cpus) <= 0
            and slot.jobs == drone.jobs
            and slot.jobs_started == drone.jobs_started
            and slot.work_at == drone.work_at
            and slot.work_gpu_milli == drone.work_gpu_milli
            and slot.retires_at == drone.retires_at
            and slot.name == drone.slot
            and slot.heard_at - drone.heard_at < HEARD_EVERY_S
            and remote.state is running
            and remote.end is None
            and not remote.notice_at
            and remote.reason == drone.site_reason
            and remote.remote_id == drone.remote_id
            and remote.node == drone.node
            and remote.slot == drone.site_slot
            and drone.started_at > shelf.oldest
            and drone.submitted_at
            and drone.joined_at
            and drone.busy_at
            and not drone.idle_at
            and not drone.missing_at
            and not drone.unslotted_at
            and not drone.notice_at
            and drone.leaving is None
            and drone.gpu_milli == shelf.kind.gpu_milli
        ):
            shelf.count += 1
        else:
            others[drone_id] = drone
    return Sifted(others, {key: shelf.count for key, shelf in shelves.items() if shelf.count})


def _shelves(snapshot: Snapshot, views: Mapping[str, SiteView]) -> dict[TypeKey, _Shelf]:
    """For each type at a site that can be seen."""
    shelves = {}
    for kind in snapshot.types:
        view, policy = views.get(kind.site), snapshot.policy.sites.get(kind.site) or SitePolicy(kind.site)
        if view is not None:
            life_s = kind.walltime_s + policy.grace_s - _SLACK_S if kind.walltime_s else snapshot.now
            shelves[kind.key] = _Shelf(kind, view.drones, max(0.0, snapshot.now - life_s))
    return shelves
