"""The report on replays: its numbers are the results' own, it stands alone, and foreign text stays text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from provisioner.simulator.report import from_json, html_page, schema, to_json
from provisioner.simulator.results import (
    FIGURES,
    GpuTime,
    ReplayResult,
    Sample,
    WaitStatistics,
    paired,
)

ROOT = Path(__file__).parents[2]
HOSTILE = "<script>alert(1)</script>\"'&amp; $\\frac{$ \x1b[31m\u202e]]> {x} ${title}"
SAMPLES = tuple(
    Sample(60.0 * n, n % 7, 5, 8.0, 6.0, 2.0, {"topas": 5.0, "cloud": 3.0}) for n in range(100)
)


class Page:
    """A page taken apart: it is well-formed XML."""

    def __init__(self, runs: Mapping[str, Sequence[ReplayResult]], **given: Any) -> None:
        self.source = html_page(runs, **given)
        self.root = ElementTree.fromstring(self.source)
        body = self.root.find("body")
        assert body is not None
        self.text = " ".join("".join(body.itertext()).split())

    def rows(self, title: str) -> list[list[str]]:
        """The texts of the cells of the table in a section; of a bar, its parts."""
        (section,) = [each for each in self.root.iter("section") if each.findtext("h2") == title]
        return [
            [bar_parts(cell) or " ".join("".join(cell.itertext()).split()) for cell in row]
            for row in section.iter("tr")
        ]


def bar_parts(cell: ElementTree.Element) -> str:
    return " ".join(f"{each.get('class')}={each.get('width')}" for each in cell.iter("rect"))


def made(policy: str = "ours", seed: int = 1, **given: Any) -> ReplayResult:
    """A replay of middling outcome, but for the fields given."""
    usual = ReplayResult(
        policy=policy,
        trace="openb",
        seed=seed,
        days=2.0,
        jobs=100,
        jobs_done=98,
        jobs_impossible=2,
        gpu_hours=GpuTime(
            held=120.0 + seed, good=100.0, badput=5.0, boot=8.0, release=2.0, idle=5.0 + seed
        ),
        waits=WaitStatistics(98, 30.0 + seed, 20.0, 90.0),
        waits_by_class={"small": WaitStatistics(90, 20.0, 10.0, 60.0)},
        requests=110 + seed,
        energy_kwh=9.8,
        by_site={"topas": GpuTime(60.0, 50.0, 2.0, 4.0, 1.0, 3.0)},
    )
    return replace(usual, **given)


def test_the_page_needs_no_network_and_serves_both_schemes_and_print() -> None:
    page = Page({"ours": [made(samples=SAMPLES)], "rival": [made("rival")]}, notes=["A note."])
    assert not {"script", "link", "iframe", "object", "image", "base"} & {
        each.tag for each in page.root.iter()
    }
    for each in page.root.iter():
        assert not any("//" in value for value in each.attrib.values())
    assert not re.search(r"@import|url\(", page.source)
    assert "default-src 'none'" in page.source
    assert "prefers-color-scheme: dark" in page.source and "@media print" in page.source


@pytest.mark.parametrize("text", [HOSTILE, "", "_"])
def test_foreign_text_stays_text(text: str) -> None:
    def page(text: str) -> Page:
        result = made(
            text,
            trace=text,
            violations=(text,),
            waits_by_class={text: WaitStatistics(9, 1.0, 1.0, 2.0)},
            waits_why={text: {text: 3.0}},
            by_site={text: GpuTime(2.0, 1.0, 1.0)},
            samples=tuple(Sample(at_s, 1, 1, 1.0, 1.0, 0.0, {text: 1.0}) for at_s in (0.0, 60.0)),
        )
        return Page({text: [result], "other": [made(trace=text)]}, command=text, notes=[text])

    told, harmless = page(text), page("tame")
    assert [(each.tag, list(each.keys())) for each in told.root.iter()] == [
        (each.tag, list(each.keys())) for each in harmless.root.iter()
    ]
    assert "\x1b" not in told.source and "\u202e" not in told.source
    if text == HOSTILE:
        assert told.text.count("<script>alert(1)</script>\"'&amp; $\\frac{$") >= 5


def test_violations_come_first_and_are_counted() -> None:
    lines = tuple(f"cap broken at {n} s" for n in range(130))
    page = Page({"ours": [made(), made(seed=2, violations=lines)]})
    assert (
        "130 broken promises in 2 replays" in page.text and "No promise was broken" not in page.text
    )
    assert (
        "ours, trace openb, seed 2: cap broken at 0 s" in page.text and "and 30 more" in page.text
    )
    assert page.source.index('role="alert"') < page.source.index("<table")


def test_only_common_seeds_are_compared() -> None:
    first = [made(seed=1, requests=100), made(seed=2, requests=200), made(seed=3, requests=1)]
    second = [made(seed=2, requests=190), made(seed=1, requests=70), made(seed=4, requests=9999)]
    (requests,) = [figure for figure in FIGURES["Jobs and drones"] if figure.name == "Requests"]
    difference = paired(requests, first, second)
    assert (
        difference
        and difference.spread.mean == -20.0
        and difference.spread.count == 2
        and difference.improved == 2
    )
    assert paired(requests, first, [replace(result, trace="philly") for result in second]) is None


def test_the_page_begins_with_its_subject_command_and_answer() -> None:
    runs = {
        "ours": [made(days=8.55), replace(made(), seed=2, days=8.57)],
        "rival": [made("rival", days=8.56)],
    }
    page = Page(runs, command="provisioner simulate a.csv --what-if 'x < y'", at=1_770_000_000.0)
    text = page.text
    assert "Replay of openb: ours against rival" in text
    assert "openb: 8 d 13 h, 2 policies, 2 seeds, made 2026-02-02T02:40:00Z" in text
    assert "provisioner simulate a.csv --what-if 'x < y'" in text
    answer = "98 of 100 jobs done; mean wait 31 s, 95 % of waits within 1 min 30 s; waste 21 % of the good GPU-hours"
    assert f"ours: {answer}" in text and text.index("ours: 98") < text.index("Figures by policy")
    assert (
        text.index("No promise was broken")
        < text.index("provisioner simulate")
        < text.index("Where the GPU-hours went")
    )
    assert page.source.rindex("<section") < page.source.index("<caption"), "the table is the last"


def test_times_are_durations_and_the_style_is_that_of_the_web_pages() -> None:
    waits = WaitStatistics(98, 9600.0, 20.0, 90.0)
    page = Page({"ours": [made(waits=waits)], "rival": [made("rival")]})
    assert (
        "Mean wait2 h 40 min" in page.text
        and "Median wait20 s" in page.text
        and "-2 h 39 min" in page.text
    )
    assert (ROOT / "provisioner/web/static/style.css").read_text() in page.source


def test_waits_by_size_have_their_reasons_and_bars_on_one_axis() -> None:
    page = Page(
        {
            "ours": [
                made(
                    waits_by_class={
                        "1 GPU": WaitStatistics(90, 4000.0, 3600.0, 7200.0),
                        "4 GPUs": WaitStatistics(8, 20000.0, 7200.0, 28800.0),
                    },
                    waits_why={"4 GPUs": {"node-reserved": 60.0, "site-full": 20.0}},
                )
            ]
        }
    )
    heads, *rows = page.rows("Waits by size of the jobs")
    assert heads[0] == "Jobs that ask for" and heads[1] == "h02468"
    assert rows == [
        ["1 GPU", "median=1 most=1", "ours", "90", "1 h", "1 h 6 min", "2 h", ""],
        [
            *("4 GPUs", "median=2 most=6", "ours", "8", "2 h", "5 h 33 min", "8 h"),
            "node-reserved 75 %, site-full 25 %",
        ],
    ]


def test_hours_are_bars_by_policy() -> None:
    page = Page({"ours": [made()], "rival": [made("rival", gpu_hours=GpuTime(50.0, 50.0))]})
    _, ours, rival = page.rows("Where the GPU-hours went")
    assert ours == [
        "ours",
        "use-good=100 use-lost=5 use-boot=8 use-draining=2 use-idle=6",
        "121",
        "21 %",
    ]
    assert rival[1].startswith("use-good=50 use-lost=0") and rival[3] == "0 %"


def test_what_is_zero_everywhere_or_does_not_vary_is_left_out() -> None:
    runs = {"ours": [made(), made(seed=2)], "rival": [made("rival"), made("rival", 2)]}
    text = Page(runs).text
    assert (
        "Second drones" not in text and "Violations" not in text and not re.search("± 0( |$)", text)
    )
    assert "Jobs done98 98 0 Jobs that" in text, "no difference is no better"
    runs["rival"] = [made("rival", hedges=3), made("rival", 2, hedges=1)]
    assert "Second drones (drones)0 2 ± 1.41" in Page(runs).text, "one of them has some"


def test_the_time_line_has_jobs_gpus_and_sites() -> None:
    page = Page({"ours": [made(samples=SAMPLES)]})
    charts = [each for each in page.root.iter() if each.get("class") == "chart"]
    assert [chart.get("aria-label", "").partition(";")[0] for chart in charts] == [
        "Jobs, jobs",
        "GPUs, GPUs",
        "GPUs held, by site, GPUs",
    ]
    assert "at the end: busy 6.0, held without work 2.0, owner's 2.0" in charts[1].get("aria-label")
    assert "at the end: topas 5.0, cloud 3.0" in charts[2].get("aria-label")
    times = [text.text for text in charts[0].iter() if "time" in text.get("class", "")]
    assert times == ["0 h", "0.5 h", "1 h", "1.5 h"], "100 minutes"


def test_json_and_back_is_the_same_and_follows_the_schema() -> None:
    runs = {
        "ours": (made(samples=SAMPLES), made(seed=2, violations=(HOSTILE,), energy_kwh=None)),
        HOSTILE: (),
    }
    text = to_json(runs)
    assert from_json(text) == runs
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(json.loads(text), schema())
    with pytest.raises(jsonschema.ValidationError, match="'first' is not of type 'integer'"):
        jsonschema.validate(json.loads(text.replace('"seed":2', '"seed":"first"')), schema())
    with pytest.raises(ValueError, match="JSON compliant"):
        to_json({"ours": [made(days=inf)]})


@pytest.mark.parametrize("text", ["", "{}", '{"schema": 99, "runs": {}}'])
def test_another_document_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Report"):
        from_json(text)
