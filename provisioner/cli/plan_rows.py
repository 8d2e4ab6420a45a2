"""A plan as rows: each action and each refusal with its reason, drones of one kind together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from provisioner import formatting
from provisioner.cli.cells import text, time_at, whole, words
from provisioner.cli.listing import Column, Document, Listing
from provisioner.model import Breaker, Plan
from provisioner.reasons import Reason

SCHEMA = "provisioner.plan/1"
ACTIONS = ("start", "drain", "stop", "stop-orphan", "move", "breaker", "refuse")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One line of a plan. ``subject``: what is acted on, a drone type or what a refusal is about."""

    action: str
    subject: str
    count: int
    reason: Reason | None
    text: str
    drones: tuple[str, ...] = ()


def plan_rows(plan: Plan) -> list[PlanRow]:
    """Actions first, then what was learned, then what is not done and why."""
    rows = []
    for (kind, why), starts in _grouped(plan.starts, lambda s: (s.drone.type, formatting.describe(s.reason))):
        rows.append(PlanRow("start", kind, len(starts), starts[0].reason, why, tuple(s.drone.id for s in starts)))
    for drain in plan.drains:
        how = f"{drain.mode.value}: {formatting.describe(drain.reason)}"
        rows.append(PlanRow("drain", drain.drone.type, 1, drain.reason, how, (drain.drone.id,)))
    for stop in plan.stops:
        how = ("without notice: " if stop.kill else "") + formatting.describe(stop.reason)
        rows.append(PlanRow("stop", stop.drone.type, 1, stop.reason, how, (stop.drone.id,)))
    for orphan in plan.orphans:
        rows.append(
            PlanRow(
                "stop-orphan", orphan.site, 1, orphan.reason, formatting.describe(orphan.reason), (orphan.drone_id,)
            )
        )
    for move in plan.moves:
        step = (
            f"{move.was.value if move.was else 'new'} -> {move.drone.state.value}: {formatting.describe(move.reason)}"
        )
        rows.append(PlanRow("move", move.drone.type, 1, move.reason, step, (move.drone.id,)))
    for breaker in plan.breakers:
        rows.append(PlanRow("breaker", breaker.scope, 1, None, _breaker(breaker)))
    for refusal in plan.refusals:
        rows.append(
            PlanRow("refuse", refusal.subject, refusal.count, refusal.reason, formatting.describe(refusal.reason))
        )
    return rows


def _breaker(breaker: Breaker) -> str:
    why = f": {formatting.excerpt(breaker.fault.message)}" if breaker.fault else ""
    until = f" until {formatting.iso(breaker.until)}" if breaker.until else ""
    return f"{breaker.state.value}{until}, {formatting.breaker_words(breaker.state)}{why}"


def _grouped(items: Iterable[T], key: Callable[[T], Any]) -> list[tuple[Any, list[T]]]:
    groups: dict[Any, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.items())


def columns() -> tuple[Column[PlanRow], ...]:
    """Of a plan's lines."""
    from provisioner.serialization import to_plain

    tints = {"start": "green", "drain": "yellow", "stop": "red", "stop-orphan": "red", "refuse": "dim"}
    return (
        Column[PlanRow](
            "action",
            lambda r: r.action,
            "What is done.",
            level=0,
            choices=ACTIONS,
            tint=lambda r: tints.get(r.action, ""),
        ),
        text(
            "subject",
            lambda r: r.subject,
            "Drone type, site, scope, or what a refusal is about (class:, site:, type:, all).",
            level=0,
            least=14,
            tail=True,
        ),
        whole("count", lambda r: r.count, "Drones, or jobs that a refusal is about.", level=0),
        Column[PlanRow](
            "drones", lambda r: list(r.drones), "Ids of the drones.", kind="array", level=0, show=_ids, least=14
        ),
        words("text", lambda r: r.text, "Why, in words.", level=0, head="WHY", least=24),
        Column[PlanRow](
            "reason",
            lambda r: to_plain(r.reason, Reason) if r.reason else None,
            "Why, as data.",
            kind="object",
            null=True,
        ),
    )


def _ids(row: PlanRow) -> str:
    if len(row.drones) < 2:
        return "".join(row.drones)
    return f"{row.drones[0]} .. {row.drones[-1].rpartition('-')[2]}"


def plan_document(plan: Plan, origin: str) -> Document:
    """A plan with its lines for people and as a whole for ``replay --expect``. ``origin`` says where it comes from."""
    from provisioner.serialization import to_plain

    rows = plan_rows(plan)
    facts: tuple[Column[Plan], ...] = (
        whole("tick", lambda p: p.tick, "Number of the tick.", level=1),
        time_at("at", lambda p: p.at, "The time that the plan is for.", level=1),
        Column[Plan]("acts", lambda p: p.acts, "Is anything started, drained or stopped?", kind="boolean"),
    )
    return Document(
        SCHEMA,
        Listing("", facts, [plan], lambda p: f"{p.tick}"),
        {"items": Listing("provisioner.plan-items/1", columns(), rows, lambda r: f"{r.action}:{r.subject}")},
        {"items": f"Plan for tick {plan.tick}"},
        main="items",
        raw={"plan": to_plain(plan)},
        scope=f"{origin}: {in_brief(plan)}",
    )


def in_brief(plan: Plan) -> str:
    """``3 starts, 1 drain, 0 stops, 2 refusals``."""
    counts = [
        (len(plan.starts), "start"),
        (len(plan.drains), "drain"),
        (len(plan.stops) + len(plan.orphans), "stop"),
        (len(plan.refusals), "refusal"),
    ]
    return ", ".join(formatting.count(n, noun) for n, noun in counts)
