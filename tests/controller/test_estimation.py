"""What the controller learns from what it sees and does anyway."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner import reasons
from provisioner.controller.estimation import (
    CUT_KEPT,
    DEPARTED_KEPT_S,
    FADE_S,
    LONGER,
    MIN_IDLE_GAPS,
    RUNS_KEPT,
    RUNS_NEEDED,
    RUNS_TOLD,
    SEEN_S,
    UNFINISHED_EVERY_S,
    USE_EVERY_S,
    USE_FILLED,
    USE_KEPT,
    USE_NEEDED,
    DepartedDrone,
    EstimateCollector,
    UnfinishedJobs,
    best_timeout_s,
    expected,
    rise_of,
    thinned,
)
from provisioner.estimates import (
    HORIZONS_S,
    UNKNOWN,
    USUAL_RUN_S,
    Estimates,
    EstimateSamples,
    SiteSamples,
    StartDelays,
    run_keys,
)
from provisioner.model import (
    CompletedJob,
    Drain,
    DrainMode,
    DroneId,
    DroneState,
    Eviction,
    OwnerLoad,
    Plan,
    Slot,
    SlotState,
    Snapshot,
    Start,
    StateChange,
)
from provisioner.planner.risk import expected_loss
from tests.planner.scenes import A100, NOW, drone, snapshot


def nothing(made: Snapshot) -> Plan:
    return Plan(made.tick, made.now)


def with_done(made: Snapshot, *done: CompletedJob) -> Snapshot:
    assert made.overlay.view is not None
    return replace(made, overlay=replace(made.overlay, view=replace(made.overlay.view, completions=done)))


def done(n: int, run_s: float, owner: str = "anna", schedd: str = "") -> CompletedJob:
    return CompletedJob(f"{schedd}{n}.0", NOW + n, NOW, run_s, 1000, 8, 20480, owner=owner)


def test_a_run_time_that_is_told_in_many_looks_counts_once() -> None:
    learning = EstimateCollector()
    told = [done(n, 100.0 + n) for n in range(RUNS_NEEDED)]
    for n in range(1, RUNS_NEEDED + 1):
        made = with_done(snapshot(), *told[:n])
        learning.note(replace(made, now=NOW + 100.0 * n), nothing(made))
    mine, user, everybody = run_keys("anna", 1000, 8, 20480)
    expected = tuple(100.0 + n for n in range(RUNS_NEEDED))
    assert learning.estimates.runs == {mine: expected, user: expected, everybody: expected}


def test_the_jobs_of_a_schedd_that_was_silent_for_a_while_count_once() -> None:
    learning = EstimateCollector()
    here, there = [done(n, 60.0, schedd="a#") for n in range(300, 310)], [done(n, 60.0, schedd="b#") for n in range(5)]

    def told(at: float, *jobs: CompletedJob) -> int:
        made = replace(with_done(snapshot(), *jobs), now=NOW + at)
        learning.note(made, nothing(made))
        return len(learning.runs["anna"])

    assert told(400, *here, *there) == 15
    assert told(460, *here) == 15
    assert told(520, *here, *there) == 15, "though they ended before all that were told meanwhile"
    late = done(2000, 60.0, schedd="a#")
    told(SEEN_S + 304, late)
    assert learning.samples(NOW).seen == {(each.job_id, each.ended_at) for each in (late, *here[4:])}, "no longer"


def test_the_jobs_of_nobody_in_particular_count_once() -> None:
    learning, made = EstimateCollector(), with_done(snapshot(), *(done(n, 60.0, owner="") for n in range(3)))
    learning.note(made, nothing(made))
    assert len(learning.runs[""]) == 3


def test_of_few_jobs_nothing_is_concluded() -> None:
    learning, made = EstimateCollector(), with_done(snapshot(), *(done(n, 60.0) for n in range(RUNS_NEEDED - 1)))
    learning.note(made, nothing(made))
    assert learning.estimates.runs == {}


def watching(at: float = NOW) -> EstimateCollector:
    """One who saw the pool a moment ago."""
    learning, made = EstimateCollector(), replace(snapshot(), now=at - 15.0)
    learning.note(made, nothing(made))
    return learning


@pytest.mark.parametrize(
    ("ordered_s", "started_s", "queue_s", "boot_s"),
    [(100.0, 70.0, 30.0, 70.0), (69.6, 70.0, 0.0, 70.0), (100.0, -2.0, 102.0, 0.0)],
    ids=["as it should be", "begun before the order, in whole seconds", "in the pool before it began, by its clock"],
)
def test_delays_are_learned_from_drones_that_came(
    ordered_s: float, started_s: float, queue_s: float, boot_s: float
) -> None:
    learning = watching()
    was = replace(drone("d", DroneState.BOOTING), requested_at=NOW - ordered_s, started_at=NOW - started_s)
    now = replace(was, state=DroneState.IDLE, joined_at=NOW)
    made = snapshot(drones=[was])
    learning.note(
        replace(made, now=NOW + 60),
        replace(nothing(made), moves=(StateChange(now, was.state, reasons.SeenInPool("idle", 0, 100.0)),)),
    )
    assert learning.estimates.delays[A100.key] == StartDelays(queue_s, boot_s)


def test_a_gap_across_a_clock_set_back_is_none() -> None:
    learning, idles = watching(), replace(drone("i", DroneState.IDLE), idle_at=NOW + 30)
    made = snapshot(drones=[idles])
    move = StateChange(replace(idles, state=DroneState.BUSY), idles.state, reasons.SeenInPool("busy", 1, 1.0))
    learning.note(made, replace(nothing(made), moves=(move,)))
    assert list(learning.sites["topas"].gaps_s) == [0.0]


def test_an_owner_who_takes_eight_gpus_each_morning_is_known_after_some_days() -> None:
    learning, made = EstimateCollector(), snapshot()
    reading = made.sites["topas"]
    assert reading.view is not None
    for step in range(5 * 24 * 30):
        hour = step // 30 % 24
        view = replace(reading.view, owner_runs=OwnerLoad(gpu_milli=8000 if 8 <= hour < 18 else 0))
        then = replace(made, now=NOW + step * USE_EVERY_S, sites={"topas": replace(reading, view=view)})
        learning.note(then, nothing(then))
    rise = learning.estimates.rises["topas"]
    assert rise.chances(8000) == (0.0,) * len(HORIZONS_S)
    # Within eight hours before eight o'clock: at 8 of the 24 hours, and within 16 hours at 14 of them.
    assert rise.chances(7999)[-2:] == pytest.approx((8 / 24, 14 / 24), abs=0.05)
    assert expected_loss((3600.0,), rise.chances(7999)) > 0.01 > expected_loss((3600.0,), rise.chances(8000))


def test_a_rise_needs_no_more_than_what_was_seen() -> None:
    assert [row[-1] for row in rise_of([0, 1000] * 100).gpu_milli] == [1000] * len(HORIZONS_S)
    assert [set(row) for row in rise_of([5000] * 200).gpu_milli] == [{0}] * len(HORIZONS_S)


def test_idle_time_outs_come_from_gaps_that_were_and_gaps_that_would_have_been() -> None:
    learning = watching()
    idle = drone("d", DroneState.IDLE)
    made = snapshot(drones=[idle])
    came = replace(idle, requested_at=NOW - 100, started_at=NOW - 70, joined_at=NOW)
    booting = replace(came, state=DroneState.BOOTING, joined_at=0.0)
    first = snapshot(drones=[booting])
    learning.note(
        first, replace(nothing(first), moves=(StateChange(came, booting.state, reasons.SeenInPool("idle", 0, 1.0)),))
    )
    # It leaves after ten minutes, and ten seconds later another one is needed: 610 s would have been long enough.
    left = Drain(
        replace(idle, state=DroneState.DRAINING), idle.state, DrainMode.PEACEFUL, reasons.IdleTimeout(600.0, 600.0)
    )
    again = Start(drone("e", DroneState.REQUESTED), reasons.JobsWaiting("small", 1, 0, 1))
    for n in range(MIN_IDLE_GAPS):
        then = replace(made, now=NOW + 100.0 * n)
        learning.note(then, replace(nothing(then), drains=(left,)))
        then = replace(then, now=then.now + 10.0)
        learning.note(then, replace(nothing(then), starts=(again,)))
    assert set(learning.sites["topas"].gaps_s) == {610.0}
    late = replace(made, now=NOW + 1e5)
    learning.note(late, nothing(late))
    assert learning.estimates.idle_s == {"topas": 15.0}, "610 s of idling cost more than 70 s of booting"


def test_a_drone_that_nobody_missed_would_have_waited_in_vain() -> None:
    learning, idle = EstimateCollector(), drone("d", DroneState.IDLE)
    made = snapshot(drones=[idle])
    left = Drain(
        replace(idle, state=DroneState.DRAINING), idle.state, DrainMode.PEACEFUL, reasons.IdleTimeout(60.0, 60.0)
    )
    learning.note(made, replace(nothing(made), drains=(left,)))
    late = replace(made, now=NOW + DEPARTED_KEPT_S + 1)
    learning.note(late, nothing(late))
    assert list(learning.sites["topas"].gaps_s) == [60.0 + DEPARTED_KEPT_S]


@pytest.mark.parametrize(
    ("gaps_s", "boot_s", "best_s"),
    [([40.0] * 30, 240.0, 60.0), ([50.0] * 30, 5.0, 15.0), ([5000.0] * 30, 240.0, 15.0), ([200.0] * 30, 500.0, 240.0)],
)
def test_the_best_time_out_pays_for_gaps_only_where_starts_are_dearer(
    gaps_s: list[float], boot_s: float, best_s: float
) -> None:
    assert best_timeout_s(gaps_s, boot_s, 0.3) == best_s


def test_thinned_values_stay_equally_likely() -> None:
    assert thinned(range(1000), 4) == (125, 375, 625, 875)
    assert thinned([3.0, 1.0], 4) == (1.0, 3.0)


# --------------------------------------------------------------------------------------------------- across a restart


def with_owner(made: Snapshot, now: float, gpu_milli: int) -> Snapshot:
    reading = made.sites["topas"]
    assert reading.view is not None
    view = replace(reading.view, owner_runs=OwnerLoad(gpu_milli=gpu_milli))
    return replace(made, now=now, sites={"topas": replace(reading, view=view)})


def restarted(learning: EstimateCollector, kept_at: float, now: float) -> EstimateCollector:
    """The next controller's, from what this one kept."""
    again = EstimateCollector()
    again.recall(learning.samples(kept_at), now, 0.3)
    return again


