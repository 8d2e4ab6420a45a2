"""The metrics of the controller: one table, and their values read from the record.

The reference page, the exposition for Prometheus and the checks of dashboards and alerts are made from :data:`METRICS`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as MetricFamily

from provisioner import __version__, formatting
from provisioner.model import Breaker, BreakerState, DroneState, FaultKind, Plan
from provisioner.store import Holder, StoreError, Views
from provisioner.store.measures import GPU_USES, WAITING_CATEGORIES, MetricValues, TypeCounts, gauges
from provisioner.store.reader import Reader

OVERLAY = "overlay"
RECORD_UP = "provisioner_record_up"
LABELS = {
    "site": "name of the site",
    "type": "name of the drone type at its site",
    "state": "state of a drone, or of a breaker",
    "scope": "`overlay` or a site; of a breaker also `SITE/TYPE`",
    "category": "category of the weightiest [reason](reasons.md) of a job class, or `none`",
    "reason": "`kind` of a [reason](reasons.md)",
    "outcome": "final state of a drone; of a run `completed` or `unfinished`",
    "use": "`boot`, `idle`, `busy` or `draining`",
    "kind": "kind of a fault",
    "fault": "kind of the fault that changed the state of a breaker; may be empty",
    "grace": "`within` the grace period and the stop timeout of the site, or `over` both",
    "version": "version of the program that reads the record",
}
"""The labels of all metrics. None has more values than the configuration has sites and types, or the code has words."""


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    SUMMARY = "summary"
    """Sum and count of durations."""


class RecordFacts(NamedTuple):
    """The parts of the record that metrics are made from."""

    now: float
    holder: Holder | None
    views: Views | None
    plan: Plan | None
    breakers: Mapping[str, Breaker]
    drones: TypeCounts
    counters: MetricValues
    store_bytes: int = 0
    free_bytes: int = 0

    @property
    def sites(self) -> list[str]:
        return sorted(self.views.policy.sites) if self.views else []


LabelledValues = Iterator[tuple[tuple[str, ...], float]]
ReadMetric = Callable[[RecordFacts], LabelledValues]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. A gauge without ``read`` is one of :func:`provisioner.store.measures.gauges`."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    choices: Sequence[str] = ()
    """Values of the last label that are exposed from the start, as 0: a rate needs the 0 before the first event."""
    read: ReadMetric | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the names of its samples."""
        return (f"{self.name}_sum", f"{self.name}_count") if self.kind is MetricKind.SUMMARY else (self.name,)


def _counter(name: str, help_: str, labels: str = "", choices: Sequence[str] = ()) -> MetricSpec:
    return MetricSpec(f"provisioner_{name}", MetricKind.COUNTER, help_, tuple(labels.split()), choices)


def _summary(name: str, help_: str, labels: str = "") -> MetricSpec:
    return MetricSpec(f"provisioner_{name}", MetricKind.SUMMARY, help_, tuple(labels.split()))


def _gauge(
    name: str, help_: str, labels: str = "", choices: Sequence[str] = (), read: ReadMetric | None = None
) -> MetricSpec:
    return MetricSpec(f"provisioner_{name}", MetricKind.GAUGE, help_, tuple(labels.split()), choices, read)


def view_ages(views: Views, now: float, *, enabled: bool = False) -> dict[str, tuple[float | None, float]]:
    """Return the age of each view (None if there is none) and the age up to which it is used, by scope.

    ``enabled``: only of sites that are.
    """
    pool = views.overlay.view
    ages = {OVERLAY: (now - pool.taken_at if pool else None, views.policy.overlay_max_age_s)}
    for name, policy in views.policy.sites.items():
        if enabled and not policy.enabled:
            continue
        site = views.sites[name].view if name in views.sites else None
        ages[name] = (now - site.taken_at if site else None, policy.view_max_age_s)
    return ages


def _view_age(facts: RecordFacts) -> LabelledValues:
    for scope, (age_s, _) in view_ages(facts.views, facts.now).items() if facts.views else ():
        if age_s is not None:
            yield (scope,), max(0.0, age_s)


def _view_fresh(facts: RecordFacts) -> LabelledValues:
    for scope, (age_s, limit_s) in view_ages(facts.views, facts.now, enabled=True).items() if facts.views else ():
        yield (scope,), float(age_s is not None and age_s <= limit_s)


def _breaker_state(facts: RecordFacts) -> LabelledValues:
    types = [kind.key for kind in facts.views.types] if facts.views else []
    for scope in (OVERLAY, *facts.sites, *types):
        breaker = facts.breakers.get(scope) or Breaker(scope)
        yield (scope, breaker.state.value, breaker.fault.kind.value if breaker.fault else ""), 1.0


def _breaker_until(facts: RecordFacts) -> LabelledValues:
    for scope, breaker in facts.breakers.items():
        if breaker.state is BreakerState.BANNED and not (breaker.user or breaker.node or breaker.class_id):
            yield (scope,), breaker.until


