"""Preemption statistics per site and drone type, measured on the recorded drones; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import NamedTuple

from provisioner.model import DroneState
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

    @property
    def began(self) -> float:
        return self.started_at or self.joined_at


def hazards_of(drones: Iterable[DroneLifetime], since: float, now: float) -> list[Hazard]:
    """Return one :class:`Hazard` per site and one per drone type, sites before their types.

    ``drones`` are live or ended at ``since`` or later. A drone whose start is unknown counts only if it was preempted.
    """
    by_scope: dict[str, list[DroneLifetime]] = {}
    for drone in drones:
        if drone.began or drone.state == DroneState.PREEMPTED:
            for scope in (drone.type.partition("/")[0], drone.type):
                by_scope.setdefault(scope, []).append(drone)
    return [_hazard(scope, by_scope[scope], since, now) for scope in sorted(by_scope)]


def _hazard(scope: str, drones: Sequence[DroneLifetime], since: float, now: float) -> Hazard:
    ended = [drone for drone in drones if drone.ended_at]
    preempted = [drone for drone in ended if drone.state == DroneState.PREEMPTED]
    lives_s = [max(0.0, drone.ended_at - drone.began) for drone in preempted if drone.began]
    graces_s = [max(0.0, drone.ended_at - drone.notice_at) for drone in ended if drone.notice_at]
    return Hazard(
        scope=scope,
        drones=len(drones),
        run_s=sum(max(0.0, min(d.ended_at or now, now) - max(d.began, since)) for d in drones if d.began),
        preempted=len(preempted),
        life_mean_s=fmean(lives_s) if lives_s else None,
        life_median_s=median(lives_s) if lives_s else None,
        grace_mean_s=fmean(graces_s) if graces_s else None,
        lost_gpu_s=sum((drone.lost_gpu_s for drone in ended if drone.gpu_milli), 0.0),
        lost_cpu_s=sum((drone.lost_gpu_s for drone in ended if not drone.gpu_milli), 0.0),
        lost_jobs=sum(drone.lost_jobs for drone in ended),
    )
