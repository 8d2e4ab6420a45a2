"""Fairness between accounting groups: what each group may still get, and the order in which classes are served.

The rules are those of HTCondor's negotiator: a group with a quota gets up to its quota, the group that uses the
smallest part of its own first. What is left goes to the groups that may take surplus. So no drone is started that would
be matched to nobody, and the queue of a large group does not take the room that a small one is due.

Names nest by dots. A job of ``physics.atlas`` counts against the quotas of ``physics.atlas`` and ``physics``; a job of
an unlisted group counts against the listed groups that contain it. Names are case-insensitive, as in HTCondor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from provisioner.model import ON_THE_WAY, WHOLE_GPU, Group, JobClass
from provisioner.planner.context import PlanningContext
from provisioner.reasons import GroupQuota

_LAST_PRIORITY = float("inf")


@dataclass(slots=True)
class GroupShares:
    """Use and grants of each group. Mutable, local to one plan."""

    groups: Mapping[str, Group]
    """By name in lower case."""
    granted: dict[str, int] = field(default_factory=dict)
    """Milli-GPUs granted by this plan, by the same names."""

    @classmethod
    def of(cls, context: PlanningContext) -> GroupShares:
        """Read the groups of the overlay's valid view. Without groups nothing is limited."""
        view = context.snapshot.overlay.view if context.validity.overlay is None else None
        return cls({group.name.casefold(): group for group in view.groups} if view else {})

    def entitled(self, job: JobClass) -> tuple[int, GroupQuota | None]:
        """Return how many waiting jobs the negotiator would match at most, and the quota that limits them.

        A job without a GPU counts nothing, and waits if the quota is used up.
        """
        found: tuple[int, GroupQuota | None] = (job.waiting, None)
        for group, quota, used in self._limits(job):
            count = _jobs_in_quota(job, quota - used, job.waiting)
            if count < found[0]:
                found = count, GroupQuota(group.name, used / WHOLE_GPU, quota / WHOLE_GPU)
        return found

    def used_up(self, job: JobClass) -> bool:
        """Return True if the negotiator would match none of the class."""
        return any(_jobs_in_quota(job, quota - used, 1) < 1 for _, quota, used in self._limits(job))

    def book(self, job: JobClass, jobs: int) -> None:
        """Count ``jobs`` of a class as served."""
        for name in self._chain(job.group):
            self.granted[name] = self.granted.get(name, 0) + jobs * job.gpu_milli

    def in_turn(self, context: PlanningContext) -> list[JobClass]:
        """Return the classes in the order in which they are served.

        The hardest to place come first. Equally hard ones come in this order: within the group's quota before surplus
        (a class may be split in two), then by the order of groups, then by priority and age.
        """
        coming, compatible = self._coming(context), context.compatible
        first = sorted(
            context.classes,
            key=lambda c: (compatible[c.id].hardness, self._line(c, coming), -c.priority, c.oldest_at, c.id),
        )
        if not any(group.quota_milli is not None and group.surplus for group in self.groups.values()):
            return first
        parts = [part for job in first for part in self._parts(job, divides=bool(compatible[job.id].kinds))]
        self.granted.clear()
        # the sort is stable: whose turn it is stays as it is
        return [job for job, _ in sorted(parts, key=lambda p: (compatible[p[0].id].hardness, p[1]))]

    def _coming(self, context: PlanningContext) -> Mapping[str, int]:
        """Return milli-GPUs on their way, by the group that they were ordered for."""
        coming: dict[str, int] = {}
        jobs = {job.id: job for job in context.classes} if self.groups else {}
        for drone in context.changing.values() if jobs else ():
            job = jobs.get(drone.for_class) if drone.state in ON_THE_WAY else None
            for name in self._chain(job.group) if job else ():
                coming[name] = coming.get(name, 0) + drone.gpu_milli
        return coming

    def _parts(self, job: JobClass, *, divides: bool) -> Iterator[tuple[JobClass, bool]]:
        """Yield the class and whether it is surplus, split in two if only a part is within the quotas."""
        quotas = [(q, n) for n in self._chain(job.group) if (q := self.groups[n].quota_milli) is not None]
        fitting = (_jobs_in_quota(job, quota - self._used(name), job.waiting) for quota, name in quotas)
        within = min([job.waiting, *fitting])
        self.book(job, within)
        if within >= job.waiting or not within or not divides:
            yield job, within < job.waiting and not within
            return
        yield replace(job, waiting=within), False
        yield replace(job, waiting=job.waiting - within, fresh=0), True

    def _line(self, job: JobClass, coming: Mapping[str, int]) -> tuple[int, float]:
        """Return the order of the job's group by HTCondor's GROUP_SORT_EXPR.

        Groups with a quota come first, by its used part; then groups without one, by priority; then jobs without a
        group.
        """
        names = self._chain(job.group)
        if not names:
            return 2, 0.0
        group = self.groups[names[0]]
        if group.quota_milli:
            return 0, (group.used_milli + coming.get(names[0], 0)) / group.quota_milli
        return 1, group.priority or _LAST_PRIORITY

    def _limits(self, job: JobClass) -> Iterator[tuple[Group, int, int]]:
        """Yield the groups that grant nothing beyond their quota, with the quota and its used part in milli-GPUs."""
        for name in self._chain(job.group):
            group = self.groups[name]
            if group.quota_milli is not None and not group.surplus:
                yield group, group.quota_milli, self._used(name)

    def _used(self, name: str) -> int:
        return self.groups[name].used_milli + self.granted.get(name, 0)

    def _chain(self, group: str) -> tuple[str, ...]:
        """Return the listed groups that contain a group, itself included."""
        if not self.groups:
            return ()
        name, names = group.casefold(), list[str]()
        while name:
            if name in self.groups:
                names.append(name)
            name = name.rpartition(".")[0]
        return tuple(names)


def _jobs_in_quota(job: JobClass, milli: int, most: int) -> int:
    """Return how many jobs of a class fit into the rest of a quota; ``most`` if they take none of it."""
    if milli <= 0:
        return 0
    return milli // job.gpu_milli if job.gpu_milli else most
