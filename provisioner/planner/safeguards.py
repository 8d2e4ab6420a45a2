"""Plans that can be carried out whatever the planner does.

An error of the planner that one odd class brings to light must not stop the service for all others.
The class is found by leaving classes out, and refused with a reason; an error in the services leaves
all servers as they are. If the planner fails without any class, only operators' requests are
carried out. Actions that break a promise
(:mod:`validation`) are left out; all others are carried out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from provisioner.keys import ALL, Subject
from provisioner.model import (
    Drain,
    Fault,
    FaultKind,
    Plan,
    PolledOverlay,
    Refusal,
    Snapshot,
    Start,
    StateChange,
    Stop,
    StopOrphan,
)
from provisioner.planner import decide
from provisioner.planner.validation import Action, Breach, validate_plan
from provisioner.reasons import InvalidAction, OperatorRequested, PlannerFailed
from provisioner.values import frozen

PlanFunction = Callable[[Snapshot], Plan]
"""Makes a plan: :func:`provisioner.planner.decide`, or another rule in a benchmark."""
PlanValidator = Callable[[Snapshot, Plan], tuple[Breach, ...]]
MAX_ISOLATION_TRIES = 64
"""Plans made to find the classes: two among ten thousand need about 56. After that, whole groups are left out."""
MAX_ERROR_CHARS = 200
MAX_VALIDATION_ROUNDS = 20
"""Rounds of validation; a plan that then still breaks a promise is reduced to the operators' requests."""


@frozen
class SafePlan:
    """A plan to carry out, and what was wrong before."""

    plan: Plan
    faults: tuple[str, ...] = ()
    """A line for each failure of the planner and for each broken promise."""
    error: Exception | None = None
    """Raised by the planner or by the validation."""
    classes: tuple[str, ...] = ()
    """Ids of the job classes that were left out; none if the planner fails without any class as well."""
    actions: tuple[str, ...] = ()
    """Descriptions of the actions that were left out."""


def safe_plan(
    snapshot: Snapshot,
    planner: PlanFunction = decide,
    judge: PlanValidator = validate_plan,
    suspects: Collection[str] = (),
) -> SafePlan:
    """Return the plan to carry out, which may be empty; never raises. The previous plan's ``classes`` are suspects."""
    try:
        found = plan_isolated(snapshot, planner, suspects)
    except Exception as error:
        return SafePlan(
            Plan(snapshot.tick, snapshot.now), (_failure_text("planner", error),), error
        )
    try:
        kept = drop_invalid(snapshot, found.plan, judge)
    except Exception as error:
        plan = _plan_without(
            snapshot, found.plan, [a for a in _actions_of(found.plan) if not _by_operator(a)]
        )
        return replace(
            found, plan=plan, faults=(*found.faults, _failure_text("judge", error)), error=error
        )
    return replace(found, plan=kept.plan, faults=found.faults + kept.faults, actions=kept.actions)


def plan_isolated(
    snapshot: Snapshot, planner: PlanFunction, suspects: Collection[str] = ()
) -> SafePlan:
    """Return the plan for a snapshot without the classes on which the planner fails.

    Raises the planner's exception if it fails on the requests alone.
    """
    try:
        return SafePlan(planner(snapshot))
    except Exception as failed:
        error = failed
    rest = _without_services(snapshot, planner, error)
    if rest is not None:
        return SafePlan(rest, (_failure_text("planner", error),), error)
    classes = snapshot.overlay.view.classes if snapshot.overlay.view is not None else ()
    kept, plan = _find_good_classes(snapshot, planner, suspects)
    why = PlannerFailed(f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS])
    faults = (_failure_text("planner", error),)
    if plan is None:
        return SafePlan(_requests_alone(snapshot, planner, why, error), faults, error)
    out = [job for n, job in enumerate(classes) if n not in kept]
    refusals = (Refusal(Subject("class", job.id), job.waiting + job.fresh, why) for job in out)
    plan = replace(plan, refusals=(*refusals, *plan.refusals))
    return SafePlan(plan, faults, error, tuple(job.id for job in out))


def _without_services(snapshot: Snapshot, planner: PlanFunction, error: Exception) -> Plan | None:
    """Return the plan in which no server starts or leaves, if the planner does not fail on that."""
    if not snapshot.policy.services:
        return None
    text = f"the planner failed: {type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
    doubted = replace(snapshot.services, fault=Fault(FaultKind.UNKNOWN, text, snapshot.now))
    try:
        return planner(replace(snapshot, services=doubted))
    except Exception:
        return None


