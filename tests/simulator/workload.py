"""Workloads: bursts, mixes and days made from a seed. (``traces`` reads those of trace files.)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from provisioner.simulator.faults import ServiceFault, ServiceFaultKind
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.loop import Draw, Fixed, LogNormal, rng_for

DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Shape:
    """Jobs that look alike; ``weight`` is their share of a mix."""

    wants: JobRequirements
    duration: Draw
    weight: float = 1.0


PLAIN = Shape(JobRequirements(gpu_milli=1000, cpus=2, memory_mib=8192), LogNormal(600.0, 1.0, 4 * 3600.0), 6.0)
LARGE = Shape(
    JobRequirements(gpu_milli=1000, cpus=4, memory_mib=16384, vram_mib=70000, owner="bob"), LogNormal(1800.0, 0.8), 0.5
)
SMALL = Shape(
    JobRequirements(gpu_milli=250, cpus=1, memory_mib=2048, vram_mib=8000, owner="carol"), LogNormal(300.0, 0.8), 2.0
)
IMPOSSIBLE = Shape(JobRequirements(capability=990, owner="dave"), Fixed(60.0))
"""Asks for a compute capability that no drone type has."""


def burst(count: int, shape: Shape = PLAIN, *, at_s: float = 0.0, seed: int = 0) -> tuple[SimulatedJob, ...]:
    """``count`` jobs at once."""
    rng = Random(f"{seed}/burst/{at_s}")
    return tuple(SimulatedJob(at_s, shape.duration.draw(rng), shape.wants) for _ in range(count))


def poisson_mix(
    shapes: Sequence[Shape], *, per_hour: float, span_s: float, seed: int, from_s: float = 0.0
) -> tuple[SimulatedJob, ...]:
    """Jobs of ``shapes`` that arrive independently of one another, ``per_hour`` on average."""
    rng = Random(f"{seed}/poisson")
    weights = [shape.weight for shape in shapes]
    jobs, at_s = [], from_s
    while (at_s := at_s + rng.expovariate(per_hour / 3600.0)) < from_s + span_s:
        shape = rng.choices(shapes, weights)[0]
        jobs.append(SimulatedJob(at_s, shape.duration.draw(rng), shape.wants))
    return tuple(jobs)


def day(
    *, count: int = 4000, seed: int = 0, shapes: Sequence[Shape] = (PLAIN, LARGE, SMALL)
) -> tuple[SimulatedJob, ...]:
    """Exactly ``count`` jobs over 24 hours: half spread evenly, half in ten bursts between 8 and 20 o'clock."""
    rng = Random(f"{seed}/day")
    peaks_s = [rng.uniform(8 * 3600.0, 20 * 3600.0) for _ in range(10)]
    weights = [shape.weight for shape in shapes]
    jobs = []
    for n in range(count):
        at_s = rng.uniform(0, DAY_S) if n % 2 else min(DAY_S, rng.choice(peaks_s) + rng.uniform(0, 120.0))
        shape = rng.choices(shapes, weights)[0]
        jobs.append(SimulatedJob(at_s, shape.duration.draw(rng), shape.wants))
    return tuple(sorted(jobs, key=lambda job: job.submit_s))


def unreliable_network(seed: int, *, chance: float = 0.3, late_s: float = 40.0) -> tuple[ServiceFault, ...]:
    """Orders lost, late and doubled, replies lost and torn: three kinds by seed, and one trouble with looks."""
    rng = rng_for(seed, "rough wire")
    acts = [
        ServiceFault(ServiceFaultKind.ORDER_LOST, verb="act"),
        ServiceFault(ServiceFaultKind.ORDER_HANGS, verb="act"),
        ServiceFault(ServiceFaultKind.REPLY_LOST, verb="act"),
        ServiceFault(ServiceFaultKind.REPLY_HANGS, verb="act"),
        ServiceFault(ServiceFaultKind.REPLY_TORN, verb="start", amount=0.5),
        ServiceFault(ServiceFaultKind.LATE, verb="act", amount=rng.uniform(1.0, late_s)),
        ServiceFault(ServiceFaultKind.TWICE, verb="act", amount=rng.uniform(1.0, late_s)),
        ServiceFault(ServiceFaultKind.SLOW, verb="act", amount=rng.uniform(0.5, late_s)),
        ServiceFault(ServiceFaultKind.DOWN, verb="act"),
    ]
    looks = [
        ServiceFault(ServiceFaultKind.DOWN, verb="poll"),
        ServiceFault(ServiceFaultKind.HANG, verb="poll"),
        ServiceFault(ServiceFaultKind.SLOW, verb="poll", amount=rng.uniform(0.5, 15.0)),
        ServiceFault(ServiceFaultKind.BUG, verb="poll"),
    ]
    chosen = (*rng.sample(acts, 3), rng.choice(looks))
    return tuple(replace(fault, chance=rng.uniform(0.3, 1.0) * chance) for fault in chosen)
