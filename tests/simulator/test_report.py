"""The report on replays: its numbers are the results' own, it stands alone, and foreign text stays text."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from itertools import pairwise
from math import inf
from pathlib import Path

import jsonschema
import matplotlib
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provisioner.simulator.figures import (
    FIGURES,
    PlotsMissingError,
    amount,
    paired,
    span,
    spread,
    thinned,
    waste_wait_scatter,
)
from provisioner.simulator.replay import summarize
from provisioner.simulator.report import (
    MAX_TABLE_ROWS,
    SCHEMA_FILE,
    from_json,
    html_page,
    schema,
    schema_text,
    to_json,
    write_html,
)
from provisioner.simulator.results import Decisions, GpuHours, ReplayResult, Sample, WaitStatistics
from provisioner.simulator.world import Scenario, simulate
from tests.simulator.worlds import calm

ROOT = Path(__file__).parents[2]
HOSTILE = "<script>alert(1)</script>\"'&amp; $\\frac{$ \x1b[31m\u202e]]> {x} ${title}"
VOID = {"meta", "br", "img", "link", "hr", "input"}


@dataclass
class Page(HTMLParser):
    """A page taken apart: tables by caption, attributes, text, and whether every tag is closed in order."""

    source: str
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    values: dict[str, list[list[float | None]]] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    attributes: list[tuple[str, str, str]] = field(default_factory=list)
    text: str = ""
    alerts: str = ""
    svg_text: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self._caption = ""
        self._rows: list[list[str]] = []
        self._numbers: list[list[float | None]] = []
        self.feed(self.source)
        self.close()
        assert not self._open, f"left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        match tag:
            case "table":
                self._caption, self._rows, self._numbers = "", [], []
            case "tr":
                self._rows.append([])
                self._numbers.append([])
            case "td" | "th":
                self._rows[-1].append("")
                self._numbers[-1].append(None)
            case "data":
                self._numbers[-1][-1] = float(dict(attrs)["value"] or "")
            case "text":
                self.svg_text.append("")
        if tag not in VOID:
            self._open.append((tag, dict(attrs)))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        opened, _ = self._open.pop()
        assert opened == tag, f"</{tag}> closes <{opened}>"
        if tag == "table":
            self.tables[self._caption], self.values[self._caption] = self._rows, self._numbers

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self._open]
        if "style" in tags:
            return
        self.text += data
        if any(attributes.get("role") == "alert" for _, attributes in self._open):
            self.alerts += data
        if tags and tags[-1] == "caption":
            self._caption += data
        elif "td" in tags or "th" in tags:
            self._rows[-1][-1] += data
        elif tags and tags[-1] == "text":
            self.svg_text[-1] += data

    def table(self, caption: str) -> dict[str, dict[str, str]]:
        """Of the table whose caption begins so: row heading to column heading to text."""
        head, *rows = next(rows for found, rows in self.tables.items() if found.startswith(caption))
        return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows if len(row) == len(head)}

    def numbers(self, caption: str) -> dict[str, dict[str, float | None]]:
        """The same with numbers as programs read them."""
        found = next(found for found in self.tables if found.startswith(caption))
        head = self.tables[found][0]
        return {
            row[0]: dict(zip(head[1:], values[1:], strict=True))
            for row, values in zip(self.tables[found][1:], self.values[found][1:], strict=True)
            if len(row) == len(head)
        }


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
        gpu_hours=GpuHours(held=120.0 + seed, good=100.0, badput=5.0, boot=8.0, release=2.0, idle=5.0 + seed),
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
        by_site={"topas": GpuHours(60.0, 50.0, 2.0, 4.0, 1.0, 3.0), "cloud": GpuHours(60.0, 50.0, 3.0, 4.0, 1.0, 2.0)},
    )
    return replace(usual, **given)  # type: ignore[arg-type]


def replayed(policy: str, scenario: Scenario) -> ReplayResult:
    """What really came of a scenario."""
    kinds = [kind for facility in scenario.facilities for kind in facility.types]
    return summarize(simulate(scenario), policy=policy, trace="calm", jobs=scenario.jobs, types=kinds)


def test_the_figures_of_real_replays_are_on_the_page(tmp_path: Path) -> None:
    def patient(seed: int) -> Scenario:
        scenario = calm(seed=seed)
        return replace(scenario, policy=replace(scenario.policy, idle_timeout_s=600.0))

    runs = {
        "brisk": [replayed("brisk", calm(seed=seed)) for seed in (1, 2, 3)],
        "patient": [replayed("patient", patient(seed)) for seed in (1, 2, 3)],
    }
    write_html(tmp_path / "report.html", runs, title="Two time-outs")
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    shown, cells = page.numbers("Figures by policy"), page.table("Figures by policy")
    for policy, results in runs.items():
        goods = [result.gpu_hours.good for result in results]
        wastes = [100 * result.gpu_hours.waste for result in results]
        assert shown["Good (GPU-h)"][policy] == pytest.approx(statistics.mean(goods))
        assert shown["Waste (%)"][policy] == pytest.approx(statistics.mean(wastes))
        assert f"± {amount(statistics.stdev(wastes))}" in cells["Waste (%)"][policy]
        assert shown["Mean wait (s)"][policy] == pytest.approx(statistics.mean(r.waits.mean_s for r in results))
        assert shown["Requests (drones)"][policy] == statistics.mean(r.requests for r in results)
        assert shown["Violations"][policy] == pytest.approx(statistics.mean(len(r.violations) for r in results))
    difference = page.numbers("Difference from brisk")["Idle (GPU-h)"]["patient"]
    idles = {policy: [result.gpu_hours.idle for result in results] for policy, results in runs.items()}
    assert difference == pytest.approx(
        statistics.mean(b - a for a, b in zip(idles["brisk"], idles["patient"], strict=True))
    )
    improved = sum(b < a for a, b in zip(idles["brisk"], idles["patient"], strict=True))
    assert f"better in {improved} of 3" in page.table("Difference from brisk")["Idle (GPU-h)"]["patient"]


def test_every_figure_of_a_result_is_there() -> None:
    result = made()
    page = Page(html_page({"ours": [result]}))
    assert "No promise was broken in 1 replay." in page.text
    shown = {row: by["ours"] for row, by in page.numbers("Figures by policy").items()}
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
    assert result.kj_per_job == pytest.approx(360.0)
    assert "±" not in "".join(row["ours"] for row in page.table("Figures by policy").values()), "one seed has no spread"


def test_what_no_replay_tells_is_left_out() -> None:
    page = Page(html_page({"ours": [made(energy_kwh=None, co2_kg=None, by_site={})]}))
    assert not {"Energy (kWh)", "Energy per job (kJ)", "First start of a burst (s)"} & page.table("Figures").keys()
    assert page.source.count("<svg") == 3, "neither sites nor time line"


def test_each_plot_has_words_and_a_table() -> None:
    page = Page(html_page({"ours": [made(samples=SAMPLES), made(seed=2)], "rival": [made("rival", samples=SAMPLES)]}))
    figures = re.findall(r"<figure>.*?</details>", page.source, re.DOTALL)
    assert len(figures) == 6, "hours, scatter, waits, sites, and a time line for each policy"
    for figure in figures:
        opening = re.search(r"<svg [^>]*>", figure)
        assert opening and 'role="img"' in opening[0]
        assert re.search(r'aria-label="[^"]{30,}"', opening[0])
        assert "<title>" in figure and "<desc>" in figure and "<caption>" in figure
    assert {"good", "badput", "boot", "release", "idle", "ours", "rival"} <= set(page.svg_text)
    hours = page.numbers("GPU-hours by policy")
    assert hours["ours"]["idle"] == 6.5 and hours["rival"]["idle"] == 6.0
    assert page.tables["Each replay"][2][:3] == ["ours", "openb", "2"]
    times = next(rows for caption, rows in page.tables.items() if caption.startswith("Time line: ours"))
    assert times[0][-2:] == ["topas", "cloud"] and times[1][-2:] == ["5", "3"]


def test_nothing_refers_to_the_network() -> None:
    page = Page(html_page({"ours": [made(samples=SAMPLES)], "rival": [made("rival")]}, notes=["A note."]))
    assert not {"script", "link", "img", "iframe", "object", "image", "base"} & set(page.tags)
    names = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    for tag, attribute, value in page.attributes:
        if attribute.startswith("xmlns"):
            assert value in names, "a name that nobody fetches"
        elif attribute in ("href", "xlink:href", "src"):
            assert value.startswith("#"), (tag, attribute, value)
        else:
            assert "//" not in value, (tag, attribute, value)
    assert "@import" not in page.source
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", page.source))
    policy = next(value for tag, name, value in page.attributes if tag == "meta" and "default-src" in value)
    assert policy.startswith("default-src 'none'")


def test_both_schemes_and_print_are_served() -> None:
    source = html_page({"ours": [made()]})
    assert "prefers-color-scheme: dark" in source and "@media print" in source
    assert "currentColor" in source and "#010203" not in source


def test_ids_are_unique_or_mean_the_same() -> None:
    source = html_page({"ours": [made(samples=SAMPLES)], "rival": [made("rival", samples=SAMPLES)]})
    known: dict[str, str] = {}
    for opening in re.findall(r'<[^>]* id="[^"]*"[^>]*>', source):
        name = re.search(r' id="([^"]*)"', opening)
        assert name and known.setdefault(name[1], opening) == opening
    wanted = re.findall(r'(?:href="|url\()#([^")]*)', source)
    assert wanted and set(wanted) <= known.keys()


def test_foreign_text_stays_text() -> None:
    result = made(
        HOSTILE,
        trace=HOSTILE,
        violations=(HOSTILE,),
        waits_by_class={HOSTILE: WaitStatistics(9, 1.0, 1.0, 2.0)},
        by_site={HOSTILE: GpuHours(2.0, 1.0, 1.0)},
        samples=(Sample(0.0, 1, 1, 1.0, 1.0, 0.0, {HOSTILE: 1.0}), Sample(60.0, 1, 1, 1.0, 1.0, 0.0, {HOSTILE: 1.0})),
    )
    page = Page(html_page({HOSTILE: [result], "other": [made(trace=HOSTILE)]}, title=HOSTILE, notes=[HOSTILE]))
    tame = made(violations=("a line",), samples=SAMPLES)
    harmless = Page(html_page({"ours": [tame], "other": [made()]}, title="Tame", notes=["A note."]))
    assert set(page.tags) == set(harmless.tags)
    assert {name for _, name, _ in page.attributes} == {name for _, name, _ in harmless.attributes}
    assert page.text.count("<script>alert(1)</script>\"'&amp; $\\frac{$") >= 5
    assert "\x1b" not in page.source and "\u202e" not in page.source
    assert any(text.startswith("<script>alert(1)</script>") for text in page.svg_text)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_any_name_makes_a_page(policy: str, kind: str, site: str) -> None:
    result = made(
        policy, waits_by_class={kind: WaitStatistics(9, 1.0, 1.0, 2.0)}, by_site={site: GpuHours(2.0, 1.0, 1.0)}
    )
    page = Page(html_page({policy: [result]}, title=kind, notes=[site]))
    assert "script" not in page.tags


def test_a_policy_whose_name_begins_with_an_underscore_is_in_the_legend() -> None:
    svg = Page(waste_wait_scatter({"_ours": [made()], "rival": [made()]}))
    assert {"_ours", "rival"} <= {text.strip() for text in svg.svg_text}


def test_violations_come_first_and_are_counted() -> None:
    lines = tuple(f"cap broken at {n} s" for n in range(130))
    page = Page(html_page({"ours": [made(), made(seed=2, violations=lines)]}))
    assert "130 broken promises in 2 replays" in page.alerts
    assert "ours, trace openb, seed 2: cap broken at 0 s" in page.alerts
    assert "and 30 more" in page.alerts
    assert page.source.index('role="alert"') < page.source.index("<table")
    assert page.numbers("Figures by policy")["Violations"]["ours"] == 65.0
    assert "No promise was broken" not in page.text


def test_waste_without_anything_good_is_infinite() -> None:
    lost = made(gpu_hours=GpuHours(held=3.0, boot=3.0), jobs_done=0, waits=WaitStatistics())
    page = Page(html_page({"lost": [lost, made(seed=2)], "ours": [made(), made(seed=2)]}))
    figures = page.table("Figures by policy")
    assert figures["Waste (%)"]["lost"].startswith("∞") and "nan" not in page.text
    assert "1 without good GPU-hours or waits cannot be shown" in page.text
    assert "better in 0 of 1" in page.table("Difference from lost")["Waste (%)"]["ours"], "only where both are finite"


def test_a_trace_without_jobs_makes_a_page() -> None:
    nothing = ReplayResult("ours", "empty", 1, 0.0, 0, 0, 0, GpuHours(), WaitStatistics())
    page = Page(html_page({"ours": [nothing]}))
    assert "Waste (%)" not in page.table("Figures by policy"), "nothing was held, so nothing was wasted"
    assert page.numbers("Figures by policy")["Held (GPU-h)"]["ours"] == 0.0
    assert page.table("GPU-hours by policy")["ours"]["waste %"] == "-"


def test_only_common_seeds_are_compared() -> None:
    first = [made(seed=1, requests=100), made(seed=2, requests=200), made(seed=3, requests=1)]
    second = [made(seed=2, requests=190), made(seed=1, requests=70), made(seed=4, requests=9999)]
    (requests,) = [figure for figure in FIGURES["Jobs and drones"] if figure.name == "Requests"]
    difference = paired(requests, first, second)
    assert difference and difference.spread.mean == -20.0 and difference.spread.count == 2 and difference.improved == 2
    other_trace = [replace(result, trace="philly") for result in second]
    assert paired(requests, first, other_trace) is None
    page = Page(html_page({"a": first, "b": second}))
    assert "Seeds that all policies have: 2." in page.text
    assert "-20" in page.table("Difference from a")["Requests (drones)"]["b"]


def test_the_page_begins_with_its_subject_command_and_answer() -> None:
    runs = {"ours": [made(days=8.55), replace(made(), seed=2, days=8.57)], "rival": [made("rival", days=8.56)]}
    page = Page(html_page(runs, command="provisioner simulate a.csv --what-if 'x < y'"))
    text = " ".join(page.text.split())
    assert "Replay of openb: ours against rival" in text
    assert "8.55 to 8.57 days, 2 policies" in text
    assert "provisioner simulate a.csv --what-if 'x < y'" in text
    answer = "98 of 100 jobs done; mean wait 31 s, 95 % of waits within 1 min 30 s; waste 21 % of the good GPU-hours"
    assert f"ours: {answer}" in text and text.index("ours: 98") < text.index("Figures by policy")


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.0, "0 s"),
        (59.6, "1 min"),
        (90.0, "1 min 30 s"),
        (9576.0, "2 h 40 min"),
        (3599.9, "1 h"),
        (273600.0, "3 d 4 h"),
        (inf, "∞"),
    ],
)
def test_a_span_is_told_in_its_two_largest_units(seconds: float, told: str) -> None:
    assert span(seconds) == told


def test_many_policies_and_many_classes_make_a_page() -> None:
    classes = {f"class {n}": WaitStatistics(1000 - n, 10.0, 5.0, 50.0) for n in range(300)}
    runs = {f"policy {n}": [made(f"policy {n}", waits_by_class=classes)] for n in range(12)}
    page = Page(html_page(runs))
    (caption,) = [caption for caption in page.tables if caption.startswith("Waits by class")]
    assert len(page.tables[caption]) == 1 + MAX_TABLE_ROWS
    assert f"{301 * 12 - MAX_TABLE_ROWS} more rows are in the JSON form" in caption


def test_the_page_is_the_same_whatever_the_users_settings_are() -> None:
    runs = {"ours": [made()]}
    before = html_page(runs)
    with matplotlib.rc_context({"axes.facecolor": "red", "font.size": 30, "svg.fonttype": "path"}):
        assert html_page(runs) == before
        assert matplotlib.rcParams["font.size"] == 30


def test_without_replays_there_is_nothing_to_report() -> None:
    with pytest.raises(ValueError, match="no replay to report on"):
        html_page({})
    with pytest.raises(ValueError, match="no replay of the policy 'ours'"):
        html_page({"ours": []})
    with pytest.raises(ValueError, match="'ours' has seed 1 of the trace 'openb' twice"):
        html_page({"ours": [made(), made()]})


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotsMissingError, match=r"pip install 'gpu-drone-provisioner\[report\]'"):
        write_html(tmp_path / "report.html", {"ours": [made()]})
    assert not (tmp_path / "report.html").exists()


def test_matplotlib_is_loaded_only_for_a_plot() -> None:
    code = "import sys, provisioner.simulator.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


# ---------------------------------------------------------------------------------------------------------- JSON form

NUMBER = st.floats(0, 1e12, allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=20)
WAITS = st.builds(WaitStatistics, st.integers(0, 10**9), NUMBER, NUMBER, NUMBER)
HOURS = st.builds(GpuHours, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER)
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


def test_the_committed_schema_is_up_to_date() -> None:
    committed = ROOT / "docs" / "reference" / SCHEMA_FILE
    assert committed.read_text(encoding="utf-8") == schema_text(), (
        "run python -m provisioner.simulator.report --write docs/reference"
    )


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


@given(st.lists(st.floats(0, 1e7), min_size=1, max_size=200).map(sorted), st.integers(1, 50))
def test_thinning_keeps_times_in_order_and_values_in_range(times: list[float], most: int) -> None:
    samples = [Sample(at_s, n, 1, float(n), 0.0, 0.0, {"kit": float(n)}) for n, at_s in enumerate(times)]
    few = thinned(samples, most)
    assert 1 <= len(few) <= max(most, 1)
    assert few[0].at_s == samples[0].at_s
    assert all(a.at_s < b.at_s for a, b in pairwise(few)) or len(samples) <= most
    assert all(0 <= sample.gpus_held <= len(times) - 1 for sample in few)
    assert all(sample.by_site.get("kit", 0.0) == pytest.approx(sample.gpus_held) for sample in few)


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
