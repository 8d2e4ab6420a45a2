"""What the controller learns from what it sees and does anyway."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from provisioner import model, reasons
from provisioner.controller import estimation
from provisioner.controller.estimation import (
    LONGER,
    RUNS_NEEDED,
    USE_EVERY_S,
    EstimateCollector,
    expected,
    rise_of,
)
from provisioner.estimates import (
    HORIZONS_S,
    UNKNOWN,
    Estimates,
    EstimateSamples,
    SiteSamples,
    StartDelays,
)
from provisioner.planner.risk import expected_loss
from provisioner.planner.states import MIN_IDLE_GAPS
from tests.planner.scenes import A100, NOW, drone, snapshot, with_pool, with_site

S = model.DroneState
RUNS = reasons.SeenInPool("busy", 1, 1.0)
WANTED = model.Start(drone("e", S.REQUESTED), reasons.JobsWaiting("small", "small", 1, 0, 1))


def note(learning: EstimateCollector, made: model.Snapshot, **plan: object) -> EstimateCollector:
    """Show it a decision, without any action unless the story tells one."""
    learning.note(made, model.Plan(made.tick, made.now, **plan))
    return learning


def at(
    after_s: float, *jobs: model.CompletedJob, drones: tuple[model.Drone, ...] = ()
) -> model.Snapshot:
    return with_pool(replace(snapshot(drones=drones), now=NOW + after_s), completions=jobs)


def owned(now: float, gpu_milli: int, *jobs: model.CompletedJob) -> model.Snapshot:
    """A moment at which the site's owner holds so much."""
    return replace(
        with_site(at(0.0, *jobs), owner_runs=model.OwnerLoad(gpu_milli=gpu_milli)), now=now
    )


def done(n: int, run_s: float, owner: str = "anna", schedd: str = "") -> model.CompletedJob:
    return model.CompletedJob(f"{schedd}{n}.0", NOW + n, NOW, run_s, 1000, 8, 20480, owner=owner)


def moved(was: model.Drone, **news: object) -> model.StateChange:
    return model.StateChange(replace(was, **news), was.state, RUNS)


def test_the_jobs_of_a_schedd_that_was_silent_for_a_while_count_once() -> None:
    learning = EstimateCollector()
    here, there = (
        [done(n, 60.0, schedd="a#") for n in range(300, 310)],
        [done(n, 60.0, schedd="b#") for n in range(5)],
    )
    for after_s, jobs in ((400, (*here, *there)), (460, here), (520, (*here, *there))):
        note(learning, at(after_s, *jobs))
        assert len(learning.runs["anna"]) == 15, (
            "though they ended before all jobs that were reported meanwhile"
        )
    late = done(2000, 60.0, schedd="a#")
    note(learning, at(estimation.SEEN_S + 304, late))
    assert learning.samples(NOW).seen == {
        (each.job_id, each.ended_at) for each in (late, *here[4:])
    }, "no longer"


def watching() -> EstimateCollector:
    """One who saw the pool a moment ago."""
    return note(EstimateCollector(), at(-15.0))


@pytest.mark.parametrize(
    ("ordered_s", "started_s", "queue_s", "boot_s"),
    [(100.0, 70.0, 30.0, 70.0), (69.6, 70.0, 0.0, 70.0), (100.0, -2.0, 102.0, 0.0)],
    ids=[
        "as it should be",
        "begun before the order, in whole seconds",
        "in the pool before it began, by its clock",
    ],
)
def test_delays_come_from_drones_that_came(
    ordered_s: float, started_s: float, queue_s: float, boot_s: float
) -> None:
    was = drone("d", S.BOOTING, requested_at=NOW - ordered_s, started_at=NOW - started_s)
    learning = note(
        watching(), at(60, drones=(was,)), moves=(moved(was, state=S.IDLE, joined_at=NOW),)
    )
    assert learning.estimates.delays[A100.key] == StartDelays(queue_s, boot_s)