def test_the_next_controller_knows_the_same_from_its_first_tick_on() -> None:
    learning = watching()
    learning.delays[A100.key] = StartDelays(30.0, 70.0)
    learning.sites.clear()
    learning._site("topas").gaps_s.extend([40.0] * MIN_IDLE_GAPS)
    for step in range(USE_NEEDED + 30):
        then = with_owner(snapshot(), NOW + step * USE_EVERY_S, 8000 if step % 40 < 20 else 0)
        then = with_done(then, *(done(n, 100.0 + n) for n in range(step + 1)))
        learning.note(then, nothing(then))
    learning._site("topas").rise_at = 0.0
    learning.note(then := replace(then, now=then.now + USE_EVERY_S), nothing(then))
    again = restarted(learning, then.now, then.now + 40.0)
    assert again.estimates == learning.estimates
    assert (
        set(again.estimates.runs)
        and set(again.estimates.delays)
        and set(again.estimates.rises)
        and again.estimates.idle_s
    )
    assert again.samples(then.now) == learning.samples(then.now)


def test_a_job_that_was_told_before_the_restart_counts_no_second_time() -> None:
    learning = EstimateCollector()
    before = with_done(snapshot(), *(done(n, 60.0) for n in range(5)))
    learning.note(before, nothing(before))
    again = restarted(learning, NOW, NOW + 60)
    after = with_done(snapshot(), *(done(n, 60.0) for n in range(2, 8)))
    again.note(after, nothing(after))
    assert len(again.runs["anna"]) == 8
    again.forget("user:anna")
    later = with_done(snapshot(), *(done(n, 60.0) for n in range(2, 9)))
    again.note(later, nothing(later))
    assert len(again.runs["anna"]) == 1, "nor does one that was forgotten"


