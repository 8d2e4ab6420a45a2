"""Differences between two configurations: what a running controller may take over, and what it must refuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from pydantic import BaseModel

from provisioner.config import Settings, SiteConfig
from provisioner.config.loading import placing_options

_NO_DRONES: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """The difference between two configurations. Nothing is applied if anything is refused."""

    added: tuple[str, ...] = ()
    """Sites that are new."""
    rebuilt: tuple[str, ...] = ()
    """Sites whose adapter must be built again: its options or drone types differ."""
    removed: tuple[str, ...] = ()
    """Sites that are no longer listed; none has live drones, or the change is refused."""
    notes: tuple[str, ...] = ()
    """One line per difference, for the log and the operator: ``policy.idle_timeout_s: 600.0 -> 300.0``."""
    refused: tuple[str, ...] = ()
    """Reasons why a running controller cannot take over the change, with what to do instead; one line each."""

    @property
    def is_empty(self) -> bool:
        """Return whether the two configurations are equal."""
        return not self.notes and not self.refused


def changes(old: Settings, new: Settings, live_by_site: Mapping[str, int] = _NO_DRONES) -> ConfigChange:
    """Return what would change if a controller that runs with ``old`` took over ``new``.

    ``live_by_site``: drones that were requested and are not confirmed gone; a site with live drones is not removed.
    """
    before = {site.name: site for site in old.sites}
    after = {site.name: site for site in new.sites}
    added = tuple(name for name in after if name not in before)
    removed = tuple(name for name in before if name not in after)
    kept = [(before[name], after[name]) for name in after if name in before]
    return ConfigChange(
        added=added,
        rebuilt=tuple(new.name for old, new in kept if _needs_rebuilding(old, new)),
        removed=removed,
        notes=(
            *_of_controller(old, new),
            *(f"site {name}: added" for name in added),
            *(f"site {name}: removed" for name in removed),
            *(note for was, now in kept for note in _of_site(was, now)),
        ),
        refused=(
            *_fixed_while_running(old, new),
            *_leaves_drones(removed, kept, live_by_site),
        ),
    )


def _needs_rebuilding(old: SiteConfig, new: SiteConfig) -> bool:
    return (old.adapter, old.options, old.types) != (new.adapter, new.options, new.types)


def _of_controller(old: Settings, new: Settings) -> Iterator[str]:
    for name in ("interval_s", "active_interval_s"):
        yield from _note(name, getattr(old, name), getattr(new, name))
    yield from _differences("policy", old.policy, new.policy, without=("sites",))


def _of_site(old: SiteConfig, new: SiteConfig) -> Iterator[str]:
    scope = f"site {new.name}"
    yield from _note(f"{scope}: adapter", old.adapter, new.adapter)
    yield from _differences(scope, old.policy, new.policy)
    if old.adapter == new.adapter:
        yield from _of_options(f"{scope}: options", old.options, new.options)
    was, now = ({t.name: t for t in site.types} for site in (old, new))
    for name in now.keys() - was.keys():
        yield f"{scope}: type {name}: added"
    for name in was.keys() - now.keys():
        yield f"{scope}: type {name}: removed; its drones are drained"
    for name in was.keys() & now.keys():
        yield from _differences(f"{scope}: type {name}", was[name], now[name])


def _of_options(scope: str, old: BaseModel, new: BaseModel) -> Iterator[str]:
    for name in type(new).model_fields:
        yield from _note(f"{scope}.{name}", getattr(old, name, None), getattr(new, name))


def _differences(scope: str, old: object, new: object, without: tuple[str, ...] = ()) -> Iterator[str]:
    for field in fields(new):  # type: ignore[arg-type]  # frozen dataclasses of the model, both
        if field.name not in without:
            yield from _note(f"{scope}.{field.name}", getattr(old, field.name), getattr(new, field.name))


def _note(name: str, old: object, new: object) -> Iterator[str]:
    if old != new:
        yield f"{name}: {old} -> {new}"


def _fixed_while_running(old: Settings, new: Settings) -> Iterator[str]:
    if old.controller != new.controller:
        yield (
            f"controller: {old.controller} -> {new.controller}: drone ids begin with the name; drain all drones, "
            f"then start a new controller"
        )
    if old.store.path != new.store.path:
        yield f"store.path: {old.store.path} -> {new.store.path}: stop the controller, move the file, start it again"
    if (old.store.keep_s, old.store.snapshots) != (new.store.keep_s, new.store.snapshots):
        yield "store: retention is read only at start; restart the controller, its drones stay"
    if old.overlay != new.overlay:
        yield "overlay: adapter and options are read only at start; restart the controller, its drones stay"


def _leaves_drones(
    removed: tuple[str, ...], kept: list[tuple[SiteConfig, SiteConfig]], live_by_site: Mapping[str, int]
) -> Iterator[str]:
    for name in removed:
        if live := live_by_site.get(name, 0):
            yield (
                f"site {name}: removed, but {_drones(live)} would be left without a controller; set `enabled: false`, "
                f"drain them, then remove it"
            )
    for old, new in kept:
        if live := live_by_site.get(new.name, 0):
            yield from _loses_drones(old, new, _drones(live))


def _loses_drones(old: SiteConfig, new: SiteConfig, drones: str) -> Iterator[str]:
    scope = f"site {new.name}"
    if old.adapter != new.adapter:
        yield (
            f"{scope}: adapter {old.adapter} -> {new.adapter}, but {drones} of the old one would be lost; drain them "
            f"first, or give the new one another name"
        )
        return
    for name in placing_options(type(new.options)):
        if getattr(old.options, name) != getattr(new.options, name):
            yield f"{scope}: options.{name} places its drones, and {drones} would be lost; drain them first"


def _drones(count: int) -> str:
    return "1 live drone" if count == 1 else f"{count} live drones"
