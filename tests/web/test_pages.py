"""Each page has its main facts, needs no script, keeps foreign text as text, and says what is not there."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections import Counter
from dataclasses import replace
from functools import partial
from html import unescape
from importlib.resources import files
from pathlib import Path
from urllib.parse import unquote_plus
from xml.etree import ElementTree

import pytest

from provisioner.answers import explain
from provisioner.answers.errors import VerbError
from provisioner.answers.explain import AnyIdQuery, explain_id, explained_job
from provisioner.model import BreakerState, DroneState, Refusal, Scope, Subject
from provisioner.reasons import (
    BackingOff,
    PlannerFailed,
    Reason,
    RequestAdvice,
    SiteDisabled,
    StaleView,
    StartBlocked,
    StartForecast,
    StartOutcome,
)
from provisioner.store.measures import MetricKey
from provisioner.store.reader import Reader
from provisioner.store.series import add_sample
from provisioner.store.writer import SqlStore
from provisioner.web.pages import PAGES, _good_and_lost, render
from tests.web import records
from tests.web.records import HOSTILE, SeriesReader

PATHS = {
    "/": (
        "1 critical trouble",
        "no controller runs",
        "token expired at 06:00:00Z",
        "Waiting: 147 jobs in 7 classes, for 7 reasons",
        "theory/kim: 8 CPUs, 24 GiB RAM",
    ),
    "/?vo=cms": ("all VOs", "VO theory", "Waiting jobs of VO cms", "cms/ariane"),
    "/?vo=nosuch": ("VO nosuch", "Waiting jobs of VO nosuch: none"),
    "/why": ("Why does a job wait",),
    "/class/47": (
        "Class etp/jonas: 1 GPU, 160 GiB VRAM (47)",
        "no drone type fits: vram must be 160 GiB",
        "etp/jonas",
    ),
    "/sites": ("All sites", "banned", "Authentication failed: token expired at 06:00:00Z"),
    "/sites/topas": ("Site topas", "topas-a100-04.example.org", "8 CPU, 32 GiB"),
    "/sites/horeka": ("horeka banned until", "Authentication failed"),
    "/drones": ("55 drones", "etp-k7f2-30", "busy"),
    "/drones?site=nemo&state=busy,draining&sort=-age_s": (
        "11 drones; site: nemo; state: busy, draining",
    ),
    "/owner": ("physics/anna", "Drones that leave for the owner", "nemo/l40s"),
    "/use": (
        "GPU-hours of drones in the last 7 days",
        "theory/kim: 1 GPU, 4 CPUs, 16 GiB RAM",
        "VRAM asked",
        "24 GiB",
    ),
    "/use?by=user&since=30d": ("cms/ariane", "last 30 days"),
    "/waste": ("GPU-hours in the last day", "good 74%", "The figures as a table"),
    "/plan": ("Plan for tick 4", "atlas/mia: 1.5 GPUs (58)", "no slot can ever satisfy"),
    "/drone/30": (
        "busy for",
        "Drone etp-k7f2-30",
        "horeka/h100",
        "requested",
        "the site accepted the order as 5530.0",
    ),
    "/drone/74": ("failed", "no CUDA device", "Last output nvidia-smi: No devices were found"),
    "/drone/2": ("busy for", "job 8790.1", "State and work", "Place", "Times"),
    "/job/8831.2": (
        "Job 8831.2 waits",
        "What would start it soonest",
        "ask for GPUs with 46 GiB of memory instead of 160 GiB",
    ),
    "/job/8790.3": ("Job 8790.3 runs", "runs in drone etp-k7f2-"),
}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> SeriesReader:
    return records.write(tmp_path_factory.mktemp("record") / "provisioner.db")


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> SeriesReader:
    """The same with a hostile name for all that users and sites name."""
    return records.write(tmp_path_factory.mktemp("record") / "provisioner.db", strange=HOSTILE)


class Rendered:
    """A page taken apart: it is well-formed XML."""

    def __init__(self, reader: Reader, address: str) -> None:
        path, _, query = address.partition("?")
        pairs = (pair.partition("=")[::2] for pair in query.split("&") if pair)
        self.source = render(path, reader, {key: unquote_plus(value) for key, value in pairs})
        self.root = ElementTree.fromstring(self.source)
        (main,) = self.root.iter("main")
        self.text = " ".join("".join(main.itertext()).split())

    @property
    def title(self) -> str:
        return self.root.findtext("head/title", "")

    def rows(self, caption: str) -> list[list[str]]:
        """The texts of the cells of a table."""
        (table,) = [
            t for t in self.root.iter("table") if t.findtext("caption", "").startswith(caption)
        ]
        return [
            [" ".join("".join(cell.itertext()).split()) for cell in row] for row in table.iter("tr")
        ]


@pytest.mark.parametrize("address", PATHS)
def test_a_page_has_its_title_and_its_main_facts(reader: SeriesReader, address: str) -> None:
    page = Rendered(reader, address)
    assert page.title.endswith(" · GPU drones")
    for fact in PATHS[address]:
        assert fact in page.text, page.text
    if address.startswith("/drone/"):
        (lead,) = [p.text for p in page.root.iter("p") if p.get("class") == "lead"]
        assert lead.startswith(PATHS[address][0])
    assert len(list(page.root.iter("h1"))) == 1


@pytest.mark.parametrize("address", PATHS)
def test_a_page_keeps_to_the_policy_and_is_small(reader: SeriesReader, address: str) -> None:
    """default-src 'self': no style, script or handler within the page, nothing from elsewhere."""
    page = Rendered(reader, address)
    for each in page.root.iter():
        tag = each.tag.rpartition("}")[2]
        assert tag != "style" and not (tag == "script" and (each.text or "src" not in each.attrib))
        assert not [key for key in each.attrib if key == "style" or key.startswith("on")]
        assert not any("//" in each.get(key, "") for key in ("src", "href", "action"))
    static = sum(len(each.read_bytes()) for each in (files("provisioner.web") / "static").iterdir())
    charts = sum(len(ElementTree.tostring(each)) for each in page.root.iter("figure"))
    rows = (
        sum(len(ElementTree.tostring(each)) for each in page.root.iter("tbody"))
        if "/drones" in address
        else 0
    )
    assert len(page.source.encode()) - charts - rows + static < 60_000


@pytest.mark.parametrize("address", [*PATHS, "/drones?show=all&columns=id,node,note,job_filter"])
def test_foreign_text_stays_text(reader: SeriesReader, strange: SeriesReader, address: str) -> None:
    tame, told = Rendered(reader, address), Rendered(strange, address)
    assert {each.tag for each in told.root.iter()} <= {each.tag for each in tame.root.iter()} | {
        "a",
        "svg",
        "rect",
    }
    assert {key for each in told.root.iter() for key in each.attrib} == {
        k for e in tame.root.iter() for k in e.attrib
    }
    assert (
        "<script>alert" not in told.source
        and "\x1b" not in told.source
        and "\u202e" not in told.source
    )
    assert not [
        each
        for each in told.root.iter("a")
        if each.get("href", "").lower().startswith(("java", "//"))
    ]


def test_the_hostile_name_is_shown_as_it_is(strange: SeriesReader) -> None:
    name = "<script>alert('x')</script>\"'&amp;"
    for address in ("/", "/sites", "/sites/topas", "/owner", "/use?by=user", "/class/41"):
        assert name in Rendered(strange, address).text, address


def test_what_is_asked_for_is_text_too(reader: SeriesReader) -> None:
    page = Rendered(reader, f"/why?q={HOSTILE.replace('&', '%26')}")
    (asked,) = page.root.iter("input")
    assert asked.get("value", "").startswith("<script>alert") and "<script>alert" in page.text
    assert not any(each.text for each in page.root.iter("script"))


def test_numbers_of_drones_are_those_of_the_record(reader: SeriesReader) -> None:
    live = Counter((drone.type, drone.state) for drone in reader.drones())
    rows = {row[0]: row[1:] for row in Rendered(reader, "/").rows("Drones by site and type")}
    assert rows["l40s"][0] == "0" and rows["t4"][0] == "2"
    for key in {kind for kind, _ in live}:
        shown = rows[key.partition("/")[2]]
        leaving = live[key, DroneState.DRAINING] + live[key, DroneState.STOPPING]
        assert shown[2:5] == [
            str(live[key, DroneState.BUSY]),
            str(live[key, DroneState.IDLE]),
            str(leaving),
        ], key
    assert sum(int(row[1]) for name, row in rows.items() if len(row) > 4 and name != "Type") == sum(
        number
        for (_, state), number in live.items()
        if state.value in ("requested", "submitted", "queued", "booting", "joined")
    )


def test_a_bar_has_the_states_of_a_type_one_after_the_other(reader: SeriesReader) -> None:
    bars = [each for each in Rendered(reader, "/").root.iter("svg") if each.get("class") == "bar"]
    parts = [
        [(part.get("class"), part.get("x"), part.get("width")) for part in bar] for bar in bars
    ]
    assert parts[0] == [
        ("starting", "0", "1"),
        ("running", "1", "4"),
        ("idle", "5", "0"),
        ("draining", "5", "1"),
    ]
    assert bars[0].get("viewBox") == "0 0 6 1" and len(bars) == 6


def test_a_vo_has_its_waiting_classes_those_with_most_jobs_first(
    reader: SeriesReader, strange: SeriesReader
) -> None:
    heads, *rows = Rendered(reader, "/?vo=cms").rows("Waiting jobs of VO cms")
    shown = [dict(zip(heads, row, strict=True)) for row in rows if len(row) > 1]
    assert [(row["VO"], row["Waiting"]) for row in shown] == [("cms", "38"), ("cms", "0")]
    everything = Rendered(reader, "/").root
    links = {"".join(link.itertext()): link.get("href", "") for link in everything.iter("a")}
    assert links["cms"] == "/?vo=cms" and links["VO theory"] == "?vo=theory"
    (link,) = {
        link.get("href", "")
        for link in Rendered(strange, "/").root.iter("a")
        if link.get("href", "").startswith("/?vo=")
    }
    page = Rendered(strange, link)
    assert len([row for row in page.rows("Waiting jobs of VO <script>alert") if len(row) > 1]) == 8
    long = Rendered(reader, f"/?vo={'v' * 4000}")
    assert "v" * 80 not in long.text


def test_classes_that_wait_for_one_reason_have_it_once_above_them(
    reader: SeriesReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    (plan,) = reader.plans(limit=1)
    why = SiteDisabled("topas", "carla", "cooling")
    refusals = tuple(Refusal(Subject("class", of), 1, why) for of in ("41", "44", "60"))
    other = Refusal(Subject("class", "47"), 1, PlannerFailed("KeyError"))
    told = replace(plan, starts=(), refusals=(*refusals, other))
    monkeypatch.setattr(reader, "plans", lambda **_: [told])
    page = Rendered(reader, "/")
    rows = page.rows("Waiting: 147 jobs in 7 classes, for 4 reasons")
    heads = [" ".join(row) for row in rows if len(row) == 1]
    assert heads[0] == "site topas is disabled by carla: cooling"
    assert [row[0].partition(":")[0] for row in rows[2:5]] == [
        "theory/kim",
        "cms/ariane",
        "belle2/tom",
    ]
    links = {"".join(link.itertext()): link.get("href") for link in page.root.iter("a")}
    assert links["cms/ariane: 1 GPU, 24 GiB VRAM"] == "/class/41"


def test_a_reason_of_several_types_of_a_site_is_said_once(
    reader: SeriesReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    (plan,) = reader.plans(limit=1)
    refusal = Refusal(Subject("class", "41"), 7, StaleView("site:nemo", 400.0, 300.0, "gone"))
    monkeypatch.setattr(
        reader, "plans", lambda **_: [replace(plan, starts=(), refusals=(refusal,))]
    )
    rows = {row[0]: row for row in Rendered(reader, "/").rows("Drones by site and type")}
    assert (
        "no decision for site:nemo" in rows["l40s"][-1] and rows["l40s-quarter"][-1] == "as above"
    )


def test_a_command_is_a_link_to_its_page_or_code(reader: SeriesReader) -> None:
    page = Rendered(reader, "/")
    assert "`" not in page.text
    links = {"".join(link.itertext()): link.get("href") for link in page.root.iter("a")}
    assert links["drone etp-k7f2-74"] == "/drone/etp-k7f2-74" and links["what waits"] == "/#waiting"
    assert [each.get("id") for each in page.root.iter("caption")].count("waiting") == 1
    code = ["".join(each.itertext()) for each in page.root.iter("code")]
    assert "provisioner sites reset horeka" in code


def test_what_is_refused_has_the_reason_of_most_jobs(reader: SeriesReader) -> None:
    rows = {row[0]: row for row in Rendered(reader, "/").rows("Drones by site and type")}
    assert rows["cpu"][-2] == "63" and "no free capacity for topas/cpu" in rows["cpu"][-1]
    assert "no decision for site:horeka" in rows["h100"][-1]
    assert reader.breakers()[Scope("horeka")].state is BreakerState.BANNED
    sites = [name for name, *cells in rows.items() if len(cells[0]) == 1]
    assert [site.split()[0] for site in sites] == ["cloud", "horeka", "nemo", "topas"]
    assert (
        "banned" in sites[1]
        and "7 of at most 30 drones" in sites[1]
        and "owner: 4 jobs wait" in sites[2]
    )


def test_the_charts_have_the_gpus_of_the_last_day_of_all_sites_and_by_site(
    reader: SeriesReader,
) -> None:
    def drawn(address: str) -> dict[str, str]:
        page = Rendered(reader, address)
        assert "GPUs in the last 24 hours" in page.text
        charts = [each for each in page.root.iter("svg") if each.get("class") == "chart"]
        return {
            each.get("aria-label", "").partition(" GPUs")[0]: each.get("aria-label", "")
            for each in charts
        }

    (whole,) = drawn("/").values()
    by_site = drawn("/sites")
    assert [*by_site] == ["cloud", "horeka", "nemo", "topas"]

    def newest(label: str, name: str) -> float:
        return float(re.findall(rf"{name} ([0-9.]+)", label)[0])

    for name in ("running", "idle", "starting", "draining"):
        total = sum(newest(label, name) for label in by_site.values())
        assert newest(whole, name) == pytest.approx(total, rel=0.1), name
    assert newest(whole, "waiting") > newest(whole, "running"), "GPUs that jobs ask for"


def test_the_chart_of_a_young_record_has_its_minutes(tmp_path: Path) -> None:
    async def create() -> None:
        async with SqlStore(tmp_path / "new.db", "kit", 1e9, 10):
            pass

    asyncio.run(create())
    reader = Reader(tmp_path / "new.db")
    gpus = partial(MetricKey.of_type, "provisioner_gpus", "a/one")
    wanted = partial(MetricKey.of, "provisioner_gpus_wanted")
    waiting_jobs = {
        wanted(category="limit"): 4.0,
        wanted(category="waiting-site"): 5.0,
        wanted(category="nothing-fits"): 100.0,  # no demand that a drone could serve
    }
    with sqlite3.connect(reader.path) as sql:
        for minute in range(20):
            gauges = {gpus(state="busy"): 3.0, gpus(state="queued"): 2.0, **waiting_jobs}
            add_sample(sql, reader.now() - 60.0 * minute, gauges)
    for address, waiting in (("/", 9.0), ("/sites", 2.0)):
        (chart,) = [
            each
            for each in Rendered(reader, address).root.iter("svg")
            if each.get("class") == "chart"
        ]
        assert "in the last 2 hours" in chart.get("aria-label", "")
        assert f"running 3.0, idle 0, starting 0, draining 0, waiting {waiting}" in chart.get(
            "aria-label", ""
        )
        (running,) = [p for p in chart.iter("path") if p.get("class") == "area running"]
        begin = float(re.findall(r"H(\d+)V", running.get("d", ""))[0]) / 1000
        assert begin == pytest.approx(100, abs=1.5), "minutes without a controller are empty"


def test_jobs_that_wait_without_a_drone_are_in_the_chart_of_all_sites(tmp_path: Path) -> None:
    async def create() -> None:
        async with SqlStore(tmp_path / "new.db", "kit", 1e9, 10):
            pass

    asyncio.run(create())
    reader = Reader(tmp_path / "new.db")
    assert "GPUs in the last" not in Rendered(reader, "/").text
    with sqlite3.connect(reader.path) as sql:
        add_sample(sql, reader.now(), {MetricKey("provisioner_gpus_wanted"): 9.0})
    (chart,) = [
        each for each in Rendered(reader, "/").root.iter("svg") if each.get("class") == "chart"
    ]
    assert "running 0, idle 0, starting 0, draining 0, waiting 9.0" in chart.get("aria-label", "")
    assert "GPUs in the last" not in Rendered(reader, "/sites").text


def test_waste_adds_up_the_series(reader: SeriesReader) -> None:
    page = Rendered(reader, "/waste?since=7d&sort=-total")
    *_, last = page.rows("GPU-hours by site")
    sites = [row[0] for row in page.rows("GPU-hours by site")[1:]]
    assert sites == ["topas", "nemo", "horeka", "cloud"] and last[0] == "cloud"
    numbers = [
        [float(cell.replace(",", "")) for cell in row[1:8]]
        for row in page.rows("GPU-hours by site")[1:]
    ]
    for total, *parts in numbers:
        assert total == pytest.approx(sum(parts), abs=2.0)
    figures = page.rows("GPU-hours in the last 7 days")[1:]
    assert len(figures) == 56, "a row for each three hours"
    shown = sum(float(cell.replace(",", "")) for row in figures for cell in row[1:])
    assert shown == pytest.approx(sum(total for total, *_ in numbers), rel=0.02)


def test_lost_work_is_taken_from_the_busy_time_before_its_drone_ended() -> None:
    assert _good_and_lost([4.0, 0.0, 3.0, 2.0], [0.0, 0.0, 5.0, 0.0]) == (
        [2.0, 0.0, 0.0, 2.0],
        [2.0, 0.0, 3.0, 0.0],
    )


def test_tables_sort_and_choose_columns_as_the_command_line_does(reader: SeriesReader) -> None:
    page = Rendered(reader, "/drones?columns=id,age_s&sort=age_s&limit=3")
    heads, *rows = page.rows("55 drones")
    assert heads == ["Id", "Age"] and len(rows) == 3
    (age,) = [head for head in page.root.iter("th") if head.get("aria-sort")]
    assert age.get("aria-sort") == "ascending"
    (link,) = age.iter("a")
    assert "sort=-age_s" in link.get("href", "") and "limit=3" in link.get("href", "")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("/nosuch", "no page `/nosuch`"),
        ("/sites/tpoas", "no site `tpoas` on record; did you mean `topas`?"),
        ("/drone/nosuch", "no drone `nosuch` on record"),
        ("/job/99999.0", "job 99999.0 is unknown"),
        ("/job/nosuch", "'nosuch' is not a job id"),
        ("/use?since=1y", "no since `1y`"),
        ("/use?by=planet", "no by `planet`"),
        ("/drones?state=sleeping", "'sleeping' is not one of 'requested'"),
        ("/drones?sort=nosuch", "no column `nosuch`"),
        ("/drones?limit=many", "limit: write a number, as in limit=20"),
        (f"/drones?limit={'9' * 4400}", "write a number"),
        ("/plan/nosuch", "no page `/plan/nosuch`"),
    ],
)
def test_what_is_not_there_is_an_error_that_says_so(
    reader: SeriesReader, address: str, said: str
) -> None:
    with pytest.raises(VerbError, match=re.escape(said)):
        Rendered(reader, address)


def test_an_id_of_several_kinds_is_a_choice_and_an_unknown_one_says_so(
    reader: SeriesReader,
) -> None:
    page = Rendered(reader, "/why?q=41")
    links = {"".join(link.itertext()): link.get("href", "") for link in page.root.iter("a")}
    assert {"Drone etp-k7f2-41", "Class cms/ariane: 1 GPU, 24 GiB VRAM (41)"} <= links.keys()
    for title in ("Drone etp-k7f2-41", "Class cms/ariane: 1 GPU, 24 GiB VRAM (41)"):
        assert Rendered(reader, unquote_plus(links[title])).title.startswith(title)
    with pytest.raises(VerbError, match="`41` means more than one thing") as choice:
        explain_id(reader, AnyIdQuery(id="41"))
    assert choice.value.lines[1:] == (
        "provisioner explain drone 41",
        "provisioner explain class 41",
    )
    assert Rendered(reader, "/why?q=topas").title == Rendered(reader, "/sites/topas").title
    unknown = Rendered(reader, "/why?q=nosuch").text
    assert "no drone nosuch on record" in unknown and "no job class nosuch" in unknown


def test_the_page_of_a_job_says_nothing_of_other_users(reader: SeriesReader) -> None:
    owners = {each.owner for each in reader.views().overlay.view.classes}  # type: ignore[union-attr]
    assert len(owners) > 4
    for job in ("8812.1", "8831.2", "8841.0", "8790.3"):
        page = Rendered(reader, f"/job/{job}")
        assert not [
            owner for owner in (*owners, "physics/anna", "8820", "8833") if owner in page.source
        ], page.text


@pytest.mark.parametrize(
    ("reason", "said", "hidden"),
    [
        (
            SiteDisabled("topas", "carla", "cooling"),
            "site topas is disabled by an operator: cooling",
            "carla",
        ),
        (BackingOff("topas", 2e9, "denied", "no account bob"), "(denied)", "bob"),
        (
            StartBlocked("topas/a100", "denied", "quota of bob"),
            "the site starts no more drones of topas/a100 (denied)",
            "bob",
        ),
        (StaleView("site:topas", 400.0, 300.0, "host bob"), "no decision for site:topas", "bob"),
        (PlannerFailed("KeyError: bob"), "the planner failed on these jobs", "bob"),
    ],
)
def test_the_page_of_a_job_has_neither_names_of_operators_nor_words_of_sites(
    reader: SeriesReader, monkeypatch: pytest.MonkeyPatch, reason: Reason, said: str, hidden: str
) -> None:
    (plan,), (job,) = (
        reader.plans(limit=1),
        [c for c in reader.views().overlay.view.classes if "8831" in c.job_ids],
    )  # type: ignore[union-attr]
    refusal = Refusal(Subject("class", job.id), 1, reason)
    monkeypatch.setattr(
        reader, "plans", lambda **_: [replace(plan, starts=(), refusals=(refusal,))]
    )
    page = Rendered(reader, "/job/8831.2")
    assert said in page.text and hidden not in page.source
    assert hidden in Rendered(reader, f"/class/{job.id}").source


def test_the_advice_on_the_page_of_a_job_has_no_words_of_a_site(
    reader: SeriesReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = StartForecast(StartOutcome.NEVER)
    advice = RequestAdvice(now=now, why=BackingOff("topas", 2e9, "denied", "no account bob"))
    monkeypatch.setattr(explain, "request_advice", lambda *_: [advice])
    page = Rendered(reader, "/job/8831.2")
    assert (
        "no change of the request helps: topas is not used" in page.text
        and "bob" not in page.source
    )


def test_page_and_json_give_the_same_reason_and_the_same_advice(reader: SeriesReader) -> None:
    document = explained_job(reader, "8831.2").plain()
    page = unescape(Rendered(reader, "/job/8831.2").text)
    assert document["said"] and document["advice"]
    for each in (*document["said"], *document["advice"]):
        assert each["text"] in page


def test_a_long_plan_is_shown_in_part_and_by_reason(reader: SeriesReader) -> None:
    def shown(address: str) -> tuple[list[str], dict[str, str]]:
        page = Rendered(reader, address)
        assert "Plan for tick 4" in page.text
        rows = ["".join(row.itertext()) for body in page.root.iter("tbody") for row in body]
        links = {"".join(each.itertext()): each.get("href", "") for each in page.root.iter("a")}
        return rows, {text: href for text, href in links.items() if "only=" in href}

    rows, links = shown("/plan")
    assert f"all ({len(rows)})" in links
    of_reasons = [shown(f"/plan{href}")[0] for text, href in links.items() if text[:3] != "all"]
    assert len(of_reasons) > 3 and sum(map(len, of_reasons)) == len(rows)
    assert shown("/plan?limit=3")[0] == rows[:3]
    assert f"Plan for tick 4, 3 of {len(rows)} rows" in Rendered(reader, "/plan?limit=3").text


def test_a_record_without_a_tick_has_all_pages_but_the_plan(tmp_path: Path) -> None:
    async def create() -> None:
        async with SqlStore(tmp_path / "new.db", "kit", 1e9, 10):
            pass

    asyncio.run(create())
    reader = SeriesReader(tmp_path / "new.db")
    for path in PAGES:
        if path == "plan":
            with pytest.raises(VerbError, match="no tick is on record yet"):
                render("/plan", reader, {})
        else:
            assert "no tick is on record yet" in render(f"/{path}", reader, {})
