"""Jobs of our account as drones: names, states, ends, and the drones that slurmctld has forgotten.

A job's name says which drones it is: ``kit-a1b2-17.a100.horeka`` is one drone of controller ``kit``, type ``a100`` and
site ``horeka``. ``kit-a1b2-17+.a100.horeka`` is an array: its task ``123_4`` is ``kit-a1b2-21``. A listing needs
nothing but the name, so a controller that starts anew knows each of its drones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from adapters.shared.printing import printable
from adapters.slurm.records import SlurmClient, SlurmJob, job_id_key, split_job_id
from adapters.slurm.states import SlurmStateMapping, classify_reason, map_state
from provisioner.interfaces import AdapterError
from provisioner.model import DroneId, EndKind, FaultKind, RemoteDrone, RemoteEnd, RemoteState

# --------------------------------------------------------------------------------------------------------------- names

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_SLURM_DRONE_ID = re.compile(rf"(?P<prefix>(?P<controller>{_LABEL})-[a-z0-9]{{1,32}})-(?P<serial>0|[1-9][0-9]{{0,17}})")
_DRONE_JOB_NAME = re.compile(rf"{_SLURM_DRONE_ID.pattern}(?P<array>\+?)\.(?P<type>{_LABEL})\.(?P<site>{_LABEL})")
_MAX_ID_LENGTH = 63


class SlurmDroneName(NamedTuple):
    """The drone id and type in a job's name."""

    drone_id: DroneId
    type: str


def job_name(drone_ids: Sequence[DroneId], type_name: str, site: str) -> str:
    """Return the name of the job for these drones of one prefix, the first of which has the lowest serial."""
    array = "+" if len(drone_ids) > 1 else ""
    return f"{drone_ids[0]}{array}.{type_name}.{site}"


def split_drone_id(drone_id: DroneId, controller: str) -> tuple[str, int] | None:
    """Return prefix and serial of a drone id of this controller; None for any other text."""
    found = _SLURM_DRONE_ID.fullmatch(drone_id)
    if found is None or found["controller"] != controller or len(drone_id) > _MAX_ID_LENGTH:
        return None
    return found["prefix"], int(found["serial"])


def drone_of(job: SlurmJob, controller: str, site: str) -> SlurmDroneName | None:
    """Return which drone of ``controller`` at ``site`` a job is; None if it is none of them."""
    name, remote = _DRONE_JOB_NAME.fullmatch(job.name[:256]), split_job_id(job.remote_id)
    if name is None or remote is None or (name["controller"], name["site"]) != (controller, site):
        return None
    if bool(name["array"]) != (remote[1] is not None):
        return None
    drone_id = f"{name['prefix']}-{int(name['serial']) + (remote[1] or 0)}"
    return SlurmDroneName(DroneId(drone_id), name["type"]) if len(drone_id) <= _MAX_ID_LENGTH else None


def is_drone(job: SlurmJob) -> bool:
    """Return whether a job is a drone of any controller."""
    return _DRONE_JOB_NAME.fullmatch(job.name[:256]) is not None


# ------------------------------------------------------------------------------------------------------------- listing

_REASON_LENGTH = 200
_MAX_DUPLICATE_NOTICES = 10
_EARLY_END_SLACK_S = 45.0
"""Ends are whole seconds, limits whole minutes; slurmctld checks them every 30 s."""
_NEAR_LIMIT_S = 300.0
"""The batch script ends a drone that does not leave on its signal, so long before the limit."""
_KILLED_STATUSES = (137, 143)
_NO_OUTPUT_FILE_SIGNAL = 53
"""The signal that Slurm reports where the job's output file could not be written."""
_LAUNCH_FAULTS = frozenset({FaultKind.NODE, FaultKind.CONFIG})


@dataclass(frozen=True, slots=True)
class SlurmDroneListing:
    """All drones of this site that Slurm lists."""

    drones: Mapping[DroneId, RemoteDrone]
    duplicates: tuple[str, ...] = ()
    """Ids of live jobs that are the same drone as another live job."""
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CancelledDrones:
    """Drones that this controller has cancelled since it started."""

    since: float
    drone_ids: Collection[DroneId] = frozenset()

    def by_another(self, drone_id: DroneId, at: float) -> bool:
        """Return whether somebody else cancelled the drone at this time."""
        return at > self.since and drone_id not in self.drone_ids


