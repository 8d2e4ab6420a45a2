"""One snapshot with what was derived from it: who lives, what is trusted, whether to act at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import filterfalse

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
from provisioner.reasons import Downtime, DrainAtRisk, Reason, TooManyUnhealthy

# Which drones wait at their site, and for a while yet: no reason not to start others where there is room now.

DELAYED_AFTER_S = 600.0
"""A drone that its site expects to start later than this, or that a limit holds there, comes late: about what a drone
needs from its order to its first job."""
NO_ROOM_DELAY_S = 180.0
"""So does one that has waited for so long, and for twice as long as is usual, while what is free goes to those before
it: who was to make room for it did not, or others came before it."""
_AT_SITE_QUEUE = (DroneState.SUBMITTED, DroneState.QUEUED)


def delayed_drones(
    snapshot: Snapshot, validity: ViewValidity, types: Mapping[TypeKey, DroneType], drones: Iterable[Drone]
) -> frozenset[DroneId]:
    """Of ``drones`` those that come late: by what the site says of their start, or of a limit, or, where it says
    nothing, by what drones of the type usually wait there, or by what is free there."""
    found: set[DroneId] = set()
    untold: dict[TypeKey, list[Drone]] = {}
    for drone in drones:
        if drone.state not in _AT_SITE_QUEUE:
            continue
        view = validity.site_view(snapshot, drone.site)
        remote = view.drones.get(drone.id) if view is not None else None
        if remote is None:
            continue
        told = _reported_delay(snapshot, drone, remote)
        if told:
            found.add(drone.id)
        elif told is None and drone.awaits_room:
            untold.setdefault(drone.type, []).append(drone)
    for key, waiting in untold.items():
        kind = types.get(key)
        view = validity.site_view(snapshot, kind.site) if kind is not None else None
        if kind is not None and view is not None:
            found |= {drone.id for drone in _without_room(snapshot, view, kind, waiting)}
    return frozenset(found)


def _reported_delay(snapshot: Snapshot, drone: Drone, remote: RemoteDrone) -> bool | None:
    """None where neither the site nor experience tells that it is late, nor the site when it will start."""
    if remote.blocked is not None:
        return True
    if remote.expected_start_at:
        return remote.expected_start_at > snapshot.now + DELAYED_AFTER_S
    usual = snapshot.estimates.delays.get(drone.type)
    return True if usual is not None and usual.queue_s > DELAYED_AFTER_S else None


def _without_room(snapshot: Snapshot, view: SiteView, kind: DroneType, waiting: list[Drone]) -> Iterator[Drone]:
    """Those that wait too long already, and that nothing is free for once the others before them have theirs."""
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
    """Drones of a type that what is free would do for, at the most; None if that is not told."""
    if view.nodes:
        if not kind.gpu_milli:
            return None
        milli = sum(node.free_gpu_milli for node in view.nodes if kind.name in node.types)
        return milli // kind.gpu_milli
    return view.free.get(kind.name, 0) if view.free is not None else None


# How long a drone that is started now can live: as long as its type says, and not into its site's downtime.

NO_END = float("inf")
DOWNTIME_MARGIN_S = 300.0
"""It is gone by so much before the downtime: it may wait a little before it starts."""
MIN_LIFE_S = 1800.0
"""Worth a start; for types that never live so long, their own walltime."""


def downtime_at(context: PlanningContext, site: str) -> float:
    """Start of the site's next downtime by its newest view, however old; endless if none is known."""
    reading = context.snapshot.sites.get(site)
    at = reading.view.downtime_at if reading is not None and reading.view is not None else 0.0
    return at if at > context.now else NO_END


def drone_end_at(context: PlanningContext, kind: DroneType) -> float:
    """When a drone of the type, started now, has to be gone."""
    own = context.now + kind.walltime_s if kind.walltime_s else NO_END
    return min(own, downtime_at(context, kind.site) - DOWNTIME_MARGIN_S)


def shortened_life_s(context: PlanningContext, kind: DroneType) -> float:
    """How long it may live if that is less than its type says, in whole seconds; 0 if it is not less."""
    left_s = drone_end_at(context, kind) - context.now
    return float(int(left_s)) if left_s < (kind.walltime_s or NO_END) else 0.0


def life_too_short(context: PlanningContext, kind: DroneType, wanted_s: float = 0.0) -> Downtime | None:
    """Why none is started for jobs that need ``wanted_s``: because of a downtime, if of one at all."""
    left_s = drone_end_at(context, kind) - context.now
    least_s = max(wanted_s, min(MIN_LIFE_S, kind.walltime_s or MIN_LIFE_S))
    if left_s >= least_s or (kind.walltime_s and wanted_s > kind.walltime_s):
        return None
    return Downtime(kind.site, downtime_at(context, kind.site), max(0.0, left_s), least_s)


# One snapshot with what was derived from it: who lives, what is trusted, whether to act at all.

_UNKNOWN_SITE = object()


