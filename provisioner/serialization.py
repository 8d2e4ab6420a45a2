"""Values to JSON and back, for the store, snapshots and ``-o json``: pydantic outside, frozen dataclasses inside."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from pydantic import TypeAdapter

T = TypeVar("T")


_adapters: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    # Building one takes milliseconds: keep them.
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def to_json(value: object, kind: Any = None, *, exclude: Any = None) -> str:
    """Return ``value`` as compact JSON. ``kind``: its type where that is not ``type(value)`` (a union, a tuple).

    ``exclude``: fields to leave out, as for pydantic.
    """
    return _adapter(kind or type(value)).dump_json(value, exclude=exclude).decode()


def from_json(kind: type[T], text: str | bytes) -> T:
    """Return the value that :func:`to_json` wrote. Raises ``pydantic.ValidationError`` for anything else."""
    return cast(T, _adapter(kind).validate_json(text))


def to_plain(value: object, kind: Any = None) -> Any:
    """Return ``value`` as dicts, lists and scalars."""
    return _adapter(kind or type(value)).dump_python(value, mode="json")
