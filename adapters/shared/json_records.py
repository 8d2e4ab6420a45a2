"""Readers of JSON objects of a server, in which anything may be missing or invalid: a default is returned instead."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

Record = Mapping[str, Any]
"""A JSON object."""
_MAX_NUMBER = 2**53


def mapping(value: object) -> Record:
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[Record]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def text(record: Record, key: str) -> str:
    value = record.get(key)
    return value if isinstance(value, str) else ""


def number(record: Record, key: str, default: int = 0) -> int:
    value = record.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= _MAX_NUMBER:
        return default
    return value


def moment(record: Record, key: str) -> float:
    """Return a time as seconds since the epoch; 0 if there is none. One without a zone is UTC."""
    try:
        at = datetime.fromisoformat(text(record, key))
        return max(0.0, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        return 0.0
