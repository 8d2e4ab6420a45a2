"""``provisioner usage``, and the measured use that other verbs show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

from provisioner import formatting
from provisioner.answers.columns import (
    Column,
    Document,
    Listing,
    ident,
    items,
    mib,
    now,
    number,
    picked,
    rounded,
    time_at,
    whole,
)
from provisioner.answers.errors import parsed
from provisioner.answers.query import ListQuery, option, question
from provisioner.model import DroneId, LowUseAction
from provisioner.store import Views
from provisioner.store.reader import Reader
from provisioner.usage import MeasuredUse, UsageReport, low_use, quantile, usage_report

USAGE_SCHEMA = "provisioner.usage/1"
DAY_S = 86400.0
WORST = 10  # rows that people see unless they ask for more
Grouping = StrEnum("Grouping", "CLASS USER VO SITE TYPE DRONE")


class RecordedUse:
    """The use on record since some time, by default in the last day, of all drones or of some."""

    def __init__(
        self,
        reader: Reader,
        views: Views | None,
        since: float | None = None,
        of: Sequence[DroneId] | None = None,
        *,
        by_drone: bool = False,
        running: bool = False,
    ) -> None:
        self._since, self._until = now() - DAY_S if since is None else since, now()
        self._types = views.types if views else ()
        self._runs = reader.use(self._since, self._until, of, by_drone=by_drone, running=running)

    def by(self, grouping: str) -> UsageReport:
        return usage_report(self._runs, self._types, self._since, self._until, grouping)


def with_use(
    columns: Sequence[Column], report: UsageReport, name: Callable[[Any], str]
) -> list[Column]:
    """Return the columns of a list with the use by each row's jobs. ``name``: of the row in the report."""
    known = {row.name: row.mean for row in report.rows}
    return [
        replace(c, of=lambda row: known.get(name(row))) if c.key == USE_COLUMN.key else c
        for c in columns
    ]


def underused(reader: Reader, views: Views | None) -> list[MeasuredUse]:
    """Return the classes that ``policy.low_use`` is about."""
    policy = views.policy.low_use if views else None
    if policy is None or policy.action is LowUseAction.NONE:
        return []
    return low_use(RecordedUse(reader, views, now() - policy.window_s).by("class"), policy)


def _hours(gpu_s: float) -> str:
    """Return GPU-hours, with one more digit below one; 0 for none alone."""
    hours = gpu_s / 3600
    return formatting.number(
        round(hours, 1) if hours >= 1 else max(round(hours, 2), 0.01 * (hours > 0))
    )


def _vram_words(use: MeasuredUse) -> str:
    """Return the 95th percentile of the peaks, with a mark if measured runs have none."""
    peak_mib = quantile(use.vram_mib, 0.95)
    return f"{formatting.size(peak_mib) if peak_mib else ''}{'?' if use.without_vram else ''}"


_gpu_s = partial(number, convert=rounded, unit=_hours)
_part = partial(number, null=True, convert=rounded, unit="{:.0%}".format)
_NOT_MEASURED = "null: none was measured"
_USE = f"Part of their GPUs used by jobs that ended in the last day (`drones show`: in its life); {_NOT_MEASURED}."
_USE_OF_ALL = "Part of their GPUs used by all jobs that ended in the last day"
USE_COLUMN = _part("use", _USE, lambda _: None, level=0, spare=4, fact="use of GPUs")
"""For rows of other lists: :func:`with_use` fills it."""

