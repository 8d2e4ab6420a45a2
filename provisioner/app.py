"""The controller as a process: configuration, adapters, store and signals put together around the service."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from provisioner import loader
from provisioner.config import ConfigErrors, Settings, SiteSpec
from provisioner.config.reading import load
from provisioner.config.reload import changes
from provisioner.service.clock import SteadyClock
from provisioner.service.controller import Controller
from provisioner.service.lag import LagProbe
from provisioner.sites import Site, SiteError
from provisioner.store.sql import SqlStore

log = structlog.get_logger()


def log_to_stderr(level: int = logging.INFO) -> None:
    """Log lines as ``time level event key=value``; in colour on a terminal only."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=14),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


async def run(path: Path, *, once: bool = False, root: Path | None = None) -> int:
    """Run the controller until SIGTERM or SIGINT; ``once``: a single tick. Returns the exit code.
    ``root``: what relative paths in the files start from, where that is not the files' own directory.

    SIGHUP reads the configuration anew. Drones outlive the controller: the next one takes them over.
    Raises ConfigErrors, StoreError (StoreHeld: another controller runs) and SiteError (an adapter cannot be built).
    """
    settings = load(path, root=root)
    store = SqlStore(
        settings.store.path,
        settings.controller,
        keep_s=settings.store.keep_s,
        snapshots=settings.store.snapshots,
    )
    stop, hangup = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, hangup.set)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(store)
        adapters = await stack.enter_async_context(Adapters(settings))
        overlay = loader.overlay_adapter(settings.overlay.adapter)(settings.overlay.options, settings.controller)
        await stack.enter_async_context(overlay)
        controller = Controller(
            name=settings.controller,
            policy=settings.policy,
            types=settings.types,
            overlay=overlay,
            sites=adapters.sites,
            store=store,
            clock=SteadyClock(),
            tick_s=settings.tick_s,
            tick_quick_s=settings.tick_quick_s,
        )
        await stack.enter_async_context(controller)
        log.info("running", controller=settings.controller, sites=sorted(adapters.sites), drones=len(store.drones))
        if once:
            report = await controller.tick()
            return 0 if report.recorded and not report.faults else 1
        probe = LagProbe()
        async with asyncio.TaskGroup() as group:
            beside = [
                group.create_task(_reloads(path, root, controller, adapters, hangup)),
                group.create_task(probe.run()),
            ]
            await controller.run(stop)
            for task in beside:
                task.cancel()
        log.info("stopping", drones=len(store.drones), worst_lag_ms=round(probe.worst_s * 1000))
    return 0


async def _reloads(
    path: Path, root: Path | None, controller: Controller, adapters: Adapters, hangup: asyncio.Event
) -> None:
    """Take over a valid configuration at each SIGHUP; say what is wrong with an invalid one and keep the old."""
    while True:
        await hangup.wait()
        hangup.clear()
        try:
            new = load(path, root=root)
        except ConfigErrors as error:
            await controller.event("reload-refused", problems=str(error)[:4000])
            continue
        live = Counter(d.site for d in controller.store.drones.values())
        change = changes(adapters.settings, new, live)
        if change.refused:
            await controller.event("reload-refused", problems="\n".join(change.refused)[:4000])
            continue
        async with controller.between_ticks:
            try:
                await adapters.become(new, change.rebuilt)
            except SiteError as error:
                await controller.event("reload-refused", problems=str(error)[:4000])
                continue
            controller.apply(new.policy, new.types, adapters.sites, new.tick_s, new.tick_quick_s)
        await controller.event("reloaded", changes="; ".join(change.notes) or "nothing changed")


@dataclass(slots=True)
class Adapters:
    """The site adapters of a configuration, entered; replaced one by one when it changes."""

    settings: Settings
    _open: dict[str, tuple[Site, AsyncExitStack]] = field(default_factory=dict)

    @property
    def sites(self) -> Mapping[str, Site]:
        return {name: site for name, (site, _) in self._open.items()}

    async def __aenter__(self) -> Adapters:
        try:
            await self.become(self.settings)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        for name in list(self._open):
            await self._close(name)

    async def become(self, new: Settings, changed: Collection[str] = ()) -> None:
        """Open what is new or among the ``changed``, then close what is gone. A site that cannot be opened raises and
        changes nothing."""
        opened: dict[str, tuple[Site, AsyncExitStack]] = {}
        try:
            for spec in new.sites:
                if spec.name not in self._open or spec.name in changed:
                    opened[spec.name] = await self._opened(spec, new.controller)
        except BaseException:
            for _, stack in opened.values():
                await stack.aclose()
            raise
        wanted = {s.name for s in new.sites}
        for name in [n for n in self._open if n in opened or n not in wanted]:
            await self._close(name)
        self._open.update(opened)
        self.settings = new

    async def _opened(self, spec: SiteSpec, controller: str) -> tuple[Site, AsyncExitStack]:
        site = loader.site_adapter(spec.adapter)(spec.name, spec.options, spec.types, controller)
        stack = AsyncExitStack()
        await stack.enter_async_context(site)
        return site, stack

    async def _close(self, name: str) -> None:
        _, stack = self._open.pop(name)
        try:
            async with asyncio.timeout(30):
                await stack.aclose()
        except Exception as error:  # a site that cannot say good-bye must not keep the others from it
            log.warning("close-failed", site=name, message=f"{type(error).__name__}: {error}")
