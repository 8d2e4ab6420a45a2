"""The report on replays: its numbers are the results' own, it stands alone, and foreign text stays text."""

from __future__ import annotations

import base64
import json
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from math import inf
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import matplotlib
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provisioner.simulator.figures import FIGURES, amount, paired, spread
from provisioner.simulator.replay import summarize
from provisioner.simulator.report import (
    PlotsMissingError,
    from_json,
    html_page,
    schema,
    svg,
    to_json,
    waste_against_wait,
)
from provisioner.simulator.results import Decisions, GpuTime, ReplayResult, Sample, WaitStatistics
from provisioner.simulator.world import Scenario, simulate
from tests.simulator.worlds import calm

ROOT = Path(__file__).parents[2]
HOSTILE = "<script>alert(1)</script>\"'&amp; $\\frac{$ \x1b[31m\u202e]]> {x} ${title}"
VOID = {"meta", "br", "img"}


@dataclass
class Page(HTMLParser):
    """A page taken apart: its table, its plots, attributes, text, and whether every tag is closed in order."""

    source: str
    rows: list[list[str]] = field(default_factory=list)
    values: list[list[float | None]] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    attributes: list[tuple[str, str, str]] = field(default_factory=list)
    text: str = ""
    alerts: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(self.source)
        self.close()
        assert not self._open, f"left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        match tag:
            case "tr":
                self.rows.append([])
                self.values.append([])
            case "td" | "th":
                self.rows[-1].append("")
                self.values[-1].append(None)
            case "data":
                self.values[-1][-1] = float(dict(attrs)["value"] or "")
        if tag not in VOID:
            self._open.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        opened, _ = self._open.pop()
        assert opened == tag, f"</{tag}> closes <{opened}>"

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self._open]
        if "style" in tags:
            return
        self.text += data
        if any(attributes.get("role") == "alert" for _, attributes in self._open):
            self.alerts += data
        if "td" in tags or "th" in tags:
            self.rows[-1][-1] += data

    @property
    def table(self) -> dict[str, dict[str, str]]:
        """Row heading to column heading to text."""
        head, *rows = self.rows
        return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows if len(row) == len(head)}

    @property
    def numbers(self) -> dict[str, dict[str, float | None]]:
        """The same with numbers as programs read them."""
        head, known = self.rows[0], zip(self.rows, self.values, strict=True)
        return {row[0]: dict(zip(head[1:], values[1:], strict=True)) for row, values in known if len(row) == len(head)}

    @property
    def plots(self) -> list[list[str]]:
        """The texts in each plot, which is well-formed XML."""
        prefix = "data:image/svg+xml;base64,"
        sources = [value for tag, name, value in self.attributes if (tag, name) == ("img", "src")]
        assert all(source.startswith(prefix) for source in sources)
        return [svg_texts(base64.b64decode(source.removeprefix(prefix))) for source in sources]


def svg_texts(svg: bytes) -> list[str]:
    return [
        "".join(text.itertext()).strip()
        for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    ]


SAMPLES = tuple(Sample(60.0 * n, n % 7, 5, 8.0, 6.0, 2.0, {"topas": 5.0, "cloud": 3.0}) for n in range(100))


def made(policy: str = "ours", seed: int = 1, **given: object) -> ReplayResult:
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
        owner_wait_s=1.5,
        requests=110 + seed,
        drones_started=104,
        withdrawn=6,
        preempted=3,
        decisions=Decisions(1000, 0.0005, 0.02),
        energy_kwh=9.8,
        co2_kg=3.92,
        by_site={"topas": GpuTime(60.0, 50.0, 2.0, 4.0, 1.0, 3.0), "cloud": GpuTime(60.0, 50.0, 3.0, 4.0, 1.0, 2.0)},
    )
    return replace(usual, **given)  # type: ignore[arg-type]


def replayed(policy: str, scenario: Scenario) -> ReplayResult:
    """What really came of a scenario."""
    return summarize(simulate(scenario), policy=policy, trace="calm", jobs=scenario.jobs)


