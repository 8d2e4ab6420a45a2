"""The checker finds what a planner gone wrong would do. It is given bad plans, made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner import reasons
from provisioner.model import (
    Breaker,
    BreakerState,
    Drain,
    DrainMode,
    Drone,
    DroneId,
    DroneState,
    DroneType,
    Group,
    Headroom,
    JobClass,
    OwnerDemand,
    Plan,
    Policy,
    PolledOverlay,
    PolledSite,
    RemoteDrone,
    RemoteState,
    Reserve,
    Snapshot,
    Start,
    StateChange,
    Stop,
    StopOrphan,
    TypeKey,
    class_scope,
)
from provisioner.planner import decide
from provisioner.planner.validation import validate_plan
from provisioner.reasons import Reason
from tests.planner.scenes import (
    A100,
    DOWN,
    NOW,
    QUAD,
    V100,
    drone,
    jobs,
    node,
    plan_for,
    plan_of,
    slot_of,
    snapshot,
    with_site,
)

S = DroneState
WAITS = jobs(waiting=3)
CPU = DroneType("topas", "cpu", 0, 8, 20480, 0)


BANNED = Breaker("topas", BreakerState.BANNED, NOW, 3, NOW + 9)
OPERATOR = reasons.OperatorRequested("ada", "drain")
IDLE, BUSY = drone("kit-ab12-1", S.IDLE), drone("kit-ab12-2", S.BUSY)


def start(serial: int = 42, kind: DroneType = A100, reason: Reason | None = None, **more: object) -> Start:
    made = drone(f"kit-ab12-{serial}", S.REQUESTED, kind, age_s=0, for_class="small")
    return Start(replace(made, **more), reason or reasons.JobsWaiting("small", 3, 0, 1))


def stop(of: Drone, reason: Reason) -> Stop:
    return Stop(replace(of, state=S.STOPPING), of.state, reason)


def drain(of: Drone, reason: Reason, mode: DrainMode = DrainMode.PEACEFUL) -> Drain:
    return Drain(replace(of, state=S.DRAINING), of.state, mode, reason)


def orphan(name: str = "kit-ab12-7", site: str = "topas") -> StopOrphan:
    return StopOrphan(site, DroneId(name), "r", reasons.Orphan())


def plan(**actions: object) -> Plan:
    return Plan(7, NOW, **actions)


def texts(snap: Snapshot, made: Plan) -> list[str]:
    return [breach.text for breach in validate_plan(snap, made)]


@pytest.mark.parametrize(
    ("fault", "snap"),
    [
        ("on record already", snapshot(classes=[WAITS], drones=[drone("kit-ab12-42")])),
        ("starts at once", snapshot(classes=[WAITS], limits={"max_starts_per_tick": 0})),
        ("drones in all", snapshot(classes=[WAITS], policy=Policy(max_drones=0))),
        ("without a fresh view of it", snapshot(classes=[WAITS], site_fault=DOWN)),
        ("view of the overlay", snapshot(classes=[WAITS], overlay_fault=DOWN)),
        ("of which nothing waits", snapshot()),
        ("is banned until", snapshot(classes=[WAITS], breakers=[BANNED])),
    ],
)
def test_a_bad_start_is_found_out(fault: str, snap: Snapshot) -> None:
    assert any(fault in text for text in texts(snap, plan(starts=(start(),))))


def test_a_drone_that_is_not_on_record_is_not_asked_to_leave() -> None:
    [text] = texts(snapshot(), plan(stops=(stop(IDLE, OPERATOR),)))
    assert text == "kit-ab12-1 is asked to leave but is not on record"


def test_a_limit_names_the_starts_beyond_it_and_no_others() -> None:
    snap = snapshot(classes=[WAITS], limits={"max_drones": 2})
    plan = Plan(snap.tick, snap.now, starts=(start(42), start(43), start(44)))
    (breach,) = validate_plan(snap, plan)
    assert breach.actions == (plan.starts[2],)


def test_gpus_above_a_lowered_limit_are_no_fault_of_a_drone_without_a_gpu() -> None:
    """`max_gpus` was lowered below what runs; the CPU drone was refused, and with it the drains of the idle ones."""
    idle = [drone(f"kit-ab12-{i}", S.IDLE, age_s=5000) for i in range(4)]
    cpu_job = JobClass("cpu", 0, 1, 1024, waiting=1, oldest_at=NOW - 100)
    snap = snapshot(drones=idle, types=[A100, CPU], classes=[cpu_job], limits={"max_gpu_milli": 2000})
    plan = plan_of(snap)
    assert [s.drone.type for s in plan.starts] == [CPU.key]
    assert len(plan.drains) == 4
    for_gpus = replace(snap, overlay=snapshot(classes=[WAITS]).overlay)
    (breach,) = validate_plan(for_gpus, Plan(snap.tick, snap.now, starts=(start(),)))
    assert breach.text == "5.0 GPUs at topas, 2.0 allowed"


def stray_at(*sites: str) -> Snapshot:
    """A drone without a record in the listing of each site, where jobs wait."""
    snap = snapshot(classes=[WAITS], types=[A100, QUAD], limits={"max_gpu_milli": 4500})
    for site in sites:
        stray = RemoteDrone(DroneId("kit-ab12-7"), RemoteState.RUNNING, "r")
        snap = with_site(snap, site, drones={stray.drone_id: stray})
    return snap


def test_the_judge_counts_strays_with_the_gpus_of_the_largest_type() -> None:
    plan = Plan(7, NOW, starts=(start(kind=QUAD),))
    assert validate_plan(stray_at(), plan) == ()
    (breach,) = validate_plan(stray_at("horeka"), plan)
    assert breach.text == "8.0 GPUs at horeka, 4.5 allowed"
    one = replace(stray_at("topas"), policy=replace(snapshot().policy, max_drones=1))
    assert "2 drones in all, 1 allowed" in map(str, validate_plan(one, Plan(7, NOW, starts=(start(),))))


def test_strays_count_with_the_gpus_of_the_largest_type_against_max_gpus() -> None:
    many = replace(stray_at("horeka"), overlay=snapshot(classes=[jobs(waiting=3, gpu_milli=4000)]).overlay)
    assert plan_of(many).starts == ()
    none = replace(stray_at(), overlay=many.overlay)
    assert len(plan_of(none).starts) == 1


def test_a_stray_in_two_listings_is_stopped_at_both_sites() -> None:
    snap = stray_at("topas", "horeka")
    assert sorted(o.site for o in plan_of(snap).orphans) == ["horeka", "topas"]
    twice = Plan(7, NOW, orphans=(*plan_of(snap).orphans, plan_of(snap).orphans[0]))
    (breach,) = validate_plan(snap, twice)
    assert breach.actions == (twice.orphans[0],)


def test_a_slot_that_says_idle_and_names_jobs_is_not_asked_to_leave() -> None:
    odd = drone("kit-ab12-1", S.IDLE, age_s=50_000)
    snap = snapshot(drones=[odd], slots=[replace(slot_of(odd), jobs=2)])
    assert not plan_of(snap).acts


def test_an_empty_plan_is_fine() -> None:
    assert validate_plan(snapshot(), Plan(7, NOW)) == ()


counts = st.integers(0, 12)
live = st.sampled_from([s for s in S if not s.ended])


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    """Snapshots of all kinds, agreeing with themselves or not."""
    types = draw(st.lists(st.sampled_from([A100, V100, QUAD]), max_size=3, unique_by=lambda t: t.key))
    drones = []
    for number in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from([A100, V100, QUAD]))
        state = draw(live)
        leaving = S.DONE if state in (S.DRAINING, S.STOPPING) else None
        missing = draw(st.sampled_from([0.0, NOW - 5, NOW - 500]))
        made = drone(f"kit-ab12-{number}", state, kind, draw(st.floats(0, 1e5)), leaving=leaving, missing_at=missing)
        drones.append(made)
    classes = [
        jobs(
            waiting=draw(counts),
            id=f"c{n}",
            fresh=draw(counts),
            gpu_milli=draw(st.sampled_from([0, 1, 200, 500, 1000, 2000, 6000, 10**12])),
            cpus=draw(st.sampled_from([0, 1, 8, 64])),
            memory_mib=draw(st.sampled_from([0, 1024, 20480, 10**7])),
            vram_mib=draw(st.sampled_from([0, 35000, 90000])),
            walltime_s=draw(st.sampled_from([0.0, 60.0, 1e6])),
            group=draw(st.sampled_from(["", "one", "one.two", "Three"])),
        )
        for n in range(draw(st.integers(0, 4)))
    ]
    headroom = draw(
        st.lists(
            st.builds(
                Headroom,
                st.just("warm"),
                gpu_milli=st.sampled_from([0, 500, 1000, 4000]),
                count=counts,
                vram_mib=st.sampled_from([0, 35000]),
            ),
            max_size=1,
        )
    )
    groups = [
        Group(
            name,
            draw(st.sampled_from([None, 0, 1500, 8000])),
            draw(st.sampled_from([0, 1000, 9000])),
            draw(st.booleans()),
            draw(st.floats(0, 1e6)),
        )
        for name in draw(st.lists(st.sampled_from(["one", "one.two", "three"]), unique=True))
    ]
    made = snapshot(
        classes=classes,
        drones=drones,
        types=types or (A100,),
        slots=[slot_of(d) for d in drones if draw(st.booleans())],
        remotes=None if draw(st.booleans()) else [],
        free=draw(st.sampled_from([None, {}, {"a100": 2, "v100": 0, "quad": 1}])),
        policy=Policy(
            max_drones=draw(counts), max_gpu_milli=draw(st.sampled_from([None, 0, 3500])), headroom=tuple(headroom)
        ),
        limits={
            "max_drones": draw(counts),
            "max_pending": draw(counts),
            "max_starts_per_tick": draw(counts),
            "enabled": draw(st.booleans()),
            "queue_when_full": draw(st.booleans()),
        },
        site_fault=draw(st.sampled_from([None, DOWN])),
        overlay_fault=draw(st.sampled_from([None, DOWN])),
        overlay_age_s=draw(st.sampled_from([0.0, 1000.0])),
        view=draw(st.booleans()),
    )
    if made.overlay.view is None:
        return made
    return replace(made, overlay=replace(made.overlay, view=replace(made.overlay.view, groups=tuple(groups))))


@settings(max_examples=300, deadline=None)
@given(worlds())
def test_the_planner_never_makes_a_plan_that_the_checker_faults(snap: Snapshot) -> None:
    plan = decide(snap)
    assert validate_plan(snap, plan) == ()
    assert decide(snap) == plan


def test_story_with_all_parts_passes() -> None:
    assert plan_for(classes=[WAITS], drones=[BUSY]).acts


# ------------------------------------------------------------------------------------------------------- identities

ENDED = StateChange(replace(IDLE, state=S.DONE), S.IDLE, reasons.SeenAtSite("ended"))


def test_of_two_orders_for_a_drone_the_operators_is_kept_else_the_first() -> None:
    ours, theirs = stop(IDLE, reasons.Unneeded("idle")), drain(IDLE, OPERATOR)
    (breach,) = validate_plan(snapshot(drones=[IDLE]), plan(stops=(ours,), drains=(theirs,)))
    assert (breach.text, breach.actions) == ("kit-ab12-1 is asked for 2 things at once", (ours,))
    thrice = plan(stops=tuple(stop(IDLE, reasons.Unneeded(word)) for word in ("idle", "busy", "booting")))
    (breach,) = validate_plan(snapshot(drones=[IDLE]), thrice)
    assert breach.actions == thrice.stops[1:]


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (start(42), ""),
        (start(41), "kit-ab12-41 may have been used before: serials from 42 on are free"),
        (start(43, id=DroneId("kit-ab12-x")), "kit-ab12-x may have been used before: serials from 42 on are free"),
        (start(42, state=S.SUBMITTED), "kit-ab12-42 starts its life as submitted"),
    ],
)
def test_a_start_has_an_id_that_was_never_used_and_begins_as_requested(made: Start, text: str) -> None:
    assert texts(snapshot(classes=[WAITS]), plan(starts=(made,))) == ([text] if text else [])


def test_a_drone_that_has_ended_in_this_tick_is_asked_nothing_but_may_be_stopped_as_a_stray() -> None:
    leaves = stop(IDLE, reasons.Unneeded("idle"))
    (breach,) = validate_plan(snapshot(drones=[IDLE]), plan(stops=(leaves,), moves=(ENDED,)))
    assert (breach.text, breach.actions) == ("kit-ab12-1 has ended and is asked to leave", (leaves,))
    assert texts(snapshot(drones=[IDLE]), plan(orphans=(orphan(IDLE.id),), moves=(ENDED,))) == []
    alive = StateChange(replace(IDLE, site_reason="x"), S.IDLE, reasons.SeenAtSite("running"))
    stray = plan(orphans=(orphan(IDLE.id),), moves=(alive,))
    assert texts(snapshot(drones=[IDLE]), stray) == ["kit-ab12-1 is stopped as a stray but is on record"]


# ------------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("there", "limits", "text"),
    [
        ([S.IDLE, S.BUSY], {"max_drones": 3}, ""),
        ([S.IDLE, S.BUSY], {"max_drones": 2}, "3 drones at topas, 2 allowed"),
        ([S.IDLE, S.BUSY], {"max_gpu_milli": 3000}, ""),
        ([S.IDLE, S.BUSY], {"max_gpu_milli": 2999}, "3.0 GPUs at topas, 2.999 allowed"),
        ([S.REQUESTED, S.SUBMITTED, S.QUEUED, S.BOOTING, S.IDLE, S.JOINED], {"max_pending": 5}, ""),
        ([S.REQUESTED], {"max_pending": 1}, "2 drones on their way at topas, 1 allowed"),
        ([S.SUBMITTED], {"max_pending": 1}, "2 drones on their way at topas, 1 allowed"),
        ([S.QUEUED], {"max_pending": 1}, "2 drones on their way at topas, 1 allowed"),
        ([S.BOOTING], {"max_pending": 1}, "2 drones on their way at topas, 1 allowed"),
        ([S.IDLE], {"max_starts_per_tick": 1}, ""),
    ],
)
def test_limits_of_a_site_count_what_lives_there(there: list[S], limits: Mapping[str, object], text: str) -> None:
    drones = [drone(f"kit-ab12-{i}", state) for i, state in enumerate(there)]
    snap = snapshot(classes=[WAITS], drones=drones, limits=limits)
    assert texts(snap, plan(starts=(start(),))) == ([text] if text else [])


def test_what_ended_in_this_tick_counts_no_more_and_a_listed_end_is_no_stray() -> None:
    full = snapshot(classes=[WAITS], drones=[IDLE], remotes=[], limits={"max_drones": 1})
    assert texts(full, plan(starts=(start(),))) == ["2 drones at topas, 1 allowed"]
    assert texts(full, plan(starts=(start(),), moves=(ENDED,))) == []
    for state, found in ((RemoteState.RUNNING, ["2 drones at topas, 1 allowed"]), (RemoteState.ENDED, [])):
        stray = RemoteDrone(DroneId("kit-ab12-7"), state, "r")
        snap = snapshot(classes=[WAITS], remotes=[stray], limits={"max_drones": 1})
        assert texts(snap, plan(starts=(start(),))) == found


@pytest.mark.parametrize(
    ("allowed", "there", "named"), [(None, 9, []), (2, 2, [42, 43]), (3, 2, [43]), (4, 2, []), (0, 1, [42, 43])]
)
def test_a_limit_of_a_type_names_the_starts_beyond_it(allowed: int | None, there: int, named: list[int]) -> None:
    kind = replace(A100, max_drones=allowed)
    drones = [drone(f"kit-ab12-{i}", S.IDLE) for i in range(there)]
    found = validate_plan(
        snapshot(classes=[WAITS], types=[kind, V100], drones=drones, limits={"max_drones": 99}),
        plan(starts=(start(42), start(43), start(44, V100))),
    )
    assert [int(a.drone.id[-2:]) for b in found for a in b.actions if isinstance(a, Start)] == named


def test_a_limit_on_gpus_names_the_starts_beyond_it_and_none_without_a_gpu() -> None:
    snap = snapshot(classes=[WAITS], types=[A100, CPU], policy=Policy(max_gpu_milli=1000))
    made = plan(starts=(start(42), start(43, CPU), start(44)))
    (breach,) = [b for b in validate_plan(snap, made) if "GPUs" in b.text]
    assert (breach.text, breach.actions) == ("2.0 GPUs in all, 1.0 allowed", (made.starts[2],))


def test_a_site_that_is_not_enabled_is_told_and_the_others_are_judged_all_the_same() -> None:
    snap = snapshot(classes=[WAITS], types=[A100, QUAD])
    off = replace(snap.policy.sites["horeka"], enabled=False)
    full = replace(snap.policy.sites["topas"], max_drones=0)
    snap = replace(snap, policy=replace(snap.policy, sites={"horeka": off, "topas": full}))
    made = plan(starts=(start(42, QUAD), start(43)))
    assert texts(snap, made) == ["1 starts at horeka, which is not enabled", "1 drones at topas, 0 allowed"]


# ---------------------------------------------------------------------------------------------------------- blindness


@pytest.mark.parametrize(("age_s", "blind"), [(120.0, False), (120.5, True)])
def test_views_are_believed_up_to_their_age_limit_and_operators_always(age_s: float, blind: bool) -> None:
    for snap, text in (
        (snapshot(drones=[IDLE], site_age_s=age_s), "1 actions at topas without a fresh view of it"),
        (snapshot(drones=[IDLE], overlay_age_s=age_s), "0 starts and 1 drains without a fresh view of the overlay"),
    ):
        snap = replace(snap, policy=replace(snap.policy, overlay_max_age_s=120.0))
        assert texts(snap, plan(drains=(drain(IDLE, reasons.Unneeded("idle")),))) == ([text] if blind else [])
    old = snapshot(drones=[IDLE], site_age_s=age_s)
    assert texts(old, plan(stops=(stop(IDLE, OPERATOR),))) == []
    assert bool(texts(old, plan(orphans=(orphan(),)))) is blind


def test_nothing_is_asked_of_a_site_that_was_never_seen() -> None:
    snap = snapshot(drones=[IDLE])
    never = replace(snap, sites={"topas": PolledSite("topas", None)})
    leaves = plan(stops=(stop(IDLE, reasons.Unneeded("idle")),), orphans=(orphan(),))
    for blind in (never, replace(snap, sites={}), replace(snap, policy=replace(snap.policy, sites={}))):
        (breach,) = validate_plan(blind, leaves)
        assert breach.text == "2 actions at topas, which was never seen"
        assert breach.actions == (*leaves.stops, *leaves.orphans)


@pytest.mark.parametrize("scope", ["topas", A100.key, class_scope(A100.key, "small")])
@pytest.mark.parametrize(("state", "banned"), [(BreakerState.BANNED, True), (BreakerState.PROBING, False)])
def test_what_this_plan_bans_is_not_started(scope: str, state: BreakerState, banned: bool) -> None:
    breaker = Breaker(scope, state, NOW, 3, NOW + 60)
    made = plan(starts=(start(),), breakers=(breaker,))
    text = f"kit-ab12-42 is started although {scope} is banned until {NOW + 60:.0f}"
    assert texts(snapshot(classes=[WAITS], breakers=[Breaker(scope)]), made) == ([text] if banned else [])


# ------------------------------------------------------------------------------------------------------------- cruelty


@pytest.mark.parametrize(
    ("action", "kept"),
    [
        (stop(BUSY, reasons.Unneeded("busy")), False),
        (stop(BUSY, OPERATOR), True),
        (stop(BUSY, reasons.TypeRemoved("topas/a100")), False),
        (drain(BUSY, reasons.TypeRemoved("topas/a100")), True),
        (drain(BUSY, reasons.Unneeded("busy")), False),
        (drain(BUSY, reasons.Unneeded("busy"), DrainMode.RESUME), True),
        (drain(BUSY, reasons.DrainRepeated(90.0)), False),
    ],
)
def test_a_drone_with_a_job_leaves_on_few_grounds(action: Stop | Drain, kept: bool) -> None:
    made = plan(stops=(action,)) if isinstance(action, Stop) else plan(drains=(action,))
    found = [breach for breach in validate_plan(snapshot(drones=[BUSY]), made) if "has 1 jobs" in breach.text]
    assert [breach.actions for breach in found] == ([] if kept else [(action,)])


def test_a_drain_is_repeated_only_of_a_drone_that_drains_in_that_mode() -> None:
    drains = replace(BUSY, state=S.DRAINING, leaving=S.CANCELLED, drain_mode=DrainMode.PEACEFUL)
    again = {mode: plan(drains=(drain(drains, reasons.DrainRepeated(90.0), mode),)) for mode in DrainMode}
    snap = snapshot(drones=[drains])
    assert texts(snap, again[DrainMode.PEACEFUL]) == []
    assert len(texts(snap, again[DrainMode.FAST])) == 1


def test_a_job_that_came_in_this_tick_protects_and_one_that_went_does_not() -> None:
    ends = plan(stops=(stop(IDLE, reasons.Unneeded("idle")),))
    came = StateChange(replace(IDLE, state=S.BUSY, jobs=2), S.IDLE, reasons.SeenAtSite("running"))
    (text,) = texts(snapshot(drones=[IDLE]), replace(ends, moves=(came,)))
    assert text == "kit-ab12-1 has 2 jobs and is asked to leave because unneeded"
    went = StateChange(replace(BUSY, state=S.IDLE, jobs=0), S.BUSY, reasons.SeenAtSite("running"))
    assert texts(snapshot(drones=[BUSY]), plan(stops=(stop(BUSY, reasons.Unneeded("idle")),), moves=(went,))) == []


# -------------------------------------------------------------------------------------------------------------- owners

CLAIM = reasons.PreemptedForOwner(1, 60.0)


def on(name: str, serial: int, state: S = S.IDLE, kind: DroneType = A100) -> Drone:
    return drone(f"kit-ab12-{serial}", state, kind, node=name)


def claim(gpus: int = 1, count: int = 1) -> OwnerDemand:
    return OwnerDemand(count, gpus * 1000, 8, 20480, NOW - 60)


@pytest.mark.parametrize(
    ("leaving", "claims", "named"),
    [
        ([on("n1", 1)], [claim()], []),
        ([on("n1", 1), on("n2", 2)], [claim()], ["kit-ab12-2"]),
        ([on("n1", 1), on("n2", 2), on("n2", 3)], [claim(2)], ["kit-ab12-2", "kit-ab12-3"]),
        ([on("n1", 1), on("n2", 2)], [claim(count=2)], []),
        ([on("n1", 1), on("n2", 2)], [claim(), claim(2)], []),
        ([on("n1", 1), on("", 2, S.QUEUED), on("", 3, S.SUBMITTED)], [claim()], []),
        ([on("n1", 1), on("n1", 2)], [claim()], ["kit-ab12-2"]),
        ([on("n1", 1), on("n1", 2)], [claim(2)], []),
        ([on("n1", 1), on("n1", 2)], [claim(), claim()], []),
        ([on("n1", 1), on("n1", 2), on("n1", 3)], [claim(count=2)], ["kit-ab12-3"]),
        ([on("n1", 1)], [], ["kit-ab12-1"]),
    ],
)
def test_no_more_leave_than_the_owners_jobs_need(
    leaving: list[Drone], claims: list[OwnerDemand], named: list[str]
) -> None:
    snap = snapshot(drones=leaving, claims=claims, nodes=[node("n1", 4), node("n2", 4)])
    found = validate_plan(snap, plan(stops=tuple(stop(each, CLAIM) for each in leaving)))
    assert sorted({a.drone.id for b in found for a in b.actions if isinstance(a, Stop)}) == named


@pytest.mark.parametrize("other", [stop(on("n2", 2), reasons.Unneeded("idle")), stop(on("n2", 2, kind=QUAD), CLAIM)])
def test_drones_that_leave_for_another_reason_or_site_are_not_the_owners(other: Stop) -> None:
    there = on("n1", 1)
    snap = snapshot(drones=[there, replace(other.drone, state=S.IDLE)], types=[A100, QUAD], claims=[claim()])
    snap = with_site(snap, "horeka", claims=(claim(4),)) if "horeka" in snap.sites else snap
    assert texts(snap, plan(stops=(stop(there, CLAIM), other))) == []


def test_where_freed_gpus_keep_some_of_what_is_freed_more_drones_may_leave() -> None:
    two = [on("n1", 1), on("n1", 2)]
    leaves = plan(stops=tuple(stop(each, CLAIM) for each in two))
    kept = snapshot(drones=two, claims=[claim()], limits={"blocking": (Reserve(cpus=4),)})
    assert texts(kept, leaves) == []
    assert texts(snapshot(drones=two, claims=[claim()]), leaves) == [
        "2 drones leave n1 of topas, more than all of its owner's waiting jobs need"
    ]


@pytest.mark.parametrize(
    ("free", "text", "named"),
    [
        ({}, "", []),
        ({"free_gpus": 2}, "", []),
        ({"free_gpus": 1}, "starts at topas ask for 2000 milli-GPU, 1000 are free", [43]),
        ({"free_gpus": 0}, "starts at topas ask for 2000 milli-GPU, 0 are free", [42, 43]),
        ({"free_cpus": 16}, "", []),
        ({"free_cpus": 15}, "starts at topas ask for 16 CPUs, 15 are free", [43]),
        ({"free_gib": 40}, "", []),
        ({"free_gib": 39}, "starts at topas ask for 40960 MiB of memory, 39936 are free", [43]),
    ],
)
def test_no_more_is_started_than_is_free_on_the_nodes(free: dict[str, int], text: str, named: list[int]) -> None:
    nodes = [node("n1", 4, **free)]
    made = plan(starts=(start(42), start(43)))
    found = validate_plan(snapshot(classes=[WAITS], nodes=nodes), made)
    assert [b.text for b in found] == ([text] if text else [])
    assert [int(a.drone.id[-2:]) for b in found for a in b.actions if isinstance(a, Start)] == named
    assert texts(snapshot(classes=[WAITS], nodes=nodes, limits={"queue_when_full": True}), made) == []


@pytest.mark.parametrize(("free_cpus", "kept"), [(40, True), (39, False)])
def test_cpu_drones_leave_free_gpus_their_share(free_cpus: int, kept: bool) -> None:
    cpu_jobs = jobs(waiting=3, gpu_milli=0)
    made = plan(starts=(start(42, CPU),))
    nodes = [node("n1", 4, free_cpus=free_cpus)]
    snap = snapshot(classes=[cpu_jobs], types=[A100, CPU], nodes=nodes, limits={"blocking": (Reserve(cpus=8),)})
    text = f"CPU drones at topas ask for 8 CPUs, {free_cpus - 32} are not kept for free GPUs"
    assert texts(snap, made) == ([] if kept else [text])
    one_gpu = replace(snap, overlay=PolledOverlay(replace(snap.overlay.view, classes=(WAITS,))))
    assert texts(one_gpu, plan(starts=(start(43),))) == [], "a drone with a GPU uses what is kept for it"


# --------------------------------------------------------------------------------------------------------------- sense


@pytest.mark.parametrize(
    "asks",
    [
        {"invalid": "no number"},
        {"refuses": {A100.key: None}},
        {"gpu_milli": 1001},
        {"vram_mib": 40961},
        {"capability": 81},
        {"cpus": 9},
        {"memory_mib": 20481},
    ],
    ids=lambda each: next(iter(each)),
)
def test_a_drone_is_started_only_for_jobs_that_it_can_run(asks: dict[str, object]) -> None:
    exact: dict[str, object] = {"gpu_milli": 1000, "vram_mib": 40960, "capability": 80, "cpus": 8, "memory_mib": 20480}
    made = plan(starts=(start(),))
    assert texts(snapshot(classes=[replace(WAITS, **exact)]), made) == []
    found = texts(snapshot(classes=[replace(WAITS, **{**exact, **asks})]), made)
    assert found == ["kit-ab12-42 of topas/a100 cannot run class small"]


@pytest.mark.parametrize(
    ("owner", "avoids", "kept"), [("ada", "", True), ("ada", "eve,bob", True), ("bob", "eve,bob", False)]
)
def test_no_drone_is_started_for_a_user_that_it_avoids(owner: str, avoids: str, kept: bool) -> None:
    snap = snapshot(classes=[jobs(waiting=1, owner=owner)])
    text = "kit-ab12-42 is started for class small and avoids its user"
    assert texts(snap, plan(starts=(start(avoids=avoids),))) == ([] if kept else [text])


@pytest.mark.parametrize(
    ("down_in_s", "start_s", "type_s", "kept"),
    [
        (3600.0, 3600.0, 0.0, True),
        (3600.0, 3601.0, 0.0, False),
        (3600.0, 0.0, 3600.0, True),
        (3600.0, 0.0, 7200.0, False),
        (3600.0, 1800.0, 7200.0, True),
        (3600.0, 0.0, 0.0, False),
        (0.0, 0.0, 0.0, True),
        (-60.0, 0.0, 0.0, True),
    ],
)
def test_no_drone_is_started_to_live_into_a_downtime(
    down_in_s: float, start_s: float, type_s: float, kept: bool
) -> None:
    snap = snapshot(classes=[WAITS], types=[replace(A100, walltime_s=type_s)])
    snap = with_site(snap, downtime_at=NOW + down_in_s)
    text = "kit-ab12-42 is started to live into the downtime of topas"
    assert texts(snap, plan(starts=(replace(start(), walltime_s=start_s),))) == ([] if kept else [text])


@pytest.mark.parametrize(("waiting", "named"), [(3, []), (2, [44]), (1, [43, 44]), (0, [42, 43, 44])])
def test_no_more_drones_are_started_for_a_class_than_jobs_wait(waiting: int, named: list[int]) -> None:
    found = validate_plan(snapshot(classes=[jobs(waiting=waiting)]), plan(starts=(start(42), start(43), start(44))))
    assert [int(a.drone.id[-2:]) for b in found for a in b.actions if isinstance(a, Start)] == named


@pytest.mark.parametrize(("count", "named"), [(2, []), (1, [43]), (0, [42, 43])])
def test_no_more_drones_are_kept_warm_than_the_policy_says(count: int, named: list[int]) -> None:
    warm = reasons.HeadroomShort("desk", 2, 0, 2)
    starts = tuple(start(serial, reason=warm, for_class="headroom:desk") for serial in (42, 43))
    snap = snapshot(policy=Policy(headroom=(Headroom("desk", count=count),)))
    found = validate_plan(snap, plan(starts=starts))
    assert [int(a.drone.id[-2:]) for b in found for a in b.actions if isinstance(a, Start)] == named
    if named:
        assert found[0].text == f"2 drones are started for headroom:desk, which wants {count}"


def test_the_reason_of_a_start_is_that_of_its_class() -> None:
    snap = snapshot(classes=[WAITS], policy=Policy(headroom=(Headroom("desk", count=2),)))
    warm = reasons.HeadroomShort("desk", 2, 0, 2)
    wrong = (start(42, reason=warm), start(43, for_class="headroom:desk"))
    assert texts(snap, plan(starts=wrong)) == [
        "kit-ab12-42 is started because headroom-short",
        "kit-ab12-43 is started because jobs-waiting",
    ]


def test_a_type_that_is_not_configured_is_named_once_with_all_its_starts() -> None:
    gone = tuple(start(serial, type=TypeKey("topas/x")) for serial in (42, 43))
    found = [b for b in validate_plan(snapshot(classes=[WAITS]), plan(starts=gone)) if "configured" in b.text]
    assert [(b.text, b.actions) for b in found] == [("topas/x is started but is not configured", gone)]
