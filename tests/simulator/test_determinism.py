"""Same seed, same record: in this process, and in others with other hash seeds."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.simulator.crashing import simulate
from tests.simulator.worlds import calm, rough

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
