"""Jobs of our account as drones: names, states, ends, and the drones that slurmctld has forgotten.

A job's name says which drones it is: ``kit-a1b2-17.a100.horeka`` is one drone of controller
``kit``, type ``a100`` and site ``horeka``. ``kit-a1b2-17+.a100.horeka`` is an array: its task
``123_4`` is ``kit-a1b2-21``. A listing needs nothing but the name, so a controller that starts anew
knows each of its drones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from adapters.shared.drone_ids import DRONE_ID_PATTERN, LABEL, MAX_DRONE_ID_LENGTH
from adapters.shared.duplicates import DroneListing, Seniority, epoch_of, seniority, settled
from adapters.shared.printing import printable
from adapters.slurm.records import SlurmClient, SlurmJob, SlurmJobs, split_job_id
from adapters.slurm.states import SlurmStateMapping, classify_reason, map_state
from provisioner.interfaces import AdapterError
from provisioner.model import DroneId, EndKind, FaultKind, RemoteDrone, RemoteEnd, RemoteState

_DRONE_JOB_NAME = re.compile(
    rf"{DRONE_ID_PATTERN}(?P<array>\+?)\.(?P<type>{LABEL})\.(?P<site>{LABEL})"
)


def job_name(drone_ids: Sequence[DroneId], type_name: str, site: str) -> str:
    """Return the name of the job for these drones of one prefix, the first of which has the lowest serial."""
    array = "+" if len(drone_ids) > 1 else ""
    return f"{drone_ids[0]}{array}.{type_name}.{site}"


def drone_of(job: SlurmJob, controller: str, site: str) -> DroneId | None:
    """Return which drone of ``controller`` at ``site`` a job is; None if it is none of them."""
    name = _DRONE_JOB_NAME.fullmatch(job.name[:256])
    remote = split_job_id(job.remote_id)
    if name is None or remote is None or (name["controller"], name["site"]) != (controller, site):
        return None
    if bool(name["array"]) != (remote[1] >= 0):
        return None
    drone_id = f"{name['prefix']}-{int(name['serial']) + max(0, remote[1])}"
    return DroneId(drone_id) if len(drone_id) <= MAX_DRONE_ID_LENGTH else None


def is_drone(job: SlurmJob) -> bool:
    """Return whether a job is a drone of any controller."""
    return _DRONE_JOB_NAME.fullmatch(job.name[:256]) is not None


_REASON_LENGTH = 200
_EARLY_END_SLACK_S = 45.0
"""Ends are whole seconds, limits whole minutes; slurmctld checks them every 30 s."""
_NEAR_LIMIT_S = 300.0
"""The batch script ends a drone that does not leave on its signal, so long before the limit."""
_KILLED_STATUSES = (137, 143)
_NO_OUTPUT_FILE_SIGNAL = 53
"""The signal that Slurm reports where the job's output file could not be written."""


def is_alive(job: SlurmJob) -> bool:
    return map_state(job.state, job.flags).state is not RemoteState.ENDED


def is_completing(job: SlurmJob) -> bool:
    return "COMPLETING" in (*job.flags, job.state)


def _seniority(job: SlurmJob) -> Seniority:
    state = map_state(job.state, job.flags).state
    has_ended = state is RemoteState.ENDED
    waits = state is RemoteState.PENDING or (has_ended and not job.nodes)
    return seniority(
        job.remote_id,
        job.submitted_at,
        0.0 if waits else job.started_at,
        is_ending=is_completing(job),
        has_ended=has_ended,
    )


def is_rejected_submission(job: SlurmJob) -> bool:
    """Return whether a job is the record of a rejected submission: it failed for its request and never ran."""
    if job.state != "FAILED" or job.nodes:
        return False
    rejected = (
        classify_reason(job.reason) in (FaultKind.CONFIG, FaultKind.CAPACITY) or not job.reason
    )
    return rejected and job.started_at <= (job.submitted_at or job.started_at)


def _remote_drone(
    job: SlurmJob, drone_id: DroneId, now: float, not_ours_from: float
) -> RemoteDrone:
    """Return one job as a drone. If it was cancelled after ``not_ours_from``, somebody else did that."""
    mapping = map_state(job.state, job.flags)
    state = mapping.state
    reason = ""
    blocked = None
    end = None
    if state is RemoteState.ENDED:
        end = _end(job, mapping, now, not_ours_from)
    else:
        state, reason, blocked = _live_state(job, mapping)
    waits = state is RemoteState.PENDING
    # A job whose node is still prepared has its place: nobody counts it as free.
    placed = not waits or (job.state == "RUNNING" and not job.restarts)
    node = job.nodes[0] if job.nodes and placed else ""
    return RemoteDrone(
        drone_id=drone_id,
        state=state,
        remote_id=job.remote_id,
        type=job.name.split(".")[1],
        started_at=0.0 if waits or (end is not None and not job.nodes) else job.started_at,
        reason=printable(reason, _REASON_LENGTH),
        expected_start_at=job.started_at
        if waits and job.started_at > now and not job.restarts
        else 0.0,
        end=end,
        node=node,
        slot=f"{job.remote_id}@{node}" if node else "",
        notice_at=_preempted_at(job, now) if end is None and not waits else 0.0,
        blocked=blocked,
        epoch=epoch_of(job.comment),
    )


