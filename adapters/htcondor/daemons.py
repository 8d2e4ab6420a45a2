"""Queries to the daemons of a pool: its collectors, errors of the bindings, and clocks."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import htcondor2

from adapters.htcondor.classads import SAME_CLOCK_S
from adapters.shared.printing import printable
from provisioner.interfaces import AuthError, UnavailableError


class Collectors:
    """The collectors of a pool, any of which holds all ads (COLLECTOR_HOST with several hosts).

    Queries go to one collector until it fails, then to the next, and updates to all of them. The bindings take a list
    as well, but ask another collector each time: one that has just started and knows few startds could not be
    distinguished from one that has known all of them for long.
    """

    def __init__(self, addresses: str) -> None:
        self._each = [(address, htcondor2.Collector(address)) for address in addresses.split(",")]
        # a process that was ended because a host is silent must not begin with that host again and again
        random.shuffle(self._each)

    @property
    def address(self) -> str:
        """Return the collector that answered last."""
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


_LOG_DENIALS = ("authenticat", "denied", "not authorized", "no token")
_LOG_DATE = re.compile(r"^[\d/]+ [\d:.]+ ")


class BindingsErrors:
    """Errors of the bindings. Their exceptions do not distinguish credentials from silence, but their log does."""

    def __init__(self) -> None:
        htcondor2.enable_log()
        self._log = Path(htcondor2.param["TOOL_LOG"])

    @contextmanager
    def translated(self, whom: str) -> Iterator[None]:
        """Raise what went wrong with ``whom`` as AuthError or UnavailableError."""
        begun = self._size()
        try:
            yield
        except (htcondor2.HTCondorException, OSError) as error:
            words = printable(f"{error}: {self._since(begun)}", 400)
            if any(sign in words.lower() for sign in _LOG_DENIALS):
                raise AuthError(f"{whom}: {words}") from None
            raise UnavailableError(f"{whom}: {words}") from None

    def _size(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def _since(self, begun: int) -> str:
        """Return the last lines that were written since, without their dates."""
        if self._size() <= begun:
            return "no reason given"
        with self._log.open(errors="replace") as log:
            log.seek(begun)
            lines = [_LOG_DATE.sub("", line).strip() for line in log.read(20_000).splitlines()]
        return "; ".join(dict.fromkeys(lines[-4:]))


_MAX_SKEW_S = 20 * 366 * 86400


def clock_skew(ask: Callable[[str], bool], now: Callable[[], float], guess_s: int = 0) -> int:
    """Return the seconds that the other clock is ahead of ours; 0 if they agree.

    ``ask`` has the other side say whether a ClassAd expression is true there, because its ads say when they came, not
    what time it is. It is one question while the guess holds, some thirty after a step. For a clock that is more than
    twenty years off the answer is 0.
    """

    def ahead_by(seconds: int) -> bool:
        return ask(f"time() >= {int(now()) + seconds}")

    if ask(f"time() >= {int(now()) + guess_s - SAME_CLOCK_S} && time() <= {int(now()) + guess_s + SAME_CLOCK_S}"):
        return guess_s
    low, high = -_MAX_SKEW_S, _MAX_SKEW_S
    if not ahead_by(low) or ahead_by(high):
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if ahead_by(middle) else (low, middle)
    return 0 if abs(low) <= SAME_CLOCK_S else low
