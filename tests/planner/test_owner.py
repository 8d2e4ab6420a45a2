"""The owner comes first: room for his waiting jobs, node by node, at the least loss; and what is kept for GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from provisioner import model, reasons
from provisioner.planner.matching import count_fits
from provisioner.resources import Resources
from tests.planner import scenes
from tests.planner.scenes import (
    A100,
    NOW,
    drone,
    jobs,
    node,
    plan_for,
    plan_of,
    slot_of,
    snapshot,
    started,
    why,
)

S = model.DroneState
CPU = model.DroneType("topas", "cpu", 0, 8, 20480, 0)
KEEP = model.Reserve(cpus=8, memory_mib=20480)
CPU_JOB = replace(jobs(waiting=1), id="cpu-work", gpu_milli=0, cpus=4, memory_mib=4096)


def on(
    name: str, where: str, state: S = S.BUSY, *, worked_s: float = 100.0, **more: object
) -> model.Drone:
    """A drone on a node whose job has worked so long."""
    made = drone(name, state, age_s=5000.0, node=where)
    if state is S.BUSY:
        made = replace(made, work_gpu_milli=1000, work_at=NOW - worked_s)
    return replace(made, **more)


def slots(drones: list[model.Drone]) -> list[object]:
    return [
        slot_of(d, work_gpu_milli=d.work_gpu_milli, work_at=d.work_at)
        for d in drones
        if d.joined_at
    ]


def claim(
    count: int = 1, gpus: int = 1, cpus: int = 8, memory_gib: int = 20, **more: object
) -> model.OwnerDemand:
    return model.OwnerDemand(count, gpus * 1000, cpus, memory_gib * 1024, NOW - 30, **more)


def told(drones: list[model.Drone], **more: object) -> model.Plan:
    return plan_for(drones=drones, slots=slots(drones), **more)


def preemptions(plan: model.Plan) -> list[str]:
    return sorted(s.drone.id for s in plan.stops)


FULL_1 = node("n1", 8, free_gpus=0, free_cpus=128, free_gib=800)
FULL_2 = node("n2", 8, free_gpus=0, free_cpus=128, free_gib=800)


def two_full_nodes() -> list[model.Drone]:
    """16 drones; those of n1 have worked longer, but for three of them."""
    first = [on(f"kit-ab12-{i}", "n1", worked_s=5 if i < 3 else 900) for i in range(8)]
    second = [on(f"kit-ab12-{i}", "n2", worked_s=300) for i in range(8, 16)]
    return first + second


def test_a_node_that_is_given_as_a_whole_gets_one_drone() -> None:
    nodes = tuple(replace(node(name, 4), exclusive=("a100",)) for name in ("n1", "n2"))
    assert len(started(plan_for(classes=[jobs(waiting=8)], nodes=nodes))) == 2
    waits = drone("kit-ab12-1", S.QUEUED)
    assert len(started(plan_for(classes=[jobs(waiting=8)], nodes=nodes, drones=[waits]))) == 1


def test_a_drone_that_got_a_whole_node_frees_all_of_it_for_the_owner() -> None:
    held = replace(node("n1", 4, free_gpus=0, free_cpus=0, free_gib=0), exclusive=("a100",))
    plan = told([on("kit-ab12-0", "n1")], nodes=(held,), claims=(claim(gpus=4, cpus=32),))
    assert preemptions(plan) == ["kit-ab12-0"]


def full_node(gpus: int) -> model.Node:
    return node("n1", gpus, free_gpus=0, free_cpus=8, free_gib=20)


LEAVING = on(
    "kit-ab12-0", "n1", S.STOPPING, leaving=S.PREEMPTED, asked_at=NOW - 3, notice_at=NOW - 3
)
NOTICED = on("kit-ab12-9", "n2", notice_at=NOW - 2)
STUCK = on("kit-ab12-1", "n1", S.STOPPING, leaving=S.PREEMPTED, asked_at=NOW - 500, asked=1)
BY_WORK = [
    on("kit-ab12-1", "n1", worked_s=2),
    on("kit-ab12-2", "n1", S.IDLE),
    on("kit-ab12-3", "n1", S.BOOTING),
]
YOUNG = on("kit-ab12-1", "n1", worked_s=20, busy_at=NOW - 20)
SAVES = on("kit-ab12-1", "n1", worked_s=20, busy_at=NOW - 4000)
OLDER = on("kit-ab12-2", "n1", worked_s=400, busy_at=NOW - 400)
BOOTS, GONE = on("kit-ab12-2", "n2", S.QUEUED), on("kit-ab12-2", "n2", S.QUEUED, notice_at=NOW - 2)
SINGLES = {"nodes": [node(name, 1, free_gpus=0, free_cpus=8, free_gib=20) for name in ("n1", "n2")]}
SIX = claim(1, gpus=6, cpus=48, memory_gib=200)


@pytest.mark.parametrize(
    ("drones", "claims", "leave", "given"),
    [
        (two_full_nodes(), [claim(3)], [0, 1, 2], {}),
        # Six GPUs and 200 GB on one node: 6 times 300 s; on n1 it would be 3 times 5 s and 3 times
        # 900 s.
        (two_full_nodes(), [SIX], [10, 11, 12, 13, 14, 15], {}),
        (two_full_nodes(), [claim(1, gpus=9)], [], {}),
        (two_full_nodes(), [claim(1, nodes=("n2",))], [10], {}),
        (two_full_nodes(), [claim(1)], [0], {"view": False}),
        # Drones that leave already are not counted twice, whoever asked them to.
        ([LEAVING, *two_full_nodes()[1:9], NOTICED, *two_full_nodes()[10:]], [claim(3)], [1], {}),
        # A drone that was asked long ago and stays is no room to come; it is asked again.
        ([STUCK, on("kit-ab12-2", "n1")], [claim(1)], [1, 2], {"nodes": [full_node(2)]}),
        # Drones without work go first.
        (BY_WORK, [claim(2)], [2, 3], {"nodes": [full_node(3)]}),
        # So do drones that have a node and wait there for their machine or image; the site may take
        # these itself.
        ([on("kit-ab12-1", "n1"), BOOTS], [claim(1)], [2], SINGLES),
        ([on("kit-ab12-1", "n1"), GONE], [claim(1)], [], SINGLES),
        # The operator may leave it to the site, or grant a minimum run time: from the first job,
        # not the checkpoint.
        ([YOUNG, OLDER], [claim(1)], [1], {"nodes": [full_node(2)]}),
        (
            [YOUNG, OLDER],
            [claim(1)],
            [2],
            {"nodes": [full_node(2)], "limits": {"min_runtime_s": 60.0}},
        ),
        (
            [YOUNG, OLDER],
            [claim(1)],
            [],
            {"nodes": [full_node(2)], "limits": {"preempt_proactively": False}},
        ),
        ([SAVES], [claim(1)], [1], {"nodes": [full_node(1)], "limits": {"min_runtime_s": 600.0}}),
    ],
)
def test_who_leaves_for_the_owner(
    drones: list[model.Drone],
    claims: list[model.OwnerDemand],
    leave: list[int],
    given: dict[str, object],
) -> None:
    plan = told(drones, **{"nodes": [FULL_1, FULL_2], "claims": claims, **given})
    assert sorted(int(stop.drone.id.rpartition("-")[2]) for stop in plan.stops) == leave


def test_the_reason_and_the_record_of_a_drone_that_leaves_for_the_owner() -> None:
    stop = told(two_full_nodes(), nodes=[FULL_1, FULL_2], claims=[claim(3)]).stops[0]
    assert stop.reason == reasons.PreemptedForOwner(3, 30.0, "n1", 1.0, 5.0)
    assert (stop.drone.state, stop.drone.leaving, stop.drone.notice_at) == (
        S.STOPPING,
        S.PREEMPTED,
        NOW,
    )


def test_a_drone_that_has_its_node_and_has_not_begun_is_cancelled_for_the_owner() -> None:
    [stop] = told([BOOTS], **SINGLES, claims=[claim(1)]).stops
    assert (stop.drone.leaving, type(stop.reason)) == (S.CANCELLED, reasons.PreemptedForOwner)


def test_what_is_free_is_the_owners_and_nobody_leaves() -> None:
    free = node("n1", 8, free_gpus=3, free_cpus=100, free_gib=500)
    plan = told(
        [on(f"kit-ab12-{i}", "n1") for i in range(5)], nodes=[free], claims=[claim(2)], waiting=3
    )
    assert preemptions(plan) == []
    assert len(started(plan)) == 1, "three were free, two are the owner's"


def test_while_room_is_made_nothing_starts_that_could_take_it_and_what_queues_there_is_withdrawn() -> (
    None
):
    drones = [*two_full_nodes(), drone("kit-ab12-20", S.QUEUED, age_s=5)]
    free = node("n3", 8, free_gpus=2, free_cpus=16, free_gib=40)
    plan = told(drones, nodes=[FULL_1, FULL_2, free], claims=[SIX], waiting=5)
    assert started(plan) == []
    assert reasons.OwnerWaits("topas", 1, 6.0) in why(plan, "class:small")
    assert "kit-ab12-20" in preemptions(plan)


def test_nothing_is_asked_for_where_nothing_is_free() -> None:
    """8 free GPUs, 12 jobs: 8 drones; what waits at the site counts as there."""
    plan = plan_for(waiting=12, nodes=[node("n1", 8)])
    assert len(started(plan)) == 8
    assert why(plan, "class:small") == [reasons.SiteFull("topas/a100")]
    waiting = [drone(f"kit-ab12-{i}", S.SUBMITTED, age_s=2) for i in range(5)]
    plan = plan_for(waiting=12, drones=waiting, nodes=[node("n1", 8)])
    assert len(started(plan)) == 3


WIDE = {"max_drones": 100, "max_pending": 100, "max_starts_per_tick": 100}


def cpu_plan(**limits: object) -> model.Plan:
    both, many = node("n1", 8, kinds=("a100", "cpu")), replace(CPU_JOB, waiting=90)
    return plan_for(
        types=(A100, CPU),
        nodes=[both],
        classes=[many],
        limits=WIDE | limits,
    )


def test_cpu_drones_take_the_rest_of_a_gpu_node_and_never_the_reserve() -> None:
    """192 CPUs less 8 for each of 8 free GPUs: 128, so 16 CPU drones of 8."""
    plan = cpu_plan(blocking=(KEEP,))
    assert started(plan) == [CPU.key] * 16
    assert why(plan, "class:cpu-work") == [reasons.ReserveKept("topas/cpu", 8.0)]


@pytest.mark.parametrize(("most", "gone"), [(100, ["kit-ab12-1", "kit-ab12-2"]), (24, [])])
def test_the_reserve_is_taken_back_from_our_own_cpu_drones_when_a_gpu_job_waits(
    most: int, gone: list[str]
) -> None:
    work = {"kind": CPU, "age_s": 1000, "node": "n1", "work_gpu_milli": 8000}
    cpus = [drone(f"kit-ab12-{i}", S.BUSY, work_at=NOW - 10 * i, **work) for i in range(1, 25)]
    nodes = [node("n1", 8, kinds=("a100", "cpu"), free_cpus=0, free_gib=500)]
    limits = {"blocking": (KEEP,), "max_drones": most}
    plan = told(cpus, waiting=2, types=(A100, CPU), nodes=nodes, limits=limits)
    assert preemptions(plan) == gone, (
        "one for each job, those that lose least; none where more could not start anyway"
    )
    assert {s.reason for s in plan.stops} <= {reasons.ReserveReclaimed("n1")}


def test_while_a_queue_does_not_answer_a_job_without_an_eviction_is_not_taken_for_done() -> None:
    here = on("kit-ab12-1", "n1", worked_s=300)
    end = model.RemoteEnd(model.EndKind.PREEMPTED, NOW - 1, None, "evicted")
    remote = model.RemoteDrone(here.id, model.RemoteState.ENDED, here.remote_id, end=end)
    whole = snapshot(drones=[here], slots=[], remotes=[remote], evictions=())
    partial = scenes.with_pool(whole, unheard=("b",))
    found = [plan_of(seen).moves[0].drone.lost_gpu_s for seen in (whole, partial)]
    assert found == [0.0, 299.0]


def test_a_drone_that_its_site_gave_notice_is_no_supply() -> None:
    here = on("kit-ab12-1", "n1", S.IDLE)
    listed = replace(scenes.remote_of(here), notice_at=NOW - 4, node="n1")
    assert (
        len(plan_for(drones=[here], remotes=[listed], waiting=1, nodes=[node("n2", 8)]).starts) == 1
    )


def test_room_that_the_owner_does_not_take_is_given_back_but_for_a_little() -> None:
    """A queue that waits for something else (a quota, a limit) must not keep a site empty for ever."""
    free, owners = node("n1", 8), claim(1000)

    def tick(known: model.OwnerClaimBackoff | None) -> model.Plan:
        snap = snapshot(classes=[jobs(waiting=8)], nodes=[free], claims=[owners])
        return plan_of(replace(snap, patience={"topas": known} if known else {}))

    first = tick(None)
    assert started(first) == [] and first.patience == (model.OwnerClaimBackoff("topas", NOW, 8),)
    assert started(tick(model.OwnerClaimBackoff("topas", NOW - 600, 8))) == []
    late = tick(model.OwnerClaimBackoff("topas", NOW - 601, 8))
    assert late.patience == (model.OwnerClaimBackoff("topas", NOW - 601, 2, offer=2),)
    assert len(started(tick(late.patience[0]))) == 6, (
        "all but what two of the owner's jobs would take"
    )
    taken = tick(model.OwnerClaimBackoff("topas", NOW - 601, 9))
    assert taken.patience[0].since == NOW, "he has begun to take it"


def test_once_the_little_is_taken_twice_as_much_is_offered() -> None:
    drones = [on(f"kit-ab12-{i}", "n1") for i in range(8)]

    def tick(since: float, standing: int, **given: object) -> model.Plan:
        known = model.OwnerClaimBackoff("topas", since, standing, offer=2)
        return plan_of(replace(snapshot(nodes=[FULL_1], **given), patience={"topas": known}))

    plan = tick(0.0, 0, drones=drones, slots=slots(drones), claims=[claim(1000)])
    assert len(plan.stops) == 2, "what is offered at once, and not all eight"
    assert plan.patience == (model.OwnerClaimBackoff("topas", 0.0, 0, offer=2),), "it is being made"
    assert tick(5.0, 2, claims=[claim(1000)]).patience == (
        model.OwnerClaimBackoff("topas", 0.0, 0, offer=4),
    )
    assert tick(5.0, 2).patience == (), "nobody waits"


def test_a_great_queue_on_many_nodes_is_a_matter_of_a_moment() -> None:
    """10,000 waiting jobs and 200 nodes: what fits a node is promised at once, not job by job."""
    nodes = [node(f"n{i}", 8, free_cpus=64) for i in range(200)]
    plan = plan_for(nodes=nodes, claims=[claim(10_000, gpus=0, cpus=1, memory_gib=1)])
    assert plan.patience[0].standing == 10_000


def test_a_claim_for_disk_and_one_under_a_smaller_reserve_are_no_fault() -> None:
    """The checker once counted neither disk nor what freed GPUs keep, and stopped all plans of all sites."""
    wide = replace(A100, disk_mib=51200)
    drones = [on(f"kit-ab12-{i}", "n1") for i in range(8)]
    full = replace(FULL_1, disk_mib=409600)
    wants = claim(1, cpus=4, memory_gib=16, disk_mib=102400)
    plan = plan_for(types=(wide,), drones=drones, slots=slots(drones), nodes=[full], claims=[wants])
    assert len(plan.stops) == 2
    tight = node("n1", 8, free_gpus=0, free_cpus=0, free_gib=800)
    small = {"blocking": (model.Reserve(cpus=6),)}
    plan = told(
        drones, nodes=[tight], claims=[claim(1, gpus=1, cpus=12, memory_gib=4)], limits=small
    )
    assert 2 <= len(plan.stops) <= 3


@st.composite
def _sites(draw: st.DrawFn) -> tuple[list[model.Node], list[model.Drone], list[model.OwnerDemand]]:
    """Nodes with drones on them, some leaving, and owner's jobs of all sizes."""
    nodes, drones = [], []
    for n in range(draw(st.integers(1, 4))):
        gpus = draw(st.sampled_from([1, 2, 4, 8]))
        held = draw(st.integers(0, gpus))
        cpus = draw(st.integers(0, 100))
        free = {
            "free_gpus": draw(st.integers(0, gpus - held)),
            "free_cpus": cpus,
            "free_gib": cpus * 4,
        }
        nodes.append(node(f"n{n}", gpus, kinds=("a100", "cpu"), **free))
        for _ in range(held):
            state = draw(st.sampled_from([S.BUSY, S.BUSY, S.IDLE, S.BOOTING, S.STOPPING]))
            here = on(
                f"kit-ab12-{len(drones)}",
                f"n{n}",
                state,
                worked_s=float(draw(st.integers(0, 5000))),
            )
            if state is S.STOPPING:
                here = replace(
                    here, leaving=S.PREEMPTED, asked_at=NOW - draw(st.sampled_from([1.0, 500.0]))
                )
            elif draw(st.integers(0, 9)) == 0:
                here = replace(here, notice_at=NOW - 3)
            drones.append(here)
    shape = st.builds(
        claim, st.integers(1, 5), st.integers(0, 8), st.integers(1, 64), st.integers(1, 400)
    )
    return nodes, drones, draw(st.lists(shape, max_size=3))


