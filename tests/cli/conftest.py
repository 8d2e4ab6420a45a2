"""A filled record, made by the real store and the real decision, and a way to run verbs against it."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from provisioner import model as m
from provisioner.cli.__main__ import run_verb
from provisioner.planner import decide
from provisioner.reasons import Accepted, EndedAtSite, SeenInPool
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore

CONTROLLER = "kit"
NOW = float(int(time.time()))
"""The story ends now; ages in outputs follow from it."""


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins at the end of the story, however long the tests before it took."""
    clock, began = time.time, time.time()
    monkeypatch.setattr(time, "time", lambda: NOW + 0.5 + clock() - began)


A100 = m.DroneType(
    "topas", "a100", 1000, 8, 20480, 51200, vram_mib=40960, capability=80, gpu_model="A100"
)
H100 = m.DroneType(
    "horeka", "h100", 1000, 16, 65536, 51200, vram_mib=97792, capability=90, gpu_model="H100"
)

PLAIN = m.JobClass(
    "7", 1000, 2, 4096, waiting=5, oldest_at=NOW - 7200, owner="alice", job_ids="204.0-204.3, 207.1"
)
HUGE = m.JobClass(
    "9",
    1000,
    2,
    4096,
    vram_mib=200000,
    waiting=40,
    fresh=2,
    oldest_at=NOW - 90000,
    owner="bob",
    job_ids="205.0-205.41",
)
FRESH = m.JobClass(
    "11",
    500,
    1,
    1024,
    fresh=3,
    oldest_at=NOW - 5,
    owner="eve",
    job_ids="207.2-207.4, 300.0 ...",
    vo="belle2",
)

POLICY = m.Policy(
    max_drones=50,
    sites={
        "topas": m.SitePolicy("topas", max_drones=3),
        "horeka": m.SitePolicy("horeka", max_drones=40),
    },
)


