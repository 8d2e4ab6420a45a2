"""Draining drones that are wanted again: cheaper than a start, for as long as they still run something."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from provisioner.model import Drain, DrainMode, Drone, DroneId, DroneState, JobClass
from provisioner.planner.avoids import is_avoided
from provisioner.planner.exposed import Exposure
from provisioner.planner.fit import jobs_in_slot
from provisioner.planner.scene import Scene
from provisioner.planner.shapes import Suited
from provisioner.reasons import DemandReturned


@dataclass(slots=True)
class Returning:
    """Who may go back into service, and who does. Mutable, local to one decision."""

    scene: Scene
    exposure: Exposure
    draining: dict[DroneId, Drone]
    """Who has not been taken back yet."""
    asked: list[Drain] = field(default_factory=list)

    @classmethod
    def of(cls, scene: Scene, exposure: Exposure) -> Returning:
        """Those that still run something and leave only for want of work, or because an owner was near: never those
        that an operator or an owner asked to go."""
        leaves = (drone for drone in scene.unsettled.values() if _may_return(scene, drone))
        return cls(scene, exposure, {drone.id: drone for drone in leaves})

    def take(self, job: JobClass, suited: Suited, lack: int) -> int:
        """Take back who has room for the class, and is safe enough for it; for how many jobs, perhaps a few more than
        lack."""
        covered = 0
        risky: dict[str, Collection[DroneId]] = {}
        for drone in list(self.draining.values()) if lack > 0 else ():
            if drone.site not in risky:
                risky[drone.site] = self.exposure.to(job, suited, drone.site)
            safe = drone.id not in risky[drone.site] and not is_avoided(job.owner, drone.avoids)
            fits = safe and drone.type in suited.jobs and covered < lack
            room = jobs_in_slot(job, self.scene.slots[drone.id], self.scene.types[drone.type]) if fits else 0
            if room:
                del self.draining[drone.id]
                back = replace(drone, state=DroneState.BUSY, since=self.scene.now, leaving=None, asked_at=0.0, asked=0)
                self.asked.append(Drain(back, drone.state, DrainMode.RESUME, DemandReturned(job.id, job.waiting)))
                covered += room
        return covered


def _may_return(scene: Scene, drone: Drone) -> bool:
    return (
        drone.state is DroneState.DRAINING
        and drone.leaving in (DroneState.DONE, DroneState.UNUSED)
        and bool(drone.asked_at and drone.jobs)
        and drone.id in scene.slots
        and scene.touchable(drone)
    )
