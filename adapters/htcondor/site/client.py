"""The client of an HTCondor site: one interface, by HTCondor's Python bindings or by its command-line tools.

The bindings block, and therefore work in processes of their own. The tools run here or on a login node. Their exit
statuses can be believed (looked at in 23.9 and 25.14): a question that is answered ends with 0, an empty answer too;
one that is not, for whatever reason, ends with 1 and a reason on stderr.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol, Self

import classad2

from adapters.htcondor.classads import Ad
from adapters.htcondor.client_directory import ClientDirectory
from adapters.htcondor.site.job_files import JobFiles
from adapters.htcondor.site.owner_queue import OWNER_JOB_PROJECTION, OwnerJobQueue, group_jobs
from adapters.htcondor.site.settings import HTCondorSiteConfig
from adapters.htcondor.site.submission import SubmitDescription, of_drones
from adapters.shared.commands.choice import runner_for
from adapters.shared.commands.local import LocalRunner, own_environment
from adapters.shared.commands.runner import Finished, NoReplyError, Runner
from adapters.shared.printing import printable
from provisioner.interfaces import AdapterError, AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import DroneId, FaultKind
from provisioner.worker_process import WorkerProcess

BINDINGS_WORKER = "adapters.htcondor.site.bindings_worker:BindingsWorker"
_COLLECT_TIMEOUT_S = 8.0
_REMOVED_AT_ONCE = 500
_CONDOR_VARIABLES = ("CONDOR", "_CONDOR")
"""Variables that would have the tools obey the pool of the controller's own host."""
_SCHEDD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9@._-]{0,254}")
_CONDOR_JOB_ID = re.compile(r"\d{1,10}\.\d{1,10}")
_ATTRIBUTE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_TERSE_SUBMIT = re.compile(rb"(\d{1,10})\.\d+ - \d+\.\d+\s*")
_NOTHING_TO_DO = re.compile(r"Job \d+\.\d+ (not found|already|not in `X' state|marked for removal)")
_TOOL_DENIED = re.compile(r"authenticat|\"denied\"|not authorized|permission denied|no token", re.IGNORECASE)
_DAEMON_NOT_FOUND = re.compile(
    r"contact the condor_collector|can't find address|\(null\)|no record of schedd", re.IGNORECASE
)
_SUBMIT_NOT_BEGUN = re.compile(r"failed to connect to queue manager|can't find address", re.IGNORECASE)
_JOB_LIMIT = re.compile(r"max_?jobs|exceed|limit|quota|too many", re.IGNORECASE)


class HTCondorClient(Protocol):
    """One schedd that drones are submitted to, and the pool that it belongs to.

    Its errors are UnavailableError if nothing answered, AuthError for credentials, RejectedError if HTCondor refused,
    and OutcomeUnknownError for an order that may have been carried out.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def jobs(self, constraint: str, projection: Sequence[str]) -> Sequence[Ad]:
        """Return jobs in our schedd's queue. An empty answer is one that HTCondor gave."""
        ...

    async def slots(self, constraint: str, projection: Sequence[str]) -> Sequence[Ad]:
        """Return startd ads of the site's collector; an empty projection is all attributes."""
        ...

    async def owner_queue(self, schedd: str, constraint: str, names: Sequence[str]) -> OwnerJobQueue:
        """Return the jobs in the queue of another schedd, with the attributes ``names`` beside the usual ones.

        They are grouped aside of the event loop. A silent schedd delays no other call.
        """
        ...

    async def submitters(self, projection: Sequence[str]) -> Sequence[Ad]:
        """Return submitter ads of the site's collector: how many jobs of each user wait and run."""
        ...

    async def submit(self, batch: SubmitDescription) -> int:
        """Submit all of a batch or nothing, and return the cluster id."""
        ...

    async def collect(self, job_ids: Mapping[DroneId, str]) -> Mapping[DroneId, str]:
        """Fetch what ended drones have left, where files are spooled, and return the reason for each failure."""
        ...

    async def clean_up(self, inputs_in_use: Collection[str], drones: Collection[DroneId]) -> None:
        """Remove the old files of submissions and drones that are neither in use nor listed."""
        ...

    async def remove(self, job_ids: Sequence[str], why: str, *, force: bool = False) -> None:
        """Remove jobs with notice and the site's grace, or at once with ``force``. Jobs that are gone are no error."""
        ...


def client_for(config: HTCondorSiteConfig, name: str) -> HTCondorClient:
    """Return the client of site ``name``, which is not entered yet."""
    return CondorToolsClient(config, name) if config.transport == "tools" else BindingsClient(config, name)


