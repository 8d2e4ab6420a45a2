"""Past of an HTCondor site: the owner's use by the histories of their schedds, and queue times of earlier drones.

A history has only the last run of each job, so evicted runs are missing in the owner's use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from adapters.htcondor import classads
from adapters.htcondor.classads import IN_SLOT, REMOVED, Ad, attribute_names, moment, text, whole
from adapters.htcondor.site.nodes import PoolMachine
from adapters.htcondor.site.owner import owner_jobs
from adapters.htcondor.site.settings import HTCondorOwnerConfig
from provisioner.history import MAX_HISTORY_ROWS, PastStart, SiteHistoryView, known_since, use_steps
from provisioner.model import WHOLE_GPU

if TYPE_CHECKING:
    from adapters.htcondor.site.client import HTCondorClient

PAST_JOB_PROJECTION = attribute_names(
    """
    ClusterId ProcId JobStatus LastJobStatus QDate JobStartDate JobCurrentStartDate CompletionDate EnteredCurrentStatus
    RemoteHost LastRemoteHost RequestGPUs GPUsProvisioned DroneType LeaveJobInQueue
    """
)
PAST_TIMEOUT_S = 50.0
_HOLDS_GPUS = "((GPUsProvisioned ?: RequestGPUs) ?: 0) > 0"


async def site_history(
    client: HTCondorClient,
    owner: HTCondorOwnerConfig | None,
    our_jobs: str,
    machines: Sequence[PoolMachine],
    since: float,
    now: float,
) -> SiteHistoryView:
    """Return the past of a site whose nodes are ``machines``. The use is unknown unless each schedd answers."""
    ended = f"EnteredCurrentStatus >= {int(since)}"
    stop = classads.history_end(since)
    drones = await client.history(
        "", f"{our_jobs} && {ended}", PAST_JOB_PROJECTION, stop, MAX_HISTORY_ROWS
    )
    left_out = len(drones) >= MAX_HISTORY_ROWS
    known_at = since
    remembers = False
    held = list[tuple[float, float, int]]()
    for schedd in owner.schedds if owner else ():
        wanted = f"{owner_jobs(owner)} && {_HOLDS_GPUS}" if owner else ""
        past = await client.history(
            schedd, f"{wanted} && {ended}", PAST_JOB_PROJECTION, stop, MAX_HISTORY_ROWS
        )
        left_out = left_out or len(past) >= MAX_HISTORY_ROWS
        # a job that entered the history late says nothing about how far back the history goes
        ends = [end for end in map(ended_at, filter(classads.at_rest, past)) if since <= end <= now]
        known_at = max(known_at, known_since(ends, since)) if ends else known_at
        remembers = remembers or bool(ends)
        stay = f"{wanted} && (JobStatus == {classads.RUNNING} || JobStatus == {classads.COMPLETED})"
        there = await client.ads("jobs", stay, PAST_JOB_PROJECTION, schedd)
        held += gpu_holds([*past, *there], machines, now)
    # without a job on these machines it is not certain that the histories are about them
    steps = use_steps(held, known_at, now) if remembers and held else ()
    return SiteHistoryView(steps, tuple(past_starts(drones)), left_out)


def ended_at(ad: Ad) -> float:
    """Return the time at which a job of a history left its slot; 0 if it was in none."""
    if whole(ad, "JobStatus") == classads.COMPLETED:
        return moment(ad, "CompletionDate")
    return moment(ad, "EnteredCurrentStatus") if whole(ad, "LastJobStatus") in IN_SLOT else 0.0


def gpu_holds(
    ads: Iterable[Ad], machines: Iterable[PoolMachine], now: float
) -> list[tuple[float, float, int]]:
    """Return start, end and GPUs, in thousandths, of the last run of each job that ran on these machines."""
    sizes = {machine.name.lower(): machine.all.gpus for machine in machines}
    found = []
    for ad in ads:
        over = whole(ad, "JobStatus") in (classads.COMPLETED, REMOVED)
        slot = text(ad, "RemoteHost", 600) or text(ad, "LastRemoteHost", 600)
        size = sizes.get(slot.rpartition("@")[2].lower())
        if size is not None:
            gpus = min(size, whole(ad, "GPUsProvisioned") or whole(ad, "RequestGPUs"))
            found.append(
                (moment(ad, "JobCurrentStartDate"), ended_at(ad) if over else now, gpus * WHOLE_GPU)
            )
    return found


def past_starts(ads: Iterable[Ad]) -> Iterable[PastStart]:
    """Yield the starts of drones, except of those that were removed while they waited."""
    for ad in ads:
        kind = text(ad, "DroneType", 80)
        started_at = moment(ad, "JobStartDate")
        queued_at = moment(ad, "QDate")
        if kind and queued_at and started_at >= queued_at:
            yield PastStart(kind, started_at, started_at - queued_at)
