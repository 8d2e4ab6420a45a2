"""Jobs of two GPUs at a site of eight, behind one-GPU jobs that were submitted hours later."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from provisioner.model import DroneType, Plan, SitePolicy, Snapshot
from provisioner.planner import decide
from provisioner.planner.reservations import JobReservations
from provisioner.reasons import NodeReserved
from provisioner.simulator.drones import SiteBehaviour
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.loop import Fixed
from provisioner.simulator.sites import Facility, GpuPool
from provisioner.simulator.world import Scenario, SimulationOutcome, simulate
from tests.simulator.worlds import drone_type

HOUR_S = 3600.0
SPAN_S, COME_S, RUN_S = 4 * HOUR_S, HOUR_S, 1800.0
ONE = JobRequirements(owner="alice")
PAIR = JobRequirements(gpu_milli=2000, cpus=2, owner="bob")
SINGLES = (drone_type("kit", "gpu"), drone_type("kit", "gpux2", gpu_milli=2000, cpus=16, memory_mib=81920))
QUADS = (drone_type("kit", "gpux4", gpu_milli=4000, cpus=32, memory_mib=163840),)


@dataclass
class WatchedReservations:
    """The planner itself, and the classes and drones for which it gave a reservation as the reason."""

    said: set[str] = field(default_factory=set)

    def __call__(self, snapshot: Snapshot) -> Plan:
        plan = decide(snapshot)
        self.said |= {each.subject for each in plan.refusals if isinstance(each.reason, NodeReserved)}
        return plan


def replayed(types: tuple[DroneType, ...], *, queues: bool = False) -> tuple[WatchedReservations, SimulationOutcome]:
    """Six jobs of two GPUs for half an hour, in a stream of one-GPU jobs that is more than the site can do."""
    rng, jobs, at_s = Random("large"), [], 0.0
    while at_s < SPAN_S:
        jobs.append(SimulatedJob(at_s, min(SPAN_S, rng.lognormvariate(6.8, 1.0)), ONE))
        at_s += rng.expovariate(1.2 * 8 / 1480)
    jobs += [SimulatedJob(COME_S + n, RUN_S, PAIR) for n in range(6)]
    site = Facility(
        policy=SitePolicy("kit", max_drones=8, max_pending=8, max_starts_per_tick=8, queue_when_full=queues),
        types=types,
        pools=(GpuPool("nodes", 4, 2),),
        behaviour=SiteBehaviour(boot=Fixed(60.0), check=Fixed(5.0), release=Fixed(10.0)),
        reports_nodes=True,
    )
    watched = WatchedReservations()
    return watched, simulate(Scenario((site,), tuple(jobs), limit_s=3 * SPAN_S, planner=lambda: watched))


def waits_h(outcome: SimulationOutcome, size: str) -> list[float]:
    return sorted(wait_s / HOUR_S for wait_s in outcome.metrics.waits_by_class[f"{size} GPU"])


def test_without_reservations_they_wait_until_the_queue_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobReservations, "reserve", lambda *_: None)
    watched, outcome = replayed(SINGLES)
    assert min(waits_h(outcome, "2")) > 3.0 and not watched.said


@pytest.mark.parametrize(
    ("types", "queues"),
    [
        pytest.param(SINGLES, False, id="a drone for each job"),
        pytest.param(SINGLES, True, id="orders wait at the site"),
        pytest.param(QUADS, False, id="drones of four GPUs"),
    ],
)
def test_jobs_of_two_gpus_start_in_bounded_time(types: tuple[DroneType, ...], queues: bool) -> None:
    watched, outcome = replayed(types, queues=queues)
    assert outcome.violations == () and outcome.jobs_done == outcome.jobs
    assert max(waits_h(outcome, "2")) < 2.5, "three drones of two GPUs would need an hour and a half for them"
    assert watched.said >= {"class:c2"}
    assert max(waits_h(outcome, "1")) < 4.0, "one-GPU jobs go on"
