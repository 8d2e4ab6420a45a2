"""Circuit breakers for sites, drone types, the overlay, and job classes on drone types.

A job class backs off on one drone type after a drone that was started for it received none of its
jobs. The pool knows more than the planner: a parallel job, a used-up concurrency limit, a START
expression that the template lacks. Such a drone stays idle for these jobs and serves all others.
So only the class backs off, only on that type: after a pause one more drone is tried, and each
failure doubles the pause.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from provisioner import model
from provisioner.keys import OVERLAY_SCOPE
from provisioner.model import (
    Breaker,
    Breakers,
    BreakerState,
    Drone,
    DroneState,
    Fault,
    FaultKind,
    PolledOverlay,
    PolledSite,
    Scope,
    Snapshot,
    StateChange,
    TypeKey,
)
from provisioner.planner.blame import judge_users
from provisioner.planner.settled import but_heard_at
from provisioner.reasons import EXIT_WORDS, EndedAtSite, Reason, StartsUnmatched
from provisioner.values import frozen

OVERLAY_SETTLE_MAX_S = 60.0


@frozen
class BackoffPolicy:
    """Back-off of one kind of fault: ban after ``after`` failures in a row, at first for ``base_s``."""

    after: int
    base_s: float
    cap_s: float
    per_type: bool = False
    """The fault concerns the drone type, not the whole site."""


BACKOFF_POLICIES: Mapping[FaultKind, BackoffPolicy] = {
    # after, base_s, cap_s
    FaultKind.DOWN: BackoffPolicy(3, 10, 300),
    # of calls that were not made: no result of an order counts as one
    FaultKind.LEASE: BackoffPolicy(3, 10, 300),
    FaultKind.UNKNOWN: BackoffPolicy(3, 30, 600),
    FaultKind.DENIED: BackoffPolicy(1, 120, 1800),
    FaultKind.THROTTLED: BackoffPolicy(1, 60, 900),
    FaultKind.CAPACITY: BackoffPolicy(1, 60, 600, per_type=True),
    FaultKind.QUOTA: BackoffPolicy(1, 120, 1800, per_type=True),
    FaultKind.CONFIG: BackoffPolicy(1, 600, 7200, per_type=True),
    FaultKind.NODE: BackoffPolicy(3, 60, 1800, per_type=True),
    FaultKind.DRONE: BackoffPolicy(3, 60, 3600, per_type=True),
    FaultKind.JOBS: BackoffPolicy(1, 600, 7200, per_type=True),
    FaultKind.BLACK_HOLE: BackoffPolicy(2, 1800, 21600),
}
_FAULTS_OF_JOBS = (FaultKind.DRONE, FaultKind.JOBS)
"""Faults that jobs in a drone can cause: they say nothing about the type of a drone that has had a job."""


_Known = Breakers
_Moves = Sequence[StateChange]
_Changes = Iterator[Breaker]
_Faults = Iterator[tuple[Scope, Fault]]


def after_failure(breaker: Breaker, fault: Fault, now: float) -> Breaker:
    """Return the breaker after one more failure. A failed probe is banned again, for longer."""
    rule = BACKOFF_POLICIES[fault.kind]
    failed = replace(breaker, failures=breaker.failures + 1, fault=fault)
    excess = failed.failures - rule.after
    if excess < 0 and breaker.state is not BreakerState.PROBING:
        since = breaker.since if breaker.state is BreakerState.DEGRADED else now
        return replace(failed, state=BreakerState.DEGRADED, since=since)
    pause_s = min(rule.cap_s, rule.base_s * 2.0 ** min(30, max(0, excess)))
    return replace(failed, state=BreakerState.BANNED, since=now, until=now + pause_s)


def after_success(breaker: Breaker, now: float) -> Breaker:
    """Return the breaker after a success."""
    if breaker.state is BreakerState.ACTIVE and not breaker.failures:
        return breaker
    return Breaker(breaker.scope, BreakerState.ACTIVE, since=now, blind_until=breaker.blind_until)


def count_failure(known: _Known, scope: Scope, fault: Fault, now: float) -> Breaker:
    """Return the breaker of a scope, known or new, after one more failure."""
    return after_failure(known.get(scope) or Breaker(scope, since=now), fault, now)


def update_breakers(snapshot: Snapshot, moves: _Moves) -> _Known:
    """Return all breakers after what this snapshot shows: each rule sees the changes of those before it."""
    known = dict(snapshot.breakers)
    for rule in _RULES:
        for changed in rule(snapshot, moves, known):
            known[changed.scope] = changed
    return known


def shift_breaker(breaker: Breaker, by_s: float) -> Breaker:
    """Return the breaker with its times shifted by ``by_s`` after a change of the clock."""
    names = ("since", "until", "blind_until")
    faults = tuple(replace(each, at=each.at + by_s) for each in breaker.faults)
    return replace(
        breaker,
        faults=faults,
        **{name: at + by_s for name in names if (at := getattr(breaker, name))},
    )


# -----------------------------------------------------------------------------------------------------------------
# rules: each yields the breakers that it changes


def _end_bans(snapshot: Snapshot, moves: _Moves, known: _Known) -> _Changes:
    """Let a ban that is over lead to a probe. That of a user just ends: :mod:`provisioner.planner.blame`."""
    for breaker in list(known.values()):
        over = breaker.state is BreakerState.BANNED and snapshot.now >= breaker.until
        if over and not breaker.scope.user:
            yield replace(breaker, state=BreakerState.PROBING, since=snapshot.now)


def _forgive_old_credentials(snapshot: Snapshot, moves: _Moves, known: _Known) -> _Changes:
    """Clear what was refused for the credential that was there before."""
    for breaker in list(known.values()):
        kind = breaker.fault.kind if breaker.fault is not None else None
        by_pool = kind is FaultKind.DRONE and "overlay" in snapshot.renewed
        by_site = kind is FaultKind.DENIED and f"site:{breaker.scope.site}" in snapshot.renewed
        if by_pool or by_site:
            yield after_success(breaker, snapshot.now)


def _count_polls(snapshot: Snapshot, moves: _Moves, known: _Known) -> _Changes:
    """Count failed polls of the overlay and of sites, and clear their faults by good ones."""
    polls: dict[Scope, PolledOverlay | PolledSite] = {OVERLAY_SCOPE: snapshot.overlay}
    polls.update((Scope(name), polled) for name, polled in snapshot.sites.items())
    for scope, polled in polls.items():
        breaker = known.get(scope) or Breaker(scope, since=snapshot.now)
        after = _after_poll(breaker, polled, snapshot.now)
        if scope == OVERLAY_SCOPE:
            after = _with_outage(snapshot, breaker, after)
        if after is not breaker:
            yield after


def _after_poll(breaker: Breaker, polled: PolledOverlay | PolledSite, now: float) -> Breaker:
    """Return the breaker after the newest poll. Every tick until the next one reports its fault: it counts once."""
    if polled.fault is not None:
        same = breaker.fault == polled.fault
        return breaker if same else after_failure(breaker, polled.fault, now)
    of_order = breaker.fault is not None and breaker.fault.of_order
    return breaker if of_order or polled.view is None else after_success(breaker, now)


def _with_outage(snapshot: Snapshot, before: Breaker, after: Breaker) -> Breaker:
    """Return the overlay's breaker with the times of its outage. There is only one overlay: it is never banned."""
    now = snapshot.now
    if snapshot.overlay.fault is not None:
        # The length of the outage that the failed poll belongs to decides what it hid.
        polls_failed = before.fault is not None and not before.fault.of_order
        goes_on = polls_failed and before.state is BreakerState.DEGRADED
        since = before.since if goes_on else now
        return replace(after, state=BreakerState.DEGRADED, until=0.0, since=since)
    if after is before or not before.failures:
        return after
    # The pool gets time to recover for as long as the outage lasted: right after the restart of a
    # schedd, jobs that lost their slot look as if they needed another. A short outage hid nothing.
    away_s = now - before.since
    hid = away_s > snapshot.policy.overlay_max_age_s
    return replace(
        after,
        until=now + min(OVERLAY_SETTLE_MAX_S, away_s),
        blind_until=now if hid else before.blind_until,
    )


