"""Job classes as rows: counts, needs, and why each waits, from the newest views and the newest plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from provisioner import formatting
from provisioner.cli.cells import amount, span_s, text, time_at, whole, words
from provisioner.cli.listing import Column
from provisioner.model import Drone, DroneType, JobClass, Plan, Start
from provisioner.reasons import HeadroomShort, JobsWaiting, NothingFits, Reason
from provisioner.store import Views

SCHEMA = "provisioner.demand/1"


@dataclass(frozen=True, slots=True)
class ClassRow:
    """One job class and what the newest plan says of it."""

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
    """One row per class of the newest overlay view, or for ``only`` some of them."""
    if views is None or views.overlay.view is None:
        return []
    jobs = views.overlay.view.classes if only is None else only
    said, for_all = reasons_by_class(plan), reasons_for_all(plan)
    started: dict[str, int] = {}
    for drone in live:
        started[drone.for_class] = started.get(drone.for_class, 0) + 1
    return [class_row(job, views.types, (*for_all, *said.get(job.id, ())), started.get(job.id, 0)) for job in jobs]


def class_row(job: JobClass, types: Sequence[DroneType], said: Sequence[Reason], drones: int) -> ClassRow:
    """One class against the drone types."""
    from provisioner.planner.matching import unmet_requirement

    fitting = [] if job.invalid else [t for t in types if unmet_requirement(job, t) is None]
    fitting.sort(key=lambda t: (t.price, t.key))
    return ClassRow(job, tuple(said), tuple(t.key for t in fitting), _nearest(fitting, said), drones)


def _nearest(fitting: Sequence[DroneType], said: Sequence[Reason]) -> str:
    if fitting:
        return fitting[0].key
    return next((r.nearest for r in said if isinstance(r, NothingFits)), "")


def reasons_by_class(plan: Plan | None) -> dict[str, tuple[Reason, ...]]:
    """What a plan says of each class: refusals by weight, then starts."""
    if plan is None:
        return {}
    found: dict[str, list[Reason]] = {}
    for refusal in plan.refusals:
        kind, _, name = refusal.subject.partition(":")
        if kind == "class":
            found.setdefault(name, []).append(refusal.reason)
    for name, reason in _starts(plan.starts):
        found.setdefault(name, []).append(reason)
    return {name: tuple(sorted(dict.fromkeys(reasons), key=weight)) for name, reasons in found.items()}


def reasons_for_all(plan: Plan | None) -> tuple[Reason, ...]:
    """Refusals that concern everything: then every class waits for that."""
    return tuple(r.reason for r in plan.refusals if r.subject == "all") if plan else ()


def _starts(starts: Sequence[Start]) -> list[tuple[str, Reason]]:
    """One reason per class and drone type, however many drones."""
    unique: dict[tuple[str, str], Reason] = {}
    for start in starts:
        if isinstance(start.reason, JobsWaiting | HeadroomShort):
            unique.setdefault((start.drone.for_class, start.drone.type), start.reason)
    return [(name, reason) for (name, _), reason in unique.items()]


_WEIGHTS = {
    t: i
    for i, t in enumerate(
        (
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
    )
}


def weight(reason: Reason) -> int:
    """Order of reasons: what a person must change comes before what only takes time."""
    return _WEIGHTS[formatting.category(reason)]


def why(row: ClassRow) -> str:
    """Why the class waits, in one line."""
    job = row.job
    if row.reasons:
        more = f" (+{len(row.reasons) - 1})" if len(row.reasons) > 1 else ""
        return formatting.describe(row.reasons[0]) + more
    if job.invalid:
        return formatting.sanitize(job.invalid, formatting.SHORT_TEXT)
    if not job.waiting and not job.fresh:
        return "nothing waits"
    return "no plan on record speaks of it yet"


def needs(job: JobClass) -> str:
    """What one job of the class asks for, in brief."""
    parts = [f"{formatting.gpus(job.gpu_milli)} GPU"] if job.gpu_milli else ["no GPU"]
    if job.vram_mib:
        parts.append(f"VRAM {formatting.size(job.vram_mib)}")
    if job.capability:
        parts.append(f"CC {formatting.capability(job.capability)}")
    if job.driver:
        parts.append(f"CUDA {formatting.driver(job.driver)}")
    parts.append(f"{job.cpus} CPU")
    parts.append(formatting.size(job.memory_mib))
    return ", ".join(parts)


def columns(now: float) -> tuple[Column[ClassRow], ...]:
    """Of job classes at ``now``."""
    from provisioner.serialization import to_plain

    return (
        text("id", lambda c: c.job.id, "Id of the class.", level=0, head="CLASS", least=8, tail=True),
        text("owner", lambda c: c.job.owner, "User or accounting group.", level=0, least=8),
        whole("waiting", lambda c: c.job.waiting, "Idle jobs that a negotiation cycle has left idle.", level=0),
        whole("fresh", lambda c: c.job.fresh, "Idle jobs that no negotiation cycle has seen.", level=1),
        whole("running", lambda c: c.job.running, "Running jobs.", level=0),
        whole("held", lambda c: c.job.held, "Held jobs.", level=1),
        whole("drones", lambda c: c.drones, "Live drones that were started for it.", level=0),
        span_s(
            "oldest_s",
            lambda c: max(0.0, now - c.job.oldest_at) if c.job.oldest_at else None,
            "Age of the oldest idle job, seconds; null: none waits.",
            level=0,
            head="OLDEST",
        ),
        words("needs", lambda c: needs(c.job), "What one job asks for, in words.", level=0, least=12),
        words("why", why, "Why it waits, in words.", level=0, least=28),
        text(
            "nearest",
            lambda c: c.nearest,
            "Cheapest drone type that fits, or the one that nearly does; may be empty.",
            level=1,
            least=10,
            tail=True,
        ),
        Column[ClassRow]("fits", lambda c: list(c.fits), "Drone types that fit, cheapest first.", kind="array"),
        Column[ClassRow](
            "reasons",
            lambda c: [to_plain(r, Reason) for r in c.reasons],
            "What the newest plan says of it, as data, weightiest first.",
            kind="array",
        ),
        whole("gpu_milli", lambda c: c.job.gpu_milli, "Thousandths of a GPU per job."),
        whole("cpus", lambda c: c.job.cpus, "CPUs per job."),
        whole("memory_mib", lambda c: c.job.memory_mib, "Memory per job, MiB.", show=amount),
        whole("disk_mib", lambda c: c.job.disk_mib, "Disk per job, MiB.", show=amount),
        whole("vram_mib", lambda c: c.job.vram_mib, "Least VRAM per GPU, MiB; 0: any.", show=amount),
        whole(
            "capability",
            lambda c: c.job.capability,
            "Least CUDA compute capability times 10; 0: any.",
            show=formatting.capability,
        ),
        whole(
            "driver",
            lambda c: c.job.driver,
            "Least CUDA version times 1000 (12040 is 12.4); 0: any.",
            show=formatting.driver,
        ),
        text("arch", lambda c: c.job.arch, "CPU architecture; empty: any."),
        span_s(
            "walltime_s",
            lambda c: c.job.walltime_s or None,
            "What the job says that it needs, seconds; null: it does not say.",
        ),
        whole("priority", lambda c: c.job.priority, "Priority."),
        time_at("oldest_at", lambda c: c.job.oldest_at, "When the oldest idle job was submitted."),
        text("job_ids", lambda c: c.job.job_ids, "Ids of the idle jobs as ranges.", level=1, least=12),
    )
