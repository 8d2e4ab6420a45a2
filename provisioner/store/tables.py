"""The tables of the store as values and back, and the queries that the controller's and the operator's side share.

Imports neither pydantic nor asyncio at the top, so that the reader starts quickly.
"""

from __future__ import annotations

import json
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from math import inf
from operator import attrgetter
from typing import Any, Generic

from provisioner import model, reasons
from provisioner.estimates import EstimateSamples
from provisioner.job_filter import JobFilter
from provisioner.model import (
    Breaker,
    CompletedJob,
    DrainMode,
    Drone,
    DroneId,
    DroneState,
    JobClass,
    OperatorRequest,
    Plan,
    Scope,
    TypeKey,
)
from provisioner.processes import boot_id
from provisioner.store import (
    MAX_DELAYS,
    EstimateReset,
    EstimatesUnreadableError,
    Event,
    PastClass,
    Transition,
    serial_of,
)
from provisioner.store.database import StoreConnection, batches
from provisioner.usage import RecordedRuns, UseSum, held_milli
from provisioner.values import T, frozen

DAY_S = 86400.0
CLOCK_STEP_S = 30.0
"""Wall and monotonic clock that are further apart show that the wall clock was set."""
MOMENT_MAX_S = 600.0
"""Longest time from the begin of a tick to its record."""


@cache
def _insertion(table: str, columns: tuple[str, ...], keys: tuple[str, ...], keep: bool) -> str:
    names = ", ".join(f'"{name}"' for name in columns)
    values = ", ".join(f":{name}" for name in columns)
    update = ", ".join(f'"{name}" = excluded."{name}"' for name in columns if name not in keys)
    conflict = f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {update}" if keys else ""
    return f"INSERT INTO {table} ({names}) VALUES ({values}) {'ON CONFLICT DO NOTHING' if keep else conflict}"


def insert(
    sql: StoreConnection,
    table: str,
    *rows: Mapping[str, object],
    keys: tuple[str, ...] = (),
    keep: bool = False,
) -> int:
    """Insert rows, which all have the same columns. Return the number of rows inserted or replaced.

    ``keys``: columns by which a row replaces one on record. ``keep``: what is on record stays as it
    is.
    """
    return (
        sql.executemany(_insertion(table, tuple(rows[0]), keys, keep), rows).rowcount if rows else 0
    )


def pack(value: object, kind: Any = None, **options: Any) -> bytes:
    """Return ``value`` as compressed JSON; all else as for :func:`provisioner.serialization.to_json`."""
    from provisioner import serialization

    return zlib.compress(serialization.to_json(value, kind, **options).encode(), 1)


def unpack(kind: type[T], body: bytes) -> T:
    """Return the value of compressed JSON."""
    from provisioner import serialization

    return serialization.from_json(kind, zlib.decompress(body))


def _reason_of(text: str) -> reasons.Reason:
    from provisioner import serialization

    kind: Any = reasons.Reason
    reason: reasons.Reason = serialization.from_json(kind, text)
    return reason


def _reason_or_none(text: str | None) -> reasons.Reason | None:
    return _reason_of(text) if text else None


def _job_class(body: bytes) -> JobClass:
    return unpack(JobClass, body)


def _state(text: str | None) -> DroneState | None:
    return DroneState(text) if text else None


@dataclass(frozen=True)
class Table(Generic[T]):
    """A table whose rows are values of a dataclass: each field has a column of its name."""

    name: str
    kind: type[T]
    readers: Mapping[str, Callable[[Any], Any]]
    """By column: reader of what is neither a number nor a text. Members of a StrEnum are written as text."""

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return tuple(each.name for each in fields(self.kind))  # type: ignore[arg-type]

    @cached_property
    def _values(self) -> Callable[[T], tuple[object, ...]]:
        return attrgetter(*self.columns)

    def select(
        self, sql: StoreConnection, rest: str = "", values: Sequence[object] = ()
    ) -> Iterator[T]:
        """Yield the rows of ``SELECT ... FROM table`` with the ``rest`` of the statement as values."""
        names = ", ".join(f'"{name}"' for name in self.columns)
        readers = [(self.columns.index(name), read) for name, read in self.readers.items()]
        for row in sql.execute(f"SELECT {names} FROM {self.name} {rest}", values):
            found = list(row)
            for column, read in readers:
                found[column] = read(found[column])
            yield self.kind(*found)

    def row(self, value: T, **more: object) -> dict[str, object]:
        """Return the row of ``value``, in which further columns replace, or are added to, those of its fields."""
        return dict(zip(self.columns, self._values(value), strict=True)) | more


