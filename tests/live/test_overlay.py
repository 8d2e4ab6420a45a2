"""The HTCondor overlay on real daemons: what it reads, whom it needs, how it fails."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.htcondor.overlay import HTCondorOverlay, client_directory
from provisioner.interfaces import AuthError, UnavailableError
from provisioner.model import (
    DrainMode,
    DroneId,
    FaultKind,
    OrderOutcome,
    SlotState,
    StartOrder,
    UnmetRequirement,
)
from provisioner.worker_process import WorkerProcess
from tests.htcondor_overlay.live import (
    A100,
    classes_of,
    config,
    in_state,
    overlay_on,
    seen,
    slot_of,
)
from tests.labs.htcondor import LOOPBACK, QUICK_DRONE, DroneProcess, Pool, StartDrone, gpu_job


@contextlib.asynccontextmanager
async def watched_loop() -> AsyncIterator[list[float]]:
    """An item for each turn that the event loop takes meanwhile: when that was."""
    turns: list[float] = []

    async def watch() -> None:
        while True:
            turns.append(time.monotonic())
            await asyncio.sleep(0.02)

    task = asyncio.create_task(watch())
    try:
        yield turns
    finally:
        task.cancel()


# -------------------------------------------------------------------------------------------------------------
# queues


async def test_a_constraint_is_put_to_the_groups_and_not_to_the_jobs(pool: Pool) -> None:
    pool.submit(gpu_job(n=3))
    directory = client_directory(config(pool))
    directory.refresh()
    raw = WorkerProcess(
        "tests.htcondor_overlay.served_condor:Raw", pool.collector, env=directory.env
    )
    try:
        assert await raw.call("group", "JobStatus == 1", ["RequestGPUs"], deadline_s=20.0) == 0, (
            "the trap"
        )
        assert (
            await raw.call("group", "JobStatus == 1", ["RequestGPUs", "JobStatus"], deadline_s=20.0)
            == 3
        )
    finally:
        await raw.close()
        directory.close()
    async with overlay_on(pool, constraint='Iwd != "/nowhere"') as overlay:
        (found,) = classes_of(await overlay.poll([]))
        assert found.waiting + found.fresh == 3, (
            "an operator's constraint brings its attributes along"
        )
    async with overlay_on(pool, constraint='Iwd == "/nowhere"') as overlay:
        assert classes_of(await overlay.poll([])) == []


async def test_three_autoclusters_and_what_refuses_them(pool: Pool) -> None:
    plain = pool.submit(gpu_job(n=3))
    large = pool.submit(gpu_job(n=2, more="gpus_minimum_memory = 35000"))
    newest = pool.submit(gpu_job(n=1, more="require_gpus = Capability >= 9.5"))
    small = replace(A100, name="v100", vram_mib=16384, capability=70, gpu_model="Tesla V100")
    untold = replace(A100, name="untold", vram_mib=0, capability=0, gpu_model="")
    types = [A100, small, untold]
    async with overlay_on(pool) as overlay:
        view = await seen(
            overlay, lambda v: sum(c.waiting for c in classes_of(v)) == 6, types=types
        )
        again = await overlay.poll(types)
    assert again.classes == view.classes, "two looks at the same queue are the same"
    by_cluster = {int(c.job_ids.partition(".")[0]): c for c in classes_of(view)}
    assert [by_cluster[cluster].waiting for cluster in (plain, large, newest)] == [3, 2, 1]
    assert (by_cluster[large].vram_mib, by_cluster[newest].capability) == (35000, 95)
    assert all(
        c.gpu_milli == 1000 and abs(c.oldest_at - time.time()) < 60 for c in by_cluster.values()
    )
    # a type that the plain numbers rule out needs no verdict; one that tells no numbers gets one
    assert by_cluster[plain].refuses == {}
    assert by_cluster[large].refuses == {
        untold.key: UnmetRequirement("vram", "35000 MiB", "unknown")
    }
    assert by_cluster[newest].refuses == {
        untold.key: UnmetRequirement("capability", "9.5", "unknown")
    }


async def test_requests_that_nobody_can_meet_get_a_repair(pool: Pool) -> None:
    asked = {
        text: pool.submit(gpu_job().replace("request_gpus = 1", f"request_gpus = {text}"))
        for text in ("0.5", "-1", "NoSuch", "1000000000", "0")
    }
    async with overlay_on(pool) as overlay:
        view = await overlay.poll([A100])
    found = {int(c.job_ids.partition(".")[0]): c for c in classes_of(view)}
    assert "HTCondor hands out whole GPUs" in found[asked["0.5"]].invalid
    assert "negative" in found[asked["-1"]].invalid
    assert "not a number" in found[asked["NoSuch"]].invalid
    assert (
        found[asked["1000000000"]].invalid == "" and found[asked["1000000000"]].gpu_milli == 10**12
    )
    assert asked["0"] not in found, "a job that wants no GPU is none of ours"


async def test_jobs_are_fresh_until_a_negotiation_cycle_has_seen_them_even_in_a_pool_without_slots(
    new_pool: Callable[[str], Pool],
) -> None:
    """The Negotiator's own ad would tell only every NEGOTIATOR_UPDATE_INTERVAL; the accounting ads tell each cycle."""
    pool = new_pool(
        "NEGOTIATOR_INTERVAL = 6\nNEGOTIATOR_MIN_INTERVAL = 6\nNEGOTIATOR_CYCLE_DELAY = 6\n"
    )
    async with overlay_on(pool) as overlay:
        first = await seen(overlay, lambda v: v.negotiated_at > 0)
        before = await seen(overlay, lambda v: v.negotiated_at > first.negotiated_at)
        pool.submit(gpu_job(n=5))
        view = await overlay.poll([A100])
        assert abs(view.taken_at - view.negotiated_at) < 10
        # else the host was so slow that a cycle came in between
        if view.negotiated_at == before.negotiated_at:
            assert [(c.waiting, c.fresh) for c in classes_of(view)] == [(0, 5)]
        after = await seen(overlay, lambda v: classes_of(v)[0].waiting == 5)
        assert after.negotiated_at > before.negotiated_at and classes_of(after)[0].fresh == 0
        pool.signal("negotiator", signal.SIGSTOP)  # no cycle any more: nothing becomes demand
        pool.submit(gpu_job(n=2))
        await asyncio.sleep(2)
        assert [(c.waiting, c.fresh) for c in classes_of(await overlay.poll([A100]))] == [(5, 2)]


