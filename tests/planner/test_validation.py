"""The checker finds what a planner gone wrong would do. It is given bad plans, made by hand."""

from __future__ import annotations

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
    DroneId,
    DroneState,
    DroneType,
    Group,
    Headroom,
    JobClass,
    Plan,
    Policy,
    RemoteDrone,
    RemoteState,
    Snapshot,
    Start,
    Stop,
    StopOrphan,
    TypeKey,
)
from provisioner.planner import decide
from provisioner.planner.validation import validate_plan
from tests.planner.scenes import A100, DOWN, NOW, QUAD, V100, drone, jobs, plan_of, slot_of, snapshot

S = DroneState
BUSY = drone("kit-ab12-1", S.BUSY)
WAITS = jobs(waiting=3)
CPU = DroneType("topas", "cpu", 0, 8, 20480, 0)


def start(serial: int = 42, kind: TypeKey = A100.key) -> Start:
    made = replace(drone(f"kit-ab12-{serial}", S.REQUESTED, age_s=0), type=kind, for_class="small")
    return Start(made, reasons.JobsWaiting("small", 3, 0, 1))


def stop(of: str = "kit-ab12-1") -> Stop:
    return Stop(replace(BUSY, id=DroneId(of), state=S.STOPPING), S.BUSY, reasons.Unneeded("busy"))


def drain() -> Drain:
    return Drain(replace(BUSY, state=S.DRAINING), S.BUSY, DrainMode.PEACEFUL, reasons.IdleTimeout(1, 1))


BAD: list[tuple[str, Snapshot, dict[str, object]]] = [
    ("asked for 2 things", snapshot(drones=[BUSY]), {"stops": (stop(),), "drains": (drain(),)}),
    ("may have been used before", snapshot(classes=[WAITS]), {"starts": (start(41),)}),
    ("on record already", snapshot(classes=[WAITS], drones=[drone("kit-ab12-42")]), {"starts": (start(),)}),
    ("is not on record", snapshot(), {"stops": (stop(),)}),
    ("has 1 jobs", snapshot(drones=[BUSY]), {"stops": (stop(),)}),
    ("has 1 jobs", snapshot(drones=[BUSY]), {"drains": (drain(),)}),
    ("1 drones at topas, 0 allowed", snapshot(classes=[WAITS], limits={"max_drones": 0}), {"starts": (start(),)}),
    ("GPUs at topas", snapshot(classes=[WAITS], limits={"max_gpu_milli": 500}), {"starts": (start(),)}),
    ("on their way", snapshot(classes=[WAITS], limits={"max_pending": 0}), {"starts": (start(),)}),
    ("starts at once", snapshot(classes=[WAITS], limits={"max_starts_per_tick": 0}), {"starts": (start(),)}),
    ("drones in all", snapshot(classes=[WAITS], policy=Policy(max_drones=0)), {"starts": (start(),)}),
    ("GPUs in all", snapshot(classes=[WAITS], policy=Policy(max_gpu_milli=1)), {"starts": (start(),)}),
    ("not enabled", snapshot(classes=[WAITS], limits={"enabled": False}), {"starts": (start(),)}),
    ("is not configured", snapshot(classes=[WAITS]), {"starts": (start(kind=TypeKey("topas/x")),)}),
    (
        "topas/a100, 0 allowed",
        snapshot(classes=[WAITS], types=(replace(A100, max_drones=0),)),
        {"starts": (start(),)},
    ),
    ("without a fresh view of it", snapshot(classes=[WAITS], site_fault=DOWN), {"starts": (start(),)}),
    ("view of the overlay", snapshot(classes=[WAITS], overlay_fault=DOWN), {"starts": (start(),)}),
    ("view of the overlay", snapshot(classes=[WAITS], overlay_age_s=999), {"starts": (start(),)}),
    ("of which nothing waits", snapshot(), {"starts": (start(),)}),
    ("started for 1 waiting", snapshot(classes=[jobs(waiting=1)]), {"starts": (start(42), start(43))}),
    ("cannot run class", snapshot(classes=[jobs(waiting=1, vram_mib=99999)]), {"starts": (start(),)}),
    (
        "is banned until",
        snapshot(classes=[WAITS], breakers=[Breaker("topas", BreakerState.BANNED, NOW, 3, NOW + 9)]),
        {"starts": (start(),)},
    ),
    (
        "is stopped as a stray but is on record",
        snapshot(drones=[BUSY]),
        {"orphans": (StopOrphan("topas", BUSY.id, "r", reasons.Orphan()),)},
    ),
]


@pytest.mark.parametrize(("fault", "snap", "actions"), BAD, ids=[b[0] for b in BAD])
def test_a_bad_plan_is_found_out(fault: str, snap: Snapshot, actions: dict[str, object]) -> None:
    plan = Plan(snap.tick, snap.now, **actions)  # type: ignore[arg-type]
    assert any(fault in breach.text for breach in validate_plan(snap, plan)), validate_plan(snap, plan)


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
    readings = dict(snap.sites)
    for site in sites:
        view = readings[site].view
        assert view is not None
        stray = RemoteDrone(DroneId("kit-ab12-7"), RemoteState.RUNNING, "r")
        readings[site] = replace(readings[site], view=replace(view, drones={stray.drone_id: stray}))
    return replace(snap, sites=readings)


def test_the_judge_counts_strays_with_the_gpus_of_the_largest_type() -> None:
    quad = replace(start(kind=QUAD.key), drone=replace(start().drone, type=QUAD.key, gpu_milli=4000))
    plan = Plan(7, NOW, starts=(quad,))
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
    assert plan_of(snapshot(classes=[WAITS], drones=[BUSY])).acts