def test_the_figures_of_real_replays_are_on_the_page() -> None:
    def patient(seed: int) -> Scenario:
        scenario = calm(seed=seed)
        return replace(scenario, policy=replace(scenario.policy, idle_timeout_s=600.0))

    runs = {
        "brisk": [replayed("brisk", calm(seed=seed)) for seed in (1, 2, 3)],
        "patient": [replayed("patient", patient(seed)) for seed in (1, 2, 3)],
    }
    page = Page(html_page(runs))
    shown, cells = page.numbers, page.table
    for policy, results in runs.items():
        goods = [result.gpu_hours.good for result in results]
        wastes = [100 * result.gpu_hours.waste for result in results]
        assert shown["Good (GPU-h)"][policy] == pytest.approx(statistics.mean(goods))
        assert shown["Waste (%)"][policy] == pytest.approx(statistics.mean(wastes))
        assert f"± {amount(statistics.stdev(wastes))}" in cells["Waste (%)"][policy]
        assert shown["Mean wait (s)"][policy] == pytest.approx(statistics.mean(r.waits.mean_s for r in results))
        assert shown["Requests (drones)"][policy] == statistics.mean(r.requests for r in results)
        assert shown["Violations"][policy] == pytest.approx(statistics.mean(len(r.violations) for r in results))
    difference = shown["Idle (GPU-h)"]["patient less brisk"]
    idles = {policy: [result.gpu_hours.idle for result in results] for policy, results in runs.items()}
    assert difference == pytest.approx(
        statistics.mean(b - a for a, b in zip(idles["brisk"], idles["patient"], strict=True))
    )
    improved = sum(b < a for a, b in zip(idles["brisk"], idles["patient"], strict=True))
    assert f"better in {improved} of 3" in cells["Idle (GPU-h)"]["patient less brisk"]


def test_every_figure_of_a_result_is_there() -> None:
    result = made()
    page = Page(html_page({"ours": [result]}))
    assert "No promise was broken in 1 replay." in page.text
    shown = {row: by["ours"] for row, by in page.numbers.items() if row}
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
        "Owner's wait for drones (s)": 1.5,
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
    assert shown == pytest.approx(expected)
    assert "±" not in "".join(row["ours"] for row in page.table.values()), "one seed has no spread"


def test_what_no_replay_tells_is_left_out() -> None:
    page = Page(html_page({"ours": [made(energy_kwh=None, co2_kg=None, by_site={})]}))
    assert not {"Energy (kWh)", "Energy per job (kJ)", "First start of a burst (s)"} & page.table.keys()
    assert len(page.plots) == 3, "neither sites nor time line"


def test_each_plot_has_words_and_is_drawn() -> None:
    page = Page(html_page({"ours": [made(samples=SAMPLES), made(seed=2)], "rival": [made("rival", samples=SAMPLES)]}))
    hours, scatter, waits, sites, ours, rival = page.plots
    assert {"good", "badput", "boot", "release", "idle", "ours", "rival", "waste 21.5 %"} <= set(hours)
    assert {"ours", "rival", "mean wait (s)"} <= set(scatter) and {"all jobs", "small", "large"} <= set(waits)
    assert {"topas · ours", "topas · rival", "cloud · rival", "20 %"} <= set(sites)
    assert {"Jobs", "waiting", "owner's", "topas", "cloud", "hours"} <= set(ours) == set(rival)
    assert "Time line: rival, trace openb, seed 1" in page.text
    assert all(value for _, name, value in page.attributes if name == "alt")
    assert re.search(r"<p>A drone holds its GPUs .*</p>\n<figure><img", page.source)


def test_nothing_refers_to_the_network() -> None:
    page = Page(html_page({"ours": [made(samples=SAMPLES)], "rival": [made("rival")]}, notes=["A note."]))
    assert not {"script", "link", "iframe", "object", "image", "base"} & set(page.tags)
    for tag, attribute, value in page.attributes:
        assert "//" not in value or (tag, attribute) == ("img", "src"), (tag, attribute, value)
    assert not re.search(r"@import|url\(", page.source)
    policy = next(value for tag, name, value in page.attributes if tag == "meta" and "default-src" in value)
    assert policy.startswith("default-src 'none'")


def test_both_schemes_and_print_are_served() -> None:
    source = html_page({"ours": [made()]})
    assert "prefers-color-scheme: dark" in source and "@media print" in source


