"""Quantities of the Kubernetes API."""

from __future__ import annotations

import re

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


def quantity(value: object) -> float:
    """Return a quantity (``500m``, ``20Gi``, ``1e3``, 4) in its base unit; 0 if it is none.

    Nodes and pods have none that is malformed: the API server refuses it with 400.

    Source: "Quantity" in the Kubernetes API reference.
    """
    found = _QUANTITY.fullmatch(str(value))
    try:
        return float(found[1]) * _FACTORS[found[2]] if found else 0.0
    except ValueError:  # as of `1.2.3`
        return 0.0
