"""``provisioner simulate``: replay a trace, or jobs on record, against the configured sites; compare, ask what if."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provisioner import formatting
from provisioner.cli.exits import Exit, Failure
from provisioner.cli.forms import Format
from provisioner.cli.options import Show, Where, shared
from provisioner.cli.output import note, present

if TYPE_CHECKING:
    from provisioner.simulator.replay import Replay
    from provisioner.simulator.results import Result
    from provisioner.simulator.traces import Cut, Trace

    Runs = Mapping[str, Sequence[Result]]

app = typer.Typer(add_completion=False, rich_markup_mode=None)

VRAM_SEED = 7
"""The same GPU memory for the same job in every replay."""
RECORDED_S = 30 * 86400.0


@app.command()
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
    from provisioner.cli.simulate_policies import Asked, misfits, replays_of
    from provisioner.cli.simulate_rows import simulation
    from provisioner.cli.where import config_path

    cut = _cut(begin, span, cap_duration, group, limit, gpus, vram_mix, ignore)
    if recorded == (trace is not None):
        raise Failure("name a TRACE, or take the jobs on record with --recorded", code=Exit.USAGE)
    if recorded and (begin or ignore or trace_columns or swf_cpus or skip_bad):
        raise Failure("--from, --ignore, --trace-columns, --swf-cpus and --skip-bad are for a TRACE", code=Exit.USAGE)
    if seed is not None and seeds > 1:
        raise Failure("--seed is one seed, --seeds is seeds 1 to N: leave one out", code=Exit.USAGE)
    asked = Asked(compare[0] if compare else config_path(where), world, policy, tuple(what_if or ()), compare or ())
    _can_write(report, json_file)
    read = _trace(trace, cut, trace_columns, skip_bad, swf_cpus) if trace is not None else _recorded(where, cut)
    replays = replays_of(asked, read)
    for line in dict.fromkeys([*(line for each in replays for line in each.world.notes), *misfits(replays)]):
        note(line)
    runs = _run(replays, [seed] if seed is not None else list(range(1, seeds + 1)), jobs, show)
    _write(runs, replays, report, json_file)
    present(replace(show, watch=False), lambda: simulation(read, replays, runs, brief=show.output is Format.TABLE))
    broken = [line for results in runs.values() for result in results for line in result.violations]
    if broken:
        more = [f"and {len(broken) - 5} more"] if len(broken) > 5 else []
        raise Failure(
            f"{formatting.count(len(broken), 'violation')} in the replays:", *broken[:5], *more, code=Exit.UNMET
        )


def _cut(
    begin: str | None,
    span: str | None,
    cap: str | None,
    groups: Sequence[str] | None,
    limit: int | None,
    gpus: Sequence[int] | None,
    vram_mix: bool,
    ignore: Sequence[str] | None,
) -> Cut:
    from provisioner.config.messages import choices
    from provisioner.simulator.traces import Cut

    for name in ignore or ():
        if name not in IGNORED:
            raise Failure(f"--ignore {name}: {choices(name, IGNORED)}", code=Exit.USAGE)
    plain = Cut()
    return Cut(
        groups=tuple(name for text in groups or () for name in text.split(",")),
        from_s=_seconds("--from", begin, plain.from_s),
        span_s=_seconds("--span", span, plain.span_s),
        limit=limit,
        gpus=tuple(gpus or ()),
        cap_s=_seconds("--cap-duration", cap, plain.cap_s),
        vram_seed=VRAM_SEED if vram_mix else None,
        ignore=tuple(ignore or ()),
    )


IGNORED = ("gpu_milli", "cpus", "memory", "vram", "user", "group")


def _seconds(option: str, text: str | None, otherwise: float) -> float:
    from provisioner.config.units import parse_duration

    if text is None:
        return otherwise
    try:
        return parse_duration(text)
    except ValueError as error:
        raise Failure(f"{option}: {error}", code=Exit.USAGE) from None


# ---------------------------------------------------------------------------------------------------------------- jobs


def _trace(path: Path, cut: Cut, columns: str | None, skip_bad: bool, swf_cpus: bool) -> Trace:
    from provisioner.simulator.traces import Columns, TraceError, is_swf, located, read_trace

    swf = is_swf(path)
    if swf and columns is not None:
        raise Failure(
            f"--trace-columns is for CSV; {path} has the fields of the Standard Workload Format", code=Exit.USAGE
        )
    if swf_cpus and not swf:
        raise Failure(f"--swf-cpus is for the Standard Workload Format; {path} is CSV by its name", code=Exit.USAGE)
    try:
        declared = Columns.declared(columns) if columns is not None else None
    except TraceError as error:
        raise Failure(*(f"--trace-columns: {line}" for line in error.lines), code=Exit.USAGE) from None
    found = located(path, Path())
    if found is None:
        raise Failure(f"no trace at {path}", "a name alone is also looked for in the directory PROVISIONER_TRACES")
    try:
        read = read_trace(found, cut, columns=declared, skip_bad=skip_bad, swf_cpus=swf_cpus)
    except TraceError as error:
        raise Failure(*error.lines, code=Exit.UNMET) from None
    if read.left_out:
        note(f"{read.name}: left out {formatting.count(read.left_out, 'job')} without a run time or a GPU")
    if read.bad:
        note(f"{read.name}: left out {formatting.count(len(read.bad), 'bad line')}, the first: {read.bad[0]}")
    return read


def _recorded(where: Where, cut: Cut) -> Trace:
    """What the record tells of the jobs of its last 30 days, or of ``--span``."""
    from provisioner.cli.where import store_path
    from provisioner.simulator.traces import Trace, TraceError, cut_jobs, last_look, recorded

    path = store_path(where)
    if not path.is_file():
        raise Failure(f"no record at {path}", "`provisioner run` makes it; --store PATH names another")
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
        raise Failure(f"{path}: {error}", code=Exit.UNMET) from None


# ------------------------------------------------------------------------------------------------------------- replays


def _run(replays: Sequence[Replay], seeds: Sequence[int], jobs: int | None, show: Show) -> Runs:
    from concurrent.futures.process import BrokenProcessPool

    from provisioner.cli.simulate_progress import interruptible, progress
    from provisioner.simulator.replay import run_all

    span_s = max(replay.span_s for replay in replays)
    processes = jobs or os.cpu_count() or 1
    try:
        with interruptible(), progress(len(replays) * len(seeds), span_s, color=not show.no_color) as tell:
            return run_all(replays, seeds, jobs=processes, tell=tell)
    except BrokenProcessPool:
        raise Failure("the process of a replay was killed", "if memory was short: fewer at a time, --jobs 1") from None


def _can_write(report: Path | None, json_file: Path | None) -> None:
    """Whether what was asked for can be written is said before hours of replays, not after."""
    for path in (report, json_file):
        if path is not None and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
            raise Failure(f"{path}: no directory {path.parent} that can be written to")
        if path is not None and path.is_dir():
            raise Failure(f"{path} is a directory: name a file")
    if report is not None:
        from provisioner.simulator.figures import PlotsMissing, plots_there

        try:
            plots_there()
        except PlotsMissing as error:
            raise Failure(f"{report}: {error}") from None


def _write(runs: Runs, replays: Sequence[Replay], report: Path | None, json_file: Path | None) -> None:
    """The files that were asked for, whole or not at all."""
    from provisioner.cli.files import write_whole

    if json_file is not None:
        from provisioner.simulator.report import to_json

        write_whole(json_file, to_json(runs))
        note(f"all numbers: {json_file}")
    if report is not None:
        from provisioner.simulator.report import html_page

        notes = tuple(dict.fromkeys(line for r in replays for line in r.world.notes))
        write_whole(report, html_page(runs, notes=notes, command=shlex.join(["provisioner", *sys.argv[1:]])))
        note(f"report: {report}")
