"""Drones that offer their GPUs in shares: what a real negotiator packs onto them, and what a drone makes of each mode.

The GPUs are those that ``condor_gpu_discovery`` simulates, so nothing is computed. Of MPS there is
only the program: a stand-in that answers as NVIDIA's does takes its place (:mod:`tests.labs.mps`;
``tests/test_mps.py`` has the real one).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner.model import Sharing
from tests.labs import controller as lab_controller, mps as labs_mps
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
    return [
        line
        for text in texts
        for line in text.splitlines()
        if line.startswith("CUDA_VISIBLE_DEVICES=")
    ]


def test_small_jobs_are_packed_and_one_that_wants_a_whole_gpu_waits(
    lab: tuple[Pool, LabController],
) -> None:
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
    for cluster, why in (
        (whole, "shares of 0.25"),
        (third, "shares of 0.25"),
        (large, "11915 MiB a share"),
    ):
        assert pool.statuses(cluster) == [1]
        assert why in told(cluster), told(cluster)
    assert len(controller.drones()) == 1, (
        "one drone for the four, none for those that it cannot host"
    )
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
        told = {
            "DRONE_SHARING": sharing.value,
            "DRONE_SHARES": str(shares),
            "DRONE_CPUS": "4",
            **env,
        }
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
    assert len(each) == 2 and all(
        line.startswith("CUDA_VISIBLE_DEVICES=MIG-GPU-a0223334") for line in each
    ), each


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


@pytest.fixture
def mps(pool: Pool) -> Path:
    """The directory of a stand-in for MPS; what it was told is in ``said``."""
    if pool.condor.version.startswith("23."):
        pytest.skip("this HTCondor counts each GPU once, but for the slices of MIG")
    directory = pool.root / f"mps-{time.monotonic_ns()}"
    directory.mkdir()
    labs_mps.stand_in(directory)
    pool.account.give(directory)
    return directory


ONE_GPU = {"DRONE_GPU_SIMULATE": "4,1"}
UUID = "GPU-a0223334-4445-5667-899a-abbccddeeff0"
CLIENT = 'echo $$ >>"$CUDA_MPS_PIPE_DIRECTORY/clients"'
"""Commands that make a job a client of the stand-in."""


def said(mps: Path) -> list[str]:
    """Return the commands that the stand-in got."""
    return (mps / "said").read_text().splitlines()


def mps_drone(
    shared: SharedDrone, mps: Path, name: str, shares: int = 4, **env: str
) -> DroneProcess:
    return shared(name, Sharing.MPS, shares, PATH=f"{mps}:/usr/bin:/bin", **ONE_GPU, **env)


def test_under_mps_jobs_share_by_a_daemon_of_the_drones_own(
    pool: Pool, shared: SharedDrone, mps: Path
) -> None:
    drone = mps_drone(shared, mps, "mps-1", DRONE_IDLE_S="4")
    slot = drone.slot(pool)
    assert slot["DroneMpsOrderedEnd"] is True
    jobs = pool.submit(gpu_job(2, n=2, more=A_QUARTER))
    until(lambda: not pool.jobs(jobs), 60, what="both are done")
    for proc in range(2):
        environment = (pool.dir / "jobs" / f"out.{jobs}.{proc}").read_text().splitlines()
        assert f"CUDA_MPS_PIPE_DIRECTORY={drone.dir}/condor/mps/0" in environment
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10134M" in environment, "a quarter of 40536 MiB"
        assert f"CUDA_VISIBLE_DEVICES={UUID}" in environment
    assert drone.wait() == 0, drone.story()
    assert said(mps) == [
        f"start {UUID} {drone.dir}/log/mps-0",
        "set_default_device_pinned_mem_limit 0 10134M",
        f"start_server -uid {pool.account.uid}",
        "quit -t 1",
    ]


def test_each_gpu_has_a_daemon_of_its_own(pool: Pool, shared: SharedDrone, mps: Path) -> None:
    two = {"DRONE_GPUS": "2", "DRONE_GPU_SIMULATE": "4,2", "CUDA_VISIBLE_DEVICES": "0,1"}
    drone = shared("mps-8", Sharing.MPS, 2, PATH=f"{mps}:/usr/bin:/bin", **two)
    drone.slot(pool)
    jobs = pool.submit(gpu_job(1, n=4, memory_mib=100, more="+GpuMilli = 500"))
    until(lambda: not pool.jobs(jobs), 60, what="all are done")
    texts = [
        (pool.dir / "jobs" / f"out.{jobs}.{proc}").read_text().splitlines() for proc in range(4)
    ]
    pipes = [
        next(line for line in lines if line.startswith("CUDA_MPS_PIPE_DIRECTORY="))
        for lines in texts
    ]
    devices = [
        next(line for line in lines if line.startswith("CUDA_VISIBLE_DEVICES=GPU-"))
        for lines in texts
    ]
    assert len(set(zip(pipes, devices, strict=True))) == len(set(pipes)) == 2, "by GPU"


def test_a_server_that_dies_at_once_ends_the_drone(
    pool: Pool, shared: SharedDrone, mps: Path
) -> None:
    (mps / "no-server").touch()
    drone = mps_drone(shared, mps, "mps-0")
    assert (drone.wait(), drone.outcome["reason"]) == (74, "no-mps")
    assert "no MPS server lives: Server" in drone.said and "exited with status 1" in drone.said
    assert not pool.drone_slots(drone.id), "it never took a job"


def test_a_daemon_that_dies_is_a_failed_check(pool: Pool, shared: SharedDrone, mps: Path) -> None:
    drone = mps_drone(shared, mps, "mps-2", 2, DRONE_CHECK_S="1")
    drone.slot(pool)
    os.kill(
        int((drone.dir / "condor/mps/0/nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL
    )
    assert drone.wait() == 71, drone.story()
    assert "check mps_check failed: GPU-a0223334: the MPS control daemon has gone" in drone.said


def test_a_daemon_that_was_started_again_without_its_limit_ends_acceptance(
    pool: Pool, shared: SharedDrone, mps: Path
) -> None:
    drone = mps_drone(shared, mps, "mps-3", 2)
    until(lambda: drone.slot(pool)["DroneReady"], what="it takes jobs")
    pipes = drone.dir / "condor/mps/0"
    os.kill(int((pipes / "nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)
    # its process may stay for a while, as a zombie
    (pipes / "nvidia-cuda-mps-control.pid").write_text("")
    mps_environment = {
        "CUDA_MPS_PIPE_DIRECTORY": str(pipes),
        "CUDA_MPS_LOG_DIRECTORY": f"{drone.dir}/log/mps-0",
    }
    env = {"PATH": "/usr/bin:/bin", "PROVISIONER_DRONE_ID": drone.id, **mps_environment}
    subprocess.run(
        [mps / "nvidia-cuda-mps-control", "-d"], env=env, check=True, timeout=60, **pool.account.run
    )
    why = "the limit of memory of the MPS control daemon reads '' instead of 20268M"
    until(lambda: why in str(drone.slot(pool)["DroneMpsWhy"]), 60, what="the ad says so")
    assert drone.slot(pool)["DroneMpsReady"] is False
    job = pool.submit(gpu_job(more="+GpuMilli = 500"))
    time.sleep(5)  # several negotiations
    assert pool.statuses(job) == [1]


def test_a_fault_ends_acceptance_until_the_server_takes_clients_again(
    pool: Pool, shared: SharedDrone, mps: Path
) -> None:
    drone = mps_drone(shared, mps, "mps-5", 2)
    flag = pool.file("faulted")
    program = pool.program("client", f"{CLIENT}\nwhile [ ! -e {flag} ]; do sleep 0.2; done\nexit 1")
    jobs = pool.submit(gpu_job(n=2, program=program, memory_mib=100, more="+GpuMilli = 500"))
    until(lambda: pool.statuses(jobs) == [2, 2], 60, what="both run")
    pipes = drone.dir / "condor/mps/0"
    clients = until(
        lambda: (
            (pipes / "clients").read_text().split()[1:] and (pipes / "clients").read_text().split()
        )
    )
    log = drone.dir / "log/mps-0/server.log"
    server = (pipes / "server").read_text().strip()

    def logs(text: str) -> None:
        with log.open("a") as file:
            file.write(f"[2026-04-28 18:20:41.986 Server {server}] {text}\n")

    (pipes / "status").write_text("FAULT\n")
    logs(
        f"Client {{PID: {clients[0]}, Context ID: 0}} triggered a fatal GPU memory fault on device 0"
    )
    flag.touch()
    flag.chmod(0o644)
    until(lambda: drone.slot(pool)["DroneMpsReady"] is False, 60, what="it takes no jobs")
    records = [record.split("|") for record in str(drone.slot(pool)["DroneFaults"]).split()]
    assert [record[3] for record in records] == ["collateral", "collateral"]
    assert {record[1].split("#")[1] for record in records} == {f"{jobs}.0", f"{jobs}.1"}
    (pipes / "status").write_text("ACTIVE\n")
    until(lambda: drone.slot(pool)["DroneMpsReady"] is True, 60, what="it takes jobs again")
    again = pool.submit(gpu_job(more="+GpuMilli = 500"))
    until(lambda: not pool.jobs(again), 60, what="another job has run")


def test_jobs_share_a_pool_of_memory_by_what_they_ask_for(
    pool: Pool, shared: SharedDrone, mps: Path
) -> None:
    sizes = {
        "DRONE_VRAM_MIB": "40000",
        "DRONE_VRAM_POOL": "1",
        "DRONE_CPUS": "16",
        "DRONE_MEMORY_MIB": "4096",
    }
    drone = mps_drone(shared, mps, "mps-9", 8, **sizes)
    slot = drone.slot(pool)
    assert (slot["GPUMem"], slot["GPUs"]) == (40000, 8)
    assert "set_default_device_pinned_mem_limit 0 40000M" in said(mps), (
        "a job may ask for all of it"
    )
    flag = pool.file("pooled")
    equal = pool.submit(gpu_job(memory_mib=100, until_there=flag, more="+GpuMilli = 125"))
    small = pool.submit(gpu_job(memory_mib=100, until_there=flag, more="request_gpumem = 1000"))
    until(
        lambda: pool.statuses(equal) + pool.statuses(small) == [2, 2],
        60,
        what="two jobs of an equal share",
    )
    large = pool.submit(
        gpu_job(n=4, memory_mib=100, until_there=flag, more="request_gpumem = 9000")
    )
    until(lambda: sorted(pool.statuses(large)) == [1, 2, 2, 2], 60, what="three large jobs")
    third = pool.submit(gpu_job(memory_mib=100, until_there=flag, more="+GpuMilli = 125"))
    until(lambda: drone.slot(pool)["GPUMem"] == 3000, what="the rest is in its ad")
    time.sleep(5)  # several negotiations
    assert (pool.statuses(third), sorted(pool.statuses(large))) == ([1], [1, 2, 2, 2]), (
        "3000 MiB are left"
    )
    flag.touch()
    flag.chmod(0o644)
    until(lambda: not any(map(pool.jobs, (large, equal, small, third))), 90, what="all are done")
    for cluster, mib in ((large, 9000), (equal, 5000), (small, 5000)):
        lines = (pool.dir / "jobs" / f"out.{cluster}.0").read_text().splitlines()
        assert f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={mib}M" in lines


@pytest.mark.parametrize("how", ["removed", "drone ends", "drone ends at once"])
def test_the_clients_of_a_job_are_ended_before_it_is_killed(
    pool: Pool, shared: SharedDrone, mps: Path, how: str
) -> None:
    drone = mps_drone(shared, mps, f"mps-6-{len(how)}")
    job = pool.submit(
        gpu_job(
            program=pool.program("ends", f"{CLIENT}\nwhile :; do sleep 0.2; done"), more=A_QUARTER
        )
    )
    pipes = drone.dir / "condor/mps/0"
    client = until(lambda: (pipes / "clients").read_text().strip(), 60, what="its client")
    server = (pipes / "server").read_text().strip()
    if how == "removed":
        pool.remove(job)
    else:
        drone.send(signal.SIGTERM if how == "drone ends" else signal.SIGQUIT)
        assert drone.wait() == 0, drone.story()
    until(lambda: f"terminate_client {server} {client}" in said(mps), what="its client is ended")


def test_a_job_under_mps_ends_with_its_own_status(
    pool: Pool, shared: SharedDrone, mps: Path
) -> None:
    mps_drone(shared, mps, "mps-7")
    by_status = pool.submit(gpu_job(program=pool.program("status", "exit 143"), more=A_QUARTER))
    by_signal = pool.submit(gpu_job(program=pool.program("signal", "kill -15 $$"), more=A_QUARTER))
    until(lambda: not pool.jobs(by_status) and not pool.jobs(by_signal), 60, what="both have ended")
    texts = [
        (pool.dir / "jobs" / f"log.{cluster}").read_text() for cluster in (by_status, by_signal)
    ]
    assert "Normal termination (return value 143)" in texts[0]
    assert "Abnormal termination (signal 15)" in texts[1]


def test_a_drone_that_is_killed_leaves_no_daemon(
    pool: Pool, shared: SharedDrone, mps: Path
) -> None:
    drone = mps_drone(shared, mps, "mps-4")
    drone.slot(pool)
    drone.send(signal.SIGKILL)
    assert drone.wait() == -signal.SIGKILL
    until(lambda: not drone.leftovers(), 30, what="its HTCondor and its MPS are gone")
