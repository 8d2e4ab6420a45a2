"""A class that the planner fails on, or an action that breaks a promise, costs nobody else their decisions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from provisioner import model, reasons
from provisioner.planner import decide, safeguards
from provisioner.planner.safeguards import (
    MAX_ISOLATION_TRIES,
    PlanFunction,
    drop_invalid,
    plan_isolated,
    safe_plan,
)
from provisioner.planner.validation import Breach, validate_plan
from tests.planner.scenes import A100, NOW, SMALL, drone, jobs, plan_for, snapshot, started, why

CPU = model.DroneType("topas", "cpu", 0, 8, 20480, 10240)
SHARED = model.DroneType(
    "topas", "shared", 1000, 8, 20480, 10240, vram_mib=40960, sharing=model.Sharing.MPS, shares=4
)
KILL = model.OperatorRequest(
    3, NOW - 5, model.RequestKind.KILL, (model.DroneId("kit-ab12-1"),), "hot", "anna"
)
DRAIN = replace(KILL, id=4, kind=model.RequestKind.DRAIN, drone_ids=(model.DroneId("kit-ab12-2"),))


def fails_on(*ids: str, tried: list[int] | None = None) -> PlanFunction:
    """The planner, with a mistake that the classes of these names bring to light."""

    def planner(snap: model.Snapshot) -> model.Plan:
        if tried is not None:
            tried.append(1)
        classes = snap.overlay.view.classes if snap.overlay.view else ()
        if any(job.id in ids for job in classes):
            raise ZeroDivisionError("division by zero")
        return decide(snap)

    return planner


def many(count: int) -> model.Snapshot:
    return snapshot(
        classes=[replace(SMALL, id=f"c{n}", cpus=1 + n % 8, waiting=1) for n in range(count)],
        limits={"max_drones": 2000, "max_starts_per_tick": 2000, "max_pending": 2000},
    )


def test_a_job_that_asks_for_nothing_fits_nothing_and_says_so() -> None:
    """All its requests are 0: the planner divided by the 0 of them that a drone holds."""
    nothing = model.JobClass("zero", 0, 0, 0, waiting=3, oldest_at=NOW - 900)
    plan = plan_for(classes=[nothing, jobs(waiting=2)], types=[A100, CPU])
    assert started(plan) == [A100.key] * 2
    (reason,) = why(plan, "class:zero")
    assert isinstance(reason, reasons.NothingFits)
    assert (reason.nearest, reason.dimension) == (CPU.key, "cpus")


def test_a_share_of_a_gpu_with_no_other_request_takes_its_share() -> None:
    share = model.JobClass("share", 200, 0, 0, waiting=5, oldest_at=NOW - 900)
    plan = plan_for(classes=[share], types=[SHARED])
    assert started(plan) == [SHARED.key] * 2


@pytest.mark.parametrize("bad", [("c0",), ("c99",), ("c17", "c64"), ("c1", "c2", "c3")])
def test_the_classes_on_which_the_planner_fails_are_found_and_refused(bad: tuple[str, ...]) -> None:
    snap, tried = many(100), list[int]()
    found = plan_isolated(snap, fails_on(*bad, tried=tried))
    assert found.classes == bad
    assert isinstance(found.error, ZeroDivisionError)
    assert len(found.plan.starts) == 100 - len(bad)
    for each in bad:
        assert why(found.plan, f"class:{each}") == [
            reasons.PlannerFailed("ZeroDivisionError: division by zero")
        ]
    assert len(tried) <= MAX_ISOLATION_TRIES + 2
    tried.clear()
    again = plan_isolated(snap, fails_on(*bad, tried=tried), found.classes)
    assert again.plan == found.plan
    assert len(tried) <= 3 + len(bad), (
        "what is known from the tick before is not searched for again"
    )


def test_a_search_that_takes_too_long_leaves_whole_groups_out() -> None:
    tried = list[int]()
    bad = tuple(f"c{n}" for n in range(0, 400, 2))
    found = plan_isolated(many(400), fails_on(*bad, tried=tried))
    assert len(tried) <= MAX_ISOLATION_TRIES + 2
    assert set(bad) <= set(found.classes)


def fails_on_sites(snap: model.Snapshot) -> model.Plan:
    if snap.sites:
        raise KeyError("site")
    return decide(snap)


def test_operators_requests_pass_where_nothing_else_can_be_decided() -> None:
    drones = [
        drone("kit-ab12-1", model.DroneState.BUSY),
        drone("kit-ab12-2"),
        drone("kit-ab12-3", age_s=99_999),
    ]
    snap = snapshot(classes=[jobs(waiting=3)], drones=drones, requests=[KILL, DRAIN])
    found = safe_plan(snap, fails_on_sites)
    assert [s.drone.id for s in found.plan.stops] == ["kit-ab12-1"]
    assert [d.drone.id for d in found.plan.drains] == ["kit-ab12-2"]
    assert not found.plan.starts
    assert found.plan.requests_done == (3, 4)
    assert [type(r.reason) for r in found.plan.refusals if str(r.subject) == "all"] == [
        reasons.PlannerFailed
    ]
    assert validate_plan(snap, found.plan) == ()


def test_a_planner_that_always_fails_makes_an_empty_plan() -> None:
    found = safe_plan(snapshot(requests=[KILL], drones=[drone("kit-ab12-1")]), lambda snap: 1 / 0)
    assert not found.plan.acts
    assert found.plan.requests_done == ()
    assert "ZeroDivisionError" in found.faults[0]


def names(first: Collection[str]) -> object:
    """A judge that names the actions on these drones."""

    def judge(snap: model.Snapshot, plan: model.Plan) -> tuple[Breach, ...]:
        actions: tuple[Any, ...] = (*plan.starts, *plan.drains, *plan.stops)
        found = tuple(a for a in actions if a.drone.id in first)
        return tuple(Breach(f"{a.drone.id} is wrong", (a,)) for a in found)

    return judge


def test_only_the_actions_that_break_a_promise_are_left_out() -> None:
    idle = drone("kit-ab12-2", age_s=99_999)
    snap = snapshot(
        classes=[jobs(waiting=3)],
        drones=[drone("kit-ab12-1"), idle],
        requests=[KILL],
        slots=[],
        limits={"max_starts_per_tick": 9},
    )
    whole = decide(snap)
    wrong = whole.starts[0].drone.id
    found = safe_plan(snap, judge=names([wrong]))
    assert found.plan.starts == whole.starts[1:]
    assert found.plan.stops == whole.stops
    assert found.plan.requests_done == (3,)
    assert why(found.plan, "class:small")[-1] == reasons.InvalidAction(f"{wrong} is wrong")
    assert found.actions == (f"start {wrong} of topas/a100",)


def test_a_request_that_breaks_a_promise_stays_open() -> None:
    snap = snapshot(drones=[drone("kit-ab12-1")], requests=[KILL])
    found = safe_plan(snap, judge=names(["kit-ab12-1"]))
    assert not found.plan.acts
    assert found.plan.requests_done == ()


def fails_to_judge(seen: model.Snapshot, plan: model.Plan) -> tuple[Breach, ...]:
    raise KeyError("odd")


def names_no_action(seen: model.Snapshot, plan: model.Plan) -> tuple[Breach, ...]:
    return (Breach("odd"),) if plan.starts else ()


@pytest.mark.parametrize("judge", [fails_to_judge, names_no_action])
def test_a_breach_that_names_no_action_leaves_operators_requests(
    judge: safeguards.PlanValidator,
) -> None:
    snap = snapshot(classes=[jobs(waiting=3)], drones=[drone("kit-ab12-1")], requests=[KILL])
    found = safe_plan(snap, judge=judge)
    assert [s.drone.id for s in found.plan.stops] == ["kit-ab12-1"]
    assert not found.plan.starts
    assert found.plan.requests_done == (3,)


def test_a_judge_that_is_never_content_ends_in_a_plan_that_does_nothing() -> None:
    snap, judged = many(60), list[int]()

    def judge(seen: model.Snapshot, plan: model.Plan) -> tuple[Breach, ...]:
        judged.append(1)
        return (Breach("again", plan.starts[:1]),) if plan.acts else ()

    found = drop_invalid(snap, decide(snap), judge)
    assert not found.plan.acts
    assert len(judged) <= safeguards.MAX_VALIDATION_ROUNDS + 2
