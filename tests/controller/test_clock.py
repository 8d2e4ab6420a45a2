"""A clock that is set, forwards or backwards, neither expires drones nor makes them younger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from provisioner import model
from provisioner.controller.clock import SteadyClock
from provisioner.controller.loop import Controller
from tests.controller.world import (
    EPOCH,
    GPU,
    JOB,
    FullDisk,
    Place,
    Pool,
    ahead_s,
    in_virtual_time,
    run_for,
    wall,
)
from tests.store.story import TemporaryStore


class Hands:
    """A wall clock that people set and a monotonic one that they cannot."""

    def __init__(self) -> None:
        self.wall, self.mono = 1_000_000.0, 50.0

    def pass_time(self, seconds: float) -> None:
        self.wall += seconds
        self.mono += seconds


def clock_of(
    hands: Hands, record: float | None = None, drift_s: float = 0.0, ntp: bool = False
) -> SteadyClock:
    """A clock of a controller that starts with a record of that time."""
    return SteadyClock(
        lambda: hands.wall, lambda: hands.mono, record or hands.wall, drift_s, lambda: ntp
    )


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0.01, 1e4)), min_size=1, max_size=30))
def test_it_never_goes_backwards_and_never_runs_more_than_a_tenth_off(
    steps: list[tuple[float, float]],
) -> None:
    hands = Hands()
    clock = clock_of(hands)
    before = clock.now()
    for step, passes in steps:
        hands.wall += step
        hands.pass_time(passes)
        now = clock.now()
        assert 0.9 * passes - 1e-3 <= now - before <= 1.1 * passes + 1e-3
        before = now


@pytest.mark.parametrize(
    ("record_s", "drift_s", "ntp", "passes_s", "due_s"),
    [
        (-1e5, 0.0, True, 0, 1e5),
        (1e5, 0.0, True, 0, -1e5),
        # A doubted clock that nobody sets is believed after an hour, but the record's time is never
        # set back.
        (-1e5, 0.0, False, 3599, 0.0),
        (-1e5, 0.0, False, 3601, 1e5),
        (1e5, 0.0, False, 1e4, 0.0),
        # A clock that was as far off before, when the record was written, is believed.
        (-1e5 - 20, 1e5, False, 0, 1e5),
        (1e5 - 20, -1e5, False, 0, -1e5),
    ],
)
def test_when_a_clock_far_from_the_record_is_believed(
    record_s: float, drift_s: float, ntp: bool, passes_s: float, due_s: float
) -> None:
    hands = Hands()
    clock = clock_of(hands, hands.wall + record_s, drift_s, ntp)
    if passes_s:
        clock.now()
        hands.pass_time(passes_s)
    assert clock.due_s() == due_s
    if due_s:
        clock.settle()
    assert clock.doubted() is not bool(due_s)
    assert not due_s or (clock.now(), clock.due_s()) == (hands.wall, 0.0)


@pytest.mark.parametrize("step_s", [90_000.0, -90_000.0, 2e9])
def test_a_large_step_while_it_runs_is_doubted_as_at_a_start(step_s: float) -> None:
    """It was made up for at a tenth of the speed: for ten days all that was compared with the host's time was wrong."""
    hands = Hands()
    clock = clock_of(hands)
    began = clock.now()
    hands.wall += step_s
    hands.pass_time(10)
    assert clock.now() == began + 10 and clock.doubted()
    hands.wall -= step_s
    hands.pass_time(10)
    assert not clock.doubted() and clock.now() == began + 20


@pytest.mark.parametrize(("ntp", "passes_s"), [(True, 10), (False, 3601)])
def test_a_step_ahead_while_it_runs_is_believed_as_at_a_start(ntp: bool, passes_s: float) -> None:
    hands = Hands()
    clock = clock_of(hands, ntp=ntp)
    hands.pass_time(7200)
    clock.now()
    hands.wall += 90_000
    hands.pass_time(1)
    clock.now()
    assert clock.due_s() == (90_000 if ntp else 0.0), "the hour counts from the step"
    hands.pass_time(passes_s)
    assert clock.due_s() == 90_000
    clock.settle()
    assert clock.now() == hands.wall and not clock.doubted()


# ---------------------------- Starts with a wrong clock or after a long pause: nothing is deleted
# and no drone is ended


S = model.DroneState
DAY_S = 86_400.0
TWO_MONTHS_S = 60 * DAY_S


class Slots(Pool):
    """The first drone works, the second checks its GPUs, the third boots."""

    place: Place

    async def poll(self, types: object) -> model.OverlayView:
        slots: list[model.Slot] = []
        for number, drone_id in enumerate(sorted(self.place.running)[:2]):
            state = model.SlotState.CHECKING if number else model.SlotState.BUSY
            slots.append(
                model.Slot(drone_id, state, wall(), jobs=1 - number, jobs_started=1 - number)
            )
        waiting = max(0, 3 - len(self.place.running))
        return model.OverlayView(
            wall(), (replace(JOB, waiting=waiting),), tuple(slots), completions=()
        )


class Listing(Place):
    """Tells starts by the host's clock, as adapters do."""

    async def poll(self) -> object:  # type: ignore[override]
        view = await super().poll()
        began = {i: EPOCH + 5 + ahead_s.get() for i in view.drones}
        drones: dict[object, model.RemoteDrone] = {
            i: replace(d, started_at=began[i]) for i, d in view.drones.items()
        }
        return replace(view, drones=drones)  # type: ignore[arg-type]


