"""A Slurm cluster by way of its command-line tools, run here or on a login node.

What was seen of the tools of 22.05, 24.11 and 26.05: a question that is answered ends with 0 and begins with the names
of its columns, and one that is not ends with another status and a line ``TOOL: error: REASON``, with one exception,
``squeue -u NOBODY``, which says ``error: Invalid user`` and ends with 0. Any other such line beside status 0 and a
whole answer is a remark (a leftover of an older version in slurm.conf) and becomes a notice. Questions are asked in
words that no shell takes for anything else, so that they pass a login node's forced command whether it quotes or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Self, TypeVar

from adapters.shared.commands.choice import runner_for
from adapters.shared.commands.runner import Finished, NoAnswer, Runner
from adapters.shared.printing import printable
from adapters.slurm import sacct, scontrol, sinfo, squeue
from adapters.slurm.cluster import Job, Partition, Reservation, SlurmNode, Submission
from adapters.slurm.names import checked_ids, folded, ranges
from adapters.slurm.settings import SlurmSiteConfig
from adapters.slurm.states import refusal, refused
from provisioner.interfaces import AdapterError, AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import FaultKind

T = TypeVar("T")

_HOSTS_OWN = ("SQUEUE_", "SINFO_", "SACCT_", "SBATCH_", "SCANCEL_", "SLURM_CLUSTERS", "SLURM_JOB", "SLURM_STEP")
"""Variables that would have the tools do something else than they are told."""
_EXACT_TIMES = ("SLURM_TIME_FORMAT=%s", "SLURM_BITSTR_LEN=0")
_KEPT_FOR_S = 600.0
_CANCELLED_AT_ONCE = 500
_ASKED_AT_ONCE = 500
_PARTITION = re.compile(r"[A-Za-z0-9_.@+:-]{1,127}")
_SUBMITTED = re.compile(rb"^(\d{1,10})(?:;[\w.-]{1,255})?[ \t\r]*$", re.MULTILINE)
_COMPLAINT = re.compile(
    r"^\S{0,200}?(?:sbatch|squeue|sinfo|sacct|scontrol|scancel): (?:error|fatal): .*$", re.MULTILINE
)
_INVALID = re.compile(r": error: .*\binvalid\b", re.IGNORECASE)
"""Said of what was asked for: whatever the exit status, the answer is not the one that was wanted."""
_REMARKED_FOR_S = 900.0
_MOST_REMARKS = 5
_NOTHING_TO_CANCEL = re.compile(r"invalid job id specified|already completing or completed", re.IGNORECASE)
_NO_ACCOUNTING = re.compile(r"accounting storage is disabled", re.IGNORECASE)


class ToolsCluster:
    """The cluster, as whoever runs the tools."""

    def __init__(self, config: SlurmSiteConfig, name: str) -> None:
        self._config, self._name = config, name
        self._runner: Runner | None = None
        self._accounting = config.accounting is not False
        self._kept: Mapping[str, int] = {}
        self._kept_at = -_KEPT_FOR_S
        self._remarks: dict[str, float] = {}
        """Complaints beside whole answers, without the tool's name, and when each was last made."""

    async def __aenter__(self) -> Self:
        self._runner = await runner_for(self._config.tools.ssh, *_HOSTS_OWN).__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is not None:
            await self._runner.__aexit__(*exc)
            self._runner = None

    # ---------------------------------------------------------------------------------------------------- questions

    async def ours(self) -> Sequence[Job]:
        separator = _separator()
        argv = ["--me", "-a", "-r", "-t", "all", "-O", squeue.columns(tuple(squeue.OURS), separator)]
        return await self._read("squeue", argv, lambda text: squeue.ours(text, separator), squeue.FILTERS)

    async def others(self, partitions: Collection[str]) -> Sequence[Job]:
        if not partitions:
            return []
        separator, names = _separator(), sorted(partitions)
        if strange := [name for name in names if not _PARTITION.fullmatch(name)]:
            raise RejectedError(f"`{printable(strange[0], 60)}` is no name of a partition", FaultKind.CONFIG)
        argv = ["-a", "-r", "-t", "PENDING,RUNNING", "-p", ",".join(names)]
        argv += ["-O", squeue.columns(tuple(squeue.OTHERS), separator)]
        return await self._read("squeue", argv, lambda text: squeue.others(text, separator), squeue.FILTERS)

    async def ended(self, remote_ids: Collection[str], since: float) -> Sequence[Job] | None:
        """Over the account of whoever runs the tools; root's are everybody's."""
        separator, ids = _separator(), checked_ids(remote_ids)
        argv = ["-X", "-p", f"--delimiter={separator}", "-o", ",".join(sacct.COLUMNS)]
        asked = [[*argv, "-j", ",".join(some)] for some in _chunks(ids, _ASKED_AT_ONCE)]
        found: list[Job] = []
        for question in asked or [[*argv, "-S", f"uts{max(0, int(since))}"]]:
            if not self._accounting:
                return None
            try:
                found += await self._read("sacct", question, lambda text: sacct.ended(text, separator))
            except _NoAccounting:
                self._accounting = False
        return found if self._accounting else None

    async def nodes(self) -> Sequence[SlurmNode]:
        separator = _separator()
        argv = ["-a", "-N", "-O", squeue.columns(tuple(sinfo.COLUMNS), separator)]
        nodes = await self._read("sinfo", argv, lambda text: sinfo.nodes(text, separator), sinfo.FILTERS)
        kept = await self._kept_cores()
        return [replace(node, kept_cores_per_gpu=kept[node.name]) if node.name in kept else node for node in nodes]

    async def _kept_cores(self) -> Mapping[str, int]:
        """Of slurm.conf, which changes seldom, and which sinfo does not tell: a long answer, asked for now and then."""
        if time.monotonic() - self._kept_at >= _KEPT_FOR_S:
            self._kept = await self._read("scontrol", ["-a", "-o", "show", "node"], scontrol.kept_cores)
            self._kept_at = time.monotonic()
        return self._kept

    async def partitions(self) -> Sequence[Partition]:
        return await self._read("scontrol", ["-a", "-o", "show", "partition"], scontrol.partitions)

    async def reservations(self) -> Sequence[Reservation]:
        return await self._read("scontrol", ["-a", "-o", "show", "reservation"], scontrol.reservations)

    async def configuration(self) -> Mapping[str, str]:
        return await self._read("scontrol", ["show", "config"], scontrol.configuration)

    async def _read(self, tool: str, argv: Sequence[str], read: Callable[[str], T], without: Sequence[str] = ()) -> T:
        """What ``read`` makes of a tool's answer; ``without`` these variables of its environment."""
        unset = [word for variable in without for word in ("-u", variable)]
        done = await self._run(["env", *unset, *_EXACT_TIMES, self._tool(tool), *argv], self._config.deadline)
        complaints = _complaints(done)
        if done.code or _INVALID.search(complaints) or (complaints and not done.out.strip()):
            raise _unread(tool, complaints or done.said)
        try:
            answer = await asyncio.to_thread(read, done.out.decode(errors="replace"))
        except ValueError as error:
            if complaints:
                raise _unread(tool, complaints) from None
            message = f"the answer of `{tool}` is not what it should be, or not all of it: {error}"
            raise UnavailableError(printable(message)) from None
        self._remarks |= dict.fromkeys(map(_words, complaints.splitlines()), time.monotonic())
        return answer

    def notices(self) -> Sequence[str]:
        self._remarks = {said: at for said, at in self._remarks.items() if time.monotonic() - at < _REMARKED_FOR_S}
        said = [f"Slurm's tools say `{printable(each, 200)}` and answer all the same" for each in self._remarks]
        return said[:_MOST_REMARKS]

    def _complaints(self, done: Finished) -> str:
        """Return what a tool complains of, without remarks that were made beside whole answers before."""
        lines = _complaints(done).splitlines()
        return "\n".join(line for line in lines if _words(line) not in self._remarks)

    # -------------------------------------------------------------------------------------------------------- orders

    async def submit(self, submission: Submission) -> int:
        """The job gets nothing of our environment and no login's (``--export=NIL``): its script has to export PATH and
        HOME, and to say ``srun --export=ALL``. sbatch itself waits and tries again where slurmctld is too busy to take
        the job, for minutes; it is not waited for so long."""
        argv = [self._tool("sbatch"), *options(submission)]
        try:
            done = await self._run(argv, self._config.submit_deadline, submission.script)
        except NoAnswer as error:
            raise OutcomeUnknownError(f"submit: {error}") from None
        if done.code:
            complaints = self._complaints(done)
            raise refused(complaints) if complaints else OutcomeUnknownError(f"submit: sbatch: {done.said}")
        submitted = _SUBMITTED.findall(done.out)
        if len(submitted) != 1:
            raise OutcomeUnknownError(
                f"submit: sbatch does not say what it submitted: {printable(repr(done.out[:100]), 100)}"
            )
        return int(submitted[0])

    async def cancel(self, remote_ids: Sequence[str], *, kill: bool = False) -> None:
        """With ``kill`` the drone, which is step 0 of its job, gets SIGKILL, and then the job is cancelled as ever: its
        script may clean up. (``scancel --signal=KILL`` of a whole job is as polite as without, and in 22.05, of one
        waiting task, cancels them all.)"""
        for some in _chunks(checked_ids(remote_ids), _CANCELLED_AT_ONCE):
            if kill:
                with contextlib.suppress(RejectedError):  # it has no step yet, or none any more
                    await self._cancel(["--signal=KILL", *(f"{job}.0" for job in some)])
            await self._cancel(list(folded(some)))

    async def _cancel(self, argv: Sequence[str]) -> None:
        try:
            done = await self._run([self._tool("scancel"), *argv], self._config.deadline)
        except NoAnswer as error:  # its exit status may be an error number above 128, too
            raise OutcomeUnknownError(f"cancel: {error}") from None
        complaints = self._complaints(done)
        trouble = [line for line in complaints.splitlines() if not _NOTHING_TO_CANCEL.search(line)]
        if trouble:
            raise refused(trouble[0])
        if done.code and not complaints:
            raise OutcomeUnknownError(f"cancel: scancel: {done.said}")

    # ---------------------------------------------------------------------------------------------------------- tools

    def _tool(self, name: str) -> str:
        directory = self._config.tools.bin.rstrip("/")
        return f"{directory}/{name}" if directory else name

    async def _run(self, argv: Sequence[str], deadline_s: float, stdin: bytes = b"") -> Finished:
        if self._runner is None:
            raise UnavailableError(f"site {self._name} is not connected")
        return await self._runner.run(argv, stdin=stdin, deadline_s=deadline_s)


