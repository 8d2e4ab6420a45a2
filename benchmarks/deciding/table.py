"""The tables of the rules, and what the checks say to them, of all results in one or more directories.

    python -m benchmarks.deciding.table [--markdown] [DIR ...]

Of a run that is in several directories the one in the last counts. Figures are means over seeds, ± their standard
deviation. What was not run is said: at the end stands how many seeds of each rule there are.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.deciding.checks import SEEDS, Case, Cases, Figure, Verdict, badput_ratio, cases_of, verdicts
from benchmarks.deciding.play import CLAIRVOYANT, OURS, RULES, TITLES
from benchmarks.deciding.rows import RESULTS, Row, merged
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
    Column("waiting while idle %", lambda r: None if r.idle_waits is None else 100 * r.idle_waits, 1),
    Column("burst: first start s", lambda r: r.burst_first_s),
    Column("80 %", lambda r: r.burst_most_s),
    Column("requests", lambda r: r.requests),
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
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def sheets(rows: Sequence[Row]) -> Iterator[Sheet]:
    """The rules in each case; the verdicts; how much of all was run."""
    cases = cases_of(rows)
    for case, rules in cases.items():
        yield _figures(case, rules)
    yield _verdicts(cases)
    yield _seeds(cases)
    broken = [(_name((r.trace, r.owner, r.days)), TITLES[r.rule], str(r.seed), why) for r in rows for why in _wrong(r)]
    if broken:
        yield Sheet("What must not be", ("case", "policy", "seed", "what"), broken)


def _figures(case: Case, rules: Cases[Case]) -> Sheet:
    some = next(iter(rules.values()))[0]
    title = f"{_name(case)} ({some.jobs:,} jobs, {some.good_h:,.0f} good GPU-h)"
    rows = [
        (TITLES[rule], str(len(of_rule)), *(_cell(of_rule, column) for column in COLUMNS))
        for rule, of_rule in rules.items()
    ]
    return Sheet(title, ("policy", "seeds", *(column.title for column in COLUMNS)), rows)


def _verdicts(cases: Cases) -> Sheet:
    rows = [_judged(_name(case), verdict) for case, rules in cases.items() for verdict in verdicts(rules)]
    rows.append(_judged("all", badput_ratio(cases)))
    return Sheet("Checks 1 to 3", ("case", "check", "figure", "ours", "at most", "the limit is", "verdict"), rows)


def _judged(case: str, verdict: Verdict) -> tuple[str, ...]:
    ours = NOTHING if verdict.measured is None else verdict.measured.told(verdict.digits)
    limit = NOTHING if verdict.limit is None else f"{verdict.limit:,.{verdict.digits}f}"
    return case, str(verdict.check or "1-3"), verdict.what, ours, limit, verdict.limit_is, str(verdict)


def _seeds(cases: Cases) -> Sheet:
    """The pairs that the tables are to have, and whatever else there is."""
    wanted: list[Case] = [(trace, owner, math.inf) for trace, owner in PAIRS]
    rows = [
        (_name(case), *(str(len(cases.get(case, {}).get(rule, ()))) for rule in RULES))
        for case in (*wanted, *(case for case in cases if case not in wanted))
    ]
    title = f"Seeds that were run, of {SEEDS} (the clairvoyant schedule has no chance in it: 1)"
    return Sheet(title, ("case", *(rule for rule in RULES)), rows)


def _wrong(row: Row) -> Iterator[str]:
    yield from row.violations
    if row.rule == OURS and row.jobs_done < row.jobs:
        yield f"{row.jobs - row.jobs_done} jobs were not done"


def _name(case: Case) -> str:
    trace, owner, days = case
    return f"{trace}, owner {owner}" + ("" if math.isinf(days) else f", first {days:g} days")


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", type=Path, default=[RESULTS], metavar="DIR", help="with results")
    parser.add_argument("--markdown", action="store_true", help="as Markdown tables")
    wanted = parser.parse_args()
    lacking = [place for place in wanted.places if not place.is_dir()]
    if lacking:
        print(f"{lacking[0]}: no such directory: `python -m benchmarks.deciding.run` makes results", file=sys.stderr)
        return 1
    show(merged(wanted.places), markdown=wanted.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
