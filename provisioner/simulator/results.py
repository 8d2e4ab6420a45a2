"""Results of replays, one run over one seed, and the metrics that a simulated world collects."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from statistics import fmean
from typing import NamedTuple

from provisioner.model import DroneId, DroneType, EndKind, Policy
from provisioner.simulator.drones import SimulatedNode
from provisioner.simulator.faults import HardwareFault, ServiceFault, ServiceFaultKind
from provisioner.simulator.loop import now_s


@dataclass(frozen=True, slots=True)
class WaitStatistics:
    """Waits of jobs in seconds: completion - submission - run time, so that lost work counts as wait."""

    jobs: int = 0
    mean_s: float = 0.0
    p50_s: float = 0.0
    p95_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuTime:
    """GPU time of drones by use, in hours or seconds of one GPU: ``held`` is the sum of the others."""

    held: float = 0.0
    """From grant to release."""
    good: float = 0.0
    """Attempts that ended with their job done, and what others had saved by their last checkpoint."""
    badput: float = 0.0
    """Attempts that were cut short: what of them must be done again."""
    boot: float = 0.0
    """From grant until the drone took jobs, or left without."""
    release: float = 0.0
    """From the drone's exit until its GPUs were free again."""
    idle: float = 0.0
    """All else: no job, parts of a GPU left over."""

    @property
    def waste(self) -> float:
        """``(held - good) / good``; infinite where nothing good came out."""
        return (self.held - self.good) / self.good if self.good else float("inf")

    @property
    def hours(self) -> GpuTime:
        """The same in hours, of times in seconds."""
        return GpuTime(*(part / 3600.0 for part in astuple(self)))


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of things at one time, for plots. GPUs are whole ones, ``at_s`` counts from the start."""

    at_s: float
    jobs_waiting: int
    jobs_running: int
    gpus_held: float
    gpus_busy: float
    gpus_owner: float
    by_site: Mapping[str, float] = field(default_factory=dict)
    """GPUs held, by site."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """Processor time of the planner, real even on a virtual clock."""

    count: int = 0
    mean_s: float = 0.0
    worst_s: float = 0.0

    @property
    def per_second(self) -> float:
        return 1.0 / self.mean_s if self.mean_s else 0.0


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """One replay."""

    policy: str
    trace: str
    seed: int
    days: float
    jobs: int
    jobs_done: int
    jobs_impossible: int
    """That fit no drone type."""
    gpu_hours: GpuTime
    waits: WaitStatistics
    waits_by_class: Mapping[str, WaitStatistics] = field(default_factory=dict)
    requests: int = 0
    """Drones that sites accepted."""
    drones_started: int = 0
    """Requests that started."""
    withdrawn: int = 0
    """Requests that were cancelled before that."""
    preempted: int = 0
    """Attempts of jobs that were cut short."""
    burst_first_s: float | None = None
    """Median over bursts (at least 20 jobs in 120 s after 600 s with fewer than 5) until the first has started."""
    burst_most_s: float | None = None
    """The same until 80 % have started."""
    violations: tuple[str, ...] = ()
    """Broken promises, exceeded limits among them: must be none."""
    decisions: Decisions = Decisions()
    energy_kwh: float | None = None
    """None where no drone type has a power."""
    co2_kg: float | None = None
    by_site: Mapping[str, GpuTime] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()


class OwnerWait(NamedTuple):
    """Wait of an owner's job, and the parts of it that drones caused (see :mod:`provisioner.simulator.owner`)."""

    gpus: int
    wait_s: float
    blocked_s: float
    """Drones held its room."""
    late_s: float
    """Its room was free again, and the site's next cycle had still to come."""


@dataclass(slots=True)
class GpuTimeAccount:
    """GPU time of a site's drones as it is entered, in seconds of one GPU, and the energy of their GPUs at work."""

    held_s: float = 0.0
    good_s: float = 0.0
    badput_s: float = 0.0
    boot_s: float = 0.0
    release_s: float = 0.0
    energy_kwh: float = 0.0

    @property
    def gpu_seconds(self) -> GpuTime:
        idle_s = self.held_s - self.good_s - self.badput_s - self.boot_s - self.release_s
        return GpuTime(self.held_s, self.good_s, self.badput_s, self.boot_s, self.release_s, idle_s)


@dataclass(slots=True)
class _Live:
    drones: int = 0
    gpu_milli: int = 0
    peak: int = 0


