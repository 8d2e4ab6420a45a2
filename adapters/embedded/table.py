"""The queue's tables and every statement that changes a job's state. Standard library only: drones use this too.

A running job belongs to a drone by a lease and a token. The lease is renewed while the job runs; a process that finds
it expired puts the job back to idle. The token is new for each attempt, and a change by its holder counts only if the
row still has it. Leases use the monotonic clock, which all processes of one host share: clock steps do not end them.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

QUEUE_VERSION = 1
LONGEST_LEASE_S = 600.0
"""A lease that ends later than this from now is from before a reboot."""
_BUSY_S = 5.0

_TABLES = """
CREATE TABLE job (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner TEXT NOT NULL,
    priority INTEGER NOT NULL CHECK (typeof(priority) = 'integer'),
    gpu_milli INTEGER NOT NULL CHECK (typeof(gpu_milli) = 'integer'),
    cpus INTEGER NOT NULL CHECK (typeof(cpus) = 'integer'),
    memory_mib INTEGER NOT NULL CHECK (typeof(memory_mib) = 'integer'),
    disk_mib INTEGER NOT NULL CHECK (typeof(disk_mib) = 'integer'),
    vram_mib INTEGER NOT NULL CHECK (typeof(vram_mib) = 'integer'),
    capability INTEGER NOT NULL CHECK (typeof(capability) = 'integer'),
    gpu_model TEXT NOT NULL,
    walltime_s REAL NOT NULL,
    argv TEXT NOT NULL,
    env TEXT NOT NULL,
    submitted_at REAL NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('idle', 'running', 'done', 'failed', 'held')),
    attempts INTEGER NOT NULL DEFAULT 0,
    lost INTEGER NOT NULL DEFAULT 0,
    drone_id TEXT NOT NULL DEFAULT '',
    token TEXT NOT NULL DEFAULT '',
    lease_until REAL NOT NULL DEFAULT 0,
    started_at REAL NOT NULL DEFAULT 0,
    ended_at REAL NOT NULL DEFAULT 0,
    exit_code INTEGER,
    message TEXT NOT NULL DEFAULT ''
);
CREATE INDEX job_order ON job (state, priority DESC, submitted_at, id);
CREATE TABLE slot (
    drone_id TEXT PRIMARY KEY,
    site TEXT NOT NULL, type TEXT NOT NULL, state TEXT NOT NULL, heard REAL NOT NULL,
    free_gpu_milli INTEGER NOT NULL, free_cpus INTEGER NOT NULL,
    free_memory_mib INTEGER NOT NULL, free_disk_mib INTEGER NOT NULL,
    jobs INTEGER NOT NULL, jobs_started INTEGER NOT NULL,
    idle_since REAL NOT NULL, retires_at REAL NOT NULL, -- seconds since the epoch
    gpu_model TEXT NOT NULL, vram_mib INTEGER NOT NULL, capability INTEGER NOT NULL
);
CREATE TABLE drain (drone_id TEXT PRIMARY KEY, mode TEXT NOT NULL, reason TEXT NOT NULL, at REAL NOT NULL);
"""
_DONE_INDEX = "CREATE INDEX IF NOT EXISTS job_done ON job (ended_at) WHERE ended_at > 0"


@dataclass(frozen=True, slots=True)
class SlotOffer:
    """Resources of a drone for one more job."""

    whole_gpus: int
    """Untouched devices: a job with one GPU or more gets only such."""
    share_milli: int
    """The largest rest on one device: a job with less than one GPU gets its share of one device."""
    cpus: int
    memory_mib: int
    disk_mib: int
    vram_mib: int
    """VRAM of a GPU, or of a share."""
    capability: int
    gpu_model: str
    life_s: float
    """Time that a job may still run here."""
    submitted_before: float
    """Jobs submitted later have not been through a negotiation yet."""
    for_gpus: bool
    """It has GPUs: what is beside them is for jobs that want some. Without, it takes only those that want none."""
    each_milli: int = 1000
    """Size of a share of its GPUs, if they are offered in shares."""
    avoids: str = ""
    """Users whose jobs it does not take, with commas between."""


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job that a drone has taken."""

    id: int
    attempt: int
    token: str
    argv: str
    env: str
    gpu_milli: int
    cpus: int
    memory_mib: int
    disk_mib: int
    walltime_s: float


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
            connection.execute(_DONE_INDEX)  # queues made before it get it too


def connect(path: Path, busy_s: float = _BUSY_S) -> sqlite3.Connection:
    """Open an existing queue. Raises ``sqlite3.Error`` if there is none, or one of another version."""
    connection = _connect(path, "rw", busy_s)
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != QUEUE_VERSION:
            raise sqlite3.DatabaseError(f"{path}: queue version {version}, this program knows {QUEUE_VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path, mode: str, busy_s: float = _BUSY_S) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(os.fspath(path.absolute()))}?mode={mode}", uri=True, isolation_level=None, timeout=busy_s
    )
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA synchronous = NORMAL")  # survives any crash of ours; a power cut may cost a commit
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


def lease_clock() -> float:
    return time.monotonic()


# ------------------------------------------------------------------------------------------------------------ jobs

