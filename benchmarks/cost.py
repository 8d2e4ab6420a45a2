"""Measure processor time and memory of the running process, and hand figures to the table."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. ``wanted``: what the project has set itself, for people."""

    what: str
    value: float
    unit: str
    wanted: str = ""


def peak_mib() -> float:
    """Most memory that this process ever held, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def cpu_s() -> float:
    """Processor time of this process and of its children that have ended, seconds."""
    own, children = (
        resource.getrusage(resource.RUSAGE_SELF),
        resource.getrusage(resource.RUSAGE_CHILDREN),
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def timed(call: Callable[[], T], times: int = 3) -> tuple[T, list[float]]:
    """The last result of ``call``, and the seconds of each of ``times`` calls."""
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - begin)
    return result, seconds


def tell(*figures: Figure) -> None:
    """Hand figures to ``run.py``: the last line of stdout."""
    print(json.dumps([asdict(f) for f in figures]))
