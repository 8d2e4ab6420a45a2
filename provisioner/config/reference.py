"""The reference of all options: the page configuration.md and the JSON Schemas, generated from the models.

``python -m provisioner.config.reference --write docs/reference`` renews the committed files.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import models_json_schema
from pydantic_core import PydanticUndefined

from provisioner import loader
from provisioner.config.messages import fields_of, flow, in_words, is_model, union_members, unit_of
from provisioner.config.models import ControllerFile, SiteFile
from provisioner.config.units import Secret

INTRODUCTION = """\
<!-- Generated from provisioner/config/models.py and the adapters' own models by
     `python -m provisioner.config.reference --write docs/reference`. Do not edit. -->

# Configuration

There is one controller file, and one file for each site that it lists under `sites`. `provisioner check FILE` reports
every mistake in all of them at once, as `file:line:col: what is wrong: what to write instead`; it accepts a single site
file too. Editors that support JSON Schema can use [controller.schema.json](controller.schema.json) and
[site.schema.json](site.schema.json). Commented examples are in `site_configs/`.

## Values

| Value | Write | Not |
|---|---|---|
| size | `512 MiB`, `20 GiB`, `20 GB`, also B, kB, MB, TB, KiB, TiB; rounded up to whole MiB | `20`, `20G` |
| duration | `30s`, `10min`, `2h30m`, `1d`, `250ms`, also w and m; the largest unit first | `30`, `12:30` |
| GPUs | `1`, `4`, `0.5` (steps of 0.001) | `0.3333` |
| number | `8.0` | `"8.0.1"`, `.5`, `1_000`, `.inf` |
| version in quotes | `"12.4"` | `12.4` |
| name | lower-case letters, digits, `-` inside, at most 63 characters | `My_Site` |
| boolean | `true`, `false` | `yes`, `no`, `on`, `off` |
| path | `/var/lib/x`, `~/x`, or relative to the directory of the file that contains it | |
| secret by reference | `{file: /run/token}` or `{env: POOL_TOKEN}`; read at each use | the secret itself |

YAML is read strictly: no duplicate or unknown keys, no empty values, no octal or base-60 numbers, no dates. Anchors,
aliases and `<<` are supported. The options of each adapter are described at the end.
"""


def reference() -> str:
    """Return the page, with the adapters of this distribution."""
    parts = [INTRODUCTION, "## Controller file\n", *_sections(ControllerFile, "")]
    parts += ["## Site file\n", *_sections(SiteFile, "")]
    for kind, group in (("Overlay", loader.OVERLAYS), ("Site", loader.SITES)):
        for name, config in _configs(group, shipped_only=True).items():
            parts += [f"## {kind} adapter `{name}`: `options`\n", *_sections(config, "options")]
    return "\n".join(parts)


def _sections(model: type[BaseModel], path: str) -> Iterator[str]:
    """Yield a table of the model's own keys, then one for each mapping below it."""
    if path not in ("", "options"):
        yield f"### `{path}`\n"
    doc = (model.__doc__ or "").strip().partition("\n\n")[0].replace("``", "`")
    if doc:
        yield f"{' '.join(doc.split())}\n"
    rows = [_row(key, field) for key, field in fields_of(model).items()]
    yield "\n".join(["| Key | Value | Default | Meaning | Example |", "|---|---|---|---|---|", *rows]) + "\n"
    for key, field in fields_of(model).items():
        for below, suffix in _models_below(field.annotation):
            yield from _sections(below, f"{path}.{key}{suffix}".lstrip("."))


def _models_below(annotation: Any) -> Iterator[tuple[type[BaseModel], str]]:
    for member in union_members(annotation):
        origin = get_origin(member)
        if is_model(member) and member is not Secret:
            yield member, ""
        elif origin in (dict, list, tuple):
            mark = ".NAME" if origin is dict else "[]"
            for model, suffix in _models_below(get_args(member)[1 if origin is dict else 0]):
                yield model, mark + suffix


