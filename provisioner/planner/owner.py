"""The owner of a site's hardware: room for their waiting jobs, and the drones that leave for them.

Each job of a claim gets room on one node: first what is free, then what drones that already leave
will free, for any reason. Only then are more drones asked: the set on one node that loses least
work. A job that would not fit even if every drone left cannot be helped.

A queue may wait for other reasons than drones: a limit on running jobs, a quota, a licence. So room
that stands unused is given back, except for a few jobs that show when things change
(:func:`next_backoff`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from provisioner import model, reasons
from provisioner.keys import type_name
from provisioner.model import (
    WHOLE_GPU,
    Drone,
    DroneState,
    DroneType,
    Node,
    OwnerClaimBackoff,
    OwnerDemand,
    RemoteState,
    Reserve,
    SitePolicy,
    SiteView,
    TypeKey,
)
from provisioner.planner.context import PlanningContext
from provisioner.planner.matching import UNKNOWN_DISK_MIB, count_fits
from provisioner.planner.victims import NodeCandidates, VictimCandidate, cheapest_set
from provisioner.reasons import Reason
from provisioner.resources import NO_RESOURCES, Resources
from provisioner.values import define, factory, frozen


@define
class NodeResources:
    """Resources of one node. Mutable, local to one plan."""

    name: str
    types: frozenset[str]
    whole: Resources
    free: Resources
    kept: Resources
    """Reserve per free GPU."""
    exclusive: tuple[str, ...]
    """Names of the types of which each drone gets the node as a whole."""
    idle: Resources
    """Resources that were free before this plan."""
    coming: Resources = NO_RESOURCES
    """Resources that drones which leave will free within the grace period, less what is promised of them."""
    candidates: NodeCandidates = factory(NodeCandidates)
    """Drones that may be asked to leave."""
    reserved: bool = False
    """A job of several GPUs is to get room here: other drones are promised room elsewhere first."""

    @property
    def soon(self) -> Resources:
        """Resources that are free, or soon will be."""
        return self.free.plus(self.coming)

    def with_share(self, each: Resources) -> Resources:
        """Return ``each``, or the reserve of its GPUs here if that is more."""
        cpus, memory, disk = (keep * each.gpu_milli // WHOLE_GPU for keep in self.kept[1:])
        return Resources(
            each.gpu_milli,
            max(each.cpus, cpus),
            max(each.memory_mib, memory),
            max(each.disk_mib, disk),
        )

    def places(self, kind: DroneType) -> int:
        """Return how many drones of a type could start here right now."""
        most = count_fits(Resources.of(kind), self.free, self.kept)
        return min(most, self.free == self.idle) if kind.name in self.exclusive else most

    def promise(self, each: Resources, count: int = 1) -> None:
        """Promise resources: of what is free first, then of what is coming."""
        need = NO_RESOURCES.plus(self.with_share(each), count)
        from_free = Resources(*(min(n, max(0, f)) for n, f in zip(need, self.free, strict=True)))
        self.free = self.free.plus(from_free, -1)
        self.coming = self.coming.plus(need.plus(from_free, -1), -1)

    def evict(self, victims: Sequence[VictimCandidate]) -> None:
        self.candidates.remove(victims)
        for victim in victims:
            self.coming = self.coming.plus(victim.space)


@define
class FreeResources:
    """Free resources of a site by node, less what is promised, under blocking."""

    nodes: dict[str, NodeResources] = factory(dict)

    @classmethod
    def of(cls, nodes: Iterable[Node], blocking: Iterable[Reserve]) -> FreeResources:
        """Collect the nodes."""
        rules = tuple(blocking)
        return cls(
            {node.name: _node_resources(node, reserve_of(node.name, rules)) for node in nodes}
        )

    def _hosts(self, kind: DroneType) -> Iterator[NodeResources]:
        return (node_room for node_room in self.nodes.values() if kind.name in node_room.types)

    def count(self, kind: DroneType) -> int:
        """Return how many drones of a type could start right now."""
        return sum(node_room.places(kind) for node_room in self._hosts(kind))

    def unblocked_gpus(self, kind: DroneType) -> float:
        """Return the free GPUs of the nodes that would have room for a drone of the type if nothing were reserved."""
        hosts = (
            node_room.free
            for node_room in self._hosts(kind)
            if count_fits(Resources.of(kind), node_room.free)
        )
        return sum(free.gpu_milli for free in hosts) / WHOLE_GPU

    def book(self, kind: DroneType, count: int) -> int:
        """Promise room to ``count`` drones, the fullest nodes first, reserved ones last; return how many find none."""
        each = Resources.of(kind)
        for node_room in sorted(
            self._hosts(kind), key=lambda s: (s.reserved, s.free.gpu_milli, s.free.cpus, s.name)
        ):
            here = min(count, node_room.places(kind))
            if here > 0:
                # The reserve of a GPU stays until it is really taken: a CPU drone might come first.
                left = node_room.free.plus(node_room.with_share(each), -here)
                node_room.free = NO_RESOURCES if kind.name in node_room.exclusive else left
                count -= here
            if count <= 0:
                break
        return count


def reserve_of(node: str, rules: Iterable[Reserve]) -> Reserve | None:
    """Return the first reserve whose patterns match a node."""
    return next(
        (rule for rule in rules if any(fnmatchcase(node, each) for each in rule.nodes)), None
    )


def _node_resources(node: Node, rule: Reserve | None) -> NodeResources:
    has_disk = node.disk_mib > 0
    kept = (
        Resources(0, rule.cpus, rule.memory_mib, rule.disk_mib if has_disk else 0)
        if rule
        else NO_RESOURCES
    )
    disk_mib, free_disk_mib = (
        (node.disk_mib, node.free_disk_mib) if has_disk else (UNKNOWN_DISK_MIB, UNKNOWN_DISK_MIB)
    )
    free = Resources(node.free_gpu_milli, node.free_cpus, node.free_memory_mib, free_disk_mib)
    return NodeResources(
        node.name,
        frozenset(node.types),
        Resources(node.gpu_milli, node.cpus, node.memory_mib, disk_mib),
        free,
        kept,
        node.exclusive,
        free,
    )


CLAIM_BACKOFF_AFTER_S = 600.0
"""Longest time that free room stands unused for the owner: ten negotiation cycles."""
MIN_OFFERED_JOBS = 2
"""Jobs that get room even after that."""


def next_backoff(
    known: OwnerClaimBackoff | None, site: str, waiting: int, standing: int, coming: int, now: float
) -> OwnerClaimBackoff | None:
    """Return the back-off to remember after this tick, or None once nothing waits.

    Of the ``waiting`` jobs, room is free for ``standing`` and is being made for ``coming``.
    """
    if not waiting:
        return None
    known = known or OwnerClaimBackoff(site)
    if not standing:
        # All that was offered has been taken: more next time.
        grown = 2 * known.offer if known.offer and not coming else known.offer
        return replace(known, standing=0, since=0.0, offer=0 if grown >= waiting else grown)
    if not known.since or standing < known.standing:
        return replace(known, standing=standing, since=now)
    if now - known.since > CLAIM_BACKOFF_AFTER_S:
        return replace(known, standing=min(standing, MIN_OFFERED_JOBS), offer=MIN_OFFERED_JOBS)
    return replace(known, standing=standing)


_HOLDS = (RemoteState.RUNNING, RemoteState.STOPPED, RemoteState.PENDING)
"""States of drones that hold a place on the node that their site names; it names none for one in a queue."""


@frozen
class PreemptionOrder:
    """A drone that is to leave for somebody else, and the reason."""

    drone: Drone
    reason: Reason

    @property
    def end(self) -> DroneState:
        """Return its final state."""
        return DroneState.CANCELLED if self.drone.state in model.WAITING else DroneState.PREEMPTED


@define
class OwnerReservations:
    """Free resources of the sites that report node by node, after the owners' waiting jobs have theirs."""

    free: dict[str, FreeResources] = factory(dict)
    preemptions: list[PreemptionOrder] = factory(list)
    held: dict[TypeKey, Reason] = factory(dict)
    """Types of which none is started now: it might take room that others leave for the owner."""
    claimed: dict[str, Reason] = factory(dict)
    """By site: the owner's jobs that got room."""
    patience: list[OwnerClaimBackoff] = factory(list)

    @classmethod
    def of(cls, context: PlanningContext) -> OwnerReservations:
        """Reserve room at every site with a valid view."""
        reservations = cls()
        doubts = context.validity.sites
        views = {n: v for n, v in context.validity.views.items() if v.nodes and not doubts[n]}
        drones: dict[str, list[Drone]] = {name: [] for name in views}
        for drone in context.drones.values() if views else ():
            if drone.site in drones:
                drones[drone.site].append(drone)
        for name, view in views.items():
            reservations._site(context, context.snapshot.policy.sites[name], view, drones[name])
        return reservations

    def _site(
        self,
        context: PlanningContext,
        policy: SitePolicy,
        view: SiteView,
        drones: Sequence[Drone],
    ) -> None:
        site = policy.site
        free_nodes = self.free[site] = FreeResources.of(view.nodes, policy.blocking)
        # else nobody will be asked to leave, nor is anything kept
        if view.claims or policy.blocking:
            _add_drones(context, policy, view, free_nodes, drones)
        known = context.snapshot.patience.get(site)
        left = known.offer if known and known.offer else None  # None: all
        jobs = 0
        milli = 0
        standing = 0
        narrow = set[str]()
        for claim in sorted(
            view.claims, key=lambda c: (-c.gpu_milli, -c.cpus, -c.memory_mib, c.since)
        ):
            most = claim.count if left is None else min(claim.count, left - jobs)
            for hole in _make_room(claim, most, free_nodes, ask=policy.preempt_proactively):
                jobs += hole.jobs
                milli += hole.jobs * claim.gpu_milli
                if hole.free_now:
                    standing += hole.jobs
                else:
                    narrow |= hole.node_room.types
                self._leave(context, claim, hole)
        waiting = sum(claim.count for claim in view.claims)
        memory = next_backoff(known, site, waiting, standing, jobs - standing, context.now)
        if memory is not None:
            self.patience.append(memory)
        waits = reasons.OwnerWaits(site, jobs, milli / WHOLE_GPU)
        if jobs:
            self.claimed[site] = waits
        self.held |= {
            k.key: waits for k in context.types.values() if k.site == site and k.name in narrow
        }
        self._queued(context, site, waits, drones)

    def _queued(
        self,
        context: PlanningContext,
        site: str,
        waits: reasons.OwnerWaits,
        drones: Iterable[Drone],
    ) -> None:
        """Promise room to drones that wait at the site; cancel those that would take what is made for a larger job."""
        # Room only shrinks here: if one drone of a type finds none, the next thousand need not try.
        lacking_room: set[TypeKey] = set()
        for drone in drones:
            if not drone.awaits_room:
                continue
            if (
                drone.type in self.held
                and drone.state is not DroneState.REQUESTED
                and not drone.is_leaving
            ):
                why = reasons.PreemptedForOwner(waits.jobs, 0.0, gpus=waits.gpus)
                self.preemptions.append(PreemptionOrder(drone, why))
            elif (
                drone.type in context.types
                and drone.type not in lacking_room
                and self.free[site].book(context.types[drone.type], 1)
            ):
                lacking_room.add(drone.type)

    def _leave(self, context: PlanningContext, claim: OwnerDemand, hole: JobRoom) -> None:
        waited_s = max(0.0, context.now - claim.since)
        for victim in hole.victims:
            gpus = claim.gpu_milli / WHOLE_GPU
            unit = "GPU-seconds" if victim.space.gpu_milli else "CPU-seconds"
            why = reasons.PreemptedForOwner(
                claim.count, waited_s, hole.node_room.name, gpus, victim.lost_gpu_s, unit
            )
            self.preemptions.append(PreemptionOrder(context.drones[victim.drone_id], why))


