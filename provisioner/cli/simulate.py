"""``provisioner simulate``: replay a trace, or jobs on record, against the configured sites; compare, ask what if."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from provisioner import formatting
from provisioner.cli.options import Exit, Format, Show, VerbError, Where, config_path, shared, store_path
from provisioner.cli.output import Column, Document, Listing, items, note, number, present, text, whole, words
from provisioner.cli.plan import write_file
from provisioner.formatting import age
from provisioner.simulator.figures import (
    FIGURES,
    KeyFigure,
    PairedDifference,
    SeedStatistics,
    amount,
    change,
    paired,
    spread,
)
from provisioner.simulator.replay import Replay
from provisioner.simulator.results import ReplayResult
from provisioner.simulator.traces import Trace
from provisioner.simulator.world_file import describe_world

if TYPE_CHECKING:
    from provisioner.simulator.replay import Replay, ReplayRun, UnplaceableJobs
    from provisioner.simulator.results import ReplayResult
    from provisioner.simulator.traces import Trace, TraceSelection
    from provisioner.simulator.world_file import WorldPlan

    Runs = Mapping[str, Sequence[ReplayResult]]

SIMULATION_SCHEMA = "provisioner.simulation/1"

BRIEF_FIGURES = (
    "Good",
    "Idle",
    "Boot and release",
    "Badput",
    "Waste",
    "Mean wait",
    "Median wait",
    "95th percentile of waits",
    "First start of a burst",
    "Owner's wait for drones",
    "Jobs done",
    "Jobs that fit no drone",
    "Requests",
    "Preempted",
    "Violations",
    "Decisions per second",
    "Energy per job",
)
"""Figures in tables, a part of all; wide tables and machine formats have all of them."""


@dataclass(frozen=True, slots=True)
class FigureRow:
    """KeyFigure of one policy."""

    heading: str
    figure: KeyFigure
    policy: str
    alone: bool
    """There is no other policy."""
    over: SeedStatistics
    versus: PairedDifference | None
    """Against the first policy, seed by seed."""


@dataclass(frozen=True, slots=True)
class WaitRow:
    """Waits of jobs of one size under one policy; means over the seeds."""

    label: str
    policy: str
    alone: bool
    jobs: float
    mean_s: float
    p50_s: float
    p95_s: float


@dataclass(frozen=True, slots=True)
class ViolationRow:
    policy: str
    seed: int
    text: str


@dataclass(frozen=True, slots=True)
class SimulationRow:
    trace: Trace
    seeds: tuple[int, ...]
    policies: tuple[str, ...]
    world: tuple[str, ...]
    notes: tuple[str, ...]


def simulation(
    trace: Trace, replays: Sequence[Replay], runs: Mapping[str, Sequence[ReplayResult]], *, brief: bool = False
) -> Document:
    """Return the answer; with ``brief`` only the main figures."""
    seeds = tuple(result.seed for result in next(iter(runs.values()), ()))
    world = tuple(line for replay in replays[:1] for line in describe_world(replay.world))
    notes = tuple(dict.fromkeys(line for replay in replays for line in replay.world.notes))
    facts = SimulationRow(trace, seeds, tuple(runs), world, notes)
    return Document(
        SIMULATION_SCHEMA,
        Listing("", _simulation_columns(), [facts], lambda f: f.trace.name),
        {
            "figures": Listing(
                "", _figure_columns(several=len(runs) > 1), list(_figure_rows(runs, brief)), lambda r: r.figure.name
            ),
            "classes": Listing("", _wait_columns(), list(_wait_rows(runs)), lambda r: r.label),
            "violations": Listing("", _violation_columns(), list(_violation_rows(runs)), lambda b: b.text),
        },
        {"figures": "figures, mean over the seeds", "classes": "waits by size of the jobs"},
        main="figures",
    )


def _figure_rows(runs: Mapping[str, Sequence[ReplayResult]], brief: bool) -> Iterator[FigureRow]:
    first = next(iter(runs.values()), ())
    for heading, figures in FIGURES.items():
        for figure in figures:
            if brief and figure.name not in BRIEF_FIGURES:
                continue
            for n, (policy, results) in enumerate(runs.items()):
                over = spread(figure.of(result) for result in results)
                if over is not None:
                    versus = paired(figure, first, results) if n else None
                    yield FigureRow(heading, figure, policy, len(runs) == 1, over, versus)


def _wait_rows(runs: Mapping[str, Sequence[ReplayResult]]) -> Iterator[WaitRow]:
    for label in sorted({label for results in runs.values() for r in results for label in r.waits_by_class}):
        for policy, results in runs.items():
            told = [r.waits_by_class[label] for r in results if label in r.waits_by_class]
            if told:
                jobs, mean_s, p50_s, p95_s = (
                    fmean(getattr(w, key) for w in told) for key in ("jobs", "mean_s", "p50_s", "p95_s")
                )
                yield WaitRow(label, policy, len(runs) == 1, jobs, mean_s, p50_s, p95_s)


def _violation_rows(runs: Mapping[str, Sequence[ReplayResult]]) -> Iterator[ViolationRow]:
    for policy, results in runs.items():
        for result in results:
            for line in result.violations:
                yield ViolationRow(policy, result.seed, line)


# ------------------------------------------------------------------------------------------------------------- columns


def _simulation_columns() -> tuple[Column, ...]:
    return (
        text("trace", "Name of the trace; `recorded` for jobs on record.", "trace.name", level=0),
        whole("jobs", "Jobs replayed.", lambda f: len(f.trace.jobs), level=0),
        number(
            "span_s",
            "From the begin of the replay to the last submission.",
            lambda f: round(f.trace.span_s, 3),
            head="SPAN",
            show=lambda f: age(f.trace.span_s),
        ),
        whole("left_out", "Jobs without a run time or a GPU.", "trace.left_out"),
        whole("bad_lines", "Lines left out because they could not be understood.", lambda f: len(f.trace.bad)),
        items("seeds", "Seeds of the replays.", lambda f: list(f.seeds), level=0),
        items(
            "policies",
            "What was replayed; others are compared with the first.",
            lambda f: list(f.policies),
            level=0,
            show=lambda f: "; ".join(f.policies),
        ),
        items("world", "The sites of the first.", lambda f: list(f.world), level=0, show=lambda f: "; ".join(f.world)),
        items("notes", "What no file told of the sites, and what was taken.", lambda f: list(f.notes)),
    )


def _figure_columns(*, several: bool = False) -> tuple[Column, ...]:
    """Return the columns of figures; with ``several`` policies the comparison is never left out."""
    spare = 0 if several else 1
    return (
        text("group", "What the figure is about.", "heading"),
        text("figure", "Its name.", "figure.name", level=0),
        text("unit", "Its unit; empty for a count.", "figure.unit", level=0),
        text(
            "policy",
            "Under which policy.",
            level=0,
            least=16,
            tail=True,
            spare=spare,
            show=lambda r: "" if r.alone else r.policy,
        ),
        number(
            "mean",
            "Mean over the seeds; null: infinite.",
            lambda r: _finite(r.over.mean),
            null=True,
            level=0,
            show=lambda r: amount(r.over.mean),
        ),
        number(
            "deviation",
            "Standard deviation over the seeds.",
            lambda r: _finite(r.over.deviation),
            head="+-",
            spare=2,
            show=lambda r: amount(r.over.deviation) if r.over.count > 1 else "",
        ),
        whole("seeds", "Replays that tell the figure.", "over.count"),
        number(
            "difference",
            "Mean difference to the first policy, seed by seed; null for the first.",
            lambda r: _finite(r.versus.spread.mean) if r.versus else None,
            null=True,
            head="DIFFERENCE",
            spare=spare,
            show=lambda r: change(r.versus.spread.mean) if r.versus else "",
        ),
        number(
            "difference_deviation",
            "Its standard deviation.",
            lambda r: _finite(r.versus.spread.deviation) if r.versus else None,
            null=True,
            head="+-",
            spare=2,
            show=lambda r: amount(r.versus.spread.deviation) if r.versus and r.versus.spread.count > 1 else "",
        ),
        whole(
            "improved",
            "Seeds in which it is better than the first.",
            "versus.improved",
            null=True,
            head="BETTER IN",
            spare=2,
            show=_improved_words,
        ),
    )


def _improved_words(row: FigureRow) -> str:
    if row.versus is None or not row.figure.better:
        return ""
    return f"{row.versus.improved} of {row.versus.spread.count}"


def _wait_columns() -> tuple[Column, ...]:
    return (
        text("class", "What the jobs ask for.", "label", level=0, least=16),
        text(
            "policy",
            "Under which policy.",
            level=0,
            least=16,
            tail=True,
            spare=1,
            show=lambda r: "" if r.alone else r.policy,
        ),
        number("jobs", "Jobs done.", level=0, show=lambda r: amount(r.jobs)),
        *(
            number(key, doc, convert=lambda wait_s: round(wait_s, 3), head=head, unit=amount)
            for key, head, doc in (
                ("mean_s", "MEAN s", "Mean wait."),
                ("p50_s", "MEDIAN s", "Median wait."),
                ("p95_s", "P95 s", "95th percentile."),
            )
        ),
    )


def _violation_columns() -> tuple[Column, ...]:
    return (
        text("policy", "Under which policy.", level=0),
        whole("seed", "With which seed.", level=0),
        words("text", "The promise that was broken.", least=30),
    )


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


@dataclass(frozen=True, slots=True)
class SimulationOrder:
    """Policies to replay, and the world."""

    config: Path
    world: Path | None
    policy: Path | None
    what_if: tuple[str, ...]
    compare: tuple[Path, ...]


def replays_of(order: SimulationOrder, trace: Trace) -> list[Replay]:
    """Return the replays to compare: what is, and what would be."""
    configs = [*(order.compare or (order.config,)), *([order.policy] if order.policy else [])]
    if twice := next((config for n, config in enumerate(configs) if config in configs[:n]), None):
        raise VerbError(f"{twice} is named twice: there is nothing to compare", code=Exit.USAGE)
    names = _short_names(configs)
    replays = [_replay_of(config, name, order.world, trace) for config, name in zip(configs, names, strict=True)]
    if not order.what_if:
        return replays
    worlds = [_world_if(each.world, order.what_if, trace.span_s) for each in replays]
    words = ", ".join(order.what_if)
    others = [replace(r, world=w, policy=f"{r.policy}, {words}") for r, w in zip(replays, worlds, strict=True)]
    # A change is compared with what is; where two policies are compared, both undergo it.
    return others if order.compare else [replays[0], others[-1]]


def _world_if(world: WorldPlan, questions: Sequence[str], span_s: float) -> WorldPlan:
    """Return ``world`` as it would be; note a change that comes after the last submission."""
    from provisioner.simulator.what_if import QuestionError, SiteOutage, changed, read

    try:
        for text in questions:
            question = read(text, [facility.name for facility in world.facilities])
            world = changed(world, question)
            if isinstance(question, SiteOutage) and question.from_s > span_s:
                note(f"--what-if: {text}: by then the last job has come: it does so after {formatting.age(span_s)}")
    except QuestionError as error:
        raise VerbError(f"--what-if: {error}", code=Exit.USAGE) from None
    return world


def _short_names(configs: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that differ."""
    parts = [config.absolute().parts for config in configs]
    least = next((n for n in range(1, max(map(len, parts))) if len({each[-n:] for each in parts}) == len(parts)), 0)
    return [str(Path(*each[-least:])) for each in parts]


