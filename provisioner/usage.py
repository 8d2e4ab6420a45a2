"""Measured use of GPUs: sums by job class, user, site or drone type, and the drone types that jobs would fit.

Amounts are GPU-seconds. A job *holds* GPUs (or shares of one) for its whole run, and *uses* a part of that, as measured
in its slot. All that the drones held in a period is either held by a run on record, measured or not, or by a job that
still runs, or idle: the four add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil
from typing import NamedTuple, TypeVar

from provisioner.model import WHOLE_GPU, CompletedJob, DroneId, DroneType, JobClass, LowUsePolicy, Slot, TypeKey
from provisioner.sharing import pool_milli, share_milli, shares_needed
from provisioner.values import frozen

N = TypeVar("N", int, float)

_UNKNOWN_VRAM_MIB = 1 << 50


class GpuDrone(NamedTuple):
    """A GPU drone on record; its fields are columns of the store."""

    id: DroneId
    type: TypeKey
    gpu_milli: int
    began_at: float
    ended_at: float
    """0 if it lives."""


class HeldGpus(NamedTuple):
    """GPUs that a run held, for as long as it counts."""

    run: CompletedJob
    drone: GpuDrone
    milli: int
    gpu_s: float


def class_name(job: CompletedJob | JobClass) -> str:
    """Return the name of all jobs of a user with one size, which outlives the queue's own ids of classes."""
    return _class_name(job.owner, job.gpu_milli, job.cpus, job.memory_mib)


@lru_cache(10_000)
def _class_name(owner: str, gpu_milli: int, cpus: int, memory_mib: int) -> str:
    return f"{owner}/{gpu_milli / WHOLE_GPU:g}gpu/{cpus}cpu/{memory_mib}mib"


GROUPINGS: Mapping[str, Callable[[HeldGpus], str]] = {
    "class": lambda held: class_name(held.run),
    "user": lambda held: held.run.owner,
    "site": lambda held: held.drone.type.partition("/")[0],
    "type": lambda held: held.drone.type,
    "drone": lambda held: held.drone.id,
}


@dataclass(slots=True)
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
    fits: dict[TypeKey, None] = field(default_factory=dict)
    """The smallest type for each of its classes."""
    uses: list[float] = field(default_factory=list)
    vram_mib: list[int] = field(default_factory=list)
    asked_vram_mib: int = 0
    """Most VRAM per GPU that a run asked for; 0: none did."""
    without_vram: int = 0
    """Number of measured runs without a peak of VRAM."""

    @property
    def mean(self) -> float | None:
        """The used part of what measured runs held; None if none was measured."""
        return self.used_s / self.measured_s if self.measured_s else None

    def add(self, held: HeldGpus, scale: float) -> None:
        run, held_s = held.run, held.gpu_s * scale
        self.jobs += 1
        self.held_s += held_s
        self.asked_vram_mib = max(self.asked_vram_mib, run.vram_mib)
        if run.used_milli is not None:
            self.measured += 1
            self.measured_s += held_s
            self.used_s += held_s * run.used_milli / held.milli
            self.uses.append(run.used_milli / held.milli)
            self.without_vram += run.peak_vram_mib is None
        if run.peak_vram_mib is not None:
            self.vram_mib.append(run.peak_vram_mib)
        if run.energy_j is not None:
            self.energy_j = (self.energy_j or 0) + run.energy_j


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

    @property
    def used_s(self) -> float:
        return sum(row.used_s for row in self.rows)

    @property
    def saved_s(self) -> float:
        return sum(row.saved_s for row in self.rows)


def usage_report(
    drones: Iterable[GpuDrone],
    runs: Iterable[CompletedJob],
    types: Iterable[DroneType],
    since: float,
    until: float,
    by: str = "class",
    slots: Iterable[Slot] = (),
) -> UsageReport:
    """Return the use from ``since`` to ``until``. ``slots``: the drones' slots at ``until``, with running jobs.

    Queues and sites have clocks of their own, and ads of jobs are untrusted: a run counts only within the life of its
    drone, and where the runs of a drone hold more than it has, all of them count less.
    """
    kinds, busy = {kind.key: kind for kind in types}, {slot.drone_id: slot for slot in slots}
    lives, held = {drone.id: drone for drone in drones}, dict[DroneId, list[HeldGpus]]()
    for run in runs:
        drone = lives.get(run.drone_id) if run.drone_id is not None else None
        if drone is not None and run.gpu_milli > 0:
            end = min(run.ended_at, drone.ended_at or until, until)
            ran_s = end - max(run.ended_at - run.run_s, drone.began_at, since)
            held_there = held_milli(run.gpu_milli, run.vram_mib, run.splits, kinds.get(drone.type))
            milli = min(held_there, drone.gpu_milli)
            if ran_s > 0:
                held.setdefault(drone.id, []).append(HeldGpus(run, drone, milli, milli / WHOLE_GPU * ran_s))
    smallest = smallest_types((each for found in held.values() for each in found), kinds)
    rows: dict[str, MeasuredUse] = {}
    total_s = measured_s = unmeasured_s = running_s = idle_s = 0.0
    for drone in lives.values():
        has_s = drone.gpu_milli / WHOLE_GPU * (min(drone.ended_at or until, until) - max(drone.began_at, since))
        if has_s <= 0:
            continue
        found, left_s = held.get(drone.id, []), has_s
        scale = min(1.0, has_s / (sum(each.gpu_s for each in found) or has_s))
        for each in found:
            name, held_s = GROUPINGS[by](each), each.gpu_s * scale
            row = rows.get(name) or rows.setdefault(name, MeasuredUse(name))
            row.add(each, scale)
            if (fit := smallest.get(class_name(each.run))) is not None:
                row.fits[fit[0]] = None
                row.saved_s += held_s * max(0.0, 1.0 - fit[1] / each.milli)
            measured_s += 0.0 if each.run.used_milli is None else held_s
            unmeasured_s += held_s if each.run.used_milli is None else 0.0
            left_s -= held_s
        left_s, now_s, slot = max(0.0, left_s), 0.0, busy.get(drone.id)
        if slot is not None and slot.begun_at and not drone.ended_at:
            ran_s = until - max(slot.begun_at, drone.began_at, since)
            now_s = min(left_s, slot.work_gpu_milli / WHOLE_GPU * max(0.0, ran_s))
        total_s, running_s, idle_s = total_s + has_s, running_s + now_s, idle_s + left_s - now_s
    order = sorted(rows.values(), key=lambda row: (-row.saved_s, row.used_s - row.measured_s, row.name))
    return UsageReport(since, until, order, total_s, measured_s, unmeasured_s, running_s, idle_s)


