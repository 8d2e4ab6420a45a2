"""JSON Schemas of the controller file and the site file, made from the models and the adapters' ``Config``.

``python -m provisioner.config.schema --write docs/reference`` renews the committed files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from provisioner import loader
from provisioner.config.models import ControllerFile, SiteFile

Json = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def controller_schema(*, shipped_only: bool = False) -> Json:
    """Schema of the controller file, with the options of every installed overlay adapter."""
    configs = _configs(loader.OVERLAYS, loader.overlay_adapters(), loader.overlay_adapter, shipped_only)
    schema, options = _schema(ControllerFile, configs, "GPU drone provisioner: controller file")
    _branch_on_adapter(schema["$defs"]["OverlaySection"], configs, options)
    return _finished(schema)


def site_schema(*, shipped_only: bool = False) -> Json:
    """Schema of a site file, with the options of every installed site adapter."""
    configs = _configs(loader.SITES, loader.site_adapters(), loader.site_adapter, shipped_only)
    schema, options = _schema(SiteFile, configs, "GPU drone provisioner: site file")
    _branch_on_adapter(schema, configs, options)
    return _finished(schema)


def _configs(
    group: str, names: tuple[str, ...], adapter: Callable[[str], Any], shipped_only: bool
) -> dict[str, type[BaseModel]]:
    return {name: adapter(name).Config for name in names if not shipped_only or loader.is_shipped(group, name)}


def _schema(top: type[BaseModel], configs: dict[str, type[BaseModel]], title: str) -> tuple[Json, Json]:
    """The schema of ``top`` with those of ``configs`` among its definitions, and by adapter a reference to its own."""
    references, definitions = models_json_schema([(model, "validation") for model in (top, *configs.values())])
    body = definitions["$defs"].pop(references[top, "validation"]["$ref"].rpartition("/")[2])
    schema = {"$schema": DIALECT, **body, "title": title, "$defs": definitions["$defs"]}
    return schema, {name: references[config, "validation"] for name, config in configs.items()}


def _branch_on_adapter(section: Json, configs: dict[str, type[BaseModel]], options: Json) -> None:
    """Let ``options`` beside ``adapter`` be judged by that adapter's own schema."""
    section["properties"]["adapter"]["enum"] = list(configs)
    section["properties"]["options"] = {
        "description": section["properties"]["options"]["description"],
        "type": "object",
    }
    section["allOf"] = [
        {
            "if": {"properties": {"adapter": {"const": name}}, "required": ["adapter"]},
            "then": {
                "properties": {"options": options[name]},
                "required": ["options"] if any(f.is_required() for f in config.model_fields.values()) else [],
            },
        }
        for name, config in configs.items()
    ]


def _finished(schema: Json) -> Json:
    """Without ``null``, which no file may hold, inner defaults, which are in inner units, and generated titles."""
    finished = _plain(schema)
    assert isinstance(finished, dict)
    return {**finished, "title": schema["title"]}


def _plain(node: Any, is_names: bool = False) -> Any:
    """``is_names``: the keys of ``node`` are names of properties, not words of JSON Schema."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    if is_names:
        return {key: _plain(value) for key, value in node.items()}
    if "patternProperties" in node:
        node = {"additionalProperties": False, **node}
    arms = [arm for arm in node.get("anyOf", []) if arm != {"type": "null"}]
    if len(arms) == 1:
        node = {**arms[0], **{key: value for key, value in node.items() if key != "anyOf"}}
    elif arms:
        node = {**node, "anyOf": arms}
    return {
        key: _plain(value, key in ("properties", "$defs", "patternProperties"))
        for key, value in node.items()
        if key not in ("default", "title")
    }


FILES = {"controller.schema.json": controller_schema, "site.schema.json": site_schema}


def text_of(schema: Json) -> str:
    """The schema as it is committed."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    """Write both schemas into the directory after ``--write``, or to standard output."""
    match arguments:
        case ["--write", directory]:
            for name, make in FILES.items():
                (Path(directory) / name).write_text(text_of(make(shipped_only=True)), encoding="utf-8")
        case []:
            for make in FILES.values():
                sys.stdout.write(text_of(make()))
        case _:
            print("usage: python -m provisioner.config.schema [--write DIRECTORY]", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
