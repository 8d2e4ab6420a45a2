"""The operator's side of the store: beside a running controller, after one was killed, without one. Never migrates.

pydantic is imported only where a reason, a plan or a view is decoded: ``provisioner drones`` has to
answer quickly.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import fmean, median
from typing import Any, NamedTuple, TypeVar

from provisioner import model, store
from provisioner.accounting.reports import LedgerSum
from provisioner.accounting.verification import LedgerFinding, LedgerRun
from provisioner.estimates import EstimateSamples
from provisioner.keys import site_of
from provisioner.model import (
    CompletedJob,
    DrainMode,
    Drone,
    DroneId,
    DroneState,
    JobClass,
    Plan,
    Snapshot,
)
from provisioner.store import (
    ledger,
    patience_of,
    reserved_of,
    series,
    services_of,
    tables,
    view_log,
)
from provisioner.store.database import SHADOW, Place, StoreConnection, database_of, marks
from provisioner.store.file import MIGRATIONS
from provisioner.store.generations import Generation, adopted_of, read_generations
from provisioner.store.lease import Lease, Member, read_lease, read_members
from provisioner.store.lock import HOLDER, is_alive, read_claim, read_holder
from provisioner.store.measures import DroneCount, MetricKey
from provisioner.store.observations import Observation
from provisioner.usage import RecordedRuns

T = TypeVar("T")
_DYNAMIC_SLOT = re.compile(r"^(?P<parent>slot\d+)(?:_\d+)+@(?P<host>.+)$")
MAX_PAST_CLASSES = 10_000
"""Largest number of classes that have left the queue among which a short id is unique."""
ALL_ROWS = 2**63 - 1
"""Limit of a query for all rows."""
FIND_LIMIT = 100
"""Largest number of drones that one ambiguous id is answered with."""


class Reader:
    """The operator's side of the record: synchronous and quick; it never blocks the controller.

    It opens the store at ``path`` at each call, so that may come and go. Raises :class:`StoreError`
    if there is no store, :class:`StoreUnusableError` if it is damaged or of another schema.
    """

    def __init__(self, path: Place) -> None:
        self.path = path
        self.database = database_of(path)

    def holder(self) -> store.Holder | None:
        """Return the controller that runs now, if one does: of several members the one that leads."""
        try:
            holder = self.database.holder()
        except PermissionError:  # the lock is not for everybody: the record says who took it last
            with self._open() as sql:
                row = sql.execute("SELECT value FROM meta WHERE key = ?", (HOLDER,)).fetchone()
            holder = read_claim(row[0])[1] if row else None
            holder = holder if holder is not None and is_alive(holder) is not False else None
        return holder or self._leader()

    def _leader(self) -> store.Holder | None:
        """Return the member that leads, of several that share this record."""
        try:
            lease, members = self.lease()
        except store.StoreError:
            return None
        for each in members:
            if lease.is_held and each.name == lease.member:
                return replace(read_holder(each.holder), since=lease.since_at)
        return None

    def lease(self) -> tuple[Lease, list[Member]]:
        """Return the lease of the members that share this record, and the members; none if one alone uses it."""
        with self._open() as sql:
            return read_lease(sql, self.database.clock), read_members(sql)

    def generation(self) -> Generation | None:
        """Return the generation of the configuration that members decide by."""
        with self._open() as sql:
            return adopted_of(read_generations(sql))

    def now(self) -> float:
        """Return the time on the controller's clock; see :func:`provisioner.store.tables.controller_now`."""
        with self._open() as sql:
            return tables.controller_now(sql)

    def controller(self) -> str:
        """Return the name of the controller whose record this is."""
        with self._open() as sql:
            return tables.read_meta(sql).get("controller", "")

    def is_shadow(self) -> bool:
        """Return True for the record of a shadow, which starts nothing."""
        with self._open() as sql:
            return SHADOW in tables.read_meta(sql)

    def observations(self, since: float) -> list[Observation]:
        """Return the observations of a shadow after ``since``, oldest first. One that began before begins then."""
        query = "SELECT body, at, last_at FROM observations WHERE last_at >= ? ORDER BY seq"
        rows = self._rows(query, since)
        return [
            replace(tables.unpack(Observation, body), at=max(at, since), last_at=end)
            for body, at, end in rows
        ]

    def drones(
        self,
        *,
        ended: bool | None = False,
        sites: Sequence[str] = (),
        states: Sequence[DroneState] = (),
        types: Sequence[str] = (),
        nodes: Sequence[str] = (),
        having: str = "",
        limit: int | None = None,
        first: int | None = None,
        after: Drone | None = None,
    ) -> list[Drone]:
        """Return drones by request time, newest last; ``limit`` keeps the newest, ``first`` the oldest.

        ``ended``: False only live ones, True only ended ones, None both. ``types`` by key
        (``site/type``) or by name alone; ``nodes`` by whole name or by the part before the first
        dot. ``having``: only those in which this field is neither empty nor 0. ``after``: only those
        behind this one.
        """
        where, values = _drones_where(sites, states, types, nodes)
        if having:
            where += f" AND CAST({having} AS TEXT) NOT IN ('', '0', '0.0')"
        if after is not None:
            where += " AND requested_at >= ? AND (requested_at, serial, id) > (?, ?, ?)"
            values += [
                after.requested_at,
                after.requested_at,
                store.serial_of(after.id) or 0,
                after.id,
            ]
        order = (
            "requested_at, serial, id"
            if limit is None
            else "requested_at DESC, serial DESC, id DESC"
        )
        most = first if limit is None else limit
        rest = f"WHERE live = ?{where} ORDER BY {order} LIMIT ?"
        found = list[Drone]()
        with self._open() as sql:
            # one range of the index each
            for live in (True, False) if ended is None else (not ended,):
                found += tables.DRONES.select(
                    sql, rest, (live, *values, ALL_ROWS if most is None else most)
                )
        if ended is None:
            found.sort(
                key=lambda drone: (drone.requested_at, store.serial_of(drone.id) or 0, drone.id)
            )
        elif limit is not None:
            found.reverse()
        if limit is not None:
            return found[max(0, len(found) - limit) :]
        return found[:first]

    def count_drones(self, *, ended: bool | None = False, **chosen: Sequence[str]) -> int:
        """Return the number of drones that :meth:`drones` would return without a limit."""
        where, values = _drones_where(**chosen)
        lives = (True, False) if ended is None else (not ended,)
        query = f"SELECT count(*) FROM drones WHERE live = ?{where}"
        with self._open() as sql:
            return sum(int(sql.execute(query, (live, *values)).fetchone()[0]) for live in lives)

    def live_counts(self) -> list[DroneCount]:
        """Return the live drones by type and state, in the order of the first of each."""
        query = (
            "SELECT type, state, count(*), sum(gpu_milli), count(nullif(drain_refusal, '')), max(service)"
            " FROM drones WHERE live = 1 GROUP BY type, state ORDER BY min(requested_at), min(serial)"
        )
        with self._open() as sql:
            return [
                DroneCount(kind, DroneState(state), *counts)
                for kind, state, *counts in sql.execute(query)
            ]

    def live_by_class(self, class_ids: Sequence[str] = ()) -> Counter[str]:
        """Return the number of live drones that were started for some job classes, by default for each."""
        chosen = f"AND for_class IN ({marks(class_ids)})" if class_ids else ""
        query = f"SELECT for_class, count(*) FROM drones WHERE live = 1 {chosen} GROUP BY for_class"
        return Counter(dict(self._rows(query, *class_ids)))

    def drones_for(self, class_id: str) -> tuple[int, Drone] | None:
        """Return the number of drones that were started for a job class, and the newest; None if there are none."""
        with self._open() as sql:
            count, newest = sql.execute(
                "SELECT count(*), max(serial) FROM drones WHERE for_class = ?", (class_id,)
            ).fetchone()
            found = tables.DRONES.select(
                sql, "WHERE serial = ? AND for_class = ?", (newest, class_id)
            )
            return (count, next(found)) if count else None

    def past_classes(self, prefix: str) -> list[store.PastClass]:
        """Return the job classes with ids that begin with ``prefix``, as they were last seen, newest first.

        An empty prefix begins none.
        """
        if not prefix:
            return []
        rest = "WHERE substr(id, 1, ?) = ? ORDER BY seen_at DESC LIMIT ?"
        return self._select(tables.PAST_CLASSES, rest, len(prefix), prefix, MAX_PAST_CLASSES)

    def past_class_ids(self) -> list[str]:
        """Return the ids of the newest job classes that have left the queue, or of which no job waits any more."""
        query = "SELECT id FROM past_classes ORDER BY seen_at DESC LIMIT ?"
        return [class_id for (class_id,) in self._rows(query, MAX_PAST_CLASSES)]

    def drone(self, drone_id: DroneId) -> Drone | None:
        """Return one drone, if it is on record."""
        return next(iter(self._select(tables.DRONES, "WHERE id = ?", drone_id)), None)

    def find(self, any_id: str) -> list[DroneId]:
        """Return the drones that an id of any kind means, newest first.

        That is: our drone id (or a unique prefix or its serial), the site's remote id, the
        overlay's slot name, or the site's name of its slot. Exact ids win over prefixes, and live
        drones over ended ones, as sites use their ids again.
        """
        if not any_id or any(0xD800 <= ord(letter) < 0xE000 for letter in any_id):
            return []  # arguments of a command may be any bytes, and SQLite takes only text
        ascii_id = any_id.isascii()
        serial = None
        if len(any_id) <= 18 and ascii_id and any_id.isdecimal():
            serial = int(any_id)
        dynamic = _DYNAMIC_SLOT.match(any_id)  # it belongs to the drone of its parent
        parent = f"{dynamic['parent']}@{dynamic['host']}" if dynamic else any_id
        newest_first = " ORDER BY live DESC, requested_at DESC, serial DESC, id DESC LIMIT ?"
        with self._open() as sql:
            if sql.execute("SELECT 1 FROM drones WHERE id = ?", (any_id,)).fetchone():
                return [DroneId(any_id)]
            rows = sql.execute(
                # one index each, which an OR would not use as surely
                "SELECT id, live FROM drones WHERE id IN (SELECT id FROM drones WHERE serial = ?"
                " UNION SELECT id FROM drones WHERE remote_id = ?"
                " UNION SELECT id FROM drones WHERE site_slot = ?"
                " UNION SELECT id FROM drones WHERE slot IN (?, ?))" + newest_first,
                (serial, any_id, any_id, any_id, parent, FIND_LIMIT),
            ).fetchall()
            if not rows and ascii_id:
                # the least text above all that begin with it
                above = any_id[:-1] + chr(ord(any_id[-1]) + 1)
                with_prefix = "SELECT id, live FROM drones WHERE id >= ? AND id < ?" + newest_first
                rows = sql.execute(with_prefix, (any_id, above, FIND_LIMIT)).fetchall()
        some_live = any(live for _, live in rows)
        return [DroneId(drone_id) for drone_id, live in rows if live or not some_live]

    def history(self, drone_id: DroneId) -> list[store.Transition]:
        """Return the transitions of one drone, oldest first."""
        return self._select(tables.TRANSITIONS, "WHERE drone_id = ? ORDER BY seq", drone_id)

    def last_output(self, drone_id: DroneId) -> str:
        """Return its last output as its site reported it; empty if there is none."""
        rows = self._rows("SELECT body FROM console_outputs WHERE drone_id = ?", drone_id)
        return zlib.decompress(rows[0][0]).decode("utf-8", "replace") if rows else ""

    def transitions(
        self, *, since: float = 0.0, after: int = 0, limit: int = 1000, by_time: bool = False
    ) -> list[tuple[int, store.Transition]]:
        """Return transitions of all drones with their sequence numbers, in that order or ``by_time``."""
        rest = _rows_after("seq", by_time)
        values = (after, since, limit)
        with self._open() as sql:
            numbers = [
                number for (number,) in sql.execute(f"SELECT seq FROM transitions {rest}", values)
            ]
            return [*zip(numbers, tables.TRANSITIONS.select(sql, rest, values), strict=True)]

    def hazards(self, since: float, now: float) -> list[store.Hazard]:
        """Return preemption statistics from ``since`` to ``now`` by scope, of drones that are still on record."""
        lost = "(state = 'preempted' OR notice_at != 0 OR lost_gpu_s != 0 OR lost_jobs != 0)"
        ran_s = f"max(0, min(coalesce(nullif(ended_at, 0), ?3), ?3) - max({tables.BEGAN}, ?2))"
        own_s = f"CASE WHEN {tables.BEGAN} > 0 THEN {ran_s} ELSE 0 END"
        chosen = "FROM drones WHERE live = ?1 AND ended_at >= ?4 AND"
        query = (
            f"SELECT type, state, {tables.BEGAN}, ended_at, notice_at, gpu_milli, lost_gpu_s, lost_jobs, 1,"
            f" {own_s} {chosen} {lost} AND ({tables.BEGAN} > 0 OR state = 'preempted')"
            f" UNION ALL SELECT type, '', 0, 0, 0, 0, 0, 0, count(*), sum({ran_s}) {chosen} NOT {lost}"
            f" AND {tables.BEGAN} > 0 GROUP BY type"
        )
        found = list[DroneLifetime]()
        with self._open() as sql:
            for live in (True, False):  # one range of the index each
                found += map(
                    DroneLifetime._make,
                    sql.execute(query, (live, since, now, 0.0 if live else since)),
                )
        return hazards_of(found)

    def completions(
        self, since: float, until: float, cluster: int | None = None
    ) -> list[CompletedJob]:
        """Return jobs that completed from ``since`` on and before ``until``, in the order of their ends.

        ``cluster``: only those with this number in front of the process in their ids, or in those of the jobs whose
        routed copies they were.
        """
        rest = "WHERE ended_at >= ? AND ended_at < ? AND unfinished = 0"
        values = [since, until]
        if cluster is not None:
            rest += f" AND instr('#' || job_id || '.#' || routed_from || '.', '#{cluster}.') > 0"
        return self._select(tables.COMPLETED_JOBS, f"{rest} ORDER BY ended_at, job_id", *values)

    def peak_vram_mib(self, job: JobClass) -> int:
        """Return the largest use of memory per GPU that was measured in jobs of the class; 0: none was."""
        alike = "owner = ? AND gpu_milli = ? AND cpus = ? AND memory_mib = ?"
        query = f"SELECT max(peak_vram_mib) FROM completed_jobs WHERE {alike}"
        rows = self._rows(query, job.owner, job.gpu_milli, job.cpus, job.memory_mib)
        return rows[0][0] or 0

    def use(self, since: float, until: float, *given: Any, **more: Any) -> RecordedRuns:
        """Return as :func:`tables.read_use <provisioner.store.tables.read_use>`."""
        with self._open() as sql:
            return tables.read_use(sql, view_log.slot_work(sql), since, until, *given, **more)

    def ledger_sums(self, first: int, end: int) -> list[LedgerSum]:
        """Return the sums of the ledger over days, counted from the epoch; ``end`` is not included."""
        with self._open() as sql:
            return ledger.read_sums(sql, first, end)

    def ledger_days(self, first: int, end: int) -> list[tuple[int, str, int]]:
        """Return day, account and GPU-milliseconds of these days."""
        with self._open() as sql:
            return ledger.read_days(sql, first, end)

    def ledger_lives(self, site: str, first: int, end: int) -> int:
        """Return the GPU-milliseconds that drones of a site had on these days."""
        with self._open() as sql:
            return ledger.read_lives(sql, site, first, end)

    def ledger_runs(self, first: int, end: int, *, parts: bool = False) -> list[LedgerRun]:
        """Return the runs that ended on these days; with ``parts`` what is booked on them of all runs."""
        with self._open() as sql:
            return (ledger.read_parts if parts else ledger.read_runs)(sql, first, end)

    def ledger_findings(self, first: int, end: int) -> list[LedgerFinding]:
        """Return what does not add up in the ledger on these days."""
        with self._open() as sql:
            return ledger.find_unbalanced(sql, first, end)

    def ledger_open_day(self) -> int:
        """Return the first day of the ledger that has not settled; 0: nothing was booked yet."""
        with self._open() as sql:
            return ledger.open_day(sql)

    def most_unused(self, since: float, limit: int) -> tuple[list[DroneId], int]:
        """Return the drones whose runs left most GPU time unused, and the number of all with runs."""
        rows = self._rows(tables.MOST_UNUSED, since, limit)
        return [row[0] for row in rows], rows[0][1] if rows else 0

    def estimate_samples(self) -> EstimateSamples | None:
        """Return the recorded samples of the estimates. Raises :class:`EstimatesUnreadableError`."""
        with self._open() as sql:
            return tables.read_estimates(sql, self.path)

    def plans(self, *, limit: int = 20, since: float = 0.0, acting: bool = False) -> list[Plan]:
        """Return plans that differ from the one before, newest last; with ``acting`` only those that did something.

        ``tick`` and ``at`` are those of the last repetition.
        """
        conditions = ["last_at >= :since"] * (since > 0) + ["acting = 1"] * acting
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        query = f"SELECT last_tick, last_at, body FROM plans{where} ORDER BY seq DESC LIMIT :limit"
        with self._open() as sql:
            rows = sql.execute(query, {"since": since, "limit": limit}).fetchall()
            return [
                replace(tables.unpack(Plan, body), tick=tick, at=at)
                for tick, at, body in reversed(rows)
            ]

    def events(
        self, *, since: float = 0.0, after: int = 0, limit: int = 1000, by_time: bool = False
    ) -> list[store.Event]:
        """Return recorded events with a number above ``after``, by that number or ``by_time``."""
        return self._select(tables.EVENTS, _rows_after("id", by_time), after, since, limit)

    def recent_events(self, since: float, names: Iterable[str], last: int) -> list[store.Event]:
        """Return the events since a time, the newest of each of ``names``, and the ``last`` ones, oldest first."""
        chosen = (*names,)
        rest = (
            f"WHERE at >= ? OR id IN (SELECT max(id) FROM events WHERE name IN ({marks(chosen)})"
            " GROUP BY name) OR id IN (SELECT id FROM events ORDER BY id DESC LIMIT ?) ORDER BY id"
        )
        return self._select(tables.EVENTS, rest, since, *chosen, last)

    def count_happenings(self, since: float, step: int = 0, event: int = 0) -> int:
        """Return the number of transitions and events since a time, with numbers above ``step`` and ``event``."""
        query = (
            "SELECT (SELECT count(*) FROM transitions WHERE at >= ?1 AND seq > ?2)"
            " + (SELECT count(*) FROM events WHERE at >= ?1 AND id > ?3)"
        )
        return int(self._rows(query, since, step, event)[0][0])

    def position(self) -> RecordPosition:
        """Return how far the record has come. Nothing on record changes without it; cheap."""
        (row,) = self._rows(
            "SELECT coalesce((SELECT value FROM meta WHERE key = 'tick'), '0'),"
            " coalesce((SELECT max(seq) FROM transitions), 0), coalesce((SELECT max(id) FROM events), 0),"
            " coalesce((SELECT max(id) FROM requests), 0), coalesce((SELECT max(id) FROM estimate_resets), 0)"
        )
        return RecordPosition(*map(int, row))

    def views(self) -> store.Views | None:
        """Return the newest views without slots, completions, listed drones and refusals; None in a new store."""
        with self._open() as sql:
            return view_log.read_views(sql)

    def with_refusals(self, classes: Iterable[JobClass]) -> tuple[JobClass, ...]:
        """Return job classes of the newest views with the types that they refuse."""
        with self._open() as sql:
            return view_log.with_refusals(sql, classes)

    def slots(self) -> tuple[model.Slot, ...]:
        """Return the slots of the drones as the overlay showed them last."""
        with self._open() as sql:
            return tuple(view_log.read_part(sql, "slots").values())

    def gpus_offline(self, drone_id: DroneId) -> int:
        """Return how many GPUs of a drone its checks have taken offline, by the newest views."""
        with self._open() as sql:
            slots = view_log.slot_work(sql, drone_id)
            return next((each.gpus_offline for each in slots if each.drone_id == drone_id), 0)

    def counters(self) -> Mapping[MetricKey, float]:
        """Return the counters since the store was created."""
        rows = self._rows("SELECT metric, labels, value FROM counters")
        return {
            MetricKey(metric, tuple(json.loads(labels).items())): value
            for metric, labels, value in rows
        }

    def series(self, metric: str, since: float, until: float, step_s: float) -> list[series.Series]:
        """Return the time series of a metric; see :func:`provisioner.store.series.read_series`."""
        with self._open() as sql:
            return series.read_series(sql, metric, since, until, step_s)

    def breakers(self) -> Mapping[model.Scope, model.Breaker]:
        """Return the circuit breakers by scope."""
        with self._open() as sql:
            return tables.read_breakers(sql)

    def snapshot(self, tick: int | None = None) -> Snapshot | None:
        """Return the snapshot of a recorded acting tick, as long as it is kept.

        None: the snapshot with which the next tick would begin, as of the time of the newest views.
        """
        with self._open() as sql:
            if tick is not None:
                return view_log.read_snapshot(sql, tick)
            if not view_log.read_part(sql, "policy"):
                return None
            meta = tables.read_meta(sql)
            newest = tables.read_newest_plan(sql)
            return Snapshot(
                now=float(meta["at"]),
                tick=int(meta["tick"]) + 1,
                id_prefix=f"{meta['controller']}-{meta['birth']}",
                next_serial=int(meta["next_serial"]),
                drones=tables.live_drones(sql),
                breakers=tables.read_breakers(sql),
                patience=patience_of(newest),
                reserved=reserved_of(newest),
                service_states=services_of(newest),
                requests=tables.waiting_requests(sql),
                **view_log.read_parts(sql),
            )

    def kept_snapshots(self) -> list[int]:
        """Return the ticks whose snapshots are kept."""
        return [tick for (tick,) in self._rows("SELECT tick FROM snapshots ORDER BY tick")]

    def ask(
        self,
        kind: model.RequestKind,
        drone_ids: Sequence[DroneId],
        *,
        reason: str,
        by: str,
        at: float,
        mode: DrainMode = DrainMode.PEACEFUL,
    ) -> int:
        """Record a request for the next tick of the controller, and an event that tells it. Return its number."""
        ids = json.dumps(list(drone_ids))
        row = {"at": at, "kind": kind, "mode": mode, "drone_ids": ids, "reason": reason, "by": by}
        with self._open(write=True) as sql:
            tables.insert(sql, "requests", row)
            (number,) = sql.execute("SELECT max(id) FROM requests").fetchone()
            told = {
                "request": number,
                "kind": kind,
                "by": by,
                "reason": reason,
                "of": ", ".join(drone_ids)[:2000] or "the configuration",
            }
            tables.insert(
                sql, "events", {"at": at, "name": "request.recorded", "fields": json.dumps(told)}
            )
            return int(number)

    def requests(self) -> tuple[model.OperatorRequest, ...]:
        """Return the requests that are not carried out yet, and those that disable sites, oldest first."""
        with self._open() as sql:
            return tables.waiting_requests(sql)

    def ask_estimate_reset(self, what: str, *, reason: str, by: str, at: float) -> None:
        """Record a request to forget estimates: carried out within a minute, or when a controller runs."""
        with self._open(write=True) as sql:
            tables.insert(
                sql, "estimate_resets", {"at": at, "what": what, "reason": reason, "by": by}
            )

    def estimate_resets(self) -> tuple[store.EstimateReset, ...]:
        """Return the requests to forget that are not carried out yet."""
        return tuple(self._select(tables.ESTIMATE_RESETS, "ORDER BY id"))

    def _rows(self, query: str, *values: object) -> list[Any]:
        with self._open() as sql:
            rows: list[Any] = sql.execute(query, values).fetchall()
            return rows

    def _select(self, table: tables.Table[T], rest: str, *values: object) -> list[T]:
        """Return rows of a table as values; see :meth:`Table.select <provisioner.store.tables.Table.select>`."""
        with self._open() as sql:
            return [*table.select(sql, rest, values)]

    @contextmanager
    def _open(self, *, write: bool = False) -> Iterator[StoreConnection]:
        """Yield a connection in one transaction, so that several queries see one state."""
        try:
            sql = self.database.reading(write=write)
            try:
                version = self.database.version(sql)
                if version < len(MIGRATIONS):
                    raise store.StoreUnusableError(
                        f"store {self.path} has the older schema {version}: `provisioner run` brings it up to "
                        f"{len(MIGRATIONS)}"
                    )
                yield sql
                sql.execute("COMMIT")
            finally:
                self.database.done(sql)
        except (ValueError, zlib.error) as error:
            raise store.StoreUnusableError(
                f"store {self.path}: a record cannot be read, another version wrote it or it is damaged: {error}"
            ) from error
        except self.database.errors as error:
            if not self.database.exists():
                raise store.StoreError(
                    f"there is no store {self.path}: `provisioner run` creates it"
                ) from error
            raise self.database.unusable(error) from error


