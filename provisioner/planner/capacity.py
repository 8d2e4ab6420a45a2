"""Capacity: how many more drones may be started, and the order in which drone types are tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from provisioner import model, reasons
from provisioner.job_filter import TAKES_ALL, JobFilter
from provisioner.keys import Scope, site_of, type_name
from provisioner.model import (
    ON_THE_WAY,
    WHOLE_GPU,
    BreakerState,
    Drone,
    DroneState,
    DroneType,
    JobClass,
    Node,
    TypeKey,
)
from provisioner.planner.context import (
    DOWNTIME_MARGIN_S,
    PlanningContext,
    dead_credential,
    downtime_at,
    life_too_short,
)
from provisioner.planner.costs import JobCost, StartCosts
from provisioner.planner.matching import (
    CompatibleTypes,
    count_jobs,
    free_resources,
    lent_resources,
    request_of,
    resources_of_type,
)
from provisioner.planner.owner import OwnerReservations
from provisioner.planner.states import NO_END
from provisioner.reasons import Reason
from provisioner.resources import Resources
from provisioner.values import define, factory


def stranded_gpus(kind: DroneType, nodes: Iterable[Node]) -> reasons.GpusStranded | None:
    """Return why no node with enough free GPUs has room for a drone of the type: the resource that most GPUs lack.

    None if some node has room, or none has GPUs.
    """
    wanted = {"cpus": kind.cpus, "memory": kind.memory_mib, "disk": kind.disk_mib}
    short: dict[str, list[tuple[int, int]]] = {}
    for node in nodes if kind.gpu_milli else ():
        if kind.name not in node.types or node.free_gpu_milli < kind.gpu_milli:
            continue
        free = {"cpus": node.free_cpus, "memory": node.free_memory_mib}
        if node.disk_mib:
            free["disk"] = node.free_disk_mib
        scarce = next(
            (dimension for dimension, amount in free.items() if amount < wanted[dimension]), None
        )
        if scarce is None:
            return None
        short.setdefault(scarce, []).append((node.free_gpu_milli, free[scarce]))
    if not short:
        return None
    dimension, found = max(
        short.items(), key=lambda each: (sum(milli for milli, _ in each[1]), each[0])
    )
    gpus = sum(milli for milli, _ in found) / WHOLE_GPU
    most = max(amount for _, amount in found)
    return reasons.GpusStranded(kind.key, len(found), gpus, dimension, wanted[dimension], most)


def passes_soon(why: Reason | None) -> bool:
    """Return True if a limit spreads starts over time, and holds none back for long."""
    return isinstance(why, reasons.LimitReached) and why.limit in (
        "max_starts_per_tick",
        "max_pending",
    )


PlacesAllowed = tuple[int, Reason | None]
"""Number of drones that may start, and the reason that holds the next one back."""


@define
class StartLimits:
    """Remaining starts within every limit, breaker, quota and free capacity. Mutable, local to one plan.

    Drones on record count until they are confirmed gone, orphans included.
    """

    context: PlanningContext
    reservations: OwnerReservations
    drones: Counter[str] = factory(Counter)
    """By site, by type key, and ``""`` for all."""
    gpu_milli: Counter[str] = factory(Counter)
    pending: Counter[str] = factory(Counter)
    started: Counter[str] = factory(Counter)
    probes: Counter[str] = factory(Counter)
    """Pending drones that were ordered since their site or type is probed: older ones are no probes."""
    free: dict[str, dict[str, float]] = factory(dict)
    """By site and type name: free places at a site that does not report nodes, less those promised."""
    free_milli: dict[str, int] = factory(dict)
    """By site: free milli-GPUs of the whole site, if reported."""
    quota: dict[str, dict[str, float]] = factory(dict)
    """By site and type name: places that a site's quota allows, less those promised."""
    counted: dict[TypeKey, int] = factory(dict)
    """Places on nodes by type, cached until more is promised there."""
    blocked: dict[TypeKey, Reason] = factory(dict)
    """Types with a drone that waits at its site for an obstacle that another one would meet as well."""
    spent: dict[TypeKey, Reason | None] = factory(dict)
    """Types of which no more may be started, and the reason."""
    startable: set[TypeKey] = factory(set)
    """All other types, as far as is known yet."""

    @classmethod
    def of(cls, context: PlanningContext, reservations: OwnerReservations) -> StartLimits:
        """Count everything once."""
        limits = cls(context, reservations, startable=set(context.types))
        sizes = Counter(map(attrgetter("type", "gpu_milli"), context.drones.values()))
        for (key, gpu_milli), count in sizes.items():
            limits._count(key, count, gpu_milli)
        for site, count in context.orphan_counts.items():
            if count:
                largest = max(
                    (t.gpu_milli for t in context.snapshot.types if t.site == site), default=0
                )
                limits._count(site, count, largest)
        for site, polled in context.snapshot.sites.items():
            view = polled.view
            if view is None:
                continue
            if view.free is not None and not view.nodes:
                limits.free[site] = {name: float(count) for name, count in view.free.items()}
                if view.free_gpu_milli is not None:
                    limits.free_milli[site] = view.free_gpu_milli
            if view.quota is not None:
                limits.quota[site] = {name: float(count) for name, count in view.quota.items()}
        probing = {
            str(b.scope): b.since
            for b in context.breakers.values()
            if b.state is BreakerState.PROBING
        }
        for drone in context.unsettled:
            if drone.state in model.PENDING:
                limits._book_pending(drone, probing)
        return limits

    def _book_pending(self, drone: Drone, probing: Mapping[str, float]) -> None:
        """Book a drone that was ordered and is not in the pool yet. ``probing``: scopes that are probed, since when."""
        remote = self.context.remote(drone)
        if (
            remote is not None
            and remote.blocked is not None
            and remote.state is model.RemoteState.PENDING
        ):
            self.blocked[drone.type] = reasons.StartBlocked(
                drone.type, remote.blocked.value, remote.reason
            )
        for scope in (drone.site, drone.type):
            self.pending[scope] += 1
            self.probes[scope] += drone.requested_at >= probing.get(scope, NO_END)
        if drone.awaits_room:
            self._promise(drone.type, 1)
        # The quota that a site tells may not know yet of an order that its listing does not show.
        if remote is None:
            _take_share(self.quota.get(drone.site, {}), drone.type, 1)

    def _count(self, scope: str, count: int, gpu_milli: int) -> None:
        """Count drones of a type, or of a site whose types are unknown."""
        site = site_of(scope)
        for each in dict.fromkeys((scope, site, "")):
            self.drones[each] += count
        for each in (site, ""):
            self.gpu_milli[each] += count * gpu_milli

    def _promise(self, key: TypeKey, count: int) -> None:
        """Reserve places for drones that hold none yet, at a site that does not report nodes.

        No type has more places than the free GPUs of its site. Without that number, all types lose
        in proportion.
        """
        site = site_of(key)
        left = self.free.get(site)
        in_all = self.free_milli.get(site)
        if left is None:
            return
        if in_all is None:
            _take_share(left, key, count)
            return
        kind = self.context.types.get(key)
        in_all = self.free_milli[site] = max(
            0, in_all - count * (kind.gpu_milli if kind is not None else WHOLE_GPU)
        )
        name = type_name(key)
        left[name] = max(0.0, left.get(name, 0.0) - count)
        for other in left:
            each = self.context.types.get(TypeKey(f"{site}/{other}"))
            if each is not None and each.gpu_milli:
                left[other] = min(left[other], float(in_all // each.gpu_milli))

    def start(self, key: TypeKey, count: int) -> None:
        """Book ``count`` starts of a type."""
        kind = self.context.types[key]
        site = kind.site
        self._count(key, count, kind.gpu_milli)
        for counts in (self.pending, self.probes, self.started):
            counts.update({site: count, key: count})
        if site in self.reservations.free:
            self.reservations.free[site].book(kind, count)
            self.counted = {other: n for other, n in self.counted.items() if site_of(other) != site}
        self._promise(key, count)
        _take_share(self.quota.get(site, {}), key, count)

    def free_for(self, key: TypeKey) -> int | None:
        """Return how many drones of a type could start right now, or None if the site does not report it."""
        kind = self.context.types[key]
        if kind.site in self.reservations.free:
            if key not in self.counted:
                self.counted[key] = self.reservations.free[kind.site].count(kind)
            return self.counted[key]
        return int(self.free[kind.site].get(kind.name, 0.0)) if kind.site in self.free else None

    def for_type(self, key: TypeKey) -> PlacesAllowed:
        """Return how many drones of a type may be started now, and the limit that binds."""
        if key in self.spent:
            return 0, self.spent[key]
        count, reason = self._for_type(key, self.context.types[key])
        if count == 0:  # limits only shrink within a plan
            self.spent[key] = reason
            self.startable.discard(key)
        return count, reason

    def _for_type(self, key: TypeKey, kind: DroneType) -> PlacesAllowed:
        """Return the smallest bound, the first of equal ones: a doubt, else limits, room, quota and breakers."""
        doubt = self._doubt(key, kind)
        if doubt is not None:
            return 0, doubt
        policy = self.context.snapshot.policy
        site = policy.sites[kind.site]
        least: PlacesAllowed = 1 << 30, None
        for limit, scope, counts, most, each in (
            ("max_starts_per_tick", kind.site, self.started, site.max_starts_per_tick, 1),
            ("max_pending", kind.site, self.pending, site.max_pending, 1),
            ("max_drones", key, self.drones, kind.max_drones, 1),
            ("max_drones", kind.site, self.drones, site.max_drones, 1),
            ("max_drones", "", self.drones, policy.max_drones, 1),
            ("max_gpus", kind.site, self.gpu_milli, site.max_gpu_milli, kind.gpu_milli),
            ("max_gpus", "", self.gpu_milli, policy.max_gpu_milli, kind.gpu_milli),
        ):
            if (
                most is not None
                and each
                and (left := max(0, (most - counts[scope]) // each)) < least[0]
            ):
                unit = WHOLE_GPU if limit == "max_gpus" else 1
                why = reasons.LimitReached(
                    limit, scope or "all sites", counts[scope] / unit, most / unit
                )
                least = left, why
        free = None if site.queue_when_full else self.free_for(key)
        if free is not None and free < least[0]:
            least = free, self._why_full(kind)
        quota = self.quota.get(kind.site, {}).get(kind.name)
        if quota is not None and int(quota) < least[0]:
            least = int(quota), reasons.SiteQuota(key)
        for breaker in (self._breaker(Scope(kind.site)), self._breaker(kind.scope)):
            if breaker is not None and breaker[0] < least[0]:
                least = breaker
        return least

    def _doubt(self, key: TypeKey, kind: DroneType) -> Reason | None:
        """Return the reason for which no drone of a type may start, however much room there is."""
        snapshot = self.context.snapshot
        site = snapshot.policy.sites.get(kind.site)
        if site is None or not site.enabled:
            return reasons.SiteDisabled(kind.site)
        disabled = snapshot.disabled.get(kind.site)
        if disabled is not None:
            return reasons.SiteDisabled(kind.site, disabled.by, disabled.reason)
        view = self.context.validity.views.get(kind.site)
        if view is not None and view.taken_at < snapshot.starts_from:
            return reasons.NewLeader(kind.site, snapshot.starts_from)
        return (
            dead_credential(snapshot, f"site:{kind.site}")
            or self.context.validity.sites.get(kind.site)
            or self.reservations.held.get(key)
            or self.blocked.get(key)
            or life_too_short(self.context, kind)
        )

    def _why_full(self, kind: DroneType) -> Reason:
        if kind.site in self.reservations.free and not kind.gpu_milli:
            gpus = self.reservations.free[kind.site].unblocked_gpus(kind)
            if gpus:
                return reasons.ReserveKept(kind.key, gpus)
        view = self.context.validity.views.get(kind.site)
        short = stranded_gpus(kind, view.nodes) if view is not None and view.nodes else None
        lack = (
            (view.unfit.get(kind.name) or view.lacks.get(kind.name, "")) if view is not None else ""
        )
        return short or self.reservations.claimed.get(kind.site) or reasons.SiteFull(kind.key, lack)

    def _breaker(self, of: Scope) -> PlacesAllowed | None:
        breaker = self.context.breakers.get(of)
        scope = str(of)
        if breaker is None:
            return None
        match breaker.state:
            case BreakerState.ACTIVE:
                return None
            case BreakerState.DEGRADED:
                return max(0, 1 - self.started[scope]), reasons.Probing(scope)
            case BreakerState.PROBING:
                return max(0, 1 - self.probes[scope]), reasons.Probing(scope)
            case BreakerState.BANNED:
                fault = breaker.fault
                kind, text = (fault.kind.value, fault.message) if fault else ("unknown", "")
                return 0, reasons.BackingOff(scope, breaker.until, kind, text)


def _take_share(left: dict[str, float], key: TypeKey, count: int) -> None:
    """Take ``count`` of one type of a site, and the same share of all others."""
    name = type_name(key)
    mine = left.get(name, 0.0)
    share = min(1.0, count / mine) if mine > 0 else 1.0
    for other in left:
        left[other] = max(0.0, left[other] - (count if other == name else share * left[other]))


_FULL_SITE_H = 1_000_000
"""Waiting time of a full site: longer than any that a site expects."""


@define
class TypeRanking:
    """Order of drone types: by expected start, then by cost, then by unused VRAM and capability.

    Sites with free GPUs, or without a report, come before those where a drone would queue.
    """

    wait_h: Mapping[TypeKey, int]
    """Expected hours until a start: types with lower values are tried first."""
    sure: frozenset[TypeKey]
    """Types of which a drone would start now, by what their site reports."""
    any_late: bool
    costs: StartCosts

    @classmethod
    def of(cls, context: PlanningContext, limits: StartLimits) -> TypeRanking:
        """Rank the types by what is free before anything is started."""
        waits: dict[TypeKey, int] = {}  # until the site expects to start the last delayed drone
        for drone in (context.drones[drone_id] for drone_id in context.late):
            remote = context.remote(drone)
            if remote is not None:
                hours = 1 + max(0, int((remote.expected_start_at - context.now) // 3600))
                waits[drone.type] = max(waits.get(drone.type, 0), hours)
        # larger drones wait for the same GPUs
        for key, smaller in context.costs.smaller.items() if waits else ():
            if hours := max((waits.get(other, 0) for other in smaller), default=0):
                waits[key] = max(hours, waits.get(key, 0))
        free = {key: limits.free_for(key) for key in context.types}
        # Where a drone waits all the same, the free capacity is reserved for another drone.
        sure = frozenset(
            key for key, count in free.items() if count and count > 0 and key not in waits
        )
        full = {key for key, count in free.items() if count is not None and count <= 0}
        wait_h = {key: (_FULL_SITE_H if key in full else 0) + waits.get(key, 0) for key in free}
        return cls(wait_h, sure, bool(waits), context.costs)

    def for_jobs(self, compatible: CompatibleTypes, cost: JobCost) -> Sequence[TypeKey]:
        """Return the compatible types for jobs of one cost in the order in which they are tried."""
        return sorted(self.costs.ranked(compatible, cost), key=self.wait_h.__getitem__)

    def candidates(
        self, compatible: CompatibleTypes, cost: JobCost, still_open: Set[TypeKey]
    ) -> Sequence[TypeKey]:
        """Return the types that are still open, in order, and those at which delayed drones are counted as supply."""
        # The latter are the first type of which another drone might wait as well, and the last one
        # before it.
        keys = self.for_jobs(compatible, cost)
        unsure = (
            next((n for n, key in enumerate(keys) if key not in self.sure), len(keys))
            if self.any_late
            else 0
        )
        turn = keys[max(0, unsure - 1) : unsure + 1] if self.any_late else ()
        if compatible.keys.isdisjoint(still_open):  # as for most classes once all is full
            return turn
        return [key for key in keys if key in still_open or key in turn]


class SlotShape(NamedTuple):
    """Everything of drone slots but their type and count."""

    room: Resources
    """Free room in each drone."""
    ends_at: float
    on_the_way: bool
    late: bool = False
    """They wait at their site and will not start soon (:func:`context.delayed_drones`)."""
    job_filter: JobFilter = TAKES_ALL
    """The lasting rules."""


@define
class DroneSlots:
    """Free slots in ``count`` drones of one type."""

    kind: DroneType
    shape: SlotShape
    count: int

    def holds(self, job: JobClass, now: float) -> int:
        """Return how many jobs of the class one of these drones can still take before it ends."""
        shape = self.shape
        too_long = job.walltime_s and now + job.walltime_s > shape.ends_at
        if too_long or shape.job_filter.refuses(job):
            return 0
        return count_jobs(job, shape.room, self.kind)

    def fill(self, job: JobClass, jobs: int, each: int) -> list[DroneSlots]:
        """Put ``jobs`` jobs into these drones, ``each`` to a drone, and return the slots that are left."""
        full, partly = divmod(jobs, each)
        self.count -= -(-jobs // each)
        parts = [self]
        for taken, count in ((partly, 1), (each, full)):
            if taken and count:
                room = self.shape.room.plus(request_of(job, self.kind), -taken)
                parts.insert(0, DroneSlots(self.kind, self.shape._replace(room=room), count))
        return [part for part in parts if part.count and not part.full]

    @property
    def full(self) -> bool:
        return (self.shape.room.gpu_milli if self.kind.gpu_milli else self.shape.room.cpus) <= 0


class Coverage(NamedTuple):
    """Jobs of a class that the supply covers."""

    jobs: int = 0
    drones: int = 0
    """Drones for them that are not in the pool yet."""

    def plus(self, more: Coverage) -> Coverage:
        return Coverage(self.jobs + more.jobs, self.drones + more.drones) if more.jobs else self


NO_COVERAGE = Coverage()


@define
class Supply:
    """Free slots of all drones by type. Mutable, local to one plan; :meth:`take` books jobs."""

    now: float
    order: Mapping[TypeKey, int]
    """Position of each type in the configuration."""
    slots: dict[TypeKey, list[DroneSlots]] = factory(dict)
    late: set[TypeKey] = factory(set)
    """Types with slots in delayed drones."""
    own: dict[str, Coverage] = factory(dict)
    """By class id: jobs that are booked into drones that were started for them."""
    _lacking: set[tuple[CompatibleTypes, str, bool]] = factory(set)
    """Request, user, and True for delayed drones: nothing was left for them since the slots last changed."""

    @classmethod
    def of(cls, context: PlanningContext) -> Supply:
        """Collect the slots of the drones on record. Drones that leave offer none."""
        supply = cls(context.now, {key: place for place, key in enumerate(context.types)})
        wanted = {job.id: job.waiting for job in context.classes if job.waiting > 0}
        groups: Counter[tuple[str, TypeKey, SlotShape]] = Counter()
        empties = {key: resources_of_type(kind) for key, kind in context.types.items()}
        downtimes = {
            site: downtime_at(context, site)
            for site in {kind.site for kind in context.types.values()}
        }
        for drone in context.unsettled:
            shape = _slot_shape(context, drone, empties, downtimes)
            if shape is not None:
                own = (
                    not shape.late
                    and not drone.jobs_started
                    and not drone.jobs
                    and drone.for_class in wanted
                )
                groups[drone.for_class if own else "", drone.type, shape] += 1
        jobs = {job.id: job for job in context.classes if job.id in wanted}
        shared: Counter[tuple[TypeKey, SlotShape]] = Counter()
        for (for_class, key, shape), count in groups.items():
            stock = DroneSlots(context.types[key], shape, count)
            parts = [stock]
            if for_class and wanted[for_class] > 0 and key in context.compatible[for_class].jobs:
                job = jobs[for_class]
                each = stock.holds(job, context.now)
                here = min(wanted[for_class], each * count)
                if here:  # jobs of the class that the drones were started for
                    wanted[for_class] -= here
                    taken = Coverage(here, -(-here // each) if shape.on_the_way else 0)
                    supply.own[for_class] = supply.own.get(for_class, NO_COVERAGE).plus(taken)
                    parts = stock.fill(job, here, each)
            for part in parts:
                shared[key, part.shape] += part.count
        for (key, shape), count in shared.items():
            supply.add(DroneSlots(context.types[key], shape, count))
        return supply

    def add_preemptible(self, context: PlanningContext) -> None:
        """Add, for headroom, the part of drones that runs nothing but jobs that give way."""
        for drone in context.drones.values() if context.headroom else ():
            slot = context.slots.get(drone.id)
            kind = context.types.get(drone.type)
            if slot and drone.idle_at and not slot.work_at:  # a claim whose job is not known yet
                slot = replace(slot, optional_jobs=slot.jobs)
            if (
                drone.state is DroneState.BUSY
                and slot
                and kind
                and slot.only_optional
                and not drone.notice_at
            ):
                shape = SlotShape(
                    lent_resources(slot, kind),
                    slot.retires_at or NO_END,
                    False,
                    job_filter=drone.job_filter.lasting,
                )
                self.add(DroneSlots(kind, shape, 1))

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
        self._lacking.clear()
        if more.shape.late:
            self.late.add(more.kind.key)

    def take(
        self,
        job: JobClass,
        compatible: CompatibleTypes,
        jobs: int,
        key: TypeKey | None = None,
        *,
        late: bool = False,
    ) -> Coverage:
        """Book up to ``jobs`` jobs into drones that are delayed (``late``) or not, of all types or of ``key``."""
        booked = 0
        drones = 0
        request = (compatible, job.owner, late)
        stocked = self.late if late else self.slots.keys()
        if request in self._lacking or compatible.keys.isdisjoint(stocked):
            return NO_COVERAGE
        for kind in (
            (key,) if key else sorted(compatible.keys & stocked, key=self.order.__getitem__)
        ):
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
            self.slots[kind] = rest
            if not rest:
                del self.slots[kind]
            if late and not any(have.shape.late for have in rest):
                self.late.discard(kind)
            if booked >= jobs:
                break
        if booked:
            self._lacking.clear()
            return Coverage(booked, drones)
        if jobs > 0 and key is None:
            self._lacking.add(request)
        return NO_COVERAGE

    def untouched(self, kind: DroneType, job_filter: JobFilter) -> int:
        """Return the number of drones of a type and filter on their way into which no job is booked."""
        wanted = resources_of_type(kind), True, job_filter
        stocked = ((each.shape, each.count) for each in self.slots.get(kind.key, ()))
        return sum(
            n for each, n in stocked if (each.room, each.on_the_way, each.job_filter) == wanted
        )


def _slot_shape(
    context: PlanningContext,
    drone: Drone,
    empties: Mapping[TypeKey, Resources],
    downtimes: Mapping[str, float],
) -> SlotShape | None:
    """Return the free slots of one drone; None if it is no supply."""
    kind = context.types.get(drone.type)
    if kind is None or drone.service or drone.is_leaving or drone.notice_at:
        return None
    slot = context.slots.get(drone.id)
    late = drone.id in context.late
    if drone.state in ON_THE_WAY or (drone.state is DroneState.IDLE and slot is None):
        if drone.state is DroneState.QUEUED and drone.started_at:
            return None  # preempted: it does not come back
        # An idle drone that the pool forgot for a while (a collector's restart) still is supply.
        ends_at = (
            drone.started_at + kind.longest_job_s
            if drone.started_at and kind.walltime_s
            else NO_END
        )
        ends_at = min(ends_at, downtimes[kind.site] - DOWNTIME_MARGIN_S)
        return SlotShape(empties[drone.type], ends_at, True, late, drone.job_filter.lasting)
    if slot is None or (slot.free_gpu_milli if kind.gpu_milli else slot.free_cpus) <= 0:
        return None
    ends_at = min(slot.retires_at or NO_END, downtimes[kind.site])
    return SlotShape(free_resources(slot), ends_at, False, late, drone.job_filter.lasting)
