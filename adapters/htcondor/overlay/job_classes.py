"""Job classes and accounting groups.

Job classes come out of the groups that a schedd makes: one ad per set of identical requirements,
never one per job.

Accounting groups come out of the ads that the negotiator leaves at the collector after each cycle.
Quotas and usage there are sums of slot weights, which are CPUs unless a pool says otherwise. They
become GPUs by what the group's own jobs ask for: where its GPU jobs, those of its sub-groups
included, ask for 8 CPUs a GPU on average, a quota of 64 is one of 8 GPUs. That is exact if the jobs
of a group are alike, and an average otherwise. The quota that jobs without a GPU use counts as
well: it is no longer available. The negotiator reports the usage of a group without its sub-groups;
here it is with them, as the quota is. A dynamic quota (a share of the pool) is no limit here: the
pool grows with every drone, and the share with it. Quotas are taken as they were written: in a pool
without slots the negotiator computes none, and reports 0.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import NamedTuple

from adapters.htcondor import classad2, classads
from adapters.htcondor.classads import (
    HELD,
    IDLE,
    IN_SLOT,
    Ad,
    attribute_names,
    moment,
    number,
    source,
    text,
    whole,
)
from adapters.htcondor.overlay.affiliation import Affiliation, referred
from adapters.htcondor.overlay.matching import bound, clauses
from adapters.shared.inference import announced_models
from adapters.shared.printing import printable
from provisioner.model import WHOLE_GPU, Group, JobClass
from provisioner.values import frozen

GROUPED = attribute_names(
    """
    JobStatus RequestGPUs RequestCpus RequestMemory RequestDisk GpuMilli GpuDuty GpuWidth RequireGPUs RequiresGPU
    Requirements GPUsMinMemory GPUsMinCapability GPUsMaxCapability GPUsMinRuntime Owner JobPrio JobUniverse
    AllowedJobDuration AllowedExecuteDuration MaxWallTimeMins ConcurrencyLimits RequestGPUMem Managed RouteName
    GpuApi InteractiveJob WantsInference
    """
)
"""Attributes that the schedd groups by; it adds by itself those that their expressions refer to."""


_PARALLEL_JOB = "the parallel universe is not supported: drones have no dedicated scheduler; write universe = vanilla"

JOBS = (
    "member(JobStatus, {1,2,5,6,7}) && member(JobUniverse, {7,9,12}) isnt true"
    ' && Managed isnt "External"'
)
"""Put to the ads of the groups, not of the jobs. Universes 7, 9, 12 (scheduler, grid, local) never run in a slot.
Nor does a job that a JobRouter manages: its routed copy does. A job that the router gives back counts again."""

OPTIONAL = (
    '((RequiresGPU == "optional") is true && !member(unparse(RequestGPUs), {"", "undefined", "0"}))'
)
"""True for jobs that use a GPU where there is one: their RequestGPUs depends on the slot."""

GPU_JOBS = (
    f'{JOBS} && !member(unparse(RequestGPUs), {{"", "undefined"}}) && ((RequestGPUs != 0) '
    f"isnt false || {OPTIONAL})"
)
"""Without those that want no GPU: RequestGPUs is 0, or missing. One that evaluates to nothing is
kept: it gets a reason."""

GPU_JOBS_AND_CALLERS = (
    f"{GPU_JOBS} || {JOBS} && WantsInference isnt undefined && !member(JobStatus, {{1, 5}})"
)
"""With those that run on other nodes and call inference services."""

_NOT_REQUIREMENTS = frozenset(
    attribute_names(
        "jobstatus jobcount jobids id jobprio qdate enteredcurrentstatus mytype targettype managed routename"
    )
)
_OF_TIME = re.compile(
    r"\b(time\s*\(\s*\)|currenttime|servertime|qdate|enteredcurrentstatus)", re.IGNORECASE
)
_USAGE = frozenset(
    attribute_names(
        "diskusage memoryusage imagesize residentsetsize transferinputsizemb executablesize"
    )
)
"""Measured while a job runs: a running job may differ here from its waiting brothers and is still of their class."""

_OWNERS = frozenset({"owner", "acctgroup", "accountinggroup"})


@frozen
class JobGroup:
    """One group as one schedd made it."""

    schedd: str
    key: str  # digest of all requirements
    brothers: str  # the same without measured usage
    # the same without the owner, unless an expression looks at that: what verdicts depend on
    shape: str
    status: int
    count: int
    first: str  # id of its first job, ``204.0``; ``last`` that of its last one
    last: str
    job_ids: str
    owner: str
    accounting: str  # its accounting group; empty if it has none
    vo: str
    vo_member: str
    priority: int
    ad: Ad = field(repr=False, compare=False)


def group(ad: Ad, schedd: str, of: Affiliation) -> JobGroup | None:
    """Return a group ad as a value; None if it is none that counts."""
    if (count := whole(ad, "JobCount")) == 0:
        return None
    attributes = {name.lower(): source(ad, name) for name in ad}
    kept = {name: text for name, text in attributes.items() if name not in _NOT_REQUIREMENTS}
    ids = text(ad, "JobIds")
    owners = _OWNERS.union(map(str.lower, of.attributes))
    all_of_it = "\0".join(kept.values()).lower()
    about_owner = any(name in all_of_it for name in owners)
    return JobGroup(
        schedd=schedd,
        key=_digest(kept),
        brothers=_digest({name: text for name, text in kept.items() if name not in _USAGE}),
        shape=_digest(
            {name: text for name, text in kept.items() if about_owner or name not in owners}, 16
        ),
        status=whole(ad, "JobStatus"),
        count=count,
        first=ids.split(" ", 1)[0],
        last=ids.rsplit(" ", 1)[-1],
        job_ids=ids.replace(" ... ", "-").replace(" ", ", "),
        owner=text(ad, "Owner", 80),
        accounting=text(ad, of.group, 80),
        vo=of.vo_of(ad),
        vo_member=of.member_of(ad),
        priority=int(max(-(2**31), min(2**31, number(ad, "JobPrio") or 0))),
        ad=ad,
    )


def _digest(attributes: dict[str, str], size: int = 8) -> str:
    words = "\0".join(f"{name}={attributes[name]}" for name in sorted(attributes))
    return hashlib.blake2s(words.encode(errors="replace"), digest_size=size).hexdigest()


def merged(groups: Iterable[JobGroup]) -> dict[str, list[JobGroup]]:
    """Return the groups by class id. Running and held ones join the waiting ones of the same kind, if there are any."""
    everything = list(groups)
    waiting = {g.brothers: g.key for g in everything if g.status == IDLE}
    classes: dict[str, list[JobGroup]] = {}
    for each in everything:
        known = each.key if each.status == IDLE else waiting.get(each.brothers, each.key)
        classes.setdefault(known, []).append(each)
    return classes


def representative(groups: list[JobGroup]) -> Ad:
    """Return the ad of a class: of a waiting group if there is one, and of jobs that were submitted first."""
    if len(groups) == 1:
        return groups[0].ad
    return min(
        groups, key=lambda g: (g.status != IDLE, number(g.ad, "QDate") or 0, g.schedd, g.first)
    ).ad


def passes(ad: Ad) -> bool:
    """Return True if what an ad asks for depends on the time, so that a verdict on it does not last."""
    return any(_OF_TIME.search(source(ad, name)) for name in ad)


class QueueWait(NamedTuple):
    """Times for which idle jobs have waited, by this host's clock."""

    oldest_at: float = 0.0  # when the oldest of them was submitted
    # when the longest wait that goes on began: a job that was evicted began anew
    idle_at: float = 0.0

    @classmethod
    def of(cls, ad: Ad, received_at: float) -> QueueWait:
        submitted = moment(ad, "QDate")
        idle = moment(ad, "EnteredCurrentStatus")
        skew = classads.clock_ahead_s(ad, received_at)
        return cls(submitted - skew, max(submitted, idle) - skew)

    def earlier(self, other: QueueWait) -> QueueWait:
        return QueueWait(min(self.oldest_at, other.oldest_at), min(self.idle_at, other.idle_at))


