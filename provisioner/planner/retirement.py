"""Retirement: the drones that leave, by an ordered list of rules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from provisioner import model, reasons
from provisioner.job_filter import TAKES_ALL, JobFilter
from provisioner.keys import OVERLAY_SCOPE, Subject
from provisioner.model import (
    Drain,
    DrainMode,
    Drone,
    DroneId,
    DroneState,
    DroneType,
    JobClass,
    OperatorRequest,
    Refusal,
    RemoteDrone,
    RemoteState,
    RequestKind,
    StateChange,
    Stop,
    StopOrphan,
    TypeKey,
)
from provisioner.planner.black_holes import BlackHoles
from provisioner.planner.capacity import Supply, passes_soon
from provisioner.planner.context import PlanningContext
from provisioner.planner.demand import GroupShares, is_headroom, kept_for_headroom
from provisioner.planner.lifecycle import ended_record, undrained_record
from provisioner.planner.matching import count_jobs, resources_for_gpu_jobs
from provisioner.planner.owner import PreemptionOrder
from provisioner.planner.placement import Placement
from provisioner.planner.services import ServicePlan
from provisioner.planner.states import (
    NO_END,
    STATE_RULES,
    OnTimeout,
    idle_limit,
    longest_busy_s,
)
from provisioner.reasons import Reason
from provisioner.values import factory

KILL_AFTER_STOPS = 3
"""A drone that was asked to stop this often is killed without notice."""
DRAIN_REPEAT_MIN_S, DRAIN_REPEAT_MAX_S = 30.0, 600.0
"""Shortest and longest time between two drain orders that have no effect."""
CANCEL_AFTER_S = 120.0
"""A drone that waits at its site is cancelled when no job has needed it for this long, or for the
idle timeout if that is shorter. In replays five minutes served bursts better, but started too many
unused drones where jobs come singly."""
MATCHABLE_IDLE_FACTOR = 3
"""An idle drone that waiting jobs fit is kept for this many idle timeouts: the negotiator should match it soon."""
REFUSED_ROOM_S = 90.0
"""An idle drone of several GPUs leaves after this time if smaller jobs, which it refuses, lack its
room. Larger ones that are already waiting have it by then. One that excludes users leaves at
once, unless jobs wait that it takes."""
_LACKS_ROOM = (reasons.LimitReached, reasons.SiteFull, reasons.GpusStranded, reasons.SiteQuota)


def retire(
    context: PlanningContext,
    preemptions: Sequence[PreemptionOrder],
    placed: Placement,
    black_holes: BlackHoles,
    served: ServicePlan,
) -> Retirement:
    """Return the drones that are asked to leave, at most one order per drone; the first rule that applies decides."""
    retirement = Retirement(context, preemptions, placed, black_holes, served)
    for request in context.snapshot.requests:
        if _carry_out(retirement, request):
            retirement.requests_done.append(request.id)
    paused = context.too_unhealthy is not None or bool(context.snapshot.twins)
    if not paused:  # else only operators' requests may end the trouble
        for rule in PLAN_RULES:
            rule(retirement)
        retirement.find_unneeded()
        for drone in context.unsettled:
            if retirement.may_ask(drone):
                rules = SERVER_RULES if drone.service else DRONE_RULES
                for retires in rules[drone.state]:
                    if retires(retirement, drone):
                        break
    _stop_orphans(retirement, paused)
    return retirement


@dataclass
class Retirement:
    """Orders of one plan to leave, and what the rules need. Mutable, local to one plan."""

    context: PlanningContext
    preemptions: Sequence[PreemptionOrder]
    placed: Placement
    black_holes: BlackHoles
    served: ServicePlan
    drains: list[Drain] = factory(list)
    stops: list[Stop] = factory(list)
    orphans: list[StopOrphan] = factory(list)
    refusals: list[Refusal] = factory(list)
    requests_done: list[int] = factory(list)
    moves: list[StateChange] = factory(list)
    """Further changes of records, each after the changes that views have caused."""
    asked: set[str] = factory(set)
    unneeded: set[str] = factory(set)
    """Drones that wait at a site and that no job needs (:meth:`find_unneeded`)."""

    def may_ask(self, drone: Drone) -> bool:
        """Return True if the drone has no order yet and its site's view is valid."""
        return drone.id not in self.asked and self.context.can_act_on(drone)

    def order(self, order: Drain | Stop) -> None:
        self.asked.add(order.drone.id)
        if isinstance(order, Drain):
            self.drains.append(order)
        else:
            self.stops.append(order)

    def drain(
        self,
        drone: Drone,
        reason: Reason,
        leaving: DroneState,
        mode: DrainMode = DrainMode.PEACEFUL,
    ) -> None:
        """Drain a drone, unless its pool's view is invalid: it could not be asked, nor seen to be busy."""
        if self.context.validity.pool_doubt(drone) is not None:
            return
        draining = DroneState.DRAINING
        now = self.context.now
        since = drone.since if drone.state is draining else now
        after = replace(
            drone,
            state=draining,
            since=since,
            leaving=leaving,
            asked_at=now,
            asked=0,
            drain_mode=mode,
        )
        self.order(Drain(after, drone.state, mode, reason))

    def stop(
        self, drone: Drone, reason: Reason, leaving: DroneState | None, *, kill: bool = False
    ) -> None:
        now = self.context.now
        again = drone.state is DroneState.STOPPING
        since, asked = (drone.since, drone.asked + 1) if again else (now, 1)
        leaving = drone.leaving or leaving
        after = replace(
            drone,
            state=DroneState.STOPPING,
            since=since,
            asked_at=now,
            asked=asked,
            leaving=leaving,
        )
        self.order(Stop(after, drone.state, reason, kill))

    def drain_or_stop(
        self, drone: Drone, reason: Reason, leaving: DroneState, mode: DrainMode
    ) -> None:
        """Drain a drone that is in the pool, and stop any other."""
        if drone.joined_at:
            self.drain(drone, reason, leaving, mode)
        else:
            self.stop(drone, reason, DroneState.CANCELLED)

    def take_back(self, drone: Drone, reason: Reason) -> None:
        """Take a draining drone back into service."""
        undrained = undrained_record(drone, self.context.now)
        self.order(Drain(undrained, drone.state, DrainMode.RESUME, reason))

    def heard_at(self, drone: Drone) -> float:
        """Return the time up to which the state of a drone in the pool is known: a listing may show an old slot."""
        slot = self.context.validity.slot_of(drone)
        return min(self.context.now, slot.heard_at if slot is not None else drone.heard_at)

    def pool_seen_since(self, drone: Drone) -> float:
        """Return the end of the last outage of the overlay that may have hidden events of a drone for jobs."""
        breaker = self.context.breakers.get(OVERLAY_SCOPE)
        return breaker.blind_until if breaker and not drone.service else 0.0

    @cached_property
    def kept(self) -> frozenset[DroneId]:
        return kept_for_headroom(self.context, self.placed.without_headroom)

    def matchable(self, drone: Drone) -> bool:
        """Return True if jobs wait that fit a drone: then the negotiator should act, not the planner."""
        context = self.context
        kind = self.context.types[drone.type]
        room = resources_for_gpu_jobs(context.slots[drone.id], kind)
        return any(
            count_jobs(job, room, kind)
            for job in self._matchable_classes
            if drone.type in context.compatible[job.id].jobs
            and not drone.job_filter.refuses(job)
            and not context.class_backoffs.doubted(job.id, drone.type)
        )

    def matched_soon(self, drone: Drone, idle_s: float) -> bool:
        """Return True if jobs wait that fit a drone, and the negotiator has not had the time to match it."""
        limit_s = MATCHABLE_IDLE_FACTOR * self.context.snapshot.policy.idle_timeout_at(drone.site)
        return idle_s <= limit_s and self.matchable(drone)

    def makes_room(self, drone: Drone) -> bool:
        """Return True if the end of a drone gives room to jobs that it refuses, and none waits that it takes.

        One drone leaves at a time for the jobs of a user.
        """
        context = self.context
        risk = self.placed.allocation.risk
        keys = {drone.type, *context.costs.smaller.get(drone.type, ())}
        for job in self._lacking_room:
            compatible = context.compatible[job.id]
            if not drone.job_filter.refuses(job) or any(
                left.job_filter.refuses(job) for left in self._left
            ):
                continue
            kinds = (context.types[key] for key in compatible.jobs if key in keys)
            if any(risk.allowed(job, compatible, kind, 1, drone.gpu_milli)[0] for kind in kinds):
                leaves = not self.matchable(drone)
                if leaves:
                    self._left.append(drone)
                return leaves
        return False

    @cached_property
    def _left(self) -> list[Drone]:
        """Drones that leave without a job."""
        return [drone for drone in self.context.unsettled if drone.is_leaving and not drone.jobs]

    @cached_property
    def _lacking_room(self) -> list[JobClass]:
        """Classes that lack room, one for each user, number of GPUs and set of drone types."""
        told = ((each.subject, each.reason) for each in self.placed.refusals)
        lacking = {
            who for who, why in told if isinstance(why, _LACKS_ROOM) and not passes_soon(why)
        }
        jobs = (job for job in self.context.classes if Subject("class", job.id) in lacking)
        alike = {
            (job.owner, job.gpu_milli, *self.context.compatible[job.id].jobs): job for job in jobs
        }
        return list(alike.values())

    @cached_property
    def _matchable_classes(self) -> list[JobClass]:
        shares = GroupShares.of(self.context)
        return [job for job in self.context.classes if not shares.used_up(job)]

    def find_unneeded(self) -> None:
        """Find the drones that wait at a site and that neither jobs nor headroom have needed for a while."""
        context = self.context
        outage = context.breakers.get(OVERLAY_SCOPE)
        if context.validity.overlay is not None or (
            outage is not None and context.now < outage.until
        ):
            return
        drones = (
            d
            for d in context.unsettled
            if d.waits_at_site and not d.is_leaving and not d.service and d.type in context.types
        )
        waiting = [d for d in drones if not d.jobs and not d.started_at and d.id not in self.asked]
        left = self._uncovered_types(set(map(_kind_of, waiting))) if waiting else {}
        # Delayed drones come first, then the newest.
        for drone in sorted(
            waiting, key=lambda d: (d.id not in context.late, -d.requested_at, d.id)
        ):
            kind = _kind_of(drone)
            left[kind] -= 1
            needed = left[kind] < 0
            limit_s = context.snapshot.policy.idle_timeout_at(drone.site)
            if needed is bool(drone.idle_at):
                after = replace(drone, idle_at=0.0 if needed else context.now)
                self.moves.append(
                    StateChange(after, drone.state, reasons.Unneeded(drone.state.value))
                )
            elif not needed and context.now - drone.idle_at >= min(CANCEL_AFTER_S, limit_s):
                self.unneeded.add(drone.id)

    def _uncovered_types(self, kinds: Collection[DroneKind]) -> dict[DroneKind, int]:
        """Return how many drones of these kinds on their way no job, not even a fresh one, and no headroom needs."""
        context = self.context
        supply = Supply.of(self.context)
        real = sorted(context.classes, key=lambda c: (len(context.compatible[c.id].kinds), c.id))
        for job in (*real, *context.headroom):
            compatible = context.compatible[job.id]
            wanted = job.waiting + job.fresh
            if is_headroom(job.id):
                without = self.placed.without_headroom
                compatible = compatible.only(
                    kind for kind in compatible.kinds if kind.site not in without
                )
            wanted -= supply.take_own(job, wanted).jobs
            wanted -= supply.take(job, compatible, wanted).jobs
            for key in compatible.keys & supply.late if wanted > 0 else ():
                # Of delayed drones, as many of each type: which of them starts first is unknown.
                supply.take(job, compatible, wanted, key, late=True)
        return {(key, rules): supply.untouched(context.types[key], rules) for key, rules in kinds}


