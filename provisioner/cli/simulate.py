"""``provisioner simulate``: replay a trace, or jobs on record, against the configured sites; compare, ask what if."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import inf, isfinite
from pathlib import Path
from statistics import fmean
from typing import Annotated, NamedTuple, NoReturn

from provisioner import formatting
from provisioner.cli import options as opt
from provisioner.cli import output as out
from provisioner.cli.options import Exit, VerbError
from provisioner.cli.output import note
from provisioner.config import ConfigError, load
from provisioner.durations import parse_duration
from provisioner.planner.matching import nearness
from provisioner.simulator import report as report_page
from provisioner.simulator import results as figures
from provisioner.simulator import traces, what_if
from provisioner.simulator.replay import REPLAY_LIMIT_S, Replay, run_all
from provisioner.simulator.results import FIGURES, KeyFigure, PairedDifference, Runs, SeedStatistics
from provisioner.simulator.traces import Trace, TraceError, TraceSelection
from provisioner.simulator.world_file import describe_world, world_of
from provisioner.values import frozen

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
    why: str
    """Main reasons for the waits."""


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


SIMULATION_FACTS = (
    out.text("trace", "Name of the trace; `recorded` for jobs on record.", "trace.name", level=0),
    out.whole("jobs", "Jobs replayed.", lambda f: len(f.trace.jobs), level=0),
    out.span_s(
        "span_s", "From begin to last submission, seconds.", "trace.span_s", head="SPAN", null=False
    ),
    out.whole("left_out", "Jobs without a run time or a GPU.", "trace.left_out"),
    out.whole(
        "bad_lines",
        "Lines left out because they could not be understood.",
        lambda f: len(f.trace.bad),
    ),
    out.items("seeds", "Seeds of the replays.", level=0),
    out.items(
        "policies",
        "What was replayed; others are compared with the first.",
        level=0,
        unit="; ".join,
    ),
    out.items("world", "The sites of the first.", level=0, unit="; ".join),
    out.items("notes", "Assumptions about the sites, where no file has the value."),
)


def _deviation(over: SeedStatistics | None) -> str:
    return figures.amount(over.deviation) if over and over.count > 1 else ""


def _difference_deviation(row: FigureRow) -> str:
    return _deviation(row.versus.spread) if row.versus else ""


def _improved(row: FigureRow) -> str:
    return (
        f"{row.versus.improved} of {row.versus.spread.count}"
        if row.versus and row.figure.better
        else ""
    )


_amount = partial(out.number, null=True, convert=out.finite)
_POLICY = out.ident("policy", "Under which policy.", least=16)
_DIFFERENCE = "Mean difference to the first policy, seed by seed; null for the first."
_SPREAD = "versus.spread.deviation"
FIGURE_COLUMNS = (
    out.text("group", "What the figure is about.", "heading"),
    out.text("figure", "Its name.", "figure.name", level=0),
    out.text("unit", "Its unit; empty for a count.", "figure.unit", level=0),
    _POLICY,
    _amount(
        "mean", "Mean over the seeds; null: infinite.", "over.mean", level=0, unit=figures.amount
    ),
    _amount(
        "deviation",
        "Over the seeds.",
        "over.deviation",
        head="+-",
        spare=2,
        show=lambda r: _deviation(r.over),
    ),
    out.whole("seeds", "Replays that tell the figure.", "over.count"),
    _amount(
        "difference",
        _DIFFERENCE,
        "versus.spread.mean",
        head="DIFFERENCE",
        spare=1,
        unit=figures.change,
    ),
    _amount(
        "difference_deviation", "Of these.", _SPREAD, head="+-", spare=2, show=_difference_deviation
    ),
    out.whole(
        "improved",
        "Seeds.",
        "versus.improved",
        null=True,
        head="BETTER IN",
        spare=2,
        show=_improved,
    ),
)
_wait = partial(out.number, convert=out.rounded, unit=figures.amount)
WAIT_COLUMNS = (
    out.ident("class", "What the jobs ask for.", "label", least=16),
    _POLICY,
    out.number("jobs", "Jobs done.", level=0, unit=figures.amount),
    _wait("mean_s", "Mean wait.", head="MEAN s"),
    _wait("p50_s", "Median wait.", head="MEDIAN s"),
    _wait("p95_s", "95th percentile.", head="P95 s"),
    out.words(
        "why", "Main reasons of the planner, with their shares of the waiting time.", least=20
    ),
)
VIOLATION_COLUMNS = (
    out.text("policy", "Under which policy.", level=0),
    out.whole("seed", "With which seed.", level=0),
    out.words("text", "The promise that was broken.", least=30),
)


def simulation(
    trace: Trace, replays: Sequence[Replay], runs: Runs, *, brief: bool = False
) -> out.Document:
    """Return the answer; with ``brief`` only the main figures."""
    results = [(policy, result) for policy, of_policy in runs.items() for result in of_policy]
    facts = SimulationRow(
        trace,
        seeds=[result.seed for result in next(iter(runs.values()), ())],
        policies=list(runs),
        world=[line for replay in replays[:1] for line in describe_world(replay.world)],
        notes=_world_notes(replays),
    )
    violations = [
        ViolationRow(policy, result.seed, line)
        for policy, result in results
        for line in result.violations
    ]
    shown, title = list(_figure_rows(runs, brief)), "figures, mean over the seeds"
    return out.Document(
        SIMULATION_SCHEMA,
        SIMULATION_FACTS,
        facts,
        {
            "figures": out.Listing("", FIGURE_COLUMNS, shown, lambda r: r.figure.name, title=title),
            "classes": out.Listing(
                "", WAIT_COLUMNS, list(_wait_rows(runs)), title="waits by size of the jobs"
            ),
            "violations": out.Listing("", VIOLATION_COLUMNS, violations),
        },
        main="figures",
        name=trace.name,
    )


def _world_notes(replays: Sequence[Replay]) -> list[str]:
    return list(dict.fromkeys(line for replay in replays for line in replay.world.notes))


def _figure_rows(runs: Runs, brief: bool) -> Iterator[FigureRow]:
    first = next(iter(runs.values()), ())
    for heading, of_heading in FIGURES.items():
        for figure in of_heading:
            if brief and figure.detail:
                continue
            for n, (policy, results) in enumerate(runs.items()):
                if (over := figures.spread(figure.of(result) for result in results)) is not None:
                    versus = figures.paired(figure, first, results) if n else None
                    yield FigureRow(heading, figure, policy, over, versus)


_WAIT_MEANS = ("jobs", "mean_s", "p50_s", "p95_s")


def _wait_rows(runs: Runs) -> Iterator[WaitRow]:
    for label in sorted(
        {label for results in runs.values() for r in results for label in r.waits_by_class}
    ):
        for policy, results in runs.items():
            waits = [r.waits_by_class[label] for r in results if label in r.waits_by_class]
            if waits:
                jobs, mean_s, p50_s, p95_s = (
                    fmean(getattr(w, key) for w in waits) for key in _WAIT_MEANS
                )
                why = _main_reasons(r.waits_why.get(label, {}) for r in results)
                yield WaitRow(label, policy, jobs, mean_s, p50_s, p95_s, why)


def _main_reasons(waits_why: Iterable[Mapping[str, float]]) -> str:
    """Return the reasons for most of the waiting, with their shares: ``node-reserved 60 %, site-full 35 %``."""
    total: dict[str, float] = {}
    for each in waits_why:
        for kind, part_s in each.items():
            total[kind] = total.get(kind, 0.0) + part_s
    parts = sorted(
        ((100 * part_s / sum(total.values()), kind) for kind, part_s in total.items() if part_s),
        reverse=True,
    )
    return ", ".join(f"{kind} {percent:.0f} %" for percent, kind in parts[:3])


def _replays(
    configs: Sequence[Path],
    world: Path | None,
    changes: Sequence[str],
    trace: Trace,
    *,
    compare: bool,
) -> list[Replay]:
    """Return the replays to compare: what is, and what would be."""
    if twice := next((config for n, config in enumerate(configs) if config in configs[:n]), None):
        raise VerbError(f"{twice} is named twice: there is nothing to compare", code=Exit.USAGE)
    replays = [_replay_of(config, world, trace) for config in configs]
    if not changes:
        return replays
    others = []
    for each in replays:
        changed = each.world
        with opt.reported(what_if.QuestionError, prefix="--what-if: ", code=Exit.USAGE):
            for asked in changes:
                question = what_if.read(asked, [facility.name for facility in changed.facilities])
                changed = what_if.changed(changed, question)
        others.append(replace(each, world=changed, policy=", ".join((each.policy, *changes))))
    # A change is compared with what is; where two policies are compared, both undergo it.
    return others if compare else [replays[0], others[-1]]


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
        unmet = [
            (kind, lack)
            for kind in replay.types
            if (lack := wants.unmet_requirement(kind)) is not None
        ]
        if len(unmet) == len(replay.types):
            lacks = (
                f" ({max(unmet, key=lambda pair: nearness(*pair))[1].dimension})" if unmet else ""
            )
            jobs[wants.label + lacks] += times
    if not jobs:
        return []
    shown = ", ".join(f"{times:,} of {size}" for size, times in jobs.most_common(3))
    more = f" and {len(jobs) - 3} more sizes" if len(jobs) > 3 else ""
    total = formatting.count(jobs.total(), "job")
    return [
        f"{replay.policy}: {total} of {len(replay.jobs):,} fit no drone type and wait for ever: {shown}{more}"
    ]


def progress(turns: int, span_s: float) -> Callable[[int, float], None]:
    """Return a listener that prints now and then how far the replays are: ``turns`` of ``span_s`` of simulated time."""
    reached: dict[int, float] = {}
    interval_s, printed_at = 3.0 if sys.stderr.isatty() else 30.0, time.monotonic()

    def tell(turn: int, at_s: float) -> None:
        nonlocal printed_at
        reached[turn] = min(at_s, span_s)
        if time.monotonic() - printed_at >= interval_s:
            printed_at = time.monotonic()
            done = sum(part_s >= span_s for part_s in reached.values())
            days, of_days = (seconds / 86400 for seconds in (sum(reached.values()), turns * span_s))
            note(f"{done} of {turns} replays done, {days:.1f} of {of_days:.1f} days")

    return tell


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the replays as Ctrl-C does, their processes included.

    A pool of processes that is given up may write to a pipe that it has closed itself, and expects
    an error from that; the SIGPIPE of a command line would end us at once.
    """

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    before[signal.SIGPIPE] = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


