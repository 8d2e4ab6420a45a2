"""Groups of jobs become classes; nonsense becomes a reason or nothing, never an exception."""

from __future__ import annotations

import classad2
import pytest

from adapters.htcondor.overlay import job_classes
from adapters.htcondor.overlay.affiliation import Affiliation
from adapters.htcondor.overlay.job_classes import QueueWait
from provisioner.model import JobClass
from tests.htcondor_overlay.jobs import AFFILIATION, job


def grouped(ad: classad2.ClassAd, schedd: str = "s1") -> job_classes.JobGroup:
    found = job_classes.group(ad, schedd, AFFILIATION)
    assert found is not None
    return found


def classes(*ads: classad2.ClassAd) -> list[JobClass]:
    return [
        job_classes.job_class(key, parts, 0, QueueWait(50.0, 60.0))
        for key, parts in job_classes.merged(grouped(ad) for ad in ads).items()
    ]


def test_one_class_counts_its_idle_running_and_held_jobs() -> None:
    (found,) = classes(
        job(JobStatus="1", JobCount="7", JobIds='"4.0 ... 4.6"', JobPrio="3"),
        job(JobStatus="2", JobCount="2", JobIds='"3.0 3.1"'),
        job(JobStatus="6"),
        job(JobStatus="5", JobCount="4"),
    )
    assert (found.waiting, found.running, found.held) == (7, 3, 4)
    assert (found.gpu_milli, found.cpus, found.memory_mib, found.disk_mib) == (1000, 1, 128, 1)
    assert (found.owner, found.priority, found.job_ids) == ("alice", 3, "4.0-4.6")
    assert (found.oldest_at, found.idle_at) == (50.0, 60.0)


def test_the_same_requirements_are_one_class_over_schedds_and_looks() -> None:
    here, there = (
        grouped(job(), "s1"),
        grouped(job(JobCount="5", JobIds='"9.9"', JobPrio="1"), "s2"),
    )
    assert here.key == there.key and len(here.key) == 16
    assert len(job_classes.merged([here, there])) == 1
    for other in (
        job(RequestCpus="2"),
        job(Owner='"bob"'),
        job(RequireGPUs="Capability >= 8.0"),
        job(MyAttr="4"),
    ):
        assert grouped(other).key != here.key


def test_classes_that_differ_in_their_owner_share_verdicts_unless_the_owner_matters() -> None:
    ann, bob = grouped(job(Owner='"ann"')), grouped(job(Owner='"bob"', AcctGroup='"physics"'))
    assert ann.key != bob.key and ann.shape == bob.shape
    picky = [
        grouped(job(Owner=name, Requirements="TARGET.For == MY.Owner"))
        for name in ('"ann"', '"bob"')
    ]
    assert picky[0].shape != picky[1].shape


def test_a_running_job_whose_usage_has_grown_is_still_of_its_class() -> None:
    (found,) = classes(job(JobStatus="1"), job(JobStatus="2", DiskUsage="999999", JobCount="3"))
    assert (found.waiting, found.running, found.disk_mib) == (1, 3, 1)
    assert len(classes(job(DiskUsage="1"), job(DiskUsage="999999"))) == 2, (
        "waiting ones do ask for different disks"
    )


def test_parallel_jobs_are_told_that_no_drone_runs_them() -> None:
    (found,) = classes(job(JobUniverse="11"))
    assert found.invalid.startswith("the parallel universe is not supported") and found.waiting == 1
    assert {each.invalid for each in classes(*(job(JobUniverse=str(n)) for n in (5, 10, 13)))} == {
        ""
    }


def test_what_the_gpu_must_be_is_read_as_numbers_where_it_is_one() -> None:
    (found,) = classes(
        job(
            RequireGPUs="Capability >= GPUsMinCapability && (GlobalMemoryMb >= 35000) && MaxSupportedVersion >= 12040",
            GPUsMinCapability="8.6",
            AllowedExecuteDuration="1800",
        )
    )
    assert (found.capability, found.vram_mib, found.driver, found.walltime_s) == (
        86,
        35000,
        12040,
        1800.0,
    )
    assert found.ends_within_s == 1800.0, "the pool ends it"
    (loose,) = classes(job(RequireGPUs="Capability >= 8.0 || GlobalMemoryMb >= 35000"))
    assert (loose.capability, loose.vram_mib) == (0, 0), "either is enough: no number holds for all"


