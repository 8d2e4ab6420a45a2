"""What is learned from jobs that are not done: those that run, and those that were cut short."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.controller.estimation import (
    CUT_KEPT,
    LONGER,
    RUNS_KEPT,
    RUNS_NEEDED,
    RUNS_TOLD,
    UNFINISHED_EVERY_S,
    EstimateCollector,
    UnfinishedJobs,
    expected,
)
from provisioner.estimates import USUAL_RUN_S, Estimates
from provisioner.model import CompletedJob, DroneId, Eviction, Slot, SlotState, Snapshot
from tests.controller.test_estimation import done, nothing
from tests.planner.scenes import NOW, snapshot

HOUR_S = 3600.0
times = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=40)


def kaplan_meier(done: list[float], unfinished: list[float], at_s: float) -> float:
    """Share of jobs that run longer than ``at_s``, by the product of 1958."""
    left = 1.0
    for run_s in sorted(set(done)):
        if run_s <= at_s:
            at_risk = sum(each >= run_s for each in (*done, *unfinished))
            left *= 1 - done.count(run_s) / at_risk
    return left


@given(done=times, unfinished=times)
def test_it_is_the_estimate_of_kaplan_and_meier(done: list[float], unfinished: list[float]) -> None:
    told = expected(done, unfinished, 1000)
    for at_s in (*done, *unfinished):
        if at_s <= max(done):
            assert sum(run_s > at_s for run_s in told) / 1000 == pytest.approx(
                kaplan_meier(done, unfinished, at_s), abs=0.0011
            )


@given(done=times, unfinished=times)
def test_what_is_not_done_never_makes_jobs_look_shorter(done: list[float], unfinished: list[float]) -> None:
    known, told = expected(done, [], 20), expected(done, unfinished, 20)
    assert all(new >= old for new, old in zip(told, known, strict=True))
    assert told == tuple(sorted(told))


def test_by_hand() -> None:
    assert expected([10.0, 20.0, 30.0], [], 3) == (10.0, 20.0, 30.0)
    # Of four that ran for 12 s three went on; the one that is not told any more counts for the two that were done.
    assert expected([10.0, 20.0, 30.0], [15.0], 8) == (10.0, 10.0, 20.0, 20.0, 20.0, 30.0, 30.0, 30.0)
    assert expected([], [100.0, 300.0], 4) == (100.0 * LONGER,) * 2 + (300.0 * LONGER,) * 2
    assert expected([10.0], [100.0], 2) == (10.0, 100.0 * LONGER)


# ------------------------------------------------------------------------------------------------- as it is learned


def runs(n: int, owner: str = "anna", begun_at: float = NOW, cpus: int = 8) -> Slot:
    return Slot(
        DroneId(f"d-{n}"),
        SlotState.BUSY,
        NOW,
        jobs=1,
        owner=owner,
        begun_at=begun_at,
        job_gpu_milli=1000,
        job_cpus=cpus,
        job_memory_mib=20480,
    )


def seen(
    at: float, *slots: Slot, done: tuple[CompletedJob, ...] = (), evictions: tuple[Eviction, ...] = ()
) -> Snapshot:
    made = snapshot()
    assert made.overlay.view is not None
    view = replace(made.overlay.view, slots=slots, completions=done, evictions=evictions)
    return replace(made, now=at, overlay=replace(made.overlay, view=view))


def learns(*looks: Snapshot) -> Estimates:
    learning = EstimateCollector()
    for made in looks:
        learning.note(made, nothing(made))
    return learning.estimates


def of(estimates: Estimates, owner: str = "anna", cpus: int = 8) -> tuple[float, ...]:
    return estimates.runs_of(owner, 1000, cpus, 20480, 0.0)


SHORT = tuple(done(n, 600.0, owner="ben") for n in range(RUNS_NEEDED))
"""What everybody's jobs run for, as far as any are done."""


