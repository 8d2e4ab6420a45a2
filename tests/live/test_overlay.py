"""The HTCondor overlay on real daemons: what it reads, whom it needs, how it fails."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from adapters.htcondor.overlay import HTCondorOverlay, client_directory
from provisioner import drone
from provisioner.interfaces import AuthError, UnavailableError
from provisioner.model import (
    DrainMode,
    DroneId,
    FaultKind,
    OrderOutcome,
    OverlayView,
    Slot,
    SlotState,
    StartOrder,
    UnmetRequirement,
)
from provisioner.worker_process import WorkerProcess
from tests.htcondor_overlay.live import A100, CLIENT, classes_of, config, overlay_on
from tests.labs.htcondor import QUICK_DRONE, DroneProcess, Pool, children_of, gpu_job, own, start_drone

pytestmark = pytest.mark.timeout(600)

ONE, TWO = DroneId(own("kit-1")), DroneId(own("kit-2"))


@pytest.fixture
def queue(overlay_pool: Pool) -> Iterator[Callable[..., int]]:
    """Submit to the session's pool; its queue is empty again afterwards."""
    clusters: list[int] = []

    def submit(text: str) -> int:
        clusters.append(overlay_pool.submit(text))
        return clusters[-1]

    yield submit
    for cluster in clusters:
        overlay_pool.remove(cluster)


@contextlib.contextmanager
def a_drone(pool: Pool, drone_id: str = ONE, config: str = "", **env: str) -> Iterator[DroneProcess]:
    """One of our drones, gone afterwards; ``config`` are further lines of its HTCondor configuration."""
    home = pool.root / "drones" / f"{drone_id}-{time.monotonic_ns()}"
    extra = {"extra.conf": f"{QUICK_DRONE}{config}".encode()}
    made = start_drone(pool, drone_id, drone.script("condor_drone.sh"), env=env, files=extra, directory=home)
    try:
        yield made
    finally:
        made.stop()
        pool.forget(f'DroneId == "{drone_id}"')


async def eventually(
    poll: Callable[[], Awaitable[OverlayView]], what: Callable[[OverlayView], object], within_s: float = 60.0
) -> OverlayView:
    """Look until something is so."""
    limit = time.monotonic() + within_s
    while True:
        view = await poll()
        if what(view):
            return view
        assert time.monotonic() < limit, view
        await asyncio.sleep(0.2)


def slot_of(view: OverlayView, drone_id: str = ONE) -> Slot | None:
    return next((slot for slot in view.slots if slot.drone_id == drone_id), None)


def in_state(state: SlotState, drone_id: str = ONE) -> Callable[[OverlayView], bool]:
    def so(view: OverlayView) -> bool:
        slot = slot_of(view, drone_id)
        return slot is not None and slot.state is state

    return so


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


# ------------------------------------------------------------------------------------------------------------- queues


async def test_a_constraint_is_put_to_the_groups_and_not_to_the_jobs(
    overlay_pool: Pool, queue: Callable[[str], int]
) -> None:
    queue(gpu_job(n=3))
    directory = client_directory(config(overlay_pool))
    directory.refresh()
    raw = WorkerProcess("tests.htcondor_overlay.served_condor:Raw", overlay_pool.collector, env=directory.env)
    try:
        assert await raw.call("group", "JobStatus == 1", ["RequestGPUs"], deadline_s=20.0) == 0, "the trap"
        assert await raw.call("group", "JobStatus == 1", ["RequestGPUs", "JobStatus"], deadline_s=20.0) == 3
    finally:
        await raw.close()
        directory.close()
    async with overlay_on(overlay_pool, constraint='Iwd != "/nowhere"') as overlay:
        (found,) = classes_of(await overlay.poll([]))
        assert found.waiting + found.fresh == 3, "an operator's constraint brings its attributes along"
    async with overlay_on(overlay_pool, constraint='Iwd == "/nowhere"') as overlay:
        assert classes_of(await overlay.poll([])) == []


