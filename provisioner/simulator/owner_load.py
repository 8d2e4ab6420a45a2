"""The GPUs that an owner wants over time, as read from a trace."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from provisioner.simulator.traces import TraceError, text_lines

DAY_S = 86400.0
_SERIES = ("vc", "t_s", "total_gpus", "busy_gpus", "pending_gpus")


@dataclass(frozen=True, slots=True)
class Load:
    """How many GPUs an owner wants: steps ``(at_s, GPUs)``, the first at 0, and how many there are."""

    name: str
    gpus: int
    steps: tuple[tuple[float, int], ...]

    @property
    def span_s(self) -> float:
        return self.steps[-1][0]

    def scaled(self, gpus: int) -> Load:
        """The same for an owner of a cluster of ``gpus`` GPUs, who never wants more than all of it."""
        most = max(1, self.gpus)
        return Load(self.name, gpus, tuple((at_s, min(gpus, round(g * gpus / most))) for at_s, g in self.steps))

    def repeated(self, span_s: float) -> Load:
        """The same again and again, in whole days, until ``span_s`` is covered."""
        period_s = max(1, math.ceil(self.span_s / DAY_S)) * DAY_S
        times = max(1, math.ceil(span_s / period_s))
        steps = tuple((n * period_s + at_s, gpus) for n in range(times) for at_s, gpus in self.steps)
        return Load(self.name, self.gpus, steps)


def read_loads(path: Path, *, pending: bool = True) -> Mapping[str, Load]:
    """The series of a trace in the common form (CSV, may be gzipped): ``vc, t_s, total_gpus, busy_gpus, pending_gpus``,
    a row at each change. ``pending``: GPUs that the owner waits for count as well. Raises TraceError."""
    rows: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
    total: dict[str, int] = {}
    lines = csv.DictReader(text_lines(path))
    lacking = [name for name in _SERIES if name not in (lines.fieldnames or ())]
    if lacking:
        raise TraceError(f"{path}:1: there is no column `{lacking[0]}`: an owner's load has {', '.join(_SERIES)}")
    for row in lines:
        try:
            at_s, (there, busy, wanted) = float(row["t_s"]), (int(float(row[name])) for name in _SERIES[2:])
        except (TypeError, ValueError, OverflowError):
            raise TraceError(
                f"{path}:{lines.line_num}: not a row of {', '.join(_SERIES)}: all but `vc` are numbers"
            ) from None
        rows[row["vc"]].append((at_s, busy + wanted if pending else busy))
        total[row["vc"]] = max(total.get(row["vc"], 0), there)
    return {name: Load(name, total[name], tuple(steps)) for name, steps in rows.items()}
