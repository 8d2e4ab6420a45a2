"""The process of a controller, which leads alone, or as one of several members with one record."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from provisioner import loader, systemd
from provisioner.config import Settings
from provisioner.controller.clock import SteadyClock
from provisioner.controller.compute_thread import ComputeThread
from provisioner.controller.leadership import Leadership, Membership, any_set
from provisioner.controller.loop import Controller
from provisioner.controller.polling import Poller, within
from provisioner.controller.shadow import SHADOW_SUFFIX, decide_without_orders, observed_overlay
from provisioner.controller.standby import Standby
from provisioner.interfaces import Overlay, UnavailableError
from provisioner.model import ServicesView
from provisioner.planner import planner
from provisioner.reloading import (
    CONNECT_S,
    Adapters,
    OwnFiles,
    configured,
    credential_sources,
    reloads,
)
from provisioner.services.pool import ServerPool
from provisioner.shared_configuration import SharedConfiguration
from provisioner.store import StoreError, StoreHeldError
from provisioner.store.database import SERVER_SILENCE_S, database_of
from provisioner.store.lease import LeaseStore, Member, Term
from provisioner.store.lock import holder_json, this_process
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore
from provisioner.values import define

log = structlog.get_logger()


@define
class ControllerProcess:
    """The process of a controller, with what it was started with."""

    path: Path
    root: Path | None
    stop: asyncio.Event
    hangup: asyncio.Event
    once: bool
    shadow: bool

    async def serve_alone(self, stack: AsyncExitStack, settings: Settings) -> int:
        """Run the only controller of a record. Return the exit code."""
        store = self._store(settings)
        await stack.enter_async_context(store)
        adapters, overlay = await self._connected(stack, settings)
        controller = await self._controller(stack, adapters, overlay, store)
        source = OwnFiles(self.path, self.root, self.hangup)
        return await self._lead(controller, adapters, source, self.stop)

    async def serve_as_member(
        self, stack: AsyncExitStack, settings: Settings, lease_s: float
    ) -> int:
        """Run one of several controllers with one record: lead while it holds the lease, else stand by."""
        # a renewal without an answer is sent again, perhaps to another server, before the lease ends
        database = database_of(settings.record, min(SERVER_SILENCE_S, lease_s / 2))
        leases = LeaseStore(database, settings.controller)
        stack.callback(leases.close)
        await asyncio.to_thread(leases.open)
        thread = ComputeThread(threaded=True)
        stack.callback(thread.close)
        holder = this_process()
        member = Membership(
            leases,
            thread,
            Member(f"{holder.host}/{holder.pid}", holder_json(holder)),
            lease_s,
            on_change=lambda status: systemd.notify(f"STATUS={status}"),
        )
        shared = SharedConfiguration(self.path, self.root, self.hangup, member)
        member.files = shared.note
        settings = await shared.begin()
        adapters, overlay = await self._connected(stack, settings)
        await member.beat()
        if self.once and not member.leads:
            raise StoreHeldError(f"store {settings.record}: another member leads")
        beats = asyncio.create_task(member.run(), name="lease")
        warm: Poller | None = None
        code = 0
        try:
            while not self.stop.is_set():
                if member.leads:
                    code = await self._lead_term(shared, adapters, overlay, warm)
                    if self.once:
                        break
                warm = await self._stand_by(shared, adapters, overlay, warm)
        finally:
            beats.cancel()
            await member.leave()
        return code

    async def _lead_term(
        self, shared: SharedConfiguration, adapters: Adapters, overlay: Overlay, warm: Poller | None
    ) -> int:
        """Lead until the lease is lost or an operator wants another leader. The record is read anew."""
        member = shared.member
        member.changed.clear()
        if not await shared.follow(adapters):
            await member.leave()
            member.stand_back()
            return 0
        term = member.term
        if term is None or not member.leads:
            return 0
        over = asyncio.Event()
        resigned = asyncio.Event()
        watch = asyncio.create_task(_set_after(over, self.stop, resigned, member.changed))
        store = self._store(adapters.settings, term)
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(store)
                member.orderly = False
                controller = await self._controller(stack, adapters, overlay, store, member, warm)
                controller.on_resign = resigned.set
                if member.went_back:
                    await controller.event(
                        "lease.epoch_went_back", warn=True, evidence=member.went_back
                    )
                    member.went_back = ""
                code = await self._lead(controller, adapters, shared, over)
            member.orderly = not controller.awaits_orders
        except StoreError as error:
            log.error("lease.term_failed", message=str(error))
            code = 1
        finally:
            watch.cancel()
        if resigned.is_set() or code:
            await member.leave()
            member.stand_back()
        return code

    async def _stand_by(
        self, shared: SharedConfiguration, adapters: Adapters, overlay: Overlay, warm: Poller | None
    ) -> Poller | None:
        """Stand by until this member leads, or has other files. Return its polls. SIGHUP reads its files again."""
        member = shared.member
        member.news.clear()
        if not await shared.follow(adapters):
            asyncio.get_running_loop().call_later(member.duration_s, member.news.set)
        settings = adapters.settings
        standby = Standby(
            settings.policy, settings.types, overlay, adapters.sites, SteadyClock(), warm
        )
        # without the balancer, as that of a shadow
        services = configured(ServerPool(), settings, shadow=True)
        reader = Reader(settings.record)
        if settings.policy.services:
            standby.poll_services = partial(_poll_services, services, reader, settings)
        over = asyncio.Event()
        member.changed.clear()
        member.lacks = standby.lacks
        member.member = replace(member.member, unpolled=standby.unpolled)
        beside = [
            asyncio.create_task(
                _set_after(over, self.stop, self.hangup, member.changed, member.news)
            ),
            asyncio.create_task(systemd.heartbeat()),
        ]
        systemd.notify("READY=1")
        try:
            if not member.leads:
                async with services:
                    await standby.run(over)
        finally:
            member.lacks = tuple
            reader.database.disconnect()
            for task in beside:
                task.cancel()
        if self.hangup.is_set():
            self.hangup.clear()
            systemd.notify("RELOADING=1")
            try:
                await shared.read()
            except Exception as error:  # as for a leader
                log.warning("config.rejected", file=str(self.path), problems=str(error)[:4000])
        return standby.poller

    async def _lead(
        self, controller: Controller, adapters: Adapters, source: OwnFiles, over: asyncio.Event
    ) -> int:
        """Run a controller until ``over`` is set, or for a single tick. Return the exit code."""
        controller.on_reload = self.hangup.set
        log.info(
            "controller.started",
            controller=controller.name,
            sites=sorted(adapters.sites),
            drones=len(controller.store.drones),
        )
        if self.once:
            report = await controller.tick()
            return 0 if report.recorded and not report.faults else 1
        async with asyncio.TaskGroup() as group:
            beside = [
                group.create_task(reloads(source, controller, adapters)),
                group.create_task(systemd.heartbeat(controller.is_making_progress)),
            ]
            await controller.run(over)
            for task in beside:
                task.cancel()
        log.info("controller.stopping", drones=len(controller.store.drones))
        return 0

    def _name(self, settings: Settings) -> str:
        return settings.controller + SHADOW_SUFFIX * self.shadow

    def _store(self, settings: Settings, term: Term | None = None) -> SqlStore:
        limits = settings.store
        return SqlStore(
            settings.record,
            self._name(settings),
            keep_s=limits.keep,
            snapshots=limits.snapshots,
            series_s=limits.series,
            ledger_s=limits.ledger,
            shadow=self.shadow,
            term=term,
        )

    async def _connected(
        self, stack: AsyncExitStack, settings: Settings
    ) -> tuple[Adapters, Overlay]:
        adapters = await stack.enter_async_context(Adapters(settings, self.shadow))
        overlay: Overlay = loader.overlay_adapter(settings.overlay.adapter)(
            settings.overlay.options, self._name(settings)
        )
        overlay = observed_overlay(overlay) if self.shadow else overlay
        try:
            await within(CONNECT_S, stack.enter_async_context(overlay))
        except TimeoutError:
            raise UnavailableError(
                f"overlay {settings.overlay.adapter}: not connected after {CONNECT_S:g} s"
            ) from None
        return adapters, overlay

    async def _controller(
        self,
        stack: AsyncExitStack,
        adapters: Adapters,
        overlay: Overlay,
        store: SqlStore,
        leadership: Leadership | None = None,
        warm: Poller | None = None,
    ) -> Controller:
        settings = adapters.settings
        committed = store.committed
        # one of an earlier term would count again what other leaders have counted since
        services = configured(ServerPool(), settings, shadow=self.shadow)
        adapters.services = services
        await stack.enter_async_context(services)
        controller = Controller(
            name=self._name(settings),
            policy=settings.policy,
            types=settings.types,
            overlay=overlay,
            services=services,
            sites=adapters.sites,
            store=store,
            clock=SteadyClock(not_before=committed.recorded_at, drift_s=committed.recorded_drift_s),
            credentials=credential_sources(settings),
            planner=decide_without_orders if self.shadow else planner(),
            leadership=leadership or Leadership(),
            warm=warm,
            threaded=True,
        )
        return await stack.enter_async_context(controller)


async def _poll_services(pool: ServerPool, reader: Reader, settings: Settings) -> ServicesView:
    """Return the servers on record that are ready. The leader measures the demand."""
    drones = await asyncio.to_thread(reader.drones, having="service")
    return replace(await pool.poll(drones, settings.types), services=())


async def _set_after(over: asyncio.Event, *events: asyncio.Event) -> None:
    """Set ``over`` once any of the events is set."""
    await any_set(*events)
    over.set()
