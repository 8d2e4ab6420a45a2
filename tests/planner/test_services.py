"""Inference services: servers that start for demand, that are kept, and that leave."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from provisioner import model, reasons
from provisioner.controller.estimation import EstimateCollector
from provisioner.model import DroneState, SlotState
from provisioner.planner import services
from provisioner.planner.safeguards import safe_plan
from provisioner.planner.services import (
    Announced,
    has_model,
    held_state,
    learned_state,
    needed_servers,
)
from provisioner.planner.validation import validate_plan
from tests.planner.scenes import (
    A100,
    NOW,
    drone,
    jobs,
    plan_of,
    slot_of,
    snapshot,
    started,
    why,
    with_site,
)

CMS = model.Service("cms", at_most=8, server_rate=20.0, load=0.8)
SERVER = model.InferenceServer("cms", ("deepmet:3", "pnet:1"), "exec server")
TRITON = replace(A100, name="triton", vram_mib=16384, price=1.0, server=SERVER)
QUIET = model.ServiceView("cms")
CALLER = jobs(waiting=20, inference=("deepmet:3",))


def busy(requests_per_s: float, **more: object) -> model.ServiceView:
    return model.ServiceView("cms", requests_per_s=requests_per_s, **more)


def server(name: str, state: DroneState = DroneState.IDLE, **more: object) -> model.Drone:
    return drone(name, state, more.pop("kind", TRITON), service="cms", **more)


def world(
    view: model.ServiceView = QUIET,
    servers: Iterable[model.Drone] = (),
    *,
    service: model.Service = CMS,
    state: model.ServiceState | None = None,
    slots: Iterable[model.Slot] | None = None,
    fault: model.Fault | None = None,
    share: float = 1.0,
    drones: Iterable[model.Drone] = (),
    **given: object,
) -> model.Snapshot:
    """A snapshot with one service, whose servers are in its pool as their states say."""
    servers = list(servers)
    if slots is None:
        there = (DroneState.IDLE, DroneState.BUSY)
        slots = [slot_of(d, TRITON, jobs=d.jobs) for d in servers if d.state in there]
    policy = model.Policy(services=(service,), services_share=share)
    given.setdefault("types", (A100, TRITON))
    given.setdefault("free", {"a100": 50, "triton": 50})
    seen = snapshot(drones=[*drones, *servers], policy=policy, **given)
    pool = model.ServicesView(NOW - 1, (view,), tuple(slots))
    before = seen.overlay.view
    assert before is not None
    mine = {each.id for each in servers}
    others = tuple(slot for slot in before.slots if slot.drone_id not in mine)
    return replace(
        seen,
        overlay=replace(seen.overlay, view=replace(before, slots=others)),
        services=model.PolledServices(pool, fault),
        service_states={} if state is None else {"cms": state},
    )


def state_of(plan: model.Plan) -> model.ServiceState:
    (state,) = plan.services
    return state


def leaves(plan: model.Plan) -> dict[str, str]:
    """Return the order to each drone that leaves, with the kind of its reason."""
    found = {d.drone.id: f"drain {d.reason.kind}" for d in plan.drains}
    return found | {s.drone.id: f"stop {s.reason.kind}" for s in plan.stops}


# --- the need, as a number


@pytest.mark.parametrize(
    ("view", "announced", "servers"),
    [
        (QUIET, Announced(), 0),
        (QUIET, Announced(waiting=20), 1),
        (QUIET, Announced(running=20), 2),  # of one request/s each, 16 of which fill a server
        (busy(0.0, in_flight=1), Announced(), 1),
        (busy(0.01), Announced(), 1),
        (busy(16.0), Announced(), 1),
        (busy(16.1), Announced(), 2),
        (busy(100.0, request_s=0.03), Announced(), 4),
        (busy(20.0, queued=10), Announced(), 2),  # worked off beside the others
        (busy(20.0, queued=3000), Announced(), 3),  # 150 s of work within 90 s
        (busy(20.0, queued=4000), Announced(), 4),
    ],
)
def test_need(view: model.ServiceView, announced: Announced, servers: int) -> None:
    state = learned_state(model.ServiceState("cms"), view, announced.running, NOW)
    assert needed_servers(CMS, state, view, announced, 90.0) == servers


def test_at_least_is_needed_without_demand() -> None:
    warm = replace(CMS, at_least=2)
    assert needed_servers(warm, model.ServiceState("cms"), QUIET, Announced(), 90.0) == 2


views = st.builds(
    model.ServiceView,
    st.just("cms"),
    requests_per_s=st.floats(0, 1e4),
    in_flight=st.integers(0, 1000),
    queued=st.integers(0, 10_000),
    request_s=st.floats(0, 10),
)
announcements = st.builds(Announced, st.integers(0, 1000), st.integers(0, 1000))


@given(view=views, announced=announcements)
def test_need_is_zero_without_demand_alone(view: model.ServiceView, announced: Announced) -> None:
    state = learned_state(model.ServiceState("cms"), view, announced.running, NOW)
    needed = needed_servers(CMS, state, view, announced, 90.0)
    calls = view.requests_per_s or view.in_flight or view.queued or announced
    assert (needed > 0) == bool(calls)
    more = replace(view, requests_per_s=view.requests_per_s * 2 + 1)
    assert needed_servers(CMS, state, more, announced, 90.0) >= needed


@given(st.lists(st.tuples(st.floats(0.5, 200), st.integers(0, 12)), max_size=40))
def test_wanted_is_the_highest_need_of_the_hold_time(steps: list[tuple[float, int]]) -> None:
    state = model.ServiceState("cms")
    now = NOW
    lasted: list[tuple[float, int]] = []  # time until which a need lasted
    for pause_s, needed in steps:
        now += pause_s
        lasted.append((now, state.needed))
        state = held_state(state, needed, 10, 60.0, now, now)
        expected = max([needed, *(count for until, count in lasted if now - until < 60.0)])
        assert state.wanted == min(10, expected)
        assert held_state(state, needed, 10, 60.0, now, now) == state
    assert list(state.peaks) == sorted(state.peaks, key=lambda peak: -peak[1])


def test_a_time_of_requests_that_hardly_changes_stays() -> None:
    state = model.ServiceState("cms", request_s=0.05)
    assert learned_state(state, busy(1.0, request_s=0.052), 0, NOW) == state
    assert learned_state(state, busy(1.0, request_s=0.06), 0, NOW).request_s == 0.06
    assert learned_state(state, QUIET, 0, NOW).request_s == 0.05


def test_requests_of_a_job_are_learned() -> None:
    state = learned_state(model.ServiceState("cms"), busy(5.0), 10, NOW)
    assert (state.job_requests_per_s, state.learned_at) == (0.0, NOW)
    assert learned_state(state, busy(5.0), 10, NOW + 299) == state
    state = learned_state(state, busy(5.0), 10, NOW + 300)
    assert state.job_requests_per_s == 0.5
    silent = learned_state(state, QUIET, 10, NOW + 600)
    assert silent.job_requests_per_s == 0.25
    later = learned_state(silent, QUIET, 0, NOW + 601)
    assert (later.job_requests_per_s, later.learned_at, later.measured_jobs) == (0.25, 0.0, 0)


def test_requests_are_predicted_for_jobs_that_began_since_the_last_measurement() -> None:
    known = model.ServiceState("cms", job_requests_per_s=8.0, learned_at=NOW, measured_jobs=4)
    for running, view, needed in ((4, QUIET, 1), (5, QUIET, 3), (5, busy(50.0), 4), (2, QUIET, 1)):
        state = learned_state(known, view, running, NOW + 60)
        assert needed_servers(CMS, state, view, Announced(running=running), 90.0) == needed
        assert state.measured_jobs == min(4, running)
    assert learned_state(known, QUIET, 5, NOW + 300).measured_jobs == 5


def test_jobs_that_never_call_keep_one_server() -> None:
    state = model.ServiceState("cms")
    for minutes in range(0, 61, 5):
        state = learned_state(state, QUIET, 1000, NOW + 60 * minutes)
    assert needed_servers(CMS, state, QUIET, Announced(running=1000), 90.0) == 1


def test_models_match_by_name_and_version() -> None:
    assert has_model(SERVER.models, "deepmet:3") and has_model(SERVER.models, "deepmet")
    assert not has_model(SERVER.models, "deepmet:4") and not has_model(SERVER.models, "deep")


# --- starts


def test_nothing_starts_without_demand() -> None:
    plan = plan_of(world())
    assert not plan.starts and state_of(plan).wanted == 0


def test_requests_start_servers() -> None:
    plan = plan_of(world(busy(40.0, queued=7)))
    assert started(plan) == [TRITON.key] * 3
    assert {s.reason for s in plan.starts} == {
        reasons.ServiceRequested("cms", 40.0, 7, needed=3, servers=0, starts=3)
    }
    assert {(s.drone.service, s.drone.for_class) for s in plan.starts} == {("cms", "")}


def test_waiting_jobs_that_announce_a_model_start_one() -> None:
    plan = plan_of(world(classes=[CALLER]))
    assert started(plan).count(TRITON.key) == 1
    reason = next(s.reason for s in plan.starts if s.drone.service)
    assert reason == reasons.ServiceAnnounced("cms", 20, 0, needed=1, servers=0, starts=1)


def test_jobs_that_no_drone_can_run_start_none() -> None:
    plan = plan_of(world(classes=[replace(CALLER, vram_mib=500_000)]))
    assert not plan.starts and state_of(plan).needed == 0


def test_jobs_that_run_on_other_nodes_start_one() -> None:
    plan = plan_of(
        world(classes=[jobs(waiting=0, running=3, gpu_milli=0, inference=("deepmet:3",))])
    )
    assert started(plan) == [TRITON.key] and not plan.refusals


def test_an_unknown_model_starts_nothing_and_is_refused() -> None:
    plan = plan_of(world(classes=[replace(CALLER, inference=("deepmet:4", "nope"))]))
    assert TRITON.key not in started(plan)
    told = [each for each in why(plan, "class:small") if each.kind == "model-unknown"]
    assert told == [reasons.ModelUnknown("deepmet:4"), reasons.ModelUnknown("nope")]


def test_at_least_starts_without_demand() -> None:
    plan = plan_of(world(service=replace(CMS, at_least=2)))
    assert [s.reason.kind for s in plan.starts] == ["service-minimum"] * 2


def test_coming_servers_count() -> None:
    coming = [server("d1", DroneState.BOOTING), server("d2", DroneState.REQUESTED)]
    assert len(plan_of(world(busy(40.0), coming)).starts) == 1


def test_at_most() -> None:
    plan = plan_of(world(busy(400.0)))
    assert len(plan.starts) == 8
    assert why(plan, "service:cms") == [reasons.LimitReached("at_most", "service cms", 0, 8)]


def test_limits_of_the_site_hold() -> None:
    plan = plan_of(world(busy(40.0), limits={"max_drones": 2}))
    assert len(plan.starts) == 2
    assert why(plan, "service:cms") == [reasons.LimitReached("max_drones", "topas", 0, 2)]


def test_a_full_site_is_the_reason() -> None:
    plan = plan_of(world(busy(4.0), free={"a100": 0, "triton": 0}))
    assert not plan.starts
    assert [each.kind for each in why(plan, "service:cms")] == ["site-full"]


def test_a_banned_type_is_the_reason() -> None:
    ban = model.Breaker(TRITON.scope, model.BreakerState.BANNED, until=NOW + 60)
    plan = plan_of(world(busy(4.0), breakers=[ban]))
    assert not plan.starts
    assert [each.kind for each in why(plan, "service:cms")] == ["backing-off"]


def test_a_service_without_a_type_is_refused() -> None:
    plan = plan_of(world(busy(4.0), types=[A100]))
    assert [each.kind for each in why(plan, "service:cms")] == ["nothing-fits"]


def test_the_smallest_gpu_of_the_lowest_price() -> None:
    dear = replace(TRITON, name="dear", price=3.0)
    large = replace(TRITON, name="large", vram_mib=81920)
    free = {"dear": 5, "large": 5, "triton": 5}
    plan = plan_of(world(busy(4.0), types=[dear, large, TRITON], free=free))
    assert started(plan) == [TRITON.key]
    plan = plan_of(world(busy(4.0), types=[dear, large, TRITON], free={**free, "triton": 0}))
    assert started(plan) == [large.key]


def test_away_from_owners_the_more_clients_there_are() -> None:
    safe = replace(TRITON, site="horeka", price=1.2)
    seen = world(busy(4.0), types=[TRITON, safe], free=None)
    seen = replace(seen, estimates=replace(seen.estimates, taken_per_s={"topas": 1e-5}))
    assert started(plan_of(seen)) == [TRITON.key]
    crowd = replace(seen.services.view, services=(busy(4.0, in_flight=8, queued=500),))
    many = replace(seen, services=model.PolledServices(crowd))
    assert set(started(plan_of(many))) == {safe.key}


def test_no_start_without_a_view_of_the_services() -> None:
    state = model.ServiceState("cms", wanted=2, needed=2)
    fault = model.Fault(model.FaultKind.DOWN, "no answer", NOW)
    seen = world(QUIET, [server("d1"), server("d2")], state=state, fault=fault)
    plan = plan_of(seen)
    assert not plan.acts and plan.services == (state,)
    assert [each.kind for each in why(plan, "service:cms")] == ["stale-view"]


def test_requests_start_servers_without_a_view_of_the_overlay() -> None:
    fault = model.Fault(model.FaultKind.DOWN, "no answer", NOW)
    plan = plan_of(world(busy(4.0), overlay_fault=fault))
    assert started(plan) == [TRITON.key]
    calls = [replace(CALLER, running=30)]
    servers = [server(f"d{n}") for n in range(2)]
    assert not plan_of(world(QUIET, servers, classes=calls, overlay_fault=fault)).acts


# --- the part of the GPUs


def test_share_while_jobs_wait() -> None:
    workers = [drone(f"w{n}", DroneState.BUSY) for n in range(6)]
    seen = world(busy(400.0), share=0.5, drones=workers, free={"a100": 2, "triton": 2})
    waits = world(
        busy(400.0), share=0.125, drones=workers, free={"a100": 2, "triton": 2}, classes=[jobs()]
    )
    assert started(plan_of(seen)).count(TRITON.key) == 2  # no job waits
    plan = plan_of(waits)
    assert started(plan).count(TRITON.key) == 1
    assert reasons.ServicesShare(1.0, 8.0, 0.125) in why(plan, "service:cms")


def test_the_only_gpu_is_for_jobs_that_wait() -> None:
    only = {"a100": 1, "triton": 1}
    plan = plan_of(world(share=0.5, free=only, classes=[CALLER]))
    assert started(plan) == [A100.key]
    assert [each.kind for each in why(plan, "service:cms")] == ["services-share"]


def test_servers_beyond_their_share_yield_to_jobs_that_lack_room() -> None:
    servers = [server(f"d{n}", DroneState.BUSY, jobs=n) for n in (1, 2, 3)]
    state = model.ServiceState("cms", wanted=3, needed=3)
    given = {"state": state, "share": 0.5, "free": {"a100": 0, "triton": 0}}
    plan = plan_of(world(busy(40.0, in_flight=6), servers, classes=[jobs()], **given))
    assert leaves(plan) == {"d1": "drain server-yields"}
    assert not plan_of(world(busy(40.0, in_flight=6), servers, **given)).acts


# --- servers that leave


def test_servers_are_kept_for_the_hold_time() -> None:
    servers = [server("d1"), server("d2")]
    state = model.ServiceState("cms", wanted=2, needed=2)
    kept = plan_of(world(QUIET, servers, state=state))
    assert not kept.acts
    assert state_of(kept).peaks == ((NOW, 2),)
    held = replace(state_of(kept), peaks=((NOW - 89, 2),))
    assert not plan_of(world(QUIET, servers, state=held)).acts
    over = replace(held, peaks=((NOW - 90, 2),))
    assert leaves(plan_of(world(QUIET, servers, state=over))) == {
        "d1": "drain surplus-server",
        "d2": "drain surplus-server",
    }


@pytest.mark.parametrize(
    ("quiet_s", "idle_s", "leaving"),
    [(89, 300.0, 0), (90, 300.0, 2), (24, 60.0, 0), (25, 60.0, 2)],
    ids=["a start", "over", "the configured time", "less two pauses and the stop"],
)
def test_the_hold_time_counts_from_the_last_request(
    quiet_s: float, idle_s: float, leaving: int
) -> None:
    """The rate of requests falls to zero later."""
    view = replace(QUIET, requested_at=NOW - quiet_s)
    state = model.ServiceState("cms", wanted=2, needed=1, peaks=((NOW - 5, 2),))
    service = replace(CMS, idle_s=idle_s)
    plan = plan_of(world(view, [server("d1"), server("d2")], service=service, state=state))
    assert len(leaves(plan)) == leaving


def test_the_hold_time_counts_from_the_end_of_announcing_jobs() -> None:
    view = replace(QUIET, requested_at=NOW - 5000)
    state = model.ServiceState("cms", wanted=1, needed=1, announced=3)
    plan = plan_of(world(view, [server("d1")], state=state))
    assert not plan.acts and state_of(plan).peaks == ((NOW, 1),)


def withdrawn(**more: object) -> model.Drone:
    """A server that leaves for want of demand, and works on nothing."""
    left = server("d1", DroneState.DRAINING, joined_at=NOW - 500, started_at=NOW - 600)
    return replace(left, **{"leaving": DroneState.DONE, "asked_at": NOW - 1, **more})


def with_withdrawn(drone: model.Drone, view: model.ServiceView, **given: object) -> model.Plan:
    slot = replace(slot_of(drone, TRITON), state=SlotState.DRAINING)
    return plan_of(world(view, [drone], slots=[slot], **given))


def test_a_withdrawn_server_is_taken_back_before_another_one_starts() -> None:
    plan = with_withdrawn(withdrawn(), busy(20.0))
    (back,) = plan.drains
    assert (back.mode, back.drone.state) == (model.DrainMode.RESUME, DroneState.IDLE)
    assert back.reason == reasons.ServerReturns("cms", needed=2, servers=0)
    assert [start.reason.servers for start in plan.starts] == [1]
    assert leaves(with_withdrawn(withdrawn(), QUIET)) == {"d1": "stop server-drained"}


@pytest.mark.parametrize(
    "changes",
    [
        {"state": DroneState.STOPPING, "asked": 1},
        {"leaving": DroneState.CANCELLED},
        {"notice_at": NOW - 1},
    ],
    ids=["its stop is ordered", "by an operator", "preempted"],
)
def test_others_are_not_taken_back(changes: dict[str, object]) -> None:
    plan = with_withdrawn(withdrawn(**changes), busy(4.0))
    assert not plan.drains and started(plan) == [TRITON.key]


def test_a_server_that_yielded_to_jobs_is_not_taken_back_while_they_wait() -> None:
    given = {"share": 0.0, "classes": [jobs()], "free": {"a100": 0, "triton": 0}}
    plan = with_withdrawn(withdrawn(), busy(4.0), **given)
    assert leaves(plan) == {"d1": "stop server-drained"} and not plan.starts


def test_of_a_surplus_those_leave_first_that_do_least() -> None:
    servers = [
        server("d1", DroneState.BUSY, jobs=2),
        server("d2", DroneState.BUSY, jobs=1, age_s=100),
        server("d3", DroneState.BUSY, jobs=1, age_s=50),
        server("d4", DroneState.QUEUED),
    ]
    plan = plan_of(world(busy(30.0), servers))
    assert leaves(plan) == {"d3": "drain surplus-server", "d4": "stop surplus-server"}
    assert not plan_of(world(busy(60.0), servers)).acts


def test_jobs_keep_no_server_and_an_idle_server_is_not_idle() -> None:
    servers = [server("d1", age_s=5000), server("q1", DroneState.QUEUED, age_s=5000)]
    state = model.ServiceState("cms", wanted=2, needed=2)
    plan = plan_of(world(busy(30.0), servers, state=state))
    assert not plan.acts


def test_a_withdrawn_server_stops_when_its_requests_are_done() -> None:
    left = server("d1", DroneState.DRAINING, age_s=10, joined_at=NOW - 500, started_at=NOW - 600)
    left = replace(left, leaving=DroneState.DONE, asked_at=NOW - 10, jobs=3)
    slot = replace(slot_of(left, TRITON), state=SlotState.DRAINING)
    works = world(QUIET, [left], slots=[replace(slot, jobs=3)])
    assert not plan_of(works).acts
    done = world(QUIET, [replace(left, jobs=0)], slots=[slot])
    assert leaves(plan_of(done)) == {"d1": "stop server-drained"}
    asked = world(QUIET, [replace(left, jobs=0)], slots=[replace(slot, state=SlotState.IDLE)])
    assert not plan_of(asked).acts
    late = replace(left, since=NOW - 31, asked_at=NOW - 5)
    over = world(QUIET, [late], slots=[replace(slot, jobs=3)])
    assert leaves(plan_of(over)) == {"d1": "stop state-timeout"}


def test_a_successor_comes_before_the_walltime_ends() -> None:
    short = replace(TRITON, walltime_s=3600.0)
    given = {"types": (A100, short), "state": model.ServiceState("cms", wanted=1, needed=1)}
    old = server("d1", DroneState.BUSY, started_at=NOW - 3000, jobs=1)
    assert not plan_of(world(busy(4.0), [old], **given)).acts
    near = replace(old, started_at=NOW - 3400)
    plan = plan_of(world(busy(4.0), [near], **given))
    assert started(plan) == [short.key] and not plan.leaves
    boots = server("d2", DroneState.BOOTING)
    assert not plan_of(world(busy(4.0), [near, boots], **given)).acts
    ready = server("d2", DroneState.IDLE)
    replaced = plan_of(world(busy(4.0), [near, ready], **given))
    assert leaves(replaced) == {"d1": "drain server-ends"}
    last = replace(old, started_at=NOW - 3520)
    plan = plan_of(world(busy(4.0), [last], **given))
    assert leaves(plan) == {"d1": "drain server-ends"} and started(plan) == [short.key]


def test_a_successor_has_time_to_load_however_short_the_walltime() -> None:
    short = replace(TRITON, walltime_s=160.0)
    given = {"types": (A100, short), "state": model.ServiceState("cms", wanted=1, needed=1)}
    near = server("d1", DroneState.BUSY, started_at=NOW - 82, jobs=1)
    plan = plan_of(world(busy(4.0), [near], **given))
    assert started(plan) == [short.key] and not plan.leaves
    last = replace(near, started_at=NOW - 122)
    assert leaves(plan_of(world(busy(4.0), [last], **given))) == {"d1": "drain server-ends"}


def test_a_successor_comes_before_a_long_grace_begins() -> None:
    old = server("d1", DroneState.BUSY, started_at=NOW - 2900, jobs=1)
    long = replace(TRITON, walltime_s=3600.0)
    given = {"types": (A100, long), "state": model.ServiceState("cms", wanted=1, needed=1)}
    plan = plan_of(world(busy(4.0), [old], **given, limits={"grace_s": 600.0}))
    assert started(plan) == [long.key] and not plan.leaves


def test_a_server_that_its_site_preempts_is_replaced_at_once() -> None:
    noticed = server("d1", DroneState.BUSY, jobs=1, notice_at=NOW - 1)
    plan = plan_of(world(busy(4.0), [noticed]))
    assert started(plan) == [TRITON.key] and leaves(plan) == {"d1": "drain server-ends"}


def test_delayed_servers_count_where_another_would_wait_too() -> None:
    late = server("d1", DroneState.QUEUED, age_s=2000)
    seen = world(busy(4.0), [late], free={"a100": 0, "triton": 0}, limits={"queue_when_full": True})
    assert not plan_of(seen).acts
    elsewhere = replace(TRITON, site="horeka")
    both = world(busy(4.0), [late], types=(TRITON, elsewhere), free={"triton": 0})
    there = with_site(both, "horeka", free={"triton": 4})
    blocked = model.RemoteDrone(late.id, model.RemoteState.PENDING, blocked=model.FaultKind.QUOTA)
    delayed = with_site(there, "topas", drones={late.id: blocked})
    assert started(plan_of(delayed)) == [elsewhere.key]


def test_a_plan_that_changes_nothing_leaves_the_state_equal() -> None:
    state = model.ServiceState("cms", wanted=2, needed=2, request_s=0.05)
    servers = [server("d1", DroneState.BUSY, jobs=1), server("d2")]
    plan = plan_of(world(busy(30.0, request_s=0.05), servers, state=state))
    assert plan.services == (state,) and not plan.acts


@settings(max_examples=60, deadline=None)
@given(
    view=views,
    waiting=st.integers(0, 5),
    running=st.integers(0, 50),
    ready=st.integers(0, 4),
    coming=st.integers(0, 4),
    wanted=st.integers(0, 6),
    at_least=st.integers(0, 2),
    share=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    free=st.integers(0, 6),
)
def test_plans_keep_the_promises(
    view: model.ServiceView,
    waiting: int,
    running: int,
    ready: int,
    coming: int,
    wanted: int,
    at_least: int,
    share: float,
    free: int,
) -> None:
    servers = [server(f"r{n}", DroneState.BUSY, jobs=n) for n in range(ready)]
    servers += [server(f"c{n}", DroneState.BOOTING) for n in range(coming)]
    seen = world(
        view,
        servers,
        service=replace(CMS, at_least=at_least, at_most=6),
        state=model.ServiceState("cms", wanted=wanted, needed=wanted),
        share=share,
        free={"a100": free, "triton": free},
        classes=[jobs(waiting=waiting, running=running, inference=("pnet:1",))],
    )
    plan = plan_of(seen)
    staying = ready + coming - sum(1 for each in plan.leaves)
    if plan.leaves and not any(d.reason.kind == "server-yields" for d in plan.drains):
        assert staying >= state_of(plan).wanted
    assert staying + sum(1 for s in plan.starts if s.drone.service) <= max(6, staying)


# --- the independent validation


def broken(snap: model.Snapshot, **changes: object) -> list[str]:
    return [str(breach) for breach in validate_plan(snap, replace(plan_of(snap), **changes))]


def test_the_validation_knows_services() -> None:
    seen = world(busy(40.0))
    (first, *others) = plan_of(seen).starts
    for service, text in (("", "for service ''"), ("atlas", "for service 'atlas'")):
        wrong = replace(first, drone=replace(first.drone, service=service))
        assert any(text in line for line in broken(seen, starts=(wrong, *others)))
    quiet = world()
    assert broken(quiet, starts=(first,)) == [
        f"{first.drone.id} is started for service cms, for which nothing calls"
    ]
    few = world(busy(40.0), service=replace(CMS, at_most=2))
    assert "3 servers of cms, 2 allowed" in broken(few, starts=(first, *others))
    wrong_reason = replace(first, reason=reasons.SurplusServer("cms", 1, 1))
    assert any("is started because" in line for line in broken(seen, starts=(wrong_reason,)))
    fault = model.Fault(model.FaultKind.DOWN, "no answer", NOW)
    blind = replace(seen, services=replace(seen.services, fault=fault))
    assert broken(blind, starts=(first,)) == [
        "1 starts and 0 drains without a fresh view of the services"
    ]


def test_the_validation_keeps_the_least_number() -> None:
    seen = world(QUIET, [server("d1"), server("d2")])
    drains = plan_of(seen).drains
    assert len(drains) == 2
    warm = world(QUIET, [server("d1"), server("d2")], service=replace(CMS, at_least=1))
    assert "2 of 2 servers of cms leave, at least 1 are kept" in broken(warm, drains=drains)


def test_an_error_in_the_services_leaves_servers_alone_and_serves_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> int:
        raise ZeroDivisionError("division by zero")

    state = model.ServiceState("cms", wanted=3, needed=3)
    seen = world(QUIET, [server("d1"), server("d2")], state=state, classes=[jobs(waiting=2)])
    assert leaves(plan_of(world(QUIET, [server("d1")])))
    monkeypatch.setattr(services, "needed_servers", fails)
    found = safe_plan(seen)
    assert started(found.plan) == [A100.key] * 2
    assert not found.plan.leaves and found.plan.services == (state,)
    (told,) = why(found.plan, "service:cms")
    assert "ZeroDivisionError" in told.describe()
    assert found.faults == ("the planner failed: ZeroDivisionError: division by zero",)


# --- beside jobs


def test_an_owner_gets_the_gpu_whose_end_costs_least() -> None:
    """A server with clients counts by what these would wait; a server without any goes first."""
    worker = drone("w1", DroneState.BUSY, age_s=200, node="n1")
    full = model.Node("n1", ("a100", "triton"), 2000, 64, 10**6, 0, 0, 0, 10**6, 0)
    claims = [model.OwnerDemand(1, 1000, 8, 1024, NOW - 30)]

    def victims(requests: int, announced: int = 0) -> list[str]:
        one = server("d1", DroneState.BUSY, node="n1", jobs=requests, joined_at=NOW - 100)
        seen = world(
            busy(4.0),
            [one],
            state=model.ServiceState("cms", wanted=1, needed=1, announced=announced),
            drones=[worker],
            free=None,
            nodes=[full],
            claims=claims,
        )
        return [s.drone.id for s in plan_of(seen).stops]

    assert victims(1) == ["d1"]  # 135 s until another one is ready
    assert victims(2) == ["w1"]
    assert victims(1, announced=20) == ["w1"]


def test_no_server_leaves_for_a_job_of_several_gpus() -> None:
    quad = replace(A100, name="quad", gpu_milli=4000)
    servers = [server(f"d{n}", node="n1") for n in range(4)]
    full = model.Node("n1", ("quad", "triton"), 4000, 64, 10**6, 0, 0, 32, 10**6, 0)
    large = jobs(gpu_milli=4000, oldest_at=NOW - 90_000)
    seen = world(
        busy(60.0), servers, types=(quad, TRITON), nodes=[full], free=None, classes=[large]
    )
    assert not plan_of(seen).leaves


def test_what_servers_do_is_no_gap_between_jobs() -> None:
    collector = EstimateCollector()
    idle = server("d1", DroneState.IDLE, age_s=500)
    works = replace(idle, state=DroneState.BUSY, idle_at=0.0, jobs=1)
    seen = world(QUIET, [idle])
    move = model.StateChange(works, DroneState.IDLE, reasons.SeenInPool("busy", 1, 1.0))
    for _ in range(2):  # the first one shows that the pool is watched
        collector.note(seen, model.Plan(1, NOW, moves=(move,)))
    assert not collector.samples(NOW).sites["topas"].gaps_s
    mine = replace(move, drone=replace(works, service=""))
    collector.note(seen, model.Plan(2, NOW, moves=(mine,)))
    assert collector.samples(NOW).sites["topas"].gaps_s == (500.0,)