def test_foreign_text_stays_text() -> None:
    result = made(
        HOSTILE,
        trace=HOSTILE,
        violations=(HOSTILE,),
        waits_by_class={HOSTILE: WaitStatistics(9, 1.0, 1.0, 2.0)},
        by_site={HOSTILE: GpuTime(2.0, 1.0, 1.0)},
        samples=(Sample(0.0, 1, 1, 1.0, 1.0, 0.0, {HOSTILE: 1.0}), Sample(60.0, 1, 1, 1.0, 1.0, 0.0, {HOSTILE: 1.0})),
    )
    page = Page(html_page({HOSTILE: [result], "other": [made(trace=HOSTILE)]}, command=HOSTILE, notes=[HOSTILE]))
    tame = made(violations=("a line",), samples=SAMPLES)
    harmless = Page(html_page({"ours": [tame], "other": [made()]}, command="tame", notes=["A note."]))
    assert set(page.tags) == set(harmless.tags)
    assert {name for _, name, _ in page.attributes} == {name for _, name, _ in harmless.attributes}
    assert page.text.count("<script>alert(1)</script>\"'&amp; $\\frac{$") >= 5
    assert "\x1b" not in page.source and "\u202e" not in page.source
    assert any(text.startswith("<script>alert(1)</script>") for texts in page.plots for text in texts)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_any_name_makes_a_page(policy: str, kind: str, site: str) -> None:
    result = made(
        policy, waits_by_class={kind: WaitStatistics(9, 1.0, 1.0, 2.0)}, by_site={site: GpuTime(2.0, 1.0, 1.0)}
    )
    page = Page(html_page({policy: [result]}, command=kind, notes=[site]))
    assert "script" not in page.tags and len(page.plots) == 4


def test_a_policy_whose_name_begins_with_an_underscore_is_in_the_legend() -> None:
    drawn = svg(waste_against_wait, {"_ours": [made()], "rival": [made()]})
    assert {"_ours", "rival"} <= set(svg_texts(drawn))


def test_violations_come_first_and_are_counted() -> None:
    lines = tuple(f"cap broken at {n} s" for n in range(130))
    page = Page(html_page({"ours": [made(), made(seed=2, violations=lines)]}))
    assert "130 broken promises in 2 replays" in page.alerts
    assert "ours, trace openb, seed 2: cap broken at 0 s" in page.alerts
    assert "and 30 more" in page.alerts
    assert page.source.index('role="alert"') < page.source.index("<table")
    assert page.numbers["Violations"]["ours"] == 65.0
    assert "No promise was broken" not in page.text


def test_waste_without_anything_good_is_infinite() -> None:
    lost = made(gpu_hours=GpuTime(held=3.0, boot=3.0), jobs_done=0, waits=WaitStatistics())
    page = Page(html_page({"lost": [lost, made(seed=2)], "ours": [made(), made(seed=2)]}))
    figures = page.table
    assert figures["Waste (%)"]["lost"].startswith("∞") and "nan" not in page.text
    assert "1 without good GPU-hours or waits cannot be shown" in page.text
    assert "better in 0 of 1" in figures["Waste (%)"]["ours less lost"], "only where both are finite"


def test_a_trace_without_jobs_makes_a_page() -> None:
    nothing = ReplayResult("ours", "empty", 1, 0.0, 0, 0, 0, GpuTime(), WaitStatistics())
    page = Page(html_page({"ours": [nothing]}))
    assert "Waste (%)" not in page.table, "nothing was held, so nothing was wasted"
    assert page.numbers["Held (GPU-h)"]["ours"] == 0.0


def test_only_common_seeds_are_compared() -> None:
    first = [made(seed=1, requests=100), made(seed=2, requests=200), made(seed=3, requests=1)]
    second = [made(seed=2, requests=190), made(seed=1, requests=70), made(seed=4, requests=9999)]
    (requests,) = [figure for figure in FIGURES["Jobs and drones"] if figure.name == "Requests"]
    difference = paired(requests, first, second)
    assert difference and difference.spread.mean == -20.0 and difference.spread.count == 2 and difference.improved == 2
    other_trace = [replace(result, trace="philly") for result in second]
    assert paired(requests, first, other_trace) is None
    page = Page(html_page({"a": first, "b": second}))
    assert "2 seeds are in all policies" in page.text
    assert "-20" in page.table["Requests (drones)"]["b less a"]


def test_the_page_begins_with_its_subject_command_and_answer() -> None:
    runs = {"ours": [made(days=8.55), replace(made(), seed=2, days=8.57)], "rival": [made("rival", days=8.56)]}
    page = Page(html_page(runs, command="provisioner simulate a.csv --what-if 'x < y'"))
    text = " ".join(page.text.split())
    assert "Replay of openb: ours against rival" in text
    assert "8.55 to 8.57 days, 2 policies" in text
    assert "provisioner simulate a.csv --what-if 'x < y'" in text
    answer = "98 of 100 jobs done; mean wait 31s, 95 % of waits within 1m30s; waste 21 % of the good GPU-hours"
    assert f"ours: {answer}" in text and text.index("ours: 98") < text.index("Figures by policy")


