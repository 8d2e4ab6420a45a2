"""Past of a Slurm site by its accounting: the owner's use, and queue times of drones and similar jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from adapters.slurm.capacity import SlurmDroneType, are_jobs_hidden, is_owners
from adapters.slurm.records import SlurmClient, SlurmJob
from adapters.slurm.settings import SlurmOwnerConfig
from provisioner.history import MAX_HISTORY_ROWS, PastStart, SiteHistoryView, use_steps
from provisioner.interfaces import UnavailableError
from provisioner.model import WHOLE_GPU

FIRST_SLICE_S = 3600.0
"""Span of the first query, the newest hour. Accounting cannot limit the number of jobs in an
answer, so the span is doubled only while answers are small."""
SMALL_ANSWER = 2000
READING_S, LAST_ANSWER_S = 40.0, 50.0
"""Time after which no further span is read, and after which no answer is awaited."""
_MAY_HIDE = {"PrivateData": "jobs"}
"""slurmdbd has a PrivateData of its own, which we cannot read: jobs of nobody but us are not taken for all."""


async def site_history(
    cluster: SlurmClient,
    types: Sequence[SlurmDroneType],
    nodes: Collection[str],
    owner: SlurmOwnerConfig | None,
    since: float,
    now: float,
    user: str = "",
    clock: Callable[[], float] = time.monotonic,
) -> SiteHistoryView:
    """Return the past of a site. The use is unknown if no job of the owner is shown, since jobs may be hidden.

    ``user``: ours, if known. UnavailableError or TimeoutError if the first query fails; a later one
    ends the reading.
    """
    wanted = {each.name for kind in types for each in kind.partitions}
    wanted |= set(owner.partitions if owner else ())
    past = await _past_jobs(cluster, sorted(wanted), since, now, clock)
    if past is None:
        return SiteHistoryView()
    jobs, read_from, known_at = past
    ran = [job for job in jobs if 0 < job.started_at <= now]
    owners = [job for job in ran if owner is not None and is_owners(job, owner)]
    # jobs without a GPU are all that is known where GPUs are not among AccountingStorageTRES
    known = any(job.gpus for job in owners) and not are_jobs_hidden(ran, _MAY_HIDE, user)
    steps = use_steps(gpu_holds(owners, nodes, now), known_at, now) if known else ()
    starts = [start for kind in types for start in past_starts(kind, ran)]
    return SiteHistoryView(steps, tuple(starts), left_out=read_from > since)


async def _past_jobs(
    cluster: SlurmClient,
    partitions: Sequence[str],
    since: float,
    now: float,
    clock: Callable[[], float],
) -> tuple[Sequence[SlurmJob], float, float] | None:
    """Return jobs, the time from which they were read, and the oldest time with any of them; None without accounting.

    The newest span is read first. Raises what the first query raises.
    """
    began_at = clock()
    begin = now
    known_at = now
    jobs = dict[str, SlurmJob]()
    span_s = FIRST_SLICE_S
    while begin > since and len(jobs) < MAX_HISTORY_ROWS and clock() - began_at < READING_S:
        until = begin
        try:
            async with asyncio.timeout(LAST_ANSWER_S - (clock() - began_at)):
                found = await cluster.past_jobs(partitions, max(since, until - span_s), until)
        except (UnavailableError, TimeoutError):
            if until == now:
                raise
            break
        if found is None:
            return None
        begin = max(since, until - span_s)
        span_s = 2 * span_s if len(found) <= SMALL_ANSWER else span_s
        jobs = {job.remote_id: job for job in found} | jobs
        known_at = begin if found else known_at
    return list(jobs.values()), begin, known_at


def gpu_holds(
    jobs: Iterable[SlurmJob], nodes: Collection[str], now: float
) -> Iterator[tuple[float, float, int]]:
    """Yield start, end and GPUs, in thousandths, of jobs on these nodes."""
    names = frozenset(nodes)
    for job in jobs:
        gpus = sum(job.gpus.values()) * len(names.intersection(job.nodes))
        yield (
            job.started_at,
            now if job.state == "RUNNING" else job.ends_at or job.started_at,
            gpus * WHOLE_GPU,
        )


def past_starts(kind: SlurmDroneType, jobs: Iterable[SlurmJob]) -> Iterator[PastStart]:
    """Yield the starts of jobs that requested what a drone of a type does: one node of its partition, and its GPUs."""
    partitions = {each.name for each in kind.partitions}
    allowed = kind.options.gpu_type
    for job in jobs:
        fits = (
            job.partition in partitions
            and job.node_count == 1
            and 0 < job.submitted_at <= job.started_at
        )
        kinds = frozenset(job.gpus) - {"", allowed} if allowed else frozenset()
        if fits and not kinds and sum(job.gpus.values()) == kind.gpus:
            yield PastStart(kind.type.name, job.started_at, job.started_at - job.submitted_at)
