"""News of a slot goes on record, be it more or less than before."""

from __future__ import annotations

import pytest

from provisioner.model import Drone, DroneState
from tests.planner.scenes import NOW, drone, plan_of, slot_of, snapshot


def _after(before: Drone, **news: object) -> Drone:
    plan = plan_of(snapshot(drones=[before], slots=[slot_of(before, **news)]))
    (move,) = [move for move in plan.moves if move.drone.id == before.id]
    return move.drone


@pytest.mark.parametrize("jobs", [1, 3])
def test_fewer_and_more_jobs_than_before_go_on_record(jobs: int) -> None:
    before = drone("kit-ab12-1", DroneState.BUSY, jobs=2, jobs_started=2, heard_at=NOW - 2)
    assert _after(before, jobs=jobs).jobs == jobs


@pytest.mark.parametrize("retires_at", [NOW + 100.0, NOW + 900.0])
def test_an_earlier_and_a_later_end_of_its_startd_go_on_record(retires_at: float) -> None:
    before = drone("kit-ab12-1", DroneState.BUSY, heard_at=NOW - 2, retires_at=NOW + 500.0)
    assert _after(before, retires_at=retires_at).retires_at == retires_at


def test_the_name_of_a_slot_goes_on_record_and_stays_while_none_is_told() -> None:
    before = drone("kit-ab12-1", DroneState.BUSY, heard_at=NOW - 2)
    named = _after(before, name="slot1@w1")
    assert named.slot == "slot1@w1"
    assert _after(named, name="", jobs=2).slot == "slot1@w1"