def _find_good_classes(
    snapshot: Snapshot, planner: PlanFunction, suspects: Collection[str]
) -> tuple[set[int], Plan | None]:
    """Return the positions of the classes with which the planner does not fail, and its plan for them, if any."""
    view = snapshot.overlay.view
    kept = set[int]()
    if view is None or not view.classes:
        return kept, None

    def try_plan(positions: set[int]) -> Plan | None:
        some = replace(
            view, classes=tuple(job for n, job in enumerate(view.classes) if n in positions)
        )
        try:
            return planner(replace(snapshot, overlay=replace(snapshot.overlay, view=some)))
        except Exception:
            return None

    plan = try_plan(kept)
    if plan is None:
        return kept, None
    alone = [[n] for n, job in enumerate(view.classes) if job.id in suspects]
    groups = [*alone, [n for n, job in enumerate(view.classes) if job.id not in suspects]]
    tries = 0
    while groups and tries < MAX_ISOLATION_TRIES:
        group = groups.pop()
        more = None
        if group and len(kept) + len(group) < len(view.classes):  # all of them: that is what failed
            tries += 1
            more = try_plan(kept.union(group))
        if more is not None:
            kept.update(group)
            plan = more
        elif len(group) > 1:
            half = len(group) // 2
            groups += [group[half:], group[:half]]
    return kept, plan


def _requests_alone(
    snapshot: Snapshot, planner: PlanFunction, why: PlannerFailed, error: Exception
) -> Plan:
    """Return a plan for operators' requests only, by the record and, if possible, the slots; else raise ``error``."""
    overlays = [PolledOverlay()]  # without a view, drains wait
    if snapshot.overlay.view is not None:
        overlays.insert(
            0, replace(snapshot.overlay, view=replace(snapshot.overlay.view, classes=()))
        )
    for overlay in overlays:
        try:
            plan = planner(replace(snapshot, overlay=overlay, sites={}, breakers={}, patience={}))
        except Exception:
            continue
        asked = {
            Subject("drone", drone_id)
            for request in snapshot.requests
            for drone_id in request.drone_ids
        }
        about_them = (r for r in plan.refusals if r.subject in asked)
        return Plan(
            plan.tick,
            plan.at,
            moves=tuple(filter(_by_operator, plan.moves)),
            drains=tuple(filter(_by_operator, plan.drains)),
            stops=tuple(filter(_by_operator, plan.stops)),
            refusals=(Refusal(ALL, len(snapshot.drones), why), *about_them),
            requests_done=plan.requests_done,
        )
    raise error


def drop_invalid(snapshot: Snapshot, plan: Plan, judge: PlanValidator) -> SafePlan:
    """Leave out the actions that break a promise; if one remains, all but operators' requests, and then these too.

    What is left may break another promise, so it is validated again. Each round leaves out at least
    one action, and the rounds are limited: this ends even if the validation names no action.
    """
    breaches: list[Breach] = []
    left_out: list[Action] = []
    for turn in range(MAX_VALIDATION_ROUNDS + 2):
        found = judge(snapshot, plan)
        if not found:
            break
        breaches += found
        out = actions = _actions_of(plan)
        if turn <= MAX_VALIDATION_ROUNDS:
            named = {action for breach in found for action in breach.actions}
            some = turn < MAX_VALIDATION_ROUNDS and all(breach.actions for breach in found)
            out = [a for a in actions if a in named or not (some or _by_operator(a))] or actions
        left_out += out
        plan = _plan_without(snapshot, plan, set(out))
    if breaches:
        plan = replace(plan, refusals=(*plan.refusals, *_refusals(breaches, left_out)))
    texts = dict.fromkeys(breach.text for breach in breaches)
    return SafePlan(
        plan, tuple(texts), actions=tuple(_describe_action(action)[1] for action in left_out)
    )


def _actions_of(plan: Plan) -> list[Action]:
    return [*plan.asks, *plan.orphans]


def _by_operator(what: Action | StateChange) -> bool:
    return isinstance(what.reason, OperatorRequested)


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


def _refusals(breaches: Sequence[Breach], left_out: Collection[Action]) -> Iterator[Refusal]:
    """Yield a refusal for each class and drone whose action was left out, with the first promise that it broke."""
    texts = {action: breach.text for breach in reversed(breaches) for action in breach.actions}
    counts = Counter(
        (_describe_action(action)[0], texts.get(action, breaches[0].text)) for action in left_out
    )
    for (subject, text), count in counts.items():
        yield Refusal(subject, count, InvalidAction(text))


def _failure_text(who: str, error: Exception) -> str:
    return f"the {who} failed: {type(error).__name__}: {error}"


def _describe_action(action: Action) -> tuple[Subject, str]:
    """Return the subject of an action's refusal, and the action in words."""
    match action:
        case Start(drone=drone):
            subject = Subject("class", drone.for_class)
            if drone.service:
                subject = Subject("service", drone.service)
            return subject, f"start {drone.id} of {drone.type}"
        case StopOrphan(site=site, drone_id=drone_id):
            return Subject("drone", drone_id), f"stop the orphan {drone_id} at {site}"
        case Drain(drone=drone) | Stop(drone=drone):
            return (
                Subject("drone", drone.id),
                f"{'drain' if isinstance(action, Drain) else 'stop'} {drone.id}",
            )
