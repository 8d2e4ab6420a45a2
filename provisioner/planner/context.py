"""The planning context: one snapshot and what is derived from it before any rule runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import filterfalse

from provisioner import reasons
from provisioner.model import (
    Breaker,
    Drain,
    Drone,
    DroneId,
    DroneState,
    DroneType,
    Fault,
    JobClass,
    Plan,
    Policy,
    Refusal,
    RemoteDrone,
    RemoteState,
    RequestKind,
    SiteView,
    Slot,
    SlotState,
    Snapshot,
    Start,
    StateChange,
    Stop,
    StopOrphan,
    TypeKey,
)
from provisioner.planner.breakers import ClassBackoffs
from provisioner.planner.headroom import headroom_classes
from provisioner.planner.matching import CompatibleTypes, compatibility_cache
from provisioner.reasons import Reason

VANISHED_MIN_DRONES = 3
VANISHED_FRACTION = 0.5
VANISHED_WAIT_FACTOR = 10
"""When at least this many drones, and this fraction of a site's drones, vanish at once, the planner waits this many
times longer before it believes it: an empty listing is far more often a broken listing."""


@dataclass(frozen=True, slots=True)
class ViewValidity:
    """Validity of the views. Nothing is started or stopped where a view is doubted."""

    overlay: Reason | None
    sites: Mapping[str, Reason | None]
    vanished: frozenset[str]
    slots: Mapping[DroneId, Slot]
    """Slots with a recent sign of life; none if the overlay's view is doubted."""
    split: SteadyStateSplit
    """The drones on record, split by the valid views."""

    def site_view(self, snapshot: Snapshot, site: str) -> SiteView | None:
        """Return the view of a site if it is fresh, even if many drones vanished from it."""
        doubt = self.sites.get(site)
        if doubt is not None and not isinstance(doubt, reasons.AllVanished):
            return None
        polled = snapshot.sites.get(site)
        return polled.view if polled else None


def check_views(snapshot: Snapshot) -> ViewValidity:
    """Check each view for age and faults, and each listing for vanished drones."""
    now, policy = snapshot.now, snapshot.policy
    view = snapshot.overlay.view
    overlay = _stale("overlay", view.taken_at if view else None, snapshot.overlay.fault, now, policy.overlay_max_age_s)
    slots = _alive_slots(snapshot) if overlay is None else {}
    sites: dict[str, Reason | None] = {}
    views: dict[str, SiteView] = {}
    for name, site_policy in policy.sites.items():
        polled = snapshot.sites.get(name)
        taken = polled.view.taken_at if polled and polled.view else None
        doubt: Reason | None = _stale(
            f"site:{name}", taken, polled.fault if polled else None, now, site_policy.view_max_age_s
        )
        if doubt is None and polled is not None and polled.busy:
            age = now - taken if taken is not None else -1.0
            doubt = reasons.StaleView(
                f"site:{name}", age, site_policy.view_max_age_s, "its last orders are still under way"
            )
        if doubt is None and polled is not None and polled.view is not None:
            views[name] = polled.view
        sites[name] = doubt
    split = split_steady(snapshot, slots, views)
    vanished = _vanished(policy, views, split)
    sites.update(vanished)
    return ViewValidity(overlay, sites, frozenset(vanished), slots, split)


def _alive_slots(snapshot: Snapshot) -> Mapping[DroneId, Slot]:
    view, oldest = snapshot.overlay.view, snapshot.now - snapshot.policy.slot_max_age_s
    return {s.drone_id: s for s in view.slots if s.heard_at >= oldest} if view else {}


def _stale(name: str, taken: float | None, fault: Fault | None, now: float, limit_s: float) -> reasons.StaleView | None:
    age = -1.0 if taken is None else max(0.0, now - taken)
    if fault is not None:
        return reasons.StaleView(name, age, limit_s, fault.message)
    if taken is None:
        return reasons.StaleView(name, -1.0, limit_s, "never seen")
    if age > limit_s:
        return reasons.StaleView(name, age, limit_s, "too old")
    return None