# --------------------------------------------------------------------------------------------------------
# credentials


async def test_without_a_good_token_it_is_denied_and_says_so(pool: Pool, tmp_path: Path) -> None:
    async with overlay_on(pool, token={"file": str(tmp_path / "none")}) as overlay:
        with pytest.raises(AuthError, match=r"token of the overlay.*none.*No such file"):
            await overlay.poll([A100])
    garbage = tmp_path / "token"
    garbage.write_text("this is no token\n")
    async with overlay_on(pool, token={"file": str(garbage)}) as overlay:
        with pytest.raises(AuthError, match=r"(?i)authenticat"):
            await overlay.poll([A100])
        garbage.write_text(pool.token("reader", ["READ"]) + "\n")
        assert (await overlay.poll([A100])).taken_at > 0, "a token that was replaced is taken up"
    async with overlay_on(pool, drone_token={"file": str(tmp_path / "none")}) as overlay:
        with pytest.raises(AuthError, match="token for drones"):
            await overlay.bootstrap(StartOrder(DroneId("kit-1"), A100, 60.0, 10.0))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file to another account")
async def test_a_token_of_another_account_is_used_if_it_can_be_read(
    pool: Pool, tmp_path: Path
) -> None:
    """HTCondor itself would ignore it and say `No token found`."""
    file = tmp_path / "token"
    file.write_text(pool.token("reader", ["READ"]) + "\n")
    os.chown(file, 65534, 65534)
    file.chmod(0o640)
    async with overlay_on(pool, token={"file": str(file)}) as overlay:
        assert (await overlay.poll([A100])).taken_at > 0