@pytest.mark.parametrize(
    ("asked", "share", "gpu_milli", "repair"),
    [
        ("1", "undefined", 1000, ""),
        ("2 * 2", "undefined", 4000, ""),
        (
            "0.5",
            "undefined",
            500,
            "write request_gpus = 1, and offer a drone type that shares its GPU",
        ),
        ("1.5", "undefined", 1500, "write request_gpus = 1 or request_gpus = 2"),
        ("-1", "undefined", 0, "negative: write request_gpus = 1"),
        ("NoSuch", "undefined", 0, "request_gpus = NoSuch is not a number"),
        ('real("NaN")', "undefined", 0, "is not a number"),
        ("1", "200", 200, ""),
        (
            "1",
            "0",
            1000,
            "GpuMilli = 0: the share of a GPU is a whole number of thousandths from 1 to 1000",
        ),
        ("1", "1001", 1000, "write +GpuMilli = 200 for a fifth of one, or leave it out"),
        ("1", "0.2", 1000, "GpuMilli = 0.2: "),
        (
            "2",
            "200",
            2000,
            "GpuMilli = 200 with request_gpus = 2: a share is of one GPU; write request_gpus = 1",
        ),
    ],
)
def test_every_request_for_gpus_or_a_share_is_a_number_or_gets_a_repair(
    asked: str, share: str, gpu_milli: int, repair: str
) -> None:
    (found,) = classes(job(RequestGPUs=asked, GpuMilli=share))
    assert found.gpu_milli == gpu_milli
    assert repair in found.invalid and bool(repair) == bool(found.invalid)


RECIPE = "(TARGET.GPUs ?: 0) > 0 ? 1 : 0"
OPTIONAL = '"optional"'


@pytest.mark.parametrize(
    ("asked", "requires", "share", "gpu_milli", "optional"),
    [
        (RECIPE, OPTIONAL, "undefined", 0, True),
        (RECIPE, '"OPTIONAL"', "250", 0, True),
        ("(TARGET.GPUs ?: 0) > 1 ? 2 : 0", OPTIONAL, "undefined", 0, True),
        (
            "(countMatches(MY.RequireGPUs, TARGET.AvailableGPUs) ?: 0) > 0 ? 1 : 0",
            OPTIONAL,
            "undefined",
            0,
            True,
        ),
        ("1", OPTIONAL, "undefined", 0, True),  # an idle GPU or nothing
        ("0", OPTIONAL, "undefined", 0, False),  # the attribute alone asks for no GPU
        ("undefined", OPTIONAL, "undefined", 0, False),
        ("1", '"required"', "undefined", 1000, False),
        ("0", '"forbidden"', "undefined", 0, False),
        ("1", "1", "undefined", 1000, False),
        (RECIPE, "undefined", "undefined", 0, False),
    ],
)
def test_a_gpu_is_optional_by_the_attribute_and_a_request_that_can_be_one(
    asked: str, requires: str, share: str, gpu_milli: int, optional: bool
) -> None:
    ad = job(RequestGPUs=asked, RequiresGPU=requires, GpuMilli=share)
    (found,) = classes(ad)
    assert (found.gpu_milli, found.gpu_optional, found.invalid) == (gpu_milli, optional, "")
    assert (classad2.ExprTree(job_classes.GPU_JOBS).eval(ad) is True) is (
        bool(gpu_milli) or optional
    ), "looked at without CPU drones"


@pytest.mark.parametrize(
    ("told", "duty_milli"), [("0.12", 120), ("12", 0), ('"much"', 0), ('real("NaN")', 0)]
)
def test_jobs_may_say_how_they_use_a_gpu_and_a_broken_hint_stops_no_job(
    told: str, duty_milli: int
) -> None:
    (found,) = classes(job(GpuDuty=told, GpuWidth="0.5", AcctGroup='"group_a"'))
    assert (found.duty_milli, found.width_milli, found.group, found.invalid) == (
        duty_milli,
        500,
        "group_a",
        "",
    )


@pytest.mark.parametrize(
    ("told", "models"),
    [
        ('"deepmet:3"', ("deepmet:3",)),
        ('"pnet:1, deepmet:3,pnet:1"', ("deepmet:3", "pnet:1")),
        ('{"deepmet:3", "pnet"}', ("deepmet:3", "pnet")),
        ("true", ()),
        ("{1, undefined}", ()),
        ("error", ()),
        ('"a b, $(rm), ../x, deepmet:"', ()),
        (f'"{"x" * 101}"', ()),
    ],
)
def test_jobs_may_announce_the_models_that_they_call(told: str, models: tuple[str, ...]) -> None:
    (found,) = classes(job(WantsInference=told))
    assert (found.inference, found.invalid) == (models, "")
    assert "WantsInference" in job_classes.GROUPED