@asynccontextmanager
async def life(
    store: TemporaryStore, place: Place, *, ntp: bool = False
) -> AsyncIterator[Controller]:
    """One life of the controller, with the clock of the real one."""
    pool = Slots()
    pool.place = place
    kind: model.DroneType = replace(GPU, walltime_s=4 * 3600.0)
    policy = model.Policy(sites={"here": model.SitePolicy("here", queue_when_full=True)})
    async with store:
        mono = asyncio.get_running_loop().time
        clock = SteadyClock(
            wall, mono, store.committed.recorded_at, store.committed.recorded_drift_s, lambda: ntp
        )
        async with Controller(
            "kit", policy, (kind,), pool, {"here": place}, store, clock
        ) as controller:
            yield controller


def record() -> TemporaryStore:
    return TemporaryStore("kit", 30 * DAY_S, 10)


def events_unharmed(store: TemporaryStore, here: Place) -> list[str]:
    """Names of the events; all drones are there and none was stopped."""
    assert sorted(d.state for d in store.drones.values()) == [S.BOOTING, S.BUSY, S.JOINED]
    assert not any(line.startswith("stop") for line in here.told)
    return [event.name for event in store.reader().events()]


@pytest.mark.parametrize("ahead", [TWO_MONTHS_S, -TWO_MONTHS_S])
@in_virtual_time
async def test_a_clock_that_is_wrong_at_the_start_deletes_nothing_and_ends_no_drone(
    ahead: float,
) -> None:
    here, store = Listing(), record()
    async with life(store, here) as controller:
        await run_for(controller, 60)
    assert events_unharmed(store, here) == []
    known = len(store.reader().plans(limit=1000))
    ahead_s.set(ahead)
    async with life(store, here) as controller:
        await run_for(controller, 60)
        view = controller._doubted(controller._poller.overlay_reading(), ()).view
        assert view is not None and "clock" in view.notices[-1], "operators see it"
    assert events_unharmed(store, here) == ["clock.doubted"]
    assert len(store.reader().plans(limit=1000)) >= known
    ahead_s.set(0.0)
    async with life(store, here) as controller:
        await run_for(controller, 60)
        assert abs(controller.clock.drift_s()) < 1
    assert events_unharmed(store, here) == ["clock.doubted"]


@in_virtual_time
async def test_a_clock_that_ntp_sets_while_the_controller_runs_is_believed() -> None:
    here, store = Listing(), record()
    async with life(store, here) as controller:
        await run_for(controller, 30)
    ahead_s.set(TWO_MONTHS_S)
    async with life(store, here) as controller:
        await run_for(controller, 30)
        ahead_s.set(0.0)
        await run_for(controller, 30)
        assert abs(controller.clock.drift_s()) < 1
    assert events_unharmed(store, here) == ["clock.doubted", "clock.trusted"]


@pytest.mark.parametrize("ntp", [True, False])
@in_virtual_time
async def test_the_time_in_which_no_controller_ran_does_not_count_against_drones(ntp: bool) -> None:
    """With NTP the clock is believed at once, without it after an hour: either way no limit passes in one step."""
    here, store = Listing(), record()
    async with life(store, here) as controller:
        await run_for(controller, 30)
    requested = dict(store.drones)
    banned = model.Breaker(
        model.Scope("there"), model.BreakerState.BANNED, since=EPOCH, until=EPOCH + 600
    )
    await store.record_results(store.tick, [], [banned])
    ahead_s.set(2 * DAY_S)
    async with life(store, here, ntp=ntp) as controller:
        await run_for(controller, 30)
        assert controller.clock.doubted() is not ntp
        assert events_unharmed(store, here) == ["clock.set" if ntp else "clock.doubted"]
        if ntp:
            assert abs(controller.clock.drift_s()) < 1
            (gone_s,) = {
                d.requested_at - requested[i].requested_at for i, d in store.drones.items()
            }
            assert gone_s > DAY_S and store.breakers[model.Scope("there")].until > EPOCH + DAY_S


@pytest.mark.parametrize("restarts", [False, True], ids=["goes-on", "restarts"])
@in_virtual_time
async def test_a_clock_is_not_set_while_the_moved_times_cannot_be_recorded(restarts: bool) -> None:
    """The clock was set first: with a full disk, or after a crash, two days passed for every limit in one step."""
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
    assert store.committed.recorded_at > EPOCH + 2 * DAY_S
    assert events_unharmed(store, here).count("clock.set") == 1


@in_virtual_time
async def test_a_clock_that_was_an_hour_slow_before_a_restart_ends_no_drone() -> None:
    here, store = Listing(), record()
    ahead_s.set(-3700.0)
    async with life(store, here) as controller:
        await run_for(controller, 30)
        ahead_s.set(0.0)  # NTP has come
        await run_for(controller, 30)
    async with life(store, here, ntp=True) as controller:
        await run_for(controller, 60)
    events_unharmed(store, here)


@pytest.mark.parametrize("ntp", [True, False])
@in_virtual_time
async def test_a_step_of_a_day_while_it_runs_moves_the_times_and_ends_no_drone(ntp: bool) -> None:
    here, store = Listing(), record()
    async with life(store, here, ntp=ntp) as controller:
        await run_for(controller, 30)
        ahead_s.set(25 * 3600.0)
        await run_for(controller, 30)
        assert events_unharmed(store, here) == (["clock.set"] if ntp else ["clock.doubted"])
        assert (abs(controller.clock.drift_s()) < 1) is ntp
