"""Drones that take bad GPUs offline while jobs run on the others, with fake GPU libraries and real daemons."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioner.model import BreakerState
from tests.labs.controller import LabController, Settings
from tests.labs.gpu import FakeGpus
from tests.labs.htcondor import DroneProcess, Pool, StartDrone, gpu_job, until

VERDICT_S = 30


def start(
    drone_on: StartDrone, pool: Pool, gpus: FakeGpus, name: str, **env: str
) -> tuple[DroneProcess, Path]:
    """Start a drone with all of the GPUs, and return it with the kernel log that it reads."""
    log = pool.file(f"{name}.kernel.log")
    log.touch()
    log.chmod(0o644)
    told = {
        "DRONE_CPUS": "8",
        "DRONE_MEMORY_MIB": "4096",
        "DRONE_CHECK_S": "2",
        "DRONE_KERNEL_LOG": str(log),
    }
    return drone_on(pool, name, env={**gpus.drone_env, **told, **env}), log


def finish(flag: Path) -> None:
    flag.touch()
    flag.chmod(0o644)


def test_one_of_eight_gpus_goes_offline_and_comes_back(pool: Pool, drone_on: StartDrone) -> None:
    """A fatal Xid: all jobs run on; no other gets the GPU before the verdict has expired."""
    gpus = FakeGpus.build(pool.root / "eight-gpus", 8)
    drone, log = start(drone_on, pool, gpus, "eight", DRONE_GPU_FATAL_S=str(VERDICT_S))
    others_flag, flag = pool.file("others-may-end"), pool.file("may-end")
    others = pool.submit(gpu_job(n=7, until_there=others_flag))
    until(lambda: pool.statuses(others) == [2] * 7, 120, what="seven jobs run")
    on_bad_gpu = pool.submit(gpu_job(until_there=flag))
    until(lambda: pool.statuses(on_bad_gpu) == [2], 60, what="the eighth job runs")
    assert drone.slot(pool)["DroneGpusOffline"] == 0
    assert (
        "cuda" in drone.slot(pool)["DroneGpuCheck"] and "xid" in drone.slot(pool)["DroneGpuCheck"]
    )

    bad = next(
        n for n in range(8) if str(pool.jobs(on_bad_gpu)[0]["AssignedGPUs"]) == gpus.uuid(n)[:12]
    )
    happened_at = time.time()
    stamp = time.clock_gettime(time.CLOCK_MONOTONIC)
    log.write_text(
        f"[{stamp:12.6f}] NVRM: Xid (PCI:0000:{bad + 1:02X}:00): 79, GPU has fallen off the bus.\n"
    )
    until(lambda: drone.slot(pool)["DroneGpusOffline"] == 1, 60, what="the GPU is offline")
    assert drone.slot(pool)["DroneGpusOfflineWhy"] == f"{gpus.uuid(bad)[:12]}: Xid 79 (fatal)"
    assert drone.slot(pool)["OfflineGPUs"] == gpus.uuid(bad)[:12]
    assert pool.statuses(on_bad_gpu) == [2], "no job is ended"

    finish(flag)
    until(lambda: not pool.jobs(on_bad_gpu), 60, what="the job on the bad GPU has ended")
    after = pool.submit(gpu_job())
    until(lambda: not pool.jobs(after), VERDICT_S + 120, what="a job gets the GPU that is back")
    (ad,) = pool.history(after)
    assert ad["JobStartDate"] >= happened_at + VERDICT_S - 2, "not before the verdict had expired"
    assert pool.statuses(others) == [2] * 7, "and the others have run on"
    assert drone.slot(pool)["DroneGpusOffline"] == 0
    assert all(ad["NumJobStarts"] == 1 for ad in pool.jobs(others))
    finish(others_flag)
    until(lambda: not pool.jobs(others), 60, what="all have ended")


def test_a_gpu_that_is_bad_at_the_start_is_not_offered_and_a_drone_without_a_good_one_ends(
    pool: Pool, drone_on: StartDrone
) -> None:
    gpus = FakeGpus.build(pool.root / "two-gpus", 2)
    gpus.property(0, ecc_uncorrected=1)
    prefix = pool.root / "condor-{arch}"
    (pool.root / f"condor-{os.uname().machine}").symlink_to(pool.condor.prefix)
    drone, _ = start(drone_on, pool, gpus, "two", CONDOR_PREFIX=str(prefix))
    until(lambda: drone.slot(pool).get("DroneReady") is True, 60, what="it takes jobs")
    until(lambda: drone.slot(pool)["DroneGpusOffline"] == 1, 60, what="one GPU is offline")
    assert (drone.slot(pool)["GPUs"], drone.slot(pool)["OfflineGPUs"]) == (1, gpus.uuid(0)[:12])
    flag = pool.file("two-may-end")
    jobs = pool.submit(gpu_job(n=2, until_there=flag))
    until(lambda: sorted(pool.statuses(jobs)) == [1, 2], 60, what="one of two jobs runs")

    gpus.property(1, ecc_uncorrected=1)
    until(lambda: drone.slot(pool).get("DroneHealthy") is False, 60, what="it takes no more jobs")
    assert sorted(pool.statuses(jobs)) == [1, 2]
    finish(flag)
    assert (drone.wait(120), drone.outcome["reason"]) == (71, "check-failed"), drone.story()
    assert "0 of 2 GPUs are healthy" in drone.outcome["why"].replace("%20", " ")


@pytest.mark.matrix
def test_a_local_site_goes_on_with_its_other_gpu(
    lab: tuple[Pool, LabController], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each drone got the GPU that had failed the drone before it, until the type was banned."""
    pool, controller = lab
    gpus = FakeGpus.build(pool.root / "local-gpus", 2)
    gpus.property(0, ecc_uncorrected=1)
    # the site's own nvidia-smi
    monkeypatch.setenv("PATH", f"{gpus.directory}:{os.environ['PATH']}")
    controller.sites = [FakeGpuSite(gpus)]
    controller.start()
    assert controller.site_row()["free"] == {"a100": 2}

    jobs = [pool.submit(gpu_job(1)) for _ in range(3)]
    until(lambda: not pool.jobs(), 180, what="the good GPU has done all jobs")
    assert all(pool.history(job)[0]["NumJobStarts"] == 1 for job in jobs)
    until(lambda: not controller.live(), 60, what="no drone is left")
    controller.ticks(2)
    row = controller.site_row()
    assert (row["free"], controller.states()["failed"]) == ({"a100": 1}, 1), controller.story()
    troubled = [
        each.scope
        for each in controller.record.breakers().values()
        if each.state is not BreakerState.ACTIVE
    ]
    assert troubled == []
    told = controller.prints("sites", "show", "here") + controller.prints("check", "--live")
    assert told.count("GPU 0 is left out") >= 2, told

    gpus.property(0, ecc_uncorrected=0)
    [ill] = [each["id"] for each in controller.drones() if each["state"] == "failed"]
    end = controller.directory / "drones" / ill / ".site/end"
    os.utime(end, (end.stat().st_mtime - 86_400,) * 2)  # the life of its verdict is over
    until(
        lambda: controller.site_row()["free"] == {"a100": 2},
        60,
        what="the GPU is free again",
        every_s=0.5,
    )
    together = pool.submit(gpu_job(3600, n=2))
    until(lambda: pool.statuses(together) == [2, 2], 120, what="both GPUs work")
    pool.remove(together)


@dataclass
class FakeGpuSite:
    """The site ``local`` on fake GPUs that its own ``nvidia-smi`` lists."""

    gpus: FakeGpus
    name: str = "here"

    def settings(self, controller: LabController) -> Settings:
        env = {
            name: value
            for name, value in self.gpus.env.items()
            if name not in ("PATH", "DRONE_PID_NAMESPACE")
        }
        room = {"cpus": 8, "memory": "8 GiB", "disk": "20 GiB", "same_account": True}
        return {
            "adapter": "local",
            "timeouts": controller.timeouts(grace="10s"),
            "types": {
                "a100": {
                    "gpus": 1,
                    "vram": "40000 MiB",
                    "cpus": 2,
                    "memory": "512 MiB",
                    "disk": "2 GiB",
                }
            },
            "options": {"root": "drones", **room, "env": {**env, "DRONE_GPU_IGNORE": "xid"}},
        }
