"""Alert rules over the metrics, as the file of rules that Prometheus loads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

RUNBOOKS = "docs/how-to/runbooks.md"
"""Page with a section for each alert."""


class AlertRule(NamedTuple):
    """One alert. ``summary`` and ``description`` may use the templates of Prometheus."""

    name: str
    expression: str
    summary: str
    description: str
    severity: str = "warning"
    lasts: str = "5m"
    """Time for which the expression must hold."""


def _by_target(expression: str) -> str:
    """Return the sum of an expression for each controller that Prometheus scrapes."""
    return f"sum by (job, instance) ({expression})"


def _grown(metric: str, window: str, by: str, where: str = "") -> str:
    return f"sum by ({by}) (increase(provisioner_{metric}{{{where}}}[{window}]))"


def _trouble(kinds: str) -> str:
    """Return the number of troubles of `provisioner status` whose kind matches, by severity; notes do not count."""
    return f'sum by (job, instance, severity, kind) (provisioner_troubles{{severity!="note", {kinds}}}) > 0'


BY_OTHER_RULES = (
    *("controller-down", "no-tick", "disk-full", "view-failed", "view-old", "banned"),
    *("no-negotiation", "config.rejected", "drain.rejected", "plan.rejected", "black-hole-node"),
    *("credential-unusable", "credential-expires"),
)
"""Kinds of troubles that an alert of their own is about; `Trouble` is about all others."""

_DOWN = 'up{job=~"provisioner.*"} == 0'
_LEFT_S = "provisioner_credential_expires_timestamp_seconds - time()"
_RUNS = "on (job, instance) provisioner_controller_up == 1"
_STARTABLE = _by_target('provisioner_jobs_waiting{category=~"start|back-off"}')
_STARTED = _by_target("increase(provisioner_drones_requested_total[30m])")
_WASTED = _grown("drones_ended_total", "1h", "site", 'outcome=~"unused|failed|join-timeout|lost"')
_ENDED_DRONES = _grown("drones_ended_total", "1h", "site")
_BLACK_HOLES = _grown("drones_leaving_total", "1h", "site", 'reason=~"black-hole|black-hole-node"')
_USED_GPU_S = _grown("measured_gpu_seconds_used_total", "6h", "site, type")
_HELD_GPU_S = _grown("measured_gpu_seconds_held_total", "6h", "site, type")

ALERTS: Sequence[AlertRule] = (
    AlertRule(
        "ControllerDown",
        f"provisioner_controller_up == 0 or provisioner_record_up == 0 or {_DOWN} or absent(provisioner_record_up)",
        "No controller runs, or its record cannot be read.",
        "Drones that run go on. Nothing is started, drained or given back to an owner meanwhile.",
        severity="critical",
    ),
    AlertRule(
        "TickMissing",
        f"provisioner_tick_age_seconds > 300 + provisioner_tick_limit_seconds and {_RUNS}",
        "A controller runs and has recorded no tick for {{ $value | humanizeDuration }}.",
        "Its disk may be full, or it hangs. It acts on nothing that it cannot record.",
        severity="critical",
    ),
    AlertRule(
        "TickSlow",
        "rate(provisioner_tick_seconds_sum[15m]) / rate(provisioner_tick_seconds_count[15m]) > 30",
        "A tick takes {{ $value | humanizeDuration }} on average.",
        "Drones start and leave later than they should.",
    ),
    AlertRule(
        "StoreDiskFull",
        "provisioner_store_free_bytes < 268435456",
        "{{ $value | humanize1024 }}B are left on the disk of the record.",
        "The controller acts on nothing that it cannot record.",
        severity="critical",
    ),
    AlertRule(
        "PoolViewStale",
        f'provisioner_view_fresh{{scope="overlay"}} == 0 and {_RUNS}',
        "The pool cannot be seen.",
        "No drone is started or drained for jobs while the view of the pool is too old.",
        severity="critical",
    ),
    AlertRule(
        "ViewStale",
        f'provisioner_view_fresh{{scope!="overlay"}} == 0 and {_RUNS}',
        "Site {{ $labels.scope }} cannot be seen.",
        "Nothing is started there, and its owner's jobs are not seen, while the view of the site is too old.",
    ),
    AlertRule(
        "BreakerOpen",
        'provisioner_breaker_state{state="banned", fault!~"capacity|quota"} == 1',
        "{{ $labels.scope }} is banned ({{ $labels.fault }}).",
        "No drone is started there until the ban ends. It is banned again for longer if the next attempt fails.",
        lasts="15m",
    ),
    AlertRule(
        "NothingStartsThoughDemand",
        f"{_STARTABLE} > 0 and {_STARTED} == 0",
        "{{ $value }} jobs could have drones, and none was ordered for half an hour.",
        "Jobs that wait for negotiation, a limit, a full site, or because of their own request are not counted.",
        lasts="30m",
    ),
    AlertRule(
        "ChurnHigh",
        f"{_WASTED} / {_ENDED_DRONES} > 0.5 and {_WASTED} > 5",
        "{{ $value | humanizePercentage }} of the drones at {{ $labels.site }} end without a job.",
        "They failed, never joined, or were not used.",
    ),
    AlertRule(
        "OwnerWaited",
        'increase(provisioner_owner_wait_seconds_total{grace="over"}[15m]) > 0',
        "The owner of {{ $labels.site }} waited {{ $value | humanizeDuration }} for drones that had to be gone.",
        "Drones that were asked to leave outlived the grace period and the stop timeout of the site.",
    ),
    AlertRule(
        "OrphansFound",
        "increase(provisioner_orphan_stops_total[30m]) > 0",
        "Drones that are not on record were stopped at {{ $labels.site }}.",
        "A restored record, two controllers with one name, or a site that lists drones late causes them.",
    ),
    AlertRule(
        "FirstJobFailing",
        f"{_BLACK_HOLES} > 0",
        "Jobs fail in new drones at {{ $labels.site }}.",
        "Job after job failed within seconds in a drone there. It is drained, and its node is avoided if it persists.",
    ),
    AlertRule(
        "NoNegotiation",
        _trouble('kind="no-negotiation"'),
        "The pool runs no negotiation cycle, and jobs wait.",
        "No job starts in any slot, and no drone is started for jobs that no cycle has considered.",
        severity="critical",
        lasts="1m",
    ),
    AlertRule(
        "CredentialExpires",
        f"{_LEFT_S} < provisioner_credential_warning_seconds or provisioner_credential_usable == 0",
        "{{ $labels.name }} of {{ $labels.scope }} ends soon, or cannot be used.",
        "`provisioner status` names its file and the time. Nothing is started with one that cannot be used.",
        lasts="0m",
    ),
    AlertRule(
        "CredentialUnusable",
        "provisioner_credential_usable == 0",
        "{{ $labels.name }} of {{ $labels.scope }} is expired, damaged or gone.",
        "Nothing is started with it, at its site or, where it is one of the pool or of drones, at all.",
        severity="critical",
        lasts="0m",
    ),
    AlertRule(
        "ReloadRefused",
        _trouble('kind="config.rejected"'),
        "The changed configuration was refused.",
        "The controller runs on with the old one. After a restart it would not start.",
    ),
    AlertRule(
        "DrainRefused",
        _trouble('kind="drain.rejected"'),
        "The pool refuses to drain {{ $value }} drones.",
        "They go on taking jobs, and do not give way to an owner by themselves.",
    ),
    AlertRule(
        "PlanRefused",
        _trouble('kind="plan.rejected"'),
        "Parts of a plan were refused as inconsistent.",
        "The classes and actions concerned are left out; all others are carried out.",
    ),
    AlertRule(
        "NodeBad",
        _trouble('kind="black-hole-node"'),
        "{{ $value }} nodes are avoided or watched: jobs fail on them.",
        "A GPU, a file system or a driver there may be broken.",
    ),
    AlertRule(
        "Trouble",
        _trouble(f'kind!~"{"|".join(BY_OTHER_RULES)}"'),
        "`provisioner status` shows a trouble of kind {{ $labels.kind }}.",
        "No alert of its own is about this kind.",
        lasts="15m",
    ),
    AlertRule(
        "GpuUnused",
        f"{_USED_GPU_S} / {_HELD_GPU_S} < 0.05 and {_HELD_GPU_S} > 36000",
        "Jobs on {{ $labels.site }}/{{ $labels.type }} use {{ $value | humanizePercentage }} of their GPUs.",
        "The runs that ended within 6 hours held more than 10 GPU-hours.",
    ),
)


def render_alerts(runbooks: str = RUNBOOKS) -> dict[str, Any]:
    """Return the file of rules; ``runbooks`` is the address of the page with a section for each alert."""
    rules = [
        {
            "alert": rule.name,
            "expr": rule.expression,
            "for": rule.lasts,
            "labels": {"severity": rule.severity},
            "annotations": {
                "summary": rule.summary,
                "description": rule.description,
                "runbook_url": f"{runbooks}#{rule.name.lower()}",
            },
        }
        for rule in ALERTS
    ]
    return {"groups": [{"name": "provisioner", "rules": rules}]}
