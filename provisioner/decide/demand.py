"""Unmet demand: waiting jobs less what free slots and drones on their way will take, shape by shape.

Supply is kept as *bins*: so many drones of one type with the same room left. Nothing here loops over jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from provisioner.decide.fit import UNTOLD_MIB, jobs_in
from provisioner.decide.scene import Scene
from provisioner.model import Drone, DroneState, DroneType, JobClass, TypeKey

ENDLESS = float("inf")


@dataclass(slots=True)
class Bin:
    """``count`` drones of one type, each with the same room left."""

    gpu_milli: int
    cpus: int
    memory_mib: int
    disk_mib: int
    count: int
    ends_at: float
    on_the_way: bool
    """Not in the pool yet."""

    def holds(self, job: JobClass, now: float) -> int:
        """Jobs of the class that one of these drones can still take. Remaining life counts: a drone about to leave is
        no supply for a long job (field notes, B 4)."""
        if job.walltime_s and now + job.walltime_s > self.ends_at:
            return 0
        return jobs_in(job, self.gpu_milli, self.cpus, self.memory_mib, self.disk_mib)

    def less(self, job: JobClass, jobs: int, count: int) -> Bin:
        """``count`` of these drones with ``jobs`` more jobs in each."""
        return Bin(
            self.gpu_milli - jobs * job.gpu_milli,
            self.cpus - jobs * job.cpus,
            self.memory_mib - jobs * job.memory_mib,
            self.disk_mib - jobs * job.disk_mib,
            count,
            self.ends_at,
            self.on_the_way,
        )


def empty(kind: DroneType, count: int, ends_at: float) -> Bin:
    """``count`` drones of a type on their way, with nothing in them."""
    return Bin(
        kind.gpu_milli, kind.cpus, kind.memory_mib, kind.disk_mib or UNTOLD_MIB, count, ends_at, on_the_way=True
    )


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

    @classmethod
    def of(cls, scene: Scene) -> Ledger:
        """What the drones on record can still take. Those asked to leave take nothing."""
        ledger = cls(scene.now)
        groups: dict[tuple[TypeKey, int, int, int, int, float, bool], int] = {}
        for drone in scene.drones.values():
            room = _room(scene, drone)
            if room is not None:
                key = (drone.type, *room)
                groups[key] = groups.get(key, 0) + 1
        for (kind, gpu, cpus, memory, disk, ends_at, on_the_way), count in groups.items():
            ledger.add(kind, Bin(gpu, cpus, memory, disk, count, ends_at, on_the_way))
        return ledger

    def add(self, kind: TypeKey, more: Bin) -> None:
        self.bins.setdefault(kind, []).append(more)

    def take(self, job: JobClass, jobs: int, kinds: Iterator[TypeKey]) -> Taken:
        """Book up to ``jobs`` jobs into drones of the given types; what was booked."""
        taken = Taken()
        for kind in kinds:
            bins = self.bins.get(kind)
            if not bins:
                continue
            rest: list[Bin] = []
            for have in bins:
                wanted = jobs - taken.jobs
                each = have.holds(job, self.now) if wanted > 0 else 0
                if each == 0:
                    rest.append(have)
                    continue
                full, partly = divmod(min(wanted, each * have.count), each)
                used = full + (1 if partly else 0)
                taken.jobs += full * each + partly
                taken.drones += used if have.on_the_way else 0
                for count, inside in ((full, each), (1 if partly else 0, partly), (have.count - used, 0)):
                    left = have.less(job, inside, count)
                    if count and left.gpu_milli > 0:
                        rest.append(left)
            self.bins[kind] = rest
            if taken.jobs >= jobs:
                break
        return taken

    def untouched(self, kind: DroneType) -> int:
        """Drones of a type on their way that nothing was booked into."""
        return sum(b.count for b in self.bins.get(kind.key, ()) if b.on_the_way and b.gpu_milli == kind.gpu_milli)


_ON_THE_WAY = (DroneState.REQUESTED, DroneState.SUBMITTED, DroneState.QUEUED, DroneState.BOOTING, DroneState.JOINED)


def _room(scene: Scene, drone: Drone) -> tuple[int, int, int, int, float, bool] | None:
    """Room left in one drone: GPUs, CPUs, RAM, disk, end of life, whether it is still on its way."""
    kind = scene.types.get(drone.type)
    if kind is None or drone.leaving is not None:
        return None
    if drone.state in _ON_THE_WAY or (drone.state is DroneState.IDLE and drone.id not in scene.slots):
        if drone.state is DroneState.QUEUED and drone.started_at:
            return None  # preempted: it does not come back
        # An idle drone that the pool forgot for a while (a collector's restart) still is supply.
        ends_at = drone.started_at + kind.walltime_s if drone.started_at and kind.walltime_s else ENDLESS
        return kind.gpu_milli, kind.cpus, kind.memory_mib, kind.disk_mib or UNTOLD_MIB, ends_at, True
    slot = scene.slots.get(drone.id)
    if slot is None or slot.free_gpu_milli <= 0:
        return None
    return (
        *(slot.free_gpu_milli, slot.free_cpus, slot.free_memory_mib, slot.free_disk_mib or UNTOLD_MIB),
        slot.retires_at or ENDLESS,
        False,
    )
