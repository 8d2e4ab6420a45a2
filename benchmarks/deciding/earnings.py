"""Comparisons seed by seed: what each rule of our planner earns, and what users and the choice of victims change.

Differences are taken seed by seed, so that effects that both sides share cancel. For all figures
here, less is better. The earning of a rule is the figure without it
(:mod:`benchmarks.deciding.ablation`) less the figure with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Self

from benchmarks.deciding.checks import Cases, Value
from benchmarks.deciding.play import OURS, Case
from benchmarks.deciding.rows import Row


@dataclass(frozen=True, slots=True)
class CostFigure:
    """A figure of which less is better."""

    title: str
    value: Value
    digits: int
    relative: bool = False
    """True if it is compared in per cent over cases."""


FIGURES = (
    CostFigure("waste, points", lambda r: 100 * r.waste, 2),
    CostFigure("work lost, points", lambda r: 100 * r.badput, 2),
    CostFigure("mean wait", lambda r: r.wait_mean_s, 1, relative=True),
    CostFigure("95 % wait", lambda r: r.wait_p95_s, 1, relative=True),
    CostFigure(
        "waiting while idle, points",
        lambda r: None if r.idle_waits is None else 100 * r.idle_waits,
        2,
    ),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Figures of some rows less those of others."""

    names: tuple[str, ...]
    changes: Sequence[Sequence[float]]
    """Changes by seed, for each of :data:`FIGURES`."""
    overall: Sequence[float | None]
    """Mean change of each figure, in per cent if it is relative; None if it is unknown."""

    @classmethod
    def of(cls, names: tuple[str, ...], before: Sequence[Row], after: Sequence[Row]) -> Self:
        found = [_paired(before, after, figure.value) for figure in FIGURES]
        return cls(
            names,
            [[new - old for old, new in pairs] for pairs in found],
            [
                _overall(pairs, figure.relative)
                for pairs, figure in zip(found, FIGURES, strict=True)
            ],
        )


def earnings(cases: Cases) -> Iterator[Comparison]:
    """Yield the earnings of each rule that was switched off: names are case, limits and rule."""
    for case, variants in cases.items():
        ours = [rows for rows in variants.values() if rows[0].rule == OURS]
        whole = {rows[0].limits: rows for rows in ours if rows[0].usual}
        for rows in ours:
            some = rows[0]
            if some.without and some.limits in whole:
                yield Comparison.of(
                    (str(case), some.limits, some.without), whole[some.limits], rows
                )


def world_changes(cases: Cases) -> Iterator[Comparison]:
    """Yield the changes by users and victims from the usual world: names are case and policy."""
    for case, variants in cases.items():
        usual = cases.get(Case(case.trace, case.owner, case.days), {})
        for variant, rows in variants.items():
            if usual is not variants and variant in usual:
                yield Comparison.of((str(case), rows[0].title), usual[variant], rows)


def _paired(before: Sequence[Row], after: Sequence[Row], value: Value) -> list[tuple[float, float]]:
    """Return the figure before and after, for each seed in which both are known."""
    known = {row.seed: value(row) for row in before}
    pairs = [(known.get(row.seed), value(row)) for row in after]
    return [(old, new) for old, new in pairs if old is not None and new is not None]


def _overall(pairs: Sequence[tuple[float, float]], relative: bool) -> float | None:
    if not pairs:
        return None
    old, new = (fmean(figures) for figures in zip(*pairs, strict=True))
    if not relative:
        return new - old
    return 100 * (new / old - 1) if old else None
