"""Members of two versions with one record, which is expanded while the older one leads."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

import adapters
import provisioner
from provisioner.model import RequestKind
from provisioner.store import file as store_file
from provisioner.store.database import Place
from tests.controller import test_members
from tests.controller.test_members import Pair, file, place, postgres
from tests.controller.test_process import Host, host
from tests.store.story import rows

__all__ = ["file", "host", "place", "postgres"]
pytestmark = [pytest.mark.slow, pytest.mark.matrix]

LEASE_S = 10
"""Much longer than a hand-over, so that one that waits for it shows."""
DEFAULT = "slot_max_age_s: float = 900.0"
NEWER_DEFAULT = 901.0
SCHEMA = len(store_file.MIGRATIONS) + 1
MIGRATION = """-- Expands.
ALTER TABLE drones ADD COLUMN rack TEXT NOT NULL DEFAULT '';
CREATE TABLE racks (id INTEGER PRIMARY KEY NOT NULL);
"""


def newer_version(directory: Path) -> Path:
    """Return the place of a copy of the package with one migration more and another default."""
    package = directory / "newer" / "provisioner"
    skipped = shutil.ignore_patterns("__pycache__")
    for each in (provisioner, adapters):
        found = Path(each.__path__[0])
        shutil.copytree(found, package.parent / found.name, ignore=skipped)
    (package / "store" / "migrations" / f"{SCHEMA:04}_racks.sql").write_text(MIGRATION)
    settings = package / "settings.py"
    text = settings.read_text()
    assert text.count(DEFAULT) == 1
    settings.write_text(text.replace(DEFAULT, DEFAULT.replace("900.0", str(NEWER_DEFAULT))))
    return package.parent


class Upgrade(Pair):
    """A pair of which each member is replaced by one of the newer version."""

    def __init__(self, host: Host, place: Place) -> None:
        super().__init__(host, 0.2, place)
        self.newer = newer_version(host.path)

    def replaces(self, old: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        """End a standby, start one of the newer version, and wait until it is ready."""
        old.send_signal(signal.SIGTERM)
        assert old.wait(60) == 0
        path = self.host.env["PYTHONPATH"]
        self.host.env["PYTHONPATH"] = os.pathsep.join([str(self.newer), path])
        self.runs_another()
        self.host.env["PYTHONPATH"] = path
        new = self.members[-1]
        self.host.until(lambda: self.is_ready(new), 60)
        return new

    def is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        lease, members = self.record.lease()
        (mine,) = [each for each in members if each.name.endswith(f"/{process.pid}")]
        return mine.is_ready(lease)

    def resigns(self) -> None:
        """Let the other member lead, and wait for its second tick."""
        old = self.leader
        tick = self.tick
        at = self.record.now()
        self.record.ask(RequestKind.RESIGN, [], reason="upgrade", by="test", at=at)
        self.host.until(lambda: self.leader not in (None, old), 60)
        self.host.until(lambda: self.tick > tick + 2)

    def ticks(self) -> list[tuple[int, float, int, float]]:
        """Return number and time of the first and the last tick of each plan on record."""
        with rows(self.record.path) as sql:
            query = "SELECT tick, at, last_tick, last_at FROM plans ORDER BY seq"
            return [tuple(row) for row in sql.execute(query).fetchall()]

    def generations(self) -> list[tuple[int, str]]:
        with rows(self.record.path) as sql:
            query = "SELECT generation, state FROM configurations ORDER BY generation"
            return [tuple(row) for row in sql.execute(query).fetchall()]


def gaps_of(ticks: Sequence[tuple[int, float, int, float]]) -> list[float]:
    """Return the seconds between the plans on record. Raise AssertionError if a tick is missing."""
    found = []
    for (*_, last_tick, last_at), (tick, at, *_) in pairwise(ticks):
        assert tick == last_tick + 1
        found.append(at - last_at)
    return found


def test_members_are_upgraded_under_load_without_a_gap_and_without_a_lost_record(
    host: Host, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_members, "LEASE_S", LEASE_S)
    upgrade = Upgrade(host, place)
    upgrade.starts_more()
    upgrade.runs(3.0)
    first, second = upgrade.members
    assert upgrade.leader is first
    calm = len(upgrade.ticks())
    newer = upgrade.replaces(second)
    upgrade.runs(3.0)
    assert upgrade.leader is first, "the record was expanded while it leads"
    mixed = len(upgrade.ticks())
    handed_over = list[int]()
    for leader in (newer, first, newer):
        handed_over.append(len(upgrade.ticks()))
        upgrade.resigns()
        assert upgrade.leader is leader
        upgrade.runs(2.0)
    upgrade.replaces(first)
    upgrade.runs(3.0)
    assert upgrade.generations() == [(1, "adopted")]
    views = upgrade.record.views()
    assert views is not None and views.policy.slot_max_age_s == NEWER_DEFAULT
    with rows(upgrade.record.path) as sql:
        assert sql.execute("SELECT count(*) FROM racks").fetchone() == (0,)

    ticks = upgrade.ticks()
    gaps = gaps_of(ticks)
    ordinary = max(gaps[: calm - 1])
    taken = [max(gaps[number - 2 : number + 12]) for number in handed_over]
    print(
        f"{len(ticks)} plans, ticks 1 to {ticks[-1][2]}; longest gap {ordinary:.2f} s before,"
        f" {max(gaps[calm - 1 : mixed - 1]):.2f} s while the record was expanded,"
        f" {[round(each, 2) for each in taken]} s at hand-overs,"
        f" median {statistics.median(gaps):.2f} s"
    )
    assert max(gaps) < LEASE_S + ordinary, "a lease was left to run out"
    upgrade.keeps_its_promises()
    asked = {each[3] for each in upgrade.orders if each[2] == "asked"}
    assert asked <= {each.id for each in upgrade.record.drones(ended=None)}


def test_changed_files_of_a_standby_are_in_force_for_both(host: Host, place: Place) -> None:
    pair = Pair(host, 0.2, place)
    standby = pair.members[1]
    settings = host.path / "provisioner.yaml"
    settings.write_text(settings.read_text().replace("interval: 300ms", "interval: 250ms"))
    standby.send_signal(signal.SIGHUP)
    host.until(lambda: (found := pair.record.generation()) and found.generation == 2)
    host.until(lambda: (views := pair.record.views()) and views.policy.interval_s == 0.25)
    assert b"generation 2, proposed by" in host.call("status").stdout
    settings.write_text(settings.read_text().replace("queue.db", "elsewhere.db"))
    standby.send_signal(signal.SIGHUP)
    host.until(lambda: b"rejected (generation 3) overlay:" in host.call("status").stdout)
    pair.starts_more()
    pair.keeps_its_promises()
