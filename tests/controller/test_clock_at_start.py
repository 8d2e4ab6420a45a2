"""Starts with a wrong clock or after a long pause: nothing is deleted and no drone is ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from provisioner.controller.clock import SteadyClock
from provisioner.controller.loop import Controller
from provisioner.model import (
    Breaker,
    BreakerState,
    DroneState,
    DroneType,
    OverlayView,
    Policy,
    RemoteDrone,
    SitePolicy,
    Slot,
    SlotState,
)
from provisioner.simulator.loop import run_virtual
from tests.controller.world import GPU, JOB, FullDisk, Place, Pool, ahead_s, run_for, wall
from tests.store.story import TemporaryStore

S = DroneState
EPOCH = 1.7e9
DAY_S = 86_400.0
TWO_MONTHS_S = 60 * DAY_S


class Slots(Pool):
    """The first drone works, the second checks its GPUs, the third boots."""

    place: Place

    async def poll(self, types: object) -> OverlayView:
        slots: list[Slot] = []
        for number, drone_id in enumerate(sorted(self.place.running)[:2]):
            state = SlotState.CHECKING if number else SlotState.BUSY
            slots.append(Slot(drone_id, state, wall(), jobs=1 - number, jobs_started=1 - number))
        waiting = max(0, 3 - len(self.place.running))
        return OverlayView(wall(), (replace(JOB, waiting=waiting),), tuple(slots), completions=())


class Listing(Place):
    """Tells starts by the host's clock, as adapters do."""

    async def poll(self) -> object:  # type: ignore[override]
        view = await super().poll()
        began = {i: EPOCH + 5 + ahead_s.get() for i in view.drones}
        drones: dict[object, RemoteDrone] = {i: replace(d, started_at=began[i]) for i, d in view.drones.items()}
        return replace(view, drones=drones)  # type: ignore[arg-type]


@asynccontextmanager
async def life(store: TemporaryStore, place: Place, *, ntp: bool = False) -> AsyncIterator[Controller]:
    """One life of the controller, with the clock of the real one."""
    pool = Slots()
    pool.place = place
    kind: DroneType = replace(GPU, walltime_s=4 * 3600.0)
    policy = Policy(sites={"here": SitePolicy("here", queue_when_full=True)})
    async with store:
        mono = asyncio.get_running_loop().time
        clock = SteadyClock(wall, mono, store.recorded_at, store.recorded_drift_s, lambda: ntp)
        async with Controller("kit", policy, (kind,), pool, {"here": place}, store, clock) as controller:
            yield controller


def names(store: TemporaryStore) -> list[str]:
    return [event.name for event in store.reader().events()]


@pytest.mark.parametrize("ahead", [TWO_MONTHS_S, -TWO_MONTHS_S])
def test_a_clock_that_is_wrong_at_the_start_deletes_nothing_and_ends_no_drone(ahead: float) -> None:
    async def story() -> None:
        here, store = Listing(), TemporaryStore("kit", 30 * DAY_S, 10)
        async with life(store, here) as controller:
            await run_for(controller, 60)
        assert sorted(d.state for d in store.drones.values()) == [S.BOOTING, S.BUSY, S.JOINED]
        known = len(store.reader().plans(limit=1000))
        ahead_s.set(ahead)
        async with life(store, here) as controller:
            await run_for(controller, 60)
            view = controller._polled_overlay().view
            assert view is not None and "clock" in view.notices[-1], "operators see it"
        assert sorted(d.state for d in store.drones.values()) == [S.BOOTING, S.BUSY, S.JOINED]
        assert not any(line.startswith("stop") for line in here.told)
        assert len(store.reader().plans(limit=1000)) >= known
        assert names(store) == ["clock.doubted"]
        ahead_s.set(0.0)
        async with life(store, here) as controller:
            await run_for(controller, 60)
            assert abs(controller.clock.drift_s()) < 1
        assert names(store) == ["clock.doubted"]
        assert not any(line.startswith("stop") for line in here.told)

    run_virtual(story(), start_epoch=EPOCH)


