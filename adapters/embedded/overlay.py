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

from pydantic import Field

from adapters.embedded import queue
from adapters.embedded.queue import EmbeddedJob, JobState
from adapters.shared.inference import announced_models
from adapters.shared.starts import rejected
from provisioner import model
from provisioner.config.models import ConfigSection
from provisioner.config.units import ConfigPath, Duration, PositiveDuration
from provisioner.formatting import spans
from provisioner.gpu_models import canonical
from provisioner.interfaces import UnavailableError
from provisioner.model import (
    Bootstrap,
    CompletedJob,
    DrainMode,
    DroneId,
    DroneType,
    JobClass,
    OrderResult,
    OrderResults,
    OverlayView,
    Slot,
)

_PACKAGES = Path(__file__).resolve().parents[2]
_RANGES = 8
"""Ranges of job ids reported per class; the rest is `...`."""
_REPORT_FINISHED_S = 900.0
"""A finished job is reported for this long."""
_MAX_REPORTED_JOBS = 10_000
_SLOT_LEASES = 10
_SLOT_LEAST_S = 60.0
"""A slot without a sign of life for ten leases, and this long, is forgotten."""
T = TypeVar("T")


class EmbeddedOverlayConfig(ConfigSection):
    """Options of the ``embedded`` overlay."""

    path: ConfigPath = Field(examples=["var/queue.db"])
    """The queue: a SQLite file on a local disk of this host. Made if missing."""
    lease: Duration = Field(30.0, ge=1.0, le=queue.LONGEST_LEASE_S)
    """After this time without a sign of life of its drone a job waits again. From 1s to 10min."""
    poll: PositiveDuration = 0.5
    """Time between two looks for jobs of a drone with room."""
    max_lost: int = Field(10, ge=1)
    """A job whose drone was lost under it this often is held instead of run again."""
    keep: Duration = 30 * 86400.0
    """Time for which finished jobs stay in the queue file."""

    def runs_jobs_of_others(self) -> bool:
        """Return True if another account may write the queue file, and so submit."""
        try:
            return bool(self.path.stat().st_mode & 0o022)
        except OSError:
            return False


class EmbeddedOverlay:
    """A queue in a SQLite file. Each call opens it in a thread and waits at most seconds for a busy one.

    It takes jobs itself: the command line then offers ``submit`` and ``jobs``.
    """

    Config = EmbeddedOverlayConfig

    def __init__(
        self,
        config: EmbeddedOverlayConfig,
        controller: str,
    ) -> None:
        self._config = config
        self._path = config.path.absolute()

    async def __aenter__(self) -> Self:
        """Create the queue file if there is none; if that fails, the first poll tells why."""
        with contextlib.suppress(OSError, sqlite3.Error):
            await asyncio.to_thread(queue.create, self._path)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Do nothing: no connection is kept."""

    async def poll(self, types: Sequence[DroneType]) -> OverlayView:
        """Return classes and slots of one moment. Raises :class:`UnavailableError` if the queue file is missing."""
        return await asyncio.to_thread(
            self._with_queue, lambda connection: self._view(connection, types)
        )

    async def drain(
        self,
        drone_ids: Sequence[DroneId],
        mode: DrainMode,
        reason: str,
    ) -> OrderResults:
        """Record the request; a drone that has not joined yet finds it when it does."""
        return await asyncio.to_thread(
            self._with_queue,
            lambda connection: [_drain(connection, drone_id, mode) for drone_id in drone_ids],
        )

    async def bootstrap(self, order: model.StartOrder) -> Bootstrap:
        config = self._config
        python = shlex.quote(sys.executable)
        script = f"#!/bin/sh\nexec {python} -S -P -m adapters.embedded.worker\n"
        env = {
            "PYTHONPATH": str(_PACKAGES),
            "EMBEDDED_QUEUE": str(self._path),
            "EMBEDDED_LEASE_S": repr(config.lease),
            "EMBEDDED_POLL_S": repr(config.poll),
            "EMBEDDED_MAX_LOST": str(config.max_lost),
            "EMBEDDED_GPU_MODEL": order.type.gpu_model,
            "EMBEDDED_CAPABILITY": str(order.type.capability),
        }
        return Bootstrap(script.encode(), env)

    async def submit(self, argv: Sequence[str], *, count: int = 1, **request: Any) -> Sequence[int]:
        return await asyncio.to_thread(queue.submit, self._path, argv, count=count, **request)

    async def jobs(
        self,
        *,
        states: Sequence[str] = (),
        ids: Sequence[int] = (),
        limit: int = 1000,
    ) -> Sequence[EmbeddedJob]:
        wanted = [JobState(state) for state in states]
        return await asyncio.to_thread(queue.jobs, self._path, states=wanted, ids=ids, limit=limit)

    async def remove(self, ids: Sequence[int]) -> int:
        return await asyncio.to_thread(queue.remove, self._path, ids)

    def _with_queue(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            with contextlib.closing(queue.connect(self._path)) as connection:
                queue.expire(connection, self._config.max_lost)
                with queue.writing(connection):
                    return work(connection)
        except sqlite3.Error as error:
            raise UnavailableError(f"the queue {self._path}: {error}") from error

    def _view(
        self,
        connection: sqlite3.Connection,
        types: Sequence[DroneType],
    ) -> OverlayView:
        now = time.time()
        clock = queue.lease_clock()
        silent_s = max(_SLOT_LEAST_S, _SLOT_LEASES * self._config.lease)
        connection.execute(
            "DELETE FROM drone WHERE heard NOT BETWEEN ? AND ? OR heard IS NULL AND asked_at < ?",
            (clock - silent_s, clock + 1, now - 86400.0),
        )
        connection.execute(
            "DELETE FROM job WHERE ended_at > 0 AND ended_at < ?", (now - self._config.keep,)
        )
        return OverlayView(
            taken_at=now,
            classes=tuple(_classes(connection, types)),
            slots=tuple(_slots(connection, now)),
            negotiated_at=now,
            completions=tuple(_completions(connection, now - _REPORT_FINISHED_S)),
        )


def _drain(
    connection: sqlite3.Connection,
    drone_id: DroneId,
    mode: DrainMode,
) -> OrderResult:
    if mode is DrainMode.RESUME:
        taken_back = connection.execute(
            "UPDATE drone SET drain = '' WHERE drone_id = ? AND slot IS NOT NULL", (drone_id,)
        )
        if not taken_back.rowcount:
            return rejected(drone_id, model.FaultKind.DRONE, "it is not in the pool any more")
    elif mode is not DrainMode.NONE:
        connection.execute(
            "INSERT INTO drone (drone_id, drain, asked_at) VALUES (?, ?, ?)"
            " ON CONFLICT (drone_id) DO UPDATE SET drain = excluded.drain, asked_at = excluded.asked_at",
            (drone_id, mode.value, time.time()),
        )
    return OrderResult(drone_id, model.OrderOutcome.OK)


MODELS_VARIABLE = "WANTS_INFERENCE"
"""Environment variable of a job with the models that it announces to call."""
_SIZE_FIELDS = ("gpu_milli", "cpus", "memory_mib", "disk_mib", "vram_mib", "capability")
_REQUEST = ("owner", "priority", *_SIZE_FIELDS, "gpu_model", "walltime_s")
_CLASSES = f"""
SELECT {", ".join(_REQUEST)}, gpu_optional, json_extract(env, '$.{MODELS_VARIABLE}') AS inference,
    sum(state = 'idle') AS waiting,
    sum(state = 'running') AS running,
    sum(state = 'held') AS held,
    coalesce(min(CASE WHEN state = 'idle' THEN submitted_at END), 0) AS oldest_at,
    coalesce(group_concat(CASE WHEN state = 'idle' THEN id END), '') AS ids
