"""Settled drones: those that a decision passes over, as nothing of them is new."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from typing import Final

from provisioner import model
from provisioner.model import Drone, DroneId, DroneState, DroneType, SiteView, Slot, Snapshot
from provisioner.planner.states import longest_busy_s
from provisioner.values import all_but

HEARTBEAT_RECORD_INTERVAL_S = 900.0
"""Interval at which the last sign of life of an otherwise unchanged drone is recorded.

It is for people, and the least life of a drone that its site lost. Decisions go by its slot. A drone
that is silent for longer than ``slot_max_age`` (15 min) is out of the pool, which is recorded. With
300 s a steady state costs a fifth more (``make bench``, steady).
"""

_UNSEEN: Final = None, None, None, 0.0
"""Entry of a drone that is not settled."""
_slot_but_heard_at = all_but(Slot, "heard_at")
but_heard_at = all_but(Drone, "heard_at")

SeenDrone = tuple[Drone, Slot | None, model.RemoteDrone | None]
"""Record, slot and entry in the listing of a drone."""


def is_full(seen: SeenDrone, kind: DroneType | None) -> bool:
    """Return True if a drone is busy and full, and its site and the pool list it as before."""
    drone, slot, remote = seen
    missed = drone.missing_at or drone.unslotted_at
    if slot is None or remote is None or kind is None or drone.idle_at or missed or drone.service:
        return False
    free = slot.free_gpu_milli if kind.gpu_milli else slot.free_cpus
    is_busy = drone.state is DroneState.BUSY and slot.state is model.SlotState.BUSY
    return is_busy and free <= 0 < slot.jobs


class SettledDrones(dict[DroneId, tuple[*SeenDrone, float]]):
    """Drones of which nothing was new, and to which no rule applied until a time.

    They are passed over while these are the same objects, as a poll keeps those of the last one
    where nothing changed: with 100,000 drones a decision takes two thirds of the time, and the plan
    is the same.
    """

    by: tuple[object, object] = None, None
    """Types and policy for which that is so."""

    def add(
        self, seen: SeenDrone, after: Drone, snapshot: Snapshot, kind: DroneType | None
    ) -> None:
        """Add a drone, ``after`` this tick, if it is busy and full, and nothing of it is new but a sign of life."""
        drone, slot, remote = seen
        if kind and is_full(seen, kind) and but_heard_at(after) == but_heard_at(drone):
            # one second less, whatever rounding does
            ends_at = drone.started_at + longest_busy_s(kind, snapshot.policy) - 1.0
            self[drone.id] = after, slot, remote, ends_at

    def others(
        self, snapshot: Snapshot, slots: Mapping[DroneId, Slot], views: Mapping[str, SiteView]
    ) -> list[SeenDrone]:
        """Return all other drones on record, in their order. Those that are settled no longer are forgotten."""
        if self.by != (snapshot.types, snapshot.policy):
            self.clear()
            self.by = snapshot.types, snapshot.policy
        drones = snapshot.drones
        now = snapshot.now
        listed: dict[DroneId, model.RemoteDrone] = {}
        for view in views.values():
            listed |= view.drones
        found: list[SeenDrone] = []
        for drone, slot, remote, before in zip(
            drones.values(),
            map(slots.get, drones),
            map(listed.get, drones),
            map(self.get, drones, repeat(_UNSEEN)),
            strict=True,
        ):
            old_slot = before[1]
            if before[0] is not drone or before[2] is not remote or before[3] < now:
                found.append((drone, slot, remote))
            elif old_slot is slot:
                continue
            elif old_slot and slot and _only_heard(drone, old_slot, slot):
                self[drone.id] = drone, slot, remote, before[3]
            else:
                found.append((drone, slot, remote))
        for drone, *_ in found:
            self.pop(drone.id, None)
        if len(self) > len(drones) - len(found):
            for gone in self.keys() - drones.keys():
                del self[gone]
        return found


def _only_heard(drone: Drone, before: Slot, slot: Slot) -> bool:
    """Return True if nothing of a slot is new but a sign of life, and that is not recorded yet."""
    soon = slot.heard_at - drone.heard_at < HEARTBEAT_RECORD_INTERVAL_S
    return soon and _slot_but_heard_at(before) == _slot_but_heard_at(slot)