def _replay_of(config: Path, name: str, world: Path | None, trace: Trace) -> Replay:
    from provisioner.config import ConfigError, load
    from provisioner.simulator.replay import REPLAY_LIMIT_S, Replay
    from provisioner.simulator.world_file import world_of

    settings = load(config, connects=False)
    try:
        plan = world_of(settings, world, span_s=trace.span_s + REPLAY_LIMIT_S)
    except ConfigError as error:
        raise VerbError(
            *map(str, error.problems), "the world file's keys: docs/how-to/simulate.md", code=Exit.UNMET
        ) from None
    return Replay(
        policy=name,
        trace=trace.name,
        jobs=trace.jobs,
        world=plan,
        rules=settings.policy,
        interval_s=settings.interval_s,
        active_interval_s=settings.active_interval_s,
        carbon_g_per_kwh=settings.carbon_g_per_kwh,
    )


def misfit_notes(replays: Sequence[Replay]) -> list[str]:
    """Return lines about jobs that no drone type fits: one, or one for each policy where they differ."""
    told = {replay.policy: _misfit_words(replay) for replay in replays}
    if len(set(told.values())) == 1:
        return [line for line in set(told.values()) if line]
    return [f"{policy}: {line or 'all jobs fit some drone type'}" for policy, line in told.items()]