def test_an_owner_who_takes_eight_gpus_each_morning_is_known_after_some_days() -> None:
    learning = EstimateCollector()
    for step in range(5 * 24 * 30):
        note(learning, owned(NOW + step * USE_EVERY_S, 8000 if 8 <= step // 30 % 24 < 18 else 0))
    rise = learning.estimates.rises["topas"]
    unseen = [0.5 * each / (each + 5 * 86400.0) for each in HORIZONS_S]
    assert rise.chances(8000) == pytest.approx(unseen, rel=0.05)
    # Within eight hours before eight o'clock: at 8 of the 24 hours, and within 16 hours at 14 of
    # them.
    assert rise.chances(7999)[5:7] == pytest.approx((8 / 24, 14 / 24), abs=0.05)
    assert (
        expected_loss((3600.0,), rise.chances(7999))
        > 0.01
        > expected_loss((3600.0,), rise.chances(8000))
    )


def test_idle_time_outs_come_from_gaps_that_were_and_gaps_that_would_have_been() -> None:
    learning, idle = watching(), drone("d")
    booting = drone("d", S.BOOTING, requested_at=NOW - 100, started_at=NOW - 70)
    note(learning, at(0, drones=(booting,)), moves=(moved(booting, state=S.IDLE, joined_at=NOW),))
    # It leaves after ten minutes, and ten seconds later another one is needed: 610 s would have
    # been long enough.
    idled = reasons.IdleTimeout(600.0, 600.0)
    left = model.Drain(replace(idle, state=S.DRAINING), idle.state, model.DrainMode.PEACEFUL, idled)
    for n in range(MIN_IDLE_GAPS):
        note(learning, at(100.0 * n, drones=(idle,)), drains=(left,))
        note(learning, at(100.0 * n + 10.0, drones=(idle,)), starts=(WANTED,))
    assert set(learning.sites["topas"].gaps_s) == {610.0}
    note(learning, at(1e5, drones=(idle,)))
    assert learning.estimates.idle_s == {"topas": 15.0}, (
        "610 s of idling cost more than 70 s of booting"
    )


def test_jobs_with_an_optional_gpu_end_no_gap() -> None:
    learning, idle = watching(), drone("d", idle_at=NOW - 100)
    lent = moved(idle, state=S.BUSY)  # its idle time goes on
    note(learning, at(0, drones=(idle,)), moves=(lent,))
    assert not learning.sites["topas"].gaps_s
    note(learning, at(50, drones=(lent.drone,)), moves=(moved(lent.drone, idle_at=0.0),))
    assert list(learning.sites["topas"].gaps_s) == [150.0], "a job that needs the GPU does"
    left = model.Drain(
        lent.drone, S.BUSY, model.DrainMode.PEACEFUL, reasons.OptionalJobsOnly(600.0, 600.0)
    )
    note(learning, at(100, drones=(lent.drone,)), drains=(left,))
    note(learning, at(110, drones=(idle,)), starts=(WANTED,))
    assert list(learning.sites["topas"].gaps_s) == [150.0, 610.0]


@pytest.mark.parametrize(
    ("gaps_s", "boot_s", "best_s"),
    [
        ([40.0] * 30, 240.0, 60.0),
        ([50.0] * 30, 5.0, 15.0),
        ([5000.0] * 30, 240.0, 15.0),
        ([200.0] * 30, 500.0, 240.0),
    ],
)
def test_the_best_time_out_pays_for_gaps_only_where_starts_are_dearer(
    gaps_s: list[float], boot_s: float, best_s: float
) -> None:
    assert estimation.best_timeout_s(gaps_s, boot_s, 0.3) == best_s


def restarted(learning: EstimateCollector, kept_at: float, now: float) -> EstimateCollector:
    """The next controller's, from what this one kept."""
    again = EstimateCollector()
    again.recall(learning.samples(kept_at), now, 0.3)
    return again


@pytest.mark.parametrize(
    ("missed", "filled"),
    [(1, True), (estimation.USE_FILLED, True), (estimation.USE_FILLED + 1, False), (700, False)],
)
def test_of_a_long_absence_nothing_is_made_up(missed: int, filled: bool) -> None:
    learning, until = EstimateCollector(), NOW + 2 * USE_EVERY_S
    for step in range(3):
        note(learning, owned(NOW + step * USE_EVERY_S, 2000))
    back_at = until + missed * USE_EVERY_S
    again = note(restarted(learning, until, back_at), owned(back_at, 7000))
    between = [7000 if filled else UNKNOWN] * (missed - 1)
    assert list(again.sites["topas"].use_milli) == [2000] * 3 + between + [7000]


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
    site = before._site("topas")
    site.departed.append((60.0, NOW - 10))
    site.taken, site.run_s = 2.0, 7200.0
    learning = restarted(before, NOW - estimation.FADE_S, NOW)
    boots = drone("b", S.BOOTING, requested_at=NOW - 9000, started_at=NOW - 8000)
    idles, works = drone("i", idle_at=NOW - 7000), drone("w", S.BUSY)
    joins = moved(boots, state=S.IDLE, joined_at=NOW)
    moves = (
        joins,
        moved(idles, state=S.BUSY, idle_at=0.0),
        moved(works, state=S.PREEMPTED, ended_at=NOW),
    )
    note(learning, at(0, drones=(boots, idles, works)), moves=moves, starts=(WANTED,))
    site = learning.sites["topas"]
    assert learning.delays == {A100.key: StartDelays(30.0, 70.0)}
    assert not site.gaps_s and not site.departed
    assert (site.taken, site.run_s) == (1.0, 3600.0), "a week later the same chance counts half"
    note(learning, at(15, drones=(idles, works)), moves=moves[1:])
    assert list(site.gaps_s) == [7015.0] and site.taken == 2.0, "from then on it looks"


def test_what_is_forgotten_is_what_was_named() -> None:
    keys = ("", "etp/a", "etp/a/1000/8/2048", "etp", "etp/1/2/3", "/1/2/3")
    runs = dict.fromkeys(keys, (60.0,) * RUNS_NEEDED)
    sites = {"topas": SiteSamples(gaps_s=(1.0,)), "horeka": SiteSamples()}
    delays = {"topas/a100": StartDelays(1.0, 2.0), "horeka/h100": StartDelays(3.0, 4.0)}

    def left(what: str) -> EstimateSamples:
        learning = EstimateCollector()
        learning.recall(EstimateSamples(NOW, runs, delays, sites), NOW, 0.3)
        learning.forget(what)
        assert set(learning.estimates.runs) == set(learning.runs), "the next tick plans without it"
        return learning.samples(NOW)

    etp_left = {"etp/a", "etp/a/1000/8/2048", "/1/2/3"}
    assert set(left("user:etp").runs) == etp_left, (
        "the key names the whole user, and each user had one"
    )
    assert set(left("user:etp/a").runs) == {"etp", "etp/1/2/3", "/1/2/3"}
    topas = left("site:topas")
    assert (set(topas.runs), set(topas.sites), set(topas.delays)) == (
        set(runs),
        {"horeka"},
        {"horeka/h100"},
    )
    assert left("all") == EstimateSamples(NOW)


# --------------------------- What is learned from jobs that are not done: those that run, and those
# that were cut short


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
            longer = kaplan_meier(done, unfinished, at_s)
            assert sum(run_s > at_s for run_s in told) / 1000 == pytest.approx(longer, abs=0.0011)


def runs(n: int, owner: str = "anna", begun_at: float = NOW) -> model.Slot:
    shape = {"job_gpu_milli": 1000, "job_cpus": 8, "job_memory_mib": 20480}
    drone_id = model.DroneId(f"d-{n}")
    return model.Slot(
        drone_id, model.SlotState.BUSY, NOW, jobs=1, owner=owner, begun_at=begun_at, **shape
    )


MANY = tuple(runs(n) for n in range(30))


def seen(now: float, *slots: model.Slot, done: object = (), **more: object) -> model.Snapshot:
    return replace(with_pool(snapshot(), slots=slots, completions=done, **more), now=now)


def learns(*looks: model.Snapshot) -> Estimates:
    learning = EstimateCollector()
    for made in looks:
        note(learning, made)
    return learning.estimates


def of(estimates: Estimates, owner: str = "anna", cpus: int = 8) -> tuple[float, ...]:
    return estimates.runs_of(owner, 1000, cpus, 20480, 0.0)


SHORT = tuple(done(n, 600.0, owner="ben") for n in range(RUNS_NEEDED))
"""Run time of all users' jobs, as far as any are done."""


def test_a_user_of_whom_nothing_is_done_and_much_has_run_for_long() -> None:
    young = learns(seen(NOW + 60, *MANY, done=SHORT))
    assert set(of(young)) == {600.0}, "a minute says nothing: as everybody's"
    old = learns(seen(NOW + 6 * HOUR_S, *MANY, done=SHORT))
    for whose in ({}, {"owner": "carl"}, {"cpus": 2}):
        assert of(old, **whose)[estimation.RUNS_TOLD // 2] == LONGER * 6 * HOUR_S, (
            "nothing better is known of others"
        )
    one = of(learns(seen(NOW + 6 * HOUR_S, runs(0), done=SHORT)))
    assert sorted(set(one)) == [600.0, LONGER * 6 * HOUR_S], "one says little"
    assert one.count(600.0) >= 0.8 * estimation.RUNS_TOLD


def test_a_pool_that_does_not_tell_who_is_done_teaches_nothing() -> None:
    assert learns(seen(NOW + 6 * HOUR_S, *MANY, done=None)).runs == {}


def test_what_was_cut_short_is_not_forgotten() -> None:
    cut = tuple(
        model.Eviction(model.DroneId(f"d-{n}"), f"{n}.0", NOW + 6 * HOUR_S, 1000, 1.0)
        for n in range(30)
    )
    before = seen(NOW + 6 * HOUR_S - 60, *MANY, done=SHORT)
    after = [
        seen(NOW + 6 * HOUR_S + n * estimation.UNFINISHED_EVERY_S, done=SHORT, evictions=cut)
        for n in (1, 2)
    ]
    assert of(learns(before, *after))[estimation.RUNS_TOLD // 2] == pytest.approx(
        LONGER * 6 * HOUR_S
    )


def test_what_is_remembered_is_bounded_and_can_be_forgotten() -> None:
    unfinished = estimation.UnfinishedJobs()
    many = range(estimation.CUT_KEPT + 10)
    evictions = tuple(
        model.Eviction(model.DroneId(f"d-{n}"), f"{n}.0", NOW + 9, 1000, 9.0) for n in many
    )
    for made in (seen(NOW, *(runs(n) for n in many)), seen(NOW, evictions=evictions)):
        assert made.overlay.view is not None
        unfinished.note(made.overlay.view)
    assert len(unfinished.cut) == estimation.CUT_KEPT and f"{many[-1]}.0" in unfinished.cut
    unfinished.forget("anna")
    assert not unfinished.cut
