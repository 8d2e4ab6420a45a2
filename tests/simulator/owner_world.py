"""An owner's cluster with our drones as backfill: the same world, but for who chooses the drones that make room.

Its jobs are made from a series, which says how many GPUs were busy or asked for, and when; it knows
no jobs. A step up by n is n GPUs' worth of new jobs, of sizes drawn from 1, 2, 4 and 8, the last
cut to what is left; a step down by n ends jobs of n GPUs in all, drawn from those that run and are
not larger than what is still to end. Where all that run are larger, the rest is carried over to the
next step down. So the sum of the jobs follows the series, at most seven GPUs above it. CPUs and RAM
are drawn per job: no source has them. What a job waits in the simulation comes on top.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
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
from tests.simulator.owner_queue import Owner, OwnerJob
from tests.simulator.worlds import topas

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


def owned(
    seed: int, load: OwnerLoadSeries, chooser: Chooser, *, site_waits: bool = True
) -> CrashScenario:
    """The world of a seed. ``load`` is the owner's, over :data:`SPAN_S`, for a cluster of ``8 * nodes_of(seed)`` GPUs.

    Grants, pace of the site and the overlay's jobs are drawn; nothing but what ``chooser`` says
    depends on it. ``site_waits``: the site itself preempts only for jobs that have waited for two
    ticks, the grace and 10 s more.
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
    owner_gpu_s = sum(
        job.gpus * min(job.duration_s, max(0.0, SPAN_S - job.submit_s)) for job in jobs
    )
    left_gpu_s = (
        max(0.2, 1.0 - owner_gpu_s / (SPAN_S * nodes * GPUS_PER_NODE))
        * SPAN_S
        * nodes
        * GPUS_PER_NODE
    )
    return CrashScenario(
        facilities=(
            topas(owner, nodes=nodes, grace_s=grace_s, reports_claims=chooser is Chooser.PLANNER),
        ),
        jobs=_work(rng, 0.8 * left_gpu_s),
        seed=seed,
        policy=Policy(idle_timeout_s=120.0, interval_s=TICK_S, active_interval_s=TICK_S),
        pool=PoolBehaviour(negotiation_s=20.0),
        limit_s=6 * SPAN_S,
    )


def waits_alone(scenario: CrashScenario) -> list[OwnerWait]:
    """What the owner's jobs wait in the same world if there never is a drone: his own cluster's doing."""

    async def play() -> list[OwnerWait]:
        world = World(replace(scenario, jobs=()))
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


# ------------------------------------------------------------------------------------------------
# jobs of a series

SIZES = {1: 5, 2: 2, 4: 2, 8: 4}
"""GPUs of a job, and how many of 13 jobs are so: most jobs are small, and most GPUs are in large ones."""
LEAST_S = 60.0
"""No job is shorter."""


def part_of(
    load: OwnerLoadSeries, rng: Random, *, span_s: float, per_hour: float = 15.0
) -> OwnerLoadSeries:
    """``span_s`` from somewhere in it, played so fast (up to 8 times) that about ``per_hour`` steps
    come. Quiet parts, in which the owner never asks for a quarter of the cluster more, are passed
    over where others are."""
    pace = len(load.steps) / (load.span_s / 3600.0)
    faster = min(8.0, max(1.0, per_hour / pace))
    steps: tuple[tuple[float, int], ...] = ()
    for _ in range(16):
        from_s = rng.uniform(0.0, load.span_s - span_s * faster)
        until_s = from_s + span_s * faster
        before = [gpus for at_s, gpus in load.steps if at_s <= from_s]
        inside = [
            ((at_s - from_s) / faster, gpus) for at_s, gpus in load.steps if from_s < at_s < until_s
        ]
        steps = ((0.0, before[-1] if before else 0), *inside)
        if sum(max(0, now - last) for (_, last), (_, now) in pairwise(steps)) >= load.gpus / 4:
            break
    return OwnerLoadSeries(load.name, load.gpus, steps)


def trace_file(root: Path) -> Path | None:
    """The owner-load trace, where it is: in the directory that ``PROVISIONER_TRACES`` names, else
    in ``shared/traces`` beside the project's ``root``. No part of the project: it has a licence of
    its own."""
    place = os.environ.get("PROVISIONER_TRACES")
    path = (
        Path(place) if place else root.parent / "shared" / "traces"
    ) / "owner_load_public.csv.gz"
    return path if path.is_file() else None


def made_load(seed: int, *, gpus: int, span_s: float, per_hour: float = 12.0) -> OwnerLoadSeries:
    """A series of the same kind: steps that arrive independently, ``per_hour`` on average, mostly
    by 1, 8, 4, 2 and 16 GPUs, up as often as down, drawn towards half of the cluster."""
    rng = Random(f"{seed}/owner load")
    now_s, wanted = 0.0, rng.randint(0, gpus // 2)
    steps = [(0.0, wanted)]
    while (now_s := now_s + rng.expovariate(per_hour / 3600.0)) < span_s:
        size = rng.choices((1, 2, 4, 8, 16), (35, 15, 15, 25, 10))[0]
        up = rng.random() < 1.0 - wanted / gpus
        wanted = min(gpus, wanted + size) if up else max(0, wanted - size)
        steps.append((now_s, wanted))
    return OwnerLoadSeries("made", gpus, tuple(steps))


def owner_jobs(
    load: OwnerLoadSeries,
    seed: int,
    *,
    until_s: float,
    cpus: Sequence[int] = (1, 4, 8, 12),
    mib: Sequence[int] = (4096, 20480),
) -> tuple[OwnerJob, ...]:
    """The jobs behind a series. Per GPU a job has one of ``cpus`` and up to ``mib[-1]`` of RAM;
    what runs at the end of the series ends ``until_s`` at the latest."""
    rng = Random(f"{seed}/owner jobs")
    jobs: list[OwnerJob] = []
    running: list[tuple[float, int]] = []
    wanted, debt = 0, 0

    def end(job: tuple[float, int], at_s: float) -> None:
        begin_s, gpus = job
        each, memory_mib = rng.choice(cpus), rng.randint(mib[0], mib[-1])
        jobs.append(
            OwnerJob(begin_s, max(LEAST_S, at_s - begin_s), gpus, gpus * each, gpus * memory_mib)
        )

    for at_s, gpus in load.steps:
        running.extend((at_s, size) for size in _sizes(gpus - wanted, rng))
        debt += max(0, wanted - gpus)
        wanted = gpus
        while small := [job for job in running if job[1] <= debt]:
            chosen = rng.choice(small)
            running.remove(chosen)
            debt -= chosen[1]
            end(chosen, at_s)
    for job in running:
        end(job, max(job[0], until_s))
    return tuple(sorted(jobs, key=lambda job: job.submit_s))


def _sizes(gpus: int, rng: Random) -> list[int]:
    """Jobs that want ``gpus`` together."""
    found = []
    while gpus > 0:
        size = min(gpus, rng.choices(tuple(SIZES), tuple(SIZES.values()))[0])
        found.append(size)
        gpus -= size
    return found