def _vanished(policy: Policy, views: Mapping[str, SiteView], split: SteadyStateSplit) -> Mapping[str, Reason]:
    """Return the sites whose listing lacks so many drones at once that it is doubted."""
    known: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    for drone in split.changing.values():
        site = drone.site
        view = views.get(site)
        if view is None or drone.state in (DroneState.REQUESTED, DroneState.SUBMITTED) or drone.is_leaving:
            continue
        known[site] += 1
        if drone.id not in view.drones:
            limit_s = policy.sites[site].missing_s * VANISHED_WAIT_FACTOR
            missing[site] += not drone.missing_at or view.taken_at - drone.missing_at < limit_s
    for key, count in split.steady.items() if missing else ():
        known[key.partition("/")[0]] += count
    return {
        site: reasons.AllVanished(site, count)
        for site, count in missing.items()
        if count >= VANISHED_MIN_DRONES and count >= VANISHED_FRACTION * known[site]
    }


HEARTBEAT_RECORD_INTERVAL_S = 300.0
"""Interval at which the last sign of life of an otherwise unchanged drone is recorded."""
_STEADY_SLACK_S = 1.0
"""A drone is no longer steady this long before its walltime ends."""


@dataclass(frozen=True, slots=True)
class SteadyStateSplit:
    """The drones on record, split into steady and changing ones."""

    changing: Mapping[DroneId, Drone]
    """Drones that are not steady, in the order of the record."""
    steady: Mapping[TypeKey, int] = field(default_factory=dict)
    """Number of steady drones by type. Their types are configured and have the size that they had at the order."""


@dataclass(slots=True)
class _SteadyType:
    """Steady drones of one type, and the values that they are compared with."""

    kind: DroneType
    listed: Mapping[DroneId, RemoteDrone]
    oldest: float
    """A drone that started before this has reached, or will soon reach, the end of its walltime."""
    count: int = 0


def split_steady(snapshot: Snapshot, slots: Mapping[DroneId, Slot], views: Mapping[str, SiteView]) -> SteadyStateSplit:
    """Split the drones on record into steady and changing ones by the valid slots and views."""
    steady_types = _steady_types(snapshot, views)
    busy, slot_busy, running = DroneState.BUSY, SlotState.BUSY, RemoteState.RUNNING
    changing: dict[DroneId, Drone] = {}
    for drone_id, drone in snapshot.drones.items():
        # One expression without a call: this is all that a large site costs in most ticks.
        if (
            drone.state is busy
            and (slot := slots.get(drone_id)) is not None
            and (steady := steady_types.get(drone.type)) is not None
            and (remote := steady.listed.get(drone_id)) is not None
            and slot.state is slot_busy
            and (slot.free_gpu_milli if drone.gpu_milli else slot.free_cpus) <= 0
            and slot.jobs == drone.jobs
            and slot.jobs_started == drone.jobs_started
            and slot.work_at == drone.work_at
            and slot.work_gpu_milli == drone.work_gpu_milli
            and slot.retires_at == drone.retires_at
            and slot.name == drone.slot
            and slot.heard_at - drone.heard_at < HEARTBEAT_RECORD_INTERVAL_S
            and remote.state is running
            and remote.end is None
            and not remote.notice_at
            and remote.reason == drone.site_reason
            and remote.remote_id == drone.remote_id
            and remote.node == drone.node
            and remote.slot == drone.site_slot
            and drone.started_at > steady.oldest
            and drone.submitted_at
            and drone.joined_at
            and drone.busy_at
            and not drone.idle_at
            and not drone.missing_at
            and not drone.unslotted_at
            and not drone.notice_at
            and drone.leaving is None
            and drone.gpu_milli == steady.kind.gpu_milli
        ):
            steady.count += 1
        else:
            changing[drone_id] = drone
    return SteadyStateSplit(changing, {key: steady.count for key, steady in steady_types.items() if steady.count})


def _steady_types(snapshot: Snapshot, views: Mapping[str, SiteView]) -> dict[TypeKey, _SteadyType]:
    """Return an entry for each type of a site with a valid view."""
    steady_types = {}
    for kind in snapshot.types:
        view, policy = views.get(kind.site), snapshot.policy.of_site(kind.site)
        if view is not None:
            life_s = kind.walltime_s + policy.grace_s - _STEADY_SLACK_S if kind.walltime_s else snapshot.now
            steady_types[kind.key] = _SteadyType(kind, view.drones, max(0.0, snapshot.now - life_s))
    return steady_types


