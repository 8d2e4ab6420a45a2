"""What is started for waiting jobs: the cheapest drone type that fits, where GPUs are free now, within every limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from provisioner.decide import fit
from provisioner.decide.demand import Ledger, Taken, empty, is_late
from provisioner.decide.fit import jobs_in_slot, jobs_in_type
from provisioner.decide.guard import OVERLAY
from provisioner.decide.lifetime import cut_s, ends_at, too_short
from provisioner.decide.owner import Ground
from provisioner.decide.room import Room
from provisioner.decide.scene import Placed, Scene
from provisioner.model import (
    WHOLE_GPU,
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
    NothingFits,
    OnTheirWay,
    Reason,
    SiteFull,
    WantedAgain,
)


def place(scene: Scene, ground: Ground, ledger: Ledger) -> Placed:
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
    room = Room.of(scene, ground)
    rank = _rank(scene, room)
    draining = _resumable(scene)
    starts: list[Start] = []
    resumes: list[Drain] = []
    refusals: list[Refusal] = []
    roomless: dict[TypeKey, int] = {}
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
        brief: Reason | None = None
        late = None if ledger.any_late else Taken()
        for kind in _cheapest_first(job, kinds, rank):
            if late is None and not rank[kind.key].sure:
                # From here on a drone might wait as well: those that wait already will do.
                late = ledger.take(job, job.waiting - covered, iter([k.key for k in kinds]), late=True)
                covered += late.jobs
            lack = job.waiting - covered
            if lack <= 0:
                break
            if job.walltime_s and (soon := too_short(scene, kind, job.walltime_s)):
                brief = brief or soon
                continue
            needed = -(-lack // jobs_in_type(job, kind))
            count = min(needed, room.for_type(kind)[0])
            if count < needed:
                short = short or kind
            if count <= 0:
                continue
            reason = JobsWait(job.id, job.waiting, covered, count)
            starts.extend(_starts(scene, kind, job, count, len(starts), reason, uses_reserve=room.on_reserve(kind)))
            room.start(kind, count)
            ledger.add(kind.key, empty(kind, count, ends_at(scene, kind)))
            covered += ledger.take(job, lack, iter([kind.key])).jobs
        if covered < job.waiting and short is not None:
            limit = room.for_type(short)[1]
            if isinstance(limit, SiteFull):
                lack = -(-(job.waiting - covered) // jobs_in_type(job, short))
                roomless[short.key] = roomless.get(short.key, 0) + lack
            if limit is not None:
                refusals.append(Refusal(f"class:{job.id}", job.waiting - covered, limit))
        elif covered < job.waiting and brief is not None:
            refusals.append(Refusal(f"class:{job.id}", job.waiting - covered, brief))
        jobs, drones = (taken.jobs + late.jobs, taken.drones + late.drones) if late else (taken.jobs, taken.drones)
        if jobs:
            refusals.append(Refusal(f"class:{job.id}", jobs, OnTheirWay(jobs, drones)))
    refusals.extend(Refusal(f"site:{s}", 0, r) for s, r in scene.trust.sites.items() if r is not None)
    return Placed(tuple(starts), tuple(resumes), tuple(refusals), roomless)


def _hardest_first(scene: Scene) -> list[JobClass]:
    """Few types fit, many GPUs, much VRAM: those first, or the easy ones take their place; then priority and age."""
    return sorted(
        scene.classes,
        key=lambda c: (len(scene.fits[c.id]), -c.gpu_milli, -c.vram_mib, -c.priority, c.oldest_at, c.id),
    )


@dataclass(frozen=True, slots=True)
class Rank:
    """What of a drone type's cost does not depend on the job."""

    sure: bool
    """One would start now, by all that its site shows."""
    full: bool
    wait_h: int
    """Within how many hours the last of ours that wait there is expected to start; 0 if none is late."""
    price: float
    """Of the whole drone for an hour, with the operator's preference between sites."""
    waste: tuple[int, int, str]
    """VRAM, capability: what a job that does not need them would leave unused; then the key, for a total order."""


def _rank(scene: Scene, room: Room) -> Mapping[TypeKey, Rank]:
    policy = scene.snapshot.policy.sites
    waits = _waits_h(scene)
    ranks = {}
    for kind in scene.snapshot.types:
        site, free = policy.get(kind.site), room.free_for(kind)
        ranks[kind.key] = Rank(
            # What looks free where one of ours waits all the same is kept for somebody else.
            sure=free is not None and free > 0 and kind.key not in waits,
            full=free is not None and free <= 0,
            wait_h=waits.get(kind.key, 0),
            price=kind.price * (site.price if site else 1.0) * (kind.gpu_milli or WHOLE_GPU),
            waste=(kind.vram_mib, kind.capability, kind.key),
        )
    return ranks


def _waits_h(scene: Scene) -> Mapping[TypeKey, int]:
    """By type, within how many hours the site expects the last of ours to start; only where that is late."""
    waits: dict[TypeKey, int] = {}
    for drone in scene.drones.values():
        remote = scene.remote(drone) if is_late(scene, drone) else None
        if remote is not None:
            hours = 1 + max(0, int((remote.expected_start_at - scene.now) // 3600))
            waits[drone.type] = max(waits.get(drone.type, 0), hours)
    return waits


def _cheapest_first(job: JobClass, kinds: Sequence[DroneType], rank: Mapping[TypeKey, Rank]) -> list[DroneType]:
    """By price for one job of the class, then by how little VRAM and capability is left unused. Sites that show free
    GPUs (or do not tell) come before those where the drone would queue, and a short queue before a long one."""

    def cost(kind: DroneType) -> tuple[bool, int, float, tuple[int, int, str]]:
        fixed = rank[kind.key]
        return fixed.full, fixed.wait_h, fixed.price / max(1, jobs_in_type(job, kind)), fixed.waste

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
    scene: Scene, kind: DroneType, job: JobClass, count: int, already: int, reason: JobsWait, *, uses_reserve: bool
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
            cut_s(scene, kind),
            uses_reserve,
        )
        for serial in range(first, first + count)
    ]


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
        room = jobs_in_slot(job, scene.slots[drone.id], scene.types[drone.type]) if drone.type in keys else 0
        if covered < lack and room:
            del draining[drone.id]
            back = replace(drone, state=DroneState.BUSY, since=scene.now, leaving=None, asked_at=0.0, asked=0)
            found.append(Drain(back, drone.state, DrainMode.RESUME, WantedAgain(job.id, job.waiting)))
            covered += room
    return found, covered
