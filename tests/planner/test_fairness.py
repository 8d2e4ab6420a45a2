"""Accounting groups and users: nothing starts that the negotiator would match to nobody, and all get their turn."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from provisioner import model, reasons
from provisioner.model import (
    DroneState,
    DroneType,
    Group,
    Headroom,
    JobClass,
    OwnerDemand,
    Policy,
    Snapshot,
)
from provisioner.planner import decide
from provisioner.planner.demand import UserShares, headroom_active
from tests.planner import scenes
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
    return scenes.with_pool(snap, groups=groups)


def of(group: str, waiting: int, name: str = "", **more: object) -> JobClass:
    return jobs(waiting=waiting, group=group, id=name or group, **more)


def quota(group: str, used: float, most: float) -> reasons.GroupQuota:
    return reasons.GroupQuota(group, used, most)


def on_their_way(for_class: str) -> dict[str, object]:
    return {"drones": [drone(f"d-{n}", DroneState.BOOTING, for_class=for_class) for n in range(3)]}


def test_users_of_an_empty_pool_differ_by_no_more_than_the_starts_of_one_plan() -> None:
    users = [jobs(waiting=100, id=name, owner=name, cpus=n) for n, name in enumerate(("a", "b"), 1)]
    limits, drones = {"max_drones": 20, "max_pending": 20, "max_starts_per_tick": 4}, []
    while len(drones) < 20:
        plan = plan_of(snapshot(classes=users, drones=drones, limits=limits, free={"a100": 20}))
        drones += [
            drone(f"d-{len(drones) + n}", DroneState.BOOTING, for_class=start.drone.for_class)
            for n, start in enumerate(plan.starts)
        ]
        held = Counter(each.for_class for each in drones)
        assert plan.starts and abs(held["a"] - held["b"]) <= 4, held


TEN = [of("physics.atlas", 10)]
MAYBE = [TEN[0].with_optional_gpu()]
CPUS = {"types": (A100, DroneType("topas", "cpu", 0, 8, 20480, 0))}
PHYSICS = Group("physics", quota_milli=6000, used_milli=5000, surplus=False)
GUESTS = Group("guests", quota_milli=None, used_milli=9000, surplus=False)
RICH, POOR = Group("rich", 10_000, 9000), Group("poor", 10_000, 1000)
SIX = {"policy": Policy(max_drones=6)}


@pytest.mark.parametrize(
    ("starts", "refused", "classes", "groups", "given"),
    [
        # ---- what is no demand: up to the quota, and no further
        ("physics.atlas " * 3, [quota("physics.atlas", 1.0, 4.0)], TEN, [ATLAS], {}),
        ("", [quota("physics.atlas", 4.0, 4.0)], TEN, [replace(ATLAS, used_milli=4000)], {}),
        ("physics.atlas " * 10, [], TEN, [replace(ATLAS, surplus=True)], {}),
        # All classes of a group share its quota, and drones on their way are not granted twice.
        (
            "large large small",
            [quota("physics.atlas", 3.0, 4.0)],
            [of("physics.atlas", 2, "small"), of("physics.atlas", 2, "large", vram_mib=35000)],
            [ATLAS],
            {},
        ),
        ("", None, TEN, [ATLAS], on_their_way("physics.atlas")),
        # Jobs with an optional GPU get CPU drones as jobs without one do: while some of the quota
        # is left.
        ("physics.atlas " * 10, [], MAYBE, [ATLAS], CPUS),
        ("", [quota("physics.atlas", 4.0, 4.0)], MAYBE, [replace(ATLAS, used_milli=4000)], CPUS),
        # The nearest listed group counts, and capitals do not; the quota of a group that contains
        # it binds too.
        ("Physics.ATLAS.higgs " * 3, None, [of("Physics.ATLAS.higgs", 10)], [ATLAS], {}),
        ("physics.atlas", [quota("physics", 5.0, 6.0)], TEN, [ATLAS, PHYSICS], {}),
        # Jobs of no listed group, and groups without a quota, are not limited.
        ("guests nobody", [], [of("guests", 1), of("", 1, "nobody")], [ATLAS, GUESTS], {}),
        # ---- whose turn it is: the group that uses the smaller part of its quota, whatever the
        # priorities
        (
            "poor " * 4 + "rich " * 2,
            None,
            [of("rich", 20, priority=9), of("poor", 4)],
            [RICH, POOR],
            SIX,
        ),
        # Quotas come before surplus, though the greedy one uses the smaller part of its quota.
        (
            "greedy " * 2 + "other " * 3 + "greedy",
            None,
            [of("greedy", 20), of("other", 20)],
            [Group("greedy", 2000, 0), Group("other", 4000, 1000)],
            SIX,
        ),
        # Drones on their way count.
        (
            "two two",
            None,
            [of("one", 9), of("two", 9)],
            [Group("one", 10_000, 1000), Group("two", 10_000, 2000)],
            on_their_way("one") | {"limits": {"max_starts_per_tick": 2}},
        ),
        # Groups without quotas come by the negotiator's priority, jobs of none last.
        (
            "light heavy a-nobody",
            None,
            [of("", 1, "a-nobody"), of("heavy", 1), of("light", 1)],
            [Group("heavy", priority=900.0), Group("light", priority=500.0)],
            {},
        ),
        # The turn of the groups comes before how hard jobs are to place.
        (
            "poor rich",
            None,
            [of("rich", 1, vram_mib=35000), of("poor", 1)],
            [RICH, POOR],
            {"types": (A100, V100)},
        ),
    ],
)
def test_groups_get_their_share_in_their_turn(
    starts: str,
    refused: list[object] | None,
    classes: list[JobClass],
    groups: list[Group],
    given: dict[str, object],
) -> None:
    plan = plan_of(with_groups(snapshot(classes=classes, **given), *groups))
    assert [s.drone.for_class for s in plan.starts] == starts.split()
    assert refused is None or why(plan, f"class:{classes[0].id}") == refused


def test_an_idle_drone_is_not_kept_for_jobs_beyond_their_groups_quota() -> None:
    waits = snapshot(classes=[of("physics.atlas", 1)], drones=[drone("kit-1", age_s=700.0)])
    assert plan_of(with_groups(waits, ATLAS)).drains == (), "the negotiator takes it any moment"
    (drain,) = plan_of(with_groups(waits, replace(ATLAS, used_milli=4000))).drains
    assert isinstance(drain.reason, reasons.IdleTimeout)


# ----------------------------------- Warm drones for jobs that have not come yet: after all real
# demand, given up first


TWO = Headroom("day-shift", cpus=8, memory_mib=20480, count=2)
WARM = Policy(headroom=(TWO,))
LONG = 3 * 600.0 + 100.0
"""Idle beyond any time-out."""


def test_without_any_job_as_many_drones_are_warmed_up_as_are_wanted() -> None:
    plan = plan_for(policy=WARM)
    assert started(plan) == [A100.key] * 2
    assert plan.starts[0].reason == reasons.HeadroomShort(
        "day-shift", wanted=2, covered=0, starts=2
    )
    assert plan.starts[0].drone.for_class == "headroom:day-shift"


def test_real_jobs_take_the_warm_drones_and_others_are_warmed_up() -> None:
    idle = [drone("kit-1"), drone("kit-2")]
    plan = plan_for(policy=WARM, drones=idle, classes=[jobs(waiting=1)])
    assert [s.drone.for_class for s in plan.starts] == ["headroom:day-shift"]


def test_as_many_idle_drones_as_are_wanted_stay_and_the_others_leave() -> None:
    idle = [drone(f"kit-{n}", age_s=LONG) for n in range(5)]
    plan = plan_for(policy=WARM, drones=idle)
    assert [d.drone.id for d in plan.drains] == ["kit-2", "kit-3", "kit-4"]
    assert isinstance(plan.drains[0].reason, reasons.IdleTimeout)


def test_a_drone_that_does_not_fit_the_headroom_does_not_end_the_search_for_one_that_does() -> None:
    large = replace(TWO, count=1, vram_mib=35_000)
    old, fits = drone("kit-1", kind=V100, age_s=2 * LONG), drone("kit-2", kind=A100, age_s=LONG)
    plan = plan_for(policy=replace(WARM, headroom=(large,)), types=(A100, V100), drones=[old, fits])
    assert [d.drone.id for d in plan.drains] == ["kit-1"]
    assert plan.starts == ()


def test_a_drone_that_waits_at_its_site_for_headroom_is_not_withdrawn() -> None:
    queued = [
        drone(f"kit-{n}", DroneState.QUEUED, age_s=400.0, idle_at=NOW - 300.0) for n in range(3)
    ]
    plan = plan_for(policy=WARM, drones=queued)
    assert [type(s.reason) for s in plan.stops] == [reasons.Unneeded]
    assert plan.starts == ()


@pytest.mark.parametrize(
    ("hour", "wanted"), [(6.9, False), (7.0, True), (16.9, True), (17.0, False)]
)
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


def test_a_limit_that_real_jobs_meet_leaves_nothing_for_headroom() -> None:
    policy = replace(WARM, max_gpu_milli=4000)
    # four GPUs are allowed: the quad needs them all, the small drones are only wanted warm
    large = jobs(waiting=2, gpu_milli=4000, cpus=8)
    plan = plan_for(policy=policy, types=(A100, QUAD), classes=[large])
    assert started(plan) == [QUAD.key]
    assert why(plan, "class:small") == [reasons.LimitReached("max_gpus", "all sites", 4.0, 4.0)]
    assert why(plan, "class:headroom:day-shift") == [reasons.HeadroomYields("day-shift", 2)]


def test_the_owners_jobs_come_before_headroom() -> None:
    idle = [drone(f"kit-{n}", age_s=LONG, node="n1") for n in range(2)]
    claim = OwnerDemand(1, 8000, 8, 1024, NOW - 100)
    snap = snapshot(policy=WARM, drones=idle, nodes=[node("n1", 8, free_gpus=6)], claims=[claim])
    plan = plan_of(snap)
    assert plan.starts == ()
    assert [type(s.reason) for s in plan.stops] == [
        reasons.PreemptedForOwner,
        reasons.PreemptedForOwner,
    ]


# ------------------------------------------------ Turns between users: what they hold counts, and
# no wish of their own


B = replace(A100, name="b", gpu_model="B", vram_mib=40960)
C = replace(A100, name="c", gpu_model="C", vram_mib=40960)
UNFIT = model.UnmetRequirement("requirements", "x", "y")
TEN_DRONES = {"policy": Policy(max_drones=10), "limits": {"max_drones": 10, "max_pending": 50}}


def drones_by_class(
    *classes: JobClass, minutes: int = 200, priorities: dict[str, float] | None = None
) -> Counter[str]:
    """Count the drones that are started for each class if the oldest of at most ten ends every minute."""
    running, given = list[str](), Counter[str]()
    for minute in range(minutes):
        here = [replace(job, running=running.count(job.id)) for job in classes]
        live = [drone(f"kit-{minute}-{n}", DroneState.BUSY) for n, _ in enumerate(running)]
        world = snapshot(
            classes=here, drones=live, types=(B, C), free={"b": 500, "c": 500}, **TEN_DRONES
        )
        plan = decide(with_pool(world, priorities=priorities or {}))
        given.update(start.drone.for_class for start in plan.starts)
        running = [*running, *(start.drone.for_class for start in plan.starts)][1:]
    return given


MALLORY = jobs(
    id="mallory",
    owner="mallory",
    waiting=500,
    priority=99,
    oldest_at=NOW - 300,
    refuses={C.key: UNFIT},
)
ALICE = jobs(id="alice", owner="alice", waiting=500, oldest_at=NOW - 86400, refuses={B.key: UNFIT})


@pytest.mark.parametrize(
    ("mallory", "alice"),
    [
        pytest.param(MALLORY, ALICE, id="a high JobPrio"),
        pytest.param(ALICE, MALLORY, id="a long wait"),
        pytest.param(MALLORY, replace(ALICE, refuses={}), id="jobs that are harder to place"),
        pytest.param(replace(MALLORY, gpu_milli=1000, vram_mib=30000), ALICE, id="much VRAM"),
    ],
)
def test_no_wish_of_a_user_keeps_others_from_their_turn(mallory: JobClass, alice: JobClass) -> None:
    given = drones_by_class(mallory, alice)
    assert given.total() > 200 and min(given[mallory.id], given[alice.id]) > given.total() / 4, (
        given
    )


def test_shares_of_users_are_inverse_to_their_effective_priorities() -> None:
    given = drones_by_class(MALLORY, ALICE, priorities={"mallory": 3000.0, "alice": 1000.0})
    assert 2.0 < given["alice"] / given["mallory"] < 4.5, given


def test_running_jobs_count_though_no_other_job_of_their_class_waits() -> None:
    held = [
        replace(MALLORY, id=f"m-{n}", waiting=0, running=1, memory_mib=1000 + n) for n in range(9)
    ]
    waits = [MALLORY, replace(ALICE, oldest_at=NOW - 100)]
    plan = plan_of(snapshot(classes=[*held, *waits], types=(B, C), policy=Policy(max_drones=2)))
    assert {start.drone.for_class for start in plan.starts} == {"alice"}


def test_a_user_with_many_classes_gets_no_more_than_one_with_a_single_class() -> None:
    many = [replace(MALLORY, id=f"m-{n}", waiting=1, memory_mib=1000 + n) for n in range(100)]
    given = drones_by_class(*many, ALICE)
    assert given["alice"] > given.total() / 3, given


def test_the_priority_of_jobs_orders_those_of_one_user() -> None:
    low = replace(MALLORY, id="low", owner="alice", priority=-1)
    plan = plan_of(
        snapshot(classes=[low, replace(MALLORY, id="high", owner="alice")], types=(B, C), **SIX)
    )
    assert {start.drone.for_class for start in plan.starts} == {"high"}


def test_the_turn_of_a_user_is_told_with_what_they_hold() -> None:
    coming = drone("kit-1", DroneState.QUEUED, for_class="mallory")
    shares = UserShares.of(
        [replace(MALLORY, running=2), ALICE], {"mallory": 1500.0, "alice": 500.0}, [coming], {}
    )
    assert shares.turn_of("alice") == reasons.UserTurn(1, 2, 0.0, 1.0)
    assert shares.turn_of("mallory") == reasons.UserTurn(2, 2, 3.0, 3.0)
    assert shares.turn_of("nobody") is None
    assert UserShares.of([ALICE], {}, [], {}).turn_of("alice") is None, "nobody else waits"
