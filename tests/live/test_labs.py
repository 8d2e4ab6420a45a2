"""The labs themselves: they come up, know who may what, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.labs.gpu import FakeGpus
from tests.labs.htcondor import (
    Condor,
    LabError,
    Pool,
    StartDrone,
    gpu_job,
    living_in,
    own,
    processes_with,
    running_pool,
    until,
)
from tests.labs.openstack import OpenStackLab
from tests.labs.slurm import Slurm, running_slurm


def test_nothing_is_left_of_a_pool_that_takes_jobs_of_those_it_knows(newest_condor: Condor) -> None:
    with running_pool(newest_condor) as pool:
        assert pool.statuses(pool.submit(gpu_job())) == [1]
        for stranger in ("reader", "drone"):
            with pytest.raises(LabError):
                pool.submit(gpu_job(), identity=stranger)
        if os.geteuid() == 0:
            assert (
                {os.stat(f"/proc/{pid}").st_uid for pid in living_in(pool.root)}
                == {pool.account.uid}
                != {0}
            )
        pool.signal("schedd", signal.SIGSTOP)
    assert not living_in(pool.root) and not pool.root.exists()


def test_a_drone_finds_the_fake_gpus_and_its_job_declares_a_load(
    pool: Pool, drone_on: StartDrone
) -> None:
    gpus = FakeGpus.build(pool.root / "gpus")
    drone = drone_on(pool, "fake-gpus", env=gpus.drone_env)
    slot = drone.slot(pool)
    assert (slot["GPUs"], slot["GPUs_DeviceName"]) == (2, "NVIDIA A100-SXM4-40GB")
    assert slot["AssignedGPUs"] == f"{gpus.uuid(0)[:12]},{gpus.uuid(1)[:12]}"
    program = pool.program("declares", f"{gpus.declare(40, 6000)}\nexec sleep 300")
    job = pool.submit(gpu_job(program=program))

    def used() -> bool:
        query = (
            "nvidia-smi",
            "--query-gpu=utilization.gpu,memory.used",
            "--format=csv,noheader,nounits",
        )
        lines = subprocess.run(
            query, env=gpus.env, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        return sorted(lines) == ["0, 0", "40, 6000"]

    until(used, 120, what="the load of the job on one GPU")
    pool.remove(job)


@pytest.mark.xdist_group("slurm")
def test_nothing_is_left_of_a_cluster_whose_jobs_have_gpus(slurm_programs: Slurm) -> None:
    step = "#!/bin/sh\nsrun sh -c 'echo $SLURMD_NODENAME gpu $CUDA_VISIBLE_DEVICES of $DRONE_GPU_SIMULATE'\n"
    with running_slurm(slurm_programs, a100=1, rest=False, ssh=False) as lab:
        out = lab.shared / "out"
        number = lab.sbatch(
            step, "-p", "accelerated-h100", "--gres=gpu:h100:1", "-c8", "--mem=20G", "-o", str(out)
        )
        lab.reaches(number, "COMPLETED")
        assert out.read_text() == "hkn0901 gpu 0 of 2,4\n"
        lab.reaches(lab.sbatch("#!/bin/sh\nexec sleep 600\n", "--gres=gpu:1"), "RUNNING")
    assert not lab.processes()
    assert str(lab.root) not in Path("/proc/self/mounts").read_text()


GUEST = """#!/bin/sh
export PROVISIONER_DRONE_ID={drone}
trap 'echo asked to go; exit 0' TERM
echo "$(id -un) on $(hostname)"; touch /tmp/x /run/x && echo may write
touch /usr/x 2>/dev/null || echo not there
sleep 1000 & wait
"""


@pytest.mark.xdist_group("openstack")
def test_a_guest_runs_with_a_port_and_a_volume_and_all_of_it_ends(openstack: OpenStackLab) -> None:
    drone = own("guest")
    disk = {"boot_index": 0, "source_type": "image", "destination_type": "volume", "volume_size": 1}
    disk |= {"uuid": openstack.image, "delete_on_termination": True}
    script = GUEST.format(drone=drone)
    number = openstack.boot(
        drone, "gpu.h100.vgpu", script=script, port=True, block_device_mapping_v2=[disk]
    )
    openstack.reaches(number, "ACTIVE")
    until(lambda: "not there" in openstack.console(number), what="it has written")
    assert openstack.console(number) == "root on drone\nmay write\nnot there\n"
    assert (
        processes_with(f"PROVISIONER_DRONE_ID={drone}\0").keys() <= openstack.guest(number).keys()
    )
    assert [port["device_id"] for port in openstack.ports()] == [number]
    assert [volume["attachments"][0]["server_id"] for volume in openstack.disks()] == [number]
    openstack.take_back(number)
    openstack.reaches(number, "SHUTOFF")
    assert openstack.console(number).endswith("asked to go\n")
    openstack.take_back(number, "delete")
    openstack.reaches(number, "GONE")
    assert (openstack.guest(number), openstack.ports(), openstack.disks()) == ({}, [], [])
