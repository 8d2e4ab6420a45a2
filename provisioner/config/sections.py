"""Sections of the configuration, made of the settings that the planner reads (:mod:`provisioner.settings`)."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, Field, create_model

from provisioner.config import units

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

_WRITTEN = {
    "s": units.PositiveDuration,
    "mib": units.Size,
    "w": float,
    "gpus": units.Gpus,
    "capability": units.Capability,
    "driver": units.CudaVersion,
}
"""Types of values in a file by the last word of a field's name."""


@cache
def _meanings(module: str) -> Mapping[tuple[str, str], str]:
    """Return the texts below the fields of a module's dataclasses, by class and field."""
    return {
        (kind.name, ast.unparse(declared.target)): ast.literal_eval(text.value)
        for kind in ast.parse(inspect.getsource(import_module(module))).body
        if isinstance(kind, ast.ClassDef)
        for declared, text in pairwise(kind.body)
        if isinstance(declared, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def settings_of(kind: type, first: str, last: str) -> Callable[[type[M]], type[M]]:
    """Return a decorator that gives a model a key for each field of dataclass ``kind`` from ``first`` to ``last``."""
    hints = get_type_hints(kind)
    meanings = _meanings(kind.__module__)
    names = [each.name for each in fields(kind)]
    chosen = fields(kind)[names.index(first) : names.index(last) + 1]

    def made(model: type[M]) -> type[M]:
        keys: dict[str, Any] = {
            each.name: _key(each, hints[each.name], meanings[kind.__name__, each.name])
            for each in chosen
        }
        return create_model(model.__name__, __base__=model, __doc__=model.__doc__, **keys)

    return made


def _key(setting: Any, hint: Any, meaning: str) -> tuple[Any, Any]:
    """Return type and declaration of the key of a setting."""
    name = setting.name.replace("gpu_milli", "gpus")
    written = {"key": re.sub("_(s|mib|w)$", "", name), **setting.metadata.get("written", {})}
    kind = _WRITTEN.get(name.rpartition("_")[2], hint)
    if written.pop("zero", False):
        kind = units.Duration
    default = ... if setting.default is MISSING else setting.default
    example = written.pop("example", default)
    if hasattr(kind, "__metadata__") and example is default:
        unit = kind.__metadata__[0]
        example = unit.format(default) if default else unit.schema["examples"][0]
    if default is None:
        kind = kind | None
    key = written.pop("key")
    return kind, Field(default, alias=key, description=meaning, examples=[example], **written)


def as_settings(kind: type[T], *sections: BaseModel, **more: object) -> T:
    """Return a value of dataclass ``kind`` with its fields among those of ``sections``, and further ones."""
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    given = {name: value for section in sections for name, value in section if name in names}
    return kind(**given | more)
