"""Which drones of one node leave so that something else fits there: the set that loses least work, and no more.

Drones of one shape are interchangeable but for what they lose, so of each shape the cheapest leave first and only how
many of each is to be found: every combination is looked at, and the answer is exact. (A rule that goes drone by drone,
youngest or cheapest first over a whole site, frees GPUs scattered over nodes, where no large job can start: field
notes, B 34.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from provisioner.decide.space import Space, times
from provisioner.model import DroneId


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


def cheapest_set(
    need: Space, free: Space, kept: Space, candidates: Sequence[Candidate]
) -> tuple[Candidate, ...] | None:
    """The candidates of one node whose leaving makes room for ``need`` (with what is ``kept`` for each GPU that then is
    free) at the least loss; the fewer of two sets that lose the same. None if all of them were not enough."""
    everything = free
    for each in candidates:
        everything = everything.plus(each.space)
    if times(need, everything, kept) < 1:
        return None
    shapes: dict[Space, list[Candidate]] = {}
    for each in sorted(candidates, key=lambda c: (c.lost_gpu_s, c.rank, c.drone_id)):
        shapes.setdefault(each.space, []).append(each)
    best: tuple[tuple[float, int, int, tuple[int, ...]], tuple[int, ...]] | None = None
    for counts in product(*(range(len(group) + 1) for group in shapes.values())):
        room = free
        for count, space in zip(counts, shapes, strict=True):
            room = room.plus(space, count)
        if times(need, room, kept) < 1:
            continue
        lost = sum(c.lost_gpu_s for n, group in zip(counts, shapes.values(), strict=True) for c in group[:n])
        cost = (lost, sum(counts), room.gpu_milli, counts)
        if best is None or cost < best[0]:
            best = cost, counts
    if best is None:
        return None
    return tuple(c for n, group in zip(best[1], shapes.values(), strict=True) for c in group[:n])
