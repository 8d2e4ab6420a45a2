"""Transport by slurmrestd, and the registry of jobs that its cheap listing needs."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Self

from adapters.shared.printing import printable
from adapters.slurm.options import UnsupportedOptionError, convert_options
from adapters.slurm.records import (
    Partition,
    Reservation,
    SlurmJob,
    SlurmNode,
    SlurmSubmission,
    chunks,
    format_ranges,
    valid_job_ids,
)
from adapters.slurm.rest_records import (
    RestJobDetails,
    RestJobState,
    parse_accounted_job,
    parse_configuration,
    parse_job_details,
    parse_job_state,
    parse_node,
    parse_partition,
    parse_reservation,
)
from adapters.slurm.rest_session import MAX_CONNECTIONS, RestResponse, RestResponseTooLargeError, RestSession
from adapters.slurm.settings import SlurmSiteConfig
from adapters.slurm.states import refusal_error
from provisioner.interfaces import AdapterError, AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import FaultKind

_CONFIGURATION_PATH = "slurm/v0.0.45/conf"
"""The first version that reports slurm.conf; 26.05 offers it."""
_REST_JOB_ENVIRONMENT = ("PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",)
"""Slurm accepts no job without an environment. The job sets its own."""
_JOBS_PER_QUERY = 200
"""Ids in one question, which goes into a URL."""
_JOBS_PER_CANCEL = 1000
_NO_SUCH_JOB, _JOB_ENDED, _ACCESS_DENIED = 2017, 2021, 2002
"""Error numbers of Slurm."""


class SlurmRestClient:
    """The cluster as the user of the token sees it, or at a unix socket the account of its owner.

    A tick costs one listing of states (80 bytes a job and task, of all users) and a request for details (9 kB) for each
    job that is new to the cluster, for each of ours that changed, and for ``max_job_details_per_poll`` more. At the
    start all jobs are new, and until the details of each are known (about 200 a second) ``own_jobs`` raises
    UnavailableError. That a drone is being preempted is seen in its turn: later than by the tools if many run.
    """

    def __init__(self, config: SlurmSiteConfig, name: str) -> None:
        assert config.rest is not None
        self._config = config
        self._session = RestSession(config.rest, config.deadline)
        ssh = config.rest.ssh
        self._user = config.rest.user or (ssh.user if ssh else getpass.getuser())
        """The account of our jobs: the configured one, or ours at the other end of a unix socket."""
        self._jobs = RestJobRegistry(self._session, self._user, config.rest.max_job_details_per_poll)

    async def __aenter__(self) -> Self:
        await self._session.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.__aexit__(*exc)

    # ---------------------------------------------------------------------------------------------------- questions

    async def own_jobs(self) -> Sequence[SlurmJob]:
        return await self._jobs.own_jobs(self._config.deadline)

    async def active_jobs(self, partitions: Collection[str]) -> Sequence[SlurmJob]:
        return await self._jobs.active_jobs(partitions, self._config.deadline)

    async def ended_jobs(self, remote_ids: Collection[str], since: float) -> Sequence[SlurmJob] | None:
        if self._config.accounting is False:
            return None
        parts = chunks(sorted(valid_job_ids(remote_ids)), _JOBS_PER_QUERY)
        selections = [[("step", each) for each in part] for part in parts]
        found: list[SlurmJob] = []
        for selection in selections or [[("start_time", str(max(0, int(since))))]]:
            query = [("users", self._user), ("skip_steps", "true"), *selection]
            response = await self._session.request("GET", "slurmdb/{}/jobs/", query)
            if response.status == 404 and not response.body:
                return None  # slurmrestd was started without it, as it must be where there is no slurmdbd
            found += map(parse_accounted_job, self._session.checked(response).items("jobs"))
        return found

    async def nodes(self) -> Sequence[SlurmNode]:
        # All of it, 2.5 kB a node. With `update_time` 24.11 answers "nothing has changed" with status 500 and
        # "Unspecified error", as it does when slurmctld is silent.
        return [parse_node(record) for record in (await self._session.read("slurm/{}/nodes/")).items("nodes")]

    async def partitions(self) -> Sequence[Partition]:
        response = await self._session.read("slurm/{}/partitions/")
        return [parse_partition(record) for record in response.items("partitions")]

    async def reservations(self) -> Sequence[Reservation]:
        response = await self._session.read("slurm/{}/reservations/")
        return [parse_reservation(record) for record in response.items("reservations")]

    def notices(self) -> Sequence[str]:
        return ()

    async def configuration(self) -> Mapping[str, str]:
        """Return all of slurm.conf from 26.05 on; before, only the version and whether there is accounting."""
        response = await self._session.request("GET", _CONFIGURATION_PATH)
        about = parse_configuration((await self._session.read("slurm/{}/ping/")).body)
        return {**about, **(parse_configuration(response.body) if response.is_complete else {})}

    # -------------------------------------------------------------------------------------------------------- orders

    async def submit(self, submission: SlurmSubmission) -> int:
        if len(submission.tasks) > MAX_ARRAY_TASKS:
            message = f"an array of {len(submission.tasks)} tasks: slurmrestd reports {MAX_ARRAY_TASKS} at most"
            raise RejectedError(message, FaultKind.CONFIG)
        try:
            body = {"script": submission.script.decode(), "job": job_description(submission)}
        except UnsupportedOptionError as error:
            raise RejectedError(printable(str(error)), FaultKind.CONFIG) from None
        response = await self._order("POST", "slurm/{}/job/submit", body, self._config.submit_deadline)
        job_id = response.body.get("job_id")
        if not isinstance(job_id, int) or job_id <= 0:
            raise OutcomeUnknownError(f"{self._session.where}: it accepts a job without reporting its number")
        self._jobs.submitted(job_id)
        return job_id

    async def cancel(self, remote_ids: Sequence[str], *, kill: bool = False) -> None:
        # Never without ids: an order that names no jobs is for all of them.
        for some in chunks(valid_job_ids(remote_ids), _JOBS_PER_CANCEL):
            if kill:
                # SIGKILL to a whole job is a plain scancel, with SIGTERM and KillWait before. The steps alone are
                # killed at once; the batch script is left to tidy up, and has KillWait for it.
                await self._delete({"jobs": some, "signal": "KILL", "flags": ["FULL_STEPS_ONLY"]})
            await self._delete({"jobs": some})

    async def _delete(self, body: Mapping[str, Any]) -> None:
        response = await self._order("DELETE", "slurm/{}/jobs/", body, self._config.deadline)
        for each in response.items("status"):
            error = each.get("error")
            if not isinstance(error, dict) or error.get("code") in (None, 0, _NO_SUCH_JOB, _JOB_ENDED):
                continue
            message = f"{each.get('step_id')}: {error.get('message')}"
            raise AuthError(printable(message)) if error["code"] == _ACCESS_DENIED else refusal_error(message)

    async def _order(self, method: str, path: str, body: Mapping[str, Any], deadline_s: float) -> RestResponse:
        response = await self._session.request(method, path, body=body, deadline_s=deadline_s)
        if response.is_complete:
            return response
        if not response.body and response.status >= 500:  # from a proxy: the order may have got through
            raise OutcomeUnknownError(f"{self._session.where}: {response.message}")
        raise refusal_error(response.message)


def job_description(submission: SlurmSubmission) -> Mapping[str, Any]:
    """Return the job as slurmrestd needs it. UnsupportedOptionError for an option that it has no field for."""
    job: dict[str, Any] = {
        **convert_options(submission.options, "rest"),
        "name": submission.name,
        "environment": list(_REST_JOB_ENVIRONMENT),
        "current_working_directory": "/",
        "standard_output": submission.output,
        "requeue": False,
        "tasks": 1,
        "minimum_nodes": 1,
        "maximum_nodes": 1,
        "cpus_per_task": submission.cpus,
    }
    if submission.tasks:
        job["array"] = format_ranges(submission.tasks)
    if submission.memory_mib:
        job["memory_per_node"] = {"set": True, "number": submission.memory_mib}
    if submission.minutes:
        job["time_limit"] = {"set": True, "number": submission.minutes}
    if submission.notice_s:
        job["kill_warning_signal"] = "TERM"
        job["kill_warning_delay"] = {"set": True, "number": submission.notice_s}
        job["kill_warning_flags"] = ["BATCH_JOB"]
    return job


# ------------------------------------------------------------------------------------------------------------ registry

MAX_ARRAY_TASKS = 5000
"""Tasks of an array of ours. One call reports all of an array's jobs; an array that is too long for one answer belongs
to somebody else."""
_FRESH_S = 1.0
"""Age of a listing at which it still shows what others do."""
_REST_ACTIVE_STATES = ("PENDING", "RUNNING", "SUSPENDED")
_COMPLETE_STATES = (*_REST_ACTIVE_STATES, "CANCELLED")
"""States that can do without an exit status and a reason for a while."""
_CHANGES_PER_POLL = 500
"""Requests for jobs whose state changed: half a second of our time."""


@dataclass(slots=True)
class _RegisteredJob:
    """Facts kept about one of Slurm's job numbers."""

    details: RestJobDetails | None
    """None: it is not shown to us, so it is not ours."""
    listed: RestJobState
    """Its listing when its details were requested."""
    turn: int
    """When that was."""


