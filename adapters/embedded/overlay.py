"""The ``embedded`` overlay: the controller's side of the queue."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import shlex
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from adapters.embedded import queue, table
from adapters.embedded.queue import EmbeddedJob, JobState
from adapters.embedded.table import LONGEST_LEASE_S
from provisioner.config.units import ConfigPath, Duration, PositiveDuration
from provisioner.interfaces import UnavailableError
from provisioner.model import (
    Bootstrap,
    CompletedJob,
    DrainMode,
    DroneId,
    DroneType,
    Fault,
    FaultKind,
    JobClass,
    OrderOutcome,
    OrderResult,
    OverlayView,
    Slot,
    SlotState,
    StartOrder,
    TypeKey,
    UnmetRequirement,
)

_PACKAGES = Path(__file__).resolve().parents[2]
_RANGES = 8
"""Ranges of job ids reported per class; the rest is `...`."""
_PRUNE_EVERY_S = 600.0
_REPORT_FINISHED_S = 900.0
"""A finished job is reported for this long."""
_MAX_REPORTED_JOBS = 10_000
_SLOT_LEASES = 10
_SLOT_LEAST_S = 60.0
"""A slot without a sign of life for ten leases, and this long, is forgotten."""
T = TypeVar("T")


class EmbeddedOverlayConfig(BaseModel):
    """Options of the ``embedded`` overlay."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: ConfigPath = Field(
        description="The queue: a SQLite file on a local disk of this host. Made if missing.", examples=["var/queue.db"]
    )
    negotiation: Duration = Field(
        default=0.0,
        description="Jobs are matched at multiples of this span only, as in a pool that negotiates; 0s: at once.",
    )
    lease: PositiveDuration = Field(
        default=30.0,
        description="How long a job belongs to a drone that gives no sign of life; then it waits again. At most 10min.",
    )
    poll: PositiveDuration = Field(default=0.5, description="How often a drone with room looks for jobs.")
    max_lost: int = Field(
        default=10, ge=1, description="A job whose drone was lost under it this often is held instead of run again."
    )
    keep: Duration = Field(default=30 * 86400.0, description="How long finished jobs stay in the queue file.")
    check: tuple[str, ...] = Field(
        default=(),
        description="Command with arguments that a drone runs before it takes jobs; another status than 0 ends it.",
        examples=[["nvidia-smi", "-L"]],
    )
    check_deadline: PositiveDuration = Field(default=60.0, description="Longest time for `check`; then it has hung.")

    @field_validator("lease")
    @classmethod
    def _not_too_long(cls, lease_s: float) -> float:
        if not 1.0 <= lease_s <= LONGEST_LEASE_S:
            raise ValueError(f"a lease is between 1s and {LONGEST_LEASE_S / 60:g}min")
        return lease_s


