"""Unmet demand: waiting jobs less what free slots and drones on their way will take, shape by shape.

Supply is kept as *bins*: so many drones of one type with the same room left. Nothing here loops over jobs.

A drone that has had no job yet counts first for the class that it was started for, as long as jobs of that class wait.
Else it would be given to an older class that is not worth a start of its own, and at the next tick another drone would
be started for the same jobs.
"""

from __future__ import annotations

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


class _SlotsKey(NamedTuple):
    """Everything of a bin but its type and its count."""

    room: Resources
    ends_at: float
    on_the_way: bool
    late: bool
    avoids: str


@dataclass(slots=True)
class DroneSlots:
    """``count`` drones of one type, each with the same room left."""

    kind: DroneType
    room: Resources
    count: int
    ends_at: float
    on_the_way: bool
    """Not in the pool yet."""
    late: bool = False
    """They start only after a while (:mod:`provisioner.planner.late`)."""
    avoids: str = ""
    """Users whose jobs they do not take, as on their records."""
    held: dict[CompatibleTypes, int] = field(default_factory=dict)
    """What :meth:`holds` found, by shape."""

    def holds(self, job: JobClass, compatible: CompatibleTypes, now: float) -> int:
        """Jobs of the class that one of these drones can still take. Remaining life counts: a drone about to leave is
        no supply for a long job (field notes, B 4)."""
        if self.avoids and is_excluded(job.owner, self.avoids):
            return 0
        found = self.held.get(compatible)
        if found is None:
            too_long = job.walltime_s and now + job.walltime_s > self.ends_at
            found = self.held[compatible] = 0 if too_long else count_jobs(job, self.room, self.kind)
        return found

    @property
    def key(self) -> _SlotsKey:
        """Everything but the type and how many there are."""
        return _SlotsKey(self.room, self.ends_at, self.on_the_way, self.late, self.avoids)

    def fill(self, job: JobClass, jobs: int, each: int) -> list[DroneSlots]:
        """They take ``jobs`` jobs of a class, ``each`` to a drone; what is left of them."""
        full, partly = divmod(jobs, each)
        touched = [self.less(job, each, full)] if full else []
        if partly:
            touched.append(self.less(job, partly, 1))
        self.count -= -(-jobs // each)
        return [part for part in (*touched, self) if part.count and not part.full]

    def less(self, job: JobClass, jobs: int, count: int) -> DroneSlots:
        """``count`` of these drones with ``jobs`` more jobs in each."""
        room = self.room.plus(request_of(job, self.kind), -jobs)
        return DroneSlots(self.kind, room, count, self.ends_at, self.on_the_way, self.late, self.avoids)

    @property
    def full(self) -> bool:
        return self.room.gpu_milli <= 0 if self.kind.gpu_milli else self.room.cpus <= 0


def _slots(kind: DroneType, key: _SlotsKey, count: int) -> DroneSlots:
    return DroneSlots(kind, key.room, count, key.ends_at, key.on_the_way, key.late, key.avoids)


def new_slots(kind: DroneType, count: int, ends_at: float, avoids: str = "") -> DroneSlots:
    """``count`` drones of a type on their way, with nothing in them."""
    return DroneSlots(kind, resources_of_type(kind), count, ends_at, on_the_way=True, avoids=avoids)


class Coverage(NamedTuple):
    """What existing supply takes of a class."""

    jobs: int = 0
    drones: int = 0
    """Of those, drones that are not in the pool yet."""

    def plus(self, more: Coverage) -> Coverage:
        """Both together."""
        return Coverage(self.jobs + more.jobs, self.drones + more.drones)


NO_COVERAGE = Coverage()


@dataclass(slots=True)
class Supply:
    """Room left in all drones, by type; :meth:`take` books jobs into it. Mutable, local to one decision."""

    now: float
    slots: dict[TypeKey, list[DroneSlots]] = field(default_factory=dict)
    late: set[TypeKey] = field(default_factory=set)
    """Types of which any is left that comes late."""
    own: dict[str, Coverage] = field(default_factory=dict)
    """Class id to what is booked of it already, into drones that were started for it."""

    @classmethod
    def of(cls, context: PlanningContext) -> Supply:
        """Count what the drones on record can still take. Those asked to leave take nothing."""
        supply = cls(context.now)
        wanted = {job.id: job.waiting for job in context.classes if job.waiting > 0}
        groups: dict[tuple[str, TypeKey, _SlotsKey], int] = {}
        empties = {key: resources_of_type(kind) for key, kind in context.types.items()}
        downtimes = {site: downtime_at(context, site) for site in {kind.site for kind in context.types.values()}}
        for drone in context.changing.values():
            room = _free_room(context, drone, empties, downtimes)
            if room is not None:
                late = drone.id in context.late
                own = not late and not drone.jobs_started and not drone.jobs and drone.for_class in wanted
                group = (drone.for_class if own else "", drone.type, _SlotsKey(*room, late, drone.avoids))
                groups[group] = groups.get(group, 0) + 1
        jobs = {job.id: job for job in context.classes if job.id in wanted}
        free_resources: dict[tuple[TypeKey, _SlotsKey], int] = {}
        for (for_class, kind, key), count in groups.items():
            if not for_class:
                free_resources[kind, key] = free_resources.get((kind, key), 0) + count
                continue
            stock = _slots(context.types[kind], key, count)
            for part in supply._book_own(jobs[for_class], context.compatible[for_class], wanted, stock):
                merged = (kind, part.key)
                free_resources[merged] = free_resources.get(merged, 0) + part.count
        for (kind, key), count in free_resources.items():
            supply.add(kind, _slots(context.types[kind], key, count))
        return supply

    def _book_own(
        self, job: JobClass, compatible: CompatibleTypes, wanted: dict[str, int], stock: DroneSlots
    ) -> list[DroneSlots]:
        """Book jobs of a class into drones that were started for it; what is left of these."""
        fits = stock.kind.key in compatible.places and wanted[job.id] > 0
        each = stock.holds(job, compatible, self.now) if fits else 0
        if not each:
            return [stock]
        here = min(wanted[job.id], each * stock.count)
        wanted[job.id] -= here
        taken = Coverage(here, -(-here // each) if stock.on_the_way else 0)
        self.own[job.id] = self.own.get(job.id, NO_COVERAGE).plus(taken)
        return stock.fill(job, here, each)

    def take_own(self, job: JobClass, jobs: int) -> Coverage:
        """Return what of up to ``jobs`` jobs is booked into drones that were started for the class; count it once."""
        own = self.own.pop(job.id, NO_COVERAGE)
        if own.jobs <= jobs:
            return own
        taken = Coverage(jobs, own.drones * jobs // own.jobs)
        self.own[job.id] = Coverage(own.jobs - taken.jobs, own.drones - taken.drones)
        return taken

    def add(self, kind: TypeKey, more: DroneSlots) -> None:
        self.slots.setdefault(kind, []).append(more)
        if more.late:
            self.late.add(kind)

    def take(
        self, job: JobClass, compatible: CompatibleTypes, jobs: int, key: TypeKey | None = None, *, late: bool = False
    ) -> Coverage:
        """Book up to ``jobs`` jobs into drones of the types that suit them, or of one of these; what was booked.
        ``late``: into those that come late, and into no others."""
        booked, drones = 0, 0
        for kind in (key,) if key else _stocked_types(self.late if late else self.slots.keys(), compatible):
            rest: list[DroneSlots] = []
            for have in self.slots.get(kind, ()):
                wanted = jobs - booked
                each = have.holds(job, compatible, self.now) if wanted > 0 and have.late is late else 0
                if each:
                    here = min(wanted, each * have.count)
                    booked += here
                    drones += -(-here // each) if have.on_the_way else 0
                    rest += have.fill(job, here, each)
                else:
                    rest.append(have)
            if rest:
                self.slots[kind] = rest
            else:
                self.slots.pop(kind, None)
            if late and not any(have.late for have in rest):
                self.late.discard(kind)
            if booked >= jobs:
                break
        return Coverage(booked, drones) if booked else NO_COVERAGE

    def untouched(self, kind: DroneType) -> int:
        """Drones of a type on their way that nothing was booked into."""
        return sum(b.count for b in self.slots.get(kind.key, ()) if b.on_the_way and b.room == resources_of_type(kind))


def _stocked_types(stocked: Set[TypeKey], compatible: CompatibleTypes) -> Sequence[TypeKey]:
    """Those of the ``stocked`` types that suit, in the order of the configuration: often ten of five hundred, or
    none."""
    here = compatible.places.keys() & stocked if stocked else ()
    return sorted(here, key=compatible.places.__getitem__) if here else ()


def _free_room(
    context: PlanningContext, drone: Drone, empties: Mapping[TypeKey, Resources], downtimes: Mapping[str, float]
) -> tuple[Resources, float, bool] | None:
    """Return the room left in one drone, the end of its life, and whether it is still on its way. ``empties``: the room
    in an empty drone, by type; ``downtimes``: by site."""
    kind = context.types.get(drone.type)
    if kind is None or drone.goes or drone.notice_at:
        return None
    if drone.state in ON_THE_WAY or (drone.state is DroneState.IDLE and drone.id not in context.slots):
        if drone.state is DroneState.QUEUED and drone.started_at:
            return None  # preempted: it does not come back
        # An idle drone that the pool forgot for a while (a collector's restart) still is supply.
        ends_at = drone.started_at + kind.longest_job_s if drone.started_at and kind.walltime_s else NO_END
        return empties[drone.type], min(ends_at, downtimes[kind.site] - DOWNTIME_MARGIN_S), True
    slot = context.slots.get(drone.id)
    if slot is None or (slot.free_gpu_milli if kind.gpu_milli else slot.free_cpus) <= 0:
        return None
    return free_resources(slot), min(slot.retires_at or NO_END, downtimes[kind.site]), False
