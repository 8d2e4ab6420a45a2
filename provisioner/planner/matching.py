"""Matching of job classes to drone types, and arithmetic of their resources.

Job classes with equal requests, their *shape*, match the same drone types in the same order of
price. That is computed once per shape and cached between plans for as long as the types stay the
same. It depends on shape and types alone, so a plan is the same with and without the cache.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from provisioner.model import (
    NVIDIA,
    WHOLE_GPU,
    DroneType,
    JobClass,
    Policy,
    Sharing,
    Slot,
    TypeKey,
    UnmetRequirement,
)
from provisioner.resources import NO_RESOURCES, Resources
from provisioner.sharing import pool_milli, share_milli, shares_needed
from provisioner.values import define, factory

UNKNOWN_DISK_MIB = 1 << 50
"""Stands for a disk size that is not reported."""


UNLIMITED = 1 << 60


def count_fits(each: Resources, free: Resources, kept: Resources = NO_RESOURCES) -> int:
    """Return how many times ``each`` fits into ``free`` while every GPU left free keeps ``kept``.

    ``kept.gpu_milli`` is not used. An empty request fits into nothing.
    """
    most = UNLIMITED
    if each.gpu_milli >= WHOLE_GPU:
        most = free.gpu_milli // each.gpu_milli
    elif each.gpu_milli:
        per_gpu = WHOLE_GPU // each.gpu_milli  # a share lies on one device
        most = free.gpu_milli // WHOLE_GPU * per_gpu + free.gpu_milli % WHOLE_GPU // each.gpu_milli
    for need, there in zip(each[1:], free[1:], strict=True):
        if need > 0:
            most = min(most, there // need)
    most = max(0, most) if most != UNLIMITED else 0
    return most if kept is NO_RESOURCES else limit_by_reserve(most, each, free, kept)


def limit_by_reserve(most: int, each: Resources, free: Resources, kept: Resources) -> int:
    """Return at most ``most``, so that every GPU of ``free`` that is left keeps ``kept``."""
    if not free.gpu_milli or most <= 0:
        return most
    for need, there, keep in zip(each[1:], free[1:], kept[1:], strict=True):
        # there - n * need >= keep * (GPUs left): each one eats so much into what is kept.
        eats = need * WHOLE_GPU - keep * each.gpu_milli
        if keep and eats > 0:
            most = min(most, (there * WHOLE_GPU - keep * free.gpu_milli) // eats)
    return max(0, most)


def unmet_requirement(job: JobClass, kind: DroneType) -> UnmetRequirement | None:
    """Return the first requirement of a job that one empty drone of the type does not meet, or None."""
    if kind.server is not None:
        return UnmetRequirement("server", "a slot for jobs", f"a server of {kind.server.service}")
    return (
        _unmet_gpus(job, kind)
        or _unmet_abilities(job, kind)
        or _unmet_sizes(job, kind)
        or _unmet_times(job, kind)
        or job.refuses.get(kind.key)
    )


def _unmet_gpus(job: JobClass, kind: DroneType) -> UnmetRequirement | None:
    broken = job.gpu_milli < 0 or (job.gpu_milli > WHOLE_GPU and job.gpu_milli % WHOLE_GPU)
    # Jobs without a GPU go to CPU drones alone: what a GPU drone has is for its GPUs.
    if broken or job.gpu_milli > kind.gpu_milli or (kind.gpu_milli and not job.gpu_milli):
        return UnmetRequirement("gpus", format_gpus(job.gpu_milli), format_gpus(kind.gpu_milli))
    if job.gpu_milli <= 0 and job.cpus <= 0 and job.memory_mib <= 0 and job.disk_mib <= 0:
        # A slot is made of what a job asks for: HTCondor matches such a job to nothing.
        return UnmetRequirement("cpus", "1 or more (the job requests no resource)", str(kind.cpus))
    return _unmet_by_shares(job, kind) if kind.shares > 1 else _unmet_vram(job, kind)


def _unmet_vram(job: JobClass, kind: DroneType) -> UnmetRequirement | None:
    if job.vram_mib <= kind.vram_mib:
        return None
    return UnmetRequirement("vram", f"{job.vram_mib} MiB", f"{kind.vram_mib} MiB")


def _unmet_abilities(job: JobClass, kind: DroneType) -> UnmetRequirement | None:
    """Return the CUDA capability or driver that a drone's GPUs lack, or None."""
    has_cuda = kind.vendor == NVIDIA
    without = f"none: {kind.vendor} GPUs have no CUDA"
    if job.capability > (kind.capability if has_cuda else 0):
        there = f"{kind.capability / 10:.1f}" if has_cuda else without
        return UnmetRequirement("capability", f"{job.capability / 10:.1f}", there)
    if job.driver > kind.driver > 0 or (job.driver and not has_cuda):
        there = _cuda(kind.driver) if has_cuda else without
        return UnmetRequirement("driver", _cuda(job.driver), there)
    return None


