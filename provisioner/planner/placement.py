"""Placement: the drones that are started, or taken back into service, for waiting jobs and headroom.

Each class is covered by existing drones, then by undraining, then by starts of the cheapest type that can start now
within every limit. Undraining is cheaper than a start for as long as the drone still runs something. Classes with an
optional GPU come after all others that are real: idle GPUs cover them, and only drones without a GPU are started or
undrained for them.

A start must be worth its cost. *Enough work*: jobs of seconds are served by few drones, one after the other; a new
drone should have :data:`MIN_WORK_S` to do. *Start cost*: a drone holds its GPUs from its grant to its first job, which
is minutes on a cloud and seconds in a batch system. Whether a cheaper start comes in time is unknown, so this is a
rent-or-buy problem (Karlin, Manasse, Rudolph, Sleator, "Competitive snoopy caching", Algorithmica 3, 1988): the dearer
start is made once the jobs together have waited as long as it costs more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from provisioner import model, reasons
from provisioner.estimates import mean_run_s
from provisioner.model import Drain, DrainMode, Drone, DroneId, DroneState, DroneType, JobClass, Refusal, Start, TypeKey
from provisioner.planner.breakers import OVERLAY_SCOPE
from provisioner.planner.capacity import NO_COVERAGE, Coverage, DroneSlots, SlotShape, StartLimits, Supply, TypeRanking
from provisioner.planner.context import PlanningContext, drone_end_at, life_too_short, shortened_life_s
from provisioner.planner.demand import HEADROOM_PREFIX, GroupShares, is_headroom, sites_without_headroom
from provisioner.planner.lifecycle import undrained_record
from provisioner.planner.matching import CompatibleTypes, count_jobs, nearest, resources_for_needy, resources_of_type
from provisioner.planner.owner import OwnerReservations
from provisioner.planner.risk import PreemptionRisk, is_excluded, runs_of
from provisioner.reasons import Reason

MIN_WORK_S = 300.0
MAX_WORK_WAIT_S = 900.0
"""A job that has waited this long gets a drone, however little work there is."""
_NO_ROOM_AT_SITE = (reasons.SiteFull, reasons.GpusStranded)


def place(context: PlanningContext, reservations: OwnerReservations, supply: Supply) -> Placement:
    """Serve the classes, hardest to place first, and headroom last."""
    placement = Placement(context, Allocation(context, reservations, supply), GroupShares.of(context))
    blind = _no_starts_reason(context)
    if blind is not None:
        placement.refusals.append(blind)
        return placement
    turn = placement.shares.in_turn(context)
    for job in turn:
        if not job.gpu_optional:
            placement.serve(job, context.compatible[job.id])
    if optional := [job for job in turn if job.gpu_optional]:
        lendable = supply.gpu_slots()
        for job in optional:
            placement.serve(job, context.compatible[job.id])
        supply.put_back(lendable)  # headroom counts the GPUs that such jobs are about to get as free
    supply.add_preemptible(context)
    without = sites_without_headroom(context, placement.refusals, reservations.claimed)
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
    placement.refusals += [Refusal(f"site:{site}", 0, why) for site, why in doubts if why is not None]
    placement.at_risk = placement.allocation.risk.most_exposed()
    return placement


def _no_starts_reason(context: PlanningContext) -> Refusal | None:
    """Return the reason why nothing at all is started, if any."""
    if context.too_unhealthy is not None:
        return Refusal("all", len(context.drones), context.too_unhealthy)
    if context.validity.overlay is not None:
        return Refusal("all", 0, context.validity.overlay)
    outage = context.breakers.get(OVERLAY_SCOPE)
    if outage is not None and context.now < outage.until:
        fault = outage.fault or model.Fault(model.FaultKind.DOWN, "it was out of sight and settles first", outage.since)
        return Refusal("all", 0, reasons.BackingOff(OVERLAY_SCOPE, outage.until, fault.kind.value, fault.message))
    return None


@dataclass
class Allocation:
    """Starts of one plan, and everything that they use up. Mutable; only :meth:`allocate` starts drones."""

    context: PlanningContext
    reservations: OwnerReservations
    supply: Supply
    starts: list[Start] = field(default_factory=list)

    # Created when first used: most plans need no more than the limits, and many not even these.

    @cached_property
    def limits(self) -> StartLimits:
        return StartLimits.of(self.context, self.reservations)

    @cached_property
    def ranking(self) -> TypeRanking:
        return TypeRanking.of(self.context, self.limits)

    @cached_property
    def start_cost_gpu_s(self) -> Mapping[TypeKey, float]:
        """GPU-seconds, at the type's price, that a drone of a type holds before its first job."""
        types, sites = self.context.types, self.context.snapshot.policy.sites
        return {
            kind.key: delays.boot_s * kind.gpu_milli / model.WHOLE_GPU * kind.price * sites[kind.site].price
            for key, delays in self.context.snapshot.estimates.delays.items()
            if (kind := types.get(TypeKey(key))) is not None and kind.site in sites
        }

    @cached_property
    def risk(self) -> PreemptionRisk:
        return PreemptionRisk(self.context, self.safer)

    def safer(self, compatible: CompatibleTypes) -> bool:
        """Return True if such jobs can get a drone, now or later, at a place without an owner."""
        safe = (kind.key for kind in compatible.kinds if not self.risk.bears(kind))
        return any(_is_temporary(self.limits.for_type(key)[1]) for key in safe)

    def allowed(self, candidate: StartCandidate) -> tuple[int, Reason | None]:
        """Return how many drones may be started, and the reason of a rule for no more; limits are reported later."""
        count, reason = -(-candidate.lack // candidate.compatible.jobs[candidate.kind.key]), None
        for rule in START_RULES:
            count, why = rule(self, candidate, count)
            reason = why or reason
            if count <= 0:
                break
        return count, reason

    def allocate(self, kind: DroneType, count: int, job: JobClass, covered: int) -> None:
        """Start ``count`` drones of a type for a class of which ``covered`` jobs are covered."""
        reason: Reason = reasons.JobsWaiting(job.id, job.waiting, covered, count)
        vram_mib, snapshot = job.vram_mib, self.context.snapshot
        if is_headroom(job.id):  # any job may take a warm drone
            reason = reasons.HeadroomShort(job.id.removeprefix(HEADROOM_PREFIX), job.waiting, covered, count)
            vram_mib = 0
        life_s, on_reserve = shortened_life_s(self.context, kind), self.limits.on_reserve(kind)
        self.risk.book(kind, count)
        avoids = self.risk.excluded_users(job, kind)
        for _ in range(count):
            drone = Drone(
                id=DroneId(f"{snapshot.id_prefix}-{snapshot.next_serial + len(self.starts)}"),
                type=kind.key,
                state=DroneState.REQUESTED,
                since=snapshot.now,
                requested_at=snapshot.now,
                gpu_milli=kind.gpu_milli,
                for_class=job.id,
                avoids=avoids,
            )
            self.starts.append(Start(drone, reason, vram_mib, life_s, on_reserve))
        self.limits.start(kind.key, count)
        shape = SlotShape(resources_of_type(kind), drone_end_at(self.context, kind), on_the_way=True, avoids=avoids)
        self.supply.add(DroneSlots(kind, shape, count))


class StartCandidate(NamedTuple):
    """A drone type that may be started for ``lack`` jobs of a class."""

    job: JobClass
    compatible: CompatibleTypes
    kind: DroneType
    lack: int


def long_enough_life(allocation: Allocation, start: StartCandidate, count: int) -> tuple[int, Reason | None]:
    """Start no drone that ends before a job's declared walltime."""
    short = start.job.walltime_s and life_too_short(allocation.context, start.kind, start.job.walltime_s)
    return (0 if short else count), None


def within_limits(allocation: Allocation, start: StartCandidate, count: int) -> tuple[int, Reason | None]:
    """Keep every limit, breaker, quota and free capacity."""
    return min(count, allocation.limits.for_type(start.kind.key)[0]), None


def one_probe(allocation: Allocation, start: StartCandidate, count: int) -> tuple[int, Reason | None]:
    """Start one drone after a back-off of the class, until the pool has matched such jobs to it."""
    tried = allocation.context.class_backoffs.probing.get(start.job.id, {}).get(start.kind.key)
    if tried is None:
        return count, None
    return min(count, 1 - tried), reasons.Probing(model.class_scope(start.kind.key, start.job.id))


def cheaper_start(allocation: Allocation, start: StartCandidate, count: int) -> tuple[int, Reason | None]:
    """Wait for a cheaper start until the jobs have waited as long as the dearer one costs."""
    costs, policy = allocation.start_cost_gpu_s, allocation.context.snapshot.policy
    mine = costs.get(start.kind.key)
    if mine is None or not policy.waiting_cost:
        return count, None
    cheapest = min(costs[key] for key in start.compatible.jobs if key in costs)
    # Jobs of a class come one after the other: on average half as old as the oldest.
    waited_s = max(0.0, allocation.context.now - start.job.oldest_at) * (start.lack + 1) / 2
    more_s = (mine - cheapest) / policy.waiting_cost
    return (0, reasons.AwaitingCheaperType(start.kind.key, waited_s, more_s)) if waited_s < more_s else (count, None)


def owner_risk(allocation: Allocation, start: StartCandidate, count: int) -> tuple[int, Reason | None]:
    """Start no more drones than can expect to keep their place."""
    return allocation.risk.allowed(start.job, start.compatible, start.kind, count)


StartRule = Callable[[Allocation, StartCandidate, int], tuple[int, Reason | None]]
START_RULES: tuple[StartRule, ...] = (long_enough_life, within_limits, one_probe, cheaper_start, owner_risk)
"""Rules that reduce the number of starts, in order. The last rule with a reason gives the reason."""


@dataclass
class Placement:
    """Starts, undrains, and the reasons for what waits. Mutable, local to one plan: classes are served in turn."""

    context: PlanningContext
    allocation: Allocation
    shares: GroupShares
    undrained: list[Drain] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    lacking_room: dict[TypeKey, int] = field(default_factory=dict)
    """By drone type: number of drones that are lacking only because the site has no room."""
    without_headroom: frozenset[str] = frozenset()
    """Sites that keep no headroom now: real jobs lack room there, or the owner waits."""
    at_risk: Mapping[DroneId, reasons.DrainAtRisk] = field(default_factory=dict)
    """Drones that should take no more jobs because the owner is likely to take their place."""

    def serve(self, job: JobClass, compatible: CompatibleTypes) -> None:
        """Give the jobs of a class what their group is entitled to."""
        if job.fresh:
            self.refuse(job, job.fresh, reasons.AwaitingNegotiation(job.fresh))
        if job.limited:
            self.refuse(job, job.limited, reasons.PoolLimit(job.limit))
        if not self.context.idle_gpus.get(job.id, compatible).kinds:
            self.refuse(job, job.waiting + job.fresh, self._never(job, compatible))
            return
        if job.waiting and (alone := self.context.exclusive.why.get(job.id)) is not None:
            self.refuse(job, job.waiting, alone)
        entitled, over = self.shares.entitled(job)
        if over is not None:
            self.refuse(job, job.waiting - entitled, over)
            job = replace(job, waiting=entitled)
        if job.waiting:
            self._cover(job, compatible)

    def _cover(self, job: JobClass, compatible: CompatibleTypes) -> None:
        """Cover jobs with existing drones, then with undrained ones, then with new ones."""
        taken = self.allocation.supply.take_own(job, job.waiting)
        with_idle_gpus = self.context.idle_gpus.get(job.id, compatible)
        taken = taken.plus(self.allocation.supply.take(job, with_idle_gpus, job.waiting - taken.jobs))
        covered = taken.jobs
        if covered < job.waiting and self._draining:
            covered += self._undrain(job, compatible, job.waiting - covered)
        if covered < job.waiting:
            covered, late = self._start(job, compatible, covered)
            taken = taken.plus(late) if late.jobs else taken
        self.shares.book(job, min(covered, job.waiting))
        if taken.jobs:
            self.refuse(job, taken.jobs, reasons.DemandCovered(taken.jobs, taken.drones))

    @cached_property
    def _draining(self) -> dict[DroneId, Drone]:
        """Drones that still run something and leave for want of work or at risk: others are never taken back."""
        return {
            drone.id: drone
            for drone in self.context.changing.values()
            if drone.state is DroneState.DRAINING
            and drone.leaving in (DroneState.DONE, DroneState.UNUSED)
            and drone.asked_at
            and drone.jobs
            and drone.id in self.context.slots
            and self.context.can_act_on(drone)
        }

    def _undrain(self, job: JobClass, compatible: CompatibleTypes, lack: int) -> int:
        """Take back drones that have room for ``lack`` jobs and are safe enough; return for how many jobs or more."""
        context, covered = self.context, 0
        exposed: dict[str, Collection[DroneId]] = {}
        for drone in list(self._draining.values()):
            if covered >= lack:
                break
            if drone.site not in exposed:
                exposed[drone.site] = self.allocation.risk.exposed(job, compatible, drone.site)
            fits = drone.type in compatible.jobs and not is_excluded(job.owner, drone.avoids)
            kind = context.types[drone.type] if fits else None
            room = count_jobs(job, resources_for_needy(context.slots[drone.id], kind), kind) if kind else 0
            if room and drone.id not in exposed[drone.site]:
                del self._draining[drone.id]
                back, reason = undrained_record(drone, context.now), reasons.DemandReturned(job.id, job.waiting)
                self.undrained.append(Drain(back, drone.state, DrainMode.RESUME, reason))
                covered += room
        return covered

    def _worthwhile(self, job: JobClass, lacking: int) -> tuple[int, reasons.ExistingDronesSuffice | None]:
        """Return for how many of the ``lacking`` jobs a start is worthwhile, and the reason for the others."""
        mean_s = mean_run_s(runs_of(self.context, job))
        if mean_s >= MIN_WORK_S:
            return lacking, None
        # Drones that run such jobs end them soon and take these; so do those for other jobs of the class.
        running, covered = self._running(job), job.waiting - lacking
        enough = math.ceil(job.waiting * mean_s / MIN_WORK_S) - running - covered
        late = self.context.now - job.oldest_at > MAX_WORK_WAIT_S
        found = max(1 if late else 0, min(lacking, enough))
        return found, reasons.ExistingDronesSuffice(mean_s, running) if found < lacking else None

    def _running(self, job: JobClass) -> int:
        """Count running jobs of a class, or that may be of it, on drones that take another job afterwards."""
        amounts = ((job.gpu_milli, job.cpus, job.memory_mib), (0, 0, 0))
        shapes = {(owner, *each) for owner in (job.owner, "") for each in amounts} if job.running else ()
        return min(job.running, sum(self._running_by_shape[each] for each in shapes))

    @cached_property
    def _running_by_shape(self) -> Counter[tuple[str, int, int, int]]:
        """Running jobs by user and request (empty and 0 if unknown), as far as slots report it.

        The queue also counts jobs on dead drones until the lease ends, and jobs on drones that take no more.
        """
        view = self.context.snapshot.overlay.view
        # An overlay may name classes by accounting group and slots by user: then the name tells nothing.
        owners = {job.owner for job in view.classes} if view is not None else frozenset()
        found: Counter[tuple[str, int, int, int]] = Counter()
        for slot in self.context.slots.values():
            drone = self.context.drones.get(slot.drone_id)
            if drone is None or drone.is_leaving or drone.notice_at or drone.state is DroneState.DRAINING:
                continue
            if slot.jobs and slot.state is not model.SlotState.DRAINING:
                owner = slot.owner if slot.owner in owners else ""
                found[owner, slot.job_gpu_milli, slot.job_cpus, slot.job_memory_mib] += slot.jobs
        return found

    def _start(self, job: JobClass, compatible: CompatibleTypes, covered: int) -> tuple[int, Coverage]:
        """Start drones for the jobs that are not ``covered``, as far as that is worthwhile.

        Return how many jobs are then covered, and the coverage by delayed drones.
        """
        allocation = self.allocation
        held_back: Reason | None
        enough, held_back = self._worthwhile(job, job.waiting - covered)
        wanted, any_late, late = covered + enough, bool(allocation.supply.late), NO_COVERAGE
        startable = allocation.limits.startable
        none_open = not any_late and compatible.jobs.keys().isdisjoint(startable)
        for key in () if none_open else allocation.ranking.candidates(compatible, startable):
            if any_late and key not in allocation.ranking.sure:
                # From here on a drone might wait as well: those that wait already will do.
                late = allocation.supply.take(job, compatible, job.waiting - covered, late=True)
                covered, any_late = covered + late.jobs, False
            lack = wanted - covered
            if lack <= 0:
                break
            candidate = StartCandidate(job, compatible, self.context.types[key], lack)
            count, why = allocation.allowed(candidate)
            held_back = held_back or why
            if count > 0:
                allocation.allocate(candidate.kind, count, job, covered)
                covered += allocation.supply.take(job, compatible, lack, key).jobs
        lack = job.waiting - covered
        if lack > 0:
            key, limit = self._best_type(job, compatible)
            why = held_back or limit
            if job.gpu_optional:
                why = reasons.AwaitingIdleGpu(key, why.kind if key and why is not None else "")
            if why is not None:
                self.refuse(job, lack, why)
            if isinstance(why, _NO_ROOM_AT_SITE) and not is_headroom(job.id):
                self.lacking_room[key] = self.lacking_room.get(key, 0) - (-lack // compatible.jobs[key])
        return covered, late

    def _best_type(self, job: JobClass, compatible: CompatibleTypes) -> tuple[TypeKey, Reason | None]:
        """Return the best type whose drones live long enough, and its limit; else the best of all and the downtime."""
        keys = self.allocation.ranking.for_jobs(compatible)
        if not keys:
            return TypeKey(""), None
        brief: list[Reason] = []
        for key in keys:
            soon = life_too_short(self.context, self.context.types[key], job.walltime_s) if job.walltime_s else None
            if soon is None:
                return key, self.allocation.limits.for_type(key)[1]
            brief.append(soon)
        return keys[0], brief[0]

    def _never(self, job: JobClass, compatible: CompatibleTypes) -> Reason:
        if job.invalid:
            return reasons.BadRequest(job.invalid)
        if (alone := self.context.exclusive.why.get(job.id)) is not None:
            return alone
        unmatched = self.context.class_backoffs.why(job.id)
        found = compatible.nearest or nearest(job, self.context.snapshot.types)
        if unmatched is not None or found is None:
            return unmatched or reasons.NothingFits("", "type", "any", "no drone type is configured")
        key, why = found
        return reasons.NothingFits(key, why.dimension, why.requested, why.available, job.gpu_optional)

    def refuse(self, job: JobClass, count: int, why: Reason) -> None:
        self.refusals.append(Refusal(f"class:{job.id}", count, why))


def _is_temporary(why: Reason | None) -> bool:
    """Return True if the reason against a start passes without anybody's action."""
    if isinstance(why, reasons.LimitReached):
        return why.allowed > 0
    passing = reasons.SiteFull | reasons.SiteQuota | reasons.GpusStranded | reasons.OwnerWaits | None
    return isinstance(why, passing)
