"""Past of sites and pools by their own records, read once while too little has been measured.

Adapters return these values; :mod:`provisioner.controller.history` asks for them and adds them to
the estimates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import isfinite

from provisioner.model import CompletedJob
from provisioner.values import frozen

HISTORY_S = 14 * 86400.0
"""Length of the past that is read."""
MAX_HISTORY_ROWS = 20_000
"""Most jobs or servers in one answer: the newest."""


@frozen
class PastStart:
    """A drone, or a job much like one, that started."""

    type: str
    """Name of the drone type."""
    started_at: float
    queue_s: float
    """Time from its submission to its start."""


@frozen
class SiteHistoryView:
    """Past of a site, by its own records. Times are seconds since the epoch."""

    owner_steps: tuple[tuple[float, int], ...] = ()
    """Times, ascending, and GPUs in thousandths that the owner held from then on. Unknown before the first."""
    starts: tuple[PastStart, ...] = ()
    left_out: bool = False
    """There was more than :data:`MAX_HISTORY_ROWS`: only the newest is here."""


@frozen
class RunHistoryView:
    """Completed jobs of a pool, by the records of its queues."""

    runs: tuple[CompletedJob, ...] = ()
    left_out: bool = False
    """There was more, as in :class:`SiteHistoryView`, or a queue did not answer."""


def use_steps(
    holds: Iterable[tuple[float, float, int]], since: float, until: float
) -> tuple[tuple[float, int], ...]:
    """Return the sum of what jobs held from ``since`` to ``until``, as steps. ``holds``: start, end and amount of each.

    Jobs that end before they start, and amounts below 1, are left out.
    """
    changes: defaultdict[float, int] = defaultdict(int, {since: 0})
    for start, end, amount in holds:
        begin, stop = max(start, since), min(end, until)
        if isfinite(start) and isfinite(end) and start > 0 and begin < stop and amount > 0:
            changes[begin] += amount
            changes[stop] -= amount
    held, steps = 0, []
    for at in sorted(at for at in changes if at < until):
        held += changes[at]
        steps.append((at, held))
    return tuple(steps)


def known_since(ends: Sequence[float], since: float) -> float:
    """Return the time since which a history has all jobs: the end of its oldest one, as older ones are forgotten."""
    return max(since, min(ends))
