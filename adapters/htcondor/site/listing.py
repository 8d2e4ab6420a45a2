"""Drones by the ads of their jobs: state, reason and end."""

from __future__ import annotations

import errno
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from adapters.htcondor import classads
from adapters.htcondor.classads import Ad, job_id, moment, our_moment, text, value, whole
from adapters.htcondor.site import grid
from adapters.shared.duplicates import Seniority, seniority, settled
from adapters.shared.printing import printable
from provisioner.model import DroneId, EndKind, FaultKind, RemoteDrone, RemoteEnd, RemoteState
from provisioner.values import frozen

OUR_REASON = "provisioner: "  # prefix of the reason of each removal that we ask for
DRONE_JOB_PROJECTION = classads.attribute_names(
    """
    ClusterId ProcId JobStatus LastJobStatus ServerTime QDate EnteredCurrentStatus DroneId DroneType DroneGraceS
    DroneEpoch DroneInputs User NumJobStarts JobCurrentStartDate JobCurrentStartExecutingDate NumShadowExceptions
    RemoteHost LastRemoteHost LastVacateTime VacateReason VacateReasonCode LastRejMatchReason CompletionDate ExitCode
    ExitBySignal ExitSignal HoldReason HoldReasonCode HoldReasonSubCode LastHoldReason LastHoldReasonCode
    LastHoldReasonSubCode RemoveReason
    """
    + grid.GRID_PROJECTION
)
_GRACE_SLACK_S = 5.0
_LONGEST_GRACE_S = 7 * 86400
_MAX_REASON = 200
_NODE_FAULTS = frozenset({1006, 1007, 1008, 1012})
"""VacateReasonCode: claim not activated, starter error, no contact for a lease, startd exception."""


@frozen
class DroneJobsView:
    """All of our jobs that the schedd lists."""

    drones: Mapping[DroneId, RemoteDrone]
    # digests of the files that jobs which have not ended take along
    inputs: frozenset[str] = frozenset()
    notices: tuple[str, ...] = ()
    # ids of jobs to remove: their files are not being sent any more
    abandoned: tuple[str, ...] = ()
    # ids of jobs to remove: another job is their drone
    duplicates: Sequence[str] = ()
    users: frozenset[str] = frozenset()  # owners of the jobs, as slots show them


def our_jobs(controller: str, site: str) -> str:
    """Return the constraint for all of our jobs, and nobody else's."""
    return f"ProvisionerController == {json.dumps(controller)} && DroneSite == {json.dumps(site)}"


def list_drones(
    ads: Sequence[Ad],
    controller: str,
    noticed: Mapping[str, float] = {},
    now: float | None = None,
    carved: Mapping[str, frozenset[str]] = {},
    files_limit_s: float = math.inf,
) -> DroneJobsView:
    """Return our drones by the ads of their jobs.

    ``noticed``: since when slots (by name) are being taken back, by our clock. ``now``: when the
    ads were read. ``carved``: by machine, the names of the slots in use there, read before the ads.
    ``files_limit_s``: a job that waits for its files for longer is to be removed.
    """
    now = time.time() if now is None else now
    found: list[tuple[Seniority, RemoteDrone]] = []
    inputs = set[str]()
    users = set[str]()
    notices = list[str]()
    abandoned = list[str]()
    for ad in ads:
        drone_id = DroneId(text(ad, "DroneId"))
        if not drone_id.startswith(f"{controller}-"):
            notices.append(
                f"job {job_id(ad)} has the controller's tag, but {drone_id or 'nothing'} as its drone id"
            )
            continue
        drone = _remote_drone(ad, drone_id, noticed, now, carved)
        users.add(text(ad, "User", 600))
        if (
            is_spooling(ad)
            and whole(ad, "ServerTime") - whole(ad, "EnteredCurrentStatus") > files_limit_s
        ):
            # It counts until it is removed: a sender that lives on, on a login node, may still
            # complete it.
            abandoned.append(drone.remote_id)
            drone = replace(
                drone, reason="its files never reached the schedd: the adapter removes it"
            )
        if drone.end is None:
            inputs.add(text(ad, "DroneInputs"))
        found.append((_seniority(ad, drone), drone))
    drones, duplicates, more = settled(found)
    notices += [*more, *grid.silence(ads, now)]
    return DroneJobsView(
        drones,
        frozenset(inputs),
        tuple(notices),
        tuple(abandoned),
        duplicates,
        frozenset(users - {""}),
    )


