"""Comparison of a shadow's record: what the other system did, and what the planner would have done in its place.

The jobs that completed are replayed against the GPUs that drones of ours could have had: those that
were free at a site and those that the other system's drones held.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, floor, inf
from typing import NamedTuple

from provisioner.model import WHOLE_GPU, CompletedJob, DroneType
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.loop import Fixed
from provisioner.simulator.owner import OwnerSeries, SimulatedOwner
from provisioner.simulator.pool import PoolBehaviour
from provisioner.simulator.replay import REPLAY_LIMIT_S, REPLAY_STALL_S, waits
from provisioner.simulator.results import WaitStatistics
from provisioner.simulator.sites import Facility, GpuPool, SimulatedSite
from provisioner.simulator.traces import LEAST_RUN_S
from provisioner.simulator.world import Scenario, simulate
from provisioner.simulator.world_file import DEFAULT_BEHAVIOUR
from provisioner.store import Views
from provisioner.store.observations import Observation
from provisioner.values import frozen

CAPACITY_STEP_S = 900.0
"""The most GPUs that were to be had in such a time count: one that a drone boots on is neither free nor in the pool."""
LONGEST_GAP_S = 300.0
"""Between two observations; in a longer gap nothing is known."""
REPLAY_TICK_S = 15.0
"""Interval of the replayed controller. The real one is quicker while drones start; replayed, that takes minutes."""
_Span = tuple[float, float, Observation]


class GpuUse(NamedTuple):
    """Use of GPUs by drones of one site, in GPU-seconds."""

    drones: int = 0
    """Drones that were started; of the other system, those that joined the pool."""
    held_s: float = 0.0
    busy_s: float = 0.0

    @property
    def idle_s(self) -> float:
        return self.held_s - self.busy_s


class Comparison(NamedTuple):
    """Both systems at the same jobs, by site, and without a site in all. ``theirs`` is observed, ``ours`` predicted.

    Assumed are ``boot_s``, from a place at a site to the pool, and ``cycle_s``, the interval of the
    pool's negotiation.
    """

    since: float = 0.0
    until: float = 0.0
    observed_s: float = 0.0
    boot_s: float = 0.0
    cycle_s: float = 0.0
    theirs: Mapping[str, GpuUse] = {"": GpuUse()}
    ours: Mapping[str, GpuUse] = {"": GpuUse()}
    their_waits: WaitStatistics = WaitStatistics()
    our_waits: WaitStatistics = WaitStatistics()

    @property
    def replayed(self) -> float:
        """The part of the other system's used GPU time that is of replayed jobs, not of removed or running ones."""
        busy_s = self.theirs[""].busy_s
        return min(1.0, self.ours[""].busy_s / busy_s) if busy_s else 1.0

    def saved_s(self, theirs: GpuUse, ours: GpuUse) -> float:
        """Return the GPU-seconds that the other system held without a job, as far as replayed, less ours."""
        return self.replayed * theirs.idle_s - ours.idle_s


def with_sum(uses: Mapping[str, GpuUse]) -> dict[str, GpuUse]:
    """Return the use by site with the sum of all sites."""
    return {
        "": GpuUse(*(sum(parts) for parts in zip(GpuUse(), *uses.values(), strict=True))),
        **uses,
    }


def compare(
    views: Views,
    observations: Sequence[Observation],
    completed: Sequence[CompletedJob],
    boot_s: float,
    cycle_s: float,
) -> Comparison:
    """Replay the GPU jobs that were submitted and completed while the shadow observed; there is an observation.

    A queue cuts the time of a submission to whole seconds, so the comparison begins with a whole
    second.
    """
    since = floor(observations[0].at)
    until = observations[-1].last_at
    spans = [*_spans(observations)]
    done = [
        each
        for each in completed
        if each.gpu_milli and since <= each.submitted_at and each.ended_at <= until
    ]
    jobs = (
        SimulatedJob(c.submitted_at - since, max(LEAST_RUN_S, c.run_s), JobRequirements.of(c))
        for c in done
    )
    scenario = Scenario(
        facilities=tuple(_facilities(views, spans, boot_s)),
        jobs=tuple(sorted(jobs, key=lambda job: job.submit_s)),
        policy=replace(views.policy, interval_s=REPLAY_TICK_S, active_interval_s=REPLAY_TICK_S),
        pool=PoolBehaviour(cycle_s),
        limit_s=until - since + REPLAY_LIMIT_S,
        stall_s=REPLAY_STALL_S,
    )
    metrics = simulate(scenario).metrics
    return Comparison(
        since,
        until,
        sum(end - begin for begin, end, _ in spans),
        boot_s,
        cycle_s,
        with_sum(_use(spans)),
        with_sum(
            {
                name: GpuUse(metrics.accepted[name], use.held, use.good)
                for name, use in metrics.by_site.items()
            }
        ),
        waits(max(0.0, each.ended_at - each.submitted_at - each.run_s) for each in done),
        waits(metrics.waits_s),
    )


