"""Whose jobs a drone before an owner does not take.

A drone is started where it is safe enough for the jobs that asked for it. The pool gives it to whoever is next in line,
and that may be somebody whose jobs run all day: most of the work that is lost before owners is lost so. Such users are
named when the drone is asked for, and its START refuses them for as long as it lives. For their jobs it is no supply:
they get a drone where it is safe enough for them, or once they have waited for long enough.

By user, since a pool knows who a job's owner is, and seldom how long it runs. Of those whose jobs wait now, for who
comes later is not known yet; :mod:`drain-at-risk` sees to them.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from provisioner.model import DroneType, JobClass
from provisioner.planner.risk import Risk, accepted, lost, runs_of, waited
from provisioner.planner.scene import Scene
from provisioner.planner.shapes import Suited

CLASSES = 200
"""Of those who wait, so many classes are looked at, those that have waited longest: they are served first."""
LONGEST = 2000
"""Characters of the list: it travels in an environment variable and stands in an expression."""
_PLAIN = re.compile(r"[A-Za-z0-9._@-]{1,80}")


def is_avoided(owner: str, avoids: str) -> bool:
    """Whether a user is on a drone's list."""
    return bool(avoids) and owner in avoids.split(",")


@dataclass(slots=True)
class _Waits:
    """A class in the queue, with what its jobs can expect."""

    job: JobClass
    suited: Suited
    runs: tuple[float, ...]
    accepts: float


@dataclass
class Avoiding:
    """Who waits, and what he would lose where; local to one decision."""

    scene: Scene
    risk: Risk
    safer: Callable[[Suited], bool]
    """Whether such jobs may wait for a place that nobody takes."""

    def of_drones_for(self, job: JobClass, kind: DroneType) -> str:
        """Users whose jobs a drone of a type should not take that is started for jobs of a class, with commas between;
        empty where no owner's use is known."""
        head = self.risk.head_milli.get(kind.site)
        if head is None:
            return ""
        chances = self.scene.snapshot.estimates.rises[kind.site].chances(head)
        found: dict[str, None] = {}
        for each in self._waiting:
            user = each.job.owner
            if user == job.owner or user in found or kind.key not in each.suited.places:
                continue
            if lost(each.runs, chances) > each.accepts:
                found[user] = None
        return ",".join(_within(sorted(found)))

    @cached_property
    def _waiting(self) -> list[_Waits]:
        scene = self.scene
        idle = (job for job in scene.classes if (job.waiting or job.fresh) and _PLAIN.fullmatch(job.owner))
        longest = heapq.nsmallest(CLASSES, idle, key=lambda job: (job.waits_since, job.id))
        found = []
        for job in longest:
            suited, runs = scene.suited[job.id], runs_of(scene, job)
            if suited.kinds and self.safer(suited):
                found.append(_Waits(job, suited, runs, accepted(waited(scene, job), runs)))
        return found


def _within(users: list[str]) -> Iterator[str]:
    """As many as the list may hold."""
    left = LONGEST
    for user in users:
        left -= len(user) + 1
        if left < 0:
            return
        yield user
