"""In which order drone types are asked for: by where one would start now, then by price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from provisioner.model import TypeKey
from provisioner.planner.room import Room
from provisioner.planner.scene import Scene
from provisioner.planner.shapes import Suited

_FULL_H = 1_000_000
"""Stands for as long as nobody knows; longer than any site expects."""


@dataclass(slots=True)
class Order:
    """In which order types are asked for the jobs of one shape."""

    keys: Sequence[TypeKey]
    left: Sequence[TypeKey]
    """Those of which any might yet be started when that was last looked at."""
    turn: Sequence[TypeKey] = ()
    """Where any of ours come late: the first type of which another might wait as well, and the last before it."""
    of: int = -1
    """How many types there were of which that was so."""

    def open(self, room: Room) -> Sequence[TypeKey]:
        """In order, without those of which no more is started in this decision; those of ``turn`` stay."""
        if len(room.open) != self.of:
            self.left = [key for key in self.left if key in room.open or key in self.turn]
            self.of = len(room.open)
        return self.left


@dataclass(slots=True)
class Orders:
    """By price for one job, then by how little VRAM and capability is left unused. Sites that show free GPUs (or do not
    tell) come before those where the drone would queue, and a short queue before a long one."""

    tier: Mapping[TypeKey, int]
    """In how many hours one would start, by all that is known: the lower, the earlier it is asked for."""
    sure: frozenset[TypeKey]
    """Types of which one would start now, by all that their site shows."""
    any_late: bool
    """Whether any of ours come late."""
    known: dict[Suited, Order] = field(default_factory=dict)

    @classmethod
    def of(cls, scene: Scene, room: Room) -> Orders:
        """By what is free before anything is started."""
        waits = _waits_h(scene)
        free = {key: room.free_for(key) for key in scene.types}
        # What looks free where one of ours waits all the same is kept for somebody else.
        sure = frozenset(key for key, count in free.items() if count and count > 0 and key not in waits)
        full = {key for key, count in free.items() if count is not None and count <= 0}
        return cls({key: (_FULL_H if key in full else 0) + waits.get(key, 0) for key in free}, sure, bool(waits))

    def for_jobs(self, suited: Suited) -> Order:
        """For the jobs of one shape."""
        found = self.known.get(suited)
        if found is None:
            keys = sorted(suited.cheapest, key=self.tier.__getitem__)
            found = self.known[suited] = Order(keys, keys, self._turn(keys) if self.any_late else ())
        return found

    def _turn(self, keys: Sequence[TypeKey]) -> Sequence[TypeKey]:
        """Where the late ones have their turn, and where jobs that have enough by then stop short of it."""
        unsure = next((n for n, key in enumerate(keys) if key not in self.sure), len(keys))
        return keys[max(0, unsure - 1) : unsure + 1]


def _waits_h(scene: Scene) -> Mapping[TypeKey, int]:
    """By type, within how many hours the site expects the last of ours to start; only where that is late."""
    waits: dict[TypeKey, int] = {}
    for drone_id in scene.late:
        drone = scene.unsettled[drone_id]
        remote = scene.remote(drone)
        if remote is not None:
            hours = 1 + max(0, int((remote.expected_start_at - scene.now) // 3600))
            waits[drone.type] = max(waits.get(drone.type, 0), hours)
    return waits
