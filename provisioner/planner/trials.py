"""Back-off of one job class on one drone type, after a drone that was started for the class got none of its jobs.

The pool knows more than the planner: a parallel job, a used-up concurrency limit, a START expression that the template
lacks. A drone of the type then idles in vain for these jobs and serves all others well. So the class alone backs off on
that type: after a pause one more drone is tried, and each failure doubles the pause. Other classes, and other types for
this class, are not affected. The state is a breaker of the scope ``<site>/<type>#<class id>``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from provisioner.model import (
    PENDING,
    Breaker,
    BreakerState,
    Drone,
    DroneState,
    Fault,
    FaultKind,
    JobClass,
    OverlayView,
    Snapshot,
    StateChange,
    TypeKey,
    class_scope,
)
from provisioner.planner.guard import failed, recovered
from provisioner.reasons import StartsUnmatched


def judged(snapshot: Snapshot, moves: Sequence[StateChange], known: Mapping[str, Breaker]) -> Mapping[str, Breaker]:
    """Return all breakers after the trials that ended in this snapshot."""
    view, now = snapshot.overlay.view, snapshot.now
    tried = [move.drone for move in moves if move.drone.for_class and move.drone.joined_at]
    ours = _of_classes(known)
    if view is None or view.unheard or snapshot.overlay.fault is not None or not (tried or ours):
        return known  # jobs of a queue that does not answer get no drone, whatever they ask for
    after = dict(known)
    classes = {job.id: job for job in view.classes}
    types = {str(kind.key) for kind in snapshot.types}
    for key, class_id, breaker in ours:
        gone = class_id not in classes or key not in types
        if gone and breaker.state is not BreakerState.BANNED:
            after[breaker.scope] = recovered(breaker, now)
    for drone in tried:
        scope, job = class_scope(drone.type, drone.for_class), classes.get(drone.for_class)
        if drone.state is DroneState.UNUSED:
            breaker = after.get(scope) or Breaker(scope, since=now)
            if job is not None and _in_vain(drone, job, view) and not _counted(breaker, drone):
                text = f"{drone.id} idled until it left, and no job of the class came"
                after[scope] = failed(breaker, Fault(FaultKind.JOBS, text, now, of_order=True, accepted=True), now)
        elif scope in after and drone.busy_at and job is not None and job.running:
            after[scope] = recovered(after[scope], now)
    return after


def _of_classes(breakers: Mapping[str, Breaker]) -> list[tuple[TypeKey, str, Breaker]]:
    """Return the breakers of classes on drone types, with type and class id."""
    parts = ((*breaker.scope.partition("#"), breaker) for breaker in breakers.values() if "#" in breaker.scope)
    return [(TypeKey(key), class_id, breaker) for key, _, class_id, breaker in parts if class_id]


def _in_vain(drone: Drone, job: JobClass, view: OverlayView) -> bool:
    """Return True if jobs of the class waited all the time, and a negotiation cycle came, while the drone was idle."""
    idle_at = drone.idle_at or drone.joined_at
    negotiated = not view.negotiated_at or view.negotiated_at > idle_at
    return job.waiting > 0 and job.waits_since <= idle_at and negotiated


def _counted(breaker: Breaker, drone: Drone) -> bool:
    """Return True for a drone that was on its way when an earlier one failed: drones of one batch are one failure."""
    return breaker.fault is not None and drone.requested_at <= breaker.fault.at


@dataclass(frozen=True, slots=True)
class Trials:
    """Classes that back off on drone types, by class id."""

    closed: Mapping[str, Mapping[TypeKey, Breaker]] = field(default_factory=dict)
    """No drone of these types is started for the class, and those that there are do not count as supply for it."""
    probing: Mapping[str, Mapping[TypeKey, int]] = field(default_factory=dict)
    """One drone of these types is tried for the class; how many are on their way, or idle in the pool."""

    @classmethod
    def of(cls, breakers: Mapping[str, Breaker], drones: Iterable[Drone]) -> Trials:
        """Sort the breakers of classes. ``drones``: live ones that are not settled."""
        ours = _of_classes(breakers)
        if not ours:
            return NO_TRIALS
        closed: dict[str, dict[TypeKey, Breaker]] = {}
        probing: dict[str, dict[TypeKey, int]] = {}
        for key, class_id, breaker in ours:
            if breaker.state is BreakerState.BANNED:
                closed.setdefault(class_id, {})[key] = breaker
            elif breaker.state is BreakerState.PROBING:
                probing.setdefault(class_id, {})[key] = 0
        for drone in drones if probing else ():
            probed = probing.get(drone.for_class, {})
            idle = drone.state in (*PENDING, DroneState.JOINED, DroneState.IDLE)
            if drone.type in probed and idle and not drone.goes:
                probed[drone.type] += 1
        return cls(closed, probing)

    def why(self, class_id: str) -> StartsUnmatched | None:
        """Return why nothing is started for a class, by the type that is tried again first; None if it is served."""
        closed = self.closed.get(class_id)
        if not closed:
            return None
        key, breaker = min(closed.items(), key=lambda item: (item[1].until, item[0]))
        return StartsUnmatched(key, breaker.until, breaker.failures, breaker.fault.message if breaker.fault else "")

    def doubted(self, class_id: str, key: TypeKey) -> bool:
        """Return True where the pool is not expected to give jobs of a class to drones of a type."""
        return key in self.closed.get(class_id, ()) or key in self.probing.get(class_id, ())


NO_TRIALS = Trials()
