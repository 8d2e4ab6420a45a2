"""Placement: the drones that are started, or taken back into service, for waiting jobs and headroom.

Each class is covered by existing drones, then by undraining, then by starts of the cheapest type
that can start now within every limit. Undraining is cheaper than a start for as long as the drone
still runs something. Classes with an optional GPU come after all others that are real.

A start must be worth its cost (:mod:`provisioner.planner.costs`): jobs that drones which are there
take soon wait for these, and many short jobs share a drone.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from provisioner import model, reasons
from provisioner.job_filter import FIRST_JOBS, FIRST_JOBS_S, TAKES_ALL, JobFilter
from provisioner.keys import ALL, OVERLAY_SCOPE, Subject
from provisioner.model import (
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
from provisioner.planner.capacity import (
    NO_COVERAGE,
    Coverage,
    DroneSlots,
    PlacesAllowed,
    SlotShape,
    StartLimits,
    Supply,
    TypeRanking,
    passes_soon,
)
from provisioner.planner.context import (
    PlanningContext,
    RunShape,
    begun_of,
    dead_credential,
    drone_end_at,
    life_too_short,
    run_shape,
    shortened_life_s,
)
from provisioner.planner.costs import JobCost, RunTimeSums
from provisioner.planner.demand import (
    HEADROOM_PREFIX,
    GroupShares,
    is_headroom,
    sites_without_headroom,
)
from provisioner.planner.lifecycle import undrained_record
from provisioner.planner.matching import (
    CompatibleTypes,
    count_jobs,
    nearest,
    resources_for_gpu_jobs,
    resources_of_type,
)
from provisioner.planner.owner import OwnerReservations
from provisioner.planner.refusals import IdleDrones
from provisioner.planner.reservations import JobReservations
from provisioner.planner.risk import PreemptionRisk
from provisioner.reasons import Reason
from provisioner.values import factory

AGES_S = tuple(1.2**n for n in range(90))
"""Steps in which run times so far are counted: a large pool has no more of them than a small one."""
# at least two such jobs share a drone: they also wait for running jobs to end
FEW_DRONES_PER_JOB = 0.5
_NO_ROOM_AT_SITE = (reasons.SiteFull, reasons.GpusStranded)
_PASSING = (*_NO_ROOM_AT_SITE, reasons.SiteQuota, reasons.OwnerWaits)
"""Reasons against a start that pass without anybody's action."""


def place(allocation: Allocation, last: str = "") -> Placement:
    """Serve the classes, and headroom last.

    Existing drones take the jobs that are hardest to place first, as the fewest drones are missing
    then. Drones are started for the others in turns between users, up to the class ``last``.
    """
    context = allocation.context
    placement = Placement(context, allocation, GroupShares.of(context))
    blind = _no_starts_reason(context)
    if blind is not None:
        placement.refusals.append(blind)
        return placement
    turn = placement.turn = sorted(
        placement.shares.in_turn(context), key=attrgetter("gpu_optional")
    )

    def hardness(each: tuple[int, JobClass]) -> tuple[object, ...]:
        job = each[1]
        return job.gpu_optional, context.compatible[job.id].hardness

    hardest = sorted(enumerate(turn), key=hardness)
    covered = {n: placement.cover(job, context.compatible[job.id]) for n, job in hardest}
    for n, job in enumerate(turn):
        placement.start(job, context.compatible[job.id], covered[n])
        if job.id == last:
            return placement
    allocation.supply.add_preemptible(context)
    claimed = allocation.reservations.claimed
    without = sites_without_headroom(context, placement.refusals, claimed)
    placement.without_headroom = without
    for job in context.headroom:
        compatible = context.compatible[job.id]
        here = compatible.only(kind for kind in compatible.kinds if kind.site not in without)
        if compatible.kinds and not here.kinds:
            yields = reasons.HeadroomYields(job.id.removeprefix(HEADROOM_PREFIX), job.waiting)
            placement.refuse(job, job.waiting, yields)
        else:
            placement.serve(job, here)
    doubts = context.validity.sites.items()
    placement.refusals += [
        Refusal(Subject("site", site), 0, why) for site, why in doubts if why is not None
    ]
    placement.at_risk = placement.allocation.risk.most_exposed()
    placement.allocation.lift_exclusions()
    return placement


