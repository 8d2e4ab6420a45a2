"""Measured use of GPUs: sums by job class, user, site or drone type, and the drone types that jobs would fit.

Amounts are GPU-seconds. A job *holds* GPUs (or shares of one) for its whole run, and *uses* a part
of that, as measured in its slot. All that the drones held in a period is either held by a run on
record, measured or not, or by a job that still runs, or idle: the four add up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple, TypeVar

from provisioner.descriptions import gpu_words
from provisioner.formatting import count, size
from provisioner.keys import site_of
from provisioner.model import WHOLE_GPU, DroneId, DroneType, JobClass, LowUsePolicy, TypeKey
from provisioner.sharing import pool_milli, share_milli, shares_needed
from provisioner.values import define, factory, frozen

N = TypeVar("N", int, float)

_UNKNOWN_VRAM_MIB = 1 << 50
NO_VO = "none"
"""Name of the sum of all jobs without a VO."""


class UseSum(NamedTuple):
    """Sums over ended runs of one kind in drones of one type; its fields are columns of the store's queries.

    The runs are alike in what they asked for, and their use and their peak of VRAM are in the same
    steps.
    """

    drone_id: DroneId | None
    """None: of several drones."""
    type: TypeKey
    drone_milli: int
    owner: str
    vo: str
    gpu_milli: int
    cpus: int
    memory_mib: int
    vram_mib: int
    splits: bool
    disk_mib: int
    capability: int
    walltime_s: float
    ended_at: float
    """End of the newest."""
    jobs: int
    ran_s: float
    """Time within the lives of their drones and the period; less, where a drone had less than its runs held."""
    used_s: float
    """GPU-seconds; 0 if not measured."""
    used_milli: int | None
    """Highest; None: not measured, as in the others that may be None."""
    peak_vram_mib: int | None
    energy_j: int | None
    used_cpu_s: int | None
    """CPU time of whole runs."""
    asked_cpu_s: float
    """Core-seconds that runs with a measured CPU time asked for."""
    peak_memory_mib: int | None

    def held_milli(self, kinds: Mapping[TypeKey, DroneType]) -> int:
        """Return the GPUs that each run held, in thousandths."""
        kind = kinds.get(self.type)
        return min(held_milli(self.gpu_milli, self.vram_mib, self.splits, kind), self.drone_milli)


class RecordedRuns(NamedTuple):
    """Runs that ended in a period, and the GPU-seconds of all drones in it by type."""

    sums: Sequence[UseSum] = ()
    had_s: Mapping[TypeKey, float] = {}
    running_s: float = 0.0
    """Held by jobs that still run."""


HeldGpus = tuple[UseSum, int]
"""Some runs with the GPUs that each of them held, in thousandths."""


def class_name(job: UseSum | JobClass) -> str:
    """Return the name of all jobs of a user with one size, which outlives the queue's own ids of classes."""
    return _class_name(job.owner, job.gpu_milli, job.cpus, job.memory_mib)


@lru_cache(10_000)
def _class_name(owner: str, gpu_milli: int, cpus: int, memory_mib: int) -> str:
    # exact: users may have classes that differ by a MiB
    memory = f"{memory_mib} MiB" if memory_mib % 1024 else size(memory_mib)
    return f"{owner}: {gpu_words(gpu_milli)}, {count(cpus, 'CPU')}, {memory} RAM"


GROUPINGS: Mapping[str, Callable[[UseSum], str]] = {
    "class": class_name,
    "user": lambda runs: runs.owner,
    "site": lambda runs: site_of(runs.type),
    "type": lambda runs: runs.type,
    "drone": lambda runs: runs.drone_id or "",
    "vo": lambda runs: runs.vo or NO_VO,
}


