"""Jobs with an optional GPU: idle GPUs and CPU drones are for them, and no GPU drone is started or kept for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner import model, reasons
from provisioner.planner import matching
from provisioner.reasons import AwaitingIdleGpu, IdleTimeout, OptionalJobsOnly
from tests.planner import scenes
from tests.planner.scenes import (
    A100,
    NOW,
    QUAD,
    SMALL,
    drone,
    jobs,
    plan_for,
    plan_of,
    slot_of,
    snapshot,
    story,
    why,
)

S = model.DroneState
CPU = model.DroneType("topas", "cpu", 0, 8, 20480, 0)
MAYBE = SMALL.with_optional_gpu()
"""Named as SMALL is, for :func:`scenes.tell`."""
IDLE = drone("kit-ab12-1")
WARM = model.Headroom("warm", cpus=8, memory_mib=20480, count=1, from_h=0, to_h=24)


@pytest.mark.parametrize(
    ("kinds", "refused", "given"),
    [
        story("no GPU drone", [], [AwaitingIdleGpu("")], classes=[jobs(MAYBE, 50)]),
        story("a CPU drone each", [CPU] * 3, [], classes=[jobs(MAYBE, 3)], types=(A100, CPU)),
        story(
            "no room for a CPU drone",
            [],
            [AwaitingIdleGpu("topas/cpu", "site-full")],
            classes=[jobs(MAYBE, 3)],
            types=(A100, CPU),
            free={"a100": 4, "cpu": 0},
        ),
        story("an idle GPU", [], [AwaitingIdleGpu("")], classes=[jobs(MAYBE)], drones=[IDLE]),
        story(
            "an idle GPU beside CPU drones",
            [CPU] * 2,
            [],
            classes=[jobs(MAYBE, 2)],
            types=(A100, CPU),
            drones=[IDLE],
        ),
        story(
            "a GPU drone on its way is for others",
            [],
            [AwaitingIdleGpu("")],
            classes=[jobs(MAYBE)],
            drones=[drone("kit-ab12-1", S.BOOTING)],
        ),
        story(
            "what needs a GPU comes first, whatever fits how many types",
            [],
            [AwaitingIdleGpu("")],
            classes=[jobs(MAYBE, oldest_at=NOW - 9999, priority=9), jobs(id="needs-it")],
            types=(A100, QUAD),
            drones=[IDLE],
        ),
        story(
            "what needs no GPU comes first, whatever the priorities",
            [],
            [AwaitingIdleGpu(CPU.key, "site-full")],
            classes=[jobs(MAYBE, priority=9), jobs(MAYBE, id="no-gpu", gpu_optional=False)],
            types=(A100, CPU),
            drones=[drone("kit-ab12-1", kind=CPU)],
            free={"a100": 4, "cpu": 0},
        ),
        story(
            "VRAM and capability count on GPUs alone",
            [CPU],
            [],
            classes=[
                jobs(
                    vram_mib=80000, capability=90, driver=13000, gpu_milli=8000
                ).with_optional_gpu()
            ],
            types=(A100, CPU),
        ),
        story(
            "refused by CPU drones",
            [],
            [AwaitingIdleGpu("")],
            classes=[jobs(MAYBE, refuses={CPU.key: model.UnmetRequirement("gpus", "1", "0")})],
            types=(A100, CPU),
        ),
        story(
            "too large for CPU drones",
            [],
            [AwaitingIdleGpu(CPU.key, "nothing-fits")],
            classes=[jobs(MAYBE, cpus=99)],
            types=(A100, CPU),
        ),
    ],
)
def test_what_is_started_for_jobs_with_an_optional_gpu(
    kinds: list[model.DroneType], refused: list[object], given: dict[str, object]
) -> None:
    scenes.tell(kinds, refused, given)


def test_a_job_that_needs_the_gpu_gets_a_drone_as_if_others_had_taken_it() -> None:
    busy = drone("kit-ab12-1", S.BUSY)
    slots = [slot_of(busy, optional_jobs=1)]
    plan = plan_for(classes=[jobs(), jobs(MAYBE, 9, id="maybe")], drones=[busy], slots=slots)
    assert scenes.started(plan) == [A100.key]
    assert plan.starts[0].drone.for_class == "small"
    assert why(plan, "class:maybe") == [AwaitingIdleGpu("")]


def leaves(each: model.Drone, **given: object) -> list[object]:
    plan = plan_of(snapshot(drones=[each], **given))  # type: ignore[arg-type]
    return [drain.reason for drain in plan.drains] + [stop.reason for stop in plan.stops]


def test_an_idle_gpu_drone_is_not_kept_for_them() -> None:
    late = drone("kit-ab12-1", S.IDLE, age_s=700)
    assert leaves(late, classes=[jobs(MAYBE)]) == [IdleTimeout(700, 600, "time-out")]
    assert leaves(late, classes=[jobs()]) == [], "the negotiator should match it"
    cpu = drone("kit-ab12-1", S.IDLE, CPU, age_s=700)
    assert leaves(cpu, classes=[jobs(MAYBE)], types=(A100, CPU)) == [], "a CPU drone is theirs"


def test_a_gpu_drone_on_its_way_is_not_kept_for_them() -> None:
    waits = drone("kit-ab12-1", S.QUEUED, idle_at=NOW - 200)
    assert leaves(waits, classes=[jobs(MAYBE)]) == [reasons.Unneeded("queued")]
    assert leaves(waits, classes=[jobs()]) == []


@pytest.mark.parametrize(
    ("idle_at", "optional", "work_at", "left"),
    [
        (NOW - 700, 1, NOW - 50, [OptionalJobsOnly(700, 600)]),
        (NOW - 500, 1, NOW - 50, []),
        (NOW - 700, 0, NOW - 50, []),  # its job needs the GPU
        (NOW - 700, 0, 0.0, []),  # what runs is unknown
    ],
)
def test_a_gpu_drone_that_runs_nothing_else_takes_no_more_after_the_idle_timeout(
    idle_at: float, optional: int, work_at: float, left: list[object]
) -> None:
    busy = drone("kit-ab12-1", S.BUSY, idle_at=idle_at)
    slots = [slot_of(busy, optional_jobs=optional, work_at=work_at)]
    assert leaves(busy, slots=slots) == left
    plan = plan_of(snapshot(drones=[busy], slots=slots))
    assert [(drain.mode, drain.drone.leaving) for drain in plan.drains] == [
        (model.DrainMode.PEACEFUL, S.DONE)
    ] * len(left)


@pytest.mark.parametrize(
    ("idle_s", "waits", "stays"),
    [
        (700, jobs(), True),
        (1801, jobs(), False),  # the pool does not preempt
        (700, jobs(cpus=99), False),
        (700, jobs(MAYBE), False),
    ],
)
def test_a_lent_drone_stays_while_a_job_waits_that_needs_its_gpu(
    idle_s: float, waits: model.JobClass, stays: bool
) -> None:
    busy = drone("kit-ab12-1", S.BUSY, idle_at=NOW - idle_s)
    slots = [slot_of(busy, optional_jobs=1, work_at=NOW - 50)]
    assert leaves(busy, slots=slots, classes=[waits]) == [OptionalJobsOnly(idle_s, 600)] * (
        not stays
    )


def after(each: model.Drone, classes: tuple[model.JobClass, ...] = (), **slot: object) -> float:
    """The begin of its idle time, after a look at its slot."""
    kind = CPU if each.type == CPU.key else A100
    snap = snapshot(
        drones=[each], types=(A100, CPU), slots=[slot_of(each, kind, **slot)], classes=classes
    )
    moved = {move.drone.id: move.drone for move in plan_of(snap).moves}
    return moved.get(each.id, each).idle_at


def test_a_gpu_is_idle_while_it_runs_only_them() -> None:
    busy, since, at_work = model.SlotState.BUSY, IDLE.idle_at, NOW - 20
    optional = {"state": busy, "jobs": 1, "optional_jobs": 1, "work_at": at_work}
    assert after(IDLE, **optional) == since, "as before the job"
    assert after(IDLE, **{**optional, "optional_jobs": 0}) == 0.0
    assert after(IDLE, **{**optional, "jobs": 2}) == 0.0, "one of two"
    serves = drone("kit-ab12-1", S.BUSY)
    assert after(serves, work_at=at_work) == 0.0
    assert after(serves, **optional) == NOW, "the job that needed it has ended"
    lent = replace(serves, idle_at=NOW - 300)
    assert after(lent, state=busy, jobs=1) == NOW - 300, "what runs is unknown for a moment"
    assert after(lent, state=busy, jobs=1, work_at=at_work) == 0.0
    assert after(lent, state=model.SlotState.IDLE, jobs=0) == NOW - 300, "the job ends"
    assert after(drone("kit-ab12-1", S.BUSY, CPU), **optional) == 0.0, "a CPU drone is not lent"


def test_a_new_claim_whose_job_is_not_known_yet_does_not_end_the_idle_time_for_a_minute() -> None:
    maybe, claimed = (jobs(MAYBE),), {"state": model.SlotState.BUSY, "jobs": 1}
    assert after(IDLE, maybe, **claimed) == IDLE.idle_at
    assert after(IDLE, (jobs(),), **claimed) == 0.0, "no job of the pool gives way"
    claim = replace(drone("kit-ab12-1", S.BUSY, age_s=20), idle_at=NOW - 300)
    assert after(claim, maybe, **claimed) == NOW - 300
    assert after(claim, maybe, **claimed, optional_jobs=1, work_at=NOW - 5) == NOW - 300
    assert after(claim, maybe, **claimed, work_at=NOW - 5) == 0.0
    older = replace(claim, since=NOW - 61)
    assert after(older, maybe, **claimed) == 0.0, "it is not known at all what runs"
    assert after(replace(older, work_at=NOW - 500), maybe, **claimed) == NOW - 300, (
        "it was when looked at last"
    )


def test_headroom_counts_a_claim_whose_job_is_not_known_yet_as_lent() -> None:
    none_free = {"free_gpu_milli": 0, "free_cpus": 0, "free_memory_mib": 0}
    slots = [slot_of(IDLE, state=model.SlotState.BUSY, jobs=1, **none_free)]
    for each, kinds in ((jobs(MAYBE), []), (jobs(waiting=0, fresh=1), [A100.key])):
        snap = snapshot(
            classes=[each], drones=[IDLE], slots=slots, policy=model.Policy(headroom=(WARM,))
        )
        assert scenes.started(plan_of(snap)) == kinds


def test_a_drone_that_leaves_while_it_runs_only_them_comes_back_for_a_job_that_needs_its_gpu() -> (
    None
):
    leaving = drone(
        "kit-ab12-1", S.DRAINING, joined_at=NOW - 900, leaving=S.DONE, asked_at=NOW - 60, jobs=1
    )
    full = {"free_gpu_milli": 0, "jobs": 1, "state": model.SlotState.DRAINING}
    lent = [slot_of(leaving, **full, optional_jobs=1)]
    for slots, classes, returned in (
        (lent, [jobs()], True),  # the pool evicts the other
        (lent, [jobs(MAYBE)], False),
        ([slot_of(leaving, **full)], [jobs()], False),
    ):
        plan = plan_of(snapshot(drones=[leaving], slots=slots, classes=classes, free={"a100": 0}))
        assert [drain.mode for drain in plan.drains] == [model.DrainMode.RESUME] * returned


def test_headroom_counts_a_lent_gpu_and_keeps_its_drone() -> None:
    lent = drone("kit-ab12-1", S.BUSY, idle_at=NOW - 700)
    warm = model.Policy(headroom=(WARM,))
    for optional, plans in ((1, ([], [])), (0, ([A100.key], []))):
        slots = [slot_of(lent, optional_jobs=optional, work_at=NOW - 50)]
        plan = plan_of(snapshot(drones=[lent], slots=slots, policy=warm))
        assert (scenes.started(plan), list(plan.drains)) == plans


@pytest.mark.parametrize("count", [1, 2, 50])
def test_headroom_starts_no_drone_in_place_of_idle_ones_that_they_will_get(count: int) -> None:
    warm = model.Policy(headroom=(replace(WARM, count=2),))
    idle = [IDLE, drone("kit-ab12-2")]
    plan = plan_of(snapshot(classes=[jobs(MAYBE, count)], drones=idle, policy=warm))
    assert scenes.started(plan) == []
    needs = plan_of(
        snapshot(classes=[jobs(id="needs"), jobs(MAYBE, count)], drones=idle, policy=warm)
    )
    assert scenes.started(needs) == [A100.key], "in place of the one that a job needs"


@pytest.mark.parametrize(
    ("more", "count", "lacks"),
    [
        ({}, 4, False),
        ({}, 5, True),
        ({"free_disk_mib": 3000}, 4, False),
        ({"free_disk_mib": 3000, "optional_jobs": 0}, 4, True),
        ({"gpus_offline": 1, "free_gpu_milli": 2000}, 3, False),
        ({"gpus_offline": 1, "free_gpu_milli": 2000}, 4, True),
    ],
)
def test_headroom_counts_each_gpu_of_a_drone_that_is_partly_lent_once(
    more: dict[str, int], count: int, lacks: bool
) -> None:
    kind = replace(QUAD, disk_mib=4000) if "free_disk_mib" in more else QUAD
    partly = drone("kit-ab12-1", S.BUSY, kind, idle_at=NOW - 300)
    free = {
        "free_gpu_milli": 3000,
        "free_cpus": 48,
        "free_memory_mib": 196608,
        "optional_jobs": 1,
        "work_at": NOW - 50,
    }
    policy = model.Policy(headroom=(replace(WARM, cpus=1, memory_mib=1024, count=count),))
    slots = [slot_of(partly, kind, **{**free, **more})]
    plan = plan_of(snapshot(types=(kind,), drones=[partly], slots=slots, policy=policy))
    assert scenes.started(plan) == [kind.key] * lacks


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_the_shares_that_are_lent_and_those_that_are_free_add_up(taken: int) -> None:
    thirds = replace(QUAD, gpu_milli=1000, sharing=model.Sharing.MPS, shares=3)
    lent = slot_of(
        drone("kit-ab12-1", S.BUSY, thirds),
        thirds,
        optional_jobs=1,
        free_gpu_milli=1000 - 333 * taken,
    )
    share = model.JobClass("share", 300, 0, 0, splits=False)
    parts = matching.lent_resources(lent, thirds), matching.free_resources(lent)
    assert [matching.count_jobs(share, part, thirds) for part in parts] == [taken, 3 - taken]


def test_a_gpu_that_is_offline_is_not_free_for_a_job_that_needs_one() -> None:
    lent = slot_of(drone("kit-ab12-1", S.BUSY, QUAD), QUAD, optional_jobs=1, gpus_offline=1)
    assert matching.resources_for_gpu_jobs(lent, QUAD).gpu_milli == 3000
    mig = replace(QUAD, gpu_milli=1000, sharing=model.Sharing.MIG, shares=4)
    assert matching.resources_for_gpu_jobs(lent, mig).gpu_milli == 750, "under MIG it is a slice"


def test_a_start_of_a_gpu_drone_for_them_would_be_refused() -> None:
    snap = snapshot(classes=[jobs(MAYBE)])
    (start,) = plan_for(waiting=1).starts
    plan = replace(plan_of(snap), starts=(start,))
    assert "of topas/a100 cannot run class optional GPU, 8 CPUs, 20 GiB RAM (small)" in str(
        next(iter(scenes.validate_plan(snap, plan)))
    )


def test_the_reasons_say_what_they_wait_for() -> None:
    assert AwaitingIdleGpu("topas/cpu", "site-full").describe() == (
        "no GPU drone is started because a GPU is optional for these jobs: they wait for an idle GPU or a CPU slot"
        " (drone type topas/cpu: site-full)"
    )
    assert AwaitingIdleGpu("").describe().endswith("they wait for an idle GPU")
    assert "jobs for which a GPU is optional" in OptionalJobsOnly(905, 600).describe()
