"""Retirement: the drones that leave, by an ordered list of rules.

An idle drone costs a GPU that does nothing; letting it go costs the next start. Keeping it for as long as a start takes
costs at most twice the optimum, whatever comes (the rent-or-buy problem: Karlin, Manasse, Rudolph, Sleator,
"Competitive snoopy caching", Algorithmica 3, 1988). How long a start takes, each drone has shown itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from provisioner.estimates import NO_ESTIMATES, Estimates
from provisioner.model import (
    Drain,
    DrainMode,
    Drone,
    DroneState,
    JobClass,
    OperatorRequest,
    Policy,
    Refusal,
    RemoteState,
    RequestKind,
    SitePolicy,
    SlotState,
    StateChange,
    Stop,
    StopOrphan,
)
from provisioner.planner.black_holes import NO_BLACK_HOLES, BlackHoles
from provisioner.planner.breakers import OVERLAY_SCOPE
from provisioner.planner.context import PlacementResult, PlanningContext, RetirementResult
from provisioner.planner.fairness import GroupShares
from provisioner.planner.headroom import is_headroom, kept_for_headroom
from provisioner.planner.lifecycle import STATE_RULES, OnTimeout, ended_record, with_changes
from provisioner.planner.matching import count_jobs, free_resources
from provisioner.planner.owner import PreemptionOrder
from provisioner.planner.supply import Supply
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

MAX_IDLE_STRETCH = 3.0
"""A drone that took very long to start is kept for at most this many timeouts: it leaves by itself soon after."""


MIN_IDLE_GAPS = 20
"""Smallest number of gaps between two jobs of a drone for an estimate. With fewer, the start cost decides."""


class IdleLimit(NamedTuple):
    """Limit of a drone's idle time, and its source."""

    limit_s: float
    by: str
    """``gaps`` or ``start-cost`` (estimates), ``time-out`` or ``slow-start`` (bounds), ``fixed`` (setting)."""


def idle_limit(drone: Drone, policy: Policy, estimates: Estimates = NO_ESTIMATES) -> IdleLimit:
    """Return the idle time that would have cost least so far at the drone's site.

    It is at most the idle timeout, or the time from the drone's start at the site to the pool, if that is longer. A
    fixed timeout is used as it is.
    """
    site = drone.site
    timeout_s = policy.idle_timeout_at(site)
    if policy.idle_fixed_at(site):
        return IdleLimit(timeout_s, "fixed")
    came_s = drone.joined_at - drone.started_at if drone.joined_at and drone.started_at else 0.0
    most_s = max(timeout_s, min(came_s, MAX_IDLE_STRETCH * timeout_s))
    best_s = estimates.idle_s.get(site)
    if best_s is not None and best_s < most_s:
        return IdleLimit(best_s, "gaps" if estimates.gaps.get(site, 0) >= MIN_IDLE_GAPS else "start-cost")
    return IdleLimit(most_s, "slow-start" if most_s > timeout_s else "time-out")


KILL_AFTER_STOPS = 3
"""A drone that was asked to stop this often is killed without notice."""
DRAIN_REPEAT_MIN_S, DRAIN_REPEAT_MAX_S = 30.0, 600.0
"""Shortest and longest time between two drain orders that have no effect."""
_NOTHING_TO_STOP = (RemoteState.STOPPED, RemoteState.ENDED)
"""States of listed drones that need no stop."""
CANCEL_AFTER_S = 120.0
"""A drone that waits at its site is cancelled when no job has needed it for this long, or for the idle timeout if that
is shorter. A place in a queue took hours to earn, and a queue that looks empty is often one that is restarting. In
replays five minutes served bursts better, but started too many drones for nothing where jobs come singly."""
MATCHABLE_IDLE_FACTOR = 3
"""An idle drone that waiting jobs fit is kept for this many idle timeouts: the negotiator should match it any
moment."""


