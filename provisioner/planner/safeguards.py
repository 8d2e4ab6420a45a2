"""Plans that can be carried out whatever the planner does.

An error of the planner that one odd class brings to light must not stop the service for all others. The class is found
by leaving classes out, and refused with a reason. If the planner fails without any class, only operators' requests are
carried out. Actions that break a promise (:mod:`validation`) are left out; all others are carried out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from provisioner.model import Drain, JobClass, Plan, PolledOverlay, Refusal, Snapshot, Start, StateChange, StopOrphan
from provisioner.planner import decide
from provisioner.planner.validation import Action, Breach, validate_plan
from provisioner.reasons import InvalidAction, PlannerFailed

PlanFunction = Callable[[Snapshot], Plan]
"""Makes a plan: :func:`provisioner.planner.decide`, or another rule in a benchmark."""

MAX_ISOLATION_TRIES = 64
"""Plans made to find the classes: two among ten thousand need about 56. After that, whole groups are left out."""
MAX_ERROR_CHARS = 200


@dataclass(frozen=True, slots=True)
class IsolatedPlan:
    """A plan, and the classes left out of its snapshot."""

    plan: Plan
    error: Exception | None = None
    """First exception of the planner; None if it did not fail."""
    left_out: tuple[str, ...] = ()
    """Ids of the classes on which it fails; none with an ``error``: then it fails without any class as well."""


def plan_isolated(snapshot: Snapshot, planner: PlanFunction, suspects: Collection[str] = ()) -> IsolatedPlan:
    """Return the plan for a snapshot without the classes on which the planner fails.

    ``suspects`` are the classes left out of the previous plan, which saves the search. Raises the planner's exception
    if it fails on the requests alone.
    """
    try:
        return IsolatedPlan(planner(snapshot))
    except Exception as failed:
        error = failed
    view = snapshot.overlay.view
    classes = view.classes if view is not None else ()
    kept, plan = _find_good_classes(snapshot, planner, classes, suspects)
    why = PlannerFailed(f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS])
    if plan is None:
        return IsolatedPlan(_requests_alone(snapshot, planner, why, error), error)
    out = [job for n, job in enumerate(classes) if n not in kept]
    refusals = (Refusal(f"class:{job.id}", job.waiting + job.fresh, why) for job in out)
    return IsolatedPlan(replace(plan, refusals=(*refusals, *plan.refusals)), error, tuple(job.id for job in out))


def _find_good_classes(
    snapshot: Snapshot, planner: PlanFunction, classes: Sequence[JobClass], suspects: Collection[str]
) -> tuple[Collection[int], Plan | None]:
    """Return the positions of the classes with which the planner does not fail, and its plan for them.

    There is no plan if it fails without any class.
    """
    kept: set[int] = set()
    plan = _try_plan(snapshot, planner, kept) if classes else None
    if plan is None:
        return kept, None
    alone = [[n] for n, job in enumerate(classes) if job.id in suspects]
    groups = [*alone, [n for n, job in enumerate(classes) if job.id not in suspects]]
    tries = 0
    while groups:
        group = groups.pop()
        known = len(kept) + len(group) == len(classes)  # all of them: that is what failed
        more = None
        if group and not known and tries < MAX_ISOLATION_TRIES:
            tries += 1
            more = _try_plan(snapshot, planner, kept.union(group))
        if more is not None:
            kept.update(group)
            plan = more
        elif len(group) > 1 and tries < MAX_ISOLATION_TRIES:
            half = len(group) // 2
            groups += [group[half:], group[:half]]
    return kept, plan


def _try_plan(snapshot: Snapshot, planner: PlanFunction, kept: Collection[int]) -> Plan | None:
    """Return the plan with only the classes at the positions ``kept``, or None if the planner fails."""
    view = snapshot.overlay.view
    assert view is not None
    some = replace(view, classes=tuple(job for n, job in enumerate(view.classes) if n in kept))
    try:
        return planner(replace(snapshot, overlay=replace(snapshot.overlay, view=some)))
    except Exception:
        return None


def _requests_alone(snapshot: Snapshot, planner: PlanFunction, why: PlannerFailed, error: Exception) -> Plan:
    """Return a plan for operators' requests only, made from the record and, if possible, the overlay's slots.

    Raises ``error`` if the planner fails on these too.
    """
    for overlay in _reduced_overlays(snapshot.overlay):
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


def _reduced_overlays(overlay: PolledOverlay) -> Iterator[PolledOverlay]:
    """Yield the overlay without its classes, then without its view: drains wait then."""
    if overlay.view is not None:
        yield replace(overlay, view=replace(overlay.view, classes=()))
    yield PolledOverlay()


def _by_operator(what: Action | StateChange) -> bool:
    return what.reason.kind == "operator-requested"


PlanValidator = Callable[[Snapshot, Plan], tuple[Breach, ...]]
"""Returns the promises that a plan breaks: :func:`provisioner.planner.validation.validate_plan`."""

MAX_VALIDATION_ROUNDS = 20
"""Rounds of validation; a plan that then still breaks a promise is reduced to the operators' requests."""


@dataclass(frozen=True, slots=True)
class RestrictedPlan:
    """A valid plan, and what was wrong with the original one."""

    plan: Plan
    breaches: tuple[Breach, ...] = ()
    left_out: tuple[Action, ...] = ()