DELAYED_AFTER_S = 600.0
"""A drone is delayed if its site expects to start it later than this, or if a limit holds it there. A drone needs about
this time from its order to its first job."""
NO_ROOM_DELAY_S = 180.0
"""A drone is also delayed if it has waited this long, and twice as long as usual, while the free capacity goes to
drones ahead of it."""
_AT_SITE_QUEUE = (DroneState.SUBMITTED, DroneState.QUEUED)


def delayed_drones(
    snapshot: Snapshot, validity: ViewValidity, types: Mapping[TypeKey, DroneType], drones: Iterable[Drone]
) -> frozenset[DroneId]:
    """Return the drones that wait at their site and will not start soon.

    They are no reason to wait with starts where there is room now. The site's expected start or limit decides. Without
    either, the usual waiting time of the type and the site's free capacity do.
    """
    found: set[DroneId] = set()
    unreported: dict[TypeKey, list[Drone]] = {}
    for drone in drones:
        if drone.state not in _AT_SITE_QUEUE:
            continue
        view = validity.site_view(snapshot, drone.site)
        remote = view.drones.get(drone.id) if view is not None else None
        if remote is None:
            continue
        delayed = _reported_delay(snapshot, drone, remote)
        if delayed:
            found.add(drone.id)
        elif delayed is None and drone.awaits_room:
            unreported.setdefault(drone.type, []).append(drone)
    for key, waiting in unreported.items():
        kind = types.get(key)
        view = validity.site_view(snapshot, kind.site) if kind is not None else None
        if kind is not None and view is not None:
            found |= {drone.id for drone in _without_room(snapshot, view, kind, waiting)}
    return frozenset(found)


def _reported_delay(snapshot: Snapshot, drone: Drone, remote: RemoteDrone) -> bool | None:
    """Return whether the site's report or the estimates call the drone delayed, None if they say nothing."""
    if remote.blocked is not None:
        return True
    if remote.expected_start_at:
        return remote.expected_start_at > snapshot.now + DELAYED_AFTER_S
    usual = snapshot.estimates.delays.get(drone.type)
    return True if usual is not None and usual.queue_s > DELAYED_AFTER_S else None


def _without_room(snapshot: Snapshot, view: SiteView, kind: DroneType, waiting: list[Drone]) -> Iterator[Drone]:
    """Yield drones that have waited too long and for which nothing is free after those ahead of them."""
    usual = snapshot.estimates.delays.get(kind.key)
    too_long_s = max(NO_ROOM_DELAY_S, 2.0 * usual.queue_s if usual is not None else 0.0)
    if snapshot.now - min(drone.requested_at for drone in waiting) <= too_long_s:
        return
    free = _free_count(view, kind)
    if free is None:
        return
    for drone in sorted(waiting, key=lambda d: (d.requested_at, d.id))[free:]:
        if snapshot.now - drone.requested_at > too_long_s:
            yield drone


def _free_count(view: SiteView, kind: DroneType) -> int | None:
    """Return how many drones of a type the free capacity holds at most, or None if the site does not report it."""
    if view.nodes:
        if not kind.gpu_milli:
            return None
        milli = sum(node.free_gpu_milli for node in view.nodes if kind.name in node.types)
        return milli // kind.gpu_milli
    return view.free.get(kind.name, 0) if view.free is not None else None


NO_END = float("inf")
DOWNTIME_MARGIN_S = 300.0
"""A drone ends this long before a downtime, since it may wait a little before it starts."""
MIN_LIFE_S = 1800.0
"""Shortest life that is worth a start. For types with a shorter walltime, their walltime."""


def downtime_at(context: PlanningContext, site: str) -> float:
    """Return the start of the site's next downtime by its newest view, however old; infinity if none is known."""
    polled = context.snapshot.sites.get(site)
    at = polled.view.downtime_at if polled is not None and polled.view is not None else 0.0
    return at if at > context.now else NO_END


def drone_end_at(context: PlanningContext, kind: DroneType) -> float:
    """Return the time by which a drone of the type, started now, has to end."""
    own = context.now + kind.walltime_s if kind.walltime_s else NO_END
    return min(own, downtime_at(context, kind.site) - DOWNTIME_MARGIN_S)


