"""What the owner of the hardware wants of it and has of it: his waiting jobs as claims, his running ones as a sum."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from adapters.htcondor.site.matching import Amount, Host, Place, devices_with, refused, start_of
from adapters.htcondor.site.owner_queue import ELSEWHERE, IDLE, RUNNING, Group
from adapters.shared.htcondor.ads import Ad, source, text, whole
from adapters.shared.htcondor.expression import Expression
from adapters.shared.printing import printable
from provisioner.config.units import Size
from provisioner.model import WHOLE_GPU, OwnerDemand, OwnerLoad

_MOST_NOTICES = 10
_MOST_CLAIMS = 500
"""Shapes of waiting jobs that are told apart. More than the site's nodes can be freed for in one tick."""

SUBMITTER_PROJECTION = ("Name", "ScheddName", "IdleJobs", "LastHeardFrom", "MyAddress")

_HOST = r"^[A-Za-z0-9@._-]{1,255}$"
_SUBMITTER = r"^[A-Za-z0-9@._*?\[\]-]{1,255}$"


class JobShape(BaseModel):
    """What one job is taken to need where its queue may not be read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpus: int = Field(default=1, ge=0, le=1000, description="GPUs of one job.", examples=[1])
    cpus: int = Field(default=1, ge=1, le=100_000, description="CPU cores of one job.", examples=[4])
    memory: Size = Field(default=2048, description="Memory of one job.", examples=["16 GiB"])


class OwnerSettings(BaseModel):
    """Whose jobs come first, and where they wait."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    jobs: Expression = Field(
        default="true",
        description="A job for which this ClassAd expression is true is the owner's. Our own drones never are.",
        examples=['AcctGroup == "etp"'],
    )
    schedds: tuple[Annotated[str, Field(pattern=_HOST)], ...] = Field(
        default=(),
        description="Names of the schedds whose queues hold them, the site's own or those that flock to it; READ is"
        " needed there.",
        examples=[["submit.etp.example.org"]],
    )
    submitters: tuple[Annotated[str, Field(pattern=_SUBMITTER)], ...] = Field(
        default=(),
        description="Submitters (`*`, `?` and `[...]` as in file names) that are the owner's but whose queue may not be"
        " read: the site's collector tells how many of their jobs are idle, and `shape` is what one needs.",
        examples=[["*@etp.example.org"]],
    )
    shape: JobShape = Field(
        default_factory=JobShape,
        description="What one job of `submitters` is taken to need.",
        examples=[{"gpus": 1, "cpus": 4, "memory": "16 GiB"}],
    )

    @model_validator(mode="after")
    def _some_queue(self) -> Self:
        if not self.schedds and not self.submitters:
            raise ValueError("no queue is named: write `schedds: [name]`")
        if self.shape != JobShape() and not self.submitters:
            raise ValueError("`shape` is for the jobs of `submitters`, and none are named")
        return self


@dataclass(frozen=True, slots=True)
class Wanted:
    """Claims, and what a person should know of jobs that are none."""

    claims: tuple[OwnerDemand, ...] = ()
    notices: tuple[str, ...] = ()


def job_constraint(settings: OwnerSettings) -> str:
    """Which jobs to ask a schedd for: the owner's, waiting or running on machines, and no drone."""
    return (
        f"({settings.jobs}) && (JobStatus == {IDLE} || JobStatus == {RUNNING})"
        + "".join(f" && JobUniverse =!= {universe}" for universe in ELSEWHERE)
        + " && ProvisionerController =?= undefined && IsBackfill =!= true"
    )


# ------------------------------------------------------------------------------------------------------------ waiting


def claims(groups: Iterable[Group], hosts: Sequence[Host], left_out: int = 0) -> Wanted:
    """Waiting jobs of the owner: a claim for each group that some node could host.

    A job counts from when it is in the queue, whether or not a negotiator has seen it: it is by then that room must be
    made. ``left_out``: groups that nobody looks at.
    """
    found, never = [], []
    feasible: dict[str, tuple[str, ...] | None] = {}
    limited: dict[str, int] = {}
    for group in groups:
        if group.used_up:
            limited[group.used_up] = limited.get(group.used_up, 0) + len(group.submitted)
            continue
        if group.alike not in feasible:
            feasible[group.alike] = _could_host(group, hosts)
        if (where := feasible[group.alike]) is None:
            never.append(_hopeless(group))
        else:
            found.append(_claim(group, where))
    notices = _bounded(never)
    notices += tuple(
        f"owner: no room is made for {count} waiting jobs: the negotiator refuses them for the concurrency limit {name}"
        for name, count in sorted(limited.items())[:_MOST_NOTICES]
    )
    if (more := len(found[_MOST_CLAIMS:]) + left_out) > 0:
        notices += (f"owner: {more} further shapes of waiting jobs are not looked at",)
    return Wanted(tuple(found[:_MOST_CLAIMS]), notices)


