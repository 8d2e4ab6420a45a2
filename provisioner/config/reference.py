"""The reference of all options: the page configuration.md and the JSON Schemas, generated from the models.

``python -m provisioner.config.reference --write docs/reference`` renews the committed files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import models_json_schema
from pydantic_core import PydanticUndefined

from provisioner import loader
from provisioner.config.messages import fields_of, flow, in_words, union_members, unit_of
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
    for kind, group, names, adapter in (
        ("Overlay", loader.OVERLAYS, loader.overlay_adapters(), loader.overlay_adapter),
        ("Site", loader.SITES, loader.site_adapters(), loader.site_adapter),
    ):
        for name in names:
            if loader.is_shipped(group, name):
                parts.append(f"## {kind} adapter `{name}`: `options`\n")
                parts += _sections(adapter(name).Config, "options")
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
    for arm in union_members(annotation):
        if isinstance(arm, type) and issubclass(arm, BaseModel) and arm is not Secret:
            yield arm, ""
        inner = getattr(arm, "__args__", ())
        if inner and getattr(arm, "__origin__", None) in (dict, list, tuple):
            for model, suffix in _models_below(inner[1] if arm.__origin__ is dict else inner[0]):
                yield model, (".NAME" if arm.__origin__ is dict else "[]") + suffix


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
    return f"`{unit[1](value)}`" if value or unit[0] in ("duration", "GPUs") else ""


# --------------------------------------------------------------------------------------------------------- JSON Schemas

Json = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def controller_schema(*, shipped_only: bool = False) -> Json:
    """Return the schema of the controller file, with the options of every installed overlay adapter."""
    configs = _configs(loader.OVERLAYS, loader.overlay_adapters(), loader.overlay_adapter, shipped_only)
    schema, options = _joint_schema(ControllerFile, configs, "GPU drone provisioner: controller file")
    _branch_on_adapter(schema["$defs"]["OverlaySection"], configs, options)
    return _finished(schema)


def site_schema(*, shipped_only: bool = False) -> Json:
    """Return the schema of a site file, with the options of every installed site adapter."""
    configs = _configs(loader.SITES, loader.site_adapters(), loader.site_adapter, shipped_only)
    schema, options = _joint_schema(SiteFile, configs, "GPU drone provisioner: site file")
    _branch_on_adapter(schema, configs, options)
    return _finished(schema)


def _configs(
    group: str, names: tuple[str, ...], adapter: Callable[[str], Any], shipped_only: bool
) -> dict[str, type[BaseModel]]:
    return {name: adapter(name).Config for name in names if not shipped_only or loader.is_shipped(group, name)}


def _joint_schema(top: type[BaseModel], configs: dict[str, type[BaseModel]], title: str) -> tuple[Json, Json]:
    """Return the schema of ``top``, with those of ``configs`` as definitions, and the reference to each by adapter."""
    references, definitions = models_json_schema([(model, "validation") for model in (top, *configs.values())])
    body = definitions["$defs"].pop(references[top, "validation"]["$ref"].rpartition("/")[2])
    schema = {"$schema": DIALECT, **body, "title": title, "$defs": definitions["$defs"]}
    return schema, {name: references[config, "validation"] for name, config in configs.items()}


def _branch_on_adapter(section: Json, configs: dict[str, type[BaseModel]], options: Json) -> None:
    """Validate ``options`` beside ``adapter`` with that adapter's own schema."""
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
    """Remove ``null``, which no file may hold, defaults in internal units, and generated titles."""
    finished = _plain(schema)
    assert isinstance(finished, dict)
    return {**finished, "title": schema["title"]}


def _plain(node: Any, is_names: bool = False) -> Any:
    """Return ``node`` without them. ``is_names``: its keys are names of properties, not words of JSON Schema."""
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


def schema_text(schema: Json) -> str:
    """Return the schema as it is committed."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    """Write the page and the schemas into the directory after ``--write``, or the page to standard output."""
    match arguments:
        case ["--write", directory]:
            for name, text in (
                ("configuration.md", reference()),
                ("controller.schema.json", schema_text(controller_schema(shipped_only=True))),
                ("site.schema.json", schema_text(site_schema(shipped_only=True))),
            ):
                (Path(directory) / name).write_text(text, encoding="utf-8")
        case []:
            sys.stdout.write(reference())
        case _:
            print("usage: python -m provisioner.config.reference [--write DIRECTORY]", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
