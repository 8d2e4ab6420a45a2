"""Risk from a site's owner: limits on starts, excluded users, and drones to drain.

A site preempts the newest drones first. A drone survives as long as the owner's growth stays below
the free capacity plus the drones started after it: its *headroom*. The estimates hold how often the
owner grew by more than that within the time that a job needs
(:class:`provisioner.estimates.OwnerGrowth`). From it follows the work that a job can expect to
lose, per work completed.

The alternative is to wait for a place without an owner. A second of waiting costs ``waiting_cost``
(:mod:`provisioner.planner.costs`); a second of lost work costs the GPU, and the job waits for it
once more. A start is worth its risk as long as the loss costs no more than the wait that it saves.
See ``docs/explanation/planning.md``.

*Excluded users*: the pool gives a drone to the next user in line, whose jobs may run all day; most
of the work lost to owners is lost that way. Such users are named when the drone is ordered, and its
START refuses their jobs for its whole life. Exclusion is by user since a pool knows the owner of a
job, and seldom its run time. Only users with waiting jobs are considered.

*Drain at risk*: later the owner may have come nearer, or longer jobs may wait. Running jobs are
left alone, since ending them loses their work for certain. The next job is better off at a safer
place, if there is one to wait for.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from statistics import fmean

from provisioner.estimates import HORIZONS_S, Estimates
from provisioner.model import USER_NAME, Drone, DroneId, DroneType, JobClass
from provisioner.planner.context import PlanningContext
from provisioner.planner.matching import CompatibleTypes
from provisioner.reasons import DrainAtRisk, OwnerRisk
from provisioner.values import factory

LOSS_DOUBLES_AFTER_S = 8 * 3600.0
"""Run time of jobs that lose twice the estimate: the past of an owner says less about a later time.
Measured on four owners (``benchmarks/measurements.md``)."""
LOSS_GROWS_UNTIL_S = 86400.0
"""Longest run time that was measured: longer jobs count as four times the estimate as well."""


@lru_cache(maxsize=10_000)
def expected_loss(runs: tuple[float, ...], chances: tuple[float, ...]) -> float:
    """Return the expected work lost per work completed by jobs with equally likely run times ``runs``.

    ``chances`` are the probabilities of preemption within :data:`provisioner.estimates.HORIZONS_S`.
    Beyond the last horizon the chance continues as over that one.
    """
    lost_s = done_s = 0.0
    for run_s in runs:
        so_far = 0.0
        began_s = 0.0
        lost_before_s = lost_s
        for until_s, chance in zip(HORIZONS_S, chances, strict=False):
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
        lost_s += (lost_s - lost_before_s) * min(run_s, LOSS_GROWS_UNTIL_S) / LOSS_DOUBLES_AFTER_S
        done_s += run_s * (1.0 - so_far)
    return lost_s / done_s if done_s else math.inf if lost_s else 0.0


def expected_loss_at_rate(runs: tuple[float, ...], rate_per_s: float) -> float:
    """Return the same for a constant rate of preemption, which was measured on our own drones and counts as it is."""
    lost_s = done_s = 0.0
    for run_s in runs:
        kept = math.exp(-rate_per_s * run_s)
        done_s += run_s * kept
        lost_s += (1.0 - kept * (1.0 + rate_per_s * run_s)) / rate_per_s
    return lost_s / done_s if done_s else math.inf


def accepted_loss(waiting_cost: float, wait_s: float, runs: tuple[float, ...]) -> float:
    """Return the work that jobs accept to lose, per work completed, instead of waiting ``wait_s`` for a safe place.

    A second of lost work costs one GPU-second, and ``waiting_cost`` because the job waits for it
    again.
    """
    return waiting_cost / (1.0 + waiting_cost) * wait_s / max(1.0, fmean(runs))


def runs_of(context: PlanningContext, job: JobClass) -> tuple[float, ...]:
    """Return equally likely run times of jobs of a class, in seconds."""
    return context.snapshot.estimates.runs_of(
        job.owner, job.gpu_milli, job.cpus, job.memory_mib, job.walltime_s
    )


def waiting_time(context: PlanningContext, job: JobClass) -> float:
    """Return the longest continuous idle time of the jobs in seconds: preempted jobs accept no more than new ones."""
    return max(0.0, context.now - job.waits_since) if job.waits_since else 0.0


def free_gpus_at(context: PlanningContext, site: str) -> int | None:
    """Return the free milli-GPUs of a site, or None if unknown. Of counts by type only the largest is certain."""
    view = context.validity.views.get(site)
    if view is None:
        return None
    if view.nodes:
        return sum(node.free_gpu_milli for node in view.nodes)
    if view.free_gpu_milli is not None:
        return view.free_gpu_milli
    sizes = {t.name: t.gpu_milli for t in context.snapshot.types if t.site == site}
    return max(
        (count * sizes.get(name, 0) for name, count in (view.free or {}).items()), default=None
    )


MAX_EXCLUSION_CLASSES = 200
"""Number of waiting classes considered: those that have waited longest are served first."""
MAX_EXCLUSION_CHARS = 2000
"""Length of the list: it travels in an environment variable and is part of an expression."""
DRAIN_LOSS_FACTOR = 2.0
"""A drone takes no more jobs where they would lose this many times the loss that allows a start: a hysteresis."""


@dataclass
class PreemptionRisk:
    """Risk at the sites with an owner. Mutable, local to one plan; its parts are worked out when first asked for."""

    context: PlanningContext
    safe_wait_s: Callable[[CompatibleTypes, float], float]
    """Return how long jobs that have waited for some seconds are expected to wait for a place without an owner.

    Infinity if there is none.
    """
    _owned: dict[CompatibleTypes, frozenset[str]] = factory(dict)
    _accepted: list[tuple[JobClass, CompatibleTypes, tuple[float, ...], float]] | None = None
    """Classes that may wait for a safer place, with the run times and the accepted loss of their jobs.

    None after each start, which may have taken the room that the others would wait for.
    """

    @property
    def estimates(self) -> Estimates:
        return self.context.snapshot.estimates

    @cached_property
    def _free_milli(self) -> Mapping[str, int]:
        """By site with an owner: free milli-GPUs, if known."""
        free = ((site, free_gpus_at(self.context, site)) for site in self.estimates.rises)
        return {site: milli for site, milli in free if milli is not None}

    @cached_property
    def head_milli(self) -> dict[str, int]:
        """By site with an owner: free milli-GPUs that are not promised to drones on their way."""
        heads = dict(self._free_milli)
        for drone in self.context.unsettled if heads else ():
            if drone.site in heads and drone.awaits_room:
                heads[drone.site] -= drone.gpu_milli
        return heads

    def bears(self, kind: DroneType) -> bool:
        """Return True if places of a type are known to be preempted."""
        return kind.site in self.head_milli or bool(self.estimates.taken_per_s.get(kind.site))

    def preempted_per_s(self, kind: DroneType) -> float:
        """Return the expected preemptions of a drone of a type, started now, per second of its first hour."""
        head = self.head_milli.get(kind.site)
        if head is None:
            return self.estimates.taken_per_s.get(kind.site, 0.0)
        chances = self.estimates.rises[kind.site].chances(head - kind.gpu_milli)
        return max(
            (chance / until_s for until_s, chance in zip(HORIZONS_S[:3], chances, strict=False)),
            default=0.0,
        )

    def book(self, kind: DroneType, count: int) -> None:
        """Take the headroom of ``count`` started drones."""
        self._accepted = None
        if kind.site in self.head_milli:
            self.head_milli[kind.site] -= count * kind.gpu_milli

    def allowed(
        self,
        job: JobClass,
        compatible: CompatibleTypes,
        kind: DroneType,
        most: int,
        returned_milli: int = 0,
    ) -> tuple[int, OwnerRisk | None]:
        """Return how many of ``most`` drones may be started for jobs of a class, and why no more.

        All, unless there is a safer place to wait for: work that is lost now and then is better
        than none. ``returned_milli`` is the number of milli-GPUs that drones give back before.
        """
        head = self.head_milli.get(kind.site)
        rate = self.estimates.taken_per_s.get(kind.site, 0.0)
        if head is None and not rate:
            return most, None
        runs, tolerated = self._runs_and_accepted_loss(job, compatible)
        if tolerated == math.inf:
            return most, None
        waited_s = waiting_time(self.context, job)
        why = OwnerRisk(
            kind.site,
            runs[len(runs) // 2],
            waited_s,
            tolerated,
            self.safe_wait_s(compatible, waited_s),
        )
        if head is None:
            return (most, None) if expected_loss_at_rate(runs, rate) <= tolerated else (0, why)
        rise = self.estimates.rises[kind.site]
        head += returned_milli
        # The more there are, the likelier is the last one taken.
        good = bisect_left(
            range(1, most + 1),
            True,
            key=lambda count: (
                expected_loss(runs, rise.chances(head - count * kind.gpu_milli)) > tolerated
            ),
        )
        return good, why if good < most else None

    def excluded_users(self, job: JobClass, kind: DroneType) -> tuple[str, ...]:
        """Return the users that a drone started for a class should exclude."""
        head = self.head_milli.get(kind.site)
        barred = self.context.exclusive.users if kind.shares_faults else ()
        chances = self.estimates.rises[kind.site].chances(head) if head is not None else ()
        found: set[str] = set()
        for other, compatible, runs, accepted in self._waiting() if head is not None else ():
            new = (
                other.owner != job.owner
                and other.owner not in found
                and kind.key in compatible.jobs
            )
            if new and expected_loss(runs, chances) > accepted:
                found.add(other.owner)
        users = [*sorted(barred), *sorted(found.difference(barred))]
        lengths = accumulate(len(user) + 1 for user in users)
        return tuple(
            user
            for user, length in zip(users, lengths, strict=True)
            if length <= MAX_EXCLUSION_CHARS
        )

    @cached_property
    def _longest_waiting(self) -> list[JobClass]:
        idle = (
            j
            for j in self.context.classes
            if (j.waiting or j.fresh) and USER_NAME.fullmatch(j.owner)
        )
        return heapq.nsmallest(
            MAX_EXCLUSION_CLASSES, idle, key=lambda job: (job.waits_since, job.id)
        )

    def _waiting(self) -> list[tuple[JobClass, CompatibleTypes, tuple[float, ...], float]]:
        if self._accepted is None:
            of_each = ((job, self.context.compatible[job.id]) for job in self._longest_waiting)
            self._accepted = [
                (job, fits, *self._runs_and_accepted_loss(job, fits))
                for job, fits in of_each
                if fits.kinds
            ]
        return self._accepted

    def _runs_and_accepted_loss(
        self, job: JobClass, compatible: CompatibleTypes
    ) -> tuple[tuple[float, ...], float]:
        """Return equally likely run times of a class, and its accepted loss: infinity if there is no safe place."""
        runs = runs_of(self.context, job)
        wait_s = self.safe_wait_s(compatible, waiting_time(self.context, job))
        if wait_s == math.inf:
            return runs, math.inf
        return runs, accepted_loss(self.context.costs.waiting_cost(job), wait_s, runs)

    def most_exposed(self) -> Mapping[DroneId, DrainAtRisk]:
        """Return the drones that should take no more jobs, by the class that has waited longest for their site."""
        next_in_line: dict[str, JobClass] = {}
        for job in self.context.classes if self.estimates.rises else ():
            for site in self._owned_sites(self.context.compatible[job.id]) if job.waiting else ():
                known = next_in_line.get(site)
                if known is None or (job.waits_since, job.id) < (known.waits_since, known.id):
                    next_in_line[site] = job
        found: dict[DroneId, DrainAtRisk] = {}
        for site, job in next_in_line.items():
            found.update(
                self.exposed(job, self.context.compatible[job.id], site, DRAIN_LOSS_FACTOR)
            )
        return found

    def exposed(
        self, job: JobClass, compatible: CompatibleTypes, site: str, times: float = 1.0
    ) -> Mapping[DroneId, DrainAtRisk]:
        """Return the drones of a site where jobs of a class would lose more than ``times`` the accepted loss."""
        drones, heads_milli = (
            self._queues.get(site, ([], [])) if site in self._owned_sites(compatible) else ([], [])
        )
        if not drones:
            return {}
        runs, limit = self._runs_and_accepted_loss(job, compatible)
        rise = self.estimates.rises[site]

        def loss(head_milli: int) -> float:
            return expected_loss(runs, rise.chances(head_milli))

        safe = bisect_left(heads_milli, True, key=lambda head: loss(head) <= times * limit)
        return {
            drone.id: DrainAtRisk(site, loss(head), limit)
            for drone, head in zip(drones[:safe], heads_milli, strict=False)
            if drone.joined_at
            and not drone.notice_at
            and drone.type in compatible.jobs
            and not drone.job_filter.refuses(job)
        }

    def _owned_sites(self, compatible: CompatibleTypes) -> frozenset[str]:
        """Return the sites with an owner where such jobs could run, if there is a safer place to wait for."""
        found = self._owned.get(compatible)
        if found is None:
            sites = {kind.site for kind in compatible.kinds} & self.estimates.rises.keys()
            safer = sites and self.safe_wait_s(compatible, 0.0) < math.inf
            found = self._owned[compatible] = frozenset(sites) if safer else frozenset()
        return found

    @cached_property
    def _queues(self) -> Mapping[str, tuple[list[Drone], list[int]]]:
        """By site with an owner: drones, the newest first, and how many milli-GPUs the owner takes before each."""
        there: dict[str, list[Drone]] = {site: [] for site in self._free_milli}
        for drone in self.context.drones.values():
            if drone.started_at and (found := there.get(drone.site)) is not None:
                found.append(drone)
        for drones in there.values():
            drones.sort(key=lambda drone: (-drone.started_at, drone.id))
        sizes = {site: (drone.gpu_milli for drone in drones[:-1]) for site, drones in there.items()}
        return {
            s: (there[s], list(accumulate(sizes[s], initial=free)))
            for s, free in self._free_milli.items()
        }
