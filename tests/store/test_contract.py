"""The record: what the controller writes, it and an operator read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from provisioner.estimates import EstimateSamples
from provisioner.model import (
    Breaker,
    BreakerState,
    Drain,
    DrainMode,
    DroneId,
    DroneState,
    Fault,
    FaultKind,
    OwnerClaimBackoff,
    Plan,
    PolledOverlay,
    PolledSite,
    RequestKind,
    StateChange,
    Stop,
    StopOrphan,
    type_key,
)
from provisioner.reasons import EndedAtSite, IdleTimeout, NotInListing, OperatorRequested, Orphan
from provisioner.store import Event, Transition
from provisioner.store.reader import Reader
from tests.store.story import (
    DONE,
    KNOWN,
    LEARNED,
    NOTHING_FITS,
    SEEN,
    WHY,
    drone,
    now_is,
    record,
    seen,
    starts,
    store_at,
)

S = DroneState
TOLD = EndedAtSite("exited", 0, "walltime", 3600.0, 12)


async def test_a_new_store_is_empty_and_has_a_birth_of_its_own(file: Path) -> None:
    async with store_at(file) as store:
        assert (store.tick, store.next_serial, dict(store.drones), dict(store.breakers)) == (0, 1, {}, {})
        assert len(store.birth) == 4 and store.birth.isalnum() and store.birth == store.birth.lower()
        born = store.birth
        reader = Reader(file)
        assert reader.views() is None and reader.snapshot() is None and reader.plans() == []
        assert reader.drones(ended=None) == [] and reader.drone(DroneId("kit-ab12-1")) is None
    async with store_at(file) as store:
        assert store.birth == born


async def test_an_intent_is_on_record_before_the_site_is_called(file: Path) -> None:
    first, second = drone(1), drone(2)
    async with store_at(file) as store:
        await record(store, starts(1, first, second))
        # here the site would be called: whoever looks at the record now, finds the intents
        assert Reader(file).drones() == [first, second]
        assert Reader(file).history(second.id) == [Transition(second.id, 100.0, None, S.REQUESTED, WHY, 1)]
        assert dict(store.drones) == {first.id: first, second.id: second}
        assert (store.tick, store.next_serial) == (1, 3)
    async with store_at(file) as store:
        assert dict(store.drones) == {first.id: first, second.id: second}
        assert (store.tick, store.next_serial) == (1, 3)


async def test_a_clock_that_was_set_is_on_record_with_the_times_that_were_moved(file: Path) -> None:
    """A crash between the two would let two days pass for each limit in one step."""
    one = drone(1)
    async with store_at(file) as store:
        await record(store, starts(1, one))
        assert store.committed.recorded_at == 100.0
        moved = replace(one, since=one.since + 900.0, requested_at=one.requested_at + 900.0)
        await store.record_results(
            1, (StateChange(moved, moved.state, SEEN),), (Breaker("topas", since=900.0),), set_to=1000.0
        )
        assert (store.committed.recorded_at, store.committed.recorded_drift_s) == (1000.0, 0.0)
        await store.record_results(1, (), (), set_to=1100.0)
    async with store_at(file) as store:
        assert (store.committed.recorded_at, store.committed.recorded_drift_s) == (1100.0, 0.0)
        assert dict(store.drones) == {one.id: moved} and store.breakers["topas"].since == 900.0
        await store.record_results(1, (), ())
        assert store.committed.recorded_at == 1100.0


async def test_the_record_tells_a_drones_whole_life(file: Path) -> None:
    one = drone(1)
    async with store_at(file) as store:
        await record(store, starts(1, one))
        queued = now_is(one, S.SUBMITTED, at=101.0, remote_id="4711", submitted_at=101.0)
        await store.record_results(1, (queued,), ())
        idle = now_is(queued.drone, S.IDLE, at=160.0, idle_at=160.0, heard_at=159.5, slot="slot1@w1")
        await record(store, Plan(2, 160.0, moves=(idle,)))
        asked = replace(idle.drone, state=S.DRAINING, since=800.0, asked_at=800.0, leaving=S.DONE)
        why = IdleTimeout(640.0, 600.0)
        await record(store, Plan(3, 800.0, drains=(Drain(asked, S.IDLE, DrainMode.PEACEFUL, why),)))
        stopping = replace(asked, state=S.STOPPING, since=810.0, asked=1)
        await record(store, Plan(4, 810.0, stops=(Stop(stopping, S.DRAINING, why),)))
        gone = now_is(stopping, S.DONE, at=820.0, reason=TOLD, ended_at=820.0)
        await record(store, Plan(5, 820.0, moves=(gone,)))

        life = [(step.tick, step.at, step.was, step.state, step.reason) for step in Reader(file).history(one.id)]
        assert life == [
            (1, 100.0, None, S.REQUESTED, WHY),
            (1, 101.0, S.REQUESTED, S.SUBMITTED, SEEN),
            (2, 160.0, S.SUBMITTED, S.IDLE, SEEN),
            (3, 800.0, S.IDLE, S.DRAINING, why),
            (4, 810.0, S.DRAINING, S.STOPPING, why),
            (5, 820.0, S.STOPPING, S.DONE, TOLD),
        ]
        assert dict(store.drones) == {} and Reader(file).drones() == []
        assert Reader(file).drone(one.id) == gone.drone
        assert Reader(file).drones(ended=True) == [gone.drone]
        assert await store.ended([one.id, DroneId("kit-ab12-77")]) == {one.id: S.DONE}


async def test_hearing_from_a_drone_again_is_kept_but_is_no_step_and_no_news(file: Path) -> None:
    one = drone(1, S.IDLE)
    async with store_at(file) as store:
        await record(store, starts(1, one))
        again = now_is(one, S.IDLE, at=500.0, heard_at=499.0)
        await record(store, Plan(2, 500.0, moves=(again,)))
        missing = now_is(again.drone, S.IDLE, at=510.0, missing_at=509.0, reason=NotInListing())
        await record(store, Plan(3, 510.0, moves=(missing,)))
        assert Reader(file).drone(one.id) == store.drones[one.id] == missing.drone
        assert missing.drone.heard_at == 499.0 and missing.drone.missing_at == 509.0
        assert len(Reader(file).history(one.id)) == 1
        assert [(plan.tick, plan.at, plan.moves) for plan in Reader(file).plans()] == [
            (1, 100.0, ()),
            (3, 510.0, ()),
        ]
    async with store_at(file) as store:
        assert store.drones[one.id] == missing.drone


async def test_what_was_handed_out_never_changes(file: Path) -> None:
    async with store_at(file) as store:
        await record(store, starts(1, drone(1)))
        drones, breakers = store.drones, store.breakers
        await store.record_results(1, (now_is(drone(1), S.FAILED, at=3.0, ended_at=3.0),), (Breaker("topas"),))
        assert set(drones) == {DroneId("kit-ab12-1")} and dict(breakers) == {}
        assert dict(store.drones) == {} and set(store.breakers) == {"topas"}


async def test_breakers_survive_until_they_say_nothing_any_more(file: Path) -> None:
    fault = Fault(FaultKind.QUOTA, "quota exceeded: 40/40", 99.0)
    banned = Breaker("topas", BreakerState.BANNED, 100.0, 3, 160.0, fault)
    of_type = Breaker("topas/a100", BreakerState.DEGRADED, 100.0, 1)
    async with store_at(file) as store:
        await store.record(Plan(1, 100.0, breakers=(banned, of_type)), seen(store, Plan(1, 100.0)))
        probing = replace(banned, state=BreakerState.PROBING, since=161.0)
        of_class = Breaker("topas/a100#9f31", BreakerState.BANNED, 100.0, 1, 700.0)
        await store.record_results(1, (), (probing, of_class))
        assert set(store.breakers) == set(Reader(file).breakers()) == {"topas", "topas/a100", of_class.scope}
        await store.record_results(1, (), (Breaker(of_class.scope, since=701.0),))  # one that says nothing any more
        expected = {"topas": probing, "topas/a100": of_type}
        assert dict(store.breakers) == dict(Reader(file).breakers()) == expected
    async with store_at(file) as store:
        assert dict(store.breakers) == expected


async def test_serial_numbers_are_never_used_twice(file: Path) -> None:
    async with store_at(file) as store:
        await record(store, starts(1, drone(1), drone(41)))
        gone = [now_is(drone(n), S.FAILED, at=101.0, ended_at=101.0) for n in (1, 41)]
        await store.record_results(1, gone, ())
        assert store.next_serial == 42
        await store.prune(100_000.0)
        assert Reader(file).drones(ended=None) == []
    async with store_at(file) as store:
        assert store.next_serial == 42


async def test_a_plan_that_says_nothing_new_is_not_stored_again(file: Path) -> None:
    async with store_at(file) as store:
        for tick in range(1, 6):
            await record(store, Plan(tick, 100.0 * tick, refusals=(NOTHING_FITS,)))
        assert Reader(file).plans() == [Plan(5, 500.0, refusals=(NOTHING_FITS,))]
        await record(store, Plan(6, 600.0))
        await record(store, Plan(7, 700.0, refusals=(NOTHING_FITS,)))
        plans = Reader(file).plans()
        assert [(plan.tick, len(plan.refusals)) for plan in plans] == [(5, 1), (6, 0), (7, 1)]
        orphan = StopOrphan("topas", DroneId("kit-zz99-5"), "4712", Orphan())
        for tick in (8, 9):  # what acts is stored even if it repeats
            await record(store, Plan(tick, 100.0 * tick, orphans=(orphan,)))
        reader = Reader(file)
        assert [plan.tick for plan in reader.plans()] == [5, 6, 7, 8, 9]
        assert [plan.tick for plan in reader.plans(acting=True)] == [8, 9]
        assert [plan.tick for plan in reader.plans(since=700.0, limit=2)] == [8, 9]
        assert reader.plans(limit=1)[0].orphans == (orphan,)


async def test_snapshots_of_the_newest_acting_ticks_are_kept_whole(file: Path) -> None:
    taken = {}
    async with store_at(file) as store:
        for tick in range(1, 6):
            taken[tick] = await record(store, starts(tick, drone(tick), at=100.0 + tick))
        await record(store, Plan(6, 200.0))
        reader = Reader(file)
        assert reader.kept_snapshots() == [3, 4, 5]
        assert [reader.snapshot(tick) for tick in (2, 6)] == [None, None]
        assert reader.snapshot(4) == taken[4]


async def test_the_patience_with_an_owners_queue_survives_and_is_in_the_next_snapshot(file: Path) -> None:
    """`provisioner plan` and a restarted controller forgot it, and asked more drones to leave."""
    known = OwnerClaimBackoff("topas", 50.0, 2, 2)
    async with store_at(file) as store:
        await record(store, Plan(1, 100.0, patience=(known, OwnerClaimBackoff("horeka", 60.0, 1))))
        await record(store, Plan(2, 110.0, patience=(known,)))
        await record(store, Plan(3, 120.0, patience=(known,)))
        following = Reader(file).snapshot()
        assert following is not None
        assert dict(following.patience) == dict(store.committed.patience) == {"topas": known}
    async with store_at(file) as store:
        assert dict(store.committed.patience) == {"topas": known}
        await record(store, Plan(4, 130.0))
        assert dict(store.committed.patience) == {}


async def test_the_next_snapshot_is_put_together_from_the_record(file: Path) -> None:
    async with store_at(file) as store:
        plan = starts(7, drone(1), drone(2))
        last = seen(store, plan, estimates=LEARNED, gpu_wanted_at=88.5)
        await store.record(plan, last)
        Reader(file).ask(RequestKind.KILL, [drone(1).id], reason="broken fan", by="mg", at=105.0)
        await store.record_results(7, (now_is(drone(1), S.SUBMITTED, at=101.0, remote_id="1"),), (Breaker("topas"),))
        following = Reader(file).snapshot()
        assert following == replace(
            last,
            now=100.0,
            tick=8,
            next_serial=3,
            drones=store.drones,
            breakers={"topas": Breaker("topas")},
            requests=await store.requests(),
        )
        assert Reader(file).snapshot(7) == last


async def test_views_are_the_newest_ones(file: Path) -> None:
    async with store_at(file) as store:
        await record(store, Plan(1, 100.0))
        plan = Plan(2, 115.0)
        failed = Fault(FaultKind.DOWN, "collector does not answer", 114.0)
        old = seen(store, plan)
        hopeless = {"horeka": PolledSite("horeka", None, failed)}
        later = replace(old, overlay=replace(old.overlay, fault=failed), sites={**old.sites, **hopeless})
        await store.record(plan, later)
        views = Reader(file).views()
        assert views is not None
        assert (views.tick, views.at, views.policy, views.types) == (2, 115.0, later.policy, later.types)
        assert (views.overlay, views.sites) == (later.overlay, later.sites)
        assert later.overlay.view is not None
        silent = PolledOverlay(replace(later.overlay.view, completions=None))
        await store.record(Plan(3, 120.0), replace(later, overlay=silent))
        views = Reader(file).views()
        assert views is not None and views.overlay == silent, "not told is not the same as none"
    async with store_at(file) as store:
        await store.record(Plan(4, 130.0), replace(later, overlay=PolledOverlay(None, failed), sites=hopeless))
        views = Reader(file).views()
        assert views is not None
        assert (views.tick, views.overlay, views.sites) == (4, PolledOverlay(None, failed), hopeless)


async def test_a_request_waits_until_a_plan_takes_it_up(file: Path) -> None:
    async with store_at(file) as store:
        reader = Reader(file)
        ids = (drone(1).id, drone(2).id)
        first = reader.ask(RequestKind.DRAIN, ids, reason="driver", by="mg", at=5.0, mode=DrainMode.FAST)
        second = reader.ask(RequestKind.KILL, ids[:1], reason="fan; rm -rf /", by="ab", at=6.0)
        waiting = await store.requests()
        assert [(each.id, each.kind, each.mode, each.drone_ids, each.reason, each.by, each.at) for each in waiting] == [
            (first, RequestKind.DRAIN, DrainMode.FAST, ids, "driver", "mg", 5.0),
            (second, RequestKind.KILL, DrainMode.PEACEFUL, ids[:1], "fan; rm -rf /", "ab", 6.0),
        ]
        await record(store, Plan(1, 7.0, requests_done=(first,)))
        assert [each.id for each in await store.requests()] == [second]
        await store.prune(1_000_000.0)
    third = reader.ask(RequestKind.KILL, (), reason="", by="", at=8.0)  # while no controller runs
    assert third > second
    async with store_at(file) as store:
        assert [each.id for each in await store.requests()] == [second, third]


async def test_events_are_told_in_order(file: Path) -> None:
    async with store_at(file) as store:
        await store.event(1.0, "reload", {"file": "provisioner.yaml"})
        await store.event(2.0, "clock-step", {"by_s": -3600.5, "count": 2})
        reader = Reader(file)
        events = reader.events()
        assert events == [
            Event(events[0].id, 1.0, "reload", {"file": "provisioner.yaml"}),
            Event(events[1].id, 2.0, "clock-step", {"by_s": -3600.5, "count": 2}),
        ]
        assert reader.events(after=events[0].id) == events[1:] and reader.events(limit=1) == events[:1]


async def test_steps_of_all_drones_can_be_followed(file: Path) -> None:
    async with store_at(file) as store:
        await record(store, starts(1, drone(1), drone(2)))
        reader = Reader(file)
        (_, _), (last, step) = reader.transitions()
        assert step.drone_id == drone(2).id
        assert reader.transitions(after=last) == []
        await store.record_results(1, (now_is(drone(1), S.SUBMITTED, at=104.0),), ())
        ((newer, step),) = reader.transitions(after=last)
        assert newer > last and step.state is S.SUBMITTED
        assert reader.transitions(since=104.0) == [(newer, step)]
        assert len(reader.transitions(limit=2)) == 2


async def test_drones_are_listed_by_what_is_asked_for(file: Path) -> None:
    h100 = type_key("horeka", "h100")
    everyone = [
        drone(1, S.BUSY, at=10.0),
        drone(2, S.IDLE, at=30.0, type=h100, node="n1.example.org", site_slot="slot1_2@n1"),
        drone(3, S.BUSY, at=20.0, type=h100),
        drone(4, S.LOST, at=5.0, ended_at=50.0),
        drone(10, S.QUEUED, at=30.0, type=type_key("horeka", "a100")),
    ]
    async with store_at(file) as store:
        await record(store, starts(1, *everyone))

    def listed(**asked: object) -> list[int]:
        return [int(each.id.rpartition("-")[2]) for each in Reader(file).drones(**asked)]  # type: ignore[arg-type]

    assert listed() == [1, 3, 2, 10]
    assert listed(ended=None) == [4, 1, 3, 2, 10]
    assert listed(ended=True) == [4]
    assert listed(sites=["horeka"]) == [3, 2, 10]
    assert listed(sites=["horeka", "topas"], states=[S.BUSY]) == [1, 3]
    assert listed(types=["horeka/h100"]) == [3, 2]
    assert listed(types=["a100"]) == [1, 10]
    assert listed(types=["topas/a100", "h100"]) == [1, 3, 2]
    assert listed(limit=2) == [2, 10]
    assert listed(limit=0) == []
    assert listed(sites=["nowhere"]) == listed(nodes=["n"]) == listed(nodes=["example.org"]) == []
    assert listed(nodes=["n1.example.org"]) == listed(nodes=["n1"], types=["h100"]) == [2]
    assert Reader(file).find("slot1_2@n1") == [everyone[1].id]


async def test_any_id_finds_its_drone(file: Path) -> None:
    async with store_at(file) as store:
        await record(
            store,
            starts(
                1,
                drone(7, S.BUSY, remote_id="104711", slot="slot1@w7.kit.edu"),
                drone(8, S.IDLE, remote_id="mg;8", slot="slot1@x; rm -rf /"),
                drone(71, S.DONE, remote_id="104711", at=90.0, ended_at=95.0),
                drone(72, S.DONE, remote_id="555", at=80.0, ended_at=85.0),
            ),
        )
    find = Reader(file).find
    seven, eight = [drone(7).id], [drone(8).id]
    assert find("kit-ab12-7") == seven, "a whole id is no prefix of others"
    assert find("7") == seven
    assert find("0007") == seven
    assert find("104711") == seven, "sites use their ids again: the living one is meant"
    assert find("555") == [drone(72).id]
    assert find("mg;8") == eight
    assert find("slot1@w7.kit.edu") == seven
    assert find("slot1_2@w7.kit.edu") == seven, "a dynamic slot belongs to its drone"
    assert find("slot1@x; rm -rf /") == eight
    assert find("kit-ab12-72") == [drone(72).id]
    assert sorted(find("kit-ab12")) == sorted(seven + eight), "ambiguous: all that live"
    for nobody in ("", "kit-zz", "9", "%", "_", "slot1", "\udcff", "x" * 100_000, "9" * 30, "'; --"):
        assert find(nobody) == []


async def test_what_is_old_is_forgotten_and_what_lives_is_not(file: Path) -> None:
    async with store_at(file) as store:
        old_live, old_gone, new_gone = drone(1, at=100.0), drone(2, at=100.0), drone(3, at=1500.0)
        await record(store, starts(1, old_live, old_gone))
        await store.event(100.0, "reload", {})
        await record(store, Plan(2, 150.0, moves=(now_is(old_live, S.BUSY, at=150.0),)))
        busy = store.drones[old_live.id]
        await record(store, Plan(3, 200.0, moves=(now_is(old_gone, S.LOST, at=200.0, ended_at=200.0),)))
        await record(store, starts(4, new_gone, at=1500.0))
        await record(store, Plan(5, 1600.0, moves=(now_is(new_gone, S.FAILED, at=1600.0, ended_at=1600.0),)))
        await store.event(1600.0, "reload", {})

        await store.prune(1700.0)  # keeps 1000 s

        reader = Reader(file)
        assert {each.id for each in reader.drones(ended=None)} == {old_live.id, new_gone.id}
        assert dict(store.drones) == {old_live.id: busy}
        assert [step.was for step in reader.history(old_live.id)] == [None], "its beginning, not its old steps"
        assert reader.history(old_gone.id) == []
        assert len(reader.history(new_gone.id)) == 2
        assert [plan.tick for plan in reader.plans()] == [4, 5]
        assert [event.at for event in reader.events()] == [1600.0]
        assert await store.ended([old_gone.id, new_gone.id]) == {new_gone.id: S.FAILED}


async def test_reason_text_is_kept_as_it_came(file: Path) -> None:
    nasty = 'slot "x"; rm -rf / \u0000 \U0001f980 ' + "y" * 1_000_000
    one = drone(1, S.IDLE, site_reason=nasty, slot=nasty)
    async with store_at(file) as store:
        await record(store, starts(1, one))
        await store.record_results(1, (now_is(one, S.DRAINING, at=101.0, reason=OperatorRequested("mg", nasty)),), ())
        assert Reader(file).history(one.id)[1].reason == OperatorRequested("mg", nasty)
        assert Reader(file).find(nasty) == [one.id]


async def test_the_hazard_of_a_site_counts_what_ran_and_what_was_taken_back(file: Path) -> None:
    """One drone of two hours is taken back, one of an hour still lives, one ended before anybody asks for."""
    hour = 3600.0
    cpu = {"type": type_key("topas", "cpu"), "gpu_milli": 0}
    lives = (
        drone(
            1, S.PREEMPTED, started_at=hour, ended_at=3 * hour, notice_at=3 * hour - 9.0, lost_gpu_s=600.0, lost_jobs=2
        ),
        drone(2, S.BUSY, started_at=3 * hour),
        drone(3, S.PREEMPTED, started_at=10.0, ended_at=hour - 1),
        drone(4, S.PREEMPTED, started_at=hour, ended_at=hour + 60, lost_gpu_s=80.0, lost_jobs=1, **cpu),
        drone(5, S.DONE, joined_at=2 * hour, ended_at=3 * hour, notice_at=3 * hour - 3.0),
        drone(6, S.QUEUED),
        drone(7, S.PREEMPTED, started_at=2 * hour, ended_at=3 * hour),
        drone(8, S.BUSY, started_at=hour, type=type_key("gridka", "t4")),
    )
    async with store_at(file) as store:
        await record(store, starts(1, *lives))
        gridka, t4, topas, a100, cpus = Reader(file).hazards(hour, 4 * hour)
    assert [h.scope for h in (gridka, t4, topas, a100, cpus)] == [
        "gridka",
        "gridka/t4",
        "topas",
        "topas/a100",
        "topas/cpu",
    ]
    assert (t4.drones, t4.run_s, t4.preempted, t4.per_1000_h) == (1, 3 * hour, 0, 0.0)
    assert (t4.life_mean_s, t4.life_median_s, t4.grace_mean_s) == (None, None, None)
    assert (a100.drones, a100.run_s, a100.preempted) == (4, 5 * hour, 2)
    assert a100.per_1000_h == 400.0
    assert (a100.life_mean_s, a100.life_median_s) == (1.5 * hour, 1.5 * hour)
    assert a100.grace_mean_s == 6.0, "of both that ended after a notice"
    assert (a100.lost_gpu_s, a100.lost_cpu_s, a100.lost_jobs) == (600.0, 0.0, 2)
    assert (cpus.lost_gpu_s, cpus.lost_cpu_s, cpus.preempted) == (0.0, 80.0, 1)
    assert (topas.drones, topas.run_s, topas.preempted) == (5, 5 * hour + 60, 3)
    assert (topas.life_median_s, topas.lost_gpu_s, topas.lost_cpu_s) == (hour, 600.0, 80.0)


async def test_time_before_the_question_does_not_count_and_none_gives_no_rate(file: Path) -> None:
    async with store_at(file) as store:
        await record(store, starts(1, drone(1, S.BUSY, started_at=100.0), drone(2, S.PREEMPTED, ended_at=900.0)))
        reader = Reader(file)
        assert [h.run_s for h in reader.hazards(800.0, 1000.0)] == [200.0, 200.0]
        assert [h.run_s for h in reader.hazards(950.0, 1000.0)] == [50.0, 50.0]
        (site, _) = reader.hazards(1000.0, 1000.0)
        assert (site.drones, site.run_s, site.per_1000_h) == (1, 0.0, None)
        (site, _) = reader.hazards(800.0, 1000.0)
        assert (site.drones, site.preempted, site.life_mean_s) == (2, 1, None), "began to run between two looks"


async def test_what_a_drone_said_last_is_kept_with_it(file: Path) -> None:
    words = {DroneId("kit-ab12-1"): "no CUDA device\npower off", DroneId("kit-ab12-2"): "\udcff?"}
    async with store_at(file) as store:
        await store.record_outputs(10.0, words)
        await store.record_outputs(11.0, {DroneId("kit-ab12-1"): "power off"})
    reader = Reader(file)
    assert reader.last_output(DroneId("kit-ab12-1")) == "power off"
    assert reader.last_output(DroneId("kit-ab12-3")) == ""


async def test_a_job_that_is_done_is_on_record_once_however_often_it_is_told(file: Path) -> None:
    elsewhere = replace(DONE, job_id="submit.test#9.0", ended_at=80.0, group="", drone_id=None)
    again = replace(DONE, ended_at=700.0, run_s=9.0)  # a schedd that was set up anew counts from 1 again
    async with store_at(file) as store:
        await store.record_completed([DONE, elsewhere])
        await store.record_completed([])
        assert Reader(file).completions(0.0, 1e9) == [elsewhere, DONE]
    async with store_at(file) as store:
        await store.record_completed([replace(DONE, run_s=1.0), again])
        assert Reader(file).completions(0.0, 1e9) == [elsewhere, DONE, again], "by id and end; the first word counts"
        assert Reader(file).completions(80.0, 90.5) == [elsewhere], "the end of the time is not in it"
        assert Reader(file).completions(800.0, 1e9) == []


async def test_what_was_learned_is_there_for_the_next_controller_just_as_it_was(file: Path) -> None:
    async with store_at(file) as store:
        assert await store.estimate_samples() is None and Reader(file).estimate_samples() is None
        await store.record_estimates(replace(KNOWN, at=50.0, runs={}))
        await store.record_estimates(KNOWN)
        assert Reader(file).estimate_samples() == KNOWN
    async with store_at(file) as store:
        assert await store.estimate_samples() == KNOWN
        await store.prune(1e9)
        assert await store.estimate_samples() == KNOWN, "it is bounded in itself, not by age"


async def test_what_is_to_be_forgotten_waits_until_it_is_and_goes_with_what_was_known_of_it(file: Path) -> None:
    reader = Reader(file)
    async with store_at(file) as store:
        await store.record_estimates(KNOWN)
    reader.ask_estimate_reset("user:ann", reason="new code; rm -rf /", by="mg", at=5.0)
    reader.ask_estimate_reset("all", reason="moved", by="ab", at=6.0)
    async with store_at(file) as store:
        first, second = await store.estimate_resets()
        assert (first.what, first.reason, first.by, first.at) == ("user:ann", "new code; rm -rf /", "mg", 5.0)
        assert (second.what, second.by) == ("all", "ab") and reader.estimate_resets() == (first, second)
        await store.record_estimates(replace(KNOWN, at=91.0, runs={}), [first.id])
        assert await store.estimate_resets() == reader.estimate_resets() == (second,)
        await store.record_estimates(replace(KNOWN, at=92.0), ())
        assert await store.estimate_resets() == (second,)
        await store.record_estimates(EstimateSamples(93.0), [second.id])
    reader.ask_estimate_reset("site:topas", reason="x", by="mg", at=7.0)
    (third,) = reader.estimate_resets()
    assert third.id > second.id, "a number means one thing"
    assert reader.estimate_samples() == EstimateSamples(93.0)
