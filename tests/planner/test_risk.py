"""Owners who come back, dear starts and short jobs: what has been learned keeps drones from being started in vain."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from provisioner import model, reasons
from provisioner.estimates import (
    HORIZONS_S,
    Estimates,
    OwnerGrowth,
    StartDelays,
    mean_run_s,
    run_keys,
)
from provisioner.job_filter import JobFilter
from provisioner.model import (
    DrainMode,
    Drone,
    DroneId,
    DroneState,
    JobClass,
    OwnerLoad,
    Plan,
    SlotState,
    Snapshot,
)
from provisioner.planner.risk import (
    DRAIN_LOSS_FACTOR,
    MAX_EXCLUSION_CHARS,
    accepted_loss,
    expected_loss,
    expected_loss_at_rate,
)
from provisioner.reasons import DemandCovered
from tests.planner import scenes
from tests.planner.scenes import (
    A100,
    NOW,
    SMALL,
    drone,
    jobs,
    plan_of,
    slot_of,
    snapshot,
    why,
    with_pool,
    with_site,
)

HOUR_S = 3600.0
CALM = OwnerGrowth(tuple((0,) * 100 for _ in HORIZONS_S))
"""An owner who never takes more."""
BUSY = OwnerGrowth(
    tuple(tuple(range(0, 100 * step, step)) for step in (10, 20, 40, 80, 160, 320, 640, 640, 640))
)
"""Within a quarter of an hour up to one GPU more, within sixteen hours up to 64."""


@given(
    runs=st.lists(st.floats(1.0, 2e5), min_size=1, max_size=20),
    rows=st.lists(st.lists(st.integers(0, 60000), min_size=1, max_size=30), min_size=9, max_size=9),
    head=st.integers(-5000, 60000),
)
def test_work_is_lost_if_and_only_if_places_are_taken(
    runs: list[float], rows: list[list[int]], head: int
) -> None:
    chances = OwnerGrowth(tuple(tuple(sorted(row)) for row in rows)).chances(head)
    assert [chance > 0 for chance in chances] == [max(row) > head for row in rows], "no doubt"
    reached = [
        c for c, since_s in zip(chances, (0.0, *HORIZONS_S), strict=False) if max(runs) > since_s
    ]
    assert (expected_loss(tuple(sorted(runs)), chances) > 0) is any(reached)


@pytest.mark.parametrize(
    ("seen", "watched_s", "expected"), [(0.0, 0.0, 0.0), (0.0, HOUR_S, 0.25), (1.0, HOUR_S, 0.75)]
)
def test_a_growth_that_was_never_seen_counts_as_half_an_observation(
    seen: float, watched_s: float, expected: float
) -> None:
    growth = OwnerGrowth(tuple((int(9000 * seen),) for _ in HORIZONS_S), watched_s)
    assert growth.chances(8000)[HORIZONS_S.index(HOUR_S)] == pytest.approx(expected)
    assert OwnerGrowth(((),) * len(HORIZONS_S), 0.0).chances(8000) == (0.5,) * len(HORIZONS_S)


@pytest.mark.parametrize(("cost", "expected"), [(0.0, 0.0), (1.0, 1800.0), (9.0, 3240.0)])
def test_accepted_loss_costs_as_much_as_the_wait(cost: float, expected: float) -> None:
    runs = (HOUR_S, 3 * HOUR_S)
    lost_s = accepted_loss(cost, HOUR_S, runs) * 2 * HOUR_S
    assert lost_s == pytest.approx(expected)
    assert lost_s * (1.0 + cost) == pytest.approx(cost * HOUR_S)


def test_what_is_lost_by_hand() -> None:
    assert expected_loss((HOUR_S,), (0.0,) * 9) == 0.0
    # One of two is taken within the first quarter of an hour, on average in its middle: 450 s of
    # 3,600 s.
    assert expected_loss((HOUR_S,), (0.5,) * 9) == pytest.approx(1.125 * 0.5 * 450 / (0.5 * HOUR_S))
    assert expected_loss((HOUR_S,), (1.0,) * 9) == math.inf


@pytest.mark.parametrize(("days", "factor"), [(1, 4.0), (2, 4.0)])
def test_the_loss_of_long_jobs_counts_up_to_four_times(days: int, factor: float) -> None:
    """One of ten is taken at once: of those it costs half of the first quarter of an hour."""
    lost_s = factor * 0.1 * 450
    assert expected_loss((days * 24 * HOUR_S,), (0.1,) * 9) == pytest.approx(
        lost_s / (0.9 * days * 24 * HOUR_S)
    )


def test_a_measured_rate_counts_as_it_is() -> None:
    """A hundredth of the jobs of a day is lost, half done on average."""
    assert expected_loss_at_rate((24 * HOUR_S,), 0.01 / (24 * HOUR_S)) == pytest.approx(
        0.005, rel=0.02
    )


def test_at_a_rate_short_jobs_lose_little_and_long_ones_much() -> None:
    once_an_hour = 1 / HOUR_S
    assert expected_loss_at_rate((60.0,), once_an_hour) == pytest.approx(0.0083, rel=0.05)
    assert expected_loss_at_rate((HOUR_S,), once_an_hour) == pytest.approx(math.e - 2)


TOPAS = replace(A100, price=1.0)
HPC = replace(A100, site="horeka", price=2.0)
LIMITS = {"max_drones": 100, "max_pending": 100, "max_starts_per_tick": 100}


def world(
    estimates: Estimates,
    *,
    free: int,
    elsewhere: int = 100,
    safe: bool = True,
    waiting: int = 10,
    **more: object,
) -> Snapshot:
    """Jobs wait; TOpAS has free GPUs and an owner; HoreKa, dearer, takes us at any time unless it is full."""
    classes = [jobs(waiting=waiting, oldest_at=NOW - more.pop("waited_s", 60.0))]
    types = (TOPAS, HPC) if safe else (TOPAS,)
    made = snapshot(
        **{
            "classes": classes,
            "types": types,
            "free": {"a100": elsewhere},
            "limits": LIMITS,
            **more,
        }
    )
    made = with_site(made, free={"a100": free}, free_gpu_milli=1000 * free, owner_runs=OwnerLoad())
    return replace(made, estimates=estimates)


def size_key(owner: str) -> str:
    """The key of the run times of a user's jobs of the size of SMALL."""
    return run_keys(owner, SMALL.gpu_milli, SMALL.cpus, SMALL.memory_mib)[0]


