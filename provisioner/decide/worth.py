"""Whether another drone is worth its start: enough work for it, and no dearer a start than the waiting is.

*Enough work*: jobs that are done in seconds are served by few drones, one after the other; a new one should have
:data:`LEAST_WORK_S` to do. *No dearer*: a drone holds its GPUs from its grant to its first job, and that takes minutes
on a cloud, and seconds in a batch system. Whether a cheaper start comes in time nobody knows, so it is rented until it
would have been better to buy (Karlin, Manasse, Rudolph, Sleator, "Competitive snoopy caching", Algorithmica 3, 1988):
the dearer start is made once the jobs have waited as long, all together, as it costs more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from provisioner.decide.scene import Scene
from provisioner.learned import mean_run_s
from provisioner.model import WHOLE_GPU, DroneType, JobClass, TypeKey
from provisioner.reasons import CheaperStart, SoonServed

LEAST_WORK_S = 300.0
LONG_ENOUGH_S = 900.0
"""A job that has waited for so long gets its drone, however little there is to do."""


def worthwhile(scene: Scene, job: JobClass, lacking: int) -> tuple[int, SoonServed | None]:
    """For how many of the ``lacking`` jobs a drone is worth its start, and why not for the others."""
    if lacking <= 0:
        return lacking, None
    runs = scene.snapshot.learned.runs_of(job.owner, job.gpu_milli, job.cpus, job.memory_mib, job.walltime_s)
    mean_s = mean_run_s(runs)
    if mean_s >= LEAST_WORK_S:
        return lacking, None
    # Those that run such jobs now end them soon, and take these.
    enough = math.ceil(lacking * mean_s / LEAST_WORK_S - job.running)
    late = scene.now - job.oldest_at > LONG_ENOUGH_S
    found = max(1 if late else 0, min(lacking, enough))
    return found, SoonServed(mean_s, job.running) if found < lacking else None


@dataclass(slots=True)
class Waiting:
    """What waiting has cost so far, against what starts cost; local to one decision."""

    scene: Scene
    held: dict[TypeKey, float] = field(default_factory=dict)
    """GPU-seconds, at the type's price, that a drone of it holds before its first job."""

    @classmethod
    def of(cls, scene: Scene) -> Waiting:
        policy, known = scene.snapshot.policy, scene.snapshot.learned.delays
        held = {}
        for key, delays in known.items():
            kind = scene.types.get(TypeKey(key))
            site = policy.sites.get(kind.site) if kind is not None else None
            if kind is not None and site is not None:
                held[kind.key] = delays.boot_s * kind.gpu_milli / WHOLE_GPU * kind.price * site.price
        return cls(scene, held)

    def too_dear(self, job: JobClass, kind: DroneType, kinds: Iterable[TypeKey], lacking: int) -> CheaperStart | None:
        """Why a cheaper start among ``kinds`` is still to be waited for, if so."""
        mine = self.held.get(kind.key)
        worth = self.scene.snapshot.policy.wait_worth
        if mine is None or not worth:
            return None
        cheapest = min((self.held[key] for key in kinds if key in self.held), default=mine)
        # Jobs of a class come one after the other: on average half as old as the oldest.
        waited_s = max(0.0, self.scene.now - job.oldest_at) * (lacking + 1) / 2
        more_s = (mine - cheapest) / worth
        return CheaperStart(kind.key, waited_s, more_s) if waited_s < more_s else None