@define
class MeasuredUse:
    """Use of GPUs by the ended runs of one class, user, site, drone type or drone."""

    name: str
    jobs: int = 0
    """Number of runs, those that were evicted, held or removed as well."""
    held_s: float = 0.0
    measured: int = 0
    measured_s: float = 0.0
    """The part of ``held_s`` held by them."""
    used_s: float = 0.0
    energy_j: int | None = None
    saved_s: float = 0.0
    """The part of ``held_s`` that the same runs would not have held on the types that fit."""
    fits: dict[TypeKey, None] = factory(dict)
    """The smallest type for each of its classes."""
    uses: Counter[float] = factory(Counter)
    """Number of measured runs by their use, in steps of 1 % of a GPU."""
    vram_mib: Counter[int] = factory(Counter)
    """Number of runs by their peak, in steps of 256 MiB."""
    asked_vram_mib: int = 0
    """Most VRAM per GPU that a run asked for; 0: none did."""
    without_vram: int = 0
    """Number of measured runs without a peak of VRAM."""
    used_cpu_s: int | None = None
    asked_cpu_s: float = 0.0
    """Core-seconds of the runs in ``used_cpu_s``."""
    peak_memory_mib: int | None = None
    asked_memory_mib: int = 0
    """Most that a run asked for."""

    @property
    def mean(self) -> float | None:
        """The used part of what measured runs held; None if none was measured."""
        return self.used_s / self.measured_s if self.measured_s else None

    @property
    def cpu_efficiency(self) -> float | None:
        """Return the CPU time used by the core-seconds asked for; None if it was not measured."""
        if self.used_cpu_s is None or not self.asked_cpu_s:
            return None
        return self.used_cpu_s / self.asked_cpu_s

    def add(self, runs: UseSum, milli: int, held_s: float) -> None:
        self.jobs += runs.jobs
        self.held_s += held_s
        self.asked_vram_mib = max(self.asked_vram_mib, runs.vram_mib)
        if runs.used_milli is not None:
            self.measured += runs.jobs
            self.measured_s += held_s
            self.used_s += runs.used_s
            self.uses[runs.used_milli / milli] += runs.jobs
            self.without_vram += runs.jobs * (runs.peak_vram_mib is None)
        if runs.peak_vram_mib is not None:
            self.vram_mib[runs.peak_vram_mib] += runs.jobs
        if runs.energy_j is not None:
            self.energy_j = (self.energy_j or 0) + runs.energy_j
        self.asked_memory_mib = max(self.asked_memory_mib, runs.memory_mib)
        self.asked_cpu_s += runs.asked_cpu_s
        if runs.used_cpu_s is not None:
            self.used_cpu_s = (self.used_cpu_s or 0) + runs.used_cpu_s
        if runs.peak_memory_mib is not None:
            self.peak_memory_mib = max(self.peak_memory_mib or 0, runs.peak_memory_mib)


@frozen
class UsageReport:
    """Use in a period, the largest saving first, and the sums over all drones: ``total_s`` is that of the others."""

    since: float
    until: float
    rows: Sequence[MeasuredUse] = ()
    total_s: float = 0.0
    measured_s: float = 0.0
    unmeasured_s: float = 0.0
    running_s: float = 0.0
    """Held by jobs that still run."""
    idle_s: float = 0.0
    """Held by no job on record: drones that start, wait for jobs, or lost a job that no queue reported."""
    used_s: float = 0.0
    saved_s: float = 0.0


def usage_report(
    runs: RecordedRuns, types: Iterable[DroneType], since: float, until: float, by: str = "class"
) -> UsageReport:
    """Return the use from ``since`` to ``until``.

    The types may have changed since then: where runs hold more by those of today than their drones
    had, they count less.
    """
    kinds = {kind.key: kind for kind in types}
    held = [(each, each.held_milli(kinds)) for each in runs.sums]
    held_s = Counter[TypeKey]()
    for each, milli in held:
        held_s[each.type] += milli / WHOLE_GPU * each.ran_s  # type: ignore[assignment]
    smallest = smallest_types(held, kinds)
    rows: dict[str, MeasuredUse] = {}
    measured_s = unmeasured_s = 0.0
    for each, milli in held:
        scale = min(1.0, runs.had_s.get(each.type, 0.0) / (held_s[each.type] or 1.0))
        here_s = milli / WHOLE_GPU * each.ran_s * scale
        name = GROUPINGS[by](each)
        row = rows.get(name) or rows.setdefault(name, MeasuredUse(name))
        row.add(each._replace(used_s=each.used_s * scale), milli, here_s)
        if (fit := smallest.get(class_name(each))) is not None:
            row.fits[fit[0]] = None
            row.saved_s += here_s * max(0.0, 1.0 - fit[1] / milli)
        measured_s += 0.0 if each.used_milli is None else here_s
        unmeasured_s += here_s if each.used_milli is None else 0.0
    total_s = sum(runs.had_s.values())
    left_s = max(0.0, total_s - measured_s - unmeasured_s)
    running_s = min(left_s, runs.running_s)
    order = sorted(
        rows.values(), key=lambda row: (-row.saved_s, row.used_s - row.measured_s, row.name)
    )
    return UsageReport(
        since,
        until,
        order,
        total_s,
        measured_s,
        unmeasured_s,
        running_s,
        left_s - running_s,
        sum(row.used_s for row in order),
        sum(row.saved_s for row in order),
    )


def low_use(report: UsageReport, policy: LowUsePolicy) -> list[MeasuredUse]:
    """Return the classes of a report by class that the policy is about."""
    return [
        row
        for row in report.rows
        if row.measured >= policy.jobs and (row.mean or 0.0) < policy.below
    ]


def describe_use(use: MeasuredUse) -> str:
    """Return the measured use in words: how little, of how much, and what it would fit."""
    mean = use.mean or 0.0
    vram_mib = quantile(use.vram_mib, 0.95)
    peak = "" if vram_mib is None else f", VRAM up to {vram_mib / 1024:.1f} GiB in 95 of 100"
    fits = f"; {' or '.join(sorted(use.fits))} would do" if use.saved_s else ""
    return f"{mean:.0%} of {use.measured_s / 3600:.1f} GPU-hours used, runs measured: {use.measured}{peak}{fits}"


