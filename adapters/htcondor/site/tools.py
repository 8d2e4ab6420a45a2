"""A cluster by way of HTCondor's command-line tools, run here or on a login node.

The tools' exit statuses can be believed (looked at in 23.9 and 25.14): a question that is answered ends with 0, an
empty answer too; one that is not, for whatever reason, ends with 1 and a reason on stderr.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Self

import classad2

from adapters.htcondor.site.cluster import Submission
from adapters.htcondor.site.owner_queue import JOB_PROJECTION, Queue, grouped
from adapters.htcondor.site.settings import HTCondorSiteConfig
from adapters.htcondor.site.tool_shelves import ToolShelves
from adapters.shared.commands.choice import runner_for
from adapters.shared.commands.local import LocalRunner
from adapters.shared.commands.runner import Finished, NoAnswer, Runner
from adapters.shared.htcondor.ads import Ad
from adapters.shared.htcondor.client_directory import ClientDirectory
from adapters.shared.printing import printable
from provisioner.interfaces import AdapterError, AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import DroneId, FaultKind

_COLLECT_S = 8.0
_TIDY_EVERY_S = 600.0
_REMOVED_AT_ONCE = 500
_HOSTS_OWN = ("CONDOR", "_CONDOR")
"""Variables that would have the tools obey the pool of the controller's own host."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9@._-]{0,254}")
_JOB_ID = re.compile(r"\d{1,10}\.\d{1,10}")
_ATTRIBUTE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_SUBMITTED = re.compile(rb"(\d{1,10})\.\d+ - \d+\.\d+\s*")
_NOTHING_TO_DO = re.compile(r"Job \d+\.\d+ (not found|already|not in `X' state|marked for removal)")
_DENIED = re.compile(r"authenticat|\"denied\"|not authorized|permission denied|no token", re.IGNORECASE)
_NOT_FOUND = re.compile(r"contact the condor_collector|can't find address|\(null\)|no record of schedd", re.IGNORECASE)
_NOT_BEGUN = re.compile(r"failed to connect to queue manager|can't find address", re.IGNORECASE)
_LIMIT = re.compile(r"max_?jobs|exceed|limit|quota|too many", re.IGNORECASE)


