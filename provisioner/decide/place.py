"""What is started for waiting jobs: the cheapest drone type that fits, where GPUs are free now, within every limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from provisioner.decide import fit
from provisioner.decide.demand import ENDLESS, Ledger, empty
from provisioner.decide.fit import jobs_in_slot, jobs_in_type
from provisioner.decide.guard import OVERLAY
from provisioner.decide.scene import Placed, Scene
from provisioner.model import (
    WHOLE_GPU,
    BreakerState,
    Drain,
    DrainMode,
    Drone,
    DroneId,
    DroneState,
    DroneType,
    Fault,
    FaultKind,
    JobClass,
    Refusal,
    Start,
    TypeKey,
)
from provisioner.reasons import (
    AwaitsNegotiation,
    BackingOff,
    BadRequest,
    JobsWait,
    LimitReached,
    NothingFits,
    OnTheirWay,
    Probing,
    Reason,
    SiteDisabled,
    SiteFull,
    WantedAgain,
)

PENDING = (DroneState.REQUESTED, DroneState.SUBMITTED, DroneState.QUEUED, DroneState.BOOTING)


def place(scene: Scene, ledger: Ledger) -> Placed:
    """Go through the classes, hardest to place first, and start what they lack."""
    snapshot = scene.snapshot
    if scene.brake is not None:
        return Placed(refusals=(Refusal("all", len(scene.drones), scene.brake),))
    if scene.trust.overlay is not None:
        return Placed(refusals=(Refusal("all", 0, scene.trust.overlay),))
    outage = scene.breakers.get(OVERLAY)
    if outage is not None and scene.now < outage.until:
        fault = outage.fault or Fault(FaultKind.DOWN, "it was out of sight and settles first", outage.since)
        return Placed(refusals=(Refusal("all", 0, BackingOff(OVERLAY, outage.until, fault.kind.value, fault.message)),))
    room = Room.of(scene)
    rank = _rank(scene)
    draining = _resumable(scene)
    starts: list[Start] = []
    resumes: list[Drain] = []
    refusals: list[Refusal] = []
    for job in _hardest_first(scene):
        if job.fresh:
            refusals.append(Refusal(f"class:{job.id}", job.fresh, AwaitsNegotiation(job.fresh)))
        kinds = scene.fits[job.id]
        if not kinds:
            refusals.append(Refusal(f"class:{job.id}", job.waiting + job.fresh, _never(job, snapshot.types)))
            continue
        if not job.waiting:
            continue
        taken = ledger.take(job, job.waiting, iter([k.key for k in kinds]))
        covered = taken.jobs
        if draining and covered < job.waiting:
            back, room_back = _resume(scene, job, kinds, job.waiting - covered, draining)
            resumes.extend(back)
            covered += room_back
        short: DroneType | None = None  # the best type of which fewer can be started than the jobs need
        for kind in _cheapest_first(job, kinds, rank):
            lack = job.waiting - covered
            if lack <= 0:
                break
            needed = -(-lack // jobs_in_type(job, kind))
            count = min(needed, room.for_type(kind)[0])
            if count < needed:
                short = short or kind
            if count <= 0:
                continue
            reason = JobsWait(job.id, job.waiting, covered, count)
            starts.extend(_starts(scene, kind, job, count, len(starts), reason))
            room.start(kind, count)
            ledger.add(kind.key, empty(kind, count, _ends_at(scene, kind)))
            covered += ledger.take(job, lack, iter([kind.key])).jobs
        if covered < job.waiting and short is not None:
            limit = room.for_type(short)[1]
            if limit is not None:
                refusals.append(Refusal(f"class:{job.id}", job.waiting - covered, limit))
        if taken.jobs:
            refusals.append(Refusal(f"class:{job.id}", taken.jobs, OnTheirWay(taken.jobs, taken.drones)))
    refusals.extend(Refusal(f"site:{s}", 0, r) for s, r in scene.trust.sites.items() if r is not None)
    return Placed(tuple(starts), tuple(resumes), tuple(refusals))


def _hardest_first(scene: Scene) -> list[JobClass]:
    """Few types fit, many GPUs, much VRAM: those first, or the easy ones take their place; then priority and age."""
    return sorted(
        scene.classes,
        key=lambda c: (len(scene.fits[c.id]), -c.gpu_milli, -c.vram_mib, -c.priority, c.oldest_at, c.id),
    )


@dataclass(frozen=True, slots=True)
class Rank:
    """What of a drone type's cost does not depend on the job."""

    full: bool
    price: float
    """Of the whole drone for an hour, with the operator's preference between sites."""
    waste: tuple[int, int, str]
    """VRAM, capability: what a job that does not need them would leave unused; then the key, for a total order."""


