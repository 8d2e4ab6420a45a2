"""``provisioner schema``: the JSON Schemas of configuration and output."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

from provisioner.answers.errors import unknown
from provisioner.cli import options
from provisioner.cli.output import note


def schema(
    name: Annotated[
        str | None, options.argument("NAME", "controller, site, or as provisioner.drones/1.")
    ] = None,
) -> None:
    """Print a JSON Schema; without a name, list those there are.

    controller and site describe the configuration files, for editors and CI. The others describe what -o json writes:
    keys may be added under the same number, and are never renamed or removed without a new one.

    \b
    Examples:
      provisioner schema provisioner.drones/1
    """
    from provisioner.answers.schemas import output_schemas
    from provisioner.config.schema import controller_schema, site_schema

    known: dict[str, Any] = {"controller": controller_schema(), "site": site_schema()}
    known |= output_schemas()
    if name is None:
        sys.stdout.write("".join(f"{n}\n" for n in known))
        return
    if name not in known:
        raise unknown("schema", name, list(known))
    sys.stdout.write(json.dumps(known[name], indent=2) + "\n")
    note(f"JSON Schema of {name}")
