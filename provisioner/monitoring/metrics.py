"""The metrics of the controller: one table, and their values read from the record.

The reference page and the exposition for Prometheus are made from :data:`METRICS`. The dashboards
(``grafana/``) and the rules of the alerts (``alerts.yml``) are files beside this module; a test
compares their expressions with the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric as MetricFamily
from prometheus_client.registry import Collector

from provisioner import __version__, formatting
from provisioner.keys import Scope
from provisioner.model import Breaker, BreakerState, DroneState, FaultKind
from provisioner.store import Holder, StoreError, Views
from provisioner.store.measures import (
    GPU_USES,
    SERVICE_USE,
    WAITING_CATEGORIES,
    MetricKey,
    MetricValues,
    gauges,
    vo_gauges,
)
from provisioner.store.reader import Reader
from provisioner.values import frozen

OVERLAY = "overlay"
SERVICES = "services"
RECORD_UP = "provisioner_record_up"


@frozen
class MetricSpec:
    """One metric."""

    name: str
    kind: str
    """``counter``, ``gauge``, or ``summary``: the sum and the number of durations."""
    help: str
    labels: tuple[str, ...] = ()
    choices: Sequence[str] = ()
    """Values of the last label that are exposed from the start, as 0: a rate needs the 0 before the first event."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the names of its samples."""
        return (
            (f"{self.name}_sum", f"{self.name}_count") if self.kind == "summary" else (self.name,)
        )


def _spec(
    kind: str,
    name: str,
    help_: str,
    labels: str = "",
    choices: Sequence[str] = (),
) -> MetricSpec:
    return MetricSpec(f"provisioner_{name}", kind, help_, tuple(labels.split()), choices)


_counter = partial(_spec, "counter")
_gauge = partial(_spec, "gauge")
_summary = partial(_spec, "summary")

_LIVE = tuple(state.value for state in DroneState if not state.ended)
_ENDED_STATES = tuple(state.value for state in DroneState if state.ended)
_USES = (*dict.fromkeys(GPU_USES.values()), SERVICE_USE)
_FAULTS = tuple(kind for kind in FaultKind if kind is not FaultKind.LEASE)
_STARTS = ("jobs-waiting", "headroom-short")
_LEAVES = ("black-hole", "black-hole-node", "idle-timeout", "preempted-for-owner", "unneeded")

