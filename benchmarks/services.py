"""Servers of an inference service over a day of bursts, against a scaler that knows all bursts.

Run it with ``python -m benchmarks.services [--seeds N] [--hold FACTOR]``. The clairvoyant scaler has as
many servers ready as a burst needs, from its first to its last request. It pays the start and the
release of each server, and keeps one through a pause where that is cheaper than to start another.
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
from provisioner.simulator.results import ServiceResult
from provisioner.simulator.services import RequestBurst
from provisioner.simulator.sites import Facility, GpuPool
from provisioner.simulator.world import Scenario, simulate
from provisioner.values import frozen

DAY_S = 86400.0
BURSTS = 50
BOOT_S, LOAD_S, RELEASE_S = 60.0, 30.0, 5.0
"""From the place of a drone to its server's first sign of life, from there until it is ready, and after its end."""
SERVICE = model.Service("cms", at_most=20)
SERVER = model.InferenceServer("cms", ("deepmet:3",), "exec server")
TRITON = model.DroneType("here", "triton", 1000, 8, 20480, 0, vram_mib=16384, server=SERVER)


def day_of_bursts(seed: int) -> tuple[RequestBurst, ...]:
    """Return bursts at random times: 2 to 30 minutes, 1 to 200 requests/s of 50 ms."""
    rng = rng_for(seed, "bursts")
    bursts = [
        RequestBurst(
            "cms",
            at_s=rng.uniform(0, DAY_S),
            for_s=120 * math.exp(rng.uniform(0, math.log(15))),
            rate=math.exp(rng.uniform(0, math.log(200))),
            request_s=0.05,
        )
        for _ in range(BURSTS)
    ]
    return tuple(sorted(bursts, key=lambda burst: burst.at_s))


def scenario(bursts: tuple[RequestBurst, ...], seed: int) -> Scenario:
    behaviour = SiteBehaviour(boot=Fixed(BOOT_S), check=Fixed(LOAD_S), release=Fixed(RELEASE_S))
    limits = model.SitePolicy("here", max_drones=40, max_pending=40, max_starts_per_tick=40)
    facility = Facility(limits, (TRITON,), (GpuPool("gpus", 8, 5),), behaviour=behaviour)
    policy = model.Policy(services=(SERVICE,))
    return Scenario((facility,), (), seed=seed, policy=policy, bursts=bursts)


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


def compare(seed: int) -> Comparison:
    bursts = day_of_bursts(seed)
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
    options = parser.parse_args()
    print("| hold | GPU-hours | clairvoyant | more | refused | wait at the balancer | in time |")
    print("|---|---|---|---|---|---|---|")
    for hold in options.hold:
        with mock.patch.object(planner, "HOLD_FACTOR", hold):
            days = [compare(seed) for seed in range(1, options.seeds + 1)]
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
