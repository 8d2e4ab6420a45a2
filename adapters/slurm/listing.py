"""Our account's jobs as drones: what Slurm says of each, in the seam's words."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from adapters.shared.printing import printable
from adapters.slurm.names import named
from adapters.slurm.records import SlurmJob, job_id_key
from adapters.slurm.states import SlurmStateMapping, classify_reason, map_state
from provisioner.model import DroneId, EndKind, FaultKind, RemoteDrone, RemoteEnd, RemoteState

_REASON = 200
_MOST_NOTICES = 10
_NOTICE_SLACK_S = 45.0
"""Ends are told in whole seconds, limits in whole minutes; slurmctld looks at them every 30 s."""
_NEAR_LIMIT_S = 300.0
"""A drone that is told of its limit and does not leave is ended by its own batch script, so long before the limit."""
_KILLED = (137, 143)
_NO_DIRECTORY = 53
"""The signal that Slurm reports where the job's output file could not be written."""
_LAUNCH = frozenset({FaultKind.NODE, FaultKind.CONFIG})


@dataclass(frozen=True, slots=True)
class Listing:
    """All of ours that Slurm lists."""

    drones: Mapping[DroneId, RemoteDrone]
    surplus: tuple[str, ...] = ()
    """Ids of live jobs that are a drone which another live job is already."""
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What this controller has cancelled itself, and since when it would know."""

    since: float
    drone_ids: Collection[DroneId] = frozenset()

    def by_another(self, drone_id: DroneId, at: float) -> bool:
        return at > self.since and drone_id not in self.drone_ids


def listing(
    jobs: Iterable[SlurmJob], controller: str, site: str, cancelled: Cancelled, *, now: float, keep_s: float
) -> Listing:
    """``now``: when the jobs were listed. Ended ones are told for ``keep_s``."""
    alive: dict[DroneId, list[RemoteDrone]] = {}
    ended: dict[DroneId, RemoteDrone] = {}
    for job in jobs:
        who = named(job, controller, site)
        if who is None or never_was(job):
            continue
        drone = remote_drone(job, who.drone_id, who.type, cancelled, now)
        if drone.end is None:
            alive.setdefault(who.drone_id, []).append(drone)
        elif drone.end.at > now - keep_s:
            other = ended.get(who.drone_id)
            ended[who.drone_id] = drone if other is None else max(other, drone, key=_ended_at)
    surplus: list[str] = []
    notices: list[str] = []
    drones = dict(ended)
    for drone_id, several in alive.items():
        several.sort(key=_seniority)
        drones[drone_id] = several[0]
        surplus += [drone.remote_id for drone in several[1:]]
        for drone in several[1:]:
            notices.append(f"{drone_id} is there twice, as {several[0].remote_id} and {drone.remote_id}")
    return Listing(drones, tuple(surplus), tuple(notices[:_MOST_NOTICES]))


def _ended_at(drone: RemoteDrone) -> float:
    return drone.end.at if drone.end is not None else 0.0


def _seniority(drone: RemoteDrone) -> tuple[bool, tuple[int, int]]:
    """One that runs has more to lose than one that waits; else the older."""
    return drone.state is RemoteState.PENDING, job_id_key(drone.remote_id)


def never_was(job: SlurmJob) -> bool:
    """Whether a job is the record that a refused submit leaves: it failed for its request, and was never anywhere."""
    if job.state != "FAILED" or job.nodes:
        return False
    told = classify_reason(job.reason) in (FaultKind.CONFIG, FaultKind.CAPACITY) or job.reason in ("", "None")
    return told and job.started_at <= (job.submitted_at or job.started_at)


def remote_drone(job: SlurmJob, drone_id: DroneId, kind: str, cancelled: Cancelled, now: float) -> RemoteDrone:
    """One job."""
    means = map_state(job.state, job.flags)
    state, reason = means.state, job.reason if job.reason != "None" else ""
    end = _end(job, means, drone_id, cancelled, now) if state is RemoteState.ENDED else None
    blocked = None
    if end is not None:
        reason = ""
    elif job.restarts > 0:
        # Its batch script refuses a second life: whatever it does now, it has ended as the drone that it was.
        blocked = classify_reason(reason) if state is RemoteState.PENDING else None
        state, reason = RemoteState.PENDING, f"requeued by its site: {reason}".removesuffix(": ")
    elif state is RemoteState.PENDING:
        blocked = classify_reason(reason)
        reason = ": ".join(filter(None, (means.why, reason)))
    else:
        reason = means.why
        if job.flags & {"COMPLETING"} and job.state != "COMPLETING":
            reason = f"{reason} ({job.state.lower()})"
    runs = state is RemoteState.RUNNING
    waits = state is RemoteState.PENDING
    alive = end is None and not waits
    return RemoteDrone(
        drone_id=drone_id,
        state=state,
        remote_id=job.remote_id,
        type=kind,
        started_at=job.started_at if (runs or alive or job.nodes) and not waits else 0.0,
        reason=printable(reason, _REASON),
        expected_start_at=job.started_at if waits and job.started_at > now and not job.restarts else 0.0,
        end=end,
        node=job.nodes[0] if job.nodes and not waits else "",
        slot=f"{job.remote_id}@{job.nodes[0]}" if job.nodes and not waits else "",
        notice_at=_notice_at(job, now) if alive else 0.0,
        blocked=blocked,
    )


def _notice_at(job: SlurmJob, now: float) -> float:
    """Since when its place is taken back. Where Slurm does not tell that, it tells an end before the time limit's."""
    if job.preempted_at:
        return min(job.preempted_at, now)
    if job.state != "RUNNING" or "COMPLETING" in job.flags or not (job.limit_s and job.started_at and job.ends_at):
        return 0.0
    return now if job.ends_at < job.started_at + job.limit_s - _NOTICE_SLACK_S else 0.0


