"""Transport by Slurm's command-line tools, run on this host or on a login node.

Observed with the tools of 22.05, 24.11 and 26.05: an answered question ends with status 0 and
begins with the names of its columns; a failed one ends with another status and a line ``TOOL:
error: REASON``. One exception is ``squeue -u NOBODY``, which prints ``error: Invalid user`` and
ends with 0. Any other such line beside status 0 and a complete answer is a remark (a leftover of an
older version in slurm.conf) and becomes a notice. Questions contain only words that no shell
interprets, so that they pass a login node's forced command whether it quotes or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile
from typing import Any, Self, TypeVar

from adapters.shared.commands.local import runner_for
from adapters.shared.commands.runner import Finished, NoReplyError, Runner
from adapters.shared.printing import printable
from adapters.slurm import records
from adapters.slurm.records import (
    Partition,
    Reservation,
    SlurmClient,
    SlurmJob,
    SlurmJobs,
    SlurmNode,
    SlurmSubmission,
)
from adapters.slurm.settings import SlurmSiteConfig
from adapters.slurm.states import query_error, refusal_error
from provisioner.interfaces import OutcomeUnknownError, RejectedError, UnavailableError

T = TypeVar("T")

_UNSET_VARIABLES = (
    "SQUEUE_",
    "SINFO_",
    "SACCT_",
    "SBATCH_",
    "SCANCEL_",
    "SLURM_CLUSTERS",
    "SLURM_JOB",
    "SLURM_STEP",
)
"""Variables of this host that would change what the tools do."""
_FILTERS = {
    "squeue": [
        f"SQUEUE_{word}" for word in ("ACCOUNT", "LICENSES", "NAMES", "PARTITION", "QOS", "USERS")
    ],
    "sinfo": ["SINFO_PARTITION"],
}
"""Variables with which a tool leaves out jobs or nodes."""
_EXACT_TIMES = ("SLURM_TIME_FORMAT=%s", "SLURM_BITSTR_LEN=0")
_JOBS_PER_CALL = 500
_SBATCH_OUTPUT = re.compile(rb"^(\d{1,10})(?:;[\w.-]{1,255})?[ \t\r]*$", re.MULTILINE)
_ERROR_LINE = re.compile(
    r"^\S{0,200}?(?:sbatch|squeue|sinfo|sacct|scontrol|scancel): (?:error|fatal): .*$", re.MULTILINE
)
_INVALID = re.compile(r": error: .*\binvalid\b", re.IGNORECASE)
"""An error about the arguments: whatever the exit status, the answer is not the one that was requested."""
_REMARK_TTL_S = 900.0
_MAX_REMARKS = 5
_NOTHING_TO_CANCEL = re.compile(
    r"invalid job id specified|already completing or completed", re.IGNORECASE
)
_NO_ACCOUNTING = re.compile(r"accounting storage is disabled", re.IGNORECASE)


class SlurmToolsClient(SlurmClient):
    """The cluster as the account that runs the tools."""

    def __init__(self, config: SlurmSiteConfig, name: str) -> None:
        self._config = config
        self._name = name
        self._runner: Runner | None = None
        self._accounting = True
        self._remarks: dict[str, float] = {}
        """Errors beside complete answers, without the tool's name, and when each was last printed."""

    async def __aenter__(self) -> Self:
        self._runner = await runner_for(self._config.tools.ssh, *_UNSET_VARIABLES).__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is not None:
            await self._runner.__aexit__(*exc)
            self._runner = None

    async def own_jobs(self) -> SlurmJobs:
        return await self._table(
            "squeue", ["--me", "-a", "-r", "-t", "all"], OWN_JOB_COLUMNS, parse_jobs
        )

    async def active_jobs(self, partitions: Collection[str]) -> SlurmJobs:
        argv = ["-a", "-r", "-t", "PENDING,RUNNING", "-p", ",".join(sorted(partitions))]
        return await self._table("squeue", argv, ACTIVE_JOB_COLUMNS, parse_jobs)

    async def ended_jobs(self, remote_ids: Collection[str], since: float) -> SlurmJobs | None:
        """Return jobs of the account that runs the tools; root sees those of everybody."""
        selections = [
            ["-j", ",".join(some)] for some in records.job_id_chunks(remote_ids, _JOBS_PER_CALL)
        ]
        return await self._accounted(
            selections or [["-S", f"uts{max(0, int(since))}"]], SACCT_COLUMNS, parse_ended_jobs
        )

    async def _accounted(
        self,
        selections: Iterable[Sequence[str]],
        columns: Columns,
        parse: Callable[[str, str], list[SlurmJob]],
    ) -> SlurmJobs | None:
        if not self._accounting:
            return None
        separator = _separator()
        found = list[SlurmJob]()
        argv = ["-X", "-p", f"--delimiter={separator}", "-o", ",".join(columns)]
        try:
            for selection in selections:
                found += await self._query(
                    "sacct", [*argv, *selection], lambda text: parse(text, separator)
                )
        except UnavailableError as error:
            self._accounting = not _NO_ACCOUNTING.search(str(error))
            if self._accounting:
                raise
        return found if self._accounting else None

    async def nodes(self, *, reserves: bool = False) -> Sequence[SlurmNode]:
        nodes = await self._table("sinfo", ["-a", "-N"], SINFO_NODE_COLUMNS, parse_nodes)
        if not reserves:
            return nodes
        text = await self._query("scontrol", ["-a", "-o", "show", "node"], str)
        cores = dict(_RESTRICTED_CORES.findall(text))
        return [
            replace(node, restricted_cores_per_gpu=int(cores.get(node.name, 0))) for node in nodes
        ]

    async def partitions(self) -> Sequence[Partition]:
        return await self._query("scontrol", ["-a", "-o", "show", "partition"], parse_partitions)

    async def reservations(self) -> Sequence[Reservation]:
        return await self._query(
            "scontrol", ["-a", "-o", "show", "reservation"], parse_reservations
        )

    async def configuration(self) -> Mapping[str, str]:
        return await self._query("scontrol", ["show", "config"], parse_configuration)

    async def _table(
        self,
        tool: str,
        argv: Sequence[str],
        columns: Columns,
        parse: Callable[[str, str, Columns], T],
    ) -> T:
        """Ask squeue or sinfo. With ``NAME:0TEXT`` a cell is printed whole and followed by TEXT (22.05 to 26.05)."""
        separator = _separator()
        output = ",".join(f"{name}:0{separator}" for name in columns)
        return await self._query(
            tool, [*argv, "-O", output], lambda text: parse(text, separator, columns)
        )

    async def _query(self, tool: str, argv: Sequence[str], parse: Callable[[str], T]) -> T:
        """Return the parsed answer of a tool that runs without the variables that filter it."""
        without = [word for variable in _FILTERS.get(tool, ()) for word in ("-u", variable)]
        done = await self._run(
            tool, argv, self._config.deadline, prefix=("env", *without, *_EXACT_TIMES)
        )
        errors = _error_lines(done)
        if done.code or _INVALID.search(errors) or (errors and not done.out.strip()):
            raise query_error(errors or f"{tool}: {done.said}")
        try:
            answer = await asyncio.to_thread(parse, done.out.decode(errors="replace"))
        except ValueError as error:
            if errors:
                raise query_error(errors) from None
            raise UnavailableError(
                printable(f"the answer of `{tool}` is invalid or incomplete: {error}")
            ) from None
        self._remarks |= dict.fromkeys(map(_without_tool, errors.splitlines()), time.monotonic())
        return answer

    def notices(self) -> Sequence[str]:
        self._remarks = {
            text: at for text, at in self._remarks.items() if time.monotonic() - at < _REMARK_TTL_S
        }
        shown = list(self._remarks)[:_MAX_REMARKS]
        return [f"Slurm's tools print `{printable(each, 200)}`, but they answer" for each in shown]

    def _new_errors(self, done: Finished) -> list[str]:
        """Return errors without the remarks that earlier complete answers had."""
        return [
            line
            for line in _error_lines(done).splitlines()
            if _without_tool(line) not in self._remarks
        ]

    async def submit(self, submission: SlurmSubmission) -> int:
        """Submit by sbatch, which itself retries for minutes where slurmctld is too busy; this call waits less.

        The job gets neither our environment nor a login's (``--export=NIL``): its script has to
        export PATH and HOME, and to run ``srun --export=ALL``.
        """
        argv = sbatch_arguments(submission)
        deadline_s = self._config.submit_deadline
        try:
            done = await self._run("sbatch", argv, deadline_s, stdin=submission.script)
        except NoReplyError as error:
            raise OutcomeUnknownError(f"submit: {error}") from None
        if done.code:
            errors = "\n".join(self._new_errors(done))
            raise (
                refusal_error(errors)
                if errors
                else OutcomeUnknownError(f"submit: sbatch: {done.said}")
            )
        submitted = _SBATCH_OUTPUT.findall(done.out)
        if len(submitted) != 1:
            raise OutcomeUnknownError(
                f"submit: sbatch prints no job id: {printable(repr(done.out[:100]), 100)}"
            )
        return int(submitted[0])

    async def cancel(self, remote_ids: Sequence[str], *, kill: bool = False) -> None:
        """Cancel by scancel. With ``kill`` the drone, step 0 of its job, gets SIGKILL first: the script may clean up.

        (``scancel --signal=KILL`` of a whole job is as polite as without, and in 22.05, of one
        waiting task, cancels them all.)
        """
        for some in records.job_id_chunks(remote_ids, _JOBS_PER_CALL):
            if kill:
                with contextlib.suppress(RejectedError):  # it has no step yet, or none any more
                    await self._scancel(["--signal=KILL", *(f"{job}.0" for job in some)])
            await self._scancel(list(records.fold_job_ids(some)))

    async def _scancel(self, argv: Sequence[str]) -> None:
        try:
            done = await self._run("scancel", argv, self._config.deadline)
        except NoReplyError as error:  # its exit status may be an error number above 128, too
            raise OutcomeUnknownError(f"cancel: {error}") from None
        errors = self._new_errors(done)
        failures = [line for line in errors if not _NOTHING_TO_CANCEL.search(line)]
        if failures:
            raise refusal_error(failures[0])
        if done.code and not errors:
            raise OutcomeUnknownError(f"cancel: scancel: {done.said}")

    async def _run(
        self,
        tool: str,
        argv: Iterable[str],
        deadline_s: float,
        *,
        prefix: Sequence[str] = (),
        stdin: bytes = b"",
    ) -> Finished:
        if self._runner is None:
            raise UnavailableError(f"site {self._name} is not connected")
        words = [*prefix, posixpath.join(self._config.tools.bin, tool), *argv]
        return await self._runner.run(words, stdin=stdin, deadline_s=deadline_s)


