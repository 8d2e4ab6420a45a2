"""The reference of the configuration: a page for each file and adapter, made from their models."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from adapters.shared.commands.settings import SshSettings
from provisioner import loader
from provisioner.config.messages import fields_of, flow, is_model, union_members
from provisioner.config.models import ControllerFile, SiteFile
from provisioner.config.schema import adapter_configs, schema_address
from provisioner.config.units import Secret, Unit

NOTICE = "<!-- Made by `python -m docs.make_reference`; do not edit. -->"

INTRODUCTION = """\
{notice}

# Configuration

There is one controller file, and one file for each site that it lists under `sites`. `provisioner check FILE`
reports every mistake in all of them at once, as `file:line:col: what is wrong: what to write instead`; it accepts a
single site file too. Commented examples are in [site_configs](../../../site_configs).

{pages}

## Values

After a key comes what to write for it; then, after a semicolon, its default, or that it is required.

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
| secret | `{{file: /run/token}}` or `{{env: POOL_TOKEN}}`; read at each use | the secret itself |

YAML is read strictly: no duplicate or unknown keys, no empty values, no octal or base-60 numbers, no dates. Anchors,
aliases and `<<` are supported.

## Editors

An editor with a YAML language server checks a file that begins with `# yaml-language-server: $schema=` and the address
of a schema:

- `{controller}`
- `{site}`

Each version of the provisioner has its own. Without a network, write the schema beside your file (`provisioner schema
site > site.schema.json`) and name that file.
"""


def pages() -> dict[str, str]:
    """Return the pages by their names below ``configuration/``, with the adapters of this distribution."""
    made = {
        "controller.md": ("Controller file", _page("Controller file", ControllerFile, "")),
        "site.md": ("Site file", _page("Site file", SiteFile, "")),
    }
    for kind, group in (("Overlay", loader.OVERLAYS), ("Site", loader.SITES)):
        for adapter, config in adapter_configs(group, shipped_only=True).items():
            name = f"{kind.lower()}-{adapter}.md"
            title = f"{kind} adapter `{adapter}`"
            guide = f"[{title}](../{name}) describes how it works.\n"
            made[name] = (title, _page(f"{title}: options", config, "options", guide))
    made["ssh.md"] = ("Login nodes", _page("Login nodes", SshSettings, "ssh"))
    introduction = INTRODUCTION.format(
        notice=NOTICE,
        pages="\n".join(f"- [{title}]({name})" for name, (title, _) in made.items()),
        controller=schema_address("controller"),
        site=schema_address("site"),
    )
    return {"README.md": introduction} | {name: text for name, (_, text) in made.items()}


def _page(title: str, model: type[BaseModel], path: str, introduction: str = "") -> str:
    shown: dict[type[BaseModel], str] = {} if model is SshSettings else {SshSettings: "ssh.md"}
    parts = [NOTICE, f"\n# {title}\n", introduction] if introduction else [NOTICE, f"\n# {title}\n"]
    return "\n".join([*parts, *_Sections(shown).of(model, path)])


class _Sections:
    """The sections of one page: a mapping that is used in several places has one."""

    def __init__(self, shown: dict[type[BaseModel], str]) -> None:
        self.shown = shown
        self.places: dict[str, str] = {}

    def of(self, model: type[BaseModel], path: str, description: str = "") -> Iterator[str]:
        """Yield the model's own keys, then those of each mapping below it.

        ``description``: that of the key which has the mapping.
        """
        self.shown[model] = _anchor(path)
        below = [
            (inner, f"{path}.{key}{suffix}".lstrip("."), field.description or "")
            for key, field in fields_of(model).items()
            for inner, suffix in _models_below(field.annotation)
            if inner not in self.shown
        ]
        self.shown |= {inner: _anchor(place) for inner, place, _ in below}
        if path:
            yield f"## `{path}`\n"
        if path != "options":
            yield f"{_joined(description, (model.__doc__ or '').partition(chr(10) * 2)[0])}\n"
        yield "\n".join(self._keys(model, path)) + "\n"
        for inner, place, words in below:
            yield from self.of(inner, place, words)

    def _keys(self, model: type[BaseModel], path: str) -> Iterator[str]:
        items = {key: self._item(key, field) for key, field in fields_of(model).items()}
        known = {key: self.places[item] for key, item in items.items() if item in self.places}
        if len(known) > 1:
            place = next(iter(known.values()))
            yield f"- {', '.join(f'`{key}`' for key in known)}: as in [`{place}`]({_anchor(place)})."
            items = {key: item for key, item in items.items() if key not in known}
        self.places |= dict.fromkeys(items.values(), path)
        yield from items.values()

    def _item(self, key: str, field: FieldInfo) -> str:
        words = in_words(field.annotation, field.metadata)
        for model, _ in _models_below(field.annotation):
            words = re.sub(r"mappings?$", rf"[\g<0>]({self.shown[model]})", words)
        value = "; ".join(filter(None, [words, _default(field)]))
        if any(self.shown[model].startswith("#") for model, _ in _models_below(field.annotation)):
            return f"- `{key}` ({value})"
        meaning = " ".join((field.description or "").split())
        return f"- `{key}` ({value}): {meaning}{_example(field)}"


def _joined(description: str, doc: str) -> str:
    """Return what a key and the docstring of its mapping say, or the longer one if they say the same."""
    longer, shorter = sorted(
        (description.split(), doc.replace("``", "`").split()), key=len, reverse=True
    )
    known = {_word(word) for word in longer} | {"the", "a", "an", "of"}
    new = [word for word in shorter if _word(word) not in known]
    texts = (
        [longer]
        if len(new) * 3 <= len(shorter)
        else [description.split(), doc.replace("``", "`").split()]
    )
    return " ".join(" ".join(text) for text in texts)


def _word(text: str) -> str:
    return re.sub(r"\W", "", text.lower()).removesuffix("s")


def _anchor(path: str) -> str:
    return "#" + re.sub(r"[^\w-]", "", path.lower())


def _models_below(annotation: Any) -> Iterator[tuple[type[BaseModel], str]]:
    for member in union_members(annotation):
        origin = get_origin(member)
        if is_model(member) and member is not Secret:
            yield member, ""
        elif origin in (dict, list, tuple):
            mark = ".NAME" if origin is dict else "[]"
            for model, suffix in _models_below(get_args(member)[1 if origin is dict else 0]):
                yield model, mark + suffix


def _is_subclass(annotation: Any, of: type) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, of)


def unit_of(annotation: Any, metadata: Sequence[Any] = ()) -> Unit | None:
    """Return the unit of a type; None for a type without one."""
    for mark in metadata:
        if isinstance(mark, Unit):
            return mark
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        return unit_of(inner, marks)
    if get_origin(annotation) in (Union, types.UnionType):
        return next((unit for member in get_args(annotation) if (unit := unit_of(member))), None)
    return None


WORDS = {
    int: "integer",
    float: "number",
    str: "text",
    bool: "boolean",
    Path: "path",
    Secret: "secret",
}


def in_words(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Return what to write for a value of this type, in words."""
    unit = unit_of(annotation, metadata)
    if unit is not None:
        return unit.name
    return " or ".join(
        dict.fromkeys(_member_in_words(member) for member in union_members(annotation))
    )


