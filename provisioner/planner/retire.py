"""Who must leave: for operators and owners, what has outlived its state, idle drones, what nobody needs, strays."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from provisioner.model import (
    Drain,
    DrainMode,
    Drone,
    DroneState,
    JobClass,
    OperatorRequest,
    Refusal,
    RemoteState,
    RequestKind,
    SitePolicy,
    SlotState,
    StateChange,
    Stop,
    StopOrphan,
)
from provisioner.planner import fit, warm
from provisioner.planner.demand import Ledger
from provisioner.planner.eaters import NO_EATERS, Eaters
from provisioner.planner.fairness import Shares
from provisioner.planner.guard import OVERLAY
from provisioner.planner.headroom import is_virtual
from provisioner.planner.idle import idle_limit
from provisioner.planner.life import LIFE, Overdue, end
from provisioner.planner.owner import Leaver
from provisioner.planner.records import changed
from provisioner.planner.scene import Leaving, Placed, Scene
from provisioner.reasons import (
    DrainRefused,
    DrainRepeated,
    IdleTimeout,
    LeftPool,
    NotDraining,
    OperatorRequested,
    Orphan,
    Reason,
    SeenAtSite,
    StartBlocked,
    StateTimeout,
    TypeRemoved,
    UnknownDrone,
    Unneeded,
)

INSIST_KILL = 3
"""A drone asked to stop this often is killed without notice."""
REPEAT_FIRST_S, REPEAT_LAST_S = 30.0, 600.0
"""The shortest and the longest time between two orders to drain that have no effect."""
_CLEARED = (RemoteState.STOPPED, RemoteState.ENDED)
"""Nobody need end these."""
WITHDRAW_AFTER_S = 120.0
"""A drone that waits at its site goes when no job has needed it for this long, or for the idle time-out if that is
shorter: a place in a queue took hours to earn, and a queue of jobs that looks empty is often one that is restarting. In
replays five minutes served bursts better still, and started too many drones for nothing where jobs come singly."""
WANTED_FACTOR = 3
"""An idle drone that waiting jobs fit is kept this many idle time-outs: the negotiator should take it any moment."""


def retire(scene: Scene, leavers: Sequence[Leaver], placed: Placed, eaters: Eaters = NO_EATERS) -> Leaving:
    """Who is asked to go, at most one request per drone; the first rule that applies gives the reason. While the brake
    is on only people's requests count: they may be what ends the trouble."""
    asked = _Asked(scene)
    done = tuple(r.id for r in scene.snapshot.requests if _operator(scene, asked, r))
    orphans: tuple[StopOrphan, ...] = ()
    if scene.brake is None:
        for leaver in leavers:
            if leaver.drone.id not in asked.named and scene.touchable(leaver.drone):
                asked.make_way(leaver.drone, leaver.reason, leaver.end)
        for drone, why in eaters.leave:
            if drone.id not in asked.named and scene.touchable(drone):
                if drone.joined_at:
                    asked.drain(drone, DrainMode.PEACEFUL, why, DroneState.CANCELLED)
                else:
                    asked.stop(drone, why, DroneState.CANCELLED)
        for drone_id, reason in placed.exposed.items():
            drone = scene.drones[drone_id]
            if not drone.goes and drone.id not in asked.named and scene.touchable(drone):
                asked.drain(drone, DrainMode.PEACEFUL, reason, _worked(drone))
        surplus = _surplus(scene, asked, placed.pressed)
        kept, matched = warm.kept(scene, placed.pressed), _Matched(scene)
        for drone in scene.unsettled.values():
            if drone.id not in asked.named and scene.touchable(drone):
                _one(scene, asked, drone, surplus, kept, matched)
        orphans = _orphans(scene)
    return Leaving(
        tuple(asked.drains), tuple(asked.stops), orphans, tuple(asked.refusals), done, moves=tuple(asked.moves)
    )