DroneKind = tuple[TypeKey, JobFilter]
"""Type of a drone, and the jobs that it refuses for as long as it lives."""


def _kind_of(drone: Drone) -> DroneKind:
    return drone.type, drone.job_filter.lasting


def _carry_out(retirement: Retirement, request: OperatorRequest) -> bool:
    """Return True if the request is dealt with: a drain waits for the overlay, which alone can carry it out."""
    if request.kind is RequestKind.DISABLE:
        return request not in retirement.context.snapshot.disabled.values()
    if request.kind in (RequestKind.ADOPT_ORPHANS, RequestKind.STOP_ORPHANS):
        settled = [_settle_orphans(retirement, request, site) for site in request.drone_ids]
        return all(settled)
    if request.kind not in (RequestKind.DRAIN, RequestKind.KILL):  # it is in the snapshot already
        return True
    drones = retirement.context.drones
    named = [drones[i] for i in request.drone_ids if i in drones]
    pool_doubt = retirement.context.validity.pool_doubt
    doubts = (pool_doubt(d) for d in named if d.joined_at or d.state is DroneState.DRAINING)
    doubt = next((why for why in doubts if why is not None), None)
    if doubt is not None and request.kind is RequestKind.DRAIN:
        retirement.refusals.extend(Refusal(Subject("drone", d.id), 1, doubt) for d in named)
        return False
    for drone_id in request.drone_ids:
        drone = drones.get(drone_id)
        if drone is None:
            unknown = reasons.UnknownDrone(drone_id)
            retirement.refusals.append(Refusal(Subject("drone", drone_id), 1, unknown))
        elif drone.id not in retirement.asked:
            _order_by_operator(retirement, request, drone)
    return True


