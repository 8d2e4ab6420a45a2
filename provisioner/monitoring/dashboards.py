"""Grafana dashboards over the metrics, as the JSON that Grafana imports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

DASHBOARD_SCHEMA = 39
"""``schemaVersion`` of Grafana 11. Older ones read it too, and newer ones migrate it."""
SITE = 'site=~"$site"'
COLUMNS = 24
"""Width of a dashboard in Grafana's units."""


class DashboardPanel(NamedTuple):
    """One panel; ``kind`` and ``unit`` are Grafana's names."""

    title: str
    kind: str
    unit: str
    queries: Sequence[tuple[str, str]]
    """Expressions of PromQL, each with its legend."""
    help: str = ""


class Dashboard(NamedTuple):
    name: str
    title: str
    panels: Sequence[DashboardPanel]


def _stat(title: str, unit: str, query: str, help_: str = "") -> DashboardPanel:
    return DashboardPanel(title, "stat", unit, [(query, "")], help_)


def _table(title: str, unit: str, query: str, help_: str = "") -> DashboardPanel:
    return DashboardPanel(title, "table", unit, [(query, "")], help_)


def _plot(title: str, unit: str, query: str, legend: str, help_: str = "") -> DashboardPanel:
    return DashboardPanel(title, "timeseries", unit, [(query, legend)], help_)


def _plots(title: str, unit: str, *queries: tuple[str, str]) -> DashboardPanel:
    return DashboardPanel(title, "timeseries", unit, queries)


def _rate(metric: str, by: str = "", window: str = "$__rate_interval", where: str = SITE) -> str:
    """Return the rate per second of a counter, summed ``by`` labels; without labels of all."""
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate(provisioner_{metric}{{{where}}}[{window}]))"


def _hourly(metric: str, by: str = "", where: str = SITE) -> str:
    """Return the increase of a counter per hour."""
    return f"{_rate(metric, by, '1h', where)} * 3600"


def _mean(summary: str, by: str = "", window: str = "1h", where: str = SITE) -> str:
    """Return the mean duration of a summary."""
    return f"{_rate(f'{summary}_sum', by, window, where)} / {_rate(f'{summary}_count', by, window, where)}"


def _total(metric: str, where: str = SITE) -> str:
    """Return the increase of a counter over the time that the dashboard shows."""
    return f"sum(increase(provisioner_{metric}{{{where}}}[$__range]))"


_BUSY = _total("gpu_seconds_total", f'{SITE}, use="busy"')
_GOOD = f"({_BUSY} - {_total('lost_gpu_seconds_total')}) / {_total('gpu_seconds_total')}"
_USED_GPUS = _rate("measured_gpu_seconds_used_total", "site, type", "6h")
_HELD_GPUS = _rate("measured_gpu_seconds_held_total", "site, type", "6h")
_PREEMPTED = _hourly("drones_ended_total", "site", f'{SITE}, outcome="preempted"')
_DURATIONS = ("tick_seconds", "decision_seconds", "store_write_seconds")