METRICS: Sequence[MetricSpec] = (
    _gauge("jobs_waiting", "Idle jobs in the pool.", "category", WAITING_CATEGORIES),
    _gauge("jobs_running", "Running jobs in the pool."),
    _gauge("vo_jobs", "Jobs in the pool by VO: 20 with most jobs, and `other`.", "vo state"),
    _gauge(
        "gpus_wanted",
        "GPUs that idle jobs request; optional ones do not count.",
        "category",
        WAITING_CATEGORIES,
    ),
    _gauge("oldest_job_wait_seconds", "Wait of the oldest idle job."),
    _summary(
        "job_wait_seconds",
        "Time from the submission to the start of runs that completed.",
        "site type",
    ),
    _gauge("drones", "Live drones: ordered and not confirmed gone.", "site type state", _LIVE),
    _gauge("gpus", "GPUs of live drones.", "site type state", _LIVE),
    _counter("drones_requested_total", "Drones that were ordered.", "site type reason", _STARTS),
    _summary(
        "drone_start_seconds",
        "Time from the order of a drone until it joined the pool.",
        "site type",
    ),
    _counter("drones_ended_total", "Drones that ended.", "site type outcome", _ENDED_STATES),
    _gauge("breaker_state", "1 for the state of a breaker.", "scope state fault"),
    _gauge("breaker_until_timestamp_seconds", "End of the ban of a banned breaker.", "scope"),
    _gauge("view_age_seconds", "Age of the newest good view; of enabled sites.", "scope"),
    _gauge(
        "view_fresh",
        "1 if decisions use the view, 0 if too old or missing; of enabled sites.",
        "scope",
    ),
    _counter("faults_total", "Failures that count for a breaker.", "scope kind", _FAULTS),
    _gauge("nodes_avoided", "Nodes that are banned as black holes.", "site"),
    _gauge("gpus_free", "Free GPUs of a site by its newest view, if it reports them.", "site"),
    _gauge("drones_limit", "Largest number of drones at a site (`limits.max_drones`).", "site"),
    _gauge(
        "owner_jobs_waiting",
        "Waiting jobs of the owner that need resources of drones.",
        "site",
    ),
    _counter(
        "owner_wait_seconds_total",
        "Time for which such jobs waited for drones to end.",
        "site grace",
        ("within", "over"),
    ),
    _summary("give_way_seconds", "Time from the notice to a drone to its end.", "site type"),
    _counter(
        "gpu_seconds_total",
        "GPU time of drones by use; GPUs without a job are idle.",
        "site type use",
        _USES,
    ),
    _counter("lost_gpu_seconds_total", "Busy GPU time that jobs must repeat.", "site type"),
    _counter("jobs_lost_total", "Runs of jobs that the end of their drone ended.", "site type"),
    _counter(
        "jobs_ended_total",
        "Runs of jobs that ended in drones.",
        "site type outcome",
        ("completed", "unfinished"),
    ),
    _counter(
        "measured_gpu_seconds_held_total",
        "GPU time held by runs whose use was measured.",
        "site type",
    ),
    _counter("measured_gpu_seconds_used_total", "GPU time that these runs used.", "site type"),
    _counter(
        "drones_leaving_total",
        "Drones ordered to drain or stop, or draining on their own.",
        "site type reason",
        _LEAVES,
    ),
    _gauge("service_servers", "Servers of a service.", "service state", _LIVE),
    _gauge("service_servers_wanted", "Servers that are kept or started now.", "service"),
    _gauge("service_servers_needed", "Servers that the demand of this tick needs.", "service"),
    _gauge("service_requests_in_flight", "Requests in servers.", "service"),
    _gauge("service_requests_queued", "Requests that wait at the balancer.", "service"),
    _gauge(
        "service_request_seconds", "Time that a server works on one request; 0: unknown.", "service"
    ),
    _counter("service_requests_total", "Requests that came to the balancer.", "service"),
    _counter("service_refused_total", "Those of them that no server took.", "service"),
    _counter("service_vo_requests_total", "Requests by VO, by its token.", "service vo"),
    _counter("service_model_requests_total", "Requests that servers worked on.", "service model"),
    _counter("service_model_queue_seconds_total", "Their wait in servers.", "service model"),
    _counter("service_model_compute_seconds_total", "Work of servers on them.", "service model"),
    _gauge("info", "1, with the version of the program.", "version"),
    _gauge("record_up", "1 if the record can be read."),
    _gauge("controller_up", "1 if a controller holds the record."),
    _gauge("last_tick_timestamp_seconds", "Time of the newest recorded tick."),
    _gauge("tick_age_seconds", "Age of the newest recorded tick, independent of clock changes."),
    _gauge("tick_limit_seconds", "Age from which the newest tick is too old (`overlay_max_age`)."),
    _counter("ticks_total", "Recorded ticks."),
    _summary("tick_seconds", "Time of one tick, with its waits for sites."),
    _summary("decision_seconds", "Time in which a tick made its plan."),
    _summary("store_write_seconds", "Time in which a tick recorded its plan."),
    _gauge("store_bytes", "Size of the record with its log."),
    _gauge("store_free_bytes", "Free space on the disk of the record."),
    _gauge("troubles", "Troubles of `provisioner status`.", "severity kind"),
    _gauge(
        "credential_usable", "1 if a token, key or certificate can be used, 0 if not.", "scope name"
    ),
    _gauge(
        "credential_expires_timestamp_seconds", "End of a credential that expires.", "scope name"
    ),
    _gauge(
        "credential_warning_seconds",
        "Time before its end from which it is a trouble.",
        "scope name",
    ),
    _counter("orphan_stops_total", "Orders to stop an orphan; one may be ordered again.", "site"),
)


