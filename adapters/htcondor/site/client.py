"""The client of an HTCondor site: one interface, by HTCondor's Python bindings or by its command-line tools.

The bindings block, and therefore work in processes of their own. The tools run here or on a login
node. Their exit statuses can be believed (looked at in 23.9 and 25.14): a question that is answered
ends with 0, an empty answer too; one that is not, for whatever reason, ends with 1 and a reason on
stderr.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, Self, TypeAlias

from adapters.htcondor import classad2, htcondor2
from adapters.htcondor.classads import REMOVED, Ad
from adapters.htcondor.daemons import SESSION_REJECTED, Collectors, with_new_session
from adapters.htcondor.site.owner import OWNER_JOB_PROJECTION, OwnerJobQueue, group_jobs
from adapters.htcondor.site.settings import HTCondorSiteConfig
from adapters.htcondor.site.submission import JobFiles, SubmitDescription, of_drones
from adapters.htcondor.tokens import ClientDirectory
from adapters.shared.commands.local import LocalRunner, own_environment, runner_for
from adapters.shared.commands.runner import Finished, NoReplyError, Runner
from adapters.shared.housekeeping import close_all
from adapters.shared.printing import printable
from provisioner.interfaces import (
    AdapterError,
    AuthError,
    OutcomeUnknownError,
    RejectedError,
    UnavailableError,
)
from provisioner.model import DroneId, FaultKind
from provisioner.worker_process import WorkerProcess

BINDINGS_WORKER = "adapters.htcondor.site.client:BindingsWorker"
_COLLECT_TIMEOUT_S = 8.0
# of our schedd, and of the site's collector
AdKind: TypeAlias = Literal["jobs", "slots", "submitters"]


class HTCondorClient(ABC):
    """One schedd that drones are submitted to, and the pool that it belongs to.

    Its errors are UnavailableError if nothing answered, AuthError for credentials, RejectedError if
    HTCondor refused, and OutcomeUnknownError for an order that may have been carried out.
    """

    def __init__(self, config: HTCondorSiteConfig, name: str, root: str = "") -> None:
        self._config = config
        self._name = name
        self._directory: ClientDirectory | None = None
        self._runner: Runner | None = None
        self._files = JobFiles(
            f"{root or config.work_directory.absolute()}/{name}", config.submit_deadline
        )

    def _make_directory(self) -> ClientDirectory:
        self._directory = ClientDirectory(f"site {self._name}", self._config)
        return self._directory

    def _connected(self) -> Runner:
        """Return the runner, with the tokens in the client's directory as they are now."""
        if self._runner is None:
            raise UnavailableError(f"site {self._name} is not connected")
        if self._directory is not None:
            self._directory.refresh()
        return self._runner

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is not None:
            await self._runner.__aexit__(*exc)
        if self._directory is not None:
            self._directory.close()
        self._runner = self._directory = None

    @abstractmethod
    async def ads(
        self, kind: AdKind, constraint: str, projection: Sequence[str], schedd: str = ""
    ) -> Sequence[Ad]:
        """Return what HTCondor lists, which may be nothing; an empty projection is all attributes.

        ``schedd`` names the schedd that has the jobs; "" is ours.
        """

    @abstractmethod
    async def owner_queue(
        self, schedd: str, constraint: str, names: Sequence[str]
    ) -> OwnerJobQueue:
        """Return another schedd's jobs in groups, with attributes ``names``; it delays no other call."""

    async def submit(self, batch: SubmitDescription) -> int:
        """Submit all of a batch or nothing, and return the cluster id."""
        macros = await self._files.lay_out(self._connected(), batch)
        try:
            return await self._submit(macros + batch.description, batch.drone_ids)
        except RejectedError as error:  # certain only if a question confirms that no job is there
            try:
                there = await self.ads(
                    "jobs", f"{of_drones(batch.drone_ids)} && JobStatus != {REMOVED}", ["ClusterId"]
                )
            except RejectedError:  # there is no schedd that could have taken them
                raise error from None
            except AdapterError:
                there = [classad2.ClassAd()]
            if there:
                raise OutcomeUnknownError(str(error)) from None
            raise

    @abstractmethod
    async def _submit(self, description: str, drone_ids: Sequence[DroneId]) -> int: ...

    async def collect(self, job_ids: Mapping[DroneId, str]) -> Mapping[DroneId, str]:
        """Fetch what ended drones have left, where files are spooled, and return the reason for each failure."""
        wanted = (
            await self._files.without_output(self._connected(), job_ids)
            if self._config.spool
            else ()
        )
        failed = await self._collect([job_ids[drone_id] for drone_id in wanted]) if wanted else {}
        return {drone_id: why for drone_id in wanted if (why := failed.get(job_ids[drone_id]))}

    @abstractmethod
    async def _collect(self, job_ids: Sequence[str]) -> Mapping[str, str]: ...

    @abstractmethod
    async def remove(self, job_ids: Sequence[str], why: str, *, force: bool = False) -> None:
        """Remove jobs with the site's grace, or at once with ``force``; those that are gone are no error."""

    async def clean_up(self, inputs_in_use: Collection[str], drones: Collection[DroneId]) -> None:
        await self._files.clean_up(self._connected(), inputs_in_use, drones)


