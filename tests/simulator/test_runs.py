"""Whole runs: the same seed gives the same record in every process; a day of 4,000 jobs; the example of the docs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.simulator.crashing import simulate
from tests.simulator.worlds import rough

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "simulator.md"
ELSEWHERE = """
from tests.simulator.crashing import simulate
from tests.simulator.worlds import rough
outcome = simulate(rough(11))
print(outcome.digest)
"""


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
    assert said == {here.digest}


def test_the_example_of_the_page_runs() -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    known: dict[str, object] = {}
    exec(compile(example, str(PAGE), "exec"), known)
    assert "outcome" in known
