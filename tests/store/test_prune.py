"""Pruning keeps up with any rate and nothing on record grows without a bound; the document of the estimates."""

from __future__ import annotations

import sqlite3
import zlib
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.model import DroneId, DroneState
from provisioner.store import EstimatesUnreadableError, StoreUnusableError
from provisioner.store.database import BATCH_ROWS, Place
from provisioner.store.reader import Reader
from provisioner.store.tables import pack_estimates
from provisioner.store.writer import BATCHES_PER_PRUNING, MAX_EVENTS, SqlStore
from tests.store.story import DONE, KNOWN, drone, record, rows, starts, store_at

AT_ONCE = BATCH_ROWS * BATCHES_PER_PRUNING
"""Rows of one kind that one pruning forgets at most."""


async def _pruned(store: SqlStore, now: float) -> int:
    """Prune until nothing is left to forget. Return how often it took."""
    for n in range(1, 100):
        if not await store.prune(now):
            return n
    raise AssertionError("never done")


def _count(place: Place, table: str) -> int:
    with rows(place) as sql:
        return int(sql.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


async def test_more_jobs_than_one_pruning_forgets_are_all_forgotten_by_the_next_ones(
    place: Place,
) -> None:
    """30,000 jobs an hour were pruned at 20,000 an hour: the record grew for ever."""
    count = AT_ONCE * 2 + 700
    async with store_at(place, threaded=False) as store:
        await store.record_completed(
            [replace(DONE, job_id=f"{n}.0", ended_at=100.0 + n / 1e5) for n in range(count)]
        )
        await store.record_completed([replace(DONE, job_id="young.0", ended_at=1e6)])
        assert await store.prune(1e6) is True
        assert _count(place, "completed_jobs") == count + 1 - AT_ONCE, (
            "one pruning is bounded: a tick waits for it"
        )
        assert await _pruned(store, 1e6) == 2
        assert [each.job_id for each in Reader(place).completions(0.0, 2e6)] == ["young.0"]


async def test_every_kind_of_row_is_pruned_until_none_is_old(place: Place) -> None:
    async with store_at(place, threaded=False) as store:
        await record(store, starts(1, drone(1), drone(2, DroneState.FAILED, ended_at=100.0)))
        count = AT_ONCE + 300
        with rows(place) as sql:
            found = sql.execute("SELECT * FROM drones WHERE live = 0")
            columns = [each[0] for each in found.description]
            ended = found.fetchone()
            rest = ended[1:]
            assert columns[0] == "id"
            insert = f"INSERT INTO drones ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
            sql.executemany(insert, ((f"kit-ab12-x{n}", *rest) for n in range(count)))
            step = "INSERT INTO transitions (drone_id, at, was, state, reason, tick) VALUES (?, ?, ?, ?, ?, 1)"
            said = sql.execute("SELECT reason FROM transitions").fetchone()[0]
            sql.executemany(
                step, ((drone(1).id, 50.0, "requested", "submitted", said) for _ in range(count))
            )
            event = "INSERT INTO events (at, name, fields) VALUES (?, 'x', '{}')"
            sql.executemany(event, ((9.0,) for _ in range(count)))
            words = "INSERT INTO console_outputs (drone_id, at, body) VALUES (?, 9.0, ?)"
            sql.executemany(words, ((f"stray-{n}", b"\0") for n in range(count)))
        assert await store.prune(1e6) is True
        assert await _pruned(store, 1e6) == 1
        assert _count(place, "drones") == _count(place, "transitions") == 1, (
            "the live drone and its first step"
        )
        assert not any(_count(place, table) for table in ("events", "console_outputs", "plans"))
        assert await store.prune(1e6) is False


async def test_each_interval_of_a_series_has_its_retention(place: Place) -> None:
    """Keep minutes for 2 days, ten minutes for 30 days, and hours as the policy says."""
    day, now = 86400.0, 1000 * 86400.0
    kept = {60: 2.0, 600: 30.0, 3600: 100.0}
    async with SqlStore(place, "kit", day, 10, False, series_s=100.0 * day) as store:
        with rows(place) as sql:
            sql.execute("INSERT INTO series (id, metric, labels) VALUES (4711, 'm', '{}')")
            sql.executemany(
                "INSERT INTO samples (step_s, series, at, value) VALUES (?, 4711, ?, 1.0)",
                [
                    (step, now - days * day + near)
                    for step, days in kept.items()
                    for near in (-7200, 7200)
                ],
            )
        await _pruned(store, now)
        with rows(place) as sql:
            found = sql.execute("SELECT step_s, at FROM samples WHERE series = 4711").fetchall()
    assert sorted(found) == [(step, now - days * day + 7200) for step, days in kept.items()]
    # a shorter one counts for all
    async with SqlStore(place, "kit", day, 10, False, series_s=day) as store:
        await _pruned(store, now)
    assert not _count(place, "samples")


async def test_events_are_bounded_in_number_however_young(place: Place) -> None:
    async with store_at(place, threaded=False) as store:
        with rows(place) as sql:
            young = ((1e6, f"e{n}") for n in range(MAX_EVENTS + 700))
            sql.executemany("INSERT INTO events (at, name, fields) VALUES (?, ?, '{}')", young)
        await _pruned(store, 1e6)
        with rows(place) as sql:
            assert sql.execute("SELECT count(*) FROM events").fetchone()[0] == MAX_EVENTS
            assert (
                sql.execute("SELECT name FROM events ORDER BY id LIMIT 1").fetchone()[0] == "e700"
            )


DAMAGED = {
    "not compressed": b"{}",
    "cut off": pack_estimates(KNOWN)[:-20],
    "a run time that is none": zlib.compress(b'{"at":1,"runs":{"ann":["x"]}}'),
}


@pytest.mark.parametrize("body", DAMAGED.values(), ids=DAMAGED)
async def test_what_is_damaged_is_said_with_its_repair_and_the_next_writing_mends_it(
    place: Place, body: bytes
) -> None:
    async with store_at(place) as store:
        await record(store, starts(1, drone(1)))
        await store.record_estimates(KNOWN)
    with rows(place) as sql:
        sql.execute("UPDATE estimates SET body = ?", (body,))
    said = r"the estimates are damaged \(.+\): estimation starts again.*restore a backup"
    async with store_at(place) as store:
        for _ in range(2):
            with pytest.raises(EstimatesUnreadableError, match=said):
                await store.estimate_samples()
        with pytest.raises(EstimatesUnreadableError, match=said):
            Reader(place).estimate_samples()
        assert set(store.drones) == {drone(1).id} and Reader(place).drones(), (
            "nothing else is the worse for it"
        )
        await store.record_estimates(KNOWN)
        assert await store.estimate_samples() == KNOWN


async def test_what_could_not_be_read_is_not_written_and_leaves_what_was_there(
    place: Place,
) -> None:
    no_text, no_number = frozenset({("\udcff", 1.0)}), {"ann": (1.0, float("nan"))}
    async with store_at(place) as store:
        await store.record_estimates(KNOWN)
        for samples, where in (
            (replace(KNOWN, seen=no_text), ""),
            (replace(KNOWN, runs=no_number), r"runs\.ann\.1: "),
        ):
            with pytest.raises(StoreUnusableError, match=f"a value cannot be recorded .*{where}"):
                await store.record_estimates(samples)
        assert await store.estimate_samples() == KNOWN


@pytest.mark.parametrize("threaded", [True, False])
async def test_the_runs_of_a_week_are_read_beside_a_writer(file: Path, threaded: bool) -> None:
    """They were read in a write transaction: a tick, and an operator's request, waited for it."""
    async with store_at(file, threaded=threaded) as store:
        await record(store, starts(1, drone(2, DroneState.BUSY, started_at=50.0)))
        await store.record_completed([DONE])
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert [each.jobs for each in (await store.use(0.0, 100.0)).sums] == [1]
            other.execute("ROLLBACK")


async def test_sums_of_use_go_with_their_runs_and_drones(place: Place) -> None:
    day_s, of = 86400.0, [DroneId(f"kit-ab12-{serial}") for serial in (1, 2)]
    async with store_at(place, threaded=False) as store:
        drones = [
            drone(n, DroneState.DONE, started_at=50.0, ended_at=n * 10 * day_s) for n in (1, 2)
        ]
        await record(store, starts(1, *drones))
        old = [
            replace(DONE, job_id=f"{n}.0", ended_at=day_s + n, drone_id=of[0], cpus=n)
            for n in range(700)
        ]
        young = [
            replace(DONE, job_id=f"young-{n}.0", ended_at=19 * day_s, drone_id=of[1])
            for n in range(3)
        ]
        await store.record_completed([*old, *young])
        assert [_count(place, table) for table in ("use_days", "run_kinds", "run_drones")] == [
            701,
            700,
            2,
        ]
        await _pruned(store, 19.5 * day_s)
        assert [_count(place, table) for table in ("use_days", "run_kinds", "run_drones")] == [
            1,
            1,
            1,
        ]
        assert [(each.jobs, each.ended_at) for each in (await store.use(0.0, 20 * day_s)).sums] == [
            (3, 19 * day_s)
        ]
