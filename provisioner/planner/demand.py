"""Demand: the order in which job classes are served, what each group may still get, and headroom.

The rules between accounting groups are those of HTCondor's negotiator: a group with a quota gets up
to its quota, the group that uses the smallest part of its own first. What is left goes to the
groups that may take surplus. So no drone is started that would be matched to nobody, and the queue
of a large group does not take the room that a small one is due. Between users of a group, the one
that holds least comes first: GPUs of running jobs and of drones on the way, times the effective
priority that the negotiator reports. JobPrio orders the jobs of one user. Names nest by dots. A job
of ``physics.atlas`` counts against the quotas of ``physics.atlas`` and ``physics``; a job of an
unlisted group counts against the listed groups that contain it. Names are case-insensitive, as in
HTCondor.

Headroom are warm drones for jobs that have not arrived yet. It is served as classes of virtual
jobs, after all real ones and within the same limits. A warm drone is like any other: the first real
job that fits takes it, and another one is started. No headroom is started, and none is kept beyond
the idle timeout, at a site where a real job lacks room or the owner waits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from provisioner import model, reasons
from provisioner.model import (
    ON_THE_WAY,
    WHOLE_GPU,
    Drone,
    DroneId,
    DroneState,
    DroneType,
    Group,
    Headroom,
    JobClass,
    Policy,
)
from provisioner.planner.matching import count_jobs, request_of, resources_for_gpu_jobs
from provisioner.reasons import GroupQuota
from provisioner.values import define, factory, frozen

if TYPE_CHECKING:
    from provisioner.planner.context import PlanningContext

_LAST_PRIORITY = float("inf")
CPUS_PER_GPU = 8
"""CPUs of the standard drone of one GPU."""


@define
class GroupShares:
    """Use and grants of each group. Mutable, local to one plan."""

    groups: Mapping[str, Group]
    """By name in lower case."""
    granted: dict[str, int] = factory(dict)
    """Milli-GPUs granted by this plan, by the same names."""

    @classmethod
    def of(cls, context: PlanningContext) -> GroupShares:
        """Read the groups of the overlay's valid view. Without groups nothing is limited."""
        view = context.snapshot.overlay.view if context.validity.overlay is None else None
        return cls({group.name.casefold(): group for group in view.groups} if view else {})

    def entitled(self, job: JobClass, jobs: int) -> tuple[int, GroupQuota | None]:
        """Return how many of ``jobs`` the negotiator would match at most, and the quota that limits them."""
        found: tuple[int, GroupQuota | None] = (jobs, None)
        for group, quota, used in self._limits(job) if self.groups else ():
            count = _jobs_in_quota(job, quota - used, jobs)
            if count < found[0]:
                found = count, GroupQuota(group.name, used / WHOLE_GPU, quota / WHOLE_GPU)
        return found

    def used_up(self, job: JobClass) -> bool:
        """Return True if the negotiator would match none of the class."""
        limits = self._limits(job) if self.groups else ()
        return any(_jobs_in_quota(job, quota - used, 1) < 1 for _, quota, used in limits)

    def book(self, job: JobClass, jobs: int) -> None:
        for name in self._chain(job.group) if self.groups else ():
            self.granted[name] = self.granted.get(name, 0) + jobs * job.gpu_milli

    def in_turn(self, context: PlanningContext) -> list[JobClass]:
        """Return the classes in the order in which drones are started for them.

        A class for which a node is reserved comes first. Then come all jobs within the quotas of
        their groups, and surplus last (a class may be split in two). Within these the order is that
        of groups, of users, of how hard the jobs are to place, of the priorities that users give to
        their own jobs, and of age.
        """
        view = context.snapshot.overlay.view or model.OverlayView(0.0)
        shares = UserShares.of(view.classes, view.priorities, context.unsettled, context.slots)
        reserved = {each.class_id for each in context.snapshot.reserved.values()}
        coming = Counter[str]()  # milli-GPUs by the group that they were ordered for
        for job, milli in shares.coming if self.groups else ():
            coming.update(dict.fromkeys(self._chain(job.group), milli))

        def order(job: JobClass) -> tuple[Any, ...]:
            hardness = context.compatible[job.id].hardness
            own = -job.priority, job.oldest_at, job.id
            return (
                job.id not in reserved,
                self._line(job, coming),
                *shares.order(job.owner, hardness),
                *own,
            )

        first = sorted(context.classes, key=order)
        if not any(
            group.quota_milli is not None and group.surplus for group in self.groups.values()
        ):
            return first
        parts = [
            part
            for job in first
            for part in self._parts(job, divides=bool(context.compatible[job.id].kinds))
        ]
        self.granted.clear()
        # the sort is stable: the turns stay as they are
        return [
            job for job, _ in sorted(parts, key=lambda part: part[1] and part[0].id not in reserved)
        ]

    def _parts(self, job: JobClass, *, divides: bool) -> Iterator[tuple[JobClass, bool]]:
        """Yield the class and whether it is surplus, split in two if only a part is within the quotas."""
        quotas = [
            (q, n) for n in self._chain(job.group) if (q := self.groups[n].quota_milli) is not None
        ]
        fitting = (
            _jobs_in_quota(job, quota - self._used(name), job.waiting) for quota, name in quotas
        )
        within = min([job.waiting, *fitting])
        self.book(job, within)
        if 0 < within < job.waiting and divides:
            yield replace(job, waiting=within), False
            yield replace(job, waiting=job.waiting - within, fresh=0), True
        else:
            yield job, within < job.waiting and not within

    def _line(self, job: JobClass, coming: Counter[str]) -> tuple[int, float]:
        """Return the order of the job's group by HTCondor's GROUP_SORT_EXPR: by used part of a quota, by priority."""
        names = self._chain(job.group) if self.groups else ()
        if not names:
            return 2, 0.0
        group = self.groups[names[0]]
        if group.quota_milli:
            return 0, (group.used_milli + coming[names[0]]) / group.quota_milli
        return 1, group.priority or _LAST_PRIORITY

    def _limits(self, job: JobClass) -> Iterator[tuple[Group, int, int]]:
        """Yield the groups that grant nothing beyond their quota, with the quota and its used part in milli-GPUs."""
        for name in self._chain(job.group):
            group = self.groups[name]
            if group.quota_milli is not None and not group.surplus:
                yield group, group.quota_milli, self._used(name)

    def _used(self, name: str) -> int:
        return self.groups[name].used_milli + self.granted.get(name, 0)

    def _chain(self, group: str) -> list[str]:
        """Return the listed groups that contain a group, itself included."""
        if not self.groups:
            return []
        parts = group.casefold().split(".")
        names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return [name for name in names if name in self.groups]


