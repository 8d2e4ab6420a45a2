"""The user's side of the queue: submit, list, count, remove and release jobs."""

from __future__ import annotations

import contextlib
import getpass
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import Path

from adapters.embedded import table

_WHOLE_GPU = 1000
_MAX_INTEGER = 2**62
"""Numbers from this on do not fit a SQLite integer with room for sums."""
_TEXT_LIMIT = 200
_JOB_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class JobState(StrEnum):
    IDLE = "idle"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    HELD = "held"


class InvalidJobError(ValueError):
    """A request that no drone could ever meet; the message says what to write instead."""


@dataclass(frozen=True, slots=True)
class EmbeddedJob:
    """One job. Times are seconds since the epoch, 0 if not yet."""

    id: int
    owner: str
    priority: int
    gpu_milli: int
    cpus: int
    memory_mib: int
    disk_mib: int
    vram_mib: int
    capability: int
    gpu_model: str
    walltime_s: float
    argv: tuple[str, ...]
    submitted_at: float
    state: JobState
    attempts: int
    drone_id: str
    started_at: float
    ended_at: float
    exit_code: int | None
    message: str


def submit(
    path: Path,
    argv: Sequence[str],
    *,
    count: int = 1,
    gpus: int | float | str | Decimal = 1,
    cpus: int = 1,
    memory_mib: int = 1024,
    disk_mib: int = 0,
    vram_mib: int = 0,
    capability: int = 0,
    gpu_model: str = "",
    walltime_s: float = 0.0,
    env: Mapping[str, str] | None = None,
    owner: str = "",
    priority: int = 0,
) -> list[int]:
    """Add ``count`` equal jobs to the queue and return their ids. The file is created if it is missing.

    ``gpus``: 0, a share below 1 in steps of 0.001, or whole GPUs. ``vram_mib`` is per GPU, ``capability`` is the CUDA
    compute capability times ten; 0 or an empty text sets no requirement.

    Raises:
        InvalidJobError: the request can never be met.
        sqlite3.Error: the queue cannot be used.
    """
    if not -_MAX_INTEGER < priority < _MAX_INTEGER:
        raise InvalidJobError(f"priority {priority} is out of range")
    if count < 1:
        raise InvalidJobError(f"count {count}: at least one job")
    request = {
        "owner": _text("owner", owner or getpass.getuser()),
        "priority": priority,
        "gpu_milli": gpu_milli(gpus),
        "cpus": _at_least("cpus", cpus, 1),
        "memory_mib": _at_least("memory_mib", memory_mib, 0),
        "disk_mib": _at_least("disk_mib", disk_mib, 0),
        "vram_mib": _at_least("vram_mib", vram_mib, 0),
        "capability": _at_least("capability", capability, 0),
        "gpu_model": _text("gpu_model", gpu_model),
        "walltime_s": _at_least("walltime_s", walltime_s, 0),
        "argv": _argv(argv),
        "env": _environment(env or {}),
        "submitted_at": time.time(),
        "state": JobState.IDLE.value,
    }
    table.create(path)
    statement = f"INSERT INTO job ({', '.join(request)}) VALUES ({', '.join(f':{name}' for name in request)})"
    with contextlib.closing(table.connect(path)) as connection, table.writing(connection):
        return [int(connection.execute(statement, request).lastrowid or 0) for _ in range(count)]


def jobs(
    path: Path, *, states: Sequence[JobState] = (), ids: Sequence[int] = (), limit: int = 1000
) -> list[EmbeddedJob]:
    """Return jobs by id, limited to the given states and ids. Raises ``sqlite3.Error``."""
    where, values = ["1"], list[object]()
    for column, wanted in (("state", [str(state) for state in states]), ("id", list(ids))):
        if wanted:
            where.append(f"{column} IN ({', '.join('?' * len(wanted))})")
            values += wanted
    with contextlib.closing(table.connect(path)) as connection:
        rows = connection.execute(
            f"SELECT * FROM job WHERE {' AND '.join(where)} ORDER BY id LIMIT ?", (*values, limit)
        )
        return [
            EmbeddedJob(
                **{n: row[n] for n in EmbeddedJob.__slots__ if n not in ("argv", "state")},
                argv=tuple(json.loads(row["argv"])),
                state=JobState(row["state"]),
            )
            for row in rows
        ]


