"""``provisioner schema``: the JSON Schemas of configuration and output."""

from __future__ import annotations

import json
import sys
from typing import Annotated

from provisioner.answers.errors import unknown
from provisioner.cli import options
from provisioner.cli.output import note


def schema(
    name: Annotated[
        str | None,
        options.argument("NAME", "controller, site, or a name such as provisioner.drones/1."),
    ] = None,
) -> None:
    """Print a JSON Schema; without a name, list all schemas.

    controller and site describe the configuration files, for editors and CI. The others describe the output of -o json.
    A version (/1) may gain keys; a renamed or removed key gets a new version.

    \b
    Examples:
      provisioner schema provisioner.drones/1
    """
    from provisioner.answers.schemas import output_schemas
    from provisioner.config.schema import controller_schema, site_schema

    # Those of the files need every adapter, and so its extra.
    of_files = {"controller": controller_schema, "site": site_schema}
    of_output = output_schemas()
    known = [*of_files, *of_output]
    if name is None:
        sys.stdout.write("".join(f"{n}\n" for n in known))
        return
    if name not in known:
        raise unknown("schema", name, known)
    found = of_files[name]() if name in of_files else of_output[name]
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    note(f"JSON Schema of {name}")
