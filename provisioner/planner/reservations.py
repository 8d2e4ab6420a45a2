"""Reservations for jobs of several GPUs: small drones leave one node, and short jobs fill in until it is free.

Each GPU that becomes free goes to the next job that fits. While jobs of one GPU wait, no node has several free GPUs at
once, and a job that needs them waits forever. A reservation frees them together, as EASY backfilling does (Lifka, "The
ANL/IBM SP scheduling system", 1995). Its cost is the *hole*: the GPU-seconds for which free GPUs wait for the last one,
and for the new drone. A job gets a reservation once its wait has cost more. Only the time counts in which smaller jobs
started before it: in a long queue all jobs wait.

The controller cannot choose nodes. It drains the drones on one node, and starts no drone at the site that might take
the node's GPUs, unless its jobs are expected to end before the last GPU is free. Nothing is stored: drones that drain
make their node the one with the smallest hole at the next tick. A site has one reservation at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from provisioner import model
from provisioner.estimates import RELEASE_S
from provisioner.model import WHOLE_GPU, BreakerState, Drone, DroneId, DroneState, DroneType, JobClass, TypeKey
from provisioner.planner.capacity import StartLimits
from provisioner.planner.context import NO_END, PlanningContext
from provisioner.planner.costs import JobCost, RunTimeSums
from provisioner.planner.matching import UNKNOWN_DISK_MIB, CompatibleTypes, Resources, count_fits
from provisioner.planner.owner import OwnerReservations, drone_resources
from provisioner.planner.risk import PreemptionRisk, is_excluded, runs_of, waiting_time
from provisioner.reasons import GpusStranded, LimitReached, NodeReserved, SiteFull, SiteQuota

MAX_RESERVABLE_NODES = 50
"""Number of nodes that are compared for one type: those with the most GPUs that are or will be free."""
MAX_RESERVING_CLASSES = 10
"""Number of classes for which nodes are compared in one plan, those that are hardest to place first."""
HYSTERESIS = 2.0
"""A node whose drones already leave is preferred, unless another one costs a third or less."""


class NodeHolder(NamedTuple):
    """A drone on a node, with the time until it is expected to leave if it takes no further job."""

    free_in_s: float
    drone: Drone
    space: Resources


class Hole(NamedTuple):
    """A way to get room for one job: drones leave a node, or some jobs of one drone end."""

    cost: float
    """GPU-seconds for which GPUs wait for the last one."""
    ready_s: float
    """Seconds until the last one is free."""
    node: str
    holders: Sequence[NodeHolder]
    starts: bool = True
    """A drone is started in the room."""

    @property
    def leaving(self) -> float:
        """Share of the drones that already take no more jobs."""
        return sum(each.drone.is_leaving for each in self.holders) / max(1, len(self.holders))


def hole_of(need: Resources, free: Resources, node: str, holders: Sequence[NodeHolder]) -> Hole | None:
    """Return the earliest room for ``need`` on a node; None if it is too small."""
    chosen: list[NodeHolder] = []
    room = free
    for holder in sorted(holders, key=lambda each: (each.free_in_s, each.drone.id)):
        if count_fits(need, room):
            break
        chosen.append(holder)
        room = room.plus(holder.space)
    if not count_fits(need, room):
        return None
    for holder in chosen[:-1]:  # of several sizes, some may be more than it takes
        if count_fits(need, room.plus(holder.space, -1)):
            chosen.remove(holder)
            room = room.plus(holder.space, -1)
    ready_s = chosen[-1].free_in_s if chosen else 0.0
    unused_milli = max(0, need.gpu_milli - sum(each.space.gpu_milli for each in chosen))
    waits = unused_milli * ready_s + sum(each.space.gpu_milli * (ready_s - each.free_in_s) for each in chosen)
    return Hole(waits / WHOLE_GPU, ready_s, node, chosen)


@dataclass(frozen=True, slots=True)
class NodeReservation:
    """Room that a job of several GPUs gets at a site."""

    kind: DroneType
    reason: NodeReserved
    ready_s: float
    drones: frozenset[DroneId]
    """Drones that leave for it. No other job takes them back into service."""
    drains: tuple[Drone, ...]
    """Drones that take no further job from now on."""
    limited: bool
    """A limit or quota binds, and not only the room on the node."""


@dataclass
class JobReservations:
    """Reservations of one plan. Mutable; classes are served in turn."""

    context: PlanningContext
    owners: OwnerReservations
    by_site: dict[str, NodeReservation] = field(default_factory=dict)
    _considered: int = 0

    def reserve(
        self, job: JobClass, compatible: CompatibleTypes, cost: JobCost, limits: StartLimits, risk: PreemptionRisk
    ) -> NodeReserved | None:
        """Reserve room for one job of a class that lacks room, if its wait has cost more than the hole does."""
        if self._considered >= MAX_RESERVING_CLASSES:
            return None
        kinds = [kind for kind in compatible.kinds if kind.gpu_milli and kind.site not in self.by_site]
        waited = self._overtaken_s(job, compatible) * cost.per_s if kinds else 0.0
        best: tuple[float, DroneType, Hole] | None = None
        if waited <= 0.0:
            return None
        self._considered += 1
        for kind in kinds:
            start = self.context.costs.of_types[kind.key]
            for hole in self._holes(job, kind, limits, risk):
                # The room is empty until the new drone takes the job.
                start_s = start.queue_s + start.boot_s + RELEASE_S if hole.starts else 0.0
                spent = start.per_s * (hole.cost * WHOLE_GPU / kind.gpu_milli + start_s)
                total = (spent + (hole.ready_s + start_s) * cost.per_s) / (1.0 + HYSTERESIS * hole.leaving)
                if spent <= waited and (best is None or total < best[0]):
                    best = total, kind, hole
        if best is None:
            return None
        _, kind, hole = best
        at = self.context.now + hole.ready_s
        reason = NodeReserved(kind.site, hole.node, job.id, job.gpu_milli / WHOLE_GPU, at)
        self.by_site[kind.site] = NodeReservation(
            kind,
            reason,
            hole.ready_s,
            frozenset(each.drone.id for each in hole.holders),
            tuple(each.drone for each in hole.holders if self._leaves_now(job, each, hole.ready_s)),
            isinstance(limits.for_type(kind.key)[1], LimitReached | SiteQuota),
        )
        return reason

    def places_beside(self, job: JobClass, kind: DroneType, most: int) -> tuple[int, NodeReserved | None]:
        """Return how many of ``most`` drones of a type may start for a class beside the reservation of the site."""
        found = self.by_site.get(kind.site)
        if found is None or found.reason.class_id == job.id or not shares_hardware(kind, found.kind):
            return most, None
        start = self.context.costs.of_types[kind.key]
        run_s = RunTimeSums.of(runs_of(self.context, job)).mean_s
        if start.queue_s + start.boot_s + run_s + RELEASE_S <= found.ready_s:
            return most, None
        places = 0
        if not found.limited and kind.site in self.owners.free:
            nodes = self.owners.free[kind.site].nodes.values()
            others = (node for node in nodes if kind.name in node.types and node.name != found.reason.node)
            places = sum(count_fits(drone_resources(kind), node.free, node.kept) for node in others)
        return min(most, places), found.reason if places < most else None

    def _overtaken_s(self, job: JobClass, compatible: CompatibleTypes) -> float:
        """Return the time in which smaller jobs that the same user submitted later started before a class.

        If no smaller job waits, it is the whole wait of the class.
        """
        waited_s = waiting_time(self.context, job)
        if not waited_s:
            return 0.0
        older = (
            other.waits_since
            for other in self._waiting_of.get(job.owner, ())
            if other.gpu_milli < job.gpu_milli
            and not compatible.jobs.keys().isdisjoint(self.context.compatible[other.id].jobs)
        )
        return waited_s - max(0.0, self.context.now - next(older, self.context.now))

    @cached_property
    def _waiting_of(self) -> Mapping[str, Sequence[JobClass]]:
        """Classes with waiting jobs by user, those that have waited longest first."""
        found: dict[str, list[JobClass]] = {}
        for job in sorted(self.context.classes, key=lambda job: job.waits_since):
            if job.waiting:
                found.setdefault(job.owner, []).append(job)
        return found

    def _holes(self, job: JobClass, kind: DroneType, limits: StartLimits, risk: PreemptionRisk) -> Iterator[Hole]:
        """Yield ways to get room for a new drone of a type, or in an existing one."""
        context, why = self.context, limits.for_type(kind.key)[1]
        view = context.validity.site_view(context.snapshot, kind.site)
        banned = (context.breakers.get(scope) for scope in (kind.site, kind.key))
        lacks_room = isinstance(why, SiteFull | GpusStranded | LimitReached | SiteQuota)
        if view is None or not lacks_room or any(each and each.state is BreakerState.BANNED for each in banned):
            return
        holders = self._holders[kind.site]
        for some in holders.values():
            yield from (hole for each in some if each.drone.type == kind.key for hole in self._in_drone(job, each))
        most_milli = kind.gpu_milli
        if isinstance(why, LimitReached | SiteQuota):  # what is free beyond the limit does not help
            of_gpus = isinstance(why, LimitReached) and why.limit == "max_gpus"
            most_milli = round((why.allowed - why.used) * WHOLE_GPU) if isinstance(why, LimitReached) and of_gpus else 0
            if isinstance(why, LimitReached) and (why.scope == kind.key or not why.allowed):
                return
        risk.book(kind, -1)  # as if its room were free
        safe = risk.allowed(job, context.compatible[job.id], kind, 1)[0]
        risk.book(kind, 1)

        def free_milli(node: model.Node) -> int:
            leaving = (each.space.gpu_milli for each in holders.get(node.name, ()) if each.drone.is_leaving)
            return node.free_gpu_milli + sum(leaving)

        nodes = [node for node in view.nodes if safe and kind.name in node.types and node.gpu_milli >= kind.gpu_milli]
        for node in sorted(nodes, key=lambda node: (-free_milli(node), node.name))[:MAX_RESERVABLE_NODES]:
            gpu_milli = max(0, min(most_milli, node.free_gpu_milli))
            free = Resources(gpu_milli, node.free_cpus, node.free_memory_mib, UNKNOWN_DISK_MIB)
            others = [each for each in holders.get(node.name, ()) if not self._serves(job, each.drone)]
            if (hole := hole_of(drone_resources(kind), free, node.name, others)) is not None:
                yield hole

    def _in_drone(self, job: JobClass, holder: NodeHolder) -> Iterator[Hole]:
        """Yield the way to get room in a drone of several GPUs: enough of its jobs end."""
        drone, slot = holder.drone, self.context.slots.get(holder.drone.id)
        returns = drone.leaving in (None, DroneState.DONE, DroneState.UNUSED)
        if slot is None or slot.jobs < 2 or not returns or slot.free_gpu_milli >= min(job.gpu_milli, drone.gpu_milli):
            return
        each_milli = (drone.gpu_milli - slot.free_gpu_milli) / slot.jobs
        ends = -int((slot.free_gpu_milli - job.gpu_milli) // each_milli)
        if ends < slot.jobs and not is_excluded(job.owner, drone.avoids):  # a drained drone leaves once it is empty
            times = _ends_s(self._rest_s(slot), slot.jobs)[:ends]
            waits = slot.free_gpu_milli * times[-1] + sum(each_milli * (times[-1] - end_s) for end_s in times)
            holders = [holder._replace(free_in_s=NO_END)]
            yield Hole(waits / WHOLE_GPU, times[-1], drone.node or drone.id, holders, starts=False)

    def _serves(self, job: JobClass, drone: Drone) -> bool:
        """Return True if a drone can take such jobs without a reservation: it has no job, or one as large."""
        slot = self.context.slots.get(drone.id)
        suits = drone.type in self.context.compatible[job.id].jobs and not drone.is_leaving
        return suits and (slot is None or not slot.jobs or slot.job_gpu_milli >= job.gpu_milli)

    @cached_property
    def _holders(self) -> Mapping[str, Mapping[str, list[NodeHolder]]]:
        """Drones that serve or drain, by site and node. A drone that the owner takes back makes no room.

        Where a site reports no nodes, only drones with several jobs can make room.
        """
        context = self.context
        spaces = {key: drone_resources(kind) for key, kind in context.types.items()}
        found: dict[str, dict[str, list[NodeHolder]]] = {site: {} for site in context.snapshot.policy.sites}
        views = ((site, context.validity.site_view(context.snapshot, site)) for site in found)
        with_nodes = {site for site, view in views if view is not None and view.nodes}
        for drone in context.drones.values():
            slot, site = context.slots.get(drone.id), drone.site
            if site not in with_nodes and (slot is None or slot.jobs < 2):
                continue
            serves = slot is not None or (drone.is_leaving and drone.started_at)
            if serves and not drone.notice_at and site in found:
                free_in_s = RELEASE_S + (_ends_s(self._rest_s(slot), slot.jobs)[-1] if slot and slot.jobs else 0.0)
                holder = NodeHolder(free_in_s, drone, spaces.get(drone.type) or Resources(drone.gpu_milli))
                found[site].setdefault(drone.node, []).append(holder)
        return found

    def _rest_s(self, slot: model.Slot) -> float:
        """Return the expected remaining run time of a slot's job, by the runs of such jobs."""
        request = slot.owner, slot.job_gpu_milli, slot.job_cpus, slot.job_memory_mib
        runs = RunTimeSums.of(self.context.snapshot.estimates.runs_of(*request, walltime_s=0.0))
        return runs.rest_s(max(0.0, self.context.now - slot.begun_at) if slot.begun_at else 0.0)

    def _leaves_now(self, job: JobClass, holder: NodeHolder, ready_s: float) -> bool:
        """Return True if a drone should take no further job, as that would end after the last GPU is free."""
        serves = holder.drone.state in (DroneState.IDLE, DroneState.BUSY) and not holder.drone.is_leaving
        return serves and holder.free_in_s + self._next_run_s(holder.drone.type, job.gpu_milli) > ready_s

    def _next_run_s(self, key: TypeKey, below_milli: int) -> float:
        """Return the mean run time of the longest waiting jobs of fewer GPUs that fit a type; infinite if none wait."""
        smaller = (job for job in self.context.classes if job.gpu_milli < below_milli)
        some = (job for job in smaller if key in self.context.compatible[job.id].jobs)
        return max((RunTimeSums.of(runs_of(self.context, job)).mean_s for job in some), default=NO_END)


def shares_hardware(kind: DroneType, other: DroneType) -> bool:
    """Return True if drones of two types of a site can take the same GPUs."""
    return (kind.gpu_model, kind.vram_mib, kind.capability) == (other.gpu_model, other.vram_mib, other.capability)


def _ends_s(rest_s: float, jobs: int) -> list[float]:
    """Return the expected times at which jobs end, each after ``rest_s`` in the mean (exponential rests)."""
    return [sum(rest_s / left for left in range(jobs - ended, jobs + 1)) for ended in range(jobs)]
