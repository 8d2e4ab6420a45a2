"""The nodes of one site as the planner may use them: what is free, less what is promised, under blocking."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from provisioner.model import WHOLE_GPU, DroneType, Node, Reserve, ReserveWhen
from provisioner.planner.space import NOTHING, UNTOLD_MIB, Space, times


@dataclass(slots=True)
class Spot:
    """One node. Mutable, local to one decision."""

    name: str
    types: frozenset[str]
    whole: Space
    free: Space
    kept: Space
    """Per free GPU, for now: nothing where a reserve is released."""
    claimable: Space
    """Per free GPU, as the site enforces it: whoever asks."""

    def holds(self, each: Space, kept: Space | None = None) -> int:
        """How often ``each`` fits here now."""
        return times(each, self.free, self.kept if kept is None else kept)

    def take(self, each: Space, count: int = 1) -> None:
        """Promise room. What a GPU keeps stays kept until it is really taken: a CPU drone might come first."""
        self.free = self.free.plus(self.with_share(each), -count)

    def with_share(self, each: Space) -> Space:
        """``each``, or where that is more, what its GPUs keep here."""
        cpus, memory, disk = (keep * each.gpu_milli // WHOLE_GPU for keep in self.kept[1:])
        return Space(each.gpu_milli, max(each.cpus, cpus), max(each.memory_mib, memory), max(each.disk_mib, disk))


@dataclass(slots=True)
class Floor:
    """All nodes of a site."""

    spots: dict[str, Spot] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Iterable[Node], blocking: Iterable[Reserve], gpu_quiet_s: float) -> Floor:
        """``gpu_quiet_s``: for how long no GPU job has waited."""
        rules = tuple(blocking)
        return cls({node.name: _spot(node, reserve_of(node.name, rules), gpu_quiet_s) for node in nodes})

    def _hosts(self, kind: DroneType) -> Iterator[Spot]:
        return (spot for spot in self.spots.values() if kind.name in spot.types)

    def count(self, kind: DroneType) -> int:
        """How many drones of a type could start right now."""
        each = space_of(kind)
        return sum(spot.holds(each) for spot in self._hosts(kind))

    def count_unblocked(self, kind: DroneType) -> tuple[int, int]:
        """The same if nothing were kept for GPUs, and the milli-GPU that are free on those nodes."""
        each = space_of(kind)
        found = [(n, spot.free.gpu_milli) for spot in self._hosts(kind) if (n := spot.holds(each, NOTHING))]
        return sum(n for n, _ in found), sum(milli for _, milli in found)

    def book(self, kind: DroneType, count: int) -> int:
        """Promise room to ``count`` drones: to the fullest nodes first, as far as there is any. Those that find none,
        whose number is returned, wait in the site's queue."""
        each = space_of(kind)
        for spot in sorted(self._hosts(kind), key=lambda s: (s.free.gpu_milli, s.free.cpus, s.name)):
            if count <= 0:
                break
            here = min(count, spot.holds(each))
            if here:
                spot.take(each, here)
                count -= here
        return count


def space_of(kind: DroneType) -> Space:
    """What one drone of a type takes of its node."""
    return Space(kind.gpu_milli, kind.cpus, kind.memory_mib, kind.disk_mib)


def reserve_of(node: str, rules: Iterable[Reserve]) -> Reserve | None:
    """The first reserve whose patterns match a node."""
    return next((rule for rule in rules if any(fnmatchcase(node, each) for each in rule.nodes)), None)


def _spot(node: Node, rule: Reserve | None, gpu_quiet_s: float) -> Spot:
    told = node.disk_mib > 0
    enforced = Space(0, rule.cpus, rule.memory_mib, rule.disk_mib if told else 0) if rule else NOTHING
    released = rule is not None and rule.when is ReserveWhen.GPU_DEMAND and gpu_quiet_s >= rule.release_after_s
    disk_mib, free_disk_mib = (node.disk_mib, node.free_disk_mib) if told else (UNTOLD_MIB, UNTOLD_MIB)
    return Spot(
        node.name,
        frozenset(node.types),
        Space(node.gpu_milli, node.cpus, node.memory_mib, disk_mib),
        Space(node.free_gpu_milli, node.free_cpus, node.free_memory_mib, free_disk_mib),
        NOTHING if released else enforced,
        enforced,
    )
