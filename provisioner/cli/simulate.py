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
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path
from typing import Annotated, NoReturn

from provisioner import formatting
from provisioner.answers.errors import (
    Exit,
    UnmetError,
    UsageError,
    VerbError,
    parsed,
    reported,
    unknown,
)
from provisioner.answers.query import Format, Options, Query, option, switch
from provisioner.answers.simulation import simulation, world_notes
from provisioner.cli import options as opt, output as out
from provisioner.cli.output import note
from provisioner.cli.pipes import closed_pipes_raise
from provisioner.config import ConfigError, load
from provisioner.durations import parse_duration
from provisioner.planner.matching import nearness
from provisioner.simulator import report as report_page, traces, what_if
from provisioner.simulator.replay import REPLAY_LIMIT_S, Replay, run_all
from provisioner.simulator.results import Runs
from provisioner.simulator.traces import Trace, TraceError, TraceSelection
from provisioner.simulator.world_file import world_of


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
        raise UsageError(f"{twice} is named twice: there is nothing to compare")
    replays = [_replay_of(config, world, trace) for config in configs]
    if not changes:
        return replays
    others = []
    for each in replays:
        changed = each.world
        with reported(what_if.QuestionError, prefix="--what-if: ", code=Exit.USAGE):
            for asked in changes:
                question = what_if.read(asked, [facility.name for facility in changed.facilities])
                changed = what_if.changed(changed, question)
        others.append(replace(each, world=changed, policy=", ".join((each.policy, *changes))))
    # A change is compared with what is; where two policies are compared, both undergo it.
    return others if compare else [replays[0], others[-1]]


def _require_drones_that_join(replays: Sequence[Replay]) -> None:
    """Raise :class:`VerbError` for a world in which most drones of a site exceed one of its timeouts."""
    found = [
        f"{name}: `{key}` takes {formatting.duration(median_s)}, longer than `timeouts.{timeout}`"
        f" ({formatting.duration(most_s)}): most drones would never run a job"
        for replay in replays
        for facility in replay.world.facilities
        for name, key, median_s, timeout, most_s in facility.beyond_timeouts()
    ]
    if found:
        advice = "name the real duration in a world file (--world), or raise the timeout in the site's file"
        raise UnmetError(*dict.fromkeys(found), advice)


def _replay_of(config: Path, world: Path | None, trace: Trace) -> Replay:
    settings = load(config, connects=False)
    try:
        plan = world_of(settings, world, span_s=trace.span_s + REPLAY_LIMIT_S)
    except ConfigError as error:
        advice = "the world file's keys: docs/how-to/simulate.md"
        raise UnmetError(*map(str, error.problems), advice) from None
    return Replay(
        policy=str(config),
        trace=trace.name,
        jobs=trace.jobs,
        world=plan,
        rules=settings.policy,
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
        f"{replay.policy}: {total} of {len(replay.jobs):,} fit no drone type and never start: {shown}{more}"
    ]


