"""No job is lost and none runs twice at once, however drones come to grief."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from adapters.embedded import EmbeddedOverlay, queue
from adapters.embedded.queue import EmbeddedJob, JobState
from provisioner.adapter_tests import eventually
from provisioner.model import DroneId
from provisioner.processes import Process
from tests.embedded.drones import Drones, config
from tests.local.drones import holds

Begin = Callable[..., Awaitable[DroneId]]
OFFER: queue.Offer = {
    **{
        "has_gpus": True,
        "unchanged": True,
        "whole_gpus": 2,
        "share_milli": 1000,
        "cpus": 8,
        "memory_mib": 16384,
        "disk_mib": 100,
    },
    **{
        "vram_mib": 40960,
        "capability": 80,
        "gpu_model": "A100",
        "life_s": 1e12,
        "job_filter": "",
    },
}


async def job(path: Path, job_id: int, *states: JobState) -> EmbeddedJob:
    async def ask() -> EmbeddedJob | None:
        found = queue.jobs(path, ids=[job_id])[0]
        return found if found.state in states else None

    return await eventually(f"job {job_id} is {' or '.join(states)}", ask, 60)


def recorded(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_a_job_whose_drone_is_lost_is_dead_before_it_waits_again(
    path: Path, tmp_path: Path, drones: Drones, begin: Begin, end: signal.Signals
) -> None:
    pids = tmp_path / "pids"
    # It ignores SIGTERM and has a child: both must go.
    [job_id] = queue.submit(
        path, ["sh", "-c", f"trap '' TERM; sleep 1000 & echo $$ $! >> {pids}; wait"]
    )
    drone = await begin()
    await holds("it runs", lambda: len(recorded(pids)) == 2)
    drones.signal(drone, end)

    overlay = EmbeddedOverlay(config(path), "kit")
    async with overlay:

        async def waits_again() -> bool:
            await overlay.poll([])
            return (await job(path, job_id, *JobState)).state is JobState.IDLE

        await eventually("its lease runs out", waits_again, 60)
    assert [pid for pid in recorded(pids) if alive(pid)] == []
    again = await job(path, job_id, JobState.IDLE)
    assert (again.attempts, again.drone_id, again.message) == (1, "", f"lost with drone {drone}")
    if end is signal.SIGSTOP:
        await begin(2)
        await holds("it runs elsewhere", lambda: len(recorded(pids)) == 4)
        drones.signal(drone, signal.SIGCONT)  # it wakes, with a job that is not its own any more
        await asyncio.sleep(1)
        running = await job(path, job_id, JobState.RUNNING)
        assert (running.attempts, running.drone_id) == (2, "kit-abcd-2")
        assert [alive(pid) for pid in recorded(pids)] == [False, False, True, True]


def test_a_token_of_an_earlier_attempt_changes_nothing(path: Path) -> None:
    queue.submit(path, ["true"])
    with contextlib.closing(queue.connect(path)) as connection:
        first = queue.take(connection, OFFER, "one", queue.lease_clock() - 1)
        assert first is not None
        assert queue.expire(connection, max_lost=10) == 1
        second = queue.take(connection, OFFER, "two", queue.lease_clock() + 60)
        assert second is not None
        assert second.attempts == 2
        assert not queue.finish(connection, first, 0, "too late")
        assert not queue.give_back(connection, first, "too late")
        assert not queue.renew(connection, first, queue.lease_clock() + 60)
        assert queue.renew(connection, second, queue.lease_clock() + 60)
        assert queue.finish(connection, second, 0, "well")
        assert not queue.finish(connection, second, 1, "twice")
    [done] = queue.jobs(path)
    assert (done.state, done.message, done.drone_id) == (JobState.DONE, "well", "two")


async def test_an_expired_attempt_ends_with_all_processes_of_its_sessions(path: Path) -> None:
    queue.submit(path, ["true"])
    with contextlib.closing(queue.connect(path)) as connection:
        attempt = queue.take(connection, OFFER, "one", queue.lease_clock() - 1)
        assert attempt is not None
        hidden = await asyncio.create_subprocess_exec(
            *("sh", "-c", "env -i sleep 1000 & echo $!; wait"),
            env={"PATH": os.environ["PATH"], queue.ATTEMPT_TAG: attempt.token},
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert hidden.stdout is not None
        child = int(await hidden.stdout.readline())
        # Another process has taken the lease away and died before it could end the processes.
        connection.execute("UPDATE job SET token = ''")
        assert not queue.finish(connection, attempt, 0, "too late")
        assert await asyncio.to_thread(queue_expired, path) == 1
        assert await hidden.wait() == -signal.SIGKILL
        await holds("what it began has ended too", lambda: not alive(child))


def queue_expired(path: Path) -> int:
    with contextlib.closing(queue.connect(path)) as connection:
        return queue.expire(connection, max_lost=10)


@pytest.mark.skipif(os.geteuid() != 0, reason="changes accounts, which needs root")
def test_an_attempt_of_a_living_drone_of_another_account_is_left_to_its_site(path: Path) -> None:
    queue.submit(path, ["true"])
    reader, writer = os.pipe()
    worker = os.fork()
    if worker == 0:
        os.setuid(60001)
        os.write(writer, str(Process.own()).encode())
        signal.pause()
    try:
        said = os.read(reader, 200).decode()
        with contextlib.closing(queue.connect(path)) as connection:
            attempt = queue.take(connection, OFFER, "one", queue.lease_clock() - 1)
            connection.execute("UPDATE job SET worker = ?", (said,))
            assert queue.expire(connection, max_lost=10) == 0
            assert attempt is not None
            assert not queue.renew(connection, attempt, queue.lease_clock() + 60)
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
            assert queue.expire(connection, max_lost=10) == 1
    finally:
        os.close(reader)
        os.close(writer)


def test_a_lease_from_before_a_reboot_has_run_out(path: Path) -> None:
    """The monotonic clock begins anew at a boot, so the lease seems to end far in the future."""
    queue.submit(path, ["true"])
    with contextlib.closing(queue.connect(path)) as connection:
        assert queue.take(
            connection, OFFER, "one", queue.lease_clock() + 10 * queue.LONGEST_LEASE_S
        )
        assert queue.expire(connection, max_lost=10) == 1


def test_a_job_that_takes_its_drones_along_is_held_and_can_be_released(path: Path) -> None:
    [job_id] = queue.submit(path, ["true"])
    with contextlib.closing(queue.connect(path)) as connection:
        for _ in range(3):
            assert queue.take(connection, OFFER, "one", queue.lease_clock() - 1)
            queue.expire(connection, max_lost=3)
        assert queue.take(connection, OFFER, "one", queue.lease_clock() + 60) is None
    [held] = queue.jobs(path)
    assert (held.state, held.attempts) == (JobState.HELD, 3)
    assert queue.release(path, [job_id]) == 1
    assert queue.jobs(path)[0].state is JobState.IDLE


def test_many_processes_never_take_the_same_job(path: Path) -> None:
    jobs, takers = 200, 8
    queue.submit(path, ["true"], count=jobs)
    reader, writer = os.pipe()
    pids = []
    for taker in range(takers):
        pid = os.fork()
        if pid == 0:
            try:
                with contextlib.closing(queue.connect(path, busy_s=30)) as connection:
                    while True:
                        claim = queue.take(
                            connection, OFFER, f"drone-{taker}", queue.lease_clock() + 60
                        )
                        if claim is None:
                            break
                        os.write(writer, f"{claim.id} {taker}\n".encode())
                        time.sleep(0.001)  # a job has to be begun: others get their turn
            finally:
                os._exit(0)
        pids.append(pid)
    os.close(writer)
    with os.fdopen(reader) as told:
        taken = [line.split() for line in told]
    for pid in pids:
        os.waitpid(pid, 0)
    assert sorted(int(job_id) for job_id, _ in taken) == list(range(1, jobs + 1))
    assert len({taker for _, taker in taken}) > 1, "one took all: it was no race"
    owners = {f"{job.id} {job.drone_id}" for job in queue.jobs(path)}
    assert owners == {f"{job_id} drone-{taker}" for job_id, taker in taken}


async def test_a_removed_job_is_killed_where_it_runs(
    path: Path, tmp_path: Path, begin: Begin
) -> None:
    pids = tmp_path / "pids"
    [job_id] = queue.submit(path, ["sh", "-c", f"echo $$ >> {pids}; exec sleep 1000"])
    await begin()
    await holds("it runs", lambda: len(recorded(pids)) == 1)
    assert queue.remove(path, [job_id]) == 1
    await holds("it is killed", lambda: not alive(recorded(pids)[0]))
    assert queue.jobs(path) == []


@pytest.mark.parametrize(
    ("requests", "offer", "taken"),
    [
        (
            [{"owner": owner} for owner in ("ann", "an", "ben", "")],
            {"job_filter": "excluded_users=ann,ben"},
            [2, 4],
        ),
        ([{"gpus": gpus} for gpus in ("0.6", "0.5", 1, 3, 0)], {"share_milli": 500}, [2, 3]),
        ([{"gpus": gpus} for gpus in (1, 2, "0.5")], {"job_filter": "min_gpus=2"}, [2]),
    ],
    ids=["avoided users", "GPUs", "fewest GPUs"],
)
def test_a_drone_takes_only_what_it_offers(
    path: Path, requests: list[dict[str, str]], offer: queue.Offer, taken: list[int]
) -> None:
    for request in requests:
        queue.submit(path, ["true"], **request)  # type: ignore[arg-type]
    with contextlib.closing(queue.connect(path)) as connection:
        found = []
        while claim := queue.take(connection, {**OFFER, **offer}, "one", queue.lease_clock() + 60):
            found.append(claim.id)
    assert found == taken