def _drones_limit(facts: RecordFacts) -> LabelledValues:
    for name, policy in facts.views.policy.sites.items() if facts.views else ():
        yield (name,), policy.max_drones


def _nodes_avoided(facts: RecordFacts) -> LabelledValues:
    banned = [b.scope.partition("@")[0] for b in facts.breakers.values() if b.node and b.state is BreakerState.BANNED]
    for site in facts.sites:
        yield (site,), banned.count(site)


def _tick_at(facts: RecordFacts) -> float | None:
    return facts.views.at if facts.views else None


def _single(read: Callable[[RecordFacts], float | None]) -> ReadMetric:
    """Return the reader of a gauge without labels, which has no value where ``read`` returns None."""
    return lambda facts: (((), value) for value in [read(facts)] if value is not None)


_LIVE = tuple(state.value for state in DroneState if not state.ended)
_ENDED = tuple(state.value for state in DroneState if state.ended)
_USES = tuple(dict.fromkeys(GPU_USES.values()))
_RUNS = ("completed", "unfinished")
_STARTS = ("jobs-waiting", "headroom-short")
_LEAVES = ("black-hole", "black-hole-node", "idle-timeout", "preempted-for-owner", "unneeded")
_GRACE = ("within", "over")

METRICS: Sequence[MetricSpec] = (
    # demand
    _gauge("jobs_waiting", "Idle jobs in the pool.", "category", WAITING_CATEGORIES),
    _gauge("jobs_running", "Running jobs in the pool."),
    _gauge("gpus_wanted", "GPUs that idle jobs request; optional ones do not count."),
    _gauge("oldest_job_wait_seconds", "Wait of the oldest idle job."),
    _summary("job_wait_seconds", "Time from the submission to the start of runs that completed.", "site type"),
    _counter("jobs_ended_total", "Runs of jobs that ended in drones.", "site type outcome", _RUNS),
    # supply
    _gauge("drones", "Drones that are not confirmed gone.", "site type state", _LIVE),
    _gauge("gpus", "GPUs of drones that are not confirmed gone.", "site type state", _LIVE),
    _gauge("gpus_free", "Free GPUs of a site by its newest view, if it reports them.", "site"),
    _gauge("drones_limit", "Largest number of drones at a site (`limits.max_drones`).", "site", read=_drones_limit),
    _counter("drones_requested_total", "Drones that were ordered.", "site type reason", _STARTS),
    _summary("drone_start_seconds", "Time from the order of a drone until it joined the pool.", "site type"),
    _counter("drones_leaving_total", "Drones asked to leave, or draining by themselves.", "site type reason", _LEAVES),
    _counter("drones_ended_total", "Drones that ended.", "site type outcome", _ENDED),
    _counter("orphan_stops_total", "Orders to stop an orphan; one may be ordered again.", "site"),
    # use of GPUs
    _counter("gpu_seconds_total", "GPU time of drones by use; GPUs without a job are idle.", "site type use", _USES),
    _counter("lost_gpu_seconds_total", "Part of the busy GPU time that jobs must repeat.", "site type"),
    _counter("jobs_lost_total", "Runs of jobs that the end of their drone ended.", "site type"),
    _counter("measured_gpu_seconds_held_total", "GPU time held by runs whose use was measured.", "site type"),
    _counter("measured_gpu_seconds_used_total", "GPU time that these runs used.", "site type"),
    # owners
    _gauge("owner_jobs_waiting", "Waiting jobs of the owner that need resources which drones may hold.", "site"),
    _counter(
        "owner_wait_seconds_total", "Time in which such jobs waited for a drone with notice.", "site grace", _GRACE
    ),
    _summary("give_way_seconds", "Time from the notice to a drone to its end.", "site type"),
    # sites
    _gauge("view_age_seconds", "Age of the newest good view.", "scope", read=_view_age),
    _gauge(
        "view_fresh",
        "1 if decisions use the view, 0 if too old or missing; of enabled sites.",
        "scope",
        read=_view_fresh,
    ),
    _gauge("breaker_state", "1 for the state of a breaker.", "scope state fault", read=_breaker_state),
    _gauge("breaker_until_timestamp_seconds", "End of the ban of a banned breaker.", "scope", read=_breaker_until),
    _gauge("nodes_avoided", "Nodes that are banned as black holes.", "site", read=_nodes_avoided),
    _counter(
        "faults_total", "Failed polls, orders and drones that count for a breaker.", "scope kind", tuple(FaultKind)
    ),
    # controller
    _gauge("info", "1, with the version of the program.", "version", read=lambda _: iter([((__version__,), 1.0)])),
    _gauge("record_up", "1 if the record can be read.", read=_single(lambda _: 1.0)),
    _gauge("controller_up", "1 if a controller holds the record.", read=_single(lambda f: float(f.holder is not None))),
    _gauge("last_tick_timestamp_seconds", "Time of the newest recorded tick.", read=_single(_tick_at)),
    _counter("ticks_total", "Recorded ticks."),
    _summary("tick_seconds", "Time of one tick, with its waits for sites."),
    _summary("decision_seconds", "Time in which a tick made its plan."),
    _summary("store_write_seconds", "Time in which a tick recorded its plan."),
    _counter("loop_lag_seconds_total", "Delay of a timer of one second in the controller's event loop, summed."),
    _gauge("store_bytes", "Size of the record with its log.", read=_single(lambda f: f.store_bytes)),
    _gauge("store_free_bytes", "Free space on the disk of the record.", read=_single(lambda f: f.free_bytes)),
)


