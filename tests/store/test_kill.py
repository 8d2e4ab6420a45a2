"""``kill -9`` at any moment: what was committed is whole, what was not is absent, and what was announced is there."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import select
import signal
import time
from pathlib import Path

import pytest

from provisioner.model import DroneState
from provisioner.store import serial_of
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore
from tests.store.story import CONTROLLER, SNAPSHOTS, drone, now_is, record, starts

STARTS = 5
"""Drones per tick."""


def _live_until_killed(file: Path, told: int, threaded: bool) -> None:
    """A controller that announces each tick after recording it, as it would act then."""

    async def live() -> None:
        async with SqlStore(file, CONTROLLER, 1e9, SNAPSHOTS, threaded=threaded) as store:
            for tick in itertools.count(store.tick + 1):
                first = store.next_serial
                new = [drone(serial, at=float(tick)) for serial in range(first, first + STARTS)]
                await record(store, starts(tick, *new, at=float(tick)))
                os.write(told, f"{tick}\n".encode())
                moves = [now_is(each, DroneState.SUBMITTED, at=tick + 0.5) for each in new]
                await store.record_results(tick, moves, ())

    asyncio.run(live())


@pytest.fixture(scope="module")
def pace_s(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Measure how long a child takes to make a store and to record its first tick. Moments are drawn from that."""
    longest_s = 0.0
    for number in range(3):
        listen, told = os.pipe()
        started = time.monotonic()
        child = _child(
            tmp_path_factory.mktemp("pace") / f"{number}.db", listen, told, threaded=False
        )
        assert os.read(listen, 1), "the child died by itself"
        longest_s = max(longest_s, time.monotonic() - started)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(listen)
    return longest_s


def _child(file: Path, listen: int, told: int, threaded: bool) -> int:
    """Fork such a controller; its pid."""
    child = os.fork()
    if child == 0:
        try:
            os.close(listen)
            _live_until_killed(file, told, threaded)
        finally:
            os._exit(1)  # never back into pytest
    os.close(told)
    return child


def _killed(file: Path, after_s: float, threaded: bool) -> int:
    """Run such a controller in a child, kill it ``after_s`` after its start; the last tick that it announced."""
    listen, told = os.pipe()
    child = _child(file, listen, told, threaded)
    watch = os.pidfd_open(child)
    try:
        assert not select.select([watch], [], [], after_s)[0], "the child died by itself"
    finally:
        os.close(watch)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with os.fdopen(listen) as lines:
        return max((int(line) for line in lines if line.endswith("\n")), default=0)


@pytest.mark.parametrize("threaded", [False, True], ids=["inline", "threaded"])
def test_killed_at_any_moment_every_plan_is_whole_or_absent(
    file: Path, pace_s: float, threaded: bool
) -> None:
    seed = 20_260_101
    chance = random.Random(seed)
    announced = checked = 0
    for kill in range(30):
        # readable as the dead one left it, before a controller has put anything in order
        if file.exists():
            assert (
                len(Reader(file).drones(ended=None)) % STARTS == 0 and Reader(file).holder() is None
            )
        after_s = chance.uniform(0.0, 2 * pace_s) if kill % 4 else chance.uniform(0.0, pace_s)
        announced = max(announced, _killed(file, after_s, threaded))
        checked = asyncio.run(
            _check(file, announced, checked, f"seed {seed}, kill {kill} after {after_s:.4f} s")
        )
    assert checked > 15, "the children did record something"


def test_killed_while_making_the_store_it_is_made_by_the_next(file: Path, pace_s: float) -> None:
    seed = 20_260_102
    chance = random.Random(seed)
    made = 0
    for kill in range(150):
        if kill >= 25 and 0 < made < kill:
            break
        fresh = file.with_name(f"{kill}.db")
        # The longer neither is seen, the wider the range: the pace was measured at another load.
        after_s = pace_s * 10 ** chance.uniform(-2.5 - kill / 50, 0.1 + kill / 50)
        _killed(fresh, after_s, threaded=False)
        made += fresh.exists()
        asyncio.run(_check(fresh, 0, 0, f"seed {seed}, kill {kill} after {after_s:.4f} s"))
    assert 0 < made < kill, "some were killed before the store was there, some after"


async def _check(file: Path, announced: int, checked: int, moment: str) -> int:
    """Reopen and compare plans since tick ``checked`` with drones and their histories; the last recorded tick."""
    async with SqlStore(file, CONTROLLER, 1e9, SNAPSHOTS, threaded=False) as store:
        assert store.tick >= announced, (
            f"{moment}: tick {announced} was acted on and is not on record"
        )
        reader = Reader(file)
        listed = {each.id: each for each in reader.drones(ended=None)}
        assert dict(store.drones) == listed, moment
        plans = reader.plans(limit=10**6, since=checked + 0.5)
        assert [plan.tick for plan in plans] == list(range(checked + 1, store.tick + 1)), moment
        for plan in plans:
            for start in plan.starts:
                states = [step.state for step in reader.history(start.drone.id)]
                assert states in (["requested"], ["requested", "submitted"]), moment
                assert listed[start.drone.id].state == states[-1], moment
        assert len(listed) == STARTS * store.tick, (
            f"{moment}: drones without a plan, or plans without drones"
        )
        highest = max((serial_of(each) or 0 for each in store.drones), default=0)
        assert store.next_serial == highest + 1, moment
        return store.tick
