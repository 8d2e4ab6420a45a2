"""One snapshot with what was derived from it: who lives, what is trusted, whether to act at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from provisioner.decide import fit
from provisioner.decide.guard import Trust
from provisioner.model import (
    Breaker,
    Drain,
    Drone,
    DroneId,
    DroneState,
    DroneType,
    JobClass,
    Move,
    Plan,
    Refusal,
    RemoteDrone,
    RemoteState,
    Slot,
    Snapshot,
    Start,
    Stop,
    StopOrphan,
    TypeKey,
)
from provisioner.reasons import Reason, TooManyUnhealthy


@dataclass(frozen=True, slots=True)
class Leaving:
    """Who is asked to go."""

    drains: tuple[Drain, ...] = ()
    stops: tuple[Stop, ...] = ()
    orphans: tuple[StopOrphan, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    requests_done: tuple[int, ...] = ()
    moves: tuple[Move, ...] = ()
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


@dataclass(frozen=True, slots=True)
class Scene:
    """A snapshot after its moves."""

    snapshot: Snapshot
    trust: Trust
    breakers: Mapping[str, Breaker]
    drones: Mapping[DroneId, Drone]
    """Live ones, as they are after the moves."""
    slots: Mapping[DroneId, Slot]
    """Alive ones, from a fresh view; empty without one."""
    types: Mapping[TypeKey, DroneType]
    classes: tuple[JobClass, ...]
    """With jobs that wait or are fresh; empty without a fresh view."""
    fits: Mapping[str, Sequence[DroneType]]
    """Class id to the drone types that can host its jobs."""
    strays: Mapping[str, int]
    """By site: drones in its listing that we have no live record of. They count against the caps until gone."""
    brake: Reason | None

    @classmethod
    def of(
        cls, snapshot: Snapshot, trust: Trust, moves: Sequence[Move], breakers: Mapping[str, Breaker]
    ) -> Scene:
        """Put the scene together."""
        after = {m.drone.id: m.drone for m in moves}
        drones = {i: after.get(i, d) for i, d in snapshot.drones.items()}
        live = {i: d for i, d in drones.items() if not d.state.ended}
        view = snapshot.overlay.view if trust.overlay is None else None
        types = {t.key: t for t in snapshot.types}
        classes = tuple(c for c in view.classes if c.waiting > 0 or c.fresh > 0) if view else ()
        return cls(
            snapshot=snapshot,
            trust=trust,
            breakers=breakers,
            drones=live,
            slots=trust.slots(snapshot),
            types=types,
            classes=classes,
            fits=fit.table(classes, snapshot.types),
            strays=_strays(snapshot, live),
            brake=_brake(snapshot, live),
        )

    @property
    def now(self) -> float:
        return self.snapshot.now

    def touchable(self, drone: Drone) -> bool:
        """Whether its site's view is good enough to ask anything of it there."""
        return drone.site in self.trust.sites and self.trust.sites[drone.site] is None

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
                more = Move(more.drone, told.was, news.reason)
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


def _strays(snapshot: Snapshot, live: Mapping[DroneId, Drone]) -> Mapping[str, int]:
    """From the newest good view, however old: too many counted is safer than too few."""
    count: dict[str, int] = {}
    for name, reading in snapshot.sites.items():
        if reading.view is not None:
            count[name] = sum(
                1 for i, r in reading.view.drones.items() if r.state is not RemoteState.ENDED and i not in live
            )
    return count


def _brake(snapshot: Snapshot, live: Mapping[DroneId, Drone]) -> Reason | None:
    """More trouble at once than drones can have of themselves (field notes, C 8)."""
    policy = snapshot.policy
    ill = sum(
        1
        for d in live.values()
        if not d.goes
        and (d.missing_at or d.unslotted_at)
        and d.state not in (DroneState.REQUESTED, DroneState.SUBMITTED)
    )
    if ill >= policy.brake_min and ill > policy.brake_fraction * len(live):
        return TooManyUnhealthy(ill, len(live), policy.brake_fraction)
    return None
