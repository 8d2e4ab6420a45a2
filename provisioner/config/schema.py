"""JSON Schemas of the controller file and the site files, with the options of every adapter."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from provisioner import __version__, loader
from provisioner.config.models import ControllerFile, SiteFile

Json = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
DOCUMENTATION = "https://example.org/gpu-drone-provisioner/docs"
"""Address of the published documents, as in pyproject.toml."""


def schema_address(name: str) -> str:
    """Return the published address of the schema of a file, ``controller`` or ``site``, of this version."""
    return f"{DOCUMENTATION}/schemas/{__version__}/{name}.schema.json"


def controller_schema(*, shipped_only: bool = False) -> Json:
    """Return the schema of the controller file, with the options of every installed overlay adapter."""
    configs = adapter_configs(loader.OVERLAYS, shipped_only)
    return _schema("controller", ControllerFile, configs, "OverlaySection")


def site_schema(*, shipped_only: bool = False) -> Json:
    """Return the schema of a site file, with the options of every installed site adapter."""
    return _schema("site", SiteFile, adapter_configs(loader.SITES, shipped_only))


def adapter_configs(group: str, shipped_only: bool) -> dict[str, type[BaseModel]]:
    """Return the model of the options of each adapter of a group."""
    names = [
        name
        for name in loader.adapter_names(group)
        if not shipped_only or loader.is_shipped(group, name)
    ]
    return {name: loader.adapter(group, name).Config for name in names}


def _schema(
    name: str, top: type[BaseModel], configs: dict[str, type[BaseModel]], section: str = ""
) -> Json:
    """Return the schema of ``top``; in its ``section``, ``options`` beside ``adapter`` follow that adapter's schema."""
    references, generated = models_json_schema(
        [(model, "validation") for model in (top, *configs.values())]
    )
    definitions = generated["$defs"]
    body = definitions.pop(references[top, "validation"]["$ref"].rpartition("/")[2])
    schema = {"$schema": DIALECT, "$id": schema_address(name), **body, "$defs": definitions}
    place = definitions[section] if section else schema
    place["properties"]["adapter"]["enum"] = list(configs)
    options = place["properties"]["options"]
    place["properties"]["options"] = {"description": options["description"], "type": "object"}
    place["allOf"] = [
        {
            "if": {"properties": {"adapter": {"const": name}}, "required": ["adapter"]},
            "then": {
                "properties": {"options": references[config, "validation"]},
                "required": ["options"]
                if any(f.is_required() for f in config.model_fields.values())
                else [],
            },
        }
        for name, config in configs.items()
    ]
    return {**_written(schema), "title": f"GPU drone provisioner: {name} file"}


def _written(node: Any, is_names: bool = False) -> Any:
    """Return a schema without ``null``, which no file may hold, defaults in internal units, and generated titles.

    ``is_names``: the keys of ``node`` are names of properties, not words of JSON Schema.
    """
    if isinstance(node, list):
        return [_written(item) for item in node]
    if not isinstance(node, dict):
        return node
    if is_names:
        return {key: _written(value) for key, value in node.items()}
    if "patternProperties" in node:
        node = {"additionalProperties": False, **node}
    members = [member for member in node.get("anyOf", []) if member != {"type": "null"}]
    if len(members) == 1:
        node = {**members[0], **{key: value for key, value in node.items() if key != "anyOf"}}
    elif members:
        node = {**node, "anyOf": members}
    if "description" in node:
        node = {**node, "description": " ".join(node["description"].split())}
    return {
        key: _written(value, key in ("properties", "$defs", "patternProperties"))
        for key, value in node.items()
        if key not in ("default", "title")
    }


def schema_text(schema: Json) -> str:
    """Return the schema as it is committed."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
