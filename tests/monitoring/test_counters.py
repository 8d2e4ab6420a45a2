"""Counters belong to the change that they count: the same transaction, over restarts, and whatever is pruned."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from provisioner import model as m
from provisioner.controller.clock import SteadyClock
from provisioner.controller.compute_thread import ComputeThread
from provisioner.controller.tick_measures import TICK_SECONDS, TickMeasures
from provisioner.model import DroneState
from provisioner.reasons import PreemptedForOwner
from provisioner.store import StoreError
from provisioner.store.measures import GPU_USES, MetricCounts, MetricKey, counts_of_time
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore
from provisioner.usage import usage_report
from tests.controller.world import work
from tests.store.story import (
    DONE,
    WHY,
    TemporaryStore,
    drone,
    now_is,
    record,
    seen,
    starts,
    store_at,
)

OF_TYPE = "topas,a100"
GOOD = replace(
    DONE, drone_id=drone(1).id, gpu_milli=1000, ended_at=400.0, run_s=100.0, submitted_at=250.0
)


def counted(reader: Reader) -> dict[str, float]:
    """The counters by name and label values, without those of ticks."""
    return {
        " ".join(
            [
                key.metric.removeprefix("provisioner_"),
                *([",".join(v for _, v in key.labels)] if key.labels else []),
            ]
        ): n
        for key, n in sorted(reader.counters().items())
        if key.metric != "provisioner_ticks_total"
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "record.db"


async def life(store: SqlStore) -> None:
    """A drone is ordered, joins, works, is asked to leave for the owner, and is gone with a job."""
    await record(store, starts(1, drone(1)))
    busy = replace(
        drone(1),
        state=DroneState.BUSY,
        started_at=130.0,
        joined_at=160.0,
        busy_at=161.0,
        jobs=1,
        since=160.0,
    )
    joined = now_is(drone(1), DroneState.BUSY, at=160.0, started_at=130.0, joined_at=160.0)
    await record(store, m.Plan(2, 200.0, moves=(joined,)))
    leaving = replace(
        busy, state=DroneState.STOPPING, since=300.0, notice_at=300.0, leaving=DroneState.PREEMPTED
    )
    await record(
        store,
        m.Plan(3, 300.0, stops=(m.Stop(leaving, DroneState.BUSY, PreemptedForOwner(3, 9.0)),)),
    )
    end = {"ended_at": 312.0, "lost_jobs": 1, "lost_gpu_s": 150.0}
    await record(
        store, m.Plan(4, 315.0, moves=(now_is(leaving, DroneState.PREEMPTED, at=312.0, **end),))
    )


LIFE = {
    f"drone_start_seconds_count {OF_TYPE}": 1,
    f"drone_start_seconds_sum {OF_TYPE}": 60.0,
    f"gpu_seconds_total {OF_TYPE},boot": 70.0,
    f"gpu_seconds_total {OF_TYPE},busy": 100.0,
    f"gpu_seconds_total {OF_TYPE},draining": 12.0,
    "owner_wait_seconds_total topas,within": 15.0,
    f"drones_ended_total {OF_TYPE},preempted": 1,
    f"drones_leaving_total {OF_TYPE},preempted-for-owner": 1,
    f"drones_requested_total {OF_TYPE},jobs-waiting": 1,
    f"give_way_seconds_count {OF_TYPE}": 1,
    f"give_way_seconds_sum {OF_TYPE}": 12.0,
    f"jobs_lost_total {OF_TYPE}": 1,
    f"lost_gpu_seconds_total {OF_TYPE}": 150.0,
}


async def test_the_life_of_a_drone_is_counted_once_over_restarts_and_when_it_is_forgotten(
    file: Path,
) -> None:
    async with store_at(file) as store:
        await life(store)
    assert counted(Reader(file)) == LIFE
    async with store_at(file) as store:
        await record(store, starts(5, drone(2)))
        while await store.prune(1e9):
            pass
        assert store.drones and not Reader(file).drones(ended=True)
    assert counted(Reader(file)) == LIFE | {f"drones_requested_total {OF_TYPE},jobs-waiting": 2}


async def test_a_transaction_that_fails_counts_nothing_and_its_durations_are_kept_for_the_next(
    file: Path,
) -> None:
    async with store_at(file) as store:
        await record(store, starts(1, drone(1)))
        before = Reader(file).counters()
        store.count(MetricCounts({TICK_SECONDS: 2.5}))
        unrecordable = replace(drone(2), since=float("nan"))
        with pytest.raises(StoreError):
            await record(store, starts(2, unrecordable))
        assert Reader(file).counters() == before
        await record(store, starts(3, drone(2)))
        await record(store, starts(4, drone(3)))
    after = counted(Reader(file))
    assert after[f"drones_requested_total {OF_TYPE},jobs-waiting"] == 3
    assert after[TICK_SECONDS.metric.removeprefix("provisioner_")] == 2.5
    assert Reader(file).counters()[MetricKey("provisioner_ticks_total")] == 3


async def test_a_run_that_is_reported_in_many_polls_counts_once(file: Path) -> None:
    measured = replace(GOOD, job_id="s#2.0", gpu_milli=500, used_milli=50, splits=True)
    async with store_at(file) as store:
        await life(store)
        await store.record_completed([GOOD, replace(GOOD, job_id="s#9.0", drone_id=None)])
        await store.record_completed(
            [GOOD, measured, replace(GOOD, job_id="s#3.0", unfinished=True)]
        )
        await store.record_completed([measured])
    assert counted(Reader(file)) == LIFE | {
        f"jobs_ended_total {OF_TYPE},completed": 2,
        f"jobs_ended_total {OF_TYPE},unfinished": 1,
        f"job_wait_seconds_count {OF_TYPE}": 2,
        f"job_wait_seconds_sum {OF_TYPE}": 100.0,
        f"measured_gpu_seconds_held_total {OF_TYPE}": 50.0,
        f"measured_gpu_seconds_used_total {OF_TYPE}": 5.0,
    }


async def test_a_run_counts_once_though_a_restart_estimates_the_offset_of_its_queues_clock_anew(
    file: Path,
) -> None:
    later = replace(GOOD, ended_at=GOOD.ended_at + 2.5, submitted_at=GOOD.submitted_at + 2.5)
    again = replace(later, ended_at=later.ended_at + 30.0)
    async with store_at(file) as store:
        await life(store)
        await store.record_completed([GOOD])
    async with store_at(file) as store:
        await store.record_completed([later, again])
    assert counted(Reader(file))[f"jobs_ended_total {OF_TYPE},completed"] == 2
    assert Reader(file).completions(0.0, 1e9) == [GOOD, again]


async def test_faults_count_by_site_and_kind_when_a_breaker_notes_another_failure(
    file: Path,
) -> None:
    fault = m.Fault(m.FaultKind.DENIED, "no", 1.0)
    banned = m.Breaker(m.Scope("topas", "a100"), m.BreakerState.BANNED, failures=2, fault=fault)
    user = m.Breaker(m.Scope(user="ann"), m.BreakerState.BANNED, since=1.0, failures=3, fault=fault)
    async with store_at(file) as store:
        await record(
            store,
            m.Plan(
                1,
                100.0,
                breakers=(banned, user, m.Breaker(m.Scope("overlay"), failures=1, fault=fault)),
            ),
        )
        await record(store, m.Plan(2, 101.0, breakers=(replace(banned, until=900.0),)))
        await store.record_results(2, (), (replace(banned, failures=3),))
        await record(store, m.Plan(3, 102.0, breakers=(m.Breaker(m.Scope("topas", "a100")),)))
        orphan = m.StopOrphan("topas", drone(9).id, "1", PreemptedForOwner(1, 1.0))
        await record(store, m.Plan(4, 103.0, orphans=(orphan,)))
    counts = {
        "faults_total topas,denied": 3,
        "faults_total overlay,denied": 1,
        "orphan_stops_total topas": 1,
    }
    assert counted(Reader(file)) == counts


# ------------------------------------------------------------------------------------------------------------
# GPU time


def played(*steps: tuple[float, DroneState]) -> dict[str, float]:
    """Counters after ticks that come so much later each, with one drone that has been in this state meanwhile."""

    async def play() -> dict[str, float]:
        store, at = TemporaryStore(), 1000.0
        for number, (later_s, state) in enumerate(steps, 1):
            at += later_s
            plan = m.Plan(number, at)
            notice_at = at - 5.0 if state is DroneState.STOPPING else 0.0
            one = drone(
                1, state, notice_at=notice_at, started_at=1000.0 if state in GPU_USES else 0.0
            )
            await store.record(plan, seen(store, plan, drones={one.id: one}))
        return counted(store.reader())

    return asyncio.run(play())


def test_gpu_time_is_integrated_from_tick_to_tick_by_use() -> None:
    S = DroneState
    steps = (
        (9.0, S.SUBMITTED),
        (10.0, S.BOOTING),
        (5.0, S.JOINED),
        (20.0, S.IDLE),
        (40.0, S.BUSY),
        (3.0, S.STOPPING),
    )
    found = played(*steps, (50.0, S.SUBMITTED))
    assert found == {
        "gpu_seconds_total topas,a100,boot": 15.0,
        "gpu_seconds_total topas,a100,busy": 40.0,
        "gpu_seconds_total topas,a100,draining": 3.0,
        "gpu_seconds_total topas,a100,idle": 20.0,
        "owner_wait_seconds_total topas,within": 3.0,
    }


def test_gpus_that_no_job_has_are_idle_in_a_busy_drone() -> None:
    store, busy = TemporaryStore(), drone(1, DroneState.BUSY, gpu_milli=4000, started_at=10.0)
    snapshot = seen(store, m.Plan(1, 100.0), drones={busy.id: busy})
    assert snapshot.overlay.view is not None
    slot = replace(snapshot.overlay.view.slots[0], free_gpu_milli=3000)
    pool = m.PolledOverlay(replace(snapshot.overlay.view, slots=(slot,)))
    found = counts_of_time(replace(snapshot, overlay=pool), {}, 90.0)
    assert {dict(key.labels)["use"]: n for key, n in found.items()} == {"busy": 10.0, "idle": 30.0}


@pytest.mark.parametrize("state", [DroneState.IDLE, DroneState.BUSY])
async def test_a_ready_server_has_a_use_of_its_own_and_is_no_idle_time_of_jobs(
    state: DroneState,
) -> None:
    store = TemporaryStore()
    server = drone(1, state, service="cms", started_at=10.0, joined_at=20.0)
    snapshot = seen(store, m.Plan(1, 100.0), drones={server.id: server})
    found = counts_of_time(snapshot, {}, 90.0)
    assert {dict(key.labels)["use"]: n for key, n in found.items() if n} == {"service": 10.0}
    await record(store, starts(1, server))
    assert store.drones[server.id].service == "cms"
    assert usage_report(await store.use(0.0, 100.0), [], 0.0, 100.0).total_s == 0.0


@pytest.mark.parametrize("away_s", [0.0, 5000.0])
async def test_counters_and_usage_agree_for_each_drone_whatever_was_seen_late(
    file: Path, away_s: float
) -> None:
    """A site reports a start late, and one that is over; the controller is killed, and another one continues."""
    ran, over, died = drone(1), drone(2), drone(3)
    runs_now = {"at": 160.0, "started_at": 130.0}
    async with store_at(file) as store:
        await record(store, starts(1, ran, over, died))
        one = now_is(ran, DroneState.BOOTING, **runs_now)
        three = now_is(died, DroneState.BUSY, joined_at=150.0, busy_at=155.0, **runs_now)
        await record(store, m.Plan(2, 160.0, moves=(one, three)))
        await record(store, m.Plan(3, 170.0))
    async with store_at(file) as store:
        at = 180.0 + away_s
        two = now_is(over, DroneState.FAILED, at=at, started_at=140.0, ended_at=at)
        gone = now_is(three.drone, DroneState.LOST, at=at, ended_at=at - 3.0)
        await record(store, m.Plan(4, at, moves=(two, gone)))
        busy = now_is(one.drone, DroneState.BUSY, at=at + 10.0, joined_at=175.0, busy_at=at + 5.0)
        await record(store, m.Plan(5, at + 10.0, moves=(busy,)))
        await record(store, m.Plan(6, at + 20.0))
        runs = await store.use(0.0, at + 20.0)
    report = usage_report(runs, [], 0.0, at + 20.0)
    gpu_s = sum(
        n for name, n in counted(Reader(file)).items() if name.startswith("gpu_seconds_total")
    )
    assert (
        gpu_s
        == pytest.approx(report.total_s)
        == pytest.approx((at + 20.0 - 130.0) + (at - 140.0) + (at - 133.0))
    )


async def test_a_clock_that_is_set_is_no_gpu_time() -> None:
    """The times on record are set with it."""
    store, by_s = TemporaryStore(), 90_000.0
    await record(store, starts(1, drone(1)))
    await record(
        store,
        m.Plan(2, 104.0, moves=(now_is(drone(1), DroneState.BUSY, at=104.0, started_at=104.0),)),
    )
    await record(store, m.Plan(3, 108.0))
    moved = replace(store.drones[drone(1).id], started_at=104.0 + by_s)
    await store.record_results(3, [m.StateChange(moved, moved.state, WHY)], (), set_to=110.0 + by_s)
    await record(store, m.Plan(4, 114.0 + by_s))
    assert counted(store.reader())["gpu_seconds_total topas,a100,busy"] == 8.0


async def test_a_sample_that_cannot_be_written_ends_nothing(file: Path) -> None:
    async with store_at(file) as store:
        await record(store, starts(1, drone(1)))
        measures = TickMeasures(store, SteadyClock(), ComputeThread(threaded=False))
        plan = m.Plan(2, 100.0)
        measures.note(seen(store, plan), plan)
        with sqlite3.connect(file) as sql:
            sql.execute("DROP TABLE samples")
        with capture_logs() as logs:
            async with asyncio.TaskGroup() as group:
                await measures.turn(work(group))
                await measures.turn(work(group))
        assert [line["event"] for line in logs] == ["series.write_failed"]