# --------------------------------------------------------------------------------------------------------------
# outages


@pytest.mark.parametrize("daemon", ["collector", "schedd"])
async def test_a_daemon_that_hangs_costs_one_deadline_and_never_the_loop(
    new_pool: Callable[[str], Pool], daemon: str
) -> None:
    pool = new_pool("")
    pool.submit(gpu_job(n=2))
    async with overlay_on(pool, deadline="10s") as overlay:
        # the first poll starts a process, which may take longer
        before = await seen(overlay, classes_of)
        pool.signal(daemon, signal.SIGSTOP)
        async with watched_loop() as turns:
            began = time.monotonic()
            with pytest.raises(UnavailableError, match="no answer within 10 s"):
                await overlay.poll([A100])
        assert time.monotonic() - began > 9.9
        assert len(turns) > 15, (
            "the loop went on: had the call held it up, it would have turned once or twice"
        )
        pool.signal(daemon, signal.SIGCONT)
        after = await seen(overlay, classes_of)
        assert [c.id for c in after.classes] == [c.id for c in before.classes]


async def test_a_schedd_that_has_gone_is_an_error_and_not_an_empty_queue(
    new_pool: Callable[[str], Pool],
) -> None:
    pool = new_pool("MASTER_BACKOFF_CONSTANT = 600\nMASTER_BACKOFF_CEILING = 600\n")
    pool.submit(gpu_job(n=2))
    async with overlay_on(pool, collector_memory="3s") as overlay:
        await overlay.poll([A100])
        pool.signal("schedd", signal.SIGKILL)
        with pytest.raises(UnavailableError, match="schedd"):
            while True:
                await overlay.poll([A100])
                await asyncio.sleep(0.1)
    async with overlay_on(pool, schedds=["nobody@elsewhere"]) as overlay:
        with pytest.raises(UnavailableError, match="does not list nobody@elsewhere"):
            await overlay.poll([A100])


# ---------------------------------------------------------------------------------------------------------------
# slots


async def test_the_life_of_a_drone_in_the_pool(pool: Pool, drone_on: StartDrone) -> None:
    async with overlay_on(pool) as overlay:
        drone = drone_on(pool, "kit-1")
        idle = slot_of(await seen(overlay, in_state(SlotState.IDLE, drone)), drone.id)
        assert idle is not None
        assert (idle.free_gpu_milli, idle.free_cpus, idle.free_memory_mib) == (1000, 2, 512)
        assert (idle.jobs, idle.jobs_started, idle.capability) == (
            0,
            0,
            80,
        ) and idle.vram_mib > 40000
        assert abs(time.time() - idle.heard_at) < 20 and abs(time.time() - idle.idle_since) < 30
        assert abs(idle.retires_at - time.time() - 3600) < 600
        pool.submit(gpu_job(2))
        busy = slot_of(await seen(overlay, in_state(SlotState.BUSY, drone)), drone.id)
        assert busy is not None and (busy.jobs, busy.free_gpu_milli, busy.free_cpus) == (1, 0, 1)
        assert busy.idle_since == 0.0 and busy.jobs_started <= 1, (
            "claimed is busy, whether its job runs yet or not"
        )
        done = slot_of(await seen(overlay, in_state(SlotState.IDLE, drone)), drone.id)
        assert done is not None and done.jobs_started == 1 and done.idle_since > idle.idle_since
        drone.kill()
        await asyncio.sleep(5)
        dead = slot_of(await overlay.poll([A100]), drone.id)
        assert dead is not None, "being listed says nothing"
        assert time.time() - dead.heard_at > 4, "being heard does"


async def test_a_drone_that_pulls_out_its_teeth_is_checking(
    pool: Pool, drone_on: StartDrone
) -> None:
    async with overlay_on(pool) as overlay:
        drone = drone_on(pool, "kit-2")
        await seen(overlay, in_state(SlotState.IDLE, drone))
        (drone.dir / "condor/etc/config.d/60-test").write_text("START = False\n")
        pool.account.give(drone.dir / "condor/etc/config.d")
        os.kill(drone.startd(), signal.SIGHUP)
        await seen(overlay, in_state(SlotState.CHECKING, drone))


