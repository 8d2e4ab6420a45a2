"""The record: what the controller writes, it and an operator read back."""

from __future__ import annotations

from dataclasses import replace

from provisioner import model as m
from provisioner.estimates import EstimateSamples
from provisioner.reasons import NotInListing, Orphan
from provisioner.store.database import Place
from provisioner.store.reader import Reader
from tests.store.story import (
    DONE,
    KNOWN,
    LEARNED,
    NOTHING_FITS,
    SEEN,
    drone,
    now_is,
    record,
    seen,
    starts,
    store_at,
)

S = m.DroneState


async def test_a_new_store_is_empty_and_has_a_birth_of_its_own(place: Place) -> None:
    async with store_at(place) as store:
        assert (
            len(store.birth) == 4 and store.birth.isalnum() and store.birth == store.birth.lower()
        )
        born = store.birth
        reader = Reader(place)
        assert reader.views() is None and reader.snapshot() is None and reader.plans() == []
        assert reader.drones(ended=None) == [] and reader.drone(m.DroneId("kit-ab12-1")) is None
    async with store_at(place) as store:
        assert store.birth == born


async def test_a_clock_that_was_set_is_on_record_with_the_times_that_were_moved(
    place: Place,
) -> None:
    """A crash between the two would let two days pass for each limit in one step."""
    one = drone(1)
    async with store_at(place) as store:
        await record(store, starts(1, one))
        assert store.committed.recorded_at == 100.0
        moved = replace(one, since=one.since + 900.0, requested_at=one.requested_at + 900.0)
        breaker = m.Breaker(m.Scope("topas"), since=900.0)
        await store.record_results(
            1, (m.StateChange(moved, moved.state, SEEN),), (breaker,), set_to=1000.0
        )
        assert (store.committed.recorded_at, store.committed.recorded_drift_s) == (1000.0, 0.0)
        await store.record_results(1, (), (), set_to=1100.0)
    async with store_at(place) as store:
        assert (store.committed.recorded_at, store.committed.recorded_drift_s) == (1100.0, 0.0)
        assert (
            dict(store.drones) == {one.id: moved}
            and store.breakers[m.Scope("topas")].since == 900.0
        )
        await store.record_results(1, (), ())
        assert store.committed.recorded_at == 1100.0


async def test_hearing_from_a_drone_again_is_kept_but_is_no_step_and_no_news(place: Place) -> None:
    one = drone(1, S.IDLE)
    async with store_at(place) as store:
        await record(store, starts(1, one))
        again = now_is(one, S.IDLE, at=500.0, heard_at=499.0)
        await record(store, m.Plan(2, 500.0, moves=(again,)))
        missing = now_is(again.drone, S.IDLE, at=510.0, missing_at=509.0, reason=NotInListing())
        await record(store, m.Plan(3, 510.0, moves=(missing,)))
        assert Reader(place).drone(one.id) == store.drones[one.id] == missing.drone
        assert missing.drone.heard_at == 499.0 and missing.drone.missing_at == 509.0
        assert len(Reader(place).history(one.id)) == 1
        assert [(plan.tick, plan.at, plan.moves) for plan in Reader(place).plans()] == [
            (1, 100.0, ()),
            (3, 510.0, ()),
        ]
    async with store_at(place) as store:
        assert store.drones[one.id] == missing.drone


async def test_serial_numbers_are_never_used_twice(place: Place) -> None:
    async with store_at(place) as store:
        await record(store, starts(1, drone(1), drone(41)))
        gone = [now_is(drone(n), S.FAILED, at=101.0, ended_at=101.0) for n in (1, 41)]
        await store.record_results(1, gone, ())
        assert store.next_serial == 42
        await store.prune(100_000.0)
        assert Reader(place).drones(ended=None) == []
    async with store_at(place) as store:
        assert store.next_serial == 42