def at(site: str, plan: Plan) -> int:
    return sum(start.drone.site == site for start in plan.starts)


ELSEWHERE = tuple(drone(f"h-{n}", DroneState.BUSY, HPC, started_at=NOW - 900) for n in range(300))
"""Drones at HoreKa: jobs that wait for one of them wait minutes."""
TAKEN = 1 / HOUR_S
"""Preemptions per second of a drone's run at a site that does not report its owner."""


@pytest.mark.parametrize(
    ("estimates", "safe", "count"),
    [
        (Estimates(rises={"topas": CALM}), True, 10),
        (Estimates(rises={"topas": BUSY}), False, 10),
        (Estimates(taken_per_s={"topas": 1.0}), False, 10),
        (Estimates(taken_per_s={"topas": TAKEN}), True, 0),
        (Estimates(taken_per_s={"topas": 1e-9}), True, 10),
    ],
)
def test_all_that_is_free_is_taken_if_the_owner_stays_away_or_there_is_no_safer_place(
    estimates: Estimates, safe: bool, count: int
) -> None:
    assert at("topas", plan_of(world(estimates, free=10, safe=safe))) == count


def test_what_is_held_back_for_an_owner_is_said() -> None:
    full = world(Estimates(taken_per_s={"topas": TAKEN}), free=10, elsewhere=0, drones=ELSEWHERE)
    assert plan_of(full).starts == ()
    assert [type(r) for r in why(plan_of(full), "class:small")] == [reasons.OwnerRisk]


def test_the_last_gpus_before_an_owner_who_comes_back_are_left_to_him_and_the_rest_goes_elsewhere() -> (
    None
):
    plan, roomy = (
        plan_of(world(Estimates(rises={"topas": BUSY}), free=free)) for free in (10, 100)
    )
    assert at("topas", plan) < 10 == len(plan.starts)
    assert at("topas", roomy) > at("topas", plan)


def test_the_longer_jobs_have_waited_the_more_risk_is_taken() -> None:
    mine = size_key(SMALL.owner)
    estimates = Estimates(rises={"topas": BUSY}, runs={mine: (4 * HOUR_S,)})
    soon, late, very_late = (
        at("topas", plan_of(world(estimates, free=30, waited_s=waited_s, waiting=30)))
        for waited_s in (0.0, 12 * HOUR_S, 120 * HOUR_S)
    )
    assert soon < late < very_late