@dataclass(frozen=True, slots=True)
class Ran:
    """What a verb did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Cli = Callable[..., Ran]


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No configuration of this host takes part; tables fit 100 columns."""
    for name in [
        n for n in os.environ if n.startswith("PROVISIONER_") or n in ("NO_COLOR", "COLUMNS")
    ]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cli() -> Cli:
    """Run one command line in this process."""

    def run(*words: str | Path, stdin: str = "") -> Ran:
        out, err = io.StringIO(), io.StringIO()
        before = sys.stdin
        sys.stdin = io.StringIO(stdin)
        try:
            with redirect_stdout(out), redirect_stderr(err):
                code = run_verb([str(w) for w in words])
        finally:
            sys.stdin = before
        return Ran(int(code), out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def on(cli: Cli, record: Path) -> Cli:
    """Run one command line against the filled record."""
    return lambda *words, **more: cli(*words, "--store", record, **more)


ODD = "an ad named `x; rm -rf /` has no drone id of ours"


def process(*words: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run one command line as a process of its own."""
    command = [sys.executable, "-m", "provisioner.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **more)


@pytest.fixture(scope="session")
def _filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("record") / "provisioner.db"
    asyncio.run(_story(path))
    forget_moment(path)
    return path


def forget_moment(path: Path) -> None:
    """Forget the monotonic time of the newest tick: tests replace the wall clock, and that goes on."""
    with closing(sqlite3.connect(path)) as sql, sql:
        sql.execute("DELETE FROM meta WHERE key = 'moment'")


@pytest.fixture
def record(_filled: Path, tmp_path: Path) -> Path:
    """A record of its own with the whole story; nobody holds it."""
    to = tmp_path / "record.db"
    for suffix in ("", "-wal"):
        if (source := Path(f"{_filled}{suffix}")).exists():
            Path(f"{to}{suffix}").write_bytes(source.read_bytes())
    return to


@pytest.fixture
def reader(record: Path) -> Reader:
    return Reader(record)


@pytest.fixture
def running(record: Path) -> Iterator[Path]:
    """The record while a controller, this very process, holds it."""
    loop = asyncio.new_event_loop()
    store = SqlStore(record, CONTROLLER, 1e9, 10)
    loop.run_until_complete(store.__aenter__())
    yield record
    loop.run_until_complete(store.__aexit__())
    loop.close()


def _look(
    store: SqlStore, at: float, slots: tuple[m.Slot, ...], remotes: dict[Any, m.RemoteDrone]
) -> m.Snapshot:
    overlay = m.OverlayView(
        at - 2,
        (PLAIN, HUGE, FRESH),
        slots,
        negotiated_at=at - 20,
        notices=(ODD,),
        routed={"180.0": "204.2", "181.0": "999.0"},
    )
    topas = m.PolledSite("topas", m.SiteView("topas", at - 1, remotes, {"a100": 3}))
    denied = m.Fault(m.FaultKind.DENIED, "token has \x1b[31mexpired\x1b[0m", at - 1)
    horeka = m.PolledSite("horeka", None, denied)
    return m.Snapshot(
        now=at,
        tick=store.tick + 1,
        id_prefix=f"{CONTROLLER}-{store.birth}",
        next_serial=store.next_serial,
        policy=POLICY,
        types=(A100, H100),
        overlay=m.PolledOverlay(overlay),
        sites={"topas": topas, "horeka": horeka},
        drones=dict(store.drones),
        breakers=dict(store.breakers),
    )


async def _story(path: Path) -> None:
    """Three drones are started and one of them works, one fails, one idles; HoreKa does not let us in."""
    async with SqlStore(path, CONTROLLER, keep_s=1e9, snapshots=10, birth="ab12") as store:
        await store.event(NOW - 3600, "config.reloaded", {"changes": "max_drones 40 -> 50"})
        first = _look(store, NOW - 3000, (), {})
        plan = decide(first)
        assert len(plan.starts) == 3, plan
        await store.record(plan, first)
        born = [s.drone for s in plan.starts]
        await store.record_results(
            plan.tick, [_accepted(d, i) for i, d in enumerate(born)], [_banned()]
        )
        one, two, three = (store.drones[d.id] for d in born)
        works = {
            "jobs": 2,
            "jobs_started": 2,
            "joined_at": NOW - 2500,
            "busy_at": NOW - 2500,
            "started_at": NOW - 2700,
        }
        idles = {"joined_at": NOW - 100, "idle_at": NOW - 100, "started_at": NOW - 300}
        busy, idle = (f"slot1@gpu0{n}.example.org" for n in (7, 8))
        ended = EndedAtSite("exited", 71, "", 61.0, 0)
        moves = (
            _now(
                one, m.DroneState.BUSY, NOW - 2500, SeenInPool("busy", 2, 500.0), slot=busy, **works
            ),
            _now(two, m.DroneState.FAILED, NOW - 2400, ended, ended_at=NOW - 2400),
            _now(
                three,
                m.DroneState.IDLE,
                NOW - 100,
                SeenInPool("idle", 0, 2900.0),
                slot=idle,
                **idles,
            ),
        )
        second = _look(store, NOW - 100, (), {})
        await store.record(m.Plan(second.tick, second.now, moves), second)
        free = {
            "free_gpu_milli": 1000,
            "free_cpus": 8,
            "free_memory_mib": 20480,
            "free_disk_mib": 51200,
        }
        slots = (
            m.Slot(
                one.id, m.SlotState.BUSY, NOW - 5, jobs=2, jobs_started=2, name=busy, gpus_offline=1
            ),
            m.Slot(three.id, m.SlotState.IDLE, NOW - 5, idle_since=NOW - 100, name=idle, **free),
        )
        remotes = {
            d.id: m.RemoteDrone(d.id, m.RemoteState.RUNNING, f"881{i}.0", "a100")
            for i, d in ((0, one), (2, three))
        }
        third = _look(store, NOW - 4, slots, remotes)
        await store.record(decide(third), third)


def _accepted(drone: m.Drone, number: int) -> m.StateChange:
    at = drone.requested_at + 3
    after = replace(
        drone, state=m.DroneState.SUBMITTED, since=at, submitted_at=at, remote_id=f"881{number}.0"
    )
    return m.StateChange(after, drone.state, Accepted(after.remote_id))


def _banned() -> m.Breaker:
    fault = m.Fault(m.FaultKind.DENIED, "token has expired", NOW - 60)
    return m.Breaker(m.Scope("horeka"), m.BreakerState.BANNED, NOW - 60, 2, NOW + 600, fault)


def _now(was: m.Drone, state: m.DroneState, at: float, reason: Any, **known: Any) -> m.StateChange:
    return m.StateChange(replace(was, state=state, since=at, **known), was.state, reason)