OVERVIEW_PANELS = (
    _stat("Controller", "bool_on_off", "provisioner_controller_up"),
    _stat("Idle jobs", "short", "sum(provisioner_jobs_waiting)"),
    _stat("Running jobs", "short", "provisioner_jobs_running"),
    _stat("Oldest idle job", "s", "provisioner_oldest_job_wait_seconds"),
    _stat("GPUs in drones", "short", 'sum(provisioner_gpus{site=~"$site"})'),
    _stat("Busy GPUs", "short", 'sum(provisioner_gpus{site=~"$site", state="busy"})'),
    _plot("Idle jobs by reason", "short", "sum by (category) (provisioner_jobs_waiting) > 0", "{{category}}"),
    _plot("GPUs that idle jobs request", "short", "provisioner_gpus_wanted", "requested"),
    _plot("Drones", "short", 'sum by (state) (provisioner_drones{site=~"$site"}) > 0', "{{state}}"),
    _plot("GPUs by use", "short", _rate("gpu_seconds_total", "use"), "{{use}}"),
    _plots(
        "Starts and ends per hour",
        "short",
        (_hourly("drones_requested_total"), "ordered"),
        (f"{_hourly('drones_ended_total', 'outcome')} > 0", "{{outcome}}"),
    ),
    _plots(
        "Mean waits",
        "s",
        (_mean("job_wait_seconds"), "job, until its run starts"),
        (_mean("drone_start_seconds"), "drone, until it joins"),
    ),
)
SITE_PANELS = (
    _table("Breakers", "short", "provisioner_breaker_state == 1", "Sites and drone types, with their state."),
    _table("Bans until", "dateTimeAsIso", "provisioner_breaker_until_timestamp_seconds * 1000"),
    _plot("Drones", "short", 'sum by (site, state) (provisioner_drones{site=~"$site"}) > 0', "{{site}} {{state}}"),
    _plots(
        "Drones and their limit",
        "short",
        ('sum by (site) (provisioner_drones{site=~"$site"})', "{{site}}"),
        ('provisioner_drones_limit{site=~"$site"}', "{{site}} limit"),
    ),
    _plot("Free GPUs of the site", "short", 'provisioner_gpus_free{site=~"$site"}', "{{site}}"),
    _plot("Nodes avoided as black holes", "short", 'provisioner_nodes_avoided{site=~"$site"}', "{{site}}"),
    _plot("Age of views", "s", "provisioner_view_age_seconds", "{{scope}}"),
    _plot("Views in use", "bool", "provisioner_view_fresh", "{{scope}}"),
    _plot("Faults per hour", "short", f"{_hourly('faults_total', 'scope, kind', '')} > 0", "{{scope}} {{kind}}"),
    _plot("Time from order to pool", "s", _mean("drone_start_seconds", "site, type"), "{{site}}/{{type}}"),
    _plot("Waiting jobs of the owner", "short", 'provisioner_owner_jobs_waiting{site=~"$site"}', "{{site}}"),
    _plot(
        "Part of the time in which the owner waits for drones",
        "percentunit",
        _rate("owner_wait_seconds_total", "site, grace", "1h"),
        "{{site}}, {{grace}} grace",
    ),
    _plot("Time to give way", "s", _mean("give_way_seconds", "site"), "{{site}}"),
    _plot("Preemptions per hour", "short", _PREEMPTED, "{{site}}"),
)
WASTE_PANELS = (
    _stat("GPU-hours", "h", f"{_total('gpu_seconds_total')} / 3600"),
    _stat("Good part", "percentunit", _GOOD, "Busy GPU time without the lost work, of all GPU time of drones."),
    _stat("Lost GPU-hours", "h", f"{_total('lost_gpu_seconds_total')} / 3600"),
    _stat("Lost runs", "short", _total("jobs_lost_total")),
    _plot("GPUs by use", "short", _rate("gpu_seconds_total", "use", "1h"), "{{use}}"),
    _plot("GPUs at work that is lost", "short", _rate("lost_gpu_seconds_total", "site", "1h"), "{{site}}"),
    _plot("Measured use of held GPUs", "percentunit", f"{_USED_GPUS} / {_HELD_GPUS}", "{{site}}/{{type}}"),
    _plot("Ends per hour", "short", f"{_hourly('drones_ended_total', 'outcome')} > 0", "{{outcome}}"),
    _plot("Leaving drones per hour", "short", f"{_hourly('drones_leaving_total', 'reason')} > 0", "{{reason}}"),
    _plot("Runs per hour", "short", _hourly("jobs_ended_total", "outcome"), "{{outcome}}"),
)
CONTROLLER_PANELS = (
    _stat("Controller", "bool_on_off", "provisioner_controller_up"),
    _stat("Record readable", "bool_yes_no", "provisioner_record_up"),
    _stat("Newest tick", "s", "time() - provisioner_last_tick_timestamp_seconds"),
    _table("Version", "short", "provisioner_info"),
    _plot("Ticks per minute", "short", f"{_rate('ticks_total', where='')} * 60", "ticks"),
    _plots("Mean times", "s", *((_mean(each, "", "15m", ""), each) for each in _DURATIONS)),
    _plot("Delay of the event loop per second", "s", _rate("loop_lag_seconds_total", where=""), "delay"),
    _plots(
        "Disk of the record", "bytes", ("provisioner_store_bytes", "record"), ("provisioner_store_free_bytes", "free")
    ),
    _plot("Orders to stop orphans per hour", "short", _hourly("orphan_stops_total", "site"), "{{site}}"),
)
DASHBOARDS: Sequence[Dashboard] = (
    Dashboard("overview", "Provisioner: overview", OVERVIEW_PANELS),
    Dashboard("sites", "Provisioner: sites", SITE_PANELS),
    Dashboard("waste", "Provisioner: use and waste", WASTE_PANELS),
    Dashboard("controller", "Provisioner: controller", CONTROLLER_PANELS),
)

_SIZES = {"stat": (4, 4), "timeseries": (12, 8), "table": (12, 8)}
"""Width and height by the kind of a panel."""


def render_dashboard(board: Dashboard) -> dict[str, Any]:
    """Return a dashboard as Grafana imports it: it asks for its data source, and its uid stays the same."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    site = {"query": "label_values(provisioner_drones_limit, site)", "refId": "site"}
    variables = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            **{"name": "site", "label": "Site", "type": "query", "datasource": source, "query": site, "refresh": 2},
            **{"includeAll": True, "allValue": ".*", "multi": True, "current": {"text": "All", "value": "$__all"}},
        },
    ]
    return {
        "uid": f"provisioner-{board.name}",
        "title": board.title,
        "tags": ["provisioner"],
        "schemaVersion": DASHBOARD_SCHEMA,
        "editable": True,
        "time": {"from": "now-24h", "to": "now"},
        "refresh": "1m",
        "templating": {"list": variables},
        "links": [{"type": "dashboards", "title": "Provisioner", "tags": ["provisioner"], "asDropdown": True}],
        "panels": list(_placed(board.panels, source)),
    }


def _placed(panels: Sequence[DashboardPanel], source: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the panels from left to right, in rows of panels of one height."""
    x, y, row_height = 0, 0, 0
    for panel in panels:
        width, height = _SIZES[panel.kind]
        if x + width > COLUMNS or (x and height != row_height):
            x, y = 0, y + row_height
        row_height = height
        instant = panel.kind == "table"
        yield {
            "type": panel.kind,
            "title": panel.title,
            "description": panel.help,
            "datasource": source,
            "gridPos": {"x": x, "y": y, "w": width, "h": height},
            "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
            "targets": [
                {
                    "refId": chr(ord("A") + number),
                    "datasource": source,
                    "expr": expression,
                    "legendFormat": legend or "__auto",
                    **({"instant": True, "range": False, "format": "table"} if instant else {}),
                }
                for number, (expression, legend) in enumerate(panel.queries)
            ],
        }
        x += width
