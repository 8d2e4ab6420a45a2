"""``squeue``: what is asked of it, and its answer as jobs.

With ``-O NAME:0TEXT`` a cell is printed whole and followed by TEXT (22.05 to 26.05), so the separator can be a word
that changes with each call: what users write into names and accounts, line breaks too, cannot pass for a row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from adapters.slurm.cluster import Job
from adapters.slurm.hostlist import expand
from adapters.slurm.printed import gpus, mebibytes, moment, number, span, table, tres, word
from adapters.slurm.states import ALIVE

FILTERS = ("SQUEUE_ACCOUNT", "SQUEUE_LICENSES", "SQUEUE_NAMES", "SQUEUE_PARTITION", "SQUEUE_QOS", "SQUEUE_USERS")
"""Variables that would have squeue leave out jobs."""

_COMMON = {
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
OURS = {
    **_COMMON,
    "RestartCnt": "RESTART_COUNT",
    "exit_code": "EXIT_CODE",
    "PreemptTime": "PREEMPT_TIME",
}
"""Names of the columns, and what squeue writes above them."""
OTHERS = {
    **_COMMON,
    "NumNodes": "NODES",
    "NumTasks": "TASKS",
    "tres-alloc": "TRES_ALLOC",
    "tres-per-node": "TRES_PER_NODE",
    "tres-per-job": "TRES_PER_JOB",
    "tres-per-task": "TRES_PER_TASK",
    "ReqNodes": "REQ_NODES",
}

_FOR_ALL, _STATE = len(_COMMON), list(_COMMON).index("State")
_ID = re.compile(r"[0-9]{1,10}([_+][0-9]{1,10})?")
_ENDING = re.compile(r"([0-9]{1,3}):([0-9]{1,3})")
_UNDER = {
    **dict.fromkeys(("CONFIGURING", "RESIZING", "SIGNALING", "STOPPED"), "RUNNING"),
    **dict.fromkeys(("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"), "PENDING"),
    **dict.fromkeys(("COMPLETING", "STAGE_OUT", "REVOKED"), ""),
}
"""Flags that squeue prints in the place of the state, and the state below, where there is but one."""


def columns(names: Sequence[str], separator: str) -> str:
    """The value of ``-O``."""
    return ",".join(f"{name}:0{separator}" for name in names)


def ours(text: str, separator: str) -> list[Job]:
    """The answer to ``-O columns(OURS)`` as jobs. ValueError if it is not whole."""
    return [_ours(row) for row in table(text, separator, tuple(OURS.values()))]


def others(text: str, separator: str) -> list[Job]:
    """The answer to ``-O columns(OTHERS)`` as jobs. ValueError if it is not whole."""
    return [_other(row) for row in table(text, separator, tuple(OTHERS.values()))]


def _of_all(row: Sequence[str]) -> Job:
    """What the first columns of both tell."""
    remote_id, told, reason, submitted, started, ends, limit, partition, nodes, user, account, qos, name = row
    state, flags = _state(told)
    return Job(
        _remote_id(remote_id),
        name,
        state,
        flags,
        word(reason),
        user,
        word(account),
        partition,
        word(qos),
        moment(submitted),
        moment(started),
        moment(ends),
        span(limit),
        nodes=expand(nodes),
    )


def _ours(row: Sequence[str]) -> Job:
    restarts, ending, preempted = row[_FOR_ALL:]
    code, signal = (None, 0) if row[_STATE] in ALIVE else exit_of(ending)
    return replace(
        _of_all(row[:_FOR_ALL]),
        preempted_at=moment(preempted),
        exit_code=code,
        signal=signal,
        restarts=number(restarts),
    )


def _other(row: Sequence[str]) -> Job:
    count, tasks, asked, per_node, per_job, per_task, wanted = row[_FOR_ALL:]
    node_count = max(1, number(count.partition("-")[0]))
    total = tres(asked)
    return replace(
        _of_all(row[:_FOR_ALL]),
        node_count=node_count,
        cpus=-(-number(total.get("cpu", "0")) // node_count),
        memory_mib=-(-mebibytes(total.get("mem", "0")) // node_count),
        gpus=MappingProxyType(_per_node(asked, per_node, per_job, per_task, number(tasks), node_count)),
        wanted_nodes=_wanted(wanted),
    )


def _per_node(asked: str, per_node: str, per_job: str, per_task: str, tasks: int, node_count: int) -> dict[str, int]:
    """GPUs of one node, however they were asked for. Only with accounting are they among what was asked in all."""
    if found := gpus(per_node):
        return dict(found)
    of_tasks = {kind: each * max(1, tasks) for kind, each in gpus(per_task).items()}
    found = gpus(asked) or gpus(per_job) or of_tasks
    return {kind: -(-each // node_count) for kind, each in found.items()}


def _wanted(text: str) -> tuple[str, ...]:
    """Nodes as the user wrote them; what is no list of nodes is taken for the name of one that does not exist."""
    try:
        return expand(text)
    except ValueError:
        return (text[:255],)


def _state(told: str) -> tuple[str, frozenset[str]]:
    if not told:
        raise ValueError("a job without a state")
    if told in _UNDER:
        return _UNDER[told] or told, frozenset({told})
    return told, frozenset()


def _remote_id(text: str) -> str:
    if not _ID.fullmatch(text):
        raise ValueError(f"`{text[:40]}` is no job id")
    return text


def exit_of(text: str) -> tuple[int, int]:
    """Exit status and signal: ``3:0``, or in 22.05 what wait(2) says, ``768``."""
    if found := _ENDING.fullmatch(text):
        return int(found[1]), int(found[2])
    status = number(text)
    return status >> 8 & 0xFF, status & 0x7F
