"""A drone that eats jobs in the running controller: drained, an event, and its node on record over a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from provisioner.model import (
    DrainMode,
    DroneId,
    DroneState,
    DroneType,
    JobFailure,
    OrderOutcome,
    OrderResult,
    OverlayView,
    Slot,
    SlotState,
    is_within_scope,
)
from tests.controller.world import Place, Pool, in_virtual_time, serving, wall
from tests.store.story import TemporaryStore


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