class EmbeddedOverlay:
    """A queue in a SQLite file. Each call opens it in a thread and waits at most seconds for a busy one.

    It takes jobs itself: the command line then offers ``submit`` and ``jobs``.
    """

    Config = EmbeddedOverlayConfig

    def __init__(self, config: EmbeddedOverlayConfig, controller: str) -> None:
        self._config = config
        self._path = config.path.absolute()
        self._prune_at = 0.0

    async def __aenter__(self) -> Self:
        """Create the queue file if there is none; if that fails, the first poll tells why."""
        with contextlib.suppress(OSError, sqlite3.Error):
            await asyncio.to_thread(table.create, self._path)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Do nothing: no connection is kept."""

    async def poll(self, types: Sequence[DroneType]) -> OverlayView:
        """Return classes and slots of one moment. Raises :class:`UnavailableError` if the queue file is missing."""
        return await self._with_queue(lambda connection: self._view(connection, types))

    async def drain(self, drone_ids: Sequence[DroneId], mode: DrainMode, reason: str) -> Sequence[OrderResult]:
        """Record the request; a drone that has not joined yet finds it when it does."""
        return await self._with_queue(lambda connection: self._drain(connection, drone_ids, mode, reason))

    async def bootstrap(self, order: StartOrder) -> Bootstrap:
        config, python = self._config, shlex.quote(sys.executable)
        script = f"#!/bin/sh\nexec {python} -S -P -m adapters.embedded.worker\n"
        env = {
            "PYTHONPATH": str(_PACKAGES),
            "EMBEDDED_QUEUE": str(self._path),
            "EMBEDDED_LEASE_S": repr(config.lease),
            "EMBEDDED_POLL_S": repr(config.poll),
            "EMBEDDED_NEGOTIATION_S": repr(config.negotiation),
            "EMBEDDED_MAX_LOST": str(config.max_lost),
            "EMBEDDED_CHECK": json.dumps(config.check),
            "EMBEDDED_CHECK_DEADLINE_S": repr(config.check_deadline),
            "EMBEDDED_GPU_MODEL": order.type.gpu_model,
            "EMBEDDED_CAPABILITY": str(order.type.capability),
            "EMBEDDED_AVOIDS": order.avoids,
        }
        return Bootstrap(script.encode(), env)

    # --------------------------------------------------------------------------------------------- as a Queue

    async def submit(self, argv: Sequence[str], *, count: int = 1, **request: Any) -> Sequence[int]:
        return await asyncio.to_thread(queue.submit, self._path, argv, count=count, **request)

    async def jobs(
        self, *, states: Sequence[str] = (), ids: Sequence[int] = (), limit: int = 1000
    ) -> Sequence[EmbeddedJob]:
        wanted = [JobState(state) for state in states]
        return await asyncio.to_thread(queue.jobs, self._path, states=wanted, ids=ids, limit=limit)

    async def remove(self, ids: Sequence[int]) -> int:
        return await asyncio.to_thread(queue.remove, self._path, ids)

    # ------------------------------------------------------------------------------------------------ reading

    async def _with_queue(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.to_thread(self._open, work)

    def _open(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            with contextlib.closing(table.connect(self._path)) as connection:
                return work(connection)
        except sqlite3.Error as error:
            raise UnavailableError(f"the queue {self._path}: {error}") from error

    def _view(self, connection: sqlite3.Connection, types: Sequence[DroneType]) -> OverlayView:
        self._tidy(connection)
        now, period_s = time.time(), self._config.negotiation
        negotiated_at = now // period_s * period_s if period_s else now
        connection.execute("BEGIN")  # jobs and slots of one moment
        classes = tuple(_classes(connection, types, negotiated_at if period_s else float("inf")))
        slots = tuple(_slots(connection, now))
        done = tuple(_completions(connection, now - _REPORT_FINISHED_S))
        connection.execute("COMMIT")
        return OverlayView(taken_at=now, classes=classes, slots=slots, negotiated_at=negotiated_at, completions=done)

    def _tidy(self, connection: sqlite3.Connection) -> None:
        """Free the jobs of lost drones, forget silent slots and, now and then, jobs that finished long ago."""
        now = table.lease_clock()
        silent_s = max(_SLOT_LEAST_S, _SLOT_LEASES * self._config.lease)
        with table.writing(connection):
            table.expire(connection, self._config.max_lost)
            connection.execute("DELETE FROM slot WHERE heard < ? OR heard > ?", (now - silent_s, now + 1))
            if now >= self._prune_at:
                over = time.time() - self._config.keep
                connection.execute("DELETE FROM job WHERE state IN ('done', 'failed') AND ended_at < ?", (over,))
                connection.execute("DELETE FROM drain WHERE at < ?", (time.time() - 86400.0,))
                self._prune_at = now + _PRUNE_EVERY_S

    def _drain(
        self, connection: sqlite3.Connection, drone_ids: Sequence[DroneId], mode: DrainMode, reason: str
    ) -> list[OrderResult]:
        with table.writing(connection):
            return [_drain_one(connection, drone_id, mode, reason) for drone_id in drone_ids]


def _drain_one(connection: sqlite3.Connection, drone_id: DroneId, mode: DrainMode, reason: str) -> OrderResult:
    match mode:
        case DrainMode.NONE:
            pass
        case DrainMode.RESUME:
            if connection.execute("SELECT 1 FROM slot WHERE drone_id = ?", (drone_id,)).fetchone() is None:
                fault = Fault(FaultKind.DRONE, "it is not in the pool any more", time.time())
                return OrderResult(drone_id, OrderOutcome.REJECTED, fault=fault)
            connection.execute("DELETE FROM drain WHERE drone_id = ?", (drone_id,))
        case DrainMode.PEACEFUL | DrainMode.GRACEFUL | DrainMode.FAST:
            connection.execute(
                "INSERT OR REPLACE INTO drain (drone_id, mode, reason, at) VALUES (?, ?, ?, ?)",
                (drone_id, mode.value, reason[:1000], time.time()),
            )
    return OrderResult(drone_id, OrderOutcome.OK)


# ---------------------------------------------------------------------------------------------------------- classes

_SLOT_SIZE_FIELDS = ("gpu_milli", "cpus", "memory_mib", "disk_mib", "vram_mib", "capability")
_REQUEST = ("owner", "priority", *_SLOT_SIZE_FIELDS, "gpu_model", "walltime_s")
_COLUMNS = ", ".join(_REQUEST)
_COUNTS = ("waiting", "fresh", "running", "held", "oldest_at")

_CLASSES = f"""
SELECT {_COLUMNS},
    sum(state = 'idle' AND submitted_at <= :negotiated_at) AS waiting,
    sum(state = 'idle' AND submitted_at > :negotiated_at) AS fresh,
    sum(state = 'running') AS running,
    sum(state = 'held') AS held,
    coalesce(min(CASE WHEN state = 'idle' THEN submitted_at END), 0) AS oldest_at
