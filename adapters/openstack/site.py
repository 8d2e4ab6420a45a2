"""The ``openstack`` site: one listing reports all of our drones, each drone is a server of its own."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from adapters.openstack.capacity import allowed, claims, host_names, nodes, owner_load, owners
from adapters.openstack.creation import NameResolver, ServerCreation, servers_of, side_by_side
from adapters.openstack.records import Server, ServerAction
from adapters.openstack.registry import RegistryView, ServerListing, ServerNames, ServerRegistry, listing
from adapters.openstack.settings import CloudAccess, OpenStackSiteConfig
from adapters.openstack.states import DELETING_TASKS, StopMethod, server_phase
from adapters.openstack.termination import EndedServers, EndEvidence, ResourceCleanup, exit_report, is_deleted, tail
from adapters.shared.commands.local import optional_package
from adapters.shared.printing import printable
from adapters.shared.starts import outcome_unknown, rejected
from provisioner.interfaces import AdapterError, AuditFinding, AuthError, OutcomeUnknownError, UnavailableError
from provisioner.model import (
    DroneId,
    DroneType,
    OrderOutcome,
    OrderResult,
    OwnerDemand,
    SitePolicy,
    SiteView,
    StartOrder,
    StopOrder,
)

if TYPE_CHECKING:
    from adapters.openstack.nova import OpenStackCloud


class OpenStackSite:
    """Drones as servers of our project. The state is in Nova, so a restarted controller sees the same."""

    Config = OpenStackSiteConfig

    def __init__(self, name: str, config: OpenStackSiteConfig, types: Sequence[DroneType], controller: str) -> None:
        self._name, self._config, self._types = name, config, tuple(types)
        self._names = ServerNames(controller, name)
        self._stack = contextlib.AsyncExitStack()
        self._entered: OpenStackCloud | None = None
        self._owners_cloud: OpenStackCloud | None = None
        self._registry = ServerRegistry(self._names, keep_s=config.retain_finished)
        self._ends = EndedServers(config.retain_finished)
        self._creation = ServerCreation(config, self._names)
        self._consoles: dict[DroneId, str] = {}
        self._known: Sequence[Server] = ()
        """Our servers as last seen."""
        self._polled_before = False
        self._housekeeping: asyncio.Task[None] | None = None
        self._trouble = ""
        self._cleanup = ResourceCleanup(config.cleanup_interval)

    async def __aenter__(self) -> Self:
        config = self._config
        async with contextlib.AsyncExitStack() as stack:
            entered = await stack.enter_async_context(_connect(config, config))
            if config.owner is not None:
                self._owners_cloud = await stack.enter_async_context(_connect(config.owner, config))
            self._stack = stack.pop_all()
        self._entered, self._resolver = entered, NameResolver(entered, config)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Disconnect. Drones live on."""
        await self._creation.close()
        if self._housekeeping is not None:
            self._housekeeping.cancel()
            await asyncio.wait([self._housekeeping])
            self._housekeeping = None
        self._entered = self._owners_cloud = None
        await self._stack.aclose()

    @property
    def _cloud(self) -> OpenStackCloud:
        if self._entered is None:
            raise UnavailableError("the site is not connected")
        return self._entered

    async def poll(self) -> SiteView:
        """List our drones, our quota and, where hosts are known, free capacity and the owner's waiting servers.

        Ended drones are listed for ``retain_finished``. It takes three calls, with an owner four, and their pages; the
        flavours are one more now and then. Nothing is changed.
        """
        taken_at = time.time()
        ours = await self._registry.poll(self._cloud)
        self._known = ours.servers
        limits, flavors = await self._cloud.limits(), await self._resolver.flavors()
        theirs = await self._owners_cloud.servers() if self._owners_cloud is not None else ()
        projects = (self._cloud.project, self._owners_cloud.project if self._owners_cloud is not None else "")
        hosts = host_names(self._config.hosts, projects)
        found = listing(ours, self._ends.known, self._ends.asked, hosts, self._names, taken_at)
        here, host_notices = nodes(self._config, self._types, ours.servers, (*ours.others, *theirs), hosts)
        wanted: tuple[OwnerDemand, ...] = ()
        remarks: tuple[str, ...] = ()
        load = None
        if self._config.owner is not None:
            first = owners(theirs, self._config.owner)
            wanted, remarks = claims(first, here, hosts, self._config.owner, taken_at)
            load = owner_load(first, hosts)
        view = SiteView(
            site=self._name,
            taken_at=taken_at,
            drones=found.drones,
            nodes=here,
            claims=wanted,
            owner_runs=load,
            notices=(*found.notices, *host_notices, *self._housekeeping_trouble()),
            remarks=remarks,
            quota=allowed(limits, flavors),
        )
        self._ends.forget(found.drones.keys())
        # A caller that polls but once (``provisioner check``) changes nothing.
        if self._polled_before and (self._housekeeping is None or self._housekeeping.done()):
            work = self._clean_up(found, ours)
            self._housekeeping = asyncio.create_task(work, name=f"housekeeping of site {self._name}")
        self._polled_before = True
        return view

    def last_words(self) -> Mapping[DroneId, str]:
        """Return the ends of consoles by drone."""
        consoles, self._consoles = self._consoles, {}
        return consoles

    # --------------------------------------------------------------------------------------------------- housekeeping

    async def _clean_up(self, found: ServerListing, ours: RegistryView) -> None:
        """Run the tasks that a poll leaves, each by itself: a failure does not stop the others."""
        tasks: list[Awaitable[None]] = []
        tasks += [self._delete(d, server) for d, server in found.over.items() if server.task not in DELETING_TASKS]
        tasks += [self._settle(d, server) for d, server in found.unsettled.items() if d not in found.over]
        tasks += [self._cloud.delete(server_id) for server_id in found.surplus]
        if self._cleanup.due(ours.gone):
            tasks.append(self._cleanup.run(self._cloud))
        self._trouble = ""

        async def attempt(task: Awaitable[None]) -> None:
            try:
                await task
            except AdapterError as error:  # then after the next poll
                self._trouble = printable(f"housekeeping: {error}", 300)

        await side_by_side([attempt(task) for task in tasks], self._config.parallel)

    def _housekeeping_trouble(self) -> Sequence[str]:
        task = self._housekeeping
        troubles = [self._trouble] if self._trouble else []
        if task is not None and task.done() and not task.cancelled() and (error := task.exception()):
            troubles.append(printable(f"housekeeping: {type(error).__name__}: {error}", 300))
        return troubles

    async def _delete(self, drone_id: DroneId, server: Server) -> None:
        """Delete a server whose drone is over, after its end is recorded."""
        if drone_id not in self._ends.known:
            console, lines = "", self._config.console_lines
            with contextlib.suppress(AdapterError):  # the server is deleted whatever the answer
                console = await self._cloud.console(server.id, lines)
            report, output = exit_report(console, drone_id), tail(console, lines)
            evidence = EndEvidence(server, await self._actions(server.id), report, output)
            self._ends.determine(drone_id, evidence, self._cloud.user, time.time())
            if output:
                self._consoles[drone_id] = output
        await self._cloud.delete(server.id)

    async def _settle(self, drone_id: DroneId, server: Server) -> None:
        """Record the end of a drone whose server is gone."""
        actions = await self._actions(server.id)
        if is_deleted(server, actions or (), drone_id in self._ends.asked):
            self._ends.determine(drone_id, EndEvidence(server, actions), self._cloud.user, time.time())

    async def _actions(self, server_id: str) -> Sequence[ServerAction] | None:
        """Return a server's actions; None where we may not see them."""
        with contextlib.suppress(AuthError):
            return await self._cloud.actions(server_id)
        return None

    # -------------------------------------------------------------------------------------- auditing, starts and stops

    async def audit(self, policy: SitePolicy) -> Sequence[AuditFinding]:
        """Return what the cloud lacks of the settings, and where it differs from a drone type."""
        found: list[AuditFinding] = []
        for kind in self._types:
            for dimension, message in await self._resolver.problems(kind):
                found.append(AuditFinding(f"type {kind.name}", dimension, printable(message, 400)))
        instances, _ = (await self._cloud.limits()).instances
        if 0 <= instances < policy.max_drones:
            message = f"the project may have {instances} servers, `max_drones` is {policy.max_drones}: lower it"
            found.append(AuditFinding("project", "quota", message))
        return found

    async def start(self, orders: Sequence[StartOrder]) -> Sequence[OrderResult]:
        """Create a server for each drone that has none yet."""
        return await self._creation.start(self._cloud, self._resolver, orders, self._known)

    async def stop(self, orders: Sequence[StopOrder]) -> Sequence[OrderResult]:
        """Shut down the guest, which notifies its drone, or delete a server that has no guest.

        A later poll deletes what was shut down.
        """
        if not orders:
            return []
        drone_ids = {order.drone_id for order in orders}
        await self._creation.starts.settled(drone_ids)
        there = await servers_of(self._cloud, self._names, drone_ids, self._known)
        self._ends.ask(there)
        stops = [self._stop(order, there.get(order.drone_id, ())) for order in orders]
        return await side_by_side(stops, self._config.parallel)

    async def _stop(self, order: StopOrder, servers: Sequence[Server]) -> OrderResult:
        """Stop the servers of one drone. An error is its result: the other drones are stopped all the same."""
        try:
            for server in servers:
                await self._stop_server(server, kill=order.kill)
        except OutcomeUnknownError as error:
            return outcome_unknown(order.drone_id, str(error))
        except AdapterError as error:
            self._ends.unasked(order.drone_id)
            return rejected(order.drone_id, error.kind, str(error))
        return OrderResult(order.drone_id, OrderOutcome.OK, servers[0].id if servers else "")

    async def _stop_server(self, server: Server, *, kill: bool) -> None:
        method = server_phase(server).stop
        if kill or method is StopMethod.DELETE:
            await self._cloud.delete(server.id)
        elif method is StopMethod.SHUT_DOWN:
            await self._cloud.shut_down(server.id)


def _connect(access: CloudAccess, config: OpenStackSiteConfig) -> OpenStackCloud:
    with optional_package("aiohttp", "openstack", "OpenStack needs"):
        from adapters.openstack.nova import OpenStackCloud
    return OpenStackCloud(access, deadline_s=config.deadline, parallel=config.parallel)
