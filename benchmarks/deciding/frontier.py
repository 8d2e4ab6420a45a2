"""The frontier of our rule over the price of waiting, beside the other rules: waste against mean wait.

    python -m benchmarks.deciding.frontier [--plot FILE.svg] [DIR ...]

Runs with several prices are made by ``benchmarks.deciding.run --waiting-cost 0.1 0.3 1 3 10``. A point of the frontier
*dominates* another rule on a case if neither its waste nor its mean wait is higher, both as means over the seeds that
were run. The picture has a panel for each case: our points are joined in the order of their price.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Self

from benchmarks.deciding.checks import Cases, Variants, cases_of
from benchmarks.deciding.play import CLAIRVOYANT, OURS, REFERENCE, TITLES
from benchmarks.deciding.rows import RESULTS, Row, merged

ENOUGH = 10 / 12
"""Part of the cases on which the frontier has to dominate a rule."""
COLUMNS = 3
MARKERS = "svD^P*X"


@dataclass(frozen=True, slots=True)
class Point:
    """Means over the seeds of one variant."""

    waiting_cost: float
    waste: float
    """Waste in per cent."""
    wait_mean_s: float
    wait_p95_s: float

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Self:
        means = (fmean(of(row) for row in rows) for of in (_waste_of, _mean_wait_of, _p95_wait_of))
        return cls(rows[0].waiting_cost, *means)

    def dominates(self, other: Point, *, p95: bool = False) -> bool:
        """Return True if neither waste nor mean wait is higher, nor, if asked, the 95 % wait."""
        as_good = self.waste <= other.waste and self.wait_mean_s <= other.wait_mean_s
        return as_good and (not p95 or self.wait_p95_s <= other.wait_p95_s)


def _waste_of(row: Row) -> float:
    return 100 * row.waste


def _mean_wait_of(row: Row) -> float:
    return row.wait_mean_s


def _p95_wait_of(row: Row) -> float:
    return row.wait_p95_s


def frontiers(case: Variants) -> dict[str, list[Point]]:
    """Return our points by setting of the limits, in the order of their price."""
    found: dict[str, list[Point]] = {}
    for rows in case.values():
        if rows[0].rule == OURS and not rows[0].without:
            found.setdefault(rows[0].limits, []).append(Point.of(rows))
    return {
        limits: sorted(points, key=lambda point: point.waiting_cost)
        for limits, points in found.items()
    }


def others(case: Variants) -> dict[str, Point]:
    """Return the points of the other rules that were replayed."""
    return {rule: Point.of(rows) for rule, rows in case.items() if rule in REFERENCE}


@dataclass(frozen=True, slots=True)
class Dominance:
    """Cases on which our frontier dominates one rule."""

    setting: str
    """World and limits of our rule: all cases of one world count together."""
    rule: str
    cases: int
    """Number of cases with both of them."""
    dominated: tuple[str, ...]
    dominated_p95: tuple[str, ...]
    """Cases on which some point also has no higher 95 % wait."""
    prices: tuple[float, ...]
    """Prices that dominate on any case."""
    open: tuple[str, ...]
    """Cases on which no point does."""

    @property
    def met(self) -> bool:
        return len(self.dominated) >= ENOUGH * self.cases


def dominance(cases: Cases) -> Iterator[Dominance]:
    """Yield the result for each world, each setting of our limits and each other rule."""
    settings = dict.fromkeys(
        (case.world, limits) for case in cases for limits in frontiers(cases[case])
    )
    for world, limits in settings:
        for rule in REFERENCE:
            both = {
                str(case): (points, theirs)
                for case, variants in cases.items()
                if case.world == world
                and (points := frontiers(variants).get(limits))
                and (theirs := others(variants).get(rule))
            }
            if not both:
                continue
            better = {
                name: [p for p in points if p.dominates(theirs)]
                for name, (points, theirs) in both.items()
            }
            p95 = [
                name
                for name, (points, theirs) in both.items()
                if any(p.dominates(theirs, p95=True) for p in points)
            ]
            yield Dominance(
                ", ".join((*world, f"{limits} limits")),
                rule,
                len(both),
                tuple(name for name, points in better.items() if points),
                tuple(p95),
                tuple(
                    sorted({point.waiting_cost for points in better.values() for point in points})
                ),
                tuple(name for name, points in better.items() if not points),
            )


def draw(cases: Cases, path: Path) -> None:
    """Draw a panel for each case that has a point of ours."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "deciding-frontier"
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator, NullFormatter

    panels = {case: variants for case, variants in cases.items() if frontiers(variants)}
    rows, columns = math.ceil(len(panels) / COLUMNS), min(COLUMNS, len(panels))
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(4.2 * columns, 3.4 * rows), squeeze=False
    )
    shown = {}
    for axes, (case, variants) in zip(grid.flat, panels.items(), strict=False):
        for style, (limits, points) in zip(("-", "--"), frontiers(variants).items(), strict=False):
            label = f"ours, {limits} limits, by price of waiting"
            (line,) = axes.plot(
                [p.wait_mean_s for p in points],
                [p.waste for p in points],
                style,
                marker="o",
                color="C0",
                ms=4,
            )
            shown.setdefault(label, line)
            for point in points:
                at = point.wait_mean_s, point.waste
                axes.annotate(
                    f"{point.waiting_cost:g}", at, (4, 4), textcoords="offset points", fontsize=7
                )
        theirs = others(variants) | {
            rule: Point.of(variants[rule]) for rule in (CLAIRVOYANT,) if rule in variants
        }
        for number, (rule, marker) in enumerate(
            zip((*REFERENCE, CLAIRVOYANT), MARKERS, strict=True), 1
        ):
            if point := theirs.get(rule):
                (line,) = axes.plot([point.wait_mean_s], [point.waste], marker, color=f"C{number}")
                shown.setdefault(TITLES[rule], line)
        axes.set_yscale("log")
        axes.set_title(str(case), fontsize=9)
        axes.set_xlabel("mean wait, s", fontsize=8)
        axes.set_ylabel("waste, % of good GPU-hours", fontsize=8)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(labelsize=7, which="both")
        axes.grid(True, which="both", alpha=0.3)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    figure.tight_layout()
    figure.legend(
        shown.values(),
        shown.keys(),
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        ncols=2,
        fontsize=8,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    pyplot.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "places",
        nargs="*",
        type=Path,
        default=[RESULTS],
        metavar="DIR",
        help="folders with results",
    )
    parser.add_argument(
        "--plot",
        type=Path,
        default=RESULTS / "frontier.svg",
        metavar="FILE",
        help="SVG file to write",
    )
    wanted = parser.parse_args()
    cases = cases_of(merged(wanted.places))
    if not any(map(frontiers, cases.values())):
        print(
            "no run of our rule: `python -m benchmarks.deciding.run` makes results", file=sys.stderr
        )
        return 1
    draw(cases, wanted.plot)
    print(wanted.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
