"""What is started for waiting jobs: the cheapest drone type that fits, where GPUs are free now, within every limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from provisioner.decide import fit
from provisioner.decide.demand import ENDLESS, Ledger, empty
from provisioner.decide.fit import jobs_in
from provisioner.decide.scene import Placed, Scene
from provisioner.model import (
    BreakerState,
    Drain,
    DrainMode,
    Drone,
    DroneId,
    DroneState,
    DroneType,
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
    if scene.trust.overlay is not None:
        return Placed(refusals=(Refusal("all", 0, scene.trust.overlay),))
    room = Room.of(scene)
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
        back = _resume(scene, job, kinds, job.waiting - taken.jobs, {d.drone.id for d in resumes})
        resumes.extend(back)
        covered = taken.jobs + sum(_holds(job, scene.types[d.drone.type]) for d in back)
        why_not: Reason | None = None
        for kind in _cheapest_first(scene, job, kinds):
            lack = job.waiting - covered
            if lack <= 0:
                break
            each = _holds(job, kind)
            allowed, limit = room.for_type(kind)
            count = min(-(-lack // each), allowed)
            if count < -(-lack // each):
                why_not = why_not or limit
            if count <= 0:
                continue
            reason = JobsWait(job.id, job.waiting, covered, count)
            starts.extend(_starts(scene, kind, job, count, len(starts), reason))
            room.start(kind, count)
            ledger.add(kind.key, empty(kind, count, _ends_at(scene, kind)))
            covered += ledger.take(job, lack, iter([kind.key])).jobs
        if covered < job.waiting and why_not is not None:
            refusals.append(Refusal(f"class:{job.id}", job.waiting - covered, why_not))
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


def _cheapest_first(scene: Scene, job: JobClass, kinds: Sequence[DroneType]) -> list[DroneType]:
    """By price for one job of the class, then by how little VRAM and capability is left unused. Sites that show free
    GPUs (or do not tell) come before those where the drone would queue."""
    policy = scene.snapshot.policy

    def cost(kind: DroneType) -> tuple[bool, float, int, int, str]:
        site = policy.sites.get(kind.site)
        price = kind.price * (site.price if site else 1.0) * kind.gpu_milli / max(1, _holds(job, kind))
        reading = scene.snapshot.sites.get(kind.site)
        free = reading.view.free if reading and reading.view else None
        return (free is not None and free.get(kind.name, 0) <= 0, price, kind.vram_mib, kind.capability, kind.key)

    return sorted(kinds, key=cost)


def _holds(job: JobClass, kind: DroneType) -> int:
    whole = empty(kind, 1, ENDLESS)
    return jobs_in(job, whole.gpu_milli, whole.cpus, whole.memory_mib, whole.disk_mib)


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
        )
        for serial in range(first, first + count)
    ]


def _ends_at(scene: Scene, kind: DroneType) -> float:
    return scene.now + kind.walltime_s if kind.walltime_s else ENDLESS


def _resume(
    scene: Scene, job: JobClass, kinds: Sequence[DroneType], lack: int, already: set[DroneId]
) -> list[Drain]:
    """Draining drones that still run something and have room for the class go back into service: cheaper than any
    start. Only those that leave for want of work, never those that an operator or an owner asked to go."""
    found: list[Drain] = []
    keys = {k.key for k in kinds}
    for drone in scene.drones.values():
        if lack <= 0:
            break
        slot = scene.slots.get(drone.id)
        if (
            drone.state is not DroneState.DRAINING
            or drone.leaving not in (DroneState.DONE, DroneState.MATCHED_NOTHING)
            or not drone.asked_at
            or drone.type not in keys
            or drone.id in already
            or not scene.touchable(drone)
            or slot is None
            or not drone.jobs
        ):
            continue
        room = jobs_in(job, slot.free_gpu_milli, slot.free_cpus, slot.free_memory_mib, slot.free_disk_mib)
        if room:
            back = replace(drone, state=DroneState.BUSY, since=scene.now, leaving=None, asked_at=0.0, asked=0)
            found.append(Drain(back, drone.state, DrainMode.RESUME, WantedAgain(job.id, job.waiting)))
            lack -= room
    return found


@dataclass(slots=True)
class Room:
    """How many more drones each limit allows. Counted on our own record, strays included: asked for and not gone."""

    scene: Scene
    drones: dict[str, int] = field(default_factory=dict)
    """By site, by type key, and ``""`` for all."""
    gpu_milli: dict[str, int] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)
    started: dict[str, int] = field(default_factory=dict)
    free: dict[str, dict[str, float]] = field(default_factory=dict)
    """By site and type name: what the site shows as free, less what is asked of it now."""

    @classmethod
    def of(cls, scene: Scene) -> Room:
        """Count everything once."""
        room = cls(scene)
        for drone in scene.drones.values():
            room._count(drone.type, drone.site, 1, drone.gpu_milli)
            if drone.state in PENDING:
                room._add(room.pending, 1, drone.site, drone.type)
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
        self._add(self.started, count, kind.site, kind.key)
        self._occupy(kind.site, kind.name, count)

    def for_type(self, kind: DroneType) -> tuple[int, Reason | None]:
        """How many of a type may be started now, and which limit says so."""
        allowed: tuple[int, Reason | None] = (1 << 30, None)
        for count, reason in self._limits(kind):
            if count < allowed[0]:
                allowed = (max(0, count), reason)
        return allowed

    def _limits(self, kind: DroneType) -> list[tuple[int, Reason | None]]:
        policy = self.scene.snapshot.policy
        site = policy.sites.get(kind.site)
        if site is None or not site.enabled:
            return [(0, SiteDisabled(kind.site))]
        doubt = self.scene.trust.sites.get(kind.site)
        found: list[tuple[int, Reason | None]] = [] if doubt is None else [(0, doubt)]
        found += [g for scope in (kind.site, kind.key) if (g := self._breaker(scope)) is not None]
        found += [
            self._cap("max_starts_per_tick", kind.site, self.started, site.max_starts_per_tick),
            self._cap("max_pending", kind.site, self.pending, site.max_pending),
            self._cap("max_drones", kind.key, self.drones, kind.max_drones),
            self._cap("max_drones", kind.site, self.drones, site.max_drones),
            self._cap("max_drones", "", self.drones, policy.max_drones),
            self._cap("max_gpus", kind.site, self.gpu_milli, site.max_gpu_milli, kind.gpu_milli),
            self._cap("max_gpus", "", self.gpu_milli, policy.max_gpu_milli, kind.gpu_milli),
        ]
        free = self.free.get(kind.site)
        if free is not None and not site.queue_when_full:
            found.append((int(free.get(kind.name, 0.0)), SiteFull(kind.key)))
        return found

    def _cap(
        self, limit: str, scope: str, counts: Mapping[str, int], allowed: int | None, each: int = 1
    ) -> tuple[int, Reason | None]:
        if allowed is None:
            return 1 << 30, None
        used = counts.get(scope, 0)
        unit = 1000 if limit == "max_gpus" else 1
        reason = LimitReached(limit, scope or "all sites", used / unit, allowed / unit)
        return (allowed - used) // max(1, each), reason

    def _breaker(self, scope: str | TypeKey) -> tuple[int, Reason | None] | None:
        breaker = self.scene.breakers.get(scope)
        if breaker is None:
            return None
        match breaker.state:
            case BreakerState.ACTIVE:
                return None
            case BreakerState.DEGRADED:
                return 1 - self.started.get(scope, 0), Probing(scope)
            case BreakerState.PROBING:
                return 1 - self.pending.get(scope, 0), Probing(scope)
            case BreakerState.BANNED:
                fault = breaker.fault
                kind, text = (fault.kind.value, fault.message) if fault else ("unknown", "")
                return 0, BackingOff(scope, breaker.until, kind, text)
