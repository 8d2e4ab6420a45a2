"""What may be believed, and what must be left alone: stale views, vanished drones, circuit breakers, the brake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from provisioner.model import (
    Breaker,
    BreakerState,
    Drone,
    DroneId,
    DroneState,
    Fault,
    FaultKind,
    OrderOutcome,
    OrderResult,
    Policy,
    SiteView,
    Slot,
    Snapshot,
    StateChange,
)
from provisioner.planner.settled import Sifted, sift
from provisioner.reasons import AllVanished, EndedAtSite, Reason, StaleView

OVERLAY = "overlay"
"""Breaker scope of the overlay; looks at it never ban it."""
SETTLE_CAP_S = 60.0

VANISH_MIN = 3
VANISH_FRACTION = 0.5
VANISH_FACTOR = 10
"""When at least this many drones, and this share of a site's, vanish at once, they are believed gone only after this
many times the usual time: an empty listing is far more often a broken listing (field notes, A.2 W4, B 8)."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How a fault backs off: ban after ``after`` failures in a row, first for ``base_s``, then for twice as long."""

    after: int
    base_s: float
    cap_s: float
    per_type: bool
    """Concerns the drone type, not the whole site."""


BACKOFF: Mapping[FaultKind, Backoff] = {
    FaultKind.DOWN: Backoff(after=3, base_s=10, cap_s=300, per_type=False),
    FaultKind.UNKNOWN: Backoff(after=3, base_s=30, cap_s=600, per_type=False),
    FaultKind.DENIED: Backoff(after=1, base_s=120, cap_s=1800, per_type=False),
    FaultKind.THROTTLED: Backoff(after=1, base_s=60, cap_s=900, per_type=False),
    FaultKind.CAPACITY: Backoff(after=1, base_s=60, cap_s=600, per_type=True),
    FaultKind.QUOTA: Backoff(after=1, base_s=120, cap_s=1800, per_type=True),
    FaultKind.CONFIG: Backoff(after=1, base_s=600, cap_s=7200, per_type=True),
    FaultKind.NODE: Backoff(after=3, base_s=60, cap_s=1800, per_type=True),
    FaultKind.DRONE: Backoff(after=3, base_s=60, cap_s=3600, per_type=True),
    FaultKind.JOBS: Backoff(after=1, base_s=600, cap_s=7200, per_type=True),
    FaultKind.BLACK_HOLE: Backoff(after=2, base_s=1800, cap_s=21600, per_type=False),
}
"""The offering that has no room is left alone for a minute, a site that is asked too often for as long as it takes
(field notes, C 8: breakers at the level at which the fault lies)."""


_OF_JOBS = (FaultKind.DRONE, FaultKind.JOBS)
"""Faults that the jobs in a drone can cause (its memory is full): once it has had any they say nothing of its type."""


# ------------------------------------------------------------------------------------------------- belief in views


@dataclass(frozen=True, slots=True)
class Trust:
    """Which views are fresh. A site or the overlay with a doubt is left alone: nothing starts, nothing stops there."""

    overlay: Reason | None
    sites: Mapping[str, Reason | None]
    vanished: frozenset[str]
    slots: Mapping[DroneId, Slot]
    """Those that are alive, by their last sign of life; none where the overlay is in doubt."""
    sifted: Sifted
    """The drones on record, by what the views that can be believed say of them."""

    def site_view(self, snapshot: Snapshot, site: str) -> SiteView | None:
        """The view of a site, if it is fresh; a suspiciously empty one still is a view, but one to doubt."""
        doubt = self.sites.get(site)
        if doubt is not None and not isinstance(doubt, AllVanished):
            return None
        reading = snapshot.sites.get(site)
        return reading.view if reading else None