@frozen
class JobRoom:
    """Room on one node for jobs of a claim."""

    node_room: NodeResources
    jobs: int
    victims: tuple[VictimCandidate, ...] = ()
    free_now: bool = False
    """No drone needs to leave for it."""


def _add_drones(
    context: PlanningContext,
    policy: SitePolicy,
    view: SiteView,
    free_nodes: FreeResources,
    drones: Iterable[Drone],
) -> None:
    """Add our drones to their nodes: those that could be asked to leave, and the room of those that already leave."""
    now = context.now
    candidates = dict[str, list[VictimCandidate]]()
    spaces = {
        key: Resources.of(kind) for key, kind in context.types.items() if kind.site == policy.site
    }
    for drone in drones:
        remote = view.drones.get(drone.id)
        node_room = (
            free_nodes.nodes.get(remote.node)
            if remote is not None and remote.state in _HOLDS
            else None
        )
        if node_room is None:
            continue
        space = spaces.get(drone.type) or Resources(drone.gpu_milli)
        if type_name(drone.type) in node_room.exclusive:
            space = node_room.whole
        asked_at = drone.asked_at or drone.notice_at or drone.since
        ran_enough = (
            not drone.jobs or not drone.busy_at or now - drone.busy_at >= policy.min_runtime_s
        )
        # a drain with jobs may take a day
        drained = drone.state is DroneState.DRAINING and not drone.jobs
        vacates = drained or drone.state is DroneState.STOPPING or drone.notice_at
        if vacates and now - asked_at <= policy.grace_s + policy.stopping_s:
            node_room.coming = node_room.coming.plus(space)
        elif drone.state is not DroneState.STOPPING and ran_enough:
            stage = 0 if drone.state in model.ON_THE_WAY else 2 if drone.jobs else 1
            rank = stage, -drone.started_at
            candidate = VictimCandidate(drone.id, space, _loss_gpu_s(context, drone), rank)
            candidates.setdefault(node_room.name, []).append(candidate)
    for name, some in candidates.items():
        free_nodes.nodes[name].candidates = NodeCandidates.of(some)


