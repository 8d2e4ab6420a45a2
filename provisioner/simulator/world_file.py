"""The world in which a configuration is simulated: from its site files, and from what a world file says of them.

Values that a world file lacks are derived from the site files; :attr:`WorldPlan.notes` lists them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, ValidationError

from provisioner.config import ConfigError, Settings, SiteConfig, strict_yaml as yaml
from provisioner.config.messages import choices, report_errors
from provisioner.config.models import ConfigSection, mistake_at, section_check
from provisioner.config.sections import as_settings, settings_of
from provisioner.config.strict_yaml import YamlDocument
from provisioner.config.units import Duration, Name, PositiveDuration, Size
from provisioner.formatting import count
from provisioner.model import WHOLE_GPU, DroneType
from provisioner.resources import Resources
from provisioner.simulator.drones import (
    OVERLAY,
    HardwareFault,
    HardwareFaultKind,
    SiteBehaviour,
)
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.loop import Draw, Fixed, LogNormal, Uniform
from provisioner.simulator.owner import OwnerSeries, VictimRule
from provisioner.simulator.pool import PoolBehaviour
from provisioner.simulator.services import RequestBurst
from provisioner.simulator.sites import Facility, GpuPool
from provisioner.simulator.traces import TraceError, located, read_loads
from provisioner.values import frozen


class DrawSection(ConfigSection):
    """A duration that differs from drone to drone; a plain duration is always the same."""

    fixed: Duration | None = None
    low: Duration | None = None
    high: Duration | None = None
    median: PositiveDuration | None = None
    sigma: float | None = Field(None, ge=0, le=5)
    most: Duration | None = None

    @section_check
    def _is_one_kind(self) -> Self:
        given = {key for key, value in self if value is not None}
        if given not in (
            {"fixed"},
            {"low", "high"},
            {"median", "sigma"},
            {"median", "sigma", "most"},
        ):
            raise ValueError("write `75s`, `{low: 10s, high: 1min}` or `{median: 45s, sigma: 0.4}`")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise mistake_at("low", "is longer than `high`: swap them")
        return self

    @property
    def draw(self) -> Draw:
        if self.fixed is not None:
            return Fixed(self.fixed)
        if self.low is not None and self.high is not None:
            return Uniform(self.low, self.high)
        assert self.median is not None and self.sigma is not None
        return LogNormal(self.median, self.sigma, math.inf if self.most is None else self.most)


Spread = Annotated[
    DrawSection,
    BeforeValidator(lambda value: value if isinstance(value, dict) else {"fixed": value}),
]


_Chance = Annotated[float, Field(ge=0, le=1)]


class FailureSection(ConfigSection):
    """Chances of the defects of a drone, each from 0 to 1."""

    dies_young: _Chance = 0.0
    never_joins: _Chance = 0.0
    hangs_in_check: _Chance = 0.0
    matches_nothing: _Chance = 0.0
    eats_jobs: _Chance = 0.0

    @section_check
    def _add_up(self) -> Self:
        total = sum(chance for _, chance in self)
        if total > 1:
            raise ValueError(f"the chances add up to {total:g}: they exclude each other, 1 at most")
        return self


class BehaviourSection(ConfigSection):
    """Behaviour of a site towards drones; fields as in :class:`SiteBehaviour`."""

    queue: Spread | None = None
    boot: Spread | None = None
    check: Spread | None = None
    release: Spread | None = None
    lifetime: Spread | None = None
    retire: PositiveDuration | None = None
    failures: FailureSection | None = None

    def over(self, behaviour: SiteBehaviour) -> SiteBehaviour:
        """Return ``behaviour`` with what is set here."""
        draws = {
            key: getattr(self, key) for key in ("queue", "boot", "check", "release", "lifetime")
        }
        changes: dict[str, Any] = {
            key: section.draw for key, section in draws.items() if section is not None
        }
        changes |= self.failures.model_dump() if self.failures else {}
        return replace(
            behaviour,
            retire_s=behaviour.retire_s if self.retire is None else self.retire,
            **changes,
        )


class NodesSection(ConfigSection):
    """Nodes of one kind; without ``cpus`` or ``memory`` these are not counted."""

    nodes: int = Field(1, ge=1, le=100_000)
    gpus: int = Field(ge=0, le=1024, examples=[8])
    cpus: int = Field(0, ge=0, le=100_000)
    memory: Size = 0
    serves: tuple[str, ...] = ()


class SeriesSection(ConfigSection):
    """GPUs of the owner over time, from a file with `vc, t_s, total_gpus, busy_gpus, pending_gpus`."""

    file: str = Field(min_length=1, examples=["owner_load_public.csv.gz"])
    vc: str = Field(min_length=1, examples=["vc8Sj"])
    gpus: int | None = Field(None, ge=1)
    nodes: tuple[str, ...] = ()
    pending: bool = False
    victim: VictimRule = VictimRule.YOUNGEST
    notice: Duration = 0.0


class SiteSection(BehaviourSection):
    """One site."""

    nodes: dict[Name, NodesSection] = Field({})
    types: dict[str, BehaviourSection] = Field({})
    owner: SeriesSection | None = None
    reports_free: bool = True
    reports_nodes: bool = False
    queues: bool = True
    quota: int | None = Field(None, ge=0)
    latency: Spread | None = None


@settings_of(PoolBehaviour, "negotiation_s", "best_fit")
class PoolSection(ConfigSection):
    """The overlay pool."""


@settings_of(HardwareFault, "kind", "notice_s")
class HardwareFaultSection(ConfigSection):
    """Fault of hardware."""


@settings_of(RequestBurst, "service", "ahead_s")
class RequestBurstSection(ConfigSection):
    """Requests that come to a service for a while."""


class WorldFile(ConfigSection):
    """The world file; docs/how-to/simulate.md explains its keys."""

    pool: PoolSection = PoolSection()
    sites: dict[Name, SiteSection] = Field({})
    hardware_faults: tuple[HardwareFaultSection, ...] = ()
    bursts: tuple[RequestBurstSection, ...] = ()


DEFAULT_BEHAVIOUR = SiteBehaviour(boot=Fixed(75.0), check=Fixed(0.0), release=Fixed(5.0))
MAX_DERIVED_GPUS = 10_000
"""No more are derived from limits, which may be far beyond what there is."""


@frozen
class WorldPlan:
    """A world to be simulated, but for the jobs."""

    facilities: tuple[Facility, ...]
    pool: PoolBehaviour
    hardware_faults: tuple[HardwareFault, ...] = ()
    bursts: tuple[RequestBurst, ...] = ()
    notes: tuple[str, ...] = ()
    """Defaults that replaced missing information in the files."""

    @property
    def announcing_jobs(self) -> tuple[SimulatedJob, ...]:
        """Return the jobs that come with bursts, and announce the models of their service."""
        models: dict[str, tuple[str, ...]] = {}
        for kind in (kind for facility in self.facilities for kind in facility.types):
            if kind.server is not None:
                models[kind.service] = kind.server.models
        jobs = []
        for burst in self.bursts:
            wants = JobRequirements(inference=models.get(burst.service, ()))
            begin_s = max(0.0, burst.at_s - burst.ahead_s)
            jobs += burst.jobs * [SimulatedJob(begin_s, burst.end_s - begin_s, wants)]
        return tuple(jobs)


def world_of(settings: Settings, path: Path | None, *, span_s: float) -> WorldPlan:
    """Build the world in which ``settings`` are simulated; owners' series repeat to cover ``span_s``.

    Raises ConfigError, with every mistake in the world file at ``path``.
    """
    document = YamlDocument("") if path is None else yaml.read(path)
    if path is not None and not document.is_mapping:
        raise ConfigError(document.problems)
    try:
        model = (
            WorldFile()
            if path is None
            else WorldFile.model_validate_json(json.dumps(document.tree), strict=True)
        )
    except ValidationError as error:
        report_errors(document, error, WorldFile)
        raise ConfigError(document.problems) from None
    faults = tuple(as_settings(HardwareFault, each) for each in model.hardware_faults)
    bursts = tuple(as_settings(RequestBurst, each) for each in model.bursts)
    _check_sites(document, model, faults, settings)
    services = tuple(each.name for each in settings.policy.services)
    for n, burst in enumerate(bursts):
        if burst.service not in services:
            wrong = (
                f"no service `{burst.service}` is configured: {choices(burst.service, services)}"
            )
            document.complain_at(("bursts", n, "service"), wrong)
    building = _Building(document, path, span_s)
    facilities = tuple(
        building.facility(spec, model.sites.get(spec.name, SiteSection()))
        for spec in settings.sites
    )
    if document.problems:
        raise ConfigError(document.in_order())
    pool = as_settings(PoolBehaviour, model.pool)
    return WorldPlan(facilities, pool, faults, bursts, tuple(building.notes))


def _check_sites(
    document: YamlDocument, model: WorldFile, faults: Sequence[HardwareFault], settings: Settings
) -> None:
    names = tuple(spec.name for spec in settings.sites)
    for name in model.sites:
        if name not in names:
            document.complain_at_key(
                ("sites", name), f"no site `{name}` is configured: {choices(name, names)}"
            )
    for n, fault in enumerate(faults):
        at = ("hardware_faults", n)
        known = (*names, OVERLAY)
        if fault.where not in known:
            wrong = f"no site `{fault.where}` is configured: {choices(fault.where, known)}"
            document.complain_at((*at, "where"), wrong)
        if (fault.where == OVERLAY) != (fault.kind is HardwareFaultKind.NO_NEGOTIATION):
            document.complain_at(
                (*at, "kind"), "`kind`: `no-negotiation` is for the overlay, others for sites"
            )


class _Building:
    """Facilities from site files and what the world file says of them."""

    def __init__(self, document: YamlDocument, path: Path | None, span_s: float) -> None:
        self.document = document
        self.path = path
        self.span_s = span_s
        self.notes: list[str] = []

    def facility(self, spec: SiteConfig, site: SiteSection) -> Facility:
        behaviour = site.over(DEFAULT_BEHAVIOUR)
        pools, serves = self._pools(spec, site) if site.nodes else self._derived_pools(spec)
        if not spec.policy.enabled:
            self.notes.append(f"{spec.name}: not enabled, gets no drones")
        defaults = {"queue": "no queue", "boot": "boot 75 s", "release": "release 5 s"}
        if assumed := [words for key, words in defaults.items() if getattr(site, key) is None]:
            self.notes.append(f"{spec.name}: {', '.join(assumed)}")
        known = tuple(kind.name for kind in spec.types)
        for name in site.types:
            if name not in known:
                wrong = f"site {spec.name} has no type `{name}`: {choices(name, known)}"
                self.document.complain_at_key(("sites", spec.name, "types", name), wrong)
        if site.reports_nodes and site.owner is not None:
            wrong = "`reports_nodes`: an owner of whom only a series is known is on no certain node: remove either"
            self.document.complain_at(("sites", spec.name, "reports_nodes"), wrong)
        return Facility(
            policy=spec.policy,
            types=spec.types,
            pools=pools,
            serves=serves,
            behaviour=behaviour,
            behaviour_of={name: section.over(behaviour) for name, section in site.types.items()},
            latency=Fixed(0.2) if site.latency is None else site.latency.draw,
            quota=site.quota,
            queues=site.queues,
            reports_free=site.reports_free,
            reports_nodes=site.reports_nodes,
            owner=self._series(spec, site.owner, pools) if site.owner else None,
        )

    def _pools(
        self, spec: SiteConfig, site: SiteSection
    ) -> tuple[tuple[GpuPool, ...], dict[str, str]]:
        """Return the GPU pools that the file declares, and the pool of each drone type."""
        pools = tuple(
            GpuPool(name, n.gpus, n.nodes, n.cpus, n.memory) for name, n in site.nodes.items()
        )
        types = {kind.name: kind for kind in spec.types}
        serves: dict[str, str] = {}
        for name, nodes in site.nodes.items():
            for n, served in enumerate(nodes.serves):
                at = ("sites", spec.name, "nodes", name, "serves", n)
                if served not in types:
                    wrong = f"site {spec.name} has no type `{served}`: {choices(served, types)}"
                    self.document.complain_at(at, wrong)
                elif served in serves:
                    self.document.complain_at(
                        at, f"`{served}` runs on `{serves[served]}` already: name it once"
                    )
                else:
                    serves[served] = name
        if len(pools) == 1 and not serves:
            serves = dict.fromkeys(types, pools[0].name)
        top = ("sites", spec.name, "nodes")
        for kind in types.values():
            if kind.name not in serves:
                wrong = f"type `{kind.name}` of {spec.name} runs nowhere: name it under `serves`"
                self.document.complain_at_key(top, wrong)
                continue
            where = serves[kind.name]
            room = next(pool.node for pool in pools if pool.name == where)
            for key, wants, has in zip(
                ("gpus", "cpus", "memory"), Resources.of(kind), room, strict=False
            ):
                if wants > has:
                    wrong = f"`{key}`: a drone of type `{kind.name}` has more than a node: it could never start"
                    self.document.complain_at((*top, where, key), wrong)
        return pools, serves

    def _derived_pools(self, spec: SiteConfig) -> tuple[tuple[GpuPool, ...], dict[str, str]]:
        """Return for each GPU model as many GPUs as the limits allow; CPU drones have nodes of their own."""
        alike: dict[tuple[str, int, bool], list[DroneType]] = {}
        for kind in spec.types:
            alike.setdefault((kind.gpu_model, kind.vram_mib, kind.gpu_milli > 0), []).append(kind)
        pools = tuple(_derived(spec, kinds) for kinds in alike.values())
        serves = {
            kind.name: pool.name
            for pool, kinds in zip(pools, alike.values(), strict=True)
            for kind in kinds
        }
        there = ", ".join(f"{p.gpus} GPUs for {p.name}" for p in pools if p.gpus)
        self.notes.append(
            f"{spec.name}: {there or 'no GPU'}, as its limits allow; nobody else uses it"
        )
        return pools, serves

    def _series(
        self, spec: SiteConfig, owner: SeriesSection, pools: tuple[GpuPool, ...]
    ) -> OwnerSeries | None:
        at = ("sites", spec.name, "owner")
        names = tuple(pool.name for pool in pools)
        for n, name in enumerate(owner.nodes):
            if name not in names:
                self.document.complain_at(
                    (*at, "nodes", n), f"no nodes `{name}`: {choices(name, names)}"
                )
        beside = self.path.parent if self.path else Path()
        path = located(Path(owner.file), beside)
        if path is None:
            remedy = (
                "put it there, or name its directory in the environment variable PROVISIONER_TRACES"
            )
            wrong = f"`file`: no {owner.file} in {os.path.abspath(beside)}: {remedy}"
            self.document.complain_at((*at, "file"), wrong)
            return None
        try:
            loads = read_loads(path, pending=owner.pending)
        except TraceError as error:
            for line in error.lines:
                self.document.complain_at((*at, "file"), line)
            return None
        if owner.vc not in loads:
            wrong = f"`vc`: no series `{owner.vc}` in {path.name}: {choices(owner.vc, loads)}"
            self.document.complain_at((*at, "vc"), wrong)
            return None
        mine = [pool for pool in pools if not owner.nodes or pool.name in owner.nodes]
        load = loads[owner.vc].scaled(owner.gpus or sum(pool.gpus for pool in mine))
        return OwnerSeries(
            load.repeated(self.span_s).steps, owner.nodes, owner.victim, owner.notice
        )


def _derived(spec: SiteConfig, kinds: list[DroneType]) -> GpuPool:
    name = "-".join(kind.name for kind in kinds)[:60]
    limit = spec.policy.max_drones
    drones = [limit if kind.max_drones is None else min(limit, kind.max_drones) for kind in kinds]
    if not kinds[0].gpu_milli:
        nodes = max(1, min(sum(drones), limit, MAX_DERIVED_GPUS))
        return GpuPool(
            name, 0, nodes, max(kind.cpus for kind in kinds), max(kind.memory_mib for kind in kinds)
        )
    size = max(1, *(math.ceil(kind.gpu_milli / WHOLE_GPU) for kind in kinds))
    milli = sum(number * kind.gpu_milli for number, kind in zip(drones, kinds, strict=True))
    if spec.policy.max_gpu_milli is not None:
        milli = min(milli, spec.policy.max_gpu_milli)
    gpus = min(MAX_DERIVED_GPUS, math.ceil(milli / WHOLE_GPU))
    return GpuPool(name, size, max(1, math.ceil(gpus / size)))


def describe_world(plan: WorldPlan) -> Iterator[str]:
    """Describe the world in a line per site."""
    for facility in plan.facilities:
        parts = [
            f"{p.gpus} {p.name}" if p.gpus else count(p.nodes, "CPU node") for p in facility.pools
        ]
        yield f"{facility.name}: {', '.join(parts)}{' with an owner' if facility.owner else ''}"
