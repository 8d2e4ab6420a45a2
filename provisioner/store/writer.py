"""The controller's side of the store: one connection, one worker thread, one transaction per call."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from provisioner import store
from provisioner.estimates import EstimateSamples
from provisioner.model import (
    Breaker,
    CompletedJob,
    Drone,
    DroneId,
    DroneState,
    JobClass,
    OperatorRequest,
    OverlayView,
    Plan,
    ServicesView,
    Snapshot,
    StateChange,
    TypeKey,
)
from provisioner.serialization import to_json
from provisioner.store import ledger, lock, measures, observations, series, tables, view_log
from provisioner.store.database import (
    BATCH_ROWS,
    Place,
    StoreConnection,
    batches,
    database_of,
    marks,
)
from provisioner.store.lease import Term
from provisioner.store.reader import Reader
from provisioner.store.tables import insert, write_meta
from provisioner.store.view_log import ViewLog
from provisioner.usage import RecordedRuns

P = ParamSpec("P")
T = TypeVar("T")

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


class SqlStore(store.Store):
    """:class:`provisioner.store.Store` in a SQLite file, or in a schema of a PostgreSQL server.

    ``keep_s``: retention of ended drones, plans and events. ``snapshots``: number of full snapshots
    of acting ticks that are kept. ``series_s``: retention of time series. ``ledger_s``: that of
    the days of the ledger. ``threaded``: work in one
    thread of its own, so that a slow disk does not stop the loop; without it, inline, for a loop on
    a virtual clock. ``birth`` is drawn for a new store unless given (for reproducible runs).
    ``shadow``: the record of a shadow, which keeps its observations as well. ``term``: that of a
    member that shares the record with others, and leads.
    """

    def __init__(
        self,
        path: Place,
        controller: str,
        keep_s: float,
        snapshots: int,
        threaded: bool = True,
        *,
        birth: str | None = None,
        series_s: float = series.SERIES_KEEP_S,
        ledger_s: float = ledger.LEDGER_KEEP_S,
        shadow: bool = False,
        term: Term | None = None,
    ) -> None:
        super().__init__()
        self.path = path
        self._controller = controller
        self._new_birth = birth
        self._keep_s = keep_s
        self._snapshots_kept = snapshots
        self._series_s = series_s
        self._ledger_s = ledger_s
        self._threaded = threaded
        self._shadow = shadow
        self._database = database_of(path)
        self.term = term
        self._worker: ThreadPoolExecutor | None = None
        self._sql: StoreConnection | None = None
        self._claim = ""
        self._state = None
        self._newest_plan = Plan(0, 0.0)
        self._view_log = ViewLog()
        self._newest: Snapshot | None = None
        """Snapshot of the newest record since the store was opened."""
        self._classes: Sequence[JobClass] = ()
        """Job classes of the newest view on record."""
        self._services: ServicesView | None = None
        """Newest view of services on record since the store was opened."""
        self._counts = measures.MetricCounts()
        """Counts for the next plan that is recorded."""

    async def __aenter__(self) -> Self:
        if self._sql is not None:
            raise store.StoreError(f"store {self.path} is already open here")
        if self._threaded:
            self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        try:
            await self._run(self._open)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._sql is not None:
            await self._run(self._close)
        self._state = None
        if self._worker is not None:
            self._worker.shutdown()
            self._worker = None
        self._database.release()

    @_on_worker
    def record(self, plan: Plan, snapshot: Snapshot) -> None:
        change = store.RecordChange.by_plan(plan)
        state = self.committed.after_plan(change, plan, snapshot)
        recorded_plan = store.without_refreshes(plan)
        keeps = plan.acts and self._snapshots_kept > 0
        parts = view_log.parts_of(snapshot) | ({"drones": snapshot.drones} if keeps else {})
        log = self._view_log
        self._view_log = ViewLog()  # should this fail
        with self._transaction() as sql:
            self._write_change(sql, change)
            passed = measures.counts_of_time(snapshot, change.drones, self.committed.recorded_at)
            served = measures.counts_of_services(snapshot.services.view, self._services)
            series.add_counts(sql, measures.counts_of_plan(plan), passed, served, self._counts)
            self._write_plan(sql, recorded_plan)
            newest_row = log.write(sql, parts)
            self._write_past_classes(sql, snapshot.overlay.view)
            if self._shadow:
                observations.write_observation(sql, observations.observed(snapshot))
            done = [(plan.tick, number) for number in plan.requests_done]
            sql.executemany(
                "UPDATE requests SET done_tick = ? WHERE id = ? AND done_tick IS NULL", done
            )
            if keeps:
                view_log.write_snapshot(sql, snapshot, newest_row, self._snapshots_kept)
            view_log.delete_unused(sql)
            moment = tables.moment_of(plan.at, snapshot.drift_s)
            self._write_state(sql, state, moment=moment)
        self._state = state
        self._newest_plan = recorded_plan
        self._view_log = log
        self._newest = snapshot
        self._services = snapshot.services.view or self._services
        if snapshot.overlay.view is not None:
            self._classes = snapshot.overlay.view.classes
        self._counts.clear()

    def count(self, counts: measures.MetricValues) -> None:
        self._counts.add_all(counts)

    @_on_worker
    def record_sample(self, at: float, gauges: measures.MetricValues) -> None:
        with self._transaction() as sql:
            series.add_sample(sql, at, gauges)

    @_on_worker
    def record_results(
        self,
        tick: int,
        moves: Sequence[StateChange],
        breakers: Sequence[Breaker],
        *,
        set_to: float | None = None,
    ) -> None:
        change = store.RecordChange.by_results(tick, moves, breakers)
        if not (change.drones or change.breakers or set_to is not None):
            return
        state = self.committed.after(change, set_to)
        with self._transaction() as sql:
            self._write_change(sql, change)
            moved = {} if set_to is None else {"moment": tables.moment_of(set_to, 0.0)}
            self._write_state(sql, state, **moved)
        self._state = state

    def _write_state(self, sql: StoreConnection, state: store.CommittedState, **more: str) -> None:
        write_meta(
            sql,
            tick=str(state.tick),
            next_serial=str(state.next_serial),
            at=repr(state.recorded_at),
            drift_s=repr(state.recorded_drift_s),
            **more,
        )

    def _write_change(self, sql: StoreConnection, change: store.RecordChange) -> None:
        live = self.committed.drones
        changed = [
            drone for drone_id, drone in change.drones.items() if drone != live.get(drone_id)
        ]
        insert(sql, "drones", *map(tables.drone_row, changed), keys=("id",))
        rows = [
            tables.TRANSITIONS.row(each, reason=to_json(each.reason)) for each in change.transitions
        ]
        insert(sql, "transitions", *rows)
        forgotten = [(str(breaker.scope),) for breaker in change.breakers if breaker.forgotten]
        sql.executemany("DELETE FROM breakers WHERE scope = ?", forgotten)
        kept = [
            {"scope": str(each.scope), "body": tables.pack(each)}
            for each in change.breakers
            if not each.forgotten
        ]
        insert(sql, "breakers", *kept, keys=("scope",))
        series.add_counts(sql, measures.counts_of_change(change, live, self.committed.breakers))

    def _write_plan(self, sql: StoreConnection, plan: Plan) -> None:
        """Write a plan, unless it does nothing and equals the one before but for its tick and time."""
        before = self._newest_plan
        if (
            self._newest is not None
            and not plan.acts
            and replace(before, tick=plan.tick, at=plan.at) == plan
        ):
            move_on = "UPDATE plans SET last_tick = ?, last_at = ? WHERE seq = (SELECT max(seq) FROM plans)"
            if sql.execute(move_on, (plan.tick, plan.at)).rowcount:
                return
        times = {"tick": plan.tick, "at": plan.at, "last_tick": plan.tick, "last_at": plan.at}
        insert(sql, "plans", {**times, "acting": plan.acts, "body": tables.pack(plan)})

    def _write_past_classes(self, sql: StoreConnection, view: OverlayView | None) -> None:
        """Write the classes that have left the queue since the tick before, or of which no job waits any more."""
        present = {job.id: job for job in (view.classes if view is not None else ())}
        past = []
        for job in self._classes if view is not None else ():
            now = present.get(job.id)
            if now is None or (job.idle and not now.idle):
                past.append(job)
        reasons = measures.reasons_by_class(self._newest_plan) if past else {}
        rows = []
        for job in past:
            given = (*reasons.get("", ()), *reasons.get(job.id, ()))
            reason = to_json(given[0]) if given and job.idle else None
            rows.append((job.id, self.committed.recorded_at, tables.pack(job), reason))
        sql.executemany(
            "INSERT INTO past_classes (id, seen_at, job, reason) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE"
            " SET seen_at = excluded.seen_at, job = excluded.job,"
            " reason = coalesce(excluded.reason, past_classes.reason)",
            rows,
        )

    @_on_worker
    def requests(self) -> tuple[OperatorRequest, ...]:
        with self._transaction() as sql:
            return tables.waiting_requests(sql)

    @_on_worker
    def event(self, at: float, name: str, fields: store.EventFields) -> None:
        with self._transaction() as sql:
            insert(sql, "events", {"at": at, "name": name, "fields": json.dumps(dict(fields))})

    @_on_worker
    def record_outputs(self, at: float, outputs: Mapping[DroneId, str]) -> None:
        rows = [
            {"drone_id": drone_id, "at": at, "body": zlib.compress(text.encode("utf-8", "replace"))}
            for drone_id, text in outputs.items()
        ]
        with self._transaction() as sql:
            insert(sql, "console_outputs", *rows, keys=("drone_id",))

    @_on_worker
    def record_completed(self, completions: Sequence[CompletedJob]) -> None:
        kinds = {kind.key: kind for kind in (self._newest.types if self._newest else ())}
        with self._transaction() as sql:
            new = [run for run in completions if tables.add_run(sql, run)]
            drones = dict[str, Drone]()
            for some in batches([run.drone_id for run in new]):
                found = tables.DRONES.select(sql, f"WHERE id IN ({marks(some)})", some)
                drones |= {str(drone.id): drone for drone in found}
            known = [(run, drones[run.drone_id]) for run in new if run.drone_id in drones]
            tables.add_held(sql, [(run, kinds.get(of.type)) for run, of in known])
            series.add_counts(
                sql, *(measures.counts_of_run(run, of, kinds.get(of.type)) for run, of in known)
            )

    @_on_worker
    def start_delays(self, since: float) -> list[tuple[TypeKey, float, float]]:
        with self._transaction() as sql:
            return tables.start_delays(sql, since)

    async def use(self, since: float, until: float) -> RecordedRuns:
        """Return as the base class does, without keeping the worker and writers waiting."""
        if self._worker is None:
            return Reader(self.path).use(since, until)
        return await asyncio.to_thread(Reader(self.path).use, since, until)

    @_on_worker
    def estimate_samples(self) -> EstimateSamples | None:
        with self._transaction() as sql:
            return tables.read_estimates(sql, self.path)

    @_on_worker
    def record_estimates(self, samples: EstimateSamples, resets: Sequence[int] = ()) -> None:
        try:
            # this takes a while: operators may write meanwhile
            body = tables.pack_estimates(samples)
        except ValueError as error:
            raise self._database.unrecordable(error) from error
        with self._transaction() as sql:
            insert(sql, "estimates", {"id": 1, "at": samples.at, "body": body}, keys=("id",))
            sql.executemany(
                "DELETE FROM estimate_resets WHERE id = ?", [(number,) for number in resets]
            )

    @_on_worker
    def estimate_resets(self) -> tuple[store.EstimateReset, ...]:
        with self._transaction() as sql:
            return tuple(tables.ESTIMATE_RESETS.select(sql, "ORDER BY id"))

    @_on_worker
    def ended(self, drone_ids: Sequence[DroneId]) -> Mapping[DroneId, DroneState]:
        found: dict[DroneId, DroneState] = {}
        with self._transaction() as sql:
            for some in batches(drone_ids):
                rows = sql.execute(
                    f"SELECT id, state FROM drones WHERE live = 0 AND id IN ({marks(some)})", some
                )
                found |= {DroneId(drone_id): DroneState(state) for drone_id, state in rows}
        return found

    @_on_worker
    def prune(self, now: float) -> bool:
        before = now - self._keep_s
        is_booking = self._book_due(now)
        with self._transaction() as sql:
            (newest,) = sql.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()
        kinds: list[tuple[str, str, str, Sequence[float]]] = [
            ("drones", "id", f"live = 0 AND ended_at < ? AND NOT {ledger.UNBOOKED}", (before,)),
            # the first transition of a drone on record stays, however old
            ("transitions", "seq", "at < ? AND was IS NOT NULL", (before,)),
            ("plans", "seq", "last_at < ?", (before,)),
            ("completed_jobs", "ended_at, job_id", "ended_at < ?", (before,)),
            ("use_days", "day, kind, use_step, vram_step", "day < ?", (before // tables.DAY_S,)),
            # of orphans: no drone on record goes with them
            ("console_outputs", "drone_id", "at < ?", (before,)),
            ("requests", "id", "done_tick IS NOT NULL AND at < ?", (before,)),
            ("events", "id", "at < ? OR id <= ?", (before, newest - MAX_EVENTS)),
            ("past_classes", "id", "seen_at < ?", (before,)),
            *(
                ("samples", "step_s, series, at", *old)
                for old in series.old_samples(now, self._series_s)
            ),
            *ledger.old_rows(now, self._keep_s, self._ledger_s),
            *([("observations", "seq", "last_at < ?", (before,))] if self._shadow else ()),
        ]
        more = [all(self._prune_batch(*kind) for _ in range(BATCHES_PER_PRUNING)) for kind in kinds]
        if newest := self._newest:
            with self._transaction() as sql:
                types = [kind.key for kind in newest.types]
                services = [each.name for each in newest.policy.services]
                series.forget(sql, newest.policy.sites, types, services)
        return is_booking or any(more)

    def _book_due(self, now: float) -> bool:
        """Book some drones in the ledger. Return True if there may be more. A shadow starts none."""
        if self._newest is None or self._shadow:
            return False
        types = {kind.key: kind for kind in self._newest.types}
        with self._transaction() as sql:
            return ledger.book_due(sql, now, types, self._keep_s)

    def _prune_batch(self, table: str, key: str, old: str, values: Sequence[float]) -> bool:
        """Delete some rows. Return True if there may be more."""
        batch = (
            f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE {old} LIMIT ?)"
        )
        with self._transaction() as sql:
            deleted: int = sql.execute(batch, (*values, BATCH_ROWS)).rowcount
            return deleted >= BATCH_ROWS

    def _open(self) -> None:
        self._sql, claim = self._database.hold(
            self._controller,
            self._new_birth,
            shadow=self._shadow,
            shared=self.term is not None,
        )
        if self._shadow:
            self._database.run_script(self._sql, observations.SCHEMA)
        if self.term is not None:
            self._database.end_writer(self._sql, self.term.epoch, self.term.nonce)
        self._newest = None
        self._services = None
        self._view_log = ViewLog()
        claims = not self._claim and self.term is None
        self._claim = self._claim or claim
        with self._transaction(claims=claims) as sql:
            meta = tables.read_meta(sql)
            if claims:
                self._database.refuse_claim(meta.get(lock.HOLDER, ""))
                write_meta(sql, **{lock.HOLDER: self._claim})
            newest = self._newest_plan = tables.read_newest_plan(sql)
            views = view_log.read_views(sql)
            if views is not None and views.overlay.view is not None:
                self._classes = views.overlay.view.classes
            self._state = store.CommittedState(
                birth=meta["birth"],
                tick=int(meta["tick"]),
                next_serial=int(meta["next_serial"]),
                drones=tables.live_drones(sql),
                breakers=tables.read_breakers(sql),
                patience=store.patience_of(newest),
                reserved=store.reserved_of(newest),
                services=store.services_of(newest),
                waiting_since=store.waiting_since(views.overlay if views is not None else None),
                recorded_at=float(meta["at"]),
                recorded_drift_s=float(meta.get("drift_s", 0.0)),
            )

    def _close(self) -> None:
        """Withdraw the claim, so that other processes may open the store while this one lives on."""
        connection = self._opened
        try:
            if self.term is None:
                # whoever writes for longer must not hold up the end
                self._database.limit_wait(connection, 1.0)
                with suppress(store.StoreError), self._transaction() as sql:
                    sql.execute("DELETE FROM meta WHERE key = ?", (lock.HOLDER,))
        finally:
            self._sql = None
            self._claim = ""
            connection.close()

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
    def _opened(self) -> StoreConnection:
        if self._sql is None:
            raise store.StoreError(f"store {self.path} is not open")
        return self._sql

    def _connected(self) -> StoreConnection:
        """Return the connection: a new one where the server has closed it.

        Raises :class:`StoreError` where that fails, or the record is not what this controller knows: a commit of
        which it got no reply. Then the next tick plans anew.
        """
        sql = self._opened
        if self._database.is_lost(sql):
            known = self._state
            self._open()
            if self._state != known:
                raise store.StoreError(
                    f"store {self.path}: the connection was lost during a commit that the server carried out: "
                    "the next tick recomputes the plan from the record"
                )
        return self._opened

    def _prove_holder(self, sql: StoreConnection) -> None:
        """Raise :class:`StoreHeldError` unless this controller holds the store, in the transaction of ``sql``."""
        row = sql.execute("SELECT value FROM meta WHERE key = ?", (lock.HOLDER,)).fetchone()
        if row is None or row[0] != self._claim:
            holder = lock.read_claim(row[0])[1] if row is not None else None
            raise lock.taken_over(self.path, holder)

    @contextmanager
    def _transaction(self, *, claims: bool = False) -> Iterator[StoreConnection]:
        """Yield the connection in a transaction: all or nothing, and durable at its end.

        It has the right to write from its first statement on: it cannot fail by a late lock
        upgrade. Raises :class:`StoreHeldError` if another controller claimed the store, whose lock
        file was removed or goes by another name; not if this one ``claims`` it now.
        """
        sql = self._connected()
        try:
            self._database.begin(sql)
            try:
                if not claims and self.term is None:
                    self._prove_holder(sql)
                yield sql
                if self.term is not None:
                    self.term.prove(sql)  # at the end: a renewal of the lease waits for it
                sql.execute("COMMIT")
                if self.term is not None:
                    self.term.writes += 1
            except BaseException:
                if sql.in_transaction:
                    with suppress(self._database.errors):
                        sql.execute("ROLLBACK")
                raise
        except self._database.errors as error:
            raise self._database.unusable(error) from error
        except (ValueError, OverflowError) as error:
            raise self._database.unrecordable(error) from error
