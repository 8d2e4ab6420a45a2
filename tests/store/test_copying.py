"""A record that moves between a file and a server, both ways."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.answers.errors import Exit
from provisioner.model import DroneState, RequestKind
from provisioner.store import StoreError, StoreHeldError, copying
from provisioner.store.copying import TableCopy, copy_record
from provisioner.store.database import Place, database_of
from provisioner.store.observations import SCHEMA
from provisioner.store.reader import Reader
from tests.cli.conftest import process
from tests.labs.postgresql import PostgresServer
from tests.store.story import DONE, KEEP_S, KNOWN, drone, now_is, record, rows, starts, store_at
from tests.store.test_same_record import _shown

DEMO = Path(__file__).parents[2] / "site_configs" / "demo"


async def fill(place: Place) -> None:
    """Record drones, runs, days of the ledger, estimates, series and requests."""
    async with store_at(place, threaded=False) as store:
        first = drone(2, DroneState.BUSY, started_at=50.0, joined_at=51.0)
        await record(store, starts(1, drone(1), first))
        await store.record_completed([replace(DONE, job_id=f"{n}.0") for n in range(50)])
        ended = now_is(first, DroneState.DONE, at=5000.0, ended_at=5000.0)
        await store.record_results(1, [ended], ())
        await store.record_estimates(KNOWN)
        await store.record_sample(100.0, {})
        await store.record_outputs(100.0, {first.id: "out"})
        await store.event(1.0, "told", {"of": "ü"})
        await store.prune(5000.0 + KEEP_S)
        await store.record_completed([replace(DONE, job_id=f"late-{n}.0") for n in range(50)])
    Reader(place).ask(RequestKind.KILL, [drone(1).id], reason="x", by="mg", at=2.0)


def copied(source: Place, target: Place) -> list[TableCopy]:
    return [*copy_record(database_of(source), database_of(target), SCHEMA)]


async def test_a_record_moves_to_a_server_and_back_and_goes_on_there(
    file: Path, postgres: PostgresServer
) -> None:
    await fill(file)
    place, back = postgres.new_place(), file.with_name("back.db")
    there = copied(file, place)
    assert {each.table for each in there if each.rows} >= {"drones", "use_days", "ledger_days"}
    assert copied(place, back) == there
    assert _shown(Reader(file)) == _shown(Reader(place)) == _shown(Reader(back))
    runs = [Reader(each).use(0.0, 1e9) for each in (file, place, back)]
    assert runs[0] == runs[2] and runs[0].sums == runs[1].sums
    for each in (file, place, back):
        async with store_at(each, threaded=False) as store:
            await record(store, starts(2, drone(3), at=7000.0))
            await store.record_completed([replace(DONE, job_id="new.0", ended_at=5100.0)])
            assert store.next_serial == 4 and len(await store.requests()) == 1
        asked = Reader(each).ask(RequestKind.RELOAD, [], reason="x", by="mg", at=2.0)
        assert asked == 2, "numbers go on"
    assert _shown(Reader(file)) == _shown(Reader(place)) == _shown(Reader(back))


async def test_a_copy_that_was_interrupted_goes_on(
    file: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(file)
    place = postgres.new_place()
    monkeypatch.setattr(copying, "_BATCH", 7)
    really = copying._batches
    left = 5

    def batches(sql: Any, table: str, *more: Any) -> Any:
        nonlocal left
        for each in really(sql, table, *more):
            left -= 1
            if not left:
                raise KeyboardInterrupt
            yield each

    monkeypatch.setattr(copying, "_batches", batches)
    with pytest.raises(KeyboardInterrupt):
        copied(file, place)
    with rows(place) as sql:
        (count,) = sql.execute("SELECT count(*) FROM completed_jobs").fetchone()
    assert 0 < count < 50 and Reader(place).position().tick == 0
    assert [each.rows for each in copied(file, place) if each.table == "completed_jobs"] == [50]
    assert _shown(Reader(file)) == _shown(Reader(place))


async def test_what_cannot_be_copied_is_refused(file: Path, postgres: PostgresServer) -> None:
    await fill(file)
    place = postgres.new_place()
    async with store_at(file):
        with pytest.raises(StoreHeldError):
            copied(file, place)
    async with store_at(place) as store:
        await record(store, starts(1, drone(1)))
        with pytest.raises(StoreHeldError):
            copied(file, place)
    with pytest.raises(StoreError, match="has a record already, of tick 1"):
        copied(file, place)


async def test_a_copy_that_differs_is_refused(file: Path, postgres: PostgresServer) -> None:
    await fill(file)
    place = postgres.new_place()
    sql, _ = database_of(place).hold("kit", Reader(file).snapshot().id_prefix[-4:])
    sql.execute("INSERT INTO estimate_resets (id, at, what, reason, by) VALUES (9, 1, '', '', '')")
    sql.close()
    with pytest.raises(StoreError, match=r"table estimate_resets of .* differs"):
        copied(file, place)
    assert Reader(place).position().tick == 0


async def test_verbs_copy_a_record_and_read_it_by_its_url(
    file: Path, postgres: PostgresServer
) -> None:
    await fill(file)
    place = str(postgres.new_place())
    copy = ("store", "copy", "--store", file, "--to", place)
    ran = process(*copy)
    assert ran.returncode == 0 and "drones: 1 row, sha256" in ran.stderr, ran.stderr
    assert process("drones", "-o", "name", "--store", place).stdout == f"{drone(1).id}\n"
    status = process("status", "--store", place)
    assert status.returncode == 0 and "kit" in status.stdout, status.stderr
    again = process(*copy)
    assert again.returncode != 0 and "has a record already" in again.stderr
    refused = process("backup", file.with_name("copy.db"), "--store", place)
    assert refused.returncode != 0 and "pg_dump" in refused.stderr
    config = file.with_name("provisioner.yaml")
    config.write_text(f"controller: kit\nstore: {{url: '{place}'}}\n")
    assert process("drones", "-o", "name", "--config", config).stdout == f"{drone(1).id}\n"


def test_check_asks_the_server(tmp_path: Path, postgres: PostgresServer) -> None:
    """A record that does not exist yet is no problem, a server that is away is a gap."""
    for name in ("provisioner.yaml", "local.yaml"):
        text = (DEMO / name).read_text()
        text = text.replace("path: provisioner.db", f"url: '{postgres.new_place()}'")
        (tmp_path / name).write_text(text)
    config = tmp_path / "provisioner.yaml"
    assert "url:" in config.read_text()
    ran = process("check", "--config", config)
    assert (ran.returncode, ran.stdout) == (0, "") and "warning" not in ran.stderr
    config.write_text(config.read_text().replace("host=", "host=/nowhere"))
    ran = process("check", "--config", config)
    assert ran.returncode == 0 and "not compared with the drones on record" in ran.stderr
    ran = process("check", "--live", "--config", config)
    assert ran.returncode == Exit.UNMET and "the record cannot be written" in ran.stdout
