"""The ``openstack`` site: one listing reports all of our drones, each drone is a server of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from adapters.openstack import capacity
from adapters.openstack.creation import ServerCreation
from adapters.openstack.registry import (
    RegistryView,
    ServerListing,
    ServerNames,
    ServerRegistry,
    listing,
    servers_of,
)
from adapters.openstack.servers import (
    DELETING_TASKS,
    Server,
    ServerAction,
    StopMethod,
    server_phase,
)
from adapters.openstack.settings import CloudAccess, OpenStackSiteConfig
from adapters.openstack.termination import ResourceCleanup, end_of, exit_report, is_deleted, tail
from adapters.shared import optional_packages
from adapters.shared.housekeeping import Housekeeping, side_by_side
from adapters.shared.printing import printable
from adapters.shared.starts import done, failed
from provisioner import model
from provisioner.interfaces import AdapterError, AuditFinding, AuthError, OutcomeUnknownError
from provisioner.model import DroneId, OrderResult, OrderResults, SiteView, StopOrder

if TYPE_CHECKING:
    from adapters.openstack.nova import OpenStackCloud

_REQUEST_KEPT_S = 86400.0


class OpenStackSite:
    """Drones as servers of our project. The state is in Nova, so a restarted controller sees the same."""

    Config = OpenStackSiteConfig
    runs_servers = False
    """Clients and the balancer do not reach ports of its drones."""

    def __init__(
        self,
        name: str,
        config: OpenStackSiteConfig,
        types: Sequence[model.DroneType],
        controller: str,
    ) -> None:
        self._name = name
        self._config = config
        self._types = tuple(types)
        self._names = ServerNames(controller, name)
        self._stack = contextlib.AsyncExitStack()
        self._cloud: OpenStackCloud
        self._owners_cloud: OpenStackCloud | None = None
        self._creation: ServerCreation
        self._registry = ServerRegistry(self._names, keep_s=config.retain_finished)
        self._ends: dict[DroneId, model.RemoteEnd] = {}
        """Ends of listed drones. An end does not change, whatever happens to its server later."""
        self._asked: dict[DroneId, float] = {}
        """Drones that this controller has asked to leave, and when (monotonic)."""
        self._cleanup = ResourceCleanup(config.cleanup_interval)
        self._consoles: dict[DroneId, str] = {}
        self._known: Sequence[Server] = ()
        """Our servers as last seen."""
        self._housekeeping = Housekeeping(name, config.parallel)

    async def __aenter__(self) -> Self:
        config = self._config
        async with contextlib.AsyncExitStack() as stack:
            self._cloud = await stack.enter_async_context(_connect(config, config))
            self._creation = ServerCreation(self._cloud, config, self._names)
            if config.owner is not None:
                self._owners_cloud = await stack.enter_async_context(_connect(config.owner, config))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Disconnect, after creates under way have ended. Drones keep running."""
        await self._creation.starts.close(self._config.create_deadline)
        await self._housekeeping.close()
        await self._stack.aclose()

    def _host_names(self) -> Mapping[str, str]:
        """Return the hosts' names by the ids that they have to our project and the owner's."""
        clouds = (self._cloud, self._owners_cloud)
        projects = [cloud.project for cloud in clouds if cloud is not None]
        return capacity.host_names(self._config.hosts, projects)

    def credentials(self) -> Sequence[model.Credential]:
        """Return who logged in, with the end that Keystone tells."""
        clouds = {"cloud": getattr(self, "_cloud", None), "owner.cloud": self._owners_cloud}
        found = {name: cloud.credential for name, cloud in clouds.items() if cloud is not None}
        return [replace(each, name=name) for name, each in found.items() if each is not None]

    async def poll(self) -> SiteView:
        """List our drones, our quota and, where hosts are known, free capacity and the owner's waiting servers.

        Ended drones are listed for ``retain_finished``. It takes three calls, with an owner four,
        and their pages; the flavours are one more now and then. Nothing is changed.
        """
        taken_at = time.time()
        ours = await self._registry.poll(self._cloud)
        self._known = ours.servers
        limits = await self._cloud.limits()
        flavors = await self._creation.resolver.flavors()
        owner = self._config.owner
        theirs = await self._owners_cloud.servers() if self._owners_cloud is not None else ()
        hosts = self._host_names()
        found = listing(ours, self._ends, self._asked, hosts, self._names, taken_at)
        nodes, host_notices = capacity.nodes(
            self._config, self._types, ours.servers, (*ours.others, *theirs), hosts
        )
        first = capacity.owners(theirs, owner) if owner is not None else ()
        claims, remarks = (
            capacity.claims(first, nodes, hosts, owner, taken_at) if owner is not None else ((), ())
        )
        view = SiteView(
            site=self._name,
            taken_at=taken_at,
            drones=found.drones,
            nodes=nodes,
            claims=claims,
            owner_runs=capacity.owner_load(first, hosts) if owner is not None else None,
            notices=(*found.notices, *host_notices, *self._housekeeping.notices),
            remarks=remarks,
            quota=capacity.allowed(limits, flavors),
        )
        self._ends = {d: end for d, end in self._ends.items() if d in found.drones}
        long_ago = time.monotonic() - _REQUEST_KEPT_S
        self._asked = {d: at for d, at in self._asked.items() if d in found.drones or at > long_ago}
        self._housekeeping.begin(lambda: self._clean_up(found, ours))
        return view

    def console_output(self) -> Mapping[DroneId, str]:
        """Return the ends of consoles by drone."""
        consoles = self._consoles
        self._consoles = {}
        return consoles

    def _clean_up(self, found: ServerListing, ours: RegistryView) -> Sequence[Awaitable[None]]:
        """Return the tasks that a poll leaves."""
        tasks: list[Awaitable[None]] = [
            self._delete(d, server)
            for d, server in found.over.items()
            if server.task not in DELETING_TASKS
        ]
        tasks += [
            self._settle(d, server) for d, server in found.unsettled.items() if d not in found.over
        ]
        tasks += [self._cloud.delete(server_id) for server_id in found.surplus]
        if self._cleanup.due(ours.gone):
            tasks.append(self._cleanup.run(self._cloud))
        return tasks

    async def _delete(self, drone_id: DroneId, server: Server) -> None:
        """Delete a server whose drone is over, after its end is recorded."""
        if drone_id not in self._ends:
            console = ""
            lines = self._config.console_lines
            with contextlib.suppress(AdapterError):  # the server is deleted whatever the answer
                console = await self._cloud.console(server.id, lines)
            self._record_end(drone_id, server, await self._actions(server.id), console)
        await self._cloud.delete(server.id)

    async def _settle(self, drone_id: DroneId, server: Server) -> None:
        actions = await self._actions(server.id)
        if is_deleted(server, actions, drone_id in self._asked):
            self._record_end(drone_id, server, actions)

    def _record_end(
        self, drone_id: DroneId, server: Server, actions: Sequence[ServerAction], console: str = ""
    ) -> None:
        report = exit_report(console, drone_id)
        output = tail(console, self._config.console_lines)
        asked = drone_id in self._asked
        our_user = self._cloud.user
        end = end_of(
            server, actions, report, output, asked=asked, our_user=our_user, now=time.time()
        )
        self._ends[drone_id] = end
        if output:
            self._consoles[drone_id] = output

    async def _actions(self, server_id: str) -> Sequence[ServerAction]:
        """Return a server's actions; empty where we may not see them."""
        with contextlib.suppress(AuthError):
            return await self._cloud.actions(server_id)
        return ()

    async def audit(self, policy: model.SitePolicy) -> Sequence[AuditFinding]:
        """Return what the cloud lacks of the settings, and where it differs from a drone type."""
        found: list[AuditFinding] = []
        for kind in self._types:
            for dimension, message in await self._creation.resolver.problems(kind):
                found.append(AuditFinding(f"type {kind.name}", dimension, printable(message, 400)))
        instances, _ = (await self._cloud.limits()).instances
        if 0 <= instances < policy.max_drones:
            message = f"the project may have {instances} servers, `max_drones` is {policy.max_drones}: lower it"
            found.append(AuditFinding("project", "quota", message))
        return found

    async def start(self, orders: Sequence[model.StartOrder]) -> OrderResults:
        """Create a server for each drone that has none yet."""
        return await self._creation.start(orders, self._known)

    async def stop(self, orders: Sequence[StopOrder]) -> OrderResults:
        """Shut down the guest, which notifies its drone, or delete a server that has no guest.

        A later poll deletes what was shut down.
        """
        drone_ids = {order.drone_id for order in orders}
        await self._creation.starts.settled(drone_ids)
        there = await servers_of(self._cloud, self._names, drone_ids, self._known)
        # Before the cloud is called. A drone whose end is known is not asked: only its server is
        # cleared.
        self._asked |= dict.fromkeys(there.keys() - self._ends.keys(), time.monotonic())
        stops = [self._stop(order, there.get(order.drone_id, ())) for order in orders]
        return await side_by_side(stops, self._config.parallel)

    async def _stop(self, order: StopOrder, servers: Sequence[Server]) -> OrderResult:
        """Stop the servers of one drone. An error is its result: the other drones are stopped all the same."""
        try:
            for server in servers:
                method = server_phase(server).stop
                if order.kill or method is StopMethod.DELETE:
                    await self._cloud.delete(server.id)
                elif method is StopMethod.SHUT_DOWN:
                    await self._cloud.shut_down(server.id)
        except AdapterError as error:
            if not isinstance(error, OutcomeUnknownError):
                self._asked.pop(order.drone_id, None)
            return failed(order.drone_id, error)
        return done(order.drone_id, servers[0].id if servers else "")


def _connect(access: CloudAccess, config: OpenStackSiteConfig) -> OpenStackCloud:
    with optional_packages("openstack", "OpenStack needs", "aiohttp"):
        from adapters.openstack.nova import OpenStackCloud
    return OpenStackCloud(access, deadline_s=config.deadline, parallel=config.parallel)