def sbatch_arguments(submission: SlurmSubmission) -> Iterator[str]:
    """Yield the arguments of sbatch. What defines a drone replaces further options of the same name."""
    options = {
        **submission.options,
        "job-name": submission.name,
        "nodes": "1",
        "ntasks": "1",
        "cpus-per-task": str(submission.cpus),
        "mem": f"{submission.memory_mib}M" if submission.memory_mib else "",
        "time": str(submission.minutes) if submission.minutes else "",
        "signal": f"B:TERM@{submission.notice_s}" if submission.notice_s else "",
        "output": submission.output,
        "chdir": "/",
        "export": "NIL",
        "array": records.format_ranges(submission.tasks),
    }
    yield from (
        f"--{name}" if value is True else f"--{name}={value}"
        for name, value in options.items()
        if value
    )
    yield from ("--no-requeue", "--parsable")


def _separator() -> str:
    """Return a separator that changes with each call: nothing that users write into names can pass for a row."""
    return f"@{secrets.token_hex(2)}"


def _error_lines(done: Finished) -> str:
    """Return the tool's own error lines of stderr, or all of it if the tool failed without such a line."""
    text = done.err.decode(errors="replace")
    own = "\n".join(_ERROR_LINE.findall(text))
    return own or (text.strip() if done.code else "")


