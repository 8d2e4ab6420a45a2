"""The JSON Schema of a report.

``python -m provisioner.simulator.report.schema --write docs/reference`` renews the committed file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from provisioner.simulator.report.form import Report

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FILE = "simulate.schema.json"


def schema() -> dict[str, Any]:
    """The JSON Schema of the JSON form."""
    body = TypeAdapter(Report).json_schema(mode="serialization")
    return {"$schema": DIALECT, **body, "title": "GPU drone provisioner: report of provisioner simulate"}


def schema_text() -> str:
    """The schema as it is committed."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    """Write the schema into the directory after ``--write``, or to standard output."""
    match arguments:
        case ["--write", directory]:
            (Path(directory) / FILE).write_text(schema_text(), encoding="utf-8")
        case []:
            sys.stdout.write(schema_text())
        case _:
            print("usage: python -m provisioner.simulator.report.schema [--write DIRECTORY]", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
