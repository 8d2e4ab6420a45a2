"""Error messages for values that pydantic rejects: what is wrong, where, and what to write instead."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from provisioner.config.strict_yaml import Steps, YamlDocument, is_plain_text
from provisioner.durations import shortened
from provisioner.interfaces import OptionFinding
from provisioner.model import WHOLE_GPU, DroneType

_REPEATABLE = {"missing", "extra_forbidden", "mistake_at"}
"""Error types of which one place may have several; of all others only the first is reported."""


def report_errors(
    document: YamlDocument, error: ValidationError, model: type[BaseModel], at: Steps = ()
) -> None:
    """Add a problem to ``document`` for each error that ``model`` found in the value at ``at``."""
    reported: set[Steps] = set()
    details = [
        (_steps_in(document, at, detail), detail) for detail in error.errors(include_url=False)
    ]
    places = [steps for steps, _ in details]
    for steps, detail in details:
        kind = detail["type"]
        if document.is_full:
            return
        if steps in reported and kind not in _REPEATABLE:
            continue
        if _follows_from_broken(document, steps, kind) or _is_other_union_member(
            steps, kind, places
        ):
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
    compares = kind in ("value_error", "mistake_at")
    return any(
        steps[: len(broken)] == broken or (compares and broken[: len(steps)] == steps)
        for broken in document.broken
    )


def _is_other_union_member(steps: Steps, kind: str, places: list[Steps]) -> bool:
    """Return whether the error is of a union member that was not meant.

    Of `auto` or a list of mappings, the list was meant if something is wrong inside the list.
    """
    # counts good entries only
    mismatch = kind.endswith("_type") or kind in ("literal_error", "enum", "too_short")
    return mismatch and any(
        len(place) > len(steps) and place[: len(steps)] == steps for place in places
    )


_BOUNDS = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}
_JSON_WORDS = {
    "a valid array": "a list",
    "an object": "a mapping",
    "a valid string": "text",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "`true` or `false`",
}
_SAME_VALUE = {
    "arm64": "aarch64",
    "amd64": "X86_64",
    "x64": "X86_64",
    "time-slicing": "time-sliced",
}
"""Other names of values, as other programs write them."""


_LENGTHS = {
    "too_short": "has fewer entries than {min_length}",
    "too_long": "has more entries than {max_length}",
    "string_too_long": "has more characters than {max_length}",
    "string_too_short": "has fewer characters than {min_length}",
}


def _message(detail: ErrorDetails, model: type[BaseModel], steps: Steps, at: Steps) -> str:
    below = steps[len(at) :]
    key = _name(steps)
    kind = detail["type"]
    context = _context(detail)
    if kind in ("mistake_at", "value_error"):
        message = str(context["message" if kind == "mistake_at" else "error"])
        return f"`{key}`: {message}" if key and not message.startswith(f"`{key}`") else message
    if kind == "extra_forbidden":
        return f"unknown key `{key}`: {_keys_instead(model, below, key)}"
    section = model_at(model, below[:-1]) if below else None
    # none of an entry of a list or a free key
    field = fields_of(section).get(str(below[-1])) if section else None
    remedy = f": write `{key}: {flow(field.examples[0])}`" if field and field.examples else ""
    if kind == "missing":
        return f"missing key `{key}`{remedy}"
    if kind in _LENGTHS:
        return f"`{key}` {_LENGTHS[kind].format(**context)}{remedy}"
    is_entry = bool(below) and isinstance(below[-1], int)
    return _value_message(detail, key, "" if is_entry else f"{key}: ", remedy)


def _name(steps: Steps) -> str:
    """Return the name of the key at ``steps``, with the index of an entry of a list."""
    key = next((step for step in reversed(steps) if isinstance(step, str)), "")
    return f"{key}[{steps[-1]}]" if steps and isinstance(steps[-1], int) else key


def _context(detail: ErrorDetails) -> dict[str, Any]:
    return detail.get("ctx") or {}


def _value_message(detail: ErrorDetails, key: str, prefix: str, remedy: str) -> str:
    """Return the message for a value that is not allowed; ``prefix`` comes before it in a remedy."""
    kind = detail["type"]
    found = detail["input"]
    text = detail["msg"]
    is_number = isinstance(found, bool | int | float)
    shown = f", is `{shortened(json.dumps(found) if is_number else str(found))}`"
    if _BOUNDS.keys() & _context(detail).keys():
        bound, fraction = _bound(detail, key)
        return f"`{key}` {bound}{shown}{fraction or remedy}"
    if kind == "string_type" and is_number:
        return f'`{key}` must be text{shown}: write `{prefix}"{json.dumps(found)}"`'
    if kind == "string_pattern_mismatch":
        return f"`{key}` is not in the expected form{shown}{remedy}"
    is_choice = kind in ("literal_error", "enum")
    if is_choice:
        meant = _meant(found, re.findall(r"'([^']*)'", str(_context(detail)["expected"])))
        remedy = f": write `{prefix}{meant}`" if meant else ""
    if text.startswith("Input should be "):
        wanted = text.removeprefix("Input should be ")
        value = shown if is_number or is_choice else ""
        return f"`{key}` must be {_JSON_WORDS.get(wanted, wanted)}{value}{remedy}"
    return f"`{key}`: {text[:1].lower()}{text[1:]}{remedy}"


def _bound(detail: ErrorDetails, key: str) -> tuple[str, str]:
    """Return the bound that a number breaks, and the remedy for one that was written in percent."""
    context = _context(detail)
    found = detail["input"]
    bound = next(name for name in _BOUNDS if name in context)
    is_number = isinstance(found, bool | int | float)
    is_percent = context.get("le") == 1 and is_number and 1 < found <= 100
    fraction = f": write a fraction, `{key}: {found / 100:g}`" if is_percent else ""
    return f"must be {_BOUNDS[bound]} {context[bound]:g}", fraction


def _meant(text: object, allowed: Sequence[str]) -> str | None:
    """Return the allowed value that ``text`` was probably meant to be; None if it may be the begin of several."""
    if not isinstance(text, str):
        return None
    alias = _SAME_VALUE.get(text.lower())
    several = sum(value.lower().startswith(text.lower()) for value in allowed) > 1
    return alias if alias in allowed else None if several else nearest(text, allowed)


def _keys_instead(model: type[BaseModel], below: Steps, key: str) -> str:
    """Return what to write instead of an unknown key: a similar key, its right place, or all keys."""
    here = model_at(model, below[:-1])
    valid = list(fields_of(here)) if here else []
    instead = choices(key, valid)
    if nearest(key, valid):
        return instead
    has_options = here is not None and "options" in valid
    right_place = next(
        (path for path, name in _all_keys(here or model if has_options else model) if name == key),
        "",
    )
    if right_place:
        return f"it belongs under `{right_place}`"
    return f"{instead}; options of the adapter belong under `options`" if has_options else instead


def _all_keys(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, str]]:
    for name, field in fields_of(model).items():
        if path:
            yield path, name
        below = model_at(field.annotation, ())
        if below is not None:
            yield from _all_keys(below, f"{path}.{name}" if path else name)


def missing_mapping(key: str, model: type[BaseModel]) -> str:
    """Return the message for a missing mapping that has required keys."""
    required = {name: field for name, field in fields_of(model).items() if field.is_required()}
    inner = ", ".join(
        f"{name}: {flow(field.examples[0]) if field.examples else '...'}"
        for name, field in required.items()
    )
    return f"missing key `{key}`: write `{key}: {{{inner}}}`"


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


def type_findings(
    types: Sequence[DroneType], named: Iterable[str], of_shares: str
) -> Iterator[OptionFinding]:
    """Yield what does not agree with a site's drone types, where GPUs are whole: a path in its file, and a message.

    ``named``: names under ``types`` of the adapter's options. ``of_shares``: what is wrong with a
    share of a GPU.
    """
    for kind in types:
        if kind.gpu_milli % WHOLE_GPU:
            yield ("types", kind.name, "gpus"), f"`gpus`: {of_shares}"
    known = [kind.name for kind in types]
    for name in named:
        if name not in known:
            message = f"there is no drone type `{name[:63]}`: {choices(name, known)}"
            yield ("options", "types", name), message


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
