"""Drones on worker nodes that reach the pool alone: no connection leads from the controller to them, nor back."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from adapters.htcondor.overlay import HTCondorOverlay, client_directory
from adapters.htcondor.overlay.drain import Drainer
from provisioner.model import DrainMode, DroneId, DroneType, OrderOutcome, SlotState, StartOrder
from tests.htcondor_overlay.live import A100, config, in_state, overlay_on, seen
from tests.htcondor_overlay.test_overlay_parts import Board
from tests.labs import htcondor, network
from tests.labs.htcondor import Condor, DroneProcess, Pool, gpu_job, until
from tests.labs.network import inside, ip

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not network.available(), reason=network.WANTED),
]


class Networks:
    """Three networks: the controller's (this host's), the pool's and the drones'. The pool's is
    linked to both others, and forwards nothing."""

    def __init__(self) -> None:
        number = random.SystemRandom().randrange(1 << 16)
        self.controller, self.pool, self.drones = (
            f"198.18.{number >> 8}.{number & 248 | each}" for each in (1, 2, 3)
        )
        self._tag = f"{number:04x}"
        self.pool_namespace, self.drone_namespace = (
            f"lab-pool-{self._tag}",
            f"lab-drones-{self._tag}",
        )

    def __enter__(self) -> Networks:
        try:
            for namespace in (self.pool_namespace, self.drone_namespace):
                ip("netns", "add", namespace)
                ip("-n", namespace, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            self.__exit__()
            pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
        self._link("", self.controller, f"lc{self._tag}")
        self._link(self.drone_namespace, self.drones, f"ld{self._tag}")
        # What a drone sends to the controller is lost, as behind a firewall. Without a route, HTCondor's shared
        # port tries again and again at once, and needs a whole core.
        ip("-n", self.drone_namespace, "route", "add", self.controller, "via", self.pool)
        return self

    def __exit__(self, *exc: object) -> None:
        for namespace in (self.pool_namespace, self.drone_namespace):
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "del", namespace)  # takes its links along

    def _link(self, namespace: str, address: str, name: str) -> None:
        """Link a network with the pool's: each end has a route to the one address at the other end."""
        there = ("-n", namespace) if namespace else ()
        ip(*there, "link", "add", name, "type", "veth", "peer", "name", f"{name}p")
        ip(*there, "link", "set", f"{name}p", "netns", self.pool_namespace)
        for where, interface, mine, theirs in (
            (there, name, address, self.pool),
            (("-n", self.pool_namespace), f"{name}p", self.pool, address),
        ):
            ip(*where, "addr", "add", mine, "peer", theirs, "dev", interface)
            ip(*where, "link", "set", interface, "up")


class IsolatedPool(Pool):
    """A pool in a network of its own; its clients are on this host."""

    def __init__(self, root: Path, condor: Condor, networks: Networks) -> None:
        self.networks, self.around = networks, inside(networks.pool_namespace)
        self.address, self.clients_address = networks.pool, networks.controller
        super().__init__(root, condor)


@pytest.fixture
def isolated(condor: Condor) -> Iterator[IsolatedPool]:
    """A pool whose drones and controller cannot reach each other."""
    with (
        Networks() as networks,
        htcondor.lab_directory("isolated") as root,
        htcondor.running(IsolatedPool(root, condor, networks)) as pool,
    ):
        yield pool


@contextlib.asynccontextmanager
async def drones_of(
    pool: IsolatedPool, overlay: HTCondorOverlay, kind: DroneType, number: int
) -> AsyncIterator[list[DroneProcess]]:
    """So many drones in their own network, as the overlay admits them."""
    quick = htcondor.QUICK_DRONE.replace("127.0.0.1", pool.networks.drones)
    config = f"{quick}PRIVATE_NETWORK_NAME = node.example\n".encode()
    made = []
    try:
        for serial in range(1, number + 1):
            order = StartOrder(DroneId(htcondor.own(f"kit-{serial}")), kind, 600.0, 10.0)
            bootstrap = await overlay.bootstrap(order)
            env = {**bootstrap.env, "DRONE_IDLE_S": "600"}
            files = {**bootstrap.files, "extra.conf": config}
            shell = (*inside(pool.networks.drone_namespace), "/bin/sh")
            how = {"env": env, "files": files, "shell": shell, "as_root": True}
            made.append(htcondor.start_drone(pool, order.drone_id, bootstrap.script, **how))
        yield made
    finally:
        for each in made:
            each.stop()


