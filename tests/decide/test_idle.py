"""How long an idle drone is kept, where another would take long to come."""

from __future__ import annotations

import pytest

from provisioner.decide.idle import idle_limit_s
from provisioner.model import DroneState, Policy, SitePolicy
from provisioner.reasons import IdleTooLong
from tests.decide.scenes import NOW, drone, plan_of, snapshot

S = DroneState


@pytest.mark.parametrize(
    ("came_s", "limit_s"), [(30, 600), (599, 600), (700, 700), (1800, 1800), (90000, 1800)]
)  # fmt: skip
def test_a_drone_is_kept_as_long_as_another_would_take_to_come(came_s: float, limit_s: float) -> None:
    idle = drone("kit-ab12-1", S.IDLE, started_at=NOW - 99999, joined_at=NOW - 99999 + came_s)
    assert idle_limit_s(idle, Policy(idle_timeout_s=600)) == limit_s


def test_of_one_of_which_nobody_knows_when_it_began_the_time_out_holds() -> None:
    assert idle_limit_s(drone("kit-ab12-1", S.IDLE, joined_at=NOW - 50, started_at=0.0), Policy()) == 600


def test_a_site_may_have_a_time_out_of_its_own() -> None:
    policy = Policy(idle_timeout_s=600, sites={"topas": SitePolicy("topas", idle_timeout_s=60)})
    assert idle_limit_s(drone("kit-ab12-1", S.IDLE), policy) == 60
    assert policy.idle_timeout_at("horeka") == 600


def test_it_leaves_then_and_the_reason_has_its_numbers() -> None:
    slow = drone("kit-ab12-1", S.IDLE, started_at=NOW - 9000, joined_at=NOW - 8100, idle_at=NOW - 899)
    assert plan_of(snapshot(drones=[slow])).drains == ()
    late = drone("kit-ab12-1", S.IDLE, started_at=NOW - 9000, joined_at=NOW - 8100, idle_at=NOW - 901)
    [drain] = plan_of(snapshot(drones=[late])).drains
    assert drain.reason == IdleTooLong(901, 900)
    own = drone("kit-ab12-1", S.IDLE, idle_at=NOW - 61)
    [drain] = plan_of(snapshot(drones=[own], limits={"idle_timeout_s": 60.0})).drains
    assert drain.reason == IdleTooLong(61, 60)