async def test_a_plan_that_says_nothing_new_is_not_stored_again(place: Place) -> None:
    async with store_at(place) as store:
        for tick in range(1, 6):
            await record(store, m.Plan(tick, 100.0 * tick, refusals=(NOTHING_FITS,)))
        assert Reader(place).plans() == [m.Plan(5, 500.0, refusals=(NOTHING_FITS,))]
        await record(store, m.Plan(6, 600.0))
        await record(store, m.Plan(7, 700.0, refusals=(NOTHING_FITS,)))
        plans = Reader(place).plans()
        assert [(plan.tick, len(plan.refusals)) for plan in plans] == [(5, 1), (6, 0), (7, 1)]
        orphan = m.StopOrphan("topas", m.DroneId("kit-zz99-5"), "4712", Orphan())
        for tick in (8, 9):  # what acts is stored even if it repeats
            await record(store, m.Plan(tick, 100.0 * tick, orphans=(orphan,)))
        reader = Reader(place)
        assert [plan.tick for plan in reader.plans()] == [5, 6, 7, 8, 9]
        assert [plan.tick for plan in reader.plans(acting=True)] == [8, 9]
        assert [plan.tick for plan in reader.plans(since=700.0, limit=2)] == [8, 9]
        assert reader.plans(limit=1)[0].orphans == (orphan,)


async def test_snapshots_of_the_newest_acting_ticks_are_kept_whole(place: Place) -> None:
    taken = {}
    async with store_at(place) as store:
        for tick in range(1, 6):
            taken[tick] = await record(store, starts(tick, drone(tick), at=100.0 + tick))
        await record(store, m.Plan(6, 200.0))
        reader = Reader(place)
        assert reader.kept_snapshots() == [3, 4, 5]
        assert [reader.snapshot(tick) for tick in (2, 6)] == [None, None]
        assert reader.snapshot(4) == taken[4]


async def test_the_patience_with_an_owners_queue_survives_and_is_in_the_next_snapshot(
    place: Place,
) -> None:
    """`provisioner plan` and a restarted controller forgot it, and asked more drones to leave."""
    known = m.OwnerClaimBackoff("topas", 50.0, 2, 2)
    async with store_at(place) as store:
        await record(
            store, m.Plan(1, 100.0, patience=(known, m.OwnerClaimBackoff("horeka", 60.0, 1)))
        )
        await record(store, m.Plan(2, 110.0, patience=(known,)))
        await record(store, m.Plan(3, 120.0, patience=(known,)))
        following = Reader(place).snapshot()
        assert following is not None
        assert dict(following.patience) == dict(store.committed.patience) == {"topas": known}
    async with store_at(place) as store:
        assert dict(store.committed.patience) == {"topas": known}
        await record(store, m.Plan(4, 130.0))
        assert dict(store.committed.patience) == {}


async def test_the_next_snapshot_is_put_together_from_the_record(place: Place) -> None:
    async with store_at(place) as store:
        plan = starts(7, drone(1), drone(2))
        last = seen(store, plan, estimates=LEARNED)
        await store.record(plan, last)
        Reader(place).ask(m.RequestKind.KILL, [drone(1).id], reason="broken fan", by="mg", at=105.0)
        await store.record_results(
            7,
            (now_is(drone(1), S.SUBMITTED, at=101.0, remote_id="1"),),
            (m.Breaker(m.Scope("topas")),),
        )
        known = {
            "drones": store.drones,
            "breakers": {m.Scope("topas"): m.Breaker(m.Scope("topas"))},
            "requests": await store.requests(),
        }
        assert Reader(place).snapshot() == replace(last, now=100.0, tick=8, next_serial=3, **known)
        assert Reader(place).snapshot(7) == last


async def test_views_are_the_newest_ones(place: Place) -> None:
    async with store_at(place) as store:
        plan = m.Plan(2, 115.0)
        failed = m.Fault(m.FaultKind.DOWN, "collector does not answer", 114.0)
        old = seen(store, plan)
        hopeless = {"horeka": m.PolledSite("horeka", None, failed)}
        later = replace(
            old, overlay=replace(old.overlay, fault=failed), sites={**old.sites, **hopeless}
        )
        await store.record(plan, later)
        views = Reader(place).views()
        assert views is not None
        assert (views.tick, views.at, views.policy, views.types) == (
            2,
            115.0,
            later.policy,
            later.types,
        )
        whole = Reader(place).snapshot()
        assert whole is not None and (whole.overlay, whole.sites) == (later.overlay, later.sites)
        assert later.overlay.view is not None
        assert Reader(place).slots() == later.overlay.view.slots
        silent = m.PolledOverlay(replace(later.overlay.view, completions=None))
        await store.record(m.Plan(3, 120.0), replace(later, overlay=silent))
        whole = Reader(place).snapshot()
        assert whole is not None and whole.overlay == silent, "not told is not the same as none"


