"""``provisioner simulate``: replay a trace, or jobs on record, against the configured sites; compare, ask what if."""

from __future__ import annotations

import os
import shlex
import sys
import time
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from provisioner.answers.errors import (
    Exit,
    UsageError,
    parsed,
    unknown,
)
from provisioner.answers.query import Format, Options, Query, option, switch
from provisioner.cli import options as opt, output as out
from provisioner.cli.output import note
from provisioner.durations import parse_duration

if TYPE_CHECKING:
    from provisioner.simulator.traces import TraceSelection

VRAM_SEED = 7
"""The same GPU memory for the same job in every replay."""
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
        from provisioner.simulator.traces import TraceSelection

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
    from provisioner.answers.simulation import simulation, world_notes
    from provisioner.cli import replays as work
    from provisioner.simulator import report as report_page

    cut = options.selection()
    if recorded == (trace is not None):
        raise UsageError("name a TRACE, or replay the jobs on record with --recorded")
    if recorded and options.are_for_a_trace:
        raise UsageError("--from, --ignore, --trace-columns and --skip-bad need a TRACE")
    if seed is not None and seeds > 1:
        raise UsageError("--seed and --seeds exclude each other: remove one")
    configs = [*(compare or (opt.config_path(host),)), *([policy] if policy else [])]
    work.require_writable(report, json_file)
    read = (
        work.read_trace(trace, cut, options.trace_columns, skip_bad=options.skip_bad)
        if trace is not None
        else work.recorded_trace(opt.store_path(host), cut)
    )
    replays = work.replays_of(configs, world, changes or (), read, compare=compare is not None)
    work.require_drones_that_join(replays)
    notes = world_notes(replays)
    note(*notes, *dict.fromkeys(line for each in replays for line in work.misfit_notes(each)))
    every_seed = [seed] if seed is not None else range(1, seeds + 1)
    runs = work.run_replays(replays, every_seed, jobs or os.cpu_count() or 1)
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
    work.require_kept_promises(runs)