def drop_invalid(snapshot: Snapshot, plan: Plan, judge: PlanValidator) -> RestrictedPlan:
    """Leave out the actions that break a promise, until none does.

    A breach without actions leaves only the operators' requests. If one remains even then, nothing is done.
    """
    breaches: list[Breach] = []
    left_out: list[Action] = []
    cut = plan
    for turn in range(MAX_VALIDATION_ROUNDS + 2):
        found = judge(snapshot, cut)
        if not found:
            break
        breaches += found
        named = {action for breach in found for action in breach.actions}
        if turn >= MAX_VALIDATION_ROUNDS or not all(breach.actions for breach in found):
            named |= {action for action in _actions_of(cut) if not _by_operator(action)}
        out = [
            action for action in _actions_of(cut) if action in named and turn <= MAX_VALIDATION_ROUNDS
        ] or _actions_of(cut)
        left_out += out
        cut = _plan_without(snapshot, cut, set(out))
    if breaches:
        cut = replace(cut, refusals=(*cut.refusals, *_refusals(breaches, left_out)))
    return RestrictedPlan(cut, tuple(breaches), tuple(left_out))


def requests_only(snapshot: Snapshot, plan: Plan) -> Plan:
    """Return the part of a plan that operators asked for."""
    return _plan_without(snapshot, plan, {action for action in _actions_of(plan) if not _by_operator(action)})


def _actions_of(plan: Plan) -> tuple[Action, ...]:
    return (*plan.asks, *plan.orphans)


def _plan_without(snapshot: Snapshot, plan: Plan, named: Collection[Action]) -> Plan:
    """Return the plan without these actions. An operator's request that is not carried out stays open."""
    undone = {a.drone.id for a in plan.leaves if a in named and _by_operator(a)}
    still_open = {r.id for r in snapshot.requests if undone.intersection(r.drone_ids)}
    return replace(
        plan,
        starts=tuple(a for a in plan.starts if a not in named),
        drains=tuple(a for a in plan.drains if a not in named),
        stops=tuple(a for a in plan.stops if a not in named),
        orphans=tuple(a for a in plan.orphans if a not in named),
        requests_done=tuple(r for r in plan.requests_done if r not in still_open),
    )


def _refusals(breaches: Collection[Breach], left_out: Collection[Action]) -> Iterator[Refusal]:
    """Yield a refusal for each class and drone whose action was left out, with the first promise that it broke."""
    texts: dict[Action, str] = {}
    for breach in breaches:
        for action in breach.actions:
            texts.setdefault(action, breach.text)
    others = next(breach.text for breach in breaches)
    counts: Counter[tuple[str, str]] = Counter()
    for action in left_out:
        counts[_subject(action), texts.get(action, others)] += 1
    for (subject, text), count in counts.items():
        yield Refusal(subject, count, InvalidAction(text))


def _subject(action: Action) -> str:
    if isinstance(action, Start):
        return f"class:{action.drone.for_class}"
    return f"drone:{action.drone_id if isinstance(action, StopOrphan) else action.drone.id}"


@dataclass(frozen=True, slots=True)
class SafePlan:
    """A plan to carry out, and what was wrong before."""

    plan: Plan
    faults: tuple[str, ...] = ()
    """A line for each failure of the planner and for each broken promise."""
    error: Exception | None = None
    """Raised by the planner or by the validation."""
    classes: tuple[str, ...] = ()
    """Ids of the job classes that were left out."""
    actions: tuple[str, ...] = ()
    """Descriptions of the actions that were left out."""


def safe_plan(
    snapshot: Snapshot,
    planner: PlanFunction = decide,
    judge: PlanValidator = validate_plan,
    suspects: Collection[str] = (),
) -> SafePlan:
    """Return the plan to carry out. Never raises: if no plan can be made at all, it is empty.

    ``suspects`` are the ``classes`` of the previous plan.
    """
    empty = Plan(snapshot.tick, snapshot.now)
    try:
        found = plan_isolated(snapshot, planner, suspects)
    except Exception as error:
        return SafePlan(empty, (_failure_text("planner", error),), error)
    faults = [] if found.error is None else [_failure_text("planner", found.error)]
    try:
        kept = drop_invalid(snapshot, found.plan, judge)
    except Exception as error:
        plan = requests_only(snapshot, found.plan)
        return SafePlan(plan, (*faults, _failure_text("judge", error)), error, found.left_out)
    faults += dict.fromkeys(breach.text for breach in kept.breaches)
    actions = tuple(map(_describe_action, kept.left_out))
    return SafePlan(kept.plan, tuple(faults), found.error, found.left_out, actions)


def _failure_text(who: str, error: Exception) -> str:
    return f"the {who} failed: {type(error).__name__}: {error}"


def _describe_action(action: Action) -> str:
    match action:
        case Start(drone=drone):
            return f"start {drone.id} of {drone.type}"
        case Drain(drone=drone):
            return f"drain {drone.id}"
        case StopOrphan(site=site, drone_id=drone_id):
            return f"stop the stray {drone_id} at {site}"
        case _:
            return f"stop {action.drone.id}"