def _member_in_words(member: Any) -> str:
    origin = get_origin(member)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(member) if value)
    if _is_subclass(origin, Mapping):
        return _container_in_words("mapping", get_args(member)[1])
    if _is_subclass(origin, Sequence):
        return _container_in_words("list", get_args(member)[0])
    if _is_subclass(member, Enum):
        return ", ".join(f"`{each.value}`" for each in member)
    return WORDS.get(member, "mapping" if is_model(member) else "value")


def _container_in_words(container: str, inner: Any) -> str:
    if inner is Any:
        return container
    words = in_words(inner)
    return f"{container} of {'mappings' if words == 'mapping' else words}"


_PLAIN = {"integer", "number", "size", "duration", "GPUs", "boolean", "name", "secret"}
"""Values that need no example."""


def _example(field: FieldInfo) -> str:
    """Return the field's own example, if it says more than the kind of the value does."""
    words = in_words(field.annotation, field.metadata)
    if not field.examples or words in _PLAIN or is_choice(field.annotation):
        return ""
    text = flow(field.examples[0])
    return "" if text in ("{}", _default(field).strip("`")) else f" Example: `{text}`"


def is_choice(annotation: Any) -> bool:
    """Return whether the type is a choice of words, which name themselves."""
    return all(
        get_origin(member) is Literal or _is_subclass(member, Enum)
        for member in union_members(annotation)
    )


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if isinstance(value, BaseModel) or value in (PydanticUndefined, None, "", (), [], {}):
        return ""
    unit = unit_of(field.annotation, field.metadata)
    if unit is None:
        return f"`{flow(getattr(value, 'value', value))}`"
    return f"`{unit.format(value)}`" if value or unit.name in ("duration", "GPUs") else ""
