"""The first day compared with later ones: work lost and waits of the jobs submitted in a part of the trace.

A job belongs to the window in which it was submitted, with all that it loses until it is done. A
count by the time of the loss would say little of a first day: a job of a day that was begun in it
ends, or is preempted, on the second.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.deciding.worlds import DAY_S
from provisioner.simulator.replay import waits
from provisioner.simulator.results import FinishedJob

FIRST_DAY = (0.0, 1.0)
"""The first 24 hours of the trace, in days."""
LATER_DAYS = (10.0, 20.0)
"""Days on which all estimates have been learned."""


@dataclass(frozen=True, slots=True)
class Window:
    """The finished jobs that were submitted within some days."""

    jobs: int
    lost: float
    """GPU time of attempts that had to be repeated, per GPU time of the jobs."""
    wait_mean_s: float
    wait_p95_s: float


def window_of(finished: Iterable[FinishedJob], days: tuple[float, float]) -> Window | None:
    """Return the figures of the jobs submitted from one day until another; None if there is no such job."""
    from_s, until_s = (day * DAY_S for day in days)
    inside = [job for job in finished if from_s <= job.submit_s < until_s]
    if not inside:
        return None
    waited = waits(job.wait_s for job in inside)
    lost = sum(job.lost_gpu_s for job in inside) / sum(job.gpu_s for job in inside)
    return Window(len(inside), lost, waited.mean_s, waited.p95_s)
