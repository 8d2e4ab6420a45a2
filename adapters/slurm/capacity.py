"""The cluster's nodes: all that each has, what nobody holds of it, which drone types it could host.

Free is what Slurm has not allocated, on nodes where it would start a job now. Drones that wait hold nothing yet: the
core promises them their room itself. So ask for our jobs first and for the nodes after: a drone that starts in between
is then counted twice, and one too few is asked for; the other way round it would be one too many.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from adapters.slurm.downtime import by_node, confined, kept_from, partitions_of
from adapters.slurm.records import Partition, Reservation, SlurmNode, expand_hostlist
from adapters.slurm.settings import SlurmSiteConfig, Where
from provisioner.model import WHOLE_GPU, DroneType, Node

_SHUT = frozenset(
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
"""Flags of nodes on which nothing is started now. One that is powered down is: it is booted for its job. One that is
powering down is not, until it is down."""
_FEATURES = re.compile(r"[A-Za-z0-9_.+-]+([&,|][A-Za-z0-9_.+-]+)*")


@dataclass(frozen=True, slots=True)
class Kind:
    """A drone type and what this cluster makes of it."""

    type: DroneType
    where: Where
    partitions: tuple[Partition, ...]
    """Those that it is sent to and that are there."""
    gres: str
    """Its GPUs as Gres names their type; "" is any."""

    @property
    def gpus(self) -> int:
        return -(-self.type.gpu_milli // WHOLE_GPU)


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a node could host no drone of a type, even if it were empty; the later the dimension, the nearer it came."""

    dimension: str
    wanted: str
    offered: str


DIMENSIONS = ("partition", "gpus", "cpus", "memory", "features", "exclude")


def kinds(types: Iterable[DroneType], partitions: Sequence[Partition], config: SlurmSiteConfig) -> tuple[Kind, ...]:
    """The site's drone types with where they go."""
    made = []
    for each in types:
        where = config.where(each.name)
        gres = config.gres(each.name).partition(":")[2]
        made.append(Kind(each, where, tuple(partitions_of(where, partitions)), gres))
    return tuple(made)


