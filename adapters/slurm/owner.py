"""The owner's demand and load: their waiting jobs as demands, the sum of their running jobs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from adapters.shared.printing import printable
from adapters.slurm.capacity import is_usable
from adapters.slurm.drones import is_drone
from adapters.slurm.records import SlurmJob, SlurmNode
from adapters.slurm.settings import SlurmOwnerConfig, SlurmSiteConfig
from provisioner.model import WHOLE_GPU, Node, OwnerDemand, OwnerLoad

_MAX_OVERSIZED_NOTICES = 10
_MAX_DEMANDS = 500
"""Shapes of waiting jobs that are told apart: more than a site's nodes can be freed for in one tick."""
_MAX_COUNTED_TASKS = 100_000

_RESOURCE_REASONS = frozenset({"", "None", "Resources", "Priority"})
"""Reasons of jobs that wait for their turn or for resources. Drones that leave do not help with the others (limits,
holds, dependencies, begin times, licences, nodes that are down)."""
_RESERVED_ABOVE = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
"""Reason of a job that cannot start on nodes which are planned for another: it waits for resources as well."""
_TASKS = re.compile(r"\d+_\[([\d,\-:]+)(?:,?\.\.\.)?(?:%(\d+))?\]?")

HIDDEN_OWNER_JOBS = (
    "`PrivateData=jobs` in slurm.conf hides the jobs of other users from our account, and with them the owner's: drones"
    " do not make room for waiting jobs. Ask the admins for `sacctmgr modify user NAME set adminlevel=operator`, or"
    " have Slurm itself preempt drones, and remove `options.owner`"
)


