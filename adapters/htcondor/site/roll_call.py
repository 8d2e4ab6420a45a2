"""Which nodes the collector has listed lately: one that has just started lists none, or few, and that is no news."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from provisioner.interfaces import UnavailableError


class RollCall:
    """``remembered_s``: how long a node that is not listed any more is missed."""

    def __init__(self, collector: str, remembered_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._collector, self._remembered_s, self._clock = collector, remembered_s, clock
        self._seen_at: dict[str, float] = {}

    def notices(self, names: Iterable[str]) -> tuple[str, ...]:
        """What to tell of the nodes that are listed now. UnavailableError if none is, though there were some a while
        ago: no
        nodes at all would be read as a site that does not tell of them."""
        now, listed = self._clock(), set(names)
        lately = {name for name, at in self._seen_at.items() if now - at <= self._remembered_s}
        if not listed and lately:
            raise UnavailableError(
                f"collector {self._collector} lists no slots (just started?), of {len(lately)} nodes lately"
            )
        self._seen_at = {name: self._seen_at[name] for name in lately} | dict.fromkeys(listed, now)
        if not listed:
            return (f"collector {self._collector} lists no slots: nothing can start here",)
        if 2 * len(listed & lately) < len(lately):
            missed = len(lately - listed)
            return (f"collector {self._collector} lists {len(listed)} nodes (just started?); {missed} are missed",)
        return ()