def options(submission: Submission) -> Iterator[str]:
    """Arguments of sbatch. Ours come last: of an option that is said twice sbatch takes the last."""
    for name, value in submission.more.items():
        yield f"--{name}" if value is True else f"--{name}={value}"
    told = {
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
        "array": ranges(submission.tasks),
    }
    yield from (f"--{name}={value}" for name, value in told.items() if value)
    yield from ("--no-requeue", "--parsable")


def _chunks(ids: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    yield from (ids[start : start + size] for start in range(0, len(ids), size))


def _separator() -> str:
    """Between cells: never the same, so that nobody can have written it into a name before."""
    return f"@{secrets.token_hex(2)}"


class _NoAccounting(UnavailableError):
    """There is no accounting database to ask."""


def _complaints(done: Finished) -> str:
    """What the tool itself says went wrong, of all that is said on stderr (by a login's greeting, a site's plugin); if
    it failed without such a line, all of that."""
    said = done.err.decode(errors="replace")
    own = "\n".join(_COMPLAINT.findall(said))
    return own or (said.strip() if done.code else "")


def _words(complaint: str) -> str:
    """Return a complaint without the name of the tool: all of them read the same slurm.conf."""
    return complaint.partition(": ")[2]


def _unread(tool: str, words: str) -> AdapterError:
    """Why a question was not answered."""
    message = printable(" ".join(words.split()), 400)
    if _NO_ACCOUNTING.search(words):
        return _NoAccounting(message, FaultKind.CONFIG)
    if refusal(words) is FaultKind.DENIED:
        return AuthError(message)
    return UnavailableError(message if tool in message else f"{tool}: {message}")