def retire(
    context: PlanningContext,
    preemptions: Sequence[PreemptionOrder],
    placed: PlacementResult,
    black_holes: BlackHoles = NO_BLACK_HOLES,
) -> RetirementResult:
    """Return the drones that are asked to leave, at most one order per drone; the first rule that applies decides.

    While too many drones are unhealthy, only operators' requests count: they may be what ends the trouble.
    """
    asked = _Requests(context)
    done = tuple(r.id for r in context.snapshot.requests if _carry_out(context, asked, r))
    orphans: tuple[StopOrphan, ...] = ()
    if context.too_unhealthy is None:
        for leaver in preemptions:
            if leaver.drone.id not in asked.named and context.can_act_on(leaver.drone):
                asked.make_way(leaver.drone, leaver.reason, leaver.end)
        for drone, why in black_holes.leave:
            if drone.id not in asked.named and context.can_act_on(drone):
                if drone.joined_at:
                    asked.drain(drone, DrainMode.PEACEFUL, why, DroneState.CANCELLED)
                else:
                    asked.stop(drone, why, DroneState.CANCELLED)
        for drone_id, reason in placed.at_risk.items():
            drone = context.drones[drone_id]
            if not drone.goes and drone.id not in asked.named and context.can_act_on(drone):
                asked.drain(drone, DrainMode.PEACEFUL, reason, _worked(drone))
        surplus = _surplus(context, asked, placed.without_headroom)
        kept, matched = kept_for_headroom(context, placed.without_headroom), _MatchableClasses(context)
        for drone in context.changing.values():
            if drone.id not in asked.named and context.can_act_on(drone):
                _retire_one(context, asked, drone, surplus, kept, matched)
        orphans = _orphans(context)
    return RetirementResult(
        tuple(asked.drains), tuple(asked.stops), orphans, tuple(asked.refusals), done, moves=tuple(asked.moves)
    )


