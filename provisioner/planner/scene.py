"""One snapshot with what was derived from it: who lives, what is trusted, whether to act at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    Slot,
    Snapshot,
    Start,
    StateChange,
    Stop,
    StopOrphan,
    TypeKey,
)
from provisioner.planner.guard import Trust
from provisioner.planner.headroom import virtual_classes
from provisioner.planner.late import late_ones
from provisioner.planner.shapes import Suited, shapes
from provisioner.planner.trials import Trials
from provisioner.reasons import DrainAtRisk, Reason, TooManyUnhealthy

_UNKNOWN = object()


@dataclass(frozen=True, slots=True)
class Leaving:
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
class Placed:
    """Who is asked for, who is taken back into service, and what waits for which reason."""

    starts: tuple[Start, ...] = ()
    resumes: tuple[Drain, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    roomless: Mapping[TypeKey, int] = field(default_factory=dict)
    """By drone type, how many are lacking for want of room at the site, and for no other reason."""
    pressed: frozenset[str] = frozenset()
    """Sites without headroom for now: real jobs lack room there, or the owner waits."""
    exposed: Mapping[DroneId, DrainAtRisk] = field(default_factory=dict)
    """Drones that should take no more jobs, as an owner is near, and why."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A snapshot after its moves."""

    snapshot: Snapshot
    trust: Trust
    breakers: Mapping[str, Breaker]
    drones: Mapping[DroneId, Drone]
    """Live ones, as they are after the moves."""
    unsettled: Mapping[DroneId, Drone]
    """Of those, the ones that a rule may have anything to say of."""
    settled: Mapping[TypeKey, int]
    """How many the rest are, by type (:mod:`settled`)."""
    slots: Mapping[DroneId, Slot]
    """Alive ones, from a fresh view; empty without one."""
    types: Mapping[TypeKey, DroneType]
    classes: tuple[JobClass, ...]
    """With jobs that wait or are fresh; empty without a fresh view."""
    headroom: tuple[JobClass, ...]
    """Virtual classes: served after all others, and no demand in any other sense."""
    suited: Mapping[str, Suited]
    """Class id to the drone types that can host its jobs, less those on which the class backs off."""
    trials: Trials
    """Classes that back off on drone types."""
    strays: Mapping[str, int]
    """By site: drones in its listing that we have no live record of. They count against the caps until gone."""
    brake: Reason | None
    late: frozenset[DroneId]
    """Those that wait at their site, and for a while yet (:mod:`late`)."""

    @classmethod
    def of(
        cls, snapshot: Snapshot, trust: Trust, moves: Sequence[StateChange], breakers: Mapping[str, Breaker]
    ) -> Scene:
        """Put the scene together."""
        after = {m.drone.id: m.drone for m in moves}
        sifted = trust.sifted
        unsettled = {i: d for i, was in sifted.others.items() if not (d := after.get(i, was)).state.ended}
        live = {**snapshot.drones, **unsettled}
        for drone_id in sifted.others.keys() - unsettled.keys():
            del live[drone_id]
        view = snapshot.overlay.view if trust.overlay is None else None
        classes = tuple(_matchable(c) for c in view.classes if c.waiting > 0 or c.fresh > 0) if view else ()
        headroom = virtual_classes(snapshot.policy, snapshot.types, snapshot.now) if view else ()
        known = shapes(snapshot.types, snapshot.policy)
        trials = Trials.of(breakers, unsettled.values())
        suited = known.table((*classes, *headroom))
        shut = {i: suited[i].without_types(types) for i, types in trials.closed.items() if i in suited}
        return cls(
            snapshot=snapshot,
            trust=trust,
            breakers=breakers,
            drones=live,
            unsettled=unsettled,
            settled=sifted.settled,
            slots=trust.slots,
            types=known.by_key,
            classes=classes,
            headroom=headroom,
            suited={**suited, **shut} if shut else suited,
            trials=trials,
            strays=_strays(snapshot, live),
            brake=_brake(snapshot.policy, unsettled.values(), len(live)),
            late=late_ones(snapshot, trust, known.by_key, unsettled.values()),
        )

    @property
    def now(self) -> float:
        return self.snapshot.now

    def touchable(self, drone: Drone) -> bool:
        """Whether its site's view is good enough to ask anything of it there."""
        return self.trust.sites.get(drone.site, _UNKNOWN) is None

    def remote(self, drone: Drone) -> RemoteDrone | None:
        """The drone in a view of its site that can be believed."""
        view = self.trust.site_view(self.snapshot, drone.site)
        return view.drones.get(drone.id) if view is not None else None

    def finished(self, plan: Plan, left: Leaving, placed: Placed) -> Plan:
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


def _matchable(job: JobClass) -> JobClass:
    """Return a class with the waiting jobs that the overlay might match: the others are no demand."""
    return replace(job, waiting=max(0, job.waiting - job.limited)) if job.limited else job


def _strays(snapshot: Snapshot, live: Mapping[DroneId, Drone]) -> Mapping[str, int]:
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


def _brake(policy: Policy, unsettled: Iterable[Drone], live: int) -> Reason | None:
    """More trouble at once than drones can have of themselves (field notes, C 8)."""
    ill = sum(
        1
        for d in unsettled
        if not d.goes
        and (d.missing_at or d.unslotted_at)
        and d.state not in (DroneState.REQUESTED, DroneState.SUBMITTED)
    )
    if ill >= policy.min_unhealthy and ill > policy.max_unhealthy_fraction * live:
        return TooManyUnhealthy(ill, live, policy.max_unhealthy_fraction)
    return None
