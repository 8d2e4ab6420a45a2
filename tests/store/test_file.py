"""What can happen to a store file and to the processes around it."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import math
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import provisioner.store.file as store_file
import provisioner.store.reader as store_reader
import provisioner.store.series as store_series
import provisioner.store.tables as store_tables
from provisioner.job_filter import TAKES_ALL, JobFilter
from provisioner.model import Drone, DroneState, Plan, RequestKind, Snapshot
from provisioner.store import StoreUnusableError, view_log
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore
from tests.store.story import DONE, drone, now_is, record, starts, store_at

S = DroneState


@pytest.fixture
async def filled(file: Path) -> Path:
    """A store with a hundred ticks in it, left in order."""
    async with store_at(file) as store:
        for tick in range(1, 101):
            await record(store, starts(tick, drone(tick), at=100.0 + tick))
    return file


def _bytes(file: Path) -> bytes:
    return file.read_bytes()


def _write(file: Path, text: str) -> None:
    file.write_text(text)


def _shell(command: str) -> int:
    return subprocess.run(command, shell=True, check=False, stderr=subprocess.DEVNULL).returncode


def _modes(directory: Path) -> dict[str, int]:
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in directory.iterdir()}


# -------------------------------------------------------------------------------------------------------------
# schema


def _columns(file: Path, table: str) -> set[str]:
    with sqlite3.connect(file) as sql:
        return {row[1] for row in sql.execute(f"PRAGMA table_info({table})")}


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (
            "PRAGMA user_version = 999; UPDATE meta SET value = 999 WHERE key = 'oldest_schema'",
            r"provisioner\.db has schema 999.*newer provisioner.*orphans",
        ),
        ("PRAGMA application_id = 7", "is no provisioner store"),
    ],
)
async def test_a_store_of_a_newer_or_another_program_is_refused(
    filled: Path, harm: str, words: str
) -> None:
    with sqlite3.connect(filled) as sql:
        sql.executescript(harm)
    for use in (_open(filled), _read(filled)):
        with pytest.raises(StoreUnusableError, match=words):
            await use()


def test_scripts_that_stores_have_seen_stay_as_they_were() -> None:
    """A change needs a script with the next number: the old ones do not run again on stores that exist."""
    found = {
        each.name: hashlib.sha256(each.read_bytes()).hexdigest()[:12]
        for each in store_file.MIGRATIONS
    }
    assert found == {
        "0001_first.sql": "ef1d523ea056",
        "0002_measured_use.sql": "ae8f5f2f595d",
        "0003_counters_and_series.sql": "621dc44370e4",
        "0004_fewest_gpus.sql": "47f621ea168b",
        "0005_sums_of_use.sql": "86780726df64",
        "0006_unused_time.sql": "fa152780fbfe",
        "0007_past_classes.sql": "11f8520472d3",
        "0008_job_filter.sql": "f401e11edc76",
        "0009_view_log.sql": "4b4382146fe6",
        "0010_vo_and_cpu.sql": "a117af3fedd7",
        "0011_routed_runs.sql": "0d914e847127",
        "0012_ledger.sql": "55914cb3d815",
        "0013_services.sql": "8ea15f7eb461",
        "0014_ledger_indexes.sql": "652857b80647",
        "0015_service_accounting.sql": "800ba4272acb",
        "0016_lease.sql": "1d337ea8c5fb",
        "0017_configurations.sql": "8a6a8b9a37a2",
    }


def _first_row(drone: Drone, write: Any = store_tables.drone_row) -> dict[str, Any]:
    """Return the row of a drone as the program of the first schema wrote it."""
    row = write(drone)
    del row["job_filter"]
    del row["service"]
    return row | {"avoids": ""}


def _without_log(old: pytest.MonkeyPatch) -> None:
    """Keep whole snapshots and no views, as a program of a schema without a log of views."""

    def write_snapshot(sql: sqlite3.Connection, snapshot: Snapshot, *_: int) -> None:
        known = {"tick": snapshot.tick, "body": store_tables.pack(snapshot)}
        store_tables.insert(sql, "snapshots", known)

    old.setattr(view_log.ViewLog, "write", lambda *_: 0)
    old.setattr(view_log, "delete_unused", lambda _: None)
    old.setattr(view_log, "read_views", lambda *_, **more: None)
    old.setattr(view_log, "write_snapshot", write_snapshot)


async def test_a_store_of_the_first_schema_opens_records_and_reads(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as old:
        old.setattr(store_file, "MIGRATIONS", store_file.MIGRATIONS[:1])
        # the program of that time had no counters
        old.setattr(store_series, "add_counts", lambda *_: None)
        old.setattr(SqlStore, "_write_past_classes", lambda *_: None)
        old.setattr(store_tables, "drone_row", _first_row)
        _without_log(old)
        async with store_at(file) as store:
            snapshot = await record(store, starts(1, drone(1)))
    before = {name: getattr(DONE, name) for name in sorted(_columns(file, "completed_jobs"))}
    assert "unfinished" not in before and "used_milli" not in before
    with sqlite3.connect(file) as sql:
        names = ", ".join(f'"{name}"' for name in before)
        sql.execute(
            f"INSERT INTO completed_jobs ({names}) VALUES ({', '.join('?' * len(before))})",
            [*before.values()],
        )
    measured = replace(
        DONE, job_id="8.0", ended_at=95.0, unfinished=True, splits=False, used_milli=40, energy_j=7
    )
    measured = replace(measured, used_cpu_s=30, peak_memory_mib=900, routed_from="4.0")
    async with store_at(file) as store:
        await record(store, starts(2, drone(2)))
        await store.record_completed([DONE, measured])
    assert Reader(file).completions(0.0, 100.0) == [DONE], "the other run is unfinished"
    with closing(sqlite3.connect(file)) as sql:
        assert [*store_tables.COMPLETED_JOBS.select(sql)] == [DONE, measured] and len(
            Reader(file).drones()
        ) == 2
    assert Reader(file).snapshot(1) == snapshot and len(Reader(file).plans()) == 2


async def test_jobs_that_drones_refuse_are_migrated(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {1: ("anna,ben", 2), 2: ("anna", 0), 3: ("", 4), 4: ("", 0)}
    with monkeypatch.context() as before:
        before.setattr(store_file, "MIGRATIONS", store_file.MIGRATIONS[:7])
        before.setattr(store_tables, "drone_row", _first_row)
        _without_log(before)
        async with store_at(file) as store:
            await record(store, starts(1, *map(drone, old)))
    with sqlite3.connect(file) as sql:
        changes = [(*values, serial) for serial, values in old.items()]
        sql.executemany("UPDATE drones SET avoids = ?, min_gpus = ? WHERE serial = ?", changes)
    async with store_at(file) as store:
        found = [each.job_filter for each in store.drones.values()]
    assert found == [
        JobFilter(("anna", "ben"), min_gpus=2),
        JobFilter(("anna",)),
        JobFilter(min_gpus=4),
        TAKES_ALL,
    ]


GOOD_MIGRATION = "ALTER TABLE drones ADD COLUMN rack TEXT NOT NULL DEFAULT '';"


@pytest.fixture
def next_migration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A program with one migration more than the stores that exist."""
    script = tmp_path / "9999_next.sql"
    script.write_text(GOOD_MIGRATION)
    migrations = (*store_file.MIGRATIONS, script)
    for module in (store_file, store_reader):
        monkeypatch.setattr(module, "MIGRATIONS", migrations)
    return script


