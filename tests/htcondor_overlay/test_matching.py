"""What fits a drone type, and what is told where it does not: job ads against the template of a type."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import classad2
import htcondor2
import pytest

from adapters.htcondor.classads import holds, number
from adapters.htcondor.overlay import matching
from adapters.htcondor.overlay.job_classes import as_job
from provisioner import drone
from provisioner.model import DroneType, JobClass, Sharing, UnmetRequirement
from provisioner.planner.matching import count_jobs_in_type
from tests.htcondor_overlay.jobs import REQUIREMENTS, job

A100 = DroneType(
    "topas",
    "a100",
    1000,
    8,
    20480,
    51200,
    40960,
    "A100-SXM4-40GB",
    80,
    12040,
    walltime_s=86400,
    margin_s=60,
)
PAIR = replace(
    A100,
    name="v100x2",
    gpu_milli=2000,
    vram_mib=16384,
    gpu_model="Tesla V100",
    capability=70,
    driver=11080,
)
ARM = replace(A100, name="gh200", arch="aarch64", ad={"HasCVMFS": "true"})
UNTOLD = DroneType(
    site="cloud", name="any", gpu_milli=1000, cpus=8, memory_mib=20480, disk_mib=51200
)
AMD = replace(
    A100, name="mi250", vendor="amd", target="gfx90a", gpu_model="MI250X", capability=0, driver=0
)
CPU = DroneType(site="topas", name="cpu", gpu_milli=0, cpus=16, memory_mib=65536, disk_mib=51200)
FOUR = replace(A100, name="quad", gpu_milli=4000, cpus=32, memory_mib=81920, disk_mib=204800)
QUAD = replace(FOUR, kept_cpus=8, kept_memory_mib=20480, kept_disk_mib=51200)
QUARTERS = replace(A100, name="quarters", sharing=Sharing.MPS, shares=4, cpus=32, memory_mib=81920)
SLICES = replace(QUARTERS, name="slices", sharing=Sharing.MIG, shares=7)
POOL = replace(QUARTERS, name="pool", shares=8, vram_mib=40000, vram_pool=True)
KEEPS = replace(QUARTERS, name="keeps", gpu_milli=2000, shares=3, kept_cpus=12)

ANY_GPU = REQUIREMENTS.replace("MY.RequireGPUs", "true")
NEWER = {"RequireGPUs": "MaxSupportedVersion >= GPUsMinRuntime", "GPUsMinRuntime": "12040"}
LEFT = "* (MY.GPUs - TARGET.RequestGPUs)"
POOLED = f"{ANY_GPU} && (TARGET.GPUMem >= RequestGPUMem)"
"""Requirements that condor_submit adds for ``request_gpumem``."""
# the library brings countMatches; expressions that are parsed without it never know the function
htcondor2.version()
PLAIN = " && ".join(each for each in REQUIREMENTS.split(" && ") if "countMatches" not in each)
MAYBE = {"RequiresGPU": '"optional"', "Requirements": PLAIN}
"""As condor_submit writes jobs whose request_gpus depends on the slot: without a clause about GPUs."""
RECIPE = "(TARGET.GPUs ?: 0) > 0 ? 1 : 0"
BY_MEMORY = {
    "RequestGPUs": "(countMatches(MY.RequireGPUs, TARGET.AvailableGPUs) ?: 0) > 0 ? 1 : 0",
    "RequireGPUs": "GlobalMemoryMb >= GPUsMinMemory",
    "GPUsMinMemory": "35000",
}
FITS = [
    *((job(RequestGPUs=RECIPE, **MAYBE), kind) for kind in (A100, PAIR, UNTOLD, CPU)),
    *((job(**BY_MEMORY, **MAYBE), kind) for kind in (A100, CPU)),
    (job(GpuMilli="200"), QUARTERS),
    (job(RequestGPUMem="9000", Requirements=POOLED), POOL),
    (job(GpuMilli="125"), POOL),
    (job(GpuMilli="250", RequireGPUs="GlobalMemoryMb >= 10240"), QUARTERS),
    (job(GpuMilli="142"), SLICES),
    (job(GpuMilli="333", RequestCpus="12"), KEEPS),
    (job(), A100),
    (job(), UNTOLD),
    (job(GPUsMinMemory="35000", RequireGPUs="GlobalMemoryMb >= GPUsMinMemory"), A100),
    (job(**NEWER), A100),
    (job(RequireGPUs='regexp("A100", DeviceName)'), A100),
    (job(AllowedJobDuration="3600"), replace(A100, walltime_s=0.0)),
    (job(Requirements="TARGET.HasCVMFS"), ARM),
    (job(RequireGPUs="GlobalMemoryMb >= 35000"), AMD),
    (
        job(Requirements=ANY_GPU + ' && TARGET.GpuVendor == "amd" && TARGET.GpuTarget == "gfx90a"'),
        AMD,
    ),
    (job(Requirements=ANY_GPU + ' && TARGET.GpuTarget == "sm_80"'), A100),
    (
        job(
            Requirements=ANY_GPU + ' && (TARGET.SiteName == "topas" || TARGET.SiteName == "horeka")'
        ),
        A100,
    ),
    (job(RequestGPUs="3", RequestCpus="24", RequestMemory="61440"), QUAD),
    (job(GpuMilli="200", Requirements=ANY_GPU + ' && TARGET.VramEnforced == "mps"'), QUARTERS),
    (job(Requirements=ANY_GPU + ' && TARGET.VramEnforced != "none"'), A100),
    # what newer submitters write
    (
        job(
            Requirements='versionGE(split(TARGET.CondorVersion)[1],"25.12.0") || (TARGET.Disk >= RequestDisk)'
        ),
        A100,
    ),
]

REFUSED = [
    (job(GpuMilli="251"), QUARTERS, "gpus", "0.251", "shares of 0.25, one to a job"),
    (
        job(RequestGPUMem="40001", Requirements=POOLED),
        POOL,
        "vram",
        "40001 MiB in a pool",
        "40000 MiB in a pool",
    ),
    (
        job(RequestGPUMem="9000", Requirements=POOLED),
        A100,
        "vram",
        "9000 MiB in a pool",
        "0 MiB in a pool",
    ),
    (
        job(GpuMilli="250", RequireGPUs="GlobalMemoryMb >= 10241"),
        QUARTERS,
        "vram",
        "10241 MiB",
        "10240 MiB",
    ),
    (job(RequireGPUs="Capability >= 8.0"), AMD, "capability", "8.0", "none: amd GPUs have no CUDA"),
    (job(**NEWER), AMD, "driver", "CUDA 12.4", "none: amd GPUs have no CUDA"),
    (job(RequestGPUs="2"), A100, "gpus", "2", "1"),
    (
        job(GPUsMinMemory="35000", RequireGPUs="GlobalMemoryMb >= GPUsMinMemory"),
        PAIR,
        "vram",
        "35000 MiB",
        "16384 MiB",
    ),
    (job(RequireGPUs="GlobalMemoryMb >= 35000"), UNTOLD, "vram", "35000 MiB", "unknown"),
    (job(**NEWER), PAIR, "driver", "CUDA 12.4", "CUDA 11.8"),
    (
        job(RequireGPUs='regexp("H100", DeviceName)'),
        A100,
        "gpu-model",
        'regexp("H100",DeviceName)',
        "NVIDIA A100-SXM4-40GB",
    ),
    (job(RequestCpus="9"), A100, "cpus", "9", "8"),
    (job(RequestMemory="20481"), A100, "memory", "20481 MiB", "20480 MiB"),
    (job(RequestDisk="52428801"), A100, "disk", "52428801 KiB", "52428800 KiB"),
    (job(), ARM, "arch", 'TARGET.Arch == "X86_64"', "aarch64"),
    (job(AllowedJobDuration="86400"), A100, "walltime", "86400 s", "86340 s"),
    (
        job(Requirements=f"{ANY_GPU} && TARGET.Cvmfs"),
        A100,
        "requirements",
        "TARGET.Cvmfs",
        "Cvmfs=unknown",
    ),
    (job(), CPU, "gpus", "1", "0"),
    (job(RequiresGPU='"optional"'), CPU, "gpus", "1", "0"),
    (
        job(**BY_MEMORY, **MAYBE),
        PAIR,
        "start",
        "(TARGET.RequestGPUs ?: 0) >= 1",
        "false for this job",
    ),
    # the GPU is told first, whatever else is wrong
    (
        job(RequireGPUs="Capability >= 9.5", RequestCpus="64", Requirements="false"),
        A100,
        "capability",
        "9.5",
        "8.0",
    ),
]
REFUSED += [
    (ad, kind, "start", clause, "false for this job")
    for ad, kind, clause in (
        # of blocking: a job may not take what belongs to the drone's other GPUs
        (
            job(GpuMilli="333", RequestCpus="13"),
            KEEPS,
            f"(MY.Cpus - (TARGET.RequestCpus ?: 1)) * 1000 >= 3996 {LEFT}",
        ),
        (job(RequestCpus="9"), QUAD, f"MY.Cpus - (TARGET.RequestCpus ?: 1) >= 8 {LEFT}"),
        (
            job(RequestGPUs="2", RequestDisk="104857601"),
            QUAD,
            f"MY.Disk - (TARGET.RequestDisk ?: 0) >= 52428800 {LEFT}",
        ),
        (job(RequestGPUs="0"), A100, "(TARGET.RequestGPUs ?: 0) >= 1"),
        (job(), replace(A100, ad={"Start": 'TARGET.Owner == "bob"'}), 'TARGET.Owner == "bob"'),
    )
]


def test_it_fits() -> None:
    for ad, kind in FITS:
        assert matching.unmet_requirement(as_job(ad), matching.template(kind)) is None, ad


@pytest.mark.parametrize(("ad", "kind", "dimension", "requested", "available"), REFUSED)
def test_the_first_failing_dimension_is_told(
    ad: classad2.ClassAd, kind: DroneType, dimension: str, requested: str, available: str
) -> None:
    found = matching.unmet_requirement(as_job(ad), matching.template(kind))
    assert found is not None
    assert found == UnmetRequirement(dimension, requested, available, found.others)


def test_further_unmet_requirements_are_counted() -> None:
    def others(**attributes: str) -> int:
        found = matching.unmet_requirement(as_job(job(**attributes)), matching.template(A100))
        assert found is not None
        return found.others

    assert others(RequestMemory="20481") == 0, "its clause in Requirements is the same dimension"
    assert others(Requirements=f"{ANY_GPU} && TARGET.Cvmfs") == 0
    assert others(Requirements=f"{ANY_GPU} && TARGET.Cvmfs && TARGET.Fast") == 1
    assert others(RequestMemory="20481", RequestCpus="9", Requirements="TARGET.Cvmfs") == 2


@pytest.mark.parametrize(
    ("attributes", "requested"),
    [
        ({"RequestMemory": "20481"}, None),
        ({"RequestGPUs": "4", "RequireGPUs": 'regexp("A100", DeviceName)'}, None),
        (
            {"RequestGPUs": "4", "RequireGPUs": 'regexp("H100", DeviceName)'},
            'regexp("H100",DeviceName)',
        ),
        ({"RequestMemory": "20481", "Requirements": f"{ANY_GPU} && TARGET.Cvmfs"}, "TARGET.Cvmfs"),
        ({"RequestCpus": "9", "RequireGPUs": "Capability >= 9.5"}, None),
        ({"RequestCpus": "9", "RequireGPUs": "Capability <= 7"}, "Capability <= 7"),
    ],
)
def test_a_type_that_is_too_small_is_judged_by_what_a_smaller_request_would_not_change(
    attributes: dict[str, str], requested: str | None
) -> None:
    found = matching.unmet_beside_amounts(as_job(job(**attributes)), matching.template(A100))
    assert (found.requested if found else None) == requested


@pytest.mark.parametrize("shares", [1, 3, 12])
@pytest.mark.parametrize("kept_cpus", [0, 3, 16])
def test_start_lets_in_as_many_jobs_as_the_planner_counts(shares: int, kept_cpus: int) -> None:
    """One after the other, into a drone of two GPUs: blocking counts for each share as it does for the planner."""
    sharing = Sharing.MPS if shares > 1 else Sharing.EXCLUSIVE
    kind = replace(
        PAIR, sharing=sharing, shares=shares, cpus=32, kept_cpus=kept_cpus, walltime_s=0.0
    )
    slot, begins = matching.template(kind), classad2.ExprTree(matching.start(kind))
    for cpus in (1, 2, 5, 16, 17):
        ad = as_job(job(GpuMilli="83", RequestCpus=f"{cpus}", RequestMemory="128"))
        slot["Cpus"], slot["GPUs"], taken = 32, 2 * shares, 0
        while (
            holds(begins, slot, ad) and number(slot, "GPUs") and cpus <= (number(slot, "Cpus") or 0)
        ):
            taken += 1
            slot["Cpus"], slot["GPUs"] = 32 - taken * cpus, 2 * shares - taken
        wants = JobClass("c", 83, cpus, 128, splits=False)
        assert count_jobs_in_type(wants, kind) == taken, f"{cpus} CPUs each"


@pytest.mark.parametrize("kept_cpus", [0, 3, 16])
def test_start_lets_in_as_many_jobs_to_a_pool_as_the_planner_counts(kept_cpus: int) -> None:
    kind = replace(POOL, kept_cpus=kept_cpus)
    for mib in (0, 1000, 5000, 5001, 9000, 12000, 40000):
        for cpus in (1, 2, 5, 16):
            slot, begins = matching.template(kind), classad2.ExprTree(matching.start(kind))
            more = {"RequestGPUMem": f"{mib}"} if mib else {"GpuMilli": "125"}
            ad, taken = as_job(job(RequestCpus=f"{cpus}", RequestMemory="128", **more)), 0
            while holds(begins, slot, ad) and cpus <= (number(slot, "Cpus") or 0):
                taken += 1
                slot["Cpus"], slot["GPUMem"] = 32 - taken * cpus, 40000 - taken * max(5000, mib)
            wants = JobClass("c", 1000 if mib else 125, cpus, 128, vram_mib=mib, splits=False)
            assert count_jobs_in_type(wants, kind) == taken, f"{mib} MiB and {cpus} CPUs each"


@pytest.mark.parametrize(
    ("asks", "fits"),
    [
        ({}, False),
        ({"GpuMilli": "500"}, True),
        ({"GpuMilli": "501"}, False),
        ({"GpuMilli": "100", "GPUsMinMemory": "20480"}, True),
        ({"GpuMilli": "100", "GPUsMinMemory": "20481"}, False),
    ],
)
def test_a_part_of_a_gpu_takes_jobs_that_it_is_enough_for(asks: dict[str, str], fits: bool) -> None:
    kind = replace(A100, gpu_milli=500, vram_mib=20480, sharing=Sharing.MPS)
    begins = classad2.ExprTree(matching.start(kind))
    assert holds(begins, matching.template(kind), as_job(job(**asks))) == fits


def test_a_gpu_that_arrived_counts_for_each_of_its_shares() -> None:
    real = classad2.parseOne(
        '[Name="slot1@kit-1@node"; SlotType="Partitionable"; TotalSlotCpus=32; TotalSlotMemory=81920; GPUs=4;'
        " DroneShares=4; GPUs_GlobalMemoryMb=9000; AvailableGPUs={GPUs_GPU_aa,GPUs_GPU_aa,GPUs_GPU_aa,GPUs_GPU_aa};"
        ' GPUs_GPU_aa=[Id="GPU-aa"; Capability=8.0; GlobalMemoryMb=9000]]'
    )
    got = matching.received(real)
    assert number(matching.template(QUARTERS, got), "GPUs") == 4
    assert matching.differences(QUARTERS, got) == (
        "drone type topas/quarters: ordered GPUs_GlobalMemoryMb 10240 MiB, received 9000 MiB",
    )
    slices = {f"GPUs_MIG_{n}": f'[Id="MIG-{n}"; GlobalMemoryMb=4864]' for n in range(7)}
    for name, text in slices.items():
        real[name] = classad2.ExprTree(text)
    del real["GPUs_GPU_aa"]
    assert number(matching.template(SLICES, matching.received(real)), "GPUs") == 7, (
        "a slice is a device"
    )


def test_what_arrived_takes_the_place_of_what_was_ordered() -> None:
    real = classad2.parseOne(
        '[Name="slot1@kit-1@node"; SlotType="Partitionable"; Cpus=0; Memory=128; GPUs=0; TotalSlotCpus=4;'
        ' TotalSlotMemory=9000; TotalSlotDisk=1000000.0; Start=false; State="Claimed"; AvailableGPUs={};'
        ' OpSysAndVer="Rocky9"; Microarch="x86_64-v4";'
        ' GPUs_DeviceName="NVIDIA A100 80GB"; GPUs_GlobalMemoryMb=81000; GPUs_Capability=8.0;'
        ' GPUs_GPU_aa=[Id="GPU-aa"; Capability=8.0; GlobalMemoryMb=81000; DeviceName="NVIDIA A100 80GB"]; JobId="3.0"]'
    )
    got = matching.received(real)
    slot = matching.template(A100, got)
    assert (number(slot, "Cpus"), number(slot, "Memory"), number(slot, "GPUs")) == (4, 9000, 1)
    assert (
        matching.unmet_requirement(as_job(job(RequireGPUs="GlobalMemoryMb >= 80000")), slot) is None
    )
    assert (
        matching.unmet_requirement(as_job(job(Requirements='TARGET.OpSysAndVer == "Rocky9"')), slot)
        is None
    )
    assert matching.unmet_requirement(as_job(job(RequestCpus="8")), slot) == UnmetRequirement(
        "cpus", "8", "4"
    )
    assert "Start" not in got.ad and "JobId" not in got.ad, (
        "what the slot does just now is not of its type"
    )
    assert matching.differences(A100, got) == (
        "drone type topas/a100: ordered Cpus 8, received 4",
        "drone type topas/a100: ordered Memory 20480 MiB, received 9000 MiB",
        "drone type topas/a100: ordered GPU NVIDIA A100-SXM4-40GB, received NVIDIA A100 80GB",
    )


def test_a_received_ad_of_nonsense_changes_nothing_it_must_not() -> None:
    real = classad2.parseOne(
        "[TotalSlotCpus=-3; GPUs_x=[Capability=error]; GPUs_y=3; Requirements=false; Rank=1/0]"
    )
    real["Blob"] = "x" * 1_000_000
    got = matching.received(real)
    assert not {"Blob", "Requirements", "Cpus"} & set(got.ad)
    assert matching.unmet_requirement(as_job(job()), matching.template(A100, got)) is None


def test_an_operators_broken_extra_attribute_refuses_only_those_who_look_at_it() -> None:
    slot = matching.template(replace(A100, ad={"HasCVMFS": "&&& oops"}))
    assert matching.unmet_requirement(as_job(job()), slot) is None
    found = matching.unmet_requirement(as_job(job(Requirements="TARGET.HasCVMFS")), slot)
    assert found is not None and found.dimension == "requirements"


def test_a_limit_of_vram_is_taken_from_the_type_until_a_drone_has_told_its_own() -> None:
    limited = as_job(
        job(GpuMilli="142", Requirements=ANY_GPU + ' && TARGET.VramEnforced == "watched"')
    )
    for kind in (SLICES, replace(QUARTERS, sharing=Sharing.TIME_SLICED, shares=7)):
        assert matching.unmet_requirement(limited, matching.template(kind)) is None
        seen = matching.template(
            kind, matching.received(classad2.ClassAd({"VramEnforced": "none"}))
        )
        assert matching.unmet_requirement(limited, seen) is not None
    assert "VramEnforced" not in matching.template(CPU)


PHYSICS = 'START = ($(START)) && (TARGET.AcctGroup =?= "physics")'


def test_an_attribute_of_the_slot_is_judged_once_it_is_known() -> None:
    slot = matching.template(
        replace(A100, ad={"Licence": "0"}), None, "START = $(START) && MY.Licence == 1"
    )
    found = matching.unmet_requirement(as_job(job()), slot)
    assert found is not None and found.dimension == "start"


def judged(drone_config: str, **attributes: str) -> UnmetRequirement | None:
    return matching.unmet_requirement(
        as_job(job(**attributes)), matching.template(A100, None, drone_config)
    )


def test_the_start_expression_of_drone_config_is_judged_before_drones_start_in_vain() -> None:
    refused = UnmetRequirement("start", 'TARGET.AcctGroup is "physics"', "false for this job")
    assert judged(PHYSICS) == refused and judged(PHYSICS, AcctGroup='"physics"') is None
    assert judged(
        'A = 1\n  start = $(start) && \\\n   TARGET.Owner != "alice"\nB = 2'
    ) == UnmetRequirement("start", 'TARGET.Owner != "alice"', "false for this job")
    assert judged(f"{PHYSICS}\nSTART = $(START) && True") == refused, (
        "the lines build on each other"
    )


def test_large_drones_can_refuse_small_jobs() -> None:
    lines = 'START = $(START) && (MY.DroneType =!= "four" || TARGET.RequestGPUs > 1)'
    large = matching.template(replace(FOUR, name="four"), None, lines)
    small_job, large_job = as_job(job()), as_job(job(RequestGPUs="2"))
    found = matching.unmet_requirement(small_job, large)
    assert found is not None and found.dimension == "start"
    assert matching.unmet_requirement(large_job, large) is None and judged(lines) is None


@pytest.mark.parametrize(
    "lines",
    [
        "START = $(OTHER) && False",
        "START = MY.Licence == 1",
        "Licence = 0\nSTART = Licence == 1",
        "START = &&",
        "A",
    ],
)
def test_a_start_expression_that_cannot_be_known_is_left_to_the_pool(lines: str) -> None:
    assert judged(lines) is None


def test_a_drone_publishes_each_attribute_that_its_template_promises() -> None:
    """Jobs that required ``DroneSite`` got drones that never matched them."""
    script = (Path(drone.__file__).parent / "condor_drone.sh").read_text()
    promised = [
        name for name in matching.template(QUAD) if name.startswith(("Drone", "Site", "Gpu"))
    ]
    assert len(promised) > 5
    assert [name for name in promised if not re.search(rf"^{name} = ", script, re.MULTILINE)] == []
