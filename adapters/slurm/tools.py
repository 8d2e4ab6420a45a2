"""Transport by Slurm's command-line tools, run on this host or on a login node.

Observed with the tools of 22.05, 24.11 and 26.05: an answered question ends with status 0 and begins with the names of
its columns; a failed one ends with another status and a line ``TOOL: error: REASON``. One exception is ``squeue -u
NOBODY``, which prints ``error: Invalid user`` and ends with 0. Any other such line beside status 0 and a complete
answer is a remark (a leftover of an older version in slurm.conf) and becomes a notice. Questions contain only words
that no shell interprets, so that they pass a login node's forced command whether it quotes or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile
from types import MappingProxyType
from typing import Self, TypeVar

from adapters.shared.commands.choice import runner_for
from adapters.shared.commands.runner import Finished, NoReplyError, Runner
from adapters.shared.printing import printable
from adapters.slurm.records import (
    NODE_STATES,
    Partition,
    Reservation,
    SlurmJob,
    SlurmNode,
    SlurmSubmission,
    expand_hostlist,
    fold_job_ids,
    format_ranges,
    gpus_per_node,
    parse_count,
    parse_duration,
    parse_gpus,
    parse_memory_mib,
    parse_tasks,
    parse_time,
    parse_tres,
    parse_word,
    parse_words,
    valid_job_ids,
)
from adapters.slurm.settings import SlurmSiteConfig
from adapters.slurm.states import UNFINISHED_STATES, classify_refusal, refusal_error
from provisioner.interfaces import AdapterError, AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import FaultKind

T = TypeVar("T")

_UNSET_VARIABLES = ("SQUEUE_", "SINFO_", "SACCT_", "SBATCH_", "SCANCEL_", "SLURM_CLUSTERS", "SLURM_JOB", "SLURM_STEP")
"""Variables of this host that would change what the tools do."""
_SQUEUE_FILTERS = (
    "SQUEUE_ACCOUNT",
    "SQUEUE_LICENSES",
    "SQUEUE_NAMES",
    "SQUEUE_PARTITION",
    "SQUEUE_QOS",
    "SQUEUE_USERS",
)
_SINFO_FILTERS = ("SINFO_PARTITION",)
"""Variables with which the tools leave out jobs or nodes."""
_EXACT_TIMES = ("SLURM_TIME_FORMAT=%s", "SLURM_BITSTR_LEN=0")
_RESTRICTED_CORES_TTL_S = 600.0
_JOBS_PER_CALL = 500
_PARTITION = re.compile(r"[A-Za-z0-9_.@+:-]{1,127}")
_SBATCH_OUTPUT = re.compile(rb"^(\d{1,10})(?:;[\w.-]{1,255})?[ \t\r]*$", re.MULTILINE)
_ERROR_LINE = re.compile(
    r"^\S{0,200}?(?:sbatch|squeue|sinfo|sacct|scontrol|scancel): (?:error|fatal): .*$", re.MULTILINE
)
_INVALID = re.compile(r": error: .*\binvalid\b", re.IGNORECASE)
"""An error about the arguments: whatever the exit status, the answer is not the one that was requested."""
_REMARK_TTL_S = 900.0
_MAX_REMARKS = 5
_NOTHING_TO_CANCEL = re.compile(r"invalid job id specified|already completing or completed", re.IGNORECASE)
_NO_ACCOUNTING = re.compile(r"accounting storage is disabled", re.IGNORECASE)


class SlurmToolsClient:
    """The cluster as the account that runs the tools."""

    def __init__(self, config: SlurmSiteConfig, name: str) -> None:
        self._config, self._name = config, name
        self._runner: Runner | None = None
        self._accounting = config.accounting is not False
        self._restricted_cores: Mapping[str, int] = {}
        self._restricted_cores_at = -_RESTRICTED_CORES_TTL_S
        self._remarks: dict[str, float] = {}
        """Errors beside complete answers, without the tool's name, and when each was last printed."""

    async def __aenter__(self) -> Self:
        self._runner = await runner_for(self._config.tools.ssh, *_UNSET_VARIABLES).__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is not None:
            await self._runner.__aexit__(*exc)
            self._runner = None

    # ---------------------------------------------------------------------------------------------------- questions

    async def own_jobs(self) -> Sequence[SlurmJob]:
        separator = _separator()
        argv = ["--me", "-a", "-r", "-t", "all", "-O", output_format(OWN_JOB_COLUMNS, separator)]
        return await self._query("squeue", argv, lambda text: parse_own_jobs(text, separator), _SQUEUE_FILTERS)

    async def active_jobs(self, partitions: Collection[str]) -> Sequence[SlurmJob]:
        if not partitions:
            return []
        separator, names = _separator(), sorted(partitions)
        if invalid := [name for name in names if not _PARTITION.fullmatch(name)]:
            raise RejectedError(f"`{printable(invalid[0], 60)}` is not a partition name", FaultKind.CONFIG)
        argv = ["-a", "-r", "-t", "PENDING,RUNNING", "-p", ",".join(names)]
        argv += ["-O", output_format(ACTIVE_JOB_COLUMNS, separator)]
        return await self._query("squeue", argv, lambda text: parse_active_jobs(text, separator), _SQUEUE_FILTERS)

    async def ended_jobs(self, remote_ids: Collection[str], since: float) -> Sequence[SlurmJob] | None:
        """Return jobs of the account that runs the tools; root sees those of everybody."""
        separator, ids = _separator(), valid_job_ids(remote_ids)
        argv = ["-X", "-p", f"--delimiter={separator}", "-o", ",".join(SACCT_COLUMNS)]
        questions = [[*argv, "-j", ",".join(some)] for some in _chunks(ids)]
        found: list[SlurmJob] = []
        for question in questions or [[*argv, "-S", f"uts{max(0, int(since))}"]]:
            if not self._accounting:
                return None
            try:
                found += await self._query("sacct", question, lambda text: parse_ended_jobs(text, separator))
            except _NoAccountingError:
                self._accounting = False
        return found if self._accounting else None

    async def nodes(self) -> Sequence[SlurmNode]:
        separator = _separator()
        argv = ["-a", "-N", "-O", output_format(NODE_COLUMNS, separator)]
        nodes = await self._query("sinfo", argv, lambda text: parse_nodes(text, separator), _SINFO_FILTERS)
        cores = await self._cores_per_gpu()
        return [
            replace(node, restricted_cores_per_gpu=cores[node.name]) if node.name in cores else node for node in nodes
        ]

    async def _cores_per_gpu(self) -> Mapping[str, int]:
        """Return what slurm.conf, which seldom changes, restricts, and sinfo does not print: a long answer."""
        if time.monotonic() - self._restricted_cores_at >= _RESTRICTED_CORES_TTL_S:
            argv = ["-a", "-o", "show", "node"]
            self._restricted_cores = await self._query("scontrol", argv, parse_restricted_cores)
            self._restricted_cores_at = time.monotonic()
        return self._restricted_cores

    async def partitions(self) -> Sequence[Partition]:
        return await self._query("scontrol", ["-a", "-o", "show", "partition"], parse_partitions)

    async def reservations(self) -> Sequence[Reservation]:
        return await self._query("scontrol", ["-a", "-o", "show", "reservation"], parse_reservations)

    async def configuration(self) -> Mapping[str, str]:
        return await self._query("scontrol", ["show", "config"], parse_configuration)

    async def _query(self, tool: str, argv: Sequence[str], parse: Callable[[str], T], unset: Sequence[str] = ()) -> T:
        """Return the parsed answer of a tool that runs without the variables ``unset``."""
        without = [word for variable in unset for word in ("-u", variable)]
        done = await self._run(["env", *without, *_EXACT_TIMES, self._tool(tool), *argv], self._config.deadline)
        errors = _error_lines(done)
        if done.code or _INVALID.search(errors) or (errors and not done.out.strip()):
            raise _query_error(tool, errors or done.said)
        try:
            answer = await asyncio.to_thread(parse, done.out.decode(errors="replace"))
        except ValueError as error:
            if errors:
                raise _query_error(tool, errors) from None
            raise UnavailableError(printable(f"the answer of `{tool}` is invalid or incomplete: {error}")) from None
        self._remarks |= dict.fromkeys(map(_without_tool, errors.splitlines()), time.monotonic())
        return answer

    def notices(self) -> Sequence[str]:
        self._remarks = {text: at for text, at in self._remarks.items() if time.monotonic() - at < _REMARK_TTL_S}
        notices = [f"Slurm's tools print `{printable(each, 200)}` and answer all the same" for each in self._remarks]
        return notices[:_MAX_REMARKS]

    def _new_errors(self, done: Finished) -> str:
        """Return the errors of a tool without the remarks that earlier complete answers had."""
        lines = _error_lines(done).splitlines()
        return "\n".join(line for line in lines if _without_tool(line) not in self._remarks)

    # -------------------------------------------------------------------------------------------------------- orders

    async def submit(self, submission: SlurmSubmission) -> int:
        """Submit by sbatch.

        The job gets neither our environment nor a login's (``--export=NIL``): its script has to export PATH and HOME,
        and to run ``srun --export=ALL``. sbatch itself retries for minutes where slurmctld is too busy to take the job;
        this call does not wait so long.
        """
        argv = [self._tool("sbatch"), *sbatch_arguments(submission)]
        try:
            done = await self._run(argv, self._config.submit_deadline, submission.script)
        except NoReplyError as error:
            raise OutcomeUnknownError(f"submit: {error}") from None
        if done.code:
            errors = self._new_errors(done)
            raise refusal_error(errors) if errors else OutcomeUnknownError(f"submit: sbatch: {done.said}")
        submitted = _SBATCH_OUTPUT.findall(done.out)
        if len(submitted) != 1:
            raise OutcomeUnknownError(f"submit: sbatch prints no job id: {printable(repr(done.out[:100]), 100)}")
        return int(submitted[0])

    async def cancel(self, remote_ids: Sequence[str], *, kill: bool = False) -> None:
        """Cancel by scancel.

        With ``kill`` the drone, which is step 0 of its job, gets SIGKILL, and then the job is cancelled as usual: its
        script may clean up. (``scancel --signal=KILL`` of a whole job is as polite as without, and in 22.05, of one
        waiting task, cancels them all.)
        """
        for some in _chunks(valid_job_ids(remote_ids)):
            if kill:
                with contextlib.suppress(RejectedError):  # it has no step yet, or none any more
                    await self._scancel(["--signal=KILL", *(f"{job}.0" for job in some)])
            await self._scancel(list(fold_job_ids(some)))

    async def _scancel(self, argv: Sequence[str]) -> None:
        try:
            done = await self._run([self._tool("scancel"), *argv], self._config.deadline)
        except NoReplyError as error:  # its exit status may be an error number above 128, too
            raise OutcomeUnknownError(f"cancel: {error}") from None
        errors = self._new_errors(done)
        failures = [line for line in errors.splitlines() if not _NOTHING_TO_CANCEL.search(line)]
        if failures:
            raise refusal_error(failures[0])
        if done.code and not errors:
            raise OutcomeUnknownError(f"cancel: scancel: {done.said}")

    # ---------------------------------------------------------------------------------------------------------- tools

    def _tool(self, name: str) -> str:
        directory = self._config.tools.bin.rstrip("/")
        return f"{directory}/{name}" if directory else name

    async def _run(self, argv: Sequence[str], deadline_s: float, stdin: bytes = b"") -> Finished:
        if self._runner is None:
            raise UnavailableError(f"site {self._name} is not connected")
        return await self._runner.run(argv, stdin=stdin, deadline_s=deadline_s)


