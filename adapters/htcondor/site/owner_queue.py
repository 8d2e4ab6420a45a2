"""An owner's queue as values, made where its ads were read: waiting jobs in groups, running ones with what they hold.

Ads are slow to carry and to look into: 5000 of them are a second. Jobs that cannot be distinguished go as one group
with one ad as its sample. Jobs that differ in anything that START or their own Requirements look at are in different
groups: these attributes are found by reading the expressions, and asked for by name.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import classad2

from adapters.htcondor.classads import (
    LIMITS_PROJECTION,
    Ad,
    attribute_names,
    clock_ahead_s,
    expression,
    job_id,
    moment,
    refusals,
    source,
    text,
    used_up,
    value,
    whole,
)
from adapters.htcondor.site.nodes import PoolMachine, SlotResources, start_of

ELSEWHERE = (7, 9, 12)
"""Universes of jobs that do not run on a machine of the pool: scheduler, grid, local."""
OWNER_JOB_PROJECTION = (
    *attribute_names(
        """
    ClusterId ProcId JobStatus JobUniverse QDate User Owner AcctGroup RemoteHost RequestGPUs RequestCpus
    RequestMemory RequestDisk Requirements RequireGPUs GPUsProvisioned CpusProvisioned MemoryProvisioned
    ServerTime DiskUsage ImageSize MemoryUsage ResidentSetSize
    """
    ),
    *LIMITS_PROJECTION,
)
"""Attributes of every query. HTCondor computes requests from usage and sizes where a job has none."""
MOST_GROUPS = 1000
"""Largest number of groups, the oldest first."""
_MAX_REFERENCES = 300
_JUDGED = (
    "Requirements",
    "RequireGPUs",
    "RequestGPUs",
    "RequestCpus",
    "RequestMemory",
    "RequestDisk",
    "ConcurrencyLimits",
)
_OF_ONE_JOB = frozenset(
    attribute_names(
        """
    clusterid procid globaljobid jobstatus lastjobstatus qdate enteredcurrentstatus servertime remotehost
    diskusage diskusage_raw imagesize imagesize_raw memoryusage residentsetsize residentsetsize_raw
    """
    )
)
"""Attributes, in small letters, that the sample has and that distinguish no groups."""
_REFERENCE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_SCOPES = ("target", "my", "other", "self", "parent", "")


@dataclass(frozen=True, slots=True)
class OwnerJobGroup:
    """Waiting jobs of one user that no expression distinguishes."""

    who: str
    user: str
    size: SlotResources
    """Request of one job."""
    alike: str
    """The same for groups that differ only in their user: what one can run on, the other can too."""
    submitted: tuple[float, ...]
    """When, by our clock, each job came into its queue; the oldest first."""
    ids: tuple[str, ...]
    """Ids of the first three."""
    sample: Ad = field(repr=False, compare=False)
    used_up: str = ""
    """Concurrency limits of the jobs, where the negotiator has lately refused one for them: no room helps."""


@dataclass(frozen=True, slots=True)
class OwnerJobQueue:
    """Jobs of one queue of the owner's."""

    groups: tuple[OwnerJobGroup, ...] = ()
    """The oldest first."""
    running: tuple[tuple[str, SlotResources], ...] = ()
    """The slot of each running job, and what it holds there."""
    references: frozenset[str] = frozenset()
    """Attributes, in small letters, that its jobs' expressions look at."""
    left_out: int = 0
    """Groups beyond ``MOST_GROUPS``."""