class _SiteClient:
    """Parts that both clients have: a directory for HTCondor's client, a runner of commands, and the jobs' files."""

    def __init__(self, config: HTCondorSiteConfig, name: str, root: str) -> None:
        self._config, self._name = config, name
        self._directory: ClientDirectory | None = None
        self._runner: Runner | None = None
        self._files = JobFiles(f"{root}/{name}", config.submit_deadline)

    def _make_directory(self) -> ClientDirectory:
        config = self._config
        whose = f"site {self._name}"
        self._directory = ClientDirectory(
            whose, config.collector, config.token, config.token_directory, config.client_config
        )
        return self._directory

    def _connected(self) -> Runner:
        """Return the runner, with the tokens in the client's directory as they are now."""
        if self._runner is None:
            raise UnavailableError(f"site {self._name} is not connected")
        if self._directory is not None:
            self._directory.refresh()
        return self._runner

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is not None:
            await self._runner.__aexit__(*exc)
        if self._directory is not None:
            self._directory.close()
        self._runner = self._directory = None

    async def clean_up(self, inputs_in_use: Collection[str], drones: Collection[DroneId]) -> None:
        await self._files.clean_up(self._connected(), inputs_in_use, drones)


# ----------------------------------------------------------------------------------------------------------- bindings


class BindingsClient(_SiteClient):
    """The schedd that the collector lists, over the network, as the owner of our token."""

    def __init__(self, config: HTCondorSiteConfig, name: str) -> None:
        super().__init__(config, name, str(config.work_directory.absolute()))
        self._workers: dict[str, WorkerProcess] = {}
        """By purpose; each is started when it is first needed."""

    async def __aenter__(self) -> Self:
        self._make_directory()
        self._runner = LocalRunner(own_environment())
        return self

    async def __aexit__(self, *exc: object) -> None:
        workers, self._workers = self._workers, {}
        async with asyncio.TaskGroup() as group:
            for worker in workers.values():
                group.create_task(worker.close())
        await super().__aexit__(*exc)

    async def jobs(self, constraint: str, projection: Sequence[str]) -> Sequence[Ad]:
        return await self._query("jobs", "", constraint, tuple(projection))

    async def slots(self, constraint: str, projection: Sequence[str]) -> Sequence[Ad]:
        return await self._query("slots", constraint, tuple(projection))

    async def owner_queue(self, schedd: str, constraint: str, names: Sequence[str]) -> OwnerJobQueue:
        worker = self._worker(f"owner {schedd}")
        queue = await worker.call("owner_queue", schedd, constraint, tuple(names), deadline_s=self._config.deadline)
        assert isinstance(queue, OwnerJobQueue)
        return queue

    async def submitters(self, projection: Sequence[str]) -> Sequence[Ad]:
        return await self._query("submitters", tuple(projection))

    async def _query(self, question: str, *args: object) -> Sequence[Ad]:
        answer = await self._worker("poll").call(question, *args, deadline_s=self._config.deadline)
        assert isinstance(answer, list)
        return answer

    def _worker(self, purpose: str) -> WorkerProcess:
        """Return the process for one purpose: neither a slow submit nor a silent schedd delays a poll."""
        self._connected()
        if purpose not in self._workers:
            config = self._config
            assert self._directory is not None
            env = self._directory.env
            self._workers[purpose] = WorkerProcess(BINDINGS_WORKER, config.collector, config.schedd, env=env)
        return self._workers[purpose]

    async def submit(self, batch: SubmitDescription) -> int:
        worker, config = self._worker("orders"), self._config
        text = await self._files.lay_out(self._connected(), batch) + batch.description
        try:
            cluster = await worker.call(
                "submit", text, batch.drone_ids, config.spool, deadline_s=config.submit_deadline
            )
        except UnavailableError as error:  # no answer, or it ended: it may have been carried out
            raise OutcomeUnknownError(f"submit: {error}") from None
        assert isinstance(cluster, int)
        return cluster

    async def remove(self, job_ids: Sequence[str], why: str, *, force: bool = False) -> None:
        if not job_ids:
            return
        worker = self._worker("orders")
        try:
            await worker.call("remove", tuple(job_ids), why, force, deadline_s=self._config.deadline)
        except UnavailableError as error:
            raise OutcomeUnknownError(str(error)) from None

    async def collect(self, job_ids: Mapping[DroneId, str]) -> Mapping[DroneId, str]:
        wanted = await self._files.without_output(self._connected(), job_ids) if self._config.spool else ()
        if not wanted:
            return {}
        ids = tuple(job_ids[drone_id] for drone_id in wanted)
        failed = await self._worker("files").call("collect", ids, deadline_s=_COLLECT_TIMEOUT_S)
        assert isinstance(failed, dict)
        return {drone_id: failed[job_ids[drone_id]] for drone_id in wanted if job_ids[drone_id] in failed}


