"""Transport by slurmrestd. A missing field counts as empty: versions of the API differ in their fields."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

from adapters.shared.printing import printable
from adapters.slurm import records
from adapters.slurm.options import convert_options
from adapters.slurm.records import (
    Partition,
    Reservation,
    SlurmClient,
    SlurmJob,
    SlurmJobs,
    SlurmNode,
    SlurmSubmission,
)
from adapters.slurm.rest_session import (
    MAX_CONNECTIONS,
    JsonObject,
    RestResponse,
    RestResponseTooLargeError,
    RestSession,
)
from adapters.slurm.settings import SlurmSiteConfig
from adapters.slurm.states import refusal_error
from provisioner.interfaces import (
    AdapterError,
    AuthError,
    OutcomeUnknownError,
    RejectedError,
    UnavailableError,
)
from provisioner.model import FaultKind

T = TypeVar("T")

_CONFIGURATION_PATH = "slurm/v0.0.45/conf"
"""The first version that reports slurm.conf; 26.05 offers it."""
_REST_JOB_ENVIRONMENT = ["PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"]
"""Slurm accepts no job without an environment. The job sets its own."""
_JOBS_PER_QUERY, _JOBS_PER_CANCEL = 200, 1000
"""Ids of a question go into a URL."""
_NO_SUCH_JOB, _JOB_ENDED, _ACCESS_DENIED = 2017, 2021, 2002
"""Error numbers of Slurm."""
_REST_ACTIVE_STATES = ("PENDING", "RUNNING", "SUSPENDED")
MAX_ARRAY_TASKS = 5000
"""Tasks of an array of ours. One call reports all of an array's jobs; an array that is too long for
one answer belongs to somebody else."""


class _KnownJobs(NamedTuple):
    """Details of one of Slurm's job numbers: a job, a started task, or the waiting tasks of an array.

    ``listed``: its ids and states in the listing at that time. Without ``jobs`` it is not shown to
    us, so not ours.
    """

    listed: frozenset[tuple[str, str]]
    array: int = 0
    jobs: SlurmJobs = ()


class SlurmRestClient(SlurmClient):
    """The cluster as the user of the token sees it, or at a unix socket the account of its owner.

    slurmrestd lists jobs with details only for all users: 7.7 kB each, and with 5,000 jobs it took
    4.6 s and 0.7 GB of slurmrestd's memory. So a cheap listing (80 bytes a job) reports numbers and
    states, and details are requested of each number once, of ours that live at each listing (an
    array in one call), and of others when they have changed. At the start all numbers are new.
    Until all are known, about 200 a second, there is no listing.
    """

    def __init__(self, config: SlurmSiteConfig, name: str) -> None:
        assert config.rest is not None
        self._config = config
        self._session = RestSession(config.rest, config.deadline)
        ssh = config.rest.ssh
        self._user = config.rest.user or (ssh.user if ssh else getpass.getuser())
        """The account of our jobs: the configured one, or ours at the other end of a unix socket."""
        self._last_submitted = ""
        """Number of a job that is certainly ours."""
        self._known: dict[int, _KnownJobs] = {}
        self._listing: Mapping[int, frozenset[tuple[str, str]]] = {}
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self._session.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.__aexit__(*exc)

    async def own_jobs(self) -> SlurmJobs:
        def may_have_changed(number: int, known: _KnownJobs) -> bool:
            # of ours that live: a preemption and an expected start are in the details only
            is_own = any(job.user == self._user for job in known.jobs[:1])
            lives = any(job.state in _REST_ACTIVE_STATES or job.flags for job in known.jobs)
            return is_own and (lives or self._is_listed_otherwise(number, known))

        await self._update(may_have_changed)
        for job in self._jobs():
            if job.user != self._user and job.remote_id.partition("_")[0] == self._last_submitted:
                user = printable(job.user, 60)
                message = f"the drones' jobs belong to `{user}`, not to `{self._user}`: write `user: {user}`"
                raise UnavailableError(f"{self._session.where}: {message}", FaultKind.CONFIG)
        return [job for job in self._jobs() if job.user == self._user]

    async def active_jobs(self, partitions: Collection[str]) -> SlurmJobs:
        def is_in(job: SlurmJob) -> bool:
            return not set(job.partition.split(",")).isdisjoint(partitions)

        def has_changed(number: int, known: _KnownJobs) -> bool:
            return self._is_listed_otherwise(number, known) and any(map(is_in, known.jobs))

        await self._update(has_changed)
        return [job for job in self._jobs() if job.state in _REST_ACTIVE_STATES and is_in(job)]

    def _jobs(self) -> Iterator[SlurmJob]:
        return (job for known in self._known.values() for job in known.jobs)

    def _is_listed_otherwise(self, number: int, known: _KnownJobs) -> bool:
        return known.listed != self._listing.get(number, known.listed)

    async def _update(self, is_outdated: Callable[[int, _KnownJobs], bool]) -> None:
        """List the states of all jobs, and request details of new and of outdated ones.

        What was learned is kept when time runs out. UnavailableError then: the listing is not
        complete.
        """
        try:
            async with asyncio.timeout(self._config.deadline), self._lock:
                self._listing = parse_states(
                    (await self._session.read("slurm/{}/jobs/state/")).items("jobs")
                )
                self._known = {n: known for n, known in self._known.items() if n in self._listing}
                reported: set[int] = set()
                # Ascending: the first number of an array reports all of it.
                await self._request_all(sorted(self._listing.keys() - self._known.keys()), reported)
                outdated = {
                    n: known.array or n for n, known in self._known.items() if is_outdated(n, known)
                }
                await self._request_all([outdated[n] for n in outdated.keys() - reported], reported)
                await self._request_all([n for n in outdated if n not in reported], reported)
        except TimeoutError:
            unknown = len(self._listing.keys() - self._known.keys())
            total = len(self._listing)
            why = f"reading the owners of jobs: {total - unknown} of {total} done"
            if not unknown:
                why = f"no complete listing within {self._config.deadline:g} s"
            raise UnavailableError(f"{self._session.where}: {why}") from None

    async def _request_all(self, numbers: Sequence[int], reported: set[int]) -> None:
        """Request details, several at a time. After a failure, which is raised, no more are begun."""
        left = iter(dict.fromkeys(numbers))
        failures = list[AdapterError]()

        async def work() -> None:
            for number in left:
                if failures:
                    return
                if number not in reported:  # with another of its array
                    try:
                        await self._request(number, reported)
                    except AdapterError as error:
                        failures.append(error)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(MAX_CONNECTIONS, len(numbers))):
                group.create_task(work())
        if failures:
            raise failures[0]

    async def _request(self, number: int, reported: set[int]) -> None:
        """Request the details of one number, and note all numbers that are reported."""
        listed = self._listing.get(number, frozenset())
        try:
            # without `flags` it would report every core of a job, three times as much
            response = await self._session.request(
                "GET", f"slurm/{{}}/job/{number}", [("flags", "ALL")]
            )
        except RestResponseTooLargeError:
            response = None
        if response is None or any(error == _NO_SUCH_JOB for error, _ in response.errors):
            self._known[number] = _KnownJobs(listed)
            reported.add(number)
            return
        reported_jobs = self._session.checked(response).items("jobs")
        ids = await self._read(_numbers, reported_jobs)
        if not any(number in pair for pair in ids):
            raise UnavailableError(
                f"{self._session.where}: asked for job {number}, it reports another"
            )
        reported.update(each for each, _ in ids)
        jobs = await self._read(partial(parse_job, listed=listed), reported_jobs)
        for (each, array), some in zip(ids, jobs, strict=True):
            self._known[each] = _KnownJobs(self._listing.get(each, frozenset()), array, some)

    async def ended_jobs(self, remote_ids: Collection[str], since: float) -> SlurmJobs | None:
        selections = [
            [("step", each) for each in some]
            for some in records.job_id_chunks(remote_ids, _JOBS_PER_QUERY)
        ]
        found: list[SlurmJob] = []
        for selection in selections or [[("start_time", str(max(0, int(since))))]]:
            query = [("users", self._user), ("skip_steps", "true"), *selection]
            response = await self._session.request("GET", "slurmdb/{}/jobs/", query)
            if response.status == 404 and not response.body:
                # slurmrestd was started without it, as it must be where there is no slurmdbd
                return None
            found += await self._read(
                parse_accounted_job, self._session.checked(response).items("jobs")
            )
        return found

    async def nodes(self, *, reserves: bool = False) -> Sequence[SlurmNode]:
        # All of it, 2.5 kB a node. With `update_time` 24.11 answers "nothing has changed" with
        # status 500 and "Unspecified error", as it does when slurmctld is silent.
        return await self._list("nodes", parse_node)

    async def partitions(self) -> Sequence[Partition]:
        return await self._list("partitions", parse_partition)

    async def reservations(self) -> Sequence[Reservation]:
        return await self._list("reservations", parse_reservation)

    async def configuration(self) -> Mapping[str, str]:
        """Return slurm.conf from 26.05 on; before, only the version and whether there is accounting."""
        response = await self._session.request("GET", _CONFIGURATION_PATH)
        about = parse_configuration((await self._session.read("slurm/{}/ping/")).body)
        return {**about, **(parse_configuration(response.body) if response.is_complete else {})}

    async def _list(self, name: str, parse: Callable[[JsonObject], T]) -> list[T]:
        return await self._read(
            parse, (await self._session.read(f"slurm/{{}}/{name}/")).items(name)
        )

    async def _read(self, parse: Callable[[JsonObject], T], found: Sequence[JsonObject]) -> list[T]:
        """Return what ``parse`` makes of the records, in a thread: there may be thousands of them."""
        try:
            return await asyncio.to_thread(lambda: list(map(parse, found)))
        except ValueError as error:
            message = f"{self._session.where}: its answer is invalid or incomplete: {error}"
            raise UnavailableError(printable(message, 400)) from None

    async def submit(self, submission: SlurmSubmission) -> int:
        if len(submission.tasks) > MAX_ARRAY_TASKS:
            message = f"an array of {len(submission.tasks)} tasks: slurmrestd reports {MAX_ARRAY_TASKS} at most"
            raise RejectedError(message, FaultKind.CONFIG)
        body = {"script": submission.script.decode(), "job": job_description(submission)}
        response = await self._order(
            "POST", "slurm/{}/job/submit", body, self._config.submit_deadline
        )
        job_id = response.body.get("job_id")
        if not isinstance(job_id, int) or job_id <= 0:
            raise OutcomeUnknownError(
                f"{self._session.where}: it accepts a job without reporting its number"
            )
        self._last_submitted = str(job_id)
        return job_id

    async def cancel(self, remote_ids: Sequence[str], *, kill: bool = False) -> None:
        # Never without ids: an order that names no jobs is for all of them.
        for some in records.job_id_chunks(remote_ids, _JOBS_PER_CANCEL):
            if kill:
                # SIGKILL to a whole job is a plain scancel, with SIGTERM and KillWait before. The
                # steps alone are killed at once; the batch script is left to tidy up, and has
                # KillWait for it.
                await self._delete({"jobs": some, "signal": "KILL", "flags": ["FULL_STEPS_ONLY"]})
            await self._delete({"jobs": some})

    async def _delete(self, body: JsonObject) -> None:
        response = await self._order("DELETE", "slurm/{}/jobs/", body, self._config.deadline)
        for each in response.items("status"):
            error = each.get("error")
            if not isinstance(error, dict) or error.get("code") in (
                None,
                0,
                _NO_SUCH_JOB,
                _JOB_ENDED,
            ):
                continue
            message = f"{each.get('step_id')}: {error.get('message')}"
            raise (
                AuthError(printable(message))
                if error["code"] == _ACCESS_DENIED
                else refusal_error(message)
            )

    async def _order(
        self, method: str, path: str, body: JsonObject, deadline_s: float
    ) -> RestResponse:
        response = await self._session.request(method, path, body=body, deadline_s=deadline_s)
        if response.is_complete:
            return response
        # from a proxy: the order may have got through
        if not response.body and response.status >= 500:
            raise OutcomeUnknownError(f"{self._session.where}: {response.message}")
        raise refusal_error(response.message)


def job_description(submission: SlurmSubmission) -> JsonObject:
    job: dict[str, Any] = {
        **convert_options(submission.options, "rest")[0],
        "name": submission.name,
        "environment": _REST_JOB_ENVIRONMENT,
        "current_working_directory": "/",
        "standard_output": submission.output,
        "requeue": False,
        "tasks": 1,
        "minimum_nodes": 1,
        "maximum_nodes": 1,
        "cpus_per_task": submission.cpus,
    }
    if submission.tasks:
        job["array"] = records.format_ranges(submission.tasks)
    if submission.memory_mib:
        job["memory_per_node"] = {"set": True, "number": submission.memory_mib}
    if submission.minutes:
        job["time_limit"] = {"set": True, "number": submission.minutes}
    if submission.notice_s:
        job["kill_warning_signal"] = "TERM"
        job["kill_warning_delay"] = {"set": True, "number": submission.notice_s}
        job["kill_warning_flags"] = ["BATCH_JOB"]
    return job


_REST_JOB = {
    **records.SLURMCTLD_JOB,
    **records.same("nodes", "exit_code", "node_count", "cpus", "comment"),
    **records.same("tres_per_node", "memory_per_cpu", "memory_per_node", "required_nodes"),
    "state": "job_state",
    "user": "user_name",
    "preempted_at": "preempt_time",
    "restarts": "restart_cnt",
    "tres": "tres_req_str",
}
_REST_ACCOUNTED_JOB = {
    **records.same("name", "user", "account", "partition", "qos", "nodes", "exit_code"),
    "state": "state.current",
    "reason": "state.reason",
    "submitted_at": "time.submission",
    "started_at": "time.start",
    "ends_at": "time.end",
    "limit_s": "time.limit",
}
_REST_NODE = {
    **records.same("name", "state", "partitions", "cpus"),
    "features": "active_features",
    "used_cpus": "alloc_cpus",
    "memory_mib": "real_memory",
    "used_memory_mib": "alloc_memory",
    "gpus": "gres",
    "used_gpus": "gres_used",
    "threads_per_core": "threads",
    "restricted_cores_per_gpu": "res_cores_per_gpu",
}
_REST_PARTITION = {
    "name": "name",
    "up": "partition.state",
    "nodes": "nodes.configured",
    "max_s": "maximums.time",
    "tier": "priority.tier",
    "grace_s": "grace_time",
    "max_memory_per_cpu_mib": "maximums.partition_memory_per_cpu",
    "max_memory_per_node_mib": "maximums.partition_memory_per_node",
    "max_cpus_per_node": "maximums.cpus_per_node",
    "min_nodes": "minimums.nodes",
    "oversubscribe": "maximums.oversubscribe.jobs",
    "exclusive": "partition.exclusive",
}
_REST_RESERVATION = {
    "name": "name",
    "starts_at": "start_time",
    "ends_at": "end_time",
    "nodes": "node_list",
}


def parse_states(listed: Sequence[JsonObject]) -> Mapping[int, frozenset[tuple[str, str]]]:
    """Return ids and states by number from ``jobs/state/``.

    A waiting task has the number of its array, a started one a number of its own, which says
    nothing of the array: ``1_3`` (waiting) becomes ``6_3``. An array all of which was cancelled
    before it began is ``1_*``.
    """
    found: dict[int, set[tuple[str, str]]] = {}
    for record in listed:
        remote_id = str(record.get("job_id"))
        state = record.get("state")
        number = remote_id.partition("_")[0].partition("+")[0]
        if not number.isdecimal() or not state:
            raise UnavailableError("slurmrestd reports the state of a job in an unknown format")
        found.setdefault(int(number), set()).add((remote_id, str(state)))
    return {number: frozenset(entries) for number, entries in found.items()}


def _numbers(record: JsonObject) -> tuple[int, int]:
    """Return the number of a job, and that of its array, or 0."""
    return records.count(record.get("job_id")), records.count(record.get("array_job_id"))


def parse_job(record: JsonObject, listed: Collection[tuple[str, str]] = ()) -> SlurmJobs:
    """Return the job of a record of ``job/``, or the waiting tasks of an array.

    Of a long list of tasks the record has only the beginning: then they are those among ``listed``.
    """
    (number, array), task = _numbers(record), record.get("array_task_id")
    text = str(record.get("array_task_string") or "")
    if not array:
        ids = [str(number)]
    elif records.is_set(task):
        ids = [f"{array}_{records.count(task)}"]
    elif text.endswith("..."):
        ids = sorted(
            remote_id for remote_id, _ in listed if "_" in remote_id and "*" not in remote_id
        )
    else:
        ids = [f"{array}_{each}" for each in (records.parse_tasks(text) if text else ())]
    job = records.read_job(
        {**records.pick(record, _REST_JOB), "remote_id": ids[0] if ids else str(number)}
    )
    return [replace(job, remote_id=remote_id) for remote_id in ids]


def _accounted_id(record: JsonObject) -> str:
    ids = records.pick(record, {"job": "job_id", "array": "array.job_id", "task": "array.task_id"})
    number, array, task = map(records.count, ids.values())
    return f"{array}_{task}" if array and records.is_set(ids["task"]) else str(number)


def parse_accounted_job(record: JsonObject) -> SlurmJob:
    return records.read_job(
        {**records.pick(record, _REST_ACCOUNTED_JOB), "remote_id": _accounted_id(record)}
    )


def parse_node(record: JsonObject) -> SlurmNode:
    node = records.read_node(records.pick(record, _REST_NODE))
    # `gpu_spec` names the reserved cores: without them none is, whatever is configured
    return node if record.get("gpu_spec") else replace(node, restricted_cores_per_gpu=0)


def parse_reservation(record: JsonObject) -> Reservation:
    return records.read(Reservation, records.pick(record, _REST_RESERVATION))


def parse_partition(record: JsonObject) -> Partition:
    flags = record.get("flags")  # reported by 26.05 only
    default = isinstance(flags, list) and "DEFAULT" in flags
    raw = {**records.pick(record, _REST_PARTITION), "default": default}
    # 26.05 has 0 for every partition, and a word beside it
    if raw["exclusive"] is None and raw["oversubscribe"] == 0:
        raw["exclusive"] = "NODE"
    return records.read(Partition, raw)


def parse_configuration(body: JsonObject) -> Mapping[str, str]:
    """Return slurm.conf as ``scontrol show config`` prints it, as far as it is reported, and the server's version."""
    about = {
        "SLURM_VERSION": "meta.slurm.release",
        "AccountingStorageType": "meta.plugin.accounting_storage",
    }
    settings = body.get("slurm_conf")
    found = {**records.pick(body, about), **(settings if isinstance(settings, dict) else {})}
    return {name: text for name, value in found.items() if (text := _setting(value))}


def _setting(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, str):
        return value
    return str(records.count(value)) if records.is_set(value) else ""