def _misfit_words(replay: Replay) -> str:
    sizes = replay.unplaceable_jobs()
    if not sizes:
        return ""
    told = ", ".join(f"{alike.jobs:,} of {alike.label}{_lack_words(alike)}" for alike in sizes[:3])
    more = f" and {len(sizes) - 3} more sizes" if len(sizes) > 3 else ""
    number = formatting.count(sum(alike.jobs for alike in sizes), "job")
    return f"{number} of {len(replay.jobs):,} fit no drone type and wait for ever: {told}{more}"


def _lack_words(alike: UnplaceableJobs) -> str:
    """Return what the nearest type lacks: ``(cpus 16 > 8 of farm/gpu)``."""
    if not alike.dimension:
        return ""
    amount = {"gpus": formatting.gpus, "vram": formatting.size, "memory": formatting.size, "disk": formatting.size}.get(
        alike.dimension
    )
    if alike.dimension == "gpu_model":
        return f" (gpu_model {alike.wanted[0]} is not {alike.offered or 'told'} of {alike.nearest})"
    wanted = max(alike.wanted, key=float)
    most, offered = (amount(int(text)) if amount else text for text in (wanted, alike.offered))
    upto = "up to " if len(alike.wanted) > 1 else ""
    return f" ({alike.dimension} {upto}{most} > {offered} of {alike.nearest})"


