"""Ended runs of jobs, by the schedds' histories and, of jobs that are not done, their queues.

Histories are files that a schedd reads through at each question, and a poll must never wait for
that. So they are read by a worker process of their own, at most once a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import field, replace

from adapters.htcondor import classad2, classads
from adapters.htcondor.classads import (
    HELD,
    IN_SLOT,
    REMOVED,
    Ad,
    attribute_names,
    job_id,
    moment,
    number,
    text,
    value,
    whole,
)
from adapters.htcondor.daemons import Collectors
from adapters.htcondor.overlay import work
from adapters.htcondor.overlay.affiliation import Affiliation
from adapters.htcondor.overlay.job_classes import OPTIONAL, request, request_in_slot
from adapters.htcondor.overlay.schedds import ScheddQueue, queues_of
from adapters.htcondor.overlay.settings import HTCondorConfig
from adapters.htcondor.overlay.work import EVICTION_REPORTED_S, cause_of_end, drone_named
from adapters.htcondor.tokens import ClientDirectory
from adapters.shared.printing import printable
from provisioner import formatting
from provisioner.interfaces import AdapterError, AuthError, UnavailableError
from provisioner.model import WHOLE_GPU, CompletedJob, JobFailure
from provisioner.values import define, frozen
from provisioner.worker_process import WorkerProcess

HISTORY_LIMIT = 5000  # jobs asked for in one question to one schedd
PAST_LIMIT = 100_000  # the same, of runs from before the polls
_LATE_S = 300.0  # a job may enter the history so long after its end

HISTORY_PROJECTION = attribute_names(
    """
    ClusterId ProcId CompletionDate QDate JobCurrentStartDate JobCurrentStartExecutingDate LastRemoteHost Owner
    RemoteHost RequestGPUs GpuMilli RequestCpus RequestMemory RequestDisk RequireGPUs Requirements GPUsMinMemory
    RequiresGPU RequestGPUMem GPUsProvisioned
    GPUsMinCapability GPUsMaxCapability GPUsMinRuntime AllowedJobDuration AllowedExecuteDuration MaxWallTimeMins
    JobStatus LastJobStatus EnteredCurrentStatus LastVacateTime JobLastStartDate LastHoldReasonCode
    GPUsAverageUsage GPUsMemoryUsage GPUsEnergyUsage RemoteUserCpu RemoteSysCpu NumJobStarts
    RoutedFromJobId ExitBySignal ExitCode MemoryUsage ResidentSetSize ImageSize DiskUsage
    """
)
"""The last four are what requests that were left to the schedd refer to."""

RUNS_IN_SLOTS = (
    "member(JobUniverse, {7,9,12}) isnt true"
    ' && (member(Managed, {"External", "ScheddDone"}) isnt true || LastRemoteHost isnt undefined)'
)
"""A JobRouter writes the times of the routed copy's run into the source job, but not its host."""
WITH_GPUS = f"((RequestGPUs ?: 0) > 0 || {OPTIONAL})"


@frozen
class HistoryView:
    """Ended runs in all schedds (None if no schedd answered), and completed jobs that failed within seconds."""

    completions: tuple[CompletedJob, ...] | None
    notices: tuple[str, ...] = ()
    failures: tuple[JobFailure, ...] = ()
    at: float = 0.0
    """When they were asked for; 0: never with success."""
    succeeded: frozenset[str] = frozenset()
    """Ids of the jobs that completed with exit code 0."""


@define
class _ScheddHistory:
    read_at: float = 0.0  # when its history was read last, by its own clock
    newest: str = ""  # the newest entry at that time
    jobs: dict[tuple[str, float], tuple[CompletedJob, JobFailure | None, bool]] = field(
        default_factory=dict
    )
    """By job and end, by its own clock."""


