"""Charts: the shapes and the axis have the values, foreign text stays text."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from provisioner.svg import Axis, AxisLabel, Layer, bar, legend, time_chart

LAYERS = (
    Layer("running", "running", [2.0, 4.0, 4.0], "with jobs"),
    Layer("idle", "idle", [1.0, 0.0, 2.0], "no <job>"),
    Layer("waiting", "waiting", [8.0, 8.0, 2.0], is_line=True),
)


@pytest.mark.parametrize(
    ("most", "texts"),
    [
        (0.0, ["0", "0.5", "1"]),
        (1.0, ["0", "0.5", "1"]),
        (7.0, ["0", "2", "4", "6", "8"]),
        (8.0, ["0", "2", "4", "6", "8"]),
        (61.0, ["0", "20", "40", "60", "80"]),
        (99_000.0, ["0", "50,000", "100,000"]),
    ],
)
def test_an_axis_has_round_numbers_up_to_the_largest_value(most: float, texts: list[str]) -> None:
    axis = Axis.to(most)
    assert axis.end >= most and [label.text for label in axis.labels][: len(texts)] == texts
    assert [label.part for label in axis.labels][-1] == 1.0


def test_areas_lie_on_each_other_and_a_line_does_not() -> None:
    chart = ElementTree.fromstring(
        time_chart("GPUs of a day", "GPUs & more", [AxisLabel(0.5, "<12:00>")], LAYERS)
    )
    paths = {each.get("class"): each.get("d") for each in chart.iter("path")}
    assert paths == {  # the axis ends at 8
        "area idle": "M0,1000V625H1000V500H2000V250H3000V1000Z",
        "area running": "M0,1000V750H1000V500H3000V1000Z",
        "line waiting": "M0,0H2000V750H3000",
    }
    assert next(iter(paths)) == "area idle", "what is below is drawn later"
    assert (
        chart.get("aria-label")
        == "GPUs of a day, GPUs & more; at the end: running 4.0, idle 2.0, waiting 2.0"
    )
    (time,) = [each for each in chart.iter("text") if each.get("class") == "time"]
    assert time.text == "<12:00>" and time.get("x") == "50%"


def test_a_legend_has_the_meanings() -> None:
    root = ElementTree.fromstring(legend(LAYERS))
    assert [" ".join("".join(li.itertext()).split()) for li in root] == [
        "running with jobs",
        "idle no <job>",
        "waiting",
    ]


def test_a_bar_fills_its_width_with_its_parts_or_with_a_whole() -> None:
    parts = {"running": 3.0, "idle": 1.0}
    assert 'viewBox="0 0 4 1"' in bar(parts) and 'viewBox="0 0 8 1"' in bar(parts, 8.0)
    assert re.findall(r'class="(\w+)" x="(\d)" width="(\d)"', bar(parts)) == [
        ("running", "0", "3"),
        ("idle", "3", "1"),
    ]