def sbatch_arguments(submission: SlurmSubmission) -> Iterator[str]:
    """Yield the arguments of sbatch. Ours come last: of a repeated option sbatch takes the last."""
    for name, value in submission.options.items():
        yield f"--{name}" if value is True else f"--{name}={value}"
    options = {
        "job-name": submission.name,
        "partition": submission.partition,
        "account": submission.account,
        "qos": submission.qos,
        "reservation": submission.reservation,
        "constraint": submission.constraint,
        "gres": submission.gres,
        "nodes": "1",
        "ntasks": "1",
        "cpus-per-task": str(submission.cpus),
        "mem": f"{submission.memory_mib}M" if submission.memory_mib else "",
        "tmp": f"{submission.tmp_mib}M" if submission.tmp_mib else "",
        "time": str(submission.minutes) if submission.minutes else "",
        "signal": f"B:TERM@{submission.notice_s}" if submission.notice_s else "",
        "output": submission.output,
        "chdir": "/",
        "export": "NIL",
        "array": format_ranges(submission.tasks),
    }
    yield from (f"--{name}={value}" for name, value in options.items() if value)
    yield from ("--no-requeue", "--parsable")


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    yield from (ids[start : start + _JOBS_PER_CALL] for start in range(0, len(ids), _JOBS_PER_CALL))