class HistoryReader:
    """Reader of the histories, in the worker process. Each question is about the time since the one before."""

    def __init__(self, config: HTCondorConfig, controller: str) -> None:
        self._config = config
        self._controller = controller
        self._collector = Collectors(config.collector)
        self._known: dict[str, _ScheddHistory] = {}

    def completed(self, gpus_only: bool, silent: Collection[str] = ()) -> HistoryView:
        """Return recently ended runs of jobs, without those of the schedds ``silent``, and who did not answer."""
        now = time.time()
        notices = list[str]()
        answered = False
        self._collector.read_clock()
        for queue in queues_of(self._collector.schedds(), self._config.schedds):
            name = printable(queue.name, 80)
            if name in silent:
                continue
            try:
                cut = self._read(
                    queue, self._known.setdefault(queue.name, _ScheddHistory()), now, gpus_only
                )
                answered = True
            except (UnavailableError, AuthError) as error:
                notices.append(f"completed jobs are unknown: {error}")
                continue
            if cut:
                notices.append(
                    f"schedd {name}: only the newest {HISTORY_LIMIT} completed jobs are counted"
                )
        since = now - EVICTION_REPORTED_S
        for known in self._known.values():
            known.jobs = {
                key: each for key, each in known.jobs.items() if each[0].ended_at >= since
            }
        if not answered:
            return HistoryView(None, tuple(notices))
        found = [each for known in self._known.values() for each in known.jobs.values()]
        jobs = sorted((job for job, *_ in found), key=lambda each: (each.ended_at, each.job_id))
        failures = tuple(failure for _, failure, _ in found if failure is not None)
        succeeded = frozenset(job.job_id for job, _, success in found if success)
        return HistoryView(tuple(jobs), tuple(notices), failures, succeeded=succeeded)

    def past(self, since: float) -> tuple[Sequence[CompletedJob], Sequence[str]]:
        """Return the runs in this controller's drones that ended after ``since``, and what is missing."""
        self._collector.read_clock()
        found = dict[tuple[str, int], CompletedJob]()
        notices = list[str]()
        for queue in queues_of(self._collector.schedds(), self._config.schedds):
            name = printable(queue.name, 80)
            ahead_s = self._collector.skew_s + queue.ahead_s
            begin = since + ahead_s
            wanted = constraint(self._config.constraint, self._controller, begin, gpus_only=False)
            wanted = f"{wanted} && {ran_in_drones(self._controller)}"
            projection = sorted({*HISTORY_PROJECTION, *self._config.affiliation.attributes})
            try:
                with self._collector.errors.translated(f"schedd {name}"):
                    left = queue.schedd.history(wanted, projection, PAST_LIMIT, stop("", begin))
                    stays = queue.schedd.query(wanted, projection=projection, limit=PAST_LIMIT)
            except (UnavailableError, AuthError) as error:
                notices.append(f"past runs are unknown: {error}")
                continue
            if max(len(left), len(stays)) >= PAST_LIMIT:
                notices.append(f"schedd {name}: only the newest {PAST_LIMIT} past runs are known")
            for ad in (*left, *stays):
                run = ended_run(
                    ad,
                    queue.name,
                    self._controller,
                    self._config.affiliation,
                    lambda theirs, ahead_s=ahead_s: theirs - ahead_s,  # type: ignore[misc]
                )
                if run is not None:
                    found.setdefault((run.job_id, round(run.ended_at)), run)
        return tuple(found.values()), tuple(notices)

    def _read(self, queue: ScheddQueue, known: _ScheddHistory, now: float, gpus_only: bool) -> bool:
        """Add the runs that ended since the last question. Return True if there were more than the limit."""
        config = self._config
        ahead_s = self._collector.skew_s + queue.ahead_s
        there_now = now + ahead_s
        long_ago = there_now - EVICTION_REPORTED_S
        wanted = constraint(config.constraint, self._controller, long_ago, gpus_only)
        affiliation = config.affiliation
        projection = sorted({*HISTORY_PROJECTION, *affiliation.attributes})
        until = stop(known.newest, max(known.read_at, long_ago))
        with self._collector.errors.translated(f"schedd {printable(queue.name, 80)}"):
            left = queue.schedd.history(wanted, projection, HISTORY_LIMIT, until)
            stays = queue.schedd.query(wanted, projection=projection, limit=HISTORY_LIMIT)
        known.newest = job_id(left[0]) if left else known.newest
        known.read_at = there_now
        for ad in (*left, *stays):
            done = ended_run(
                ad,
                queue.name,
                self._controller,
                affiliation,
                lambda theirs: theirs - ahead_s,
            )
            if done is None:
                continue
            failure = None
            cause = "" if done.unfinished else cause_of_end(ad, done.run_s)
            if done.drone_id is not None and cause:
                failure = JobFailure(done.drone_id, done.job_id, done.ended_at, done.owner, cause)
            success = not done.unfinished and number(ad, "ExitCode") == 0
            known.jobs.setdefault(
                (done.job_id, round(done.ended_at + ahead_s)), (done, failure, success)
            )
        return max(len(left), len(stays)) >= HISTORY_LIMIT


