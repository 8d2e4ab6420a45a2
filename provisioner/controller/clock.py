"""Clocks: the controller asks a :class:`Clock`, never the system."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Protocol

_TIME_ERROR = 5
"""``adjtimex``: the clock is not synchronised."""
_TIMEX_BYTES = 512
"""More than any ``struct timex`` has."""


class Clock(Protocol):
    """Time as the controller knows it."""

    def now(self) -> float:
        """Return seconds since the epoch, UTC; never goes backwards, and jumps in :meth:`settle` only."""
        ...

    def drift_s(self) -> float:
        """Return how far the host's wall clock is ahead of :meth:`now`: not 0 for a while after somebody set it."""
        ...

    def doubted(self) -> bool:
        """Return True if the host's clock disagrees with the record so much that it is not trusted yet."""
        ...

    def due_s(self) -> float:
        """Return by how much :meth:`settle` would set the clock now; 0 if there is nothing to set."""
        ...

    def settle(self) -> None:
        """Set the clock to the host's."""
        ...


def kernel_synchronised() -> bool:
    """Return whether this host's kernel says that NTP keeps its clock; False also where it cannot be asked."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (AttributeError, OSError):
        return False
    return 0 <= int(state) < _TIME_ERROR


class SteadyClock:
    """Wall time that follows the monotonic clock, so that a clock that is set does not expire every drone at once.

    What the wall clock is off is made up for slowly: timers never run more than ``SLEW`` too fast
    or too slow.

    ``not_before``: the newest time on record, and ``drift_s``: how far the wall clock was ahead of
    it then. A start goes on from there. A wall clock that is more than ``APART_S`` away from what
    these two say means that the controller did not run for so long, or that the host's clock is
    wrong, as before NTP has set it. It is doubted then: time goes on from the record, so that no
    limit passes and nothing is pruned, until somebody sets the clock, NTP keeps it
    (``synchronised``), or ``BELIEVED_AFTER_S`` have passed. A clock that was far off and has kept
    its distance is believed. A wall clock that steps so far while the controller runs is doubted in
    the same way.
    """

    SLEW = 0.1
    APART_S = 3600.0
    BELIEVED_AFTER_S = 3600.0

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        not_before: float = 0.0,
        drift_s: float = 0.0,
        synchronised: Callable[[], bool] = kernel_synchronised,
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._synchronised = synchronised
        self._mark = self._started = monotonic()  # the begin of a doubt
        self._at = wall()
        self._doubted = self._known = self._asked = False
        if not not_before:
            return
        went_on = self._at - drift_s
        if abs(went_on - not_before) <= self.APART_S:
            self._at = max(went_on, not_before)
            self._doubted = self._known = abs(drift_s) > self.APART_S
        elif abs(self._at - not_before) <= self.APART_S:
            self._at = max(self._at, not_before)
        else:
            self._at = not_before
            self._doubted = True

    def now(self) -> float:
        mark = self._monotonic()
        self._asked = True
        elapsed = mark - self._mark
        self._at = self._at + elapsed
        self._mark = mark
        drift = self._wall() - self._at
        if not self._doubted and abs(drift) > self.APART_S:
            self._doubted = True
            self._started = mark
        if not self._doubted:
            self._at += max(-self.SLEW * elapsed, min(self.SLEW * elapsed, drift))
        return self._at

    def drift_s(self) -> float:
        return self._wall() - (self._at + self._monotonic() - self._mark)

    def doubted(self) -> bool:
        self._doubted = self._doubted and abs(self.drift_s()) > self.APART_S
        return self._doubted

    def due_s(self) -> float:
        if not self.doubted() or (self.drift_s() < 0 and self._asked):
            return 0.0  # it is set back only at the start, before anybody has read the time
        waited = self._monotonic() - self._started >= self.BELIEVED_AFTER_S
        return self.drift_s() if waited or self._known or self._synchronised() else 0.0

    def settle(self) -> None:
        self._at += self.drift_s()
        self._doubted = self._known = False
