"""Drones that offer their GPUs in shares: what a real negotiator packs onto them, and what a drone makes of each mode.

The GPUs are those that ``condor_gpu_discovery`` simulates, so nothing is computed. Of MPS there is only the program: a
stand-in that answers as NVIDIA's does takes its place.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner.model import Sharing
from tests.labs import controller as lab_controller
from tests.labs.controller import LabController, LabSite
from tests.labs.htcondor import DroneProcess, Pool, StartDrone, gpu_job, until

SharedDrone = Callable[..., DroneProcess]
A_QUARTER = "+GpuMilli = 200"


FOUR = {"cpus": 4, "sharing": "time-sliced", "shares": 4}
QUARTERS = LabSite("shared", "quarters", lab_controller.A100, 4, type=FOUR)
"""A site whose drones offer their GPU as four."""


def drones_of(pool: Pool, cluster: int) -> set[str]:
    """The drones in which jobs of a cluster run."""
    return {str(ad["RemoteHost"]).split("@")[1] for ad in pool.jobs(cluster)}


def devices_of(pool: Pool, cluster: int, jobs: int) -> list[str]:
    """What each job of a cluster that is done saw as its GPUs."""
    texts = [(pool.dir / "jobs" / f"out.{cluster}.{proc}").read_text() for proc in range(jobs)]
    return [line for text in texts for line in text.splitlines() if line.startswith("CUDA_VISIBLE_DEVICES=")]


def test_small_jobs_are_packed_and_one_that_wants_a_whole_gpu_waits(lab: tuple[Pool, LabController]) -> None:
    pool, controller = lab
    if pool.condor.version.startswith("23."):
        pytest.skip("this HTCondor counts each GPU once, but for the slices of MIG")
    controller.sites = (QUARTERS,)
    flag = pool.file("enough")
    small = pool.submit(gpu_job(n=4, until_there=flag, memory_mib=100, more=A_QUARTER))
    whole, third = pool.submit(gpu_job()), pool.submit(gpu_job(more="+GpuMilli = 300"))
    large = pool.submit(gpu_job(more=f"{A_QUARTER}\ngpus_minimum_memory = 12000"))
    controller.start()
    until(lambda: pool.statuses(small) == [2] * 4, 120, what="four small jobs at once")
    assert len(drones_of(pool, small)) == 1, "on one GPU"

    def told(cluster: int) -> str:
        return controller.call("explain", "job", f"{cluster}.0").stdout

    controller.ticks(3)
    for cluster, why in ((whole, "shares of 0.25"), (third, "shares of 0.25"), (large, "11915 MiB a share")):
        assert pool.statuses(cluster) == [1]
        assert why in told(cluster), told(cluster)
    assert len(controller.drones()) == 1, "one drone for the four, none for those that it cannot host"
    [slot] = pool.slots()[:1]
    assert (slot["DroneShares"], slot["GPUs"], slot["TotalSlotGPUs"]) == (4, 0, 4)

    fifth = pool.submit(gpu_job(until_there=flag, memory_mib=100, more=A_QUARTER))
    until(lambda: pool.statuses(fifth) == [2], 120, what="the fifth")
    assert len(controller.drones()) == 2, "which needs another drone"
    flag.touch()
    flag.chmod(0o644)
    until(lambda: not pool.jobs(small) and not pool.jobs(fifth), 60, what="all done")
    [gpu] = set(devices_of(pool, small, 4))
    assert gpu.startswith("CUDA_VISIBLE_DEVICES=GPU-a0223334"), "one device for all"
    for cluster in (whole, third, large):
        pool.remove(cluster)
    until(lambda: not controller.live(), 120, what="the drones are gone", every_s=1)
    assert len(controller.drones()) == 2


@pytest.fixture
def shared(pool: Pool, drone_on: StartDrone) -> SharedDrone:
    """Start a drone that shares its GPU."""

    def start(name: str, sharing: Sharing, shares: int, **env: str) -> DroneProcess:
        told = {"DRONE_SHARING": sharing.value, "DRONE_SHARES": str(shares), "DRONE_CPUS": "4", **env}
        return drone_on(pool, name, env=told)

    return start


def test_the_slices_of_mig_are_the_devices(pool: Pool, shared: SharedDrone) -> None:
    two = {"DRONE_GPU_SIMULATE": "5,1", "DRONE_IDLE_S": "4"}  # an A100 of two slices
    drone = shared("mig-7", Sharing.MIG, 7, **two)
    assert (drone.wait(), drone.outcome["reason"]) == (71, "check-failed")
    assert "HTCondor finds 2 of 7 shares of GPUs" in drone.said

    drone = shared("mig-2", Sharing.MIG, 2, **two)
    slot = drone.slot(pool)
    assert (slot["GPUs"], slot["DroneShares"]) == (2, 2)
    enough = pool.file("enough")
    jobs = pool.submit(gpu_job(n=2, more="+GpuMilli = 500", until_there=enough))
    until(lambda: pool.statuses(jobs) == [2, 2], 60, what="a job on each slice")
    enough.touch()
    until(lambda: not pool.jobs(jobs), 60, what="both are done")
    each = set(devices_of(pool, jobs, 2))
    assert len(each) == 2 and all(line.startswith("CUDA_VISIBLE_DEVICES=MIG-GPU-a0223334") for line in each), each


@pytest.mark.parametrize(
    ("sharing", "code", "reason", "why"),
    [
        (Sharing.TIME_SLICED, 74, "no-shares", "counts a GPU once"),
        (Sharing.MPS, 74, "no-mps", "nvidia-cuda-mps-control is not on this host"),
    ],
)
def test_a_drone_whose_host_cannot_share_says_so(
    pool: Pool, shared: SharedDrone, sharing: Sharing, code: int, reason: str, why: str
) -> None:
    if sharing is Sharing.TIME_SLICED and not pool.condor.version.startswith("23."):
        pytest.skip("this HTCondor hands out a GPU as often as it is listed")
    drone = shared(f"none-{sharing.value}", sharing, 4)
    assert (drone.wait(), drone.outcome["reason"]) == (code, reason)
    assert why in drone.said


STAND_IN = """#!/bin/sh
# For nvidia-cuda-mps-control: writes down what it is told, and has a process that lives until it is told to quit.
said=$(dirname "$0")/said pid=$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid
case ${1:-} in
    -d)
        [ -d "$CUDA_MPS_PIPE_DIRECTORY" ] || { echo "no such directory"; exit 1; }
        echo "start $CUDA_VISIBLE_DEVICES $CUDA_MPS_LOG_DIRECTORY" >>"$said"
        setsid sh -c 'while :; do sleep 1; done' >/dev/null 2>&1 &
        echo $! >"$pid" ;;
    '')
        kill -0 "$(cat "$pid")" 2>/dev/null || { echo "Cannot find MPS control daemon process"; exit 1; }
        read -r words
        [ "$words" = get_server_list ] || echo "$words" >>"$said"
        case $words in quit*) kill "$(cat "$pid")" ;; esac ;;
    *) exit 2 ;;
