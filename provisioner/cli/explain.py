"""``provisioner explain``: why a job waits, why a drone is as it is, how a class fits each drone type."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import Annotated, NamedTuple

import typer

from provisioner import formatting
from provisioner.cli import options as opt
from provisioner.cli import output as out
from provisioner.cli.drones import drone_document
from provisioner.cli.jobs import class_columns, class_row, newest_plan, reasons_by_class, reasons_for_all, why_waiting
from provisioner.model import DroneType, JobClass, UnmetRequirement
from provisioner.reasons import BadRequest
from provisioner.store import Views
from provisioner.store.reader import Reader

_JOB_ID = re.compile(r"(?:(?P<queue>[^#\s]+)#)?(?P<cluster>\d+)(?:\.(?P<proc>\d+))?")
_JOB_RANGE = re.compile(r"\s*((?:[^#\s,]+#)?\d+(?:\.\d+)?)\s*(?:-\s*((?:[^#\s,]+#)?\d+(?:\.\d+)?))?\s*")

JobId = tuple[str, int, int]
"""Queue (schedd) or empty, cluster, process; -1 where an id has no process part."""


def parse_job_id(text: str) -> JobId | None:
    """Return a job id; None if it is none."""
    found = _JOB_ID.fullmatch(text.strip())
    if found is None or len(text) > 300:
        return None
    return (found["queue"] or "", int(found["cluster"]), int(found["proc"]) if found["proc"] else -1)


def holds_job(ranges: str, job: JobId) -> bool:
    """Return True if ``job`` is in ``ranges``; without process it matches any process, without queue any queue."""
    queue, cluster, proc = job
    for low, high in _ranges(ranges):
        if queue and low[0] and queue != low[0]:
            continue
        if proc < 0 and low[2] >= 0:
            if low[1] <= cluster <= high[1]:
                return True
        elif low[1:] <= (cluster, proc) <= high[1:]:
            return True
    return False


def _ranges(ranges: str) -> Iterator[tuple[JobId, JobId]]:
    for piece in ranges.replace("...", "").replace("\u2026", "").split(","):
        found = _JOB_RANGE.fullmatch(piece)
        low = parse_job_id(found[1]) if found else None
        high = parse_job_id(found[2]) if found and found[2] else low
        if low is not None and high is not None:
            yield low, high


JOB_SCHEMA = "provisioner.job/1"
COMPLETED_JOBS_S = 7 * 86400.0
"""Age up to which finished jobs are searched."""


class KnownJob(NamedTuple):
    """Facts about a job that does not wait."""

    job: str
    state: str
    said: str
    drone: str = ""
    class_id: str = ""
    ended_at: float = 0.0
    run_s: float | None = None


def known_job(reader: Reader, views: Views, classes: Sequence[JobClass], title: str, now: float) -> KnownJob | None:
    """Return a job that runs, is held, or is done; None if the record does not know it."""
    job = parse_job_id(title)
    view = views.overlay.view
    if job is None or view is None:
        return None
    for slot in view.slots:
        if holds_job(slot.job_ids, job):
            since = f" since {formatting.iso(slot.begun_at)}" if slot.begun_at else ""
            said = f"runs in drone {slot.drone_id}{since}; `provisioner drones show {slot.drone_id}` tells its life"
            return KnownJob(title, "running", said, drone=slot.drone_id)
    for each in classes:
        if holds_job(each.running_ids, job):
            return KnownJob(title, "running", "runs, but in no drone of this controller", class_id=each.id)
        if holds_job(each.held_ids, job):
            said = "is held: nothing is started for it. `condor_q -hold` tells why, `condor_release` lets it wait again"
            return KnownJob(title, "held", said, class_id=each.id)
    for done in reversed(reader.completions(now - COMPLETED_JOBS_S, now + COMPLETED_JOBS_S)):
        if holds_job(done.job_id, job):
            where = f" in drone {done.drone_id}" if done.drone_id else ""
            ran = formatting.seconds(round(done.run_s))
            said = f"is done since {formatting.iso(done.ended_at)}: it ran for {ran}{where}"
            return KnownJob(title, "done", said, done.drone_id or "", ended_at=done.ended_at, run_s=done.run_s)
    return None


def job_document(known: KnownJob) -> out.Document:
    """Return the document of ``explain job`` for a job that does not wait."""
    columns = (
        out.text("job", "Id, as it was asked for.", level=0),
        out.text("state", "State at the newest look.", level=0, choices=("running", "held", "done")),
        out.words("said", "The same in words, with what to do.", head="which", least=30),
        out.text("drone", "Drone that it runs or ran in; empty: none of this controller.", level=0),
        out.text("class", "Its class; empty: unknown.", "class_id"),
        out.time_at("ended_at", "When it was done."),
        out.span_s("run_s", "How long its last run took, seconds; null: it is not done."),
    )
    facts = out.Listing("", columns, [known], lambda k: k.job)
    return out.Document(JOB_SCHEMA, facts, scope=f"job {formatting.sanitize(known.job, 80)}")


class TypeFit(NamedTuple):
    """Fit of a class to a drone type. ``misfit`` is the first dimension that fails; None: it fits."""

    kind: DroneType
    misfit: UnmetRequirement | None
    live: int


def class_document(reader: Reader, views: Views, job: JobClass, title: str, now: float) -> out.Document:
    """Return the document of ``explain class`` and ``explain job``."""
    from provisioner.planner.matching import unmet_requirement

    plan, live = newest_plan(reader), reader.drones()
    reasons = (*reasons_for_all(plan), *reasons_by_class(plan).get(job.id, ()))
    row = class_row(job, views.types, reasons, sum(d.for_class == job.id for d in live))
    if job.invalid and not reasons:
        reasons = (BadRequest(job.invalid),)
    fits = [TypeFit(t, unmet_requirement(job, t), sum(d.type == t.key for d in live)) for t in views.types]
    fits.sort(key=lambda f: (f.misfit is not None, f.kind.price, f.kind.key))
    when = f"tick {plan.tick}, {formatting.ago(plan.at, now)} ago" if plan else "no plan is on record yet"
    categories = tuple(formatting.Category)
    reason_columns = (
        out.text("category", "Category of the reason.", formatting.category, level=0, choices=categories),
        out.words("text", "In words.", formatting.describe, head="WHY", least=30),
        out.data("reason", "As data.", out.reason_data),
    )
    return out.Document(
        "provisioner.class/1",
        out.Listing("", out.as_facts(class_columns(now)), [row], lambda r: r.job.id),
        {
            "said": out.Listing("", reason_columns, reasons, lambda r: r.kind),
            "types": out.Listing("", _fit_columns(), fits, lambda f: f.kind.key),
        },
        {"said": f"What the newest plan says ({when})", "types": "Drone types"},
        scope=f"{title}: {why_waiting(row)}",
    )


def _fit_columns() -> tuple[out.Column, ...]:
    def shown(place: int) -> Callable[[TypeFit], str]:
        """Return a function of one of both amounts, which are in the same unit."""
        return lambda f: formatting.amounts(f.misfit.requested, f.misfit.available)[place] if f.misfit else ""

    fits = out.flag("fits", "Could an empty drone of it run one job?", lambda f: f.misfit is None, level=0)
    dimension_doc = "First dimension that fails; empty: none."
    return (
        out.ident("type", "Drone type, as site/name.", "kind.key", least=12),
        fits,
        out.text("dimension", dimension_doc, "misfit.dimension", head="FAILS", least=8),
        out.text("wanted", "What the jobs want there.", "misfit.requested", level=0, least=10, show=shown(0)),
        out.text("offered", "What the type has there.", "misfit.available", level=0, least=10, show=shown(1)),
        out.whole("drones", "Live drones of the type.", "live", level=0),
        out.number("price", "Relative price of a GPU-hour.", "kind.price", level=1),
    )


explain_app = typer.Typer(cls=opt.VerbGroup, add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@explain_app.callback()
def explain() -> None:
    """Explain a job, a drone or a job class.

    Why a job waits, why a drone is in its state and what comes next, how a job class fits each drone type.

    \b
    Examples:
      provisioner explain job 204.17
      provisioner explain drone slot1@gpu07.example.org
      provisioner explain class 12
    """


@explain_app.command("job")
@opt.shared
def explain_job(
    where: opt.Where, show: opt.Show, job_id: Annotated[str, opt.argument("ID", "Id of a job, as 204.17.")]
) -> None:
    """Explain why a job waits, or where it is.

    Of one that waits its class, what the newest plan says of that, and how each drone type fits. Of one that runs or is
    done the drone; one that is held says so.

    \b
    Examples:
      provisioner explain job 204.17
      provisioner explain job schedd.example.org#204.17
      provisioner explain job 17 -o json
    """
    reader = opt.open_record(where)
    out.present(show, lambda: _job_document(reader, job_id))


@explain_app.command("class")
@opt.shared
def explain_class(
    where: opt.Where,
    show: opt.Show,
    class_id: Annotated[str, opt.argument("ID", "Id, as `demand` shows it.", autocompletion=opt.complete_classes)],
) -> None:
    """Explain why the jobs of a class wait.

    Every reason of the newest plan in words, and for each drone type the first dimension that does not fit.

    \b
    Examples:
      provisioner explain class 12
      provisioner explain class 12 -o wide
      provisioner explain class 12 -o json | jq '.types[] | select(.fits)'
    """
    reader = opt.open_record(where)
    out.present(show, lambda: _class_document(reader, class_id))


@explain_app.command("drone")
@opt.shared
def explain_drone(
    where: opt.Where,
    show: opt.Show,
    any_id: Annotated[str, opt.argument("ID", "Any id of a drone.", autocompletion=opt.complete_drones)],
) -> None:
    """Explain why a drone is as it is, as `drones show` does.

    Every step with its reason, how long its state may last, and what happens then.

    \b
    Examples:
      provisioner explain drone kit-x7q2-17
      provisioner explain drone 8812.0
      provisioner explain drone 17 -o json
    """
    reader = opt.open_record(where)
    out.present(show, lambda: drone_document(reader, opt.find_drone(reader, any_id)))


# -------------------------------------------------------------------------------------------------------------- finding


def _job_document(reader: Reader, text: str) -> out.Document:
    views, classes = _views_and_classes(reader)
    job, shown = parse_job_id(text), formatting.sanitize(text, 80)
    if job is None:
        raise opt.VerbError(f"{shown!r} is not a job id: write it as 204.17, 17 or schedd#204.17")
    found = [c for c in classes if holds_job(c.job_ids, job)]
    if len(found) > 1:
        raise opt.VerbError(
            f"job {shown} may be in {len(found)} classes: {opt.named([c.id for c in found])}",
            "say the whole id (schedd#cluster.process), or explain the class",
        )
    if found:
        return class_document(reader, views, found[0], f"job {shown}", time.time())
    known = known_job(reader, views, classes, text.strip(), time.time())
    if known is None:
        raise opt.VerbError(*_unknown_job(shown, views, classes))
    return job_document(known)


def _unknown_job(shown: str, views: Views, classes: list[JobClass]) -> list[str]:
    """Return lines: why the job may be unknown, and which jobs are known."""
    assert views.overlay.view is not None
    when = formatting.ago(views.overlay.view.taken_at, time.time())
    lines = [
        f"job {shown} is unknown: at the newest look, {when} ago, it was neither idle, running nor held, and "
        "it was not done in the last 7 days. It may be too new, removed, or in a queue that is not looked at"
    ]
    if all(kind.gpu_milli for kind in views.types):
        lines.append("jobs that ask for no GPU are not looked at: no drone type without GPUs is configured")
    cut = [c.id for c in classes if "..." in c.job_ids or "\u2026" in c.job_ids]
    if cut:
        lines.append(f"the lists of ids are shortened for classes {opt.named(cut)}: it may be in one of them")
    return lines


def _class_document(reader: Reader, class_id: str) -> out.Document:
    from provisioner.planner.demand import headroom_classes

    views, classes = _views_and_classes(reader)
    classes += headroom_classes(views.policy, views.types, time.time())
    for job in classes:
        if job.id == class_id:
            return class_document(reader, views, job, f"class {formatting.sanitize(job.id, 80)}", time.time())
    ids = [c.id for c in classes]
    near = get_close_matches(class_id[:200], ids, n=3, cutoff=0.4) or ids[:3]
    nearest = f"nearest: {opt.named(near)}" if near else "there is none at all"
    raise opt.VerbError(f"no job class {formatting.sanitize(class_id, 80)} in the newest look; {nearest}")


def _views_and_classes(reader: Reader) -> tuple[Views, list[JobClass]]:
    views = reader.views()
    if views is None:
        raise opt.VerbError("no tick is on record yet: `provisioner run` makes the first")
    if views.overlay.view is None:
        fault = formatting.sanitize(views.overlay.fault.message, 200) if views.overlay.fault else "no reason on record"
        raise opt.VerbError(f"the overlay was never seen: {fault}")
    return views, list(views.overlay.view.classes)
