"""The service in a world where one thing goes wrong at a time: what it must never do, and that the jobs are done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.model import EndKind
from provisioner.simulator.drones import OVERLAY, HardwareFault, HardwareFaultKind, SiteBehaviour
from provisioner.simulator.jobs import SimulatedJob
from provisioner.simulator.loop import Fixed, Uniform
from provisioner.simulator.sites import GpuPool
from provisioner.simulator.world import Scenario, simulate
from tests.simulator.crashing import CrashOutcome, CrashScenario
from tests.simulator.faults import ServiceFault, ServiceFaultKind
from tests.simulator.owner_queue import OwnerSteps
from tests.simulator.witness import watched
from tests.simulator.worlds import IMPOSSIBLE, SHORT, burst, calm

LATER = burst(6, SHORT, at_s=300.0, seed=1)


def kept(scenario: Scenario) -> CrashOutcome:
    """Play it before a witness; no promise may be broken."""
    seen = watched(scenario)
    assert seen.violations == (), f"seed {scenario.seed}"
    return seen.outcome


def with_habits(scenario: CrashScenario, **given: object) -> CrashScenario:
    """The same, at a site with other habits."""
    behaviour = SiteBehaviour(
        **{"boot": Uniform(5.0, 20.0), "check": Fixed(2.0), "release": Fixed(1.0), **given}
    )  # type: ignore[arg-type]
    return replace(
        scenario, facilities=tuple(replace(f, behaviour=behaviour) for f in scenario.facilities)
    )


QUARTERS = replace(SHORT, wants=replace(SHORT.wants, gpu_milli=250))


@pytest.mark.parametrize(
    ("jobs", "drones"),
    [((), 0), (burst(20, IMPOSSIBLE), 0), (burst(1, SHORT), 1), (burst(8, QUARTERS), 2)],
    ids=["no job", "jobs that fit nothing", "one job", "small jobs, which share"],
)
def test_no_more_drones_are_started_than_the_jobs_need(
    jobs: tuple[SimulatedJob, ...], drones: int
) -> None:
    outcome = kept(replace(calm(jobs=jobs), least_s=3600.0))
    assert (outcome.drones, outcome.jobs_left) == (drones, 0)
    assert outcome.ticks > 300


WIRE = [
    ServiceFault(ServiceFaultKind.DOWN, "kit", to_s=300.0),
    ServiceFault(ServiceFaultKind.DOWN, "kit", "act", to_s=100.0),
    ServiceFault(ServiceFaultKind.DENIED, "kit", "start", to_s=60.0),
    ServiceFault(ServiceFaultKind.BUG, "kit", "poll", chance=0.5),
    ServiceFault(ServiceFaultKind.ORDER_LOST, "kit", "act", to_s=100.0),
    ServiceFault(ServiceFaultKind.ORDER_HANGS, "kit", "act", to_s=100.0),
    ServiceFault(ServiceFaultKind.REPLY_LOST, "kit", "act"),
    ServiceFault(ServiceFaultKind.REPLY_HANGS, "kit", "act"),
    ServiceFault(ServiceFaultKind.REPLY_TORN, "kit", "start", amount=0.5),
    ServiceFault(ServiceFaultKind.LATE, "kit", "act", to_s=100.0, amount=90.0),
    ServiceFault(ServiceFaultKind.TWICE, "kit", "act", amount=30.0),
    ServiceFault(ServiceFaultKind.SLOW, "kit", amount=15.0),
    ServiceFault(ServiceFaultKind.HANG, "kit", "poll", 50.0, 250.0),
    ServiceFault(ServiceFaultKind.DOWN, OVERLAY, "poll", 50.0, 250.0),
    ServiceFault(ServiceFaultKind.BUG, OVERLAY, "poll", chance=0.5),
    ServiceFault(ServiceFaultKind.DOWN, OVERLAY, "bootstrap", chance=0.5),
    ServiceFault(ServiceFaultKind.REPLY_HANGS, OVERLAY, "drain"),
]


LIES = [
    ServiceFault(ServiceFaultKind.EMPTY, "kit", "poll", 60.0, 90.0),
    ServiceFault(ServiceFaultKind.PARTIAL, "kit", "poll", 60.0, 85.0, amount=0.5),
    ServiceFault(ServiceFaultKind.STALE, "kit", "poll", 40.0, 65.0),
    ServiceFault(ServiceFaultKind.FREE_WRONG, "kit", "poll", 60.0, 300.0, amount=0.0),
    ServiceFault(ServiceFaultKind.UNKNOWN_STATES, "kit", "poll", 30.0, 300.0),
    ServiceFault(ServiceFaultKind.EMPTY, OVERLAY, "poll", 60.0, 90.0),
    ServiceFault(ServiceFaultKind.PARTIAL, OVERLAY, "poll", 60.0, 200.0, amount=0.5),
    ServiceFault(ServiceFaultKind.STALE, OVERLAY, "poll", 40.0, 100.0),
    ServiceFault(ServiceFaultKind.HANG, OVERLAY, "poll", 100.0, 400.0),
]


@pytest.mark.parametrize(
    "fault", WIRE + LIES, ids=lambda f: f"{f.where}-{f.verb}-{f.kind.value}-{f.amount:g}"
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_each_fault_of_a_service_alone_costs_no_job_and_breaks_no_limit(
    fault: ServiceFault, seed: int
) -> None:
    scenario = calm(seed=seed)
    outcome = kept(replace(scenario, jobs=scenario.jobs + LATER, service_faults=(fault,)))
    assert outcome.faults_met[fault.kind] > 0, "the fault never struck: this proves nothing"
    assert outcome.jobs_done == 18
    assert fault in WIRE or outcome.metrics.attempts_lost == 0, (
        "a lie made the controller end a drone that worked"
    )


def test_a_pool_that_does_not_negotiate_gets_no_drones_for_jobs_it_has_not_judged() -> None:
    pause = HardwareFault(HardwareFaultKind.NO_NEGOTIATION, 0.0, 600.0)
    outcome = kept(replace(calm(), hardware_faults=(pause,)))
    assert min(outcome.metrics.waits_s) > 600.0


@pytest.mark.parametrize("seed", range(4))
def test_an_owner_who_comes_and_goes_loses_us_work_but_no_job(seed: int) -> None:
    owner = ((60.0, 3), (160.0, 1), (260.0, 4), (400.0, 0))
    base = calm(seed=seed)
    (site,) = base.facilities
    for notice_s in (0.0, 30.0):
        owned = replace(
            site, pools=(GpuPool("gpus", 4),), owner=OwnerSteps(owner, "gpus", notice_s=notice_s)
        )
        outcome = kept(replace(base, facilities=(owned,)))
        assert outcome.metrics.ends["kit", EndKind.PREEMPTED] > 0
        assert outcome.jobs_done == 12


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "blow",
    [
        HardwareFault(HardwareFaultKind.NODE_FAILS, 50.0, 200.0, "kit", node=0),
        HardwareFault(HardwareFaultKind.DOWNTIME, 120.0, 100.0, "kit", notice_s=60.0),
    ],
    ids=["node", "downtime"],
)
def test_failing_nodes_and_downtimes_lose_no_job(blow: HardwareFault, seed: int) -> None:
    outcome = kept(replace(calm(seed=seed), hardware_faults=(blow,)))
    assert outcome.metrics.ends["kit", EndKind.FAULT] > 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "habit", ["dies_young", "never_joins", "hangs_in_check", "matches_nothing"]
)
def test_a_third_of_bad_drones_delays_the_jobs_and_no_more(habit: str, seed: int) -> None:
    outcome = kept(with_habits(calm(seed=seed), **{habit: 0.34}))
    assert outcome.jobs_done == 12


def test_a_type_whose_drones_all_die_young_is_slowed_down() -> None:
    scenario = replace(with_habits(calm(), dies_young=1.0), limit_s=3600.0)
    outcome = simulate(scenario)
    assert outcome.jobs_done == 0
    assert not outcome.metrics.caps_broken
    assert outcome.drones < 40, (
        "an hour of drones that die after 15 s would be over 700 without a back-off"
    )


def test_an_order_carried_out_long_after_it_was_given_up_is_found_and_ended() -> None:
    # order_confirm_s is 120, after a minute of silence
    late = ServiceFault(ServiceFaultKind.LATE, "kit", "start", to_s=60.0, amount=260.0)
    outcome = kept(replace(calm(jobs=burst(2, SHORT)), service_faults=(late,), least_s=900.0))
    assert outcome.metrics.accepted["kit"] > 2, "the late ones came too"


@pytest.mark.parametrize("habit", ["never_joins", "hangs_in_check"])
def test_a_pool_that_fails_one_look_in_ten_does_not_keep_bad_drones_alive(habit: str) -> None:
    flaky = ServiceFault(ServiceFaultKind.BUG, OVERLAY, "poll", chance=0.1)
    outcome = kept(
        replace(with_habits(calm(), **{habit: 0.5}), service_faults=(flaky,), limit_s=4 * 3600.0)
    )
    assert outcome.ended_s < 3600.0
