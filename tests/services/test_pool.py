"""The service pool against HTTP servers that behave, and others that do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from aiohttp import web

from provisioner.interfaces import RejectedError, UnavailableError
from provisioner.model import (
    DrainMode,
    Drone,
    DroneId,
    DroneState,
    DroneType,
    InferenceServer,
    OrderOutcome,
    ServicesView,
    ServiceView,
    Slot,
    SlotState,
    StartOrder,
)
from provisioner.services import servers
from provisioner.services.haproxy import BalancerView
from provisioner.services.pool import ServerPool
from provisioner.services.servers import BalancedServer


@dataclass
class FakeTriton:
    """A server of which a test decides what it answers."""

    first_port: int = 0
    status: int = 200
    requests: int = 0
    pending: int = 0
    body: str | None = None

    async def ready(self, request: web.Request) -> web.StreamResponse:
        if self.status == 0:
            await asyncio.sleep(60)
        if self.status == 302:
            raise web.HTTPFound(f"http://127.0.0.1:{self.first_port}/metrics")
        return web.Response(status=self.status)

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        of = '{model="deepmet",version="3"}'
        text = "".join(
            f"nv_inference_{name}{of} {value}\n"
            for name, value in (
                ("request_success", self.requests),
                ("exec_count", self.requests),
                ("compute_infer_duration_us", self.requests * 50_000),
                ("pending_request_count", self.pending),
            )
        )
        return web.Response(text=self.body if self.body is not None else text)

    @property
    def kind(self) -> DroneType:
        """A type whose servers all have this address."""
        server = InferenceServer("cms", ("deepmet:3",), "run", "", self.first_port, 3)
        return DroneType("here", "triton", 0, 1, 1024, 1024, server=server)


@asynccontextmanager
async def triton() -> AsyncIterator[FakeTriton]:
    fake = FakeTriton()
    app = web.Application()
    app.router.add_get("/v2/health/ready", fake.ready)
    app.router.add_get("/metrics", fake.metrics)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        fake.first_port = runner.addresses[0][1]
        # its metrics are two ports further on
        await web.TCPSite(runner, "127.0.0.1", fake.first_port + 2).start()
        yield fake
    finally:
        await runner.cleanup()


def server_drone(state: DroneState = DroneState.IDLE, **more: object) -> Drone:
    made = Drone(
        DroneId("kit-ab12-0"),
        TRITON,
        state,
        1000.0,
        900.0,
        0,
        started_at=950.0,
        service="cms",
    )
    return replace(made, **more)  # type: ignore[arg-type]


TRITON = DroneType("here", "triton", 0, 1, 1024, 1024).key


@dataclass
class RecordingBalancer:
    """A balancer that notes its servers, and measures nothing."""

    told: list[list[tuple[str, bool]]] = field(default_factory=list)
    in_flight: int = 0
    is_away: bool = False

    async def sync(self, servers: Sequence[BalancedServer], now: float) -> BalancerView:
        if self.is_away:
            raise UnavailableError("haproxy does not answer")
        self.told.append([(each.id, each.draining) for each in servers])
        in_flight = {each.id: self.in_flight for each in servers}
        return BalancerView((ServiceView("cms", requests=10, queued=3),), in_flight)


async def polled(pool: ServerPool, fake: FakeTriton, *drones: Drone) -> ServicesView:
    return await pool.poll(drones or [server_drone()], [fake.kind])


def slot_of(view: ServicesView) -> Slot:
    (slot,) = view.slots
    return slot


async def test_a_server_is_idle_busy_and_unready() -> None:
    async with triton() as fake, ServerPool() as pool:
        booting = server_drone(DroneState.BOOTING)
        fake.status = 503
        assert (await polled(pool, fake, booting)).slots == ()
        fake.status = 200
        view = await polled(pool, fake, booting)
        assert (slot_of(view).state, slot_of(view).jobs) == (SlotState.IDLE, 0)
        fake.requests, fake.pending = 40, 2
        view = await polled(pool, fake)
        assert (slot_of(view).state, slot_of(view).jobs) == (SlotState.BUSY, 2)
        (service,) = view.services
        assert (service.name, service.request_s) == ("cms", pytest.approx(0.05))
        (use,) = service.models
        assert (use.model, use.requests, use.compute_s) == ("deepmet:3", 40, pytest.approx(2.0))
        fake.pending = 0
        assert slot_of(await polled(pool, fake)).state is SlotState.IDLE
        fake.status = 500
        view = await polled(pool, fake, server_drone(joined_at=960.0))
        assert view.slots == () and "answers 500 at /v2/health/ready" in view.remarks[0]


async def test_a_pool_that_was_left_can_be_entered_again() -> None:
    pool = ServerPool()
    async with triton() as fake:
        for _ in range(2):
            async with pool:
                assert len((await polled(pool, fake)).slots) == 1


async def test_what_a_server_had_answered_before_it_was_watched_does_not_count() -> None:
    async with triton() as fake, ServerPool() as pool:
        fake.requests = 1000
        joined = server_drone(joined_at=960.0)
        (use,) = (await polled(pool, fake, joined)).services[0].models
        assert use.requests == 0
        fake.requests = 3
        (use,) = (await polled(pool, fake, joined)).services[0].models
        assert use.requests == 3, "it started again"


@pytest.mark.parametrize("status", [0, 302, 404])
async def test_another_answer_than_200_is_not_ready(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "PROBE_DEADLINE_S", 0.2)
    async with triton() as fake, ServerPool() as pool:
        fake.status = status
        assert (await polled(pool, fake)).slots == ()


async def test_a_server_that_is_late_once_stays_and_leaves_at_the_next_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servers, "PROBE_DEADLINE_S", 0.2)
    balancer = RecordingBalancer()
    async with triton() as fake, ServerPool(balancer=balancer) as pool:
        await polled(pool, fake)
        fake.status = 0
        assert len((await polled(pool, fake)).slots) == len(balancer.told[-1]) == 1
        assert (await polled(pool, fake)).slots == () and balancer.told[-1] == []
        fake.status = 200
        assert len((await polled(pool, fake)).slots) == 1


@pytest.mark.parametrize("body", ["x" * (4 << 20), "nv_inference_exec_count{" * 50_000, "\0\xff"])
async def test_metrics_that_are_none_leave_a_server_ready(body: str) -> None:
    async with triton() as fake, ServerPool() as pool:
        fake.body = body
        assert slot_of(await polled(pool, fake)).state is SlotState.IDLE


async def test_only_servers_that_run_and_serve_as_their_type_does_are_polled() -> None:
    async with triton() as fake, ServerPool() as pool:
        for other in (
            server_drone(DroneState.QUEUED, started_at=0.0),
            server_drone(DroneState.STOPPING),
            server_drone(service="atlas"),
            server_drone(service=""),
        ):
            assert (await polled(pool, fake, other)).slots == ()


async def test_a_drain_withdraws_a_server_at_once_and_the_record_keeps_it_withdrawn() -> None:
    async with triton() as fake, ServerPool(balancer=(balancer := RecordingBalancer())) as pool:
        balancer.in_flight = 4
        drone = server_drone()
        view = await polled(pool, fake)
        assert (slot_of(view).state, slot_of(view).jobs) == (SlotState.BUSY, 4)
        (result,) = await pool.drain([drone.id], DrainMode.PEACEFUL, "surplus-server")
        assert result.answer is OrderOutcome.OK
        assert balancer.told == [[(drone.id, False)], [(drone.id, True)]]
        leaving = server_drone(DroneState.DRAINING, leaving=DroneState.DONE)
        view = await polled(pool, fake, leaving)
        assert (slot_of(view).state, slot_of(view).jobs) == (SlotState.DRAINING, 4)
        await pool.drain([drone.id], DrainMode.RESUME, "demand-returned")
        assert balancer.told[-1] == [(drone.id, False)]
        assert slot_of(await polled(pool, fake)).state is SlotState.BUSY


async def test_without_its_balancer_the_pool_cannot_be_polled() -> None:
    async with triton() as fake, ServerPool(balancer=(balancer := RecordingBalancer())) as pool:
        assert (await polled(pool, fake)).services[0].queued == 3
        balancer.is_away = True
        with pytest.raises(UnavailableError, match="haproxy does not answer"):
            await polled(pool, fake)
        (result,) = await pool.drain([DroneId("kit-ab12-0")], DrainMode.PEACEFUL, "surplus-server")
        assert result.answer is OrderOutcome.OK, "the next poll withdraws it"


async def test_a_drone_gets_its_command_its_ports_and_the_secret() -> None:
    kind = FakeTriton(first_port=20000).kind
    order = StartOrder(DroneId("kit-ab12-7"), kind, 600.0, 30.0)
    pool = ServerPool(keys={"cms": lambda: "secret"})
    found = await pool.bootstrap(order)
    assert found.files == {"service.sh": b"run", "service.key": b"secret"}
    assert found.env == {
        "SERVICE_NAME": "cms",
        "SERVICE_MODELS": "deepmet:3",
        "SERVICE_HTTP_PORT": "20000",
        "SERVICE_GRPC_PORT": "20001",
        "SERVICE_METRICS_PORT": "20002",
        "SERVICE_KEY_FILE": "service.key",
    }
    assert b"SERVICE_HTTP_PORT" in found.script

    def unreadable() -> str:
        raise OSError("no such file")

    pool.keys = {"cms": unreadable}
    with pytest.raises(RejectedError, match="key of service cms: no such file"):
        await pool.bootstrap(order)
    with pytest.raises(RejectedError, match="no server"):
        await pool.bootstrap(replace(order, type=replace(kind, server=None)))