async def test_a_request_waits_until_a_plan_takes_it_up(place: Place) -> None:
    async with store_at(place) as store:
        reader = Reader(place)
        ids = (drone(1).id, drone(2).id)
        first = reader.ask(
            m.RequestKind.DRAIN, ids, reason="driver", by="mg", at=5.0, mode=m.DrainMode.FAST
        )
        second = reader.ask(m.RequestKind.KILL, ids[:1], reason="fan; rm -rf /", by="ab", at=6.0)
        waiting = await store.requests()
        assert [
            (each.id, each.kind, each.mode, each.drone_ids, each.reason) for each in waiting
        ] == [
            (first, m.RequestKind.DRAIN, m.DrainMode.FAST, ids, "driver"),
            (second, m.RequestKind.KILL, m.DrainMode.PEACEFUL, ids[:1], "fan; rm -rf /"),
        ]
        await record(store, m.Plan(1, 7.0, requests_done=(first,)))
        assert [each.id for each in await store.requests()] == [second]
        await store.prune(1_000_000.0)
    third = reader.ask(m.RequestKind.KILL, (), reason="", by="", at=8.0)  # while no controller runs
    assert third > second
    async with store_at(place) as store:
        assert [each.id for each in await store.requests()] == [second, third]


async def test_any_id_finds_its_drone(place: Place) -> None:
    async with store_at(place) as store:
        there = (
            drone(7, S.BUSY, remote_id="104711", slot="slot1@w7.kit.edu"),
            drone(8, S.IDLE, remote_id="mg;8", slot="slot1@x; rm -rf /"),
            drone(71, S.DONE, remote_id="104711", at=90.0, ended_at=95.0),
            drone(72, S.DONE, remote_id="555", at=80.0, ended_at=85.0),
        )
        await record(store, starts(1, *there))
    find = Reader(place).find
    seven, eight = [drone(7).id], [drone(8).id]
    assert find("kit-ab12-7") == seven, "a whole id is no prefix of others"
    assert find("7") == seven
    assert find("104711") == seven, "sites use their ids again: the living one is meant"
    assert find("555") == [drone(72).id]
    assert find("slot1@w7.kit.edu") == seven
    assert find("slot1_2@w7.kit.edu") == seven, "a dynamic slot belongs to its drone"
    assert sorted(find("kit-ab12")) == sorted(seven + eight), "ambiguous: all that live"
    for nobody in (
        "",
        "kit-zz",
        "9",
        "%",
        "_",
        "slot1",
        "\udcff",
        "x" * 100_000,
        "9" * 30,
        "'; --",
    ):
        assert find(nobody) == []


async def test_what_is_old_is_forgotten_and_what_lives_is_not(place: Place) -> None:
    async with store_at(place) as store:
        old_live, old_gone, new_gone = drone(1, at=100.0), drone(2, at=100.0), drone(3, at=1500.0)
        await record(store, starts(1, old_live, old_gone))
        await store.event(100.0, "reload", {})
        await record(store, m.Plan(2, 150.0, moves=(now_is(old_live, S.BUSY, at=150.0),)))
        busy = store.drones[old_live.id]
        await record(
            store, m.Plan(3, 200.0, moves=(now_is(old_gone, S.LOST, at=200.0, ended_at=200.0),))
        )
        await record(store, starts(4, new_gone, at=1500.0))
        await record(
            store,
            m.Plan(5, 1600.0, moves=(now_is(new_gone, S.FAILED, at=1600.0, ended_at=1600.0),)),
        )
        await store.event(1600.0, "reload", {})
        await store.prune(1700.0)  # keeps 1000 s
        reader = Reader(place)
        assert {each.id for each in reader.drones(ended=None)} == {old_live.id, new_gone.id}
        assert dict(store.drones) == {old_live.id: busy}
        assert [step.was for step in reader.history(old_live.id)] == [None], (
            "its beginning, not its old steps"
        )
        assert reader.history(old_gone.id) == []
        assert len(reader.history(new_gone.id)) == 2
        assert [plan.tick for plan in reader.plans()] == [4, 5]
        assert [event.at for event in reader.events()] == [1600.0]
        assert await store.ended([old_gone.id, new_gone.id]) == {new_gone.id: S.FAILED}


