"""OpenAPI document of the API, made from its routes, the options of the verbs and their JSON Schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from http import HTTPStatus
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from provisioner import __version__
from provisioner.cli.remote import API
from provisioner.cli.schema import output_schemas
from provisioner.web import api
from provisioner.web.api import CONTENT_TYPES, TEXT_TYPE, Change, Resource

Json = dict[str, Any]

ANSWERS: Mapping[str, Sequence[str]] = {
    "drones show": ["provisioner.drone/1"],
    "sites show": ["provisioner.site/1"],
    "explain job": ["provisioner.class/1", "provisioner.job/1"],
    "explain class": ["provisioner.class/1"],
}
"""Schemas of what verbs answer that have another name than the verb."""
CHOSEN_COLUMNS: Json = {
    "description": "Rows with the columns that were asked for.",
    "type": "object",
    "properties": {
        "schema": {"type": "string"},
        "items": {"type": "array", "items": {"type": "object"}},
    },
    "required": ["schema", "items"],
}
TEXT: Json = {"type": "string"}
SUBJECT: Json = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
}


def document(resources: Sequence[Resource]) -> Json:
    """Return the OpenAPI 3.1 document."""
    schemas = {
        _component(name): {k: v for k, v in s.items() if k != "$schema"}
        for name, s in output_schemas().items()
    }
    bodies: list[type[BaseModel]] = [change.body for change in api.CHANGE_RESOURCES]
    bodies += [api.RecordedRequest, api.SeriesAnswer, api.ProblemDetails]
    template = "#/components/schemas/{model}"
    schemas |= models_json_schema([(body, "validation") for body in bodies], ref_template=template)[
        1
    ]["$defs"]
    paths: dict[str, Json] = {resource.path: {"get": _reading(resource)} for resource in resources}
    paths |= {f"{API}{change.path}": {"post": _changing(change)} for change in api.CHANGE_RESOURCES}
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
            "schemas": {**schemas, "columns": CHOSEN_COLUMNS},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
            },
        },
        "security": [{}, {"token": []}],
    }


def _component(name: str) -> str:
    return name.removeprefix("provisioner.").replace("/", "-")


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _operation(
    summary: str, body: Json, *problems: HTTPStatus, ok: HTTPStatus = HTTPStatus.OK, **more: Any
) -> Json:
    """Return an operation with its responses: success with a body by content type, and problems."""
    always = (
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.MISDIRECTED_REQUEST,
    )
    content = {"application/problem+json": {"schema": _ref("ProblemDetails")}}
    responses: Json = {str(ok.value): {"description": ok.phrase, "content": body}}
    for status in (*always, *problems, HTTPStatus.SERVICE_UNAVAILABLE):
        responses[str(status.value)] = {"description": status.phrase, "content": content}
    return {"summary": summary, "responses": responses, **more}


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _reading(resource: Resource) -> Json:
    names = ANSWERS.get(resource.verb, [f"provisioner.{resource.verb}/1"])
    schemas = [_ref(_component(name)) for name in names]
    schemas += [_ref("columns")] if "columns" in resource.options else []
    body: Json = {kind: {"schema": TEXT} for kind in (*CONTENT_TYPES.values(), TEXT_TYPE)}
    body["application/json"] = body["application/yaml"] = {"schema": {"anyOf": schemas}}
    body["application/jsonl"] = {"schema": {"type": "object"}}
    kinds = get_type_hints(resource.command.callback)
    width = {"type": "integer", "minimum": api.MIN_WIDTH, "maximum": api.MAX_WIDTH}
    parameters = [
        *([SUBJECT] if "{id}" in resource.path else []),
        *(
            _parameter(name, option, kinds[option.name])
            for name, option in resource.options.items()
        ),
        _query("width", width),
        _query("color", {"type": "boolean"}),
    ]
    summary = (resource.command.help or "").strip().partition("\n")[0]
    operation_id = resource.verb.replace(" ", "-")
    found = _operation(
        summary, body, HTTPStatus.NOT_FOUND, operationId=operation_id, parameters=parameters
    )
    found["responses"]["304"] = {
        "description": "Nothing new is on record since the answer with this ETag."
    }
    return found


def _query(name: str, schema: Json = TEXT, **more: Any) -> Json:
    return {"name": name, "in": "query", "schema": schema, **more}


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
    return _query(name, schema, description=option.help or "")


def _changing(change: Change) -> Json:
    of_body = (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    return _operation(
        change.doc,
        _json(_ref("RecordedRequest")),
        *(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, *of_body),
        ok=HTTPStatus.ACCEPTED,
        operationId=change.path.strip("/").replace("/{id}/", "-"),
        description="Recorded now, with the reason and who asked; carried out at the controller's next tick.",
        parameters=[SUBJECT] if "{id}" in change.path else [],
        requestBody={"required": True, "content": _json(_ref(change.body.__name__))},
    )


def _others() -> dict[str, Json]:
    last = {
        "name": "Last-Event-ID",
        "in": "header",
        "schema": {"type": "string", "pattern": r"^\d{1,18}\.\d{1,18}$"},
    }
    return {
        "/series": _operation(
            "Return the time series of a metric: `since` an age as 1d, in steps of a duration as 5min.",
            _json(_ref("SeriesAnswer")),
            HTTPStatus.NOT_FOUND,
            parameters=[_query("metric", required=True), _query("since"), _query("step")],
        ),
        "/schemas": _operation(
            "List the schemas of answers.", _json({"type": "array", "items": TEXT})
        ),
        "/schemas/{id}": _operation(
            "Return the JSON Schema of an answer.",
            {"application/schema+json": {"schema": {"type": "object"}}},
            HTTPStatus.NOT_FOUND,
            parameters=[SUBJECT],
        ),
        "/events/stream": _operation(
            "Follow the steps of drones and the events of the controller (server-sent events).",
            {"text/event-stream": {"schema": TEXT}},
            parameters=[last],
        ),
    }
