"""Rules of migrations, so that the code of the release before goes on with the record beside the new one."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import provisioner.store
from provisioner.store import StoreUnusableError, file as store_file, reader as store_reader
from provisioner.store.copying import TABLE_KEYS
from provisioner.store.database import Place, database_of
from provisioner.store.reader import Reader
from tests.labs.postgresql import PostgresServer
from tests.store.story import DONE, drone, record, rows, starts, store_at

FIRST_MARKED = 17
"""Older scripts have no mark: no release that reads marks has to go on with a record of before them."""
EXPANDS = "-- Expands.\n"
TRIGGERED = {
    table
    for script in store_file.MIGRATIONS
    for table in re.findall(r"INSERT INTO (\w+)\s+(?:VALUES|SELECT)", script.read_text())
}
"""Tables into which triggers, perhaps, insert rows without naming the columns."""
REMOVES = re.compile(r"\b(DROP|RENAME)\b", re.IGNORECASE)
FILLS = re.compile(r"ADD COLUMN \w+ \w+ NOT NULL(?! DEFAULT)", re.IGNORECASE)


def mistakes(number: int, script: str) -> Iterator[str]:
    """Yield what is wrong with the script of schema ``number``."""
    mark = store_file._SCOPE_MARK.match(script)
    if mark is None:
        yield "its first line is neither `-- Expands.` nor `-- Contracts: code of schema N goes on.`"
    elif mark["oldest"] is None and REMOVES.search(script):
        yield "it drops or renames something, and the code of the release before may use it"
    elif mark["oldest"] is not None and int(mark["oldest"]) >= number:
        yield "no release goes on with it: first publish code that does not use what it removes"
    for table in TRIGGERED:
        if f"ALTER TABLE {table} ADD" in script and "CREATE TRIGGER" not in script:
            yield f"the triggers that fill {table} do not name its columns: replace them"
    if FILLS.search(script):
        yield "older code does not fill a column without a default"


def test_each_migration_says_which_code_goes_on() -> None:
    found = {
        script.name: [*mistakes(number, script.read_text())]
        for number, script in enumerate(store_file.MIGRATIONS, 1)
        if number >= FIRST_MARKED
    }
    assert not any(found.values()), found


@pytest.mark.parametrize(
    ("script", "count"),
    [
        (f"{EXPANDS}ALTER TABLE drones ADD COLUMN rack TEXT NOT NULL DEFAULT '';", 0),
        ("ALTER TABLE drones ADD COLUMN rack TEXT;", 1),
        (f"{EXPANDS}ALTER TABLE drones ADD COLUMN rack TEXT NOT NULL;", 1),
        (f"{EXPANDS}ALTER TABLE ledger_due ADD COLUMN rack TEXT;", 1),
        (f"{EXPANDS}ALTER TABLE drones DROP COLUMN rack;", 1),
        (f"{EXPANDS}ALTER TABLE drones RENAME COLUMN rack TO node;", 1),
        ("-- Contracts: code of schema 19 goes on.\nALTER TABLE drones DROP COLUMN rack;", 0),
        ("-- Contracts: code of schema 20 goes on.\nALTER TABLE drones DROP COLUMN rack;", 1),
    ],
)
def test_a_migration_that_drops_or_renames_needs_the_mark(script: str, count: int) -> None:
    assert len([*mistakes(20, script)]) == count


def test_each_statement_that_inserts_names_its_columns() -> None:
    """Another release may have more columns."""
    for path in Path(provisioner.store.__file__).parent.glob("*.py"):
        found = re.findall(r"INSERT INTO [\w{}]+ (.)", path.read_text())
        assert set(found) <= {"("}, path


class NewerCode:
    """Code with one migration more."""

    def __init__(self, patch: pytest.MonkeyPatch, script: Path, text: str) -> None:
        script.write_text(text)
        self.patch = patch
        self.older = store_file.MIGRATIONS
        self.newer = (*self.older, script)

    def runs(self, *, newer: bool) -> None:
        for module in (store_file, store_reader):
            self.patch.setattr(module, "MIGRATIONS", self.newer if newer else self.older)

    async def migrates(self, place: Place) -> None:
        self.runs(newer=True)
        async with store_at(place):
            pass
        self.runs(newer=False)


async def test_older_code_goes_on_with_a_record_that_was_expanded(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All tables have a column that it does not know, but those that old triggers fill."""
    columns = [
        f"ALTER TABLE {table} ADD COLUMN extra TEXT NOT NULL DEFAULT '';"
        for table in TABLE_KEYS
        if table not in TRIGGERED
    ]
    code = NewerCode(monkeypatch, tmp_path / "next.sql", "\n".join([EXPANDS.strip(), *columns]))
    async with store_at(place) as store:
        await record(store, starts(1, drone(1)))
    await code.migrates(place)
    async with store_at(place) as store:
        await record(store, starts(2, drone(2), at=200.0))
        await store.record_completed([replace(DONE, drone_id=drone(1).id)])
        await store.record_sample(300.0, {})
        await store.prune(400.0)
        assert set(store.drones) == {drone(1).id, drone(2).id}
    assert len(Reader(place).drones()) == 2
    code.runs(newer=True)
    async with store_at(place) as store:
        assert store.tick == 2