def _seniority(ad: Ad, drone: RemoteDrone) -> Seniority:
    waits = drone.state is RemoteState.PENDING or (drone.end is not None and not drone.started_at)
    began = moment(ad, "JobCurrentStartDate") or moment(ad, "EnteredCurrentStatus")
    return seniority(
        drone.remote_id,
        moment(ad, "QDate"),
        0.0 if waits else began,
        is_ending=whole(ad, "JobStatus") == classads.REMOVED,
        has_ended=drone.end is not None,
    )


def is_spooling(ad: Ad) -> bool:
    return whole(ad, "JobStatus") == classads.HELD and whole(ad, "HoldReasonCode") == SPOOLING


def has_started(ad: Ad) -> bool:
    """Return True if a job has begun its one life."""
    started = whole(ad, "NumJobStarts") > 0 or moment(ad, "JobCurrentStartExecutingDate") > 0
    return started or grid.has_started(ad)


def leaves_until(ad: Ad, now: float, carved: Mapping[str, frozenset[str]] = {}) -> float:
    """Return until when a removed job may still run on its node, by our clock; 0 if it does not.

    A removal during a vacate leaves the job in the queue, removed and with its host, until its
    lease is over. What runs there is gone with the grace all the same, and before that if its
    machine has no such slot any more.
    """
    slot = text(ad, "RemoteHost")
    if not slot or slot not in carved.get(slot.rpartition("@")[2], {slot}):
        return 0.0
    until = our_moment(ad, "EnteredCurrentStatus", now) + _grace_s(ad)
    return until if until > now else 0.0


def _grace_s(ad: Ad) -> float:
    return min(whole(ad, "DroneGraceS"), _LONGEST_GRACE_S) + _GRACE_SLACK_S


def _remote_drone(
    ad: Ad,
    drone_id: DroneId,
    noticed: Mapping[str, float],
    now: float,
    carved: Mapping[str, frozenset[str]],
) -> RemoteDrone:
    slot = text(ad, "RemoteHost")
    state, reason, end = _state(ad, now, carved)
    # One that could not be started where it was matched last waits anew, and has no place.
    host = slot if state is RemoteState.PENDING else slot or text(ad, "LastRemoteHost")
    ran = state is RemoteState.RUNNING or (has_started(ad) and end is not None)
    return RemoteDrone(
        drone_id=drone_id,
        state=state,
        remote_id=job_id(ad),
        type=text(ad, "DroneType"),
        started_at=our_moment(ad, "JobCurrentStartDate", now) if ran else 0.0,
        reason=reason,
        end=end,
        node=host.rpartition("@")[2],
        slot=host,
        # the slot of a removed job is vacated because we asked
        notice_at=noticed.get(slot, 0.0) if whole(ad, "JobStatus") == classads.RUNNING else 0.0,
        blocked=grid.obstacle(ad) if state is RemoteState.PENDING else None,
        epoch=whole(ad, "DroneEpoch"),
    )


