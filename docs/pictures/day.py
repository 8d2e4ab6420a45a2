"""The record of a busy day: the controller in virtual time, four sites, an owner, users of several kinds.

It is what `provisioner simulate` plays, with the record in a file. The sites of
site_configs/simulation are joined by a small site whose GPUs are shared.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import cos, tau
from pathlib import Path
from random import Random

import yaml

from provisioner.config.loading import load
from provisioner.model import Policy, Sharing
from provisioner.simulator.drones import HardwareFault, HardwareFaultKind, SiteBehaviour
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.loop import Draw, Fixed, LogNormal, Uniform, run_virtual
from provisioner.simulator.sites import Facility
from provisioner.simulator.world import Simulation, SimulationOutcome, World, quiet
from provisioner.simulator.world_file import world_of
from provisioner.store.writer import SqlStore
from tests.simulator.faults import FaultyScenario, ServiceFault, ServiceFaultKind
from tests.simulator.owner_queue import Owner, OwnerJob
from tests.simulator.worlds import drone_type, small

SITES = Path(__file__).parents[2] / "site_configs" / "simulation"
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
CONTROLLER, BIRTH = "etp", "k7f2"
GIB = 1024

USERS: tuple[tuple[float, JobRequirements, Draw], ...] = (
    (
        14.0,
        JobRequirements(
            gpu_milli=200, cpus=1, memory_mib=4 * GIB, vram_mib=6 * GIB, owner="cms/ariane",
            duty_milli=180, width_milli=200,
        ),
        LogNormal(2400.0, 0.7, 6 * HOUR_S),
    ),
    (
        9.0,
        JobRequirements(
            cpus=4, memory_mib=16 * GIB, vram_mib=24 * GIB, owner="etp/lena",
            duty_milli=850, width_milli=900,
        ),
        LogNormal(5400.0, 0.8, 20 * HOUR_S),
    ),
    (
        5.0,
        JobRequirements(
            cpus=4, memory_mib=16 * GIB, vram_mib=20 * GIB, owner="theory/kim",
            duty_milli=40, width_milli=100,
        ),
        Uniform(1800.0, 4 * HOUR_S),
    ),
    (
        0.6,
        JobRequirements(
            gpu_milli=4000, cpus=32, memory_mib=100 * GIB, vram_mib=30 * GIB, owner="atlas/jonas",
            duty_milli=900, width_milli=900,
        ),
        Uniform(2 * HOUR_S, 9 * HOUR_S),
    ),
    (
        0.8,
        JobRequirements(
            cpus=8, memory_mib=32 * GIB, vram_mib=80 * GIB, capability=90, owner="belle2/mei",
            duty_milli=700, width_milli=900,
        ),
        Uniform(HOUR_S, 6 * HOUR_S),
    ),
    (0.05, JobRequirements(capability=120, owner="etp/nils"), Fixed(600.0)),
)  # fmt: skip
"""Weight, requirements and run time of the jobs of each user."""


def jobs(random: Random) -> Iterator[SimulatedJob]:
    """Yield jobs by the hour: four times as many in the afternoon as in the night."""
    weights = [weight for weight, *_ in USERS]
    at_s = 0.0
    while (at_s := at_s + random.expovariate(1.0)) < DAY_S:
        load = 0.25 + 0.75 * (1 - cos(tau * (at_s / DAY_S - 0.2))) / 2
        if random.random() < load * 60 / HOUR_S:
            _, wants, runs = random.choices(USERS, weights)[0]
            yield SimulatedJob(at_s, runs.draw(random), wants)


def owner(random: Random) -> Owner:
    """Return the owner's jobs, most of them by day."""
    found = []
    for hour in range(24):  # most of the 56 GPUs in the afternoon
        for _ in range(round(15 - 12 * cos(tau * (hour - 3) / 24))):
            begin_s = (hour + random.random()) * HOUR_S
            found.append(OwnerJob(begin_s, random.uniform(0.5, 4.0) * HOUR_S, cpus=8))
    return Owner(tuple(found), preempts_after_s=60.0)


