"""Which job classes fit which drone types, and the first dimension in which they do not."""

from __future__ import annotations

from collections.abc import Sequence

from provisioner.model import WHOLE_GPU, DroneType, JobClass, Sharing, Slot, TypeKey, UnmetRequirement
from provisioner.planner.space import UNTOLD_MIB, Space, often, sparing, times
from provisioner.sharing import share_milli, shares_needed


def misfit(job: JobClass, kind: DroneType) -> UnmetRequirement | None:
    """The first dimension in which one empty drone of ``kind`` cannot host one job: the GPU first, then VRAM,
    capability, driver, CPUs, RAM, disk, architecture, life, then what the jobs' own requirements refuse."""
    broken = job.gpu_milli < 0 or (job.gpu_milli > WHOLE_GPU and job.gpu_milli % WHOLE_GPU)
    # Jobs without a GPU go to CPU drones alone: what a GPU drone has is for its GPUs.
    if broken or job.gpu_milli > kind.gpu_milli or (kind.gpu_milli and not job.gpu_milli):
        return UnmetRequirement("gpus", gpus(job.gpu_milli), gpus(kind.gpu_milli))
    if job.gpu_milli <= 0 and job.cpus <= 0 and job.memory_mib <= 0 and job.disk_mib <= 0:
        # A slot is made of what a job asks for: HTCondor matches such a job to nothing.
        return UnmetRequirement("cpus", "1 or more (the job asks for nothing)", str(kind.cpus))
    if kind.shares > 1:
        if too_much := _more_than_shares(job, kind):
            return too_much
    elif job.vram_mib > kind.vram_mib:
        return UnmetRequirement("vram", f"{job.vram_mib} MiB", f"{kind.vram_mib} MiB")
    if job.capability > kind.capability:
        return UnmetRequirement("capability", f"{job.capability / 10:.1f}", f"{kind.capability / 10:.1f}")
    if job.driver > kind.driver > 0:
        return UnmetRequirement("driver", _cuda(job.driver), _cuda(kind.driver))
    if job.cpus > kind.cpus:
        return UnmetRequirement("cpus", str(job.cpus), str(kind.cpus))
    if job.memory_mib > kind.memory_mib:
        return UnmetRequirement("memory", f"{job.memory_mib} MiB", f"{kind.memory_mib} MiB")
    if job.disk_mib > kind.disk_mib > 0:
        return UnmetRequirement("disk", f"{job.disk_mib} MiB", f"{kind.disk_mib} MiB")
    if job.arch and job.arch != kind.arch:
        return UnmetRequirement("arch", job.arch, kind.arch)
    if _keeps(kind) and jobs_in_type(job, kind) < 1:
        return _greedy(job, kind)
    if kind.walltime_s and job.walltime_s > kind.longest_job_s:
        less = f" of a walltime of {kind.walltime_s:g} s" if kind.margin_s else ""
        return UnmetRequirement("walltime", f"{job.walltime_s:g} s", f"{kind.longest_job_s:g} s{less}")
    return job.refuses.get(kind.key)


def _more_than_shares(job: JobClass, kind: DroneType) -> UnmetRequirement | None:
    """Why a job cannot do with shares of one GPU: it wants all of it, more than one of MIG's slices (nothing can join
    them), or more VRAM than its shares have."""
    most, each_mib = share_milli(kind.shares), kind.vram_mib // kind.shares
    if job.gpu_milli >= WHOLE_GPU or (kind.sharing is Sharing.MIG and job.gpu_milli > most):
        return UnmetRequirement("gpus", gpus(job.gpu_milli), f"shares of {gpus(most)}")
    shares = shares_needed(job.gpu_milli, kind.shares)
    if shares > kind.shares:
        return UnmetRequirement("gpus", gpus(job.gpu_milli), f"{kind.shares} shares of {gpus(most)}")
    if job.vram_mib > shares * each_mib:
        told = f"{each_mib} MiB a share" if shares == 1 else f"{shares * each_mib} MiB in {shares} shares"
        return UnmetRequirement("vram", f"{job.vram_mib} MiB", told)
    return None


def _greedy(job: JobClass, kind: DroneType) -> UnmetRequirement:
    """It would leave the drone's other GPUs less than they keep: of what first."""
    for dimension, asked, there, kept, unit in (
        ("cpus", job.cpus, kind.cpus, kind.kept_cpus, ""),
        ("memory", job.memory_mib, kind.memory_mib, kind.kept_memory_mib, " MiB"),
        ("disk", job.disk_mib, kind.disk_mib, kind.kept_disk_mib, " MiB"),
    ):
        if kept and (there - asked) * WHOLE_GPU < kept * (kind.gpu_milli - _gpu_need(job, kind)):
            return UnmetRequirement(
                dimension, f"{asked}{unit}", f"{there}{unit}, of which each other GPU keeps {kept}{unit}"
            )
    return UnmetRequirement("cpus", str(job.cpus), str(kind.cpus))


