"""What experience tells the planner: how long jobs run, drones take and owners leave room, and how long to stay idle.

Values only, as :mod:`provisioner.controller.estimation` has gathered them. :class:`Estimates` is part of the
snapshot, so
that a decision made from it can be made again. Nothing of it is needed: where nothing is known, nothing is held back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

HORIZONS_S = (900.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0, 57600.0)
"""How far ahead is looked for an owner who comes back."""
USUAL_RUN_S = 1800.0
"""Of a job of which nothing is known."""
TAIL_FACTOR = 4.0
"""A mean run time counts up to so many medians, and a minute more: one job of two weeks is no forecast."""


@dataclass(frozen=True, slots=True)
class StartDelays:
    """How long drones of a type take to come: means, in seconds."""

    queue_s: float
    """From the order to its place at the site; it holds nothing until then."""
    boot_s: float
    """From its place to the pool; it holds its GPUs."""


@dataclass(frozen=True, slots=True)
class OwnerGrowth:
    """How much more an owner came to hold within each of :data:`HORIZONS_S`, at equally many past moments."""

    gpu_milli: tuple[tuple[int, ...], ...]
    """A row for each horizon, ascending: equally likely values."""

    def chances(self, head_milli: int) -> tuple[float, ...]:
        """For each horizon: how likely it is that the owner takes more than ``head_milli`` within it."""
        return tuple(1.0 - bisect_right(row, head_milli) / len(row) if row else 0.0 for row in self.gpu_milli)


@dataclass(frozen=True, slots=True)
class Estimates:
    """All of it."""

    runs: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Equally likely run times in seconds, ascending, by what :func:`run_keys` says."""
    delays: Mapping[str, StartDelays] = field(default_factory=dict)
    """By drone type's key."""
    rises: Mapping[str, OwnerGrowth] = field(default_factory=dict)
    """By site whose owner's use is told."""
    taken_per_s: Mapping[str, float] = field(default_factory=dict)
    """By site: places taken back per second of a drone's run, where no owner's use is told."""
    idle_s: Mapping[str, float] = field(default_factory=dict)
    """By site: the idle time-out that would have cost least."""
    gaps: Mapping[str, int] = field(default_factory=dict)
    """By site: gaps between two jobs of a drone that are known."""

    def runs_of(self, owner: str, gpu_milli: int, cpus: int, memory_mib: int, walltime_s: float) -> tuple[float, ...]:
        """Equally likely run times of jobs: of this user's jobs of this size, what the jobs declare, of this user's, of
        all, or what is usual; never longer than declared."""
        mine, _, _ = keys = run_keys(owner, gpu_milli, cpus, memory_mib)
        if walltime_s and mine not in self.runs:
            return (walltime_s,)
        known = next((self.runs[key] for key in keys if key in self.runs), (USUAL_RUN_S,))
        return tuple(min(run_s, walltime_s) for run_s in known) if walltime_s else known


NO_ESTIMATES = Estimates()
UNKNOWN = -1
"""In a series of an owner's use: nobody looked."""


@dataclass(frozen=True, slots=True)
class SiteSamples:
    """What was seen at one site."""

    use_milli: tuple[int, ...] = ()
    """What its owner held, at equal steps, or :data:`UNKNOWN`; the newest last."""
    used_at: float = 0.0
    """When the newest was seen."""
    gaps_s: tuple[float, ...] = ()
    """How long drones waited for their next job, or would have."""
    taken: float = 0.0
    """Places taken back, older ones counted less."""
    run_s: float = 0.0
    """How long drones ran meanwhile, counted likewise."""


@dataclass(frozen=True, slots=True)
class EstimateSamples:
    """What :class:`Estimates` is made of: the store keeps it, so that a restarted controller need not learn anew."""

    at: float
    runs: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """The newest run times, the newest last, by what :func:`run_keys` says; the key used last comes last."""
    delays: Mapping[str, StartDelays] = field(default_factory=dict)
    """By drone type's key."""
    sites: Mapping[str, SiteSamples] = field(default_factory=dict)
    seen: frozenset[tuple[str, float]] = frozenset()
    """Jobs whose ends were told last, by id and end: told once more, they count no second time."""


def run_keys(owner: str, gpu_milli: int, cpus: int, memory_mib: int) -> tuple[str, str, str]:
    """Under what run times are kept: user and size, user, all; the most telling first."""
    return f"{owner}/{gpu_milli}/{cpus}/{memory_mib}", owner, ""


def owner_of(key: str) -> str:
    """Whose run times a key of :func:`run_keys` is for; empty: everybody's."""
    parts = key.rsplit("/", 3)
    return parts[0] if len(parts) == 4 and all(map(str.isdigit, parts[1:])) else key


def mean_run_s(runs: tuple[float, ...]) -> float:
    """The mean of equally likely run times, less what a few very long ones add."""
    return min(sum(runs) / len(runs), TAIL_FACTOR * runs[len(runs) // 2] + 60.0)
