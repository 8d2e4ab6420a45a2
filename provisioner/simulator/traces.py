"""Job traces from CSV files, owners' loads, and jobs on record.

A line that cannot be understood is an error with file, line and repair, unless bad lines are to be
counted instead; one that is no job for a drone (no run time, no GPU) is left out and counted.
"""

from __future__ import annotations

import csv
import gzip
import math
import os
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

from provisioner.config.messages import choices
from provisioner.formatting import count
from provisioner.model import WHOLE_GPU, CompletedJob, JobClass, OverlayView
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.store.database import Place
from provisioner.values import frozen

VRAM_SHARES = {8: 55, 16: 20, 24: 10, 32: 8, 40: 5, 80: 2}
"""GiB of GPU memory, and how many of 100 jobs want so much: made up, for no trace tells it."""
MAX_BAD_LINES = 10
_LONGEST_SPAN_S = 1e9
NOBODY = "nobody"
"""Owner of jobs of which a trace names none."""


class TraceError(Exception):
    """A trace that cannot be replayed. ``lines``: each with file, line and repair."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class _BadLineError(ValueError):
    """A line that cannot be understood: what is wrong with it, and what to write."""


class TraceColumn(NamedTuple):
    """Name of a column, and the factor to seconds or MiB."""

    name: str
    factor: float = 1.0


COMMON_COLUMNS: Mapping[str, TraceColumn] = {
    "submit": TraceColumn("submit_s"),
    "duration": TraceColumn("duration_s"),
    "gpus": TraceColumn("gpus"),
    "gpu_milli": TraceColumn("gpu_milli"),
    "vram": TraceColumn("vram_mb"),
    "cpus": TraceColumn("cpus"),
    "memory": TraceColumn("mem_mb"),
    "user": TraceColumn("user"),
    "group": TraceColumn("group"),
}
NEEDED = ("submit", "duration")


def declared_columns(text: str) -> dict[str, TraceColumn]:
    """Return the columns of ``submit=SubmitTime,duration=Minutes*60,...`` by meaning. Raises TraceError."""
    found = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, column = (word.strip() for word in part.partition("="))
        if not equals or not column:
            raise TraceError(
                f"`{part}` declares no column: write `{name or 'submit'}=NAME_IN_THE_FILE`"
            )
        if name not in COMMON_COLUMNS:
            raise TraceError(f"unknown field `{name}`: {choices(name, tuple(COMMON_COLUMNS))}")
        column, star, factor = column.partition("*")
        try:
            found[name] = TraceColumn(column, _number(factor, column) if star else 1.0)
        except _BadLineError:
            raise TraceError(
                f"`{part}`: a factor is a number above 0, as in `MemGB*1024`"
            ) from None
    if missing := [name for name in NEEDED if name not in found]:
        raise TraceError(
            f"no column declared for {' and '.join(missing)}: add `{missing[0]}=NAME_IN_THE_FILE`"
        )
    return found


@frozen
class TraceSelection:
    """Selection of a trace's jobs, and changes to them."""

    groups: tuple[str, ...] = ()
    """Groups or users; empty: all."""
    from_s: float = 0.0
    """Counted from the first job of the file."""
    span_s: float = math.inf
    limit: int | None = None
    gpus: tuple[int, ...] = ()
    """Numbers of GPUs; empty: all."""
    cap_s: float = math.inf
    vram_seed: int | None = None
    """Draw how much GPU memory each job wants from :data:`VRAM_SHARES`."""
    ignore: tuple[str, ...] = ()
    """Fields (names as in :data:`COMMON_COLUMNS`) that the trace is taken not to tell."""


@frozen
class Trace:
    name: str
    jobs: tuple[SimulatedJob, ...]
    """By submission; times count from the begin of the cut."""
    left_out: int = 0
    """No jobs for drones: without a run time, or without a GPU."""
    bad: tuple[str, ...] = ()
    """Lines that could not be understood, where that was allowed."""

    @property
    def span_s(self) -> float:
        """Until the last submission."""
        return self.jobs[-1].submit_s if self.jobs else 0.0


