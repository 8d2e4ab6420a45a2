"""The jobs of a simulated pool, and the queue that keeps them grouped by requirement, never counting them again."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from provisioner.gpu_models import canonical
from provisioner.model import (
    WHOLE_GPU,
    CompletedJob,
    DroneType,
    JobClass,
    Sharing,
    UnmetRequirement,
)
from provisioner.sharing import Load, load_of, share_milli, shares_needed
from provisioner.simulator.drones import ResourceVector
from provisioner.simulator.loop import start_epoch
from provisioner.values import frozen

UNRECORDED_FIELDS = frozenset(
    {"gpu_model", "priority", "duty_milli", "width_milli", "gpu_optional"}
)
"""Requirements that are not on record of a completed job."""


@frozen
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
    gpu_optional: bool = False

    @property
    def label(self) -> str:
        """Size of the job, as reports name it."""
        vram = f"{self.vram_mib / 1024:.3g} GiB VRAM" if self.vram_mib else ""
        optional = "optional" if self.gpu_optional else ""
        return ", ".join(
            filter(None, (f"{self.gpu_milli / WHOLE_GPU:g} GPU", vram, self.gpu_model, optional))
        )

    @property
    def load(self) -> Load:
        return load_of(self.gpu_milli, self.duty_milli, self.width_milli)

    @property
    def completed_fields(self) -> dict[str, Any]:
        """The fields that the overlay reports of a completed job."""
        return {
            name: value for name, value in asdict(self).items() if name not in UNRECORDED_FIELDS
        }

    @classmethod
    def of(cls, recorded: CompletedJob | JobClass) -> JobRequirements:
        """Return the requirements of a completed job, or of the jobs of a class, as far as the record has them."""
        return cls(
            **{
                f.name: getattr(recorded, f.name)
                for f in fields(cls)
                if f.name not in UNRECORDED_FIELDS
            }
        )

    def unmet_requirement(self, kind: DroneType) -> UnmetRequirement | None:
        """Return the first dimension in which an empty drone of ``kind`` falls short, if any."""
        if self.gpu_optional and not kind.gpu_milli:
            return replace(
                self, gpu_milli=0, vram_mib=0, capability=0, gpu_model="", gpu_optional=False
            ).unmet_requirement(kind)
        # what a drone has beside its GPUs is for them: its START says so
        if kind.gpu_milli and not self.gpu_milli:
            return UnmetRequirement("gpus", "0", str(kind.gpu_milli))
        gpu_milli, vram_mib = kind.gpu_milli, kind.vram_mib
        if kind.shares > 1:
            # Small jobs get shares of one GPU, and as much of its VRAM; MIG's slices cannot be
            # joined.
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
        if self.gpu_model and canonical(self.gpu_model) != canonical(kind.gpu_model):
            return UnmetRequirement("gpu_model", self.gpu_model, kind.gpu_model)
        if self.walltime_s and kind.walltime_s and self.walltime_s > kind.walltime_s:
            return UnmetRequirement("walltime", f"{self.walltime_s:.0f}", f"{kind.walltime_s:.0f}")
        return None


@frozen
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
    begun: bool = False
    idle_s: float = 0.0
    """Begin of its present wait; -1 while it runs."""
    saved_s: float = 0.0
    """Run time that earlier attempts have saved."""
    lost_gpu_s: float = 0.0
    """GPU-seconds of earlier attempts that must be repeated."""
    done_s: float | None = None

    @property
    def wants(self) -> JobRequirements:
        return self.job.wants


class QueuedJobClass:
    """The jobs of one class: idle ones oldest first, and how many run."""

    def __init__(self, name: str, wants: JobRequirements) -> None:
        self.name = name
        self.wants = wants
        self.amount = ResourceVector.of(wants)
        self.running = 0
        self._idle: list[tuple[float, int, QueuedJob]] = []
        self._fresh: set[QueuedJob] = set()
        """Idle jobs that no negotiation cycle has seen."""
        self._waits: deque[tuple[float, QueuedJob]] = deque()
        """Begins of waits, in order; those of jobs that run by now are left out when they come to the front."""

    @property
    def idle(self) -> int:
        return len(self._idle)

    def add(self, queued: QueuedJob, now_s: float) -> None:
        queued.idle_s = now_s
        self._waits.append((now_s, queued))
        heapq.heappush(self._idle, (queued.job.submit_s, queued.serial, queued))
        self._fresh.add(queued)

    def mark_judged(self) -> None:
        self._fresh.clear()

    def first(self) -> tuple[float, int]:
        """Return submit time and serial number of the oldest idle job; there must be one."""
        return self._idle[0][:2]

    def take(self) -> QueuedJob:
        """Remove the oldest idle job, which now runs, and return it."""
        queued = heapq.heappop(self._idle)[2]
        self._fresh.discard(queued)
        queued.idle_s = -1.0
        self.running += 1
        return queued

    def view(self, types: Iterable[DroneType]) -> JobClass:
        while self._idle and self._waits[0][0] != self._waits[0][1].idle_s:
            self._waits.popleft()
        unmet = {
            kind.key: self.wants.unmet_requirement(kind) for kind in types if self.wants.gpu_model
        }
        wants = asdict(self.wants)
        del wants["gpu_model"]
        found = JobClass(
            id=self.name,
            waiting=len(self._idle) - len(self._fresh),
            fresh=len(self._fresh),
            running=self.running,
            oldest_at=start_epoch() + self.first()[0] if self._idle else 0.0,
            refuses={
                key: each for key, each in unmet.items() if each and each.dimension == "gpu_model"
            },
            idle_at=start_epoch() + self._waits[0][0] if self._idle else 0.0,
            **wants,
        )
        return found.with_optional_gpu() if found.gpu_optional else found


class SimulatedJobQueue:
    def __init__(self) -> None:
        self._classes: dict[JobRequirements, QueuedJobClass] = {}
        self._idle: dict[str, QueuedJobClass] = {}
        """In the order in which they came to have idle jobs."""

    def of(self, wants: JobRequirements) -> QueuedJobClass:
        if wants not in self._classes:
            self._classes[wants] = QueuedJobClass(f"c{len(self._classes) + 1}", wants)
        return self._classes[wants]

    def add(self, queued: QueuedJob, now_s: float) -> QueuedJobClass:
        jobs = self.of(queued.wants)
        jobs.add(queued, now_s)
        self._idle[jobs.name] = jobs
        return jobs

    def idle(self) -> list[QueuedJobClass]:
        self._idle = {name: jobs for name, jobs in self._idle.items() if jobs.idle}
        return list(self._idle.values())

    def alive(self) -> Iterable[QueuedJobClass]:
        """Return the classes with idle or running jobs."""
        return (jobs for jobs in self._classes.values() if jobs.idle or jobs.running)
