"""Drones that misbehave in the pool: dead ones with a slot, such as eat jobs, and such as do not drain."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from provisioner.cli.drones import drone_note
from provisioner.controller.actuation import FORGET_ATTEMPTS
from provisioner.controller.loop import Controller
from provisioner.interfaces import AuthError, SupportsForget
from provisioner.model import (
    DrainMode,
    DroneId,
    DroneState,
    DroneType,
    EndKind,
    Fault,
    FaultKind,
    JobFailure,
    OrderOutcome,
    OrderResult,
    OverlayView,
    RemoteDrone,
    RemoteEnd,
    RemoteState,
    RequestKind,
    Slot,
    SlotState,
    is_within_scope,
)
from tests.controller.world import Place, Pool, in_virtual_time, serving, wall
from tests.store.story import TemporaryStore

# ----------------------------- Slots of drones that died are removed from the pool, those of living drones never

DENIED = Fault(FaultKind.DENIED, "ADVERTISE_STARTD denied", 0.0)


@dataclass
class Board(Pool):
    """A pool that lists a drone's slot, as it was last heard, until it is asked to forget it."""

    classes: tuple = ()  # type: ignore[type-arg]
    place: Place = field(default_factory=Place)
    slots: dict[DroneId, float] = field(default_factory=dict)
    """When each was heard last."""
    forgotten: list[tuple[DroneId, float]] = field(default_factory=list)
    fault: Fault | None = None
    error: Exception | None = None

    async def poll(self, types: Sequence[DroneType]) -> OverlayView:
        for each, remote in self.place.running.items():
            if remote.state is RemoteState.RUNNING:
                self.slots[each] = wall()
        slots = tuple(Slot(each, SlotState.BUSY, heard, jobs=1) for each, heard in self.slots.items())
        return OverlayView(wall(), self.classes, slots)

    async def forget(self, ended_at: Mapping[DroneId, float]) -> Sequence[OrderResult]:
        self.forgotten += ended_at.items()
        if self.error is not None:
            raise self.error
        if self.fault is not None:
            return [OrderResult(each, OrderOutcome.REJECTED, fault=self.fault) for each in ended_at]
        for each in ended_at:
            del self.slots[each]
        return [OrderResult(each, OrderOutcome.OK) for each in ended_at]


def die(place: Place, drone_id: DroneId) -> None:
    how = RemoteEnd(EndKind.FAULT, wall(), None, "its launcher vanished")
    place.running[drone_id] = RemoteDrone(drone_id, RemoteState.ENDED, f"r-{drone_id}", end=how)


async def one_busy(controller: Controller, place: Place, board: Board) -> DroneId:
    """A drone that runs a job, and no demand for another one."""
    board.classes = Pool().classes
    await controller.tick()
    board.classes = ()
    await ticks(controller, 3)
    (drone_id,) = place.running
    assert controller.store.drones[drone_id].jobs == 1
    return drone_id


async def ticks(controller: Controller, count: int, pause_s: float = 5.0) -> None:
    for _ in range(count):
        await asyncio.sleep(pause_s)
        await controller.tick()


def told(store: TemporaryStore) -> list[str]:
    return [str(e.fields["why"]) for e in store.reader().events() if e.name == "slots.not_removed"]


@in_virtual_time
async def test_the_slot_of_a_drone_that_died_is_removed_once() -> None:
    place, store = Place(), TemporaryStore("kit", 1e9, 10)
    board = Board(place=place)
    assert isinstance(board, SupportsForget)
    async with serving(place, pool=board, store=store) as controller:
        drone_id = await one_busy(controller, place, board)
        assert board.forgotten == []
        die(place, drone_id)
        died_at = wall()
        await ticks(controller, 10)
        ((forgotten, ended_at),) = board.forgotten
        assert forgotten == drone_id and died_at <= ended_at <= died_at + 10
        assert drone_id not in board.slots and told(store) == []


