"""How often a site takes its places back and what that costs, measured on the drones on record; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from provisioner.model import Drone, DroneState
from provisioner.store import Hazard

_PREEMPTED = DroneState.PREEMPTED.value


class Life(NamedTuple):
    """What is needed of one drone's record; the names are those of its columns."""

    type: str
    state: str
    started_at: float
    joined_at: float
    ended_at: float
    notice_at: float
    gpu_milli: int
    lost_gpu_s: float
    lost_jobs: int


def life_of(drone: Drone) -> Life:
    """The part of a record that counts here."""
    return Life(
        drone.type,
        drone.state.value,
        drone.started_at,
        drone.joined_at,
        drone.ended_at,
        drone.notice_at,
        drone.gpu_milli,
        drone.lost_gpu_s,
        drone.lost_jobs,
    )


def hazards_of(lives: Iterable[Life], since: float, now: float) -> list[Hazard]:
    """One :class:`Hazard` per site and one per drone type, sites before their types. ``lives``: of drones that live or
    ended at ``since`` or later. A drone of which nobody knows when it began to run counts only if it was preempted."""
    types: dict[str, _Tally] = {}
    for life in lives:
        began = life.started_at or life.joined_at
        if began or life.state == _PREEMPTED:
            types.setdefault(life.type, _Tally()).add(life, began, since, now)
    scopes: dict[str, _Tally] = {}
    for kind, tally in types.items():
        scopes.setdefault(kind.partition("/")[0], _Tally()).absorb(tally)
        scopes[kind] = tally
    return [scopes[scope].told(scope) for scope in sorted(scopes)]


@dataclass(slots=True)
class _Tally:
    drones: int = 0
    run_s: float = 0.0
    preempted: int = 0
    lives_s: list[float] = field(default_factory=list)
    graces_s: list[float] = field(default_factory=list)
    lost_gpu_s: float = 0.0
    lost_cpu_s: float = 0.0
    lost_jobs: int = 0

    def add(self, life: Life, began: float, since: float, now: float) -> None:
        ended = life.ended_at
        self.drones += 1
        if began:
            self.run_s += max(0.0, min(ended or now, now) - max(began, since))
        if not ended:
            return
        if life.state == _PREEMPTED:
            self.preempted += 1
            if began:
                self.lives_s.append(max(0.0, ended - began))
        if life.notice_at:
            self.graces_s.append(max(0.0, ended - life.notice_at))
        if life.gpu_milli:
            self.lost_gpu_s += life.lost_gpu_s
        else:
            self.lost_cpu_s += life.lost_gpu_s
        self.lost_jobs += life.lost_jobs

    def absorb(self, other: _Tally) -> None:
        self.drones += other.drones
        self.run_s += other.run_s
        self.preempted += other.preempted
        self.lives_s += other.lives_s
        self.graces_s += other.graces_s
        self.lost_gpu_s += other.lost_gpu_s
        self.lost_cpu_s += other.lost_cpu_s
        self.lost_jobs += other.lost_jobs

    def told(self, scope: str) -> Hazard:
        return Hazard(
            scope=scope,
            drones=self.drones,
            run_s=self.run_s,
            preempted=self.preempted,
            life_mean_s=_mean(self.lives_s),
            life_median_s=_median(self.lives_s),
            grace_mean_s=_mean(self.graces_s),
            lost_gpu_s=self.lost_gpu_s,
            lost_cpu_s=self.lost_cpu_s,
            lost_jobs=self.lost_jobs,
        )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _median(values: list[float]) -> float | None:
    ordered, half = sorted(values), len(values) // 2
    if not ordered:
        return None
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