async def test_older_code_refuses_a_record_that_was_contracted_after_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    older = len(store_file.MIGRATIONS)
    text = f"-- Contracts: code of schema {older + 1} goes on.\nCREATE TABLE racks (id INTEGER);"
    code = NewerCode(monkeypatch, tmp_path / "next.sql", text)
    async with store_at(place):
        pass
    await code.migrates(place)
    with pytest.raises(StoreUnusableError, match=f"has schema {older + 1}.*newer provisioner"):
        await store_at(place).__aenter__()
    with pytest.raises(StoreUnusableError, match="newer provisioner"):
        Reader(place).drones()


async def test_members_that_start_together_migrate_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = f"{EXPANDS}CREATE TABLE racks (id INTEGER NOT NULL);\nINSERT INTO racks (id) VALUES (1);"
    code = NewerCode(monkeypatch, tmp_path / "next.sql", text)
    async with store_at(place):
        pass
    code.runs(newer=True)
    barrier = threading.Barrier(4)

    def start() -> None:
        barrier.wait()
        database = database_of(place)
        sql, _ = database.hold("kit", None, shared=True)
        sql.close()
        database.release()

    await asyncio.gather(*(asyncio.to_thread(start) for _ in range(barrier.parties)))
    with rows(place) as sql:
        assert sql.execute("SELECT id FROM racks").fetchall() == [(1,)]


async def test_a_leader_writes_on_while_a_migration_waits_for_a_reader(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its statements come after that of the migration, so it would wait for the reader as well."""
    place = postgres.new_place()
    text = f"{EXPANDS}ALTER TABLE drones ADD COLUMN rack TEXT NOT NULL DEFAULT '';"
    code = NewerCode(monkeypatch, tmp_path / "next.sql", text)
    async with store_at(place) as store:
        await record(store, starts(1, drone(1)))
    database = database_of(place)
    leader, _ = database.hold("kit", None, shared=True)
    database.limit_wait(leader, 4.0)  # a statement that waits for longer fails
    reader = database_of(place).reading(write=False)
    reader.execute("SELECT count(*) FROM drones").fetchall()
    code.runs(newer=True)
    other = database_of(place)
    migration = asyncio.create_task(asyncio.to_thread(other.hold, "kit", None, shared=True))
    for _ in range(4):
        await asyncio.sleep(0.3)
        await asyncio.to_thread(leader.execute, "UPDATE drones SET since = since + 1")
    assert not migration.done()
    reader.execute("COMMIT")
    sql, _ = await migration
    assert sql.execute("SELECT rack FROM drones").fetchall() == [("",)]
    for each in (sql, leader, reader):
        each.close()
