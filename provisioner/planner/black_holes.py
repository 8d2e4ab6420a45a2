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
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, starmap
from operator import attrgetter

from provisioner import model
from provisioner.model import (
    Blame,
    Breakers,
    BreakerState,
    Drone,
    DroneId,
    DroneState,
    Fault,
    FaultKind,
    JobFailure,
    OverlayView,
    Scope,
)
from provisioner.planner.breakers import after_success, count_failure
from provisioner.planner.context import PlanningContext
from provisioner.reasons import BlackHoleDrone, BlackHoleNode
from provisioner.values import factory, frozen

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
_Suspect = tuple[Drone, BlackHoleDrone | BlackHoleNode]


@frozen
class BlackHoles:
    """Drones that leave because they or their nodes are black holes, and the breakers of nodes afterwards."""

    leave: tuple[_Suspect, ...] = ()
    breakers: Breakers = factory(dict)

    @classmethod
    def of(cls, context: PlanningContext) -> BlackHoles:
        """Judge the drones by the jobs that failed in them. Nothing is judged while the pool's view is doubted."""
        view = context.snapshot.overlay.view
        now = context.now
        nodes = {scope: each for scope, each in context.breakers.items() if scope.node}
        doubted = context.validity.overlay is not None or context.too_unhealthy is not None
        if view is None or doubted or not (view.mishaps or nodes):
            return NO_BLACK_HOLES
        for scope, each in nodes.items():
            watched = each.state in (BreakerState.DEGRADED, BreakerState.PROBING)
            if watched and now - each.since > NODE_QUIET_S:
                nodes[scope] = after_success(each, now)
        leave: dict[DroneId, _Suspect] = {}
        left = _leaving_allowed(context)
        suspects: Iterator[_Suspect] = chain(
            _black_hole_drones(context, view), _drones_on_avoided_nodes(context, nodes)
        )
        for drone, why in suspects:
            if drone.id in leave or left[drone.site] <= 0:
                continue
            left[drone.site] -= 1
            leave[drone.id] = drone, why
            # the second search, which begins after the first, sees the nodes that this one avoids
            if isinstance(why, BlackHoleDrone) and _NODE_NAME.fullmatch(drone.node):
                scope = Scope(drone.site, node=drone.node)
                fault = Fault(FaultKind.BLACK_HOLE, f"{drone.id}: {why.message}", now)
                nodes[scope] = count_failure(nodes, scope, fault, now)
        return cls(tuple(leave.values()), nodes)


NO_BLACK_HOLES = BlackHoles()


