"""Waiting while idle: the part of all waiting in which a GPU that fits was free, at a site that says so.

A job counts at a moment if it has waited for longer than a site takes to start a drone, and if a
GPU of that site was free for all of that time: a drone that had been ordered in time would run it
now. As many jobs count as there were such GPUs, less those whose drone is starting there, since a
start may take longer than the mean. Sites behind a queue of their own do not count, since a quota
that is left is no free GPU. Waits are those until the first start: a job that an owner has
preempted waits for another reason.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from benchmarks.deciding.worlds import PLACES
from provisioner.simulator.results import Sample

SAMPLE_S = 15.0


def share_while_idle(starts: Sequence[tuple[float, float]], samples: Sequence[Sample]) -> float:
    """Return waiting while idle per waiting, both in job-seconds; ``starts`` are submissions and first starts."""
    waited_s = sum(start_s - submit_s for submit_s, start_s in starts)
    sites = sorted(START_S, key=START_S.__getitem__, reverse=True)
    older = {site: _waiting_for_longer(START_S[site], starts) for site in sites}
    free = {site: list(_least_free(site, START_S[site], samples)) for site in sites}
    idle_s = 0.0
    for n, (sample, following) in enumerate(pairwise(samples)):
        counted = 0
        starting = sum(
            sample.booting[site] + min(sample.queued[site], _free(site, sample)) for site in sites
        )
        # from the slowest: its jobs have waited long enough for the others as well
        for site in sites:
            counted += max(0, min(free[site][n], older[site](sample.at_s) - counted))
        idle_s += max(0, counted - starting) * (following.at_s - sample.at_s)
    return idle_s / waited_s if waited_s else 0.0


def _waiting_for_longer(
    than_s: float, starts: Sequence[tuple[float, float]]
) -> Callable[[float], int]:
    """Return a function that counts the jobs which have waited for longer than ``than_s`` at a time."""
    late = [
        (submit_s + than_s, start_s) for submit_s, start_s in starts if start_s - submit_s > than_s
    ]
    from_s, to_s = sorted(since_s for since_s, _ in late), sorted(start_s for _, start_s in late)
    return lambda at_s: bisect_right(from_s, at_s) - bisect_right(to_s, at_s)


def _start_times() -> Mapping[str, float]:
    """Return the mean start-up time of a drone, from its order to its first job, by site that reports what is free."""
    return {place.site: place.queue_mean_s + place.boot_s for place in PLACES if place.reports_free}


START_S = _start_times()
GPUS = {site: sum(place.gpus for place in PLACES if place.site == site) for site in START_S}
OWNED = {place.site for place in PLACES if place.owned}


def _free(site: str, sample: Sample) -> int:
    held = sample.by_site.get(site, 0.0) + (sample.gpus_owner if site in OWNED else 0.0)
    return GPUS[site] - round(held)


def _least_free(site: str, over_s: float, samples: Sequence[Sample]) -> Iterator[int]:
    """Yield the least number of GPUs that were free at a site in the time before each sample."""
    window: deque[tuple[float, int]] = deque()
    for sample in samples:
        free = _free(site, sample)
        while window and window[-1][1] >= free:
            window.pop()
        window.append((sample.at_s, free))
        while window[0][0] < sample.at_s - over_s:
            window.popleft()
        yield window[0][1]
