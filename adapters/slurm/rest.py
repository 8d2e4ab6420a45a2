"""A cluster by way of slurmrestd."""

from __future__ import annotations

import getpass
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

from adapters.shared.printing import printable
from adapters.slurm.records import (
    Partition,
    Reservation,
    SlurmJob,
    SlurmNode,
    SlurmSubmission,
    format_ranges,
    valid_job_ids,
)
from adapters.slurm.rest_link import Answer, RestLink
from adapters.slurm.rest_options import Unsayable, fields
from adapters.slurm.rest_records import accounted, configuration, node, partition, reservation
from adapters.slurm.rest_roll import LONGEST_ARRAY, Roll
from adapters.slurm.settings import SlurmRestConfig, SlurmSiteConfig
from adapters.slurm.states import refusal_error
from provisioner.interfaces import AdapterError, AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import FaultKind

_CONFIGURATION = "slurm/v0.0.45/conf"
"""The first version that tells slurm.conf; 26.05 offers it."""
_ENVIRONMENT = ("PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",)
"""Slurm takes no job without an environment. The job makes its own."""
_ASKED_AT_ONCE = 200
"""Ids in one question, which goes into a URL."""
_ENDED_AT_ONCE = 1000
_ALREADY_OVER = (2017, 2021)
"""Slurm's numbers for a job that is not known and for one that has ended."""
_NO_ACCESS = (2002,)


class SlurmRestClient:
    """The cluster as the user of the token sees it, or of a unix socket the account that it belongs to.

    A tick costs one listing of states (80 bytes a job and task, of all users) and a look (9 kB) at each job that
    is new to the cluster, at each of ours that changed, and at ``max_job_details_per_poll`` more. At the start
    everything is
    new, and until each job was looked at once (about 200 a second) ``ours`` raises UnavailableError. That a drone is
    being
    preempted is seen when it has its turn: with many running ones later than by the tools.
    """

    def __init__(self, config: SlurmSiteConfig, name: str) -> None:
        assert config.rest is not None
        self._config = config
        self._link = RestLink(config.rest)
        self._user = _whoami(config.rest)
        self._roll = Roll(self._link, self._user, config.rest.max_job_details_per_poll)

    async def __aenter__(self) -> Self:
        await self._link.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._link.__aexit__(*exc)

    # ---------------------------------------------------------------------------------------------------- questions

    async def own_jobs(self) -> Sequence[SlurmJob]:
        return await self._roll.own_jobs(self._config.deadline)

    async def active_jobs(self, partitions: Collection[str]) -> Sequence[SlurmJob]:
        return await self._roll.active_jobs(partitions, self._config.deadline)

    async def ended_jobs(self, remote_ids: Collection[str], since: float) -> Sequence[SlurmJob] | None:
        if self._config.accounting is False:
            return None
        always = [("users", self._user), ("skip_steps", "true")]
        if not remote_ids:
            return await self._accounted([*always, ("start_time", str(max(0, int(since))))])
        ids = sorted(valid_job_ids(remote_ids))
        found: list[SlurmJob] = []
        for some in range(0, len(ids), _ASKED_AT_ONCE):
            jobs = await self._accounted([*always, *(("step", each) for each in ids[some : some + _ASKED_AT_ONCE])])
            if jobs is None:
                return None
            found += jobs
        return found

    async def _accounted(self, query: Sequence[tuple[str, str]]) -> Sequence[SlurmJob] | None:
        answer = await self._link.ask("GET", "slurmdb/{}/jobs/", query, deadline_s=self._config.deadline)
        if answer.status == 404 and not answer.body:
            return None  # slurmrestd was started without it, as it must be where there is no slurmdbd
        if answer.status != 200 or answer.complaints:
            raise UnavailableError(f"{self._link.where}: {answer.said}")
        return [accounted(record) for record in answer.items("jobs")]

    async def nodes(self) -> Sequence[SlurmNode]:
        # All of it, 2.5 kB a node. With `update_time` 24.11 answers "nothing has changed" with status 500 and
        # "Unspecified error", as it does when slurmctld is silent.
        return [node(record) for record in (await self._read("slurm/{}/nodes/")).items("nodes")]

    async def partitions(self) -> Sequence[Partition]:
        return [partition(record) for record in (await self._read("slurm/{}/partitions/")).items("partitions")]

    async def reservations(self) -> Sequence[Reservation]:
        answer = await self._read("slurm/{}/reservations/")
        return [reservation(record) for record in answer.items("reservations")]

    def notices(self) -> Sequence[str]:
        return ()

    async def configuration(self) -> Mapping[str, str]:
        """26.05 tells all of it, earlier releases only who they are and whether they keep accounts."""
        told = await self._link.ask("GET", _CONFIGURATION, deadline_s=self._config.deadline)
        about = configuration((await self._read("slurm/{}/ping/")).body)
        return {**about, **(configuration(told.body) if told.status == 200 and not told.complaints else {})}

    async def _read(self, path: str) -> Answer:
        return await self._link.read(path, deadline_s=self._config.deadline)

    # -------------------------------------------------------------------------------------------------------- orders

    async def submit(self, submission: SlurmSubmission) -> int:
        if len(submission.tasks) > LONGEST_ARRAY:
            message = f"an array of {len(submission.tasks)} tasks: slurmrestd tells of {LONGEST_ARRAY} at most"
            raise RejectedError(message, FaultKind.CONFIG)
        try:
            body = {"script": submission.script.decode(), "job": description(submission)}
        except Unsayable as error:
            raise RejectedError(printable(str(error)), FaultKind.CONFIG) from None
        except UnicodeDecodeError:
            raise RejectedError("the script is not UTF-8, and slurmrestd takes no other", FaultKind.CONFIG) from None
        answer = await self._link.ask("POST", "slurm/{}/job/submit", body=body, deadline_s=self._config.submit_deadline)
        if answer.status != 200 or answer.complaints:
            raise self._refused(answer)
        job_id = answer.body.get("job_id")
        if not isinstance(job_id, int) or job_id <= 0:
            raise OutcomeUnknownError(f"{self._link.where}: it takes a job and does not tell its number")
        self._roll.submitted(job_id)
        return job_id

    async def cancel(self, remote_ids: Sequence[str], *, kill: bool = False) -> None:
        ids = valid_job_ids(remote_ids)
        for some in range(0, len(ids), _ENDED_AT_ONCE):
            # Never without ids: an order that names no jobs is for all of them.
            jobs = {"jobs": ids[some : some + _ENDED_AT_ONCE]}
            if kill:
                # SIGKILL to a whole job is a plain scancel, with SIGTERM and KillWait before. The steps alone are
                # killed at once; the batch script is left to tidy up, and has KillWait for it.
                await self._end({**jobs, "signal": "KILL", "flags": ["FULL_STEPS_ONLY"]})
            await self._end(jobs)

    async def _end(self, body: Mapping[str, Any]) -> None:
        answer = await self._link.ask("DELETE", "slurm/{}/jobs/", body=body, deadline_s=self._config.deadline)
        if answer.status != 200 or answer.complaints:
            raise self._refused(answer)
        for each in answer.items("status"):
            error = each.get("error")
            code = error.get("code") if isinstance(error, dict) else 0
            if not code or code in _ALREADY_OVER:
                continue
            words = f"{each.get('step_id')}: {error.get('message') if isinstance(error, dict) else ''}"
            raise AuthError(printable(words)) if code in _NO_ACCESS else refusal_error(words)

    def _refused(self, answer: Answer) -> AdapterError:
        if not answer.body and answer.status >= 500:  # somebody between us: it may have got through
            return OutcomeUnknownError(f"{self._link.where}: {answer.said}")
        return refusal_error(answer.said)


