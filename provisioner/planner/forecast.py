"""Forecast of the start of one waiting job: by the placement of the next tick and the estimates.

Where start delays of a drone type or run times of jobs are unknown, so is the waiting time.
"""

from __future__ import annotations

from heapq import heapify, heapreplace

from provisioner import reasons
from provisioner.estimates import mean_run_s
from provisioner.keys import ALL, Subject
from provisioner.model import ON_THE_WAY, Drone, JobClass, Slot, TypeKey
from provisioner.planner.context import PlanningContext, run_shape
from provisioner.planner.costs import RunTimeSums
from provisioner.planner.matching import CompatibleTypes, unmet_requirement
from provisioner.planner.placement import Placement
from provisioner.planner.risk import runs_of
from provisioner.reasons import Reason, StartForecast, StartOutcome

MAX_JOBS_AHEAD = 10_000


def forecast_start(
    context: PlanningContext, placed: Placement, job: JobClass
) -> tuple[StartForecast, Reason | None]:
    """Return when a class of one job starts by a placement, and what holds it back.

    The placement has decided; this reads its decision. A start for the class counts first, then the
    last reason that was given: as the class has one job, that is the one that holds it back. The
    time comes from the drones on their way, or from the jobs that run.
    """
    for start in placed.allocation.starts:
        if start.drone.for_class == job.id:
            return StartForecast(
                StartOutcome.STARTS, _start_delay_s(context, start.drone.type)
            ), None
    given = [
        each.reason for each in placed.refusals if each.subject in (ALL, Subject("class", job.id))
    ]
    # others may take the job
    given = [each for each in given if not isinstance(each, reasons.IdleDroneRefuses)]
    why = given[-1] if given else None
    if why is None or (isinstance(why, reasons.DemandCovered) and not why.drones):
        return StartForecast(StartOutcome.STARTS, 0.0), None
    fits = any(unmet_requirement(job, kind) is None for kind in context.types.values())
    if job.invalid or not (fits or job.gpu_optional):
        return StartForecast(StartOutcome.NEVER), why
    compatible = context.compatible.get(job.id)
    if compatible is None or isinstance(why, reasons.GroupQuota):
        return StartForecast(StartOutcome.WAITS), why
    if isinstance(why, reasons.DemandCovered):
        return StartForecast(StartOutcome.STARTS, _arrival_s(context, job, compatible, why)), None
    return StartForecast(StartOutcome.WAITS, _release_s(context, placed, job, compatible)), why


def _start_delay_s(context: PlanningContext, key: TypeKey) -> float | None:
    delays = context.snapshot.estimates.delays.get(key)
    return delays.queue_s + delays.boot_s if delays is not None else None


def _arrival_s(
    context: PlanningContext, job: JobClass, compatible: CompatibleTypes, why: reasons.DemandCovered
) -> float | None:
    """Return when the last compatible drone on its way takes jobs; None if that is unknown of one."""
    coming = [
        d
        for d in context.drones.values()
        if d.state in ON_THE_WAY and _may_take(d, job, compatible)
    ]
    if not why.delayed:  # others come before the delayed ones
        coming = [drone for drone in coming if drone.id not in context.late]
    arrivals = [_remaining_s(context, drone) for drone in coming]
    return (
        max((each for each in arrivals if each is not None), default=None)
        if None not in arrivals
        else None
    )


def _may_take(drone: Drone, job: JobClass, compatible: CompatibleTypes) -> bool:
    return (
        drone.type in compatible.jobs and not drone.is_leaving and not drone.job_filter.refuses(job)
    )


def _remaining_s(context: PlanningContext, drone: Drone) -> float | None:
    """Return when a drone on its way takes jobs: by what its site expects, else by the usual delays.

    None if no drone of its type has started yet, or if it is delayed and its site tells nothing.
    """
    remote = context.remote(drone)
    delays = context.snapshot.estimates.delays.get(drone.type)
    now = context.now
    if remote is not None and drone.waits_at_site and remote.expected_start_at:
        return max(0.0, remote.expected_start_at - now) + (delays.boot_s if delays else 0.0)
    if delays is None or drone.id in context.late:
        return None
    if drone.started_at:
        return max(0.0, delays.boot_s - (now - drone.started_at))
    return max(0.0, delays.queue_s - (now - drone.requested_at)) + delays.boot_s


def _release_s(
    context: PlanningContext, placed: Placement, job: JobClass, compatible: CompatibleTypes
) -> float | None:
    """Return when a running job leaves its place to this one, behind the jobs that are served before it.

    List scheduling: the next job in line gets the place that is free first. None if no run time is
    known.
    """
    if not context.snapshot.estimates.runs:
        return None
    free_s = [
        end_s
        for slot in context.slots.values()
        if (end_s := _end_s(context, slot, job, compatible)) is not None
    ]
    if not free_s:
        return None
    heapify(free_s)
    lacking = {
        each.subject: each.count
        for each in placed.refusals
        if not isinstance(each.reason, reasons.DemandCovered)
    }
    for other in placed.turn:
        if other.id == job.id:
            break
        ahead = lacking.get(Subject("class", other.id), 0) if other.waiting else 0
        if ahead and not context.compatible[other.id].keys.isdisjoint(compatible.keys):
            run_s = mean_run_s(runs_of(context, other))
            for _ in range(min(ahead, MAX_JOBS_AHEAD)):
                heapreplace(free_s, free_s[0] + run_s)
    return free_s[0]


def _end_s(
    context: PlanningContext, slot: Slot, job: JobClass, compatible: CompatibleTypes
) -> float | None:
    """Return when the only job of a drone ends, by the runs of such jobs. One that outran them all is half done."""
    drone = context.drones.get(slot.drone_id)
    estimates = context.snapshot.estimates
    if drone is None or not _may_take(drone, job, compatible):
        return None
    if slot.jobs != 1 or not slot.begun_at:
        return None
    ran_s = max(0.0, context.now - slot.begun_at)
    return RunTimeSums(estimates.runs_of(*run_shape(slot), walltime_s=0.0)).rest_s(ran_s)