@pytest.mark.parametrize(("missed", "filled"), [(1, True), (USE_FILLED, True), (USE_FILLED + 1, False), (700, False)])
def test_of_a_long_absence_nothing_is_made_up(missed: int, filled: bool) -> None:
    learning = EstimateCollector()
    for step in range(3):
        then = with_owner(snapshot(), NOW + step * USE_EVERY_S, 2000)
        learning.note(then, nothing(then))
    back_at = then.now + missed * USE_EVERY_S
    again = restarted(learning, then.now, back_at)
    back = with_owner(snapshot(), back_at, 7000)
    again.note(back, nothing(back))
    between = [7000 if filled else UNKNOWN] * (missed - 1)
    assert list(again.sites["topas"].use_milli) == [2000] * 3 + between + [7000]


def test_after_a_fortnight_away_nothing_is_left_of_an_owners_use_but_what_follows_from_it() -> None:
    learning = EstimateCollector()
    learning.recall(EstimateSamples(NOW, sites={"topas": SiteSamples((3000,) * USE_KEPT, NOW)}), NOW + 30 * 86400, 0.3)
    back = with_owner(snapshot(), NOW + 30 * 86400, 1000)
    learning.note(back, nothing(back))
    use_milli = learning.sites["topas"].use_milli
    assert (len(use_milli), use_milli.count(UNKNOWN), use_milli[-1]) == (USE_KEPT, USE_KEPT - 1, 1000)
    assert learning.estimates.rises["topas"].chances(0)[0] == 0.0, "until there is more"