@dataclass(slots=True)
class Metrics:
    """Counts of a world. Limits are checked at every instant at which a count rises."""

    policy: Policy
    types: Iterable[DroneType] = ()
    accepted: Counter[str] = field(default_factory=Counter)
    """Drones accepted, by site."""
    started: int = 0
    """Drones that were given a place."""
    withdrawn: int = 0
    """Drones that ended before that."""
    ends: Counter[tuple[str, EndKind]] = field(default_factory=Counter)
    waits_s: list[float] = field(default_factory=list)
    """Per finished job: completion - submission - run time with a GPU of its own, so that lost work counts as wait, and
    so does what others on a shared GPU have slowed it down by."""
    waits_by_class: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """The same by size of the jobs (:attr:`JobRequirements.label`)."""
    first_starts: list[tuple[float, float]] = field(default_factory=list)
    """Submission and first start of each job that has ever begun, in that order."""
    owner_waits: list[OwnerWait] = field(default_factory=list)
    """Per owner's job that has started, or still waits at the end."""
    accepted_without_room: Counter[str] = field(default_factory=Counter)
    """Drones accepted for which there was no room at that moment, by site."""
    overfull: list[str] = field(default_factory=list)
    """Nodes on which more was held than there is, a line each."""
    attempts: int = 0
    attempts_lost: int = 0
    caps_broken: list[str] = field(default_factory=list)
    """More drones, or GPUs, lived at one instant than the operator allowed: a line each."""
    doubles: list[DroneId] = field(default_factory=list)
    """Ids under which two drones lived at once."""
    faults_met: Counter[ServiceFaultKind] = field(default_factory=Counter)
    """Calls that a fault has hit."""
    accounts: defaultdict[str, GpuTimeAccount] = field(default_factory=lambda: defaultdict(GpuTimeAccount))
    """By site."""
    _live: defaultdict[str, _Live] = field(default_factory=lambda: defaultdict(_Live))
    _ids: Counter[DroneId] = field(default_factory=Counter)
    _limits: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._limits["all"] = (self.policy.max_drones, self.policy.max_gpu_milli)
        for name, site in self.policy.sites.items():
            self._limits[name] = (site.max_drones, site.max_gpu_milli)
        for kind in self.types:
            self._limits[kind.key] = (kind.max_drones, None)

    def born(self, drone_id: DroneId, kind: DroneType) -> None:
        """Count a drone whose order a site has accepted."""
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
            for unit, has, limit in (("drones", live.drones, drones), ("milli-GPU", live.gpu_milli, gpu_milli)):
                if limit is not None and has > limit:
                    self.caps_broken.append(f"cap broken at {now_s():.1f} s: {scope} has {has} {unit}, limit {limit}")

    def gone(self, drone_id: DroneId, kind: DroneType, end: EndKind) -> None:
        self.ends[kind.site, end] += 1
        self._ids[drone_id] -= 1
        for scope in ("all", kind.site, kind.key):
            self._live[scope].drones -= 1
            self._live[scope].gpu_milli -= kind.gpu_milli

    def held(self, kind: DroneType, held_s: float, boot_s: float, release_s: float) -> None:
        """Enter the GPU time of a drone: held in all, before it took jobs, and after its exit."""
        account, gpus = self.accounts[kind.site], kind.gpu_milli / 1000
        account.held_s += held_s * gpus
        account.boot_s += boot_s * gpus
        account.release_s += release_s * gpus

    def attempt(self, kind: DroneType, gpu_milli: int, ran_s: float, lost_s: float | None) -> None:
        """Enter an attempt of ``ran_s``: the job is done (None), or must repeat ``lost_s`` of it."""
        account = self.accounts[kind.site]
        self.attempts += 1
        self.attempts_lost += lost_s is not None
        account.good_s += (ran_s - (lost_s or 0.0)) * gpu_milli / 1000
        account.badput_s += (lost_s or 0.0) * gpu_milli / 1000

    def at_work(self, kind: DroneType, gpu_s: float) -> None:
        """Count the energy of working GPUs of a drone type; ``gpu_s`` in GPU-seconds."""
        self.accounts[kind.site].energy_kwh += kind.power_w * gpu_s / 3.6e6

    def waited(self, label: str, wait_s: float) -> None:
        """Enter the wait of a finished job."""
        self.waits_s.append(wait_s)
        self.waits_by_class[label].append(wait_s)

    def node_filled(self, machine: SimulatedNode) -> None:
        """Somebody has taken a place on a node."""
        if min(machine.free) < 0:
            self.overfull.append(f"{machine.name} is overfull at {now_s():.1f} s: {machine.free} left")

    def peak(self, scope: str) -> int:
        """Most drones alive at once at a site, of a type (by key), or of ``all``."""
        return self._live[scope].peak

    @property
    def total(self) -> GpuTimeAccount:
        """All sites together."""
        return GpuTimeAccount(*(sum(column) for column in zip(*map(astuple, self.accounts.values()), strict=True)))

    @property
    def gpu_seconds(self) -> GpuTime:
        return self.total.gpu_seconds

    @property
    def energy_kwh(self) -> float | None:
        """Energy of busy GPUs; None if no drone type has a power."""
        return self.total.energy_kwh if any(kind.power_w for kind in self.types) else None

    @property
    def owner_blocked_s(self) -> float:
        """Mean over the owner's jobs of the time for which drones held their room."""
        return fmean(wait.blocked_s for wait in self.owner_waits) if self.owner_waits else 0.0


@dataclass(frozen=True, slots=True)
class Conditions:
    """Common properties of the sites and the overlay of one world."""

    metrics: Metrics
    seed: int
    start_epoch: float
    service_faults: Sequence[ServiceFault] = ()
    hardware_faults: Sequence[HardwareFault] = ()