def view_ages(views: Views, now: float) -> dict[str, tuple[float | None, float]]:
    """Return the age of the view of pool, services and each enabled site, and the age up to which it is used, by scope.

    The age is None if there is no view.
    """
    pool = views.overlay.view
    ages = {OVERLAY: (now - pool.taken_at if pool else None, views.policy.overlay_max_age_s)}
    if views.policy.services:
        seen = views.services.view
        age_s = now - seen.taken_at if seen else None
        ages[SERVICES] = (age_s, views.policy.overlay_max_age_s)
    for name, policy in views.policy.sites.items():
        if policy.enabled:
            site = views.sites[name].view if name in views.sites else None
            ages[name] = (now - site.taken_at if site else None, policy.view_max_age_s)
    return ages


def read_values(
    reader: Reader,
    views: Views | None,
    now: float,
) -> MetricValues:
    """Return all values on record, of which ``views`` are the newest.

    Raises :class:`StoreError`.
    """
    of = MetricKey.of
    used, free = reader.database.size()
    values = {
        **reader.counters(),
        of("provisioner_info", version=__version__): 1.0,
        of(RECORD_UP): 1.0,
        of("provisioner_controller_up"): float(reader.holder() is not None),
        of("provisioner_store_bytes"): used,
    }
    if free is not None:
        values[of("provisioner_store_free_bytes")] = free
    if views is None:
        return values
    plan = next(iter(reader.plans(limit=1)), None)
    values |= gauges(views, reader.live_counts(), plan, now)
    values |= vo_gauges(views.overlay.view.classes if views.overlay.view else ())
    for each in views.credentials:
        where = {"scope": each.used_by, "name": each.name}
        values[of("provisioner_credential_usable", **where)] = float(not each.is_dead(now))
        if each.not_after:
            values[of("provisioner_credential_expires_timestamp_seconds", **where)] = each.not_after
            values[of("provisioner_credential_warning_seconds", **where)] = each.warning_s
    values[of("provisioner_last_tick_timestamp_seconds")] = views.at
    values[of("provisioner_tick_age_seconds")] = max(0.0, now - views.at)
    values[of("provisioner_tick_limit_seconds")] = views.policy.overlay_max_age_s
    for scope, (age_s, limit_s) in view_ages(views, now).items():
        values[of("provisioner_view_fresh", scope=scope)] = float(
            age_s is not None and age_s <= limit_s
        )
        if age_s is not None:
            values[of("provisioner_view_age_seconds", scope=scope)] = max(0.0, age_s)
    breakers = reader.breakers()
    bans = [each for each in breakers.values() if each.state is BreakerState.BANNED]
    for scope in (OVERLAY, *views.policy.sites, *(kind.key for kind in views.types)):
        place = Scope.parse(scope)
        breaker = breakers.get(place) or Breaker(place)
        fault = breaker.fault.kind.value if breaker.fault else ""
        values[
            of("provisioner_breaker_state", scope=scope, state=breaker.state.value, fault=fault)
        ] = 1.0
        if breaker in bans:
            values[of("provisioner_breaker_until_timestamp_seconds", scope=scope)] = breaker.until
    avoided = Counter(each.scope.site for each in bans if each.scope.node)
    for site, policy in views.policy.sites.items():
        values[of("provisioner_drones_limit", site=site)] = policy.max_drones
        values[of("provisioner_nodes_avoided", site=site)] = avoided[site]
    return values


TroubleKinds = Callable[[Reader], Iterable[tuple[str, str]]]
"""Returns severity and kind of each trouble on record.

The rules are in :mod:`provisioner.answers.troubles`.
"""


