"""Job traces from files: the common form, any CSV with declared columns, and the Standard Workload Format.

Every line is judged. A line that cannot be understood is an error with file, line and repair, unless bad lines are to
be counted instead; one that is no job for a drone (no run time, no GPU) is left out and counted.
"""

from __future__ import annotations

import csv
import gzip
import math
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from statistics import median

from provisioner.config.messages import nearest
from provisioner.formatting import age, count
from provisioner.model import WHOLE_GPU, CompletedJob, JobClass
from provisioner.simulator.jobs import JobRequirements, SimulatedJob

VRAM_SHARES = {8: 55, 16: 20, 24: 10, 32: 8, 40: 5, 80: 2}
"""GiB of GPU memory, and how many of 100 jobs want so much: made up, for no trace tells it."""
_MOST_TOLD = 10
"""Bad lines that are named; the rest is counted."""


class TraceError(Exception):
    """A trace that cannot be replayed. ``lines``: each with file, line and repair."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


@dataclass(frozen=True, slots=True)
class TraceColumns:
    """Columns of a CSV file by meaning; empty if there is none. Each may carry a factor: ``MemGB*1024``."""

    submit: str = "submit_s"
    duration: str = "duration_s"
    gpus: str = "gpus"
    gpu_milli: str = "gpu_milli"
    vram: str = "vram_mb"
    cpus: str = "cpus"
    memory: str = "mem_mb"
    user: str = "user"
    group: str = "group"

    @classmethod
    def declared(cls, text: str) -> TraceColumns:
        """From ``submit=SubmitTime,duration=RunTime,...``: what is not named there is in no column."""
        fields = list(cls.__dataclass_fields__)
        found: dict[str, str] = {}
        for part in filter(None, (p.strip() for p in text.split(","))):
            name, equals, column = (word.strip() for word in part.partition("="))
            if not equals or not column:
                raise TraceError(f"`{part}` declares no column: write `{name or 'submit'}=NAME_IN_THE_FILE`")
            if name not in fields:
                raise TraceError(f"unknown field `{name}`{_near(name, fields)}; known are {', '.join(fields)}")
            found[name] = column
        lacking = [name for name in ("submit", "duration") if name not in found]
        if lacking:
            raise TraceError(f"no column declared for {' and '.join(lacking)}: add `{lacking[0]}=NAME_IN_THE_FILE`")
        return cls(**({name: "" for name in fields} | found))


COMMON = TraceColumns()


@dataclass(frozen=True, slots=True)
class TraceSelection:
    """Selection of a trace's jobs, and changes to them."""

    groups: tuple[str, ...] = ()
    """Only jobs of these groups or users."""
    from_s: float = 0.0
    """Counted from the first job of the file."""
    span_s: float = math.inf
    limit: int | None = None
    gpus: tuple[int, ...] = ()
    """Jobs of so many GPUs only; empty: all."""
    cap_s: float = math.inf
    """Longer jobs end after this."""
    vram_seed: int | None = None
    """Draw how much GPU memory each job wants from :data:`VRAM_SHARES`."""
    ignore: tuple[str, ...] = ()
    """Fields (names as in :class:`TraceColumns`) that the trace is taken not to tell."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs read from a trace."""

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
    columns: TraceColumns | None = None,
    skip_bad: bool = False,
    swf_cpus: bool = False,
) -> Trace:
    """Read the jobs of ``path``: SWF by its suffix, else CSV; either may be gzipped.

    In SWF a processor counts as a GPU, or with ``swf_cpus`` as a CPU of a job with one GPU. Raises TraceError.
    """
    cut, reading = cut or TraceSelection(), _TraceReader(path, skip_bad)
    if is_swf(path):
        rows = list(reading.swf(swf_cpus, cut.ignore))
    else:
        rows = list(reading.table(columns or COMMON, cut.ignore))
    reading.refuse_bad()
    rows.sort(key=lambda row: row.job.submit_s)
    # The common form counts from its first job already; what has other times is brought to the same.
    origin_s = cut.from_s + (rows[0].job.submit_s if rows and (columns or is_swf(path)) else 0.0)
    jobs = tuple(_chosen(rows, cut, origin_s))
    if not jobs:
        raise TraceError(f"{path}: {_nothing_left(rows, cut)}")
    return Trace(path.name.split(".")[0], jobs, reading.left_out, tuple(reading.bad))


def is_swf(path: Path) -> bool:
    """By its name."""
    return path.name.removesuffix(".gz").endswith(".swf")


