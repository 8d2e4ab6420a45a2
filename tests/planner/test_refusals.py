"""Idle drones that refuse waiting jobs: the reason names them, and exclusions of users end once their cause has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner import reasons
from provisioner.answers.demand import class_rows, why_waiting
from provisioner.estimates import Estimates
from provisioner.job_filter import JobFilter
from provisioner.model import DroneId, DroneState, Plan, Snapshot
from provisioner.planner import decide
from provisioner.planner.advice import advise
from provisioner.store import Views
from provisioner.store.measures import reasons_by_class
from tests.planner.scenes import (
    A100,
    NOW,
    SMALL,
    drone,
    jobs,
    plan_of,
    remote_of,
    slot_of,
    snapshot,
    with_pool,
    with_site,
)
from tests.planner.test_risk import BUSY, CALM, HOUR_S, HPC, TOPAS, of, size_key, world

QUAD = replace(A100, name="a100x4", gpu_milli=4000, cpus=64, memory_mib=262144)
FULL = {"max_drones": 1}
FIRST_VRAM = JobFilter(first_s=90, first_vram_mib=40_000)
FIRST_PAIR = JobFilter(first_s=90, first_gpus=2)


def reasons_given(plan: Plan) -> list[Any]:
    """Reasons that speak of idle drones, as data; each does so in words as well."""
    found = [each.reason for each in plan.refusals if each.reason.kind == "idle-drone-refuses"]
    assert all("idle drone" in each.describe() for each in found)
    return found


def told(plan: Plan) -> list[tuple[str, str]]:
    return [(each.rule, each.drone) for each in reasons_given(plan)]


@pytest.mark.parametrize(
    ("idle", "job", "rule"),
    [
        ({"job_filter": JobFilter(("bob",))}, {"owner": "bob"}, "excluded_users"),
        ({"job_filter": JobFilter(("eve", "bob"))}, {"owner": "bob"}, "excluded_users"),
        ({"kind": QUAD, "job_filter": JobFilter(min_gpus=4)}, {}, "min_gpus"),
        ({"kind": QUAD, "job_filter": JobFilter(min_gpus=4)}, {"gpu_milli": 2000}, "min_gpus"),
        # For its first 90 s a drone takes no smaller jobs than those that it was started for, even
        # if these have gone.
        ({"job_filter": FIRST_VRAM, "for_class": "gone", "age_s": 30.0}, {}, "first_jobs"),
        ({"job_filter": FIRST_VRAM, "for_class": "vram", "age_s": 30.0}, {}, "first_jobs"),
        (
            {"job_filter": FIRST_PAIR, "kind": QUAD, "for_class": "pair", "age_s": 30.0},
            {},
            "first_jobs",
        ),
        ({"retires_at": NOW + 60.0}, {"walltime_s": 3600.0}, "ends"),
    ],
)
@pytest.mark.parametrize("limits", [FULL, {}], ids=["full", "starts"])
def test_an_idle_drone_that_refuses_waiting_jobs_is_named_with_its_rule(
    idle: dict[str, Any], job: dict[str, Any], rule: str, limits: dict[str, Any]
) -> None:
    """Both where a limit is named for the jobs and where drones start for them."""
    retires_at = idle.get("retires_at", 0.0)
    there = drone("d-1", **{key: value for key, value in idle.items() if key != "retires_at"})
    kind = idle.get("kind", A100)
    larger = [jobs(id="vram", vram_mib=40_000), jobs(id="pair", gpu_milli=2000)]
    waits = [each for each in larger if each.id == there.for_class]
    made = snapshot(
        classes=[jobs(**job), *waits],
        drones=[there],
        slots=[slot_of(there, kind, retires_at=retires_at)],
        types=(A100, QUAD),
        limits=limits,
    )
    plan = plan_of(made)
    assert told(plan) == [(rule, "d-1")]
    (reason,) = reasons_given(plan)
    assert reason.type == kind.key and reason.drones == 1 and reason.until > NOW, "with its end"
    assert [each.count for each in plan.refusals if each.reason is reason] == [0], (
        "another reason counts the jobs"
    )


@pytest.mark.parametrize(
    ("idle", "job"),
    [
        ({"job_filter": JobFilter(("eve",))}, {"owner": "bob"}),
        ({"job_filter": JobFilter(("bob",)), "state": DroneState.BUSY}, {"owner": "bob"}),
        (
            {"job_filter": JobFilter(("bob",))},
            {"owner": "bob", "vram_mib": 90_000},
        ),  # its type does not fit
        ({"job_filter": JobFilter(("bob",))}, {"owner": "bob", "waiting": 0, "fresh": 1}),
        ({"job_filter": FIRST_VRAM, "age_s": 30.0}, {"waiting": 0, "fresh": 1}),
        ({"job_filter": FIRST_VRAM, "age_s": 30.0}, {"vram_mib": 40_000}),
        ({"job_filter": FIRST_VRAM, "age_s": 100.0}, {"cpus": 4}),
        ({"job_filter": FIRST_VRAM, "age_s": 30.0, "jobs_started": 1}, {"cpus": 4}),
        ({"for_class": "headroom:desk", "age_s": 30.0}, {"cpus": 4}),
    ],
)
def test_a_drone_that_takes_the_jobs_or_is_not_idle_or_does_not_fit_is_not_named(
    idle: dict[str, Any], job: dict[str, Any]
) -> None:
    made = snapshot(classes=[jobs(**job)], drones=[drone("d-1", **idle)], limits=FULL)
    assert told(plan_of(made)) == []


def test_jobs_that_another_idle_drone_takes_wait_for_nothing_else() -> None:
    free, closed = drone("d-1"), drone("d-2", job_filter=JobFilter(("bob",)))
    made = snapshot(classes=[jobs(owner="bob")], drones=[free, closed])
    assert told(plan_of(made)) == []
    made = snapshot(classes=[jobs(owner="bob", waiting=2)], drones=[free, closed])
    assert told(plan_of(made)) == [("excluded_users", "d-2")]


def test_drones_that_refuse_for_one_cause_are_one_reason() -> None:
    drones = [
        drone(f"d-{n}", job_filter=JobFilter(("bob",) if n % 2 else ("amy", "bob")))
        for n in range(6)
    ]
    made = snapshot(classes=[jobs(owner="bob")], drones=drones, limits={"max_drones": 6})
    plan = plan_of(made)
    (reason,) = reasons_given(plan)
    assert reason.drones == 6 and "6 idle drones" in reason.describe()
    (row,) = class_rows(
        Views(7, NOW, made.policy, made.types, made.overlay, made.sites), reasons_by_class(plan), {}
    )
    assert [each.kind for each in row.reasons] == ["idle-drone-refuses", "limit-reached"]
    assert "6 idle drones" in why_waiting(row), (
        "as `demand` shows it: not the limit is why they wait"
    )


def test_the_advice_is_not_misled_by_a_drone_that_refuses() -> None:
    """A drone starts for the job: nothing holds it back."""
    made = snapshot(
        classes=[jobs(owner="bob")], drones=[drone("d-1", job_filter=JobFilter(("bob",)))]
    )
    assert advise(made, jobs(owner="bob")).why is None


# -------------------------------------------------------------------------------------------
# Exclusions that end


def refused(*, risk: bool = False, idle: int = 1, waiting: int = 1, **more: Any) -> Snapshot:
    """All of TOpAS is held by idle drones that avoid "long"; HoreKa, where its jobs would be safe, is full."""
    rises = {"topas": BUSY if risk else CALM}
    runs = {size_key("long"): (24 * HOUR_S,), "": (600.0,)}
    drones = tuple(
        drone(
            f"d-{n}",
            kind=TOPAS,
            age_s=more.get("age_s", 20.0),
            job_filter=JobFilter(("long",)),
            busy_at=NOW - 30,
        )
        for n in range(idle)
    )
    at_work = tuple(drone(f"h-{n}", DroneState.BUSY, HPC, started_at=NOW - 900) for n in range(300))
    classes = [of("long", waiting=waiting), *more.get("others", ())]
    return world(
        Estimates(rises=rises, runs=runs),
        free=0,
        elsewhere=0,
        drones=(*drones, *at_work),
        classes=classes,
    )


def drained(plan: Plan) -> list[str]:
    told = [each.reason for each in plan.drains]
    assert all(isinstance(each, reasons.IdleTimeout) and each.by == "refused-jobs" for each in told)
    return [each.drone.id for each in plan.drains]


def test_an_idle_drone_leaves_for_an_excluded_user_once_a_start_is_worth_its_risk() -> None:
    plan = plan_of(refused())
    assert drained(plan) == ["d-0"]
    assert drained(plan_of(refused(risk=True))) == [], "the owner would still take its place"


def test_it_stays_while_jobs_wait_that_it_takes() -> None:
    assert drained(plan_of(refused(others=(of("short", waiting=1),)))) == []


def test_another_one_leaves_if_jobs_wait_that_the_first_takes() -> None:
    made = refused(idle=2, others=(replace(of("short"), owner="ann"),))
    first = replace(made.drones[DroneId("d-1")], job_filter=JobFilter(("ann", "long")))
    assert drained(plan_of(replace(made, drones={**made.drones, first.id: first}))) == ["d-1"]


def test_a_decision_looks_at_each_user_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user with two thousand different requests beside forty drones that refuse them."""
    many = [replace(SMALL, id=f"c{n}", owner="bob", memory_mib=1000 + n) for n in range(2000)]
    made = snapshot(
        classes=many,
        drones=[drone(f"d-{n}", job_filter=JobFilter(("bob",))) for n in range(40)],
        limits={"max_drones": 40},
    )
    asked, refuses = [], JobFilter.refuses

    def counted(*given: Any) -> bool:
        asked.append(given)
        return refuses(*given)

    monkeypatch.setattr(JobFilter, "refuses", counted)
    assert len(drained(decide(made))) == 1
    assert len(asked) < 5 * 2000, "not each drone for each class"


