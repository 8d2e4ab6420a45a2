"""The screen of the demo, and its end."""

from __future__ import annotations

import io

from rich.console import Console

from provisioner.cli.demo import JOB_SHAPES, DemoView, ShapeView, screen
from provisioner.model import Drone, DroneId, DroneState, TypeKey
from provisioner.reasons import NothingFits

DRONE = Drone(
    DroneId("demo-abcd-1"), TypeKey("local/a100"), DroneState.BUSY, since=95.0, requested_at=90.0, gpu_milli=500
)


def test_the_screen_fits_a_small_terminal_and_says_why() -> None:
    huge = next(shape for shape in JOB_SHAPES if not shape.fits)
    shapes = tuple(ShapeView(shape, 3, 2, 0, None) for shape in JOB_SHAPES if shape.fits)
    shapes += (ShapeView(huge, 0, 0, 0, NothingFits("local/a100", "vram", "81920 MiB", "40960 MiB")),)
    console = Console(width=80, file=io.StringIO(), record=True, color_system=None)
    console.print(screen(DemoView(12.0, shapes, (DRONE,), (), now=100.0), []))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    shown = " ".join(" ".join(lines).split())
    assert "local/a100 busy 5s" in shown
    assert "no drone type fits" in shown


def test_it_is_over_only_when_all_that_fits_is_done_and_all_drones_have_left() -> None:
    done = tuple(ShapeView(s, s.jobs if s.fits else 0, 0, 0, None) for s in JOB_SHAPES)
    ended = Drone(DRONE.id, DRONE.type, DroneState.DONE, 99.0, 90.0, 1000)
    assert DemoView(9.0, done, (ended,), (), 100.0).over
    assert not DemoView(9.0, done, (DRONE,), (), 100.0).over, "a drone is still there"
    assert not DemoView(0.0, done, (), (), 100.0).over, "no drone ever came"
    short = (ShapeView(JOB_SHAPES[0], 1, 1, 0, None), *done[1:])
    assert not DemoView(9.0, short, (ended,), (), 100.0).over