# --------------------------------------------------------------------------------------------------------------- ends


def _end(job: SlurmJob, means: SlurmStateMapping, drone_id: DroneId, cancelled: Cancelled, now: float) -> RemoteEnd:
    at = min(job.ends_at, now) if job.ends_at else now
    if job.restarts > 0:
        return RemoteEnd(EndKind.PREEMPTED, at, None, "requeued by its site")
    assert means.kind is not None
    match job.state:
        case "COMPLETED" | "FAILED" if job.preempted_at:  # 22.05's words for one that left within its grace
            return RemoteEnd(EndKind.PREEMPTED, at, None, "preempted")
        case "COMPLETED":
            return RemoteEnd(EndKind.EXITED, at, job.exit_code or 0)
        case "FAILED":
            return _failed(job, at)
        case "CANCELLED" if cancelled.by_another(drone_id, at):
            return RemoteEnd(EndKind.FAULT, at, None, _joined("cancelled by somebody else", job), FaultKind.UNKNOWN)
        case _:
            return RemoteEnd(means.kind, at, None, _joined(means.why, job), means.fault)


def _joined(what: str, job: SlurmJob) -> str:
    """Of a cancelled job squeue still tells why it waited, sacct by whom it was cancelled."""
    told = job.reason not in ("", "None") and (job.state != "CANCELLED" or job.reason.startswith("by "))
    why = job.reason if told else ""
    return printable(": ".join(filter(None, (what, why))), _REASON)


def _failed(job: SlurmJob, at: float) -> RemoteEnd:
    """By its own exit status, or because it never came so far."""
    if job.signal == _NO_DIRECTORY:
        message = "its output file could not be written: `output_directory`?"
        return RemoteEnd(EndKind.FAULT, at, None, message, FaultKind.CONFIG)
    fault = classify_reason(job.reason)
    if fault in _LAUNCH or (fault is not None and not job.nodes):
        return RemoteEnd(EndKind.FAULT, at, None, printable(job.reason, _REASON), fault)
    limit_at = job.started_at + job.limit_s if job.started_at and job.limit_s else math.inf
    if job.exit_code in _KILLED and at > limit_at - _NEAR_LIMIT_S:
        return RemoteEnd(EndKind.STOPPED, at, None, "its time limit was over")
    if job.signal:
        return RemoteEnd(EndKind.EXITED, at, 128 + job.signal, f"ended by signal {job.signal}")
    return RemoteEnd(EndKind.EXITED, at, job.exit_code)