def test_it_stays_where_the_user_has_room_elsewhere() -> None:
    made = refused()
    roomy = replace(made.policy.sites["horeka"], queue_when_full=True, max_drones=1000)
    made = replace(made, policy=replace(made.policy, sites={**made.policy.sites, "horeka": roomy}))
    plan = plan_of(made)
    assert [start.drone.type for start in plan.starts] == [HPC.key] and drained(plan) == []


def test_one_leaves_at_a_time_for_each_class() -> None:
    """Six idle drones avoid the user of one job: no more leave than that job takes, tick after tick."""
    made = refused(idle=6)
    gone = drained(plan_of(made))
    assert len(gone) == 1
    after = next(each.drone for each in plan_of(made).drains)
    later = replace(made, drones={**made.drones, after.id: after})
    assert drained(plan_of(later)) == [], "its room is on its way"


def test_a_drone_leaves_once_and_the_one_in_its_place_stays() -> None:
    """Tick by tick: what leaves is gone, and what starts is idle, until the jobs are matched, which never happens."""
    made, drains, starts = refused(), 0, []
    for _ in range(8):
        plan = plan_of(made)
        here = [each for each in made.drones.values() if each.site == "topas"]
        gone = {each.drone.id for each in plan.drains}
        new = [
            replace(drone(each.drone.id, kind=TOPAS, age_s=9.0), job_filter=each.drone.job_filter)
            for each in plan.starts
        ]
        drains += len(gone)
        starts += [(each.drone.type, each.drone.job_filter.excluded_users) for each in plan.starts]
        left = [*(each for each in here if each.id not in gone), *new]
        others = {key: each for key, each in made.drones.items() if each.site != "topas"}
        free = 1 - len(left)
        made = replace(
            made,
            drones={**others, **{each.id: each for each in left}},
            next_serial=made.next_serial + 1,
        )
        made = with_site(
            made,
            free={"a100": free},
            free_gpu_milli=1000 * free,
            drones={each.id: remote_of(each) for each in left},
        )
        assert made.overlay.view is not None
        busy = [each for each in made.overlay.view.slots if each.drone_id in others]
        made = with_pool(made, slots=(*busy, *map(slot_of, left)))
    assert (drains, starts) == (1, [(TOPAS.key, ())])


# ------------------------------------------------------------------------------------- Drones kept
# for several jobs


@pytest.mark.parametrize(("waiting", "kept"), [(2, 2), (4, 2), (1, 0), (3, 0)])
def test_drones_that_jobs_of_several_gpus_fill_are_kept_for_them(waiting: int, kept: int) -> None:
    """Two jobs of two GPUs have one drone of four; a small job that came before them would divide it."""
    pairs = replace(SMALL, id="pairs", gpu_milli=2000, cpus=8, waiting=waiting)
    plan = plan_of(snapshot(classes=[pairs], types=(QUAD,)))
    assert {start.drone.job_filter.first_gpus for start in plan.starts} == {kept}
