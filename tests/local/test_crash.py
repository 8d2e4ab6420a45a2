"""The controller may die at any instruction: what it began is listed once, and ended once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from adapters.local.drones import DroneRecord, claim
from adapters.local.resources import HostAllocation
from provisioner.adapter_tests import eventually
from provisioner.model import (
    EndKind,
    OrderOutcome,
    RemoteEnd,
    RemoteState,
    SiteView,
    StartOrder,
    StopOrder,
)
from provisioner.processes import Process, boot_id
from tests.local.conftest import MakeSite
from tests.local.drones import HERE, LIVING, STUBBORN, all_tagged, holds, launchers, tagged

Order = Callable[..., StartOrder]


def in_a_process_of_its_own(work: Callable[[], object]) -> int:
    """Fork, so that the controller is ready in no time; the child never returns here."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [12, pytest.param(40, marks=pytest.mark.matrix)])
def test_killed_anywhere_in_start_no_drone_is_unlisted_or_doubled(
    make_site: MakeSite, order: Order, root: Path, controller: str, rounds: int
) -> None:
    dice = random.Random(20)
    cut_short = 0
    for turn in range(rounds):
        orders = [order(10 * turn + n) for n in (1, 2, 3)]
        victim = in_a_process_of_its_own(lambda: asyncio.run(make_site().start(orders)))  # noqa: B023
        time.sleep(dice.uniform(0.0, 0.04))
        os.kill(victim, signal.SIGKILL)
        cut_short += os.WIFSIGNALED(os.waitpid(victim, 0)[1])
        asyncio.run(_settle(make_site, orders, controller))
        assert not list(root.glob(".new-*"))
    assert cut_short > rounds / 4, "hardly any round was cut short: it tests nothing"


async def _settle(make_site: MakeSite, orders: Sequence[StartOrder], controller: str) -> None:
    """A new controller lists all that runs, starts again, and has each drone once; then it ends them all."""
    async with make_site() as site:

        async def all_known() -> bool:
            shown = (await site.poll()).drones
            return all(drone.state is not RemoteState.PENDING for drone in shown.values())

        await eventually("no drone hangs between claim and launch", all_known, 60)
        shown = {
            d
            for d, drone in (await site.poll()).drones.items()
            if drone.state is RemoteState.RUNNING
        }

        # a launcher that came too late for its claim needs an instant to go
        await holds("what runs is listed", lambda: set(all_tagged(controller).values()) <= shown)
        receipts = await site.start(orders)
        assert [r.answer for r in receipts] == [OrderOutcome.OK] * 3
        after = (await site.poll()).drones
        for one in orders:
            alive = after[one.drone_id].state is RemoteState.RUNNING
            await holds(
                "it runs once, or not at all if it ended",
                lambda: len(launchers(one.drone_id)) == alive,  # noqa: B023
            )
            end = after[one.drone_id].end
            assert alive or (end is not None and end.kind is EndKind.FAULT)
        await site.stop([StopOrder(one.drone_id, "", kill=True) for one in orders])
        assert (await site.poll()).free == {"small": 4}


def claimed(root: Path, one: StartOrder, controller: str, starter: Process) -> None:
    record = DroneRecord(
        controller, HERE, "small", 1.0, str(starter), HostAllocation(2, 1024, 10, {0: 1000})
    )
    assert claim(root / one.drone_id, record, starter, LIVING)


async def test_a_claim_whose_controller_died_is_a_fault_and_frees_its_room(
    make_site: MakeSite, order: Order, root: Path, controller: str
) -> None:
    never, waiting = order(1), order(2)
    # pid 1 did not start at tick 1 under this name
    claimed(root, never, controller, Process(1, 1, boot_id()))
    claimed(root, waiting, controller, Process.own())
    async with make_site() as site:
        view = await site.poll()
        end = end_of(view, never)
        assert (end.kind, end.message) == (
            EndKind.FAULT,
            "the controller died before it was launched",
        )
        assert view.drones[waiting.drone_id].state is RemoteState.PENDING
        assert view.free == {"small": 4}, "what waits has its room promised by the planner"
        [receipt] = await site.start([never])
        assert receipt.answer is OrderOutcome.OK
        assert tagged(never.drone_id) == []  # it is over: an id is used once
        await site.stop([StopOrder(waiting.drone_id, "")])
        assert end_of(await site.poll(), waiting).kind is EndKind.STOPPED


@pytest.mark.parametrize(
    ("boot", "said"), [("", "its launcher vanished"), ("an-earlier-boot", "the host was rebooted")]
)
async def test_a_reused_pid_is_neither_taken_for_the_drone_nor_killed(
    make_site: MakeSite, order: Order, root: Path, boot: str, said: str
) -> None:
    one = order(1)
    stranger = await asyncio.create_subprocess_exec("sleep", "1000")
    try:
        async with make_site() as site:
            await site.start([one])
            await site.stop([StopOrder(one.drone_id, "", kill=True)])
            ours = root / one.drone_id / ".site"
            (ours / "end").unlink()
            (ours / "stop").unlink()
            (ours / "launcher").write_text(f"{stranger.pid} 1 {boot or boot_id()}\n")
            end = end_of(await site.poll(), one)
            assert end.kind is EndKind.FAULT and said in end.message
            (ours / "end").unlink()
            await site.stop([StopOrder(one.drone_id, ""), StopOrder(one.drone_id, "", kill=True)])
            assert (await site.poll()).drones[one.drone_id].state is RemoteState.ENDED
        assert stranger.returncode is None
        os.kill(stranger.pid, 0)
    finally:
        stranger.kill()
        await stranger.wait()


async def test_a_drone_that_ignores_sigterm_dies_after_its_grace_without_a_controller(
    make_site: MakeSite, order: Order, root: Path
) -> None:
    one = order(1, STUBBORN, grace_s=1.0)

    async def start_and_ask() -> None:
        site = make_site()
        await site.start([one])
        await holds("it has set its traps", (root / one.drone_id / "drone/ready").exists)
        await site.stop([StopOrder(one.drone_id, "")])
        os.kill(os.getpid(), signal.SIGKILL)

    controller = in_a_process_of_its_own(lambda: asyncio.run(start_and_ask()))
    assert os.WIFSIGNALED((await asyncio.to_thread(os.waitpid, controller, 0))[1])
    assert len(tagged(one.drone_id, "sleep 1000")) >= 3, "it should be in its grace now"

    await holds("nothing of it is left", lambda: not tagged(one.drone_id))
    end = end_of(await make_site().poll(), one)
    assert (end.kind, end.exit_code) == (EndKind.STOPPED, 137)


async def test_a_launcher_that_vanished_is_a_fault_and_its_leftovers_are_ended(
    make_site: MakeSite, order: Order, root: Path
) -> None:
    one = order(1, STUBBORN)
    async with make_site() as site:
        await site.start([one])
        await holds("it runs", (root / one.drone_id / "drone/ready").exists)
        [launcher] = launchers(one.drone_id)
        os.kill(launcher, signal.SIGKILL)
        await holds("the launcher is gone", lambda: not launchers(one.drone_id))
        assert tagged(one.drone_id), "its script should have outlived it"

        view = await site.poll()
        end = end_of(view, one)
        assert end.kind is EndKind.FAULT
        assert "launcher vanished" in end.message
        assert tagged(one.drone_id) == []
        assert view.free == {"small": 4}


def end_of(view: SiteView, one: StartOrder) -> RemoteEnd:
    end = view.drones[one.drone_id].end
    assert end is not None
    return end