WAIT_PROJECTION = ("QDate", "EnteredCurrentStatus", "ServerTime")
NO_WAITS = QueueWait()
Slots = Sequence[Sequence[Ad]]
"""Slots of drone types without a GPU, and of those with one."""
NO_SLOTS: Slots = ((), ())


def job_class(
    class_id: str, groups: list[JobGroup], fresh: int, waits: QueueWait, slots: Slots = NO_SLOTS
) -> JobClass:
    """Return a class without the verdicts on its requirements. ``slots``: as for :func:`request`."""
    ad = representative(groups)
    idle = [g for g in groups if g.status == IDLE]
    held = [g for g in groups if g.status == HELD]
    running = [g for g in groups if g.status in IN_SLOT]
    waiting = sum(g.count for g in idle)
    fresh = min(fresh, waiting)
    asks, driver, invalid = request(ad, slots)
    found = JobClass(
        id=class_id,
        **asks._asdict(),
        driver=driver,
        waiting=waiting - fresh,
        fresh=fresh,
        running=sum(g.count for g in running),
        held=sum(g.count for g in held),
        oldest_at=waits.oldest_at if idle else 0.0,
        owner=groups[0].owner,
        priority=max((g.priority for g in idle or groups), default=0),
        invalid=_PARALLEL_JOB if number(ad, "JobUniverse") == classads.PARALLEL else invalid,
        job_ids=_ids(idle),
        running_ids=_ids(running),
        held_ids=_ids(held),
        group=groups[0].accounting,
        vo=groups[0].vo,
        vo_member=groups[0].vo_member,
        duty_milli=_thousandths(ad, "GpuDuty"),
        width_milli=_thousandths(ad, "GpuWidth"),
        splits=False,
        idle_at=waits.idle_at if idle else 0.0,
        ends_within_s=float(whole(ad, "AllowedJobDuration") or whole(ad, "AllowedExecuteDuration")),
        inference=announced_models(classads.value(ad, "WantsInference")),
    )
    return found.with_optional_gpu() if gpu_optional(ad) else found


