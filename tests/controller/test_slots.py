"""Drones that misbehave in the pool: dead ones with a slot, such as eat jobs, and such as do not drain."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from provisioner import model
from provisioner.answers.drones import drone_note
from provisioner.controller.actuation import FORGET_ATTEMPTS
from provisioner.controller.loop import Controller
from provisioner.interfaces import AuthError
from tests.controller.world import Place, Pool, in_virtual_time, never, serving, wall
from tests.store.story import TemporaryStore

# ----------------------------- Slots of drones that died are removed from the pool, those of living
# drones never

DENIED = model.Fault(model.FaultKind.DENIED, "ADVERTISE_STARTD denied", 0.0)


@dataclass
class Board(Pool):
    """A pool that lists a drone's slot, as it was last heard, until it is asked to forget it."""

    classes: tuple = ()  # type: ignore[type-arg]
    place: Place = field(default_factory=Place)
    slots: dict[model.DroneId, float] = field(default_factory=dict)
    """Time of the last ad of each slot."""
    forgotten: list[tuple[model.DroneId, float]] = field(default_factory=list)

    async def poll(self, types: Sequence[model.DroneType]) -> model.OverlayView:
        for each, remote in self.place.running.items():
            if remote.state is model.RemoteState.RUNNING:
                self.slots[each] = wall()
        slots = tuple(
            model.Slot(each, model.SlotState.BUSY, heard, jobs=1)
            for each, heard in self.slots.items()
        )
        return model.OverlayView(wall(), self.classes, slots)

    async def forget(self, ended_at: Mapping[model.DroneId, float]) -> Sequence[model.OrderResult]:
        self.forgotten += ended_at.items()
        for each in ended_at:
            del self.slots[each]
        return [model.OrderResult(each, model.OrderOutcome.OK) for each in ended_at]


def die(place: Place, drone_id: model.DroneId) -> None:
    how = model.RemoteEnd(model.EndKind.FAULT, wall(), None, "its launcher vanished")
    place.running[drone_id] = model.RemoteDrone(
        drone_id, model.RemoteState.ENDED, f"r-{drone_id}", end=how
    )


async def one_busy(controller: Controller, place: Place, board: Board) -> model.DroneId:
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
    async with serving(place, pool=board, store=store) as controller:
        drone_id = await one_busy(controller, place, board)
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
                place.running[drone_id] = model.RemoteDrone(
                    drone_id, model.RemoteState.PENDING, "again"
                )
            await controller.tick()
        if case == "missing":
            assert drone_id not in controller.store.drones, "it is given up"
        assert board.forgotten == []


REFUSED = model.OrderResult(model.DroneId(""), model.OrderOutcome.REJECTED, fault=DENIED)


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        (REFUSED, DENIED.message),
        (AuthError(DENIED.message), DENIED.message),
        (None, "no answer within its deadline"),
    ],
    ids=["refused", "raised", "silent"],
)
@in_virtual_time
async def test_a_removal_that_fails_is_told_once_tried_three_times_and_holds_up_nothing(
    trouble: model.OrderResult | Exception | None, why: str
) -> None:
    place, store = Place(), TemporaryStore("kit", 1e9, 10)

    class Failing(Board):
        async def forget(
            self, ended_at: Mapping[model.DroneId, float]
        ) -> Sequence[model.OrderResult]:
            self.forgotten += ended_at.items()
            if isinstance(trouble, Exception):
                raise trouble
            return (
                [replace(trouble, drone_id=each) for each in ended_at] if trouble else await never()
            )

    board = Failing(place=place)
    async with serving(place, pool=board, store=store) as controller:
        drone_id = await one_busy(controller, place, board)
        die(place, drone_id)
        began, count = wall(), controller.store.tick
        await ticks(controller, 100)
        assert wall() - began < 510 and controller.store.tick == count + 100
        assert len(board.forgotten) == FORGET_ATTEMPTS == 3
        assert told(store) == [why]


# ---- A drone that eats jobs in the running controller: drained, an event, and its node on record
# over a restart


WORDS = "condor_drain: exit 1: not authorized"


