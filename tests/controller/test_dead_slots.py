"""Slots of drones that died are removed from the pool, those of living drones never."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from provisioner.controller.actuation import FORGET_ATTEMPTS
from provisioner.controller.loop import Controller
from provisioner.interfaces import AuthError, SupportsForget
from provisioner.model import (
    DroneId,
    DroneType,
    EndKind,
    Fault,
    FaultKind,
    OrderOutcome,
    OrderResult,
    OverlayView,
    RemoteDrone,
    RemoteEnd,
    RemoteState,
    Slot,
    SlotState,
)
from tests.controller.world import Place, Pool, in_virtual_time, serving, wall
from tests.store.story import TemporaryStore

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


@in_virtual_time
async def test_a_drone_that_left_the_pool_in_order_is_not_asked_about() -> None:
    place = Place()
    board = Board(place=place)
    async with serving(place, pool=board) as controller:
        drone_id = await one_busy(controller, place, board)
        die(place, drone_id)
        del board.slots[drone_id]
        await ticks(controller, 5)
        assert board.forgotten == [] and controller._dead_slots._dead == {}


@in_virtual_time
async def test_a_slot_that_the_pool_has_heard_from_since_stays() -> None:
    """Its site was wrong about its end."""

    place = Place()
    board = Board(place=place)
    async with serving(place, pool=board) as controller:
        drone_id = await one_busy(controller, place, board)
        die(place, drone_id)
        await controller.tick()
        for _ in range(5):
            await asyncio.sleep(5)
            board.slots[drone_id] = wall()
            await controller.tick()
        assert board.forgotten == []


@in_virtual_time
async def test_a_drone_that_its_site_lists_again_keeps_its_slot() -> None:
    """Batch systems put a preempted job back into the queue, under the same name."""

    place = Place()
    board = Board(place=place)
    async with serving(place, pool=board) as controller:
        drone_id = await one_busy(controller, place, board)
        die(place, drone_id)
        await controller.tick()
        assert drone_id not in controller.store.drones
        place.running[drone_id] = RemoteDrone(drone_id, RemoteState.PENDING, "again")
        await ticks(controller, 1)
        assert board.forgotten == []


@in_virtual_time
async def test_a_drone_that_is_missing_in_listings_keeps_its_slot() -> None:
    """Nobody said that it ended."""

    place = Place()
    board = Board(place=place)
    async with serving(place, pool=board) as controller:
        drone_id = await one_busy(controller, place, board)
        del place.running[drone_id]
        await ticks(controller, 100)
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