def _separator() -> str:
    """Return a separator of cells that changes with each call: nobody can have written it into a name before."""
    return f"@{secrets.token_hex(2)}"


class _NoAccountingError(UnavailableError):
    """There is no accounting database to ask."""


def _error_lines(done: Finished) -> str:
    """Return the tool's own error lines of stderr, without a login's greeting or the words of a site's plugin.

    All of stderr, if it failed without such a line.
    """
    text = done.err.decode(errors="replace")
    own = "\n".join(_ERROR_LINE.findall(text))
    return own or (text.strip() if done.code else "")


def _without_tool(line: str) -> str:
    """Return an error without the name of the tool: all of them read the same slurm.conf."""
    return line.partition(": ")[2]


def _query_error(tool: str, text: str) -> AdapterError:
    """Return the error for a question that was not answered."""
    message = printable(" ".join(text.split()), 400)
    if _NO_ACCOUNTING.search(text):
        return _NoAccountingError(message, FaultKind.CONFIG)
    if classify_refusal(text) is FaultKind.DENIED:
        return AuthError(message)
    return UnavailableError(message if tool in message else f"{tool}: {message}")


# -------------------------------------------------------------------------------------------------------------- tables


def output_format(columns: Mapping[str, str], separator: str) -> str:
    """Return the value of ``-O`` of squeue and sinfo.

    With ``NAME:0TEXT`` a cell is printed whole and followed by TEXT (22.05 to 26.05). With a separator that changes
    with each call nothing that users write into names and accounts, line breaks included, can pass for a row.
    """
    return ",".join(f"{name}:0{separator}" for name in columns)


