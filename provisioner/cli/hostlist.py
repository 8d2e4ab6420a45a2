"""Many node names in few characters: ``topas-a100-[1-3,7].example.org``, as Slurm and pdsh write and read them."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"(?P<before>[^.\[\],]*?)(?P<number>[0-9]{1,15})(?P<after>[^0-9.\[\],]*(?:\.[^\[\],]*)?)")
"""The last number in the part before the first dot; names with a bracket or a comma in them are left alone."""


def folded(names: Iterable[str]) -> str:
    """``names``, each once, with those together that differ only in the last number of their first part."""
    alone: set[str] = set()
    series: dict[tuple[str, str], set[str]] = {}
    for name in names:
        numbered = _NUMBERED.fullmatch(name)
        if numbered is None:
            alone.add(name)
        else:
            series.setdefault((numbered["before"], numbered["after"]), set()).add(numbered["number"])
    parts = sorted(alone)
    for (before, after), numbers in sorted(series.items()):
        parts += [f"{before}{inner}{after}" for inner in _by_width(numbers)]
    return ",".join(parts)


def _by_width(numbers: set[str]) -> Iterable[str]:
    """Numbers with leading zeros only together with those of the same width."""
    padded = {len(n) for n in numbers if n.startswith("0") and len(n) > 1}
    for width in sorted({len(n) if len(n) in padded else 0 for n in numbers}):
        these = sorted(int(n) for n in numbers if (len(n) if len(n) in padded else 0) == width)
        inner = ",".join(_ranges(these, width))
        yield f"[{inner}]" if len(these) > 1 else inner


def _ranges(numbers: list[int], width: int) -> Iterable[str]:
    first = last = numbers[0]
    for number in [*numbers[1:], -1]:
        if number == last + 1:
            last = number
            continue
        told = [f"{n:0{width}d}" for n in (first, last)]
        yield told[0] if first == last else ("-" if last > first + 1 else ",").join(told)
        first = last = number
