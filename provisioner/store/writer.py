"""The record in SQL, written: one connection, one transaction per call, blocking."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, and_, delete, exc, func, or_, select, update
from sqlalchemy import insert as plain_insert
from sqlalchemy.dialects.sqlite import insert

from provisioner import serialization
from provisioner.estimates import EstimateSamples
from provisioner.model import (
    Breaker,
    CompletedJob,
    DroneId,
    DroneState,
    OperatorRequest,
    OwnerClaimBackoff,
    Plan,
    Snapshot,
    StateChange,
)
from provisioner.store import Forget, Holder, StoreError, Transition
from provisioner.store.asked import FORGET_COLUMNS, REQUEST_COLUMNS, request_of
from provisioner.store.changes import Change, Mirror, after, news, planned, remembered, repeats, settled
from provisioner.store.experience import FORM, read, written
from provisioner.store.faults import broken, unfit
from provisioner.store.lock import HOLDER, Claim, held, is_alive, taken_over
from provisioner.store.opening import open_store
from provisioner.store.pieces import Piece, PieceKey, encode, pieces_of
from provisioner.store.rows import FIELDS, completion_row, drones_of, row_of
from provisioner.store.tables import (
    breakers,
    completions,
    drones,
    events,
    experience,
    forgets,
    heard,
    last_words,
    meta,
    plans,
    requests,
    snapshots,
    transitions,
    views,
)

_BATCH = 500
"""Rows deleted, or asked for, in one statement."""
_BATCHES = 10
"""Batches of one kind in one pruning: a tick waits for it, and the rest is left to the next tick."""
MAX_EVENTS = 100_000
"""Events kept at most, however young."""


class Writer:
    """Opens the store, made or migrated where needed. Raises :class:`StoreBroken`; so does every method.

    ``mirror`` is what is committed: it is replaced after a commit and stays as it was when a write fails.
    """

    def __init__(self, path: Path, controller: str, snapshots_kept: int, birth: str | None, holder: Holder) -> None:
        self._path = path
        self._snapshots_kept = snapshots_kept
        self._said: Plan | None = None
        self._pieces: dict[PieceKey, Piece] | None = None
        self._connection = open_store(path, controller, birth)
        self._claim = Claim.of(holder, path)
        with self._transaction(claims=True) as sql:
            known: dict[str, str] = {key: value for key, value in sql.execute(select(meta.c.key, meta.c.value))}
            self._take_over(Claim(known.get(HOLDER, "")))
            _write_meta(sql, **{HOLDER: self._claim.text})
            self.birth: str = known["birth"]
            self.mirror = _load(sql, known)

    def close(self) -> None:
        """Withdraw the claim, so that other processes may open the store while this one lives on."""
        dbapi: Any = self._connection.connection.driver_connection
        dbapi.execute("PRAGMA busy_timeout = 1000")  # whoever writes for longer must not hold up the end
        try:
            with suppress(StoreError), self._transaction() as sql:
                sql.execute(delete(meta).where(meta.c.key == HOLDER))
        finally:
            self._connection.close()

    def _take_over(self, before: Claim) -> None:
        """Raise :class:`StoreHeld` if whoever claimed the store before lives: then its lock file was removed."""
        other = before.holder
        if before.is_for(self._path) and other.pid != os.getpid() and is_alive(other):
            raise held(self._path, other)

    # ------------------------------------------------------------------------------------------------------- ticks

    def record(self, plan: Plan, snapshot: Snapshot) -> None:
        change = planned(plan)
        mirror = replace(
            after(self.mirror, change, plan.tick, snapshot.next_serial),
            at=plan.at,
            drift_s=snapshot.drift_s,
            patience=remembered(plan),
        )
        said = news(plan)
        pieces = pieces_of(snapshot)
        with self._transaction() as sql:
            self._write(sql, change)
            self._write_plan(sql, said)
            self._write_views(sql, pieces)
            if plan.requests_done:
                taken = update(requests).where(requests.c.id.in_(plan.requests_done), requests.c.done_tick.is_(None))
                sql.execute(taken.values(done_tick=plan.tick))
            if plan.acts and self._snapshots_kept > 0:
                _write_snapshot(sql, snapshot, plan.tick, self._snapshots_kept)
            _write_meta(
                sql,
                tick=str(mirror.tick),
                at=repr(plan.at),
                drift_s=repr(snapshot.drift_s),
                next_serial=str(mirror.next_serial),
                gpu_wanted_at=repr(snapshot.gpu_wanted_at),
            )
        self.mirror, self._pieces, self._said = mirror, pieces, said

    def settle(
        self, tick: int, moves: Sequence[StateChange], changed: Sequence[Breaker], set_to: float | None = None
    ) -> None:
        change = settled(tick, moves, changed)
        if not (change.drones or change.breakers or set_to is not None):
            return
        mirror = after(self.mirror, change, self.mirror.tick)
        meta = {"next_serial": str(mirror.next_serial)}
        if set_to is not None:
            mirror = replace(mirror, at=set_to, drift_s=0.0)
            meta |= {"at": repr(set_to), "drift_s": repr(0.0)}
        with self._transaction() as sql:
            self._write(sql, change)
            _write_meta(sql, **meta)
        self.mirror = mirror

    def _write(self, sql: Connection, change: Change) -> None:
        rows, beats = self._changed_rows(change)
        _upsert(sql, drones, rows)
        _upsert(sql, heard, beats)
        if change.steps:
            sql.execute(plain_insert(transitions), [_step_row(step) for step in change.steps])
        kept = [each for each in change.breakers if not each.forgotten]
        _upsert(sql, breakers, [{"scope": each.scope, "body": serialization.to_json(each)} for each in kept])
        if gone := [each.scope for each in change.breakers if each.forgotten]:
            sql.execute(delete(breakers).where(breakers.c.scope.in_(gone)))

    def _changed_rows(self, change: Change) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
        """Rows for ``drones`` and ``heard``: only of drones whose record is not already so."""
        rows: list[dict[str, object]] = []
        beats: list[dict[str, object]] = []
        live = self.mirror.drones
        for drone_id, drone in change.drones.items():
            before = live.get(drone_id)
            if before == drone:
                continue
            if before is None or before.heard_at != drone.heard_at:
                beats.append({"drone_id": drone_id, "heard_at": drone.heard_at})
            row = row_of(drone)
            if before is None or row != row_of(before):
                rows.append(row)
        return rows, beats

    def _write_plan(self, sql: Connection, said: Plan) -> None:
        if repeats(said, self._said):
            newest = select(func.max(plans.c.seq)).scalar_subquery()
            again = update(plans).where(plans.c.seq == newest).values(last_tick=said.tick, last_at=said.at)
            if sql.execute(again).rowcount:
                return
        row = {
            "tick": said.tick,
            "at": said.at,
            "last_tick": said.tick,
            "last_at": said.at,
            "acting": said.acts,
            "body": zlib.compress(serialization.to_json(said).encode()),
        }
        sql.execute(plain_insert(plans), row)

    def _write_views(self, sql: Connection, pieces: Mapping[PieceKey, Piece]) -> None:
        """The pieces that are not already so; after opening all of them."""
        old = self._pieces
        if old is None:
            sql.execute(delete(views))
        for key in (old or {}).keys() - pieces.keys():
            sql.execute(delete(views).where(views.c.kind == key.kind, views.c.name == key.name))
        for key, piece in pieces.items():
            before = (old or {}).get(key)
            if before == piece:
                continue
            row: dict[str, object] = {"kind": key.kind, "name": key.name, "taken_at": piece.taken_at}
            if before is not None and before.value == piece.value:
                same = and_(views.c.kind == key.kind, views.c.name == key.name)
                sql.execute(update(views).where(same).values(taken_at=piece.taken_at))
            else:
                _upsert(sql, views, [row | {"body": zlib.compress(encode(key, piece), 1)}])

    # ------------------------------------------------------------------------------------------------ asked and told

    def requests(self) -> tuple[OperatorRequest, ...]:
        with self._transaction() as sql:
            columns = [requests.c[name] for name in REQUEST_COLUMNS]
            pending = select(*columns).where(requests.c.done_tick.is_(None)).order_by(requests.c.id)
            return tuple(request_of(row) for row in sql.execute(pending))

    def event(self, at: float, name: str, fields: Mapping[str, str | int | float]) -> None:
        with self._transaction() as sql:
            sql.execute(plain_insert(events), {"at": at, "name": name, "fields": json.dumps(dict(fields))})

    def keep(self, at: float, words: Mapping[DroneId, str]) -> None:
        rows: list[dict[str, object]] = [
            {"drone_id": drone_id, "at": at, "body": zlib.compress(text.encode("utf-8", "replace"))}
            for drone_id, text in words.items()
        ]
        with self._transaction() as sql:
            _upsert(sql, last_words, rows)

    def completed(self, jobs: Sequence[CompletedJob]) -> None:
        with self._transaction() as sql:
            if jobs:
                new = insert(completions).on_conflict_do_nothing()
                sql.execute(new, [completion_row(each) for each in jobs])

    def experience(self) -> EstimateSamples | None:
        with self._transaction() as sql:
            row = sql.execute(select(experience.c.form, experience.c.body)).first()
        return read(self._path, *row) if row else None

    def learn(self, estimates: EstimateSamples, forgotten: Sequence[int]) -> None:
        try:
            body = written(estimates)  # it takes a while: operators may write meanwhile
        except ValueError as error:
            raise unfit(self._path, error) from error
        with self._transaction() as sql:
            _upsert(sql, experience, [{"id": 1, "form": FORM, "at": estimates.at, "body": body}])
            if forgotten:
                sql.execute(delete(forgets).where(forgets.c.id.in_(forgotten)))

    def forgets(self) -> tuple[Forget, ...]:
        with self._transaction() as sql:
            columns = [forgets.c[name] for name in FORGET_COLUMNS]
            return tuple(Forget(*row) for row in sql.execute(select(*columns).order_by(forgets.c.id)))

    def ended(self, drone_ids: Sequence[DroneId]) -> dict[DroneId, DroneState]:
        found: dict[DroneId, DroneState] = {}
        with self._transaction() as sql:
            for start in range(0, len(drone_ids), _BATCH):
                some = drone_ids[start : start + _BATCH]
                ends = select(drones.c.id, drones.c.state).where(drones.c.id.in_(some), drones.c.live.is_(False))
                found |= {DroneId(drone_id): DroneState(state) for drone_id, state in sql.execute(ends)}
        return found

    # ------------------------------------------------------------------------------------------------------ pruning

    def prune(self, before: float) -> bool:
        """Forget what ended, was said or was done before ``before``, a batch per transaction. Return True if there may
        be more of it."""
        with self._transaction() as sql:
            newest = sql.execute(select(func.max(events.c.id))).scalar() or 0
        kinds: Sequence[Callable[[], bool]] = (
            lambda: self._prune_drones(before),
            # the first step of a drone on record stays, however old
            lambda: self._prune(transitions, "seq", and_(transitions.c.at < before, transitions.c.was.is_not(None))),
            lambda: self._prune(plans, "seq", plans.c.last_at < before),
            lambda: self._prune_completions(before),
            # of strays: no drone on record goes with them
            lambda: self._prune(last_words, "drone_id", last_words.c.at < before),
            lambda: self._prune(requests, "id", and_(requests.c.done_tick.is_not(None), requests.c.at < before)),
            lambda: self._prune(events, "id", or_(events.c.at < before, events.c.id <= newest - MAX_EVENTS)),
        )
        left = [all(batch() for _ in range(_BATCHES)) for batch in kinds]
        return any(left)

    def _prune_drones(self, before: float) -> bool:
        """Forget one batch. Return True if there may be more."""
        old = select(drones.c.id).where(drones.c.live.is_(False), drones.c.ended_at < before).limit(_BATCH)
        with self._transaction() as sql:
            gone = list(sql.execute(old).scalars())
            if gone:
                sql.execute(delete(transitions).where(transitions.c.drone_id.in_(gone)))
                sql.execute(delete(heard).where(heard.c.drone_id.in_(gone)))
                sql.execute(delete(last_words).where(last_words.c.drone_id.in_(gone)))
                sql.execute(delete(drones).where(drones.c.id.in_(gone)))
        return len(gone) == _BATCH

    def _prune_completions(self, before: float) -> bool:
        """Forget one batch: all up to the end of its last, since they lie in the order of their ends."""
        ended_at = completions.c.ended_at
        last_of_batch = select(ended_at).where(ended_at < before).order_by(ended_at).offset(_BATCH - 1).limit(1)
        with self._transaction() as sql:
            last = sql.execute(last_of_batch).scalar()
            sql.execute(delete(completions).where(ended_at < before if last is None else ended_at <= last))
        return last is not None

    def _prune(self, table: Table, key: str, old: Any) -> bool:
        """Forget one batch. Return True if there may be more."""
        column = table.c[key]
        batch = delete(table).where(column.in_(select(column).where(old).limit(_BATCH)))
        with self._transaction() as sql:
            return sql.execute(batch).rowcount >= _BATCH

    @contextmanager
    def _transaction(self, *, claims: bool = False) -> Iterator[Connection]:
        """All or nothing, and durable at its end. Raises :class:`StoreHeld` if another controller claimed the store;
        not if this one ``claims`` it now."""
        try:
            with self._connection.begin():
                if not claims:
                    self._check_claim()
                yield self._connection
        except exc.DBAPIError as error:
            raise broken(self._path, error.orig) from error
        except (ValueError, OverflowError) as error:
            raise unfit(self._path, error) from error

    def _check_claim(self) -> None:
        """Fence off a controller whose store another took: neither a link nor a removed lock file lets two write."""
        row = self._connection.exec_driver_sql("SELECT value FROM meta WHERE key = ?", (HOLDER,)).fetchone()
        if row is None or row[0] != self._claim.text:
            raise taken_over(self._path, Claim(row[0]).holder if row is not None else None)


def _load(sql: Connection, known: Mapping[str, str]) -> Mirror:
    columns = [drones.c[name] if name != "heard_at" else func.coalesce(heard.c.heard_at, 0.0) for name in FIELDS]
    joined = drones.outerjoin(heard, heard.c.drone_id == drones.c.id)
    live = select(*columns).select_from(joined).where(drones.c.live.is_(True)).order_by(drones.c.requested_at)
    return Mirror(
        tick=int(known["tick"]),
        next_serial=int(known["next_serial"]),
        at=float(known.get("at", 0.0)),
        drift_s=float(known.get("drift_s", 0.0)),
        drones={drone.id: drone for drone in drones_of(tuple(row) for row in sql.execute(live))},
        breakers={
            scope: serialization.from_json(Breaker, body)
            for scope, body in sql.execute(select(breakers.c.scope, breakers.c.body))
        },
        patience=_patience(sql),
    )


def _patience(sql: Connection) -> Mapping[str, OwnerClaimBackoff]:
    """Return what the newest plan left to remember; nothing if another version wrote it and it cannot be read."""
    body = sql.execute(select(plans.c.body).order_by(plans.c.seq.desc()).limit(1)).scalar()
    try:
        return remembered(serialization.from_json(Plan, zlib.decompress(body).decode())) if body else {}
    except (ValueError, zlib.error):
        return {}


def _upsert(sql: Connection, table: Table, rows: list[dict[str, object]]) -> None:
    if not rows:
        return
    statement = insert(table)
    values = {column.name: statement.excluded[column.name] for column in table.c if not column.primary_key}
    sql.execute(statement.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=values), rows)


def _write_meta(sql: Connection, **values: str) -> None:
    _upsert(sql, meta, [{"key": key, "value": value} for key, value in values.items()])


def _write_snapshot(sql: Connection, snapshot: Snapshot, tick: int, kept: int) -> None:
    body = zlib.compress(serialization.to_json(snapshot).encode(), 1)
    _upsert(sql, snapshots, [{"tick": tick, "body": body}])
    newest = select(snapshots.c.tick).order_by(snapshots.c.tick.desc()).limit(kept)
    sql.execute(delete(snapshots).where(snapshots.c.tick.not_in(newest)))


def _step_row(step: Transition) -> dict[str, object]:
    return {
        "drone_id": step.drone_id,
        "at": step.at,
        "was": step.was.value if step.was else None,
        "state": step.state.value,
        "reason": serialization.to_json(step.reason),
        "tick": step.tick,
    }
