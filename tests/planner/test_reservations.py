"""Room for jobs of several GPUs: which drones leave a node, when, and which starts are held back."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from provisioner import model, reasons
from provisioner.estimates import HORIZONS_S, Estimates, OwnerGrowth, StartDelays
from provisioner.planner import decide
from provisioner.planner.context import MAX_JOBS_COUNTED
from provisioner.planner.reservations import (
    FEWEST_RUNS,
    MAX_RESERVING_CLASSES,
    MAX_RESERVING_CLASSES_OF_USER,
    NodeHolder,
    hole_of,
)
from provisioner.resources import Resources
from tests.planner.scenes import (
    A100,
    NOW,
    drone,
    jobs,
    node,
    plan_of,
    slot_of,
    snapshot,
    started,
    why,
    with_pool,
    with_site,
)

S = model.DroneState
PAIR = replace(A100, name="a100x2", gpu_milli=2000, cpus=16, memory_mib=40960)
KINDS = ("a100", "a100x2")
QUICK = StartDelays(queue_s=10.0, boot_s=50.0)
RUNS = Estimates(runs={"": (3600.0,)}, delays={A100.key: QUICK, PAIR.key: QUICK})
"""All jobs run for an hour."""
LARGE = jobs(id="large", gpu_milli=2000, cpus=2, memory_mib=2048, owner="bob", oldest_at=NOW - 7200)
SMALL_JOBS = jobs(id="small", waiting=20, owner="alice", cpus=1, memory_mib=1024)


def busy(
    name: str, at: str, left_s: float, kind: model.DroneType = A100, **more: object
) -> model.Drone:
    """A drone on a node whose job is expected to end in ``left_s``."""
    return drone(name, S.BUSY, kind, age_s=3600.0 - left_s, node=at, **more)


def scene(
    drones: list[model.Drone],
    *classes: model.JobClass,
    free_gpus: Mapping[str, int] | None = None,
    policy: model.Policy | None = None,
    limits: Mapping[str, object] | None = None,
    types: tuple[model.DroneType, ...] = (A100, PAIR),
    breakers: tuple[model.Breaker, ...] = (),
) -> model.Snapshot:
    """A site of nodes of two GPUs each; ``free_gpus`` has the free ones by node (two full nodes if None)."""
    busy_ones = [d for d in drones if d.state is S.BUSY]
    slots = [slot_of(d, begun_at=d.since, owner="alice", job_gpu_milli=1000) for d in busy_ones]
    nodes = [
        node(name, 2, kinds=KINDS, free_gpus=count)
        for name, count in (free_gpus or {"n1": 0, "n2": 0}).items()
    ]
    made = snapshot(
        classes=classes,
        drones=drones,
        types=types,
        slots=slots,
        nodes=nodes,
        policy=policy,
        limits=limits,
        breakers=breakers,
    )
    return replace(made, estimates=RUNS)


FULL = [
    busy("d-1", "n1", 1800),
    busy("d-2", "n1", 2400),
    busy("d-3", "n2", 60),
    busy("d-4", "n2", 3500),
]


def drained(plan: model.Plan) -> list[str]:
    return [
        str(order.drone.id)
        for order in plan.drains
        if isinstance(order.reason, reasons.NodeReserved)
    ]


def test_the_node_with_the_smallest_hole_is_drained_and_both_classes_have_the_reason() -> None:
    plan = plan_of(scene(FULL, LARGE, SMALL_JOBS))
    assert drained(plan) == ["d-1", "d-2"], (
        "10 min pass between their ends, and nearly an hour on the other node"
    )
    expected = reasons.NodeReserved(
        "topas", "n1", "large", "bob: 2 GPUs (large)", 2.0, NOW + 2420.0
    )
    assert why(plan, "class:large") == [expected]
    assert (
        plan.drains[0].drone.leaving is S.DONE and plan.drains[0].mode is model.DrainMode.PEACEFUL
    )


@pytest.mark.parametrize(
    ("large", "reserved"),
    [
        # Of two GPUs, at the price of two: one waits for 600 s, and both for 80 s, until the new
        # drone runs the job.
        (replace(LARGE, oldest_at=NOW - 750), False),
        (replace(LARGE, oldest_at=NOW - 770), True),
        (replace(LARGE, waiting=0), False),
        (replace(LARGE, gpu_milli=1000), False),
    ],
)
def test_a_reservation_begins_when_the_wait_has_cost_more_than_the_hole(
    large: model.JobClass, reserved: bool
) -> None:
    assert bool(drained(plan_of(scene(FULL, large, SMALL_JOBS)))) is reserved


def test_waiting_that_costs_nothing_reserves_nothing() -> None:
    free_wait = model.Policy(waiting_cost=0.0)
    assert drained(plan_of(scene(FULL, LARGE, SMALL_JOBS, policy=free_wait))) == []


def test_jobs_of_the_same_user_that_have_waited_for_longer_come_first() -> None:
    older = replace(SMALL_JOBS, owner="bob", oldest_at=NOW - 9000)
    assert drained(plan_of(scene(FULL, LARGE, older))) == []
    overtaken = replace(SMALL_JOBS, owner="bob", oldest_at=NOW - 3600)
    assert drained(plan_of(scene(FULL, LARGE, overtaken))) == ["d-1", "d-2"]


def test_a_drone_takes_more_jobs_for_as_long_as_they_end_before_the_room_is_needed() -> None:
    drones = [busy("d-1", "n1", 60), busy("d-2", "n1", 3000), *FULL[2:]]
    limited = replace(SMALL_JOBS, ends_within_s=600.0)
    world = scene(drones, LARGE, limited, free_gpus={"n1": 0})
    assert drained(plan_of(world)) == ["d-2"], (
        "another job ends before d-2 does: the pool ends it after 10 min"
    )
    short = replace(SMALL_JOBS, owner="carol")
    for known, leave in ((1, ["d-1", "d-2"]), (FEWEST_RUNS, ["d-2"])):
        world = scene(drones, LARGE, short, free_gpus={"n1": 0})
        world = replace(
            world, estimates=replace(RUNS, runs={"": (3600.0,), "carol": (600.0,) * known})
        )
        assert drained(plan_of(world)) == leave, (
            "one run of 10 min tells nothing of the next one, many do"
        )


def reserved_before(world: model.Snapshot, at: float, class_id: str = "large") -> model.Snapshot:
    """The same after a plan that reserved node n1."""
    return replace(
        world, reserved={"topas": reasons.NodeReserved("topas", "n1", class_id, class_id, 2.0, at)}
    )


SOONER = [*FULL[:2], busy("d-3", "n2", 60), busy("d-4", "n2", 120)]
"""Both drones on n2 end before those on n1."""


def test_a_reservation_keeps_its_node_and_its_promised_time() -> None:
    world = scene(SOONER, LARGE, SMALL_JOBS)
    assert drained(plan_of(world)) == ["d-3", "d-4"]
    kept = plan_of(reserved_before(world, NOW + 900))
    assert drained(kept) == ["d-1", "d-2"]
    assert why(kept, "class:large") == [
        reasons.NodeReserved("topas", "n1", "large", "bob: 2 GPUs (large)", 2.0, NOW + 900)
    ]


def test_a_promised_time_moves_once_it_has_passed_and_the_reason_says_by_how_much() -> None:
    plan = plan_of(reserved_before(scene(SOONER, LARGE, SMALL_JOBS), NOW - 60))
    assert why(plan, "class:large") == [
        reasons.NodeReserved("topas", "n1", "large", "bob: 2 GPUs (large)", 2.0, NOW + 2420, 2480.0)
    ]
    assert "41m20s later than promised" in why(plan, "class:large")[0].describe()


def test_no_other_class_takes_a_reservation_while_the_job_waits() -> None:
    other = replace(LARGE, id="other", owner="carol", oldest_at=NOW - 9000)
    world = scene(SOONER, LARGE, other, SMALL_JOBS)
    assert why(plan_of(world), "class:other")[0].kind == "node-reserved"
    kept = plan_of(reserved_before(world, NOW + 900))
    assert why(kept, "class:large")[0].kind == "node-reserved" != why(kept, "class:other")[0].kind
    gone = plan_of(reserved_before(scene(SOONER, other, SMALL_JOBS), NOW + 900))
    assert why(gone, "class:other")[0].kind == "node-reserved"


def test_a_class_with_a_reservation_comes_before_the_turns_of_others() -> None:
    mine = replace(LARGE, running=20)
    small = replace(SMALL_JOBS, waiting=1)
    free = {"n1": 1, "n2": 0}
    world = reserved_before(scene([FULL[0], *FULL[2:]], mine, small, free_gpus=free), NOW + 900)
    assert started(plan_of(world)) == [], "the free GPU of the node is kept, though bob holds much"
    rich, poor = (
        model.Group("rich", quota_milli=1000, used_milli=9000),
        model.Group("poor", quota_milli=9000),
    )
    classes = (replace(mine, group="rich"), replace(small, group="poor"))
    assert started(plan_of(with_pool(world, classes=classes, groups=(rich, poor)))) == [], (
        "nor for its surplus"
    )


@pytest.mark.parametrize(("hours", "drains"), [(0.5, []), (1.0, ["d-1", "d-2"])])
def test_no_gpu_waits_for_longer_than_the_longest_hole(hours: float, drains: list[str]) -> None:
    policy = model.Policy(longest_hole_s=hours * 3600)
    assert drained(plan_of(scene(FULL, LARGE, SMALL_JOBS, policy=policy))) == drains


@pytest.mark.parametrize(
    ("others", "owner", "reserved"),
    [
        (MAX_RESERVING_CLASSES - 1, "user-{}", True),
        (MAX_RESERVING_CLASSES, "user-{}", False),
        (MAX_RESERVING_CLASSES, "user", True),
        (MAX_RESERVING_CLASSES_OF_USER - 1, "bob", True),
        (MAX_RESERVING_CLASSES_OF_USER, "bob", False),
    ],
)
def test_holes_are_compared_for_few_classes_in_all_and_of_one_user(
    others: int, owner: str, reserved: bool
) -> None:
    short = [
        replace(
            LARGE,
            id=f"l-{n}",
            owner=owner.format(n),
            oldest_at=NOW - 10,
            memory_mib=4096 + n,
            priority=1,
        )
        for n in range(others)
    ]
    late = replace(LARGE, running=9)
    assert bool(drained(plan_of(scene(FULL, *short, late, SMALL_JOBS)))) is reserved


def test_the_freed_gpus_of_the_node_are_kept_and_others_are_used() -> None:
    left = [replace(busy("d-1", "n1", 1800), state=S.DRAINING, leaving=S.DONE, asked_at=NOW - 60)]
    world = scene([*left, *FULL[2:]], LARGE, SMALL_JOBS, free_gpus={"n1": 1, "n2": 0})
    plan = plan_of(world)
    assert started(plan) == []
    assert isinstance(why(plan, "class:small")[0], reasons.NodeReserved)
    world = scene([*left, FULL[3]], LARGE, SMALL_JOBS, free_gpus={"n1": 1, "n2": 1})
    assert started(plan_of(world)) == [A100.key]


def test_once_the_room_is_free_the_job_gets_its_drone_which_takes_no_smaller_jobs_at_first() -> (
    None
):
    plan = plan_of(scene(FULL[2:], LARGE, SMALL_JOBS, free_gpus={"n1": 2, "n2": 0}))
    assert started(plan) == [PAIR.key] and plan.starts[0].drone.job_filter.first_gpus == 2
    assert drained(plan) == []


def test_a_drone_that_takes_such_jobs_anyway_does_not_leave_for_them() -> None:
    pair = busy("d-1", "n1", 1800, PAIR)
    world = scene([pair, *FULL[2:]], LARGE, SMALL_JOBS)
    assert world.overlay.view is not None
    slots = (
        replace(s, job_gpu_milli=2000) if s.drone_id == pair.id else s
        for s in world.overlay.view.slots
    )
    assert "d-1" not in drained(plan_of(with_pool(world, slots=tuple(slots))))


FOUR = replace(A100, name="a100x4", gpu_milli=4000, cpus=32, memory_mib=81920)


def full_quad() -> model.Drone:
    """A drone of four GPUs with jobs of one GPU, of which one ends after 450 s, and the next one 600 s later."""
    return drone("d-1", S.BUSY, FOUR, 1800, node="n1", jobs=4, joined_at=NOW - 9000)


def test_a_large_drone_full_of_small_jobs_drains_until_the_job_fits_and_then_takes_it() -> None:
    full = full_quad()
    slot = slot_of(full, FOUR, jobs=4, begun_at=NOW - 1800, owner="alice")
    nodes = [node("n1", 4, kinds=("a100x4",), free_gpus=0)]

    def at(drone: model.Drone, **more: Any) -> model.Plan:
        made = snapshot(
            classes=(LARGE, SMALL_JOBS),
            drones=[drone],
            slots=[replace(slot, **more)],
            types=(FOUR,),
            nodes=nodes,
        )
        return plan_of(replace(made, estimates=RUNS))

    assert drained(at(full)) == ["d-1"]
    leaving = replace(full, state=S.DRAINING, leaving=S.DONE, asked_at=NOW - 60)
    room = {"free_cpus": 16, "free_memory_mib": 40960, "state": model.SlotState.DRAINING}
    assert not at(replace(leaving, jobs=3), jobs=3, free_gpu_milli=1000, **room).drains, (
        "small jobs do not get it back"
    )
    back = at(replace(leaving, jobs=2), jobs=2, free_gpu_milli=2000, **room)
    assert [(order.mode, order.reason) for order in back.drains] == [
        (model.DrainMode.RESUME, reasons.DemandReturned("large", "bob: 2 GPUs (large)", 1))
    ]


def test_a_large_drone_without_news_drains_as_well() -> None:
    full = full_quad()
    slot = slot_of(full, FOUR, jobs=4, begun_at=NOW - 1800, owner="alice")
    made = snapshot(
        drones=[full],
        slots=[slot],
        types=(FOUR,),
        nodes=[node("n1", 4, kinds=("a100x4",), free_gpus=0)],
    )
    [move] = plan_of(made).moves
    made = with_pool(
        replace(made, estimates=RUNS, drones={full.id: move.drone}), classes=(LARGE, SMALL_JOBS)
    )
    assert drained(plan_of(made)) == ["d-1"]


def test_a_limit_that_small_drones_use_up_counts_as_room() -> None:
    plan = plan_of(
        scene(FULL, LARGE, SMALL_JOBS, free_gpus={"n1": 0, "n2": 2}, limits={"max_gpu_milli": 4000})
    )
    assert len(drained(plan)) == 2


@pytest.mark.parametrize(
    ("slot", "downtime_s", "walltime_s", "leaves"),
    [
        ({"retires_at": NOW + 1100}, 0, 0, True),
        ({"retires_at": NOW + 1000}, 0, 0, False),
        ({"retires_at": NOW + 1100}, 0, 100, False),
        ({}, 1000, 0, False),
        ({"jobs": MAX_JOBS_COUNTED + 1}, 0, 0, False),
    ],
)
def test_a_large_drone_drains_only_for_a_job_that_it_can_take_before_it_ends(
    slot: dict[str, Any], downtime_s: float, walltime_s: float, leaves: bool
) -> None:
    seen = replace(slot_of(full_quad(), FOUR, jobs=4, begun_at=NOW - 1800, owner="alice"), **slot)
    nodes = [node("n1", 4, kinds=(), free_gpus=0)]
    large = replace(LARGE, walltime_s=walltime_s)
    made = snapshot(
        classes=(large, SMALL_JOBS), drones=[full_quad()], slots=[seen], types=(FOUR,), nodes=nodes
    )
    if downtime_s:
        made = with_site(made, downtime_at=NOW + downtime_s)
    assert bool(drained(plan_of(replace(made, estimates=RUNS)))) is leaves


def test_a_job_that_waits_for_an_existing_drone_holds_back_no_start() -> None:
    slot = slot_of(full_quad(), FOUR, jobs=4, begun_at=NOW - 1800, owner="alice")
    nodes = [node("n1", 6, kinds=("a100", "a100x4"), free_gpus=2)]
    world = snapshot(
        classes=(LARGE, SMALL_JOBS),
        drones=[full_quad()],
        slots=[slot],
        types=(A100, FOUR),
        nodes=nodes,
    )
    plan = plan_of(replace(world, estimates=RUNS))
    assert drained(plan) == ["d-1"] and started(plan) == [A100.key] * 2


def test_a_new_drone_with_room_for_several_large_jobs_takes_small_ones_at_once() -> None:
    plan = plan_of(
        snapshot(
            classes=(LARGE, SMALL_JOBS), types=(FOUR,), nodes=[node("n1", 4, kinds=("a100x4",))]
        )
    )
    assert [
        start.drone.job_filter.first_gpus
        for start in plan.starts
        if start.drone.for_class == "large"
    ] == [0]


PENDING = drone("d-9", S.QUEUED, A100)
PROBE = drone("d-8", S.QUEUED, PAIR, for_class="large")
PROBING = model.Breaker(
    replace(PAIR.scope, class_id="large"), model.BreakerState.PROBING, since=NOW - 900
)


@pytest.mark.parametrize(
    ("drones", "free_gpus", "given"),
    [
        pytest.param(
            [*FULL, PENDING], {"n1": 0, "n2": 0}, {"limits": {"max_pending": 1}}, id="max_pending"
        ),
        pytest.param(
            [*FULL[2:], PENDING],
            {"n1": 2, "n2": 0},
            {"limits": {"max_pending": 1}},
            id="max_pending, room",
        ),
        pytest.param(
            [*FULL, PROBE], {"n1": 0, "n2": 0, "n3": 2}, {"breakers": (PROBING,)}, id="one probe"
        ),
        pytest.param(
            [*FULL, PROBE],
            {"n1": 0, "n2": 0, "n3": 2, "n4": 2},
            {"breakers": (PROBING,)},
            id="one probe, room",
        ),
        pytest.param([FULL[0], PENDING], {"n1": 1}, {}, id="promised to another drone"),
        pytest.param(
            FULL, None, {"policy": model.Policy(max_gpu_milli=4000)}, id="limit of all sites"
        ),
    ],
)
def test_no_drone_leaves_where_that_makes_no_room(
    drones: list[model.Drone], free_gpus: dict[str, int] | None, given: dict[str, Any]
) -> None:
    plan = plan_of(
        scene(drones, replace(LARGE, waiting=2), SMALL_JOBS, free_gpus=free_gpus, **given)
    )
    assert drained(plan) == []
    assert not any(isinstance(each.reason, reasons.NodeReserved) for each in plan.refusals)


@pytest.mark.parametrize(
    ("downtime_s", "walltime_s", "reserved"),
    # n1 is free in 2420 s; a drone ends 300 s before a downtime, and lives for half an hour at
    # least.
    [
        (7200, 3600, True),
        (7200, 5000, False),
        (5000, 0, True),
        (4000, 0, False),
    ],
)
def test_a_node_is_reserved_only_if_the_job_can_end_before_the_next_downtime(
    downtime_s: float, walltime_s: float, reserved: bool
) -> None:
    pair = replace(PAIR, walltime_s=6000)
    world = scene(FULL, replace(LARGE, walltime_s=walltime_s), SMALL_JOBS, types=(A100, pair))
    assert bool(drained(plan_of(with_site(world, downtime_at=NOW + downtime_s)))) is reserved


SAFE = replace(PAIR, site="horeka", max_drones=1)
SAFE_ONE = drone("d-7", S.BUSY, SAFE)


@pytest.mark.parametrize(("safe_head_milli", "reserved"), [(0, True), (1000, False)])
def test_free_gpus_of_an_owner_count_once_for_the_risk_of_a_reserved_node(
    safe_head_milli: int, reserved: bool
) -> None:
    """One GPU is free and d-2 gives one back, so none is left before the owner takes the new drone's."""
    world = scene(
        [FULL[1], SAFE_ONE], LARGE, SMALL_JOBS, free_gpus={"n1": 1}, types=(A100, PAIR, SAFE)
    )
    growth = OwnerGrowth(tuple((safe_head_milli,) * 100 for _ in HORIZONS_S))
    world = replace(world, estimates=replace(RUNS, rises={"topas": growth}))
    assert bool(drained(plan_of(world))) is reserved


