"""The limit of an idle drone that the command line shows is the one that applies."""

from __future__ import annotations

from dataclasses import replace

from provisioner import model as m
from provisioner.answers.drones import state_limit
from provisioner.estimates import Estimates
from provisioner.store import Views

NOW = 1.7e9
VIEWS = Views(
    *(
        9,
        NOW,
        m.Policy(idle_timeout_s=600.0, sites={"here": m.SitePolicy("here")}),
        (),
        m.PolledOverlay(),
        {},
    ),
    estimates=Estimates(idle_s={"here": 28.0}),
)
IDLE = m.Drone(
    m.DroneId("kit-1"),
    m.TypeKey("here/a100"),
    m.DroneState.IDLE,
    NOW - 20,
    NOW - 900,
    1000,
    idle_at=NOW - 20,
)


def test_a_drone_that_is_kept_beyond_its_limit_is_not_told_that_limit() -> None:
    """It "may last 28s" and was idle for more than two minutes, as jobs waited that fit it."""
    assert state_limit(IDLE, VIEWS).limit_s == 28.0
    kept = state_limit(replace(IDLE, idle_at=NOW - 140), VIEWS)
    assert kept.limit_s == 1800.0 and "kept for waiting jobs" in kept.words