def low_use(report: UsageReport, policy: LowUsePolicy) -> list[MeasuredUse]:
    """Return the classes of a report by class that the policy is about."""
    return [row for row in report.rows if row.measured >= policy.jobs and (row.mean or 0.0) < policy.below]


def describe_use(use: MeasuredUse) -> str:
    """Return the measured use in words: how little, of how much, and what it would fit."""
    mean, vram_mib = use.mean or 0.0, quantile(use.vram_mib, 0.95)
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


def smallest_types(held: Iterable[HeldGpus], kinds: Mapping[TypeKey, DroneType]) -> Mapping[str, tuple[TypeKey, int]]:
    """Return for each class with measured runs the drone type on which its jobs hold the least, and how many milli-GPU.

    The type has the use that 95 of 100 runs did not exceed, and the largest use of VRAM. A run whose VRAM was not
    measured may have used all that it had. Jobs on an exclusive type have a GPU of their own, also where the queue
    would put several on one. Jobs that run on a pool of VRAM hold there what they hold now. Types of another vendor or
    architecture than those that the class ran on never fit.
    """
    samples: dict[str, list[HeldGpus]] = {}
    for each in held:
        if each.run.used_milli is not None:
            samples.setdefault(class_name(each.run), []).append(each)
    fits = {name: _smallest_type(found, kinds) for name, found in samples.items()}
    return {name: fit for name, fit in fits.items() if fit is not None}


def _smallest_type(held: Sequence[HeldGpus], kinds: Mapping[TypeKey, DroneType]) -> tuple[TypeKey, int] | None:
    from provisioner.planner.matching import unmet_requirement

    most_milli = max(each.milli for each in held)
    need = max(1, quantile([each.run.used_milli or 0 for each in held], 0.95) or 0)
    need = min(most_milli, need if need <= WHOLE_GPU else _gpus(need) * WHOLE_GPU)
    vram_mib = max(_vram_mib(each.run, kinds.get(each.drone.type)) for each in held)
    vram_mib = -(-vram_mib * _gpus(most_milli) // _gpus(need))  # fewer GPUs hold the same data
    run = max((each.run for each in held), key=lambda run: run.ended_at)
    places = {(kind.vendor, kind.arch) for each in held if (kind := kinds.get(each.drone.type)) is not None}
    asks = need, run.cpus, run.memory_mib, run.disk_mib, vram_mib, run.capability
    job, found = JobClass("", *asks, splits=False, walltime_s=run.walltime_s), []
    for kind in kinds.values():
        if not kind.gpu_milli or not places <= {(kind.vendor, kind.arch)} or unmet_requirement(job, kind) is not None:
            continue
        shares = shares_needed(need, kind.shares) if kind.shares > 1 else 1
        # all shares of a GPU are no share, and HTCondor joins none
        most = max(1, kind.shares - 1) if run.splits else 1
        milli = held_milli(need, vram_mib, job.splits, kind)
        if kind.vram_pool:
            there = [each.milli for each in held if each.drone.type == kind.key]
            milli = max(there, default=milli)
            enough = bool(there) or need <= milli < WHOLE_GPU
        else:
            enough = shares <= most
        if enough:
            found.append((milli, kind.vram_mib // kind.shares, kind.gpu_milli, kind.price, kind.key))
    return (min(found)[-1], min(found)[0]) if found else None


def _gpus(milli: int) -> int:
    return -(-milli // WHOLE_GPU)


def _vram_mib(run: CompletedJob, kind: DroneType | None) -> int:
    if run.peak_vram_mib is not None or kind is None:
        return _UNKNOWN_VRAM_MIB if run.peak_vram_mib is None else run.peak_vram_mib
    if kind.vram_pool:
        return max(kind.vram_mib // kind.shares, run.vram_mib)
    return kind.vram_mib // kind.shares * (shares_needed(run.gpu_milli, kind.shares) if kind.shares > 1 else 1)


def quantile(values: Sequence[N], share: float) -> N | None:
    """Return the least value that ``share`` of the values do not exceed; None if there are none."""
    return sorted(values)[max(0, ceil(share * len(values) - 1e-9) - 1)] if values else None