async def test_the_hazard_of_a_site_counts_what_ran_and_what_was_taken_back(place: Place) -> None:
    """One drone of two hours is taken back, one of an hour still lives, one ended before anybody asks for."""
    hour = 3600.0
    cpu = {"type": m.TypeKey("topas/cpu"), "gpu_milli": 0}
    took = {
        "started_at": hour,
        "ended_at": 3 * hour,
        "notice_at": 3 * hour - 9.0,
        "lost_gpu_s": 600.0,
        "lost_jobs": 2,
    }
    lives = (
        drone(1, S.PREEMPTED, **took),
        drone(2, S.BUSY, started_at=3 * hour),
        drone(3, S.PREEMPTED, started_at=10.0, ended_at=hour - 1),
        drone(
            4, S.PREEMPTED, started_at=hour, ended_at=hour + 60, lost_gpu_s=80.0, lost_jobs=1, **cpu
        ),
        drone(5, S.DONE, joined_at=2 * hour, ended_at=3 * hour, notice_at=3 * hour - 3.0),
        drone(7, S.PREEMPTED, started_at=2 * hour, ended_at=3 * hour),
    )
    async with store_at(place) as store:
        await record(store, starts(1, *lives))
        topas, a100, cpus = Reader(place).hazards(hour, 4 * hour)
    assert [h.scope for h in (topas, a100, cpus)] == ["topas", "topas/a100", "topas/cpu"]
    assert (a100.drones, a100.run_s, a100.preempted, a100.per_1000_h) == (4, 5 * hour, 2, 400.0)
    assert (a100.life_mean_s, a100.grace_mean_s) == (1.5 * hour, 6.0)
    assert (a100.lost_gpu_s, a100.lost_cpu_s, a100.lost_jobs) == (600.0, 0.0, 2)
    assert (cpus.lost_gpu_s, cpus.lost_cpu_s, cpus.preempted) == (0.0, 80.0, 1)
    assert (topas.drones, topas.life_median_s) == (5, hour)


async def test_a_job_that_is_done_is_on_record_once_however_often_it_is_told(place: Place) -> None:
    elsewhere = replace(DONE, job_id="submit.test#9.0", ended_at=80.0, group="", drone_id=None)
    # a schedd that was set up anew counts from 1 again
    again = replace(DONE, ended_at=700.0, run_s=9.0)
    async with store_at(place) as store:
        await store.record_completed([DONE, elsewhere])
        await store.record_completed([])
        assert Reader(place).completions(0.0, 1e9) == [elsewhere, DONE]
    async with store_at(place) as store:
        await store.record_completed([replace(DONE, run_s=1.0), again])
        assert Reader(place).completions(0.0, 1e9) == [elsewhere, DONE, again], (
            "by id and end; the first word counts"
        )
        assert Reader(place).completions(80.0, 90.5) == [elsewhere], (
            "the end of the time is not in it"
        )
        assert Reader(place).completions(800.0, 1e9) == []


async def test_what_is_to_be_forgotten_waits_until_it_is_and_goes_with_what_was_known_of_it(
    place: Place,
) -> None:
    reader = Reader(place)
    async with store_at(place) as store:
        await store.record_estimates(KNOWN)
    reader.ask_estimate_reset("user:ann", reason="new code; rm -rf /", by="mg", at=5.0)
    async with store_at(place) as store:
        (first,) = await store.estimate_resets()
        assert (first.what, first.reason, first.by, first.at) == (
            "user:ann",
            "new code; rm -rf /",
            "mg",
            5.0,
        )
        await store.record_estimates(EstimateSamples(93.0), [first.id])
        assert await store.estimate_resets() == reader.estimate_resets() == ()
    reader.ask_estimate_reset("site:topas", reason="x", by="mg", at=7.0)
    (second,) = reader.estimate_resets()
    assert second.id > first.id, "a number means one thing"
    assert reader.estimate_samples() == EstimateSamples(93.0)
