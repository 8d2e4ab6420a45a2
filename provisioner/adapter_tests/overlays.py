"""The contract of an overlay adapter: what the controller relies on, for every kind of pool."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Protocol

import pytest

from provisioner.adapter_tests import eventually, outcome
from provisioner.interfaces import AdapterError, Overlay
from provisioner.model import (
    DrainMode,
    DroneId,
    DroneType,
    JobClass,
    OrderOutcome,
    Slot,
    SlotState,
    StartOrder,
)


class OverlayWorld(Protocol):
    """An overlay under test with an empty pool, with the actions of its users and sites."""

    kind: DroneType
    """A type with at least one GPU, of which two drones can run at once."""
    longest_wait_s: float
    """Longest time that the overlay may need for anything in the suite."""

    def overlay(self) -> Overlay:
        """Return a new adapter object, as a controller builds it at its start."""

    async def submit(
        self, count: int, *, gpu_milli: int, cpus: int = 1, seconds: float = 0.0, vram_mib: int = 0
    ) -> None:
        """Submit ``count`` equal jobs that run for ``seconds`` and succeed."""

    async def done(self) -> int:
        """Return how many jobs have succeeded."""

    async def begin(self, order: StartOrder) -> None:
        """Run a drone from the order's bootstrap, as a site would."""

    async def ended(self, drone_id: DroneId) -> bool:
        """Return whether a drone has exited by itself, without an error."""

    async def end(self, drone_id: DroneId) -> None:
        """Stop a drone, as a site would, and wait until it is gone."""

    def broken(self) -> AbstractAsyncContextManager[None]:
        """Make the pool unreachable, while inside."""


