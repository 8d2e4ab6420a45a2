"""Advice: the one change of a waiting job's request that would start it soonest.

The planner itself judges: one job, behind all others of its class, is planned with its request as it is, and again with
each candidate change. Candidates are the amounts at which a drone type or a free slot begins to fit, and the
requirements that types do not meet. A request is never raised. Within one dimension a smaller request fits wherever a
larger one does, so a binary search finds the smallest change that wins as much as the largest one.

Waiting times come from the estimates: start delays of drone types, and run times of the jobs that hold the places.
Where these are unknown, so is the waiting time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heapify, heapreplace
from math import inf
from statistics import fmean
from typing import NamedTuple

from provisioner import reasons
from provisioner.estimates import mean_run_s, run_keys
from provisioner.model import (
    ON_THE_WAY,
    WHOLE_GPU,
    Breaker,
    Drone,
    JobClass,
    OverlayView,
    Slot,
    Snapshot,
    StateChange,
    TypeKey,
    class_scope,
)
from provisioner.planner.breakers import update_breakers
from provisioner.planner.capacity import DroneSlots, SlotShape, Supply
from provisioner.planner.context import PlanningContext, ViewValidity, check_views, drone_end_at
from provisioner.planner.demand import GroupShares
from provisioner.planner.lifecycle import observe_all
from provisioner.planner.matching import CompatibleTypes, format_gpus, resources_of_type, unmet_requirement
from provisioner.planner.owner import OwnerReservations
from provisioner.planner.placement import Placement, place
from provisioner.planner.risk import runs_of
from provisioner.reasons import Reason, RequestAdvice, StartForecast, StartOutcome
from provisioner.sharing import share_milli

SOON_S = 300.0
"""No change is looked for if the job starts within this time."""
WORTH = 0.8
"""A change has to shorten a known waiting time to this fraction or less."""
NEARLY_BEST = 1.25
"""Of changes whose waiting times differ by no more than this factor and a minute, the smallest is advised."""
MAX_JOBS_AHEAD = 10_000
_USUAL_WAIT_S = {StartOutcome.STARTS: 600.0, StartOutcome.WAITS: 86400.0, StartOutcome.NEVER: inf}
"""Place of an unknown waiting time in the order of candidates."""


def advise(snapshot: Snapshot, job: JobClass) -> RequestAdvice:
    """Return the advice for the jobs of a class that waits in the overlay's view of the snapshot."""
    what_if = WhatIf.of(snapshot, job)
    now, why = what_if.forecast(what_if.one)
    if job.limited:
        now, why = StartForecast(StartOutcome.WAITS), reasons.PoolLimit(job.limit)
    soon = now.outcome is StartOutcome.STARTS and (now.wait_s is None or now.wait_s <= SOON_S)
    if soon or job.limited or job.invalid:
        return RequestAdvice(now, why)
    found: list[tuple[RequestChange, StartForecast]] = []
    for steps in what_if.candidates():
        last_resort = steps[0].dimension == "optional"
        if not (last_resort and found) and (best := _smallest_step(what_if, now, steps)) is not None:
            found.append(best)
    if not found:
        return RequestAdvice(now, why)
    limit_s = min(_rank(then) for _, then in found) * NEARLY_BEST + 60.0
    change, then = min((each for each in found if _rank(each[1]) <= limit_s), key=lambda each: each[0].effort)
    return RequestAdvice(now, why, change.dimension, change.requested, change.advised, then)


class RequestChange(NamedTuple):
    """One changed request."""

    job: JobClass
    dimension: str
    requested: str
    advised: str
    effort: float
    """Smaller changes have lower values; that of an amount is the part by which it shrinks."""
    before_own: bool = False
    """The job is served before all other classes of its owner."""


def _rank(forecast: StartForecast) -> float:
    return _USUAL_WAIT_S[forecast.outcome] if forecast.wait_s is None else forecast.wait_s


def _is_better(then: StartForecast, now: StartForecast) -> bool:
    """Return True if the change wins. An unknown waiting time is no better than another of the same outcome."""
    if then.wait_s is not None and now.wait_s is not None:
        return then.wait_s <= WORTH * now.wait_s
    return _USUAL_WAIT_S[then.outcome] < _USUAL_WAIT_S[now.outcome]


