"""The record in SQL, read: beside a running controller, after one was killed, without one. Never migrates.

Plain ``sqlite3``: importing SQLAlchemy would take half of the time in which ``provisioner drones`` has to answer, and
pydantic is imported only where a reason, a plan or a view is decoded.
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
from typing import Any, TypeVar, cast

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
    Snapshot,
)
from provisioner.store import Event, Forget, Hazard, Holder, StoreBroken, StoreError, Transition, Views
from provisioner.store.asked import FORGET_COLUMNS, REQUEST_COLUMNS, request_of
from provisioner.store.faults import broken
from provisioner.store.ids import FIND_LIMIT, plausible, prefix_end, serial_meant, slots_meant
from provisioner.store.lock import HOLDER, Claim, holder_of, is_alive
from provisioner.store.migrations import HEAD
from provisioner.store.rows import COMPLETION_FIELDS, FIELDS, completions_of, drones_of
from provisioner.store.schema import revision_of

T = TypeVar("T")

_BUSY_S = 10.0

_DRONES = (
    "SELECT "
    + ", ".join(f"d.{name}" if name != "heard_at" else "coalesce(h.heard_at, 0.0)" for name in FIELDS)
    + " FROM drones d LEFT JOIN heard h ON h.drone_id = d.id"
)
_COMPLETIONS = 'SELECT "' + '", "'.join(COMPLETION_FIELDS) + '" FROM completions'
_STEPS = "SELECT drone_id, at, was, state, reason, tick, seq FROM transitions"


class SqlReader:
    """:class:`provisioner.store.Reader` of the store at ``path``. Opens it at each call, so it may come and go.

    Raises :class:`StoreError` if there is no store, :class:`StoreBroken` if it is damaged or of another schema.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def holder(self) -> Holder | None:
        try:
            return holder_of(self.path)
        except PermissionError:  # the lock is not for everybody: the record says who took it last
            with self._open() as sql:
                row = sql.execute("SELECT value FROM meta WHERE key = ?", (HOLDER,)).fetchone()
        claim = Claim(row[0]) if row else None
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
        """``types`` by key (``site/type``) or by name alone; ``limit`` keeps the newest."""
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
            rows = sql.execute(_DRONES + where.text + newest_first, (*where.values, -1 if limit is None else limit))
            found = drones_of(rows)
        found.reverse()
        return found

    def drone(self, drone_id: DroneId) -> Drone | None:
        with self._open() as sql:
            return next(iter(drones_of(sql.execute(_DRONES + " WHERE d.id = ?", (drone_id,)))), None)

    def find(self, any_id: str) -> list[DroneId]:
        """Exact ids win over prefixes, and live drones over ended ones (sites use their ids again). Newest first."""
        if not plausible(any_id):
            return []
        slots = slots_meant(any_id)
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
                (serial_meant(any_id), any_id, any_id, *slots, FIND_LIMIT),
            ).fetchall()
            if not rows and any_id.isascii():
                of_prefix = "SELECT id, live FROM drones WHERE id >= ? AND id < ?" + newest_first
                rows = sql.execute(of_prefix, (any_id, prefix_end(any_id), FIND_LIMIT)).fetchall()
        some_live = bool(rows) and bool(rows[0][1])
        return [DroneId(drone_id) for drone_id, live in rows if live or not some_live]

    def history(self, drone_id: DroneId) -> list[Transition]:
        with self._open() as sql:
            return [_step(row) for row in sql.execute(_STEPS + " WHERE drone_id = ? ORDER BY seq", (drone_id,))]

    def last_words(self, drone_id: DroneId) -> str:
        with self._open() as sql:
            row = sql.execute("SELECT body FROM last_words WHERE drone_id = ?", (drone_id,)).fetchone()
        return zlib.decompress(row[0]).decode("utf-8", "replace") if row else ""

    def transitions(self, *, since: float = 0.0, after: int = 0, limit: int = 1000) -> list[tuple[int, Transition]]:
        query = _STEPS + " WHERE seq > ? AND at >= ? ORDER BY seq LIMIT ?"
        with self._open() as sql:
            return [(row[6], _step(row)) for row in sql.execute(query, (after, since, limit))]

    def hazards(self, since: float, now: float) -> list[Hazard]:
        from provisioner.store.hazard import Life, hazards_of

        # Two ranges of one index: the living, and those that ended since.
        columns = ", ".join(Life._fields)
        query = (
            f"SELECT {columns} FROM drones WHERE live = 1"
            f" UNION ALL SELECT {columns} FROM drones WHERE live = 0 AND ended_at >= ?"
        )
        with self._open() as sql:
            return hazards_of(map(Life._make, sql.execute(query, (since,))), since, now)

    def completions(self, since: float, until: float) -> list[CompletedJob]:
        query = _COMPLETIONS + " WHERE ended_at >= ? AND ended_at < ? ORDER BY ended_at, job_id"
        with self._open() as sql:
            return completions_of(sql.execute(query, (since, until)))

    def experience(self) -> EstimateSamples | None:
        with self._open() as sql:
            row = sql.execute("SELECT form, body FROM experience").fetchone()
        if row is None:
            return None
        from provisioner.store.experience import read

        return read(self.path, *row)

    # -------------------------------------------------------------------------------------------------------- ticks

    def plans(self, *, limit: int = 20, since: float = 0.0, acting: bool = False) -> list[Plan]:
        """Plans that said something new; ``tick`` and ``at`` are the last at which each was said."""
        where = _Where()
        if since > 0:
            where.add("last_at >= ?", since)
        if acting:
            where.add("acting = ?", True)
        query = "SELECT last_tick, last_at, body FROM plans" + where.text + " ORDER BY seq DESC LIMIT ?"
        with self._open() as sql:
            rows = sql.execute(query, (*where.values, limit)).fetchall()
            return [replace(_unpack(Plan, body), tick=tick, at=at) for tick, at, body in reversed(rows)]

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
            return _breakers(sql)

    def snapshot(self, tick: int | None = None) -> Snapshot | None:
        """Without ``tick``: as of the time of the newest views, when the controller last looked."""
        if tick is None:
            return self._next_snapshot()
        with self._open() as sql:
            row = sql.execute("SELECT body FROM snapshots WHERE tick = ?", (tick,)).fetchone()
            return _unpack(Snapshot, row[0]) if row else None

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
        """Also True for one so old that it is forgotten; False for one that was never made."""
        with self._open() as sql:
            row = sql.execute("SELECT done_tick FROM requests WHERE id = ?", (request,)).fetchone()
            if row is not None:
                return row[0] is not None
            made = sql.execute("SELECT seq FROM sqlite_sequence WHERE name = 'requests'").fetchone()
            return made is not None and 0 < request <= made[0]

    def forget(self, what: str, *, reason: str, by: str, at: float) -> None:
        with self._open(write=True) as sql:
            sql.execute("INSERT INTO forgets (at, what, reason, by) VALUES (?, ?, ?, ?)", (at, what, reason, by))

    def forgets(self) -> tuple[Forget, ...]:
        with self._open() as sql:
            rows = sql.execute(f"SELECT {', '.join(FORGET_COLUMNS)} FROM forgets ORDER BY id")
            return tuple(Forget(*row) for row in rows)

    # ------------------------------------------------------------------------------------------------------- within

    def _uri(self) -> str:
        """For a user who may only read: a store at rest has no log, and SQLite could not make the one it wants."""
        mode = "rw"
        if not os.access(self.path, os.W_OK):
            at_rest = not self.path.with_name(self.path.name + "-wal").exists()
            mode = "ro&immutable=1" if at_rest else "ro"
        return f"{self.path.absolute().as_uri()}?mode={mode}"

    @contextmanager
    def _open(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection in one transaction, so that several queries see one state."""
        try:
            with closing(sqlite3.connect(self._uri(), uri=True, timeout=_BUSY_S, isolation_level=None)) as sql:
                if write:
                    sql.execute("PRAGMA synchronous = FULL")
                else:
                    sql.execute("PRAGMA query_only = ON")
                sql.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                self._check(sql)
                yield sql
                sql.execute("COMMIT")
        except (ValueError, zlib.error) as error:
            raise StoreBroken(
                f"store {self.path}: something in it cannot be read, another version wrote it or it is damaged: {error}"
            ) from error
        except sqlite3.Error as error:
            if not self.path.exists():
                raise StoreError(f"there is no store {self.path}: `provisioner run` makes it") from error
            raise broken(self.path, error) from error

    def _check(self, sql: sqlite3.Connection) -> None:
        revision = revision_of(sql, self.path)
        if revision != HEAD:
            raise StoreBroken(
                f"store {self.path} has the older schema {revision}: `provisioner run` brings it up to {HEAD}"
            )

    def _next_snapshot(self) -> Snapshot | None:
        with self._open() as sql:
            views = _views(sql)
            if views is None:
                return None
            known = _meta(sql)
            live = drones_of(sql.execute(_DRONES + " WHERE d.live = 1 ORDER BY d.requested_at, d.serial, d.id"))
            return Snapshot(
                now=views.at,
                tick=views.tick + 1,
                id_prefix=f"{known['controller']}-{known['birth']}",
                next_serial=int(known["next_serial"]),
                policy=views.policy,
                types=views.types,
                overlay=views.overlay,
                sites=views.sites,
                drones={drone.id: drone for drone in live},
                breakers=_breakers(sql),
                patience=_patience(sql),
                requests=_pending(sql),
                gpu_wanted_at=float(known.get("gpu_wanted_at", views.at)),
                estimates=views.estimates,
            )


def _patience(sql: sqlite3.Connection) -> Mapping[str, OwnerClaimBackoff]:
    """Return what the newest plan left for the next tick to remember, by site."""
    row = sql.execute("SELECT body FROM plans ORDER BY seq DESC LIMIT 1").fetchone()
    return {each.site: each for each in _unpack(Plan, row[0]).patience} if row else {}


class _Where:
    """Conditions joined by AND, with their values."""

    def __init__(self) -> None:
        self.values: list[object] = []
        self._conditions: list[str] = []

    def add(self, condition: str, *values: object) -> None:
        self._conditions.append(condition)
        self.values += values

    def one_of(self, column: str, values: Sequence[object], other: str = "", others: Sequence[object] = ()) -> None:
        """``column`` is among ``values``, or ``other`` among ``others``; no values at all set no condition."""
        parts = [(column, values), (other, others)]
        if any(some for _, some in parts):
            condition = " OR ".join(f"{name} IN ({_marks(some)})" for name, some in parts if some)
            self.add(f"({condition})", *values, *others)

    @property
    def text(self) -> str:
        return " WHERE " + " AND ".join(self._conditions) if self._conditions else ""


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _meta(sql: sqlite3.Connection) -> dict[str, str]:
    return dict(sql.execute("SELECT key, value FROM meta").fetchall())


def _pending(sql: sqlite3.Connection) -> tuple[OperatorRequest, ...]:
    query = f"SELECT {', '.join(REQUEST_COLUMNS)} FROM requests WHERE done_tick IS NULL ORDER BY id"
    return tuple(request_of(row) for row in sql.execute(query))


def _unpack(kind: type[T], body: bytes) -> T:
    from provisioner import serialization

    return serialization.from_json(kind, zlib.decompress(body))


def _step(row: Sequence[Any]) -> Transition:
    from provisioner import reasons, serialization

    drone_id, at, was, state, reason, tick = row[:6]
    why: reasons.Reason = serialization.from_json(cast(Any, reasons.Reason), reason)
    return Transition(drone_id, at, DroneState(was) if was else None, DroneState(state), why, tick)


def _breakers(sql: sqlite3.Connection) -> dict[str, Breaker]:
    from provisioner import serialization

    rows = sql.execute("SELECT scope, body FROM breakers ORDER BY scope")
    return {scope: serialization.from_json(Breaker, body) for scope, body in rows}


def _views(sql: sqlite3.Connection) -> Views | None:
    from provisioner.store.pieces import Piece, PieceKey, decode, views_of

    pieces = {}
    for kind, name, taken_at, body in sql.execute("SELECT kind, name, taken_at, body FROM views ORDER BY kind, name"):
        key = PieceKey(kind, name)
        pieces[key] = Piece(decode(key, zlib.decompress(body)), taken_at)
    if not pieces:
        return None
    known = _meta(sql)
    return views_of(int(known["tick"]), float(known["at"]), pieces)
