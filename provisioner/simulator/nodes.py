"""Nodes as they really are: what each has, and who holds how much of it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from provisioner.model import DroneType, Node

ENDLESS = 1 << 40
"""Stands for CPUs, RAM or disk of a node where a scenario does not count them."""


class Amount(NamedTuple):
    """What something needs, or has: GPUs in thousandths, CPUs, RAM and disk in MiB."""

    gpu_milli: int = 0
    cpus: int = 0
    memory_mib: int = 0
    disk_mib: int = 0

    @classmethod
    def of(cls, kind: DroneType) -> Amount:
        """What a drone of this type holds."""
        return cls(kind.gpu_milli, kind.cpus, kind.memory_mib, kind.disk_mib)

    def plus(self, other: Amount) -> Amount:
        return Amount(*(a + b for a, b in zip(self, other, strict=True)))

    def less(self, other: Amount) -> Amount:
        return Amount(*(a - b for a, b in zip(self, other, strict=True)))

    def within(self, room: Amount) -> bool:
        """Whether it fits into ``room`` in every dimension."""
        return (
            self.gpu_milli <= room.gpu_milli
            and self.cpus <= room.cpus
            and self.memory_mib <= room.memory_mib
            and self.disk_mib <= room.disk_mib
        )

    def goes_into(self, room: Amount) -> int:
        """How often it fits; at least one dimension must be wanted."""
        return max(0, min(there // each for each, there in zip(self, room, strict=True) if each))


NOTHING = Amount()


class Machine:
    """One node. Whoever holds a part of it is a drone or an owner's job."""

    def __init__(self, name: str, pool: str, total: Amount, kept: Amount = NOTHING) -> None:
        self.name = name
        self.pool = pool
        self.total = total
        self.kept = kept
        """What its site keeps for each free GPU, whoever asks (blocking)."""
        self.outages = 0
        """Failures and downtimes that go on; they may overlap."""
        self.free = total
        self.drones: dict[Hashable, Amount] = {}
        self.owners: dict[Hashable, Amount] = {}
        """What the owner's jobs hold."""
        self.free_of_drones = total
        """What would be free if no drone held anything."""
        self._slots = 0

    @property
    def up(self) -> bool:
        return not self.outages

    @property
    def used_milli(self) -> int:
        return self.total.gpu_milli - self.free.gpu_milli

    def hosts(self, amount: Amount) -> bool:
        """Whether it has room now."""
        return self.up and self.admits(amount, self.free)

    def admits(self, amount: Amount, room: Amount) -> bool:
        """Whether it goes into ``room``, and does not eat into what the GPUs that are then free keep."""
        if not amount.within(room):
            return False
        gpus_left = room.gpu_milli - amount.gpu_milli
        return all(
            1000 * each <= keep * amount.gpu_milli or 1000 * (there - each) >= keep * gpus_left
            for each, there, keep in zip(amount[1:], room[1:], self.kept[1:], strict=True)
        )

    def seat_drone(self, drone: Hashable, amount: Amount) -> str:
        """A drone takes its part; the name of its slot."""
        self.drones[drone] = amount
        self.free = self.free.less(amount)
        self._slots += 1
        return f"slot1_{self._slots}@{self.name}"

    def seat_owner(self, job: Hashable, amount: Amount) -> None:
        self.owners[job] = amount
        self.free = self.free.less(amount)
        self.free_of_drones = self.free_of_drones.less(amount)

    def drone_left(self, drone: Hashable) -> None:
        self.free = self.free.plus(self.drones.pop(drone))

    def owner_left(self, job: Hashable) -> None:
        amount = self.owners.pop(job)
        self.free = self.free.plus(amount)
        self.free_of_drones = self.free_of_drones.plus(amount)

    @property
    def overfull(self) -> bool:
        """More is held than there is: never true if the site and its owner keep off each other."""
        return min(self.free) < 0

    def recounted(self) -> Amount:
        """What is free, counted anew from everyone who holds something."""
        room = self.total
        for amount in (*self.drones.values(), *self.owners.values()):
            room = room.less(amount)
        return room

    def told(self, kinds: Iterable[DroneType]) -> Node:
        """The node as its site tells it; ``kinds``: the drone types that may run in its pool."""
        return Node(
            name=self.name,
            types=tuple(kind.name for kind in kinds if Amount.of(kind).within(self.total)),
            gpu_milli=self.total.gpu_milli,
            cpus=self.total.cpus,
            memory_mib=self.total.memory_mib,
            disk_mib=self.total.disk_mib,
            free_gpu_milli=self.free.gpu_milli,
            free_cpus=self.free.cpus,
            free_memory_mib=self.free.memory_mib,
            free_disk_mib=self.free.disk_mib,
        )
