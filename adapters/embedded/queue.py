"""The queue, a SQLite file: its tables and every statement that changes a job. Standard library only, for drones too.

A running job belongs to a drone by a lease and a token. The lease is renewed while the job runs; a
process that finds it expired ends the job's processes and puts the job back to idle. The token is
new for each attempt, its processes carry it, and a change by its holder counts only if the row still
has it. Leases use the monotonic clock, which all processes of one host share: clock steps do not end
them.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from provisioner.gpu_models import canonical
from provisioner.job_filter import JobFilter
from provisioner.processes import Process, end_tagged
from provisioner.values import frozen

QUEUE_VERSION = 3
LONGEST_LEASE_S = 600.0
"""A lease that ends later than this from now is from before a reboot."""
_MAX_INTEGER = 2**62
"""Numbers from this on do not fit a SQLite integer with room for sums."""
_TEXT_LIMIT = 200
ATTEMPT_TAG = "JOB_ATTEMPT"
"""Variable that the processes of a job carry, with the token of the attempt."""
_JOB_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_TABLES = """
CREATE TABLE job (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner TEXT NOT NULL,
    priority INTEGER NOT NULL,
    gpu_milli INTEGER NOT NULL,
    cpus INTEGER NOT NULL,
    memory_mib INTEGER NOT NULL,
    disk_mib INTEGER NOT NULL,
    vram_mib INTEGER NOT NULL,
    capability INTEGER NOT NULL,
    gpu_model TEXT NOT NULL,
    walltime_s REAL NOT NULL,
    argv TEXT NOT NULL,
    env TEXT NOT NULL,
    submitted_at REAL NOT NULL,
    state TEXT NOT NULL DEFAULT 'idle' CHECK (state IN ('idle', 'running', 'done', 'failed', 'held')),
    attempts INTEGER NOT NULL DEFAULT 0,
    lost INTEGER NOT NULL DEFAULT 0,
    drone_id TEXT NOT NULL DEFAULT '',
    token TEXT NOT NULL DEFAULT '',
    attempt TEXT NOT NULL DEFAULT '', -- the token of the newest attempt, which its processes carry
    worker TEXT NOT NULL DEFAULT '0 0 -', -- the process that has the lease: pid, start and boot
    used_gpu_milli INTEGER NOT NULL DEFAULT 0, -- 0 on a drone without a GPU
    lease_until REAL NOT NULL DEFAULT 0,
    started_at REAL NOT NULL DEFAULT 0,
    ended_at REAL NOT NULL DEFAULT 0,
    exit_code INTEGER,
    message TEXT NOT NULL DEFAULT '',
    gpu_optional INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX job_order ON job (state, priority DESC, submitted_at, id);
CREATE INDEX job_done ON job (ended_at) WHERE ended_at > 0;
CREATE TABLE drone (
    drone_id TEXT PRIMARY KEY,
    slot TEXT, -- the fields of its slot as JSON, NULL before it has joined
    heard REAL,
    drain TEXT NOT NULL DEFAULT '',
    asked_at REAL NOT NULL DEFAULT 0
);
"""


class JobState(StrEnum):
    IDLE = "idle"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    HELD = "held"


class InvalidJobError(ValueError):
    """A request that no drone could ever meet; the message says what to write instead."""


@frozen
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
    env: Mapping[str, str]
    submitted_at: float
    state: JobState
    attempts: int
    drone_id: str
    token: str
    used_gpu_milli: int
    started_at: float
    ended_at: float
    exit_code: int | None
    message: str
    gpu_optional: int = 0
    """1: it runs without the GPU on a drone that has none."""

    @classmethod
    def of(cls, row: sqlite3.Row) -> EmbeddedJob:
        parsed = {"argv": tuple(json.loads(row["argv"])), "env": json.loads(row["env"])}
        return cls(
            **{each.name: row[each.name] for each in fields(cls)}
            | {**parsed, "state": JobState(row["state"])}
        )


def create(path: Path) -> None:
    """Create the queue file if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(_connect(path, "rwc")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        with writing(connection):
            if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
                for statement in _TABLES.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {QUEUE_VERSION}")


def connect(path: Path, busy_s: float = 5.0) -> sqlite3.Connection:
    """Open an existing queue. Raises ``sqlite3.Error`` if there is none, or one of another version or account."""
    connection = _connect(path, "rw", busy_s)
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != QUEUE_VERSION:
            raise sqlite3.DatabaseError(
                f"{path}: queue version {version}, this program knows {QUEUE_VERSION}. Remove the file"
            )
        _share(path)
    except BaseException:
        connection.close()
        raise
    return connection


def _share(path: Path) -> None:
    """Give the files that SQLite makes beside the queue its group: all accounts that use the queue need to open them.

    SQLite gives them its mode, and the first group of the account that opens the queue first.
    """
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(OSError):  # they are of another account, which does it, or gone
            os.chown(f"{path}{suffix}", -1, path.stat().st_gid)


def _connect(
    path: Path,
    mode: str,
    busy_s: float = 5.0,
) -> sqlite3.Connection:
    if path.exists() and not os.access(path, os.W_OK):  # it would leave files of its own beside it
        raise sqlite3.OperationalError(
            f"{path}: this account may not write it. Its owner has to permit that"
        )
    uri = f"file:{quote(os.fspath(path.absolute()))}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=busy_s)
    connection.row_factory = sqlite3.Row
    connection.create_function("canonical", 1, canonical, deterministic=True)
    connection.create_function("refuses", 4, _refuses, deterministic=True)
    # survives any crash of ours; a power cut may cost a commit
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


@contextlib.contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[None]:
    """Open a write transaction. It is immediate: a value read in it still holds when it is written."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(connect(path)) as connection, writing(connection):
        yield connection


lease_clock = time.monotonic


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
    gpu_optional: bool = False,
) -> list[int]:
    """Add ``count`` equal jobs to the queue and return their ids. The file is created if it is missing.

    ``gpus``: 0, a share below 1 in steps of 0.001, or whole GPUs. ``vram_mib`` is per GPU, ``capability`` is the CUDA
    compute capability times ten; 0 or an empty text sets no requirement. ``gpu_optional``: the jobs use an idle GPU or
    run without one on CPU drones; no drone with a GPU is started for them.

    Raises:
        InvalidJobError: the request can never be met.
        sqlite3.Error: the queue cannot be used.
    """
    owner = owner or getpass.getuser()
    sizes: dict[str, float] = {
        "cpus": cpus,
        "memory_mib": memory_mib,
        "disk_mib": disk_mib,
        "vram_mib": vram_mib,
        "capability": capability,
        "walltime_s": walltime_s,
    }
    _check_numbers({"count": count, **sizes}, priority)
    _check_texts(argv, env or {}, owner=owner, gpu_model=gpu_model)
    gpu_milli = _gpu_milli(gpus)
    row = {
        "owner": owner,
        "priority": priority,
        "gpu_milli": gpu_milli,
        **sizes,
        "gpu_model": gpu_model,
        "gpu_optional": int(gpu_optional and gpu_milli > 0),
        "argv": json.dumps(list(argv)),
        "env": json.dumps(dict(env or {})),
        "submitted_at": time.time(),
    }
    create(path)
    statement = (
        f"INSERT INTO job ({', '.join(row)}) VALUES ({', '.join(f':{name}' for name in row)})"
    )
    with _opened(path) as connection:
        return [int(connection.execute(statement, row).lastrowid or 0) for _ in range(count)]


def _check_numbers(sizes: Mapping[str, float], priority: int) -> None:
    """Raise InvalidJobError for a number that no job can have."""
    for name, number in sizes.items():
        lowest = 1 if name in ("count", "cpus") else 0
        if not lowest <= number < _MAX_INTEGER:  # false for NaN too
            raise InvalidJobError(f"{name} = {number}: at least {lowest}, and below 2^62")
    if not -_MAX_INTEGER < priority < _MAX_INTEGER:
        raise InvalidJobError(f"priority {priority} is out of range")


def _check_texts(argv: Sequence[str], env: Mapping[str, str], **names: str) -> None:
    """Raise InvalidJobError for a program, a variable or a name that no job can have."""
    for name, text in names.items():
        if len(text) > _TEXT_LIMIT or not text.isprintable():
            raise InvalidJobError(f"{name}: at most {_TEXT_LIMIT} printable characters")
    if isinstance(argv, str) or not argv or not argv[0] or any("\0" in word for word in argv):
        raise InvalidJobError("argv: a list of a program and its arguments, without NUL characters")
    for name, value in env.items():
        if not _JOB_VARIABLE.fullmatch(name) or "\0" in value:
            raise InvalidJobError(f"env: `{name[:40]}` cannot be an environment variable")


def _gpu_milli(gpus: int | float | str | Decimal) -> int:
    """Return a number of GPUs in milli-GPU, exactly: 0.1 is 100."""
    with contextlib.suppress(InvalidOperation):  # no number at all
        milli = Decimal(str(gpus)) * 1000
        if 0 <= milli < _MAX_INTEGER and milli % (1 if milli < 1000 else 1000) == 0:
            return int(milli)
    what = f"{str(gpus)[:40]} GPUs cannot be"
    raise InvalidJobError(f"{what}: write 0, a share below 1 in steps of 0.001, or a whole number")


def jobs(
    path: Path,
    *,
    states: Sequence[JobState] = (),
    ids: Sequence[int] = (),
    limit: int = 1000,
) -> list[EmbeddedJob]:
    """Return jobs by id, limited to the given states and ids. Raises ``sqlite3.Error``."""
    where = ["1"]
    values = list[object]()
    for column, wanted in (("state", states), ("id", ids)):
        if wanted:
            where.append(f"{column} IN ({', '.join('?' * len(wanted))})")
            values += wanted
    statement = f"SELECT * FROM job WHERE {' AND '.join(where)} ORDER BY id LIMIT ?"
    with contextlib.closing(connect(path)) as connection:
        return [EmbeddedJob.of(row) for row in connection.execute(statement, (*values, limit))]


def counts(path: Path) -> dict[JobState, int]:
    """Return the number of jobs by state. Raises ``sqlite3.Error``."""
    with contextlib.closing(connect(path)) as connection:
        found = dict(
            map(tuple, connection.execute("SELECT state, count(*) FROM job GROUP BY state"))
        )
    return {state: found.get(state, 0) for state in JobState}


def remove(path: Path, ids: Sequence[int]) -> int:
    """Delete jobs and return how many existed. A running one is killed when its drone next renews the lease."""
    with _opened(path) as connection:
        return sum(
            connection.execute("DELETE FROM job WHERE id = ?", (job_id,)).rowcount for job_id in ids
        )


def release(path: Path, ids: Sequence[int]) -> int:
    """Release held jobs and return how many were held."""
    statement = (
        "UPDATE job SET state = 'idle', lost = 0, message = '' WHERE id = ? AND state = 'held'"
    )
    with _opened(path) as connection:
        return sum(connection.execute(statement, (job_id,)).rowcount for job_id in ids)


class _Request(NamedTuple):
    """Part of a job that a drone's filter judges."""

    owner: str
    gpu_milli: int
    vram_mib: int


def _refuses(job_filter: str, *request: Any) -> bool:
    return bool(JobFilter.parse(job_filter).refuses(_Request(*request)))


_FITS = """
    state = 'idle' AND cpus <= :cpus AND memory_mib <= :memory_mib AND disk_mib <= :disk_mib
    AND (NOT gpu_optional OR NOT :has_gpus OR :unchanged)  -- a GPU is idle if nothing that needs it has come for long
    AND ((gpu_milli = 0 OR gpu_optional) AND NOT :has_gpus  -- what is beside its GPUs is for jobs that want some
         OR gpu_milli BETWEEN 1 AND 999 AND gpu_milli <= :share_milli  -- the largest rest on one device
         OR gpu_milli >= 1000 AND gpu_milli / 1000 <= :whole_gpus)     -- untouched devices
    AND (vram_mib <= :vram_mib AND capability <= :capability AND canonical(gpu_model) IN ('', canonical(:gpu_model))
         OR gpu_optional AND NOT :has_gpus)
    AND walltime_s <= :life_s                         -- time that a job may still run there
    AND (:job_filter = '' OR NOT refuses(:job_filter, owner, gpu_milli, vram_mib))
"""
"""Jobs that fit an offer: what a drone still has for one more job."""
Offer = Mapping[str, float | str]


def take(
    connection: sqlite3.Connection,
    offer: Offer,
    drone_id: str,
    lease_until: float,
) -> EmbeddedJob | None:
    """Take the first fitting job by priority, VRAM and age. Jobs with an optional GPU come after all others.

    VRAM comes before age: a job that runs anywhere must not take the large GPU that another needs.
    """
    order = "gpu_optional, priority DESC, vram_mib DESC, submitted_at, id"
    first = f"SELECT id FROM job WHERE {_FITS} ORDER BY {order} LIMIT 1"
    if connection.execute(first, offer).fetchone() is None:  # takes no lock: drones ask often
        return None
    token = os.urandom(8).hex()
    claim = {
        "drone_id": drone_id,
        "token": token,
        "attempt": token,
        "worker": str(Process.own()),
        "lease_until": lease_until,
        "started_at": time.time(),
    }
    assignments = ", ".join(f"{name} = :{name}" for name in claim)
    with writing(connection):
        connection.execute(
            f"UPDATE job SET {assignments}, state = 'running', attempts = attempts + 1, message = '',"
            f" used_gpu_milli = :has_gpus * gpu_milli WHERE id = ({first})",
            {**offer, **claim},
        )
    row = connection.execute("SELECT * FROM job WHERE token = ?", (token,)).fetchone()
    return EmbeddedJob.of(row) if row else None


def renew(
    connection: sqlite3.Connection,
    job: EmbeddedJob,
    lease_until: float,
) -> bool:
    """Renew a lease; return False if the job belongs to another drone now."""
    return _if_claimed(connection, job, "lease_until = ?", lease_until)


def finish(
    connection: sqlite3.Connection,
    job: EmbeddedJob,
    exit_code: int,
    message: str,
) -> bool:
    """Record the end of a job; return False, and change nothing, if it belongs to another drone now."""
    state = JobState.FAILED if exit_code else JobState.DONE
    ended = "state = ?, exit_code = ?, message = ?, ended_at = ?, token = ''"
    return _if_claimed(connection, job, ended, state, exit_code, message, time.time())


def give_back(
    connection: sqlite3.Connection,
    job: EmbeddedJob,
    message: str,
) -> bool:
    """Put a job back to idle without counting it as lost."""
    idle = "state = 'idle', message = ?, drone_id = '', token = '', started_at = 0"
    return _if_claimed(connection, job, idle, message)


def _if_claimed(
    connection: sqlite3.Connection, job: EmbeddedJob, assignments: str, *values: object
) -> bool:
    statement = f"UPDATE job SET {assignments} WHERE id = ? AND token = ? AND state = 'running'"
    return connection.execute(statement, (*values, job.id, job.token)).rowcount == 1


def expire(connection: sqlite3.Connection, max_lost: int) -> int:
    """Put jobs with expired leases back to idle, or hold them if they were lost often; return how many.

    No process of such a job is left then, so it never runs twice at once. Call it outside of a
    transaction: it waits for processes to end.
    """
    now = lease_clock()
    # Without a token the attempt counts no more, whatever its drone does meanwhile.
    connection.execute(
        "UPDATE job SET token = '' WHERE state = 'running' AND lease_until NOT BETWEEN ? AND ?",
        (now, now + LONGEST_LEASE_S),
    )
    lost = "state = 'running' AND token = ''"
    late = connection.execute(f"SELECT attempt, worker FROM job WHERE {lost}").fetchall()
    return sum(
        connection.execute(
            "UPDATE job SET state = CASE WHEN lost + 1 >= ? THEN 'held' ELSE 'idle' END, lost = lost + 1,"
            " message = 'lost with drone ' || drone_id, drone_id = '', started_at = 0"
            f" WHERE {lost} AND attempt = ?",
            (max_lost, row["attempt"]),
        ).rowcount
        for row in late
        if _end_attempt(row["attempt"], row["worker"])
    )


def _end_attempt(attempt: str, worker: str) -> bool:
    """End the processes of an attempt; return False if some may be left."""
    if Process.parse(worker).is_of_another_account:  # its site ends it; its jobs cannot be seen
        return False
    return end_tagged(f"{ATTEMPT_TAG}={attempt}")


def publish(connection: sqlite3.Connection, drone_id: str, slot: Mapping[str, str | float]) -> None:
    """Write the slot of a drone: these fields of :class:`provisioner.model.Slot`."""
    connection.execute(
        "INSERT INTO drone (drone_id, slot, heard) VALUES (?, ?, ?)"
        " ON CONFLICT (drone_id) DO UPDATE SET slot = excluded.slot, heard = excluded.heard",
        (drone_id, json.dumps(slot), lease_clock()),
    )


def forget(connection: sqlite3.Connection, drone_id: str) -> None:
    connection.execute("DELETE FROM drone WHERE drone_id = ?", (drone_id,))


def drain_mode(connection: sqlite3.Connection, drone_id: str) -> str:
    """Return the mode in which the drone was asked to drain; empty if it was not."""
    row = connection.execute("SELECT drain FROM drone WHERE drone_id = ?", (drone_id,)).fetchone()
    return str(row["drain"]) if row else ""
