"""The controller as a process: configuration, adapters, store and signals put together around the loop."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from provisioner import loader, systemd
from provisioner.config import ConfigChange, ConfigError, Settings, SiteConfig, changes, load
from provisioner.config.credentials import credentials_of
from provisioner.controller.clock import SteadyClock
from provisioner.controller.compute_thread import ComputeThread
from provisioner.controller.leadership import Leadership, Membership
from provisioner.controller.loop import Controller
from provisioner.controller.polling import CredentialSource, LazySite, Poller, fault_of, within
from provisioner.controller.shadow import (
    SHADOW_SUFFIX,
    decide_without_orders,
    observed_overlay,
    observed_site,
)
from provisioner.controller.standby import Standby
from provisioner.descriptions import credential_trouble
from provisioner.interfaces import Overlay, UnavailableError
from provisioner.planner import planner
from provisioner.services.addresses import job_environment
from provisioner.services.haproxy import Haproxy
from provisioner.services.pool import ServerPool
from provisioner.store import StoreError, StoreHeldError
from provisioner.store.database import database_of
from provisioner.store.lease import LeaseStore, Member, Term
from provisioner.store.lock import holder_json, this_process
from provisioner.store.writer import SqlStore
from provisioner.values import define, factory

log = structlog.get_logger()

IGNORED_SIGNALS = ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR")
CONNECT_S = 20.0
CLOSE_S = 20.0
"""Longest time to connect a site, and to leave it."""


async def run(
    path: Path, *, once: bool = False, root: Path | None = None, shadow: bool = False
) -> int:
    """Run the controller until SIGTERM or SIGINT; with ``once`` for a single tick. Return the exit code.

    At a second SIGTERM it does not wait for orders under way: 1. SIGHUP reads the configuration
    again. Drones outlive the controller: the next one takes them over.

    With ``ha`` in the configuration it stands by while another member leads.

    A ``shadow`` polls, decides and records, and gives no order: see
    :mod:`provisioner.controller.shadow`.

    ``root`` is the directory from which relative paths in the files start, where that is not the
    files' own directory. Raises ConfigError, StoreError (StoreHeldError: another controller runs),
    AdapterError (of the overlay, or of an adapter while it is built), AdapterBrokenError and
    AdapterUnknownError.
    """
    stop, hangup = _signals()
    try:
        async with AsyncExitStack() as stack:
            settings = await asyncio.to_thread(load, path, root=root)
            process = _Process(path, root, stop, hangup, once, shadow)
            if settings.ha is None or shadow:
                return await process.serve_alone(stack, settings)
            return await process.serve_as_member(stack, settings, settings.ha.lease)
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        log.warning(
            "controller.aborted",
            drones="go on; what was asked for and not answered is settled by the next controller",
        )
        return 1


def _signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Return two events: a request to stop, and a request to read the configuration again.

    A second request to stop cancels this task; the third ends the process as it would end any.
    Signals that other programs send by habit, as tools that rotate logs do, are only logged: by
    default they would end the process.
    """
    stop = asyncio.Event()
    hangup = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def asked_to_stop(number: signal.Signals) -> None:
        if stop.is_set():
            loop.remove_signal_handler(number)
            task.cancel()
        stop.set()
        systemd.notify("STOPPING=1")

    def not_wanted(name: str) -> None:
        log.warning("signal.ignored", signal=name)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        loop.add_signal_handler(number, asked_to_stop, number)
    for name in IGNORED_SIGNALS:
        if ignored := getattr(signal, name, None):  # some systems lack some
            loop.add_signal_handler(ignored, not_wanted, name)
    loop.add_signal_handler(signal.SIGHUP, hangup.set)
    return stop, hangup