def group_jobs(job_ads: Iterable[Ad], names: Collection[str] = (), now: float | None = None) -> OwnerJobQueue:
    """Return the jobs of a queue in groups.

    ``names``: attributes beside ``OWNER_JOB_PROJECTION`` that were asked for since an expression looks at them.
    ``now``: when the ads were read. Jobs that are neither idle nor running, or run without a machine, are left out.
    """
    now = time.time() if now is None else now
    apart = sorted({*map(str.lower, (*_JUDGED, *names))} - _OF_ONE_JOB)
    found: dict[tuple[str, ...], list[tuple[float, Ad]]] = {}
    running: list[tuple[str, SlotResources]] = []
    job_ads = list(job_ads)
    reached = used_up(refusals(job_ads, now))
    for ad in job_ads:
        if whole(ad, "JobUniverse") in ELSEWHERE:
            continue
        match whole(ad, "JobStatus"):
            case 1:
                user = text(ad, "User", 80)
                who = text(ad, "AcctGroup", 80) or user or text(ad, "Owner", 80)
                key = (who, user, repr(_size(ad)), *(source(ad, name) for name in apart))
                found.setdefault(key, []).append((_submitted(ad, now), ad))
            case 2:
                running.append((text(ad, "RemoteHost", 600), _held(ad)))
    oldest = sorted(found.items(), key=lambda item: (min(at for at, _ in item[1]), item[0]))
    groups = tuple(_group(key, members, reached) for key, members in oldest[:MOST_GROUPS])
    references = frozenset(name for group in groups for name in _references(group.sample, apart))
    return OwnerJobQueue(groups, tuple(running), references, len(oldest) - len(groups))


def _group(key: tuple[str, ...], members: list[tuple[float, Ad]], reached: Collection[str]) -> OwnerJobGroup:
    sample = members[0][1]
    ids = tuple(job_id(ad) for _, ad in members[:3])
    alike = hashlib.blake2s("\0".join(key[2:]).encode(errors="replace"), digest_size=16).hexdigest()
    limits = text(sample, "ConcurrencyLimits", 80)
    return OwnerJobGroup(
        who=key[0],
        user=key[1],
        size=_size(sample),
        alike=alike,
        submitted=tuple(sorted(at for at, _ in members)),
        ids=ids,
        sample=sample,
        used_up=limits if limits in reached else "",
    )


def _submitted(ad: Ad, now: float) -> float:
    """Return when a job was submitted, by our clock: a query's answer has the time at its schedd."""
    at = moment(ad, "QDate")
    return at - clock_ahead_s(ad, now) if at else 0.0


def _size(ad: Ad) -> SlotResources:
    """Return what one job asks for; disk in KiB rounded up to MiB."""
    return SlotResources(
        whole(ad, "RequestGPUs"),
        max(1, whole(ad, "RequestCpus")),
        whole(ad, "RequestMemory"),
        -(-whole(ad, "RequestDisk") // 1024),
    )


def _held(ad: Ad) -> SlotResources:
    """Return what a job was given, which may be more than it asked for."""
    asked = _size(ad)

    def given(name: str, otherwise: int) -> int:
        return whole(ad, name) if value(ad, name) is not None else otherwise

    return SlotResources(
        given("GPUsProvisioned", asked.gpus),
        given("CpusProvisioned", asked.cpus),
        given("MemoryProvisioned", asked.memory_mib),
    )


# --------------------------------------------------------------------------------------------- what expressions look at


def wanted_by(machines: Iterable[PoolMachine]) -> frozenset[str]:
    """Return the attributes of jobs, in small letters, that the START of any slot looks at."""
    found: set[str] = set()
    for machine in machines:
        for slot in machine.slots:
            if parsed := expression(start_of(slot)):
                found.update(_bare(slot.ad.externalRefs(parsed)))
    return _some(found)


def further(queue: OwnerJobQueue, names: Collection[str]) -> frozenset[str]:
    """Return the attributes that the queue's jobs look at and that were not asked for."""
    return queue.references - frozenset(map(str.lower, (*OWNER_JOB_PROJECTION, *names)))


def _references(job: Ad, names: Sequence[str]) -> Iterator[str]:
    """Yield the attributes that the job's attributes of these names look at, in the job or in the slot."""
    for name in names:
        if parsed := expression(source(job, name)):
            yield from _some(_bare(classad2.ClassAd().externalRefs(parsed)))


def _bare(references: Iterable[object]) -> Iterator[str]:
    """Yield the bare names of references: ``TARGET.Machine.Name`` is ``machine``."""
    for each in references:
        scope, _, rest = str(each).lower().partition(".")
        yield rest.partition(".")[0] if scope in _SCOPES else scope


def _some(names: Iterable[str]) -> frozenset[str]:
    return frozenset(sorted(name for name in names if _REFERENCE_NAME.fullmatch(name))[:_MAX_REFERENCES])
