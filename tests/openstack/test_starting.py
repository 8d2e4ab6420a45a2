"""Starts against a cloud that loses answers, takes its time and says no: no drone is created twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiohttp import web

from adapters.openstack.creation import NameResolver, ServerCreation
from adapters.openstack.nova import OpenStackCloud
from adapters.openstack.records import Server
from provisioner.interfaces import RejectedError
from provisioner.model import FaultKind, OrderOutcome, OrderResult, StartOrder
from tests.openstack.clouded import Clouded, running
from tests.openstack.stocked import CONTROLLER, SITE, config, created, drone, has, order, stocked

CREATE = ("POST", "/compute/v2.1/servers")


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUD_SECRET", "s3cret")


class Starter:
    """One site's starts."""

    def __init__(self, cloud: OpenStackCloud, starting: ServerCreation, catalogue: NameResolver) -> None:
        self.cloud, self.starting, self.catalogue = cloud, starting, catalogue
        self.known: Collection[Server] = ()

    async def __call__(self, *orders: StartOrder) -> Sequence[OrderResult]:
        return await self.starting.start(self.cloud, self.catalogue, orders, self.known)


@asynccontextmanager
async def starter(clouded: Clouded, **options: Any) -> AsyncIterator[Starter]:
    settings = config(clouded, **options)
    async with OpenStackCloud(settings, deadline_s=10, parallel=settings.parallel) as cloud:
        starting = ServerCreation(settings, CONTROLLER, SITE)
        yield Starter(cloud, starting, NameResolver(cloud, settings))
        await starting.close()


async def test_a_drone_that_has_a_server_gets_no_other() -> None:
    async with running(stocked()) as clouded, starter(clouded) as start:
        there = has(clouded, drone(1))
        one, two = await start(order(1), order(2))
        assert (one.answer, one.remote_id) == (OrderOutcome.OK, there)
        assert two.answer is OrderOutcome.OK
        assert created(clouded) == [drone(2)]
        [again] = await start(order(2))
        assert again == two
        assert created(clouded) == [drone(2)]


async def test_of_two_servers_the_one_that_was_launched_is_told() -> None:
    async with running(stocked()) as clouded, starter(clouded) as start:
        has(clouded, drone(1), status="BUILD", created="2026-11-21T22:00:00Z")
        runs = has(clouded, drone(1), **{"OS-SRV-USG:launched_at": "2026-11-21T23:00:01.000000"})
        [receipt] = await start(order(1))
        assert receipt.remote_id == runs


async def test_a_server_in_a_cell_that_is_down_is_one_too() -> None:
    async with running(stocked()) as clouded, starter(clouded) as start:
        told = {"provisioner_drone": drone(1), "provisioner_controller": CONTROLLER, "provisioner_site": SITE}
        start.known = [Server("far-away", drone(1), "UNKNOWN", metadata=told)]
        [receipt] = await start(order(1))
        assert (receipt.answer, receipt.remote_id, created(clouded)) == (OrderOutcome.OK, "far-away", [])


async def test_a_create_without_an_answer_is_not_repeated() -> None:
    async with running(stocked()) as clouded, starter(clouded) as start:
        lost = 0

        async def loses(request: web.Request) -> web.Response | None:
            nonlocal lost
            if (request.method, request.path) != CREATE:
                return None
            lost += 1
            return web.Response(status=504)

        clouded.before = loses
        assert [receipt.answer for receipt in await start(order(1), order(2))] == [OrderOutcome.UNKNOWN] * 2
        clouded.before = None
        receipts = await start(order(1), order(3))
        assert [receipt.answer for receipt in receipts] == [OrderOutcome.UNKNOWN, OrderOutcome.OK]
        assert receipts[0].fault is not None and "may still get through" in receipts[0].fault.message
        assert (lost, created(clouded)[2:]) == (2, [drone(3)])

        late = has(clouded, drone(1), status="BUILD")  # it has got through
        [receipt] = await start(order(1))
        assert (receipt.answer, receipt.remote_id) == (OrderOutcome.OK, late)
        clouded.servers.clear()  # and is over: the next order is one of its own
        [receipt] = await start(order(1))
        assert receipt.answer is OrderOutcome.OK
        assert created(clouded)[2:] == [drone(3), drone(1)]