def client_for(config: HTCondorSiteConfig, name: str) -> HTCondorClient:
    """Return the client of site ``name``, which is not entered yet."""
    return (
        CondorToolsClient(config, name)
        if config.transport == "tools"
        else BindingsClient(config, name)
    )


def only_schedd(collector: str, names: Sequence[str]) -> str:
    """Return the only schedd that a collector lists. UnavailableError if there is none, RejectedError for several."""
    if not names:
        raise UnavailableError(f"collector {collector} does not list any schedd")
    if len(names) > 1:
        some = ", ".join(printable(name, 80) for name in sorted(names)[:5])
        raise RejectedError(
            f"collector {collector} lists several schedds: set `schedd` ({some})", FaultKind.CONFIG
        )
    return names[0]


# -----------------------------------------------------------------------------------------------------------
# bindings


class BindingsClient(HTCondorClient):
    """The schedd that the collector lists, over the network, as the owner of our token."""

    def __init__(self, config: HTCondorSiteConfig, name: str) -> None:
        super().__init__(config, name)
        self._workers: dict[str, WorkerProcess] = {}
        """By purpose: neither a slow submit nor a silent schedd delays a poll."""

    async def __aenter__(self) -> Self:
        self._make_directory()
        self._runner = LocalRunner(own_environment())
        return self

    async def __aexit__(self, *exc: object) -> None:
        await close_all(self._workers)
        await super().__aexit__(*exc)

    async def _call(self, purpose: str, name: str, *args: object, deadline_s: float = 0.0) -> Any:
        self._connected()
        if purpose not in self._workers:
            assert self._directory is not None
            config = self._config
            env = self._directory.env
            self._workers[purpose] = WorkerProcess(
                BINDINGS_WORKER, config.collector, config.schedd, env=env
            )
        return await self._workers[purpose].call(
            name, *args, deadline_s=deadline_s or self._config.deadline
        )

    async def _order(self, name: str, *args: object, deadline_s: float = 0.0) -> Any:
        try:
            return await self._call("orders", name, *args, deadline_s=deadline_s)
        except UnavailableError as error:  # no answer, or it ended: it may have been carried out
            raise OutcomeUnknownError(f"{name}: {error}") from None

    async def ads(
        self, kind: AdKind, constraint: str, projection: Sequence[str], schedd: str = ""
    ) -> Sequence[Ad]:
        purpose = f"owner {schedd}" if schedd else "poll"
        return list(await self._call(purpose, "ads", kind, constraint, tuple(projection), schedd))

    async def owner_queue(
        self, schedd: str, constraint: str, names: Sequence[str]
    ) -> OwnerJobQueue:
        queue: OwnerJobQueue = await self._call(
            f"owner {schedd}", "owner_queue", schedd, constraint, tuple(names)
        )
        return queue

    async def _submit(self, description: str, drone_ids: Sequence[DroneId]) -> int:
        config = self._config
        return int(
            await self._order(
                "submit", description, drone_ids, config.spool, deadline_s=config.submit_deadline
            )
        )

    async def remove(self, job_ids: Sequence[str], why: str, *, force: bool = False) -> None:
        if job_ids:
            await self._order("remove", list(job_ids), why, force)

    async def _collect(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        return dict(await self._call("files", "collect", job_ids, deadline_s=_COLLECT_TIMEOUT_S))


_REFUSAL = re.compile(r"errmsg=|SCHEDD:\d+:|Submit:-?\d+:|Schedd says -\d+")
_REFUSAL_KINDS = (
    (re.compile("Failed to connect"), FaultKind.DOWN),
    # EACCES: this identity cannot own jobs; disabled; a proxy that has expired or cannot be read
    (re.compile(r"SCHEDD:13:|Schedd says -[56]\b|\bproxy\b"), FaultKind.DENIED),
    (re.compile(r"Schedd says -[234]\b|MAX_JOBS|exceed|quota", re.IGNORECASE), FaultKind.QUOTA),
)
"""Kinds by words of a refusal, first match; else the order itself is wrong. -2 to -4:
MAX_JOBS_SUBMITTED, _PER_OWNER and _PER_SUBMISSION."""


class BindingsWorker:
    """Server of the calls of :class:`BindingsClient`, in a worker process: one schedd and its collector."""

    def __init__(self, collector: str, schedd: str) -> None:
        self._address = collector
        self._name = schedd
        self._collector = Collectors(collector)
        self._errors = self._collector.errors
        self._schedds: dict[str, Any] = {}

    def ads(
        self, kind: AdKind, constraint: str, projection: Sequence[str], schedd: str = ""
    ) -> list[Ad]:
        """Return ads of the collector, or jobs of a schedd; ``schedd`` "" is ours."""
        if kind == "jobs":
            return list(
                self._asked(schedd, lambda it: it.query(constraint, projection=list(projection)))
            )
        types = {"slots": htcondor2.AdType.Startd, "submitters": htcondor2.AdType.Submitter}
        return self._collector.query(types[kind], constraint, projection)

    def owner_queue(self, schedd: str, constraint: str, names: Sequence[str]) -> OwnerJobQueue:
        return group_jobs(
            self.ads("jobs", constraint, (*OWNER_JOB_PROJECTION, *names), schedd), names
        )

    def _asked(self, name: str, question: Any, *, again: bool = True) -> Any:
        """Ask a schedd something that may be repeated.

        A restarted one may have another address, and rejects our session: it is looked up and asked
        once more.
        """
        known = name in self._schedds
        try:
            with self._errors.translated(f"schedd {name or self._name or 'of the site'}"):
                return question(self._schedd(name))
        except UnavailableError as error:
            self._schedds.pop(name, None)
            if not again or not (known or SESSION_REJECTED in str(error)):
                raise
        return self._asked(name, question, again=False)

    def _schedd(self, name: str) -> Any:
        if name in self._schedds:
            return self._schedds[name]
        ads = self._collector.schedds()
        wanted = name or self._name
        wanted = wanted or only_schedd(self._address, list(ads))
        named = [ads[wanted]] if wanted in ads else []
        if not named:  # one that flocks here may advertise its users only
            named = self._collector.query(
                htcondor2.AdType.Submitter, f"ScheddName == {classad2.quote(wanted)}"
            )
        if not named:
            raise UnavailableError(f"collector {self._address} does not list schedd {wanted}")
        self._schedds[name] = htcondor2.Schedd(named[0])
        return self._schedds[name]

    def submit(self, description: str, drone_ids: Sequence[str], spool: bool) -> int:
        """Submit all drones or none, and return the cluster id. RejectedError if the schedd seems to have refused."""
        schedd = self._schedd("")

        def order() -> Any:
            items = ({"drone_id": drone_id} for drone_id in drone_ids)
            return schedd.submit(htcondor2.Submit(description), spool=spool, itemdata=items)

        try:
            with self._errors.translated("submit"):
                result = with_new_session(order)
        except (ValueError, TypeError) as error:
            raise RejectedError(f"submit: {printable(str(error), 300)}", FaultKind.CONFIG) from None
        except UnavailableError as error:
            if not _REFUSAL.search(str(error)):
                raise OutcomeUnknownError(str(error)) from None
            kinds = (kind for sign, kind in _REFUSAL_KINDS if sign.search(str(error)))
            raise RejectedError(str(error), next(kinds, FaultKind.CONFIG)) from None
        cluster = int(result.cluster())
        try:
            with self._errors.translated("spooling"):
                if spool:
                    schedd.spool(result)
        except AdapterError as error:
            # Without their files they would never run. If they cannot be removed now, their own
            # policy does it.
            try:
                self.remove(f"ClusterId == {cluster}", "its files could not be sent", False)
            except AdapterError:
                raise OutcomeUnknownError(str(error)) from None
            raise RejectedError(f"files could not be sent: {error}", FaultKind.DOWN) from None
        return cluster

    def remove(self, which: list[str] | str, why: str, force: bool) -> None:
        action = htcondor2.JobAction.RemoveX if force else htcondor2.JobAction.Remove
        answer = self._asked("", lambda schedd: schedd.act(action, which, reason=(why, 0))) or {}
        if denied := answer.get("TotalPermissionDenied"):
            raise AuthError(f"the schedd refused to remove {denied} drone jobs")
        if failed := answer.get("TotalError"):
            raise OutcomeUnknownError(f"the schedd could not remove {failed} drone jobs")

    def collect(self, job_ids: Sequence[str]) -> dict[str, str]:
        """Fetch what spooled jobs have left, one by one: of those asked for together one failure ends all."""
        failed = {}
        for job_id in job_ids:
            try:
                self._asked("", lambda schedd, job_id=job_id: schedd.retrieve([job_id]))
            except AdapterError as error:
                failed[job_id] = str(error)
        return failed


# --------------------------------------------------------------------------------------------------------------
# tools

_REMOVED_AT_ONCE = 500
_CONDOR_VARIABLES = ("CONDOR", "_CONDOR")
"""Variables that would have the tools obey the pool of the controller's own host."""
_SCHEDD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9@._-]{0,254}")
_CONDOR_JOB_ID = re.compile(r"\d{1,10}\.\d{1,10}")
_TERSE_SUBMIT = re.compile(rb"(\d{1,10})\.\d+ - \d+\.\d+\s*")
_NOTHING_TO_DO = re.compile(r"Job \d+\.\d+ (not found|already|not in `X' state|marked for removal)")
_TOOL_DENIED = re.compile(
    r"authenticat|\"denied\"|not authorized|permission denied|no token", re.IGNORECASE
)
_DAEMON_NOT_FOUND = re.compile(
    r"contact the condor_collector|can't find address|\(null\)|no record of schedd", re.IGNORECASE
)
_SUBMIT_NOT_BEGUN = re.compile(
    r"failed to connect to queue manager|can't find address", re.IGNORECASE
)
_TOOL_REFUSAL_KINDS = (
    (re.compile(r"\bproxy\b"), FaultKind.DENIED),
    (re.compile(r"max_?jobs|exceed|limit|quota|too many", re.IGNORECASE), FaultKind.QUOTA),
)


