"""Supply: free room in existing drones, on their way or in the pool, that covers waiting jobs shape by shape.

Drones of one type with the same free room are counted together; nothing here loops over jobs. A drone without a job so
far first counts for the class that it was started for, as long as jobs of that class wait. Otherwise it would cover an
older class that is not worth a start, and the next tick would start another drone for the same jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from provisioner.model import ON_THE_WAY, Drone, DroneState, DroneType, JobClass, TypeKey
from provisioner.planner.context import DOWNTIME_MARGIN_S, NO_END, PlanningContext, downtime_at
from provisioner.planner.matching import (
    CompatibleTypes,
    Resources,
    count_jobs,
    free_resources,
    request_of,
    resources_of_type,
)
from provisioner.planner.risk import is_excluded


class SlotShape(NamedTuple):
    """Everything of drone slots but their type and count."""

    room: Resources
    """Free room in each drone."""
    ends_at: float
    on_the_way: bool
    """Not in the pool yet."""
    late: bool = False
    """They wait at their site and will not start soon (:func:`context.delayed_drones`)."""
    avoids: str = ""
    """Users whose jobs they refuse, as on their records."""


@dataclass(slots=True)
class DroneSlots:
    """Free slots in ``count`` drones of one type."""

    kind: DroneType
    shape: SlotShape
    count: int

    def holds(self, job: JobClass, now: float) -> int:
        """Return how many jobs of the class one of these drones can still take.

        A drone that is about to end is no supply for a long job (field notes, B 4).
        """
        shape = self.shape
        too_long = job.walltime_s and now + job.walltime_s > shape.ends_at
        if too_long or is_excluded(job.owner, shape.avoids):
            return 0
        return count_jobs(job, shape.room, self.kind)

    def fill(self, job: JobClass, jobs: int, each: int) -> list[DroneSlots]:
        """Put ``jobs`` jobs into these drones, ``each`` to a drone, and return the slots that are left."""
        full, partly = divmod(jobs, each)
        touched = [self._less(job, each, full)] if full else []
        if partly:
            touched.append(self._less(job, partly, 1))
        self.count -= -(-jobs // each)
        return [part for part in (*touched, self) if part.count and not part.full]

    def _less(self, job: JobClass, jobs: int, count: int) -> DroneSlots:
        """Return the slots of ``count`` of these drones with ``jobs`` more jobs in each."""
        room = self.shape.room.plus(request_of(job, self.kind), -jobs)
        return DroneSlots(self.kind, self.shape._replace(room=room), count)

    @property
    def full(self) -> bool:
        return (self.shape.room.gpu_milli if self.kind.gpu_milli else self.shape.room.cpus) <= 0


class Coverage(NamedTuple):
    """Jobs of a class that the supply covers."""

    jobs: int = 0
    drones: int = 0
    """Drones for them that are not in the pool yet."""

    def plus(self, more: Coverage) -> Coverage:
        """Return the sum of both."""
        return Coverage(self.jobs + more.jobs, self.drones + more.drones)


NO_COVERAGE = Coverage()


@dataclass(slots=True)
class Supply:
    """Free slots of all drones by type. Mutable, local to one plan; :meth:`take` books jobs."""

    now: float
    slots: dict[TypeKey, list[DroneSlots]] = field(default_factory=dict)
    late: set[TypeKey] = field(default_factory=set)
    """Types with slots in delayed drones."""
    own: dict[str, Coverage] = field(default_factory=dict)
    """By class id: jobs that are booked into drones that were started for them."""

    @classmethod
    def of(cls, context: PlanningContext) -> Supply:
        """Collect the slots of the drones on record. Drones that leave offer none."""
        supply = cls(context.now)
        wanted = {job.id: job.waiting for job in context.classes if job.waiting > 0}
        groups: Counter[tuple[str, TypeKey, SlotShape]] = Counter()
        empties = {key: resources_of_type(kind) for key, kind in context.types.items()}
        downtimes = {site: downtime_at(context, site) for site in {kind.site for kind in context.types.values()}}
        for drone in context.changing.values():
            shape = _slot_shape(context, drone, empties, downtimes)
            if shape is not None:
                own = not shape.late and not drone.jobs_started and not drone.jobs and drone.for_class in wanted
                groups[drone.for_class if own else "", drone.type, shape] += 1
        jobs = {job.id: job for job in context.classes if job.id in wanted}
        shared: Counter[tuple[TypeKey, SlotShape]] = Counter()
        for (for_class, key, shape), count in groups.items():
            parts = [DroneSlots(context.types[key], shape, count)]
            if for_class:
                parts = supply._book_own(jobs[for_class], context.compatible[for_class], wanted, parts[0])
            for part in parts:
                shared[key, part.shape] += part.count
        for (key, shape), count in shared.items():
            supply.add(DroneSlots(context.types[key], shape, count))
        return supply

    def _book_own(
        self, job: JobClass, compatible: CompatibleTypes, wanted: dict[str, int], stock: DroneSlots
    ) -> list[DroneSlots]:
        """Book jobs of a class into drones that were started for it, and return the slots that are left."""
        fits = stock.kind.key in compatible.jobs and wanted[job.id] > 0
        each = stock.holds(job, self.now) if fits else 0
        if not each:
            return [stock]
        here = min(wanted[job.id], each * stock.count)
        wanted[job.id] -= here
        taken = Coverage(here, -(-here // each) if stock.shape.on_the_way else 0)
        self.own[job.id] = self.own.get(job.id, NO_COVERAGE).plus(taken)
        return stock.fill(job, here, each)

    def take_own(self, job: JobClass, jobs: int) -> Coverage:
        """Return the part of up to ``jobs`` jobs that is booked into drones started for the class; count it once."""
        own = self.own.pop(job.id, NO_COVERAGE)
        if own.jobs <= jobs:
            return own
        taken = Coverage(jobs, own.drones * jobs // own.jobs)
        self.own[job.id] = Coverage(own.jobs - taken.jobs, own.drones - taken.drones)
        return taken

    def add(self, more: DroneSlots) -> None:
        self.slots.setdefault(more.kind.key, []).append(more)
        if more.shape.late:
            self.late.add(more.kind.key)

    def take(
        self, job: JobClass, compatible: CompatibleTypes, jobs: int, key: TypeKey | None = None, *, late: bool = False
    ) -> Coverage:
        """Book up to ``jobs`` jobs into compatible drones, or into those of the type ``key``.

        With ``late`` only delayed drones are used, else only the others.
        """
        booked, drones = 0, 0
        for kind in (key,) if key else _stocked_types(self.late if late else self.slots.keys(), compatible):
            rest: list[DroneSlots] = []
            for have in self.slots.get(kind, ()):
                wanted = jobs - booked
                each = have.holds(job, self.now) if wanted > 0 and have.shape.late is late else 0
                if each:
                    here = min(wanted, each * have.count)
                    booked += here
                    drones += -(-here // each) if have.shape.on_the_way else 0
                    rest += have.fill(job, here, each)
                else:
                    rest.append(have)
            if rest:
                self.slots[kind] = rest
            else:
                self.slots.pop(kind, None)
            if late and not any(have.shape.late for have in rest):
                self.late.discard(kind)
            if booked >= jobs:
                break
        return Coverage(booked, drones) if booked else NO_COVERAGE

    def untouched(self, kind: DroneType) -> int:
        """Return the number of drones of a type on their way that no job is booked into."""
        empty, stocked = resources_of_type(kind), self.slots.get(kind.key, ())
        return sum(each.count for each in stocked if each.shape.on_the_way and each.shape.room == empty)


def _stocked_types(stocked: Set[TypeKey], compatible: CompatibleTypes) -> Sequence[TypeKey]:
    """Return the compatible types among those with slots, in the order of the configuration."""
    here = compatible.jobs.keys() & stocked if stocked else ()
    return [key for key in compatible.jobs if key in here] if here else ()


def _slot_shape(
    context: PlanningContext, drone: Drone, empties: Mapping[TypeKey, Resources], downtimes: Mapping[str, float]
) -> SlotShape | None:
    """Return the free slots of one drone; None if it is no supply.

    ``empties`` holds the resources of an empty drone by type, ``downtimes`` the next downtime by site.
    """
    kind = context.types.get(drone.type)
    if kind is None or drone.goes or drone.notice_at:
        return None
    late = drone.id in context.late
    if drone.state in ON_THE_WAY or (drone.state is DroneState.IDLE and drone.id not in context.slots):
        if drone.state is DroneState.QUEUED and drone.started_at:
            return None  # preempted: it does not come back
        # An idle drone that the pool forgot for a while (a collector's restart) still is supply.
        ends_at = drone.started_at + kind.longest_job_s if drone.started_at and kind.walltime_s else NO_END
        ends_at = min(ends_at, downtimes[kind.site] - DOWNTIME_MARGIN_S)
        return SlotShape(empties[drone.type], ends_at, on_the_way=True, late=late, avoids=drone.avoids)
    slot = context.slots.get(drone.id)
    if slot is None or (slot.free_gpu_milli if kind.gpu_milli else slot.free_cpus) <= 0:
        return None
    ends_at = min(slot.retires_at or NO_END, downtimes[kind.site])
    return SlotShape(free_resources(slot), ends_at, on_the_way=False, late=late, avoids=drone.avoids)
