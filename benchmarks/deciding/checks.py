"""Checks of a set of results: each compares our rule with a limit or with other rules, case by case.

- waiting while idle: at most 5 % of all waiting passes while a GPU that fits is free.
- waits: mean and 95 % wait at most the Karpenter-like rule's, and at most 1.2 and 1.1 times always-on's plus the
  start-up time of the quickest site.
- waste: at most the Karpenter-like rule's, and at most 5 %; with fewer than ten GPUs in use 10 %, with fewer than three
  1.5 times the clairvoyant schedule's.
- work lost: at most the Karpenter-like rule's in each case, and half of it in the median over cases.
- first day: work lost and waits of the jobs of the first 24 hours at most 1.2 times those of days 10 to 20.
- waste to COBalD: at most a fifth of the waste of COBalD's better setting.
- overhead: idle, boot and release at most 1.5 times the clairvoyant schedule's.

:mod:`benchmarks.deciding.frontier` has one more: over the price of waiting our rule dominates each other rule on most
cases.

A figure is the mean over the seeds that were run, beside its standard deviation; a limit is a mean as well. Our rule is
judged with the usual price of waiting, for each setting of its limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median, stdev
from typing import Self

from benchmarks.deciding.idle_waits import START_S
from benchmarks.deciding.play import CLAIRVOYANT, OURS, TITLES, Case
from benchmarks.deciding.rows import Row
from benchmarks.deciding.windows import Window

MANY_GPUS, FEW_GPUS, WASTE_MANY, WASTE_FEW = 10.0, 3.0, 0.05, 0.10
WASTE_TO_CLAIRVOYANT = 1.5
BELOW_COBALD = 5.0
OVERHEAD, BADPUT = 1.5, 0.5
IDLE_WAITS = 0.05
P95_WAIT, MEAN_WAIT = 1.1, 1.2
FIRST_DAY_TO_LATER = 1.2
SEEDS = 10
COBALD = ("cobald-pools", "cobald-low-waste")
KARPENTER, ALWAYS_ON = "karpenter", "always-on"

Value = Callable[[Row], float | None]
Variants = Mapping[str, Sequence[Row]]
"""Rows of one case by :attr:`Run.variant`."""
Cases = Mapping[Case, Variants]


def cases_of(rows: Sequence[Row]) -> Cases:
    """Return the rows by case and variant, in the order of the tables, then of the seeds."""
    found: dict[Case, dict[str, list[Row]]] = {}
    for row in sorted(rows, key=lambda r: (r.case, r.order, r.seed)):
        found.setdefault(row.case, {}).setdefault(row.variant, []).append(row)
    return found


@dataclass(frozen=True, slots=True)
class Figure:
    """Over seeds."""

    mean: float
    sd: float | None
    """Of one seed there is none."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        return cls(fmean(values), stdev(values) if len(values) > 1 else None)

    def told(self, digits: int) -> str:
        spread = "" if self.sd is None else f" ± {self.sd:,.{digits}f}"
        return f"{round(self.mean, digits) + 0.0:,.{digits}f}{spread}"  # no -0.0


def figure_of(rows: Sequence[Row], value: Value) -> Figure | None:
    """Return mean and deviation over the rows in which the figure is known; None if it is known in none."""
    known = [found for row in rows if (found := value(row)) is not None]
    return Figure.of(known) if known else None


class Check(StrEnum):
    """Names of the checks, as in the tables."""

    IDLE_WAITS = "waiting while idle"
    WAITS = "waits"
    WASTE = "waste"
    WORK_LOST = "work lost"
    FIRST_DAY = "first day"
    TO_COBALD = "waste to COBalD"
    OVERHEAD = "overhead"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one check says to one case; without a limit, why it says nothing."""

    check: Check
    what: str
    limit_is: str
    limit: float | None = None
    measured: Figure | None = None
    digits: int = 1

    @property
    def met(self) -> bool | None:
        if self.limit is None or self.measured is None:
            return None
        return self.measured.mean <= self.limit

    def __str__(self) -> str:
        if self.limit is None or self.measured is None:
            return "not judged"
        sd = self.measured.sd or 0.0
        close = (
            ", by less than the spread of the seeds"
            if abs(self.measured.mean - self.limit) < sd
            else ""
        )
        if self.met:
            return f"met{close}"
        times = f": {self.measured.mean / self.limit:.2f} times the limit" if self.limit else ""
        return f"NOT met{close}{times}"


def judged(case: Variants) -> list[str]:
    """Return the variants of our rule that are judged: none with a rule switched off or an unusual price."""
    return [variant for variant, rows in case.items() if rows[0].rule == OURS and rows[0].usual]


def verdicts(case: Variants, variant: str) -> Iterator[Verdict]:
    """Yield the verdicts on a variant of our rule in one case."""
    ours = case[variant]
    yield _against(
        ours,
        Check.IDLE_WAITS,
        "waiting while idle, %",
        f"{100 * IDLE_WAITS:g} % of all waiting",
        5.0,
        _idle_waits_of,
    )
    for what, factor, value in (
        ("mean wait, s", MEAN_WAIT, _mean_wait_of),
        ("95 % wait, s", P95_WAIT, _p95_wait_of),
    ):
        yield _to_rule(case, ours, Check.WAITS, what, value, KARPENTER, digits=0)
        yield _to_rule(
            case, ours, Check.WAITS, what, value, ALWAYS_ON, factor, min(START_S.values()), digits=0
        )
    yield _to_rule(case, ours, Check.WASTE, "waste, %", _waste_of, KARPENTER)
    yield _waste(case, ours)
    yield _to_rule(case, ours, Check.WORK_LOST, "work lost, %", _badput_of, KARPENTER)
    for what, digits, part in (
        ("work lost, %", 1, lambda window: 100 * window.lost),
        ("mean wait, s", 0, lambda window: window.wait_mean_s),
        ("95 % wait, s", 0, lambda window: window.wait_p95_s),
    ):
        yield _first_day(ours, what, part, digits)
    yield _to_cobald(case, ours)
    what = "idle + boot + release, %"
    yield _to_rule(
        case,
        ours,
        Check.OVERHEAD,
        what,
        lambda r: 100 * (r.idle + r.boot_release),
        CLAIRVOYANT,
        OVERHEAD,
        digits=2,
    )


def _against(
    ours: Sequence[Row],
    check: Check,
    what: str,
    limit_is: str,
    limit: float,
    value: Value,
    digits: int = 1,
) -> Verdict:
    return Verdict(check, what, limit_is, limit, figure_of(ours, value), digits)


def _to_rule(
    case: Variants,
    ours: Sequence[Row],
    check: Check,
    what: str,
    value: Value,
    rule: str,
    times: float = 1.0,
    more: float = 0.0,
    digits: int = 1,
) -> Verdict:
    """Compare with ``times`` another rule's figure plus ``more``."""
    measured, theirs = figure_of(ours, value), figure_of(case.get(rule, ()), value)
    if theirs is None:
        return Verdict(check, what, f"{TITLES[rule]}: not run", None, measured, digits)
    limit_is = f"{times:g} times {TITLES[rule]}" if times != 1.0 else TITLES[rule]
    limit_is += f" + {more:.0f}" if more else ""
    return Verdict(check, what, limit_is, times * theirs.mean + more, measured, digits)