def _rank(scene: Scene) -> Mapping[TypeKey, Rank]:
    policy, sites = scene.snapshot.policy.sites, scene.snapshot.sites
    ranks = {}
    for kind in scene.snapshot.types:
        site, reading = policy.get(kind.site), sites.get(kind.site)
        free = reading.view.free if reading and reading.view else None
        ranks[kind.key] = Rank(
            full=free is not None and free.get(kind.name, 0) <= 0,
            price=kind.price * (site.price if site else 1.0) * kind.gpu_milli,
            waste=(kind.vram_mib, kind.capability, kind.key),
        )
    return ranks


def _cheapest_first(job: JobClass, kinds: Sequence[DroneType], rank: Mapping[TypeKey, Rank]) -> list[DroneType]:
    """By price for one job of the class, then by how little VRAM and capability is left unused. Sites that show free
    GPUs (or do not tell) come before those where the drone would queue."""

    def cost(kind: DroneType) -> tuple[bool, float, tuple[int, int, str]]:
        fixed = rank[kind.key]
        return fixed.full, fixed.price / max(1, jobs_in_type(job, kind)), fixed.waste

    return sorted(kinds, key=cost)


def _never(job: JobClass, types: Sequence[DroneType]) -> Reason:
    if job.invalid:
        return BadRequest(job.invalid)
    found = fit.nearest(job, types)
    if found is None:
        return NothingFits("", "type", "any", "no drone type is configured")
    key, why = found
    return NothingFits(key, why.dimension, why.wanted, why.offered)


def _starts(
    scene: Scene, kind: DroneType, job: JobClass, count: int, already: int, reason: JobsWait
) -> list[Start]:
    snapshot = scene.snapshot
    first = snapshot.next_serial + already
    return [
        Start(
            Drone(
                id=DroneId(f"{snapshot.id_prefix}-{serial}"),
                type=kind.key,
                state=DroneState.REQUESTED,
                since=scene.now,
                requested_at=scene.now,
                gpu_milli=kind.gpu_milli,
                for_class=job.id,
            ),
            reason,
            job.vram_mib,
        )
        for serial in range(first, first + count)
    ]


def _ends_at(scene: Scene, kind: DroneType) -> float:
    return scene.now + kind.walltime_s if kind.walltime_s else ENDLESS


def _resumable(scene: Scene) -> dict[DroneId, Drone]:
    """Draining drones that still run something and leave only for want of work: never those that an operator or an
    owner asked to go."""
    return {
        d.id: d
        for d in scene.drones.values()
        if d.state is DroneState.DRAINING
        and d.leaving in (DroneState.DONE, DroneState.MATCHED_NOTHING)
        and d.asked_at
        and d.jobs
        and d.id in scene.slots
        and scene.touchable(d)
    }


def _resume(
    scene: Scene, job: JobClass, kinds: Sequence[DroneType], lack: int, draining: dict[DroneId, Drone]
) -> tuple[list[Drain], int]:
    """Draining drones with room for the class go back into service (and out of ``draining``): cheaper than a start.
    Also for how many jobs they have room."""
    found: list[Drain] = []
    covered = 0
    keys = {k.key for k in kinds}
    for drone in list(draining.values()):
        room = jobs_in_slot(job, scene.slots[drone.id])
        if covered < lack and room and drone.type in keys:
            del draining[drone.id]
            back = replace(drone, state=DroneState.BUSY, since=scene.now, leaving=None, asked_at=0.0, asked=0)
            found.append(Drain(back, drone.state, DrainMode.RESUME, WantedAgain(job.id, job.waiting)))
            covered += room
    return found, covered


