"""Polling of the overlay and all sites at once: each with its own deadline, none able to hold up another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_fixed

from provisioner.controller.adapter_calls import fault_of, within
from provisioner.controller.clock import Clock
from provisioner.controller.sanitize import Sanitizer
from provisioner.interfaces import UnavailableError
from provisioner.model import Breaker, BreakerState, Fault, OverlayView, PolledOverlay, PolledSite, SiteView
from provisioner.planner.breakers import OVERLAY_SCOPE

log = structlog.get_logger()

TICK_WAIT_S = 5.0
"""Longest time that a tick waits for polls; the answer of one that takes longer serves a later tick."""
ATTEMPTS = 2
RETRY_AFTER_S = 0.2

View = TypeVar("View", SiteView, OverlayView)


@dataclass(slots=True)
class PollTarget(Generic[View]):
    """The newest good view of one site or of the overlay, and what went wrong since."""

    name: str
    poll: Callable[[], Awaitable[View]]
    deadline_s: float
    view: View | None = None
    fault: Fault | None = None
    in_flight: asyncio.Task[None] | None = None
    sanitizer: Sanitizer = field(default_factory=Sanitizer)
    _first: UnavailableError | None = None
    """Error of the first attempt of the poll under way."""

    async def once(self, clock: Clock) -> None:
        """Poll within one deadline, and note the view or the fault. Never raises."""
        began = clock.now()
        try:
            view = self.sanitizer.sanitized(await within(self.deadline_s, self._poll_twice()), began, clock.drift_s())
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

    async def _poll_twice(self) -> View:
        """Poll; once more if the service does not answer."""
        self._first = None

        async def attempt() -> View:  # tenacity awaits coroutine functions only, and `poll` may be any callable
            return await self.poll()

        return await AsyncRetrying(
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_fixed(RETRY_AFTER_S),
            retry=retry_if_exception_type(UnavailableError),
            before_sleep=self._note_first,
            reraise=True,
        )(attempt)

    def _note_first(self, attempt: RetryCallState) -> None:
        error = attempt.outcome.exception() if attempt.outcome is not None else None
        self._first = error if isinstance(error, UnavailableError) else None

    def close(self) -> None:
        """Break off what is in flight."""
        if self.in_flight is not None:
            self.in_flight.cancel()


@dataclass(slots=True)
class Poller:
    """All poll targets. Tasks live in the given group, so none outlives the service."""

    group: asyncio.TaskGroup
    clock: Clock
    overlay: PollTarget[OverlayView]
    sites: dict[str, PollTarget[SiteView]] = field(default_factory=dict)

    async def poll(self, breakers: Mapping[str, Breaker]) -> None:
        """Begin every poll that is due, and wait for them. A banned site that did not answer is left out."""
        due: list[PollTarget[OverlayView] | PollTarget[SiteView]] = [self.overlay]
        due += [w for name, w in self.sites.items() if not self._skips(w, breakers.get(name))]
        tasks: list[asyncio.Task[None]] = []
        for target in due:
            if target.in_flight is None or target.in_flight.done():
                target.in_flight = self.group.create_task(target.once(self.clock), name=f"poll:{target.name}")
            tasks.append(target.in_flight)
        if tasks:
            await asyncio.wait(tasks, timeout=TICK_WAIT_S)

    def close(self) -> None:
        """Break off what is in flight."""
        self.overlay.close()
        for target in self.sites.values():
            target.close()

    def _skips(self, target: PollTarget[SiteView], breaker: Breaker | None) -> bool:
        return (
            breaker is not None
            and breaker.state is BreakerState.BANNED
            and target.fault is not None
            and self.clock.now() < breaker.until
        )

    def overlay_reading(self) -> PolledOverlay:
        return PolledOverlay(self.overlay.view, self.overlay.fault)

    def site_readings(self) -> dict[str, PolledSite]:
        return {name: PolledSite(name, w.view, w.fault) for name, w in self.sites.items()}
