"""A planner with memory decides as one without: in random worlds, beside hostile views, and in simulated lives.

``python -m benchmarks.with_memory`` plays 10,000 worlds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from benchmarks import with_memory
from benchmarks.hostile import answers
from benchmarks.ticks import World
from provisioner.model import Breaker, BreakerState, DroneState, Plan, Scope, Snapshot
from provisioner.planner import decide, planner
from provisioner.planner.settled import HEARTBEAT_RECORD_INTERVAL_S, SettledDrones
from provisioner.simulator.world import simulate
from tests.planner.scenes import with_pool
from tests.simulator.wild import wild


@dataclass
class Compared:
    """A planner with memory that compares each plan with one without. It records a difference if either raises."""

    with_it: Callable[[Snapshot], Plan] = field(default_factory=planner)
    equal: list[bool] = field(default_factory=list)

    def __call__(self, snapshot: Snapshot) -> Plan:
        self.equal.append(False)
        found = self.with_it(snapshot)
        self.equal[-1] = found == decide(snapshot)
        return found


def test_plans_of_random_worlds_are_the_same_with_a_memory() -> None:
    assert sum(with_memory.worlds(first=0, count=300)) > 3000, (
        "a memory that recognises nothing shows nothing"
    )


def test_plans_on_hostile_views_are_the_same_with_a_memory() -> None:
    pytest.importorskip("classad2")
    for seed in range(10):
        compared = Compared()
        answers.play(seed, compared)
        assert len(compared.equal) >= answers.LIVES * answers.TICKS and all(compared.equal)


def test_plans_of_simulated_lives_are_the_same_with_a_memory() -> None:
    lives: list[Compared] = []
    simulate(replace(wild(3), planner=lambda: lives.append(Compared()) or lives[-1]))
    assert sum(len(life.equal) for life in lives) > 100 and all(all(life.equal) for life in lives)


def test_drones_without_news_are_remembered() -> None:
    world, memory = World.of(jobs=100, classes=5, types=3, alive=50), SettledDrones()
    for _ in range(4):
        world.carry_out(decide(world.snapshot(), memory))
    before = dict(memory)
    decide(world.snapshot(), memory)
    assert sum(before.get(i) == known for i, known in memory.items()) > 30


def test_what_the_memory_holds_of_drones_that_have_gone_is_forgotten() -> None:
    world, memory = World.of(jobs=100, classes=5, types=3, alive=50), SettledDrones()
    seen = world.snapshot()
    decide(seen, memory)
    assert memory
    decide(replace(seen, drones={}), memory)
    assert not memory


def test_a_sign_of_life_alone_is_recorded_and_says_nothing_about_a_back_off() -> None:
    world = World.of(jobs=100, classes=5, types=3, alive=20)
    for _ in range(3):
        world.carry_out(decide(world.snapshot()))
    seen = world.snapshot()
    before = next(d for d in seen.drones.values() if d.state is DroneState.BUSY)
    later = before.heard_at + HEARTBEAT_RECORD_INTERVAL_S
    view = seen.overlay.view
    assert view is not None and view.classes[0].running == 0
    classes = tuple(replace(job, running=1) for job in view.classes)
    slots = tuple(
        replace(slot, heard_at=later) if slot.drone_id == before.id else slot for slot in view.slots
    )
    backs_off = Breaker(
        replace(Scope.parse(before.type), class_id=before.for_class),
        BreakerState.DEGRADED,
        failures=1,
    )
    heard = replace(
        with_pool(seen, slots=slots, classes=classes), breakers={backs_off.scope: backs_off}
    )
    plan = decide(heard)
    (move,) = (move for move in plan.moves if move.drone.id == before.id)
    assert move.drone == replace(before, heard_at=later)
    assert backs_off.scope not in {breaker.scope for breaker in plan.breakers}


@pytest.mark.parametrize("jobs", [0, 3, 1 << 53])
def test_a_slot_may_tell_any_number_of_jobs(jobs: int) -> None:
    world, memory = World.of(jobs=100, classes=5, types=3, alive=20), SettledDrones()
    seen = world.snapshot()
    assert seen.overlay.view is not None
    seen = replace(seen, drones={i: replace(d, jobs=jobs) for i, d in seen.drones.items()})
    seen = with_pool(
        seen, slots=tuple(replace(slot, jobs=jobs) for slot in seen.overlay.view.slots)
    )
    assert decide(seen, memory) == decide(seen)
    assert decide(replace(seen, drones={}), memory) == decide(replace(seen, drones={}))
