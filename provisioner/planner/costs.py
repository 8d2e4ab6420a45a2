"""Costs of a decision in GPU-seconds: waiting has a price, as have starting, running and giving back.

``policy.waiting_cost`` is the price of one second of one job's waiting. From it follow the order of
drone types, the drones for short jobs and beside delayed ones, the accepted loss in front of an
owner, and reservations of large jobs.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from provisioner.estimates import RELEASE_S, Estimates, StartDelays
from provisioner.model import WHOLE_GPU, DroneType, JobClass, Policy, TypeKey
from provisioner.planner.matching import CompatibleTypes

PRIOR_DELAYS = StartDelays(queue_s=45.0, boot_s=90.0)
"""Start delays of a drone type of which no drone has started yet."""
PRIOR_QUEUE_S = 1800.0
"""The same for the queue of a site that takes orders when it is full: a batch system's."""


class JobCost(NamedTuple):
    """Cost factors of a job of a class."""

    run_s: float
    """Mean run time, to a power of two."""
    per_s: float
    """Cost of a second of its waiting."""


class StartCost(NamedTuple):
    """Delays of a drone of one type, and its cost in GPU-seconds; a drone without GPU costs as one with one."""

    queue_s: float
    boot_s: float
    per_s: float
    """Cost of a second of the drone."""
    overhead: float
    """Cost of the time before its first job and after its last one, while it holds its place."""


