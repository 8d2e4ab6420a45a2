"""Workloads: bursts, mixes and days made from a seed, or read from a trace file."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

from provisioner.sim.draws import Draw, Fixed, LogNormal
from provisioner.sim.jobs import SimJob, Wants

DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Shape:
    """Jobs that look alike; ``weight`` is their share of a mix."""

    wants: Wants
    duration: Draw
    weight: float = 1.0


PLAIN = Shape(Wants(gpu_milli=1000, cpus=2, memory_mib=8192), LogNormal(600.0, 1.0, 4 * 3600.0), 6.0)
LARGE = Shape(Wants(gpu_milli=1000, cpus=4, memory_mib=16384, vram_mib=70000, owner="bob"), LogNormal(1800.0, 0.8), 0.5)
SMALL = Shape(Wants(gpu_milli=250, cpus=1, memory_mib=2048, vram_mib=8000, owner="carol"), LogNormal(300.0, 0.8), 2.0)
IMPOSSIBLE = Shape(Wants(capability=990, owner="dave"), Fixed(60.0))
"""Asks for a compute capability that no drone type has."""


def burst(count: int, shape: Shape = PLAIN, *, at_s: float = 0.0, seed: int = 0) -> tuple[SimJob, ...]:
    """``count`` jobs at once."""
    rng = Random(f"{seed}/burst/{at_s}")
    return tuple(SimJob(at_s, shape.duration.draw(rng), shape.wants) for _ in range(count))


def poisson_mix(
    shapes: Sequence[Shape], *, per_hour: float, span_s: float, seed: int, from_s: float = 0.0
) -> tuple[SimJob, ...]:
    """Jobs of ``shapes`` that arrive independently of one another, ``per_hour`` on average."""
    rng = Random(f"{seed}/poisson")
    weights = [shape.weight for shape in shapes]
    jobs, at_s = [], from_s
    while (at_s := at_s + rng.expovariate(per_hour / 3600.0)) < from_s + span_s:
        shape = rng.choices(shapes, weights)[0]
        jobs.append(SimJob(at_s, shape.duration.draw(rng), shape.wants))
    return tuple(jobs)


def day(*, count: int = 4000, seed: int = 0, shapes: Sequence[Shape] = (PLAIN, LARGE, SMALL)) -> tuple[SimJob, ...]:
    """Exactly ``count`` jobs over 24 hours: half spread evenly, half in ten bursts between 8 and 20 o'clock."""
    rng = Random(f"{seed}/day")
    peaks_s = [rng.uniform(8 * 3600.0, 20 * 3600.0) for _ in range(10)]
    weights = [shape.weight for shape in shapes]
    jobs = []
    for n in range(count):
        at_s = rng.uniform(0, DAY_S) if n % 2 else min(DAY_S, rng.choice(peaks_s) + rng.uniform(0, 120.0))
        shape = rng.choices(shapes, weights)[0]
        jobs.append(SimJob(at_s, shape.duration.draw(rng), shape.wants))
    return tuple(sorted(jobs, key=lambda job: job.submit_s))


def read_trace(
    path: Path, *, from_s: float = 0.0, span_s: float = DAY_S, limit: int | None = None
) -> tuple[SimJob, ...]:
    """Jobs of a trace in the common form (CSV, may be gzipped), those submitted in ``span_s`` after ``from_s``.

    Columns: ``submit_s, duration_s, gpus, gpu_milli, vram_mb, cpus, mem_mb, user, group``; an empty field means not
    told; others are not used. Jobs without a run time or a GPU are left out. Submission times count from ``from_s``.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", newline="") as lines:
        rows = (job for row in csv.DictReader(lines) if (job := _traced(row)) is not None)
        wanted = (job for job in rows if from_s <= job.submit_s < from_s + span_s)
        return tuple(SimJob(job.submit_s - from_s, job.duration_s, job.wants) for job in islice(wanted, limit))


def _traced(row: dict[str, str]) -> SimJob | None:
    gpus, share_milli = _number(row, "gpus", 1.0), _number(row, "gpu_milli", 1000.0)
    duration_s = _number(row, "duration_s", 0.0)
    gpu_milli = round(gpus * share_milli) if gpus >= 1 else round(share_milli if row.get("gpu_milli") else gpus * 1000)
    if duration_s <= 0 or gpu_milli <= 0:
        return None
    wants = Wants(
        gpu_milli=gpu_milli,
        cpus=max(1, round(_number(row, "cpus", 1.0))),
        memory_mib=max(1, round(_number(row, "mem_mb", 1024.0))),
        vram_mib=round(_number(row, "vram_mb", 0.0)),
        owner=row.get("user") or row.get("group") or "nobody",
    )
    return SimJob(_number(row, "submit_s", 0.0), duration_s, wants)


def _number(row: dict[str, str], column: str, otherwise: float) -> float:
    text = row.get(column) or ""
    return float(text) if text else otherwise