def shortened_life_s(context: PlanningContext, kind: DroneType) -> float:
    """Return how long a drone may live, in whole seconds, if a downtime shortens its life, else 0."""
    left_s = drone_end_at(context, kind) - context.now
    return float(int(left_s)) if left_s < (kind.walltime_s or NO_END) else 0.0


def life_too_short(context: PlanningContext, kind: DroneType, wanted_s: float = 0.0) -> reasons.Downtime | None:
    """Return the downtime that forbids a start for jobs of ``wanted_s``, or None."""
    left_s = drone_end_at(context, kind) - context.now
    least_s = max(wanted_s, min(MIN_LIFE_S, kind.walltime_s or MIN_LIFE_S))
    if left_s >= least_s or (kind.walltime_s and wanted_s > kind.walltime_s):
        return None
    return reasons.Downtime(kind.site, downtime_at(context, kind.site), max(0.0, left_s), least_s)


_UNKNOWN_SITE = object()


@dataclass(frozen=True, slots=True)
class RetirementResult:
    """Drones that are asked to leave."""

    drains: tuple[Drain, ...] = ()
    stops: tuple[Stop, ...] = ()
    orphans: tuple[StopOrphan, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    requests_done: tuple[int, ...] = ()
    moves: tuple[StateChange, ...] = ()
    """Further changes of records, each after the changes that views have caused."""

    @property
    def asks(self) -> tuple[Drain | Stop, ...]:
        return (*self.drains, *self.stops)


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """Drones to start and to undrain, and the reasons for what waits."""

    starts: tuple[Start, ...] = ()
    resumes: tuple[Drain, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    lacking_room: Mapping[TypeKey, int] = field(default_factory=dict)
    """By drone type: number of drones that are lacking only because the site has no room."""
    without_headroom: frozenset[str] = frozenset()
    """Sites that keep no headroom now: real jobs lack room there, or the owner waits."""
    at_risk: Mapping[DroneId, reasons.DrainAtRisk] = field(default_factory=dict)
    """Drones that should take no more jobs because the owner is likely to take their place."""


@dataclass(frozen=True, slots=True)
class PlanningContext:
    """A snapshot after its state changes, with what all rules need."""

    snapshot: Snapshot
    validity: ViewValidity
    breakers: Mapping[str, Breaker]
    drones: Mapping[DroneId, Drone]
    """Live drones, after the state changes."""
    changing: Mapping[DroneId, Drone]
    """Live drones that are not steady: rules go through these alone."""
    steady: Mapping[TypeKey, int]
    """Number of steady drones by type."""
    slots: Mapping[DroneId, Slot]
    """Alive slots of a fresh view; empty without one."""
    types: Mapping[TypeKey, DroneType]
    classes: tuple[JobClass, ...]
    """Job classes with waiting or fresh jobs; empty without a fresh view."""
    headroom: tuple[JobClass, ...]
    """Headroom as classes of virtual jobs. They are served last and are no demand in any other sense."""
    compatible: Mapping[str, CompatibleTypes]
    """By class id: the drone types that can run its jobs, without those on which the class backs off."""
    class_backoffs: ClassBackoffs
    """Job classes that back off on drone types."""
    orphan_counts: Mapping[str, int]
    """By site: listed drones without a live record. They count against the limits until they are gone."""
    too_unhealthy: Reason | None
    late: frozenset[DroneId]
    """Drones that are delayed at their site (:func:`delayed_drones`)."""

    @classmethod
    def of(
        cls, snapshot: Snapshot, validity: ViewValidity, moves: Sequence[StateChange], breakers: Mapping[str, Breaker]
    ) -> PlanningContext:
        """Derive the context from a snapshot."""
        after = {m.drone.id: m.drone for m in moves}
        split = validity.split
        changing = {i: d for i, was in split.changing.items() if not (d := after.get(i, was)).state.ended}
        live = {**snapshot.drones, **changing}
        for drone_id in split.changing.keys() - changing.keys():
            del live[drone_id]
        view = snapshot.overlay.view if validity.overlay is None else None
        classes = tuple(_without_limited(c) for c in view.classes if c.waiting > 0 or c.fresh > 0) if view else ()
        headroom = headroom_classes(snapshot.policy, snapshot.types, snapshot.now) if view else ()
        known = compatibility_cache(snapshot.types, snapshot.policy)
        class_backoffs = ClassBackoffs.of(breakers, changing.values())
        compatible = dict(known.table((*classes, *headroom)))
        for class_id, banned in class_backoffs.banned.items():
            if fits := compatible.get(class_id):
                compatible[class_id] = fits.only(kind for kind in fits.kinds if kind.key not in banned)
        return cls(
            snapshot=snapshot,
            validity=validity,
            breakers=breakers,
            drones=live,
            changing=changing,
            steady=split.steady,
            slots=validity.slots,
            types=known.by_key,
            classes=classes,
            headroom=headroom,
            compatible=compatible,
            class_backoffs=class_backoffs,
            orphan_counts=_orphan_counts(snapshot, live),
            too_unhealthy=_too_many_unhealthy(snapshot.policy, changing.values(), len(live)),
            late=delayed_drones(snapshot, validity, known.by_key, changing.values()),
        )

    @property
    def now(self) -> float:
        return self.snapshot.now

    def can_act_on(self, drone: Drone) -> bool:
        """Return True if the view of the drone's site is valid, so that orders may be given there."""
        return self.validity.sites.get(drone.site, _UNKNOWN_SITE) is None

    def remote(self, drone: Drone) -> RemoteDrone | None:
        """Return the drone in the valid view of its site, or None."""
        view = self.validity.site_view(self.snapshot, drone.site)
        return view.drones.get(drone.id) if view is not None else None

    def finished(self, plan: Plan, left: RetirementResult, placed: PlacementResult) -> Plan:
        """Return the whole plan. A drone is asked only once in a tick."""
        gone = {a.drone.id for a in left.asks}
        moves = {m.drone.id: m for m in plan.moves}
        for more in left.moves:
            earlier = moves.get(more.drone.id)
            if earlier is not None:
                news = earlier if more.drone.state is earlier.drone.state else more
                more = StateChange(more.drone, earlier.was, news.reason)
            moves[more.drone.id] = more
        return replace(
            plan,
            moves=tuple(moves.values()),
            starts=placed.starts,
            drains=left.drains + tuple(d for d in placed.resumes if d.drone.id not in gone),
            stops=left.stops,
            orphans=left.orphans,
            refusals=placed.refusals + left.refusals,
            requests_done=left.requests_done,
        )


def _without_limited(job: JobClass) -> JobClass:
    """Return the class without the waiting jobs that the overlay's own limits hold back."""
    return replace(job, waiting=max(0, job.waiting - job.limited)) if job.limited else job


def _orphan_counts(snapshot: Snapshot, live: Mapping[DroneId, Drone]) -> Mapping[str, int]:
    """Count listed drones without a live record by site.

    The newest good view counts, however old: too many counted is safer than too few. Drones whose records this plan
    ends for an operator count already, if another site lists them.
    """
    if written_off := _written_off(snapshot, live):
        live = {drone_id: drone for drone_id, drone in live.items() if drone_id not in written_off}
    count: dict[str, int] = {}
    for name, polled in snapshot.sites.items():
        if polled.view is not None:
            listed = polled.view.drones
            unknown = filterfalse(live.__contains__, listed)
            count[name] = sum(1 for i in unknown if listed[i].state is not RemoteState.ENDED)
    return count


def _written_off(snapshot: Snapshot, live: Mapping[DroneId, Drone]) -> frozenset[DroneId]:
    """Return the drones that an operator kills and whose site is not configured (:mod:`retirement`)."""
    kills = (i for request in snapshot.requests if request.kind is RequestKind.KILL for i in request.drone_ids)
    return frozenset(i for i in kills if i in live and live[i].site not in snapshot.policy.sites)


def _too_many_unhealthy(policy: Policy, changing: Iterable[Drone], live: int) -> Reason | None:
    """Return the reason to pause if more drones are unhealthy than can be their own fault."""
    ill = sum(
        1
        for d in changing
        if not d.is_leaving
        and (d.missing_at or d.unslotted_at)
        and d.state not in (DroneState.REQUESTED, DroneState.SUBMITTED)
    )
    if ill >= policy.min_unhealthy and ill > policy.max_unhealthy_fraction * live:
        return reasons.TooManyUnhealthy(ill, live, policy.max_unhealthy_fraction)
    return None
