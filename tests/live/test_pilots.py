"""Drones as pilots and accounting see them, with real daemons."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from provisioner import drone
from provisioner.model import Benchmark, DroneId, DroneType, Sharing, StartOrder
from tests.labs import mps as labs_mps
from tests.labs.device_nodes import nvidia_smi, with_device_nodes
from tests.labs.gpu import FakeGpus
from tests.labs.htcondor import Pool, StartDrone, gpu_job, until

MEASURED = "2026-11-01"
A100 = DroneType("lab", "a100", gpu_milli=1000, cpus=2, memory_mib=512, disk_mib=1024)
SCALING = "(((MachineAttrApelSpecs0.'HEPscore23' / 12.5) ?: (MachineAttrApelScaling0 ?: 1.0)))"
"""The expression that HTCondor-CE's condor_batch_blah.py makes of `manual_spec1 = CE,HEPscore23,12.5`."""


def told(**published: Any) -> dict[str, str]:
    """The part of a drone's environment that says what its slot publishes."""
    order = StartOrder(DroneId("d"), replace(A100, **published), idle_timeout_s=1.0, grace_s=1.0)
    return {name: text for name, text in drone.environment(order).items() if name == "DRONE_AD"}


def test_accounting_finds_the_benchmarks_of_the_slot_in_the_job(
    new_pool: Callable[[str], Pool], drone_on: StartDrone
) -> None:
    pool = new_pool("SYSTEM_JOB_MACHINE_ATTRS = ApelSpecs ApelScaling GLIDEIN_Site\n")

    def accounted(name: str, **published: object) -> list[str]:
        process = drone_on(pool, name, env=told(**published))
        cluster = pool.submit(gpu_job(0.5))
        until(lambda: not pool.jobs(cluster), what="the job is done")
        process.stop()
        names = (SCALING, "MachineAttrApelScaling0", "MachineAttrGLIDEIN_Site0")
        return pool.run("condor_history", str(cluster), "-af:,", *names).strip().split(", ")

    score = Benchmark("HEPscore23", 14.4, MEASURED, average=12.0)
    assert accounted("apel-1", benchmark=(score,), glidein_site="FZK-LCG2") == [
        "1.152",
        "1.2",
        "FZK-LCG2",
    ]
    assert accounted("apel-2") == ["1.0", "undefined", "undefined"]


def test_the_slot_shows_what_is_configured_and_nothing_else(
    pool: Pool, drone_on: StartDrone
) -> None:
    entries = (
        Benchmark("HEPSPEC", 14.37, MEASURED),
        Benchmark("HEPscore23", 14.409, MEASURED),
        Benchmark("MLPERF", 1600, MEASURED, per="gpu"),
    )
    published = told(benchmark=entries, speed={"fp32": 19.5, "fp64": 9.7})
    name = drone_on(pool, "specs-1", env=published).slot(pool)["Name"]
    shown = ("ApelSpecs.HEPscore23", "ApelScaling", "HEPSPEC_PER_CORE", "GLIDEIN_Site")
    shown += ("GpuSpecs.MLPERF", "GpuSpeed.FP32", "BenchmarkDates.HEPSPEC")
    said = pool.run("condor_status", str(name), "-af:,", *shown).strip().split(", ")
    assert said == ["14.409", "undefined", "14.37", "undefined", "1600", "19.5", "2026-11-01"]
    plain = drone_on(pool, "specs-2", env=told()).slot(pool)["Name"]
    assert set(pool.run("condor_status", str(plain), "-af:,", *shown).strip().split(", ")) == {
        "undefined"
    }


QUERY = (
    "nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader,nounits; echo $?"
)
"""The query of ATLAS pilots (pilot3, `pilot/util/workernode.py`)."""
DRIVER = "580.159.04"
HALF = "+GpuMilli = 500"


def seen(pool: Pool, gpus: int = 1, more: str = HALF) -> list[str]:
    """Lines that a pilot gets by its query."""
    cluster = pool.submit(gpu_job(program=pool.program("pilot", QUERY), gpus=gpus, more=more))
    until(lambda: not pool.jobs(cluster), what="the pilot has ended")
    return (pool.dir / f"jobs/out.{cluster}.0").read_text().splitlines()


@pytest.mark.parametrize("sharing", [Sharing.TIME_SLICED, Sharing.MPS])
def test_a_pilot_on_a_share_sees_one_gpu_with_the_memory_of_the_share(
    pool: Pool, drone_on: StartDrone, sharing: Sharing
) -> None:
    if pool.condor.version.startswith("23."):
        pytest.skip("this HTCondor counts each GPU once, but for the slices of MIG")
    gpus = FakeGpus.build(pool.root / "two-gpus", 2)
    labs_mps.stand_in(gpus.directory)
    shares = {"DRONE_SHARING": sharing.value, "DRONE_SHARES": "2", "DRONE_CPUS": "4"}
    drone = drone_on(pool, f"view-{sharing.value}", env={**gpus.drone_env, **shares})
    assert drone.slot(pool)["GpuViewTrue"] is True, drone.said
    assert seen(pool) == [f"NVIDIA A100-SXM4-40GB, 20268, {DRIVER}", "0"]