def staffed(estimates: Estimates, *, waiting: int = 1, free: int = 0, **more: object) -> Snapshot:
    """Twenty busy drones at TOpAS, the first the oldest, and jobs that wait."""
    made = world(estimates, free=free, waiting=waiting, **more)
    at_work = {"age_s": 500.0, "requested_at": NOW - 2000, "joined_at": NOW - 1800}
    made_drones = (
        drone(f"d-{n}", DroneState.BUSY, TOPAS, **at_work, started_at=NOW - 1900 + n)
        for n in range(20)
    )
    drones = {
        each.id: replace(each, submitted_at=0.0, remote_id="", jobs_started=0)
        for each in made_drones
    }
    slots = tuple(model.Slot(each, SlotState.BUSY, NOW, jobs=1, jobs_started=1) for each in drones)
    there = {each: model.RemoteDrone(each, model.RemoteState.RUNNING) for each in drones}
    return with_site(with_pool(replace(made, drones=drones), slots=slots), drones=there)


def leaves(plan: Plan) -> list[DroneId]:
    assert all(
        drain.mode is DrainMode.PEACEFUL and drain.drone.leaving is DroneState.DONE
        for drain in plan.drains
    )
    return [drain.drone.id for drain in plan.drains]


LONG = size_key(SMALL.owner)
NEAR = Estimates(rises={"topas": BUSY}, runs={LONG: (4 * HOUR_S,)})


def test_drones_before_an_owner_who_is_near_end_their_job_and_take_no_more_the_newest_first() -> (
    None
):
    plan = plan_of(staffed(NEAR))
    assert leaves(plan) and all(type(drain.reason) is reasons.DrainAtRisk for drain in plan.drains)
    assert sorted(leaves(plan), key=lambda each: int(each[2:])) == [
        f"d-{n}" for n in range(20 - len(leaves(plan)), 20)
    ]
    assert len(leaves(plan)) < 20, "the oldest have the others before them"
    first = plan.drains[0].reason
    assert (
        isinstance(first, reasons.DrainAtRisk) and first.lost > DRAIN_LOSS_FACTOR * first.tolerated
    )


def test_where_the_owner_is_far_or_nothing_waits_or_there_is_no_safer_place_all_stay() -> None:
    assert leaves(plan_of(staffed(replace(NEAR, rises={"topas": CALM})))) == []
    assert leaves(plan_of(staffed(NEAR, waiting=0))) == []
    assert leaves(plan_of(staffed(NEAR, safe=False))) == []
    assert leaves(plan_of(staffed(NEAR, free=64))) == [], "he would take what is free before"


def test_the_longer_jobs_have_waited_the_fewer_leave_and_a_preempted_job_began_anew_to_wait() -> (
    None
):
    fresh, old = (
        len(leaves(plan_of(staffed(NEAR, waited_s=waited_s)))) for waited_s in (0.0, 6 * HOUR_S)
    )
    assert old < fresh
    made = staffed(NEAR, waited_s=6 * HOUR_S)
    preempted = jobs(waiting=1, oldest_at=NOW - 6 * HOUR_S, idle_at=NOW)
    assert len(leaves(plan_of(with_pool(made, classes=(preempted,))))) == fresh


def newest_leaves(made: Snapshot) -> Snapshot:
    """Drone d-19 of :func:`staffed` drains, and would have room."""
    drone = replace(
        made.drones[DroneId("d-19")],
        state=DroneState.DRAINING,
        leaving=DroneState.DONE,
        asked_at=NOW - 60,
    )
    view = made.overlay.view
    assert view is not None
    *others, last = view.slots
    room = replace(
        last, state=SlotState.DRAINING, free_gpu_milli=1000, free_cpus=8, free_memory_mib=99999
    )
    return with_pool(replace(made, drones={**made.drones, drone.id: drone}), slots=(*others, room))


def test_one_that_leaves_for_this_is_taken_back_only_where_it_stands_safely_again() -> None:
    for estimates, expected in ((NEAR, []), (replace(NEAR, rises={"topas": CALM}), ["d-19"])):
        plan = plan_of(newest_leaves(staffed(estimates, elsewhere=0)))
        assert [
            drain.drone.id for drain in plan.drains if drain.mode is DrainMode.RESUME
        ] == expected


