"""Jobs that a hold for low use is for; the ads are as 25.14.1 had them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import htcondor2
import pytest

from adapters.htcondor.daemons import Collectors
from adapters.htcondor.overlay import hold
from adapters.htcondor.overlay.hold import constraint
from adapters.htcondor.overlay.schedds import ScheddQueue
from adapters.htcondor.overlay.settings import HTCondorConfig
from provisioner.model import JobClass
from tests.htcondor_overlay.jobs import ad_of, exprs

IDLE = exprs(
    'JobStatus = 1; Owner = "alice"; RequestGPUs = 1; GpuMilli = 200; RequestCpus = 4; RequestMemory = 4096; Prio = 1'
)
SHARE = JobClass("c1", 200, 4, 4096, owner="alice")
REASON = "low GPU use: 4% of 10.0 GPU-hours used. Ask for less"


def holds(jobs: JobClass, operators: str = "true", **attributes: str) -> bool:
    return (
        ad_of(IDLE, {**attributes, "Asked": constraint(jobs, REASON, operators)}).eval("Asked")
        is True
    )


def test_idle_jobs_of_one_user_and_size_are_held() -> None:
    assert holds(SHARE)
    assert holds(
        JobClass("c2", 2000, 4, 4096, owner="alice"), GpuMilli="undefined", RequestGPUs="2"
    )


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
        {
            "LastHoldReason": '"low GPU use: 9% of 3.0 GPU-hours used. Ask for less (by user provisioner)"'
        },
    ],
)
def test_all_others_stay_as_they_are(other: dict[str, str]) -> None:
    assert not holds(SHARE, **other)


def test_a_job_that_was_held_for_something_else_counts() -> None:
    assert holds(SHARE, LastHoldReason='"via condor_hold (by user alice)"')
    assert not holds(SHARE, "Prio > 1"), "the operator's own constraint"


def test_the_name_of_a_user_cannot_change_the_question() -> None:
    assert not holds(JobClass("c1", 200, 4, 4096, owner='x" || true || "'))


@dataclass
class Schedd:
    """A schedd with so many idle jobs of the class."""

    jobs: int = 0
    denied: int = 0
    silent: bool = False
    held: int = 0

    def query(self, *asked: object, **more: object) -> list[object]:
        if self.silent:
            raise OSError("no answer")
        return [{}] * self.jobs

    def act(self, *asked: object) -> dict[str, int]:
        self.held = self.jobs - self.denied
        return {"TotalSuccess": self.held, "TotalPermissionDenied": self.denied}


def test_a_schedd_that_fails_does_not_keep_others_from_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    each = [Schedd(2), Schedd(3, 1), Schedd(silent=True), Schedd(4), Schedd(), Schedd(5)]
    queues = [ScheddQueue(name, schedd, 0.0) for name, schedd in zip("abcdef", each, strict=True)]
    monkeypatch.setattr(hold, "queues_of", lambda *given: queues)
    monkeypatch.setattr(Collectors, "schedds", lambda self: {})
    monkeypatch.setitem(htcondor2.param, "TOOL_LOG", str(tmp_path / "log"))
    config = HTCondorConfig.model_construct(
        collector="127.0.0.1:9618", schedds=(), constraint="true"
    )
    result = hold.JobHolder(config).hold(SHARE, REASON, silent=("d",))
    assert [schedd.held for schedd in each] == [2, 2, 0, 0, 0, 5] and result.jobs == 9
    assert [fault.partition(": ")[0] for fault in result.faults] == [
        "schedd b",
        "schedd c",
        "schedd d",
    ]
    assert "QUEUE_SUPER_USERS" in result.faults[0] and "no answer" in result.faults[1]
