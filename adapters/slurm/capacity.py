"""Nodes of the cluster as capacity for drones: totals, free resources, possible drone types, reservations, downtimes.

Free is what Slurm has not allocated, on nodes where it would start a job now. Waiting drones hold nothing yet: the
planner reserves their resources itself. So list our jobs first and the nodes after: a drone that starts in between is
then counted twice, and one too few is started; the other way round it would be one too many.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from adapters.slurm.records import Partition, Reservation, SlurmNode, expand_hostlist
from adapters.slurm.settings import SlurmJobOptions, SlurmSiteConfig
from provisioner.model import WHOLE_GPU, DroneType, Node

_UNUSABLE_STATES = frozenset({"DOWN", "FUTURE", "ERROR", "UNKNOWN"})
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
        "POWERING_DOWN",
        "POWER_DOWN",
        "POWER_DRAIN",
        "REBOOT_ISSUED",
        "REBOOT_REQUESTED",
    }
)
"""Flags of nodes on which nothing is started now. A powered-down node is not among them: it boots for its job. One that
is powering down starts nothing until it is down."""
_FEATURES = re.compile(r"[A-Za-z0-9_.+-]+([&,|][A-Za-z0-9_.+-]+)*")


@dataclass(frozen=True, slots=True)
class SlurmDroneType:
    """A drone type with its place in this cluster."""

    type: DroneType
    options: SlurmJobOptions
    partitions: tuple[Partition, ...]
    """Its partitions that exist."""
    gres: str
    """The type of its GPUs in Gres; "" is any."""

    @property
    def gpus(self) -> int:
        return -(-self.type.gpu_milli // WHOLE_GPU)

    @property
    def is_exclusive(self) -> bool:
        return "exclusive" in self.options.submit

    def partitions_of(self, node: SlurmNode) -> list[Partition]:
        return [each for each in self.partitions if each.name in node.partitions]


@dataclass(frozen=True, slots=True)
class NodeMismatch:
    """The reason why a node, even an empty one, cannot host a drone type.

    Dimensions are checked in the order of :data:`MISMATCH_DIMENSIONS`: a later one is a nearer miss.
    """

    dimension: str
    requested: str
    available: str


MISMATCH_DIMENSIONS = ("partition", "gpus", "cpus", "memory", "features", "exclude")


def resolve_types(
    types: Iterable[DroneType], partitions: Sequence[Partition], config: SlurmSiteConfig
) -> tuple[SlurmDroneType, ...]:
    """Return the site's drone types with their options and partitions."""
    resolved = []
    for each in types:
        options = config.options_for(each.name)
        gres = config.gres_of(each.name).partition(":")[2]
        resolved.append(SlurmDroneType(each, options, tuple(partitions_for(options, partitions)), gres))
    return tuple(resolved)


def list_nodes(
    slurm_nodes: Iterable[SlurmNode],
    partitions: Sequence[Partition],
    types: Iterable[DroneType],
    config: SlurmSiteConfig,
    reservations: Iterable[Reservation] = (),
    *,
    now: float | None = None,
    downtime_at: float = 0.0,
    users: Collection[str] = (),
) -> tuple[Node, ...]:
    """Return the nodes that could host a drone of some type.

    ``downtime_at``: when the whole site goes down; drones end before it, so its reservations block none until then.
    ``users``: our account's name, where known.
    """
    now = time.time() if now is None else now
    resolved = resolve_types(types, partitions, config)
    by_node = reservations_by_node(reservations, now)
    found = []
    for node in slurm_nodes:
        possible = [each for each in resolved if node.state != "FUTURE" and mismatch(each, node) is None]
        if possible:
            usable = is_usable(node, config)
            startable = [
                each
                for each in possible
                if usable
                and any(admits_lifetime(each, partition) for partition in each.partitions_of(node))
                and not is_confined_elsewhere(each.options, node.name, by_node)
                and not blocking_reservation(
                    each.options, node.name, by_node, now, _ends_at(each, now, downtime_at), users
                )
                and not (each.is_exclusive and node.used_cpus)
                and ("RESERVED" not in node.flags or node.name in by_node)
            ]
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