@pytest.mark.parametrize("case", ["heard from", "listed again", "missing", "left in order"])
@in_virtual_time
async def test_only_the_slot_of_a_drone_that_its_site_reported_dead_is_removed(case: str) -> None:
    """A site may be wrong about an end, a batch system puts a preempted job back under the same name."""
    place = Place()
    board = Board(place=place)
    async with serving(place, pool=board) as controller:
        drone_id = await one_busy(controller, place, board)
        if case == "missing":
            del place.running[drone_id]
        else:
            die(place, drone_id)
        if case == "left in order":
            del board.slots[drone_id]
        elif case != "missing":
            await controller.tick()
        for _ in range(100 if case == "missing" else 5):
            await asyncio.sleep(5)
            if case == "heard from":
                board.slots[drone_id] = wall()
            elif case == "listed again":
                place.running[drone_id] = RemoteDrone(drone_id, RemoteState.PENDING, "again")
            await controller.tick()
        if case == "missing":
            assert drone_id not in controller.store.drones, "it is given up"
        assert board.forgotten == []


@pytest.mark.parametrize("how", ["refused", "raised"])
@in_virtual_time
async def test_a_removal_that_fails_is_told_once_and_tried_three_times(how: str) -> None:
    place, store = Place(), TemporaryStore("kit", 1e9, 10)
    fault, error = (DENIED, None) if how == "refused" else (None, AuthError(DENIED.message))
    board = Board(place=place, fault=fault, error=error)
    async with serving(place, pool=board, store=store) as controller:
        drone_id = await one_busy(controller, place, board)
        die(place, drone_id)
        await ticks(controller, 100)
        assert len(board.forgotten) == FORGET_ATTEMPTS == 3
        assert told(store) == [DENIED.message]


@in_virtual_time
async def test_a_removal_without_an_answer_holds_up_nothing() -> None:
    place, store = Place(), TemporaryStore("kit", 1e9, 10)

    class Silent(Board):
        async def forget(self, ended_at: Mapping[DroneId, float]) -> Sequence[OrderResult]:
            self.forgotten += ended_at.items()
            await asyncio.get_running_loop().create_future()
            raise AssertionError

    board = Silent(place=place)
    async with serving(place, pool=board, store=store) as controller:
        drone_id = await one_busy(controller, place, board)
        die(place, drone_id)
        await controller.tick()
        await asyncio.sleep(5)
        began = wall()
        await controller.tick()
        assert wall() - began < 1
        await asyncio.sleep(1)
        assert board.forgotten
        await ticks(controller, 10)
        assert told(store) == ["no answer within its deadline"]
        assert controller.store.tick > 10


# ---- A drone that eats jobs in the running controller: drained, an event, and its node on record over a restart


@dataclass
class Hole(Pool):
    """A pool in which each drone fails the jobs of two users, and no drain has an effect."""

    place: Place = field(default_factory=Place)
    drained: list[tuple[DroneId, str]] = field(default_factory=list)

    async def poll(self, types: Sequence[DroneType]) -> OverlayView:
        slots = tuple(Slot(each, SlotState.BUSY, wall(), jobs=1, jobs_started=9) for each in self.place.running)
        mishaps = tuple(
            JobFailure(each, f"{n}.0", wall() - 60, owner, "held with code 12")
            for each in self.place.running
            for n, owner in enumerate(("ann", "bob", "ann"))
        )
        return OverlayView(wall(), () if slots else self.classes, slots, mishaps=mishaps)

    async def drain(self, drone_ids: Sequence[DroneId], mode: DrainMode, reason: str) -> Sequence[OrderResult]:
        self.drained += [(each, reason) for each in drone_ids]
        return [OrderResult(drone_id, OrderOutcome.OK) for drone_id in drone_ids]


