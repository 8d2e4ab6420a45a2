"""Nodes of the cluster as capacity for drones, reservations and downtimes, and the owner's jobs on these nodes.

Free is what Slurm has not allocated, on nodes where it would start a job now. Waiting drones hold
nothing yet: the planner reserves their resources itself. So list our jobs first and the nodes
after: a drone that starts in between is then counted twice, and one too few is started; the other
way round it would be one too many.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from adapters.shared.printing import printable
from adapters.slurm.drones import is_drone
from adapters.slurm.records import Partition, Reservation, SlurmJob, SlurmNode, expand_hostlist
from adapters.slurm.settings import SlurmOwnerConfig, SlurmSiteConfig, SlurmTypeOptions
from provisioner.model import WHOLE_GPU, DroneType, Node, OwnerDemand, OwnerLoad
from provisioner.values import frozen

_CLOSED_FLAGS = frozenset(
    {
        "BLOCKED",
        "DOWN",
        "DRAIN",
        "FAIL",
        "INVALID_REG",
        "MAINT",
        "MAINTENANCE",
        "NO_RESPOND",
        "NOT_RESPONDING",
    }
    | {"POWERING_DOWN", "POWER_DOWN", "POWER_DRAIN", "REBOOT_ISSUED", "REBOOT_REQUESTED"}
)
"""Flags of nodes on which nothing is started now. A powered-down node is not among them: it boots
for its job. One that is powering down starts nothing until it is down."""
_FEATURES = re.compile(r"[A-Za-z0-9_.+-]+([&,|][A-Za-z0-9_.+-]+)*")


class NodeMismatch(NamedTuple):
    """The reason why a node, even an empty one, cannot host a drone type."""

    dimension: str
    requested: str
    available: str


MISMATCH_DIMENSIONS = ("partition", "gpus", "cpus", "memory", "features", "exclude")
"""In the order in which they are checked: a later one is a nearer miss."""


@frozen
class SlurmDroneType:
    """A drone type with its place in this cluster."""

    type: DroneType
    options: SlurmTypeOptions
    partitions: tuple[Partition, ...]
    """Its partitions that exist."""

    @property
    def reservations(self) -> frozenset[str]:
        """Return the reservations that it runs in: only jobs that name one are sure to be admitted to it."""
        return frozenset(filter(None, self.options.reservation.split(",")))

    @property
    def gpus(self) -> int:
        return -(-self.type.gpu_milli // WHOLE_GPU)

    def partitions_of(self, node: SlurmNode) -> list[Partition]:
        return [each for each in self.partitions if each.name in node.partitions]

    def gpu_types(self, node: SlurmNode) -> frozenset[str]:
        return frozenset(name for name in node.gpus if self.options.gpu_type in ("", name))

    def exclusivity(self, node: SlurmNode) -> str:
        """Return "NODE" if a drone may get all of a node, "USER" if it shares the node with our jobs only, or ""."""
        words = {str(self.options.submit.get("exclusive")).upper()}
        for each in self.partitions_of(node):
            words |= {each.oversubscribe, each.exclusive, "USER" if each.exclusive_user else ""}
        if words & {"EXCLUSIVE", "NODE", "TOPO", "TRUE"}:
            return "NODE"
        return "USER" if words & {"USER", "MCS"} else ""

    def admitted_by(self, partition: Partition) -> bool:
        """Return whether a partition is up and admits jobs of one node and the type's walltime."""
        return (
            partition.up
            and partition.min_nodes < 2
            and (not partition.max_s or self.type.walltime_s <= partition.max_s)
        )

    def mismatch(self, node: SlurmNode) -> NodeMismatch | None:
        """Return the first dimension in which the node, empty, could not host a drone; None if it could.

        Plain constraints (``a&b`` or ``a|b``) are checked; others count as met.
        """
        partitions = self.partitions_of(node)
        options = self.options
        if not partitions:
            requested = options.partition or "the default partition"
            return NodeMismatch("partition", requested, ", ".join(node.partitions) or "none")
        if short := self._shortage(node, partitions):
            return short
        if not _meets_constraint(options.constraint, node.features):
            return NodeMismatch("features", options.constraint, ", ".join(node.features) or "none")
        exclude, only = (_nodes_of(options.submit.get(name)) for name in ("exclude", "nodelist"))
        if node.name in exclude or (only and node.name not in only):
            return NodeMismatch("exclude", "another node", node.name)
        return None

    def _shortage(self, node: SlurmNode, partitions: Sequence[Partition]) -> NodeMismatch | None:
        """Return the first resource of which the node, through its partitions, has too little."""
        cpus = self.type.cpus
        memory = self.type.memory_mib
        gpus = sum(node.gpus[name] for name in self.gpu_types(node))
        if self.gpus > gpus:
            of_type = f" {self.options.gpu_type}".rstrip()
            return NodeMismatch("gpus", f"{self.gpus}{of_type}", f"{gpus}{of_type}")
        most_cpus = max(min(node.cpus, each.max_cpus_per_node or node.cpus) for each in partitions)
        # Slurm adds CPUs to a job that requests more memory per CPU than is allowed.
        per_cpu = [each.max_memory_per_cpu_mib for each in partitions]
        charged = min(max(cpus, -(-memory // most) if most else 0) for most in per_cpu)
        if charged > most_cpus:
            requested = (
                f"{cpus}"
                if charged == cpus
                else f"{charged} (for its {memory} MiB, by MaxMemPerCPU)"
            )
            return NodeMismatch("cpus", requested, str(most_cpus))
        most_memory = max(
            min(node.memory_mib, each.max_memory_per_node_mib or node.memory_mib)
            for each in partitions
        )
        if memory > most_memory:
            return NodeMismatch("memory", f"{memory} MiB", f"{most_memory} MiB")
        return None

    def could_start(self, node: SlurmNode, *, beside_ours: bool) -> bool:
        """Return whether a partition admits a drone, and the jobs on the node let it in.

        ``beside_ours``: jobs of our account run there.
        """
        if not any(map(self.admitted_by, self.partitions_of(node))):
            return False
        shared_with = self.exclusivity(node)
        return not node.used_cpus or not shared_with or (beside_ours and shared_with == "USER")

    def is_kept_off(
        self, reservations: Sequence[Reservation], now: float, downtime_at: float
    ) -> bool:
        """Return whether the reservations of a node, none of which is over, keep a drone that starts now off it."""
        own = [each for each in reservations if each.name in self.reservations]
        if self.reservations and not own:
            return True  # such drones run nowhere else
        end = now + (self.type.walltime_s or math.inf)
        until = min(end, downtime_at) if downtime_at > now else end
        return any(each.starts_at < until for each in reservations if each not in own)


def _meets_constraint(constraint: str, features: Collection[str]) -> bool:
    if not _FEATURES.fullmatch(constraint):
        return True
    words = re.split("[&,|]", constraint)
    if "|" not in constraint:
        return all(each in features for each in words)
    return "&" in constraint or "," in constraint or any(each in features for each in words)


@lru_cache(maxsize=64)
def _nodes_of(text: str | bool | None) -> tuple[str, ...]:
    """Return a list of nodes; empty for the name of a file, or an invalid list: Slurm will reject that itself."""
    if not isinstance(text, str) or "/" in text:
        return ()
    try:
        return expand_hostlist(text)
    except ValueError:
        return ()


def resolve_types(
    types: Iterable[DroneType], partitions: Sequence[Partition], config: SlurmSiteConfig
) -> Sequence[SlurmDroneType]:
    """Return the drone types with their partitions: without an option the default one, or all if none is reported."""
    resolved = []
    default = [each for each in partitions if each.default] or partitions
    for each in types:
        options = config.options_for(each.name)
        named = options.partition.split(",")
        own = [each for each in partitions if each.name in named] if options.partition else default
        resolved.append(SlurmDroneType(each, options, tuple(own)))
    return resolved


# ---------------------------------------------------------------------------------------------------------------
# nodes


def list_nodes(
    slurm_nodes: Iterable[SlurmNode],
    partitions: Sequence[Partition],
    types: Sequence[SlurmDroneType],
    config: SlurmSiteConfig,
    reservations: Sequence[Reservation] = (),
    *,
    now: float,
    downtime_at: float = 0.0,
    ours: Collection[str] = (),
) -> tuple[Node, ...]:
    """Return the nodes that could host a drone of some type. ``ours``: nodes with jobs of our account.

    ``downtime_at``: when the whole site goes down; drones end before it, so its reservations block
    none until then.
    """
    active = [(each, frozenset(each.nodes)) for each in reservations if each.ends_at > now]
    owners = config.owner.partitions if config.owner else []
    found = []
    for node in slurm_nodes:
        possible = [
            each for each in types if node.state != "FUTURE" and each.mismatch(node) is None
        ]
        if not possible:
            continue
        reserved = [each for each, names in active if node.name in names]
        startable = [
            each
            for each in possible
            if _has_place(node, owners, reserved)
            and not each.is_kept_off(reserved, now, downtime_at)
            and each.could_start(node, beside_ours=node.name in ours)
        ]
        owned = [
            each for each in partitions if each.name in owners and each.name in node.partitions
        ]
        found.append(_node(node, startable or possible, owned, is_open=bool(startable)))
    return tuple(found)


def _has_place(node: SlurmNode, owners: Collection[str], reserved: Sequence[Reservation]) -> bool:
    """Return whether a node takes jobs, and each reservation of it is known. ``reserved``: those that are."""
    return is_usable(node, owners) and ("RESERVED" not in node.flags or bool(reserved))


def is_usable(node: SlurmNode, owners: Collection[str]) -> bool:
    """Return whether Slurm would start a job there now. ``owners``: the owner's partitions.

    A planned node is reserved for a waiting job: its free resources are not for drones. Where that
    job is the owner's, the planner reserves for it itself, and has to see them.
    """
    if node.state not in ("IDLE", "MIXED", "ALLOCATED"):
        return False
    closed = node.flags & _CLOSED_FLAGS
    if "POWERING_UP" in node.flags:
        closed -= {"NOT_RESPONDING", "NO_RESPOND"}
    return not closed and (
        "PLANNED" not in node.flags or any(name in node.partitions for name in owners)
    )


def _node(
    node: SlurmNode, types: Sequence[SlurmDroneType], owned: Sequence[Partition], *, is_open: bool
) -> Node:
    """Return a node with one type of GPU. ``owned``: the owner's partitions that it is in."""
    shown = _shown_gpus(node, types)
    hosted = [each for each in types if not each.gpus or each.gpu_types(node) >= shown]
    through = [partition for each in hosted for partition in each.partitions_of(node)]
    # The node does not report how much of MaxCPUsPerNode the partition's jobs hold already.
    max_cpus = max(
        (min(node.cpus, each.max_cpus_per_node or node.cpus) for each in through), default=0
    )
    free_cpus = min(max(0, node.cpus - node.used_cpus), max_cpus)
    # The largest MaxMemPerCPU of the partitions of drones and of the owner's jobs; 0 if one has
    # none. Memory beyond that would cost CPUs that are not there.
    limits = [each.max_memory_per_cpu_mib for each in (*through, *owned)]
    per_cpu = max(limits, default=0) if all(limits) else 0
    free_memory = max(0, node.memory_mib - node.used_memory_mib)
    whole = [each.type.name for each in hosted if each.exclusivity(node) == "NODE"]
    gpus = sum(node.gpus[name] for name in shown)
    # Of a whole node, a drone uses no more GPUs than it requests.
    most_gpus = max(each.gpus if each.gpus and each.type.name in whole else gpus for each in hosted)
    listed = Node(
        name=node.name,
        types=tuple(each.type.name for each in hosted),
        gpu_milli=gpus * WHOLE_GPU,
        cpus=max_cpus,
        memory_mib=_payable_memory(node.memory_mib, max_cpus, per_cpu),
        disk_mib=0,
        free_gpu_milli=min(_free_gpus(node, shown), most_gpus) * WHOLE_GPU,
        free_cpus=free_cpus,
        free_memory_mib=_payable_memory(free_memory, free_cpus, per_cpu),
        free_disk_mib=0,
        exclusive=tuple(whole),
    )
    return listed if is_open else replace(listed, free_gpu_milli=0, free_cpus=0, free_memory_mib=0)


def _payable_memory(memory_mib: int, cpus: int, per_cpu_mib: int) -> int:
    """Return the memory that jobs on these CPUs can have. ``per_cpu_mib``: 0 if there is no limit."""
    return min(memory_mib, cpus * per_cpu_mib) if per_cpu_mib else memory_mib


def _shown_gpus(node: SlurmNode, types: Sequence[SlurmDroneType]) -> frozenset[str]:
    """Return the types of GPU that a node is listed with.

    Where drone types need different GPUs of a node, that is the type of GPU with most free now:
    with one number of free GPUs for all, drones would be started that get none.
    """
    pools = list(dict.fromkeys(each.gpu_types(node) for each in types if each.gpus))
    pools = pools or [frozenset(node.gpus)]
    narrow = [each for each in pools if not any(other < each for other in pools)]
    return max(narrow, key=lambda each: _free_gpus(node, each))


def _free_gpus(node: SlurmNode, shown: frozenset[str]) -> int:
    """Return the free GPUs of these types, without GPUs in use of an unknown type, which may be among them."""
    used = sum(n for name, n in node.used_gpus.items() if name in shown or name not in node.gpus)
    return max(0, sum(node.gpus[name] for name in shown) - used)


def next_downtime(
    reservations: Iterable[Reservation],
    nodes: Iterable[SlurmNode],
    types: Sequence[SlurmDroneType],
    now: float,
) -> float:
    """Return when the next downtime of the site begins; 0 if none is planned.

    From then on every node on which drones could run is reserved for others, by one reservation or
    several together. One that has begun does not count: its nodes are not free.
    """
    usable = [node for node in nodes if node.state not in ("DOWN", "FUTURE", "ERROR", "UNKNOWN")]
    possible = {node.name for node in usable if any(each.partitions_of(node) for each in types)}
    planned = [
        each
        for each in reservations
        if each.ends_at > now
        and not all(each.name in drone_type.reservations for drone_type in types)
        and possible & set(each.nodes)
    ]
    for start in sorted({each.starts_at for each in planned if each.starts_at > now}):
        reserved = {
            name
            for each in planned
            if each.starts_at <= start < each.ends_at
            for name in each.nodes
        }
        if possible <= reserved:
            return start
    return 0.0


# ---------------------------------------------------------------------------------------------------------
# owner's jobs

_MAX_DEMANDS = 500
"""The oldest shapes of waiting jobs: more than a site's nodes can be freed for in one tick."""
_RESOURCE_REASONS = (
    *("", "Resources", "Priority"),
    # on nodes that are planned for another: it waits for resources as well
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
)
"""Reasons of jobs that wait for their turn or for resources. Drones that leave do not help with the
others (limits, holds, dependencies, begin times, licences, nodes that are down)."""

HIDDEN_OWNER_JOBS = (
    "`PrivateData=jobs` in slurm.conf hides the jobs of other users from the account, and with them the owner's: drones"
    " do not make room for waiting jobs. Ask the admins for `sacctmgr modify user NAME set adminlevel=operator`, or"
    " have Slurm itself preempt drones, and remove `options.owner`"
)


def are_jobs_hidden(jobs: Iterable[SlurmJob], configuration: Mapping[str, str], user: str) -> bool:
    """Return whether PrivateData hides the owner's jobs: all are of ``user`` ("" if unknown), as we are no operator."""
    if "jobs" not in configuration.get("PrivateData", "").lower().split(","):
        return False
    return not any(job.user != user if user else not is_drone(job) for job in jobs)


def owner_demands(
    jobs: Iterable[SlurmJob],
    slurm_nodes: Sequence[SlurmNode],
    nodes: Sequence[Node],
    owner: SlurmOwnerConfig,
) -> tuple[OwnerDemand, ...]:
    """Return a demand for each shape of the owner's waiting jobs that some of our ``nodes`` could host.

    A job of several nodes counts once per node. (Slurm itself rejects jobs that fit no node at
    all.)
    """
    names = {node.name for node in nodes}
    usable = [
        node for node in slurm_nodes if node.name in names and is_usable(node, owner.partitions)
    ]
    by_shape: dict[Hashable, list[SlurmJob]] = {}
    for job in jobs:
        waits = (
            job.state == "PENDING"
            and job.reason.replace("_", " ").strip("() ") in _RESOURCE_REASONS
        )
        if waits and is_owners(job, owner):
            request = job.cpus, job.memory_mib, frozenset(job.gpus.items()), job.node_count
            shape = (
                *request,
                frozenset(job.partition.split(",")),
                frozenset(job.required_nodes),
                job.user,
            )
            by_shape.setdefault(shape, []).append(job)
    found = []
    for waiting in by_shape.values():
        job = waiting[0]
        hosts = [node.name for node in usable if _fits(job, node)]
        if len(hosts) >= job.node_count:
            demand = OwnerDemand(
                count=len(waiting) * job.node_count,
                gpu_milli=sum(job.gpus.values()) * WHOLE_GPU,
                cpus=job.cpus,
                memory_mib=job.memory_mib,
                since=min(job.submitted_at for job in waiting),
                nodes=() if len(hosts) == len(nodes) else tuple(hosts),
                who=printable(job.user),
            )
            found.append(demand)
    return tuple(sorted(found, key=lambda demand: demand.since)[:_MAX_DEMANDS])


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


def is_owners(job: SlurmJob, owner: SlurmOwnerConfig) -> bool:
    """Return True if a job belongs to the owner."""
    return (
        not is_drone(job)
        and any(name in owner.partitions for name in job.partition.split(","))
        and (not owner.accounts or job.account in owner.accounts)
        and (not owner.qos or job.qos in owner.qos)
        and (not owner.users or job.user in owner.users)
    )


def owner_load(
    jobs: Iterable[SlurmJob], nodes: Collection[Node], owner: SlurmOwnerConfig
) -> OwnerLoad:
    """Return what the owner's running jobs use of these nodes. A job of several nodes uses the same of each."""
    names = {node.name for node in nodes}
    total = OwnerLoad()
    for job in jobs:
        here = len(names.intersection(job.nodes))
        if here and job.state != "PENDING" and is_owners(job, owner):
            total = OwnerLoad(
                total.jobs + 1,
                total.gpu_milli + here * sum(job.gpus.values()) * WHOLE_GPU,
                total.cpus + here * job.cpus,
                total.memory_mib + here * job.memory_mib,
            )
    return total
