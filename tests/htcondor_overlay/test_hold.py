"""Jobs that a hold for low use is for; the ads are as 25.14.1 had them."""

from __future__ import annotations

import htcondor2  # noqa: F401 - makes ClassAds know HTCondor's own functions
import pytest

from adapters.htcondor.overlay.hold import constraint
from provisioner.model import JobClass
from tests.htcondor_overlay.jobs import ad_of, exprs

IDLE = exprs(
    'JobStatus = 1; Owner = "alice"; RequestGPUs = 1; GpuMilli = 200; RequestCpus = 4; RequestMemory = 4096; Prio = 1'
)
SHARE = JobClass("c1", 200, 4, 4096, owner="alice")
REASON = "low GPU use: 4% of 10.0 GPU-hours used. Ask for less"


def holds(jobs: JobClass, operators: str = "true", **attributes: str) -> bool:
    return ad_of(IDLE, {**attributes, "Asked": constraint(jobs, REASON, operators)}).eval("Asked") is True


def test_idle_jobs_of_one_user_and_size_are_held() -> None:
    assert holds(SHARE)
    assert holds(JobClass("c2", 2000, 4, 4096, owner="alice"), GpuMilli="undefined", RequestGPUs="2")


@pytest.mark.parametrize(
    "other",
    [
        {"JobStatus": "2"},
        {"JobStatus": "5"},
        {"Owner": '"bob"'},
        {"GpuMilli": "300"},
        {"GpuMilli": "undefined"},
        {"RequestCpus": "5"},
        {"RequestMemory": "4097"},
        {"LastHoldReason": '"low GPU use: 9% of 3.0 GPU-hours used. Ask for less (by user provisioner)"'},
    ],
)
def test_all_others_stay_as_they_are(other: dict[str, str]) -> None:
    assert not holds(SHARE, **other)


def test_a_job_that_was_held_for_something_else_counts() -> None:
    assert holds(SHARE, LastHoldReason='"via condor_hold (by user alice)"')
    assert not holds(SHARE, "Prio > 1"), "the operator's own constraint"


def test_the_name_of_a_user_cannot_change_the_question() -> None:
    assert not holds(JobClass("c1", 200, 4, 4096, owner='x" || true || "'))