def _row(key: str, field: FieldInfo) -> str:
    cells = (
        f"`{key}`",
        in_words(field.annotation, field.metadata),
        _default(field),
        " ".join((field.description or "").split()),
        _example(key, field),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


_EXAMPLES = {
    "size": "20 GiB",
    "duration": "10min",
    "path": "/var/lib/provisioner",
    "secret by reference": "{file: /etc/provisioner/token}",
    "whole number": "1",
    "text": '"..."',
    "mapping of text": '{NAME: "..."}',
}


def _example(key: str, field: FieldInfo) -> str:
    """Return the field's own example; without one, the default, or a typical value of its type."""
    if field.examples:
        return f"`{key}: {flow(field.examples[0])}`"
    text = _default(field).strip("`") if not field.is_required() else ""
    text = text or _EXAMPLES.get(in_words(field.annotation, field.metadata), "")
    return f"`{key}: {text}`" if text else ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is PydanticUndefined or value is None or value in ("", (), [], {}):
        return ""
    unit = unit_of(field.annotation, field.metadata)
    if unit is None:
        return f"`{flow(getattr(value, 'value', value))}`"
    return f"`{unit.format(value)}`" if value or unit.name in ("duration", "GPUs") else ""


# --------------------------------------------------------------------------------------------------------- JSON Schemas

Json = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def controller_schema(*, shipped_only: bool = False) -> Json:
    """Return the schema of the controller file, with the options of every installed overlay adapter."""
    configs = _configs(loader.OVERLAYS, shipped_only)
    return _schema(ControllerFile, configs, "GPU drone provisioner: controller file", "OverlaySection")


def site_schema(*, shipped_only: bool = False) -> Json:
    """Return the schema of a site file, with the options of every installed site adapter."""
    return _schema(SiteFile, _configs(loader.SITES, shipped_only), "GPU drone provisioner: site file")


def _configs(group: str, shipped_only: bool) -> dict[str, type[BaseModel]]:
    if group == loader.SITES:
        configs = {name: loader.site_adapter(name).Config for name in loader.site_adapters()}
    else:
        configs = {name: loader.overlay_adapter(name).Config for name in loader.overlay_adapters()}
    return {name: each for name, each in configs.items() if not shipped_only or loader.is_shipped(group, name)}


def _schema(top: type[BaseModel], configs: dict[str, type[BaseModel]], title: str, section: str = "") -> Json:
    """Return the schema of ``top``; in its ``section``, ``options`` beside ``adapter`` follow that adapter's schema."""
    references, generated = models_json_schema([(model, "validation") for model in (top, *configs.values())])
    definitions = generated["$defs"]
    body = definitions.pop(references[top, "validation"]["$ref"].rpartition("/")[2])
    schema = {"$schema": DIALECT, **body, "$defs": definitions}
    place = definitions[section] if section else schema
    place["properties"]["adapter"]["enum"] = list(configs)
    options = place["properties"]["options"]
    place["properties"]["options"] = {"description": options["description"], "type": "object"}
    place["allOf"] = [
        {
            "if": {"properties": {"adapter": {"const": name}}, "required": ["adapter"]},
            "then": {
                "properties": {"options": references[config, "validation"]},
                "required": ["options"] if any(f.is_required() for f in config.model_fields.values()) else [],
            },
        }
        for name, config in configs.items()
    ]
    return {**_written(schema), "title": title}


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


def main() -> None:
    """Write the page and the schemas into a directory."""
    parser = argparse.ArgumentParser(prog="python -m provisioner.config.reference", description=main.__doc__)
    parser.add_argument("--write", type=Path, required=True, metavar="DIRECTORY")
    directory: Path = parser.parse_args().write
    (directory / "configuration.md").write_text(reference(), encoding="utf-8")
    for name, schema in (("controller", controller_schema), ("site", site_schema)):
        text = schema_text(schema(shipped_only=True))
        (directory / f"{name}.schema.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
