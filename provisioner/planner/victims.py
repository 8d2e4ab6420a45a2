"""Choice of the drones of one node that leave so that something else fits: the set that loses least work.

Drones of one shape differ only in what they lose, so the cheapest of each shape leave first, and
only the number per shape is to be found. The first answer spares the dearest drones that can be
spared. Branch and bound then improves it, and proves it optimal within its budget; with three
shapes on a node it nearly always does. The budget is bounded per node and per plan, because the
number of combinations grows with the power of the number of shapes. A rule that goes drone by
drone, youngest or cheapest first over a whole site, frees GPUs scattered over nodes, where no large
job can start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import sub
from typing import NamedTuple

from provisioner.model import WHOLE_GPU, DroneId
from provisioner.planner.matching import NO_RESOURCES, Resources, count_fits
from provisioner.values import frozen

MAX_SEARCH_STEPS = 1000
"""Bound on the steps of one search on one node."""
MAX_PLAN_STEPS = 3000


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


@dataclass(slots=True)
class NodeCandidates:
    """Candidates of one node by shape, the cheapest first in each and over all. Mutable, local to one plan."""

    by_shape: dict[Resources, list[VictimCandidate]] = field(default_factory=dict)
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


@dataclass(slots=True)
class SearchBudget:
    """Remaining steps of all searches of one plan. Mutable."""

    left: int = MAX_PLAN_STEPS


def cheapest_set(
    need: Resources,
    free: Resources,
    kept: Resources,
    candidates: Sequence[VictimCandidate] | NodeCandidates,
    effort: SearchBudget | None = None,
) -> tuple[VictimCandidate, ...] | None:
    """Return the candidates of one node whose leaving makes room for ``need`` at the least loss, and are fewest.

    Each GPU that is free then keeps ``kept``. None if all candidates together are not enough.
    """
    residents = (
        candidates if isinstance(candidates, NodeCandidates) else NodeCandidates.of(candidates)
    )
    if count_fits(need, free.plus(residents.held), kept) < 1:
        return None
    if count_fits(need, free, kept) >= 1:
        return ()
    effort = effort or SearchBudget()
    rules = _linear(need, kept)
    lacks = [rule.least - rule.of(free) for rule in rules]
    short = [(rule, lack) for rule, lack in enumerate(lacks) if lack > 0]
    groups = []
    for space, group in residents.by_shape.items():
        gains = [rule.of(space) for rule in rules]
        if some := tuple(group[: _most(short, gains)]):
            groups.append(_Group(space.gpu_milli, gains, some))
    counts = _spared(groups, lacks)
    if effort.left > 0:
        search = _Search(groups, lacks, counts, min(MAX_SEARCH_STEPS, effort.left))
        given = search.steps
        counts = search.best()
        effort.left -= given - search.steps
    return tuple(c for n, group in zip(counts, groups, strict=True) for c in group.drones[:n])


class _Group(NamedTuple):
    """Drones of one shape."""

    gpu_milli: int
    gains: list[int]
    """Contribution of the end of one drone to each rule."""
    drones: tuple[VictimCandidate, ...]
    """The cheapest first."""


def _most(short: Sequence[tuple[int, int]], gains: Sequence[int]) -> int | None:
    """Return how many drones of a shape are enough for all that it can give to the ``short`` rules; None if unknown."""
    if min(gains, default=0) < 0:
        return None
    return max((-(-lack // gains[rule]) for rule, lack in short if gains[rule]), default=0)


def _spared(groups: Sequence[_Group], lacks: Sequence[int]) -> list[int]:
    """Return how many drones of each shape leave if the dearest are spared first, one after the other."""
    counts = [len(group.drones) for group in groups]
    over = [-lack for lack in lacks]
    for count, group in zip(counts, groups, strict=True):
        over = [o + count * gain for o, gain in zip(over, group.gains, strict=True)]
    dearest = sorted(
        (
            (c.lost_gpu_s, n, number)
            for number, group in enumerate(groups)
            for n, c in enumerate(group.drones)
        ),
        reverse=True,
    )
    more_of = {  # rules that are met the better the more of a shape are spared: few shapes have any
        number: [rule for rule, gain in enumerate(group.gains) if gain < 0]
        for number, group in enumerate(groups)
        if min(group.gains, default=0) < 0
    }
    # shapes of which no more can be spared, and the rule that forbids it
    bound: dict[int, int] = {}
    for _, _, number in dearest:
        if number in bound:
            continue
        less = list(map(sub, over, groups[number].gains))
        least = min(less, default=0)
        if least < 0:
            bound[number] = less.index(least)
            if len(bound) == len(groups):
                break
            continue
        over = less
        counts[number] -= 1
        if number in more_of:
            bound = {other: rule for other, rule in bound.items() if rule not in more_of[number]}
    return counts


@frozen
class _Rule:
    """A linear condition: ``weights`` times the room must be ``least`` or more."""

    weights: Resources
    least: int

    def of(self, room: Resources) -> int:
        gpus, cpus, memory, disk = self.weights
        return (
            gpus * room.gpu_milli
            + cpus * room.cpus
            + memory * room.memory_mib
            + disk * room.disk_mib
        )


def _linear(need: Resources, kept: Resources) -> list[_Rule]:
    """Return the linear conditions under which :func:`matching.count_fits` fits ``need`` into some room once."""
    rules = []
    for place, amount in enumerate(need):
        unit = Resources(*(int(place == other) for other in range(len(need))))
        if amount > 0:
            rules.append(_Rule(unit, amount))
        keep = kept[place] if place else 0
        eats = amount * WHOLE_GPU - keep * need.gpu_milli
        if keep and eats > 0:
            rules.append(_Rule(Resources(-keep).plus(unit, WHOLE_GPU), eats))
    return rules


@dataclass
class _Search:
    """Branch and bound over the number of leaving drones of each shape."""

    groups: Sequence[_Group]
    lacks: list[int]
    """Shortage of each rule."""
    first: list[int]
    """A first answer: number of drones of each shape."""
    steps: int
    """Number of steps that may still be taken."""
    cost: tuple[float, int, int, list[int]] = field(init=False)
    """Loss, drones and milli-GPUs of the best answer, and the number of drones of each shape."""

    def __post_init__(self) -> None:
        self.losses = [
            list(accumulate((c.lost_gpu_s for c in each.drones), initial=0.0))
            for each in self.groups
        ]
        # Of the shapes from one on: the most that they can give to each rule, by the cheapest and
        # by the largest.
        bounds: list[tuple[int, float, int]] = [(0, float("inf"), 0)] * len(self.lacks)
        self.bounds = [bounds]
        for group in reversed(self.groups):
            count, lost_gpu_s, below = len(group.drones), group.drones[0].lost_gpu_s, bounds
            bounds = []
            for gain, (most, price, largest) in zip(group.gains, below, strict=True):
                each = lost_gpu_s / gain if gain > 0 else price
                gain = max(0, gain)
                bounds.append((most + count * gain, min(price, each), max(largest, gain)))
            self.bounds.append(bounds)
        self.bounds.reverse()
        freed = sum(n * group.gpu_milli for n, group in zip(self.first, self.groups, strict=True))
        lost = sum(sums[n] for n, sums in zip(self.first, self.losses, strict=True))
        self.cost = lost, sum(self.first), freed, self.first

    def best(self) -> list[int]:
        """Return the best answer found: the number of leaving drones of each shape."""
        self._go(0, self.lacks, 0.0, 0, 0, [])
        return self.cost[3]

    def _go(
        self, at: int, lacks: list[int], lost: float, drones: int, milli: int, counts: list[int]
    ) -> None:
        """Try all counts of the shape ``at`` and the shapes after it, while a better answer is possible."""
        self.steps -= 1
        more, fewest = -1.0, 0
        for lack, (most, price, largest) in zip(lacks, self.bounds[at], strict=True):
            if lack > 0:
                if lack > most:
                    return
                if lack * price > more:
                    more = lack * price
                if lack > fewest * largest:
                    fewest = -(-lack // largest)
        least_lost, least_drones = self.cost[0], self.cost[1]
        if more >= 0:
            # Rounding must not cost an answer that loses the same.
            beyond = lost + more - least_lost
            if beyond > 1e-9 * least_lost or (beyond >= 0 and drones + fewest > least_drones):
                return
        if at == len(self.groups):
            self.cost = min(self.cost, (lost, drones, milli, counts))
            return
        group, after = self.groups[at], lacks
        for count, more_lost in enumerate(self.losses[at]):
            if self.steps <= 0:
                return
            now_lost, now_drones = lost + more_lost, drones + count
            if now_lost > self.cost[0] or (now_lost == self.cost[0] and now_drones > self.cost[1]):
                return
            if count:
                after = list(map(sub, after, group.gains))
            freed = milli + count * group.gpu_milli
            self._go(at + 1, after, now_lost, now_drones, freed, [*counts, count])
