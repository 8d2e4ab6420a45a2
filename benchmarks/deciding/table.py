"""The tables of the rules, and what the checks say to them, of all results in one or more directories.

    python -m benchmarks.deciding.table [--markdown] [DIR ...]

Of a run that is in several directories the one in the last counts. Figures are means over seeds, ± their standard
deviation. What was not run is said: at the end stands how many seeds of each rule there are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.deciding.checks import (
    SEEDS,
    Cases,
    Figure,
    Variants,
    Verdict,
    badput_ratio,
    cases_of,
    judged,
    verdicts,
)
from benchmarks.deciding.earnings import FIGURES, Comparison, CostFigure, earnings, world_changes
from benchmarks.deciding.frontier import dominance
from benchmarks.deciding.play import CLAIRVOYANT, OURS, RULES, TITLES, Case
from benchmarks.deciding.rows import RESULTS, Row, merged
from benchmarks.deciding.windows import Window
from benchmarks.deciding.worlds import PAIRS

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    value: Callable[[Row], float | None]
    digits: int = 0


COLUMNS = (
    Column("waste %", lambda r: 100 * r.waste, 1),
    Column("idle", lambda r: 100 * r.idle, 1),
    Column("boot+release", lambda r: 100 * r.boot_release, 1),
    Column("badput", lambda r: 100 * r.badput, 1),
    Column("wait mean s", lambda r: r.wait_mean_s),
    Column("p50", lambda r: r.wait_p50_s),
    Column("p95", lambda r: r.wait_p95_s),
    Column(
        "waiting while idle %", lambda r: None if r.idle_waits is None else 100 * r.idle_waits, 1
    ),
    Column("burst: first start s", lambda r: r.burst_first_s),
    Column("80 %", lambda r: r.burst_most_s),
    Column("requests", lambda r: r.requests),
    Column("hedges", lambda r: r.hedges),
    Column("withdrawn", lambda r: r.hedges_withdrawn),
    Column("decision µs", lambda r: 1e6 * r.decision_mean_s),
)


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table with a title."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> Iterator[str]:
        yield f"\n**{self.title}**\n"
        yield f"| {' | '.join(self.head)} |"
        yield "|---" * len(self.head) + "|"
        for row in self.rows:
            yield f"| {' | '.join(row)} |"

    def text(self) -> Iterator[str]:
        yield f"\n{self.title}\n"
        widths = [max(map(len, cells)) for cells in zip(self.head, *self.rows, strict=True)]
        for row in (self.head, *self.rows):
            yield "  ".join(
                cell.ljust(width) for cell, width in zip(row, widths, strict=True)
            ).rstrip()


def sheets(rows: Sequence[Row]) -> Iterator[Sheet]:
    """Yield the rules in each case, the checks, and how much was run."""
    cases = cases_of(rows)
    for case, variants in cases.items():
        yield _figures(case, variants)
    yield from filter(
        lambda sheet: sheet.rows, (_first_days(cases), _verdicts(cases), _dominance(cases))
    )
    yield from filter(lambda sheet: sheet.rows, _comparisons(cases))
    yield _seeds(cases)
    broken = [(str(row.case), row.title, str(row.seed), why) for row in rows for why in _wrong(row)]
    if broken:
        yield Sheet("What must not be", ("case", "policy", "seed", "what"), broken)


def _figures(case: Case, variants: Variants) -> Sheet:
    some = next(iter(variants.values()))[0]
    title = f"{case} ({some.jobs:,} jobs, {some.good_h:,.0f} good GPU-h)"
    rows = [
        (
            of_variant[0].title,
            str(len(of_variant)),
            *(_cell(of_variant, column) for column in COLUMNS),
        )
        for of_variant in variants.values()
    ]
    return Sheet(title, ("policy", "seeds", *(column.title for column in COLUMNS)), rows)


def _first_days(cases: Cases) -> Sheet:
    rows = []
    for case, variants in cases.items():
        for of_variant in variants.values():
            windows = [row.first_day for row in of_variant], [row.later_days for row in of_variant]
            if any(windows[0]):
                cells = [
                    _told(of(window) for window in each if window)
                    for of in WINDOW_FIGURES
                    for each in windows
                ]
                rows.append((str(case), of_variant[0].title, *cells))
    figures = ("jobs", "work lost %", "wait mean s", "p95")
    head = [f"{figure}{when}" for figure in figures for when in ("", ", later")]
    return Sheet(
        "Jobs of the first day, and of days 10 to 20 (later)", ("case", "policy", *head), rows
    )


WINDOW_FIGURES: tuple[Callable[[Window], tuple[float, int]], ...] = (
    lambda window: (window.jobs, 0),
    lambda window: (100 * window.lost, 1),
    lambda window: (window.wait_mean_s, 0),
    lambda window: (window.wait_p95_s, 0),
)
"""Figures of a window, with their digits."""


def _told(values: Iterable[tuple[float, int]]) -> str:
    known = list(values)
    return Figure.of([value for value, _ in known]).told(known[0][1]) if known else NOTHING


def _verdicts(cases: Cases) -> Sheet:
    rows = []
    ours: dict[str, str] = {}
    for case, variants in cases.items():
        for variant in judged(variants):
            ours[variant] = variants[variant][0].title
            rows += [
                _judged(str(case), ours[variant], verdict)
                for verdict in verdicts(variants, variant)
            ]
    rows += [_judged("all", title, badput_ratio(cases, variant)) for variant, title in ours.items()]
    head = ("case", "policy", "check", "figure", "measured", "at most", "the limit is", "verdict")
    return Sheet("Checks", head, rows)


def _judged(case: str, title: str, verdict: Verdict) -> tuple[str, ...]:
    measured = NOTHING if verdict.measured is None else verdict.measured.told(verdict.digits)
    limit = NOTHING if verdict.limit is None else f"{verdict.limit:,.{verdict.digits}f}"
    return case, title, verdict.check, verdict.what, measured, limit, verdict.limit_is, str(verdict)


def _dominance(cases: Cases) -> Sheet:
    rows = [
        (
            TITLES[each.rule],
            each.setting,
            f"{len(each.dominated)} of {each.cases}",
            f"{len(each.dominated_p95)} of {each.cases}",
            ", ".join(f"{price:g}" for price in each.prices) or NOTHING,
            "; ".join(each.open) or NOTHING,
            "met" if each.met else "NOT met",
        )
        for each in dominance(cases)
    ]
    head = (
        "rule",
        "world, our limits",
        "dominated",
        "also in 95 % wait",
        "by the prices",
        "not dominated",
        "10 of 12",
    )
    return Sheet(
        "Frontier: cases on which ours over the price of waiting dominates a rule", head, rows
    )


def _comparisons(cases: Cases) -> Iterator[Sheet]:
    """Yield the changes by users and victims, and the earnings of each rule: by case, then over all cases."""
    titles = [figure.title for figure in FIGURES]
    title = "What several users and other victims change, waits in seconds"
    yield Sheet(
        title,
        ("case", "policy", "seeds", *titles),
        [_compared(each) for each in world_changes(cases)],
    )
    every = list(earnings(cases))
    title = "What each rule earns: the figure without it less the figure with it, waits in seconds"
    yield Sheet(
        title, ("case", "limits", "rule", "seeds", *titles), [_compared(each) for each in every]
    )
    rows = []
    for names in dict.fromkeys(each.names[1:] for each in every):
        overall = [each.overall for each in every if each.names[1:] == names]
        known = [
            [change for change in of_figure if change is not None]
            for of_figure in zip(*overall, strict=True)
        ]
        rows.append((*names, str(len(overall)), *map(_change, known, FIGURES)))
    yield Sheet(
        "The same over the cases, waits in per cent", ("limits", "rule", "cases", *titles), rows
    )


def _compared(each: Comparison) -> tuple[str, ...]:
    return (*each.names, str(len(each.changes[0])), *map(_change, each.changes, FIGURES))


def _change(changes: Sequence[float], figure: CostFigure) -> str:
    return Figure.of(changes).told(figure.digits) if changes else NOTHING


def _seeds(cases: Cases) -> Sheet:
    """Return the number of seeds of each rule with its usual options: on the usual pairs, and on all other cases."""
    wanted = [Case(trace, owner) for trace, owner in PAIRS]
    rows = [
        (str(case), *(str(len(cases.get(case, {}).get(rule, ()))) for rule in RULES))
        for case in (*wanted, *(case for case in cases if case not in wanted))
    ]
    title = f"Seeds that were run, of {SEEDS} (the clairvoyant schedule has no chance in it: 1)"
    return Sheet(title, ("case", *RULES), rows)


def _wrong(row: Row) -> Iterator[str]:
    yield from row.violations
    if row.rule == OURS and row.jobs_done < row.jobs:
        yield f"{row.jobs - row.jobs_done} jobs were not done"


def _cell(rows: Sequence[Row], column: Column) -> str:
    told = [value for row in rows if (value := column.value(row)) is not None]
    if not told or (rows[0].rule == CLAIRVOYANT and column.title in ("requests", "decision µs")):
        return NOTHING
    return Figure.of(told).told(column.digits)


def show(rows: Sequence[Row], *, markdown: bool = False) -> None:
    """On standard output."""
    for sheet in sheets(rows):
        for line in sheet.markdown() if markdown else sheet.text():
            print(line)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "places", nargs="*", type=Path, default=[RESULTS], metavar="DIR", help="with results"
    )
    parser.add_argument("--markdown", action="store_true", help="as Markdown tables")
    wanted = parser.parse_args()
    lacking = [place for place in wanted.places if not place.is_dir()]
    if lacking:
        print(
            f"{lacking[0]}: no such directory: `python -m benchmarks.deciding.run` makes results",
            file=sys.stderr,
        )
        return 1
    show(merged(wanted.places), markdown=wanted.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
