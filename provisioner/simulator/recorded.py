"""Recorded demand as a workload: the jobs that the controller's store has seen done, and those that still wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from provisioner.formatting import age, count
from provisioner.model import CompletedJob, JobClass
from provisioner.simulator.jobs import SimJob, Wants
from provisioner.store.sql import SqlReader

_LATE = 0.05
_LEAST_S = 1.0
"""Pools count in whole seconds: what took none took less than one."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The jobs submitted in a time, and what the record does not tell of them, a line each."""

    jobs: tuple[SimJob, ...]
    notes: tuple[str, ...]


def last_look(store_path: Path) -> float | None:
    """When the controller looked at its pool last; None if that is not on record. Raises StoreError."""
    views = SqlReader(store_path).views()
    view = views.overlay.view if views is not None else None
    return view.taken_at if view is not None else None


def recorded_jobs(store_path: Path, since: float, until: float) -> tuple[SimJob, ...]:
    """Jobs submitted from ``since`` on and before ``until``, by submission, counted from ``since``. See
    :func:`recorded`."""
    return recorded(store_path, since=since, until=until).jobs


def recorded(store_path: Path, since: float, until: float) -> Recorded:
    """The same, with what is not in it. Reads only, beside a running controller too.

    Jobs that were removed, and those that ran when the controller looked last, left no run time: they are missing.
    Those that waited then are added with the run time of those like them. Raises StoreError.
    """
    reader = SqlReader(store_path)
    done = [each for each in reader.completions(since, float("inf")) if since <= each.submitted_at < until]
    views = reader.views()
    view = views.overlay.view if views is not None else None
    jobs = [SimJob(each.submitted_at - since, max(_LEAST_S, each.run_s), wants_of(each)) for each in done]
    notes = _gaps(done, since, until)
    if view is None:
        notes.append("no look at the pool is on record: jobs that still wait are missing")
    else:
        jobs += _waiting(view.classes, done, since, until, notes)
        running = sum(each.running for each in view.classes)
        if running and view.taken_at >= since:
            notes.append(f"{count(running, 'job')} that ran at the last look are missing: they have no run time yet")
    return Recorded(tuple(sorted(jobs, key=lambda job: job.submit_s)), tuple(notes))


def wants_of(done: CompletedJob) -> Wants:
    """What a job that was done had asked for."""
    return Wants(
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
) -> list[SimJob]:
    """Jobs that waited at the last look, as if all of a class had come with its oldest: more is not on record."""
    run_s = _run_times(done)
    added: list[SimJob] = []
    unknown = 0
    for each in classes:
        idle = each.waiting + each.fresh
        if not idle or each.invalid or not since <= each.oldest_at < until:
            continue
        wants = _wants_of_class(each)
        takes_s = run_s.get(wants) or run_s.get(each.owner) or run_s.get("") or each.walltime_s
        if takes_s:
            added += [SimJob(each.oldest_at - since, takes_s, wants)] * idle
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


def _run_times(done: Iterable[CompletedJob]) -> Mapping[Wants | str, float]:
    """Median run times by what was asked for, by owner, and of all (the empty name)."""
    samples: dict[Wants | str, list[float]] = {}
    for each in done:
        for key in (wants_of(each), each.owner, ""):
            samples.setdefault(key, []).append(each.run_s)
    return {key: median(times) for key, times in samples.items()}


def _wants_of_class(each: JobClass) -> Wants:
    return Wants(
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