def test_no_rise_reaches_across_an_absence() -> None:
    """He held 1 GPU before and 9 after: nobody saw him take them."""
    before, after = [1000] * 200, [9000] * 200
    assert max(rise_of([*before, *after]).gpu_milli[0]) == 8000
    rise = rise_of([*before, *[UNKNOWN] * 60, *after])
    assert {each for row in rise.gpu_milli for each in row} == {0}
    assert rise_of([UNKNOWN] * 60).gpu_milli == ((),) * len(HORIZONS_S)


def test_what_happened_while_nobody_looked_is_no_delay_and_no_gap_and_no_chance() -> None:
    """At the first look after the restart a drone has come, one works and one has gone: since when, nobody saw."""
    before = EstimateCollector()
    before.delays[A100.key] = StartDelays(30.0, 70.0)
    before._site("topas").departed.append(DepartedDrone(60.0, NOW - 10))
    before._site("topas").taken, before._site("topas").run_s = 2.0, 7200.0
    learning = restarted(before, NOW - FADE_S, NOW)
    boots = replace(drone("b", DroneState.BOOTING), requested_at=NOW - 9000, started_at=NOW - 8000)
    idles = replace(drone("i", DroneState.IDLE), idle_at=NOW - 7000)
    works = drone("w", DroneState.BUSY)
    moves = (
        StateChange(
            replace(boots, state=DroneState.IDLE, joined_at=NOW), boots.state, reasons.SeenInPool("idle", 0, 1.0)
        ),
        StateChange(replace(idles, state=DroneState.BUSY), idles.state, reasons.SeenInPool("busy", 1, 1.0)),
        StateChange(
            replace(works, state=DroneState.PREEMPTED, ended_at=NOW), works.state, reasons.SeenInPool("busy", 1, 1.0)
        ),
    )
    first = snapshot(drones=[boots, idles, works])
    start = Start(drone("n", DroneState.REQUESTED), reasons.JobsWaiting("small", 1, 0, 1))
    learning.note(first, replace(nothing(first), moves=moves, starts=(start,)))
    site = learning.sites["topas"]
    assert learning.delays == {A100.key: StartDelays(30.0, 70.0)}
    assert not site.gaps_s and not site.departed
    assert (site.taken, site.run_s) == (1.0, 3600.0), "a week later the same chance counts half"
    second = snapshot(drones=[idles, works])
    learning.note(replace(second, now=NOW + 15), replace(nothing(second), moves=moves[1:]))
    assert list(site.gaps_s) == [7015.0] and site.taken == 2.0, "from then on it looks"