_FITS = """
    state = 'idle' AND submitted_at <= :submitted_before
    AND cpus BETWEEN 0 AND :cpus AND memory_mib BETWEEN 0 AND :memory_mib AND disk_mib BETWEEN 0 AND :disk_mib
    AND (gpu_milli = 0 AND NOT :for_gpus
         OR gpu_milli BETWEEN 1 AND 999 AND gpu_milli <= :share_milli
         OR gpu_milli >= 1000 AND gpu_milli % 1000 = 0 AND gpu_milli / 1000 <= :whole_gpus)
    AND vram_mib <= :vram_mib
        * CASE WHEN :each_milli < 1000 THEN max(1, (gpu_milli + :each_milli - 1) / :each_milli) ELSE 1 END
    AND capability <= :capability AND gpu_model IN ('', :gpu_model)
    AND walltime_s <= :life_s
    AND (:avoids = '' OR owner = '' OR instr(',' || :avoids || ',', ',' || owner || ',') = 0)
"""


def fits_any(connection: sqlite3.Connection, offer: SlotOffer) -> bool:
    """Return whether some waiting job would fit. It takes no lock, so it may be called often."""
    return connection.execute(f"SELECT 1 FROM job WHERE {_FITS} LIMIT 1", _fields(offer)).fetchone() is not None


def take(connection: sqlite3.Connection, offer: SlotOffer, drone_id: str, lease_until: float) -> ClaimedJob | None:
    """Take the first fitting job by priority, VRAM and age, inside :func:`writing`.

    VRAM comes before age: a job that runs anywhere must not take the large GPU that another needs.
    """
    order = "priority DESC, vram_mib DESC, submitted_at, id"
    row = connection.execute(f"SELECT * FROM job WHERE {_FITS} ORDER BY {order} LIMIT 1", _fields(offer)).fetchone()
    if row is None:
        return None
    token = os.urandom(8).hex()
    connection.execute(
        "UPDATE job SET state = 'running', attempts = attempts + 1, drone_id = ?, token = ?, lease_until = ?,"
        " started_at = ?, message = '' WHERE id = ?",
        (drone_id, token, lease_until, time.time(), row["id"]),
    )
    copied = {name: row[name] for name in ClaimedJob.__slots__ if name not in ("attempt", "token")}
    return ClaimedJob(**copied, attempt=row["attempts"] + 1, token=token)


def renew(connection: sqlite3.Connection, claim: ClaimedJob, lease_until: float) -> bool:
    """Renew a lease; return False if the job belongs to another drone now."""
    return _if_claimed(connection, claim, "lease_until = ?", lease_until)


def finish(connection: sqlite3.Connection, claim: ClaimedJob, exit_code: int, message: str) -> bool:
    """Record the end of a job; return False, and change nothing, if it belongs to another drone now."""
    state = "failed" if exit_code else "done"
    ended = "state = ?, exit_code = ?, message = ?, ended_at = ?, token = ''"
    return _if_claimed(connection, claim, ended, state, exit_code, message, time.time())


def give_back(connection: sqlite3.Connection, claim: ClaimedJob, message: str) -> bool:
    """Put a job back to idle without counting it as lost."""
    idle = "state = 'idle', message = ?, drone_id = '', token = '', started_at = 0"
    return _if_claimed(connection, claim, idle, message)


def _if_claimed(connection: sqlite3.Connection, claim: ClaimedJob, assignments: str, *values: object) -> bool:
    changed = connection.execute(
        f"UPDATE job SET {assignments} WHERE id = ? AND token = ? AND state = 'running'",
        (*values, claim.id, claim.token),
    )
    return changed.rowcount == 1


def expire(connection: sqlite3.Connection, max_lost: int) -> int:
    """Put jobs with expired leases back to idle, or hold them if they were lost often; return how many."""
    now = lease_clock()
    gone = "state = 'running' AND (lease_until < :now OR lease_until > :latest)"
    bounds = {"now": now, "latest": now + LONGEST_LEASE_S, "max_lost": max_lost}
    if connection.execute(f"SELECT 1 FROM job WHERE {gone} LIMIT 1", bounds).fetchone() is None:
        return 0
    return connection.execute(
        "UPDATE job SET state = CASE WHEN lost + 1 >= :max_lost THEN 'held' ELSE 'idle' END,"
        " message = 'lost with drone ' || drone_id, lost = lost + 1, drone_id = '', token = '', started_at = 0"
        f" WHERE {gone}",
        bounds,
    ).rowcount


# ----------------------------------------------------------------------------------------------------------- drones


def publish(connection: sqlite3.Connection, **slot: str | float) -> None:
    """Write the row of a drone, with these columns of table ``slot``."""
    row = {**slot, "heard": lease_clock()}
    columns = f"({', '.join(row)}) VALUES ({', '.join(f':{name}' for name in row)})"
    connection.execute(f"INSERT OR REPLACE INTO slot {columns}", row)


def remove_slot(connection: sqlite3.Connection, drone_id: str) -> None:
    connection.execute("DELETE FROM slot WHERE drone_id = ?", (drone_id,))
    connection.execute("DELETE FROM drain WHERE drone_id = ?", (drone_id,))


def drain_mode(connection: sqlite3.Connection, drone_id: str) -> str:
    """Return the mode in which the drone was asked to drain; empty if it was not."""
    row = connection.execute("SELECT mode FROM drain WHERE drone_id = ?", (drone_id,)).fetchone()
    return str(row["mode"]) if row else ""


def _fields(value: SlotOffer) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__slots__}