DRONES = Table(
    "drones",
    Drone,
    {
        "state": DroneState,
        "leaving": _state,
        "drain_mode": DrainMode,
        "job_filter": JobFilter.parse,
    },
)
TRANSITIONS = Table(
    "transitions", Transition, {"was": _state, "state": DroneState, "reason": _reason_of}
)
COMPLETED_JOBS = Table(
    "completed_jobs", CompletedJob, {"unfinished": bool, "failed": bool, "splits": bool}
)
EVENTS = Table("events", Event, {"fields": json.loads})
PAST_CLASSES = Table("past_classes", PastClass, {"job": _job_class, "reason": _reason_or_none})
ESTIMATE_RESETS = Table("estimate_resets", EstimateReset, {})
REQUESTS = Table(
    "requests",
    OperatorRequest,
    {
        "kind": model.RequestKind,
        "drone_ids": lambda text: tuple(map(DroneId, json.loads(text))),
        "mode": DrainMode,
    },
)


BEGAN = "coalesce(nullif(started_at, 0), joined_at)"


def add_run(sql: StoreConnection, run: CompletedJob) -> bool:
    """Insert an ended run. Return False if it is on record, though perhaps by another offset of its queue's clock.

    A controller estimates the offset anew when it starts. It moves the submission and the end of a
    run together.
    """
    near = "job_id = ? AND ended_at BETWEEN ? AND ? AND abs(ended_at - submitted_at - ?) < 1"
    values = (
        run.job_id,
        run.ended_at - 300.0,
        run.ended_at + 300.0,
        run.ended_at - run.submitted_at,
    )
    if sql.execute(f"SELECT 1 FROM completed_jobs WHERE {near}", values).fetchone():
        return False
    return insert(sql, "completed_jobs", COMPLETED_JOBS.row(run), keep=True) > 0


def add_held(
    sql: StoreConnection, runs: Iterable[tuple[model.CompletedJob, model.DroneType | None]]
) -> None:
    """Record the GPUs that new runs held, as the types of their drones are now."""
    sql.executemany(
        "UPDATE completed_jobs SET held_milli = ? WHERE ended_at = ? AND job_id = ?",
        [
            (held_milli(run.gpu_milli, run.vram_mib, run.splits, kind), run.ended_at, run.job_id)
            for run, kind in runs
        ],
    )


_SINGLE = """
    SELECT drone_id, kind, use_step, vram_step, ended_at, jobs, scale * counted_s AS ran_s,
        scale * counted_s * used_milli AS used, used_milli, peak_vram_mib,
        CASE WHEN jobs = 1 THEN energy_j END AS energy_j, CASE WHEN jobs = 1 THEN used_cpu_s END AS used_cpu_s,
        jobs * asked_cpu_s AS asked_cpu_s, CASE WHEN jobs = 1 THEN peak_memory_mib END AS peak_memory_mib
    FROM (
        SELECT *, CASE WHEN ended_at < :edge THEN 1 ELSE 0 END AS jobs,
            CASE WHEN ended_at < :edge THEN min(until_at, :until) - max(begun_at, :since)
                ELSE begun_at - :since END AS counted_s
        FROM counted_runs WHERE until_at > :since AND (ended_at < :edge OR begun_at < :since)
    ) AS counted WHERE """
_OF_DAYS = """
    UNION ALL SELECT NULL, kind, use_step, vram_step, ended_at, jobs, ran_s, used, used_milli, peak_vram_mib, energy_j,
        used_cpu_s, asked_cpu_s, peak_memory_mib
    FROM use_days WHERE day >= :day"""
_SUMS = """
    SELECT drone_id, type, drone_milli, owner, vo, gpu_milli, cpus, memory_mib, vram_mib, splits, disk_mib, capability,
        walltime_s, ended_at, jobs, ran_s, used / 1e3, used_milli, peak_vram_mib, energy_j, used_cpu_s,
        asked_cpu_s, peak_memory_mib
    FROM (
        SELECT {drone} AS drone_id, kind, max(ended_at) AS ended_at, sum(jobs) AS jobs, sum(ran_s) AS ran_s,
            coalesce(sum(used), 0.0) AS used, max(used_milli) AS used_milli, max(peak_vram_mib) AS peak_vram_mib,
            sum(energy_j) AS energy_j, sum(used_cpu_s) AS used_cpu_s, coalesce(sum(asked_cpu_s), 0.0) AS asked_cpu_s,
            max(peak_memory_mib) AS peak_memory_mib
        FROM ({runs}) AS runs GROUP BY {group}kind, use_step, vram_step
    ) AS sums JOIN run_kinds USING (kind)"""