def cut_jobs(jobs: Sequence[SimulatedJob], cut: TraceSelection) -> tuple[SimulatedJob, ...]:
    """Return the selected part of jobs from elsewhere. Raises TraceError if that is none."""
    rows = [
        _Row(job, tuple(filter(None, (job.wants.group, job.wants.owner))), math.ceil(job.wants.gpu_milli / WHOLE_GPU))
        for job in jobs
    ]
    chosen = tuple(_chosen(sorted(rows, key=lambda row: row.job.submit_s), cut, cut.from_s))
    if not chosen:
        raise TraceError(_nothing_left(rows, cut))
    return chosen


@dataclass(frozen=True, slots=True)
class _Row:
    job: SimulatedJob
    groups: tuple[str, ...]
    gpus: int


def _chosen(rows: Sequence[_Row], cut: TraceSelection, origin_s: float) -> Iterator[SimulatedJob]:
    rng = Random(f"{cut.vram_seed}/vram")
    taken = 0
    for row in rows:
        at_s = row.job.submit_s - origin_s
        if not 0.0 <= at_s < cut.span_s or (cut.gpus and row.gpus not in cut.gpus):
            continue
        if cut.groups and not set(row.groups) & set(cut.groups):
            continue
        if taken == cut.limit:
            return
        taken += 1
        wants = row.job.wants
        if cut.vram_seed is not None:
            gib = rng.choices(tuple(VRAM_SHARES), tuple(VRAM_SHARES.values()))[0]
            # 1000 MiB to the GB: a job "for a 40 GB card" must fit one, and cards keep some for themselves.
            wants = replace(wants, vram_mib=gib * 1000)
        yield SimulatedJob(at_s, min(cut.cap_s, row.job.duration_s), wants)


def _nothing_left(rows: Sequence[_Row], cut: TraceSelection) -> str:
    if not rows:
        return "no job with a run time and a GPU in it"
    groups = Counter(name for row in rows for name in row.groups)
    unknown = [name for name in cut.groups if name not in groups]
    if unknown:
        most = ", ".join(name for name, _ in groups.most_common(8)) or "none"
        return f"no job of group `{unknown[0]}`{_near(unknown[0], list(groups))}; there are {most}"
    return f"none of its {len(rows)} jobs is left: widen the span, the groups or the number of GPUs"


def _near(name: str, known: Sequence[str]) -> str:
    near = nearest(name, known)
    return f": did you mean `{near}`?" if near else ""


# ------------------------------------------------------------------------------------------------------------- reading


class _BadLineError(ValueError):
    """A line that cannot be understood: what is wrong with it, and what to write."""


@dataclass(slots=True)
class _TraceReader:
    """One pass over a file."""

    path: Path
    skip_bad: bool
    bad: list[str] = field(default_factory=list)
    left_out: int = 0

    def refuse_bad(self) -> None:
        if self.bad and not self.skip_bad:
            more = [f"and {len(self.bad) - _MOST_TOLD} more"] if len(self.bad) > _MOST_TOLD else []
            raise TraceError(
                *self.bad[:_MOST_TOLD], *more, f"{len(self.bad)} bad lines: repair them, or leave them out: --skip-bad"
            )

    def table(self, columns: TraceColumns, ignore: Sequence[str]) -> Iterator[_Row]:
        """Yield the jobs of a CSV file with a header."""
        lines = csv.reader(text_lines(self.path))
        header = next(lines, None)
        if not header:
            raise TraceError(f"{self.path}:1: the file is empty: a header line with the names of the columns is wanted")
        spots = _spots(self.path, [name.strip() for name in header], columns)
        for name in ignore:
            spots.pop(name, None)
        while True:
            try:
                cells = next(lines, None)
            except csv.Error as error:
                raise TraceError(f"{self.path}:{lines.line_num}: not CSV: {error}") from None
            if cells is None:
                return
            if not any(cells):
                continue
            row = self._judged(lines.line_num, _CsvLine(cells, spots, len(header)).row)
            if row is not None:
                yield row

    def swf(self, cpus: bool, ignore: Sequence[str]) -> Iterator[_Row]:
        """Yield the jobs of a log in the Standard Workload Format: 18 numbers a line, -1 for unknown."""
        for number, line in enumerate(text_lines(self.path), 1):
            if not line.strip() or line.lstrip().startswith(";"):
                continue
            row = self._judged(number, _SwfLine(line.split(), cpus, ignore).row)
            if row is not None:
                yield row

    def _judged(self, number: int, read: Callable[[], _Row | None]) -> _Row | None:
        try:
            row = read()
        except _BadLineError as error:
            self.bad.append(f"{self.path}:{number}: {error}")
            return None
        if row is None:
            self.left_out += 1
        return row


