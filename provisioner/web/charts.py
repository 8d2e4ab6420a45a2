"""Charts of time series as SVG: drawn by pygal, coloured by the style sheet of the page."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from xml.etree import ElementTree

import pygal
from markupsafe import Markup

from provisioner.store.reader import Reader
from provisioner.web.tables import PageCell, PageHead, PageTable

# pygal registers a finder of map plugins without find_spec, at which other users of the import
# system fail.
sys.meta_path[:] = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]


class Increases:
    """Increases of the counters of a metric in equal steps of time, up to the step that holds ``until``."""

    def __init__(
        self, reader: Reader, metric: str, until: float, span_s: float, step_s: float
    ) -> None:
        begin = (until // step_s + 1) * step_s - span_s
        self.times = [begin + step_s * n for n in range(int(span_s / step_s))]
        self._found = reader.series(metric, begin, begin + span_s, step_s)

    def by(self, *names: str) -> dict[tuple[str, ...], list[float]]:
        """Return the sums in each step by the values of labels."""
        sums: defaultdict[tuple[str, ...], defaultdict[float, float]] = defaultdict(
            lambda: defaultdict(float)
        )
        for each in self._found:
            key = tuple(each.labels.get(name, "") for name in names)
            for at, increase in each.points:
                sums[key][at] += increase
        return {key: [found[at] for at in self.times] for key, found in sums.items()}


class PageChart(NamedTuple):
    """Chart with its legend, and its figures as a table for those who do not see it."""

    title: str
    svg: Markup
    legend: Sequence[tuple[str, str]]
    """Name and meaning of each series, in the order of their colours."""
    table: PageTable


def amount(value: float) -> str:
    """Return an amount with as many digits as people read: ``1,234``, ``12``, ``1.2``, ``0.03``."""
    return (
        f"{value:,.0f}"
        if value >= 10 or not value
        else f"{value:.1f}"
        if value >= 1
        else f"{value:.2f}"
    )


def stacked_bars(
    title: str,
    series: Mapping[str, Sequence[float]],
    words: Mapping[str, str],
    times: Sequence[float],
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
    chart.x_labels = [
        "" if at % tick_s else f"{when:{short}}" for at, when in zip(times, whens, strict=True)
    ]
    for name, values in series.items():
        chart.add(name, [round(value, 3) for value in values])
    heads = [
        PageHead("From", "Begin, UTC."),
        *(PageHead(name, words[name], "amount") for name in series),
    ]
    rows = [
        [PageCell(f"{when:%-d %b %H:%M}"), *(PageCell(amount(value)) for value in values)]
        for when, *values in zip(whens, *series.values(), strict=True)
    ]
    return PageChart(
        title,
        _drawing(chart, title),
        [*words.items()],
        PageTable(f"{title}, in figures", heads, rows),
    )


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
