"""An owner's cluster with our drones as backfill: the same world, but for who chooses the drones that make room."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from random import Random

from provisioner.model import Policy
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.loop import LogNormal, rng_for, run_virtual
from provisioner.simulator.owner import VictimRule
from provisioner.simulator.pool import PoolBehaviour
from provisioner.simulator.results import OwnerWait
from provisioner.simulator.traces import OwnerLoadSeries
from provisioner.simulator.world import World
from tests.simulator.crashing import CrashScenario
from tests.simulator.facilities import topas
from tests.simulator.owner_jobs import made_load, owner_jobs, part_of
from tests.simulator.owner_queue import Owner

SPAN_S = 3600.0
"""How long the owner's jobs come."""
TICK_S = 30.0
GPUS_PER_NODE = 8


class Chooser(StrEnum):
    """Who says which drones leave."""

    PLANNER = "planner"
    """Ours, who sees the owner's waiting jobs; what it does not do in time, the site does, youngest first."""
    YOUNGEST = "youngest"
    """The site alone, at once."""
    RANDOM = "random"


def nodes_of(seed: int) -> int:
    """How many nodes the cluster of a seed has: 4 to 7."""
    return rng_for(seed, "owned nodes").randint(4, 7)


def load_of(seed: int, loads: Mapping[str, OwnerLoadSeries] | None = None) -> OwnerLoadSeries:
    """The owner's load of a seed: a part of one of ``loads``, or, without any, one of the same kind that is made."""
    gpus, rng = GPUS_PER_NODE * nodes_of(seed), rng_for(seed, "owned load")
    if loads is None:
        return made_load(seed, gpus=gpus, span_s=SPAN_S)
    return part_of(loads[rng.choice(sorted(loads))], rng, span_s=SPAN_S).scaled(gpus)


def owned(seed: int, load: OwnerLoadSeries, chooser: Chooser, *, site_waits: bool = True) -> CrashScenario:
    """The world of a seed. ``load`` is the owner's, over :data:`SPAN_S`, for a cluster of ``8 * nodes_of(seed)`` GPUs.

    Grants, pace of the site and the overlay's jobs are drawn; nothing but what ``chooser`` says depends on it.
    ``site_waits``: the site itself preempts only for jobs that have waited for two ticks, the grace and 10 s more.
    """
    rng, nodes = rng_for(seed, "owned"), nodes_of(seed)
    grace_s = rng.choice((10.0, 20.0))
    jobs = owner_jobs(load, seed, until_s=SPAN_S)
    owner = Owner(
        jobs,
        negotiation_s=rng.choice((20.0, 30.0, 60.0)),
        preempts_after_s=2 * TICK_S + grace_s + 10.0 if site_waits else 0.0,
        grace_s=grace_s,
        victim=VictimRule.RANDOM if chooser is Chooser.RANDOM else VictimRule.YOUNGEST,
        pslot_preemption=True,
    )
    owner_gpu_s = sum(job.gpus * min(job.duration_s, max(0.0, SPAN_S - job.submit_s)) for job in jobs)
    left_gpu_s = max(0.2, 1.0 - owner_gpu_s / (SPAN_S * nodes * GPUS_PER_NODE)) * SPAN_S * nodes * GPUS_PER_NODE
    return CrashScenario(
        facilities=(topas(owner, nodes=nodes, grace_s=grace_s, reports_claims=chooser is Chooser.PLANNER),),
        jobs=_work(rng, 0.8 * left_gpu_s),
        seed=seed,
        policy=Policy(idle_timeout_s=120.0),
        interval_s=TICK_S,
        active_interval_s=TICK_S,
        pool=PoolBehaviour(negotiation_s=20.0),
        limit_s=6 * SPAN_S,
    )


def waits_alone(scenario: CrashScenario) -> list[OwnerWait]:
    """What the owner's jobs wait in the same world if there never is a drone: his own cluster's doing."""

    async def play() -> list[OwnerWait]:
        world = World(replace(scenario, jobs=()), start_epoch=0.0)
        world.begin()
        await asyncio.sleep(scenario.limit_s)
        world.close()
        return world.metrics.owner_waits

    return run_virtual(play())


def _work(rng: Random, gpu_s: float) -> tuple[SimulatedJob, ...]:
    """Jobs of 1 GPU for so many GPU-seconds: a third of them there from the beginning, the others come evenly."""
    duration = LogNormal(rng.choice((180.0, 360.0)), 1.0, 1500.0)
    shaped = JobRequirements(gpu_milli=1000, cpus=4, memory_mib=8192)
    careful = rng.choice((0.0, 0.3))
    jobs: list[SimulatedJob] = []
    while gpu_s > 0:
        submit_s = 0.0 if rng.random() < 1 / 3 else rng.uniform(0.0, 0.75 * SPAN_S)
        lasts_s, checkpoint_s = duration.draw(rng), 180.0 if rng.random() < careful else 0.0
        jobs.append(SimulatedJob(submit_s, lasts_s, shaped, checkpoint_s))
        gpu_s -= lasts_s
    return tuple(jobs)
