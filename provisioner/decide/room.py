"""How many more drones may be started: every limit, every breaker, and what is free at the sites."""

from __future__ import annotations

from dataclasses import dataclass, field

from provisioner.decide.lifetime import ENDLESS, too_short
from provisioner.decide.owner import Ground
from provisioner.decide.scene import Scene
from provisioner.model import (
    WHOLE_GPU,
    BreakerState,
    DroneState,
    DroneType,
    RemoteState,
    ReserveWhen,
    TypeKey,
)
from provisioner.reasons import (
    BackingOff,
    LimitReached,
    Probing,
    Reason,
    ReserveKept,
    SiteBlocks,
    SiteDisabled,
    SiteFull,
    SiteQuota,
)

PENDING = (DroneState.REQUESTED, DroneState.SUBMITTED, DroneState.QUEUED, DroneState.BOOTING)


@dataclass(slots=True)
class Room:
    """How many more drones each limit allows. Counted on our own record, strays included: asked for and not gone."""

    scene: Scene
    ground: Ground
    drones: dict[str, int] = field(default_factory=dict)
    """By site, by type key, and ``""`` for all."""
    gpu_milli: dict[str, int] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)
    started: dict[str, int] = field(default_factory=dict)
    probes: dict[str, int] = field(default_factory=dict)
    """Of the pending ones, those asked for since their site or type is probed: what queued there before is no probe."""
    free: dict[str, dict[str, float]] = field(default_factory=dict)
    """By site and type name: what a site shows as free that does not tell node by node, less what is asked of it."""
    quota: dict[str, dict[str, float]] = field(default_factory=dict)
    """By site and type name: what a site's quota allows besides what is asked of it."""
    counted: dict[TypeKey, int] = field(default_factory=dict)
    """What nodes have free, by type, until something more is promised there."""
    blocked: dict[TypeKey, Reason] = field(default_factory=dict)
    """Types of which one waits at its site for what others would have to wait for too."""
    spent: dict[TypeKey, Reason | None] = field(default_factory=dict)
    """Types of which no more may be started, and why."""

    @classmethod
    def of(cls, scene: Scene, ground: Ground) -> Room:
        """Count everything once."""
        room = cls(scene, ground)
        probing = {b.scope: b.since for b in scene.breakers.values() if b.state is BreakerState.PROBING}
        for drone in scene.drones.values():
            room._count(drone.type, drone.site, 1, drone.gpu_milli)
            if drone.state in PENDING:
                remote = scene.remote(drone)
                if remote is not None and remote.blocked is not None and remote.state is RemoteState.PENDING:
                    room.blocked[drone.type] = SiteBlocks(drone.type, remote.blocked.value, remote.reason)
                room._add(room.pending, 1, drone.site, drone.type)
                asked = [s for s in (drone.site, str(drone.type)) if drone.requested_at >= probing.get(s, ENDLESS)]
                room._add(room.probes, 1, *asked)
        for site, count in scene.strays.items():
            biggest = max((t.gpu_milli for t in scene.snapshot.types if t.site == site), default=0)
            room._count("", site, count, count * biggest)
        for site, reading in scene.snapshot.sites.items():
            if reading.view is not None and reading.view.free is not None and not reading.view.nodes:
                room.free[site] = {k: float(v) for k, v in reading.view.free.items()}
            if reading.view is not None and reading.view.quota is not None:
                room.quota[site] = {k: float(v) for k, v in reading.view.quota.items()}
        for drone in scene.drones.values():
            # The site's count of free places cannot know yet of an order whose outcome is unknown.
            if drone.state is DroneState.REQUESTED:
                room._occupy(drone.type, 1)
        return room

    @staticmethod
    def _add(counts: dict[str, int], amount: int, *keys: str) -> None:
        for key in keys:
            counts[key] = counts.get(key, 0) + amount

    def _count(self, kind: str, site: str, count: int, gpu_milli: int) -> None:
        self._add(self.drones, count, *filter(None, (kind,)), site, "")
        self._add(self.gpu_milli, gpu_milli, site, "")

    def _occupy(self, key: TypeKey, count: int) -> None:
        """The types of a site share its hardware, and its quota: what one takes, all others lose in proportion. Where
        its nodes tell better, the hardware is booked there."""
        site, _, name = key.partition("/")
        for left in (self.free.get(site, {}), self.quota.get(site, {})):
            mine = left.get(name, 0.0)
            share = min(1.0, count / mine) if mine > 0 else 1.0
            for other in left:
                left[other] = max(0.0, left[other] - (count if other == name else share * left[other]))

    def start(self, kind: DroneType, count: int) -> None:
        """Book ``count`` starts."""
        self._count(kind.key, kind.site, count, count * kind.gpu_milli)
        self._add(self.pending, count, kind.site, kind.key)
        self._add(self.probes, count, kind.site, kind.key)
        self._add(self.started, count, kind.site, kind.key)
        if kind.site in self.ground.floors:
            self.ground.floors[kind.site].book(kind, count)
            self.counted = {key: n for key, n in self.counted.items() if key.partition("/")[0] != kind.site}
        self._occupy(kind.key, count)

    def free_for(self, kind: DroneType) -> int | None:
        """How many could start right now; None where the site does not tell."""
        if kind.site in self.ground.floors:
            if kind.key not in self.counted:
                self.counted[kind.key] = self.ground.floors[kind.site].count(kind)
            return self.counted[kind.key]
        if kind.site in self.free:
            return int(self.free[kind.site].get(kind.name, 0.0))
        return None

    def on_reserve(self, kind: DroneType) -> bool:
        """Whether what is kept for GPUs is now released to this type."""
        site = self.scene.snapshot.policy.sites.get(kind.site)
        quiet_s = self.scene.now - self.scene.snapshot.gpu_wanted_at
        rules = site.blocking if site and not kind.gpu_milli else ()
        return any(r.when is ReserveWhen.GPU_DEMAND and quiet_s >= r.release_after_s for r in rules)

    def for_type(self, kind: DroneType) -> tuple[int, Reason | None]:
        """How many of a type may be started now, and which limit says so. Room only shrinks: none left is for good."""
        key = kind.key
        if key in self.spent:
            return 0, self.spent[key]
        count, reason = self._for_type(kind)
        if count == 0:
            self.spent[key] = reason
        return count, reason

    def _for_type(self, kind: DroneType) -> tuple[int, Reason | None]:
        policy = self.scene.snapshot.policy
        site = policy.sites.get(kind.site)
        if site is None or not site.enabled:
            return 0, SiteDisabled(kind.site)
        doubt = self.scene.trust.sites.get(kind.site) or self.ground.held.get(kind.key)
        doubt = doubt or self.blocked.get(kind.key) or too_short(self.scene, kind)
        if doubt is not None:
            return 0, doubt
        key, gpu_milli = kind.key, kind.gpu_milli
        caps = (
            ("max_starts_per_tick", kind.site, self.started, site.max_starts_per_tick, 1),
            ("max_pending", kind.site, self.pending, site.max_pending, 1),
            ("max_drones", key, self.drones, kind.max_drones, 1),
            ("max_drones", kind.site, self.drones, site.max_drones, 1),
            ("max_drones", "", self.drones, policy.max_drones, 1),
            ("max_gpus", kind.site, self.gpu_milli, site.max_gpu_milli, gpu_milli),
            ("max_gpus", "", self.gpu_milli, policy.max_gpu_milli, gpu_milli),
        )
        found: tuple[int, Reason | None] = (1 << 30, None)
        for limit, scope, counts, most, each in caps:
            if most is not None:
                used = counts.get(scope, 0)
                count = max(0, (most - used) // each) if each else found[0]
                if count < found[0]:
                    unit = WHOLE_GPU if limit == "max_gpus" else 1
                    found = count, LimitReached(limit, scope or "all sites", used / unit, most / unit)
        free = None if site.queue_when_full else self.free_for(kind)
        if free is not None and free < found[0]:
            found = free, self._why_full(kind)
        quota = self.quota.get(kind.site, {}).get(kind.name)
        if quota is not None and int(quota) < found[0]:
            found = int(quota), SiteQuota(kind.key)
        for breaker in (self._breaker(kind.site), self._breaker(key)):
            if breaker is not None and breaker[0] < found[0]:
                found = breaker
        return found

    def _why_full(self, kind: DroneType) -> Reason:
        if kind.site in self.ground.floors and not kind.gpu_milli:
            unblocked, gpu_milli = self.ground.floors[kind.site].count_unblocked(kind)
            if unblocked and gpu_milli:
                return ReserveKept(kind.key, gpu_milli / WHOLE_GPU)
        return self.ground.claimed.get(kind.site) or SiteFull(kind.key)

    def _breaker(self, scope: str | TypeKey) -> tuple[int, Reason | None] | None:
        breaker = self.scene.breakers.get(scope)
        if breaker is None:
            return None
        match breaker.state:
            case BreakerState.ACTIVE:
                return None
            case BreakerState.DEGRADED:
                return max(0, 1 - self.started.get(scope, 0)), Probing(scope)
            case BreakerState.PROBING:
                return max(0, 1 - self.probes.get(scope, 0)), Probing(scope)
            case BreakerState.BANNED:
                fault = breaker.fault
                kind, text = (fault.kind.value, fault.message) if fault else ("unknown", "")
                return 0, BackingOff(scope, breaker.until, kind, text)
