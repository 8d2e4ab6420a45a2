"""Error messages for values that pydantic rejects: what is wrong, where, and what to write instead."""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from provisioner.config.strict_yaml import Steps, YamlDocument, is_plain_text
from provisioner.config.units import Secret, Unit, shortened

_REPEATABLE = {"missing", "extra_forbidden", "mistake_at"}
"""Error types of which one place may have several; of all others only the first is reported."""


def report_errors(document: YamlDocument, error: ValidationError, model: type[BaseModel], at: Steps = ()) -> None:
    """Add a problem to ``document`` for each error that ``model`` found in the value at ``at``."""
    reported: set[Steps] = set()
    details = [(_steps_in(document, at, detail), detail) for detail in error.errors(include_url=False)]
    places = [steps for steps, _ in details]
    for steps, detail in details:
        kind = detail["type"]
        if document.is_full:
            return
        if steps in reported and kind not in _REPEATABLE:
            continue
        if _follows_from_broken(document, steps, kind) or _is_other_union_member(steps, kind, places):
            continue
        reported.add(steps)
        if kind == "mistake_at":
            steps = (*steps, detail["ctx"]["at"])
        position = document.value_position(steps)
        if kind == "missing":
            position = document.key_position(steps[:-1])
        elif kind == "extra_forbidden" or detail["loc"][-1:] == ("[key]",):
            position = document.key_position(steps)
        document.complain(position, _message(detail, model, steps, at))


def _steps_in(document: YamlDocument, at: Steps, detail: ErrorDetails) -> Steps:
    """Return the steps to the value in the document: pydantic's location without its marks for unions and keys."""
    steps: Steps = at
    for step in detail["loc"]:
        if (*steps, step) in document.values:
            steps = (*steps, step)
    return (*steps, detail["loc"][-1]) if detail["type"] == "missing" else steps


def _follows_from_broken(document: YamlDocument, steps: Steps, kind: str) -> bool:
    """Return whether the error is a consequence of a value that already has a problem."""
    compares = kind in ("value_error", "mistake_at")
    return any(
        steps[: len(broken)] == broken or (compares and broken[: len(steps)] == steps) for broken in document.broken
    )


def _is_other_union_member(steps: Steps, kind: str, places: list[Steps]) -> bool:
    """Return whether the error is of a union member that was not meant.

    Of `auto` or a list of mappings, the list was meant if something is wrong inside the list.
    """
    mismatch = kind.endswith("_type") or kind in ("literal_error", "enum")
    return mismatch and any(len(place) > len(steps) and place[: len(steps)] == steps for place in places)


# ------------------------------------------------------------------------------------------------------------- messages


_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
_TYPE_MISMATCHES = {"int_from_float", "int_parsing", "float_parsing", "bool_parsing", "literal_error", "enum"}
_TYPES = {
    "string_type": "text",
    "int_type": "whole number",
    "float_type": "number",
    "bool_type": "`true` or `false`",
    "list_type": "list",
    "dict_type": "mapping",
    "model_type": "mapping",
}
"""Expected values of entries that no field describes."""
_PHRASES = {
    "too_short": "has too few entries",
    "too_long": "has too many entries",
    "string_too_short": "is too short",
    "string_too_long": "is too long",
}


def _message(detail: ErrorDetails, model: type[BaseModel], steps: Steps, at: Steps) -> str:
    below, key = steps[len(at) :], _key(steps)
    kind, found = detail["type"], detail["input"]
    context: dict[str, Any] = detail.get("ctx") or {}
    remedy = _remedy(model, below, key)
    if kind in ("mistake_at", "value_error"):
        message = str(context["message" if kind == "mistake_at" else "error"])
        return f"`{key}`: {message}" if key and not message.startswith(f"`{key}`") else message
    if kind == "missing":
        return f"missing key `{key}`{remedy}"
    if kind == "extra_forbidden":
        return f"unknown key `{key}`: {_keys_instead(model, below, key)}"
    if kind in ("literal_error", "enum") and isinstance(found, str):
        names = [name.strip(" '") for name in str(context["expected"]).replace(" or ", ", ").split(",")]
        near = nearest(found, names)
        hint = f": did you mean `{near}`?" if near else ""
        return f"`{key}`: {_shown(found)} is not one of {', '.join(names)}{hint}"
    if kind in _BOUNDS:
        name, phrase = _BOUNDS[kind]
        return f"`{key}` must be {phrase} {context[name]:g}, is {_shown(found)}"
    if kind in _PHRASES:
        return f"`{key}` {_PHRASES[kind]}{remedy}"
    if kind == "string_type" and isinstance(found, bool | int | float):
        quoted = f'"{json.dumps(found)}"'
        return f"`{key}` must be text, is {_kind(found)}: write {_entry(below, key, quoted)}"
    if kind.endswith("_type") or kind in _TYPE_MISMATCHES:
        field = field_at(model, below)
        expected = in_words(field.annotation, field.metadata) if field else _TYPES.get(kind, "other")
        return f"`{key}`: expected {expected}, found {_kind(found)}{remedy}"
    return f"`{key}`: {detail['msg'][:1].lower()}{detail['msg'][1:]}{remedy}"


def _key(steps: Steps) -> str:
    """Return the last key, with the index after it for an entry of a list: ``sites[0]``."""
    name = next((step for step in reversed(steps) if isinstance(step, str)), "")
    return f"{name}[{steps[-1]}]" if steps and isinstance(steps[-1], int) else name


def _kind(value: object) -> str:
    if isinstance(value, bool | int | float):
        return f"the {'boolean' if isinstance(value, bool) else 'number'} {_shown(value)}"
    kinds: dict[type, str] = {str: "text", list: "a list", dict: "a mapping"}
    return kinds.get(type(value), "nothing")


