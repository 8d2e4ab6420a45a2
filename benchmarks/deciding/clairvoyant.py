"""The clairvoyant schedule: who knows arrivals, run times and the owners' load needs no simulation.

First come, first served, each job to the place where it can start first and end without the owner
taking the place, at the least cost of the gap before it: a drone is kept over a gap, or let go and
another started just in time. It is a feasible greedy schedule and a reference, not a proven bound:
a schedule that lets jobs wait can waste less. ``wait_weight`` sets what a second of waiting may
cost in GPU-seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.deciding.worlds import Place, Steps
from provisioner.simulator.jobs import SimulatedJob
from provisioner.simulator.results import FinishedJob, GpuTime

NEVER_WAIT = 1e9
ENDLESS_S = float("inf")


@dataclass(slots=True)
class Chair:
    """One GPU, with the windows in which it is ours."""

    start_s: float
    """GPU-seconds that it takes to start a drone here and to let it go."""
    windows: Sequence[tuple[float, float]]
    ends: list[float] = field(init=False)
    free_from_s: float = 0.0
    used: bool = False

    def __post_init__(self) -> None:
        self.ends = [end_s for _, end_s in self.windows]

    def earliest(self, job: SimulatedJob) -> float | None:
        """When the job could start here and end in the same window."""
        from_s = max(job.submit_s, self.free_from_s)
        for begin_s, end_s in self.windows[bisect_right(self.ends, from_s) :]:
            at_s = max(from_s, begin_s)
            if at_s + job.duration_s <= end_s:
                return at_s
        return None

    def cost_s(self, at_s: float) -> float:
        """GPU-seconds lost by starting a job then: the gap, if the drone is kept, else a new drone."""
        gap_s = at_s - self.free_from_s
        same = bisect_right(self.ends, self.free_from_s) == bisect_right(self.ends, at_s)
        return gap_s if self.used and gap_s < self.start_s and same else self.start_s


def schedule(
    jobs: Sequence[SimulatedJob],
    owner: Steps,
    places: Sequence[Place],
    *,
    wait_weight: float = NEVER_WAIT,
) -> tuple[GpuTime, list[FinishedJob]]:
    """Return the cost of the schedule, and its jobs in the order of their submission. All waste is put down as boot."""
    chairs = list(_chairs(owner, places))
    finished, wasted_s = [], 0.0
    for job in sorted(jobs, key=lambda job: job.submit_s):
        cost_s, at_s, chair = _best(chairs, job, wait_weight)
        wasted_s += cost_s
        finished.append(FinishedJob(job.submit_s, at_s - job.submit_s, job.duration_s, 0.0))
        chair.free_from_s, chair.used = at_s + job.duration_s, True
    good_h = sum(job.duration_s for job in jobs) / 3600
    return GpuTime(held=good_h + wasted_s / 3600, good=good_h, boot=wasted_s / 3600), finished


def _best(
    chairs: Sequence[Chair], job: SimulatedJob, wait_weight: float
) -> tuple[float, float, Chair]:
    best: tuple[float, float, float, Chair] | None = None
    for chair in chairs:
        at_s = chair.earliest(job)
        if at_s is None:
            continue
        cost_s = chair.cost_s(at_s)
        rank = wait_weight * (at_s - job.submit_s) + cost_s, at_s
        if best is None or rank < best[:2]:
            best = *rank, cost_s, chair
            if cost_s == 0.0 and at_s == job.submit_s:
                break
    assert best is not None, "no window is long enough for a job"
    return best[2], best[1], best[3]


def _chairs(owner: Steps, places: Sequence[Place]) -> Iterator[Chair]:
    """The owner fills his GPUs from the last to the first: the n-th is ours while he wants fewer than all but n."""
    owned = [place for place in places if place.owned]
    total = sum(place.gpus for place in owned)
    start_s = owned[0].boot_s + owned[0].release_s if owned else 0.0
    for number in range(total):
        windows = list(_windows(owner, total - 1 - number))
        if windows:
            yield Chair(start_s, windows)
    for place in places:
        if not place.owned:
            for _ in range(place.gpus):
                yield Chair(place.boot_s + place.release_s, [(0.0, ENDLESS_S)])


def _windows(owner: Steps, most: int) -> Iterator[tuple[float, float]]:
    """While the owner wants at most so many GPUs."""
    begin_s = None
    for (at_s, gpus), _ in pairwise((*owner, (ENDLESS_S, 0))):
        if gpus <= most and begin_s is None:
            begin_s = at_s
        elif gpus > most and begin_s is not None:
            yield begin_s, at_s
            begin_s = None
    if begin_s is not None:
        yield begin_s, ENDLESS_S
