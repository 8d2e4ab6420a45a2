"""Black-hole drones and nodes: job after job fails in them within seconds, or is held.

Such a drone is always free for the next job, so it ruins a queue faster than all good drones work
it off. The checks of the drone find some causes (``docs/reference/drone.md``); this rule looks at
the jobs. A black-hole drone is drained. Once two drones of a node had to leave within an hour, the
node backs off: drones on it without a job leave. The state of a node is a breaker of the scope
``<site>@<node>``.

Jobs also fail by their own fault, and their owners could try to have drones drained. So failures
count only for owners whose jobs succeed elsewhere, or have not run elsewhere, and never for more
jobs than the slot has started. Those of a single owner count only if other jobs of theirs succeed
in other drones. Each success in the drone outweighs several failures, and only a part of a site's
drones leaves at once.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import field

from provisioner import model
from provisioner.model import (
    Blame,
    Breaker,
    BreakerState,
    Drone,
    DroneId,
    DroneState,
    Fault,
    FaultKind,
    Scope,
)
from provisioner.planner.breakers import after_failure, after_success
from provisioner.planner.context import PlanningContext
from provisioner.reasons import BlackHoleDrone, BlackHoleNode
from provisioner.values import frozen

MIN_FAILED_JOBS = 3
"""Fewer failed jobs are no sign."""
FAILURES_PER_JOB = 4
"""A job that fails repeatedly in one drone, and in no other, counts as another job after this many failures."""
GOOD_JOB_WEIGHT = 3
"""A drone is kept if its failed jobs are at most this many times those that succeeded."""
GOOD_RUN_S = 300.0
"""A job that has run this long succeeds."""
MAX_LEAVING_FRACTION = 4
"""At most one in this many of a site's drones leaves at once, or one if there are fewer."""
NODE_QUIET_S = 3600.0
"""A node is forgotten after this time without another black-hole drone, not counting the time of its ban."""
_NODE_NAME = re.compile(r"[A-Za-z0-9._-]{1,120}")
"""Names of nodes that can be part of a scope."""
_ENDED_BY_SITE = (DroneState.PREEMPTED, DroneState.FAILED, DroneState.LOST)
_TAKES_NO_JOB_YET = (DroneState.BOOTING, DroneState.JOINED, DroneState.IDLE)
_JobKey = tuple[str, str]
"""Owner and number of a job: only some reports of one job name its schedd."""


@frozen
class BlackHoles:
    """Drones that leave because they or their nodes are black holes, and the changed breakers of nodes."""

    leave: tuple[tuple[Drone, BlackHoleDrone | BlackHoleNode], ...] = ()
    breakers: Mapping[Scope, Breaker] = field(default_factory=dict)

    @classmethod
    def of(cls, context: PlanningContext) -> BlackHoles:
        """Judge the drones by the jobs that failed in them. Nothing is judged while the pool's view is doubted."""
        view, now = context.snapshot.overlay.view, context.now
        nodes = {scope: each for scope, each in context.breakers.items() if scope.node}
        doubted = context.validity.overlay is not None or context.too_unhealthy is not None
        if view is None or doubted or not (view.mishaps or nodes):
            return NO_BLACK_HOLES
        after = {
            scope: after_success(each, now)
            for scope, each in nodes.items()
            if each.state in (BreakerState.DEGRADED, BreakerState.PROBING)
            and now - each.since > NODE_QUIET_S
        }
        nodes |= after
        leave: dict[DroneId, tuple[Drone, BlackHoleDrone | BlackHoleNode]] = {}
        left = _leaving_allowed(context)
        for drone, why in _black_hole_drones(context, view):
            if left[drone.site] > 0:
                left[drone.site] -= 1
                leave[drone.id] = drone, why
                if _NODE_NAME.fullmatch(drone.node):
                    scope = Scope(drone.site, node=drone.node)
                    breaker = nodes.get(scope) or Breaker(scope, since=now)
                    fault = Fault(FaultKind.BLACK_HOLE, f"{drone.id}: {why.message}", now)
                    nodes[scope] = after[scope] = after_failure(breaker, fault, now)
        for drone, avoided in _drones_on_avoided_nodes(context, nodes):
            if left[drone.site] > 0 and drone.id not in leave:
                left[drone.site] -= 1
                leave[drone.id] = drone, avoided
        return cls(tuple(leave.values()), after)


NO_BLACK_HOLES = BlackHoles()


