"""A job class explained: the reasons of the newest plan, and each drone type with the first dimension that fails."""

from __future__ import annotations

from dataclasses import dataclass, replace

from provisioner import formatting
from provisioner.cli import class_rows
from provisioner.cli.cells import text, whole, words
from provisioner.cli.class_rows import ClassRow
from provisioner.cli.demand import newest_plan
from provisioner.cli.listing import Column, Document, Listing
from provisioner.model import DroneType, JobClass, UnmetRequirement
from provisioner.reasons import Reason
from provisioner.store import Reader, Views

SCHEMA = "provisioner.class/1"

_SHOWN = {
    "id": "class",
    "owner": "owner",
    "waiting": "waiting",
    "fresh": "not yet negotiated",
    "running": "running",
    "held": "held",
    "needs": "needs",
    "job_ids": "jobs",
    "drones": "drones started for it",
}


@dataclass(frozen=True, slots=True)
class Fit:
    """One drone type against the class. ``misfit`` is the first dimension that fails; None: it fits."""

    kind: DroneType
    misfit: UnmetRequirement | None
    live: int


@dataclass(frozen=True, slots=True)
class Said:
    """What one plan says of the class."""

    reason: Reason


def explained_class(reader: Reader, views: Views, job: JobClass, title: str, now: float) -> Document:
    """The document of ``explain class`` and ``explain job``."""
    from provisioner.planner.matching import unmet_requirement

    plan = newest_plan(reader)
    said = (*class_rows.reasons_for_all(plan), *class_rows.reasons_by_class(plan).get(job.id, ()))
    live = reader.drones()
    row = class_rows.class_row(job, views.types, said, sum(d.for_class == job.id for d in live))
    fits = [Fit(t, unmet_requirement(job, t), sum(d.type == t.key for d in live)) for t in views.types]
    fits.sort(key=lambda f: (f.misfit is not None, f.kind.price, f.kind.key))
    facts = tuple(
        replace(c, level=0 if c.key in _SHOWN else 2, head=_SHOWN.get(c.key, "")) for c in class_rows.columns(now)
    )
    when = f"tick {plan.tick}, {formatting.ago(plan.at, now)} ago" if plan else "no plan is on record yet"
    return Document(
        SCHEMA,
        Listing("", facts, [row], lambda r: r.job.id),
        {
            "said": Listing("", _said_columns(), [Said(r) for r in said] or _unsaid(row), lambda s: s.reason.kind),
            "types": Listing("", _fit_columns(), fits, lambda f: f.kind.key),
        },
        {"said": f"What the newest plan says ({when})", "types": "Drone types"},
        scope=f"{title}: {class_rows.why(row)}",
    )


def _unsaid(row: ClassRow) -> list[Said]:
    from provisioner.reasons import BadRequest

    return [Said(BadRequest(row.job.invalid))] if row.job.invalid else []


def _said_columns() -> tuple[Column[Said], ...]:
    from provisioner.serialization import to_plain

    return (
        Column[Said](
            "tier",
            lambda s: formatting.category(s.reason).value,
            "Kind of answer.",
            level=0,
            choices=tuple(formatting.Category),
        ),
        words("text", lambda s: formatting.describe(s.reason), "In words.", level=0, head="WHY", least=30),
        Column[Said]("reason", lambda s: to_plain(s.reason, Reason), "As data.", kind="object"),
    )


def _fit_columns() -> tuple[Column[Fit], ...]:
    return (
        text("type", lambda f: f.kind.key, "Drone type, as site/name.", level=0, least=12, tail=True),
        Column[Fit](
            "fits",
            lambda f: f.misfit is None,
            "Could an empty drone of it run one job?",
            kind="boolean",
            level=0,
            tint=lambda f: "green" if f.misfit is None else "",
        ),
        text(
            "dimension",
            lambda f: f.misfit.dimension if f.misfit else "",
            "First dimension that fails; empty: none.",
            level=0,
            head="FAILS",
            least=8,
        ),
        Column[Fit](
            "wanted",
            lambda f: f.misfit.wanted if f.misfit else "",
            "What the jobs want there.",
            level=0,
            least=10,
            show=lambda f: _amounts(f)[0],
        ),
        Column[Fit](
            "offered",
            lambda f: f.misfit.offered if f.misfit else "",
            "What the type has there.",
            level=0,
            least=10,
            show=lambda f: _amounts(f)[1],
        ),
        whole("drones", lambda f: f.live, "Live drones of the type.", level=0),
        Column[Fit](
            "price", lambda f: f.kind.price, "Relative price of a GPU-hour.", kind="number", level=1, right=True
        ),
    )


def _amounts(row: Fit) -> tuple[str, str]:
    return formatting.amounts(row.misfit.wanted, row.misfit.offered) if row.misfit else ("", "")
