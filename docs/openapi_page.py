"""The OpenAPI document of the web service as Markdown, for the site: static, without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from provisioner.web.openapi import document

Json = dict[str, Any]


def page() -> str:
    """Return the resources by path, then the schemas of bodies of requests and answers."""
    described = document()
    lines: list[str] = []
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            lines += _operation(method.upper(), path, operation)
    lines += ["## Bodies", ""]
    for name, schema in described["components"]["schemas"].items():
        lines += _schema(name, schema)
    return "\n".join(lines)


def _operation(method: str, path: str, operation: Json) -> Iterator[str]:
    yield from [f"## `{method} {path}`", "", operation["summary"], ""]
    if "description" in operation:
        yield from [operation["description"], ""]
    for parameter in operation.get("parameters", ()):
        required = "; required" if parameter.get("required") else ""
        words = f"{parameter['in']}, {_kind(parameter['schema'])}{required}"
        yield f"- `{parameter['name']}` ({words}): {parameter.get('description', '')}".rstrip(": ")
    body = operation.get("requestBody")
    if body:
        yield f"- Body: {_kind(body['content']['application/json']['schema'])}"
    for status, answer in sorted(operation["responses"].items()):
        if int(status) < HTTPStatus.BAD_REQUEST:
            contents = answer.get("content", {})
            kinds = ", ".join(f"`{kind}`" for kind in contents)
            schema = contents.get("application/json", {}).get("schema")
            of = f", {_kind(schema)}" if schema else ""
            yield f"- Answer {status}{of}: {kinds or answer['description']}"
    errors = [status for status in operation["responses"] if int(status) >= HTTPStatus.BAD_REQUEST]
    yield from [f"- Errors: {', '.join(sorted(errors))}", ""]


def _schema(name: str, schema: Json) -> Iterator[str]:
    yield from [f"### `{name}`", ""]
    if "description" in schema:
        yield from [" ".join(schema["description"].split()), ""]
    required = schema.get("required", [])
    for key, value in schema.get("properties", {}).items():
        words = _kind(value) + ("; required" if key in required else "")
        yield f"- `{key}` ({words}): {' '.join(value.get('description', '').split())}".rstrip(": ")
    yield ""


def _kind(schema: Json) -> str:
    """Return the type of a value in words, with links to the schemas that it names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[`{name}`](#{name.lower()})"
    several = schema.get("anyOf") or schema.get("oneOf")
    if several:
        return " or ".join(dict.fromkeys(map(_kind, several)))
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    kind = schema.get("type", "value")
    kind = " or ".join(kind) if isinstance(kind, list) else kind
    return f"array of {_kind(schema['items'])}" if "items" in schema else str(kind)
