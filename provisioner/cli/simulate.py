"""``provisioner simulate``: replay a trace, or jobs on record, against the configured sites; compare, ask what if."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from statistics import fmean
from typing import Annotated, NamedTuple, NoReturn

from provisioner import formatting
from provisioner.cli import options as opt
from provisioner.cli import output as out
from provisioner.cli.options import Exit, VerbError
from provisioner.cli.output import note
from provisioner.cli.plan import write_file
from provisioner.config import ConfigError, load
from provisioner.config.messages import choices
from provisioner.config.units import parse_duration
from provisioner.planner.matching import nearness
from provisioner.simulator import report as report_page
from provisioner.simulator import results as figures
from provisioner.simulator import traces, what_if
from provisioner.simulator.replay import REPLAY_LIMIT_S, Replay, run_all
from provisioner.simulator.results import FIGURES, KeyFigure, PairedDifference, Runs, SeedStatistics
from provisioner.simulator.traces import Trace, TraceError, TraceSelection
from provisioner.simulator.world_file import WorldPlan, describe_world, world_of

SIMULATION_SCHEMA = "provisioner.simulation/1"


class FigureRow(NamedTuple):
    """Figure of one policy, and its difference from the first policy."""

    heading: str
    figure: KeyFigure
    policy: str
    over: SeedStatistics
    versus: PairedDifference | None


class WaitRow(NamedTuple):
    """Waits of jobs of one size under one policy; means over the seeds."""

    label: str
    policy: str
    jobs: float
    mean_s: float
    p50_s: float
    p95_s: float


class ViolationRow(NamedTuple):
    policy: str
    seed: int
    text: str


class SimulationRow(NamedTuple):
    trace: Trace
    seeds: list[int]
    policies: list[str]
    world: list[str]
    notes: list[str]


def simulation(trace: Trace, replays: Sequence[Replay], runs: Runs, *, brief: bool = False) -> out.Document:
    """Return the answer; with ``brief`` only the main figures."""
    facts = SimulationRow(
        trace,
        seeds=[result.seed for result in next(iter(runs.values()), ())],
        policies=list(runs),
        world=[line for replay in replays[:1] for line in describe_world(replay.world)],
        notes=list(dict.fromkeys(line for replay in replays for line in replay.world.notes)),
    )
    several = len(runs) > 1
    violations = [
        ViolationRow(policy, result.seed, line)
        for policy, results in runs.items()
        for result in results
        for line in result.violations
    ]
    shown = list(_figure_rows(runs, brief))
    return out.Document(
        SIMULATION_SCHEMA,
        out.Listing("", SIMULATION_COLUMNS, [facts], lambda f: f.trace.name),
        {
            "figures": out.Listing("", _figure_columns(several), shown, lambda r: r.figure.name),
            "classes": out.Listing("", _wait_columns(several), list(_wait_rows(runs)), lambda r: r.label),
            "violations": out.Listing("", VIOLATION_COLUMNS, violations, lambda r: r.text),
        },
        {"figures": "figures, mean over the seeds", "classes": "waits by size of the jobs"},
        main="figures",
    )


def _figure_rows(runs: Runs, brief: bool) -> Iterator[FigureRow]:
    first = next(iter(runs.values()), ())
    for heading, of_heading in FIGURES.items():
        for figure in of_heading:
            if brief and figure.detail:
                continue
            for n, (policy, results) in enumerate(runs.items()):
                over = figures.spread(figure.of(result) for result in results)
                if over is not None:
                    yield FigureRow(
                        heading, figure, policy, over, figures.paired(figure, first, results) if n else None
                    )


def _wait_rows(runs: Runs) -> Iterator[WaitRow]:
    for label in sorted({label for results in runs.values() for r in results for label in r.waits_by_class}):
        for policy, results in runs.items():
            waits = [r.waits_by_class[label] for r in results if label in r.waits_by_class]
            if waits:
                means = (fmean(getattr(w, key) for w in waits) for key in ("jobs", "mean_s", "p50_s", "p95_s"))
                yield WaitRow(label, policy, *means)


# ------------------------------------------------------------------------------------------------------------- columns

SIMULATION_COLUMNS = (
    out.text("trace", "Name of the trace; `recorded` for jobs on record.", "trace.name", level=0),
    out.whole("jobs", "Jobs replayed.", lambda f: len(f.trace.jobs), level=0),
    out.span_s(
        "span_s", "From the begin of the replay to the last submission.", "trace.span_s", head="SPAN", null=False
    ),
    out.whole("left_out", "Jobs without a run time or a GPU.", "trace.left_out"),
    out.whole("bad_lines", "Lines left out because they could not be understood.", lambda f: len(f.trace.bad)),
    out.items("seeds", "Seeds of the replays.", level=0),
    out.items("policies", "What was replayed; others are compared with the first.", level=0, unit="; ".join),
    out.items("world", "The sites of the first.", level=0, unit="; ".join),
    out.items("notes", "Assumptions about the sites, where no file has the value."),
)
VIOLATION_COLUMNS = (
    out.text("policy", "Under which policy.", level=0),
    out.whole("seed", "With which seed.", level=0),
    out.words("text", "The promise that was broken.", least=30),
)


def _policy_column(several: bool, spare: int) -> out.Column:
    def show(row: FigureRow | WaitRow) -> str:
        return row.policy if several else ""

    return out.ident("policy", "Under which policy.", least=16, spare=spare, show=show)


def _figure_columns(several: bool) -> tuple[out.Column, ...]:
    """Return the columns of figures; with ``several`` policies the comparison is never left out."""

    def improved(row: FigureRow) -> str:
        return f"{row.versus.improved} of {row.versus.spread.count}" if row.versus and row.figure.better else ""

    def deviation(over: SeedStatistics | None) -> str:
        return figures.amount(over.deviation) if over and over.count > 1 else ""

    def difference(row: FigureRow) -> SeedStatistics | None:
        return row.versus.spread if row.versus else None

    def finite(value: float | None) -> float | None:
        return value if value is not None and isfinite(value) else None

    spare = 0 if several else 1
    mean = out.number("mean", "Mean over the seeds; null: infinite.", "over.mean", null=True, level=0)
    difference_doc = "Mean difference to the first policy, seed by seed; null for the first."
    versus = out.number("difference", difference_doc, "versus.spread.mean", null=True, head="DIFFERENCE", spare=spare)
    spread = out.number("deviation", "Standard deviation over the seeds.", "over.deviation", head="+-", spare=2)
    spread_of = out.number("difference_deviation", "Its standard deviation.", "versus.spread.deviation", head="+-")
    better = out.whole("improved", "Seeds in which it is better than the first.", "versus.improved", null=True)
    return (
        out.text("group", "What the figure is about.", "heading"),
        out.text("figure", "Its name.", "figure.name", level=0),
        out.text("unit", "Its unit; empty for a count.", "figure.unit", level=0),
        _policy_column(several, spare),
        replace(mean, convert=finite, unit=figures.amount),
        replace(spread, convert=finite, show=lambda r: deviation(r.over)),
        out.whole("seeds", "Replays that tell the figure.", "over.count"),
        replace(versus, convert=finite, unit=figures.change),
        replace(spread_of, null=True, spare=2, convert=finite, show=lambda r: deviation(difference(r))),
        replace(better, level=0, head="BETTER IN", spare=2, show=improved),
    )


def _wait_columns(several: bool) -> tuple[out.Column, ...]:
    def wait(key: str, head: str, doc: str) -> out.Column:
        return out.number(key, doc, convert=lambda wait_s: round(wait_s, 3), head=head, unit=figures.amount)

    return (
        out.ident("class", "What the jobs ask for.", "label", least=16),
        _policy_column(several, spare=1),
        out.number("jobs", "Jobs done.", level=0, unit=figures.amount),
        wait("mean_s", "MEAN s", "Mean wait."),
        wait("p50_s", "MEDIAN s", "Median wait."),
        wait("p95_s", "P95 s", "95th percentile."),
    )


# ------------------------------------------------------------------------------------------------------------ policies


def _replays(
    configs: Sequence[Path], world: Path | None, changes: Sequence[str], trace: Trace, *, compare: bool
) -> list[Replay]:
    """Return the replays to compare: what is, and what would be."""
    if twice := next((config for n, config in enumerate(configs) if config in configs[:n]), None):
        raise VerbError(f"{twice} is named twice: there is nothing to compare", code=Exit.USAGE)
    replays = [_replay_of(config, world, trace) for config in configs]
    if not changes:
        return replays
    others = [
        replace(each, world=_changed(each.world, changes), policy=", ".join((each.policy, *changes)))
        for each in replays
    ]
    # A change is compared with what is; where two policies are compared, both undergo it.
    return others if compare else [replays[0], others[-1]]


def _changed(world: WorldPlan, changes: Sequence[str]) -> WorldPlan:
    """Return ``world`` as it would be."""
    try:
        for asked in changes:
            question = what_if.read(asked, [facility.name for facility in world.facilities])
            world = what_if.changed(world, question)
    except what_if.QuestionError as error:
        raise VerbError(f"--what-if: {error}", code=Exit.USAGE) from None
    return world


def _replay_of(config: Path, world: Path | None, trace: Trace) -> Replay:
    settings = load(config, connects=False)
    try:
        plan = world_of(settings, world, span_s=trace.span_s + REPLAY_LIMIT_S)
    except ConfigError as error:
        advice = "the world file's keys: docs/how-to/simulate.md"
        raise VerbError(*map(str, error.problems), advice, code=Exit.UNMET) from None
    return Replay(
        policy=str(config),
        trace=trace.name,
        jobs=trace.jobs,
        world=plan,
        rules=settings.policy,
        interval_s=settings.interval_s,
        active_interval_s=settings.active_interval_s,
        carbon_g_per_kwh=settings.carbon_g_per_kwh,
    )


def _misfit_notes(replay: Replay) -> list[str]:
    """Return a line about the jobs that no drone type fits: their sizes, and what the nearest type lacks."""
    jobs: Counter[str] = Counter()
    for wants, times in Counter(job.wants for job in replay.jobs).items():
        unmet = [(kind, lack) for kind in replay.types if (lack := wants.unmet_requirement(kind)) is not None]
        if len(unmet) == len(replay.types):
            lacks = f" ({max(unmet, key=lambda pair: nearness(*pair))[1].dimension})" if unmet else ""
            jobs[wants.label + lacks] += times
    if not jobs:
        return []
    shown = ", ".join(f"{times:,} of {size}" for size, times in jobs.most_common(3))
    more = f" and {len(jobs) - 3} more sizes" if len(jobs) > 3 else ""
    total = formatting.count(jobs.total(), "job")
    return [f"{replay.policy}: {total} of {len(replay.jobs):,} fit no drone type and wait for ever: {shown}{more}"]


PROGRESS_LINE_INTERVAL_S = 30.0
"""Pause between two lines of progress where stderr is no terminal."""


@contextmanager
def progress(
    turns: int, span_s: float, *, color: bool, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int, float], None]]:
    """Yield a listener that reports how far each of ``turns`` replays of ``span_s`` is, by simulated time.

    A bar on a terminal, elsewhere a line now and then.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True, no_color=not color or bool(os.environ.get("NO_COLOR")))
    reached: dict[int, float] = {}
    days, printed_at = span_s / 86400.0, clock()
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(f"0 of {turns} replays done", total=turns)

        def tell(turn: int, at_s: float) -> None:
            nonlocal printed_at
            reached[turn] = min(1.0, at_s / span_s) if span_s else 1.0
            done, share = sum(part >= 1.0 for part in reached.values()), sum(reached.values())
            words = f"{done} of {turns} replays done, {share * days:.1f} of {turns * days:.1f} days"
            bar.update(task, completed=share, description=words)
            if not sys.stderr.isatty() and clock() - printed_at >= PROGRESS_LINE_INTERVAL_S:
                printed_at = clock()
                print(words, file=sys.stderr, flush=True)

        yield tell


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the replays as Ctrl-C does, their processes included.

    A pool of processes that is given up may write to a pipe that it has closed itself, and expects an error from that;
    the SIGPIPE of a command line would end us at once.
    """

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGPIPE] = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---------------------------------------------------------------------------------------------------------------- verb

VRAM_SEED = 7
"""The same GPU memory for the same job in every replay."""
RECORDED_S = 30 * 86400.0
IGNORABLE_FIELDS = ("gpu_milli", "cpus", "memory", "vram", "user", "group")
TRACE_HELP = "Jobs: .csv or .csv.gz; here, or where PROVISIONER_TRACES says."
RECORDED_HELP = "The jobs on record instead of a trace: of the 30 days before the last look, or of --span."
WORLD_HELP = "What the sites are: queues, boots, owners, failures. Without it, derived from their limits."
JOBS_HELP = "Replays at one time, each in a process. Default: as many as there are processors."
COMPARE_HELP = "These two configurations side by side, instead of that of --config."
VRAM_MIX_HELP = "Draw the GPU memory that each job wants, 8 to 80 GB: no trace tells it."
IGNORE_HELP = "Take gpu_milli, cpus, memory, vram, user or group as unknown; repeatable."
COLUMNS_HELP = (
    "Which column of a CSV holds what: submit, duration, gpus, gpu_milli, vram, cpus, memory, user, group; in s and "
    "MiB, or with a factor: memory=GB*1024."
)
WHAT_IF_HELP = (
    "A change, beside what is: 'horeka down', 'horeka down 2d..3d', 'topas gpus=20', 'topas price=0.5', "
    "'horeka queue*2', 'topas owner=none'. Several are made together."
)


@dataclass(frozen=True, slots=True)
class JobOptions(opt.OptionGroup):
    """Options: how a trace is read, and which of its jobs are replayed."""

    trace_columns: Annotated[str | None, opt.option("A=B,...", COLUMNS_HELP)] = None
    group: Annotated[list[str] | None, opt.option("NAME", "Jobs of this group or user only; repeatable.")] = None
    begin: Annotated[str | None, opt.option("TIME", "Begin so long after the first job, as in 28d.", "--from")] = None
    span: Annotated[str | None, opt.option("TIME", "Jobs of so long only, as in 7d.")] = None
    limit: Annotated[int | None, opt.option("N", "No more jobs than this.", min=1)] = None
    gpus: Annotated[list[int] | None, opt.option("N", "Jobs of so many GPUs only; repeatable.", min=1)] = None
    cap_duration: Annotated[str | None, opt.option("TIME", "Longer jobs end after this, as in 24h.")] = None
    vram_mix: Annotated[bool, opt.switch(VRAM_MIX_HELP, "--vram-mix")] = False
    ignore: Annotated[list[str] | None, opt.option("FIELD", IGNORE_HELP)] = None
    skip_bad: Annotated[
        bool, opt.switch("Leave out lines that cannot be understood, and count them.", "--skip-bad")
    ] = False

    @property
    def for_traces(self) -> bool:
        """True if an option is given that jobs on record have no use for."""
        return bool(self.begin or self.ignore or self.trace_columns or self.skip_bad)

    def selection(self) -> TraceSelection:
        for name in self.ignore or ():
            if name not in IGNORABLE_FIELDS:
                raise VerbError(f"--ignore {name}: {choices(name, IGNORABLE_FIELDS)}", code=Exit.USAGE)
        return TraceSelection(
            groups=tuple(name for names in self.group or () for name in names.split(",")),
            from_s=_seconds("--from", self.begin, 0.0),
            span_s=_seconds("--span", self.span, inf),
            limit=self.limit,
            gpus=tuple(self.gpus or ()),
            cap_s=_seconds("--cap-duration", self.cap_duration, inf),
            vram_seed=VRAM_SEED if self.vram_mix else None,
            ignore=tuple(self.ignore or ()),
        )


def _seconds(option: str, duration: str | None, default_s: float) -> float:
    if duration is None:
        return default_s
    try:
        return parse_duration(duration)
    except ValueError as error:
        raise VerbError(f"{option}: {error}", code=Exit.USAGE) from None


@opt.shared
def simulate(
    trace: Annotated[Path | None, opt.argument("TRACE", TRACE_HELP)] = None,
    recorded: Annotated[bool, opt.switch(RECORDED_HELP, "--recorded")] = False,
    world: Annotated[Path | None, opt.option("PATH", WORLD_HELP)] = None,
    seeds: Annotated[int, opt.option("N", "Replay with seeds 1 to N.", min=1, max=10_000)] = 1,
    seed: Annotated[int | None, opt.option("N", "Replay with this seed alone.")] = None,
    jobs: Annotated[int | None, opt.option("N", JOBS_HELP, "--jobs", "-j", min=1)] = None,
    policy: Annotated[Path | None, opt.option("PATH", "Another configuration, beside that of --config.")] = None,
    changes: Annotated[list[str] | None, opt.option("TEXT", WHAT_IF_HELP, "--what-if")] = None,
    compare: Annotated[tuple[Path, Path] | None, opt.option("A B", COMPARE_HELP)] = None,
    report: Annotated[Path | None, opt.option("FILE", "Write a page with plots.")] = None,
    json_file: Annotated[Path | None, opt.option("FILE", "Write all numbers of all replays.", "--json")] = None,
    *,
    options: JobOptions,
    where: opt.Where,
    show: opt.Show,
) -> None:
    """Replay jobs against the configured sites, with the real service in simulated time.

    Nothing is connected to and nothing started: site files say types, limits, timeouts and prices, the world file what
    the sites are. Same seed, same replay. Exit 3 if a promise was broken in a replay, a limit exceeded among them, or
    if a file cannot be understood.

    \b
    Examples:
      provisioner simulate jobs.csv.gz --span 7d
      provisioner simulate jobs.csv --trace-columns submit=SubmitTime,duration=RunTime,gpus=GPUs --report out.html
      provisioner simulate jobs.csv --world world.yaml --seeds 10 --compare now.yaml new.yaml
      provisioner simulate --recorded --what-if 'horeka down 2d..3d'
      provisioner simulate jobs.csv -o json | jq '.figures[] | select(.figure == "Waste")'
    """
    cut = options.selection()
    if recorded == (trace is not None):
        raise VerbError("name a TRACE, or take the jobs on record with --recorded", code=Exit.USAGE)
    if recorded and options.for_traces:
        raise VerbError("--from, --ignore, --trace-columns and --skip-bad are for a TRACE", code=Exit.USAGE)
    if seed is not None and seeds > 1:
        raise VerbError("--seed is one seed, --seeds is seeds 1 to N: leave one out", code=Exit.USAGE)
    configs = [*(compare or (opt.config_path(where),)), *([policy] if policy else [])]
    _require_writable(report, json_file)
    read = _trace(trace, cut, options) if trace is not None else _recorded_trace(opt.store_path(where), cut)
    replays = _replays(configs, world, changes or (), read, compare=compare is not None)
    notes = tuple(dict.fromkeys(line for each in replays for line in each.world.notes))
    note(*notes, *dict.fromkeys(line for each in replays for line in _misfit_notes(each)))
    runs = _run(replays, [seed] if seed is not None else range(1, seeds + 1), jobs or os.cpu_count() or 1, show)
    if json_file is not None:
        write_file(json_file, report_page.to_json(runs))
        note(f"all numbers: {json_file}")
    if report is not None:
        command = shlex.join(["provisioner", *sys.argv[1:]])
        write_file(report, report_page.html_page(runs, notes=notes, command=command))
        note(f"report: {report}")
    answer = simulation(read, replays, runs, brief=show.output is opt.Format.TABLE)
    out.present(replace(show, watch=False), lambda: answer)
    broken = [line for results in runs.values() for result in results for line in result.violations]
    if broken:
        more = [f"and {len(broken) - 5} more"] if len(broken) > 5 else []
        summary = f"{formatting.count(len(broken), 'violation')} in the replays:"
        raise VerbError(summary, *broken[:5], *more, code=Exit.UNMET)


def _trace(path: Path, cut: TraceSelection, options: JobOptions) -> Trace:
    """Return the jobs of a trace file."""
    try:
        columns = traces.declared_columns(options.trace_columns) if options.trace_columns is not None else None
    except TraceError as error:
        raise VerbError(*(f"--trace-columns: {line}" for line in error.lines), code=Exit.USAGE) from None
    found = traces.located(path, Path())
    if found is None:
        raise VerbError(f"no trace at {path}", "a name alone is also looked for in the directory PROVISIONER_TRACES")
    try:
        read = traces.read_trace(found, cut, columns=columns, skip_bad=options.skip_bad)
    except TraceError as error:
        raise VerbError(*error.lines, code=Exit.UNMET) from None
    if read.left_out:
        note(f"{read.name}: left out {formatting.count(read.left_out, 'job')} without a run time or a GPU")
    if read.bad:
        note(f"{read.name}: left out {formatting.count(len(read.bad), 'bad line')}, the first: {read.bad[0]}")
    return read


def _recorded_trace(path: Path, cut: TraceSelection) -> Trace:
    """Return the jobs on record of its last 30 days, or of ``--span``."""
    if not path.is_file():
        raise VerbError(f"no record at {path}", "`provisioner run` makes it; --store PATH names another")
    until = traces.poll_time(path) or time.time()
    since = until - (cut.span_s if isfinite(cut.span_s) else RECORDED_S)
    note(f"{path}: jobs submitted from {formatting.iso(since)} to {formatting.iso(until)}")
    found = traces.recorded_jobs(path, since=since, until=until)
    begin_s = found.jobs[0].submit_s if found.jobs else 0.0
    note(*found.notes, f"the replay begins with the first job, at {formatting.iso(since + begin_s)}")
    try:
        return Trace("recorded", traces.cut_jobs(found.jobs, replace(cut, from_s=begin_s, span_s=inf)))
    except TraceError as error:
        raise VerbError(f"{path}: {error}", code=Exit.UNMET) from None


def _run(replays: Sequence[Replay], seeds: Sequence[int], processes: int, show: opt.Show) -> Runs:
    span_s = max(replay.span_s for replay in replays)
    try:
        with interruptible(), progress(len(replays) * len(seeds), span_s, color=not show.no_color) as tell:
            return run_all(replays, seeds, jobs=processes, tell=tell)
    except BrokenProcessPool:
        raise VerbError(
            "the process of a replay was killed", "if memory was short: fewer at a time, --jobs 1"
        ) from None


def _require_writable(report: Path | None, json_file: Path | None) -> None:
    """Raise :class:`VerbError` for a file that cannot be written, before hours of replays."""
    for path in (report, json_file):
        if path is not None and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
            raise VerbError(f"{path}: no directory {path.parent} that can be written to")
        if path is not None and path.is_dir():
            raise VerbError(f"{path} is a directory: name a file")
    if report is not None:
        try:
            report_page.require_matplotlib()
        except report_page.PlotsMissingError as error:
            raise VerbError(f"{report}: {error}") from None