def _make_room(
    claim: OwnerDemand,
    most: int,
    free_nodes: FreeResources,
    *,
    ask: bool,
) -> Iterator[JobRoom]:
    """Yield room for up to ``most`` jobs of a claim: free now, then coming, then by the cheapest set of drones."""
    need = Resources.of(claim)
    nodes = [free_nodes.nodes[n] for n in claim.nodes or free_nodes.nodes if n in free_nodes.nodes]

    # By how little is left over: what was made for one job is found by that job, and nodes stay
    # whole.
    def unused_share(node_room: NodeResources) -> float:
        amounts = zip(need[:3], node_room.soon[:3], node_room.whole[:3], strict=True)
        return sum((there - asked) / whole for asked, there, whole in amounts if whole)

    nodes.sort(key=lambda node_room: (unused_share(node_room), node_room.name))
    for free_now in (True, False):
        for node_room in nodes:
            room = node_room.free if free_now else node_room.soon
            jobs = min(most, count_fits(need, room, node_room.kept))
            if jobs > 0:
                most -= jobs
                node_room.promise(need, jobs)
                yield JobRoom(node_room, jobs, free_now=free_now)
    # By node: lost work, number of drones, node, drones. Offers compare in the order of preference.
    offers: dict[str, tuple[float, int, str, tuple[VictimCandidate, ...]]] = {}
    unknown = dict.fromkeys(node_room.name for node_room in nodes)
    while ask and most > 0:
        for name in unknown:
            node_room = free_nodes.nodes[name]
            victims = cheapest_set(need, node_room.soon, node_room.kept, node_room.candidates)
            if victims:
                offers[name] = (
                    sum(victim.lost_gpu_s for victim in victims),
                    len(victims),
                    name,
                    victims,
                )
        if not offers:
            return
        _, _, best, victims = min(offers.values())
        most -= 1
        free_nodes.nodes[best].evict(victims)
        free_nodes.nodes[best].promise(need)
        del offers[best]
        unknown = {best: None}
        yield JobRoom(free_nodes.nodes[best], 1, victims)


