"""How drones end, or wait, at a real Slurm: whatever happens to them there is told for what it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL

import pytest

from adapters.slurm import SlurmSite
from provisioner import model
from provisioner.adapter_tests import eventually
from tests.labs.controller import Sightings
from tests.labs.facilities import horeka
from tests.labs.htcondor import Condor, meanwhile, own, until
from tests.labs.slurm import SlurmLab
from tests.labs.slurm_sites import A100, HERE, site_config

pytestmark = pytest.mark.xdist_group("slurm")

CONTROLLER = own("ends")
TOLD = b"#!/bin/sh\ntrap 'exit 0' TERM\nwhile :; do sleep 0.2; done\n"

BACKFILL = replace(A100, name="backfill")
SHORT = replace(A100, name="short", walltime_s=60.0)
LOST = replace(A100, name="lost")
LONG = replace(A100, name="long", walltime_s=3 * 86400.0)
NOWHERE = replace(A100, name="nowhere")
TYPES = (A100, BACKFILL, SHORT, LOST, LONG, NOWHERE)
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "a100": {"gres": "gpu:a100"},
    "backfill": {"gres": "gpu:h100", "partition": "backfill"},
    "short": {"gres": "gpu:a100", "submit": {"nodelist": "hkn0801"}},
    "lost": {"gres": "gpu:a100", "submit": {"nodelist": "hkn0802"}},
    "long": {"gres": "gpu:a100"},
    "nowhere": {"gres": "gpu:a100", "constraint": "no-such-feature"},
}


def drone_id(serial: int) -> model.DroneId:
    return model.DroneId(f"{CONTROLLER}-ab12-{serial}")


def order(serial: int, kind: model.DroneType = A100, script: bytes = TOLD) -> model.StartOrder:
    return model.StartOrder(drone_id(serial), kind, 600.0, 3.0, model.Bootstrap(script))


async def seen(
    site: SlurmSite, serial: int, what: str, wanted: Callable[[model.RemoteDrone], object]
) -> model.RemoteDrone:
    async def ask() -> model.RemoteDrone | None:
        found = (await site.poll()).drones.get(drone_id(serial))
        return found if found is not None and wanted(found) else None

    return await eventually(f"drone {serial} {what}", ask, 150)


async def ends(site: SlurmSite, serial: int) -> model.RemoteEnd:
    found = await seen(site, serial, "has ended", lambda drone: drone.end)
    assert found.end is not None
    return found.end


async def test_each_end_and_each_wait_is_told_for_what_it_is(
    new_slurm: Callable[..., SlurmLab], tmp_path: Path
) -> None:
    lab = new_slurm(slurmd_timeout_s=15)
    config = site_config(lab, "tools", tmp_path, types=OPTIONS)
    async with SlurmSite(HERE, config, list(TYPES), CONTROLLER) as site:
        timed, cancelled, requeued, failing, held = 1, 2, 3, 4, 5
        lost, preempted, late, nowhere = 6, 7, 8, 9
        receipts = await site.start(
            [
                order(timed, SHORT, b"#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 0.2; done\n"),
                order(cancelled),
                order(requeued),
                order(failing, script=b"#!/bin/sh\nexit 71\n"),
                order(preempted, BACKFILL),
                order(late, LONG),
                order(nowhere, NOWHERE),
            ]
        )
        assert [r.answer for r in receipts] == [model.OrderOutcome.OK] * 6 + [
            model.OrderOutcome.REJECTED
        ]
        refused = receipts[-1].fault
        assert refused is not None and refused.kind is model.FaultKind.CONFIG, refused
        jobs = {r.drone_id: r.remote_id for r in receipts}

        # A limit of the partition: it waits, and will for ever.
        waits = await seen(
            site, late, "waits", lambda d: d.blocked and d.reason != "PartitionConfig"
        )
        assert (waits.state, waits.blocked) == (model.RemoteState.PENDING, model.FaultKind.CONFIG)
        assert waits.reason == "PartitionTimeLimit" and waits.hopeless

        # By itself, with an exit status.
        by_itself = await ends(site, failing)
        assert (by_itself.kind, by_itself.exit_code) == (model.EndKind.EXITED, 71)

        # Cancelled by an administrator.
        for serial in (cancelled, requeued, preempted, timed):
            await seen(site, serial, "runs", lambda d: d.state is model.RemoteState.RUNNING)
        lab.run("scancel", jobs[drone_id(cancelled)], user="root")
        taken = await ends(site, cancelled)
        assert taken.kind is not model.EndKind.EXITED and "cancel" in taken.message.lower(), taken

        # Requeued by an administrator: no second life.
        lab.run("scontrol", "update", f"jobid={jobs[drone_id(requeued)]}", "requeue=1", user="root")
        lab.run("scontrol", "requeue", jobs[drone_id(requeued)], user="root")
        again = await seen(
            site, requeued, "runs no more", lambda d: d.state is not model.RemoteState.RUNNING
        )
        assert again.state in (model.RemoteState.PENDING, model.RemoteState.ENDED), again

        # Held before it began.
        lab.run("scontrol", "update", "partitionname=accelerated", "state=down", user="root")
        await site.start([order(held)])
        [receipt] = await site.start([order(held)])
        lab.run("scontrol", "hold", receipt.remote_id, user="root")
        stays = await seen(site, held, "is held", lambda d: d.blocked)
        assert (
            stays.state is model.RemoteState.PENDING and stays.hopeless and "Held" in stays.reason
        ), stays
        lab.run("scontrol", "update", "partitionname=accelerated", "state=up", user="root")

        # The owner's job takes the place of a drone: notice, grace, end.
        whole_node = ("-p", "accelerated-h100", "--gres=gpu:h100:4", "-c8", "--mem=1G", "-t10")
        took = lab.sbatch("#!/bin/sh\nsleep 300\n", *whole_node, user="owner")
        told = await seen(
            site, preempted, "has its notice or its end", lambda d: d.notice_at or d.end
        )
        assert told.notice_at or (told.end and told.end.kind is model.EndKind.PREEMPTED)
        assert (await ends(site, preempted)).kind is model.EndKind.PREEMPTED
        lab.reaches(took, "RUNNING", within_s=90)

        # A node dies with what runs on it.
        await site.start([order(lost, LOST)])
        ran = await seen(site, lost, "runs", lambda d: d.state is model.RemoteState.RUNNING)
        lab.signal(f"slurmd-{ran.node}", SIGKILL)
        fault = await ends(site, lost)
        assert (fault.kind, fault.fault) == (model.EndKind.FAULT, model.FaultKind.NODE), fault

        # Its time is up, and it does not leave when it is told.
        over = await ends(site, timed)
        assert over.kind is model.EndKind.STOPPED and "time" in over.message, over

        view = await site.poll()
        assert drone_id(nowhere) not in view.drones, (
            "what was refused is no drone, though Slurm keeps a record of it"
        )
        shown = {
            drone.remote_id
            for drone in view.drones.values()
            if drone.state is not model.RemoteState.ENDED
        }
        assert {job.id for job in lab.jobs("-u", "drone") if job.alive} <= shown, (
            "nothing lives that is not shown"
        )


@pytest.mark.matrix
def test_a_quota_is_told_and_never_overstepped(
    newest_condor: Condor, new_slurm: Callable[..., SlurmLab]
) -> None:
    cluster = new_slurm(max_submit_jobs=3, h100=0)
    with horeka(newest_condor, cluster, "tools", most=5) as lab:
        lab.controller.start()
        lab.submit(8)
        with meanwhile(seen := Sightings(lab.controller, lab.alive)):
            time.sleep(20)
        assert max(each.total() for each in seen.seen) == 3
        demand = lab.controller.prints("demand")
        assert "quota" in demand, demand
        assert "Submit" in demand + lab.controller.prints("status") + lab.controller.prints(
            "sites"
        ), demand
        busy = until(
            lambda: [d for d in lab.controller.live() if d["state"] == "busy"],
            60,
            what="those there work",
        )
        assert len(busy) <= 3
        lab.let_go()
        lab.nothing_left()
