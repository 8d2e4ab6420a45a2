"""Names on record for the completion of a shell. The verb is hidden and silent."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from provisioner.answers.errors import VerbError
from provisioner.cli import options

if TYPE_CHECKING:
    from provisioner.store.database import Place
    from provisioner.store.reader import Reader

RECENT = 200
"""Newest ended drones, and jobs that ended in the last hour, that are suggested, too."""


def names(
    kind: Annotated[str, options.argument("KIND", "drones, types, sites, classes or jobs.")],
    config: options.ConfigPath = None,
) -> None:
    """Print names on record, one per line; nothing where there is none."""
    from provisioner.store import StoreError
    from provisioner.store.reader import Reader

    with suppress(VerbError, StoreError, OSError, ValueError):
        print(*_names(Reader(_store(config)), kind), sep="\n")


def _store(config: Path | None) -> Place:
    """Return the place of the record. The configuration is read by PyYAML alone, four times faster than with checks."""
    import os

    import yaml

    from provisioner.store.database import place_in, place_of

    if store := os.environ.get("PROVISIONER_STORE"):
        return place_of(store)
    path = options.config_path(options.Where(config=config))
    try:
        place = place_in(yaml.safe_load(path.read_text()), path.parent)
    except yaml.YAMLError as error:
        raise ValueError(path) from error
    if place is None:
        raise ValueError(path)
    return place


def _names(reader: Reader, kind: str) -> Iterable[str]:
    if kind == "drones":
        drones = (*reader.drones(ended=True, limit=RECENT), *reader.drones())
        return (each.id for each in drones)
    views = reader.views()
    if views is None:
        return ()
    if kind == "sites":
        return views.policy.sites
    if kind == "types":
        return (each.key for each in views.types)
    view = views.overlay.view
    classes = view.classes if view is not None else ()
    if kind == "classes":
        return (each.id for each in classes)
    ids = re.findall(
        r"\w[\w.]*", " ".join(f"{each.job_ids} {each.running_ids}" for each in classes)
    )
    return (
        *ids,
        *(each.job_id for each in reader.completions(views.at - 3600, views.at)[-RECENT:]),
    )