def _live_state(
    job: SlurmJob, mapping: SlurmStateMapping
) -> tuple[RemoteState, str, FaultKind | None]:
    """Return state, reason and obstacle of a job that has not ended."""
    waits = mapping.state is RemoteState.PENDING
    blocked = classify_reason(job.reason) if waits else None
    if job.restarts > 0:
        # Its batch script refuses a second life: whatever it does now, it has ended as the drone
        # that it was.
        reason = f"requeued by its site: {job.reason}".removesuffix(": ")
        return RemoteState.PENDING, reason, blocked
    reason = mapping.description
    if waits:
        reason = ": ".join(filter(None, (reason, job.reason)))
    elif "COMPLETING" in job.flags and job.state != "COMPLETING":
        reason = f"{reason} ({job.state.lower()})"
    return mapping.state, reason, blocked


def _preempted_at(job: SlurmJob, now: float) -> float:
    """Return since when a job is being preempted; 0 if it is not."""
    if job.preempted_at:
        return min(job.preempted_at, now)
    # where Slurm does not report that, it reports an end before the time limit's
    if (
        job.state != "RUNNING"
        or "COMPLETING" in job.flags
        or not (job.limit_s and job.started_at and job.ends_at)
    ):
        return 0.0
    return now if job.ends_at < job.started_at + job.limit_s - _EARLY_END_SLACK_S else 0.0


def _end(job: SlurmJob, mapping: SlurmStateMapping, now: float, not_ours_from: float) -> RemoteEnd:
    at = min(job.ends_at, now) if job.ends_at else now
    if job.restarts > 0:
        return RemoteEnd(EndKind.PREEMPTED, at, None, "requeued by its site")
    # 22.05's words for one that left within its grace
    if job.state in ("COMPLETED", "FAILED") and job.preempted_at:
        return RemoteEnd(EndKind.PREEMPTED, at, None, "preempted")
    if job.state == "COMPLETED":
        return RemoteEnd(EndKind.EXITED, at, job.exit_code or 0)
    if job.state == "FAILED":
        return _failed_end(job, at)
    assert mapping.kind is not None
    kind = mapping.kind
    message = mapping.description
    fault = mapping.fault
    reason = job.reason
    if job.state == "CANCELLED":
        # squeue still prints why it waited, sacct who cancelled it
        reason = reason if reason.startswith("by ") else ""
        if at > not_ours_from:
            kind = EndKind.FAULT
            message = "cancelled by somebody else"
            fault = FaultKind.UNKNOWN
    return RemoteEnd(
        kind, at, None, printable(": ".join(filter(None, (message, reason))), _REASON_LENGTH), fault
    )


def _failed_end(job: SlurmJob, at: float) -> RemoteEnd:
    if job.signal == _NO_OUTPUT_FILE_SIGNAL:
        message = "its output file could not be written: check `output_directory`"
        return RemoteEnd(EndKind.FAULT, at, None, message, FaultKind.CONFIG)
    fault = classify_reason(job.reason)
    if fault in (FaultKind.NODE, FaultKind.CONFIG) or (fault is not None and not job.nodes):
        return RemoteEnd(EndKind.FAULT, at, None, printable(job.reason, _REASON_LENGTH), fault)
    limit_at = job.started_at + job.limit_s if job.started_at and job.limit_s else math.inf
    if job.exit_code in _KILLED_STATUSES and at > limit_at - _NEAR_LIMIT_S:
        return RemoteEnd(EndKind.STOPPED, at, None, "reached its time limit")
    if job.signal:
        return RemoteEnd(EndKind.EXITED, at, 128 + job.signal, f"ended by signal {job.signal}")
    return RemoteEnd(EndKind.EXITED, at, job.exit_code)


_CANCELLED_TTL_S = 86400.0


