"""The controller's side of the store: one connection, one worker thread, one transaction per call."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import zlib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from provisioner import serialization
from provisioner.estimates import EstimateSamples
from provisioner.model import (
    Breaker,
    CompletedJob,
    DroneId,
    DroneState,
    OperatorRequest,
    Plan,
    Snapshot,
    StateChange,
)
from provisioner.store import CommittedState, EstimateReset, Store, StoreError
from provisioner.store.changes import (
    RecordChange,
    change_by_plan,
    change_by_results,
    repeats,
    state_after,
    state_after_plan,
    without_refreshes,
)
from provisioner.store.documents import (
    ESTIMATES_FORMAT,
    ViewPart,
    ViewPartKey,
    pack_estimates,
    pack_part,
    split_views,
)
from provisioner.store.file import open_store, unrecordable, unusable
from provisioner.store.lock import HOLDER, StoreClaim, StoreLock, held, is_alive, taken_over
from provisioner.store.queries import (
    COMPLETED_JOB_FIELDS,
    SELECT_LIVE_DRONES,
    drone_row,
    drones_of,
    insert,
    read_breakers,
    read_estimate_resets,
    read_estimates,
    read_meta,
    read_patience,
    read_requests,
    write_meta,
)

P = ParamSpec("P")
T = TypeVar("T")

BATCH_ROWS = 500
"""Rows deleted, or queried, in one statement."""
BATCHES_PER_PRUNING = 10
"""Batches of one kind in one pruning: a tick waits for it, and the rest is left to the next tick."""
MAX_EVENTS = 100_000
"""Events kept at most, however young."""


def _on_worker(
    method: Callable[Concatenate[SqlStore, P], T],
) -> Callable[Concatenate[SqlStore, P], Coroutine[Any, Any, T]]:
    """Run the blocking ``method`` on the store's worker thread."""

    async def run(self: SqlStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(lambda: method(self, *args, **kwargs))

    return run


class SqlStore(Store):
    """:class:`provisioner.store.Store` in a SQLite file.

    ``keep_s``: retention of ended drones, plans and events. ``snapshots``: number of full snapshots of acting ticks
    that are kept. ``threaded``: work in one thread of its own, so that a slow disk does not stop the loop; without it,
    inline, for a loop on a virtual clock. ``birth`` is drawn for a new store unless given (for reproducible runs).
    """

    def __init__(
        self,
        path: Path,
        controller: str,
        keep_s: float,
        snapshots: int,
        threaded: bool = True,
        *,
        birth: str | None = None,
    ) -> None:
        self.path = path
        self._controller = controller
        self._keep_s = keep_s
        self._snapshots_kept = snapshots
        self._threaded = threaded
        self._new_birth = birth
        self._lock = StoreLock(path)
        self._worker: ThreadPoolExecutor | None = None
        self._sql: sqlite3.Connection | None = None
        self._claim = StoreClaim("")
        self._state: CommittedState | None = None
        """Replaced after a commit; stays as it was when a write fails."""
        self._newest_plan: Plan | None = None
        self._view_parts: Mapping[ViewPartKey, ViewPart] | None = None
        """As recorded; None after opening: then all of them are written."""

    @property
    def committed(self) -> CommittedState:
        if self._state is None:
            raise StoreError(f"store {self.path} is not open")
        return self._state

    async def __aenter__(self) -> Self:
        if self._sql is not None:
            raise StoreError(f"store {self.path} is already open here")
        if self._threaded:
            self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        try:
            await self._run(self._open)
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._leave()

    # -------------------------------------------------------------------------------------------------------- ticks

    @_on_worker
    def record(self, plan: Plan, snapshot: Snapshot) -> None:
        change = change_by_plan(plan)
        state = state_after_plan(self.committed, change, plan, snapshot)
        recorded_plan, view_parts = without_refreshes(plan), split_views(snapshot)
        with self._transaction() as sql:
            self._write_change(sql, change)
            self._write_plan(sql, recorded_plan)
            self._write_views(sql, view_parts)
            done = [(plan.tick, number) for number in plan.requests_done]
            sql.executemany("UPDATE requests SET done_tick = ? WHERE id = ? AND done_tick IS NULL", done)
            if plan.acts and self._snapshots_kept > 0:
                body = zlib.compress(serialization.to_json(snapshot).encode(), 1)
                insert(sql, "snapshots", {"tick": plan.tick, "body": body}, keys=("tick",))
                newest = "SELECT tick FROM snapshots ORDER BY tick DESC LIMIT ?"
                sql.execute(f"DELETE FROM snapshots WHERE tick NOT IN ({newest})", (self._snapshots_kept,))
            write_meta(
                sql,
                tick=str(state.tick),
                at=repr(plan.at),
                drift_s=repr(snapshot.drift_s),
                next_serial=str(state.next_serial),
                gpu_wanted_at=repr(snapshot.gpu_wanted_at),
            )
        self._state, self._view_parts, self._newest_plan = state, view_parts, recorded_plan

    @_on_worker
    def record_results(
        self, tick: int, moves: Sequence[StateChange], breakers: Sequence[Breaker], *, set_to: float | None = None
    ) -> None:
        change = change_by_results(tick, moves, breakers)
        if not (change.drones or change.breakers or set_to is not None):
            return
        state = state_after(self.committed, change)
        meta = {"next_serial": str(state.next_serial)}
        if set_to is not None:
            state = replace(state, recorded_at=set_to, recorded_drift_s=0.0)
            meta |= {"at": repr(set_to), "drift_s": repr(0.0)}
        with self._transaction() as sql:
            self._write_change(sql, change)
            write_meta(sql, **meta)
        self._state = state

    def _write_change(self, sql: sqlite3.Connection, change: RecordChange) -> None:
        """Write the drones whose record differs, the transitions, and the breakers."""
        rows: list[dict[str, object]] = []
        heartbeats: list[dict[str, object]] = []
        live = self.committed.drones
        for drone_id, drone in change.drones.items():
            before = live.get(drone_id)
            if before == drone:
                continue
            if before is None or before.heard_at != drone.heard_at:
                heartbeats.append({"drone_id": drone_id, "heard_at": drone.heard_at})
            row = drone_row(drone)
            if before is None or row != drone_row(before):
                rows.append(row)
        insert(sql, "drones", *rows, keys=("id",))
        insert(sql, "heartbeats", *heartbeats, keys=("drone_id",))
        for each in change.transitions:
            reason, was = serialization.to_json(each.reason), each.was.value if each.was else None
            step = {"drone_id": each.drone_id, "at": each.at, "was": was, "state": each.state.value}
            insert(sql, "transitions", {**step, "reason": reason, "tick": each.tick})
        for breaker in change.breakers:
            if breaker.forgotten:
                sql.execute("DELETE FROM breakers WHERE scope = ?", (breaker.scope,))
            else:
                body = serialization.to_json(breaker)
                insert(sql, "breakers", {"scope": breaker.scope, "body": body}, keys=("scope",))

    def _write_plan(self, sql: sqlite3.Connection, plan: Plan) -> None:
        if repeats(plan, self._newest_plan):
            move_on = "UPDATE plans SET last_tick = ?, last_at = ? WHERE seq = (SELECT max(seq) FROM plans)"
            if sql.execute(move_on, (plan.tick, plan.at)).rowcount:
                return
        body = zlib.compress(serialization.to_json(plan).encode())
        times = {"tick": plan.tick, "at": plan.at, "last_tick": plan.tick, "last_at": plan.at}
        insert(sql, "plans", {**times, "acting": plan.acts, "body": body})

    def _write_views(self, sql: sqlite3.Connection, parts: Mapping[ViewPartKey, ViewPart]) -> None:
        """Write the parts that differ from those on record; after opening all of them."""
        known = self._view_parts or {}
        if self._view_parts is None:
            sql.execute("DELETE FROM views")
        sql.executemany("DELETE FROM views WHERE kind = ? AND name = ?", known.keys() - parts.keys())
        for key, part in parts.items():
            before = known.get(key)
            if before == part:
                continue
            if before is not None and before.value == part.value:
                sql.execute("UPDATE views SET taken_at = ? WHERE kind = ? AND name = ?", (part.taken_at, *key))
            else:
                row = {"kind": key.kind, "name": key.site, "taken_at": part.taken_at, "body": pack_part(key, part)}
                insert(sql, "views", row, keys=("kind", "name"))

    # ---------------------------------------------------------------------------------------------- between the ticks

    @_on_worker
    def requests(self) -> tuple[OperatorRequest, ...]:
        with self._transaction() as sql:
            return read_requests(sql)

    @_on_worker
    def event(self, at: float, name: str, fields: Mapping[str, str | int | float]) -> None:
        with self._transaction() as sql:
            insert(sql, "events", {"at": at, "name": name, "fields": json.dumps(dict(fields))})

    @_on_worker
    def record_outputs(self, at: float, outputs: Mapping[DroneId, str]) -> None:
        with self._transaction() as sql:
            for drone_id, text in outputs.items():
                body = zlib.compress(text.encode("utf-8", "replace"))
                insert(sql, "console_outputs", {"drone_id": drone_id, "at": at, "body": body}, keys=("drone_id",))

    @_on_worker
    def record_completed(self, completions: Sequence[CompletedJob]) -> None:
        rows = [{name: getattr(each, name) for name in COMPLETED_JOB_FIELDS} for each in completions]
        with self._transaction() as sql:
            insert(sql, "completed_jobs", *rows, keep=True)

    @_on_worker
    def estimate_samples(self) -> EstimateSamples | None:
        with self._transaction() as sql:
            return read_estimates(sql, self.path)

    @_on_worker
    def record_estimates(self, samples: EstimateSamples, resets: Sequence[int] = ()) -> None:
        try:
            body = pack_estimates(samples)  # this takes a while: operators may write meanwhile
        except ValueError as error:
            raise unrecordable(self.path, error) from error
        with self._transaction() as sql:
            row = {"id": 1, "format": ESTIMATES_FORMAT, "at": samples.at, "body": body}
            insert(sql, "estimates", row, keys=("id",))
            sql.executemany("DELETE FROM estimate_resets WHERE id = ?", [(number,) for number in resets])

    @_on_worker
    def estimate_resets(self) -> tuple[EstimateReset, ...]:
        with self._transaction() as sql:
            return read_estimate_resets(sql)

    @_on_worker
    def ended(self, drone_ids: Sequence[DroneId]) -> Mapping[DroneId, DroneState]:
        found: dict[DroneId, DroneState] = {}
        with self._transaction() as sql:
            for start in range(0, len(drone_ids), BATCH_ROWS):
                some = drone_ids[start : start + BATCH_ROWS]
                marks = ", ".join("?" * len(some))
                rows = sql.execute(f"SELECT id, state FROM drones WHERE live = 0 AND id IN ({marks})", some)
                found |= {DroneId(drone_id): DroneState(state) for drone_id, state in rows}
        return found

    # ------------------------------------------------------------------------------------------------------ pruning

    @_on_worker
    def prune(self, now: float) -> bool:
        before = now - self._keep_s
        with self._transaction() as sql:
            (newest,) = sql.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()
        kinds: Sequence[tuple[str, str, str, Sequence[float]]] = (
            ("drones", "id", "live = 0 AND ended_at < ?", (before,)),
            # the first transition of a drone on record stays, however old
            ("transitions", "seq", "at < ? AND was IS NOT NULL", (before,)),
            ("plans", "seq", "last_at < ?", (before,)),
            ("completed_jobs", "ended_at, job_id", "ended_at < ?", (before,)),
            # of strays: no drone on record goes with them
            ("console_outputs", "drone_id", "at < ?", (before,)),
            ("requests", "id", "done_tick IS NOT NULL AND at < ?", (before,)),
            ("events", "id", "at < ? OR id <= ?", (before, newest - MAX_EVENTS)),
        )
        more = [all(self._prune_batch(*kind) for _ in range(BATCHES_PER_PRUNING)) for kind in kinds]
        return any(more)

    def _prune_batch(self, table: str, key: str, old: str, values: Sequence[float]) -> bool:
        """Delete some rows. Return True if there may be more."""
        batch = f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE {old} LIMIT ?)"
        with self._transaction() as sql:
            return sql.execute(batch, (*values, BATCH_ROWS)).rowcount >= BATCH_ROWS

    # --------------------------------------------------------------------------------------------- opening and closing

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"store {self.path}: cannot create its directory: {error}") from error
        holder = self._lock.take()
        path = Path(os.path.realpath(self.path))  # the lock's file and SQLite's own lie beside it
        self._sql = open_store(path, self._controller, self._new_birth)
        self._newest_plan = self._view_parts = None
        self._claim = StoreClaim.of(holder, path)
        with self._transaction(claims=True) as sql:
            meta = read_meta(sql)
            self._check_previous_claim(StoreClaim(meta.get(HOLDER, "")), path)
            write_meta(sql, **{HOLDER: self._claim.text})
            self._state = CommittedState(
                birth=meta["birth"],
                tick=int(meta["tick"]),
                next_serial=int(meta["next_serial"]),
                drones={drone.id: drone for drone in drones_of(sql.execute(SELECT_LIVE_DRONES))},
                breakers=read_breakers(sql),
                patience=read_patience(sql),
                recorded_at=float(meta.get("at", 0.0)),
                recorded_drift_s=float(meta.get("drift_s", 0.0)),
            )

    def _check_previous_claim(self, previous: StoreClaim, path: Path) -> None:
        """Raise :class:`StoreHeldError` if the previous holder lives: then its lock file was removed."""
        other = previous.holder
        if previous.is_for(path) and other.pid != os.getpid() and is_alive(other):
            raise held(path, other)

    async def _leave(self) -> None:
        if self._sql is not None:
            await self._run(self._close)
        self._state = None
        if self._worker is not None:
            self._worker.shutdown()
            self._worker = None
        self._lock.release()

    def _close(self) -> None:
        """Withdraw the claim, so that other processes may open the store while this one lives on."""
        connection = self._opened
        connection.execute("PRAGMA busy_timeout = 1000")  # whoever writes for longer must not hold up the end
        try:
            with suppress(StoreError), self._transaction() as sql:
                sql.execute("DELETE FROM meta WHERE key = ?", (HOLDER,))
        finally:
            self._sql = None
            connection.close()

    # -------------------------------------------------------------------------------------------------- transactions

    async def _run(self, work: Callable[[], T]) -> T:
        """Run blocking ``work`` to its end. A cancelled caller waits for that end too: a half-known commit is worse.

        There is no deadline for the same reason; the file is on a local disk.
        """
        if self._worker is None:
            return work()
        running = asyncio.get_running_loop().run_in_executor(self._worker, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            while not running.done():
                await asyncio.wait([running])
            raise

    @property
    def _opened(self) -> sqlite3.Connection:
        if self._sql is None:
            raise StoreError(f"store {self.path} is not open")
        return self._sql

    @contextmanager
    def _transaction(self, *, claims: bool = False) -> Iterator[sqlite3.Connection]:
        """Yield the connection in a transaction: all or nothing, and durable at its end.

        It has the right to write from its first statement on: it cannot fail by a late lock upgrade. Raises
        :class:`StoreHeldError` if another controller claimed the store; not if this one ``claims`` it now.
        """
        sql = self._opened
        try:
            sql.execute("BEGIN IMMEDIATE")
            try:
                if not claims:
                    self._check_claim(sql)
                yield sql
                sql.execute("COMMIT")
            except BaseException:
                if sql.in_transaction:
                    with suppress(sqlite3.Error):
                        sql.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise unusable(self.path, error) from error
        except (ValueError, OverflowError) as error:
            raise unrecordable(self.path, error) from error

    def _check_claim(self, sql: sqlite3.Connection) -> None:
        """Fence off a controller whose store another took: neither a link nor a removed lock file lets two write."""
        row = sql.execute("SELECT value FROM meta WHERE key = ?", (HOLDER,)).fetchone()
        if row is None or row[0] != self._claim.text:
            raise taken_over(self.path, StoreClaim(row[0]).holder if row is not None else None)
