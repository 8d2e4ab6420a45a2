"""``provisioner demand``, ``explain``, ``jobs`` and ``submit``: why jobs wait, and the jobs of the embedded queue."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from provisioner import descriptions, formatting
from provisioner.cli import options as opt
from provisioner.cli import output as out
from provisioner.cli.drones import as_of, drone_document
from provisioner.cli.usage import USE_COLUMN, RecordedUse, with_use
from provisioner.model import Drone, DroneType, JobClass, Plan, UnmetRequirement
from provisioner.reasons import (
    BadRequest,
    Category,
    NothingFits,
    PlannerFailed,
    Reason,
    RequestAdvice,
    StartOutcome,
)
from provisioner.store import Views
from provisioner.store.measures import reasons_by_class
from provisioner.store.reader import Reader
from provisioner.usage import class_name

DEMAND_SCHEMA = "provisioner.demand/1"
JOBS_SCHEMA = "provisioner.jobs/1"
CLASS_SCHEMA = "provisioner.class/1"
T = TypeVar("T")


class ClassRow(NamedTuple):
    """Job class with the reasons of the newest plan."""

    job: JobClass
    reasons: Sequence[Reason]
    """Weightiest first: what keeps jobs waiting before what is on its way."""
    fits: Sequence[str]
    nearest: str
    """The drone type that fits, cheapest first, or else the one that nearly does."""
    drones: int


def class_rows(
    views: Views | None,
    plan: Plan | None,
    live: Sequence[Drone],
    only: Sequence[JobClass] | None = None,
) -> list[ClassRow]:
    """Return a row per class of the newest overlay view, or for ``only`` some of them, matched with the drone types."""
    from provisioner.planner.matching import unmet_requirement

    if views is None or views.overlay.view is None:
        return []
    of_class = reasons_by_class(plan)
    started, by_price = (
        Counter(d.for_class for d in live),
        sorted(views.types, key=lambda t: (t.price, t.key)),
    )
    rows = []
    for job in views.overlay.view.classes if only is None else only:
        reasons = (*of_class.get("", ()), *of_class.get(job.id, ()))
        fits = [t.key for t in by_price if not job.invalid and unmet_requirement(job, t) is None]
        nearest = next((r.nearest for r in reasons if isinstance(r, NothingFits)), "")
        rows.append(ClassRow(job, reasons, fits, fits[0] if fits else nearest, started[job.id]))
    return rows


NO_PLAN_YET = "no plan on record speaks of it yet"


def why_waiting(row: ClassRow) -> str:
    if row.reasons:
        more = f" (+{len(row.reasons) - 1})" if len(row.reasons) > 1 else ""
        return row.reasons[0].describe() + more
    if row.job.invalid:
        return formatting.sanitize(row.job.invalid, formatting.SHORT_TEXT)
    return NO_PLAN_YET if row.job.waiting or row.job.fresh else "nothing waits"


def _needs(row: ClassRow) -> str:
    job = row.job
    optional = " (optional)" if job.gpu_optional else ""
    parts = [f"{formatting.gpus(job.gpu_milli)} GPU{optional}"] if job.gpu_milli else ["no GPU"]
    if job.vram_mib:
        parts.append(f"VRAM {formatting.size(job.vram_mib)}")
    if job.capability:
        parts.append(f"CC {formatting.capability(job.capability)}")
    if job.driver:
        parts.append(f"CUDA {formatting.driver(job.driver)}")
    return ", ".join([*parts, f"{job.cpus} CPU", formatting.size(job.memory_mib)])


def _reasons_data(row: ClassRow) -> list[Any]:
    return list(map(out.reason_data, row.reasons))


CLASS_COLUMNS = (
    out.ident("id", "Id of the class.", "job.id", head="CLASS", fact="class"),
    out.text("owner", "User or accounting group.", "job.owner", level=0, least=8, fact="owner"),
    out.whole(
        "waiting",
        "Idle jobs that negotiation has left idle.",
        "job.waiting",
        level=0,
        fact="waiting",
    ),
    out.whole(
        "fresh", "Idle jobs not yet negotiated.", "job.fresh", level=1, fact="not yet negotiated"
    ),
    out.whole("running", "Running jobs.", "job.running", level=0, fact="running"),
    out.whole("held", "Held jobs.", "job.held", level=1, fact="held"),
    out.whole(
        "drones", "Live drones that were started for it.", level=0, fact="drones started for it"
    ),
    USE_COLUMN,
    out.age_s(
        "oldest_s",
        "Age of the oldest idle job, seconds; null: none.",
        "job.oldest_at",
        head="OLDEST",
    ),
    out.words("needs", "What one job asks for, in words.", _needs, least=12, fact="needs"),
    out.words("why", "Why it waits, in words.", why_waiting, least=28),
    out.ident(
        "nearest", "Cheapest drone type that fits, or nearly does; may be empty.", level=1, least=10
    ),
    out.items("fits", "Drone types that fit, cheapest first."),
    out.items(
        "reasons", "What the newest plan says of it, as data, weightiest first.", _reasons_data
    ),
    out.whole("gpu_milli", "Thousandths of a GPU per job.", "job.gpu_milli"),
    out.whole("cpus", "CPUs per job.", "job.cpus"),
    out.mib("memory_mib", "Memory per job, MiB.", "job.memory_mib"),
    out.mib("disk_mib", "Disk per job, MiB.", "job.disk_mib"),
    out.mib("vram_mib", "Least VRAM per GPU, MiB; 0: any.", "job.vram_mib"),
    out.whole("capability", "Least CUDA compute capability times 10; 0: any.", "job.capability"),
    out.whole("driver", "Least CUDA version times 1000 (12040 is 12.4); 0: any.", "job.driver"),
    out.text("arch", "CPU architecture; empty: any.", "job.arch"),
    out.span_s(
        "walltime_s", "Its own limit, seconds; null: none.", lambda row: row.job.walltime_s or None
    ),
    out.whole("priority", "Priority.", "job.priority"),
    out.text(
        "job_ids", "Ids of the idle jobs as ranges.", "job.job_ids", level=1, least=12, fact="jobs"
    ),
)


@out.answering
def demand(
    reader: Reader,
    *,
    query: opt.ListQuery,
    waiting: Annotated[bool, opt.switch("Only classes with jobs that wait.", "--waiting")] = False,
) -> out.Listing:
    """List what waits, and why.

    A class is all jobs with identical requirements. The reason is the weightiest that the newest plan has; -o json has
    all of them as data, and `provisioner explain class ID` tells them in words.

    \b
    Examples:
      provisioner demand -o json | jq '.items[] | {id, waiting, why}'
    """
    views = reader.views()
    rows = class_rows(views, newest_plan(reader), reader.drones())
    if waiting:
        rows = [row for row in rows if row.job.waiting or row.job.fresh]
    idle = formatting.count(sum(row.job.waiting + row.job.fresh for row in rows), "idle job")
    classes = formatting.count(len(rows), "class", "classes") + (
        " with waiting jobs" if waiting else ""
    )
    scope = f"{classes}, {idle}, {as_of(reader, views)}"
    columns = with_use(
        CLASS_COLUMNS, RecordedUse(reader, views).by("class"), lambda row: class_name(row.job)
    )
    return out.picked(
        out.Listing(DEMAND_SCHEMA, columns, rows, lambda row: row.job.id, scope), query
    )


def newest_plan(reader: Reader) -> Plan | None:
    plans = reader.plans(limit=1)
    return plans[-1] if plans else None


_JOB = r"(?:([^#\s,]+)#)?(\d+)(?:\.(\d+))?"
_JOB_ID, _JOB_RANGE = re.compile(_JOB), re.compile(rf"{_JOB}(?:\s*-\s*{_JOB})?")

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
            high_cluster, high_proc = low_cluster, low_proc
        low, high = (
            (int(low_cluster), int(low_proc or -1)),
            (int(high_cluster), int(high_proc or -1)),
        )
        if asked_queue and queue and asked_queue != queue:
            continue
        if proc < 0 and low_proc is not None:
            low, high = (low[0], -1), (high[0], -1)
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
    for slot in view.slots:
        if holds_job(slot.job_ids, job):
            since = f" since {formatting.iso(slot.begun_at)}" if slot.begun_at else ""
            said = f"runs in drone {slot.drone_id}{since}; `provisioner drones show {slot.drone_id}` tells its life"
            return KnownJob(title, "running", said, drone=slot.drone_id)
    for each in classes:
        if holds_job(each.running_ids, job):
            return KnownJob(
                title, "running", "runs, but in no drone of this controller", class_id=each.id
            )
        if holds_job(each.held_ids, job):
            said = "is held: nothing is started for it. `condor_q -hold` tells why, `condor_release` lets it wait again"
            return KnownJob(title, "held", said, class_id=each.id)
    for done in reversed(
        reader.completions(out.now() - COMPLETED_JOBS_S, out.now() + COMPLETED_JOBS_S, job[1])
    ):
        if holds_job(done.job_id, job):
            where = f" in drone {done.drone_id}" if done.drone_id else ""
            ran = formatting.seconds(round(done.run_s))
            said = f"is done since {formatting.iso(done.ended_at)}: it ran for {ran}{where}"
            return KnownJob(
                title, "done", said, done.drone_id or "", ended_at=done.ended_at, run_s=done.run_s
            )
    return None


JOB_FACTS = (
    out.text("job", "Id, as it was asked for.", level=0),
    out.text("state", "State at the newest look.", level=0, choices=("running", "held", "done")),
    out.words("said", "The same in words, with what to do.", head="which", least=30),
    out.text("drone", "Drone that it runs or ran in; empty: none of this controller.", level=0),
    out.text("class", "Its class; empty: unknown.", "class_id"),
    out.time_at("ended_at", "When it was done."),
    out.span_s("run_s", "How long its last run took, seconds; null: it is not done."),
)


def job_document(known: KnownJob) -> out.Document:
    """Return the document of ``explain job`` for a job that does not wait."""
    return out.Document(
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
    out.ident("type", "Drone type, as site/name.", "kind.key", least=12),
    out.flag(
        "fits", "Could an empty drone of it run one job?", lambda f: f.misfit is None, level=0
    ),
    out.text(
        "dimension",
        "First dimension that fails; empty: none.",
        "misfit.dimension",
        head="FAILS",
        least=8,
    ),
    out.text(
        "wanted",
        "What the jobs want there.",
        "misfit.requested",
        level=0,
        least=10,
        show=_amount(0),
    ),
    out.text(
        "offered",
        "What the type has there.",
        "misfit.available",
        level=0,
        least=10,
        show=_amount(1),
    ),
    out.whole("drones", "Live drones of the type.", "live", level=0),
    out.number("price", "Relative price of a GPU-hour.", "kind.price", level=1),
)
REASON_COLUMNS = (
    out.text(
        "category",
        "Category of the reason.",
        lambda reason: reason.category,
        level=0,
        choices=tuple(Category),
    ),
    out.words("text", "In words.", lambda reason: reason.describe(), head="WHY", least=30),
    out.data("reason", "As data.", out.reason_data),
)
START_OUTCOMES = tuple(StartOutcome)
ADVICE_COLUMNS = (
    out.words(
        "text",
        "The change and what it wins, or why none helps.",
        descriptions.advise,
        head="ADVICE",
        least=30,
    ),
    out.text(
        "dimension", "What to change; empty: nothing. no-*: drop the requirement `requested`."
    ),
    out.text("requested", "What the jobs ask for now."),
    out.text("advised", "What to ask for instead, never more."),
    out.text(
        "outcome",
        "Without a change: starts, waits for a place, or never.",
        "now.outcome",
        choices=START_OUTCOMES,
    ),
    out.span_s(
        "wait_s",
        "Expected time until the start without a change, seconds; null: unknown.",
        "now.wait_s",
    ),
    out.text(
        "then_outcome",
        "The same with the change; empty: no change.",
        "then.outcome",
        choices=("", *START_OUTCOMES),
    ),
    out.span_s(
        "then_wait_s",
        "Expected time with the change, seconds; null: unknown, or no change.",
        "then.wait_s",
    ),
    out.data(
        "reason",
        "What holds the jobs back now; null: nothing.",
        "why",
        null=True,
        convert=out.reason_data,
    ),
)


def request_advice(reader: Reader, plan: Plan | None, job: JobClass) -> list[RequestAdvice]:
    """Return the advice for a waiting class, by the snapshot of the next tick; empty if there is none."""
    from provisioner.planner.advice import advise

    failed = any(
        isinstance(refusal.reason, PlannerFailed) for refusal in (plan.refusals if plan else ())
    )
    if failed or not (job.waiting or job.fresh):
        return []
    snapshot = reader.snapshot()
    return [advise(snapshot, job, reader.peak_vram_mib(job))] if snapshot is not None else []


def class_document(reader: Reader, views: Views, job: JobClass, title: str) -> out.Document:
    """Return the document of ``explain class`` and ``explain job``."""
    from provisioner.planner.demand import UserShares
    from provisioner.planner.matching import unmet_requirement

    plan, live = newest_plan(reader), reader.drones()
    advice = request_advice(reader, plan, job)
    (row,) = class_rows(views, plan, live, [job])
    reasons = row.reasons or ([BadRequest(job.invalid)] if job.invalid else [])
    view = views.overlay.view
    if view is not None and job.waiting:
        slots = {slot.drone_id: slot for slot in view.slots}
        turn = UserShares.of(view.classes, view.priorities, live, slots).turn_of(job.owner)
        reasons = [*reasons, turn] if turn else reasons
    of_type = Counter(drone.type for drone in live)
    fits = [TypeFit(t, unmet_requirement(job, t), of_type[t.key]) for t in views.types]
    fits.sort(key=lambda f: (f.misfit is not None, f.kind.price, f.kind.key))
    when = f"tick {plan.tick}, {out.ago(plan.at)} ago" if plan else "no plan is on record yet"
    return out.Document(
        CLASS_SCHEMA,
        out.as_facts([column for column in CLASS_COLUMNS if column is not USE_COLUMN]),
        row,
        {
            "said": out.Listing(
                "", REASON_COLUMNS, reasons, title=f"What the newest plan says ({when})"
            ),
            "advice": out.Listing(
                "", ADVICE_COLUMNS, advice, title="What would start it soonest" if advice else ""
            ),
            "types": out.Listing("", FIT_COLUMNS, fits, title="Drone types"),
        },
        name=job.id,
        scope=f"{title}: {why_waiting(row)}",
    )


explain_app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@explain_app.callback()
def explain() -> None:
    """Explain a job, a drone or a job class.

    Why a job waits, why a drone is in its state and what comes next, how a job class fits each
    drone type.
    """


@explain_app.command("job")
@out.answering
def explain_job(
    reader: Reader, *, query: opt.Query, job_id: Annotated[str, opt.argument("ID", "As 204.17.")]
) -> out.Document:
    """Explain why a job waits, or where it is.

    Of one that waits its class, what the newest plan says of that, the one change of its request that would start it
    soonest, and how each drone type fits. Of one that runs or is done the drone; one that is held says so.

    \b
    Examples:
      provisioner explain job schedd.example.org#204.17
      provisioner explain job 204.17 -o json | jq -r '.advice[].text'
    """
    return explained_job(reader, job_id)


@explain_app.command("class")
@out.answering
def explain_class(
    reader: Reader,
    *,
    query: opt.Query,
    class_id: Annotated[str, opt.argument("ID", "As in `demand`.")],
) -> out.Document:
    """Explain why the jobs of a class wait.

    Every reason of the newest plan in words, the one change of the request that would start one of the jobs soonest,
    and for each drone type the first dimension that does not fit.

    \b
    Examples:
      provisioner explain class 12 -o json | jq '.types[] | select(.fits)'
    """
    return explained_class(reader, class_id)


@explain_app.command("drone")
@out.answering
def explain_drone(reader: Reader, *, query: opt.Query, any_id: opt.DroneArgument) -> out.Document:
    """Explain why a drone is as it is, as `drones show` does.

    Every step with its reason, how long its state may last, and what happens then.

    \b
    Examples:
      provisioner explain drone 8812.0 -o json
    """
    return drone_document(reader, opt.find_drone(reader, any_id))


def explained_job(reader: Reader, text: str) -> out.Document:
    """Return the document of ``explain job``. Raises :class:`VerbError` for a job that is not known."""
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
        return class_document(reader, views, found[0], f"job {shown}{_faults(reader, job)}")
    if (known := known_job(reader, views, classes, text.strip())) is not None:
        return job_document(known._replace(said=known.said + _faults(reader, job)))
    view = views.overlay.view
    known_at = view.completions_at or view.taken_at if view is not None else 0.0
    lines = [
        f"job {shown} is unknown: at the newest look it was neither idle, running nor held, and it was not done in "
        f"the last 7 days, as far as done jobs are known: up to {formatting.iso(known_at)}, {out.ago(known_at)} ago. "
        "It may be too new, removed, or in a queue that is not looked at"
    ]
    if all(kind.gpu_milli for kind in views.types):
        lines.append(
            "jobs that ask for no GPU are not looked at: no drone type without GPUs is configured"
        )
    if cut := [c.id for c in classes if "..." in c.job_ids or "\u2026" in c.job_ids]:
        lines.append(
            f"the lists of ids are shortened for classes {opt.named(cut)}: it may be in one of them"
        )
    raise opt.VerbError(*lines)


def _faults(reader: Reader, job: JobId) -> str:
    """Return the failures of a job on shared GPUs in words; empty if there are none on record."""
    found = [
        each for b in reader.breakers().values() for each in b.faults if holds_job(each.job_id, job)
    ]
    told = (f"{each.cause} in {each.drone_id} at {formatting.iso(each.at)}" for each in found[-3:])
    return f" ({'; '.join(formatting.sanitize(each, 300) for each in told)})" if found else ""


def explained_class(reader: Reader, class_id: str) -> out.Document:
    """Return the document of ``explain class``. Raises :class:`VerbError` for a class that is not known."""
    from provisioner.planner.demand import headroom_classes

    views, classes = _views_and_classes(reader)
    classes += headroom_classes(views.policy, views.types, out.now())
    for job in classes:
        if job.id == class_id:
            return class_document(reader, views, job, f"class {formatting.sanitize(job.id, 80)}")
    if past := reader.drones_for(class_id):
        count, last = past
        end = f"ended {out.ago(last.ended_at)} ago as" if last.ended_at else "is"
        raise opt.VerbError(
            f"class {formatting.sanitize(class_id, 80)} has no jobs any more: at the newest look none waits, runs or "
            f"is held. {formatting.count(count, 'drone')} on record for it; the newest, {last.id}, {end} "
            f"{last.state.value}",
            f"`provisioner drones show {last.id}` tells its life, `provisioner explain job ID` of a job that is done",
        )
    raise opt.unknown("job class", class_id, [c.id for c in classes], " in the newest look")


def _views_and_classes(reader: Reader) -> tuple[Views, list[JobClass]]:
    views = reader.views()
    if views is None:
        raise opt.VerbError("no tick is on record yet: `provisioner run` makes the first")
    if views.overlay.view is None:
        raise opt.VerbError("the overlay was never seen: `provisioner status` tells why")
    return views, list(views.overlay.view.classes)


QUEUE_TIMEOUT_S = 30.0
QUEUE_STATES = {"idle": "", "running": "green", "done": "", "failed": "red", "held": "yellow"}


def open_queue(where: opt.Where) -> Any:
    """Return the configured overlay, which keeps its own queue. Raises :class:`VerbError` for one that does not."""
    from provisioner.config import load
    from provisioner.loader import AdapterBrokenError, AdapterUnknownError, overlay_adapter

    settings = load(opt.config_path(where))
    with opt.reported(AdapterUnknownError, AdapterBrokenError):
        overlay = overlay_adapter(settings.overlay.adapter)(
            settings.overlay.options, settings.controller
        )
    if not (
        callable(getattr(overlay, "submit", None)) and callable(getattr(overlay, "jobs", None))
    ):
        raise opt.VerbError(
            f"overlay {settings.overlay.adapter} keeps its jobs itself: submit and list them with its own commands",
            "this verb is for the embedded overlay",
        )
    return overlay


def answer_of(work: Coroutine[Any, Any, T]) -> T:
    """Return what the queue answers within :data:`QUEUE_TIMEOUT_S`. Raises :class:`VerbError`."""
    import asyncio
    import sqlite3

    async def in_time() -> T:
        async with asyncio.timeout(QUEUE_TIMEOUT_S):
            return await work

    try:
        with opt.reported(sqlite3.Error, prefix="the queue cannot be used: "):
            return asyncio.run(in_time())
    except TimeoutError:
        late = f"the queue gave no answer within {QUEUE_TIMEOUT_S:g} s"
        raise opt.VerbError(late, code=opt.Exit.TIMED_OUT) from None


QUEUE_COLUMNS = (
    out.whole("id", "Id of the job.", level=0),
    out.text("state", "State.", level=0, choices=tuple(QUEUE_STATES), tint=QUEUE_STATES),
    out.text("owner", "Who submitted it.", level=0, least=8),
    out.gpus("gpu_milli", "Thousandths of a GPU.", head="GPUS"),
    out.whole("cpus", "CPUs.", level=1),
    out.mib("memory_mib", "Memory, MiB.", level=1, head="MEMORY"),
    out.whole("vram_mib", "Least VRAM per GPU, MiB; 0: any."),
    out.age_s("age_s", "Since it was submitted, seconds.", "submitted_at", head="AGE"),
    out.ident("drone", "The drone that runs or ran it.", "drone_id", least=12),
    out.whole("attempts", "How often it was started.", level=1),
    out.whole("exit_code", "Its exit code; null: it has not ended.", null=True, head="EXIT"),
    out.text("command", "The command.", lambda job: " ".join(job.argv), level=0, least=14),
    out.text("message", "What went wrong.", level=1, least=12),
    out.items("argv", "The command, word by word."),
    out.whole("priority", "Higher goes first."),
    out.time_at("submitted_at", "When it was submitted."),
    out.time_at("started_at", "When it was last started."),
    out.time_at("ended_at", "When it ended."),
)


@opt.shared
def jobs(
    query: opt.ListQuery,
    ids: Annotated[list[int] | None, opt.argument("ID", "Only these.")] = None,
    all_: Annotated[bool, opt.switch("Those that have ended, too.", "--all", "-a")] = False,
) -> None:
    """List the jobs of the embedded queue.

    Without options those that have not ended. For a pool of HTCondor there is condor_q.

    \b
    Examples:
      provisioner jobs --all --sort -ended_at --limit 20
    """
    queue = open_queue(query)

    def listing() -> out.Listing:
        found = list(answer_of(queue.jobs(ids=ids or (), limit=1_000_000)))
        if not (all_ or ids):
            found = [job for job in found if job.state in ("idle", "running", "held")]
        states = (
            ", ".join(
                f"{n} {state}" for state, n in Counter(job.state for job in found).most_common()
            )
            or "none"
        )
        scope = f"{formatting.count(len(found), 'job')}: {states}{'' if all_ or ids else '; --all for ended ones'}"
        return out.picked(
            out.Listing(JOBS_SCHEMA, QUEUE_COLUMNS, found, lambda job: str(job.id), scope), query
        )

    out.present(query, listing)


submit_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@submit_app.command(context_settings={"allow_interspersed_args": False})
@opt.shared
def submit(
    where: opt.Where,
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="What to run, without a shell.")
    ],
    count: Annotated[int, opt.option("N", "How many equal jobs.", "--count", "-n", min=1)] = 1,
    gpus: Annotated[str, opt.option("N", "1, 2, or a share such as 0.5; 0 for none.")] = "1",
    cpus: Annotated[int, opt.option("N", "CPUs.", min=1)] = 1,
    memory: Annotated[str, opt.option("SIZE", "Memory.")] = "1 GiB",
    disk: Annotated[str, opt.option("SIZE", "Disk.")] = "0 MiB",
    vram: Annotated[str, opt.option("SIZE", "Least VRAM per GPU.")] = "0 MiB",
    capability: Annotated[float, opt.option("X", "Least compute capability, as 8.0.", min=0)] = 0.0,
    gpu_model: Annotated[str, opt.option("NAME", "Only on this model.")] = "",
    walltime: Annotated[str, opt.option("AGE", "Longest run time, as 2h30m.")] = "0s",
    env: Annotated[list[str] | None, opt.option("NAME=VALUE", "Repeatable.")] = None,
    priority: Annotated[int, opt.option("N", "Higher goes first.")] = 0,
    gpu_optional: Annotated[
        bool, opt.switch("Use an idle GPU or a CPU drone; start no GPU drone.", "--gpu-optional")
    ] = False,
) -> None:
    """Submit jobs to the embedded queue.

    Their ids go to stdout. For a pool of HTCondor there is condor_submit.

    \b
    Examples:
      provisioner submit --count 20 --gpus 0.5 --memory "4 GiB" -- python train.py --epochs 3
    """
    from provisioner.config.units import parse_size
    from provisioner.durations import parse_duration

    queue = open_queue(where)
    variables = [variable.partition("=") for variable in env or ()]
    if wrong := [name for name, equals, _ in variables if not equals]:
        raise opt.VerbError(
            f"--env {formatting.sanitize(wrong[0], 60)}: write NAME=VALUE", code=opt.Exit.USAGE
        )
    request = {
        "gpus": gpus,
        "cpus": cpus,
        "memory_mib": opt.parsed(parse_size, "--memory", memory),
        "disk_mib": opt.parsed(parse_size, "--disk", disk),
        "vram_mib": opt.parsed(parse_size, "--vram", vram),
        "capability": round(capability * 10),
        "gpu_model": gpu_model,
        "walltime_s": opt.parsed(parse_duration, "--walltime", walltime),
        "env": {name: value for name, _, value in variables},
        "priority": priority,
        "gpu_optional": gpu_optional,
    }
    # a request can never be met: it says what to write instead
    with opt.reported(ValueError, code=opt.Exit.USAGE):
        ids = answer_of(queue.submit(command, count=count, **request))
    print("\n".join(map(str, ids)))
    out.note(f"{formatting.count(len(ids), 'job')} submitted; `provisioner jobs` lists them")
