"""Verdicts are made once, shared, and spread over looks when there are too many."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from adapters.htcondor_overlay import matching, pool
from adapters.htcondor_overlay.classes import Group, group, job_class
from adapters.shared.htcondor.ads import Ad
from provisioner.model import DroneType, JobClass, Misfit
from tests.overlay_htcondor.jobs import job
from tests.overlay_htcondor.test_matching import A100


class Judge(pool.Pool):
    """The pool without its connections."""

    def __init__(self) -> None:
        self._verdicts, self._templates, self._received, self._types = {}, {}, {}, {}
        self._oldest = {}

    def judged(self, one: Group, types: list[DroneType], until: float) -> JobClass:
        self._forget({one.key: [one]}, types)
        return self._judged(job_class(one.key, [one], 0, 0.0), [one], types, until)


def a_group() -> Group:
    found = group(job(Requirements="TARGET.HasCVMFS"), "s1", "AcctGroup")
    assert found is not None
    return found


def test_a_verdict_is_made_once_and_again_when_the_type_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, one = Judge(), a_group()
    made: list[Misfit | None] = []
    real = matching.misfit

    def counted(own: Ad, slot: Ad) -> Misfit | None:
        made.append(real(own, slot))
        return made[-1]

    monkeypatch.setattr(matching, "misfit", counted)
    later = time.monotonic() + 60
    refused = {A100.key: Misfit("requirements", "TARGET.HasCVMFS", "HasCVMFS=not told")}
    assert judge.judged(one, [A100], later).refuses == refused
    assert judge.judged(one, [A100], later).refuses == refused and len(made) == 1
    assert judge.judged(one, [replace(A100, ad={"HasCVMFS": "true"})], later).refuses == {} and len(made) == 2


def test_what_there_is_no_time_for_is_refused_until_a_later_look() -> None:
    judge, one = Judge(), a_group()
    kind = replace(A100, ad={"HasCVMFS": "true"})
    (refusal,) = judge.judged(one, [kind], time.monotonic() - 1).refuses.values()
    assert refusal.wanted == "judged at one of the next looks"
    assert judge.judged(one, [kind], time.monotonic() + 60).refuses == {}
    assert judge.judged(one, [kind], time.monotonic() - 1).refuses == {}, "a verdict that is there takes no time"


def test_types_that_the_plain_numbers_rule_out_are_not_judged() -> None:
    assert Judge().judged(a_group(), [replace(A100, cpus=0)], time.monotonic() - 1).refuses == {}
