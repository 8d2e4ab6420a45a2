"""Sites: a list of them, one with its nodes and claims, and requests about one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Annotated, NamedTuple

from provisioner import formatting, model
from provisioner.answers.columns import (
    Column,
    Document,
    Listing,
    age_s,
    ago,
    as_facts,
    data,
    flag,
    gpus,
    ident,
    items,
    mib,
    now,
    number,
    picked,
    rounded,
    span_s,
    text,
    time_at,
    whole,
    words,
)
from provisioner.answers.errors import UnmetError, unknown
from provisioner.answers.lookup import as_of, class_names, require_known_sites
from provisioner.answers.plan import breaker_words
from provisioner.answers.query import ListQuery, Query, question, subject
from provisioner.answers.usage import USE_COLUMN, RecordedUse, with_use
from provisioner.descriptions import ClassNames
from provisioner.keys import Scope, site_of
from provisioner.model import Breaker, BreakerState, Drone, DroneState, RequestKind, SiteView
from provisioner.store import Hazard, Views
from provisioner.store.measures import DroneCount
from provisioner.store.reader import Reader
from provisioner.values import frozen

MAX_BREAKERS_NAMED = 4
"""Breakers that are named in the note of a site."""

SITES_SCHEMA = "provisioner.sites/1"

WEEK_S = 7 * 86400.0
"""Period over which the hazard of a site is measured."""

BREAKERS = dict.fromkeys(BreakerState, "yellow") | {
    BreakerState.ACTIVE: "",
    BreakerState.BANNED: "red",
}


@frozen
class SiteRow:
    """Site with all that is on record of it."""

    name: str
    policy: model.SitePolicy | None
    """None: it is not in the configuration of the newest tick, but has drones."""
    reading: model.PolledSite | None
    breaker: Breaker
    type_breakers: Sequence[Breaker]
    states: Mapping[DroneState, int]
    gpu_milli: int
    hazard: Hazard | None = None
    """None: no drone has run there of late."""
    disabled: model.OperatorRequest | None = None
    """The request of an operator that disabled it; None: none did."""
    names: ClassNames = ClassNames(None)

    @property
    def view(self) -> SiteView | None:
        return self.reading.view if self.reading else None

    @property
    def live(self) -> int:
        return sum(self.states.values())

    @property
    def taken_at(self) -> float:
        return self.view.taken_at if self.view else 0.0

    @property
    def free_gpu_milli(self) -> int | None:
        """Free GPUs of all nodes; None if the site does not list nodes."""
        return (
            sum(n.free_gpu_milli for n in self.view.nodes)
            if self.view and self.view.nodes
            else None
        )

    @property
    def node_gpu_milli(self) -> int | None:
        """That of all its nodes; None: the site does not tell node by node."""
        return sum(n.gpu_milli for n in self.view.nodes) if self.view and self.view.nodes else None


def site_rows(reader: Reader, views: Views | None, live: Iterable[DroneCount]) -> list[SiteRow]:
    """Return a row per site that is configured or has live drones."""
    states: defaultdict[str, Counter[DroneState]] = defaultdict(Counter)
    milli: Counter[str] = Counter()
    for each in live:
        states[each.site][each.state] += each.drones
        milli[each.site] += each.gpu_milli
    policies = views.policy.sites if views else {}
    readings = views.sites if views else {}
    measured = {hazard.scope: hazard for hazard in reader.hazards(now() - WEEK_S, now())}
    breakers = reader.breakers()
    disabled = model.disabled_sites(reader.requests())
    troubled = [
        breakers[scope]
        for scope in sorted(breakers, key=str)
        if breakers[scope].state is not BreakerState.ACTIVE
    ]
    names = class_names(reader, views)
    return [
        SiteRow(
            name,
            policies.get(name),
            readings.get(name),
            breakers.get(Scope(name)) or Breaker(Scope(name)),
            [b for b in troubled if b.scope.site == name and b.scope != Scope(name)],
            states.get(name, {}),
            milli[name],
            measured.get(name),
            disabled.get(name),
            names,
        )
        for name in sorted({*policies, *states})
    ]


def _claimed(value: Callable[[model.OwnerDemand], int]) -> Callable[[SiteRow], int]:
    return lambda row: sum(c.count * value(c) for c in row.view.claims) if row.view else 0


def _is_enabled(row: SiteRow) -> bool:
    return bool(row.policy and row.policy.enabled and not row.disabled)


def _state_words(row: SiteRow) -> str:
    return ", ".join(f"{n} {state.value}" for state, n in row.states.items())


def _preempted_words(row: SiteRow) -> str:
    return (
        f"{row.hazard.preempted} of {formatting.count(row.hazard.drones, 'drone')}"
        if row.hazard
        else ""
    )


def owner_words(view: SiteView | None) -> str:
    """Return ``3 jobs wait for 8 GPUs, 2 jobs run on 4 GPUs`` of the owner; empty: none, or not known."""
    if view is None:
        return ""
    waiting = sum(c.count for c in view.claims)
    wanted = sum(c.count * c.gpu_milli for c in view.claims)
    running, held = (view.owner_runs.jobs, view.owner_runs.gpu_milli) if view.owner_runs else (0, 0)
    return ", ".join(
        (f"1 job {do}s" if jobs == 1 else f"{jobs} jobs {do}")
        + (f" {how} {gpu_count(milli)}" if milli else "")
        for jobs, do, how, milli in ((waiting, "wait", "for", wanted), (running, "run", "on", held))
        if jobs
    )


def gpu_count(milli: int) -> str:
    """Return ``1 GPU``, ``0.5 GPUs``, ``8 GPUs``."""
    return "1 GPU" if milli == model.WHOLE_GPU else f"{formatting.gpus(milli)} GPUs"


def _free_words(row: SiteRow) -> str:
    if row.free_gpu_milli is not None and row.node_gpu_milli is not None:
        return f"{formatting.gpus(row.free_gpu_milli)} of {gpu_count(row.node_gpu_milli)}"
    if row.view is None or row.view.free is None:
        return "?"
    return ", ".join(f"{n} {name}" for name, n in sorted(row.view.free.items())) or "0"


def _breaker_note(breaker: Breaker, names: ClassNames) -> str:
    scope = breaker.scope
    if not scope.class_id:
        return f"{scope} {breaker_words(breaker)}"
    why = f": {formatting.excerpt(breaker.fault.message)}" if breaker.fault else ""
    until = formatting.iso(breaker.until)  # open to all other classes
    name = names.of(scope.class_id)
    return f"job class {name} backs off on {scope.type_key} until {until}{why}"


def site_note(row: SiteRow) -> str:
    """Return what is unusual at a site, trouble first."""
    parts = []
    fault = row.reading.fault if row.reading else None
    if fault and not row.breaker.tells_of(fault):
        parts.append(f"poll failed ({fault.kind.value}): {formatting.excerpt(fault.message)}")
    if row.policy is None:
        parts.append("not in the configuration")
    elif not row.policy.enabled:
        parts.append("disabled")
    elif row.disabled:
        why = formatting.excerpt(row.disabled.reason)
        parts.append(f"disabled by {row.disabled.by} {ago(row.disabled.at)} ago: {why}")
    elif not fault and row.taken_at and now() - row.taken_at > row.policy.view_max_age_s:
        parts.append("view too old")
    troubled = [b for b in (row.breaker, *row.type_breakers) if b.state is not BreakerState.ACTIVE]
    parts += [_breaker_note(breaker, row.names) for breaker in troubled[:MAX_BREAKERS_NAMED]]
    if len(troubled) > MAX_BREAKERS_NAMED:
        parts.append(f"{len(troubled) - MAX_BREAKERS_NAMED} more breakers are not active")
    view = row.view
    if view and view.downtime_at:
        parts.append(f"downtime from {formatting.iso(view.downtime_at)}")
    parts += [formatting.sanitize(n, 120) for n in ((*view.notices, *view.remarks) if view else ())]
    return "; ".join(parts)


def _hours(work_s: float) -> str:
    return formatting.number(round(work_s / 3600, 2))


def _rate(per_1000_h: float) -> str:
    return formatting.number(round(per_1000_h, 1))


_lost = partial(number, convert=rounded, unit=_hours)
HAZARD_COLUMNS = (
    ident("scope", "The site, or a drone type as site/name.", head="OF", least=12),
    whole("ran", "Drones that ran in that time.", "drones", level=0),
    span_s("run_s", "How long they ran then, all together, seconds.", head="FOR"),
    whole(
        "preempted",
        "Part of them that was preempted by the site or for the owner.",
        head="TAKEN BACK",
    ),
    number(
        "per_1000_h",
        "In 1000 hours.",
        null=True,
        convert=rounded,
        unit=_rate,
        head="PER 1000 H",
    ),
    span_s(
        "life_mean_s",
        "Mean life of those, seconds; null: there were none.",
        level=1,
        head="MEAN LIFE",
    ),
    span_s(
        "life_median_s", "Median life of those, seconds; null: there were none.", head="MEDIAN LIFE"
    ),
    span_s(
        "grace_mean_s",
        "Mean time from notice to end, seconds; null: there was no notice.",
        head="GRACE USED",
    ),
    _lost(
        "lost_gpu_s",
        "Work of jobs that GPU drones' ends have cost, GPU-seconds.",
        head="GPU-H LOST",
    ),
    _lost("lost_cpu_s", "The same of CPU drones, CPU-seconds.", head="CPU-H LOST", level=1),
    whole("lost_jobs", "Jobs that lost it.", level=1, head="JOBS"),
)

_MILLI = "Thousandths of GPUs"
_UNTOLD = "null: the site does not report it"

SITE_COLUMNS = (
    ident("site", "Site.", "name", least=12, fact="site"),
    flag("enabled", "Whether drones may be started there.", _is_enabled, level=1, fact="enabled"),
    text(
        "breaker",
        "Its state.",
        "breaker.state",
        fact="breaker",
        level=0,
        tint=BREAKERS,
        choices=tuple(BREAKERS),
    ),
    time_at("until_at", "While banned: when it may be tried again.", "breaker.until"),
    whole("failures", "Failures in a row.", "breaker.failures", level=1),
    whole("drones", "Live drones: ordered and not confirmed gone.", "live", level=0, fact="drones"),
    whole(
        "max_drones",
        "Limit on drones.",
        "policy.max_drones",
        null=True,
        head="MAX",
        fact="limit of drones",
    ),
    gpus("gpu_milli", f"{_MILLI} in live drones.", head="GPUS", fact="gpus"),
    whole(
        "max_gpu_milli",
        f"Limit on {_MILLI.lower()}; null: none.",
        "policy.max_gpu_milli",
        null=True,
    ),
    USE_COLUMN,
    data("states", "Live drones by state.", show=_state_words, fact="states", least=12, wrap=True),
    data(
        "free",
        "Number of drones that could start now.",
        "view.free",
        null=True,
        level=0,
        least=8,
        show=_free_words,
        fact="free",
    ),
    words(
        "owner",
        "The owner's jobs.",
        lambda s: owner_words(s.view),
        least=12,
        spare=1,
        fact="the owner",
    ),
    whole("claims", "Jobs of the owner that wait there.", _claimed(lambda c: 1)),
    gpus("claims_gpu_milli", f"{_MILLI} that these want.", _claimed(lambda c: c.gpu_milli)),
    whole(
        "owner_jobs", f"Jobs of the owner that run; {_UNTOLD}.", "view.owner_runs.jobs", null=True
    ),
    gpus(
        "owner_gpu_milli",
        f"{_MILLI} that these hold; {_UNTOLD}.",
        "view.owner_runs.gpu_milli",
        null=True,
    ),
    whole("free_gpu_milli", f"{_MILLI} that nobody holds; {_UNTOLD} node by node.", null=True),
    whole("node_gpu_milli", f"{_MILLI} of all its nodes; {_UNTOLD} node by node.", null=True),
    words(
        "taken_back",
        "Preemptions.",
        _preempted_words,
        head="TAKEN BACK",
        least=14,
        spare=2,
        fact="taken back",
    ),
    age_s(
        "view_age_s",
        "Age of the newest good view; null: none.",
        "taken_at",
        head="VIEW",
        fact="age of view",
    ),
    text("fault", "Kind of fault of the newest poll; empty: it succeeded.", "reading.fault.kind"),
    words("note", "Problems.", site_note, least=16, fact="note"),
)


class NodeRow(NamedTuple):
    """Node of a site."""

    node: model.Node
    kept_cpus: int
    """Reserved of its free resources for all its free GPUs, as blocking is now."""
    kept_memory_mib: int
    kept_disk_mib: int
    drones: Sequence[str]

    @property
    def kept(self) -> str:
        parts = [f"{self.kept_cpus} CPU"] if self.kept_cpus else []
        parts += [formatting.size(self.kept_memory_mib)] if self.kept_memory_mib else []
        parts += [f"{formatting.size(self.kept_disk_mib)} disk"] if self.kept_disk_mib else []
        return ", ".join(parts)


def _amount(
    key: str, what: str, head: str, unit: Callable[[int], str], level: int = 0
) -> tuple[Column, ...]:
    """Return the columns of all that a node has of something, and of what is free of that."""
    left = attrgetter(f"node.free_{key}")
    total = attrgetter(f"node.{key}")

    def show(row: NodeRow) -> str:
        return f"{unit(left(row))} of {unit(total(row))}" if total(row) else "-"

    return (
        whole(key, f"{what} of the node.", total),
        whole(f"free_{key}", f"{what} that nobody holds.", left, level=level, head=head, show=show),
    )


SITE_NODE_COLUMNS = (
    ident("node", "Node, as the site names it.", "node.name", least=12),
    *_amount("gpu_milli", "Thousandths of GPUs", "GPUS", formatting.gpus),
    *_amount("cpus", "CPUs", "CPUS", str),
    *_amount("memory_mib", "Memory, MiB", "MEMORY", formatting.size),
    *_amount("disk_mib", "Disk, MiB (0 in all: unknown)", "DISK", formatting.size, level=1),
    words("kept", "Resources reserved for the free GPUs (blocking), in words.", least=12),
    whole("kept_cpus", "CPUs reserved for its free GPUs."),
    whole("kept_memory_mib", "Memory reserved for its free GPUs, MiB."),
    whole("kept_disk_mib", "Disk reserved for its free GPUs, MiB."),
    items(
        "drones",
        "Ids of the live drones on the node.",
        level=0,
        unit=lambda drones: str(len(drones)),
    ),
    items(
        "types", "Drone types that it could host if it were empty.", "node.types", level=1, least=8
    ),
)


def _hostlist(nodes: Sequence[str]) -> str:
    return formatting.fold_hostlist(nodes) or "any"


CLAIM_COLUMNS = (
    text("who", "Whose; may be empty.", level=0, least=8),
    whole("jobs", "Jobs of this shape.", "count", level=0),
    gpus("gpu_milli", "Thousandths of GPUs of each.", head="GPUS"),
    whole("cpus", "CPUs of each.", level=0),
    mib("memory_mib", "Memory of each, MiB.", head="MEMORY"),
    mib("disk_mib", "Disk of each, MiB.", level=1, head="DISK"),
    age_s(
        "waits_s",
        "Since the first of them was submitted, seconds; null: unknown.",
        "since",
        head="WAITS",
    ),
    items(
        "nodes",
        "Nodes that could host one if empty; empty: any.",
        level=0,
        least=12,
        wrap=True,
        unit=_hostlist,
    ),
)


def site_document(
    row: SiteRow, live: Sequence[Drone], hazards: Sequence[Hazard], scope: str
) -> Document:
    """Return a site as a document."""
    nodes = node_rows(row, live)
    claims = row.view.claims if row.view else ()
    taken = f"Taken back in the last {formatting.age(WEEK_S)}"
    unknown = "" if row.view else ": not known, the site was never seen"
    node_list = Listing(
        "provisioner.nodes/1",
        SITE_NODE_COLUMNS,
        nodes,
        lambda n: n.node.name,
        title=f"Nodes (free of all){unknown}",
    )
    return Document(
        "provisioner.site/1",
        as_facts([column for column in SITE_COLUMNS if column is not USE_COLUMN]),
        row,
        {
            "nodes": node_list,
            "claims": Listing(
                "", CLAIM_COLUMNS, claims, title=f"The owner's jobs that wait{unknown}"
            ),
            "hazards": Listing("", HAZARD_COLUMNS, hazards, title=taken),
        },
        main="nodes",
        name=row.name,
        scope=scope,
    )


def node_rows(row: SiteRow, live: Sequence[Drone]) -> list[NodeRow]:
    """Return the nodes of a site's newest view, by name."""
    from provisioner.planner.owner import FreeResources

    nodes = row.view.nodes if row.view else ()
    free = FreeResources.of(nodes, row.policy.blocking if row.policy else ())
    there = defaultdict[str, list[str]](list)
    rows = []
    for drone in live:
        there[drone.node].append(drone.id)
    for node in sorted(nodes, key=lambda n: n.name):
        per_gpu = free.nodes[node.name].kept[1:]
        cpus, memory_mib, disk_mib = (
            -(-most * node.free_gpu_milli // model.WHOLE_GPU) for most in per_gpu
        )
        rows.append(NodeRow(node, cpus, memory_mib, disk_mib, there[node.name]))
    return rows


@question("sites", "/sites", lambda: [Listing(SITES_SCHEMA, SITE_COLUMNS, ())])
def sites(reader: Reader, query: ListQuery) -> Listing:
    """List the sites; show, reset, disable or enable one.

    Shows the breaker, live drones and limits, free capacity, the owner's jobs, preemptions in the last 7 days, the age
    of the view, and problems. `provisioner sites show SITE` lists the nodes.

    \b
    Examples:
      provisioner sites -o json | jq '.items[] | select(.claims > 0) | {site, claims, claims_gpu_milli}'
    """
    views = reader.views()
    rows = site_rows(reader, views, reader.live_counts())
    scope = f"{formatting.count(len(rows), 'site')}, {as_of(reader, views)}"
    columns = with_use(SITE_COLUMNS, RecordedUse(reader, views).by("site"), lambda row: row.name)
    found = Listing(SITES_SCHEMA, columns, rows, lambda row: row.name, scope)
    return picked(found, query.sort, query.limit)


class SiteQuery(Query):
    """Site."""

    id: Annotated[str, subject("SITE", "Name of the site.")]


def _sample_site() -> Document:
    row = SiteRow("s", None, None, Breaker(Scope("s")), (), {}, 0)
    return site_document(row, (), (), "")


@question("sites show", "/sites/{id}", lambda: [_sample_site()])
def show_site(reader: Reader, query: SiteQuery) -> Document:
    """Show one site: nodes, the owner's waiting jobs, preemptions.

    For each node: free resources, how much of them is reserved for free GPUs (blocking), and its drones.

    \b
    Examples:
      provisioner sites show topas -o csv --columns node,free_gpu_milli,free_cpus,kept_cpus
      provisioner sites show topas -o json | jq '.hazards[] | {scope, preempted, per_1000_h}'
    """
    name = query.id
    views = reader.views()
    rows = site_rows(reader, views, reader.live_counts())
    found = next((row for row in rows if row.name == name), None)
    if found is None:
        raise unknown("site", name, [row.name for row in rows], " on record")
    hazards = [h for h in reader.hazards(now() - WEEK_S, now()) if site_of(h.scope) == name]
    return site_document(
        found, reader.drones(sites=[name]), hazards, f"{name} {as_of(reader, views)}"
    )


def troubled_scopes(reader: Reader, name: str, type_: str | None) -> tuple[Scope, list[Scope]]:
    """Return the scope of a site, a type of it or ``user:NAME``, and the banned scopes in it."""
    scope = Scope.parse(name)
    views = reader.views()
    if not scope.user:
        require_known_sites(reader, [name])
    if type_ is not None:
        scope = Scope(name, type_.removeprefix(f"{name}/"))
        known = sorted(t.key for t in views.types) if views else [scope.type_key]
        if scope.type_key not in known:  # a misspelling would reset nothing
            raise unknown("drone type", scope.type_key, known)
    failing = (s for s, b in reader.breakers().items() if b.failures or b.faults)
    return scope, [s for s in failing if s.is_within(scope)]


SITE_REQUESTS = {
    RequestKind.DISABLE: "start no drone at {site}; those there stay",
    RequestKind.ENABLE: "start drones at {site} again",
    RequestKind.ADOPT_ORPHANS: "put the orphans at {site} on record",
    RequestKind.STOP_ORPHANS: "stop the orphans at {site}, with their jobs",
}


def site_request(reader: Reader, kind: RequestKind, site: str) -> str:
    """Return the request to disable or enable a site in words. Raises :class:`VerbError` if there is nothing to ask."""
    require_known_sites(reader, [site])
    known = model.disabled_sites(reader.requests()).get(site)
    if kind is RequestKind.ENABLE and known is None:
        raise UnmetError(f"site {site} is not disabled by an operator")
    return SITE_REQUESTS[kind].format(site=site)
