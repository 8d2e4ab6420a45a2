"""Orders of drones with servers go to the service pool, and what it refuses concerns no other drone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from provisioner import model
from provisioner.controller.loop import Controller
from provisioner.controller.polling import LazySite, Poller
from provisioner.controller.standby import Standby
from provisioner.interfaces import RejectedError
from provisioner.keys import OVERLAY_SCOPE, Scope
from tests.controller.world import GPU, Place, Pool, SetClock, in_virtual_time, run_for, wall
from tests.store.story import TemporaryStore

SERVER = model.InferenceServer("cms", ("deepmet:3",), "exec server")
TRITON = replace(GPU, name="triton", server=SERVER)


async def seen() -> model.ServicesView:
    return model.ServicesView(wall())


@dataclass
class Servers(Pool):
    """A service pool in which each running server is ready."""

    told: list[str] = field(default_factory=list)
    refuses: bool = False
    queued: int = 0
    polls: int = 0
    takes_s: float = 0.0

    async def poll(  # type: ignore[override]
        self, drones: Iterable[model.Drone], types: Sequence[model.DroneType]
    ) -> model.ServicesView:
        slots = [
            model.Slot(drone.id, model.SlotState.IDLE, wall())
            for drone in drones
            if drone.started_at and not drone.is_leaving
        ]
        self.polls += 1
        await asyncio.sleep(self.takes_s)
        view = model.ServiceView("cms", queued=self.queued)
        return model.ServicesView(wall(), (view,), tuple(slots))

    async def drain(
        self, drone_ids: Sequence[model.DroneId], mode: model.DrainMode, reason: str
    ) -> Sequence[model.OrderResult]:
        self.told += [f"drain {each}" for each in drone_ids]
        return await super().drain(drone_ids, mode, reason)

    async def bootstrap(self, order: model.StartOrder) -> model.Bootstrap:
        self.told.append(f"bootstrap {order.drone_id}")
        if self.refuses:
            raise RejectedError("key of service cms: no such file", model.FaultKind.CONFIG)
        return await super().bootstrap(order)


async def entered(
    stack: AsyncExitStack,
    servers: Servers,
    at_least: int = 1,
    *,
    enabled: bool = True,
    warm: Poller | None = None,
) -> Controller:
    """A controller of one service, entered."""
    place = Place()
    policy = model.Policy(
        sites={"here": model.SitePolicy("here", enabled)},
        services=(model.Service("cms", at_least=at_least),),
    )
    store = await stack.enter_async_context(TemporaryStore("kit", 1e9, 10))
    overlay = Pool(classes=())
    made = Controller(
        "kit",
        policy,
        [GPU, TRITON],
        overlay,
        {"here": LazySite(place)},
        store,
        SetClock(),
        services=servers,
        warm=warm,
    )
    return await stack.enter_async_context(made)


@in_virtual_time
async def test_a_server_starts_and_is_drained_by_its_own_pool() -> None:
    async with AsyncExitStack() as stack:
        servers = Servers()
        controller = await entered(stack, servers)
        for _ in range(3):
            await controller.tick()
        (drone,) = controller.store.drones.values()
        assert (drone.type, drone.service, drone.state) == (
            TRITON.key,
            "cms",
            model.DroneState.IDLE,
        )
        store = controller.store
        assert isinstance(store, TemporaryStore)
        store.reader().ask(
            model.RequestKind.DRAIN, [drone.id], reason="test", by="ann", at=controller.clock.now()
        )
        await controller.tick()
        assert servers.told[:2] == [f"bootstrap {drone.id}", f"drain {drone.id}"]


@in_virtual_time
async def test_a_leader_begins_with_the_servers_that_it_saw_as_a_standby() -> None:
    over = asyncio.Event()
    standby = Standby(model.Policy(), [], Pool(classes=()), {}, SetClock(), threaded=False)
    standby.poll_services = seen
    asyncio.get_running_loop().call_later(1.0, over.set)
    await standby.run(over)
    for warm, starts in ((None, 0), (standby.poller, 1)):
        async with AsyncExitStack() as stack:
            controller = await entered(stack, Servers(takes_s=60.0), warm=warm)
            assert len((await controller.tick()).plan.starts) == starts


@in_virtual_time
async def test_the_controller_ticks_quickly_while_requests_wait() -> None:
    for queued, ticks in ((0, range(3, 8)), (5, range(20, 40))):
        async with AsyncExitStack() as stack:
            servers = Servers(queued=queued)
            controller = await entered(stack, servers, at_least=0, enabled=False)
            await run_for(controller, 60.0)
            assert servers.polls in ticks


@in_virtual_time
async def test_what_the_service_pool_refuses_bans_the_type_and_not_the_overlay() -> None:
    async with AsyncExitStack() as stack:
        controller = await entered(stack, Servers(refuses=True))
        for _ in range(4):
            await controller.tick()
        breakers = controller.store.breakers
        assert breakers[Scope.parse(TRITON.key)].failures
        assert OVERLAY_SCOPE not in breakers or not breakers[OVERLAY_SCOPE].failures