def read_facts(reader: Reader, now: float) -> RecordFacts:
    """Return the facts on record. Raises :class:`StoreError`."""
    plans, log = reader.plans(limit=1), reader.path.with_name(reader.path.name + "-wal")
    return RecordFacts(
        now,
        reader.holder(),
        reader.views(bulk=False),
        plans[-1] if plans else None,
        reader.breakers(),
        reader.drone_counts(),
        reader.counters(),
        sum(path.stat().st_size for path in (reader.path, log) if path.exists()),
        shutil.disk_usage(reader.path.parent).free,
    )


def families(facts: RecordFacts) -> Iterator[MetricFamily]:
    """Yield all metrics with their values."""
    views, found = facts.views, dict[str, dict[tuple[str, ...], float]]()
    read = gauges(views.overlay, views.sites, facts.drones, facts.plan, facts.now) if views else {}
    for key, value in (*read.items(), *facts.counters.items()):
        found.setdefault(key.metric, {})[tuple(text for _, text in key.labels)] = value
    for spec in METRICS:
        values = [dict(spec.read(facts))] if spec.read else [found.get(part, {}) for part in spec.parts]
        family = MetricFamily(spec.name.removesuffix("_total"), spec.help, spec.kind.value)
        for labels in sorted({*_labels_at_start(spec, facts)}.union(*values)):
            for part, of_part in zip(spec.parts, values, strict=True):
                family.add_sample(part, dict(zip(spec.labels, labels, strict=True)), of_part.get(labels, 0.0))
        yield family


def _labels_at_start(spec: MetricSpec, facts: RecordFacts) -> Iterator[tuple[str, ...]]:
    """Yield the labels with which a metric is exposed before anything has happened."""
    if spec.kind is MetricKind.GAUGE and not spec.choices:
        return
    outer: list[tuple[str, ...]] = [()]
    if spec.labels[:1] == ("site",):
        outer = [(name,) for name in facts.sites]
    if spec.labels[:1] == ("scope",):
        outer = [(name,) for name in (OVERLAY, *facts.sites)]
    if spec.labels[:2] == ("site", "type"):
        outer = [(kind.site, kind.name) for kind in (facts.views.types if facts.views else ())]
    for labels in outer:
        yield from ((*labels, each) for each in spec.choices) if spec.choices else [labels]


class RecordCollector:
    """Collector of prometheus_client over a record; it reads at each scrape."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def collect(self) -> Iterator[MetricFamily]:
        try:
            facts = read_facts(self._reader, time.time())
        except (StoreError, OSError):
            unreadable = MetricFamily(RECORD_UP, "1 if the record can be read.", "gauge")
            unreadable.add_sample(RECORD_UP, {}, 0.0)
            yield unreadable
            return
        yield from families(facts)


def exposition(reader: Reader, accept: str = "") -> bytes:
    """Return all metrics in the format that the ``Accept`` header of a scrape asks for: text or OpenMetrics."""
    registry = CollectorRegistry()
    registry.register(RecordCollector(reader))
    body: bytes = choose_encoder(accept)[0](registry)
    return body


def content_type(accept: str = "") -> str:
    """Return the content type of :func:`exposition` for the same header."""
    return str(choose_encoder(accept)[1])


class Health(NamedTuple):
    """Readiness of the service: it decides on fresh views."""

    ready: bool
    reasons: tuple[str, ...] = ()
    """Sentences that say why it is not ready."""


def health(reader: Reader) -> Health:
    """Return the answer to ``/-/ready``."""
    try:
        return readiness(reader.views(bulk=False), reader.holder(), time.time())
    except (StoreError, OSError) as error:
        return Health(False, (str(error),))


def readiness(views: Views | None, holder: Holder | None, now: float) -> Health:
    """Return whether a controller holds the record, its newest tick is young, and all views are fresh."""
    problems = [] if holder else ["no controller holds the record"]
    if views is None:
        return Health(False, (*problems, "no tick is on record"))
    limit_s = views.policy.overlay_max_age_s
    if now - views.at > limit_s:
        age = formatting.age(now - views.at)
        problems.append(f"the newest tick is {age} old; it may be {formatting.age(limit_s)} old")
    for scope, (age_s, most_s) in view_ages(views, now, enabled=True).items():
        if age_s is None:
            problems.append(f"there is no view of {scope}")
        elif age_s > most_s:
            problems.append(
                f"the view of {scope} is {formatting.age(age_s)} old; it may be {formatting.age(most_s)} old"
            )
    return Health(not problems, tuple(problems))
