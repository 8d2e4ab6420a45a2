"""Random and hostile snapshots, ads and listings: a small share of what ``python -m benchmarks.hostile.run`` plays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.hostile import answers, worlds
from benchmarks.hostile.run import Found, hunt, judge, story
from benchmarks.hostile.trouble import NOW
from provisioner.model import Breaker, BreakerState, Scope
from provisioner.planner import decide

pytest.importorskip("classad2")

COUNT = 1000
STORIES = 30


def test_deciding_never_fails_and_no_plan_is_refused_whole() -> None:
    found = hunt(COUNT, seed=20_000, large_every=COUNT // 6)
    assert found.worlds >= COUNT
    assert found.acted > COUNT // 4, "plans that do nothing show nothing"
    assert not found.exceptions, found.exceptions
    assert not found.refused_whole, found.refused_whole
    assert not found.breaches, found.breaches


def test_the_hunt_sees_what_goes_wrong() -> None:
    snap = next(s for s in map(worlds.world, range(200)) if decide(s).starts)
    plan = decide(snap)
    scope = Scope(plan.starts[0].drone.site)
    banned = replace(snap, breakers={scope: Breaker(scope, BreakerState.BANNED, until=NOW + 60)})
    found = Found()
    judge(found, replace(banned, drones={}), replace(plan, breakers=()), 7)
    assert any("banned" in kind for kind in found.breaches)
    assert found.first


def test_a_controller_whose_site_and_pool_lie_decides_on() -> None:
    found = Found()
    for seed in range(STORIES):
        story(found, seed)
    assert found.worlds == STORIES * answers.LIVES * answers.TICKS
    assert found.acted > found.worlds // 10, "plans that do nothing show nothing"
    assert not found.exceptions, found.exceptions
    assert not found.refused_whole, found.refused_whole
    assert not found.breaches, found.breaches
