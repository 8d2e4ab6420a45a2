"""A real Prometheus: the rules and the exposition are valid, each alert fires when it should, and each panel has data.

The scripted day becomes blocks of Prometheus' own database; then the server scrapes a live record
over HTTP.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from docs.make_reference import MONITORING, alert_rules, dashboards, queries
from provisioner.monitoring.metrics import content_type, exposition
from provisioner.store.reader import Reader
from tests.labs.htcondor import lab_directory
from tests.labs.ports import free_port
from tests.labs.prometheus import PrometheusPrograms, PrometheusServer, running_prometheus
from tests.monitoring.day import END, ScrapedStore, openmetrics, scripted_day
from tests.store.story import record, starts

RULES = (MONITORING / "alerts.yml").read_text()
NAMES = [rule["alert"] for rule in alert_rules()]
pytestmark = pytest.mark.xdist_group("prometheus")

QUIET = {
    "provisioner_controller_up": 1,
    "provisioner_record_up": 1,
    "provisioner_store_free_bytes": 1e12,
    "provisioner_tick_limit_seconds": 90,
    "provisioner_tick_age_seconds": 9,
    'up{job="provisioner",instance="kit:8618"}': 1,
    'provisioner_view_fresh{scope="overlay"}': 1,
    'provisioner_view_fresh{scope="kit"}': 1,
    'provisioner_view_fresh{scope="services"}': 1,
    'provisioner_service_servers_needed{service="cms"}': 2,
    'provisioner_service_servers{service="cms",state="busy"}': 1,
    'provisioner_service_servers{service="cms",state="idle"}': 0,
    'provisioner_service_servers{service="cms",state="booting"}': 1,
    'provisioner_service_servers_needed{service="idle"}': 0,
    'provisioner_service_servers{service="idle",state="busy"}': 0,
    'provisioner_breaker_state{scope="kit",state="active",fault=""}': 1,
    'provisioner_breaker_state{scope="kit/a100",state="banned",fault="quota"}': 1,
    'provisioner_jobs_waiting{category="start"}': 5,
    'provisioner_jobs_waiting{category="limit"}': 500,
    'provisioner_accounting_findings{kind="missing"}': 0,
}
"""Gauges of a service with which all is well."""
BUSY = {
    "provisioner_tick_seconds_sum": 5,
    "provisioner_tick_seconds_count": 4,
    'provisioner_drones_requested_total{site="kit",type="a100",reason="jobs-waiting"}': 1,
    'provisioner_drones_ended_total{site="kit",type="a100",outcome="done"}': 1,
    'provisioner_drones_ended_total{site="kit",type="a100",outcome="failed"}': 0.05,
    'provisioner_drones_leaving_total{site="kit",type="a100",reason="idle-timeout"}': 1,
    'provisioner_drones_leaving_total{site="kit",type="a100",reason="black-hole"}': 0,
    'provisioner_orphan_stops_total{site="kit"}': 0,
    'provisioner_owner_wait_seconds_total{site="kit",grace="within"}': 3,
    'provisioner_owner_wait_seconds_total{site="kit",grace="over"}': 0,
    'provisioner_measured_gpu_seconds_held_total{site="kit",type="a100"}': 600,
    'provisioner_measured_gpu_seconds_used_total{site="kit",type="a100"}': 300,
}
"""Growth of its counters in a minute."""
TESTED_H = 9
SICK: dict[str, dict[str, float | str | None]] = {
    "ControllerDown": {"provisioner_controller_up": 0},
    "TickMissing": {"provisioner_tick_age_seconds": 9999},
    "TickSlow": {"provisioner_tick_seconds_sum": 160},
    "StoreDiskFull": {"provisioner_store_free_bytes": 1e8},
    "PoolViewStale": {'provisioner_view_fresh{scope="overlay"}': 0},
    "ViewStale": {'provisioner_view_fresh{scope="kit"}': 0},
    "BalancerUnreachable": {'provisioner_troubles{severity="warning",kind="balancer"}': 1},
    "ServiceWithoutServer": {'provisioner_service_servers{service="cms",state="busy"}': 0},
    "BreakerOpen": {'provisioner_breaker_state{scope="kit",state="banned",fault="denied"}': 1},
    "NothingStartsThoughDemand": {
        'provisioner_drones_requested_total{site="kit",type="a100",reason="jobs-waiting"}': 0
    },
    "ChurnHigh": {'provisioner_drones_ended_total{site="kit",type="a100",outcome="failed"}': 2},
    "OwnerWaited": {'provisioner_owner_wait_seconds_total{site="kit",grace="over"}': 9},
    "OrphansFound": {'provisioner_orphan_stops_total{site="kit"}': 0.5},
    "FirstJobFailing": {
        'provisioner_drones_leaving_total{site="kit",type="a100",reason="black-hole"}': 0.1
    },
    "NoNegotiation": {'provisioner_troubles{severity="critical",kind="no-negotiation"}': 1},
    "CredentialExpires": {
        'provisioner_credential_expires_timestamp_seconds{scope="overlay",name="token"}': TESTED_H
        * 3600
        + 86400,
        'provisioner_credential_warning_seconds{scope="overlay",name="token"}': 7 * 86400,
    },
    "CredentialUnusable": {'provisioner_credential_usable{scope="overlay",name="token"}': 0},
    "ReloadRefused": {'provisioner_troubles{severity="warning",kind="config.rejected"}': 1},
    "DrainRefused": {'provisioner_troubles{severity="warning",kind="drain.rejected"}': 2},
    "PlanRefused": {'provisioner_troubles{severity="warning",kind="plan.rejected"}': 1},
    "NodeBad": {'provisioner_troubles{severity="warning",kind="black-hole-node"}': 1},
    "LeaderMissing": {'provisioner_troubles{severity="critical",kind="leader-missing"}': 1},
    "StandbyBlind": {'provisioner_troubles{severity="warning",kind="standby-blind"}': 1},
    "EpochWentBack": {'provisioner_troubles{severity="critical",kind="epoch-went-back"}': 1},
    "Trouble": {'provisioner_troubles{severity="warning",kind="notice"}': 1},
    "GpuUnused": {'provisioner_measured_gpu_seconds_used_total{site="kit",type="a100"}': 20},
    "AccountingDiffers": {'provisioner_accounting_findings{kind="missing"}': 2},
}
"""By alert: the values with which it, and no other, fires."""


def series(**sick: float | str | None) -> list[dict[str, str]]:
    """Input series of `promtool test rules`: all is well but for ``sick``."""
    gauges, counters = dict(QUIET), dict(BUSY)
    for name, value in sick.items():
        (counters if name in counters else gauges)[name] = value  # type: ignore[assignment]
    minutes = TESTED_H * 60
    values = {name: f"{value}x{minutes}" for name, value in gauges.items() if value != ""}
    values |= {name: f"0+{step}x{minutes}" for name, step in counters.items()}
    return [{"series": name, "values": text} for name, text in values.items()]


@pytest.fixture(scope="session")
def programs() -> PrometheusPrograms:
    return PrometheusPrograms.fetched()


@pytest.fixture(scope="module")
def day() -> ScrapedStore:
    return scripted_day()


def test_the_rules_and_the_exposition_are_valid(
    programs: PrometheusPrograms, day: ScrapedStore, tmp_path: Path
) -> None:
    (tmp_path / "rules.yml").write_text(RULES)
    assert f"{len(NAMES)} rules found" in programs.promtool(
        "check", "rules", str(tmp_path / "rules.yml")
    )
    assert programs.promtool("check", "metrics", stdin=exposition(day.reader()).decode()) == ""


def fired(
    programs: PrometheusPrograms, directory: Path, sick: dict[str, Any], expected: list[str]
) -> None:
    """Have promtool find that of all alerts just the ``expected`` fire after the time tested."""
    (directory / "rules.yml").write_text(RULES)
    given, at = series(**sick), f"{TESTED_H - 1}h"
    alive = [
        {"expr": f'count(ALERTS{{alertstate="firing", alertname="{name}"}})', "eval_time": at}
        for name in NAMES
    ]
    for test, name in zip(alive, NAMES, strict=True):
        test["exp_samples"] = [{"labels": "{}", "value": 1}] if name in expected else []  # type: ignore[assignment]
    story = {"interval": "1m", "input_series": given, "promql_expr_test": alive}
    tests = {"rule_files": ["rules.yml"], "evaluation_interval": "5m", "tests": [story]}
    (directory / "tests.yml").write_text(json.dumps(tests))
    assert "SUCCESS" in programs.promtool("test", "rules", str(directory / "tests.yml"))


def test_no_alert_fires_while_all_is_well(programs: PrometheusPrograms, tmp_path: Path) -> None:
    fired(programs, tmp_path, {}, [])


@pytest.mark.parametrize("name", NAMES)
def test_each_alert_fires_for_its_trouble_and_no_other_does(
    programs: PrometheusPrograms, tmp_path: Path, name: str
) -> None:
    also = ["CredentialExpires"] if name == "CredentialUnusable" else []
    fired(programs, tmp_path, SICK[name], [name, *also])


def test_an_unreadable_record_and_a_missing_scrape_are_a_controller_that_is_down(
    programs: PrometheusPrograms, tmp_path: Path
) -> None:
    fired(programs, tmp_path, {"provisioner_record_up": 0}, ["ControllerDown"])
    fired(programs, tmp_path, {"provisioner_record_up": "_"}, ["ControllerDown"])


def test_one_of_two_controllers_that_cannot_be_scraped_is_down(
    programs: PrometheusPrograms, tmp_path: Path
) -> None:
    fired(programs, tmp_path, {'up{job="provisioner",instance="kit:8618"}': 0}, ["ControllerDown"])
    fired(programs, tmp_path, {'up{job="node"}': 0}, [])


def test_a_long_interval_between_ticks_is_no_missing_tick(
    programs: PrometheusPrograms, tmp_path: Path
) -> None:
    late = {"provisioner_tick_age_seconds": 40000, "provisioner_tick_limit_seconds": 86400}
    fired(programs, tmp_path, late, [])


def test_a_steady_busy_pool_raises_no_alert(programs: PrometheusPrograms, tmp_path: Path) -> None:
    waiting = dict.fromkeys(
        (f'provisioner_jobs_waiting{{category="{c}"}}' for c in ("none", "waiting-negotiation")), 9
    )
    no_start = {
        'provisioner_drones_requested_total{site="kit",type="a100",reason="jobs-waiting"}': 0
    }
    fired(
        programs,
        tmp_path,
        {'provisioner_jobs_waiting{category="start"}': 0, **no_start, **waiting},
        [],
    )


# ----------------------------------------------------------------------------------------------------------
# the server


@asynccontextmanager
async def served(reader: Reader) -> AsyncIterator[int]:
    """Serve `/metrics` of a record on a port of loopback, as the web service does."""

    async def metrics(request: web.Request) -> web.Response:
        accept = request.headers.get("Accept", "")
        body = await asyncio.to_thread(exposition, reader, accept)
        return web.Response(body=body, headers={"Content-Type": content_type(accept)})

    app, port = web.Application(), free_port()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield port
    finally:
        await runner.cleanup()


def expressions() -> Iterator[tuple[str, str]]:
    for name, board in dashboards().items():
        for title, query in queries(board):
            yield (
                f"{name}: {title}",
                re.sub(r"\$(site|service)", ".*", query.replace("$__range", "6h")),
            )


def without_data(server: PrometheusServer) -> list[str]:
    """Panels of which a query returns no value at any time of the day."""
    span = {"start": END - 6 * 3600, "end": END, "step": "60s"}
    missing = []
    for title, query in expressions():
        found = server.ask("query_range", query=query, **span)["result"]
        numbers = [value for each in found for _, value in each["values"] if value != "NaN"]
        if not numbers:
            missing.append(f"{title}: {query}")
    return missing


async def test_every_panel_has_data_in_the_day_every_alert_is_evaluated_and_the_live_record_is_scraped(
    programs: PrometheusPrograms, day: ScrapedStore
) -> None:
    with lab_directory("prometheus") as directory:
        (directory / "data").mkdir()
        (directory / "day.txt").write_text("".join(openmetrics(day)))
        words = (
            "tsdb",
            "create-blocks-from",
            "openmetrics",
            str(directory / "day.txt"),
            str(directory / "data"),
        )
        await asyncio.to_thread(programs.promtool, *words)
        await record(day, starts(day.tick + 1, at=day.committed.recorded_at + 20.0))
        port = free_port()
        async with served(day.reader()) as target:
            with running_prometheus(
                programs, directory, port, f"127.0.0.1:{target}", yaml.safe_load(RULES)
            ) as server:
                assert await asyncio.to_thread(without_data, server) == []
                for rule in alert_rules():
                    await asyncio.to_thread(server.ask, "query", query=rule["expr"], time=END)
                for _ in range(300):
                    (up,) = (await asyncio.to_thread(server.ask, "query", query="up"))[
                        "result"
                    ] or [{"value": (0, "0")}]
                    if up["value"][1] == "1":
                        break
                    await asyncio.sleep(0.1)
                scraped = await asyncio.to_thread(
                    server.ask, "query", query="provisioner_ticks_total"
                )
                rules = await asyncio.to_thread(server.ask, "rules")
                (target_seen,) = (await asyncio.to_thread(server.ask, "targets"))["activeTargets"]
    ticks = sum(
        n for key, n in day.reader().counters().items() if key.metric == "provisioner_ticks_total"
    )
    assert float(scraped["result"][0]["value"][1]) == ticks
    assert target_seen["health"] == "up" and target_seen["lastError"] == ""
    assert {rule["health"] for rule in rules["groups"][0]["rules"]} <= {"ok", "unknown"}
    assert [rule["name"] for rule in rules["groups"][0]["rules"]] == NAMES


def test_each_alert_has_a_test() -> None:
    assert [*SICK] == NAMES
