"""What Slurm's tools print: tables with a separator of ours, times, spans, sizes and GPUs.

What cannot be read raises ValueError: an answer that is not understood is not whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

_NO_TIME = ("", "N/A", "Unknown", "None", "(null)")
_NO_LIMIT = ("", "N/A", "UNLIMITED", "NOT_SET", "Partition_Limit", "INVALID", "(null)")
_SPAN = re.compile(
    r"(?:(?P<days>[0-9]{1,6})-)?(?:(?P<hours>[0-9]{1,6}):)?(?P<minutes>[0-9]{1,9}):(?P<seconds>[0-9]{1,2})"
)
_SIZE = re.compile(r"(?P<count>[0-9]{1,15}(?:\.[0-9]{1,6})?)(?P<unit>[KMGTP]?)i?B?")
_MIB = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
_GPU = re.compile(r"(?:gres[/:])?gpu(?::(?P<type>[A-Za-z0-9_.-]+))??(?::no_consume)?(?P<count>[:=][0-9]{1,9})?")


def table(text: str, separator: str, header: Sequence[str]) -> list[list[str]]:
    """Return the rows below ``header`` of a table whose every cell, the last one of a row too, ends with ``separator``.

    A cell may hold line breaks. Without rows there is still the header: nothing at all is no answer. Lines above the
    header are a greeting of the login node, and are left out.
    """
    end = f"{separator}\n"
    if not text.endswith(end):
        raise ValueError(f"it does not end as a table does{_instead(text)}")
    above, first, below = text.partition(separator.join(header) + end)
    if not first or (above and not above.endswith("\n")):
        raise ValueError(f"it does not begin with the names of what was asked for{_instead(text)}")
    rows = [row.split(separator) for row in below.split(end)[:-1]]
    if any(len(row) != len(header) for row in rows):
        raise ValueError("a row of it has not as many cells as were asked for")
    return rows


def _instead(text: str) -> str:
    """Return the beginning of an answer that is none, for a message."""
    line = next((line.strip() for line in text.split("\n") if line.strip()), "")
    return f", but with `{line[:60]}`" if line else ", but is empty"


def moment(text: str) -> float:
    """Seconds since the epoch, as ``SLURM_TIME_FORMAT=%s`` has times printed; 0 for none."""
    if text in _NO_TIME:
        return 0.0
    if not re.fullmatch(r"[0-9]{1,12}", text):
        raise ValueError(f"`{text[:40]}` is no time in seconds since the epoch")
    return float(text)


@lru_cache(maxsize=256)  # thousands of jobs have the same few limits
def span(text: str) -> float:
    """``2-00:00:00``, ``1:00:00`` or ``5:00`` in seconds; 0 for no limit."""
    if text in _NO_LIMIT:
        return 0.0
    if (found := _SPAN.fullmatch(text)) is None:
        raise ValueError(f"`{text[:40]}` is no span of time")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def mebibytes(text: str) -> int:
    """``20G``, ``512000M``, ``3584`` (MiB) rounded up; 0 for none."""
    if text in _NO_LIMIT:
        return 0
    if (found := _SIZE.fullmatch(text)) is None:
        raise ValueError(f"`{text[:40]}` is no size")
    return -int(-float(found["count"]) * _MIB[found["unit"]] // 1)


def number(text: str) -> int:
    """A count, ``1.50K`` too; 0 for no limit."""
    if text in _NO_LIMIT:
        return 0
    if (found := re.fullmatch(r"([0-9]{1,12})(?:(\.[0-9]{1,6})?([KM]))?", text)) is None:
        raise ValueError(f"`{text[:40]}` is no number")
    if not found[3]:
        return int(found[1])
    return int(float(found[1] + (found[2] or "")) * (1024 if found[3] == "K" else 1024**2))


def gpus(text: str) -> Mapping[str, int]:
    """GPUs by type ("" is any) from ``gpu:a100:4(S:0-1)``, ``gres/gpu:2``, or ``cpu=8,gres/gpu=2,gres/gpu:a100=2``.

    Where a total is told beside the types (with ``=``), only the rest of it is of any type.
    """
    found: dict[str, int] = {}
    for term in re.sub(r"\([^)]*\)", "", text).split(","):
        if each := _GPU.fullmatch(term):
            kind, count = each["type"] or "", int(each["count"][1:]) if each["count"] else 1
            found[kind] = found.get(kind, 0) + count
    if "gpu=" in text and "" in found:
        found[""] -= sum(count for kind, count in found.items() if kind)
    return {kind: count for kind, count in found.items() if count > 0}


def tres(text: str) -> Mapping[str, str]:
    """``cpu=8,mem=20G,node=1``, values as printed."""
    return {name: value for name, equals, value in (term.partition("=") for term in text.split(",")) if equals}


def word(text: str) -> str:
    """A word, "" where Slurm prints one in the place of nothing."""
    return "" if text in ("(null)", "N/A", "None", "none") else text


def words(text: str) -> tuple[str, ...]:
    return tuple(each for each in word(text).split(",") if each)
