"""The planning context: one snapshot and what is derived from it before any rule runs."""

from __future__ import annotations

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
    JobClass,
    Plan,
    Policy,
    Refusal,
    RemoteDrone,
    RemoteState,
    RequestKind,
    SiteView,
    Slot,
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
from provisioner.planner.views import ViewValidity
from provisioner.reasons import Reason

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
    untold: dict[TypeKey, list[Drone]] = {}
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
            untold.setdefault(drone.type, []).append(drone)
    for key, waiting in untold.items():
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
        for class_id, closed in class_backoffs.closed.items():
            if fits := compatible.get(class_id):
                compatible[class_id] = fits.only(kind for kind in fits.kinds if kind.key not in closed)
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
    """Return the reason to pause if more drones are unhealthy than can be their own fault (field notes, C 8)."""
    ill = sum(
        1
        for d in changing
        if not d.goes
        and (d.missing_at or d.unslotted_at)
        and d.state not in (DroneState.REQUESTED, DroneState.SUBMITTED)
    )
    if ill >= policy.min_unhealthy and ill > policy.max_unhealthy_fraction * live:
        return reasons.TooManyUnhealthy(ill, live, policy.max_unhealthy_fraction)
    return None
