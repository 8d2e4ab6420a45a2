"""Sites, workloads and scenarios that the stories share, and worlds played by a script in the controller's place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, TypeVar

from provisioner.model import DroneType, Policy, SitePolicy
from provisioner.simulator.drones import SiteBehaviour
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.loop import Draw, Fixed, LogNormal, Uniform, rng_for, run_virtual
from provisioner.simulator.pool import PoolBehaviour
from provisioner.simulator.sites import Facility, GpuPool
from provisioner.simulator.world import World
from tests.simulator.crashing import CrashScenario, crashes
from tests.simulator.faults import FaultyScenario, ServiceFault, ServiceFaultKind
from tests.simulator.owner_queue import Owner

T = TypeVar("T")

# ---------------------------------------------------------------------------------------------------------------
# sites

STEADY = SiteBehaviour(boot=Fixed(30.0), check=Fixed(5.0), release=Fixed(2.0))
"""Durations that are always the same."""


def drone_type(site: str, name: str, **given: Any) -> DroneType:
    """A one-GPU drone of middling size, but for the fields given."""
    usual = DroneType(site, name, gpu_milli=1000, cpus=8, memory_mib=40960, disk_mib=51200)
    return replace(usual, **{"vram_mib": 40960, "capability": 80, **given})


def small(
    name: str = "kit",
    *,
    gpus: int = 4,
    max_drones: int = 4,
    behaviour: SiteBehaviour | None = None,
    types: int = 1,
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
        behaviour=behaviour
        or SiteBehaviour(boot=Uniform(5.0, 20.0), check=Fixed(2.0), release=Fixed(1.0)),
    )


def topas(owner: Owner, *, nodes: int = 7, grace_s: float = 10.0, **given: Any) -> Facility:
    """An owner's HTCondor cluster, node by node: of 7 nodes 3 of 8 V100S, one of 8 V100 with few
    CPUs (six drones fill it), 3 of 8 A100. Drones of 1 GPU, 8 CPUs and 20 GB find room where the
    owner leaves some."""
    name = "topas"
    a100, v100 = nodes * 3 // 7, nodes // 6
    pools = (
        GpuPool("v100s", 8, nodes - a100 - v100, cpus_per_node=192, memory_mib_per_node=1 << 20),
        GpuPool("v100", 8, v100, cpus_per_node=48, memory_mib_per_node=384 << 10),
        GpuPool("a100", 8, a100, cpus_per_node=192, memory_mib_per_node=1 << 20),
    )
    usual = Facility(
        policy=SitePolicy(
            name,
            max_drones=8 * nodes,
            max_pending=8 * nodes,
            max_starts_per_tick=8 * nodes,
            grace_s=grace_s,
        ),
        types=tuple(
            drone_type(name, pool.name, memory_mib=20480, vram_mib=vram_mib, capability=capability)
            for pool, vram_mib, capability in zip(
                pools, (32768, 32768, 40960), (70, 70, 80), strict=True
            )
            if pool.nodes
        ),
        pools=tuple(pool for pool in pools if pool.nodes),
        serves={pool.name: pool.name for pool in pools},
        behaviour=SiteBehaviour(boot=Uniform(20.0, 40.0), check=Fixed(5.0), release=Fixed(2.0)),
        owner=owner,
        reports_nodes=True,
    )
    return replace(usual, **given)


# -----------------------------------------------------------------------------------------------------------
# workloads


@dataclass(frozen=True, slots=True)
class Shape:
    """Jobs that look alike; ``weight`` is their share of a mix."""

    wants: JobRequirements
    duration: Draw
    weight: float = 1.0


PLAIN = Shape(
    JobRequirements(gpu_milli=1000, cpus=2, memory_mib=8192), LogNormal(600.0, 1.0, 4 * 3600.0), 6.0
)
IMPOSSIBLE = Shape(JobRequirements(capability=990, owner="dave"), Fixed(60.0))
"""Asks for a compute capability that no drone type has."""


def burst(
    count: int, shape: Shape = PLAIN, *, at_s: float = 0.0, seed: int = 0
) -> tuple[SimulatedJob, ...]:
    """``count`` jobs at once."""
    rng = Random(f"{seed}/burst/{at_s}")
    return tuple(SimulatedJob(at_s, shape.duration.draw(rng), shape.wants) for _ in range(count))


def poisson_mix(
    shapes: Sequence[Shape], *, per_hour: float, span_s: float, seed: int, from_s: float = 0.0
) -> tuple[SimulatedJob, ...]:
    """Jobs of ``shapes`` that arrive independently of one another, ``per_hour`` on average."""
    rng = Random(f"{seed}/poisson")
    weights = [shape.weight for shape in shapes]
    jobs, at_s = [], from_s
    while (at_s := at_s + rng.expovariate(per_hour / 3600.0)) < from_s + span_s:
        shape = rng.choices(shapes, weights)[0]
        jobs.append(SimulatedJob(at_s, shape.duration.draw(rng), shape.wants))
    return tuple(jobs)


def unreliable_network(
    seed: int, *, chance: float = 0.3, late_s: float = 40.0
) -> tuple[ServiceFault, ...]:
    """Orders lost, late and doubled, replies lost and torn: three kinds by seed, and one trouble with looks."""
    rng = rng_for(seed, "rough wire")
    acts = [
        ServiceFault(ServiceFaultKind.ORDER_LOST, verb="act"),
        ServiceFault(ServiceFaultKind.ORDER_HANGS, verb="act"),
        ServiceFault(ServiceFaultKind.REPLY_LOST, verb="act"),
        ServiceFault(ServiceFaultKind.REPLY_HANGS, verb="act"),
        ServiceFault(ServiceFaultKind.REPLY_TORN, verb="start", amount=0.5),
        ServiceFault(ServiceFaultKind.LATE, verb="act", amount=rng.uniform(1.0, late_s)),
        ServiceFault(ServiceFaultKind.TWICE, verb="act", amount=rng.uniform(1.0, late_s)),
        ServiceFault(ServiceFaultKind.SLOW, verb="act", amount=rng.uniform(0.5, late_s)),
        ServiceFault(ServiceFaultKind.DOWN, verb="act"),
    ]
    looks = [
        ServiceFault(ServiceFaultKind.DOWN, verb="poll"),
        ServiceFault(ServiceFaultKind.HANG, verb="poll"),
        ServiceFault(ServiceFaultKind.SLOW, verb="poll", amount=rng.uniform(0.5, 15.0)),
        ServiceFault(ServiceFaultKind.BUG, verb="poll"),
    ]
    chosen = (*rng.sample(acts, 3), rng.choice(looks))
    return tuple(replace(fault, chance=rng.uniform(0.3, 1.0) * chance) for fault in chosen)


# -----------------------------------------------------------------------------------------------------------
# scenarios

SHORT = Shape(JobRequirements(), Uniform(20.0, 90.0))
BRISK = Policy(idle_timeout_s=60.0, slot_max_age_s=120.0)
"""As an operator would set it for jobs of a minute."""


def calm(
    jobs: tuple[SimulatedJob, ...] | None = None, *, seed: int = 0, gpus: int = 4
) -> CrashScenario:
    """One site, twelve short jobs, nothing goes wrong."""
    return CrashScenario(
        facilities=(small(gpus=gpus, max_drones=gpus),),
        jobs=burst(12, SHORT, seed=seed) if jobs is None else jobs,
        seed=seed,
        policy=replace(BRISK, interval_s=10.0),
        limit_s=4 * 3600.0,
    )


def rough(seed: int) -> CrashScenario:
    """Two small sites, twelve jobs, a bad wire, three crashes; everything else by seed."""
    rng = rng_for(seed, "rough")
    queue: Draw = rng.choice([Fixed(0.0), Uniform(0.0, 30.0)])
    behaviour = SiteBehaviour(
        queue=queue, boot=Uniform(2.0, 30.0), check=Fixed(2.0), release=Uniform(0.5, 10.0)
    )
    kit = small("kit", gpus=4, max_drones=rng.randint(2, 4), behaviour=behaviour)
    hut = replace(
        small("hut", gpus=2, max_drones=2),
        retain_finished_s=rng.choice([0.0, 20.0, 3600.0]),
        queues=rng.random() < 0.5,
    )
    return CrashScenario(
        facilities=(replace(kit, retain_finished_s=rng.choice([0.0, 20.0, 3600.0])), hut),
        jobs=burst(8, SHORT, seed=seed) + burst(4, SHORT, at_s=rng.uniform(50.0, 250.0), seed=seed),
        seed=seed,
        policy=replace(BRISK, max_drones=rng.randint(3, 6), interval_s=10.0),
        pool=PoolBehaviour(lease_s=30.0),
        service_faults=unreliable_network(seed),
        crashes=crashes(seed, 3, furthest=50, acts_only=rng.random() < 0.8),
        limit_s=2 * 3600.0,
    )


# ------------------------------------------------------------------------------------ in the place
# of the controller


def in_world(
    script: Callable[[World], Awaitable[T]],
    facilities: Sequence[Facility],
    jobs: Sequence[SimulatedJob] = (),
    **given: Any,
) -> T:
    """Run a script, in the place of a controller, in a world of its own."""

    async def play() -> T:
        world = World(FaultyScenario(tuple(facilities), tuple(jobs), **{"seed": 7, **given}))
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
