"""A library in a child process: it may hang, crash, lie or die; the loop goes on."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from provisioner.interfaces import AuthError, RejectedError, UnavailableError
from provisioner.model import FaultKind
from provisioner.worker_process import WorkerProcess

SERVED = "tests.htcondor_overlay.served:Echo"
LONG_S = 30.0


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int) -> None:
    limit = time.monotonic() + LONG_S
    while alive(pid):
        assert time.monotonic() < limit, f"process {pid} is still there"
        time.sleep(0.01)


@pytest_asyncio.fixture
async def echo() -> AsyncIterator[WorkerProcess]:
    child = WorkerProcess(SERVED, "good day")
    yield child
    await child.close()


async def test_it_starts_with_the_first_call_and_keeps_its_state_and_knows_only_its_own_environment() -> (
    None
):
    child = WorkerProcess(SERVED, env={"PATH": "/usr/bin", "CONDOR_CONFIG": "/private"})
    assert child.pid is None
    assert await child.call("greet", "Ann", deadline_s=LONG_S) == "hello Ann 1"
    seen = await child.call("environment", deadline_s=LONG_S)
    assert seen["CONDOR_CONFIG"] == "/private" and "HOME" not in seen
    assert await child.call("greet", "Bob", deadline_s=LONG_S) == "hello Bob 2"
    await child.close()


async def test_one_that_hangs_with_the_lock_is_killed_at_the_deadline_while_the_loop_goes_on(
    echo: WorkerProcess,
) -> None:
    hung = await echo.call("pid", deadline_s=LONG_S)
    lag = 0.0

    async def watch() -> None:
        nonlocal lag
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            lag = max(lag, time.monotonic() - before - 0.01)

    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch())
        with pytest.raises(UnavailableError, match=r"hang_with_the_lock: no answer within 0\.5 s"):
            await echo.call("hang_with_the_lock", deadline_s=0.5)
        watching.cancel()
    assert lag < 0.4, "the loop itself stood still for as long as the call"
    gone(hung)
    assert await echo.call("greet", "Cid", deadline_s=LONG_S) == "good day Cid 1", (
        "a new child, a new state"
    )


@pytest.mark.parametrize("end", ["sleep", "leave", "close"])
async def test_what_the_library_started_ends_with_the_child(echo: WorkerProcess, end: str) -> None:
    """Only the child itself was killed, and its own children stayed."""
    helper = await echo.call("start_helper", deadline_s=LONG_S)
    assert alive(helper)
    if end == "close":
        await echo.close()
    else:
        args, deadline_s = ((), LONG_S) if end == "leave" else ((600.0,), 0.2)
        with pytest.raises(UnavailableError):
            await echo.call(end, *args, deadline_s=deadline_s)
    gone(helper)


async def test_the_crash_is_told_with_its_last_words(echo: WorkerProcess) -> None:
    with pytest.raises(UnavailableError, match=r"SIGABRT.*the last straw"):
        await echo.call("die", deadline_s=LONG_S)
    with pytest.raises(UnavailableError, match="exit code 7"):
        await echo.call("leave", deadline_s=LONG_S)
    assert await echo.call("greet", "Dan", deadline_s=LONG_S) == "good day Dan 1"


async def test_the_four_errors_come_through_as_themselves_and_anything_else_as_down(
    echo: WorkerProcess,
) -> None:
    with pytest.raises(AuthError, match="token is not for this pool"):
        await echo.call("denied", deadline_s=LONG_S)
    with pytest.raises(RejectedError) as refused:
        await echo.call("throttled", deadline_s=LONG_S)
    assert refused.value.kind is FaultKind.THROTTLED
    for name, words in (
        ("bug", r"KeyError.*served\.py"),
        ("unpicklable", "pickle"),
        ("no_such_call", "AttributeError"),
    ):
        with pytest.raises(UnavailableError, match=words) as bug:
            await echo.call(name, deadline_s=LONG_S)
        assert bug.value.kind is FaultKind.UNKNOWN
    assert await echo.call("greet", "Eve", deadline_s=LONG_S) == "good day Eve 1", (
        "none of that ended the child"
    )


async def test_calls_take_turns_and_waiting_counts(echo: WorkerProcess) -> None:
    await echo.call("pid", deadline_s=LONG_S)
    async with asyncio.TaskGroup() as group:
        slow = group.create_task(echo.call("sleep", 1.0, deadline_s=LONG_S))
        await asyncio.sleep(0.1)
        with pytest.raises(UnavailableError, match="no answer within"):
            await echo.call("greet", "Gus", deadline_s=0.2)
    assert slow.result() is None, (
        "the call whose turn it was is not disturbed by one that gave up waiting"
    )


async def test_a_cancelled_call_leaves_no_answer_for_the_next_one(echo: WorkerProcess) -> None:
    await echo.call("pid", deadline_s=LONG_S)
    task = asyncio.create_task(echo.call("sleep", 60.0, deadline_s=LONG_S))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await echo.call("greet", "Hal", deadline_s=LONG_S) == "good day Hal 1"


PARENT = f"""
import asyncio
from provisioner.worker_process import WorkerProcess

async def main():
    child = WorkerProcess("{SERVED}")
    print(await child.call("pid", deadline_s=30.0), flush=True)
    await child.call("hang_with_the_lock", deadline_s=600.0)

asyncio.run(main())
"""


def test_a_parent_killed_outright_leaves_no_child() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=env
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    time.sleep(0.2)  # let it begin to hang
    parent.kill()
    parent.wait()
    parent.stdout.close()
    gone(pid)
