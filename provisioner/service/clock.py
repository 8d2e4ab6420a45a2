"""Time as a seam: the service asks a :class:`Clock`, never the system."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """What the service knows of time."""

    def now(self) -> float:
        """Seconds since the epoch, UTC; never goes backwards, never jumps."""
        ...

    def drift_s(self) -> float:
        """How far the host's wall clock is ahead of :meth:`now`: not 0 for a while after somebody set it."""
        ...


class SteadyClock:
    """Wall time that follows the monotonic clock, so that a clock that is set does not expire every drone at once.

    What the wall clock is off is made up for slowly: timers never run more than ``SLEW`` too fast or too slow.
    ``not_before``: the newest time on record, for a start with a clock that was set back meanwhile.
    """

    SLEW = 0.1

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        not_before: float = 0.0,
    ) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._at = max(wall(), not_before)
        self._mark = monotonic()

    def now(self) -> float:
        """Seconds since the epoch; call it often: each call makes up for a little of the drift."""
        mark = self._monotonic()
        elapsed = mark - self._mark
        self._at, self._mark = self._at + elapsed, mark
        drift = self._wall() - self._at
        self._at += max(-self.SLEW * elapsed, min(self.SLEW * elapsed, drift))
        return self._at

    def drift_s(self) -> float:
        """Wall clock minus :meth:`now`."""
        return self._wall() - (self._at + self._monotonic() - self._mark)
