"""What the owner of the hardware wants of it and has of it: his waiting jobs as claims, his running ones as a sum."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from adapters.shared.printing import printable
from adapters.slurm.capacity import is_usable
from adapters.slurm.records import SlurmJob, SlurmNode
from adapters.slurm.settings import OwnerSettings, SlurmSiteConfig
from provisioner.model import WHOLE_GPU, Node, OwnerDemand, OwnerLoad

_MOST_NOTICES = 10
_MOST_CLAIMS = 500
"""Shapes of waiting jobs that are told apart. More than the site's nodes can be freed for in one tick."""
_MOST_TASKS = 100_000

_PLAIN = frozenset({"", "None", "Resources", "Priority"})
"""Reasons of jobs that wait for their turn or for room. All others (limits, holds, dependencies, times, licences, nodes
that are down) are not mended by drones that leave."""
_RESERVED_ABOVE = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
"""Said of a job that cannot start on nodes which another is to have: it waits for room as well."""
_TASKS = re.compile(r"\d+_\[([\d,\-:]+)(?:,?\.\.\.)?(?:%(\d+))?\]?")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Claims, and what a person should know of jobs that are none."""

    claims: tuple[OwnerDemand, ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Shape:
    """Jobs that are the same to us: what each asks of one of its nodes, and where."""

    cpus: int
    memory_mib: int
    gpus: tuple[tuple[str, int], ...]
    node_count: int
    partitions: tuple[str, ...]
    required_nodes: tuple[str, ...]
    who: str

    @classmethod
    def of(cls, job: SlurmJob) -> _Shape:
        gpus = tuple(sorted((name, n) for name, n in job.gpus.items() if n > 0))
        partitions = tuple(job.partition.split(","))
        wanted = tuple(sorted(job.required_nodes))
        return cls(job.cpus, job.memory_mib, gpus, max(1, job.node_count), partitions, wanted, job.user)


HIDDEN = (
    "`PrivateData=jobs` in slurm.conf hides the jobs of other users from our account, and with them the owner's: drones"
    " do not make room for what waits. Ask the admins for `sacctmgr modify user NAME set adminlevel=operator`, or have"
    " Slurm itself preempt drones, and remove `options.owner`"
)


def hidden(jobs: Iterable[SlurmJob], private: Collection[str], user: str, is_drone: Callable[[SlurmJob], bool]) -> bool:
    """Return whether the owner's jobs cannot be seen: by ``private``, the words of PrivateData, and as no job in
    ``jobs`` is of another user than ``user`` (operators see all jobs; "" is not known)."""
    if "jobs" not in private:
        return False
    return not any(job.user != user if user else not is_drone(job) for job in jobs)


def claims(
    jobs: Iterable[SlurmJob],
    slurm_nodes: Sequence[SlurmNode],
    nodes: Sequence[Node],
    config: SlurmSiteConfig,
    is_drone: Callable[[SlurmJob], bool],
) -> Wanted:
    """Waiting jobs of the owner: a claim for each shape that some of our nodes could host; none without an owner.

    A job of several nodes counts as so many, each of the size of one node's part. ``nodes``: as the site's view tells
    them. ``is_drone``: whether a job is a drone, ours or another controller's.
    """
    if config.owner is None:
        return Wanted()
    ours = {node.name for node in nodes}
    usable = [node for node in slurm_nodes if node.name in ours and is_usable(node, config)]
    groups: dict[_Shape, list[tuple[float, int, str]]] = {}
    for job in jobs:
        if job.state == "PENDING" and waits_plainly(job) and not is_drone(job) and _is_owners(job, config.owner):
            groups.setdefault(_Shape.of(job), []).append((job.submitted_at, _tasks(job.remote_id), job.remote_id))
    found, never = [], []
    for shape, waiting in groups.items():
        could = [node.name for node in usable if _hosts(node, shape)]
        count = sum(tasks for _, tasks, _ in waiting)
        if len(could) >= shape.node_count:
            found.append(_claim(shape, count, waiting, () if len(could) == len(nodes) else tuple(could)))
        elif usable and len([n for n in slurm_nodes if _hosts(n, shape)]) < shape.node_count:
            never.append(_hopeless(shape, count, [remote_id for _, _, remote_id in waiting]))
    found.sort(key=lambda claim: claim.since)
    notices = tuple(_bounded(never))
    if more := found[_MOST_CLAIMS:]:
        notices += (f"owner: {len(more)} further shapes of waiting jobs are not looked at",)
    return Wanted(tuple(found[:_MOST_CLAIMS]), notices)


def waits_plainly(job: SlurmJob) -> bool:
    """Whether a waiting job waits for its turn or for room, and for nothing else."""
    reason = job.reason.replace("_", " ").strip("() ")
    return reason in _PLAIN or reason == _RESERVED_ABOVE


def _is_owners(job: SlurmJob, owner: OwnerSettings) -> bool:
    return (
        any(name in owner.partitions for name in job.partition.split(","))
        and (not owner.accounts or job.account in owner.accounts)
        and (not owner.qos or job.qos in owner.qos)
        and (not owner.users or job.user in owner.users)
    )


def _tasks(remote_id: str) -> int:
    """How many jobs a record stands for: ``7_[0-9,12%4]`` is an array of which at most four run at a time. What
    ``squeue`` leaves out of a long list (``...``) is not counted."""
    found = _TASKS.match(remote_id)
    if found is None:
        return 1
    count = sum(map(_in_range, filter(None, found[1].split(","))))
    most = int(found[2]) if found[2] else _MOST_TASKS
    return max(1, min(count, most, _MOST_TASKS))


def _in_range(text: str) -> int:
    """``5``, ``1-9`` or ``1-9:2``; a range that was cut off counts as its first."""
    span, _, step = text.partition(":")
    first, _, last = span.partition("-")
    if not first.isdigit() or not last.isdigit():
        return 1
    return max(0, int(last) - int(first)) // max(1, int(step) if step.isdigit() else 1) + 1


def _hosts(node: SlurmNode, shape: _Shape) -> bool:
    """Whether the node, empty, has what the job asks of it."""
    return (
        any(name in shape.partitions for name in node.partitions)
        and (not shape.required_nodes or node.name in shape.required_nodes)
        and shape.cpus <= node.cpus
        and shape.memory_mib <= node.memory_mib
        and _has(node.gpus, shape.gpus)
    )


def _has(there: Mapping[str, int], wanted: Iterable[tuple[str, int]]) -> bool:
    return sum(n for _, n in wanted) <= sum(there.values()) and all(
        n <= there.get(name, 0) for name, n in wanted if name
    )


def _claim(shape: _Shape, count: int, waiting: Sequence[tuple[float, int, str]], nodes: tuple[str, ...]) -> OwnerDemand:
    return OwnerDemand(
        count=count * shape.node_count,
        gpu_milli=sum(n for _, n in shape.gpus) * WHOLE_GPU,
        cpus=shape.cpus,
        memory_mib=shape.memory_mib,
        since=min(at for at, _, _ in waiting),
        nodes=nodes,
        who=printable(shape.who),
    )


def _hopeless(shape: _Shape, count: int, ids: Sequence[str]) -> str:
    more = ", ..." if len(ids) > 3 else ""
    gpus = sum(n for _, n in shape.gpus)
    on = f"{shape.node_count} nodes" if shape.node_count > 1 else "a node"
    return printable(
        f"owner: {count} jobs of {shape.who or 'nobody'} ({', '.join(ids[:3])}{more}) find not {on} with {gpus} GPUs,"
        f" {shape.cpus} CPUs and {shape.memory_mib} MiB here even if all were empty: no room is made for them",
        400,
    )


def _bounded(lines: Sequence[str]) -> Iterator[str]:
    if len(lines) <= _MOST_NOTICES:
        yield from lines
        return
    yield from lines[: _MOST_NOTICES - 1]
    yield f"owner: {len(lines) - _MOST_NOTICES + 1} further shapes fit no node"


def running(
    jobs: Iterable[SlurmJob], nodes: Collection[Node], config: SlurmSiteConfig, is_drone: Callable[[SlurmJob], bool]
) -> OwnerLoad | None:
    """What the owner's running jobs hold of these nodes; None without an owner. Of a job of several nodes each holds
    the same."""
    if config.owner is None:
        return None
    names = {node.name for node in nodes}
    total = OwnerLoad()
    for job in jobs:
        here = len(names.intersection(job.nodes))
        if here and job.state != "PENDING" and not is_drone(job) and _is_owners(job, config.owner):
            total = OwnerLoad(
                total.jobs + 1,
                total.gpu_milli + here * sum(job.gpus.values()) * WHOLE_GPU,
                total.cpus + here * job.cpus,
                total.memory_mib + here * job.memory_mib,
            )
    return total
