"""The report on replays: its numbers are the results' own, it stands alone, and foreign text stays text."""

from __future__ import annotations

import base64
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import matplotlib
import pytest

from provisioner.simulator.figures import FIGURES, amount, paired, spread
from provisioner.simulator.replay import summarize
from provisioner.simulator.report import (
    PlotsMissingError,
    from_json,
    html_page,
    schema,
    svg,
    to_json,
    waits_by_class,
)
from provisioner.simulator.results import Decisions, GpuTime, ReplayResult, Sample, WaitStatistics
from provisioner.simulator.world import Scenario, simulate
from tests.simulator.worlds import calm

ROOT = Path(__file__).parents[2]
HOSTILE = "<script>alert(1)</script>\"'&amp; $\\frac{$ \x1b[31m\u202e]]> {x} ${title}"
SAMPLES = tuple(Sample(60.0 * n, n % 7, 5, 8.0, 6.0, 2.0, {"topas": 5.0, "cloud": 3.0}) for n in range(100))


class Page:
    """A page taken apart: it is well-formed XML."""

    def __init__(self, runs: Mapping[str, Sequence[ReplayResult]], **given: Any) -> None:
        self.source = html_page(runs, **given)
        self.root = ElementTree.fromstring(self.source)
        body = self.root.find("body")
        assert body is not None
        self.text = " ".join("".join(body.itertext()).split())
        self.rows = [row.findall("*") for row in self.root.iter("tr")]

    def cell(self, row: str, column: str) -> str:
        head = ["".join(cell.itertext()) for cell in self.rows[0]]
        found = [cells for cells in self.rows if "".join(cells[0].itertext()) == row]
        return "".join(found[0][head.index(column)].itertext()) if found else ""

    @property
    def numbers(self) -> dict[str, list[float]]:
        """Row heading to numbers as programs read them."""
        values = {cells[0].text or "": [each.find("data") for each in cells[1:]] for cells in self.rows[1:]}
        return {
            row: [float(each.get("value", "")) for each in data if each is not None] for row, data in values.items()
        }

    @property
    def plots(self) -> list[set[str]]:
        """The texts in each plot."""
        prefix = "data:image/svg+xml;base64,"
        return [
            svg_texts(base64.b64decode(image.get("src", "").removeprefix(prefix))) for image in self.root.iter("img")
        ]


def svg_texts(picture: bytes) -> set[str]:
    texts = ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")
    return {"".join(text.itertext()).strip() for text in texts}


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
        gpu_hours=GpuTime(held=120.0 + seed, good=100.0, badput=5.0, boot=8.0, release=2.0, idle=5.0 + seed),
        waits=WaitStatistics(98, 30.0 + seed, 20.0, 90.0),
        waits_by_class={
            "small": WaitStatistics(90, 20.0, 10.0, 60.0),
            "large": WaitStatistics(8, 700.0, 600.0, 4000.0),
        },
        requests=110 + seed,
        drones_started=104,
        withdrawn=6,
        preempted=3,
        decisions=Decisions(1000, 0.0005, 0.02),
        energy_kwh=9.8,
        co2_kg=3.92,
        by_site={"topas": GpuTime(60.0, 50.0, 2.0, 4.0, 1.0, 3.0), "cloud": GpuTime(60.0, 50.0, 3.0, 4.0, 1.0, 2.0)},
    )
    return replace(usual, **given)


def test_the_figures_of_real_replays_are_on_the_page() -> None:
    def replayed(scenario: Scenario) -> ReplayResult:
        return summarize(simulate(scenario), policy="any", trace="calm", jobs=scenario.jobs)

    brisk = [calm(seed=seed) for seed in (1, 2, 3)]
    patient = [replace(each, policy=replace(each.policy, idle_timeout_s=600.0)) for each in brisk]
    runs = {"brisk": list(map(replayed, brisk)), "patient": list(map(replayed, patient))}
    page = Page(runs)
    for n, (policy, results) in enumerate(runs.items()):
        wastes = [100 * result.gpu_hours.waste for result in results]
        assert page.numbers["Good (GPU-h)"][n] == pytest.approx(statistics.mean(r.gpu_hours.good for r in results))
        assert page.numbers["Waste (%)"][n] == pytest.approx(statistics.mean(wastes))
        assert f"± {amount(statistics.stdev(wastes))}" in page.cell("Waste (%)", policy)
        assert page.numbers["Mean wait (s)"][n] == pytest.approx(statistics.mean(r.waits.mean_s for r in results))
    idles = [[result.gpu_hours.idle for result in results] for results in runs.values()]
    differences = [b - a for a, b in zip(*idles, strict=True)]
    assert page.numbers["Idle (GPU-h)"][2] == pytest.approx(statistics.mean(differences))
    improved = sum(difference < 0 for difference in differences)
    assert f"better in {improved} of 3" in page.cell("Idle (GPU-h)", "patient less brisk")