@define
class _Process:
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
        return await self._lead(controller, adapters, self.stop)

    async def serve_as_member(
        self, stack: AsyncExitStack, settings: Settings, lease_s: float
    ) -> int:
        """Run one of several controllers with one record: lead while it holds the lease, else stand by."""
        leases = LeaseStore(database_of(settings.record), settings.controller)
        stack.callback(leases.close)
        await asyncio.to_thread(leases.open)
        adapters, overlay = await self._connected(stack, settings)
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
        await member.beat()
        if self.once and not member.leads:
            raise StoreHeldError(f"store {settings.record}: another member leads")
        beats = asyncio.create_task(member.run(), name="lease")
        warm: Poller | None = None
        code = 0
        try:
            while not self.stop.is_set():
                if member.leads:
                    code = await self._lead_term(member, adapters, overlay, warm)
                    if self.once:
                        break
                warm = await self._stand_by(member, adapters, overlay, warm)
        finally:
            beats.cancel()
            await member.leave()
        return code

    async def _lead_term(
        self, member: Membership, adapters: Adapters, overlay: Overlay, warm: Poller | None
    ) -> int:
        """Lead until the lease is lost or an operator wants another leader. The record is read anew."""
        over = asyncio.Event()
        resigned = asyncio.Event()
        member.changed.clear()
        watch = asyncio.create_task(_set_after(over, self.stop, resigned, member.changed))
        store = self._store(adapters.settings, member.term)
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
                code = await self._lead(controller, adapters, over)
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
        self, member: Membership, adapters: Adapters, overlay: Overlay, warm: Poller | None
    ) -> Poller | None:
        """Stand by until this member leads. Return its polls. SIGHUP reads the configuration again."""
        settings = adapters.settings
        standby = Standby(
            settings.policy, settings.types, overlay, adapters.sites, SteadyClock(), warm
        )
        over = asyncio.Event()
        member.changed.clear()
        member.lacks = standby.lacks
        member.member = replace(member.member, unpolled=standby.unpolled)
        beside = [
            asyncio.create_task(_set_after(over, self.stop, self.hangup, member.changed)),
            asyncio.create_task(systemd.heartbeat()),
        ]
        systemd.notify("READY=1")
        try:
            if not member.leads:
                await standby.run(over)
        finally:
            member.lacks = tuple
            for task in beside:
                task.cancel()
        if self.hangup.is_set():
            self.hangup.clear()
            await self._take_over_files(adapters)
        return standby.poller

    async def _take_over_files(self, adapters: Adapters) -> None:
        """Take over a changed configuration as a standby; keep the old one if it is invalid."""
        systemd.notify("RELOADING=1")
        try:
            _, new, opened = await _changed(self.path, self.root, adapters, {})
        except Exception as error:  # as for a leader
            log.warning("config.rejected", file=str(self.path), problems=str(error)[:4000])
            return
        adapters.become(new, opened)
        log.info("config.reloaded", file=str(self.path))
        await adapters.close_leaving()

    async def _lead(self, controller: Controller, adapters: Adapters, over: asyncio.Event) -> int:
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
            reloads = _reloads(self.path, self.root, controller, adapters, self.hangup)
            beside = [
                group.create_task(reloads),
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
        services = _configured(ServerPool(), settings, shadow=self.shadow)
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
            credentials=_credential_sources(settings),
            planner=decide_without_orders if self.shadow else planner(),
            leadership=leadership or Leadership(),
            warm=warm,
            threaded=True,
        )
        return await stack.enter_async_context(controller)


