"""A pool with two collectors, one of which dies, and a pool on IPv6."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from provisioner import drone
from provisioner.model import DrainMode, DroneId, OrderOutcome, SlotState, StartOrder
from tests.htcondor_overlay.live import A100, CLIENT, overlay_on
from tests.labs.htcondor import (
    QUICK_DRONE,
    Condor,
    Pool,
    end,
    free_port,
    gpu_job,
    lab_directory,
    own,
    running_pool,
    start_drone,
    until,
)
from tests.live.test_overlay import eventually, in_state, slot_of

pytestmark = pytest.mark.timeout(300)

ONE, TWO = DroneId(own("kit-1")), DroneId(own("kit-2"))


@contextmanager
def second_collector(pool: Pool, port: int) -> Iterator[Path]:
    """Another collector of the same pool, with a master of its own."""
    home = pool.root / "second"
    for directory in ("etc", "run", "log", "lock", "spool", "execute", "cred"):
        (home / directory).mkdir(parents=True)
    text = pool.config.read_text().replace(f"LOCAL_DIR = {pool.dir}\n", f"LOCAL_DIR = {home}\n")
    config = home / "etc/condor_config"
    daemons = f"DAEMON_LIST = MASTER SHARED_PORT COLLECTOR\nSHARED_PORT_PORT = {port}\nCOLLECTOR_NAME = second\n"
    config.write_text(f"{text}\n{daemons}")
    pool.account.give(home)
    master = pool._master(home, config)
    try:
        yield home
    finally:
        end(master, 15, 30)


async def test_a_pool_goes_on_when_one_of_its_two_collectors_dies(condor: Condor) -> None:
    port = free_port()
    with running_pool(condor) as pool:
        one, other = pool.collector, f"127.0.0.1:{port}"
        both = f"{other},{one}"
        with pool.config.open("a") as config:
            config.write(f"\nCOLLECTOR_HOST = {both}\n")
        for daemon in ("schedd", "negotiator"):
            pool.signal(daemon, 1)
        pool.collector = both
        drones = []
        try:
            async with overlay_on(pool, deadline="10s") as overlay:
                with second_collector(pool, port):
                    listed = ("condor_status", "-pool", other, "-any", "-af", "MyType")
                    until(lambda: "Scheduler" in pool.run(*listed), 60, what="the second collector knows the schedd")
                    drones.append(start_drone(pool, ONE, drone.script("condor_drone.sh")))
                    await eventually(lambda: overlay.poll([A100]), in_state(SlotState.IDLE, ONE))
                    bootstrap = await overlay.bootstrap(StartOrder(ONE, A100, 600.0, 10.0))
                    assert bootstrap.env["DRONE_COLLECTOR"] == both
                for _ in range(3):  # the first of the list is dead
                    view = await overlay.poll([A100])
                    assert slot_of(view, ONE) is not None
                    assert view.notices == ()
                cluster = pool.submit(gpu_job(n=1, seconds=600))
                await eventually(lambda: overlay.poll([A100]), in_state(SlotState.BUSY, ONE))
                drones.append(start_drone(pool, TWO, drone.script("condor_drone.sh")))
                await eventually(lambda: overlay.poll([A100]), in_state(SlotState.IDLE, TWO))
                receipts = await overlay.drain([ONE, TWO], DrainMode.FAST, "tested")
                assert [receipt.answer for receipt in receipts] == [OrderOutcome.OK] * 2
                for each in drones:
                    await asyncio.to_thread(each.wait)
                pool.remove(cluster)
        finally:
            for each in drones:
                each.stop()


def _has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="this host has no IPv6 loopback")
async def test_a_drone_joins_a_pool_on_ipv6(condor: Condor) -> None:
    lines = "NETWORK_INTERFACE = ::1\nCONDOR_HOST = ::1\nENABLE_IPV4 = False\nENABLE_IPV6 = True\n"
    client = CLIENT + lines
    with ipv6_pool(condor, lines) as pool:
        one = start_drone(
            pool, ONE, drone.script("condor_drone.sh"), files={"extra.conf": f"{QUICK_DRONE}{lines}".encode()}
        )
        try:
            async with overlay_on(pool, client_config=client) as overlay:
                await eventually(lambda: overlay.poll([A100]), in_state(SlotState.IDLE, ONE))
                [receipt] = await overlay.drain([ONE], DrainMode.PEACEFUL, "tested")
                assert receipt.answer is OrderOutcome.OK
                await asyncio.to_thread(one.wait)
        finally:
            one.stop()


@contextmanager
def ipv6_pool(condor: Condor, lines: str) -> Iterator[Pool]:
    """A pool whose daemons and clients know no other network than IPv6 on loopback."""

    class On6(Pool):
        def _common(self, directory: Path, tokens: Path, keys: Path) -> str:
            self.collector = f"[::1]:{self.port}"
            return super()._common(directory, tokens, keys) + lines

    with lab_directory("six") as root:
        pool = On6(root, condor, "six")
        try:
            yield pool.start()
        finally:
            pool.stop()
