"""Choice of the drones of one node that leave so that something else fits: the set that loses least work.

Drones of one shape differ only in what they lose, so the cheapest of each shape leave first, and
only the number per shape is to be found. The first answer spares the dearest drones that can be
spared, one after the other. Then all other numbers are tried for as long as they lose less, with a
bound on the steps, as the number of combinations grows with the power of the number of shapes. A
rule that goes drone by drone, youngest or cheapest first over a whole site, frees GPUs scattered
over nodes, where no large job can start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from provisioner.model import DroneId
from provisioner.planner.matching import count_fits
from provisioner.resources import NO_RESOURCES, Resources
from provisioner.values import define, factory, frozen

Counts = tuple[int, ...]
"""Number of leaving drones of each shape."""
MAX_SEARCH_STEPS = 2000
"""Bound on the steps of one search on one node."""


@frozen
class VictimCandidate:
    """A drone that may be asked to leave its node."""

    drone_id: DroneId
    space: Resources
    """Resources that it holds on the node."""
    lost_gpu_s: float
    """Work that its end would cost."""
    rank: tuple[int, float] = (0, 0.0)
    """Order of drones that lose the same: not started, idle, busy; then the youngest first."""

    def order(self) -> tuple[float, tuple[int, float], DroneId]:
        return self.lost_gpu_s, self.rank, self.drone_id


@define
class NodeCandidates:
    """Candidates of one node by shape, the cheapest first in each and over all. Mutable, local to one plan."""

    by_shape: dict[Resources, list[VictimCandidate]] = factory(dict)
    held: Resources = field(init=False)
    """Sum of their resources."""

    def __post_init__(self) -> None:
        self.held = NO_RESOURCES
        for space, group in self.by_shape.items():
            self.held = self.held.plus(space, len(group))

    @classmethod
    def of(cls, candidates: Iterable[VictimCandidate]) -> NodeCandidates:
        """Group and sort the candidates."""
        by_shape: dict[Resources, list[VictimCandidate]] = {}
        for each in sorted(candidates, key=VictimCandidate.order):
            by_shape.setdefault(each.space, []).append(each)
        return cls(by_shape)

    def only(self, wanted: Callable[[Resources], bool]) -> NodeCandidates:
        """Return the candidates of the shapes that ``wanted`` accepts."""
        return NodeCandidates(
            {space: group for space, group in self.by_shape.items() if wanted(space)}
        )

    def remove(self, victims: Collection[VictimCandidate]) -> None:
        """Remove the drones that leave."""
        for victim in victims:
            self.by_shape[victim.space].remove(victim)
            self.held = self.held.plus(victim.space, -1)
        groups = ((space, group) for space, group in self.by_shape.items() if group)
        self.by_shape = dict(sorted(groups, key=lambda each: each[1][0].order()))


def cheapest_set(
    need: Resources,
    free: Resources,
    kept: Resources,
    candidates: Sequence[VictimCandidate] | NodeCandidates,
) -> tuple[VictimCandidate, ...] | None:
    """Return the candidates of one node whose leaving makes room for ``need`` at the least loss, and are fewest.

    Each GPU that is free then keeps ``kept``. None if all candidates together are not enough.
    """
    residents = (
        candidates if isinstance(candidates, NodeCandidates) else NodeCandidates.of(candidates)
    )

    def fits(room: Resources) -> bool:
        return count_fits(need, room, kept) >= 1

    if not fits(free.plus(residents.held)):
        return None
    if fits(free):
        return ()
    groups = list(residents.by_shape.values())
    search = _Search(fits, groups, _spared(fits, free.plus(residents.held), groups))
    search.extend(free, ())
    return tuple(c for n, group in zip(search.best[3], groups, strict=True) for c in group[:n])


def _spared(
    fits: Callable[[Resources], bool],
    room: Resources,
    groups: Sequence[Sequence[VictimCandidate]],
) -> Counts:
    """Return how many drones of each shape leave if the dearest are spared first, one after the other."""
    counts = [len(group) for group in groups]
    all_drones = [
        (c.lost_gpu_s, n, at) for at, group in enumerate(groups) for n, c in enumerate(group)
    ]
    for _, _, at in sorted(all_drones, reverse=True):
        without = room.plus(groups[at][0].space, -1)
        if fits(without):
            room = without
            counts[at] -= 1
    return tuple(counts)


@dataclass
class _Search:
    """Search over the number of leaving drones of each shape. Mutable, local to one choice."""

    fits: Callable[[Resources], bool]
    groups: Sequence[Sequence[VictimCandidate]]
    first: Counts
    steps: int = MAX_SEARCH_STEPS

    def __post_init__(self) -> None:
        self.losses = [
            list(accumulate((each.lost_gpu_s for each in group), initial=0.0))
            for group in self.groups
        ]
        self.best = self.cost(self.first)

    def cost(self, counts: Counts) -> tuple[float, int, int, Counts]:
        """Return the loss, the drones and the milli-GPUs of an answer, and the answer."""
        lost = sum(losses[n] for n, losses in zip(counts, self.losses, strict=False))
        freed = sum(
            n * group[0].space.gpu_milli for n, group in zip(counts, self.groups, strict=False)
        )
        return lost, sum(counts), freed, counts

    def extend(self, room: Resources, counts: Counts) -> None:
        """Try all numbers of the next shape, and of those after it, while they cost less than the best answer."""
        if len(counts) == len(self.groups):
            return
        group = self.groups[len(counts)]
        for count in range(len(group) + 1):
            self.steps -= 1
            more = (*counts, count)
            cost = self.cost(more)
            if cost[:2] > self.best[:2] or self.steps < 0:
                return
            there = room.plus(group[0].space, count)
            if self.fits(there):
                rest = (0,) * (len(self.groups) - len(more))
                self.best = min(self.best, self.cost((*more, *rest)))
                return
            self.extend(there, more)
