"""The owner of a site's hardware comes first: which room his waiting jobs get, and which drones leave for them.

Each job of a claim gets a hole on one node. What is free comes first, then what drones that already leave will free
(whoever told them to: so nothing is counted twice when the site is faster), and only then more drones are asked, the
set on one node that loses least work. A job that would not fit even if every drone left is nothing that we can help.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from provisioner.model import (
    WAITING,
    WHOLE_GPU,
    Drone,
    DroneState,
    OwnerClaimBackoff,
    OwnerDemand,
    RemoteState,
    SitePolicy,
    SiteView,
    TypeKey,
)
from provisioner.planner.floor import Floor, Spot, space_of
from provisioner.planner.patience import after, offer
from provisioner.planner.scene import Scene
from provisioner.planner.space import NOTHING, Space, times
from provisioner.planner.victims import Candidate, Effort, Residents, cheapest_set
from provisioner.reasons import OwnerWaits, PreemptedForOwner, Reason

"""Hold nothing at their site yet."""
_HOLDS = (RemoteState.RUNNING, RemoteState.STOPPED)
"""Have a place on a node."""
_NOT_IN_POOL = (DroneState.BOOTING, DroneState.JOINED)


@dataclass(frozen=True, slots=True)
class Leaver:
    """A drone that is to leave, why, and on whose account."""

    drone: Drone
    reason: Reason
    end: DroneState


@dataclass(slots=True)
class Ground:
    """What is left of the sites that tell node by node, once the owners' waiting jobs have theirs."""

    floors: dict[str, Floor] = field(default_factory=dict)
    leavers: list[Leaver] = field(default_factory=list)
    held: dict[TypeKey, Reason] = field(default_factory=dict)
    """Types of which none is started now: it might take the room that others leave for the owner."""
    claimed: dict[str, Reason] = field(default_factory=dict)
    """By site: the owner's jobs that got room."""
    crowds: dict[str, Crowd] = field(default_factory=dict)
    effort: Effort = field(default_factory=Effort)
    patience: list[OwnerClaimBackoff] = field(default_factory=list)

    @classmethod
    def of(cls, scene: Scene) -> Ground:
        """For every site whose view can be believed."""
        ground = cls()
        by_site: dict[str, list[Drone]] | None = None
        for name, policy in scene.snapshot.policy.sites.items():
            view = scene.trust.site_view(scene.snapshot, name)
            if view is not None and view.nodes and scene.trust.sites.get(name) is None:
                if by_site is None:  # the first site that tells node by node; there may be none
                    by_site = _by_site(scene)
                ground._site(scene, policy, view, by_site.get(name, ()))
        return ground

    def _site(self, scene: Scene, policy: SitePolicy, view: SiteView, drones: Sequence[Drone]) -> None:
        site = policy.site
        quiet_s = scene.now - scene.snapshot.gpu_wanted_at
        floor = self.floors[site] = Floor.of(view.nodes, policy.blocking, quiet_s)
        crowd = self.crowds[site] = Crowd.of(scene, policy, view, floor, drones, self.effort)
        known = scene.snapshot.patience.get(site)
        left = offer(known)
        jobs, milli, standing, narrow = 0, 0, 0, set[str]()
        for claim in sorted(view.claims, key=lambda c: (-c.gpu_milli, -c.cpus, -c.memory_mib, c.since)):
            most = claim.count if left is None else min(claim.count, left - jobs)
            for hole in _holes(claim, most, floor, crowd, ask=policy.preempt_proactively):
                jobs, milli = jobs + hole.jobs, milli + hole.jobs * claim.gpu_milli
                if hole.free_now:
                    standing += hole.jobs
                else:
                    narrow |= hole.spot.types
                self._leave(scene, claim, hole)
        waiting = sum(claim.count for claim in view.claims)
        memory = after(known, site, waiting, standing, jobs - standing, scene.now)
        if memory is not None:
            self.patience.append(memory)
        waits = OwnerWaits(site, jobs, milli / WHOLE_GPU)
        if jobs:
            self.claimed[site] = waits
        self.held |= {k.key: waits for k in scene.types.values() if k.site == site and k.name in narrow}
        self._queued(scene, site, waits, drones)

    def _queued(self, scene: Scene, site: str, waits: OwnerWaits, drones: Iterable[Drone]) -> None:
        """Drones that wait at the site have their room promised, unless they would take, one by one, what is being made
        free for a larger job."""
        roomless: set[TypeKey] = set()  # room only shrinks here: where one found none, the next thousand need not look
        for drone in drones:
            if drone.state not in WAITING:
                continue
            if drone.type in self.held and drone.state is not DroneState.REQUESTED and not drone.goes:
                why = PreemptedForOwner(waits.jobs, 0.0, gpus=waits.gpus)
                self.leavers.append(Leaver(drone, why, DroneState.CANCELLED))
            elif (
                drone.awaits_room
                and drone.type in scene.types
                and drone.type not in roomless
                and self.floors[site].book(scene.types[drone.type], 1)
            ):
                roomless.add(drone.type)

    def _leave(self, scene: Scene, claim: OwnerDemand, hole: Hole) -> None:
        waited_s = max(0.0, scene.now - claim.since)
        for victim in hole.victims:
            gpus = claim.gpu_milli / WHOLE_GPU
            unit = "GPU-seconds" if victim.space.gpu_milli else "CPU-seconds"
            why = PreemptedForOwner(claim.count, waited_s, hole.spot.name, gpus, victim.lost_gpu_s, unit)
            self.leavers.append(Leaver(scene.drones[victim.drone_id], why, DroneState.PREEMPTED))


