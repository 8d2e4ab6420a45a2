"""Charts of time series as SVG: drawn by pygal, coloured by the style sheet of the page."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil, floor, log10
from typing import NamedTuple
from xml.etree import ElementTree

import pygal
from markupsafe import Markup

from provisioner.store.reader import Reader
from provisioner.web.tables import PageCell, PageHead, PageTable

# pygal registers a finder of map plugins without find_spec, at which other users of the import system fail.
sys.meta_path[:] = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]


@dataclass(frozen=True, slots=True)
class Increases:
    """Increases of counters in the same steps of time."""

    times: Sequence[float]
    """Begin of each step."""
    rows: Sequence[tuple[Mapping[str, str], Sequence[float]]]
    """Labels of a counter, and its increase in each step."""

    @classmethod
    def read(cls, reader: Reader, metric: str, until: float, span_s: float, step_s: float) -> Increases:
        """Return the increases in the last ``span_s`` until the end of the step that holds ``until``."""
        end = (until // step_s + 1) * step_s
        found = reader.series(metric, end - span_s, end, step_s)
        step_s = max([step_s, *(each.step_s for each in found)])  # the far past is kept in longer steps only
        times = [end - span_s + step_s * n for n in range(max(2, ceil(span_s / step_s)))]
        rows = []
        for each in found:
            sums = [0.0] * len(times)
            for at, increase in each.points:
                sums[min(len(sums) - 1, max(0, int((at - times[0]) / step_s)))] += increase
            rows.append((each.labels, sums))
        return cls(times, rows)

    def by(self, *names: str) -> dict[tuple[str, ...], list[float]]:
        """Return the sums in each step by the values of labels."""
        found: dict[tuple[str, ...], list[float]] = {}
        for labels, increases in self.rows:
            sums = found.setdefault(tuple(labels.get(name, "") for name in names), [0.0] * len(self.times))
            sums[:] = map(float.__add__, sums, increases)
        return found


class PageChart(NamedTuple):
    """Chart with its legend, and its figures as a table for those who do not see it."""

    title: str
    svg: Markup
    legend: Sequence[tuple[str, str]]
    """Name and meaning of each series, in the order of their colours."""
    table: PageTable


def amount(value: float) -> str:
    """Return an amount with as many digits as people read: ``1,234``, ``12``, ``1.2``, ``0.03``."""
    return f"{value:,.0f}" if value >= 10 or not value else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def stacked_bars(
    title: str, series: Mapping[str, Sequence[float]], words: Mapping[str, str], times: Sequence[float]
) -> PageChart:
    """Return bars of several series on top of each other, at equal steps of time; ``words``: the meaning of each."""
    step_s = times[1] - times[0]
    tick_s, short = (10800.0, "%H:%M") if step_s < 3600 else (max(86400.0, 5 * step_s), "%-d %b")
    whens = [datetime.fromtimestamp(at, UTC) for at in times]
    chart = pygal.StackedBar(
        width=960,
        height=280,
        margin=8,
        spacing=4,
        css=(),
        js=(),
        show_legend=False,
        print_values=False,
        truncate_label=-1,
        value_formatter="{:g}".format,
    )
    top = max(map(sum, zip(*series.values(), strict=True)))
    step = _round_step(top / 5)
    chart.y_labels = [step * n for n in range(ceil(top / step) + 1)]
    chart.x_labels = ["" if at % tick_s else f"{when:{short}}" for at, when in zip(times, whens, strict=True)]
    for name, values in series.items():
        chart.add(name, [round(value, 3) for value in values])
    heads = [PageHead("From", "Begin, UTC.", "", ""), *(PageHead(name, words[name], "amount", "") for name in series)]
    rows = [
        [PageCell(f"{when:%-d %b %H:%M}"), *(PageCell(amount(value)) for value in values)]
        for when, *values in zip(whens, *series.values(), strict=True)
    ]
    return PageChart(title, _drawing(chart, title), [*words.items()], PageTable(f"{title}, in figures", heads, rows))


def _round_step(least: float) -> float:
    """Return 1, 2, 2.5 or 5 times a power of ten, no less than ``least``."""
    power = 10.0 ** floor(log10(least)) if least > 0 else 1.0
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= least)


_SVG = "http://www.w3.org/2000/svg"


def _drawing(chart: pygal.StackedBar, title: str) -> Markup:
    """Return a chart without its own styles and scripts, which the policy of the pages forbids."""
    ElementTree.register_namespace("", _SVG)
    tree = ElementTree.fromstring(chart.render())
    for parent in list(tree.iter()):
        for child in list(parent):
            tag = child.tag.rpartition("}")[2]
            if tag in ("defs", "desc", "title") or "tooltip-overlay" in child.get("class", ""):
                parent.remove(child)
    tree.attrib |= {"id": "chart", "role": "img", "aria-label": title, "class": "chart"}
    return Markup(ElementTree.tostring(tree, encoding="unicode"))
