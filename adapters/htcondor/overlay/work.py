"""Runs of jobs in our drones by the ads of their schedds: work at stake, evictions, and failures.

Users can write nearly anything into the ads of their jobs, the slot of the last run and the reason
of a hold included. So a failure counts only if the drone's own slot has shown a claim of the job's
owner within the last quarter of an hour.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace

from adapters.htcondor import classad2, classads
from adapters.htcondor.classads import HELD, IDLE, IN_SLOT, Ad, job_id, moment, number, text, whole
from adapters.htcondor.overlay.job_classes import JobRequest, gpu_optional, request_in_slot
from adapters.htcondor.overlay.slots import DRONE_ID
from provisioner.model import WHOLE_GPU, Blame, CompletedJob, DroneId, Eviction, JobFailure, Slot
from provisioner.values import define, factory, frozen

EVICTION_REPORTED_S = 900.0  # an eviction is reported for this long

WORK_PROJECTION = classads.attribute_names(
    """
    ClusterId ProcId JobStatus LastJobStatus RemoteHost LastRemoteHost JobCurrentStartDate
    JobCurrentStartExecutingDate JobLastStartDate LastVacateTime JobDisconnectedDate LastJobLeaseRenewal
    LastCkptTime TransferOutStarted TransferOutFinished LastHoldReasonCode RequestGPUs GPUsProvisioned RequestCpus
    CpusProvisioned GpuMilli Owner HoldReason HoldReasonCode HoldReasonSubCode EnteredCurrentStatus RequestMemory
    MemoryUsage ResidentSetSize ImageSize DiskUsage RequiresGPU
    """
)
"""Usage and sizes are what requests that were left to the schedd refer to."""

NOTHING_ASKED = JobRequest()

_DRONE_SLOT = re.compile(r"[^@]*@([^@]+)@.*", re.DOTALL)  # ``slot1_1@<drone id>@<host>``
_MAX_SLOT_NAME = 300
_MAX_JOB_IDS = 100
MAX_DEVICES_PER_JOB = 4096  # GPUs or CPUs of one job: no node has more, and sums stay sensible


def constraint(controller: str, since: float) -> str:
    """Return the constraint for jobs that run in our drones, or left or were held in one ``since`` (schedd's clock)."""
    ours = classad2.quote(f"@{controller}-")
    since_s = int(since)
    codes = ",".join(map(str, HOLD_CODES))
    left = f"(LastVacateTime ?: 0) >= {since_s} && member(JobStatus, {{1,2,6,7}})"
    by_drone = (
        f"member(HoldReasonCode, {{{codes}}}) || (HoldReasonSubCode ?: 0) == {VRAM_HOLD_SUBCODE}"
    )
    held = f"JobStatus == {HELD} && ({by_drone}) && EnteredCurrentStatus >= {since_s}"
    return (
        f"(member(JobStatus, {{2,6,7}}) && regexp({ours}, RemoteHost))"
        f" || ((({left}) || ({held})) && regexp({ours}, LastRemoteHost))"
    )


@frozen
class JobRun:
    drone_id: DroneId
    gpu_milli: int
    # its start there or its last checkpoint, by our clock: what was done after it is at stake
    since: float
    begun_at: float = 0.0  # its start there, by our clock
    owner: str = ""
    asks: JobRequest = NOTHING_ASKED
    job_id: str = ""
    gpu_optional: bool = False


# a drone, owner and id (``<cluster>.<process>``) of a job that ran in it
JobInDrone = tuple[DroneId, str, str]


@frozen
class PoolWork:
    runs: tuple[JobRun, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    failures: tuple[JobFailure, ...] = ()
    ran: frozenset[JobInDrone] = frozenset()

    def on(self, slots: Iterable[Slot]) -> tuple[Slot, ...]:
        """Return the slots with the work at stake in them, its owner and its start."""
        runs: dict[DroneId, list[JobRun]] = {}
        for run in self.runs:
            runs.setdefault(run.drone_id, []).append(run)
        return tuple(
            _at_work(slot, runs[slot.drone_id]) if slot.drone_id in runs else slot for slot in slots
        )


def _at_work(slot: Slot, runs: list[JobRun]) -> Slot:
    total = sum(run.gpu_milli for run in runs)
    owners = {run.owner for run in runs}
    asks = runs[0].asks if len(runs) == 1 else NOTHING_ASKED
    return replace(
        slot,
        work_gpu_milli=total,
        work_at=sum(run.gpu_milli * run.since for run in runs) / total,
        owner=owners.pop() if len(owners) == 1 else "",
        begun_at=min(run.begun_at for run in runs),
        job_gpu_milli=asks.gpu_milli,
        job_cpus=asks.cpus,
        job_memory_mib=asks.memory_mib,
        optional_jobs=sum(run.gpu_optional for run in runs),
        job_ids=", ".join(sorted(run.job_id for run in runs if run.job_id)[:_MAX_JOB_IDS]),
    )


def together(parts: Iterable[PoolWork]) -> PoolWork:
    each = list(parts)
    evictions = sorted(
        (e for part in each for e in part.evictions), key=lambda e: (e.at, e.drone_id, e.job_id)
    )
    failures = tuple(failure for part in each for failure in part.failures)
    ran = frozenset(job for part in each for job in part.ran)
    return PoolWork(
        tuple(run for part in each for run in part.runs), tuple(evictions), failures, ran
    )


def work(
    ads: Iterable[Ad],
    controller: str,
    now: float,
    to_our_clock: Callable[[float], float],
    device_milli: Mapping[DroneId, int],
) -> PoolWork:
    """Return the work by the job ads of one schedd. ``device_milli``: what a drone's GPU is of a real one, if known."""
    runs: list[JobRun] = []
    evictions: list[Eviction] = []
    failures: list[JobFailure] = []
    ran: set[JobInDrone] = set()
    for ad in ads:
        hosts = (drone_named(ad, name, controller) for name in ("RemoteHost", "LastRemoteHost"))
        ran.update((host, text(ad, "Owner", 80), job_id(ad)) for host in hosts if host is not None)
        if failed := _failure(ad, controller, to_our_clock):
            failures.append(failed)
        if evicted := _eviction(ad, controller, to_our_clock, device_milli):
            evictions.append(evicted)
        if whole(ad, "JobStatus") in IN_SLOT and (
            drone_id := drone_named(ad, "RemoteHost", controller)
        ):
            began = _began(ad)
            since = min(to_our_clock(max(began, _saved(ad))), now) if began else now
            begun_at = min(to_our_clock(began), now) if began else now
            milli = _milli(ad, device_milli.get(drone_id))
            owner = text(ad, "Owner", 80)
            asks = request_in_slot(ad)
            optional = gpu_optional(ad)
            runs.append(JobRun(drone_id, milli, since, begun_at, owner, asks, job_id(ad), optional))
    return PoolWork(tuple(runs), tuple(evictions), tuple(failures), frozenset(ran))


def _failure(ad: Ad, controller: str, to_our_clock: Callable[[float], float]) -> JobFailure | None:
    """Return the failure of a job that a drone of ours held, or that is idle again after a run of seconds there."""
    drone_id = drone_named(ad, "LastRemoteHost", controller)
    status = whole(ad, "JobStatus")
    at = moment(ad, "EnteredCurrentStatus")
    cause = ""
    blame = Blame.UNKNOWN
    code = whole(ad, "HoldReasonCode")
    subcode = whole(ad, "HoldReasonSubCode")
    if status == HELD and code in HOLD_CODES:
        cause = f"held with code {code}" + (f", error {subcode}" if subcode else "")
    elif status == HELD and code in RESOURCE_HOLD_CODES and subcode == VRAM_HOLD_SUBCODE:
        cause = f"held for its VRAM: {text(ad, 'HoldReason', 200)}"
        blame = Blame.JOB
    elif status == IDLE and (began := last_run(ad)):
        at = moment(ad, "LastVacateTime")
        ran_s = at - began[0]
        preempted = gpu_optional(ad)  # by a job that needs the GPU, as it may be
        cause = (
            f"broke off after {ran_s:.0f} s" if 0 <= ran_s <= SHORT_RUN_S and not preempted else ""
        )
    if drone_id is None or not cause:
        return None
    return JobFailure(drone_id, job_id(ad), to_our_clock(at), text(ad, "Owner", 80), cause, blame)


def drone_named(ad: Ad, name: str, controller: str) -> DroneId | None:
    """Return the drone of this controller whose slot an attribute of a job names; None for other slots."""
    found = classads.value(ad, name)
    parts = _DRONE_SLOT.fullmatch(found[:_MAX_SLOT_NAME]) if isinstance(found, str) else None
    if parts and DRONE_ID.fullmatch(parts[1]) and parts[1].startswith(f"{controller}-"):
        return DroneId(parts[1])
    return None


def _milli(ad: Ad, device_milli: int | None) -> int:
    """Return the GPUs that a job holds (or CPUs), in thousandths; what it asked for if its drone is not known."""
    gpus, cpus = (
        min(whole(ad, f"{name}Provisioned") or whole(ad, f"Request{name}"), MAX_DEVICES_PER_JOB)
        for name in ("GPUs", "Cpus")
    )
    if not gpus:
        return (cpus or 1) * WHOLE_GPU
    share = number(ad, "GpuMilli")
    if device_milli is None and gpus == 1 and share is not None and 1 <= share <= WHOLE_GPU:
        return int(share)
    return gpus * (device_milli or WHOLE_GPU)


def _began(ad: Ad) -> float:
    """Return when the run that goes on now began, by the schedd's clock; 0 while its input is still on the way."""
    # after a restart the schedd keeps the old time until the new run has begun
    began = moment(ad, "JobCurrentStartExecutingDate")
    return began if began >= moment(ad, "JobCurrentStartDate") else 0.0


def _saved(ad: Ad) -> float:
    """Return when the job's files last went home, by the schedd's clock; 0 if they never did.

    HTCondor sets LastCkptTime for its own checkpoints alone. A job that checkpoints itself, or
    whose files go home when it is evicted, shows by its transfers; one that is still under way
    saves nothing, but the one before it did.
    """
    home = min(moment(ad, "TransferOutStarted"), moment(ad, "TransferOutFinished"))
    return max(home, moment(ad, "LastCkptTime"))


def _eviction(
    ad: Ad,
    controller: str,
    to_our_clock: Callable[[float], float],
    device_milli: Mapping[DroneId, int],
) -> Eviction | None:
    """Return the end of a job's last run, if that was in a drone of ours and not requested by the job or its owner."""
    left = moment(ad, "LastVacateTime")
    drone_id = drone_named(ad, "LastRemoteHost", controller)
    began = last_run(ad)
    if not left or drone_id is None or began is None:
        return None
    (start, executing), end, saved = began, left, _saved(ad)
    # where its drone just vanished the schedd waits for it until the job's lease is over
    lost = moment(ad, "JobDisconnectedDate")
    heard = moment(ad, "LastJobLeaseRenewal")
    if start <= lost <= left and not lost < heard <= left:
        end = lost
    since = max(executing, saved if executing <= saved <= left else 0.0)
    lost_s = max(0.0, end - since) if executing else 0.0
    return Eviction(
        drone_id, job_id(ad), to_our_clock(left), _milli(ad, device_milli.get(drone_id)), lost_s
    )


def last_run(ad: Ad) -> tuple[float, float] | None:
    """Return when the run that an eviction ended was given its slot, and when it began to execute (0: never).

    None if what ended was no eviction: removed and held jobs are left alone, as are released ones.
    """
    status = whole(ad, "JobStatus")
    executed = moment(ad, "JobCurrentStartExecutingDate")
    if status == IDLE and whole(ad, "LastJobStatus") in IN_SLOT:
        start = moment(ad, "JobCurrentStartDate")
        return start, executed if executed >= start else 0.0
    # It runs again. Whether it was held in between is unknown if it ever was: the slot's work must
    # do then.
    if (
        status in IN_SLOT
        and number(ad, "LastHoldReasonCode") is None
        and (start := moment(ad, "JobLastStartDate"))
    ):
        return start, executed if start <= executed < moment(ad, "JobCurrentStartDate") else start
    return None


# a run that ends without success within this time may have been ended by the node
SHORT_RUN_S = 10.0
HOLD_CODES = (6, 12, 13)
"""Hold codes that a node can cause: the executable could not be started (FailedToCreateProcess),
output or input could not be transferred (a scratch directory that is full, or cannot be written
to)."""
RESOURCE_HOLD_CODES = (21, 34)
"""Hold codes of a startd's WANT_HOLD, and of jobs that exceed their resources."""
VRAM_HOLD_SUBCODE = 105
"""Subcode with which a drone holds a job that exceeds its share of the VRAM."""
_CLAIM_REMEMBERED_S = 900.0
_MAX_FAILURES_PER_POLL = 1000  # largest number of failures in one poll, the newest
_MAX_WITNESSED_DRONES = 20_000  # drones whose users are remembered. More ids than that are forged.
MAX_WITNESSED_USERS = 200  # users remembered of one drone, those of the newest claims


def cause_of_end(ad: Ad, run_s: float) -> str:
    """Return the failure of a job that left the queue after ``run_s`` seconds; "" if none, or too late for a node's."""
    by_signal = classads.value(ad, "ExitBySignal") is True
    code = classads.value(ad, "ExitCode")
    if run_s > SHORT_RUN_S or not (by_signal or (isinstance(code, int) and code != 0)):
        return ""
    return f"ended after {run_s:.0f} s " + (
        "by a signal" if by_signal else f"with exit code {code}"
    )


def confirmed_faults(
    faults: Sequence[JobFailure],
    ran: Set[JobInDrone],
    completions: Sequence[CompletedJob] | None,
    succeeded: Set[str] = frozenset(),
) -> list[JobFailure]:
    """Return the faults of jobs whose runs in the reporting drone ended, by their schedds: any job there can report.

    A job that still runs there, or that ``succeeded`` (job ids), had no fault.
    """
    failed = (job for job in completions or () if faults and job.job_id not in succeeded)
    done = ((job.drone_id, job.owner, job.job_number) for job in failed)
    known = {*ran, *done}
    return [each for each in faults if (each.drone_id, each.owner, each.job_number) in known]


@define
class ClaimWitnesses:
    """Users whose claims the slots of drones have shown, and the failures believed: an ad has its newest alone."""

    _seen: dict[DroneId, dict[str, float]] = factory(dict)
    """When a claim of a user was shown last, for as long as the drone is there."""
    _known: dict[JobFailure, None] = factory(dict)

    def note(self, users: Mapping[DroneId, frozenset[str]], now: float) -> None:
        """Record the owners of the claims in the slots.

        Drones that are there no more are forgotten once their claims are older than reported
        failures.
        """
        for drone_id, names in users.items():
            if names and (drone_id in self._seen or len(self._seen) < _MAX_WITNESSED_DRONES):
                self._seen.setdefault(drone_id, {}).update(dict.fromkeys(names, now))
        for drone_id, seen in list(self._seen.items()):
            newest = sorted(seen.items(), key=lambda each: (-each[1], each[0]))
            self._seen[drone_id] = dict(newest[:MAX_WITNESSED_USERS])
            if drone_id not in users and now - newest[0][1] > _CLAIM_REMEMBERED_S:
                del self._seen[drone_id]

    def of_lone_users(self, faults: Iterable[JobFailure]) -> list[JobFailure]:
        """Return the faults; one in a drone in which others had jobs is blamed on nobody.

        Any of their jobs may be its cause, or may have written the report, or may be left there.
        """
        return [
            replace(each, blame=Blame.COLLATERAL)
            if self._seen.get(each.drone_id, {}).keys() - {each.owner}
            else each
            for each in faults
        ]

    def believed(self, failures: Iterable[JobFailure], now: float) -> tuple[JobFailure, ...]:
        """Return the failures of the last quarter of an hour, of users whose claims a slot of that drone has shown."""
        witnessed = (
            each
            for each in failures
            if each.owner
            and now - self._seen.get(each.drone_id, {}).get(each.owner, 0.0) <= _CLAIM_REMEMBERED_S
        )
        known = {**self._known, **dict.fromkeys(witnessed)}
        found = [each for each in known if abs(now - each.at) <= _CLAIM_REMEMBERED_S]
        newest = sorted(found, key=lambda each: (each.at, each.drone_id, each.job_id))[
            -_MAX_FAILURES_PER_POLL:
        ]
        self._known = dict.fromkeys(newest)
        return tuple(newest)
