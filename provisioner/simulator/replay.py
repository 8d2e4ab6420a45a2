"""Replays of jobs against a world under a policy, many beside each other, seed by seed."""

from __future__ import annotations

import multiprocessing
import signal
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from math import inf

from provisioner.model import DroneType, Plan, Policy, Snapshot
from provisioner.planner.validation import Breach
from provisioner.simulator.jobs import SimulatedJob
from provisioner.simulator.results import ReplayResult, ServiceResult, WaitStatistics
from provisioner.simulator.world import START_EPOCH, Scenario, SimulationOutcome, simulate
from provisioner.simulator.world_file import WorldPlan
from provisioner.values import frozen

DAY_S = 86400.0
REPLAY_LIMIT_S = 14 * DAY_S
"""A replay breaks off so long after the last job came."""
REPLAY_STALL_S = 4 * DAY_S
"""It breaks off before that when no job has run for so long: longer than any queue, boot or owner's load."""
PROGRESS_INTERVAL_S = 0.2
"""Real seconds between two reports of a replay's progress."""
SAMPLES_PER_REPLAY = 1000


def summarize(
    outcome: SimulationOutcome, *, policy: str, trace: str, carbon_g_per_kwh: float | None = None
) -> ReplayResult:
    """Return the result of a replay; ``carbon_g_per_kwh`` is the grid's CO2, if known."""
    metrics = outcome.metrics
    energy_kwh = metrics.energy_kwh
    return ReplayResult(
        policy=policy,
        trace=trace,
        seed=outcome.seed,
        days=outcome.ended_s / DAY_S,
        jobs=outcome.jobs,
        jobs_done=outcome.jobs_done,
        jobs_impossible=outcome.jobs_impossible,
        gpu_hours=metrics.gpu_seconds.hours,
        waits=waits(metrics.waits_s),
        waits_by_class={
            label: waits(metrics.waits_by_class[label]) for label in sorted(metrics.waits_by_class)
        },
        waits_why=outcome.waits_why,
        requests=sum(metrics.accepted.values()),
        drones_started=metrics.started,
        withdrawn=metrics.withdrawn,
        hedges=outcome.hedges.started,
        hedges_withdrawn=outcome.hedges.withdrawn,
        preempted=metrics.attempts_lost,
        violations=outcome.violations,
        energy_kwh=energy_kwh,
        co2_kg=None
        if energy_kwh is None or carbon_g_per_kwh is None
        else energy_kwh * carbon_g_per_kwh / 1000.0,
        services={name: ServiceResult.of(each) for name, each in outcome.services.items()},
        by_site={site: time.hours for site, time in sorted(metrics.by_site.items())},
        samples=outcome.samples,
    )


def waits(waits_s: Iterable[float]) -> WaitStatistics:
    ordered = sorted(waits_s)
    if not ordered:
        return WaitStatistics()
    p50_s, p95_s = (
        ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.95)
    )
    return WaitStatistics(len(ordered), statistics.fmean(ordered), p50_s, p95_s)


@frozen
class Replay:
    """Jobs, world and policy of one replay. It travels to other processes: all in it can be pickled."""

    policy: str
    trace: str
    jobs: tuple[SimulatedJob, ...]
    world: WorldPlan
    rules: Policy

    @property
    def span_s(self) -> float:
        ends_s = (burst.end_s for burst in self.world.bursts)
        return max([0.0, *(job.submit_s for job in self.jobs), *ends_s])

    @property
    def types(self) -> tuple[DroneType, ...]:
        return tuple(kind for facility in self.world.facilities for kind in facility.types)

    def scenario(self, seed: int) -> Scenario:
        return Scenario(
            facilities=self.world.facilities,
            jobs=(*self.jobs, *self.world.announcing_jobs),
            seed=seed,
            policy=self.rules,
            pool=self.world.pool,
            hardware_faults=self.world.hardware_faults,
            bursts=self.world.bursts,
            limit_s=self.span_s + REPLAY_LIMIT_S,
            stall_s=REPLAY_STALL_S,
            samples_s=max(60.0, self.span_s / SAMPLES_PER_REPLAY),
        )


def run(
    replay: Replay, seed: int, tell: Callable[[float], None] = lambda at_s: None
) -> ReplayResult:
    """Replay once, in this process; ``tell`` is called now and then with the virtual time that is reached."""
    scenario = replay.scenario(seed)
    told_at = 0.0

    def judge(snapshot: Snapshot, plan: Plan) -> tuple[Breach, ...]:
        nonlocal told_at
        if time.monotonic() - told_at >= PROGRESS_INTERVAL_S:
            told_at = time.monotonic()
            tell(snapshot.now - START_EPOCH)
        return scenario.judge(snapshot, plan)

    outcome = simulate(replace(scenario, judge=judge))
    return summarize(
        outcome,
        policy=replay.policy,
        trace=replay.trace,
        carbon_g_per_kwh=replay.rules.carbon_g_per_kwh,
    )


def run_all(
    replays: Sequence[Replay],
    seeds: Sequence[int],
    *,
    jobs: int,
    tell: Callable[[int, float], None] = lambda number, at_s: None,
) -> Mapping[str, tuple[ReplayResult, ...]]:
    """Run all ``replays`` with all ``seeds``, ``jobs`` at a time; return results by policy, in the order of the seeds.

    ``tell`` receives the progress of each by its number, of those beside each other only the end:
    ``inf``.
    """
    pairs = [(replay, seed) for seed in seeds for replay in replays]
    done: dict[int, ReplayResult] = {}
    if jobs > 1 and len(pairs) > 1:
        for n, result in _in_processes(pairs, jobs):
            done[n] = result
            tell(n, inf)
    for n, (replay, seed) in enumerate(pairs):
        if n not in done:
            done[n] = run(replay, seed, partial(tell, n))
            tell(n, inf)
    return {
        replay.policy: tuple(done[n] for n, (other, _) in enumerate(pairs) if other is replay)
        for replay in replays
    }


def _in_processes(
    pairs: Sequence[tuple[Replay, int]], processes: int
) -> Iterator[tuple[int, ReplayResult]]:
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(processes, len(pairs)), mp_context=spawn, initializer=_begin, initargs=(pairs,)
    )
    try:
        numbers = {pool.submit(_work, n): n for n in range(len(pairs))}
        for future in as_completed(numbers):
            yield numbers[future], future.result()
    except BaseException:
        # The executor itself does not end its processes, and a replay takes minutes.
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()


_given: Sequence[tuple[Replay, int]] = ()
"""In a process of its own: what there is to be done."""


def _begin(pairs: Sequence[tuple[Replay, int]]) -> None:
    """Begin a process, so that jobs and world travel once. Ctrl-C is the parent's."""
    global _given
    _given = pairs
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _work(number: int) -> ReplayResult:
    return run(*_given[number])