def _rows_after(key: str, by_time: bool) -> str:
    """Return the rest of a query for rows with a ``key`` above a number, since a time, up to a limit."""
    order = f"at, {key}" if by_time else key
    return f"WHERE {key} > ? AND at >= ? ORDER BY {order} LIMIT ?"


class RecordPosition(NamedTuple):
    """Newest numbers of what is on record."""

    tick: int
    step: int
    event: int
    request: int
    reset: int


class DroneLifetime(NamedTuple):
    """Life of a drone that lost something, or of all other drones of a type together."""

    type: str
    state: str
    began: float
    ended_at: float
    notice_at: float
    gpu_milli: int
    lost_gpu_s: float
    lost_jobs: int
    drones: int
    run_s: float


def _drones_where(
    sites: Sequence[str] = (),
    states: Sequence[str] = (),
    types: Sequence[str] = (),
    nodes: Sequence[str] = (),
) -> tuple[str, list[object]]:
    """Return further conditions on drones, as ``AND ...``, with their values."""
    where = ""
    values = list[object]()
    for columns, wanted in (
        (("site",), sites),
        (("state",), states),
        (("type", "substr(type, instr(type, '/') + 1)"), types),
        (("node", "substr(node, 1, instr(node || '.', '.') - 1)"), nodes),
    ):
        if wanted:
            found = (f"{column} IN ({marks(wanted)})" for column in columns)
            where += f" AND ({' OR '.join(found)})"
            values += [*wanted] * len(columns)
    return where, values


