"""A place and a pool that do as they are told, a record whose disk can be full, and a clock that is set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps

from provisioner import model
from provisioner.controller.loop import Controller
from provisioner.controller.periodic import WorkContext
from provisioner.controller.polling import LazySite
from provisioner.interfaces import Site
from provisioner.simulator.loop import VirtualClock, run_virtual
from provisioner.store import StoreUnusableError
from tests.store.story import TemporaryStore

GPU = model.DroneType("here", "gpu", 1000, 8, 20480, 0, vram_mib=16384, capability=80)
JOB = model.JobClass("jobs", 1000, 1, 1024, waiting=1)
EPOCH = 1.7e9


def in_virtual_time(story: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Run an async test on the virtual loop."""

    @wraps(story)
    def test(*args: object, **given: object) -> None:
        run_virtual(story(*args, **given), start_epoch=EPOCH)

    return test


ahead_s: ContextVar[float] = ContextVar("ahead_s", default=0.0)
"""By how much somebody has set the host's clock: adapters tell the time by it."""


def wall() -> float:
    return VirtualClock().now() + ahead_s.get()


def work(
    group: asyncio.TaskGroup,
    *,
    sites: Mapping[str, Site] | None = None,
    overlay: object = None,
    policy: model.Policy | None = None,
    types: Sequence[model.DroneType] = (),
    view: model.OverlayView | None = None,
) -> WorkContext:
    """The context of work between two ticks."""
    return WorkContext(group, policy or model.Policy(), types, sites or {}, overlay, view)  # type: ignore[arg-type]


async def nothing() -> None:
    """A wire without trouble."""


async def never() -> None:
    """A wire without end."""
    await asyncio.get_running_loop().create_future()


@dataclass
class Place:
    """A site that starts what it is told and remembers what it was told. ``wire`` is awaited in every call."""

    name: str = "here"
    running: dict[model.DroneId, model.RemoteDrone] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    look_wire: Callable[[], Awaitable[object]] = nothing
    start_wire: Callable[[], Awaitable[object]] = nothing
    stop_wire: Callable[[], Awaitable[object]] = nothing
    open: bool = False

    async def __aenter__(self) -> Place:
        self.open = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.open = False

    async def poll(self) -> model.SiteView:
        await self.look_wire()
        return model.SiteView(self.name, wall(), dict(self.running))

    async def start(self, orders: Sequence[model.StartOrder]) -> Sequence[model.OrderResult]:
        self.told += [f"start {o.drone_id}" for o in orders]
        await self.start_wire()
        for each in (order.drone_id for order in orders):
            self.running[each] = model.RemoteDrone(each, model.RemoteState.RUNNING, f"r-{each}")
        return [
            model.OrderResult(o.drone_id, model.OrderOutcome.OK, f"r-{o.drone_id}") for o in orders
        ]

    async def stop(self, orders: Sequence[model.StopOrder]) -> Sequence[model.OrderResult]:
        self.told += [f"stop {o.drone_id}" for o in orders]
        await self.stop_wire()
        for order in orders:
            self.running.pop(order.drone_id, None)
        return [model.OrderResult(o.drone_id, model.OrderOutcome.OK) for o in orders]


@dataclass
class Pool:
    """An overlay in which the same jobs wait all the time."""

    classes: tuple[model.JobClass, ...] = (JOB,)
    admission_wire: Callable[[], Awaitable[object]] = nothing

    async def __aenter__(self) -> Pool:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def poll(self, types: Sequence[model.DroneType]) -> model.OverlayView:
        return model.OverlayView(wall(), self.classes)

    async def drain(
        self, drone_ids: Sequence[model.DroneId], mode: model.DrainMode, reason: str
    ) -> Sequence[model.OrderResult]:
        return [model.OrderResult(i, model.OrderOutcome.OK) for i in drone_ids]

    async def bootstrap(self, order: model.StartOrder) -> model.Bootstrap:
        await self.admission_wire()
        return model.Bootstrap(b"#!/bin/sh\n")


class FullDisk(TemporaryStore):
    """A record that can be read and cannot be written (nor, for some calls, read) while ``full`` names the call."""

    CALLS = (
        "requests",
        "record",
        "record_results",
        "event",
        "estimate_samples",
        "estimate_resets",
        "prune",
    )

    def __init__(self, *full: str) -> None:
        super().__init__("kit", 1e9, 10)
        self.full = set(full)
        self.refused: list[str] = []


def _refusing(call: str) -> Callable[..., Coroutine[None, None, object]]:
    """Return the method ``call`` of the store, which raises while the disk is full."""
    honest = getattr(TemporaryStore, call)

    async def method(store: FullDisk, *args: object, **options: object) -> object:
        if call in store.full:
            store.refused.append(call)
            raise StoreUnusableError(f"{call}: database or disk is full")
        return await honest(store, *args, **options)

    return method


for _call in FullDisk.CALLS:
    setattr(FullDisk, _call, _refusing(_call))


class SetClock(VirtualClock):
    """A controller's clock on a host whose wall clock somebody sets."""

    def drift_s(self) -> float:
        return wall() - self.now()


@asynccontextmanager
async def serving(
    *places: Place, store: TemporaryStore | None = None, pool: Pool | None = None, **limits: float
) -> AsyncIterator[Controller]:
    """A controller with these sites, entered; :meth:`Controller.tick` is the story's to call."""
    types = [
        model.DroneType(p.name, "gpu", 1000, 8, 20480, 0, vram_mib=16384, capability=80)
        for p in places
    ]
    policy = model.Policy(sites={p.name: model.SitePolicy(p.name, **limits) for p in places})  # type: ignore[arg-type]
    async with store or TemporaryStore("kit", 1e9, 10) as kept:
        sites = {p.name: LazySite(p) for p in places}  # as in production
        controller = Controller("kit", policy, types, pool or Pool(), sites, kept, SetClock())
        async with controller:
            yield controller


async def run_for(controller: Controller, seconds: float) -> None:
    """The service itself, for so long."""
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, stop.set)
    await controller.run(stop)