def _unmet_sizes(job: JobClass, kind: DroneType) -> UnmetRequirement | None:
    """Return the resource beside the GPUs of which the drone has too little, or too little for its other GPUs."""
    if job.cpus > kind.cpus:
        return UnmetRequirement("cpus", str(job.cpus), str(kind.cpus))
    if job.memory_mib > kind.memory_mib:
        return UnmetRequirement("memory", f"{job.memory_mib} MiB", f"{kind.memory_mib} MiB")
    if job.disk_mib > kind.disk_mib > 0:
        return UnmetRequirement("disk", f"{job.disk_mib} MiB", f"{kind.disk_mib} MiB")
    if job.arch and job.arch != kind.arch:
        return UnmetRequirement("arch", job.arch, kind.arch)
    reserves = kind.kept_cpus or kind.kept_memory_mib or kind.kept_disk_mib
    if reserves and count_jobs_in_type(job, kind) < 1:
        return _reserve_violated(job, kind)
    return None


def _unmet_times(job: JobClass, kind: DroneType) -> UnmetRequirement | None:
    if not kind.walltime_s or job.walltime_s <= kind.longest_job_s:
        return None
    less = f" of a walltime of {kind.walltime_s:g} s" if kind.margin_s else ""
    longest = f"{kind.longest_job_s:g} s{less}"
    return UnmetRequirement("walltime", f"{job.walltime_s:g} s", longest)


