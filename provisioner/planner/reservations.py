"""Reservations for jobs of several GPUs: small drones leave one node, and short jobs fill in until it is free.

Each GPU that becomes free goes to the next job that fits. While jobs of one GPU wait, no node has
several free GPUs at once, and a job that needs them waits forever. A reservation frees them
together, as EASY backfilling does (Lifka, "The ANL/IBM SP scheduling system", 1995). Its cost is
the *hole*: the GPU-seconds for which free GPUs wait for the last one, and for the new drone. A job
gets a reservation once its wait has cost more. Only the time counts in which smaller jobs started
before it: in a long queue all jobs wait.

The controller cannot choose nodes. It drains the drones on one node, and starts no more drones at
the site than other nodes have room for. Jobs fill in only where none of those that wait could delay
the reserved one: each ends in time by its own time limit, or would if it ran for much longer than
any such job so far. A site has one reservation at a time. It stays with its job and node, as the
plan before recorded it. The promised time moves only once it has passed: a job that runs there
overran.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from provisioner import model
from provisioner.estimates import RELEASE_S
from provisioner.keys import Scope
from provisioner.model import (
    WHOLE_GPU,
    BreakerState,
    Drone,
    DroneId,
    DroneState,
    DroneType,
    JobClass,
    Start,
    TypeKey,
)
from provisioner.planner.capacity import StartLimits, passes_soon
from provisioner.planner.context import (
    MAX_JOBS_COUNTED,
    PlanningContext,
    downtime_at,
    life_too_short,
    run_shape,
)
from provisioner.planner.costs import JobCost, RunTimeSums
from provisioner.planner.matching import (
    CompatibleTypes,
    count_fits,
)
from provisioner.planner.owner import NodeResources, OwnerReservations
from provisioner.planner.risk import PreemptionRisk, waiting_time
from provisioner.planner.states import NO_END
from provisioner.reasons import GpusStranded, LimitReached, NodeReserved, SiteFull, SiteQuota
from provisioner.resources import NO_RESOURCES, Resources
from provisioner.values import factory, frozen

MAX_RESERVABLE_NODES = 50
"""Number of nodes that are compared for one type: those with the most GPUs that are or will be free."""
MAX_RESERVING_CLASSES = 20
"""Number of classes for which nodes are compared in one plan, those whose turn comes first."""
MAX_RESERVING_CLASSES_OF_USER = 2
"""Number of these that one user may have."""
FEWEST_RUNS = 50
"""Known runs that bound the run times of further ones."""
RUN_MARGIN = 2.0
"""Bound of a run time, as a multiple of the longest known one: the longest runs are the last to become known."""


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


def hole_of(
    need: Resources,
    free: Resources,
    node: str,
    holders: Sequence[NodeHolder],
    kept: Resources = NO_RESOURCES,
) -> Hole | None:
    """Return the earliest room for ``need`` on a node, each of whose free GPUs keeps ``kept``; None if too small."""
    chosen: list[NodeHolder] = []
    room = free
    for holder in sorted(holders, key=lambda each: (each.free_in_s, each.drone.id)):
        if count_fits(need, room, kept):
            break
        chosen.append(holder)
        room = room.plus(holder.space)
    if not count_fits(need, room, kept):
        return None
    for holder in chosen[:-1]:  # of several sizes, some may be more than it takes
        if count_fits(need, room.plus(holder.space, -1), kept):
            chosen.remove(holder)
            room = room.plus(holder.space, -1)
    ready_s = chosen[-1].free_in_s if chosen else 0.0
    unused_milli = max(0, need.gpu_milli - sum(each.space.gpu_milli for each in chosen))
    waits = unused_milli * ready_s + sum(
        each.space.gpu_milli * (ready_s - each.free_in_s) for each in chosen
    )
    return Hole(waits / WHOLE_GPU, ready_s, node, chosen)


@frozen
class NodeReservation:
    """Room that a job of several GPUs gets at a site."""

    kind: DroneType
    reason: NodeReserved
    ready_s: float
    starts: bool
    """A drone is started in the room. Otherwise an existing drone has it, and no start can take it."""
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
    starts: Sequence[Start] = ()
    """Starts of the plan so far."""
    by_site: dict[str, NodeReservation] = factory(dict)
    _considered: Counter[str] = factory(Counter)
    """Number of classes by user."""
    _next_runs_s: dict[tuple[TypeKey, int], float] = factory(dict)

    def reserve(
        self,
        job: JobClass,
        compatible: CompatibleTypes,
        cost: JobCost,
        limits: StartLimits,
        risk: PreemptionRisk,
    ) -> NodeReserved | None:
        """Reserve room for one job of a class that lacks room, if its wait has cost more than the hole does."""
        waited = self._overtaken_s(job, compatible) * cost.per_s
        considered = self._considered
        is_full = considered.total() >= MAX_RESERVING_CLASSES
        if waited <= 0.0 or is_full or considered[job.owner] >= MAX_RESERVING_CLASSES_OF_USER:
            return None
        sites = {kind.site for kind in compatible.kinds if kind.gpu_milli}
        undecided = {site for site in sites if self._may_reserve(job, site)}
        kinds = [k for k in compatible.kinds if k.gpu_milli and k.site in undecided]
        if not kinds:
            return None
        considered[job.owner] += 1
        best: _Offer | None = None
        for kind in kinds:
            for hole in self._holes(job, kind, limits, risk):
                offer = self._offer(job, kind, cost, waited, hole)
                better = offer is not None and (best is None or offer.total < best.total)
                if better and self._may_use(job, kind, hole, risk):
                    best = offer
        if best is None:
            return None
        kind = best.kind
        hole = best.hole
        reason = self._reason(job, best)
        self.by_site[kind.site] = NodeReservation(
            kind,
            reason,
            hole.ready_s,
            hole.starts,
            frozenset(each.drone.id for each in hole.holders),
            tuple(each.drone for each in hole.holders if self._leaves_now(job, each, hole.ready_s)),
            isinstance(limits.for_type(kind.key)[1], LimitReached | SiteQuota),
        )
        if hole.starts:
            self.owners.free[kind.site].nodes[hole.node].reserved = True
        return reason

    def _offer(
        self, job: JobClass, kind: DroneType, cost: JobCost, waited: float, hole: Hole
    ) -> _Offer | None:
        """Return what a hole would cost; None if that is more than the wait has, or the hole lasts too long."""
        start = self.context.costs.of_types[kind.key]
        # An idle GPU keeps other jobs waiting even if it has no price.
        per_s = max(start.per_s, kind.gpu_milli / WHOLE_GPU)
        # The room is empty until the new drone takes the job.
        start_s = start.queue_s + start.boot_s + RELEASE_S if hole.starts else 0.0
        spent = per_s * (hole.cost * WHOLE_GPU / kind.gpu_milli + start_s)
        total = spent + (hole.ready_s + start_s) * cost.per_s
        promised = self._promised(job, kind.site, hole.node)
        lasts_s = hole.ready_s
        if promised is not None:  # it is kept, whatever it costs by now
            spent = 0.0
            total = -1.0
            lasts_s += promised.overran_s
        too_long = lasts_s > self.context.snapshot.policy.longest_hole_s
        return None if too_long or spent > waited else _Offer(total, kind, hole, promised)

    def _reason(self, job: JobClass, offer: _Offer) -> NodeReserved:
        """Return the reason of a reservation. A promised time moves only once it has passed."""
        at = self.context.now + offer.hole.ready_s
        overran_s = 0.0
        promised = offer.promised
        if promised is not None and promised.at > self.context.now:
            at = promised.at
            overran_s = promised.overran_s
        elif promised is not None:
            overran_s = promised.overran_s + at - promised.at
        name = self.context.names.of(job.id)
        gpus = job.gpu_milli / WHOLE_GPU
        site = offer.kind.site
        node = offer.hole.node
        return NodeReserved(site, node, job.id, name, gpus, at, overran_s)

    def places_beside(
        self, job: JobClass, kind: DroneType, most: int
    ) -> tuple[int, NodeReserved | None]:
        """Return how many of ``most`` drones of a type may start for a class beside the reservation of the site."""
        found = self.by_site.get(kind.site)
        if found is None or found.reason.class_id == job.id:
            return most, None
        if not found.starts or not shares_hardware(kind, found.kind):
            return most, None
        start = self.context.costs.of_types[kind.key]
        run_s = self._next_run_s(kind.key, round(found.reason.gpus * WHOLE_GPU))
        if start.queue_s + start.boot_s + run_s + RELEASE_S <= found.ready_s:
            return most, None
        places = 0
        if not found.limited and kind.site in self.owners.free:
            nodes = self.owners.free[kind.site].nodes.values()
            others = (node for node in nodes if kind.name in node.types and not node.reserved)
            places = sum(node.places(kind) for node in others)
        return min(most, places), found.reason if places < most else None

    def _may_reserve(self, job: JobClass, site: str) -> bool:
        """Return True if a site has no reservation yet, and none of the plan before for others that still wait."""
        before = self.context.snapshot.reserved.get(site)
        theirs = (
            before is not None and before.class_id != job.id and before.class_id in self._waiting
        )
        return site not in self.by_site and not theirs

    def _promised(self, job: JobClass, site: str, node: str) -> NodeReserved | None:
        """Return the reservation of a node for a class by the plan before, unless a drone starts for the class now."""
        before = self.context.snapshot.reserved.get(site)
        if before is None or (before.class_id, before.node) != (job.id, node):
            return None
        return None if any(start.drone.for_class == job.id for start in self.starts) else before

    @cached_property
    def _waiting(self) -> frozenset[str]:
        return frozenset(job.id for job in self.context.classes if job.waiting)

    def _overtaken_s(self, job: JobClass, compatible: CompatibleTypes) -> float:
        """Return the time in which smaller jobs that the same user submitted later started before a class.

        If no smaller job waits, it is the whole wait of the class.
        """
        waited_s = waiting_time(self.context, job)
        since = self._smaller_since.get((job.gpu_milli, job.owner, compatible.keys), NO_END)
        return waited_s - max(0.0, self.context.now - since)

    @cached_property
    def _smaller_since(self) -> Mapping[tuple[int, str, frozenset[TypeKey]], float]:
        """Since when a smaller job of a user waits that fits one of a set of types, by size, user and set.

        A user may submit tens of thousands of classes: those of one size and set count as one.
        """
        sizes = defaultdict[int, dict[tuple[str, frozenset[TypeKey]], float]](dict)
        for job in self.context.classes:
            if job.waiting and job.waits_since:
                alike = sizes[job.gpu_milli]
                who = job.owner, self.context.compatible[job.id].keys
                alike[who] = min(job.waits_since, alike.get(who, NO_END))
        found = {}
        oldest = defaultdict[str, dict[TypeKey, float]](dict)
        for size, alike in sorted(sizes.items()):
            for owner, types in alike:
                smaller = oldest[owner]
                found[size, owner, types] = min(
                    (smaller[key] for key in types if key in smaller), default=NO_END
                )
            for (owner, types), since in alike.items():
                smaller = oldest[owner]
                for key in types:
                    smaller[key] = min(since, smaller.get(key, NO_END))
        return found

    def _holes(
        self, job: JobClass, kind: DroneType, limits: StartLimits, risk: PreemptionRisk
    ) -> Iterator[Hole]:
        """Yield ways to get room for a new drone of a type, or in an existing one."""
        shared = self._with_several_jobs.get(kind.key, ())
        room = self.owners.free.get(kind.site)
        if not shared and room is None:
            return
        context, (count, why) = self.context, limits.for_type(kind.key)
        banned = (context.breakers.get(scope) for scope in (Scope(kind.site), kind.scope))
        lacks_room = isinstance(
            why, SiteFull | GpusStranded | LimitReached | SiteQuota
        ) and not passes_soon(why)
        if not (count or lacks_room) or any(
            each and each.state is BreakerState.BANNED for each in banned
        ):
            return
        # the pool is to match the probe first
        if context.class_backoffs.probing.get(job.id, {}).get(kind.key):
            return
        if context.validity.views.get(kind.site) is None:
            return
        for drone in shared:
            yield from self._in_drone(job, kind, drone)
        if count or room is None:  # a rule holds the class back where there is room
            return
        holders = self._holders[kind.site]
        most_milli = 0 if isinstance(why, LimitReached | SiteQuota) else kind.gpu_milli
        if isinstance(why, LimitReached):  # what is free beyond the limit does not help
            if why.scope in (kind.key, "all sites") or not why.allowed:
                return
            if why.limit == "max_gpus":
                most_milli = round((why.allowed - why.used) * WHOLE_GPU)

        def free_milli(node: NodeResources) -> int:
            leaving = (
                each.space.gpu_milli for each in holders.get(node.name, ()) if each.drone.is_leaving
            )
            return node.free.gpu_milli + sum(leaving)

        hosts = (node for node in room.nodes.values() if kind.name in node.types)
        nodes = [node for node in hosts if node.whole.gpu_milli >= kind.gpu_milli]
        for node in sorted(nodes, key=lambda node: (-free_milli(node), node.name))[
            :MAX_RESERVABLE_NODES
        ]:
            free = node.free._replace(gpu_milli=max(0, min(most_milli, node.free.gpu_milli)))
            others = [
                each for each in holders.get(node.name, ()) if not self._serves(job, each.drone)
            ]
            if (
                hole := hole_of(Resources.of(kind), free, node.name, others, node.kept)
            ) is not None:
                yield hole

    def _may_use(self, job: JobClass, kind: DroneType, hole: Hole, risk: PreemptionRisk) -> bool:
        """Return True if the rules for starts, or for taking a drone back into service, will let the job use a hole."""
        compatible = self.context.compatible[job.id]
        if not hole.starts:
            return not risk.exposed(job, compatible, kind.site).keys() & {
                each.drone.id for each in hole.holders
            }
        if life_too_short(self.context, kind, job.walltime_s, hole.ready_s) is not None:
            return False
        returned_milli = sum(each.space.gpu_milli for each in hole.holders)
        return risk.allowed(job, compatible, kind, 1, returned_milli)[0] > 0

    def _in_drone(self, job: JobClass, kind: DroneType, drone: Drone) -> Iterator[Hole]:
        """Yield the way to get room in a drone of several GPUs: enough of its jobs end."""
        slot = self.context.slots.get(drone.id)
        returns = drone.leaving in (None, DroneState.DONE, DroneState.UNUSED)
        if slot is None or not 2 <= slot.jobs <= MAX_JOBS_COUNTED or not returns:
            return
        if slot.free_gpu_milli >= min(job.gpu_milli, drone.gpu_milli):
            return
        each_milli = (drone.gpu_milli - slot.free_gpu_milli) / slot.jobs
        ends = -int((slot.free_gpu_milli - job.gpu_milli) // each_milli)
        # a drained drone leaves once it is empty
        if ends < slot.jobs and not drone.job_filter.refuses(job):
            times = _ends_s(self._rest_s(slot), slot.jobs)[:ends]
            ends_at = min(slot.retires_at or NO_END, downtime_at(self.context, drone.site))
            if self.context.now + times[-1] + job.walltime_s > ends_at:
                return
            waits = slot.free_gpu_milli * times[-1] + sum(
                each_milli * (times[-1] - end_s) for end_s in times
            )
            holder = NodeHolder(NO_END, drone, Resources.of(kind))
            yield Hole(waits / WHOLE_GPU, times[-1], drone.node or drone.id, [holder], starts=False)

    def _serves(self, job: JobClass, drone: Drone) -> bool:
        """Return True if a drone can take such jobs without a reservation: it has no job, or one as large."""
        slot = self.context.slots.get(drone.id)
        fits = drone.type in self.context.compatible[job.id].jobs
        suits = fits and not drone.is_leaving and not drone.job_filter.refuses(job)
        return suits and (slot is None or not slot.jobs or slot.job_gpu_milli >= job.gpu_milli)

    @cached_property
    def _with_several_jobs(self) -> Mapping[TypeKey, Sequence[Drone]]:
        """Drones with several jobs by type, in the order of their ids as text."""
        found: dict[TypeKey, list[Drone]] = {}
        slots = self.context.slots
        drones = self.context.drones
        for drone_id in sorted(drone_id for drone_id, slot in slots.items() if slot.jobs > 1):
            drone = drones.get(drone_id)
            if drone is not None and not drone.notice_at:
                found.setdefault(drone.type, []).append(drone)
        return found

    @cached_property
    def _holders(self) -> Mapping[str, Mapping[str, list[NodeHolder]]]:
        """Drones that serve or drain, by site that reports its nodes, and by node.

        A drone that the owner takes back makes no room, nor does a server.
        """
        context = self.context
        spaces = {key: Resources.of(kind) for key, kind in context.types.items()}
        found: dict[str, dict[str, list[NodeHolder]]] = {site: {} for site in self.owners.free}
        for drone in context.drones.values():
            slot = context.slots.get(drone.id)
            site = drone.site
            serves = slot is not None or (drone.is_leaving and drone.started_at)
            if site in found and serves and not (drone.notice_at or drone.service):
                free_in_s = RELEASE_S + (
                    _ends_s(self._rest_s(slot), slot.jobs)[-1] if slot and slot.jobs else 0.0
                )
                holder = NodeHolder(
                    free_in_s, drone, spaces.get(drone.type) or Resources(drone.gpu_milli)
                )
                found[site].setdefault(drone.node, []).append(holder)
        return found

    def _rest_s(self, slot: model.Slot) -> float:
        """Return the expected remaining run time of a slot's job, by the runs of such jobs."""
        estimates = self.context.snapshot.estimates
        runs = RunTimeSums(estimates.runs_of(*run_shape(slot), walltime_s=0.0))
        return runs.rest_s(max(0.0, self.context.now - slot.begun_at) if slot.begun_at else 0.0)

    def _leaves_now(self, job: JobClass, holder: NodeHolder, ready_s: float) -> bool:
        """Return True if a drone should take no further job, as that would end after the last GPU is free."""
        serves = (
            holder.drone.state in (DroneState.IDLE, DroneState.BUSY) and not holder.drone.is_leaving
        )
        return (
            serves
            and holder.free_in_s + self._next_run_s(holder.drone.type, job.gpu_milli) > ready_s
        )

    def _next_run_s(self, key: TypeKey, below_milli: int) -> float:
        """Return a bound of the run times of waiting classes of fewer GPUs that fit a type; infinity if there is none.

        The pool, and not the controller, chooses the next job of a drone.
        """
        found = self._next_runs_s.get((key, below_milli))
        if found is None:
            smaller = (job for job in self.context.classes if job.gpu_milli < below_milli)
            some = (job for job in smaller if key in self.context.compatible[job.id].jobs)
            found = max((self._longest_run_s(job) for job in some), default=NO_END)
            self._next_runs_s[key, below_milli] = found
        return found

    def _longest_run_s(self, job: JobClass) -> float:
        """Return a bound of the run times of a class: its enforced limit, or one by known runs; else infinity."""
        request = job.owner, job.gpu_milli, job.cpus, job.memory_mib
        runs = self.context.snapshot.estimates.runs_of(*request, walltime_s=0.0)
        by_runs = runs[-1] * RUN_MARGIN if len(runs) >= FEWEST_RUNS else NO_END
        return min(by_runs, job.ends_within_s or NO_END)


class _Offer(NamedTuple):
    """A hole of a drone type, with what it costs and the promise of it by the plan before."""

    total: float
    kind: DroneType
    hole: Hole
    promised: NodeReserved | None


def shares_hardware(kind: DroneType, other: DroneType) -> bool:
    """Return True if drones of two types of a site can take the same GPUs."""
    return (kind.gpu_model, kind.vram_mib, kind.capability) == (
        other.gpu_model,
        other.vram_mib,
        other.capability,
    )


def _ends_s(rest_s: float, jobs: int) -> list[float]:
    """Return the expected times at which jobs end, each after ``rest_s`` in the mean (exponential rests)."""
    return list(accumulate(rest_s / left for left in range(min(jobs, MAX_JOBS_COUNTED), 0, -1)))
