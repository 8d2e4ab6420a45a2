"""The site seam for an OpenStack cloud: one listing tells all of ours, each drone is a server of its own."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Self

from adapters.openstack.capacity import allowed, nodes, places
from adapters.openstack.cleanup import ResourceCleanup
from adapters.openstack.creation import NameResolver, ServerCreation, refused, servers_of, unsure
from adapters.openstack.nova import Cloud
from adapters.openstack.owner import OwnerRequests, claims, owners, running
from adapters.openstack.records import Server, ServerAction
from adapters.openstack.registry import RegistryView, ServerListing, ServerRegistry, listing
from adapters.openstack.settings import CloudAccess, OpenStackSiteConfig
from adapters.openstack.states import Way, meaning
from adapters.openstack.termination import EndedServers, is_deleted, tail, verdict
from adapters.shared.printing import printable
from provisioner.interfaces import AdapterError, AuditFinding, AuthError, OutcomeUnknownError, UnavailableError
from provisioner.model import (
    DroneId,
    DroneType,
    FaultKind,
    OrderOutcome,
    OrderResult,
    SitePolicy,
    SiteView,
    StartOrder,
    StopOrder,
)

_GOING = ("deleting", "soft-deleting")


class OpenStackSite:
    """Drones as servers of our project. What is true is in Nova, so a restarted controller sees the same."""

    Config = OpenStackSiteConfig

    def __init__(self, name: str, config: OpenStackSiteConfig, types: Sequence[DroneType], controller: str) -> None:
        self._name, self._config, self._types, self._controller = name, config, tuple(types), controller
        self._stack = contextlib.AsyncExitStack()
        self._entered: Cloud | None = None
        self._owners: Cloud | None = None
        self._roll = ServerRegistry(
            controller, name, full_s=config.full_refresh_interval, keep_s=config.retain_finished
        )
        self._ends = EndedServers(config.retain_finished)
        self._starting = ServerCreation(config, controller, name)
        self._said: dict[DroneId, str] = {}
        self._known: Sequence[Server] = ()
        """Our servers as last seen."""
        self._looks = 0
        self._errand: asyncio.Task[None] | None = None
        self._trouble = ""
        self._sweeper = ResourceCleanup(config.cleanup_interval)

    async def __aenter__(self) -> Self:
        config = self._config
        async with contextlib.AsyncExitStack() as stack:
            entered = await stack.enter_async_context(_cloud(config, config))
            if config.owner is not None:
                self._owners = await stack.enter_async_context(_cloud(config.owner, config))
            self._stack = stack.pop_all()
        self._entered, self._catalogue = entered, NameResolver(entered, config)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Drones live on."""
        await self._starting.close()
        if self._errand is not None:
            self._errand.cancel()
            await asyncio.wait([self._errand])
            self._errand = None
        self._entered = self._owners = None
        await self._stack.aclose()

    @property
    def _cloud(self) -> Cloud:
        if self._entered is None:
            raise UnavailableError("the site is not connected")
        return self._entered

    # -------------------------------------------------------------------------------------------------------- looking

    async def poll(self) -> SiteView:
        """List our drones, our quota and, where hosts are known, free capacity and the owner's waiting servers.

        Ended drones are listed for ``retain_finished``. It takes two calls, with an owner three, and their pages; a
        full listing is one more, and so are the flavours now and then. Nothing is changed.
        """
        taken_at = time.time()
        muster = await self._roll.poll(self._cloud)
        self._known = muster.servers
        limits, flavors = await self._cloud.limits(), await self._catalogue.flavors()
        theirs = await self._owners.servers() if self._owners is not None else ()
        projects = (self._cloud.project, self._owners.project if self._owners is not None else "")
        where = places(self._config.hosts, projects)
        found = listing(muster, self._ends.known, self._ends.asked, where, self._controller, self._name, taken_at)
        here = nodes(self._config, self._types, muster.servers, (*muster.others, *theirs), where)
        wanted, runs = OwnerRequests(), None
        if self._config.owner is not None:
            first = owners(theirs, self._config.owner)
            wanted, runs = claims(first, here.nodes, where, self._config.owner, taken_at), running(first, where)
        view = SiteView(
            site=self._name,
            taken_at=taken_at,
            drones=found.drones,
            nodes=here.nodes,
            claims=wanted.claims,
            owner_runs=runs,
            notices=(*found.notices, *here.notices, *self._house_trouble()),
            remarks=wanted.notices,
            quota=allowed(limits, flavors),
        )
        self._keep_house(found, muster)
        return view

    def last_words(self) -> Mapping[DroneId, str]:
        """Return the ends of consoles by drone."""
        said, self._said = self._said, {}
        return said

    # --------------------------------------------------------------------------------------------------- housekeeping

    def _keep_house(self, found: ServerListing, muster: RegistryView) -> None:
        """Between looks, one errand at a time; who looks but once (``provisioner check``) keeps no house."""
        self._looks += 1
        self._ends.forget(found.drones.keys())
        if self._looks > 1 and (self._errand is None or self._errand.done()):
            work = self._errands(found, muster)
            self._errand = asyncio.create_task(work, name=f"housekeeping of site {self._name}")

    async def _errands(self, found: ServerListing, muster: RegistryView) -> None:
        """Run the tasks that a poll leaves, each by itself: a failure does not stop the others."""
        width = asyncio.Semaphore(self._config.parallel)
        self._trouble = ""
        async with asyncio.TaskGroup() as group:
            for drone_id, server in found.over.items():
                if server.task not in _GOING:
                    group.create_task(self._one(width, self._cleared(drone_id, server)))
            for drone_id, server in found.unsettled.items():
                if drone_id not in found.over:
                    group.create_task(self._one(width, self._settled(drone_id, server)))
            for server_id in found.surplus:
                group.create_task(self._one(width, self._cloud.delete(server_id)))
            if self._sweeper.due(muster.gone):
                group.create_task(self._one(width, self._sweeper.sweep(self._cloud)))

    async def _one(self, width: asyncio.Semaphore, errand: Awaitable[None]) -> None:
        async with width:
            try:
                await errand
            except AdapterError as error:  # then after the next look
                self._trouble = printable(f"housekeeping: {error}", 300)

    def _house_trouble(self) -> Iterable[str]:
        errand = self._errand
        if self._trouble:
            yield self._trouble
        if errand is not None and errand.done() and not errand.cancelled() and (error := errand.exception()):
            yield printable(f"housekeeping: {type(error).__name__}: {error}", 300)

    async def _cleared(self, drone_id: DroneId, server: Server) -> None:
        """Delete a server whose drone is over, after its end is recorded."""
        if drone_id not in self._ends.known:
            console = await self._console(server.id)
            told, last = verdict(console, drone_id), tail(console, self._config.console_lines)
            actions = await self._actions(server.id)
            self._ends.make_out(drone_id, server, told, actions, self._cloud.user, time.time(), output=last)
            if last:
                self._said[drone_id] = last
        await self._cloud.delete(server.id)

    async def _console(self, server_id: str) -> str:
        """Return a server's console output, or nothing: the server is deleted whatever the answer."""
        if self._config.console_lines:
            with contextlib.suppress(AdapterError):
                return await self._cloud.console(server_id, self._config.console_lines)
        return ""

    async def _actions(self, server_id: str) -> Sequence[ServerAction] | None:
        """None where we may not know."""
        with contextlib.suppress(AuthError):
            return await self._cloud.actions(server_id)
        return None

    async def _settled(self, drone_id: DroneId, server: Server) -> None:
        actions = await self._actions(server.id)
        if is_deleted(server, actions or (), drone_id in self._ends.asked):
            self._ends.make_out(drone_id, server, None, actions, self._cloud.user, time.time())

    # ------------------------------------------------------------------------------------------------------- auditing

    async def audit(self, policy: SitePolicy) -> Sequence[AuditFinding]:
        """Where the cloud does not have what the settings name, or where it is not what a drone type says."""
        found: list[AuditFinding] = []
        for kind in self._types:
            for dimension, message in await self._catalogue.troubles(kind):
                found.append(AuditFinding(f"type {kind.name}", dimension, printable(message, 400)))
        limits = await self._cloud.limits()
        if 0 <= limits.instances < policy.max_drones:
            message = f"the project may have {limits.instances} servers, `max_drones` is {policy.max_drones}: lower it"
            found.append(AuditFinding("project", "quota", message))
        return found

    # ---------------------------------------------------------------------------------------------- starting, stopping

    async def start(self, orders: Sequence[StartOrder]) -> Sequence[OrderResult]:
        """Create a server for each drone that has none yet."""
        return await self._starting.start(self._cloud, self._catalogue, orders, self._known)

    async def stop(self, orders: Sequence[StopOrder]) -> Sequence[OrderResult]:
        """Shut down the guest, which notifies its drone, or delete a server that has no guest.

        A later poll deletes what was shut down.
        """
        if not orders:
            return []
        wanted = {order.drone_id: order for order in orders}
        await self._starting.settled(wanted.keys())
        there = await servers_of(self._cloud, self._controller, self._name, wanted.keys(), self._known)
        self._ends.ask(there)
        width = asyncio.Semaphore(self._config.parallel)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._stopped(width, order, there.get(order.drone_id, ()))) for order in orders]
        return [task.result() for task in tasks]

    async def _stopped(self, width: asyncio.Semaphore, order: StopOrder, servers: Sequence[Server]) -> OrderResult:
        """Never raises a site's error: the others are asked all the same."""
        try:
            for server in servers:
                async with width:
                    await self._leave(server, kill=order.kill)
        except OutcomeUnknownError as error:
            return unsure(order.drone_id, str(error))
        except AdapterError as error:
            self._ends.unasked([order.drone_id])
            return refused(order.drone_id, error.kind, str(error))
        return OrderResult(order.drone_id, OrderOutcome.OK, servers[0].id if servers else "")

    async def _leave(self, server: Server, *, kill: bool) -> None:
        way = meaning(server).way
        if kill or way is Way.DELETE:
            await self._cloud.delete(server.id)
            if not server.launched_at:
                self._roll.distrust()  # what never ran may go without a trace in the listing of what has changed
        elif way is Way.SHUT_DOWN:
            await self._cloud.shut_down(server.id)


def _cloud(access: CloudAccess, config: OpenStackSiteConfig) -> Cloud:
    try:
        from adapters.openstack.nova import OpenStackCloud
    except ImportError as error:
        if error.name != "aiohttp":
            raise
        message = "OpenStack needs the Python package aiohttp: pip install 'gpu-drone-provisioner[openstack]'"
        raise UnavailableError(message, FaultKind.CONFIG) from None
    return OpenStackCloud(access, deadline_s=config.deadline, parallel=config.parallel)