def crippled(made: Snapshot, how: str) -> Snapshot:
    """The safer site cannot be counted on, for one reason or another."""
    match how:
        case "stale":
            return with_site(made, "horeka", taken_at=NOW - 9999)
        case "downtime":
            return with_site(made, "horeka", downtime_at=NOW + 60)
        case "full by its limit":
            limits = replace(made.policy.sites["horeka"], max_drones=0)
            return replace(
                made, policy=replace(made.policy, sites={**made.policy.sites, "horeka": limits})
            )
        case "blocked":
            stuck = drone("d-99", DroneState.QUEUED, HPC)
            remote = replace(
                scenes.remote_of(stuck), reason="QOSMaxJobs", blocked=model.FaultKind.QUOTA
            )
            made = replace(made, drones={**made.drones, stuck.id: stuck})
            return with_site(made, "horeka", drones={stuck.id: remote})
        case scope:
            fault = replace(scenes.DOWN, of_order=True)
            breaker = model.Breaker(
                model.Scope.parse(scope), model.BreakerState.BANNED, NOW - 60, 3, NOW + 600, fault
            )
            return replace(made, breakers={breaker.scope: breaker})


HOW = ("stale", "downtime", "full by its limit", "blocked", HPC.key, "horeka")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("free", [0, 3])
def test_none_is_told_to_take_no_more_where_others_are_started_for_the_same_jobs(
    how: str, free: int
) -> None:
    plan = plan_of(crippled(staffed(NEAR, waiting=10, free=free), how))
    assert at("topas", plan) == free or not free
    assert not any(isinstance(drain.reason, reasons.DrainAtRisk) for drain in plan.drains), (
        "there is no safer place"
    )


CLOUD = {"topas/a100": StartDelays(60.0, 240.0), "horeka/a100": StartDelays(60.0, 40.0)}
"""A drone of the first holds its GPU 200 s longer before its first job."""


def test_a_dear_start_is_made_at_once_where_no_cheaper_one_has_room() -> None:
    for elsewhere, expected in ((0, TOPAS.key), (5, HPC.key)):
        made = world(Estimates(delays=CLOUD), free=100, elsewhere=elsewhere, waiting=1)
        level = tuple(replace(kind, price=1.0) for kind in made.types)
        assert [start.drone.type for start in plan_of(replace(made, types=level)).starts] == [
            expected
        ]


def test_jobs_of_seconds_are_served_one_after_the_other() -> None:
    mine = size_key(SMALL.owner)
    made = world(Estimates(runs={mine: (30.0,)}), free=100, waiting=40, safe=False)
    plan = plan_of(made)
    # A start costs 110 GPU-s: 40 * sqrt(1.0 * 30 / (2 * 110)) drones cost least.
    assert len(plan.starts) == 15
    assert why(plan, "class:small")[0] == reasons.ExistingDronesSuffice(30.0, 0)


def test_a_job_that_has_waited_for_long_gets_its_drone_however_short_it_is() -> None:
    mine = size_key(SMALL.owner)
    estimates = Estimates(runs={mine: (1.0,)})
    busy = jobs(waiting=1, running=9, oldest_at=NOW - 60.0)
    ours = drone("kit-ab12-1", DroneState.BUSY)

    def of(waited_s: float, at: Drone = ours) -> int:
        job = replace(busy, oldest_at=NOW - waited_s)
        made = snapshot(classes=[job], drones=[at], slots=[slot_of(ours, jobs=9)])
        return len(plan_of(replace(made, estimates=estimates)).starts)

    assert (of(60.0), of(1000.0)) == (0, 1)
    draining = replace(
        ours, state=DroneState.DRAINING, leaving=DroneState.CANCELLED, asked_at=NOW - 60.0
    )
    assert of(60.0, draining) == 1, "a drone that leaves takes no further job"


def test_jobs_that_seem_to_run_on_drones_that_are_gone_are_no_supply() -> None:
    """A drone was killed; the queue counts its jobs as running until their lease ends, and new ones waited for them."""
    mine = size_key(SMALL.owner)
    estimates = Estimates(runs={mine: (60.0,)})
    job = jobs(waiting=3, running=3, oldest_at=NOW - 30.0)
    dead = drone("kit-ab12-1", DroneState.BUSY)
    for slots in ([], [slot_of(dead, jobs=3)]):
        made = replace(snapshot(classes=[job], slots=slots), estimates=estimates)
        assert len(plan_of(made).starts) == 2, "3 * sqrt(60 / (2 * 220)), as without running jobs"
        assert why(plan_of(made), "class:small")[0] == reasons.ExistingDronesSuffice(60.0, 0)


