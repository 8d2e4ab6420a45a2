"""Workloads: made from seeds."""

from __future__ import annotations

from provisioner.simulator.jobs import JobRequirements
from provisioner.simulator.loop import Fixed
from tests.simulator.workload import LARGE, PLAIN, SMALL, Shape, burst, day, poisson_mix


def test_a_day_has_its_jobs_in_order_and_within_the_day() -> None:
    jobs = day(count=4000, seed=5)
    assert len(jobs) == 4000
    assert [j.submit_s for j in jobs] == sorted(j.submit_s for j in jobs)
    assert all(0 <= j.submit_s <= 86400 for j in jobs)
    assert {j.wants for j in jobs} == {PLAIN.wants, LARGE.wants, SMALL.wants}
    assert jobs == day(count=4000, seed=5) != day(count=4000, seed=6)


def test_a_mix_has_the_rate_and_shares_asked_for() -> None:
    shapes = [Shape(JobRequirements(owner="a"), Fixed(1.0), 3.0), Shape(JobRequirements(owner="b"), Fixed(1.0), 1.0)]
    jobs = poisson_mix(shapes, per_hour=100.0, span_s=100 * 3600.0, seed=1)
    assert 9_700 < len(jobs) < 10_300
    assert 0.72 < sum(j.wants.owner == "a" for j in jobs) / len(jobs) < 0.78


def test_a_burst_comes_at_once() -> None:
    assert {j.submit_s for j in burst(7, at_s=30.0)} == {30.0}
