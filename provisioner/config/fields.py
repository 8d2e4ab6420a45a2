"""Finding one's way through pydantic models: which field a location belongs to, and what a field's value looks like."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from provisioner.config import units
from provisioner.config.units import Secret

Locations = Sequence[str | int]


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of ``model`` by the key that stands in YAML."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def arms(annotation: Any) -> Iterator[Any]:
    """The alternatives of an annotation without ``None`` and ``Annotated``."""
    if get_origin(annotation) is Annotated:
        yield from arms(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for arm in get_args(annotation):
            yield from arms(arm)
    elif annotation is not type(None):
        yield annotation


def model_at(annotation: Any, steps: Locations) -> type[BaseModel] | None:
    """The model whose keys are valid at ``steps`` below ``annotation``; steps that are no keys are passed over."""
    for step in steps:
        annotation = _below(annotation, step) or annotation
    return next((arm for arm in arms(annotation) if isinstance(arm, type) and issubclass(arm, BaseModel)), None)


def field_at(annotation: Any, steps: Locations) -> FieldInfo | None:
    """The field that the last of ``steps`` names; None where it is not a field (an entry of a list, a free key)."""
    if not steps:
        return None
    model = model_at(annotation, steps[:-1])
    return fields_of(model).get(str(steps[-1])) if model else None


def _below(annotation: Any, step: str | int) -> Any:
    for arm in arms(annotation):
        origin = get_origin(arm)
        if isinstance(arm, type) and issubclass(arm, BaseModel) and step in fields_of(arm):
            return fields_of(arm)[str(step)].annotation
        if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(step, str):
            return get_args(arm)[1]
        if isinstance(origin, type) and issubclass(origin, Sequence) and isinstance(step, int):
            return get_args(arm)[0]
    return None


# ----------------------------------------------------------------------------------------------------- values in words

_UNITS: dict[Any, tuple[str, Callable[[Any], str]]] = {
    units.parse_size: ("size", units.format_size),
    units.parse_duration: ("duration", units.format_duration),
    units.parse_gpus: ("GPUs", units.format_gpus),
    units.parse_capability: ("number", lambda tenfold: f"{tenfold / 10:.1f}"),
    units.parse_cuda_version: ("version in quotes", lambda v: f'"{v // 1000}.{v % 1000 // 10}"'),
    units.parse_name: ("name", str),
    units.parse_path: ("path", str),
}


def unit_of(annotation: Any, metadata: Sequence[Any] = ()) -> tuple[str, Callable[[Any], str]] | None:
    """The word for a unit type, and how its inner value is written; None for what has no unit."""
    for mark in metadata:
        if isinstance(mark, BeforeValidator) and mark.func in _UNITS:
            return _UNITS[mark.func]
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        return unit_of(inner, marks)
    if get_origin(annotation) in (Union, types.UnionType):
        return next((unit for arm in get_args(annotation) if (unit := unit_of(arm))), None)
    return None


_PLAIN = {int: "whole number", float: "number", str: "text", bool: "`true` or `false`", Secret: "secret by reference"}


def in_words(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """What is to be written for a value of this type, for people."""
    unit = unit_of(annotation, metadata)
    if unit is not None:
        return unit[0]
    return " or ".join(dict.fromkeys(_arm_in_words(arm) for arm in arms(annotation)))


def _several(container: str, inner: Any) -> str:
    if inner is Any:
        return container
    words = in_words(inner)
    return f"{container} of {'mappings' if words == 'mapping' else words}"


def _arm_in_words(arm: Any) -> str:
    origin = get_origin(arm)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(arm))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _several("mapping", get_args(arm)[1])
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _several("list", get_args(arm)[0])
    if isinstance(arm, type) and issubclass(arm, Enum):
        return ", ".join(f"`{member.value}`" for member in arm)
    if arm in _PLAIN:
        return _PLAIN[arm]
    if isinstance(arm, type) and issubclass(arm, BaseModel):
        return "mapping"
    return "value"
