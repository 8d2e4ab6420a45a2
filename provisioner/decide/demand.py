"""Unmet demand: waiting jobs less what free slots and drones on their way will take, shape by shape.

Supply is kept as *bins*: so many drones of one type with the same room left. Nothing here loops over jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from provisioner.decide.fit import jobs_in, left, need_of, whole
from provisioner.decide.lifetime import DOWNTIME_MARGIN_S, ENDLESS, downtime_at
from provisioner.decide.scene import Scene
from provisioner.decide.space import Space
from provisioner.model import Drone, DroneState, DroneType, JobClass, TypeKey

LATE_S = 600.0
"""A drone that its site expects to start later than this, or that a limit holds there, is no reason not to start
another where there is room now: about what a drone needs from its order to its first job."""


@dataclass(slots=True)
class Bin:
    """``count`` drones of one type, each with the same room left."""

    kind: DroneType
    room: Space
    count: int
    ends_at: float
    on_the_way: bool
    """Not in the pool yet."""
    late: bool = False
    """Its site says that it starts only after a while."""

    def holds(self, job: JobClass, now: float) -> int:
        """Jobs of the class that one of these drones can still take. Remaining life counts: a drone about to leave is
        no supply for a long job (field notes, B 4)."""
        if job.walltime_s and now + job.walltime_s > self.ends_at:
            return 0
        return jobs_in(job, self.room, self.kind)

    def less(self, job: JobClass, jobs: int, count: int) -> Bin:
        """``count`` of these drones with ``jobs`` more jobs in each."""
        return Bin(self.kind, self.room.plus(need_of(job), -jobs), count, self.ends_at, self.on_the_way, self.late)

    @property
    def full(self) -> bool:
        return self.room.gpu_milli <= 0 if self.kind.gpu_milli else self.room.cpus <= 0


def empty(kind: DroneType, count: int, ends_at: float) -> Bin:
    """``count`` drones of a type on their way, with nothing in them."""
    return Bin(kind, whole(kind), count, ends_at, on_the_way=True)


@dataclass(slots=True)
class Taken:
    """What existing supply takes of a class."""

    jobs: int = 0
    drones: int = 0
    """Of those, drones that are not in the pool yet."""


@dataclass(slots=True)
class Ledger:
    """Room left in all drones, by type; :meth:`take` books jobs into it. Mutable, local to one decision."""

    now: float
    bins: dict[TypeKey, list[Bin]] = field(default_factory=dict)
    any_late: bool = False

    @classmethod
    def of(cls, scene: Scene) -> Ledger:
        """What the drones on record can still take. Those asked to leave take nothing."""
        ledger = cls(scene.now)
        groups: dict[tuple[TypeKey, Space, float, bool, bool], int] = {}
        for drone in scene.drones.values():
            room = _room(scene, drone)
            if room is not None:
                key = (drone.type, *room, is_late(scene, drone))
                groups[key] = groups.get(key, 0) + 1
        for (key_of_type, space, ends_at, on_the_way, late), count in groups.items():
            ledger.add(key_of_type, Bin(scene.types[key_of_type], space, count, ends_at, on_the_way, late))
        return ledger

    def add(self, kind: TypeKey, more: Bin) -> None:
        self.bins.setdefault(kind, []).append(more)
        self.any_late = self.any_late or more.late

    def take(self, job: JobClass, jobs: int, kinds: Iterator[TypeKey], *, late: bool = False) -> Taken:
        """Book up to ``jobs`` jobs into drones of the given types; what was booked. ``late``: into those that come
        late, and into no others."""
        taken = Taken()
        if late and not self.any_late:
            return taken
        for kind in kinds:
            bins = self.bins.get(kind)
            if not bins:
                continue
            rest: list[Bin] = []
            for have in bins:
                wanted = jobs - taken.jobs
                each = have.holds(job, self.now) if wanted > 0 and have.late is late else 0
                if each == 0:
                    rest.append(have)
                    continue
                full, partly = divmod(min(wanted, each * have.count), each)
                used = full + (1 if partly else 0)
                taken.jobs += full * each + partly
                taken.drones += used if have.on_the_way else 0
                for count, inside in ((full, each), (1 if partly else 0, partly), (have.count - used, 0)):
                    less = have.less(job, inside, count)
                    if count and not less.full:
                        rest.append(less)
            self.bins[kind] = rest
            if taken.jobs >= jobs:
                break
        return taken

    def untouched(self, kind: DroneType) -> int:
        """Drones of a type on their way that nothing was booked into."""
        return sum(b.count for b in self.bins.get(kind.key, ()) if b.on_the_way and b.room == whole(kind))


_ON_THE_WAY = (DroneState.REQUESTED, DroneState.SUBMITTED, DroneState.QUEUED, DroneState.BOOTING, DroneState.JOINED)


def is_late(scene: Scene, drone: Drone) -> bool:
    """Whether a drone waits at its site, and for a while yet by what the site says: of its start, or of a limit."""
    if drone.state not in (DroneState.SUBMITTED, DroneState.QUEUED):
        return False
    remote = scene.remote(drone)
    return remote is not None and (remote.blocked is not None or remote.expected_start_at > scene.now + LATE_S)


def _room(scene: Scene, drone: Drone) -> tuple[Space, float, bool] | None:
    """Room left in one drone, end of its life, whether it is still on its way."""
    kind = scene.types.get(drone.type)
    if kind is None or drone.goes or drone.notice_at:
        return None
    if drone.state in _ON_THE_WAY or (drone.state is DroneState.IDLE and drone.id not in scene.slots):
        if drone.state is DroneState.QUEUED and drone.started_at:
            return None  # preempted: it does not come back
        # An idle drone that the pool forgot for a while (a collector's restart) still is supply.
        ends_at = drone.started_at + kind.walltime_s if drone.started_at and kind.walltime_s else ENDLESS
        return whole(kind), min(ends_at, downtime_at(scene, drone.site) - DOWNTIME_MARGIN_S), True
    slot = scene.slots.get(drone.id)
    if slot is None or (slot.free_gpu_milli if kind.gpu_milli else slot.free_cpus) <= 0:
        return None
    return left(slot), min(slot.retires_at or ENDLESS, downtime_at(scene, drone.site)), False
