"""A pool with two collectors, one of which dies, and a pool on IPv6."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from provisioner.model import DrainMode, DroneId, OrderOutcome, SlotState, StartOrder
from tests.htcondor_overlay.live import A100, in_state, overlay_on, seen, slot_of
from tests.labs import htcondor
from tests.labs.htcondor import QUICK_DRONE, Condor, Pool, StartDrone, gpu_job, until
from tests.labs.ports import free_port


@contextmanager
def second_collector(pool: Pool, port: int) -> Iterator[None]:
    """Another collector of the same pool, with a master of its own."""
    home = pool.root / "second"
    htcondor.make_directories(home)
    text = pool.config.read_text().replace(f"LOCAL_DIR = {pool.dir}\n", f"LOCAL_DIR = {home}\n")
    config = home / "etc/condor_config"
    daemons = f"DAEMON_LIST = MASTER SHARED_PORT COLLECTOR\nSHARED_PORT_PORT = {port}\nCOLLECTOR_NAME = second\n"
    config.write_text(f"{text}\n{daemons}")
    pool.account.give(home)
    master = pool._master(home, config)
    try:
        yield
    finally:
        htcondor.throw_away([master], home)


async def test_a_pool_goes_on_when_one_of_its_two_collectors_dies(
    new_pool: Callable[[], Pool], drone_on: StartDrone
) -> None:
    pool, port = new_pool(), free_port()
    other = f"127.0.0.1:{port}"
    both = f"{other},{pool.collector}"
    with pool.config.open("a") as config:
        config.write(f"\nCOLLECTOR_HOST = {both}\n")
    for daemon in ("schedd", "negotiator"):
        pool.signal(daemon, 1)
    pool.collector = both
    async with overlay_on(pool, deadline="10s") as overlay:
        with second_collector(pool, port):
            listed = ("condor_status", "-pool", other, "-any", "-af", "MyType")
            until(
                lambda: "Scheduler" in pool.run(*listed),
                60,
                what="the second collector knows the schedd",
            )
            one = drone_on(pool, "kit-1")
            await seen(overlay, in_state(SlotState.IDLE, one))
            bootstrap = await overlay.bootstrap(StartOrder(DroneId(one.id), A100, 600.0, 10.0))
            assert bootstrap.env["DRONE_COLLECTOR"] == both
        for _ in range(3):  # the first of the list is dead
            view = await overlay.poll([A100])
            assert slot_of(view, one.id) is not None
            assert view.notices == ()
        pool.submit(gpu_job(600))
        await seen(overlay, in_state(SlotState.BUSY, one))
        two = drone_on(pool, "kit-2")
        await seen(overlay, in_state(SlotState.IDLE, two))
        receipts = await overlay.drain([DroneId(one.id), DroneId(two.id)], DrainMode.FAST, "tested")
        assert [receipt.answer for receipt in receipts] == [OrderOutcome.OK] * 2
        for each in (one, two):
            await asyncio.to_thread(each.wait)


def _has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


ON_6 = "NETWORK_INTERFACE = ::1\nCONDOR_HOST = ::1\nENABLE_IPV4 = False\nENABLE_IPV6 = True\n"


class PoolOn6(Pool):
    """A pool whose daemons and clients know no other network than IPv6 on loopback."""

    def _common(self, directory: Path, tokens: Path, keys: Path) -> str:
        self.collector = f"[::1]:{self.port}"
        return super()._common(directory, tokens, keys) + ON_6


@pytest.mark.skipif(not _has_ipv6(), reason="this host has no IPv6 loopback")
async def test_a_drone_joins_a_pool_on_ipv6(condor: Condor, drone_on: StartDrone) -> None:
    with (
        htcondor.lab_directory("six") as root,
        htcondor.running(PoolOn6(root, condor, "six")) as pool,
    ):
        one = drone_on(pool, "kit-1", files={"extra.conf": f"{QUICK_DRONE}{ON_6}".encode()})
        async with overlay_on(pool, client_config=htcondor.LOOPBACK + ON_6) as overlay:
            await seen(overlay, in_state(SlotState.IDLE, one))
            [receipt] = await overlay.drain([DroneId(one.id)], DrainMode.PEACEFUL, "tested")
            assert receipt.answer is OrderOutcome.OK
            await asyncio.to_thread(one.wait)
