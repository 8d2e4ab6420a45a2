"""Drones and nodes in which jobs fail one after the other, and users whose jobs fail everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner import model
from provisioner.planner import decide
from provisioner.planner.black_holes import NODE_QUIET_S
from provisioner.planner.validation import validate_plan
from provisioner.reasons import BlackHoleDrone, BlackHoleNode
from tests.planner.scenes import NOW, drone, plan_of, slot_of, snapshot, with_pool

S = model.DroneState
BAD, GOOD = "bad", "good"


def failed(name: str, owner: str, count: int = 3, first: int = 0) -> list[model.JobFailure]:
    return [
        model.JobFailure(
            model.DroneId(name), f"{owner}.{name}.{n}", NOW - 300 + n, owner, "held with code 12"
        )
        for n in range(first, first + count)
    ]


def done(name: str, owner: str, count: int = 1) -> list[model.CompletedJob]:
    at, drone_id = (NOW - 100, NOW - 900, 200.0, 1000, 1, 100), model.DroneId(name)
    return [
        model.CompletedJob(f"done.{owner}.{name}.{n}", *at, owner=owner, drone_id=drone_id)
        for n in range(count)
    ]


def pool(
    *drones: model.Drone,
    mishaps: list[model.JobFailure],
    completions: list[model.CompletedJob] = (),
    **more: object,
) -> model.Snapshot:
    """Slots that have started many jobs, unless the story brings its own."""
    slots = more.pop("slots", [slot_of(d, jobs_started=50) for d in drones if d.joined_at])
    made = snapshot(drones=drones, slots=slots, **more)
    return with_pool(made, mishaps=tuple(mishaps), completions=tuple(completions))


def idle(name: str, node: str = "n1", **more: object) -> model.Drone:
    return drone(name, S.IDLE, age_s=10, node=node, **more)


def preemptions(plan: model.Plan) -> dict[str, Any]:
    return {
        a.drone.id: a.reason
        for a in plan.leaves
        if isinstance(a.reason, BlackHoleDrone | BlackHoleNode)
    }


@pytest.mark.parametrize(
    "bad", [idle(BAD), drone(BAD, S.BUSY, node="n1")], ids=["idle", "with a job"]
)
def test_a_drone_in_which_jobs_of_two_users_fail_is_drained(bad: model.Drone) -> None:
    plan = plan_of(
        pool(bad, idle(GOOD, "n2"), mishaps=[*failed(BAD, "ann", 2), *failed(BAD, "bob", 1)])
    )
    assert preemptions(plan) == {
        BAD: BlackHoleDrone(3, 0, 2, "n1", "job ann.bad.1 held with code 12")
    }
    (drain,) = plan.drains
    assert (drain.mode, drain.drone.leaving) == (model.DrainMode.PEACEFUL, S.CANCELLED), (
        "never taken back into service"
    )


def test_a_drone_that_fails_jobs_of_one_user_whose_others_go_well_elsewhere_is_drained() -> None:
    plan = plan_of(
        pool(idle(BAD), idle(GOOD), mishaps=failed(BAD, "ann"), completions=done(GOOD, "ann"))
    )
    assert isinstance(preemptions(plan)[BAD], BlackHoleDrone)


def test_a_job_that_has_run_for_long_elsewhere_goes_well_there() -> None:
    good = drone(GOOD, S.BUSY)
    runs = slot_of(good, jobs_started=1, owner="ann", begun_at=NOW - 1000)
    bad = slot_of(idle(BAD), jobs_started=5)
    assert BAD in preemptions(
        plan_of(pool(idle(BAD), good, mishaps=failed(BAD, "ann"), slots=[bad, runs]))
    )


@pytest.mark.parametrize(
    ("mishaps", "completions"),
    [
        pytest.param(failed(BAD, "ann", 50), [], id="one user, nothing known of them elsewhere"),
        pytest.param(
            failed(BAD, "ann", 50) + failed(GOOD, "ann", 50),
            done(GOOD, "bob", 9),
            id="fails everywhere",
        ),
        pytest.param(
            failed(BAD, "ann", 50) + failed(GOOD, "ann", 5),
            done(GOOD, "ann", 5),
            id="elsewhere as often",
        ),
        pytest.param(failed(BAD, "ann", 1) + failed(BAD, "bob", 1), [], id="too few"),
        pytest.param(
            failed(BAD, "ann", 3) + failed(BAD, "bob", 3),
            done(BAD, "eve", 2),
            id="two jobs went well in it",
        ),
        pytest.param(
            [replace(m, job_id="1.0") for m in failed(BAD, "ann", 8)],
            done(GOOD, "ann"),
            id="one job again",
        ),
        pytest.param(
            failed("no-such", "ann") + failed("no-such", "bob"), [], id="a drone that is not ours"
        ),
    ],
)
def test_failed_jobs_that_say_nothing_of_the_drone_drain_none(
    mishaps: list[model.JobFailure], completions: list[model.CompletedJob]
) -> None:
    assert (
        preemptions(plan_of(pool(idle(BAD), idle(GOOD), mishaps=mishaps, completions=completions)))
        == {}
    )


def test_a_job_that_goes_back_to_the_same_drone_again_and_again_tells_of_it_until_it_fails_elsewhere() -> (
    None
):
    (job,) = failed(BAD, "ann", 1)
    again = [replace(job, at=job.at + n) for n in range(12)]
    well = done(GOOD, "ann", 5)
    assert (
        preemptions(plan_of(pool(idle(BAD), idle(GOOD), mishaps=again[:8], completions=well))) == {}
    )
    (why,) = preemptions(
        plan_of(pool(idle(BAD), idle(GOOD), mishaps=again, completions=well))
    ).values()
    assert isinstance(why, BlackHoleDrone) and why.failed == 12
    other = [replace(job, drone_id=model.DroneId("third"))]
    assert (
        preemptions(plan_of(pool(idle(BAD), idle(GOOD), mishaps=again + other, completions=well)))
        == {}
    )


def test_no_more_failures_are_believed_than_jobs_were_started() -> None:
    told = [*failed(BAD, "ann", 20), *failed(BAD, "bob", 20)]
    for started, leaves in ((0, False), (2, False), (3, True)):
        plan = plan_of(
            pool(idle(BAD), mishaps=told, slots=[slot_of(idle(BAD), jobs_started=started)])
        )
        assert bool(preemptions(plan)) is leaves, started


def test_a_completion_that_failed_within_seconds_does_not_count_as_one_that_went_well() -> None:
    bad = [*failed(BAD, "ann"), *failed(BAD, "bob")]
    ended = [replace(done(BAD, m.owner)[0], job_id=m.job_id) for m in bad]
    why = preemptions(plan_of(pool(idle(BAD), mishaps=bad, completions=ended)))[BAD]
    assert why == BlackHoleDrone(6, 0, 2, "n1", "job bob.bad.2 held with code 12")


def test_a_run_that_was_evicted_held_or_removed_does_not_count_as_one_that_went_well() -> None:
    bad = [*failed(BAD, "ann"), *failed(BAD, "bob")]
    cut = [replace(each, unfinished=True) for each in done(BAD, "eve", 9)]
    assert preemptions(plan_of(pool(idle(BAD), mishaps=bad, completions=cut)))[BAD].good == 0


def test_a_job_is_the_same_in_both_forms_of_its_id() -> None:
    bad = [*failed(BAD, "ann"), *failed(BAD, "bob")]
    both = [
        replace(m, job_id=f"{schedd}{n}.0")
        for n, m in enumerate(bad)
        for schedd in ("", "submit.test#")
    ]
    ended = [replace(done(BAD, m.owner)[0], job_id=f"submit.test#{n}.0") for n, m in enumerate(bad)]
    why = preemptions(plan_of(pool(idle(BAD), mishaps=both, completions=ended)))[BAD]
    assert isinstance(why, BlackHoleDrone) and (why.failed, why.good) == (12, 0)
    one = [
        replace(m, job_id=f"{'submit.test#' if n > 4 else ''}7.0")
        for n, m in enumerate(failed(BAD, "ann", 8))
    ]
    assert (
        preemptions(
            plan_of(pool(idle(BAD), idle(GOOD), mishaps=one, completions=done(GOOD, "ann", 5)))
        )
        == {}
    )


def test_at_most_a_quarter_of_a_site_leaves_at_once_whoever_lies() -> None:
    drones = [idle(f"d-{n}", f"n{n}") for n in range(12)]
    lies = [
        mishap for each in drones for owner in ("ann", "bob") for mishap in failed(each.id, owner)
    ]
    went_well = [
        *done("d-0", "ann", 99),
        *done("d-1", "ann", 99),
        *done("d-0", "bob", 99),
        *done("d-1", "bob", 99),
    ]
    first = plan_of(pool(*drones, mishaps=lies, completions=went_well))
    assert len(preemptions(first)) == 3
    going = {d.drone.id: d.drone for d in first.drains}
    then = plan_of(pool(*(going.get(d.id, d) for d in drones), mishaps=lies, completions=went_well))
    assert preemptions(then) == {}, "those that drain count"


def node_after(
    *names: str, breaker: model.Breaker | None = None, node: str = "n1"
) -> model.Breaker:
    told = [mishap for name in names for owner in ("ann", "bob") for mishap in failed(name, owner)]
    others = [idle(f"other-{n}", "n2") for n in range(4 * len(names))]
    well = [*done("other-1", "ann", 20), *done("other-2", "bob", 20)]
    here = [idle(name, node) for name in names]
    plan = plan_of(
        pool(*here, *others, mishaps=told, completions=well, breakers=[breaker] if breaker else [])
    )
    assert len(preemptions(plan)) == len(names)
    (found,) = plan.breakers
    return found


def test_a_node_backs_off_after_its_second_drone_and_longer_after_each_further_one() -> None:
    first = node_after("d-1")
    assert (str(first.scope), first.scope.node, first.state, first.failures) == (
        "topas@n1",
        "n1",
        model.BreakerState.DEGRADED,
        1,
    )
    second = node_after("d-2", breaker=first)
    assert (second.state, second.failures, second.until) == (
        model.BreakerState.BANNED,
        2,
        NOW + 1800,
    )
    assert node_after("d-1", "d-2") == replace(second, fault=node_after("d-1", "d-2").fault), (
        "two at once, too"
    )
    probed = replace(second, state=model.BreakerState.PROBING, since=NOW - 60, until=NOW - 60)
    third = node_after("d-3", breaker=probed)
    assert (third.state, third.until) == (model.BreakerState.BANNED, NOW + 3600)
    assert node_after("d-4", breaker=replace(third, failures=50)).until == NOW + 21600


def test_a_node_is_forgotten_after_a_quiet_hour() -> None:
    old = model.Breaker(
        model.Scope("topas", node="n1"),
        model.BreakerState.DEGRADED,
        since=NOW - NODE_QUIET_S - 1,
        failures=1,
    )
    (after,) = decide(pool(idle("d-1"), mishaps=[], breakers=[old])).breakers
    assert after.state is model.BreakerState.ACTIVE and after.forgotten
    assert node_after("d-1", breaker=old).failures == 1, "the second drone came too late"


def test_a_node_with_an_odd_name_gets_no_breaker() -> None:
    told = [*failed(BAD, "ann"), *failed(BAD, "bob")]
    for node in ("", "a/b", "a#b", "x" * 200, "ü"):
        plan = plan_of(pool(idle(BAD, node), mishaps=told))
        assert preemptions(plan) and plan.breakers == ()


WHY = model.Fault(model.FaultKind.BLACK_HOLE, "why", NOW)
BANNED = model.Breaker(
    model.Scope("topas", node="n1"), model.BreakerState.BANNED, NOW, 2, NOW + 900, WHY
)


@pytest.mark.parametrize("here", [drone("boots", S.BOOTING, node="n1"), idle("free")])
def test_drones_without_a_job_leave_a_node_that_is_avoided(here: model.Drone) -> None:
    plan = plan_of(
        pool(here, *(idle(f"d-{n}", "n2") for n in range(4)), mishaps=[], breakers=[BANNED])
    )
    (leave,) = plan.leaves
    assert leave.reason == BlackHoleNode("n1", NOW + 900, 2, "why")
    assert isinstance(leave, model.Drain if here.joined_at else model.Stop)


def test_who_has_a_job_stays_and_so_do_all_where_there_is_no_other_node() -> None:
    other = idle("other", "n2")
    busy = drone("busy", S.BUSY, node="n1", idle_at=0.0)
    assert preemptions(plan_of(pool(busy, other, mishaps=[], breakers=[BANNED]))) == {}
    with_jobs = [slot_of(each, jobs=1) for each in (idle("d-1"), other)]
    late = pool(idle("d-1"), other, mishaps=[], breakers=[BANNED], slots=with_jobs)
    assert preemptions(decide(late)) == {} and validate_plan(late, decide(late)) == (), (
        "it has just got one"
    )
    assert preemptions(plan_of(pool(idle("d-1"), idle("d-2"), mishaps=[], breakers=[BANNED]))) == {}
    past = replace(BANNED, until=NOW - 1)
    assert preemptions(plan_of(pool(idle("d-1"), other, mishaps=[], breakers=[past]))) == {}, (
        "the back-off is over"
    )