def description(submission: SlurmSubmission) -> Mapping[str, Any]:
    """The job as slurmrestd wants it. Unsayable for an option of the admin's that it has no field for."""
    job: dict[str, Any] = {
        **fields(submission.options),
        "name": submission.name,
        "environment": list(_ENVIRONMENT),
        "current_working_directory": "/",
        "standard_output": submission.output,
        "requeue": False,
        "tasks": 1,
        "minimum_nodes": 1,
        "maximum_nodes": 1,
        "cpus_per_task": submission.cpus,
    }
    words = {
        "partition": submission.partition,
        "account": submission.account,
        "qos": submission.qos,
        "reservation": submission.reservation,
        "constraints": submission.constraint,
        # 24.11 would take `gpu:a100:1` too, 26.05 does not
        "tres_per_node": f"gres/{submission.gres}" if submission.gres else "",
        "array": format_ranges(submission.tasks),
    }
    job |= {name: word for name, word in words.items() if word}
    if submission.memory_mib:
        job["memory_per_node"] = {"set": True, "number": submission.memory_mib}
    if submission.tmp_mib:
        job["temporary_disk_per_node"] = submission.tmp_mib
    if submission.minutes:
        job["time_limit"] = {"set": True, "number": submission.minutes}
    if submission.notice_s:
        job["kill_warning_signal"] = "TERM"
        job["kill_warning_delay"] = {"set": True, "number": submission.notice_s}
        job["kill_warning_flags"] = ["BATCH_JOB"]
    return job


def _whoami(settings: SlurmRestConfig) -> str:
    """The account that our jobs belong to. At a unix socket, who we are at its other end, unless it is said."""
    return settings.user or (settings.ssh.user if settings.ssh else getpass.getuser())
