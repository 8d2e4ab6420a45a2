"""One site in full: its nodes with what is free and what is kept, the owner's claims, and its hazard by drone type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from provisioner import formatting
from provisioner.cli.cells import amount, span_s, text, time_at, whole, words
from provisioner.cli.hostlist import folded
from provisioner.cli.listing import Column, Document, Listing
from provisioner.cli.resolve import no_site
from provisioner.cli.site_rows import WEEK_S, SiteRow, columns, hazard_columns, site_rows
from provisioner.model import WHOLE_GPU, Drone, Node, OwnerDemand
from provisioner.store import Hazard, Reader, Views

SCHEMA = "provisioner.site/1"

_SHOWN = {
    "site": "site",
    "enabled": "enabled",
    "breaker": "breaker",
    "drones": "drones",
    "max_drones": "of at most",
    "gpu_milli": "gpus",
    "states": "states",
    "free": "free",
    "owner": "the owner",
    "taken_back": "taken back",
    "view_age_s": "age of view",
    "note": "note",
}


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node of the site."""

    node: Node
    kept_cpus: int
    """Of what is free there: for its free GPUs, all of them together, as blocking is now."""
    kept_memory_mib: int
    kept_disk_mib: int
    drones: tuple[Drone, ...]
    """Ours that live there."""


def shown_site(reader: Reader, name: str, now: float) -> Document:
    """The document of ``sites show``. Raises :class:`Failure` for a site that is not on record."""
    views, live, hazards = reader.views(), reader.drones(), reader.hazards(now - WEEK_S, now)
    rows = site_rows(views, reader.breakers(), live, hazards, WEEK_S)
    found = next((row for row in rows if row.name == name), None)
    if found is None:
        raise no_site(name, [row.name for row in rows])
    snapshot = reader.snapshot()
    quiet_s = snapshot.now - snapshot.gpu_wanted_at if snapshot else 0.0
    ours = [drone for drone in live if drone.site == name]
    return site_document(found, views, ours, [h for h in hazards if h.scope.startswith(f"{name}/")], quiet_s, now)


def site_document(
    row: SiteRow, views: Views | None, live: Sequence[Drone], hazards: Sequence[Hazard], quiet_s: float, now: float
) -> Document:
    """``live``: its drones; ``hazards``: of its drone types; ``quiet_s``: for how long no GPU job has waited."""
    nodes = node_rows(row, live, quiet_s)
    claims = row.view.claims if row.view else ()
    unknown = "" if row.view else "not known: the site was never seen"
    facts = tuple(
        replace(c, level=0, spare=0, head=_SHOWN[c.key]) if c.key in _SHOWN else replace(c, level=2)
        for c in columns(now)
    )
    as_of = f"as of tick {views.tick}, {formatting.ago(views.at, now)} ago" if views else "no tick is on record yet"
    return Document(
        SCHEMA,
        Listing("", facts, [row], lambda s: s.name),
        {
            "nodes": Listing("provisioner.nodes/1", node_columns(), nodes, lambda n: n.node.name, unknown=unknown),
            "claims": Listing("", _claim_columns(now), claims, lambda c: c.who, unknown=unknown),
            "hazards": Listing("", _hazard_columns(), hazards, lambda h: h.scope),
        },
        {
            "nodes": "Nodes (free of all)",
            "claims": "The owner's jobs that wait",
            "hazards": f"Taken back in the last {formatting.age(row.hazard_s)}",
        },
        main="nodes",
        scope=f"{row.name} {as_of}",
    )


