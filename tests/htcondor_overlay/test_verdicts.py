"""Verdicts are made once, shared, and spread over looks when there are too many."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from adapters.htcondor.classads import Ad, number
from adapters.htcondor.overlay import matching, pool
from adapters.htcondor.overlay.job_classes import (
    NO_WAITS,
    JobGroup,
    group,
    job_class,
    negative_requests,
    representative,
)
from adapters.htcondor.overlay.pool import Verdicts
from provisioner.model import DroneType, JobClass, UnmetRequirement
from tests.htcondor_overlay.jobs import AFFILIATION, job
from tests.htcondor_overlay.test_matching import A100


def judged(verdicts: Verdicts, one: JobGroup, types: list[DroneType], until: float) -> JobClass:
    verdicts.keep({one.key: [one]}, types)
    return verdicts.judged(job_class(one.key, [one], 0, NO_WAITS), [one], types, until)


def a_group() -> JobGroup:
    found = group(job(Requirements="TARGET.HasCVMFS"), "s1", AFFILIATION)
    assert found is not None
    return found


def test_a_verdict_is_made_once_and_again_when_the_type_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge, one = Verdicts(""), a_group()
    made: list[UnmetRequirement | None] = []
    real = matching.unmet_requirement

    def counted(own: Ad, slot: Ad) -> UnmetRequirement | None:
        made.append(real(own, slot))
        return made[-1]

    monkeypatch.setattr(matching, "unmet_requirement", counted)
    later = time.monotonic() + 60
    refused = {A100.key: UnmetRequirement("requirements", "TARGET.HasCVMFS", "HasCVMFS=unknown")}
    assert judged(judge, one, [A100], later).refuses == refused
    assert judged(judge, one, [A100], later).refuses == refused and len(made) == 1
    assert (
        judged(judge, one, [replace(A100, ad={"HasCVMFS": "true"})], later).refuses == {}
        and len(made) == 2
    )


def test_what_there_is_no_time_for_is_refused_until_a_later_look() -> None:
    judge, one = Verdicts(""), a_group()
    kind = replace(A100, ad={"HasCVMFS": "true"})
    (refusal,) = judged(judge, one, [kind], time.monotonic() - 1).refuses.values()
    assert refusal.requested == "judged in one of the next polls"
    assert judged(judge, one, [kind], time.monotonic() + 60).refuses == {}
    assert judged(judge, one, [kind], time.monotonic() - 1).refuses == {}, (
        "a verdict that is there takes no time"
    )


RELAXED = '(TARGET.GPUs_DeviceName == "NVIDIA H100") || (time() - QDate > 3600)'


@pytest.mark.parametrize("wish", [RELAXED, RELAXED.replace("time()", "CurrentTime")])
def test_a_wish_that_is_relaxed_after_an_hour_is_judged_again(
    wish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_REJUDGED_S", -1.0)
    submitted = time.time() - 3590
    one = group(job(Requirements=wish, QDate=f"{submitted:.0f}"), "s1", AFFILIATION)
    assert one is not None
    judge, later = Verdicts(""), time.monotonic() + 600
    assert set(judged(judge, one, [A100], later).refuses) == {A100.key}
    relaxed = group(job(Requirements=wish, QDate=f"{submitted - 60:.0f}"), "s1", AFFILIATION)
    assert relaxed is not None and relaxed.shape == one.shape
    assert judged(judge, relaxed, [A100], time.monotonic() - 1).refuses, (
        "no time is left: the old verdict holds"
    )
    assert judged(judge, relaxed, [A100], later).refuses == {}


def test_of_jobs_that_were_submitted_one_after_the_other_the_first_is_judged() -> None:
    groups = [
        group(job(Requirements=RELAXED, QDate=str(at)), "s1", AFFILIATION) for at in (300, 100, 200)
    ]
    assert len({each.key for each in groups if each}) == 1
    assert number(representative([each for each in groups if each]), "QDate") == 100


DEVICE = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    "written",
    ["H100 80GB HBM3", "H100-80GB-HBM3", DEVICE, "nvidia_h100_80gb_hbm3", "nvidia h100-80gb-hbm3"],
)
@pytest.mark.parametrize(
    ("wish", "fits"),
    [
        (f'DeviceName == "{DEVICE}"', True),
        (f'DeviceName == "{DEVICE.removeprefix("NVIDIA ")}"', False),
        ('regexp("H100 80GB", DeviceName)', True),
        ('regexp("^NVIDIA H100", DeviceName)', True),
        ('DeviceName =?= "H100-80GB-HBM3"', False),
        ('stringListIMember(DeviceName, "NVIDIA H100 80GB HBM3,NVIDIA H200", ",")', True),
    ],
)
def test_before_the_first_drone_joins_a_model_is_judged_as_discovery_names_it(
    written: str, wish: str, fits: bool
) -> None:
    kind = replace(A100, gpu_model=written, vram_mib=81559, capability=90)
    assert (
        matching.unmet_requirement(job(RequireGPUs=wish), matching.template(kind)) is None
    ) is fits
    learnt = matching.ReceivedSlot({"GPUs_DeviceName": f'"{DEVICE}"'})
    assert not [line for line in matching.differences(kind, learnt) if "H100" in line]


@pytest.mark.parametrize(
    ("written", "vendor", "device"),
    [
        ("Tesla V100S-PCIE-32GB", "nvidia", "Tesla V100S-PCIE-32GB"),
        ("Tesla-T4", "nvidia", "Tesla T4"),
        ("T4", "nvidia", "Tesla T4"),
        ("V100-SXM2-32GB", "nvidia", "Tesla V100-SXM2-32GB"),
        ("P100", "nvidia", "Tesla P100"),
        ("k80", "nvidia", "Tesla K80"),
        ("RTX-3090", "nvidia", "NVIDIA GeForce RTX 3090"),
        ("RTX 8000", "nvidia", "Quadro RTX 8000"),
        ("RTX-6000-Ada-Generation", "nvidia", "NVIDIA RTX 6000 Ada Generation"),
        ("RTX A6000", "nvidia", "NVIDIA RTX A6000"),
        ("A10", "nvidia", "NVIDIA A10"),
        ("L40S", "nvidia", "NVIDIA L40S"),
        ("gh200-480gb", "nvidia", "NVIDIA GH200 480GB"),
        ("H100-80GB-HBM3-MIG-1g.10gb", "nvidia", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"),
        ("A100-SXM4-40GB MIG 2g.10gb", "nvidia", "NVIDIA A100-SXM4-40GB MIG 2g.10gb"),
        ("GB10", "nvidia", "NVIDIA GB10"),
        ("AMD Instinct MI300A", "amd", "AMD Instinct MI300A"),
        ("Intel(R) Data Center GPU Max 1550", "intel", "Intel(R) Data Center GPU Max 1550"),
    ],
)
def test_the_name_of_a_device_follows_its_vendor_and_brand(
    written: str, vendor: str, device: str
) -> None:
    kind = replace(A100, gpu_model=written, vendor=vendor, capability=0, driver=0)
    slot = matching.template(kind)
    assert slot.eval("GPUs_DeviceName") == device


WMCORE = {
    "RequestCpus": "WMCore_ResizeJob ? RequestResizedCpus : OriginalCpus",
    "RequestResizedCpus": "(Cpus > MaxCores) ? MaxCores : ((Cpus < MinCores) ? MinCores : Cpus)",
    **{"WMCore_ResizeJob": "true", "OriginalCpus": "4", "MinCores": "1", "MaxCores": "16"},
}
LARGE = replace(A100, name="large", gpu_milli=4000, cpus=64, memory_mib=200_000)
SMALL = replace(A100, name="small", cpus=4, memory_mib=8000)
CPU = replace(
    A100, name="cpu", gpu_milli=0, cpus=2, memory_mib=900, vram_mib=0, capability=0, driver=0
)


def asked(types: list[DroneType], **attributes: str) -> JobClass:
    """Return the class of a job as a poll makes it."""
    one, verdicts = group(job(**attributes), "s1", AFFILIATION), Verdicts("")
    assert one is not None
    verdicts.keep({one.key: [one]}, types)
    jobs = job_class(one.key, [one], 0, NO_WAITS, verdicts.slots())
    return verdicts.judged(jobs, [one], types, time.monotonic() + 60)


@pytest.mark.parametrize(
    ("attributes", "cpus", "gpu_milli", "memory_mib"),
    [
        (WMCORE, 4, 1000, 128),
        ({"RequestCpus": "TARGET.Cpus", "RequestGPUs": "TARGET.TotalGPUs"}, 4, 1000, 128),
        ({"RequestCpus": "TARGET.Cpus / 2"}, 2, 1000, 128),
        ({"RequestMemory": "TARGET.Memory / TARGET.GPUs"}, 1, 1000, 8000),
        ({"RequestCpus": "TARGET.TotalSlotCpus", "RequestGPUs": "0"}, 2, 0, 128),
        ({"RequestCpus": "true"}, 1, 1000, 128),
    ],
)
def test_a_request_that_looks_at_the_slot_is_what_the_types_give(
    attributes: dict[str, str], cpus: int, gpu_milli: int, memory_mib: int
) -> None:
    found = asked([LARGE, CPU, SMALL], **attributes)
    assert (found.cpus, found.gpu_milli, found.memory_mib, found.invalid) == (
        cpus,
        gpu_milli,
        memory_mib,
        "",
    )
    fitting = [kind for kind in (LARGE, SMALL, CPU) if bool(kind.gpu_milli) == bool(gpu_milli)]
    assert not found.refuses.keys() & {kind.key for kind in fitting}


def test_a_type_that_cannot_give_what_a_slot_is_asked_for_is_refused_with_the_numbers() -> None:
    found = asked([SMALL], RequestCpus="2 * TARGET.Cpus")
    assert (found.cpus, found.invalid) == (8, "")
    one = job(RequestCpus="2 * TARGET.Cpus", Requirements="TARGET.Cpus >= RequestCpus")
    assert matching.unmet_requirement(one, matching.template(SMALL)) == UnmetRequirement(
        "cpus", "8", "4"
    )


@pytest.mark.parametrize(
    ("name", "written", "said"),
    [
        ("RequestMemory", '"2GB"', 'request_memory = "2GB" is not a number for this job'),
        (
            "RequestMemory",
            "TARGET.NoSuch",
            "request_memory = TARGET.NoSuch is not a number for this job",
        ),
        (
            "RequestDisk",
            "9223372036854775807",
            "request_disk = 9223372036854775807 is not a number for this job",
        ),
        ("RequestCpus", "undefined", "request_cpus = undefined is not a number for this job"),
        ("RequestGPUs", "-1", "request_gpus = -1 is negative"),
    ],
)
def test_a_request_that_no_slot_meets_says_so(name: str, written: str, said: str) -> None:
    assert said in asked([SMALL], **{name: written}).invalid


@pytest.mark.parametrize("name", ["RequestMemory", "RequestCpus", "RequestDisk"])
def test_a_negative_request_counts_as_nothing_as_in_htcondor(name: str) -> None:
    found = asked([SMALL], **{name: "-400"})
    assert (found.invalid, found.refuses) == ("", {})
    assert min(found.cpus, found.memory_mib, found.disk_mib) == 0
    one = group(job(**{name: "-400"}), "s1", AFFILIATION)
    assert one is not None
    (line,) = negative_requests([[one]])
    assert line.startswith("jobs 1.0: request_") and line.endswith(" = -400 counts as 0")
