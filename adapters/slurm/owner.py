"""The owner's demand and load: their waiting jobs as demands, the sum of their running jobs."""

from __future__ import annotations

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
"""Most shapes of waiting jobs that are distinguished: more than a site's nodes can be freed for in one tick."""

_RESOURCE_REASONS = frozenset({"", "Resources", "Priority"})
"""Reasons of jobs that wait for their turn or for resources. Drones that leave do not help with the others (limits,
holds, dependencies, begin times, licences, nodes that are down)."""
_RESERVED_ABOVE = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
"""Reason of a job that cannot start on nodes which are planned for another: it waits for resources as well."""

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
    gpus: frozenset[tuple[str, int]]
    node_count: int
    partitions: frozenset[str]
    required_nodes: frozenset[str]
    user: str

    @classmethod
    def of(cls, job: SlurmJob) -> _JobShape:
        gpus = frozenset((kind, count) for kind, count in job.gpus.items() if count > 0)
        partitions, nodes = frozenset(job.partition.split(",")), frozenset(job.required_nodes)
        return cls(job.cpus, job.memory_mib, gpus, max(1, job.node_count), partitions, nodes, job.user)

    @property
    def gpu_count(self) -> int:
        return sum(count for _, count in self.gpus)

    def fits(self, node: SlurmNode) -> bool:
        """Return whether the node, empty, satisfies the request."""
        return (
            not self.partitions.isdisjoint(node.partitions)
            and (not self.required_nodes or node.name in self.required_nodes)
            and self.cpus <= node.cpus
            and self.memory_mib <= node.memory_mib
            and self.gpu_count <= sum(node.gpus.values())
            and all(count <= node.gpus.get(kind, 0) for kind, count in self.gpus if kind)
        )


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
    groups: dict[_JobShape, list[SlurmJob]] = {}
    for job in jobs:
        if job.state == "PENDING" and _waits_for_resources(job) and _is_owners(job, config.owner):
            groups.setdefault(_JobShape.of(job), []).append(job)
    found, oversized = [], []
    for shape, waiting in groups.items():
        hosts = [node.name for node in usable if shape.fits(node)]
        if len(hosts) >= shape.node_count:
            found.append(_demand(shape, waiting, () if len(hosts) == len(nodes) else tuple(hosts)))
        elif usable and sum(map(shape.fits, slurm_nodes)) < shape.node_count:
            oversized.append(_oversized(shape, waiting))
    found.sort(key=lambda demand: demand.since)
    notices = oversized
    if len(oversized) > _MAX_OVERSIZED_NOTICES:
        rest = len(oversized) - _MAX_OVERSIZED_NOTICES + 1
        notices = [*oversized[: _MAX_OVERSIZED_NOTICES - 1], f"owner: {rest} further shapes fit no node"]
    if more := found[_MAX_DEMANDS:]:
        notices = [*notices, f"owner: {len(more)} further shapes of waiting jobs are ignored"]
    return SlurmOwnerDemands(tuple(found[:_MAX_DEMANDS]), tuple(notices))


def _waits_for_resources(job: SlurmJob) -> bool:
    reason = job.reason.replace("_", " ").strip("() ")
    return reason in _RESOURCE_REASONS or reason == _RESERVED_ABOVE


def _is_owners(job: SlurmJob, owner: SlurmOwnerConfig) -> bool:
    return (
        not is_drone(job)
        and any(name in owner.partitions for name in job.partition.split(","))
        and (not owner.accounts or job.account in owner.accounts)
        and (not owner.qos or job.qos in owner.qos)
        and (not owner.users or job.user in owner.users)
    )


def _demand(shape: _JobShape, waiting: Sequence[SlurmJob], nodes: tuple[str, ...]) -> OwnerDemand:
    return OwnerDemand(
        count=len(waiting) * shape.node_count,
        gpu_milli=shape.gpu_count * WHOLE_GPU,
        cpus=shape.cpus,
        memory_mib=shape.memory_mib,
        since=min(job.submitted_at for job in waiting),
        nodes=nodes,
        who=printable(shape.user),
    )


def _oversized(shape: _JobShape, waiting: Sequence[SlurmJob]) -> str:
    ids = ", ".join(job.remote_id for job in waiting[:3]) + (", ..." if len(waiting) > 3 else "")
    hosts = f"no {shape.node_count} nodes" if shape.node_count > 1 else "no node"
    return printable(
        f"owner: {len(waiting)} jobs of {shape.user or 'an unknown user'} ({ids}) need {shape.gpu_count} GPUs,"
        f" {shape.cpus} CPUs and {shape.memory_mib} MiB, and {hosts} here could host them even if all were empty: no"
        " room is made for them",
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
