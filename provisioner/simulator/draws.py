"""Chance that does not depend on the order of events: every draw is keyed by what it is for.

A drone's boot time is a function of the seed and of the drone's id, not of how many draws came before. So a change in
one corner of a scenario does not reshuffle all the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random


def keyed(seed: int, *key: object) -> Random:
    """A generator of its own for ``key``: the same in every process and every run."""
    return Random("/".join(map(str, (seed, *key))))


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always ``value_s``."""

    value_s: float

    def draw(self, rng: Random) -> float:
        return self.value_s

    @property
    def mostly_below_s(self) -> float:
        return self.value_s


@dataclass(frozen=True, slots=True)
class Uniform:
    """Anything from ``low_s`` to ``high_s``."""

    low_s: float
    high_s: float

    def draw(self, rng: Random) -> float:
        return rng.uniform(self.low_s, self.high_s)

    @property
    def mostly_below_s(self) -> float:
        return self.high_s


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Half of the draws below ``median_s``; ``sigma`` is that of the logarithm, ``most_s`` cuts the tail."""

    median_s: float
    sigma: float
    most_s: float = math.inf

    def draw(self, rng: Random) -> float:
        return min(self.most_s, rng.lognormvariate(math.log(self.median_s), self.sigma))

    @property
    def mostly_below_s(self) -> float:
        """Of 1000 draws 999 are."""
        return min(self.most_s, self.median_s * math.exp(3.1 * self.sigma))


Draw = Fixed | Uniform | LogNormal
"""A distribution of durations in seconds."""


def drawn(draw: Draw, seed: int, *key: object) -> float:
    """What ``draw`` gives for ``key``; where it always gives the same, no generator is made for it."""
    return draw.value_s if isinstance(draw, Fixed) else draw.draw(keyed(seed, *key))


AT_ONCE = Fixed(0.0)
