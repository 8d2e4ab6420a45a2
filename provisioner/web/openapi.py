"""OpenAPI document of the API, made from the questions, their queries and the JSON Schemas of the answers."""

from __future__ import annotations

from enum import Enum
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from provisioner import __version__
from provisioner.answers import QUESTIONS, load_question
from provisioner.answers.query import API, Parameter, RecordQuestion, parameters
from provisioner.answers.schemas import output_schemas
from provisioner.web import api
from provisioner.web.api import CONTENT_TYPES, TEXT_TYPE, Change

Json = dict[str, Any]

CHOSEN_COLUMNS: Json = {
    "description": "Rows with the requested columns.",
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


def document() -> Json:
    """Return the OpenAPI 3.1 document."""
    questions = list(map(load_question, QUESTIONS))
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
    paths: dict[str, Json] = {f"{API}{each.path}": {"get": _reading(each)} for each in questions}
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


def _reading(question: RecordQuestion) -> Json:
    schemas = [_ref(_component(sample.schema)) for sample in question.samples()]
    schemas.append(_ref("columns"))
    body: Json = {kind: {"schema": TEXT} for kind in (*CONTENT_TYPES.values(), TEXT_TYPE)}
    body["application/json"] = body["application/yaml"] = {"schema": {"anyOf": schemas}}
    body["application/jsonl"] = {"schema": {"type": "object"}}
    options = map(_parameter, (*parameters(question.query), *parameters(api.Width)))
    summary = question.help.strip().partition("\n")[0]
    operation_id = question.verb.replace(" ", "-")
    found = _operation(
        summary, body, HTTPStatus.NOT_FOUND, operationId=operation_id, parameters=[*options]
    )
    found["responses"]["304"] = {
        "description": "The record has not changed since the answer with this ETag."
    }
    return found


def _query(name: str, schema: Json = TEXT, **more: Any) -> Json:
    return {"name": name, "in": "query", "schema": schema, **more}


def _parameter(of: Parameter) -> Json:
    """Return the parameter of a field of a query."""
    if of.option.is_subject:
        return SUBJECT
    schema: Json = {"type": {bool: "boolean", int: "integer"}.get(of.kind, "string")}
    if of.kind is int:
        least, most = of.bounds
        schema |= {"minimum": least, "maximum": most}
    elif issubclass(of.kind, Enum):
        schema = {"enum": [each.value for each in of.kind]}
    if of.is_list:
        schema = {"type": "array", "items": schema}
    return _query(of.name, schema, description=of.option.help)


def _changing(change: Change) -> Json:
    of_body = (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    return _operation(
        change.doc,
        _json(_ref("RecordedRequest")),
        *(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, *of_body),
        ok=HTTPStatus.ACCEPTED,
        operationId=change.path.strip("/").replace("/{id}/", "-"),
        description="Request recorded with its reason and author; the controller carries it out at its next tick.",
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
