"""Scrapes and readiness. Dashboards, alerts, runbooks and the table agree on the metrics."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families as text_families

from docs.make_reference import METRIC_LABELS, MONITORING, alert_rules, dashboards, queries
from provisioner import model as m
from provisioner.model import DroneState
from provisioner.monitoring import metrics
from provisioner.monitoring.metrics import METRICS, Health, content_type, exposition, readiness
from provisioner.reasons import SiteFull
from provisioner.store import Holder, Views
from provisioner.store.reader import Reader
from tests.monitoring.day import ScrapedStore, scripted_day
from tests.store.story import TemporaryStore, drone, now_is, record, seen, starts

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture(scope="session")
def day() -> ScrapedStore:
    return scripted_day(3)


def samples(body: bytes, parse: Any = text_families) -> Mapping[tuple[str, ...], float]:
    """The samples by name and label values, in the order of the table."""
    order = {part: spec.labels for spec in METRICS for part in spec.parts}
    found = [sample for family in parse(body.decode()) for sample in family.samples]
    assert found
    return {
        (each.name, *(each.labels[label] for label in order[each.name])): each.value
        for each in found
    }


async def test_a_scrape_shows_demand_supply_and_sites_as_on_record() -> None:
    store = TemporaryStore()
    await record(store, starts(1, drone(1), drone(2)))
    banned = m.Breaker(
        m.Scope("topas", "a100"),
        m.BreakerState.BANNED,
        90.0,
        3,
        700.0,
        m.Fault(m.FaultKind.DRONE, "dies", 90.0),
    )
    node = m.Breaker(m.Scope("topas", node="w1"), m.BreakerState.BANNED, until=900.0)
    full = m.Refusal(m.Subject("class", "class-9"), 40, SiteFull("topas/a100"))
    moves = (now_is(drone(1), DroneState.BUSY, at=110.0, joined_at=110.0),)
    plan = m.Plan(2, 120.0, moves=moves, breakers=(banned, node), refusals=(full,))
    await store.record(plan, seen(store, plan))
    found = samples(exposition(store.reader()))
    name = "provisioner_"
    assert (
        found[f"{name}jobs_waiting", "waiting-site"] == 40
        and found[f"{name}jobs_waiting", "limit"] == 0
    )
    assert found[f"{name}gpus_wanted", "waiting-site"] == 40 and found[f"{name}jobs_running",] == 0
    assert (
        found[f"{name}drones", "topas", "a100", "busy"]
        == 1
        == found[f"{name}gpus", "topas", "a100", "requested"]
    )
    assert (
        found[f"{name}gpus_free", "topas"] == 3 and found[f"{name}owner_jobs_waiting", "topas"] == 1
    )
    assert found[f"{name}drones_requested_total", "topas", "a100", "jobs-waiting"] == 2
    assert found[f"{name}drones_ended_total", "topas", "a100", "failed"] == 0, "a rate needs the 0"
    assert found[f"{name}breaker_state", "topas/a100", "banned", "drone"] == 1
    assert found[f"{name}breaker_state", "topas", "active", ""] == 1
    assert found[f"{name}breaker_until_timestamp_seconds", "topas/a100"] == 700.0
    assert (
        found[f"{name}nodes_avoided", "topas"] == 1
        and found[f"{name}faults_total", "topas", "drone"] == 3
    )
    assert (
        found[f"{name}last_tick_timestamp_seconds",] == 120.0
        and found[f"{name}view_fresh", "overlay"] == 0
    )
    assert found[f"{name}controller_up",] == 1 and found[f"{name}record_up",] == 1
    assert not any("kit-ab12" in text or "class-9" in text for key in found for text in key)


async def test_vos_have_few_series_whatever_users_call_them() -> None:
    store = TemporaryStore()
    odd = 'cms"} 1\nprovisioner_vo_jobs{vo="atlas\\'
    names = ["cms", "", odd, *(f"vo{n:02}" for n in range(40))]
    classes = tuple(
        m.JobClass(str(n), 1000, 1, 1, waiting=100 - n, running=2, vo=name)
        for n, name in enumerate(names)
    )
    view = m.PolledOverlay(m.OverlayView(90.0, classes))
    await store.record(starts(1), seen(store, starts(1), overlay=view))
    for body, parse in (
        (exposition(store.reader()), text_families),
        (exposition(store.reader(), OPENMETRICS), openmetrics_families),
    ):
        found = {
            key[1:]: value
            for key, value in samples(body, parse).items()
            if key[0] == "provisioner_vo_jobs"
        }
        assert found["cms", "waiting"] == 100 and found["none", "waiting"] == 99
        assert found[odd, "running"] == 2 and ("atlas", "running") not in found
        assert len({vo for vo, _ in found}) == 21 and found["other", "running"] == 2 * 23
        assert sum(found.values()) == sum(each.waiting + 2 for each in classes)


CMS = m.ServiceView(
    "cms",
    requests=100,
    refused=4,
    in_flight=3,
    queued=2,
    request_s=0.03,
    by_vo={"cms": 60, "dune": 40},
    models=(m.ModelUse("deepmet:3", 90, 1.5, 2.7),),
)


def served(at: float, *services: m.ServiceView) -> m.PolledServices:
    return m.PolledServices(m.ServicesView(at, services))


async def test_services_have_their_servers_requests_and_models() -> None:
    store = TemporaryStore()
    types = (m.DroneType("topas", "triton", 1000, 8, 1, 1),)
    policy = m.Policy(services=(m.Service("cms"), m.Service("new")))
    server = replace(drone(1), type=types[0].key, service="cms")
    state = m.ServiceState("cms", wanted=3, needed=2)
    later = replace(CMS, requests=130, refused=9, by_vo={"cms": 70, "dune": 60})
    restarted = replace(CMS, requests=7, refused=0, by_vo={"cms": 7}, models=())
    for tick, services in enumerate(
        (served(90.0, CMS), served(91.0, later), m.PolledServices(), served(93.0, restarted)), 1
    ):
        first = starts(1, server) if tick == 1 else m.Plan(tick, 100.0)
        plan = replace(first, tick=tick, services=(state,))
        await store.record(plan, seen(store, plan, policy=policy, types=types, services=services))
    scrape = samples(exposition(store.reader()))
    found = {key: n for key, n in scrape.items() if key[0].startswith("provisioner_service_")}
    assert {
        key[0].removeprefix("provisioner_service_"): n
        for key, n in found.items()
        if key[-1] == "cms"
    } == {
        "servers_wanted": 3,
        "servers_needed": 2,
        "requests_in_flight": 3,
        "requests_queued": 2,
        "request_seconds": 0.03,
        "requests_total": 137,
        "refused_total": 9,
        "vo_requests_total": 77,
    }
    assert found["provisioner_service_vo_requests_total", "cms", "dune"] == 60
    of_model = {key[0].split("_model_")[1]: n for key, n in found.items() if "_model_" in key[0]}
    assert of_model == {
        "requests_total": 90,
        "queue_seconds_total": 1.5,
        "compute_seconds_total": pytest.approx(2.7),
    }
    states = {
        key[2]: n for key, n in found.items() if key[0].endswith("_servers") and key[1] == "cms"
    }
    assert states == dict.fromkeys(metrics._LIVE, 0) | {"requested": 1}, "a rule needs the 0"
    assert found["provisioner_service_requests_total", "new"] == 0, "a rate needs the 0"


def test_services_are_a_view_where_there_are_any() -> None:
    policy = replace(POLICY, services=(m.Service("cms"),))
    views = replace(VIEWS, policy=policy, services=served(950.0))
    assert metrics.view_ages(views, 1010.0)["services"] == (60.0, 120.0)
    assert readiness(replace(views, services=m.PolledServices()), HOLDER, 1010.0).reasons == (
        "there is no view of services",
    )


def test_both_formats_have_the_whole_table_and_its_labels_and_nothing_else(
    day: ScrapedStore,
) -> None:
    text, opened = exposition(day.reader()), exposition(day.reader(), OPENMETRICS)
    assert content_type().startswith("text/plain") and content_type(OPENMETRICS).startswith(
        "application/openmetrics"
    )
    assert opened.endswith(b"# EOF\n")
    for body, parse in ((text, text_families), (opened, openmetrics_families)):
        families = {family.name: family for family in parse(body.decode())}
        assert {name.removesuffix("_total") for name in families} == {
            s.name.removesuffix("_total") for s in METRICS
        }
        for spec in METRICS:
            family = families.get(spec.name) or families[spec.name.removesuffix("_total")]
            assert (family.type, family.documentation) == (spec.kind, spec.help)
            for sample in family.samples:
                assert sample.name in spec.parts and sample.labels.keys() == set(spec.labels)
    assert set(METRIC_LABELS) == {label for spec in METRICS for label in spec.labels}


def test_everything_that_is_counted_is_in_the_table(day: ScrapedStore) -> None:
    parts = {part: spec for spec in METRICS for part in spec.parts}
    for key in day.reader().counters():
        assert tuple(label for label, _ in key.labels) == parts[key.metric].labels
    known = {row[0] for row in day._opened.execute("SELECT DISTINCT metric FROM series") if row[0]}
    assert known <= parts.keys() and len(known) > 20


def test_the_counted_gpu_time_is_that_of_the_drones_on_record(day: ScrapedStore) -> None:
    """Between two ticks a drone counts as in the state that the tick before has recorded."""
    last = day.scrapes[-1][0]
    drones = [d for d in day.reader().drones(ended=None) if d.gpu_milli and d.started_at]
    lived = sum(d.gpu_milli / 1000 * max(0.0, (d.ended_at or last) - d.started_at) for d in drones)
    counted = sum(
        n
        for key, n in day.reader().counters().items()
        if key.metric == "provisioner_gpu_seconds_total"
    )
    assert counted == pytest.approx(lived, rel=0.05)
    series = day.reader().series("provisioner_gpu_seconds_total", 0.0, last + 60.0, 600.0)
    assert sum(value for each in series for _, value in each.points) == pytest.approx(
        counted, rel=0.02
    )


async def test_counters_of_a_version_with_other_labels_are_left_out() -> None:
    store = TemporaryStore()
    await record(store, starts(1, drone(1)))
    store._opened.execute(
        """INSERT INTO counters VALUES ('provisioner_ticks_total', '{"site": "kit"}', 7, 0)"""
    )
    store._opened.execute(
        """UPDATE counters SET labels = '{"site": "kit"}' WHERE metric LIKE '%requested_total'"""
    )
    found = samples(exposition(store.reader()))
    assert found["provisioner_ticks_total",] == 1
    assert found["provisioner_drones_requested_total", "topas", "a100", "jobs-waiting"] == 0


def test_without_a_record_a_scrape_says_so(tmp_path: Path) -> None:
    assert samples(exposition(Reader(tmp_path / "none.db"))) == {("provisioner_record_up",): 0.0}
    assert not metrics.health(Reader(tmp_path / "none.db")).ready
    (tmp_path / "bad.db").write_text("no store at all" * 100)
    assert samples(exposition(Reader(tmp_path / "bad.db"))) == {("provisioner_record_up",): 0.0}


# -----------------------------------------------------------------------------------------------------------
# readiness

HOLDER = Holder(1, "here", 0.0)
POLICY = m.Policy(sites={"kit": m.SitePolicy("kit"), "off": m.SitePolicy("off", enabled=False)})
VIEWS = Views(
    *(9, 1000.0, POLICY, (), m.PolledOverlay(m.OverlayView(990.0))),
    {"kit": m.PolledSite("kit", m.SiteView("kit", 980.0))},
)


@pytest.mark.parametrize(
    ("views", "holder", "now", "reasons"),
    [
        (VIEWS, HOLDER, 1010.0, ()),
        (VIEWS, None, 1010.0, ("no controller holds the record",)),
        (None, HOLDER, 1010.0, ("no tick is on record",)),
        (VIEWS, HOLDER, 1101.0, ("the view of kit is 2m1s old; it may be 2m old",)),
        (replace(VIEWS, sites={}), HOLDER, 1010.0, ("there is no view of kit",)),
        (
            replace(VIEWS, overlay=m.PolledOverlay()),
            HOLDER,
            1010.0,
            ("there is no view of overlay",),
        ),
    ],
)
def test_it_is_ready_while_a_controller_decides_on_fresh_views(
    views: Views | None, holder: Holder | None, now: float, reasons: tuple[str, ...]
) -> None:
    assert readiness(views, holder, now) == Health(not reasons, reasons)


def test_a_site_that_is_switched_off_has_no_view_that_could_be_too_old() -> None:
    """The runbook of ViewStale says to switch a site off in a long downtime: that ends the alert."""
    assert metrics.view_ages(VIEWS, 1010.0) == {"overlay": (20.0, 120.0), "kit": (30.0, 120.0)}


def test_an_old_tick_is_a_reason() -> None:
    assert readiness(VIEWS, HOLDER, 2000.0).reasons[0].startswith("the newest tick is 16m40s old")


# -------------------------------------------------------------------------------------------
# dashboards, alerts, pages

PARTS = {part for spec in METRICS for part in spec.parts}
NAMES = re.compile(r"\bprovisioner_\w+")


def test_expressions_use_metrics_and_labels_of_the_table_and_each_metric_is_shown() -> None:
    expressions = [rule["expr"] for rule in alert_rules()]
    expressions += [query for board in dashboards().values() for _, query in queries(board)]
    used = {name for each in expressions for name in NAMES.findall(each)}
    assert used == {*PARTS, "provisioner_accounting_findings"}, "and that of `accounting verify`"
    for expression in expressions:
        for label in re.findall(r"(\w+)(?:=~|!~|!=|=)\"", expression):
            assert label in {"job", *METRIC_LABELS}, expression


def test_an_alert_on_one_controller_does_not_look_at_another() -> None:
    assert not [rule["alert"] for rule in alert_rules() if re.search(r"on \(\)", rule["expr"])]


def test_dashboards_keep_their_uid_and_ask_for_their_data_source() -> None:
    for name, board in dashboards().items():
        assert (
            board["uid"] == f"provisioner-{name}"
            and "id" not in board
            and board["schemaVersion"] >= 36
        )
        taken = set[tuple[int, int]]()
        for panel in board["panels"]:
            assert "id" not in panel and panel["title"]
            if panel["type"] != "row":
                assert panel["datasource"]["uid"] == "${datasource}"
                assert panel["fieldConfig"]["defaults"]["unit"]
                assert panel["type"] in ("stat", "timeseries", "table")
            at = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(at["x"], at["x"] + at["w"])
                for y in range(at["y"], at["y"] + at["h"])
            }
            assert not cells & taken and max(x for x, _ in cells) < 24
            taken |= cells
    assert [*dashboards()] == ["controller", "overview", "services", "sites", "waste"]


def test_the_overview_is_a_board_for_a_wall_with_titles_in_plain_words() -> None:
    rows = [
        panel["title"] for panel in dashboards()["overview"]["panels"] if panel["type"] == "row"
    ]
    assert rows == ["Health", "Demand and supply", "Owner", "Waste"]
    titles = [panel["title"] for board in dashboards().values() for panel in board["panels"]]
    assert not [t for t in titles if re.search(r"seconds|timestamp|bytes|_", t)]


def test_each_alert_has_all_its_words_and_a_runbook() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/runbooks.md").read_text()
    sections = re.findall(r"^## (\w+)$", page, re.MULTILINE)
    assert sections == [rule["alert"] for rule in alert_rules()]
    for rule in alert_rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        notes = rule["annotations"]
        assert notes["summary"].endswith(".") and notes["description"].endswith(".")
        assert notes["runbook_url"] == f"docs/how-to/runbooks.md#{rule['alert'].lower()}"
    for part in page.split("\n## ")[1:]:
        assert all(f"**{word}**" in part for word in ("Meaning", "Look at", "Do")), (
            part.splitlines()[0]
        )


ALERTS_OF_TROUBLES = {
    "controller-down": "ControllerDown",
    "no-tick": "TickMissing",
    "disk-full": "StoreDiskFull",
    "view-failed": "ViewStale",
    "view-old": "ViewStale",
    "banned": "BreakerOpen",
    "no-negotiation": "NoNegotiation",
    "config.rejected": "ReloadRefused",
    "drain.rejected": "DrainRefused",
    "plan.rejected": "PlanRefused",
    "black-hole-node": "NodeBad",
    "balancer": "BalancerUnreachable",
    "credential-unusable": "CredentialUnusable",
    "credential-expires": "CredentialExpires",
    "leader-missing": "LeaderMissing",
    "standby-blind": "StandbyBlind",
    "epoch-went-back": "EpochWentBack",
}
"""Kinds of troubles of `status` with an alert of their own; `Trouble` is about all others."""


def test_each_trouble_of_status_has_an_alert() -> None:
    rules = {rule["alert"]: rule["expr"] for rule in alert_rules()}
    excluded = re.fullmatch(
        r'sum by \(job, instance, severity, kind\) \(provisioner_troubles\{severity!="note", '
        r'kind!~"([^"]+)"\}\) > 0',
        rules["Trouble"],
    )
    assert excluded is not None
    assert set(excluded[1].split("|")) == ALERTS_OF_TROUBLES.keys()
    assert rules.keys() >= {*ALERTS_OF_TROUBLES.values(), "PoolViewStale"}
    for kind, alert in ALERTS_OF_TROUBLES.items():
        about = re.search(r'provisioner_troubles\{severity!="note", kind="([^"]+)"', rules[alert])
        assert about is None or about[1] == kind


def test_rendered_files_are_those_of_the_package(tmp_path: Path) -> None:
    render = [sys.executable, "-m", "provisioner.cli", "render"]
    subprocess.run([*render, "grafana", "--to", tmp_path], check=True)
    for path in (MONITORING / "grafana").iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    page = "https://example.org/runbooks"
    rules = subprocess.check_output([*render, "alerts", "--runbooks", page], text=True)
    stored = (MONITORING / "alerts.yml").read_text()
    assert rules == stored.replace("docs/how-to/runbooks.md#", f"{page}#")
    assert rules.count(page) == len(alert_rules())
