"""One run: a rule against a trace and an owner's load, with a seed; and the rules by their names."""

from __future__ import annotations

import math
import statistics
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from benchmarks.deciding.ablation import switched_off
from benchmarks.deciding.always_on import AlwaysOn
from benchmarks.deciding.clairvoyant import schedule
from benchmarks.deciding.cobald import Cobald
from benchmarks.deciding.glidein import Glidein
from benchmarks.deciding.idle_waits import SAMPLE_S, share_while_idle
from benchmarks.deciding.karpenter import Karpenter
from benchmarks.deciding.rule import Rule
from benchmarks.deciding.users import dealt
from benchmarks.deciding.windows import FIRST_DAY, LATER_DAYS, Window, window_of
from benchmarks.deciding.worlds import (
    PLACES,
    POOL,
    QUOTAS,
    RETIRE_S,
    UNLIMITED,
    Steps,
    facilities,
    jobs_of,
    owner_of,
)
from provisioner.controller.actuation import OWN_TIMEOUT_FACTOR, OWN_TIMEOUT_MORE_S
from provisioner.model import Plan, Policy, Snapshot
from provisioner.planner import planner
from provisioner.planner.safeguards import PlanFunction
from provisioner.simulator.jobs import SimulatedJob
from provisioner.simulator.owner import VictimRule
from provisioner.simulator.replay import summarize, waits
from provisioner.simulator.results import ReplayResult
from provisioner.simulator.world import START_EPOCH, Scenario, simulate

OURS, CLAIRVOYANT = "ours", "clairvoyant"
BURST_JOBS, BURST_S = 20, 120.0
QUIET_JOBS, QUIET_S = 5, 600.0
BURST_SHARE = 0.8
WAITING_COST = Policy().waiting_cost
"""Price of waiting in the shipped policy."""
QUOTA, SHIPPED = LIMITS = ("quota", "shipped")
"""Limits of a site for our rule: its quota alone, or as shipped, with the quota as ``max_drones``."""
PATIENCE_S = 30 * 86400.0
"""A run is broken off so long after the last job was submitted."""

REFERENCE: Mapping[str, Callable[..., Rule]] = {
    "cobald-documented": partial(Cobald, per_pool=False),
    "cobald-pools": Cobald,
    "cobald-low-waste": partial(Cobald, low=0.5, rate=0.1),
    "glidein": Glidein,
    "karpenter": Karpenter,
    "always-on": AlwaysOn,
}
RULES = (*REFERENCE, OURS, CLAIRVOYANT)
TITLES = {
    "cobald-documented": "COBalD as documented (one LinearController .9/.9, rate 1)",
    "cobald-pools": "COBalD Linear .9/.9, one per pool",
    "cobald-low-waste": "COBalD Linear .5/.9 rate .1, one per pool",
    "glidein": "glideinWMS-like",
    "karpenter": "Karpenter-like (availability, 30 s)",
    "always-on": "always on (124 GPUs)",
    OURS: "ours",
    CLAIRVOYANT: "clairvoyant",
}


class Case(NamedTuple):
    """The world of some runs: all rules play the same jobs against the same sites."""

    trace: str
    owner: str
    days: float = math.inf
    """Length of the part of the trace that is played, from its start."""
    users: int = 1
    """Number of users to whom the jobs are dealt (:mod:`benchmarks.deciding.users`)."""
    victims: str = VictimRule.YOUNGEST.value
    """Drones that the owner preempts first: a value of :class:`VictimRule`."""

    @property
    def world(self) -> tuple[str, ...]:
        """Options of the world that are not the usual ones, without trace and owner."""
        first = [] if math.isinf(self.days) else [f"first {self.days:g} days"]
        users = [f"{self.users} users"] if self.users > 1 else []
        victims = [f"{self.victims} victims"] if self.victims != VictimRule.YOUNGEST else []
        return (*first, *users, *victims)

    def __str__(self) -> str:
        return ", ".join([self.trace, f"owner {self.owner}", *self.world])


@dataclass(frozen=True, slots=True)
class Run:
    """One rule in one world, with a seed."""

    rule: str
    trace: str
    owner: str
    seed: int
    days: float = math.inf
    """Only so much of the trace."""
    users: int = 1
    victims: str = VictimRule.YOUNGEST.value
    """The same as in :class:`Case`."""

    # Options of our rule alone.

    limits: str = QUOTA
    """Limits of the sites: :data:`QUOTA` or :data:`SHIPPED`."""
    waiting_cost: float = WAITING_COST
    """The policy's price of waiting."""
    without: str = ""
    """A rule of :data:`benchmarks.deciding.ablation.ABLATIONS` that is switched off."""

    @property
    def case(self) -> Case:
        return Case(self.trace, self.owner, self.days, self.users, self.victims)

    @property
    def options(self) -> tuple[str, ...]:
        """Options of our rule that are not the usual ones, as tables name them."""
        limits = [f"{self.limits} limits"] if self.limits != QUOTA else []
        price = [f"waiting cost {self.waiting_cost:g}"] if self.waiting_cost != WAITING_COST else []
        without = [f"without {self.without}"] if self.without else []
        return (*limits, *price, *without)

    @property
    def variant(self) -> str:
        """The rule with its options."""
        return "-".join([self.rule, *(option.replace(" ", "-") for option in self.options)])

    @property
    def title(self) -> str:
        return ", ".join([TITLES[self.rule], *self.options])

    @property
    def order(self) -> tuple[object, ...]:
        """Sort key of tables."""
        return (
            RULES.index(self.rule),
            self.limits,
            self.without,
            self.waiting_cost,
        )

    @property
    def usual(self) -> bool:
        """True if no rule is switched off, and the price is the usual one."""
        return self.waiting_cost == WAITING_COST and not self.without

    def __str__(self) -> str:
        part = "" if math.isinf(self.days) else f"-{self.days:g}d"
        part += f"-{self.users}users" if self.users > 1 else ""
        victims = f"-{self.victims}" if self.victims != VictimRule.YOUNGEST else ""
        return f"{self.trace}{part}-{self.owner}{victims}-{self.variant}-{self.seed}"