def nodes(
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
    """One node for each that could host a drone of some type.

    ``downtime_at``: when the whole site goes down; drones' lives are cut to that, so it keeps none off before.
    ``users``: our account's name, where known.
    """
    now = time.time() if now is None else now
    hosted = kinds(types, partitions, config)
    reserved = by_node(reservations, now)
    found = []
    for node in slurm_nodes:
        could = [kind for kind in hosted if node.state != "FUTURE" and misfit(kind, node) is None]
        if could:
            usable = is_usable(node, config)
            open_to = [
                kind
                for kind in could
                if usable
                and any(admits(kind, each) for each in _of_node(kind, node))
                and not confined(kind.where, node.name, reserved)
                and not kept_from(kind.where, node.name, reserved, now, _ends_at(kind, now, downtime_at), users)
                and not (_alone(kind) and node.used_cpus)
                and ("RESERVED" not in node.flags or node.name in reserved)
            ]
            found.append(_node(node, open_to or could, partitions, config, is_open=bool(open_to)))
    return tuple(found)


def is_usable(node: SlurmNode, config: SlurmSiteConfig) -> bool:
    """Whether Slurm would start a job there now.

    A planned node is one that the scheduler keeps for a job which waits: what is free there is not for drones. Where
    that job is the owner's, the core does the reckoning itself, and has to see the room.
    """
    if node.state not in ("IDLE", "MIXED", "ALLOCATED"):
        return False
    shut = node.flags & _SHUT
    if "POWERING_UP" in node.flags:
        shut -= {"NOT_RESPONDING", "NO_RESPOND"}
    owners = config.owner is not None and any(name in node.partitions for name in config.owner.partitions)
    return not shut and ("PLANNED" not in node.flags or owners)


def misfit(kind: Kind, node: SlurmNode) -> Misfit | None:
    """The first dimension in which the node, empty, could not host a drone of the type; None if it could.

    Constraints are judged where they are plain (``a&b`` or ``a|b``); others are taken to be met.
    """
    admitting = [each for each in kind.partitions if each.name in node.partitions]
    if not admitting:
        wanted = kind.where.partition or "the default partition"
        return Misfit("partition", wanted, ", ".join(node.partitions) or "none")
    cpus, memory = kind.type.cpus, kind.type.memory_mib
    gpus = node.gpus if not kind.gres else {kind.gres: node.gpus.get(kind.gres, 0)}
    if kind.gpus > sum(gpus.values()):
        of = f" {kind.gres}" if kind.gres else ""
        return Misfit("gpus", f"{kind.gpus}{of}", f"{sum(gpus.values())}{of}")
    most_cpus = max(min(node.cpus, each.max_cpus_per_node or node.cpus) for each in admitting)
    turned = min(_cpus_for(kind.type, each) for each in admitting)
    if turned > most_cpus:
        why = f"{cpus}" if turned == cpus else f"{turned} (for its {memory} MiB, by MaxMemPerCPU)"
        return Misfit("cpus", why, str(most_cpus))
    most_memory = max(min(node.memory_mib, each.max_memory_per_node_mib or node.memory_mib) for each in admitting)
    if memory > most_memory:
        return Misfit("memory", f"{memory} MiB", f"{most_memory} MiB")
    if not _meets(kind.where.constraint, node.features):
        return Misfit("features", kind.where.constraint, ", ".join(node.features) or "none")
    if _is_excluded(kind.where, node.name):
        return Misfit("exclude", "another node", node.name)
    return None


def _cpus_for(kind: DroneType, partition: Partition) -> int:
    """What it gets: Slurm gives a job that wants more memory per CPU than it may have more CPUs."""
    per_cpu = partition.max_memory_per_cpu_mib
    return max(kind.cpus, -(-kind.memory_mib // per_cpu) if per_cpu else 0)


def admits(kind: Kind, partition: Partition) -> bool:
    """Whether a partition lets jobs in for as long as the type lives."""
    return partition.up and (not partition.max_s or kind.type.walltime_s <= partition.max_s)


def pool(node: SlurmNode, gres: str) -> frozenset[str]:
    """The types of GPUs there that a drone of this gres could have."""
    return frozenset(name for name in node.gpus if not gres or name == gres)


def _ends_at(kind: Kind, now: float, downtime_at: float) -> float:
    """When a drone that starts now will be gone."""
    end = now + (kind.type.walltime_s or math.inf)
    return min(end, downtime_at) if downtime_at > now else end


def _alone(kind: Kind) -> bool:
    """Whether it wants a node that nobody else uses."""
    return "exclusive" in kind.where.submit


def _node(
    node: SlurmNode, kinds: Sequence[Kind], partitions: Sequence[Partition], config: SlurmSiteConfig, *, is_open: bool
) -> Node:
    """Where the types want different GPUs of a node, it is shown for the one type of GPU of which most is free now: one
    number of free GPUs for all would have drones asked for that have none."""
    shown = _shown(node, kinds)
    here = [kind for kind in kinds if not kind.gpus or pool(node, kind.gres) >= shown]
    free_cpus = min(max(0, node.cpus - node.used_cpus), cap) if (cap := _cpu_cap(node, here)) else 0
    per_cpu = _memory_per_cpu_mib(node, here, partitions, config)
    free_memory = max(0, node.memory_mib - node.used_memory_mib)
    cpus = min(node.cpus, cap)
    return Node(
        name=node.name,
        types=tuple(kind.type.name for kind in here),
        gpu_milli=sum(node.gpus[name] for name in shown) * WHOLE_GPU,
        cpus=cpus,
        memory_mib=min(node.memory_mib, cpus * per_cpu) if per_cpu else node.memory_mib,
        disk_mib=0,
        free_gpu_milli=_free_gpus(node, shown) * WHOLE_GPU if is_open else 0,
        free_cpus=free_cpus if is_open else 0,
        # Memory beyond that would be paid for with CPUs that are not there.
        free_memory_mib=(min(free_memory, free_cpus * per_cpu) if per_cpu else free_memory) if is_open else 0,
        free_disk_mib=0,
    )


def _of_node(kind: Kind, node: SlurmNode) -> list[Partition]:
    return [each for each in kind.partitions if each.name in node.partitions]


def _shown(node: SlurmNode, kinds: Sequence[Kind]) -> frozenset[str]:
    pools = list(dict.fromkeys(pool(node, kind.gres) for kind in kinds if kind.gpus))
    if not pools:
        return frozenset(node.gpus)
    narrow = [each for each in pools if not any(other < each for other in pools)]
    return max(narrow, key=lambda each: _free_gpus(node, each))


def _free_gpus(node: SlurmNode, shown: frozenset[str]) -> int:
    """GPUs in use whose type is not told may be these."""
    there = sum(node.gpus[name] for name in shown)
    used = sum(n for name, n in node.used_gpus.items() if name in shown or name not in node.gpus)
    return max(0, there - used)


def _cpu_cap(node: SlurmNode, kinds: Sequence[Kind]) -> int:
    """The widest MaxCPUsPerNode. What of it jobs of the partition hold already is not told by the node."""
    through = [each for kind in kinds for each in _of_node(kind, node)]
    return max((min(node.cpus, each.max_cpus_per_node or node.cpus) for each in through), default=0)


def _memory_per_cpu_mib(
    node: SlurmNode, kinds: Sequence[Kind], partitions: Iterable[Partition], config: SlurmSiteConfig
) -> int:
    """The widest MaxMemPerCPU of the partitions through which drones and the owner's jobs come; 0 if one has none."""
    owners = config.owner.partitions if config.owner else []
    through = [each for kind in kinds for each in _of_node(kind, node)]
    through += [each for each in partitions if each.name in owners and each.name in node.partitions]
    limits = [each.max_memory_per_cpu_mib for each in through]
    return max(limits, default=0) if all(limits) else 0


def _meets(constraint: str, features: Collection[str]) -> bool:
    if not constraint or not _FEATURES.fullmatch(constraint):
        return True
    if "|" not in constraint:
        return all(each in features for each in re.split("[&,]", constraint))
    if "&" not in constraint and "," not in constraint:
        return any(each in features for each in constraint.split("|"))
    return True


def _is_excluded(where: Where, node: str) -> bool:
    exclude, only = where.submit.get("exclude"), where.submit.get("nodelist")
    return node in _named(exclude) or (bool(only) and bool(_named(only)) and node not in _named(only))


@lru_cache(maxsize=64)
def _named(text: str | bool | None) -> tuple[str, ...]:
    """None for what is a file's name, or no list: Slurm will say what it thinks of it."""
    if not isinstance(text, str) or "/" in text:
        return ()
    try:
        return expand_hostlist(text)
    except ValueError:
        return ()