def lost_work_gpu_s(drone: Drone, now: float) -> float:
    """Return the GPU-seconds (of a CPU drone: CPU-seconds) of work that are lost if a drone ends now."""
    if not drone.jobs:
        return 0.0
    if drone.work_at:
        return drone.work_gpu_milli / WHOLE_GPU * max(0.0, now - drone.work_at)
    return (drone.gpu_milli or WHOLE_GPU) / WHOLE_GPU * max(0.0, now - drone.since)


def _loss_gpu_s(context: PlanningContext, drone: Drone) -> float:
    """Return the work that is lost if a drone ends now, or the cost of the wait of a server's clients for another."""
    if not drone.service:
        return lost_work_gpu_s(drone, context.now)
    cost = context.costs.of_types.get(drone.type)
    if cost is None or not drone.joined_at:
        return 0.0
    state = context.snapshot.service_states.get(drone.service)
    announced = state.announced / max(1, state.wanted) if state is not None else 0.0
    start_s = cost.queue_s + cost.boot_s
    return max(announced, drone.jobs) * start_s * context.snapshot.policy.waiting_cost


def reclaim_reserve(
    context: PlanningContext, reservations: OwnerReservations, lacking_room: Mapping[TypeKey, int]
) -> list[PreemptionOrder]:
    """Return the CPU drones that leave the reserve of GPUs to GPU drones, those that lose least, node by node.

    ``lacking_room`` is the number of drones by GPU drone type that are lacking only because no node
    has room.
    """
    preemptions: list[PreemptionOrder] = []
    for key, lack in lacking_room.items():
        kind = context.types[key]
        if kind.site not in reservations.free or not kind.gpu_milli or key in reservations.held:
            continue
        need = Resources.of(kind)
        for node_room in reservations.free[kind.site].nodes.values():
            while lack > 0 and node_room.kept != NO_RESOURCES and kind.name in node_room.types:
                movable = node_room.candidates.only(lambda space: not space.gpu_milli)
                found = cheapest_set(need, node_room.soon, NO_RESOURCES, movable)
                if not found:
                    break
                why = reasons.ReserveReclaimed(node_room.name)
                preemptions += [PreemptionOrder(context.drones[c.drone_id], why) for c in found]
                node_room.evict(found)
                node_room.promise(need)
                lack -= 1
    return preemptions