def test_the_room_on_other_nodes_is_given_to_one_class_only() -> None:
    left = [replace(busy("d-1", "n1", 1800), state=S.DRAINING, leaving=S.DONE, asked_at=NOW - 60)]
    other = replace(SMALL_JOBS, id="other", owner="carol")
    plan = plan_of(scene([*left, FULL[3]], LARGE, SMALL_JOBS, other, free_gpus={"n1": 1, "n2": 1}))
    assert started(plan) == [A100.key]


def test_gpus_without_a_price_are_reserved_no_sooner_than_others() -> None:
    free = (replace(A100, price=0.0), replace(PAIR, price=0.0))
    for waited_s, reserved in ((300, False), (770, True)):
        world = scene(FULL, replace(LARGE, oldest_at=NOW - waited_s), SMALL_JOBS, types=free)
        assert bool(drained(plan_of(world))) is reserved


def test_a_smaller_class_whose_wait_is_unknown_does_not_come_first() -> None:
    unknown = replace(SMALL_JOBS, owner="bob", oldest_at=0.0)
    assert drained(plan_of(scene(FULL, LARGE, unknown))) == ["d-1", "d-2"]


def test_a_hole_is_the_time_for_which_gpus_wait_for_the_last_one() -> None:
    one = Resources(1000, 1, 1)
    holders = [NodeHolder(left_s, drone(f"d-{left_s:g}"), one) for left_s in (300.0, 100.0, 600.0)]
    hole = hole_of(Resources(3000, 3, 3), one, "n1", holders)
    assert hole is not None and hole.ready_s == 300.0 and hole.cost == 300.0 + 200.0
    assert [each.drone.id for each in hole.holders] == ["d-100", "d-300"]
    assert hole_of(Resources(5000, 5, 5), one, "n1", holders) is None
    two, keeps = Resources(2000, 4, 4), Resources(0, 2, 0)
    assert hole_of(Resources(1000, 3, 1), two, "n1", []) is not None
    assert hole_of(Resources(1000, 3, 1), two, "n1", [], keeps) is None, (
        "the other GPU keeps two CPUs"
    )