def _no_starts_reason(context: PlanningContext) -> Refusal | None:
    """Return the reason why nothing at all is started, if any."""
    for record, evidence in context.snapshot.twins.items():
        return Refusal(ALL, len(context.drones), reasons.LiveTwin(record, evidence))
    if context.too_unhealthy is not None:
        return Refusal(ALL, len(context.drones), context.too_unhealthy)
    if context.validity.overlay is not None:
        return Refusal(ALL, 0, context.validity.overlay)
    if (dead := dead_credential(context.snapshot, "overlay")) is not None:
        return Refusal(ALL, 0, dead)
    outage = context.breakers.get(OVERLAY_SCOPE)
    if outage is not None and context.now < outage.until:
        fault = outage.fault or model.Fault(
            model.FaultKind.DOWN, "its view has just come back", outage.since
        )
        return Refusal(
            ALL,
            0,
            reasons.BackingOff("overlay", outage.until, fault.kind.value, fault.message),
        )
    return None


@dataclass
class Allocation:
    """Starts of one plan, and everything that they use up. Mutable; only :meth:`allocate` starts drones."""

    context: PlanningContext
    reservations: OwnerReservations
    supply: Supply
    starts: list[Start] = factory(list)

    # Created when first used: most plans need no more than the limits, and many not even these.

    @cached_property
    def limits(self) -> StartLimits:
        return StartLimits.of(self.context, self.reservations)

    @cached_property
    def ranking(self) -> TypeRanking:
        return TypeRanking.of(self.context, self.limits)

    @cached_property
    def risk(self) -> PreemptionRisk:
        return PreemptionRisk(self.context, self.safe_wait_s)

    @cached_property
    def reserved(self) -> JobReservations:
        return JobReservations(self.context, self.reservations, self.starts)

    def safe_wait_s(self, compatible: CompatibleTypes, waited_s: float) -> float:
        """Return how long jobs are expected to wait for a place without an owner; infinity if they never get one.

        Jobs that have waited for longer than a start takes, at a place with room, will probably
        wait for as long again.
        """
        found = math.inf
        for kind in compatible.kinds:
            if not self.risk.bears(kind):
                count, why = self.limits.for_type(kind.key)
                start = self.context.costs.of_types[kind.key]
                if count > 0 or (passes_soon(why) and _is_temporary(why)):
                    found = min(found, max(start.queue_s + start.boot_s, waited_s))
                elif _is_temporary(why):
                    found = min(found, self._line_s)
        return found

    @cached_property
    def _line_s(self) -> float:
        """Time that all drones need to run all waiting jobs: the expected wait where no place is free."""
        jobs = (
            (job, self.context.costs.of_class(job)[0])
            for job in self.context.classes
            if job.waiting
        )
        return math.fsum(job.waiting * runs.mean_s for job, runs in jobs) / max(
            1, len(self.context.drones)
        )

    def allowed(self, candidate: StartCandidate) -> PlacesAllowed:
        """Return how many drones may be started, and the reason of a rule for no more; limits are reported later."""
        count = -(-candidate.lack // candidate.compatible.jobs[candidate.kind.key])
        reason = None
        for rule in START_RULES:
            count, why = rule(self, candidate, count)
            reason = why or reason
            if count <= 0:
                break
        return count, reason

    def allocate(self, kind: DroneType, count: int, job: JobClass, covered: int) -> None:
        """Start ``count`` drones of a type for a class of which ``covered`` jobs are covered."""
        name = self.context.names.of(job.id)
        reason: Reason = reasons.JobsWaiting(job.id, name, job.waiting, covered, count)
        # Jobs of other classes are counted on for the rest of drones that the class does not fill.
        fills = job.waiting - covered >= count * self.context.compatible[job.id].jobs[kind.key]
        if is_headroom(job.id):
            reason = reasons.HeadroomShort(
                job.id.removeprefix(HEADROOM_PREFIX), job.waiting, covered, count
            )
        self.book(kind, count)
        job_filter = self._job_filter(kind, job, fills)
        self.record(kind, count, job.id, reason, job_filter)
        ends_at = drone_end_at(self.context, kind)
        shape = SlotShape(resources_of_type(kind), ends_at, True, job_filter=job_filter.lasting)
        self.supply.add(DroneSlots(kind, shape, count))

    def book(self, kind: DroneType, count: int) -> None:
        """Count ``count`` starts of a type against the limits, and against the headroom in front of an owner."""
        self.risk.book(kind, count)
        self.limits.start(kind.key, count)

    def record(
        self,
        kind: DroneType,
        count: int,
        for_class: str,
        reason: Reason,
        job_filter: JobFilter = TAKES_ALL,
    ) -> None:
        """Add the starts that are booked to the plan."""
        snapshot = self.context.snapshot
        life_s = shortened_life_s(self.context, kind)
        for _ in range(count):
            drone = Drone(
                id=DroneId(f"{snapshot.id_prefix}-{snapshot.next_serial + len(self.starts)}"),
                type=kind.key,
                state=DroneState.REQUESTED,
                since=snapshot.now,
                requested_at=snapshot.now,
                gpu_milli=kind.gpu_milli,
                for_class=for_class,
                job_filter=job_filter,
                service=kind.service,
            )
            self.starts.append(Start(drone, reason, life_s))

    def _job_filter(self, kind: DroneType, job: JobClass, fills: bool) -> JobFilter:
        """Return the rules on the jobs of a drone started for a class, of which jobs ``fills`` all such drones."""
        found = JobFilter(self.risk.excluded_users(job, kind))
        gpus = job.gpu_milli // model.WHOLE_GPU
        if is_headroom(job.id):  # any job may take a warm drone
            return found
        first_gpus = gpus if fills and job.gpu_milli > model.WHOLE_GPU else 0
        if first_gpus or job.vram_mib:
            found = replace(
                found, first_s=FIRST_JOBS_S, first_gpus=first_gpus, first_vram_mib=job.vram_mib
            )
        # One small job would keep all other GPUs of the drone from large jobs, for as long as it
        # runs.
        takes_all = first_gpus * model.WHOLE_GPU == kind.gpu_milli > 0
        if takes_all and self._has_room_for_smaller(kind):
            found = replace(found, min_gpus=first_gpus)
        return found

    def lift_exclusions(self) -> None:
        """Let the drones of this plan take the jobs of users who have no safer place left after all its starts."""
        jobs = {job.id: job for job in (*self.context.classes, *self.context.headroom)}
        excluded: dict[tuple[str, TypeKey], tuple[str, ...]] = {}
        for n, start in enumerate(self.starts):
            drone = start.drone
            if drone.job_filter.excluded_users:
                key = drone.for_class, drone.type
                if key not in excluded:
                    excluded[key] = self.risk.excluded_users(
                        jobs[drone.for_class], self.context.types[drone.type]
                    )
                users = tuple(u for u in drone.job_filter.excluded_users if u in excluded[key])
                job_filter = replace(drone.job_filter, excluded_users=users)
                self.starts[n] = replace(start, drone=replace(drone, job_filter=job_filter))

    def _has_room_for_smaller(self, kind: DroneType) -> bool:
        """Return True if a drone of fewer GPUs of the same model can start soon at the site of a type."""
        limits = self.limits
        free = (key for key in self.context.costs.smaller[kind.key] if limits.free_for(key) != 0)
        return any(count > 0 or passes_soon(why) for count, why in map(limits.for_type, free))


class StartCandidate(NamedTuple):
    """A drone type that may be started for ``lack`` jobs of a class."""

    job: JobClass
    compatible: CompatibleTypes
    kind: DroneType
    lack: int


def long_enough_life(allocation: Allocation, start: StartCandidate, count: int) -> PlacesAllowed:
    """Start no drone that ends before a job's declared walltime."""
    short = start.job.walltime_s and life_too_short(
        allocation.context, start.kind, start.job.walltime_s
    )
    return (0 if short else count), None


def within_limits(allocation: Allocation, start: StartCandidate, count: int) -> PlacesAllowed:
    """Keep every limit, breaker, quota and free capacity."""
    return min(count, allocation.limits.for_type(start.kind.key)[0]), None


def one_probe(allocation: Allocation, start: StartCandidate, count: int) -> PlacesAllowed:
    """Start one drone after a back-off of the class, until the pool has matched such jobs to it."""
    tried = allocation.context.class_backoffs.probing.get(start.job.id, {}).get(start.kind.key)
    if tried is None:
        return count, None
    scope = model.Scope(start.kind.site, start.kind.name, start.job.id)
    return min(count, 1 - tried), reasons.Probing(str(scope))


def owner_risk(allocation: Allocation, start: StartCandidate, count: int) -> PlacesAllowed:
    """Start no more drones than can expect to keep their place."""
    return allocation.risk.allowed(start.job, start.compatible, start.kind, count)


def room_for_larger_jobs(
    allocation: Allocation, start: StartCandidate, count: int
) -> PlacesAllowed:
    """Start no drone that would take the room that is reserved for a job of several GPUs."""
    return allocation.reserved.places_beside(start.job, start.kind, count)


StartRule = Callable[[Allocation, StartCandidate, int], PlacesAllowed]
START_RULES: tuple[StartRule, ...] = (
    long_enough_life,
    within_limits,
    one_probe,
    owner_risk,
    room_for_larger_jobs,
)
"""Rules that reduce the number of starts, in order. The last rule with a reason gives the reason."""


@dataclass
class Placement:
    """Starts, undrains, and the reasons for what waits. Mutable, local to one plan: classes are served in turn."""

    context: PlanningContext
    allocation: Allocation
    shares: GroupShares
    turn: Sequence[JobClass] = ()
    """The classes in the order in which drones are started for them."""
    undrained: list[Drain] = factory(list)
    refusals: list[Refusal] = factory(list)
    lacking_room: dict[TypeKey, int] = factory(dict)
    """By drone type: number of drones that are lacking only because the site has no room."""
    without_headroom: frozenset[str] = frozenset()
    """Sites that keep no headroom now: real jobs lack room there, or the owner waits."""
    _served: dict[tuple[object, ...], tuple[int, float]] = factory(dict)
    """Results of :meth:`_running`: many classes are alike."""
    _ages_by_shape: dict[RunShape, list[tuple[float, int]]] = factory(dict)
    at_risk: Mapping[DroneId, reasons.DrainAtRisk] = factory(dict)
    """Drones that should take no more jobs because the owner is likely to take their place."""

    def serve(self, job: JobClass, compatible: CompatibleTypes) -> None:
        """Cover the jobs of a class, and start drones for the others."""
        self.start(job, compatible, self.cover(job, compatible))

    def cover(self, job: JobClass, compatible: CompatibleTypes) -> Coverage:
        """Book the jobs that their group is entitled to into existing drones."""
        entitled, _ = self.shares.entitled(job, job.waiting)
        if not entitled or not compatible.kinds:
            return NO_COVERAGE
        taken = self.allocation.supply.take_own(job, entitled)
        if taken.jobs < entitled:
            taken = taken.plus(self.allocation.supply.take(job, compatible, entitled - taken.jobs))
        self.shares.book(job, min(taken.jobs, entitled))
        return taken

    def start(self, job: JobClass, compatible: CompatibleTypes, taken: Coverage) -> None:
        """Take back or start drones for the jobs that are not ``taken``, up to what their group is entitled to."""
        if job.fresh:
            self.refuse(job, job.fresh, reasons.AwaitingNegotiation(job.fresh))
        if job.limited:
            self.refuse(job, job.limited, reasons.PoolLimit(job.limit))
        if not compatible.kinds:
            self.refuse(job, job.waiting + job.fresh, self._never(job, compatible))
            return
        if job.waiting and (alone := self.context.exclusive.why.get(job.id)) is not None:
            self.refuse(job, job.waiting, alone)
        rest = job.waiting - taken.jobs
        entitled, over = self.shares.entitled(job, rest) if rest > 0 else (rest, None)
        if over is not None:
            self.refuse(job, rest - entitled, over)
            job = replace(job, waiting=taken.jobs + entitled)
        if not job.waiting:
            return
        booked = min(taken.jobs, job.waiting)
        late = NO_COVERAGE
        elsewhere = ""
        if entitled > 0:  # drones that this plan starts for others may have room for more
            taken = taken.plus(self.allocation.supply.take(job, compatible, entitled))
        covered = taken.jobs
        lacks = taken.jobs < job.waiting or taken.drones > 0
        for why in self._idle.refusing(job, compatible):
            if lacks or why.rule == FIRST_JOBS:  # for a short time: such a drone counts as supply
                self.refuse(job, 0, why)
        if covered < job.waiting and self._draining:
            covered += self._undrain(job, compatible, job.waiting - covered)
        if covered < job.waiting:
            covered, late, elsewhere = self._start(job, compatible, covered)
            taken = taken.plus(late)
        self.shares.book(job, min(covered, job.waiting) - booked)
        if taken.jobs:
            self.refuse(
                job,
                taken.jobs,
                reasons.DemandCovered(taken.jobs, taken.drones, late.drones, elsewhere),
            )

    @cached_property
    def _idle(self) -> IdleDrones:
        return IdleDrones(self.context)

    @cached_property
    def _draining(self) -> dict[DroneId, Drone]:
        """Drones that still run something and leave for want of work or at risk: others are never taken back."""
        return {
            drone.id: drone
            for drone in self.context.unsettled
            if drone.state is DroneState.DRAINING
            and drone.leaving in (DroneState.DONE, DroneState.UNUSED)
            and drone.asked_at
            and drone.jobs
            and drone.id in self.context.slots
            and self.context.can_act_on(drone)
        }

    def _undrain(self, job: JobClass, compatible: CompatibleTypes, lack: int) -> int:
        """Take back drones that have room for ``lack`` jobs and are safe enough; return for how many jobs or more."""
        context = self.context
        covered = 0
        exposed: dict[str, Collection[DroneId]] = {}
        for drone in list(self._draining.values()):
            if covered >= lack:
                break
            if drone.site not in exposed:
                exposed[drone.site] = self.allocation.risk.exposed(job, compatible, drone.site)
            fits = drone.type in compatible.jobs and not drone.job_filter.refuses(job)
            kind = context.types[drone.type] if fits else None
            room = (
                count_jobs(job, resources_for_gpu_jobs(context.slots[drone.id], kind), kind)
                if kind
                else 0
            )
            held = self.allocation.reserved.by_site.get(drone.site)
            if held is not None and drone.id in held.drones and held.reason.class_id != job.id:
                continue
            if room and drone.id not in exposed[drone.site]:
                del self._draining[drone.id]
                back = undrained_record(drone, context.now)
                reason = reasons.DemandReturned(job.id, context.names.of(job.id), job.waiting)
                self.undrained.append(Drain(back, drone.state, DrainMode.RESUME, reason))
                covered += room
        return covered

    def _worthwhile(
        self,
        job: JobClass,
        compatible: CompatibleTypes,
        runs: RunTimeSums,
        cost: JobCost,
        lacking: int,
    ) -> tuple[int, reasons.ExistingDronesSuffice | None]:
        """Return for how many of the ``lacking`` jobs a start is worthwhile, and the reason for the others.

        Of many short jobs, several share a drone: with one drone for n jobs of m seconds each, the
        jobs wait n * m / 2 on average. Starting and waiting together cost least with the square
        root of waiting_cost * m / (2 * start cost) drones for each job, as in the economic order
        quantity. Drones of running jobs that end soon serve further ones. This counts only for jobs
        of seconds: else the jobs that arrive meanwhile need the drones that become free.
        """
        if not cost.per_s or not compatible.jobs:
            return lacking, None
        key = self.allocation.ranking.for_jobs(compatible, cost)[0]
        start = self.context.costs.of_types[key]
        overhead = start.overhead / compatible.jobs[key]
        per_job = math.sqrt(cost.per_s * runs.mean_s / (2 * overhead)) if overhead else math.inf
        if per_job >= 1:
            return lacking, None
        within_s = overhead / cost.per_s + start.boot_s
        running, each = (
            self._running(job, runs, within_s)
            if per_job < FEW_DRONES_PER_JOB
            else (job.running, 0.0)
        )
        served = running * each + (job.waiting - lacking) * overhead / cost.per_s / runs.mean_s
        # Jobs that have waited for longer than that leads to: others have taken what they waited
        # for.
        late = (
            self.context.now - job.oldest_at
            > start.queue_s + start.boot_s + 2 * overhead / cost.per_s
        )
        found = min(lacking, math.ceil(max(lacking - int(served), late) * per_job))
        return found, reasons.ExistingDronesSuffice(
            runs.mean_s, running
        ) if found < lacking else None

    def _running(self, job: JobClass, runs: RunTimeSums, within_s: float) -> tuple[int, float]:
        """Return how many jobs run that are or may be of a class, and how many jobs the drone of each takes next.

        Only drones that take another job afterwards count.
        """
        key = (
            job.owner if job.running else None,
            job.gpu_milli,
            job.cpus,
            job.memory_mib,
            runs.mean_s,
            within_s,
        )
        if key not in self._served:
            amounts = ((job.gpu_milli, job.cpus, job.memory_mib), (0, 0, 0))
            shapes = (
                {(owner, *each) for owner in (job.owner, "") for each in amounts}
                if job.running
                else set()
            )
            ages = [age for each in shapes & self._begun.keys() for age in self._ages(each)]
            number = sum(count for _, count in ages)
            served = math.fsum(count * runs.served(ran_s, within_s) for ran_s, count in ages)
            self._served[key] = number, served / max(1, number)
        count, each = self._served[key]
        return min(job.running, count), each

    def _ages(self, shape: RunShape) -> Sequence[tuple[float, int]]:
        """Return the run times so far of running jobs of one shape, in steps of :data:`AGES_S`, and their numbers."""
        found = self._ages_by_shape.get(shape)
        if found is None:
            found = self._ages_by_shape[shape] = []
            begun = sorted(chain(*self._begun[shape]))
            now = self.context.now
            last = len(begun)
            while last:
                ran_s = AGES_S[bisect_left(AGES_S, now - begun[last - 1], 0, len(AGES_S) - 1)]
                first = min(bisect_left(begun, now - ran_s, 0, last), last - 1)
                found.append((ran_s, last - first))
                last = first
        return found

    @cached_property
    def _begun(self) -> Mapping[RunShape, Sequence[Sequence[float]]]:
        """Start times of running jobs by user and request, as far as slots report them.

        The queue also counts jobs on dead drones until the lease ends, and jobs on drones that take
        no more.
        """
        view = self.context.snapshot.overlay.view
        found = defaultdict[RunShape, list[Sequence[float]]](list)
        # An overlay may name classes by accounting group and slots by user: then the name tells
        # nothing.
        owners = {job.owner for job in view.classes} if view is not None else frozenset()
        for drone in self.context.drones.values():
            slot = self.context.slots.get(drone.id)
            if slot is None or not slot.jobs or slot.state is model.SlotState.DRAINING:
                continue
            if (
                not drone.is_leaving
                and not drone.notice_at
                and drone.state is not DroneState.DRAINING
            ):
                shape = run_shape(slot)
                found[shape if shape[0] in owners else ("", *shape[1:])].append(begun_of(slot))
        return found

    def _start(
        self, job: JobClass, compatible: CompatibleTypes, covered: int
    ) -> tuple[int, Coverage, str]:
        """Start drones for the jobs that are not ``covered``, as far as that is worthwhile.

        Return how many jobs are then covered, the coverage by delayed drones, and the kind of the
        reason why no other is started in place of these.
        """
        allocation = self.allocation
        runs, cost = self.context.costs.of_class(job)
        any_late = bool(allocation.supply.late)
        late = NO_COVERAGE
        startable = allocation.limits.startable
        # as for most classes once all is full
        if not any_late and compatible.keys.isdisjoint(startable):
            self._report_lack(job, compatible, cost, job.waiting - covered, None)
            return covered, late, ""
        enough, served = self._worthwhile(job, compatible, runs, cost, job.waiting - covered)
        wanted = covered + enough
        held_back = None
        started = len(allocation.starts)
        for key in allocation.ranking.candidates(compatible, cost, startable):
            if any_late and key not in allocation.ranking.sure:
                # From here on a drone might wait as well: those that wait already will do.
                late = allocation.supply.take(job, compatible, job.waiting - covered, late=True)
                covered += late.jobs
                any_late = False
            lack = wanted - covered
            if lack <= 0:
                break
            candidate = StartCandidate(job, compatible, self.context.types[key], lack)
            count, why = allocation.allowed(candidate)
            held_back = held_back or why
            if count > 0:
                allocation.allocate(candidate.kind, count, job, covered)
                covered += allocation.supply.take(job, compatible, lack, key).jobs
        if served is not None and job.waiting > max(covered, wanted):
            self.refuse(job, job.waiting - max(covered, wanted), served)
        if wanted > covered:
            self._report_lack(job, compatible, cost, wanted - covered, held_back)
        if not late.jobs or len(allocation.starts) > started:
            return covered, late, ""
        delayed = {self.context.drones[drone_id].type for drone_id in self.context.late}
        others = [
            key for key in allocation.ranking.for_jobs(compatible, cost) if key not in delayed
        ]
        elsewhere = held_back or self._best_type(job, others)[1]
        return covered, late, elsewhere.kind if elsewhere is not None else ""

    def _report_lack(
        self,
        job: JobClass,
        compatible: CompatibleTypes,
        cost: JobCost,
        lack: int,
        held_back: Reason | None,
    ) -> None:
        """Refuse ``lack`` jobs for which no drone may be started, or reserve room for one of several GPUs."""
        allocation = self.allocation
        key, limit = self._best_type(job, allocation.ranking.for_jobs(compatible, cost))
        why = held_back or limit
        if job.gpu_optional:
            why = reasons.AwaitingIdleGpu(key, why.kind if key and why is not None else "")
        reserved: Reason | None = None
        if job.gpu_milli > model.WHOLE_GPU:
            reserved = allocation.reserved.reserve(
                job, compatible, cost, allocation.limits, allocation.risk
            )
        if (reason := reserved or why) is not None:
            self.refuse(job, lack, reason)
        if isinstance(why, _NO_ROOM_AT_SITE) and not is_headroom(job.id):
            self.lacking_room[key] = self.lacking_room.get(key, 0) - (-lack // compatible.jobs[key])

    def _best_type(self, job: JobClass, keys: Iterable[TypeKey]) -> tuple[TypeKey, Reason | None]:
        """Return the first type whose drones live long enough, and the limit if none may start; else the downtime."""
        brief: list[tuple[TypeKey, Reason]] = []
        for key in keys:
            soon = (
                life_too_short(self.context, self.context.types[key], job.walltime_s)
                if job.walltime_s
                else None
            )
            if soon is None:
                count, limit = self.allocation.limits.for_type(key)
                return key, None if count else limit
            brief.append((key, soon))
        return brief[0] if brief else (TypeKey(""), None)

    def _never(self, job: JobClass, compatible: CompatibleTypes) -> Reason:
        if job.invalid:
            return reasons.BadRequest(job.invalid)
        if (alone := self.context.exclusive.why.get(job.id)) is not None:
            return alone
        unmatched = self.context.class_backoffs.why(job.id)
        found = compatible.nearest or nearest(job, self.context.snapshot.types)
        if unmatched is not None or found is None:
            return unmatched or reasons.NothingFits(
                "", "type", "any", "no drone type is configured"
            )
        key, why = found
        if job.gpu_optional and why.dimension == "gpus":  # there is no CPU drone type
            return reasons.AwaitingIdleGpu("")
        if job.gpu_optional:
            return reasons.AwaitingIdleGpu(key, "nothing-fits")
        return reasons.NothingFits(key, why.dimension, why.requested, why.available)

    def refuse(self, job: JobClass, count: int, why: Reason) -> None:
        self.refusals.append(Refusal(Subject("class", job.id), count, why))


def _is_temporary(why: Reason | None) -> bool:
    """Return True if the reason against a start passes without anybody's action."""
    if isinstance(why, reasons.LimitReached):
        return why.allowed > 0
    return why is None or isinstance(why, _PASSING)