class CondorToolsClient(HTCondorClient):
    """The schedd, as the identity that the tools' configuration gives us."""

    def __init__(self, config: HTCondorSiteConfig, name: str) -> None:
        super().__init__(config, name, config.tools.directory if config.tools.ssh else "")
        self._schedd_name = config.schedd

    async def __aenter__(self) -> Self:
        config = self._config
        tools = self._config.tools
        if (
            tools.ssh is None
            and not tools.condor_config
            and (config.token or config.token_directory)
        ):
            runner: Runner = LocalRunner(self._make_directory().env)
        else:
            runner = runner_for(tools.ssh, *_CONDOR_VARIABLES)
        self._runner = await runner.__aenter__()
        return self

    async def ads(
        self, kind: AdKind, constraint: str, projection: Sequence[str], schedd: str = ""
    ) -> Sequence[Ad]:
        always: tuple[str, ...] = ("ClusterId", "ProcId") if kind == "jobs" else ("Name",)
        tool = "condor_q" if kind == "jobs" else "condor_status"
        if kind == "jobs":
            argv = [*self._addressed(tool, schedd or await self._schedd()), "-allusers"]
        else:
            argv = [*self._tool(tool), *(["-submitters"] if kind == "submitters" else [])]
        attributes = (
            ["-attributes", ",".join(dict.fromkeys((*always, *projection)))] if projection else []
        )
        return await self._listed(
            tool, [*argv, "-long", *attributes, "-constraint", constraint], always[0]
        )

    async def _listed(
        self, tool: str, argv: Sequence[str], key: str, deadline_s: float = 0.0
    ) -> Sequence[Ad]:
        done = await self._run(argv, deadline_s)
        if done.code:
            raise await self._why(done)
        ads = await asyncio.to_thread(_parsed, done.out, key)
        if ads is None or (done.out.strip() and not ads):
            raise UnavailableError(
                f"`{tool}` gives an answer that is no list of ads, or not all of it"
            )
        return ads

    async def owner_queue(
        self, schedd: str, constraint: str, names: Sequence[str]
    ) -> OwnerJobQueue:
        ads = await self.ads("jobs", constraint, (*OWNER_JOB_PROJECTION, *names), schedd)
        return await asyncio.to_thread(group_jobs, ads, names)

    async def _schedd(self) -> str:
        if not self._schedd_name:
            self._schedd_name = only_schedd(self._config.collector, await self._schedds())
        return self._schedd_name

    async def _schedds(self) -> Sequence[str]:
        done = await self._run([*self._tool("condor_status"), "-schedd", "-af", "Name"])
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

    async def _submit(self, description: str, drone_ids: Sequence[DroneId]) -> int:
        text = "\n".join([f"{description}queue drone_id from (", *drone_ids, ")\n"])
        argv = self._addressed("condor_submit", await self._schedd())
        argv += ["-terse", *(["-spool"] if self._config.spool else []), "-"]
        try:
            done = await self._run(argv, self._config.submit_deadline, text.encode())
        except NoReplyError as error:
            raise OutcomeUnknownError(f"submit: {error}") from None
        if done.code:
            why = await self._why(done)
            if isinstance(why, AuthError) or _SUBMIT_NOT_BEGUN.search(_words(done)):
                raise why
            kinds = (kind for sign, kind in _TOOL_REFUSAL_KINDS if sign.search(str(why)))
            raise RejectedError(str(why), next(kinds, FaultKind.CONFIG))
        if (submitted := _TERSE_SUBMIT.fullmatch(done.out)) is None:
            words = printable(repr(done.out), 100)
            raise OutcomeUnknownError(
                f"submit: condor_submit does not say what it submitted: {words}"
            )
        return int(submitted[1])

    async def remove(self, job_ids: Sequence[str], why: str, *, force: bool = False) -> None:
        if strange := [job for job in job_ids if not _CONDOR_JOB_ID.fullmatch(job)]:
            raise ValueError(f"`{printable(strange[0], 40)}` is no job id")
        how = ["-forcex"] if force else ["-reason", printable(why)]
        for start in range(0, len(job_ids), _REMOVED_AT_ONCE):
            argv = [*self._addressed("condor_rm", await self._schedd()), *how]
            try:
                done = await self._run([*argv, *job_ids[start : start + _REMOVED_AT_ONCE]])
            except NoReplyError as error:
                raise OutcomeUnknownError(f"remove: {error}") from None
            if any(line and not _NOTHING_TO_DO.match(line) for line in _words(done).splitlines()):
                reason = await self._why(done)
                raise (
                    reason
                    if isinstance(reason, AuthError)
                    else OutcomeUnknownError(f"remove: {reason}")
                )

    async def _collect(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        argv = self._addressed("condor_transfer_data", await self._schedd())

        async def fetch(job_id: str) -> str:
            try:
                done = await self._run([*argv, job_id], _COLLECT_TIMEOUT_S)
            except AdapterError as error:
                return str(error)
            return str(_error(done)) if done.code else ""

        return dict(zip(job_ids, await asyncio.gather(*map(fetch, job_ids)), strict=True))

    def _tool(self, name: str) -> list[str]:
        tools = self._config.tools
        configured = ["env", f"CONDOR_CONFIG={tools.condor_config}"] if tools.condor_config else []
        return [
            *configured,
            f"{tools.path}/{name}" if tools.path else name,
            "-pool",
            self._config.collector,
        ]

    def _addressed(self, tool: str, schedd: str) -> list[str]:
        if not _SCHEDD_NAME.fullmatch(schedd):
            raise RejectedError(
                f"`{printable(schedd, 60)}` is no name of a schedd", FaultKind.CONFIG
            )
        return [*self._tool(tool), "-name", schedd]

    async def _run(
        self, argv: Sequence[str], deadline_s: float = 0.0, stdin: bytes = b""
    ) -> Finished:
        return await self._connected().run(
            argv, stdin=stdin, deadline_s=deadline_s or self._config.deadline
        )


def _parsed(text: bytes, key: str) -> list[Ad] | None:
    """Return the ads of ``-long``, which end with an empty line; None if the text is cut off or an ad lacks ``key``."""
    try:
        ads = list(classad2.parseAds(text.decode(errors="replace")))
    except (ValueError, classad2.ClassAdException):
        return None
    return ads if (not text or text.endswith(b"\n\n")) and all(key in ad for ad in ads) else None


def _words(done: Finished) -> str:
    """Return a tool's error message without its lecture on what a collector is."""
    return done.err.decode(errors="replace").partition("Extra Info:")[0].strip()


def _error(done: Finished) -> AdapterError:
    lines = (line.strip() for line in _words(done).splitlines())
    words = printable("; ".join(line for line in lines if line), 400) or "no reason given"
    return AuthError(words) if _TOOL_DENIED.search(words) else UnavailableError(words)