def calls_for(classes: int, gpu_milli: int) -> int:
    """Return how many function calls a decision on so many classes of one user takes, which differ in memory."""
    quad = replace(A100, name="a100x4", gpu_milli=4000, cpus=32, memory_mib=81920)
    drones = [drone(f"kit-mem0-{n}", S.BUSY, node=f"n{n // 4}", age_s=500.0) for n in range(40)]
    slots = [slot_of(each, begun_at=each.since, owner="bob", job_gpu_milli=1000) for each in drones]
    nodes = [node(f"n{n}", 4, kinds=("a100", "a100x4"), free_gpus=0) for n in range(10)]
    queue = [
        jobs(
            id=f"c{n}",
            waiting=1,
            gpu_milli=gpu_milli,
            owner="mallory",
            memory_mib=1024 + n,
            oldest_at=NOW - 7200,
        )
        for n in range(classes)
    ]
    world = snapshot(classes=queue, drones=drones, types=(A100, quad), slots=slots, nodes=nodes)
    delays = {kind.key: StartDelays(10, 50) for kind in (A100, quad)}
    world = replace(world, estimates=Estimates(runs={"": (3600.0,)}, delays=delays))
    counted = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal counted
        counted += event == "call"

    sys.setprofile(count)
    try:
        decide(world)
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize("gpus", [1, 4])
def test_the_work_of_a_decision_is_linear_in_the_requests_of_one_user(gpus: int) -> None:
    assert calls_for(4000, gpus * 1000) < 300 * 4000