def _state(
    ad: Ad, now: float, carved: Mapping[str, frozenset[str]]
) -> tuple[RemoteState, str, RemoteEnd | None]:
    match whole(ad, "JobStatus"):
        case classads.IDLE if grid.waits(ad):
            return RemoteState.PENDING, grid.waiting(ad), None
        case classads.IDLE if has_started(ad):
            return RemoteState.ENDED, "", _evicted(ad, now)
        case classads.IDLE:
            rejected = text(ad, "LastRejMatchReason", _MAX_REASON).strip()
            return (
                RemoteState.PENDING,
                f"not matched: {rejected}" if rejected else "waits for the negotiator",
                None,
            )
        case classads.RUNNING if not text(ad, "RemoteHost") and not has_started(ad):
            # Without its slot's name nobody can tell that the slot's ad is old and still shows the
            # place as free.
            return RemoteState.PENDING, "matched; its shadow starts", None
        case classads.RUNNING:
            return RemoteState.RUNNING, grid.running(ad), None
        case classads.TRANSFERRING_OUTPUT:
            return RemoteState.RUNNING, "its files are brought back", None
        case classads.REMOVED if until := leaves_until(ad, now, carved):
            return RemoteState.RUNNING, f"removed; gone within {round(until - now)} s", None
        case classads.REMOVED if why := grid.leaving(ad, now, _grace_s(ad)):
            return RemoteState.RUNNING, why, None
        case classads.REMOVED:
            return RemoteState.ENDED, "", _removed(ad, now)
        case classads.COMPLETED:
            return RemoteState.ENDED, "", _completed(ad, now)
        case classads.HELD if is_spooling(ad):
            return RemoteState.PENDING, "its files are being sent to the schedd", None
        case classads.HELD:
            return RemoteState.ENDED, "", _held(ad, "", now)
        case classads.SUSPENDED:
            return RemoteState.UNKNOWN, "suspended by its node", None
        case other:
            return RemoteState.UNKNOWN, f"job status {other}", None


def _evicted(ad: Ad, now: float) -> RemoteEnd:
    """Return the end of a job that is idle again: to run again would be its second life."""
    vacated = whole(ad, "LastVacateTime") > 0
    at = our_moment(ad, "LastVacateTime" if vacated else "EnteredCurrentStatus", now)
    why = text(ad, "VacateReason", _MAX_REASON)
    code = whole(ad, "VacateReasonCode")
    if code in _NODE_FAULTS or (not vacated and whole(ad, "NumShadowExceptions") > 0):
        return RemoteEnd(EndKind.FAULT, at, None, why or "its node was lost", FaultKind.NODE)
    return RemoteEnd(EndKind.PREEMPTED, at, None, why or "evicted from its slot")


def _completed(ad: Ad, now: float) -> RemoteEnd:
    at = our_moment(ad, "CompletionDate", now) or our_moment(ad, "EnteredCurrentStatus", now)
    if value(ad, "ExitBySignal") is True:
        signal = whole(ad, "ExitSignal")
        return RemoteEnd(EndKind.EXITED, at, 128 + signal, f"ended by signal {signal}")
    code = classads.number(ad, "ExitCode")
    return RemoteEnd(EndKind.EXITED, at, None if code is None else int(code))


def _held(ad: Ad, last: str, now: float) -> RemoteEnd:
    """Return the end of a held job. ``last``: "Last" for a hold that is over."""
    code = whole(ad, f"{last}HoldReasonCode")
    subcode = whole(ad, f"{last}HoldReasonSubCode")
    why = printable(text(ad, f"{last}HoldReason", _MAX_REASON) or "without a reason", _MAX_REASON)
    message = f"held ({code}/{subcode}): {why}"
    kind = next((kind for kind, codes in _HOLD_KINDS.items() if code in codes), FaultKind.UNKNOWN)
    if code == _STARTD_HELD and subcode in _USED_TOO_MUCH:
        kind = FaultKind.DRONE
    elif code in _SETUP and subcode == errno.EDQUOT:
        kind = FaultKind.QUOTA
    elif code in _SETUP and subcode in (errno.EACCES, errno.EPERM) and code != 6:
        kind = FaultKind.DENIED
    elif not code and grid.is_grid_job(ad):
        kind = grid.hold_kind(why)
        message = grid.held(why, kind)
    at = our_moment(ad, "EnteredCurrentStatus", now)
    if grid.is_gone(why):
        return RemoteEnd(EndKind.PREEMPTED, at, None, why)
    return RemoteEnd(EndKind.FAULT, at, None, message, kind)


