"""Headroom: warm drones for jobs that have not come yet, as classes of virtual jobs that are served last.

They meet the same limits as real jobs and come after all of them. What they have is given up first (:mod:`warm`). A
warm drone is like any other: the first real job that fits takes it, and another is warmed up then.
"""

from __future__ import annotations

from collections.abc import Iterable

from provisioner.model import DroneType, Headroom, JobClass, Policy, UnmetRequirement

PREFIX = "headroom:"
"""Begins the ids of virtual classes; no overlay's class is named so."""
_DAY_S, _HOUR_S = 86400.0, 3600.0


def virtual_classes(policy: Policy, types: Iterable[DroneType], now: float) -> tuple[JobClass, ...]:
    """What headroom is wanted now, as waiting jobs."""
    types = tuple(types) if policy.headroom else ()
    return tuple(_jobs(each, types) for each in policy.headroom if each.count and wanted_at(each, now))


def is_virtual(class_id: str) -> bool:
    return class_id.startswith(PREFIX)


def wanted_at(headroom: Headroom, now: float) -> bool:
    """Whether it is kept at this hour of the day (UTC)."""
    hour = now % _DAY_S / _HOUR_S
    if headroom.from_h < headroom.to_h:
        return headroom.from_h <= hour < headroom.to_h
    return hour >= headroom.from_h or hour < headroom.to_h


def _jobs(headroom: Headroom, types: Iterable[DroneType]) -> JobClass:
    elsewhere = {t.key: UnmetRequirement("headroom", headroom.name, t.key) for t in types if not _meant(headroom, t)}
    return JobClass(
        id=PREFIX + headroom.name,
        gpu_milli=headroom.gpu_milli,
        cpus=headroom.cpus,
        memory_mib=headroom.memory_mib,
        disk_mib=headroom.disk_mib,
        vram_mib=headroom.vram_mib,
        waiting=headroom.count,
        refuses=elsewhere,
    )


def _meant(headroom: Headroom, kind: DroneType) -> bool:
    return headroom.site in ("", kind.site) and (not headroom.types or kind.name in headroom.types)