def _order_by_operator(retirement: Retirement, request: OperatorRequest, drone: Drone) -> None:
    """Order what an operator wants of one drone: its end, a drain, or the end of a drain."""
    reason = reasons.OperatorRequested(request.by, request.reason)
    now = retirement.context.now
    if request.kind is RequestKind.KILL:
        if drone.site in retirement.context.snapshot.policy.sites:
            retirement.stop(drone, reason, DroneState.CANCELLED, kill=True)
            return
        # its site was taken out of the configuration: nobody can be asked, nothing else would ever
        # end it
        lost = ended_record(drone, DroneState.LOST, now)
        retirement.moves.append(StateChange(lost, drone.state, reason))
        retirement.asked.add(drone.id)
    elif request.mode is not DrainMode.RESUME:
        if drone.state is not DroneState.STOPPING:
            retirement.drain_or_stop(drone, reason, DroneState.CANCELLED, request.mode)
    elif drone.state is DroneState.DRAINING:
        retirement.take_back(drone, reason)
    else:
        why = reasons.NotDraining(drone.id, drone.state.value)
        retirement.refusals.append(Refusal(Subject("drone", drone.id), 1, why))


def stop_for_owners(retirement: Retirement) -> None:
    """Stop the drones whose room an owner's job or a GPU job gets."""
    for order in retirement.preemptions:
        if retirement.may_ask(order.drone):  # this is its notice, whatever it was about to do
            notice_at = order.drone.notice_at or retirement.context.now
            retirement.stop(
                replace(order.drone, leaving=None, notice_at=notice_at), order.reason, order.end
            )