def constraint(operators: str, controller: str, since: float, gpus_only: bool) -> str:
    """Return the constraint for jobs that count and ended a run after ``since`` (by the schedd's clock).

    Those that are not done count only where they ran in our drones.
    """
    gpus = f" && {WITH_GPUS}" if gpus_only else ""
    done = f"JobStatus == 4 && CompletionDate >= {int(since)}"
    stopped = f"member(JobStatus, {{{REMOVED},{HELD}}}) && member(LastJobStatus, {{2,6,7}})"
    stopped += f" && EnteredCurrentStatus >= {int(since)}"
    left = f"(LastVacateTime ?: 0) >= {int(since)} && member(JobStatus, {{1,2,6,7}})"
    ours = ran_in_drones(controller)
    return f"({done} || ({stopped} || {left}) && {ours}) && {RUNS_IN_SLOTS}{gpus} && ({operators})"


def ran_in_drones(controller: str) -> str:
    """Return the constraint for jobs whose last run was in a drone of this controller."""
    name = classad2.quote(f"@{controller}-")
    return f"(regexp({name}, LastRemoteHost) is true || regexp({name}, RemoteHost) is true)"


def stop(newest: str, read_at: float) -> str:
    """Return the expression that ends the reading of a history's entries, newest first, once it is true."""
    long_ago = classads.history_end(read_at - _LATE_S)
    cluster, _, proc = newest.partition(".")
    return f"(ClusterId == {cluster} && ProcId == {proc}) || {long_ago}" if newest else long_ago


def ended_run(
    ad: Ad,
    schedd: str,
    controller: str,
    of: Affiliation,
    to_our_clock: Callable[[float], float],
) -> CompletedJob | None:
    """Return the last run of a job that ended; None if its ad has none."""
    status = whole(ad, "JobStatus")
    began, ended = _ended_run(ad, status)
    if not ended or not 0 < began <= ended:
        return None
    of_this_run = status not in IN_SLOT
    # a forced removal ends a run at once, and leaves the host where it was
    host = "RemoteHost" if of_this_run and text(ad, "RemoteHost") else "LastRemoteHost"
    used, peak_mib, energy_j, user_s, system_s, memory_mib = (
        _measured(ad, name) if of_this_run else None for name in _MEASURED_USE
    )
    asked = request_in_slot(ad) if of_this_run else request(ad)[0]
    return CompletedJob(
        job_id=f"{printable(schedd, 120)}#{job_id(ad)}",
        ended_at=to_our_clock(ended),
        submitted_at=to_our_clock(moment(ad, "QDate") or began),
        run_s=ended - began,
        **asked._asdict(),
        owner=text(ad, "Owner", 80),
        group=text(ad, of.group, 80),
        vo=of.vo_of(ad),
        vo_member=of.member_of(ad),
        drone_id=drone_named(ad, host, controller),
        unfinished=status != classads.COMPLETED,
        splits=False,
        used_milli=None if used is None else round(min(used, work.MAX_DEVICES_PER_JOB) * WHOLE_GPU),
        peak_vram_mib=None if peak_mib is None else round(peak_mib),
        energy_j=None if energy_j is None else round(energy_j),
        used_cpu_s=_cpu_s(user_s, system_s, ended - began, _is_reported(ad, memory_mib)),
        peak_memory_mib=round(memory_mib) if memory_mib else None,
        routed_from=classads.routed_from(ad),
        failed=status == classads.COMPLETED
        and bool(value(ad, "ExitBySignal") is True or number(ad, "ExitCode")),
    )


