"""The figures that a report leads with, and what several seeds say of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite

from provisioner.simulator.results import GpuHours, Result


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a replay."""

    name: str
    unit: str
    of: Callable[[Result], float | None]
    """None where the replay does not tell."""
    better: int = 0
    """1: more is better, -1: less is, 0: neither."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one figure over seeds."""

    count: int
    mean: float
    deviation: float
    """Of a sample; 0 where there is but one."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Of one figure between two policies, seed by seed: what both share, as the trace does, falls out."""

    spread: Spread
    improved: int
    """Seeds in which the second policy is the better one."""


def spread(values: Iterable[float | None]) -> Spread | None:
    """Of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if not all(map(isfinite, known)):
        return Spread(len(known), inf, 0.0)
    return Spread(len(known), statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else 0.0)


def paired(figure: Figure, first: Sequence[Result], second: Sequence[Result]) -> Difference | None:
    """``second`` less ``first`` over the seeds of both; None where no pair has finite values."""
    before = {(result.trace, result.seed): figure.of(result) for result in first}
    changes: list[float] = []
    for result in second:
        a, b = before.get((result.trace, result.seed)), figure.of(result)
        if a is not None and b is not None and isfinite(a) and isfinite(b):
            changes.append(b - a)
    over = spread(changes)
    return Difference(over, sum(change * figure.better > 0 for change in changes)) if over else None


def common_seeds(runs: Mapping[str, Sequence[Result]]) -> int:
    """Replays of the same trace with the same seed that every policy has."""
    return len(set.intersection(*({(result.trace, result.seed) for result in results} for results in runs.values())))


def mean_hours(hours: Sequence[GpuHours]) -> GpuHours:
    """Each part's mean."""
    parts = ("held", "good", "badput", "boot", "release", "idle")
    return GpuHours(**{part: statistics.fmean(getattr(each, part) for each in hours) for part in parts})


def of_good(part: Callable[[GpuHours], float], hours: GpuHours) -> float | None:
    """A part in percent of the good GPU-hours; infinite where there are none but some of it, None if none were held."""
    if hours.good:
        return 100 * part(hours) / hours.good
    if not hours.held:
        return None
    return inf if part(hours) > 0 else 0.0


def waste(hours: GpuHours) -> float | None:
    """In percent of the good GPU-hours."""
    return of_good(lambda h: h.held - h.good, hours)


def _boot_and_release(hours: GpuHours) -> float:
    return hours.boot + hours.release


def _per_job(amount: float | None, result: Result) -> float | None:
    return None if amount is None or not result.jobs_done else amount / result.jobs_done


def _decisions_per_second(result: Result) -> float | None:
    return result.decisions.per_second if result.decisions.count else None


FIGURES: Mapping[str, tuple[Figure, ...]] = {
    "GPU-hours": (
        Figure("Held", "GPU-h", lambda r: r.gpu_hours.held),
        Figure("Good", "GPU-h", lambda r: r.gpu_hours.good, 1),
        Figure("Idle", "GPU-h", lambda r: r.gpu_hours.idle, -1),
        Figure("Boot and release", "GPU-h", lambda r: _boot_and_release(r.gpu_hours), -1),
        Figure("Badput", "GPU-h", lambda r: r.gpu_hours.badput, -1),
    ),
    "Waste, of the good GPU-hours": (
        Figure("Waste", "%", lambda r: waste(r.gpu_hours), -1),
        Figure("by idle GPUs", "%", lambda r: of_good(lambda h: h.idle, r.gpu_hours), -1),
        Figure("by boot and release", "%", lambda r: of_good(_boot_and_release, r.gpu_hours), -1),
        Figure("by badput", "%", lambda r: of_good(lambda h: h.badput, r.gpu_hours), -1),
    ),
    "Waits": (
        Figure("Mean wait", "s", lambda r: r.waits.mean_s if r.waits.jobs else None, -1),
        Figure("Median wait", "s", lambda r: r.waits.p50_s if r.waits.jobs else None, -1),
        Figure("95th percentile of waits", "s", lambda r: r.waits.p95_s if r.waits.jobs else None, -1),
        Figure("First start of a burst", "s", lambda r: r.burst_first_s, -1),
        Figure("80 % of a burst started", "s", lambda r: r.burst_most_s, -1),
        Figure("Owner's wait for drones", "s", lambda r: r.owner_wait_s, -1),
    ),
    "Jobs and drones": (
        Figure("Jobs", "", lambda r: r.jobs),
        Figure("Jobs done", "", lambda r: r.jobs_done, 1),
        Figure("Jobs that fit no drone", "", lambda r: r.jobs_impossible),
        Figure("Requests", "drones", lambda r: r.requests, -1),
        Figure("Requests per job", "", lambda r: _per_job(r.requests, r), -1),
        Figure("Started", "drones", lambda r: r.drones_started),
        Figure("Withdrawn", "drones", lambda r: r.withdrawn, -1),
        Figure("Preempted", "attempts", lambda r: r.preempted, -1),
        Figure("Violations", "", lambda r: len(r.violations), -1),
    ),
    "Cost": (
        Figure("Decisions per second", "1/s", _decisions_per_second, 1),
        Figure("Slowest decision", "s", lambda r: r.decisions.worst_s if r.decisions.count else None, -1),
        Figure("Energy", "kWh", lambda r: r.energy_kwh, -1),
        Figure("Energy per job", "kJ", lambda r: r.kj_per_job, -1),
        Figure("CO2 per job", "kg", lambda r: _per_job(r.co2_kg, r), -1),
    ),
}
"""By heading. Those that no replay tells are left out of a report."""