def _shown(value: object) -> str:
    return f"`{shortened(json.dumps(value) if isinstance(value, bool | int | float) else str(value))}`"


def _keys_instead(model: type[BaseModel], below: Steps, key: str) -> str:
    """Return what to write instead of an unknown key: a similar key, its right place, or all keys."""
    here = model_at(model, below[:-1])
    valid = list(fields_of(here)) if here else []
    instead = choices(key, valid)
    if nearest(key, valid):
        return instead
    has_options = here is not None and "options" in valid
    right_place = next((path for path, name in _all_keys(here or model if has_options else model) if name == key), "")
    if right_place:
        return f"it belongs under `{right_place}`"
    return f"{instead}; options of the adapter belong under `options`" if has_options else instead


def _all_keys(model: type[BaseModel], path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the path and the name of each key below the top of ``model``."""
    for name, field in fields_of(model).items():
        if path:
            yield path, name
        below = model_at(field.annotation, ()) if depth < 4 else None
        if below is not None:
            yield from _all_keys(below, f"{path}.{name}" if path else name, depth + 1)


def missing_mapping(key: str, model: type[BaseModel]) -> str:
    """Return the message for a missing mapping that has required keys."""
    required = {name: field for name, field in fields_of(model).items() if field.is_required()}
    inner = ", ".join(
        f"{name}: {flow(field.examples[0]) if field.examples else '...'}" for name, field in required.items()
    )
    return f"missing key `{key}`: write `{key}: {{{inner}}}`"


def _remedy(model: type[BaseModel], below: Steps, key: str) -> str:
    """Return what to write instead, from the field's example."""
    field = field_at(model, below)
    return f": write {_entry(below, key, flow(field.examples[0]))}" if field and field.examples else ""


def _entry(below: Steps, key: str, text: str) -> str:
    return f"`{text}`" if below and isinstance(below[-1], int) else f"`{key}: {text}`"


def flow(value: object) -> str:
    """Return ``value`` as YAML on one line."""
    match value:
        case dict():
            return "{" + ", ".join(f"{key}: {flow(inner)}" for key, inner in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(flow(inner) for inner in value) + "]"
        case str() | Path() if is_plain_text(str(value)):
            return str(value)
        case _:
            return json.dumps(value, default=str)


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """Return the valid name that ``word`` was probably meant to be; None if no name is similar."""
    plain = {name.lower().replace("-", "_"): name for name in sorted(valid)}
    near = get_close_matches(word.lower().replace("-", "_"), plain, n=1, cutoff=0.6)
    return plain[near[0]] if near else None


def choices(word: str, valid: Iterable[str]) -> str:
    """Return the end of a message about the unknown ``word``: the nearest valid name, or all of them."""
    names = list(valid)
    near = nearest(word, names)
    if near is not None:
        return f"did you mean `{near}`?"
    if not names:
        return "there are none"
    return f"choose from {', '.join(names)}"


# -------------------------------------------------------------------------------------------- fields of pydantic models


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of ``model`` by their YAML keys."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def union_members(annotation: Any) -> Iterator[Any]:
    """Yield the alternatives of an annotation, without ``None`` and ``Annotated``."""
    if get_origin(annotation) is Annotated:
        yield from union_members(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from union_members(member)
    elif annotation is not type(None):
        yield annotation


def _is_subclass(annotation: Any, of: type) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, of)


def is_model(annotation: Any) -> TypeGuard[type[BaseModel]]:
    """Return whether the annotation is a pydantic model."""
    return _is_subclass(annotation, BaseModel)


def model_at(annotation: Any, steps: Sequence[str | int]) -> type[BaseModel] | None:
    """Return the model whose keys are valid at ``steps`` below ``annotation``; unknown steps are skipped."""
    for step in steps:
        annotation = _below(annotation, step) or annotation
    return next(filter(is_model, union_members(annotation)), None)


def field_at(annotation: Any, steps: Sequence[str | int]) -> FieldInfo | None:
    """Return the field that the last of ``steps`` names; None for an entry of a list or a free key."""
    if not steps:
        return None
    model = model_at(annotation, steps[:-1])
    return fields_of(model).get(str(steps[-1])) if model else None


def _below(annotation: Any, step: str | int) -> Any:
    for member in union_members(annotation):
        origin = get_origin(member)
        if is_model(member) and step in fields_of(member):
            return fields_of(member)[str(step)].annotation
        if _is_subclass(origin, Mapping) and isinstance(step, str):
            return get_args(member)[1]
        if _is_subclass(origin, Sequence) and isinstance(step, int):
            return get_args(member)[0]
    return None


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


_WORDS = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "`true` or `false`",
    Path: "path",
    Secret: "secret by reference",
}


def in_words(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Return what to write for a value of this type, in words."""
    unit = unit_of(annotation, metadata)
    if unit is not None:
        return unit.name
    return " or ".join(dict.fromkeys(_member_in_words(member) for member in union_members(annotation)))


def _member_in_words(member: Any) -> str:
    origin = get_origin(member)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(member))
    if _is_subclass(origin, Mapping):
        return _container_in_words("mapping", get_args(member)[1])
    if _is_subclass(origin, Sequence):
        return _container_in_words("list", get_args(member)[0])
    if _is_subclass(member, Enum):
        return ", ".join(f"`{each.value}`" for each in member)
    return _WORDS.get(member, "mapping" if is_model(member) else "value")


def _container_in_words(container: str, inner: Any) -> str:
    if inner is Any:
        return container
    words = in_words(inner)
    return f"{container} of {'mappings' if words == 'mapping' else words}"