def trust(snapshot: Snapshot) -> Trust:
    """Judge each view by its age and fault, and each listing by what it lacks."""
    now, policy = snapshot.now, snapshot.policy
    view = snapshot.overlay.view
    overlay = _stale("overlay", view.taken_at if view else None, snapshot.overlay.fault, now, policy.overlay_max_age_s)
    slots = _alive(snapshot) if overlay is None else {}
    sites: dict[str, Reason | None] = {}
    views: dict[str, SiteView] = {}
    for name, site_policy in policy.sites.items():
        reading = snapshot.sites.get(name)
        taken = reading.view.taken_at if reading and reading.view else None
        doubt: Reason | None = _stale(
            f"site:{name}", taken, reading.fault if reading else None, now, site_policy.view_max_age_s
        )
        if doubt is None and reading is not None and reading.busy:
            age = now - taken if taken is not None else -1.0
            doubt = StaleView(f"site:{name}", age, site_policy.view_max_age_s, "its last orders are still under way")
        if doubt is None and reading is not None and reading.view is not None:
            views[name] = reading.view
        sites[name] = doubt
    sifted = sift(snapshot, slots, views)
    vanished = _vanished(policy, views, sifted)
    sites.update(vanished)
    return Trust(overlay, sites, frozenset(vanished), slots, sifted)


def _alive(snapshot: Snapshot) -> Mapping[DroneId, Slot]:
    view, oldest = snapshot.overlay.view, snapshot.now - snapshot.policy.slot_max_age_s
    return {s.drone_id: s for s in view.slots if s.heard_at >= oldest} if view else {}


def _stale(name: str, taken: float | None, fault: Fault | None, now: float, limit_s: float) -> StaleView | None:
    age = -1.0 if taken is None else max(0.0, now - taken)
    if fault is not None:
        return StaleView(name, age, limit_s, fault.message)
    if taken is None:
        return StaleView(name, -1.0, limit_s, "never seen")
    if age > limit_s:
        return StaleView(name, age, limit_s, "too old")
    return None


def _vanished(policy: Policy, views: Mapping[str, SiteView], sifted: Sifted) -> Mapping[str, Reason]:
    """Sites whose listing lacks so many of our drones at once that it is to be doubted."""
    known: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    for drone in sifted.others.values():
        site = drone.site
        view = views.get(site)
        if view is None or drone.state in (DroneState.REQUESTED, DroneState.SUBMITTED) or drone.goes:
            continue
        known[site] += 1
        if drone.id not in view.drones:
            patience_s = policy.sites[site].missing_s * VANISH_FACTOR
            missing[site] += not drone.missing_at or view.taken_at - drone.missing_at < patience_s
    for key, count in sifted.settled.items() if missing else ():
        known[key.partition("/")[0]] += count
    return {
        site: AllVanished(site, count)
        for site, count in missing.items()
        if count >= VANISH_MIN and count >= VANISH_FRACTION * known[site]
    }


# ------------------------------------------------------------------------------------------------------- breakers


def failed(breaker: Breaker, fault: Fault, now: float) -> Breaker:
    """The breaker after one more failure. A probe that fails is banned again, for longer."""
    rule = BACKOFF[fault.kind]
    failures = breaker.failures + 1
    if failures < rule.after and breaker.state is not BreakerState.PROBING:
        since = breaker.since if breaker.state is BreakerState.DEGRADED else now
        return replace(breaker, state=BreakerState.DEGRADED, since=since, failures=failures, fault=fault)
    pause_s = min(rule.cap_s, rule.base_s * 2.0 ** min(30, max(0, failures - rule.after)))
    return replace(breaker, state=BreakerState.BANNED, since=now, failures=failures, until=now + pause_s, fault=fault)


def recovered(breaker: Breaker, now: float) -> Breaker:
    """The breaker after a success."""
    if breaker.state is BreakerState.ACTIVE and not breaker.failures:
        return breaker
    return Breaker(breaker.scope, BreakerState.ACTIVE, since=now, blind_until=breaker.blind_until)


def overlay_back(breaker: Breaker, now: float, long_s: float) -> Breaker:
    """The overlay's breaker after a look that succeeded. An outage shorter than ``long_s`` hid nothing; but for as long
    as it lasted (at most SETTLE_CAP_S) the pool is given time to come to itself: right after a schedd's restart jobs
    that lost their slot look as if they needed another."""
    if not breaker.failures:
        return breaker
    away_s = now - breaker.since
    return replace(
        recovered(breaker, now),
        until=now + min(SETTLE_CAP_S, away_s),
        blind_until=now if away_s > long_s else breaker.blind_until,
    )


