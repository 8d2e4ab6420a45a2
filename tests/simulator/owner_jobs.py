"""An owner's jobs made from a series of the GPUs that they want.
A series says how many GPUs were busy or asked for, and when; it knows no jobs. They are put back like this: a step up
by n is n GPUs' worth of new jobs, of sizes drawn from 1, 2, 4 and 8, the last cut to what is
left; a step down by n ends jobs of n GPUs in all, drawn from those that run and are not larger than what is still to
end. Where all that run are larger, the rest is carried over to the next step down. So the sum of the jobs follows the
series, at most seven GPUs above it. CPUs and RAM are drawn per job: no source has them. What a job waits in the
simulation comes on top: its run time stays what the series gave it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

from provisioner.simulator.traces import OwnerLoadSeries
from tests.simulator.owner_queue import OwnerJob

SIZES = {1: 5, 2: 2, 4: 2, 8: 4}
"""GPUs of a job, and how many of 13 jobs are so: most jobs are small, and most GPUs are in large ones."""
LEAST_S = 60.0
"""No job is shorter."""


def part_of(load: OwnerLoadSeries, rng: Random, *, span_s: float, per_hour: float = 15.0) -> OwnerLoadSeries:
    """``span_s`` from somewhere in it, played so fast (up to 8 times) that about ``per_hour`` steps come. Quiet
    parts, in which the owner never asks for a quarter of the cluster more, are passed over where others are."""
    pace = len(load.steps) / (load.span_s / 3600.0)
    faster = min(8.0, max(1.0, per_hour / pace))
    part = load
    for _ in range(16):
        part = window_of(load, rng.uniform(0.0, load.span_s - span_s * faster), span_s * faster, faster=faster)
        if rise_of(part) >= load.gpus / 4:
            break
    return part


def rise_of(load: OwnerLoadSeries) -> int:
    """GPUs of all steps up but the first."""
    return sum(max(0, after - before) for (_, before), (_, after) in pairwise(load.steps))


def window_of(load: OwnerLoadSeries, from_s: float, span_s: float, *, faster: float = 1.0) -> OwnerLoadSeries:
    """``span_s`` of it from ``from_s`` on, counted from 0, and played ``faster`` times as fast."""
    before = [gpus for at_s, gpus in load.steps if at_s <= from_s]
    inside = [((at_s - from_s) / faster, gpus) for at_s, gpus in load.steps if from_s < at_s < from_s + span_s]
    return OwnerLoadSeries(load.name, load.gpus, ((0.0, before[-1] if before else 0), *inside))


def trace_file(root: Path) -> Path | None:
    """The owner-load trace, where it is: in the directory that ``PROVISIONER_TRACES`` names, else in ``shared/traces``
    beside the project's ``root``. No part of the project: it has a licence of its own."""
    place = os.environ.get("PROVISIONER_TRACES")
    path = (Path(place) if place else root.parent / "shared" / "traces") / "owner_load_public.csv.gz"
    return path if path.is_file() else None


def made_load(seed: int, *, gpus: int, span_s: float, per_hour: float = 12.0) -> OwnerLoadSeries:
    """A series of the same kind: steps that arrive independently, ``per_hour`` on average, mostly by 1, 8, 4, 2 and 16
    GPUs, up as often as down, drawn towards half of the cluster."""
    rng = Random(f"{seed}/owner load")
    now_s, wanted = 0.0, rng.randint(0, gpus // 2)
    steps = [(0.0, wanted)]
    while (now_s := now_s + rng.expovariate(per_hour / 3600.0)) < span_s:
        size = rng.choices((1, 2, 4, 8, 16), (35, 15, 15, 25, 10))[0]
        up = rng.random() < 1.0 - wanted / gpus
        wanted = min(gpus, wanted + size) if up else max(0, wanted - size)
        steps.append((now_s, wanted))
    return OwnerLoadSeries("made", gpus, tuple(steps))


def owner_jobs(
    load: OwnerLoadSeries,
    seed: int,
    *,
    until_s: float,
    cpus: Sequence[int] = (1, 4, 8, 12),
    mib: Sequence[int] = (4096, 20480),
) -> tuple[OwnerJob, ...]:
    """The jobs behind a series. Per GPU a job has one of ``cpus`` and up to ``mib[-1]`` of RAM; what runs at the end of
    the series ends ``until_s`` at the latest."""
    rng = Random(f"{seed}/owner jobs")
    jobs: list[OwnerJob] = []
    running: list[tuple[float, int]] = []
    wanted, debt = 0, 0

    def end(job: tuple[float, int], at_s: float) -> None:
        begin_s, gpus = job
        each, memory_mib = rng.choice(cpus), rng.randint(mib[0], mib[-1])
        jobs.append(OwnerJob(begin_s, max(LEAST_S, at_s - begin_s), gpus, gpus * each, gpus * memory_mib))

    for at_s, gpus in load.steps:
        for size in _sizes(gpus - wanted, rng):
            running.append((at_s, size))
        debt += max(0, wanted - gpus)
        wanted = gpus
        while small := [job for job in running if job[1] <= debt]:
            chosen = rng.choice(small)
            running.remove(chosen)
            debt -= chosen[1]
            end(chosen, at_s)
    for job in running:
        end(job, max(job[0], until_s))
    return tuple(sorted(jobs, key=lambda job: job.submit_s))


def _sizes(gpus: int, rng: Random) -> list[int]:
    """Jobs that want ``gpus`` together."""
    found = []
    while gpus > 0:
        size = min(gpus, rng.choices(tuple(SIZES), tuple(SIZES.values()))[0])
        found.append(size)
        gpus -= size
    return found