def facilities(scratch: Path, random: Random) -> tuple[Facility, ...]:
    world = yaml.safe_load((SITES / "world.yaml").read_text())
    del world["sites"]["topas"]["owner"]
    for nodes in world["sites"]["topas"]["nodes"].values():
        nodes |= {"cpus": 192, "memory": "1 TiB"}
    world["sites"]["topas"] |= {
        "reports_nodes": True,
        "failures": {"dies_young": 0.03, "never_joins": 0.01},
    }
    path = scratch / "world.yaml"
    path.write_text(yaml.safe_dump(world))
    plan = world_of(load(SITES / "provisioner.yaml", connects=False), path, span_s=DAY_S)
    sites = {facility.name: facility for facility in plan.facilities}
    kinds = tuple(replace(kind, price=kind.price / 2) for kind in sites["topas"].types)
    sites["topas"] = replace(sites["topas"], owner=owner(random), types=kinds)
    horeka = sites["horeka"]
    whole_node = drone_type(
        "horeka", "a100x4", gpu_milli=4000, cpus=32, memory_mib=400 * GIB, gpu_model="A100",
        walltime_s=3 * DAY_S, price=5.0, max_drones=4,
    )  # fmt: skip
    sites["horeka"] = replace(
        horeka, types=(*horeka.types, whole_node), serves={**horeka.serves, "a100x4": "a100"}
    )
    behaviour = SiteBehaviour(boot=Uniform(20.0, 90.0), check=Fixed(5.0), eats_jobs=0.02)
    shared = drone_type("nemo", "l40s", sharing=Sharing.MPS, shares=5, gpu_model="L40S")
    nemo = small("nemo", gpus=8, max_drones=8, behaviour=behaviour)
    pools = tuple(replace(pool, name="l40s") for pool in nemo.pools)
    sites["nemo"] = replace(
        nemo, types=(shared,), pools=pools, serves={"l40s": "l40s"}, reports_nodes=True
    )
    return tuple(sites.values())


class RecordedDay(Simulation):
    """A simulation whose controller writes a file."""

    def __init__(self, scenario: FaultyScenario, path: Path) -> None:
        super().__init__(scenario)
        self.path = path

    async def control(self, world: World, over: asyncio.Task[None]) -> None:
        stop = asyncio.Event()
        store = SqlStore(self.path, CONTROLLER, 1e9, 10, threaded=False, birth=BIRTH)
        life = asyncio.create_task(
            self.serve(world, stop, store, world.overlay, dict(world.sites)), name="controller"
        )
        await asyncio.wait({life, over}, return_when=asyncio.FIRST_COMPLETED)
        await self.end(life, stop)


def write(path: Path, ends_at: float) -> SimulationOutcome:
    """Write the record of the 24 hours before ``ends_at`` (Unix time) to ``path``; it takes minutes."""
    random = Random("day")
    with tempfile.TemporaryDirectory() as scratch:
        sites = facilities(Path(scratch), random)
    scenario = FaultyScenario(
        sites,
        tuple(jobs(random)),
        policy=Policy(idle_timeout_s=300.0, max_drones=124, max_gpu_milli=124_000),
        hardware_faults=(
            HardwareFault(HardwareFaultKind.NODE_FAILS, 9 * HOUR_S, 2 * HOUR_S, "topas", 1),
        ),
        service_faults=(
            ServiceFault(ServiceFaultKind.DOWN, "gridka", "poll", 13 * HOUR_S, 14 * HOUR_S),
            ServiceFault(ServiceFaultKind.DENIED, "horeka", "*", DAY_S - 2400.0),
        ),
        least_s=DAY_S,
        limit_s=DAY_S,
    )

    def play() -> SimulationOutcome:
        with quiet():
            return run_virtual(RecordedDay(scenario, path).run(), start_epoch=ends_at - DAY_S)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(play).result()
