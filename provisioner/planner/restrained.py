"""A plan without the actions that break a promise; everything else in it is acted on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from provisioner.model import Plan, Refusal, Snapshot, Start, StopOrphan
from provisioner.planner.check import Action, Breach
from provisioner.reasons import InvalidAction

Judge = Callable[[Snapshot, Plan], tuple[Breach, ...]]
"""Names the promises that a plan breaks: :func:`provisioner.planner.check.check`."""

MOST_ROUNDS = 20
"""So often a plan is judged again; what then still breaks a promise is cut down to the operators' requests."""


@dataclass(frozen=True, slots=True)
class Restrained:
    """A plan that the judge accepts, and what was wrong with the one before."""

    plan: Plan
    breaches: tuple[Breach, ...] = ()
    left_out: tuple[Action, ...] = ()


def restrain(snapshot: Snapshot, plan: Plan, judge: Judge) -> Restrained:
    """Leave out the actions that the judge names, until it names none. A breach that names no action leaves only the
    operators' requests; if one remains even then, nothing is acted on."""
    breaches: list[Breach] = []
    left_out: list[Action] = []
    cut = plan
    for turn in range(MOST_ROUNDS + 2):
        found = judge(snapshot, cut)
        if not found:
            break
        breaches += found
        named = {action for breach in found for action in breach.actions}
        if turn >= MOST_ROUNDS or not all(breach.actions for breach in found):
            named |= {action for action in _actions(cut) if not _by_operator(action)}
        out = [action for action in _actions(cut) if action in named and turn <= MOST_ROUNDS] or _actions(cut)
        left_out += out
        cut = _without(snapshot, cut, set(out))
    if breaches:
        cut = replace(cut, refusals=(*cut.refusals, *_refusals(breaches, left_out)))
    return Restrained(cut, tuple(breaches), tuple(left_out))


def requests_only(snapshot: Snapshot, plan: Plan) -> Plan:
    """Return what of a plan operators asked for."""
    return _without(snapshot, plan, {action for action in _actions(plan) if not _by_operator(action)})


def _actions(plan: Plan) -> tuple[Action, ...]:
    return (*plan.asks, *plan.orphans)


def _by_operator(action: Action) -> bool:
    return action.reason.kind == "operator-requested"


def _without(snapshot: Snapshot, plan: Plan, named: Collection[Action]) -> Plan:
    """Return the plan less these actions. An operator's request that is not carried out stays
    open."""
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
    """Tell each class and each drone that was left out the first promise which that action broke."""
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