def _without_tool(line: str) -> str:
    """Return an error without the name of the tool: all of them read the same slurm.conf."""
    return line.partition(": ")[2]


# --------------------------------------------------------------------------------------------------------------
# tables

Columns = Mapping[str, tuple[str, str]]
"""Columns by the tool's name: the heading that it prints, and our name of the cell."""


def parse_table(text: str, separator: str, columns: Columns) -> list[dict[str, str]]:
    """Return the rows, cells by our names, of a table whose every cell, the last one too, ends with ``separator``.

    A cell may hold line breaks. A table without rows still has its header. Lines above it are a
    login's greeting.
    """
    end = f"{separator}\n"
    headings, names = zip(*columns.values(), strict=True)
    if not text.endswith(end):
        raise ValueError(f"it does not end as a table does{_beginning(text)}")
    above, first, below = text.partition(separator.join(headings) + end)
    if not first or (above and not above.endswith("\n")):
        raise ValueError(f"it does not begin with the requested columns{_beginning(text)}")
    rows = [row.split(separator) for row in below.split(end)[:-1]]
    if any(len(row) != len(names) for row in rows):
        raise ValueError("one of its rows does not have the requested number of cells")
    return [dict(zip(names, row, strict=True)) for row in rows]


def _beginning(text: str) -> str:
    line = text.strip().partition("\n")[0].strip()
    return f", but begins with `{line[:60]}`" if line else ", but is empty"