_HAD = f"min(coalesce(nullif(ended_at, 0), :until), :until) - max({BEGAN}, :since)"
_LIVES = f"""
    SELECT type, sum(gpu_milli / 1e3 * max(0, {_HAD})) FROM drones
    WHERE gpu_milli > 0 AND service = '' AND {BEGAN} > 0 AND """
_RUNNING_DRONES = f"""
    SELECT id, {BEGAN}, gpu_milli * ({_HAD}) FROM drones
    WHERE live = 1 AND gpu_milli > 0 AND {BEGAN} > 0"""

MOST_UNUSED = """
    SELECT drone_id, count(*) OVER () FROM completed_jobs
    WHERE drone_id IS NOT NULL AND ended_at >= ? AND gpu_milli > 0
    GROUP BY drone_id ORDER BY coalesce(sum(run_s * (gpu_milli - used_milli)), 0.0) DESC LIMIT ?"""


@frozen
class SlotWork:
    """The part of a slot on record that its drone does not tell."""

    drone_id: DroneId
    begun_at: float = 0.0
    work_gpu_milli: int = 0
    gpus_offline: int = 0


def read_use(
    sql: StoreConnection,
    slots: Iterable[SlotWork],
    since: float,
    until: float,
    of: Iterable[DroneId] | None = None,
    *,
    by_drone: bool = False,
    running: bool = False,
) -> RecordedRuns:
    """Return what runs that ended from ``since`` to ``until`` held and used, and what GPU drones had.

    Of whole days there are sums, which do not tell drones apart: single runs are read of the time
    before the first midnight, ``of`` some drones, and ``by_drone``. Runs that ended in whole days
    and began before ``since`` are read as well, to count less. ``running``: what the jobs hold that
    run in the newest views, as their ``slots`` on record show, which takes a while.
    """
    (oldest,) = sql.execute("SELECT coalesce(min(ended_at), 0) FROM completed_jobs").fetchone()
    day = int(max(since, oldest) // DAY_S) + 1
    (longest_s,) = sql.execute(
        "SELECT coalesce(max(longest_s), 0) FROM use_days WHERE day >= ?", (day,)
    ).fetchone()
    values: dict[str, object] = {"since": since, "until": until, "day": day}
    values |= {"edge": day * DAY_S, "last": max(day * DAY_S, since + longest_s)}
    lives = ["live = 1", "live = 0 AND ended_at >= :since"]  # two ranges of one index
    single = "ended_at >= :since AND ended_at < :last"
    if of is not None:
        by_drone = True
    if by_drone:
        values |= {"edge": inf, "last": inf}
    drone, group = ("drone_id", "drone_id, ") if by_drone else ("NULL", "")
    sums = list[UseSum]()
    had_s = Counter[TypeKey]()
    for some in [None] if of is None else batches([*of]):
        if some is not None:
            named = {f"of{n}": drone_id for n, drone_id in enumerate(some)}
            chosen = f"IN ({', '.join(f':{name}' for name in named)})"
            lives = [f"id {chosen}"]
            single = f"ended_at >= :since AND drone_id {chosen}"
            values |= named
        for each in lives:
            had_s.update(dict(sql.execute(f"{_LIVES}{each} GROUP BY type", values)))
        runs = f"{_SINGLE}{single}{'' if by_drone else _OF_DAYS}"
        query = _SUMS.format(drone=drone, group=group, runs=runs)
        sums += [UseSum._make(row) for row in sql.execute(query, values)]
    running_s = _use_of_running(sql, slots, since, until) if running else 0.0
    return RecordedRuns(sums, had_s, running_s)


def _use_of_running(
    sql: StoreConnection, slots: Iterable[SlotWork], since: float, until: float
) -> float:
    """Return the GPU-seconds that jobs in slots hold, each at most what its drone had."""
    rows = sql.execute(_RUNNING_DRONES, {"since": since, "until": until})
    known = {drone_id: (began, had) for drone_id, began, had in rows}
    held_s = 0.0
    for slot in slots:
        if slot.begun_at and slot.drone_id in known:
            began, had = known[slot.drone_id]
            ran_s = max(0.0, until - max(slot.begun_at, began, since))
            held_s += min(had, slot.work_gpu_milli * ran_s) / 1e3
    return held_s


def start_delays(sql: StoreConnection, since: float) -> list[tuple[TypeKey, float, float]]:
    """Return type, queue time and boot time of the drones that joined after ``since``, the newest last."""
    joined = "FROM drones WHERE joined_at > ? AND started_at > 0"
    newest = f"type, started_at - requested_at, joined_at - started_at, joined_at, id {joined}"
    # two ranges of one index
    rows = f"SELECT {newest} AND live = 1 UNION ALL SELECT {newest} AND live = 0 AND ended_at > ?"
    limited = (
        f"SELECT * FROM ({rows}) AS joined ORDER BY joined_at DESC, id DESC LIMIT {MAX_DELAYS}"
    )
    return [tuple(row[:3]) for row in sql.execute(limited, (since, since, since))][::-1]


def drone_row(drone: Drone) -> dict[str, object]:
    """Return the row of ``drone``, with the columns by which drones are found."""
    return DRONES.row(
        drone,
        site=drone.site,
        serial=serial_of(drone.id),
        live=not drone.state.ended,
        job_filter=str(drone.job_filter),
    )


def live_drones(sql: StoreConnection) -> dict[DroneId, Drone]:
    rows = DRONES.select(sql, "WHERE live = 1 ORDER BY requested_at, serial, id")
    return {drone.id: drone for drone in rows}


def waiting_requests(sql: StoreConnection) -> tuple[OperatorRequest, ...]:
    """Return the requests that no plan has taken up, oldest first."""
    return tuple(REQUESTS.select(sql, "WHERE done_tick IS NULL ORDER BY id"))


def read_meta(sql: StoreConnection) -> dict[str, str]:
    """Return the keys and values of the store itself."""
    return dict(sql.execute("SELECT key, value FROM meta").fetchall())


def write_meta(sql: StoreConnection, **values: str) -> None:
    insert(
        sql, "meta", *({"key": key, "value": value} for key, value in values.items()), keys=("key",)
    )


def moment_of(at: float, drift_s: float) -> str:
    """Return the monotonic time of a moment just past on the controller's clock, as the boot and seconds.

    Empty if the wall clock was set since then, or the controller's clock is not that of this host.
    """
    ago_s = time.time() - drift_s - at
    return f"{boot_id()} {time.monotonic() - ago_s!r}" if abs(ago_s) <= MOMENT_MAX_S else ""


def controller_now(sql: StoreConnection) -> float:
    """Return the time on the controller's clock, to which all times on record belong.

    It is the wall clock, less its lead at the newest tick. Where the monotonic clock contradicts
    that, the wall clock was set since then, and the time is that of the tick plus what has passed
    by the monotonic clock.
    """
    meta = read_meta(sql)
    host = time.time()
    at, (boot, _, begin) = float(meta.get("at", 0.0)), meta.get("moment", "").partition(" ")
    if not at:
        return host
    by_wall = host - float(meta.get("drift_s", 0.0))
    went_on = at + time.monotonic() - float(begin) if boot and boot == boot_id() else by_wall
    return went_on if abs(went_on - by_wall) > CLOCK_STEP_S else by_wall


def read_breakers(sql: StoreConnection) -> dict[Scope, Breaker]:
    """Return the circuit breakers by scope."""
    rows = sql.execute("SELECT scope, body FROM breakers ORDER BY scope")
    return {Scope.parse(scope): unpack(Breaker, body) for scope, body in rows}


def read_newest_plan(sql: StoreConnection) -> Plan:
    """Return the newest plan; an empty one if there is none, or it cannot be decoded."""
    row = sql.execute("SELECT body FROM plans ORDER BY seq DESC LIMIT 1").fetchone()
    try:
        return unpack(Plan, row[0]) if row else Plan(0, 0.0)
    except (ValueError, zlib.error):
        return Plan(0, 0.0)


def read_estimates(sql: StoreConnection, path: object) -> EstimateSamples | None:
    """Return the recorded samples; None if there are none. Raises :class:`EstimatesUnreadableError`."""
    row = sql.execute("SELECT body FROM estimates").fetchone()
    try:
        return unpack(EstimateSamples, row[0]) if row else None
    except (ValueError, zlib.error, TypeError) as error:
        raise EstimatesUnreadableError(
            f"store {path}: the estimates are damaged ({_first_problem(error)}): estimation starts again and replaces "
            "them; to have them back, stop this controller and restore a backup of the store"
        ) from error


def pack_estimates(samples: EstimateSamples) -> bytes:
    """Return the document of ``samples``.

    Raises ``ValueError`` for values that could not be read again: better now, while the document
    before it exists, than at the next start.
    """
    body = pack(samples)
    try:
        unpack(EstimateSamples, body)
    except ValueError as error:
        raise ValueError(f"estimates, {_first_problem(error)}") from error
    return body


def _first_problem(error: Exception) -> str:
    errors = getattr(error, "errors", None)  # of pydantic, which is not imported here
    if errors is None:
        return str(error)
    first = errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'document'}: {first['msg']}"[:200]