def test_a_job_announces_a_limited_number_of_models() -> None:
    many = ",".join(f"m{n:02}" for n in range(100))
    (found,) = classes(job(WantsInference=f'"{many}"'))
    assert found.inference == tuple(f"m{n:02}" for n in range(16))


def without_gpus() -> classad2.ClassAd:
    """A job that says nothing of GPUs, as a schedd has it."""
    ad = job()
    del ad["RequestGPUs"]
    return ad


@pytest.mark.parametrize(
    ("ad", "counts"),
    [
        (job(), True),
        (job(RequestGPUs="NoSuch"), True),
        (job(RequestGPUs="0"), False),
        (without_gpus(), False),
        (job(JobUniverse="7"), False),
        (job(JobStatus="4"), False),
        (job(Managed='"External"'), False),
        (job(Managed='"Schedd"'), True),
        (job(Managed='"ScheddDone"'), True),
        (job(Managed="17"), True),
    ],
)
def test_which_groups_are_gpu_jobs(ad: classad2.ClassAd, counts: bool) -> None:
    assert (classad2.ExprTree(job_classes.GPU_JOBS).eval(ad) is True) is counts


@pytest.mark.parametrize(
    ("differs", "counts"),
    [
        ({}, True),
        ({"JobStatus": "7"}, True),
        ({"JobStatus": "1"}, False),
        ({"JobStatus": "5"}, False),
        ({"WantsInference": "undefined"}, False),
        ({"RequestGPUs": "1", "JobStatus": "1", "WantsInference": "undefined"}, True),
        ({"JobUniverse": "7"}, False),
    ],
)
def test_jobs_without_a_gpu_that_call_a_service_count_while_they_run(
    differs: dict[str, str], counts: bool
) -> None:
    caller = {"RequestGPUs": "0", "JobStatus": "2", "WantsInference": '"deepmet:3"'}
    ad = job(**{**caller, **differs})
    assert (classad2.ExprTree(job_classes.GPU_JOBS_AND_CALLERS).eval(ad) is True) is counts


def test_jobs_that_a_router_gave_back_are_of_the_class_of_the_others() -> None:
    (found,) = classes(
        job(JobCount="2"), job(Managed='"Schedd"'), job(RouteName='"pool"', JobIds='"9.0"')
    )
    assert found.waiting == 4


@pytest.mark.parametrize("ad", [job(RequestGPUs="undefined"), without_gpus()])
def test_jobs_that_want_no_gpu_are_classes_where_they_count(ad: classad2.ClassAd) -> None:
    assert classad2.ExprTree(job_classes.JOBS).eval(ad) is True
    (found,) = classes(ad)
    assert (found.gpu_milli, found.cpus, found.memory_mib, found.invalid) == (0, 1, 128, "")


def test_an_operators_constraint_is_grouped_by() -> None:
    constraint = 'OWNER != "test" && TARGET.x == 1 && MY.ProjectName == "p"'
    assert "ProjectName" in job_classes.group_attributes(AFFILIATION, constraint)
    assert (
        len(
            [
                a
                for a in job_classes.group_attributes(Affiliation("owner", ""), constraint)
                if a.lower() == "owner"
            ]
        )
        == 1
    )


def test_the_age_of_a_job_is_told_by_our_clock() -> None:
    ad = classad2.ClassAd({"QDate": 1000, "ServerTime": 5100})
    assert QueueWait.of(ad, 100.0) == QueueWait(-4000.0, -4000.0), (
        "the schedd is 5000 s ahead of us"
    )
    assert QueueWait.of(ad, 5099.5) == QueueWait(1000.0, 1000.0), "rounding is no skew"


def test_a_job_that_was_evicted_began_anew_to_wait_but_the_others_did_not() -> None:
    evicted = classad2.ClassAd({"QDate": 1000, "EnteredCurrentStatus": 4000, "ServerTime": 5000})
    other = classad2.ClassAd({"QDate": 2000, "EnteredCurrentStatus": 2000, "ServerTime": 5000})
    assert QueueWait.of(evicted, 5000.0) == QueueWait(1000.0, 4000.0)
    assert QueueWait.of(evicted, 5000.0).earlier(QueueWait.of(other, 5000.0)) == QueueWait(
        1000.0, 2000.0
    )
