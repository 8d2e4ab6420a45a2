"""Number of drones that each limit allows, to the last one: types, breakers, free places of sites, downtimes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from provisioner import model, reasons
from provisioner.planner import decide
from provisioner.planner.capacity import stranded_gpus
from provisioner.planner.matching import count_fits
from provisioner.planner.owner import FreeResources
from provisioner.reasons import GpusStranded
from provisioner.resources import NO_RESOURCES, Resources
from tests.planner import scenes
from tests.planner.scenes import (
    A100,
    NOW,
    V100,
    drone,
    jobs,
    node,
    plan_of,
    snapshot,
    started,
    tell,
    why,
    with_site,
)

MANY = jobs(waiting=50)
B = model.BreakerState
ROOMY = {"max_drones": 100, "max_pending": 100, "max_starts_per_tick": 100}
CPU = model.DroneType("topas", "cpu", 0, 8, 20480, 0, price=0.1)


WHOLE = replace(A100, name="whole", gpu_milli=8000, cpus=64, memory_mib=8 * 20480)
TROUBLE = model.Fault(model.FaultKind.UNKNOWN, "boom", NOW - 600, of_order=True)
BUSY = drone("kit-ab12-1", model.DroneState.BUSY)
BEFORE, PROBE = (
    drone(f"kit-ab12-{age_s}", model.DroneState.QUEUED, age_s=age_s) for age_s in (400, 200)
)
ASKED = drone("kit-ab12-1", model.DroneState.REQUESTED, age_s=5.0)


def breaker(scope: str, state: model.BreakerState) -> model.Breaker:
    return model.Breaker(model.Scope.parse(scope), state, NOW - 300, 2, 0.0, TROUBLE)


def many(
    name: str, kinds: list[model.DroneType], refused: list[object] | None = None, **given: object
) -> object:
    return scenes.story(name, kinds, refused, **{"waiting": 50, "limits": ROOMY, **given})


@pytest.mark.parametrize(
    ("kinds", "refused", "given"),
    [
        *(
            many(
                f"at most {most} of a type",
                [A100] * (most - 1),
                [reasons.LimitReached("max_drones", "topas/a100", most, most)],
                drones=[BUSY],
                types=(replace(A100, max_drones=most),),
            )
            for most in (1, 3, 5)
        ),
        *(
            many(
                f"{scope} is degraded",
                [A100],
                [reasons.Probing(scope)],
                breakers=[breaker(scope, B.DEGRADED)],
            )
            for scope in ("topas", "topas/a100")
        ),
        # What was queued before the ban is no probe; while the probe is on its way nothing else
        # starts.
        many(
            "a probe is due", [A100], drones=[BEFORE], breakers=[breaker("topas/a100", B.PROBING)]
        ),
        many(
            "a site's probe is due", [A100], drones=[BEFORE], breakers=[breaker("topas", B.PROBING)]
        ),
        many(
            "a probe is on its way",
            [],
            drones=[BEFORE, PROBE],
            breakers=[breaker("topas/a100", B.PROBING)],
        ),
        many("a quota", [A100] * 3, [reasons.SiteQuota("topas/a100")], quota={"a100": 3}),
        many(
            "a quota and an order without an answer", [A100] * 2, drones=[ASKED], quota={"a100": 3}
        ),
        # A drone of a whole node holds many jobs, also of two classes.
        many("eight jobs", [WHOLE], waiting=8, types=(WHOLE,)),
        many("nine jobs", [WHOLE] * 2, waiting=9, types=(WHOLE,)),
        many(
            "two classes",
            [WHOLE],
            classes=[jobs(waiting=2, gpu_milli=2000, id="2"), jobs(waiting=4)],
            types=(WHOLE,),
        ),
    ],
)
def test_each_limit_holds_to_the_last_drone(
    kinds: list[model.DroneType], refused: list[object] | None, given: dict[str, object]
) -> None:
    tell(kinds, refused, given)


def test_strays_count_with_the_gpus_of_their_sites_largest_type() -> None:
    quad = replace(A100, name="quad", gpu_milli=4000)
    stray = model.RemoteDrone(model.DroneId("kit-zzzz-9"), model.RemoteState.UNKNOWN, "r9")
    for limits, policy in (
        ({"max_gpu_milli": 6000}, model.Policy()),
        ({}, model.Policy(max_gpu_milli=6000)),
    ):
        snap = snapshot(
            classes=[MANY],
            types=(A100, quad),
            remotes=[stray],
            limits=ROOMY | limits,
            policy=policy,
        )
        gpus = sum(start.drone.gpu_milli for start in plan_of(snap).starts)
        assert gpus == 2000, "six allowed, four of them taken"


def test_a_drone_that_is_written_off_counts_as_a_stray_where_another_site_lists_it() -> None:
    old = drone("kit-ab12-1", model.DroneState.BUSY, kind=replace(A100, site="old", name="v100"))
    quad = replace(A100, name="quad", gpu_milli=4000)
    kill = model.OperatorRequest(
        1, NOW - 5, model.RequestKind.KILL, (old.id,), "its site was renamed", "anna"
    )
    stray = model.RemoteDrone(old.id, model.RemoteState.RUNNING, "r1")
    policy = model.Policy(max_gpu_milli=6000)
    snap = snapshot(
        classes=[MANY],
        types=(A100, quad),
        remotes=[stray],
        requests=[kill],
        limits=ROOMY,
        policy=policy,
    )
    plan = plan_of(replace(snap, drones={old.id: old}))  # the judge has nothing against it
    assert [move.drone.state for move in plan.moves if move.drone.id == old.id] == [
        model.DroneState.LOST
    ]
    gpus = sum(start.drone.gpu_milli for start in plan.starts)
    assert gpus == 1000, (
        "six allowed, four of them those of a stray, and one on record until the plan is carried out"
    )


def test_gpus_in_all_bind_gpu_types_only_and_types_that_are_not_configured_do_no_harm() -> None:
    small = jobs(waiting=9, id="cpu", gpu_milli=0)
    free = {"a100": 4, "v100": 4, "cpu": 6, "unheard-of": 3}
    snap = snapshot(classes=[MANY, small], types=(A100, V100, CPU), free=free, limits=ROOMY)
    kinds = started(plan_of(with_site(snap, free_gpu_milli=5000)))
    gpus = [kind for kind in kinds if kind != "topas/cpu"]
    assert (len(gpus), len(kinds) - len(gpus)) == (5, 6)


def test_the_fullest_nodes_are_filled_first_and_what_finds_no_room_is_counted() -> None:
    nodes = [node("wide", 8), node("full", 8, free_gpus=2), node("other", 8, kinds=("v100",))]
    free_nodes = FreeResources.of(nodes, ())
    assert free_nodes.count(A100) == 10
    assert free_nodes.book(A100, 3) == 0
    assert [each.free.gpu_milli for each in free_nodes.nodes.values()] == [7000, 0, 8000]
    assert free_nodes.book(A100, 9) == 2 and free_nodes.count(A100) == 0
    assert free_nodes.nodes["other"].free.gpu_milli == 8000


@pytest.mark.parametrize(
    ("whole_mib", "free_mib", "count"), [(0, 0, 4), (1, 0, 0), (1000, 300, 3), (1000, 299, 2)]
)
def test_disk_binds_where_a_node_tells_it(whole_mib: int, free_mib: int, count: int) -> None:
    kind = replace(A100, disk_mib=100)
    told = model.Node("w1", ("a100",), 4000, 192, 1 << 20, whole_mib, 4000, 192, 1 << 20, free_mib)
    assert FreeResources.of([told], ()).count(kind) == count


NODE, KEPT = Resources(8000, 192, 1048576), Resources(0, 8, 20480)


@pytest.mark.parametrize(
    ("each", "free", "kept", "count"),
    [
        # Less than nothing is nothing.
        ((0, 0, -5, 0), (4000, 9, 9, 9), NO_RESOURCES, 0),
        ((), (2000, 99, 99), NO_RESOURCES, 0),
        # A share lies on one device: two on the one that is free, one on the rest.
        ((500,), (1700,), NO_RESOURCES, 3),
        # The table of a real pool: 8 free GPUs keep 8 CPUs each, so 32 jobs of 4 CPUs, not 48; none
        # free, none kept.
        ((0, 4, 1024), NODE, KEPT, 32),
        ((0, 4, 1024), (0, 192, 1048576), KEPT, 48),
        # A GPU job that takes its share is not held up, a greedy one is; where others ate the
        # reserve, what is left.
        ((1000, 8, 20480), NODE, KEPT, 8),
        ((1000, 136, 20480), NODE, KEPT, 1),
        ((1000, 137, 20480), NODE, KEPT, 0),
        ((1000, 8, 20480), (8000, 20, 1048576), KEPT, 2),
    ],
)
def test_how_often_one_amount_goes_into_another(
    each: tuple[int, ...], free: tuple[int, ...], kept: Resources, count: int
) -> None:
    assert count_fits(Resources(*each), Resources(*free), kept) == count


def test_drones_without_news_count_against_every_limit() -> None:
    there = [drone(f"kit-ab12-{n}", model.DroneState.BUSY, heard_at=NOW - 2) for n in (1, 2, 3)]
    for limit in (
        {"types": (replace(A100, max_drones=5),)},
        {"limits": ROOMY | {"max_gpu_milli": 5000}},
        {"policy": model.Policy(max_drones=5)},
    ):
        snap = snapshot(**{"classes": [MANY], "drones": there, "limits": ROOMY, **limit})
        assert len(plan_of(snap).starts) == 2


def test_what_binds_at_a_full_site_is_told_as_the_site_tells_it() -> None:
    full = snapshot(classes=[MANY], free={"a100": 0}, limits=ROOMY)
    assert why(plan_of(full), "class:small") == [reasons.SiteFull("topas/a100")]
    lacking = with_site(full, lacks={"a100": "memory"})
    assert why(plan_of(lacking), "class:small") == [reasons.SiteFull("topas/a100", "memory")]


GPU_MILLI = st.sampled_from([0, 1000, 2000])
AMOUNTS = st.builds(Resources, GPU_MILLI, st.integers(0, 12), st.integers(0, 3), st.integers(0, 2))


@given(
    AMOUNTS,
    st.builds(Resources, st.sampled_from([0, 1000, 4000]), *[st.integers(0, 40)] * 3),
    AMOUNTS,
)
def test_it_is_the_largest_number_that_leaves_every_free_gpu_its_share(
    each: Resources, free: Resources, kept: Resources
) -> None:
    kept = kept._replace(gpu_milli=0)

    def fits(n: int) -> bool:
        left = free.plus(each, -n)
        enough = min(left) >= 0
        for need, there, keep in zip(each[1:], left[1:], kept[1:], strict=True):
            eats = need * 1000 - keep * each.gpu_milli > 0
            if eats and free.gpu_milli and there * 1000 < keep * left.gpu_milli:
                return False
        return enough

    if each == NO_RESOURCES:
        return
    most = count_fits(each, free, kept)
    assert most == 0 or fits(most)
    assert not fits(most + 1)


# ------------ Free GPUs beside which too little is left: what is short, on how many nodes, and how
# much is left at most


KIND = model.DroneType("topas", "a100", 2000, 8, 20480, 1024)
ENOUGH = {"free_gpus": 2, "free_cpus": 8, "free_gib": 20}


def of(name: str, disk: int = 0, free_disk: int = 0, **free: int) -> model.Node:
    return replace(node(name, 8, **ENOUGH | free), disk_mib=disk, free_disk_mib=free_disk)


@pytest.mark.parametrize(
    ("nodes", "short"),
    [
        ([], None),
        ([of("n1", free_cpus=7)], ("cpus", 8, 1, 2.0, 7)),
        ([of("n1", disk=9999, free_disk=1023)], ("disk", 1024, 1, 2.0, 1023)),
        ([of("n1", free_cpus=7), of("n2")], None),
        ([of("n1", free_gpus=1), of("n2", free_cpus=7)], ("cpus", 8, 1, 2.0, 7)),
        ([of("n1", free_cpus=3), of("n2", free_cpus=5, free_gpus=5)], ("cpus", 8, 2, 7.0, 5)),
        (
            [replace(of("n1", free_cpus=3), types=("v100",)), of("n2", free_gib=1)],
            ("memory", 20480, 1, 2.0, 1024),
        ),
    ],
)
def test_what_is_short_on_most_free_gpus_is_told(
    nodes: list[model.Node], short: tuple[str, int, int, float, int] | None
) -> None:
    expected = None
    if short is not None:
        dimension, wanted, count, gpus, free = short
        expected = GpusStranded(KIND.key, count, gpus, dimension, wanted, free)
    assert stranded_gpus(KIND, nodes) == expected


# -------------- Jobs of several GPUs get one drone on one node; drones of whole nodes hold many
# jobs; starts are ramped


SIX = replace(A100, name="six", gpu_milli=6000, cpus=48, memory_mib=6 * 20480)
LARGE = jobs(gpu_milli=6000, cpus=48, memory_mib=6 * 20480, id="large")
BOTH = ("a100", "six")


def test_eight_of_them_take_a_node_each_and_small_jobs_what_these_leave() -> None:
    nodes, classes = (
        [node(f"n{n}", 8, kinds=BOTH) for n in range(8)],
        [jobs(waiting=20), replace(LARGE, waiting=8)],
    )
    kinds = started(
        plan_of(snapshot(classes=classes, types=(A100, SIX), nodes=nodes, limits=ROOMY))
    )
    assert kinds.count(SIX.key) == 8, "the hardest to place comes first"
    assert kinds.count(A100.key) == 2 * 8, "what is left beside them, and no more"


def test_small_drones_leave_whole_nodes_whole() -> None:
    # one node is half full: four small drones that are not there yet are promised room on that one
    used, empty = node("n1", 8, kinds=BOTH, free_gpus=4), node("n2", 8, kinds=BOTH)
    coming = [drone(f"d-{n}", model.DroneState.SUBMITTED) for n in range(4)]
    plan = scenes.plan_for(classes=[LARGE], types=(A100, SIX), drones=coming, nodes=[used, empty])
    assert started(plan) == [SIX.key]


@pytest.mark.parametrize(
    ("used_by", "starts"), [("overlay", 0), ("site:topas", 0), ("site:other", 1), ("web", 1)]
)
def test_nothing_is_started_with_a_credential_that_is_dead(used_by: str, starts: int) -> None:
    dead = model.Credential("token", "file x", "drone@pool", not_after=NOW - 1, used_by=used_by)
    seen = replace(snapshot(classes=[jobs(waiting=1)]), credentials=(dead,))
    plan = decide(seen)
    told = [
        each.reason for each in plan.refusals if isinstance(each.reason, reasons.CredentialUnusable)
    ]
    assert len(plan.starts) == starts and bool(told) is not bool(starts)
    again = decide(replace(seen, credentials=(replace(dead, not_after=NOW + 999),)))
    assert len(again.starts) == 1
