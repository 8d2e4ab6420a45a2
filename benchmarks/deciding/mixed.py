"""A mixed world: a quarter of the GPU-hours of a trace in jobs of 2, 4 and 8 GPUs, at sites that report their nodes.

    python -m benchmarks.deciding.mixed [--trace 6214e9] [--owner vc8Sj] [--days 7] [--seeds 1 2] [--with | --without]

It compares the waits of jobs of several GPUs with those of one-GPU jobs of the same length, with and without
reservations (:mod:`provisioner.planner.reservations`). The waits of a job end with its completion: lost work counts.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random

from benchmarks.deciding.ablation import switched_off
from benchmarks.deciding.worlds import PLACES, POOL, UNLIMITED, facilities, jobs_of, owner_of
from provisioner.model import WHOLE_GPU, Policy
from provisioner.simulator.jobs import SimulatedJob
from provisioner.simulator.replay import waits
from provisioner.simulator.sites import Facility
from provisioner.simulator.world import Scenario, SimulationOutcome, simulate

SIZES: Mapping[int, int] = {2: 4, 4: 2, 8: 1}
"""GPUs of a job, and how many such jobs there are: equal GPU-hours of each size."""
MULTI_SHARE = 0.25
"""Part of the GPU-hours in jobs of several GPUs."""
NODE_GPUS: Mapping[str, int] = {"topas": 8, "cloud": 4, "horeka": 8}
LENGTHS_S = (0.0, 600.0, 3600.0, 4 * 3600.0, float("inf"))
"""Bounds of the run times within which waits are compared."""


def mixed_jobs(jobs: Sequence[SimulatedJob], seed: int) -> Iterator[SimulatedJob]:
    """Yield the jobs of a trace, some of them on several GPUs; each of those stands for as many jobs of one GPU."""
    rng = Random(f"{seed}/mixed")
    mean = sum(gpus * count for gpus, count in SIZES.items()) / sum(SIZES.values())
    chance = MULTI_SHARE / (MULTI_SHARE + (1 - MULTI_SHARE) * mean)
    left_out = 0
    for job in jobs:
        if left_out:
            left_out -= 1
        elif rng.random() < chance:
            gpus = rng.choices(tuple(SIZES), tuple(SIZES.values()))[0]
            left_out = gpus - 1
            yield replace(job, wants=replace(job.wants, gpu_milli=gpus * WHOLE_GPU))
        else:
            yield job


def mixed_facilities(owner: str) -> tuple[Facility, ...]:
    """Return the reference world with drones of 2, 4 and 8 GPUs, as many as a node has."""
    found = []
    for site in facilities(owner_of(owner)):
        most = NODE_GPUS[site.name]
        sizes = [gpus for gpus in (1, *SIZES) if gpus <= most]
        types, serves, behaviour_of = [], {}, {}
        for kind in site.types:
            for gpus in sizes:
                name = kind.name if gpus == 1 else f"{kind.name}x{gpus}"
                amounts = {
                    f: getattr(kind, f) * gpus
                    for f in ("gpu_milli", "cpus", "memory_mib", "disk_mib")
                }
                types.append(
                    replace(kind, name=name, max_drones=(kind.max_drones or 0) // gpus, **amounts)
                )
                serves[name] = site.serves[kind.name]
                behaviour_of[name] = site.behaviour_of[kind.name]
        pools = tuple(
            replace(pool, gpus_per_node=most, nodes=pool.gpus // most) for pool in site.pools
        )
        gpus = sum(place.gpus for place in PLACES if place.site == site.name)
        policy = replace(site.policy, max_drones=UNLIMITED, max_gpu_milli=gpus * WHOLE_GPU)
        found.append(
            replace(
                site,
                policy=policy,
                types=tuple(types),
                pools=pools,
                serves=serves,
                behaviour_of=behaviour_of,
                reports_nodes=True,
            )
        )
    return tuple(found)


def play(trace: str, owner: str, days: float, seed: int) -> SimulationOutcome:
    """Play the mixed world with the product's planner."""
    jobs = tuple(mixed_jobs(jobs_of(trace, days), seed))
    limit_s = jobs[-1].submit_s + 30 * 86400.0
    return simulate(
        Scenario(mixed_facilities(owner), jobs, seed, Policy(), pool=POOL, limit_s=limit_s)
    )


def report(outcome: SimulationOutcome) -> Iterator[str]:
    """Yield lines of figures: waste, and waits by number of GPUs and by length."""
    hours = outcome.metrics.gpu_seconds.hours
    parts = ", ".join(
        f"{name} {100 * getattr(hours, name) / hours.good:.1f}"
        for name in ("idle", "boot", "badput")
    )
    yield f"waste {100 * hours.waste:.1f} % ({parts}), {outcome.jobs_done} of {outcome.jobs} jobs done"
    yield from outcome.violations[:3]
    by: dict[tuple[str, int], list[float]] = defaultdict(list)
    for job in outcome.metrics.finished:
        gpus, wait_s, run_s = round(job.gpus), job.wait_s, job.gpu_s / job.gpus
        length = next(n for n, most_s in enumerate(LENGTHS_S[1:]) if run_s < most_s)
        for size in (str(gpus), "2-8") if gpus > 1 else ("1",):
            by[size, length].append(wait_s)
            by[size, -1].append(wait_s)
    for length in range(-1, len(LENGTHS_S) - 1):
        words = (
            "all"
            if length < 0
            else f"{LENGTHS_S[length] / 60:.0f}-{LENGTHS_S[length + 1] / 60:.0f} min"
        )
        one = waits(by["1", length])
        yield f"{words:>14}  1 GPU: {one.jobs:5} jobs, mean {one.mean_s:7.0f}, 95 % {one.p95_s:7.0f} s"
        for size in ("2-8", *map(str, SIZES)):
            some = waits(by[size, length])
            ratio = some.p95_s / one.p95_s if one.p95_s else 0.0
            told = f"{some.jobs:5} jobs, mean {some.mean_s:7.0f}, 95 % {some.p95_s:7.0f} s = {ratio:.2f} times"
            yield f"{size:>16} GPUs: {told}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", default="6214e9")
    parser.add_argument("--owner", default="vc8Sj")
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--without", action="store_true", help="only without reservations")
    parser.add_argument(
        "--with", dest="only_with", action="store_true", help="only with reservations"
    )
    wanted = parser.parse_args()
    for seed in wanted.seeds:
        if not wanted.only_with:
            with switched_off("reservations"):
                found = play(wanted.trace, wanted.owner, wanted.days, seed)
            print(f"seed {seed}, without reservations:", *report(found), sep="\n  ", flush=True)
        if not wanted.without:
            found = play(wanted.trace, wanted.owner, wanted.days, seed)
            print(f"seed {seed}, with reservations:", *report(found), sep="\n  ", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
