"""A plan that can be acted on whatever the planner does: isolated from odd classes, and restrained by the judge."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from provisioner.model import Drain, Plan, Snapshot, Start, StopOrphan
from provisioner.planner import decide
from provisioner.planner.check import Action, check
from provisioner.planner.isolate import Planner, isolate
from provisioner.planner.restrained import Judge, requests_only, restrain


@dataclass(frozen=True, slots=True)
class SoundPlan:
    """A plan, and what was wrong before it was one."""

    plan: Plan
    faults: tuple[str, ...] = ()
    """A line for each failure of the planner and for each promise that its plan broke."""
    error: Exception | None = None
    """Raised by the planner or by the judge."""
    classes: tuple[str, ...] = ()
    """Ids of the job classes that were left out."""
    actions: tuple[str, ...] = ()
    """Actions that were left out, in words."""


def sound_plan(
    snapshot: Snapshot, planner: Planner = decide, judge: Judge = check, suspects: Collection[str] = ()
) -> SoundPlan:
    """Return the plan that is acted on. ``suspects``: the ``classes`` of the plan before. Never raises: if nothing can
    be decided at all, the plan is empty."""
    empty = Plan(snapshot.tick, snapshot.now)
    try:
        found = isolate(snapshot, planner, suspects)
    except Exception as error:
        return SoundPlan(empty, (_failed("planner", error),), error)
    faults = [] if found.error is None else [_failed("planner", found.error)]
    try:
        kept = restrain(snapshot, found.plan, judge)
    except Exception as error:
        plan = requests_only(snapshot, found.plan)
        return SoundPlan(plan, (*faults, _failed("judge", error)), error, found.left_out)
    faults += dict.fromkeys(breach.text for breach in kept.breaches)
    actions = tuple(map(_words, kept.left_out))
    return SoundPlan(kept.plan, tuple(faults), found.error, found.left_out, actions)


def _failed(who: str, error: Exception) -> str:
    return f"the {who} failed: {type(error).__name__}: {error}"


def _words(action: Action) -> str:
    match action:
        case Start(drone=drone):
            return f"start {drone.id} of {drone.type}"
        case Drain(drone=drone):
            return f"drain {drone.id}"
        case StopOrphan(site=site, drone_id=drone_id):
            return f"stop the stray {drone_id} at {site}"
        case _:
            return f"stop {action.drone.id}"