@dataclass(slots=True)
class Timed:
    """A planner, with the processor time that it takes."""

    planner: PlanFunction
    count: int = 0
    total_s: float = 0.0
    worst_s: float = 0.0

    def __call__(self, snapshot: Snapshot) -> Plan:
        begin_s = time.process_time()
        plan = self.planner(snapshot)
        took_s = time.process_time() - begin_s
        self.count += 1
        self.total_s += took_s
        self.worst_s = max(self.worst_s, took_s)
        return plan

    @property
    def mean_s(self) -> float:
        return self.total_s / max(1, self.count)


@dataclass(slots=True)
class _Kept:
    """The planner of the one life that a run has."""

    make: Callable[[], PlanFunction]
    timed: list[Timed] = field(default_factory=list)

    def __call__(self) -> Timed:
        self.timed.append(Timed(self.make()))
        return self.timed[-1]


@dataclass(frozen=True, slots=True)
class Played:
    """A result, and what only these tables show: processor seconds of a decision, and starts of bursts."""

    result: ReplayResult
    decision_mean_s: float = 0.0
    decision_worst_s: float = 0.0
    burst_first_s: float | None = None
    """Median over bursts (at least 20 jobs in 120 s after 600 s with fewer than 5) until the first has started."""
    burst_most_s: float | None = None
    """The same until 80 % have started."""
    idle_waits: float | None = None
    """Waiting while a GPU that fits was free, per waiting (:mod:`benchmarks.deciding.idle_waits`), of a replay."""
    first_day: Window | None = None
    later_days: Window | None = None
    """Work lost and waits by the time of submission (:mod:`benchmarks.deciding.windows`)."""


def play(run: Run) -> Played:
    """Play it, in this process."""
    return play_in(
        run, dealt(jobs_of(run.trace, run.days), run.users, run.seed), owner_of(run.owner)
    )


def play_in(run: Run, jobs: tuple[SimulatedJob, ...], owner: Steps) -> Played:
    """Play the rule of a run with these jobs and this owner."""
    if run.rule == CLAIRVOYANT:
        hours, finished = schedule(jobs, owner, PLACES)
        waited = waits(job.wait_s for job in finished)
        result = ReplayResult(
            run.rule, run.trace, run.seed, 0.0, len(jobs), len(jobs), 0, hours, waited
        )
        return Played(
            result,
            first_day=window_of(finished, FIRST_DAY),
            later_days=window_of(finished, LATER_DAYS),
        )
    ours = run.rule == OURS
    scenario = _ours(jobs, waiting_cost=run.waiting_cost) if ours else _reference(run.rule, jobs)
    release_s = Rule.release_s if ours else _class_of(run.rule).release_s
    planner = _Kept(scenario.planner)
    scenario = replace(
        scenario,
        facilities=facilities(
            owner,
            release_s=release_s,
            ours=ours,
            shipped=run.limits == SHIPPED,
            victims=VictimRule(run.victims),
        ),
        seed=run.seed,
        planner=planner,
        samples_s=SAMPLE_S,
    )
    with switched_off(run.without):
        outcome = simulate(scenario)
    result = summarize(outcome, policy=run.rule, trace=run.trace)
    # A rule may ask for more than an operator would allow: that is its own affair.
    violations = outcome.violations if run.rule == OURS else ()
    timed = planner.timed[0]
    bursts = list(burst_waits(outcome.metrics.first_starts, [job.submit_s for job in jobs]))
    return Played(
        replace(result, violations=violations, samples=()),
        timed.mean_s,
        timed.worst_s,
        statistics.median(first for first, _ in bursts) if bursts else None,
        statistics.median(most for _, most in bursts) if bursts else None,
        share_while_idle(outcome.metrics.first_starts, outcome.samples),
        window_of(outcome.metrics.finished, FIRST_DAY),
        window_of(outcome.metrics.finished, LATER_DAYS),
    )


def burst_waits(
    starts: Sequence[tuple[float, float]], arrivals: Sequence[float]
) -> Iterable[tuple[float, float]]:
    """Return for each burst in ``arrivals`` the seconds until its first and until most of its jobs started."""
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


def _class_of(rule: str) -> type[Rule]:
    made = REFERENCE[rule]
    return made.func if isinstance(made, partial) else made  # type: ignore[return-value]


def _ours(jobs: tuple[SimulatedJob, ...], **policy: Any) -> Scenario:
    """Return our rule's scenario, without its sites."""
    return Scenario(
        (),
        jobs,
        policy=Policy(**policy),
        pool=POOL,
        limit_s=jobs[-1].submit_s + PATIENCE_S,
        planner=planner,
    )


def _reference(rule: str, jobs: tuple[SimulatedJob, ...]) -> Scenario:
    made = _class_of(rule)
    own_s = (made.idle_timeout_s - OWN_TIMEOUT_MORE_S) / OWN_TIMEOUT_FACTOR
    last_at = START_EPOCH + jobs[-1].submit_s
    return Scenario(
        (),
        jobs,
        policy=Policy(
            idle_timeout_s=own_s,
            max_drones=UNLIMITED,
            interval_s=made.interval_s,
            active_interval_s=made.interval_s,
        ),
        pool=POOL,
        limit_s=jobs[-1].submit_s + PATIENCE_S,
        planner=lambda: REFERENCE[rule](QUOTAS, last_at, RETIRE_S),
        judge=lambda snapshot, plan: (),
    )
