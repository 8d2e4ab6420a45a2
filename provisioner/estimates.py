"""Estimates that the planner uses: run times of jobs, start delays, growth of owners, and idle times.

They are values only; :mod:`provisioner.controller.estimation` collects them. :class:`Estimates` is
part of the snapshot, so that a plan made from it can be repeated. Nothing depends on an estimate:
where nothing is known, nothing is held back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from provisioner.values import factory, frozen

HORIZONS_S = (900.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0, 57600.0, 115200.0, 230400.0)
"""Horizons over which the growth of an owner is estimated."""
RELEASE_S = 20.0
"""Time that a drone holds its GPUs after its last job."""
USUAL_RUN_S = 1800.0
"""Run time of a job about which nothing is known."""
TAIL_FACTOR = 4.0
"""A mean run time counts up to this many medians plus a minute: one job of two weeks is no forecast."""
RUNS_TOLD, RUNS_NEEDED = 20, 10
"""Run times under one key: number of quantiles of an estimate, and of samples that it needs."""
USE_EVERY_S = 120.0
"""Interval at which an owner's use is recorded."""


@frozen
class StartDelays:
    """Mean start delays of a drone type, in seconds."""

    queue_s: float
    """From the order to its place at the site; it holds nothing until then."""
    boot_s: float
    """From its place to the pool; it holds its GPUs."""


@frozen
class OwnerGrowth:
    """Growth of an owner's use: a row of equally likely values, ascending, for each of :data:`HORIZONS_S`."""

    gpu_milli: tuple[tuple[int, ...], ...]
    observed_s: float = 0.0
    """Time over which the owner was observed; 0 in older records, whose values count as certain."""

    def chances(self, head_milli: int) -> tuple[float, ...]:
        """Return, for each horizon, the probability that the owner grows by more than ``head_milli``.

        A growth that was never seen can still happen, above all over a horizon that was observed
        few times. So one observation is added: half of it counts as such a growth, and half as none
        (Jeffreys' prior).
        """
        found = []
        for horizon_s, row in zip(HORIZONS_S, self.gpu_milli, strict=False):
            seen = 1.0 - bisect_right(row, head_milli) / len(row) if row else 0.5
            doubt = horizon_s / (horizon_s + self.observed_s) if self.observed_s else 0.0
            found.append(seen + (0.5 - seen) * doubt)
        return tuple(found)


@frozen
class Estimates:
    runs: Mapping[str, tuple[float, ...]] = factory(dict)
    """Equally likely run times in seconds, ascending, by the keys of :func:`run_keys`."""
    delays: Mapping[str, StartDelays] = factory(dict)
    rises: Mapping[str, OwnerGrowth] = factory(dict)
    taken_per_s: Mapping[str, float] = factory(dict)
    """By site: preemptions per second of a drone's run, if no owner's use is reported."""
    idle_s: Mapping[str, float] = factory(dict)
    gaps: Mapping[str, int] = factory(dict)
    """By site: number of known gaps between two jobs of a drone."""

    def runs_of(
        self, owner: str, gpu_milli: int, cpus: int, memory_mib: int, walltime_s: float
    ) -> tuple[float, ...]:
        """Return equally likely run times of jobs, never longer than declared."""
        mine, _, _ = keys = run_keys(owner, gpu_milli, cpus, memory_mib)
        if walltime_s and mine not in self.runs:
            return (walltime_s,)
        known = next((self.runs[key] for key in keys if key in self.runs), (USUAL_RUN_S,))
        return tuple(min(run_s, walltime_s) for run_s in known) if walltime_s else known


NO_ESTIMATES = Estimates()
UNKNOWN = -1
"""Marks a missing sample in the series of an owner's use."""


@frozen
class SiteSamples:
    use_milli: tuple[int, ...] = ()
    """Use of the owner at equal steps, or :data:`UNKNOWN`; the newest last."""
    used_at: float = 0.0
    gaps_s: tuple[float, ...] = ()
    """Time that drones waited for their next job, or would have."""
    taken: float = 0.0
    """Preemptions, older ones weighted less."""
    run_s: float = 0.0
    """Run time of drones meanwhile, weighted likewise."""


@frozen
class EstimateSamples:
    """Samples behind :class:`Estimates`, stored so that a restarted controller keeps them."""

    at: float
    runs: Mapping[str, tuple[float, ...]] = factory(dict)
    """The newest run times, the newest last, by the keys of :func:`run_keys`; the key used last comes last."""
    delays: Mapping[str, StartDelays] = factory(dict)
    sites: Mapping[str, SiteSamples] = factory(dict)
    seen: frozenset[tuple[str, float]] = frozenset()
    """Recently counted ends of jobs, by id and time: they do not count twice."""


def run_keys(owner: str, gpu_milli: int, cpus: int, memory_mib: int) -> tuple[str, str, str]:
    """Return the keys of a job's run times: user and size, user, all; the most specific first."""
    return f"{owner}/{gpu_milli}/{cpus}/{memory_mib}", owner, ""


def owner_of(key: str) -> str:
    """Return the user of a key of :func:`run_keys`; empty for everybody."""
    parts = key.rsplit("/", 3)
    return parts[0] if len(parts) == 4 and all(map(str.isdigit, parts[1:])) else key


def mean_run_s(runs: tuple[float, ...]) -> float:
    """Return the mean of equally likely run times, limited to what :data:`TAIL_FACTOR` allows."""
    return min(sum(runs) / len(runs), TAIL_FACTOR * runs[len(runs) // 2] + 60.0)


def thinned(values: Iterable[float], count: int) -> tuple[float, ...]:
    """Return ``count`` values at equal steps through the sorted ones, or all if there are no more."""
    ordered = sorted(values)
    if len(ordered) <= count:
        return tuple(ordered)
    return tuple(ordered[int((n + 0.5) * len(ordered) / count)] for n in range(count))
