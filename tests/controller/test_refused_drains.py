"""A drain that the overlay refuses: its report and its repetition."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from provisioner.cli.drones import drone_note
from provisioner.model import (
    DrainMode,
    DroneId,
    DroneState,
    DroneType,
    Fault,
    FaultKind,
    OrderOutcome,
    OrderResult,
    OverlayView,
    RequestKind,
    Slot,
    SlotState,
)
from tests.controller.world import Place, Pool, in_virtual_time, serving, wall
from tests.store.story import TemporaryStore

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
