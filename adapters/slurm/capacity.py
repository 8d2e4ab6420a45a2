"""Nodes of the cluster as capacity for drones: totals, free resources, possible drone types, reservations, downtimes.

Free is what Slurm has not allocated, on nodes where it would start a job now. Waiting drones hold nothing yet: the
planner reserves their resources itself. So list our jobs first and the nodes after: a drone that starts in between is
then counted twice, and one too few is started; the other way round it would be one too many.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from adapters.slurm.records import Partition, Reservation, SlurmNode, expand_hostlist
from adapters.slurm.settings import SlurmSiteConfig, SlurmTypeOptions
from provisioner.model import WHOLE_GPU, DroneType, Node

_UNUSABLE_STATES = frozenset({"DOWN", "FUTURE", "ERROR", "UNKNOWN"})
_CLOSED_FLAGS = frozenset(
    {"BLOCKED", "DOWN", "DRAIN", "FAIL", "INVALID_REG", "MAINT", "MAINTENANCE", "NO_RESPOND", "NOT_RESPONDING"}
    | {"POWERING_DOWN", "POWER_DOWN", "POWER_DRAIN", "REBOOT_ISSUED", "REBOOT_REQUESTED"}
)
"""Flags of nodes on which nothing is started now. A powered-down node is not among them: it boots for its job. One that
is powering down starts nothing until it is down."""
_FEATURES = re.compile(r"[A-Za-z0-9_.+-]+([&,|][A-Za-z0-9_.+-]+)*")


@dataclass(frozen=True, slots=True)
class NodeMismatch:
    """The reason why a node, even an empty one, cannot host a drone type.

    Dimensions are checked in the order of :data:`MISMATCH_DIMENSIONS`: a later one is a nearer miss.
    """

    dimension: str
    requested: str
    available: str


MISMATCH_DIMENSIONS = ("partition", "gpus", "cpus", "memory", "features", "exclude")


@dataclass(frozen=True, slots=True)
class SlurmDroneType:
    """A drone type with its place in this cluster."""

    type: DroneType
    options: SlurmTypeOptions
    partitions: tuple[Partition, ...]
    """Its partitions that exist."""

    @property
    def gres(self) -> str:
        """Return the type of its GPUs in Gres; "" is any."""
        return self.options.gres.partition(":")[2]

    @property
    def reservations(self) -> frozenset[str]:
        """Return the reservations that it runs in. Only jobs that name one are sure to be admitted to it."""
        return frozenset(filter(None, self.options.reservation.split(",")))

    @property
    def gpus(self) -> int:
        return -(-self.type.gpu_milli // WHOLE_GPU)

    def partitions_of(self, node: SlurmNode) -> list[Partition]:
        return [each for each in self.partitions if each.name in node.partitions]

    def gpu_types(self, node: SlurmNode) -> frozenset[str]:
        """Return the types of GPUs of the node that a drone may get."""
        return frozenset(name for name in node.gpus if not self.gres or name == self.gres)

    def admitted_by(self, partition: Partition) -> bool:
        """Return whether a partition is up and admits jobs of the type's walltime."""
        return partition.up and (not partition.max_s or self.type.walltime_s <= partition.max_s)

    def mismatch(self, node: SlurmNode) -> NodeMismatch | None:
        """Return the first dimension in which the node, empty, could not host a drone; None if it could.

        Plain constraints (``a&b`` or ``a|b``) are checked; others count as met.
        """
        partitions = self.partitions_of(node)
        if not partitions:
            requested = self.options.partition or "the default partition"
            return NodeMismatch("partition", requested, ", ".join(node.partitions) or "none")
        cpus, memory = self.type.cpus, self.type.memory_mib
        gpus = sum(node.gpus[name] for name in self.gpu_types(node))
        if self.gpus > gpus:
            of_type = f" {self.gres}" if self.gres else ""
            return NodeMismatch("gpus", f"{self.gpus}{of_type}", f"{gpus}{of_type}")
        most_cpus = max(min(node.cpus, each.max_cpus_per_node or node.cpus) for each in partitions)
        charged = min(_charged_cpus(self.type, each) for each in partitions)
        if charged > most_cpus:
            requested = f"{cpus}" if charged == cpus else f"{charged} (for its {memory} MiB, by MaxMemPerCPU)"
            return NodeMismatch("cpus", requested, str(most_cpus))
        most_memory = max(min(node.memory_mib, each.max_memory_per_node_mib or node.memory_mib) for each in partitions)
        if memory > most_memory:
            return NodeMismatch("memory", f"{memory} MiB", f"{most_memory} MiB")
        if not _meets_constraint(self.options.constraint, node.features):
            return NodeMismatch("features", self.options.constraint, ", ".join(node.features) or "none")
        exclude, only = (_nodes_of(self.options.submit.get(name)) for name in ("exclude", "nodelist"))
        if node.name in exclude or (only and node.name not in only):
            return NodeMismatch("exclude", "another node", node.name)
        return None