def _removed(ad: Ad, now: float) -> RemoteEnd:
    """Return the end of a job that we, its own policy or somebody else took out of the queue."""
    why = text(ad, "RemoveReason", _MAX_REASON)
    at = our_moment(ad, "EnteredCurrentStatus", now)
    before = whole(ad, "LastJobStatus")
    if before == classads.IDLE and has_started(ad):
        return _evicted(ad, now)
    if before == classads.HELD and whole(ad, "LastHoldReasonCode") != SPOOLING:
        return _held(ad, "Last", now)
    if why.startswith(OUR_REASON):
        return RemoteEnd(EndKind.STOPPED, at, None, why.removeprefix(OUR_REASON))
    if before == classads.HELD:
        return RemoteEnd(
            EndKind.FAULT, at, None, "its files never reached the schedd", FaultKind.UNKNOWN
        )
    if "SYSTEM_PERIODIC_REMOVE" in why:
        return RemoteEnd(EndKind.FAULT, at, None, why, FaultKind.CONFIG)
    return RemoteEnd(EndKind.PREEMPTED, at, None, why or "removed by somebody else")


SPOOLING = 16  # input files are being spooled: not held at all
_HOLD_KINDS = {
    # UserRequest (condor_hold: one such drone says nothing of the site; several, of their type),
    # FailedToCreateProcess, UnableToOpen..., InvalidTransferAck, Transfer...Error, IwdError,
    # InvalidTransferGoAhead, UnableToInitUserLog, FailedToCheckpoint, SingularityTestFailed (the
    # node's container runtime), HookShadowPrepareJobFailure
    FaultKind.NODE: (1, 6, 7, 8, 9, 10, 11, 12, 13, 14, 18, 22, 36, 45, 48),
    # JobPolicy(Undefined) (an expression of the job's own), SubmittedOnHold, HookPrepareJobFailure
    # (the site's own hook refused it), StartdHeldJob (the node's policy), NoCompatibleShadow,
    # InvalidCronSettings, SystemPolicy(Undefined) (SYSTEM_PERIODIC_HOLD), InvalidDockerImage, Pre-
    # and PostScriptFailed
    FaultKind.CONFIG: (3, 5, 15, 19, 21, 24, 25, 26, 27, 35, 43, 44),
    # JobOutOfResources (over its memory, by what the jobs in it did), JobDurationExceeded,
    # JobExecuteExceeded (it did not leave at the end of its walltime)
    FaultKind.DRONE: (34, 46, 47),
    # CorruptedCredential, FailedToAccessUserAccount, EC2UserError and other grid types
    FaultKind.DENIED: (4, 23, 37),
    # MaxTransferInput- and OutputSizeExceeded, EC2AdminError
    FaultKind.QUOTA: (32, 33, 39),
    # EC2InternalError, EC2ServerError
    FaultKind.DOWN: (38, 41),
    # MissedDeferredExecutionTime, EC2ConnectionProblem
    FaultKind.CAPACITY: (20, 40),
}
"""Hold codes by the kind of fault behind them. Of others (JobShadowMismatch,
EC2InstancePotentiallyLostError) nothing is known."""
_STARTD_HELD = 21
_USED_TOO_MUCH = frozenset({101, 102, 104})
"""Sub-codes of HTCondor's policies HOLD_IF_CPUS_EXCEEDED, _MEMORY_ and _DISK_: the jobs in the drone did that."""
_SETUP = frozenset({6, 7, 8, 12, 13, 14, 22})  # codes whose sub-code is an ``errno``
