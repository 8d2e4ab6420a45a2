"""The ledger over months with late runs, clock steps, pauses of the controller, and drones of every kind of end."""

from __future__ import annotations

import calendar
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from provisioner import model as m
from provisioner.accounting.entries import SECONDS_A_DAY, Account, Outcome
from provisioner.reasons import JobsWaiting
from provisioner.serialization import to_json
from provisioner.store import ledger, tables
from provisioner.store.database import Place, StoreConnection, database_of
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore
from tests.store.story import KEEP_S, drone, record, rows, starts, store_at

S = m.DroneState
HOUR = 3600.0
QUARTERS = m.DroneType("topas", "a100-4", 1000, 8, 20480, 51200, sharing=m.Sharing.MPS, shares=4)
WHOLE = m.DroneType("horeka", "h100", 2000, 8, 20480, 51200, gpu_model="H100")
CPUS = m.DroneType("topas", "cpu", 0, 8, 20480, 51200)
SERVER = m.DroneType("topas", "triton", 1000, 8, 20480, 51200)
TYPES = {kind.key: kind for kind in (QUARTERS, WHOLE, CPUS, SERVER)}
ENDS = (S.DONE, S.PREEMPTED, S.FAILED, S.LOST, S.JOIN_TIMEOUT, S.CANCELLED)
ACCOUNTS = tuple(Account)
KEEP_DAYS = 20


@dataclass
class Months:
    """A record that lives through random days, by a generator of its own."""

    sql: StoreConnection
    dice: random.Random
    now: float = 20_000.0 * SECONDS_A_DAY
    live: dict[str, m.Drone] = field(default_factory=dict)
    lives: dict[str, int] = field(default_factory=dict)
    """GPU-milliseconds of each ended drone."""
    late: list[tuple[float, m.CompletedJob]] = field(default_factory=list)
    """Runs that the queue reports at a later time."""
    serial: int = 0
    energy_j: int = 0
    runs: int = 0
    open_day: int = 20_000
    settled: dict[int, list[tuple[object, ...]]] = field(default_factory=dict)
    """Rows of each day when it settled."""

    def day(self) -> None:
        for _ in range(self.dice.randrange(3)):
            self._start()
        for each in list(self.live.values()):
            self._live_on(each)
        if self.dice.random() < 0.03:
            self._step_clock(self.dice.choice([-1, 1]) * self.dice.uniform(60, 5 * HOUR))
        self.now += SECONDS_A_DAY
        for at, run in [each for each in self.late if each[0] <= self.now]:
            self.late.remove((at, run))
            tables.add_run(self.sql, run)
            self.energy_j += run.energy_j or 0
            self.runs += 1
        if self.dice.random() > 0.1:  # else it is off, or busy
            self.book()

    def _start(self) -> None:
        self.serial += 1
        kind = self.dice.choice([QUARTERS, QUARTERS, WHOLE, CPUS, SERVER])
        began = self.now + self.dice.uniform(0, SECONDS_A_DAY - 1)
        made = drone(self.serial, S.BOOTING, at=began, started_at=began)
        made = replace(made, type=kind.key, gpu_milli=kind.gpu_milli)
        made = replace(made, service="cms" if kind is SERVER else "")
        if self.dice.random() < 0.9:
            made = replace(made, state=S.IDLE, joined_at=began + self.dice.uniform(1, 900))
        self._write(made)

    def _write(self, each: m.Drone) -> None:
        tables.insert(self.sql, "drones", tables.drone_row(each), keys=("id",))
        step = {"drone_id": each.id, "at": each.since, "was": "idle", "state": each.state.value}
        reason = to_json(JobsWaiting("c", "c", waiting=1, covered=0, starts=1))
        tables.insert(self.sql, "transitions", step | {"reason": reason, "tick": 1})
        if each.state.ended:
            self.live.pop(each.id, None)
            amount = each.gpu_milli * (
                int(each.ended_at + 0.5) - int((each.started_at or each.joined_at) + 0.5)
            )
            self.lives[each.id] = amount
        else:
            self.live[each.id] = each

    def _live_on(self, each: m.Drone) -> None:
        for n in range(0 if each.service else self.dice.randrange(3)):
            ended = self.now + self.dice.uniform(0, SECONDS_A_DAY)
            run = m.CompletedJob(
                job_id=f"s#{self.serial}{n}.{self.dice.randrange(10**6)}",
                ended_at=ended,
                submitted_at=ended - 1e6,
                run_s=float(
                    self.dice.randrange(12 * SECONDS_A_DAY if self.dice.random() < 0.1 else 20000)
                ),
                gpu_milli=self.dice.choice([250, 1000]) if each.gpu_milli else 0,
                cpus=1,
                memory_mib=100,
                owner="ann",
                vo=self.dice.choice(["cms", "atlas"]),
                drone_id=each.id,
                unfinished=self.dice.random() < 0.2,
                failed=self.dice.random() < 0.1,
                used_milli=self.dice.choice([None, 100, 900]),
                energy_j=self.dice.choice([None, 123_457]),
            )
            self.late.append(
                (ended + self.dice.choice([60, 600, 3 * SECONDS_A_DAY, 12 * SECONDS_A_DAY]), run)
            )
        if self.dice.random() < 0.3:
            at = self.now + self.dice.uniform(HOUR, SECONDS_A_DAY)
            if self.dice.random() < 0.5:
                each = replace(each, state=S.DRAINING, since=at - 1800, asked_at=at - 1800)
                self._write(each)
            end = self.dice.choice(ENDS)
            self._write(replace(each, state=end, since=at, ended_at=max(at, each.started_at)))

    def _step_clock(self, step_s: float) -> None:
        """Set the controller's clock: the times of live drones on record move with it."""
        for each in list(self.live.values()):
            joined = each.joined_at + step_s if each.joined_at else 0.0
            moved = replace(each, started_at=each.started_at + step_s, joined_at=joined)
            self._write(moved)

    def book(self) -> None:
        while ledger.book_due(self.sql, self.now, TYPES, KEEP_DAYS * SECONDS_A_DAY):
            pass
        open_day = int(tables.read_meta(self.sql)["ledger_open"])
        for day in range(self.open_day, open_day):
            self.settled[day] = self.rows_of(day)
        self.open_day = open_day
        before = self.now - KEEP_DAYS * SECONDS_A_DAY
        gone = f"live = 0 AND ended_at < ? AND NOT {ledger.UNBOOKED}"
        self.sql.execute(f"DELETE FROM drones WHERE {gone}", (before,))
        self.sql.execute("DELETE FROM completed_jobs WHERE ended_at < ?", (before,))
        detail = ledger.old_rows(self.now, KEEP_DAYS * SECONDS_A_DAY, 1e12)
        for table, _, where, values in detail:
            self.sql.execute(f"DELETE FROM {table} WHERE {where}", values)

    def rows_of(self, day: int) -> list[tuple[object, ...]]:
        select = "SELECT * FROM ledger_days WHERE day = ? ORDER BY kind, account"
        return self.sql.execute(select, (day,)).fetchall()

    def finish(self) -> None:
        """End all drones, and let all that is due be booked."""
        while self.live:
            for each in list(self.live.values()):
                at = max(self.now, each.started_at)
                self._write(replace(each, state=S.DONE, since=at, ended_at=at))
        self.now += 5 * SECONDS_A_DAY
        for _, run in self.late:
            tables.add_run(self.sql, run)
            self.energy_j += run.energy_j or 0
            self.runs += 1
        self.book()