def gpus(milli: int) -> str:
    """Milli-GPU as people write GPUs: ``1``, ``0.2``."""
    return f"{milli / WHOLE_GPU:g}"


def _cuda(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _keeps(kind: DroneType) -> bool:
    """Whether free GPUs of such drones keep anything."""
    return bool(kind.kept_cpus or kind.kept_memory_mib or kind.kept_disk_mib)


def _gpu_need(job: JobClass, kind: DroneType) -> int:
    """What one job of a class takes of a GPU of ``kind``: whole shares, where it is offered in shares."""
    if not 0 < job.gpu_milli < WHOLE_GPU:
        return job.gpu_milli
    if kind.shares == 1:
        return job.gpu_milli if job.splits else min(WHOLE_GPU, kind.gpu_milli)
    return shares_needed(job.gpu_milli, kind.shares) * share_milli(kind.shares)


def need_of(job: JobClass, kind: DroneType | None = None) -> Space:
    """What one job of a class takes: as it asks, or of a drone of ``kind``."""
    gpu_milli = job.gpu_milli if kind is None else _gpu_need(job, kind)
    return Space(gpu_milli, job.cpus, job.memory_mib, job.disk_mib)


def whole(kind: DroneType) -> Space:
    """All of an empty drone."""
    return Space(kind.gpu_milli, kind.cpus, kind.memory_mib, kind.disk_mib or UNTOLD_MIB)


def left(slot: Slot) -> Space:
    """What is left in a drone."""
    return Space(slot.free_gpu_milli, slot.free_cpus, slot.free_memory_mib, slot.free_disk_mib or UNTOLD_MIB)


def jobs_in(job: JobClass, space: Space, kind: DroneType) -> int:
    """How many jobs of a class a drone of ``kind`` takes at once if ``space`` is left in it: each of its GPUs that is
    then still free keeps its share (as its START says)."""
    if kind.shares == 1 and not _keeps(kind):  # as nearly always
        return often(_gpu_need(job, kind), job.cpus, job.memory_mib, job.disk_mib, *space)
    need, kept = need_of(job, kind), Space(0, kind.kept_cpus, kind.kept_memory_mib, kind.kept_disk_mib)
    if kind.shares == 1:
        return times(need, space, kept)
    share = share_milli(kind.shares)
    # What rounding leaves of each GPU is no share, and nothing is kept for it.
    free_shares = max(0, space.gpu_milli - kind.gpu_milli + kind.gpu_milli // WHOLE_GPU * kind.shares * share) // share
    space = space._replace(gpu_milli=free_shares * share)
    most = _jobs_in_shares(job, free_shares, kind)
    if need.cpus > 0 or need.memory_mib > 0 or need.disk_mib > 0:  # else the shares alone decide
        most = min(most, often(0, *need[1:], *space))
    return sparing(most, need, space, kept)


def _jobs_in_shares(job: JobClass, free_shares: int, kind: DroneType) -> int:
    """How many small jobs the shares take that are left: those of one job lie on one GPU."""
    gpus_free, rest = divmod(free_shares, kind.shares)
    each = shares_needed(job.gpu_milli, kind.shares)
    return gpus_free * (kind.shares // each) + rest // each


def jobs_in_type(job: JobClass, kind: DroneType) -> int:
    """How many jobs of a class an empty drone holds."""
    return jobs_in(job, whole(kind), kind)


def jobs_in_slot(job: JobClass, slot: Slot, kind: DroneType) -> int:
    """How many jobs of a class fit into what is left of a drone."""
    return jobs_in(job, left(slot), kind)


# Order of the dimensions: the later the first failure, the nearer the type.
_ORDER = ("gpus", "vram", "capability", "driver", "cpus", "memory", "disk", "arch", "walltime")


def nearness(kind: DroneType, bad: UnmetRequirement) -> tuple[int, int, int, int, str]:
    """Return a key that sorts types that do not fit, the nearest last."""
    rank = _ORDER.index(bad.dimension) if bad.dimension in _ORDER else len(_ORDER)
    return (rank, kind.gpu_milli, kind.vram_mib, kind.capability, kind.key)


def nearest(job: JobClass, types: Sequence[DroneType]) -> tuple[TypeKey, UnmetRequirement] | None:
    """The type that comes nearest of those that do not fit, and the first dimension in which it fails."""
    bad = [(t, m) for t in types if (m := misfit(job, t)) is not None]
    if not bad:
        return None
    kind, why = max(bad, key=lambda tm: nearness(*tm))
    return kind.key, why
