"""Counters of the balancer as sums since a service has been watched."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from provisioner.services.haproxy import _Demand


@pytest.mark.parametrize(
    ("polls", "sums"),
    [
        (({}, {"cms": 5}, {"cms": 9}), {"cms": 9}),
        (({"cms": 100}, {"cms": 103, "dune": 2}), {"cms": 3, "dune": 2}),
        (({"cms": 100}, {"cms": 4}), {"cms": 4}),
    ],
    ids=["new", "watched late", "restarted balancer"],
)
def test_requests_of_a_vo_count_from_the_first_poll_on(
    polls: tuple[Mapping[str, int], ...], sums: Mapping[str, int]
) -> None:
    demand = _Demand()
    for counts in polls:
        demand.measure_vos(counts)
    assert {vo: each.total for vo, each in demand.by_vo.items()} == sums
