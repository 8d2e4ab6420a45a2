"""Warm drones for jobs that have not come yet: after all real demand, given up first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner import reasons
from provisioner.model import DroneState, Headroom, OwnerDemand, Policy
from provisioner.planner import decide
from provisioner.planner.headroom import headroom_active
from provisioner.planner.validation import validate_plan
from tests.planner.scenes import A100, NOW, QUAD, V100, drone, jobs, node, plan_of, snapshot, started, why

TWO = Headroom("day-shift", cpus=8, memory_mib=20480, count=2)
WARM = Policy(headroom=(TWO,))
LONG = 3 * 600.0 + 100.0
"""Idle beyond any time-out."""


def test_without_any_job_as_many_drones_are_warmed_up_as_are_wanted() -> None:
    plan = plan_of(snapshot(policy=WARM))
    assert started(plan) == [A100.key] * 2
    assert plan.starts[0].reason == reasons.HeadroomShort("day-shift", wanted=2, covered=0, starts=2)
    assert plan.starts[0].drone.for_class == "headroom:day-shift"


def test_one_larger_drone_may_do_for_several() -> None:
    assert started(plan_of(snapshot(policy=WARM, types=(QUAD,)))) == [QUAD.key]


def test_what_is_on_its_way_and_what_is_idle_is_headroom_already() -> None:
    here = [drone("kit-1"), drone("kit-2", DroneState.BOOTING)]
    plan = plan_of(snapshot(policy=WARM, drones=here))
    assert plan.starts == ()
    assert why(plan, "class:headroom:day-shift") == [reasons.DemandCovered(2, 1)]


def test_real_jobs_take_the_warm_drones_and_others_are_warmed_up() -> None:
    idle = [drone("kit-1"), drone("kit-2")]
    plan = plan_of(snapshot(policy=WARM, drones=idle, classes=[jobs(waiting=1)]))
    assert [s.drone.for_class for s in plan.starts] == ["headroom:day-shift"]


def test_as_many_idle_drones_as_are_wanted_stay_and_the_others_leave() -> None:
    idle = [drone(f"kit-{n}", age_s=LONG) for n in range(5)]
    plan = plan_of(snapshot(policy=WARM, drones=idle))
    assert [d.drone.id for d in plan.drains] == ["kit-2", "kit-3", "kit-4"]
    assert isinstance(plan.drains[0].reason, reasons.IdleTimeout)


def test_room_beside_running_jobs_is_headroom_before_an_idle_drone_is() -> None:
    from tests.planner.scenes import slot_of

    busy, idle = drone("kit-1", DroneState.BUSY, QUAD), drone("kit-2", kind=QUAD, age_s=LONG)
    roomy = slot_of(busy, QUAD, free_gpu_milli=3000, free_cpus=48, free_memory_mib=100_000)
    snap = snapshot(policy=WARM, types=(QUAD,), drones=[busy, idle], slots=[roomy, slot_of(idle, QUAD)])
    plan = plan_of(snap)
    assert [d.drone.id for d in plan.drains] == ["kit-2"]
    assert plan.starts == ()


def test_a_drone_that_waits_at_its_site_for_headroom_is_not_withdrawn() -> None:
    queued = [drone(f"kit-{n}", DroneState.QUEUED, age_s=400.0, idle_at=NOW - 300.0) for n in range(3)]
    plan = plan_of(snapshot(policy=WARM, drones=queued))
    assert [type(s.reason) for s in plan.stops] == [reasons.Unneeded]
    assert plan.starts == ()


@pytest.mark.parametrize(("hour", "wanted"), [(6.9, False), (7.0, True), (16.9, True), (17.0, False)])
def test_hours_of_the_day(hour: float, wanted: bool) -> None:
    day = replace(TWO, from_h=7, to_h=17)
    night = replace(TWO, from_h=17, to_h=7)
    at = 20_000 * 86400.0 + hour * 3600.0
    assert headroom_active(day, at) is wanted
    assert headroom_active(night, at) is not wanted
    assert headroom_active(TWO, at)


def test_after_hours_what_is_idle_leaves() -> None:
    hour = int(NOW % 86400 // 3600)
    over = Policy(headroom=(replace(TWO, from_h=hour + 1, to_h=hour + 2),))
    plan = plan_of(snapshot(policy=over, drones=[drone("kit-1", age_s=LONG)]))
    assert len(plan.drains) == 1
    assert plan.starts == ()


def test_only_where_the_operator_wants_it() -> None:
    types = (V100, A100, QUAD)
    assert started(plan_of(snapshot(policy=WARM, types=types))) == [V100.key] * 2, "the cheapest"
    there = Policy(headroom=(replace(TWO, site="horeka"),))
    assert started(plan_of(snapshot(policy=there, types=types))) == [QUAD.key]
    those = Policy(headroom=(replace(TWO, types=("a100",)),))
    assert started(plan_of(snapshot(policy=those, types=types))) == [A100.key] * 2


def test_headroom_that_nothing_can_host_says_so() -> None:
    huge = Policy(headroom=(replace(TWO, vram_mib=100_000),))
    (reason,) = why(plan_of(snapshot(policy=huge)), "class:headroom:day-shift")
    assert isinstance(reason, reasons.NothingFits)


# ------------------------------------------------------------------------------------------------------ given up first


def test_a_limit_that_real_jobs_meet_leaves_nothing_for_headroom() -> None:
    policy = replace(WARM, max_gpu_milli=4000)
    # four GPUs are allowed: the quad needs them all, the small drones are only wanted warm
    large = jobs(waiting=2, gpu_milli=4000, cpus=8)
    plan = plan_of(snapshot(policy=policy, types=(A100, QUAD), classes=[large]))
    assert started(plan) == [QUAD.key]
    assert why(plan, "class:small") == [reasons.LimitReached("max_gpus", "all sites", 4.0, 4.0)]
    assert why(plan, "class:headroom:day-shift") == [reasons.HeadroomYields("day-shift", 2)]


def test_warm_drones_that_hold_what_real_jobs_lack_are_not_kept() -> None:
    policy = replace(WARM, max_gpu_milli=4000)
    idle = [drone(f"kit-{n}", age_s=LONG) for n in range(2)]
    large = jobs(waiting=1, gpu_milli=4000, cpus=8)
    snap = snapshot(policy=policy, types=(A100, QUAD), classes=[large], drones=idle)
    assert len(plan_of(snap).drains) == 2
    assert plan_of(replace(snap, policy=replace(snap.policy, max_gpu_milli=None))).drains == ()


def test_warm_drones_that_the_jobs_of_a_burst_fit_are_kept_for_them() -> None:
    idle = [drone(f"kit-{n}", age_s=LONG) for n in range(2)]
    plan = plan_of(snapshot(policy=WARM, classes=[jobs(waiting=40)], drones=idle, free={"a100": 0}))
    assert plan.drains == ()
    assert reasons.SiteFull(A100.key) in why(plan, "class:small")


def test_the_owners_jobs_come_before_headroom() -> None:
    idle = [drone(f"kit-{n}", age_s=LONG, node="n1") for n in range(2)]
    claim = OwnerDemand(1, 8000, 8, 1024, NOW - 100)
    snap = snapshot(policy=WARM, drones=idle, nodes=[node("n1", 8, free_gpus=6)], claims=[claim])
    plan = plan_of(snap)
    assert plan.starts == ()
    assert [type(s.reason) for s in plan.stops] == [reasons.PreemptedForOwner, reasons.PreemptedForOwner]


def test_where_the_owner_got_free_room_no_more_headroom_is_warmed_up() -> None:
    claim = OwnerDemand(1, 1000, 8, 1024, NOW - 100)
    plan = plan_of(snapshot(policy=WARM, nodes=[node("n1", 8)], claims=[claim]))
    assert plan.starts == ()
    assert why(plan, "class:headroom:day-shift") == [reasons.HeadroomYields("day-shift", 2)]


def test_a_cpu_drone_does_not_give_up_its_place_for_headroom() -> None:
    from provisioner.model import Reserve, ReserveWhen

    cpu = replace(A100, name="cpu", gpu_milli=0, vram_mib=0, capability=0, cpus=64)
    lent = (Reserve(cpus=8, when=ReserveWhen.GPU_DEMAND, release_after_s=10.0),)
    busy = drone("kit-1", DroneState.BUSY, cpu, node="n1")
    full = node("n1", 8, 64, kinds=("a100", "cpu"), free_cpus=0)
    given = {"types": (A100, cpu), "drones": [busy], "nodes": [full], "limits": {"blocking": lent}}
    assert plan_of(snapshot(policy=WARM, **given)).stops == ()  # type: ignore[arg-type]
    assert plan_of(snapshot(classes=[jobs(waiting=1)], **given)).stops != ()  # type: ignore[arg-type]


def test_the_checker_refuses_more_starts_than_headroom_is_wanted() -> None:
    snap = snapshot(policy=WARM)
    plan = decide(snap)
    fewer = replace(snap, policy=replace(snap.policy, headroom=(replace(TWO, count=1),)))
    (breach,) = validate_plan(fewer, plan)
    assert breach.text == "2 drones are started for headroom:day-shift, which wants 1"
    assert breach.actions == plan.starts[1:], "only the one too many is named"
    none = replace(snap, policy=replace(snap.policy, headroom=()))
    assert "2 drones are started for class headroom:day-shift, of which nothing waits" in map(
        str, validate_plan(none, plan)
    )


def test_explain_has_what_a_plan_says_of_headroom() -> None:
    from provisioner.cli.jobs import reasons_by_class

    plan = plan_of(snapshot(policy=WARM))
    assert reasons_by_class(plan) == {"headroom:day-shift": (reasons.HeadroomShort("day-shift", 2, 0, 2),)}
