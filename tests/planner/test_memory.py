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
from provisioner.model import Plan, Snapshot
from provisioner.planner import decide, planner_with_memory
from provisioner.planner.context import HEARTBEAT_RECORD_INTERVAL_S, SteadyDrones, check_views
from provisioner.planner.lifecycle import observe
from provisioner.simulator.world import simulate
from tests.planner.scenes import with_pool
from tests.simulator.wild import wild


@dataclass
class Compared:
    """A planner with memory that compares each plan with one without. It records a difference if either raises."""

    with_it: Callable[[Snapshot], Plan] = field(default_factory=planner_with_memory)
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


def test_a_drone_whose_values_are_the_same_objects_is_not_compared_again() -> None:
    world, memory = World.of(jobs=100, classes=5, types=3, alive=50), SteadyDrones()
    for _ in range(4):
        world.carry_out(decide(world.snapshot(), memory))
    before = {id(known) for known in memory.known.values()}
    decide(world.snapshot(), memory)
    assert sum(id(known) in before for known in memory.known.values()) > 30


def test_what_the_memory_holds_of_drones_that_have_gone_is_forgotten() -> None:
    world, memory = World.of(jobs=100, classes=5, types=3, alive=50), SteadyDrones()
    seen = world.snapshot()
    decide(seen, memory)
    assert memory.known and memory.begun
    decide(replace(seen, drones={}), memory)
    assert not memory.known and not memory.begun and not memory.by_type.total()


def test_steady_drones_with_several_jobs_are_known_until_they_have_one() -> None:
    world, memory = World.of(jobs=100, classes=5, types=3, alive=20), SteadyDrones()
    seen = world.snapshot()
    assert seen.overlay.view is not None

    def with_jobs(jobs: int) -> Snapshot:
        records = {i: replace(drone, jobs=jobs) for i, drone in seen.drones.items()}
        return with_pool(
            replace(seen, drones=records),
            slots=tuple(replace(slot, jobs=jobs) for slot in seen.overlay.view.slots),
        )

    decide(with_jobs(2), memory)
    assert memory.several and memory.several == memory.known.keys()
    decide(with_jobs(1), memory)
    assert memory.known and not memory.several


def test_a_sign_of_life_alone_makes_a_new_record_and_no_news() -> None:
    world = World.of(jobs=100, classes=5, types=3, alive=20)
    for _ in range(3):
        world.carry_out(decide(world.snapshot()))
    seen = world.snapshot()
    drone_id = next(i for i in seen.drones if i not in check_views(seen).changing)
    before, later = (
        seen.drones[drone_id],
        seen.drones[drone_id].heard_at + HEARTBEAT_RECORD_INTERVAL_S,
    )
    assert seen.overlay.view is not None
    slots = tuple(
        replace(s, heard_at=later) if s.drone_id == drone_id else s for s in seen.overlay.view.slots
    )
    heard = with_pool(seen, slots=slots)
    assert drone_id not in check_views(heard).changing
    (move,) = (move for move in decide(heard).moves if move.drone.id == drone_id)
    slot = next(s for s in slots if s.drone_id == drone_id)
    site, policy = heard.sites[before.site].view, heard.policy.of_site(before.site)
    full = observe(before, site, slot, pool_fresh=True, policy=policy, doubted=False, now=heard.now)
    assert move == full and move.drone == replace(before, heard_at=later)


@pytest.mark.parametrize("jobs", [0, 3, 1 << 53])
def test_a_slot_may_tell_any_number_of_jobs(jobs: int) -> None:
    world, memory = World.of(jobs=100, classes=5, types=3, alive=20), SteadyDrones()
    seen = world.snapshot()
    assert seen.overlay.view is not None
    seen = replace(seen, drones={i: replace(d, jobs=jobs) for i, d in seen.drones.items()})
    seen = with_pool(
        seen, slots=tuple(replace(slot, jobs=jobs) for slot in seen.overlay.view.slots)
    )
    assert decide(seen, memory) == decide(seen)
    assert decide(replace(seen, drones={}), memory) == decide(replace(seen, drones={}))