def drain_black_holes(retirement: Retirement) -> None:
    """Drain drones in which, or on whose nodes, job after job fails."""
    for drone, reason in retirement.black_holes.leave:
        if retirement.may_ask(drone):
            retirement.drain_or_stop(drone, reason, DroneState.CANCELLED, DrainMode.PEACEFUL)


def drain_at_risk(retirement: Retirement) -> None:
    """Drain drones whose place an owner is likely to take."""
    for drone_id, reason in retirement.placed.at_risk.items():
        drone = retirement.context.drones[drone_id]
        if not drone.is_leaving and retirement.may_ask(drone):
            retirement.drain(drone, reason, _final_state(drone))


def drain_for_larger_jobs(retirement: Retirement) -> None:
    """Drain drones whose room is reserved for a job of several GPUs."""
    for reserved in retirement.placed.allocation.reserved.by_site.values():
        for drone in filter(retirement.may_ask, reserved.drains):
            retirement.drain(drone, reserved.reason, _final_state(drone))


def drain_servers(retirement: Retirement) -> None:
    """Drain the servers that no service needs, those that end soon, and one that yields to jobs. Take others back."""
    served = retirement.served
    drones = retirement.context.drones
    for drone_id, why in served.returning.items():
        if retirement.may_ask(drones[drone_id]):
            retirement.take_back(drones[drone_id], why)
    leaving = [(drones[drone_id], why) for drone_id, why in served.leaving.items()]
    if served.states and retirement._lacking_room:
        leaving += served.over_share()
    for drone, reason in leaving:
        if retirement.may_ask(drone):
            retirement.drain_or_stop(drone, reason, _final_state(drone), DrainMode.PEACEFUL)


