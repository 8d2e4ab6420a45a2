"""Nodes of a batch system on which drones find their GPUs bad, and to which it would send the next one again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from provisioner.drone import GPU_CHECK_EXITS
from provisioner.model import DroneId, RemoteDrone
from provisioner.values import define, factory

AVOIDED_S = 3600.0


@define
class FailedNodes:
    """Nodes on which the GPU checks of two drones failed within an hour."""

    avoided: tuple[str, ...] = ()
    _failed: dict[DroneId, tuple[str, float]] = factory(dict)

    def note(self, drones: Mapping[DroneId, RemoteDrone], now: float) -> list[str]:
        """Record the ends of drones, and return a notice for each node that is avoided now."""
        for drone_id, each in drones.items():
            if each.end is not None and each.end.exit_code in GPU_CHECK_EXITS and each.node:
                self._failed[drone_id] = each.node, each.end.at
        for drone_id, (_, at) in list(self._failed.items()):
            if at <= now - AVOIDED_S:
                del self._failed[drone_id]
        times = Counter(node for node, _ in self._failed.values())
        self.avoided = tuple(sorted(node for node, failed in times.items() if failed > 1))
        return [
            f"node {each} is avoided for up to an hour: GPU checks failed on it"
            for each in self.avoided
        ]