def _claim(group: Group, nodes: tuple[str, ...]) -> OwnerDemand:
    return OwnerDemand(
        count=len(group.submitted),
        gpu_milli=group.size.gpus * WHOLE_GPU,
        cpus=group.size.cpus,
        memory_mib=group.size.memory_mib,
        since=group.submitted[0],
        disk_mib=group.size.disk_mib,
        nodes=nodes,
        who=group.who,
    )


def _could_host(group: Group, hosts: Sequence[Host]) -> tuple[str, ...] | None:
    """Nodes that could host one such job if they were empty; none named if it is all of them; None if none could."""
    names = tuple(host.name for host in hosts if any(_hosts(place, group) for place in host.places))
    if hosts and not names:
        return None
    return () if len(names) == len(hosts) else names


def _hosts(place: Place, group: Group) -> bool:
    """Whether a place, empty, could host the job. What cannot be judged from here does not speak against it: a claim
    too many costs a drone, a claim too few lets the owner wait. (A job that is too greedy for START on the empty node
    may yet run beside others, where fewer GPUs are free to keep something for: drones that leave do not help it.)"""
    size, job = group.size, group.sample
    if not place.all.holds(size):
        return False
    if size.gpus and source(job, "RequireGPUs"):
        fitting = devices_with("MY.RequireGPUs", job, place)
        if fitting is not None and fitting < size.gpus and place.gpus:
            return False
    return not refused(source(job, "Requirements"), job, place.ad) and not refused(start_of(place), place.ad, job)


def _hopeless(group: Group) -> str:
    size, count = group.size, len(group.submitted)
    more = ", ..." if count > len(group.ids) else ""
    return printable(
        f"owner: {count} jobs of {group.who or 'nobody'} ({', '.join(group.ids)}{more}) fit no node even if it"
        f" were empty ({size.gpus} GPUs, {size.cpus} CPUs, {size.memory_mib} MiB each): no room is made for them",
        400,
    )


def _bounded(lines: Sequence[str]) -> tuple[str, ...]:
    if len(lines) <= _MOST_NOTICES:
        return tuple(lines)
    return (*lines[: _MOST_NOTICES - 1], f"owner: {len(lines) - _MOST_NOTICES + 1} further shapes fit no node")


def submitter_claims(submitter_ads: Iterable[Ad], settings: OwnerSettings, now: float) -> tuple[OwnerDemand, ...]:
    """Claims by the collector's totals alone, for queues that may not be read: one per submitter. They say neither
    shape nor age: ``settings.shape`` and ``now`` stand for them."""
    idle: dict[str, dict[str, int]] = {}
    for ad in submitter_ads:
        name = text(ad, "Name")
        if any(fnmatchcase(name, pattern) for pattern in settings.submitters):
            idle.setdefault(name, {})[text(ad, "ScheddName")] = whole(ad, "IdleJobs")
    return tuple(
        OwnerDemand(
            count=count,
            gpu_milli=settings.shape.gpus * WHOLE_GPU,
            cpus=settings.shape.cpus,
            memory_mib=settings.shape.memory,
            since=now,
            who=name,
        )
        for name, by_schedd in sorted(idle.items())
        if (count := sum(by_schedd.values()))
    )


# ------------------------------------------------------------------------------------------------------------ running


def running(held: Iterable[tuple[str, Amount]], hosts: Sequence[Host]) -> OwnerLoad:
    """What the owner's jobs hold that run on these machines, of all that run: slot and amount of each."""
    names = {host.name.lower() for host in hosts}
    here = [amount for slot, amount in held if slot.rpartition("@")[2].lower() in names]
    total = sum(here, Amount())
    return OwnerLoad(len(here), total.gpus * WHOLE_GPU, total.cpus, total.memory_mib)
