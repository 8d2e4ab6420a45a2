"""Earnings of each rule: our planner's figures without it (:mod:`benchmarks.deciding.ablation`) less those with it.

Differences are taken seed by seed, so that effects which both have in common cancel. Of all figures here less is
better: a positive difference is what the rule earns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.deciding.checks import Cases, Value
from benchmarks.deciding.play import OURS
from benchmarks.deciding.rows import Row


@dataclass(frozen=True, slots=True)
class CostFigure:
    """A figure of which less is better."""

    title: str
    value: Value
    digits: int
    relative: bool = False
    """Over cases it is compared in per cent of the figure with the rule."""


FIGURES = (
    CostFigure("waste, points", lambda r: 100 * r.waste, 2),
    CostFigure("work lost, points", lambda r: 100 * r.badput, 2),
    CostFigure("mean wait", lambda r: r.wait_mean_s, 1, relative=True),
    CostFigure("95 % wait", lambda r: r.wait_p95_s, 1, relative=True),
    CostFigure("waiting while idle, points", lambda r: None if r.idle_waits is None else 100 * r.idle_waits, 2),
)


@dataclass(frozen=True, slots=True)
class Earning:
    """What one rule earns in one case."""

    case: str
    limits: str
    rule: str
    changes: Sequence[Sequence[float]]
    """For each of :data:`FIGURES`, over the seeds."""
    overall: Sequence[float | None]
    """For each of them the mean change, relative ones in per cent; None if it is unknown."""


def earnings(cases: Cases) -> Iterator[Earning]:
    """Yield the earnings of each rule that was switched off, case by case."""
    for case, variants in cases.items():
        ours = [rows for rows in variants.values() if rows[0].rule == OURS]
        whole = {rows[0].limits: rows for rows in ours if rows[0].usual}
        for rows in ours:
            some = rows[0]
            if some.without and some.limits in whole:
                found = [_paired(whole[some.limits], rows, figure.value) for figure in FIGURES]
                yield Earning(
                    str(case),
                    some.limits,
                    some.without,
                    [[without - with_it for with_it, without in pairs] for pairs in found],
                    [_overall(pairs, figure.relative) for pairs, figure in zip(found, FIGURES, strict=True)],
                )


def _paired(with_it: Sequence[Row], without: Sequence[Row], value: Value) -> list[tuple[float, float]]:
    """Return the figure with and without a rule, for each seed in which both are known."""
    known = {row.seed: value(row) for row in with_it}
    pairs = [(known.get(row.seed), value(row)) for row in without]
    return [(before, after) for before, after in pairs if before is not None and after is not None]


def _overall(pairs: Sequence[tuple[float, float]], relative: bool) -> float | None:
    if not pairs:
        return None
    with_it, without = (fmean(figures) for figures in zip(*pairs, strict=True))
    if not relative:
        return without - with_it
    return 100 * (without / with_it - 1) if with_it else None