def _count_faults_of_drones(snapshot: Snapshot, moves: _Moves, known: _Known) -> _Changes:
    """Count one failure for each scope whose drones ended badly or will never start."""
    after = {move.drone.id: move.drone for move in moves}
    drones = (
        after.get(drone.id, drone)
        for drone in snapshot.drones.values()
        if drone.state is not DroneState.BUSY or drone.id in after
    )
    # many ends in one tick are one failure in a row
    faults = dict(chain(_early_exits(snapshot, moves), _never_starting(snapshot, drones)))
    for scope, fault in faults.items():
        yield count_failure(known, scope, fault, snapshot.now)


def _clear_by_progress(snapshot: Snapshot, moves: _Moves, known: _Known) -> _Changes:
    """Clear the faults that a drone has got past: by its acceptance, its start or join, or its first job."""
    for move in moves if known else ():
        kind = Scope.parse(move.drone.type)
        site = Scope(kind.site)
        before = snapshot.drones.get(move.drone.id)
        accepted = move.was is DroneState.REQUESTED and not move.drone.state.ended
        first_job = move.drone.busy_at and not (before and before.busy_at)
        taken = accepted and _by_order(known.get(site))
        for scope, passed in ((kind, first_job), (site, taken)):
            breaker = known.get(scope)
            if breaker and (passed or _clears_fault(move.drone, before, breaker.fault)):
                yield after_success(breaker, snapshot.now)


