"""Job classes out of the groups that a schedd makes: one ad per set of identical requirements, never one per job."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import classad2

from adapters.htcondor_overlay.matching import bound
from adapters.shared.htcondor.ads import LARGEST, Ad, clauses, moment, number, source, text, whole
from adapters.shared.printing import printable
from provisioner.model import WHOLE_GPU, JobClass

GROUPED = (
    "JobStatus",
    "RequestGPUs",
    "RequestCpus",
    "RequestMemory",
    "RequestDisk",
    "RequireGPUs",
    "Requirements",
    "GPUsMinMemory",
    "GPUsMinCapability",
    "GPUsMaxCapability",
    "GPUsMinRuntime",
    "Owner",
    "JobPrio",
    "JobUniverse",
    "AllowedJobDuration",
    "AllowedExecuteDuration",
    "MaxWallTimeMins",
)
"""Attributes that the schedd groups by; it adds by itself those that their expressions refer to."""

IDLE, HELD = 1, 5
RUNNING = (2, 6, 7)
"""Running, transferring output, suspended."""

JOBS = "member(JobStatus, {1,2,5,6,7}) && member(JobUniverse, {7,9,12}) isnt true"
"""Put to the ads of the groups, not of the jobs. Universes 7, 9, 12 (scheduler, grid, local) never run in a slot."""

GPU_JOBS = f'{JOBS} && !member(unparse(RequestGPUs), {{"", "undefined"}}) && (RequestGPUs != 0) isnt false'
"""Without those that want no GPU: RequestGPUs is 0, or missing. One that evaluates to nothing is kept: it gets a
reason."""

_NOT_REQUIREMENTS = frozenset({"jobstatus", "jobcount", "jobids", "id", "jobprio", "qdate", "mytype", "targettype"})
_USAGE = frozenset(
    {"diskusage", "memoryusage", "imagesize", "residentsetsize", "transferinputsizemb", "executablesize"}
)
"""Measured while a job runs: a running job may differ here from its waiting brothers and is still of their class."""

_OWNERS = frozenset({"owner", "acctgroup", "accountinggroup"})


@dataclass(frozen=True, slots=True)
class Group:
    """One group as one schedd made it."""

    schedd: str
    key: str
    """Digest of all requirements."""
    brothers: str
    """The same without measured usage."""
    shape: str
    """The same without the owner, unless an expression looks at that: what verdicts depend on."""
    status: int
    count: int
    first: str
    """Id of its first job, ``204.0``."""
    job_ids: str
    owner: str
    priority: int
    ad: Ad = field(repr=False, compare=False)


def group(ad: Ad, schedd: str, owner_attribute: str) -> Group | None:
    """A group ad as a value; None if it is none that counts."""
    status, count = whole(ad, "JobStatus"), whole(ad, "JobCount")
    if count == 0:
        return None
    attributes = {name.lower(): source(ad, name) for name in ad}
    kept = {name: text for name, text in attributes.items() if name not in _NOT_REQUIREMENTS}
    ids = text(ad, "JobIds")
    owners = _OWNERS | {owner_attribute.lower()}
    about_owner = any(name in text.lower() for text in kept.values() for name in owners)
    return Group(
        schedd=schedd,
        key=_digest(kept),
        brothers=_digest({name: text for name, text in kept.items() if name not in _USAGE}),
        shape=_digest({name: text for name, text in kept.items() if about_owner or name not in owners}, 16),
        status=status,
        count=count,
        first=ids.split(" ", 1)[0],
        job_ids=ids.replace(" ... ", "-").replace(" ", ", "),
        owner=text(ad, owner_attribute, 80) or text(ad, "Owner", 80),
        priority=int(max(-(2**31), min(2**31, number(ad, "JobPrio") or 0))),
        ad=ad,
    )


def _digest(attributes: dict[str, str], size: int = 4) -> str:
    words = "\0".join(f"{name}={attributes[name]}" for name in sorted(attributes))
    return hashlib.blake2s(words.encode(errors="replace"), digest_size=size).hexdigest()


def merged(groups: Iterable[Group]) -> dict[str, list[Group]]:
    """Groups by class id. Running and held ones join the waiting ones of the same kind, if there are any."""
    everything = list(groups)
    waiting = {g.brothers: g.key for g in everything if g.status == IDLE}
    classes: dict[str, list[Group]] = {}
    for each in everything:
        known = each.key if each.status == IDLE else waiting.get(each.brothers, each.key)
        classes.setdefault(known, []).append(each)
    return classes


def representative(groups: list[Group]) -> Ad:
    """The ad that stands for a class: of a waiting group if there is one."""
    return min(groups, key=lambda g: (g.status != IDLE, g.schedd, g.first)).ad


def job_class(class_id: str, groups: list[Group], fresh: int, oldest_at: float) -> JobClass:
    """A class without the verdicts of its requirements."""
    ad = representative(groups)
    idle = [g for g in groups if g.status == IDLE]
    waiting = sum(g.count for g in idle)
    fresh = min(fresh, waiting)
    gpu_milli, invalid = gpus_asked(ad)
    least = bounds(ad)
    return JobClass(
        id=class_id,
        gpu_milli=gpu_milli,
        cpus=whole(ad, "RequestCpus") if source(ad, "RequestCpus") else 1,
        memory_mib=whole(ad, "RequestMemory"),
        disk_mib=math.ceil(whole(ad, "RequestDisk") / 1024),
        vram_mib=math.ceil(least.get("globalmemorymb", 0)),
        capability=math.ceil(round(least.get("capability", 0) * 10, 6)),
        driver=math.ceil(least.get("maxsupportedversion", 0)),
        waiting=waiting - fresh,
        fresh=fresh,
        running=sum(g.count for g in groups if g.status in RUNNING),
        held=sum(g.count for g in groups if g.status == HELD),
        oldest_at=oldest_at if idle else 0.0,
        owner=groups[0].owner,
        priority=max((g.priority for g in idle or groups), default=0),
        walltime_s=float(
            whole(ad, "AllowedJobDuration") or whole(ad, "AllowedExecuteDuration") or whole(ad, "MaxWallTimeMins") * 60
        ),
        invalid=invalid or _undefined(ad),
        job_ids=printable(", ".join(g.job_ids for g in idle)),
    )


def gpus_asked(ad: Ad) -> tuple[int, str]:
    """GPUs in thousandths, and what is wrong with the request if no slot can ever meet it."""
    if source(ad, "RequestGPUs") in ("", "undefined"):
        return 0, ""
    asked, written = number(ad, "RequestGPUs"), printable(source(ad, "RequestGPUs"), 60)
    if asked is None or asked > LARGEST:
        return 0, f"request_gpus = {written} is not a number for this job: write request_gpus = 1"
    if asked < 0:
        return 0, f"request_gpus = {written} is negative: write request_gpus = 1"
    if asked != int(asked):
        more = f" or request_gpus = {math.ceil(asked)}" if asked > 1 else ""
        return round(asked * WHOLE_GPU), (
            f"request_gpus = {asked:g}: HTCondor hands out whole GPUs; write request_gpus = 1{more}, and offer a drone"
            " type that shares its GPU"
        )
    return int(asked) * WHOLE_GPU, ""


def _undefined(ad: Ad) -> str:
    """A request that is written but evaluates to nothing is refused by every slot."""
    for name, submitted, instead in (
        ("RequestCpus", "request_cpus", "1"),
        ("RequestMemory", "request_memory", "2GB"),
        ("RequestDisk", "request_disk", "1GB"),
    ):
        if source(ad, name) and number(ad, name) is None:
            written = printable(source(ad, name), 60)
            return f"{submitted} = {written} is not a number for this job: write {submitted} = {instead}"
    return ""


def bounds(ad: Ad) -> dict[str, float]:
    """Least values that RequireGPUs and Requirements ask of a GPU, by attribute in small letters."""
    least: dict[str, float] = {}
    for name in ("RequireGPUs", "Requirements"):
        for clause in clauses(source(ad, name)):
            found = bound(clause, ad) if " >= " in clause else None
            if found and 0 <= found[1] <= LARGEST:
                attribute = found[0].lower()
                least[attribute] = max(least.get(attribute, 0), found[1])
    return least


def oldest(ad: Ad, received_at: float) -> tuple[float, float]:
    """(when a job was submitted, by this host's clock; the same by its schedd's)."""
    submitted = moment(ad, "QDate")
    there_now = moment(ad, "ServerTime") or received_at
    skew = there_now - received_at
    return submitted - (skew if abs(skew) > 2 else 0), submitted


def as_job(ad: Ad) -> Ad:
    """The group's ad as the job's, for matching."""
    job = classad2.ClassAd()
    for name in ad:
        if name.lower() not in ("jobcount", "jobids", "id"):
            job[name] = ad.lookup(name)
    return job


def group_attributes(owner_attribute: str, also: Iterable[str]) -> list[str]:
    """What a schedd is asked to group by."""
    names = {name.lower(): name for name in (*also, owner_attribute, *GROUPED)}
    return sorted(names.values())


def referenced(constraint: str) -> list[str]:
    """Job attributes that an operator's constraint looks at: it is put to the groups, so they must be grouped by."""
    tree = classad2.ExprTree(constraint)
    return [str(name).rpartition(".")[2] for name in classad2.ClassAd().externalRefs(tree)]