def test_only_jobs_that_may_be_of_the_class_serve_it() -> None:
    mine, _, _ = run_keys("anna", SMALL.gpu_milli, SMALL.cpus, SMALL.memory_mib)
    anna, bert = (
        jobs(id=name, owner=name, waiting=2, running=1, oldest_at=NOW - 30.0)
        for name in ("anna", "bert")
    )
    ours = drone("kit-ab12-1", DroneState.BUSY)

    def of(**told: object) -> int:
        classes, slots = [anna, replace(bert, waiting=0, fresh=1)], [slot_of(ours, jobs=1, **told)]
        made = snapshot(classes=classes, drones=[ours], slots=slots)
        return len(plan_of(replace(made, estimates=Estimates(runs={mine: (60.0,)}))).starts)

    shape = {"job_gpu_milli": 1000, "job_cpus": 8, "job_memory_mib": 20480}
    assert of(owner="anna", **shape) == of(owner="unix-name", **shape) == of() == 0
    assert of(owner="bert", **shape) == of(owner="anna", **(shape | {"job_cpus": 1})) == 1


def test_run_times_of_the_user_and_size_count_first_then_what_is_declared_then_the_users_then_all() -> (
    None
):
    mine, user, everybody = run_keys("anna", 1000, 8, 1024)
    asked = ("anna", 1000, 8, 1024)
    everything = {mine: (10.0, 100.0), user: (20.0,), everybody: (30.0,)}
    assert Estimates(runs=everything).runs_of(*asked, 50.0) == (10.0, 50.0)
    assert Estimates(runs={user: (20.0,), everybody: (30.0,)}).runs_of(*asked, 50.0) == (50.0,)
    assert Estimates(runs={user: (20.0,), everybody: (30.0,)}).runs_of(*asked, 0.0) == (20.0,)
    assert Estimates(runs={everybody: (30.0,)}).runs_of(*asked, 0.0) == (30.0,)


def test_one_job_of_two_weeks_is_no_forecast() -> None:
    assert mean_run_s((60.0, 60.0, 60.0, 14 * 86400.0)) == 300.0


# --------------------------------------------------------------------- Whose jobs a drone before an
# owner does not take


def of(owner: str, *, waiting: int = 3, waited_s: float = 60.0) -> JobClass:
    return replace(
        jobs(waiting=waiting, oldest_at=NOW - waited_s), id=owner or "nobody", owner=owner
    )


def world_excluded(
    *classes: JobClass, calm: bool = False, free: int = 20, elsewhere: int = 0, **more: object
) -> Snapshot:
    """A world in which HoreKa is full. Jobs of "long" run for a day, all others for ten minutes."""
    runs = {size_key("long"): (24 * HOUR_S,), "": (600.0,)}
    estimates = Estimates(rises={"topas": CALM if calm else BUSY}, runs=runs)
    return world(
        estimates, free=free, elsewhere=elsewhere, classes=classes, **{"drones": ELSEWHERE, **more}
    )


def avoided(made: Snapshot, owner: str) -> set[str]:
    """By all drones that are started for a user's jobs."""
    return {
        ",".join(start.drone.job_filter.excluded_users)
        for start in plan_of(made).starts
        if start.drone.for_class == owner
    }


@pytest.mark.parametrize(
    ("other", "given", "excluded"),
    [
        (of("long"), {}, "long"),
        (of("long"), {"calm": True}, ""),
        (of("long", waiting=0), {}, ""),
        (of("other"), {}, ""),
        # Without a safer place to wait for, nobody is kept out, nor after days beside a place that
        # seems to be free.
        (of("long"), {"safe": False}, ""),
        (of("long"), {"free": 62}, "long"),
        (of("long", waited_s=30 * 24 * HOUR_S), {"free": 62}, "long"),
        (of("long", waited_s=30 * 24 * HOUR_S), {"free": 62, "elsewhere": 100, "drones": ()}, ""),
    ],
)
def test_a_drone_for_short_jobs_takes_none_of_a_user_who_would_lose_too_much_there(
    other: JobClass, given: dict[str, object], excluded: str
) -> None:
    assert avoided(world_excluded(of("short"), other, **given), "short") == {excluded}


