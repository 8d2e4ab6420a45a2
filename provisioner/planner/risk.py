"""Risk from a site's owner: limits on starts, excluded users, and drones to drain.

A site preempts the newest drones first. A drone survives as long as the owner's growth stays below the free capacity
plus the drones started after it: its *headroom*. The estimates hold how often the owner grew by more than that within
the time that a job needs (:class:`provisioner.estimates.OwnerGrowth`). From it follows the work that a job can expect
to lose. It is compared with the work that the job can expect to complete. A small loss is worth a start now; the longer
the jobs have waited, the more loss is accepted.

The accepted loss is the geometric mean of two rules: a fixed share of the work would make short jobs wait half an hour
to save six seconds, and a fixed amount would make jobs of a day wait for days to save an hour. So a job that runs four
times as long accepts half the share, which is twice the amount. In replays of public traces this did better than a
limit on the chance of any preemption, and than refusing jobs only at the drone. See ``docs/explanation/planning.md``.

*Excluded users*: the pool gives a drone to the next user in line, whose jobs may run all day; most of the work lost to
owners is lost that way. Such users are named when the drone is ordered, and its START refuses their jobs for its whole
life. Exclusion is by user since a pool knows the owner of a job, and seldom its run time. Only users with waiting jobs
are considered.

*Drain at risk*: later the owner may have come nearer, or longer jobs may wait. Running jobs are left alone, since
ending them loses their work for certain. The next job is better off at a safer place, if there is one to wait for.
"""

from __future__ import annotations

import heapq
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate
from statistics import fmean
from typing import NamedTuple

from provisioner.estimates import HORIZONS_S, OwnerGrowth
from provisioner.model import Drone, DroneId, DroneType, JobClass
from provisioner.planner.context import PlanningContext
from provisioner.planner.matching import CompatibleTypes
from provisioner.reasons import DrainAtRisk, OwnerRisk

TOLERATED_LOSS = 0.02
"""Accepted share of lost work for jobs of :data:`REFERENCE_RUN_S` that have not waited."""
REFERENCE_RUN_S = 3600.0
RISK_WAIT_S = 3600.0
"""Jobs that have waited this long accept twice as much, and so on."""
MAX_TOLERATED_LOSS = 0.3