def node_rows(row: SiteRow, live: Sequence[Drone], quiet_s: float) -> list[NodeRow]:
    """The nodes of a site's newest view, by name."""
    from provisioner.planner.owner import FreeResources

    nodes = row.view.nodes if row.view else ()
    floor = FreeResources.of(nodes, row.policy.blocking if row.policy else (), quiet_s)
    there: dict[str, list[Drone]] = {}
    for drone in live:
        there.setdefault(drone.node, []).append(drone)
    rows = []
    for node in sorted(nodes, key=lambda n: n.name):
        each = floor.nodes[node.name].kept
        cpus, memory_mib, disk_mib = (-(-most * node.free_gpu_milli // WHOLE_GPU) for most in each[1:])
        rows.append(NodeRow(node, cpus, memory_mib, disk_mib, tuple(there.get(node.name, ()))))
    return rows


def node_columns() -> tuple[Column[NodeRow], ...]:
    """Of nodes."""
    return (
        text("node", lambda n: n.node.name, "Node, as the site names it.", level=0, least=12, tail=True),
        whole("gpu_milli", lambda n: n.node.gpu_milli, "Thousandths of its GPUs."),
        _free_of(
            "free_gpu_milli",
            lambda n: n.node.free_gpu_milli,
            lambda n: n.node.gpu_milli,
            formatting.gpus,
            "Thousandths of GPUs that nobody holds.",
            "GPUS",
        ),
        whole("cpus", lambda n: n.node.cpus, "Its CPUs."),
        _free_of(
            "free_cpus", lambda n: n.node.free_cpus, lambda n: n.node.cpus, str, "CPUs that nobody holds.", "CPUS"
        ),
        whole("memory_mib", lambda n: n.node.memory_mib, "Its memory, MiB."),
        _free_of(
            "free_memory_mib",
            lambda n: n.node.free_memory_mib,
            lambda n: n.node.memory_mib,
            formatting.size,
            "Memory that nobody holds, MiB.",
            "MEMORY",
        ),
        whole("disk_mib", lambda n: n.node.disk_mib, "Its disk, MiB; 0: not told."),
        _free_of(
            "free_disk_mib",
            lambda n: n.node.free_disk_mib,
            lambda n: n.node.disk_mib,
            formatting.size,
            "Disk that nobody holds, MiB.",
            "DISK",
            level=1,
        ),
        words(
            "kept",
            _kept,
            "What of the free CPUs, memory and disk is kept for the free GPUs (blocking), in words; empty: nothing.",
            least=12,
        ),
        whole("kept_cpus", lambda n: n.kept_cpus, "CPUs kept for its free GPUs."),
        whole("kept_memory_mib", lambda n: n.kept_memory_mib, "Memory kept for its free GPUs, MiB."),
        whole("kept_disk_mib", lambda n: n.kept_disk_mib, "Disk kept for its free GPUs, MiB."),
        Column[NodeRow](
            "drones",
            lambda n: [d.id for d in n.drones],
            "Ids of our live drones there.",
            kind="array",
            level=0,
            right=True,
            show=lambda n: str(len(n.drones)),
        ),
        Column[NodeRow](
            "types",
            lambda n: list(n.node.types),
            "Drone types that it could host if it were empty.",
            kind="array",
            level=1,
            least=8,
        ),
    )


def _free_of(
    key: str,
    free: Callable[[NodeRow], int],
    total: Callable[[NodeRow], int],
    told: Callable[[int], str],
    doc: str,
    head: str,
    *,
    level: int = 0,
) -> Column[NodeRow]:
    """An amount that is free; people also see of how much."""

    def show(row: NodeRow) -> str:
        return f"{told(free(row))} of {told(total(row))}" if total(row) else "-"

    return Column(key, free, doc, kind="integer", level=level, head=head, right=True, show=show)


def _kept(row: NodeRow) -> str:
    parts = [f"{row.kept_cpus} CPU"] if row.kept_cpus else []
    parts += [f"{formatting.size(row.kept_memory_mib)}"] if row.kept_memory_mib else []
    parts += [f"{formatting.size(row.kept_disk_mib)} disk"] if row.kept_disk_mib else []
    return ", ".join(parts)


def _claim_columns(now: float) -> tuple[Column[OwnerDemand], ...]:
    return (
        text("who", lambda c: c.who, "Whose; may be empty.", level=0, least=8),
        whole("jobs", lambda c: c.count, "Jobs of this shape.", level=0),
        whole(
            "gpu_milli",
            lambda c: c.gpu_milli,
            "Thousandths of GPUs of each.",
            level=0,
            head="GPUS",
            show=formatting.gpus,
        ),
        whole("cpus", lambda c: c.cpus, "CPUs of each.", level=0),
        whole("memory_mib", lambda c: c.memory_mib, "Memory of each, MiB.", level=0, head="MEMORY", show=amount),
        whole("disk_mib", lambda c: c.disk_mib, "Disk of each, MiB.", level=1, head="DISK", show=amount),
        span_s(
            "waits_s",
            lambda c: max(0.0, now - c.since) if c.since else None,
            "Since the first of them was submitted, seconds; null: not told.",
            level=0,
            head="WAITS",
        ),
        time_at("since_at", lambda c: c.since, "When the first of them was submitted."),
        Column[OwnerDemand](
            "nodes",
            lambda c: list(c.nodes),
            "Nodes that could host one if they were empty; empty: any.",
            kind="array",
            level=0,
            least=12,
            wrap=True,
            show=lambda c: folded(c.nodes) or "any",
        ),
    )


def _hazard_columns() -> tuple[Column[Hazard], ...]:
    return (
        text("scope", lambda h: h.scope, "Drone type, as site/name.", level=0, head="TYPE", least=12, tail=True),
        *hazard_columns(),
    )


__all__ = ["NodeRow", "node_columns", "node_rows", "shown_site", "site_document"]