@dataclass
class Working(Pool):
    """A pool in which each drone has a job, or fails the jobs of two users, and which may refuse drains."""

    place: Place = field(default_factory=Place)
    eats: bool = False
    hears: bool = False
    asked: list[tuple[float, model.DroneId, model.DrainMode, str]] = field(default_factory=list)

    async def poll(self, types: Sequence[model.DroneType]) -> model.OverlayView:
        state = model.SlotState.DRAINING if self.hears and self.asked else model.SlotState.BUSY
        slots = tuple(
            model.Slot(each, state, wall(), jobs=1, jobs_started=9) for each in self.place.running
        )
        mishaps = tuple(
            model.JobFailure(each, f"{n}.0", wall() - 60, owner, "held with code 12")
            for each in self.place.running
            for n, owner in enumerate(("ann", "bob", "ann"))
        )
        mishaps = mishaps if self.eats else ()
        return model.OverlayView(wall(), () if slots else self.classes, slots, mishaps=mishaps)

    async def drain(
        self, drone_ids: Sequence[model.DroneId], mode: model.DrainMode, reason: str
    ) -> Sequence[model.OrderResult]:
        self.asked += [(wall(), each, mode, reason) for each in drone_ids]
        fault = (
            None if self.hears or self.eats else model.Fault(model.FaultKind.DENIED, WORDS, wall())
        )
        outcome = model.OrderOutcome.REJECTED if fault else model.OrderOutcome.OK
        return [model.OrderResult(each, outcome, fault=fault) for each in drone_ids]


@in_virtual_time
async def test_a_drone_that_eats_jobs_is_drained_with_its_reason_and_one_event() -> None:
    place = Place()
    pool, store = Working(place=place, eats=True), TemporaryStore("kit", 1e9, 10)
    async with serving(place, pool=pool, store=store) as controller:
        await controller.tick()
        await ticks(controller, 4)
        (drone,) = store.drones.values()
        assert (drone.state, drone.leaving) == (
            model.DroneState.DRAINING,
            model.DroneState.CANCELLED,
        )
        assert pool.asked[0][1:] == (drone.id, model.DrainMode.PEACEFUL, "black-hole")
        (event,) = (e for e in store.reader().events() if e.name == "drone.black_hole")
        assert (
            event.fields["drone"] == drone.id
            and "3 starts of jobs of 2 users failed" in event.fields["why"]
        )


@in_virtual_time
async def test_a_refused_drain_is_told_once_kept_on_record_and_tried_until_the_drone_drains() -> (
    None
):
    """A refused drain vanished: the drone showed as draining and took jobs for hours, without an event or a word."""
    place = Place()
    pool, store = Working(place=place), TemporaryStore("kit", 1e9, 10)
    async with serving(place, pool=pool, store=store) as controller:
        await controller.tick()
        await ticks(controller, 6)
        (drone,) = store.drones.values()
        assert drone.state is model.DroneState.BUSY
        mode = model.DrainMode.GRACEFUL
        store.reader().ask(
            model.RequestKind.DRAIN, [drone.id], reason="fan", by="anna", at=wall(), mode=mode
        )
        await ticks(controller, 120)
        now = store.drones[drone.id]
        assert (now.state, now.drain_refusal, now.site_reason) == (
            model.DroneState.DRAINING,
            WORDS,
            "",
        )
        assert WORDS in drone_note(now) and "drain refused" in drone_note(now)
        (event,) = (e for e in store.reader().events() if e.name == "drain.rejected")
        assert event.fields == {"drone": drone.id, "why": WORDS}
        assert {asked[2] for asked in pool.asked} == {model.DrainMode.GRACEFUL}
        gaps = [later[0] - first[0] for first, later in pairwise(pool.asked)]
        assert 4 <= len(gaps) <= 10 and min(gaps) >= 30 and gaps == sorted(gaps), "ever more rarely"
        pool.hears = True
        await ticks(controller, 60)
        assert store.drones[drone.id].drain_refusal == ""
        asked = len(pool.asked)
        await ticks(controller, 120)
        assert len(pool.asked) == asked, "it drains: nothing more to ask"
        assert not [each for each in place.told if each.startswith("stop")]
