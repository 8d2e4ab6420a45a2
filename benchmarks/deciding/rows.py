"""The figures of a run, kept in a file of its own: a series that was broken off goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from benchmarks.deciding.play import OURS, Played, Run
from benchmarks.deciding.windows import Window
from benchmarks.deciding.worlds import ROOT

RESULTS = ROOT / "var" / "deciding"
"""Not under `build`: `make clean` would throw hours away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Run):
    """One run with its figures. Waste and its parts are shares of the good GPU-hours."""

    span_days: float
    """Until the last job was done."""
    jobs: int
    jobs_done: int
    good_h: float
    waste: float
    idle: float
    boot_release: float
    badput: float
    wait_mean_s: float
    wait_p50_s: float
    wait_p95_s: float
    burst_first_s: float | None
    burst_most_s: float | None
    requests: int
    preempted: int
    decision_mean_s: float
    decision_worst_s: float
    violations: tuple[str, ...]

    # Results of earlier runs lack the following, and the options of a run.

    idle_waits: float | None = None
    """None of the clairvoyant schedule as well."""
    first_day: Window | None = None
    later_days: Window | None = None
    hedges: int | None = None
    hedges_withdrawn: int | None = None
    """Second drones for jobs of a delayed one, and the pairs of which one was cancelled; only our rule has them."""

    @classmethod
    def of(cls, run: Run, played: Played) -> Self:
        result = played.result
        hours, waits = result.gpu_hours, result.waits
        return cls(
            **asdict(run),
            span_days=result.days,
            jobs=result.jobs,
            jobs_done=result.jobs_done,
            good_h=hours.good,
            waste=hours.waste,
            idle=hours.idle / hours.good,
            boot_release=(hours.boot + hours.release) / hours.good,
            badput=hours.badput / hours.good,
            wait_mean_s=waits.mean_s,
            wait_p50_s=waits.p50_s,
            wait_p95_s=waits.p95_s,
            burst_first_s=played.burst_first_s,
            burst_most_s=played.burst_most_s,
            requests=result.requests,
            preempted=result.preempted,
            decision_mean_s=played.decision_mean_s,
            decision_worst_s=played.decision_worst_s,
            violations=result.violations,
            idle_waits=played.idle_waits,
            first_day=played.first_day,
            later_days=played.later_days,
            hedges=result.hedges if run.rule == OURS else None,
            hedges_withdrawn=result.hedges_withdrawn if run.rule == OURS else None,
        )

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the row of a results file, which may be of an earlier run."""
        fields = json.loads(text)
        windows = {
            name: Window(**fields[name]) for name in ("first_day", "later_days") if fields.get(name)
        }
        return cls(**(fields | windows | {"violations": tuple(fields["violations"])}))

    @property
    def gpus_in_use(self) -> float:
        """On average, by good work."""
        return self.good_h / (24.0 * self.span_days) if self.span_days else 0.0


def file_of(place: Path, run: Run) -> Path:
    return place / f"{run}.json"


def write(place: Path, run: Run, played: Played) -> None:
    """Whole, or not at all."""
    place.mkdir(parents=True, exist_ok=True)
    path = file_of(place, run)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(Row.of(run, played)), indent=1) + "\n")
    part.replace(path)


def _named(place: Path) -> Iterator[tuple[str, Row]]:
    for path in sorted(place.glob("*.json")):
        yield path.name, Row.read(path.read_text())


def merged(places: Sequence[Path]) -> list[Row]:
    """Of several directories; of a run that is in more than one of them, the row in the last."""
    return list({file_name: row for place in places for file_name, row in _named(place)}.values())
