"""The independent validation finds what a planner gone wrong would do. It is given bad plans, made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner import model, reasons
from provisioner.job_filter import JobFilter
from provisioner.planner.validation import Action, validate_plan
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
    plan_of,
    slot_of,
    snapshot,
    with_site,
)

S = model.DroneState
WAITS = jobs(waiting=3)
CPU = model.DroneType("topas", "cpu", 0, 8, 20480, 0)
BANNED = model.Breaker(model.Scope("topas"), model.BreakerState.BANNED, NOW, 3, NOW + 9)
OPERATOR = reasons.OperatorRequested("ada", "drain")
UNNEEDED = reasons.Unneeded("idle")
CLAIM = reasons.PreemptedForOwner(1, 60.0)
WARM = reasons.HeadroomShort("desk", 2, 0, 2)
IDLE, BUSY = drone("kit-ab12-1", S.IDLE), drone("kit-ab12-2", S.BUSY)
ENDED = model.StateChange(replace(IDLE, state=S.DONE), S.IDLE, reasons.SeenAtSite("ended"))


def start(
    serial: int = 42, kind: model.DroneType = A100, reason: Reason | None = None, **more: object
) -> model.Start:
    made = drone(f"kit-ab12-{serial}", S.REQUESTED, kind, age_s=0, for_class="small")
    return model.Start(
        replace(made, **more), reason or reasons.JobsWaiting("small", "small", 3, 0, 1)
    )


def stop(of: model.Drone, reason: Reason) -> model.Stop:
    return model.Stop(replace(of, state=S.STOPPING), of.state, reason)


def drain(
    of: model.Drone, reason: Reason, mode: model.DrainMode = model.DrainMode.PEACEFUL
) -> model.Drain:
    return model.Drain(replace(of, state=S.DRAINING), of.state, mode, reason)


def orphan(name: str = "kit-ab12-7", site: str = "topas") -> model.StopOrphan:
    return model.StopOrphan(site, model.DroneId(name), "r", reasons.Orphan())


def plan(
    *actions: Action,
    moves: tuple[model.StateChange, ...] = (),
    breakers: tuple[model.Breaker, ...] = (),
) -> model.Plan:
    def of(kind: type) -> tuple:
        return tuple(action for action in actions if isinstance(action, kind))

    starts, drains, stops, orphans = map(
        of, (model.Start, model.Drain, model.Stop, model.StopOrphan)
    )
    return model.Plan(7, NOW, moves, starts, drains, stops, orphans, breakers=breakers)


def texts(snap: model.Snapshot, made: model.Plan | Action) -> list[str]:
    return [
        breach.text
        for breach in validate_plan(snap, made if isinstance(made, model.Plan) else plan(made))
    ]


def named(snap: model.Snapshot, *actions: Action) -> list[Action]:
    """The actions that are named, in the order of the plan."""
    found = {action for breach in validate_plan(snap, plan(*actions)) for action in breach.actions}
    return [action for action in actions if action in found]


def waits(**given: object) -> model.Snapshot:
    """A snapshot in which three jobs wait, as :func:`snapshot` makes it."""
    return snapshot(**{"classes": [WAITS], **given})


def on(name: str, serial: int, state: S = S.IDLE, kind: model.DroneType = A100) -> model.Drone:
    return drone(f"kit-ab12-{serial}", state, kind, node=name)


def claim(gpus: int = 1, count: int = 1) -> model.OwnerDemand:
    return model.OwnerDemand(count, gpus * 1000, 8, 20480, NOW - 60)


ONE = {"max_drones": 1}
TWO_COME = ["2 drones on their way at topas, 1 allowed"]


def listed(state: model.RemoteState) -> model.RemoteDrone:
    return model.RemoteDrone(model.DroneId("kit-ab12-7"), state, "r")


@pytest.mark.parametrize(
    ("snap", "made", "found"),
    [
        (snapshot(), model.Plan(7, NOW), []),
        (waits(), start(), []),
        # ---- identities
        (
            waits(drones=[drone("kit-ab12-42")]),
            start(),
            ["kit-ab12-42 is started but is on record already"],
        ),
        (
            waits(),
            start(41),
            ["kit-ab12-41 may have been used before: serials from 42 on are free"],
        ),
        (
            waits(),
            start(id=model.DroneId("kit-x")),
            ["kit-x may have been used before: serials from 42 on are free"],
        ),
        (waits(), start(state=S.SUBMITTED), ["kit-ab12-42 starts its life as submitted"]),
        (snapshot(), stop(IDLE, OPERATOR), ["kit-ab12-1 is asked to leave but is not on record"]),
        (
            snapshot(drones=[IDLE]),
            orphan(IDLE.id),
            ["kit-ab12-1 is stopped as an orphan but is on record"],
        ),
        (
            snapshot(drones=[IDLE]),
            plan(stop(IDLE, UNNEEDED), moves=(ENDED,)),
            ["kit-ab12-1 has ended and is asked to leave"],
        ),
        (snapshot(drones=[IDLE]), plan(orphan(IDLE.id), moves=(ENDED,)), []),
        # ---- limits
        (
            waits(limits={"max_starts_per_tick": 0}),
            start(),
            ["1 starts at once at topas, 0 allowed"],
        ),
        (waits(policy=model.Policy(max_drones=0)), start(), ["1 drones in all, 0 allowed"]),
        (waits(limits={"enabled": False}), start(), ["1 starts at topas, which is not enabled"]),
        (waits(site_fault=DOWN), start(), ["1 actions at topas without a fresh view of it"]),
        (
            waits(drones=[IDLE, BUSY], limits={"max_drones": 2}),
            start(),
            ["3 drones at topas, 2 allowed"],
        ),
        (
            waits(drones=[IDLE, BUSY], limits={"max_gpu_milli": 2999}),
            start(),
            ["3.0 GPUs at topas, 2.999 allowed"],
        ),
        *(
            (waits(drones=[drone("kit-ab12-1", state)], limits={"max_pending": 1}), start(), found)
            for state, found in ((S.REQUESTED, TWO_COME), (S.BOOTING, TWO_COME), (S.JOINED, []))
        ),
        # What ended in this tick counts no more, and a listed end is no stray.
        (
            waits(drones=[IDLE], remotes=[], limits={"max_drones": 1}),
            plan(start(), moves=(ENDED,)),
            [],
        ),
        (
            waits(remotes=[listed(model.RemoteState.RUNNING)], limits=ONE),
            start(),
            ["2 drones at topas, 1 allowed"],
        ),
        (waits(remotes=[listed(model.RemoteState.ENDED)], limits=ONE), start(), []),
        # ---- reasons and sense
        (snapshot(), start(), ["1 drones are started for class small, of which nothing waits"]),
        (waits(), start(reason=WARM), ["kit-ab12-42 is started because headroom-short"]),
        (
            snapshot(policy=model.Policy(headroom=(model.Headroom("desk"),))),
            start(for_class="headroom:desk"),
            ["kit-ab12-42 is started because jobs-waiting"],
        ),
        (waits(classes=[jobs(owner="ada")]), start(job_filter=JobFilter(("eve", "bob"))), []),
        (
            waits(classes=[jobs(owner="bob")]),
            start(job_filter=JobFilter(("eve", "bob"))),
            [
                "kit-ab12-42 is started for class bob: 1 GPU (small) and refuses its jobs: excluded_users"
            ],
        ),
        (
            waits(),
            start(job_filter=JobFilter(min_gpus=2)),
            ["kit-ab12-42 is started for class 1 GPU (small) and refuses its jobs: min_gpus"],
        ),
        (
            waits(),
            start(job_filter=JobFilter(first_s=90, first_vram_mib=1)),
            ["kit-ab12-42 is started for class 1 GPU (small) and refuses its jobs: first_jobs"],
        ),
        # ---- jobs
        (snapshot(drones=[BUSY]), stop(BUSY, OPERATOR), []),
        (snapshot(drones=[BUSY]), drain(BUSY, reasons.TypeRemoved("topas/a100")), []),
        (snapshot(drones=[BUSY]), drain(BUSY, UNNEEDED, model.DrainMode.RESUME), []),
        *(
            (
                snapshot(drones=[BUSY]),
                made,
                [f"kit-ab12-2 has 1 jobs and is asked to leave because {made.reason.kind}"],
            )
            for made in (
                stop(BUSY, UNNEEDED),
                stop(BUSY, reasons.TypeRemoved("topas/a100")),
                drain(BUSY, UNNEEDED),
                drain(BUSY, reasons.DrainRepeated(90.0)),
            )
        ),
    ],
)
def test_what_each_action_breaks(
    snap: model.Snapshot, made: model.Plan | Action, found: list[str]
) -> None:
    assert texts(snap, made) == found


def test_of_two_orders_for_a_drone_the_operators_is_kept_else_the_first() -> None:
    ours, theirs = stop(IDLE, UNNEEDED), drain(IDLE, OPERATOR)
    (breach,) = validate_plan(snapshot(drones=[IDLE]), plan(ours, theirs))
    assert (breach.text, breach.actions) == ("kit-ab12-1 is asked for 2 things at once", (ours,))
    assert named(snapshot(drones=[IDLE]), drain(IDLE, UNNEEDED), stop(IDLE, OPERATOR)) == [
        drain(IDLE, UNNEEDED)
    ]
    thrice = [stop(IDLE, reasons.Unneeded(word)) for word in ("idle", "busy", "booting")]
    assert named(snapshot(drones=[IDLE]), *thrice) == thrice[1:]


def test_gpus_above_a_lowered_limit_are_no_fault_of_a_drone_without_a_gpu() -> None:
    """`max_gpus` was lowered below what runs; the CPU drone was refused, and with it the drains of the idle ones."""
    idle = [drone(f"kit-ab12-{i}", S.IDLE, age_s=5000) for i in range(4)]
    cpu_job = model.JobClass("cpu", 0, 1, 1024, waiting=1, oldest_at=NOW - 100)
    snap = snapshot(
        drones=idle, types=[A100, CPU], classes=[cpu_job], limits={"max_gpu_milli": 2000}
    )
    plan = plan_of(snap)
    assert [s.drone.type for s in plan.starts] == [CPU.key]
    assert len(plan.drains) == 4
    assert texts(replace(snap, overlay=waits().overlay), start()) == [
        "5.0 GPUs at topas, 2.0 allowed"
    ]


def stray_at(*sites: str) -> model.Snapshot:
    """A drone without a record in the listing of each site, where jobs wait."""
    snap = waits(types=[A100, QUAD], limits={"max_gpu_milli": 4500})
    for site in sites:
        stray = listed(model.RemoteState.RUNNING)
        snap = with_site(snap, site, drones={stray.drone_id: stray})
    return snap


def test_the_judge_counts_strays_with_the_gpus_of_the_largest_type() -> None:
    assert texts(stray_at(), start(kind=QUAD)) == []
    assert texts(stray_at("horeka"), start(kind=QUAD)) == ["8.0 GPUs at horeka, 4.5 allowed"]
    one = replace(stray_at("topas"), policy=replace(snapshot().policy, max_drones=1))
    assert "2 drones in all, 1 allowed" in texts(one, start())


def test_strays_count_with_the_gpus_of_the_largest_type_against_max_gpus() -> None:
    many = replace(
        stray_at("horeka"), overlay=waits(classes=[jobs(waiting=3, gpu_milli=4000)]).overlay
    )
    assert plan_of(many).starts == ()
    assert len(plan_of(replace(stray_at(), overlay=many.overlay)).starts) == 1


def test_a_stray_in_two_listings_is_stopped_at_both_sites() -> None:
    snap = stray_at("topas", "horeka")
    stray_id = next(iter(snap.sites["topas"].view.drones))
    snap = replace(snap, ended={stray_id: model.DroneState.LOST})
    orphans = plan_of(snap).orphans
    assert sorted(o.site for o in orphans) == ["horeka", "topas"]
    (breach,) = validate_plan(snap, plan(*orphans, orphans[0]))
    assert breach.actions == (orphans[0],)


def test_a_slot_that_says_idle_and_names_jobs_is_not_asked_to_leave() -> None:
    odd = drone("kit-ab12-1", S.IDLE, age_s=50_000)
    assert not plan_of(snapshot(drones=[odd], slots=[replace(slot_of(odd), jobs=2)])).acts


@pytest.mark.parametrize(
    ("allowed", "there", "serials"), [(None, 9, []), (3, 2, [43]), (0, 1, [42, 43])]
)
def test_a_limit_names_the_starts_beyond_it_and_no_others(
    allowed: int | None, there: int, serials: list[int]
) -> None:
    drones = [drone(f"kit-ab12-{i}", S.IDLE) for i in range(there)]
    snap = waits(
        types=[replace(A100, max_drones=allowed), V100], drones=drones, limits={"max_drones": 99}
    )
    assert named(snap, start(42), start(43), start(44, V100)) == [
        start(serial) for serial in serials
    ]
    if allowed == 3:
        assert named(waits(drones=drones, limits={"max_drones": 3}), start(42), start(43)) == [
            start(43)
        ]


def test_a_limit_on_gpus_names_the_starts_beyond_it_and_none_without_a_gpu() -> None:
    snap = waits(types=[A100, CPU], policy=model.Policy(max_gpu_milli=1000))
    (breach,) = [
        b
        for b in validate_plan(snap, plan(start(42), start(43, CPU), start(44)))
        if "GPUs" in b.text
    ]
    assert (breach.text, breach.actions) == ("2.0 GPUs in all, 1.0 allowed", (start(44),))


def test_a_type_that_is_not_configured_is_named_once_with_all_its_starts() -> None:
    gone = tuple(start(serial, type=model.TypeKey("topas/x")) for serial in (42, 43))
    found = [b for b in validate_plan(waits(), plan(*gone)) if "configured" in b.text]
    assert [(b.text, b.actions) for b in found] == [
        ("topas/x is started but is not configured", gone)
    ]


@pytest.mark.parametrize(("age_s", "blind"), [(120.0, False), (120.5, True)])
def test_views_are_believed_up_to_their_age_limit_and_operators_always(
    age_s: float, blind: bool
) -> None:
    old, leaves = snapshot(drones=[IDLE], site_age_s=age_s), drain(IDLE, UNNEEDED)
    assert texts(old, leaves) == ["1 actions at topas without a fresh view of it"] * blind
    blind_pool = snapshot(drones=[IDLE], overlay_age_s=age_s)
    assert (
        texts(blind_pool, leaves)
        == ["0 starts and 1 drains without a fresh view of the overlay"] * blind
    )
    assert texts(old, stop(IDLE, OPERATOR)) == []
    assert bool(texts(old, orphan())) is blind


def test_nothing_is_asked_of_a_site_that_was_never_seen() -> None:
    snap = snapshot(drones=[IDLE])
    never = replace(snap, sites={"topas": model.PolledSite("topas", None)})
    leaves = plan(stop(IDLE, UNNEEDED), orphan())
    for blind in (
        never,
        replace(snap, sites={}),
        replace(snap, policy=replace(snap.policy, sites={})),
    ):
        (breach,) = validate_plan(blind, leaves)
        assert breach.text == "2 actions at topas, which was never seen"
        assert breach.actions == (*leaves.stops, *leaves.orphans)


@pytest.mark.parametrize(
    "scope", [model.Scope("topas"), A100.scope, replace(A100.scope, class_id="small")]
)
def test_what_is_banned_before_or_by_this_plan_is_not_started(scope: str) -> None:
    text = f"kit-ab12-42 is started although {scope} is banned until {NOW + 60:.0f}"
    banned = model.Breaker(scope, model.BreakerState.BANNED, NOW, 3, NOW + 60)
    probing = replace(banned, state=model.BreakerState.PROBING)
    assert texts(waits(breakers=[banned]), start()) == [text]
    assert texts(waits(breakers=[model.Breaker(scope)]), plan(start(), breakers=(banned,))) == [
        text
    ]
    assert texts(waits(breakers=[banned]), plan(start(), breakers=(probing,))) == []


def test_a_drain_is_repeated_only_of_a_drone_that_drains_in_that_mode() -> None:
    drains = replace(
        BUSY, state=S.DRAINING, leaving=S.CANCELLED, drain_mode=model.DrainMode.PEACEFUL
    )
    for mode, count in ((model.DrainMode.PEACEFUL, 0), (model.DrainMode.FAST, 1)):
        assert (
            len(texts(snapshot(drones=[drains]), drain(drains, reasons.DrainRepeated(90.0), mode)))
            == count
        )


def test_a_job_that_came_in_this_tick_protects_and_one_that_went_does_not() -> None:
    came = model.StateChange(
        replace(IDLE, state=S.BUSY, jobs=2), S.IDLE, reasons.SeenAtSite("running")
    )
    (text,) = texts(snapshot(drones=[IDLE]), plan(stop(IDLE, UNNEEDED), moves=(came,)))
    assert text == "kit-ab12-1 has 2 jobs and is asked to leave because unneeded"
    went = model.StateChange(
        replace(BUSY, state=S.IDLE, jobs=0), S.BUSY, reasons.SeenAtSite("running")
    )
    assert texts(snapshot(drones=[BUSY]), plan(stop(BUSY, UNNEEDED), moves=(went,))) == []


@pytest.mark.parametrize(
    ("leaving", "claims", "serials"),
    [
        ([on("n1", 1), on("n2", 2)], [claim()], [2]),
        ([on("n1", 1), on("n2", 2), on("n2", 3)], [claim(2)], [2, 3]),
        ([on("n1", 1), on("n2", 2)], [claim(), claim(2)], []),
        ([on("n1", 1), on("", 2, S.QUEUED), on("", 3, S.SUBMITTED)], [claim()], []),
        ([on("n1", 1), on("n1", 2)], [claim(2)], []),
        ([on("n1", 1), on("n1", 2), on("n1", 3)], [claim(count=2)], [3]),
        ([on("n1", 1)], [], [1]),
    ],
)
def test_no_more_leave_than_the_owners_jobs_need(
    leaving: list[model.Drone], claims: list[model.OwnerDemand], serials: list[int]
) -> None:
    snap = snapshot(drones=leaving, claims=claims, nodes=[node("n1", 4), node("n2", 4)])
    found = named(snap, *(stop(each, CLAIM) for each in leaving))
    assert [action.drone.id for action in found] == [f"kit-ab12-{serial}" for serial in serials]


@pytest.mark.parametrize(
    ("free", "text", "serials"),
    [
        ({"free_gpus": 2, "free_cpus": 16, "free_gib": 40}, "", []),
        ({"free_gpus": 1}, "starts at topas ask for 2000 milli-GPU, 1000 are free", [43]),
        ({"free_cpus": 15}, "starts at topas ask for 16 CPUs, 15 are free", [43]),
        ({"free_gib": 39}, "starts at topas ask for 40960 MiB of memory, 39936 are free", [43]),
    ],
)
def test_no_more_is_started_than_is_free_on_the_nodes(
    free: dict[str, int], text: str, serials: list[int]
) -> None:
    nodes, starts = [node("n1", 4, **free)], (start(42), start(43))
    assert texts(waits(nodes=nodes), plan(*starts)) == ([text] if text else [])
    assert named(waits(nodes=nodes), *starts) == [start(serial) for serial in serials]
    assert texts(waits(nodes=nodes, limits={"queue_when_full": True}), plan(*starts)) == []


@pytest.mark.parametrize(("free_cpus", "kept"), [(40, True), (39, False)])
def test_cpu_drones_leave_free_gpus_their_share(free_cpus: int, kept: bool) -> None:
    given = {"types": [A100, CPU], "nodes": [node("n1", 4, free_cpus=free_cpus)]}
    snap = waits(
        classes=[jobs(waiting=3, gpu_milli=0)],
        limits={"blocking": (model.Reserve(cpus=8),)},
        **given,
    )
    text = f"CPU drones at topas ask for 8 CPUs, {free_cpus - 32} are not kept for free GPUs"
    assert texts(snap, start(kind=CPU)) == ([] if kept else [text])
    one_gpu = replace(
        snap, overlay=model.PolledOverlay(replace(snap.overlay.view, classes=(WAITS,)))
    )
    assert texts(one_gpu, start()) == [], "a drone with a GPU uses what is kept for it"


@pytest.mark.parametrize(
    "asks",
    [
        {"invalid": "no number"},
        {"refuses": {A100.key: None}},
        {"gpu_milli": 1001},
        {"vram_mib": 40961},
        {"capability": 81},
        {"memory_mib": 20481},
    ],
    ids=str,
)
def test_a_drone_is_started_only_for_jobs_that_it_can_run(asks: dict[str, object]) -> None:
    exact = {"gpu_milli": 1000, "vram_mib": 40960, "capability": 80, "cpus": 8, "memory_mib": 20480}
    assert texts(waits(classes=[replace(WAITS, **exact)]), start()) == []
    found = texts(waits(classes=[replace(WAITS, **{**exact, **asks})]), start())
    (text,) = found
    assert text.startswith("kit-ab12-42 of topas/a100 cannot run class ")
    assert text.endswith(" (small)")


@pytest.mark.parametrize(
    ("down_in_s", "start_s", "type_s", "kept"),
    [
        (3600.0, 3600.0, 0.0, True),
        (3600.0, 3601.0, 0.0, False),
        (3600.0, 0.0, 7200.0, False),
        (3600.0, 1800.0, 7200.0, True),
        (3600.0, 0.0, 0.0, False),
        (-60.0, 0.0, 0.0, True),
    ],
)
def test_no_drone_is_to_live_into_a_downtime(
    down_in_s: float, start_s: float, type_s: float, kept: bool
) -> None:
    snap = with_site(waits(types=[replace(A100, walltime_s=type_s)]), downtime_at=NOW + down_in_s)
    text = "kit-ab12-42 is started to live into the downtime of topas"
    assert texts(snap, replace(start(), walltime_s=start_s)) == ([] if kept else [text])


@pytest.mark.parametrize("count", [2, 1, 0])
def test_no_more_drones_are_started_than_jobs_wait_or_are_kept_warm_than_the_policy_says(
    count: int,
) -> None:
    starts = [start(42), start(43)]
    assert named(snapshot(classes=[jobs(waiting=count)]), *starts) == starts[count:]
    starts = [start(serial, reason=WARM, for_class="headroom:desk") for serial in (42, 43)]
    snap = snapshot(policy=model.Policy(headroom=(model.Headroom("desk", count=count),)))
    assert named(snap, *starts) == starts[count:]
    assert texts(snap, plan(*starts)) == [
        f"2 drones are started for headroom:desk, which wants {count}"
    ] * (count < 2)
