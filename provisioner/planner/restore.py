"""Taking a lent reserve back: CPU drones leave for GPU drones that find GPUs free, and the rest of the node taken."""

from __future__ import annotations

from collections.abc import Mapping

from provisioner.model import DroneState, TypeKey
from provisioner.planner.floor import space_of
from provisioner.planner.owner import Ground, Leaver
from provisioner.planner.scene import Scene
from provisioner.planner.space import NOTHING
from provisioner.planner.victims import cheapest_set
from provisioner.reasons import ReserveReclaimed


def restore(scene: Scene, ground: Ground, roomless: Mapping[TypeKey, int]) -> list[Leaver]:
    """Who leaves. ``roomless``: by GPU drone type, how many waiting jobs lack because no node has room, and for no
    other reason: those that lose least go, one node after the other, until each of these has its place."""
    leavers: list[Leaver] = []
    for key, lack in roomless.items():
        kind = scene.types[key]
        if kind.site not in ground.floors or not kind.gpu_milli or key in ground.held:
            continue
        crowd, need = ground.crowds[kind.site], space_of(kind)
        for spot in ground.floors[kind.site].spots.values():
            while lack > 0 and spot.kept != NOTHING and kind.name in spot.types:
                movable = crowd.of_node(spot.name).only(lambda space: not space.gpu_milli)
                found = cheapest_set(need, crowd.room(spot), NOTHING, movable, crowd.effort)
                if not found:
                    break
                why = ReserveReclaimed(spot.name)
                leavers += [Leaver(scene.drones[c.drone_id], why, DroneState.PREEMPTED) for c in found]
                crowd.gone(spot.name, found)
                crowd.takes(spot, need)
                lack -= 1
    return leavers
