"""A large site costs no more work than there is news: counted, not timed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.ticks import World
from provisioner.model import Drone, DroneState, JobClass, Slot, Snapshot, UnmetRequirement
from provisioner.planner import decide, lifecycle, matching
from provisioner.planner.capacity import StartLimits, Supply
from provisioner.planner.context import check_views
from provisioner.planner.lifecycle import observe
from provisioner.planner.matching import _caches, unmet_requirement
from tests.planner.scenes import A100, NOW, QUAD, SMALL, V100, drone, remote_of, snapshot, with_pool, with_site

TYPES = (A100, V100, QUAD)


def test_fit_is_judged_once_for_each_shape_and_type_and_then_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[tuple[str, str]] = []

    def counted(job: JobClass, kind: object) -> UnmetRequirement | None:
        judged.append((job.id, str(kind)))
        return real(job, kind)

    real = unmet_requirement
    monkeypatch.setattr(matching, "unmet_requirement", counted)
    _caches.clear()
    world = World.of(jobs=10_000, classes=1_000, types=4, alive=50)
    classes = tuple(
        replace(SMALL, id=str(n), cpus=1 + n % 7, waiting=n + 1, owner=f"u{n}", priority=n) for n in range(1_000)
    )
    seen = world.snapshot()
    many = with_pool(seen, classes=classes)
    first = decide(many)
    assert len(judged) == 7 * 4
    assert decide(many) == first
    assert len(judged) == 7 * 4
    _caches.clear()
    assert decide(many) == first, "what is remembered must not show"


def test_shapes_of_jobs_that_have_gone_are_forgotten() -> None:
    """Jobs whose requests differ each filled 600 MB, and none of it was given back."""
    _caches.clear()
    for n in range(0, 400, 8):
        classes = [replace(SMALL, id=str(i), disk_mib=i, waiting=1) for i in range(n, n + 8)]
        decide(snapshot(classes=classes, types=TYPES))
        [known] = _caches
        assert len(known.known) == 8, "those of the newest plan are kept"


def _steady() -> Snapshot:
    world = World.of(jobs=1_000, classes=10, types=4, alive=200)
    for _ in range(8):
        world.carry_out(decide(world.snapshot()))
    return world.snapshot()


def test_only_drones_with_news_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    real = observe

    def counted(drone: Drone, *args: object, **more: object) -> object:
        looked.append(drone.id)
        return real(drone, *args, **more)

    steady = _steady()
    monkeypatch.setattr(lifecycle, "observe", counted)
    decide(steady)
    busy = sum(d.state is DroneState.BUSY for d in steady.drones.values())
    assert busy > 150
    assert 0 < len(looked) < 30


@pytest.mark.parametrize(
    "news",
    [
        {"jobs": 2},
        {"jobs_started": 99},
        {"work_at": 1.0},
        {"retires_at": 1.0},
        {"free_gpu_milli": 500},
        {"name": "another"},
        {"heard_at": 1.0},
    ],
)
def test_whatever_a_slot_tells_anew_unsettles_its_drone(news: dict[str, object]) -> None:
    steady = _steady()
    validity = check_views(steady)
    drone_id = next(i for i in steady.drones if i not in validity.changing)
    view = steady.overlay.view
    assert view is not None

    def told(slot: Slot) -> Slot:
        return replace(slot, **news) if slot.drone_id == drone_id else slot

    slots = tuple(told(slot) for slot in view.slots)
    assert drone_id in check_views(with_pool(steady, slots=slots)).changing


@pytest.mark.parametrize(
    "news", [{"node": "n9"}, {"slot": "s9"}, {"reason": "x"}, {"remote_id": "x"}, {"notice_at": 1.0}], ids=str
)
def test_whatever_a_listing_tells_anew_unsettles_its_drone(news: dict[str, object]) -> None:
    steady = _steady()
    drone_id = next(i for i in steady.drones if i not in check_views(steady).changing)
    site = steady.drones[drone_id].site
    listed = steady.sites[site].view.drones
    told = {**listed, drone_id: replace(listed[drone_id], **news)}
    assert drone_id in check_views(with_site(steady, site, drones=told)).changing


@pytest.mark.parametrize("free", [{}, {f"a100-{n}": n % 5 for n in range(20)}], ids=["all full", "room in most"])
def test_one_drone_that_comes_late_makes_no_class_ask_every_type(
    free: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real_take, real_room = Supply.take, StartLimits.for_type
    monkeypatch.setattr(Supply, "take", lambda *a, **more: asked.append("take") or real_take(*a, **more))
    monkeypatch.setattr(StartLimits, "for_type", lambda *a: asked.append("room") or real_room(*a))
    # One job takes all their RAM and leaves GPUs: what is late stays in the books.
    types = tuple(replace(A100, name=f"a100-{n}", gpu_milli=4000, price=1.0 + n) for n in range(40))
    classes = [replace(SMALL, id=str(n), cpus=1 + n % 4, waiting=30) for n in range(100)]
    one = drone("kit-ab12-1", DroneState.QUEUED, types[3])

    def asks(expected_in_s: float) -> int:
        asked.clear()
        told = replace(remote_of(one), expected_start_at=NOW + expected_in_s)
        plan = decide(snapshot(classes=classes, types=types, drones=[one], remotes=[told], free=free))
        assert bool(plan.starts) == bool(free)
        assert len({refusal.subject for refusal in plan.refusals}) >= 100 - len(free)
        return len(asked)

    soon, late = asks(60), asks(7200)
    assert late - soon <= 5 * len(classes), "each has forty types"
