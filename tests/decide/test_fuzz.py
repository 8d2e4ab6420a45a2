"""Random and hostile snapshots, ads and listings: a small share of what ``python -m benchmarks.hostile.run`` plays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.hostile import worlds
from benchmarks.hostile.run import Found, hunt, judge
from provisioner.decide import decide
from provisioner.decide.sound import sound_plan
from provisioner.model import Breaker, BreakerState

pytest.importorskip("classad2")

COUNT = 1500


def test_deciding_never_fails_and_no_plan_is_refused_whole() -> None:
    found = hunt(COUNT, seed=20_000, large_every=COUNT // 2)
    assert found.worlds == COUNT
    assert found.acted > COUNT // 4, "plans that do nothing show nothing"
    assert not found.exceptions, found.exceptions
    assert not found.refused_whole, found.refused_whole
    assert not found.breaches, found.breaches


def test_the_same_seed_makes_the_same_world_and_plan() -> None:
    for seed in range(60):
        assert sound_plan(worlds.world(seed)).plan == sound_plan(worlds.world(seed)).plan


def test_the_hunt_sees_what_goes_wrong() -> None:
    snap = next(s for s in map(worlds.world, range(200)) if decide(s).starts)
    plan = decide(snap)
    scope = plan.starts[0].drone.site
    banned = replace(snap, breakers={scope: Breaker(scope, BreakerState.BANNED, until=worlds.NOW + 60)})
    found = Found()
    judge(found, replace(banned, drones={}), replace(plan, breakers=()), 7)
    assert any("banned" in kind for kind in found.breaches)
    assert found.first