@dataclass(slots=True)
class Room:
    """How many more drones each limit allows. Counted on our own record, strays included: asked for and not gone."""

    scene: Scene
    drones: dict[str, int] = field(default_factory=dict)
    """By site, by type key, and ``""`` for all."""
    gpu_milli: dict[str, int] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)
    started: dict[str, int] = field(default_factory=dict)
    probes: dict[str, int] = field(default_factory=dict)
    """Of the pending ones, those asked for since their site or type is probed: what queued there before is no probe."""
    free: dict[str, dict[str, float]] = field(default_factory=dict)
    """By site and type name: what the site shows as free, less what is asked of it now."""
    spent: dict[TypeKey, Reason | None] = field(default_factory=dict)
    """Types of which no more may be started, and why."""

    @classmethod
    def of(cls, scene: Scene) -> Room:
        """Count everything once."""
        room = cls(scene)
        probing = {b.scope: b.since for b in scene.breakers.values() if b.state is BreakerState.PROBING}
        for drone in scene.drones.values():
            room._count(drone.type, drone.site, 1, drone.gpu_milli)
            if drone.state in PENDING:
                room._add(room.pending, 1, drone.site, drone.type)
                asked = [s for s in (drone.site, str(drone.type)) if drone.requested_at >= probing.get(s, ENDLESS)]
                room._add(room.probes, 1, *asked)
        for site, count in scene.strays.items():
            biggest = max((t.gpu_milli for t in scene.snapshot.types if t.site == site), default=0)
            room._count("", site, count, count * biggest)
        for site, reading in scene.snapshot.sites.items():
            if reading.view is not None and reading.view.free is not None:
                room.free[site] = {k: float(v) for k, v in reading.view.free.items()}
        for drone in scene.drones.values():
            # The site's count of free places cannot know yet of an order whose outcome is unknown.
            if drone.state is DroneState.REQUESTED:
                room._occupy(drone.site, drone.type.partition("/")[2], 1)
        return room

    @staticmethod
    def _add(counts: dict[str, int], amount: int, *keys: str) -> None:
        for key in keys:
            counts[key] = counts.get(key, 0) + amount

    def _count(self, kind: str, site: str, count: int, gpu_milli: int) -> None:
        self._add(self.drones, count, *filter(None, (kind,)), site, "")
        self._add(self.gpu_milli, gpu_milli, site, "")

    def _occupy(self, site: str, name: str, count: int) -> None:
        """The types of a site share its hardware: what one takes, all others lose in proportion."""
        free = self.free.get(site)
        if free is None:
            return
        mine = free.get(name, 0.0)
        share = min(1.0, count / mine) if mine > 0 else 1.0
        for other in free:
            free[other] = max(0.0, free[other] - (count if other == name else share * free[other]))

    def start(self, kind: DroneType, count: int) -> None:
        """Book ``count`` starts."""
        self._count(kind.key, kind.site, count, count * kind.gpu_milli)
        self._add(self.pending, count, kind.site, kind.key)
        self._add(self.probes, count, kind.site, kind.key)
        self._add(self.started, count, kind.site, kind.key)
        self._occupy(kind.site, kind.name, count)

    def for_type(self, kind: DroneType) -> tuple[int, Reason | None]:
        """How many of a type may be started now, and which limit says so. Room only shrinks: none left is for good."""
        key = kind.key
        if key in self.spent:
            return 0, self.spent[key]
        count, reason = self._for_type(kind)
        if count == 0:
            self.spent[key] = reason
        return count, reason

    def _for_type(self, kind: DroneType) -> tuple[int, Reason | None]:
        policy = self.scene.snapshot.policy
        site = policy.sites.get(kind.site)
        if site is None or not site.enabled:
            return 0, SiteDisabled(kind.site)
        doubt = self.scene.trust.sites.get(kind.site)
        if doubt is not None:
            return 0, doubt
        key, gpu_milli = kind.key, kind.gpu_milli
        caps = (
            ("max_starts_per_tick", kind.site, self.started, site.max_starts_per_tick, 1),
            ("max_pending", kind.site, self.pending, site.max_pending, 1),
            ("max_drones", key, self.drones, kind.max_drones, 1),
            ("max_drones", kind.site, self.drones, site.max_drones, 1),
            ("max_drones", "", self.drones, policy.max_drones, 1),
            ("max_gpus", kind.site, self.gpu_milli, site.max_gpu_milli, gpu_milli),
            ("max_gpus", "", self.gpu_milli, policy.max_gpu_milli, gpu_milli),
        )
        found: tuple[int, Reason | None] = (1 << 30, None)
        for limit, scope, counts, most, each in caps:
            if most is not None:
                used = counts.get(scope, 0)
                count = max(0, (most - used) // each)
                if count < found[0]:
                    unit = WHOLE_GPU if limit == "max_gpus" else 1
                    found = count, LimitReached(limit, scope or "all sites", used / unit, most / unit)
        if not site.queue_when_full and kind.site in self.free:
            free = int(self.free[kind.site].get(kind.name, 0.0))
            if free < found[0]:
                found = free, SiteFull(key)
        for breaker in (self._breaker(kind.site), self._breaker(key)):
            if breaker is not None and breaker[0] < found[0]:
                found = breaker
        return found

    def _breaker(self, scope: str | TypeKey) -> tuple[int, Reason | None] | None:
        breaker = self.scene.breakers.get(scope)
        if breaker is None:
            return None
        match breaker.state:
            case BreakerState.ACTIVE:
                return None
            case BreakerState.DEGRADED:
                return max(0, 1 - self.started.get(scope, 0)), Probing(scope)
            case BreakerState.PROBING:
                return max(0, 1 - self.probes.get(scope, 0)), Probing(scope)
            case BreakerState.BANNED:
                fault = breaker.fault
                kind, text = (fault.kind.value, fault.message) if fault else ("unknown", "")
                return 0, BackingOff(scope, breaker.until, kind, text)
