"""What was learned on the command line: shown with what the planner makes of it, and forgotten."""

from __future__ import annotations

import asyncio
from pathlib import Path

import jsonschema
import pytest

from provisioner.answers.errors import Exit
from provisioner.answers.estimates import ESTIMATES_SCHEMA
from provisioner.answers.schemas import output_schemas
from provisioner.estimates import (
    HORIZONS_S,
    UNKNOWN,
    Estimates,
    EstimateSamples,
    OwnerGrowth,
    SiteSamples,
    StartDelays,
)
from provisioner.model import Plan, Policy, PolledOverlay, Snapshot
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore
from tests.cli.conftest import CONTROLLER, NOW, Cli

ANNA = tuple(100.0 + n for n in range(20))
EXPERIENCE = EstimateSamples(
    NOW - 95,
    {"": (*ANNA, 7200.0), "etp/anna": ANNA, "etp/anna/1000/8/20480": ANNA, "bob": (7200.0,)},
    {"topas/a100": StartDelays(12.5, 61.0)},
    {
        "topas": SiteSamples(
            (8000,) * 700 + (UNKNOWN,) * 90 + (0,) * 20, NOW - 95, (5.0, 40.0, 900.0)
        ),
        "horeka": SiteSamples(taken=3.0, run_s=7200.0),
    },
)
LEARNED = Estimates(
    rises={
        "topas": OwnerGrowth(
            tuple((0,) * 8 + (2000, 3000 + 1000 * n) for n in range(len(HORIZONS_S)))
        )
    },
    idle_s={"topas": 60.0},
)


async def _kept(path: Path, experience: EstimateSamples | None) -> None:
    async with SqlStore(path, CONTROLLER, keep_s=1e9, snapshots=10, birth="ab12") as store:
        plan = Plan(1, NOW - 10)
        seen = Snapshot(
            plan.at,
            1,
            f"{CONTROLLER}-ab12",
            1,
            Policy(),
            (),
            PolledOverlay(),
            {},
            {},
            estimates=LEARNED,
        )
        await store.record(plan, seen)
        if experience is not None:
            await store.record_estimates(experience)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "record.db"
    asyncio.run(_kept(path, EXPERIENCE))
    return path


def test_before_anything_was_kept_it_says_when_that_will_be(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    asyncio.run(_kept(path, None))
    assert "records them every ten minutes" in cli("estimates", "--store", path).err
    told = cli("estimates", "--store", path, "-o", "json").json
    jsonschema.validate(told, output_schemas()[ESTIMATES_SCHEMA])
    ran = cli("estimates", "forget", "--user", "bob", "--reason", "x", "--store", path)
    assert ran.code == Exit.FAILED and "records them every ten minutes and at its end" in ran.err


def test_delays_are_shown_as_they_were_measured(on: Cli) -> None:
    told = on("estimates", "-o", "json").json
    jsonschema.validate(told, output_schemas()[ESTIMATES_SCHEMA])
    assert told["delays"] == [
        {"type": "topas/a100", "queue_s": 12.5, "boot_s": 61.0},
    ]


def test_what_is_to_be_forgotten_is_recorded_and_shown_until_it_is(on: Cli, record: Path) -> None:
    twice = ("--user", "bob", "--user", "bob", "--site", "topas", "--site", "topas")
    ran = on("estimates", "forget", *twice, "--reason", "new code")
    assert ran.code == 0, ran.err
    assert "no controller runs: the next one will carry it out" in ran.err
    resets = [(each.what, each.reason) for each in Reader(record).estimate_resets()]
    assert resets == [("user:bob", "new code"), ("site:topas", "new code")]
    assert on("estimates", "-o", "json").json["to_forget"] == ["user:bob", "site:topas"]
    assert on("estimates", "forget", "--all", "--reason", "moved").code == 0
    assert Reader(record).estimate_resets()[-1].what == "all"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ["forget", "--reason", "x"],
            Exit.USAGE,
            "nothing selected: write --all, --user or --site",
        ),
        (["forget", "--all", "--user", "bob", "--reason", "x"], Exit.USAGE, "nothing selected"),
        (
            ["forget", "--user", "bob", "--user", " ", "--reason", "x"],
            Exit.USAGE,
            "--user must not be empty",
        ),
        (
            ["forget", "--user", "alicia", "--reason", "x"],
            Exit.FAILED,
            "no user `alicia` in the estimates; known: bob",
        ),
        (["forget", "--site", "topaz", "--reason", "x"], Exit.FAILED, "did you mean `topas`?"),
        # It would be ignored: the record at hand would lose what it knows.
        (
            ["--store", "other.db", "forget", "--all", "--reason", "x"],
            Exit.USAGE,
            "put --store after `estimates",
        ),
    ],
)
def test_what_would_forget_nothing_is_refused(
    on: Cli, record: Path, words: list[str], code: Exit, said: str
) -> None:
    ran = on("estimates", *words)
    assert ran.code == code and said in ran.err
    assert Reader(record).estimate_resets() == ()


def test_what_cannot_be_read_is_said_and_can_be_forgotten(on: Cli, record: Path) -> None:
    import sqlite3

    with sqlite3.connect(record) as sql:
        sql.execute("UPDATE estimates SET body = x'00'")
    sql.close()
    ran = on("estimates")
    assert ran.code == Exit.FAILED and "are damaged" in ran.err and "Traceback" not in ran.err
    assert on("estimates", "forget", "--all", "--reason", "damaged").code == 0