async def test_a_collector_that_starts_anew_does_not_empty_the_pool(
    new_pool: Callable[[], Pool], drone_on: StartDrone
) -> None:
    """It forgets every ad; startds call again only at their next update."""
    pool = new_pool()
    drone = drone_on(
        pool, "kit-1", files={"extra.conf": f"UPDATE_INTERVAL = 600\n{LOOPBACK}".encode()}
    )
    async with overlay_on(pool) as overlay:
        before = slot_of(await seen(overlay, in_state(SlotState.IDLE, drone)), drone.id)
        first = pool.daemon("collector")
        pool.signal("collector", signal.SIGKILL)
        view = await seen(
            overlay, lambda v: any("collector restarted" in line for line in v.notices)
        )
        assert pool.daemon("collector") != first and slot_of(view, drone.id) == before


# ---------------------------------------------------------------------------------------------------------------
# drain


BEHIND_CCB = f"{QUICK_DRONE}PRIVATE_NETWORK_NAME = node.example\n".encode()
"""A drone on another network, as on any worker node: who wants to talk to it asks the collector to
have it call back. Where all is on one host the names agree, and HTCondor leaves CCB out."""


async def runs(overlay: HTCondorOverlay, pool: Pool, drone: DroneProcess, cluster: int) -> None:
    await seen(
        overlay, lambda v: in_state(SlotState.BUSY, drone)(v) and pool.statuses(cluster) == [2]
    )


async def drained(overlay: HTCondorOverlay, drone: DroneProcess, mode: DrainMode) -> OrderOutcome:
    (receipt,) = await overlay.drain([DroneId(drone.id)], mode, "a test; $(reboot) `reboot`")
    assert receipt.answer is OrderOutcome.OK or receipt.fault
    return receipt.answer


async def test_peaceful_lets_the_job_end_and_resume_takes_it_back(
    pool: Pool, drone_on: StartDrone
) -> None:
    """Drain a drone behind CCB: the tool was refused each time, because it looked for a shared port daemon."""
    async with overlay_on(pool) as overlay:
        drone = drone_on(pool, "kit-1", files={"extra.conf": BEHIND_CCB})
        first, second = (pool.file(f"peaceful-{n}") for n in (1, 2))
        cluster = pool.submit(gpu_job(until_there=first))
        await runs(overlay, pool, drone, cluster)
        for _ in range(2):  # asked twice is asked once
            assert await drained(overlay, drone, DrainMode.PEACEFUL) is OrderOutcome.OK
            await seen(overlay, in_state(SlotState.DRAINING, drone))
        for _ in range(2):
            assert await drained(overlay, drone, DrainMode.RESUME) is OrderOutcome.OK
            await seen(overlay, lambda v: not in_state(SlotState.DRAINING, drone)(v))
        assert pool.statuses(cluster) == [2], "the job has gone on"
        first.touch()
        again = pool.submit(gpu_job(0))
        await seen(overlay, lambda _: pool.statuses(again) == [])
        last = pool.submit(gpu_job(until_there=second))
        await runs(overlay, pool, drone, last)
        assert await drained(overlay, drone, DrainMode.PEACEFUL) is OrderOutcome.OK
        await seen(overlay, in_state(SlotState.DRAINING, drone))
        second.touch()
        drone.wait()
        await seen(overlay, lambda _: pool.statuses(last) == [])
        ended = [pool.history(each)[0] for each in (cluster, again, last)]
        assert [ad["NumJobStarts"] for ad in ended] == [1, 1, 1], "ended, not thrown out"
        # else it might stay listed until CLASSAD_LIFETIME is over
        pool.forget(f'DroneId == "{drone.id}"')
        await seen(overlay, lambda v: slot_of(v, drone.id) is None)
        assert await drained(overlay, drone, DrainMode.PEACEFUL) is OrderOutcome.OK, (
            "gone is what was asked for"
        )