def parse_table(text: str, separator: str, header: Sequence[str]) -> list[list[str]]:
    """Return the rows below ``header`` of a table whose every cell, the last one of a row too, ends with ``separator``.

    A cell may hold line breaks. A table without rows still has its header: an empty text is not an answer. Lines above
    the header are a greeting of the login node, and are left out.
    """
    end = f"{separator}\n"
    if not text.endswith(end):
        raise ValueError(f"it does not end as a table does{_beginning(text)}")
    above, first, below = text.partition(separator.join(header) + end)
    if not first or (above and not above.endswith("\n")):
        raise ValueError(f"it does not begin with the requested columns{_beginning(text)}")
    rows = [row.split(separator) for row in below.split(end)[:-1]]
    if any(len(row) != len(header) for row in rows):
        raise ValueError("one of its rows does not have the requested number of cells")
    return rows


def _beginning(text: str) -> str:
    line = next((line.strip() for line in text.split("\n") if line.strip()), "")
    return f", but begins with `{line[:60]}`" if line else ", but is empty"


# -------------------------------------------------------------------------------------------------------------- squeue

_JOB_COLUMNS = {
    "JobArrayID": "JOBID",
    "State": "STATE",
    "Reason": "REASON",
    "SubmitTime": "SUBMIT_TIME",
    "StartTime": "START_TIME",
    "EndTime": "END_TIME",
    "TimeLimit": "TIME_LIMIT",
    "Partition": "PARTITION",
    "NodeList": "NODELIST",
    "UserName": "USER",
    "Account": "ACCOUNT",
    "QOS": "QOS",
    "Name": "NAME",
}
OWN_JOB_COLUMNS = {
    **_JOB_COLUMNS,
    "RestartCnt": "RESTART_COUNT",
    "exit_code": "EXIT_CODE",
    "PreemptTime": "PREEMPT_TIME",
}
"""Names of the columns, and what squeue prints above them."""
ACTIVE_JOB_COLUMNS = {
    **_JOB_COLUMNS,
    "NumNodes": "NODES",
    "NumTasks": "TASKS",
    "tres-alloc": "TRES_ALLOC",
    "tres-per-node": "TRES_PER_NODE",
    "tres-per-job": "TRES_PER_JOB",
    "tres-per-task": "TRES_PER_TASK",
    "ReqNodes": "REQ_NODES",
}