PLAN_RULES: tuple[Callable[[Retirement], None], ...] = (
    stop_for_owners,
    drain_black_holes,
    drain_at_risk,
    drain_for_larger_jobs,
    drain_servers,
)
"""Rules that choose among all drones, in order. They come after operators' requests."""


def requeued(retirement: Retirement, drone: Drone) -> bool:
    """Stop a drone that its site has preempted and put back into the queue."""
    if not drone.started_at:
        return False
    retirement.stop(drone, reasons.Requeued(drone.site_reason), DroneState.PREEMPTED)
    return True


def never_starting(retirement: Retirement, drone: Drone) -> bool:
    """Stop a drone that its site will never start."""
    remote = retirement.context.remote(drone) if not drone.jobs else None
    if remote is None or not remote.hopeless:
        return False
    fault = remote.blocked.value if remote.blocked else ""
    retirement.stop(
        drone, reasons.StartBlocked(drone.type, fault, remote.reason), DroneState.FAILED
    )
    return True


def left_pool(retirement: Retirement, drone: Drone) -> bool:
    """Stop a drone that has been out of the pool, or whose server has not been ready, for too long."""
    if not drone.unslotted_at or retirement.context.validity.pool_doubt(drone) is not None:
        return False
    away_s = retirement.context.now - max(drone.unslotted_at, retirement.pool_seen_since(drone))
    policy = retirement.context.snapshot.policy
    limits = (each.unready_s for each in policy.services if each.name == drone.service)
    limit_s = next(limits, policy.of_site(drone.site).slot_loss_s)
    if away_s <= limit_s:
        return False
    retirement.stop(drone, reasons.LeftPool(away_s, limit_s), DroneState.LOST)
    return True


def type_removed(retirement: Retirement, drone: Drone) -> bool:
    """Let go of a drone whose type is no longer configured, or has another service now."""
    kind = retirement.context.types.get(drone.type)
    if drone.is_leaving or (kind is not None and kind.service == drone.service):
        return False
    retirement.drain_or_stop(
        drone, reasons.TypeRemoved(drone.type), _final_state(drone), DrainMode.PEACEFUL
    )
    return True


def unneeded(retirement: Retirement, drone: Drone) -> bool:
    """Cancel a drone that waits at its site and that no job needs."""
    if drone.id not in retirement.unneeded:
        return False
    retirement.stop(drone, reasons.Unneeded(drone.state.value), DroneState.CANCELLED)
    return True


def idle(retirement: Retirement, drone: Drone) -> bool:
    """Drain a drone that has been idle for too long, unless headroom or waiting jobs need it."""
    context = retirement.context
    slot = context.slots.get(drone.id)
    if (
        drone.id in retirement.kept
        or slot is None
        or context.validity.overlay is not None
        or drone.jobs
        or slot.jobs
    ):
        return True  # a slot that is idle and lists jobs is not trusted
    policy = context.snapshot.policy
    limit_s, by = idle_limit(drone, policy, context.snapshot.estimates)
    idle_s = context.now - (drone.idle_at or drone.since)
    refused_s = REFUSED_ROOM_S if drone.job_filter.min_gpus else 0.0
    refuses_some = drone.job_filter.lasting != TAKES_ALL
    if refuses_some and refused_s < idle_s <= limit_s and retirement.makes_room(drone):
        limit_s = refused_s
        by = "refused-jobs"
    if idle_s > limit_s and not retirement.matched_soon(drone, idle_s):
        retirement.drain(drone, reasons.IdleTimeout(idle_s, limit_s, by), _final_state(drone))
    return True


