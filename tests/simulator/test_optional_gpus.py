"""Jobs with an optional GPU in the world: they fill idle GPUs, start no GPU drone, and delay no job that needs one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner.model import Headroom, Policy
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.pool import PoolBehaviour
from provisioner.simulator.sites import GpuPool
from provisioner.simulator.world import Scenario, SimulationOutcome, simulate
from tests.simulator.worlds import STEADY, drone_type, small

TICK_S = 15.0
NEEDS = JobRequirements(cpus=8, memory_mib=8192)
MAYBE = replace(NEEDS, owner="bob", gpu_optional=True)
GPU = drone_type("kit", "gpu")
CPU = drone_type("kit", "cpu", gpu_milli=0, vram_mib=0, capability=0)


def played(
    jobs: list[SimulatedJob],
    *,
    cpu: bool = False,
    headroom: tuple[Headroom, ...] = (),
    **given: Any,
) -> Any:
    site = replace(
        small(gpus=4, max_drones=4, behaviour=STEADY), types=(GPU, CPU) if cpu else (GPU,)
    )
    pools = (GpuPool("gpus", 2, nodes=2), GpuPool("cpus", 2, nodes=2))[: 1 + cpu]
    site = replace(site, pools=pools, serves={"gpu": "gpus", "cpu": "cpus"})
    scenario = Scenario(
        facilities=(site,),
        jobs=tuple(sorted(jobs, key=lambda job: job.submit_s)),
        policy=Policy(idle_timeout_s=300.0, idle_fixed=True, headroom=headroom, interval_s=TICK_S),
        **{"limit_s": 6 * 3600.0, **given},
    )
    outcome = simulate(scenario)
    others = [each for each in outcome.violations if "were not done after" not in each]
    assert others == [], "all is in order but that some of them still wait for an idle GPU"
    return outcome


def optional(count: int, at_s: float = 0.0, for_s: float = 60.0) -> list[SimulatedJob]:
    return [SimulatedJob(at_s, for_s, MAYBE) for _ in range(count)]


def starts_of(outcome: SimulationOutcome, submitted_s: list[float]) -> list[float]:
    """First starts of the jobs that were submitted at these times, in their order."""
    found = dict(outcome.metrics.first_starts)
    return [found[each] for each in submitted_s]


def test_fifty_of_them_and_no_other_demand_start_no_gpu_drone() -> None:
    outcome = played(optional(50))
    assert outcome.drones == 0
    assert outcome.metrics.first_starts == []


@pytest.mark.parametrize("negotiation_s", [20.0, 0.0])
def test_with_idle_gpu_drones_they_run(negotiation_s: float) -> None:
    warm = Headroom("warm", cpus=8, memory_mib=8192, count=2, from_h=15, to_h=17)
    pool = PoolBehaviour(negotiation_s=negotiation_s)
    outcome = played(optional(50, 300.0), headroom=(warm,), pool=pool)
    assert len(outcome.metrics.first_starts) == 50, "all of them"
    assert outcome.metrics.peak["kit/gpu"] == 2, "in the drones that were warm"


@pytest.mark.parametrize("negotiation_s", [20.0, 0.0])
@pytest.mark.parametrize("count", [10, 50])
def test_headroom_stays_as_large_as_it_is_beside_them(count: int, negotiation_s: float) -> None:
    warm = Headroom("warm", cpus=8, memory_mib=8192, count=2, from_h=15, to_h=17)
    outcome = played(
        optional(count), headroom=(warm,), pool=PoolBehaviour(negotiation_s=negotiation_s)
    )
    assert (outcome.drones, outcome.metrics.peak["kit/gpu"]) == (2, 2)
    assert len(outcome.metrics.first_starts) == count, "all of them run"


def test_they_run_on_cpu_drones_where_a_site_has_some() -> None:
    outcome = played(optional(6), cpu=True)
    assert len(outcome.metrics.first_starts) == 6
    assert (outcome.metrics.peak["kit/gpu"], outcome.metrics.peak["kit/cpu"]) == (0, 4)


@pytest.mark.parametrize("negotiation_s", [20.0, 0.0])
@pytest.mark.parametrize("for_s", [320.0, 4000.0], ids=["short", "long"])
def test_they_do_not_delay_a_job_that_needs_a_gpu(negotiation_s: float, for_s: float) -> None:
    """GPUs are busy, then idle for minutes, then wanted again: the same with fifty of the others."""
    at_s = [1.0, 2.0, 3.0, 1100.5, 1501.5, 1502.5, 1503.5, 2500.5, 2501.5]
    needs = [SimulatedJob(each, 400.0, NEEDS) for each in at_s]
    pool = PoolBehaviour(negotiation_s=negotiation_s)
    alone = played(needs, pool=pool)
    others = played([*needs, *optional(50, 0.0, for_s)], pool=pool)
    for each, other_s, alone_s in zip(
        at_s, starts_of(others, at_s), starts_of(alone, at_s), strict=True
    ):
        assert other_s <= alone_s + 2 * TICK_S, (
            f"the job of {each:g} s, but for the phase of the ticks"
        )
    assert len(others.metrics.first_starts) > len(at_s), "some of the others ran meanwhile"
    assert others.drones <= alone.drones + 1
    idle_s = [each.metrics.by_site["kit"].idle for each in (others, alone)]
    assert idle_s[0] < idle_s[1], "on GPUs that would have idled"


def test_a_drone_does_not_stay_for_them() -> None:
    """A job of a minute brings a drone, which runs the others until its idle timeout and one more job."""
    brought = [SimulatedJob(1.0, 60.0, NEEDS)]
    alone, others = played(brought), played([*brought, *optional(50, 0.0, 100.0)])
    assert others.drones == alone.drones == 1
    assert others.metrics.by_site["kit"].held <= alone.metrics.by_site["kit"].held + 100.0 + 60.0
    assert 1 < len(others.metrics.first_starts) < 51