class OverlayContract:
    """The suite for an overlay: subclass it as ``TestMyOverlay`` with a fixture ``world``."""

    pytestmark = pytest.mark.asyncio

    async def test_an_empty_pool_is_empty(self, world: OverlayWorld) -> None:
        """Check that a pool without jobs and drones has an empty view."""
        async with world.overlay() as overlay:
            view = await overlay.poll([world.kind])
            assert [c for c in view.classes if c.waiting or c.fresh or c.running] == []
            assert view.slots == ()
            assert abs(view.taken_at - time.time()) < world.longest_wait_s

    async def test_jobs_are_grouped_by_what_they_need(self, world: OverlayWorld) -> None:
        """Check that jobs with the same request are one class, with its number of waiting jobs."""
        before = time.time()
        await world.submit(30, gpu_milli=1000)
        await world.submit(20, gpu_milli=2000, cpus=3)
        await world.submit(10, gpu_milli=1000, vram_mib=1024)
        async with world.overlay() as overlay:
            classes = await _waiting(world, overlay, 60)
            shapes = {(c.gpu_milli, c.cpus, c.vram_mib): c for c in classes}
            assert {shape: c.waiting for shape, c in shapes.items()} == {
                (1000, 1, 0): 30,
                (2000, 3, 0): 20,
                (1000, 1, 1024): 10,
            }
            assert len({c.id for c in classes}) == 3
            for c in classes:
                assert before - 2 <= c.oldest_at <= time.time() + 2
                assert c.invalid == ""
                assert c.job_ids
        async with world.overlay() as restarted:
            again = await _waiting(world, restarted, 60)
            assert {c.id for c in again} == {c.id for c in classes}

    async def test_a_drone_joins_runs_jobs_and_leaves_when_idle(self, world: OverlayWorld) -> None:
        """Check that a drone joins, runs the waiting jobs, and ends after its idle timeout."""
        await world.submit(3, gpu_milli=1000)
        async with _drone(world, idle_timeout_s=2.0) as (overlay, drone_id):
            slot = await _slot(world, overlay, drone_id, *SlotState)
            assert abs(slot.heard_at - time.time()) < world.longest_wait_s

            await eventually("the jobs are done", lambda: _enough(world, 3), world.longest_wait_s)
            await eventually(
                "it leaves by itself", lambda: world.ended(drone_id), world.longest_wait_s
            )
            await _unslotted(world, overlay, drone_id)

    async def test_a_slot_tells_what_is_left_in_it(self, world: OverlayWorld) -> None:
        """Check that a slot reports its free GPUs and CPUs and its jobs, idle and busy."""
        async with _drone(world) as (overlay, drone_id):
            idle = await _slot(world, overlay, drone_id, SlotState.IDLE)
            assert (idle.free_gpu_milli, idle.free_cpus) == (world.kind.gpu_milli, world.kind.cpus)
            assert (idle.jobs, idle.jobs_started) == (0, 0)
            assert idle.idle_since > 0

            busy = await _busy(world, overlay, drone_id, seconds=3)
            assert (busy.free_gpu_milli, busy.free_cpus) == (
                world.kind.gpu_milli - 1000,
                world.kind.cpus - 1,
            )
            assert (busy.jobs, busy.idle_since) == (1, 0.0)

            again = await _slot(world, overlay, drone_id, SlotState.IDLE)
            assert again.jobs_started == 1
            assert again.idle_since > idle.idle_since
            await world.end(drone_id)
            await _unslotted(world, overlay, drone_id)

    async def test_a_peaceful_drain_lets_jobs_end_and_takes_no_more(
        self, world: OverlayWorld
    ) -> None:
        """Check that a drone that drains peacefully ends its job, takes no other and leaves."""
        async with _drone(world) as (overlay, drone_id):
            await _busy(world, overlay, drone_id, gpu_milli=world.kind.gpu_milli, seconds=2)
            await world.submit(1, gpu_milli=1000)

            [result] = await overlay.drain([drone_id], DrainMode.PEACEFUL, "tested")
            assert (result.drone_id, result.answer) == (drone_id, OrderOutcome.OK)
            await eventually("it leaves", lambda: world.ended(drone_id), world.longest_wait_s)
            assert await world.done() == 1
            await _waiting(world, overlay, 1)

    async def test_a_fast_drain_gives_the_job_back_to_the_queue(self, world: OverlayWorld) -> None:
        """Check that the job of a drone that drains fast waits again."""
        async with _drone(world) as (overlay, drone_id):
            await _busy(world, overlay, drone_id, seconds=600)
            [result] = await overlay.drain([drone_id], DrainMode.FAST, "tested")
            assert result.answer is OrderOutcome.OK
            await eventually("it leaves", lambda: world.ended(drone_id), world.longest_wait_s)
            await _waiting(world, overlay, 1)

    async def test_a_draining_drone_can_be_taken_back(self, world: OverlayWorld) -> None:
        """Check that a draining drone takes jobs again after ``RESUME``."""
        async with _drone(world) as (overlay, drone_id):
            await _busy(world, overlay, drone_id, gpu_milli=world.kind.gpu_milli, seconds=4)
            await overlay.drain([drone_id], DrainMode.PEACEFUL, "tested")
            await _slot(world, overlay, drone_id, SlotState.DRAINING)
            [result] = await overlay.drain([drone_id], DrainMode.RESUME, "tested")
            assert result.answer is OrderOutcome.OK
            await world.submit(1, gpu_milli=1000)
            await eventually("both jobs are done", lambda: _enough(world, 2), world.longest_wait_s)
            await world.end(drone_id)

    async def test_a_drone_that_is_asked_to_leave_by_its_site_loses_no_job(
        self, world: OverlayWorld
    ) -> None:
        """Check that the job of a drone that its site ends waits again."""
        async with _drone(world) as (overlay, drone_id):
            await _busy(world, overlay, drone_id, seconds=600)
            await world.end(drone_id)
            await _waiting(world, overlay, 1)
            await _unslotted(world, overlay, drone_id)

    async def test_draining_gives_one_result_each_whatever_the_name(
        self, world: OverlayWorld
    ) -> None:
        """Check that each drain has a result in its place, for unknown and hostile names too."""
        names = [
            DroneId(name)
            for name in ("kit-abcd-77", "x'; DROP TABLE job; --", "a b\n$(touch x)", "\u202e")
        ]
        async with world.overlay() as overlay:
            for mode in DrainMode:
                results = await overlay.drain(names, mode, "tested '\" $(x)")
                assert [r.drone_id for r in results] == names
                assert all(r.fault is not None for r in results if r.answer is not OrderOutcome.OK)
            assert list(await overlay.drain([], DrainMode.FAST, "tested")) == []
            await overlay.poll([world.kind])

    async def test_trouble_comes_as_one_of_the_four_errors(self, world: OverlayWorld) -> None:
        """Check that an unreachable pool raises an adapter error, never returns an empty view."""
        await world.submit(2, gpu_milli=1000)
        async with world.overlay() as overlay:
            await _waiting(world, overlay, 2)
            async with world.broken():
                # an empty pool is a lie
                assert isinstance(await outcome(overlay.poll([world.kind])), AdapterError)
            await _waiting(world, overlay, 2)

    async def test_a_drain_that_does_not_reach_the_pool_is_not_done(
        self, world: OverlayWorld
    ) -> None:
        """Check that a drain of an unreachable pool is not ``OK`` and has a fault."""
        async with _drone(world) as (overlay, drone_id):
            await _busy(world, overlay, drone_id, seconds=600)
            async with world.broken():
                results = await outcome(overlay.drain([drone_id], DrainMode.FAST, "tested"))
                if not isinstance(results, AdapterError):
                    [result] = results
                    assert result.answer is not OrderOutcome.OK
                    assert result.fault is not None and result.fault.message
            await world.end(drone_id)
            await _unslotted(world, overlay, drone_id)