FROM job WHERE state IN ('idle', 'running', 'held') GROUP BY {_COLUMNS}
"""

# Consecutive ids of one class differ from their rank in it by the same number: that number names the range.
_ID_RANGES = f"""
SELECT {_COLUMNS}, first, last, ranges FROM (
    SELECT {_COLUMNS}, min(id) AS first, max(id) AS last,
        row_number() OVER (PARTITION BY {_COLUMNS} ORDER BY min(id)) AS place,
        count(*) OVER (PARTITION BY {_COLUMNS}) AS ranges
    FROM (SELECT {_COLUMNS}, id, id - row_number() OVER (PARTITION BY {_COLUMNS} ORDER BY id) AS run
          FROM job WHERE state = 'idle')
    GROUP BY {_COLUMNS}, run
) WHERE place <= {_RANGES} ORDER BY first
"""


def _classes(connection: sqlite3.Connection, types: Sequence[DroneType], negotiated_at: float) -> Iterator[JobClass]:
    ranges: dict[tuple[object, ...], list[str]] = {}
    for row in connection.execute(_ID_RANGES):
        known = ranges.setdefault(_key(row), [])
        known.append(str(row["first"]) if row["first"] == row["last"] else f"{row['first']}-{row['last']}")
        if len(known) == _RANGES < row["ranges"]:
            known.append("...")
    for row in connection.execute(_CLASSES, {"negotiated_at": negotiated_at}):
        yield JobClass(
            **{name: row[name] for name in (*_REQUEST, *_COUNTS) if name != "gpu_model"},
            id=hashlib.blake2s(repr(_key(row)).encode(), digest_size=4).hexdigest(),
            invalid=_invalid(row),
            refuses=_refusals(row["gpu_model"], types),
            job_ids=", ".join(ranges.get(_key(row), [])),
        )


def _invalid(row: sqlite3.Row) -> str:
    """Return why no slot can ever meet a request, else an empty text. Any user may have written the row."""
    if wrong := queue.wrong_gpu_milli(row["gpu_milli"]):
        return wrong
    below = [name for name in ("cpus", "memory_mib", "disk_mib") if row[name] < 0]
    return f"{below[0]} = {row[below[0]]}: cannot be negative" if below else ""


def _key(row: sqlite3.Row) -> tuple[object, ...]:
    return tuple(row)[: len(_REQUEST)]


def _refusals(gpu_model: str, types: Sequence[DroneType]) -> dict[TypeKey, UnmetRequirement]:
    if not gpu_model:
        return {}
    return {
        kind.key: UnmetRequirement("gpu_model", gpu_model, kind.gpu_model or "unknown")
        for kind in types
        if kind.gpu_model != gpu_model
    }


# A job without a GPU counts by its CPUs. There are no checkpoints: all work since its start is at stake.
_WORK = """
SELECT drone_id, substr(group_concat(id, ', '), 1, 2000) AS job_ids, sum(milli) AS work_gpu_milli,
    sum(milli * started_at) / sum(milli) AS work_at, min(started_at) AS begun_at,
    CASE WHEN count(DISTINCT owner) = 1 THEN min(owner) ELSE '' END AS owner,
    (count(*) = 1) * min(gpu_milli) AS job_gpu_milli, (count(*) = 1) * min(cpus) AS job_cpus,
    (count(*) = 1) * min(memory_mib) AS job_memory_mib
FROM (
    SELECT id, drone_id, owner, started_at, gpu_milli, cpus, memory_mib,
        CASE WHEN gpu_milli > 0 THEN min(gpu_milli, 4096000) ELSE 1000 * min(cpus, 4096) END AS milli
    FROM job WHERE state = 'running')
WHERE milli > 0 GROUP BY drone_id
"""


def _slots(connection: sqlite3.Connection, now: float) -> Iterator[Slot]:
    clock = table.lease_clock()
    work = {row["drone_id"]: dict(row) for row in connection.execute(_WORK)}
    for row in map(dict, connection.execute("SELECT * FROM slot ORDER BY drone_id")):
        drone_id, state, heard = row.pop("drone_id"), SlotState(row.pop("state")), row.pop("heard")
        name = f"{row.pop('type')}@{row.pop('site')}#{drone_id}"
        yield Slot(
            **row,
            **work.get(drone_id, {"drone_id": drone_id}),
            state=state,
            heard_at=now - max(0.0, clock - heard),
            name=name,
        )


# A job that failed by itself is done as well: it held its GPU and is not run again. The plus keeps SQLite from
# scanning all finished jobs by their state.
_DONE = """
SELECT * FROM job WHERE ended_at > 0 AND ended_at >= ? AND +state IN ('done', 'failed') ORDER BY ended_at DESC LIMIT ?
"""


def _completions(connection: sqlite3.Connection, since: float) -> Iterator[CompletedJob]:
    """Yield finished jobs, the newest first."""
    for row in connection.execute(_DONE, (since, _MAX_REPORTED_JOBS)):
        yield CompletedJob(
            **{name: row[name] for name in ("owner", "walltime_s", *_SLOT_SIZE_FIELDS)},
            job_id=str(row["id"]),
            ended_at=row["ended_at"],
            submitted_at=row["submitted_at"],
            run_s=max(0.0, row["ended_at"] - row["started_at"]),
            drone_id=DroneId(row["drone_id"]) if row["drone_id"] else None,
        )
