"""What a replay has shown, in numbers: one run over one seed. What summaries and reports are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SCHEMA = 1
"""Version of the JSON form; a field that changes its meaning raises it."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Of jobs: completion - submission - run time, so that work lost to preemption counts as wait. Seconds."""

    jobs: int = 0
    mean_s: float = 0.0
    p50_s: float = 0.0
    p95_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuTime:
    """Where the GPU time of drones went, of whole GPUs. ``held = good + badput + boot + release + idle``."""

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


class GpuSeconds(GpuTime):
    """In seconds."""

    __slots__ = ()


class GpuHours(GpuTime):
    """In hours."""

    __slots__ = ()


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
    """What deciding cost: processor time of the planner, real even on a virtual clock."""

    count: int = 0
    mean_s: float = 0.0
    worst_s: float = 0.0

    @property
    def per_second(self) -> float:
        return 1.0 / self.mean_s if self.mean_s else 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """One replay."""

    policy: str
    trace: str
    seed: int
    days: float
    jobs: int
    jobs_done: int
    jobs_impossible: int
    """That fit no drone type."""
    gpu_hours: GpuHours
    waits: Waits
    waits_by_class: Mapping[str, Waits] = field(default_factory=dict)
    owner_wait_s: float | None = None
    """Mean over the owners' jobs, of their wait that drones caused; None where no job of an owner is known: there is no
    owner, or his load is a step function."""
    requests: int = 0
    """Drones that sites accepted."""
    drones_started: int = 0
    """Those that were given a place."""
    withdrawn: int = 0
    """Those that were taken back before that."""
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
    """None where no drone type tells its power."""
    co2_kg: float | None = None
    by_site: Mapping[str, GpuHours] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()

    @property
    def kj_per_job(self) -> float | None:
        return None if self.energy_kwh is None or not self.jobs_done else self.energy_kwh * 3600.0 / self.jobs_done