class ToolsCluster:
    """The schedd, as whoever the tools' configuration makes us."""

    def __init__(self, config: HTCondorSiteConfig, name: str) -> None:
        self._config, self._name = config, name
        self._directory: ClientDirectory | None = None
        self._runner: Runner | None = None
        self._schedd_name = config.schedd
        self._tidied_at = -_TIDY_EVERY_S

    async def __aenter__(self) -> Self:
        config, tools = self._config, self._config.tools
        if tools.ssh is None and not tools.condor_config and (config.token or config.token_directory):
            self._directory = ClientDirectory(
                f"site {self._name}", config.collector, config.token, config.token_directory, config.client_config
            )
            runner: Runner = LocalRunner(self._directory.env)
        else:
            runner = runner_for(tools.ssh, *_HOSTS_OWN)
        self._runner = await runner.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is not None:
            await self._runner.__aexit__(*exc)
        if self._directory is not None:
            self._directory.close()
        self._runner = self._directory = None

    # ---------------------------------------------------------------------------------------------------- questions

    async def jobs(self, constraint: str, projection: Sequence[str]) -> Sequence[Ad]:
        return await self._jobs(await self._schedd(), constraint, projection)

    async def owner_queue(self, schedd: str, constraint: str, names: Sequence[str]) -> Queue:
        ads = await self._jobs(schedd, constraint, (*JOB_PROJECTION, *names))
        return await asyncio.to_thread(grouped, ads, names)

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
        """What a question is answered with; each ad holds ``key``, or the answer is torn."""
        done = await self._run(argv, self._config.deadline)
        if done.code:
            raise await self._why(done)
        ads = await asyncio.to_thread(_parsed, done.out, key)
        if ads is None or (done.out.strip() and not ads):
            raise UnavailableError(f"`{_said_tool(argv)}` gives an answer that is no list of ads, or not all of it")
        return ads

    async def _schedd(self) -> str:
        """The name of our schedd, once it is known."""
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
        """A tool's failure as an error. That the collector refuses us only ``condor_status`` tells."""
        if _NOT_FOUND.search(_words(done)) and not _DENIED.search(_words(done)):
            try:
                await self._schedds()
            except AdapterError as error:
                return error
        return _error(done)

    # -------------------------------------------------------------------------------------------------------- orders

    async def submit(self, batch: Submission) -> int:
        schedd, shelves = await self._schedd(), self._shelves()
        try:
            inputs, outputs = await shelves.lay_out(batch)
        except ValueError as error:
            raise RejectedError(str(error), FaultKind.CONFIG) from None
        rows = "".join(" ".join(row) + "\n" for row in batch.rows)
        text = f"inputs = {inputs}\noutputs = {outputs}\n{batch.description}"
        text += f"queue {', '.join(batch.columns)} from (\n{rows})\n"
        argv = [*self._addressed("condor_submit", schedd), "-terse", *(["-spool"] if self._config.spool else []), "-"]
        try:
            done = await self._run(argv, self._config.submit_deadline, text.encode())
        except NoAnswer as error:
            raise OutcomeUnknownError(f"submit: {error}") from None
        if done.code:
            raise await self._not_submitted(done, batch)
        if (submitted := _SUBMITTED.fullmatch(done.out)) is None:
            raise OutcomeUnknownError(
                f"submit: condor_submit does not say what it submitted: {printable(repr(done.out), 100)}"
            )
        return int(submitted[1])

    async def _not_submitted(self, done: Finished, batch: Submission) -> AdapterError:
        """What a failed submit means: unless it never reached the schedd, ask whether its jobs are there."""
        error = await self._why(done)
        if isinstance(error, AuthError) or _NOT_BEGUN.search(_words(done)):
            return error
        attribute = "".join(part.capitalize() for part in batch.columns[0].split("_"))
        ids = classad2.quote(",".join(row[0] for row in batch.rows))
        try:
            there = await self.jobs(f'stringListMember({attribute}, {ids}, ",")', ["ClusterId"])
        except AdapterError:
            return OutcomeUnknownError(str(error))
        if there:
            return OutcomeUnknownError(str(error))
        return RejectedError(str(error), FaultKind.QUOTA if _LIMIT.search(str(error)) else FaultKind.CONFIG)

    async def remove(self, job_ids: Sequence[str], why: str, *, force: bool = False) -> None:
        if not job_ids:
            return
        if strange := [job for job in job_ids if not _JOB_ID.fullmatch(job)]:
            raise ValueError(f"`{printable(strange[0], 40)}` is no job id")
        how = ["-forcex"] if force else ["-reason", printable(why)]
        argv = [*self._addressed("condor_rm", await self._schedd()), *how]
        for start in range(0, len(job_ids), _REMOVED_AT_ONCE):
            try:
                done = await self._run([*argv, *job_ids[start : start + _REMOVED_AT_ONCE]], self._config.deadline)
            except NoAnswer as error:
                raise OutcomeUnknownError(f"remove: {error}") from None
            trouble = [line for line in _words(done).splitlines() if line and not _NOTHING_TO_DO.match(line)]
            if trouble:
                reason = await self._why(done)
                raise reason if isinstance(reason, AuthError) else OutcomeUnknownError(f"remove: {reason}")

    # ---------------------------------------------------------------------------------------------------------- files

    async def collect(self, job_ids: Mapping[DroneId, str]) -> Mapping[DroneId, str]:
        if not self._config.spool:
            return {}
        wanted = await self._shelves().without_output(job_ids)
        argv = self._addressed("condor_transfer_data", await self._schedd())

        async def fetch(job_id: str) -> str:
            try:
                done = await self._run([*argv, job_id], _COLLECT_S)
            except AdapterError as error:
                return str(error)
            return _error(done).args[0] if done.code else ""

        async with asyncio.TaskGroup() as group:
            tasks = {drone_id: group.create_task(fetch(job_ids[drone_id])) for drone_id in wanted}
        return {drone_id: reason for drone_id, task in tasks.items() if (reason := task.result())}

    async def tidy(self, inputs_in_use: Collection[str], drones: Collection[DroneId]) -> None:
        if time.monotonic() - self._tidied_at >= _TIDY_EVERY_S:  # each look asks for it, and each costs a command
            await self._shelves().tidy(inputs_in_use, drones)
            self._tidied_at = time.monotonic()

    # ---------------------------------------------------------------------------------------------------------- tools

    def _shelves(self) -> ToolShelves:
        config = self._config
        root = config.tools.directory if config.tools.ssh else str(config.work_directory.absolute())
        return ToolShelves(self._ready(), f"{root}/{self._name}", config.submit_deadline)

    def _tool(self, name: str) -> list[str]:
        tools = self._config.tools
        configured = ["env", f"CONDOR_CONFIG={tools.condor_config}"] if tools.condor_config else []
        return [*configured, f"{tools.path}/{name}" if tools.path else name, "-pool", self._config.collector]

    def _addressed(self, tool: str, schedd: str) -> list[str]:
        if not _NAME.fullmatch(schedd):
            raise RejectedError(f"`{printable(schedd, 60)}` is no name of a schedd", FaultKind.CONFIG)
        return [*self._tool(tool), "-name", schedd]

    def _ready(self) -> Runner:
        if self._runner is None:
            raise UnavailableError(f"site {self._name} is not connected")
        if self._directory is not None:
            self._directory.refresh()
        return self._runner

    async def _run(self, argv: Sequence[str], deadline_s: float, stdin: bytes = b"") -> Finished:
        return await self._ready().run(argv, stdin=stdin, deadline_s=deadline_s)


def _attributes(projection: Sequence[str], *always: str) -> list[str]:
    """The option that says which attributes are wanted; none for all of them, as an empty projection is."""
    names = dict.fromkeys((*always, *projection))
    assert all(_ATTRIBUTE.fullmatch(name) for name in names)
    return ["-attributes", ",".join(names)] if projection else []


def _parsed(text: bytes, key: str) -> list[Ad] | None:
    """The ads of ``-long``, which end with an empty line; None if the text is not of that form or one lacks ``key``."""
    if text and not text.endswith(b"\n\n"):
        return None
    try:
        ads = list(classad2.parseAds(text.decode(errors="replace")))
    except (ValueError, classad2.ClassAdException):
        return None
    return ads if all(key in ad for ad in ads) else None


def _words(done: Finished) -> str:
    """What a tool says went wrong, without its lecture on what a collector is."""
    return done.err.decode(errors="replace").partition("Extra Info:")[0].strip()


def _error(done: Finished) -> AdapterError:
    words = printable("; ".join(_lines(_words(done))), 400) or "no reason given"
    if _DENIED.search(words):
        return AuthError(words)
    return UnavailableError(words)


def _lines(words: str) -> Iterator[str]:
    yield from (line for raw in words.splitlines() if (line := raw.strip()))


def _said_tool(argv: Sequence[str]) -> str:
    return next((word.rpartition("/")[2] for word in argv if "condor_" in word and "=" not in word), argv[0])
