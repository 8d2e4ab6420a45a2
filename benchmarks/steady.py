"""The whole service with 10,000 drones: what a tick costs at steady state, and how soon a drone is usable.

The controller, the SQLite store and the settings as shipped, on the virtual loop, at one simulated
site without any delay. An hour passes virtually; what is counted is real processor time, that of
the simulated site and pool included. In virtual time computing takes none, so the processor time of
bringing all drones up is added to their waits. Slots report every two minutes, as real ones do, and
at steady state each at a moment of its own.

    python -m benchmarks.steady [DRONES [postgresql://...]]
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import sys
import tempfile
import time
from dataclasses import field, replace

import structlog

from benchmarks.cost import Figure, cpu_s, peak_mib, tell
from benchmarks.ticks import UPDATE_INTERVAL_S
from provisioner.controller.loop import Controller, TickReport
from provisioner.model import DroneState, Policy, SitePolicy
from provisioner.planner import planner
from provisioner.simulator.drones import SiteBehaviour
from provisioner.simulator.jobs import SimulatedJob
from provisioner.simulator.loop import Fixed, VirtualClock, run_virtual
from provisioner.simulator.pool import PoolBehaviour
from provisioner.simulator.sites import Facility, GpuPool
from provisioner.simulator.world import Scenario, World
from provisioner.store.database import Place, database_of, place_of
from provisioner.store.writer import SqlStore
from provisioner.values import define
from tests.simulator.worlds import drone_type

START = 1_750_000_000.0
HOUR_S = 3600.0
AT_ONCE = Fixed(0.0)


@define
class TimedController(Controller):
    """A controller that notes the seconds of each turn, by the clock on the wall."""

    turns_s: list[float] = field(default_factory=list)

    async def turn(self) -> TickReport:
        began = time.perf_counter()
        report = await Controller.turn(self)
        self.turns_s.append(time.perf_counter() - began)
        return report


def facility(drones: int) -> Facility:
    """A site that starts anything at once."""
    return Facility(
        policy=SitePolicy(
            "fake", max_drones=drones, max_pending=drones, max_starts_per_tick=drones
        ),
        types=(drone_type("fake", "gpu"),),
        pools=(GpuPool("gpus", drones),),
        behaviour=SiteBehaviour(boot=AT_ONCE, check=AT_ONCE, release=AT_ONCE),
        latency=AT_ONCE,
    )


async def all_busy(store: SqlStore, drones: int) -> None:
    while sum(d.state is DroneState.BUSY for d in store.drones.values()) < drones:  # noqa: ASYNC110 (virtual time)
        await asyncio.sleep(1.0)


async def play(drones: int, path: Place) -> list[Figure]:
    place = facility(drones)
    jobs = (SimulatedJob(0.0, 10 * HOUR_S),) * drones
    pool = PoolBehaviour(latency=AT_ONCE, update_s=UPDATE_INTERVAL_S)
    scenario = Scenario((place,), jobs, 1, Policy(max_drones=drones), pool=pool)
    world, policy = World(scenario), scenario.full_policy
    world.begin()
    stop = asyncio.Event()
    async with SqlStore(path, "bench", keep_s=30 * 86400.0, snapshots=50, threaded=False) as store:
        controller = TimedController(
            name="bench",
            policy=replace(policy),
            types=world.types,
            overlay=world.overlay,
            sites=dict(world.sites),
            store=store,
            clock=VirtualClock(),
            planner=planner(),
        )
        async with controller:
            begin_cpu = cpu_s()
            life = asyncio.create_task(controller.run(stop), name="controller")
            await all_busy(store, drones)
            ramp_cpu, ready_s = (
                cpu_s() - begin_cpu,
                [d.joined_at - d.requested_at for d in store.drones.values()],
            )
            for number, slot in enumerate(world.overlay._slots.values()):
                slot.joined_s -= 7 * number % UPDATE_INTERVAL_S
            await asyncio.sleep(UPDATE_INTERVAL_S)
            tick, before = store.tick, cpu_s()
            controller.turns_s.clear()
            await asyncio.sleep(HOUR_S)
            hour_cpu, ticks = cpu_s() - before, store.tick - tick
            mean_s, worst_s = statistics.mean(controller.turns_s), max(controller.turns_s)
            busy = sum(d.state is DroneState.BUSY for d in store.drones.values())
            assert busy == drones, f"not a steady state: {busy} of {drones} busy"
            stop.set()
            await life
    world.close()
    return [
        Figure(
            f"{drones:,} drones at steady state: processor seconds per minute",
            hour_cpu / 60,
            "s/min",
        ),
        Figure("  ticks in the virtual hour", ticks, ""),
        Figure("  processor time of one tick", hour_cpu / ticks * 1000, "ms"),
        Figure("  mean tick by the clock", mean_s * 1000, "ms"),
        Figure("  slowest tick by the clock", worst_s * 1000, "ms"),
        Figure("  peak memory, simulated world included", peak_mib(), "MiB"),
        Figure(
            f"from request to usable, {drones:,} at once: the last", max(ready_s) + ramp_cpu, "s"
        ),
        Figure("  of which waiting for the next tick: median", statistics.median(ready_s), "s"),
        Figure("  processor time to bring them all up", ramp_cpu, "s"),
    ]


def main() -> None:
    drones = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    url = sys.argv[2] if len(sys.argv) > 2 else ""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory() as place:
        path = place_of(url or f"{place}/record.db", "bench")
        figures = run_virtual(play(drones, path), start_epoch=START)
        used, _ = database_of(path).size()
        tell(*figures, Figure("  record on disk", used / 2**20, "MiB"))


if __name__ == "__main__":
    main()