@dataclass(frozen=True)
class StartCosts:
    """Costs of starting one drone of each type."""

    policy: Policy
    estimates: Estimates
    types: Mapping[TypeKey, DroneType]
    _of_classes: dict[tuple[object, ...], tuple[RunTimeSums, JobCost]] = field(
        default_factory=dict, compare=False
    )
    _ranked: dict[tuple[CompatibleTypes, JobCost], tuple[TypeKey, ...]] = field(
        default_factory=dict, compare=False
    )

    @classmethod
    def of(
        cls, policy: Policy, estimates: Estimates, types: Mapping[TypeKey, DroneType]
    ) -> StartCosts:
        """Return the costs. If their inputs did not change, they keep the results that earlier plans derived."""
        new = cls(policy, estimates, types)
        # others may plan in further threads
        known = next((each for each in tuple(_latest) if each == new), None)
        if known is None or max(len(known._of_classes), len(known._ranked)) > MAX_CLASSES_KNOWN:
            _latest.appendleft(new)
            return new
        return known

    @cached_property
    def of_types(self) -> Mapping[TypeKey, StartCost]:
        return {key: self._of_type(kind) for key, kind in self.types.items()}

    @cached_property
    def _alike(self) -> Mapping[TypeKey, Sequence[DroneType]]:
        """By type: all types of the same site, GPU model and sharing, itself included, by number of GPUs."""
        groups: dict[object, list[DroneType]] = {}
        found = {}
        for kind in sorted(self.types.values(), key=attrgetter("gpu_milli")):
            hardware = kind.gpu_model, kind.vram_mib, kind.capability
            found[kind.key] = groups.setdefault(
                (kind.site, hardware, kind.sharing, not kind.gpu_milli, kind.service), []
            )
            found[kind.key].append(kind)
        return found

    @cached_property
    def smaller(self) -> Mapping[TypeKey, Sequence[TypeKey]]:
        """By type: those of the same site, GPU model and sharing with fewer GPUs."""
        return {
            key: [other.key for other in alike if other.gpu_milli < self.types[key].gpu_milli]
            for key, alike in self._alike.items()
        }

    def _assumed_delays(self, kind: DroneType) -> StartDelays:
        """Return the delays of a type of which no drone has started yet.

        A larger drone does not start sooner: similar types of which some have started bound what is
        assumed.
        """
        delays = PRIOR_DELAYS
        known = self.estimates.delays
        if self.policy.of_site(kind.site).queue_when_full:
            delays = replace(PRIOR_DELAYS, queue_s=PRIOR_QUEUE_S)
        for other in self._alike[kind.key] if kind.gpu_milli else ():
            if (seen := known.get(other.key)) is not None and other.gpu_milli != kind.gpu_milli:
                bound = max if other.gpu_milli < kind.gpu_milli else min
                delays = StartDelays(
                    bound(delays.queue_s, seen.queue_s), bound(delays.boot_s, seen.boot_s)
                )
        return delays

    def _of_type(self, kind: DroneType) -> StartCost:
        site = self.policy.of_site(kind.site)
        delays = self.estimates.delays.get(kind.key) or self._assumed_delays(kind)
        per_s = (kind.gpu_milli or WHOLE_GPU) / WHOLE_GPU * kind.price * site.price
        return StartCost(delays.queue_s, delays.boot_s, per_s, per_s * (delays.boot_s + RELEASE_S))

    def waiting_cost(self, job: JobClass) -> float:
        """Return the cost of a second of waiting of a job of a class, for each of its GPUs."""
        name = job.group.casefold()
        while name and self._by_group:
            if name in self._by_group:
                return self._by_group[name]
            name = name.rpartition(".")[0]
        return self.policy.waiting_cost

    def of_job(self, job: JobClass, run_s: float) -> JobCost:
        """Return the cost of a job of a class; of several GPUs, each counts."""
        # Many classes shall share one order of types, which depends little on the run time.
        rounded_s = 2.0 ** round(math.log2(max(1.0, run_s)))
        return JobCost(rounded_s, self.waiting_cost(job) * max(1.0, job.gpu_milli / WHOLE_GPU))

    def of_class(self, job: JobClass) -> tuple[RunTimeSums, JobCost]:
        """Return the run times and the cost of the jobs of a class."""
        key = job.owner, job.gpu_milli, job.cpus, job.memory_mib, job.walltime_s, job.group
        found = self._of_classes.get(key)
        if found is None:
            runs = RunTimeSums(self.estimates.runs_of(*key[:5]))
            found = self._of_classes[key] = runs, self.of_job(job, runs.mean_s)
        return found

    @cached_property
    def _by_group(self) -> Mapping[str, float]:
        return {name.casefold(): cost for name, cost in self.policy.waiting_cost_by_group.items()}

    def ranked(self, compatible: CompatibleTypes, cost: JobCost) -> tuple[TypeKey, ...]:
        """Return the compatible types by the cost of a start for one job, then by GPUs and price."""
        found = self._ranked.get((compatible, cost))
        if found is None:
            total = {
                key: self.start(self.types[key], jobs, cost)
                for key, jobs in compatible.jobs.items()
            }
            by_cost = sorted(
                compatible.cheapest, key=lambda key: (total[key], self.types[key].gpu_milli)
            )
            found = self._ranked[compatible, cost] = tuple(by_cost)
        return found

    def start(self, kind: DroneType, jobs: int, cost: JobCost) -> float:
        """Return the cost of one job in a new drone that takes ``jobs`` such jobs at once.

        A drone holds all its GPUs until the last of its jobs ends: the mean of the longest of n
        exponential runs.
        """
        mine = self.of_types[kind.key]
        gpus = min(jobs, max(1, kind.gpu_milli // WHOLE_GPU))
        longest_s = cost.run_s * math.fsum(1.0 / n for n in range(1, gpus + 1))
        return (mine.overhead + mine.per_s * longest_s) / jobs + cost.per_s * (
            mine.queue_s + mine.boot_s
        )


MAX_CLASSES_KNOWN = 50_000
"""Most requests, or orders of types, that are kept; beyond that, all are dropped."""
_latest: deque[StartCosts] = deque(maxlen=2)
"""Costs of the running configuration, and of one that is tried out beside it."""


@dataclass(frozen=True)
class RunTimeSums:
    """Equally likely run times of the jobs of a class, ascending, with their sums."""

    runs: tuple[float, ...]

    @cached_property
    def sums(self) -> tuple[float, ...]:
        return tuple(accumulate(self.runs, initial=0.0))

    @property
    def mean_s(self) -> float:
        return self.sums[-1] / len(self.runs)

    def rest_s(self, ran_s: float) -> float:
        """Return the mean remaining time of a run after ``ran_s``; one longer than all known runs is half done."""
        first = bisect_right(self.runs, ran_s)
        return (
            (self.sums[-1] - self.sums[first]) / (len(self.runs) - first) - ran_s
            if first < len(self.runs)
            else ran_s
        )

    def served(self, ran_s: float, within_s: float) -> float:
        """Return how many further jobs a drone is expected to take within a time, whose job has run for ``ran_s``."""
        first = bisect_right(self.runs, ran_s)
        last = bisect_right(self.runs, ran_s + within_s)
        if first == len(self.runs):  # longer than any that is known: it may be half done
            return 1.0 if ran_s <= within_s else 0.0
        if first == last:
            return 0.0
        left_s = (self.sums[last] - self.sums[first]) / (last - first) - ran_s
        return (last - first) / (len(self.runs) - first) * (1.0 + (within_s - left_s) / self.mean_s)
