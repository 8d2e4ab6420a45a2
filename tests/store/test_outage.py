"""A controller whose database goes away for some minutes gives no order meanwhile, and goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
import structlog

from provisioner.controller.loop import Controller
from provisioner.model import DroneState, Policy, SitePolicy
from provisioner.planner import planner
from provisioner.simulator.drones import SiteBehaviour
from provisioner.simulator.jobs import SimulatedJob
from provisioner.simulator.loop import Fixed, VirtualClock, run_virtual
from provisioner.simulator.sites import Facility, GpuPool
from provisioner.simulator.world import Scenario, World
from provisioner.store.database import Place
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore
from tests.labs.postgresql import PostgresServer, postgres_or_skip
from tests.simulator.worlds import drone_type

AT_ONCE = Fixed(0.0)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with postgres_or_skip() as made:
        yield made


def scenario() -> Scenario:
    """Four jobs at the start, and four more while the database is away."""
    site = Facility(
        policy=SitePolicy("fake", max_drones=8, max_pending=8, max_starts_per_tick=8),
        types=(drone_type("fake", "gpu"),),
        pools=(GpuPool("gpus", 8),),
        behaviour=SiteBehaviour(boot=AT_ONCE, check=AT_ONCE, release=AT_ONCE),
        latency=AT_ONCE,
    )
    jobs = (SimulatedJob(0.0, 36_000.0),) * 4 + (SimulatedJob(700.0, 36_000.0),) * 4
    return Scenario((site,), jobs, 1, Policy(max_drones=8))


async def play(server: PostgresServer, place: Place) -> None:
    world = World(scenario())
    world.begin()
    stop = asyncio.Event()
    async with SqlStore(place, "kit", 1e9, 10, threaded=False) as store:
        controller = Controller(
            name="kit",
            policy=replace(scenario().full_policy),
            types=world.types,
            overlay=world.overlay,
            sites=dict(world.sites),
            store=store,
            clock=VirtualClock(),
            planner=planner(),
        )
        async with controller:
            life = asyncio.create_task(controller.run(stop))
            await asyncio.sleep(600.0)
            before = store.tick
            assert await listed(world) == {*store.drones} and len(store.drones) == 4
            server.stop("immediate")
            await asyncio.sleep(600.0)
            assert len(await listed(world)) == 4, "an order was given that is not on record"
            assert store.tick == before
            server.start()
            await asyncio.sleep(300.0)
            assert await listed(world) == {*store.drones} and len(store.drones) == 8
            assert {each.state for each in store.drones.values()} == {DroneState.BUSY}
            assert {each.id for each in Reader(place).drones()} == {*store.drones}
            stop.set()
            await life
    world.close()


async def listed(world: World) -> set[str]:
    return {*(await world.sites["fake"].poll()).drones}


def test_no_order_without_the_database_and_all_of_them_once_it_is_back(
    server: PostgresServer,
) -> None:
    with structlog.testing.capture_logs() as logs:
        run_virtual(play(server, server.new_place()), start_epoch=1_750_000_000.0)
    failed = [each for each in logs if each["event"] == "store.write_failed"]
    assert len(failed) > 10 and "nothing was recorded" in failed[0]["message"]
