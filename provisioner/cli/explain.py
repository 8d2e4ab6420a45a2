"""``provisioner explain``: why a job waits, why a drone is as it is, how a class fits each drone type."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated

import typer

from provisioner import formatting
from provisioner.cli.drones import HISTORY_SCHEMA, drone_note, history_columns, life_steps
from provisioner.cli.jobs import (
    class_columns,
    class_row,
    newest_plan,
    reasons_by_class,
    reasons_for_all,
    why_waiting,
)
from provisioner.cli.options import (
    Show,
    VerbError,
    VerbGroup,
    Where,
    complete_classes,
    complete_drones,
    find_drone,
    named,
    open_record,
    shared,
)
from provisioner.cli.output import (
    Column,
    Document,
    Listing,
    age_s,
    as_facts,
    data,
    flag,
    number,
    present,
    reason_data,
    span_s,
    text,
    time_at,
    whole,
    words,
)
from provisioner.model import Drone, DroneId, DroneType, JobClass, SitePolicy, UnmetRequirement
from provisioner.reasons import BadRequest
from provisioner.store import Transition, Views
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
    return any(_within_range(job, low, high) for low, high in _ranges(ranges))


def _ranges(ranges: str) -> Iterator[tuple[JobId, JobId]]:
    for piece in ranges.replace("...", "").replace("\u2026", "").split(","):
        found = _JOB_RANGE.fullmatch(piece)
        if found is None:
            continue
        low = parse_job_id(found[1])
        high = parse_job_id(found[2]) if found[2] else low
        if low is not None and high is not None:
            yield low, high


def _within_range(job: JobId, low: JobId, high: JobId) -> bool:
    queue, cluster, proc = job
    if queue and low[0] and queue != low[0]:
        return False
    if proc < 0 and low[2] >= 0:
        return low[1] <= cluster <= high[1]
    return low[1:] <= (cluster, proc) <= high[1:]


JOB_SCHEMA = "provisioner.job/1"
COMPLETED_JOBS_S = 7 * 86400.0
"""Age up to which finished jobs are searched."""


@dataclass(frozen=True, slots=True)
class KnownJob:
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


def job_document(known: KnownJob) -> Document:
    """Return the document of ``explain job`` for a job that does not wait."""
    columns = (
        text("job", "Id, as it was asked for.", level=0),
        text("state", "State at the newest look.", level=0, choices=("running", "held", "done")),
        words("said", "The same in words, with what to do.", head="which", least=30),
        text("drone", "Drone that it runs or ran in; empty: none of this controller.", level=0),
        text("class", "Its class; empty: unknown.", "class_id"),
        time_at("ended_at", "When it was done."),
        span_s("run_s", "How long its last run took, seconds; null: it is not done."),
    )
    facts = Listing("", columns, [known], lambda k: k.job)
    return Document(JOB_SCHEMA, facts, scope=f"job {formatting.sanitize(known.job, 80)}")


CLASS_SCHEMA = "provisioner.class/1"


@dataclass(frozen=True, slots=True)
class TypeFit:
    """Fit of a class to a drone type. ``misfit`` is the first dimension that fails; None: it fits."""

    kind: DroneType
    misfit: UnmetRequirement | None
    live: int


def class_document(reader: Reader, views: Views, job: JobClass, title: str, now: float) -> Document:
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
        text("category", "Category of the reason.", formatting.category, level=0, choices=categories),
        words("text", "In words.", formatting.describe, head="WHY", least=30),
        data("reason", "As data.", reason_data),
    )
    return Document(
        CLASS_SCHEMA,
        Listing("", as_facts(class_columns(now)), [row], lambda r: r.job.id),
        {
            "said": Listing("", reason_columns, reasons, lambda r: r.kind),
            "types": Listing("", _fit_columns(), fits, lambda f: f.kind.key),
        },
        {"said": f"What the newest plan says ({when})", "types": "Drone types"},
        scope=f"{title}: {why_waiting(row)}",
    )


def _fit_columns() -> tuple[Column, ...]:
    def shown(place: int) -> Callable[[TypeFit], str]:
        """Return a function of one of both amounts, which are in the same unit."""
        return lambda f: formatting.amounts(f.misfit.requested, f.misfit.available)[place] if f.misfit else ""

    dimension_doc = "First dimension that fails; empty: none."
    return (
        text("type", "Drone type, as site/name.", "kind.key", level=0, least=12, tail=True),
        flag(
            "fits",
            "Could an empty drone of it run one job?",
            lambda f: f.misfit is None,
            level=0,
            tint={True: "green"},
        ),
        text("dimension", dimension_doc, "misfit.dimension", head="FAILS", least=8),
        text("wanted", "What the jobs want there.", "misfit.requested", level=0, least=10, show=shown(0)),
        text("offered", "What the type has there.", "misfit.available", level=0, least=10, show=shown(1)),
        whole("drones", "Live drones of the type.", "live", level=0),
        number("price", "Relative price of a GPU-hour.", "kind.price", level=1),
    )


DRONE_EXPLAINED_SCHEMA = "provisioner.drone-explained/1"


@dataclass(frozen=True, slots=True)
class ExplainedDrone:
    """A drone, its newest step, and the limit of its state."""

    drone: Drone
    newest: Transition | None
    limit: str
    """Name of the policy setting that limits the state; empty: ended."""
    limit_s: float | None
    """None: without limit, or not known."""
    then: str
    by: str = ""
    """Source of the limit of an idle drone, in words."""


def explained_drone_document(reader: Reader, drone_id: DroneId, now: float) -> Document:
    """Return the document of ``explain drone``."""
    drone = reader.drone(drone_id)
    if drone is None:
        raise VerbError(f"drone {drone_id} is no longer on record")
    history = reader.history(drone.id)
    row = _explained_drone(drone, history[-1] if history else None, reader.views())
    return Document(
        DRONE_EXPLAINED_SCHEMA,
        Listing("", _explained_facts(now), [row], lambda r: r.drone.id),
        {"history": Listing(HISTORY_SCHEMA, history_columns(now), life_steps(history), lambda s: s[0].drone_id)},
        {"history": "Life"},
    )


def _explained_drone(drone: Drone, newest: Transition | None, views: Views | None) -> ExplainedDrone:
    from provisioner.planner.lifecycle import STATE_RULES

    stage = STATE_RULES.get(drone.state)
    if stage is None:
        return ExplainedDrone(drone, newest, "", None, "")
    limit_s, by = _limit_s(drone, stage.limit, views)
    then = f"{_ACTION_WORDS[stage.then.value]}; it would end as {(drone.leaving or stage.ends_as).value}"
    return ExplainedDrone(drone, newest, stage.limit, limit_s, then if limit_s else "", by)


_ACTION_WORDS = {
    "forget": "the record of it ends",
    "stop": "the site is asked to end it",
    "drain": "the pool is asked to let it go",
    "insist": "the site is asked again, at last without notice",
}


def _limit_s(drone: Drone, limit: str, views: Views | None) -> tuple[float | None, str]:
    """Return the limit in force at the newest tick (None for none), and where it comes from if that is no setting."""
    if views is None:
        return None, ""
    match limit:
        case "walltime_s":
            return next((t.walltime_s or None for t in views.types if t.key == drone.type), None), ""
        case "idle_timeout_s":
            from provisioner.planner.retirement import idle_limit

            limit_s, by = idle_limit(drone, views.policy, views.estimates)
            return limit_s, formatting.IDLE_LIMIT_WORDS.get(by, "")
        case _:
            policy = views.policy.sites.get(drone.site, SitePolicy(drone.site))
            return float(getattr(policy, limit)), ""


def _explained_facts(now: float) -> tuple[Column, ...]:
    place_doc = "The site's name of its place there; empty: unknown."
    return (
        text("id", "Our id.", "drone.id", head="drone"),
        text("type", "Drone type, as site/name.", "drone.type", head="type"),
        text("state", "State.", "drone.state", head="state"),
        text("meaning", "What the state means.", lambda e: formatting.STATE_WORDS[e.drone.state], head="means"),
        text(
            "text",
            "Why it is in its state, in words.",
            lambda e: formatting.describe(e.newest.reason) if e.newest else "",
            head="because",
        ),
        data("reason", "Why, as data.", "newest.reason", convert=reason_data, null=True),
        age_s("for_s", "Time in this state, seconds.", "drone.since", now, head="for"),
        text("limit", "Setting that limits the state; empty: it has ended."),
        number("limit_s", "Its value, seconds; null: no limit.", null=True, head="may last", show=_limit_words),
        text("limit_by", "Where the limit of an idle drone comes from, in words; empty: the setting.", "by"),
        text("then", "What happens after that.", head="and then"),
        text("for_class", "Job class that it was started for.", "drone.for_class", head="started for class"),
        text("note", "What else is worth knowing.", lambda e: drone_note(e.drone, now), head="note"),
        text("remote_id", "The site's id.", "drone.remote_id", head="id at the site"),
        text("node", "Node that it runs on; empty: unknown.", "drone.node", head="node"),
        text("site_slot", place_doc, "drone.site_slot", head="slot at the site"),
        text("slot", "The pool's name of its slot.", "drone.slot", head="slot in the pool"),
    )


def _limit_words(row: ExplainedDrone) -> str:
    if not row.limit:
        return "-"
    if not row.limit_s:
        return f"no limit known ({row.limit})"
    return f"{formatting.seconds(row.limit_s)} ({row.by or row.limit})"


explain_app = typer.Typer(cls=VerbGroup, add_completion=False, rich_markup_mode=None, no_args_is_help=True)


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
@shared
def explain_job(
    where: Where, show: Show, job_id: Annotated[str, typer.Argument(metavar="ID", help="Id of a job, as 204.17.")]
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
    reader = open_record(where)
    present(show, lambda: _job_document(reader, job_id))


@explain_app.command("class")
@shared
def explain_class(
    where: Where,
    show: Show,
    class_id: Annotated[
        str, typer.Argument(metavar="ID", help="Id, as `demand` shows it.", autocompletion=complete_classes)
    ],
) -> None:
    """Explain why the jobs of a class wait.

    Every reason of the newest plan in words, and for each drone type the first dimension that does not fit.

    \b
    Examples:
      provisioner explain class 12
      provisioner explain class 12 -o wide
      provisioner explain class 12 -o json | jq '.types[] | select(.fits)'
    """
    reader = open_record(where)
    present(show, lambda: _class_document(reader, class_id))


@explain_app.command("drone")
@shared
def explain_drone(
    where: Where,
    show: Show,
    any_id: Annotated[str, typer.Argument(metavar="ID", help="Any id of a drone.", autocompletion=complete_drones)],
) -> None:
    """Explain why a drone is as it is.

    Why it is in its state, how long that may last, and what happens then.

    \b
    Examples:
      provisioner explain drone kit-x7q2-17
      provisioner explain drone 8812.0
      provisioner explain drone 17 -o json
    """
    reader = open_record(where)
    present(show, lambda: explained_drone_document(reader, find_drone(reader, any_id), time.time()))


# -------------------------------------------------------------------------------------------------------------- finding


def _job_document(reader: Reader, text: str) -> Document:
    views, classes = _views_and_classes(reader)
    job, shown = parse_job_id(text), formatting.sanitize(text, 80)
    if job is None:
        raise VerbError(f"{shown!r} is not a job id: write it as 204.17, 17 or schedd#204.17")
    found = [c for c in classes if holds_job(c.job_ids, job)]
    if len(found) > 1:
        raise VerbError(
            f"job {shown} may be in {len(found)} classes: {named([c.id for c in found])}",
            "say the whole id (schedd#cluster.process), or explain the class",
        )
    if found:
        return class_document(reader, views, found[0], f"job {shown}", time.time())
    known = known_job(reader, views, classes, text.strip(), time.time())
    if known is None:
        raise VerbError(*_unknown_job(text, views, classes))
    return job_document(known)


def _unknown_job(text: str, views: Views, classes: list[JobClass]) -> list[str]:
    """Return lines: why the job may be unknown, and which jobs are known."""
    assert views.overlay.view is not None
    when = formatting.ago(views.overlay.view.taken_at, time.time())
    lines = [
        f"job {formatting.sanitize(text, 80)} is unknown: at the newest look, {when} ago, it was neither idle, running "
        "nor held, and it was not done in the last 7 days. It may be too new, removed, or in a queue that is not "
        "looked at"
    ]
    if not any(not kind.gpu_milli for kind in views.types):
        lines.append("jobs that ask for no GPU are not looked at: no drone type without GPUs is configured")
    cut = [c.id for c in classes if "..." in c.job_ids or "\u2026" in c.job_ids]
    if cut:
        lines.append(f"the lists of ids are shortened for classes {named(cut)}: it may be in one of them")
    known = [f"{c.id} ({formatting.sanitize(c.job_ids, 40)})" for c in classes if c.job_ids]
    if known:
        lines.append(f"classes with idle jobs: {named(known)}")
    return lines


def _class_document(reader: Reader, class_id: str) -> Document:
    from provisioner.planner.demand import headroom_classes

    views, classes = _views_and_classes(reader)
    classes += headroom_classes(views.policy, views.types, time.time())
    for job in classes:
        if job.id == class_id:
            return class_document(reader, views, job, f"class {formatting.sanitize(job.id, 80)}", time.time())
    ids = [c.id for c in classes]
    near = get_close_matches(class_id[:200], ids, n=3, cutoff=0.4) or ids[:3]
    nearest = f"nearest: {named(near)}" if near else "there is none at all"
    raise VerbError(f"no job class {formatting.sanitize(class_id, 80)} in the newest look; {nearest}")


def _views_and_classes(reader: Reader) -> tuple[Views, list[JobClass]]:
    views = reader.views()
    if views is None:
        raise VerbError("no tick is on record yet: `provisioner run` makes the first")
    if views.overlay.view is None:
        fault = formatting.sanitize(views.overlay.fault.message, 200) if views.overlay.fault else "no reason on record"
        raise VerbError(f"the overlay was never seen: {fault}")
    return views, list(views.overlay.view.classes)