_peak = partial(mib, null=True)
USAGE_COLUMNS = (
    ident(
        "name",
        "Class (user and size of a job), user, VO, site, drone type or drone.",
        head="OF",
        least=16,
    ),
    whole("jobs", "Ended runs of jobs, those that were evicted, held or removed as well.", level=0),
    whole("measured", "Of those, runs whose use was measured.", level=1),
    _gpu_s("held_gpu_s", "GPUs that they held, GPU-seconds.", "held_s", head="GPU-H"),
    _gpu_s("measured_gpu_s", "Of those, held by measured runs.", "measured_s"),
    _gpu_s("used_gpu_s", "Of those, used.", "used_s", head="GPU-H USED", level=1),
    _part("mean", f"Used part of what measured runs held; {_NOT_MEASURED}.", head="MEAN"),
    _part(
        "use_p50",
        f"Half of the runs used no more; {_NOT_MEASURED}.",
        lambda u: quantile(u.uses, 0.5),
        head="P50",
    ),
    _part(
        "use_p95",
        f"95 of 100 used no more; {_NOT_MEASURED}.",
        lambda u: quantile(u.uses, 0.95),
        head="P95",
    ),
    _peak(
        "vram_p50_mib",
        f"Half of the peaks were no higher; {_NOT_MEASURED}.",
        lambda u: quantile(u.vram_mib, 0.5),
    ),
    _peak(
        "vram_p95_mib",
        f"95 of 100 were no higher; {_NOT_MEASURED}.",
        lambda u: quantile(u.vram_mib, 0.95),
        head="VRAM",
        show=_vram_words,
    ),
    mib(
        "vram_asked_mib",
        "Most that a run asked for; 0: any.",
        "asked_vram_mib",
        level=1,
        head="VRAM ASKED",
    ),
    whole(
        "without_vram",
        "Measured runs without a peak: they may have needed all the memory that they had.",
    ),
    whole("energy_j", "Energy of runs that report it, joules; null: none does.", null=True),
    number(
        "cpu_asked_s",
        "Core-seconds that runs with a measured CPU time asked for.",
        "asked_cpu_s",
        convert=rounded,
    ),
    whole(
        "cpu_used_s", f"CPU time that they used, seconds; {_NOT_MEASURED}.", "used_cpu_s", null=True
    ),
    _part(
        "cpu_efficiency",
        f"CPU time used by core-seconds asked for, above 1 if more cores were busy; {_NOT_MEASURED}.",
        head="CPU",
        spare=2,
    ),
    _peak(
        "memory_peak_mib",
        f"Highest peak of RAM; {_NOT_MEASURED}.",
        "peak_memory_mib",
        head="RAM",
        spare=2,
    ),
    mib(
        "memory_asked_mib",
        "Most RAM that a run asked for.",
        "asked_memory_mib",
        head="RAM ASKED",
        spare=3,
    ),
    items(
        "fits",
        "Smallest drone types that its classes would fit.",
        lambda u: sorted(u.fits),
        level=0,
        least=12,
    ),
    _gpu_s(
        "saved_gpu_s",
        "GPU-seconds that the same runs would have saved on this type.",
        "saved_s",
        head="GPU-H SAVED",
    ),
)
USAGE_FACTS = (
    time_at("since_at", "Begin of the period.", "since"),
    time_at("until_at", "Its end.", "until"),
    _gpu_s(
        "total_gpu_s",
        "GPU-seconds of all drones: the sum of the next four.",
        "total_s",
        head="GPU-h of drones",
    ),
    _gpu_s("measured_gpu_s", "Held by ended runs, measured.", "measured_s", head="GPU-h measured"),
    _gpu_s(
        "unmeasured_gpu_s",
        "Held by ended runs, not measured.",
        "unmeasured_s",
        head="GPU-h not measured",
    ),
    _gpu_s(
        "running_gpu_s", "Held by jobs that still run.", "running_s", head="GPU-h of running jobs"
    ),
    _gpu_s("idle_gpu_s", "Held without a job on record.", "idle_s", head="GPU-h idle"),
    _gpu_s("used_gpu_s", "Used of what measured runs held.", "used_s", head="GPU-h used"),
    _gpu_s(
        "saved_gpu_s",
        "What the runs would not have held on the types they fit.",
        "saved_s",
        head="GPU-h that can be saved",
    ),
)


def usage_document(report: UsageReport, scope: str = "") -> Document:
    listing = Listing(
        "",
        USAGE_COLUMNS,
        report.rows,
        lambda row: row.name,
        title="Lowest use, the largest saving first",
    )
    return Document(
        USAGE_SCHEMA, USAGE_FACTS, report, {"items": listing}, main="items", scope=scope
    )


def use_fact(report: UsageReport) -> Column:
    """Return the fact of ``status`` about the use of the last day."""
    mean = report.used_s / report.measured_s if report.measured_s else None
    words = (
        ""
        if mean is None
        else f"{mean:.0%} of {_hours(report.measured_s)} GPU-hours of jobs in the last day"
    )
    return _part(
        "use",
        f"{_USE_OF_ALL}; {_NOT_MEASURED}.",
        lambda _: mean,
        head="use of gpus",
        show=lambda _: words,
    )


class UsageQuery(ListQuery):
    """Use of GPUs by jobs that ended in a period."""

    since: Annotated[str, option("AGE", "Length of the period: 12h, 7d, 30d.")] = "30d"
    by: Annotated[Grouping, option(None, "Grouping of the rows.")] = Grouping.CLASS


@question("usage", "/usage", lambda: [usage_document(UsageReport(0.0, 0.0))])
def usage(reader: Reader, query: UsageQuery) -> Document:
    """Report the GPU use of jobs, and the smallest drone type that would be enough.

    A class is all jobs of a user with one size. A type fits if 95 of 100 runs used no more than it offers, and no run
    more VRAM. Tables show the ten classes that would save most, or the ten drones with the most unused GPU time;
    --limit shows more. The figures above the table are for all jobs and add up to the GPU-hours of the drones.
    A ? after VRAM: some measured runs have no peak, and may have needed all memory.

    \b
    Examples:
      provisioner usage --since 7d --by user
      provisioner usage --sort mean
      provisioner usage -o json | jq '.items[] | select(.mean != null and .mean < 0.15) | {name, fits, saved_gpu_s}'
    """
    from provisioner.durations import parse_duration

    since = query.since
    by = query.by
    age_s = parsed(parse_duration, "--since", since)
    limit = query.limit if query.limit is not None else WORST if query.output.for_people else None
    begin = now() - age_s
    views = reader.views()
    if by is Grouping.DRONE and limit is not None and not query.sort:
        # of hundreds of thousands only these are read run by run
        drones, total = reader.most_unused(begin, limit)
        shown = RecordedUse(reader, views, begin, drones).by(by)
        every = RecordedUse(reader, views, begin, running=True).by("class")
        report = replace(every, rows=shown.rows)
    else:
        by_drone = by is Grouping.DRONE
        report = RecordedUse(reader, views, begin, by_drone=by_drone, running=True).by(by)
        total = len(report.rows)
    found = formatting.count(total, by.value, "classes" if by is Grouping.CLASS else "")
    cut = f"; {limit} shown" if limit is not None and limit < total else ""
    why = "" if report.measured_s else "; no run was measured: see docs/how-to/gpu-use.md"
    made = usage_document(report, f"{found} with jobs that ended in the last {since}{cut}{why}")
    items = replace(made.parts["items"], total=total)
    listing = picked(items, query.sort, limit)
    return replace(made, parts={"items": listing})
