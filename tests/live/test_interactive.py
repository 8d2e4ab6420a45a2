"""Interactive jobs on a drone: ``condor_submit -i`` and ``condor_ssh_to_job``, by CCB, with shares in force."""

from __future__ import annotations

import shlex
import time

import pytest

from tests.labs import mps as labs_mps
from tests.labs.device_nodes import nvidia_smi, with_device_nodes
from tests.labs.gpu import FakeGpus
from tests.labs.htcondor import Pool, StartDrone, fetched, gpu_job, until


@pytest.fixture(scope="module")
def sshd() -> str:
    """The directory of an sshd."""
    return str(fetched("get-sshd.sh"))


def inside(pool: Pool, job: str, commands: str) -> list[str]:
    """Lines that commands print in a session beside a job."""
    return pool.run(
        "condor_ssh_to_job", "-auto-retry", job, commands, identity="alice"
    ).splitlines()


def test_a_session_beside_a_job_on_a_share_has_its_gpu_alone(
    pool: Pool, drone_on: StartDrone, sshd: str
) -> None:
    if pool.condor.version.startswith("23."):
        pytest.skip("this HTCondor counts each GPU once, but for the slices of MIG")
    gpus = FakeGpus.build(pool.root / "ssh-gpus", 2)
    labs_mps.stand_in(gpus.directory)
    env = {**gpus.drone_env, "DRONE_SHARING": "mps", "DRONE_SHARES": "2", "DRONE_CPUS": "4"}
    drone = drone_on(pool, "ssh-1", env={**env, "PATH": f"{gpus.directory}:{sshd}:/usr/bin:/bin"})
    slot = drone.slot(pool)
    assert (slot["SshToJob"], slot["SshToJobWhy"]) == (True, "")
    assert "CCBID" in str(slot["MyAddress"]), "nobody can call it"
    jobs = pool.submit(gpu_job(60, n=2, more="+GpuMilli = 500"))
    until(lambda: pool.statuses(jobs) == [2, 2], what="both run")
    query = "nvidia-smi --query-gpu=uuid,memory.total --format=csv,noheader,nounits"
    show = f"{query}; echo $CUDA_VISIBLE_DEVICES $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; echo $CUDA_MPS_PIPE_DIRECTORY"
    found = [inside(pool, f"{jobs}.{proc}", show) for proc in range(2)]
    assert sorted(found) == sorted(
        [
            f"{gpus.uuid(n)}, 20268",
            f"{gpus.uuid(n)} 0=20268M",
            f"{drone.dir}/condor/mps/{n}",
        ]
        for n in range(2)
    )
    pool.remove(jobs)


def test_a_session_beside_a_job_on_an_instance_of_mig_has_that_alone(
    pool: Pool, drone_on: StartDrone, sshd: str
) -> None:
    gpus = FakeGpus.build(pool.root / "ssh-mig", 1)
    gpus.mig(0, 2, 20096)
    instances = [gpus.uuid(0, n) for n in range(2)]
    halves = {"DRONE_SHARING": "mig", "DRONE_SHARES": "2", "DRONE_VRAM_MIB": "40192"}
    env = {**gpus.drone_env, **halves, "CUDA_VISIBLE_DEVICES": ",".join(instances)}
    path = f"{gpus.directory}:{sshd}:/usr/bin:/bin"
    drone = drone_on(pool, "ssh-mig", env={**env, "DRONE_CPUS": "4", "PATH": path})
    assert drone.slot(pool)["SshToJob"] is True
    jobs = pool.submit(gpu_job(60, n=2, more="+GpuMilli = 500"))
    until(lambda: pool.statuses(jobs) == [2, 2], what="both run")
    query = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits"
    show = f"{query}; nvidia-smi -L | grep -o 'MIG-[-0-9a-f]*'; echo $CUDA_VISIBLE_DEVICES"
    found = [inside(pool, f"{jobs}.{proc}", show) for proc in range(2)]
    assert sorted(found) == [["20096", each, each] for each in sorted(instances)]
    pool.remove(jobs)


def test_a_session_beside_a_job_opens_no_gpu_of_a_neighbour(
    pool: Pool, drone_on: StartDrone, sshd: str
) -> None:
    root = pool.root / f"node-{time.monotonic_ns()}"
    (root / "dev").mkdir(parents=True)
    (root / "bin").mkdir()
    (root / "bin/nvidia-smi").write_text(nvidia_smi())
    (root / "bin/nvidia-smi").chmod(0o755)
    pool.account.give(root)
    around = with_device_nodes(root / "dev", pool.account.uid, pool.account.gid)
    both = {"DRONE_GPUS": "2", "DRONE_GPU_SIMULATE": "4,2", "CUDA_VISIBLE_DEVICES": "0,1"}
    env = {"PATH": f"{root}/bin:{sshd}:/usr/bin:/bin", "DRONE_CPUS": "4", **both}
    drone = drone_on(pool, "ssh-2", shell=(*around, "/bin/sh"), env=env)
    assert drone.slot(pool)["GpuGuard"] == "namespace"
    job = pool.submit(gpu_job(60))
    until(lambda: pool.statuses(job) == [2], what="it runs")
    tries = "for n in 0 1; do (: </dev/nvidia$n) 2>/dev/null && echo $n; done; echo $CUDA_VISIBLE_DEVICES"
    own, visible = inside(pool, f"{job}.0", tries)
    assert visible.startswith({"0": "GPU-a0223334", "1": "GPU-b1223334"}[own])
    terminal = f"condor_ssh_to_job -auto-retry -ssh 'ssh -tt' {job}.0 tty"
    said = pool.run("sh", "-c", terminal, identity="alice").split()
    assert any(word.startswith("/dev/pts/") for word in said), "a terminal as well"
    pool.remove(job)


def test_an_interactive_job_starts_within_seconds_on_a_drone_that_waits(
    pool: Pool, drone_on: StartDrone, sshd: str
) -> None:
    drone = drone_on(pool, "ssh-3", env={"PATH": f"{sshd}:/usr/bin:/bin"})
    until(lambda: drone.slot(pool)["DroneReady"], what="it takes jobs")
    file = pool.file("interactive")
    file.write_text("request_gpus = 1\nrequest_memory = 128MB\nrequest_disk = 1MB\nqueue\n")
    file.chmod(0o644)
    asked_at = time.time()
    submit = f"condor_submit -interactive {shlex.quote(str(file))}"
    said = pool.run(
        "sh", "-c", submit, identity="alice", stdin="echo at $(date +%s)\nexit\n", timeout_s=90
    )
    [at] = [line.split()[1] for line in said.splitlines() if line.startswith("at ")]
    [ad] = until(lambda: pool.history(int(said.split("cluster ")[1].split(".")[0])))
    assert int(ad["JobCurrentStartDate"]) - asked_at < 10
    assert int(at) >= int(ad["JobCurrentStartDate"])


def test_a_drone_without_sshd_says_so_and_takes_no_interactive_jobs(
    pool: Pool, drone_on: StartDrone
) -> None:
    slot = drone_on(pool, "ssh-4").slot(pool)
    assert (slot["SshToJob"], slot["SshToJobWhy"]) == (False, "there is no sshd on this node")
    interactive = pool.submit(gpu_job(0.5, more="+InteractiveJob = True"))
    plain = pool.submit(gpu_job(0.5))
    until(lambda: not pool.jobs(plain), what="another job is done")
    assert pool.statuses(interactive) == [1], "older, but kept out"