def test_a_clock_that_ntp_sets_while_the_controller_runs_is_believed() -> None:
    async def story() -> None:
        here, store = Listing(), TemporaryStore("kit", 30 * DAY_S, 10)
        async with life(store, here) as controller:
            await run_for(controller, 30)
        ahead_s.set(TWO_MONTHS_S)
        async with life(store, here) as controller:
            await run_for(controller, 30)
            ahead_s.set(0.0)
            await run_for(controller, 30)
            assert abs(controller.clock.drift_s()) < 1
        assert names(store) == ["clock.doubted", "clock.trusted"]
        assert not any(line.startswith("stop") for line in here.told)

    run_virtual(story(), start_epoch=EPOCH)


@pytest.mark.parametrize("ntp", [True, False])
def test_the_time_in_which_no_controller_ran_does_not_count_against_drones(ntp: bool) -> None:
    """With NTP the clock is believed at once, without it after an hour: either way no limit passes in one step."""

    async def story() -> None:
        here, store = Listing(), TemporaryStore("kit", 30 * DAY_S, 10)
        async with life(store, here) as controller:
            await run_for(controller, 30)
        requested = store.drones.copy() if isinstance(store.drones, dict) else dict(store.drones)
        banned = Breaker("there", BreakerState.BANNED, since=EPOCH, until=EPOCH + 600)
        await store.record_results(store.tick, [], [banned])
        ahead_s.set(2 * DAY_S)
        async with life(store, here, ntp=ntp) as controller:
            await run_for(controller, 30)
            assert controller.clock.doubted() is not ntp
            assert not any(line.startswith("stop") for line in here.told)
            if ntp:
                assert abs(controller.clock.drift_s()) < 1
                gone = {i: d.requested_at - requested[i].requested_at for i, d in store.drones.items()}
                assert set(gone.values()) <= {gone[next(iter(gone))]} and min(gone.values()) > DAY_S
                assert store.breakers["there"].until > EPOCH + DAY_S
                assert names(store) == ["clock.set"]
            else:
                assert names(store) == ["clock.doubted"]

    run_virtual(story(), start_epoch=EPOCH)


@pytest.mark.parametrize("restarts", [False, True], ids=["goes-on", "restarts"])
def test_a_clock_is_not_set_while_the_moved_times_cannot_be_recorded(restarts: bool) -> None:
    """The clock was set first: with a full disk, or after a crash, two days passed for every limit in one step."""

    async def story() -> None:
        here, store = Listing(), FullDisk()
        async with life(store, here) as controller:
            await run_for(controller, 30)
        ahead_s.set(2 * DAY_S)
        store.full = {"record_results"}
        async with life(store, here, ntp=True) as controller:
            await run_for(controller, 30)
            assert controller.clock.doubted() and "record_results" in store.refused
            store.full = set()
            if not restarts:
                await run_for(controller, 30)
        if restarts:
            async with life(store, here, ntp=True) as controller:
                await run_for(controller, 30)
        assert store.recorded_at > EPOCH + 2 * DAY_S
        assert names(store).count("clock.set") == 1
        assert not any(line.startswith("stop") for line in here.told)
        assert sorted(d.state for d in store.drones.values()) == [S.BOOTING, S.BUSY, S.JOINED]

    run_virtual(story(), start_epoch=EPOCH)


def test_a_clock_that_was_an_hour_slow_before_a_restart_ends_no_drone() -> None:
    async def story() -> None:
        here, store = Listing(), TemporaryStore("kit", 30 * DAY_S, 10)
        ahead_s.set(-3700.0)
        async with life(store, here) as controller:
            await run_for(controller, 30)
            ahead_s.set(0.0)  # NTP has come
            await run_for(controller, 30)
        async with life(store, here, ntp=True) as controller:
            await run_for(controller, 60)
        assert sorted(d.state for d in store.drones.values()) == [S.BOOTING, S.BUSY, S.JOINED]
        assert not any(line.startswith("stop") for line in here.told)

    run_virtual(story(), start_epoch=EPOCH)