_COMMON, _STATE = len(_JOB_COLUMNS), list(_JOB_COLUMNS).index("State")
_SQUEUE_ID = re.compile(r"[0-9]{1,10}([_+][0-9]{1,10})?")
_EXIT_CODE = re.compile(r"([0-9]{1,3}):([0-9]{1,3})")
_SQUEUE_BASE_STATES = {
    **dict.fromkeys(("CONFIGURING", "RESIZING", "SIGNALING", "STOPPED"), "RUNNING"),
    **dict.fromkeys(("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"), "PENDING"),
    **dict.fromkeys(("COMPLETING", "STAGE_OUT", "REVOKED"), ""),
}
"""Flags that squeue prints in place of the state, and the base state, where there is only one."""


def parse_own_jobs(text: str, separator: str) -> list[SlurmJob]:
    """Return the jobs of a ``squeue`` with the columns of :data:`OWN_JOB_COLUMNS`."""
    return [_own_job(row) for row in parse_table(text, separator, tuple(OWN_JOB_COLUMNS.values()))]


def parse_active_jobs(text: str, separator: str) -> list[SlurmJob]:
    """Return the jobs of a ``squeue`` with the columns of :data:`ACTIVE_JOB_COLUMNS`."""
    return [_active_job(row) for row in parse_table(text, separator, tuple(ACTIVE_JOB_COLUMNS.values()))]


def _job(row: Sequence[str]) -> SlurmJob:
    remote_id, state, reason, submitted, started, ends, limit, partition, nodes, user, account, qos, name = row
    if not _SQUEUE_ID.fullmatch(remote_id):
        raise ValueError(f"`{remote_id[:40]}` is not a job id")
    if not state:
        raise ValueError("a job without a state")
    return SlurmJob(
        remote_id,
        name,
        _SQUEUE_BASE_STATES.get(state) or state,
        frozenset({state}) if state in _SQUEUE_BASE_STATES else frozenset(),
        parse_word(reason),
        user,
        parse_word(account),
        partition,
        parse_word(qos),
        parse_time(submitted),
        parse_time(started),
        parse_time(ends),
        parse_duration(limit),
        nodes=expand_hostlist(nodes),
    )


def _own_job(row: Sequence[str]) -> SlurmJob:
    restarts, exit_code, preempted = row[_COMMON:]
    code, signal = (None, 0) if row[_STATE] in UNFINISHED_STATES else parse_exit_code(exit_code)
    return replace(
        _job(row[:_COMMON]),
        preempted_at=parse_time(preempted),
        exit_code=code,
        signal=signal,
        restarts=parse_count(restarts),
    )


