"""Jobs that the pool would start nowhere, whatever slots came, are no demand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace

import classad2
import pytest

from adapters.htcondor.classads import Ad
from adapters.htcondor.overlay import pool
from adapters.htcondor.overlay.job_classes import NO_WAITS, group, job_class, merged
from adapters.htcondor.overlay.schedds import ScheddAnswer, ScheddQueue
from adapters.htcondor.overlay.work import PoolWork
from provisioner.model import JobClass
from tests.htcondor_overlay.jobs import AFFILIATION, job


class Judge(pool.PoolPoller):
    """The pool without its connections."""

    def __init__(self) -> None:
        self._asked = nullcontext  # type: ignore[assignment]

    def classes(
        self, ads: Sequence[Ad], refused: Sequence[Ad] = (), slack: int | None = None
    ) -> list[JobClass]:
        groups = [each for ad in ads if (each := group(ad, "s1", AFFILIATION))]
        queue = ScheddQueue("s1", SimpleNamespace(query=lambda *_, **__: list(refused)), 0.0, slack)
        by_class = merged(groups)
        answer = ScheddAnswer(
            0.0, tuple(groups), PoolWork(), slack, self._refusals(queue, groups, time.time())
        )
        found = pool.limits_of(by_class, {"s1": answer})
        made = [job_class(key, parts, 0, NO_WAITS) for key, parts in sorted(by_class.items())]
        return [pool.behind(each, *found[each.id]) if each.id in found else each for each in made]


def refusal(reason: str, age_s: float = 30.0, limits: str = "licence") -> Ad:
    refused = {"LastRejMatchReason": reason, "LastRejMatchTime": int(time.time() - age_s)}
    return classad2.ClassAd({"JobStatus": 1, "ConcurrencyLimits": limits, **refused})


LICENSED = job(ConcurrencyLimits='"licence"', JobCount="6")


def test_jobs_behind_a_used_up_concurrency_limit_are_told_and_others_are_not_touched() -> None:
    found = {
        each.waiting: (each.limited, each.limit)
        for each in Judge().classes(
            [LICENSED, job(JobCount="4")], [refusal("concurrency limit licence reached")]
        )
    }
    assert found == {6: (6, "concurrency limit licence is used up"), 4: (0, "")}


def test_a_limit_that_is_not_used_up_now_keeps_nobody() -> None:
    reached = "concurrency limit licence reached"
    free_again = [refusal(reached, age_s=300), refusal("no match found", age_s=10)]
    long_ago, other = [refusal(reached, age_s=5000)], [refusal(reached, limits="other")]
    for refusals in ([], [refusal("no match found")], long_ago, other, free_again):
        assert [each.limited for each in Judge().classes([LICENSED], refusals)] == [0]


@pytest.mark.parametrize(("slack", "limited"), [(None, 0), (0, 9), (4, 5), (9, 0)])
def test_a_schedd_at_its_max_jobs_running_brings_no_drones(slack: int | None, limited: int) -> None:
    classes = Judge().classes([job(JobCount="5"), job(JobCount="4", RequestCpus="2")], slack=slack)
    assert sum(each.limited for each in classes) == limited
    assert all("MAX_JOBS_RUNNING" in each.limit for each in classes if each.limited)
