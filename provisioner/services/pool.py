"""The service pool: drones with servers join it, the balancer is kept in step with it, and it measures the demand.

What a server has to be follows from the record of its drone at each poll: one that is asked to
leave is withdrawn. So nothing is lost when the controller or the balancer starts again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, Self

from provisioner import drone as drone_files
from provisioner.interfaces import RejectedError, UnavailableError
from provisioner.model import (
    Bootstrap,
    DrainMode,
    Drone,
    DroneId,
    DroneType,
    FaultKind,
    InferenceServer,
    ModelUse,
    OrderOutcome,
    OrderResult,
    OrderResults,
    ServicesView,
    ServiceView,
    Slot,
    SlotState,
    StartOrder,
)
from provisioner.services.haproxy import BalancerView
from provisioner.services.servers import (
    BalancedServer,
    ModelCounters,
    ServerHealth,
    may_serve,
    probe,
    server_of,
    server_ports,
)
from provisioner.values import define, factory, frozen

if TYPE_CHECKING:
    import aiohttp

PROBES_AT_ONCE = 100
WORK_WINDOW_S = 60.0
"""The work of a request is the mean of this time."""
MAX_REMARKS = 20
KEY_FILE, COMMAND_FILE = "service.key", "service.sh"


class Balancer(Protocol):
    """Distributor of the requests of clients to servers."""

    async def sync(self, servers: Sequence[BalancedServer], now: float) -> BalancerView:
        """Serve by these servers alone, and return what was measured. Raises UnavailableError."""
        ...


@frozen
class PooledServer:
    """Server of one drone, as its record and its type say."""

    drone: Drone
    server: InferenceServer
    address: BalancedServer


@define
class ServerWork:
    """Counters of one server at the poll before, and the time of its newest request."""

    models: Mapping[str, ModelCounters] = factory(dict)
    busy_at: float = 0.0

    @property
    def pending(self) -> int:
        """Requests that wait in the server."""
        return round(sum(each.pending for each in self.models.values()))


@define
class ServiceWork:
    """Work of all servers of one service since it has been watched."""

    models: dict[str, ModelUse] = factory(dict)
    recent: deque[tuple[float, float, float]] = factory(deque)
    """Time, requests and busy seconds of each poll with requests, as far back as the window."""

    def add(self, model: str, counted: ModelCounters) -> None:
        before = self.models.get(model) or ModelUse(model)
        self.models[model] = ModelUse(
            model,
            before.requests + round(counted.requests),
            before.queue_s + counted.queue_us / 1e6,
            before.compute_s + counted.busy_s,
        )

    def note(self, now: float, requests: float, busy_s: float) -> None:
        """Note the requests that were counted since the poll before."""
        if requests:
            self.recent.append((now, requests, busy_s))
        while self.recent and self.recent[0][0] <= now - WORK_WINDOW_S:
            self.recent.popleft()

    @property
    def request_s(self) -> float:
        """Time that one server works on one request; 0 without requests lately."""
        requests = sum(each[1] for each in self.recent)
        return sum(each[2] for each in self.recent) / requests if requests else 0.0


class ServerPool:
    """The servers of all services, polled over HTTP, and the balancer in front of them."""

    def __init__(
        self,
        keys: Mapping[str, Callable[[], str]] | None = None,
        balancer: Balancer | None = None,
    ) -> None:
        """``keys``: functions that return the secret that servers ask for, by service."""
        self.keys = keys or {}
        self.balancer = balancer
        self.job_environment: Mapping[str, str] = {}
        self._session: aiohttp.ClientSession | None = None
        self._servers: Mapping[DroneId, PooledServer] = {}
        """Servers that were ready at the newest poll, or late for the first time."""
        self._late: set[DroneId] = set()
        """Servers that were late at the newest poll, and had been ready at the one before."""
        self._ordered: dict[DroneId, bool] = {}
        """Servers that an order withdrew, or took back, since the poll that is under way began."""
        self._of_servers: dict[DroneId, ServerWork] = {}
        self._of_services: dict[str, ServiceWork] = {}
        self._syncing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        session = self._session
        self._session = None
        if session is not None:
            await session.close()

    async def poll(self, drones: Iterable[Drone], types: Sequence[DroneType]) -> ServicesView:
        """Return the servers that are ready and the demand, after the balancer knows the same servers.

        Raises UnavailableError where the balancer does not answer: then the demand is unknown.
        """
        self._ordered.clear()
        kinds = {kind.key: kind for kind in types if kind.server is not None}
        servers = [
            PooledServer(drone, server, server_of(drone, server))
            for drone in filter(may_serve, drones)
            if (kind := kinds.get(drone.type)) and (server := kind.server)
            if server.service == drone.service
        ]
        health = await self._probed(servers)
        ready = {key for key, answer in health.items() if answer.ready}
        # the balancer checks for itself, and a busy node may be late once
        late = {key for key, answer in health.items() if answer.is_silent} & self._servers.keys()
        late -= self._late
        self._late = late
        self._servers = {e.drone.id: e for e in servers if e.drone.id in ready | late}
        balanced = await self._sync()
        now = time.time()
        self._measure(health, now)
        views = {kind.service: ServiceView(kind.service) for kind in kinds.values()}
        views |= {view.name: view for view in balanced.services}
        return ServicesView(
            now,
            tuple(map(self._with_work, views.values())),
            tuple(self._slot(key, balanced, now) for key in self._servers),
            balanced.notices,
            tuple(_remarks(servers, health)),
        )

    async def _probed(self, servers: Sequence[PooledServer]) -> Mapping[DroneId, ServerHealth]:
        """Return the answers of all servers."""
        if not servers:
            return {}
        session = self._session = self._session or _new_session()
        places = asyncio.Semaphore(PROBES_AT_ONCE)

        async def answer(each: PooledServer) -> ServerHealth:
            async with places:
                return await probe(session, each.address, each.server)

        answers = await asyncio.gather(*map(answer, servers))
        return {each.drone.id: health for each, health in zip(servers, answers, strict=True)}

    def _is_draining(self, each: PooledServer) -> bool:
        """Return True if the newest order, or else the record, withdraws a server."""
        return self._ordered.get(each.drone.id, each.address.draining)

    async def _sync(self) -> BalancerView:
        """Let the balancer serve by the ready servers alone. Return what it measured; nothing without one."""
        if self.balancer is None:
            return BalancerView()
        async with self._syncing:
            servers = [
                replace(each.address, draining=self._is_draining(each))
                for each in self._servers.values()
            ]
            return await self.balancer.sync(servers, time.time())

    def _measure(self, health: Mapping[DroneId, ServerHealth], now: float) -> None:
        """Add what the servers have counted since the poll before.

        Of one that served before this controller watched it, the first counters are the base.
        """
        for key, each in self._servers.items():
            if key in self._late:
                continue
            before = self._of_servers.get(key)
            service = self._of_services.setdefault(each.server.service, ServiceWork())
            counters = health[key].models
            requests = busy_s = 0.0
            for model, count in counters.items():
                base = before.models.get(model) if before else count
                if base is None or not (before or each.drone.joined_at):
                    base = ModelCounters()
                counted = count.since(base)
                service.add(model, counted)
                requests += counted.requests
                busy_s += counted.busy_s
            service.note(now, requests, busy_s)
            busy_at = now if requests else before.busy_at if before else 0.0
            self._of_servers[key] = ServerWork(counters, busy_at)
        for gone in self._of_servers.keys() - health.keys():
            del self._of_servers[gone]

    def _with_work(self, view: ServiceView) -> ServiceView:
        """Return the demand for a service with the work of its servers."""
        work = self._of_services.get(view.name) or ServiceWork()
        return replace(view, request_s=work.request_s, models=tuple(work.models.values()))

    def _slot(self, key: DroneId, balanced: BalancerView, now: float) -> Slot:
        """Return a ready server as a slot. Its jobs are the requests that it works on."""
        each = self._servers[key]
        work = self._of_servers[key]
        requests = balanced.in_flight.get(key, work.pending)
        state = SlotState.DRAINING
        if not self._is_draining(each):
            state = SlotState.BUSY if requests or work.busy_at == now else SlotState.IDLE
        return Slot(
            key,
            state,
            heard_at=now,
            jobs=requests,
            idle_since=0.0 if requests else work.busy_at,
            name=f"{each.address.host}:{each.address.http_port}",
        )

    async def drain(
        self, drone_ids: Sequence[DroneId], mode: DrainMode, reason: str
    ) -> OrderResults:
        """Withdraw servers from the balancer, or take them back. A balancer that is away learns it at the next poll."""
        self._ordered |= dict.fromkeys(drone_ids, mode is not DrainMode.RESUME)
        with suppress(UnavailableError):
            await self._sync()
        return [OrderResult(key, OrderOutcome.OK) for key in drone_ids]

    async def bootstrap(self, order: StartOrder) -> Bootstrap:
        """Return the script that runs the server, its ports and its secret."""
        server = order.type.server
        if server is None:
            raise RejectedError(f"type {order.type.key} has no server", FaultKind.CONFIG)
        files = {COMMAND_FILE: server.command.encode()} if server.command else {}
        if (key := self.keys.get(server.service)) is not None:
            try:
                files[KEY_FILE] = (await asyncio.to_thread(key)).encode()
            except Exception as error:
                message = f"key of service {server.service}: {error}"
                raise RejectedError(message, FaultKind.DENIED) from error
        http_port, grpc_port, metrics_port = server_ports(order.drone_id, server)
        env = {
            "SERVICE_NAME": server.service,
            "SERVICE_MODELS": " ".join(server.models),
            "SERVICE_CONTAINER": server.container,
            "SERVICE_HTTP_PORT": str(http_port),
            "SERVICE_GRPC_PORT": str(grpc_port),
            "SERVICE_METRICS_PORT": str(metrics_port),
            "SERVICE_KEY_FILE": KEY_FILE if KEY_FILE in files else "",
        }
        env = {name: value for name, value in env.items() if value}
        return Bootstrap(drone_files.script("service_drone.sh"), env, files)


def _new_session() -> aiohttp.ClientSession:
    """Return a session that sends nothing of the environment and of earlier answers."""
    import aiohttp

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


def _remarks(
    servers: Sequence[PooledServer], health: Mapping[DroneId, ServerHealth]
) -> Iterator[str]:
    """Yield which servers have served, and are not ready now."""
    unready = [each for each in servers if each.drone.joined_at and not health[each.drone.id].ready]
    for each in unready[:MAX_REMARKS]:
        address = f"{each.address.host}:{each.address.http_port}"
        why = health[each.drone.id].why
        yield f"server {each.drone.id} of {each.server.service} is not ready at {address}: {why}"
