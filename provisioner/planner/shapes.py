"""Shapes: what the jobs of a class ask of a drone, whosever they are and however many wait.

Classes of one shape fit the same drone types, so many to a drone and in the same order of price. That is worked out
once for each shape and remembered from one decision to the next, for as long as the types stay as they are: it follows
from shape and types alone, so a decision is the same whether it was remembered or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

from provisioner.model import WHOLE_GPU, DroneType, JobClass, Policy, TypeKey, UnmetRequirement
from provisioner.planner.fit import jobs_in_type, misfit, nearest

_SETTINGS = 2
"""Sets of types and prices remembered at once: what runs, and what somebody tries out beside it."""
MOST_BYTES = 600_000_000
"""Remembered of one of them, about; when it is more, all its shapes are forgotten. Ten thousand shapes have room that
all of five hundred types suit: with more of them than that, each decision would judge all of them anew."""
SPARE_BYTES = 32_000_000
"""Part of these for shapes without a waiting job: such jobs may come again."""
_SHAPE_BYTES, _TYPE_BYTES = 1_000, 100
"""What a shape takes, and each type that suits it or that its jobs refuse, rounded up from what ``tracemalloc`` counts:
46 kB for one that 500 types suit, 17 kB for one that refuses 499 of them, 0.6 kB for one that nothing suits."""

_asks = attrgetter(
    "gpu_milli",
    "splits",
    "vram_mib",
    "capability",
    "driver",
    "cpus",
    "memory_mib",
    "disk_mib",
    "arch",
    "walltime_s",
    "invalid",
)


@dataclass(frozen=True, slots=True, eq=False)
class Suited:
    """What suits the jobs of one shape."""

    kinds: tuple[DroneType, ...]
    """Types that can host them, in the order of the configuration."""
    keys: tuple[TypeKey, ...]
    places: Mapping[TypeKey, int]
    """Where each of them stands in that order."""
    jobs: Mapping[TypeKey, int]
    """How many of them an empty drone of each type takes at once."""
    cheapest: tuple[TypeKey, ...]
    """The same types by price for one job, then by how little VRAM and capability is left unused."""
    hardness: tuple[int, int, int] = (0, 0, 0)
    """Who is placed first: for whom few types will do, then who needs many GPUs, then who needs much VRAM; or the easy
    ones take their place."""
    nearest: tuple[TypeKey, UnmetRequirement] | None = None
    """Where no type can: the one that comes nearest, and why it cannot. None too where that depends on what the jobs'
    own requirements say."""

    def without(self, sites: Collection[str]) -> Suited:
        """The same less the types of these sites."""
        return self._of(tuple(kind for kind in self.kinds if kind.site not in sites))

    def without_types(self, keys: Collection[TypeKey]) -> Suited:
        """Return the same less these types."""
        return self._of(tuple(kind for kind in self.kinds if kind.key not in keys))

    def _of(self, kinds: tuple[DroneType, ...]) -> Suited:
        jobs = {kind.key: self.jobs[kind.key] for kind in kinds}
        return replace(
            self,
            kinds=kinds,
            keys=tuple(jobs),
            places=_places(jobs),
            jobs=jobs,
            cheapest=tuple(key for key in self.cheapest if key in jobs),
        )


def _places(keys: Iterable[TypeKey]) -> Mapping[TypeKey, int]:
    return {key: place for place, key in enumerate(keys)}


_Shape = tuple[object, ...]
"""Requests of the jobs of a class and the types that they refuse, or None."""


def _shape(job: JobClass) -> _Shape:
    return (*_asks(job), frozenset(job.refuses) if job.refuses else None)


def _size(shape: _Shape, found: Suited) -> int:
    refused = shape[-1]
    return _SHAPE_BYTES + _TYPE_BYTES * (len(found.keys) + (len(refused) if isinstance(refused, frozenset) else 0))


@dataclass(slots=True)
class Shapes:
    """All shapes met so far, under one set of types and prices."""

    types: tuple[DroneType, ...]
    site_prices: Mapping[str, float]
    by_key: Mapping[TypeKey, DroneType]
    known: dict[_Shape, Suited] = field(default_factory=dict)
    size: int = 0
    """Bytes that these take, estimated."""

    def table(self, classes: Iterable[JobClass]) -> Mapping[str, Suited]:
        """Return what suits the jobs of each class, by class id. Shapes that none of them has any more are forgotten
        once they take more than :data:`SPARE_BYTES`: jobs whose requests differ each would fill the memory."""
        jobs = list(classes)
        found = {job.id: self.suited(job) for job in jobs}
        if jobs and self.size > SPARE_BYTES:
            now = {shape for job in jobs if (shape := _shape(job)) in self.known}
            size = sum(_size(shape, self.known[shape]) for shape in now)
            if self.size > size + SPARE_BYTES:
                self.known = {shape: suited for shape, suited in self.known.items() if shape in now}
                self.size = size
        return found

    def suited(self, job: JobClass) -> Suited:
        """Return what suits the jobs of a class."""
        shape = _shape(job)
        found = self.known.get(shape)
        if found is None:
            found = self._judged(job)
            self._remember(shape, found)
        return found

    def _remember(self, shape: _Shape, found: Suited) -> None:
        size = _size(shape, found)
        if self.size + size > MOST_BYTES:
            self.known.clear()
            self.size = 0
        self.known[shape] = found
        self.size += size

    def _judged(self, job: JobClass) -> Suited:
        fits = {} if job.invalid else {k: t for k, t in self.by_key.items() if misfit(job, t) is None}
        # What an empty drone holds none of does not fit, whatever the dimensions say one by one.
        jobs = {key: count for key, kind in fits.items() if (count := jobs_in_type(job, kind)) > 0}
        fits = {key: fits[key] for key in jobs}
        ranked = sorted((self._price(k) / jobs[key], k.vram_mib, k.capability, key) for key, k in fits.items())
        return Suited(
            kinds=tuple(fits.values()),
            keys=tuple(fits),
            places=_places(fits),
            jobs=jobs,
            cheapest=tuple(key for *_, key in ranked),
            hardness=(len(fits), -job.gpu_milli, -job.vram_mib),
            nearest=nearest(job, self.types) if not fits and not job.invalid and not job.refuses else None,
        )

    def _price(self, kind: DroneType) -> float:
        """Of a whole drone for an hour, with the operator's preference between sites."""
        return kind.price * self.site_prices.get(kind.site, 1.0) * (kind.gpu_milli or WHOLE_GPU)


_remembered: deque[Shapes] = deque(maxlen=_SETTINGS)


def shapes(types: tuple[DroneType, ...], policy: Policy) -> Shapes:
    """Of these types, at the prices of this policy."""
    site_prices = {name: site.price for name, site in policy.sites.items()}
    for known in _remembered:
        if known.types == types and known.site_prices == site_prices:
            return known
    _remembered.appendleft(Shapes(types, site_prices, {kind.key: kind for kind in types}))
    return _remembered[0]
