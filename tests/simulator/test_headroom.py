"""Headroom in the world: who comes to warm drones need not wait for a boot, and nothing churns meanwhile."""

from __future__ import annotations

from dataclasses import replace

from provisioner.model import Headroom
from provisioner.simulator.drones import SiteBehaviour
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.loop import Fixed
from provisioner.simulator.world import START_EPOCH, Scenario, SimulationOutcome, simulate
from tests.simulator.worlds import BRISK, small

BEGINS_H = START_EPOCH % 86400 / 3600
COME_S, WORKS_S = 3000.0, 200.0
BOOT_S = 240.0
UNTIL_17 = Headroom("until-17", cpus=8, memory_mib=8192, count=2, from_h=15, to_h=17)


def played(*headroom: Headroom) -> SimulationOutcome:
    """Jobs come when nothing has run for most of an hour."""
    slow = SiteBehaviour(boot=Fixed(BOOT_S), check=Fixed(2.0), release=Fixed(1.0))
    return simulate(
        Scenario(
            facilities=(small(gpus=4, max_drones=4, behaviour=slow),),
            jobs=(SimulatedJob(COME_S, WORKS_S, JobRequirements(cpus=8, memory_mib=8192)),) * 2,
            policy=replace(BRISK, headroom=headroom, interval_s=15.0),
            limit_s=4 * 3600.0,
        )
    )


def test_the_first_jobs_of_a_quiet_day_do_not_wait_for_a_boot() -> None:
    assert 15 <= BEGINS_H < 16
    cold, warm = played(), played(UNTIL_17)
    assert cold.violations == warm.violations == ()
    assert min(cold.metrics.waits_s) > BOOT_S
    assert max(warm.metrics.waits_s) < BOOT_S / 2
    # They stay the same, and leave when their hours are over.
    assert warm.drones == 2 + 2, (
        "two that were warm, and two that were warmed up when those had work"
    )
    closes_s = (17 - BEGINS_H) * 3600
    assert closes_s < warm.ended_s < closes_s + 600
