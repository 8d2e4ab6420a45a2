"""A large site costs no more work than there is news: counted, not timed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.ticks import World
from provisioner.model import DroneState
from provisioner.planner import decide, lifecycle, matching, planner
from provisioner.planner.capacity import DroneSlots, SlotShape, Supply
from provisioner.planner.lifecycle import observe
from provisioner.planner.matching import (
    CompatibleTypes,
    _caches,
    resources_of_type,
    unmet_requirement,
)
from tests.planner.scenes import A100, QUAD, SMALL, V100, snapshot, with_pool


def test_fit_is_judged_once_for_each_shape_and_type_and_then_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged: list[tuple[object, ...]] = []
    real = unmet_requirement
    monkeypatch.setattr(
        matching, "unmet_requirement", lambda *asked: judged.append(asked) or real(*asked)
    )
    _caches.clear()
    seen = World.of(jobs=10_000, classes=1_000, types=4, alive=50).snapshot()
    many = with_pool(
        seen,
        classes=tuple(replace(SMALL, id=str(n), cpus=1 + n % 7, waiting=1) for n in range(1_000)),
    )
    first = decide(many)
    assert decide(many) == first
    assert len(judged) == 7 * 4
    _caches.clear()
    assert decide(many) == first, "what is remembered must not show"


def test_shapes_of_jobs_that_have_gone_are_forgotten() -> None:
    """Jobs whose requests differ each filled 600 MB, and none of it was given back."""
    _caches.clear()
    for n in range(0, 400, 8):
        classes = [replace(SMALL, id=str(i), disk_mib=i, waiting=1) for i in range(n, n + 8)]
        decide(snapshot(classes=classes, types=(A100, V100, QUAD)))
        [known] = _caches
        assert len(known.known) == 8, "those of the newest plan are kept"


def test_a_request_for_which_nothing_was_left_is_tried_again_once_the_room_has_changed() -> None:
    kind = replace(A100, gpu_milli=2_000, cpus=8, kept_cpus=4)
    greedy, modest = (
        replace(SMALL, cpus=6, memory_mib=1024),
        replace(SMALL, cpus=1, memory_mib=1024),
    )
    fits, others = (CompatibleTypes((kind,), {kind.key: 1}, (kind.key,)) for _ in range(2))
    supply = Supply(now=0.0, order={kind.key: 0})
    room = DroneSlots(
        kind, SlotShape(resources_of_type(kind), ends_at=1e9, on_the_way=False), count=1
    )
    supply.add(room)
    assert not supply.take(greedy, fits, 1).jobs, "the other GPU keeps four CPUs"
    supply.add(
        replace(
            room, shape=room.shape._replace(room=room.shape.room._replace(gpu_milli=1_000)), count=1
        )
    )
    assert supply.take(greedy, fits, 2).jobs == 1, "in the new one"
    assert supply.take(modest, others, 1).jobs
    assert supply.take(greedy, fits, 2).jobs == 1, "no other GPU is left"


def test_only_drones_with_news_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    decides, world = planner(), World.of(jobs=1_000, classes=10, types=4, alive=200)
    for _ in range(8):
        world.carry_out(decides(world.snapshot()))
    steady = world.snapshot()
    monkeypatch.setattr(
        lifecycle,
        "observe",
        lambda drone, *args, **more: looked.append(drone.id) or observe(drone, *args, **more),
    )
    decides(steady)
    assert sum(d.state is DroneState.BUSY for d in steady.drones.values()) > 150
    assert 0 < len(looked) < 60
