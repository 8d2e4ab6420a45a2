"""``provisioner schema``: the JSON Schemas of the configuration files and of every ``-o json``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from difflib import get_close_matches
from typing import Annotated, Any

import typer

from provisioner.cli.exits import Failure
from provisioner.cli.output import note

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def schema(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="controller, site, or as provisioner.drones/1.", show_default=False),
    ] = None,
) -> None:
    """Print a JSON Schema; without a name, list those there are.

    controller and site describe the configuration files, for editors and CI. The others describe what -o json writes:
    keys may be added under the same number, and are never renamed or removed without a new one.

    \b
    Examples:
      provisioner schema
      provisioner schema site > site.schema.json
      provisioner schema provisioner.drones/1
    """
    known: dict[str, Callable[[], Any]] = _schemas()
    if name is None:
        sys.stdout.write("".join(f"{n}\n" for n in known))
        return
    if name not in known:
        near = get_close_matches(name, known, n=1)
        instead = f"did you mean {near[0]}?" if near else "`provisioner schema` lists them"
        raise Failure(f"no schema {name[:80]!r}; {instead}")
    sys.stdout.write(json.dumps(known[name](), indent=2) + "\n")
    note(f"JSON Schema of {name}")


def _schemas() -> dict[str, Callable[[], Any]]:
    from provisioner.cli.schemas import output_schemas

    def controller() -> Any:
        from provisioner.config.reference import controller_schema

        return controller_schema()

    def site() -> Any:
        from provisioner.config.reference import site_schema

        return site_schema()

    outputs = output_schemas()
    return {"controller": controller, "site": site} | {n: (lambda s=s: s) for n, s in outputs.items()}
