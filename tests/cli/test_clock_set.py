"""Ages and alarms after somebody set the clock of the host, while the controller runs on or hangs."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from provisioner.monitoring.metrics import families, health
from provisioner.store.lock import process_of
from provisioner.store.reader import Reader
from tests.cli.conftest import NOW, Cli

SetClock = Callable[[float, float], None]


@pytest.fixture
def set_clock(running: Path, monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Set the clock by some seconds, so long after the newest tick of a controller that still runs."""

    def done(step_s: float, silent_s: float) -> None:
        monkeypatch.setattr(time, "time", lambda: NOW - 4 + silent_s + step_s)
        boot = process_of(os.getpid()).split()[0]
        moment = f"{boot} {time.monotonic() - silent_s!r}"
        with closing(sqlite3.connect(running)) as sql, sql:
            sql.execute("INSERT OR REPLACE INTO meta VALUES ('moment', ?)", (moment,))

    return done


STEPS = [90_000.0, -90_000.0, 600_000_000.0]


@pytest.mark.parametrize("step_s", STEPS)
def test_a_controller_that_ticks_on_is_well(
    cli: Cli, running: Path, set_clock: SetClock, step_s: float
) -> None:
    set_clock(step_s, 5.0)
    ran = cli("status", "--check", "--store", running)
    assert "no tick" not in ran.out and "view" not in ran.out, "those of the record are 5 s old"
    assert "tick 3, 5s ago" in " ".join(cli("demand", "--store", running).err.split())
    assert ", 0 entries" not in f", {cli('events', '--store', running).err}"
    (age,) = (
        s.value
        for f in families(Reader(running), Reader(running).now())
        if "tick_age" in f.name
        for s in f.samples
    )
    assert 4 < age < 60
    assert not any("tick" in reason for reason in health(Reader(running)).reasons)


@pytest.mark.parametrize("step_s", STEPS)
def test_a_controller_that_hangs_is_critical(
    cli: Cli, running: Path, set_clock: SetClock, step_s: float
) -> None:
    set_clock(step_s, 1000.0)
    ran = cli("status", "--check", "--store", running)
    assert ran.code == 2 and "no tick recorded for 16m" in ran.out
    said = ran.out
    assert said.index("clock") < said.index("disk full"), "the clock is named before the disk"
    assert any("newest tick is 16m" in reason for reason in health(Reader(running)).reasons)


def test_without_a_monotonic_time_the_lead_on_record_counts(cli: Cli, running: Path) -> None:
    """As after a boot: the wall clock was 25 hours ahead when the newest tick was recorded, and is so still."""
    with closing(sqlite3.connect(running)) as sql, sql:
        sql.execute("UPDATE meta SET value = '90000.0' WHERE key = 'drift_s'")
        sql.execute("UPDATE meta SET value = ? WHERE key = 'at'", (repr(NOW - 90_004),))
    assert "tick 3, 4s ago" in cli("demand", "--store", running).err
