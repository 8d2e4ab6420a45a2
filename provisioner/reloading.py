"""The adapters of a configuration, and its change while the controller runs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from provisioner import loader, systemd
from provisioner.config import ConfigChange, ConfigError, Settings, SiteConfig, changes, load
from provisioner.config.credentials import credentials_of
from provisioner.controller.loop import Controller
from provisioner.controller.polling import CredentialSource, LazySite, fault_of, within
from provisioner.controller.shadow import SHADOW_SUFFIX, observed_site
from provisioner.descriptions import credential_trouble
from provisioner.services.addresses import job_environment
from provisioner.services.haproxy import Haproxy
from provisioner.services.pool import ServerPool
from provisioner.store import StoreError
from provisioner.values import define, factory

log = structlog.get_logger()

STORE_RETRY_S = 1.0
"""Pause before a configuration is read again whose fate could not be recorded."""
CONNECT_S = 20.0
CLOSE_S = 20.0
"""Longest time to connect a site, and to leave it."""


def configured(pool: ServerPool, settings: Settings, *, shadow: bool = False) -> ServerPool:
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


@define
class OwnFiles:
    """The configuration of a controller on its own: its files."""

    path: Path
    root: Path | None
    hangup: asyncio.Event

    @property
    def origin(self) -> str:
        """Return which configuration was loaded, for people; empty: the only one."""
        return ""

    async def changed(self) -> None:
        """Wait until there is a configuration to load."""
        await self.hangup.wait()
        self.hangup.clear()

    async def load(self) -> Settings:
        """Return the configuration. Raises ConfigError."""
        # adapters may look at this host, ask an interpreter
        return await asyncio.to_thread(load, self.path, root=self.root)

    async def settle(self, problems: str = "") -> None:
        """Record that what was loaded is taken over, or not for its ``problems``. Raises StoreError."""

    def took_over(self) -> None:
        """Note that what was loaded is in force here."""


async def reloads(source: OwnFiles, controller: Controller, adapters: Adapters) -> None:
    """Take over each configuration that is valid; keep the old one, and report why, if anything goes wrong."""
    while True:
        systemd.notify("READY=1")
        await source.changed()
        systemd.notify("RELOADING=1")
        try:
            await _reload(source, controller, adapters)
        except StoreError as error:  # without an answer, or another member leads: it stays proposed
            log.warning("config.reload_failed", file=str(source.path), message=str(error))
            await asyncio.sleep(STORE_RETRY_S)


async def _reload(source: OwnFiles, controller: Controller, adapters: Adapters) -> None:
    """Take over the configuration, or reject it. Raises StoreError if neither can be recorded."""
    try:
        change, under_way = await _reloaded(source, controller, adapters)
    except StoreError:
        raise
    except Exception as error:
        # whatever a file or an adapter causes, the controller must not end for it
        known = isinstance(error, ConfigError | ConfigNotAppliedError)
        problems = str(error) if known else f"{type(error).__name__}: {error}"
        if not known:
            log.exception("config.reload_failed", file=str(source.path))
        problems = problems[:4000]
        await source.settle(problems)
        file = str(source.path)
        await controller.event(
            "config.rejected", warn=True, file=file, problems=source.origin + problems
        )
        return
    details = {"changes": source.origin + ("; ".join(change.notes) or "nothing changed")}
    found = await asyncio.to_thread(_credential_troubles, controller.credentials)
    if found:
        details["credentials"] = "\n".join(found)
    await controller.event("config.reloaded", **details)  # type: ignore[arg-type]
    if adapters.leaving and under_way:
        await asyncio.wait(under_way)
    await adapters.close_leaving()


async def _reloaded(
    source: OwnFiles, controller: Controller, adapters: Adapters
) -> tuple[ConfigChange, Collection[asyncio.Task[Any]]]:
    """Read and take over the configuration. Return the change, and the orders that replaced adapters still carry out.

    Raises ConfigError, ConfigNotAppliedError, StoreError, or whatever else fails; then the old
    configuration stays in force.
    """
    live = Counter(d.site for d in controller.store.drones.values())
    new = await source.load()
    change, opened = await prepared(adapters, new, live)
    before = adapters.settings
    try:
        await source.settle()
        async with controller.between_ticks:
            adapters.become(new, opened)
            source.took_over()
            if (before.services, before.balancer) != (new.services, new.balancer):
                configured(adapters.services, new, shadow=adapters.shadow)
            else:  # it follows from the types, too
                adapters.services.job_environment = _job_environment(new)
            credentials = credential_sources(new)
            return change, controller.apply(new.policy, new.types, adapters.sites, credentials)
    except BaseException:
        if adapters.settings is not new:
            adapters.leaving += opened.items()
        raise


async def prepared(
    adapters: Adapters, new: Settings, live: Mapping[str, int], *, connects: bool = True
) -> tuple[ConfigChange, Mapping[str, LazySite]]:
    """Return the change to a configuration, and the sites that were built for it.

    Raises ConfigNotAppliedError if it cannot be taken over now.
    """
    change = changes(adapters.settings, new, live)
    if change.refused:
        raise ConfigNotAppliedError("\n".join(change.refused))
    return change, await adapters.opened(new, change.rebuilt, connects=connects)


def _credential_troubles(sources: Mapping[str, CredentialSource]) -> list[str]:
    now = time.time()
    found = (each for source in sources.values() for each in source())
    return [text for each in found if (text := credential_trouble(each, now))]


def credential_sources(settings: Settings) -> Mapping[str, CredentialSource]:
    """Return what reads the credentials of each user: ``overlay``, ``web``, ``site:NAME``, ``service:NAME``."""
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

    async def opened(
        self, new: Settings, changed: Collection[str], *, connects: bool
    ) -> Mapping[str, LazySite]:
        """Return sites for those that are new or among the ``changed``, connected or for the first poll to connect.

        Raises ConfigNotAppliedError if one cannot be connected: then none is.
        """
        sites: dict[str, LazySite] = {}
        try:
            for spec in new.sites:
                if spec.name not in self.sites or spec.name in changed:
                    sites[spec.name] = self._built(spec, new)
                    if connects:
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