def _smallest_step(
    what_if: WhatIf, now: StartForecast, steps: Sequence[RequestChange]
) -> tuple[RequestChange, StartForecast] | None:
    """Return the first of ``steps``, smallest first, that wins about as much as the last; None if that does not win."""
    last = what_if.forecast(steps[-1].job, steps[-1].before_own)[0]
    if not _is_better(last, now):
        return None
    known = {len(steps) - 1: last}

    def is_enough(place: int) -> bool:
        known[place] = found = what_if.forecast(steps[place].job, steps[place].before_own)[0]
        return _is_better(found, now) and _rank(found) <= _rank(last) * NEARLY_BEST + 60.0

    first = bisect_left(range(len(steps) - 1), True, key=is_enough)
    return steps[first], known[first]


def _rounded_mib(amount: int) -> int:
    """Round down to what people write, and to what a startd hands out (multiples of 128 MiB)."""
    step = next((step for least, step in ((4096, 1024), (1024, 512), (128, 128)) if amount >= least), 1)
    return amount - amount % step


class RequestAmount(NamedTuple):
    """Amount in a request: its field, its text with the unit, and how an advised one is rounded down."""

    field: str
    text: Callable[[int], str]
    rounded: Callable[[int], int] = int


_MIB = "{} MiB".format, _rounded_mib
_AMOUNTS = {
    "memory": RequestAmount("memory_mib", *_MIB),
    "disk": RequestAmount("disk_mib", *_MIB),
    "vram": RequestAmount("vram_mib", *_MIB),
    "cpus": RequestAmount("cpus", str),
    "capability": RequestAmount("capability", lambda tenths: f"{tenths / 10:.1f}"),
    "driver": RequestAmount("driver", lambda version: f"{version // 1000}.{version % 1000 // 10}"),
    "walltime": RequestAmount(
        "walltime_s", "{} s".format, lambda span_s: span_s - span_s % 60 if span_s > 60 else span_s
    ),
}
_KEPT_DIMENSIONS = ("start", "unjudged", "arch")
"""Refusals of a type that no change of the request removes."""


@dataclass(frozen=True)
class WhatIf:
    """The next tick, in which one job of a class asks for something else."""

    snapshot: Snapshot
    view: OverlayView
    validity: ViewValidity
    observed: Sequence[StateChange]
    breakers: Mapping[str, Breaker]
    job: JobClass
    one: JobClass
    """One job of the class, as a class that is served behind it."""

    @classmethod
    def of(cls, snapshot: Snapshot, job: JobClass) -> WhatIf:
        """Take one job out of its class. The class's back-offs hold for it as well: their cause is unknown."""
        one = replace(job, id=f"{job.id}~", waiting=1, fresh=0, running=0, held=0, limited=0)
        validity = check_views(snapshot)
        observed = observe_all(snapshot, validity)
        breakers = dict(update_breakers(snapshot, observed, validity.changing.values()))
        for each in [each for each in breakers.values() if each.class_id == job.id]:
            scope = class_scope(TypeKey(each.scope.partition("#")[0]), one.id)
            breakers[scope] = replace(each, scope=scope)
        view = snapshot.overlay.view or OverlayView(snapshot.now)
        return cls(snapshot, view, validity, observed, breakers, job, one)

    def forecast(self, one: JobClass, before_own: bool = False) -> tuple[StartForecast, Reason | None]:
        """Return when the job would start, and what holds it back."""
        context = self._context(one, before_own)
        placed = place(context, OwnerReservations.of(context), Supply.of(context))
        return _forecast(context, placed, one)

    def _context(self, one: JobClass, before_own: bool = False) -> PlanningContext:
        classes = (*(self._beside(each, before_own) for each in self.view.classes), one)
        overlay = replace(self.snapshot.overlay, view=replace(self.view, classes=classes))
        if self.snapshot.overlay.view is None:
            overlay = self.snapshot.overlay
        return PlanningContext.of(replace(self.snapshot, overlay=overlay), self.validity, self.observed, self.breakers)

    def _beside(self, job: JobClass, before_own: bool) -> JobClass:
        """Return a class as it is beside the one job."""
        if job.id == self.job.id:
            left = max(0, job.waiting - 1)
            return replace(job, waiting=left, fresh=job.fresh if job.waiting else max(0, job.fresh - 1))
        return replace(job, waiting=0, fresh=0) if before_own and job.owner == self.job.owner else job

    def candidates(self) -> Iterator[Sequence[RequestChange]]:
        """Yield the changes of each dimension, the smallest first; at the end, to do without a GPU."""
        context, one = self._context(self.one), self.one
        closed = [slots for slots in _places(context) if not _takes(slots, one, context.now)]
        for dimension, amount in _AMOUNTS.items():
            if steps := list(_steps(one, dimension, amount, closed, context.now)):
                yield steps
        shares = {share_milli(kind.shares) * n for kind in context.types.values() for n in range(1, kind.shares)}
        whole = range(WHOLE_GPU, min(one.gpu_milli, 64 * WHOLE_GPU), WHOLE_GPU)
        if gpus := sorted({milli for milli in (*whole, *shares) if 0 < milli < one.gpu_milli}, reverse=True):
            asked = format_gpus(one.gpu_milli)
            yield [
                RequestChange(replace(one, gpu_milli=n), "gpus", asked, format_gpus(n), 1 - n / one.gpu_milli)
                for n in gpus
            ]
        for why in sorted(set(one.refuses.values()), key=lambda each: (each.dimension, each.requested)):
            if why.dimension not in _KEPT_DIMENSIONS:
                left = {
                    k: v for k, v in one.refuses.items() if (v.dimension, v.requested) != (why.dimension, why.requested)
                }
                yield [RequestChange(replace(one, refuses=left), f"no-{why.dimension}", why.requested, "", 1.5)]
        own = [job for job in self.view.classes if job.owner == one.owner and job.id != self.job.id]
        if ahead := [job.priority for job in own if job.waiting]:
            first = max(*ahead, one.priority) + 1
            yield [RequestChange(one, "priority", str(one.priority), str(first), 0.9, before_own=True)]
        for group in sorted({job.group for job in own} - {one.group, ""}):
            yield [RequestChange(replace(one, group=group), "group", one.group, group, 0.8)]
        if one.gpu_milli and not one.gpu_optional:
            yield [RequestChange(replace(one, gpu_optional=True), "optional", "required", "optional", 2.0)]


