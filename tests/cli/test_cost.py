"""The cost of a question follows its answer, not the record: rows that leave SQLite, on a record of three days."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.model import (
    Drone,
    DroneState,
    OverlayView,
    PolledOverlay,
    TypeKey,
)
from provisioner.store import tables, view_log
from provisioner.store.reader import Reader
from provisioner.web.pages import render
from tests.cli.conftest import NOW, PLAIN, Cli
from tests.store.days import DRONES, add_days
from tests.store.story import A100, TemporaryStore, drone, seen, starts

FEW = 400
"""Rows of a question about one thing or one page: those of the story and of an hour are among them."""


@pytest.fixture(scope="module")
def _days(_filled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("days") / "record.db"
    with closing(sqlite3.connect(_filled)) as story, closing(sqlite3.connect(made)) as copy:
        story.backup(copy)
    add_days(made, NOW)
    return made


@pytest.fixture
def days(_days: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(_days, tmp_path / "days.db"))


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list of one number: the rows that all connections have read so far."""
    count, connect = [0], sqlite3.connect

    def counted(_: sqlite3.Cursor, row: tuple[object, ...]) -> tuple[object, ...]:
        count[0] += 1
        return row

    def connected(*args: object, **more: object) -> sqlite3.Connection:
        made: sqlite3.Connection = connect(*args, **more)  # type: ignore[call-overload]
        made.row_factory = counted
        return made

    monkeypatch.setattr(sqlite3, "connect", connected)
    return count


LAST, MIDDLE = f"kit-ab12-{999 + DRONES}", f"kit-ab12-{1000 + DRONES // 2}"


@pytest.mark.parametrize(
    "words",
    [
        f"drones show {MIDDLE}",
        f"drones show {LAST} -o json",
        "drones show nonsense",
        "explain drone 1700",
        "drones",
        "drones -o json",
        "drones --ended --limit 20",
        "drones --ended --limit 20 -o json",
        "drones --all --limit 20",
        f"drones --ended --limit 20 --after {MIDDLE}",
        "drones --ended --limit 20 --site topas --state done",
        "events --since 30d --limit 20",
        "events --since all --limit 20 -o json",
        "events --since all --limit 20 --after 9.1",
        "explain job 700.1",
        "explain job 699999.0",
        "explain class 7",
        "plan",
        "sites show topas",
        "status",
        "status --check",
        "demand",
        "sites",
        "estimates",
        "usage",
        "usage --since 7d --by user -o json",
        "usage --since 36h --by site",
        "usage --since 1h --by type",
        "usage --by drone",
        "usage --by drone --limit 20 -o json",
        "drones -o wide",
    ],
)
def test_a_question_reads_what_it_answers(
    cli: Cli, days: Path, rows: list[int], words: str
) -> None:
    ran = cli(*words.split(), "--store", days)
    assert ran.out or ran.err
    assert 0 < rows[0] <= FEW


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/drones", {"show": "ended", "limit": "20"}),
        ("/drones", {}),
        (f"/drone/{MIDDLE}", {}),
        ("/job/700.1", {}),
        ("/class/7", {}),
        ("/sites/topas", {}),
        ("/plan", {}),
        ("/why", {"q": LAST}),
        ("/waste", {}),
        ("/", {}),
        ("/sites", {}),
        ("/owner", {}),
        ("/use", {}),
        ("/use", {"since": "30d", "by": "user"}),
        ("/use", {"since": "1d", "by": "type"}),
        ("/use", {"since": "30d", "by": "drone"}),
    ],
)
def test_a_page_reads_what_it_shows(
    days: Path, rows: list[int], path: str, query: dict[str, str]
) -> None:
    assert "<h1" in render(path, Reader(days), query)
    assert 0 < rows[0] <= FEW * 2, "its parts ask for the same views"


