"""Drones through a real ARC computing element, with a token: HTCondor's arc_gahp speaks REST 1.0 to A-REX."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.labs import arc, htcondor
from tests.live.conftest import SUITES

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.matrix,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]


def test_five_drones_run_to_their_ends() -> None:
    with htcondor.lab_directory("arex") as state:
        try:
            command = arc.inside(state, sys.executable, "-m", "tests.labs.arc", str(state))
        except htcondor.LabError as error:
            pytest.skip(f"no ARC: {error}")
        done = subprocess.run(
            command,
            env={**os.environ, "SUITE": SUITES[-1]},
            text=True,
            stdout=subprocess.PIPE,
            timeout=500,
            check=True,
        )
    told = json.loads(done.stdout.splitlines()[-1])
    lives = told["lives"]
    assert lives.pop("check") == [], "the trial submit of `check --live` is taken"
    for serial, end in ((1, "exited 0"), (2, "exited 0"), (3, "exited 0"), (4, "exited 3")):
        assert lives[f"main-ab12-{serial}"] == ["pending", "running", end]
    assert lives["main-ab12-5"] == ["pending", "running", "stopped None"]
    assert told["log"] == "secret", "its files came, and its log has come home"