def breakers(snapshot: Snapshot, moves: Sequence[StateChange], others: Iterable[Drone]) -> Mapping[str, Breaker]:
    """All breakers after what this snapshot shows: looks that failed or succeeded, drones that died young or joined.
    ``others``: drones on record that are not settled."""
    now = snapshot.now
    known = dict(snapshot.breakers)
    for scope, breaker in known.items():
        if breaker.state is BreakerState.BANNED and now >= breaker.until:
            known[scope] = replace(breaker, state=BreakerState.PROBING, since=now)
    looks: list[tuple[str, bool, Fault | None]] = [
        (OVERLAY, snapshot.overlay.view is not None, snapshot.overlay.fault),
        *((name, reading.view is not None, reading.fault) for name, reading in snapshot.sites.items()),
    ]
    for scope, seen, fault in looks:
        if fault is None and scope not in known:
            continue
        breaker = known.get(scope) or Breaker(scope, since=now)
        if fault is not None:
            # The same fault is told again every tick until somebody looks anew: count it once.
            known[scope] = breaker if breaker.fault == fault else failed(breaker, fault, now)
            if scope == OVERLAY:  # there is only one: it is asked again at every tick, whatever happened
                known[scope] = replace(
                    known[scope], state=BreakerState.DEGRADED, until=0.0, since=_outage_since(breaker, now)
                )
        elif seen and not (breaker.fault and breaker.fault.of_order):
            if scope == OVERLAY:
                known[scope] = overlay_back(breaker, now, snapshot.policy.overlay_max_age_s)
            else:
                known[scope] = recovered(breaker, now)
    after = {move.drone.id: move.drone for move in moves}
    now_known = (after.get(drone.id, drone) for drone in others)
    for scope, fault in {**_young_deaths(snapshot, moves), **_hopeless(snapshot, now_known)}.items():
        known[scope] = failed(known.get(scope) or Breaker(scope, since=now), fault, now)
    for move in moves:
        key, site = str(move.drone.type), move.drone.site
        taken = move.was is DroneState.REQUESTED and not move.drone.state.ended  # whatever the answer was
        if taken and site in known and _by_order(known[site]):
            known[site] = recovered(known[site], now)
        for scope in (key, site):
            if scope in known and _cures(snapshot, move, known[scope]):
                known[scope] = recovered(known[scope], now)
        if key in known and move.drone.busy_at and not _had_work(snapshot, move):
            known[key] = recovered(known[key], now)
    return known


def on_clock(breaker: Breaker, by_s: float) -> Breaker:
    """Return the breaker with its times moved by ``by_s``, as the clock that gave them was."""
    names = ("since", "until", "blind_until")
    return replace(breaker, **{name: at + by_s for name in names if (at := getattr(breaker, name))})


def _outage_since(breaker: Breaker, now: float) -> float:
    """Return when the outage began that a failed look at the overlay belongs to: its length decides what it hid."""
    goes_on = breaker.state is BreakerState.DEGRADED and breaker.fault is not None and not breaker.fault.of_order
    return breaker.since if goes_on else now


def _by_order(breaker: Breaker) -> bool:
    """Whether an order that is accepted shows that its fault has passed."""
    return breaker.fault is not None and breaker.fault.of_order and not breaker.fault.accepted


def _cures(snapshot: Snapshot, move: StateChange, breaker: Breaker) -> bool:
    """Whether a drone has come past what others met after their orders were accepted: room, by having started, if it
    was asked for since (one of the same batch may have got the last of it); all else (what starts may fail as it boots)
    by being in the pool."""
    fault, drone = breaker.fault, move.drone
    if fault is None or not fault.accepted or drone.state.ended:
        return False
    before = snapshot.drones.get(drone.id)
    joined = bool(drone.joined_at) and not (before and before.joined_at)
    if fault.kind not in (FaultKind.CAPACITY, FaultKind.QUOTA):
        return joined
    started = bool(drone.started_at) and not (before and before.started_at)
    return drone.requested_at >= fault.at and (started or joined)


