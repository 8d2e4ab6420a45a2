"""Circuit breakers for sites, drone types, the overlay, and job classes on drone types.

A job class backs off on one drone type after a drone that was started for it received none of its
jobs. The pool knows more than the planner: a parallel job, a used-up concurrency limit, a START
expression that the template lacks. Such a drone stays idle for these jobs and serves all others.
So only the class backs off, only on that type: after a pause one more drone is tried, and each
failure doubles the pause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from provisioner import model
from provisioner.model import (
    Breaker,
    BreakerState,
    Drone,
    DroneState,
    Fault,
    FaultKind,
    Scope,
    Snapshot,
    StateChange,
    TypeKey,
)
from provisioner.planner.blame import judge_users
from provisioner.reasons import EXIT_WORDS, EndedAtSite, StartsUnmatched
from provisioner.values import frozen

OVERLAY_SCOPE = Scope("overlay")
"""Breaker scope of the overlay. Failed polls never ban it."""
OVERLAY_SETTLE_MAX_S = 60.0


@frozen
class BackoffPolicy:
    """Back-off of one kind of fault: ban after ``after`` failures in a row, at first for ``base_s``."""

    after: int
    base_s: float
    cap_s: float
    per_type: bool
    """The fault concerns the drone type, not the whole site."""


BACKOFF_POLICIES: Mapping[FaultKind, BackoffPolicy] = {
    FaultKind.DOWN: BackoffPolicy(after=3, base_s=10, cap_s=300, per_type=False),
    FaultKind.UNKNOWN: BackoffPolicy(after=3, base_s=30, cap_s=600, per_type=False),
    FaultKind.DENIED: BackoffPolicy(after=1, base_s=120, cap_s=1800, per_type=False),
    FaultKind.THROTTLED: BackoffPolicy(after=1, base_s=60, cap_s=900, per_type=False),
    FaultKind.CAPACITY: BackoffPolicy(after=1, base_s=60, cap_s=600, per_type=True),
    FaultKind.QUOTA: BackoffPolicy(after=1, base_s=120, cap_s=1800, per_type=True),
    FaultKind.CONFIG: BackoffPolicy(after=1, base_s=600, cap_s=7200, per_type=True),
    FaultKind.NODE: BackoffPolicy(after=3, base_s=60, cap_s=1800, per_type=True),
    FaultKind.DRONE: BackoffPolicy(after=3, base_s=60, cap_s=3600, per_type=True),
    FaultKind.JOBS: BackoffPolicy(after=1, base_s=600, cap_s=7200, per_type=True),
    FaultKind.BLACK_HOLE: BackoffPolicy(after=2, base_s=1800, cap_s=21600, per_type=False),
}
_FAULTS_OF_JOBS = (FaultKind.DRONE, FaultKind.JOBS)
"""Faults that jobs in a drone can cause: they say nothing about the type of a drone that has had a job."""


def after_failure(breaker: Breaker, fault: Fault, now: float) -> Breaker:
    """Return the breaker after one more failure. A failed probe is banned again, for longer."""
    rule = BACKOFF_POLICIES[fault.kind]
    failures = breaker.failures + 1
    if failures < rule.after and breaker.state is not BreakerState.PROBING:
        since = breaker.since if breaker.state is BreakerState.DEGRADED else now
        return replace(
            breaker, state=BreakerState.DEGRADED, since=since, failures=failures, fault=fault
        )
    pause_s = min(rule.cap_s, rule.base_s * 2.0 ** min(30, max(0, failures - rule.after)))
    return replace(
        breaker,
        state=BreakerState.BANNED,
        since=now,
        failures=failures,
        until=now + pause_s,
        fault=fault,
    )


def after_success(breaker: Breaker, now: float) -> Breaker:
    """Return the breaker after a success."""
    if breaker.state is BreakerState.ACTIVE and not breaker.failures:
        return breaker
    return Breaker(breaker.scope, BreakerState.ACTIVE, since=now, blind_until=breaker.blind_until)


def update_breakers(snapshot: Snapshot, moves: Sequence[StateChange]) -> Mapping[Scope, Breaker]:
    """Return all breakers after what this snapshot shows."""
    now = snapshot.now
    known = dict(snapshot.breakers)
    for scope, breaker in known.items():
        if breaker.state is BreakerState.BANNED and now >= breaker.until and not scope.user:
            known[scope] = replace(breaker, state=BreakerState.PROBING, since=now)
    for scope, breaker in known.items():  # refused for the credential that was there before
        kind = breaker.fault.kind if breaker.fault is not None else None
        by_pool = kind is FaultKind.DRONE and "overlay" in snapshot.renewed
        if by_pool or (kind is FaultKind.DENIED and f"site:{scope.site}" in snapshot.renewed):
            known[scope] = after_success(breaker, now)
    polls: list[tuple[Scope, bool, Fault | None]] = [
        (OVERLAY_SCOPE, snapshot.overlay.view is not None, snapshot.overlay.fault),
        *(
            (Scope(name), polled.view is not None, polled.fault)
            for name, polled in snapshot.sites.items()
        ),
    ]
    for scope, seen, fault in polls:
        if fault is None and scope not in known:
            continue
        breaker = known.get(scope) or Breaker(scope, since=now)
        if fault is not None:
            # The same fault is reported every tick until the next poll: count it once.
            known[scope] = breaker if breaker.fault == fault else after_failure(breaker, fault, now)
            # there is only one: it is asked again at every tick, whatever happened
            if scope == OVERLAY_SCOPE:
                # The length of the outage that the failed poll belongs to decides what it hid.
                goes_on = (
                    breaker.state is BreakerState.DEGRADED
                    and breaker.fault
                    and not breaker.fault.of_order
                )
                since = breaker.since if goes_on else now
                known[scope] = replace(
                    known[scope], state=BreakerState.DEGRADED, until=0.0, since=since
                )
        elif seen and not (breaker.fault and breaker.fault.of_order):
            known[scope] = after_success(breaker, now)
            if scope == OVERLAY_SCOPE and breaker.failures:
                # The pool gets time to recover for as long as the outage lasted: right after the
                # restart of a schedd, jobs that lost their slot look as if they needed another. A
                # short outage hid nothing.
                away_s = now - breaker.since
                blind_until = (
                    now if away_s > snapshot.policy.overlay_max_age_s else breaker.blind_until
                )
                until = now + min(OVERLAY_SETTLE_MAX_S, away_s)
                known[scope] = replace(known[scope], until=until, blind_until=blind_until)
    after = {move.drone.id: move.drone for move in moves}
    now_known = (after.get(drone.id, drone) for drone in snapshot.drones.values())
    for scope, fault in {
        **_early_exits(snapshot, moves),
        **_never_starting(snapshot, now_known),
    }.items():
        known[scope] = after_failure(known.get(scope) or Breaker(scope, since=now), fault, now)
    for move in moves:
        key, site = Scope.parse(move.drone.type), Scope(move.drone.site)
        # whatever the answer was
        taken = move.was is DroneState.REQUESTED and not move.drone.state.ended
        if taken and site in known and _by_order(known[site]):
            known[site] = after_success(known[site], now)
        for scope in (key, site):
            if scope in known and _clears_fault(snapshot, move, known[scope]):
                known[scope] = after_success(known[scope], now)
        before = snapshot.drones.get(move.drone.id)
        if key in known and move.drone.busy_at and not (before and before.busy_at):  # its first job
            known[key] = after_success(known[key], now)
    return {**_after_trials(snapshot, moves, known), **judge_users(snapshot, known)}


def shift_breaker(breaker: Breaker, by_s: float) -> Breaker:
    """Return the breaker with its times shifted by ``by_s`` after a change of the clock."""
    names = ("since", "until", "blind_until")
    faults = tuple(replace(each, at=each.at + by_s) for each in breaker.faults)
    return replace(
        breaker,
        faults=faults,
        **{name: at + by_s for name in names if (at := getattr(breaker, name))},
    )


def _by_order(breaker: Breaker) -> bool:
    """Return True if an accepted order shows that the fault has passed."""
    return breaker.fault is not None and breaker.fault.of_order and not breaker.fault.accepted


def _clears_fault(snapshot: Snapshot, move: StateChange, breaker: Breaker) -> bool:
    """Return True if a drone has passed the obstacle that others met after their orders were accepted."""
    fault, drone = breaker.fault, move.drone
    if fault is None or not fault.accepted or drone.state.ended:
        return False
    before = snapshot.drones.get(drone.id)
    joined = bool(drone.joined_at) and not (before and before.joined_at)
    if fault.kind not in (FaultKind.CAPACITY, FaultKind.QUOTA):
        return joined  # what starts may still fail while it boots
    started = bool(drone.started_at) and not (before and before.started_at)
    # one that was ordered before may have got the last room
    return drone.requested_at >= fault.at and (started or joined)


def _scope(kind: FaultKind, drone: Drone) -> Scope:
    """Return the scope of the breaker that a fault of a drone concerns."""
    place = Scope.parse(drone.type)
    return place if BACKOFF_POLICIES[kind].per_type else Scope(place.site)


def _early_exits(snapshot: Snapshot, moves: Sequence[StateChange]) -> Mapping[Scope, Fault]:
    """Return one fault per drone type whose drones ended badly now: many ends in one tick are one failure in a row.

    A fault that the site reports backs off at its own level. A drone that had work says nothing
    about its type.
    """
    found: dict[Scope, Fault] = {}
    for move in moves:
        drone = move.drone
        if not drone.state.ended:
            continue
        remote = _remote(snapshot, drone)
        contained = remote is not None and remote.end is not None and remote.end.contained
        # a job may come and end the drone between two polls
        worked = drone.busy_at > 0 or drone.lost_jobs > 0
        bad = {
            DroneState.FAILED: bool(drone.started_at) and not worked and not contained,
            DroneState.JOIN_TIMEOUT: True,
            # Taken by the site and never seen again, or gone before it did anything.
            DroneState.LOST: not worked,
            # It says that it is done, and the pool never saw it. One that joined: see
            # :func:`_after_trials`.
            DroneState.UNUSED: not drone.joined_at,
        }.get(drone.state, False)
        if bad:
            why, code = drone.site_reason, getattr(move.reason, "exit_code", None)
            if code and not why:
                why = f"exit code {code}" + (f": {EXIT_WORDS[code]}" if code in EXIT_WORDS else "")
            text = f"{drone.id} ended {drone.state.value}" + (f": {why}" if why else "")
            found[_scope(FaultKind.DRONE, drone)] = Fault(FaultKind.DRONE, text, snapshot.now)
        failed = drone.state is DroneState.FAILED
        reported = move.reason.fault if failed and isinstance(move.reason, EndedAtSite) else ""
        if reported and not (worked and reported in _FAULTS_OF_JOBS):
            kind, text = FaultKind(reported), f"{drone.id}: {drone.site_reason}"
            found[_scope(kind, drone)] = Fault(
                kind, text, snapshot.now, of_order=True, accepted=True
            )
    return found


def _remote(snapshot: Snapshot, drone: Drone) -> model.RemoteDrone | None:
    """Return a drone as its site lists it."""
    polled = snapshot.sites.get(drone.site)
    return (
        polled.view.drones.get(drone.id) if polled is not None and polled.view is not None else None
    )


def _never_starting(snapshot: Snapshot, drones: Iterable[Drone]) -> Mapping[Scope, Fault]:
    """Return one fault for drones that their site will never start. They are stopped in the same tick."""
    found: dict[Scope, Fault] = {}
    for drone in drones:
        if not drone.waits_at_site or drone.started_at or drone.is_leaving:
            continue
        remote = _remote(snapshot, drone)
        if remote is not None and remote.hopeless and remote.blocked:
            kind, text = remote.blocked, f"{drone.id} waits: {remote.reason}"
            found[_scope(kind, drone)] = Fault(
                kind, text, snapshot.now, of_order=True, accepted=True
            )
    return found


def update_by_order_results(
    known: Mapping[Scope, Breaker],
    site: Scope,
    types: Mapping[model.DroneId, Scope],
    results: Sequence[model.OrderResult],
    now: float,
) -> list[Breaker]:
    """Return the breakers changed by the results of a batch of start orders at one site.

    ``types`` has the scopes of drone types by drone id. An accepted order clears a fault that an order has met.
    It clears neither early exits nor drones that never start, nor a failed poll.
    """
    worst: dict[Scope, Fault] = {}
    accepted: list[Scope] = []
    for result in results:
        if result.answer is model.OrderOutcome.OK:
            accepted += types[result.drone_id], site
        elif result.fault is not None:
            scope = types[result.drone_id] if BACKOFF_POLICIES[result.fault.kind].per_type else site
            worst.setdefault(scope, replace(result.fault, of_order=True))
    changed: dict[Scope, Breaker] = {}
    for scope in dict.fromkeys(accepted):
        if scope not in worst and scope in known and _by_order(known[scope]):
            changed[scope] = after_success(known[scope], now)
    for scope, fault in worst.items():
        changed[scope] = after_failure(known.get(scope) or Breaker(scope, since=now), fault, now)
    return [b for b in changed.values() if known.get(b.scope) != b]


def _after_trials(
    snapshot: Snapshot, moves: Sequence[StateChange], known: Mapping[Scope, Breaker]
) -> Mapping[Scope, Breaker]:
    """Return all breakers after the trials of job classes that ended in this snapshot."""
    view, now = snapshot.overlay.view, snapshot.now
    # jobs of a queue that does not answer get no drone, whatever they ask for
    if view is None or view.unheard or snapshot.overlay.fault is not None:
        return known
    after = dict(known)
    classes = {job.id: job for job in view.classes}
    types = {kind.key for kind in snapshot.types}
    for scope, breaker in known.items():
        gone = scope.class_id not in classes or scope.type_key not in types
        if scope.class_id and gone and breaker.state is not BreakerState.BANNED:
            after[scope] = after_success(breaker, now)
    for drone in _trials(snapshot, moves):
        scope = replace(Scope.parse(drone.type), class_id=drone.for_class)
        breaker = after.get(scope) or Breaker(scope, since=now)
        job = classes.get(drone.for_class)
        if drone.state is not DroneState.UNUSED:
            if scope in after and drone.busy_at and job is not None and job.running:
                after[scope] = after_success(breaker, now)
        elif job is not None and _idled_beside(job, drone, view, breaker):
            text = f"{drone.id} idled until it left, and no job of the class came"
            fault = Fault(FaultKind.JOBS, text, now, of_order=True, accepted=True)
            after[scope] = after_failure(breaker, fault, now)
    return after


def _idled_beside(
    job: model.JobClass, drone: Drone, view: model.OverlayView, breaker: Breaker
) -> bool:
    """Return True if jobs waited for all of a drone's idle time, and no earlier failure counts it."""
    idle_at = drone.idle_at or drone.joined_at
    waited = job.waiting > 0 and job.waits_since <= idle_at
    negotiated = not view.negotiated_at or view.negotiated_at > idle_at
    # One batch is one failure: a drone that was ordered before an earlier one failed is counted.
    counted = breaker.fault is not None and drone.requested_at <= breaker.fault.at
    return waited and negotiated and not counted


def _trials(snapshot: Snapshot, moves: Sequence[StateChange]) -> list[Drone]:
    """Return the drones with news that were started for a class and have joined; a sign of life alone is no news."""
    tried = (move.drone for move in moves if move.drone.for_class and move.drone.joined_at)
    before = snapshot.drones
    return [d for d in tried if d != replace(before[d.id], heard_at=d.heard_at)]


@frozen
class ClassBackoffs:
    """Job classes that back off on drone types, by class id."""

    banned: Mapping[str, Mapping[TypeKey, Breaker]]
    """No drone of these types is started for the class, and existing ones are no supply for it."""
    probing: Mapping[str, Mapping[TypeKey, int]]
    """One drone of these types is tried for the class. Values: drones on their way, or idle in the pool."""

    @classmethod
    def of(cls, breakers: Mapping[Scope, Breaker], drones: Iterable[Drone]) -> ClassBackoffs:
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