def _leaving_allowed(context: PlanningContext) -> Counter[str]:
    """Return how many more drones of each site may leave for this. Those that leave by any request count as well."""
    joined = [drone for drone in context.drones.values() if drone.joined_at]
    there = Counter(drone.site for drone in joined)
    leaving = Counter(drone.site for drone in joined if drone.leaving is DroneState.CANCELLED)
    return Counter(
        {
            site: max(1, count // MAX_LEAVING_FRACTION) - leaving[site]
            for site, count in there.items()
        }
    )


def _black_hole_drones(
    context: PlanningContext, view: OverlayView
) -> Iterator[tuple[Drone, BlackHoleDrone]]:
    """Yield the black-hole drones, those with most failed jobs first."""
    evidence = _Evidence.of(context, view)
    found = []
    for drone_id in evidence.failed:
        drone = context.drones.get(drone_id)
        slot = context.slots.get(drone_id)
        if drone is None or slot is None or drone.is_leaving or not drone.joined_at:
            continue
        why = evidence.against(drone, slot) if context.can_act_on(drone) else None
        if why is not None:
            found.append((drone, why))
    yield from sorted(found, key=lambda each: (-each[1].failed, each[0].id))


@frozen
class _Evidence:
    """Jobs that have failed, and numbers of failed and good jobs by owner and drone."""

    failed: Mapping[DroneId, Mapping[_JobKey, Sequence[JobFailure]]]
    bad: Mapping[str, Counter[DroneId]]
    good: Mapping[str, Counter[DroneId]]
    drones_of: Counter[_JobKey]
    """Number of drones in which a job failed."""

    @classmethod
    def of(cls, context: PlanningContext, view: OverlayView) -> _Evidence:
        """Collect the failures without a known cause, and what succeeds beside them."""
        failed = defaultdict[DroneId, dict[_JobKey, list[JobFailure]]](lambda: defaultdict(list))
        for failure in _unexplained(context, view):
            failed[failure.drone_id][failure.owner, failure.job_number].append(failure)
        bad = defaultdict[str, Counter[DroneId]](Counter)
        for drone_id, jobs in failed.items():
            for owner, _ in jobs:
                bad[owner][drone_id] += 1
        good = defaultdict[str, Counter[DroneId]](Counter)
        for done in view.completions or ():
            if done.drone_id is None or done.unfinished:
                continue
            if (done.owner, done.job_number) not in failed.get(done.drone_id, ()):
                good[done.owner][done.drone_id] += 1
        for slot in context.slots.values():
            if slot.jobs and slot.begun_at and context.now - slot.begun_at > GOOD_RUN_S:
                good[slot.owner][slot.drone_id] += 1
        return cls(failed, bad, good, Counter(chain.from_iterable(failed.values())))

    def against(self, drone: Drone, slot: model.Slot) -> BlackHoleDrone | None:
        """Return the evidence against a drone, or None if it does not convince."""
        jobs = self.failed[drone.id]
        owners = {owner for owner, _ in jobs if self._is_trusted(owner, drone.id)}
        counted = {job: failures for job, failures in jobs.items() if job[0] in owners}
        good = sum(counts[drone.id] for counts in self.good.values())
        most = slot.jobs_started - good
        weight = min(most, sum(starmap(self._weight, counted.items())))
        convincing = len(owners) > 1 or any(_elsewhere(self.good[o], drone.id) for o in owners)
        enough = max(MIN_FAILED_JOBS, GOOD_JOB_WEIGHT * good + 1)
        reports = sum(map(len, jobs.values()))
        if not convincing or weight < enough or reports < MIN_FAILED_JOBS:
            return None
        failures = [each for failures in counted.values() for each in failures]
        last = max(failures, key=attrgetter("at", "job_id"))
        message = f"job {last.job_id} {last.cause}"
        return BlackHoleDrone(min(most, len(failures)), good, len(owners), drone.node, message)

    def _is_trusted(self, owner: str, drone_id: DroneId) -> bool:
        """Return True if an owner's jobs succeed elsewhere, or have not run elsewhere."""
        bad = _elsewhere(self.bad[owner], drone_id)
        return not bad or _elsewhere(self.good[owner], drone_id) > bad

    def _weight(self, job: _JobKey, failures: Sequence[JobFailure]) -> int:
        """Return the number of jobs that one job counts for by its failures in a drone."""
        return 1 if self.drones_of[job] > 1 else -(-len(failures) // FAILURES_PER_JOB)


def _unexplained(context: PlanningContext, view: OverlayView) -> Iterator[JobFailure]:
    """Yield the failures without a known cause: a fault on a shared GPU, or the end of the drone by its site."""
    explained = {
        (each.drone_id, each.job_number) for each in view.mishaps if each.blame is not Blame.UNKNOWN
    }
    for failure in dict.fromkeys(view.mishaps):
        drone = context.drones.get(failure.drone_id)
        end = context.snapshot.ended.get(failure.drone_id)
        by_site = end in _ENDED_BY_SITE or (drone is not None and 0 < drone.notice_at <= failure.at)
        if not by_site and (failure.drone_id, failure.job_number) not in explained:
            yield failure


def _elsewhere(counts: Counter[DroneId], drone_id: DroneId) -> int:
    return counts.total() - counts[drone_id]


def _drones_on_avoided_nodes(
    context: PlanningContext, nodes: Breakers
) -> Iterator[tuple[Drone, BlackHoleNode]]:
    """Yield drones without a job on banned nodes, if their site has drones on others: a start might lead there."""
    banned = {scope: each for scope, each in nodes.items() if each.state is BreakerState.BANNED}
    if not banned:
        return
    place = {each.id: Scope(each.site, node=each.node) for each in context.drones.values()}
    others = {scope.site for scope in place.values() if scope.node and scope not in banned}
    for drone in context.drones.values():
        breaker = banned.get(place[drone.id])
        if breaker is None or drone.site not in others or not _is_free(context, drone):
            continue
        message = breaker.fault.message if breaker.fault else ""
        yield drone, BlackHoleNode(drone.node, breaker.until, breaker.failures, message)


def _is_free(context: PlanningContext, drone: Drone) -> bool:
    """Return True if a drone has no job, and may be asked to leave."""
    slot = context.slots.get(drone.id)
    working = drone.jobs or (slot is not None and slot.jobs)
    stays = not drone.is_leaving and not drone.service and drone.state in _TAKES_NO_JOB_YET
    return stays and not working and context.can_act_on(drone)
