"""How many drones may stand where an owner comes back: as many as can expect to lose little of their jobs' work.

An owner's site takes the place of whoever came last. A drone keeps its own for as long as the owner takes no more than
what is free now, less what drones that came after it hold: its *headroom*. How often owners took more than that within
the time that a job needs has been seen (:class:`provisioner.estimates.Rise`), so the work that a job can expect to lose
there follows, and is held against the work that it can expect to get done. A little loss is worth a start now; the
longer the jobs have waited, the more.

How much is a little? By its share of the work short jobs would wait for half an hour to save six seconds; by its amount
jobs of a day would wait for days to save an hour. So it goes by both alike, by their geometric mean: of the work of a
job that runs four times as long half the share may be lost, and that is twice as much.

Preferred over two simpler rules in replays of public traces: a limit on the chance of being preempted at all (long jobs
on a GPU that is nearly safe lose more than short ones at its edge), and refusing jobs at the drone alone (it has been
started for nothing then; beside this rule it helps: :mod:`avoids`). See ``docs/explanation/deciding.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import fmean

from provisioner.estimates import HORIZONS_S
from provisioner.model import DroneType, JobClass
from provisioner.planner.scene import Scene
from provisioner.reasons import OwnerRisk

TOLERATED = 0.02
"""Share of lost work that is accepted for jobs of :data:`USUAL_S` that have not waited."""
USUAL_S = 3600.0
PATIENCE_S = 3600.0
"""Jobs that have waited for so long accept twice of that, and so on."""
MOST_TOLERATED = 0.3


@dataclass(slots=True)
class Risk:
    """The headroom left at each owner's site; mutable, local to one decision."""

    scene: Scene
    head_milli: dict[str, int] = field(default_factory=dict)
    """By site: what is free and not promised to drones that are on their way."""

    @classmethod
    def of(cls, scene: Scene) -> Risk:
        risk = cls(scene)
        for site in scene.snapshot.estimates.rises:
            free = free_milli(scene, site)
            if free is not None:
                risk.head_milli[site] = free
        if risk.head_milli:
            for drone in scene.unsettled.values():
                if drone.site in risk.head_milli and drone.awaits_room:
                    risk.head_milli[drone.site] -= drone.gpu_milli
        return risk

    def allowed(self, job: JobClass, kind: DroneType, most: int, *, safer: bool) -> tuple[int, OwnerRisk | None]:
        """How many of ``most`` drones of a type may be started for jobs of a class, and why no more. Unless there is a
        ``safer`` place to wait for, all: work that is lost now and then is better than none."""
        estimates = self.scene.snapshot.estimates
        head, rate = self.head_milli.get(kind.site), estimates.taken_per_s.get(kind.site, 0.0)
        if not safer or (head is None and not rate):
            return most, None
        waited_s, runs = waited(self.scene, job), runs_of(self.scene, job)
        tolerated = accepted(waited_s, runs)
        why = OwnerRisk(kind.site, runs[len(runs) // 2], waited_s, tolerated)
        if head is None:
            return (most, None) if lost_at_rate(runs, rate) <= tolerated else (0, why)
        rise = estimates.rises[kind.site]
        good, bad = 0, most + 1  # the more there are, the likelier is the last one taken
        while bad - good > 1:
            middle = (good + bad) // 2
            if lost(runs, rise.chances(head - middle * kind.gpu_milli)) <= tolerated:
                good = middle
            else:
                bad = middle
        return good, why if good < most else None

    def bears(self, kind: DroneType) -> bool:
        """Whether places of a type are known to be taken back."""
        return kind.site in self.head_milli or bool(self.scene.snapshot.estimates.taken_per_s.get(kind.site))

    def book(self, kind: DroneType, count: int) -> None:
        """So many are started."""
        if kind.site in self.head_milli:
            self.head_milli[kind.site] -= count * kind.gpu_milli


def lost(runs: tuple[float, ...], chances: tuple[float, ...]) -> float:
    """Expected work lost per work done of jobs that run for ``runs``, each as likely as the others, in places that are
    taken back within :data:`provisioner.estimates.HORIZONS_S` with ``chances``. Beyond the last horizon the chance goes
    on as over that one."""
    lost_s = done_s = 0.0
    for run_s in runs:
        so_far, began_s = 0.0, 0.0
        for until_s, chance in zip(HORIZONS_S, chances, strict=True):
            if run_s <= began_s:
                break
            part = min(1.0, (run_s - began_s) / (until_s - began_s))
            more = max(0.0, chance - so_far) * part
            lost_s += more * (began_s + min(until_s, run_s)) / 2
            so_far += more
            began_s = until_s
        if run_s > began_s:
            whole = 1.0 - (1.0 - so_far) ** (run_s / began_s)
            lost_s += (whole - so_far) * run_s / 2
            so_far = whole
        done_s += run_s * (1.0 - so_far)
    return lost_s / done_s if done_s else math.inf if lost_s else 0.0


def lost_at_rate(runs: tuple[float, ...], rate_per_s: float) -> float:
    """The same where a place is taken back at any moment alike."""
    lost_s = done_s = 0.0
    for run_s in runs:
        kept = math.exp(-rate_per_s * run_s)
        done_s += run_s * kept
        lost_s += (1.0 - kept * (1.0 + rate_per_s * run_s)) / rate_per_s
    return lost_s / done_s if done_s else math.inf


def accepted(waited_s: float, runs: tuple[float, ...]) -> float:
    """Share of their work that jobs that run for ``runs`` may expect to lose after so long a wait."""
    share = TOLERATED * math.sqrt(USUAL_S / max(1.0, fmean(runs)))
    return min(MOST_TOLERATED, share * (1.0 + waited_s / PATIENCE_S))


def runs_of(scene: Scene, job: JobClass) -> tuple[float, ...]:
    """Equally likely run times of jobs of a class, in seconds."""
    return scene.snapshot.estimates.runs_of(job.owner, job.gpu_milli, job.cpus, job.memory_mib, job.walltime_s)


def waited(scene: Scene, job: JobClass) -> float:
    """For how many seconds one of them has been idle without a break. A job that was preempted accepts no more risk
    than a new one: what it has lost already should not make it lose more."""
    return max(0.0, scene.now - job.waits_since) if job.waits_since else 0.0


def free_milli(scene: Scene, site: str) -> int | None:
    """GPUs that nobody holds at a site; None if it cannot be seen. Where only counts by type are told, they may be
    alternatives on the same hardware: the largest is certain."""
    view = scene.trust.site_view(scene.snapshot, site)
    if view is None:
        return None
    if view.nodes:
        return sum(node.free_gpu_milli for node in view.nodes)
    if view.free_gpu_milli is not None:
        return view.free_gpu_milli
    sizes = {t.name: t.gpu_milli for t in scene.snapshot.types if t.site == site}
    return max((count * sizes.get(name, 0) for name, count in (view.free or {}).items()), default=None)