def list_drones(
    jobs: Iterable[SlurmJob], controller: str, site: str, cancelled: CancelledDrones, *, now: float, retain_s: float
) -> SlurmDroneListing:
    """Return the drones among ``jobs``, which were listed at ``now``. Ended ones stay for ``retain_s``."""
    alive: dict[DroneId, list[RemoteDrone]] = {}
    drones: dict[DroneId, RemoteDrone] = {}
    for job in jobs:
        name = drone_of(job, controller, site)
        if name is None or is_rejected_submission(job):
            continue
        drone = remote_drone(job, name, cancelled, now)
        other = drones.get(name.drone_id)
        if drone.end is None:
            alive.setdefault(name.drone_id, []).append(drone)
        elif drone.end.at > now - retain_s and (other is None or other.end is None or other.end.at < drone.end.at):
            drones[name.drone_id] = drone
    duplicates: list[str] = []
    notices: list[str] = []
    for drone_id, several in alive.items():
        # A running drone has more to lose than a waiting one; otherwise the older stays.
        several.sort(key=lambda drone: (drone.state is RemoteState.PENDING, job_id_key(drone.remote_id)))
        drones[drone_id] = several[0]
        for drone in several[1:]:
            duplicates.append(drone.remote_id)
            notices.append(f"{drone_id} exists twice, as {several[0].remote_id} and {drone.remote_id}")
    return SlurmDroneListing(drones, tuple(duplicates), tuple(notices[:_MAX_DUPLICATE_NOTICES]))


def is_rejected_submission(job: SlurmJob) -> bool:
    """Return whether a job is the record of a rejected submission: it failed for its request and never ran."""
    if job.state != "FAILED" or job.nodes:
        return False
    rejected = classify_reason(job.reason) in (FaultKind.CONFIG, FaultKind.CAPACITY) or not job.reason
    return rejected and job.started_at <= (job.submitted_at or job.started_at)


def remote_drone(job: SlurmJob, name: SlurmDroneName, cancelled: CancelledDrones, now: float) -> RemoteDrone:
    """Return one job as a drone."""
    mapping = map_state(job.state, job.flags)
    state, reason, blocked = mapping.state, mapping.description, None
    end = _end(job, mapping, name.drone_id, cancelled, now) if state is RemoteState.ENDED else None
    if end is not None:
        reason = ""
    elif job.restarts > 0:
        # Its batch script refuses a second life: whatever it does now, it has ended as the drone that it was.
        blocked = classify_reason(job.reason) if state is RemoteState.PENDING else None
        state, reason = RemoteState.PENDING, f"requeued by its site: {job.reason}".removesuffix(": ")
    elif state is RemoteState.PENDING:
        blocked = classify_reason(job.reason)
        reason = ": ".join(filter(None, (reason, job.reason)))
    elif "COMPLETING" in job.flags and job.state != "COMPLETING":
        reason = f"{reason} ({job.state.lower()})"
    waits = state is RemoteState.PENDING
    node = job.nodes[0] if job.nodes and not waits else ""
    return RemoteDrone(
        drone_id=name.drone_id,
        state=state,
        remote_id=job.remote_id,
        type=name.type,
        started_at=0.0 if waits or (end is not None and not job.nodes) else job.started_at,
        reason=printable(reason, _REASON_LENGTH),
        expected_start_at=job.started_at if waits and job.started_at > now and not job.restarts else 0.0,
        end=end,
        node=node,
        slot=f"{job.remote_id}@{node}" if node else "",
        notice_at=_preempted_at(job, now) if end is None and not waits else 0.0,
        blocked=blocked,
    )


def _preempted_at(job: SlurmJob, now: float) -> float:
    """Return since when a job is being preempted; 0 if it is not.

    Where Slurm does not report that, it reports an end before the time limit's.
    """
    if job.preempted_at:
        return min(job.preempted_at, now)
    if job.state != "RUNNING" or "COMPLETING" in job.flags or not (job.limit_s and job.started_at and job.ends_at):
        return 0.0
    return now if job.ends_at < job.started_at + job.limit_s - _EARLY_END_SLACK_S else 0.0


def _end(
    job: SlurmJob, mapping: SlurmStateMapping, drone_id: DroneId, cancelled: CancelledDrones, now: float
) -> RemoteEnd:
    at = min(job.ends_at, now) if job.ends_at else now
    if job.restarts > 0:
        return RemoteEnd(EndKind.PREEMPTED, at, None, "requeued by its site")
    assert mapping.kind is not None
    match job.state:
        case "COMPLETED" | "FAILED" if job.preempted_at:  # 22.05's words for one that left within its grace
            return RemoteEnd(EndKind.PREEMPTED, at, None, "preempted")
        case "COMPLETED":
            return RemoteEnd(EndKind.EXITED, at, job.exit_code or 0)
        case "FAILED":
            return _failed_end(job, at)
        case "CANCELLED" if cancelled.by_another(drone_id, at):
            message = _with_reason("cancelled by somebody else", job)
            return RemoteEnd(EndKind.FAULT, at, None, message, FaultKind.UNKNOWN)
        case _:
            return RemoteEnd(mapping.kind, at, None, _with_reason(mapping.description, job), mapping.fault)


def _with_reason(text: str, job: SlurmJob) -> str:
    """Return ``text`` with the job's reason.

    Of a cancelled job squeue still prints why it waited, sacct who cancelled it.
    """
    reason = job.reason if job.state != "CANCELLED" or job.reason.startswith("by ") else ""
    return printable(": ".join(filter(None, (text, reason))), _REASON_LENGTH)


