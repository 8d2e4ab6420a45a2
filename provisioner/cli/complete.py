"""Names for the shell's completion, from the record: drones, sites, drone types and job classes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from provisioner.cli.forms import Where
from provisioner.cli.where import open_record
from provisioner.store import Reader, Views

MOST = 200
"""More than this many names help nobody."""

Names = Callable[[typer.Context, str], list[str]]


def _completing(names: Callable[[Reader], Iterable[str]]) -> Names:
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        found: list[str] = []
        with suppress(Exception):  # no record, no configuration: then there is nothing to complete
            where = Where(*(_path(ctx.params.get(name)) for name in ("config", "store")))
            found = [name for name in names(open_record(where)) if name.startswith(incomplete)]
        return found[:MOST]

    return complete


def _path(given: object) -> Path | None:
    return Path(str(given)) if given else None


def _views(reader: Reader) -> Views | None:
    return reader.views()


drones = _completing(lambda reader: [drone.id for drone in reader.drones()])
any_drones = _completing(lambda reader: [d.id for d in (*reader.drones(), *reader.drones(ended=True, limit=MOST))])
sites = _completing(lambda reader: sorted(views.policy.sites) if (views := _views(reader)) else ())
types = _completing(lambda reader: [str(t.key) for t in views.types] if (views := _views(reader)) else ())
classes = _completing(
    lambda reader: (
        [c.id for c in views.overlay.view.classes] if (views := _views(reader)) and views.overlay.view else ()
    )
)


# -------------------------------------------------------------------------------------------------------- misspellings

MEANT = {
    "drain": "drones drain",
    "drian": "drones drain",
    "kill": "drones kill",
    "ls": "drones",
    "list": "drones",
    "ps": "drones",
    "get": "drones",
    "top": "status --watch",
    "logs": "events --follow",
    "log": "events --follow",
    "show": "drones show",
    "describe": "explain",
    "why": "explain",
    "reset": "sites reset",
    "validate": "check",
    "start": "run",
    "restart": "reload",
}
"""Verbs of other tools that no verb here is spelt like, with their equivalents."""


MEANT_OF_DRONES = {
    "get": "drones show",
    "describe": "drones show",
    "top": "drones --watch",
    "watch": "drones --watch",
    "rm": "drones kill",
    "delete": "drones kill",
    "stop": "drones drain",
}


class Hints(TyperGroup):
    """A group of verbs that says which verb is meant by one that does not exist."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        unknown = bool(name) and not name.startswith("-") and self.get_command(ctx, name) is None
        if unknown and (meant := self._meant(ctx, args)):
            ctx.fail(f"No such command '{name}'. Did you mean `provisioner {meant}`?")
        return super().resolve_command(ctx, args)

    def _meant(self, ctx: Any, args: list[str]) -> str:
        name, within = args[0], ctx.info_name
        if within == "explain":
            if len(args) > 1 and get_close_matches(name, self.list_commands(ctx), n=1):
                return ""  # misspelt
            is_job = name.replace(".", "", 1).isdecimal() or "#" in name
            kind = "job" if is_job else "drone" if "-" in name else "class"
            return f"explain {kind} {name}" if re.fullmatch(r"[\w.#@-]+", name) else ""
        if name in ("list", "ls"):
            return within if within in ("drones", "sites") else "drones"
        if within == "drones":
            return MEANT_OF_DRONES.get(name, "")
        return MEANT.get(name, "") if within != "sites" else ""
