"""OpenAPI document of the API, made from its routes, the options of the verbs and their JSON Schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from http import HTTPStatus
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from provisioner import __version__
from provisioner.cli.remote import API
from provisioner.cli.schema import output_schemas
from provisioner.web.api import CHANGE_RESOURCES, CONTENT_TYPES, MAX_WIDTH, MIN_WIDTH, Change, Resource

Json = dict[str, Any]

ANSWERS: Mapping[str, Sequence[str]] = {
    "status": ["provisioner.status/1"],
    "drones": ["provisioner.drones/1"],
    "drones show": ["provisioner.drone/1"],
    "sites": ["provisioner.sites/1"],
    "sites show": ["provisioner.site/1"],
    "demand": ["provisioner.demand/1"],
    "explain job": ["provisioner.class/1", "provisioner.job/1"],
    "explain class": ["provisioner.class/1"],
    "plan": ["provisioner.plan/1"],
    "events": ["provisioner.events/1"],
    "usage": ["provisioner.usage/1"],
    "estimates": ["provisioner.estimates/1"],
}
"""Schemas of what verbs answer."""
CHOSEN_COLUMNS: Json = {
    "description": "Rows with the columns that were asked for.",
    "type": "object",
    "properties": {"schema": {"type": "string"}, "items": {"type": "array", "items": {"type": "object"}}},
    "required": ["schema", "items"],
}
PROBLEM: Json = {
    "description": "Problem details (RFC 9457).",
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "exit_code": {"type": "integer", "description": "Of the command line for the same mistake."},
    },
    "required": ["type", "title", "status"],
}
REQUESTED: Json = {
    "type": "object",
    "properties": {
        "request": {"type": "integer", "description": "Its number on record."},
        "said": {"type": "string", "description": "The same in words."},
        "controller_runs": {"type": "boolean", "description": "Is there a controller to carry it out?"},
    },
    "required": ["request", "said", "controller_runs"],
}
SERIES: Json = {
    "type": "object",
    "properties": {
        "metric": {"type": "string"},
        "series": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "labels": {"type": "object"},
                    "step_s": {"type": "number", "description": "Length of the intervals."},
                    "points": {"type": "array", "description": "Begin of the interval, and the value in it."},
                },
                "required": ["labels", "step_s", "points"],
            },
        },
    },
    "required": ["metric", "series"],
}
TEXT: Json = {"type": "string"}
SUBJECT: Json = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def document(resources: Sequence[Resource]) -> Json:
    """Return the OpenAPI 3.1 document."""
    schemas = {_component(name): {k: v for k, v in s.items() if k != "$schema"} for name, s in output_schemas().items()}
    schemas |= {"problem": PROBLEM, "requested": REQUESTED, "columns": CHOSEN_COLUMNS}
    bodies: list[tuple[type[BaseModel], Literal["validation"]]] = [
        (c.body, "validation") for c in CHANGE_RESOURCES.values()
    ]
    schemas |= models_json_schema(bodies, ref_template="#/components/schemas/{model}")[1]["$defs"]
    paths: dict[str, Json] = {resource.path: {"get": _reading(resource)} for resource in resources}
    for path, change in CHANGE_RESOURCES.items():
        paths[f"{API}{path}"] = {"post": _changing(path, change)}
    paths |= {f"{API}{path}": {"get": each} for path, each in _others().items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "GPU drone provisioner",
            "version": __version__,
            "description": "The verbs of the command line as resources. Answers are as those of `-o json`.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
        "security": [{}, {"token": []}],
    }


def _component(name: str) -> str:
    return name.removeprefix("provisioner.").replace("/", "-")


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _answers(ok: HTTPStatus, body: Json, *problems: HTTPStatus) -> Json:
    """Return the responses of an operation: success with ``body`` by content type, and problems."""
    always = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.MISDIRECTED_REQUEST)
    found: Json = {str(ok.value): {"description": ok.phrase, "content": body}}
    content = {"application/problem+json": {"schema": _ref("problem")}}
    for status in (*always, *problems, HTTPStatus.SERVICE_UNAVAILABLE):
        found[str(status.value)] = {"description": status.phrase, "content": content}
    return found


def _reading(resource: Resource) -> Json:
    schemas = [_ref(_component(name)) for name in ANSWERS[resource.verb]]
    schemas += [_ref("columns")] if "columns" in resource.options else []
    body: Json = {kind: {"schema": TEXT} for kind in dict.fromkeys(CONTENT_TYPES.values())}
    body["application/json"] = body["application/yaml"] = {"schema": {"anyOf": schemas}}
    body["application/jsonl"] = {"schema": {"type": "object"}}
    kinds = get_type_hints(resource.command.callback)
    page = [
        {"name": "width", "in": "query", "schema": {"type": "integer", "minimum": MIN_WIDTH, "maximum": MAX_WIDTH}},
        {"name": "color", "in": "query", "schema": {"type": "boolean"}},
    ]
    found = _answers(HTTPStatus.OK, body, HTTPStatus.NOT_FOUND)
    found["304"] = {"description": "Nothing new is on record since the answer with this ETag."}
    return {
        "operationId": resource.verb.replace(" ", "-"),
        "summary": (resource.command.help or "").strip().partition("\n")[0],
        "parameters": [
            *([SUBJECT] if "{id}" in resource.path else []),
            *(_parameter(name, option, kinds[option.name]) for name, option in resource.options.items()),
            *page,
        ],
        "responses": found,
    }


def _parameter(name: str, option: Any, annotation: Any) -> Json:
    """Return the parameter of an option, whose annotation is as ``int | None`` or ``list[str] | None``."""
    kind = next(each for each in (*get_args(annotation), annotation) if each is not type(None))
    inner = get_args(kind)[0] if get_origin(kind) is list else kind
    schema: Json = {"type": {bool: "boolean", int: "integer"}.get(inner, "string")}
    if inner is int:
        schema |= {"minimum": 0, "maximum": 10**9}
    elif issubclass(inner, Enum):
        schema = {"enum": [each.value for each in inner]}
    if inner is not kind:
        schema = {"type": "array", "items": schema}
    return {"name": name, "in": "query", "description": option.help or "", "schema": schema}


def _changing(path: str, change: Change) -> Json:
    body = {"application/json": {"schema": _ref("requested")}}
    of_body = (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    return {
        "operationId": path.strip("/").replace("/{id}/", "-"),
        "summary": change.doc,
        "description": "Recorded now, with the reason and who asked; carried out at the controller's next tick.",
        "parameters": [SUBJECT] if "{id}" in path else [],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _ref(change.body.__name__)}},
        },
        "responses": _answers(HTTPStatus.ACCEPTED, body, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, *of_body),
    }


def _others() -> dict[str, Json]:
    names = {"application/json": {"schema": {"type": "array", "items": TEXT}}}
    schema = {"application/schema+json": {"schema": {"type": "object"}}}
    stream = {"text/event-stream": {"schema": TEXT}}
    last = {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string", "pattern": r"^\d{1,18}\.\d{1,18}$"}}
    asked = [{"name": name, "in": "query", "schema": TEXT} for name in ("since", "step")]
    metric = {"name": "metric", "in": "query", "required": True, "schema": TEXT}
    return {
        "/series": {
            "summary": "Return the time series of a metric: `since` an age as 1d, in steps of a duration as 5min.",
            "parameters": [metric, *asked],
            "responses": _answers(HTTPStatus.OK, {"application/json": {"schema": SERIES}}, HTTPStatus.NOT_FOUND),
        },
        "/schemas": {"summary": "List the schemas of answers.", "responses": _answers(HTTPStatus.OK, names)},
        "/schemas/{id}": {
            "summary": "Return the JSON Schema of an answer.",
            "parameters": [SUBJECT],
            "responses": _answers(HTTPStatus.OK, schema, HTTPStatus.NOT_FOUND),
        },
        "/events/stream": {
            "summary": "Follow the steps of drones and the events of the controller (server-sent events).",
            "parameters": [last],
            "responses": _answers(HTTPStatus.OK, stream),
        },
    }