async def all_in(overlay: HTCondorOverlay, drones: list[DroneProcess], state: SlotState) -> None:
    await seen(overlay, in_state(state, *drones), 60.0 + 6 * len(drones))


async def drained(overlay: HTCondorOverlay, drones: list[DroneProcess], mode: DrainMode) -> None:
    """Order a drain; ask again where no answer came, as the controller does: on a busy host the
    process that sends orders may take as long to start as an order may take."""
    for _ in range(3):
        receipts = await overlay.drain([DroneId(each.id) for each in drones], mode, "a test")
        if {receipt.answer for receipt in receipts} == {OrderOutcome.OK}:
            return
    raise AssertionError(receipts)


def forged_order(pool: Pool, drone_id: str, identity: str) -> None:
    """Advertise an order to leave at once, as an identity that the drone does not obey."""
    ad = (
        f'MyType = "Generic"\nName = "{identity}"\nDroneOrderFor = "{drone_id}"\nDroneOrder = 7\n'
        'DroneOrderMode = "fast"\nAuthenticatedIdentity = "admin@overlay.test"\n'
    )
    pool.advertise(ad, identity=identity, command="UPDATE_AD_GENERIC")


@pytest.mark.parametrize("number", [2, pytest.param(20, marks=pytest.mark.matrix)])
async def test_drones_that_reach_the_pool_alone_drain_return_and_end(
    isolated: IsolatedPool, number: int
) -> None:
    """Every drain of a drone behind CCB was refused, and a draining drone took more jobs."""
    pool = isolated
    client = htcondor.interface(pool.clients_address)
    patient_s = htcondor.PATIENCE * (60.0 + 6 * number)
    async with (
        overlay_on(pool, client_config=client, deadline="60s") as overlay,
        drones_of(pool, overlay, A100, number) as drones,
    ):
        await all_in(overlay, drones, SlotState.IDLE)
        with pytest.raises(htcondor.LabError):
            forged_order(pool, drones[0].id, "drone")
        forged_order(pool, drones[0].id, "condor")  # may advertise, and is still not obeyed
        cluster = pool.submit(gpu_job(3600, n=number))
        until(lambda: pool.statuses(cluster) == [2] * number, patient_s, what="all jobs run")
        await all_in(overlay, drones, SlotState.BUSY)
        assert not await reached_by_the_tool(pool, overlay, drones[0], client), (
            "the network lets the tool through"
        )

        await drained(overlay, drones, DrainMode.PEACEFUL)
        await all_in(overlay, drones, SlotState.DRAINING)
        assert pool.statuses(cluster) == [2] * number, "the jobs go on"
        await drained(overlay, drones, DrainMode.RESUME)
        await all_in(overlay, drones, SlotState.BUSY)
        assert pool.statuses(cluster) == [2] * number

        half = number // 2
        await drained(overlay, drones[:half], DrainMode.GRACEFUL)
        for each in drones[:half]:
            await asyncio.to_thread(each.wait, patient_s)
        pool.remove(cluster)
        await all_in(overlay, drones[half:], SlotState.IDLE)
        await drained(overlay, drones[half:], DrainMode.PEACEFUL)
        for each in drones[half:]:
            await asyncio.to_thread(each.wait, patient_s)
        assert {each.outcome["reason"] for each in drones} == {"drained"}, [
            each.said for each in drones
        ]


async def reached_by_the_tool(
    pool: Pool, overlay: HTCondorOverlay, drone: DroneProcess, client: str
) -> bool:
    """Return whether condor_drain by itself reaches a drone."""
    view = await overlay.poll([A100])
    name = next(slot.name for slot in view.slots if slot.drone_id == drone.id)
    directory = client_directory(config(pool, client_config=client))
    directory.refresh()
    tool = Drainer(str(pool.condor.prefix / "usr/bin/condor_drain"), directory.env, 4.0, Board())
    (receipt,) = await tool.drain({DroneId(drone.id): name}, DrainMode.RESUME, "a test")
    directory.close()
    return receipt.answer is OrderOutcome.OK