@dataclass(frozen=True, slots=True)
class Hole:
    """Room on one node for jobs of a claim."""

    spot: Spot
    jobs: int
    victims: tuple[Candidate, ...] = ()
    free_now: bool = False
    """Nobody needs to leave for it."""


@dataclass(slots=True)
class Crowd:
    """Our drones on a site's nodes: who could be asked to leave, and what those hold who leave already."""

    candidates: dict[str, Residents] = field(default_factory=dict)
    coming: dict[str, Space] = field(default_factory=dict)
    """By node: will be free within the grace."""
    effort: Effort = field(default_factory=Effort)

    @classmethod
    def of(
        cls, scene: Scene, policy: SitePolicy, view: SiteView, floor: Floor, drones: Iterable[Drone], effort: Effort
    ) -> Crowd:
        crowd, there = cls(effort=effort), dict[str, list[Candidate]]()
        if not view.claims and not policy.blocking:  # nobody will be asked to leave, nor is anything kept
            return crowd
        now, spaces = scene.now, {key: space_of(kind) for key, kind in scene.types.items() if kind.site == policy.site}
        for drone in drones:
            remote = view.drones.get(drone.id)
            if remote is None or remote.node not in floor.spots or remote.state not in _HOLDS:
                continue
            space = spaces.get(drone.type) or Space(drone.gpu_milli)
            told_at = drone.asked_at or drone.notice_at or drone.since
            if _leaves(drone) and now - told_at <= policy.grace_s + policy.stopping_s:
                crowd.coming[remote.node] = crowd.coming.get(remote.node, NOTHING).plus(space)
            elif drone.state is not DroneState.STOPPING and _worked_s(drone, now) >= policy.min_runtime_s:
                candidate = Candidate(drone.id, space, lost_gpu_s(drone, now), _rank(drone))
                there.setdefault(remote.node, []).append(candidate)
        crowd.candidates = {node: Residents.of(candidates) for node, candidates in there.items()}
        return crowd

    def of_node(self, node: str) -> Residents:
        return self.candidates.get(node) or Residents()

    def room(self, spot: Spot) -> Space:
        """What is free there, or soon will be."""
        return spot.free.plus(self.coming.get(spot.name, NOTHING))

    def gone(self, node: str, victims: Sequence[Candidate]) -> None:
        """They leave: what they hold is coming."""
        self.candidates[node].remove(victims)
        for victim in victims:
            self.coming[node] = self.coming.get(node, NOTHING).plus(victim.space)

    def takes(self, spot: Spot, need: Space, count: int = 1) -> None:
        """Promise ``need``: out of what is free first, then out of what is coming."""
        need = NOTHING.plus(spot.with_share(need), count)
        from_free = Space(*(min(n, max(0, f)) for n, f in zip(need, spot.free, strict=True)))
        spot.free = spot.free.plus(from_free, -1)
        self.coming[spot.name] = self.coming.get(spot.name, NOTHING).plus(need.plus(from_free, -1), -1)


