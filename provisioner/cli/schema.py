"""JSON Schemas of everything that ``-o json`` writes, and the verb ``schema``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from provisioner import model
from provisioner.cli import (
    check,
    drones,
    estimates,
    jobs,
    options,
    plan,
    shadow,
    simulate,
    sites,
    status,
    usage,
)
from provisioner.cli.output import Column, Document, Listing, note
from provisioner.simulator.shadow import Comparison
from provisioner.simulator.traces import Trace
from provisioner.store import Views
from provisioner.usage import RecordedRuns, UsageReport

if TYPE_CHECKING:
    from provisioner.store.reader import Reader

LISTS: Mapping[str, Sequence[Column]] = {
    drones.DRONES_SCHEMA: drones.DRONE_COLUMNS,
    sites.SITES_SCHEMA: sites.SITE_COLUMNS,
    jobs.DEMAND_SCHEMA: jobs.CLASS_COLUMNS,
    status.EVENTS_SCHEMA: status.EVENT_COLUMNS,
    plan.SNAPSHOTS_SCHEMA: plan.SNAPSHOT_COLUMNS,
    check.PROBLEMS_SCHEMA: check.PROBLEM_COLUMNS,
    check.PROBES_SCHEMA: check.PROBE_COLUMNS,
    jobs.JOBS_SCHEMA: jobs.QUEUE_COLUMNS,
    check.IMPORT_SCHEMA: check.FINDING_COLUMNS,
}


class SampleReader:
    """Reader of a record with one drone and nothing else."""

    path = Path()
    _DRONE = model.Drone(
        model.DroneId("a-b-1"), model.TypeKey("s/t"), model.DroneState.IDLE, 1.0, 1.0, 1000
    )
    _ANSWERS: Mapping[str, object] = {
        "holder": None,
        "views": None,
        "breakers": {},
        "drone": _DRONE,
        "last_output": "",
        "use": RecordedRuns(),
    }

    def __getattr__(self, name: str) -> Callable[..., object]:
        return lambda *args, **named: self._ANSWERS.get(name, [])


def _sample_answers() -> list[Listing | Document]:
    """Return each kind of answer, from a record that is nearly empty: a schema does not depend on the rows."""
    reader = cast("Reader", SampleReader())
    views = Views(1, 1.0, model.Policy(), (), model.PolledOverlay(model.OverlayView(1.0, ())), {})
    site, empty = sites.SiteRow("s", None, None, model.Breaker("s"), (), {}, 0), model.Plan(1, 1.0)
    return [
        status.status_document(reader),
        drones.drone_document(reader, model.DroneId("a-b-1")),
        sites.site_document(site, (), (), ""),
        jobs.class_document(reader, views, model.JobClass("1", 1000, 1, 1), ""),
        jobs.job_document(jobs.KnownJob("1.0", "running", "")),
        plan.plan_document(empty, ""),
        plan.plan_diff_document(empty, empty, ""),
        estimates.estimates_document(estimates.EstimatesRow(None, None)),
        usage.usage_document(UsageReport(0.0, 0.0)),
        simulate.simulation(Trace("", ()), (), {}),
        shadow.comparison_document(Comparison()),
        *(Listing(schema, columns, ()) for schema, columns in LISTS.items()),
    ]


def output_schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON Schemas by name (``provisioner.drones/1``)."""
    return {answer.schema: json_schema(answer) for answer in _sample_answers()}


def json_schema(answer: Listing | Document) -> dict[str, Any]:
    """Return the JSON Schema of what ``-o json`` writes for ``answer``, whatever its rows."""
    common = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": answer.schema,
        "type": "object",
    }
    version = {"schema": {"const": answer.schema}}
    if isinstance(answer, Listing):
        return common | _object(
            version | {"items": {"type": "array", "items": _row_schema(answer.columns)}}
        )
    facts = _row_schema(answer.facts)["properties"]
    parts = {
        key: {"type": "array", "items": _row_schema(part.columns)}
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
    from provisioner.config.schema import controller_schema, site_schema

    known: dict[str, Callable[[], Any]] = {"controller": controller_schema, "site": site_schema}
    known |= {answer.schema: partial(json_schema, answer) for answer in _sample_answers()}
    if name is None:
        sys.stdout.write("".join(f"{n}\n" for n in known))
        return
    if name not in known:
        raise options.unknown("schema", name, list(known))
    sys.stdout.write(json.dumps(known[name](), indent=2) + "\n")
    note(f"JSON Schema of {name}")