def _charged_cpus(drone_type: DroneType, partition: Partition) -> int:
    """Return the CPUs of a drone: Slurm adds CPUs to a job that requests more memory per CPU than is allowed."""
    per_cpu = partition.max_memory_per_cpu_mib
    return max(drone_type.cpus, -(-drone_type.memory_mib // per_cpu) if per_cpu else 0)


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
) -> tuple[SlurmDroneType, ...]:
    """Return the site's drone types with their options and partitions.

    Without a partition in its options a type goes to the cluster's default one, or to all if that is not reported.
    """
    resolved = []
    default = [each for each in partitions if each.default] or partitions
    for each in types:
        options = config.options_for(each.name)
        named = options.partition.split(",")
        own = [each for each in partitions if each.name in named] if options.partition else default
        resolved.append(SlurmDroneType(each, options, tuple(own)))
    return tuple(resolved)


# --------------------------------------------------------------------------------------------------------------- nodes


def list_nodes(
    slurm_nodes: Iterable[SlurmNode],
    partitions: Sequence[Partition],
    types: Iterable[DroneType],
    config: SlurmSiteConfig,
    reservations: Sequence[Reservation] = (),
    *,
    now: float | None = None,
    downtime_at: float = 0.0,
) -> tuple[Node, ...]:
    """Return the nodes that could host a drone of some type.

    ``downtime_at``: when the whole site goes down; drones end before it, so its reservations block none until then.
    """
    now = time.time() if now is None else now
    resolved = resolve_types(types, partitions, config)
    active = [(each, frozenset(each.nodes)) for each in reservations if each.ends_at > now]
    found = []
    for node in slurm_nodes:
        possible = [each for each in resolved if node.state != "FUTURE" and each.mismatch(node) is None]
        if not possible:
            continue
        reserved = [each for each, names in active if node.name in names]
        startable = [
            each
            for each in possible
            if any(map(each.admitted_by, each.partitions_of(node)))
            and not _is_reserved(each, reserved, now, downtime_at)
            and not ("exclusive" in each.options.submit and node.used_cpus)
        ]
        if not is_usable(node, config) or ("RESERVED" in node.flags and not reserved):
            startable = []
        found.append(_node(node, startable or possible, partitions, config, is_open=bool(startable)))
    return tuple(found)


def is_usable(node: SlurmNode, config: SlurmSiteConfig) -> bool:
    """Return whether Slurm would start a job there now.

    A planned node is reserved for a waiting job: its free resources are not for drones. Where that job is the owner's,
    the planner reserves for it itself, and has to see them.
    """
    if node.state not in ("IDLE", "MIXED", "ALLOCATED"):
        return False
    closed = node.flags & _CLOSED_FLAGS
    if "POWERING_UP" in node.flags:
        closed -= {"NOT_RESPONDING", "NO_RESPOND"}
    owners = config.owner is not None and any(name in node.partitions for name in config.owner.partitions)
    return not closed and ("PLANNED" not in node.flags or owners)


def _node(
    node: SlurmNode,
    types: Sequence[SlurmDroneType],
    partitions: Sequence[Partition],
    config: SlurmSiteConfig,
    *,
    is_open: bool,
) -> Node:
    """Return a node with one type of GPU.

    Where drone types need different GPUs of a node, that is the type of GPU with most free now: with one number of free
    GPUs for all, drones would be started that get none.
    """
    shown = _shown_gpus(node, types)
    hosted = [each for each in types if not each.gpus or each.gpu_types(node) >= shown]
    through = [partition for each in hosted for partition in each.partitions_of(node)]
    # The node does not report how much of MaxCPUsPerNode the partition's jobs hold already.
    max_cpus = max((min(node.cpus, each.max_cpus_per_node or node.cpus) for each in through), default=0)
    free_cpus = min(max(0, node.cpus - node.used_cpus), max_cpus)
    # The largest MaxMemPerCPU of the partitions of drones and of the owner's jobs; 0 if one has none. Memory beyond
    # that would cost CPUs that are not there.
    owners = config.owner.partitions if config.owner else []
    through += [each for each in partitions if each.name in owners and each.name in node.partitions]
    limits = [each.max_memory_per_cpu_mib for each in through]
    per_cpu = max(limits, default=0) if all(limits) else 0
    free_memory = max(0, node.memory_mib - node.used_memory_mib)
    return Node(
        name=node.name,
        types=tuple(each.type.name for each in hosted),
        gpu_milli=sum(node.gpus[name] for name in shown) * WHOLE_GPU,
        cpus=max_cpus,
        memory_mib=min(node.memory_mib, max_cpus * per_cpu) if per_cpu else node.memory_mib,
        disk_mib=0,
        free_gpu_milli=_free_gpus(node, shown) * WHOLE_GPU if is_open else 0,
        free_cpus=free_cpus if is_open else 0,
        free_memory_mib=(min(free_memory, free_cpus * per_cpu) if per_cpu else free_memory) if is_open else 0,
        free_disk_mib=0,
    )


def _shown_gpus(node: SlurmNode, types: Sequence[SlurmDroneType]) -> frozenset[str]:
    pools = list(dict.fromkeys(each.gpu_types(node) for each in types if each.gpus))
    if not pools:
        return frozenset(node.gpus)
    narrow = [each for each in pools if not any(other < each for other in pools)]
    return max(narrow, key=lambda each: _free_gpus(node, each))


def _free_gpus(node: SlurmNode, shown: frozenset[str]) -> int:
    """Return the free GPUs of these types. GPUs in use of an unknown type may be among them."""
    total = sum(node.gpus[name] for name in shown)
    used = sum(n for name, n in node.used_gpus.items() if name in shown or name not in node.gpus)
    return max(0, total - used)


# -------------------------------------------------------------------------------------------------------- reservations


def next_downtime(
    reservations: Iterable[Reservation], nodes: Iterable[SlurmNode], types: Sequence[SlurmDroneType], now: float
) -> float:
    """Return when the next downtime of the site begins; 0 if none is planned.

    From then on every node on which drones could run is reserved for others, by one reservation (maintenance, mostly)
    or by several together. One that has begun does not count: its nodes are not free. A reservation of only some nodes
    is no downtime: :func:`list_nodes` leaves these out when it is near.
    """
    possible = {
        node.name
        for node in nodes
        if node.state not in _UNUSABLE_STATES and any(each.partitions_of(node) for each in types)
    }
    planned = [
        each
        for each in reservations
        if each.ends_at > now
        and not all(each.name in drone_type.reservations for drone_type in types)
        and possible & set(each.nodes)
    ]
    for start in sorted({each.starts_at for each in planned if each.starts_at > now}):
        reserved = {name for each in planned if each.starts_at <= start < each.ends_at for name in each.nodes}
        if possible <= reserved:
            return start
    return 0.0


def _is_reserved(
    drone_type: SlurmDroneType, reservations: Sequence[Reservation], now: float, downtime_at: float
) -> bool:
    """Return whether the reservations of a node, none of which is over, keep a drone that starts now off it."""
    own = [each for each in reservations if each.name in drone_type.reservations]
    if drone_type.reservations and not own:
        return True  # such drones run nowhere else
    end = now + (drone_type.type.walltime_s or math.inf)
    until = min(end, downtime_at) if downtime_at > now else end
    return any(each.starts_at < until for each in reservations if each not in own)
