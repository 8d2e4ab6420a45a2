"""``provisioner demand``, ``jobs`` and ``submit``: job classes of the overlay, jobs of the embedded queue."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar, cast

import typer

from provisioner import formatting
from provisioner.cli import options as opt
from provisioner.cli import output as out
from provisioner.formatting import Category
from provisioner.model import Drone, DroneType, JobClass, Plan
from provisioner.reasons import HeadroomShort, JobsWaiting, NothingFits, Reason
from provisioner.store import Views
from provisioner.store.reader import Reader

DEMAND_SCHEMA = "provisioner.demand/1"


class ClassRow(NamedTuple):
    """Job class with the reasons of the newest plan."""

    job: JobClass
    reasons: tuple[Reason, ...]
    """Weightiest first: what keeps jobs waiting before what is on its way."""
    fits: tuple[str, ...]
    nearest: str
    """The drone type that fits, cheapest first, or else the one that nearly does."""
    drones: int
    """Live drones that were started for it."""


def class_rows(
    views: Views | None, plan: Plan | None, live: Sequence[Drone], only: Sequence[JobClass] | None = None
) -> list[ClassRow]:
    """Return a row per class of the newest overlay view, or for ``only`` some of them."""
    if views is None or views.overlay.view is None:
        return []
    jobs = views.overlay.view.classes if only is None else only
    of_class, of_all, started = reasons_by_class(plan), reasons_for_all(plan), Counter(d.for_class for d in live)
    return [class_row(job, views.types, (*of_all, *of_class.get(job.id, ())), started[job.id]) for job in jobs]


def class_row(job: JobClass, types: Sequence[DroneType], reasons: Sequence[Reason], drones: int) -> ClassRow:
    """Return the row of a class, matched with the drone types."""
    from provisioner.planner.matching import unmet_requirement

    fitting = [] if job.invalid else [t for t in types if unmet_requirement(job, t) is None]
    fits = tuple(t.key for t in sorted(fitting, key=lambda t: (t.price, t.key)))
    nearest = next((r.nearest for r in reasons if isinstance(r, NothingFits)), "")
    return ClassRow(job, tuple(reasons), fits, fits[0] if fits else nearest, drones)


_CATEGORIES_BY_WEIGHT = (
    Category.CONFIGURATION,
    Category.NOTHING_FITS,
    Category.LIMIT,
    Category.BACK_OFF,
    Category.START,
    Category.WAITING_SITE,
    Category.WAITING_NEGOTIATION,
    Category.LEAVE,
    Category.STEP,
)
"""Order of the categories: first those that need a person, then those that only take time."""


def reasons_by_class(plan: Plan | None) -> dict[str, tuple[Reason, ...]]:
    """Return the reasons of a plan by class: refusals by weight, then starts, one per drone type."""
    found: dict[str, list[Reason]] = {}
    for refusal in plan.refusals if plan else ():
        kind, _, name = refusal.subject.partition(":")
        if kind == "class":
            found.setdefault(name, []).append(refusal.reason)
    starts: dict[tuple[str, str], Reason] = {}
    for start in plan.starts if plan else ():
        if isinstance(start.reason, JobsWaiting | HeadroomShort):
            starts.setdefault((start.drone.for_class, start.drone.type), start.reason)
    for (name, _), reason in starts.items():
        found.setdefault(name, []).append(reason)
    return {name: tuple(sorted(dict.fromkeys(reasons), key=_weight)) for name, reasons in found.items()}


def _weight(reason: Reason) -> int:
    return _CATEGORIES_BY_WEIGHT.index(formatting.category(reason))


def reasons_for_all(plan: Plan | None) -> tuple[Reason, ...]:
    """Return the refusals that concern every class."""
    return tuple(r.reason for r in plan.refusals if r.subject == "all") if plan else ()


def why_waiting(row: ClassRow) -> str:
    """Return why the class waits, in one line."""
    if row.reasons:
        more = f" (+{len(row.reasons) - 1})" if len(row.reasons) > 1 else ""
        return formatting.describe(row.reasons[0]) + more
    if row.job.invalid:
        return formatting.sanitize(row.job.invalid, formatting.SHORT_TEXT)
    return "no plan on record speaks of it yet" if row.job.waiting or row.job.fresh else "nothing waits"


def _needs(row: ClassRow) -> str:
    """Return the requirements of one job in a few words."""
    job = row.job
    parts = [f"{formatting.gpus(job.gpu_milli)} GPU"] if job.gpu_milli else ["no GPU"]
    if job.vram_mib:
        parts.append(f"VRAM {formatting.size(job.vram_mib)}")
    if job.capability:
        parts.append(f"CC {formatting.capability(job.capability)}")
    if job.driver:
        parts.append(f"CUDA {formatting.driver(job.driver)}")
    return ", ".join([*parts, f"{job.cpus} CPU", formatting.size(job.memory_mib)])


def class_columns(now: float) -> tuple[out.Column, ...]:
    """Return the columns of job classes at ``now``."""

    def reasons(row: ClassRow) -> list[Any]:
        return list(map(out.reason_data, row.reasons))

    waiting_doc = "Idle jobs that a negotiation cycle has left idle."
    oldest_doc = "Age of the oldest idle job, seconds; null: none waits."
    nearest_doc = "Cheapest drone type that fits, or the one that nearly does; may be empty."
    driver_doc = "Least CUDA version times 1000 (12040 is 12.4); 0: any."
    walltime_doc = "What the job says that it needs, seconds; null: it does not say."
    fresh_doc, fresh = "Idle jobs that no negotiation cycle has seen.", "not yet negotiated"
    return (
        out.ident("id", "Id of the class.", "job.id", head="CLASS", fact="class"),
        out.text("owner", "User or accounting group.", "job.owner", level=0, least=8, fact="owner"),
        out.whole("waiting", waiting_doc, "job.waiting", level=0, fact="waiting"),
        out.whole("fresh", fresh_doc, "job.fresh", level=1, fact=fresh),
        out.whole("running", "Running jobs.", "job.running", level=0, fact="running"),
        out.whole("held", "Held jobs.", "job.held", level=1, fact="held"),
        out.whole("drones", "Live drones that were started for it.", level=0, fact="drones started for it"),
        out.age_s("oldest_s", oldest_doc, "job.oldest_at", now, head="OLDEST"),
        out.words("needs", "What one job asks for, in words.", _needs, least=12, fact="needs"),
        out.words("why", "Why it waits, in words.", why_waiting, least=28),
        out.ident("nearest", nearest_doc, level=1, least=10),
        out.items("fits", "Drone types that fit, cheapest first."),
        out.items("reasons", "What the newest plan says of it, as data, weightiest first.", reasons),
        out.whole("gpu_milli", "Thousandths of a GPU per job.", "job.gpu_milli"),
        out.whole("cpus", "CPUs per job.", "job.cpus"),
        out.mib("memory_mib", "Memory per job, MiB.", "job.memory_mib"),
        out.mib("disk_mib", "Disk per job, MiB.", "job.disk_mib"),
        out.mib("vram_mib", "Least VRAM per GPU, MiB; 0: any.", "job.vram_mib"),
        out.whole("capability", "Least CUDA compute capability times 10; 0: any.", "job.capability"),
        out.whole("driver", driver_doc, "job.driver"),
        out.text("arch", "CPU architecture; empty: any.", "job.arch"),
        out.span_s("walltime_s", walltime_doc, lambda c: c.job.walltime_s or None),
        out.whole("priority", "Priority.", "job.priority"),
        out.text("job_ids", "Ids of the idle jobs as ranges.", "job.job_ids", level=1, least=12, fact="jobs"),
    )


@opt.shared
def demand(
    where: opt.Where,
    show: opt.Show,
    pick: opt.Pick,
    waiting: Annotated[bool, opt.switch("Only classes with jobs that wait.", "--waiting")] = False,
) -> None:
    """List what waits, and why.

    A class is all jobs with identical requirements. The reason is the weightiest that the newest plan has; -o json has
    all of them as data, and `provisioner explain class ID` tells them in words.

    \b
    Examples:
      provisioner demand
      provisioner demand --waiting -o wide
      provisioner demand -o json | jq '.items[] | {id, waiting, why}'
    """
    reader = opt.open_record(where)
    out.present(show, lambda: out.picked(class_listing(reader, time.time(), waiting=waiting), pick))


def class_listing(reader: Reader, now: float, *, waiting: bool = False) -> out.Listing:
    """Return the answer of ``provisioner demand``."""
    views = reader.views()
    rows = class_rows(views, newest_plan(reader), reader.drones())
    if waiting:
        rows = [r for r in rows if r.job.waiting or r.job.fresh]
    scope = _demand_scope(views, rows, now, waiting)
    return out.Listing(DEMAND_SCHEMA, class_columns(now), rows, lambda c: c.job.id, scope)


def _demand_scope(views: Views | None, rows: Sequence[ClassRow], now: float, waiting: bool) -> str:
    if views is None:
        return "no tick is on record yet"
    overlay = views.overlay
    if overlay.view is None:
        return f"the overlay was never seen: {formatting.sanitize(overlay.fault.message) if overlay.fault else '?'}"
    idle = sum(r.job.waiting + r.job.fresh for r in rows)
    classes = formatting.count(len(rows), "class", "classes") + (" with waiting jobs" if waiting else "")
    fault = f"; newest look failed: {formatting.sanitize(overlay.fault.message, 120)}" if overlay.fault else ""
    age = formatting.ago(overlay.view.taken_at, now)
    return f"{classes}, {formatting.count(idle, 'idle job')}, as of {age} ago{fault}"


def newest_plan(reader: Reader) -> Plan | None:
    """Return the plan of the newest tick on record."""
    plans = reader.plans(limit=1)
    return plans[-1] if plans else None


JOBS_SCHEMA = "provisioner.jobs/1"
T = TypeVar("T")

QUEUE_TIMEOUT_S = 30.0
QUEUE_STATES = ("idle", "running", "done", "failed", "held")


class OverlayJobQueue(Protocol):
    """Interface of an overlay that keeps its own queue; a job has the attributes of :func:`queue_columns`."""

    async def submit(self, argv: Sequence[str], *, count: int, **request: Any) -> Sequence[int]: ...

    async def jobs(self, *, ids: Sequence[int] = (), limit: int = 1000) -> Sequence[Any]: ...


def open_queue(where: opt.Where) -> OverlayJobQueue:
    """Return the queue of the configured overlay. Raises :class:`VerbError` for an overlay that has none."""
    from provisioner.config import load
    from provisioner.loader import AdapterBrokenError, AdapterUnknownError, overlay_adapter

    settings = load(opt.config_path(where))
    try:
        overlay = overlay_adapter(settings.overlay.adapter)(settings.overlay.options, settings.controller)
    except (AdapterUnknownError, AdapterBrokenError) as error:
        raise opt.VerbError(str(error)) from error
    if not (callable(getattr(overlay, "submit", None)) and callable(getattr(overlay, "jobs", None))):
        raise opt.VerbError(
            f"overlay {settings.overlay.adapter} keeps its jobs itself: submit and list them with its own commands",
            "this verb is for the embedded overlay",
        )
    return cast(OverlayJobQueue, overlay)


def answer_of(work: Coroutine[Any, Any, T]) -> T:
    """Return what the queue answers within :data:`QUEUE_TIMEOUT_S`. Raises :class:`VerbError`."""
    import asyncio
    import sqlite3

    async def in_time() -> T:
        async with asyncio.timeout(QUEUE_TIMEOUT_S):
            return await work

    try:
        return asyncio.run(in_time())
    except TimeoutError:
        late = f"the queue gave no answer within {QUEUE_TIMEOUT_S:g} s"
        raise opt.VerbError(late, code=opt.Exit.TIMED_OUT) from None
    except sqlite3.Error as error:
        raise opt.VerbError(f"the queue cannot be used: {error}") from error


def queue_columns(now: float) -> tuple[out.Column, ...]:
    """Return the columns of jobs in the queue."""
    tints = {"running": "green", "failed": "red", "held": "yellow"}
    return (
        out.whole("id", "Id of the job.", level=0),
        out.text("state", "State.", level=0, choices=QUEUE_STATES, tint=tints),
        out.text("owner", "Who submitted it.", level=0, least=8),
        out.gpus("gpu_milli", "Thousandths of a GPU.", head="GPUS"),
        out.whole("cpus", "CPUs.", level=1),
        out.mib("memory_mib", "Memory, MiB.", level=1, head="MEMORY"),
        out.whole("vram_mib", "Least VRAM per GPU, MiB; 0: any."),
        out.age_s("age_s", "Since it was submitted, seconds.", "submitted_at", now, head="AGE"),
        out.ident("drone", "The drone that runs or ran it.", "drone_id", least=12),
        out.whole("attempts", "How often it was started.", level=1),
        out.whole("exit_code", "Its exit code; null: it has not ended.", null=True, head="EXIT"),
        out.text("command", "The command.", lambda j: " ".join(j.argv), level=0, least=14),
        out.text("message", "What went wrong.", level=1, least=12),
        out.items("argv", "The command, word by word."),
        out.whole("priority", "Higher goes first."),
        out.time_at("submitted_at", "When it was submitted."),
        out.time_at("started_at", "When it was last started."),
        out.time_at("ended_at", "When it ended."),
    )


MAX_JOBS = 1_000_000


@opt.shared
def jobs(
    where: opt.Where,
    show: opt.Show,
    pick: opt.Pick,
    ids: Annotated[list[int] | None, opt.argument("ID", "Only these.")] = None,
    all_: Annotated[bool, opt.switch("Those that have ended, too.", "--all", "-a")] = False,
) -> None:
    """List the jobs of the embedded queue.

    Without options those that have not ended. For a pool of HTCondor there is condor_q.

    \b
    Examples:
      provisioner jobs
      provisioner jobs --all --sort -ended_at --limit 20
      provisioner jobs 17 18 -o json
    """
    queue = open_queue(where)
    out.present(show, lambda: out.picked(job_listing(queue, ids or (), all_ or bool(ids), time.time()), pick))


def job_listing(queue: OverlayJobQueue, ids: Sequence[int], all_: bool, now: float) -> out.Listing:
    """Return the answer of ``provisioner jobs``."""
    found = list(answer_of(queue.jobs(ids=ids, limit=MAX_JOBS)))
    if not all_:
        found = [j for j in found if j.state in ("idle", "running", "held")]
    counts = Counter(j.state for j in found)
    states = ", ".join(f"{n} {state}" for state, n in counts.most_common()) or "none"
    scope = f"{formatting.count(len(found), 'job')}: {states}{'' if all_ else '; --all for ended ones'}"
    return out.Listing(JOBS_SCHEMA, queue_columns(now), found, lambda j: str(j.id), scope)


submit_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@submit_app.command(context_settings={"allow_interspersed_args": False})
@opt.shared
def submit(
    where: opt.Where,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run, without a shell.")],
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
) -> None:
    """Submit jobs to the embedded queue.

    Their ids go to stdout. For a pool of HTCondor there is condor_submit.

    \b
    Examples:
      provisioner submit sleep 60
      provisioner submit --count 20 --gpus 0.5 --memory "4 GiB" -- python train.py --epochs 3
      provisioner submit --vram "40 GiB" --capability 8.0 --walltime 2h ./simulate.sh
    """
    queue = open_queue(where)
    request = {
        "gpus": gpus,
        "cpus": cpus,
        "memory_mib": _mib(memory),
        "disk_mib": _mib(disk),
        "vram_mib": _mib(vram),
        "capability": round(capability * 10),
        "gpu_model": gpu_model,
        "walltime_s": opt.parse_age(walltime),
        "env": _environment(env or []),
        "priority": priority,
    }
    try:
        ids = answer_of(queue.submit(command, count=count, **request))
    except ValueError as error:  # the queue says which request can never be met, and what to write instead
        raise opt.VerbError(str(error), code=opt.Exit.USAGE) from error
    print("\n".join(map(str, ids)))
    out.note(f"{formatting.count(len(ids), 'job')} submitted; `provisioner jobs` lists them")


def _mib(text: str) -> int:
    """Return ``4 GiB`` as MiB. Raises :class:`VerbError`."""
    from pydantic import TypeAdapter, ValidationError

    from provisioner.config.units import Size

    try:
        return int(TypeAdapter(Size).validate_python(text))
    except ValidationError as error:
        what = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise opt.VerbError(f"{formatting.sanitize(text, 40)!r}: {what}", code=opt.Exit.USAGE) from None


def _environment(pairs: list[str]) -> dict[str, str]:
    wrong = [p for p in pairs if "=" not in p]
    if wrong:
        raise opt.VerbError(f"--env {formatting.sanitize(wrong[0], 60)}: write NAME=VALUE", code=opt.Exit.USAGE)
    return {name: value for name, _, value in (p.partition("=") for p in pairs)}
