"""Scenarios that the stories share."""

from __future__ import annotations

from dataclasses import replace

from provisioner.model import Policy
from provisioner.simulator.drones import SiteBehaviour
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.loop import Draw, Fixed, Uniform, rng_for
from provisioner.simulator.pool import PoolBehaviour
from provisioner.simulator.world import Scenario
from tests.simulator.crashing import CrashScenario, crashes
from tests.simulator.facilities import cloud, hpc, institute, small
from tests.simulator.workload import Shape, burst, day, unreliable_network

SHORT = Shape(JobRequirements(), Uniform(20.0, 90.0))
BRISK = Policy(idle_timeout_s=60.0, slot_max_age_s=120.0)
"""As an operator would set it for jobs of a minute."""


def calm(jobs: tuple[SimulatedJob, ...] | None = None, *, seed: int = 0, gpus: int = 4) -> CrashScenario:
    """One site, twelve short jobs, nothing goes wrong."""
    return CrashScenario(
        facilities=(small(gpus=gpus, max_drones=gpus),),
        jobs=burst(12, SHORT, seed=seed) if jobs is None else jobs,
        seed=seed,
        policy=BRISK,
        interval_s=10.0,
        limit_s=4 * 3600.0,
    )


def rough(seed: int) -> CrashScenario:
    """Two small sites, twelve jobs, a bad wire, three crashes; everything else by seed."""
    rng = rng_for(seed, "rough")
    queue: Draw = rng.choice([Fixed(0.0), Uniform(0.0, 30.0)])
    behaviour = SiteBehaviour(queue=queue, boot=Uniform(2.0, 30.0), check=Fixed(2.0), release=Uniform(0.5, 10.0))
    kit = small("kit", gpus=4, max_drones=rng.randint(2, 4), behaviour=behaviour)
    hut = replace(
        small("hut", gpus=2, max_drones=2), retain_finished_s=rng.choice([0.0, 20.0, 3600.0]), queues=rng.random() < 0.5
    )
    return CrashScenario(
        facilities=(replace(kit, retain_finished_s=rng.choice([0.0, 20.0, 3600.0])), hut),
        jobs=burst(8, SHORT, seed=seed) + burst(4, SHORT, at_s=rng.uniform(50.0, 250.0), seed=seed),
        seed=seed,
        policy=replace(BRISK, max_drones=rng.randint(3, 6)),
        interval_s=10.0,
        pool=PoolBehaviour(lease_s=30.0),
        service_faults=unreliable_network(seed),
        crashes=crashes(seed, 3, furthest=50, acts_only=rng.random() < 0.8),
        limit_s=2 * 3600.0,
    )


def busy_day(*, seed: int = 1, jobs: int = 4000) -> Scenario:
    """Three sites of three kinds, a day's jobs."""
    return Scenario(
        facilities=(institute(), cloud(), hpc()),
        jobs=day(count=jobs, seed=seed),
        seed=seed,
        policy=Policy(idle_timeout_s=300.0),
        interval_s=60.0,
        active_interval_s=20.0,
        pool=PoolBehaviour(negotiation_s=60.0),
        limit_s=3 * 86400.0,
    )