def hazards_of(drones: Iterable[DroneLifetime]) -> list[store.Hazard]:
    """Return one :class:`Hazard` per site and one per drone type, sites before their types."""
    by_scope: dict[str, list[DroneLifetime]] = {}
    for drone in drones:
        for scope in (site_of(drone.type), drone.type):
            by_scope.setdefault(scope, []).append(drone)
    return [_hazard(scope, by_scope[scope]) for scope in sorted(by_scope)]


def _hazard(scope: str, drones: Sequence[DroneLifetime]) -> store.Hazard:
    ended = [drone for drone in drones if drone.ended_at]
    preempted = [drone for drone in ended if drone.state == DroneState.PREEMPTED]
    lives_s = [max(0.0, drone.ended_at - drone.began) for drone in preempted if drone.began]
    graces_s = [max(0.0, drone.ended_at - drone.notice_at) for drone in ended if drone.notice_at]
    return store.Hazard(
        scope=scope,
        drones=sum(drone.drones for drone in drones),
        run_s=sum(drone.run_s for drone in drones),
        preempted=len(preempted),
        life_mean_s=fmean(lives_s) if lives_s else None,
        life_median_s=median(lives_s) if lives_s else None,
        grace_mean_s=fmean(graces_s) if graces_s else None,
        lost_gpu_s=sum((drone.lost_gpu_s for drone in ended if drone.gpu_milli), 0.0),
        lost_cpu_s=sum((drone.lost_gpu_s for drone in ended if not drone.gpu_milli), 0.0),
        lost_jobs=sum(drone.lost_jobs for drone in ended),
    )
