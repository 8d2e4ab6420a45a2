"""Headroom: warm drones for jobs that have not arrived yet.

Headroom is served as classes of virtual jobs, after all real ones and within the same limits. A warm drone is like any
other: the first real job that fits takes it, and another one is started. No headroom is started, and none is kept
beyond the idle timeout, at a site where a real job lacks room or the owner waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from provisioner import reasons
from provisioner.model import DroneId, DroneState, DroneType, Headroom, JobClass, Policy, Refusal, UnmetRequirement
from provisioner.planner.matching import count_jobs, free_resources, request_of

if TYPE_CHECKING:
    from provisioner.planner.context import PlanningContext


HEADROOM_PREFIX = "headroom:"
"""Prefix of the ids of virtual classes; no overlay's class has it."""
_DAY_S, _HOUR_S = 86400.0, 3600.0
_YIELDS_TO = (reasons.LimitReached, reasons.SiteFull, reasons.SiteQuota, reasons.GpusStranded)


def headroom_classes(policy: Policy, types: Iterable[DroneType], now: float) -> tuple[JobClass, ...]:
    """Return the headroom that is wanted now, as waiting jobs."""
    active = [each for each in policy.headroom if each.count and headroom_active(each, now)]
    types = tuple(types) if active else ()
    return tuple(
        JobClass(
            id=HEADROOM_PREFIX + each.name,
            gpu_milli=each.gpu_milli,
            cpus=each.cpus,
            memory_mib=each.memory_mib,
            disk_mib=each.disk_mib,
            vram_mib=each.vram_mib,
            waiting=each.count,
            refuses={t.key: UnmetRequirement("headroom", each.name, t.key) for t in types if not _allows_type(each, t)},
        )
        for each in active
    )


def is_headroom(class_id: str) -> bool:
    return class_id.startswith(HEADROOM_PREFIX)


def headroom_active(headroom: Headroom, now: float) -> bool:
    """Return True if the headroom is kept at this hour of the day (UTC)."""
    hour = now % _DAY_S / _HOUR_S
    if headroom.from_h < headroom.to_h:
        return headroom.from_h <= hour < headroom.to_h
    return hour >= headroom.from_h or hour < headroom.to_h


def _allows_type(headroom: Headroom, kind: DroneType) -> bool:
    return headroom.site in ("", kind.site) and (not headroom.types or kind.name in headroom.types)


def sites_without_headroom(
    context: PlanningContext, refusals: Iterable[Refusal], claimed: Collection[str]
) -> frozenset[str]:
    """Return the sites where a real job lacks room, or the owner waits (``claimed``)."""
    if not context.headroom:
        return frozenset()
    sites = set(claimed)
    for refusal in refusals:
        kind, _, class_id = refusal.subject.partition(":")
        if kind != "class" or is_headroom(class_id) or not isinstance(refusal.reason, _YIELDS_TO):
            continue
        if isinstance(refusal.reason, reasons.LimitReached) and refusal.reason.scope == "all sites":
            sites.update(context.snapshot.policy.sites)
        sites.update(each.site for each in context.compatible[class_id].kinds)
    return frozenset(sites)


def kept_for_headroom(context: PlanningContext, sites_without_headroom: Collection[str]) -> frozenset[DroneId]:
    """Return the idle drones that headroom needs: they do not leave for being idle.

    Those that live longest are kept, so that they are the same from tick to tick. A site without headroom keeps none
    but for real jobs.
    """
    if not context.headroom:
        return frozenset()
    rooms = {
        i: free_resources(context.slots[i])
        for i in context.changing
        if i in context.slots and _accepts_jobs(context, i)
    }
    order = sorted(rooms, key=lambda i: _keep_order(context, i))
    warm: set[DroneId] = set()
    wanted = {key for job in context.classes for key in context.compatible[job.id].jobs}
    for job in context.headroom:
        lack, keys = job.waiting, context.compatible[job.id].jobs
        for drone_id in order:
            drone = context.drones[drone_id]
            if lack <= 0:
                break
            if drone.type not in keys or (drone.site in sites_without_headroom and drone.type not in wanted):
                continue
            count = min(lack, count_jobs(job, rooms[drone_id], context.types[drone.type]))
            if count > 0:
                lack -= count
                rooms[drone_id] = rooms[drone_id].plus(request_of(job, context.types[drone.type]), -count)
                warm.add(drone_id)
    return frozenset(warm)


def _accepts_jobs(context: PlanningContext, drone_id: DroneId) -> bool:
    drone = context.drones[drone_id]
    serves = drone.state in (DroneState.IDLE, DroneState.BUSY)
    return serves and drone.type in context.types and not drone.is_leaving and not drone.notice_at


def _keep_order(context: PlanningContext, drone_id: DroneId) -> tuple[bool, float, float, str]:
    """Return the sort key of drones to keep: free room beside running jobs first, as it is there anyway."""
    drone, slot = context.drones[drone_id], context.slots[drone_id]
    return drone.state is DroneState.IDLE, -(slot.retires_at or float("inf")), drone.joined_at, drone_id
