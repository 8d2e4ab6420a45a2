"""Durations as people write them: ``2h30m``, ``10min``, ``90 s``, ``1d``.

Imports no pydantic, so that verbs answer quickly.
"""

from __future__ import annotations

import re
from decimal import Decimal

NUMBER = r"\d+(?:\.\d+)?"
MILLISECONDS = {
    "w": 604_800_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "min": 60_000,
    "m": 60_000,
    "s": 1000,
    "ms": 1,
}
_PART = re.compile(rf"\s*({NUMBER})\s*([A-Za-zµ]+)\s*")
_MAX_DURATION_MS = 3660 * 86_400_000


def shortened(text: str) -> str:
    """Return untrusted text, shortened for one line of a message."""
    line = " ".join(text.split())
    return line if len(line) <= 40 else line[:37] + "..."


def parse_duration(value: object) -> float:
    """Return ``2h30m``, ``10min``, ``90 s`` or ``1d`` in seconds. The ValueError names the remedy."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(
            f"a duration needs a unit: write `{max(value, 0):g}s` or `{max(value, 0):g}min`"
        )
    if not isinstance(value, str):
        raise ValueError("expected a duration: write `30s`, `10min` or `2h30m`")
    parts = _PART.findall(value)
    if not parts or _PART.sub("", value):
        raise ValueError(f"`{shortened(value)}` is not a duration: write `30s`, `10min` or `2h30m`")
    for number, unit in parts:
        if unit not in MILLISECONDS:
            meant = next((known for known in MILLISECONDS if unit.lower().startswith(known)), "min")
            raise ValueError(
                f"`{unit}` is not a unit of time: write `{number}{meant}`; known are w, d, h, min, s, ms"
            )
    sizes = [MILLISECONDS[unit] for _, unit in parts]
    if sizes != sorted(set(sizes), reverse=True):
        raise ValueError(
            f"`{shortened(value)}`: write each unit once, the largest first, as in `2h30m`"
        )
    total = sum((Decimal(number) * MILLISECONDS[unit] for number, unit in parts), Decimal(0))
    if total > _MAX_DURATION_MS:
        raise ValueError(f"`{shortened(value)}` is more than ten years: is the unit right?")
    return float(total / 1000)


def format_duration(seconds: float) -> str:
    """Return a text that :func:`parse_duration` reads back as ``seconds`` (to the millisecond)."""
    milliseconds = round(seconds * 1000)
    text = ""
    for unit in ("d", "h", "min", "s", "ms"):
        count, milliseconds = divmod(milliseconds, MILLISECONDS[unit])
        text += f"{count}{unit}" if count else ""
    return text or "0s"