def counts(path: Path) -> dict[JobState, int]:
    """Return the number of jobs by state. Raises ``sqlite3.Error``."""
    with contextlib.closing(table.connect(path)) as connection:
        rows = connection.execute("SELECT state, count(*) AS jobs FROM job GROUP BY state")
        found = {JobState(row["state"]): int(row["jobs"]) for row in rows}
    return {state: found.get(state, 0) for state in JobState}


def remove(path: Path, ids: Sequence[int]) -> int:
    """Delete jobs and return how many existed. A running one is killed when its drone next renews the lease."""
    with contextlib.closing(table.connect(path)) as connection, table.writing(connection):
        return sum(connection.execute("DELETE FROM job WHERE id = ?", (job_id,)).rowcount for job_id in ids)


def release(path: Path, ids: Sequence[int]) -> int:
    """Release held jobs and return how many were held."""
    statement = "UPDATE job SET state = 'idle', lost = 0, message = '' WHERE id = ? AND state = 'held'"
    with contextlib.closing(table.connect(path)) as connection, table.writing(connection):
        return sum(connection.execute(statement, (job_id,)).rowcount for job_id in ids)


def gpu_milli(gpus: int | float | str | Decimal) -> int:
    """Return a number of GPUs in milli-GPU, exactly: 0.1 is 100. Raises :class:`InvalidJobError`."""
    try:
        milli = Decimal(str(gpus)) * _WHOLE_GPU
    except InvalidOperation:
        raise InvalidJobError(f"`{str(gpus)[:40]}` is not a number of GPUs: write 1 or 0.5") from None
    if not milli.is_finite() or not 0 <= milli < _MAX_INTEGER:
        raise InvalidJobError(f"{str(gpus)[:40]} GPUs cannot be: write 0, a share such as 0.5, or a whole number")
    if milli != milli.to_integral_value():
        raise InvalidJobError(f"{str(gpus)[:40]} GPUs: shares come in steps of 0.001")
    if wrong := wrong_gpu_milli(int(milli)):
        raise InvalidJobError(wrong)
    return int(milli)


def wrong_gpu_milli(milli: int) -> str:
    """Return what is wrong with a number of GPUs and what to write instead; empty if nothing."""
    if milli < 0:
        return f"{milli / _WHOLE_GPU:g} GPUs: cannot be negative"
    if milli > _WHOLE_GPU and milli % _WHOLE_GPU:
        below = milli // _WHOLE_GPU
        return f"{milli / _WHOLE_GPU:g} GPUs: write {below} or {below + 1}, only less than one GPU can be a share"
    return ""


def _at_least(name: str, value: float, least: int) -> float:
    if not least <= value < _MAX_INTEGER:  # false for NaN too
        raise InvalidJobError(f"{name} = {value}: at least {least}, and below 2^62")
    return value


def _text(name: str, text: str) -> str:
    if len(text) > _TEXT_LIMIT or not text.isprintable():
        raise InvalidJobError(f"{name}: at most {_TEXT_LIMIT} printable characters")
    return text


def _argv(argv: Sequence[str]) -> str:
    if isinstance(argv, str) or not argv or not argv[0]:
        raise InvalidJobError("argv: a list of a program and its arguments")
    if any("\0" in word for word in argv):
        raise InvalidJobError("argv: no NUL characters")
    return json.dumps(list(argv))


def _environment(env: Mapping[str, str]) -> str:
    for name, value in env.items():
        if not _JOB_VARIABLE.fullmatch(name) or "\0" in value:
            raise InvalidJobError(f"env: `{name[:40]}` cannot be an environment variable")
    return json.dumps(dict(env))