def _by_order(breaker: Breaker | None) -> bool:
    """Return True if an accepted order shows that the fault has passed."""
    fault = breaker.fault if breaker is not None else None
    return fault is not None and fault.of_order and not fault.accepted


def _clears_fault(drone: Drone, before: Drone | None, fault: Fault | None) -> bool:
    """Return True if a drone has passed the obstacle that others met after their orders were accepted."""
    if fault is None or not fault.accepted or drone.state.ended:
        return False
    joined = bool(drone.joined_at) and not (before and before.joined_at)
    if fault.kind not in (FaultKind.CAPACITY, FaultKind.QUOTA):
        return joined  # what starts may still fail while it boots
    started = bool(drone.started_at) and not (before and before.started_at)
    # one that was ordered before may have got the last room
    return drone.requested_at >= fault.at and (started or joined)


def _judge_trials(snapshot: Snapshot, moves: _Moves, known: _Known) -> _Changes:
    """Judge job classes on drone types by the drones that were started for them."""
    view = snapshot.overlay.view
    now = snapshot.now
    # jobs of a queue that does not answer get no drone, whatever they ask for
    if view is None or view.unheard or snapshot.overlay.fault is not None:
        return
    classes = {job.id: job for job in view.classes}
    types = {kind.key for kind in snapshot.types}
    for scope, breaker in list(known.items()):
        gone = scope.class_id not in classes or scope.type_key not in types
        if scope.class_id and gone and breaker.state is not BreakerState.BANNED:
            yield after_success(breaker, now)
    for drone in _trials(snapshot, moves):
        job = classes.get(drone.for_class)
        if job is None:
            continue
        scope = replace(Scope.parse(drone.type), class_id=job.id)
        if drone.state is not DroneState.UNUSED:
            if scope in known and drone.busy_at and job.running:
                yield after_success(known[scope], now)
        elif _idled_beside(job, drone, view, known.get(scope)):
            text = f"{drone.id} idled until it left, and no job of the class came"
            yield count_failure(known, scope, _accepted_fault(FaultKind.JOBS, text, now), now)