def test_every_figure_of_a_result_is_there() -> None:
    page = Page({"ours": [made()]})
    assert "No promise was broken in 1 replay." in page.text
    expected = {
        "Held (GPU-h)": 121.0,
        "Good (GPU-h)": 100.0,
        "Idle (GPU-h)": 6.0,
        "Boot and release (GPU-h)": 10.0,
        "Badput (GPU-h)": 5.0,
        "Waste (%)": 21.0,
        "by idle GPUs (%)": 6.0,
        "by boot and release (%)": 10.0,
        "by badput (%)": 5.0,
        "Mean wait (s)": 31.0,
        "Median wait (s)": 20.0,
        "95th percentile of waits (s)": 90.0,
        "Jobs": 100,
        "Jobs done": 98,
        "Jobs that fit no drone": 2,
        "Requests (drones)": 111,
        "Requests per job": 111 / 98,
        "Started (drones)": 104,
        "Withdrawn (drones)": 6,
        "Preempted (attempts)": 3,
        "Violations": 0,
        "Decisions per second (1/s)": 2000.0,
        "Slowest decision (s)": 0.02,
        "Energy (kWh)": 9.8,
        "Energy per job (kJ)": 360.0,
        "CO2 per job (kg)": 0.04,
    }
    assert {row: values[0] for row, values in page.numbers.items() if values} == pytest.approx(expected)
    assert not any("±" in page.cell(row, "ours") for row in expected), "one seed has no spread"


def test_what_no_replay_tells_is_left_out() -> None:
    page = Page({"ours": [made(energy_kwh=None, co2_kg=None, by_site={})]})
    assert not {"Energy (kWh)", "Energy per job (kJ)", "First start of a burst (s)"} & page.numbers.keys()
    assert len(page.plots) == 2, "neither sites nor time line"
    nothing = Page({"ours": [ReplayResult("ours", "empty", 1, 0.0, 0, 0, 0, GpuTime(), WaitStatistics())]})
    assert "Waste (%)" not in nothing.numbers, "nothing was held, so nothing was wasted"
    assert nothing.numbers["Held (GPU-h)"] == [0.0]


def test_each_plot_has_words_and_is_drawn() -> None:
    page = Page({"ours": [made(samples=SAMPLES), made(seed=2)], "rival": [made("rival", samples=SAMPLES)]})
    hours, waits, sites, ours, rival = page.plots
    assert {"good", "badput", "boot", "release", "idle", "ours", "rival", "waste 21.5 %"} <= hours
    assert {"ours", "rival", "all jobs", "small", "large"} <= waits
    assert {"topas · ours", "topas · rival", "cloud · rival", "20 %"} <= sites
    assert {"Jobs", "waiting", "owner's", "topas", "cloud", "hours"} <= ours == rival
    assert "Time line: rival, trace openb, seed 1" in page.text
    assert all(image.get("alt") for image in page.root.iter("img"))
    drawn = svg(waits_by_class, {"_ours": [made()], "rival": [made()]})
    assert "_ours" in svg_texts(drawn), "in spite of its underscore"


def test_the_page_needs_no_network_and_serves_both_schemes_and_print() -> None:
    page = Page({"ours": [made(samples=SAMPLES)], "rival": [made("rival")]}, notes=["A note."])
    assert not {"script", "link", "iframe", "object", "image", "base"} & {each.tag for each in page.root.iter()}
    for each in page.root.iter():
        assert not any("//" in value for key, value in each.items() if (each.tag, key) != ("img", "src"))
    assert not re.search(r"@import|url\(", page.source)
    assert "default-src 'none'" in page.source
    assert "prefers-color-scheme: dark" in page.source and "@media print" in page.source