def sums(sql: StoreConnection, where: str) -> int:
    return int(
        sql.execute(f"SELECT coalesce(sum(held), 0) FROM ledger_days WHERE {where}").fetchone()[0]
    )


LIVES = f"account = '{Account.LIFE}'"
USES = f"account != '{Account.LIFE}'"
RUNS = f"account NOT IN ({', '.join(repr(each.value) for each in ACCOUNTS)})"


@pytest.mark.parametrize("seed", [1, 2])
def test_the_double_entry_balances_to_the_millisecond(place: Place, seed: int) -> None:
    check_balance(place, seed, 8)


@pytest.mark.slow
def test_it_balances_over_a_thousand_months(file: Path) -> None:
    """A server takes 15 minutes for it."""
    check_balance(file, 3, 1000)


def check_balance(place: Place, seed: int, months: int) -> None:
    database = database_of(place)
    sql, _ = database.hold("kit", None)
    database.begin(sql)
    world = Months(sql, random.Random(seed))
    for _ in range(months * 30):
        world.day()
    world.finish()
    assert sums(sql, LIVES) == sum(world.lives.values()), f"seed {seed}"
    assert sums(sql, LIVES) == sums(sql, USES)
    for (day,) in sql.execute("SELECT DISTINCT day FROM ledger_days").fetchall():
        assert sums(sql, f"day = {day} AND {LIVES}") == sums(sql, f"day = {day} AND {USES}")
    assert sums(sql, f"account = '{Account.SERVICE}'") > 0
    of_servers = "account IN ('service', 'idle') AND type = 'triton'"
    accounts = f"SELECT DISTINCT account FROM ledger_days JOIN ledger_kinds USING (kind) WHERE {of_servers}"
    assert sql.execute(accounts).fetchall() == [("service",)]
    found = sql.execute("SELECT sum(runs), sum(energy_j) FROM ledger_days").fetchone()
    assert found == (world.runs, world.energy_j), "each run once, though many came late"
    assert len(world.settled) >= months * 30 - 8
    for day, settled in world.settled.items():
        assert world.rows_of(day) == settled, "a settled day never changes"