async def test_three_autoclusters_and_what_refuses_them(overlay_pool: Pool, queue: Callable[[str], int]) -> None:
    plain = queue(gpu_job(n=3))
    large = queue(gpu_job(n=2, more="gpus_minimum_memory = 35000"))
    newest = queue(gpu_job(n=1, more="require_gpus = Capability >= 9.5"))
    small = replace(A100, name="v100", vram_mib=16384, capability=70, gpu_model="Tesla V100")
    untold = replace(A100, name="untold", vram_mib=0, capability=0, gpu_model="")
    types = [A100, small, untold]
    async with overlay_on(overlay_pool) as overlay:
        view = await eventually(partial(overlay.poll, types), lambda v: sum(c.waiting for c in classes_of(v)) == 6)
        again = await overlay.poll(types)
    assert again.classes == view.classes, "two looks at the same queue are the same"
    by_cluster = {int(c.job_ids.partition(".")[0]): c for c in classes_of(view)}
    assert [by_cluster[cluster].waiting for cluster in (plain, large, newest)] == [3, 2, 1]
    assert (by_cluster[large].vram_mib, by_cluster[newest].capability) == (35000, 95)
    assert all(c.gpu_milli == 1000 and abs(c.oldest_at - time.time()) < 60 for c in by_cluster.values())
    # a type that the plain numbers rule out needs no verdict; one that tells no numbers gets one
    assert by_cluster[plain].refuses == {}
    assert by_cluster[large].refuses == {untold.key: UnmetRequirement("vram", "35000 MiB", "unknown")}
    assert by_cluster[newest].refuses == {untold.key: UnmetRequirement("capability", "9.5", "unknown")}


async def test_requests_that_nobody_can_meet_get_a_repair(overlay_pool: Pool, queue: Callable[[str], int]) -> None:
    asked = {
        text: queue(gpu_job().replace("request_gpus = 1", f"request_gpus = {text}"))
        for text in ("0.5", "-1", "NoSuch", "1000000000", "0")
    }
    async with overlay_on(overlay_pool) as overlay:
        view = await overlay.poll([A100])
    found = {int(c.job_ids.partition(".")[0]): c for c in classes_of(view)}
    assert "HTCondor hands out whole GPUs" in found[asked["0.5"]].invalid
    assert "negative" in found[asked["-1"]].invalid
    assert "not a number" in found[asked["NoSuch"]].invalid
    assert found[asked["1000000000"]].invalid == "" and found[asked["1000000000"]].gpu_milli == 10**12
    assert asked["0"] not in found, "a job that wants no GPU is none of ours"


async def test_jobs_are_fresh_until_a_negotiation_cycle_has_seen_them_even_in_a_pool_without_slots(
    new_pool: Callable[[str], Pool],
) -> None:
    """The Negotiator's own ad would tell only every NEGOTIATOR_UPDATE_INTERVAL; the accounting ads tell each cycle."""
    pool = new_pool("NEGOTIATOR_INTERVAL = 6\nNEGOTIATOR_MIN_INTERVAL = 6\nNEGOTIATOR_CYCLE_DELAY = 6\n")
    async with overlay_on(pool) as overlay:
        poll = partial(overlay.poll, [A100])
        first = await eventually(poll, lambda v: v.negotiated_at > 0)
        before = await eventually(poll, lambda v: v.negotiated_at > first.negotiated_at)
        pool.submit(gpu_job(n=5))
        view = await poll()
        assert abs(view.taken_at - view.negotiated_at) < 10
        if view.negotiated_at == before.negotiated_at:  # else the host was so slow that a cycle came in between
            assert [(c.waiting, c.fresh) for c in classes_of(view)] == [(0, 5)]
        seen = await eventually(poll, lambda v: classes_of(v)[0].waiting == 5)
        assert seen.negotiated_at > before.negotiated_at and classes_of(seen)[0].fresh == 0
        pool.signal("negotiator", signal.SIGSTOP)  # no cycle any more: nothing becomes demand
        pool.submit(gpu_job(n=2))
        await asyncio.sleep(2)
        assert [(c.waiting, c.fresh) for c in classes_of(await poll())] == [(5, 2)]


