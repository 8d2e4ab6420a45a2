"""Inference services in the simulated world: bursts of requests, and the servers that the controller starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import services as day
from provisioner import model
from provisioner.simulator.jobs import JobRequirements
from provisioner.simulator.replay import Replay, run
from provisioner.simulator.results import FIGURES, ServiceTotals
from provisioner.simulator.services import RequestBurst
from provisioner.simulator.world import SimulationOutcome, simulate
from provisioner.simulator.world_file import WorldPlan

ONE = RequestBurst("cms", at_s=600.0, for_s=1200.0, rate=40.0, request_s=0.05)


def played(*bursts: RequestBurst, **changes: object) -> tuple[SimulationOutcome, ServiceTotals]:
    outcome = simulate(replace(day.scenario(bursts, 1), **changes))
    assert outcome.violations == ()
    return outcome, outcome.services["cms"]


def test_a_burst_gets_servers_and_they_leave() -> None:
    """Three servers: they boot for 90 s, during which clients are refused, and leave 90 s after the burst."""
    outcome, totals = played(ONE)
    assert outcome.drones == 3
    assert totals.requests == pytest.approx(48_000)
    (first_s,) = totals.first_answers_s
    assert 90 <= first_s <= 120
    assert totals.refused == pytest.approx(40 * first_s)
    assert totals.work_s == pytest.approx((48_000 - totals.refused) * 0.05, rel=0.01)
    assert 3 * 1200 < totals.gpu_s < 3 * (1200 + 90 + 40)
    assert outcome.ended_s < 600 + 1200 + 200


def test_no_burst_no_server() -> None:
    outcome, totals = played(least_s=3600.0)
    assert (outcome.drones, totals.gpu_s, totals.requests) == (0, 0.0, 0.0)


def test_more_requests_than_all_servers_answer_wait() -> None:
    few = replace(day.SERVICE, at_most=1)
    _, totals = played(ONE, policy=model.Policy(services=(few,)))
    assert totals.waited_s > 40 * 1000 * 100  # 20 of 40 requests each second, on average 500 s
    assert totals.gpu_s < 1200 + 90 + 40 + 1200 + 300  # what is left is worked off


def test_jobs_that_announce_a_model_have_a_server_before_they_call() -> None:
    scenario = day.scenario((replace(ONE, at_s=1200.0, ahead_s=300.0, jobs=4),), 1)
    world = WorldPlan(scenario.facilities, scenario.pool, bursts=scenario.bursts)
    jobs = world.announcing_jobs
    assert {job.wants for job in jobs} == {JobRequirements(inference=("deepmet:3",))}
    assert {(job.submit_s, job.duration_s) for job in jobs} == {(900.0, 1500.0)}
    assert scenario.jobs == jobs
    outcome = simulate(scenario)
    assert outcome.violations == ()
    assert outcome.services["cms"].first_answers_s == [0.0]
    result = run(Replay("now", "bursts", (), world, scenario.policy), 1)
    assert result.jobs_done == 4 and result.violations == ()
    service = result.services["cms"]
    assert service.refused == 0 and service.first_answer_s == 0.0 and service.requests == 48_000
    held = {figure.name: figure.of(result) for figure in FIGURES["Inference services"]}
    assert held["Held by servers"] == service.gpu_hours > 0.9
    none = replace(result, services={})
    assert all(figure.of(none) is None for figure in FIGURES["Inference services"])


@pytest.mark.slow
def test_a_day_of_bursts_costs_little_more_than_with_foresight() -> None:
    found = day.compare(1)
    assert len(day.day_of_bursts(1)) == day.BURSTS
    assert found.more <= 0.10, found
    assert found.in_time >= 0.95, found


def test_foresight_pays_for_starts_and_for_pauses() -> None:
    start_s = day.BOOT_S + day.LOAD_S + day.RELEASE_S
    assert day.clairvoyant_gpu_s([ONE]) == 3 * (1200 + start_s)
    soon = replace(ONE, at_s=1850.0)
    assert day.clairvoyant_gpu_s([ONE, soon]) == 3 * (2 * 1200 + start_s + 50)
    later = replace(ONE, at_s=9000.0, rate=1.0)
    assert day.clairvoyant_gpu_s([ONE, later]) == 3 * (1200 + start_s) + 1200 + start_s
