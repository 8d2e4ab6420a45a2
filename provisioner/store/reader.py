"""The operator's side of the store: beside a running controller, after one was killed, without one. Never migrates.

pydantic is imported only where a reason, a plan or a view is decoded: ``provisioner drones`` has to answer quickly.
"""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from provisioner.estimates import EstimateSamples
from provisioner.model import Breaker, CompletedJob, DrainMode, Drone, DroneId, DroneState, Plan, RequestKind, Snapshot
from provisioner.store import (
    Event,
    ForgetRequest,
    Hazard,
    Holder,
    StoreError,
    StoreUnusableError,
    Transition,
    Views,
)
from provisioner.store.file import BUSY_TIMEOUT_S, MIGRATIONS, schema_version, unusable
from provisioner.store.lock import HOLDER, StoreClaim, holder_of, is_alive
from provisioner.store.queries import (
    COMPLETED_JOB_FIELDS,
    FIND_LIMIT,
    SELECT_DRONES,
    SELECT_LIVE_DRONES,
    as_serial,
    as_slot_names,
    decompress,
    drones_of,
    is_plausible_id,
    prefix_end,
    read_breakers,
    read_estimates,
    read_forget_requests,
    read_meta,
    read_patience,
    read_requests,
)

_SELECT_COMPLETED_JOBS = 'SELECT "' + '", "'.join(COMPLETED_JOB_FIELDS) + '" FROM completed_jobs'
_SELECT_TRANSITIONS = "SELECT drone_id, at, was, state, reason, tick, seq FROM transitions"