def optional_jobs_only(retirement: Retirement, drone: Drone) -> bool:
    """Drain a drone whose GPU no job has needed for the idle timeout, unless headroom or waiting jobs need it."""
    context = retirement.context
    slot = retirement.context.slots.get(drone.id)
    if not drone.idle_at or slot is None or not slot.only_optional:
        return False
    limit_s, _ = idle_limit(drone, context.snapshot.policy, context.snapshot.estimates)
    idle_s = context.now - drone.idle_at
    if idle_s <= limit_s or drone.id in retirement.kept or retirement.matched_soon(drone, idle_s):
        return False
    retirement.drain(drone, reasons.OptionalJobsOnly(idle_s, limit_s), DroneState.DONE)
    return True


def empty_and_draining(retirement: Retirement, drone: Drone) -> bool:
    """Stop a drained drone that is still there: the drain was refused, lost or had no effect."""
    if drone.jobs or retirement.context.validity.overlay is not None:
        return False
    limit_s = (
        0.0 if drone.asked else retirement.context.snapshot.policy.of_site(drone.site).stopping_s
    )
    idle_s = retirement.heard_at(drone) - max(
        drone.since, drone.idle_at, retirement.pool_seen_since(drone)
    )
    if idle_s < limit_s:
        return False
    refused = reasons.DrainRefused("", drone.drain_refusal)
    reason = refused if drone.asked else reasons.StateTimeout(drone.state.value, idle_s, limit_s)
    retirement.stop(drone, reason, drone.leaving or STATE_RULES[drone.state].ends_as)
    return True


def server_drained(retirement: Retirement, drone: Drone) -> bool:
    """Stop a withdrawn server that works on no request, or whose grace is over. It does not end by itself."""
    context = retirement.context
    if context.validity.pool_doubt(drone) is not None:
        return False
    slot = context.validity.slot_of(drone)
    spent_s = context.now - drone.since
    grace_s = context.snapshot.policy.of_site(drone.site).grace_s
    withdrawn = slot is not None and slot.state is model.SlotState.DRAINING
    leaving = drone.leaving or _final_state(drone)
    if withdrawn and not drone.jobs:
        retirement.stop(drone, reasons.ServerDrained(), leaving)
    elif spent_s > grace_s:
        why = reasons.StateTimeout(drone.state.value, spent_s, grace_s)
        retirement.stop(drone, why, leaving)
    else:
        return False
    return True


def overdue(retirement: Retirement, drone: Drone) -> bool:
    """Apply the state's rule to a drone that has been in one state for too long."""
    limit_s, since = _limit(retirement, drone)
    joined = drone.state is DroneState.JOINED
    spent_s = (retirement.heard_at(drone) if joined else retirement.context.now) - since
    if limit_s <= 0 or spent_s <= limit_s:
        return False
    rule = STATE_RULES[drone.state]
    if (
        drone.state in (DroneState.BOOTING, DroneState.JOINED)
        and retirement.context.validity.pool_doubt(drone) is not None
    ):
        return True  # it may have joined: nobody can see
    reason = reasons.StateTimeout(drone.state.value, spent_s, limit_s)
    # Idle drones leave by `idle`; a record without a drone ends by `lifecycle.observe`.
    if rule.then is OnTimeout.STOP:
        retirement.stop(drone, reason, rule.ends_as)
    elif rule.then is OnTimeout.INSIST and not _works_again(retirement.context, drone):
        retirement.stop(drone, reason, drone.leaving, kill=drone.asked >= KILL_AFTER_STOPS)
    return True


