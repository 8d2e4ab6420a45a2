"""A record on a server: the server and the connections to it end, and roles lack rights."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.model import Plan, RequestKind
from provisioner.store import StoreError, StoreHeldError, StoreUnusableError, file as store_file
from provisioner.store.copying import TABLE_KEYS
from provisioner.store.database import ServerSchema, database_of, place_in, place_of
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore
from tests.labs.postgresql import PostgresServer, postgres_or_skip
from tests.store.story import CONTROLLER, DONE, drone, record, rows, starts, store_at


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that is this test's alone, and keeps what it has committed."""
    with postgres_or_skip() as made:
        yield made


def terminate(server: PostgresServer) -> None:
    """End all connections of controllers and readers."""
    end = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'prov%'"
    )
    server.run("psql", f"--host={server.directory}", "-Uprovisioner", f"-c{end}", "postgres")


KINDS = {
    "INTEGER": "bigint",
    "BOOLEAN": "smallint",
    "TEXT": "text",
    "BLOB": "bytea",
} | dict.fromkeys(("FLOAT", "REAL"), "double precision")


def of_sqlite(file: Path) -> dict[str, Any]:
    """Return the columns and keys of each table, and all indexes."""
    with closing(sqlite3.connect(file)) as sql:
        names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        found: dict[str, Any] = {}
        for (table,) in sql.execute(names).fetchall():
            columns = sql.execute(f"PRAGMA table_info({table})").fetchall()
            found[table] = {name: (KINDS[kind], bool(no)) for _, name, kind, no, _, _ in columns}
            key = sorted((number, name) for *_, name, _, _, _, number in columns if number)
            found[table]["PRIMARY KEY"] = [name for _, name in key]
        found["past_classes"]["id"] = ("text", True)  # SQLite lets keys be NULL
        indexes = "SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
        return found | {"indexes": {name for (name,) in sql.execute(indexes)}}


def of_server(place: ServerSchema) -> dict[str, Any]:
    with rows(place) as sql:
        query = (
            "SELECT table_name, column_name, data_type, is_nullable = 'NO' FROM information_schema.columns"
            " JOIN information_schema.tables USING (table_schema, table_name)"
            " WHERE table_schema = current_schema() AND table_type = 'BASE TABLE' ORDER BY ordinal_position"
        )
        found: dict[str, Any] = {}
        for table, column, kind, no in sql.execute(query):
            found.setdefault(table, {})[column] = (kind, no)
        query = (
            "SELECT c.relname, a.attname FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid"
            " CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k (number, place)"
            " JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number"
            " WHERE i.indisprimary AND c.relnamespace = current_schema()::regnamespace ORDER BY place"
        )
        for table, column in sql.execute(query):
            found[table].setdefault("PRIMARY KEY", []).append(column)
        query = "SELECT indexname FROM pg_indexes WHERE schemaname = current_schema()"
        indexes = {name for (name,) in sql.execute(query)}
    return found | {"indexes": {name for name in indexes if not re.search("_(pkey|key)$", name)}}


async def test_both_databases_have_the_same_tables(file: Path, postgres: PostgresServer) -> None:
    place = postgres.new_place()
    for each in (file, place):
        async with store_at(each):
            pass
    there, here = of_server(place), of_sqlite(file)
    assert there == here
    not_copied = {"meta", "indexes", "lease", "members"}
    assert set(TABLE_KEYS) | not_copied == set(here)
    assert {table: (*here[table]["PRIMARY KEY"],) for table in TABLE_KEYS} == TABLE_KEYS