async def test_who_gives_up_leaves_what_is_under_way_and_asks_for_nothing_more() -> None:
    async with running(stocked()) as clouded, starter(clouded, parallel=1) as start:
        asked, release = asyncio.Event(), asyncio.Event()

        async def slow(request: web.Request) -> None:
            if (request.method, request.path) == CREATE:
                asked.set()
                await release.wait()

        clouded.before = slow
        task = asyncio.create_task(start(order(1), order(2), order(3)))  # type: ignore[arg-type]
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stopped = asyncio.create_task(start.starting.starts.settled([drone(3)]))
        await asyncio.sleep(0.05)
        assert not stopped.done(), "a stop waits for creates that are under way"
        release.set()
        await stopped
        [first] = created(clouded)
        assert [each["name"] for each in clouded.servers.values()] == [first], "it was not cut"
        receipts = await start(order(1), order(2), order(3))
        assert [receipt.answer for receipt in receipts] == [OrderOutcome.OK] * 3
        assert sorted(created(clouded)) == [drone(1), drone(2), drone(3)]


async def test_one_that_is_refused_does_not_hurt_another() -> None:
    async with running(stocked(quota=1)) as clouded, starter(clouded, parallel=1) as start:
        receipts = await start(order(1), order(2))
        assert [receipt.answer for receipt in receipts] == [OrderOutcome.OK, OrderOutcome.REJECTED]
        assert receipts[1].fault is not None
        assert receipts[1].fault.kind is FaultKind.QUOTA
        assert "Quota exceeded for instances" in receipts[1].fault.message
        clouded.servers.clear()
        [receipt] = await start(order(2))
        assert receipt.answer is OrderOutcome.OK, "a refusal is an answer: it may be asked for again"


async def test_what_can_never_be_a_server_is_refused_without_a_call() -> None:
    async with running(stocked()) as clouded, starter(clouded) as start:
        foreign = StartOrder(drone(1, "kit-two"), order(1).type, 600.0, 30.0, order(1).bootstrap)
        receipts = await start(foreign, order(2, env={"NOT A NAME": "x"}))
        assert [receipt.answer for receipt in receipts] == [OrderOutcome.REJECTED] * 2
        faults = [receipt.fault for receipt in receipts if receipt.fault is not None]
        assert [fault.kind for fault in faults] == [FaultKind.CONFIG] * 2
        assert "not a drone id of this controller" in faults[0].message
        assert clouded.asked == []


async def test_what_is_too_large_for_nova_is_refused() -> None:
    noise = Random(1).randbytes(80_000)
    async with running(stocked()) as clouded, starter(clouded) as start:
        large, small = await start(order(1, files={"noise": noise}), order(2))
        assert (large.answer, small.answer) == (OrderOutcome.REJECTED, OrderOutcome.OK)
        assert large.fault is not None and "65535" in large.fault.message
        assert created(clouded) == [drone(2)]


async def test_a_setup_script_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "setup.sh"
    async with running(stocked()) as clouded, starter(clouded, setup=str(missing)) as start:
        with pytest.raises(RejectedError, match=r"setup\.sh: No such file") as told:
            await start(order(1))
        assert told.value.kind is FaultKind.CONFIG
        missing.write_text("#!/bin/sh\n")
        [receipt] = await start(order(1))
        assert receipt.answer is OrderOutcome.OK


async def test_after_a_refusal_for_the_configuration_names_are_looked_up_anew() -> None:
    async with running(stocked()) as clouded, starter(clouded) as start:
        clouded.lists["images"] = []
        [receipt] = await start(order(1))
        assert receipt.fault is not None and "no image `drone`" in receipt.fault.message
        clouded.lists["images"] = stocked().lists["images"]
        [receipt] = await start(order(1))
        assert receipt.answer is OrderOutcome.OK
