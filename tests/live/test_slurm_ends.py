"""How drones end, or wait, at a real Slurm: whatever happens to them there is told for what it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL

import pytest

from adapters.slurm import SlurmSite
from provisioner.adapter_tests import eventually
from provisioner.model import (
    Bootstrap,
    DroneId,
    DroneType,
    EndKind,
    FaultKind,
    OrderOutcome,
    RemoteDrone,
    RemoteState,
    SiteView,
    StartOrder,
)
from tests.labs.horeka import horeka
from tests.labs.htcondor import Condor, own, until
from tests.labs.slurm import SlurmLab
from tests.labs.slurm_sites import A100, HERE, site_config

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("slurm")]

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


def drone_id(serial: int) -> DroneId:
    return DroneId(f"{CONTROLLER}-ab12-{serial}")


def order(serial: int, kind: DroneType = A100, script: bytes = TOLD) -> StartOrder:
    return StartOrder(drone_id(serial), kind, 600.0, 3.0, Bootstrap(script))


async def seen(site: SlurmSite, serial: int, what: str, wanted: Callable[[RemoteDrone], object]) -> RemoteDrone:
    async def ask() -> RemoteDrone | None:
        found = (await site.poll()).drones.get(drone_id(serial))
        return found if found is not None and wanted(found) else None

    return await eventually(f"drone {serial} {what}", ask, 150)


def ended(drone: RemoteDrone) -> tuple[EndKind, FaultKind | None, str] | None:
    return (drone.end.kind, drone.end.fault, drone.end.message) if drone.end else None


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
        assert [r.answer for r in receipts] == [OrderOutcome.OK] * 6 + [OrderOutcome.REJECTED]
        refused = receipts[-1].fault
        assert refused is not None and refused.kind is FaultKind.CONFIG, refused
        jobs = {r.drone_id: r.remote_id for r in receipts}

        # A limit of the partition: it waits, and will for ever.
        waits = await seen(site, late, "waits", lambda d: d.blocked and d.reason != "PartitionConfig")
        assert (waits.state, waits.blocked, waits.reason) == (
            RemoteState.PENDING,
            FaultKind.CONFIG,
            "PartitionTimeLimit",
        )
        assert waits.hopeless

        # By itself, with an exit status.
        by_itself = await seen(site, failing, "has ended", ended)
        assert by_itself.end is not None
        assert (by_itself.end.kind, by_itself.end.exit_code) == (EndKind.EXITED, 71)

        # Cancelled by an administrator.
        for serial in (cancelled, requeued, preempted, timed):
            await seen(site, serial, "runs", lambda d: d.state is RemoteState.RUNNING)
        lab.run("scancel", jobs[drone_id(cancelled)], user="root")
        taken = await seen(site, cancelled, "has ended", ended)
        assert taken.end is not None and taken.end.kind is not EndKind.EXITED, taken.end
        assert "cancel" in taken.end.message.lower(), taken.end

        # Requeued by an administrator: no second life.
        lab.run("scontrol", "update", f"jobid={jobs[drone_id(requeued)]}", "requeue=1", user="root")
        lab.run("scontrol", "requeue", jobs[drone_id(requeued)], user="root")
        again = await seen(
            site, requeued, "is back in the queue or at its end", lambda d: d.state is not RemoteState.RUNNING
        )
        assert again.state in (RemoteState.PENDING, RemoteState.ENDED), again

        # Held before it began.
        lab.run("scontrol", "update", "partitionname=accelerated", "state=down", user="root")
        await site.start([order(held)])
        [receipt] = await site.start([order(held)])
        lab.run("scontrol", "hold", receipt.remote_id, user="root")
        stays = await seen(site, held, "is held", lambda d: d.blocked)
        assert stays.state is RemoteState.PENDING and stays.hopeless and "Held" in stays.reason, stays
        lab.run("scontrol", "update", "partitionname=accelerated", "state=up", user="root")

        # The owner's job takes the place of a drone: notice, grace, end.
        took = lab.sbatch(
            *("#!/bin/sh\nsleep 300\n", "-p", "accelerated-h100", "--gres=gpu:h100:4", "-c8", "--mem=1G", "-t10"),
            user="owner",
        )
        told = await seen(site, preempted, "has its notice or its end", lambda d: d.notice_at or d.end)
        assert told.notice_at or (told.end and told.end.kind is EndKind.PREEMPTED)
        gone = await seen(site, preempted, "has ended", ended)
        assert gone.end is not None and gone.end.kind is EndKind.PREEMPTED
        lab.reaches(took, "RUNNING", within_s=90)

        # A node dies with what runs on it.
        [receipt] = await site.start([order(lost, LOST)])
        ran = await seen(site, lost, "runs", lambda d: d.state is RemoteState.RUNNING)
        lab.signal(f"slurmd-{ran.node}", SIGKILL)
        fault = await seen(site, lost, "has ended", ended)
        assert ended(fault) is not None and ended(fault)[:2] == (EndKind.FAULT, FaultKind.NODE), ended(fault)  # type: ignore[index]

        # Its time is up, and it does not leave when it is told.
        over = await seen(site, timed, "has ended", ended)
        assert over.end is not None and over.end.kind is EndKind.STOPPED and "time" in over.end.message, over.end

        view = await site.poll()
        assert drone_id(nowhere) not in view.drones, "what was refused is no drone, though Slurm keeps a record of it"
        shows(view, lab)


def shows(view: SiteView, lab: SlurmLab) -> None:
    """Nothing lives at the site that the view does not show as alive."""
    alive = {job.id for job in lab.jobs("-u", "drone") if job.state in ("PENDING", "RUNNING", "COMPLETING")}
    told = {drone.remote_id for drone in view.drones.values() if drone.state is not RemoteState.ENDED}
    assert alive <= told, (alive, told)


def test_a_quota_is_told_and_never_overstepped(newest_condor: Condor, new_slurm: Callable[..., SlurmLab]) -> None:
    cluster = new_slurm(max_submit_jobs=3, h100=0)
    with horeka(newest_condor, cluster, "tools", most=5) as lab:
        lab.controller.start()
        lab.submit(8)
        most = 0
        limit = time.monotonic() + 20
        while time.monotonic() < limit:
            most = max(most, sum(lab.alive().values()))
            time.sleep(0.5)
        assert most == 3
        demand = lab.controller.call("demand").stdout
        assert "quota" in demand, demand
        told = lab.controller.call("status").stdout + lab.controller.call("sites").stdout
        assert "Submit" in " ".join((told + demand).split()), told
        busy = until(lambda: [d for d in lab.controller.live() if d["state"] == "busy"], 60, what="those there work")
        assert len(busy) <= 3
        lab.let_go()
        lab.nothing_left()