FROM job WHERE state IN ('idle', 'running', 'held')
GROUP BY {", ".join(_REQUEST)}, gpu_optional, inference
"""


def _classes(connection: sqlite3.Connection, types: Sequence[DroneType]) -> Iterator[JobClass]:
    for row in map(dict, connection.execute(_CLASSES)):
        request = tuple(row[name] for name in _REQUEST)
        wanted = row.pop("gpu_model")
        ids = spans(map(int, filter(None, row.pop("ids").split(","))))
        optional = bool(row.pop("gpu_optional"))
        request += ("optional",) if optional else ()
        told = row.pop("inference")
        request += (told,) if told else ()
        found = JobClass(
            **row,
            id=hashlib.blake2s(repr(request).encode(), digest_size=4).hexdigest(),
            inference=announced_models(told),
            refuses={
                kind.key: model.UnmetRequirement("gpu_model", wanted, kind.gpu_model or "unknown")
                for kind in types
                if canonical(wanted) not in ("", canonical(kind.gpu_model)) and not optional
            },
            job_ids=", ".join(ids[:_RANGES] + ["..."] * (len(ids) > _RANGES)),
        )
        yield found.with_optional_gpu() if optional else found


# A job counts by its CPUs where it has no GPU. There are no checkpoints: all work since its start is
# at stake.
_SLOTS = """
WITH work AS (
    SELECT *, CASE WHEN used_gpu_milli THEN used_gpu_milli ELSE 1000 * cpus END AS milli
    FROM job WHERE state = 'running'
), sums AS (
    SELECT drone_id, json_object(
        'job_ids', substr(group_concat(id, ', '), 1, 2000), 'work_gpu_milli', sum(milli),
        'optional_jobs', sum(gpu_optional), 'work_at', sum(milli * started_at) / sum(milli),
        'begun_at', min(started_at), 'owner', CASE WHEN count(DISTINCT owner) = 1 THEN min(owner) ELSE '' END,
        'job_gpu_milli', (count(*) = 1) * min(used_gpu_milli), 'job_cpus', (count(*) = 1) * min(cpus),
        'job_memory_mib', (count(*) = 1) * min(memory_mib)
    ) AS fields FROM work GROUP BY drone_id
)
SELECT drone_id, heard, json_patch(slot, coalesce(fields, '{}')) AS slot
FROM drone LEFT JOIN sums USING (drone_id) WHERE slot IS NOT NULL ORDER BY drone_id
"""


def _slots(connection: sqlite3.Connection, now: float) -> Iterator[Slot]:
    clock = queue.lease_clock()
    for row in connection.execute(_SLOTS):
        slot = json.loads(row["slot"])
        yield Slot(
            drone_id=DroneId(row["drone_id"]),
            state=model.SlotState(slot.pop("state")),
            heard_at=now - max(0.0, clock - row["heard"]),
            **slot,
        )


def _completions(connection: sqlite3.Connection, since: float) -> Iterator[CompletedJob]:
    """Yield finished jobs, the newest first. One that failed by itself is done as well: it is not run again."""
    done = "SELECT * FROM job WHERE ended_at > 0 AND ended_at >= ? ORDER BY ended_at DESC LIMIT ?"
    for row in connection.execute(done, (since, _MAX_REPORTED_JOBS)):
        yield CompletedJob(
            **{
                name: row[name]
                for name in ("owner", "walltime_s", *_SIZE_FIELDS, "submitted_at", "ended_at")
            },
            job_id=str(row["id"]),
            run_s=max(0.0, row["ended_at"] - row["started_at"]),
            drone_id=DroneId(row["drone_id"]),
        )
