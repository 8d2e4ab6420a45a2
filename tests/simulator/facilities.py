"""Ready-made sites to simulate: a small one for tests, and three of the kinds that exist."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from provisioner.model import DroneType, SitePolicy
from provisioner.simulator.drones import SiteBehaviour
from provisioner.simulator.jobs import SimulatedJob
from provisioner.simulator.loop import Fixed, LogNormal, Uniform, run_virtual
from provisioner.simulator.sites import Facility, GpuPool
from provisioner.simulator.world import Scenario, World
from tests.simulator.owner_queue import Owner

T = TypeVar("T")
STEADY = SiteBehaviour(boot=Fixed(30.0), check=Fixed(5.0), release=Fixed(2.0))
"""Durations that are always the same."""


def drone_type(site: str, name: str, **given: Any) -> DroneType:
    """A one-GPU drone of middling size, but for the fields given."""
    usual = DroneType(site, name, gpu_milli=1000, cpus=8, memory_mib=40960, disk_mib=51200)
    return replace(usual, **{"vram_mib": 40960, "capability": 80, **given})


def small(
    name: str = "kit", *, gpus: int = 4, max_drones: int = 4, behaviour: SiteBehaviour | None = None, types: int = 1
) -> Facility:
    """``gpus`` GPUs in two nodes, no owner, quick to boot."""
    policy = SitePolicy(
        name,
        max_drones=max_drones,
        max_pending=max_drones,
        max_starts_per_tick=max_drones,
        grace_s=5.0,
        order_confirm_s=120.0,
    )
    return Facility(
        policy=policy,
        types=tuple(drone_type(name, f"gpu{n}" if n else "gpu") for n in range(types)),
        pools=(GpuPool("gpus", -(-gpus // 2), nodes=2),),
        behaviour=behaviour or SiteBehaviour(boot=Uniform(5.0, 20.0), check=Fixed(2.0), release=Fixed(1.0)),
    )


def institute() -> Facility:
    """An institute's own HTCondor cluster: 32 + 24 GPUs, quick, but the owner comes first."""
    name = "topas"
    return Facility(
        policy=SitePolicy(name, max_drones=56, max_pending=30, max_starts_per_tick=20),
        types=(
            drone_type(name, "v100s", vram_mib=32768, capability=70, gpu_model="V100S"),
            drone_type(name, "a100", gpu_model="A100-40", price=1.2),
        ),
        pools=(GpuPool("v100s", 8, nodes=4), GpuPool("a100", 8, nodes=3)),
        serves={"v100s": "v100s", "a100": "a100"},
        behaviour=SiteBehaviour(queue=Uniform(10.0, 80.0), boot=Uniform(40.0, 110.0), release=Fixed(20.0)),
    )


def cloud() -> Facility:
    """An OpenStack cloud: 12 GPUs, slow to boot, refuses what does not fit now."""
    name = "cloud"
    return Facility(
        policy=SitePolicy(name, max_drones=12, max_pending=12, max_starts_per_tick=6, price=2.0),
        types=(drone_type(name, "l40s", vram_mib=46068, capability=89, gpu_model="L40S"),),
        pools=(GpuPool("l40s", 4, nodes=3),),
        behaviour=SiteBehaviour(boot=Uniform(180.0, 300.0), release=Fixed(20.0)),
        queues=False,
    )


def hpc() -> Facility:
    """A Slurm machine: long queues, large GPUs, a walltime, no word of what is free."""
    name = "horeka"
    return Facility(
        policy=SitePolicy(name, max_drones=56, max_pending=24, max_starts_per_tick=10, queue_when_full=True, price=1.5),
        types=(
            drone_type(name, "a100", gpu_model="A100-40", walltime_s=86400.0),
            drone_type(name, "h100", gpu_model="H100", vram_mib=95830, capability=90, walltime_s=86400.0, max_drones=8),
        ),
        pools=(GpuPool("a100", 4, nodes=12), GpuPool("h100", 4, nodes=2)),
        serves={"a100": "a100", "h100": "h100"},
        behaviour=SiteBehaviour(
            queue=LogNormal(900.0, 1.2, 6 * 3600.0), boot=Uniform(40.0, 110.0), release=Fixed(20.0)
        ),
        reports_free=False,
    )


def topas(owner: Owner, *, nodes: int = 7, grace_s: float = 10.0, **given: Any) -> Facility:
    """An owner's HTCondor cluster, node by node: of 7 nodes 3 of 8 V100S, one of 8 V100 with few CPUs (six drones fill
    it), 3 of 8 A100. Drones of 1 GPU, 8 CPUs and 20 GB find room where the owner leaves some."""
    name = "topas"
    a100, v100 = nodes * 3 // 7, nodes // 6
    pools = (
        GpuPool("v100s", 8, nodes - a100 - v100, cpus_per_node=192, memory_mib_per_node=1 << 20),
        GpuPool("v100", 8, v100, cpus_per_node=48, memory_mib_per_node=384 << 10),
        GpuPool("a100", 8, a100, cpus_per_node=192, memory_mib_per_node=1 << 20),
    )
    usual = Facility(
        policy=SitePolicy(
            name, max_drones=8 * nodes, max_pending=8 * nodes, max_starts_per_tick=8 * nodes, grace_s=grace_s
        ),
        types=tuple(
            drone_type(name, pool.name, memory_mib=20480, vram_mib=vram_mib, capability=capability)
            for pool, vram_mib, capability in zip(pools, (32768, 32768, 40960), (70, 70, 80), strict=True)
            if pool.nodes
        ),
        pools=tuple(pool for pool in pools if pool.nodes),
        serves={pool.name: pool.name for pool in pools},
        behaviour=SiteBehaviour(boot=Uniform(20.0, 40.0), check=Fixed(5.0), release=Fixed(2.0)),
        owner=owner,
        reports_nodes=True,
    )
    return replace(usual, **given)


def in_world(
    script: Callable[[World], Awaitable[T]],
    facilities: Sequence[Facility],
    jobs: Sequence[SimulatedJob] = (),
    **given: Any,
) -> T:
    """Run a script, in the place of a controller, in a world of its own."""

    async def play() -> T:
        world = World(Scenario(tuple(facilities), tuple(jobs), **{"seed": 7, **given}), start_epoch=0.0)
        world.begin()
        return await script(world)

    return run_virtual(play())


def played(
    facility: Facility, jobs: Sequence[SimulatedJob] = (), **given: Any
) -> Callable[[Callable[[World], Awaitable[None]]], Callable[[], None]]:
    """Make a test of a script that runs in a world with one site."""

    def test_of(script: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
        def test() -> None:
            in_world(script, [facility], jobs, **given)

        return test

    return test_of


async def until(at_s: float) -> None:
    """Let virtual time pass until ``at_s``."""
    await asyncio.sleep(at_s - asyncio.get_running_loop().time())
