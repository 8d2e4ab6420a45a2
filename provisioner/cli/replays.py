"""Work of ``provisioner simulate``: traces, replays, their progress, and the promises that they keep."""

from __future__ import annotations

import os
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
from typing import NoReturn

from provisioner import formatting
from provisioner.answers.errors import (
    Exit,
    UnmetError,
    UsageError,
    VerbError,
    reported,
)
from provisioner.cli.output import note
from provisioner.cli.pipes import closed_pipes_raise
from provisioner.config import ConfigError, load
from provisioner.planner.matching import nearness
from provisioner.simulator import traces, what_if
from provisioner.simulator.replay import REPLAY_LIMIT_S, Replay, run_all
from provisioner.simulator.results import Runs
from provisioner.simulator.traces import Trace, TraceError, TraceSelection
from provisioner.simulator.world_file import world_of
from provisioner.store.database import Place

RECORDED_S = 30 * 86400.0


def replays_of(
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


def require_drones_that_join(replays: Sequence[Replay]) -> None:
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


def misfit_notes(replay: Replay) -> list[str]:
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


def run_replays(replays: Sequence[Replay], seeds: Sequence[int], jobs: int) -> Runs:
    tell = progress(len(replays) * len(seeds), max(replay.span_s for replay in replays))
    try:
        with interruptible():
            return run_all(replays, seeds, jobs=jobs, tell=tell)
    except BrokenProcessPool:
        advice = "if memory was short: fewer at a time, --jobs 1"
        raise VerbError("the process of a replay was killed", advice) from None


def require_kept_promises(runs: Runs) -> None:
    """Raise :class:`VerbError` if a promise was broken in a replay."""
    broken = [line for results in runs.values() for result in results for line in result.violations]
    if broken:
        more = [f"and {len(broken) - 5} more"] if len(broken) > 5 else []
        summary = f"{formatting.count(len(broken), 'violation')} in the replays:"
        raise UnmetError(summary, *broken[:5], *more)


def read_trace(path: Path, cut: TraceSelection, columns: str | None, *, skip_bad: bool) -> Trace:
    with reported(TraceError, prefix="--trace-columns: ", code=Exit.USAGE):
        declared = traces.declared_columns(columns) if columns is not None else None
    found = traces.located(path, Path())
    if found is None:
        raise VerbError(
            f"no trace at {path}",
            "a name alone is also looked for in the directory PROVISIONER_TRACES",
        )
    with reported(TraceError, code=Exit.UNMET):
        read = traces.read_trace(found, cut, columns=declared, skip_bad=skip_bad)
    if read.left_out:
        note(
            f"{read.name}: left out {formatting.count(read.left_out, 'job')} without a run time or a GPU"
        )
    if read.bad:
        note(
            f"{read.name}: left out {formatting.count(len(read.bad), 'bad line')}, the first: {read.bad[0]}"
        )
    return read


def recorded_trace(path: Place, cut: TraceSelection) -> Trace:
    """Return the jobs on record of its last 30 days, or of ``--span``."""
    if isinstance(path, Path) and not path.is_file():
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


def require_writable(report: Path | None, json_file: Path | None) -> None:
    """Raise :class:`VerbError` for a file that cannot be written, before hours of replays."""
    for path in filter(None, (report, json_file)):
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise VerbError(f"{path}: no file in a directory that can be written to")
