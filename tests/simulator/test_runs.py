"""Whole runs: the same seed gives the same record in every process; a day of 4,000 jobs; the example of the docs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulator.crashing import simulate
from tests.simulator.worlds import busy_day, calm, rough

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "simulator.md"
ELSEWHERE = """
from tests.simulator.crashing import simulate
from tests.simulator.worlds import rough
outcome = simulate(rough(11))
print(outcome.digest, outcome.steps)
"""


def test_the_same_scenario_gives_the_same_record_twice() -> None:
    for seed in range(5):
        first, second = simulate(rough(seed)), simulate(rough(seed))
        assert first.steps > 20
        assert (first.digest, first.ended_s, first.lives) == (second.digest, second.ended_s, second.lives)
        assert first.metrics.gpu_seconds == second.metrics.gpu_seconds


def test_another_seed_gives_another_record() -> None:
    assert len({simulate(calm(seed=seed)).digest for seed in range(5)}) == 5


def test_the_record_does_not_depend_on_the_process() -> None:
    said = set()
    for hash_seed in ("0", "1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", ELSEWHERE],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        said.add(done.stdout.strip())
    here = simulate(rough(11))
    assert said == {f"{here.digest} {here.steps}"}


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


def test_the_example_of_the_page_runs() -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    known: dict[str, object] = {}
    exec(compile(example, str(PAGE), "exec"), known)
    assert "outcome" in known
