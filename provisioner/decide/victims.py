"""Which drones of one node leave so that something else fits there: the set that loses least work, and no more.

Drones of one shape are interchangeable but for what they lose, so of each shape the cheapest leave first and only how
many of each is to be found. The first answer spares the dearest drones that can be spared. A search by branch and bound
then improves it, and proves it the best where its effort suffices: with three shapes on a node it nearly always does.
Its effort is bounded, per node and per decision, because the number of combinations grows with the power of the number
of shapes. (A rule that goes drone by drone, youngest or cheapest first over a whole site, frees GPUs scattered over
nodes, where no large job can start: field notes, B 34.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from provisioner.decide.space import Space, times
from provisioner.model import WHOLE_GPU, DroneId

MOST_STEPS = 1000
"""Bound on the steps of one search on one node."""
STEPS_OF_DECISION = 3000


@dataclass(frozen=True, slots=True)
class Candidate:
    """A drone that may be asked to leave its node."""

    drone_id: DroneId
    space: Space
    """What it holds there."""
    lost_gpu_s: float
    """Work that its end would cost."""
    rank: tuple[int, float] = (0, 0.0)
    """Between those that lose the same: not started before idle before busy, then the youngest."""

    def order(self) -> tuple[float, tuple[int, float], DroneId]:
        """Return by what candidates of one shape are ordered, the cheapest first."""
        return self.lost_gpu_s, self.rank, self.drone_id


@dataclass(slots=True)
class Effort:
    """Steps of search that a decision may still take. Mutable, local to one decision."""

    left: int = STEPS_OF_DECISION


def cheapest_set(
    need: Space, free: Space, kept: Space, candidates: Sequence[Candidate], effort: Effort | None = None
) -> tuple[Candidate, ...] | None:
    """Return the candidates of one node whose leaving makes room for ``need`` (with what is ``kept`` for each GPU that
    then is free) at the least loss; the fewer of two sets that lose the same. None if all of them are not enough."""
    everything = Space(*map(sum, zip(free, *(each.space for each in candidates), strict=True)))
    if times(need, everything, kept) < 1:
        return None
    if times(need, free, kept) >= 1:
        return ()
    shapes: dict[Space, list[Candidate]] = {}
    for each in sorted(candidates, key=Candidate.order):
        shapes.setdefault(each.space, []).append(each)
    rules = _rules(need, kept)
    lacks = [rule.least - rule.of(free) for rule in rules]
    groups = []
    for space, group in shapes.items():
        gains = [rule.of(space) for rule in rules]
        if some := tuple(group[: _most(lacks, gains)]):
            groups.append(_Group(space.gpu_milli, gains, some))
    effort = effort or Effort()
    search = _Search(groups, lacks, _spared(groups, lacks), min(MOST_STEPS, effort.left))
    given = search.steps
    counts = search.best()
    effort.left -= given - search.steps
    return tuple(c for n, group in zip(counts, groups, strict=True) for c in group.drones[:n])


class _Group(NamedTuple):
    """Drones of one shape."""

    gpu_milli: int
    gains: list[int]
    """Contribution of the end of one drone to each rule."""
    drones: tuple[Candidate, ...]
    """The cheapest first."""


def _most(lacks: Sequence[int], gains: Sequence[int]) -> int | None:
    """Return how many drones of a shape are enough for all that it can give; None if that cannot be said."""
    if min(gains, default=0) < 0:
        return None
    return max((-(-lack // gain) for lack, gain in zip(lacks, gains, strict=True) if gain and lack > 0), default=0)


def _spared(groups: Sequence[_Group], lacks: Sequence[int]) -> list[int]:
    """Return how many of each shape leave if the dearest are spared first, one after the other."""
    counts = [len(group.drones) for group in groups]
    over = [-lack for lack in lacks]
    for count, group in zip(counts, groups, strict=True):
        over = [o + count * gain for o, gain in zip(over, group.gains, strict=True)]
    dearest = sorted(
        ((c.lost_gpu_s, n, number) for number, group in enumerate(groups) for n, c in enumerate(group.drones)),
        reverse=True,
    )
    for _, _, number in dearest:
        less = [o - gain for o, gain in zip(over, groups[number].gains, strict=True)]
        if min(less, default=0) >= 0:
            over = less
            counts[number] -= 1
    return counts


@dataclass(frozen=True, slots=True)
class _Rule:
    """``weights`` times an amount of room must be ``least`` or more."""

    weights: Space
    least: int

    def of(self, room: Space) -> int:
        gpus, cpus, memory, disk = self.weights
        return gpus * room.gpu_milli + cpus * room.cpus + memory * room.memory_mib + disk * room.disk_mib


def _rules(need: Space, kept: Space) -> list[_Rule]:
    """Return when :func:`times` says that ``need`` goes into some room once: linear in the room."""
    rules = []
    for place, amount in enumerate(need):
        unit = Space(*(int(place == other) for other in range(len(need))))
        if amount > 0:
            rules.append(_Rule(unit, amount))
        keep = kept[place] if place else 0
        eats = amount * WHOLE_GPU - keep * need.gpu_milli
        if keep and eats > 0:
            rules.append(_Rule(Space(-keep).plus(unit, WHOLE_GPU), eats))
    return rules


@dataclass
class _Search:
    """Branch and bound over how many of each shape leave."""

    groups: Sequence[_Group]
    lacks: list[int]
    """Return the shortage of each rule."""
    first: list[int]
    """An answer: how many of each shape."""
    steps: int
    """Return the number of drones that may still be taken."""
    cost: tuple[float, int, int, list[int]] = field(init=False)
    """Loss, drones and milli-GPU of the best answer, and how many of each shape."""

    def __post_init__(self) -> None:
        self.losses = [list(accumulate((c.lost_gpu_s for c in each.drones), initial=0.0)) for each in self.groups]
        # Of the shapes from one on: the most that they can give to each rule, by the cheapest and by the largest.
        count = len(self.lacks)
        self.most: list[list[int]] = [[0] * count]
        self.price: list[list[float]] = [[float("inf")] * count]
        self.largest: list[list[int]] = [[0] * count]
        for group in reversed(self.groups):
            some, price = [max(0, gain) for gain in group.gains], group.drones[0].lost_gpu_s
            self.most.append([m + e * len(group.drones) for m, e in zip(self.most[-1], some, strict=True)])
            self.price.append([min(p, price / e) if e else p for p, e in zip(self.price[-1], some, strict=True)])
            self.largest.append([max(x, e) for x, e in zip(self.largest[-1], some, strict=True)])
        for table in (self.most, self.price, self.largest):
            table.reverse()
        freed = sum(n * group.gpu_milli for n, group in zip(self.first, self.groups, strict=True))
        lost = sum(sums[n] for n, sums in zip(self.first, self.losses, strict=True))
        self.cost = lost, sum(self.first), freed, self.first

    def best(self) -> list[int]:
        """Return how many of each shape leave, the best that was found."""
        if self.steps > 0:
            self._go(0, self.lacks, 0.0, 0, 0, [])
        return self.cost[3]

    def _go(self, at: int, lacks: list[int], lost: float, drones: int, milli: int, counts: list[int]) -> None:
        """Try all counts of the shape ``at`` and of those after it, while better than the best is possible."""
        self.steps -= 1
        short = [n for n, lack in enumerate(lacks) if lack > 0]
        if any(lacks[n] > self.most[at][n] for n in short):
            return
        if short:
            more = max(lacks[n] * self.price[at][n] for n in short)
            fewest = max(-(-lacks[n] // self.largest[at][n]) for n in short)
            # Rounding must not cost an answer that loses the same.
            beyond = lost + more - self.cost[0]
            if beyond > 1e-9 * self.cost[0] or (beyond >= 0 and drones + fewest > self.cost[1]):
                return
        if at == len(self.groups):
            self.cost = min(self.cost, (lost, drones, milli, counts))
            return
        group = self.groups[at]
        for count, more_lost in enumerate(self.losses[at]):
            if self.steps <= 0 or (lost + more_lost, drones + count) > self.cost[:2]:
                return
            after = [lack - count * gain for lack, gain in zip(lacks, group.gains, strict=True)]
            freed = milli + count * group.gpu_milli
            self._go(at + 1, after, lost + more_lost, drones + count, freed, [*counts, count])


