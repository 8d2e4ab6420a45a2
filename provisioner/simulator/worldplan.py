"""The world in which a configuration is simulated: from its site files, and from what a world file says of them.

Strict YAML like all configuration: every mistake with file, line and repair. What a world file does not say, or all of
it where there is none, is derived from the site files, and :attr:`WorldPlan.notes` tells what was.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from provisioner.config import ConfigError, Settings, SiteConfig
from provisioner.config import strict_yaml as yaml
from provisioner.config.messages import choices, report_errors
from provisioner.config.strict_yaml import YamlDocument
from provisioner.formatting import count
from provisioner.model import WHOLE_GPU, DroneType
from provisioner.simulator.body import Habits
from provisioner.simulator.draws import Fixed
from provisioner.simulator.faults import OVERLAY, Blow, BlowKind, Spell
from provisioner.simulator.overlay import PoolHabits
from provisioner.simulator.owner_load import read_loads
from provisioner.simulator.owner_series import OwnerSeries
from provisioner.simulator.site import Facility, GpuPool
from provisioner.simulator.traces import TraceError, located
from provisioner.simulator.worldfile import SeriesSection, SiteSection, TroubleSection, WorldFile

DEFAULT = Habits(boot=Fixed(75.0), check=Fixed(0.0), release=Fixed(20.0))
"""Of a site of which nothing is told."""
MOST_GPUS = 10_000
"""No more are derived from limits, which may be far beyond what there is."""


@dataclass(frozen=True, slots=True)
class WorldPlan:
    """A world to be simulated, but for the jobs."""

    facilities: tuple[Facility, ...]
    pool: PoolHabits
    spells: tuple[Spell, ...] = ()
    blows: tuple[Blow, ...] = ()
    notes: tuple[str, ...] = ()
    """What the files did not tell, and what was taken instead."""


def world_of(settings: Settings, path: Path | None, *, span_s: float) -> WorldPlan:
    """The world in which ``settings`` are simulated. An owner's series is repeated to cover ``span_s``.

    Raises ConfigError, with every mistake in the world file at ``path``.
    """
    document = YamlDocument("") if path is None else yaml.read(path)
    model = WorldFile() if path is None else _judged(document)
    if model is None:
        raise ConfigError(document.problems)
    _sites_are_known(document, model, settings)
    building = _Building(document, path, span_s)
    facilities = tuple(building.facility(spec, model.sites.get(spec.name)) for spec in settings.sites)
    if document.problems:
        raise ConfigError(sorted(dict.fromkeys(document.problems), key=lambda p: (p.line, p.col)))
    pool = model.pool
    return WorldPlan(
        facilities,
        PoolHabits(
            pool.negotiation,
            pool.update,
            pool.slot_lifetime,
            pool.lease,
            reuses_claims=pool.reuses_claims,
            best_fit=pool.best_fit,
        ),
        tuple(_spell(t) for t in model.troubles),
        tuple(Blow(b.kind, b.at, b.for_, b.where, b.node, b.notice) for b in model.blows),
        tuple(building.notes),
    )


def _spell(written: TroubleSection) -> Spell:
    to_s = math.inf if written.to is None else written.to
    return Spell(written.trouble, written.where, written.verb, written.from_, to_s, written.chance, written.amount)


def _judged(document: YamlDocument) -> WorldFile | None:
    if not document.is_mapping:
        return None
    try:
        return WorldFile.model_validate_json(json.dumps(document.tree), strict=True)
    except ValidationError as error:
        report_errors(document, error, WorldFile)
    return None


def _sites_are_known(document: YamlDocument, model: WorldFile, settings: Settings) -> None:
    names = tuple(spec.name for spec in settings.sites)
    for name in model.sites:
        if name not in names:
            spot = document.key_position(("sites", name))
            document.complain(spot, f"no site `{name}` is configured: {choices(name, names)}")
    places = [("troubles", n, trouble.where) for n, trouble in enumerate(model.troubles) if trouble.where != "*"]
    places += [("blows", n, blow.where) for n, blow in enumerate(model.blows)]
    for key, n, where in places:
        if where not in (*names, OVERLAY):
            document.complain_at(
                (key, n, "where"), f"no site `{where}` is configured: {choices(where, (*names, OVERLAY))}"
            )
    for n, blow in enumerate(model.blows):
        if (blow.where == OVERLAY) != (blow.kind is BlowKind.NO_NEGOTIATION):
            document.complain_at(("blows", n, "kind"), "`kind`: `no-negotiation` is for the overlay, others for sites")


class _Building:
    """Facilities from site files and what the world file says of them."""

    def __init__(self, document: YamlDocument, path: Path | None, span_s: float) -> None:
        self.document = document
        self.path = path
        self.span_s = span_s
        self.notes: list[str] = []

    def facility(self, spec: SiteConfig, told: SiteSection | None) -> Facility:
        site = told or SiteSection()
        habits = site.over(DEFAULT)
        pools, serves = self._told_pools(spec, site) if site.nodes else self._derived_pools(spec)
        if not spec.policy.enabled:
            self.notes.append(f"{spec.name}: not enabled, gets no drones")
        assumed = [
            words
            for key, words in (("queue", "no queue"), ("boot", "boot 75 s"), ("release", "release 20 s"))
            if getattr(site, key) is None
        ]
        if assumed:
            self.notes.append(f"{spec.name}: {', '.join(assumed)}")
        for name in site.types:
            if name not in {kind.name for kind in spec.types}:
                known = tuple(kind.name for kind in spec.types)
                self._complain(
                    ("sites", spec.name, "types", name), f"site {spec.name} has no type `{name}`", name, known
                )
        if site.tells_nodes and site.owner is not None:
            self.document.complain_at(
                ("sites", spec.name, "tells_nodes"),
                "`tells_nodes`: an owner of whom only a series is known is on no certain node: remove one of the two",
            )
            return Facility(spec.policy, spec.types, pools)
        return Facility(
            policy=spec.policy,
            types=spec.types,
            pools=pools,
            serves=serves,
            habits=habits,
            habits_of={name: section.over(habits) for name, section in site.types.items()},
            latency=Fixed(0.2) if site.latency is None else site.latency.draw,
            quota=site.quota,
            queues=site.queues,
            tells_free=site.tells_free,
            tells_nodes=site.tells_nodes,
            series=self._series(spec, site.owner, pools) if site.owner else None,
        )

    # ------------------------------------------------------------------------------------------------------- nodes

    def _told_pools(self, spec: SiteConfig, site: SiteSection) -> tuple[tuple[GpuPool, ...], dict[str, str]]:
        pools = tuple(
            GpuPool(name, n.gpus, n.nodes, cpus_per_node=n.cpus, memory_mib_per_node=n.memory)
            for name, n in site.nodes.items()
        )
        types = {kind.name: kind for kind in spec.types}
        serves: dict[str, str] = {}
        for name, nodes in site.nodes.items():
            for n, served in enumerate(nodes.serves):
                at = ("sites", spec.name, "nodes", name, "serves", n)
                if served not in types:
                    self._complain(at, f"site {spec.name} has no type `{served}`", served, tuple(types), key=False)
                elif served in serves:
                    self.document.complain_at(at, f"`{served}` runs on `{serves[served]}` already: name it once")
                else:
                    serves[served] = name
        if len(pools) == 1 and not serves:
            serves = dict.fromkeys(types, pools[0].name)
        for kind in types.values():
            self._fits(spec, site, kind, serves.get(kind.name))
        return pools, serves

    def _fits(self, spec: SiteConfig, site: SiteSection, kind: DroneType, where: str | None) -> None:
        at = ("sites", spec.name, "nodes")
        if where is None:
            self.document.complain(
                self.document.key_position(at),
                f"type `{kind.name}` of {spec.name} runs nowhere: name it under `serves`",
            )
            return
        nodes = site.nodes[where]
        for key, has, wants in (
            ("gpus", nodes.gpus * WHOLE_GPU, kind.gpu_milli),
            ("cpus", nodes.cpus or kind.cpus, kind.cpus),
            ("memory", nodes.memory or kind.memory_mib, kind.memory_mib),
        ):
            if wants > has:
                wrong = f"`{key}`: a drone of type `{kind.name}` has more than a node: it could never start"
                self.document.complain_at((*at, where, key), wrong)

    def _derived_pools(self, spec: SiteConfig) -> tuple[tuple[GpuPool, ...], dict[str, str]]:
        """For each GPU model as many GPUs as the limits of site and types allow; CPU drones have nodes of their own."""
        alike: dict[tuple[str, int, bool], list[DroneType]] = {}
        for kind in spec.types:
            alike.setdefault((kind.gpu_model, kind.vram_mib, kind.gpu_milli > 0), []).append(kind)
        pools = tuple(_derived(spec, kinds) for kinds in alike.values())
        serves = {kind.name: pool.name for pool, kinds in zip(pools, alike.values(), strict=True) for kind in kinds}
        there = ", ".join(f"{p.nodes * p.gpus_per_node} GPUs for {p.name}" for p in pools if p.gpus_per_node)
        self.notes.append(f"{spec.name}: {there or 'no GPU'}, as its limits allow; nobody else uses it")
        return pools, serves

    # ------------------------------------------------------------------------------------------------------- owner

    def _series(self, spec: SiteConfig, told: SeriesSection, pools: tuple[GpuPool, ...]) -> OwnerSeries | None:
        at = ("sites", spec.name, "owner")
        names = tuple(pool.name for pool in pools)
        for n, name in enumerate(told.nodes):
            if name not in names:
                self._complain((*at, "nodes", n), f"no nodes `{name}`", name, names, key=False)
        beside = self.path.parent if self.path else Path()
        path = located(Path(told.file), beside)
        if path is None:
            self.document.complain_at(
                (*at, "file"),
                f"`file`: no {told.file} in {os.path.abspath(beside)}: put it there, or name its directory in the "
                f"environment variable PROVISIONER_TRACES",
            )
            return None
        try:
            loads = read_loads(path, pending=told.pending)
        except TraceError as error:
            for line in error.lines:
                self.document.complain_at((*at, "file"), line)
            return None
        if told.vc not in loads:
            self._complain((*at, "vc"), f"`vc`: no series `{told.vc}` in {path.name}", told.vc, tuple(loads), key=False)
            return None
        mine = [pool for pool in pools if not told.nodes or pool.name in told.nodes]
        load = loads[told.vc].scaled(told.gpus or sum(pool.nodes * pool.gpus_per_node for pool in mine))
        return OwnerSeries(load.repeated(self.span_s).steps, told.nodes, told.victim, told.notice)

    def _complain(
        self, at: tuple[str | int, ...], wrong: str, name: str, known: tuple[str, ...], *, key: bool = True
    ) -> None:
        spot = self.document.key_position(at) if key else self.document.value_position(at)
        self.document.complain(spot, f"{wrong}: {choices(name, known)}")


def _derived(spec: SiteConfig, kinds: list[DroneType]) -> GpuPool:
    name = "-".join(kind.name for kind in kinds)[:60]
    limit = spec.policy.max_drones
    drones = sum(limit if kind.max_drones is None else min(limit, kind.max_drones) for kind in kinds)
    if not kinds[0].gpu_milli:
        nodes = max(1, min(drones, limit, MOST_GPUS))
        most = max(kinds, key=lambda kind: (kind.cpus, kind.memory_mib))
        memory = max(kind.memory_mib for kind in kinds)
        return GpuPool(name, 0, nodes, cpus_per_node=most.cpus, memory_mib_per_node=memory)
    size = max(1, *(math.ceil(kind.gpu_milli / WHOLE_GPU) for kind in kinds))
    milli = sum((limit if k.max_drones is None else min(limit, k.max_drones)) * k.gpu_milli for k in kinds)
    if spec.policy.max_gpu_milli is not None:
        milli = min(milli, spec.policy.max_gpu_milli)
    gpus = min(MOST_GPUS, math.ceil(milli / WHOLE_GPU))
    return GpuPool(name, size, max(1, math.ceil(gpus / size)))


def described(plan: WorldPlan) -> Iterator[str]:
    """The world in a line per site."""
    for facility in plan.facilities:
        parts = ", ".join(
            f"{pool.nodes * pool.gpus_per_node} {pool.name}" if pool.gpus_per_node else count(pool.nodes, "CPU node")
            for pool in facility.pools
        )
        owner = " with an owner" if facility.series else ""
        yield f"{facility.name}: {parts}{owner}"
