"""Preemption statistics per site and drone type, measured on the recorded drones; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import NamedTuple

from provisioner.model import Drone, DroneState
from provisioner.store import Hazard


class DroneLifetime(NamedTuple):
    """The columns of a drone that count here."""

    type: str
    state: str
    started_at: float
    joined_at: float
    ended_at: float
    notice_at: float
    gpu_milli: int
    lost_gpu_s: float
    lost_jobs: int


def hazards_of(drones: Iterable[Drone | DroneLifetime], since: float, now: float) -> list[Hazard]:
    """Return one :class:`Hazard` per site and one per drone type, sites before their types.

    ``drones`` are live or ended at ``since`` or later. A drone whose start is unknown counts only if it was preempted.
    """
    tallies: dict[str, _HazardTally] = {}
    for drone in drones:
        began = drone.started_at or drone.joined_at
        if began or drone.state == DroneState.PREEMPTED:
            for scope in (drone.type.partition("/")[0], str(drone.type)):
                tallies.setdefault(scope, _HazardTally()).add(drone, began, since, now)
    return [tallies[scope].result(scope) for scope in sorted(tallies)]


@dataclass(slots=True)
class _HazardTally:
    drones: int = 0
    run_s: float = 0.0
    preempted: int = 0
    lifetimes_s: list[float] = field(default_factory=list)
    graces_s: list[float] = field(default_factory=list)
    lost_gpu_s: float = 0.0
    lost_cpu_s: float = 0.0
    lost_jobs: int = 0

    def add(self, drone: Drone | DroneLifetime, began: float, since: float, now: float) -> None:
        ended = drone.ended_at
        self.drones += 1
        if began:
            self.run_s += max(0.0, min(ended or now, now) - max(began, since))
        if not ended:
            return
        if drone.state == DroneState.PREEMPTED:
            self.preempted += 1
            if began:
                self.lifetimes_s.append(max(0.0, ended - began))
        if drone.notice_at:
            self.graces_s.append(max(0.0, ended - drone.notice_at))
        if drone.gpu_milli:
            self.lost_gpu_s += drone.lost_gpu_s
        else:
            self.lost_cpu_s += drone.lost_gpu_s
        self.lost_jobs += drone.lost_jobs

    def result(self, scope: str) -> Hazard:
        return Hazard(
            scope=scope,
            drones=self.drones,
            run_s=self.run_s,
            preempted=self.preempted,
            life_mean_s=fmean(self.lifetimes_s) if self.lifetimes_s else None,
            life_median_s=median(self.lifetimes_s) if self.lifetimes_s else None,
            grace_mean_s=fmean(self.graces_s) if self.graces_s else None,
            lost_gpu_s=self.lost_gpu_s,
            lost_cpu_s=self.lost_cpu_s,
            lost_jobs=self.lost_jobs,
        )