def read_trace(
    path: Path,
    cut: TraceSelection | None = None,
    *,
    columns: Mapping[str, TraceColumn] | None = None,
    skip_bad: bool = False,
) -> Trace:
    """Read the jobs of a CSV file, which may be gzipped; ``columns`` are declared by meaning. Raises TraceError."""
    cut = cut or TraceSelection()
    found: list[SimulatedJob | None] = []
    bad: list[str] = []
    lines = text_lines(path)
    first = next(lines, "")
    rows = csv.DictReader(chain([first], lines), delimiter=max(",;|\t", key=first.count))
    try:
        places = _columns(path, rows, columns)
        for name in cut.ignore:
            places.pop(name, None)
        for row in rows:
            try:
                found.append(_job(row, places))
            except _BadLineError as error:
                bad.append(f"{path}:{rows.line_num}: {error}")
    except csv.Error as error:
        raise TraceError(f"{path}:{rows.line_num}: not CSV: {error}") from None
    if bad and not skip_bad:
        more = [f"and {len(bad) - MAX_BAD_LINES} more"] if len(bad) > MAX_BAD_LINES else []
        advice = f"{len(bad)} bad lines: repair them, or leave them out: --skip-bad"
        raise TraceError(*bad[:MAX_BAD_LINES], *more, advice)
    jobs = sorted((job for job in found if job is not None), key=lambda job: job.submit_s)
    # The common form counts from its first job already; what has other times is brought to the
    # same.
    origin_s = jobs[0].submit_s if jobs and columns else 0.0
    if jobs and jobs[-1].submit_s - jobs[0].submit_s > _LONGEST_SPAN_S:
        raise TraceError(
            f"{path}: `{places['submit'].name}` has dates and seconds: write one form in all lines"
        )
    try:
        return Trace(
            path.name.split(".")[0], cut_jobs(jobs, cut, origin_s), found.count(None), tuple(bad)
        )
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None


def located(path: Path, beside: Path) -> Path | None:
    """Find the file ``path`` in the directory ``beside`` or the one that ``PROVISIONER_TRACES`` names."""
    places = [beside, *(Path(place) for place in (os.environ.get("PROVISIONER_TRACES"),) if place)]
    return next((place / path for place in places if (place / path).is_file()), None)