class SlurmDrones:
    """The drones of one controller at one site, in listings and in accounting.

    Remembers which drones were alive in the last listing, however long ago that was: slurmctld
    forgets a job after MinJobAge, and a cluster that could not be polled for an hour is asked what
    became of each.
    """

    def __init__(self, controller: str, site: str, retain_s: float, *, since: float) -> None:
        """``since``: when this controller started."""
        self._controller = controller
        self._site = site
        self._retain_s = retain_s
        self._since = since
        self.user = ""
        """Our account, as soon as a listing names it."""
        self.cancelled: dict[DroneId, float] = {}
        """When we cancelled which drone."""
        self._alive: dict[DroneId, RemoteDrone] = {}
        """As last listed."""
        self._missing: dict[DroneId, float] = {}
        """Drones that were alive, and since when listings lack them."""
        self._ended: dict[DroneId, tuple[RemoteDrone, float]] = {}
        """And since when its end is known."""
        self._asked_all = False
        self._has_accounting = True

    def jobs(self, jobs: Iterable[SlurmJob]) -> Mapping[DroneId, SlurmJobs]:
        """Return the jobs of each drone, the one that counts first."""
        found: dict[DroneId, list[SlurmJob]] = {}
        for job in jobs:
            drone_id = drone_of(job, self._controller, self._site)
            if drone_id is not None and not is_rejected_submission(job):
                found.setdefault(drone_id, []).append(job)
        for several in found.values():
            several.sort(key=_seniority)
        return found

    def listing(self, jobs: SlurmJobs, now: float) -> DroneListing:
        """Return the drones among our ``jobs``, which were listed at ``now``. Ended ones stay for a while."""
        self.user = next((job.user for job in jobs if job.user), self.user)
        self.cancelled = {d: at for d, at in self.cancelled.items() if at > now - _CANCELLED_TTL_S}
        return self._listing(jobs, now, self._retain_s)

    def _listing(self, jobs: Iterable[SlurmJob], now: float, retain_s: float) -> DroneListing:
        found: list[tuple[Seniority, RemoteDrone]] = []
        for drone_id, several in self.jobs(jobs).items():
            not_ours_from = math.inf if drone_id in self.cancelled else self._since
            for job in several:
                drone = _remote_drone(job, drone_id, now, not_ours_from)
                if drone.end is None or drone.end.at > now - retain_s:
                    found.append((_seniority(job), drone))
        return settled(found)

    async def forgotten(
        self, cluster: SlurmClient, listed: Mapping[DroneId, RemoteDrone], now: float
    ) -> tuple[Mapping[DroneId, RemoteDrone], Sequence[str]]:
        """Return drones that are missing in ``listed`` but were alive before or ended recently, and notices.

        If accounting does not answer, missing drones have an unknown state for as long as ends are
        kept: "forgotten" is not "gone". Where it has no record, they are left out. The first call
        asks for all that ended recently.
        """
        self._remember(listed, now)
        notices: Sequence[str] = ()
        unknown: dict[DroneId, RemoteDrone] = {}
        if self._has_accounting and (self._missing or not self._asked_all):
            # At first of all of ours, with no ids.
            remote_ids = (
                [self._alive[drone_id].remote_id for drone_id in self._missing]
                if self._asked_all
                else []
            )
            try:
                jobs = await cluster.ended_jobs(remote_ids, now - self._retain_s)
            except AdapterError as error:
                notices = [printable(f"accounting does not answer: {error}", 300)]
                reason = "slurmctld has forgotten it, and accounting does not answer"
                for drone_id in self._missing:
                    drone = self._alive[drone_id]
                    unknown[drone_id] = replace(
                        drone, state=RemoteState.UNKNOWN, reason=reason, blocked=None
                    )
            else:
                self._asked_all = True
                self._has_accounting = jobs is not None
                # It lists everybody's jobs to root: a name alone makes no drone of ours.
                own = [job for job in jobs or () if not self.user or job.user in ("", self.user)]
                found = self._listing(own, now, math.inf).drones
                self._ended |= {
                    d: (drone, now) for d, drone in found.items() if drone.end and d not in listed
                }
        for drone_id in self._ended:
            self._alive.pop(drone_id, None)
        return {
            **{drone_id: drone for drone_id, (drone, _) in self._ended.items()},
            **unknown,
        }, notices

    def _remember(self, listed: Mapping[DroneId, RemoteDrone], now: float) -> None:
        oldest = now - self._retain_s
        self._ended = {
            d: found for d, found in self._ended.items() if d not in listed and found[1] > oldest
        }
        self._alive = {
            d: drone for d, drone in {**self._alive, **listed}.items() if drone.end is None
        }
        missing = {d: self._missing.get(d, now) for d in self._alive if d not in listed}
        for drone_id, since in missing.items():
            drone = self._alive[drone_id]
            if drone.state is RemoteState.PENDING and drone_id in self.cancelled:
                # of a task that is cancelled before it starts Slurm keeps no trace at all
                end = RemoteEnd(EndKind.STOPPED, now, None, "cancelled before it started")
                gone = replace(
                    drone,
                    state=RemoteState.ENDED,
                    end=end,
                    reason="",
                    blocked=None,
                    expected_start_at=0.0,
                )
                self._ended[drone_id] = gone, now
            if drone_id in self._ended or since <= oldest:
                del self._alive[drone_id]
        self._missing = {d: since for d, since in missing.items() if d in self._alive}