def test_a_clock_that_was_set_back_meanwhile_stops_no_series() -> None:
    kept = EstimateSamples(NOW + 9000, sites={"topas": SiteSamples((1000,), NOW + 9000)})
    learning = EstimateCollector()
    learning.recall(kept, NOW, 0.3)
    for step in range(1, 4):
        then = with_owner(snapshot(), NOW + step * USE_EVERY_S, 2000)
        learning.note(then, nothing(then))
    assert list(learning.sites["topas"].use_milli) == [1000, 2000, 2000, 2000]


def test_what_is_forgotten_is_what_was_named() -> None:
    keys = ("", "etp/a", "etp/a/1000/8/2048", "etp", "etp/1/2/3", "/1/2/3")
    runs = {key: (60.0,) * RUNS_NEEDED for key in keys}
    sites = {"topas": SiteSamples(gaps_s=(1.0,)), "horeka": SiteSamples()}
    delays = {"topas/a100": StartDelays(1.0, 2.0), "horeka/h100": StartDelays(3.0, 4.0)}

    def left(what: str) -> EstimateSamples:
        learning = EstimateCollector()
        learning.recall(EstimateSamples(NOW, runs, delays, sites), NOW, 0.3)
        learning.forget(what)
        assert set(learning.estimates.runs) == set(learning.runs), "the next tick plans without it"
        return learning.samples(NOW)

    etp_left = {"etp/a", "etp/a/1000/8/2048", "/1/2/3"}
    assert set(left("user:etp").runs) == etp_left, "the key names the user, not a part of him; everybody's had his"
    assert set(left("user:etp/a").runs) == {"etp", "etp/1/2/3", "/1/2/3"}
    topas = left("site:topas")
    assert (set(topas.runs), set(topas.sites), set(topas.delays)) == (set(runs), {"horeka"}, {"horeka/h100"})
    assert left("all") == EstimateSamples(NOW)


def test_the_newest_run_times_are_kept_and_none_of_them_is_nothing() -> None:
    learning = EstimateCollector()
    told = with_done(snapshot(), *(done(n, n + 0.04) for n in range(RUNS_KEPT + 50)))
    learning.note(told, nothing(told))
    runs = learning.runs["anna"]
    assert (len(runs), runs[0], runs[-1]) == (RUNS_KEPT, 50.0, RUNS_KEPT + 49.0)
    brief = with_done(snapshot(), done(1000, 0.04))
    learning.note(brief, nothing(brief))
    assert learning.runs["anna"][-1] == 0.1


# --------------------------- What is learned from jobs that are not done: those that run, and those that were cut short


HOUR_S = 3600.0
times = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=40)


def kaplan_meier(done: list[float], unfinished: list[float], at_s: float) -> float:
    """Share of jobs that run longer than ``at_s``, by the product of 1958."""
    left = 1.0
    for run_s in sorted(set(done)):
        if run_s <= at_s:
            at_risk = sum(each >= run_s for each in (*done, *unfinished))
            left *= 1 - done.count(run_s) / at_risk
    return left


