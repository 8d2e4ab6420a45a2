"""An owner's jobs from a series of how many GPUs he wanted: read from a trace, or made from a seed.

A series says how many GPUs were busy or asked for, and when; it knows no jobs. They are put back like this: a step up
by n is n GPUs' worth of new jobs, of sizes drawn from 1, 2, 4 and 8, the last cut to what is
left; a step down by n ends jobs of n GPUs in all, drawn from those that run and are not larger than what is still to
end. Where all that run are larger, the rest is carried over to the next step down. So the sum of the jobs follows the
series, at most seven GPUs above it. CPUs and RAM are drawn per job: no source has them. What a job waits in the
simulation comes on top: its run time stays what the series gave it.
"""

from __future__ import annotations

import csv
import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

from provisioner.simulator.owner import OwnerJob
from provisioner.simulator.traces import TraceError, text_lines

SIZES = {1: 5, 2: 2, 4: 2, 8: 4}
"""GPUs of a job, and how many of 13 jobs are so: most jobs are small, and most GPUs are in large ones."""
LEAST_S = 60.0
"""No job is shorter."""
DAY_S = 86400.0
_SERIES = ("vc", "t_s", "total_gpus", "busy_gpus", "pending_gpus")


@dataclass(frozen=True, slots=True)
class Load:
    """How many GPUs an owner wants: steps ``(at_s, GPUs)``, the first at 0, and how many there are."""

    name: str
    gpus: int
    steps: tuple[tuple[float, int], ...]

    @property
    def span_s(self) -> float:
        return self.steps[-1][0]

    def part(self, rng: Random, *, span_s: float, per_hour: float = 15.0) -> Load:
        """``span_s`` from somewhere in it, played so fast (up to 8 times) that about ``per_hour`` steps come. Quiet
        parts, in which the owner never asks for a quarter of the cluster more, are passed over where others are."""
        pace = len(self.steps) / (self.span_s / 3600.0)
        faster = min(8.0, max(1.0, per_hour / pace))
        part = self
        for _ in range(16):
            part = self.window(rng.uniform(0.0, self.span_s - span_s * faster), span_s * faster, faster=faster)
            if part.rise >= self.gpus / 4:
                break
        return part

    @property
    def rise(self) -> int:
        """GPUs of all steps up but the first."""
        return sum(max(0, after - before) for (_, before), (_, after) in pairwise(self.steps))

    def window(self, from_s: float, span_s: float, *, faster: float = 1.0) -> Load:
        """``span_s`` of it from ``from_s`` on, counted from 0, and played ``faster`` times as fast."""
        before = [gpus for at_s, gpus in self.steps if at_s <= from_s]
        inside = [((at_s - from_s) / faster, gpus) for at_s, gpus in self.steps if from_s < at_s < from_s + span_s]
        return Load(self.name, self.gpus, ((0.0, before[-1] if before else 0), *inside))

    def scaled(self, gpus: int) -> Load:
        """The same for an owner of a cluster of ``gpus`` GPUs, who never wants more than all of it."""
        most = max(1, self.gpus)
        return Load(self.name, gpus, tuple((at_s, min(gpus, round(g * gpus / most))) for at_s, g in self.steps))

    def repeated(self, span_s: float) -> Load:
        """The same again and again, in whole days, until ``span_s`` is covered."""
        period_s = max(1, math.ceil(self.span_s / DAY_S)) * DAY_S
        times = max(1, math.ceil(span_s / period_s))
        steps = tuple((n * period_s + at_s, gpus) for n in range(times) for at_s, gpus in self.steps)
        return Load(self.name, self.gpus, steps)


def trace_file(root: Path) -> Path | None:
    """The owner-load trace, where it is: in the directory that ``PROVISIONER_TRACES`` names, else in ``shared/traces``
    beside the project's ``root``. No part of the project: it has a licence of its own."""
    place = os.environ.get("PROVISIONER_TRACES")
    path = (Path(place) if place else root.parent / "shared" / "traces") / "owner_load_public.csv.gz"
    return path if path.is_file() else None


def read_loads(path: Path, *, pending: bool = True) -> Mapping[str, Load]:
    """The series of a trace in the common form (CSV, may be gzipped): ``vc, t_s, total_gpus, busy_gpus, pending_gpus``,
    a row at each change. ``pending``: GPUs that the owner waits for count as well. Raises TraceError."""
    rows: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
    total: dict[str, int] = {}
    lines = csv.DictReader(text_lines(path))
    lacking = [name for name in _SERIES if name not in (lines.fieldnames or ())]
    if lacking:
        raise TraceError(f"{path}:1: there is no column `{lacking[0]}`: an owner's load has {', '.join(_SERIES)}")
    for row in lines:
        try:
            at_s, (there, busy, wanted) = float(row["t_s"]), (int(float(row[name])) for name in _SERIES[2:])
        except (TypeError, ValueError, OverflowError):
            raise TraceError(
                f"{path}:{lines.line_num}: not a row of {', '.join(_SERIES)}: all but `vc` are numbers"
            ) from None
        rows[row["vc"]].append((at_s, busy + wanted if pending else busy))
        total[row["vc"]] = max(total.get(row["vc"], 0), there)
    return {name: Load(name, total[name], tuple(steps)) for name, steps in rows.items()}


def made_load(seed: int, *, gpus: int, span_s: float, per_hour: float = 12.0) -> Load:
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
    return Load("made", gpus, tuple(steps))


def owner_jobs(
    load: Load, seed: int, *, until_s: float, cpus: Sequence[int] = (1, 4, 8, 12), mib: Sequence[int] = (4096, 20480)
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
