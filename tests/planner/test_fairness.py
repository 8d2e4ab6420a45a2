"""Accounting groups: nothing is started that the negotiator would match to nobody, and small groups get their turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner import reasons
from provisioner.model import DroneState, Group, JobClass, Policy, PolledOverlay, Snapshot
from tests.planner.scenes import A100, QUAD, V100, drone, jobs, plan_of, snapshot, started, why

ATLAS = Group("physics.atlas", quota_milli=4000, used_milli=1000, surplus=False)


def with_groups(snap: Snapshot, *groups: Group) -> Snapshot:
    assert snap.overlay.view is not None
    return replace(snap, overlay=PolledOverlay(replace(snap.overlay.view, groups=groups)))


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


def test_a_quota_smaller_than_one_job_lets_none_in() -> None:
    half = Group("physics.atlas", quota_milli=1500, used_milli=1000, surplus=False)
    plan = plan_of(with_groups(snapshot(classes=[of("physics.atlas", 1)]), half))
    assert plan.starts == ()


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