def located(path: Path, beside: Path) -> Path | None:
    """Find the file ``path`` in the directory ``beside`` or the one that ``PROVISIONER_TRACES`` names."""
    places = [beside, *(Path(place) for place in (os.environ.get("PROVISIONER_TRACES"),) if place)]
    return next((place / path for place in places if (place / path).is_file()), None)


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file that may be gzipped. Raises TraceError if it cannot be read to its end."""
    number = 0
    try:
        with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as lines:
            for number, line in enumerate(lines, 1):
                if "\0" in line:
                    raise TraceError(f"{path}:{number}: a NUL character: this is no text file")
                yield line
    except UnicodeDecodeError:
        raise TraceError(f"{path}:{number + 1}: not UTF-8: save the file as UTF-8") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}:{number + 1}: not a whole gzip file ({error}): fetch it again") from None
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None


# --------------------------------------------------------------------------------------------------------------- lines

Spots = Mapping[str, tuple[int, str, float]]
"""Field (name as in :class:`TraceColumns`) to the number of its column, the column's name and a factor."""


def _spots(path: Path, header: Sequence[str], columns: TraceColumns) -> dict[str, tuple[int, str, float]]:
    """Return the position of each field.

    A declared column must exist; of the common form, submission and run time must.
    """
    found: dict[str, tuple[int, str, float]] = {}
    for name in TraceColumns.__dataclass_fields__:
        column, star, factor = getattr(columns, name).partition("*")
        if column in header:
            found[name] = (header.index(column), column, _factor(column, factor) if star else 1.0)
        elif column and (columns != COMMON or name in ("submit", "duration")):
            raise TraceError(
                f"{path}:1: there is no column `{column}`{_near(column, header)}; there are {', '.join(header)[:200]}. "
                f"Declare which column is which: --trace-columns submit=...,duration=...,gpus=..."
            )
    return found


