"""GPUs that jobs share, in the simulated world: how fast they run there, and what is made of that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner.model import DroneId, DroneType, Policy, Sharing, SitePolicy, StartOrder
from provisioner.sharing import KIT_SMALL, share_milli
from provisioner.simulator.drones import SiteBehaviour
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.loop import Fixed
from provisioner.simulator.pool import PoolBehaviour
from provisioner.simulator.sites import Facility, GpuPool
from provisioner.simulator.world import Scenario, SimulationOutcome, World, simulate
from tests.simulator.worlds import drone_type, played, until

AT_ONCE = PoolBehaviour(negotiation_s=0.0, latency=Fixed(0.0))
STEADY = SiteBehaviour(boot=Fixed(30.0), check=Fixed(5.0), release=Fixed(20.0))
WHOLE = drone_type("kit", "whole")


def site(*types: DroneType, gpus: int = 8, **given: Any) -> Facility:
    """``gpus`` GPUs for each drone type, on nodes with CPUs and memory enough."""
    most = gpus * len(types)
    usual = Facility(
        policy=SitePolicy(
            "kit", max_drones=most, max_pending=most, max_starts_per_tick=most, grace_s=5.0
        ),
        types=types,
        pools=tuple(GpuPool(kind.name, gpus) for kind in types),
        serves={kind.name: kind.name for kind in types},
        behaviour=STEADY,
        latency=Fixed(0.0),
    )
    return replace(usual, **given)


def shared(sharing: Sharing, shares: int, **given: Any) -> DroneType:
    return drone_type(
        "kit", str(sharing), sharing=sharing, shares=shares, cpus=64, power_w=400.0, **given
    )


def with_drone(kind: DroneType, *jobs: SimulatedJob, **given: Any) -> Any:
    """Make a test of a script that runs in a world with one drone of a type, which takes jobs from 35 s on."""

    def test_of(script: Any) -> Any:
        async def started(world: World) -> None:
            await world.sites["kit"].start(
                [StartOrder(DroneId("d-1"), kind, idle_timeout_s=600.0, grace_s=5.0)]
            )
            await script(world)

        return played(site(kind), jobs, pool=AT_ONCE, **given)(started)

    return test_of


def heavy(
    at_s: float = 0.0, gpu_milli: int = 250, duration_s: float = 100.0, **given: Any
) -> SimulatedJob:
    return SimulatedJob(
        at_s, duration_s, JobRequirements(gpu_milli, duty_milli=1000, width_milli=1000), **given
    )


IDLER = SimulatedJob(0.0, 100.0, JobRequirements(250, duty_milli=200))
MPS_S, SLICED_S = 135.0 + 50.0 / 0.56 - 50.0, 135.0 + 50.0 / 0.31 - 50.0
SLICE_S = 100 * 2.18 * 1.48 * 1.97 / 0.91


@pytest.mark.parametrize(
    ("kind", "jobs", "done_s"),
    [
        pytest.param(
            shared(Sharing.TIME_SLICED, 4),
            [heavy(), heavy(85.0)],
            [SLICED_S, SLICED_S + 50.0],
            id="sliced",
        ),
        pytest.param(
            shared(Sharing.MPS, 4), [heavy(), heavy(85.0)], [MPS_S, MPS_S + 50.0], id="mps"
        ),
        pytest.param(shared(Sharing.MPS, 4), [IDLER] * 4, [135.0] * 4, id="jobs of little duty"),
        pytest.param(
            shared(Sharing.MIG, 7),
            [heavy(0.0, 142), heavy(85.0, 142)],
            [35.0 + SLICE_S, 85.0 + SLICE_S],
            id="mig",
        ),
        pytest.param(
            shared(Sharing.MPS, 4, gpu_milli=2000),
            [heavy()] * 2,
            [135.0] * 2,
            id="spread over two GPUs",
        ),
    ],
)
def test_jobs_on_one_gpu_slow_each_other_down_from_the_moment_they_meet(
    kind: DroneType, jobs: list[SimulatedJob], done_s: list[float]
) -> None:
    @with_drone(kind, *jobs)
    async def ran(world: World) -> None:
        await until(2000.0)
        assert [each.done_s for each in world.overlay.queued_jobs] == [
            pytest.approx(each) for each in done_s
        ]
        if kind.gpu_milli == 2000:
            assert world.metrics.energy_kwh == pytest.approx(2 * 400.0 * 100.0 / 3.6e6), (
                "two GPUs were at work"
            )

    ran()


@with_drone(
    WHOLE,
    *(SimulatedJob(at_s, 60.0, JobRequirements(owner=str(at_s))) for at_s in (0.0, 1.0, 200.0)),
)
async def test_without_negotiation_jobs_are_matched_as_they_come_and_as_slots_open(
    world: World,
) -> None:
    await until(10.0)
    classes = (await world.overlay.poll(world.types)).classes
    assert [(c.waiting, c.fresh) for c in classes] == [(1, 0), (1, 0)], "judged at once"
    await until(400.0)
    assert world.metrics.first_starts == [(0.0, 35.0), (1.0, 95.0), (200.0, 200.0)]


KIT_RUN_S = 10.56 * 60
KIT_JOBS = 414
EPOCHS_PER_S = 1.94
"""Of 8 GPUs with one job each, by KIT's table."""


def kit_burst(kind: DroneType, gpu_milli: int) -> SimulationOutcome:
    wants = JobRequirements(
        gpu_milli,
        cpus=1,
        memory_mib=1024,
        duty_milli=round(1000 * KIT_SMALL.duty),
        width_milli=round(1000 * KIT_SMALL.width),
    )
    return simulate(
        Scenario(
            facilities=(site(kind, gpus=8, behaviour=replace(STEADY, queue=Fixed(10.0))),),
            jobs=tuple(SimulatedJob(0.0, KIT_RUN_S, wants) for _ in range(KIT_JOBS)),
            policy=Policy(idle_timeout_s=60.0, interval_s=15.0),
            pool=PoolBehaviour(negotiation_s=0.0),
            limit_s=86400.0,
        )
    )


def epochs_per_s(outcome: SimulationOutcome) -> float:
    """Of the 8 GPUs while jobs wait, that is until the last has begun: those of its own wave have just begun, too."""
    starts_s = [start_s for _, start_s in outcome.metrics.first_starts]
    last_s = max(starts_s)
    done = sum(start_s < last_s - 60.0 for start_s in starts_s)
    return EPOCHS_PER_S * done * KIT_RUN_S / (last_s - min(starts_s)) / 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sharing", "shares", "published"),
    [
        (Sharing.EXCLUSIVE, 1, 1.94),
        (Sharing.TIME_SLICED, 12, 10.06),
        (Sharing.MPS, 12, 18.16),
        (Sharing.MIG, 7, 14.14),
    ],
)
def test_a_cold_burst_of_kits_small_jobs(sharing: Sharing, shares: int, published: float) -> None:
    kind = shared(sharing, shares)
    outcome = kit_burst(kind, share_milli(shares))
    assert outcome.violations == ()
    first_s = min(start_s for _, start_s in outcome.metrics.first_starts)
    assert first_s <= 10.0 + 35.0 + 15.0
    assert epochs_per_s(outcome) == pytest.approx(published, rel=0.10)
