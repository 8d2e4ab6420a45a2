"""Validity of the observed views, and drones in a steady state.

A view that is missing, failed or too old is not acted on. A listing that lacks many drones at once is doubted. Nearly
all drones are busy, full and unchanged at nearly any time, and need no rule but to be counted. They are split off
first, in one pass; every rule then goes through the others alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from provisioner import reasons
from provisioner.model import (
    Drone,
    DroneId,
    DroneState,
    DroneType,
    Fault,
    Policy,
    RemoteDrone,
    RemoteState,
    SitePolicy,
    SiteView,
    Slot,
    SlotState,
    Snapshot,
    TypeKey,
)
from provisioner.reasons import Reason

VANISHED_MIN_DRONES = 3
VANISHED_FRACTION = 0.5
VANISHED_PATIENCE_FACTOR = 10
"""When at least this many drones, and this fraction of a site's drones, vanish at once, the planner waits this many
times longer before it believes it: an empty listing is far more often a broken listing (field notes, A.2 W4, B 8)."""


@dataclass(frozen=True, slots=True)
class ViewValidity:
    """Validity of the views. Nothing is started or stopped where a view is doubted."""

    overlay: Reason | None
    sites: Mapping[str, Reason | None]
    vanished: frozenset[str]
    slots: Mapping[DroneId, Slot]
    """Slots with a recent sign of life; none if the overlay's view is doubted."""
    split: SteadyStateSplit
    """The drones on record, split by the valid views."""

    def site_view(self, snapshot: Snapshot, site: str) -> SiteView | None:
        """Return the view of a site if it is fresh, even if many drones vanished from it."""
        doubt = self.sites.get(site)
        if doubt is not None and not isinstance(doubt, reasons.AllVanished):
            return None
        polled = snapshot.sites.get(site)
        return polled.view if polled else None


def check_views(snapshot: Snapshot) -> ViewValidity:
    """Check each view for age and faults, and each listing for vanished drones."""
    now, policy = snapshot.now, snapshot.policy
    view = snapshot.overlay.view
    overlay = _stale("overlay", view.taken_at if view else None, snapshot.overlay.fault, now, policy.overlay_max_age_s)
    slots = _alive_slots(snapshot) if overlay is None else {}
    sites: dict[str, Reason | None] = {}
    views: dict[str, SiteView] = {}
    for name, site_policy in policy.sites.items():
        polled = snapshot.sites.get(name)
        taken = polled.view.taken_at if polled and polled.view else None
        doubt: Reason | None = _stale(
            f"site:{name}", taken, polled.fault if polled else None, now, site_policy.view_max_age_s
        )
        if doubt is None and polled is not None and polled.busy:
            age = now - taken if taken is not None else -1.0
            doubt = reasons.StaleView(
                f"site:{name}", age, site_policy.view_max_age_s, "its last orders are still under way"
            )
        if doubt is None and polled is not None and polled.view is not None:
            views[name] = polled.view
        sites[name] = doubt
    split = split_steady(snapshot, slots, views)
    vanished = _vanished(policy, views, split)
    sites.update(vanished)
    return ViewValidity(overlay, sites, frozenset(vanished), slots, split)


def _alive_slots(snapshot: Snapshot) -> Mapping[DroneId, Slot]:
    view, oldest = snapshot.overlay.view, snapshot.now - snapshot.policy.slot_max_age_s
    return {s.drone_id: s for s in view.slots if s.heard_at >= oldest} if view else {}


def _stale(name: str, taken: float | None, fault: Fault | None, now: float, limit_s: float) -> reasons.StaleView | None:
    age = -1.0 if taken is None else max(0.0, now - taken)
    if fault is not None:
        return reasons.StaleView(name, age, limit_s, fault.message)
    if taken is None:
        return reasons.StaleView(name, -1.0, limit_s, "never seen")
    if age > limit_s:
        return reasons.StaleView(name, age, limit_s, "too old")
    return None


def _vanished(policy: Policy, views: Mapping[str, SiteView], split: SteadyStateSplit) -> Mapping[str, Reason]:
    """Return the sites whose listing lacks so many drones at once that it is doubted."""
    known: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    for drone in split.changing.values():
        site = drone.site
        view = views.get(site)
        if view is None or drone.state in (DroneState.REQUESTED, DroneState.SUBMITTED) or drone.goes:
            continue
        known[site] += 1
        if drone.id not in view.drones:
            patience_s = policy.sites[site].missing_s * VANISHED_PATIENCE_FACTOR
            missing[site] += not drone.missing_at or view.taken_at - drone.missing_at < patience_s
    for key, count in split.steady.items() if missing else ():
        known[key.partition("/")[0]] += count
    return {
        site: reasons.AllVanished(site, count)
        for site, count in missing.items()
        if count >= VANISHED_MIN_DRONES and count >= VANISHED_FRACTION * known[site]
    }


HEARTBEAT_RECORD_INTERVAL_S = 300.0
"""Interval at which the last sign of life of an otherwise unchanged drone is recorded."""
_STEADY_SLACK_S = 1.0
"""A drone is no longer steady this long before its walltime ends."""


@dataclass(frozen=True, slots=True)
class SteadyStateSplit:
    """The drones on record, split into steady and changing ones."""

    changing: Mapping[DroneId, Drone]
    """Drones that are not steady, in the order of the record."""
    steady: Mapping[TypeKey, int] = field(default_factory=dict)
    """Number of steady drones by type. Their types are configured and have the size that they had at the order."""


@dataclass(slots=True)
class _SteadyType:
    """Steady drones of one type, and the values that they are compared with."""

    kind: DroneType
    listed: Mapping[DroneId, RemoteDrone]
    oldest: float
    """A drone that started before this has reached, or will soon reach, the end of its walltime."""
    count: int = 0


def split_steady(snapshot: Snapshot, slots: Mapping[DroneId, Slot], views: Mapping[str, SiteView]) -> SteadyStateSplit:
    """Split the drones on record into steady and changing ones by the valid slots and views."""
    shelves = _steady_types(snapshot, views)
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
            and slot.heard_at - drone.heard_at < HEARTBEAT_RECORD_INTERVAL_S
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
    return SteadyStateSplit(others, {key: shelf.count for key, shelf in shelves.items() if shelf.count})


def _steady_types(snapshot: Snapshot, views: Mapping[str, SiteView]) -> dict[TypeKey, _SteadyType]:
    """Return an entry for each type of a site with a valid view."""
    shelves = {}
    for kind in snapshot.types:
        view, policy = views.get(kind.site), snapshot.policy.sites.get(kind.site) or SitePolicy(kind.site)
        if view is not None:
            life_s = kind.walltime_s + policy.grace_s - _STEADY_SLACK_S if kind.walltime_s else snapshot.now
            shelves[kind.key] = _SteadyType(kind, view.drones, max(0.0, snapshot.now - life_s))
    return shelves
