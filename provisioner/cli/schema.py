"""JSON Schemas of everything that ``-o json`` writes, and the verb ``schema``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from provisioner.cli.check import PROBES_SCHEMA, PROBLEMS_SCHEMA, probe_columns, problem_columns
from provisioner.cli.drones import DRONES_SCHEMA, drone_columns, life_document
from provisioner.cli.estimates import EstimatesRow, estimates_document
from provisioner.cli.explain import KnownJob, class_document, job_document
from provisioner.cli.import_tardis import IMPORT_SCHEMA, finding_columns
from provisioner.cli.jobs import DEMAND_SCHEMA, JOBS_SCHEMA, class_columns, queue_columns
from provisioner.cli.options import VerbError
from provisioner.cli.output import Column, Document, Listing, note
from provisioner.cli.plan import SNAPSHOTS_SCHEMA, plan_diff_document, plan_document, snapshot_columns
from provisioner.cli.simulate import simulation
from provisioner.cli.sites import SITES_SCHEMA, SiteRow, site_columns, site_document
from provisioner.cli.status import EVENTS_SCHEMA, event_columns, status_document
from provisioner.model import Breaker, Drone, DroneId, DroneState, JobClass, Plan, Policy, PolledOverlay, TypeKey
from provisioner.simulator.traces import Trace
from provisioner.store import Views

if TYPE_CHECKING:
    from provisioner.store.reader import Reader


def output_schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON Schemas by name (``provisioner.drones/1``)."""
    return {answer.schema: json_schema(answer) for answer in _sample_answers()}


def json_schema(answer: Listing | Document) -> dict[str, Any]:
    """Return the JSON Schema of what ``-o json`` writes for ``answer``, whatever its rows."""
    common = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": answer.schema, "type": "object"}
    version = {"schema": {"const": answer.schema}}
    if isinstance(answer, Listing):
        return common | _object(version | {"items": {"type": "array", "items": _row_schema(answer.columns)}})
    facts = _row_schema(answer.facts.columns)["properties"]
    parts = {
        key: {"type": "array" if part.unknown is None else ["array", "null"], "items": _row_schema(part.columns)}
        for key, part in answer.parts.items()
    }
    raw = {key: {"type": "object"} for key in answer.raw}
    return common | _object(version | facts | parts | raw)


def _row_schema(columns: Sequence[Column]) -> dict[str, Any]:
    cells = {}
    for column in columns:
        kind: str | list[str] = [column.kind, "null"] if column.null else column.kind
        choices = {"enum": list(column.choices)} if column.choices else {}
        cells[column.key] = {"type": kind, "description": column.doc, **choices}
    return {"type": "object"} | _object(cells)


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"properties": properties, "required": list(properties), "additionalProperties": False}


def _sample_answers() -> list[Listing | Document]:
    """Return each kind of answer, from a record that is nearly empty: a schema does not depend on the rows."""
    reader = cast("Reader", SampleReader())
    lists = {
        DRONES_SCHEMA: drone_columns(0.0),
        SITES_SCHEMA: site_columns(0.0),
        DEMAND_SCHEMA: class_columns(0.0),
        EVENTS_SCHEMA: event_columns(),
        SNAPSHOTS_SCHEMA: snapshot_columns(),
        PROBLEMS_SCHEMA: problem_columns(),
        PROBES_SCHEMA: probe_columns(),
        JOBS_SCHEMA: queue_columns(0.0),
        IMPORT_SCHEMA: finding_columns(),
    }
    return [
        status_document(reader, 2.0),
        life_document(_SAMPLE_DRONE, [], 2.0),
        site_document(_SAMPLE_SITE, None, (), (), 0.0, 2.0),
        class_document(reader, _SAMPLE_VIEWS, JobClass("1", 1000, 1, 1), "", 2.0),
        job_document(KnownJob("1.0", "running", "")),
        plan_document(Plan(1, 1.0), ""),
        plan_diff_document(Plan(1, 1.0), Plan(1, 1.0), ""),
        estimates_document(EstimatesRow(None, None), 2.0),
        simulation(Trace("", ()), (), {}),
        *(Listing(schema, columns, (), str) for schema, columns in lists.items()),
    ]


_SAMPLE_DRONE = Drone(DroneId("a-b-1"), TypeKey("s/t"), DroneState.IDLE, 1.0, 1.0, 1000)
_SAMPLE_SITE = SiteRow("s", None, None, Breaker("s"), (), {}, 0)
_SAMPLE_VIEWS = Views(1, 1.0, Policy(), (), PolledOverlay(), {})


class SampleReader:
    """Reader of an empty record."""

    path = Path()
    _ANSWERS: Mapping[str, object] = {"holder": None, "views": None, "breakers": {}}

    def __getattr__(self, name: str) -> Callable[..., object]:
        return lambda *args, **named: self._ANSWERS.get(name, [])


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
    known = _known_schemas()
    if name is None:
        sys.stdout.write("".join(f"{n}\n" for n in known))
        return
    if name not in known:
        near = get_close_matches(name, known, n=1)
        instead = f"did you mean {near[0]}?" if near else "`provisioner schema` lists them"
        raise VerbError(f"no schema {name[:80]!r}; {instead}")
    sys.stdout.write(json.dumps(known[name](), indent=2) + "\n")
    note(f"JSON Schema of {name}")


def _known_schemas() -> dict[str, Callable[[], Any]]:
    from provisioner.config.schema import controller_schema, site_schema

    known: dict[str, Callable[[], Any]] = {"controller": controller_schema, "site": site_schema}
    return known | {answer.schema: partial(json_schema, answer) for answer in _sample_answers()}
