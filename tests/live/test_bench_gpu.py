"""The step of ``make bench-gpu`` with a whole drone, on the fake GPU libraries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.labs.gpu import FakeGpus
from tests.labs.htcondor import lab_directory

ROOT = Path(__file__).parents[2]


@pytest.mark.matrix
def test_a_drone_of_four_shares_runs_four_trainings_and_a_large_one() -> None:
    with lab_directory("gpus") as directory:
        gpus = FakeGpus.build(directory / "gpus", 1)
        out = directory / "out"
        command = [
            sys.executable,
            "-m",
            "benchmarks.gpu.run",
            "--only",
            "drone",
            "--seconds",
            "1",
            "--out",
            str(out),
        ]
        done = subprocess.run(
            command, cwd=ROOT, env=dict(gpus.env), capture_output=True, text=True, timeout=1200
        )
        assert done.returncode == 0, done.stderr
        found = json.loads((out / "results.json").read_text())["steps"]["drone"]
    assert found["slot"]["GPUs"] == 4, found
    assert [training["said"]["code"] for training in found["trainings"].values()] == [0] * 4
    assert {training["AssignedGPUs"] for training in found["trainings"].values()} == {
        gpus.uuid(0)[:12]
    }
    assert found["a job over its share"]["GPUsMemoryUsage"] == 40536 * 3 // 2 // 4
