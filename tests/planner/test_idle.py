"""How long an idle drone is kept, where another would take long to come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.estimates import Estimates
from provisioner.formatting import describe
from provisioner.model import DroneState, Policy, SitePolicy
from provisioner.planner.retirement import MIN_IDLE_GAPS, idle_limit
from provisioner.reasons import IdleTimeout
from tests.planner.scenes import NOW, drone, plan_of, snapshot

S = DroneState


@pytest.mark.parametrize(("came_s", "limit_s"), [(30, 600), (599, 600), (700, 700), (1800, 1800), (90000, 1800)])
def test_a_drone_is_kept_as_long_as_another_would_take_to_come(came_s: float, limit_s: float) -> None:
    idle = drone("kit-ab12-1", S.IDLE, started_at=NOW - 99999, joined_at=NOW - 99999 + came_s)
    by = "slow-start" if limit_s > 600 else "time-out"
    assert idle_limit(idle, Policy(idle_timeout_s=600)) == (limit_s, by)


def test_of_one_of_which_nobody_knows_when_it_began_the_time_out_holds() -> None:
    assert idle_limit(drone("kit-ab12-1", S.IDLE, joined_at=NOW - 50, started_at=0.0), Policy()).limit_s == 600


def test_a_site_may_have_a_time_out_of_its_own() -> None:
    policy = Policy(idle_timeout_s=600, sites={"topas": SitePolicy("topas", idle_timeout_s=60)})
    assert idle_limit(drone("kit-ab12-1", S.IDLE), policy).limit_s == 60
    assert policy.idle_timeout_at("horeka") == 600


def test_it_leaves_then_and_the_reason_has_its_numbers() -> None:
    slow = drone("kit-ab12-1", S.IDLE, started_at=NOW - 9000, joined_at=NOW - 8100, idle_at=NOW - 899)
    assert plan_of(snapshot(drones=[slow])).drains == ()
    late = drone("kit-ab12-1", S.IDLE, started_at=NOW - 9000, joined_at=NOW - 8100, idle_at=NOW - 901)
    [drain] = plan_of(snapshot(drones=[late])).drains
    assert drain.reason == IdleTimeout(901, 900, "slow-start")
    own = drone("kit-ab12-1", S.IDLE, idle_at=NOW - 61)
    [drain] = plan_of(snapshot(drones=[own], limits={"idle_timeout_s": 60.0})).drains
    assert drain.reason == IdleTimeout(61, 60, "time-out")


def test_what_was_learned_shortens_the_time_out_and_says_so() -> None:
    idle, policy = drone("kit-ab12-1", S.IDLE, idle_at=NOW - 31), Policy(idle_timeout_s=600)
    few, many = (Estimates(idle_s={"topas": 26.0}, gaps={"topas": gaps}) for gaps in (MIN_IDLE_GAPS - 1, MIN_IDLE_GAPS))
    assert idle_limit(idle, policy, few) == (26.0, "start-cost")
    assert idle_limit(idle, policy, many) == (26.0, "gaps")
    assert idle_limit(idle, policy, Estimates(idle_s={"topas": 9000.0})) == (600.0, "time-out")
    [drain] = plan_of(replace(snapshot(drones=[idle]), estimates=few)).drains
    assert drain.reason == IdleTimeout(31, 26, "start-cost")
    assert describe(drain.reason) == (
        "idle 31 s > 26 s, what another start costs at its site, learned from the drones that came there"
    )


@pytest.mark.parametrize("own", [True, None])
def test_a_fixed_time_out_is_neither_shortened_nor_lengthened(own: bool | None) -> None:
    estimates = Estimates(idle_s={"topas": 26.0})
    policy = Policy(idle_timeout_s=600, idle_fixed=own is None, sites={"topas": SitePolicy("topas", idle_fixed=own)})
    for came_s in (30, 900):
        idle = drone("kit-ab12-1", S.IDLE, started_at=NOW - 9999, joined_at=NOW - 9999 + came_s)
        assert idle_limit(idle, policy, estimates) == (600.0, "fixed")
    loose = replace(policy, idle_fixed=True, sites={"topas": SitePolicy("topas", idle_fixed=False)})
    assert idle_limit(drone("kit-ab12-1"), loose, estimates).by == "start-cost"