# -------------------------------------------------------------------------------------------------------------- tools


class CondorToolsClient(_SiteClient):
    """The schedd, as the identity that the tools' configuration gives us."""

    def __init__(self, config: HTCondorSiteConfig, name: str) -> None:
        root = config.tools.directory if config.tools.ssh else str(config.work_directory.absolute())
        super().__init__(config, name, root)
        self._schedd_name = config.schedd

    async def __aenter__(self) -> Self:
        config, tools = self._config, self._config.tools
        if tools.ssh is None and not tools.condor_config and (config.token or config.token_directory):
            runner: Runner = LocalRunner(self._make_directory().env)
        else:
            runner = runner_for(tools.ssh, *_CONDOR_VARIABLES)
        self._runner = await runner.__aenter__()
        return self

    async def jobs(self, constraint: str, projection: Sequence[str]) -> Sequence[Ad]:
        return await self._jobs(await self._schedd(), constraint, projection)

    async def owner_queue(self, schedd: str, constraint: str, names: Sequence[str]) -> OwnerJobQueue:
        ads = await self._jobs(schedd, constraint, (*OWNER_JOB_PROJECTION, *names))
        return await asyncio.to_thread(group_jobs, ads, names)

    async def _jobs(self, schedd: str, constraint: str, projection: Sequence[str]) -> Sequence[Ad]:
        argv = [*self._addressed("condor_q", schedd), "-allusers", "-long"]
        argv += _attributes(projection, "ClusterId", "ProcId")
        return await self._ads([*argv, "-constraint", constraint], "ClusterId")

    async def slots(self, constraint: str, projection: Sequence[str]) -> Sequence[Ad]:
        argv = [*self._tool("condor_status"), "-long", *_attributes(projection, "Name")]
        return await self._ads([*argv, "-constraint", constraint], "Name")

    async def submitters(self, projection: Sequence[str]) -> Sequence[Ad]:
        argv = [*self._tool("condor_status"), "-submitters", "-long", *_attributes(projection, "Name")]
        return await self._ads(argv, "Name")

    async def _ads(self, argv: Sequence[str], key: str) -> Sequence[Ad]:
        """Return the ads that a tool prints; each holds ``key``, or the answer is cut off."""
        done = await self._run(argv, self._config.deadline)
        if done.code:
            raise await self._why(done)
        ads = await asyncio.to_thread(_parsed, done.out, key)
        if ads is None or (done.out.strip() and not ads):
            raise UnavailableError(f"`{_said_tool(argv)}` gives an answer that is no list of ads, or not all of it")
        return ads

    async def _schedd(self) -> str:
        """Return the name of our schedd, looked up once."""
        if not self._schedd_name:
            names = await self._schedds()
            if not names:
                raise UnavailableError(f"collector {self._config.collector} does not list any schedd")
            if len(names) > 1:
                some = ", ".join(printable(name, 80) for name in names[:5])
                message = f"collector {self._config.collector} lists several schedds: set `schedd` ({some})"
                raise RejectedError(message, FaultKind.CONFIG)
            self._schedd_name = names[0]
        return self._schedd_name

    async def _schedds(self) -> Sequence[str]:
        done = await self._run([*self._tool("condor_status"), "-schedd", "-af", "Name"], self._config.deadline)
        if done.code:
            raise _error(done)
        return sorted(done.out.decode(errors="replace").split())

    async def _why(self, done: Finished) -> AdapterError:
        """Return a tool's failure as an error. Only ``condor_status`` tells that the collector refuses us."""
        if _DAEMON_NOT_FOUND.search(_words(done)) and not _TOOL_DENIED.search(_words(done)):
            try:
                await self._schedds()
            except AdapterError as error:
                return error
        return _error(done)

    async def submit(self, batch: SubmitDescription) -> int:
        schedd = await self._schedd()
        macros = await self._files.lay_out(self._connected(), batch)
        rows = "".join(f"{drone_id}\n" for drone_id in batch.drone_ids)
        text = f"{macros}{batch.description}queue drone_id from (\n{rows})\n"
        argv = [*self._addressed("condor_submit", schedd), "-terse", *(["-spool"] if self._config.spool else []), "-"]
        try:
            done = await self._run(argv, self._config.submit_deadline, text.encode())
        except NoReplyError as error:
            raise OutcomeUnknownError(f"submit: {error}") from None
        if done.code:
            raise await self._not_submitted(done, batch)
        if (submitted := _TERSE_SUBMIT.fullmatch(done.out)) is None:
            raise OutcomeUnknownError(
                f"submit: condor_submit does not say what it submitted: {printable(repr(done.out), 100)}"
            )
        return int(submitted[1])

    async def _not_submitted(self, done: Finished, batch: SubmitDescription) -> AdapterError:
        """Return the error of a failed submit. Unless it never reached the schedd, ask whether its jobs are there."""
        error = await self._why(done)
        if isinstance(error, AuthError) or _SUBMIT_NOT_BEGUN.search(_words(done)):
            return error
        try:
            there = await self.jobs(of_drones(batch.drone_ids), ["ClusterId"])
        except AdapterError:
            return OutcomeUnknownError(str(error))
        if there:
            return OutcomeUnknownError(str(error))
        return RejectedError(str(error), FaultKind.QUOTA if _JOB_LIMIT.search(str(error)) else FaultKind.CONFIG)

    async def remove(self, job_ids: Sequence[str], why: str, *, force: bool = False) -> None:
        if not job_ids:
            return
        if strange := [job for job in job_ids if not _CONDOR_JOB_ID.fullmatch(job)]:
            raise ValueError(f"`{printable(strange[0], 40)}` is no job id")
        how = ["-forcex"] if force else ["-reason", printable(why)]
        argv = [*self._addressed("condor_rm", await self._schedd()), *how]
        for start in range(0, len(job_ids), _REMOVED_AT_ONCE):
            try:
                done = await self._run([*argv, *job_ids[start : start + _REMOVED_AT_ONCE]], self._config.deadline)
            except NoReplyError as error:
                raise OutcomeUnknownError(f"remove: {error}") from None
            trouble = [line for line in _words(done).splitlines() if line and not _NOTHING_TO_DO.match(line)]
            if trouble:
                reason = await self._why(done)
                raise reason if isinstance(reason, AuthError) else OutcomeUnknownError(f"remove: {reason}")

    async def collect(self, job_ids: Mapping[DroneId, str]) -> Mapping[DroneId, str]:
        if not self._config.spool:
            return {}
        wanted = await self._files.without_output(self._connected(), job_ids)
        argv = self._addressed("condor_transfer_data", await self._schedd())

        async def fetch(job_id: str) -> str:
            try:
                done = await self._run([*argv, job_id], _COLLECT_TIMEOUT_S)
            except AdapterError as error:
                return str(error)
            return _error(done).args[0] if done.code else ""

        async with asyncio.TaskGroup() as group:
            tasks = {drone_id: group.create_task(fetch(job_ids[drone_id])) for drone_id in wanted}
        return {drone_id: reason for drone_id, task in tasks.items() if (reason := task.result())}

    def _tool(self, name: str) -> list[str]:
        tools = self._config.tools
        configured = ["env", f"CONDOR_CONFIG={tools.condor_config}"] if tools.condor_config else []
        return [*configured, f"{tools.path}/{name}" if tools.path else name, "-pool", self._config.collector]

    def _addressed(self, tool: str, schedd: str) -> list[str]:
        if not _SCHEDD_NAME.fullmatch(schedd):
            raise RejectedError(f"`{printable(schedd, 60)}` is no name of a schedd", FaultKind.CONFIG)
        return [*self._tool(tool), "-name", schedd]

    async def _run(self, argv: Sequence[str], deadline_s: float, stdin: bytes = b"") -> Finished:
        return await self._connected().run(argv, stdin=stdin, deadline_s=deadline_s)


