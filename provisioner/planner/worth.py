"""Whether another drone is worth its start: enough work for it, and no dearer a start than the waiting is.

*Enough work*: jobs that are done in seconds are served by few drones, one after the other; a new one should have
:data:`LEAST_WORK_S` to do. *No dearer*: a drone holds its GPUs from its grant to its first job, and that takes minutes
on a cloud, and seconds in a batch system. Whether a cheaper start comes in time nobody knows, so it is rented until it
would have been better to buy (Karlin, Manasse, Rudolph, Sleator, "Competitive snoopy caching", Algorithmica 3, 1988):
the dearer start is made once the jobs have waited as long, all together, as it costs more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from provisioner.estimates import mean_run_s
from provisioner.model import WHOLE_GPU, Drone, DroneState, DroneType, JobClass, Slot, SlotState, TypeKey
from provisioner.planner.scene import Scene
from provisioner.reasons import AwaitingCheaperType, ExistingDronesSuffice

LEAST_WORK_S = 300.0
LONG_ENOUGH_S = 900.0
"""A job that has waited for so long gets its drone, however little there is to do."""


def worthwhile(scene: Scene, job: JobClass, lacking: int, serving: Serving) -> tuple[int, ExistingDronesSuffice | None]:
    """Return for how many of the ``lacking`` jobs a drone is worth its start, and why not for the others."""
    if lacking <= 0:
        return lacking, None
    runs = scene.snapshot.estimates.runs_of(job.owner, job.gpu_milli, job.cpus, job.memory_mib, job.walltime_s)
    mean_s = mean_run_s(runs)
    if mean_s >= LEAST_WORK_S:
        return lacking, None
    # Those that run such jobs now end them soon, and take these; so do those that others of the class are to run on.
    running, covered = serving.of(job), job.waiting - lacking
    enough = math.ceil(job.waiting * mean_s / LEAST_WORK_S) - running - covered
    late = scene.now - job.oldest_at > LONG_ENOUGH_S
    found = max(1 if late else 0, min(lacking, enough))
    return found, ExistingDronesSuffice(mean_s, running) if found < lacking else None


_Shape = tuple[str, int, int, int]
"""User (empty: not known), and what a job asks for: GPU, CPUs and memory; zeros where that is not known."""
_UNKNOWN = (0, 0, 0)


@dataclass
class Serving:
    """Jobs on drones that take another one afterwards; local to one decision.

    The queue also counts as running what ran on a drone that died (until the lease of the job ends), and what runs on
    one that takes no more jobs. Only the slots of accepting drones tell who serves on.
    """

    scene: Scene

    def of(self, job: JobClass) -> int:
        """Count jobs of a class, or that may be of it where its slot does not tell."""
        if not job.running:
            return 0
        asks = (job.gpu_milli, job.cpus, job.memory_mib)
        shapes = {(owner, *amounts) for owner in (job.owner, "") for amounts in (asks, _UNKNOWN)}
        return min(job.running, sum(self._by_shape[each] for each in shapes))

    @cached_property
    def _by_shape(self) -> Counter[_Shape]:
        view = self.scene.snapshot.overlay.view
        # An overlay may name classes by accounting group and slots by user: then the name tells nothing.
        owners = {job.owner for job in view.classes} if view is not None else frozenset()
        found: Counter[_Shape] = Counter()
        for slot in self.scene.slots.values():
            drone = self.scene.drones.get(slot.drone_id)
            if slot.jobs and drone is not None and _accepts(drone, slot):
                owner = slot.owner if slot.owner in owners else ""
                found[owner, slot.job_gpu_milli, slot.job_cpus, slot.job_memory_mib] += slot.jobs
        return found


def _accepts(drone: Drone, slot: Slot) -> bool:
    """Return whether a drone takes another job once one of its jobs is done."""
    leaves = drone.goes or drone.notice_at or drone.state is DroneState.DRAINING
    return not leaves and slot.state is not SlotState.DRAINING


@dataclass(slots=True)
class Waiting:
    """What waiting has cost so far, against what starts cost; local to one decision."""

    scene: Scene
    held: dict[TypeKey, float] = field(default_factory=dict)
    """GPU-seconds, at the type's price, that a drone of it holds before its first job."""

    @classmethod
    def of(cls, scene: Scene) -> Waiting:
        policy, known = scene.snapshot.policy, scene.snapshot.estimates.delays
        held = {}
        for key, delays in known.items():
            kind = scene.types.get(TypeKey(key))
            site = policy.sites.get(kind.site) if kind is not None else None
            if kind is not None and site is not None:
                held[kind.key] = delays.boot_s * kind.gpu_milli / WHOLE_GPU * kind.price * site.price
        return cls(scene, held)

    def too_dear(
        self, job: JobClass, kind: DroneType, kinds: Iterable[TypeKey], lacking: int
    ) -> AwaitingCheaperType | None:
        """Why a cheaper start among ``kinds`` is still to be waited for, if so."""
        mine = self.held.get(kind.key)
        worth = self.scene.snapshot.policy.waiting_cost
        if mine is None or not worth:
            return None
        cheapest = min((self.held[key] for key in kinds if key in self.held), default=mine)
        # Jobs of a class come one after the other: on average half as old as the oldest.
        waited_s = max(0.0, self.scene.now - job.oldest_at) * (lacking + 1) / 2
        more_s = (mine - cheapest) / worth
        return AwaitingCheaperType(kind.key, waited_s, more_s) if waited_s < more_s else None
