"""The idle clock of a drone on a real pool, with the intervals that startds and starters really have."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.labs.controller import BIG, LabController
from tests.labs.htcondor import QUICK_DRONE, Pool, gpu_job, until

JOB_S = 45
QUICK = (
    "UPDATE_INTERVAL",
    "POLLING_INTERVAL",
    "STARTER_UPDATE_INTERVAL",
    "STARTER_INITIAL_UPDATE_INTERVAL",
)
"""Settings of the lab's drones that are left out here: those of the drone's script apply, and HTCondor's defaults."""
POLL_S = 45
"""A look of the controller, a startd's delay in telling, and a busy host; the next ad by itself comes after 120 s."""


@pytest.mark.matrix
def test_the_idle_clock_of_a_drone_begins_at_the_end_of_its_job(
    lab: tuple[Pool, LabController],
) -> None:
    """A startd sends an ad at the end of a job that still has the idle time of its beginning, and
    the next one with the true time two minutes later (the lab's usual drones send one every two
    seconds)."""
    pool, controller = lab
    controller.sites, controller.idle_s = (BIG,), 90
    usual = "\n".join(
        line for line in QUICK_DRONE.splitlines() if line.partition(" =")[0] not in QUICK
    )
    controller.options = {"drone_config": usual}
    controller.start()
    job = pool.submit(gpu_job(JOB_S))
    until(lambda: pool.history(job), 240, what="the job is done", every_s=1)
    [done] = pool.history(job)
    ended = float(str(done["CompletionDate"]))

    def idle() -> dict[str, Any] | None:
        [drone] = controller.drones()
        return drone if drone["jobs_started"] and not drone["jobs"] and drone["idle_at"] else None

    drone = until(idle, 60, what="the drone had its job", every_s=0.5)
    late_s = float(drone["idle_at"]) - ended
    print(
        f"the idle clock began {late_s:.1f} s after the end of the job; now {time.time() - ended:.1f} s after it"
    )
    assert -2 <= late_s <= POLL_S, drone