_JOB_COLUMNS = {
    "JobArrayID": ("JOBID", "remote_id"),
    "State": ("STATE", "state"),
    "Reason": ("REASON", "reason"),
    "SubmitTime": ("SUBMIT_TIME", "submitted_at"),
    "StartTime": ("START_TIME", "started_at"),
    "EndTime": ("END_TIME", "ends_at"),
    "TimeLimit": ("TIME_LIMIT", "limit_s"),
    "Partition": ("PARTITION", "partition"),
    "NodeList": ("NODELIST", "nodes"),
    "UserName": ("USER", "user"),
    "Account": ("ACCOUNT", "account"),
    "QOS": ("QOS", "qos"),
    "Name": ("NAME", "name"),
}
OWN_JOB_COLUMNS = {
    **_JOB_COLUMNS,
    "RestartCnt": ("RESTART_COUNT", "restarts"),
    "exit_code": ("EXIT_CODE", "exit_code"),
    "PreemptTime": ("PREEMPT_TIME", "preempted_at"),
    "Comment": ("COMMENT", "comment"),
}
ACTIVE_JOB_COLUMNS = {
    **_JOB_COLUMNS,
    "NumNodes": ("NODES", "node_count"),
    "NumTasks": ("TASKS", "tasks"),
    "tres-alloc": ("TRES_ALLOC", "tres"),
    "tres-per-node": ("TRES_PER_NODE", "tres_per_node"),
    "tres-per-job": ("TRES_PER_JOB", "tres_per_job"),
    "tres-per-task": ("TRES_PER_TASK", "tres_per_task"),
    "ReqNodes": ("REQ_NODES", "required_nodes"),
}


def _same_headings(names: Mapping[str, str]) -> Columns:
    """Return columns of sacct, whose headings are their names."""
    return {column: (column, ours) for column, ours in names.items()}


SACCT_COLUMNS = _same_headings(
    {
        "JobID": "remote_id",
        "State": "state",
        "ExitCode": "exit_code",
        "Reason": "reason",
        "Submit": "submitted_at",
        "Start": "started_at",
        "End": "ends_at",
        "TimelimitRaw": "limit_s",
        "Partition": "partition",
        "NodeList": "nodes",
        "User": "user",
        "Account": "account",
        "QOS": "qos",
        "JobName": "name",
    }
)


def parse_jobs(text: str, separator: str, columns: Columns) -> list[SlurmJob]:
    return [records.read_job(row) for row in parse_table(text, separator, columns)]


_SACCT_ARRAY = re.compile(r"(?P<job>[0-9]{1,10})_\[(?P<tasks>[0-9,:%-]{1,400000})\]")


def parse_ended_jobs(text: str, separator: str) -> list[SlurmJob]:
    """Return the jobs of ``sacct -p --delimiter SEPARATOR -o SACCT_COLUMNS``, waiting tasks of an array one by one."""
    found = []
    for row in parse_table(text, separator, SACCT_COLUMNS):
        state, _, by = row["state"].partition(" ")  # "CANCELLED by 2001"
        ids = [row["remote_id"]]
        if array := _SACCT_ARRAY.fullmatch(row["remote_id"]):
            ids = [f"{array['job']}_{task}" for task in records.parse_tasks(array["tasks"])]
        reason = row["reason"] if row["reason"] != "None" else by
        found += [
            records.read_job({**row, "remote_id": remote_id, "state": state, "reason": reason})
            for remote_id in ids
        ]
    return found