def _places(context: PlanningContext) -> Iterator[DroneSlots]:
    """Yield a new drone of each type, and the slots with room in the pool."""
    for kind in context.types.values():
        shape = SlotShape(resources_of_type(kind), drone_end_at(context, kind), on_the_way=True)
        yield DroneSlots(kind, shape, 1)
    for stock in Supply.of(context).slots.values():
        yield from (slots for slots in stock if not slots.shape.on_the_way)


def _takes(slots: DroneSlots, job: JobClass, now: float) -> bool:
    return unmet_requirement(job, slots.kind) is None and slots.holds(job, now) > 0


def _steps(
    one: JobClass, dimension: str, amount: RequestAmount, closed: Sequence[DroneSlots], now: float
) -> Iterator[RequestChange]:
    """Yield the changes of one amount, the smallest first: the largest amounts with which each place begins to fit."""
    asked, values = int(getattr(one, amount.field)), set[int]()

    def changed(value: int) -> JobClass:
        return replace(one, **{amount.field: value})  # type: ignore[arg-type]

    for slots in closed if asked > 1 else ():
        if _takes(slots, changed(1), now):
            too_large = partial(_is_too_large, slots, changed, now)
            values.add(amount.rounded(1 + bisect_left(range(2, asked), True, key=too_large)))
    for value in sorted(values, reverse=True):
        yield RequestChange(changed(value), dimension, amount.text(asked), amount.text(value), 1 - value / asked)


def _is_too_large(slots: DroneSlots, changed: Callable[[int], JobClass], now: float, value: int) -> bool:
    return not _takes(slots, changed(value), now)


def _forecast(context: PlanningContext, placed: Placement, one: JobClass) -> tuple[StartForecast, Reason | None]:
    """Return when the placement starts the job, and what holds it back."""
    for start in placed.allocation.starts:
        if start.drone.for_class == one.id:
            return StartForecast(StartOutcome.STARTS, _start_delay_s(context, start.drone.type)), None
    given = [each.reason for each in placed.refusals if each.subject in ("all", f"class:{one.id}")]
    compatible = context.idle_gpus.get(one.id) or context.compatible.get(one.id)
    match given[-1] if given else None:
        case reasons.DemandCovered(drones=0) | None:
            return StartForecast(StartOutcome.STARTS, 0.0), None
        case reasons.DemandCovered() if compatible is not None:
            return StartForecast(StartOutcome.STARTS, _arrival_s(context, compatible)), None
        case why if one.invalid or all(unmet_requirement(one, kind) for kind in context.types.values()):
            return StartForecast(StartOutcome.NEVER), why
        case why:
            known = [_held_s(context, why), _release_s(context, placed, one, compatible)]
            return StartForecast(
                StartOutcome.WAITS, min((each for each in known if each is not None), default=None)
            ), why


