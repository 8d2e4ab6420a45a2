"""A controller of 10,000 drones in a simulated world in real time, for the part ``web``: prints its measures as JSON.

web_controller.py FILE      with the record FILE, until SIGTERM
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from benchmarks.steady import AT_ONCE
from provisioner.controller.loop import Controller
from provisioner.model import Policy, SitePolicy
from provisioner.simulator import loop as simulated
from provisioner.simulator.drones import SiteBehaviour
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.pool import PoolBehaviour
from provisioner.simulator.sites import Facility, GpuPool
from provisioner.simulator.world import Scenario, World
from provisioner.store.writer import SqlStore
from tests.simulator.worlds import drone_type

DRONES, SITES, CLASSES, WAITING = 10_000, 5, 40, 2000
TICK_S, LAG_EVERY_S = 2.0, 0.02
"""Ticks are as far apart as while drones change their state."""


class RealTimeLoop(asyncio.SelectorEventLoop):
    """A loop for simulated worlds in which time passes by itself, from 0 s."""

    def __init__(self) -> None:
        self._began, self.start_epoch = time.monotonic(), time.time()
        super().__init__()

    def time(self) -> float:
        return time.monotonic() - self._began


class MeasuredController(Controller):
    ticks: list[tuple[float, float, float]]
    """Begin of each on the monotonic clock, its seconds, and its seconds of processor time."""

    async def tick(self) -> Any:
        began, cpu = time.monotonic(), time.process_time()
        try:
            return await super().tick()
        finally:
            self.ticks.append((began, time.monotonic() - began, time.process_time() - cpu))


def world() -> World:
    each = DRONES // SITES
    behaviour = SiteBehaviour(boot=AT_ONCE, check=AT_ONCE, release=AT_ONCE)
    places = tuple(
        Facility(
            policy=SitePolicy(name, max_drones=each, max_pending=each, max_starts_per_tick=each),
            types=(drone_type(name, "small"), drone_type(name, "large", cpus=16, price=1.5)),
            pools=(GpuPool("gpus", each),),
            behaviour=behaviour,
            latency=AT_ONCE,
        )
        for name in (f"site{number}" for number in range(SITES))
    )
    draw = random.Random(1)
    wants = [
        JobRequirements(owner=f"user{n % 9}", memory_mib=4096 + 64 * n, cpus=1 + n % 8)
        for n in range(CLASSES)
    ]
    jobs = [SimulatedJob(0.0, draw.uniform(1.0, 3600.0), wants[n % CLASSES]) for n in range(DRONES)]
    # they need large drones, for which small ones leave when their job is done
    jobs += [
        SimulatedJob(10.0, 3600.0, replace(wants[n % CLASSES], cpus=12)) for n in range(WAITING)
    ]
    pool = PoolBehaviour(negotiation_s=5.0, latency=AT_ONCE)
    return World(Scenario(places, tuple(jobs), 1, Policy(max_drones=DRONES), pool=pool))


async def control(path: Path) -> None:
    place, stop, lags = world(), asyncio.Event(), list[tuple[float, float]]()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    place.begin()
    async with SqlStore(path, "bench", keep_s=30 * 86400.0, snapshots=50) as store:
        controller = MeasuredController(
            name="bench",
            policy=replace(place.scenario.full_policy, interval_s=TICK_S, active_interval_s=TICK_S),
            types=place.types,
            overlay=place.overlay,
            sites=dict(place.sites),
            store=store,
            clock=simulated.VirtualClock(),
        )
        controller.ticks = []
        async with controller:
            watch = asyncio.create_task(watch_lag(lags))
            await controller.run(stop)
            watch.cancel()
    place.close()
    print(json.dumps({"ticks": controller.ticks, "lags": lags}))


async def watch_lag(lags: list[tuple[float, float]]) -> None:
    """Note for ever how late the loop wakes a task."""
    while True:
        due = time.monotonic() + LAG_EVERY_S
        await asyncio.sleep(LAG_EVERY_S)
        lags.append((due, max(0.0, time.monotonic() - due)))


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    simulated.VirtualLoop = RealTimeLoop  # type: ignore[assignment,misc]
    with asyncio.Runner(loop_factory=RealTimeLoop) as runner:
        runner.run(control(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
