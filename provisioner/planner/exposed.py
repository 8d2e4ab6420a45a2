"""Drones whose place the owner is likely to take before the jobs that wait would be done there.

A drone is started where it is safe enough for the jobs that waited then (:mod:`risk`). Later the owner may have come
nearer, or longer jobs may wait. What runs is left alone, for ending it loses it for certain; but the next job is better
off in a safer place, if there is one to wait for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from provisioner.estimates import OwnerGrowth
from provisioner.model import Drone, DroneId, JobClass
from provisioner.planner.avoids import is_avoided
from provisioner.planner.risk import accepted, free_milli, lost, runs_of, waited
from provisioner.planner.scene import Scene
from provisioner.planner.shapes import Suited
from provisioner.reasons import DrainAtRisk

TOO_MUCH = 2.0
"""A drone takes no more jobs where they would lose so many times what they accept. One that leaves for this is taken
back only where they would lose no more than they accept, and none is started where they would: nothing swings."""


class Line(NamedTuple):
    """Drones that hold GPUs at a site, the newest first, and how much the owner takes before each of them."""

    drones: list[Drone]
    heads_milli: list[int]


@dataclass(slots=True)
class Exposure:
    """Who stands how near to an owner; local to one decision."""

    scene: Scene
    safer: Callable[[Suited], bool]
    """Whether such jobs may wait for a place that nobody takes: as it is asked before a start."""
    where: dict[Suited, frozenset[str]] = field(default_factory=dict)
    lines: dict[str, Line] | None = None

    def most_exposed(self) -> Mapping[DroneId, DrainAtRisk]:
        """Drones in the pool that should take no more jobs, and why: judged by the jobs that are next in line."""
        found: dict[DroneId, DrainAtRisk] = {}
        for site, job in self._next_in_line().items():
            found.update(self.to(job, self.scene.suited[job.id], site, TOO_MUCH))
        return found

    def to(self, job: JobClass, suited: Suited, site: str, times: float = 1.0) -> Mapping[DroneId, DrainAtRisk]:
        """Drones at a site where jobs of a class would lose more than ``times`` what they accept."""
        line = self._line(site) if site in self._owned(suited) else None
        if line is None:
            return {}
        rise = self.scene.snapshot.estimates.rises[site]
        runs = runs_of(self.scene, job)
        limit = accepted(waited(self.scene, job), runs)
        loss = partial(_loss, runs, rise)
        safe = bisect_left(line.heads_milli, True, key=lambda head: loss(head) <= times * limit)
        return {
            drone.id: DrainAtRisk(site, loss(head), limit)
            for drone, head in zip(line.drones[:safe], line.heads_milli, strict=False)
            if drone.joined_at
            and not drone.notice_at
            and drone.type in suited.places
            and not is_avoided(job.owner, drone.avoids)
        }

    def _next_in_line(self) -> Mapping[str, JobClass]:
        """By site with an owner: the jobs that have waited longest among those that could run there."""
        found: dict[str, JobClass] = {}
        for job in self.scene.classes if self.scene.snapshot.estimates.rises else ():
            for site in self._owned(self.scene.suited[job.id]) if job.waiting else ():
                if site not in found or (job.waits_since, job.id) < (found[site].waits_since, found[site].id):
                    found[site] = job
        return found

    def _owned(self, suited: Suited) -> frozenset[str]:
        """Sites with an owner where such jobs could run, if there is a safer one to wait for."""
        found = self.where.get(suited)
        if found is None:
            sites = {kind.site for kind in suited.kinds} & self.scene.snapshot.estimates.rises.keys()
            found = self.where[suited] = frozenset(sites) if sites and self.safer(suited) else frozenset()
        return found

    def _line(self, site: str) -> Line | None:
        if self.lines is None:
            self.lines = _lines(self.scene)
        return self.lines.get(site)


def _lines(scene: Scene) -> dict[str, Line]:
    """By site with an owner. He takes what is free first, then the places of those that came last."""
    free = {site: head for site in scene.snapshot.estimates.rises if (head := free_milli(scene, site)) is not None}
    there: dict[str, list[Drone]] = {site: [] for site in free}
    for drone in scene.drones.values():
        if drone.started_at and (found := there.get(drone.site)) is not None:
            found.append(drone)
    lines = {}
    for site, drones in there.items():
        drones.sort(key=lambda drone: (-drone.started_at, drone.id))
        sizes = (drone.gpu_milli for drone in drones[:-1])
        lines[site] = Line(drones, list(accumulate(sizes, initial=free[site])) if drones else [])
    return lines


def _loss(runs: tuple[float, ...], rise: OwnerGrowth, head_milli: int) -> float:
    return lost(runs, rise.chances(head_milli))
