"""Resources of a drone, a job, a node or a server: what it asks for, holds, or has free."""

from __future__ import annotations

from typing import NamedTuple

from provisioner.model import DroneType, JobClass, Node, OwnerDemand


class Resources(NamedTuple):
    """GPUs in thousandths, CPUs, memory and disk."""

    gpu_milli: int = 0
    cpus: int = 0
    memory_mib: int = 0
    disk_mib: int = 0

    @classmethod
    def of(cls, holder: DroneType | JobClass | Node | OwnerDemand) -> Resources:
        """Return what a drone of a type holds, a node has, or a job asks for."""
        return cls(holder.gpu_milli, holder.cpus, holder.memory_mib, holder.disk_mib)

    def plus(self, other: Resources, count: int = 1) -> Resources:
        """Return the sum with ``count`` times ``other``; a negative count subtracts."""
        return Resources(
            self.gpu_milli + count * other.gpu_milli,
            self.cpus + count * other.cpus,
            self.memory_mib + count * other.memory_mib,
            self.disk_mib + count * other.disk_mib,
        )

    def within(self, room: Resources) -> bool:
        return (
            self.gpu_milli <= room.gpu_milli
            and self.cpus <= room.cpus
            and self.memory_mib <= room.memory_mib
            and self.disk_mib <= room.disk_mib
        )


NO_RESOURCES = Resources()
