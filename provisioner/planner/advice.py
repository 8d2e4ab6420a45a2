"""Advice: the one change of a waiting job's request that would start it soonest.

The planner itself judges: one job, behind all others of its class, is planned with its request as
it is, and again with each candidate change. Candidates are the amounts at which a drone type or a
free slot begins to fit, and the requirements that types do not meet. A request is never raised.
Within one dimension a smaller request fits wherever a larger one does, so a binary search finds the
smallest change that wins as much as the largest one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from provisioner.model import WHOLE_GPU, Breakers, JobClass, Snapshot
from provisioner.planner.breakers import update_breakers
from provisioner.planner.capacity import DroneSlots, SlotShape, Supply
from provisioner.planner.context import (
    PlanningContext,
    ViewValidity,
    check_views,
    drone_end_at,
)
from provisioner.planner.forecast import forecast_start
from provisioner.planner.matching import format_gpus, resources_of_type, unmet_requirement
from provisioner.planner.owner import OwnerReservations
from provisioner.planner.placement import Allocation, place
from provisioner.planner.settled import is_full
from provisioner.reasons import (
    NegotiatorSilent,
    PoolLimit,
    Reason,
    RequestAdvice,
    StartForecast,
    StartOutcome,
)
from provisioner.sharing import share_milli

SOON_S = 300.0
"""No change is looked for if the job starts within this time."""
WORTHWHILE_WAIT = 0.8
"""A change has to shorten a known waiting time to this fraction or less."""
NEARLY_BEST_WAIT = 1.25
"""Changes count as equally good if their waiting times differ by no more than this factor and a minute."""
MAX_GPUS = 64
_ASSUMED_WAIT_S = {StartOutcome.STARTS: 600.0, StartOutcome.WAITS: 86400.0, StartOutcome.NEVER: inf}
"""Place of unknown waiting times in the order of candidates."""


def advise(snapshot: Snapshot, job: JobClass, peak_vram_mib: int = 0) -> RequestAdvice:
    """Return the advice for the jobs of a class that waits in the overlay's view of the snapshot.

    ``peak_vram_mib`` is the largest use of memory per GPU that was measured in such jobs: less is
    not advised.
    """
    what_if = WhatIf.of(snapshot, job)
    now, why = what_if.forecast(RequestChange(what_if.one))
    view = snapshot.overlay.view
    silent_s = view.silent_s(view.classes) if view is not None else 0.0
    if silent_s and now.outcome is not StartOutcome.NEVER:
        return RequestAdvice(StartForecast(StartOutcome.WAITS), NegotiatorSilent(silent_s))
    if job.limited:
        now = StartForecast(StartOutcome.WAITS)
        why = PoolLimit(job.limit)
    soon = now.outcome is StartOutcome.STARTS and (now.wait_s is None or now.wait_s <= SOON_S)
    found: dict[RequestChange, StartForecast] = {}
    for steps in () if soon or job.limited or job.invalid else what_if.candidates(peak_vram_mib):
        last_resort = steps[0].dimension == "optional"
        if not (last_resort and found):
            found |= _smallest_step(what_if, now, steps)
    if not found:
        return RequestAdvice(now, why)
    best_s = min(map(_rank, found.values()))
    good = (
        change for change, then in found.items() if _rank(then) <= best_s * NEARLY_BEST_WAIT + 60.0
    )
    change = min(good, key=lambda each: each.effort)
    return RequestAdvice(
        now, why, change.dimension, change.requested, change.advised, found[change]
    )


@dataclass(frozen=True, slots=True, eq=False)
class RequestChange:
    """The job with one changed request."""

    job: JobClass
    dimension: str = ""
    requested: str = ""
    advised: str = ""
    effort: float = 0.0
    """Smaller changes have lower values; that of an amount is the part by which it shrinks."""
    before_own: bool = False
    """The job is served before all other classes of its owner."""


def _rank(forecast: StartForecast) -> float:
    return _ASSUMED_WAIT_S[forecast.outcome] if forecast.wait_s is None else forecast.wait_s


def _is_better(then: StartForecast, now: StartForecast) -> bool:
    """Return True if the change wins. An unknown waiting time is no better than another of the same outcome."""
    if then.wait_s is not None and now.wait_s is not None:
        return then.wait_s <= WORTHWHILE_WAIT * now.wait_s
    return _ASSUMED_WAIT_S[then.outcome] < _ASSUMED_WAIT_S[now.outcome]


def _smallest_step(
    what_if: WhatIf, now: StartForecast, steps: Sequence[RequestChange]
) -> Mapping[RequestChange, StartForecast]:
    """Return the first of ``steps``, smallest first, that wins about as much as the last; none if that does not win."""
    known = {steps[-1]: what_if.forecast(steps[-1])[0]}
    if not _is_better(known[steps[-1]], now):
        return {}
    enough_s = _rank(known[steps[-1]]) * NEARLY_BEST_WAIT + 60.0

    def is_enough(step: RequestChange) -> bool:
        known[step] = what_if.forecast(step)[0]
        return _is_better(known[step], now) and _rank(known[step]) <= enough_s

    first = steps[bisect_left(steps[:-1], True, key=is_enough)]
    return {first: known[first]}


def _rounded_mib(amount: int) -> int:
    """Round down to what people write, and to what a startd hands out (multiples of 128 MiB)."""
    step = next(
        (step for least, step in ((4096, 1024), (1024, 512), (128, 128)) if amount >= least), 1
    )
    return amount - amount % step


class RequestAmount(NamedTuple):
    """Amount in a request: its field, its text with the unit, and how an advised one is rounded down."""

    field: str
    text: Callable[[int], str]
    rounded: Callable[[int], int] = int


_IN_MIB = "{} MiB".format, _rounded_mib
_AMOUNTS = {
    "memory": RequestAmount("memory_mib", *_IN_MIB),
    "disk": RequestAmount("disk_mib", *_IN_MIB),
    "vram": RequestAmount("vram_mib", *_IN_MIB),
    "cpus": RequestAmount("cpus", str),
    "capability": RequestAmount("capability", lambda tenths: f"{tenths / 10:.1f}"),
    "driver": RequestAmount("driver", lambda version: f"{version // 1000}.{version % 1000 // 10}"),
    "gpus": RequestAmount("gpu_milli", format_gpus),
    "walltime": RequestAmount(
        "walltime_s", "{} s".format, lambda span_s: span_s - span_s % 60 or span_s
    ),
}
_NOT_OF_THE_JOB = ("start", "unjudged", "arch")
"""Dimensions of refusals that no change of the request removes."""


@dataclass(frozen=True)
class WhatIf:
    """The next tick, in which one job of a class asks for something else."""

    snapshot: Snapshot
    classes: Sequence[JobClass]
    """The classes beside the one job."""
    validity: ViewValidity
    breakers: Breakers
    one: JobClass
    """One job of the class, as a class that is served behind it."""

    @classmethod
    def of(cls, snapshot: Snapshot, job: JobClass) -> WhatIf:
        """Take one job out of its class. The class's back-offs hold for it as well: their cause is unknown."""
        one = replace(job, id=f"{job.id}~", waiting=1, fresh=0, running=0, held=0, limited=0)
        left = replace(
            job,
            waiting=max(0, job.waiting - 1),
            fresh=job.fresh if job.waiting else max(0, job.fresh - 1),
        )
        validity = check_views(snapshot)
        kinds = {kind.key: kind for kind in snapshot.types}
        # 100,000 drones, of which a thousand are not full: 0.2 s a forecast instead of 0.7
        news = [seen for seen in validity.news if not is_full(seen, kinds.get(seen[0].type))]
        breakers = dict(update_breakers(snapshot, ()))
        for each in [each for each in breakers.values() if each.scope.class_id == job.id]:
            scope = replace(each.scope, class_id=one.id)
            breakers[scope] = replace(each, scope=scope)
        view = snapshot.overlay.view
        classes = [
            left if each.id == job.id else each
            for each in (view.classes if view is not None else ())
        ]
        return cls(snapshot, classes, replace(validity, news=news), breakers, one)

    def forecast(self, change: RequestChange) -> tuple[StartForecast, Reason | None]:
        """Return when the changed job would start, and what holds it back."""
        context = self._context(change)
        reservations = OwnerReservations.of(context)
        allocation = Allocation(context, reservations, Supply.of(context))
        placed = place(allocation, change.job.id)
        return forecast_start(context, placed, change.job)

    def _context(self, change: RequestChange) -> PlanningContext:
        overlay = self.snapshot.overlay
        if overlay.view is not None:
            after = change.job.owner if change.before_own else None
            classes = (
                replace(job, waiting=0, fresh=0) if job.owner == after else job
                for job in self.classes
            )
            overlay = replace(overlay, view=replace(overlay.view, classes=(*classes, change.job)))
        return PlanningContext.of(
            replace(self.snapshot, overlay=overlay), self.validity, (), self.breakers
        )

    def candidates(self, peak_vram_mib: int = 0) -> Iterator[Sequence[RequestChange]]:
        """Yield the changes of each dimension, the smallest first; at the end, to do without a GPU."""
        context = self._context(RequestChange(self.one))
        one = self.one
        refusals = [why for why in one.refuses.values() if why.dimension not in _NOT_OF_THE_JOB]
        closed = [slots for slots in _places(context) if not _takes(slots, one, context.now)]
        for dimension in _AMOUNTS:
            least = peak_vram_mib if dimension == "vram" else 0
            largest = (_largest(one, dimension, slots, context.now) for slots in closed)
            amounts = (
                _fewer_gpus(one, context)
                if dimension == "gpus"
                else {n for n in largest if n and n >= least}
            )
            if amounts:
                yield [
                    _with_amount(one, dimension, amount) for amount in sorted(amounts, reverse=True)
                ]
        for requested, dimension in sorted(
            {w.requested: w.dimension for w in refusals if not w.is_amount}.items()
        ):
            left = {
                key: why
                for key, why in one.refuses.items()
                if why.others or why.requested != requested
            }
            yield [RequestChange(replace(one, refuses=left), f"no-{dimension}", requested, "", 1.5)]
        own = [
            job
            for job in self.classes
            if job.owner == one.owner and job.id != one.id.removesuffix("~")
        ]
        if ahead := [job.priority for job in own if job.waiting]:
            first = max(*ahead, one.priority) + 1
            yield [
                RequestChange(one, "priority", str(one.priority), str(first), 0.9, before_own=True)
            ]
        for group in sorted({job.group for job in own} - {one.group, ""}):
            yield [RequestChange(replace(one, group=group), "group", one.group, group, 0.8)]
        yield from _without_gpu(one, context)


