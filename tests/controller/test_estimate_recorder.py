"""Estimates outlive the controller: a restart keeps them, a crash loses at most ten minutes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from structlog.testing import capture_logs

from provisioner import serialization
from provisioner.controller.estimation import ASK_EVERY_S, EstimateCollector, EstimateRecorder
from provisioner.controller.loop import Controller
from provisioner.estimates import EstimateSamples, StartDelays
from provisioner.model import (
    CompletedJob,
    DroneState,
    DroneType,
    JobClass,
    OverlayView,
    Plan,
    Snapshot,
    TypeKey,
)
from provisioner.planner import decide
from provisioner.simulator.loop import VirtualClock
from provisioner.store import EstimatesUnreadableError, StoreUnusableError
from tests.controller.world import (
    EPOCH,
    JOB,
    Place,
    Pool,
    in_virtual_time,
    run_for,
    serving,
    wall,
    work,
)
from tests.store.story import TemporaryStore, drone, now_is, record, starts


@dataclass
class BusyPool(Pool):
    """An overlay in which a job of one minute ends every ``every_s``, each told for a quarter of an hour."""

    classes: tuple[JobClass, ...] = ()
    every_s: float = 20.0
    ended: list[CompletedJob] = field(default_factory=list)

    async def poll(self, types: Sequence[DroneType]) -> OverlayView:
        while len(self.ended) < (wall() - EPOCH) // self.every_s:
            at = EPOCH + (len(self.ended) + 1) * self.every_s
            self.ended.append(
                CompletedJob(f"{len(self.ended)}.0", at, at - 60, 60.0, 1000, 1, 1024, owner="anna")
            )
        told = tuple(each for each in self.ended if each.ended_at > wall() - 900)
        return OverlayView(wall(), self.classes, completions=told)


class Writing(TemporaryStore):
    """A record that notes when estimates are written, and what completed jobs; some calls may fail."""

    def __init__(self) -> None:
        super().__init__("kit", 1e9, 10)
        self.written: list[float] = []
        self.jobs: list[str] = []
        self.unreadable = self.full = False

    async def estimate_samples(self) -> EstimateSamples | None:
        if self.unreadable:
            raise EstimatesUnreadableError("what was learned is damaged: learning starts anew")
        return await super().estimate_samples()

    async def record_estimates(self, samples: EstimateSamples, resets: Sequence[int] = ()) -> None:
        self._fail_if_full()
        self.written.append(round(samples.at - EPOCH))
        await super().record_estimates(samples, resets)

    async def record_completed(self, completions: Sequence[CompletedJob]) -> None:
        self._fail_if_full()
        self.jobs += [each.job_id for each in completions]
        await super().record_completed(completions)

    def _fail_if_full(self) -> None:
        if self.full:
            raise StoreUnusableError("database or disk is full")


def runs_of(controller: Controller) -> int:
    return len(controller.estimation.runs.get("anna", ()))


@in_virtual_time
async def test_a_restart_keeps_all_and_counts_nothing_twice() -> None:
    pool, store = BusyPool(), Writing()
    async with serving(Place(), store=store, pool=pool) as controller:
        await run_for(controller, 1000)
        known = controller.estimation.estimates
        assert set(known.runs) == {"", "anna", "anna/1000/1/1024"}
    await asyncio.sleep(100)
    pool.classes = (replace(JOB, waiting=5),)
    async with serving(Place(), store=store, pool=pool) as controller:
        restored = controller.estimation.estimates
        assert restored == replace(known, runs=restored.runs) and set(restored.runs) == set(
            known.runs
        )
        report = await controller.tick()
        assert runs_of(controller) == len(pool.ended), (
            "jobs that ended while it was away count as well"
        )
        kept = store.reader().snapshot(report.plan.tick)
        assert report.plan.starts and kept is not None and kept.estimates == restored, (
            "an acting tick"
        )
        assert decide(serialization.from_json(Snapshot, serialization.to_json(kept))) == report.plan
    assert len(store.reader().completions(0.0, 1e10)) == len(pool.ended), (
        "those offered again are there once"
    )


@in_virtual_time
async def test_what_cannot_be_read_is_told_and_learned_anew() -> None:
    store = Writing()
    store.unreadable = True
    with capture_logs() as told:
        async with serving(Place(), store=store, pool=BusyPool()) as controller:
            assert controller.estimation.estimates.runs == {} and store.written == []
            await run_for(controller, 300)
            assert runs_of(controller) > 0
    (warning,) = [line for line in told if line["log_level"] == "warning"]
    assert warning["event"] == "estimates.reset" and "damaged" in warning["message"]
    assert [e.name for e in store.reader().events()] == ["estimates.reset"]


@in_virtual_time
async def test_what_an_operator_wants_forgotten_is_forgotten_within_a_minute_and_on_record() -> (
    None
):
    pool, store = BusyPool(), Writing()
    reader = store.reader()
    async with serving(Place(), store=store, pool=pool) as controller:
        await run_for(controller, 1000)
        store.full = True
        reader.ask_estimate_reset("user:anna", reason="new code", by="mg", at=wall())
        await run_for(controller, ASK_EVERY_S + 30)
        assert runs_of(controller) <= 5 and len(reader.estimate_resets()) == 1, (
            "asked until it is on record"
        )
        store.full = False
        await run_for(controller, ASK_EVERY_S + 30)
        kept = reader.estimate_samples()
        assert (
            kept is not None
            and len(kept.runs.get("anna", ())) <= 5
            and len(kept.runs.get("", ())) <= 5
        )
        (event,) = [e for e in reader.events() if e.name == "estimates.forgotten"]
        assert dict(event.fields) == {"what": "user:anna", "by": "mg", "reason": "new code"}
    assert len(store.jobs) == len(set(store.jobs)) >= 50, (
        "jobs that a full disk refused are tried again, once"
    )
    reader.ask_estimate_reset("all", reason="moved", by="mg", at=wall())
    async with serving(Place(), store=store, pool=pool) as controller:
        assert runs_of(controller) == 0 and controller.estimation.estimates.runs == {}
        kept = reader.estimate_samples()
        assert kept is not None and kept.runs == {} and reader.estimate_resets() == ()


async def came(store: TemporaryStore, serial: int, at: float, boot_s: float) -> None:
    """A drone was ordered, started five seconds later, and came into the pool."""
    known = {"started_at": at + 5.0, "joined_at": at + 5.0 + boot_s}
    ordered = drone(serial, at=at)
    await record(store, starts(store.tick + 1, ordered, at=at))
    move = now_is(ordered, DroneState.IDLE, at=at + 5.0 + boot_s, **known)
    await record(store, Plan(store.tick + 1, at + 5.0 + boot_s, moves=(move,)))


@in_virtual_time
async def test_a_killed_controller_forgets_no_start_delay() -> None:
    """The samples that it wrote last count as they are; later drones are learned from their records."""
    store, kind = TemporaryStore(), TypeKey("topas/a100")
    await came(store, 1, EPOCH - 500.0, 20.0)
    first = EstimateCollector()
    await EstimateRecorder(first, store, VirtualClock(), nobody).begin(0.0)
    assert first.estimates.delays == {kind: StartDelays(5.0, 20.0)}, (
        "without samples the drones on record count"
    )
    await store.record_estimates(replace(first.samples(EPOCH - 400.0)))
    await came(store, 2, EPOCH - 300.0, 70.0)
    second = EstimateCollector()
    await EstimateRecorder(second, store, VirtualClock(), nobody).begin(0.0)
    assert second.estimates.delays == {kind: StartDelays(5.0, pytest.approx(25.0))}, (
        "the first one counts once"
    )
    recorder = EstimateRecorder(second, store, VirtualClock(), nobody)
    async with asyncio.TaskGroup() as group:
        await recorder.turn(work(group))
    kept = store.reader().estimate_samples()
    assert kept is not None and kept.at == EPOCH, (
        "written after the first tick: what that shows may be late"
    )


async def nobody(name: str, **fields: object) -> None:
    """No event is expected."""
    raise AssertionError(name)