@dataclass(slots=True)
class _Asked:
    """What was asked so far in this plan."""

    scene: Scene
    drains: list[Drain] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    moves: list[StateChange] = field(default_factory=list)
    named: set[str] = field(default_factory=set)

    def drain(self, drone: Drone, mode: DrainMode, reason: Reason, leaving: DroneState) -> None:
        if self.scene.trust.overlay is not None:  # it could not be asked, nor could we see whether it is busy
            return
        now = self.scene.now
        since = drone.since if drone.state is DroneState.DRAINING else now
        after = changed(
            drone,
            state=DroneState.DRAINING,
            since=since,
            leaving=leaving,
            asked_at=now,
            asked=0,
            drain_mode=mode,
        )
        self.drains.append(Drain(after, drone.state, mode, reason))
        self.named.add(drone.id)

    def resume(self, drone: Drone, reason: Reason) -> None:
        now = self.scene.now
        state = DroneState.BUSY if drone.jobs else DroneState.IDLE
        idle_at = 0.0 if drone.jobs else now
        back = changed(drone, state=state, since=now, leaving=None, asked_at=0.0, asked=0, idle_at=idle_at)
        self.drains.append(Drain(back, drone.state, DrainMode.RESUME, reason))
        self.named.add(drone.id)

    def stop(self, drone: Drone, reason: Reason, leaving: DroneState | None, *, kill: bool = False) -> None:
        self._stop(drone, reason, kill=kill, leaving=drone.leaving or leaving)

    def _stop(self, drone: Drone, reason: Reason, *, kill: bool = False, **news: object) -> None:
        now = self.scene.now
        after = changed(
            drone,
            state=DroneState.STOPPING,
            since=drone.since if drone.state is DroneState.STOPPING else now,
            asked_at=now,
            asked=drone.asked + 1 if drone.state is DroneState.STOPPING else 1,
            **news,
        )
        self.stops.append(Stop(after, drone.state, reason, kill))
        self.named.add(drone.id)

    def make_way(self, drone: Drone, reason: Reason, leaving: DroneState) -> None:
        """For the owner, or for a GPU job: this is its notice, whatever it was about to do."""
        self._stop(drone, reason, leaving=leaving, notice_at=drone.notice_at or self.scene.now)

    def write_off(self, drone: Drone, reason: Reason) -> None:
        self.moves.append(StateChange(end(drone, DroneState.LOST, self.scene.now), drone.state, reason))
        self.named.add(drone.id)

    def mark(self, drone: Drone, unneeded_at: float) -> None:
        self.moves.append(StateChange(changed(drone, idle_at=unneeded_at), drone.state, Unneeded(drone.state.value)))


def _operator(scene: Scene, asked: _Asked, request: OperatorRequest) -> bool:
    """Return True if the request is dealt with.

    A drain waits for the overlay, which alone can be asked for it. A reset of breakers is in the snapshot already."""
    if request.kind is RequestKind.RESET:
        return True
    named = [scene.drones[i] for i in request.drone_ids if i in scene.drones]
    blind = scene.trust.overlay
    of_overlay = any(d.joined_at or d.state is DroneState.DRAINING for d in named)
    if blind is not None and request.kind is RequestKind.DRAIN and of_overlay:
        asked.refusals.extend(Refusal(f"drone:{d.id}", 1, blind) for d in named)
        return False
    reason = OperatorRequested(request.by, request.reason)
    for drone_id in request.drone_ids:
        drone = scene.drones.get(drone_id)
        if drone is None:
            asked.refusals.append(Refusal(f"drone:{drone_id}", 1, UnknownDrone(drone_id)))
        elif drone.id in asked.named:
            continue
        elif request.kind is RequestKind.KILL:
            if drone.site in scene.snapshot.policy.sites:
                asked.stop(drone, reason, DroneState.CANCELLED, kill=True)
            else:  # its site was taken out of the configuration: nobody can be asked, nothing else would ever end it
                asked.write_off(drone, reason)
        elif request.mode is DrainMode.RESUME:
            _resume(asked, drone, reason)
        elif drone.state is DroneState.STOPPING:
            continue  # it is past draining
        elif drone.joined_at:
            asked.drain(drone, request.mode, reason, DroneState.CANCELLED)
        else:
            asked.stop(drone, reason, DroneState.CANCELLED)
    return True


def _resume(asked: _Asked, drone: Drone, reason: Reason) -> None:
    """Take a draining drone back into service for an operator, whoever asked it to leave."""
    if drone.state is DroneState.DRAINING:
        asked.resume(drone, reason)
    else:
        asked.refusals.append(Refusal(f"drone:{drone.id}", 1, NotDraining(drone.id, drone.state.value)))


