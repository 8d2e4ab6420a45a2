"""What the checks 1 to 3 of "deciding well" say to a set of results, and what they cannot say yet.

1. Waste at most 5 % where 10 or more GPUs are in use on average, at most 10 % below that, and at least 5 times below
   COBalD's better setting, on every trace.
2. Idle + boot + release at most 1.5 times the clairvoyant schedule's waste; badput at most half of the Karpenter-like
   rule's in the median over traces, and on none above it.
3. p95 wait at most 1.1 times, mean wait at most 1.2 times always-on's. Where even the Karpenter-like rule, which asks
   at once for each job that waits, waits for longer than that, the queue of a site rules, and its wait is the limit.

A figure is the mean over the seeds that were run, beside its standard deviation; a limit is a mean as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Self

from benchmarks.deciding.play import CLAIRVOYANT, OURS, RULES, TITLES
from benchmarks.deciding.rows import Row

MANY_GPUS, WASTE_MANY, WASTE_FEW = 10.0, 0.05, 0.10
BELOW_COBALD = 5.0
OVERHEAD, BADPUT = 1.5, 0.5
P95_WAIT, MEAN_WAIT = 1.1, 1.2
SEEDS = 10
COBALD = ("cobald-pools", "cobald-low-waste")
KARPENTER, ALWAYS_ON = "karpenter", "always-on"

Value = Callable[[Row], float]
Case = tuple[str, str, float]
"""Trace, owner, days."""
Cases = Mapping[Case, Mapping[str, Sequence[Row]]]


def cases_of(rows: Sequence[Row]) -> Cases:
    """By case and rule, in the order of the rules, then of the seeds."""
    found: dict[Case, dict[str, list[Row]]] = {}
    for row in sorted(rows, key=lambda r: (r.trace, r.owner, r.days, RULES.index(r.rule), r.seed)):
        found.setdefault((row.trace, row.owner, row.days), {}).setdefault(row.rule, []).append(row)
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
        return f"{self.mean:,.{digits}f}{spread}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one check says to one case; without a limit, why it says nothing."""

    check: int
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
        close = ", by less than the spread of the seeds" if abs(self.measured.mean - self.limit) < sd else ""
        if self.met:
            return f"met{close}"
        return f"NOT met{close}: {self.measured.mean / self.limit:.2f} times the limit"


def verdicts(case: Mapping[str, Sequence[Row]]) -> Iterator[Verdict]:
    """All that the checks have to say to one case."""
    if OURS not in case:
        yield Verdict(0, "all", "no run of ours")
        return
    yield from _waste(case)
    yield _to_clairvoyant(case)
    yield _badput(case)
    yield _wait(case, "p95 wait, s", P95_WAIT, lambda r: r.wait_p95_s)
    yield _wait(case, "mean wait, s", MEAN_WAIT, lambda r: r.wait_mean_s)


def _figure(case: Mapping[str, Sequence[Row]], rule: str, value: Value) -> Figure:
    return Figure.of([value(row) for row in case[rule]])


def _waste(case: Mapping[str, Sequence[Row]]) -> Iterator[Verdict]:
    ours = _figure(case, OURS, _waste_of)
    gpus = _figure(case, OURS, lambda r: r.gpus_in_use).mean
    most = WASTE_MANY if gpus >= MANY_GPUS else WASTE_FEW
    yield Verdict(1, "waste, %", f"{gpus:.1f} GPUs are in use", 100 * most, ours)
    what = "waste, %, to COBalD's better setting"
    settings = [rule for rule in COBALD if rule in case]
    if not settings:
        yield Verdict(1, what, "COBalD was not run", measured=ours)
        return
    best = min(settings, key=lambda rule: _figure(case, rule, _waste_of).mean)
    left_out = [rule for rule in COBALD if rule not in case]
    but = f"; the other setting was not run ({TITLES[left_out[0]]})" if left_out else ""
    limit = _figure(case, best, _waste_of).mean / BELOW_COBALD
    yield Verdict(1, what, f"a fifth of {TITLES[best]}{but}", limit, ours)


def _to_clairvoyant(case: Mapping[str, Sequence[Row]]) -> Verdict:
    ours = _figure(case, OURS, lambda r: 100 * (r.idle + r.boot_release))
    what = "idle + boot + release, %"
    if CLAIRVOYANT not in case:
        return Verdict(2, what, "the clairvoyant schedule was not made", measured=ours, digits=2)
    limit = OVERHEAD * _figure(case, CLAIRVOYANT, _waste_of).mean
    return Verdict(2, what, f"{OVERHEAD:g} times the clairvoyant schedule's", limit, ours, digits=2)


def _badput(case: Mapping[str, Sequence[Row]]) -> Verdict:
    ours = _figure(case, OURS, _badput_of)
    if KARPENTER not in case:
        return Verdict(2, "badput, %", "the Karpenter-like rule was not run", measured=ours)
    return Verdict(2, "badput, %", "the Karpenter-like rule's", _figure(case, KARPENTER, _badput_of).mean, ours)


def _wait(case: Mapping[str, Sequence[Row]], what: str, factor: float, value: Value) -> Verdict:
    ours = _figure(case, OURS, value)
    if ALWAYS_ON not in case:
        return Verdict(3, what, "always on was not run", measured=ours, digits=0)
    limit, limit_is = factor * _figure(case, ALWAYS_ON, value).mean, f"{factor:g} times always-on's"
    if KARPENTER in case and (least := _figure(case, KARPENTER, value).mean) > limit:
        limit, limit_is = least, f"the Karpenter-like rule's: a site's queue rules ({limit_is}: {limit:,.0f})"
    return Verdict(3, what, limit_is, limit, ours, digits=0)


def badput_ratio(cases: Cases) -> Verdict:
    """Ours to the Karpenter-like rule's, median over cases."""
    what = "badput, ours to the Karpenter-like rule's, median over cases"
    both = [rules for rules in cases.values() if OURS in rules and KARPENTER in rules]
    pairs = [(_figure(rules, OURS, _badput_of).mean, _figure(rules, KARPENTER, _badput_of).mean) for rules in both]
    ratios = [ours / theirs for ours, theirs in pairs if theirs]
    if not ratios:
        return Verdict(2, what, "no case with both of them")
    cases_are = f"{len(ratios)} case{'s' * (len(ratios) > 1)}"
    return Verdict(2, what, cases_are, BADPUT, Figure(median(ratios), None), digits=2)


def _waste_of(row: Row) -> float:
    return 100 * row.waste


def _badput_of(row: Row) -> float:
    return 100 * row.badput