def drain_ignored(retirement: Retirement, drone: Drone) -> bool:
    """Ask a drone again to drain if its slot still takes jobs: the order was refused or lost.

    The pause grows by half from order to order, within bounds.
    """
    slot = retirement.context.slots.get(drone.id)
    ordered = drone.asked_at and drone.drain_mode is not DrainMode.NONE
    if not ordered or slot is None or slot.state is model.SlotState.DRAINING:
        return False
    after_s = retirement.context.now - drone.since
    if retirement.context.now - drone.asked_at < min(
        max(DRAIN_REPEAT_MIN_S, after_s / 3), DRAIN_REPEAT_MAX_S
    ):
        return False
    again = reasons.DrainRepeated(after_s, drone.drain_refusal)
    retirement.drain(
        drone, again, drone.leaving or STATE_RULES[drone.state].ends_as, drone.drain_mode
    )
    return True


DroneRule = Callable[[Retirement, Drone], bool]
DRONE_RULES: Mapping[DroneState, tuple[DroneRule, ...]] = {
    DroneState.REQUESTED: (left_pool, type_removed, overdue),
    DroneState.SUBMITTED: (never_starting, left_pool, type_removed, unneeded, overdue),
    DroneState.QUEUED: (requeued, never_starting, left_pool, type_removed, unneeded, overdue),
    DroneState.BOOTING: (left_pool, type_removed, overdue),
    DroneState.JOINED: (left_pool, type_removed, overdue),
    DroneState.IDLE: (left_pool, type_removed, idle),
    DroneState.BUSY: (left_pool, type_removed, optional_jobs_only, overdue),
    DroneState.DRAINING: (left_pool, empty_and_draining, overdue, drain_ignored),
    DroneState.STOPPING: (overdue,),
}
"""Rules for a single drone by its state, in order.

A rule returns True if it decides about the drone; later rules are skipped.
"""
_OF_JOBS = (unneeded, idle, optional_jobs_only, empty_and_draining)
SERVER_RULES: Mapping[DroneState, tuple[DroneRule, ...]] = {
    **{
        state: tuple(rule for rule in rules if rule not in _OF_JOBS)
        for state, rules in DRONE_RULES.items()
    },
    DroneState.DRAINING: (left_pool, server_drained, overdue, drain_ignored),
}
"""The same for the server of a service, without the rules about jobs."""


def _final_state(drone: Drone) -> DroneState:
    return DroneState.DONE if drone.busy_at else DroneState.UNUSED


def _works_again(context: PlanningContext, drone: Drone) -> bool:
    """Return True if a stop did not reach the drone and it has taken jobs since: it is asked when it has none."""
    slot = context.slots.get(drone.id)
    took = slot is not None and slot.jobs > 0 and slot.begun_at > drone.since
    # An owner's claim and an operator's request hold whatever it does.
    by_operator = drone.leaving is DroneState.CANCELLED and 0 < drone.joined_at <= drone.since
    return took and not drone.notice_at and not by_operator


def _limit(retirement: Retirement, drone: Drone) -> tuple[float, float]:
    """Return the time limit of the drone's state, and the start of that time."""
    policy = retirement.context.snapshot.policy.of_site(drone.site)
    if drone.state is DroneState.BUSY:
        kind = retirement.context.types.get(drone.type)
        most_s = longest_busy_s(kind, retirement.context.snapshot.policy) if kind else NO_END
        return most_s, drone.started_at or drone.since
    setting = float(getattr(policy, STATE_RULES[drone.state].limit, 0.0))
    match drone.state:
        case DroneState.STOPPING:
            return setting, drone.asked_at
        case DroneState.BOOTING | DroneState.JOINED:
            # While the pool could not be seen nobody could join: that time does not count.
            return setting, max(drone.since, retirement.pool_seen_since(drone))
        case _:
            return setting, drone.since


def _orphans(context: PlanningContext, site: str) -> Mapping[DroneId, RemoteDrone]:
    """Return what carries our name at a site without a live record; nothing if the view of the site is doubted."""
    view = context.validity.views.get(site)
    if (
        view is None
        or context.validity.sites.get(site) is not None
        or not context.orphan_counts.get(site)
    ):
        return {}
    gone = RemoteState.STOPPED, RemoteState.ENDED
    return {
        i: remote
        for i, remote in view.drones.items()
        if remote.state not in gone and i not in context.drones
    }


