"""A drone that is killed leaves no slot behind that jobs would be matched to: with real daemons and the controller."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from provisioner.model import DroneId, FaultKind, OrderOutcome
from tests.htcondor_overlay.live import overlay_on
from tests.labs.controller import BIG, LabController
from tests.labs.htcondor import Pool, gpu_job, kill, processes_of, until

ADS_LIVE_LONG = "CLASSAD_LIFETIME = 900\n"
"""HTCondor's default. The other tests have the pool forget dead drones within half a minute."""


def started_at(pool: Pool, drone_id: str) -> set[object]:
    """Start times of the startds whose slots the pool lists for a drone."""
    return {ad["DaemonStartTime"] for ad in pool.drone_slots(drone_id)}


@pytest.mark.parametrize("lab", [pytest.param(ADS_LIVE_LONG, id="ads-live-long")], indirect=True)
def test_jobs_are_matched_to_a_fresh_drone_and_not_to_the_slot_of_a_dead_one(
    lab: tuple[Pool, LabController],
) -> None:
    pool, controller = lab
    controller.sites = [BIG]
    controller.idle_s = 600
    controller.start()
    first, second = pool.file("first"), pool.file("second")
    pool.submit(gpu_job(n=2, until_there=first))
    controller.settles({"busy": 2}, 120)
    first.touch()
    controller.settles({"idle": 2})
    dead, alive = (drone["id"] for drone in controller.live())
    masters = "condor_status", "-master", "-af", "DroneId"
    assert {dead, alive} <= set(pool.run(*masters).split())
    before = started_at(pool, alive)

    while found := processes_of(dead):  # as at the end of its node
        kill(*found)
    jobs = pool.submit(gpu_job(n=2, until_there=second))
    until(
        lambda: not pool.drone_slots(dead),
        60,
        what="the slot of the dead drone is gone",
        every_s=0.5,
    )
    until(lambda: dead not in pool.run(*masters).split(), 20, what="its master too", every_s=0.5)
    until(lambda: pool.statuses(jobs) == [2, 2], 120, what="both jobs run", every_s=0.5)
    assert before and started_at(pool, alive) == before, "the slot of the other drone has stayed"
    assert alive in pool.run(*masters).split()
    assert {str(ad["RemoteHost"]).split("@")[1] for ad in pool.jobs(jobs)}.isdisjoint({dead})
    assert "slots.removed" in controller.log() and f"drones={dead}" in controller.log()
    names = [event.name for event in controller.record.events()]
    assert "slots.not_removed" not in names
    second.touch()
    until(lambda: not pool.jobs(jobs), 60, what="both jobs are done", every_s=0.5)


async def test_the_token_of_a_drone_removes_its_slot_whoever_signed_it(
    new_pool: Callable[[str], Pool],
) -> None:
    drones = "condor@$(TRUST_DOMAIN) drone@$(TRUST_DOMAIN) drone-*@$(TRUST_DOMAIN)"
    pool = new_pool(
        f"{ADS_LIVE_LONG}ALLOW_ADVERTISE_STARTD = {drones}\nALLOW_ADVERTISE_MASTER = {drones}\n"
    )
    reader = str(pool.dir / "clients/reader/tokens/reader")
    modes: list[tuple[dict[str, Any], OrderOutcome]] = [
        ({}, OrderOutcome.OK),
        ({"drone_token_mode": "signing-key", "drone_signing_key": str(pool.key)}, OrderOutcome.OK),
        ({"drone_token": {"file": reader}}, OrderOutcome.REJECTED),
    ]

    def advertise(drone_id: str) -> None:
        """Send a slot ad, as a drone does, and no more."""
        slot = f'Name = "slot1@{drone_id}@host"\nMachine = "host"\nDroneId = "{drone_id}"\nState = "Unclaimed"\n'
        where = 'MyAddress = "<127.0.0.1:1>"\nStartdIpAddr = "<127.0.0.1:1>"\n'
        pool.advertise(f'MyType = "Machine"\nActivity = "Idle"\n{slot}{where}', identity="condor")
        until(lambda: pool.drone_slots(drone_id), 20, what="the slot is listed")

    one, other = DroneId("kit-1"), DroneId("kit-2")
    advertise(other)
    for more, answer in modes:
        advertise(one)
        async with overlay_on(pool, **more) as overlay:
            (receipt,) = await overlay.forget({one: time.time() - 3600})
            assert receipt.answer is answer and pool.drone_slots(one), (
                "it was heard since, so it lives"
            )
            (receipt,) = await overlay.forget({one: time.time() + 2})
        assert receipt.answer is answer, receipt
        assert bool(pool.drone_slots(one)) is (answer is OrderOutcome.REJECTED)
        assert pool.drone_slots(other), "another drone"
    assert receipt.fault is not None and receipt.fault.kind is FaultKind.DENIED, receipt
    assert "ADVERTISE_STARTD" in receipt.fault.message and "reader@" in receipt.fault.message, (
        receipt
    )
