"""Classes of low use are reported once, and their idle jobs are held where the policy wants it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from threading import get_ident

import pytest
from structlog.testing import capture_logs

from provisioner.controller import low_use
from provisioner.controller.low_use import WATCH_EVERY_S, LowUseWatch
from provisioner.interfaces import AuthError, HoldResult
from provisioner.model import (
    CompletedJob,
    Drone,
    DroneState,
    DroneType,
    JobClass,
    LowUseAction,
    LowUsePolicy,
    OverlayView,
    Policy,
    Sharing,
)
from tests.simulator.worlds import drone_type
from tests.store.story import TemporaryStore, drone, record, starts

HOUR = 3600.0
WHOLE = drone_type("topas", "a100")
SHARED = replace(WHOLE, name="mps", sharing=Sharing.MPS, shares=4)
DRONE = drone(1, DroneState.BUSY, at=100.0, started_at=100.0)
POLICY = LowUsePolicy(LowUseAction.WARN, below=0.15, jobs=3, window_s=24 * HOUR)
ANN = JobClass("c1", 1000, 2, 4096, owner="ann", waiting=2)
BEN = replace(ANN, id="c2", owner="ben")


def ended(
    number: int, used_milli: int | None, owner: str = "ann", at: float = HOUR
) -> CompletedJob:
    run = CompletedJob(
        f"{owner}-{number}.0", at + number, 0.0, 60.0, 1000, 2, 4096, owner=owner, drone_id=DRONE.id
    )
    return replace(run, used_milli=used_milli, peak_vram_mib=2048, splits=False)


@dataclass
class Watched:
    """A watch over a real store; it remembers events, and what the overlay was asked to hold."""

    store: TemporaryStore
    at: float = 2 * HOUR
    events: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    held: list[tuple[str, str]] = field(default_factory=list)
    refused: tuple[str, ...] = ()
    """Ids of the classes that the overlay may not hold."""
    faults: tuple[str, ...] = ()
    types: tuple[DroneType, ...] = (WHOLE, SHARED)
    answers: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.watch = LowUseWatch(self, self.store, self, self.event)  # type: ignore[arg-type]

    def now(self) -> float:
        return self.at

    async def event(self, name: str, **fields: object) -> None:
        self.events.append((name, fields))

    async def hold(self, jobs: JobClass, reason: str) -> HoldResult:
        await self.answers.wait()
        if jobs.id in self.refused:
            raise AuthError("schedd s: it may not hold jobs of others")
        self.held.append((jobs.id, reason))
        return HoldResult(jobs.waiting, self.faults)

    async def turn(self, policy: LowUsePolicy = POLICY, *classes: JobClass) -> list[str]:
        """Let ten minutes pass, and the overlay answer after the turn. Return the names of the new events."""
        before = len(self.events)
        self.answers.clear()
        async with asyncio.TaskGroup() as group:
            await self.watch.turn(
                group, policy, self.types, OverlayView(self.at, classes or (ANN, BEN))
            )
            self.answers.set()
        await self.watch.report_holds()
        self.at += WATCH_EVERY_S
        return [name for name, _ in self.events[before:]]


async def watched(*runs: CompletedJob, of: Drone = DRONE) -> Watched:
    store = TemporaryStore()
    await record(store, starts(1, of))
    await store.record_completed(runs)
    return Watched(store)


LOW = [ended(n, 40) for n in range(3)]
HIGH = [ended(n, 700, "ben") for n in range(3)]


async def test_a_class_is_reported_when_its_use_becomes_low() -> None:
    pool = await watched(*LOW[:2], *HIGH)
    assert await pool.turn() == [], "too few jobs to judge by"
    await pool.store.record_completed(LOW)
    assert await pool.turn() == ["gpus.underused"]
    assert pool.events[0][1]["job_class"] == "ann/1gpu/2cpu/4096mib"
    assert str(pool.events[0][1]["why"]).startswith(
        "4% of 0.1 GPU-hours used, runs measured: 3, VRAM up to 2.0 GiB"
    )
    assert await pool.turn() == [] and pool.held == [], "once"
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


async def test_idle_jobs_of_the_class_are_held_with_the_reason() -> None:
    pool = await watched(*LOW, *HIGH)
    hold = replace(POLICY, action=LowUseAction.HOLD)
    assert await pool.turn(hold, ANN, BEN, replace(ANN, id="c3", cpus=3)) == [
        "gpus.underused",
        "jobs.held",
    ]
    ((jobs, reason),) = pool.held
    assert jobs == "c1" and reason.startswith(
        "low GPU use: 4% of 0.1 GPU-hours used, runs measured: 3"
    )
    assert "+GpuMilli" in reason and "condor_release" in reason
    assert await pool.turn(hold, replace(ANN, waiting=0, running=4)) == [], (
        "running jobs are left alone"
    )
    pool.refused = (ANN.id,)
    assert await pool.turn(hold, ANN) == ["jobs.hold_failed"]
    assert "may not hold" in str(pool.events[-1][1]["why"])


async def test_jobs_are_not_held_if_no_type_would_save_gpu_hours() -> None:
    pool = await watched(*LOW)
    pool.types = (WHOLE,)
    assert await pool.turn(replace(POLICY, action=LowUseAction.HOLD)) == ["gpus.underused"]
    assert pool.held == []


async def test_without_a_share_that_would_do_the_reason_asks_for_fewer_gpus() -> None:
    pool = await watched(
        *(replace(each, gpu_milli=2000) for each in LOW), of=replace(DRONE, gpu_milli=2000)
    )
    pool.types = (WHOLE,)
    two = replace(ANN, gpu_milli=2000)
    assert await pool.turn(replace(POLICY, action=LowUseAction.HOLD), two) == [
        "gpus.underused",
        "jobs.held",
    ]
    ((_, reason),) = pool.held
    assert "topas/a100 would do. Ask for fewer GPUs or use more of them; condor_release" in reason
    assert "GpuMilli" not in reason


async def test_a_class_or_a_queue_that_fails_does_not_keep_others_from_being_held() -> None:
    pool = await watched(
        *LOW, *(replace(each, owner="ben", job_id=f"b{each.job_id}") for each in LOW)
    )
    pool.refused, pool.faults = (
        (ANN.id,),
        ("schedd t: no answer", "schedd s: it may not hold jobs of others"),
    )
    hold = replace(POLICY, action=LowUseAction.HOLD)
    assert await pool.turn(hold) == [
        *["gpus.underused"] * 2,
        "jobs.held",
        *["jobs.hold_failed"] * 2,
    ]
    assert [jobs for jobs, _ in pool.held] == [BEN.id]
    assert sorted(
        str(fields["why"]) for name, fields in pool.events if name == "jobs.hold_failed"
    ) == [
        "schedd s: it may not hold jobs of others",
        "schedd t: no answer",
    ], "each fault once"


async def test_an_answer_that_is_none_and_an_error_in_the_record_are_reported_and_end_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = await watched(*LOW)
    monkeypatch.setattr(pool, "hold", lambda jobs, reason: asyncio.sleep(0, "yes"))
    hold = replace(POLICY, action=LowUseAction.HOLD)
    assert await pool.turn(hold) == ["gpus.underused", "jobs.hold_failed"]
    monkeypatch.setattr(low_use, "usage_report", lambda *given: 1 / 0)
    with capture_logs() as told:
        assert await pool.turn(hold) == []
    assert [each["event"] for each in told] == ["gpus.read_failed"]


async def test_turns_do_not_wait_for_holds_and_the_end_of_the_controller_breaks_them_off() -> None:
    pool = await watched(*LOW)
    hold, view = replace(POLICY, action=LowUseAction.HOLD), OverlayView(pool.at, (ANN,))
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            await pool.watch.turn(group, hold, [WHOLE], view)  # the overlay never answers
            pool.at += WATCH_EVERY_S
        assert [name for name, _ in pool.events] == ["gpus.underused"]
        pool.watch.close()
    assert pool.held == []


async def test_a_report_is_made_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, threads = await watched(*LOW), list[int]()
    report = low_use.usage_report
    monkeypatch.setattr(
        low_use, "usage_report", lambda *given: (threads.append(get_ident()), report(*given))[1]
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
    )
    pool = await watched(done, replace(done, job_id="elsewhere", drone_id=None))
    found = await pool.store.use(0.0, 2 * HOUR)
    alike = (DRONE.type, 1000, "ann", 1000, 2, 4096, 6, False, 5, 70, 8.0)
    assert found.sums == [(None, *alike, done.ended_at, 1, 60.0, 15.0, 250, 2048, 77)]
    assert (found.had_s, found.running_s) == ({DRONE.type: 2 * HOUR - 100}, 0.0)
    assert pool.store.reader().use(0.0, 2 * HOUR) == found
    assert pool.store.reader().completions(0.0, 1e9) == [], "it has not completed"
    assert (await pool.store.use(done.ended_at + 1, 2 * HOUR)).sums == []
