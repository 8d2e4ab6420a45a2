"""How many more drones may be started: every limit, every breaker, and what is free at the sites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from provisioner.model import (
    PENDING,
    WHOLE_GPU,
    BreakerState,
    DroneState,
    DroneType,
    RemoteState,
    ReserveWhen,
    SitePolicy,
    TypeKey,
)
from provisioner.planner.lifetime import ENDLESS, too_short
from provisioner.planner.owner import Ground
from provisioner.planner.scene import Scene
from provisioner.planner.stranded import stranded
from provisioner.reasons import (
    BackingOff,
    LimitReached,
    Probing,
    Reason,
    ReserveKept,
    SiteDisabled,
    SiteFull,
    SiteQuota,
    StartBlocked,
)

_Cap = tuple[str, str, Mapping[str, int], int | None, int]
"""A limit's name, of what it is one, what is counted there, how much is allowed, and how much one drone takes."""


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
    free_milli: dict[str, int] = field(default_factory=dict)
    """By site: the same in GPUs of the whole site, where it tells."""
    quota: dict[str, dict[str, float]] = field(default_factory=dict)
    """By site and type name: what a site's quota allows besides what is asked of it."""
    counted: dict[TypeKey, int] = field(default_factory=dict)
    """What nodes have free, by type, until something more is promised there."""
    blocked: dict[TypeKey, Reason] = field(default_factory=dict)
    """Types of which one waits at its site for what others would have to wait for too."""
    spent: dict[TypeKey, Reason | None] = field(default_factory=dict)
    """Types of which no more may be started, and why."""
    open: set[TypeKey] = field(default_factory=set)
    """All other types, as far as is known yet."""

    @classmethod
    def of(cls, scene: Scene, ground: Ground) -> Room:
        """Count everything once."""
        room = cls(scene, ground, open=set(scene.types))
        for key, count in scene.settled.items():
            kind = scene.types[key]
            room._count(key, kind.site, count, count * kind.gpu_milli)
        room._count_unsettled()
        for site, count in scene.strays.items():
            if count:
                biggest = max((t.gpu_milli for t in scene.snapshot.types if t.site == site), default=0)
                room._count("", site, count, count * biggest)
        for site, reading in scene.snapshot.sites.items():
            if reading.view is not None and reading.view.free is not None and not reading.view.nodes:
                room.free[site] = {k: float(v) for k, v in reading.view.free.items()}
                if reading.view.free_gpu_milli is not None:
                    room.free_milli[site] = reading.view.free_gpu_milli
            if reading.view is not None and reading.view.quota is not None:
                room.quota[site] = {k: float(v) for k, v in reading.view.quota.items()}
        for drone in scene.unsettled.values():
            if drone.awaits_room:
                room._promise(drone.type, 1)
            # The quota that a site tells cannot know yet of an order whose outcome is unknown.
            if drone.state is DroneState.REQUESTED:
                room._grant(drone.type, 1)
        return room

    def _count_unsettled(self) -> None:
        probing = {b.scope: b.since for b in self.scene.breakers.values() if b.state is BreakerState.PROBING}
        sizes = Counter((drone.type, drone.gpu_milli) for drone in self.scene.unsettled.values())
        for (key, gpu_milli), count in sizes.items():
            self._count(key, key.partition("/")[0], count, count * gpu_milli)
        for drone in self.scene.unsettled.values():
            if drone.state not in PENDING:
                continue
            key, site = drone.type, drone.site
            remote = self.scene.remote(drone)
            if remote is not None and remote.blocked is not None and remote.state is RemoteState.PENDING:
                self.blocked[key] = StartBlocked(key, remote.blocked.value, remote.reason)
            self._add(self.pending, 1, site, key)
            if probing:
                self._add(self.probes, 1, *(s for s in (site, key) if drone.requested_at >= probing.get(s, ENDLESS)))

    @staticmethod
    def _add(counts: dict[str, int], amount: int, *keys: str) -> None:
        for key in keys:
            counts[key] = counts.get(key, 0) + amount

    def _count(self, kind: str, site: str, count: int, gpu_milli: int) -> None:
        self._add(self.drones, count, *((kind, site, "") if kind else (site, "")))
        self._add(self.gpu_milli, gpu_milli, site, "")

    def _promise(self, key: TypeKey, count: int) -> None:
        """Hardware to drones that hold none yet. Which types share what is known where nodes tell, and it is booked
        there; else no type has more than its site in all, and where that is not told either, what one takes, all
        others lose in proportion."""
        site, _, name = key.partition("/")
        left, in_all = self.free.get(site), self.free_milli.get(site)
        if left is None:
            return
        if in_all is None:
            _take(left, name, count)
            return
        kind = self.scene.types.get(key)
        in_all = self.free_milli[site] = max(0, in_all - count * (kind.gpu_milli if kind is not None else WHOLE_GPU))
        left[name] = max(0.0, left.get(name, 0.0) - count)
        for other in left:
            each = self.scene.types.get(TypeKey(f"{site}/{other}"))
            if each is not None and each.gpu_milli:
                left[other] = min(left[other], float(in_all // each.gpu_milli))

    def _grant(self, key: TypeKey, count: int) -> None:
        """Quota, which the types of a site share."""
        site, _, name = key.partition("/")
        _take(self.quota.get(site, {}), name, count)

    def start(self, key: TypeKey, count: int) -> None:
        """Book ``count`` starts of a type."""
        kind = self.scene.types[key]
        site = kind.site
        self._count(key, site, count, count * kind.gpu_milli)
        self._add(self.pending, count, site, key)
        self._add(self.probes, count, site, key)
        self._add(self.started, count, site, key)
        if site in self.ground.floors:
            self.ground.floors[site].book(kind, count)
            self.counted = {other: n for other, n in self.counted.items() if other.partition("/")[0] != site}
        self._promise(key, count)
        self._grant(key, count)

    def free_for(self, key: TypeKey) -> int | None:
        """How many of a type could start right now; None where its site does not tell."""
        kind = self.scene.types[key]
        if kind.site in self.ground.floors:
            if key not in self.counted:
                self.counted[key] = self.ground.floors[kind.site].count(kind)
            return self.counted[key]
        if kind.site in self.free:
            return int(self.free[kind.site].get(kind.name, 0.0))
        return None

    def on_reserve(self, kind: DroneType) -> bool:
        """Whether what is kept for GPUs is now released to this type."""
        site = self.scene.snapshot.policy.sites.get(kind.site)
        quiet_s = self.scene.now - self.scene.snapshot.gpu_wanted_at
        rules = site.blocking if site and not kind.gpu_milli else ()
        return any(r.when is ReserveWhen.GPU_DEMAND and quiet_s >= r.release_after_s for r in rules)

    def for_type(self, key: TypeKey) -> tuple[int, Reason | None]:
        """How many of a type may be started now, and which limit says so. Room only shrinks: none left is for good."""
        if key in self.spent:
            return 0, self.spent[key]
        count, reason = self._for_type(key, self.scene.types[key])
        if count == 0:
            self.spent[key] = reason
            self.open.discard(key)
        return count, reason

    def _for_type(self, key: TypeKey, kind: DroneType) -> tuple[int, Reason | None]:
        site = self.scene.snapshot.policy.sites.get(kind.site)
        if site is None or not site.enabled:
            return 0, SiteDisabled(kind.site)
        doubt = self.scene.trust.sites.get(kind.site) or self.ground.held.get(key)
        doubt = doubt or self.blocked.get(key) or too_short(self.scene, kind)
        if doubt is not None:
            return 0, doubt
        found = self._capped(key, kind, site)
        free = None if site.queue_when_full else self.free_for(key)
        if free is not None and free < found[0]:
            found = free, self._why_full(kind)
        quota = self.quota.get(kind.site, {}).get(kind.name)
        if quota is not None and int(quota) < found[0]:
            found = int(quota), SiteQuota(key)
        for breaker in (self._breaker(kind.site), self._breaker(key)):
            if breaker is not None and breaker[0] < found[0]:
                found = breaker
        return found

    def _capped(self, key: TypeKey, kind: DroneType, site: SitePolicy) -> tuple[int, Reason | None]:
        """The least that any limit of ours allows, and which does."""
        policy, gpu_milli = self.scene.snapshot.policy, kind.gpu_milli
        caps: tuple[_Cap, ...] = (
            ("max_starts_per_tick", kind.site, self.started, site.max_starts_per_tick, 1),
            ("max_pending", kind.site, self.pending, site.max_pending, 1),
            ("max_drones", key, self.drones, kind.max_drones, 1),
            ("max_drones", kind.site, self.drones, site.max_drones, 1),
            ("max_drones", "", self.drones, policy.max_drones, 1),
            ("max_gpus", kind.site, self.gpu_milli, site.max_gpu_milli, gpu_milli),
            ("max_gpus", "", self.gpu_milli, policy.max_gpu_milli, gpu_milli),
        )
        least, binding = 1 << 30, None
        for cap in caps:
            _, scope, counts, most, each = cap
            if most is not None and each:
                count = max(0, (most - counts.get(scope, 0)) // each)
                if count < least:
                    least, binding = count, cap
        if binding is None:
            return least, None
        limit, scope, counts, most, _ = binding
        unit = WHOLE_GPU if limit == "max_gpus" else 1
        return least, LimitReached(limit, scope or "all sites", counts.get(scope, 0) / unit, (most or 0) / unit)

    def _why_full(self, kind: DroneType) -> Reason:
        if kind.site in self.ground.floors and not kind.gpu_milli:
            unblocked, gpu_milli = self.ground.floors[kind.site].count_unblocked(kind)
            if unblocked and gpu_milli:
                return ReserveKept(kind.key, gpu_milli / WHOLE_GPU)
        view = self.scene.trust.site_view(self.scene.snapshot, kind.site)
        short = stranded(kind, view.nodes) if view is not None else None
        lack = (view.unfit.get(kind.name) or view.lacks.get(kind.name, "")) if view is not None else ""
        return short or self.ground.claimed.get(kind.site) or SiteFull(kind.key, lack)

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


def _take(left: dict[str, float], name: str, count: int) -> None:
    """``count`` of one, and of all others in proportion."""
    mine = left.get(name, 0.0)
    share = min(1.0, count / mine) if mine > 0 else 1.0
    for other in left:
        left[other] = max(0.0, left[other] - (count if other == name else share * left[other]))
