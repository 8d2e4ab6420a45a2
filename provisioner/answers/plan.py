"""Plans: the one on record, and the difference between two."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from provisioner import descriptions, formatting
from provisioner.answers.columns import (
    Column,
    Document,
    Listing,
    data,
    flag,
    ident,
    items,
    reason_data,
    shown_as,
    text,
    time_at,
    whole,
    words,
)
from provisioner.answers.errors import VerbError
from provisioner.answers.query import Query, question
from provisioner.descriptions import ClassNames
from provisioner.model import Breaker, Plan, Snapshot, Start, StateChange
from provisioner.reasons import Reason
from provisioner.store.reader import Reader

SNAPSHOT_SCHEMA = "provisioner.snapshot/1"
PLAN_SCHEMA = "provisioner.plan/1"
T = TypeVar("T")


PLAN_ACTIONS = ("start", "drain", "stop", "stop-orphan", "move", "breaker", "refuse")


class PlanRow(NamedTuple):
    """Line of a plan. ``subject``: what is acted on, a drone type or what a refusal is about."""

    action: str
    subject: str
    number: int
    reason: Reason | None
    text: str
    drones: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return f"{self.action} {self.reason.kind}" if self.reason else self.action


def plan_rows(plan: Plan) -> list[PlanRow]:
    """Return the lines of a plan: actions (starts alike in one), changes of state and breakers, then refusals."""

    def row(action: str, subject: str, reason: Reason, drone: str, how: str = "") -> PlanRow:
        return PlanRow(action, subject, 1, reason, how + reason.describe(), (drone,))

    def step(move: StateChange) -> str:
        return f"{move.was.value if move.was else 'new'} -> {move.drone.state.value}: "

    starts: defaultdict[tuple[str, str], list[Start]] = defaultdict(list)
    for start in plan.starts:
        starts[start.drone.type, start.reason.describe()].append(start)
    return [
        *(
            PlanRow(
                "start", kind, len(alike), alike[0].reason, why, tuple(s.drone.id for s in alike)
            )
            for (kind, why), alike in starts.items()
        ),
        *(
            row("drain", d.drone.type, d.reason, d.drone.id, f"{d.mode.value}: ")
            for d in plan.drains
        ),
        *(
            row("stop", s.drone.type, s.reason, s.drone.id, "without notice: " * s.kill)
            for s in plan.stops
        ),
        *(row("stop-orphan", o.site, o.reason, o.drone_id) for o in plan.orphans),
        *(row("move", m.drone.type, m.reason, m.drone.id, step(m)) for m in plan.moves),
        *(PlanRow("breaker", str(b.scope), 1, None, breaker_words(b)) for b in plan.breakers),
        *(
            PlanRow("refuse", str(r.subject), r.count, r.reason, r.reason.describe())
            for r in plan.refusals
        ),
    ]


def breaker_words(breaker: Breaker) -> str:
    """Return the state of a circuit breaker, until when, and why."""
    why = f": {formatting.excerpt(breaker.fault.message)}" if breaker.fault else ""
    until = f" until {formatting.iso(breaker.until)}" if breaker.until else ""
    words = "on shared GPUs" if breaker.scope.user else descriptions.BREAKER_WORDS[breaker.state]
    return f"{breaker.state.value}{until}, {words}{why}"


def _drone_range(row: PlanRow) -> str:
    if len(row.drones) < 2:
        return "".join(row.drones)
    return f"{row.drones[0]} .. {row.drones[-1].rpartition('-')[2]}"


PLAN_TINTS = {
    "start": "green",
    "drain": "yellow",
    "stop": "red",
    "stop-orphan": "red",
    "refuse": "dim",
}
PLAN_COLUMNS = (
    text("action", "Action.", level=0, choices=PLAN_ACTIONS, tint=PLAN_TINTS),
    ident("subject", "Drone type, site or scope; for a refusal, its subject.", least=14),
    whole("count", "Number of drones; for a refusal, of jobs.", "number", level=0),
    items("drones", "Ids of the drones.", level=0, show=_drone_range, least=14),
    words("text", "Why, in words.", head="WHY", least=24),
    data("reason", "Why, as data.", convert=reason_data, null=True),
)
PLAN_FACTS = (
    whole("tick", "Number of the tick.", level=1),
    time_at("at", "Time of the plan.", level=1),
    flag("acts", "Whether the plan starts, drains or stops a drone."),
)


def _with_names(columns: Sequence[Column], names: ClassNames) -> Sequence[Column]:
    return shown_as(columns, "subject", lambda row: names.in_key(row.subject))


def plan_document(plan: Plan, origin: str, names: ClassNames) -> Document:
    """Return a plan with its lines for people and as a whole for ``replay --expect``. ``origin``: its source."""
    from provisioner.serialization import to_plain

    schema = "provisioner.plan-items/1"
    title = f"Plan for tick {plan.tick}"
    rows = Listing(
        schema,
        _with_names(PLAN_COLUMNS, names),
        plan_rows(plan),
        lambda r: f"{r.action}:{names.in_key(r.subject)}",
        title=title,
    )
    return Document(
        PLAN_SCHEMA,
        PLAN_FACTS,
        plan,
        {"items": rows},
        main="items",
        name=f"{plan.tick}",
        raw={"plan": to_plain(plan)},
        scope=f"{origin}: {plan_summary(plan)}",
    )


def plan_summary(plan: Plan) -> str:
    """Return ``3 starts, 1 drain, 0 stops, 2 refusals``."""
    stops = len(plan.stops) + len(plan.orphans)
    counts = {
        "start": len(plan.starts),
        "drain": len(plan.drains),
        "stop": stops,
        "refusal": len(plan.refusals),
    }
    return ", ".join(formatting.count(n, noun) for noun, n in counts.items())


class PlanDifference(NamedTuple):
    """Line in which two plans differ. ``why`` is of the other plan, or of the first if only that has it."""

    action: str
    subject: str
    drone: str
    before: int
    after: int
    why: str

    @property
    def change(self) -> str:
        return (
            "why" if self.before == self.after else "more" if self.after > self.before else "less"
        )


def plan_differences(before: Plan, after: Plan) -> list[PlanDifference]:
    old = _plan_lines(before)
    new = _plan_lines(after)
    found = []
    for key in sorted({*old, *new}, key=lambda k: (PLAN_ACTIONS.index(k[0]), k)):
        (was, why_before), (now, why_after) = old.get(key, (0, "")), new.get(key, (0, ""))
        if was != now or why_before != why_after:
            found.append(PlanDifference(*key, was, now, why_after or why_before))
    return found


def _plan_lines(plan: Plan) -> dict[tuple[str, str, str], tuple[int, str]]:
    """Return count and reasons by action, subject and drone.

    New drones have no id to compare: another plan gives the same one to another type.
    """
    rows: defaultdict[tuple[str, str, str], list[PlanRow]] = defaultdict(list)
    for row in plan_rows(plan):
        rows[row.action, row.subject, "" if row.action == "start" else "".join(row.drones)].append(
            row
        )
    return {
        key: (sum(row.number for row in found), "; ".join(dict.fromkeys(row.text for row in found)))
        for key, found in rows.items()
    }


CHANGES = {"more": "green", "less": "yellow", "why": ""}
DIFFERENCE_COLUMNS = (
    text(
        "change",
        "Kind of difference: more, less, or another reason.",
        level=0,
        choices=tuple(CHANGES),
        tint=CHANGES,
    ),
    text("action", "Action.", level=0, choices=PLAN_ACTIONS),
    ident("subject", "Drone type, site or scope; for a refusal, its subject.", least=14),
    ident("drone", "Id of the drone, if the row concerns one on record.", least=14),
    whole("before", "Number of drones (for a refusal, of jobs) in the first plan.", level=0),
    whole("after", "Number in the other plan.", level=0),
    words(
        "why", "Reason in the other plan; for an action that it lacks, in the first plan.", least=24
    ),
)
DIFFERENCE_FACTS = (
    flag("same", "Whether the plans are equal.", lambda differences: not differences),
)


def plan_diff_document(before: Plan, after: Plan, origin: str, names: ClassNames) -> Document:
    """Return both plans for machines, and for people where they differ. ``origin``: what was asked."""
    from provisioner.serialization import to_plain

    found = plan_differences(before, after)
    title = f"Plan for tick {before.tick}, otherwise"
    schema = "provisioner.plan-diff-items/1"
    count = formatting.count(len(found), "difference")
    rows = Listing(
        schema,
        _with_names(DIFFERENCE_COLUMNS, names),
        found,
        lambda d: f"{d.action}:{names.in_key(d.subject)}",
        title=title,
    )
    return Document(
        "provisioner.plan-diff/1",
        DIFFERENCE_FACTS,
        found,
        {"items": rows},
        main="items",
        raw={"before": to_plain(before), "after": to_plain(after)},
        scope=f"{origin}: {plan_summary(after)} instead of {plan_summary(before)}; {count}",
    )


@question("plan", "/plan", lambda: [plan_document(Plan(1, 1.0), "", ClassNames(None))])
def plan(reader: Reader, query: Query) -> Document:
    """Show what the next tick would do, and why.

    A dry run of the controller's planner on the newest recorded views: no site is contacted and nothing is changed.
    `provisioner replay` does the same for a saved snapshot or a recorded tick.

    \b
    Examples:
      provisioner plan -o wide
      provisioner plan -o json | jq '.items[] | select(.action == "refuse") | {subject, text}'
    """
    from provisioner.planner.safeguards import safe_plan

    seen = kept_snapshot(reader, None)
    origin = f"dry run on the record at {formatting.iso(seen.now)}"
    return plan_document(safe_plan(seen).plan, origin, ClassNames(seen.overlay.view))


SNAPSHOTS_SCHEMA = "provisioner.snapshots/1"


SAME = "the same as a later tick"
SNAPSHOT_COLUMNS = (
    whole("tick", "Number of the tick.", level=0),
    time_at("at", "When it was.", level=0),
    whole("starts", "Drones started.", lambda p: len(p.starts)),
    whole("drains", "Drones asked to leave.", lambda p: len(p.drains)),
    whole("stops", "Drones stopped.", lambda p: len(p.stops) + len(p.orphans)),
    text(
        "did",
        "Actions, in words.",
        lambda p: plan_summary(p) if p.acts else SAME,
        level=0,
        least=20,
    ),
)


def kept_snapshot(reader: Reader, tick: int | None) -> Snapshot:
    """Return the snapshot of a tick, or that with which the next one begins. Raises :class:`VerbError`."""
    found = reader.snapshot(tick)
    if found is not None:
        return found
    if tick is None:
        raise VerbError("no tick is on record yet: `provisioner run` makes the first")
    kept = reader.kept_snapshots()
    near = ", ".join(map(str, sorted(sorted(kept, key=lambda n: abs(n - tick))[:5])))
    raise VerbError(
        f"no snapshot of tick {tick} is kept; {f'nearest: {near}' if near else 'none is'}",
        "only the newest ticks with actions have snapshots",
    )