def _had_work(snapshot: Snapshot, move: StateChange) -> bool:
    before = snapshot.drones.get(move.drone.id)
    return before is not None and before.busy_at > 0


def _young_deaths(snapshot: Snapshot, moves: Sequence[StateChange]) -> Mapping[str, Fault]:
    """One fault per drone type whose drones ended badly now: many deaths in one tick are one failure in a row. What the
    site itself blames (a hold reason) backs off as such, at the level at which it lies. A drone that had work is no
    sign that drones of its type are bad: what its jobs did ended it."""
    found: dict[str, Fault] = {}
    for move in moves:
        drone = move.drone
        if not drone.state.ended:
            continue
        worked = drone.busy_at > 0 or drone.lost_jobs > 0  # a job may come and end the drone between two looks
        bad = {
            DroneState.FAILED: bool(drone.started_at) and not worked,
            DroneState.JOIN_TIMEOUT: True,
            # Taken by the site and never seen again, or gone before it did anything.
            DroneState.LOST: not worked,
            # It says that it is done, and the pool never saw it. One that joined: see :mod:`trials`.
            DroneState.UNUSED: not drone.joined_at,
        }.get(drone.state, False)
        if bad:
            text = f"{drone.id} ended {drone.state.value}" + (f": {drone.site_reason}" if drone.site_reason else "")
            found[str(drone.type)] = Fault(FaultKind.DRONE, text, snapshot.now)
        told = move.reason.fault if isinstance(move.reason, EndedAtSite) and drone.state is DroneState.FAILED else ""
        if told and not (worked and told in _OF_JOBS):
            kind = FaultKind(told)
            scope = str(drone.type) if BACKOFF[kind].per_type else drone.site
            found[scope] = Fault(kind, f"{drone.id}: {drone.site_reason}", snapshot.now, of_order=True, accepted=True)
    return found


def _hopeless(snapshot: Snapshot, others: Iterable[Drone]) -> Mapping[str, Fault]:
    """One fault for drones that their site will never start. They are asked to go in the same tick, so that each is
    counted once."""
    found: dict[str, Fault] = {}
    for drone in others:
        waits = drone.state in (DroneState.SUBMITTED, DroneState.QUEUED) and not drone.started_at
        if not waits or drone.goes:
            continue
        reading = snapshot.sites.get(drone.site)
        remote = reading.view.drones.get(drone.id) if reading is not None and reading.view is not None else None
        if remote is not None and remote.hopeless and remote.blocked:
            scope = str(drone.type) if BACKOFF[remote.blocked].per_type else drone.site
            message = f"{drone.id} waits: {remote.reason}"
            found[scope] = Fault(remote.blocked, message, snapshot.now, of_order=True, accepted=True)
    return found


def after_receipts(
    known: Mapping[str, Breaker], site: str, types: Mapping[DroneId, str], receipts: Sequence[OrderResult], now: float
) -> list[Breaker]:
    """Breakers changed by the answers of one site to a batch of starts. ``types``: drone id to type key. What an order
    has tripped an accepted order clears; not the blame for drones that die or never start, nor a site that cannot be
    looked at."""
    changed: dict[str, Breaker] = {}

    def current(scope: str) -> Breaker:
        return changed.get(scope) or known.get(scope) or Breaker(scope, since=now)

    worst: dict[str, Fault] = {}
    for receipt in receipts:
        if receipt.fault is not None and receipt.answer is not OrderOutcome.OK:
            scope = types[receipt.drone_id] if BACKOFF[receipt.fault.kind].per_type else site
            worst.setdefault(scope, replace(receipt.fault, of_order=True))
    for receipt in receipts:
        for scope in (types[receipt.drone_id], site):
            if receipt.answer is OrderOutcome.OK and scope not in worst and _by_order(current(scope)):
                changed[scope] = recovered(current(scope), now)
    for scope, fault in worst.items():
        changed[scope] = failed(current(scope), fault, now)
    return [b for b in changed.values() if known.get(b.scope) != b]