@pytest.mark.parametrize(
    "path", ["/", "/sites", "/drones", "/owner", "/use", "/waste", f"/drone/{LAST}"]
)
def test_a_page_decodes_no_bulk_of_the_views(
    days: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Slots and listed drones, 10,000 each, took 30 MiB of the web service."""
    read, read_part = set[str](), view_log.read_part
    monkeypatch.setattr(
        view_log, "read_part", lambda sql, name, *row: read.add(name) or read_part(sql, name, *row)
    )
    assert "<h1" in render(path, Reader(days), {})
    assert "policy" in read
    assert not [name for name in read if name == "slots" or name.startswith("listed")]


def test_the_first_rows_are_those_of_the_whole_list(cli: Cli, days: Path) -> None:
    for words in ("drones --ended", "drones --all", "events --since all"):
        columns = (
            "--columns",
            "id" if "drones" in words else "at,name,drone,text",
            "-o",
            "jsonl",
            "--store",
            days,
        )
        every = cli(*words.split(), *columns).out.splitlines()
        page = cli(*words.split(), "--limit", "7", "--store", days)
        assert f"7 of {len(every)} shown" in page.err
        assert cli(*words.split(), "--limit", "7", *columns).out.splitlines() == every[:7]
    behind = cli(
        "drones", "--ended", "--after", MIDDLE, "--limit", "3", "--store", days, "-o", "name"
    ).out.split()
    middle = int(MIDDLE.rpartition("-")[2])
    assert behind == [f"kit-ab12-{middle + n}" for n in (1, 2, 3)]


def test_a_drone_on_a_large_record_has_its_own_use(cli: Cli, days: Path) -> None:
    shown = cli("drones", "show", MIDDLE, "--store", days, "-o", "json")
    assert '"use":0.4' in shown.out.replace(" ", "")


def test_the_drones_shown_are_those_with_most_unused_time(cli: Cli, days: Path) -> None:
    words = ("usage", "--by", "drone", "--store", days, "-o", "json")
    with sqlite3.connect(days) as sql:
        sql.execute("UPDATE completed_jobs SET used_milli = 7 WHERE drone_id = ?", (MIDDLE,))
    every, some = cli(*words).json, cli(*words, "--limit", "3").json
    assert some["items"][0]["name"] == MIDDLE and len(some["items"]) == 3 < len(every["items"])
    rows = {row["name"]: row for row in every["items"]}
    assert [rows[row["name"]] for row in some["items"]] == some["items"]
    facts = [
        {key: whole[key] for key in whole if key.endswith("_gpu_s")} for whole in (every, some)
    ]
    assert facts[0] == pytest.approx(facts[1], rel=1e-3)
    assert f"{len(rows)} drones with" in cli("usage", "--by", "drone", "--store", days).err


def test_a_lasting_event_of_days_ago_is_still_a_trouble(cli: Cli, days: Path) -> None:
    with sqlite3.connect(days) as sql:
        sql.execute(
            "UPDATE events SET name = 'config.rejected' WHERE id = (SELECT min(id) + 5 FROM events)"
        )
    assert "the changed configuration is invalid" in cli("status", "--store", days).out
    with sqlite3.connect(days) as sql:
        sql.execute(
            "UPDATE events SET name = 'config.reloaded' WHERE id = (SELECT min(id) + 50 FROM events)"
        )
    assert "the changed configuration is invalid" not in cli("status", "--store", days).out


def test_a_job_that_was_just_done_is_not_denied(cli: Cli, days: Path) -> None:
    """The history is read once a minute: the answer says up to when done jobs are known."""
    ran = cli("explain", "job", "699999.0", "--store", days)
    assert ran.code and "as far as done jobs are known: up to " in ran.err


def test_a_class_without_jobs_is_told_by_its_drones(cli: Cli, days: Path) -> None:
    gone = tables.pack(replace(PLAIN, id="gone"))
    with sqlite3.connect(days) as sql:
        sql.execute("UPDATE drones SET for_class = 'gone' WHERE id = ?", (MIDDLE,))
        sql.execute("INSERT INTO past_classes VALUES ('gone', ?, ?, NULL)", (NOW - 60, gone))
    ran = cli("explain", "class", "gone", "--store", days)
    assert f"1 drone on record for it, the newest {MIDDLE}" in ran.err
    ran = cli("drones", "show", MIDDLE, "--store", days)
    assert "alice: 1 GPU (gone)" in ran.out
    assert "no job class `never`" in cli("explain", "class", "never", "--store", days).err


async def test_the_work_of_explaining_a_class_is_the_sum_of_drones_and_types(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 500 types went through all live drones."""
    kinds, drones = [replace(A100, name=f"a{n}") for n in range(40)], range(1, 201)
    store = TemporaryStore()
    live = [drone(n, DroneState.BUSY, at=NOW, type=TypeKey(f"topas/a{n % 40}")) for n in drones]
    plan, view = starts(1, *live, at=NOW), PolledOverlay(OverlayView(NOW, (PLAIN,)))
    await store.record(plan, seen(store, plan, overlay=view, types=tuple(kinds)))
    looks, of = [0], Drone.type  # type: ignore[misc]

    def looked(self: Drone) -> Any:
        looks[0] += 1
        return of.__get__(self)  # type: ignore[attr-defined]

    monkeypatch.setattr(Drone, "type", property(looked, of.__set__))  # type: ignore[attr-defined]
    found = cli("explain", "class", PLAIN.id, "-o", "json", "--store", store.path).json
    assert {row["drones"] for row in found["types"]} == {5}
    assert 0 < looks[0] <= 20 * (len(kinds) + len(live))