def _thousandths(ad: Ad, name: str) -> int:
    """Return a number from 0 to 1 in thousandths; 0 if it is none."""
    share = number(ad, name)
    return round(share * 1000) if share is not None and 0 <= share <= 1 else 0


def _ids(groups: list[JobGroup]) -> str:
    return printable(", ".join(g.job_ids for g in groups))


class JobRequest(NamedTuple):
    """Resources that a job asks for: GPUs in thousandths, CPUs, MiB; the least MiB and tenths of each GPU; seconds."""

    gpu_milli: int = 0
    cpus: int = 0
    memory_mib: int = 0
    disk_mib: int = 0
    vram_mib: int = 0
    capability: int = 0
    walltime_s: float = 0.0  # 0 if it does not say


_RESOURCE_REQUESTS = (
    ("RequestCpus", "request_cpus", "1"),
    ("RequestMemory", "request_memory", "2GB"),
    ("RequestDisk", "request_disk", "1GB"),
)
"""Attributes of requests with their submit commands and good values."""


def request(ad: Ad, slots: Slots = NO_SLOTS) -> tuple[JobRequest, int, str]:
    """Return what a job asks for, the least CUDA version, and what is wrong with it if no slot can ever meet it.

    A request that looks at the slot is the least of those in ``slots``. HTCondor runs jobs with a
    negative request of CPUs, memory or disk, as if it was 0.
    """
    gpu_milli, invalid = _gpus_asked(ad, slots[1])
    asked = [_asked(ad, name, slots[gpu_milli > 0]) for name, _, _ in _RESOURCE_REQUESTS]
    cpus, memory_mib, disk_kib = (max(0, math.ceil(each or 0)) for each in asked)
    least = {"globalmemorymb": 0.0, "capability": 0.0, "maxsupportedversion": 0.0}
    for name in ("RequireGPUs", "Requirements"):
        for clause in clauses(source(ad, name)):
            found = bound(clause, ad) if " >= " in clause else None
            if found and found[0].lower() in least and found[1] <= classads.LARGEST_NUMBER:
                least[found[0].lower()] = max(least[found[0].lower()], found[1])
    vram, capability, driver = least.values()
    vram = max(vram, min(whole(ad, "RequestGPUMem"), classads.LARGEST_NUMBER))
    walltime_s = whole(ad, "AllowedJobDuration") or whole(ad, "AllowedExecuteDuration")
    walltime_s = walltime_s or whole(ad, "MaxWallTimeMins") * 60
    per_gpu = math.ceil(vram), math.ceil(round(capability * 10, 6))
    asks = JobRequest(
        gpu_milli, cpus, memory_mib, math.ceil(disk_kib / 1024), *per_gpu, float(walltime_s)
    )
    return asks, math.ceil(driver), invalid or _undefined(ad, asked)


