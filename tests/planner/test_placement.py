"""What is started, where, and why not more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from provisioner import reasons
from provisioner.cli.plan import read_snapshot
from provisioner.estimates import Estimates, run_keys
from provisioner.model import (
    Breaker,
    BreakerState,
    DrainMode,
    Drone,
    DroneId,
    DroneState,
    Fault,
    FaultKind,
    Policy,
    RemoteDrone,
    RemoteState,
    SlotState,
    UnmetRequirement,
)
from provisioner.planner.safeguards import safe_plan
from tests.planner.scenes import (
    A100,
    DOWN,
    NOW,
    QUAD,
    SMALL,
    V100,
    drone,
    jobs,
    plan_of,
    slot_of,
    snapshot,
    started,
    why,
    with_site,
)

DATA = Path(__file__).parent / "data"


def test_no_jobs_no_drones() -> None:
    assert plan_of(snapshot()).starts == ()


def test_three_waiting_jobs_get_three_drones_of_the_cheapest_type_that_fits() -> None:
    plan = plan_of(snapshot(classes=[jobs(waiting=3)], types=(A100, V100)))
    assert started(plan) == [V100.key] * 3
    assert [s.drone.id for s in plan.starts] == ["kit-ab12-42", "kit-ab12-43", "kit-ab12-44"]
    assert plan.starts[0].reason == reasons.JobsWaiting("small", waiting=3, covered=0, starts=3)


def test_a_job_that_needs_the_memory_of_an_a100_gets_one() -> None:
    plan = plan_of(snapshot(classes=[jobs(waiting=1, vram_mib=35000)], types=(A100, V100)))
    assert started(plan) == [A100.key]


def test_small_jobs_share_one_drone() -> None:
    fifth = jobs(waiting=5, gpu_milli=200, cpus=1, memory_mib=2048)
    assert started(plan_of(snapshot(classes=[fifth]))) == [A100.key]


def test_the_binding_dimension_decides_how_many_jobs_a_drone_holds() -> None:
    # Eight fit by GPU share, two by RAM: ten jobs need five drones, not two.
    greedy = jobs(waiting=10, gpu_milli=125, cpus=1, memory_mib=10000)
    assert len(plan_of(snapshot(classes=[greedy])).starts) == 5


def test_left_over_room_of_a_new_drone_serves_the_next_class() -> None:
    one = jobs(waiting=1, gpu_milli=500, cpus=4, memory_mib=8000)
    other = jobs(waiting=1, gpu_milli=400, cpus=4, memory_mib=8000, id="other")
    assert len(plan_of(snapshot(classes=[one, other])).starts) == 1


def test_a_share_lies_on_one_device() -> None:
    # Two GPUs hold two jobs of 0.6, not three.
    share = jobs(waiting=3, gpu_milli=600, cpus=1, memory_mib=100)
    assert len(plan_of(snapshot(classes=[share], types=(QUAD,))).starts) == 1
    share = jobs(waiting=5, gpu_milli=600, cpus=1, memory_mib=100)
    assert len(plan_of(snapshot(classes=[share], types=(QUAD,))).starts) == 2


@pytest.mark.parametrize(
    "state", [DroneState.REQUESTED, DroneState.SUBMITTED, DroneState.QUEUED, DroneState.BOOTING, DroneState.IDLE]
)
def test_jobs_that_a_drone_on_its_way_will_take_start_nothing(state: DroneState) -> None:
    plan = plan_of(snapshot(classes=[jobs(waiting=1)], drones=[drone("kit-ab12-1", state)]))
    assert plan.starts == ()
    assert why(plan, "class:small") == [reasons.DemandCovered(1, 0 if state is DroneState.IDLE else 1)]


@pytest.mark.parametrize("state", [DroneState.BUSY, DroneState.DRAINING, DroneState.STOPPING])
def test_drones_that_are_full_or_leave_are_no_supply(state: DroneState) -> None:
    leaving = None if state is DroneState.BUSY else DroneState.DONE
    there = drone("kit-ab12-1", state, leaving=leaving, asked_at=NOW - 1, jobs=1)
    assert len(plan_of(snapshot(classes=[jobs(waiting=1)], drones=[there])).starts) == 1


def test_jobs_that_the_pool_would_match_with_no_slot_get_no_drone_and_are_told_why() -> None:
    some = jobs(waiting=5, limited=3, limit="concurrency limit licence is used up")
    plan = plan_of(snapshot(classes=[some]))
    assert len(plan.starts) == 2
    assert reasons.PoolLimit("concurrency limit licence is used up") in why(plan, "class:small")
    none = plan_of(snapshot(classes=[jobs(waiting=5, limited=5, limit="x")]))
    assert none.starts == () and why(none, "class:small") == [reasons.PoolLimit("x")]


def test_a_job_that_is_longer_than_its_drone_takes_gets_a_misfit_with_numbers_and_no_drone() -> None:
    kind = replace(A100, walltime_s=600.0, margin_s=180.0)
    plan = plan_of(snapshot(classes=[jobs(waiting=1, walltime_s=500.0)], types=[kind]))
    assert plan.starts == ()
    assert why(plan, "class:small") == [
        reasons.NothingFits(kind.key, "walltime", "500 s", "420 s of a walltime of 600 s")
    ]
    assert len(plan_of(snapshot(classes=[jobs(waiting=1, walltime_s=420.0)], types=[kind])).starts) == 1


def test_supply_must_live_long_enough_for_the_job() -> None:
    old = drone("kit-ab12-1", DroneState.IDLE)
    slots = [slot_of(old, retires_at=NOW + 600)]
    short, long = jobs(waiting=1, walltime_s=300.0), jobs(waiting=1, walltime_s=3600.0)
    assert plan_of(snapshot(classes=[short], drones=[old], slots=slots)).starts == ()
    assert len(plan_of(snapshot(classes=[long], drones=[old], slots=slots)).starts) == 1


def test_a_cpu_left_over_is_no_room_for_a_gpu_job() -> None:
    busy = drone("kit-ab12-1", DroneState.BUSY)
    slots = [slot_of(busy, free_cpus=3, free_memory_mib=9000)]
    assert len(plan_of(snapshot(classes=[jobs(waiting=1, cpus=1, memory_mib=100)], drones=[busy], slots=slots)).starts)


def test_only_jobs_that_lost_a_negotiation_cycle_are_demand() -> None:
    plan = plan_of(snapshot(classes=[jobs(waiting=0, fresh=4)]))
    assert plan.starts == ()
    assert why(plan, "class:small") == [reasons.AwaitingNegotiation(4)]


def test_nothing_fits_names_the_nearest_type_and_the_first_failing_dimension() -> None:
    huge = jobs(waiting=2, vram_mib=80000)
    plan = plan_of(snapshot(classes=[huge], types=(V100, A100)))
    assert plan.starts == ()
    assert why(plan, "class:small") == [reasons.NothingFits("topas/a100", "vram", "80000 MiB", "40960 MiB")]


def test_what_the_jobs_own_requirements_refuse_is_not_started() -> None:
    picky = jobs(waiting=1, refuses={A100.key: UnmetRequirement("requirements", "HasCVMFS", "undefined")})
    plan = plan_of(snapshot(classes=[picky]))
    assert why(plan, "class:small") == [reasons.NothingFits("topas/a100", "requirements", "HasCVMFS", "undefined")]


def test_an_impossible_request_is_a_configuration_error_of_the_job() -> None:
    odd = jobs(waiting=1, invalid="RequestGPUs = 0.5: ask for 1")
    assert why(plan_of(snapshot(classes=[odd])), "class:small") == [reasons.BadRequest("RequestGPUs = 0.5: ask for 1")]


def test_a_request_for_a_billion_gpus_starts_nothing() -> None:
    plan = plan_of(snapshot(classes=[jobs(waiting=1, gpu_milli=10**12)], types=(A100, QUAD)))
    assert why(plan, "class:small") == [reasons.NothingFits("horeka/quad", "gpus", "1e+09", "4")]


def test_no_configured_type_at_all() -> None:
    plan = plan_of(snapshot(classes=[jobs(waiting=1)], types=()))
    assert why(plan, "class:small") == [reasons.NothingFits("", "type", "any", "no drone type is configured")]


LIMITS = [
    ({"max_starts_per_tick": 2}, Policy(), reasons.LimitReached("max_starts_per_tick", "topas", 2, 2)),
    ({"max_pending": 3}, Policy(), reasons.LimitReached("max_pending", "topas", 3, 3)),
    ({"max_drones": 4}, Policy(), reasons.LimitReached("max_drones", "topas", 4, 4)),
    ({"max_gpu_milli": 4000}, Policy(), reasons.LimitReached("max_gpus", "topas", 4, 4)),
    ({}, Policy(max_drones=4), reasons.LimitReached("max_drones", "all sites", 4, 4)),
    ({}, Policy(max_gpu_milli=4500), reasons.LimitReached("max_gpus", "all sites", 4, 4.5)),
]


@pytest.mark.parametrize(("limits", "policy", "reason"), LIMITS)
def test_each_limit_holds_and_is_named(limits: dict[str, object], policy: Policy, reason: reasons.LimitReached) -> None:
    there = [drone("kit-ab12-1", DroneState.BUSY), drone("kit-ab12-2", DroneState.BOOTING)]
    plan = plan_of(snapshot(classes=[jobs(waiting=9)], drones=there, limits=limits, policy=policy))
    assert len(plan.starts) == 2
    assert reason in why(plan, "class:small")


def test_strays_count_against_the_cap_until_they_are_gone() -> None:
    stray = RemoteDrone(DroneId("kit-zzzz-9"), RemoteState.UNKNOWN, "r9")
    plan = plan_of(snapshot(classes=[jobs(waiting=5)], remotes=[stray], limits={"max_drones": 3}))
    assert len(plan.starts) == 2


def test_nothing_is_queued_where_nothing_is_free() -> None:
    plan = plan_of(snapshot(classes=[jobs(waiting=2)], free={"a100": 0}))
    assert plan.starts == ()
    assert why(plan, "class:small") == [reasons.SiteFull("topas/a100")]


def test_unless_the_operator_wants_it_queued() -> None:
    plan = plan_of(snapshot(classes=[jobs(waiting=2)], free={"a100": 0}, limits={"queue_when_full": True}))
    assert len(plan.starts) == 2


def test_free_places_of_two_types_are_the_same_hardware() -> None:
    a, v = jobs(waiting=4, vram_mib=35000), jobs(waiting=4, id="other")
    plan = plan_of(snapshot(classes=[a, v], types=(A100, V100), free={"a100": 4, "v100": 4}))
    assert len(plan.starts) == 4


def test_where_the_site_tells_its_gpus_in_all_types_on_other_hardware_lose_nothing() -> None:
    snap = snapshot(classes=[jobs(waiting=9)], types=(A100, V100), free={"a100": 4, "v100": 4})
    for in_all, count in ((8, 8), (6, 6), (4, 4)):
        plan = plan_of(with_site(snap, free_gpu_milli=in_all * 1000))
        assert len(plan.starts) == count


@pytest.mark.parametrize("state", [DroneState.REQUESTED, DroneState.SUBMITTED, DroneState.QUEUED])
def test_what_is_free_is_promised_to_those_that_wait_for_it(state: DroneState) -> None:
    there = [drone(f"kit-ab12-{n}", state) for n in range(3)]
    plan = plan_of(snapshot(classes=[jobs(waiting=9)], drones=there, free={"a100": 4}))
    assert len(plan.starts) == 1
    assert reasons.SiteFull("topas/a100") in why(plan, "class:small")


def test_a_free_site_comes_before_a_cheaper_full_one() -> None:
    snap = snapshot(classes=[jobs(waiting=1)], types=(A100, QUAD), free={"a100": 0, "quad": 1})
    assert started(plan_of(snap)) == [QUAD.key]


def test_a_disabled_site_starts_nothing() -> None:
    plan = plan_of(snapshot(classes=[jobs(waiting=1)], limits={"enabled": False}))
    assert why(plan, "class:small") == [reasons.SiteDisabled("topas")]


def test_a_site_without_a_fresh_view_is_left_alone() -> None:
    plan = plan_of(snapshot(classes=[jobs(waiting=1)], site_fault=DOWN))
    assert plan.starts == ()
    assert why(plan, "class:small") == [reasons.StaleView("site:topas", 1.0, 120.0, "connection refused")]


def test_an_old_view_of_the_overlay_starts_nothing() -> None:
    plan = plan_of(snapshot(classes=[jobs(waiting=1)], overlay_age_s=500.0))
    assert not plan.acts
    assert why(plan, "all") == [reasons.StaleView("overlay", 500.0, 120.0, "too old")]


def test_a_banned_type_waits_and_says_until_when() -> None:
    fault = Fault(FaultKind.DRONE, "exit 1 after 2 s", NOW - 30)
    banned = Breaker("topas/a100", BreakerState.BANNED, NOW - 30, 3, NOW + 30, fault)
    plan = plan_of(snapshot(classes=[jobs(waiting=3)], breakers=[banned]))
    assert plan.starts == ()
    assert why(plan, "class:small") == [reasons.BackingOff("topas/a100", NOW + 30, "drone", "exit 1 after 2 s")]


def test_after_the_ban_one_drone_is_tried() -> None:
    fault = Fault(FaultKind.DRONE, "exit 1", NOW - 90)
    over = Breaker("topas/a100", BreakerState.BANNED, NOW - 90, 3, NOW - 1, fault)
    plan = plan_of(snapshot(classes=[jobs(waiting=3)], breakers=[over]))
    assert len(plan.starts) == 1
    assert reasons.Probing("topas/a100") in why(plan, "class:small")
    probed = Breaker("topas/a100", BreakerState.PROBING, NOW - 61, 3, NOW - 61, fault)
    trying = drone("kit-ab12-1", DroneState.BOOTING, age_s=60)
    assert plan_of(snapshot(classes=[jobs(waiting=3)], breakers=[probed], drones=[trying])).starts == ()


def test_what_queued_at_a_site_before_its_ban_is_no_probe_and_does_not_keep_it_shut() -> None:
    fault = Fault(FaultKind.DENIED, "token expired", NOW - 90, of_order=True)
    probed = Breaker("topas", BreakerState.PROBING, NOW - 5, 1, NOW - 5, fault)
    long_queued = drone("kit-ab12-1", DroneState.QUEUED, age_s=7200)
    plan = plan_of(snapshot(classes=[jobs(waiting=3)], breakers=[probed], drones=[long_queued]))
    assert len(plan.starts) == 1


def test_a_resumed_drone_takes_what_it_has_room_for_not_what_it_had_when_empty() -> None:
    busy = drone(
        "kit-ab12-1", DroneState.DRAINING, QUAD, leaving=DroneState.DONE, asked_at=NOW - 5, joined_at=NOW - 500, jobs=3
    )
    slot = slot_of(busy, QUAD, state=SlotState.DRAINING, jobs=3, free_gpu_milli=1000, free_cpus=16)
    plan = plan_of(snapshot(classes=[jobs(waiting=3)], types=(QUAD,), drones=[busy], slots=[slot]))
    assert [d.mode for d in plan.drains] == [DrainMode.RESUME]
    assert len(plan.starts) == 1, "two jobs are left for it"


def test_hard_classes_are_placed_before_easy_ones_take_their_drones() -> None:
    easy = jobs(waiting=2, id="a-easy")
    hard = jobs(waiting=1, id="z-hard", vram_mib=35000)
    there = [drone("kit-ab12-1", DroneState.BOOTING, A100)]
    plan = plan_of(snapshot(classes=[easy, hard], types=(A100, V100), drones=there))
    assert started(plan) == [V100.key, V100.key]


# ----------------------------------------------------------------------------- supply that was started for a class


def test_one_job_gets_one_drone_though_older_short_jobs_wait() -> None:
    """The drone on its way counted for the older class, which was not worth a start; one more came at every tick."""
    mine, _, _ = run_keys("short", SMALL.gpu_milli, 1, 500)
    short = jobs(id="short", owner="short", waiting=3, running=1, cpus=1, memory_mib=500, oldest_at=NOW - 500)
    long = jobs(id="long", owner="long", waiting=1, cpus=1, memory_mib=400, walltime_s=3600.0, oldest_at=NOW - 10)
    busy = drone("kit-ab12-1", DroneState.BUSY)
    estimates = Estimates(runs={mine: (60.0,)})
    snap = replace(snapshot(classes=[short, long], drones=[busy]), estimates=estimates)
    first = plan_of(snap)
    assert [s.drone.for_class for s in first.starts] == ["long"]
    for state in (DroneState.SUBMITTED, DroneState.BOOTING, DroneState.IDLE):
        coming = drone("kit-ab12-2", state, for_class="long")
        later = plan_of(replace(snapshot(classes=[short, long], drones=[busy, coming]), estimates=estimates))
        assert later.starts == ()
        assert reasons.DemandCovered(1, int(state is not DroneState.IDLE)) in why(later, "class:long")
    worked = drone("kit-ab12-2", for_class="long", jobs_started=1)
    again = plan_of(replace(snapshot(classes=[short, long], drones=[busy, worked]), estimates=estimates))
    assert [s.drone.for_class for s in again.starts] == ["long"], "what has had another job is for everybody"


def test_a_drone_started_for_a_class_that_no_longer_waits_is_for_the_others() -> None:
    coming = drone("kit-ab12-2", DroneState.BOOTING, for_class="gone")
    assert plan_of(snapshot(classes=[jobs(waiting=1)], drones=[coming])).starts == ()


def test_a_drone_started_for_one_of_two_jobs_leaves_its_room_to_others() -> None:
    coming = drone("kit-ab12-2", DroneState.BOOTING, QUAD, for_class="mine")
    mine = jobs(id="mine", waiting=1, cpus=1, memory_mib=1024)
    other = jobs(id="other", waiting=4, cpus=1, memory_mib=1024, oldest_at=NOW - 9000)
    plan = plan_of(snapshot(classes=[mine, other], drones=[coming], types=[QUAD]))
    assert [(s.drone.for_class, s.reason.covered) for s in plan.starts] == [("other", 3)]  # type: ignore[union-attr]


def test_the_recorded_ticks_of_one_job_and_its_four_drones_make_one_drone_for_it() -> None:
    """Four ticks of a real pool: each started one more drone for the job of class b41ffa48. The three short jobs get
    one too: the drone that seems to run their brother had been killed."""
    made: dict[DroneId, Drone] = {}
    for number in range(1, 5):
        seen = read_snapshot(DATA / f"one-job-four-drones-{number}.json")
        seen = replace(seen, drones=dict(made), next_serial=seen.next_serial + len(made))
        plan = safe_plan(seen).plan
        made |= {s.drone.id: replace(s.drone, state=DroneState.SUBMITTED, submitted_at=seen.now) for s in plan.starts}
    assert sorted(d.for_class for d in made.values()) == ["15f6ebdb", "b41ffa48"]


def test_short_jobs_get_no_more_drones_while_the_first_are_on_their_way() -> None:
    """Ten jobs of a minute are work for two drones; every tick started some more for those that lacked one."""
    mine, _, _ = run_keys(SMALL.owner, SMALL.gpu_milli, SMALL.cpus, SMALL.memory_mib)
    snap = replace(snapshot(classes=[jobs(waiting=10)]), estimates=Estimates(runs={mine: (60.0,)}))
    made = {s.drone.id: replace(s.drone, state=DroneState.SUBMITTED, submitted_at=NOW) for s in plan_of(snap).starts}
    assert len(made) == 2
    assert not plan_of(replace(snap, drones=made, next_serial=60)).starts