def long_runs(*owners: str) -> set[str]:
    """Users whom a drone for short jobs excludes where jobs of all these run for a day."""
    others = [replace(of("long"), id=f"{n:03}", owner=owner) for n, owner in enumerate(owners)]
    made = world_excluded(of("short"), *others)
    runs = {size_key(owner): (24 * HOUR_S,) for owner in owners}
    return avoided(
        replace(made, estimates=replace(made.estimates, runs={**made.estimates.runs, **runs})),
        "short",
    )


def test_jobs_wait_for_no_safe_place_whose_line_is_longer_than_the_loss() -> None:
    """HoreKa is full. With three hundred drones there the jobs of a day wait for one; with one they would for weeks."""
    few = avoided(
        world_excluded(of("short"), of("long", waiting=18), drones=ELSEWHERE[:1]), "short"
    )
    assert (few, avoided(world_excluded(of("short"), of("long")), "short")) == ({""}, {"long"})


def test_a_limit_that_passes_with_the_next_tick_makes_no_line() -> None:
    """HoreKa has room for all, but one start for each tick: the others wait for it and do not risk the day's work."""
    limits = LIMITS | {"max_starts_per_tick": 1}
    made = world_excluded(of("long", waiting=30), free=20, elsewhere=100, drones=(), limits=limits)
    days = replace(made.estimates, runs={size_key("long"): (24 * HOUR_S,)})
    assert at("topas", plan_of(replace(made, estimates=days))) == 0


def test_names_that_no_expression_could_hold_are_left_out_and_the_list_is_bounded() -> None:
    assert long_runs('a"b', "x,y", "ü", "a b", "", "long") == {"long"}
    many = [f"{n:03}-{'x' * 40}" for n in range(150)]
    (found,) = long_runs(*many)
    assert (
        MAX_EXCLUSION_CHARS - 50 < len(found) <= MAX_EXCLUSION_CHARS
        and found.split(",")[0] == many[0]
    )


def test_a_drone_is_no_supply_for_excluded_users() -> None:
    coming = tuple(drone(f"d-{n}", DroneState.BOOTING) for n in range(3))
    plan = plan_of(world_excluded(of("other"), drones=coming))
    assert not plan.starts
    assert why(plan, "class:other") == [DemandCovered(3, 3)]
    exclusions = tuple(replace(each, job_filter=JobFilter(("long", "other"))) for each in coming)
    plan = plan_of(world_excluded(of("other"), drones=exclusions))
    assert len(plan.starts) == 3, "they need drones of their own"
    plan = plan_of(world_excluded(of("short"), drones=exclusions))
    assert not plan.starts, "and others do not"


def with_nowhere_else(waited_s: float = 60.0, **more: object) -> Snapshot:
    """HoreKa has five places, all of which this plan fills; jobs of "short" fit TOpAS alone, those of "fill" HoreKa."""
    no = model.UnmetRequirement("cpus", "8", "4")
    first = replace(of("short", waited_s=300.0), refuses={HPC.key: no})
    filling = replace(of("fill", waiting=5, waited_s=200.0), refuses={TOPAS.key: no})
    last = replace(first, id="last", oldest_at=NOW - 100.0)
    return world_excluded(
        first,
        filling,
        last,
        of("long", waiting=30, waited_s=waited_s),
        **{"elsewhere": 5, "drones": (), **more},
    )


def test_users_without_a_safer_place_after_all_starts_of_the_plan_are_not_excluded() -> None:
    """Drones that started before the plan filled the safer place, and those that started after it, take their jobs."""
    plan = plan_of(with_nowhere_else())
    assert at("horeka", plan) == 5
    found = {
        (s.drone.for_class, s.drone.job_filter.excluded_users)
        for s in plan.starts
        if s.drone.site == "topas"
    }
    assert found == {("short", ()), ("last", ()), ("long", ())}
    roomy = plan_of(with_nowhere_else(elsewhere=50))
    told = {
        s.drone.job_filter.excluded_users
        for s in roomy.starts
        if s.drone.for_class in ("short", "last")
    }
    assert told == {("long",)}, "with room left there they wait for it"