@pytest.mark.parametrize("text", [HOSTILE, "", "\n", "_", "é" * 99])
def test_foreign_text_stays_text(text: str) -> None:
    def page(text: str) -> Page:
        result = made(
            text,
            trace=text,
            violations=(text,),
            waits_by_class={text: WaitStatistics(9, 1.0, 1.0, 2.0)},
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
        assert any(each.startswith("<script>alert(1)</script>") for texts in told.plots for each in texts)


def test_violations_come_first_and_are_counted() -> None:
    lines = tuple(f"cap broken at {n} s" for n in range(130))
    page = Page({"ours": [made(), made(seed=2, violations=lines)]})
    assert "130 broken promises in 2 replays" in page.text and "No promise was broken" not in page.text
    assert "ours, trace openb, seed 2: cap broken at 0 s" in page.text and "and 30 more" in page.text
    assert page.source.index('role="alert"') < page.source.index("<table")
    assert page.numbers["Violations"] == [65.0]


def test_waste_without_anything_good_is_infinite() -> None:
    lost = made(gpu_hours=GpuTime(held=3.0, boot=3.0), jobs_done=0, waits=WaitStatistics())
    page = Page({"lost": [lost, made(seed=2)], "ours": [made(), made(seed=2)]})
    assert page.cell("Waste (%)", "lost").startswith("∞") and "nan" not in page.text
    assert "better in 0 of 1" in page.cell("Waste (%)", "ours less lost"), "only where both are finite"


def test_only_common_seeds_are_compared() -> None:
    first = [made(seed=1, requests=100), made(seed=2, requests=200), made(seed=3, requests=1)]
    second = [made(seed=2, requests=190), made(seed=1, requests=70), made(seed=4, requests=9999)]
    (requests,) = [figure for figure in FIGURES["Jobs and drones"] if figure.name == "Requests"]
    difference = paired(requests, first, second)
    assert difference and difference.spread.mean == -20.0 and difference.spread.count == 2 and difference.improved == 2
    assert paired(requests, first, [replace(result, trace="philly") for result in second]) is None
    page = Page({"a": first, "b": second})
    assert "2 seeds are in all policies" in page.text
    assert "-20" in page.cell("Requests (drones)", "b less a")


def test_the_page_begins_with_its_subject_command_and_answer() -> None:
    runs = {"ours": [made(days=8.55), replace(made(), seed=2, days=8.57)], "rival": [made("rival", days=8.56)]}
    text = Page(runs, command="provisioner simulate a.csv --what-if 'x < y'").text
    assert "Replay of openb: ours against rival" in text
    assert "8.55 to 8.57 days, 2 policies" in text
    assert "provisioner simulate a.csv --what-if 'x < y'" in text
    answer = "98 of 100 jobs done; mean wait 31s, 95 % of waits within 1m30s; waste 21 % of the good GPU-hours"
    assert f"ours: {answer}" in text and text.index("ours: 98") < text.index("Figures by policy")


def test_many_policies_and_many_classes_make_a_page() -> None:
    classes = {f"class {n}": WaitStatistics(1000 - n, 10.0, 5.0, 50.0) for n in range(300)}
    page = Page({f"policy {n}": [made(f"policy {n}", waits_by_class=classes)] for n in range(12)})
    assert {"all jobs", "class 0", "class 3"} <= page.plots[1] and "class 4" not in page.plots[1]
    assert len(page.rows[0]) == 1 + 12 + 11


def test_the_page_is_the_same_whatever_the_users_settings_are() -> None:
    runs = {"ours": [made()]}
    before = html_page(runs)
    with matplotlib.rc_context({"axes.facecolor": "red", "font.size": 30, "svg.fonttype": "path"}):
        assert html_page(runs) == before
        assert matplotlib.rcParams["font.size"] == 30


def test_matplotlib_is_needed_for_plots_only(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys, provisioner.simulator.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotsMissingError, match=r"pip install 'gpu-drone-provisioner\[report\]'"):
        html_page({"ours": [made()]})


def test_json_and_back_is_the_same_and_follows_the_schema() -> None:
    runs = {"ours": (made(samples=SAMPLES), made(seed=2, violations=(HOSTILE,), energy_kwh=None)), HOSTILE: ()}
    text = to_json(runs)
    assert from_json(text) == runs
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(json.loads(text), schema())
    with pytest.raises(jsonschema.ValidationError, match="'first' is not of type 'integer'"):
        jsonschema.validate(json.loads(text.replace('"seed":2', '"seed":"first"')), schema())
    with pytest.raises(ValueError, match="JSON compliant"):
        to_json({"ours": [made(days=inf)]})


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"schema": 99, "runs": {}}', '{"schema": 1}'])
def test_another_document_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Report"):
        from_json(text)


def test_amounts_and_spreads() -> None:
    shown = {inf: "∞", 0.0: "0", 0.001234: "0.00123", 12.345: "12.3", 999.4: "999", 1234567.0: "1,234,567"}
    assert {value: amount(value) for value in shown} == shown
    assert amount(None) == "-" and spread([None]) is None
    over = spread([None, 1.0, 2.0, 6.0])
    assert over and (over.count, over.mean, over.deviation) == (3, 3.0, pytest.approx(7**0.5))
