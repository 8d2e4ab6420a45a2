"""What is started for waiting jobs: the cheapest drone type that fits, where GPUs are free now, within every limit."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from provisioner.model import (
    Drone,
    DroneId,
    DroneState,
    Fault,
    FaultKind,
    JobClass,
    Refusal,
    Start,
    TypeKey,
    class_scope,
)
from provisioner.planner import fit, warm
from provisioner.planner.avoids import Avoiding
from provisioner.planner.demand import NONE_TAKEN, Ledger, Taken, empty
from provisioner.planner.exposed import Exposure
from provisioner.planner.fairness import Shares
from provisioner.planner.guard import OVERLAY
from provisioner.planner.headroom import PREFIX, is_virtual
from provisioner.planner.lifetime import cut_s, ends_at, too_short
from provisioner.planner.orders import Orders
from provisioner.planner.owner import Ground
from provisioner.planner.resume import Returning
from provisioner.planner.risk import Risk
from provisioner.planner.room import Room
from provisioner.planner.scene import Placed, Scene
from provisioner.planner.shapes import Suited
from provisioner.planner.worth import Serving, Waiting, worthwhile
from provisioner.reasons import (
    AwaitingNegotiation,
    BackingOff,
    BadRequest,
    DemandCovered,
    GpusStranded,
    HeadroomShort,
    HeadroomYields,
    JobsWaiting,
    LimitReached,
    NothingFits,
    OwnerWaits,
    PoolLimit,
    Probing,
    Reason,
    SiteFull,
    SiteQuota,
)

_ROOMLESS = (SiteFull, GpusStranded)


def place(scene: Scene, ground: Ground, ledger: Ledger) -> Placed:
    """Go through the classes, hardest to place first, and start what they lack; headroom comes last."""
    blind = _blind(scene)
    if blind is not None:
        return Placed(refusals=(blind,))
    shares = Shares.of(scene)
    turns = Turns(scene, ground, ledger, shares)
    for job in shares.in_turn(scene):
        turns.serve(job, scene.suited[job.id])
    pressed = warm.pressed(scene, turns.refusals, ground.claimed)
    for job in scene.headroom:
        turns.warm_up(job, scene.suited[job.id], pressed)
    doubts = (Refusal(f"site:{site}", 0, why) for site, why in scene.trust.sites.items() if why is not None)
    refusals = (*turns.refusals, *doubts)
    exposed = turns.exposure.most_exposed()
    return Placed(tuple(turns.starts), tuple(turns.returning.asked), refusals, turns.roomless, pressed, exposed)


def _blind(scene: Scene) -> Refusal | None:
    """Why nothing at all is started."""
    if scene.brake is not None:
        return Refusal("all", len(scene.drones), scene.brake)
    if scene.trust.overlay is not None:
        return Refusal("all", 0, scene.trust.overlay)
    outage = scene.breakers.get(OVERLAY)
    if outage is not None and scene.now < outage.until:
        fault = outage.fault or Fault(FaultKind.DOWN, "it was out of sight and settles first", outage.since)
        return Refusal("all", 0, BackingOff(OVERLAY, outage.until, fault.kind.value, fault.message))
    return None


@dataclass
class Turns:
    """What the classes that had their turn have got. Mutable, local to one decision."""

    scene: Scene
    ground: Ground
    ledger: Ledger
    shares: Shares
    starts: list[Start] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    roomless: dict[TypeKey, int] = field(default_factory=dict)

    # Most ticks need not all of these: where nothing waits none, where nothing can start no more than the first two.

    @cached_property
    def returning(self) -> Returning:
        return Returning.of(self.scene, self.exposure)

    @cached_property
    def exposure(self) -> Exposure:
        return Exposure(self.scene, self._safer)

    @cached_property
    def room(self) -> Room:
        return Room.of(self.scene, self.ground)

    @cached_property
    def orders(self) -> Orders:
        return Orders.of(self.scene, self.room)

    @cached_property
    def waiting(self) -> Waiting:
        return Waiting.of(self.scene)

    @cached_property
    def serving(self) -> Serving:
        return Serving(self.scene)

    @cached_property
    def risk(self) -> Risk:
        return Risk.of(self.scene)

    @cached_property
    def avoiding(self) -> Avoiding:
        return Avoiding(self.scene, self.risk, self._safer)

    def serve(self, job: JobClass, suited: Suited) -> None:
        """Give jobs of a class what their group is entitled to."""
        if job.fresh:
            self._refuse(job, job.fresh, AwaitingNegotiation(job.fresh))
        if job.limited:
            self._refuse(job, job.limited, PoolLimit(job.limit))
        if not suited.kinds:
            self._refuse(job, job.waiting + job.fresh, self._never(job, suited))
            return
        entitled, over = self.shares.entitled(job)
        if over is not None:
            self._refuse(job, job.waiting - entitled, over)
            job = replace(job, waiting=entitled)
        if job.waiting:
            self._cover(job, suited)

    def warm_up(self, job: JobClass, suited: Suited, pressed: Collection[str]) -> None:
        """Give headroom what no job has taken, but nothing of a site that is ``pressed``."""
        if suited.kinds and not (suited := suited.without(pressed)).kinds:
            self._refuse(job, job.waiting, HeadroomYields(job.id.removeprefix(PREFIX), job.waiting))
        else:
            self.serve(job, suited)

    def _cover(self, job: JobClass, suited: Suited) -> None:
        """With drones that are there, then with some taken back, then with new ones."""
        taken = self.ledger.take_own(job, job.waiting)
        taken = taken.plus(self.ledger.take(job, suited, job.waiting - taken.jobs))
        covered = taken.jobs
        if covered < job.waiting and self.returning.draining:
            covered += self.returning.take(job, suited, job.waiting - covered)
        if covered < job.waiting:
            covered, late = self._start(job, suited, covered)
            taken = taken.plus(late) if late.jobs else taken
        self.shares.book(job, min(covered, job.waiting))
        if taken.jobs:
            self._refuse(job, taken.jobs, DemandCovered(taken.jobs, taken.drones))

    def _start(self, job: JobClass, suited: Suited, covered: int) -> tuple[int, Taken]:
        """Start drones for jobs that are not ``covered``, as far as that is worth it: how many are covered then, and
        what of that drones take that come late."""
        held_back: Reason | None
        enough, held_back = worthwhile(self.scene, job, job.waiting - covered, self.serving)
        wanted, any_late, late = covered + enough, bool(self.ledger.late), NONE_TAKEN
        for key in self._candidates(suited, any_late=any_late):
            if any_late and key not in self.orders.sure:
                # From here on a drone might wait as well: those that wait already will do.
                late = self.ledger.take(job, suited, job.waiting - covered, late=True)
                covered, any_late = covered + late.jobs, False
            lack = wanted - covered
            if lack <= 0:
                break
            count, why = self._allowed(job, suited, key, lack)
            held_back = held_back or why
            if count:
                self._order(job, key, count, covered)
                covered += self.ledger.take(job, suited, lack, key).jobs
        if covered < job.waiting:
            self._fall_short(job, suited, job.waiting - covered, held_back)
        return covered, late

    def _candidates(self, suited: Suited, *, any_late: bool) -> Collection[TypeKey]:
        """Types in the order in which they are asked for: open ones, and where those that come late have their turn."""
        if not any_late and suited.places.keys().isdisjoint(self.room.open):  # as for most classes, once all is full
            return ()
        return self.orders.for_jobs(suited).open(self.room)

    def _allowed(self, job: JobClass, suited: Suited, key: TypeKey, lack: int) -> tuple[int, Reason | None]:
        """How many drones of a type are started for so many jobs, and what keeps us from it that is no limit."""
        kind = self.scene.types[key]
        if job.walltime_s and too_short(self.scene, kind, job.walltime_s):
            return 0, None
        count = min(-(-lack // suited.jobs[key]), self.room.for_type(key)[0])
        if count <= 0:
            return 0, None
        tried = self.scene.trials.probing.get(job.id, {}).get(key)
        probing = Probing(class_scope(key, job.id)) if tried is not None else None
        if tried is not None:  # one drone, until it has shown that the pool gives it such jobs
            count = min(count, 1 - tried)
        if count <= 0:
            return 0, probing
        dear = self.waiting.too_dear(job, kind, suited.keys, lack)
        if dear is not None:
            return 0, dear
        allowed, risk = self.risk.allowed(job, kind, count, safer=self._safer(suited))
        return allowed, risk or probing

    def _safer(self, suited: Suited) -> bool:
        """Whether drones for such jobs may also come, now or once there is room, to where nobody takes their place."""
        safe = (key for key, kind in zip(suited.keys, suited.kinds, strict=True) if not self.risk.bears(kind))
        return any(_passes(self.room.for_type(key)[1]) for key in safe)

    def _order(self, job: JobClass, key: TypeKey, count: int, covered: int) -> None:
        """Start ``count`` drones of a type for a class of which ``covered`` jobs have theirs."""
        kind = self.scene.types[key]
        reason: Reason = JobsWaiting(job.id, job.waiting, covered, count)
        vram_mib = job.vram_mib
        if is_virtual(job.id):  # a warm drone is for whoever comes
            reason, vram_mib = HeadroomShort(job.id.removeprefix(PREFIX), job.waiting, covered, count), 0
        life_s, on_reserve = cut_s(self.scene, kind), self.room.on_reserve(kind)
        self.risk.book(kind, count)
        avoids = self.avoiding.of_drones_for(job, kind)
        drones = self._requested(key, count, job.id, avoids)
        self.starts += [Start(drone, reason, vram_mib, life_s, on_reserve) for drone in drones]
        self.room.start(key, count)
        self.ledger.add(key, empty(kind, count, ends_at(self.scene, kind), avoids))

    def _requested(self, key: TypeKey, count: int, class_id: str, avoids: str) -> Iterator[Drone]:
        snapshot, kind = self.scene.snapshot, self.scene.types[key]
        first = snapshot.next_serial + len(self.starts)
        for serial in range(first, first + count):
            yield Drone(
                id=DroneId(f"{snapshot.id_prefix}-{serial}"),
                type=key,
                state=DroneState.REQUESTED,
                since=snapshot.now,
                requested_at=snapshot.now,
                gpu_milli=kind.gpu_milli,
                for_class=class_id,
                avoids=avoids,
            )

    def _fall_short(self, job: JobClass, suited: Suited, lack: int, held_back: Reason | None) -> None:
        """``lack`` jobs of a class get no drone. The limit that keeps them from it is told of the best type."""
        key = self.orders.for_jobs(suited).keys[0]
        if job.walltime_s:
            key, limit = self._long_enough(job, suited)
        else:
            limit = self.room.for_type(key)[1]
        why = held_back or limit
        if why is not None:
            self._refuse(job, lack, why)
        if isinstance(why, _ROOMLESS) and not is_virtual(job.id):
            self.roomless[key] = self.roomless.get(key, 0) - (-lack // suited.jobs[key])

    def _long_enough(self, job: JobClass, suited: Suited) -> tuple[TypeKey, Reason | None]:
        """The best type whose drones live long enough, and its limit; where none does, the best of all, and why not."""
        keys = self.orders.for_jobs(suited).keys
        brief: Reason | None = None
        for key in keys:
            soon = too_short(self.scene, self.scene.types[key], job.walltime_s)
            if soon is None:
                return key, self.room.for_type(key)[1]
            brief = brief or soon
        return keys[0], brief

    def _never(self, job: JobClass, suited: Suited) -> Reason:
        if job.invalid:
            return BadRequest(job.invalid)
        unmatched = self.scene.trials.why(job.id)
        if unmatched is not None:
            return unmatched
        found = suited.nearest or fit.nearest(job, self.scene.snapshot.types)
        if found is None:
            return NothingFits("", "type", "any", "no drone type is configured")
        key, why = found
        return NothingFits(key, why.dimension, why.wanted, why.offered)

    def _refuse(self, job: JobClass, count: int, why: Reason) -> None:
        self.refusals.append(Refusal(f"class:{job.id}", count, why))


def _passes(why: Reason | None) -> bool:
    """Whether what keeps a type from being started passes without anybody's doing."""
    match why:
        case None | SiteFull() | SiteQuota() | GpusStranded() | OwnerWaits():
            return True
        case LimitReached(allowed=allowed):
            return allowed > 0
        case _:
            return False