VRAM_SEED = 7
"""The same GPU memory for the same job in every replay."""
RECORDED_S = 30 * 86400.0
IGNORABLE_FIELDS = ("gpu_milli", "cpus", "memory", "vram", "user", "group")
COLUMNS_HELP = (
    "Which column of a CSV holds what: submit, duration, gpus, gpu_milli, vram, cpus, memory, user, group; in s and "
    "MiB, or with a factor: memory=GB*1024."
)
WHAT_IF_HELP = (
    "A change, beside what is: 'horeka down', 'horeka down 2d..3d', 'topas gpus=20', 'topas price=0.5', "
    "'horeka queue*2', 'topas owner=none'. Several are made together."
)


@frozen
class JobOptions(opt.OptionGroup):
    """Options: how a trace is read, and which of its jobs are replayed."""

    trace_columns: Annotated[str | None, opt.option("A=B,...", COLUMNS_HELP)] = None
    group: Annotated[
        list[str] | None, opt.option("NAME", "Jobs of this group or user only; repeatable.")
    ] = None
    begin: Annotated[
        str | None, opt.option("TIME", "Begin so long after the first job, as in 28d.", "--from")
    ] = None
    span: Annotated[str | None, opt.option("TIME", "Jobs of so long only, as in 7d.")] = None
    limit: Annotated[int | None, opt.option("N", "No more jobs than this.", min=1)] = None
    gpus: Annotated[
        list[int] | None, opt.option("N", "Jobs of so many GPUs only; repeatable.", min=1)
    ] = None
    cap_duration: Annotated[
        str | None, opt.option("TIME", "Longer jobs end after this, as in 24h.")
    ] = None
    vram_mix: Annotated[
        bool, opt.switch("Draw the GPU memory of each job, 8 to 80 GB.", "--vram-mix")
    ] = False
    ignore: Annotated[
        list[str] | None, opt.option("FIELD", "Take this field as unknown; repeatable.")
    ] = None
    skip_bad: Annotated[
        bool, opt.switch("Leave out lines that cannot be understood.", "--skip-bad")
    ] = False

    def selection(self) -> TraceSelection:
        if wrong := [name for name in self.ignore or () if name not in IGNORABLE_FIELDS]:
            raise opt.unknown("field", wrong[0], IGNORABLE_FIELDS, code=Exit.USAGE)
        return TraceSelection(
            groups=tuple(name for names in self.group or () for name in names.split(",")),
            from_s=opt.parsed(parse_duration, "--from", self.begin)
            if self.begin is not None
            else 0.0,
            span_s=opt.parsed(parse_duration, "--span", self.span)
            if self.span is not None
            else inf,
            limit=self.limit,
            gpus=tuple(self.gpus or ()),
            cap_s=opt.parsed(parse_duration, "--cap-duration", self.cap_duration)
            if self.cap_duration
            else inf,
            vram_seed=VRAM_SEED if self.vram_mix else None,
            ignore=tuple(self.ignore or ()),
        )


