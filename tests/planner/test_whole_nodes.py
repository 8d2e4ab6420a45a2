"""Jobs of several GPUs get one drone on one node; drones of whole nodes hold many jobs; starts are ramped."""

from __future__ import annotations

from dataclasses import replace

from provisioner import reasons
from provisioner.model import DroneState
from tests.planner.scenes import A100, drone, jobs, node, plan_of, slot_of, snapshot, started, why

SIX = replace(A100, name="six", gpu_milli=6000, cpus=48, memory_mib=6 * 20480)
WHOLE = replace(A100, name="whole", gpu_milli=8000, cpus=64, memory_mib=8 * 20480)
LARGE = jobs(gpu_milli=6000, cpus=48, memory_mib=6 * 20480, id="large")
BOTH = ("a100", "six")


def test_a_job_of_six_gpus_gets_one_drone_of_six_and_not_six_of_one() -> None:
    assert started(plan_of(snapshot(classes=[LARGE], types=(A100, SIX)))) == [SIX.key]


def test_free_gpus_on_several_nodes_are_no_place_for_it() -> None:
    halves = [node(f"n{n}", 8, kinds=BOTH, free_gpus=5) for n in range(4)]
    plan = plan_of(snapshot(classes=[LARGE], types=(SIX, A100), nodes=halves))
    assert plan.starts == ()
    assert why(plan, "class:large") == [reasons.SiteFull(SIX.key)]


def test_eight_of_them_take_a_node_each_and_small_jobs_what_these_leave() -> None:
    nodes = [node(f"n{n}", 8, kinds=BOTH) for n in range(8)]
    classes = [jobs(waiting=20), replace(LARGE, waiting=8)]
    plan = plan_of(
        snapshot(
            classes=classes,
            types=(A100, SIX),
            nodes=nodes,
            limits={"max_drones": 100, "max_pending": 100, "max_starts_per_tick": 100},
        )
    )
    assert started(plan).count(SIX.key) == 8, "the hardest to place comes first"
    assert started(plan).count(A100.key) == 2 * 8, "what is left beside them, and no more"


def test_small_drones_leave_whole_nodes_whole() -> None:
    # one node is half full: four small drones that are not there yet are promised room on that one
    used, empty = node("n1", 8, kinds=BOTH, free_gpus=4), node("n2", 8, kinds=BOTH)
    coming = [drone(f"d-{n}", DroneState.SUBMITTED) for n in range(4)]
    plan = plan_of(snapshot(classes=[LARGE], types=(A100, SIX), drones=coming, nodes=[used, empty]))
    assert started(plan) == [SIX.key]


def test_one_drone_of_a_whole_node_holds_many_jobs() -> None:
    kinds = (WHOLE,)
    assert started(plan_of(snapshot(classes=[jobs(waiting=8)], types=kinds))) == [WHOLE.key]
    assert started(plan_of(snapshot(classes=[jobs(waiting=9)], types=kinds))) == [WHOLE.key] * 2
    mixed = [jobs(waiting=2, gpu_milli=2000, cpus=8, id="two"), jobs(waiting=4)]
    assert started(plan_of(snapshot(classes=mixed, types=kinds))) == [WHOLE.key]


def test_what_is_left_in_a_drone_of_a_whole_node_is_used_before_another_starts() -> None:
    busy = drone("d-1", DroneState.BUSY, WHOLE)
    slot = slot_of(busy, WHOLE, free_gpu_milli=3000, free_cpus=24, free_memory_mib=3 * 20480)
    given = {"types": (WHOLE,), "drones": [busy], "slots": [slot]}
    plan = plan_of(snapshot(classes=[jobs(waiting=3)], **given))  # type: ignore[arg-type]
    assert plan.starts == ()
    assert why(plan, "class:small") == [reasons.DemandCovered(3, 0)]
    assert started(plan_of(snapshot(classes=[jobs(waiting=4)], **given))) == [WHOLE.key]  # type: ignore[arg-type]


def test_the_ramp_of_a_site_counts_drones_and_says_so() -> None:
    plan = plan_of(snapshot(classes=[jobs(waiting=50)], types=(A100,), limits={"max_starts_per_tick": 3}))
    assert len(plan.starts) == 3
    assert why(plan, "class:small") == [reasons.LimitReached("max_starts_per_tick", "topas", 3, 3)]
    coming = [drone(f"d-{n}", DroneState.BOOTING) for n in range(4)]
    plan = plan_of(snapshot(classes=[jobs(waiting=50)], drones=coming, limits={"max_pending": 5}))
    assert len(plan.starts) == 1
    assert why(plan, "class:small")[0] == reasons.LimitReached("max_pending", "topas", 5, 5)
