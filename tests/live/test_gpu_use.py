"""Records of a job's ad on its use of the GPU, and a job that holds more VRAM than its share.

The GPUs are fake (``tests/labs/gpu.py``); the drone's monitor, HTCondor and its tools are real.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import pytest

from tests.labs.gpu import FakeGpus
from tests.labs.htcondor import Pool, StartDrone, gpu_job, until

SHARED = {"DRONE_SHARING": "time-sliced", "DRONE_SHARES": "4", "DRONE_CPUS": "4"}
A_SHARE = 40536 // 4


@pytest.fixture
def gpus(pool: Pool) -> FakeGpus:
    return FakeGpus.build(pool.root / "gpus", 1)


def submit(
    pool: Pool,
    gpus: FakeGpus,
    name: str,
    *loads: tuple[int, int],
    seconds: float = 30,
    more: str = "",
) -> int:
    """Submit a job that has a process for each load (percent and MiB)."""
    own, *others = [gpus.declare(percent, mib) for percent, mib in loads]
    children = "".join(f"sh -c {_quoted(f'{line}; exec sleep {seconds}')} &\n" for line in others)
    return pool.submit(
        gpu_job(program=pool.program(name, f"{own}\n{children}sleep {seconds}"), more=more)
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def record(pool: Pool, cluster: int) -> Mapping[str, Any]:
    """The ad of a job that is done."""
    until(lambda: pool.history(cluster), 150, what=f"job {cluster} is done")
    return pool.history(cluster)[0]


def test_the_first_job_of_a_drone_records_its_use(
    pool: Pool, drone_on: StartDrone, gpus: FakeGpus
) -> None:
    """HTCondor alone records nothing of it: it has no report of the GPU from before the job began."""
    job = submit(pool, gpus, "first", (50, 20000), (0, 10000))
    drone = drone_on(pool, "use-first", env={**gpus.drone_env, "DRONE_VRAM_MIB": "20000"})
    assert drone.slot(pool)["VramEnforced"] == "watched"
    ad = record(pool, job)
    assert ad["GPUsAverageUsage"] == pytest.approx(0.5, abs=0.05), drone.story()
    assert ad["GPUsMemoryUsage"] == 30000, "of both processes; on an exclusive GPU nothing is held"
    assert ad["GPUsEnergyUsage"] > 100
    assert not ad.get("NumHolds")


def test_jobs_on_shares_have_their_own_figures_and_one_over_its_share_is_held(
    pool: Pool, drone_on: StartDrone, gpus: FakeGpus
) -> None:
    if pool.condor.version.startswith("23."):
        pytest.skip("this HTCondor counts each GPU once, but for the slices of MIG")
    drone = drone_on(pool, "use-shares", env={**gpus.drone_env, **SHARED})
    assert drone.slot(pool)["VramEnforced"] == "watched"
    small = "+GpuMilli = 250"
    idle = submit(pool, gpus, "mostly-idle", (20, 3000), more=small)
    busy = submit(pool, gpus, "busy", (40, A_SHARE), more=small)
    until(lambda: pool.statuses(idle) + pool.statuses(busy) == [2, 2], 60, what="both run")
    half = A_SHARE * 11 // 20
    greedy = submit(pool, gpus, "greedy", (0, half), (0, half), more=small)
    until(lambda: 2 in pool.statuses(greedy), 60, what="the greedy job runs")
    until(lambda: pool.statuses(greedy) == [5], 15, what="the greedy job is held")
    [held] = pool.jobs(greedy)
    assert (held["HoldReasonCode"], held["HoldReasonSubCode"]) == (21, 105)
    assert (
        f"VRAM usage of {2 * half} MiB exceeded the job's share of {A_SHARE} MiB"
        in held["HoldReason"]
    )
    pool.remove(greedy)
    for job, use, mib in ((idle, 0.2, 3000), (busy, 0.4, A_SHARE)):
        ad = record(pool, job)
        assert ad["JobStatus"] == 4, "its neighbour's end did not end it"
        assert ad["GPUsAverageUsage"] == pytest.approx(use, abs=0.05), drone.story()
        assert ad["GPUsMemoryUsage"] == mib


def test_a_drone_takes_no_job_while_a_process_without_a_job_holds_vram(
    pool: Pool, drone_on: StartDrone, gpus: FakeGpus
) -> None:
    """It left its parents at once: it cannot be known whose it is, and nobody is held for it."""
    if pool.condor.version.startswith("23."):
        pytest.skip("this HTCondor counts each GPU once, but for the slices of MIG")
    drone = drone_on(pool, "use-strays", env={**gpus.drone_env, **SHARED})
    flag = pool.file("strays-go")
    loads = f"{gpus.declare(10, 2 * A_SHARE)}; while [ ! -e {flag} ]; do sleep 0.2; done"
    stray = f"setsid sh -c {_quoted(f'sh -c {_quoted(loads)} &')}"
    program = pool.program("leaves", f"{stray}\nsleep 300")
    first = pool.submit(gpu_job(program=program, more="+GpuMilli = 250"))
    until(lambda: drone.slot(pool).get("DroneStrayVram") == 2 * A_SHARE, 60, what="it is seen")
    second = submit(pool, gpus, "beside", (0, 100), more="+GpuMilli = 250")
    time.sleep(8)  # several negotiations
    assert (pool.statuses(first), pool.statuses(second)) == ([2], [1])
    flag.touch()
    flag.chmod(0o644)
    until(lambda: pool.statuses(second) == [2], 60, what="once it has ended the drone takes jobs")
    pool.remove(first)
    pool.remove(second)


@pytest.mark.matrix
def test_a_node_without_python_records_the_use_of_the_whole_gpu(
    pool: Pool, drone_on: StartDrone, gpus: FakeGpus
) -> None:
    broken = gpus.directory / "python3"
    broken.write_text("#!/bin/sh\necho no such module\nexit 1\n")
    broken.chmod(0o755)
    try:
        job = submit(pool, gpus, "no-python", (60, 9000), seconds=60)
        drone = drone_on(pool, "use-device", env=gpus.drone_env)
        assert drone.slot(pool)["VramEnforced"] == "none"
        ad = record(pool, job)
    finally:
        os.unlink(broken)
    assert "measures GPUs by device only: no such module" in drone.said
    assert ad["GPUsAverageUsage"] == pytest.approx(0.6, abs=0.15), (
        "HTCondor's monitor reports every 10 s"
    )
    assert ad["GPUsMemoryUsage"] == 9000
