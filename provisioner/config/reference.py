"""The reference of all options, made from the models.

``python -m provisioner.config.reference --write docs/reference`` renews the committed page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from provisioner import loader
from provisioner.config.explain import flow
from provisioner.config.fields import arms, fields_of, in_words, unit_of
from provisioner.config.models import ControllerFile, SiteFile
from provisioner.config.units import Secret

FILE = "configuration.md"

INTRODUCTION = """\
<!-- Generated from provisioner/config/models.py and the adapters' own models by
     `python -m provisioner.config.reference --write docs/reference`. Do not edit. -->

# Configuration

One controller file, and one file per site that it lists under `sites`. `provisioner check FILE` tells every mistake in
all of them at once, as `file:line:col: what is wrong, and what to write instead`; it takes a site file alone as well.
Editors that know JSON Schema can use [controller.schema.json](controller.schema.json) and
[site.schema.json](site.schema.json). Commented examples are in `site_configs/`.

## Values

| Value | Write | Not |
|---|---|---|
| size | `512 MiB`, `20 GiB`, `20 GB`, also B, kB, MB, TB, KiB, TiB; rounded up to whole MiB | `20`, `20G` |
| duration | `30s`, `10min`, `2h30m`, `1d`, `250ms`, also w and m; the largest unit first | `30`, `12:30` |
| GPUs | `1`, `4`, `0.5` (steps of 0.001) | `0.3333` |
| number | `8.0` | `"8.0.1"`, `.5`, `1_000`, `.inf` |
| version in quotes | `"12.4"` | `12.4` |
| name | small letters, digits, `-` inside, at most 63 characters | `My_Site` |
| truth value | `true`, `false` | `yes`, `no`, `on`, `off` |
| path | `/var/lib/x`, `~/x`, or relative to the directory of the file in which it stands | |
| secret by reference | `{file: /run/token}` or `{env: POOL_TOKEN}`; read anew each time | the secret itself |

YAML is read strictly: no key twice, no unknown key, no empty value, no octal or base-60 number, no date. Anchors,
aliases and `<<` work. The adapters' own options are described at the end.
"""


def reference() -> str:
    """The whole page, for the adapters that come with this distribution."""
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
    """A table of the model's own keys, then one for each mapping below it."""
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
    for arm in arms(annotation):
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
    """The field's own example; for an adapter that gives none, the default, or what such a value looks like."""
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


def main(arguments: list[str]) -> int:
    """Write the page into the directory after ``--write``, or to standard output."""
    match arguments:
        case ["--write", directory]:
            (Path(directory) / FILE).write_text(reference(), encoding="utf-8")
        case []:
            sys.stdout.write(reference())
        case _:
            print("usage: python -m provisioner.config.reference [--write DIRECTORY]", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