@opt.shared
def simulate(
    trace: Annotated[
        Path | None, opt.argument("TRACE", "A .csv or .csv.gz; here, or in PROVISIONER_TRACES.")
    ] = None,
    recorded: Annotated[
        bool, opt.switch("The jobs on record, of 30 days or of --span.", "--recorded")
    ] = False,
    world: Annotated[
        Path | None, opt.option("PATH", "What the sites are; else derived from their limits.")
    ] = None,
    seeds: Annotated[int, opt.option("N", "Replay with seeds 1 to N.", min=1, max=10_000)] = 1,
    seed: Annotated[int | None, opt.option("N", "Replay with this seed alone.")] = None,
    jobs: Annotated[
        int | None, opt.option("N", "Replays at one time.", "--jobs", "-j", min=1)
    ] = None,
    policy: Annotated[
        Path | None, opt.option("PATH", "Another configuration, beside that of --config.")
    ] = None,
    changes: Annotated[list[str] | None, opt.option("TEXT", WHAT_IF_HELP, "--what-if")] = None,
    compare: Annotated[
        tuple[Path, Path] | None, opt.option("A B", "These two configurations side by side.")
    ] = None,
    report: Annotated[Path | None, opt.option("FILE", "Write a page with plots.")] = None,
    json_file: Annotated[
        Path | None, opt.option("FILE", "Write all numbers of all replays.", "--json")
    ] = None,
    *,
    options: JobOptions,
    query: opt.Query,
) -> None:
    """Replay jobs against the configured sites, with the real service in simulated time.

    Nothing is connected to and nothing started: site files say types, limits, timeouts and prices, the world file what
    the sites are. Same seed, same replay. Exit 3 if a promise was broken in a replay, a limit exceeded among them, or
    if a file cannot be understood.

    \b
    Examples:
      provisioner simulate jobs.csv --trace-columns submit=SubmitTime,duration=RunTime,gpus=GPUs --report out.html
      provisioner simulate jobs.csv --world world.yaml --seeds 10 --compare now.yaml new.yaml
      provisioner simulate --recorded --what-if 'horeka down 2d..3d'
    """
    cut = options.selection()
    if recorded == (trace is not None):
        raise VerbError("name a TRACE, or take the jobs on record with --recorded", code=Exit.USAGE)
    if recorded and (options.begin or options.ignore or options.trace_columns or options.skip_bad):
        raise VerbError(
            "--from, --ignore, --trace-columns and --skip-bad are for a TRACE", code=Exit.USAGE
        )
    if seed is not None and seeds > 1:
        raise VerbError(
            "--seed is one seed, --seeds is seeds 1 to N: leave one out", code=Exit.USAGE
        )
    configs = [*(compare or (opt.config_path(query),)), *([policy] if policy else [])]
    _require_writable(report, json_file)
    read = (
        _trace(trace, cut, options)
        if trace is not None
        else _recorded_trace(opt.store_path(query), cut)
    )
    replays = _replays(configs, world, changes or (), read, compare=compare is not None)
    notes = _world_notes(replays)
    note(*notes, *dict.fromkeys(line for each in replays for line in _misfit_notes(each)))
    every_seed = [seed] if seed is not None else range(1, seeds + 1)
    try:
        tell = progress(len(replays) * len(every_seed), max(replay.span_s for replay in replays))
        with interruptible():
            runs = run_all(replays, every_seed, jobs=jobs or os.cpu_count() or 1, tell=tell)
    except BrokenProcessPool:
        advice = "if memory was short: fewer at a time, --jobs 1"
        raise VerbError("the process of a replay was killed", advice) from None
    if json_file is not None:
        json_file.write_text(report_page.to_json(runs), encoding="utf-8")
        note(f"all numbers: {json_file}")
    if report is not None:
        command = shlex.join(["provisioner", *sys.argv[1:]])
        report.write_text(
            report_page.html_page(runs, notes=notes, command=command, at=time.time()),
            encoding="utf-8",
        )
        note(f"report: {report}")
    answer = simulation(read, replays, runs, brief=query.output is opt.Format.TABLE)
    out.present(replace(query, watch=False), lambda: answer)
    broken = [line for results in runs.values() for result in results for line in result.violations]
    if broken:
        more = [f"and {len(broken) - 5} more"] if len(broken) > 5 else []
        summary = f"{formatting.count(len(broken), 'violation')} in the replays:"
        raise VerbError(summary, *broken[:5], *more, code=Exit.UNMET)


