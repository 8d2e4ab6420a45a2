"""Drones as pilots and accounting see them, with real daemons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from provisioner import drone
from provisioner.model import Benchmark, DroneId, DroneType, StartOrder
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
