"""Jobs of two GPUs at a site of eight, behind one-GPU jobs that were submitted hours later."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from provisioner.model import DroneType, Plan, Policy, SitePolicy, Snapshot
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
SINGLES = (
    drone_type("kit", "gpu"),
    drone_type("kit", "gpux2", gpu_milli=2000, cpus=16, memory_mib=81920),
)
QUADS = (drone_type("kit", "gpux4", gpu_milli=4000, cpus=32, memory_mib=163840),)


@dataclass
class WatchedReservations:
    """The planner itself, and the classes and drones for which it gave a reservation as the reason."""

    said: set[str] = field(default_factory=set)
    drains: int = 0
    """Drones that were drained for one."""
    moved_early: list[str] = field(default_factory=list)
    """Reservations of one node for one class whose promised time moved before it had passed."""
    _promises: dict[tuple[str, str], float] = field(default_factory=dict)

    def __call__(self, snapshot: Snapshot) -> Plan:
        plan = decide(snapshot)
        reserved = [each.reason for each in plan.refusals if isinstance(each.reason, NodeReserved)]
        self.said |= {
            str(each.subject) for each in plan.refusals if isinstance(each.reason, NodeReserved)
        }
        self.drains += sum(isinstance(each.reason, NodeReserved) for each in plan.drains)
        for each in reserved:
            before = self._promises.get((each.class_id, each.node), each.at)
            if each.at != before > snapshot.now:
                self.moved_early.append(f"{each} at {snapshot.now}, promised for {before}")
            self._promises[each.class_id, each.node] = each.at
        return plan


def replayed(
    types: tuple[DroneType, ...], *, queues: bool = False
) -> tuple[WatchedReservations, SimulationOutcome]:
    """Six jobs of two GPUs for half an hour, in a stream of one-GPU jobs that is more than the site can do."""
    rng, jobs, at_s = Random("large"), [], 0.0
    while at_s < SPAN_S:
        jobs.append(SimulatedJob(at_s, min(SPAN_S, rng.lognormvariate(6.8, 1.0)), ONE))
        at_s += rng.expovariate(1.2 * 8 / 1480)
    jobs += [SimulatedJob(COME_S + n, RUN_S, PAIR) for n in range(6)]
    site = Facility(
        policy=SitePolicy(
            "kit", max_drones=8, max_pending=8, max_starts_per_tick=8, queue_when_full=queues
        ),
        types=types,
        pools=(GpuPool("nodes", 4, 2),),
        behaviour=SiteBehaviour(boot=Fixed(60.0), check=Fixed(5.0), release=Fixed(10.0)),
        reports_nodes=True,
    )
    watched = WatchedReservations()
    return watched, simulate(
        Scenario((site,), tuple(jobs), limit_s=3 * SPAN_S, planner=lambda: watched)
    )


def waits_h(outcome: SimulationOutcome, size: str) -> list[float]:
    return sorted(wait_s / HOUR_S for wait_s in outcome.metrics.waits_by_class[f"{size} GPU"])


def test_without_reservations_they_wait_until_the_queue_is_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    assert max(waits_h(outcome, "2")) < 2.5, (
        "three drones of two GPUs would need an hour and a half for them"
    )
    assert watched.said >= {"class:c2"}
    assert max(waits_h(outcome, "1")) < 4.0, "one-GPU jobs go on"


LONG_S = 8.188689
"""Logarithm of an hour in seconds."""


def busy_world(sigma: float, planner: WatchedReservations) -> Scenario:
    """Six nodes of four GPUs, one-GPU jobs of an hour in the mean for 15 h, and one job of four GPUs after 2 h."""
    rng, mu = Random(f"tails/{sigma}"), LONG_S - sigma**2 / 2
    small = JobRequirements(cpus=2, memory_mib=4096, owner="alice")
    large = JobRequirements(gpu_milli=4000, cpus=8, memory_mib=8192, owner="bob")
    arrivals = [0.0] * 150 + [15 * HOUR_S * rng.random() for _ in range(390)]
    runs = [max(10.0, min(24 * HOUR_S, rng.lognormvariate(mu, sigma))) for _ in arrivals]
    jobs = [SimulatedJob(at_s, run_s, small) for at_s, run_s in zip(arrivals, runs, strict=True)]
    site = Facility(
        policy=SitePolicy(
            "kit", max_drones=100, max_pending=100, max_starts_per_tick=100, grace_s=10.0
        ),
        types=(
            drone_type("kit", "g1", cpus=8, memory_mib=20480),
            drone_type("kit", "g4", gpu_milli=4000, cpus=32, memory_mib=81920),
        ),
        pools=(GpuPool("pool", 4, 6, cpus_per_node=64, memory_mib_per_node=512 << 10),),
        behaviour=SiteBehaviour(boot=Fixed(60.0), check=Fixed(5.0), release=Fixed(2.0)),
        reports_nodes=True,
    )
    jobs = sorted([*jobs, SimulatedJob(2 * HOUR_S, HOUR_S, large)], key=lambda job: job.submit_s)
    return Scenario((site,), tuple(jobs), policy=Policy(max_drones=100), planner=lambda: planner)


@pytest.mark.parametrize(
    "sigma", [0.8, *(pytest.param(sigma, marks=pytest.mark.matrix) for sigma in (0.3, 1.2))]
)
def test_a_reservation_ends_though_run_times_have_tails(sigma: float) -> None:
    watched = WatchedReservations()
    outcome = simulate(busy_world(sigma, watched))
    assert outcome.violations == () and outcome.jobs_done == outcome.jobs
    came_s, under_way_s = 2 * HOUR_S, 0.0
    for job in outcome.metrics.finished:
        begun_s = job.submit_s + job.wait_s
        if begun_s <= came_s < begun_s + job.gpu_s:
            under_way_s = max(under_way_s, job.gpu_s)
    (wait_s,) = outcome.metrics.waits_by_class["4 GPU"]
    assert 0 < wait_s < 1.5 * under_way_s, "the longest run that was under way when it came"
    assert outcome.drones <= 40, "no drone starts in the reserved room"
    assert watched.drains <= 8, "the node has four drones"
    assert not watched.moved_early, "the promised time moves only once it has passed"
