"""Simulated inference services: bursts of requests, the servers that work on them, and their balancer.

Requests are a fluid: they come at the rates of the bursts that go on, each ready server does as
much work as it can, and the rest waits at the balancer. Without a ready server all are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, inf
from typing import TYPE_CHECKING

from provisioner.interfaces import AlwaysOpen
from provisioner.model import (
    WHOLE_GPU,
    Bootstrap,
    DrainMode,
    Drone,
    DroneId,
    DroneType,
    OrderOutcome,
    OrderResult,
    OrderResults,
    Service,
    ServicesView,
    ServiceView,
    Slot,
    SlotState,
    StartOrder,
)
from provisioner.simulator.drones import SimulatedDrone
from provisioner.simulator.loop import Fixed, at, now, now_s
from provisioner.simulator.results import ServiceTotals
from provisioner.values import define, factory, frozen, setting

if TYPE_CHECKING:
    from provisioner.simulator.world import World


@frozen
class RequestBurst:
    """Requests that come to a service for a while."""

    service: str = setting(example="cms")
    """Name of the service."""
    at_s: float = setting(zero=True, example="1h")
    """Begin, in the time of the simulation."""
    for_s: float = setting(example="20min")
    """Duration."""
    rate: float = setting(gt=0, le=1e6, example=100)
    """Requests per second."""
    request_s: float = setting(default=0.05, example="50ms")
    """Work of one server on one request."""
    jobs: int = setting(default=0, ge=0, le=100_000)
    """Jobs of one GPU that announce all models of the service, and run for as long as the burst."""
    ahead_s: float = setting(default=0.0, zero=True)
    """Time before the burst at which its jobs are submitted."""

    @property
    def end_s(self) -> float:
        return self.at_s + self.for_s

    @property
    def work(self) -> float:
        """Number of servers that it keeps at work."""
        return self.rate * self.request_s


@define
class SimulatedServer:
    """Server in a drone of the service."""

    drone: SimulatedDrone
    ready: bool = False
    withdrawn: bool = False

    @property
    def serves(self) -> bool:
        return self.ready and not self.withdrawn


@define
class SimulatedService:
    """One service: its servers, the requests that wait, and totals. :meth:`advance` before each change."""

    config: Service
    bursts: list[RequestBurst]
    totals: ServiceTotals = factory(ServiceTotals)
    servers: dict[DroneId, SimulatedServer] = factory(dict)
    going_on: list[RequestBurst] = factory(list)
    unanswered: list[RequestBurst] = factory(list)
    """Bursts that go on and have met no ready server."""
    waiting: float = 0.0
    """Requests at the balancer."""
    at_s: float = 0.0
    polled_s: float = 0.0
    polled_requests: float = 0.0
    requested_at: float = 0.0

    @property
    def ready(self) -> int:
        return sum(server.serves for server in self.servers.values())

    @property
    def requests_per_s(self) -> float:
        return sum(burst.rate for burst in self.going_on)

    @property
    def request_s(self) -> float:
        """Work of a server on one request, in the mean of the bursts that go on or were the last."""
        some = self.going_on or self.bursts
        return sum(b.work for b in some) / sum(b.rate for b in some)

    def advance(self) -> None:
        """Let the time since the last change pass."""
        passed_s = now_s() - self.at_s
        self.at_s = now_s()
        totals = self.totals
        come = self.requests_per_s * passed_s
        if come:
            self.requested_at = now()
        totals.requests += come
        if not self.ready:
            totals.refused += come + self.waiting
            self.waiting = 0.0
            return
        done = (
            min(self.waiting + come, self.ready / self.request_s * passed_s) if self.bursts else 0
        )
        left = self.waiting + come - done
        totals.waited_s += (self.waiting + left) / 2 * passed_s
        totals.work_s += done * self.request_s if done else 0.0
        self.waiting = left

    def begin_burst(self, burst: RequestBurst) -> None:
        self.advance()
        self.going_on.append(burst)
        self.unanswered.append(burst)
        self.answer()

    def end_burst(self, burst: RequestBurst) -> None:
        self.advance()
        self.going_on.remove(burst)
        if burst in self.unanswered:
            self.unanswered.remove(burst)
            self.totals.first_answers_s.append(inf)

    def answer(self) -> None:
        """Note the first answer to the bursts that have waited for one, if a server is ready."""
        if self.ready:
            answered = self.unanswered
            self.unanswered = []
            self.totals.first_answers_s += [now_s() - burst.at_s for burst in answered]

    def view(self) -> ServiceView:
        """Return what the balancer and the servers show. The rate is that since the last view."""
        self.advance()
        passed_s = self.at_s - self.polled_s
        come = self.totals.requests - self.polled_requests
        self.polled_s, self.polled_requests = self.at_s, self.totals.requests
        work = sum(burst.work for burst in self.going_on)
        return ServiceView(
            name=self.config.name,
            requests=int(self.totals.requests),
            refused=int(self.totals.refused),
            requested_at=self.requested_at,
            requests_per_s=round(come / passed_s, 3) if passed_s else self.requests_per_s,
            in_flight=ceil(min(self.ready, work)),
            queued=int(self.waiting),
            request_s=self.request_s if self.ready and self.going_on else 0.0,
        )

    def slots(self) -> list[Slot]:
        """Return the servers that are ready; one that works has a request in flight."""
        busy = bool(self.going_on or self.waiting)
        found = []
        for drone_id, server in self.servers.items():
            if not server.ready:
                continue
            state = SlotState.BUSY if busy else SlotState.IDLE
            if server.withdrawn:
                state = SlotState.DRAINING
            found.append(Slot(drone_id, state, now(), jobs=int(state is SlotState.BUSY)))
        return found


class SimulatedServices(AlwaysOpen):
    """Pool of the servers of all services; the methods about drones are the world's."""

    def __init__(self, world: World) -> None:
        scenario = world.scenario
        self.services = {
            each.name: SimulatedService(
                each, [b for b in scenario.bursts if b.service == each.name]
            )
            for each in scenario.policy.services
        }
        self.job_environment: Mapping[str, str] = {}
        self._network = scenario.network("services", Fixed(0.2))

    def begin(self) -> None:
        for service in self.services.values():
            for burst in service.bursts:
                at(burst.at_s, service.begin_burst, burst)
                at(burst.end_s, service.end_burst, burst)

    async def poll(self, drones: Iterable[Drone], types: Sequence[DroneType]) -> ServicesView:
        return await self._network.call("poll", self._view)

    async def drain(
        self, drone_ids: Sequence[DroneId], mode: DrainMode, reason: str
    ) -> OrderResults:
        return await self._network.call(
            "drain", lambda: [self._drain(drone_id, mode) for drone_id in drone_ids]
        )

    async def bootstrap(self, order: StartOrder) -> Bootstrap:
        return Bootstrap(b"#!/bin/sh\n", {"DRONE_ID": order.drone_id})

    def _view(self) -> ServicesView:
        views = tuple(each.view() for each in self.services.values())
        slots = tuple(slot for each in self.services.values() for slot in each.slots())
        return ServicesView(now(), views, slots)

    def _drain(self, drone_id: DroneId, mode: DrainMode) -> OrderResult:
        for service in self.services.values():
            if drone_id in service.servers:
                service.advance()
                service.servers[drone_id].withdrawn = mode is not DrainMode.RESUME
        return OrderResult(drone_id, OrderOutcome.OK)

    def join(self, drone: SimulatedDrone) -> None:
        """Add a drone whose server loads its models."""
        service = self.services[drone.type.service]
        service.servers[drone.id] = SimulatedServer(drone)

    def serve(self, drone: SimulatedDrone) -> None:
        service = self.services[drone.type.service]
        service.advance()
        service.servers[drone.id].ready = True
        service.answer()

    def withdraw(self, drone: SimulatedDrone) -> None:
        """Take a server out of the balancer whose drone was asked to end: its requests are done soon."""
        drone.leave_empty("server stopped")

    def part(self, drone: SimulatedDrone, orderly: bool) -> None:
        service = self.services[drone.type.service]
        service.advance()
        service.servers.pop(drone.id, None)

    def close(self) -> None:
        for service in self.services.values():
            service.advance()

    def held(self, drone: SimulatedDrone, held_s: float) -> None:
        """Enter the GPU time of a drone, from its grant to the release of its GPUs."""
        totals = self.services[drone.type.service].totals
        totals.gpu_s += held_s * drone.type.gpu_milli / WHOLE_GPU