def held_milli(gpu_milli: int, vram_mib: int, splits: bool, kind: DroneType | None) -> int:
    """Return the GPUs that a job holds on a drone type, in thousandths; None: the type is not known any more."""
    if kind is not None and kind.vram_pool:
        return pool_milli(vram_mib, kind.vram_mib, kind.shares)
    if gpu_milli >= WHOLE_GPU:
        return gpu_milli
    if kind is not None and kind.shares > 1:
        return shares_needed(gpu_milli, kind.shares) * share_milli(kind.shares)
    return gpu_milli if splits else WHOLE_GPU


def smallest_types(
    held: Iterable[HeldGpus], kinds: Mapping[TypeKey, DroneType]
) -> Mapping[str, tuple[TypeKey, int]]:
    """Return for each class with measured runs the drone type on which its jobs hold the least, and how many milli-GPU.

    The type has the use that 95 of 100 runs did not exceed, and the largest use of VRAM. A run
    whose VRAM was not measured may have used all that it had. Jobs on an exclusive type have a GPU
    of their own, also where the queue would put several on one. Jobs that run on a pool of VRAM
    hold there what they hold now. Types of another vendor or architecture than those that the class
    ran on never fit.
    """
    samples: dict[str, list[HeldGpus]] = {}
    for runs, milli in held:
        if runs.used_milli is not None:
            samples.setdefault(class_name(runs), []).append((runs, milli))
    fits = {name: _smallest_type(found, kinds) for name, found in samples.items()}
    return {name: fit for name, fit in fits.items() if fit is not None}


def _smallest_type(
    held: Sequence[HeldGpus], kinds: Mapping[TypeKey, DroneType]
) -> tuple[TypeKey, int] | None:
    from provisioner.planner.matching import unmet_requirement

    uses = Counter[int]()
    there: dict[TypeKey, int] = {}
    for each, milli in held:
        uses[each.used_milli or 0] += each.jobs
        there[each.type] = max(milli, there.get(each.type, 0))
    most_milli = max(there.values())
    need = max(1, quantile(uses, 0.95) or 0)
    need = min(most_milli, need if need <= WHOLE_GPU else _gpus(need) * WHOLE_GPU)
    vram_mib = max(_vram_mib(each, kinds.get(each.type)) for each, _ in held)
    vram_mib = -(-vram_mib * _gpus(most_milli) // _gpus(need))  # fewer GPUs hold the same data
    run = max((each for each, _ in held), key=lambda run: run.ended_at)
    places = {
        (kind.vendor, kind.arch) for each, _ in held if (kind := kinds.get(each.type)) is not None
    }
    asks = need, run.cpus, run.memory_mib, run.disk_mib, vram_mib, run.capability
    job = JobClass("", *asks, splits=False, walltime_s=run.walltime_s)
    found = []
    for kind in kinds.values():
        alike = places <= {(kind.vendor, kind.arch)}
        if not kind.gpu_milli or not alike or unmet_requirement(job, kind) is not None:
            continue
        share = _held_share(job, kind, there.get(kind.key), splits=run.splits)
        if share is not None:
            share_mib = kind.vram_mib // kind.shares
            found.append((share, share_mib, kind.gpu_milli, kind.price, kind.key))
    return (min(found)[-1], min(found)[0]) if found else None


def _held_share(job: JobClass, kind: DroneType, there: int | None, *, splits: bool) -> int | None:
    """Return the milli-GPUs that a job would hold on a type; None if these are no share of it.

    ``there``: the most that a run of them held on this type; None: none ran there.
    """
    milli = held_milli(job.gpu_milli, job.vram_mib, job.splits, kind)
    if kind.vram_pool:
        if there is not None:
            return there
        return milli if job.gpu_milli <= milli < WHOLE_GPU else None
    shares = shares_needed(job.gpu_milli, kind.shares) if kind.shares > 1 else 1
    # all shares of a GPU are no share, and HTCondor joins none
    most = max(1, kind.shares - 1) if splits else 1
    return milli if shares <= most else None


def _gpus(milli: int) -> int:
    return -(-milli // WHOLE_GPU)


def _vram_mib(run: UseSum, kind: DroneType | None) -> int:
    if run.peak_vram_mib is not None or kind is None:
        return _UNKNOWN_VRAM_MIB if run.peak_vram_mib is None else run.peak_vram_mib
    if kind.vram_pool:
        return max(kind.vram_mib // kind.shares, run.vram_mib)
    return (
        kind.vram_mib
        // kind.shares
        * (shares_needed(run.gpu_milli, kind.shares) if kind.shares > 1 else 1)
    )


def quantile(counts: Mapping[N, int], share: float) -> N | None:
    """Return the least of the counted values that ``share`` of them do not exceed; None if there are none."""
    values = [value for value in sorted(counts) if counts[value]]
    below = list(accumulate(counts[value] for value in values))
    return values[bisect_left(below, share * below[-1] - 1e-9)] if values else None