def cut_jobs(
    jobs: Sequence[SimulatedJob], cut: TraceSelection, origin_s: float = 0.0
) -> tuple[SimulatedJob, ...]:
    """Return the selected part of ``jobs``, in order of submission. Raises TraceError if that is none."""
    rng = Random(f"{cut.vram_seed}/vram")
    begin_s = cut.from_s + origin_s
    chosen: list[SimulatedJob] = []
    for job in sorted(jobs, key=lambda job: job.submit_s):
        at_s = job.submit_s - begin_s
        wants = job.wants
        if not 0.0 <= at_s < cut.span_s or (
            cut.gpus and math.ceil(wants.gpu_milli / WHOLE_GPU) not in cut.gpus
        ):
            continue
        if cut.groups and wants.group not in cut.groups and wants.owner not in cut.groups:
            continue
        if len(chosen) == cut.limit:
            break
        if cut.vram_seed is not None:
            gib = rng.choices(tuple(VRAM_SHARES), tuple(VRAM_SHARES.values()))[0]
            # 1000 MiB to the GB: a job "for a 40 GB card" must fit one, and cards keep some for
            # themselves.
            wants = replace(wants, vram_mib=gib * 1000)
        chosen.append(SimulatedJob(at_s, min(cut.cap_s, job.duration_s), wants))
    if not jobs:
        raise TraceError("no job with a run time and a GPU in it")
    if not chosen:
        groups = Counter(job.wants.group or job.wants.owner for job in jobs)
        most = ", ".join(name for name, _ in groups.most_common(8))
        raise TraceError(
            f"none of its {len(jobs)} jobs is left: widen the span, the number of GPUs or the groups ({most})"
        )
    return tuple(chosen)


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file that may be gzipped. Raises TraceError if it cannot be read to its end."""
    number = 0
    try:
        with (gzip.open if path.suffix == ".gz" else open)(
            path, "rt", encoding="utf-8-sig", newline=""
        ) as lines:
            for line in lines:
                number += 1
                yield line
    except UnicodeDecodeError:
        raise TraceError(f"{path}:{number + 1}: not UTF-8: save the file as UTF-8") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(
            f"{path}:{number + 1}: not a whole gzip file ({error}): fetch it again"
        ) from None
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None


_CLOCK = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
"""A span as `sacct` and LSF print it: ``3-08:24:04``, ``0:00:16``, ``16:40``."""


def _number(text: str, column: str) -> float:
    if clock := _CLOCK.fullmatch(text):
        days, hours, minutes, seconds = (float(each or 0) for each in clock.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    try:
        number = float(text)
    except ValueError:
        raise _BadLineError(f"`{column}`: `{text[:40]}` is no number") from None
    if not 0.0 <= number < math.inf:
        raise _BadLineError(f"`{column}`: `{text[:40]}` is not a number from 0 up")
    return number


def _columns(
    path: Path, rows: csv.DictReader[str], declared: Mapping[str, TraceColumn] | None
) -> dict[str, TraceColumn]:
    """Return the columns of the file by meaning: all that are declared, or those of the common form that it has."""
    header = rows.fieldnames = [name.strip() for name in rows.fieldnames or ()]
    if not header:
        raise TraceError(
            f"{path}:1: the file is empty: a header line with the names of the columns is wanted"
        )
    found: dict[str, TraceColumn] = {}
    for name, column in (declared or COMMON_COLUMNS).items():
        if header.count(column.name) > 1:
            raise TraceError(
                f"{path}:1: several columns are called `{column.name}`: rename all but one"
            )
        if column.name in header:
            found[name] = column
        elif declared or name in NEEDED:
            raise TraceError(
                f"{path}:1: there is no column `{column.name}`: {choices(column.name, header)}. "
                f"Declare which column is which: --trace-columns submit=...,duration=...,gpus=..."
            )
    return found


def _job(row: Mapping[str, str | None], columns: Mapping[str, TraceColumn]) -> SimulatedJob | None:
    """Return the job of a line; None if it is none for a drone."""
    if None in row or None in row.values():
        raise _BadLineError("not as many fields as the header has: quote what has a comma in it")

    def text(name: str) -> str:
        column = columns.get(name)
        return (row[column.name] or "").strip() if column else ""

    def number(name: str, default: float) -> float:
        value = text(name)
        return _number(value, columns[name].name) * columns[name].factor if value else default

    submit_s = _moment(text("submit"), columns["submit"])
    duration_s = number("duration", 0.0)
    gpus = number("gpus", float("gpus" not in columns))
    share_milli = number("gpu_milli", 0.0)
    gpu_milli = (
        round(gpus * (share_milli or 1000.0)) if gpus >= 1 else round(share_milli or gpus * 1000)
    )
    if duration_s <= 0 or gpu_milli <= 0:
        return None
    wants = JobRequirements(
        gpu_milli=gpu_milli,
        cpus=max(1, math.ceil(number("cpus", 1.0))),
        memory_mib=max(1, round(number("memory", 1024.0))),
        vram_mib=round(number("vram", 0.0)),
        owner=text("user") or text("group") or NOBODY,
        group=text("group"),
    )
    return SimulatedJob(submit_s, duration_s, wants)


def _moment(text: str, column: TraceColumn) -> float:
    if not text:
        raise _BadLineError(f"`{column.name}` is empty: when was the job submitted?")
    if text[4:5] != "-":
        return _number(text, column.name) * column.factor
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        wrong = f"`{column.name}`: `{text[:40]}` is no time: write 2020-05-01 12:00:00, or seconds"
        raise _BadLineError(wrong) from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


DAY_S = 86400.0
LOAD_COLUMNS = ("vc", "t_s", "total_gpus", "busy_gpus", "pending_gpus")


@frozen
class OwnerLoadSeries:
    """GPUs that an owner wants: steps ``(at_s, GPUs)``, the first at 0, and the number that exist."""

    name: str
    gpus: int
    steps: tuple[tuple[float, int], ...]

    @property
    def span_s(self) -> float:
        return self.steps[-1][0]

    def scaled(self, gpus: int) -> OwnerLoadSeries:
        """Return the series scaled to a cluster of ``gpus`` GPUs, all of it at most."""
        steps = tuple(
            (at_s, min(gpus, round(g * gpus / max(1, self.gpus)))) for at_s, g in self.steps
        )
        return OwnerLoadSeries(self.name, gpus, steps)

    def repeated(self, span_s: float) -> OwnerLoadSeries:
        """Return the series repeated, in whole days, until ``span_s`` is covered."""
        period_s = max(1, math.ceil(self.span_s / DAY_S)) * DAY_S
        times = max(1, math.ceil(span_s / period_s))
        steps = tuple(
            (n * period_s + at_s, gpus) for n in range(times) for at_s, gpus in self.steps
        )
        return OwnerLoadSeries(self.name, self.gpus, steps)


def read_loads(path: Path, *, pending: bool = True) -> Mapping[str, OwnerLoadSeries]:
    """Read the series of a trace: CSV, may be gzipped, a row at each change. Raises TraceError.

    ``pending``: count the GPUs that the owner waits for, too.
    """
    rows: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
    total: Counter[str] = Counter()
    lines = csv.DictReader(text_lines(path))
    missing = [name for name in LOAD_COLUMNS if name not in (lines.fieldnames or ())]
    if missing:
        raise TraceError(
            f"{path}:1: there is no column `{missing[0]}`: an owner's load has {', '.join(LOAD_COLUMNS)}"
        )
    for row in lines:
        try:
            at_s, (there, busy, wanted) = (
                float(row["t_s"]),
                (int(float(row[name])) for name in LOAD_COLUMNS[2:]),
            )
        except (TypeError, ValueError, OverflowError):
            wrong = f"not a row of {', '.join(LOAD_COLUMNS)}: all but `vc` are numbers"
            raise TraceError(f"{path}:{lines.line_num}: {wrong}") from None
        rows[row["vc"]].append((at_s, busy + wanted if pending else busy))
        total[row["vc"]] = max(total[row["vc"]], there)
    return {name: OwnerLoadSeries(name, total[name], tuple(steps)) for name, steps in rows.items()}


LEAST_RUN_S = 1.0
"""Pools count in whole seconds: what took none took less than one."""


def last_view(store_path: Place) -> OverlayView | None:
    """Return the controller's newest view of its pool; None if that is not on record. Raises StoreError."""
    from provisioner.store.reader import Reader

    views = Reader(store_path).views()
    return views.overlay.view if views is not None else None


