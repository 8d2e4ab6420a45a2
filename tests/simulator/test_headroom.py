"""Headroom in the world: who comes to warm drones need not wait for a boot, and nothing churns meanwhile."""

from __future__ import annotations

from dataclasses import replace

from provisioner.model import Headroom, Sharing
from provisioner.simulator.drones import SiteBehaviour
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.loop import Fixed
from provisioner.simulator.pool import PoolBehaviour
from provisioner.simulator.world import START_EPOCH, Scenario, SimulationOutcome, simulate
from tests.simulator.worlds import BRISK, drone_type, small

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


SHARES = drone_type("kit", "gpu", sharing=Sharing.TIME_SLICED, shares=4, cpus=32)
SESSION = JobRequirements(gpu_milli=250, cpus=4, memory_mib=8192)
NOTEBOOKS = Headroom(
    "notebooks", gpu_milli=250, cpus=4, memory_mib=8192, count=2, from_h=16, to_h=18
)
LOOK_S = 60.0


def at(hour: float) -> float:
    """Return the seconds from the begin of a simulation until an hour of its day (UTC)."""
    return (hour - BEGINS_H) * 3600


def test_interactive_jobs_start_within_ten_seconds_in_working_hours_and_not_beyond() -> None:
    """The pool negotiates as the how-to of interactive jobs says."""
    slow = SiteBehaviour(boot=Fixed(BOOT_S), check=Fixed(2.0), release=Fixed(1.0))
    by_day = [at(16.25), at(16.5), at(16.501), at(17.75)]
    else_ = [at(15.5), at(19.0)]
    submitted = sorted([*by_day, *else_])
    outcome = simulate(
        Scenario(
            facilities=(replace(small(behaviour=slow), types=(SHARES,)),),
            jobs=tuple(SimulatedJob(each, 600.0, SESSION) for each in submitted),
            policy=replace(BRISK, headroom=(NOTEBOOKS,), interval_s=15.0),
            pool=PoolBehaviour(negotiation_s=5.0),
            limit_s=6 * 3600.0,
            samples_s=LOOK_S,
        )
    )
    assert outcome.violations == ()
    started = dict(outcome.metrics.first_starts)
    assert all(started[each] - each <= 10.0 for each in by_day), started
    assert all(started[each] - each > BOOT_S for each in else_), started
    idle = {sample.at_s: sample.gpus_held - sample.gpus_busy for sample in outcome.samples}
    kept = [gpus for at_s, gpus in idle.items() if at(16.0) + BOOT_S + 60 < at_s < at(18.0)]
    assert kept and min(kept) >= 0.5, "two idle shares, beside the sessions"
    assert max(kept) <= 1.0, "one GPU has room for all of it"
    others = [
        gpus
        for at_s, gpus in idle.items()
        if at_s < at(15.5) or at(15.9) < at_s < at(16.0) or at(18.1) < at_s < at(19.0)
    ]
    assert others and max(others) == 0.0