@dataclass(slots=True)
class _Requests:
    """Orders of this plan so far."""

    context: PlanningContext
    drains: list[Drain] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    moves: list[StateChange] = field(default_factory=list)
    named: set[str] = field(default_factory=set)

    def drain(self, drone: Drone, mode: DrainMode, reason: Reason, leaving: DroneState) -> None:
        if self.context.validity.overlay is not None:  # it could not be asked, nor could we see whether it is busy
            return
        now = self.context.now
        since = drone.since if drone.state is DroneState.DRAINING else now
        after = with_changes(
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
        now = self.context.now
        state = DroneState.BUSY if drone.jobs else DroneState.IDLE
        idle_at = 0.0 if drone.jobs else now
        back = with_changes(drone, state=state, since=now, leaving=None, asked_at=0.0, asked=0, idle_at=idle_at)
        self.drains.append(Drain(back, drone.state, DrainMode.RESUME, reason))
        self.named.add(drone.id)

    def stop(self, drone: Drone, reason: Reason, leaving: DroneState | None, *, kill: bool = False) -> None:
        self._stop(drone, reason, kill=kill, leaving=drone.leaving or leaving)

    def _stop(self, drone: Drone, reason: Reason, *, kill: bool = False, **news: object) -> None:
        now = self.context.now
        after = with_changes(
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
        """Stop a drone for the owner or for a GPU job. This is its notice, whatever it was about to do."""
        self._stop(drone, reason, leaving=leaving, notice_at=drone.notice_at or self.context.now)

    def write_off(self, drone: Drone, reason: Reason) -> None:
        self.moves.append(StateChange(ended_record(drone, DroneState.LOST, self.context.now), drone.state, reason))
        self.named.add(drone.id)

    def mark(self, drone: Drone, unneeded_at: float) -> None:
        self.moves.append(
            StateChange(with_changes(drone, idle_at=unneeded_at), drone.state, Unneeded(drone.state.value))
        )


def _carry_out(context: PlanningContext, asked: _Requests, request: OperatorRequest) -> bool:
    """Return True if the request is dealt with.

    A drain waits for the overlay, which alone can carry it out. A reset of breakers is in the snapshot already.
    """
    if request.kind is RequestKind.RESET:
        return True
    named = [context.drones[i] for i in request.drone_ids if i in context.drones]
    blind = context.validity.overlay
    of_overlay = any(d.joined_at or d.state is DroneState.DRAINING for d in named)
    if blind is not None and request.kind is RequestKind.DRAIN and of_overlay:
        asked.refusals.extend(Refusal(f"drone:{d.id}", 1, blind) for d in named)
        return False
    reason = OperatorRequested(request.by, request.reason)
    for drone_id in request.drone_ids:
        drone = context.drones.get(drone_id)
        if drone is None:
            asked.refusals.append(Refusal(f"drone:{drone_id}", 1, UnknownDrone(drone_id)))
        elif drone.id in asked.named:
            continue
        elif request.kind is RequestKind.KILL:
            if drone.site in context.snapshot.policy.sites:
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


def _resume(asked: _Requests, drone: Drone, reason: Reason) -> None:
    """Take a draining drone back into service for an operator, whoever asked it to leave."""
    if drone.state is DroneState.DRAINING:
        asked.resume(drone, reason)
    else:
        asked.refusals.append(Refusal(f"drone:{drone.id}", 1, NotDraining(drone.id, drone.state.value)))


def _retire_one(
    context: PlanningContext,
    asked: _Requests,
    drone: Drone,
    surplus: frozenset[str],
    kept: Collection[str],
    matched: _MatchableClasses,
) -> None:
    policy = context.snapshot.policy.sites.get(drone.site) or SitePolicy(drone.site)
    now = context.now
    worked = _worked(drone)
    if drone.state is DroneState.QUEUED and drone.started_at:
        return asked.stop(drone, SeenAtSite(RemoteState.PENDING.value, drone.site_reason), DroneState.PREEMPTED)
    waits = drone.state in (DroneState.SUBMITTED, DroneState.QUEUED) and not drone.jobs
    if waits and (remote := context.remote(drone)) is not None and remote.hopeless:
        fault = remote.blocked.value if remote.blocked else ""
        return asked.stop(drone, StartBlocked(drone.type, fault, remote.reason), DroneState.FAILED)
    if drone.unslotted_at and context.validity.overlay is None and drone.state is not DroneState.STOPPING:
        away = now - max(drone.unslotted_at, _pool_seen_since(context))
        if away > policy.slot_loss_s:
            return asked.stop(drone, LeftPool(away, policy.slot_loss_s), DroneState.LOST)
    if drone.type not in context.types and not drone.goes:
        if drone.joined_at:
            return asked.drain(drone, DrainMode.PEACEFUL, TypeRemoved(drone.type), worked)
        return asked.stop(drone, TypeRemoved(drone.type), DroneState.CANCELLED)
    if drone.id in surplus:
        return asked.stop(drone, Unneeded(drone.state.value), DroneState.CANCELLED)
    if drone.state is DroneState.IDLE and drone.id in kept:
        return None
    if drone.state is DroneState.IDLE:
        return _retire_idle(context, asked, drone, worked, matched)
    return _retire_overdue(context, asked, drone, policy)


def _worked(drone: Drone) -> DroneState:
    return DroneState.DONE if drone.busy_at else DroneState.UNUSED


def _retire_idle(
    context: PlanningContext, asked: _Requests, drone: Drone, worked: DroneState, matched: _MatchableClasses
) -> None:
    policy = context.snapshot.policy
    limit, by = idle_limit(drone, policy, context.snapshot.estimates)
    slot = context.slots.get(drone.id)
    if slot is None or context.validity.overlay is not None or drone.jobs or slot.jobs:
        return  # an ad that says idle and names jobs is not believed
    idle = context.now - (drone.idle_at or drone.since)
    if idle <= limit or (idle <= MATCHABLE_IDLE_FACTOR * policy.idle_timeout_at(drone.site) and matched.want(drone)):
        return
    asked.drain(drone, DrainMode.PEACEFUL, IdleTimeout(idle, limit, by), worked)


@dataclass
class _MatchableClasses:
    """Classes whose jobs the negotiator would match. Local to one plan."""

    context: PlanningContext

    def want(self, drone: Drone) -> bool:
        """Return True if jobs wait that fit a drone: then the negotiator should act, not the planner."""
        context, room = self.context, free_resources(self.context.slots[drone.id])
        return any(
            count_jobs(job, room, context.types[drone.type])
            for job in self._classes
            if drone.type in context.compatible[job.id].jobs and not context.class_backoffs.doubted(job.id, drone.type)
        )

    @cached_property
    def _classes(self) -> list[JobClass]:
        shares = GroupShares.of(self.context)
        return [job for job in self.context.classes if not shares.used_up(job)]


def _retire_overdue(context: PlanningContext, asked: _Requests, drone: Drone, policy: SitePolicy) -> None:
    stage = STATE_RULES[drone.state]
    limit, since = _limit(context, drone, policy)
    spent = (_heard_at(context, drone) if drone.state is DroneState.JOINED else context.now) - since
    if drone.state is DroneState.DRAINING and not drone.jobs and context.validity.overlay is None:
        # Empty, and still there: the drain was refused, lost or had no effect. The site's notice does it.
        wait = 0.0 if drone.asked else policy.stopping_s
        idle = _heard_at(context, drone) - max(drone.since, drone.idle_at, _pool_seen_since(context))
        if idle >= wait:
            refused = DrainRefused("", drone.drain_refusal)
            reason = refused if drone.asked else StateTimeout(drone.state.value, idle, wait)
            return asked.stop(drone, reason, drone.leaving or stage.ends_as)
    if limit <= 0 or spent <= limit:
        return _repeat_drain(context, asked, drone)
    if drone.state in (DroneState.BOOTING, DroneState.JOINED) and context.validity.overlay is not None:
        return None  # it may have joined: nobody can see
    late = StateTimeout(drone.state.value, spent, limit)
    match stage.then:
        case OnTimeout.STOP:
            asked.stop(drone, late, stage.ends_as)
        case OnTimeout.INSIST if not _works_again(context, drone):
            asked.stop(drone, late, drone.leaving, kill=drone.asked >= KILL_AFTER_STOPS)
        case _:
            pass  # idle drones go by _idle; a record without a drone ends by life.observe


def _repeat_drain(context: PlanningContext, asked: _Requests, drone: Drone) -> None:
    """Ask a drone again to drain if its slot still takes jobs: the order was refused or lost.

    The pause grows by half from order to order, within bounds.
    """
    slot = context.slots.get(drone.id)
    ordered = drone.state is DroneState.DRAINING and drone.asked_at and drone.drain_mode is not DrainMode.NONE
    if not ordered or slot is None or slot.state is SlotState.DRAINING:
        return
    after_s = context.now - drone.since
    if context.now - drone.asked_at >= min(max(DRAIN_REPEAT_MIN_S, after_s / 3), DRAIN_REPEAT_MAX_S):
        again = DrainRepeated(after_s, drone.drain_refusal)
        asked.drain(drone, drone.drain_mode, again, drone.leaving or STATE_RULES[drone.state].ends_as)


def _heard_at(context: PlanningContext, drone: Drone) -> float:
    """Return the time up to which the state of a drone in the pool is known.

    A listing of now may show an old slot, or lack it once. A drone that stays away is out of the pool, which has a
    limit of its own.
    """
    slot = context.slots.get(drone.id)
    return min(context.now, slot.heard_at if slot is not None else drone.heard_at)


def _works_again(context: PlanningContext, drone: Drone) -> bool:
    """Return True if a stop did not reach the drone and it has taken jobs since.

    It is asked again when it has no job. An owner's claim and an operator's request hold whatever it does.
    """
    slot = context.slots.get(drone.id)
    by_operator = drone.leaving is DroneState.CANCELLED and 0 < drone.joined_at <= drone.since
    took = slot is not None and slot.jobs > 0 and slot.begun_at > drone.since
    return took and not drone.notice_at and not by_operator


def _limit(context: PlanningContext, drone: Drone, policy: SitePolicy) -> tuple[float, float]:
    """Return how long the drone's state may last, and the start of that time."""
    match drone.state:
        case DroneState.BUSY:
            kind = context.types.get(drone.type)
            if kind is None or not kind.walltime_s:
                return 0.0, drone.since
            return kind.walltime_s + policy.grace_s, drone.started_at or drone.since
        case DroneState.STOPPING:
            return policy.stopping_s, drone.asked_at
        case DroneState.BOOTING | DroneState.JOINED:
            # While the pool could not be seen nobody could join: that time does not count.
            return float(getattr(policy, STATE_RULES[drone.state].limit)), max(drone.since, _pool_seen_since(context))
        case _:
            return float(getattr(policy, STATE_RULES[drone.state].limit, 0.0)), drone.since


def _pool_seen_since(context: PlanningContext) -> float:
    breaker = context.breakers.get(OVERLAY_SCOPE)
    return breaker.blind_until if breaker else 0.0


def _surplus(context: PlanningContext, asked: _Requests, without_headroom: Collection[str]) -> frozenset[str]:
    """Return drones that wait at a site and that neither jobs nor headroom have needed for a while.

    Fresh jobs count as need here: scaling down is slower than scaling up.
    """
    outage = context.breakers.get(OVERLAY_SCOPE)
    if context.validity.overlay is not None or (outage is not None and context.now < outage.until):
        return frozenset()
    waiting = [
        d
        for d in context.changing.values()
        if d.state in (DroneState.SUBMITTED, DroneState.QUEUED)
        and not d.jobs
        and not d.goes
        and not d.started_at
        and d.type in context.types
        and d.id not in asked.named
    ]
    if not waiting:
        return frozenset()
    supply = Supply.of(context)
    real = sorted(context.classes, key=lambda c: (len(context.compatible[c.id].kinds), c.id))
    for job in (*real, *context.headroom):
        compatible, wanted = context.compatible[job.id], job.waiting + job.fresh
        if is_headroom(job.id):
            compatible = compatible.without(without_headroom)
        wanted -= supply.take_own(job, wanted).jobs
        wanted -= supply.take(job, compatible, wanted).jobs
        for key in compatible.places.keys() & supply.late if wanted > 0 else ():
            # of those that come late, as many of each type: which of them comes first nobody knows
            supply.take(job, compatible, wanted, key, late=True)
    left = {key: supply.untouched(context.types[key]) for key in {d.type for d in waiting}}
    surplus: list[str] = []
    # those that come late first, then the newest
    for drone in sorted(waiting, key=lambda d: (d.id not in context.late, -d.requested_at, d.id)):
        left[drone.type] -= 1
        if left[drone.type] < 0:
            if drone.idle_at:
                asked.mark(drone, 0.0)
        elif not drone.idle_at:
            asked.mark(drone, context.now)
        elif context.now - drone.idle_at >= min(CANCEL_AFTER_S, context.snapshot.policy.idle_timeout_at(drone.site)):
            surplus.append(drone.id)
    return frozenset(surplus)


def _orphans(context: PlanningContext) -> tuple[StopOrphan, ...]:
    """Return what carries our tag without a live record: a start with a late answer, or a lost store."""
    found = []
    for site, count in context.orphan_counts.items():
        view = context.validity.site_view(context.snapshot, site)
        if not count or view is None or context.validity.sites.get(site) is not None:
            continue
        for drone_id, remote in view.drones.items():
            if remote.state not in _NOTHING_TO_STOP and drone_id not in context.drones:
                known = context.snapshot.ended.get(drone_id)
                found.append(StopOrphan(site, drone_id, remote.remote_id, Orphan(known.value if known else "")))
    return tuple(found)