@given(done=times, unfinished=times)
def test_it_is_the_estimate_of_kaplan_and_meier(done: list[float], unfinished: list[float]) -> None:
    told = expected(done, unfinished, 1000)
    for at_s in (*done, *unfinished):
        if at_s <= max(done):
            assert sum(run_s > at_s for run_s in told) / 1000 == pytest.approx(
                kaplan_meier(done, unfinished, at_s), abs=0.0011
            )


@given(done=times, unfinished=times)
def test_what_is_not_done_never_makes_jobs_look_shorter(done: list[float], unfinished: list[float]) -> None:
    known, told = expected(done, [], 20), expected(done, unfinished, 20)
    assert all(new >= old for new, old in zip(told, known, strict=True))
    assert told == tuple(sorted(told))


def test_by_hand() -> None:
    assert expected([10.0, 20.0, 30.0], [], 3) == (10.0, 20.0, 30.0)
    # Of four that ran for 12 s three went on; the one that is not told any more counts for the two that were done.
    assert expected([10.0, 20.0, 30.0], [15.0], 8) == (10.0, 10.0, 20.0, 20.0, 20.0, 30.0, 30.0, 30.0)
    assert expected([], [100.0, 300.0], 4) == (100.0 * LONGER,) * 2 + (300.0 * LONGER,) * 2
    assert expected([10.0], [100.0], 2) == (10.0, 100.0 * LONGER)


# ------------------------------------------------------------------------------------------------- as it is learned


def runs(n: int, owner: str = "anna", begun_at: float = NOW, cpus: int = 8) -> Slot:
    return Slot(
        DroneId(f"d-{n}"),
        SlotState.BUSY,
        NOW,
        jobs=1,
        owner=owner,
        begun_at=begun_at,
        job_gpu_milli=1000,
        job_cpus=cpus,
        job_memory_mib=20480,
    )


def seen(
    at: float, *slots: Slot, done: tuple[CompletedJob, ...] = (), evictions: tuple[Eviction, ...] = ()
) -> Snapshot:
    made = snapshot()
    assert made.overlay.view is not None
    view = replace(made.overlay.view, slots=slots, completions=done, evictions=evictions)
    return replace(made, now=at, overlay=replace(made.overlay, view=view))


def learns(*looks: Snapshot) -> Estimates:
    learning = EstimateCollector()
    for made in looks:
        learning.note(made, nothing(made))
    return learning.estimates


def of(estimates: Estimates, owner: str = "anna", cpus: int = 8) -> tuple[float, ...]:
    return estimates.runs_of(owner, 1000, cpus, 20480, 0.0)


SHORT = tuple(done(n, 600.0, owner="ben") for n in range(RUNS_NEEDED))
"""Run time of all users' jobs, as far as any are done."""