ProgressListener = Callable[["ReplayRun", float], None]


PROGRESS_LINE_INTERVAL_S = 30.0
"""Pause between two lines of progress where stderr is no terminal."""


@contextmanager
def progress(
    turns: int, span_s: float, *, color: bool, clock: Callable[[], float] = time.monotonic
) -> Iterator[ProgressListener]:
    """Yield a listener that reports how far each of ``turns`` replays of ``span_s`` is, by simulated time.

    A bar on a terminal, elsewhere a line now and then.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, no_color=not color or bool(os.environ.get("NO_COLOR")))
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    reached: dict[int, float] = {}
    days = span_s / 86400.0
    began = told = clock()

    with bar:
        task = bar.add_task(f"0 of {turns} replays done", total=turns)

        def tell(turn: ReplayRun, at_s: float) -> None:
            nonlocal told
            reached[turn.number] = min(1.0, at_s / span_s) if span_s else 1.0
            done = sum(part >= 1.0 for part in reached.values())
            words = f"{done} of {turns} replays done, {sum(reached.values()) * days:.1f} of {turns * days:.1f} days"
            bar.update(task, completed=sum(reached.values()), description=words)
            if not sys.stderr.isatty() and clock() - told >= PROGRESS_LINE_INTERVAL_S:
                told = clock()
                print(f"{words}{_time_left(told - began, sum(reached.values()), turns)}", file=sys.stderr, flush=True)

        yield tell


def _time_left(taken_s: float, done: float, of: int) -> str:
    """Return the time that the rest will take, if it goes on as it went."""
    return f", about {formatting.age(taken_s / done * (of - done))} left" if done else ""


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


VRAM_SEED = 7
"""The same GPU memory for the same job in every replay."""
RECORDED_S = 30 * 86400.0


@shared
def simulate(
    where: Where,
    show: Show,
    trace: Annotated[
        Path | None,
        typer.Argument(
            metavar="TRACE",
            help="Jobs: .csv or .swf, also .gz; here, or where PROVISIONER_TRACES says.",
            show_default=False,
        ),
    ] = None,
    recorded: Annotated[
        bool,
        typer.Option(
            "--recorded",
            help="The jobs on record instead of a trace: of the 30 days before the last look, or of --span.",
        ),
    ] = False,
    world: Annotated[
        Path | None,
        typer.Option(
            "--world",
            metavar="PATH",
            help="What the sites are: queues, boots, owners, failures. Without it, derived from their limits.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", min=1, max=10_000, help="Replay with seeds 1 to N.")
    ] = 1,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="Replay with this seed alone.")] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            metavar="N",
            min=1,
            help="Replays at one time, each in a process. Default: as many as there are processors.",
        ),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option("--policy", metavar="PATH", help="Another configuration, beside that of --config.")
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="TEXT",
            help="A change, beside what is: 'horeka down', "
            "'horeka down 2d..3d', 'topas gpus=20', 'topas price=0.5', 'horeka queue*2', "
            "'topas owner=none'. Several are made together.",
        ),
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            "--compare", metavar="A B", help="These two configurations side by side, instead of that of --config."
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write a page with plots.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all numbers of all replays.")
    ] = None,
    trace_columns: Annotated[
        str | None,
        typer.Option(
            "--trace-columns",
            metavar="A=B,...",
            help="Which column of a CSV holds what: submit, "
            "duration, gpus, gpu_milli, vram, cpus, memory, user, group; in s and MiB, or with a "
            "factor: memory=GB*1024.",
        ),
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option("--group", metavar="NAME", help="Jobs of this group or user only; repeatable.")
    ] = None,
    begin: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Begin so long after the first job, as in 28d.")
    ] = None,
    span: Annotated[str | None, typer.Option("--span", metavar="TIME", help="Jobs of so long only, as in 7d.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="No more jobs than this.")] = None,
    gpus: Annotated[
        list[int] | None, typer.Option("--gpus", metavar="N", min=1, help="Jobs of so many GPUs only; repeatable.")
    ] = None,
    cap_duration: Annotated[
        str | None, typer.Option("--cap-duration", metavar="TIME", help="Longer jobs end after this, as in 24h.")
    ] = None,
    vram_mix: Annotated[
        bool, typer.Option("--vram-mix", help="Draw the GPU memory that each job wants, 8 to 80 GB: no trace tells it.")
    ] = False,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore",
            metavar="FIELD",
            help="Take gpu_milli, cpus, memory, vram, user or group as not told; repeatable.",
        ),
    ] = None,
    swf_cpus: Annotated[
        bool, typer.Option("--swf-cpus", help="In SWF a processor is a CPU of a job with one GPU, not a GPU.")
    ] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out lines that cannot be understood, and count them.")
    ] = False,
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
      provisioner simulate jobs.swf -o json | jq '.figures[] | select(.figure == "Waste")'
    """
    cut = _trace_cut(begin, span, cap_duration, group, limit, gpus, vram_mix, ignore)
    if recorded == (trace is not None):
        raise VerbError("name a TRACE, or take the jobs on record with --recorded", code=Exit.USAGE)
    if recorded and (begin or ignore or trace_columns or swf_cpus or skip_bad):
        raise VerbError("--from, --ignore, --trace-columns, --swf-cpus and --skip-bad are for a TRACE", code=Exit.USAGE)
    if seed is not None and seeds > 1:
        raise VerbError("--seed is one seed, --seeds is seeds 1 to N: leave one out", code=Exit.USAGE)
    order = SimulationOrder(
        compare[0] if compare else config_path(where), world, policy, tuple(what_if or ()), compare or ()
    )
    _require_writable(report, json_file)
    read = (
        _read_trace(trace, cut, trace_columns, skip_bad, swf_cpus) if trace is not None else _recorded_trace(where, cut)
    )
    replays = replays_of(order, read)
    for line in dict.fromkeys([*(line for each in replays for line in each.world.notes), *misfit_notes(replays)]):
        note(line)
    runs = _run_replays(replays, [seed] if seed is not None else list(range(1, seeds + 1)), jobs, show)
    _write_files(runs, replays, report, json_file)
    present(replace(show, watch=False), lambda: simulation(read, replays, runs, brief=show.output is Format.TABLE))
    broken = [line for results in runs.values() for result in results for line in result.violations]
    if broken:
        more = [f"and {len(broken) - 5} more"] if len(broken) > 5 else []
        raise VerbError(
            f"{formatting.count(len(broken), 'violation')} in the replays:", *broken[:5], *more, code=Exit.UNMET
        )