async def test_five_thousand_jobs_are_a_handful_of_groups(new_pool: Callable[[str], Pool]) -> None:
    pool = new_pool("")
    directory = client_directory(config(pool))
    directory.refresh()
    settings = (config(pool), "kit", str(directory.path / "schedds"))
    child = WorkerProcess("tests.htcondor_overlay.served_condor:Weighed", *settings, env=directory.env)
    try:
        pool.submit(gpu_job(n=1))
        await child.call("poll", (A100,), deadline_s=30.0)
        few_kib = await child.call("peak_kib", deadline_s=5.0)
        pool.submit(gpu_job(n=5000))
        view = (await child.call("poll", (A100,), deadline_s=30.0)).view
        many_kib = await child.call("peak_kib", deadline_s=5.0)
    finally:
        await child.close()
        directory.close()
    (found,) = classes_of(view)
    assert found.waiting + found.fresh == 5001
    assert many_kib - few_kib < 3000, "5000 ads of jobs would be some 20 MB"


# -------------------------------------------------------------------------------------------------------- credentials


async def test_without_a_good_token_it_is_denied_and_says_so(overlay_pool: Pool, tmp_path: Path) -> None:
    async with overlay_on(overlay_pool, token={"file": str(tmp_path / "none")}) as overlay:
        with pytest.raises(AuthError, match=r"token of the overlay.*none.*No such file"):
            await overlay.poll([A100])
    garbage = tmp_path / "token"
    garbage.write_text("this is no token\n")
    async with overlay_on(overlay_pool, token={"file": str(garbage)}) as overlay:
        with pytest.raises(AuthError, match=r"(?i)authenticat"):
            await overlay.poll([A100])
        garbage.write_text(overlay_pool.token("reader", ["READ"]) + "\n")
        assert (await overlay.poll([A100])).taken_at > 0, "a token that was replaced is taken up"
    async with overlay_on(overlay_pool, drone_token={"file": str(tmp_path / "none")}) as overlay:
        with pytest.raises(AuthError, match="token for drones"):
            await overlay.bootstrap(StartOrder(ONE, A100, 60.0, 10.0))


async def test_a_token_of_another_account_is_used_if_it_can_be_read_and_named_if_not(
    overlay_pool: Pool, tmp_path: Path
) -> None:
    """HTCondor itself would ignore it and say `No token found`."""
    file = tmp_path / "token"
    file.write_text(overlay_pool.token("reader", ["READ"]) + "\n")
    if os.geteuid() == 0:
        os.chown(file, 65534, 65534)
        file.chmod(0o640)
        async with overlay_on(overlay_pool, token={"file": str(file)}) as overlay:
            assert (await overlay.poll([A100])).taken_at > 0
    else:
        file.chmod(0o000)
        async with overlay_on(overlay_pool, token={"file": str(file)}) as overlay:
            with pytest.raises(AuthError, match="Permission denied"):
                await overlay.poll([A100])


