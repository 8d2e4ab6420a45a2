"""Quantities and times of the API."""

from __future__ import annotations

import pytest

from adapters.kubernetes.quantities import quantity
from adapters.shared.json_records import moment


@pytest.mark.parametrize(
    ("written", "amount"),
    [
        ("500m", 0.5),
        ("4", 4.0),
        (4, 4.0),
        ("20Gi", 20 * 1024.0**3),
        ("1e3", 1000.0),
        ("1E3", 1000.0),
        ("2E", 2e18),
        ("1.5k", 1500.0),
        ("-1", -1.0),
        ("100u", 1e-4),
        ("twenty", 0.0),
        ("1.2.3", 0.0),
        (None, 0.0),
    ],
)
def test_a_quantity(written: object, amount: float) -> None:
    assert quantity(written) == pytest.approx(amount)


def test_times() -> None:
    assert moment({"at": "1970-01-01T00:01:00Z"}, "at") == 60.0
    assert moment({"at": "soon"}, "at") == moment({}, "at") == 0.0