def _attributes(projection: Sequence[str], *always: str) -> list[str]:
    """Return the option that selects attributes; none for all of them, as an empty projection is."""
    names = dict.fromkeys((*always, *projection))
    assert all(_ATTRIBUTE_NAME.fullmatch(name) for name in names)
    return ["-attributes", ",".join(names)] if projection else []


def _parsed(text: bytes, key: str) -> list[Ad] | None:
    """Return the ads of ``-long``, which end with an empty line; None if the text is cut off or an ad lacks ``key``."""
    if text and not text.endswith(b"\n\n"):
        return None
    try:
        ads = list(classad2.parseAds(text.decode(errors="replace")))
    except (ValueError, classad2.ClassAdException):
        return None
    return ads if all(key in ad for ad in ads) else None


def _words(done: Finished) -> str:
    """Return a tool's error message without its lecture on what a collector is."""
    return done.err.decode(errors="replace").partition("Extra Info:")[0].strip()


def _error(done: Finished) -> AdapterError:
    words = printable("; ".join(_lines(_words(done))), 400) or "no reason given"
    if _TOOL_DENIED.search(words):
        return AuthError(words)
    return UnavailableError(words)


def _lines(words: str) -> Iterator[str]:
    yield from (line for raw in words.splitlines() if (line := raw.strip()))


def _said_tool(argv: Sequence[str]) -> str:
    return next((word.rpartition("/")[2] for word in argv if "condor_" in word and "=" not in word), argv[0])
