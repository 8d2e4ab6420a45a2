"""Grafana dashboards over the metrics, as the JSON that Grafana imports.

Each metric has a panel, which the table of metrics determines. Only panels that combine metrics are
written here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from provisioner.monitoring import metrics
from provisioner.monitoring.metrics import MetricSpec

DASHBOARD_SCHEMA = 39
"""``schemaVersion`` of Grafana 11. Older ones read it too, and newer ones migrate it."""
SITE = 'site=~"$site"'
COLUMNS = 24
"""Width of a dashboard in Grafana's units."""
UNITS = {"_timestamp_seconds": "dateTimeAsIso", "_seconds": "s", "_bytes": "bytes"}
"""Grafana's units by the end of a gauge's name."""


class DashboardPanel(NamedTuple):
    """One panel; ``kind`` and ``unit`` are Grafana's names, and ``query`` is an expression of PromQL."""

    title: str
    kind: str
    unit: str
    query: str
    legend: str = ""
    help: str = ""


class Dashboard(NamedTuple):
    name: str
    title: str
    panels: Sequence[DashboardPanel]


def metric_panel(spec: MetricSpec) -> DashboardPanel:
    """Return the panel of one metric: a gauge, the mean duration of the last hour, or the growth of a counter.

    A counter of seconds is shown per second, others per hour. Drone types are added up where there
    is another label.
    """
    title = (
        spec.name.removeprefix("provisioner_")
        .removesuffix("_total")
        .replace("_", " ")
        .replace("gpu", "GPU")
    )
    selected = f"{{{SITE}}}" if "site" in spec.labels else ""
    shown = (spec.labels[2:] or spec.labels) if "type" in spec.labels else spec.labels
    grouped = f"sum by ({', '.join(shown)})" if shown else "sum"
    rates = [f"{grouped} (rate({part}{selected}[1h]))" for part in spec.parts]
    kind, unit = "timeseries", "short"
    if spec.kind == "summary":
        title, unit, query = f"mean {title}", "s", " / ".join(rates)
    elif spec.kind == "counter" and "seconds" in spec.name:
        title, query = f"{title} per second", rates[0]
    elif spec.kind == "counter":
        title, query = f"{title} per hour", f"{rates[0]} * 3600"
    else:
        unit = next((unit for end, unit in UNITS.items() if spec.name.endswith(end)), unit)
        is_time, is_text = unit == "dateTimeAsIso", {"fault", "version"} & {*spec.labels}
        kind = "table" if is_time or is_text else kind if spec.labels else "stat"
        query = f"{grouped} ({spec.name}{selected}){' * 1000' if is_time else ''}"
    legend = " ".join(f"{{{{{label}}}}}" for label in shown)
    return DashboardPanel(title[0].upper() + title[1:], kind, unit, query, legend, spec.help)


def _total(metric: str, where: str = SITE) -> str:
    """Return the increase of a counter over the time that the dashboard shows."""
    return f"sum(increase(provisioner_{metric}{{{where}}}[$__range]))"


_GPU_S, _LOST_GPU_S = _total("gpu_seconds_total"), _total("lost_gpu_seconds_total")
_BUSY_GPU_S = _total("gpu_seconds_total", f'{SITE}, use="busy"')
_USED = f"{_total('measured_gpu_seconds_used_total')} / {_total('measured_gpu_seconds_held_total')}"

WASTE_SUMS = (
    DashboardPanel("GPU-hours", "stat", "h", f"{_GPU_S} / 3600"),
    DashboardPanel("Lost GPU-hours", "stat", "h", f"{_LOST_GPU_S} / 3600"),
    DashboardPanel(
        "Good part of GPU time",
        "stat",
        "percentunit",
        f"({_BUSY_GPU_S} - {_LOST_GPU_S}) / {_GPU_S}",
    ),
    DashboardPanel("Measured use of held GPUs", "stat", "percentunit", _USED),
)
DASHBOARDS: Sequence[Dashboard] = (
    Dashboard("overview", "Provisioner: overview", [*map(metric_panel, metrics.OVERVIEW_METRICS)]),
    Dashboard("sites", "Provisioner: sites", [*map(metric_panel, metrics.SITE_METRICS)]),
    Dashboard(
        "waste",
        "Provisioner: use and waste",
        [*WASTE_SUMS, *map(metric_panel, metrics.WASTE_METRICS)],
    ),
    Dashboard(
        "controller", "Provisioner: controller", [*map(metric_panel, metrics.CONTROLLER_METRICS)]
    ),
)


def render_dashboard(board: Dashboard) -> dict[str, Any]:
    """Return a dashboard as Grafana imports it: it asks for its data source, and its uid stays the same."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    site = {"query": "label_values(provisioner_drones_limit, site)", "refId": "site"}
    everything = {
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }
    variables = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "site",
            "label": "Site",
            "type": "query",
            "datasource": source,
            "query": site,
            "refresh": 2,
        }
        | everything,
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
        "links": [
            {
                "type": "dashboards",
                "title": "Provisioner",
                "tags": ["provisioner"],
                "asDropdown": True,
            }
        ],
        "panels": list(_placed(board.panels, source)),
    }


def _placed(panels: Sequence[DashboardPanel], source: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the panels from left to right, in rows of panels of one height."""
    x, y, row_height = 0, 0, 0
    for panel in panels:
        width, height = (4, 4) if panel.kind == "stat" else (12, 8)
        if x + width > COLUMNS or (x and height != row_height):
            x, y = 0, y + row_height
        row_height = height
        instant = (
            {"instant": True, "range": False, "format": "table"} if panel.kind == "table" else {}
        )
        legend = panel.legend or "__auto"
        yield {
            "type": panel.kind,
            "title": panel.title,
            "description": panel.help,
            "datasource": source,
            "gridPos": {"x": x, "y": y, "w": width, "h": height},
            "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
            "targets": [
                {
                    "refId": "A",
                    "datasource": source,
                    "expr": panel.query,
                    "legendFormat": legend,
                    **instant,
                }
            ],
        }
        x += width
