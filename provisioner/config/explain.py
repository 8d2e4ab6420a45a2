"""What pydantic found wrong, in the operator's words, at the place where it stands, with what to write instead."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from provisioner.config.fields import field_at, fields_of, in_words, model_at
from provisioner.config.nearest import choices
from provisioner.config.strict_yaml import Document, Steps

_SINGLE = {"missing", "extra_forbidden", "mistake_at"}
"""Kinds of which several may stand at one place; of all others the first tells enough."""


def complain(document: Document, error: ValidationError, model: type[BaseModel], at: Steps = ()) -> None:
    """Add a problem to ``document`` for each finding in the value at ``at`` that ``model`` was to judge."""
    told: set[Steps] = set()
    findings = [(_steps_in(document, at, detail), detail) for detail in error.errors(include_url=False)]
    places = [steps for steps, _ in findings]
    for steps, detail in findings:
        if document.is_full:
            return
        if _is_told_already(document, steps, detail, told) or _is_other_arm(steps, detail, places):
            continue
        told.add(steps)
        match detail["type"]:
            case "missing":
                spot = document.key_spot(steps[:-1])
            case "extra_forbidden":
                spot = document.key_spot(steps)
            case "mistake_at":
                steps = (*steps, detail["ctx"]["at"])
                spot = document.value_spot(steps)
            case _:
                spot = document.key_spot(steps) if detail["loc"][-1:] == ("[key]",) else document.value_spot(steps)
        document.complain(spot, _message(detail, model, steps, at))


def _steps_in(document: Document, at: Steps, detail: ErrorDetails) -> Steps:
    """Where the finding is in the document: pydantic's location without the marks of unions and keys."""
    steps: Steps = at
    for step in detail["loc"]:
        if (*steps, step) in document.values:
            steps = (*steps, step)
    return (*steps, detail["loc"][-1]) if detail["type"] == "missing" else steps


def _is_told_already(document: Document, steps: Steps, detail: ErrorDetails, told: set[Steps]) -> bool:
    compares = detail["type"] in ("value_error", "mistake_at")
    for broken in document.broken:
        if steps[: len(broken)] == broken or (compares and broken[: len(steps)] == steps):
            return True
    return steps in told and detail["type"] not in _SINGLE


def _is_other_arm(steps: Steps, detail: ErrorDetails, places: list[Steps]) -> bool:
    """Of `auto` or a list of mappings, a list was meant if something is wrong inside the list."""
    mismatch = detail["type"].endswith("_type") or detail["type"] in ("literal_error", "enum")
    return mismatch and any(len(place) > len(steps) and place[: len(steps)] == steps for place in places)


# ------------------------------------------------------------------------------------------------------------- messages


def _message(detail: ErrorDetails, model: type[BaseModel], steps: Steps, at: Steps) -> str:
    below = steps[len(at) :]
    key = _key(steps)
    context: dict[str, Any] = detail.get("ctx") or {}
    match detail["type"]:
        case "mistake_at":
            return _named(key, str(context["message"]))
        case "value_error":
            return _named(key, str(context["error"]))
        case "missing":
            return f"`{key}` is missing{_write(model, below, key)}"
        case "extra_forbidden":
            return f"unknown key `{key}`: {_keys_instead(model, below, key)}"
        case "literal_error" | "enum" if isinstance(detail["input"], str):
            names = [name.strip(" '") for name in str(context["expected"]).replace(" or ", ", ").split(",")]
            return f"`{key}`: {_shown(detail['input'])} is not one of {', '.join(names)}{_near(detail['input'], names)}"
        case _:
            return _wrong_value(detail, model, below, key, context)


def _key(steps: Steps) -> str:
    """The last key, with the index after it for an entry of a list: ``sites[0]``."""
    name = next((step for step in reversed(steps) if isinstance(step, str)), "")
    return f"{name}[{steps[-1]}]" if steps and isinstance(steps[-1], int) else name


def _named(key: str, message: str) -> str:
    """The message, with the key before it where it does not begin with the key's name or a quoted value."""
    return f"`{key}`: {message}" if key and not message.startswith(f"`{key}`") else message


