"""What was learned outlives the controller: a restart keeps it, a crash loses ten minutes of it at most."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from provisioner import serialization
from provisioner.controller.estimate_store import ASK_EVERY_S, KEEP_EVERY_S, CompletedJobRecorder
from provisioner.controller.estimation import RUNS_NEEDED
from provisioner.controller.loop import Controller
from provisioner.estimates import EstimateSamples, StartDelays
from provisioner.model import CompletedJob, DroneType, JobClass, OverlayView, Snapshot
from provisioner.planner import decide
from provisioner.simulator.loop import run_virtual
from provisioner.store import EstimateReset, EstimatesUnreadableError, StoreUnusableError
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore
from tests.controller.world import EPOCH, JOB, Place, Pool, in_virtual_time, run_for, serving, wall
from tests.store.story import TemporaryStore


@dataclass
class BusyPool(Pool):
    """An overlay in which a job of one minute ends every ``every_s``, each told for a quarter of an hour."""

    classes: tuple[JobClass, ...] = ()
    every_s: float = 20.0
    ended: list[CompletedJob] = field(default_factory=list)

    async def poll(self, types: Sequence[DroneType]) -> OverlayView:
        while len(self.ended) < (wall() - EPOCH) // self.every_s:
            at = EPOCH + (len(self.ended) + 1) * self.every_s
            self.ended.append(CompletedJob(f"{len(self.ended)}.0", at, at - 60, 60.0, 1000, 1, 1024, owner="anna"))
        told = tuple(each for each in self.ended if each.ended_at > wall() - 900)
        return OverlayView(wall(), self.classes, completions=told)


def runs_of(controller: Controller) -> int:
    return len(controller.estimation.memory.runs.get("anna", ()))


async def dies(controller: Controller) -> None:
    """As by SIGKILL: nothing is written any more, and nobody says good-bye."""

    async def nothing(*_: object) -> None:
        return None

    controller.store.record_estimates = nothing  # type: ignore[method-assign]


@pytest.fixture(params=["memory", "sql"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[object]:
    """Opens the same record again and again."""
    memory = TemporaryStore("kit", 1e9, 10)

    def store() -> TemporaryStore | SqlStore:
        if request.param == "memory":
            vars(memory).pop("record_estimates", None)
            return memory
        return SqlStore(tmp_path / "record.db", "kit", 1e9, 10, threaded=False, birth="mem0")

    return store  # type: ignore[return-value]


@in_virtual_time
async def test_a_restart_keeps_all_and_counts_nothing_twice(opened) -> None:  # type: ignore[no-untyped-def]
    pool = BusyPool()
    async with serving(Place(), store=opened(), pool=pool) as controller:
        await run_for(controller, 1000)
        known = controller.estimation.estimates
        assert set(known.runs) == {"", "anna", "anna/1000/1/1024"}
    await asyncio.sleep(100)
    async with serving(Place(), store=opened(), pool=pool) as controller:
        assert controller.estimation.estimates == replace(known, runs=controller.estimation.estimates.runs)
        assert set(controller.estimation.estimates.runs) == set(known.runs), "before it has looked at anything"
        await controller.tick()
        assert runs_of(controller) == len(pool.ended), "those that ended while it was away are told as well"


@in_virtual_time
async def test_a_crash_loses_ten_minutes_and_what_the_pool_still_tells_not_even_that(opened) -> None:  # type: ignore[no-untyped-def]
    pool = BusyPool()
    async with serving(Place(), store=opened(), pool=pool) as controller:
        await run_for(controller, 3 * KEEP_EVERY_S - 60)
        counted = runs_of(controller)
        await dies(controller)
    async with serving(Place(), store=opened(), pool=pool) as controller:
        lost = counted - runs_of(controller)
        assert 0 < lost <= KEEP_EVERY_S / pool.every_s + 1
        await controller.tick()
        assert runs_of(controller) == len(pool.ended)


def test_it_is_written_every_ten_minutes_and_at_an_orderly_end_and_not_at_every_tick() -> None:
    written: list[float] = []

    class Counted(TemporaryStore):
        async def record_estimates(self, experience: EstimateSamples, forgotten: Sequence[int] = ()) -> None:
            written.append(round(experience.at - EPOCH))
            await super().record_estimates(experience, forgotten)

    async def story() -> None:
        async with serving(Place(), store=Counted("kit", 1e9, 10), pool=BusyPool()) as controller:
            await run_for(controller, 3000)

    run_virtual(story(), start_epoch=EPOCH)
    assert written[-1] == 3000
    pauses_s = [b - a for a, b in zip([0, *written], written[:-1], strict=False)]
    assert len(pauses_s) == 4 and all(KEEP_EVERY_S <= each <= KEEP_EVERY_S + 20 for each in pauses_s)


class Unread(TemporaryStore):
    """A record in which what was learned cannot be made out until it is written anew."""

    def __init__(self) -> None:
        super().__init__("kit", 1e9, 10)
        self.written: list[EstimateSamples] = []

    async def estimate_samples(self) -> EstimateSamples | None:
        if not self.written:
            raise EstimatesUnreadableError("what was learned is damaged: learning starts anew")
        return self.written[-1]

    async def record_estimates(self, experience: EstimateSamples, forgotten: Sequence[int] = ()) -> None:
        self.written.append(experience)
        await super().record_estimates(experience, forgotten)


@in_virtual_time
async def test_what_cannot_be_read_is_told_once_and_learned_anew_and_left_alone_for_ten_minutes() -> None:
    store = Unread()
    with capture_logs() as told:
        async with serving(Place(), store=store, pool=BusyPool()) as controller:
            await run_for(controller, 300)
        assert store.written == [], "whoever wants it back could stop the controller"
        async with serving(Place(), store=store, pool=BusyPool()) as controller:
            assert controller.estimation.estimates.runs == {}
            await run_for(controller, KEEP_EVERY_S + 30)
            assert len(controller.estimation.estimates.runs["anna"]) >= RUNS_NEEDED
        assert len(store.written) == 2
    warnings = [line for line in told if line["log_level"] == "warning"]
    assert [line["event"] for line in warnings] == ["estimates.reset"] * 2, "once at each start"
    assert "damaged" in warnings[0]["message"]
    assert [e.name for e in store.reader().events()] == ["estimates.reset"] * 2


@in_virtual_time
async def test_what_is_to_be_forgotten_is_no_reason_to_write_over_what_cannot_be_read() -> None:
    """It is forgotten at once, and once; the document and what was asked for stay for whoever wants them back."""

    store, pool = Unread(), BusyPool()
    reader = store.reader()
    reader.ask_estimate_reset("user:bert", reason="new code", by="mg", at=wall())
    async with serving(Place(), store=store, pool=pool) as controller:
        await run_for(controller, 200)
        reader.ask_estimate_reset("user:anna", reason="new code", by="mg", at=wall())
        await run_for(controller, ASK_EVERY_S + 30)
        assert runs_of(controller) <= 5, "within a minute"
        await run_for(controller, 3 * ASK_EVERY_S)
        assert runs_of(controller) >= 9, "what was learned since stays"
        assert store.written == [] and len(reader.estimate_resets()) == 2
        await run_for(controller, 200)
        assert len(store.written) == 1 and reader.estimate_resets() == ()
        assert runs_of(controller) >= 15
    told = [dict(e.fields)["what"] for e in reader.events() if e.name == "estimates.forgotten"]
    assert sorted(told) == ["user:anna", "user:bert"]


@in_virtual_time
async def test_what_could_not_be_read_again_is_told_and_never_takes_the_place_of_what_can(tmp_path: Path) -> None:
    pool, path = BusyPool(), tmp_path / "record.db"

    def store() -> SqlStore:
        return SqlStore(path, "kit", 1e9, 10, threaded=False, birth="mem0")

    async with serving(Place(), store=store(), pool=pool) as controller:
        await run_for(controller, 1000)
    kept = Reader(path).estimate_samples()
    with capture_logs() as told:
        async with serving(Place(), store=store(), pool=pool) as controller:
            controller.estimation.memory.delays["here/gpu"] = StartDelays(float("nan"), 60.0)
            await run_for(controller, 60)
    (line,) = [line for line in told if line["event"] == "estimates.write_failed"]
    assert line["log_level"] == "error" and "delays.here/gpu.queue_s: Input should be" in line["message"]
    assert kept is not None and kept.runs and Reader(path).estimate_samples() == kept


class Deaf(TemporaryStore):
    """A disk on which nothing that was learned can be read or written."""

    async def estimate_samples(self) -> EstimateSamples | None:
        raise StoreUnusableError("disk I/O error")

    async def record_estimates(self, experience: EstimateSamples, forgotten: Sequence[int] = ()) -> None:
        raise StoreUnusableError("database or disk is full")

    async def estimate_resets(self) -> tuple[EstimateReset, ...]:
        raise StoreUnusableError("disk I/O error")


@in_virtual_time
async def test_a_disk_that_can_neither_read_nor_write_it_stops_no_loop() -> None:
    here, store = Place(), Deaf("kit", 1e9, 10)
    async with serving(here, store=store, pool=BusyPool(classes=(JOB,)), booting_s=1e9) as controller:
        await run_for(controller, 2 * KEEP_EVERY_S)
        assert runs_of(controller) and len(here.told) == 1


@in_virtual_time
async def test_what_an_operator_wants_forgotten_is_forgotten_within_a_minute_and_on_record(opened) -> None:  # type: ignore[no-untyped-def]
    pool, store = BusyPool(), opened()
    async with serving(Place(), store=store, pool=pool) as controller:
        reader = store.reader() if isinstance(store, TemporaryStore) else Reader(store.path)
        await run_for(controller, 1000)
        reader.ask_estimate_reset("user:anna", reason="new code", by="mg", at=wall())
        await run_for(controller, ASK_EVERY_S + 30)
        assert reader.estimate_resets() == ()
        kept = reader.estimate_samples()
        assert kept is not None and len(kept.runs.get("anna", ())) <= 2 and len(kept.runs.get("", ())) <= 2
        (event,) = [e for e in reader.events() if e.name == "estimates.forgotten"]
        assert dict(event.fields) == {"what": "user:anna", "by": "mg", "reason": "new code"}
    reader.ask_estimate_reset("all", reason="moved", by="mg", at=wall())
    async with serving(Place(), store=opened(), pool=pool) as controller:
        assert runs_of(controller) == 0 and controller.estimation.estimates.runs == {}
        kept = reader.estimate_samples()
        assert kept is not None and kept.runs == {} and reader.estimate_resets() == ()


@in_virtual_time
async def test_a_snapshot_saved_after_a_restart_replays_with_what_was_known(opened) -> None:  # type: ignore[no-untyped-def]
    pool = BusyPool()
    async with serving(Place(), store=opened(), pool=pool) as controller:
        await run_for(controller, 1000)
    store = opened()
    pool.classes = (replace(JOB, waiting=5),)
    async with serving(Place(), store=store, pool=pool) as controller:
        known = controller.estimation.estimates
        report = await controller.tick()
        reader = store.reader() if isinstance(store, TemporaryStore) else Reader(store.path)
        kept = reader.snapshot(report.plan.tick)
        assert report.plan.starts and kept is not None, "an acting tick"
        assert kept.estimates == known and known.runs
        assert decide(serialization.from_json(Snapshot, serialization.to_json(kept))) == report.plan
        following = reader.snapshot()
        assert following is not None and following.estimates == kept.estimates, "what the newest tick knew"


# -------------------------- Each job that is done is written down once, and what cannot be written now is written later


ONE = CompletedJob("submit#1.0", 100.0, 10.0, 60.0, 1000, 1, 2048, owner="ann")
TWO = replace(ONE, job_id="submit#2.0", ended_at=130.0)
THREE = replace(ONE, job_id="submit#3.0", ended_at=160.0)


class Counted(TemporaryStore):
    """Notes what it is given; its disk may be full."""

    def __init__(self) -> None:
        super().__init__("kit", 1e9, 1)
        self.given: list[list[str]] = []
        self.full = False

    async def record_completed(self, completions: Sequence[CompletedJob]) -> None:
        if self.full:
            raise StoreUnusableError("no room")
        self.given.append([each.job_id for each in completions])
        await super().record_completed(completions)


def view(*done: CompletedJob) -> OverlayView:
    return OverlayView(200.0, completions=done)


async def test_what_is_told_in_many_looks_is_written_once() -> None:
    store, history = Counted(), CompletedJobRecorder()
    await history.keep(store, None)
    await history.keep(store, OverlayView(200.0))
    for told in (view(ONE), view(ONE), view(ONE, TWO), view(TWO, THREE), OverlayView(200.0), view(TWO, THREE)):
        await history.keep(store, told)
    assert store.given == [["submit#1.0"], ["submit#2.0"], ["submit#3.0"]]
    assert store.reader().completions(0.0, 1e9) == [ONE, TWO, THREE]


async def test_a_new_controller_offers_all_again_and_nothing_is_there_twice() -> None:
    store = Counted()
    await CompletedJobRecorder().keep(store, view(ONE, TWO))
    await CompletedJobRecorder().keep(store, view(TWO, THREE))
    assert store.reader().completions(0.0, 1e9) == [ONE, TWO, THREE]


async def test_what_a_full_disk_refuses_is_tried_again() -> None:
    store, history = Counted(), CompletedJobRecorder()
    store.full = True
    await history.keep(store, view(ONE))
    store.full = False
    await history.keep(store, view(ONE, TWO))
    assert store.given == [["submit#1.0", "submit#2.0"]]
