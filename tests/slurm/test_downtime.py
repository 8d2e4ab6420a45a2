"""Reservations that are a downtime of the whole site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from adapters.slurm.capacity import next_downtime, resolve_types
from adapters.slurm.records import Reservation, SlurmNode
from tests.slurm.test_capacity import A100, H100, H100_NODE, NODE, NOW, PARTITIONS, config

CLUSTER = (NODE, replace(NODE, name="hkn0802"), H100_NODE, replace(NODE, name="hkn0001", partitions=("cpuonly",)))
DEAD = replace(NODE, name="hkn0803", state="DOWN")
OURS = ("hkn0801", "hkn0802", "hkn0901")
ONE, REST = OURS[:1], OURS[1:]


def reservation(starts: float, ends: float, nodes: Sequence[str] = OURS, name: str = "maintenance") -> Reservation:
    return Reservation(name, NOW + starts, NOW + ends, tuple(nodes))


@pytest.mark.parametrize(
    ("reservations", "downtime_in"),
    [
        ((), 0),
        ((reservation(7200, 9000), reservation(3600, 5000, name="earlier")), 3600),
        ((reservation(-7200, -1),), 0),  # it is over
        ((reservation(-60, 7200),), 0),  # it has begun
        ((reservation(-60, 3600), reservation(10_000, 12_000, name="next")), 10_000),
        ((reservation(3600, 7200, ("hkn0001",)),), 0),  # drones never go there
        ((reservation(3600, 7200, ()),), 0),  # of licences
        ((reservation(3600, 20_000, ONE),), 0),
        ((reservation(3600, 20_000, ONE), reservation(7200, 9000, REST, "rest")), 7200),
        ((reservation(3600, 20_000, ONE), reservation(20_000, 30_000, REST, "rest")), 0),  # one after the other
        ((reservation(-60, 9000, ONE), reservation(600, 9000, REST, "rest")), 600),
    ],
)
def test_the_next_time_when_all_our_nodes_are_reserved_is_the_downtime(
    reservations: Sequence[Reservation], downtime_in: float
) -> None:
    assert found(*reservations) == downtime_in


def found(*reservations: Reservation, nodes: Sequence[SlurmNode] = CLUSTER, **more: Any) -> float:
    """Return seconds from now; 0 without."""
    at = next_downtime(reservations, nodes, resolve_types((A100, H100), PARTITIONS, config(**more)), NOW)
    return at - NOW if at else 0.0


def test_nodes_that_are_down_need_not_be_in_it() -> None:
    assert found(reservation(3600, 7200), nodes=(*CLUSTER, DEAD)) == 3600
    assert found(reservation(3600, 7200), nodes=(*CLUSTER, replace(DEAD, state="IDLE"))) == 0


def test_a_reservation_that_all_drones_run_in_is_for_us() -> None:
    assert found(reservation(3600, 7200, name="ours"), reservation="ours") == 0
    assert found(reservation(3600, 7200, name="theirs"), reservation="ours") == 3600
