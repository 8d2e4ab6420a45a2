"""Numbers, durations and foreign names as a report writes them."""

from __future__ import annotations

from itertools import pairwise
from math import isfinite

from provisioner.formatting import sanitize

NOTHING = "-"
MOST_NAME = 60
"""Longest foreign name in a table; in plots it is half of that."""


def amount(value: float | None) -> str:
    """Three significant digits, from a thousand on all before the point: ``1,234``, ``12.3``, ``0.00123``."""
    if value is None or value != value:
        return NOTHING
    if not isfinite(value):
        return "∞" if value > 0 else "-∞"
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value else "0"


def change(value: float) -> str:
    """With its sign."""
    return f"+{amount(value)}" if value > 0 else amount(value)


def duration(seconds: float, _position: object = None) -> str:
    """In its largest unit, as on an axis: ``30 s``, ``10 min``, ``2 h``, ``3 d``."""
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds else "0"


def span(seconds: float) -> str:
    """Return a duration in its two largest units: ``45 s``, ``1 min 30 s``, ``2 h 40 min``, ``3 d 4 h``."""
    if not isfinite(seconds):
        return amount(seconds)
    if seconds < 59.5:
        return f"{amount(seconds)} s"
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    for (large_s, large), (small_s, small) in pairwise(units):
        rounded = round(seconds / small_s) * small_s
        if rounded >= large_s:
            whole, rest = divmod(rounded, large_s)
            more = f" {rest // small_s} {small}" if rest else ""
            return f"{whole} {large}{more}"
    raise AssertionError("unreachable")


def name(text: str, most: int = MOST_NAME) -> str:
    """A policy, class, site or trace by its foreign name: one line, nothing invisible, not too long."""
    return sanitize(text, most).strip() or "(no name)"