def _holes(claim: OwnerDemand, most: int, floor: Floor, crowd: Crowd, *, ask: bool) -> Iterator[Hole]:
    """Room for up to ``most`` jobs of a claim, promised: what is free now, else what is coming, else the cheapest set
    of drones on one node, job by job."""
    need = need_of(claim)
    spots = [floor.spots[n] for n in claim.nodes if n in floor.spots] if claim.nodes else [*floor.spots.values()]
    # By how little is left over: what was made for one job is found by that job, and nodes stay whole.
    spots.sort(key=lambda s: (_left_over(need, crowd.room(s), s.whole), s.name))
    for free_now in (True, False):
        for spot in spots:
            room = spot.free if free_now else crowd.room(spot)
            jobs = min(most, times(need, room, spot.claimable))
            if jobs > 0:
                most -= jobs
                crowd.takes(spot, need, jobs)
                yield Hole(spot, jobs, free_now=free_now)
    offers: dict[str, _Offer] = {}
    unknown = dict.fromkeys(spot.name for spot in spots)
    while ask and most > 0:
        for name in unknown:
            spot = floor.spots[name]
            victims = cheapest_set(need, crowd.room(spot), spot.claimable, crowd.of_node(name), crowd.effort)
            if victims:
                offers[name] = _Offer(sum(victim.lost_gpu_s for victim in victims), len(victims), name, victims)
        if not offers:
            return
        best = min(offers.values())
        spot = floor.spots[best.node]
        most -= 1
        crowd.gone(best.node, best.victims)
        crowd.takes(spot, need)
        del offers[best.node]
        unknown = {best.node: None}
        yield Hole(spot, 1, best.victims)


class _Offer(NamedTuple):
    """The cheapest set of drones on one node, in the order of preference between nodes."""

    lost_gpu_s: float
    drones: int
    node: str
    victims: tuple[Candidate, ...]


def _by_site(scene: Scene) -> dict[str, list[Drone]]:
    drones: dict[str, list[Drone]] = {}
    for drone in scene.drones.values():
        drones.setdefault(drone.site, []).append(drone)
    return drones


def _left_over(need: Space, room: Space, whole: Space) -> float:
    """What would be left of a node's room, in shares of the node, over GPUs, CPUs and memory."""
    return sum((r - n) / w for n, r, w in zip(need[:3], room[:3], whole[:3], strict=True) if w)


def need_of(claim: OwnerDemand) -> Space:
    """What one job of a claim takes of a node."""
    return Space(claim.gpu_milli, claim.cpus, claim.memory_mib, claim.disk_mib)


def _leaves(drone: Drone) -> bool:
    """Whether its room will be free soon, without our doing. One that drains while it still has jobs may take a day."""
    if drone.state is DroneState.STOPPING or drone.notice_at:
        return True
    return drone.state is DroneState.DRAINING and not drone.jobs


def lost_gpu_s(drone: Drone, now: float) -> float:
    """GPU-seconds (of a CPU drone: CPU-seconds) of work that are lost if a drone ends now."""
    if not drone.jobs:
        return 0.0
    if drone.work_at:
        return drone.work_gpu_milli / WHOLE_GPU * max(0.0, now - drone.work_at)
    return (drone.gpu_milli or WHOLE_GPU) / WHOLE_GPU * max(0.0, now - drone.since)


def _worked_s(drone: Drone, now: float) -> float:
    """For how long it has worked since its first job; endless if it has none to lose."""
    return now - drone.busy_at if drone.jobs and drone.busy_at else float("inf")


def _rank(drone: Drone) -> tuple[int, float]:
    tier = 0 if drone.state in _NOT_IN_POOL else 2 if drone.jobs else 1
    return tier, -drone.started_at
