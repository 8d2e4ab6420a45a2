"""The owner's demand and load: their waiting jobs as demands, the sum of their running jobs."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from adapters.shared.printing import printable
from adapters.slurm.capacity import is_usable
from adapters.slurm.drones import is_drone
from adapters.slurm.records import SlurmJob, SlurmNode
from adapters.slurm.settings import SlurmOwnerConfig, SlurmSiteConfig
from provisioner.model import WHOLE_GPU, Node, OwnerDemand, OwnerLoad

_MAX_OVERSIZED_NOTICES = 10
_MAX_DEMANDS = 500
"""Most shapes of waiting jobs that are distinguished, the oldest: more than a site's nodes can be freed for in one
tick."""
_RESOURCE_REASONS = frozenset(
    {
        *("", "Resources", "Priority"),
        # on nodes that are planned for another: it waits for resources as well
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
    }
)
"""Reasons of jobs that wait for their turn or for resources. Drones that leave do not help with the others (limits,
holds, dependencies, begin times, licences, nodes that are down)."""

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


def are_jobs_hidden(jobs: Iterable[SlurmJob], configuration: Mapping[str, str], user: str) -> bool:
    """Return whether the owner's jobs are hidden from us.

    They are if PrivateData of slurm.conf says so and no job in ``jobs`` is of another user than ``user`` ("" if
    unknown): operators see all jobs.
    """
    if "jobs" not in configuration.get("PrivateData", "").lower().split(","):
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
    by_shape: dict[Hashable, list[SlurmJob]] = {}
    for job in jobs:
        waits = job.state == "PENDING" and job.reason.replace("_", " ").strip("() ") in _RESOURCE_REASONS
        if waits and _is_owners(job, config.owner):
            by_shape.setdefault(_shape(job), []).append(job)
    found, oversized = [], []
    for waiting in by_shape.values():
        job = waiting[0]
        hosts = [node.name for node in usable if _fits(job, node)]
        if len(hosts) >= job.node_count:
            found.append(_demand(waiting, () if len(hosts) == len(nodes) else tuple(hosts)))
        elif usable and sum(_fits(job, node) for node in slurm_nodes) < job.node_count:
            oversized.append(_oversized(waiting))
    found.sort(key=lambda demand: demand.since)
    if more := oversized[_MAX_OVERSIZED_NOTICES:]:
        oversized[_MAX_OVERSIZED_NOTICES:] = [f"owner: {len(more)} further shapes fit no node"]
    return SlurmOwnerDemands(tuple(found[:_MAX_DEMANDS]), tuple(oversized))


def _shape(job: SlurmJob) -> Hashable:
    """Return what equal jobs have in common: their request per node, their partitions and their user."""
    request = job.cpus, job.memory_mib, frozenset(job.gpus.items()), job.node_count
    return (*request, frozenset(job.partition.split(",")), frozenset(job.required_nodes), job.user)


def _fits(job: SlurmJob, node: SlurmNode) -> bool:
    """Return whether the node, empty, satisfies the request of a job."""
    return (
        not set(job.partition.split(",")).isdisjoint(node.partitions)
        and (not job.required_nodes or node.name in job.required_nodes)
        and job.cpus <= node.cpus
        and job.memory_mib <= node.memory_mib
        and sum(job.gpus.values()) <= sum(node.gpus.values())
        and all(count <= node.gpus.get(kind, 0) for kind, count in job.gpus.items() if kind)
    )


def _is_owners(job: SlurmJob, owner: SlurmOwnerConfig) -> bool:
    return (
        not is_drone(job)
        and any(name in owner.partitions for name in job.partition.split(","))
        and (not owner.accounts or job.account in owner.accounts)
        and (not owner.qos or job.qos in owner.qos)
        and (not owner.users or job.user in owner.users)
    )


def _demand(waiting: Sequence[SlurmJob], nodes: tuple[str, ...]) -> OwnerDemand:
    job = waiting[0]
    return OwnerDemand(
        count=len(waiting) * job.node_count,
        gpu_milli=sum(job.gpus.values()) * WHOLE_GPU,
        cpus=job.cpus,
        memory_mib=job.memory_mib,
        since=min(job.submitted_at for job in waiting),
        nodes=nodes,
        who=printable(job.user),
    )


def _oversized(waiting: Sequence[SlurmJob]) -> str:
    job = waiting[0]
    ids = ", ".join(job.remote_id for job in waiting[:3]) + (", ..." if len(waiting) > 3 else "")
    hosts = f"no {job.node_count} nodes" if job.node_count > 1 else "no node"
    request = f"{sum(job.gpus.values())} GPUs, {job.cpus} CPUs and {job.memory_mib} MiB"
    return printable(
        f"owner: {len(waiting)} jobs of {job.user or 'an unknown user'} ({ids}) need {request}, and {hosts} here could"
        " host them even if all were empty: no room is made for them",
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
        if here and job.state != "PENDING" and _is_owners(job, config.owner):
            total = OwnerLoad(
                total.jobs + 1,
                total.gpu_milli + here * sum(job.gpus.values()) * WHOLE_GPU,
                total.cpus + here * job.cpus,
                total.memory_mib + here * job.memory_mib,
            )
    return total