def _waste(case: Variants, ours: Sequence[Row]) -> Verdict:
    gpus = fmean(row.gpus_in_use for row in ours)
    if gpus < FEW_GPUS:
        return _to_rule(
            case, ours, Check.WASTE, "waste, %", _waste_of, CLAIRVOYANT, WASTE_TO_CLAIRVOYANT
        )
    most = WASTE_MANY if gpus >= MANY_GPUS else WASTE_FEW
    return _against(
        ours, Check.WASTE, "waste, %", f"{gpus:.1f} GPUs are in use", 100 * most, _waste_of
    )


def _to_cobald(case: Variants, ours: Sequence[Row]) -> Verdict:
    what = "waste, %"
    settings = {
        rule: found for rule in COBALD if (found := figure_of(case.get(rule, ()), _waste_of))
    }
    if not settings:
        return Verdict(
            Check.TO_COBALD, what, "COBalD was not run", measured=figure_of(ours, _waste_of)
        )
    best = min(settings, key=lambda rule: settings[rule].mean)
    left_out = [rule for rule in COBALD if rule not in settings]
    but = f"; the other setting was not run ({TITLES[left_out[0]]})" if left_out else ""
    limit = settings[best].mean / BELOW_COBALD
    return _against(
        ours, Check.TO_COBALD, what, f"a fifth of {TITLES[best]}{but}", limit, _waste_of
    )


def _first_day(
    ours: Sequence[Row], what: str, part: Callable[[Window], float], digits: int
) -> Verdict:
    """Compare the first day with days 10 to 20, of the rows that have both."""
    both = [(row.first_day, row.later_days) for row in ours if row.first_day and row.later_days]
    if not both:
        return Verdict(
            Check.FIRST_DAY, what, "days 10 to 20 were not played, or had no job", digits=digits
        )
    limit = FIRST_DAY_TO_LATER * fmean(part(later) for _, later in both)
    measured = Figure.of([part(first) for first, _ in both])
    return Verdict(
        Check.FIRST_DAY,
        what,
        f"{FIRST_DAY_TO_LATER:g} times that of days 10 to 20",
        limit,
        measured,
        digits,
    )


def badput_ratio(cases: Cases, variant: str) -> Verdict:
    """Compare work lost with the Karpenter-like rule's, in the median over cases."""
    what = "ours to the Karpenter-like rule's, median"
    pairs = [
        (ours.mean, theirs.mean)
        for rules in cases.values()
        if (ours := figure_of(rules.get(variant, ()), _badput_of))
        and (theirs := figure_of(rules.get(KARPENTER, ()), _badput_of))
    ]
    ratios = [ours / theirs for ours, theirs in pairs if theirs]
    if not ratios:
        return Verdict(Check.WORK_LOST, what, "no case with both of them")
    cases_are = f"{len(ratios)} case{'s' * (len(ratios) > 1)}"
    return Verdict(Check.WORK_LOST, what, cases_are, BADPUT, Figure(median(ratios), None), digits=2)


def _waste_of(row: Row) -> float:
    return 100 * row.waste


def _badput_of(row: Row) -> float:
    return 100 * row.badput


def _idle_waits_of(row: Row) -> float | None:
    return None if row.idle_waits is None else 100 * row.idle_waits


def _mean_wait_of(row: Row) -> float:
    return row.wait_mean_s


def _p95_wait_of(row: Row) -> float:
    return row.wait_p95_s