@dataclass(slots=True)
class RiskBudget:
    """Headroom left at each owner's site. Mutable, local to one plan."""

    context: PlanningContext
    head_milli: dict[str, int] = field(default_factory=dict)
    """By site: free milli-GPUs that are not promised to drones on their way."""

    @classmethod
    def of(cls, context: PlanningContext) -> RiskBudget:
        risk = cls(context)
        for site in context.snapshot.estimates.rises:
            free = free_gpus_at(context, site)
            if free is not None:
                risk.head_milli[site] = free
        if risk.head_milli:
            for drone in context.changing.values():
                if drone.site in risk.head_milli and drone.awaits_room:
                    risk.head_milli[drone.site] -= drone.gpu_milli
        return risk

    def allowed(self, job: JobClass, kind: DroneType, most: int, *, safer: bool) -> tuple[int, OwnerRisk | None]:
        """Return how many of ``most`` drones may be started for jobs of a class, and why no more.

        All, unless there is a ``safer`` place to wait for: work that is lost now and then is better than none.
        """
        estimates = self.context.snapshot.estimates
        head, rate = self.head_milli.get(kind.site), estimates.taken_per_s.get(kind.site, 0.0)
        if not safer or (head is None and not rate):
            return most, None
        waited_s, runs = waiting_time(self.context, job), runs_of(self.context, job)
        tolerated = accepted_loss(waited_s, runs)
        why = OwnerRisk(kind.site, runs[len(runs) // 2], waited_s, tolerated)
        if head is None:
            return (most, None) if expected_loss_at_rate(runs, rate) <= tolerated else (0, why)
        rise = estimates.rises[kind.site]
        good, bad = 0, most + 1  # the more there are, the likelier is the last one taken
        while bad - good > 1:
            middle = (good + bad) // 2
            if expected_loss(runs, rise.chances(head - middle * kind.gpu_milli)) <= tolerated:
                good = middle
            else:
                bad = middle
        return good, why if good < most else None

    def bears(self, kind: DroneType) -> bool:
        """Return True if places of a type are known to be preempted."""
        return kind.site in self.head_milli or bool(self.context.snapshot.estimates.taken_per_s.get(kind.site))

    def book(self, kind: DroneType, count: int) -> None:
        """Take the headroom of ``count`` started drones."""
        if kind.site in self.head_milli:
            self.head_milli[kind.site] -= count * kind.gpu_milli


def expected_loss(runs: tuple[float, ...], chances: tuple[float, ...]) -> float:
    """Return the expected work lost per work completed by jobs with equally likely run times ``runs``.

    ``chances`` are the probabilities of preemption within :data:`provisioner.estimates.HORIZONS_S`. Beyond the last
    horizon the chance continues as over that one.
    """
    lost_s = done_s = 0.0
    for run_s in runs:
        so_far, began_s = 0.0, 0.0
        for until_s, chance in zip(HORIZONS_S, chances, strict=True):
            if run_s <= began_s:
                break
            part = min(1.0, (run_s - began_s) / (until_s - began_s))
            more = max(0.0, chance - so_far) * part
            lost_s += more * (began_s + min(until_s, run_s)) / 2
            so_far += more
            began_s = until_s
        if run_s > began_s:
            whole = 1.0 - (1.0 - so_far) ** (run_s / began_s)
            lost_s += (whole - so_far) * run_s / 2
            so_far = whole
        done_s += run_s * (1.0 - so_far)
    return lost_s / done_s if done_s else math.inf if lost_s else 0.0


def expected_loss_at_rate(runs: tuple[float, ...], rate_per_s: float) -> float:
    """Return the same for a constant rate of preemption."""
    lost_s = done_s = 0.0
    for run_s in runs:
        kept = math.exp(-rate_per_s * run_s)
        done_s += run_s * kept
        lost_s += (1.0 - kept * (1.0 + rate_per_s * run_s)) / rate_per_s
    return lost_s / done_s if done_s else math.inf


def accepted_loss(waited_s: float, runs: tuple[float, ...]) -> float:
    """Return the share of their work that jobs accept to lose after waiting ``waited_s``."""
    share = TOLERATED_LOSS * math.sqrt(REFERENCE_RUN_S / max(1.0, fmean(runs)))
    return min(MAX_TOLERATED_LOSS, share * (1.0 + waited_s / RISK_WAIT_S))


def runs_of(context: PlanningContext, job: JobClass) -> tuple[float, ...]:
    """Return equally likely run times of jobs of a class, in seconds."""
    return context.snapshot.estimates.runs_of(job.owner, job.gpu_milli, job.cpus, job.memory_mib, job.walltime_s)


def waiting_time(context: PlanningContext, job: JobClass) -> float:
    """Return the longest continuous idle time of the jobs in seconds.

    A preempted job accepts no more risk than a new one: what it has lost already should not make it lose more.
    """
    return max(0.0, context.now - job.waits_since) if job.waits_since else 0.0


def free_gpus_at(context: PlanningContext, site: str) -> int | None:
    """Return the free milli-GPUs of a site, or None if unknown.

    Counts by type may be alternatives on the same hardware, so only the largest is certain.
    """
    view = context.validity.site_view(context.snapshot, site)
    if view is None:
        return None
    if view.nodes:
        return sum(node.free_gpu_milli for node in view.nodes)
    if view.free_gpu_milli is not None:
        return view.free_gpu_milli
    sizes = {t.name: t.gpu_milli for t in context.snapshot.types if t.site == site}
    return max((count * sizes.get(name, 0) for name, count in (view.free or {}).items()), default=None)


MAX_EXCLUSION_CLASSES = 200
"""Number of waiting classes considered: those that have waited longest are served first."""
MAX_EXCLUSION_CHARS = 2000
"""Length of the list: it travels in an environment variable and is part of an expression."""
_USER_NAME = re.compile(r"[A-Za-z0-9._@-]{1,80}")


def is_excluded(owner: str, avoids: str) -> bool:
    """Return True if a user is on a drone's list of excluded users."""
    return bool(avoids) and owner in avoids.split(",")


@dataclass(slots=True)
class _WaitingClass:
    """A waiting class with the run times and the accepted loss of its jobs."""

    job: JobClass
    compatible: CompatibleTypes
    runs: tuple[float, ...]
    accepts: float


@dataclass
class UserExclusions:
    """Users whose jobs a new drone should refuse. Local to one plan."""

    context: PlanningContext
    risk: RiskBudget
    safer: Callable[[CompatibleTypes], bool]
    """Return True if such jobs may wait for a place without an owner."""

    def of_drones_for(self, job: JobClass, kind: DroneType) -> str:
        """Return the users that a drone started for a class should exclude, separated by commas."""
        head = self.risk.head_milli.get(kind.site)
        if head is None:
            return ""
        chances = self.context.snapshot.estimates.rises[kind.site].chances(head)
        found: dict[str, None] = {}
        for each in self._waiting:
            user = each.job.owner
            if user == job.owner or user in found or kind.key not in each.compatible.jobs:
                continue
            if expected_loss(each.runs, chances) > each.accepts:
                found[user] = None
        return ",".join(_shortened(sorted(found)))

    @cached_property
    def _waiting(self) -> list[_WaitingClass]:
        context = self.context
        idle = (job for job in context.classes if (job.waiting or job.fresh) and _USER_NAME.fullmatch(job.owner))
        longest = heapq.nsmallest(MAX_EXCLUSION_CLASSES, idle, key=lambda job: (job.waits_since, job.id))
        found = []
        for job in longest:
            compatible, runs = context.compatible[job.id], runs_of(context, job)
            if compatible.kinds and self.safer(compatible):
                found.append(_WaitingClass(job, compatible, runs, accepted_loss(waiting_time(context, job), runs)))
        return found


def _shortened(users: list[str]) -> Iterator[str]:
    """Yield as many users as the list may hold."""
    left = MAX_EXCLUSION_CHARS
    for user in users:
        left -= len(user) + 1
        if left < 0:
            return
        yield user


DRAIN_LOSS_FACTOR = 2.0
"""A drone takes no more jobs where they would lose this many times the accepted loss. It is undrained, and others are
started, only where they would lose no more than the accepted loss. This hysteresis prevents oscillation."""


class _DroneQueue(NamedTuple):
    """Drones that hold GPUs at a site, the newest first, and how much the owner takes before each of them."""

    drones: list[Drone]
    heads_milli: list[int]


@dataclass(slots=True)
class DrainRisk:
    """Risk of the drones at sites with an owner. Local to one plan."""

    context: PlanningContext
    safer: Callable[[CompatibleTypes], bool]
    """Return True if such jobs may wait for a place without an owner."""
    where: dict[CompatibleTypes, frozenset[str]] = field(default_factory=dict)
    lines: dict[str, _DroneQueue] | None = None

    def most_exposed(self) -> Mapping[DroneId, DrainAtRisk]:
        """Return the drones that should take no more jobs, judged by the jobs that are next in line."""
        found: dict[DroneId, DrainAtRisk] = {}
        for site, job in self._next_in_line().items():
            found.update(self.to(job, self.context.compatible[job.id], site, DRAIN_LOSS_FACTOR))
        return found

    def to(
        self, job: JobClass, compatible: CompatibleTypes, site: str, times: float = 1.0
    ) -> Mapping[DroneId, DrainAtRisk]:
        """Return the drones of a site where jobs of a class would lose more than ``times`` the accepted loss."""
        line = self._line(site) if site in self._owned(compatible) else None
        if line is None:
            return {}
        rise = self.context.snapshot.estimates.rises[site]
        runs = runs_of(self.context, job)
        limit = accepted_loss(waiting_time(self.context, job), runs)
        loss = partial(_loss, runs, rise)
        safe = bisect_left(line.heads_milli, True, key=lambda head: loss(head) <= times * limit)
        return {
            drone.id: DrainAtRisk(site, loss(head), limit)
            for drone, head in zip(line.drones[:safe], line.heads_milli, strict=False)
            if drone.joined_at
            and not drone.notice_at
            and drone.type in compatible.jobs
            and not is_excluded(job.owner, drone.avoids)
        }

    def _next_in_line(self) -> Mapping[str, JobClass]:
        """Return, by site with an owner, the class that has waited longest of those that could run there."""
        found: dict[str, JobClass] = {}
        for job in self.context.classes if self.context.snapshot.estimates.rises else ():
            for site in self._owned(self.context.compatible[job.id]) if job.waiting else ():
                if site not in found or (job.waits_since, job.id) < (found[site].waits_since, found[site].id):
                    found[site] = job
        return found

    def _owned(self, compatible: CompatibleTypes) -> frozenset[str]:
        """Return the sites with an owner where such jobs could run, if there is a safer place to wait for."""
        found = self.where.get(compatible)
        if found is None:
            sites = {kind.site for kind in compatible.kinds} & self.context.snapshot.estimates.rises.keys()
            found = self.where[compatible] = frozenset(sites) if sites and self.safer(compatible) else frozenset()
        return found

    def _line(self, site: str) -> _DroneQueue | None:
        if self.lines is None:
            self.lines = _drone_queues(self.context)
        return self.lines.get(site)


def _drone_queues(context: PlanningContext) -> dict[str, _DroneQueue]:
    """Return the queues by site with an owner, who takes free capacity first, then the newest drones."""
    free = {
        site: head for site in context.snapshot.estimates.rises if (head := free_gpus_at(context, site)) is not None
    }
    there: dict[str, list[Drone]] = {site: [] for site in free}
    for drone in context.drones.values():
        if drone.started_at and (found := there.get(drone.site)) is not None:
            found.append(drone)
    lines = {}
    for site, drones in there.items():
        drones.sort(key=lambda drone: (-drone.started_at, drone.id))
        sizes = (drone.gpu_milli for drone in drones[:-1])
        lines[site] = _DroneQueue(drones, list(accumulate(sizes, initial=free[site])) if drones else [])
    return lines


def _loss(runs: tuple[float, ...], rise: OwnerGrowth, head_milli: int) -> float:
    return expected_loss(runs, rise.chances(head_milli))
