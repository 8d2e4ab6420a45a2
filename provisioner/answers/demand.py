"""Demand: job classes that wait, and the reasons that hold them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from provisioner import formatting
from provisioner.answers.columns import (
    Listing,
    age_s,
    data,
    ident,
    items,
    mib,
    picked,
    reason_data,
    span_s,
    text,
    whole,
    words,
)
from provisioner.answers.lookup import as_of, class_names, newest_plan
from provisioner.answers.query import Format, ListQuery, option, question, switch
from provisioner.answers.usage import USE_COLUMN, RecordedUse, with_use
from provisioner.descriptions import ClassNames, job_size
from provisioner.model import JobClass
from provisioner.reasons import Category, NothingFits, Reason
from provisioner.store import Views
from provisioner.store.measures import reasons_by_class
from provisioner.store.reader import Reader
from provisioner.usage import class_name

if TYPE_CHECKING:
    from provisioner.planner.matching import CompatibleTypes

DEMAND_SCHEMA = "provisioner.demand/1"
T = TypeVar("T")


class ClassRow(NamedTuple):
    """Job class with the reasons of the newest plan."""

    job: JobClass
    name: str
    short_id: str
    reasons: Sequence[Reason]
    """Weightiest first: what keeps jobs waiting before what is on its way."""
    drones: int
    compatible: Callable[[], Mapping[str, CompatibleTypes]]
    """Returns by class the drone types that can run its jobs, cheapest first."""

    @property
    def fits(self) -> list[str]:
        return list(self.compatible()[self.job.id].jobs)

    @property
    def nearest(self) -> str:
        """The drone type that fits, cheapest first, or else the one that nearly does."""
        nearly = (r.nearest for r in self.reasons if isinstance(r, NothingFits))
        return next(chain(self.fits, nearly), "")


def class_rows(
    views: Views | None,
    reasons: Mapping[str, Sequence[Reason]],
    started: Mapping[str, int],
    names: ClassNames | None = None,
    only: Iterable[JobClass] | None = None,
) -> list[ClassRow]:
    """Return a row per class of the newest overlay view, or for ``only`` some of them.

    ``reasons``: those of the newest plan by class; ``started``: the live drones by class;
    ``names``: by default those of the classes in the view.
    """
    if views is None or views.overlay.view is None:
        return []
    names = names or ClassNames(views.overlay.view)
    of_all = reasons.get("", ())
    jobs = [*(views.overlay.view.classes if only is None else only)]
    compatible = cache(partial(_compatible, views, jobs))
    return [
        ClassRow(
            job,
            names.of(job.id),
            names.short_id(job.id),
            (*of_all, *reasons.get(job.id, ())),
            started.get(job.id, 0),
            compatible,
        )
        for job in jobs
    ]


def _compatible(views: Views, jobs: Iterable[JobClass]) -> Mapping[str, CompatibleTypes]:
    from provisioner.planner.matching import compatibility_cache

    by_price = sorted(views.types, key=lambda t: (t.price, t.key))
    return compatibility_cache(tuple(by_price), views.policy).table(jobs)


NO_PLAN_YET = "no plan on record mentions it yet"


def why_waiting(row: ClassRow) -> str:
    if row.reasons:
        more = f" (+{len(row.reasons) - 1})" if len(row.reasons) > 1 else ""
        return row.reasons[0].describe() + more
    if row.job.invalid:
        return formatting.sanitize(row.job.invalid, formatting.SHORT_TEXT)
    return NO_PLAN_YET if row.job.idle else "nothing waits"


def _reasons_data(row: ClassRow) -> list[Any]:
    return list(map(reason_data, row.reasons))


CLASS_COLUMNS = (
    ident("id", "Id of the class.", "job.id", head="CLASS", show=lambda row: row.short_id),
    text(
        "name",
        "Name of the class: owner, distinguishing requests, first characters of the id.",
        fact="class",
    ),
    text("owner", "User or accounting group.", "job.owner", level=0, least=8, fact="owner"),
    text(
        "vo", "Virtual organisation; empty: none.", "job.vo", level=0, least=8, spare=5, fact="VO"
    ),
    whole(
        "waiting",
        "Idle jobs that negotiation has left idle.",
        "job.waiting",
        level=0,
        fact="waiting",
    ),
    whole(
        "fresh", "Idle jobs not yet negotiated.", "job.fresh", level=1, fact="not yet negotiated"
    ),
    whole("running", "Running jobs.", "job.running", level=0, fact="running"),
    whole("held", "Held jobs.", "job.held", level=1, fact="held"),
    whole("drones", "Live drones started for this class.", level=0, fact="drones started for it"),
    USE_COLUMN,
    age_s(
        "oldest_s",
        "Age of the oldest idle job, seconds; null: none.",
        "job.oldest_at",
        head="OLDEST",
    ),
    words(
        "needs",
        "Request of one job, in words.",
        lambda row: job_size(row.job),
        least=12,
        fact="needs",
    ),
    words("why", "Reason of the wait, in words.", why_waiting, least=28),
    ident(
        "nearest", "Cheapest drone type that fits, or nearly does; may be empty.", level=1, least=10
    ),
    items("fits", "Drone types that fit, cheapest first."),
    items("reasons", "Reasons of the newest plan as data, the main one first.", _reasons_data),
    whole("gpu_milli", "Thousandths of a GPU per job.", "job.gpu_milli"),
    whole("cpus", "CPUs per job.", "job.cpus"),
    mib("memory_mib", "Memory per job, MiB.", "job.memory_mib"),
    mib("disk_mib", "Disk per job, MiB.", "job.disk_mib"),
    mib("vram_mib", "Least VRAM per GPU, MiB; 0: any.", "job.vram_mib"),
    whole("capability", "Least CUDA compute capability times 10; 0: any.", "job.capability"),
    whole("driver", "Least CUDA version times 1000 (12040 is 12.4); 0: any.", "job.driver"),
    text("arch", "CPU architecture; empty: any.", "job.arch"),
    span_s(
        "walltime_s",
        "Longest run time of the job, seconds; null: no limit.",
        lambda row: row.job.walltime_s or None,
    ),
    whole("priority", "Priority.", "job.priority"),
    text("vo_member", "Member of the VO; empty unless configured.", "job.vo_member"),
    text(
        "job_ids", "Ids of the idle jobs as ranges.", "job.job_ids", level=1, least=12, fact="jobs"
    ),
)

REASON_COLUMNS = (
    text(
        "category",
        "Category of the reason.",
        lambda reason: reason.category,
        level=0,
        choices=tuple(Category),
    ),
    words("text", "In words.", lambda reason: reason.describe(), head="WHY", least=30),
    data("reason", "As data.", reason_data),
)


class DemandQuery(ListQuery):
    """Job classes."""

    waiting: Annotated[bool, switch("List only classes with waiting jobs.")] = False
    vo: Annotated[str | None, option("NAME", "List only classes of this virtual organisation.")] = (
        None
    )


@question("demand", "/demand", lambda: [Listing(DEMAND_SCHEMA, CLASS_COLUMNS, ())])
def demand(reader: Reader, query: DemandQuery) -> Listing:
    """List waiting jobs by class, with the reason.

    A class is all jobs with identical requirements. The table shows the main reason of the newest plan; -o json has
    all reasons as data, and `provisioner explain class ID` in words.

    \b
    Examples:
      provisioner demand -o json | jq '.items[] | {id, waiting, why}'
    """
    views = reader.views()
    names = class_names(reader, views)
    reasons = reasons_by_class(newest_plan(reader))
    view = views.overlay.view if views else None
    shown = [job for job in (view.classes if view else ()) if job.idle or not query.waiting]
    if query.vo is not None:
        shown = [job for job in shown if job.vo == query.vo]
    if query.output is not Format.TABLE or query.columns:
        shown = [*reader.with_refusals(shown)]  # they tell which types fit
    rows = class_rows(views, reasons, reader.live_by_class(), names, shown)
    idle = formatting.count(sum(row.job.idle for row in rows), "idle job")
    classes = formatting.count(len(rows), "class", "classes") + (
        " with waiting jobs" if query.waiting else ""
    )
    scope = f"{classes}, {idle}, {as_of(reader, views)}"
    columns = with_use(
        CLASS_COLUMNS, RecordedUse(reader, views).by("class"), lambda row: class_name(row.job)
    )
    found = Listing(DEMAND_SCHEMA, columns, rows, lambda row: row.short_id, scope)
    return picked(found, query.sort, query.limit)
