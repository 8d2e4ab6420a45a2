"""Survival estimates: run times of jobs, some of which are not done.

A job that runs, or was cut short, takes longer than it has run so far. To learn from completed jobs alone is blind
where it matters: none of a user's first jobs of a day is completed for a day, and a job that an owner cuts short each
time never is. The estimate of Kaplan and Meier ("Nonparametric estimation from incomplete observations", J. Am. Stat.
Assoc. 53, 1958) takes such jobs in, here in the form of Efron ("The two sample problem with censored data", Proc. 5th
Berkeley Symp. 4, 1967): the weight of an unfinished job goes to all that took longer, in equal parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from provisioner.estimates import run_keys
from provisioner.model import DroneId, OverlayView

CUT_KEPT = 1000
"""Jobs that were cut short, the newest."""
LONGER = 2.0
"""What has run longer than all that was done will run so many times as long: seen at any moment of its life a job is,
in the median, half done (Gott, "Implications of the Copernican principle", Nature 363, 1993)."""

Keys = tuple[str, ...]
"""Under what run times of a job are kept (:func:`provisioner.estimates.run_keys`), the widest last."""


@dataclass(slots=True)
class UnfinishedJobs:
    """Jobs that run alone in a drone, and those that were evicted from one.

    Forgotten with this life of the controller: running jobs are seen again.
    """

    running: dict[DroneId, tuple[Keys, float]] = field(default_factory=dict)
    """By drone: whose job runs there, and since when."""
    cut: dict[str, tuple[Keys, float]] = field(default_factory=dict)
    """By job: for how long it ran before it was evicted, the longest time."""

    def note(self, view: OverlayView) -> None:
        """Take in a view of the pool: first the evictions of jobs that ran at the view before."""
        for eviction in view.evictions or ():
            keys, begun_at = self.running.get(eviction.drone_id, ((), eviction.at))
            before_s = self.cut.pop(eviction.job_id, (keys, 0.0))[1]
            ran_s = max(eviction.at - begun_at, before_s)
            if keys and ran_s > 0:
                self.cut[eviction.job_id] = keys, ran_s
        while len(self.cut) > CUT_KEPT:
            del self.cut[next(iter(self.cut))]
        self.running = {
            slot.drone_id: (
                run_keys(slot.owner, slot.job_gpu_milli, slot.job_cpus, slot.job_memory_mib),
                slot.begun_at,
            )
            for slot in view.slots
            if slot.job_cpus and slot.begun_at and slot.owner
        }

    def so_far(self, now: float) -> Iterator[tuple[Keys, list[float]]]:
        """Yield the run times so far of unfinished jobs, by key, with all wider keys."""
        ages = [(keys, max(0.0, now - begun_at)) for keys, begun_at in self.running.values()]
        ages += self.cut.values()
        for level in range(3):
            found: dict[Keys, list[float]] = {}
            for keys, ran_s in ages:
                found.setdefault(keys[level:], []).append(ran_s)
            yield from found.items()

    def forget(self, user: str) -> None:
        """Forget the evicted jobs of one user."""
        self.cut = {job: cut for job, cut in self.cut.items() if user not in cut[0]}


def expected(done: Sequence[float], unfinished: Sequence[float], count: int) -> tuple[float, ...]:
    """Return ``count`` equally likely run times in seconds, ascending.

    They are of jobs some of which are ``done`` after so many seconds, and others ``unfinished`` after so many.
    """
    longest_done = max(done, default=0.0)
    # A job that ends in the very moment up to which another was seen ends before that one.
    seen = sorted([(run_s, False) for run_s in done] + [(run_s, True) for run_s in unfinished])
    weighted: list[tuple[float, float]] = []
    weight = 1.0
    for longer, (run_s, goes_on) in zip(range(len(seen) - 1, -1, -1), seen, strict=True):
        if not goes_on:
            weighted.append((run_s, weight))
        elif run_s >= longest_done:
            weighted.append((LONGER * run_s, weight))
        else:
            weight *= (longer + 1) / longer
    return _quantiles(weighted, count)


def _quantiles(weighted: Iterable[tuple[float, float]], count: int) -> tuple[float, ...]:
    values, weights = zip(*sorted(weighted), strict=True)
    reached = list(accumulate(weights))
    found, at = [], 0
    for n in range(count):
        wanted = (n + 0.5) / count * reached[-1]
        while reached[at] < wanted:
            at += 1
        found.append(values[at])
    return tuple(found)
