"""Charts as HTML with SVG: the style sheet of the page colours them, and they fill the width that they are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

SCALE = 1000
"""Height of a plot, and width of each of its steps, in units of its own."""
GRID_LINES = 4


class Layer(NamedTuple):
    """One quantity in a chart."""

    name: str
    colour: str
    """Class in the style sheet."""
    values: Sequence[float]
    meaning: str = ""
    is_line: bool = False
    """A line in front of the areas, which lie on top of each other."""


class AxisLabel(NamedTuple):
    part: float
    """Place on the axis, from 0 to 1."""
    text: str


def amount(value: float) -> str:
    """Return an amount with as many digits as people read: ``1,234``, ``12``, ``1.2``, ``0.03``."""
    if value >= 10 or not value:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


class Axis(NamedTuple):
    end: float
    labels: Sequence[AxisLabel]

    @classmethod
    def to(cls, most: float) -> Axis:
        """Return an axis with round numbers from 0 to at least ``most``."""
        most = most or 1.0
        least = most / GRID_LINES
        power = 10.0 ** floor(log10(least))
        step = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least * (1 - 1e-9))
        number = ceil(most / step - 1e-9)
        labels = [AxisLabel(n / number, f"{n * step:,.10g}") for n in range(number + 1)]
        return cls(number * step, labels)


def time_chart(title: str, unit: str, times: Sequence[AxisLabel], layers: Sequence[Layer]) -> str:
    """Return a chart of values that hold for equal steps of time; ``times``: labels of its axis."""
    totals = [0.0] * len(layers[0].values)
    stack: list[tuple[Layer, Sequence[float]]] = []
    for layer in layers:
        if not layer.is_line:
            totals = [total + value for total, value in zip(totals, layer.values, strict=True)]
            stack.insert(0, (layer, totals))  # what is drawn later hides what is below it
    lines = [(layer, layer.values) for layer in layers if layer.is_line]
    most = max((value for _, values in (*stack, *lines) for value in values), default=0.0)
    axis = Axis.to(most)
    paths = [
        f'<path class="{"line" if layer.is_line else "area"} {layer.colour}" '
        f'd="{_steps(values, axis.end, not layer.is_line)}"/>'
        for layer, values in (*stack, *lines)
    ]
    newest = ", ".join(f"{each.name} {amount(each.values[-1])}" for each in layers)
    told = escape(f"{title}, {unit}; at the end: {newest}")
    grid = "".join(
        f'<line x2="100%" y1="{100 - 100 * part:.4g}%" y2="{100 - 100 * part:.4g}%"/>'
        f'<text class="value" x="-8" y="{100 - 100 * part:.4g}%" dy=".35em">{text}</text>'
        for part, text in axis.labels
    )
    below = _labels(times, 'y="100%" dy="1.5em"')
    return (
        f'<svg class="chart" role="img" aria-label="{told}">'
        f'<text class="unit" y="-10">{escape(unit)}</text>{grid}<svg viewBox="0 0 '
        f'{SCALE * len(totals)} {SCALE}" preserveAspectRatio="none" width="100%" height="100%">'
        f"{''.join(paths)}</svg>{below}</svg>"
    )


def _steps(values: Sequence[float], top: float, closed: bool) -> str:
    """Return the path along the values, each for one step; ``closed``: of the area below it."""
    heights = [round(SCALE - SCALE * value / top) for value in values]
    path = f"M0,{SCALE}V{heights[0]}" if closed else f"M0,{heights[0]}"
    for n, height in enumerate(heights):
        if n and height != heights[n - 1]:
            path += f"H{SCALE * n}V{height}"
    return f"{path}H{SCALE * len(heights)}" + (f"V{SCALE}Z" if closed else "")


def _labels(labels: Iterable[AxisLabel], place: str) -> str:
    """Return the labels of a horizontal axis; the style sheet hides every other one where it is narrow."""
    return "".join(
        f'<text class="time{" odd" if n % 2 else ""}" x="{100 * part:.4g}%" {place}>'
        f"{escape(text)}</text>"
        for n, (part, text) in enumerate(labels)
    )


def legend(layers: Iterable[Layer]) -> str:
    entries = "".join(
        f'<li class="{each.colour}"><b>{escape(each.name)}</b> {escape(each.meaning)}</li>'
        for each in layers
    )
    return f'<ul class="legend">{entries}</ul>'


def bar(parts: Mapping[str, float], whole: float = 0.0) -> str:
    """Return a bar of amounts side by side, by their classes in the style sheet. ``whole`` fills its width."""
    begin = 0.0
    drawn = ""
    for colour, part in parts.items():
        drawn += f'<rect class="{colour}" x="{begin:.6g}" width="{part:.6g}" height="1"/>'
        begin += part
    return (
        f'<svg class="bar" viewBox="0 0 {whole or begin:.6g} 1" preserveAspectRatio="none" '
        f'aria-hidden="true">{drawn}</svg>'
    )


def scale(axis: Axis, unit: str) -> str:
    """Return the axis of bars whose ``whole`` is its end."""
    numbers = _labels(axis.labels, 'y="1em"')
    return f'<span>{escape(unit)}</span><svg class="scale" aria-hidden="true">{numbers}</svg>'