def _active_job(row: Sequence[str]) -> SlurmJob:
    count, tasks, total, per_node, per_job, per_task, required = row[_COMMON:]
    node_count = max(1, parse_count(count.partition("-")[0]))
    amounts = parse_tres(total)
    gpus = parse_gpus(per_node)
    if not gpus:  # only with accounting are they among the totals
        of_tasks = {kind: each * max(1, parse_count(tasks)) for kind, each in parse_gpus(per_task).items()}
        gpus = gpus_per_node(parse_gpus(total) or parse_gpus(per_job) or of_tasks, node_count)
    try:
        required_nodes = expand_hostlist(required)
    except ValueError:  # as the user wrote them: a node that does not exist
        required_nodes = (required[:255],)
    return replace(
        _job(row[:_COMMON]),
        node_count=node_count,
        cpus=-(-parse_count(amounts.get("cpu", "0")) // node_count),
        memory_mib=-(-parse_memory_mib(amounts.get("mem", "0")) // node_count),
        gpus=MappingProxyType(dict(gpus)),
        required_nodes=required_nodes,
    )


def parse_exit_code(text: str) -> tuple[int, int]:
    """Return exit status and signal: ``3:0``, or in 22.05 the status of wait(2), ``768``."""
    if found := _EXIT_CODE.fullmatch(text):
        return int(found[1]), int(found[2])
    status = parse_count(text)
    return status >> 8 & 0xFF, status & 0x7F


# --------------------------------------------------------------------------------------------------------------- sacct

SACCT_COLUMNS = (
    "JobID",
    "State",
    "ExitCode",
    "Reason",
    "Submit",
    "Start",
    "End",
    "TimelimitRaw",
    "Partition",
    "NodeList",
    "User",
    "Account",
    "QOS",
    "JobName",
)
_MAX_SACCT_TASKS = 100_000
_SACCT_ID = re.compile(r"(?P<job>[0-9]{1,10})(?:[_+][0-9]{1,10}|_\[(?P<tasks>[0-9,:%-]{1,400000})\])?")
_SACCT_STATE = re.compile(r"(?P<state>[A-Z_]+)(?: (?P<by>by [0-9]{1,10}))?")


def parse_ended_jobs(text: str, separator: str) -> list[SlurmJob]:
    """Return the jobs of ``sacct -p --delimiter SEPARATOR -o SACCT_COLUMNS``."""
    return [job for row in parse_table(text, separator, SACCT_COLUMNS) for job in _accounted_jobs(row)]


def _accounted_jobs(row: Sequence[str]) -> Iterator[SlurmJob]:
    """Yield one job, or each of the tasks that wait in one row, ``14_[2-10%2]``."""
    job_id, words, ending, reason, submitted, started, ends, minutes, partition, nodes, user, account, qos, name = row
    remote_id, state = _SACCT_ID.fullmatch(job_id), _SACCT_STATE.fullmatch(words)
    if remote_id is None or state is None:
        raise ValueError(f"`{job_id[:40]}` is not a job id, or `{words[:40]}` not a state")
    alive = state["state"] in ("PENDING", "RUNNING", "SUSPENDED")
    code, signal = (None, 0) if alive else parse_exit_code(ending)
    job = SlurmJob(
        job_id,
        name,
        state["state"],
        reason=parse_word(reason) or state["by"] or "",
        user=user,
        account=parse_word(account),
        partition=partition,
        qos=parse_word(qos),
        submitted_at=parse_time(submitted),
        started_at=parse_time(started),
        ends_at=parse_time(ends),
        limit_s=60.0 * parse_count(minutes),
        nodes=expand_hostlist(nodes),
        exit_code=code,
        signal=signal,
    )
    if remote_id["tasks"] is None:
        yield job
    else:
        for task in parse_tasks(remote_id["tasks"], _MAX_SACCT_TASKS):
            yield replace(job, remote_id=f"{remote_id['job']}_{task}")


# --------------------------------------------------------------------------------------------------------------- sinfo

NODE_COLUMNS = {
    "NodeList": "NODELIST",
    "StateComplete": "STATECOMPLETE",
    "Partition": "PARTITION",
    "Features_act": "ACTIVE_FEATURES",
    "CPUsState": "CPUS(A/I/O/T)",
    "Memory": "MEMORY",
    "AllocMem": "ALLOCMEM",
    "Gres": "GRES",
    "GresUsed": "GRES_USED",
    "Threads": "THREADS",
    "Reason": "REASON",
}
"""Names of the columns, and what sinfo prints above them."""
_CPUS = re.compile(r"([0-9]{1,9})/([0-9]{1,9})/([0-9]{1,9})/([0-9]{1,9})")


def parse_nodes(text: str, separator: str) -> list[SlurmNode]:
    """Return the nodes of ``sinfo -a -N -O``, which prints a row for each node and partition."""
    found: dict[str, SlurmNode] = {}
    for row in parse_table(text, separator, tuple(NODE_COLUMNS.values())):
        name, partition = row[0], row[2].removesuffix("*")
        if known := found.get(name):
            found[name] = replace(known, partitions=(*known.partitions, partition))
        else:
            found[name] = _node(row, partition)
    return list(found.values())


def _node(row: Sequence[str], partition: str) -> SlurmNode:
    name, state, _, features, cpus, memory, used_memory, gres, gres_used, threads, reason = row
    counts = _CPUS.fullmatch(cpus)
    if counts is None or not name:
        raise ValueError(f"`{cpus[:40]}` is not a count of the CPUs of a node")
    states = state.upper().split("+")
    base = next((each for each in states if each in NODE_STATES), states[0])
    return SlurmNode(
        name,
        base,
        frozenset(states) - {base},
        (partition,),
        parse_words(features),
        int(counts[4]),
        int(counts[1]),
        parse_count(memory),
        parse_count(used_memory),
        parse_gpus(gres),
        parse_gpus(gres_used),
        parse_word(reason),
        parse_count(threads),
    )


# ------------------------------------------------------------------------------------------------------- scontrol show

_PAIR = re.compile(r"(\w+)=(\S*)")
_SETTING = re.compile(r"(\w+) +=(?: (.*))?")
_RESTRICTED_CORES = re.compile(r"^NodeName=(\S+) .*? RestrictedCoresPerGPU=([0-9]{1,9})\([0-9]", re.MULTILINE)
_NO_RESERVATIONS = "No reservations in the system"


def parse_partitions(text: str) -> list[Partition]:
    """Return the partitions of ``show partition -o``; every cluster has one."""
    found = [
        Partition(
            name=pairs["PartitionName"],
            up=pairs["State"] == "UP",
            nodes=expand_hostlist(pairs["Nodes"]),
            max_s=parse_duration(pairs["MaxTime"]),
            tier=parse_count(pairs["PriorityTier"]),
            grace_s=float(parse_count(pairs["GraceTime"])),
            preempt_mode=parse_word(pairs["PreemptMode"]),
            max_memory_per_cpu_mib=parse_memory_mib(pairs.get("MaxMemPerCPU", "")),
            max_memory_per_node_mib=parse_memory_mib(pairs.get("MaxMemPerNode", "")),
            max_cpus_per_node=parse_count(pairs["MaxCPUsPerNode"]),
            default=pairs["Default"] == "YES",
        )
        for pairs in _pairs(text, "PartitionName")
    ]
    if not found:
        raise ValueError("it lists no partition")
    return found


def parse_reservations(text: str) -> list[Reservation]:
    """Return the reservations of ``show reservation -o``, which prints a sentence if there are none."""
    if text.rstrip().endswith(_NO_RESERVATIONS) and "ReservationName=" not in text:
        return []
    found = [
        Reservation(
            name=pairs["ReservationName"],
            starts_at=parse_time(pairs["StartTime"]),
            ends_at=parse_time(pairs["EndTime"]),
            nodes=expand_hostlist(pairs["Nodes"]),
            flags=frozenset(parse_words(pairs["Flags"].upper())),
            users=parse_words(pairs["Users"]),
            accounts=parse_words(pairs["Accounts"]),
        )
        for pairs in _pairs(text, "ReservationName")
    ]
    if not found:
        raise ValueError("it neither lists reservations nor says that there are none")
    return found


def parse_restricted_cores(text: str) -> Mapping[str, int]:
    """Return ``RestrictedCoresPerGPU`` of the nodes on which it is in force, from ``show node -o``.

    ``4(0-7,38-45)`` names the reserved cores; with ``4((null))`` it is configured and reserves nothing.
    """
    return {node: int(cores) for node, cores in _RESTRICTED_CORES.findall(text)}


def _pairs(text: str, first: str) -> Iterator[Mapping[str, str]]:
    """Yield each line's pairs; of a repeated name the first, as free text stands at the end.

    Lines above the first record are a greeting of the login node.
    """
    if text and not text.endswith("\n"):
        raise ValueError("its last line is cut")
    lines = filter(None, map(str.strip, text.split("\n")))
    for line in dropwhile(lambda each: not each.startswith(f"{first}="), lines):
        pairs = _RequiredPairs()
        for name, value in _PAIR.findall(line):
            pairs.setdefault(name, value)
        if not line.startswith(f"{first}="):
            raise ValueError(f"one of its lines does not begin with {first}")
        yield pairs


class _RequiredPairs(dict[str, str]):
    def __missing__(self, name: str) -> str:
        raise ValueError(f"it does not contain {name}")


def parse_configuration(text: str) -> Mapping[str, str]:
    """Return the settings of ``show config``."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        if setting := _SETTING.fullmatch(line.rstrip()):
            found.setdefault(setting[1], (setting[2] or "").strip())
    if "SLURM_VERSION" not in found:
        raise ValueError("it contains no version")
    return found
