"""The configuration: strict YAML in, frozen :class:`Settings` out, every mistake with file, line and repair."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from provisioner.config.models import (
    BalancerSection,
    HaSection,
    ServiceSection,
    StoreSection,
    WebSection,
    placing_options,
)
from provisioner.formatting import count
from provisioner.model import DroneType, Policy, SitePolicy
from provisioner.store.database import Place
from provisioner.values import factory, frozen


@frozen
class OverlayConfig:
    adapter: str
    options: Any
    """An instance of the adapter's own ``Config``."""


@frozen
class SiteConfig:
    name: str
    adapter: str
    options: Any
    """An instance of the adapter's own ``Config``."""
    types: tuple[DroneType, ...]
    policy: SitePolicy
    path: Path


@frozen
class Settings:
    """A complete, valid configuration."""

    path: Path
    controller: str
    store: StoreSection
    overlay: OverlayConfig
    sites: tuple[SiteConfig, ...]
    policy: Policy
    web: WebSection = factory(WebSection)
    services: tuple[ServiceSection, ...] = ()
    """With their secrets, which ``policy.services`` has not."""
    balancer: BalancerSection | None = None
    ha: HaSection | None = None
    warnings: tuple[Problem, ...] = ()
    """Settings that are valid but probably not intended; for the log and for ``check``."""

    @property
    def record(self) -> Place:
        """Return the place of the record."""
        return self.store.place(self.controller)

    @property
    def types(self) -> tuple[DroneType, ...]:
        """Return the drone types of all sites."""
        return tuple(t for s in self.sites for t in s.types)


@frozen
class Problem:
    """One mistake in a configuration file; lines and columns count from 1."""

    file: str
    line: int
    col: int
    message: str
    """The mistake and the remedy; a warning begins with ``warning: ``."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.col}: {self.message}"


class ConfigError(Exception):
    """All problems of a configuration."""

    def __init__(self, problems: list[Problem]) -> None:
        """Take every problem, in order."""
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


@frozen
class ConfigChange:
    """The difference between two configurations. Nothing is applied if anything is refused."""

    rebuilt: tuple[str, ...] = ()
    """Sites whose adapter must be built again: its options or drone types differ."""
    notes: tuple[str, ...] = ()
    """One line per difference, for the log and the operator: ``policy.idle_timeout_s: 600.0 -> 300.0``."""
    refused: tuple[str, ...] = ()
    """Reasons why a running controller cannot take over the change, with what to do instead; one line each."""


def changes(old: Settings, new: Settings, live_by_site: Mapping[str, int]) -> ConfigChange:
    """Return what would change if a controller that runs with ``old`` took over ``new``.

    ``live_by_site``: drones that were requested and are not confirmed gone; a site with live drones
    is not removed.
    """
    before = {site.name: site for site in old.sites}
    after = {site.name: site for site in new.sites}
    removed = [name for name in before if name not in after]
    kept = [(before[name], site) for name, site in after.items() if name in before]
    policy_fields = [f.name for f in fields(Policy) if f.name not in ("sites", "services")]
    notes = [*_notes("policy.", old.policy, new.policy, policy_fields)]
    notes += _notes("", old, new, ["services", "balancer"])
    notes += [f"site {name}: added" for name in after if name not in before]
    notes += [f"site {name}: removed" for name in removed]
    notes += [note for was, now in kept for note in _site_notes(was, now)]
    return ConfigChange(
        rebuilt=tuple(
            now.name
            for was, now in kept
            if (was.adapter, was.options, was.types) != (now.adapter, now.options, now.types)
        ),
        notes=tuple(notes),
        refused=(*_fixed_while_running(old, new), *_leaves_drones(removed, kept, live_by_site)),
    )


def _site_notes(old: SiteConfig, new: SiteConfig) -> Iterator[str]:
    scope = f"site {new.name}"
    yield from _notes(f"{scope}: ", old, new, ["adapter"])
    yield from _notes(
        f"{scope}.", old.policy, new.policy, [field.name for field in fields(SitePolicy)]
    )
    if old.adapter == new.adapter:
        yield from _notes(
            f"{scope}: options.", old.options, new.options, type(new.options).model_fields
        )
    was, now = ({t.name: t for t in site.types} for site in (old, new))
    yield from (f"{scope}: type {name}: added" for name in now.keys() - was.keys())
    yield from (
        f"{scope}: type {name}: removed; its drones are drained" for name in was.keys() - now.keys()
    )
    for name in was.keys() & now.keys():
        yield from _notes(
            f"{scope}: type {name}.",
            was[name],
            now[name],
            [field.name for field in fields(DroneType)],
        )


def _notes(scope: str, old: object, new: object, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        before = getattr(old, name, None)
        after = getattr(new, name)
        if before != after:
            yield f"{scope}{name}: {before} -> {after}"


def _fixed_while_running(old: Settings, new: Settings) -> Iterator[str]:
    if old.controller != new.controller:
        yield (
            f"controller: {old.controller} -> {new.controller}: drone ids begin with the name; drain all drones, "
            f"then start a new controller"
        )
    if (before := old.record) != (now := new.record):
        key = "store.path" if isinstance(now, Path) else "store.url"
        yield f"{key}: {before} -> {now}: stop the controller, move the record, start it again"
    kept = ("keep", "series", "ledger", "snapshots")
    if any(getattr(old.store, key) != getattr(new.store, key) for key in kept):
        yield "store: retention is read only at start; restart the controller, its drones stay"
    if old.overlay != new.overlay:
        yield "overlay: adapter and options are read only at start; restart the controller, its drones stay"
    if old.ha != new.ha:
        yield "ha: it is read only at start; restart all members, the drones stay"


def _leaves_drones(
    removed: list[str], kept: list[tuple[SiteConfig, SiteConfig]], live_by_site: Mapping[str, int]
) -> Iterator[str]:
    for name in removed:
        if live := live_by_site.get(name, 0):
            remedy = "set `enabled: false`, drain them, then remove it"
            yield f"site {name}: removed, but {count(live, 'live drone')} would be left without a controller; {remedy}"
    for old, new in kept:
        live = live_by_site.get(new.name, 0)
        if not live:
            continue
        scope = f"site {new.name}"
        drones = count(live, "live drone")
        if old.adapter != new.adapter:
            remedy = "drain them first, or give the new one another name"
            change = f"adapter {old.adapter} -> {new.adapter}"
            yield f"{scope}: {change}, but {drones} of the old one would be lost; {remedy}"
            continue
        for name in placing_options(type(new.options)):
            if getattr(old.options, name) != getattr(new.options, name):
                yield f"{scope}: options.{name} places its drones, and {drones} would be lost; drain them first"


# Imported last: this module uses the classes above.
from provisioner.config.loading import (  # noqa: E402
    check as check,
    load as load,
    load_site as load_site,
    load_web as load_web,
    load_with_texts as load_with_texts,
)
