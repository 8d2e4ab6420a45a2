"""Readers of JSON objects of a server, in which anything may be missing or invalid: a default is returned instead."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

Record = Mapping[str, Any]
"""A JSON object."""
_MAX_NUMBER = 2**53


def _at(value: Any, keys: tuple[str, ...]) -> object:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def mapping(value: object, *keys: str) -> Record:
    """Return the object at a path of keys."""
    found = _at(value, keys)
    return found if isinstance(found, dict) else {}


def parts(found: Record) -> tuple[Record, Record, Record]:
    """Return what an object of Kubernetes consists of: ``metadata``, ``spec`` and ``status``."""
    return mapping(found, "metadata"), mapping(found, "spec"), mapping(found, "status")


def mappings(value: object, *keys: str) -> list[Record]:
    """Return the objects in the list at a path of keys."""
    found = _at(value, keys)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def text(record: object, *keys: str) -> str:
    """Return the text at a path of keys."""
    value = _at(record, keys)
    return value if isinstance(value, str) else ""


def number(record: Record, key: str, default: int = 0) -> int:
    value = record.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= _MAX_NUMBER:
        return default
    return value


def moment(record: object, *keys: str) -> float:
    """Return the time at a path of keys as seconds since the epoch; 0 if there is none. One without a zone is UTC."""
    try:
        at = datetime.fromisoformat(text(record, *keys))
        return max(0.0, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        return 0.0