def _spans(observations: Sequence[Observation]) -> Iterator[_Span]:
    """Yield begin and end of the time for which each observation counts: until the next one, unless that is late."""
    following = [*(each.at for each in observations[1:]), inf]
    for seen, next_at in zip(observations, following, strict=True):
        yield seen.at, next_at if next_at - seen.last_at <= LONGEST_GAP_S else seen.last_at, seen


def _use(spans: Sequence[_Span]) -> dict[str, GpuUse]:
    """Return the use by the drones of the other system."""
    drones = Counter[str]()
    held_s = defaultdict[str, float](float)
    busy_s = defaultdict[str, float](float)
    joined = {(each.site, each.gpu_model): each.joined for each in spans[0][2].others or ()}
    for begin, end, seen in spans:
        for each in seen.others or ():
            site = each.site.casefold()
            before = joined.get((each.site, each.gpu_model), 0)
            drones[site] += each.joined - before if each.joined >= before else each.joined
            joined[each.site, each.gpu_model] = each.joined
            held_s[site] += each.gpu_milli / WHOLE_GPU * (end - begin)
            busy_s[site] += each.busy_gpu_milli / WHOLE_GPU * (end - begin)
    return {site: GpuUse(drones[site], held_s[site], busy_s[site]) for site in held_s}


@frozen
class OwnersByPool:
    """Everybody else at a site: a series for each GPU pool."""

    series: tuple[OwnerSeries, ...]

    def at(self, site: SimulatedSite) -> SimulatedOwner:
        return _SeriesOwners(self.series, site)


class _SeriesOwners(SimulatedOwner):
    def __init__(self, series: Sequence[OwnerSeries], site: SimulatedSite) -> None:
        super().__init__(site)
        self._owners = [each.at(site) for each in series]

    def begin(self) -> None:
        for owner in self._owners:
            owner.begin()


def _facilities(views: Views, spans: Sequence[_Span], boot_s: float) -> Iterator[Facility]:
    """Yield the sites with GPU drones: a pool for each GPU model, of which others take what was not to be had."""
    by_site: defaultdict[str, list[DroneType]] = defaultdict(list)
    for kind in views.types:
        if kind.gpu_milli:
            by_site[kind.site].append(kind)
    for site, kinds in by_site.items():
        pools = []
        owners = []
        for model, most in _available(site, [kind.gpu_model for kind in kinds], spans).items():
            size = max(
                ceil(kind.gpu_milli / WHOLE_GPU) for kind in kinds if kind.gpu_model == model
            )
            pool = GpuPool(model or "gpu", size, ceil(max(most.values(), default=0) / size))
            pools.append(pool)
            owners.append(
                OwnerSeries(
                    tuple((at_s, pool.gpus - gpus) for at_s, gpus in most.items()), (pool.name,)
                )
            )
        serves = {kind.name: kind.gpu_model or "gpu" for kind in kinds}
        policy = views.policy.of_site(site)
        behaviour = replace(DEFAULT_BEHAVIOUR, boot=Fixed(boot_s))
        owner = OwnersByPool(tuple(owners))
        yield Facility(policy, tuple(kinds), tuple(pools), serves, behaviour, owner=owner)


def _available(
    site: str, models: Sequence[str], spans: Sequence[_Span]
) -> dict[str, dict[float, int]]:
    """Return by GPU model the GPUs to be had, from the begin of each step on, in seconds since the first observation.

    A model that the other system's slots name otherwise is taken for the first.
    """
    most: dict[str, dict[float, int]] = {model: {} for model in models}
    for begin, end, seen in spans:
        milli = Counter((seen.free_milli or {}).get(site))
        for each in seen.others or ():
            if each.site.casefold() == site:
                milli[each.gpu_model if each.gpu_model in most else models[0]] += each.gpu_milli
        first, last = (int((at - spans[0][0]) // CAPACITY_STEP_S) for at in (begin, end))
        for step in range(first, last + 1):
            for model, steps in most.items():
                at_s = step * CAPACITY_STEP_S
                steps[at_s] = max(steps.get(at_s, 0), milli[model] // WHOLE_GPU)
    return most