def _places(context: PlanningContext) -> Iterator[DroneSlots]:
    """Yield a new drone of each type for jobs, and the slots with room in the pool."""
    for kind in filter(lambda each: each.server is None, context.types.values()):
        shape = SlotShape(resources_of_type(kind), drone_end_at(context, kind), on_the_way=True)
        yield DroneSlots(kind, shape, 1)
    for stock in Supply.of(context).slots.values():
        yield from (slots for slots in stock if not slots.shape.on_the_way)


def _takes(slots: DroneSlots, job: JobClass, now: float) -> bool:
    return unmet_requirement(job, slots.kind) is None and slots.holds(job, now) > 0


def _without_gpu(one: JobClass, context: PlanningContext) -> Iterator[Sequence[RequestChange]]:
    """Yield the change to a GPU that is optional, if a type without GPUs runs such jobs."""
    optional = one.with_optional_gpu()
    on_cpus = any(unmet_requirement(optional, kind) is None for kind in context.types.values())
    if one.gpu_milli and on_cpus:
        yield [RequestChange(optional, "optional", "required", "optional", 2.0)]


def _fewer_gpus(one: JobClass, context: PlanningContext) -> set[int]:
    """Return the smaller whole numbers of GPUs, and the shares of one that drone types offer, in thousandths."""
    shares = (share_milli(kind.shares) for kind in context.types.values())
    whole = range(WHOLE_GPU, min(one.gpu_milli, MAX_GPUS * WHOLE_GPU), WHOLE_GPU)
    return {milli for milli in (*whole, *shares) if milli < one.gpu_milli}


def _largest(one: JobClass, dimension: str, slots: DroneSlots, now: float) -> int:
    """Return the largest smaller amount with which the job fits, rounded down; 0 if there is none."""

    def is_too_large(amount: int) -> bool:
        return not _takes(slots, _with_amount(one, dimension, amount).job, now)

    asked = int(getattr(one, _AMOUNTS[dimension].field))
    if asked <= 1 or is_too_large(1):
        return 0
    return _AMOUNTS[dimension].rounded(1 + bisect_left(range(2, asked), True, key=is_too_large))


def _with_amount(one: JobClass, dimension: str, amount: int) -> RequestChange:
    """Return the change of one amount. Types refused for that amount alone are judged anew, by their numbers.

    A type whose amount is unknown has no number: the pool refuses each job that requests any.
    """
    field, text, _ = _AMOUNTS[dimension]
    asked = int(getattr(one, field))
    refuses = {
        key: why
        for key, why in one.refuses.items()
        if why.others or why.dimension != dimension or why.available == "unknown"
    }
    job = replace(one, refuses=refuses, **{field: amount})  # type: ignore[arg-type]
    return RequestChange(job, dimension, text(asked), text(amount), 1 - amount / asked)
