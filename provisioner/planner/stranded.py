"""Free GPUs that nobody can use, because the CPU cores, RAM or disk beside them are taken: what is short, and where."""

from __future__ import annotations

from collections.abc import Iterable

from provisioner.model import WHOLE_GPU, DroneType, Node
from provisioner.reasons import GpusStranded


def stranded(kind: DroneType, nodes: Iterable[Node]) -> GpusStranded | None:
    """Why no node that has enough free GPUs for a drone of ``kind`` has room for it; None if some has, or none has
    GPUs. Of what is short on each node, that counts which is short on most GPUs."""
    if not kind.gpu_milli:
        return None
    short: dict[str, list[tuple[int, int]]] = {}
    for node in nodes:
        if kind.name not in node.types or node.free_gpu_milli < kind.gpu_milli:
            continue
        lacking = _lacking(kind, node)
        if lacking is None:
            return None
        dimension, free = lacking
        short.setdefault(dimension, []).append((node.free_gpu_milli, free))
    if not short:
        return None
    dimension, found = max(short.items(), key=lambda each: (sum(milli for milli, _ in each[1]), each[0]))
    wanted = {"cpus": kind.cpus, "memory": kind.memory_mib, "disk": kind.disk_mib}[dimension]
    free_gpus = sum(milli for milli, _ in found) / WHOLE_GPU
    return GpusStranded(kind.key, len(found), free_gpus, dimension, wanted, max(free for _, free in found))


def _lacking(kind: DroneType, node: Node) -> tuple[str, int] | None:
    """What a node has too little of, and how much that is."""
    if node.free_cpus < kind.cpus:
        return "cpus", node.free_cpus
    if node.free_memory_mib < kind.memory_mib:
        return "memory", node.free_memory_mib
    if node.disk_mib and node.free_disk_mib < kind.disk_mib:
        return "disk", node.free_disk_mib
    return None
