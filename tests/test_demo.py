"""The demo as a newcomer meets it: everything runs, what cannot run says why, nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from provisioner.model import DroneState
from provisioner.reasons import JobsWaiting
from provisioner.store.reader import Reader
from tests.conftest import Played
from tests.local.drones import all_tagged

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("demo"), pytest.mark.timeout(240)]


def test_the_demo_runs_what_fits_and_says_why_the_rest_does_not(played: Played) -> None:
    assert played.code == 0, played.out + played.err
    assert re.search(r"^large +10 +10 +0 ", played.out, re.MULTILINE)
    assert re.search(r"^small +24 +24 +0 ", played.out, re.MULTILINE)
    assert re.search(r"^huge +6 +0 +6 .*no drone type fits", played.out, re.MULTILINE)
    assert "no process is left" in played.out
    assert re.search(r"requested +10 jobs of class large wait", played.out), "by its name, not by its id"


def test_its_drones_were_started_for_jobs_and_all_left(played: Played) -> None:
    reader = Reader(played.directory / "provisioner.db")
    drones = reader.drones(ended=None)
    assert 2 <= len(drones) <= 10, "few GPUs, few drones: none was started twice"
    assert {drone.state for drone in drones} <= {DroneState.DONE, DroneState.CANCELLED, DroneState.UNUSED}
    assert sum(drone.jobs_started for drone in drones) == 34
    assert {drone.type for drone in drones} == {"local/a100", "local/v100"}
    for drone in drones:
        first, *_ = reader.history(drone.id)
        assert first.state is DroneState.REQUESTED and isinstance(first.reason, JobsWaiting)
    assert all_tagged(drones[0].id.rpartition("-")[0]) == {}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_takes_everything_with_it(how: signal.Signals, tmp_path: Path) -> None:
    place = tmp_path / "place"
    demo = subprocess.Popen(
        [sys.executable, "-m", "provisioner.cli", "demo", "--dir", str(place)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    reader = Reader(place / "provisioner.db")
    try:
        while not (busy := [d for d in reader.drones() if d.state is DroneState.BUSY] if reader.path.exists() else []):
            assert demo.poll() is None, demo.communicate()
            time.sleep(0.05)
        prefix = busy[0].id.rpartition("-")[0]
        assert all_tagged(prefix), "something has to run for something to be stopped"
        holder = reader.holder()
        assert holder is not None
        demo.send_signal(how)
        _, err = demo.communicate(timeout=60)
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode == 130
    assert "stopped" in err and "Traceback" not in err
    assert all_tagged(prefix) == {}
    with pytest.raises(ProcessLookupError):
        os.kill(holder.pid, 0)
