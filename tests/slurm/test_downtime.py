"""Reservations that are a downtime of the whole site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from adapters.slurm.capacity import next_downtime, resolve_types
from adapters.slurm.records import Reservation, SlurmNode
from tests.slurm.test_capacity import A100, H100, H100_NODE, NODE, NOW, PARTITIONS, config

CLUSTER = (NODE, replace(NODE, name="hkn0802"), H100_NODE, replace(NODE, name="hkn0001", partitions=("cpuonly",)))
OURS = ("hkn0801", "hkn0802", "hkn0901")
MAINT = frozenset({"MAINT", "IGNORE_JOBS"})


def reservation(starts: float, ends: float, nodes: Sequence[str] = OURS, name: str = "maintenance", **more: Any):  # type: ignore[no-untyped-def]
    return Reservation(name, NOW + starts, NOW + ends, tuple(nodes), **{"flags": MAINT, **more})


def found(*reservations: Reservation, nodes: Sequence[SlurmNode] = CLUSTER, **more: Any) -> float:
    """Seconds from now; 0 without."""
    at = next_downtime(reservations, nodes, resolve_types((A100, H100), PARTITIONS, config(**more)), NOW)
    return at - NOW if at else 0.0


def test_the_next_maintenance_of_all_our_nodes_is_the_downtime() -> None:
    assert found(reservation(7200, 9000), reservation(3600, 5000, name="earlier")) == 3600
    assert found(reservation(3600, 7200, flags=frozenset())) == 3600  # whatever it is called


def test_without_reservations_there_is_no_downtime() -> None:
    assert found() == 0


def test_a_reservation_that_is_over_or_has_begun_is_no_downtime() -> None:
    assert found(reservation(-7200, -1)) == 0
    assert found(reservation(-60, 7200)) == 0
    assert found(reservation(-60, 3600), reservation(10_000, 12_000, name="next")) == 10_000


def test_nodes_that_drones_never_go_to_are_nothing_to_us() -> None:
    assert found(reservation(3600, 7200, ("hkn0001",))) == 0


def test_a_part_of_our_nodes_is_no_downtime_and_several_parts_at_a_time_are_one() -> None:
    half, rest = reservation(3600, 20_000, OURS[:1]), reservation(7200, 9000, OURS[1:], "rest")
    assert found(half) == 0
    assert found(half, rest) == 7200
    assert found(half, replace(rest, starts_at=NOW + 20_000, ends_at=NOW + 30_000)) == 0  # one after the other


def test_one_that_has_begun_on_some_nodes_and_one_that_comes_for_the_rest() -> None:
    assert found(reservation(-60, 9000, OURS[:1]), reservation(600, 9000, OURS[1:], "rest")) == 600


def test_nodes_that_are_down_need_not_be_in_it() -> None:
    dead = replace(NODE, name="hkn0803", state="DOWN")
    assert found(reservation(3600, 7200), nodes=(*CLUSTER, dead)) == 3600
    assert found(reservation(3600, 7200), nodes=(*CLUSTER, replace(dead, state="IDLE"))) == 0


def test_a_reservation_that_all_drones_run_in_is_for_us() -> None:
    assert found(reservation(3600, 7200, name="ours"), reservation="ours") == 0
    assert found(reservation(3600, 7200, name="theirs"), reservation="ours") == 3600


def test_licences_reserve_no_nodes() -> None:
    assert found(reservation(3600, 7200, ())) == 0
