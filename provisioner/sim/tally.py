"""What really happened, counted in the world itself and independent of the controller's record."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from provisioner.model import DroneId, DroneType, EndKind, Policy
from provisioner.sim.faults import Trouble
from provisioner.sim.nodes import Machine


@dataclass(frozen=True, slots=True)
class CapBroken:
    """More drones, or GPUs, lived at one instant than the operator allowed."""

    at_s: float
    scope: str
    """A site, a drone type's key, or ``all``."""
    unit: str
    """``drones`` or ``milli-GPU``."""
    count: int
    limit: int

    def __str__(self) -> str:
        return f"cap broken at {self.at_s:.1f} s: {self.scope} has {self.count} {self.unit}, limit {self.limit}"


@dataclass(frozen=True, slots=True)
class GpuSeconds:
    """Where the GPU time of drones went, in seconds of one whole GPU. ``held = good + badput + boot + idle``."""

    held: float = 0.0
    """From grant to release."""
    good: float = 0.0
    """Attempts that ended with their job done, and what others had saved by their last checkpoint."""
    badput: float = 0.0
    """Attempts that were cut short: what of them must be done again."""
    boot: float = 0.0
    """From grant until the drone took jobs, or ended without."""
    idle: float = 0.0
    """All else: no job, parts of a GPU left over, release."""

    @property
    def waste(self) -> float:
        """``(held - good) / good``; infinite where nothing good came out."""
        return (self.held - self.good) / self.good if self.good else float("inf")


class OwnerWait(NamedTuple):
    """How long an owner's job has waited in all, and which parts of it were our doing (``sim/owner.py`` says how they
    are told from the site's own)."""

    gpus: int
    wait_s: float
    blocked_s: float
    """Drones held its room."""
    late_s: float
    """Its room was free again, and the site's next cycle had still to come."""


@dataclass(slots=True)
class _Live:
    drones: int = 0
    gpu_milli: int = 0
    peak: int = 0


@dataclass(slots=True)
class Tally:
    """Books kept by the world. Caps are checked at every instant at which a count rises."""

    policy: Policy
    types: Iterable[DroneType] = ()
    accepted: Counter[str] = field(default_factory=Counter)
    """Drones accepted, by site."""
    ends: Counter[tuple[str, EndKind]] = field(default_factory=Counter)
    waits_s: list[float] = field(default_factory=list)
    """Per finished job: completion - submission - run time, so that lost work counts as wait."""
    owner_waits: list[OwnerWait] = field(default_factory=list)
    """Per owner's job that has started, or still waits at the end."""
    asked_in_vain: Counter[str] = field(default_factory=Counter)
    """Drones accepted for which there was no room at that moment, by site."""
    overfull: list[str] = field(default_factory=list)
    """Nodes on which more was held than there is, a line each."""
    attempts: int = 0
    attempts_lost: int = 0
    caps_broken: list[CapBroken] = field(default_factory=list)
    doubles: list[DroneId] = field(default_factory=list)
    """Ids under which two drones lived at once."""
    troubles: Counter[Trouble] = field(default_factory=Counter)
    """Calls that a spell has hit."""
    held_s: float = 0.0
    good_s: float = 0.0
    badput_s: float = 0.0
    """Of attempts that were cut short: what must be done again."""
    boot_s: float = 0.0
    _live: defaultdict[str, _Live] = field(default_factory=lambda: defaultdict(_Live))
    _ids: Counter[DroneId] = field(default_factory=Counter)
    _limits: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._limits["all"] = (self.policy.max_drones, self.policy.max_gpu_milli)
        for name, site in self.policy.sites.items():
            self._limits[name] = (site.max_drones, site.max_gpu_milli)
        for kind in self.types:
            self._limits[kind.key] = (kind.max_drones, None)

    def born(self, drone_id: DroneId, kind: DroneType, at_s: float) -> None:
        """A site has taken an order on: from now on the drone counts."""
        self.accepted[kind.site] += 1
        self._ids[drone_id] += 1
        if self._ids[drone_id] > 1:
            self.doubles.append(drone_id)
        for scope in ("all", kind.site, kind.key):
            live = self._live[scope]
            live.drones += 1
            live.gpu_milli += kind.gpu_milli
            live.peak = max(live.peak, live.drones)
            drones, gpu_milli = self._limits.get(scope, (None, None))
            if drones is not None and live.drones > drones:
                self.caps_broken.append(CapBroken(at_s, scope, "drones", live.drones, drones))
            if gpu_milli is not None and live.gpu_milli > gpu_milli:
                self.caps_broken.append(CapBroken(at_s, scope, "milli-GPU", live.gpu_milli, gpu_milli))

    def gone(self, drone_id: DroneId, kind: DroneType, end: EndKind) -> None:
        self.ends[kind.site, end] += 1
        self._ids[drone_id] -= 1
        for scope in ("all", kind.site, kind.key):
            self._live[scope].drones -= 1
            self._live[scope].gpu_milli -= kind.gpu_milli

    def held(self, gpu_milli: int, held_s: float, boot_s: float) -> None:
        """A drone gave its GPUs back after ``held_s``, of which it needed ``boot_s`` before it took jobs."""
        self.held_s += held_s * gpu_milli / 1000
        self.boot_s += boot_s * gpu_milli / 1000

    def attempt(self, gpu_milli: int, ran_s: float, lost_s: float | None) -> None:
        """A job ran for ``ran_s`` and was done with it (None), or must do ``lost_s`` of that again."""
        self.attempts += 1
        self.attempts_lost += lost_s is not None
        self.good_s += (ran_s - (lost_s or 0.0)) * gpu_milli / 1000
        self.badput_s += (lost_s or 0.0) * gpu_milli / 1000

    def seated(self, at_s: float, machine: Machine) -> None:
        """Somebody has taken a place on a node."""
        if machine.overfull:
            self.overfull.append(f"{machine.name} is overfull at {at_s:.1f} s: {machine.free} left")

    def nodes_counted(self, at_s: float, machines: Iterable[Machine]) -> None:
        """From time to time all that is held on the nodes is counted anew."""
        for machine in machines:
            there = machine.recounted()
            if there != machine.free or min(there) < 0:
                self.overfull.append(f"{machine.name} at {at_s:.1f} s: {machine.free} by its books, {there} by count")

    def peak(self, scope: str) -> int:
        """Most drones alive at once at a site, of a type (by key), or of ``all``."""
        return self._live[scope].peak

    @property
    def gpu_seconds(self) -> GpuSeconds:
        idle_s = self.held_s - self.good_s - self.badput_s - self.boot_s
        return GpuSeconds(self.held_s, self.good_s, self.badput_s, self.boot_s, idle_s)

    @property
    def owner_blocked_s(self) -> float:
        """Mean over the owner's jobs of the time for which drones held their room."""
        return sum(w.blocked_s for w in self.owner_waits) / len(self.owner_waits) if self.owner_waits else 0.0

    @property
    def owner_wait_s(self) -> float:
        """Mean wait of the owner's jobs in all, whoever caused it."""
        return sum(w.wait_s for w in self.owner_waits) / len(self.owner_waits) if self.owner_waits else 0.0

    @property
    def mean_wait_s(self) -> float:
        return sum(self.waits_s) / len(self.waits_s) if self.waits_s else 0.0
