"""Which drones are kept warm as headroom, and where none is: no headroom is started, and none is kept beyond its idle
time-out, at a site where a real job lacks room or where the owner waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from provisioner.model import DroneId, DroneState, Refusal
from provisioner.planner.fit import jobs_in, left, need_of
from provisioner.planner.headroom import is_virtual
from provisioner.planner.scene import Scene
from provisioner.reasons import GpusStranded, LimitReached, Reason, SiteFull, SiteQuota


def pressed(scene: Scene, refusals: Iterable[Refusal], claimed: Collection[str]) -> frozenset[str]:
    """Sites where a real job lacks room, or the owner waits (``claimed``): no headroom there."""
    if not scene.headroom:
        return frozenset()
    sites = set(claimed)
    for refusal in refusals:
        kind, _, class_id = refusal.subject.partition(":")
        if kind != "class" or is_virtual(class_id) or not _lacks_room(refusal.reason):
            continue
        if isinstance(refusal.reason, LimitReached) and refusal.reason.scope == "all sites":
            sites.update(scene.snapshot.policy.sites)
        sites.update(each.site for each in scene.suited[class_id].kinds)
    return frozenset(sites)


def _lacks_room(reason: Reason) -> bool:
    return isinstance(reason, LimitReached | SiteFull | SiteQuota | GpusStranded)


def kept(scene: Scene, pressed: Collection[str]) -> frozenset[DroneId]:
    """Idle drones that do not leave for being idle: those without which less is warm than is wanted. Those that live
    longest, so that they are the same from tick to tick. What is pressed for room keeps none but for real jobs."""
    if not scene.headroom:
        return frozenset()
    rooms = {i: left(scene.slots[i]) for i in scene.unsettled if i in scene.slots and _takes_jobs(scene, i)}
    order = sorted(rooms, key=lambda i: _rank(scene, i))
    warm: set[DroneId] = set()
    wanted = {key for job in scene.classes for key in scene.suited[job.id].keys}
    for job in scene.headroom:
        lack, keys = job.waiting, scene.suited[job.id].jobs
        for drone_id in order:
            drone = scene.drones[drone_id]
            if lack <= 0:
                break
            if drone.type not in keys or (drone.site in pressed and drone.type not in wanted):
                continue
            count = min(lack, jobs_in(job, rooms[drone_id], scene.types[drone.type]))
            if count > 0:
                lack -= count
                rooms[drone_id] = rooms[drone_id].plus(need_of(job, scene.types[drone.type]), -count)
                warm.add(drone_id)
    return frozenset(warm)


def _takes_jobs(scene: Scene, drone_id: DroneId) -> bool:
    drone = scene.drones[drone_id]
    serves = drone.state in (DroneState.IDLE, DroneState.BUSY)
    return serves and drone.type in scene.types and not drone.goes and not drone.notice_at


def _rank(scene: Scene, drone_id: DroneId) -> tuple[bool, float, float, str]:
    """Room beside running jobs first: it is there anyway."""
    drone, slot = scene.drones[drone_id], scene.slots[drone_id]
    return drone.state is DroneState.IDLE, -(slot.retires_at or float("inf")), drone.joined_at, drone_id