def _one(
    scene: Scene, asked: _Asked, drone: Drone, surplus: frozenset[str], kept: Collection[str], matched: _Matched
) -> None:
    policy = scene.snapshot.policy.sites.get(drone.site) or SitePolicy(drone.site)
    now = scene.now
    worked = _worked(drone)
    if drone.state is DroneState.QUEUED and drone.started_at:
        return asked.stop(drone, SeenAtSite(RemoteState.PENDING.value, drone.site_reason), DroneState.PREEMPTED)
    waits = drone.state in (DroneState.SUBMITTED, DroneState.QUEUED) and not drone.jobs
    if waits and (remote := scene.remote(drone)) is not None and remote.hopeless:
        fault = remote.blocked.value if remote.blocked else ""
        return asked.stop(drone, StartBlocked(drone.type, fault, remote.reason), DroneState.FAILED)
    if drone.unslotted_at and scene.trust.overlay is None and drone.state is not DroneState.STOPPING:
        away = now - max(drone.unslotted_at, _pool_seen_since(scene))
        if away > policy.slot_loss_s:
            return asked.stop(drone, LeftPool(away, policy.slot_loss_s), DroneState.LOST)
    if drone.type not in scene.types and not drone.goes:
        if drone.joined_at:
            return asked.drain(drone, DrainMode.PEACEFUL, TypeRemoved(drone.type), worked)
        return asked.stop(drone, TypeRemoved(drone.type), DroneState.CANCELLED)
    if drone.id in surplus:
        return asked.stop(drone, Unneeded(drone.state.value), DroneState.CANCELLED)
    if drone.state is DroneState.IDLE and drone.id in kept:
        return None
    if drone.state is DroneState.IDLE:
        return _idle(scene, asked, drone, worked, matched)
    return _overdue(scene, asked, drone, policy)


def _worked(drone: Drone) -> DroneState:
    return DroneState.DONE if drone.busy_at else DroneState.UNUSED


def _idle(scene: Scene, asked: _Asked, drone: Drone, worked: DroneState, matched: _Matched) -> None:
    policy = scene.snapshot.policy
    limit, by = idle_limit(drone, policy, scene.snapshot.estimates)
    slot = scene.slots.get(drone.id)
    if slot is None or scene.trust.overlay is not None or drone.jobs or slot.jobs:
        return  # an ad that says idle and names jobs is not believed
    idle = scene.now - (drone.idle_at or drone.since)
    if idle <= limit or (idle <= WANTED_FACTOR * policy.idle_timeout_at(drone.site) and matched.want(drone)):
        return
    asked.drain(drone, DrainMode.PEACEFUL, IdleTimeout(idle, limit, by), worked)


@dataclass
class _Matched:
    """Classes whose jobs the negotiator would match. Local to one decision."""

    scene: Scene

    def want(self, drone: Drone) -> bool:
        """Return True if jobs wait that fit a drone: then the negotiator, not the planner, should act."""
        scene, room = self.scene, fit.left(self.scene.slots[drone.id])
        return any(
            fit.jobs_in(job, room, scene.types[drone.type])
            for job in self._classes
            if drone.type in scene.suited[job.id].jobs and not scene.trials.doubted(job.id, drone.type)
        )

    @cached_property
    def _classes(self) -> list[JobClass]:
        shares = Shares.of(self.scene)
        return [job for job in self.scene.classes if not shares.used_up(job)]


def _overdue(scene: Scene, asked: _Asked, drone: Drone, policy: SitePolicy) -> None:
    stage = LIFE[drone.state]
    limit, since = _limit(scene, drone, policy)
    spent = (_heard_at(scene, drone) if drone.state is DroneState.JOINED else scene.now) - since
    if drone.state is DroneState.DRAINING and not drone.jobs and scene.trust.overlay is None:
        # Empty, and still there: the drain was refused, lost or had no effect. The site's notice does it.
        wait = 0.0 if drone.asked else policy.stopping_s
        idle = _heard_at(scene, drone) - max(drone.since, drone.idle_at, _pool_seen_since(scene))
        if idle >= wait:
            refused = DrainRefused("", drone.drain_refusal)
            reason = refused if drone.asked else StateTimeout(drone.state.value, idle, wait)
            return asked.stop(drone, reason, drone.leaving or stage.ends_as)
    if limit <= 0 or spent <= limit:
        return _repeat(scene, asked, drone)
    if drone.state in (DroneState.BOOTING, DroneState.JOINED) and scene.trust.overlay is not None:
        return None  # it may have joined: nobody can see
    late = StateTimeout(drone.state.value, spent, limit)
    match stage.then:
        case Overdue.STOP:
            asked.stop(drone, late, stage.ends_as)
        case Overdue.INSIST if not _works_on(scene, drone):
            asked.stop(drone, late, drone.leaving, kill=drone.asked >= INSIST_KILL)
        case _:
            pass  # idle drones go by _idle; a record without a drone ends by life.observe


def _repeat(scene: Scene, asked: _Asked, drone: Drone) -> None:
    """Ask a drone again to drain, whose slot still takes jobs: the order was refused or got lost. From order to order
    it is waited half as long again, within bounds."""
    slot = scene.slots.get(drone.id)
    ordered = drone.state is DroneState.DRAINING and drone.asked_at and drone.drain_mode is not DrainMode.NONE
    if not ordered or slot is None or slot.state is SlotState.DRAINING:
        return
    after_s = scene.now - drone.since
    if scene.now - drone.asked_at >= min(max(REPEAT_FIRST_S, after_s / 3), REPEAT_LAST_S):
        again = DrainRepeated(after_s, drone.drain_refusal)
        asked.drain(drone, drone.drain_mode, again, drone.leaving or LIFE[drone.state].ends_as)