def request_in_slot(ad: Ad) -> JobRequest:
    """Return what a job asks for in the slot of its run: no GPU if that is optional and the slot has none."""
    asks, _, _ = request(ad)
    if gpu_optional(ad) and not whole(ad, "GPUsProvisioned"):
        return asks._replace(gpu_milli=0, vram_mib=0, capability=0)
    return asks


def _asked(ad: Ad, name: str, slots: Sequence[Ad]) -> float | None:
    """Return the number that a job asks for, by itself or of a slot; None without a sensible one."""
    if not source(ad, name):
        return float(name == "RequestCpus")
    own = number(ad, name)
    # as arithmetic reads it: true is 1
    values = (
        [classads.evaluated_number(f"{name} + 0", ad, slot) for slot in slots]
        if own is None
        else [own]
    )
    return min(
        (each for each in values if each is not None and each <= classads.LARGEST_NUMBER),
        default=None,
    )


def gpu_optional(ad: Ad) -> bool:
    """Return True if a job uses a GPU where there is one. ``RequiresGPU`` alone asks for none: that is a CPU job."""
    asks = source(ad, "RequestGPUs") not in ("", "undefined", "0")
    return asks and text(ad, "RequiresGPU", 20).lower() == "optional"


def _gpus_asked(ad: Ad, slots: Sequence[Ad]) -> tuple[int, str]:
    """Return the GPUs in thousandths, and what is wrong with the request if no slot can ever meet it.

    HTCondor assigns whole GPUs, and a drone may offer shares of one as such. A job asks for a share
    by its GpuMilli.
    """
    if source(ad, "RequestGPUs") in ("", "undefined"):
        return 0, ""
    asked = _asked(ad, "RequestGPUs", slots)
    written = printable(source(ad, "RequestGPUs"), 60)
    if gpu_optional(ad) and not asked:
        # In a slot with a GPU; where that depends on more of the GPU, the verdict on each type does
        # as well.
        asked = classads.evaluated_number("RequestGPUs", ad, classad2.ClassAd({"GPUs": 1})) or 1
    if asked is None:
        return 0, f"request_gpus = {written} is not a number for this job: write request_gpus = 1"
    if asked < 0:
        return 0, f"request_gpus = {written} is negative: write request_gpus = 1"
    if asked != int(asked):
        more = f" or request_gpus = {math.ceil(asked)}" if asked > 1 else ""
        return round(asked * WHOLE_GPU), (
            f"request_gpus = {asked:g}: HTCondor hands out whole GPUs; write request_gpus = 1{more}, and offer a drone"
            " type that shares its GPU"
        )
    gpu_milli = int(asked) * WHOLE_GPU
    source_text = source(ad, "GpuMilli")
    if source_text in ("", "undefined"):
        return gpu_milli, ""
    share = number(ad, "GpuMilli")
    written = printable(source_text, 60) if share is None else f"{share:g}"
    if share is None or not 1 <= share <= WHOLE_GPU or share != int(share):
        return gpu_milli, (
            f"GpuMilli = {written}: the share of a GPU is a whole number of thousandths from 1 to {WHOLE_GPU}; write"
            " +GpuMilli = 200 for a fifth of one, or leave it out for a whole one"
        )
    if asked != 1:
        return gpu_milli, (
            f"GpuMilli = {written} with request_gpus = {int(asked)}: a share is of one GPU; write request_gpus = 1, or"
            " leave GpuMilli out"
        )
    return int(share), ""


def _undefined(ad: Ad, asked: Sequence[float | None]) -> str:
    """Return what is wrong with a request that evaluates to nothing: every slot refuses it."""
    for (name, submitted, instead), amount in zip(_RESOURCE_REQUESTS, asked, strict=True):
        if amount is None:
            written = printable(source(ad, name), 60)
            return f"{submitted} = {written} is not a number for this job: write {submitted} = {instead}"
    return ""


def negative_requests(classes: Iterable[list[JobGroup]]) -> Iterator[str]:
    """Yield a line for each negative request. HTCondor runs such jobs, so it is no reason to refuse them."""
    for groups in classes:
        ad = representative(groups)
        for name, submitted, _ in _RESOURCE_REQUESTS:
            if (number(ad, name) or 0) < 0:
                yield f"jobs {_ids(groups)}: {submitted} = {printable(source(ad, name), 60)} counts as 0"


def as_job(ad: Ad) -> Ad:
    return classad2.ClassAd(
        {name: ad.lookup(name) for name in ad if name.lower() not in ("jobcount", "jobids", "id")}
    )