@pytest.mark.parametrize("mode", [DrainMode.GRACEFUL, DrainMode.FAST])
async def test_graceful_and_fast_do_not_wait_for_the_job(
    pool: Pool, drone_on: StartDrone, mode: DrainMode
) -> None:
    async with overlay_on(pool) as overlay:
        drone = drone_on(pool, "kit-1")
        cluster = pool.submit(gpu_job(600))
        await runs(overlay, pool, drone, cluster)
        assert await drained(overlay, drone, DrainMode.PEACEFUL) is OrderOutcome.OK
        await seen(overlay, in_state(SlotState.DRAINING, drone))
        assert await drained(overlay, drone, mode) is OrderOutcome.OK, (
            "what was asked gently can be asked harder"
        )
        drone.wait()
        # with 25.14 a shadow whose startd left fast may look for it until the job's lease (60 s
        # here) is over
        await seen(overlay, lambda _: pool.statuses(cluster) == [1])


async def test_a_drain_that_is_denied_or_not_answered_is_told(
    pool: Pool, drone_on: StartDrone
) -> None:
    drone = drone_on(pool, "kit-1")
    async with overlay_on(pool, "reader") as overlay:
        await seen(overlay, in_state(SlotState.IDLE, drone))
        (receipt,) = await overlay.drain([DroneId(drone.id)], DrainMode.PEACEFUL, "out")
        assert receipt.answer is OrderOutcome.REJECTED and receipt.fault
        assert receipt.fault.kind is FaultKind.DENIED, receipt.fault.message
        assert in_state(SlotState.IDLE, drone)(await overlay.poll([A100]))
    async with overlay_on(pool, drain_deadline="2s") as overlay:
        await seen(overlay, in_state(SlotState.IDLE, drone))
        startd = drone.startd()
        os.kill(startd, signal.SIGSTOP)
        try:
            (receipt,) = await overlay.drain([DroneId(drone.id)], DrainMode.PEACEFUL, "out")
        finally:
            os.kill(startd, signal.SIGCONT)
        assert (
            receipt.answer is OrderOutcome.UNKNOWN
            and receipt.fault
            and "within 2 s" in receipt.fault.message
        )


async def test_check_finds_out_whether_drains_will_work(pool: Pool) -> None:
    """`check --live` said "overlay yes" with any token, and drains were refused later."""
    async with overlay_on(pool) as overlay:
        assert await overlay.probe(here=False) == []
    assert pool.run("condor_status", "-generic", "-af", "DroneOrderFor").strip() == "", (
        "nothing is left of it"
    )
    async with overlay_on(pool, "reader") as overlay:
        (gap,) = await overlay.probe(here=False)
        assert "ADMINISTRATOR" in gap.message and "DAEMON" in gap.message
    boss = pool.dir / "boss.token"
    boss.write_text(pool.token("admin", ["READ", "ADMINISTRATOR"]) + "\n")
    async with overlay_on(pool, token={"file": str(boss)}) as overlay:
        (gap,) = await overlay.probe(here=False)
        assert "COLLECTOR.ALLOW_DAEMON" in gap.message and "cannot reach this host" in gap.message


async def test_an_administrator_of_any_name_may_drain(
    new_pool: Callable[[str], Pool], drone_on: StartDrone, tmp_path: Path
) -> None:
    """The collector hands the startd's secret to whoever is its administrator; the drone knows nobody by name."""
    pool = new_pool("ALLOW_ADMINISTRATOR = condor@own.test boss@own.test\n")
    file = tmp_path / "token"
    file.write_text(pool.token("boss", ["READ", "ADMINISTRATOR"]) + "\n")
    drone = drone_on(pool, "kit-1")
    async with overlay_on(pool, token={"file": str(file)}) as overlay:
        await seen(overlay, in_state(SlotState.IDLE, drone))
        assert await drained(overlay, drone, DrainMode.PEACEFUL) is OrderOutcome.OK
        drone.wait()
