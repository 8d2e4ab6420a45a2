"""Two plans for one snapshot side by side: what would be done instead, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from provisioner import formatting
from provisioner.cli.cells import text, whole, words
from provisioner.cli.listing import Column, Document, Listing
from provisioner.cli.plan_rows import ACTIONS, PlanRow, in_brief, plan_rows
from provisioner.model import Plan

SCHEMA = "provisioner.plan-diff/1"
CHANGES = ("more", "less", "why")


@dataclass(frozen=True, slots=True)
class Difference:
    """One line in which two plans differ. ``why`` is of the other plan, or of the first where that alone has it."""

    action: str
    subject: str
    drone: str
    """Of what concerns one drone on record."""
    before: int
    after: int
    why: str

    @property
    def change(self) -> str:
        if self.before == self.after:
            return "why"
        return "more" if self.after > self.before else "less"


def plan_differences(before: Plan, after: Plan) -> list[Difference]:
    """In the order of a plan: starts, drains, stops, then what was learned and what is not done."""
    old, new = _lines(before), _lines(after)
    found = []
    for key in sorted({*old, *new}, key=lambda k: (ACTIONS.index(k[0]), k)):
        (was, why_before), (now, why_after) = old.get(key, (0, "")), new.get(key, (0, ""))
        if was != now or why_before != why_after:
            found.append(Difference(*key, was, now, why_after or why_before))
    return found


_Key = tuple[str, str, str]


def _lines(plan: Plan) -> dict[_Key, tuple[int, str]]:
    """Count and reasons by action, subject and drone. New drones have no id to be compared by: another plan gives the
    same one to another type."""
    rows: dict[_Key, list[PlanRow]] = {}
    for row in plan_rows(plan):
        drone = "" if row.action == "start" else "".join(row.drones)
        rows.setdefault((row.action, row.subject, drone), []).append(row)
    return {key: (sum(r.count for r in found), _reasons(found)) for key, found in rows.items()}


def _reasons(rows: Iterable[PlanRow]) -> str:
    return "; ".join(dict.fromkeys(row.text for row in rows))


def columns() -> tuple[Column[Difference], ...]:
    tints = {"more": "green", "less": "yellow"}
    return (
        Column[Difference](
            "change",
            lambda d: d.change,
            "More or less of it than before, or for another reason.",
            level=0,
            choices=CHANGES,
            tint=lambda d: tints.get(d.change, ""),
        ),
        Column[Difference]("action", lambda d: d.action, "What is done.", level=0, choices=ACTIONS),
        text(
            "subject",
            lambda d: d.subject,
            "Drone type, site, scope, or what a refusal is about.",
            level=0,
            least=14,
            tail=True,
        ),
        text(
            "drone", lambda d: d.drone, "Id of the drone, of what concerns one on record.", level=0, least=14, tail=True
        ),
        whole("before", lambda d: d.before, "Drones, or jobs that a refusal is about, in the plan as it is.", level=0),
        whole("after", lambda d: d.after, "The same in the other plan.", level=0),
        words(
            "why",
            lambda d: d.why,
            "The other plan's reason; of what it does no more, the first one's.",
            level=0,
            least=24,
        ),
    )


def plan_diff_document(before: Plan, after: Plan, origin: str) -> Document:
    """Both plans for machines, and for people where they differ. ``origin`` says what was asked."""
    from provisioner.serialization import to_plain

    found = plan_differences(before, after)
    facts: tuple[Column[Sequence[Difference]], ...] = (
        Column("same", lambda rows: not rows, "Are the plans the same?", kind="boolean"),
    )
    return Document(
        SCHEMA,
        Listing("", facts, [found], lambda _: ""),
        {"items": Listing("provisioner.plan-diff-items/1", columns(), found, lambda d: f"{d.action}:{d.subject}")},
        {"items": f"Plan for tick {before.tick}, otherwise"},
        main="items",
        raw={"before": to_plain(before), "after": to_plain(after)},
        scope=(
            f"{origin}: {in_brief(after)} instead of {in_brief(before)}; {formatting.count(len(found), 'difference')}"
        ),
    )
