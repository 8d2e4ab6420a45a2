"""The collectors of a pool, any of which holds all ads (COLLECTOR_HOST with several hosts)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import htcondor2


class Collectors:
    """Asks one collector until it fails, then the next, and advertises to all of them.

    The bindings take a list as well, but ask another collector each time: one that has just started and knows few
    startds could not be told from one that has known all of them for long.
    """

    def __init__(self, addresses: str) -> None:
        self._each = [(address, htcondor2.Collector(address)) for address in addresses.split(",")]
        # a process that was ended because a host is silent must not begin with that host again and again
        random.shuffle(self._each)

    @property
    def address(self) -> str:
        """The collector that answered last."""
        return self._each[0][0]

    def query(self, *args: Any, **more: Any) -> list[Any]:
        """Return the ads as ``htcondor2.Collector.query`` does. Raises what the last collector raised, if all fail."""
        for left in reversed(range(len(self._each))):
            try:
                return list(self._each[0][1].query(*args, **more))
            except (htcondor2.HTCondorException, OSError):
                self._each.append(self._each.pop(0))
                if not left:
                    raise
        raise AssertionError("a pool has a collector")

    def advertise(self, ads: Sequence[Mapping[str, Any]], command: str, use_tcp: bool) -> None:
        """Advertise to all collectors. Raises what the last one raised, if none takes the ads."""
        taken = False
        for left, (_, collector) in zip(reversed(range(len(self._each))), self._each, strict=True):
            try:
                collector.advertise(list(ads), command, use_tcp)
                taken = True
            except (htcondor2.HTCondorException, OSError):
                if not left and not taken:
                    raise