def _cuda(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _unmet_by_shares(job: JobClass, kind: DroneType) -> UnmetRequirement | None:
    """Return why shares of one GPU are not enough for a job, or None. MIG slices cannot be joined."""
    most = share_milli(kind.shares)
    each_mib = kind.vram_mib // kind.shares
    # its VRAM is its request, beside one GPU
    if kind.vram_pool and job.vram_mib and not job.splits:
        return _unmet_vram(job, kind)
    if job.gpu_milli >= WHOLE_GPU or (kind.sharing is Sharing.MIG and job.gpu_milli > most):
        return UnmetRequirement(
            "gpus", format_gpus(job.gpu_milli), f"shares of {format_gpus(most)}"
        )
    shares = shares_needed(job.gpu_milli, kind.shares)
    if shares > kind.shares:
        return UnmetRequirement(
            "gpus", format_gpus(job.gpu_milli), f"{kind.shares} shares of {format_gpus(most)}"
        )
    if job.vram_mib > shares * each_mib:
        told = (
            f"{each_mib} MiB a share"
            if shares == 1
            else f"{shares * each_mib} MiB in {shares} shares"
        )
        return UnmetRequirement("vram", f"{job.vram_mib} MiB", told)
    return None


def _reserve_violated(job: JobClass, kind: DroneType) -> UnmetRequirement:
    """Return the first resource of which the job would leave the drone's other GPUs less than they keep."""
    for dimension, asked, there, kept, unit in (
        ("cpus", job.cpus, kind.cpus, kind.kept_cpus, ""),
        ("memory", job.memory_mib, kind.memory_mib, kind.kept_memory_mib, " MiB"),
        ("disk", job.disk_mib, kind.disk_mib, kind.kept_disk_mib, " MiB"),
    ):
        if kept and (there - asked) * WHOLE_GPU < kept * (
            kind.gpu_milli - _gpu_milli_taken(job, kind)
        ):
            available = f"{there}{unit}, of which each other GPU keeps {kept}{unit}"
            return UnmetRequirement(dimension, f"{asked}{unit}", available)
    return UnmetRequirement("cpus", str(job.cpus), str(kind.cpus))


def format_gpus(milli: int) -> str:
    return f"{milli / WHOLE_GPU:g}"


def _gpu_milli_taken(job: JobClass, kind: DroneType) -> int:
    """Return what one job takes of a GPU of the type: whole shares, or its part of the VRAM, if the GPU is shared."""
    if kind.vram_pool:
        return pool_milli(job.vram_mib, kind.vram_mib, kind.shares)
    if not 0 < job.gpu_milli < WHOLE_GPU:
        return job.gpu_milli
    if kind.shares == 1:
        return job.gpu_milli if job.splits else min(WHOLE_GPU, kind.gpu_milli)
    return shares_needed(job.gpu_milli, kind.shares) * share_milli(kind.shares)


def request_of(job: JobClass, kind: DroneType) -> Resources:
    """Return what one job of a class takes of a drone."""
    return Resources(_gpu_milli_taken(job, kind), job.cpus, job.memory_mib, job.disk_mib)


def resources_of_type(kind: DroneType) -> Resources:
    return Resources(kind.gpu_milli, kind.cpus, kind.memory_mib, kind.disk_mib or UNKNOWN_DISK_MIB)


def free_resources(slot: Slot) -> Resources:
    return Resources(
        slot.free_gpu_milli,
        slot.free_cpus,
        slot.free_memory_mib,
        slot.free_disk_mib or UNKNOWN_DISK_MIB,
    )


def resources_for_gpu_jobs(slot: Slot, kind: DroneType) -> Resources:
    """Return what is free in a slot for jobs that need its GPU: they preempt jobs with an optional GPU."""
    if not kind.gpu_milli or not slot.only_optional:
        return free_resources(slot)
    offline_milli = slot.gpus_offline * (
        share_milli(kind.shares) if kind.sharing is Sharing.MIG else WHOLE_GPU
    )
    return resources_of_type(kind)._replace(gpu_milli=max(0, kind.gpu_milli - offline_milli))


def lent_resources(slot: Slot, kind: DroneType) -> Resources:
    """Return what jobs with an optional GPU use of a slot, beside what is free in it."""
    free = free_resources(slot)
    most = resources_for_gpu_jobs(slot, kind)
    lent = most.plus(free, -1)
    disk_mib = most.disk_mib if free.disk_mib == UNKNOWN_DISK_MIB else lent.disk_mib
    # What rounding leaves of each GPU is in both parts: :func:`count_jobs` takes it off again.
    rest_milli = kind.gpu_milli // WHOLE_GPU * (WHOLE_GPU - kind.shares * share_milli(kind.shares))
    return lent._replace(gpu_milli=lent.gpu_milli + rest_milli, disk_mib=disk_mib)


def count_jobs(job: JobClass, space: Resources, kind: DroneType) -> int:
    """Return how many jobs of a class a drone of ``kind`` takes at once if ``space`` is free in it.

    Each of its GPUs that is still free then keeps its reserve, as the drone's START requires.
    """
    too_few_gpus = space.gpu_milli < job.gpu_milli and not kind.vram_pool
    if too_few_gpus or space.cpus < job.cpus or space.memory_mib < job.memory_mib:
        return 0  # as nearly always: a plan for a large site asks a hundred thousand times
    need = request_of(job, kind)
    kept = Resources(0, kind.kept_cpus, kind.kept_memory_mib, kind.kept_disk_mib)
    if kind.shares == 1 or kind.vram_pool:
        return count_fits(need, space, kept)
    share = share_milli(kind.shares)
    # What rounding leaves of each GPU is no share, and nothing is kept for it.
    free_shares = (
        max(0, space.gpu_milli - kind.gpu_milli + kind.gpu_milli // WHOLE_GPU * kind.shares * share)
        // share
    )
    space = space._replace(gpu_milli=free_shares * share)
    gpus_free, rest = divmod(free_shares, kind.shares)
    each = shares_needed(job.gpu_milli, kind.shares)
    most = gpus_free * (kind.shares // each) + rest // each  # the shares of one job lie on one GPU
    if need.cpus > 0 or need.memory_mib > 0 or need.disk_mib > 0:  # else the shares alone decide
        most = min(most, count_fits(need._replace(gpu_milli=0), space))
    return limit_by_reserve(most, need, space, kept)


def count_jobs_in_type(job: JobClass, kind: DroneType) -> int:
    """Return how many jobs of a class an empty drone holds."""
    return count_jobs(job, resources_of_type(kind), kind)


# Order of the dimensions: the later the first failure, the nearer the type.
_DIMENSION_ORDER = (
    "server",
    "gpus",
    "vram",
    "capability",
    "driver",
    "cpus",
    "memory",
    "disk",
    "arch",
    "walltime",
)


def nearness(kind: DroneType, bad: UnmetRequirement) -> tuple[int, int, int, int, str]:
    """Return a key that sorts types that do not match, the nearest last."""
    rank = (
        _DIMENSION_ORDER.index(bad.dimension)
        if bad.dimension in _DIMENSION_ORDER
        else len(_DIMENSION_ORDER)
    )
    return (rank, kind.gpu_milli, kind.vram_mib, kind.capability, kind.key)


def nearest(job: JobClass, types: Sequence[DroneType]) -> tuple[TypeKey, UnmetRequirement] | None:
    """Return the type that comes nearest of those that do not match, and its unmet requirement."""
    bad = [(kind, why) for kind in types if (why := unmet_requirement(job, kind)) is not None]
    if not bad:
        return None
    kind, why = max(bad, key=lambda each: nearness(*each))
    return kind.key, why


MAX_CACHES = 2
"""Sets of types and prices cached at once: the running one, and one that somebody tries out beside it."""

_requested_fields = attrgetter(
    *(
        "gpu_milli",
        "splits",
        "vram_mib",
        "capability",
        "driver",
        "cpus",
        "memory_mib",
        "disk_mib",
        "arch",
    ),
    *("walltime_s", "invalid"),
)


@dataclass(frozen=True, slots=True, eq=False)
class CompatibleTypes:
    """Drone types that can run jobs of one shape."""

    kinds: tuple[DroneType, ...]
    """The types in the order of the configuration."""
    jobs: Mapping[TypeKey, int]
    """Number of such jobs that an empty drone of each type takes at once, in the same order."""
    cheapest: tuple[TypeKey, ...]
    """The same types by price per job, then by how little VRAM and capability is left unused."""
    hardness: tuple[int, int, int] = (0, 0, 0)
    """Sort key of placement: shapes with few types first, then those with many GPUs, then those
    with much VRAM."""
    nearest: tuple[TypeKey, UnmetRequirement] | None = None
    """If no type matches: the nearest type and its unmet requirement, unless that depends on the jobs' own ones."""
    keys: frozenset[TypeKey] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", frozenset(self.jobs))

    def only(self, some: Iterable[DroneType]) -> CompatibleTypes:
        """Return the same with only some of the types."""
        kinds = tuple(some)
        jobs = {kind.key: self.jobs[kind.key] for kind in kinds}
        return replace(
            self,
            kinds=kinds,
            jobs=jobs,
            cheapest=tuple(key for key in self.cheapest if key in jobs),
        )


_Shape = tuple[object, ...]
"""Requests of the jobs of a class, and the types that they refuse."""


@define
class CompatibilityCache:
    """The shapes of the newest plan, for one set of types and prices."""

    types: tuple[DroneType, ...]
    site_prices: Mapping[str, float]
    by_key: Mapping[TypeKey, DroneType]
    known: dict[_Shape, CompatibleTypes] = factory(dict)

    def table(self, classes: Iterable[JobClass]) -> Mapping[str, CompatibleTypes]:
        """Return the compatible types of each class, by class id. Shapes without a class are forgotten."""
        found: dict[str, CompatibleTypes] = {}
        now: dict[_Shape, CompatibleTypes] = {}
        for job in classes:
            shape = (*_requested_fields(job), tuple(job.refuses))
            if shape not in now:
                now[shape] = self.known.get(shape) or self._judged(job)
            found[job.id] = now[shape]
        self.known = now or self.known
        return found

    def _judged(self, job: JobClass) -> CompatibleTypes:
        fits = (
            []
            if job.invalid
            else [kind for kind in self.types if unmet_requirement(job, kind) is None]
        )
        # What an empty drone holds none of does not fit, whatever the dimensions say one by one.
        jobs = {kind.key: count for kind in fits if (count := count_jobs_in_type(job, kind)) > 0}
        fits = [kind for kind in fits if kind.key in jobs]
        # the price of a whole drone for an hour, with the site's price factor
        prices = {
            k.key: k.price * self.site_prices.get(k.site, 1.0) * (k.gpu_milli or WHOLE_GPU)
            for k in fits
        }
        ranked = sorted(
            (prices[k.key] / jobs[k.key], k.vram_mib, k.capability, k.key) for k in fits
        )
        return CompatibleTypes(
            kinds=tuple(fits),
            jobs=jobs,
            cheapest=tuple(key for *_, key in ranked),
            hardness=(len(fits), -job.gpu_milli, -job.vram_mib),
            nearest=nearest(job, self.types)
            if not fits and not job.invalid and not job.refuses
            else None,
        )


_caches: deque[CompatibilityCache] = deque(maxlen=MAX_CACHES)


def compatibility_cache(types: tuple[DroneType, ...], policy: Policy) -> CompatibilityCache:
    """Return the cache for these types at the prices of this policy."""
    site_prices = {name: site.price for name, site in policy.sites.items()}
    for known in tuple(_caches):  # others may plan in further threads
        if known.types == types and known.site_prices == site_prices:
            return known
    made = CompatibilityCache(types, site_prices, {kind.key: kind for kind in types})
    _caches.appendleft(made)
    return made