_RULES = (
    _end_bans,
    _forgive_old_credentials,
    _count_polls,
    _count_faults_of_drones,
    _clear_by_progress,
    _judge_trials,
    judge_users,
)


def _trials(snapshot: Snapshot, moves: _Moves) -> list[Drone]:
    """Return the drones with news that were started for a class and have joined; a sign of life alone is no news."""
    tried = (move.drone for move in moves if move.drone.for_class and move.drone.joined_at)
    before = snapshot.drones
    return [d for d in tried if but_heard_at(d) != but_heard_at(before[d.id])]


def _idled_beside(
    job: model.JobClass, drone: Drone, view: model.OverlayView, breaker: Breaker | None
) -> bool:
    """Return True if jobs waited for all of a drone's idle time, and no earlier failure counts it."""
    idle_at = drone.idle_at or drone.joined_at
    waited = job.waiting > 0 and job.waits_since <= idle_at
    negotiated = not view.negotiated_at or view.negotiated_at > idle_at
    # One batch is one failure: a drone that was ordered before an earlier one failed is counted.
    fault = breaker.fault if breaker is not None else None
    counted = fault is not None and drone.requested_at <= fault.at
    return waited and negotiated and not counted


# -----------------------------------------------------------------------------------------------------------------
# faults of drones and orders


def _scope(fault: Fault, kind: Scope) -> Scope:
    """Return the scope that a fault met by a drone type concerns: the type, or its whole site."""
    return kind if BACKOFF_POLICIES[fault.kind].per_type else Scope(kind.site)


def _accepted_fault(kind: FaultKind, message: str, now: float) -> Fault:
    """Return a fault that a drone met after its order was accepted."""
    return Fault(kind, message, now, of_order=True, accepted=True)


def _early_exits(snapshot: Snapshot, moves: _Moves) -> _Faults:
    """Yield a fault for each drone that ended badly now.

    A fault that the site reports backs off at its own level. A drone that had work says nothing
    about its type.
    """
    for drone, reason in ((move.drone, move.reason) for move in moves if move.drone.state.ended):
        kind = Scope.parse(drone.type)
        # a job may come and end the drone between two polls
        worked = drone.busy_at > 0 or drone.lost_jobs > 0
        if _ended_badly(snapshot, drone, worked):
            yield kind, Fault(FaultKind.DRONE, _end_words(drone, reason), snapshot.now)
        failed = drone.state is DroneState.FAILED
        reported = reason.fault if failed and isinstance(reason, EndedAtSite) else ""
        if reported and not (worked and reported in _FAULTS_OF_JOBS):
            text = f"{drone.id}: {drone.site_reason}"
            fault = _accepted_fault(FaultKind(reported), text, snapshot.now)
            yield _scope(fault, kind), fault


def _ended_badly(snapshot: Snapshot, drone: Drone, worked: bool) -> bool:
    """Return True if the end of a drone counts against its type."""
    match drone.state:
        case DroneState.FAILED:
            remote = _remote(snapshot, drone)
            contained = remote is not None and remote.end is not None and remote.end.contained
            return bool(drone.started_at) and not worked and not contained
        case DroneState.JOIN_TIMEOUT:
            return True
        case DroneState.LOST:
            # taken by the site and never seen again, or gone before it did anything
            return not worked
        case (
            DroneState.UNUSED
        ):  # it says that it is done; of one that joined: :func:`_judge_trials`
            return not drone.joined_at
    return False


def _end_words(drone: Drone, reason: Reason) -> str:
    """Return the end of a drone in words, with the site's reason or the exit code."""
    why = drone.site_reason
    code = getattr(reason, "exit_code", None)
    if code and not why:
        why = f"exit code {code}" + (f": {EXIT_WORDS[code]}" if code in EXIT_WORDS else "")
    return f"{drone.id} ended {drone.state.value}" + (f": {why}" if why else "")


