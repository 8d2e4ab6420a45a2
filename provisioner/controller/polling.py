"""Polling of the overlay and all sites at once: each with its own deadline, none able to hold up another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from provisioner.controller.adapter_calls import fault_of, within
from provisioner.controller.clock import Clock
from provisioner.controller.sanitize import Sanitizer
from provisioner.interfaces import UnavailableError
from provisioner.model import (
    Breaker,
    BreakerState,
    Fault,
    OverlayView,
    PolledOverlay,
    PolledSite,
    SiteView,
)
from provisioner.planner.breakers import OVERLAY_SCOPE

log = structlog.get_logger()

TICK_WAIT_S = 5.0
"""How long a tick waits for looks; what takes longer goes on, and its answer serves a later tick."""
ATTEMPTS = 2
RETRY_AFTER_S = 0.2

View = TypeVar("View", SiteView, OverlayView)


@dataclass(slots=True)
class PollTarget(Generic[View]):
    """The newest good view through one pair of eyes, and what went wrong since."""

    name: str
    poll: Callable[[], Awaitable[View]]
    deadline_s: float
    view: View | None = None
    fault: Fault | None = None
    in_flight: asyncio.Task[None] | None = None
    border: Sanitizer = field(default_factory=Sanitizer)
    _first: UnavailableError | None = None
    """Error of the first attempt of the look that goes on."""

    async def once(self, clock: Clock) -> None:
        """Look; retried once if the service does not answer, within one deadline. Never raises."""
        began = clock.now()
        try:
            view = self.border.sanitized(await within(self.deadline_s, self._looked()), began, clock.drift_s())
        except Exception as error:
            # the deadline of both attempts says less than what the first one failed for
            told = self._first if isinstance(error, TimeoutError) and self._first is not None else error
            before, self.fault = self.fault, fault_of(told, began)
            if before is None or before.message != self.fault.message:
                log.warning(
                    "overlay.poll_failed" if self.name == OVERLAY_SCOPE else "site.poll_failed",
                    view=self.name,
                    fault=self.fault.kind.value,
                    message=self.fault.message,
                )
        else:
            before, self.view, self.fault = self.fault, view, None
            if before is not None:
                log.info(
                    "overlay.recovered" if self.name == OVERLAY_SCOPE else "site.recovered",
                    view=self.name,
                    away_s=round(clock.now() - before.at, 1),
                )

    async def _looked(self) -> View:
        self._first = None
        try:
            return await self.poll()
        except UnavailableError as error:
            return await self._again(error)

    async def _again(self, error: UnavailableError) -> View:
        """Look again after one that failed, which is the first attempt of those that are retried."""
        failed = [error]
        self._first = error

        async def attempt() -> View:
            if failed:
                raise failed.pop()
            return await self.poll()

        return await AsyncRetrying(
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_fixed(RETRY_AFTER_S),
            retry=retry_if_exception_type(UnavailableError),
            reraise=True,
        )(attempt)

    def close(self) -> None:
        """Break off what is in flight."""
        if self.in_flight is not None:
            self.in_flight.cancel()


@dataclass(slots=True)
class Poller:
    """All watches. Tasks live in the given group, so none outlives the service."""

    group: asyncio.TaskGroup
    clock: Clock
    overlay: PollTarget[OverlayView]
    sites: dict[str, PollTarget[SiteView]] = field(default_factory=dict)

    async def poll(self, breakers: Mapping[str, Breaker]) -> None:
        """Begin every look that is due, wait for them with patience. A banned site that did not answer rests."""
        due: list[PollTarget[OverlayView] | PollTarget[SiteView]] = [self.overlay]
        due += [w for name, w in self.sites.items() if not self._rests(w, breakers.get(name))]
        tasks: list[asyncio.Task[None]] = []
        for watch in due:
            if watch.in_flight is None or watch.in_flight.done():
                watch.in_flight = self.group.create_task(watch.once(self.clock), name=f"look:{watch.name}")
            tasks.append(watch.in_flight)
        if tasks:
            await asyncio.wait(tasks, timeout=TICK_WAIT_S)

    def close(self) -> None:
        """Break off what is in flight."""
        self.overlay.close()
        for watch in self.sites.values():
            watch.close()

    def _rests(self, watch: PollTarget[SiteView], breaker: Breaker | None) -> bool:
        return (
            breaker is not None
            and breaker.state is BreakerState.BANNED
            and watch.fault is not None
            and self.clock.now() < breaker.until
        )

    def overlay_reading(self) -> PolledOverlay:
        return PolledOverlay(self.overlay.view, self.overlay.fault)

    def site_readings(self) -> dict[str, PolledSite]:
        return {name: PolledSite(name, w.view, w.fault) for name, w in self.sites.items()}