class SqlReader:
    """:class:`provisioner.store.Reader` of the store at ``path``. Opens it at each call, so it may come and go.

    Raises :class:`StoreError` if there is no store, :class:`StoreUnusableError` if it is damaged or of another schema.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def holder(self) -> Holder | None:
        try:
            return holder_of(self.path)
        except PermissionError:  # the lock is not for everybody: the record says who took it last
            with self._open() as sql:
                row = sql.execute("SELECT value FROM meta WHERE key = ?", (HOLDER,)).fetchone()
        claim = StoreClaim(row[0]) if row else None
        return claim.holder if claim is not None and is_alive(claim.holder) is not False else None

    # ------------------------------------------------------------------------------------------------------- drones

    def drones(
        self,
        *,
        ended: bool | None = False,
        sites: Sequence[str] = (),
        states: Sequence[DroneState] = (),
        types: Sequence[str] = (),
        nodes: Sequence[str] = (),
        limit: int | None = None,
    ) -> list[Drone]:
        where = _Where()
        if ended is not None:
            where.add("d.live = ?", not ended)
        where.one_of("d.site", sites)
        where.one_of("d.state", [state.value for state in states])
        where.one_of("d.type", [t for t in types if "/" in t], "substr(d.type, instr(d.type, '/') + 1)", types)
        short = [node for node in nodes if "." not in node]
        where.one_of("d.node", nodes, "substr(d.node, 1, instr(d.node || '.', '.') - 1)", short)
        newest_first = " ORDER BY d.requested_at DESC, d.serial DESC, d.id DESC LIMIT ?"
        with self._open() as sql:
            query = SELECT_DRONES + where.text + newest_first
            found = drones_of(sql.execute(query, (*where.values, -1 if limit is None else limit)))
        found.reverse()
        return found

    def drone(self, drone_id: DroneId) -> Drone | None:
        with self._open() as sql:
            return next(iter(drones_of(sql.execute(SELECT_DRONES + " WHERE d.id = ?", (drone_id,)))), None)

    def find(self, any_id: str) -> list[DroneId]:
        if not is_plausible_id(any_id):
            return []
        slots = as_slot_names(any_id)
        with self._open() as sql:
            if sql.execute("SELECT 1 FROM drones WHERE id = ?", (any_id,)).fetchone():
                return [DroneId(any_id)]
            newest_first = " ORDER BY live DESC, requested_at DESC, serial DESC, id DESC LIMIT ?"
            rows = sql.execute(
                # one index each, which an OR would not use as surely
                "SELECT id, live FROM drones WHERE id IN (SELECT id FROM drones WHERE serial = ?"
                " UNION SELECT id FROM drones WHERE remote_id = ?"
                " UNION SELECT id FROM drones WHERE site_slot = ?"
                f" UNION SELECT id FROM drones WHERE slot IN ({_marks(slots)}))" + newest_first,
                (as_serial(any_id), any_id, any_id, *slots, FIND_LIMIT),
            ).fetchall()
            if not rows and any_id.isascii():
                with_prefix = "SELECT id, live FROM drones WHERE id >= ? AND id < ?" + newest_first
                rows = sql.execute(with_prefix, (any_id, prefix_end(any_id), FIND_LIMIT)).fetchall()
        some_live = bool(rows) and bool(rows[0][1])
        return [DroneId(drone_id) for drone_id, live in rows if live or not some_live]

    def history(self, drone_id: DroneId) -> list[Transition]:
        with self._open() as sql:
            rows = sql.execute(_SELECT_TRANSITIONS + " WHERE drone_id = ? ORDER BY seq", (drone_id,))
            return [_transition(row) for row in rows]

    def last_words(self, drone_id: DroneId) -> str:
        with self._open() as sql:
            row = sql.execute("SELECT body FROM console_outputs WHERE drone_id = ?", (drone_id,)).fetchone()
        return zlib.decompress(row[0]).decode("utf-8", "replace") if row else ""

    def transitions(self, *, since: float = 0.0, after: int = 0, limit: int = 1000) -> list[tuple[int, Transition]]:
        query = _SELECT_TRANSITIONS + " WHERE seq > ? AND at >= ? ORDER BY seq LIMIT ?"
        with self._open() as sql:
            return [(row[6], _transition(row)) for row in sql.execute(query, (after, since, limit))]

    def hazards(self, since: float, now: float) -> list[Hazard]:
        from provisioner.store.statistics import DroneLifetime, hazards_of

        # Two ranges of one index: the live ones, and those that ended since.
        columns = ", ".join(DroneLifetime._fields)
        query = (
            f"SELECT {columns} FROM drones WHERE live = 1"
            f" UNION ALL SELECT {columns} FROM drones WHERE live = 0 AND ended_at >= ?"
        )
        with self._open() as sql:
            return hazards_of(map(DroneLifetime._make, sql.execute(query, (since,))), since, now)

    def completions(self, since: float, until: float) -> list[CompletedJob]:
        query = _SELECT_COMPLETED_JOBS + " WHERE ended_at >= ? AND ended_at < ? ORDER BY ended_at, job_id"
        with self._open() as sql:
            return [CompletedJob(*row) for row in sql.execute(query, (since, until))]

    def experience(self) -> EstimateSamples | None:
        with self._open() as sql:
            return read_estimates(sql, self.path)

    # -------------------------------------------------------------------------------------------------------- ticks

    def plans(self, *, limit: int = 20, since: float = 0.0, acting: bool = False) -> list[Plan]:
        where = _Where()
        if since > 0:
            where.add("last_at >= ?", since)
        if acting:
            where.add("acting = ?", True)
        query = "SELECT last_tick, last_at, body FROM plans" + where.text + " ORDER BY seq DESC LIMIT ?"
        with self._open() as sql:
            rows = sql.execute(query, (*where.values, limit)).fetchall()
            return [replace(decompress(Plan, body), tick=tick, at=at) for tick, at, body in reversed(rows)]

    def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        query = "SELECT id, at, name, fields FROM events WHERE id > ? ORDER BY id LIMIT ?"
        with self._open() as sql:
            rows = sql.execute(query, (after, limit))
            return [Event(number, at, name, json.loads(fields)) for number, at, name, fields in rows]

    def views(self) -> Views | None:
        with self._open() as sql:
            return _views(sql)

    def breakers(self) -> Mapping[str, Breaker]:
        with self._open() as sql:
            return read_breakers(sql)

    def snapshot(self, tick: int | None = None) -> Snapshot | None:
        with self._open() as sql:
            if tick is None:
                return _next_snapshot(sql)
            row = sql.execute("SELECT body FROM snapshots WHERE tick = ?", (tick,)).fetchone()
            return decompress(Snapshot, row[0]) if row else None

    def kept_snapshots(self) -> list[int]:
        with self._open() as sql:
            return [tick for (tick,) in sql.execute("SELECT tick FROM snapshots ORDER BY tick")]

    # ----------------------------------------------------------------------------------------------------- requests

    def ask(
        self,
        kind: RequestKind,
        drone_ids: Sequence[DroneId],
        *,
        reason: str,
        by: str,
        at: float,
        mode: DrainMode = DrainMode.PEACEFUL,
    ) -> int:
        row = (at, kind.value, mode.value, json.dumps(list(drone_ids)), reason, by)
        with self._open(write=True) as sql:
            added = sql.execute(
                "INSERT INTO requests (at, kind, mode, drone_ids, reason, by) VALUES (?, ?, ?, ?, ?, ?)", row
            )
            return int(added.lastrowid or 0)

    def request_done(self, request: int) -> bool:
        with self._open() as sql:
            row = sql.execute("SELECT done_tick FROM requests WHERE id = ?", (request,)).fetchone()
            if row is not None:
                return row[0] is not None
            newest = sql.execute("SELECT seq FROM sqlite_sequence WHERE name = 'requests'").fetchone()
            return newest is not None and 0 < request <= newest[0]

    def forget(self, what: str, *, reason: str, by: str, at: float) -> None:
        row = (at, what, reason, by)
        with self._open(write=True) as sql:
            sql.execute("INSERT INTO forget_requests (at, what, reason, by) VALUES (?, ?, ?, ?)", row)

    def forgets(self) -> tuple[ForgetRequest, ...]:
        with self._open() as sql:
            return read_forget_requests(sql)

    # --------------------------------------------------------------------------------------------------- connection

    def _uri(self) -> str:
        """Return the URI for this user: a store at rest has no log, and one who may only read could not create it."""
        mode = "rw"
        if not os.access(self.path, os.W_OK):
            at_rest = not self.path.with_name(self.path.name + "-wal").exists()
            mode = "ro&immutable=1" if at_rest else "ro"
        return f"{self.path.absolute().as_uri()}?mode={mode}"

    @contextmanager
    def _open(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """Yield a connection in one transaction, so that several queries see one state."""
        try:
            with closing(sqlite3.connect(self._uri(), uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as sql:
                sql.execute("PRAGMA synchronous = FULL" if write else "PRAGMA query_only = ON")
                sql.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                version = schema_version(sql, self.path)
                if version < len(MIGRATIONS):
                    raise StoreUnusableError(
                        f"store {self.path} has the older schema {version}: `provisioner run` brings it up to "
                        f"{len(MIGRATIONS)}"
                    )
                yield sql
                sql.execute("COMMIT")
        except (ValueError, zlib.error) as error:
            raise StoreUnusableError(
                f"store {self.path}: a record cannot be read, another version wrote it or it is damaged: {error}"
            ) from error
        except sqlite3.Error as error:
            if not self.path.exists():
                raise StoreError(f"there is no store {self.path}: `provisioner run` creates it") from error
            raise unusable(self.path, error) from error


class _Where:
    """Conditions joined by AND, with their values."""

    def __init__(self) -> None:
        self.values: list[object] = []
        self._conditions: list[str] = []

    def add(self, condition: str, *values: object) -> None:
        self._conditions.append(condition)
        self.values += values

    def one_of(self, column: str, values: Sequence[object], other: str = "", others: Sequence[object] = ()) -> None:
        """Add ``column`` among ``values``, or ``other`` among ``others``; no values at all set no condition."""
        parts = [(column, values), (other, others)]
        if any(some for _, some in parts):
            condition = " OR ".join(f"{name} IN ({_marks(some)})" for name, some in parts if some)
            self.add(f"({condition})", *values, *others)

    @property
    def text(self) -> str:
        return " WHERE " + " AND ".join(self._conditions) if self._conditions else ""


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _transition(row: Sequence[Any]) -> Transition:
    from provisioner import reasons, serialization

    drone_id, at, was, state, reason, tick = row[:6]
    why: reasons.Reason = serialization.from_json(cast(Any, reasons.Reason), reason)
    return Transition(drone_id, at, DroneState(was) if was else None, DroneState(state), why, tick)


def _views(sql: sqlite3.Connection) -> Views | None:
    from provisioner.store.documents import ViewPartKey, join_views, unpack_part

    parts = {}
    for kind, name, taken_at, body in sql.execute("SELECT kind, name, taken_at, body FROM views ORDER BY kind, name"):
        key = ViewPartKey(kind, name)
        parts[key] = unpack_part(key, body, taken_at)
    if not parts:
        return None
    meta = read_meta(sql)
    return join_views(int(meta["tick"]), float(meta["at"]), parts)


def _next_snapshot(sql: sqlite3.Connection) -> Snapshot | None:
    views = _views(sql)
    if views is None:
        return None
    meta = read_meta(sql)
    return Snapshot(
        now=views.at,
        tick=views.tick + 1,
        id_prefix=f"{meta['controller']}-{meta['birth']}",
        next_serial=int(meta["next_serial"]),
        policy=views.policy,
        types=views.types,
        overlay=views.overlay,
        sites=views.sites,
        drones={drone.id: drone for drone in drones_of(sql.execute(SELECT_LIVE_DRONES))},
        breakers=read_breakers(sql),
        patience=read_patience(sql),
        requests=read_requests(sql),
        gpu_wanted_at=float(meta.get("gpu_wanted_at", views.at)),
        estimates=views.estimates,
    )
