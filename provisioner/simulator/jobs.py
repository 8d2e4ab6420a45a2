"""The jobs of a simulated pool, and the queue that keeps them grouped by requirement, never counting them again."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from provisioner.model import WHOLE_GPU, CompletedJob, DroneType, JobClass, Sharing, TypeKey, UnmetRequirement
from provisioner.sharing import share_milli, shares_needed

COMPLETED_FIELDS = (
    "gpu_milli",
    "cpus",
    "memory_mib",
    "disk_mib",
    "vram_mib",
    "capability",
    "owner",
    "group",
    "walltime_s",
)
"""Requirements that are on record of a completed job."""


@dataclass(frozen=True, slots=True)
class JobRequirements:
    """Requirements of the jobs of one class; units as in :class:`provisioner.model.JobClass`."""

    gpu_milli: int = 1000
    cpus: int = 1
    memory_mib: int = 1024
    disk_mib: int = 0
    vram_mib: int = 0
    capability: int = 0
    gpu_model: str = ""
    """Runs on this model only; a requirement that only the pool's own matchmaker can evaluate."""
    walltime_s: float = 0.0
    owner: str = "alice"
    priority: int = 0
    group: str = ""
    duty_milli: int = 0
    width_milli: int = 0

    @property
    def label(self) -> str:
        """Jobs of this size, for people."""
        vram = f"{self.vram_mib / 1024:.3g} GiB VRAM" if self.vram_mib else ""
        return ", ".join(filter(None, (f"{self.gpu_milli / WHOLE_GPU:g} GPU", vram, self.gpu_model)))

    @property
    def completed_fields(self) -> dict[str, Any]:
        """The fields that the overlay reports of a completed job."""
        return {name: getattr(self, name) for name in COMPLETED_FIELDS}

    @classmethod
    def of(cls, recorded: CompletedJob | JobClass) -> JobRequirements:
        """Return the requirements of a completed job, or of the jobs of a class, as far as the record has them."""
        return cls(**{name: getattr(recorded, name) for name in COMPLETED_FIELDS})

    def unmet_requirement(self, kind: DroneType) -> UnmetRequirement | None:
        """Return the first dimension in which an empty drone of ``kind`` falls short, if any."""
        if kind.gpu_milli and not self.gpu_milli:  # what a drone has beside its GPUs is for them: its START says so
            return UnmetRequirement("gpus", "0", str(kind.gpu_milli))
        gpu_milli, vram_mib = kind.gpu_milli, kind.vram_mib
        if kind.shares > 1:
            # Small jobs get shares of one GPU, and as much of its VRAM; MIG's slices cannot be joined.
            most = share_milli(kind.shares) * (1 if kind.sharing is Sharing.MIG else kind.shares)
            gpu_milli = min(most, WHOLE_GPU - 1)
            vram_mib = kind.vram_mib // kind.shares * shares_needed(self.gpu_milli, kind.shares)
        for dimension, wanted, offered in (
            ("gpus", self.gpu_milli, gpu_milli),
            ("vram", self.vram_mib, vram_mib),
            ("capability", self.capability, kind.capability),
            ("cpus", self.cpus, kind.cpus),
            ("memory", self.memory_mib, kind.memory_mib),
            ("disk", self.disk_mib, kind.disk_mib),
        ):
            if wanted > offered:
                return UnmetRequirement(dimension, str(wanted), str(offered))
        if self.gpu_model and self.gpu_model != kind.gpu_model:
            return UnmetRequirement("gpu_model", self.gpu_model, kind.gpu_model)
        if self.walltime_s and kind.walltime_s and self.walltime_s > kind.walltime_s:
            return UnmetRequirement("walltime", f"{self.walltime_s:.0f}", f"{kind.walltime_s:.0f}")
        return None


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """One job: it arrives ``submit_s`` after the start of the scenario and computes for ``duration_s``."""

    submit_s: float
    duration_s: float
    wants: JobRequirements = field(default_factory=JobRequirements)
    checkpoint_s: float = 0.0
    """Run time between two checkpoints, from which another attempt goes on; 0 for a job that makes none."""

    def saved_s(self, ran_s: float) -> float:
        """Return the part of ``ran_s`` that its checkpoints have saved."""
        return ran_s // self.checkpoint_s * self.checkpoint_s if self.checkpoint_s else 0.0


