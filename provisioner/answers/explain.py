"""Explanations of one job and of one job class: where it is, or why it waits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, NamedTuple

from provisioner import descriptions, formatting
from provisioner.answers.columns import (
    Answer,
    Document,
    Listing,
    ago,
    as_facts,
    data,
    flag,
    ident,
    now,
    number,
    reason_data,
    span_s,
    text,
    time_at,
    whole,
    words,
)
from provisioner.answers.demand import (
    CLASS_COLUMNS,
    REASON_COLUMNS,
    ClassRow,
    class_rows,
    why_waiting,
)
from provisioner.answers.drones import DroneQuery, show_drone
from provisioner.answers.errors import VerbError, named
from provisioner.answers.lookup import class_names, find_class, newest_plan, things_of_id
from provisioner.answers.query import Query, question, subject
from provisioner.answers.services import ServiceQuery, explain_service
from provisioner.answers.sites import SiteQuery, show_site
from provisioner.answers.usage import USE_COLUMN
from provisioner.descriptions import ClassNames
from provisioner.keys import TypeKey
from provisioner.model import (
    CompletedJob,
    DroneType,
    JobClass,
    OverlayView,
    Plan,
    Snapshot,
    UnmetRequirement,
)
from provisioner.reasons import (
    BadRequest,
    PlannerFailed,
    Reason,
    RequestAdvice,
    StartOutcome,
)
from provisioner.store import PastClass, Views
from provisioner.store.measures import DroneCount, reasons_by_class
from provisioner.store.reader import Reader

CLASS_SCHEMA = "provisioner.class/1"


_JOB = r"(?:([^#\s,]+)#)?(\d+)(?:\.(\d+))?"
_JOB_ID = re.compile(_JOB)
_JOB_RANGE = re.compile(rf"{_JOB}(?:\s*-\s*{_JOB})?")

JobId = tuple[str, int, int]
"""Queue (schedd) or empty, cluster, process; -1 where an id has no process part."""


def parse_job_id(text: str) -> JobId | None:
    """Return a job id; None if it is none."""
    found = _JOB_ID.fullmatch(text.strip())
    if found is None or len(text) > 300:
        return None
    queue, cluster, proc = found.groups()
    return queue or "", int(cluster), int(proc or -1)


def holds_job(ranges: str, job: JobId) -> bool:
    """Return True if ``job`` is in ``ranges``; without process it matches any process, without queue any queue."""
    asked_queue, cluster, proc = job
    for found in _JOB_RANGE.finditer(ranges):
        queue, low_cluster, low_proc, _, high_cluster, high_proc = found.groups()
        if high_cluster is None:
            high_cluster = low_cluster
            high_proc = low_proc
        low = (int(low_cluster), int(low_proc or -1))
        high = (int(high_cluster), int(high_proc or -1))
        if asked_queue and queue and asked_queue != queue:
            continue
        if proc < 0 and low_proc is not None:
            low = (low[0], -1)
            high = (high[0], -1)
        if low <= (cluster, proc) <= high:
            return True
    return False


COMPLETED_JOBS_S = 7 * 86400.0


class KnownJob(NamedTuple):
    """Facts about a job that does not wait."""

    job: str
    state: str
    said: str
    drone: str = ""
    class_id: str = ""
    ended_at: float = 0.0
    run_s: float | None = None


def known_job(
    reader: Reader, views: Views, classes: Sequence[JobClass], title: str
) -> KnownJob | None:
    """Return a job that runs, is held, or is done; None if the record does not know it."""
    job = parse_job_id(title)
    view = views.overlay.view
    if job is None or view is None:
        return None
    for slot in reader.slots():
        if holds_job(slot.job_ids, job):
            since = f" since {formatting.iso(slot.begun_at)}" if slot.begun_at else ""
            said = f"runs in drone {slot.drone_id}{since}; `provisioner drones show {slot.drone_id}` shows its steps"
            return KnownJob(title, "running", said, drone=slot.drone_id)
    for each in classes:
        if holds_job(each.running_ids, job):
            return KnownJob(
                title, "running", "runs, but in no drone of this controller", class_id=each.id
            )
        if holds_job(each.held_ids, job):
            said = "is held: nothing is started for it. `condor_q -hold` tells why, `condor_release` lets it wait again"
            return KnownJob(title, "held", said, class_id=each.id)
    for done in reversed(_done_jobs(reader, job)):
        if holds_job(done.job_id, job):
            where = f" in drone {done.drone_id}" if done.drone_id else ""
            ran = formatting.seconds(round(done.run_s))
            said = f"is done since {formatting.iso(done.ended_at)}: it ran for {ran}{where}"
            return KnownJob(
                title, "done", said, done.drone_id or "", ended_at=done.ended_at, run_s=done.run_s
            )
    return None


def _done_jobs(reader: Reader, job: JobId) -> list[CompletedJob]:
    """Return the jobs on record that have the cluster of an id, or are routed from one that has it, newest last."""
    return reader.completions(now() - COMPLETED_JOBS_S, now() + COMPLETED_JOBS_S, job[1])


def _routed_copies(
    reader: Reader, view: OverlayView | None, job: JobId
) -> Iterator[tuple[str, str]]:
    """Yield the ids of a job and of a routed copy of it: those in the queue, then those that are done."""
    known = [*view.routed.items()] if view is not None else []
    known += [(each.routed_from, each.job_id) for each in reversed(_done_jobs(reader, job))]
    return ((source, copy) for source, copy in known if holds_job(source, job))


JOB_FACTS = (
    text("job", "Id as requested.", level=0),
    text("state", "State at the newest poll.", level=0, choices=("running", "held", "done")),
    words("said", "State in words, with the remedy.", head="which", least=30),
    text("drone", "Drone that it runs or ran in; empty: none of this controller.", level=0),
    text("class", "Its class; empty: unknown.", "class_id"),
    time_at("ended_at", "When it was done."),
    span_s("run_s", "How long its last run took, seconds; null: it is not done."),
)


def job_document(known: KnownJob) -> Document:
    """Return the document of ``explain job`` for a job that does not wait."""
    return Document(
        "provisioner.job/1",
        JOB_FACTS,
        known,
        name=known.job,
        scope=f"job {formatting.sanitize(known.job, 80)}",
    )


class TypeFit(NamedTuple):
    """Fit of a class to a drone type. ``misfit`` is the first dimension that fails; None: it fits."""

    kind: DroneType
    misfit: UnmetRequirement | None
    live: int


def _amount(place: int) -> Callable[[TypeFit], str]:
    return lambda f: (
        formatting.amounts(f.misfit.requested, f.misfit.available)[place] if f.misfit else ""
    )


FIT_COLUMNS = (
    ident("type", "Drone type, as site/name.", "kind.key", least=12),
    flag(
        "fits",
        "Whether an empty drone of this type can run one job.",
        lambda f: f.misfit is None,
        level=0,
    ),
    text(
        "dimension",
        "First dimension that fails; empty: none.",
        "misfit.dimension",
        head="FAILS",
        least=8,
    ),
    text(
        "wanted",
        "Request of the jobs in this dimension.",
        "misfit.requested",
        level=0,
        least=10,
        show=_amount(0),
    ),
    text(
        "offered",
        "Offer of the type in this dimension.",
        "misfit.available",
        level=0,
        least=10,
        show=_amount(1),
    ),
    whole("drones", "Live drones of the type.", "live", level=0),
    number("price", "Relative price of a GPU-hour.", "kind.price", level=1),
)
START_OUTCOMES = tuple(StartOutcome)
ADVICE_COLUMNS = (
    words(
        "text",
        "The change and its effect, or why no change helps.",
        descriptions.advise,
        head="ADVICE",
        least=30,
    ),
    text("dimension", "What to change; empty: nothing. no-*: drop the requirement `requested`."),
    text("requested", "Present request of the jobs."),
    text("advised", "Smaller request that would start sooner."),
    text(
        "outcome",
        "Forecast without a change: starts, waits, or never.",
        "now.outcome",
        choices=START_OUTCOMES,
    ),
    span_s(
        "wait_s",
        "Expected time until the start without a change, seconds; null: unknown.",
        "now.wait_s",
    ),
    text(
        "then_outcome",
        "Forecast with the change; empty: no change.",
        "then.outcome",
        choices=("", *START_OUTCOMES),
    ),
    span_s(
        "then_wait_s",
        "Expected time with the change, seconds; null: unknown, or no change.",
        "then.wait_s",
    ),
    data(
        "reason",
        "Reason that holds the jobs back now; null: none.",
        "why",
        null=True,
        convert=reason_data,
    ),
)


def request_advice(
    reader: Reader, snapshot: Snapshot, plan: Plan | None, job: JobClass
) -> list[RequestAdvice]:
    """Return the advice for a waiting class, by the snapshot of the next tick; empty if there is none."""
    from provisioner.planner.advice import advise

    refusals = plan.refusals if plan else ()
    if any(isinstance(each.reason, PlannerFailed) for each in refusals):
        return []
    return [advise(snapshot, job, reader.peak_vram_mib(job))]


def class_document(
    reader: Reader, views: Views, job: JobClass, names: ClassNames, title: str = ""
) -> Document:
    """Return the document of ``explain class`` and ``explain job``, by default with the name of the class as title."""
    from provisioner.planner.demand import UserShares

    plan = newest_plan(reader)
    advice = list[RequestAdvice]()
    turn = None
    snapshot = reader.snapshot() if job.idle else None
    view = snapshot.overlay.view if snapshot is not None else None
    if snapshot is None or view is None:
        (job,) = reader.with_refusals([job])
    else:
        job = next((each for each in view.classes if each.id == job.id), job)
        advice = request_advice(reader, snapshot, plan, job)
        if job.waiting:
            slots = {slot.drone_id: slot for slot in view.slots}
            drones = snapshot.drones.values()
            turn = UserShares.of(view.classes, view.priorities, drones, slots).turn_of(job.owner)
    (row,) = class_rows(views, reasons_by_class(plan), reader.live_by_class([job.id]), names, [job])
    reasons = row.reasons or ([BadRequest(job.invalid)] if job.invalid else [])
    reasons = [*reasons, turn] if turn else reasons
    fits = _type_fits(job, views, reader.live_counts())
    when = f"tick {plan.tick}, {ago(plan.at)} ago" if plan else "no plan is on record yet"
    said = f"What the newest plan says ({when})"
    scope = f"{title or f'class {row.name}'}: {why_waiting(row)}"
    return _class_parts(row, reasons, advice, fits, said, scope)


def past_class_document(
    reader: Reader, views: Views, past: PastClass, names: ClassNames
) -> Document:
    """Return the document of ``explain class`` for a class that has left the queue."""
    job = replace(past.job, waiting=0, fresh=0, running=0, held=0, oldest_at=0.0, job_ids="")
    (row,) = class_rows(views, {}, reader.live_by_class([job.id]), names, [job])
    reasons = [past.reason] if past.reason else []
    scope = f"class {row.name} has left the queue: last seen {ago(past.seen_at)} ago"
    if found := reader.drones_for(past.id):
        drones, newest = found
        scope += f"; {formatting.count(drones, 'drone')} on record for it, the newest {newest.id}"
    fits = _type_fits(job, views, reader.live_counts())
    said = "What the last plan with waiting jobs of it said"
    return _class_parts(row, reasons, (), fits, said, scope, past.seen_at)


def _type_fits(job: JobClass, views: Views, live: Iterable[DroneCount]) -> list[TypeFit]:
    """Return how each drone type fits a class, those that fit first."""
    from provisioner.planner.matching import unmet_requirement

    of_type = Counter[TypeKey]()
    for each in live:
        of_type[each.type] += each.drones
    fits = [TypeFit(t, unmet_requirement(job, t), of_type[t.key]) for t in views.types]
    return sorted(fits, key=lambda f: (f.misfit is not None, f.kind.price, f.kind.key))


def _class_parts(
    row: ClassRow,
    reasons: Sequence[Reason],
    advice: Sequence[RequestAdvice],
    fits: Sequence[TypeFit],
    said: str,
    scope: str,
    last_seen_at: float = 0.0,
) -> Document:
    columns = [column for column in CLASS_COLUMNS if column is not USE_COLUMN]
    last_seen = time_at(
        "last_seen_at",
        "When a class that has left the queue was last seen.",
        lambda _: last_seen_at,
        level=0 if last_seen_at else 2,
        head="last seen",
    )
    return Document(
        CLASS_SCHEMA,
        (*as_facts(columns), last_seen),
        row,
        {
            "said": Listing("", REASON_COLUMNS, reasons, title=said),
            "advice": Listing(
                "", ADVICE_COLUMNS, advice, title="What would start it soonest" if advice else ""
            ),
            "types": Listing("", FIT_COLUMNS, fits, title="Drone types"),
        },
        name=row.name,
        scope=scope,
    )


def _sample_class() -> Document:
    row = ClassRow(JobClass("1", 1000, 1, 1), "", "", (), 0, dict)
    return _class_parts(row, (), (), (), "", "")


class JobQuery(Query):
    """Job."""

    id: Annotated[str, subject("ID", "As 204.17.")]


@question(
    "explain job",
    "/jobs/{id}",
    lambda: [_sample_class(), job_document(KnownJob("1.0", "running", ""))],
)
def explain_job(reader: Reader, query: JobQuery) -> Document:
    """Explain why a job waits, or where it runs.

    For a waiting job, show its class, the reasons of the newest plan, the one change of its request that would start
    it soonest, and how each drone type fits. For a running or completed job, show the drone.

    \b
    Examples:
      provisioner explain job schedd.example.org#204.17
      provisioner explain job 204.17 -o json | jq -r '.advice[].text'
    """
    return explained_job(reader, query.id)


class ClassQuery(Query):
    """Job class."""

    id: Annotated[str, subject("ID", "Id as in `provisioner demand`, or its first characters.")]


@question("explain class", "/classes/{id}", lambda: [_sample_class()])
def explain_class(reader: Reader, query: ClassQuery) -> Document:
    """Explain why the jobs of a class wait.

    Shows all reasons of the newest plan, the one change of the request that would start a job soonest, and for each
    drone type the first dimension that does not fit. For a class that has left the queue, shows when it was last seen
    and its last reason.

    \b
    Examples:
      provisioner explain class 3f2a -o json | jq '.types[] | select(.fits)'
    """
    return explained_class(reader, query.id)


class AnyIdQuery(Query):
    """Drone, job, job class, site or service."""

    id: Annotated[
        str, subject("ID", "Id of a drone, job or job class, or name of a site or service.")
    ]


@question(
    "explain id",
    "/explain/{id}",
    lambda: [
        each
        for verb in (show_drone, explain_job, show_site, explain_service)
        for each in verb.samples()
    ],
)
def explain_id(reader: Reader, query: AnyIdQuery) -> Answer:
    """Explain the drone, job, job class, site or service with this id.

    Short form: `provisioner explain ID`.

    \b
    Examples:
      provisioner explain 204.17
    """
    found, lines = things_of_id(
        query.id,
        {
            "explain drone": lambda any_id: show_drone.answer(reader, DroneQuery(id=any_id)),
            "explain job": lambda any_id: explained_job(reader, any_id),
            "explain class": lambda any_id: explained_class(reader, any_id),
            "sites show": lambda any_id: show_site.answer(reader, SiteQuery(id=any_id)),
            "explain service": lambda any_id: explain_service.answer(
                reader, ServiceQuery(id=any_id)
            ),
        },
    )
    if not found:
        raise VerbError(*lines)
    if len(found) > 1:
        shown = formatting.sanitize(query.id, 80)
        choices = (f"provisioner {verb} {shown}" for verb in found)
        raise VerbError(f"`{shown}` means more than one thing. Ask for one of them:", *choices)
    return found.popitem()[1]


def explained_job(reader: Reader, text: str) -> Document:
    """Return the document of ``explain job``. Raises :class:`VerbError` for a job that is not known."""
    views, classes = _views_and_classes(reader)
    names = class_names(reader, views)
    job = parse_job_id(text)
    shown = formatting.sanitize(text, 80)
    if job is None:
        raise VerbError(f"{shown!r} is not a job id: write it as 204.17, 17 or schedd#204.17")
    if (found := _known_document(reader, views, classes, names, text.strip())) is not None:
        return found
    view = views.overlay.view
    for source, copy in _routed_copies(reader, view, job):
        found = _known_document(reader, views, classes, names, copy)
        if found is not None:
            routed = f"job {formatting.sanitize(source)} is routed, and its routed copy counts"
            return replace(found, scope=f"{routed}: {found.scope}")
    known_at = view.completions_at or view.taken_at if view is not None else 0.0
    lines = [
        f"job {shown} is unknown: in the newest poll it was neither idle, running nor held, and it was not done in "
        f"the last 7 days, as far as done jobs are known: up to {formatting.iso(known_at)}, {ago(known_at)} ago. "
        "It may be too new, removed, or in a queue that is not polled"
    ]
    if all(kind.gpu_milli for kind in views.types):
        lines.append(
            "jobs that request no GPU are ignored: no drone type without GPUs is configured"
        )
    if cut := [
        names.short_id(c.id) for c in classes if "..." in c.job_ids or "\u2026" in c.job_ids
    ]:
        lines.append(
            f"the lists of ids are shortened for classes {named(cut)}: it may be in one of them"
        )
    raise VerbError(*lines)


def _known_document(
    reader: Reader, views: Views, classes: Sequence[JobClass], names: ClassNames, text: str
) -> Document | None:
    """Return the document of a job in the newest view or on record; None if neither knows the job."""
    job = parse_job_id(text)
    shown = formatting.sanitize(text, 80)
    if job is None:
        return None
    found = [c for c in classes if holds_job(c.job_ids, job)]
    if len(found) > 1:
        raise VerbError(
            f"job {shown} may be in {len(found)} classes: "
            + named([names.of(each.id) for each in found], "; "),
            "say the whole id (schedd#cluster.process), or explain the class",
        )
    if found:
        title = f"job {shown}{_faults(reader, job)}"
        return class_document(reader, views, found[0], names, title)
    if (known := known_job(reader, views, classes, text)) is not None:
        said = f"{known.said}{_faults(reader, job)}{_unknown_models(views, classes, job)}"
        return job_document(known._replace(said=said))
    return None


def _faults(reader: Reader, job: JobId) -> str:
    """Return the failures of a job on shared GPUs in words; empty if there are none on record."""
    found = [
        each for b in reader.breakers().values() for each in b.faults if holds_job(each.job_id, job)
    ]
    told = (f"{each.cause} in {each.drone_id} at {formatting.iso(each.at)}" for each in found[-3:])
    return f" ({'; '.join(formatting.sanitize(each, 300) for each in told)})" if found else ""


def _unknown_models(views: Views, classes: Sequence[JobClass], job: JobId) -> str:
    """Return the models that a running or held job announces and no service has, in words; empty: none."""
    from provisioner.planner.services import has_model

    served = {model for kind in views.types if kind.server for model in kind.server.models}
    announced = (
        model
        for each in classes
        if holds_job(f"{each.running_ids},{each.held_ids}", job)
        for model in each.inference
    )
    missing = [model for model in announced if not has_model(served, model)]
    return f". It announces {named(missing)}, which no service has" if missing else ""


def explained_class(reader: Reader, any_id: str) -> Document:
    """Return the document of ``explain class``. Raises :class:`VerbError` for a class that is not known."""
    from provisioner.planner.demand import headroom_classes

    views, classes = _views_and_classes(reader)
    classes += headroom_classes(views.policy, views.types, now())
    found = find_class(reader, classes, any_id)
    if isinstance(found, PastClass):
        names = class_names(reader, views, [found])
        return past_class_document(reader, views, found, names)
    return class_document(reader, views, found, class_names(reader, views))


def _views_and_classes(reader: Reader) -> tuple[Views, list[JobClass]]:
    views = reader.views()
    if views is None:
        raise VerbError("no tick is on record yet: `provisioner run` makes the first")
    if views.overlay.view is None:
        raise VerbError("the overlay was never seen: `provisioner status` tells why")
    return views, list(views.overlay.view.classes)