def test_a_user_of_whom_nothing_is_done_and_much_has_run_for_long() -> None:
    young = learns(seen(NOW + 60, *(runs(n) for n in range(30)), done=SHORT))
    assert set(of(young)) == {600.0}, "a minute says nothing: as everybody's"
    old = learns(seen(NOW + 6 * HOUR_S, *(runs(n) for n in range(30)), done=SHORT))
    assert of(old)[RUNS_TOLD // 2] == LONGER * 6 * HOUR_S
    assert of(old, "carl")[RUNS_TOLD // 2] == LONGER * 6 * HOUR_S, "of him nothing is known: as everybody's"
    assert of(old, cpus=2)[RUNS_TOLD // 2] == LONGER * 6 * HOUR_S, "nothing better is known of their other jobs"


def test_one_job_that_has_run_for_long_says_little() -> None:
    estimates = learns(seen(NOW + 6 * HOUR_S, runs(0), done=SHORT))
    assert sorted(set(of(estimates))) == [600.0, LONGER * 6 * HOUR_S]
    assert of(estimates).count(600.0) >= 0.8 * RUNS_TOLD


def test_who_has_jobs_enough_that_are_done_is_known_by_them() -> None:
    mine = tuple(done(n, 600.0) for n in range(RUNS_KEPT))
    estimates = learns(seen(NOW + 6 * HOUR_S, *(runs(n) for n in range(30)), done=mine))
    assert set(of(estimates)) == {600.0}


def test_before_any_job_is_done_it_is_what_is_usual() -> None:
    estimates = learns(seen(NOW + 60, runs(0)))
    assert set(of(estimates)) == {USUAL_RUN_S}


def test_a_pool_that_does_not_tell_who_is_done_teaches_nothing() -> None:
    made = seen(NOW + 6 * HOUR_S, *(runs(n) for n in range(30)))
    assert made.overlay.view is not None
    silent = replace(made, overlay=replace(made.overlay, view=replace(made.overlay.view, completions=None)))
    assert learns(silent).runs == {}


def test_what_was_cut_short_is_not_forgotten() -> None:
    cut = tuple(Eviction(DroneId(f"d-{n}"), f"{n}.0", NOW + 6 * HOUR_S, 1000, 1.0) for n in range(30))
    before = seen(NOW + 6 * HOUR_S - 60, *(runs(n) for n in range(30)), done=SHORT)
    after = [seen(NOW + 6 * HOUR_S + n * UNFINISHED_EVERY_S, done=SHORT, evictions=cut) for n in (1, 2)]
    assert of(learns(before, *after))[RUNS_TOLD // 2] == pytest.approx(LONGER * 6 * HOUR_S)


def test_of_a_job_that_is_cut_short_again_and_again_the_longest_time_counts() -> None:
    unfinished = UnfinishedJobs()
    for began_s, ran_s in ((0.0, 50.0), (100.0, 70.0), (200.0, 10.0)):
        view = seen(NOW, runs(1, begun_at=NOW + began_s)).overlay.view
        evicted = seen(NOW, evictions=(Eviction(DroneId("d-1"), "7.0", NOW + began_s + ran_s, 1000, ran_s),))
        assert view is not None and evicted.overlay.view is not None
        unfinished.note(view)
        unfinished.note(evicted.overlay.view)
    assert [ran_s for _, ran_s in unfinished.cut.values()] == [70.0]


def test_what_is_remembered_is_bounded_and_can_be_forgotten() -> None:
    unfinished = UnfinishedJobs()
    many = range(CUT_KEPT + 10)
    for made in (
        seen(NOW, *(runs(n) for n in many)),
        seen(NOW, evictions=tuple(Eviction(DroneId(f"d-{n}"), f"{n}.0", NOW + 9, 1000, 9.0) for n in many)),
    ):
        assert made.overlay.view is not None
        unfinished.note(made.overlay.view)
    assert len(unfinished.cut) == CUT_KEPT and f"{many[-1]}.0" in unfinished.cut
    unfinished.forget("anna")
    assert not unfinished.cut


def test_a_user_is_forgotten_with_what_was_cut_short() -> None:
    learning = EstimateCollector()
    cut = tuple(Eviction(DroneId(f"d-{n}"), f"{n}.0", NOW + 6 * HOUR_S, 1000, 1.0) for n in range(30))
    looks = (
        seen(NOW + 6 * HOUR_S - 60, *(runs(n) for n in range(30)), done=SHORT),
        seen(NOW + 7 * HOUR_S, done=SHORT, evictions=cut),
    )
    for made in looks:
        learning.note(made, nothing(made))
    assert of(learning.estimates)[RUNS_TOLD // 2] > 600.0
    learning.forget("user:anna")
    assert set(of(learning.estimates)) == {USUAL_RUN_S}, "the run times of all users are removed too"


def test_several_jobs_in_a_drone_are_nobody_s_run() -> None:
    several = Slot(DroneId("d-1"), SlotState.BUSY, NOW, jobs=2, owner="anna", begun_at=NOW)
    assert learns(seen(NOW + 6 * HOUR_S, several, done=SHORT)).runs.keys().isdisjoint({"anna"})
