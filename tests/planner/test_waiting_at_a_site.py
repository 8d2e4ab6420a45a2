"""Sites with queues: what holds a drone up there, when it will start, and when the site goes down."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner import model, reasons
from provisioner.controller.actuation import batches
from provisioner.estimates import Estimates, StartDelays
from provisioner.planner.advice import advise
from provisioner.planner.breakers import update_by_order_results
from tests.planner import scenes
from tests.planner.scenes import (
    NOW,
    drone,
    jobs,
    node,
    plan_for,
    plan_of,
    slot_of,
    snapshot,
    started,
    tell,
    why,
)

S = model.DroneState
A100 = model.DroneType(
    "horeka", "a100", 1000, 8, 20480, 0, vram_mib=40960, capability=80, walltime_s=172800.0
)
CLOUD = model.DroneType(
    "cloud", "v100", 1000, 8, 20480, 0, vram_mib=32768, capability=70, price=9.0
)

H100 = replace(A100, name="h100", vram_mib=95000, price=3.0)


def queued(name: str = "kit-ab12-1", kind: model.DroneType = A100, **more: object) -> model.Drone:
    return drone(name, S.QUEUED, kind, **more)


def waits(
    of: model.Drone,
    reason: str = "",
    blocked: model.FaultKind | None = None,
    start_in_s: float = 0.0,
) -> model.RemoteDrone:
    at = NOW + start_in_s if start_in_s else 0.0
    more = {"reason": reason, "expected_start_at": at, "blocked": blocked}
    return model.RemoteDrone(of.id, model.RemoteState.PENDING, "17_0", **more)


def down_in(snap: model.Snapshot, left_s: float, site: str = "horeka") -> model.Snapshot:
    return scenes.with_site(snap, site, downtime_at=NOW + left_s)


def test_a_limit_that_one_drone_met_is_not_met_by_more() -> None:
    held = queued()
    remote = waits(held, "QOSMaxJobsPerUserLimit", model.FaultKind.QUOTA)
    plan = plan_for(waiting=5, types=(A100,), drones=[held], remotes=[remote])
    assert plan.starts == () and plan.stops == (), "it keeps its place in the queue"
    assert reasons.StartBlocked("horeka/a100", "quota", "QOSMaxJobsPerUserLimit") in why(
        plan, "class:small"
    )


@pytest.mark.parametrize("state", [S.REQUESTED, S.SUBMITTED])
def test_the_quota_of_a_view_does_not_know_of_drones_that_the_view_does_not_list(
    state: model.DroneState,
) -> None:
    """A slow listing may have begun before the site took the orders."""
    ordered = [drone(f"kit-ab12-{n}", state, CLOUD, age_s=5.0) for n in range(3)]
    assert (
        len(
            plan_for(
                waiting=9, types=(CLOUD,), drones=ordered, remotes=[], quota={"v100": 4}
            ).starts
        )
        == 1
    )


@pytest.mark.parametrize("in_s", [30.0, 5000.0])
def test_a_job_is_told_to_start_when_its_site_expects_the_drone(in_s: float) -> None:
    coming = queued()
    snap = snapshot(
        classes=[jobs()],
        types=(A100,),
        drones=[coming],
        remotes=[waits(coming, start_in_s=in_s)],
        free={},
    )
    snap = replace(snap, estimates=Estimates({}, {A100.key: StartDelays(100.0, 120.0)}))
    assert advise(snap, jobs()).now == reasons.StartForecast(
        reasons.StartOutcome.STARTS, in_s + 120.0
    )


@pytest.mark.parametrize(
    ("fault", "final"),
    [
        (model.FaultKind.CONFIG, False),
        (model.FaultKind.NODE, False),
        (model.FaultKind.CAPACITY, True),
    ],
)
def test_a_drone_that_will_never_start_leaves_and_its_type_backs_off(
    fault: model.FaultKind, final: bool
) -> None:
    held = queued()
    remote = replace(waits(held, "Bad", fault), final=final)
    snap = snapshot(classes=[jobs(waiting=3)], types=(A100,), drones=[held], remotes=[remote])
    plan = plan_of(snap)
    [stop] = plan.stops
    assert (stop.drone.leaving, stop.reason) == (
        S.FAILED,
        reasons.StartBlocked("horeka/a100", fault.value, "Bad"),
    )
    [breaker] = plan.breakers
    assert str(breaker.scope) == "horeka/a100" and breaker.fault is not None
    assert (breaker.fault.kind, breaker.fault.message) == (fault, "kit-ab12-1 waits: Bad")
    assert plan.starts == ()
    # The next tick: it is on its way out, counted once, and nothing new is asked for.
    later = replace(snap, drones={held.id: stop.drone}, breakers={breaker.scope: breaker})
    again = plan_of(later)
    assert again.breakers == () and again.stops == ()
    if fault is not model.FaultKind.NODE:
        assert breaker.state is model.BreakerState.BANNED
        told = {type(each) for each in why(again, "class:small")}
        assert told & {reasons.BackingOff, reasons.StartBlocked}, (
            "the reason is given as long as it holds"
        )


LATE, LIMIT = ("Priority", None, 7200), ("QOSMaxJobsPerUserLimit", model.FaultKind.QUOTA)
ROOM_AT_CLOUD, CLOUDS = {"a100": 0, "v100": 2}, {"types": (A100, CLOUD)}
QUEUES = {"queue_when_full": True}
DEAR = replace(CLOUD, price=5.0)


@pytest.mark.parametrize(
    ("kinds", "held", "given"),
    [
        # A drone that its site expects late, or that a limit holds, keeps no job from room that is
        # there.
        ([CLOUD], LATE, CLOUDS | {"free": ROOM_AT_CLOUD}),
        ([CLOUD], LIMIT, CLOUDS | {"free": ROOM_AT_CLOUD}),
        ([CLOUD], ("Priority", None, 900), CLOUDS | {"free": {"a100": 5, "v100": 2}}),
        ([CLOUD], ("Priority", None, 3500), CLOUDS | {"free": {"a100": 5, "v100": 2}}),
        ([], ("Priority", None, 300), CLOUDS | {"free": ROOM_AT_CLOUD}),
        # Where room is not told one late drone is as good as two.
        ([], LATE, CLOUDS),
        # Idle GPUs that Slurm keeps for others are no room: else a drone would be asked for and
        # withdrawn every minute.
        ([], LATE, {"types": (A100,), "free": {"a100": 5}}),
        # A short queue comes before a long one.
        (
            [DEAR],
            LATE,
            {"waiting": 2, "types": (A100, DEAR), "free": {"a100": 0, "v100": 0}, "limits": QUEUES},
        ),
    ],
)
def test_a_drone_that_comes_late_is_supply_only_where_no_other_would_come_sooner(
    kinds: list[model.DroneType], held: tuple[object, ...], given: dict[str, object]
) -> None:
    late = queued()
    tell(kinds, None, {"waiting": 1, "drones": [late], "remotes": [waits(late, *held)], **given})


@pytest.mark.parametrize(
    ("most", "free", "waiting", "held_back"),
    [
        (0, {"a100": 0, "v100": 2}, 1, "limit-reached"),
        (None, {"a100": 3, "v100": 0}, 1, "site-full"),
        (None, None, 1, ""),  # room there is not known
        (None, {"a100": 0, "v100": 1}, 2, ""),  # one other is started
    ],
)
def test_the_reason_says_why_no_other_drone_is_started_beside_a_delayed_one(
    most: int | None, free: dict[str, int] | None, waiting: int, held_back: str
) -> None:
    late, other = [queued(f"kit-ab12-{n}") for n in range(waiting)], replace(CLOUD, max_drones=most)
    given = {
        "drones": late,
        "remotes": [waits(each, *LATE) for each in late],
        "types": (A100, other),
        "free": free,
    }
    assert why(plan_for(waiting=waiting, **given), "class:small") == [
        reasons.DemandCovered(1, 1, 1, held_back)
    ]


def test_a_job_that_cannot_end_before_a_downtime_waits_for_its_delayed_drone() -> None:
    late, long = queued(), jobs(waiting=1, walltime_s=10800.0)
    given = {
        "classes": [long],
        "types": (A100, CLOUD),
        "drones": [late],
        "remotes": [waits(late, *LATE)],
    }
    snap = down_in(snapshot(**given, free={"a100": 0, "v100": 1}), 7200, "cloud")
    assert why(plan_of(snap), "class:small") == [reasons.DemandCovered(1, 1, 1, "downtime")]


def test_of_two_that_wait_the_late_one_goes_when_one_is_enough() -> None:
    late, soon = queued(idle_at=NOW - 300), queued("kit-ab12-2", CLOUD)
    plan = plan_for(
        waiting=1,
        types=(A100, CLOUD),
        drones=[late, soon],
        remotes=[waits(late, *LATE), waits(soon)],
    )
    assert [stop.drone.id for stop in plan.stops] == [late.id]
    assert plan.starts == ()


@pytest.mark.parametrize(
    ("waited_s", "free", "elsewhere"), [(1200, 1, 1), (1200, 2, 0), (1200, 0, 2), (100, 0, 0)]
)
def test_one_whose_room_others_took_keeps_no_job_from_elsewhere(
    waited_s: float, free: int, elsewhere: int
) -> None:
    there = [queued(f"kit-ab12-{n}", age_s=waited_s + n) for n in range(2)]
    tell(
        [CLOUD] * elsewhere,
        None,
        {"waiting": 2, "drones": there, "free": {"a100": free, "v100": 5}, **CLOUDS},
    )


def test_a_machine_that_is_being_made_on_its_node_has_its_room() -> None:
    made = [queued(f"kit-ab12-{n}", age_s=300.0, node="n1") for n in range(2)]
    nodes = [node("n1", 4, free_gpus=1)]
    snap = snapshot(
        classes=[jobs(waiting=4)], types=(A100, CLOUD), drones=made, nodes=nodes, free={"v100": 5}
    )
    assert started(plan_of(snap)) == [A100.key, CLOUD.key]


def test_two_late_queues_are_stood_in_until_one_of_them_moves() -> None:
    """Withdrawn as one too many, a type without a late drone looks free again, and is asked for again every 100 s."""
    late, other = queued(idle_at=NOW - 300), queued("kit-ab12-2", H100, idle_at=NOW - 300)
    remotes = [waits(each, "Priority", None, 7200) for each in (late, other)]
    free = {"a100": 5, "h100": 5}
    assert not plan_for(
        waiting=1, types=(A100, H100), drones=[late, other], remotes=remotes, free=free
    ).acts


def test_before_a_downtime_a_drone_is_given_what_is_left() -> None:
    snap = down_in(snapshot(classes=[jobs(waiting=1)], types=(A100,)), 7200)
    plan = plan_of(snap)
    [start] = plan.starts
    assert start.walltime_s == 7200 - 300
    [batch] = batches(plan, {A100.key: A100}, snap.policy)
    [order] = batch.starts
    assert isinstance(order, model.StartOrder)
    assert order.type == replace(A100, walltime_s=6900.0)


def test_an_order_says_how_long_the_drone_may_be_on_its_way() -> None:
    times = {"order_confirm_s": 1.0, "queued_s": 3 * 86400.0, "booting_s": 20.0, "joining_s": 300.0}
    snap = snapshot(classes=[jobs()], types=(A100,), limits=times)
    [batch] = batches(plan_of(snap), {A100.key: A100}, snap.policy)
    assert [order.comes_within_s for order in batch.starts] == [3 * 86400.0 + 321.0]


def test_a_long_job_gets_no_drone_that_the_downtime_would_cut_short() -> None:
    long = jobs(waiting=1, walltime_s=10800.0)
    plan = plan_of(down_in(snapshot(classes=[long], types=(A100,)), 7200))
    assert plan.starts == ()
    assert why(plan, "class:small") == [reasons.Downtime("horeka", NOW + 7200, 6900.0, 10800.0)]
    elsewhere = plan_of(down_in(snapshot(classes=[long], types=(A100, CLOUD)), 7200))
    assert started(elsewhere) == [CLOUD.key]


# --------------- Sites whose drones leave something behind that must be cleared away, and that
# grant us a quota: clouds


VM = model.DroneType("cloud", "h100", 1000, 8, 20480, 0, vram_mib=81920, capability=90)
MIG = replace(VM, name="mig", vram_mib=10240, price=0.2)


def over(drone_id: str, **more: object) -> model.RemoteDrone:
    return model.RemoteDrone(drone_id, model.RemoteState.STOPPED, "vm-1", reason="SHUTOFF", **more)


def test_a_machine_that_is_over_counts_against_the_cap_and_is_no_supply() -> None:
    was = drone("kit-ab12-1", S.BUSY, VM)
    limits = {"max_drones": 2}
    plan = plan_for(
        waiting=2, types=(VM,), drones=[was], slots=[], remotes=[over(was.id)], limits=limits
    )
    [move] = plan.moves
    assert (move.drone.state, move.drone.leaving, move.drone.asked) == (S.STOPPING, None, 1)
    assert started(plan) == [VM.key], (
        "one place is left under the cap, and the one that is over takes no job"
    )
    assert reasons.LimitReached("max_drones", "cloud", 2, 2) in why(plan, "class:small")
    assert plan.stops == (), "its site clears it away by itself"


def test_one_that_is_not_cleared_away_is_asked_for_and_at_last_without_notice() -> None:
    was = drone(
        "kit-ab12-1", S.STOPPING, VM, age_s=100, asked=1, asked_at=NOW - 100, busy_at=NOW - 900
    )
    remote = over(was.id)
    plan = plan_for(types=(VM,), drones=[was], slots=[], remotes=[remote])
    [stop] = plan.stops
    assert (
        isinstance(stop.reason, reasons.StateTimeout)
        and not stop.kill
        and stop.drone.leaving is None
    )
    late = replace(stop.drone, asked=3, asked_at=NOW - 100)
    [stop] = plan_for(types=(VM,), drones=[late], slots=[], remotes=[remote]).stops
    assert stop.kill


def test_a_slot_ad_that_outlives_its_machine_brings_nothing_to_life() -> None:
    was = drone("kit-ab12-1", S.STOPPING, VM, joined_at=NOW - 500)
    slot = slot_of(drone("kit-ab12-1", S.IDLE, VM), VM)
    plan = plan_for(waiting=1, types=(VM,), drones=[was], slots=[slot], remotes=[over(was.id)])
    assert started(plan) == [VM.key], "its free slot is not believed"


def test_strays_that_are_over_are_left_to_their_site() -> None:
    plan = plan_for(types=(VM,), remotes=[over("kit-ab12-9")])
    assert plan.orphans == ()


def test_a_cloud_that_accepts_the_probe_has_shown_nothing_yet() -> None:
    """202 is its answer to everything: only a machine that runs shows that there is room again."""
    met = model.Fault(
        model.FaultKind.CAPACITY,
        "kit-ab12-1 waits: it failed",
        NOW - 60,
        of_order=True,
        accepted=True,
    )
    breaker = model.Breaker(
        model.Scope("cloud", "h100"), model.BreakerState.PROBING, NOW - 60, 2, 0.0, met
    )
    accepted = model.OrderResult(model.DroneId("kit-ab12-2"), model.OrderOutcome.OK, "vm-2")
    known, types = {breaker.scope: breaker}, {accepted.drone_id: VM.scope}
    assert update_by_order_results(known, types, [accepted], NOW) == []
    was = drone("kit-ab12-2", S.SUBMITTED, VM, age_s=5)
    waits = model.RemoteDrone(was.id, model.RemoteState.PENDING, "vm-2", reason="BUILD")
    given = {"waiting": 9, "types": (VM,), "drones": [was], "breakers": [breaker]}
    plan = plan_for(remotes=[waits], **given)
    assert (plan.starts, plan.breakers) == ((), ()), "one is tried"
    failed = replace(waits, reason="No valid host", blocked=model.FaultKind.CAPACITY, final=True)
    [again] = plan_for(remotes=[failed], **given).breakers
    assert (again.state, again.failures) == (model.BreakerState.BANNED, 3), (
        "and each time for longer"
    )
    runs = model.RemoteDrone(was.id, model.RemoteState.RUNNING, "vm-2", started_at=NOW)
    plan = plan_for(remotes=[runs], **given)
    assert [b.state for b in plan.breakers] == [model.BreakerState.ACTIVE] and started(plan)


@pytest.mark.parametrize("fault", [model.FaultKind.CAPACITY, model.FaultKind.QUOTA])
def test_one_of_the_same_batch_that_starts_later_shows_no_room_for_more(
    fault: model.FaultKind,
) -> None:
    met = model.Fault(
        fault, "kit-ab12-1 waits: quota exceeded", NOW - 5, of_order=True, accepted=True
    )
    breaker = model.Breaker(
        model.Scope("cloud", "h100"), model.BreakerState.BANNED, NOW - 5, 2, NOW + 100, met
    )
    for age_s, cured in ((30.0, False), (2.0, True)):
        was = drone("kit-ab12-2", S.QUEUED, VM, age_s=age_s)
        runs = model.RemoteDrone(was.id, model.RemoteState.RUNNING, "vm-2", started_at=NOW - 1)
        plan = plan_for(waiting=9, types=(VM,), drones=[was], remotes=[runs], breakers=[breaker])
        assert bool(started(plan)) is bool(plan.breakers) is cured


def test_types_share_a_quota_in_proportion() -> None:
    snap = snapshot(
        classes=[jobs(waiting=9)],
        types=(replace(VM, max_drones=2), MIG),
        quota={"h100": 4, "mig": 8},
    )
    kinds = started(plan_of(snap))
    assert len(kinds) <= 8 and kinds.count(VM.key) / 4 + kinds.count(MIG.key) / 8 <= 1.0


@pytest.mark.parametrize("limits", [{}, {"queue_when_full": True}])
def test_a_quota_holds_where_nodes_have_room_and_where_one_may_queue(
    limits: dict[str, object],
) -> None:
    room = [node("gk1", 8, kinds=("h100",))]
    assert started(
        plan_for(waiting=5, types=(VM,), nodes=room, quota={"h100": 1}, limits=limits)
    ) == [VM.key]
