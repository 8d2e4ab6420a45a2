"""Comparison of a configuration with the drones on record, for ``provisioner check``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from provisioner import formatting
from provisioner.cli.drone_list import controller
from provisioner.config import Problem, Settings
from provisioner.config import strict_yaml as yaml
from provisioner.model import Drone
from provisioner.store import StoreError


def against_record(settings: Settings, path: Path) -> tuple[list[Problem], list[Problem]]:
    """Return what leaves live drones on record at ``path`` without a controller, and, as warnings, what drains them.

    Without a record there is nothing to compare. A record that cannot be read is a warning.
    """
    try:
        if not path.is_file():
            return [], []
        from provisioner.store.reader import SqlReader

        live = SqlReader(path).drones()
    except (OSError, StoreError) as error:
        why = (
            f"warning: not compared with the drones on record: {formatting.sanitize(str(error), formatting.SHORT_TEXT)}"
        )
        return [], [_problem(settings.path, ("store", "path"), why)]
    return [*_renamed(settings, live), *_removed(settings, live)], _without_type(settings, live)


def _renamed(settings: Settings, live: list[Drone]) -> list[Problem]:
    others = Counter(controller(d.id) for d in live if controller(d.id) != settings.controller)
    return [
        _problem(
            settings.path,
            ("controller",),
            f"`{settings.controller}`: {formatting.count(count, 'live drone')} on record would be left without "
            f"a controller: the name is in their ids. Keep `{name}`, or drain them first",
        )
        for name, count in sorted(others.items())
    ]


def _removed(settings: Settings, live: list[Drone]) -> list[Problem]:
    known = {site.name for site in settings.sites}
    lost = Counter(d.site for d in live if d.site not in known)
    return [
        _problem(
            settings.path,
            ("sites",),
            f"`sites`: site `{name}` was removed, and {formatting.count(count, 'live drone')} would be left without a "
            f"controller. Put it back with `enabled: false`, drain them, then remove it",
        )
        for name, count in sorted(lost.items())
    ]


def _without_type(settings: Settings, live: list[Drone]) -> list[Problem]:
    files = {site.name: site.path for site in settings.sites}
    known = {str(t.key) for t in settings.types}
    ends = Counter((d.site, str(d.type)) for d in live if d.site in files and str(d.type) not in known)
    return [
        _problem(
            files[site],
            ("types",),
            f"warning: type `{kind.partition('/')[2]}` was removed or renamed: "
            f"its {formatting.count(count, 'live drone')} will be drained",
        )
        for (site, kind), count in sorted(ends.items())
    ]


def _problem(path: Path, at: tuple[str, ...], message: str) -> Problem:
    document = yaml.read(path)
    spot = document.value_position(at) if at == ("controller",) else document.key_position(at)
    return Problem(str(path), spot.line, spot.col, message)
