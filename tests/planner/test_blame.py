"""Faults on shared GPUs: who is to blame, who is not, and what becomes of their jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner import formatting, model
from provisioner.model import Blame, BreakerState
from provisioner.planner import decide
from provisioner.planner.blame import ALONE_S, MAX_FAILURES_KEPT
from provisioner.planner.breakers import shift_breaker
from provisioner.planner.validation import validate_plan
from provisioner.reasons import BlackHoleDrone, ExclusiveOnly
from tests.planner.scenes import NOW, V100, drone, plan_of, slot_of, snapshot, with_pool

S = model.DroneState
WEEK = 7 * 86400.0
MPS = replace(V100, name="mps", sharing=model.Sharing.MPS, shares=4, price=0.5)
MIG = replace(MPS, name="mig", sharing=model.Sharing.MIG)
WHOLE = replace(V100, name="whole")
ANNS = model.JobClass(
    "anns", 250, 1, 1024, waiting=2, oldest_at=NOW - 1000, owner="ann", splits=False
)
BOBS = replace(ANNS, id="bobs", owner="bob")


def failure(
    job: str, at: float = NOW - 60, owner: str = "ann", blame: Blame = Blame.JOB, name: str = "d-1"
):
    return model.JobFailure(model.DroneId(name), f"schedd.test#{job}", at, owner, "faulted", blame)


def collateral(
    job: str, at: float = NOW - 60, owner: str = "ann", name: str = "d-1"
) -> model.JobFailure:
    return failure(job, at, owner, Blame.COLLATERAL, name)


def fresh(snap: model.Snapshot, now: float) -> model.Snapshot:
    """The same snapshot at another time, with views as new."""
    assert snap.overlay.view is not None
    sites = {
        name: replace(p, view=replace(p.view, taken_at=now - 1))
        for name, p in snap.sites.items()
        if p.view
    }
    return replace(with_pool(snap, taken_at=now - 1, negotiated_at=now - 5), now=now, sites=sites)


def story(
    *failures: model.JobFailure, types: tuple[model.DroneType, ...] = (MPS, WHOLE), **more: object
):
    more.setdefault("classes", [ANNS, BOBS])
    completions = more.pop("completions", ())
    return with_pool(
        snapshot(types=types, **more), mishaps=failures, completions=tuple(completions)
    )


def starts(plan: model.Plan) -> dict[str, set[str]]:
    """The drone types that are started, by class."""
    found: dict[str, set[str]] = {}
    for start in plan.starts:
        found.setdefault(start.drone.for_class, set()).add(start.drone.type.partition("/")[2])
    return found


def of_class(plan: model.Plan, name: str) -> list[object]:
    return [
        refusal.reason
        for refusal in plan.refusals
        if refusal.subject == model.Subject("class", name)
    ]


def record(plan: model.Plan, user: str = "ann") -> model.Breaker:
    (found,) = (each for each in plan.breakers if each.scope == model.Scope(user=user))
    return found


def test_one_fault_is_recorded_and_costs_nothing() -> None:
    plan = plan_of(story(failure("1.0")))
    assert starts(plan) == {"anns": {"mps"}}, "one drone of four shares for both classes"
    assert plan.starts[0].drone.job_filter.excluded_users == () and of_class(plan, "anns") == []
    found = record(plan)
    assert (found.state, found.failures, found.until) == (BreakerState.DEGRADED, 1, 0.0)
    assert found.faults == (failure("1.0"),)


def test_after_two_faults_a_user_gets_exclusive_gpus_and_new_shared_drones_refuse_them() -> None:
    plan = plan_of(story(failure("1.0", NOW - 3000, name="d-0"), failure("2.0")))
    assert starts(plan) == {"anns": {"whole"}, "bobs": {"mps"}}
    assert {s.drone.for_class: s.drone.job_filter.excluded_users for s in plan.starts} == {
        "anns": (),
        "bobs": ("ann",),
    }
    (why,) = (each for each in of_class(plan, "anns") if isinstance(each, ExclusiveOnly))
    assert why == ExclusiveOnly(2, WEEK, NOW - 3000 + WEEK, "job schedd.test#2.0 in d-1: faulted")
    text = why.describe()
    assert text.startswith(
        f"2 faults on shared GPUs in 7d: exclusive GPUs only until {formatting.iso(why.until)}"
    )
    assert of_class(plan, "bobs") == []
    assert record(plan).state is BreakerState.BANNED


def test_a_shared_drone_that_is_there_is_no_supply_for_the_user() -> None:
    there = drone("d-1", S.IDLE, MPS, age_s=10)
    plan = plan_of(
        story(
            failure("1.0", NOW - 3000, name="d-0"),
            failure("2.0"),
            drones=[there],
            slots=[slot_of(there, MPS)],
        )
    )
    assert starts(plan) == {"anns": {"whole"}}, "bob's jobs have room in it"


def test_a_user_who_fits_no_exclusive_type_waits_and_reads_why() -> None:
    plan = plan_of(story(failure("1.0", NOW - 3000, name="d-0"), failure("2.0"), types=(MPS,)))
    assert starts(plan) == {"bobs": {"mps"}}
    assert [type(each) for each in of_class(plan, "anns")] == [ExclusiveOnly]


def test_instances_of_mig_isolate_faults_and_stay_open() -> None:
    plan = plan_of(story(failure("1.0", NOW - 3000, name="d-0"), failure("2.0"), types=(MIG, MPS)))
    assert starts(plan) == {"anns": {"mig"}}, "and bob's jobs have room in it"


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param([failure("1.0", NOW - 3000), failure("2.0")], id="two jobs of one drone"),
        pytest.param(
            [failure("1.0", NOW - 3000), failure("1.0", name="d-2")], id="one job in two drones"
        ),
        pytest.param(
            [failure("1.0", NOW - 130 * n) for n in range(9)], id="one job again and again"
        ),
    ],
)
def test_one_drone_or_one_job_is_not_enough_for_a_ban(faults: list[model.JobFailure]) -> None:
    plan = plan_of(story(*faults))
    assert record(plan).state is BreakerState.DEGRADED and of_class(plan, "anns") == []


def test_faults_older_than_the_window_do_not_count() -> None:
    policy = model.Policy(fault_limit=2, fault_window_s=1000.0)
    plan = plan_of(story(failure("1.0", NOW - 1001), failure("2.0"), policy=policy))
    assert record(plan).failures == 1 and record(plan).state is BreakerState.DEGRADED


def test_the_limit_is_configurable() -> None:
    policy = model.Policy(fault_limit=3)
    two = [failure("1.0", NOW - 3000, name="d-0"), failure("2.0", NOW - 2000)]
    assert record(plan_of(story(*two, policy=policy))).state is BreakerState.DEGRADED
    banned = record(plan_of(story(*two, failure("3.0"), policy=policy)))
    assert (banned.state, banned.until) == (BreakerState.BANNED, NOW - 3000 + WEEK)


def test_a_fault_that_is_reported_again_counts_once_though_clocks_are_compared_anew() -> None:
    first = decide(story(failure("1.0")))
    again = story(failure("1.0"), failure("1.0", NOW), breakers=[record(first)])
    assert not [each for each in decide(again).breakers if each.scope.user], "nothing has changed"
    later = story(failure("1.0", NOW + 300), breakers=[record(first)])
    assert record(decide(later)).failures == 1, (
        "it ran again and faulted again: one job is one fault"
    )


def test_the_record_expires_and_is_forgotten() -> None:
    banned = record(decide(story(failure("1.0", NOW - 3000, name="d-0"), failure("2.0"))))
    then = fresh(story(breakers=[banned]), banned.until + 1)
    one = record(decide(then))
    assert (one.state, one.failures) == (BreakerState.DEGRADED, 1)
    assert starts(decide(then)) == {"anns": {"mps"}}
    gone = record(decide(fresh(story(breakers=[one]), NOW + WEEK)))
    assert gone == model.Breaker(model.Scope(user="ann")) and gone.forgotten


def test_after_a_reset_reports_of_the_same_faults_do_not_count_again() -> None:
    faults = [failure("1.0", NOW - 3000, name="d-0"), failure("2.0")]
    reset = model.Breaker(model.Scope(user="ann"), since=NOW)
    assert not reset.forgotten
    assert not [
        each for each in decide(story(*faults, breakers=[reset])).breakers if each.scope.user
    ]
    new = record(decide(story(*faults, failure("3.0", NOW + 5), breakers=[reset])))
    assert (new.failures, new.since) == (1, NOW)
    assert not [
        each
        for each in decide(story(*faults, failure("3.0", NOW + 5), breakers=[new])).breakers
        if each.scope.user
    ]
    (gone,) = decide(fresh(story(breakers=[reset]), NOW + WEEK + 1)).breakers
    assert gone.forgotten


def test_collateral_is_recorded_and_held_against_nobody() -> None:
    plan = plan_of(story(*(collateral(f"{n}.0", NOW - 3000 + 300 * n) for n in range(9))))
    assert (
        starts(plan) == {"anns": {"mps"}} and plan.starts[0].drone.job_filter.excluded_users == ()
    )
    found = record(plan)
    assert (found.state, found.failures, len(found.faults)) == (BreakerState.DEGRADED, 0, 9)


def test_a_job_that_neighbours_ended_twice_runs_alone_until_it_is_done() -> None:
    twice = (collateral("1.0", NOW - 3000), collateral("1.0"))
    plan = plan_of(story(*twice))
    assert starts(plan) == {"anns": {"whole"}, "bobs": {"mps"}}
    (why,) = (each for each in of_class(plan, "anns") if isinstance(each, ExclusiveOnly))
    assert why == ExclusiveOnly(0, WEEK, NOW - 60 + ALONE_S, "job schedd.test#1.0 in d-1: faulted")
    assert "not its own fault" in why.describe()
    done = model.CompletedJob(
        "schedd.test#1.0", NOW + 10, NOW - 9000, 60.0, 250, 1, 1024, owner="ann"
    )
    evicted = story(*twice, breakers=[record(plan)], completions=[replace(done, unfinished=True)])
    assert starts(decide(evicted))["anns"] == {"whole"}, (
        "the end of the run that a neighbour ended settles nothing"
    )
    ended = story(*twice, breakers=[record(plan)], completions=[done])
    assert starts(decide(ended)) == {"anns": {"mps"}}
    settled = record(decide(ended))
    assert {each.blame for each in settled.faults} == {Blame.SETTLED}, (
        "still known, should they be reported again"
    )
    assert starts(decide(story(*twice, breakers=[settled]))) == {"anns": {"mps"}}
    assert (
        record(decide(fresh(story(breakers=[record(plan)]), NOW + ALONE_S))).state
        is BreakerState.DEGRADED
    )


def test_a_job_without_blame_shares_a_gpu_rather_than_get_none() -> None:
    plan = plan_of(story(collateral("1.0", NOW - 3000), collateral("1.0"), types=(MPS,)))
    assert starts(plan) == {"anns": {"mps"}} and of_class(plan, "anns") == []


def test_two_jobs_that_were_collateral_once_each_do_not_run_alone() -> None:
    assert starts(plan_of(story(collateral("1.0", NOW - 3000), collateral("2.0")))) == {
        "anns": {"mps"}
    }


def test_the_record_of_a_user_is_bounded_and_names_that_no_drone_can_refuse_have_none() -> None:
    many = [collateral(f"{n}.0", NOW - 10_000 + n) for n in range(3 * MAX_FAILURES_KEPT)]
    assert record(decide(story(*many))).faults == tuple(many[-MAX_FAILURES_KEPT:])
    own = [failure("1.1", NOW - 20_000, name="d-0"), failure("2.1", NOW - 15_000)]
    both = record(decide(story(*own, *many)))
    assert both.faults == (*own, *many[-MAX_FAILURES_KEPT:]) and both.state is BreakerState.BANNED
    assert not decide(story(*own, *many, breakers=[both])).breakers, (
        "older ones that are reported again change nothing"
    )
    assert not decide(story(failure("1.0", owner='a"nn'), failure("2.0", owner=""))).breakers


def test_a_change_of_the_clock_moves_the_failures() -> None:
    found = record(decide(story(failure("1.0"))))
    assert shift_breaker(found, 50.0).faults[0].at == NOW - 10


def test_a_shared_drone_for_a_banned_user_is_a_breach() -> None:
    banned = story(failure("1.0", NOW - 3000, name="d-0"), failure("2.0"))
    honest, plan = decide(story()), decide(banned)
    forged = replace(plan, starts=honest.starts)
    assert any("may share no GPU" in str(each) for each in validate_plan(banned, forged))


# ---------------------------------------------------------------------------------------- black
# holes, and the site


def shared_failures(blame: Blame, name: str = "bad") -> tuple[model.JobFailure, ...]:
    """Ends of three jobs of two users: the queue reports each as a failure, the drone its cause."""
    told = [("ann", 1), ("ann", 2), ("bob", 3)]
    drone_id = model.DroneId(name)
    queue = [
        model.JobFailure(drone_id, f"{n}.0", NOW - 60, owner, "broke off after 3 s")
        for owner, n in told
    ]
    cause = (
        []
        if blame is Blame.UNKNOWN
        else [failure(f"{n}.0", NOW - 60, owner, blame, name) for owner, n in told]
    )
    return (*queue, *cause)


@pytest.mark.parametrize(
    ("blame", "drained"), [(Blame.UNKNOWN, 1), (Blame.COLLATERAL, 0), (Blame.JOB, 0)]
)
def test_failures_by_a_fault_on_a_shared_gpu_are_no_sign_of_a_black_hole(
    blame: Blame, drained: int
) -> None:
    bad, good = (drone(name, S.IDLE, MPS, age_s=10) for name in ("bad", "good"))
    slots = [slot_of(each, MPS, jobs_started=50) for each in (bad, good)]
    plan = decide(story(*shared_failures(blame), classes=(), drones=[bad, good], slots=slots))
    assert sum(isinstance(each.reason, BlackHoleDrone) for each in plan.leaves) == drained


@pytest.mark.parametrize(
    ("end", "drained"), [(S.PREEMPTED, 1), (S.FAILED, 1), (S.LOST, 1), (S.CANCELLED, 0)]
)
def test_jobs_in_a_drone_that_its_site_ended_say_nothing_of_their_users(
    end: model.DroneState, drained: int
) -> None:
    """Ann's jobs fail in a drone. Those that ended with another drone do not make her word doubtful."""
    bad, good = (drone(name, S.IDLE, MPS, age_s=10) for name in ("bad", "good"))
    slots = [slot_of(each, MPS, jobs_started=50) for each in (bad, good)]
    mine = [
        model.JobFailure(model.DroneId("bad"), f"{n}.0", NOW - 60, "ann", "held") for n in range(3)
    ]
    gone = [
        model.JobFailure(model.DroneId("gone"), f"{n}.1", NOW - 60, "ann", "broke off")
        for n in range(3)
    ]
    at = (NOW - 100, NOW - 900, 200.0, 1000, 1, 100)
    well = [model.CompletedJob("9.0", *at, owner="ann", drone_id=model.DroneId("good"))]
    snap = story(*mine, *gone, classes=(), drones=[bad, good], slots=slots, completions=well)
    plan = decide(replace(snap, ended={model.DroneId("gone"): end}))
    assert sum(isinstance(each.reason, BlackHoleDrone) for each in plan.leaves) == drained


def test_jobs_that_break_off_after_the_sites_notice_say_nothing_of_the_drone() -> None:
    for notice_at, drained in ((NOW - 100, 0), (0.0, 1)):
        bad = drone("bad", S.IDLE, MPS, age_s=10, notice_at=notice_at)
        slots = [slot_of(bad, MPS, jobs_started=50)]
        plan = decide(story(*shared_failures(Blame.UNKNOWN), classes=(), drones=[bad], slots=slots))
        assert sum(isinstance(each.reason, BlackHoleDrone) for each in plan.leaves) == drained


def test_a_limit_that_no_configuration_has_bans_nobody() -> None:
    plan = decide(story(collateral("1.0"), policy=model.Policy(fault_limit=0)))
    assert record(plan).state is BreakerState.DEGRADED
