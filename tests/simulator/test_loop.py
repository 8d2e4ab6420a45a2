"""Virtual time: it passes at once, in order, and never alone."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from provisioner.simulator.loop import (
    DeadlockError,
    LivelockError,
    OutsideWorldError,
    VirtualClock,
    run_virtual,
)


def test_a_year_of_sleep_takes_no_time_and_ends_exactly_then() -> None:
    async def sleeper() -> tuple[float, float]:
        before = VirtualClock().now()
        await asyncio.sleep(365 * 86400.0)
        return before, VirtualClock().now()

    began = time.monotonic()
    assert run_virtual(sleeper(), start_epoch=1.75e9) == (1.75e9, 1.75e9 + 365 * 86400.0)
    assert time.monotonic() - began < 60.0  # not a year


def test_a_deadlock_is_an_error_that_names_who_waits_and_where() -> None:
    async def waits_for_godot() -> None:
        await asyncio.sleep(12.0)
        await asyncio.Event().wait()

    async def story() -> None:
        await asyncio.create_task(waits_for_godot(), name="estragon")

    with pytest.raises(
        DeadlockError, match=r"at 12\.000 s.*name='estragon'.*running at .*test_loop\.py:\d+"
    ):
        run_virtual(story())


def test_time_that_stands_still_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provisioner.simulator.loop.TURNS_WITHOUT_TIME", 1000)

    async def spins() -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    async def story() -> None:
        await asyncio.create_task(spins(), name="hamster")

    with pytest.raises(LivelockError, match=r"at 0\.000 s.*name='hamster'"):
        run_virtual(story())


@pytest.mark.parametrize(
    "reach_out",
    [
        lambda: asyncio.to_thread(open, "/dev/null"),
        lambda: asyncio.open_connection("127.0.0.1", 9),
        lambda: asyncio.create_subprocess_exec("true"),
    ],
    ids=["thread", "socket", "process"],
)
def test_there_is_no_outside_world(reach_out: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    with pytest.raises((OutsideWorldError, NotImplementedError)):
        run_virtual(reach_out())