def _wrong_value(detail: ErrorDetails, model: type[BaseModel], below: Steps, key: str, context: dict[str, Any]) -> str:
    found, wanted = detail["input"], _BOUNDS.get(detail["type"])
    if wanted is not None:
        name, phrase = wanted
        return f"`{key}` must be {phrase} {context[name]:g}, is {_shown(found)}"
    if detail["type"] in ("too_short", "string_too_short", "string_too_long", "too_long"):
        return f"`{key}` holds too {'few' if 'short' in detail['type'] else 'many'}{_write(model, below, key)}"
    if detail["type"] == "string_type" and isinstance(found, bool | int | float):
        quoted = f'"{json.dumps(found)}"'
        return f"`{key}` must be text, is {_kind(found)}: write {_entry(below, key, quoted)}"
    field = field_at(model, below)
    if detail["type"].endswith("_type") or detail["type"] in _TYPE_MISMATCHES:
        wanted_kind = in_words(field.annotation, field.metadata) if field else _TYPES.get(detail["type"], "other")
        return f"`{key}`: {wanted_kind} wanted, {_kind(found)} found{_write(model, below, key)}"
    return f"`{key}`: {detail['msg'][:1].lower()}{detail['msg'][1:]}{_write(model, below, key)}"


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
    "bool_type": "truth value",
    "list_type": "list",
    "dict_type": "mapping",
    "model_type": "mapping",
}


def _kind(value: object) -> str:
    match value:
        case bool():
            return f"the truth value {_shown(value)}"
        case int() | float():
            return f"the number {_shown(value)}"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case _:
            return "nothing"


def _shown(value: object) -> str:
    text = json.dumps(value) if isinstance(value, bool | int | float) else " ".join(str(value).split())
    return f"`{text if len(text) <= 40 else text[:37] + '...'}`"


def _near(value: object, names: Sequence[str]) -> str:
    instead = choices(str(value), names)
    return f": {instead}" if instead.startswith("did") else ""


def _keys_instead(model: type[BaseModel], below: Steps, key: str) -> str:
    here = model_at(model, below[:-1])
    valid = list(fields_of(here)) if here else []
    instead = choices(key, valid)
    if instead.startswith("did"):
        return instead
    has_options = here is not None and "options" in valid
    elsewhere = _path_of(here if here is not None and has_options else model, key)
    if elsewhere:
        return f"it belongs under `{elsewhere}`"
    return f"{instead}; the adapter's own belong under `options`" if has_options else instead


def _path_of(model: type[BaseModel], key: str) -> str | None:
    """Where else in ``model`` the key is valid: right word, wrong place."""
    return next((path for path, name in _all_keys(model) if name == key and path), None)


def _all_keys(model: type[BaseModel], path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    for name, field in fields_of(model).items():
        yield path, name
        below = model_at(field.annotation, ()) if depth < 4 else None
        if below is not None:
            yield from _all_keys(below, f"{path}.{name}" if path else name, depth + 1)


def missing_mapping(key: str, model: type[BaseModel]) -> str:
    """What to write where a whole mapping with required keys is missing."""
    wanted = {name: field for name, field in fields_of(model).items() if field.is_required()}
    inner = ", ".join(
        f"{name}: {flow(field.examples[0]) if field.examples else '...'}" for name, field in wanted.items()
    )
    return f"`{key}` is missing: write `{key}: {{{inner}}}`"


def _write(model: type[BaseModel], below: Steps, key: str) -> str:
    """What to write instead, from the field's example."""
    field = field_at(model, below)
    if field is None or not field.examples:
        return ""
    return f": write {_entry(below, key, flow(field.examples[0]))}"


def _entry(below: Steps, key: str, text: str) -> str:
    return f"`{text}`" if below and isinstance(below[-1], int) else f"`{key}: {text}`"


def flow(value: object) -> str:
    """``value`` as YAML in one line."""
    match value:
        case dict():
            return "{" + ", ".join(f"{key}: {flow(inner)}" for key, inner in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(flow(inner) for inner in value) + "]"
        case str() if _needs_quotes(value):
            return json.dumps(value)
        case str():
            return value
        case _:
            return json.dumps(value)


def _needs_quotes(text: str) -> bool:
    plain = text.replace("_", "").replace("-", "").replace(" ", "").replace("/", "").replace(".", "")
    first_is_letter = text[:1].isalpha() or text[:1] in "/0123456789"
    looks_like_number = text.replace(".", "").isdigit()
    word = text.lower() in ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
    return not plain.isalnum() or not first_is_letter or looks_like_number or word
