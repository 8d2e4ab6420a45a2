"""Charts of the pages: time series of the record, by steps of time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from markupsafe import Markup

from provisioner import svg
from provisioner.store.reader import Reader
from provisioner.svg import AxisLabel, Layer
from provisioner.web.tables import PageCell, PageHead, PageTable

HOUR_S = 3600.0


class TimeSteps:
    """Values of a metric in equal steps of time up to that of ``until``: means, or increases of counters."""

    def __init__(
        self, reader: Reader, metric: str, until: float, span_s: float, step_s: float
    ) -> None:
        begin = (until // step_s + 1) * step_s - span_s
        self.times = [begin + step_s * n for n in range(int(span_s / step_s))]
        self._found = reader.series(metric, begin, begin + span_s, step_s)
        self.first_at = min((at for each in self._found for at, _ in each.points), default=0.0)
        """Begin of the first step on record."""

    def by(
        self, *names: str, groups: Mapping[str, str] | None = None
    ) -> dict[tuple[str, ...], list[float]]:
        """Return the sums in each step by the values of labels; ``groups``: names of several values."""
        sums: defaultdict[tuple[str, ...], defaultdict[float, float]] = defaultdict(
            lambda: defaultdict(float)
        )
        for each in self._found:
            values = [each.labels.get(name, "") for name in names]
            key = tuple((groups or {}).get(value, value) for value in values)
            for at, value in each.points:
                sums[key][at] += value
        return {key: [found[at] for at in self.times] for key, found in sums.items()}


class PageCharts(NamedTuple):
    """Charts of the same quantities, with one legend, and the figures as a table for those who do not see them."""

    title: str
    legend: Markup
    charts: Mapping[str, Markup]
    """By name; that of a single one is empty."""
    table: PageTable | None = None

    @classmethod
    def of(
        cls, title: str, unit: str, times: Sequence[float], layers: Mapping[str, Sequence[Layer]]
    ) -> PageCharts:
        """Return charts of equal steps of time, of which there is at least one."""
        step_s = times[1] - times[0]
        span_s = step_s * len(times)
        label_s = next(each for each in LABELS_S if each * MOST_LABELS >= span_s)
        form = "%H:%M" if label_s < 86400.0 else "%-d %b"
        labels = [
            AxisLabel((at - times[0]) / span_s, f"{datetime.fromtimestamp(at, UTC):{form}}")
            for at in times
            if at % label_s < step_s
        ]
        made = {
            name: Markup(svg.time_chart(f"{name} {title}".strip(), unit, labels, each))
            for name, each in layers.items()
        }
        return cls(title, Markup(svg.legend(next(iter(layers.values())))), made)


LABELS_S = (900.0, 3 * HOUR_S, 24 * HOUR_S, 5 * 24 * HOUR_S)
"""Times between two labels of an axis."""
MOST_LABELS = 9


def figures(title: str, layers: Sequence[Layer], times: Sequence[float]) -> PageTable:
    """Return the values of a chart as a table."""
    heads = [
        PageHead("From", "Begin, UTC."),
        *(PageHead(each.name, each.meaning, "amount") for each in layers),
    ]
    rows = [
        [
            PageCell(f"{datetime.fromtimestamp(at, UTC):%-d %b %H:%M}"),
            *(PageCell(svg.amount(value)) for value in values),
        ]
        for at, *values in zip(times, *(each.values for each in layers), strict=True)
    ]
    return PageTable(f"{title}, in figures", heads, rows)
