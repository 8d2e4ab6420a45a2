"""The jobs of a simulated pool, and the queue that keeps them grouped by requirement, never counting them again."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from provisioner.gpu_models import canonical
from provisioner.model import (
    WHOLE_GPU,
    CompletedJob,
    DroneType,
    JobClass,
    UnmetRequirement,
)
from provisioner.planner.matching import unmet_requirement
from provisioner.resources import Resources
from provisioner.sharing import Load, load_of
from provisioner.simulator.loop import start_epoch
from provisioner.values import factory, frozen

UNRECORDED_FIELDS = frozenset(
    {"gpu_model", "priority", "duty_milli", "width_milli", "gpu_optional", "inference"}
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
    inference: tuple[str, ...] = ()

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

    @property
    def resources(self) -> Resources:
        return Resources(self.gpu_milli, self.cpus, self.memory_mib, self.disk_mib)

    def as_class(self, types: Iterable[DroneType], **queued: Any) -> JobClass:
        """Return a class of such jobs. That they need a GPU model only the pool's own matchmaker knows."""
        wants = asdict(self)
        model = canonical(wants.pop("gpu_model"))
        refuses = {
            kind.key: UnmetRequirement("gpu_model", self.gpu_model, kind.gpu_model)
            for kind in types
            if kind.gpu_milli and model not in ("", canonical(kind.gpu_model))
        }
        found = JobClass(**wants, refuses=refuses, **queued)
        return found.with_optional_gpu() if self.gpu_optional else found

    def unmet_requirement(self, kind: DroneType) -> UnmetRequirement | None:
        """Return the first requirement that an empty drone of ``kind`` does not meet, if any."""
        # a drone with GPUs takes jobs with an optional GPU as if they needed it
        wants = replace(self, gpu_optional=self.gpu_optional and not kind.gpu_milli)
        return unmet_requirement(wants.as_class([kind], id=""), kind)


@frozen
class SimulatedJob:
    """One job: it arrives ``submit_s`` after the start of the scenario and computes for ``duration_s``."""

    submit_s: float
    duration_s: float
    wants: JobRequirements = factory(JobRequirements)
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
        self.amount = wants.resources
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
        return self.wants.as_class(
            types,
            id=self.name,
            waiting=len(self._idle) - len(self._fresh),
            fresh=len(self._fresh),
            running=self.running,
            oldest_at=start_epoch() + self.first()[0] if self._idle else 0.0,
            idle_at=start_epoch() + self._waits[0][0] if self._idle else 0.0,
        )


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
