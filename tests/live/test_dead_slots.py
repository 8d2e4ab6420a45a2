"""A drone that is killed leaves no slot behind that jobs would be matched to: with real daemons and the controller."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Any

import pytest

from provisioner.model import DroneId, FaultKind, OrderOutcome
from provisioner.store.reader import Reader
from tests.htcondor_overlay.live import overlay_on
from tests.labs.controller import BIG, LabController
from tests.labs.htcondor import Condor, Pool, gpu_job, processes_with, running_pool, until

pytestmark = pytest.mark.timeout(420)

ADS_LIVE_LONG = "CLASSAD_LIFETIME = 900\n"
"""HTCondor's default. The other tests have the pool forget dead drones within half a minute."""


def kill_at_once(controller: LabController, drone_id: str) -> None:
    """Kill all processes of a drone, as the end of its node does."""
    until(lambda: processes_with(f"PROVISIONER_DRONE_ID={drone_id}\0"), 10, what="processes of the drone")
    while found := processes_with(f"PROVISIONER_DRONE_ID={drone_id}\0"):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def started_at(pool: Pool, drone_id: str) -> set[object]:
    """Start times of the startds whose slots the pool lists for a drone."""
    return {ad["DaemonStartTime"] for ad in pool.drone_slots(drone_id)}


@pytest.mark.parametrize("lab", [pytest.param(ADS_LIVE_LONG, id="ads-live-long")], indirect=True)
def test_jobs_are_matched_to_a_fresh_drone_and_not_to_the_slot_of_a_dead_one(lab: tuple[Pool, LabController]) -> None:
    pool, controller = lab
    controller.sites = [BIG]
    controller.idle_s = 600
    controller.start()
    first, second = pool.file("first"), pool.file("second")
    pool.submit(gpu_job(n=2, until_there=first))
    until(lambda: controller.states() == {"busy": 2}, 120, what="two drones with a job each", every_s=0.5)
    first.touch()
    until(lambda: controller.states() == {"idle": 2}, 60, what="both drones idle", every_s=0.5)
    dead, alive = (drone["id"] for drone in controller.live())
    masters = "condor_status", "-master", "-af", "DroneId"
    assert {dead, alive} <= set(pool.run(*masters).split())
    before = started_at(pool, alive)

    kill_at_once(controller, dead)
    jobs = pool.submit(gpu_job(n=2, until_there=second))
    until(lambda: not pool.drone_slots(dead), 60, what="the slot of the dead drone is gone", every_s=0.5)
    until(lambda: dead not in pool.run(*masters).split(), 20, what="its master too", every_s=0.5)
    until(lambda: pool.statuses(jobs) == [2, 2], 120, what="both jobs run", every_s=0.5)
    assert before and started_at(pool, alive) == before, "the slot of the other drone has stayed"
    assert alive in pool.run(*masters).split()
    assert {str(ad["RemoteHost"]).split("@")[1] for ad in pool.jobs(jobs)}.isdisjoint({dead})
    assert "slots.removed" in controller.log() and f"drones={dead}" in controller.log()
    names = [event.name for event in Reader(controller.directory / "provisioner.db").events()]
    assert "slots.not_removed" not in names
    second.touch()
    until(lambda: not pool.jobs(jobs), 60, what="both jobs are done", every_s=0.5)


def advertise(pool: Pool, drone_id: str) -> None:
    """Send a slot ad, as a drone does, and no more."""
    file = pool.file(f"{drone_id}.ad")
    file.write_text(
        f'MyType = "Machine"\nName = "slot1@{drone_id}@host"\nMachine = "host"\nMyAddress = "<127.0.0.1:1>"\n'
        f'StartdIpAddr = "<127.0.0.1:1>"\nState = "Unclaimed"\nActivity = "Idle"\nDroneId = "{drone_id}"\n'
    )
    file.chmod(0o644)
    pool.run("condor_advertise", "-tcp", "UPDATE_STARTD_AD", str(file), identity="condor")
    until(lambda: pool.drone_slots(drone_id), 20, what="the slot is listed")


async def test_the_token_of_a_drone_removes_its_slot_whoever_signed_it(condor: Condor) -> None:
    drones = "condor@$(TRUST_DOMAIN) drone@$(TRUST_DOMAIN) drone-*@$(TRUST_DOMAIN)"
    config = f"{ADS_LIVE_LONG}ALLOW_ADVERTISE_STARTD = {drones}\nALLOW_ADVERTISE_MASTER = {drones}\n"
    with running_pool(condor, "own", config) as pool:
        reader = str(pool.dir / "clients/reader/tokens/reader")
        modes: list[tuple[dict[str, Any], OrderOutcome]] = [
            ({}, OrderOutcome.OK),
            ({"drone_token_mode": "signing-key", "drone_signing_key": str(pool.key)}, OrderOutcome.OK),
            ({"drone_token": {"file": reader}}, OrderOutcome.REJECTED),
        ]
        one, other = DroneId("kit-1"), DroneId("kit-2")
        advertise(pool, other)
        for more, answer in modes:
            advertise(pool, one)
            async with overlay_on(pool, **more) as overlay:
                (receipt,) = await overlay.forget({one: time.time() - 3600})
                assert receipt.answer is answer and pool.drone_slots(one), "it was heard since, so it lives"
                (receipt,) = await overlay.forget({one: time.time() + 2})
            assert receipt.answer is answer, receipt
            assert bool(pool.drone_slots(one)) is (answer is OrderOutcome.REJECTED)
            assert pool.drone_slots(other), "another drone"
        assert receipt.fault is not None and receipt.fault.kind is FaultKind.DENIED, receipt
        assert "ADVERTISE_STARTD" in receipt.fault.message and "reader@" in receipt.fault.message, receipt