@pytest.mark.parametrize(
    ("of_run", "of_drone", "outcome"),
    [
        ({}, {}, Outcome.COMPLETED),
        ({"failed": True}, {}, Outcome.FAILED),
        ({"unfinished": True}, {}, Outcome.EVICTED),
        ({"unfinished": True}, {"asked_at": 4010.0}, Outcome.STOPPED),
        ({"unfinished": True}, {"asked_at": 4010.0, "notice_at": 4005.0}, Outcome.PREEMPTED),
        ({"unfinished": True}, {"state": S.PREEMPTED, "ended_at": 4030.0}, Outcome.PREEMPTED),
        ({"unfinished": True}, {"state": S.PREEMPTED, "ended_at": 9000.0}, Outcome.EVICTED),
    ],
)
def test_the_outcome_says_who_ended_a_run(
    of_run: dict[str, Any], of_drone: dict[str, Any], outcome: Outcome
) -> None:
    run = m.CompletedJob("s#1.0", 4000.0, 100.0, 3000.0, 1000, 1, 100, **of_run)
    assert ledger.outcome_of(run, replace(drone(1), **of_drone)) is outcome


def test_a_settled_day_is_refused_by_the_database(place: Place) -> None:
    database = database_of(place)
    sql, _ = database.hold("kit", None)
    tables.write_meta(sql, ledger_open="100")
    sql.execute("INSERT INTO ledger_days VALUES (100, 1, 'idle', 0, 1, 0, 0, 0, 0, 0)")
    with pytest.raises(database.errors, match="settled day"):
        sql.execute("INSERT INTO ledger_days VALUES (99, 1, 'idle', 0, 1, 0, 0, 0, 0, 0)")
    tables.write_meta(sql, ledger_open="101")
    with pytest.raises(database.errors, match="settled day"):
        sql.execute("UPDATE ledger_days SET held = 2 WHERE day = 100")


async def test_the_store_books_when_it_prunes_and_keeps_drones_until_then(place: Place) -> None:
    one = drone(1, S.IDLE, at=100.0, started_at=100.0, joined_at=160.0)
    ended = replace(one, state=S.DONE, since=5000.0, ended_at=5000.0)
    run = m.CompletedJob(
        "s#1.0", 4000.0, 100.0, 3000.0, 1000, 1, 100, owner="ann", vo="cms", drone_id=one.id
    )
    async with store_at(place, threaded=False) as store:
        await record(store, starts(1, one))
        await store.record_completed([run])
        moves = (
            m.StateChange(ended, S.IDLE, JobsWaiting("c", "c", waiting=1, covered=0, starts=1)),
        )
        await store.record_results(1, moves, ())
        await store.prune(5000.0 + KEEP_S)
    with rows(place) as sql:
        query = "SELECT account, runs, held FROM ledger_days ORDER BY account"
        found = sql.execute(query).fetchall()
    assert found == [
        ("boot", 0, 60_000),
        ("completed", 1, 3_000_000),
        ("idle", 0, 1_840_000),
        ("life", 0, 4_900_000),
    ]


async def book_all(store: SqlStore, now: float) -> None:
    while await store.prune(now):
        pass


