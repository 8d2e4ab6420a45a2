"""Times, ages, sizes and foreign text for people.

Times are ISO-8601 in UTC (but see :func:`local_times`), ages
short (``3d4h``). Text that comes from a site or the pool is untrusted and passes :func:`sanitize`:
no control sequence reaches a terminal.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from itertools import groupby
from math import isfinite
from urllib.parse import unquote

SHORT_TEXT = 200
"""Longest piece of foreign text inside a line; JSON keeps the whole."""


_local: ContextVar[bool] = ContextVar("local", default=False)


@contextmanager
def local_times(wanted: bool) -> Iterator[None]:
    """Have :func:`iso` write times of the local zone (TZ), with their offset, instead of UTC, if ``wanted``."""
    before = _local.set(wanted)
    try:
        yield
    finally:
        _local.reset(before)


def iso(at: float) -> str:
    """Return ``2026-01-31T12:00:00Z``; ``-`` for 0 (never) and for what is no time at all."""
    if not at:
        return "-"
    try:
        if _local.get():
            return datetime.fromtimestamp(at).astimezone().isoformat(timespec="seconds")
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "-"


def age(seconds: float) -> str:
    """Return a duration in its two largest units: ``45s``, ``12m5s``, ``3d4h``; from 100 days on in days."""
    if not isfinite(seconds):
        return "-"
    if seconds <= -1:
        return f"-{age(-seconds)}"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days >= 100:
        return f"{days}d"
    units = [(days, "d"), (hours, "h"), (minutes, "m"), (rest, "s")]
    first = next((i for i, (amount, _) in enumerate(units) if amount), 3)
    return "".join(f"{amount}{unit}" for amount, unit in units[first : first + 2] if amount) or "0s"


def duration(seconds: float) -> str:
    """Return a duration as people write it: ``45 s``, ``2 h 40 min``, ``3 d 4 h``."""
    parts = re.findall(r"(-?\d+)([dhms])", age(seconds))
    return " ".join(f"{amount} {'min' if unit == 'm' else unit}" for amount, unit in parts) or "-"


def ago(at: float, now: float) -> str:
    """Return how long ago ``at`` was: short age, ``-`` for never, ``0s`` if the clock was set back since."""
    return age(max(0.0, now - at)) if at else "-"


def number(value: float) -> str:
    """Return ``40``, ``0.5``: no trailing zeros, no exponent for what people count."""
    return (
        f"{value:.3f}".rstrip("0").rstrip(".")
        if value == value and abs(value) < 1e15
        else str(value)
    )


def seconds(value: float) -> str:
    """Return ``612 s``; from two hours on with the age: ``90000 s (1d1h)``."""
    text = f"{number(round(value, 1))} s"
    return text if abs(value) < 7200 or not isfinite(value) else f"{text} ({age(value)})"


def gpus(milli: int) -> str:
    """Return milli-GPUs as GPUs: ``1``, ``0.2``."""
    return number(milli / 1000)


def size(mib: int) -> str:
    """Return MiB as ``512 MiB`` or, from 1 GiB on, ``40 GiB``."""
    return f"{mib} MiB" if abs(mib) < 1024 else f"{number(round(mib / 1024, 1))} GiB"


def capability(tenths: int) -> str:
    """Return a CUDA compute capability: 80 is ``8.0``."""
    return f"{tenths // 10}.{tenths % 10}" if tenths else "-"


def driver(version: int) -> str:
    """Return the newest CUDA version of a driver: 12040 is ``12.4``."""
    return f"{version // 1000}.{version % 1000 // 10}" if version else "-"


def count(number_of: int, noun: str, plural: str = "") -> str:
    """Return ``1 job``, ``2 jobs``."""
    return f"{number_of} {noun if number_of == 1 else plural or noun + 's'}"


def sanitize(text: str, most: int = 0) -> str:
    """Return ``text`` on one line without control, format or undecodable characters, cut to ``most`` if given."""
    if not (text.isascii() and text.isprintable()):
        text = "".join(_visible(c) for c in text)
    return text if not most or len(text) <= most else text[: most - 3] + "..."


def _visible(char: str) -> str:
    match unicodedata.category(char):
        case "Cc" | "Zl" | "Zp":
            return " " if char in "\n\r\t\u2028\u2029\x0b\x0c" else "\ufffd"
        case "Zs":
            return " "
        case "Cf" | "Cs" | "Co" | "Cn":
            return "\ufffd"
        case _:
            return char


_EXIT_REPORT = re.compile(r"drone=\S*(?: [a-z_]+=\S*)+")


def excerpt(text: str) -> str:
    """Return a message of a site or pool for people: sanitised, cut, the exit report of a drone decoded.

    ``drone=kit-1 exit=0 reason=idle ... why=no%20claim``, alone or within a sentence, becomes
    ``idle: no claim``.
    """
    if "drone=" in text:
        text = _EXIT_REPORT.sub(_decoded, text)
    return sanitize(text, SHORT_TEXT).strip()


def _decoded(report: re.Match[str]) -> str:
    fields = dict(word.partition("=")[::2] for word in report[0].split(" "))
    if not fields.get("reason"):
        return report[0]
    return ": ".join(unquote(fields[key]) for key in ("reason", "why") if fields.get(key))


def tail(text: str, joint: str = ": ") -> str:
    """Return foreign text as the tail of a sentence, if there is any."""
    text = excerpt(text)
    return f"{joint}{text}" if text else ""


def amounts(wanted: str, offered: str) -> tuple[str, str]:
    """Return both amounts in the unit that people use, unless they would then look the same."""
    rounded = _in_gib(wanted), _in_gib(offered)
    return rounded if rounded[0] != rounded[1] else (wanted, offered)


def _in_gib(text: str) -> str:
    mib, _, unit = text.partition(" ")
    return (
        size(int(mib))
        if unit == "MiB" and mib.isascii() and mib.isdecimal() and len(mib) < 16
        else text
    )


def short(text: str) -> str:
    """Return foreign text as a name within a sentence, cut to :data:`SHORT_TEXT`; ``?`` if it is empty."""
    return sanitize(text, SHORT_TEXT).strip() or "?"


_NUMBERED = re.compile(
    r"(?P<before>[^.\[\],]*?)(?P<number>[0-9]{1,15})(?P<after>[^0-9.\[\],]*(?:\.[^\[\],]*)?)"
)
"""The last number in the part before the first dot; names with a bracket or a comma in them are left alone."""


def spans(numbers: Iterable[int], digits: int = 1) -> list[str]:
    """Return numbers in ascending order, those in a row together: ``1-3`` and ``7``."""
    runs = [
        [n for _, n in run]
        for _, run in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
    ]
    return [
        f"{run[0]:0{digits}}" + (f"-{run[-1]:0{digits}}" if len(run) > 1 else "") for run in runs
    ]


def fold_hostlist(names: Iterable[str]) -> str:
    """Return node names as Slurm and pdsh write them: ``topas-a100-[1-3,7].example.org``.

    Names that differ only in the last number of their first part stand together, if the numbers
    have as many digits.
    """
    alone: set[str] = set()
    series: dict[tuple[str, str, int], set[int]] = {}
    for name in names:
        if numbered := _NUMBERED.fullmatch(name):
            key = numbered["before"], numbered["after"], len(numbered["number"])
            series.setdefault(key, set()).add(int(numbered["number"]))
        else:
            alone.add(name)
    parts = sorted(alone)
    for (before, after, width), numbers in sorted(series.items()):
        found = spans(numbers, width)
        parts.append(
            f"{before}[{','.join(found)}]{after}"
            if len(numbers) > 1
            else f"{before}{found[0]}{after}"
        )
    return ",".join(parts)


def whole(value: float) -> float:
    """Return a number without decimals, unless it is infinite or none."""
    return float(round(value)) if isfinite(value) else value