def families(
    reader: Reader,
    now: float,
    troubles: TroubleKinds | None = None,
) -> Iterator[MetricFamily]:
    """Yield all metrics with their values.

    Counters with labels that the metric no longer has are left out.
    """
    views = reader.views()
    found = dict[tuple[str, tuple[str, ...]], dict[tuple[str, ...], float]]()
    for key, value in read_values(reader, views, now).items():
        labels = dict(key.labels)
        found.setdefault((key.metric, tuple(labels)), {})[tuple(labels.values())] = value
    if troubles is not None:
        counts = Counter(troubles(reader))
        found["provisioner_troubles", ("severity", "kind")] = {
            key: float(count) for key, count in counts.items()
        }
    for spec in METRICS:
        values = [found.get((part, spec.labels), {}) for part in spec.parts]
        family = MetricFamily(spec.name.removesuffix("_total"), spec.help, spec.kind)
        for texts in sorted({*_labels_at_start(spec, views)}.union(*values)):
            for part, of_part in zip(spec.parts, values, strict=True):
                family.add_sample(
                    part, dict(zip(spec.labels, texts, strict=True)), of_part.get(texts, 0.0)
                )
        yield family


def _labels_at_start(spec: MetricSpec, views: Views | None) -> Iterator[tuple[str, ...]]:
    """Yield the labels with which a metric is exposed before anything has happened."""
    if spec.kind == "gauge" and not spec.choices:
        return
    outer: list[tuple[str, ...]] = [()]
    if spec.labels[:2] == ("site", "type"):
        outer = [(kind.site, kind.name) for kind in (views.types if views else ())]
    elif spec.labels[:1] in (("site",), ("scope",)):
        outer = [(name,) for name in (views.policy.sites if views else ())]
    elif spec.labels[:1] == ("service",):
        is_known = len(spec.labels) == 1 or spec.choices
        outer = [(each.name,) for each in views.policy.services] if views and is_known else []
    if spec.labels[:1] == ("scope",):
        outer.append((OVERLAY,))
    for labels in outer:
        yield from ((*labels, each) for each in spec.choices) if spec.choices else [labels]


@frozen
class RecordCollector(Collector):
    """Collector of prometheus_client over a record; it reads at each scrape."""

    reader: Reader
    troubles: TroubleKinds | None = None

    def collect(self) -> Iterator[MetricFamily]:
        try:
            found = [*families(self.reader, self.reader.now(), self.troubles)]
        except (StoreError, OSError):
            found = [GaugeMetricFamily(RECORD_UP, "1 if the record can be read.", 0.0)]
        yield from found


def exposition(
    reader: Reader,
    accept: str = "",
    troubles: TroubleKinds | None = None,
) -> bytes:
    """Return all metrics in the format that the ``Accept`` header of a scrape asks for: text or OpenMetrics."""
    return choose_encoder(accept)[0](RecordCollector(reader, troubles))


def content_type(accept: str = "") -> str:
    """Return the content type of :func:`exposition` for the same header."""
    return choose_encoder(accept)[1]


class Health(NamedTuple):
    """Readiness of the service: it decides on fresh views."""

    ready: bool
    reasons: tuple[str, ...] = ()
    """Sentences that say why it is not ready."""


def health(reader: Reader) -> Health:
    """Return the answer to ``/-/ready``."""
    try:
        return readiness(reader.views(), reader.holder(), reader.now())
    except (StoreError, OSError) as error:
        return Health(False, (str(error),))


def readiness(
    views: Views | None,
    holder: Holder | None,
    now: float,
) -> Health:
    """Return whether a controller holds the record, its newest tick is young, and all views are fresh."""
    problems = [] if holder else ["no controller holds the record"]
    if views is None:
        return Health(False, (*problems, "no tick is on record"))
    ages = {f"view of {scope}": age for scope, age in view_ages(views, now).items()}
    for what, (age_s, limit_s) in {
        "newest tick": (now - views.at, views.policy.overlay_max_age_s),
        **ages,
    }.items():
        if age_s is None:
            problems.append(f"there is no {what}")
        elif age_s > limit_s:
            problems.append(
                f"the {what} is {formatting.age(age_s)} old; it may be {formatting.age(limit_s)} old"
            )
    return Health(not problems, tuple(problems))