def _leaving_allowed(context: PlanningContext) -> Counter[str]:
    """Return how many more drones of each site may leave for this. Those that leave by any request count as well."""
    there, leaving = Counter[str](), Counter[str]()
    for drone in context.drones.values():
        there[drone.site] += drone.joined_at > 0
        leaving[drone.site] += drone.joined_at > 0 and drone.leaving is DroneState.CANCELLED
    return Counter(
        {
            site: max(1, count // MAX_LEAVING_FRACTION) - leaving[site]
            for site, count in there.items()
        }
    )


def _black_hole_drones(
    context: PlanningContext, view: model.OverlayView
) -> Iterator[tuple[Drone, BlackHoleDrone]]:
    """Yield the black-hole drones, those with most failed jobs first."""
    by_drone: dict[DroneId, dict[_JobKey, list[model.JobFailure]]] = defaultdict(
        lambda: defaultdict(list)
    )
    drones_of: Counter[_JobKey] = Counter()
    bad_in: dict[str, Counter[DroneId]] = defaultdict(Counter)
    good_in: dict[str, Counter[DroneId]] = defaultdict(Counter)
    good: Counter[DroneId] = Counter()
    for mishap in _unexplained(context, view):
        by_drone[mishap.drone_id][mishap.owner, mishap.job_number].append(mishap)
    for drone_id, by_job in by_drone.items():
        drones_of.update(by_job.keys())
        for mishaps in by_job.values():
            bad_in[mishaps[0].owner][drone_id] += 1
    for done in view.completions or ():
        if done.drone_id is None or done.unfinished:
            continue
        if (done.owner, done.job_number) not in by_drone.get(done.drone_id, ()):
            good_in[done.owner][done.drone_id] += 1
            good[done.drone_id] += 1
    for slot in context.slots.values():
        if slot.jobs and slot.begun_at and context.now - slot.begun_at > GOOD_RUN_S:
            good[slot.drone_id] += 1
            good_in[slot.owner][slot.drone_id] += 1
    found = []
    for drone_id, by_job in by_drone.items():
        if sum(map(len, by_job.values())) < MIN_FAILED_JOBS:
            continue
        drone, slot_there = context.drones.get(drone_id), context.slots.get(drone_id)
        if drone is None or slot_there is None or drone.is_leaving or not drone.joined_at:
            continue
        if not context.can_act_on(drone):
            continue
        elsewhere = {
            owner: _elsewhere(good_in[owner], drone_id)
            for owner in {m[0].owner for m in by_job.values()}
        }
        theirs = {
            o
            for o, well in elsewhere.items()
            if not (ill := _elsewhere(bad_in[o], drone_id)) or well > ill
        }
        counted = {job: mishaps for job, mishaps in by_job.items() if mishaps[0].owner in theirs}
        most = slot_there.jobs_started - good[drone_id]
        jobs = (
            1 if drones_of[job] > 1 else -(-len(failed) // FAILURES_PER_JOB)
            for job, failed in counted.items()
        )
        weight = min(most, sum(jobs))
        convincing = len(theirs) > 1 or any(elsewhere[owner] for owner in theirs)
        if convincing and weight >= MIN_FAILED_JOBS and weight > GOOD_JOB_WEIGHT * good[drone_id]:
            every = [mishap for mishaps in counted.values() for mishap in mishaps]
            last = max(every, key=lambda mishap: (mishap.at, mishap.job_id))
            failed, message = min(most, len(every)), f"job {last.job_id} {last.cause}"
            found.append(
                (drone, BlackHoleDrone(failed, good[drone_id], len(theirs), drone.node, message))
            )
    yield from sorted(found, key=lambda each: (-each[1].failed, each[0].id))


def _unexplained(context: PlanningContext, view: model.OverlayView) -> Iterator[model.JobFailure]:
    """Yield the failures without a known cause: a fault on a shared GPU, or the end of the drone by its site."""
    explained = {
        (each.drone_id, each.job_number) for each in view.mishaps if each.blame is not Blame.UNKNOWN
    }
    for failure in dict.fromkeys(view.mishaps):
        drone, end = (
            context.drones.get(failure.drone_id),
            context.snapshot.ended.get(failure.drone_id),
        )
        by_site = end in _ENDED_BY_SITE or (drone is not None and 0 < drone.notice_at <= failure.at)
        if not by_site and (failure.drone_id, failure.job_number) not in explained:
            yield failure


def _elsewhere(counts: Counter[DroneId], drone_id: DroneId) -> int:
    return counts.total() - counts[drone_id]


def _drones_on_avoided_nodes(
    context: PlanningContext, nodes: Mapping[Scope, Breaker]
) -> Iterator[tuple[Drone, BlackHoleNode]]:
    """Yield drones without a job on banned nodes, if their site has drones on others: a start might lead there."""
    banned = {scope: each for scope, each in nodes.items() if each.state is BreakerState.BANNED}
    places = (
        {(drone.site, drone.node) for drone in context.drones.values() if drone.node}
        if banned
        else set()
    )
    others = {site for site, node in places if Scope(site, node=node) not in banned}
    for drone in context.drones.values() if others else ():
        slot, breaker = context.slots.get(drone.id), banned.get(Scope(drone.site, node=drone.node))
        if (
            breaker is None
            or drone.site not in others
            or drone.is_leaving
            or not context.can_act_on(drone)
        ):
            continue
        if drone.state in _TAKES_NO_JOB_YET and not drone.jobs and (slot is None or not slot.jobs):
            message = breaker.fault.message if breaker.fault else ""
            yield drone, BlackHoleNode(drone.node, breaker.until, breaker.failures, message)
