"""Accounting groups: nothing is started that the negotiator would match to nobody, and small groups get their turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner import reasons
from provisioner.model import DroneState, Group, Headroom, JobClass, OwnerDemand, Policy, Snapshot
from provisioner.planner.demand import headroom_active
from tests.planner.scenes import (
    A100,
    NOW,
    QUAD,
    V100,
    drone,
    jobs,
    node,
    plan_for,
    plan_of,
    snapshot,
    started,
    why,
    with_pool,
)

ATLAS = Group("physics.atlas", quota_milli=4000, used_milli=1000, surplus=False)


def with_groups(snap: Snapshot, *groups: Group) -> Snapshot:
    return with_pool(snap, groups=groups)


def of(group: str, waiting: int, name: str = "", **more: object) -> JobClass:
    return jobs(waiting=waiting, group=group, id=name or group, **more)


# ------------------------------------------------------------------------------------------------- what is no demand


def test_a_group_gets_drones_up_to_its_quota_and_no_further() -> None:
    plan = plan_of(with_groups(snapshot(classes=[of("physics.atlas", 10)]), ATLAS))
    assert started(plan) == [A100.key] * 3
    assert plan.starts[0].reason == reasons.JobsWaiting("physics.atlas", waiting=3, covered=0, starts=3)
    assert why(plan, "class:physics.atlas") == [reasons.GroupQuota("physics.atlas", 1.0, 4.0)]
    assert [r.count for r in plan.refusals] == [7]


def test_a_group_whose_quota_is_used_up_is_no_demand() -> None:
    full = replace(ATLAS, used_milli=4000)
    plan = plan_of(with_groups(snapshot(classes=[of("physics.atlas", 10)]), full))
    assert plan.starts == ()
    assert why(plan, "class:physics.atlas") == [reasons.GroupQuota("physics.atlas", 4.0, 4.0)]


def test_a_group_that_may_take_surplus_is_demand_beyond_its_quota() -> None:
    plan = plan_of(with_groups(snapshot(classes=[of("physics.atlas", 10)]), replace(ATLAS, surplus=True)))
    assert len(plan.starts) == 10
    assert why(plan, "class:physics.atlas") == []


def test_a_quota_is_shared_by_all_classes_of_a_group() -> None:
    small = of("physics.atlas", 2, "small")
    large = of("physics.atlas", 2, "large", vram_mib=35000)
    plan = plan_of(with_groups(snapshot(classes=[small, large]), ATLAS))
    assert [s.drone.for_class for s in plan.starts] == ["large", "large", "small"]
    assert why(plan, "class:small") == [reasons.GroupQuota("physics.atlas", 3.0, 4.0)]


def test_what_is_on_its_way_for_a_group_is_not_granted_twice() -> None:
    coming = [drone(f"d-{n}", DroneState.BOOTING, for_class="physics.atlas") for n in range(3)]
    plan = plan_of(with_groups(snapshot(classes=[of("physics.atlas", 10)], drones=coming), ATLAS))
    assert plan.starts == ()
    assert why(plan, "class:physics.atlas") == [
        reasons.GroupQuota("physics.atlas", 1.0, 4.0),
        reasons.DemandCovered(3, 3),
    ]


@pytest.mark.parametrize("asked_as", ["physics.atlas.higgs", "Physics.ATLAS"])
def test_the_nearest_listed_group_counts_and_capitals_do_not(asked_as: str) -> None:
    plan = plan_of(with_groups(snapshot(classes=[of(asked_as, 10)]), ATLAS))
    assert len(plan.starts) == 3


def test_the_quota_of_a_group_that_contains_it_binds_too() -> None:
    physics = Group("physics", quota_milli=6000, used_milli=5000, surplus=False)
    plan = plan_of(with_groups(snapshot(classes=[of("physics.atlas", 10)]), ATLAS, physics))
    assert len(plan.starts) == 1
    assert why(plan, "class:physics.atlas") == [reasons.GroupQuota("physics", 5.0, 6.0)]


def test_sub_groups_share_what_their_parent_has_left() -> None:
    physics = Group("physics", quota_milli=3000, used_milli=0, surplus=False)
    cms = Group("physics.cms", quota_milli=2000, used_milli=0, surplus=False)
    atlas = replace(ATLAS, quota_milli=2000, used_milli=0)
    classes = [of("physics.atlas", 9), of("physics.cms", 9)]
    plan = plan_of(with_groups(snapshot(classes=classes), physics, atlas, cms))
    assert sorted(s.drone.for_class for s in plan.starts) == ["physics.atlas"] * 2 + ["physics.cms"]
    assert why(plan, "class:physics.cms") == [reasons.GroupQuota("physics", 2.0, 3.0)]


def test_jobs_of_no_listed_group_and_groups_without_a_quota_are_not_limited() -> None:
    free = Group("guests", quota_milli=None, used_milli=9000, surplus=False)
    classes = [of("guests", 2), of("elsewhere", 2), of("", 2, "nobody")]
    plan = plan_of(with_groups(snapshot(classes=classes), ATLAS, free))
    assert len(plan.starts) == 6


def test_an_idle_drone_is_not_kept_for_jobs_beyond_their_groups_quota() -> None:
    idle = drone("kit-1", age_s=700.0)
    waits = snapshot(classes=[of("physics.atlas", 1)], drones=[idle])
    assert plan_of(with_groups(waits, ATLAS)).drains == (), "the negotiator takes it any moment"
    (drain,) = plan_of(with_groups(waits, replace(ATLAS, used_milli=4000))).drains
    assert isinstance(drain.reason, reasons.IdleTimeout)


# --------------------------------------------------------------------------------------------------- whose turn it is

SIX = Policy(max_drones=6)


def test_where_a_limit_binds_the_group_far_below_its_share_comes_first() -> None:
    rich, poor = Group("rich", 10_000, 9000), Group("poor", 10_000, 1000)
    rich_jobs, poor_jobs = of("rich", 20, priority=9), of("poor", 4)
    plan = plan_of(with_groups(snapshot(classes=[rich_jobs, poor_jobs], policy=SIX), rich, poor))
    assert [s.drone.for_class for s in plan.starts] == ["poor"] * 4 + ["rich"] * 2
    assert why(plan, "class:rich") == [reasons.LimitReached("max_drones", "all sites", 6, 6)]


def test_quotas_come_before_surplus() -> None:
    # the greedy one uses the smaller part of its quota and still gets no more than that before the other has its own
    greedy, other = Group("greedy", 2000, 0), Group("other", 4000, 1000)
    classes = [of("greedy", 20), of("other", 20)]
    plan = plan_of(with_groups(snapshot(classes=classes, policy=SIX), greedy, other))
    assert [s.drone.for_class for s in plan.starts] == ["greedy"] * 2 + ["other"] * 3 + ["greedy"]


def test_what_is_on_its_way_counts_for_whose_turn_it_is() -> None:
    one, two = Group("one", 10_000, 1000), Group("two", 10_000, 2000)
    coming = [drone(f"d-{n}", DroneState.BOOTING, for_class="one") for n in range(3)]
    classes = [of("one", 9), of("two", 9)]
    snap = snapshot(classes=classes, drones=coming, limits={"max_starts_per_tick": 2})
    plan = plan_of(with_groups(snap, one, two))
    assert {s.drone.for_class for s in plan.starts} == {"two"}


def test_groups_without_quotas_come_by_the_negotiators_priority_and_jobs_of_none_last() -> None:
    heavy, light = Group("heavy", priority=900.0), Group("light", priority=500.0)
    classes = [of("", 1, "a-nobody"), of("heavy", 1), of("light", 1)]
    plan = plan_of(with_groups(snapshot(classes=classes), heavy, light))
    assert [s.drone.for_class for s in plan.starts] == ["light", "heavy", "a-nobody"]


def test_the_hardest_to_place_still_comes_first() -> None:
    rich, poor = Group("rich", 10_000, 9000), Group("poor", 10_000, 1000)
    hard, easy = of("rich", 1, vram_mib=35000), of("poor", 1)
    plan = plan_of(with_groups(snapshot(classes=[hard, easy], types=(A100, V100)), rich, poor))
    assert [s.drone.for_class for s in plan.starts] == ["rich", "poor"]


def test_a_class_that_nothing_fits_is_told_once_though_it_is_beyond_its_quota() -> None:
    large = of("poor", 9, gpu_milli=4000, cpus=1, memory_mib=10, vram_mib=900_000)
    plan = plan_of(with_groups(snapshot(classes=[large], types=(QUAD,)), Group("poor", 5000, 0)))
    assert len(why(plan, "class:poor")) == 1


# ----------------------------------- Warm drones for jobs that have not come yet: after all real demand, given up first


TWO = Headroom("day-shift", cpus=8, memory_mib=20480, count=2)
WARM = Policy(headroom=(TWO,))
LONG = 3 * 600.0 + 100.0
"""Idle beyond any time-out."""


def test_without_any_job_as_many_drones_are_warmed_up_as_are_wanted() -> None:
    plan = plan_for(policy=WARM)
    assert started(plan) == [A100.key] * 2
    assert plan.starts[0].reason == reasons.HeadroomShort("day-shift", wanted=2, covered=0, starts=2)
    assert plan.starts[0].drone.for_class == "headroom:day-shift"


def test_what_is_on_its_way_and_what_is_idle_is_headroom_already() -> None:
    here = [drone("kit-1"), drone("kit-2", DroneState.BOOTING)]
    plan = plan_for(policy=WARM, drones=here)
    assert plan.starts == ()
    assert why(plan, "class:headroom:day-shift") == [reasons.DemandCovered(2, 1)]


def test_real_jobs_take_the_warm_drones_and_others_are_warmed_up() -> None:
    idle = [drone("kit-1"), drone("kit-2")]
    plan = plan_for(policy=WARM, drones=idle, classes=[jobs(waiting=1)])
    assert [s.drone.for_class for s in plan.starts] == ["headroom:day-shift"]


def test_as_many_idle_drones_as_are_wanted_stay_and_the_others_leave() -> None:
    idle = [drone(f"kit-{n}", age_s=LONG) for n in range(5)]
    plan = plan_for(policy=WARM, drones=idle)
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


def test_a_drone_that_does_not_fit_the_headroom_does_not_end_the_search_for_one_that_does() -> None:
    large = replace(TWO, count=1, vram_mib=35_000)
    old, fits = drone("kit-1", kind=V100, age_s=2 * LONG), drone("kit-2", kind=A100, age_s=LONG)
    plan = plan_for(policy=replace(WARM, headroom=(large,)), types=(A100, V100), drones=[old, fits])
    assert [d.drone.id for d in plan.drains] == ["kit-1"]
    assert plan.starts == ()


def test_a_drone_that_waits_at_its_site_for_headroom_is_not_withdrawn() -> None:
    queued = [drone(f"kit-{n}", DroneState.QUEUED, age_s=400.0, idle_at=NOW - 300.0) for n in range(3)]
    plan = plan_for(policy=WARM, drones=queued)
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


def test_only_where_the_operator_wants_it() -> None:
    types = (V100, A100, QUAD)
    assert started(plan_for(policy=WARM, types=types)) == [V100.key] * 2, "the cheapest"
    there = Policy(headroom=(replace(TWO, site="horeka"),))
    assert started(plan_for(policy=there, types=types)) == [QUAD.key]
    those = Policy(headroom=(replace(TWO, types=("a100",)),))
    assert started(plan_for(policy=those, types=types)) == [A100.key] * 2


# ------------------------------------------------------------------------------------------------------ given up first


def test_a_limit_that_real_jobs_meet_leaves_nothing_for_headroom() -> None:
    policy = replace(WARM, max_gpu_milli=4000)
    # four GPUs are allowed: the quad needs them all, the small drones are only wanted warm
    large = jobs(waiting=2, gpu_milli=4000, cpus=8)
    plan = plan_for(policy=policy, types=(A100, QUAD), classes=[large])
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
    plan = plan_for(policy=WARM, classes=[jobs(waiting=40)], drones=idle, free={"a100": 0})
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
    plan = plan_for(policy=WARM, nodes=[node("n1", 8)], claims=[claim])
    assert plan.starts == ()
    assert why(plan, "class:headroom:day-shift") == [reasons.HeadroomYields("day-shift", 2)]


def test_a_cpu_drone_does_not_give_up_its_place_for_headroom() -> None:
    from provisioner.model import Reserve, ReserveWhen

    cpu = replace(A100, name="cpu", gpu_milli=0, vram_mib=0, capability=0, cpus=64)
    lent = (Reserve(cpus=8, when=ReserveWhen.GPU_DEMAND, release_after_s=10.0),)
    busy = drone("kit-1", DroneState.BUSY, cpu, node="n1")
    full = node("n1", 8, 64, kinds=("a100", "cpu"), free_cpus=0)
    given = {"types": (A100, cpu), "drones": [busy], "nodes": [full], "limits": {"blocking": lent}}
    assert plan_for(policy=WARM, **given).stops == ()
    assert plan_for(waiting=1, **given).stops != ()