@asynccontextmanager
async def _drone(
    world: OverlayWorld, *, idle_timeout_s: float = 600.0
) -> AsyncIterator[tuple[Overlay, DroneId]]:
    """Run a drone of the overlay."""
    order = StartOrder(DroneId("kit-abcd-1"), world.kind, idle_timeout_s, 5.0)
    async with world.overlay() as overlay:
        await world.begin(replace(order, bootstrap=await overlay.bootstrap(order)))
        yield overlay, order.drone_id


async def _busy(
    world: OverlayWorld,
    overlay: Overlay,
    drone_id: DroneId,
    *,
    seconds: float,
    gpu_milli: int = 1000,
) -> Slot:
    """Submit a job, and return the drone's slot once it runs there."""
    await world.submit(1, gpu_milli=gpu_milli, seconds=seconds)
    return await _slot(world, overlay, drone_id, SlotState.BUSY)


async def _enough(world: OverlayWorld, jobs: int) -> bool:
    return await world.done() >= jobs


async def _waiting(world: OverlayWorld, overlay: Overlay, jobs: int) -> Sequence[JobClass]:
    """Return the job classes, once this many jobs wait in total."""

    async def ask() -> Sequence[JobClass] | None:
        classes = [c for c in (await overlay.poll([world.kind])).classes if c.waiting]
        return classes if sum(c.waiting for c in classes) == jobs else None

    return await eventually(f"{jobs} jobs wait", ask, world.longest_wait_s)


async def _slot(
    world: OverlayWorld, overlay: Overlay, drone_id: DroneId, *states: SlotState
) -> Slot:
    async def ask() -> Slot | None:
        return next(
            (
                s
                for s in await _slots(world, overlay)
                if s.drone_id == drone_id and s.state in states
            ),
            None,
        )

    return await eventually(
        f"{drone_id} is {' or '.join(states)} in the pool", ask, world.longest_wait_s
    )


async def _unslotted(world: OverlayWorld, overlay: Overlay, drone_id: DroneId) -> None:
    async def ask() -> bool:
        return all(slot.drone_id != drone_id for slot in await _slots(world, overlay))

    await eventually(f"{drone_id} is out of the pool", ask, world.longest_wait_s)


async def _slots(world: OverlayWorld, overlay: Overlay) -> Sequence[Slot]:
    return (await overlay.poll([world.kind])).slots