def _trace_cut(
    begin: str | None,
    span: str | None,
    cap: str | None,
    groups: Sequence[str] | None,
    limit: int | None,
    gpus: Sequence[int] | None,
    vram_mix: bool,
    ignore: Sequence[str] | None,
) -> TraceSelection:
    from provisioner.config.messages import choices
    from provisioner.simulator.traces import TraceSelection

    for name in ignore or ():
        if name not in IGNORABLE_FIELDS:
            raise VerbError(f"--ignore {name}: {choices(name, IGNORABLE_FIELDS)}", code=Exit.USAGE)
    plain = TraceSelection()
    return TraceSelection(
        groups=tuple(name for text in groups or () for name in text.split(",")),
        from_s=_seconds("--from", begin, plain.from_s),
        span_s=_seconds("--span", span, plain.span_s),
        limit=limit,
        gpus=tuple(gpus or ()),
        cap_s=_seconds("--cap-duration", cap, plain.cap_s),
        vram_seed=VRAM_SEED if vram_mix else None,
        ignore=tuple(ignore or ()),
    )


IGNORABLE_FIELDS = ("gpu_milli", "cpus", "memory", "vram", "user", "group")


def _seconds(option: str, text: str | None, otherwise: float) -> float:
    from provisioner.config.units import parse_duration

    if text is None:
        return otherwise
    try:
        return parse_duration(text)
    except ValueError as error:
        raise VerbError(f"{option}: {error}", code=Exit.USAGE) from None


