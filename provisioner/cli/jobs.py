"""``provisioner demand``, ``jobs`` and ``submit``: job classes of the overlay, jobs of the embedded queue."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeVar, cast

import typer

from provisioner import formatting
from provisioner.cli.options import Exit, Pick, Show, VerbError, Where, config_path, open_record, parse_age, shared
from provisioner.cli.output import (
    Column,
    Listing,
    age_s,
    amount,
    items,
    note,
    picked,
    present,
    reason_data,
    span_s,
    text,
    time_at,
    whole,
    words,
)
from provisioner.model import Drone, DroneType, JobClass, Plan
from provisioner.reasons import HeadroomShort, JobsWaiting, NothingFits, Reason
from provisioner.store import Views
from provisioner.store.reader import Reader

DEMAND_SCHEMA = "provisioner.demand/1"


@dataclass(frozen=True, slots=True)
class ClassRow:
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
    formatting.Category.CONFIGURATION,
    formatting.Category.NOTHING_FITS,
    formatting.Category.LIMIT,
    formatting.Category.BACK_OFF,
    formatting.Category.START,
    formatting.Category.WAITING_SITE,
    formatting.Category.WAITING_NEGOTIATION,
    formatting.Category.LEAVE,
    formatting.Category.STEP,
)
"""Order of the categories: first those that need a person, then those that only take time."""


def reasons_by_class(plan: Plan | None) -> dict[str, tuple[Reason, ...]]:
    """Return the reasons of a plan by class: refusals by weight, then starts, one per drone type."""
    if plan is None:
        return {}
    found: dict[str, list[Reason]] = {}
    for refusal in plan.refusals:
        kind, _, name = refusal.subject.partition(":")
        if kind == "class":
            found.setdefault(name, []).append(refusal.reason)
    starts: dict[tuple[str, str], Reason] = {}
    for start in plan.starts:
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
    job = row.job
    if row.reasons:
        more = f" (+{len(row.reasons) - 1})" if len(row.reasons) > 1 else ""
        return formatting.describe(row.reasons[0]) + more
    if job.invalid:
        return formatting.sanitize(job.invalid, formatting.SHORT_TEXT)
    if not job.waiting and not job.fresh:
        return "nothing waits"
    return "no plan on record speaks of it yet"


def _needs(job: JobClass) -> str:
    """Return the requirements of one job in a few words."""
    parts = [f"{formatting.gpus(job.gpu_milli)} GPU"] if job.gpu_milli else ["no GPU"]
    if job.vram_mib:
        parts.append(f"VRAM {formatting.size(job.vram_mib)}")
    if job.capability:
        parts.append(f"CC {formatting.capability(job.capability)}")
    if job.driver:
        parts.append(f"CUDA {formatting.driver(job.driver)}")
    return ", ".join([*parts, f"{job.cpus} CPU", formatting.size(job.memory_mib)])


def class_columns(now: float) -> tuple[Column, ...]:
    """Return the columns of job classes at ``now``."""
    nearest_doc = "Cheapest drone type that fits, or the one that nearly does; may be empty."
    capability_doc = "Least CUDA compute capability times 10; 0: any."
    walltime_doc = "What the job says that it needs, seconds; null: it does not say."
    return (
        text("id", "Id of the class.", "job.id", head="CLASS", least=8, tail=True, fact="class"),
        text("owner", "User or accounting group.", "job.owner", level=0, least=8, fact="owner"),
        whole("waiting", "Idle jobs that a negotiation cycle has left idle.", "job.waiting", level=0, fact="waiting"),
        whole(
            "fresh",
            "Idle jobs that no negotiation cycle has seen.",
            "job.fresh",
            level=1,
            fact="not yet negotiated",
        ),
        whole("running", "Running jobs.", "job.running", level=0, fact="running"),
        whole("held", "Held jobs.", "job.held", level=1, fact="held"),
        whole("drones", "Live drones that were started for it.", level=0, fact="drones started for it"),
        age_s(
            "oldest_s", "Age of the oldest idle job, seconds; null: none waits.", "job.oldest_at", now, head="OLDEST"
        ),
        words("needs", "What one job asks for, in words.", lambda c: _needs(c.job), least=12, fact="needs"),
        words("why", "Why it waits, in words.", why_waiting, least=28),
        text("nearest", nearest_doc, level=1, least=10, tail=True),
        items("fits", "Drone types that fit, cheapest first."),
        items(
            "reasons",
            "What the newest plan says of it, as data, weightiest first.",
            lambda c: list(map(reason_data, c.reasons)),
        ),
        whole("gpu_milli", "Thousandths of a GPU per job.", "job.gpu_milli"),
        whole("cpus", "CPUs per job.", "job.cpus"),
        whole("memory_mib", "Memory per job, MiB.", "job.memory_mib", unit=amount),
        whole("disk_mib", "Disk per job, MiB.", "job.disk_mib", unit=amount),
        whole("vram_mib", "Least VRAM per GPU, MiB; 0: any.", "job.vram_mib", unit=amount),
        whole("capability", capability_doc, "job.capability", unit=formatting.capability),
        whole("driver", "Least CUDA version times 1000 (12040 is 12.4); 0: any.", "job.driver", unit=formatting.driver),
        text("arch", "CPU architecture; empty: any.", "job.arch"),
        span_s("walltime_s", walltime_doc, lambda c: c.job.walltime_s or None),
        whole("priority", "Priority.", "job.priority"),
        time_at("oldest_at", "When the oldest idle job was submitted.", "job.oldest_at"),
        text("job_ids", "Ids of the idle jobs as ranges.", "job.job_ids", level=1, least=12, fact="jobs"),
    )


@shared
def demand(
    where: Where,
    show: Show,
    pick: Pick,
    waiting: Annotated[bool, typer.Option("--waiting", help="Only classes with jobs that wait.")] = False,
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
    reader = open_record(where)
    present(show, lambda: picked(class_listing(reader, time.time(), waiting=waiting), pick))


def class_listing(reader: Reader, now: float, *, waiting: bool = False) -> Listing:
    """Return the answer of ``provisioner demand``."""
    views = reader.views()
    rows = class_rows(views, newest_plan(reader), reader.drones())
    if waiting:
        rows = [r for r in rows if r.job.waiting or r.job.fresh]
    return Listing(
        DEMAND_SCHEMA, class_columns(now), rows, lambda c: c.job.id, _demand_scope(views, rows, now, waiting)
    )


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


class QueuedJobView(Protocol):
    """Job in the queue; times are seconds since the epoch, 0 for not yet."""

    id: int
    owner: str
    priority: int
    gpu_milli: int
    cpus: int
    memory_mib: int
    vram_mib: int
    argv: tuple[str, ...]
    submitted_at: float
    state: str
    attempts: int
    drone_id: str
    started_at: float
    ended_at: float
    exit_code: int | None
    message: str


class OverlayJobQueue(Protocol):
    """Interface of an overlay that keeps its own queue."""

    async def submit(
        self,
        argv: Sequence[str],
        *,
        count: int,
        gpus: str,
        cpus: int,
        memory_mib: int,
        disk_mib: int,
        vram_mib: int,
        capability: int,
        gpu_model: str,
        walltime_s: float,
        env: Mapping[str, str],
        priority: int,
    ) -> Sequence[int]: ...

    async def jobs(self, *, ids: Sequence[int] = (), limit: int = 1000) -> Sequence[QueuedJobView]: ...


def open_queue(where: Where) -> OverlayJobQueue:
    """Return the queue of the configured overlay. Raises :class:`VerbError` for an overlay that has none."""
    from provisioner.config import load
    from provisioner.loader import AdapterBrokenError, AdapterUnknownError, overlay_adapter

    settings = load(config_path(where))
    try:
        overlay = overlay_adapter(settings.overlay.adapter)(settings.overlay.options, settings.controller)
    except (AdapterUnknownError, AdapterBrokenError) as error:
        raise VerbError(str(error)) from error
    if not (callable(getattr(overlay, "submit", None)) and callable(getattr(overlay, "jobs", None))):
        raise VerbError(
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
        raise VerbError(f"the queue gave no answer within {QUEUE_TIMEOUT_S:g} s", code=Exit.TIMED_OUT) from None
    except sqlite3.Error as error:
        raise VerbError(f"the queue cannot be used: {error}") from error


def queue_columns(now: float) -> tuple[Column, ...]:
    """Return the columns of jobs in the queue."""
    tints = {"running": "green", "failed": "red", "held": "yellow"}
    return (
        whole("id", "Id of the job.", level=0),
        text("state", "State.", level=0, choices=QUEUE_STATES, tint=tints),
        text("owner", "Who submitted it.", level=0, least=8),
        whole("gpu_milli", "Thousandths of a GPU.", head="GPUS", unit=formatting.gpus),
        whole("cpus", "CPUs.", level=1),
        whole("memory_mib", "Memory, MiB.", level=1, head="MEMORY", unit=formatting.size),
        whole("vram_mib", "Least VRAM per GPU, MiB; 0: any."),
        age_s("age_s", "Since it was submitted, seconds.", "submitted_at", now, head="AGE"),
        text("drone", "The drone that runs or ran it.", "drone_id", level=0, least=12, tail=True),
        whole("attempts", "How often it was started.", level=1),
        whole("exit_code", "Its exit code; null: it has not ended.", null=True, head="EXIT"),
        text("command", "The command.", lambda j: " ".join(j.argv), level=0, least=14),
        text("message", "What went wrong.", level=1, least=12),
        items("argv", "The command, word by word."),
        whole("priority", "Higher goes first."),
        time_at("submitted_at", "When it was submitted."),
        time_at("started_at", "When it was last started."),
        time_at("ended_at", "When it ended."),
    )


MAX_JOBS = 1_000_000


@shared
def jobs(
    where: Where,
    show: Show,
    pick: Pick,
    ids: Annotated[list[int] | None, typer.Argument(metavar="ID", help="Only these.", show_default=False)] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Those that have ended, too.")] = False,
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
    present(show, lambda: picked(job_listing(queue, ids or (), all_ or bool(ids), time.time()), pick))


def job_listing(queue: OverlayJobQueue, ids: list[int] | tuple[()], all_: bool, now: float) -> Listing:
    """Return the answer of ``provisioner jobs``."""
    found = list(answer_of(queue.jobs(ids=ids, limit=MAX_JOBS)))
    if not all_:
        found = [j for j in found if j.state in ("idle", "running", "held")]
    counts = Counter(j.state for j in found)
    states = ", ".join(f"{n} {state}" for state, n in counts.most_common()) or "none"
    scope = f"{formatting.count(len(found), 'job')}: {states}{'' if all_ else '; --all for ended ones'}"
    return Listing(JOBS_SCHEMA, queue_columns(now), found, lambda j: str(j.id), scope)


submit_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@submit_app.command(context_settings={"allow_interspersed_args": False})
@shared
def submit(
    where: Where,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run, without a shell.")],
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, help="How many equal jobs.")] = 1,
    gpus: Annotated[str, typer.Option("--gpus", metavar="N", help="1, 2, or a share such as 0.5; 0 for none.")] = "1",
    cpus: Annotated[int, typer.Option("--cpus", metavar="N", min=1, help="CPUs.")] = 1,
    memory: Annotated[str, typer.Option("--memory", metavar="SIZE", help="Memory.")] = "1 GiB",
    disk: Annotated[str, typer.Option("--disk", metavar="SIZE", help="Disk.")] = "0 MiB",
    vram: Annotated[str, typer.Option("--vram", metavar="SIZE", help="Least VRAM per GPU.")] = "0 MiB",
    capability: Annotated[
        float, typer.Option("--capability", metavar="X", min=0, help="Least compute capability, as 8.0.")
    ] = 0.0,
    gpu_model: Annotated[str, typer.Option("--gpu-model", metavar="NAME", help="Only on this model.")] = "",
    walltime: Annotated[str, typer.Option("--walltime", metavar="AGE", help="Longest run time, as 2h30m.")] = "0s",
    env: Annotated[list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="Repeatable.")] = None,
    priority: Annotated[int, typer.Option("--priority", metavar="N", help="Higher goes first.")] = 0,
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
    try:
        ids = answer_of(
            queue.submit(
                command,
                count=count,
                gpus=gpus,
                cpus=cpus,
                memory_mib=_mib(memory),
                disk_mib=_mib(disk),
                vram_mib=_mib(vram),
                capability=round(capability * 10),
                gpu_model=gpu_model,
                walltime_s=parse_age(walltime),
                env=_environment(env or []),
                priority=priority,
            )
        )
    except ValueError as error:  # the queue says which request can never be met, and what to write instead
        raise VerbError(str(error), code=Exit.USAGE) from error
    print("\n".join(map(str, ids)))
    note(f"{formatting.count(len(ids), 'job')} submitted; `provisioner jobs` lists them")


def _mib(text: str) -> int:
    """Return ``4 GiB`` as MiB. Raises :class:`VerbError`."""
    from pydantic import TypeAdapter, ValidationError

    from provisioner.config.units import Size

    try:
        return int(TypeAdapter(Size).validate_python(text))
    except ValidationError as error:
        what = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise VerbError(f"{formatting.sanitize(text, 40)!r}: {what}", code=Exit.USAGE) from None


def _environment(pairs: list[str]) -> dict[str, str]:
    wrong = [p for p in pairs if "=" not in p]
    if wrong:
        raise VerbError(f"--env {formatting.sanitize(wrong[0], 60)}: write NAME=VALUE", code=Exit.USAGE)
    return {name: value for name, _, value in (p.partition("=") for p in pairs)}
