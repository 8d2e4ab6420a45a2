"""A drone of the embedded overlay: what it takes, when it leaves, and what it says then."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.embedded import EmbeddedOverlay, queue
from adapters.embedded.queue import JobState
from adapters.embedded.worker import FreeGpus
from provisioner.adapter_tests import eventually
from provisioner.model import DroneId, Slot, StartOrder
from tests.embedded.drones import CPU, KIND, Drones, config
from tests.local.drones import holds

Begin = Callable[..., Awaitable[DroneId]]


async def test_it_takes_only_what_fits_in_every_dimension(
    path: Path, drones: Drones, begin: Begin
) -> None:
    fits = queue.submit(
        path,
        ["true"],
        gpus=2,
        cpus=8,
        memory_mib=16384,
        disk_mib=100,
        vram_mib=40960,
        capability=80,
    )
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
    assert {job.id for job in queue.jobs(path, states=[JobState.IDLE])} == {
        *too_much,
        too_much_of_all,
    }


async def test_jobs_without_a_gpu_go_to_drones_without_one(
    path: Path, drones: Drones, begin: Begin
) -> None:
    [gpu], cpu = (
        queue.submit(path, ["true"]),
        queue.submit(path, ["sleep", "1"], count=2, gpus=0, cpus=4),
    )
    await drones.status(await begin(1, idle_s=0.5))
    assert [job.id for job in queue.jobs(path, states=[JobState.DONE])] == [gpu], (
        "what is beside its GPUs is for them"
    )
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


async def test_an_idle_gpu_is_for_jobs_that_can_do_without_one(
    path: Path, drones: Drones, begin: Begin
) -> None:
    optional = queue.submit(
        path, ["sh", "-c", "echo $JOB_GPU_MILLI; sleep 1"], count=2, gpu_optional=True
    )
    async with EmbeddedOverlay(config(path), "kit") as overlay:
        (waits,) = (await overlay.poll([CPU, KIND])).classes
        assert (waits.gpu_milli, waits.gpu_optional, waits.waiting) == (0, True, 2)
        drone = await begin(idle_s=20.0)

        async def lent() -> Slot | None:
            slots = (await overlay.poll([CPU, KIND])).slots
            return next((slot for slot in slots if slot.jobs), None)

        slot = await eventually("an idle GPU is lent", lent, 60)
    assert (slot.drone_id, slot.jobs, slot.only_optional, slot.free_gpu_milli) == (
        drone,
        1,
        True,
        1000,
    )
    drones.signal(drone, signal.SIGTERM)
    await drones.status(drone)
    await drones.status(await begin(2, kind=CPU, idle_s=0.5))
    assert {job.id for job in queue.jobs(path, states=[JobState.DONE])} == set(optional), (
        "a CPU drone runs the rest"
    )


async def test_higher_priority_goes_first_then_age(
    path: Path, tmp_path: Path, drones: Drones, begin: Begin
) -> None:
    for priority in (0, 5, 5, -1):
        queue.submit(
            path, ["sh", "-c", f"echo $JOB_ID >> {tmp_path}/order"], gpus=2, priority=priority
        )
    await drones.status(await begin(idle_s=0.5))
    assert (tmp_path / "order").read_text().split() == ["2", "3", "1", "4"]


async def test_a_job_sees_its_own_gpu_and_none_of_our_machinery(
    path: Path, drones: Drones, begin: Begin
) -> None:
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


async def test_a_job_gets_the_balancer_of_the_service_that_has_its_model(
    path: Path, drones: Drones, begin: Begin
) -> None:
    announced = ["gnn:1", "none:1, deepmet", "none:1", ""]
    shows = ["sh", "-c", "echo found $SONIC_LOCAL_BALANCER_HOST $SONIC_LOCAL_BALANCER_PORT"]
    for models in announced:
        queue.submit(path, shows, env={"WANTS_INFERENCE": models})
    addresses = "deepmet:3=10.0.0.1:8001,deepmet=10.0.0.1:8001,gnn:1=b.example.org:9001"
    await drones.status(await begin(idle_s=0.5, env={"DRONE_INFERENCE": addresses}))
    found = {job.id: job.message for job in queue.jobs(path)}
    assert [found[job_id] for job_id in sorted(found)] == [
        "found b.example.org 9001",
        "found 10.0.0.1 8001",
        "found",
        "found",
    ]
    queue.submit(path, shows)
    await drones.status(await begin(2, idle_s=0.5, env={"DRONE_INFERENCE": "*=10.0.0.1:8001"}))
    assert max(queue.jobs(path), key=lambda job: job.id).message == "found 10.0.0.1 8001"


async def test_a_job_that_fails_tells_its_status_and_last_words(
    path: Path, drones: Drones, begin: Begin
) -> None:
    told = {
        ("sh", "-c", "echo it broke >&2; exit 3"): (3, "it broke"),
        ("sh", "-c", "kill -9 $$"): (137, ""),
        ("/no/such",): (127, "cannot be run: [Errno 2] No such file or directory: '/no/such'"),
        ("/etc",): (127, "cannot be run: [Errno 13] Permission denied: '/etc'"),
        ("sleep", "1000"): (137, "ran longer than its walltime of 1 s"),
    }
    for argv in told:
        queue.submit(path, argv, walltime_s=1)
    await drones.status(await begin(idle_s=0.5))
    assert {
        job.argv: (job.exit_code, job.message) for job in queue.jobs(path, states=[JobState.FAILED])
    } == told


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


async def test_asked_to_leave_it_gives_a_short_job_the_time_to_end(
    path: Path, drones: Drones, begin: Begin
) -> None:
    [short] = queue.submit(path, ["sleep", "1"])
    [stubborn] = queue.submit(path, ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"])
    drone = await begin(grace_s=4.0)
    await holds("both run", lambda: queue.counts(path)[JobState.RUNNING] == 2)
    drones.signal(drone, signal.SIGTERM)
    assert await drones.status(drone) == 0
    assert drones.outcome(drone) == "left: asked to leave"
    assert [(job.id, job.state) for job in queue.jobs(path)] == [
        (short, JobState.DONE),
        (stubborn, JobState.IDLE),
    ]


@pytest.mark.parametrize(
    ("preamble", "env", "status", "said"),
    [
        (
            "export CUDA_VISIBLE_DEVICES=0",
            {},
            71,
            "failed: GPU check failed: 2 GPUs were promised, 1 are visible",
        ),
        ("unset DRONE_CPUS", {}, 64, "called wrongly: DRONE_CPUS is not set"),
        (
            "",
            {"EMBEDDED_QUEUE": "/no/such.db"},
            73,
            "failed: the queue /no/such.db: unable to open database file",
        ),
    ],
)
async def test_a_drone_that_cannot_work_says_why(
    path: Path, drones: Drones, preamble: str, env: dict[str, str], status: int, said: str
) -> None:
    async with EmbeddedOverlay(config(path), "kit") as overlay:
        order = StartOrder(DroneId("kit-abcd-1"), KIND, 600.0, 2.0)
        bootstrap = await overlay.bootstrap(order)
    script = f"{preamble}\n".encode() + bootstrap.script
    drones.begin(
        replace(order, bootstrap=replace(bootstrap, script=script, env={**bootstrap.env, **env}))
    )
    assert await drones.status(order.drone_id) == status
    assert (drones.directory(order.drone_id) / "log").read_text().strip() == said


async def test_a_queue_that_goes_away_ends_the_drone(
    path: Path, drones: Drones, begin: Begin
) -> None:
    async def joined() -> bool:
        return bool((await EmbeddedOverlay(config(path), "kit").poll([])).slots)

    drone = await begin(1)
    await eventually("it has joined", joined, 60)
    path.rename(path.with_name("elsewhere.db"))  # noqa: ASYNC240
    assert await drones.status(drone) == 75
    assert drones.outcome(drone) == f"failed: the queue {path} is gone"


def test_gpus_are_shared_exactly_and_the_fullest_is_used_first() -> None:
    free = FreeGpus.promised(2500, ["0", "1", "2", "3"])
    shares = [free.take(200) for _ in range(2)]
    assert shares == [{"2": 200}, {"2": 200}]
    assert free.take(1000) == {"0": 1000}
    fifths = [free.take(200) for _ in range(5)]
    assert fifths == [{"1": 200}] * 5
    assert free == {"0": 0, "1": 0, "2": 100}
    for taken in (*shares, *fifths, {"0": 1000}):
        free.give_back(taken)
    assert free == {"0": 1000, "1": 1000, "2": 500}