_MEASURED_USE = (
    "GPUsAverageUsage",
    "GPUsMemoryUsage",
    "GPUsEnergyUsage",
    "RemoteUserCpu",
    "RemoteSysCpu",
    "MemoryUsage",
)


def _is_reported(ad: Ad, memory_mib: float | None) -> bool:
    """Return True if CPU times of 0 are those of the run that ended last.

    A submitted job has zeros, and each start sets them anew, but keeps the peak of memory (23.9, 25.14).
    """
    return bool(memory_mib) and whole(ad, "NumJobStarts") <= 1


def _cpu_s(
    user_s: float | None, system_s: float | None, run_s: float, is_reported: bool
) -> int | None:
    """Return the CPU time of a run in seconds; None if the starter reported none."""
    if user_s is None or system_s is None:
        return None
    used_s = user_s + system_s
    if not used_s and not is_reported:
        return None
    return round(min(used_s, run_s * work.MAX_DEVICES_PER_JOB))


def _measured(ad: Ad, name: str) -> float | None:
    """Return a measured amount; None if there is none: an unknown use is not 0."""
    value = number(ad, name)
    return value if value is not None and 0 <= value <= classads.LARGEST_NUMBER else None


def _ended_run(ad: Ad, status: int) -> tuple[float, float]:
    """Return begin and end of the run that ended last, by the schedd's clock; 0: unknown, or none."""
    if status in (classads.COMPLETED, HELD, REMOVED):
        # executing is of an earlier run where this one has none
        began = max(moment(ad, "JobCurrentStartExecutingDate"), moment(ad, "JobCurrentStartDate"))
        if status == classads.COMPLETED:
            return began, moment(ad, "CompletionDate")
        return began, moment(ad, "EnteredCurrentStatus") if whole(
            ad, "LastJobStatus"
        ) in IN_SLOT else 0.0
    start, executing = work.last_run(ad) or (0.0, 0.0)  # it was evicted, and may run again
    return executing or start, moment(ad, "LastVacateTime")


HISTORY_INTERVAL_S = 60.0
HISTORY_RETRY_S = 300.0  # longest pause after a failure
# a failure that took time is not repeated at once: the schedds would be busy with it
HISTORY_RETRY_FACTOR = 30.0
HISTORY_TIMEOUT_S = 10.0
PAST_TIMEOUT_S = 600.0
HISTORY_READER = "adapters.htcondor.overlay.history:HistoryReader"


class HistoryPoller:
    """Questions to the history reader, whose death costs the polls nothing."""

    def __init__(self, config: HTCondorConfig, controller: str, directory: ClientDirectory) -> None:
        # a log of its own: why something failed is read out of it
        env = directory.env | {"_CONDOR_TOOL_LOG": str(directory.path / "history.log")}
        self._child = WorkerProcess(HISTORY_READER, config, controller, env=env)
        self._deadline_s = min(HISTORY_TIMEOUT_S, config.deadline)
        self._again_at = 0.0
        self._view = HistoryView(None)

    async def newest(self, gpus_only: bool, silent: Collection[str]) -> HistoryView:
        """Return the last answer, renewed if it is a minute old; a failure is a notice, not an error."""
        if time.monotonic() >= self._again_at:
            pause_s = HISTORY_INTERVAL_S
            began = time.monotonic()
            asked_at = time.time()
            try:
                view = await self._child.call(
                    "completed", gpus_only, silent, deadline_s=self._deadline_s
                )
                self._view = replace(view, at=asked_at)
            except AdapterError as error:
                pause_s = min(HISTORY_RETRY_S, HISTORY_RETRY_FACTOR * (time.monotonic() - began))
                again = f"; asked again at {formatting.iso(time.time() + pause_s)}"
                self._view = HistoryView(
                    None, (f"completed jobs are unknown: {error}{again}",), at=self._view.at
                )
            self._again_at = time.monotonic() + pause_s
        return self._view

    async def close(self) -> None:
        await self._child.close()