def progress(turns: int, span_s: float) -> Callable[[int, float], None]:
    """Return a listener that prints now and then how far ``turns`` replays are; the last job arrives at ``span_s``."""
    reached: dict[int, float] = {}
    interval_s = 3.0 if sys.stderr.isatty() else 30.0
    printed_at = time.monotonic()

    def tell(turn: int, at_s: float) -> None:
        nonlocal printed_at
        reached[turn] = at_s
        if time.monotonic() - printed_at >= interval_s:
            printed_at = time.monotonic()
            running = [each_s for each_s in reached.values() if isfinite(each_s)]
            said = f"{len(reached) - len(running)} of {turns} replays done"
            if running:
                last = formatting.duration(span_s)
                said += f", simulated time {formatting.duration(max(running))}, the last job arrives at {last}"
            note(said)

    return tell


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the replays as Ctrl-C does, their processes included.

    A pool of processes that is given up may write to a pipe that it has closed itself, and expects
    an error from that.
    """

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        with closed_pipes_raise():
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


VRAM_SEED = 7
"""The same GPU memory for the same job in every replay."""
RECORDED_S = 30 * 86400.0
IGNORABLE_FIELDS = ("gpu_milli", "cpus", "memory", "vram", "user", "group")
COLUMNS_HELP = (
    "Columns of a CSV for submit, duration, gpus, gpu_milli, vram, cpus, memory, user, group; in s and "
    "MiB, or with a factor: memory=GB*1024."
)
WHAT_IF_HELP = (
    "Also replay with this change: 'horeka down', 'horeka down 2d..3d', 'topas gpus=20', 'topas price=0.5', "
    "'horeka queue*2', 'topas owner=none'. Several apply together."
)


class JobOptions(Options):
    """Options: how a trace is read, and which of its jobs are replayed."""

    trace_columns: Annotated[str | None, option("A=B,...", COLUMNS_HELP)] = None
    group: Annotated[
        list[str] | None, option("NAME", "Replay only jobs of this group or user; repeatable.")
    ] = None
    begin: Annotated[
        str | None, option("TIME", "Skip the first part of the trace, for example 28d.", "--from")
    ] = None
    span: Annotated[
        str | None, option("TIME", "Replay only this length of the trace, for example 7d.")
    ] = None
    limit: Annotated[int | None, option("N", "Replay at most this number of jobs.", least=1)] = None
    gpus: Annotated[
        list[int] | None,
        option("N", "Replay only jobs with this number of GPUs; repeatable.", least=1),
    ] = None
    cap_duration: Annotated[
        str | None, option("TIME", "Cut longer jobs to this run time, for example 24h.")
    ] = None
    vram_mix: Annotated[bool, switch("Draw the GPU memory of each job, 8 to 80 GB.")] = False
    ignore: Annotated[
        list[str] | None, option("FIELD", "Treat this field as unknown; repeatable.")
    ] = None
    skip_bad: Annotated[bool, switch("Skip invalid lines.")] = False

    @property
    def are_for_a_trace(self) -> bool:
        return bool(self.begin or self.ignore or self.trace_columns or self.skip_bad)

    def selection(self) -> TraceSelection:
        if wrong := [name for name in self.ignore or () if name not in IGNORABLE_FIELDS]:
            raise unknown("field", wrong[0], IGNORABLE_FIELDS, code=Exit.USAGE)
        return TraceSelection(
            groups=tuple(name for names in self.group or () for name in names.split(",")),
            from_s=parsed(parse_duration, "--from", self.begin) if self.begin is not None else 0.0,
            span_s=parsed(parse_duration, "--span", self.span) if self.span is not None else inf,
            limit=self.limit,
            gpus=tuple(self.gpus or ()),
            cap_s=parsed(parse_duration, "--cap-duration", self.cap_duration)
            if self.cap_duration
            else inf,
            vram_seed=VRAM_SEED if self.vram_mix else None,
            ignore=tuple(self.ignore or ()),
        )


@opt.shared
def simulate(
    trace: Annotated[
        Path | None,
        opt.argument(
            "TRACE",
            "Trace (.csv or .csv.gz): a path, or a name in the directory PROVISIONER_TRACES.",
        ),
    ] = None,
    recorded: Annotated[
        bool,
        opt.switch("Replay the jobs on record of the last 30 days, or of --span.", "--recorded"),
    ] = False,
    world: Annotated[
        Path | None,
        opt.option(
            "PATH",
            "World file with nodes, queues and boot times; default: derived from the limits.",
        ),
    ] = None,
    seeds: Annotated[int, opt.option("N", "Replay with seeds 1 to N.", min=1, max=10_000)] = 1,
    seed: Annotated[int | None, opt.option("N", "Replay with this single seed.")] = None,
    jobs: Annotated[
        int | None,
        opt.option(
            "N", "Number of concurrent replays; default: one per CPU.", "--jobs", "-j", min=1
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        opt.option(
            "PATH", "Also replay with this configuration, and compare with that of --config."
        ),
    ] = None,
    changes: Annotated[list[str] | None, opt.option("TEXT", WHAT_IF_HELP, "--what-if")] = None,
    compare: Annotated[
        tuple[Path, Path] | None, opt.option("A B", "Compare these two configurations.")
    ] = None,
    report: Annotated[Path | None, opt.option("FILE", "Write an HTML page with plots.")] = None,
    json_file: Annotated[
        Path | None, opt.option("FILE", "Write all numbers of all replays as JSON.", "--json")
    ] = None,
    *,
    options: JobOptions,
    query: Query,
    host: opt.Host,
) -> None:
    """Replay jobs against the configured sites, with the real service in simulated time.

    No site is contacted. The site files give types, limits, timeouts and prices; the world file gives nodes, queues and
    boot times. The same seed gives the same replay. Exit 3 if a replay broke a promise (such as a limit) or a file is
    invalid.

    \b
    Examples:
      provisioner simulate jobs.csv --trace-columns submit=SubmitTime,duration=RunTime,gpus=GPUs --report out.html
      provisioner simulate jobs.csv --world world.yaml --seeds 10 --compare now.yaml new.yaml
      provisioner simulate --recorded --what-if 'horeka down 2d..3d'
    """
    cut = options.selection()
    if recorded == (trace is not None):
        raise UsageError("name a TRACE, or replay the jobs on record with --recorded")
    if recorded and options.are_for_a_trace:
        raise UsageError("--from, --ignore, --trace-columns and --skip-bad need a TRACE")
    if seed is not None and seeds > 1:
        raise UsageError("--seed and --seeds exclude each other: remove one")
    configs = [*(compare or (opt.config_path(host),)), *([policy] if policy else [])]
    _require_writable(report, json_file)
    read = (
        _trace(trace, cut, options)
        if trace is not None
        else _recorded_trace(opt.store_path(host), cut)
    )
    replays = _replays(configs, world, changes or (), read, compare=compare is not None)
    _require_drones_that_join(replays)
    notes = world_notes(replays)
    note(*notes, *dict.fromkeys(line for each in replays for line in _misfit_notes(each)))
    every_seed = [seed] if seed is not None else range(1, seeds + 1)
    runs = _run(replays, every_seed, jobs or os.cpu_count() or 1)
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
    answer = simulation(read, replays, runs, brief=query.output is Format.TABLE)
    out.present(query, replace(host, watch=False), lambda: answer)
    _require_kept_promises(runs)


def _run(replays: Sequence[Replay], seeds: Sequence[int], jobs: int) -> Runs:
    tell = progress(len(replays) * len(seeds), max(replay.span_s for replay in replays))
    try:
        with interruptible():
            return run_all(replays, seeds, jobs=jobs, tell=tell)
    except BrokenProcessPool:
        advice = "if memory was short: fewer at a time, --jobs 1"
        raise VerbError("the process of a replay was killed", advice) from None


def _require_kept_promises(runs: Runs) -> None:
    """Raise :class:`VerbError` if a promise was broken in a replay."""
    broken = [line for results in runs.values() for result in results for line in result.violations]
    if broken:
        more = [f"and {len(broken) - 5} more"] if len(broken) > 5 else []
        summary = f"{formatting.count(len(broken), 'violation')} in the replays:"
        raise UnmetError(summary, *broken[:5], *more)


def _trace(path: Path, cut: TraceSelection, options: JobOptions) -> Trace:
    with reported(TraceError, prefix="--trace-columns: ", code=Exit.USAGE):
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
    with reported(TraceError, code=Exit.UNMET):
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
            f"no record at {path}",
            "`provisioner run` creates it; name another one with --store PATH",
        )
    view = traces.last_view(path)
    until = view.taken_at if view is not None else time.time()
    since = until - (cut.span_s if isfinite(cut.span_s) else RECORDED_S)
    note(f"{path}: jobs submitted from {formatting.iso(since)} to {formatting.iso(until)}")
    found, notes = traces.recorded_jobs(path, since=since, until=until)
    begin_s = found[0].submit_s if found else 0.0
    note(*notes, f"the replay begins with the first job, at {formatting.iso(since + begin_s)}")
    with reported(TraceError, prefix=f"{path}: ", code=Exit.UNMET):
        return Trace("recorded", traces.cut_jobs(found, replace(cut, from_s=begin_s, span_s=inf)))


def _require_writable(report: Path | None, json_file: Path | None) -> None:
    """Raise :class:`VerbError` for a file that cannot be written, before hours of replays."""
    for path in filter(None, (report, json_file)):
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise VerbError(f"{path}: no file in a directory that can be written to")