async def test_a_migration_of_the_next_version_runs_on_a_server(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = postgres.new_place()
    async with store_at(place) as store:
        await record(store, starts(1, drone(1)))
    script = tmp_path / "9999_next.sql"
    script.write_text(
        "ALTER TABLE drones ADD COLUMN rack TEXT NOT NULL DEFAULT '';\n"
        "CREATE TABLE racks (id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, body BLOB) STRICT;"
    )
    number = len(store_file.MIGRATIONS) + 1
    with monkeypatch.context() as newer:
        newer.setattr(store_file, "MIGRATIONS", (*store_file.MIGRATIONS, script))
        async with store_at(place) as store:
            assert set(store.drones) == {drone(1).id}
        with rows(place) as sql:
            insert = "INSERT INTO racks (body) VALUES (?) RETURNING id"
            assert sql.execute(insert, (b"\0",)).fetchone() == (1,)
    for refused in (store_at(place).__aenter__, Reader(place).drones):
        with pytest.raises(StoreUnusableError, match=f"has schema {number}.*newer provisioner"):
            result = refused()
            if result is not None and not isinstance(result, list):
                await result


async def test_a_lost_connection_fails_one_write_and_the_next_connects_again(
    server: PostgresServer,
) -> None:
    place = server.new_place()
    async with store_at(place) as store:
        await record(store, starts(1, drone(1)))
        for tick in (2, 3):
            terminate(server)
            with pytest.raises(StoreUnusableError, match="nothing was recorded"):
                await record(store, starts(tick, drone(tick)))
            assert store.tick == tick - 1 and drone(tick).id not in store.drones
            await record(store, starts(tick, drone(tick)))
            assert [each.id for each in Reader(place).drones()] == [*store.drones]


async def test_a_server_that_crashes_loses_nothing_and_the_controller_resumes(
    server: PostgresServer,
) -> None:
    place = server.new_place()
    reader = Reader(place)
    async with store_at(place) as store:
        await record(store, starts(1, drone(1)))
        assert reader.position().tick == 1
        server.stop("immediate")
        for _ in range(3):
            with pytest.raises(StoreUnusableError, match="the next try connects again"):
                await record(store, starts(2, drone(2)))
            with pytest.raises(StoreUnusableError):
                reader.drones()
        assert store.tick == 1
        server.start()
        assert [each.id for each in reader.drones()] == [drone(1).id]
        await record(store, starts(2, drone(2)))
        assert reader.position().tick == 2 and len(reader.drones()) == 2


async def test_a_commit_whose_reply_is_lost_is_read_back_before_anything_else(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = server.new_place()
    async with store_at(place) as store:
        await record(store, starts(1, drone(1)))
        sql = store._opened
        really = type(sql).execute

        def execute(self: Any, statement: str, *values: Any) -> Any:
            found = really(self, statement, *values)
            if statement == "COMMIT":
                self.raw.pgconn.finish()  # the reply does not come
                really(self, "SELECT 1")
            return found

        with monkeypatch.context() as lost:
            lost.setattr(type(sql), "execute", execute)
            with pytest.raises(StoreError):
                await record(store, starts(2, drone(2)))
        assert store.tick == 1
        with pytest.raises(StoreError, match="recomputes the plan from the record"):
            await record(store, starts(2, drone(2)))
        assert store.tick == 2 and set(store.drones) == {drone(1).id, drone(2).id}
        await record(store, starts(3, drone(3)))
        assert Reader(place).position().tick == 3


async def test_one_controller_holds_a_record_and_the_other_is_told_who(
    server: PostgresServer,
) -> None:
    place = server.new_place()
    reader = Reader(place)
    first = await store_at(place).__aenter__()
    with pytest.raises(StoreHeldError, match="is held by the controller with pid"):
        await store_at(place).__aenter__()
    holder = reader.holder()
    assert holder is not None and holder.pid
    terminate(server)
    assert reader.holder() is None, "its connection is gone"
    async with store_at(place) as second:
        await record(second, starts(1, drone(1)))
        for _ in range(2):
            with pytest.raises(StoreError):
                await record(first, starts(1, drone(2)))
    with pytest.raises(StoreHeldError, match="acts on nothing any more"):
        await record(first, starts(1, drone(2)))
    await first.__aexit__()
    assert [each.id for each in reader.drones()] == [drone(1).id]


async def test_several_controllers_share_a_database(postgres: PostgresServer) -> None:
    one = postgres.new_place()
    other = replace(one, schema=f'{one.schema} "other" \\ it\'s')
    async with store_at(one) as store, store_at(other, "kot") as second:
        await record(store, starts(1, drone(1)))
        assert dict(second.drones) == {} and Reader(other).controller() == "kot"
        assert Reader(other).ask(RequestKind.RELOAD, [], reason="", by="mg", at=1.0) == 1
        assert await store.requests() == ()
    with pytest.raises(StoreUnusableError, match="belongs to controller 'kot', not 'kit'"):
        await store_at(other).__aenter__()
    with pytest.raises(StoreUnusableError, match="without `--shadow`"):
        await SqlStore(one, CONTROLLER, 1e9, 3, shadow=True).__aenter__()


async def test_the_record_of_a_shadow_is_on_a_server(postgres: PostgresServer) -> None:
    async with SqlStore(place := postgres.new_place(), "kit", 1e9, 3, shadow=True) as store:
        await record(store, Plan(1, 100.0))
        await store.prune(200.0)
    assert Reader(place).is_shadow() and len(Reader(place).observations(0.0)) == 1


async def test_a_role_that_may_only_read_reads_and_is_told_what_it_lacks(
    postgres: PostgresServer,
) -> None:
    place = postgres.new_place()
    async with store_at(place) as store:
        await record(store, starts(1, drone(1)))
    with rows(place) as sql:
        sql.execute("CREATE ROLE looks LOGIN")
        sql.execute(f'GRANT USAGE ON SCHEMA "{place.schema}" TO looks')
        sql.execute(f'GRANT SELECT ON ALL TABLES IN SCHEMA "{place.schema}" TO looks')
    theirs = replace(place, url=place.url.replace("provisioner@", "looks@"))
    assert len(Reader(theirs).drones()) == 1
    with pytest.raises(StoreUnusableError, match=r"permission denied.*grant the role"):
        Reader(theirs).ask(RequestKind.RELOAD, [], reason="", by="mg", at=1.0)
    assert "GRANT CREATE" in database_of(replace(theirs, schema="new")).probe()
    assert database_of(place).probe() == ""


async def test_a_dump_is_restored_as_the_how_to_says(postgres: PostgresServer) -> None:
    place = postgres.new_place()
    async with store_at(place) as store:
        await record(store, starts(1, drone(1)))
        to, dump = f"--host={postgres.directory}", str(postgres.directory / "provisioner.dump")
        words = ("--format=custom", f"--schema={place.schema}", f"--file={dump}")
        postgres.run("pg_dump", to, "-Uprovisioner", *words, "postgres")
        await record(store, starts(2, drone(2)))
    with rows(place) as sql:
        sql.execute(f'ALTER SCHEMA "{place.schema}" RENAME TO "{place.schema}-old"')
        sql.execute("COMMIT")
        postgres.run("pg_restore", to, "-Uprovisioner", "--dbname=postgres", dump)
        sql.execute(
            f'UPDATE "{place.schema}".meta SET value = value::bigint + 100000'
            " WHERE key = 'next_serial'"
        )
    assert [each.id for each in Reader(place).drones()] == [drone(1).id]
    async with store_at(place) as store:
        assert store.next_serial == 100_002
        await record(store, starts(2, drone(100_002)))
        await store.record_completed([DONE])
        assert len(Reader(place).completions(0.0, 1e9)) == 1 and len(store.drones) == 2


def test_what_is_not_there_is_named_without_a_password(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match=r"there is no store .*schema=kit-\d+: `provisioner run`"):
        Reader(postgres.new_place()).drones()
    secret = tmp_path / "secret"
    nowhere = place_of("postgresql://ann@127.0.0.1:1/x", "kit", {"file": secret})
    with pytest.raises(StoreError, match="its password cannot be read"):
        Reader(nowhere).drones()
    secret.write_text("hush\n")
    with pytest.raises(StoreUnusableError, match=r"postgresql://ann@127\.0\.0\.1:1/x") as refused:
        Reader(nowhere).drones()
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"store": {"path": "a.db"}}, Path("/etc/p/a.db")),
        (
            {"store": {"url": "postgresql://h/d"}, "controller": "kit"},
            ServerSchema("postgresql://h/d", "kit"),
        ),
        (
            {
                "controller": "kit",
                "store": {
                    "url": "postgresql://h/d?schema=x&sslmode=require",
                    "password": {"file": "f"},
                },
            },
            ServerSchema("postgresql://h/d?sslmode=require", "x", Path("/etc/p/f")),
        ),
        ({"store": {}}, None),
        ({"store": [1]}, None),
        ([], None),
    ],
)
def test_the_place_of_a_record_is_read_from_a_configuration(tree: Any, expected: Any) -> None:
    assert place_in(tree, Path("/etc/p")) == expected
