"""The reference rules of the benchmarks do what their sources say, in small worlds of the same simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from benchmarks.deciding.clairvoyant import schedule
from benchmarks.deciding.cobald import CORES, Cobald
from benchmarks.deciding.rule import Rule
from benchmarks.deciding.worlds import POOL, UNLIMITED, Place
from provisioner.controller.actuation import OWN_TIMEOUT_FACTOR, OWN_TIMEOUT_MORE_S
from provisioner.model import DroneType, Policy, SitePolicy
from provisioner.simulator.drones import SiteBehaviour
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.loop import AT_ONCE, Draw, Fixed, LogNormal
from provisioner.simulator.sites import Facility, GpuPool
from provisioner.simulator.world import START_EPOCH, Scenario, simulate
from tests.simulator.owner_queue import OwnerSteps

HOUR_S = 3600.0
NEVER_S = 1e7


def site(name: str, gpus: int, *, queue: Draw = AT_ONCE, taken: int = 0) -> Facility:
    """One-GPU drones that boot in a minute; the owner has ``taken`` GPUs for ever."""
    return Facility(
        policy=SitePolicy(name, max_drones=UNLIMITED, max_pending=UNLIMITED, max_starts_per_tick=UNLIMITED),
        types=(DroneType(name, "gpu", gpu_milli=1000, cpus=8, memory_mib=20480, disk_mib=10240, vram_mib=16384),),
        pools=(GpuPool("gpus", 1, gpus),),
        owner=OwnerSteps(((0.0, taken),), "gpus") if taken else None,
        behaviour=SiteBehaviour(queue=queue, boot=Fixed(60.0), check=AT_ONCE, release=Fixed(20.0)),
        latency=AT_ONCE,
        reports_claims=False,
    )


def jobs(count: int, run_s: float, at_s: float = 1.0) -> tuple[SimulatedJob, ...]:
    return tuple(SimulatedJob(at_s, run_s, JobRequirements()) for _ in range(count))


def watch(make: Callable[..., Rule], sites: Sequence[Facility], work: Sequence[SimulatedJob], limit_s: float) -> Rule:
    """Play a rule, and return it as it is afterwards."""
    quotas = {kind.key: facility.pools[0].nodes for facility in sites for kind in facility.types}
    rule = make(quotas, START_EPOCH + max(job.submit_s for job in work))
    scenario = Scenario(
        tuple(replace(s, behaviour=replace(s.behaviour, release=Fixed(rule.release_s))) for s in sites),
        tuple(work),
        policy=Policy(idle_timeout_s=(rule.idle_timeout_s - OWN_TIMEOUT_MORE_S) / OWN_TIMEOUT_FACTOR),
        interval_s=rule.interval_s,
        active_interval_s=rule.interval_s,
        pool=POOL,
        limit_s=limit_s,
        planner=lambda: rule,
        judge=lambda snapshot, plan: (),
    )
    simulate(scenario)
    return rule


documented = partial(Cobald, per_pool=False)


@pytest.mark.parametrize("make", [documented, Cobald], ids=["one controller", "one a pool"])
def test_cobald_winds_up_while_one_site_is_empty(make: Callable[..., Cobald]) -> None:
    """No drone ever comes out of the queue there, so it reports 1, and demand climbs a core a second."""
    sites = site("kit", 2), site("queue", 8, queue=Fixed(NEVER_S))
    rule = watch(make, sites, [*jobs(1, 600.0), *jobs(1, 600.0, 8 * HOUR_S)], limit_s=6 * HOUR_S)
    assert isinstance(rule, Cobald)
    if make is documented:
        assert rule.demand() > 3 * HOUR_S  # cores, where 80 are all there is
    else:
        assert rule.demand(sites[0].types[0].key) <= CORES  # one idle probe is kept
        assert rule.demand(sites[1].types[0].key) == 8 * CORES  # it cannot ask for more than there is


def place(gpus: int, *, owned: bool = False) -> Place:
    return Place("kit", "gpu", gpus, 16, AT_ONCE_LOG, LogNormal(75.0, 0.0), owned)


AT_ONCE_LOG = LogNormal(1.0, 0.0)
START_S = 75.0 + 20.0
"""Of a drone: boot and release."""


@pytest.mark.parametrize(("gap_s", "wasted_s"), [(50.0, START_S + 50.0), (500.0, 2 * START_S)])
def test_clairvoyant_keeps_a_drone_over_a_short_gap_only(gap_s: float, wasted_s: float) -> None:
    work = [*jobs(1, 100.0, 0.0), *jobs(1, 100.0, 100.0 + gap_s)]
    hours, waits = schedule(work, (), [place(1)])
    assert hours.held - hours.good == pytest.approx(wasted_s / HOUR_S)
    assert waits.mean_s == 0.0
