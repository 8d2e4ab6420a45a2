"""The demo as a newcomer meets it: everything runs, what cannot run says why, nothing is left behind."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from provisioner.cli.demo import JOB_SHAPES, DemoView, ShapeView, screen, step_cells
from provisioner.model import Drone, DroneId, DroneState, TypeKey
from provisioner.reasons import JobsWaiting, NothingFits, StateTimeout
from provisioner.store import Transition
from provisioner.store.reader import Reader
from tests.conftest import Played
from tests.local.drones import all_tagged

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("demo")]


def test_the_demo_runs_what_fits_and_says_why_the_rest_does_not(played: Played) -> None:
    assert played.code == 0, played.out + played.err
    assert re.search(r"^large +10 +10 +0 ", played.out, re.MULTILINE)
    assert re.search(r"^small +24 +24 +0 ", played.out, re.MULTILINE)
    assert re.search(r"^huge +6 +0 +6 .*no drone type fits", played.out, re.MULTILINE)
    assert "no process is left" in played.out
    name = r"\S+: 1 GPU, 36 GiB VRAM \([0-9a-f]{4,15}\)"
    assert re.search(rf"requested +starting \d drones: 10 jobs of class {name} wait", played.out), (
        "by what it asks for, not by its whole id"
    )


def test_its_drones_were_started_for_jobs_and_all_left(played: Played) -> None:
    reader = Reader(played.directory / "provisioner.db")
    drones = reader.drones(ended=None)
    assert 2 <= len(drones) <= 10, "few GPUs, few drones: none was started twice"
    assert {drone.state for drone in drones} <= {
        DroneState.DONE,
        DroneState.CANCELLED,
        DroneState.UNUSED,
    }
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
        while not (
            busy := [d for d in reader.drones() if d.state is DroneState.BUSY]
            if reader.path.exists()
            else []
        ):
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


def test_the_screen_fits_a_small_terminal_and_says_why() -> None:
    drone = Drone(
        DroneId("demo-1"),
        TypeKey("local/a100"),
        DroneState.BUSY,
        95.0,
        requested_at=90.0,
        gpu_milli=500,
    )
    huge = next(shape for shape in JOB_SHAPES if not shape.fits)
    shapes = tuple(ShapeView(shape, 3, 2, 0, None) for shape in JOB_SHAPES if shape.fits)
    shapes += (
        ShapeView(huge, 0, 0, 0, NothingFits("local/a100", "vram", "81920 MiB", "40960 MiB")),
    )
    console = Console(width=80, file=io.StringIO(), record=True, color_system=None)
    view = DemoView(12.0, shapes, (drone,), (), now=100.0)
    why = StateTimeout("booting", 75.0, 60.0)
    step = Transition(drone.id, 99.0, DroneState.BOOTING, DroneState.FAILED, why, 1)
    console.print(screen(view, [step_cells(step, view)]))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    shown = " ".join(" ".join(lines).split())
    assert "local/a100 busy 5s" in shown
    assert "no drone type fits" in shown
    assert "GiB" in shown.partition("the nearest, local/a100, has 40")[2]
    _, _, words = shown.partition(" failed ")
    assert words == why.describe()