SINFO_NODE_COLUMNS = {
    "NodeList": ("NODELIST", "name"),
    "StateComplete": ("STATECOMPLETE", "state"),
    "Partition": ("PARTITION", "partition"),
    "Features_act": ("ACTIVE_FEATURES", "features"),
    "CPUsState": ("CPUS(A/I/O/T)", "cpus"),
    "Memory": ("MEMORY", "memory_mib"),
    "AllocMem": ("ALLOCMEM", "used_memory_mib"),
    "Gres": ("GRES", "gpus"),
    "GresUsed": ("GRES_USED", "used_gpus"),
    "Threads": ("THREADS", "threads_per_core"),
}


def parse_nodes(
    text: str, separator: str, columns: Columns = SINFO_NODE_COLUMNS
) -> list[SlurmNode]:
    """Return the nodes of ``sinfo -a -N -O``, which prints a row for each node and partition."""
    rows: dict[str, dict[str, Any]] = {}
    for row in parse_table(text, separator, columns):
        allocated, _, _, total = row["cpus"].split("/")
        node = rows.setdefault(
            row["name"], {**row, "cpus": total, "used_cpus": allocated, "partitions": []}
        )
        node["partitions"].append(row["partition"].removesuffix("*"))
    return list(map(records.read_node, rows.values()))


# -------------------------------------------------------------------------------------------------------
# scontrol show

_PARTITION_KEYS = {
    "name": "PartitionName",
    "up": "State",
    "nodes": "Nodes",
    "max_s": "MaxTime",
    "tier": "PriorityTier",
    "grace_s": "GraceTime",
    "preempt_mode": "PreemptMode",
    "max_memory_per_cpu_mib": "MaxMemPerCPU",
    "max_memory_per_node_mib": "MaxMemPerNode",
    "max_cpus_per_node": "MaxCPUsPerNode",
    "default": "Default",
    "oversubscribe": "OverSubscribe",
    "exclusive": "Exclusive",
    "exclusive_user": "ExclusiveUser",
    "min_nodes": "MinNodes",
}
_RESERVATION_KEYS = {
    "name": "ReservationName",
    "starts_at": "StartTime",
    "ends_at": "EndTime",
    "nodes": "Nodes",
}
_OPTIONAL_KEYS = ("MaxMemPerCPU", "MaxMemPerNode", "Exclusive", "ExclusiveUser")
_PAIR = re.compile(r"(\w+)=(\S*)")
_SETTING = re.compile(r"(\w+) +=(?: (.*))?")
_RESTRICTED_CORES = re.compile(
    r"^NodeName=(\S+) .*? RestrictedCoresPerGPU=([0-9]{1,9})\([0-9]", re.MULTILINE
)
"""In ``show node -o``. ``4(0-7,38-45)`` names the reserved cores; with ``4((null))`` nothing is reserved."""


def parse_partitions(text: str) -> list[Partition]:
    return [records.read(Partition, pairs) for pairs in _pairs(text, _PARTITION_KEYS)]


def parse_reservations(text: str) -> list[Reservation]:
    if text.rstrip().endswith("No reservations in the system") and "ReservationName=" not in text:
        return []
    return [records.read(Reservation, pairs) for pairs in _pairs(text, _RESERVATION_KEYS)]


def _pairs(text: str, keys: Mapping[str, str]) -> list[dict[str, str]]:
    """Return each line's pairs by our names; of a repeated key the first, as free text stands at the end."""
    begin = f"{keys['name']}="
    lines = list(
        dropwhile(
            lambda line: not line.startswith(begin), filter(None, map(str.strip, text.split("\n")))
        )
    )
    if not lines or not text.endswith("\n") or not all(line.startswith(begin) for line in lines):
        raise ValueError(f"its lines do not begin with {begin}, or its last line is cut")
    found = []
    for line in lines:
        pairs = dict(reversed(_PAIR.findall(line)))
        if missing := set(keys.values()) - pairs.keys() - set(_OPTIONAL_KEYS):
            raise ValueError(f"it does not contain {', '.join(sorted(missing))}")
        found.append({ours: pairs.get(key, "") for ours, key in keys.items()})
    return found


def parse_configuration(text: str) -> Mapping[str, str]:
    settings = [
        setting for line in text.split("\n") if (setting := _SETTING.fullmatch(line.rstrip()))
    ]
    found = {setting[1]: (setting[2] or "").strip() for setting in reversed(settings)}
    if "SLURM_VERSION" not in found:
        raise ValueError("it contains no version")
    return found
