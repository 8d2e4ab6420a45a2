"""Objects of the Kubernetes API as they come: JSON, in which anything may be missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

Record = Mapping[str, Any]
"""A JSON object."""

_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([numkMGTPE]|[KMGTPE]i|)")
_FACTORS = {
    **{
        "n": 1e-9,
        "u": 1e-6,
        "m": 1e-3,
        "": 1.0,
        "k": 1e3,
        "M": 1e6,
        "G": 1e9,
        "T": 1e12,
        "P": 1e15,
        "E": 1e18,
    },
    **{f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)},
}


def mapping(value: object) -> Record:
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[Record]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def text(record: Record, key: str) -> str:
    value = record.get(key)
    return value if isinstance(value, str) else ""


def number(record: Record, key: str) -> float:
    value = record.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def moment(record: Record, key: str) -> float:
    """Return a time as seconds since the epoch; 0 if there is none."""
    try:
        return datetime.fromisoformat(text(record, key)).timestamp()
    except ValueError:
        return 0.0


def quantity(value: object) -> float:
    """Return a quantity (``500m``, ``20Gi``, ``1e3``, 4) in its base unit; 0 if it is none.

    Source: "Quantity" in the Kubernetes API reference.
    """
    found = _QUANTITY.fullmatch(str(value))
    try:
        return float(found[1]) * _FACTORS[found[2]] if found else 0.0
    except ValueError:  # as of `1.2.3`
        return 0.0
