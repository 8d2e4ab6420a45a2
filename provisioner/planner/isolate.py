"""Decisions that go on without the job classes on which the planner fails.

A mistake of the planner that one odd class brings to light must not stop the service for all others. The class is
found by leaving classes out, and refused with a reason. Where the planner fails without any class, only the operators'
requests are carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from provisioner.model import JobClass, Plan, PolledOverlay, Refusal, Snapshot, StateChange
from provisioner.reasons import PlannerFailed

Planner = Callable[[Snapshot], Plan]
"""Makes a plan: :func:`provisioner.planner.decide`, or in a benchmark another's rule."""

MOST_TRIES = 64
"""Decisions made to find the classes: two among ten thousand need about 56. After that whole groups are left out."""
LONGEST_ERROR = 200


@dataclass(frozen=True, slots=True)
class Isolated:
    """A plan, and what was left out of its snapshot so that it could be made."""

    plan: Plan
    error: Exception | None = None
    """The first one that the planner raised; None if it did not fail."""
    left_out: tuple[str, ...] = ()
    """Ids of the classes on which it fails; none with an ``error``: it fails without any class as well."""


def isolate(snapshot: Snapshot, planner: Planner, suspects: Collection[str] = ()) -> Isolated:
    """Return the plan for a snapshot, without the classes on which the planner fails. ``suspects``: those of the
    decision before, which saves the search. Raises what the planner raises if it fails on the requests alone."""
    try:
        return Isolated(planner(snapshot))
    except Exception as failed:
        error = failed
    view = snapshot.overlay.view
    classes = view.classes if view is not None else ()
    kept, plan = _kept(snapshot, planner, classes, suspects)
    why = PlannerFailed(f"{type(error).__name__}: {error}"[:LONGEST_ERROR])
    if plan is None:
        return Isolated(_requests_alone(snapshot, planner, why, error), error)
    out = [job for n, job in enumerate(classes) if n not in kept]
    refusals = (Refusal(f"class:{job.id}", job.waiting + job.fresh, why) for job in out)
    return Isolated(replace(plan, refusals=(*refusals, *plan.refusals)), error, tuple(job.id for job in out))


def _kept(
    snapshot: Snapshot, planner: Planner, classes: Sequence[JobClass], suspects: Collection[str]
) -> tuple[Collection[int], Plan | None]:
    """Return the positions of the classes with which the planner does not fail, and its plan for them; no plan if it
    fails without any class."""
    kept: set[int] = set()
    plan = _tried(snapshot, planner, kept) if classes else None
    if plan is None:
        return kept, None
    alone = [[n] for n, job in enumerate(classes) if job.id in suspects]
    groups = [*alone, [n for n, job in enumerate(classes) if job.id not in suspects]]
    tries = 0
    while groups:
        group = groups.pop()
        known = len(kept) + len(group) == len(classes)  # all of them: that is what failed
        more = None
        if group and not known and tries < MOST_TRIES:
            tries += 1
            more = _tried(snapshot, planner, kept.union(group))
        if more is not None:
            kept.update(group)
            plan = more
        elif len(group) > 1 and tries < MOST_TRIES:
            half = len(group) // 2
            groups += [group[half:], group[:half]]
    return kept, plan


def _tried(snapshot: Snapshot, planner: Planner, kept: Collection[int]) -> Plan | None:
    """Return the plan with only the classes at the positions ``kept``; None if the planner fails."""
    view = snapshot.overlay.view
    assert view is not None
    some = replace(view, classes=tuple(job for n, job in enumerate(view.classes) if n in kept))
    try:
        return planner(replace(snapshot, overlay=replace(snapshot.overlay, view=some)))
    except Exception:
        return None


def _requests_alone(snapshot: Snapshot, planner: Planner, why: PlannerFailed, error: Exception) -> Plan:
    """Return a plan that does what operators asked for, made from the record and, if possible, the overlay's slots.
    Raises ``error`` if the planner fails on these too."""
    for overlay in _fewer(snapshot.overlay):
        less = replace(snapshot, overlay=overlay, sites={}, breakers={}, patience={})
        try:
            plan = planner(less)
        except Exception:
            continue
        asked = {drone_id for request in snapshot.requests for drone_id in request.drone_ids}
        told = (r for r in plan.refusals if r.subject.removeprefix("drone:") in asked)
        return Plan(
            plan.tick,
            plan.at,
            moves=tuple(m for m in plan.moves if _by_operator(m)),
            drains=tuple(d for d in plan.drains if d.reason.kind == "operator-requested"),
            stops=tuple(s for s in plan.stops if s.reason.kind == "operator-requested"),
            refusals=(Refusal("all", len(snapshot.drones), why), *told),
            requests_done=plan.requests_done,
        )
    raise error


def _fewer(overlay: PolledOverlay) -> Iterator[PolledOverlay]:
    """Yield the overlay's reading without its classes, and then without anything: drains wait then."""
    if overlay.view is not None:
        yield replace(overlay, view=replace(overlay.view, classes=()))
    yield PolledOverlay()


def _by_operator(move: StateChange) -> bool:
    return move.reason.kind == "operator-requested"