async def test_nothing_is_taken_from_the_hosts_own_htcondor(
    overlay_pool: Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in (
        ("CONDOR_CONFIG", "/nonexistent"),
        ("_CONDOR_COLLECTOR_HOST", "elsewhere:1"),
        ("_condor_SEC_TOKEN_DIRECTORY", str(tmp_path)),
    ):
        monkeypatch.setenv(name, value)
    async with overlay_on(overlay_pool, "reader") as overlay:
        assert (await overlay.poll([A100])).taken_at > 0


# -------------------------------------------------------------------------------------------------------------- outages


@pytest.mark.parametrize("daemon", ["collector", "schedd"])
async def test_a_daemon_that_hangs_costs_one_deadline_and_never_the_loop(
    new_pool: Callable[[str], Pool], daemon: str
) -> None:
    pool = new_pool("")
    pool.submit(gpu_job(n=2))
    async with overlay_on(pool, deadline="3s") as overlay:
        before = await retried(overlay)  # the first poll starts a process, which may take longer on a busy machine
        pool.signal(daemon, signal.SIGSTOP)
        async with watched_loop() as turns:
            began = time.monotonic()
            with pytest.raises(UnavailableError, match="no answer within 3 s"):
                await overlay.poll([A100])
        assert time.monotonic() - began > 2.9
        assert len(turns) > 15, "the loop went on: had the call held it up, it would have turned once or twice"
        pool.signal(daemon, signal.SIGCONT)
        after = await eventually(partial(retried, overlay), lambda v: v.classes)
        assert [c.id for c in after.classes] == [c.id for c in before.classes]


async def retried(overlay: HTCondorOverlay) -> OverlayView:
    """The next look that succeeds."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await overlay.poll([A100])
            except UnavailableError:
                await asyncio.sleep(0.2)


async def test_a_schedd_that_has_gone_is_an_error_and_not_an_empty_queue(new_pool: Callable[[str], Pool]) -> None:
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


async def test_a_pool_that_is_not_there(overlay_pool: Pool) -> None:
    async with overlay_on(overlay_pool, collector="127.0.0.1:9", deadline="10s") as overlay:
        with pytest.raises(UnavailableError):
            await overlay.poll([A100])


# --------------------------------------------------------------------------------------------------------------- slots


async def test_the_life_of_a_drone_in_the_pool(overlay_pool: Pool, queue: Callable[[str], int]) -> None:
    async with overlay_on(overlay_pool) as overlay:
        poll = partial(overlay.poll, [A100])
        with a_drone(overlay_pool) as process:
            idle = slot_of(await eventually(poll, in_state(SlotState.IDLE)))
            assert idle is not None
            assert (idle.free_gpu_milli, idle.free_cpus, idle.free_memory_mib) == (1000, 2, 512)
            assert (idle.jobs, idle.jobs_started, idle.capability) == (0, 0, 80) and idle.vram_mib > 40000
            assert abs(time.time() - idle.heard_at) < 20 and abs(time.time() - idle.idle_since) < 30
            assert abs(idle.retires_at - time.time() - 3600) < 600
            queue(gpu_job(2))
            busy = slot_of(await eventually(poll, in_state(SlotState.BUSY)))
            assert busy is not None and (busy.jobs, busy.free_gpu_milli, busy.free_cpus) == (1, 0, 1)
            assert busy.idle_since == 0.0 and busy.jobs_started <= 1, "claimed is busy, whether its job runs yet or not"
            done = slot_of(await eventually(poll, in_state(SlotState.IDLE)))
            assert done is not None and done.jobs_started == 1 and done.idle_since > idle.idle_since
            # its node is lost: no last word to the pool, so the slot stays listed and grows old
            pids = [pid for pid in process.leftovers() if pid != process.process.pid]
            for pid in (*pids, process.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(5)
            dead = slot_of(await poll())
            assert dead is not None, "being listed says nothing"
            assert time.time() - dead.heard_at > 4, "being heard does"


async def test_a_drone_that_pulls_out_its_teeth_is_checking(overlay_pool: Pool) -> None:
    async with overlay_on(overlay_pool) as overlay:
        with a_drone(overlay_pool, TWO) as process:
            poll = partial(overlay.poll, [A100])
            await eventually(poll, in_state(SlotState.IDLE, TWO))
            (process.dir / "condor/etc/config.d/60-test").write_text("START = False\n")
            (process.dir / "condor/etc/config.d/60-test").chmod(0o644)
            overlay_pool.account.give(process.dir / "condor/etc/config.d")
            os.kill(startd_of(process), signal.SIGHUP)
            await eventually(poll, in_state(SlotState.CHECKING, TWO))


def startd_of(process: DroneProcess) -> int:
    """The pid of a drone's startd: script, master, startd."""
    below = children_of(process.process.pid)
    for parent in below:
        for pid, name in children_of(parent).items():
            if name == "condor_startd":
                return pid
    raise AssertionError(f"no startd below {below}")


HOSTILE = """\
MyType = "Machine"
TargetType = "Job"
Name = "slot1@x; touch /tmp/owned@host"
Machine = "host"
StartdIpAddr = "<127.0.0.1:1>"
MyAddress = "<127.0.0.1:1>"
SlotType = "Partitionable"
State = "Unclaimed"
Activity = "Idle"
"""


async def test_hostile_ads_are_notices_at_most(overlay_pool: Pool, tmp_path: Path) -> None:
    """Whoever has a drone's token can advertise anything."""
    ads = {
        "injected": 'DroneId = "x; rm -rf /"\n',
        "stranger": 'DroneId = "desy-1"\n',
        "ours": 'DroneId = "kit-evil"\nCpus = real("NaN")\nMemory = -7\nGPUs = 1e400\nJobStarts = error\n'
        'MyCurrentTime = "x"\nChildState = {1, undefined, error}\nStart = ((((true))))\nDisk = undefined\n'
        f'GPUs_DeviceName = "{"y" * 1000}"\nSiteName = "lab"\nDroneType = "a100"\n',
        "huge": f'DroneId = "kit-huge"\nGPUs_DeviceName = "{"y" * 1_000_000}"\n',
        "latin": 'DroneId = "kit-latin"\nSiteName = "K\udcf6ln"\nGPUs_DeviceName = "\udcff\udcfe"\n',
    }
    for at, (name, text) in enumerate(ads.items()):
        file = overlay_pool.file(f"{name}.ad")
        file.write_bytes((HOSTILE.replace("slot1", f"slot{at}") + text).encode(errors="surrogateescape"))
        file.chmod(0o644)
        overlay_pool.run("condor_advertise", "-tcp", "UPDATE_STARTD_AD", str(file), identity="drone")
    try:
        async with overlay_on(overlay_pool) as overlay:
            view = await eventually(
                partial(overlay.poll, [A100]), lambda v: slot_of(v, "kit-evil") and slot_of(v, "kit-latin")
            )
            evil = slot_of(view, "kit-evil")
            assert evil is not None and (evil.free_cpus, evil.free_memory_mib, evil.free_gpu_milli) == (0, 0, 0)
            assert len(evil.gpu_model) <= 80
            assert any("'x; rm -rf /' is not a drone id" in line for line in view.notices)
            assert any("other controllers" in line for line in view.remarks)
            assert all(len(line) < 400 and line.isprintable() for line in (*view.notices, *view.remarks))
            assert slot_of(view, "kit-huge") is None, "it stays in the collector"
            (receipt,) = await overlay.drain([DroneId("kit-evil")], DrainMode.FAST, "out")
            assert (
                receipt.answer is OrderOutcome.REJECTED and receipt.fault and "no slot of it" in receipt.fault.message
            )
    finally:
        overlay_pool.forget('StartdIpAddr == "<127.0.0.1:1>"')


async def test_a_collector_that_starts_anew_does_not_empty_the_pool(new_pool: Callable[[str], Pool]) -> None:
    """It forgets every ad; startds call again only at their next update."""
    pool = new_pool("")
    slow = "UPDATE_INTERVAL = 600\n" + CLIENT
    home = pool.root / "drones" / "slow"
    process = start_drone(
        pool, ONE, drone.script("condor_drone.sh"), files={"extra.conf": slow.encode()}, directory=home
    )
    try:
        async with overlay_on(pool) as overlay:
            poll = partial(retried, overlay)
            before = slot_of(await eventually(poll, in_state(SlotState.IDLE)))
            first = pool.daemon("collector")
            pool.signal("collector", signal.SIGKILL)
            view = await eventually(poll, lambda v: any("collector restarted" in line for line in v.notices))
            assert pool.daemon("collector") != first and slot_of(view) == before
    finally:
        process.stop()


# --------------------------------------------------------------------------------------------------------------- drain


BEHIND_CCB = "PRIVATE_NETWORK_NAME = node.example\n"
"""A drone on another network, as on any worker node: who wants to talk to it asks the collector to have it call back.
Where all is on one host the names agree, and HTCondor leaves CCB out."""


async def test_peaceful_lets_the_job_end_and_resume_takes_it_back(
    overlay_pool: Pool, queue: Callable[[str], int]
) -> None:
    """Drain a drone behind CCB: the tool was refused each time, because it looked for a shared port daemon."""
    async with overlay_on(overlay_pool) as overlay:
        poll = partial(overlay.poll, [A100])
        with a_drone(overlay_pool, config=BEHIND_CCB) as process:
            first, second = (overlay_pool.file(f"peaceful-{n}") for n in (1, 2))
            cluster = queue(gpu_job(until_there=first))
            await eventually(poll, lambda v: in_state(SlotState.BUSY)(v) and overlay_pool.statuses(cluster) == [2])
            assert await drained(overlay, DrainMode.PEACEFUL) is OrderOutcome.OK
            await eventually(poll, in_state(SlotState.DRAINING))
            assert await drained(overlay, DrainMode.PEACEFUL) is OrderOutcome.OK, "asked twice is asked once"
            assert await drained(overlay, DrainMode.RESUME) is OrderOutcome.OK
            await eventually(poll, lambda v: not in_state(SlotState.DRAINING)(v))
            assert await drained(overlay, DrainMode.RESUME) is OrderOutcome.OK, "asked twice is asked once"
            assert overlay_pool.statuses(cluster) == [2], "the job has gone on"
            first.touch()
            again = queue(gpu_job(0))
            await eventually(poll, lambda _: overlay_pool.statuses(again) == [])
            last = queue(gpu_job(until_there=second))
            await eventually(poll, lambda v: in_state(SlotState.BUSY)(v) and overlay_pool.statuses(last) == [2])
            assert await drained(overlay, DrainMode.PEACEFUL) is OrderOutcome.OK
            await eventually(poll, in_state(SlotState.DRAINING))
            second.touch()
            process.wait()
            await eventually(poll, lambda _: overlay_pool.statuses(last) == [])
            ended = [overlay_pool.history(each)[0] for each in (cluster, again, last)]
            assert [ad["NumJobStarts"] for ad in ended] == [1, 1, 1], "ended, not thrown out"
        # (its slot might have stayed listed until the collector's CLASSAD_LIFETIME is over: it was forgotten)
        await eventually(poll, lambda v: slot_of(v) is None)
        assert await drained(overlay, DrainMode.PEACEFUL) is OrderOutcome.OK, "gone is what was asked for"


@pytest.mark.parametrize("mode", [DrainMode.GRACEFUL, DrainMode.FAST])
async def test_graceful_and_fast_do_not_wait_for_the_job(
    overlay_pool: Pool, queue: Callable[[str], int], mode: DrainMode
) -> None:
    async with overlay_on(overlay_pool) as overlay:
        poll = partial(overlay.poll, [A100])
        with a_drone(overlay_pool) as process:
            cluster = queue(gpu_job(600))
            await eventually(poll, lambda v: in_state(SlotState.BUSY)(v) and overlay_pool.statuses(cluster) == [2])
            assert await drained(overlay, DrainMode.PEACEFUL) is OrderOutcome.OK
            await eventually(poll, in_state(SlotState.DRAINING))
            assert await drained(overlay, mode) is OrderOutcome.OK, "what was asked gently can be asked harder"
            process.wait()
            # with 25.14 a shadow whose startd left fast may look for it until the job's lease (30 s here) is over
            await eventually(poll, lambda _: overlay_pool.statuses(cluster) == [1], 60)


async def drained(overlay: HTCondorOverlay, mode: DrainMode) -> OrderOutcome:
    (receipt,) = await overlay.drain([ONE], mode, "a test; $(reboot) `reboot`")
    assert receipt.answer is OrderOutcome.OK or receipt.fault
    return receipt.answer


async def test_who_may_only_read_may_not_drain(overlay_pool: Pool) -> None:
    async with overlay_on(overlay_pool, "reader") as overlay:
        with a_drone(overlay_pool):
            poll = partial(overlay.poll, [A100])
            await eventually(poll, in_state(SlotState.IDLE))
            (receipt,) = await overlay.drain([ONE], DrainMode.PEACEFUL, "out")
            assert receipt.answer is OrderOutcome.REJECTED and receipt.fault
            assert receipt.fault.kind is FaultKind.DENIED, receipt.fault.message
            assert in_state(SlotState.IDLE)(await poll())


async def test_check_finds_out_whether_drains_will_work(overlay_pool: Pool) -> None:
    """`check --live` said "overlay yes" with any token, and drains were refused later."""
    async with overlay_on(overlay_pool) as overlay:
        assert await overlay.probe(here=False) == []
    assert overlay_pool.run("condor_status", "-generic", "-af", "DroneOrderFor").strip() == "", "nothing is left of it"
    async with overlay_on(overlay_pool, "reader") as overlay:
        (gap,) = await overlay.probe(here=False)
        assert "ADMINISTRATOR" in gap.message and "DAEMON" in gap.message
    boss = overlay_pool.dir / "boss.token"
    boss.write_text(overlay_pool.token("admin", ["READ", "ADMINISTRATOR"]) + "\n")
    async with overlay_on(overlay_pool, token={"file": str(boss)}) as overlay:
        (gap,) = await overlay.probe(here=False)
        assert "COLLECTOR.ALLOW_DAEMON" in gap.message and "cannot reach this host" in gap.message


async def test_a_drain_that_is_not_answered_is_unsure(overlay_pool: Pool) -> None:
    async with overlay_on(overlay_pool, drain_deadline="2s") as overlay:
        with a_drone(overlay_pool) as process:
            await eventually(partial(overlay.poll, [A100]), in_state(SlotState.IDLE))
            startd = startd_of(process)
            os.kill(startd, signal.SIGSTOP)
            try:
                (receipt,) = await overlay.drain([ONE], DrainMode.PEACEFUL, "out")
            finally:
                os.kill(startd, signal.SIGCONT)
            assert receipt.answer is OrderOutcome.UNKNOWN and receipt.fault and "within 2 s" in receipt.fault.message


async def test_a_host_without_the_tool_says_so(overlay_pool: Pool) -> None:
    async with overlay_on(overlay_pool, drain_tool="no-such-condor_drain") as overlay:
        with a_drone(overlay_pool):
            await eventually(partial(overlay.poll, [A100]), in_state(SlotState.IDLE))
            (receipt,) = await overlay.drain([ONE], DrainMode.PEACEFUL, "out")
    assert receipt.answer is OrderOutcome.REJECTED and receipt.fault
    assert receipt.fault.kind is FaultKind.CONFIG and "drain_tool" in receipt.fault.message


# ----------------------------------------------------------------------------------------------------------- admission


async def test_what_admission_gives_is_all_that_a_drone_needs(overlay_pool: Pool) -> None:
    async with overlay_on(
        overlay_pool, condor_prefix=str(overlay_pool.condor.prefix), drone_config=QUICK_DRONE
    ) as overlay:
        bootstrap = await overlay.bootstrap(StartOrder(ONE, A100, 60.0, 10.0))
        assert "token" in bootstrap.files and bootstrap.files["token"].decode() not in repr(bootstrap)
        process = start_drone(
            overlay_pool,
            ONE,
            bootstrap.script,
            env=bootstrap.env,
            files=bootstrap.files,
            directory=overlay_pool.root / "drones" / "admitted",
        )
        try:
            await eventually(partial(overlay.poll, [A100]), in_state(SlotState.IDLE))
        finally:
            process.stop()


async def test_an_administrator_of_any_name_may_drain(new_pool: Callable[[str], Pool], tmp_path: Path) -> None:
    """The collector hands the startd's secret to whoever is its administrator; the drone knows nobody by name."""
    pool = new_pool("ALLOW_ADMINISTRATOR = condor@own.test boss@own.test\n")
    file = tmp_path / "token"
    file.write_text(pool.token("boss", ["READ", "ADMINISTRATOR"]) + "\n")
    async with overlay_on(pool, token={"file": str(file)}) as overlay:
        with a_drone(pool) as process:
            await eventually(partial(overlay.poll, [A100]), in_state(SlotState.IDLE))
            assert await drained(overlay, DrainMode.PEACEFUL) is OrderOutcome.OK
            process.wait()