def _factor(column: str, text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 0.0 < factor < math.inf:
        raise TraceError(f"`{column}*{text}`: a factor is a number above 0, as in `MemGB*1024`")
    return factor


@dataclass(frozen=True, slots=True)
class _CsvLine:
    """One line of a CSV file."""

    cells: Sequence[str]
    spots: Spots
    width: int

    def row(self) -> _Row | None:
        if len(self.cells) != self.width:
            raise _BadLineError(
                f"{len(self.cells)} fields, but the header has {self.width}: quote what has a comma in it"
            )
        submit_s, duration_s = self.moment(), self.number("duration", 0.0)
        gpus, share_milli = self.number("gpus", 1.0), self.number("gpu_milli", 0.0)
        gpu_milli = round(gpus * (share_milli or 1000.0)) if gpus >= 1 else round(share_milli or gpus * 1000)
        if duration_s <= 0 or gpu_milli <= 0:
            return None
        wants = JobRequirements(
            gpu_milli=gpu_milli,
            cpus=max(1, math.ceil(self.number("cpus", 1.0))),
            memory_mib=max(1, round(self.number("memory", 1024.0))),
            vram_mib=round(self.number("vram", 0.0)),
            owner=self.text("user") or self.text("group") or "nobody",
            group=self.text("group"),
        )
        names = tuple(filter(None, (self.text("group"), self.text("user"))))
        return _Row(SimulatedJob(submit_s, duration_s, wants), names, math.ceil(gpus))

    def text(self, name: str) -> str:
        spot = self.spots.get(name)
        return self.cells[spot[0]].strip() if spot else ""

    def number(self, name: str, otherwise: float) -> float:
        """Return the value times the column's factor; ``otherwise`` if the cell is empty."""
        text = self.text(name)
        if not text:
            return otherwise
        _, column, factor = self.spots[name]
        return _number(text, column) * factor

    def moment(self) -> float:
        """Submission: seconds, or a date and a time of day."""
        text = self.text("submit")
        _, column, factor = self.spots["submit"]
        if not text:
            raise _BadLineError(f"`{column}` is empty: when was the job submitted?")
        if text[4:5] == "-":
            try:
                at = datetime.fromisoformat(text)
            except ValueError:
                raise _BadLineError(
                    f"`{column}`: `{text[:40]}` is no time: write 2020-05-01 12:00:00, or seconds"
                ) from None
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        return _number(text, column) * factor


@dataclass(frozen=True, slots=True)
class _SwfLine:
    """One line of a log in the Standard Workload Format. Field numbers below are those of the standard, less 1."""

    words: Sequence[str]
    cpus: bool
    ignore: Sequence[str]

    def row(self) -> _Row | None:
        if len(self.words) != 18:
            raise _BadLineError(
                f"{len(self.words)} fields, but the Standard Workload Format has 18: -1 stands for not known"
            )
        submit_s, duration_s = self.known(1, "submit time", 0.0), self.known(3, "run time", 0.0)
        processors = self.known(7, "requested processors", 0.0) or self.known(4, "allocated processors", 0.0)
        if duration_s <= 0 or processors <= 0:
            return None
        each_kib = self.known(9, "requested memory", 0.0) or self.known(6, "used memory", 0.0)
        memory_mib = 1024 if "memory" in self.ignore or not each_kib else math.ceil(each_kib * processors / 1024)
        user, group = self.name("user", 11), self.name("group", 12)
        count = math.ceil(processors)
        wants = JobRequirements(
            gpu_milli=1000 if self.cpus else count * 1000,
            cpus=count if self.cpus and "cpus" not in self.ignore else 1,
            memory_mib=memory_mib,
            owner=user or group or "nobody",
            group=group,
        )
        names = tuple(filter(None, (group, user)))
        return _Row(SimulatedJob(submit_s, duration_s, wants), names, 1 if self.cpus else count)

    def name(self, field: str, at: int) -> str:
        """Return a name for the standard's number (``user7``); empty if it is unknown or ignored."""
        number = self.known(at, field, -1.0)
        return "" if field in self.ignore or number < 0 else f"{field}{number:.0f}"

    def known(self, at: int, name: str, otherwise: float) -> float:
        word = self.words[at]
        return otherwise if word.startswith("-1") else _number(word, f"field {at + 1}, {name}")


def _number(text: str, column: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise _BadLineError(f"`{column}`: `{text[:40]}` is no number") from None
    if not 0.0 <= number < math.inf:
        raise _BadLineError(f"`{column}`: `{text[:40]}` is not a number from 0 up")
    return number


DAY_S = 86400.0
_SERIES = ("vc", "t_s", "total_gpus", "busy_gpus", "pending_gpus")


@dataclass(frozen=True, slots=True)
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
        most = max(1, self.gpus)
        return OwnerLoadSeries(
            self.name, gpus, tuple((at_s, min(gpus, round(g * gpus / most))) for at_s, g in self.steps)
        )

    def repeated(self, span_s: float) -> OwnerLoadSeries:
        """Return the series repeated, in whole days, until ``span_s`` is covered."""
        period_s = max(1, math.ceil(self.span_s / DAY_S)) * DAY_S
        times = max(1, math.ceil(span_s / period_s))
        steps = tuple((n * period_s + at_s, gpus) for n in range(times) for at_s, gpus in self.steps)
        return OwnerLoadSeries(self.name, self.gpus, steps)


def read_loads(path: Path, *, pending: bool = True) -> Mapping[str, OwnerLoadSeries]:
    """Read the series of a trace: CSV, may be gzipped, a row at each change. Raises TraceError.

    Its columns are ``vc, t_s, total_gpus, busy_gpus, pending_gpus``. ``pending``: count the GPUs that the owner waits
    for, too.
    """
    rows: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
    total: dict[str, int] = {}
    lines = csv.DictReader(text_lines(path))
    lacking = [name for name in _SERIES if name not in (lines.fieldnames or ())]
    if lacking:
        raise TraceError(f"{path}:1: there is no column `{lacking[0]}`: an owner's load has {', '.join(_SERIES)}")
    for row in lines:
        try:
            at_s, (there, busy, wanted) = float(row["t_s"]), (int(float(row[name])) for name in _SERIES[2:])
        except (TypeError, ValueError, OverflowError):
            raise TraceError(
                f"{path}:{lines.line_num}: not a row of {', '.join(_SERIES)}: all but `vc` are numbers"
            ) from None
        rows[row["vc"]].append((at_s, busy + wanted if pending else busy))
        total[row["vc"]] = max(total.get(row["vc"], 0), there)
    return {name: OwnerLoadSeries(name, total[name], tuple(steps)) for name, steps in rows.items()}


_LATE = 0.05
_LEAST_S = 1.0
"""Pools count in whole seconds: what took none took less than one."""


@dataclass(frozen=True, slots=True)
class RecordedJobs:
    """The jobs submitted in a time, and what the record does not tell of them, a line each."""

    jobs: tuple[SimulatedJob, ...]
    notes: tuple[str, ...]


def last_look(store_path: Path) -> float | None:
    """When the controller looked at its pool last; None if that is not on record. Raises StoreError."""
    from provisioner.store.reader import Reader  # SQLAlchemy takes its time to load

    views = Reader(store_path).views()
    view = views.overlay.view if views is not None else None
    return view.taken_at if view is not None else None


def recorded_jobs(store_path: Path, since: float, until: float) -> tuple[SimulatedJob, ...]:
    """Return the jobs submitted from ``since`` until ``until``, counted from ``since``."""
    return recorded(store_path, since=since, until=until).jobs


def recorded(store_path: Path, since: float, until: float) -> RecordedJobs:
    """Read the jobs submitted in a time from the store, with notes on what is missing.

    Jobs that were removed, and those that ran when the controller looked last, left no run time: they are missing.
    Those that waited then are added with the run time of those like them. Raises StoreError.
    """
    from provisioner.store.reader import Reader  # SQLAlchemy takes its time to load

    reader = Reader(store_path)
    done = [each for each in reader.completions(since, float("inf")) if since <= each.submitted_at < until]
    views = reader.views()
    view = views.overlay.view if views is not None else None
    jobs = [SimulatedJob(each.submitted_at - since, max(_LEAST_S, each.run_s), wants_of(each)) for each in done]
    notes = _gaps(done, since, until)
    if view is None:
        notes.append("no look at the pool is on record: jobs that still wait are missing")
    else:
        jobs += _waiting(view.classes, done, since, until, notes)
        running = sum(each.running for each in view.classes)
        if running and view.taken_at >= since:
            notes.append(f"{count(running, 'job')} that ran at the last look are missing: they have no run time yet")
    return RecordedJobs(tuple(sorted(jobs, key=lambda job: job.submit_s)), tuple(notes))


def wants_of(done: CompletedJob) -> JobRequirements:
    """Return the requirements of a finished job."""
    return JobRequirements(
        gpu_milli=done.gpu_milli,
        cpus=done.cpus,
        memory_mib=done.memory_mib,
        disk_mib=done.disk_mib,
        vram_mib=done.vram_mib,
        capability=done.capability,
        walltime_s=done.walltime_s,
        owner=done.owner,
        group=done.group,
    )


def _gaps(done: list[CompletedJob], since: float, until: float) -> list[str]:
    if not done:
        return ["no job that was submitted in this time is on record as done"]
    notes = ["jobs that were removed or held, priorities and GPU models asked for are not on record"]
    late_s = min(each.submitted_at for each in done) - since
    if late_s > _LATE * (until - since):
        notes.append(
            f"the first job on record was submitted {age(late_s)} after the begin: perhaps the record began then"
        )
    return notes


def _waiting(
    classes: Iterable[JobClass], done: list[CompletedJob], since: float, until: float, notes: list[str]
) -> list[SimulatedJob]:
    """Jobs that waited at the last look, as if all of a class had come with its oldest: more is not on record."""
    run_s = _run_times(done)
    added: list[SimulatedJob] = []
    unknown = 0
    for each in classes:
        idle = each.waiting + each.fresh
        if not idle or each.invalid or not since <= each.oldest_at < until:
            continue
        wants = _wants_of_class(each)
        takes_s = run_s.get(wants) or run_s.get(each.owner) or run_s.get("") or each.walltime_s
        if takes_s:
            added += [SimulatedJob(each.oldest_at - since, takes_s, wants)] * idle
        else:
            unknown += idle
    if added:
        notes.append(
            f"{count(len(added), 'job')} that waited at the last look are added as if submitted with the oldest of"
            " their class, with the median run time of jobs like them"
        )
    if unknown:
        notes.append(f"{count(unknown, 'job')} that waited at the last look are missing: nothing tells their run time")
    return added


def _run_times(done: Iterable[CompletedJob]) -> Mapping[JobRequirements | str, float]:
    """Median run times by what was asked for, by owner, and of all (the empty name)."""
    samples: dict[JobRequirements | str, list[float]] = {}
    for each in done:
        for key in (wants_of(each), each.owner, ""):
            samples.setdefault(key, []).append(each.run_s)
    return {key: median(times) for key, times in samples.items()}


def _wants_of_class(each: JobClass) -> JobRequirements:
    return JobRequirements(
        gpu_milli=each.gpu_milli,
        cpus=each.cpus,
        memory_mib=each.memory_mib,
        disk_mib=each.disk_mib,
        vram_mib=each.vram_mib,
        capability=each.capability,
        walltime_s=each.walltime_s,
        owner=each.owner,
        group=each.group,
    )