def group_attributes(of: Affiliation, constraint: str) -> list[str]:
    """Return the attributes to group by, those of the operator's constraint as well: it is put to groups."""
    wanted = (*referred(constraint), *of.attributes, *GROUPED)
    return sorted({name.lower(): name for name in wanted}.values())


ACCOUNTING_PROJECTION = attribute_names(
    "LastHeardFrom Name IsAccountingGroup ConfigQuota SurplusPolicy WeightedResourcesUsed Priority AccountingGroup"
)
_ROOT_GROUP = "<none>"  # HTCondor's name for the root of all groups


def accounting_groups(
    ads: Iterable[Ad], classes: Iterable[JobClass], weight: str
) -> tuple[Group, ...]:
    """Return all groups but the root; empty where there are no others."""
    known = {text(ad, "Name", 80).casefold(): ad for ad in ads if _is_group(ad)}
    cpus = Counter[str]()
    milli = Counter[str]()
    used = defaultdict[str, float](float)
    for job in classes if weight == "cpus" else ():
        count = job.waiting + job.fresh + job.running + job.held
        for name in _chain(job.group.casefold()) if job.gpu_milli else ():
            cpus[name] += count * job.cpus
            milli[name] += count * job.gpu_milli
    for name, ad in known.items():
        for above in _chain(name):
            used[above] += _amount(ad, "WeightedResourcesUsed")

    def gpu_milli(name: str, amount: float) -> int:
        cpus_per_gpu = cpus[name] * WHOLE_GPU / milli[name] if cpus[name] and milli[name] else 1.0
        # rounded to a thousandth first: 8 CPUs at 8 a GPU are one GPU, whatever floating point
        # makes of it
        return int(round(amount * WHOLE_GPU / cpus_per_gpu, 3))

    return tuple(
        Group(
            name=text(ad, "Name", 80),
            quota_milli=None
            if _is_dynamic(ad, weight)
            else gpu_milli(name, _amount(ad, "ConfigQuota")),
            used_milli=gpu_milli(name, used[name]),
            surplus=_takes_surplus(ad),
            priority=_amount(ad, "Priority"),
        )
        for name, ad in sorted(known.items())
    )


def user_priorities(ads: Iterable[Ad], classes: Iterable[JobClass]) -> dict[str, float]:
    """Return the effective priorities of the users with jobs; of one in several groups, that of the largest share."""
    owners = {job.owner for job in classes}
    found = dict[str, float]()
    for ad in ads:
        # Name is <user>@<domain>, or <group>.<user>@<domain>
        name = text(ad, "Name", 160).partition("@")[0]
        priority = _amount(ad, "Priority")
        owner = name if name in owners else name.removeprefix(f"{text(ad, 'AccountingGroup', 80)}.")
        if not _is_group(ad) and owner in owners and priority:
            found[owner] = min(priority, found.get(owner, priority))
    return found


def quota_warnings(ads: Iterable[Ad], weight: str) -> list[str]:
    """Return a line for each quota that cannot mean what it says in a pool of drones."""
    return [
        f"accounting group {text(ad, 'Name', 80)}: its dynamic quota is a share of what there happens to be, and it"
        " takes no surplus: drones started for it will stay idle in part; write GROUP_QUOTA or GROUP_ACCEPT_SURPLUS for"
        " it"
        for ad in ads
        if _is_group(ad) and _is_dynamic(ad, weight) and not _takes_surplus(ad)
    ]


def _amount(ad: Ad, name: str) -> float:
    return max(0.0, number(ad, name) or 0.0)


def _is_group(ad: Ad) -> bool:
    return classads.value(ad, "IsAccountingGroup") is True and text(ad, "Name", 80) not in (
        "",
        _ROOT_GROUP,
    )


def _is_dynamic(ad: Ad, weight: str) -> bool:
    """Return True if a quota is a share of the pool, not an amount: below one, or one unless it is of GPUs."""
    written = _amount(ad, "ConfigQuota")
    return 0.0 < written < 1.0 or (written == 1.0 and weight == "cpus")


def _takes_surplus(ad: Ad) -> bool:
    return text(ad, "SurplusPolicy", 20).lower() not in ("", "no")


def _chain(name: str) -> Iterable[str]:
    while name:  # a group, and those that contain it
        yield name
        name = name.rpartition(".")[0]
