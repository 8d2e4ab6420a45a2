"""JSON Schemas of everything that ``-o json`` writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from provisioner.answers import (
    QUESTIONS,
    files,
    load_question,
    migration,
    plan,
    queue,
    shadow,
    simulation,
)
from provisioner.answers.columns import Answer, Column, Document, Listing
from provisioner.descriptions import ClassNames
from provisioner.model import Plan
from provisioner.simulator.shadow import Comparison
from provisioner.simulator.traces import Trace


def _samples() -> Iterator[Answer]:
    """Yield each kind of answer without rows, on which no schema depends."""
    for words in QUESTIONS:
        yield from load_question(words).samples()
    empty = Plan(1, 1.0)
    yield plan.plan_diff_document(empty, empty, "", ClassNames(None))
    yield simulation.simulation(Trace("", ()), (), {})
    yield shadow.comparison_document(Comparison())
    yield Listing(plan.SNAPSHOTS_SCHEMA, plan.SNAPSHOT_COLUMNS, ())
    yield Listing(files.PROBLEMS_SCHEMA, files.PROBLEM_COLUMNS, ())
    yield Listing(files.PROBES_SCHEMA, files.PROBE_COLUMNS, ())
    yield Listing(queue.JOBS_SCHEMA, queue.QUEUE_COLUMNS, ())
    yield Listing(migration.IMPORT_SCHEMA, migration.FINDING_COLUMNS, ())


def output_schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON Schemas by name (``provisioner.drones/1``)."""
    return {answer.schema: json_schema(answer) for answer in _samples()}


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