def mismatch(resolved: SlurmDroneType, node: SlurmNode) -> NodeMismatch | None:
    """Return the first dimension in which the node, empty, could not host a drone of the type; None if it could.

    Plain constraints (``a&b`` or ``a|b``) are checked; others count as met.
    """
    partitions = resolved.partitions_of(node)
    if not partitions:
        requested = resolved.options.partition or "the default partition"
        return NodeMismatch("partition", requested, ", ".join(node.partitions) or "none")
    cpus, memory = resolved.type.cpus, resolved.type.memory_mib
    gpus = node.gpus if not resolved.gres else {resolved.gres: node.gpus.get(resolved.gres, 0)}
    if resolved.gpus > sum(gpus.values()):
        of_type = f" {resolved.gres}" if resolved.gres else ""
        return NodeMismatch("gpus", f"{resolved.gpus}{of_type}", f"{sum(gpus.values())}{of_type}")
    most_cpus = max(min(node.cpus, each.max_cpus_per_node or node.cpus) for each in partitions)
    charged = min(_charged_cpus(resolved.type, each) for each in partitions)
    if charged > most_cpus:
        requested = f"{cpus}" if charged == cpus else f"{charged} (for its {memory} MiB, by MaxMemPerCPU)"
        return NodeMismatch("cpus", requested, str(most_cpus))
    most_memory = max(min(node.memory_mib, each.max_memory_per_node_mib or node.memory_mib) for each in partitions)
    if memory > most_memory:
        return NodeMismatch("memory", f"{memory} MiB", f"{most_memory} MiB")
    if not _meets_constraint(resolved.options.constraint, node.features):
        return NodeMismatch("features", resolved.options.constraint, ", ".join(node.features) or "none")
    if _is_excluded(resolved.options, node.name):
        return NodeMismatch("exclude", "another node", node.name)
    return None