@dataclass(frozen=True, slots=True)
class SlurmOwnerDemands:
    """Demands of the owner, and notices of jobs that make none."""

    demands: tuple[OwnerDemand, ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _JobShape:
    """Equal jobs: their request per node, and their partitions."""

    cpus: int
    memory_mib: int
    gpus: tuple[tuple[str, int], ...]
    node_count: int
    partitions: tuple[str, ...]
    required_nodes: tuple[str, ...]
    user: str

    @classmethod
    def of(cls, job: SlurmJob) -> _JobShape:
        gpus = tuple(sorted((name, n) for name, n in job.gpus.items() if n > 0))
        partitions = tuple(job.partition.split(","))
        required = tuple(sorted(job.required_nodes))
        return cls(job.cpus, job.memory_mib, gpus, max(1, job.node_count), partitions, required, job.user)


def are_jobs_hidden(jobs: Iterable[SlurmJob], private: Collection[str], user: str) -> bool:
    """Return whether the owner's jobs are hidden from us.

    They are if ``private``, the words of PrivateData, say so and no job in ``jobs`` is of another user than ``user``
    ("" if unknown): operators see all jobs.
    """
    if "jobs" not in private:
        return False
    return not any(job.user != user if user else not is_drone(job) for job in jobs)


def owner_demands(
    jobs: Iterable[SlurmJob], slurm_nodes: Sequence[SlurmNode], nodes: Sequence[Node], config: SlurmSiteConfig
) -> SlurmOwnerDemands:
    """Return a demand for each shape of the owner's waiting jobs that some of our nodes could host.

    A job of several nodes counts once per node, each time with the size of one node's part. ``nodes``: those of the
    site's view.
    """
    if config.owner is None:
        return SlurmOwnerDemands()
    names = {node.name for node in nodes}
    usable = [node for node in slurm_nodes if node.name in names and is_usable(node, config)]
    groups: dict[_JobShape, list[SlurmJob]] = {}
    for job in jobs:
        if job.state == "PENDING" and waits_for_resources(job) and not is_drone(job) and _is_owners(job, config.owner):
            groups.setdefault(_JobShape.of(job), []).append(job)
    found, oversized = [], []
    for shape, waiting in groups.items():
        hosts = [node.name for node in usable if _can_host(node, shape)]
        count = sum(_task_count(job.remote_id) for job in waiting)
        if len(hosts) >= shape.node_count:
            found.append(_demand(shape, count, waiting, () if len(hosts) == len(nodes) else tuple(hosts)))
        elif usable and len([n for n in slurm_nodes if _can_host(n, shape)]) < shape.node_count:
            oversized.append(_oversized(shape, count, waiting))
    found.sort(key=lambda demand: demand.since)
    notices = oversized
    if len(oversized) > _MAX_OVERSIZED_NOTICES:
        rest = len(oversized) - _MAX_OVERSIZED_NOTICES + 1
        notices = [*oversized[: _MAX_OVERSIZED_NOTICES - 1], f"owner: {rest} further shapes fit no node"]
    if more := found[_MAX_DEMANDS:]:
        notices = [*notices, f"owner: {len(more)} further shapes of waiting jobs are ignored"]
    return SlurmOwnerDemands(tuple(found[:_MAX_DEMANDS]), tuple(notices))


def waits_for_resources(job: SlurmJob) -> bool:
    """Return whether a waiting job waits for its turn or for resources, and for nothing else."""
    reason = job.reason.replace("_", " ").strip("() ")
    return reason in _RESOURCE_REASONS or reason == _RESERVED_ABOVE


def _is_owners(job: SlurmJob, owner: SlurmOwnerConfig) -> bool:
    return (
        any(name in owner.partitions for name in job.partition.split(","))
        and (not owner.accounts or job.account in owner.accounts)
        and (not owner.qos or job.qos in owner.qos)
        and (not owner.users or job.user in owner.users)
    )


def _task_count(remote_id: str) -> int:
    """Return how many jobs a record stands for: ``7_[0-9,12%4]`` is an array of which at most four run at a time.

    Tasks that ``squeue`` leaves out of a long list (``...``) are not counted.
    """
    found = _TASKS.match(remote_id)
    if found is None:
        return 1
    count = sum(map(_range_length, filter(None, found[1].split(","))))
    most = int(found[2]) if found[2] else _MAX_COUNTED_TASKS
    return max(1, min(count, most, _MAX_COUNTED_TASKS))


def _range_length(text: str) -> int:
    """Return the length of ``5``, ``1-9`` or ``1-9:2``; a range that was cut off counts as one."""
    span, _, step = text.partition(":")
    first, _, last = span.partition("-")
    if not first.isdigit() or not last.isdigit():
        return 1
    return max(0, int(last) - int(first)) // max(1, int(step) if step.isdigit() else 1) + 1


def _can_host(node: SlurmNode, shape: _JobShape) -> bool:
    """Return whether the node, empty, satisfies the job's request."""
    return (
        any(name in shape.partitions for name in node.partitions)
        and (not shape.required_nodes or node.name in shape.required_nodes)
        and shape.cpus <= node.cpus
        and shape.memory_mib <= node.memory_mib
        and _has_gpus(node.gpus, shape.gpus)
    )


def _has_gpus(available: Mapping[str, int], requested: Iterable[tuple[str, int]]) -> bool:
    return sum(n for _, n in requested) <= sum(available.values()) and all(
        n <= available.get(name, 0) for name, n in requested if name
    )


def _demand(shape: _JobShape, count: int, waiting: Sequence[SlurmJob], nodes: tuple[str, ...]) -> OwnerDemand:
    return OwnerDemand(
        count=count * shape.node_count,
        gpu_milli=sum(n for _, n in shape.gpus) * WHOLE_GPU,
        cpus=shape.cpus,
        memory_mib=shape.memory_mib,
        since=min(job.submitted_at for job in waiting),
        nodes=nodes,
        who=printable(shape.user),
    )


def _oversized(shape: _JobShape, count: int, waiting: Sequence[SlurmJob]) -> str:
    ids = ", ".join(job.remote_id for job in waiting[:3]) + (", ..." if len(waiting) > 3 else "")
    gpus = sum(n for _, n in shape.gpus)
    hosts = f"no {shape.node_count} nodes" if shape.node_count > 1 else "no node"
    return printable(
        f"owner: {count} jobs of {shape.user or 'an unknown user'} ({ids}) need {gpus} GPUs, {shape.cpus} CPUs and"
        f" {shape.memory_mib} MiB, and {hosts} here could host them even if all were empty: no room is made for them",
        400,
    )


def owner_load(jobs: Iterable[SlurmJob], nodes: Collection[Node], config: SlurmSiteConfig) -> OwnerLoad | None:
    """Return what the owner's running jobs use of these nodes; None without an owner.

    A job of several nodes uses the same of each.
    """
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
