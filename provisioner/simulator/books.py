"""From what a scenario came to, to the numbers of a replay."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from provisioner.model import DroneType
from provisioner.sharing import co2_kg
from provisioner.simulator.jobs import SimJob, Wants
from provisioner.simulator.results import GpuHours, GpuSeconds, Result, Waits
from provisioner.simulator.scenario import Outcome

BURST_JOBS, BURST_S = 20, 120.0
QUIET_JOBS, QUIET_S = 5, 600.0
BURST_SHARE = 0.8
DAY_S = 86400.0


def result_of(
    outcome: Outcome,
    *,
    policy: str,
    trace: str,
    jobs: Sequence[SimJob],
    types: Sequence[DroneType],
    carbon_g_per_kwh: float | None = None,
) -> Result:
    """The numbers of a replay of ``jobs``. ``carbon_g_per_kwh``: CO2 of the grid, where that is told."""
    tally = outcome.tally
    bursts = list(burst_waits(tally.first_starts, [job.submit_s for job in jobs]))
    energy_kwh = tally.energy_kwh
    return Result(
        policy=policy,
        trace=trace,
        seed=outcome.seed,
        days=outcome.ended_s / DAY_S,
        jobs=outcome.jobs,
        jobs_done=outcome.jobs_done,
        jobs_impossible=_impossible(jobs, types),
        gpu_hours=hours(tally.gpu_seconds),
        waits=waits(tally.waits_s),
        waits_by_class={label: waits(tally.waits_by_class[label]) for label in sorted(tally.waits_by_class)},
        owner_wait_s=tally.owner_blocked_s if tally.owner_waits else None,
        requests=sum(tally.accepted.values()),
        drones_started=outcome.started,
        withdrawn=outcome.withdrawn,
        preempted=outcome.preempted,
        burst_first_s=statistics.median(first for first, _ in bursts) if bursts else None,
        burst_most_s=statistics.median(most for _, most in bursts) if bursts else None,
        violations=outcome.violations,
        decisions=outcome.decisions,
        energy_kwh=energy_kwh,
        co2_kg=None if energy_kwh is None or carbon_g_per_kwh is None else co2_kg(energy_kwh, carbon_g_per_kwh),
        by_site={site: hours(book.gpu_seconds) for site, book in sorted(tally.books.items())},
        samples=outcome.samples,
    )


def hours(spent: GpuSeconds) -> GpuHours:
    return GpuHours(*(getattr(spent, part) / 3600.0 for part in ("held", "good", "badput", "boot", "release", "idle")))


def waits(waits_s: Iterable[float]) -> Waits:
    ordered = sorted(waits_s)
    if not ordered:
        return Waits()
    return Waits(len(ordered), statistics.fmean(ordered), _part(ordered, 0.5), _part(ordered, 0.95))


def _part(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def burst_waits(starts: Sequence[tuple[float, float]], arrivals: Sequence[float]) -> Iterable[tuple[float, float]]:
    """For each burst in ``arrivals``: seconds until the first, and until most of its jobs have started. ``starts``:
    submission and first start of each job that has ever begun."""
    arrived, begun = sorted(arrivals), sorted(starts)
    submitted = [submit_s for submit_s, _ in begun]
    n = 0
    while n < len(arrived):
        from_s = arrived[n]
        end = bisect_right(arrived, from_s + BURST_S)
        if end - n < BURST_JOBS or n - bisect_left(arrived, from_s - QUIET_S) >= QUIET_JOBS:
            n += 1
            continue
        inside = begun[bisect_left(submitted, from_s) : bisect_right(submitted, from_s + BURST_S)]
        took = sorted(start_s - from_s for _, start_s in inside)
        most = int(BURST_SHARE * (end - n - 1))
        if most < len(took):
            yield took[0], took[most]
        n = end


def _impossible(jobs: Sequence[SimJob], types: Sequence[DroneType]) -> int:
    fits: dict[Wants, bool] = {}
    for job in jobs:
        if job.wants not in fits:
            fits[job.wants] = any(job.wants.misfit(kind) is None for kind in types)
    return sum(not fits[job.wants] for job in jobs)
