"""Whose jobs a drone before an owner does not take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.estimates import Estimates, run_keys
from provisioner.model import Drone, DroneId, DroneState, JobClass, OwnerLoad, Snapshot
from provisioner.planner.risk import MAX_EXCLUSION_CHARS, is_excluded
from provisioner.planner.validation import validate_plan
from provisioner.reasons import DemandCovered
from tests.planner.scenes import NOW, SMALL, drone, jobs, plan_of, snapshot, why
from tests.planner.test_risk import (
    BUSY,
    CALM,
    HOUR_S,
    HPC,
    LIMITS,
    NEAR,
    TOPAS,
    leaves,
    newest_leaves,
    staffed,
    taken_back,
)


def of(owner: str, *, waiting: int = 3, waited_s: float = 60.0) -> JobClass:
    return replace(jobs(waiting=waiting, oldest_at=NOW - waited_s), id=owner or "nobody", owner=owner)


def world(
    *classes: JobClass, drones: tuple[Drone, ...] = (), calm: bool = False, safe: bool = True, free: int = 20
) -> Snapshot:
    """TOpAS has GPUs free and an owner; HoreKa, dearer, is full. Jobs of "long" run for a day, all others for
    ten minutes."""
    made = snapshot(
        classes=classes, drones=drones, types=(TOPAS, HPC) if safe else (TOPAS,), free={"a100": 0}, limits=LIMITS
    )
    topas = made.sites["topas"]
    assert topas.view is not None
    view = replace(topas.view, free={"a100": free}, free_gpu_milli=1000 * free, owner_runs=OwnerLoad())
    long, _, _ = run_keys("long", SMALL.gpu_milli, SMALL.cpus, SMALL.memory_mib)
    estimates = Estimates(rises={"topas": CALM if calm else BUSY}, runs={long: (24 * HOUR_S,), "": (600.0,)})
    return replace(made, sites={**made.sites, "topas": replace(topas, view=view)}, estimates=estimates)


def avoided(made: Snapshot, owner: str) -> set[str]:
    """By all drones that are started for a user's jobs."""
    return {start.drone.avoids for start in plan_of(made).starts if start.drone.for_class == owner}


def test_a_drone_for_short_jobs_takes_none_of_a_user_who_would_lose_too_much_there() -> None:
    assert avoided(world(of("short"), of("long")), "short") == {"long"}


def test_where_nothing_is_lost_or_nobody_waits_all_are_taken() -> None:
    assert avoided(world(of("short"), of("long"), calm=True), "short") == {""}
    assert avoided(world(of("short")), "short") == {""}
    assert avoided(world(of("short"), of("long", waiting=0)), "short") == {""}
    assert avoided(world(of("short"), of("other")), "short") == {""}


def test_who_has_no_safer_place_to_wait_for_is_not_kept_out() -> None:
    assert avoided(world(of("short"), of("long"), safe=False), "short") == {""}


def test_who_has_waited_for_days_is_not_kept_out() -> None:
    assert avoided(world(of("short"), of("long"), free=62), "short") == {"long"}
    assert avoided(world(of("short"), of("long", waited_s=30 * 24 * HOUR_S), free=62), "short") == {""}


def test_names_that_no_expression_could_hold_are_left_out() -> None:
    odd = [replace(of("long"), id=f"odd-{n}", owner=name) for n, name in enumerate(('a"b', "x,y", "ü", "a b", ""))]
    estimates = {run_keys(j.owner, j.gpu_milli, j.cpus, j.memory_mib)[0]: (24 * HOUR_S,) for j in odd}
    made = world(of("short"), of("long"), *odd)
    made = replace(made, estimates=replace(made.estimates, runs={**made.estimates.runs, **estimates}))
    assert avoided(made, "short") == {"long"}


def test_the_list_is_bounded() -> None:
    many = [replace(of("long"), id=f"{n:03}", owner=f"{n:03}-{'x' * 40}") for n in range(150)]
    estimates = {run_keys(j.owner, j.gpu_milli, j.cpus, j.memory_mib)[0]: (24 * HOUR_S,) for j in many}
    made = world(of("short"), *many)
    made = replace(made, estimates=replace(made.estimates, runs={**made.estimates.runs, **estimates}))
    (found,) = avoided(made, "short")
    assert MAX_EXCLUSION_CHARS - 50 < len(found) <= MAX_EXCLUSION_CHARS and found.split(",")[0] == many[0].owner


def test_a_drone_is_no_supply_for_those_whom_it_avoids() -> None:
    coming = tuple(drone(f"d-{n}", DroneState.BOOTING) for n in range(3))
    plan = plan_of(world(of("other"), drones=coming))
    assert not plan.starts
    assert why(plan, "class:other") == [DemandCovered(3, 3)]
    exclusions = tuple(replace(each, avoids="long,other") for each in coming)
    plan = plan_of(world(of("other"), drones=exclusions))
    assert len(plan.starts) == 3, "they need drones of their own"
    plan = plan_of(world(of("short"), drones=exclusions))
    assert not plan.starts, "and others do not"


def test_within_one_decision_too() -> None:
    """What is started for some is not counted for those whom it avoids."""
    plan = plan_of(world(of("short", waiting=3), of("long", waiting=3, waited_s=120.0)))
    assert len(plan.starts) == 3
    assert not [r for r in plan.refusals if r.subject == "class:long" and isinstance(r.reason, DemandCovered)]


def test_a_name_is_on_the_list_or_not() -> None:
    assert is_excluded("long", "long") and is_excluded("long", "a,long,b")
    assert not is_excluded("long", "") and not is_excluded("lon", "long") and not is_excluded("", "long")


def test_the_checker_knows_who_cannot_use_his_own_drone() -> None:
    made = world(of("short"), of("long"))
    plan = plan_of(made)
    start = plan.starts[0]
    wrong = replace(plan, starts=(replace(start, drone=replace(start.drone, avoids="short")), *plan.starts[1:]))
    (fault,) = validate_plan(made, wrong)
    assert "avoids its user" in fault.text


def of_user(made: Snapshot, avoids: str) -> Snapshot:
    """The same with all jobs of one user, and drones that avoid some."""
    view = made.overlay.view
    assert view is not None
    classes = tuple(replace(job, owner="long") for job in view.classes)
    long, _, _ = run_keys("long", SMALL.gpu_milli, SMALL.cpus, SMALL.memory_mib)
    return replace(
        made,
        drones={each.id: replace(each, avoids=avoids) for each in made.drones.values()},
        overlay=replace(made.overlay, view=replace(view, classes=classes)),
        estimates=replace(made.estimates, runs={long: (4 * HOUR_S,)}),
    )


def test_a_drone_that_avoids_who_is_next_need_not_leave_for_him() -> None:
    assert leaves(plan_of(of_user(staffed(NEAR), "other")))
    assert not leaves(plan_of(of_user(staffed(NEAR), "long")))


@pytest.mark.parametrize(("avoids", "back"), [("other", [DroneId("d-19")]), ("long", [])])
def test_a_drone_is_not_taken_back_for_those_whom_it_avoids(avoids: str, back: list[DroneId]) -> None:
    made = newest_leaves(of_user(staffed(replace(NEAR, rises={"topas": CALM})), avoids))
    assert taken_back(plan_of(made)) == back
