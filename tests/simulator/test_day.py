"""A day of 4,000 jobs at three sites: the whole service, in seconds."""

from __future__ import annotations

import pytest

from provisioner.simulator.world import simulate
from tests.simulator.worlds import busy_day


@pytest.mark.slow
def test_a_day_of_four_thousand_jobs_at_three_sites() -> None:
    outcome = simulate(busy_day())
    assert outcome.violations == ()
    assert outcome.jobs_done == 4000
    assert outcome.ended_s > 86400.0
    metrics, spent = outcome.metrics, outcome.metrics.gpu_seconds
    assert set(metrics.accepted) == {"topas", "cloud", "horeka"}
    assert metrics.peak("topas") <= 56
    assert metrics.peak("cloud") <= 12
    assert metrics.peak("horeka/h100") <= 8
    assert spent.held == pytest.approx(spent.good + spent.badput + spent.boot + spent.release + spent.idle)
    assert spent.good > 0.5 * spent.held, f"more than half of the GPU time was wasted: {spent}"
    assert sum(metrics.ends.values()) == sum(metrics.accepted.values())