@given(_sites(), st.integers(0, 40), st.booleans(), st.booleans())
def test_every_plan_is_sound_and_nobody_leaves_in_vain(
    site: tuple[list[model.Node], list[model.Drone], list[model.OwnerDemand]],
    waiting: int,
    blocks: bool,
    cpu_work: bool,
) -> None:
    nodes, drones, claims = site
    classes = [jobs(waiting=waiting)] if waiting else []
    if cpu_work:
        classes.append(replace(CPU_JOB, waiting=30))
    given = {
        "types": (A100, CPU),
        "drones": drones,
        "slots": slots(drones),
        "nodes": nodes,
        "claims": claims,
    }
    snap = snapshot(
        classes=classes, limits=WIDE | ({"blocking": (KEEP,)} if blocks else {}), **given
    )
    plan = plan_of(snap)  # judged by the independent checker
    gone = {s.drone.id for s in plan.stops if isinstance(s.reason, reasons.PreemptedForOwner)}
    if len(claims) == 1:  # then how many jobs fit at best is a plain sum
        fitting = _fitting(nodes, drones, claims[0], gone, blocks)
        for one in gone:
            assert _fitting(nodes, drones, claims[0], gone - {one}, blocks) < fitting, (
                f"{one} leaves in vain"
            )


def _fitting(
    nodes: list[model.Node],
    drones: list[model.Drone],
    wants: model.OwnerDemand,
    gone: set[str],
    blocks: bool,
) -> int:
    """How many of the claim's jobs fit once these, and those who leave anyway, have gone."""
    total = 0
    for each in nodes:
        here = [d for d in drones if d.node == each.name]
        soon = [d for d in here if d.notice_at or (d.state is S.STOPPING and d.asked_at > NOW - 90)]
        leaving = [d for d in here if d.id in gone or d in soon]
        free = Resources(each.free_gpu_milli, each.free_cpus, each.free_memory_mib)
        room = free.plus(Resources(1000, 8, 20480), len(leaving))
        kept = Resources(0, 8, 20480) if blocks else Resources()
        total += count_fits(Resources(wants.gpu_milli, wants.cpus, wants.memory_mib), room, kept)
    return min(total, wants.count)