def _heard_at(scene: Scene, drone: Drone) -> float:
    """Up to when it is known what a drone in the pool did: a listing of now may show a slot of long ago, or lack it for
    once. One that stays away is out of the pool, which has a limit of its own."""
    slot = scene.slots.get(drone.id)
    return min(scene.now, slot.heard_at if slot is not None else drone.heard_at)


def _works_on(scene: Scene, drone: Drone) -> bool:
    """The order to end did not reach it, and it has taken jobs since, for which there was no ground to end it: it is
    asked again when it has none. An owner's claim, and an operator's word, hold whatever it does."""
    slot = scene.slots.get(drone.id)
    by_operator = drone.leaving is DroneState.CANCELLED and 0 < drone.joined_at <= drone.since
    took = slot is not None and slot.jobs > 0 and slot.begun_at > drone.since
    return took and not drone.notice_at and not by_operator


def _limit(scene: Scene, drone: Drone, policy: SitePolicy) -> tuple[float, float]:
    """How long the drone's state may last, and since when that counts."""
    match drone.state:
        case DroneState.BUSY:
            kind = scene.types.get(drone.type)
            if kind is None or not kind.walltime_s:
                return 0.0, drone.since
            return kind.walltime_s + policy.grace_s, drone.started_at or drone.since
        case DroneState.STOPPING:
            return policy.stopping_s, drone.asked_at
        case DroneState.BOOTING | DroneState.JOINED:
            # While the pool could not be seen nobody could join: that time does not count.
            return float(getattr(policy, LIFE[drone.state].limit)), max(drone.since, _pool_seen_since(scene))
        case _:
            return float(getattr(policy, LIFE[drone.state].limit, 0.0)), drone.since


def _pool_seen_since(scene: Scene) -> float:
    breaker = scene.breakers.get(OVERLAY)
    return breaker.blind_until if breaker else 0.0


def _surplus(scene: Scene, asked: _Asked, pressed: Collection[str]) -> frozenset[str]:
    """Drones that wait at a site and that no job has needed for a while, nor any headroom. Fresh jobs count as need
    here: slower down than up."""
    outage = scene.breakers.get(OVERLAY)
    if scene.trust.overlay is not None or (outage is not None and scene.now < outage.until):
        return frozenset()
    waiting = [
        d
        for d in scene.unsettled.values()
        if d.state in (DroneState.SUBMITTED, DroneState.QUEUED)
        and not d.jobs
        and not d.goes
        and not d.started_at
        and d.type in scene.types
        and d.id not in asked.named
    ]
    if not waiting:
        return frozenset()
    ledger = Ledger.of(scene)
    real = sorted(scene.classes, key=lambda c: (len(scene.suited[c.id].kinds), c.id))
    for job in (*real, *scene.headroom):
        suited, wanted = scene.suited[job.id], job.waiting + job.fresh
        if is_virtual(job.id):
            suited = suited.without(pressed)
        wanted -= ledger.take_own(job, wanted).jobs
        wanted -= ledger.take(job, suited, wanted).jobs
        for key in suited.places.keys() & ledger.late if wanted > 0 else ():
            # of those that come late, as many of each type: which of them comes first nobody knows
            ledger.take(job, suited, wanted, key, late=True)
    left = {key: ledger.untouched(scene.types[key]) for key in {d.type for d in waiting}}
    surplus: list[str] = []
    # those that come late first, then the newest
    for drone in sorted(waiting, key=lambda d: (d.id not in scene.late, -d.requested_at, d.id)):
        left[drone.type] -= 1
        if left[drone.type] < 0:
            if drone.idle_at:
                asked.mark(drone, 0.0)
        elif not drone.idle_at:
            asked.mark(drone, scene.now)
        elif scene.now - drone.idle_at >= min(WITHDRAW_AFTER_S, scene.snapshot.policy.idle_timeout_at(drone.site)):
            surplus.append(drone.id)
    return frozenset(surplus)


def _orphans(scene: Scene) -> tuple[StopOrphan, ...]:
    """What carries our tag and is not on record as alive: a start whose answer came too late, a lost store."""
    found = []
    for site, count in scene.strays.items():
        view = scene.trust.site_view(scene.snapshot, site)
        if not count or view is None or scene.trust.sites.get(site) is not None:
            continue
        for drone_id, remote in view.drones.items():
            if remote.state not in _CLEARED and drone_id not in scene.drones:
                known = scene.snapshot.ended.get(drone_id)
                found.append(StopOrphan(site, drone_id, remote.remote_id, Orphan(known.value if known else "")))
    return tuple(found)