def _start_delay_s(context: PlanningContext, key: TypeKey) -> float | None:
    delays = context.snapshot.estimates.delays.get(key)
    return delays.queue_s + delays.boot_s if delays is not None else None


def _arrival_s(context: PlanningContext, compatible: CompatibleTypes) -> float | None:
    """Return when the last compatible drone on its way takes jobs. Delayed ones count if there are no others."""
    there = [d for d in context.changing.values() if d.type in compatible.jobs and d.state in ON_THE_WAY]
    there = [d for d in there if not d.is_leaving]
    there = [d for d in there if d.id not in context.late] or there
    found = [_remaining_s(context, drone) for drone in there]
    return max((each for each in found if each is not None), default=None) if None not in found else None


def _remaining_s(context: PlanningContext, drone: Drone) -> float | None:
    remote, delay_s = context.remote(drone), _start_delay_s(context, drone.type)
    if remote is not None and drone.waits_at_site and remote.expected_start_at:
        boot_s = context.snapshot.estimates.delays[drone.type].boot_s if delay_s is not None else 0.0
        return max(0.0, remote.expected_start_at - context.now) + boot_s
    return None if delay_s is None else max(0.0, delay_s - (context.now - drone.requested_at))


def _held_s(context: PlanningContext, why: Reason | None) -> float | None:
    """Return when a reason passes that has a certain end. A back-off has none: it may be repeated."""
    match why:
        case reasons.ExclusiveOnly():
            return max(0.0, why.until - context.now)
        case reasons.AwaitingCheaperType():
            delay_s = _start_delay_s(context, TypeKey(why.type))
            return None if delay_s is None else max(0.0, why.more_s - why.waited_s) + delay_s
    return None


def _release_s(
    context: PlanningContext, placed: Placement, one: JobClass, compatible: CompatibleTypes | None
) -> float | None:
    """Return when a running job leaves its place to this one, behind the jobs that are served before it.

    List scheduling: the next job in line gets the place that is free first. None if a run time is unknown.
    """
    frees = [end_s for slot in context.slots.values() if (end_s := _end_s(context, slot, compatible)) is not None]
    if not frees or compatible is None:
        return None
    heapify(frees)
    uncovered = {
        each.subject: each.count for each in placed.refusals if not isinstance(each.reason, reasons.DemandCovered)
    }
    for job in GroupShares.of(context).in_turn(context):
        if job.id == one.id:
            break
        ahead = uncovered.get(f"class:{job.id}", 0) if job.waiting else 0
        if ahead and not context.compatible[job.id].jobs.keys().isdisjoint(compatible.jobs):
            if (run_s := _run_s(context, job)) is None:
                return None
            for _ in range(min(ahead, MAX_JOBS_AHEAD)):
                heapreplace(frees, frees[0] + run_s)
    return frees[0]


def _run_s(context: PlanningContext, job: JobClass) -> float | None:
    keys = run_keys(job.owner, job.gpu_milli, job.cpus, job.memory_mib)
    known = job.walltime_s or any(key in context.snapshot.estimates.runs for key in keys)
    return mean_run_s(runs_of(context, job)) if known else None


def _end_s(context: PlanningContext, slot: Slot, compatible: CompatibleTypes | None) -> float | None:
    """Return when the only job of a drone ends, by the runs of such jobs. One that outran them all is half done."""
    drone, estimates = context.drones.get(slot.drone_id), context.snapshot.estimates
    if drone is None or compatible is None or drone.type not in compatible.jobs or drone.is_leaving:
        return None
    request = slot.owner, slot.job_gpu_milli, slot.job_cpus, slot.job_memory_mib
    if slot.jobs != 1 or not slot.begun_at or not any(key in estimates.runs for key in run_keys(*request)):
        return None
    ran_s = max(0.0, context.now - slot.begun_at)
    longer = [run_s - ran_s for run_s in estimates.runs_of(*request, walltime_s=0.0) if run_s > ran_s]
    return fmean(longer) if longer else ran_s
