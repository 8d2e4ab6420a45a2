"""One replay, and many beside each other: jobs against a world under a policy, seed by seed, each in a process."""

from __future__ import annotations

import multiprocessing
import signal
import statistics
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import astuple, dataclass, replace
from multiprocessing.queues import SimpleQueue

from provisioner.model import DroneType, Plan, Policy, Snapshot
from provisioner.planner.matching import nearness
from provisioner.planner.safeguards import PlanFunction, PlanValidator
from provisioner.planner.validation import Breach
from provisioner.sharing import co2_kg
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.owner import OwnerSeries
from provisioner.simulator.results import GpuTime, ReplayResult, WaitStatistics
from provisioner.simulator.sites import Facility
from provisioner.simulator.world import START_EPOCH, Scenario, SimulationOutcome, simulate
from provisioner.simulator.world_file import WorldPlan

BURST_JOBS, BURST_S = 20, 120.0
QUIET_JOBS, QUIET_S = 5, 600.0
BURST_SHARE = 0.8
DAY_S = 86400.0


def summarize(
    outcome: SimulationOutcome,
    *,
    policy: str,
    trace: str,
    jobs: Sequence[SimulatedJob],
    types: Sequence[DroneType],
    carbon_g_per_kwh: float | None = None,
) -> ReplayResult:
    """Return the result of a replay of ``jobs``; ``carbon_g_per_kwh`` is the grid's CO2, if known."""
    metrics = outcome.metrics
    bursts = list(burst_waits(metrics.first_starts, [job.submit_s for job in jobs]))
    energy_kwh = metrics.energy_kwh
    return ReplayResult(
        policy=policy,
        trace=trace,
        seed=outcome.seed,
        days=outcome.ended_s / DAY_S,
        jobs=outcome.jobs,
        jobs_done=outcome.jobs_done,
        jobs_impossible=_impossible(jobs, types),
        gpu_hours=hours(metrics.gpu_seconds),
        waits=waits(metrics.waits_s),
        waits_by_class={label: waits(metrics.waits_by_class[label]) for label in sorted(metrics.waits_by_class)},
        owner_wait_s=metrics.owner_blocked_s if metrics.owner_waits else None,
        requests=sum(metrics.accepted.values()),
        drones_started=outcome.started,
        withdrawn=outcome.withdrawn,
        preempted=outcome.preempted,
        burst_first_s=statistics.median(first for first, _ in bursts) if bursts else None,
        burst_most_s=statistics.median(most for _, most in bursts) if bursts else None,
        violations=outcome.violations,
        decisions=outcome.decisions,
        energy_kwh=energy_kwh,
        co2_kg=None if energy_kwh is None or carbon_g_per_kwh is None else co2_kg(energy_kwh, carbon_g_per_kwh),
        by_site={site: hours(book.gpu_seconds) for site, book in sorted(metrics.books.items())},
        samples=outcome.samples,
    )


def hours(spent: GpuTime) -> GpuTime:
    """Return seconds as hours."""
    return GpuTime(*(part / 3600.0 for part in astuple(spent)))


def waits(waits_s: Iterable[float]) -> WaitStatistics:
    ordered = sorted(waits_s)
    if not ordered:
        return WaitStatistics()
    return WaitStatistics(len(ordered), statistics.fmean(ordered), _part(ordered, 0.5), _part(ordered, 0.95))