def _stop_orphans(retirement: Retirement, paused: bool) -> None:
    """Stop the orphans that ended on record, as after a late answer, and others without a job after a grace.

    Those whose start the database may have lost are adopted.
    """
    context = retirement.context
    snapshot = retirement.context.snapshot
    decided = {(orphan.drone_id, orphan.site) for orphan in retirement.orphans}
    decided |= {(move.drone.id, move.drone.site) for move in retirement.moves}
    ours = f"{snapshot.id_prefix}-"
    for site in snapshot.policy.sites:
        waits = paused or site in snapshot.unlisted
        kept: dict[str, list[float]] = {}
        for drone_id, remote in _orphans(context, site).items():
            known = snapshot.ended.get(drone_id)
            until = snapshot.orphans.get(drone_id, context.now) + snapshot.policy.orphan_grace_s
            if (drone_id, site) in decided:
                continue
            kind = context.types.get(TypeKey(f"{site}/{remote.type}"))
            may_be_lost = known is None and snapshot.adopts and drone_id.startswith(ours)
            if may_be_lost and kind is not None and not waits:
                retirement.moves.append(_adopted(context, kind, remote, reasons.StartLost()))
                continue
            over = context.now >= until and _has_no_job(context, kind, remote)
            if not waits and (known is not None or over):
                reason = reasons.Orphan(known.value if known is not None else "")
                retirement.orphans.append(StopOrphan(site, drone_id, remote.remote_id, reason))
            elif known is None:
                kept.setdefault(drone_id.rpartition("-")[0], []).append(until)
        for record, times in kept.items():
            why = reasons.OrphansKept(site, record, len(times), max(times))
            retirement.refusals.append(Refusal(Subject("site", site), len(times), why))


def _has_no_job(context: PlanningContext, kind: DroneType | None, remote: RemoteDrone) -> bool:
    """Return True if an orphan certainly runs no job. One that is not in this pool may be in that of its controller.

    The balancer gives no requests to the server of an orphan.
    """
    if kind is not None and kind.service:
        return True
    slot = context.slots.get(remote.drone_id)
    return remote.state is RemoteState.PENDING if slot is None else not slot.jobs


def _settle_orphans(retirement: Retirement, request: OperatorRequest, site: str) -> bool:
    """Adopt or stop the orphans of a site as an operator asks. Return False while its view is doubted."""
    context = retirement.context
    if context.validity.sites.get(site) is not None or site in context.snapshot.unlisted:
        return False
    reason = reasons.OperatorRequested(request.by, request.reason)
    for drone_id, remote in _orphans(context, site).items():
        kind = context.types.get(TypeKey(f"{site}/{remote.type}"))
        if drone_id in context.snapshot.ended:
            continue
        if request.kind is RequestKind.STOP_ORPHANS:
            retirement.orphans.append(StopOrphan(site, drone_id, remote.remote_id, reason))
        elif kind is None:
            retirement.refusals.append(
                Refusal(Subject("drone", drone_id), 1, reasons.TypeRemoved(f"{site}/{remote.type}"))
            )
        else:
            retirement.moves.append(_adopted(context, kind, remote, reason))
    return True


def _adopted(
    context: PlanningContext, kind: DroneType, remote: RemoteDrone, reason: reasons.Reason
) -> StateChange:
    """Return the step that puts an orphan on record."""
    runs = remote.state is RemoteState.RUNNING
    at = remote.started_at or context.now
    adopted = Drone(
        remote.drone_id,
        kind.key,
        DroneState.BOOTING if runs else DroneState.QUEUED,
        context.now,
        at,
        kind.gpu_milli,
        service=kind.service,
    )
    after = replace(
        adopted,
        remote_id=remote.remote_id,
        submitted_at=at,
        started_at=at if runs else 0.0,
        node=remote.node,
    )
    return StateChange(after, None, reason)
