"""Servers of an inference service over a day of bursts, against a scaler that knows all bursts.

Run it with ``python -m benchmarks.services [--seeds N] [--hold FACTOR ...] [--announced]``. The
clairvoyant scaler has as many servers ready as a burst needs, from its first to its last request.
It pays the start and the release of each server, and keeps one through a pause where that is
cheaper than to start another. ``--announced``: jobs of 10 requests/s announce each burst two minutes
before.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean
from unittest import mock

from provisioner import model
from provisioner.planner import services as planner
from provisioner.simulator.drones import SiteBehaviour
from provisioner.simulator.loop import Fixed, rng_for
from provisioner.simulator.pool import PoolBehaviour
from provisioner.simulator.results import ServiceResult
from provisioner.simulator.services import RequestBurst
from provisioner.simulator.sites import Facility, GpuPool
from provisioner.simulator.world import Scenario, simulate
from provisioner.simulator.world_file import WorldPlan
from provisioner.values import frozen

DAY_S = 86400.0
BURSTS = 50
BOOT_S, LOAD_S, RELEASE_S = 60.0, 30.0, 5.0
"""From the place of a drone to its server's first sign of life, from there until it is ready, and after its end."""
JOB_RATE = 10.0
"""Requests per second of one job that announces a burst."""
AHEAD_S = 120.0
"""Time before the burst at which these jobs are submitted."""
SERVICE = model.Service("cms", at_most=20)
SERVER = model.InferenceServer("cms", ("deepmet:3",), "exec server")
WORKER = model.DroneType("here", "worker", 1000, 8, 20480, 0)
TRITON = model.DroneType("here", "triton", 1000, 8, 20480, 0, vram_mib=16384, server=SERVER)


def day_of_bursts(seed: int, *, announced: bool = False) -> tuple[RequestBurst, ...]:
    """Return bursts at random times: 2 to 30 minutes, 1 to 200 requests/s of 50 ms."""
    rng = rng_for(seed, "bursts")
    bursts = []
    for _ in range(BURSTS):
        at_s = rng.uniform(0, DAY_S)
        for_s = 120 * math.exp(rng.uniform(0, math.log(15)))
        rate = math.exp(rng.uniform(0, math.log(200)))
        jobs = math.ceil(rate / JOB_RATE) if announced else 0
        bursts.append(RequestBurst("cms", at_s, for_s, rate, 0.05, jobs, AHEAD_S))
    return tuple(sorted(bursts, key=lambda burst: burst.at_s))


def scenario(bursts: tuple[RequestBurst, ...], seed: int) -> Scenario:
    behaviour = SiteBehaviour(boot=Fixed(BOOT_S), check=Fixed(LOAD_S), release=Fixed(RELEASE_S))
    limits = model.SitePolicy("here", max_drones=40, max_pending=40, max_starts_per_tick=40)
    pools = GpuPool("gpus", 8, 5), GpuPool("of-jobs", 8, 5)
    serves = {"triton": "gpus", "worker": "of-jobs"}
    facility = Facility(limits, (WORKER, TRITON), pools, serves, behaviour=behaviour)
    policy = model.Policy(services=(SERVICE,))
    jobs = WorldPlan((facility,), PoolBehaviour(), bursts=bursts).announcing_jobs
    return Scenario((facility,), jobs, seed=seed, policy=policy, bursts=bursts)


def needs(bursts: Sequence[RequestBurst]) -> Iterator[tuple[float, float, int]]:
    """Yield the times between changes of the demand, with the servers that it needs."""
    times = sorted({time for burst in bursts for time in (burst.at_s, burst.end_s)})
    for begin_s, end_s in pairwise(times):
        going_on = [each for each in bursts if each.at_s <= begin_s < each.end_s]
        work = sum(each.work for each in going_on)
        yield begin_s, end_s, math.ceil(round(work / SERVICE.load, 6))


def clairvoyant_gpu_s(bursts: Sequence[RequestBurst]) -> float:
    """Return the GPU-seconds of the clairvoyant scaler: each server serves the times at which so many are needed."""
    total_s = 0.0
    spans = list(needs(bursts))
    start_s = BOOT_S + LOAD_S + RELEASE_S
    for level in range(1, SERVICE.at_most + 1):
        last_s = -math.inf
        for begin_s, end_s, needed in spans:
            if needed >= level:
                total_s += end_s - begin_s + min(start_s, begin_s - last_s)
                last_s = end_s
    return total_s


@frozen
class Comparison:
    gpu_hours: float
    clairvoyant_h: float
    service: ServiceResult
    in_time: float
    """Part of the bursts with a first answer within the start of a server and two ticks."""

    @property
    def more(self) -> float:
        return self.gpu_hours / self.clairvoyant_h - 1


def compare(seed: int, *, announced: bool = False) -> Comparison:
    bursts = day_of_bursts(seed, announced=announced)
    outcome = simulate(scenario(bursts, seed))
    assert not outcome.violations, outcome.violations
    totals = outcome.services["cms"]
    limit_s = BOOT_S + LOAD_S + 2 * model.Policy().interval_s
    answers = totals.first_answers_s
    late = sum(1 for wait_s in answers if wait_s > limit_s)
    result = ServiceResult.of(totals)
    return Comparison(
        result.gpu_hours, clairvoyant_gpu_s(bursts) / 3600, result, 1 - late / len(answers)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--hold", type=float, nargs="*", default=[planner.HOLD_FACTOR])
    parser.add_argument("--announced", action="store_true")
    options = parser.parse_args()
    print("| hold | GPU-hours | clairvoyant | more | refused | wait at the balancer | in time |")
    print("|---|---|---|---|---|---|---|")
    for hold in options.hold:
        with mock.patch.object(planner, "HOLD_FACTOR", hold):
            seeds = range(1, options.seeds + 1)
            days = [compare(seed, announced=options.announced) for seed in seeds]
        hours = fmean(day.gpu_hours for day in days)
        least = fmean(day.clairvoyant_h for day in days)
        refused = fmean(day.service.refused / day.service.requests for day in days)
        queue_s = fmean(day.service.queue_s for day in days)
        in_time = fmean(day.in_time for day in days)
        print(
            f"| {hold:g} | {hours:.1f} | {least:.1f} | {hours / least - 1:+.1%} | {refused:.1%}"
            f" | {queue_s:.2f} s | {in_time:.1%} |"
        )


if __name__ == "__main__":
    main()
