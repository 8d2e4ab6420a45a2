"""Classes of low use are reported once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from threading import get_ident

import pytest
from structlog.testing import capture_logs

from provisioner.controller import low_use
from provisioner.controller.low_use import WATCH_EVERY_S, LowUseWatch
from provisioner.model import (
    CompletedJob,
    DroneState,
    LowUseAction,
    LowUsePolicy,
    Policy,
    Sharing,
)
from provisioner.usage import usage_report
from tests.controller.world import work
from tests.simulator.worlds import drone_type
from tests.store.story import TemporaryStore, drone, record, starts

HOUR = 3600.0
WHOLE = drone_type("topas", "a100")
SHARED = replace(WHOLE, name="mps", sharing=Sharing.MPS, shares=4)
DRONE = drone(1, DroneState.BUSY, at=100.0, started_at=100.0)
POLICY = LowUsePolicy(LowUseAction.WARN, below=0.15, jobs=3, window_s=24 * HOUR)


def ended(
    number: int, used_milli: int | None, owner: str = "ann", at: float = HOUR
) -> CompletedJob:
    run = CompletedJob(
        f"{owner}-{number}.0", at + number, 0.0, 60.0, 1000, 2, 4096, owner=owner, drone_id=DRONE.id
    )
    return replace(run, used_milli=used_milli, peak_vram_mib=2048, splits=False)


@dataclass
class Watched:
    """A watch over a real store; it remembers events."""

    store: TemporaryStore
    at: float = 2 * HOUR
    events: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = LowUseWatch(self.store, self, self.event)  # type: ignore[arg-type]

    def now(self) -> float:
        return self.at

    async def event(self, name: str, **fields: object) -> None:
        self.events.append((name, fields))

    async def turn(self, policy: LowUsePolicy = POLICY) -> list[str]:
        """Let ten minutes pass after a turn. Return the names of the new events."""
        before = len(self.events)
        policies = Policy(low_use=policy)
        async with asyncio.TaskGroup() as group:
            await self.watch.turn(work(group, policy=policies, types=(WHOLE, SHARED)))
        self.at += WATCH_EVERY_S
        return [name for name, _ in self.events[before:]]


async def watched(*runs: CompletedJob) -> Watched:
    store = TemporaryStore()
    await record(store, starts(1, DRONE))
    await store.record_completed(runs)
    return Watched(store)


LOW = [ended(n, 40) for n in range(3)]
HIGH = [ended(n, 700, "ben") for n in range(3)]


async def test_a_class_is_reported_when_its_use_becomes_low() -> None:
    pool = await watched(*LOW[:2], *HIGH)
    assert await pool.turn() == [], "too few jobs to judge by"
    await pool.store.record_completed(LOW)
    assert await pool.turn() == ["gpus.underused"]
    assert pool.events[0][1]["job_class"] == "ann: 1 GPU, 2 CPUs, 4 GiB RAM"
    assert str(pool.events[0][1]["why"]).startswith(
        "4% of 0.1 GPU-hours used, runs measured: 3, VRAM up to 2.0 GiB"
    )
    assert await pool.turn() == [], "once"
    pool.at += POLICY.window_s
    assert await pool.turn() == [], "these jobs are too long ago"
    await pool.store.record_completed([ended(n, 40, at=pool.at) for n in range(3)])
    pool.at += 60.0
    assert await pool.turn() == ["gpus.underused"], "it was not low in between"


async def test_nothing_is_done_by_default_or_at_once_again() -> None:
    pool = await watched(*LOW)
    assert await pool.turn(Policy().low_use) == []
    pool.at -= WATCH_EVERY_S
    assert await pool.turn() == ["gpus.underused"]
    pool.at -= WATCH_EVERY_S / 2
    pool.watch._known = frozenset()
    assert await pool.turn() == [], "it is not looked at again so soon"


async def test_an_unmeasured_run_is_no_low_use() -> None:
    pool = await watched(*(ended(n, None) for n in range(9)))
    assert await pool.turn() == []


async def test_an_error_in_the_record_is_reported_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = await watched(*LOW)
    monkeypatch.setattr(low_use, "usage_report", lambda *given: 1 / 0)
    with capture_logs() as told:
        assert await pool.turn() == []
    assert [each["event"] for each in told] == ["gpus.read_failed"]


async def test_a_report_is_made_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, threads = await watched(*LOW), list[int]()
    monkeypatch.setattr(
        low_use,
        "usage_report",
        lambda *given: (threads.append(get_ident()), usage_report(*given))[1],
    )
    assert await pool.turn() == ["gpus.underused"]
    assert threads and threads != [get_ident()]


async def test_every_figure_of_a_run_is_as_it_was_recorded() -> None:
    done = replace(
        ended(1, 250),
        energy_j=77,
        unfinished=True,
        disk_mib=5,
        vram_mib=6,
        capability=70,
        walltime_s=8.0,
        vo="cms",
        used_cpu_s=90,
        peak_memory_mib=3000,
    )
    pool = await watched(done, replace(done, job_id="elsewhere", drone_id=None))
    found = await pool.store.use(0.0, 2 * HOUR)
    alike = (DRONE.type, 1000, "ann", "cms", 1000, 2, 4096, 6, False, 5, 70, 8.0)
    used = (15.0, 250, 2048, 77, 90, 120.0, 3000)
    assert found.sums == [(None, *alike, done.ended_at, 1, 60.0, *used)]
    assert (found.had_s, found.running_s) == ({DRONE.type: 2 * HOUR - 100}, 0.0)
    assert pool.store.reader().use(0.0, 2 * HOUR) == found
    assert pool.store.reader().completions(0.0, 1e9) == [], "it has not completed"
    assert (await pool.store.use(done.ended_at + 1, 2 * HOUR)).sums == []
