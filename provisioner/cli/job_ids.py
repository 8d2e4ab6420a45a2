"""Job ids as overlays write them for people: ``204.0-204.99, 207.3`` or ``1-20, 25``; which class holds one?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from provisioner.model import JobClass

_ID = re.compile(r"(?:(?P<queue>[^#\s]+)#)?(?P<cluster>\d+)(?:\.(?P<proc>\d+))?")
_RANGE = re.compile(r"\s*((?:[^#\s,]+#)?\d+(?:\.\d+)?)\s*(?:-\s*((?:[^#\s,]+#)?\d+(?:\.\d+)?))?\s*")

JobId = tuple[str, int, int]
"""Queue (schedd) or empty, cluster, process; -1 where an id has no process part."""


def parse(text: str) -> JobId | None:
    """One job id; None if it is none."""
    found = _ID.fullmatch(text.strip())
    if found is None or len(text) > 300:
        return None
    return (found["queue"] or "", int(found["cluster"]), int(found["proc"]) if found["proc"] else -1)


def holds(ranges: str, job: JobId) -> bool:
    """Is ``job`` in ``ranges``? A bare cluster number matches any of its processes; a bare queue any queue."""
    return any(_within(job, low, high) for low, high in _pairs(ranges))


def _pairs(ranges: str) -> Iterator[tuple[JobId, JobId]]:
    for piece in ranges.replace("...", "").replace("\u2026", "").split(","):
        found = _RANGE.fullmatch(piece)
        if found is None:
            continue
        low = parse(found[1])
        high = parse(found[2]) if found[2] else low
        if low is not None and high is not None:
            yield low, high


def _within(job: JobId, low: JobId, high: JobId) -> bool:
    queue, cluster, proc = job
    if queue and low[0] and queue != low[0]:
        return False
    if proc < 0 and low[2] >= 0:
        return low[1] <= cluster <= high[1]
    return low[1:] <= (cluster, proc) <= high[1:]


def shortened(ranges: str) -> bool:
    """Does the list leave ids out?"""
    return "..." in ranges or "\u2026" in ranges


def classes_of(job: JobId, classes: Sequence[JobClass]) -> list[JobClass]:
    """The classes whose idle jobs include ``job``."""
    return [c for c in classes if holds(c.job_ids, job)]