def _trace(path: Path, cut: TraceSelection, options: JobOptions) -> Trace:
    with opt.reported(TraceError, prefix="--trace-columns: ", code=Exit.USAGE):
        columns = (
            traces.declared_columns(options.trace_columns)
            if options.trace_columns is not None
            else None
        )
    found = traces.located(path, Path())
    if found is None:
        raise VerbError(
            f"no trace at {path}",
            "a name alone is also looked for in the directory PROVISIONER_TRACES",
        )
    with opt.reported(TraceError, code=Exit.UNMET):
        read = traces.read_trace(found, cut, columns=columns, skip_bad=options.skip_bad)
    if read.left_out:
        note(
            f"{read.name}: left out {formatting.count(read.left_out, 'job')} without a run time or a GPU"
        )
    if read.bad:
        note(
            f"{read.name}: left out {formatting.count(len(read.bad), 'bad line')}, the first: {read.bad[0]}"
        )
    return read


def _recorded_trace(path: Path, cut: TraceSelection) -> Trace:
    """Return the jobs on record of its last 30 days, or of ``--span``."""
    if not path.is_file():
        raise VerbError(
            f"no record at {path}", "`provisioner run` makes it; --store PATH names another"
        )
    view = traces.last_view(path)
    until = view.taken_at if view is not None else time.time()
    since = until - (cut.span_s if isfinite(cut.span_s) else RECORDED_S)
    note(f"{path}: jobs submitted from {formatting.iso(since)} to {formatting.iso(until)}")
    found, notes = traces.recorded_jobs(path, since=since, until=until)
    begin_s = found[0].submit_s if found else 0.0
    note(*notes, f"the replay begins with the first job, at {formatting.iso(since + begin_s)}")
    with opt.reported(TraceError, prefix=f"{path}: ", code=Exit.UNMET):
        return Trace("recorded", traces.cut_jobs(found, replace(cut, from_s=begin_s, span_s=inf)))


def _require_writable(report: Path | None, json_file: Path | None) -> None:
    """Raise :class:`VerbError` for a file that cannot be written, before hours of replays."""
    for path in filter(None, (report, json_file)):
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise VerbError(f"{path}: no file in a directory that can be written to")
    if report is not None:
        with opt.reported(report_page.PlotsMissingError, prefix=f"{report}: "):
            report_page.require_matplotlib()