def test_a_user_of_whom_nothing_is_done_and_much_has_run_for_long() -> None:
    young = learns(seen(NOW + 60, *(runs(n) for n in range(30)), done=SHORT))
    assert set(of(young)) == {600.0}, "a minute says nothing: as everybody's"
    old = learns(seen(NOW + 6 * HOUR_S, *(runs(n) for n in range(30)), done=SHORT))
    assert of(old)[RUNS_TOLD // 2] == LONGER * 6 * HOUR_S
    assert of(old, "carl")[RUNS_TOLD // 2] == LONGER * 6 * HOUR_S, "of him nothing is known: as everybody's"
    assert of(old, cpus=2)[RUNS_TOLD // 2] == LONGER * 6 * HOUR_S, "of his other jobs, nothing better is known"


def test_one_job_that_has_run_for_long_says_little() -> None:
    estimates = learns(seen(NOW + 6 * HOUR_S, runs(0), done=SHORT))
    assert sorted(set(of(estimates))) == [600.0, LONGER * 6 * HOUR_S]
    assert of(estimates).count(600.0) >= 0.8 * RUNS_TOLD


def test_who_has_jobs_enough_that_are_done_is_known_by_them() -> None:
    mine = tuple(done(n, 600.0) for n in range(RUNS_KEPT))
    estimates = learns(seen(NOW + 6 * HOUR_S, *(runs(n) for n in range(30)), done=mine))
    assert set(of(estimates)) == {600.0}


def test_before_any_job_is_done_it_is_what_is_usual() -> None:
    estimates = learns(seen(NOW + 60, runs(0)))
    assert set(of(estimates)) == {USUAL_RUN_S}


def test_a_pool_that_does_not_tell_who_is_done_teaches_nothing() -> None:
    made = seen(NOW + 6 * HOUR_S, *(runs(n) for n in range(30)))
    assert made.overlay.view is not None
    silent = replace(made, overlay=replace(made.overlay, view=replace(made.overlay.view, completions=None)))
    assert learns(silent).runs == {}


def test_what_was_cut_short_is_not_forgotten() -> None:
    cut = tuple(Eviction(DroneId(f"d-{n}"), f"{n}.0", NOW + 6 * HOUR_S, 1000, 1.0) for n in range(30))
    before = seen(NOW + 6 * HOUR_S - 60, *(runs(n) for n in range(30)), done=SHORT)
    after = [seen(NOW + 6 * HOUR_S + n * UNFINISHED_EVERY_S, done=SHORT, evictions=cut) for n in (1, 2)]
    assert of(learns(before, *after))[RUNS_TOLD // 2] == pytest.approx(LONGER * 6 * HOUR_S)


def test_of_a_job_that_is_cut_short_again_and_again_the_longest_time_counts() -> None:
    unfinished = UnfinishedJobs()
    for began_s, ran_s in ((0.0, 50.0), (100.0, 70.0), (200.0, 10.0)):
        view = seen(NOW, runs(1, begun_at=NOW + began_s)).overlay.view
        evicted = seen(NOW, evictions=(Eviction(DroneId("d-1"), "7.0", NOW + began_s + ran_s, 1000, ran_s),))
        assert view is not None and evicted.overlay.view is not None
        unfinished.note(view)
        unfinished.note(evicted.overlay.view)
    assert [ran_s for _, ran_s in unfinished.cut.values()] == [70.0]


def test_what_is_remembered_is_bounded_and_can_be_forgotten() -> None:
    unfinished = UnfinishedJobs()
    many = range(CUT_KEPT + 10)
    for made in (
        seen(NOW, *(runs(n) for n in many)),
        seen(NOW, evictions=tuple(Eviction(DroneId(f"d-{n}"), f"{n}.0", NOW + 9, 1000, 9.0) for n in many)),
    ):
        assert made.overlay.view is not None
        unfinished.note(made.overlay.view)
    assert len(unfinished.cut) == CUT_KEPT and f"{many[-1]}.0" in unfinished.cut
    unfinished.forget("anna")
    assert not unfinished.cut


def test_a_user_is_forgotten_with_what_was_cut_short() -> None:
    learning = EstimateCollector()
    cut = tuple(Eviction(DroneId(f"d-{n}"), f"{n}.0", NOW + 6 * HOUR_S, 1000, 1.0) for n in range(30))
    looks = (
        seen(NOW + 6 * HOUR_S - 60, *(runs(n) for n in range(30)), done=SHORT),
        seen(NOW + 7 * HOUR_S, done=SHORT, evictions=cut),
    )
    for made in looks:
        learning.note(made, nothing(made))
    assert of(learning.estimates)[RUNS_TOLD // 2] > 600.0
    learning.forget("user:anna")
    assert set(of(learning.estimates)) == {USUAL_RUN_S}, "everybody's run times go with his"


def test_several_jobs_in_a_drone_are_nobody_s_run() -> None:
    several = Slot(DroneId("d-1"), SlotState.BUSY, NOW, jobs=2, owner="anna", begun_at=NOW)
    assert learns(seen(NOW + 6 * HOUR_S, several, done=SHORT)).runs.keys().isdisjoint({"anna"})
