"""The benchmark of decisions: its measures against cases worked out by hand, its options in tiny worlds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.deciding.ablation import ABLATIONS, switched_off
from benchmarks.deciding.checks import Check, cases_of, verdicts
from benchmarks.deciding.earnings import earnings, world_changes
from benchmarks.deciding.foresight import PLACES, losses
from benchmarks.deciding.frontier import dominance, draw
from benchmarks.deciding.idle_waits import GPUS, START_S, share_while_idle
from benchmarks.deciding.play import LIMITS, Case, Played, Run, play_in
from benchmarks.deciding.rows import Row, merged, write
from benchmarks.deciding.run import parser, runs_of
from benchmarks.deciding.table import sheets
from benchmarks.deciding.users import dealt
from benchmarks.deciding.windows import Window, window_of
from provisioner.controller.estimation import USE_EVERY_S, UnfinishedJobs
from provisioner.estimates import Estimates, StartDelays
from provisioner.model import (
    DroneState,
    OverlayView,
    Plan,
    RemoteDrone,
    RemoteState,
    Snapshot,
    Stop,
)
from provisioner.planner import decide
from provisioner.reasons import Unneeded
from provisioner.simulator.hedges import HedgeCount
from provisioner.simulator.jobs import SimulatedJob
from provisioner.simulator.owner import VictimRule
from provisioner.simulator.results import FinishedJob, GpuTime, ReplayResult, Sample, WaitStatistics
from tests.planner import test_reservations, test_risk
from tests.planner.scenes import A100, NOW, SMALL, drone, jobs, slot_of, snapshot

TOPAS, CLOUD = START_S["topas"], START_S["cloud"]


def sample(
    at_s: float, *, cloud: int = GPUS["cloud"], owner: float = GPUS["topas"], booting: int = 0
) -> Sample:
    """Return a sample at which drones hold ``cloud`` GPUs of the cloud, and the owner all of its own."""
    none = {"topas": 0, "cloud": 0}
    return Sample(
        at_s, 1, 0, 0.0, 0.0, owner, {"cloud": float(cloud)}, none, {**none, "cloud": booting}
    )


def every_10_s(until_s: float, **state: float) -> list[Sample]:
    return [sample(10.0 * n, **state) for n in range(int(until_s / 10) + 1)]  # type: ignore[arg-type]


def test_waiting_for_a_full_site_is_not_counted() -> None:
    assert share_while_idle([(0.0, 1000.0)], every_10_s(1000)) == 0.0


def test_waiting_beyond_the_start_up_time_of_a_free_cloud_is_counted() -> None:
    share = share_while_idle([(0.0, 1000.0)], every_10_s(1000, cloud=11))
    assert share == pytest.approx((1000 - CLOUD) / 1000, abs=0.02)


def test_no_more_jobs_count_than_gpus_are_free_and_none_whose_drone_boots() -> None:
    waits = [(0.0, 1000.0)] * 4
    one = share_while_idle(waits, every_10_s(1000, cloud=11))
    assert share_while_idle(waits, every_10_s(1000, cloud=10)) == pytest.approx(2 * one)
    assert share_while_idle(waits, every_10_s(1000, cloud=10, booting=1)) == pytest.approx(one)


def test_a_gpu_counts_once_it_has_been_free_for_the_start_up_time() -> None:
    full_until_s = 500.0
    samples = [sample(10.0 * n, cloud=12 if 10 * n < full_until_s else 11) for n in range(101)]
    assert share_while_idle([(0.0, 1000.0)], samples) == pytest.approx(
        (500 - CLOUD) / 1000, abs=0.02
    )


def test_the_quicker_site_counts_from_its_own_start_up_time() -> None:
    share = share_while_idle([(0.0, 1000.0)], every_10_s(1000, owner=55.0))
    assert share == pytest.approx((1000 - TOPAS) / 1000, abs=0.02) and TOPAS < CLOUD


# -------------------------------------------------------------------------------------------------------------
# results

OLD_RESULT = """{
 "rule": "ours", "trace": "kit", "owner": "vc8Sj", "seed": 1, "days": Infinity, "span_days": 28.0, "jobs": 10,
 "jobs_done": 10, "good_h": 8000.0, "waste": 0.05, "idle": 0.01, "boot_release": 0.02, "badput": 0.02,
 "wait_mean_s": 600.0, "wait_p50_s": 60.0, "wait_p95_s": 900.0, "burst_first_s": null, "burst_most_s": null,
 "requests": 12, "preempted": 1, "decision_mean_s": 0.001, "decision_worst_s": 0.01, "violations": []
}"""
OLD = Row.read(OLD_RESULT)


def row(rule: str = "ours", trace: str = "kit", seed: int = 1, **fields: object) -> Row:
    return replace(OLD, rule=rule, trace=trace, seed=seed, **fields)  # type: ignore[arg-type]


def test_results_of_earlier_runs_are_read() -> None:
    assert OLD.variant == "ours" and OLD.usual and OLD.case == Case("kit", "vc8Sj")
    assert OLD.idle_waits is None and OLD.first_day is None


def test_names_of_results_of_earlier_runs_are_kept() -> None:
    assert str(Run("ours", "kit", "vc8Sj", 3)) == "kit-vc8Sj-ours-3"
    assert str(Run("karpenter", "openb2023", "vchbv", 1, 2.0)) == "openb2023-2d-vchbv-karpenter-1"


def test_runs_with_other_options_have_other_names() -> None:
    plain = Run("ours", "kit", "vc8Sj", 1)
    news: list[dict[str, object]] = [
        {"waiting_cost": 0.3},
        {"limits": "shipped"},
        {"without": "hedging"},
    ]
    news += [{"users": 10}, {"victims": "oldest"}, {"seed": 2}, {"days": 7.0}]
    assert len({str(replace(plain, **new)) for new in ({}, *news)}) == 1 + len(news)  # type: ignore[arg-type]


def test_a_row_is_the_same_after_a_write_and_a_read(tmp_path: Path) -> None:
    run = Run("ours", "kit", "vc8Sj", 1, waiting_cost=0.3)
    done = ReplayResult(
        "ours", "kit", 1, 1.0, 1, 1, 0, GpuTime(1.0, 1.0), WaitStatistics(1, 2.0, 2.0, 2.0)
    )
    played = Played(done, idle_waits=0.1, first_day=Window(1, 0.25, 2.0, 2.0))
    write(tmp_path, run, played)
    assert merged([tmp_path]) == [Row.of(run, played)]
    assert merged([tmp_path])[0].first_day == Window(1, 0.25, 2.0, 2.0)


# -------------------------------------------------------------------------------------------------------
# the first day


def test_a_window_has_the_jobs_that_were_submitted_in_it_with_all_that_they_lose() -> None:
    day_s = 86400.0
    finished = [FinishedJob(0.0, 10.0, 100.0, 50.0), FinishedJob(day_s - 1, 30.0, 300.0, 50.0)]
    finished += [FinishedJob(day_s, 1000.0, 100.0, 100.0)]
    assert window_of(finished, (0.0, 1.0)) == Window(2, 0.25, 20.0, 30.0)
    assert window_of(finished, (10.0, 20.0)) is None


def test_the_first_day_is_judged_by_days_10_to_20() -> None:
    later = Window(10, 0.10, 100.0, 1000.0)
    rows = [row(first_day=Window(10, 0.12, 121.0, 1190.0), later_days=later)]
    met = {
        each.what: each.met
        for each in verdicts({"ours": rows}, "ours")
        if each.check is Check.FIRST_DAY
    }
    assert met == {"work lost, %": True, "mean wait, s": False, "95 % wait, s": True}
    without = [each for each in verdicts({"ours": [OLD]}, "ours") if each.check is Check.FIRST_DAY]
    assert [each.met for each in without] == [None] * 3, "not judged"


# --------------------------------------------------------------------------------------------------------
# the frontier


def frontier_rows(trace: str = "kit") -> list[Row]:
    """Return two points of ours, and a Karpenter-like rule that the second one dominates, but not in the 95 % wait."""
    return [
        row(trace=trace, waste=0.02, wait_mean_s=900.0, waiting_cost=0.3),
        row(trace=trace, waste=0.05, wait_mean_s=600.0),
        row("karpenter", trace, waste=0.06, wait_mean_s=600.0, wait_p95_s=800.0),
        row("always-on", trace, waste=9.0, wait_mean_s=500.0),
    ]


def test_the_frontier_dominates_a_rule_that_is_nowhere_better_than_one_of_its_points() -> None:
    karpenter, always_on = dominance(cases_of(frontier_rows()))
    assert (karpenter.rule, karpenter.cases, len(karpenter.dominated)) == ("karpenter", 1, 1)
    assert karpenter.prices == (1.0,) and karpenter.met and not karpenter.open
    assert not karpenter.dominated_p95
    assert always_on.open == ("kit, owner vc8Sj",) and not always_on.met


def test_a_rule_must_be_dominated_on_ten_of_twelve_cases() -> None:
    fine = [each for n in range(5) for each in frontier_rows(f"t{n}")]
    bad = [row("karpenter", "bad", waste=0.01), row(trace="bad")]
    found = {each.rule: each for each in dominance(cases_of([*fine, *bad]))}
    assert (
        len(found["karpenter"].dominated),
        found["karpenter"].cases,
        found["karpenter"].met,
    ) == (5, 6, True)
    found = {each.rule: each for each in dominance(cases_of([*fine[4:], *bad]))}
    assert not found["karpenter"].met, "4 of 5"


def test_each_world_is_judged_for_itself() -> None:
    rows = [*frontier_rows(), row(users=10), row("karpenter", users=10, waste=0.01)]
    found = {
        each.setting: each.met for each in dominance(cases_of(rows)) if each.rule == "karpenter"
    }
    assert found == {"quota limits": True, "10 users, quota limits": False}


def test_means_over_seeds_are_compared() -> None:
    rows = [
        row(waste=0.01),
        row(seed=2, waste=0.05),
        row("karpenter", waste=0.03),
        row("karpenter", seed=2, waste=0.03),
    ]
    assert next(dominance(cases_of(rows))).met
    assert not next(dominance(cases_of([*rows[1:]]))).met


def test_the_picture_has_a_panel_for_each_case_with_ours(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [*frontier_rows(), row("karpenter", "6214e9")]
    draw(cases_of(rows), tmp_path / "frontier.svg")
    text = (tmp_path / "frontier.svg").read_text()
    assert "kit, owner vc8Sj" in text and "6214e9" not in text
    draw(cases_of(rows), tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == text


def test_tables_have_each_variant_and_judge_the_usual_price_alone() -> None:
    lines = [line for sheet in sheets(frontier_rows()) for line in sheet.text()]
    assert any(line.startswith("ours, waiting cost 0.3") for line in lines)
    judged = [line for line in lines if "95 % wait, s" in line and "always" in line]
    assert len(judged) == 1 and judged[0].startswith("kit, owner vc8Sj  ours  ")


# ----------------------------------------------------------------------------------------------------------------
# runs


def asked(*options: str) -> list[str]:
    arguments = ["--pairs", "kit/vc8Sj", "--seeds", "1", *options]
    return [str(run) for run in runs_of(parser().parse_args(arguments))]


def test_prices_and_limits_are_played_for_our_rule_alone() -> None:
    found = asked(
        "--rules", "ours", "karpenter", "--waiting-cost", "0.3", "1", "--limits", "quota", "shipped"
    )
    assert found == [
        "kit-vc8Sj-ours-waiting-cost-0.3-1",
        "kit-vc8Sj-ours-1",
        "kit-vc8Sj-ours-shipped-limits-waiting-cost-0.3-1",
        "kit-vc8Sj-ours-shipped-limits-1",
        "kit-vc8Sj-karpenter-1",
    ]


def test_a_higher_price_of_waiting_shortens_the_waits_of_short_jobs() -> None:
    jobs = tuple(
        SimulatedJob(at_s, 60.0) for at_s, count in ((0.0, 12), (3600.0, 60)) for _ in range(count)
    )
    cheap, dear = (
        play_in(Run("ours", "", "", 1, waiting_cost=cost), jobs, ()).result for cost in (0.1, 3.0)
    )
    assert cheap.jobs_done == dear.jobs_done == len(jobs) and not cheap.violations + dear.violations
    assert cheap.waits.mean_s > 1.2 * dear.waits.mean_s
    assert cheap.gpu_hours.waste < dear.gpu_hours.waste


def test_shipped_limits_hold_back_a_burst() -> None:
    jobs = tuple(SimulatedJob(0.0, 3600.0) for _ in range(60))
    free, held = (
        play_in(Run("ours", "", "", 1, limits=limits), jobs, ()).result for limits in LIMITS
    )
    assert not free.violations + held.violations
    assert held.waits.mean_s > free.waits.mean_s


# ------------------------------------------------------------------------------------------------------------
# ablation

CLOUD_TYPE = replace(A100, site="cloud", price=3.0)
QUEUED = drone("kit-ab12-1", DroneState.QUEUED, A100, age_s=600)
EXPECTED_LATE = RemoteDrone(QUEUED.id, RemoteState.PENDING, "17_0", expected_start_at=NOW + 3500)
SHORT_RUNS = Estimates(runs={test_risk.size_key(SMALL.owner): (30.0,)})
SCENES: Mapping[str, Snapshot] = {
    "owner-risk": test_risk.world(test_risk.NEAR, free=10),
    "excluded-users": test_risk.world_excluded(test_risk.of("short"), test_risk.of("long")),
    "drain-at-risk": test_risk.staffed(test_risk.NEAR),
    "hedging": snapshot(
        classes=[jobs()],
        types=(A100, CLOUD_TYPE),
        drones=[QUEUED],
        remotes=[EXPECTED_LATE],
        free={"a100": 2},
    ),
    "sharing": test_risk.world(SHORT_RUNS, free=100, waiting=40, safe=False),
    "learned-idle-timeouts": replace(
        snapshot(drones=[drone("kit-ab12-1", age_s=31)]),
        estimates=Estimates(idle_s={"topas": 26.0}),
    ),
    "ranking-by-cost": replace(
        snapshot(classes=[jobs()], types=(A100, CLOUD_TYPE), free={"a100": 5}),
        estimates=Estimates(
            delays={A100.key: StartDelays(7200, 60), CLOUD_TYPE.key: StartDelays(10, 60)}
        ),
    ),
    "reservations": test_reservations.scene(
        test_reservations.FULL, test_reservations.LARGE, test_reservations.SMALL_JOBS
    ),
}


@pytest.mark.parametrize("rule", sorted({*ABLATIONS} - {"unfinished-jobs"}))
def test_each_rule_that_can_be_switched_off_changes_a_plan(rule: str) -> None:
    plan = decide(SCENES[rule])
    with switched_off(rule):
        assert decide(SCENES[rule]) != plan
    assert decide(SCENES[rule]) == plan, "it is on again"


def test_without_unfinished_jobs_run_times_come_from_completed_ones_alone() -> None:
    busy = drone("kit-ab12-1", DroneState.BUSY)
    view = OverlayView(NOW, slots=(slot_of(busy, owner="ann", job_cpus=1, begun_at=NOW - 100),))
    for rule, known in (("", True), ("unfinished-jobs", False)):
        with switched_off(rule):
            found = UnfinishedJobs()
            found.note(view)
            assert bool(list(found.so_far(NOW))) is known


def test_a_rule_earns_what_is_worse_without_it_seed_by_seed() -> None:
    rows = [row(seed=n, waste=0.05 + n / 100, wait_mean_s=100.0) for n in (1, 2)]
    rows += [
        row(seed=n, waste=0.06 + n / 100, wait_mean_s=150.0, without="hedging") for n in (1, 2, 3)
    ]
    (earning,) = earnings(cases_of(rows))
    assert (earning.names[2], len(earning.changes[0])) == ("hedging", 2), (
        "the third seed has no partner"
    )
    assert earning.changes[0] == pytest.approx([1.0, 1.0])
    assert earning.overall[0] == pytest.approx(1.0) and earning.overall[2] == pytest.approx(50.0), (
        "per cent"
    )
    lines = [line for sheet in sheets(rows) for line in sheet.text()]
    assert any("hedging" in line and "1.00 ± 0.00" in line for line in lines)


def test_each_rule_is_switched_off_beside_the_whole_planner() -> None:
    assert asked("--rules", "ours", "--without", "hedging", "sharing") == [
        "kit-vc8Sj-ours-1",
        "kit-vc8Sj-ours-without-hedging-1",
        "kit-vc8Sj-ours-without-sharing-1",
    ]
    assert len(asked("--rules", "ours", "--without", "all")) == 1 + len(ABLATIONS)


# ------------------------------------------------------------------------------------------------------
# users, victims


def test_runs_of_similar_jobs_go_to_one_user_also_where_they_alternate() -> None:
    lengths = [60.0, 7200.0, 80.0, 6000.0, 100.0, 9000.0]
    dealt_jobs = dealt(
        [SimulatedJob(600.0 * n, length_s) for n, length_s in enumerate(lengths)], 50, seed=3
    )
    short, long = ({job.wants.owner for job in dealt_jobs[n::2]} for n in (0, 1))
    assert len(short) == len(long) == 1 and short != long


def test_a_campaign_ends_with_a_gap_and_with_a_job_of_another_length() -> None:
    apart = [SimulatedJob(7 * 3600.0 * n, 60.0) for n in range(20)]
    unlike = [SimulatedJob(60.0 * n, 4.0**n) for n in range(15)]
    for given in (apart, unlike):
        assert len({job.wants.owner for job in dealt(given, 50, seed=1)}) > 5


def test_users_are_the_same_for_the_same_seed_and_only_users_are_new() -> None:
    given = [SimulatedJob(60.0 * n, float(1 + n * n)) for n in range(200)]
    one, again, other = (dealt(given, 10, seed) for seed in (1, 1, 2))
    assert one == again != other
    assert [(job.submit_s, job.duration_s) for job in one] == [
        (job.submit_s, job.duration_s) for job in given
    ]
    assert dealt(given, 1, seed=1) == tuple(given)


def test_each_world_is_played_by_every_rule() -> None:
    assert asked(
        "--rules", "ours", "karpenter", "--users", "1", "10", "--victims", "youngest", "oldest"
    ) == [
        f"kit{users}-vc8Sj{victims}-{rule}-1"
        for users in ("", "-10users")
        for victims in ("", "-oldest")
        for rule in ("ours", "karpenter")
    ]


@pytest.mark.parametrize("victims", [rule.value for rule in VictimRule])
def test_the_owner_preempts_the_drones_that_the_run_names(victims: str) -> None:
    """Drones hold all GPUs of the owner, who takes back as many as began at one time."""
    jobs = tuple(SimulatedJob(600.0 * n, 7200.0) for n in range(4) for _ in range(14))
    owner = ((0.0, 0), (3600.0, 14), (6000.0, 0))
    run = Run("karpenter", "", "", 1, victims=victims)
    played = play_in(run, jobs, owner)
    assert played.result.preempted == 14
    lost_h = played.result.gpu_hours.badput
    expected = {"oldest": 14.0, "youngest": 14 * 0.45}
    assert expected.get(victims, lost_h) == pytest.approx(lost_h, rel=0.1)


def test_what_users_and_victims_change_is_told_for_each_rule() -> None:
    rows = [row(rule, wait_mean_s=100.0) for rule in ("ours", "karpenter")]
    rows += [
        row("ours", users=10, wait_mean_s=130.0),
        row("karpenter", victims="oldest", wait_mean_s=70.0),
    ]
    found = {each.names: each.overall[2] for each in world_changes(cases_of(rows))}
    assert found == {
        ("kit, owner vc8Sj, 10 users", "ours"): pytest.approx(30.0),
        ("kit, owner vc8Sj, oldest victims", "Karpenter-like (availability, 30 s)"): pytest.approx(
            -30.0
        ),
    }


def test_hedges_and_those_of_which_one_drone_is_cancelled_are_counted() -> None:
    made = SCENES["hedging"]
    made = replace(made, drones={QUEUED.id: replace(QUEUED, for_class="small")})
    count, plan = HedgeCount(), decide(made)
    assert [start.drone.site for start in plan.starts] == ["cloud"]
    count.note(made, plan)
    # no drone waits at its site: the start is no second one
    count.note(replace(made, drones={}), plan)
    assert (count.started, count.withdrawn) == (1, 0)
    cancelled = Stop(replace(QUEUED, for_class="small"), QUEUED.state, Unneeded("queued"))
    for _ in range(2):  # the first drone, and another one that no hedge was started for
        count.note(made, Plan(7, NOW, stops=(cancelled,)))
    assert (count.started, count.withdrawn) == (1, 1)


def test_losses_in_front_of_an_owner_are_those_of_jobs_whose_place_it_takes() -> None:
    """The owner uses 16 of 56 GPUs, and 24 more in every other two hours: the last 16 places are never taken."""
    hour = int(3600.0 / USE_EVERY_S)
    use = [16_000 + 24_000 * (n // hour % 4 >= 2) for n in range(4 * 24 * hour)]
    found = losses(use)
    hours = {run_s: [each for each in found if each[0] == run_s] for run_s in (900.0, 4 * 3600.0)}
    lost = {run_s: sum(1 for _, _, lost_s, _ in each if lost_s) for run_s, each in hours.items()}
    assert 0 < lost[900.0] < lost[4 * 3600.0] < len(hours[4 * 3600.0])
    assert all(
        lost_s < run_s and bool(lost_s) is not bool(done_s) for run_s, _, lost_s, done_s in found
    )
    taken = [each for each in hours[4 * 3600.0] if each[2]]
    assert len(taken) % sum(1 for place in PLACES if place > 16) == 0, (
        "of each moment the same places"
    )
    assert min(estimate for _, estimate, _, _ in taken) > 0.1