@pytest.mark.parametrize("reported_after_days", [0, 20])
async def test_a_run_over_the_end_of_a_month_is_in_both_unless_it_arrives_after_the_first_has_settled(
    place: Place, reported_after_days: int
) -> None:
    december = float(calendar.timegm((2026, 12, 1, 0, 0, 0)))
    first = int(december // SECONDS_A_DAY)
    began, ended = december - 4 * HOUR, december + 30 * SECONDS_A_DAY
    one = drone(1, S.IDLE, at=began, started_at=began, joined_at=began)
    run = m.CompletedJob(
        "s#1.0", december + 2 * HOUR, began, 5 * HOUR, 1000, 1, 100, vo="cms", drone_id=one.id
    )
    run = replace(run, used_milli=500, energy_j=5000)
    keep_s = 60.0 * SECONDS_A_DAY
    async with SqlStore(place, "kit", keep_s, 3, threaded=False) as store:
        await record(store, starts(1, one))
        await book_all(store, began + HOUR)
        for day in range(1, 31):
            if day == 1 + reported_after_days:
                await store.record_completed([run])
            await book_all(store, december + day * SECONDS_A_DAY + 2 * HOUR)
            if day == 1:
                early = Reader(place).ledger_sums(first - 30, first)
        done = replace(one, state=S.DONE, since=ended, ended_at=ended)
        await store.record_results(
            1, (m.StateChange(done, S.IDLE, JobsWaiting("c", "c", 1, 0, 1)),), ()
        )
        await book_all(store, ended + 2 * SECONDS_A_DAY)
    found = Reader(place)
    november, after = found.ledger_sums(first - 30, first), found.ledger_sums(first, first + 31)
    assert not found.ledger_findings(first - 30, first + 31)
    of_run = [
        sum(getattr(each, name) for each in month if each.account == Outcome.COMPLETED)
        for month in (november, after)
        for name in ("runs", "held", "used", "energy_j")
    ]
    hour = 3_600_000
    [whole] = found.ledger_runs(first, first + 31)
    assert (whole.seconds, whole.held, whole.used) == (5 * HOUR, 5 * hour, 2.5 * hour)
    assert not found.ledger_runs(first - 30, first), "its job ended in December"
    if reported_after_days:
        assert november == early, "it had settled"
        assert of_run == [0, 0, 0, 0, 1, 5 * hour, 2.5 * hour, 5000]
    else:
        assert of_run == [0, 3 * hour, 1.5 * hour, 3000, 1, 2 * hour, hour, 2000]
        parts = found.ledger_runs(first - 30, first, parts=True)
        assert [each.held for each in parts] == [3 * hour], "for the accelerator file"
    lives = [
        sum(each.held for each in month if each.account == Account.LIFE)
        for month in (november, after)
    ]
    assert lives == [4 * hour, 30 * 24 * hour]


async def test_use_that_was_not_measured_is_no_zero(place: Place) -> None:
    """Runs of older drones and on slices of MIG have no use; the mean is that of the others."""
    one = drone(1, S.IDLE, at=100.0, started_at=100.0, joined_at=100.0)
    run = m.CompletedJob("s#1.0", 2000.0, 100.0, 1000.0, 1000, 1, 100, vo="cms", drone_id=one.id)
    runs = [
        replace(run, used_milli=400, energy_j=90_000),
        replace(run, job_id="s#2.0", ended_at=4000.0),
        replace(run, job_id="s#3.0", ended_at=6000.0, used_milli=0, energy_j=None),
    ]
    async with SqlStore(place, "kit", 60.0 * SECONDS_A_DAY, 3, threaded=False) as store:
        await record(store, starts(1, one))
        await book_all(store, 100.0)
        await store.record_completed(runs)
        await book_all(store, SECONDS_A_DAY + 2 * HOUR)
    [sums] = [each for each in Reader(place).ledger_sums(0, 1) if each.account == Outcome.COMPLETED]
    assert (sums.runs, sums.held) == (3, 3_000_000)
    assert (sums.used, sums.used_of) == (400_000, 2_000_000)
    assert (sums.energy_j, sums.energy_of) == (90_000, 1_000_000)
    assert [each.used for each in Reader(place).ledger_runs(0, 1)] == [400_000, None, 0]


async def test_a_drone_that_lives_for_longer_than_its_entries_are_kept_is_booked_once(
    place: Place,
) -> None:
    one = drone(1, S.IDLE, at=100.0, started_at=100.0, joined_at=100.0)
    async with SqlStore(place, "kit", 20.0 * SECONDS_A_DAY, 3, threaded=False) as store:
        await record(store, starts(1, one))
        await book_all(store, 100.0)
        for day in range(1, 100):
            await book_all(store, day * SECONDS_A_DAY + 2 * HOUR)
        ended = 100.0 * SECONDS_A_DAY
        done = replace(one, state=S.DONE, since=ended, ended_at=ended)
        why = JobsWaiting("c", "c", waiting=1, covered=0, starts=1)
        await store.record_results(1, (m.StateChange(done, S.IDLE, why),), ())
        await book_all(store, ended + HOUR)
    lives = [
        each.held for each in Reader(place).ledger_sums(0, 101) if each.account == Account.LIFE
    ]
    assert lives == [one.gpu_milli * (100 * SECONDS_A_DAY - 100)]
