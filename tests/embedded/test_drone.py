"""A drone of the embedded overlay: what it takes, when it leaves, and what it says then."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.embedded import EmbeddedOverlay, queue
from adapters.embedded.queue import JobState
from adapters.embedded.worker import GpuShares
from provisioner.adapter_tests import eventually
from provisioner.model import DroneId, OverlayView, Sharing, Slot, StartOrder
from provisioner.planner.matching import unmet_requirement
from tests.embedded.drones import CPU, KIND, Drones, config

Begin = Callable[..., Awaitable[DroneId]]


async def _state(path: Path, job_id: int, *states: JobState) -> bool:
    return queue.jobs(path, ids=[job_id])[0].state in states


async def test_it_takes_only_what_fits_in_every_dimension(path: Path, drones: Drones, begin: Begin) -> None:
    fits = queue.submit(path, ["true"], gpus=2, cpus=8, memory_mib=16384, disk_mib=100, vram_mib=40960, capability=80)
    fits += queue.submit(path, ["true"], gpus=1, gpu_model="A100")
    too_much = [
        queue.submit(path, ["true"], **{name: value})[0]  # type: ignore[arg-type]
        for name, value in {
            "gpus": 3,
            "cpus": 9,
            "memory_mib": 16385,
            "disk_mib": 101,
            "vram_mib": 40961,
            "capability": 90,
            "gpu_model": "H100",
        }.items()
    ]
    [too_much_of_all] = queue.submit(path, ["true"], gpus=10**9)
    drone = await begin(idle_s=0.5)
    assert await drones.status(drone) == 0
    assert {job.id for job in queue.jobs(path, states=[JobState.DONE])} == set(fits)
    assert {job.id for job in queue.jobs(path, states=[JobState.IDLE])} == {*too_much, too_much_of_all}


async def test_jobs_without_a_gpu_go_to_drones_without_one(path: Path, drones: Drones, begin: Begin) -> None:
    [gpu], cpu = queue.submit(path, ["true"]), queue.submit(path, ["sleep", "1"], count=2, gpus=0, cpus=4)
    await drones.status(await begin(1, idle_s=0.5))
    assert [job.id for job in queue.jobs(path, states=[JobState.DONE])] == [gpu], "what is beside its GPUs is for them"
    drone = await begin(2, kind=CPU, idle_s=0.5)

    async def at_work() -> Slot | None:
        async with EmbeddedOverlay(config(path), "kit") as overlay:
            slots = (await overlay.poll([CPU])).slots
        return next((slot for slot in slots if slot.jobs == 2), None)

    slot = await eventually("both run", at_work, 60)
    assert (slot.drone_id, slot.work_gpu_milli, slot.free_cpus) == (drone, 8000, 0)
    assert 0 < slot.work_at <= slot.heard_at + 1
    assert await drones.status(drone) == 0
    assert {job.drone_id for job in queue.jobs(path, ids=cpu, states=[JobState.DONE])} == {drone}


async def test_higher_priority_goes_first_then_age(path: Path, tmp_path: Path, drones: Drones, begin: Begin) -> None:
    for priority in (0, 5, 5, -1):
        queue.submit(path, ["sh", "-c", f"echo $JOB_ID >> {tmp_path}/order"], gpus=2, priority=priority)
    await drones.status(await begin(idle_s=0.5))
    assert (tmp_path / "order").read_text().split() == ["2", "3", "1", "4"]


async def test_a_job_sees_its_own_gpu_and_none_of_our_machinery(path: Path, drones: Drones, begin: Begin) -> None:
    env = {"MINE": "yes", "PROVISIONER_DRONE_ID": "another", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    queue.submit(path, ["sh", "-c", "env > seen; cat > stdin; pwd"], env=env)
    drone = await begin(idle_s=0.5)
    await drones.status(drone)
    directory = drones.directory(drone) / "job-1.1"
    seen = dict(line.partition("=")[::2] for line in (directory / "seen").read_text().splitlines())
    assert seen["MINE"] == "yes"
    assert seen["PROVISIONER_DRONE_ID"] == drone
    assert seen["CUDA_VISIBLE_DEVICES"] == "0"
    assert "PYTHONPATH" not in seen
    assert not [name for name in seen if name.startswith("EMBEDDED_")]
    assert queue.jobs(path)[0].message == str(directory)


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["sh", "-c", "echo it broke >&2; exit 3"], 3, "it broke"),
        (["sh", "-c", "kill -9 $$"], 137, ""),
        (["/no/such"], 127, "cannot be run: [Errno 2] No such file or directory: '/no/such'"),
        (["/etc"], 127, "cannot be run: [Errno 13] Permission denied: '/etc'"),
    ],
)
async def test_a_job_that_fails_tells_its_status_and_last_words(
    path: Path, drones: Drones, begin: Begin, argv: list[str], code: int, message: str
) -> None:
    queue.submit(path, argv)
    await drones.status(await begin(idle_s=0.5))
    [failed] = queue.jobs(path)
    assert (failed.state, failed.exit_code, failed.message) == (JobState.FAILED, code, message)


async def test_a_job_that_runs_too_long_is_killed_and_has_failed(path: Path, drones: Drones, begin: Begin) -> None:
    queue.submit(path, ["sleep", "1000"], walltime_s=0.5)
    await drones.status(await begin(idle_s=0.5))
    [failed] = queue.jobs(path)
    assert failed.state is JobState.FAILED
    assert failed.message == "ran longer than its walltime of 0.5 s"


async def test_a_drone_leaves_at_the_end_of_its_life_and_jobs_wait_again(
    path: Path, drones: Drones, begin: Begin
) -> None:
    [long] = queue.submit(path, ["sleep", "1000"])
    [too_long] = queue.submit(path, ["true"], walltime_s=3600)
    drone = await begin(kind=replace(KIND, walltime_s=4.0), grace_s=2.0)
    assert await drones.status(drone) == 0
    assert drones.outcome(drone) == "left: end of its walltime of 4 s"
    assert [(job.id, job.state, job.attempts) for job in queue.jobs(path)] == [
        (long, JobState.IDLE, 1),
        (too_long, JobState.IDLE, 0),
    ]


async def test_asked_to_leave_it_gives_a_short_job_the_time_to_end(path: Path, drones: Drones, begin: Begin) -> None:
    [short] = queue.submit(path, ["sleep", "1"])
    [stubborn] = queue.submit(path, ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"])
    drone = await begin(grace_s=4.0)
    await eventually("both run", lambda: _state(path, stubborn, JobState.RUNNING), 60)
    drones.signal(drone, signal.SIGTERM)
    assert await drones.status(drone) == 0
    assert drones.outcome(drone) == "left: asked to leave"
    assert [(job.id, job.state) for job in queue.jobs(path)] == [(short, JobState.DONE), (stubborn, JobState.IDLE)]


async def test_a_check_that_fails_or_hangs_is_an_outcome_and_no_job_is_taken(
    path: Path, drones: Drones, begin: Begin
) -> None:
    queue.submit(path, ["true"])
    failing = await begin(1, check=["sh", "-c", "exit 5"])
    hanging = await begin(2, check=["sleep", "1000"], check_deadline="300ms")
    missing = await begin(3, check=["/no/such"])
    assert [await drones.status(drone) for drone in (failing, hanging, missing)] == [71, 72, 71]
    assert drones.outcome(failing) == "failed: GPU check failed with status 5"
    assert drones.outcome(hanging) == "failed: GPU check hung: no answer within 0.3 s"
    assert queue.jobs(path)[0].attempts == 0
    passing = await begin(4, check=["true"], idle_s=0.5)
    assert await drones.status(passing) == 0
    assert queue.jobs(path)[0].state is JobState.DONE


async def test_fewer_gpus_than_promised_is_a_failed_check(path: Path, drones: Drones, begin: Begin) -> None:
    overlay = EmbeddedOverlay(config(path), "kit")
    async with overlay:
        order = StartOrder(DroneId("kit-abcd-9"), KIND, 600.0, 2.0)
        bootstrap = await overlay.bootstrap(order)
        script = b"export CUDA_VISIBLE_DEVICES=0\n" + bootstrap.script
        drones.begin(replace(order, bootstrap=replace(bootstrap, script=script)))
    assert await drones.status(order.drone_id) == 71
    assert drones.outcome(order.drone_id) == "failed: GPU check failed: 2 GPUs were promised, 1 are visible"


async def test_a_queue_that_is_not_there_or_goes_away_ends_the_drone(
    path: Path, tmp_path: Path, drones: Drones, begin: Begin
) -> None:
    drone = await begin(1)
    await eventually("it has joined", lambda: _joined(path), 60)
    os.rename(path, tmp_path / "elsewhere.db")
    assert await drones.status(drone) == 75
    assert drones.outcome(drone) == f"failed: the queue {path} is gone"

    overlay = EmbeddedOverlay(config(tmp_path / "never.db"), "kit")
    order = StartOrder(DroneId("kit-abcd-2"), KIND, 600.0, 2.0)
    drones.begin(replace(order, bootstrap=await overlay.bootstrap(order)))
    assert await drones.status(order.drone_id) == 73


async def _joined(path: Path) -> bool:
    return bool((await EmbeddedOverlay(config(path), "kit").poll([])).slots)


async def test_a_drone_that_is_told_nonsense_says_so(path: Path, drones: Drones) -> None:
    overlay = EmbeddedOverlay(config(path), "kit")
    order = StartOrder(DroneId("kit-abcd-1"), KIND, 600.0, 2.0)
    bootstrap = await overlay.bootstrap(order)
    drones.begin(replace(order, bootstrap=replace(bootstrap, env={**bootstrap.env, "EMBEDDED_LEASE_S": "soon"})))
    assert await drones.status(order.drone_id) == 64
    assert "could not convert string to float: 'soon'" in (drones.directory(order.drone_id) / "log").read_text()


def test_devices_are_shared_exactly_and_the_fullest_is_used_first() -> None:
    devices = GpuShares(["0", "1", "2"], 2500)
    assert (devices.free_milli, devices.untouched, devices.largest_share) == (2500, 2, 1000)
    shares = [devices.take(200) for _ in range(2)]
    assert shares == [{"2": 200}, {"2": 200}]
    assert devices.take(1000) == {"0": 1000}
    fifths = [devices.take(200) for _ in range(5)]
    assert fifths == [{"1": 200}] * 5
    assert (devices.free_milli, devices.untouched) == (100, 0)
    with pytest.raises(ValueError, match="no room"):
        devices.take(200)
    for share in (*shares, *fifths, {"0": 1000}):
        devices.give_back(share)
    assert devices.free_milli == 2500


def test_shares_of_a_device_are_given_out_whole_and_from_the_emptiest() -> None:
    quarters = GpuShares(["0", "1"], 2000, shares=4)
    assert (quarters.untouched, quarters.largest_share) == (0, 1000)
    assert [quarters.take(milli) for milli in (1, 250, 251)] == [{"0": 250}, {"1": 250}, {"0": 500}]
    assert (quarters.free_milli, quarters.largest_share) == (1000, 750)
    with pytest.raises(ValueError, match="no room"):
        quarters.take(1000)
    assert quarters.take(750) == {"1": 750}
    quarters.give_back({"0": 500})
    assert quarters.largest_share == 750

    slices = GpuShares(["0"], 1000, shares=7, joins=False)
    assert slices.largest_share == 142
    with pytest.raises(ValueError, match="no room"):
        slices.take(143)
    assert [slices.take(142) for _ in range(7)] == [{"0": 142}] * 7
    assert (slices.free_milli, slices.largest_share) == (6, 0), "what rounding leaves is no share"


async def test_small_jobs_share_a_gpu_and_one_that_wants_it_whole_waits(path: Path, begin: Begin) -> None:
    quarters = replace(KIND, name="quarters", gpu_milli=1000, sharing=Sharing.MPS, shares=4)  # 10 GiB each
    overlay = EmbeddedOverlay(config(path), "kit")
    whole = queue.submit(path, ["true"], gpus=1)
    large = queue.submit(path, ["true"], gpus="0.2", vram_mib=10241)
    joined = queue.submit(path, ["sleep", "30"], gpus="0.3", vram_mib=20480)
    small = queue.submit(path, ["sleep", "30"], count=3, gpus="0.1", vram_mib=10240)
    await begin(1, kind=quarters)

    async def poll() -> OverlayView:
        return await overlay.poll([quarters])

    async def three_run() -> bool:
        return sum(each.running for each in (await poll()).classes) == 3

    await eventually("three run: one on two shares, two on one each", three_run, 60)
    running = {each.id for each in queue.jobs(path, states=[JobState.RUNNING])}
    assert running == {*joined, *small[:2]}
    (slot,) = (await poll()).slots
    assert slot.free_gpu_milli == 0
    classes = (await poll()).classes
    refused = {
        each.gpu_milli: why.dimension for each in classes if (why := unmet_requirement(each, quarters)) is not None
    }
    assert refused == {1000: "gpus", 200: "vram"}, "what waits in vain, the planner starts nothing for"
    waiting = {each.id for each in queue.jobs(path, states=[JobState.IDLE])}
    assert waiting == {*whole, *large, small[2]}
