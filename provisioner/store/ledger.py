"""The ledger in the store: drones that are due are booked again, and the differences are added to the days."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from provisioner.accounting.entries import (
    NO_AMOUNTS,
    SECONDS_A_DAY,
    Amounts,
    DroneDay,
    DroneLife,
    Outcome,
    Run,
    RunDay,
    accounts_of,
    amounts_of,
    entries,
    instant,
)
from provisioner.accounting.reports import LedgerSum
from provisioner.accounting.verification import Finding, LedgerFinding, LedgerRun
from provisioner.keys import site_of, type_name
from provisioner.model import CompletedJob, Drone, DroneState, DroneType, TypeKey
from provisioner.store import tables
from provisioner.store.database import StoreConnection, marks
from provisioner.store.measures import LEAVING_STATES
from provisioner.usage import held_milli

SETTLES_DAYS = 7
"""Days after which a day settles, or fewer where the record is kept for less."""
DETAIL_S = 40 * 86400.0
"""Entries of runs and drones are kept for at least this long, so that there are those of a whole month."""
LEDGER_KEEP_S = 5 * 365 * 86400.0
DRONES_AT_ONCE = 200
_OPEN, _MARKED = "ledger_open", "ledger_marked"
_AMOUNT_COLUMNS = ("runs", "held", "used", "used_of", "energy_j", "energy_of", "cpu_s")
"""Columns of :data:`~provisioner.accounting.entries.Amounts`."""
_NEAR_S = 60.0
"""A run that ended so long before its drone was asked to leave ended for that reason."""


class LedgerKind(NamedTuple):
    site: str
    type: str
    model: str
    sharing: str
    accounting_group: str = ""
    vo: str = ""


class DroneRow(NamedTuple):
    drone_id: str
    day: int
    kind: int
    life: int
    boot: int
    jobs: int
    draining: int
    idle: int
    service: int


class RunRow(NamedTuple):
    drone_id: str
    ended_at: int
    job_id: str
    day: int
    kind: int
    outcome: str
    owner: str
    begun_at: int
    milli: int
    runs: int
    seconds: int
    held: int
    late: int
    used: int | None
    energy_j: int | None
    cpu_s: int | None
    memory_mib: int | None


def book_due(
    sql: StoreConnection, now: float, types: Mapping[TypeKey, DroneType], keep_s: float
) -> bool:
    """Book some of the drones that are due. Return True if there may be more.

    Once none is due, the days before the last ones settle.
    """
    meta = tables.read_meta(sql)
    today = int(now // SECONDS_A_DAY)
    open_day = int(meta.get(_OPEN) or _first_day(sql, today))
    midnight = today * SECONDS_A_DAY
    if int(meta.get(_MARKED, 0)) < today:
        sql.execute(
            "INSERT INTO ledger_due (drone_id, after) SELECT id, ? FROM drones WHERE live = 1 ON CONFLICT DO NOTHING",
            (midnight + 3600.0,),
        )
    tables.write_meta(sql, **{_OPEN: str(open_day), _MARKED: str(today)})
    due = [
        row[0]
        for row in sql.execute(
            "SELECT drone_id FROM ledger_due WHERE after <= ? ORDER BY after LIMIT ?",
            (now, DRONES_AT_ONCE),
        )
    ]
    if due:
        _book(sql, due, midnight, open_day, types, now - keep_s + SECONDS_A_DAY)
        return True
    settles = max(1, min(SETTLES_DAYS, int(keep_s // SECONDS_A_DAY) - 1))
    tables.write_meta(sql, **{_OPEN: str(max(open_day, today - settles))})
    return False


def _first_day(sql: StoreConnection, today: int) -> int:
    """Return the first day of a new ledger, or of one that begins in an older record."""
    (first,) = sql.execute(
        "SELECT min(coalesce(nullif(started_at, 0), joined_at)) FROM drones JOIN ledger_due ON id = drone_id"
    ).fetchone()
    return today if not first else min(today, int(first // SECONDS_A_DAY))


def _book(
    sql: StoreConnection,
    due: Sequence[str],
    midnight: int,
    open_day: int,
    types: Mapping[TypeKey, DroneType],
    since: float,
) -> None:
    of_due = f"WHERE drone_id IN ({marks(due)})"
    kinds = _Kinds(sql)
    facts = _RecordedFacts(sql, due, open_day, since)
    drone_rows = set[DroneRow]()
    run_rows = set[RunRow]()
    for drone in tables.DRONES.select(sql, f"WHERE id IN ({marks(due)})", due):
        made_drones, made_runs = _rows_of(drone, facts, midnight, open_day, types, kinds)
        drone_rows |= made_drones
        run_rows |= made_runs
    values = (*due, open_day)
    old_drones = {
        DroneRow(*row)
        for row in sql.execute(
            f"SELECT {', '.join(DroneRow._fields)} FROM ledger_drones {of_due} AND day >= ?", values
        )
    }
    old_runs = {
        RunRow(*row)
        for row in sql.execute(
            f"SELECT {', '.join(RunRow._fields)} FROM ledger_runs {of_due} AND day >= ?", values
        )
    }
    _replace(
        sql, "ledger_drones", ("drone_id", "day"), old_drones - drone_rows, drone_rows - old_drones
    )
    run_key = ("drone_id", "ended_at", "job_id", "day")
    _replace(sql, "ledger_runs", run_key, old_runs - run_rows, run_rows - old_runs)
    changes = defaultdict[tuple[int, int, str], list[int]](lambda: [0] * len(NO_AMOUNTS))
    for sign, drones, runs in (
        (-1, old_drones - drone_rows, old_runs - run_rows),
        (1, drone_rows - old_drones, run_rows - old_runs),
    ):
        for key, amounts in _amounts(drones, runs):
            changes[key] = [a + sign * b for a, b in zip(changes[key], amounts, strict=True)]
    _add_to_days(sql, changes)
    sql.execute(f"DELETE FROM ledger_due {of_due}", due)


class _Kinds(dict[LedgerKind, int]):
    """Numbers of kinds, which are recorded when they are first met."""

    def __init__(self, sql: StoreConnection) -> None:
        super().__init__()
        self._sql = sql

    def __missing__(self, kind: LedgerKind) -> int:
        row = kind._asdict()
        tables.insert(self._sql, "ledger_kinds", row, keep=True)
        where = " AND ".join(f"{name} = :{name}" for name in row)
        (number,) = self._sql.execute(
            f"SELECT kind FROM ledger_kinds WHERE {where}", row
        ).fetchone()
        self[kind] = number
        return int(number)


_NOT_SETTLED = """NOT EXISTS (
    SELECT 1 FROM ledger_runs AS booked WHERE booked.drone_id = completed_jobs.drone_id
        AND booked.ended_at <= completed_jobs.ended_at + 0.5 AND booked.ended_at > completed_jobs.ended_at - 0.5
        AND booked.job_id = completed_jobs.job_id AND booked.day < ? AND booked.runs > 0)"""
"""Condition for runs whose last part, which counts the run, is on no settled day."""


class _RecordedFacts:
    """Runs, states and settled entries of drones that are due.

    Of runs that ended on settled days there are those since ``since`` that were not booked there.
    """

    def __init__(
        self, sql: StoreConnection, due: Sequence[str], open_day: int, since: float
    ) -> None:
        of_due = f"WHERE drone_id IN ({marks(due)})"
        self.runs = defaultdict[str, list[tuple[CompletedJob, int | None]]](list)
        where = f"{of_due} AND ended_at >= ? AND (ended_at >= ? OR {_NOT_SETTLED})"
        open_at = float(open_day * SECONDS_A_DAY)
        ended = (*due, min(since, open_at), open_at, open_day)
        held = {
            (job_id, ended_at): milli
            for job_id, ended_at, milli in sql.execute(
                f"SELECT job_id, ended_at, held_milli FROM completed_jobs {where}", ended
            )
        }
        for run in tables.COMPLETED_JOBS.select(sql, where, ended):
            self.runs[run.drone_id or ""].append((run, held[run.job_id, run.ended_at]))
        self.states = defaultdict[str, list[tuple[float, str]]](list)
        for drone_id, at, state in sql.execute(
            f"SELECT drone_id, at, state FROM transitions {of_due} ORDER BY seq", due
        ):
            self.states[drone_id].append((at, state))
        settled = (*due, open_day)
        self.settled_life: Mapping[str, int] = dict(
            sql.execute(
                f"SELECT drone_id, sum(life) FROM ledger_drones {of_due} AND day < ? GROUP BY drone_id",
                settled,
            ).fetchall()
        )
        names = "runs", "seconds", "held", "late", "used", "energy_j", "cpu_s"
        sums = ", ".join(f"sum({name})" for name in names)
        self.settled_runs = {
            row[:3]: RunDay(*row[3:])
            for row in sql.execute(
                f"SELECT drone_id, job_id, ended_at, {sums} FROM ledger_runs {of_due} AND day < ?"
                " GROUP BY drone_id, job_id, ended_at",
                settled,
            )
        }


def _rows_of(
    drone: Drone,
    facts: _RecordedFacts,
    midnight: int,
    open_day: int,
    types: Mapping[TypeKey, DroneType],
    kinds: _Kinds,
) -> tuple[set[DroneRow], set[RunRow]]:
    life = _life_of(drone, facts, midnight, open_day)
    if life is None:
        return set(), set()
    kind = types.get(drone.type)
    model, sharing = (kind.gpu_model, kind.sharing.value) if kind else ("", "")
    base = LedgerKind(site_of(drone.type), type_name(drone.type), model, sharing)
    runs = dict[tuple[str, int], tuple[Run, CompletedJob]]()
    for job, milli in facts.runs[drone.id]:
        run = _run_of(job, milli, drone, kind, facts)
        if drone.state.ended or run.ended <= life.end:
            runs[run.job_id, run.ended] = run, job
    made = entries(life, [run for run, _ in runs.values()], open_day)
    own = kinds[base]
    drone_rows = {
        DroneRow(
            *(drone.id, day, own, each.life, each.boot, each.jobs),
            *(each.draining, each.idle, each.service),
        )
        for day, each in made.days.items()
        if life.milli
    }
    run_rows = set()
    for (day, job_id, ended), part in made.runs.items():
        run, job = runs[job_id, ended]
        run_kind = kinds[base._replace(accounting_group=job.group, vo=job.vo)]
        run_rows.add(
            RunRow(
                *(drone.id, ended, job_id, day, run_kind, run.outcome.value, job.owner),
                *(run.begun, run.milli, part.runs, part.seconds, part.held, part.late),
                *(part.used, part.energy_j, part.cpu_s, job.peak_memory_mib),
            )
        )
    return drone_rows, run_rows


def _life_of(drone: Drone, facts: _RecordedFacts, midnight: int, open_day: int) -> DroneLife | None:
    """Return the life of a drone up to its end, or to the last midnight; None if it had not begun by then."""
    began = instant(drone.started_at or drone.joined_at)
    end = instant(drone.ended_at) if drone.state.ended else midnight
    if drone.state.ended:
        began = min(began or end, end)
    elif not began or (end <= began and drone.id not in facts.settled_life):
        return None
    joined = instant(drone.joined_at) if drone.joined_at else max(began, end)
    settled_s = max(0, open_day * SECONDS_A_DAY - began)
    if drone.gpu_milli:
        settled_s = facts.settled_life.get(drone.id, 0) // drone.gpu_milli
    leaving = list[tuple[int, int]]()
    since: float | None = None
    for at, state in (*facts.states[drone.id], (float(end), DroneState.DONE)):
        is_leaving = DroneState(state) in LEAVING_STATES
        if is_leaving and since is None:
            since = at
        elif since is not None and not is_leaving:
            leaving.append((instant(since), instant(at)))
            since = None
    serves = bool(drone.service)
    return DroneLife(drone.gpu_milli, began, joined, end, leaving, settled_s, serves)


def _run_of(
    job: CompletedJob,
    milli: int | None,
    drone: Drone,
    kind: DroneType | None,
    facts: _RecordedFacts,
) -> Run:
    ended = instant(job.ended_at)
    run_s = instant(job.run_s)
    if milli is None:
        milli = held_milli(job.gpu_milli, job.vram_mib, job.splits, kind)
    return Run(
        job.job_id,
        ended - run_s,
        ended,
        min(milli, drone.gpu_milli),
        outcome_of(job, drone),
        None if job.used_milli is None or not drone.gpu_milli else job.used_milli * run_s,
        job.energy_j,
        job.used_cpu_s,
        facts.settled_runs.get((drone.id, job.job_id, ended)),
    )


def outcome_of(job: CompletedJob, drone: Drone) -> Outcome:
    """Return how a run ended, and so who ended it."""
    if not job.unfinished:
        return Outcome.FAILED if job.failed else Outcome.COMPLETED
    if drone.notice_at and job.ended_at > drone.notice_at - _NEAR_S:
        return Outcome.PREEMPTED
    if drone.state is DroneState.PREEMPTED and job.ended_at > drone.ended_at - _NEAR_S:
        return Outcome.PREEMPTED
    if drone.asked_at and job.ended_at > drone.asked_at - _NEAR_S:
        return Outcome.STOPPED
    return Outcome.EVICTED


def _replace(
    sql: StoreConnection,
    table: str,
    key: Sequence[str],
    gone: Iterable[DroneRow | RunRow],
    new: Iterable[DroneRow | RunRow],
) -> None:
    where = " AND ".join(f"{name} = :{name}" for name in key)
    sql.executemany(f"DELETE FROM {table} WHERE {where}", [row._asdict() for row in gone])
    tables.insert(sql, table, *(row._asdict() for row in new))


def _amounts(
    drones: Iterable[DroneRow], runs: Iterable[RunRow]
) -> Iterable[tuple[tuple[int, int, str], Amounts]]:
    """Yield what rows add to the days, by day, kind and account."""
    for row in drones:
        day = DroneDay(row.life, row.boot, row.jobs, row.draining, row.idle, row.service)
        for account, held in accounts_of(day).items():
            if held:
                yield (row.day, row.kind, account.value), (0, held, *NO_AMOUNTS[2:])
    for run in runs:
        part = RunDay(run.runs, run.seconds, run.held, run.late, run.used, run.energy_j, run.cpu_s)
        yield (run.day, run.kind, run.outcome), amounts_of(part)


def _add_to_days(
    sql: StoreConnection, changes: Mapping[tuple[int, int, str], Sequence[int]]
) -> None:
    sums = ", ".join(f"{name} = ledger_days.{name} + excluded.{name}" for name in _AMOUNT_COLUMNS)
    columns = ("day", "kind", "account", *_AMOUNT_COLUMNS)
    sql.executemany(
        f"INSERT INTO ledger_days ({', '.join(columns)}) VALUES ({marks(columns)})"
        f" ON CONFLICT (day, kind, account) DO UPDATE SET {sums}",
        [(*key, *amounts) for key, amounts in changes.items() if any(amounts)],
    )


def read_sums(sql: StoreConnection, first: int, end: int) -> list[LedgerSum]:
    """Return the sums of the days from ``first`` up to ``end``."""
    sums = ", ".join(f"sum({name}) AS {name}" for name in _AMOUNT_COLUMNS)
    kinds = f"SELECT kind, account, {sums} FROM ledger_days WHERE day >= ? AND day < ?"
    columns = ", ".join(LedgerSum._fields)
    query = f"SELECT {columns} FROM ({kinds} GROUP BY kind, account) AS sums JOIN ledger_kinds USING (kind)"
    return [LedgerSum._make(row) for row in sql.execute(query, (first, end))]


def read_days(sql: StoreConnection, first: int, end: int) -> list[tuple[int, str, int]]:
    """Return day, account and GPU-milliseconds of the days from ``first`` up to ``end``."""
    query = (
        "SELECT day, account, sum(held) FROM ledger_days WHERE day >= ? AND day < ?"
        " GROUP BY day, account"
    )
    return sql.execute(query, (first, end)).fetchall()


def read_lives(sql: StoreConnection, site: str, first: int, end: int) -> int:
    """Return what the drones of a site had in the days from ``first`` up to ``end``."""
    (found,) = sql.execute(
        "SELECT coalesce(sum(held), 0) FROM ledger_days JOIN ledger_kinds USING (kind)"
        " WHERE day >= ? AND day < ? AND account = 'life' AND site = ?",
        (first, end, site),
    ).fetchone()
    return int(found)


_OF_RUN = """
    SELECT drone_id, job_id, min(begun_at) AS begun_at, ended_at, max(site) AS site, max(type) AS type,
        max(model) AS model, max(accounting_group) AS accounting_group, max(vo) AS vo, max(owner) AS owner,
        max(outcome) AS outcome, max(milli) AS milli,
        sum(seconds) AS seconds, sum(held) AS held, sum(used) AS used, sum(energy_j) AS energy_j,
        sum(cpu_s) AS cpu_s, max(memory_mib) AS memory_mib
    FROM ledger_runs JOIN ledger_kinds USING (kind) WHERE {where}
    GROUP BY drone_id, ended_at, job_id ORDER BY ended_at, job_id"""


def read_runs(sql: StoreConnection, first: int, end: int) -> list[LedgerRun]:
    """Return the runs that ended on the days from ``first`` up to ``end``, whole."""
    found = sql.execute(
        _OF_RUN.format(where="ended_at >= ? AND ended_at < ?"),
        (first * SECONDS_A_DAY, end * SECONDS_A_DAY),
    )
    return [LedgerRun._make(row) for row in found]


def read_parts(sql: StoreConnection, first: int, end: int) -> list[LedgerRun]:
    """Return the parts of runs that are booked on the days from ``first`` up to ``end``."""
    found = sql.execute(_OF_RUN.format(where="day >= ? AND day < ?"), (first, end))
    return [LedgerRun._make(row) for row in found]


def find_unbalanced(sql: StoreConnection, first: int, end: int) -> list[LedgerFinding]:
    """Return days of drones, and of all, that do not add up, and drones without an entry."""
    days = (first, end)
    found = [
        LedgerFinding(
            Finding.UNBALANCED, day, drone_id=drone_id, text="its life is not the sum of its uses"
        )
        for drone_id, day in sql.execute(
            "SELECT drone_id, day FROM ledger_drones WHERE day >= ? AND day < ?"
            " AND life != boot + jobs + draining + idle + service",
            days,
        )
    ]
    runs = "SELECT drone_id, day, sum(held) AS held FROM ledger_runs WHERE day >= ? AND day < ? GROUP BY drone_id, day"
    for drone_id, day, jobs, held in sql.execute(
        "SELECT drone_id, day, jobs, coalesce(held, 0) FROM ledger_drones"
        f" LEFT JOIN ({runs}) AS booked USING (drone_id, day)"
        " WHERE day >= ? AND day < ? AND jobs != coalesce(held, 0)",
        (*days, *days),
    ):
        text = f"its runs held {held} GPU-ms, and {jobs} are booked as jobs"
        found.append(LedgerFinding(Finding.UNBALANCED, day, drone_id=drone_id, text=text))
    lives = "sum(CASE WHEN account = 'life' THEN held ELSE -held END)"
    for day, rest in sql.execute(
        f"SELECT day, {lives} FROM ledger_days WHERE day >= ? AND day < ? GROUP BY day HAVING {lives} != 0",
        days,
    ):
        found.append(LedgerFinding(Finding.UNBALANCED, day, text=f"{rest} GPU-ms are not booked"))
    began = "coalesce(nullif(started_at, 0), joined_at)"
    for drone_id, ended_at in sql.execute(
        f"SELECT id, ended_at FROM drones WHERE live = 0 AND ended_at >= ? AND ended_at < ? AND gpu_milli > 0"
        f" AND {began} > 0 AND ended_at - {began} >= 1 AND NOT {UNBOOKED}"
        " AND id NOT IN (SELECT drone_id FROM ledger_drones)",
        (first * SECONDS_A_DAY, end * SECONDS_A_DAY),
    ):
        text = "it has neither jobs nor idle time"
        day = int(ended_at // SECONDS_A_DAY)
        found.append(LedgerFinding(Finding.UNBOOKED, day, drone_id=drone_id, text=text))
    return found


def open_day(sql: StoreConnection) -> int:
    """Return the first day that has not settled; 0: nothing was booked yet."""
    return int(tables.read_meta(sql).get(_OPEN, 0))


def old_rows(
    now: float, keep_s: float, ledger_s: float
) -> Iterable[tuple[str, str, str, Sequence[float]]]:
    """Yield what is too old in the ledger, as table, key, condition and its values."""
    detail_day = (now - max(keep_s, DETAIL_S)) // SECONDS_A_DAY
    # the life of a drone that may be booked again is less what is settled of it
    gone = "day < ? AND drone_id NOT IN (SELECT id FROM drones)"
    yield "ledger_drones", "drone_id, day", gone, (detail_day,)
    yield "ledger_runs", "drone_id, ended_at, job_id, day", "day < ?", (detail_day,)
    yield "ledger_days", "day, kind, account", "day < ?", ((now - ledger_s) // SECONDS_A_DAY,)


UNBOOKED = "id IN (SELECT drone_id FROM ledger_due)"
"""Condition for drones that must stay until they are booked."""