@dataclass(slots=True, eq=False)
class QueuedJob:
    """A job in the pool, with what became of it so far. Times are those of the loop."""

    serial: int
    job: SimulatedJob
    starts: int = 0
    idle_s: float = 0.0
    """Since when it waits, of one that was cut short since then; -1 while it runs."""
    begun_s: float = 0.0
    """Start of the running attempt."""
    saved_s: float = 0.0
    """Run time that earlier attempts have saved."""
    first_begun_s: float | None = None
    done_s: float | None = None

    @property
    def wants(self) -> JobRequirements:
        return self.job.wants


class QueuedJobClass:
    """The jobs of one class: idle ones oldest first, and how many run."""

    def __init__(self, name: str, wants: JobRequirements, idle_in: dict[str, QueuedJobClass]) -> None:
        self.name = name
        self.wants = wants
        self.label = wants.label
        self._fields = {name: value for name, value in asdict(wants).items() if name != "gpu_model"}
        self._idle_in = idle_in
        self.running = 0
        self._judged: list[tuple[float, int, QueuedJob]] = []
        self._fresh: list[tuple[float, int, QueuedJob]] = []
        self._waits: deque[tuple[float, QueuedJob]] = deque()
        """Since when which job waits, in this order; those that run since are left out when they come to the front."""
        self._view: JobClass | None = None
        self._types: tuple[DroneType, ...] = ()
        self._refuses: dict[TypeKey, UnmetRequirement] = {}

    @property
    def idle(self) -> int:
        return len(self._judged) + len(self._fresh)

    def add(self, queued: QueuedJob, now_s: float) -> None:
        """Let a job wait, for the first time or again."""
        queued.idle_s = now_s
        self._waits.append((now_s, queued))
        heapq.heappush(self._fresh, (queued.job.submit_s, queued.serial, queued))
        self._idle_in[self.name] = self
        self._view = None

    def mark_judged(self) -> None:
        """Mark the idle jobs as seen by a negotiation cycle."""
        if self._fresh:
            for entry in self._fresh:
                heapq.heappush(self._judged, entry)
            self._fresh.clear()
            self._view = None

    def first(self) -> tuple[float, int]:
        """Submit time and serial number of the oldest idle job; there must be one."""
        heads = [heap[0] for heap in (self._judged, self._fresh) if heap]
        submit_s, serial, _ = min(heads, key=lambda head: head[:2])
        return submit_s, serial

    def take(self) -> QueuedJob:
        """Remove the oldest idle job, which now runs, and return it."""
        heap = min((h for h in (self._judged, self._fresh) if h), key=lambda h: h[0][:2])
        self.running += 1
        self._view = None
        queued = heapq.heappop(heap)[2]
        queued.idle_s = -1.0
        if not self._judged and not self._fresh:
            del self._idle_in[self.name]
            self._waits.clear()
        return queued

    def waits_since_s(self) -> float:
        """When the longest wait of an idle job began; there must be one."""
        while self._waits[0][0] != self._waits[0][1].idle_s:
            self._waits.popleft()
        return self._waits[0][0]

    def ran(self) -> None:
        """Count one running job less."""
        self.running -= 1
        self._view = None

    def view(self, types: tuple[DroneType, ...], start_epoch: float) -> JobClass:
        """Return the class as the overlay lists it; it is made again only after a change."""
        if types != self._types:
            self._types, self._view = types, None
            self._refuses = {
                t.key: m for t in types if (m := self.wants.unmet_requirement(t)) and m.dimension == "gpu_model"
            }
        if self._view is None:
            self._view = JobClass(
                id=self.name,
                waiting=len(self._judged),
                fresh=len(self._fresh),
                running=self.running,
                oldest_at=start_epoch + self.first()[0] if self.idle else 0.0,
                refuses=self._refuses,
                idle_at=start_epoch + self.waits_since_s() if self.idle else 0.0,
                **self._fields,
            )
        return self._view


class SimulatedJobQueue:
    """All jobs of the pool by class."""

    def __init__(self) -> None:
        self._classes: dict[JobRequirements, QueuedJobClass] = {}
        self._idle: dict[str, QueuedJobClass] = {}

    def of(self, wants: JobRequirements) -> QueuedJobClass:
        found = self._classes.get(wants)
        if found is None:
            found = self._classes[wants] = QueuedJobClass(f"c{len(self._classes) + 1}", wants, self._idle)
        return found

    def idle(self) -> list[QueuedJobClass]:
        """Classes with idle jobs."""
        return list(self._idle.values())

    def alive(self) -> Iterable[QueuedJobClass]:
        """Classes with idle or running jobs."""
        return (jobs for jobs in self._classes.values() if jobs.idle or jobs.running)