def _charged_cpus(drone_type: DroneType, partition: Partition) -> int:
    """Return the CPUs of a drone: Slurm adds CPUs to a job that requests more memory per CPU than is allowed."""
    per_cpu = partition.max_memory_per_cpu_mib
    return max(drone_type.cpus, -(-drone_type.memory_mib // per_cpu) if per_cpu else 0)


def admits_lifetime(resolved: SlurmDroneType, partition: Partition) -> bool:
    """Return whether a partition is up and admits jobs of the type's walltime."""
    return partition.up and (not partition.max_s or resolved.type.walltime_s <= partition.max_s)


def gpu_types(node: SlurmNode, gres: str) -> frozenset[str]:
    """Return the types of GPUs of the node that a drone with this gres may get."""
    return frozenset(name for name in node.gpus if not gres or name == gres)


def _ends_at(resolved: SlurmDroneType, now: float, downtime_at: float) -> float:
    """Return when a drone that starts now will be gone."""
    end = now + (resolved.type.walltime_s or math.inf)
    return min(end, downtime_at) if downtime_at > now else end


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
    hosted = [each for each in types if not each.gpus or gpu_types(node, each.gres) >= shown]
    max_cpus = _max_cpus(node, hosted)
    free_cpus = min(max(0, node.cpus - node.used_cpus), max_cpus)
    per_cpu = _memory_per_cpu_mib(node, hosted, partitions, config)
    free_memory = max(0, node.memory_mib - node.used_memory_mib)
    cpus = min(node.cpus, max_cpus)
    return Node(
        name=node.name,
        types=tuple(each.type.name for each in hosted),
        gpu_milli=sum(node.gpus[name] for name in shown) * WHOLE_GPU,
        cpus=cpus,
        memory_mib=min(node.memory_mib, cpus * per_cpu) if per_cpu else node.memory_mib,
        disk_mib=0,
        free_gpu_milli=_free_gpus(node, shown) * WHOLE_GPU if is_open else 0,
        free_cpus=free_cpus if is_open else 0,
        # Memory beyond that would cost CPUs that are not there.
        free_memory_mib=(min(free_memory, free_cpus * per_cpu) if per_cpu else free_memory) if is_open else 0,
        free_disk_mib=0,
    )


def _shown_gpus(node: SlurmNode, types: Sequence[SlurmDroneType]) -> frozenset[str]:
    pools = list(dict.fromkeys(gpu_types(node, each.gres) for each in types if each.gpus))
    if not pools:
        return frozenset(node.gpus)
    narrow = [each for each in pools if not any(other < each for other in pools)]
    return max(narrow, key=lambda each: _free_gpus(node, each))


def _free_gpus(node: SlurmNode, shown: frozenset[str]) -> int:
    """Return the free GPUs of these types. GPUs in use of an unknown type may be among them."""
    total = sum(node.gpus[name] for name in shown)
    used = sum(n for name, n in node.used_gpus.items() if name in shown or name not in node.gpus)
    return max(0, total - used)


def _max_cpus(node: SlurmNode, types: Sequence[SlurmDroneType]) -> int:
    """Return the largest MaxCPUsPerNode. The node does not report how much of it the partition's jobs hold already."""
    partitions = [each for resolved in types for each in resolved.partitions_of(node)]
    return max((min(node.cpus, each.max_cpus_per_node or node.cpus) for each in partitions), default=0)


def _memory_per_cpu_mib(
    node: SlurmNode, types: Sequence[SlurmDroneType], partitions: Iterable[Partition], config: SlurmSiteConfig
) -> int:
    """Return the largest MaxMemPerCPU of the partitions of drones and of the owner's jobs; 0 if one has none."""
    owners = config.owner.partitions if config.owner else []
    through = [each for resolved in types for each in resolved.partitions_of(node)]
    through += [each for each in partitions if each.name in owners and each.name in node.partitions]
    limits = [each.max_memory_per_cpu_mib for each in through]
    return max(limits, default=0) if all(limits) else 0


def _meets_constraint(constraint: str, features: Collection[str]) -> bool:
    if not constraint or not _FEATURES.fullmatch(constraint):
        return True
    if "|" not in constraint:
        return all(each in features for each in re.split("[&,]", constraint))
    if "&" not in constraint and "," not in constraint:
        return any(each in features for each in constraint.split("|"))
    return True


def _is_excluded(options: SlurmJobOptions, node: str) -> bool:
    exclude, only = _nodes_of(options.submit.get("exclude")), _nodes_of(options.submit.get("nodelist"))
    return node in exclude or (bool(only) and node not in only)


@lru_cache(maxsize=64)
def _nodes_of(text: str | bool | None) -> tuple[str, ...]:
    """Return a list of nodes; empty for the name of a file, or an invalid list: Slurm will reject that itself."""
    if not isinstance(text, str) or "/" in text:
        return ()
    try:
        return expand_hostlist(text)
    except ValueError:
        return ()


# -------------------------------------------------------------------------------------------------------- reservations


def next_downtime(
    reservations: Iterable[Reservation],
    nodes: Iterable[SlurmNode],
    partitions: Sequence[Partition],
    options: Sequence[SlurmJobOptions],
    now: float,
    users: Collection[str] = (),
) -> float:
    """Return when the next downtime of the site begins; 0 if none is planned.

    From then on every node on which drones could run is reserved for others, by one reservation (maintenance, mostly)
    or by several together. One that has begun does not count: its nodes are not free. A reservation of only some nodes
    is no downtime: :func:`list_nodes` leaves these out when it is near.

    ``options``: those of the drone types. ``users``: our account's name, where known.
    """
    possible = {
        node.name
        for node in nodes
        if node.state not in _UNUSABLE_STATES and any(_is_reachable(each, partitions, node) for each in options)
    }
    planned = [
        each
        for each in reservations
        if each.ends_at > now
        and not all(can_use_reservation(each, of_type, users) for of_type in options)
        and possible & set(each.nodes)
    ]
    for start in sorted({each.starts_at for each in planned if each.starts_at > now}):
        reserved = {name for each in planned if each.starts_at <= start < each.ends_at for name in each.nodes}
        if possible <= reserved:
            return start
    return 0.0


def _is_reachable(options: SlurmJobOptions, partitions: Iterable[Partition], node: SlurmNode) -> bool:
    names = {each.name for each in partitions_for(options, partitions)}
    return any(name in names for name in node.partitions)


def partitions_for(options: SlurmJobOptions, partitions: Iterable[Partition]) -> list[Partition]:
    """Return the named partitions; else the cluster's default one, or all if the default is not reported."""
    known = list(partitions)
    if options.partition:
        named = options.partition.split(",")
        return [each for each in known if each.name in named]
    return [each for each in known if each.default] or known


def can_use_reservation(reservation: Reservation, options: SlurmJobOptions, users: Collection[str] = ()) -> bool:
    """Return whether drones with these options may run in the reservation.

    They name it, or it draws their jobs (MAGNETIC). To be among its accounts alone is not enough: Slurm admits only
    jobs that name it.
    """
    if reservation.name in options.reservation.split(","):
        return True
    of_account = options.account in reservation.accounts if options.account else False
    return "MAGNETIC" in reservation.flags and (of_account or any(user in reservation.users for user in users))


def blocking_reservation(
    options: SlurmJobOptions,
    node: str,
    by_node: Mapping[str, Sequence[Reservation]],
    now: float,
    until: float,
    users: Collection[str] = (),
) -> Reservation | None:
    """Return the reservation that keeps drones which run from ``now`` to ``until`` off a node; None if there is none.

    ``by_node``: see :func:`reservations_by_node`. Drones that name a reservation run nowhere else: see
    :func:`is_confined_elsewhere`.
    """
    for each in by_node.get(node, ()):
        if each.starts_at < until and each.ends_at > now and not can_use_reservation(each, options, users):
            return each
    return None


def is_confined_elsewhere(options: SlurmJobOptions, node: str, by_node: Mapping[str, Sequence[Reservation]]) -> bool:
    """Return whether drones with these options have to run in reservations that the node is not in."""
    named = options.reservation.split(",") if options.reservation else []
    return bool(named) and not any(each.name in named for each in by_node.get(node, ()))


def reservations_by_node(reservations: Iterable[Reservation], now: float) -> Mapping[str, Sequence[Reservation]]:
    """Return the reservations of each node that are not over, the first to begin first."""
    found: dict[str, list[Reservation]] = {}
    for each in sorted((r for r in reservations if r.ends_at > now), key=lambda r: (r.starts_at, r.name)):
        for name in each.nodes:
            found.setdefault(name, []).append(each)
    return found
