"""Key figures of replays: what they are, their spread over seeds, and the difference between two policies."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isnan

from provisioner.simulator.results import GpuTime, ReplayResult

Runs = Mapping[str, Sequence[ReplayResult]]
"""Policy to its replays, one for each seed."""


def amount(value: float | None) -> str:
    """Return three significant digits, from a thousand on all before the point: ``1,234``, ``12.3``, ``0.00123``."""
    if value is None or isnan(value):
        return "-"
    if not isfinite(value):
        return "∞" if value > 0 else "-∞"
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value else "0"


def change(value: float) -> str:
    """Return an amount with its sign."""
    return f"+{amount(value)}" if value > 0 else amount(value)


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """One number of a replay."""

    name: str
    unit: str
    of: Callable[[ReplayResult], float | None]
    """None where it is not known."""
    better: int = 0
    """1: more is better, -1: less is, 0: neither."""
    detail: bool = False
    """Left out of brief tables."""


@dataclass(frozen=True, slots=True)
class SeedStatistics:
    """Mean and deviation of one figure over seeds."""

    count: int
    mean: float
    deviation: float
    """Sample standard deviation; 0 for a single seed."""


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Difference of one figure between two policies, seed by seed, so that common effects cancel."""

    spread: SeedStatistics
    improved: int
    """Seeds in which the second policy is the better one."""


def spread(values: Iterable[float | None]) -> SeedStatistics | None:
    """Return mean and deviation of the known values; None without any."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if not all(map(isfinite, known)):
        return SeedStatistics(len(known), inf, 0.0)
    return SeedStatistics(len(known), statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else 0.0)


def paired(figure: KeyFigure, first: Sequence[ReplayResult], second: Sequence[ReplayResult]) -> PairedDifference | None:
    """Return ``second`` less ``first`` over the seeds of both; None where no pair has finite values."""
    before = {(result.trace, result.seed): figure.of(result) for result in first}
    changes: list[float] = []
    for result in second:
        a, b = before.get((result.trace, result.seed)), figure.of(result)
        if a is not None and b is not None and isfinite(a) and isfinite(b):
            changes.append(b - a)
    over = spread(changes)
    return PairedDifference(over, sum(change * figure.better > 0 for change in changes)) if over else None


def of_good(part: Callable[[GpuTime], float], hours: GpuTime) -> float | None:
    """Return a part in percent of the good GPU-hours; infinite without good hours, None if none were held."""
    if hours.good:
        return 100 * part(hours) / hours.good
    if not hours.held:
        return None
    return inf if part(hours) > 0 else 0.0


def waste(hours: GpuTime) -> float | None:
    """Return the GPU-hours that were held and not good, in percent of the good GPU-hours."""
    return of_good(lambda h: h.held - h.good, hours)


def _boot_and_release(hours: GpuTime) -> float:
    return hours.boot + hours.release


def _per_job(amount: float | None, result: ReplayResult) -> float | None:
    return None if amount is None or not result.jobs_done else amount / result.jobs_done


def _kj_per_job(result: ReplayResult) -> float | None:
    return None if result.energy_kwh is None else _per_job(3600 * result.energy_kwh, result)


def _decisions_per_second(result: ReplayResult) -> float | None:
    return result.decisions.per_second if result.decisions.count else None


FIGURES: Mapping[str, tuple[KeyFigure, ...]] = {
    "GPU-hours": (
        KeyFigure("Held", "GPU-h", lambda r: r.gpu_hours.held, detail=True),
        KeyFigure("Good", "GPU-h", lambda r: r.gpu_hours.good, 1),
        KeyFigure("Idle", "GPU-h", lambda r: r.gpu_hours.idle, -1),
        KeyFigure("Boot and release", "GPU-h", lambda r: _boot_and_release(r.gpu_hours), -1),
        KeyFigure("Badput", "GPU-h", lambda r: r.gpu_hours.badput, -1),
    ),
    "Waste, of the good GPU-hours": (
        KeyFigure("Waste", "%", lambda r: waste(r.gpu_hours), -1),
        KeyFigure("by idle GPUs", "%", lambda r: of_good(lambda h: h.idle, r.gpu_hours), -1, detail=True),
        KeyFigure("by boot and release", "%", lambda r: of_good(_boot_and_release, r.gpu_hours), -1, detail=True),
        KeyFigure("by badput", "%", lambda r: of_good(lambda h: h.badput, r.gpu_hours), -1, detail=True),
    ),
    "Waits": (
        KeyFigure("Mean wait", "s", lambda r: r.waits.mean_s if r.waits.jobs else None, -1),
        KeyFigure("Median wait", "s", lambda r: r.waits.p50_s if r.waits.jobs else None, -1),
        KeyFigure("95th percentile of waits", "s", lambda r: r.waits.p95_s if r.waits.jobs else None, -1),
        KeyFigure("First start of a burst", "s", lambda r: r.burst_first_s, -1),
        KeyFigure("80 % of a burst started", "s", lambda r: r.burst_most_s, -1, detail=True),
    ),
    "Jobs and drones": (
        KeyFigure("Jobs", "", lambda r: r.jobs, detail=True),
        KeyFigure("Jobs done", "", lambda r: r.jobs_done, 1),
        KeyFigure("Jobs that fit no drone", "", lambda r: r.jobs_impossible),
        KeyFigure("Requests", "drones", lambda r: r.requests, -1),
        KeyFigure("Requests per job", "", lambda r: _per_job(r.requests, r), -1, detail=True),
        KeyFigure("Started", "drones", lambda r: r.drones_started, detail=True),
        KeyFigure("Withdrawn", "drones", lambda r: r.withdrawn, -1, detail=True),
        KeyFigure("Preempted", "attempts", lambda r: r.preempted, -1),
        KeyFigure("Violations", "", lambda r: len(r.violations), -1),
    ),
    "Cost": (
        KeyFigure("Decisions per second", "1/s", _decisions_per_second, 1),
        KeyFigure(
            "Slowest decision", "s", lambda r: r.decisions.worst_s if r.decisions.count else None, -1, detail=True
        ),
        KeyFigure("Energy", "kWh", lambda r: r.energy_kwh, -1, detail=True),
        KeyFigure("Energy per job", "kJ", _kj_per_job, -1),
        KeyFigure("CO2 per job", "kg", lambda r: _per_job(r.co2_kg, r), -1, detail=True),
    ),
}
"""By heading. Those that are not known of any replay are left out of a report."""
