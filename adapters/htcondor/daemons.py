"""Queries to the daemons of a pool: its collectors, errors of the bindings, and clocks."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from adapters.htcondor import classad2, htcondor2
from adapters.htcondor.classads import SAME_CLOCK_S, Ad, number, text
from adapters.shared.printing import printable
from provisioner.interfaces import AuthError, UnavailableError

T = TypeVar("T")
SESSION_REJECTED = "Server rejected our session id"
"""The bindings' words, in an error or only in the log, where a schedd has restarted (servers 23.9 and 25.14)."""
_NOTHING_SENT = re.compile(
    f"(Failed to (connect to|fetch ads from) schedd, errmsg=)?(SECMAN:2004:)?{SESSION_REJECTED}"
)


def with_new_session(ask: Callable[[], T]) -> T:
    """Return the answer of a schedd; ask once more if it has restarted and does not know our security session.

    The bindings wait for the schedd's word on the session before they send anything of a command,
    so nothing is done twice, and they forget a session that is rejected. The log is no evidence:
    all workers of a site write to one.
    """
    try:
        return ask()
    except htcondor2.HTCondorException as error:
        if not _NOTHING_SENT.match(str(error)):
            raise
    return ask()


class Collectors:
    """The collectors of a pool, any of which holds all ads (COLLECTOR_HOST with several hosts).

    Queries go to one collector until it fails, then to the next, and updates to all of them. The
    bindings take a list as well, but ask another collector each time: one that has just started and
    knows few startds could not be distinguished from one that has known all of them for long.
    Raises AuthError or UnavailableError if all fail.
    """

    def __init__(self, addresses: str) -> None:
        self.addresses = addresses
        self.errors = BindingsErrors()
        # seconds that their clock is ahead of ours, as of the last :meth:`read_clock`
        self.skew_s = 0
        self._each = [(address, htcondor2.Collector(address)) for address in addresses.split(",")]
        # a process that was ended because a host is silent must not begin with that host again and
        # again
        random.shuffle(self._each)

    @property
    def address(self) -> str:
        return self._each[0][0]  # the collector that answered last

    def query(
        self, kind: htcondor2.AdType, constraint: str = "true", projection: Sequence[str] = ()
    ) -> list[Ad]:
        """Return the ads; an empty projection is all attributes."""
        with self.errors.translated(f"collector {self.addresses}"):
            for left in reversed(range(len(self._each))):
                try:
                    return list(
                        self._each[0][1].query(
                            kind, constraint=constraint, projection=list(projection)
                        )
                    )
                except (htcondor2.HTCondorException, OSError):
                    self._each.append(self._each.pop(0))
                    if not left:
                        raise
        raise AssertionError("a pool has a collector")

    def schedds(self) -> dict[str, Ad]:
        ads = self.query(htcondor2.AdType.Schedd)
        return {text(ad, "Name", 600): ad for ad in ads if number(ad, "LastHeardFrom") is not None}

    def read_clock(self) -> None:
        """Find out how far their clock is ahead of ours, by the ads of their schedds; there must be some."""
        self.skew_s = clock_skew(
            lambda constraint: bool(self.query(htcondor2.AdType.Schedd, constraint, ["Name"])),
            time.time,
            self.skew_s,
        )

    def to_our_clock(self, theirs: float) -> float:
        return theirs - self.skew_s

    def advertise(self, ads: Sequence[Mapping[str, Any]], command: str) -> None:
        """Advertise to all collectors, over TCP. It fails if none takes the ads."""
        taken = False
        with self.errors.translated(f"collector {self.addresses}"):
            for left, (_, collector) in zip(
                reversed(range(len(self._each))), self._each, strict=True
            ):
                try:
                    collector.advertise(list(ads), command, True)
                    taken = True
                except (htcondor2.HTCondorException, OSError):
                    if not left and not taken:
                        raise

    def invalidate(self, target: str, command: str, requirements: str) -> None:
        """Have all collectors drop the ads of type ``target`` that meet an expression."""
        query = classad2.ClassAd({"MyType": "Query", "TargetType": target})
        query["Requirements"] = classad2.ExprTree(requirements)
        self.advertise([query], command)


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
        begun = self._log.stat().st_size if self._log.exists() else 0
        try:
            yield
        except (htcondor2.HTCondorException, OSError) as error:
            words = printable(f"{error}: {self._since(begun)}", 400)
            denied = any(sign in words.lower() for sign in _LOG_DENIALS)
            raise (AuthError if denied else UnavailableError)(f"{whom}: {words}") from None

    def _since(self, begun: int) -> str:
        """Return the last lines that were written since, without their dates."""
        new = self._log.read_bytes()[begun:] if self._log.exists() else b""
        lines = [
            _LOG_DATE.sub("", line).strip() for line in new.decode(errors="replace").splitlines()
        ]
        return "; ".join(dict.fromkeys(lines[-4:])) or "no reason given"


_MAX_SKEW_S = 20 * 366 * 86400


def clock_skew(ask: Callable[[str], bool], now: Callable[[], float], guess_s: int = 0) -> int:
    """Return the seconds that the other clock is ahead of ours; 0 if they agree, or are more than 20 years apart.

    ``ask`` has the other side say whether a ClassAd expression is true there, because its ads say
    when they came, not what time it is. It is one question while the guess holds, some thirty after
    a step.
    """

    def ahead_by(seconds: int) -> bool:
        return ask(f"time() >= {int(now()) + seconds}")

    if ask(
        f"time() >= {int(now()) + guess_s - SAME_CLOCK_S} && time() <= {int(now()) + guess_s + SAME_CLOCK_S}"
    ):
        return guess_s
    low = -_MAX_SKEW_S
    high = _MAX_SKEW_S
    if not ahead_by(low) or ahead_by(high):
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if ahead_by(middle) else (low, middle)
    return 0 if abs(low) <= SAME_CLOCK_S else low