async def _set_after(over: asyncio.Event, *events: asyncio.Event) -> None:
    """Set ``over`` once any of the events is set."""
    waits = [asyncio.ensure_future(each.wait()) for each in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        over.set()
    finally:
        for wait in waits:
            wait.cancel()


def _configured(pool: ServerPool, settings: Settings, *, shadow: bool = False) -> ServerPool:
    """Return the pool with the secrets and the balancer of a configuration. A shadow leaves the balancer alone."""
    pool.keys = {each.settings.name: each.key.read for each in settings.services if each.key}
    balancer = settings.balancer if not shadow else None
    tokens = {each.settings.name: bool(each.tokens) for each in settings.services}
    pool.balancer = Haproxy(balancer.socket, tokens) if balancer else None
    pool.job_environment = _job_environment(settings)
    return pool


def _job_environment(settings: Settings) -> Mapping[str, str]:
    """Return the environment from which jobs in drones get the address of the balancer; empty without one."""
    if settings.balancer is None:
        return {}
    return job_environment(settings.policy.services, settings.types, settings.balancer.host)


async def _reloads(
    path: Path, root: Path | None, controller: Controller, adapters: Adapters, hangup: asyncio.Event
) -> None:
    """Take over a valid configuration at each SIGHUP; keep the old one, and report why, if anything goes wrong."""
    while True:
        systemd.notify("READY=1")
        await hangup.wait()
        hangup.clear()
        systemd.notify("RELOADING=1")
        try:
            change, under_way = await _reloaded(path, root, controller, adapters)
        except Exception as error:
            # whatever a file or an adapter causes, the controller must not end for it
            known = isinstance(error, ConfigError | ConfigNotAppliedError)
            problems = str(error) if known else f"{type(error).__name__}: {error}"
            if not known:
                log.exception("config.reload_failed", file=str(path))
            await controller.event(
                "config.rejected", warn=True, file=str(path), problems=problems[:4000]
            )
            continue
        told = {"changes": "; ".join(change.notes) or "nothing changed"}
        found = await asyncio.to_thread(_credential_troubles, adapters.settings)
        if found:
            told["credentials"] = "\n".join(found)
        await controller.event("config.reloaded", **told)  # type: ignore[arg-type]
        if adapters.leaving and under_way:
            await asyncio.wait(under_way)
        await adapters.close_leaving()


async def _reloaded(
    path: Path, root: Path | None, controller: Controller, adapters: Adapters
) -> tuple[ConfigChange, Collection[asyncio.Task[Any]]]:
    """Read and take over the configuration. Return the change, and the orders that replaced adapters still carry out.

    Raises ConfigError, ConfigNotAppliedError, or whatever else fails; then the old configuration
    stays in force.
    """
    live = Counter(d.site for d in controller.store.drones.values())
    change, new, opened = await _changed(path, root, adapters, live)
    before = adapters.settings
    async with controller.between_ticks:
        adapters.become(new, opened)
        if (before.services, before.balancer) != (new.services, new.balancer):
            _configured(adapters.services, new, shadow=adapters.shadow)
        adapters.services.job_environment = _job_environment(new)
        credentials = _credential_sources(new)
        return change, controller.apply(new.policy, new.types, adapters.sites, credentials)


async def _changed(
    path: Path, root: Path | None, adapters: Adapters, live: Mapping[str, int]
) -> tuple[ConfigChange, Settings, Mapping[str, LazySite]]:
    """Read the configuration. Return the change, the new settings and the sites that were connected for them."""
    # adapters may look at this host, ask an interpreter
    new = await asyncio.to_thread(load, path, root=root)
    change = changes(adapters.settings, new, live)
    if change.refused:
        raise ConfigNotAppliedError("\n".join(change.refused))
    return change, new, await adapters.opened(new, change.rebuilt)


def _credential_troubles(settings: Settings) -> list[str]:
    now = time.time()
    found = (each for source in _credential_sources(settings).values() for each in source())
    return [text for each in found if (text := credential_trouble(each, now))]


def _credential_sources(settings: Settings) -> Mapping[str, CredentialSource]:
    options = {"overlay": settings.overlay.options, "web": settings.web}
    options |= {f"site:{site.name}": site.options for site in settings.sites}
    options |= {f"service:{each.settings.name}": each for each in settings.services}
    return {user: partial(credentials_of, each) for user, each in options.items()}


class ConfigNotAppliedError(Exception):
    """A valid configuration cannot be taken over now; the message says why."""


@define
class Adapters:
    """The site adapters of a configuration; replaced one by one when it changes."""

    settings: Settings
    shadow: bool = False
    sites: Mapping[str, LazySite] = factory(dict)
    services: ServerPool = factory(ServerPool)
    """The pool of the controller that leads, or led last."""
    leaving: list[tuple[str, LazySite]] = factory(list)
    """Replaced or removed; closed when nothing that they were asked for is under way any more."""

    async def __aenter__(self) -> Adapters:
        """Connect the sites. The controller starts without one that cannot be reached: each poll tries again."""
        self.sites = {spec.name: self._built(spec, self.settings) for spec in self.settings.sites}

        async def connect(name: str, site: LazySite) -> None:
            try:
                await within(CONNECT_S, site.open())
            except Exception as error:
                log.warning("site.connect_failed", site=name, message=fault_of(error, 0.0).message)

        await asyncio.gather(*(connect(name, site) for name, site in self.sites.items()))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.leaving += self.sites.items()
        await self.close_leaving()

    async def opened(self, new: Settings, changed: Collection[str]) -> Mapping[str, LazySite]:
        """Return connected sites for those that are new or among the ``changed``.

        Raises ConfigNotAppliedError if one cannot be connected: then none is.
        """
        sites: dict[str, LazySite] = {}
        try:
            for spec in new.sites:
                if spec.name not in self.sites or spec.name in changed:
                    sites[spec.name] = self._built(spec, new)
                    await within(CONNECT_S, sites[spec.name].open())
        except BaseException as error:
            self.leaving += sites.items()
            if not isinstance(error, Exception):
                raise
            await self.close_leaving()
            raise ConfigNotAppliedError(
                f"site {spec.name}: {fault_of(error, 0.0).message}"
            ) from error
        return sites

    def become(self, new: Settings, opened: Mapping[str, LazySite]) -> None:
        """Take over the sites that :meth:`opened` returned for ``new``."""
        before = self.sites
        self.sites = {s.name: opened.get(s.name) or before[s.name] for s in new.sites}
        self.leaving += [
            (name, site) for name, site in before.items() if self.sites.get(name) is not site
        ]
        self.settings = new

    async def close_leaving(self) -> None:
        """Close the replaced sites. One that fails does not keep the others from it."""
        while self.leaving:
            name, site = self.leaving.pop()
            try:
                await within(CLOSE_S, site.close())
            except Exception as error:
                log.warning("site.close_failed", site=name, message=fault_of(error, 0.0).message)

    def _built(self, spec: SiteConfig, settings: Settings) -> LazySite:
        name = settings.controller + SHADOW_SUFFIX * self.shadow
        site = loader.site_adapter(spec.adapter)(spec.name, spec.options, spec.types, name)
        return LazySite(observed_site(site) if self.shadow else site)