@in_virtual_time
async def test_a_drone_that_eats_jobs_is_drained_with_its_reason_and_one_event() -> None:
    place = Place()
    pool, store = Hole(place=place), TemporaryStore("kit", 1e9, 10)
    async with serving(place, pool=pool, store=store) as controller:
        for _ in range(5):
            await controller.tick()
            await asyncio.sleep(5)
        (drone,) = store.drones.values()
        assert (drone.state, drone.leaving) == (DroneState.DRAINING, DroneState.CANCELLED)
        assert pool.drained[0] == (drone.id, "black-hole")
        (event,) = (e for e in store.reader().events() if e.name == "drone.black_hole")
        assert event.fields["drone"] == drone.id and "3 starts of jobs of 2 users failed" in event.fields["why"]


def test_the_reset_of_a_site_reaches_its_nodes() -> None:
    assert is_within_scope("here@n1", "here")
    assert not is_within_scope("here2@n1", "here") and not is_within_scope("here@n1", "here/a100")


# ----------------------------------------------- A drain that the overlay refuses: its report and its repetition

WORDS = "condor_drain: exit 1: not authorized"


@dataclass
class Deaf(Pool):
    """A pool in which each drone of a place has a job, and which refuses drains until ``hears``."""

    place: Place = field(default_factory=Place)
    hears: bool = False
    asked: list[tuple[float, DrainMode]] = field(default_factory=list)

    async def poll(self, types: Sequence[DroneType]) -> OverlayView:
        state = SlotState.DRAINING if self.hears and self.asked else SlotState.BUSY
        slots = tuple(
            Slot(drone_id, state, wall(), jobs=1, name=f"slot1@{drone_id}@n") for drone_id in self.place.running
        )
        return OverlayView(wall(), () if slots else self.classes, slots)

    async def drain(self, drone_ids: Sequence[DroneId], mode: DrainMode, reason: str) -> Sequence[OrderResult]:
        self.asked.append((wall(), mode))
        if self.hears:
            return [OrderResult(drone_id, OrderOutcome.OK) for drone_id in drone_ids]
        fault = Fault(FaultKind.DENIED, WORDS, wall())
        return [OrderResult(drone_id, OrderOutcome.REJECTED, fault=fault) for drone_id in drone_ids]


@in_virtual_time
async def test_a_refused_drain_is_told_once_kept_on_record_and_tried_until_the_drone_drains() -> None:
    """A refused drain vanished: the drone showed as draining and took jobs for hours, without an event or a word."""

    place = Place()
    pool, store = Deaf(place=place), TemporaryStore("kit", 1e9, 10)
    async with serving(place, pool=pool, store=store) as controller:

        async def ticks(seconds: float) -> None:
            until = wall() + seconds
            while wall() < until:
                await controller.tick()
                await asyncio.sleep(5)

        await ticks(30)
        (drone,) = store.drones.values()
        assert drone.state is DroneState.BUSY
        store.reader().ask(RequestKind.DRAIN, [drone.id], reason="fan", by="anna", at=wall(), mode=DrainMode.GRACEFUL)
        await ticks(600)
        now = store.drones[drone.id]
        assert (now.state, now.drain_refusal, now.site_reason) == (DroneState.DRAINING, WORDS, "")
        assert WORDS in drone_note(now, wall()) and "drain refused" in drone_note(now, wall())
        (event,) = (e for e in store.reader().events() if e.name == "drain.rejected")
        assert event.fields == {"drone": drone.id, "why": WORDS}
        assert {mode for _, mode in pool.asked} == {DrainMode.GRACEFUL}
        gaps = [later - at for (at, _), (later, _) in zip(pool.asked, pool.asked[1:], strict=False)]
        assert 4 <= len(gaps) <= 10 and min(gaps) >= 30 and gaps == sorted(gaps), "ever more rarely"

        pool.hears = True
        await ticks(300)
        assert store.drones[drone.id].drain_refusal == ""
        asked = len(pool.asked)
        await ticks(600)
        assert len(pool.asked) == asked, "it drains: nothing more to ask"
        assert not [each for each in place.told if each.startswith("stop")]
