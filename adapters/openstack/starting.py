"""Starts, one request for each drone: none twice, none after its caller has given up, and none cut in the middle.

Nova's create is not idempotent, and its answer may be lost or come late. So before anything is created the servers are
listed by tag, and a create that nobody knows the end of keeps its drone from another one until it would have shown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from adapters.openstack.catalogue import Catalogue
from adapters.openstack.cloud import Cloud
from adapters.openstack.creation import checked, request
from adapters.openstack.names import group_tag, named
from adapters.openstack.records import Server
from adapters.openstack.settings import OpenStackSiteConfig
from adapters.openstack.states import meaning
from adapters.openstack.user_data import user_data
from adapters.shared.parcel import Unfit
from adapters.shared.printing import printable
from adapters.shared.starts import Starts
from provisioner.interfaces import AdapterError, OutcomeUnknownError, RejectedError
from provisioner.model import DroneId, Fault, FaultKind, OrderOutcome, OrderResult, RemoteState, StartOrder

_MAY_COME_S = 300.0
"""A create without an answer may still get through for so long: a request waits in a proxy, or in Nova's own queue."""
_LONGEST_SETUP = 256 * 1024


class Starting:
    """The starts of one site. One call at a time creates; what it creates is bounded by ``config.parallel``."""

    def __init__(self, config: OpenStackSiteConfig, controller: str, site: str) -> None:
        self._config, self._controller, self._site = config, controller, site
        self._starts = Starts(site, _MAY_COME_S)

    async def start(
        self, cloud: Cloud, catalogue: Catalogue, orders: Sequence[StartOrder], known: Iterable[Server]
    ) -> Sequence[OrderResult]:
        """As the seam wants it. ``known``: our servers as last seen, of which some may be in a part of the cloud that
        does not answer now."""
        receipts: dict[DroneId, OrderResult] = {}
        fit = []
        for order in orders:
            try:
                checked(order, self._controller)
                fit.append(order)
            except Unfit as error:
                receipts[order.drone_id] = refused(order.drone_id, FaultKind.CONFIG, str(error))
        if fit:
            answers = await self._starts.run(
                [order.drone_id for order in fit],
                lambda given_up: self._started(cloud, catalogue, fit, known, given_up),
            )
            receipts |= {receipt.drone_id: receipt for receipt in answers}
        return [receipts[order.drone_id] for order in orders]

    async def settled(self, drone_ids: Collection[DroneId]) -> None:
        """Wait for creates of any of these drones."""
        await self._starts.settled(drone_ids)

    async def close(self) -> None:
        """Creates under way are waited for."""
        await self._starts.close(self._config.create_deadline)

    async def _started(
        self,
        cloud: Cloud,
        catalogue: Catalogue,
        orders: Sequence[StartOrder],
        known: Iterable[Server],
        given_up: asyncio.Event,
    ) -> Sequence[OrderResult]:
        wanted = {order.drone_id for order in orders}
        there = await servers_of(cloud, self._controller, self._site, wanted, known)
        self._starts.there(there)
        setup = await asyncio.to_thread(_setup, self._config.setup)
        receipts = [OrderResult(drone_id, OrderOutcome.OK, servers[0].id) for drone_id, servers in there.items()]
        width = asyncio.Semaphore(self._config.parallel)
        tasks = []
        async with asyncio.TaskGroup() as group:
            for order in orders:
                if self._starts.may_come(order.drone_id):
                    receipts.append(unsure(order.drone_id, "an earlier create of it may still get through"))
                elif order.drone_id not in there:
                    tasks.append(group.create_task(self._one(cloud, catalogue, order, setup, given_up, width)))
        return [*receipts, *(task.result() for task in tasks)]

    async def _one(
        self,
        cloud: Cloud,
        catalogue: Catalogue,
        order: StartOrder,
        setup: bytes,
        given_up: asyncio.Event,
        width: asyncio.Semaphore,
    ) -> OrderResult:
        """Never raises: another may have got through."""
        try:
            async with width:
                if given_up.is_set():
                    return refused(order.drone_id, FaultKind.DOWN, "not asked for: there was no time left")
                ids = await catalogue.resolved(order.type)
                body, hints = request(order, self._config, ids, user_data(order, self._config, setup))
                server_id = await cloud.create(body, hints, deadline_s=self._config.create_deadline)
                return OrderResult(order.drone_id, OrderOutcome.OK, server_id)
        except Unfit as error:
            return refused(order.drone_id, FaultKind.CONFIG, str(error))
        except OutcomeUnknownError as error:
            self._starts.without_answer([order.drone_id])
            return unsure(order.drone_id, str(error))
        except AdapterError as error:
            if error.kind is FaultKind.CONFIG:
                catalogue.forget()  # what a name means may have changed
            return refused(order.drone_id, error.kind, str(error))
        except Exception as error:  # a mistake of ours, and nobody knows how far it got
            self._starts.without_answer([order.drone_id])
            return unsure(order.drone_id, f"{type(error).__name__}: {error}")


async def servers_of(
    cloud: Cloud, controller: str, site: str, drone_ids: Collection[DroneId], known: Iterable[Server]
) -> Mapping[DroneId, Sequence[Server]]:
    """The servers of these drones as the cloud lists them now, those first that have most to lose. Not those that are
    gone. One call and its pages. What is in a cell that is down is not listed by tag (roll.py): it is as ``known``."""
    found: dict[DroneId, list[Server]] = {}
    silent = [server for server in known if server.status == "UNKNOWN"]
    listed = await cloud.servers(tag=group_tag(controller, site))
    for server in {server.id: server for server in (*silent, *listed)}.values():
        who = named(server, controller, site)
        if who is not None and who.drone_id in drone_ids and meaning(server).state is not RemoteState.ENDED:
            found.setdefault(who.drone_id, []).append(server)
    for servers in found.values():
        servers.sort(key=lambda each: (not each.launched_at, each.created_at, each.id))
    return found


def _setup(path: Path | None) -> bytes:
    if path is None:
        return b""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise RejectedError(f"`setup` {path}: {error.strerror}", FaultKind.CONFIG) from None
    if len(text) > _LONGEST_SETUP:
        raise RejectedError(f"`setup` {path}: {len(text)} bytes are more than a server can be sent", FaultKind.CONFIG)
    return text


def refused(drone_id: DroneId, kind: FaultKind, message: str) -> OrderResult:
    return OrderResult(drone_id, OrderOutcome.REJECTED, "", Fault(kind, printable(message, 300), time.time()))


def unsure(drone_id: DroneId, message: str) -> OrderResult:
    return OrderResult(
        drone_id, OrderOutcome.UNKNOWN, "", Fault(FaultKind.UNKNOWN, printable(message, 300), time.time())
    )