class RestJobRegistry:
    """The jobs that slurmctld knows, by one cheap listing of states and a request for the details of each job.

    slurmrestd has no cheap listing with users. The details of a job are remembered for as long as slurmctld knows it,
    and requested again when its state changes, if it is ours or in a partition of the owner. Of ours that do not change
    a few are requested in turn: what a job waits for, when it is expected to start, and that it is being preempted, is
    not in the listing of states.
    """

    def __init__(self, session: RestSession, user: str, details_per_poll: int) -> None:
        self._session, self._user, self._details_per_poll = session, user, details_per_poll
        self._known: dict[int, _RegisteredJob] = {}
        self._partitions: frozenset[str] = frozenset()
        self._turn, self._credit = 0, 0
        """Number of the listing, and how many unchanged jobs may be requested after it."""
        self._lock = asyncio.Lock()
        self._listing: dict[int, list[RestJobState]] = {}
        self._listed_at = -math.inf
        self._last_submitted = 0

    async def own_jobs(self, deadline_s: float) -> Sequence[SlurmJob]:
        """Return all of our jobs. UnavailableError as long as the user of some job is unknown."""
        jobs = await self._update(deadline_s, max_age_s=0.0)
        ours = self._known.get(self._last_submitted)
        if ours is not None and ours.details is not None and ours.details.job.user != self._user:
            user = printable(ours.details.job.user, 60)
            raise UnavailableError(
                f"{self._session.where}: our jobs belong to `{user}`, not to `{self._user}`: write `user: {user}`",
                FaultKind.CONFIG,
            )
        return [job for job in jobs if job.user == self._user]

    async def active_jobs(self, partitions: Collection[str], deadline_s: float) -> Sequence[SlurmJob]:
        """Return everyone's jobs that wait or run in these partitions. UnavailableError as in :meth:`own_jobs`."""
        requested = self._partitions = frozenset(partitions)
        jobs = await self._update(deadline_s, max_age_s=_FRESH_S)
        return [job for job in jobs if job.state in _REST_ACTIVE_STATES and _is_in(job, requested)]

    def submitted(self, number: int) -> None:
        """Remember a job that is certainly ours."""
        self._last_submitted = number

    # ------------------------------------------------------------------------------------------------------- updating

    async def _update(self, deadline_s: float, *, max_age_s: float) -> Sequence[SlurmJob]:
        """Return all jobs, from a listing of at most this age. Details are kept when time runs out."""
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        until = asked_at + deadline_s
        try:
            async with asyncio.timeout_at(until):
                await self._lock.acquire()
        except TimeoutError:
            message = f"{self._session.where}: another listing takes longer than {deadline_s:g} s"
            raise UnavailableError(message) from None
        try:
            if self._listed_at < asked_at - max_age_s:  # else one was begun meanwhile, and is as good as our own
                await self._list_states(until)
            await self._request_all(self._unknown(), until)
            if left := len(self._unknown()):
                total = len(self._listing)
                raise UnavailableError(
                    f"{self._session.where}: still learning which jobs are ours: {total - left} of {total}"
                )
            # The rest while time allows: of a changed job that is left over only the state is reported this time.
            await self._request_all(self._changed()[:_CHANGES_PER_POLL], (loop.time() + until) / 2)
            self._credit -= await self._request_all(self._in_turn(), (loop.time() + until) / 2)
            return list(self._jobs())
        finally:
            self._lock.release()

    async def _list_states(self, until: float) -> None:
        began_at = asyncio.get_running_loop().time()
        response = await self._session.read("slurm/{}/jobs/state/", deadline_s=max(until - began_at, 0.001))
        found: dict[int, list[RestJobState]] = {}
        for each in map(parse_job_state, response.items("jobs")):
            found.setdefault(each.number, []).extend(self._tasks(each) if each.all_tasks else [each])
        self._listing = {number: entries for number, entries in found.items() if entries}
        self._listed_at = began_at
        self._turn += 1
        self._credit = min(self._details_per_poll, self._credit + self._details_per_poll)
        self._known = {number: known for number, known in self._known.items() if number in self._listing}

    def _tasks(self, every: RestJobState) -> Sequence[RestJobState]:
        """Return the tasks of ``1_*`` from the last listing; if there are none, they have ended before they began."""
        last = [each for each in self._listing.get(every.number, ()) if each.task is not None]
        if not last and every.state in _REST_ACTIVE_STATES:
            return [every]
        return [replace(each, state=every.state, flags=every.flags) for each in last]

    def _unknown(self) -> Sequence[int]:
        """Return the numbers of jobs whose user or end is unknown, new ones first.

        Ascending: the first number of an array reports all of it.
        """
        new = [number for number in self._listing if number not in self._known]
        return [*sorted(new), *(number for number in self._changed() if self._has_ended(number))]

    def _has_ended(self, number: int) -> bool:
        known, now = self._known[number], self._listing[number][0].state
        return self._is_own(known) and now not in _COMPLETE_STATES and now != known.listed.state

    def _is_own(self, known: _RegisteredJob) -> bool:
        return known.details is not None and known.details.job.user == self._user

    def _changed(self) -> Sequence[int]:
        return sorted(number for number, entries in self._listing.items() if self._has_changed(number, entries[0]))

    def _has_changed(self, number: int, now: RestJobState) -> bool:
        known = self._known.get(number)
        if known is None or known.details is None or known.turn == self._turn:
            return False
        if not self._is_own(known) and not _is_in(known.details.job, self._partitions):
            return False
        if (known.listed.state, known.listed.flags) != (now.state, now.flags):
            return True
        # the last waiting task of an array takes the array's own number along when it starts
        return known.details.task is not None and known.details.task != now.task

    def _in_turn(self) -> Sequence[int]:
        """Return a few of our unchanged jobs, the oldest details first, one running job after each waiting one."""
        own = [(known.turn, number) for number, known in self._known.items() if self._is_own(known)]
        oldest = [number for turn, number in sorted(own) if turn < self._turn]
        by_state = [[n for n in oldest if self._known[n].listed.state == state] for state in ("PENDING", "RUNNING")]
        mixed = [number for pair in zip_longest(*by_state) for number in pair if number is not None]
        return mixed[: max(0, self._credit)]

    async def _request_all(self, numbers: Sequence[int], until: float) -> int:
        """Request details, several at a time, and return how many jobs were reported by then.

        An array that was begun costs as much as it has jobs. After a failure, which is raised, no more are begun.
        """
        loop = asyncio.get_running_loop()
        left, failures, reported = iter(numbers), list[AdapterError](), 0

        async def work() -> None:
            nonlocal reported
            for number in left:
                known = self._known.get(number)
                if failures:
                    return
                if known is not None and known.turn == self._turn:
                    continue  # reported with another of its array
                try:
                    reported += await self._request(number, until)
                except AdapterError as error:
                    failures.append(error)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until), asyncio.TaskGroup() as group:
                for _ in range(min(MAX_CONNECTIONS, len(numbers))):
                    group.create_task(work())
        if failures and loop.time() < until:
            raise failures[0]
        return reported

    async def _request(self, number: int, until: float) -> int:
        """Request the details of one number, and return how many jobs were reported."""
        left_s = max(until - asyncio.get_running_loop().time(), 0.001)
        listed = self._listing[number][0]
        path = f"slurm/{{}}/job/{number}"
        try:
            # without `flags` it would report every core of a job, three times as much
            response = await self._session.request("GET", path, [("flags", "ALL")], deadline_s=left_s)
        except RestResponseTooLargeError:
            response = None
        if response is None or response.has_error(_NO_SUCH_JOB):
            self._known[number] = _RegisteredJob(None, listed, self._turn)
            return 1
        found = [parse_job_details(record) for record in self._session.checked(response).items("jobs")]
        for each in found:
            if entries := self._listing.get(each.number):
                self._known[each.number] = _RegisteredJob(each, entries[0], self._turn)
        if not any(each.number == number for each in found):
            raise UnavailableError(f"{self._session.where}: asked for job {number}, it reports another")
        return len(found)

    def _jobs(self) -> Iterator[SlurmJob]:
        for number, entries in self._listing.items():
            known = self._known[number]
            if known.details is not None:
                yield from _current_jobs(known.details, entries, is_fresh=known.turn == self._turn)


def _is_in(job: SlurmJob, partitions: frozenset[str]) -> bool:
    return not partitions.isdisjoint(job.partition.split(","))


def _current_jobs(details: RestJobDetails, entries: Iterable[RestJobState], *, is_fresh: bool) -> Iterator[SlurmJob]:
    """Yield the jobs of one number: more than one where tasks of an array wait."""
    job = details.job
    for each in entries:
        remote_id = f"{details.array}_{each.task}" if details.array and each.task is not None else job.remote_id
        if is_fresh and details.task == each.task:
            yield job
        elif each.state == job.state:
            yield replace(job, remote_id=remote_id, flags=each.flags)
        else:  # its state has changed since: who it is does not
            yield replace(
                job,
                remote_id=remote_id,
                state=each.state,
                flags=each.flags,
                reason="",
                started_at=0.0,
                ends_at=0.0,
                preempted_at=0.0,
                nodes=(),
                exit_code=None,
                signal=0,
            )