def test_many_policies_and_many_classes_make_a_page() -> None:
    classes = {f"class {n}": WaitStatistics(1000 - n, 10.0, 5.0, 50.0) for n in range(300)}
    page = Page(html_page({f"policy {n}": [made(f"policy {n}", waits_by_class=classes)] for n in range(12)}))
    assert {"all jobs", "class 0", "class 3"} <= set(page.plots[2]) and "class 4" not in page.plots[2]
    assert len(page.rows[0]) == 1 + 12 + 11


def test_the_page_is_the_same_whatever_the_users_settings_are() -> None:
    runs = {"ours": [made()]}
    before = html_page(runs)
    with matplotlib.rc_context({"axes.facecolor": "red", "font.size": 30, "svg.fonttype": "path"}):
        assert html_page(runs) == before
        assert matplotlib.rcParams["font.size"] == 30


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotsMissingError, match=r"pip install 'gpu-drone-provisioner\[report\]'"):
        html_page({"ours": [made()]})


def test_matplotlib_is_loaded_only_for_a_plot() -> None:
    code = "import sys, provisioner.simulator.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


# ---------------------------------------------------------------------------------------------------------- JSON form

NUMBER = st.floats(0, 1e12, allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=20)
WAITS = st.builds(WaitStatistics, st.integers(0, 10**9), NUMBER, NUMBER, NUMBER)
HOURS = st.builds(GpuTime, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER)
RESULTS = st.builds(
    ReplayResult,
    policy=TEXT,
    trace=TEXT,
    seed=st.integers(0, 2**40),
    days=NUMBER,
    jobs=st.integers(0, 10**9),
    jobs_done=st.integers(0, 10**9),
    jobs_impossible=st.integers(0, 10**9),
    gpu_hours=HOURS,
    waits=WAITS,
    waits_by_class=st.dictionaries(TEXT, WAITS, max_size=3),
    burst_first_s=st.none() | NUMBER,
    violations=st.lists(TEXT, max_size=3).map(tuple),
    decisions=st.builds(Decisions, st.integers(0, 10**9), NUMBER, NUMBER),
    energy_kwh=st.none() | NUMBER,
    by_site=st.dictionaries(TEXT, HOURS, max_size=3),
    samples=st.lists(
        st.builds(
            Sample, NUMBER, st.integers(0, 9), st.integers(0, 9), NUMBER, NUMBER, NUMBER, st.dictionaries(TEXT, NUMBER)
        ),
        max_size=2,
    ).map(tuple),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(TEXT, st.lists(RESULTS, max_size=2).map(tuple), max_size=2))
def test_json_and_back_is_the_same_and_follows_the_schema(runs: dict[str, tuple[ReplayResult, ...]]) -> None:
    text = to_json(runs)
    assert from_json(text) == runs
    jsonschema.validate(json.loads(text), schema())


def test_the_schema_knows_what_is_wrong() -> None:
    document = json.loads(to_json({"ours": [made()]}))
    document["runs"]["ours"][0]["seed"] = "first"
    with pytest.raises(jsonschema.ValidationError, match="'first' is not of type 'integer'"):
        jsonschema.validate(document, schema())
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no report of a replay"),
        ("[1]", "no report of a replay"),
        ("{}", "the key 'schema' is wanted"),
        ('{"schema": 99, "runs": {}}', "version 99; this provisioner reads 1"),
        ('{"schema": 1, "runs": {"ours": [{"policy": 3}]}}', r"runs\.ours\.0\.policy: Input should be a valid string"),
        ('{"schema": 1}', "runs: Field required"),
    ],
)
def test_what_is_no_report_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        from_json(text)


def test_a_number_that_json_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        to_json({"ours": [made(owner_wait_s=inf)]})


# ------------------------------------------------------------------------------------------------------ small pieces


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=20))
def test_spread_is_that_of_a_sample(values: list[float]) -> None:
    over = spread([None, *values])
    assert over and over.count == len(values)
    assert over.mean == pytest.approx(statistics.mean(values), abs=1e-3)
    assert over.deviation == pytest.approx(statistics.stdev(values), abs=1e-3)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (inf, "∞"),
        (0.0, "0"),
        (0.001234, "0.00123"),
        (12.345, "12.3"),
        (999.4, "999"),
        (1234567.0, "1,234,567"),
    ],
)
def test_amounts(value: float | None, text: str) -> None:
    assert amount(value) == text
