"""How far the collector's clock is from ours, found by asking it: its ads say when they came, not what time it is."""

from __future__ import annotations

from collections.abc import Callable

SAME_S = 2
"""Clocks closer than this count as one: times in ads are whole seconds."""
_FURTHEST_S = 20 * 366 * 86400


def skew(ask: Callable[[str], bool], now: Callable[[], float], guess_s: int = 0) -> int:
    """Seconds that the other clock is ahead of ours, to the second; 0 if they agree.

    ``ask`` has the other side say whether a ClassAd expression is true there. One question while the guess holds, some
    thirty after a step. A clock that is more than twenty years off is beyond us: 0.
    """

    def ahead_by(seconds: int) -> bool:
        return ask(f"time() >= {int(now()) + seconds}")

    if ask(f"time() >= {int(now()) + guess_s - SAME_S} && time() <= {int(now()) + guess_s + SAME_S}"):
        return guess_s
    low, high = -_FURTHEST_S, _FURTHEST_S
    if not ahead_by(low) or ahead_by(high):
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if ahead_by(middle) else (low, middle)
    return 0 if abs(low) <= SAME_S else low
