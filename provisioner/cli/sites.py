"""``provisioner sites``: list them with breaker, drones, limits and the jobs of the owner; show one; lift bans."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Annotated, NamedTuple

import typer

from provisioner import formatting, model
from provisioner.cli import options as opt
from provisioner.cli import output as out
from provisioner.cli.drones import note_without_controller, operator
from provisioner.model import BreakerState
from provisioner.store import Hazard, Views
from provisioner.store.reader import Reader

_CLASSES_NAMED = 3
"""Job classes that back off at a site and are named in its note."""

SITES_SCHEMA = "provisioner.sites/1"

WEEK_S, DAY_S = 7 * 86400.0, 86400.0
"""Period over which lists and `status` measure the hazard of a site."""

BREAKER_TINTS = {BreakerState.BANNED: "red", BreakerState.DEGRADED: "yellow", BreakerState.PROBING: "yellow"}


@dataclass(frozen=True, slots=True)
class SiteRow:
    """Site with all that is on record of it."""

    name: str
    policy: model.SitePolicy | None
    """None: it is not in the configuration of the newest tick, but has drones."""
    reading: model.PolledSite | None
    breaker: model.Breaker
    type_breakers: tuple[model.Breaker, ...]
    """Breakers of its drone types that are not active."""
    states: Mapping[model.DroneState, int]
    gpu_milli: int
    hazard: Hazard | None = None
    """None: no drone has run there of late."""
    hazard_s: float = WEEK_S
    """Period of the hazard."""

    @property
    def view(self) -> model.SiteView | None:
        return self.reading.view if self.reading else None

    @property
    def live(self) -> int:
        return sum(self.states.values())

    @property
    def taken_at(self) -> float:
        return self.view.taken_at if self.view else 0.0


def site_rows(
    views: Views | None,
    breakers: Mapping[str, model.Breaker],
    live: Sequence[model.Drone],
    hazards: Sequence[Hazard] = (),
    hazard_s: float = WEEK_S,
) -> list[SiteRow]:
    """Return a row per site that is configured or has live drones. ``hazards``: of the last ``hazard_s`` seconds."""
    states: defaultdict[str, Counter[model.DroneState]] = defaultdict(Counter)
    milli: Counter[str] = Counter()
    for drone in live:
        states[drone.site][drone.state] += 1
        milli[drone.site] += drone.gpu_milli
    policies = views.policy.sites if views else {}
    readings = views.sites if views else {}
    measured = {hazard.scope: hazard for hazard in hazards}
    troubled = [(scope, b) for scope, b in sorted(breakers.items()) if b.state is not BreakerState.ACTIVE]
    return [
        SiteRow(
            name,
            policies.get(name),
            readings.get(name),
            breakers.get(name) or model.Breaker(name),
            tuple(b for scope, b in troubled if scope.startswith((f"{name}/", f"{name}@"))),
            states.get(name, {}),
            milli[name],
            measured.get(name),
            hazard_s,
        )
        for name in sorted({*policies, *states})
    ]


def site_columns(now: float) -> tuple[out.Column, ...]:
    """Return the columns of sites at ``now``."""

    def of_claims(value: Callable[[model.OwnerDemand], int]) -> Callable[[SiteRow], int]:
        return lambda row: sum(c.count * value(c) for c in row.view.claims) if row.view else 0

    def of_nodes(value: Callable[[model.Node], int]) -> Callable[[SiteRow], int | None]:
        return lambda row: sum(map(value, row.view.nodes)) if row.view and row.view.nodes else None

    def preempted(row: SiteRow) -> str:
        return f"{preemption_words(row.hazard)} in {formatting.age(row.hazard_s)}" if row.hazard else ""

    def of_hazard(column: out.Column) -> Callable[[SiteRow], out.Cell]:
        return lambda row: column.cells([row.hazard])[0] if row.hazard else None

    def states(row: SiteRow) -> str:
        return ", ".join(f"{n} {state.value}" for state, n in row.states.items())

    untold = "null: the site does not tell"
    free_doc = "How many drones of each type could start now (alternatives); null: the site does not tell."
    owner_doc = "The owner's jobs: what waits and what runs, in words; empty: none, or unknown."
    taken_doc = "How often it took places of drones back of late, and what that cost, in words; empty: none ran."
    view_doc = "Age of the newest good view, seconds; null: there never was one."
    breaker = out.text("breaker", "State of the circuit breaker.", "breaker.state", level=0, fact="breaker")
    owner = out.words("owner", owner_doc, lambda s: owner_words(s.view), least=12, spare=1, fact="the owner")
    taken = out.words("taken_back", taken_doc, preempted, head="TAKEN BACK", least=14, spare=2, fact="taken back")
    milli = "Thousandths of GPUs"
    return (
        out.ident("site", "Site.", "name", least=12, fact="site"),
        out.flag("enabled", "May drones be started there?", _is_enabled, level=1, fact="enabled"),
        replace(breaker, tint=BREAKER_TINTS, choices=tuple(BreakerState)),
        out.time_at("until_at", "While banned: when it may be tried again.", "breaker.until"),
        out.whole("failures", "Failures in a row.", "breaker.failures", level=1),
        out.whole("drones", "Live drones: asked for and not confirmed gone.", "live", level=0, fact="drones"),
        out.whole("max_drones", "Limit on drones.", "policy.max_drones", null=True, head="MAX", fact="of at most"),
        out.gpus("gpu_milli", f"{milli} in live drones.", head="GPUS", fact="gpus"),
        out.whole("max_gpu_milli", "Limit on thousandths of GPUs; null: none.", "policy.max_gpu_milli", null=True),
        out.data("states", "Live drones by state.", show=states, fact="states"),
        out.data("free", free_doc, "view.free", null=True, level=0, least=8, show=_free_words, fact="free"),
        owner,
        out.whole("claims", "Jobs of the owner that wait there.", of_claims(lambda c: 1)),
        out.whole("claims_gpu_milli", f"{milli} that these want.", of_claims(lambda c: c.gpu_milli)),
        out.whole("owner_jobs", f"Jobs of the owner that run; {untold}.", "view.owner_runs.jobs", null=True),
        out.whole("owner_gpu_milli", f"{milli} that these hold; {untold}.", "view.owner_runs.gpu_milli", null=True),
        out.whole(
            "free_gpu_milli",
            f"{milli} that nobody holds; {untold} node by node.",
            of_nodes(lambda n: n.free_gpu_milli),
            null=True,
        ),
        out.whole(
            "node_gpu_milli",
            f"{milli} of all its nodes; {untold} node by node.",
            of_nodes(lambda n: n.gpu_milli),
            null=True,
        ),
        taken,
        out.span_s("hazard_s", "How far back the following figures look, seconds."),
        *(out.Column(c.key, c.doc, of_hazard(c), null=True, kind=c.kind) for c in hazard_columns()),
        out.age_s("view_age_s", view_doc, "taken_at", now, head="VIEW", fact="age of view"),
        out.text("fault", "Kind of fault of the newest look; empty: it succeeded.", "reading.fault.kind"),
        out.words("note", "What is wrong, if anything.", lambda s: site_note(s, now), least=16, fact="note"),
    )


def _is_enabled(row: SiteRow) -> bool:
    return bool(row.policy and row.policy.enabled)


def owner_words(view: model.SiteView | None) -> str:
    """Return ``3 jobs wait for 8 GPUs, 2 jobs run on 4 GPUs`` of the owner; empty: none, or not known."""
    if view is None:
        return ""
    waiting, runs = sum(c.count for c in view.claims), view.owner_runs
    wanted = _gpu_words(sum(c.count * c.gpu_milli for c in view.claims), "for")
    parts = [f"{_job_words(waiting, 'wait')}{wanted}"] if waiting else []
    parts += [f"{_job_words(runs.jobs, 'run')}{_gpu_words(runs.gpu_milli, 'on')}"] if runs and runs.jobs else []
    return ", ".join(parts)


def _job_words(number: int, do: str) -> str:
    return f"1 job {do}s" if number == 1 else f"{number} jobs {do}"


def _gpu_words(gpu_milli: int, how: str) -> str:
    return f" {how} {gpu_count(gpu_milli)}" if gpu_milli else ""


def gpu_count(milli: int) -> str:
    """Return ``1 GPU``, ``0.5 GPUs``, ``8 GPUs``."""
    return "1 GPU" if milli == model.WHOLE_GPU else f"{formatting.gpus(milli)} GPUs"


def preemption_words(hazard: Hazard) -> str:
    """Return ``12 (35 per 1000 h), 4.2 GPU-hours lost``, or ``none``."""
    if not hazard.preempted and not hazard.lost_jobs:
        return "none"
    rate = f" ({formatting.number(round(hazard.per_1000_h, 1))} per 1000 h)" if hazard.per_1000_h is not None else ""
    lost = (("GPU", hazard.lost_gpu_s), ("CPU", hazard.lost_cpu_s))
    hours = [f", {formatting.number(round(work_s / 3600, 1))} {unit}-hours lost" for unit, work_s in lost if work_s]
    return f"{hazard.preempted}{rate}{''.join(hours)}"


def hazard_columns() -> tuple[out.Column, ...]:
    """Return the columns of preemptions and their cost."""

    def lost(key: str, doc: str, head: str, level: int) -> out.Column:
        def hours(hazard: Hazard) -> str:
            return formatting.number(round(getattr(hazard, key) / 3600, 2))

        return out.number(key, doc, lambda h: round(getattr(h, key), 3), level=level, head=head, show=hours)

    rate_doc = "Taken back per 1000 hours of drones; null: none ran."
    grace_doc = "Mean time from a notice to the end, seconds; null: there was no notice."
    return (
        out.whole("ran", "Drones that ran in that time.", "drones", level=0),
        out.span_s("run_s", "How long they ran then, all together, seconds.", head="FOR"),
        out.whole("preempted", "Of those, taken back by the site or for the owner.", head="TAKEN BACK"),
        out.number("per_1000_h", rate_doc, lambda h: out.rounded(h.per_1000_h), null=True, head="PER 1000 H"),
        out.span_s("life_mean_s", "Mean life of those, seconds; null: there were none.", level=1, head="MEAN LIFE"),
        out.span_s("life_median_s", "Median life of those, seconds; null: there were none.", head="MEDIAN LIFE"),
        out.span_s("grace_mean_s", grace_doc, head="GRACE USED"),
        lost("lost_gpu_s", "Work of jobs that GPU drones' ends have cost, GPU-seconds.", "GPU-H LOST", 0),
        lost("lost_cpu_s", "The same of CPU drones, CPU-seconds.", "CPU-H LOST", 1),
        out.whole("lost_jobs", "Jobs that lost it.", level=1, head="JOBS"),
    )


def _free_words(row: SiteRow) -> str:
    if row.view and row.view.nodes:
        free = sum(n.free_gpu_milli for n in row.view.nodes)
        return f"{formatting.gpus(free)} of {gpu_count(sum(n.gpu_milli for n in row.view.nodes))}"
    if row.view is None or row.view.free is None:
        return "?"
    return ", ".join(f"{n} {name}" for name, n in sorted(row.view.free.items())) or "0"


def site_note(row: SiteRow, now: float) -> str:
    """Return what is unusual at a site, trouble first."""
    parts = []
    if row.reading and row.reading.fault:
        parts.append(f"look failed ({row.reading.fault.kind.value}): {formatting.excerpt(row.reading.fault.message)}")
    if row.policy is None:
        parts.append("not in the configuration")
    elif not row.policy.enabled:
        parts.append("disabled")
    elif row.taken_at and now - row.taken_at > row.policy.view_max_age_s:
        parts.append("view too old")
    classes = [breaker for breaker in row.type_breakers if breaker.class_id]
    for breaker in (row.breaker, *row.type_breakers):
        if breaker.state is not BreakerState.ACTIVE and breaker not in classes[_CLASSES_NAMED:]:
            parts.append(_breaker_note(breaker, now))
    if len(classes) > _CLASSES_NAMED:
        parts.append(f"{len(classes) - _CLASSES_NAMED} more job classes back off")
    view = row.view
    if view and view.downtime_at:
        parts.append(f"downtime from {formatting.iso(view.downtime_at)}")
    parts += [formatting.sanitize(n, 120) for n in ((*view.notices, *view.remarks) if view else ())]
    return "; ".join(parts)


def _breaker_note(breaker: model.Breaker, now: float) -> str:
    left = f" for another {formatting.age(breaker.until - now)}" if breaker.until > now else ""
    why = f": {formatting.excerpt(breaker.fault.message)}" if breaker.fault else ""
    if breaker.class_id:  # the type is open to all others
        return f"job class {breaker.class_id} backs off on {breaker.scope.partition('#')[0]}{left}{why}"
    return f"{breaker.scope} {breaker.state.value}{left}{why}"


class NodeRow(NamedTuple):
    """Node of a site."""

    node: model.Node
    kept_cpus: int
    """Reserved of its free resources for all its free GPUs, as blocking is now."""
    kept_memory_mib: int
    kept_disk_mib: int
    drones: tuple[str, ...]
    """Ids of our live drones there."""


def shown_site(reader: Reader, name: str, now: float) -> out.Document:
    """Return the document of ``sites show``. Raises :class:`VerbError` for a site that is not on record."""
    views, live, hazards = reader.views(), reader.drones(), reader.hazards(now - WEEK_S, now)
    rows = site_rows(views, reader.breakers(), live, hazards, WEEK_S)
    found = next((row for row in rows if row.name == name), None)
    if found is None:
        raise opt.unknown_site(name, [row.name for row in rows])
    snapshot = reader.snapshot()
    quiet_s = snapshot.now - snapshot.gpu_wanted_at if snapshot else 0.0
    ours = [drone for drone in live if drone.site == name]
    return site_document(found, views, ours, [h for h in hazards if h.scope.startswith(f"{name}/")], quiet_s, now)


def site_document(
    row: SiteRow,
    views: Views | None,
    live: Sequence[model.Drone],
    hazards: Sequence[Hazard],
    quiet_s: float,
    now: float,
) -> out.Document:
    """Return a site as a document. ``hazards``: of its drone types; ``quiet_s``: time without a waiting GPU job."""
    scope = out.ident("scope", "Drone type, as site/name.", head="TYPE", least=12)
    claims, nodes = (row.view.claims if row.view else ()), node_rows(row, live, quiet_s)
    unknown = "" if row.view else "not known: the site was never seen"
    as_of = f"as of tick {views.tick}, {formatting.ago(views.at, now)} ago" if views else "no tick is on record yet"
    return out.Document(
        "provisioner.site/1",
        out.Listing("", out.as_facts(site_columns(now)), [row], lambda s: s.name),
        {
            "nodes": out.Listing("provisioner.nodes/1", node_columns(), nodes, lambda n: n.node.name, unknown=unknown),
            "claims": out.Listing("", _claim_columns(now), claims, lambda c: c.who, unknown=unknown),
            "hazards": out.Listing("", (scope, *hazard_columns()), hazards, lambda h: h.scope),
        },
        {
            "nodes": "Nodes (free of all)",
            "claims": "The owner's jobs that wait",
            "hazards": f"Taken back in the last {formatting.age(row.hazard_s)}",
        },
        main="nodes",
        scope=f"{row.name} {as_of}",
    )


def node_rows(row: SiteRow, live: Sequence[model.Drone], quiet_s: float) -> list[NodeRow]:
    """Return the nodes of a site's newest view, by name."""
    from provisioner.planner.owner import FreeResources

    nodes = row.view.nodes if row.view else ()
    free = FreeResources.of(nodes, row.policy.blocking if row.policy else (), quiet_s)
    rows = []
    for node in sorted(nodes, key=lambda n: n.name):
        per_gpu = free.nodes[node.name].kept[1:]
        cpus, memory_mib, disk_mib = (-(-most * node.free_gpu_milli // model.WHOLE_GPU) for most in per_gpu)
        rows.append(NodeRow(node, cpus, memory_mib, disk_mib, tuple(d.id for d in live if d.node == node.name)))
    return rows


def node_columns() -> tuple[out.Column, ...]:
    """Return the columns of nodes."""

    def amount(key: str, what: str, head: str, unit: Callable[[int], str], level: int = 0) -> tuple[out.Column, ...]:
        """Return the columns of all that a node has of something, and of what is free of that."""
        left, total = attrgetter(f"node.free_{key}"), attrgetter(f"node.{key}")

        def show(row: NodeRow) -> str:
            return f"{unit(left(row))} of {unit(total(row))}" if total(row) else "-"

        free_doc = f"{what}: what nobody holds."
        return (
            out.whole(key, f"{what} of the node.", total),
            out.whole(f"free_{key}", free_doc, left, level=level, head=head, show=show),
        )

    kept_doc = "What of the free CPUs, memory and disk is kept for the free GPUs (blocking), in words; empty: nothing."
    types_doc = "Drone types that it could host if it were empty."
    return (
        out.ident("node", "Node, as the site names it.", "node.name", least=12),
        *amount("gpu_milli", "Thousandths of GPUs", "GPUS", formatting.gpus),
        *amount("cpus", "CPUs", "CPUS", str),
        *amount("memory_mib", "Memory, MiB", "MEMORY", formatting.size),
        *amount("disk_mib", "Disk, MiB (0 in all: unknown)", "DISK", formatting.size, level=1),
        out.words("kept", kept_doc, _kept_words, least=12),
        out.whole("kept_cpus", "CPUs kept for its free GPUs."),
        out.whole("kept_memory_mib", "Memory kept for its free GPUs, MiB."),
        out.whole("kept_disk_mib", "Disk kept for its free GPUs, MiB."),
        out.items("drones", "Ids of our live drones there.", level=0, unit=lambda drones: str(len(drones))),
        out.items("types", types_doc, "node.types", level=1, least=8),
    )


def _kept_words(row: NodeRow) -> str:
    parts = [f"{row.kept_cpus} CPU"] if row.kept_cpus else []
    parts += [f"{formatting.size(row.kept_memory_mib)}"] if row.kept_memory_mib else []
    parts += [f"{formatting.size(row.kept_disk_mib)} disk"] if row.kept_disk_mib else []
    return ", ".join(parts)


def _claim_columns(now: float) -> tuple[out.Column, ...]:
    def hostlist(nodes: Sequence[str]) -> str:
        return formatting.fold_hostlist(nodes) or "any"

    waits_doc = "Since the first of them was submitted, seconds; null: unknown."
    nodes_doc = "Nodes that could host one if they were empty; empty: any."
    return (
        out.text("who", "Whose; may be empty.", level=0, least=8),
        out.whole("jobs", "Jobs of this shape.", "count", level=0),
        out.gpus("gpu_milli", "Thousandths of GPUs of each.", head="GPUS"),
        out.whole("cpus", "CPUs of each.", level=0),
        out.mib("memory_mib", "Memory of each, MiB.", head="MEMORY"),
        out.mib("disk_mib", "Disk of each, MiB.", level=1, head="DISK"),
        out.age_s("waits_s", waits_doc, "since", now, head="WAITS"),
        out.items("nodes", nodes_doc, level=0, least=12, wrap=True, unit=hostlist),
    )


SiteName = Annotated[str, opt.argument("SITE", "Name of the site.", autocompletion=opt.complete_sites)]
sites_app = typer.Typer(cls=opt.VerbGroup, add_completion=False, rich_markup_mode=None)


@sites_app.callback(invoke_without_command=True)
@opt.shared
def sites(ctx: typer.Context, where: opt.Where, show: opt.Show, pick: opt.Pick) -> None:
    """List the sites, show one, or use one again that is banned.

    Breaker, live drones and limits, free places, the owner's jobs, how often places were taken back in the last 7 days,
    age of the view, and what is wrong. `sites show NAME` tells of one node by node.

    \b
    Examples:
      provisioner sites
      provisioner sites -o wide --sort -drones
      provisioner sites -o json | jq '.items[] | select(.claims > 0) | {site, claims, claims_gpu_milli}'
    """
    if opt.verb_follows(ctx):
        return
    reader = opt.open_record(where)
    out.present(show, lambda: out.picked(site_listing(reader, time.time()), pick))


@sites_app.command("show")
@opt.shared
def show_site(where: opt.Where, show: opt.Show, name: SiteName) -> None:
    """Tell all of one site: its nodes, the owner's jobs that wait, and how often it takes places back.

    Of each node what is free, what of that is kept for its free GPUs (blocking), and how many drones of ours are there.

    \b
    Examples:
      provisioner sites show topas
      provisioner sites show topas -o csv --columns node,free_gpu_milli,free_cpus,kept_cpus
      provisioner sites show topas -o json | jq '.hazards[] | {scope, preempted, per_1000_h}'
    """
    reader = opt.open_record(where)
    out.present(show, lambda: shown_site(reader, name, time.time()))


@sites_app.command("reset")
@opt.shared
def reset_site(
    where: opt.Where,
    name: SiteName,
    type_: Annotated[str | None, opt.option("NAME", "Only this drone type of it.", "--type")] = None,
    reason: opt.EventReason = "",
) -> None:
    """Use a banned site or drone type again, now: after a repair.

    It is recorded now and carried out at the controller's next tick. What still fails is banned again, for the shortest
    time first.

    \b
    Examples:
      provisioner sites reset local
      provisioner sites reset local --type a100 --reason "HTCondor installed"
      provisioner sites reset topas && provisioner events --follow
    """
    reader = opt.open_record(where)
    opt.require_known_sites(reader, [name])
    scope = name
    if type_ is not None:
        scope = f"{name}/{type_.removeprefix(f'{name}/')}"
        views = reader.views()
        known = sorted(str(t.key) for t in views.types) if views else []
        if views is not None and scope not in known:  # a misspelling would reset nothing
            wrong = f"no drone type `{formatting.sanitize(scope, 80)}`; known: {opt.named(known) or 'none'}"
            raise opt.VerbError(wrong)
    breakers = reader.breakers().items()
    troubled = [s for s, b in breakers if b.failures and model.is_within_scope(s, scope)]
    if not troubled:
        out.note(f"{scope} is not banned: nothing was asked for")
        return
    asked = [model.DroneId(scope)]
    serial = reader.ask(model.RequestKind.RESET, asked, reason=reason, by=operator(), at=time.time())
    out.note(f"request {serial} recorded: use {', '.join(troubled)} again")
    note_without_controller(reader)


def site_listing(reader: Reader, now: float) -> out.Listing:
    """Return the answer of ``provisioner sites``."""
    views = reader.views()
    rows = site_rows(views, reader.breakers(), reader.drones(), reader.hazards(now - WEEK_S, now), WEEK_S)
    scope = f"{formatting.count(len(rows), 'site')}; no tick is on record yet"
    if views is not None:
        runs = "" if reader.holder() else "; no controller runs: as last recorded"
        age = formatting.ago(views.at, now)
        scope = f"{formatting.count(len(rows), 'site')} as of tick {views.tick}, {age} ago{runs}"
    return out.Listing(SITES_SCHEMA, site_columns(now), rows, lambda s: s.name, scope)