esac
"""


@pytest.fixture
def mps(pool: Pool) -> Path:
    """The directory of a stand-in for MPS; what it was told is in ``said``."""
    if pool.condor.version.startswith("23."):
        pytest.skip("this HTCondor counts each GPU once, but for the slices of MIG")
    directory = pool.root / f"mps-{time.monotonic_ns()}"
    directory.mkdir()
    program = directory / "nvidia-cuda-mps-control"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    pool.account.give(directory)
    return directory


def test_under_mps_jobs_share_by_a_daemon_of_the_drones_own(pool: Pool, shared: SharedDrone, mps: Path) -> None:
    drone = shared("mps-1", Sharing.MPS, 4, PATH=f"{mps}:/usr/bin:/bin", DRONE_IDLE_S="4")
    drone.slot(pool)
    jobs = pool.submit(gpu_job(2, n=2, more=A_QUARTER))
    until(lambda: not pool.jobs(jobs), 60, what="both are done")
    pipes = drone.dir / "condor/mps"
    for proc in range(2):
        environment = (pool.dir / "jobs" / f"out.{jobs}.{proc}").read_text().splitlines()
        assert f"CUDA_MPS_PIPE_DIRECTORY={pipes}" in environment
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10134M" in environment, "a quarter of 40536 MiB"
    assert drone.wait() == 0, drone.story()
    said = (mps / "said").read_text().splitlines()
    assert said == [f"start 0 {drone.dir}/log", "set_default_device_pinned_mem_limit 0 10134M", "quit -t 1"]


def test_a_daemon_that_dies_is_a_failed_check(pool: Pool, shared: SharedDrone, mps: Path) -> None:
    drone = shared("mps-2", Sharing.MPS, 2, PATH=f"{mps}:/usr/bin:/bin", DRONE_CHECK_S="1")
    drone.slot(pool)
    os.kill(int((drone.dir / "condor/mps/nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)
    assert drone.wait() == 71, drone.story()
    assert "check mps_check failed: the MPS control daemon does not answer" in drone.said


def test_a_drone_that_is_killed_leaves_no_daemon(pool: Pool, shared: SharedDrone, mps: Path) -> None:
    drone = shared("mps-4", Sharing.MPS, 4, PATH=f"{mps}:/usr/bin:/bin")
    drone.slot(pool)
    drone.send(signal.SIGKILL)
    assert drone.wait() == -signal.SIGKILL
    until(lambda: not drone.leftovers(), 30, what="its HTCondor and its MPS are gone")
