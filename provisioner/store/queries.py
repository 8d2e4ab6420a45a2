"""Rows of the store as values and back, and the queries that the controller's and the operator's side share.

Imports neither pydantic nor asyncio at the top, so that the reader starts quickly.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from provisioner.estimates import EstimateSamples
from provisioner.model import (
    Breaker,
    CompletedJob,
    DrainMode,
    Drone,
    DroneId,
    DroneState,
    OperatorRequest,
    OwnerClaimBackoff,
    Plan,
    RequestKind,
)
from provisioner.store import EstimateReset
from provisioner.store.changes import patience_of, serial_of

T = TypeVar("T")

DRONE_FIELDS = tuple(each.name for each in fields(Drone))
COMPLETED_JOB_FIELDS = tuple(each.name for each in fields(CompletedJob))
SELECT_DRONES = (
    "SELECT "
    + ", ".join(f"d.{name}" if name != "heard_at" else "coalesce(h.heard_at, 0.0)" for name in DRONE_FIELDS)
    + " FROM drones d LEFT JOIN heartbeats h ON h.drone_id = d.id"
)
SELECT_LIVE_DRONES = SELECT_DRONES + " WHERE d.live = 1 ORDER BY d.requested_at, d.serial, d.id"

_STATE = DRONE_FIELDS.index("state")
_LEAVING_STATE = DRONE_FIELDS.index("leaving")
_DRAIN_MODE = DRONE_FIELDS.index("drain_mode")
_STATES: dict[str | None, DroneState | None] = {state.value: state for state in DroneState} | {None: None}


@cache
def _insertion(table: str, columns: tuple[str, ...], keys: tuple[str, ...], keep: bool) -> str:
    names = ", ".join(f'"{name}"' for name in columns)
    values = ", ".join(f":{name}" for name in columns)
    update = ", ".join(f'"{name}" = excluded."{name}"' for name in columns if name not in keys)
    conflict = f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {update}" if keys else ""
    return f"INSERT INTO {table} ({names}) VALUES ({values}) {'ON CONFLICT DO NOTHING' if keep else conflict}"


def insert(
    sql: sqlite3.Connection, table: str, *rows: Mapping[str, object], keys: tuple[str, ...] = (), keep: bool = False
) -> None:
    """Insert rows, which all have the same columns.

    ``keys``: columns by which a row replaces one on record. ``keep``: what is on record stays as it is.
    """
    if rows:
        sql.executemany(_insertion(table, tuple(rows[0]), keys, keep), rows)


def drone_row(drone: Drone) -> dict[str, object]:
    """Return the row of ``drone`` in table ``drones``; ``heard_at``, which changes all the time, has its own table."""
    row: dict[str, object] = {name: getattr(drone, name) for name in DRONE_FIELDS if name != "heard_at"}
    row["state"] = drone.state.value
    row["leaving"] = drone.leaving.value if drone.leaving else None
    row["drain_mode"] = drone.drain_mode.value
    row["site"] = drone.site
    row["serial"] = serial_of(drone.id)
    row["live"] = not drone.state.ended
    return row


def drones_of(rows: Iterable[Sequence[Any]]) -> list[Drone]:
    """Return the drones of rows with the columns :data:`DRONE_FIELDS`."""
    drones = []
    for row in rows:
        values = list(row)
        values[_STATE] = _STATES[values[_STATE]]
        values[_LEAVING_STATE] = _STATES[values[_LEAVING_STATE]]
        values[_DRAIN_MODE] = DrainMode(values[_DRAIN_MODE])
        drones.append(Drone(*values))
    return drones


def read_meta(sql: sqlite3.Connection) -> dict[str, str]:
    """Return the keys and values of the store itself."""
    return dict(sql.execute("SELECT key, value FROM meta").fetchall())


def write_meta(sql: sqlite3.Connection, **values: str) -> None:
    insert(sql, "meta", *({"key": key, "value": value} for key, value in values.items()), keys=("key",))


def read_breakers(sql: sqlite3.Connection) -> dict[str, Breaker]:
    """Return the circuit breakers by scope."""
    from provisioner import serialization

    rows = sql.execute("SELECT scope, body FROM breakers ORDER BY scope")
    return {scope: serialization.from_json(Breaker, body) for scope, body in rows}


def read_patience(sql: sqlite3.Connection) -> Mapping[str, OwnerClaimBackoff]:
    """Return the back-off of owners' claims from the newest plan, by site; nothing if that plan cannot be decoded."""
    row = sql.execute("SELECT body FROM plans ORDER BY seq DESC LIMIT 1").fetchone()
    try:
        return patience_of(decompress(Plan, row[0])) if row else {}
    except (ValueError, zlib.error):
        return {}


def read_requests(sql: sqlite3.Connection) -> tuple[OperatorRequest, ...]:
    """Return the requests that no plan has taken up, oldest first."""
    columns = "id, at, kind, drone_ids, reason, by, mode"
    rows = sql.execute(f"SELECT {columns} FROM requests WHERE done_tick IS NULL ORDER BY id")
    return tuple(
        OperatorRequest(
            number, at, RequestKind(kind), tuple(map(DroneId, json.loads(drone_ids))), reason, by, DrainMode(mode)
        )
        for number, at, kind, drone_ids, reason, by, mode in rows
    )


def read_estimate_resets(sql: sqlite3.Connection) -> tuple[EstimateReset, ...]:
    """Return the requests to forget estimates, oldest first."""
    rows = sql.execute("SELECT id, at, what, reason, by FROM estimate_resets ORDER BY id")
    return tuple(EstimateReset(*row) for row in rows)


def read_estimates(sql: sqlite3.Connection, path: Path) -> EstimateSamples | None:
    """Return the recorded samples; None if there are none. Raises :class:`EstimatesUnreadableError`."""
    row = sql.execute("SELECT format, body FROM estimates").fetchone()
    if row is None:
        return None
    from provisioner.store.documents import unpack_estimates

    return unpack_estimates(path, *row)


def decompress(kind: type[T], body: bytes) -> T:
    """Return the value of a compressed JSON document."""
    from provisioner import serialization

    return serialization.from_json(kind, zlib.decompress(body))