def _part(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def burst_waits(starts: Sequence[tuple[float, float]], arrivals: Sequence[float]) -> Iterable[tuple[float, float]]:
    """Return for each burst in ``arrivals`` the seconds until its first and until most of its jobs started.

    ``starts``: submission and first start of each job that has ever begun.
    """
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


def _impossible(jobs: Sequence[SimulatedJob], types: Sequence[DroneType]) -> int:
    fits: dict[JobRequirements, bool] = {}
    for job in jobs:
        if job.wants not in fits:
            fits[job.wants] = any(job.wants.unmet_requirement(kind) is None for kind in types)
    return sum(not fits[job.wants] for job in jobs)


REPLAY_LIMIT_S = 14 * 86400.0
"""A replay breaks off so long after the last job came."""
REPLAY_STALL_S = 86400.0
"""It breaks off before that when no job has run for so long, and for as long as a drone may take to come."""
_TELL_EACH_S = 0.2
"""Real seconds between two words on how far a replay is."""
_TURN_S = 0.1
SAMPLES_PER_REPLAY = 1000
"""Number of samples of the world's state in a replay."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Jobs, world and policy of one replay. It travels to other processes: all in it can be pickled."""

    policy: str
    """Its name in the results."""
    trace: str
    jobs: tuple[SimulatedJob, ...]
    world: WorldPlan
    rules: Policy
    interval_s: float = 15.0
    active_interval_s: float = 2.0
    planner: Callable[[], PlanFunction] | None = None
    """A function of a module that makes what decides; None: ours."""
    carbon_g_per_kwh: float | None = None

    @property
    def span_s(self) -> float:
        """Until the last job comes."""
        return max((job.submit_s for job in self.jobs), default=0.0)

    @property
    def types(self) -> tuple[DroneType, ...]:
        return tuple(kind for facility in self.world.facilities for kind in facility.types)

    def unplaceable_jobs(self) -> list[UnplaceableJobs]:
        """Return the jobs that fit no drone type, by size and by what the nearest type lacks; most jobs first."""
        counted = Counter(job.wants for job in self.jobs)
        found: dict[UnplaceableJobs, tuple[int, set[str]]] = {}
        for wants, number in counted.items():
            lacks = [(kind, bad) for kind in self.types if (bad := wants.unmet_requirement(kind)) is not None]
            if len(lacks) < len(self.types):
                continue
            alike, asked = UnplaceableJobs(wants.label), set[str]()
            if lacks:
                kind, why = max(lacks, key=lambda pair: nearness(*pair))
                alike, asked = (
                    UnplaceableJobs(wants.label, why.dimension, why.available, str(kind.key)),
                    {why.requested},
                )
            jobs, wanted = found.get(alike, (0, set[str]()))
            found[alike] = (jobs + number, wanted | asked)
        made = [replace(alike, jobs=jobs, wanted=tuple(sorted(wanted))) for alike, (jobs, wanted) in found.items()]
        return sorted(made, key=lambda alike: -alike.jobs)

    def scenario(self, seed: int) -> Scenario:
        scenario = Scenario(
            facilities=self.world.facilities,
            jobs=self.jobs,
            seed=seed,
            policy=self.rules,
            interval_s=self.interval_s,
            active_interval_s=self.active_interval_s,
            pool=self.world.pool,
            service_faults=self.world.service_faults,
            hardware_faults=self.world.hardware_faults,
            limit_s=self.span_s + REPLAY_LIMIT_S,
            patience_s=REPLAY_STALL_S + max(map(_longest_s, self.world.facilities), default=0.0),
            samples_s=max(60.0, self.span_s / SAMPLES_PER_REPLAY),
        )
        return scenario if self.planner is None else replace(scenario, planner=self.planner)


def _longest_s(facility: Facility) -> float:
    """Return for how long a drone may be on its way while all goes well.

    That is almost the longest queue and boot, and the longest time for which the owner has all GPUs.
    """
    ways = (facility.behaviour, *facility.behaviour_of.values())
    full_s = _longest_full_s(facility, facility.series) if facility.series is not None else 0.0
    return full_s + max(behaviour.queue.mostly_below_s + behaviour.boot.mostly_below_s for behaviour in ways)


def _longest_full_s(facility: Facility, series: OwnerSeries) -> float:
    gpus = sum(p.nodes * p.gpus_per_node for p in facility.pools if not series.pools or p.name in series.pools)
    longest_s, since_s = 0.0, None
    for at_s, has in series.steps:
        if since_s is not None:
            longest_s = max(longest_s, at_s - since_s)
        since_s = since_s if has >= gpus and since_s is not None else at_s if has >= gpus else None
    return longest_s


Tell = Callable[[float], None]
"""Called now and then with the virtual time that a replay has reached."""


def run(replay: Replay, seed: int, tell: Tell | None = None) -> ReplayResult:
    """Replay once, in this process."""
    scenario = replay.scenario(seed)
    if tell is not None:
        scenario = _telling(scenario, tell)
    return summarize(
        simulate(scenario),
        policy=replay.policy,
        trace=replay.trace,
        jobs=replay.jobs,
        types=replay.types,
        carbon_g_per_kwh=replay.carbon_g_per_kwh,
    )


def _telling(scenario: Scenario, tell: Tell) -> Scenario:
    """Every plan is judged, so whoever judges sees how far time is."""
    judge: PlanValidator = scenario.judge
    told_at = 0.0

    def watching(snapshot: Snapshot, plan: Plan) -> tuple[Breach, ...]:
        nonlocal told_at
        if time.monotonic() - told_at >= _TELL_EACH_S:
            told_at = time.monotonic()
            tell(snapshot.now - START_EPOCH)
        return judge(snapshot, plan)

    return replace(scenario, judge=watching)


# --------------------------------------------------------------------------------------------------------- many of them


@dataclass(frozen=True, slots=True)
class UnplaceableJobs:
    """Jobs of one size that fit no drone type."""

    label: str
    dimension: str = ""
    """In which the nearest type fails; empty where there is no type."""
    offered: str = ""
    nearest: str = ""
    wanted: tuple[str, ...] = ()
    jobs: int = 0


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """One replay of several."""

    number: int
    replay: Replay
    seed: int


def run_all(
    replays: Sequence[Replay],
    seeds: Sequence[int],
    *,
    jobs: int,
    tell: Callable[[ReplayRun, float], None] | None = None,
) -> Mapping[str, tuple[ReplayResult, ...]]:
    """Run all ``replays`` with all ``seeds``, ``jobs`` at a time; return results by policy, in the order of the seeds.

    ``tell`` receives the progress of each; ``inf`` means that it is done.
    """
    turns = [ReplayRun(n, r, s) for n, (s, r) in enumerate((s, r) for s in seeds for r in replays)]
    told = tell or (lambda turn, at_s: None)
    done = dict(_alone(turns, told) if jobs == 1 or len(turns) == 1 else _beside(turns, min(jobs, len(turns)), told))
    return {replay.policy: tuple(done[turn.number] for turn in turns if turn.replay is replay) for replay in replays}


def _alone(turns: Sequence[ReplayRun], tell: Callable[[ReplayRun, float], None]) -> Iterator[tuple[int, ReplayResult]]:
    for turn in turns:
        yield turn.number, run(turn.replay, turn.seed, lambda at_s, turn=turn: tell(turn, at_s))  # type: ignore[misc]
        tell(turn, float("inf"))


def _beside(
    turns: Sequence[ReplayRun], processes: int, tell: Callable[[ReplayRun, float], None]
) -> Iterator[tuple[int, ReplayResult]]:
    spawn = multiprocessing.get_context("spawn")
    queue: SimpleQueue[tuple[int, float]] = spawn.SimpleQueue()
    pool = ProcessPoolExecutor(processes, mp_context=spawn, initializer=_begin, initargs=(queue, turns))
    try:
        futures: dict[Future[ReplayResult], ReplayRun] = {pool.submit(_work, turn.number): turn for turn in turns}
        pending = set(futures)
        while pending:
            finished, pending = wait(pending, timeout=_TURN_S, return_when=FIRST_COMPLETED)
            while not queue.empty():
                number, at_s = queue.get()
                tell(turns[number], at_s)
            for future in finished:
                turn = futures[future]
                yield turn.number, future.result()
                tell(turn, float("inf"))
    except BaseException:
        _give_up(pool)
        raise
    pool.shutdown()


def _give_up(pool: ProcessPoolExecutor) -> None:
    """End the processes, which the executor itself does not: a replay takes minutes."""
    processes = list((getattr(pool, "_processes", None) or {}).values())
    for process in processes:
        process.terminate()
    pool.shutdown(wait=True, cancel_futures=True)


_given: tuple[SimpleQueue[tuple[int, float]], Sequence[ReplayRun]] | None = None
"""In a process of its own: where progress is told, and what there is to be done."""


def _begin(queue: SimpleQueue[tuple[int, float]], turns: Sequence[ReplayRun]) -> None:
    """Once in each process, so that jobs and world travel once. Ctrl-C is the parent's."""
    global _given
    _given = queue, turns
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _work(number: int) -> ReplayResult:
    assert _given is not None
    queue, turns = _given
    turn = turns[number]
    return run(turn.replay, turn.seed, lambda at_s: queue.put((turn.number, at_s)))
