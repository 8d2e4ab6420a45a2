"""Inference services: a list of them, and one with its servers, its models and the jobs that announce these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple

from provisioner import formatting
from provisioner.answers.columns import (
    Document,
    Listing,
    age_s,
    as_facts,
    ident,
    items,
    now,
    number,
    picked,
    reason_data,
    rounded,
    span_s,
    whole,
    words,
)
from provisioner.answers.demand import (
    CLASS_COLUMNS,
    NO_PLAN_YET,
    REASON_COLUMNS,
    ClassRow,
    class_rows,
)
from provisioner.answers.drones import DRONE_COLUMNS
from provisioner.answers.errors import unknown
from provisioner.answers.lookup import as_of, class_names, newest_plan
from provisioner.answers.query import ListQuery, Query, question, subject
from provisioner.model import ON_THE_WAY, DroneState, Plan, Service, ServiceState, ServiceView
from provisioner.reasons import Reason
from provisioner.store import Views
from provisioner.store.measures import DroneCount, reasons_by_class
from provisioner.store.reader import Reader
from provisioner.values import frozen

SERVICES_SCHEMA = "provisioner.services/1"
SERVICE_SCHEMA = "provisioner.service/1"
USE_S = 7 * 86400.0
"""Period of the requests of models and VOs."""
SERVER_GROUPS: Mapping[str, Sequence[DroneState]] = {
    "serving": (DroneState.IDLE, DroneState.BUSY),
    "starting": ON_THE_WAY,
    "draining": (DroneState.DRAINING, DroneState.STOPPING),
}


@frozen
class ServiceRow:
    """Service with its demand, its servers, and the reasons of the newest plan."""

    service: Service
    view: ServiceView
    state: ServiceState
    servers: Mapping[DroneState, int]
    reasons: Sequence[Reason] = ()
    is_planned: bool = False

    @property
    def why(self) -> str:
        """Reason for the number of its servers, in words."""
        if self.reasons:
            more = f" (+{len(self.reasons) - 1})" if len(self.reasons) > 1 else ""
            return self.reasons[0].describe() + more
        if not self.is_planned:
            return NO_PLAN_YET
        if not self.state.wanted:
            return "no demand"
        if self.state.wanted == self.service.at_least:
            return f"at least {self.state.wanted} are kept"
        if self.state.wanted > self.state.needed:
            return "kept for demand that may return"
        return "as many servers as the demand needs"


def service_rows(
    views: Views | None, plan: Plan | None, live: Iterable[DroneCount]
) -> list[ServiceRow]:
    """Return a row per configured service."""
    view = views.services.view if views else None
    seen = {each.name: each for each in (view.services if view else ())}
    states = {each.name: each for each in (plan.services if plan else ())}
    servers: dict[str, Counter[DroneState]] = {}
    for each in live:
        servers.setdefault(each.service, Counter())[each.state] += each.drones
    return [
        ServiceRow(
            service,
            seen.get(service.name, ServiceView(service.name)),
            states.get(service.name, ServiceState(service.name)),
            servers.get(service.name, {}),
            _reasons_of(plan, service.name),
            service.name in states,
        )
        for service in (views.policy.services if views else ())
    ]


def _reasons_of(plan: Plan | None, service: str) -> list[Reason]:
    """Return the reasons of a plan about a service: what holds servers back, then what starts and ends some."""
    if plan is None:
        return []
    subjects = ("all", f"service:{service}")
    refused = (each.reason for each in plan.refusals if str(each.subject) in subjects)
    asked = (each.reason for each in plan.asks if each.drone.service == service)
    return list(dict.fromkeys((*refused, *asked)))


def _count(group: str) -> Callable[[ServiceRow], int]:
    return lambda row: sum(row.servers.get(state, 0) for state in SERVER_GROUPS[group])


SERVICE_COLUMNS = (
    ident("service", "Name of the service.", "service.name", least=12),
    whole("serving", "Servers that are ready.", _count("serving"), level=0, fact="serving"),
    whole("starting", "Servers that start.", _count("starting"), level=0, fact="starting"),
    whole("draining", "Servers that leave.", _count("draining"), level=0, fact="draining"),
    whole(
        "wanted", "Servers that are kept or started now.", "state.wanted", level=0, fact="wanted"
    ),
    whole("needed", "Servers that the demand needs.", "state.needed", level=0, fact="needed"),
    whole("at_least", "Fewest servers.", "service.at_least", level=1, fact="at least"),
    whole("at_most", "Most servers.", "service.at_most", level=1, fact="at most"),
    number(
        "requests_per_s",
        "Requests that come per second.",
        "view.requests_per_s",
        convert=rounded,
        unit="{:.1f}".format,
        head="REQUESTS/S",
        fact="requests/s",
    ),
    whole(
        "in_flight", "Requests in servers.", "view.in_flight", head="IN FLIGHT", fact="in flight"
    ),
    whole("queued", "Requests that wait at the balancer.", "view.queued", level=0, fact="queued"),
    whole(
        "requests",
        "Requests since the controller started.",
        "view.requests",
        level=1,
        fact="requests",
    ),
    whole("refused", "Those of them that no server took.", "view.refused", level=0, fact="refused"),
    span_s(
        "request_s",
        "Time that a server works on one request, seconds; null: not measured.",
        lambda row: row.view.request_s or row.state.request_s or None,
        unit=lambda s: f"{s * 1000:.0f} ms",
        head="REQUEST",
        fact="time of a request",
    ),
    age_s(
        "requested_s",
        "Time since the newest request, seconds; null: none.",
        "view.requested_at",
        fact="newest request",
    ),
    whole("announced", "Running jobs that announce its models.", "state.announced"),
    words("why", "Why it has so many servers.", least=28, fact="why"),
    items(
        "reasons",
        "Reasons of the newest plan as data.",
        lambda row: list(map(reason_data, row.reasons)),
    ),
)


class ServicesQuery(ListQuery):
    """Inference services."""


@question("services", "/services", lambda: [Listing(SERVICES_SCHEMA, SERVICE_COLUMNS, ())])
def services(reader: Reader, query: ServicesQuery) -> Listing:
    """List the inference services: servers, requests, and why there are so many servers.

    `provisioner explain service NAME` has all reasons, and each server.

    \b
    Examples:
      provisioner services -o json | jq '.items[] | {service, serving, wanted, why}'
    """
    views = reader.views()
    rows = service_rows(views, newest_plan(reader), reader.live_counts())
    scope = f"{formatting.count(len(rows), 'service')}, {as_of(reader, views)}"
    found = Listing(SERVICES_SCHEMA, SERVICE_COLUMNS, rows, lambda row: row.service.name, scope)
    return picked(found, query.sort, query.limit)


class RequestRow(NamedTuple):
    """Requests of a model, or of a VO, in the last days."""

    name: str
    types: Sequence[str] = ()
    requests: float = 0.0
    queue_s: float = 0.0
    compute_s: float = 0.0

    @property
    def mean_s(self) -> float | None:
        return self.compute_s / self.requests if self.requests else None


_WEEK_OF_REQUESTS = whole(
    "requests", "Requests in 7 days.", lambda row: round(row.requests), level=0
)
MODEL_COLUMNS = (
    ident("model", "Model, with its version.", "name", least=12),
    items("types", "Drone types whose servers have it.", level=0),
    _WEEK_OF_REQUESTS,
    span_s("queue_s", "Their wait in servers, seconds.", head="WAITED"),
    span_s("compute_s", "Work of servers on them, seconds.", head="WORK"),
    span_s(
        "mean_s",
        "Work on one of them, seconds; null: none.",
        unit=lambda s: f"{s * 1000:.1f} ms",
        head="EACH",
    ),
)
VO_COLUMNS = (ident("vo", "VO of the token.", "name", least=12), _WEEK_OF_REQUESTS)
SERVER_KEYS = ("id", "type", "state", "state_s", "jobs", "node", "note")
SERVER_COLUMNS = tuple(each for each in DRONE_COLUMNS if each.key in SERVER_KEYS)
JOB_KEYS = ("id", "owner", "waiting", "running", "why")
ANNOUNCING_COLUMNS = (
    *(each for each in CLASS_COLUMNS if each.key in JOB_KEYS),
    items("models", "Models that they announce.", "job.inference", level=0),
)


def service_document(
    row: ServiceRow,
    servers: Sequence[object],
    models: Sequence[RequestRow],
    vos: Sequence[RequestRow],
    jobs: Sequence[ClassRow],
    scope: str = "",
) -> Document:
    """Return the document of ``explain service``."""
    name = row.service.name
    return Document(
        SERVICE_SCHEMA,
        as_facts(SERVICE_COLUMNS),
        row,
        {
            "said": Listing("", REASON_COLUMNS, row.reasons, title="What the newest plan says"),
            "servers": Listing("", SERVER_COLUMNS, servers, title="Servers"),
            "models": Listing("", MODEL_COLUMNS, models, title="Models"),
            "vos": Listing("", VO_COLUMNS, vos, title="Requests by VO"),
            "jobs": Listing("", ANNOUNCING_COLUMNS, jobs, title="Jobs that announce its models"),
        },
        name=name,
        scope=scope,
    )


class ServiceQuery(Query):
    """Inference service."""

    id: Annotated[str, subject("NAME", "Name of the service.")]


def _sample() -> Document:
    row = ServiceRow(Service("s"), ServiceView("s"), ServiceState("s"), {})
    return service_document(row, (), (), (), ())


@question("explain service", "/services/{id}", lambda: [_sample()])
def explain_service(reader: Reader, query: ServiceQuery) -> Document:
    """Explain an inference service: why it has so many servers, and what holds more back.

    Shows the reasons of the newest plan, each server, the requests of each model and VO in the last 7 days, and the
    jobs that announce its models.

    \b
    Examples:
      provisioner explain service cms
    """
    views = reader.views()
    plan = newest_plan(reader)
    name = query.id
    rows = {each.service.name: each for each in service_rows(views, plan, reader.live_counts())}
    if views is None or name not in rows:
        raise unknown("service", name, [*rows])
    servers = [each for each in reader.drones() if each.service == name]
    types: dict[str, list[str]] = {}
    for kind in views.types:
        if kind.server is not None and kind.server.service == name:
            for model in kind.server.models:
                types.setdefault(model, []).append(kind.key)
    of_model = {
        part: _recorded(reader, f"model_{part}_total", name, "model")
        for part in ("requests", "queue_seconds", "compute_seconds")
    }
    models = [
        RequestRow(model, types.get(model, ()), *(sums[model] for sums in of_model.values()))
        for model in sorted({*types, *of_model["requests"]})
    ]
    vos = _recorded(reader, "vo_requests_total", name, "vo")
    by_vo = [RequestRow(vo, requests=number) for vo, number in vos.most_common()]
    return service_document(
        rows[name],
        servers,
        models,
        by_vo,
        _announcing(reader, views, plan, [*types]),
        f"{name} {as_of(reader, views)}",
    )


def _recorded(reader: Reader, metric: str, service: str, label: str) -> Counter[str]:
    """Return the increase of a counter of a service in the last days by a label."""
    found: Counter[str] = Counter()
    series = reader.series(f"provisioner_service_{metric}", now() - USE_S, now(), 3600.0)
    for each in series:
        if each.labels.get("service") == service:
            found[each.labels[label]] += sum(value for _, value in each.points)  # type: ignore[assignment]
    return found


def _announcing(
    reader: Reader, views: Views, plan: Plan | None, models: Sequence[str]
) -> list[ClassRow]:
    """Return the job classes that announce some of the models."""
    from provisioner.planner.services import has_model

    view = views.overlay.view
    jobs = [
        each
        for each in (view.classes if view else ())
        if any(has_model(models, model) for model in each.inference)
    ]
    names = class_names(reader, views)
    return class_rows(views, reasons_by_class(plan), reader.live_by_class(), names, jobs)