@dataclass(frozen=True, slots=True)
class RetirementResult:
    """Who is asked to go."""

    drains: tuple[Drain, ...] = ()
    stops: tuple[Stop, ...] = ()
    orphans: tuple[StopOrphan, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    requests_done: tuple[int, ...] = ()
    moves: tuple[StateChange, ...] = ()
    """What else is now to be remembered of drones on record, each as it is after the moves that views tell."""

    @property
    def asks(self) -> tuple[Drain | Stop, ...]:
        return (*self.drains, *self.stops)


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """Who is asked for, who is taken back into service, and what waits for which reason."""

    starts: tuple[Start, ...] = ()
    resumes: tuple[Drain, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    lacking_room: Mapping[TypeKey, int] = field(default_factory=dict)
    """By drone type, how many are lacking for want of room at the site, and for no other reason."""
    without_headroom: frozenset[str] = frozenset()
    """Sites without headroom for now: real jobs lack room there, or the owner waits."""
    at_risk: Mapping[DroneId, DrainAtRisk] = field(default_factory=dict)
    """Drones that should take no more jobs, as an owner is near, and why."""


@dataclass(frozen=True, slots=True)
class PlanningContext:
    """A snapshot after its moves."""

    snapshot: Snapshot
    validity: ViewValidity
    breakers: Mapping[str, Breaker]
    drones: Mapping[DroneId, Drone]
    """Live ones, as they are after the moves."""
    changing: Mapping[DroneId, Drone]
    """Of those, the ones that a rule may have anything to say of."""
    steady: Mapping[TypeKey, int]
    """How many the rest are, by type (:mod:`settled`)."""
    slots: Mapping[DroneId, Slot]
    """Alive ones, from a fresh view; empty without one."""
    types: Mapping[TypeKey, DroneType]
    classes: tuple[JobClass, ...]
    """With jobs that wait or are fresh; empty without a fresh view."""
    headroom: tuple[JobClass, ...]
    """Virtual classes: served after all others, and no demand in any other sense."""
    compatible: Mapping[str, CompatibleTypes]
    """Class id to the drone types that can host its jobs, less those on which the class backs off."""
    class_backoffs: ClassBackoffs
    """Classes that back off on drone types."""
    orphan_counts: Mapping[str, int]
    """By site: drones in its listing that we have no live record of. They count against the caps until gone."""
    too_unhealthy: Reason | None
    late: frozenset[DroneId]
    """Those that wait at their site, and for a while yet (:mod:`late`)."""

    @classmethod
    def of(
        cls, snapshot: Snapshot, validity: ViewValidity, moves: Sequence[StateChange], breakers: Mapping[str, Breaker]
    ) -> PlanningContext:
        """Put the scene together."""
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
        compatible = known.table((*classes, *headroom))
        shut = {i: compatible[i].without_types(types) for i, types in class_backoffs.closed.items() if i in compatible}
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
            compatible={**compatible, **shut} if shut else compatible,
            class_backoffs=class_backoffs,
            orphan_counts=_orphan_counts(snapshot, live),
            too_unhealthy=_too_many_unhealthy(snapshot.policy, changing.values(), len(live)),
            late=delayed_drones(snapshot, validity, known.by_key, changing.values()),
        )

    @property
    def now(self) -> float:
        return self.snapshot.now

    def can_act_on(self, drone: Drone) -> bool:
        """Whether its site's view is good enough to ask anything of it there."""
        return self.validity.sites.get(drone.site, _UNKNOWN_SITE) is None

    def remote(self, drone: Drone) -> RemoteDrone | None:
        """The drone in a view of its site that can be believed."""
        view = self.validity.site_view(self.snapshot, drone.site)
        return view.drones.get(drone.id) if view is not None else None

    def finished(self, plan: Plan, left: RetirementResult, placed: PlacementResult) -> Plan:
        """The whole plan. A drone that somebody asked for something in this tick is asked only once."""
        gone = {a.drone.id for a in left.asks}
        moves = {m.drone.id: m for m in plan.moves}
        for more in left.moves:
            told = moves.get(more.drone.id)
            if told is not None:
                news = told if more.drone.state is told.drone.state else more
                more = StateChange(more.drone, told.was, news.reason)
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
    """Return a class with the waiting jobs that the overlay might match: the others are no demand."""
    return replace(job, waiting=max(0, job.waiting - job.limited)) if job.limited else job


def _orphan_counts(snapshot: Snapshot, live: Mapping[DroneId, Drone]) -> Mapping[str, int]:
    """From the newest good view, however old: too many counted is safer than too few. Drones whose records this plan
    ends for an operator count already, where a site lists them that is not their own."""
    if written_off := _written_off(snapshot, live):
        live = {drone_id: drone for drone_id, drone in live.items() if drone_id not in written_off}
    count: dict[str, int] = {}
    for name, reading in snapshot.sites.items():
        if reading.view is not None:
            listed = reading.view.drones
            unknown = filterfalse(live.__contains__, listed)
            count[name] = sum(1 for i in unknown if listed[i].state is not RemoteState.ENDED)
    return count


def _written_off(snapshot: Snapshot, live: Mapping[DroneId, Drone]) -> frozenset[DroneId]:
    """Return the drones that an operator kills and whose own site is not configured (:mod:`retire`)."""
    kills = (i for request in snapshot.requests if request.kind is RequestKind.KILL for i in request.drone_ids)
    return frozenset(i for i in kills if i in live and live[i].site not in snapshot.policy.sites)


def _too_many_unhealthy(policy: Policy, changing: Iterable[Drone], live: int) -> Reason | None:
    """More trouble at once than drones can have of themselves (field notes, C 8)."""
    ill = sum(
        1
        for d in changing
        if not d.goes
        and (d.missing_at or d.unslotted_at)
        and d.state not in (DroneState.REQUESTED, DroneState.SUBMITTED)
    )
    if ill >= policy.min_unhealthy and ill > policy.max_unhealthy_fraction * live:
        return TooManyUnhealthy(ill, live, policy.max_unhealthy_fraction)
    return None