def _failed_end(job: SlurmJob, at: float) -> RemoteEnd:
    """Return the end of a failed job: by its own exit status, or because it was never launched."""
    if job.signal == _NO_OUTPUT_FILE_SIGNAL:
        message = "its output file could not be written: check `output_directory`"
        return RemoteEnd(EndKind.FAULT, at, None, message, FaultKind.CONFIG)
    fault = classify_reason(job.reason)
    if fault in _LAUNCH_FAULTS or (fault is not None and not job.nodes):
        return RemoteEnd(EndKind.FAULT, at, None, printable(job.reason, _REASON_LENGTH), fault)
    limit_at = job.started_at + job.limit_s if job.started_at and job.limit_s else math.inf
    if job.exit_code in _KILLED_STATUSES and at > limit_at - _NEAR_LIMIT_S:
        return RemoteEnd(EndKind.STOPPED, at, None, "reached its time limit")
    if job.signal:
        return RemoteEnd(EndKind.EXITED, at, 128 + job.signal, f"ended by signal {job.signal}")
    return RemoteEnd(EndKind.EXITED, at, job.exit_code)


# ---------------------------------------------------------------------------------------------------- forgotten drones


ReadDrones = Callable[[Iterable[SlurmJob]], Mapping[DroneId, RemoteDrone]]


class ForgottenDrones:
    """Drones that slurmctld no longer lists (it forgets after MinJobAge), and what accounting knows of their end.

    Remembers which drones were alive in the last listing, however long ago that was: a cluster that could not be polled
    for an hour is asked what became of each.
    """

    def __init__(self, retain_s: float, accounting: bool | None) -> None:
        self._retain_s, self._has_accounting = retain_s, accounting is not False
        self._alive: dict[DroneId, RemoteDrone] = {}
        """As last listed."""
        self._missing: dict[DroneId, float] = {}
        """Drones that were alive, and since when listings lack them."""
        self._ended: dict[DroneId, tuple[RemoteDrone, float]] = {}
        """And since when its end is known."""
        self._asked_all = False

    async def resolve(
        self,
        cluster: SlurmClient,
        listed: Mapping[DroneId, RemoteDrone],
        read: ReadDrones,
        now: float,
        cancelled: Collection[DroneId] = (),
    ) -> tuple[Mapping[DroneId, RemoteDrone], tuple[str, ...]]:
        """Return drones that are missing in ``listed`` but were alive before or ended recently, and notices.

        ``read`` makes drones of jobs. ``cancelled``: drones that we have cancelled; of a task that is cancelled before
        it starts Slurm keeps no trace at all. Where accounting does not answer, missing drones are of unknown state for
        as long as ends are kept: "forgotten" is not "gone". Where it has no record, they are left out. The first call
        asks for all that ended recently.
        """
        self._remember(listed, now, cancelled)
        notices: tuple[str, ...] = ()
        unknown: dict[DroneId, RemoteDrone] = {}
        if self._has_accounting and (self._missing or not self._asked_all):
            # At first of all of ours, with no ids.
            remote_ids = [self._alive[drone_id].remote_id for drone_id in self._missing] if self._asked_all else []
            try:
                jobs = await cluster.ended_jobs(remote_ids, now - self._retain_s)
            except AdapterError as error:
                notices = (printable(f"accounting does not answer: {error}", 300),)
                reason = "slurmctld has forgotten it, and accounting does not answer"
                for drone_id in self._missing:
                    drone = self._alive[drone_id]
                    unknown[drone_id] = replace(drone, state=RemoteState.UNKNOWN, reason=reason, blocked=None)
            else:
                self._asked_all, self._has_accounting = True, jobs is not None
                found = read(jobs or ())
                self._ended |= {d: (drone, now) for d, drone in found.items() if drone.end and d not in listed}
        for drone_id in self._ended:
            self._alive.pop(drone_id, None)
        return {**{drone_id: drone for drone_id, (drone, _) in self._ended.items()}, **unknown}, notices

    def _remember(self, listed: Mapping[DroneId, RemoteDrone], now: float, cancelled: Collection[DroneId]) -> None:
        oldest = now - self._retain_s
        self._ended = {d: found for d, found in self._ended.items() if d not in listed and found[1] > oldest}
        self._alive = {d: drone for d, drone in {**self._alive, **listed}.items() if drone.end is None}
        missing = {d: self._missing.get(d, now) for d in self._alive if d not in listed}
        for drone_id, since in missing.items():
            drone = self._alive[drone_id]
            if drone.state is RemoteState.PENDING and drone_id in cancelled:
                end = RemoteEnd(EndKind.STOPPED, now, None, "cancelled before it started")
                gone = replace(drone, state=RemoteState.ENDED, end=end, reason="", blocked=None, expected_start_at=0.0)
                self._ended[drone_id] = gone, now
            if drone_id in self._ended or since <= oldest:
                del self._alive[drone_id]
        self._missing = {d: since for d, since in missing.items() if d in self._alive}
