"""When a replay gives up: as soon as nothing can come of it, and not while something still may."""

from __future__ import annotations

from dataclasses import replace

from provisioner.model import Policy
from provisioner.simulator.drones import HardwareFault, HardwareFaultKind, SiteBehaviour
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.loop import Fixed
from provisioner.simulator.pool import PoolBehaviour
from provisioner.simulator.replay import REPLAY_STALL_S, Replay, run
from provisioner.simulator.results import ReplayResult
from provisioner.simulator.sites import Facility
from provisioner.simulator.world_file import WorldPlan
from tests.simulator.worlds import small

DAY_S = 86400.0
JOB = SimulatedJob(100.0, 600.0)


def result(
    facility: Facility, *jobs: SimulatedJob, hardware_faults: tuple[HardwareFault, ...] = ()
) -> ReplayResult:
    """With rare looks, for days are to pass."""
    world = WorldPlan(
        (facility,),
        PoolBehaviour(negotiation_s=600.0, update_s=600.0),
        hardware_faults=hardware_faults,
    )
    rules = Policy(idle_timeout_s=600.0)
    return run(
        Replay(
            "ours",
            "t",
            jobs or (JOB,),
            world,
            replace(rules, interval_s=300.0, active_interval_s=300.0),
        ),
        seed=1,
    )


def test_jobs_that_can_never_be_done_end_the_replay() -> None:
    nothing = small(gpus=4, max_drones=0)
    told = result(nothing, JOB, replace(JOB, submit_s=4000.0))
    assert (
        told.jobs_done == 0
        and 4000.0 + REPLAY_STALL_S <= told.days * DAY_S < 4200.0 + REPLAY_STALL_S
    )
    (broken,) = told.violations
    assert broken.startswith("2 of 2 jobs were not done after 349") and broken.endswith(
        "none has run since 4000 s"
    )


def test_jobs_that_fit_no_drone_are_not_waited_for() -> None:
    told = result(small(gpus=4), JOB, SimulatedJob(200.0, 60.0, JobRequirements(gpu_milli=8000)))
    assert (told.jobs_done, told.jobs_impossible, told.violations) == (1, 1, ()) and told.days < 0.1


def test_a_queue_of_days_is_waited_for() -> None:
    facility = small(gpus=4, behaviour=SiteBehaviour(queue=Fixed(3 * DAY_S), boot=Fixed(60.0)))
    facility = replace(facility, policy=replace(facility.policy, queued_s=10 * DAY_S))
    assert result(facility).violations == ()


def test_a_downtime_is_waited_for_and_one_without_end_is_not() -> None:
    def down(for_s: float) -> ReplayResult:
        return result(
            small(gpus=4),
            hardware_faults=(HardwareFault(HardwareFaultKind.DOWNTIME, 0.0, for_s, "kit"),),
        )

    assert down(3 * DAY_S).violations == ()
    assert len(down(3650 * DAY_S).violations) == 1