def _remote(snapshot: Snapshot, drone: Drone) -> model.RemoteDrone | None:
    """Return a drone as its site lists it."""
    polled = snapshot.sites.get(drone.site)
    view = polled.view if polled is not None else None
    return view.drones.get(drone.id) if view is not None else None


def _never_starting(snapshot: Snapshot, drones: Iterable[Drone]) -> _Faults:
    """Yield a fault for each drone that its site will never start. It is stopped in the same tick."""
    for drone in drones:
        if not drone.waits_at_site or drone.started_at or drone.is_leaving:
            continue
        remote = _remote(snapshot, drone)
        if remote is not None and remote.hopeless and remote.blocked:
            text = f"{drone.id} waits: {remote.reason}"
            fault = _accepted_fault(remote.blocked, text, snapshot.now)
            yield _scope(fault, Scope.parse(drone.type)), fault


def update_by_order_results(
    known: _Known,
    types: Mapping[model.DroneId, Scope],
    results: model.OrderResults,
    now: float,
) -> list[Breaker]:
    """Return the breakers changed by the results of a batch of start orders.

    ``types`` has the scopes of drone types by drone id. An accepted order clears a fault that an
    order has met. It clears neither early exits nor drones that never start, nor a failed poll.
    """
    worst: dict[Scope, Fault] = {}
    accepted: list[Scope] = []
    for result in results:
        kind = types[result.drone_id]
        if result.answer is model.OrderOutcome.OK:
            accepted += kind, Scope(kind.site)
        elif result.fault is not None and result.fault.kind is not FaultKind.LEASE:
            fault = replace(result.fault, of_order=True)
            worst.setdefault(_scope(fault, kind), fault)
    changed = [
        after_success(known[scope], now)
        for scope in dict.fromkeys(accepted)
        if scope not in worst and _by_order(known.get(scope))
    ]
    changed += [count_failure(known, scope, fault, now) for scope, fault in worst.items()]
    return [breaker for breaker in changed if known.get(breaker.scope) != breaker]


@frozen
class ClassBackoffs:
    """Job classes that back off on drone types, by class id."""

    banned: Mapping[str, Mapping[TypeKey, Breaker]]
    """No drone of these types is started for the class, and existing ones are no supply for it."""
    probing: Mapping[str, Mapping[TypeKey, int]]
    """One drone of these types is tried for the class. Values: drones on their way, or idle in the pool."""

    @classmethod
    def of(cls, breakers: _Known, drones: Iterable[Drone]) -> ClassBackoffs:
        """Collect the breakers of classes. ``drones`` are the live drones."""
        banned: dict[str, dict[TypeKey, Breaker]] = {}
        probing: dict[str, dict[TypeKey, int]] = {}
        for scope, breaker in breakers.items():
            if not scope.class_id:
                continue
            if breaker.state is BreakerState.BANNED:
                banned.setdefault(scope.class_id, {})[scope.type_key] = breaker
            elif breaker.state is BreakerState.PROBING:
                probing.setdefault(scope.class_id, {})[scope.type_key] = 0
        for drone in drones if probing else ():
            probed = probing.get(drone.for_class, {})
            idle = drone.state in (*model.PENDING, DroneState.JOINED, DroneState.IDLE)
            if drone.type in probed and idle and not drone.is_leaving:
                probed[drone.type] += 1
        return cls(banned, probing)

    def why(self, class_id: str) -> StartsUnmatched | None:
        """Return the reason why nothing is started for a class, by the type that is retried first, or None."""
        banned = self.banned.get(class_id)
        if not banned:
            return None
        key, breaker = min(banned.items(), key=lambda item: (item[1].until, item[0]))
        return StartsUnmatched(
            key, breaker.until, breaker.failures, breaker.fault.message if breaker.fault else ""
        )

    def doubted(self, class_id: str, key: TypeKey) -> bool:
        """Return True if the pool is not expected to match jobs of a class to drones of a type."""
        return key in self.banned.get(class_id, ()) or key in self.probing.get(class_id, ())
