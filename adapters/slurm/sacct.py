"""``sacct``: what is asked of it, and its answer as jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from adapters.slurm.cluster import Job
from adapters.slurm.hostlist import expand
from adapters.slurm.printed import moment, number, table, word
from adapters.slurm.squeue import exit_of

COLUMNS = (
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

MOST_TASKS = 100_000
_ID = re.compile(r"(?P<job>[0-9]{1,10})(?:[_+][0-9]{1,10}|_\[(?P<tasks>[0-9,:%-]{1,400000})\])?")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
_BY = re.compile(r"(?P<state>[A-Z_]+)(?: (?P<by>by [0-9]{1,10}))?")


def ended(text: str, separator: str) -> list[Job]:
    """The answer to ``-p --delimiter SEPARATOR -o COLUMNS`` as jobs. ValueError if it is not whole."""
    return [job for row in table(text, separator, COLUMNS) for job in _jobs(row)]


def _jobs(row: Sequence[str]) -> Iterator[Job]:
    """One job, or each of the tasks that wait in one row, ``14_[2-10%2]``."""
    told, words, ending, reason, submitted, started, ends, minutes, partition, nodes, user, account, qos, name = row
    remote_id, state = _ID.fullmatch(told), _BY.fullmatch(words)
    if remote_id is None or state is None:
        raise ValueError(f"`{told[:40]}` is no job id, or `{words[:40]}` no state")
    alive = state["state"] in ("PENDING", "RUNNING", "SUSPENDED")
    code, signal = (None, 0) if alive else exit_of(ending)
    job = Job(
        told,
        name,
        state["state"],
        reason=word(reason) or state["by"] or "",
        user=user,
        account=word(account),
        partition=partition,
        qos=word(qos),
        submitted_at=moment(submitted),
        started_at=moment(started),
        ends_at=moment(ends),
        limit_s=60.0 * number(minutes),
        nodes=expand(nodes),
        exit_code=code,
        signal=signal,
    )
    if remote_id["tasks"] is None:
        yield job
    else:
        for task in _tasks(remote_id["tasks"]):
            yield replace(job, remote_id=f"{remote_id['job']}_{task}")


def _tasks(text: str) -> list[int]:
    """``0-2,5,8-12:2%4`` written out."""
    found: list[int] = []
    for part in text.partition("%")[0].split(","):
        if (each := _RANGE.fullmatch(part)) is None:
            raise ValueError(f"`{part[:40]}` is no range of tasks")
        first, last, step = int(each[1]), int(each[2] or each[1]), int(each[3] or 1)
        if not step or (last - first) // step > MOST_TASKS - len(found):
            raise ValueError("an array of more tasks than there can be")
        found += range(first, last + 1, step)
    return found