async def test_a_controller_migrates_an_older_store_and_a_reader_does_not(
    filled: Path, next_migration: Path
) -> None:
    before = _bytes(filled)
    with pytest.raises(
        StoreUnusableError, match="older schema 17: `provisioner run` brings it up to 18"
    ):
        await _read(filled)()
    assert _bytes(filled) == before
    async with store_at(filled) as store:
        assert len(store.drones) == 100 and store.tick == 100
        await record(store, starts(101, drone(101)))
    assert "rack" in _columns(filled, "drones")
    assert len(Reader(filled).drones()) == 101


async def test_a_downgrade_names_the_command_that_restores_the_copy_from_before_the_migration(
    filled: Path, next_migration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store_at(filled) as store:
        await record(store, starts(101, drone(101)))
    copy = filled.with_name(f"{filled.name}.schema-17")
    assert _modes(filled.parent)[copy.name] == _modes(filled.parent)[filled.name]
    made = _bytes(copy)
    async with store_at(filled):
        pass
    assert _bytes(copy) == made, "the second start of the newer version made a copy"

    for module in (store_file, store_reader):
        monkeypatch.setattr(module, "MIGRATIONS", module.MIGRATIONS[:-1])
    with pytest.raises(StoreUnusableError, match="schema 18") as refused:
        await _open(filled)()
    command = str(refused.value).split("`")[1]
    assert _shell(command) == 0
    async with store_at(filled) as store:
        assert len(store.drones) == 100
    assert (filled.parent / f"newer-{filled.name}" / filled.name).exists()
    assert _shell(command) != 0
    assert len(Reader(filled).drones()) == 100, "the repeated command overwrote the record"


async def test_a_migration_that_fails_leaves_the_store_as_it_was(
    filled: Path, next_migration: Path
) -> None:
    _write(next_migration, GOOD_MIGRATION + "\nINSERT INTO no_such_table VALUES (1);")
    with pytest.raises(StoreUnusableError, match="no such table"):
        await _open(filled)()
    assert "rack" not in _columns(filled, "drones")
    _write(next_migration, GOOD_MIGRATION)
    async with store_at(filled) as store:
        assert len(store.drones) == 100


# ------------------------------------------------------------------------------------------------------
# damaged files


def _open(file: Path) -> Callable[[], Any]:
    async def use() -> None:
        async with store_at(file):
            pass

    return use


def _read(file: Path) -> Callable[[], Any]:
    async def use() -> None:
        Reader(file).drones(ended=None)
        Reader(file).plans(limit=1000)
        Reader(file).transitions()

    return use


def _scribbled(file: Path) -> None:
    with file.open("r+b") as raw:
        raw.seek(4096 * 2)
        raw.write(b"\xa5" * (file.stat().st_size - 4096 * 3))


def _cut_within_a_page(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2 + 1234)


@pytest.mark.parametrize("harm", [_scribbled, _cut_within_a_page, partial(os.truncate, length=0)])
async def test_a_damaged_file_is_named_with_its_repair(
    filled: Path, harm: Callable[[Path], None]
) -> None:
    harm(filled)
    before = _bytes(filled)
    with pytest.raises(StoreUnusableError) as refused:
        await _open(filled)()
    for word in (str(filled), "damaged", "backup", "start anew", "-wal", "name", "orphans"):
        assert word in str(refused.value)
    with pytest.raises(StoreUnusableError, match=re.escape(str(filled))):
        await _read(filled)()
    assert _bytes(filled) == before, "what may still be saved from it is not touched"
    assert Reader(filled).holder() is None, "and it is not left locked"


async def test_the_store_of_another_controller_is_refused(filled: Path) -> None:
    with pytest.raises(StoreUnusableError, match="belongs to controller 'kit', not 'kot'"):
        async with store_at(filled, "kot"):
            pass


async def test_after_the_repair_a_new_store_has_another_birth_and_no_old_log(filled: Path) -> None:
    async with store_at(filled) as store:
        old = store.birth
        await record(store, starts(101, drone(101)))
        log = filled.with_name("provisioner.db-wal")
        shutil.copy(log, filled.with_name("kept-wal"))
    os.rename(filled, filled.with_name("provisioner.db.broken"))
    shutil.copy(filled.with_name("kept-wal"), log)  # moved away without its log
    async with store_at(filled) as store:
        assert dict(store.drones) == {} and store.next_serial == 1
        assert store.birth != old
    assert filled.with_name("provisioner.db-wal.stale").exists()


# ----------------------------------------------------------------------------------------------------------
# full disk


@pytest.mark.parametrize(
    "poison",
    [{"since": math.nan}, {"jobs": 10**30}, {"site_reason": "\udcff"}],
    ids=["nan", "huge", "no-text"],
)
async def test_a_value_that_cannot_be_recorded_is_not_acted_on(
    file: Path, poison: dict[str, Any]
) -> None:
    async with store_at(file) as store:
        await record(store, starts(1, drone(1)))
        with pytest.raises(
            StoreUnusableError, match=r"a value cannot be recorded .*nothing was recorded"
        ):
            await record(store, starts(2, drone(2), drone(3, **poison)))
        assert set(store.drones) == {drone(1).id} and store.tick == 1
        assert Reader(file).drones() == [drone(1)]
        await record(store, starts(2, drone(2)))
        assert Reader(file).drones() == [drone(1), drone(2)]


async def test_a_full_store_records_nothing_and_goes_on_later(file: Path) -> None:
    async with store_at(file, threaded=False) as store:
        await record(store, starts(1, drone(1)))
        known, sql = dict(store.drones), store._sql
        assert sql is not None
        many = starts(2, *(drone(n, site_reason=os.urandom(500).hex()) for n in range(2, 300)))
        (pages,) = sql.execute("PRAGMA page_count").fetchone()
        sql.execute(f"PRAGMA max_page_count = {pages}")
        for _ in range(2):
            with pytest.raises(
                StoreUnusableError, match=r"full.*make room in .*nothing was recorded"
            ):
                await record(store, many)
            assert (dict(store.drones), store.tick, store.next_serial) == (known, 1, 2)
            assert Reader(file).drones(ended=None) == [drone(1)]
        sql.execute("PRAGMA max_page_count = 1000000")
        await record(store, many)
        assert len(store.drones) == len(Reader(file).drones()) == 299 and (
            store.tick,
            store.next_serial,
        ) == (2, 300)
        assert [plan.tick for plan in Reader(file).plans()] == [1, 2]
    async with store_at(file) as store:
        assert len(store.drones) == 299


# ----------------------------------------------------------------------------------------------------
# other processes


def _as_another_user(file: Path) -> list[str]:
    """Return the output of a user who may read the store but not its lock: holder, drones, and the reply to ``ask``."""
    for each in file.parent.iterdir():
        if each.suffix != ".lock":
            each.chmod(0o644)
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            reader = Reader(file)
            holder = reader.holder()
            seen = [str(holder.pid if holder else 0), *(str(each.id) for each in reader.drones())]
            try:
                reader.ask(RequestKind.KILL, [], reason="", by="mg", at=1.0)
            except StoreUnusableError as refused:
                seen.append(str(refused))
            os.write(tell, "\n".join(seen).encode())
        finally:
            os._exit(0)
    os.close(tell)
    os.waitpid(child, 0)
    with os.fdopen(told) as lines:
        return lines.read().splitlines()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
async def test_who_may_only_read_sees_the_drones_and_the_holder_while_a_controller_runs_and_while_none_does() -> (
    None
):
    # unlike pytest's own, one that others may be let into
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "provisioner.db"
        os.chmod(name, 0o755)
        async with store_at(file) as store:
            await record(store, starts(1, drone(1)))
            while_running = _as_another_user(file)
        for (pid, known, refusal), expected in (
            (while_running, os.getpid()),
            (_as_another_user(file), 0),
        ):
            assert (pid, known) == (
                str(expected),
                "kit-ab12-1",
            ) and "this user needs to read and write" in refusal


async def test_a_commit_is_on_the_disk_before_it_counts(file: Path) -> None:
    """Read back from the connection that writes: FULL, so that a power cut loses no intent that a site was given."""
    async with store_at(file) as store:
        sql = store._sql
        assert sql is not None
        assert sql.execute("PRAGMA synchronous").fetchone() == (2,)
        assert sql.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_a_transaction_has_the_right_to_write_from_its_first_statement_on(file: Path) -> None:
    """Taken late, it fails at once where another has written meanwhile, whatever the time for waiting is."""
    async with store_at(file) as store:
        theirs = sqlite3.connect(file, timeout=0, isolation_level=None)
        with store._transaction(), pytest.raises(sqlite3.OperationalError, match="locked"):
            theirs.execute("BEGIN IMMEDIATE")
        theirs.execute("BEGIN IMMEDIATE")
        theirs.execute("ROLLBACK")
        theirs.close()


async def test_a_reader_that_asks_for_the_holder_keeps_no_controller_out(file: Path) -> None:
    """Asking takes the lock for an instant, shared; here for a tenth of a second."""
    await _open(file)()
    asking = os.open(file.with_name("provisioner.db.lock"), os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    asyncio.get_running_loop().call_later(0.1, os.close, asking)
    await _open(file)()


async def test_readers_see_whole_ticks_while_the_controller_writes(file: Path) -> None:
    """Each tick gives all drones its own number as remote id: who sees half of it, sees another number somewhere."""
    few = [drone(n, remote_id="1") for n in range(1, 21)]

    async def write(store: SqlStore, ticks: int) -> None:
        for tick in range(2, 2 + ticks):
            moves = (
                now_is(store.drones[each.id], S.SUBMITTED, at=200.0, remote_id=str(tick))
                for each in few
            )
            await record(store, Plan(tick, 100.0 + tick, moves=tuple(moves)))

    def read() -> int:
        snapshot = Reader(file).snapshot()
        assert snapshot is not None and len(snapshot.drones) == 20
        assert {each.remote_id for each in snapshot.drones.values()} == {str(snapshot.tick - 1)}
        assert snapshot.now == 100.0 + snapshot.tick - 1 or snapshot.tick == 2
        return snapshot.tick - 1

    async with store_at(file) as store, asyncio.timeout(60):
        await record(store, starts(1, *few))
        ticks: list[int] = []
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(write(store, 150))
            while not writing.done():
                ticks.append(await asyncio.to_thread(read))
                number = Reader(file).ask(RequestKind.DRAIN, [], reason="", by="mg", at=1.0)
        assert ticks == sorted(ticks) and len(set(ticks)) > 3
        assert (await store.requests())[-1].id == number
        assert read() == 151


async def test_when_a_cancelled_tick_returns_it_is_known_whether_it_is_on_record(
    file: Path,
) -> None:
    async with store_at(file) as store:
        for tick in range(1, 6):
            plan = starts(tick, *(drone(tick * 10_000 + n) for n in range(1500)))
            recording = asyncio.ensure_future(record(store, plan))
            await asyncio.sleep(0.01 * tick)
            recording.cancel()
            await asyncio.wait([recording])
            known = set(store.drones)
            assert {each.id for each in Reader(file).drones()} == known
            await store.event(1.0, "later", {})  # waits for whatever the worker thread still does
            assert set(store.drones) == known


@pytest.mark.parametrize(("mask", "mode"), [(0o007, 0o660), (0o077, 0o600)])
def test_a_group_that_the_umask_lets_in_can_write_the_store(
    tmp_path: Path, mask: int, mode: int
) -> None:
    """SQLite makes 0644 files: under the shipped unit operators met "attempt to write a readonly database"."""
    modes: dict[str, int] = {}

    async def write() -> None:
        async with store_at(tmp_path / "record.db") as store:
            await store.event(1.7e9, "anything", {})
            modes.update(_modes(tmp_path))

    before = os.umask(mask)
    try:
        asyncio.run(write())
    finally:
        os.umask(before)
    assert modes["record.db"] == mode
    assert {m for name, m in modes.items() if name in ("record.db-wal", "record.db-shm")} == {mode}