def recorded_jobs(
    store_path: Place, since: float, until: float
) -> tuple[list[SimulatedJob], list[str]]:
    """Return the jobs submitted from ``since`` until ``until``, counted from ``since``, and notes on what is missing.

    Jobs that were removed, and those that ran when the controller looked last, left no run time:
    they are missing. Those that waited then are added with the run time of those like them. Raises
    StoreError.
    """
    from provisioner.store.reader import Reader

    completed = Reader(store_path).completions(since, math.inf)
    done = [each for each in completed if since <= each.submitted_at < until]
    jobs = [
        SimulatedJob(
            each.submitted_at - since, max(LEAST_RUN_S, each.run_s), JobRequirements.of(each)
        )
        for each in done
    ]
    notes = [
        "jobs that were removed or held, priorities and GPU models asked for are not on record"
    ]
    if not done:
        notes = ["no job that was submitted in this time is on record as done"]
    view = last_view(store_path)
    if view is None:
        notes.append("no look at the pool is on record: jobs that still wait are missing")
        return sorted(jobs, key=lambda job: job.submit_s), notes
    added, unknown = _waiting(view.classes, done, since, until)
    if added:
        notes.append(
            f"{count(len(added), 'job')} that waited at the last poll are added as if submitted with the oldest of"
            " their class, with the median run time of jobs like them"
        )
    if unknown:
        notes.append(
            f"{count(unknown, 'job')} that waited at the last poll are missing: their run time is unknown"
        )
    running = sum(each.running for each in view.classes)
    if running and view.taken_at >= since:
        notes.append(
            f"{count(running, 'job')} that ran at the last poll are missing: they have no run time yet"
        )
    return sorted(jobs + added, key=lambda job: job.submit_s), notes


def _waiting(
    classes: Iterable[JobClass], done: Iterable[CompletedJob], since: float, until: float
) -> tuple[list[SimulatedJob], int]:
    """Return jobs that waited at the last poll, as if all of a class came with its oldest; the number of others."""
    samples: defaultdict[JobRequirements | str, list[float]] = defaultdict(list)
    for each in done:
        for key in (JobRequirements.of(each), each.owner, ""):
            samples[key].append(each.run_s)
    run_s = {key: median(times) for key, times in samples.items()}
    added: list[SimulatedJob] = []
    unknown = 0
    for jobs in classes:
        idle = jobs.waiting + jobs.fresh
        if not idle or jobs.invalid or not since <= jobs.oldest_at < until:
            continue
        wants = JobRequirements.of(jobs)
        takes_s = run_s.get(wants) or run_s.get(jobs.owner) or run_s.get("") or jobs.walltime_s
        if takes_s:
            added += [SimulatedJob(jobs.oldest_at - since, takes_s, wants)] * idle
        else:
            unknown += idle
    return added, unknown