# ---------------------------------------------------------------------------------------------------------------- jobs


def _read_trace(path: Path, cut: TraceSelection, columns: str | None, skip_bad: bool, swf_cpus: bool) -> Trace:
    from provisioner.simulator.traces import TraceColumns, TraceError, is_swf, located, read_trace

    swf = is_swf(path)
    if swf and columns is not None:
        raise VerbError(
            f"--trace-columns is for CSV; {path} has the fields of the Standard Workload Format", code=Exit.USAGE
        )
    if swf_cpus and not swf:
        raise VerbError(f"--swf-cpus is for the Standard Workload Format; {path} is CSV by its name", code=Exit.USAGE)
    try:
        declared = TraceColumns.declared(columns) if columns is not None else None
    except TraceError as error:
        raise VerbError(*(f"--trace-columns: {line}" for line in error.lines), code=Exit.USAGE) from None
    found = located(path, Path())
    if found is None:
        raise VerbError(f"no trace at {path}", "a name alone is also looked for in the directory PROVISIONER_TRACES")
    try:
        read = read_trace(found, cut, columns=declared, skip_bad=skip_bad, swf_cpus=swf_cpus)
    except TraceError as error:
        raise VerbError(*error.lines, code=Exit.UNMET) from None
    if read.left_out:
        note(f"{read.name}: left out {formatting.count(read.left_out, 'job')} without a run time or a GPU")
    if read.bad:
        note(f"{read.name}: left out {formatting.count(len(read.bad), 'bad line')}, the first: {read.bad[0]}")
    return read


def _recorded_trace(where: Where, cut: TraceSelection) -> Trace:
    """Return the jobs on record of its last 30 days, or of ``--span``."""
    from provisioner.simulator.traces import Trace, TraceError, cut_jobs, last_look, recorded

    path = store_path(where)
    if not path.is_file():
        raise VerbError(f"no record at {path}", "`provisioner run` makes it; --store PATH names another")
    until = last_look(path) or time.time()
    since = until - (cut.span_s if isfinite(cut.span_s) else RECORDED_S)
    note(f"{path}: jobs submitted from {formatting.iso(since)} to {formatting.iso(until)}")
    found = recorded(path, since=since, until=until)
    begin_s = found.jobs[0].submit_s if found.jobs else 0.0
    for line in (*found.notes, f"the replay begins with the first job, at {formatting.iso(since + begin_s)}"):
        note(line)
    try:
        return Trace("recorded", cut_jobs(found.jobs, replace(cut, from_s=begin_s, span_s=inf)))
    except TraceError as error:
        raise VerbError(f"{path}: {error}", code=Exit.UNMET) from None


# ------------------------------------------------------------------------------------------------------------- replays


def _run_replays(replays: Sequence[Replay], seeds: Sequence[int], jobs: int | None, show: Show) -> Runs:
    from concurrent.futures.process import BrokenProcessPool

    from provisioner.simulator.replay import run_all

    span_s = max(replay.span_s for replay in replays)
    processes = jobs or os.cpu_count() or 1
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
        from provisioner.simulator.figures import PlotsMissingError, plots_there

        try:
            plots_there()
        except PlotsMissingError as error:
            raise VerbError(f"{report}: {error}") from None


def _write_files(runs: Runs, replays: Sequence[Replay], report: Path | None, json_file: Path | None) -> None:
    """Write the files that were asked for, whole or not at all."""
    if json_file is not None:
        from provisioner.simulator.report import to_json

        write_file(json_file, to_json(runs))
        note(f"all numbers: {json_file}")
    if report is not None:
        from provisioner.simulator.report import html_page

        notes = tuple(dict.fromkeys(line for r in replays for line in r.world.notes))
        write_file(report, html_page(runs, notes=notes, command=shlex.join(["provisioner", *sys.argv[1:]])))
        note(f"report: {report}")
