"""Random and hostile snapshots, ads and listings: a small share of what ``python -m benchmarks.hostile.run`` plays."""

from __future__ import annotations

from dataclasses import fields, replace
from random import Random

import pytest

from benchmarks.hostile import answers, crowds, worlds
from benchmarks.hostile.run import Found, hunt, judge, story
from provisioner.model import Breaker, BreakerState, RequestKind
from provisioner.planner import decide
from provisioner.planner.safeguards import safe_plan

pytest.importorskip("classad2")

COUNT = 1000


def test_deciding_never_fails_and_no_plan_is_refused_whole() -> None:
    found = hunt(COUNT, seed=20_000, large_every=COUNT // 6)
    assert found.worlds >= COUNT
    assert found.acted > COUNT // 4, "plans that do nothing show nothing"
    assert not found.exceptions, found.exceptions
    assert not found.refused_whole, found.refused_whole
    assert not found.breaches, found.breaches


def test_the_worlds_hold_every_kind_of_trouble() -> None:
    snaps = [worlds.world(seed) for seed in range(300)]
    assert {breaker.state for snap in snaps for breaker in snap.breakers.values()} == set(BreakerState)
    assert any(breaker.node for snap in snaps for breaker in snap.breakers.values())
    assert {request.kind for snap in snaps for request in snap.requests} == set(RequestKind)
    kinds = {action.reason.kind for snap in snaps for action in decide(snap).asks}
    assert {"preempted-for-owner", "operator-requested", "jobs-waiting", "idle-timeout"} <= kinds
    views = [snap.overlay.view for snap in snaps if snap.overlay.view is not None]
    assert any(view.mishaps for view in views)
    assert any("values that cannot be" in notice for view in views for notice in view.notices)


def test_large_worlds_have_each_load_and_twenty_shapes_on_a_node() -> None:
    loads = [crowds.Load.of(Random(seed)) for seed in range(60)]
    assert all(any(getattr(load, each.name) for load in loads) for each in fields(crowds.Load))
    eaten = next(seed for seed, load in enumerate(loads) if load.eaters and load.owner)
    snap = crowds.crowd(eaten)
    assert len(snap.drones) == 1000
    on_one = {drone.type for drone in snap.drones.values() if drone.node == "n0"}
    assert len(on_one) == len({(k.gpu_milli, k.cpus, k.memory_mib, k.disk_mib) for k in snap.types if k.key in on_one})
    assert len(on_one) == 20
    assert {action.reason.kind for action in decide(snap).asks} & {"black-hole", "preempted-for-owner"}


def test_the_same_seed_makes_the_same_world_and_plan() -> None:
    for seed in range(60):
        assert safe_plan(worlds.world(seed)).plan == safe_plan(worlds.world(seed)).plan


def test_the_hunt_sees_what_goes_wrong() -> None:
    snap = next(s for s in map(worlds.world, range(200)) if decide(s).starts)
    plan = decide(snap)
    scope = plan.starts[0].drone.site
    banned = replace(snap, breakers={scope: Breaker(scope, BreakerState.BANNED, until=worlds.NOW + 60)})
    found = Found()
    judge(found, replace(banned, drones={}), replace(plan, breakers=()), 7)
    assert any("banned" in kind for kind in found.breaches)
    assert found.first


def test_a_controller_whose_site_and_pool_lie_decides_on() -> None:
    found = Found()
    for seed in range(12):
        story(found, seed)
    assert found.worlds == 12 * answers.LIVES * answers.TICKS
    assert found.acted > found.worlds // 5
    assert not found.exceptions, found.exceptions
    assert not found.refused_whole, found.refused_whole
    assert not found.breaches, found.breaches