def test_a_pilot_on_an_instance_of_mig_sees_its_memory(pool: Pool, drone_on: StartDrone) -> None:
    gpus = FakeGpus.build(pool.root / "mig-gpus", 1)
    gpus.mig(0, 2, 20096)
    halves = {"DRONE_SHARING": "mig", "DRONE_SHARES": "2", "DRONE_CPUS": "4"}
    drone = drone_on(
        pool,
        "view-mig",
        env={
            **gpus.drone_env,
            **halves,
            "DRONE_VRAM_MIB": "40192",
            "CUDA_VISIBLE_DEVICES": f"{gpus.uuid(0, 0)},{gpus.uuid(0, 1)}",
        },
    )
    assert drone.slot(pool)["GpuViewTrue"] is True, drone.said
    assert seen(pool) == [f"NVIDIA A100-SXM4-40GB, 20096, {DRIVER}", "0"]


def test_a_pilot_on_whole_gpus_sees_that_of_its_job_alone(pool: Pool, drone_on: StartDrone) -> None:
    gpus = FakeGpus.build(pool.root / "two-gpus", 2)
    drone = drone_on(pool, "view-whole", env=gpus.drone_env)
    assert drone.slot(pool)["GpuViewTrue"] is True, drone.said
    assert seen(pool, more="") == [f"NVIDIA A100-SXM4-40GB, 40536, {DRIVER}", "0"]


def test_a_pilot_on_a_cpu_drone_sees_no_gpu(pool: Pool, drone_on: StartDrone) -> None:
    gpus = FakeGpus.build(pool.root / "two-gpus", 2)
    root = pool.root / f"node-{time.monotonic_ns()}"
    (root / "dev").mkdir(parents=True)
    pool.account.give(root)
    me = pool.account
    around = with_device_nodes(root / "dev", me.uid, me.gid, namespaces=False)
    none = {"DRONE_GPUS": "0", "DRONE_GPU_MILLI": "0", "CUDA_VISIBLE_DEVICES": ""}
    drone = drone_on(pool, "view-cpu", shell=(*around, "/bin/sh"), env={**gpus.env, **none})
    slot = drone.slot(pool)
    assert (slot["GpuGuard"], slot["GpuViewTrue"]) == ("environment", True)
    assert seen(pool, 0, "") == ["No devices were found", "6"]


def test_the_ad_says_where_pilots_do_not_see_the_gpu(pool: Pool, drone_on: StartDrone) -> None:
    drone = drone_on(pool, "view-none")
    assert drone.slot(pool)["GpuViewTrue"] is False, "nvidia-smi is not on this host"


def test_dcgm_exporter_is_told_the_jobs_of_each_gpu(pool: Pool, drone_on: StartDrone) -> None:
    root = pool.root / f"node-{time.monotonic_ns()}"
    jobs = root / "jobs"
    for directory in (root / "dev", root / "bin", jobs):
        directory.mkdir(parents=True)
    (root / "bin/nvidia-smi").write_text(nvidia_smi())
    (root / "bin/nvidia-smi").chmod(0o755)
    pool.account.give(root)
    around = with_device_nodes(root / "dev", pool.account.uid, pool.account.gid)
    both = {"DRONE_GPUS": "2", "DRONE_GPU_SIMULATE": "4,2", "CUDA_VISIBLE_DEVICES": "0,1"}
    env = {"PATH": f"{root}/bin:/usr/bin:/bin", **both, "DRONE_DCGM_JOBS": str(jobs)}
    drone = drone_on(pool, "dcgm-1", shell=(*around, "/bin/sh"), env=env)
    drone.slot(pool)
    enough = pool.file("enough")
    cluster = pool.submit(gpu_job(n=2, until_there=enough))

    def told() -> list[str]:
        return sorted(line for n in "01" for line in (jobs / n).read_text().splitlines())

    until(lambda: pool.statuses(cluster) == [2, 2], what="both run")
    ids = sorted(str(ad["GlobalJobId"]) for ad in pool.jobs(cluster))
    until(lambda: told() == ids, what="both are in the files")
    assert all(len((jobs / n).read_text().splitlines()) == 1 for n in "01"), "one for each GPU"
    enough.touch()
    until(lambda: told() == [], what="none is there")
    drone.stop()
    assert not list(jobs.iterdir())