def _jobs_in_quota(job: JobClass, milli: int, most: int) -> int:
    """Return how many jobs of a class fit into the rest of a quota; ``most`` if they take none of it."""
    if job.gpu_milli:
        return max(0, milli // job.gpu_milli)
    return most if milli > 0 else 0


@frozen
class UserShares:
    """Amount that each user holds, for turns between them.

    The negotiator gives each user a share of the pool that is inverse to their effective priority
    (HTCondor manual, "User Priorities and Negotiation"). So the user comes first who holds least of
    it.
    """

    held_milli: Mapping[str, int]
    """Milli-GPUs of running jobs and of drones that were started for jobs of a user and have none yet, by user."""
    factors: Mapping[str, float]
    """Effective priorities by user, as multiples of the smallest one."""
    oldest_at: Mapping[str, float]
    """Submission time of the oldest job that waits, by user."""
    coming: list[tuple[JobClass, int]]
    """Classes and milli-GPUs of the drones on the way."""

    @classmethod
    def of(
        cls,
        classes: Iterable[JobClass],
        priorities: Mapping[str, float],
        drones: Iterable[Drone],
        slots: Mapping[DroneId, model.Slot],
    ) -> UserShares:
        """Add up what the users hold: of ``drones``, those without jobs count."""
        jobs = {job.id: job for job in classes}
        held = Counter[str]()
        oldest = dict[str, float]()
        for job in jobs.values():
            held[job.owner] += job.running * _weight_milli(job)
            if job.waiting:
                oldest[job.owner] = min(job.oldest_at or math.inf, oldest.get(job.owner, math.inf))
        coming = []
        for drone in drones:
            slot = slots.get(drone.id)
            if slot is not None and slot.jobs:
                continue
            ordered_for = jobs.get(drone.for_class)
            if ordered_for is not None and not drone.is_leaving:
                held[ordered_for.owner] += drone.gpu_milli or _weight_milli(ordered_for)
                if drone.state in ON_THE_WAY:
                    coming.append((ordered_for, drone.gpu_milli))
        known = {owner: priorities[owner] for owner in held if owner in priorities}
        least = min(known.values(), default=1.0)
        return cls(
            held, {owner: priority / least for owner, priority in known.items()}, oldest, coming
        )

    def turn_of(self, owner: str) -> reasons.UserTurn | None:
        """Return the turn of a user with waiting jobs; None if nobody else has some."""
        users = sorted(self.oldest_at, key=self.order)
        if owner not in self.oldest_at or len(users) < 2:
            return None
        factor = self.factors.get(owner, 1.0)
        return reasons.UserTurn(
            users.index(owner) + 1, len(users), self.held_milli[owner] / WHOLE_GPU, factor
        )

    def order(self, owner: str, hardness: tuple[int, ...] = ()) -> tuple[Any, ...]:
        """Return the sort key of a user's jobs of some hardness.

        Between users whose shares differ by less than a factor of two, the jobs that are hardest to
        place come first.
        """
        share = (1.0 + self.held_milli[owner] / WHOLE_GPU) * self.factors.get(owner, 1.0)
        return math.frexp(share)[1], hardness, share, self.oldest_at.get(owner, math.inf), owner


def _weight_milli(job: JobClass) -> int:
    """Return the milli-GPUs that a running job counts for; CPU jobs by the CPUs of a drone of one GPU."""
    return job.gpu_milli or job.cpus * WHOLE_GPU // CPUS_PER_GPU


HEADROOM_PREFIX = "headroom:"
"""Prefix of the ids of virtual classes; no overlay's class has it."""
_DAY_S = 86400.0
_HOUR_S = 3600.0
_YIELDS_TO = (
    reasons.LimitReached,
    reasons.SiteFull,
    reasons.SiteQuota,
    reasons.GpusStranded,
    reasons.NodeReserved,
)


def headroom_classes(
    policy: Policy, types: Collection[DroneType], now: float
) -> tuple[JobClass, ...]:
    """Return the headroom that is wanted now, as waiting jobs."""
    classes = []
    for each in policy.headroom:
        if each.count and headroom_active(each, now):
            others = (
                t
                for t in types
                if each.site not in ("", t.site) or (each.types and t.name not in each.types)
            )
            job = JobClass(
                id=HEADROOM_PREFIX + each.name,
                gpu_milli=each.gpu_milli,
                cpus=each.cpus,
                memory_mib=each.memory_mib,
                disk_mib=each.disk_mib,
                vram_mib=each.vram_mib,
                waiting=each.count,
                refuses={
                    kind.key: model.UnmetRequirement("headroom", each.name, kind.key)
                    for kind in others
                },
            )
            classes.append(job)
    return tuple(classes)


def is_headroom(class_id: str) -> bool:
    return class_id.startswith(HEADROOM_PREFIX)


def headroom_active(headroom: Headroom, now: float) -> bool:
    """Return True if the headroom is kept at this hour of the day (UTC)."""
    hour = now % _DAY_S / _HOUR_S
    if headroom.from_h < headroom.to_h:
        return headroom.from_h <= hour < headroom.to_h
    return hour >= headroom.from_h or hour < headroom.to_h


def sites_without_headroom(
    context: PlanningContext, refusals: Iterable[model.Refusal], claimed: Collection[str]
) -> frozenset[str]:
    """Return the sites where a real job lacks room, or the owner waits (``claimed``)."""
    if not context.headroom:
        return frozenset()
    sites = set(claimed)
    for refusal in refusals:
        class_id = refusal.subject.name
        of_job = refusal.subject.kind == "class" and not is_headroom(class_id)
        if not of_job or not isinstance(refusal.reason, _YIELDS_TO):
            continue
        if isinstance(refusal.reason, reasons.LimitReached) and refusal.reason.scope == "all sites":
            sites.update(context.snapshot.policy.sites)
        sites.update(each.site for each in context.compatible[class_id].kinds)
    return frozenset(sites)


def kept_for_headroom(
    context: PlanningContext, sites_without_headroom: Collection[str]
) -> frozenset[DroneId]:
    """Return the idle drones that headroom needs: they do not leave for being idle.

    Free room beside running jobs comes first, then the drones that live longest: the same ones from
    tick to tick. A site without headroom keeps none but for real jobs.
    """
    drones = _warm_candidates(context) if context.headroom else []
    rooms = {
        drone.id: resources_for_gpu_jobs(context.slots[drone.id], context.types[drone.type])
        for drone in drones
    }
    warm: set[DroneId] = set()
    # By type: the classes that a drone without headroom to serve is kept for.
    wanted: dict[model.TypeKey, list[JobClass]] = {}
    for job in context.classes if drones else ():
        for key in context.compatible[job.id].jobs:
            wanted.setdefault(key, []).append(job)
    for job in context.headroom:
        lack = job.waiting
        keys = context.compatible[job.id].jobs
        for drone in drones:
            if lack <= 0:
                break
            kind = context.types[drone.type]
            if drone.type not in keys or drone.job_filter.refuses(job):
                continue
            takers = (
                each for each in wanted.get(kind.key, ()) if not drone.job_filter.refuses(each)
            )
            if drone.site in sites_without_headroom and not any(takers):
                continue
            count = min(lack, count_jobs(job, rooms[drone.id], kind))
            if count > 0:
                lack -= count
                rooms[drone.id] = rooms[drone.id].plus(request_of(job, kind), -count)
                warm.add(drone.id)
    return frozenset(warm)


def _warm_candidates(context: PlanningContext) -> list[Drone]:
    """Return the drones that headroom may count on, in the order in which it does."""

    def order(drone: Drone) -> tuple[object, ...]:
        retires_at = context.slots[drone.id].retires_at or float("inf")
        return drone.state is DroneState.IDLE, -retires_at, drone.joined_at, drone.id

    serving = (
        drone
        for drone in context.drones.values()
        if drone.state in (DroneState.IDLE, DroneState.BUSY) and not drone.is_leaving
    )
    staying = (drone for drone in serving if not drone.notice_at and drone.id in context.slots)
    return sorted((drone for drone in staying if drone.type in context.types), key=order)
