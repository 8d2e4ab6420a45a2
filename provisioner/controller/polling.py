"""Calls of adapters, and the polling of the overlay and all sites at once.

Each call has its own deadline and none can hold up another; errors are data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import structlog
import tenacity

from provisioner import model
from provisioner.controller.clock import Clock
from provisioner.controller.compute_thread import ComputeThread
from provisioner.controller.sanitize import Sanitizer, limited_text
from provisioner.interfaces import (
    AdapterError,
    Site,
    UnavailableError,
)
from provisioner.model import (
    Credential,
    Fault,
    FaultKind,
    OrderResults,
    OverlayView,
    PolledOverlay,
    PolledServices,
    PolledSite,
    ServicesView,
    SiteView,
)
from provisioner.values import T, define, factory

log = structlog.get_logger()

TICK_WAIT_S = 5.0
"""Longest time that a tick waits for polls; the answer of one that takes longer serves a later tick."""
FIRST_POLL_WAIT_S = 2.0
"""Longest time that the first tick waits for polls: owners may wait for it. The next one follows soon."""
SERVICES_DEADLINE_S = 20.0
POLL_ATTEMPTS = 2
RETRY_AFTER_S = 0.2

View = TypeVar("View", SiteView, OverlayView, ServicesView)


async def within(
    deadline_s: float,
    call: Awaitable[T],
    limit: Callable[[float], AbstractAsyncContextManager[object]] = asyncio.timeout,
) -> T:
    """Return the answer of ``call``. Raises TimeoutError after ``deadline_s``, else what the adapter raises.

    ``limit`` returns what limits the call: a leader's calls end with its lease.

    It never raises a cancellation that the adapter caused: that would be taken for ours and end the
    controller.
    """
    try:
        async with limit(deadline_s):
            return await call
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("the adapter let a cancelled call through") from error


def fault_of(error: BaseException, at: float) -> Fault:
    """Return an error as data: adapter errors by their kind, a deadline as unavailable, all else as unknown."""
    match error:
        case AdapterError():
            return Fault(error.kind, limited_text(str(error)) or type(error).__name__, at)
        case TimeoutError():
            return Fault(FaultKind.DOWN, "no answer within its deadline", at)
        case _:
            return Fault(FaultKind.UNKNOWN, limited_text(f"{type(error).__name__}: {error}"), at)


def _may_pass(error: BaseException) -> bool:
    """Return whether another attempt may succeed at once: no reply, and nobody who asked to wait."""
    return isinstance(error, UnavailableError) and error.kind is FaultKind.DOWN


@dataclass(slots=True, eq=False)
class LazySite:
    """A :class:`~provisioner.interfaces.Site` that is connected by the first poll that succeeds in it.

    A site that is down when the controller starts must not keep the controller from the others.
    Optional methods are those of the adapter (:func:`adapter_of`), which may not be connected yet.
    """

    site: Site
    _stack: AsyncExitStack | None = None
    _opening: asyncio.Lock = factory(asyncio.Lock)

    async def open(self) -> None:
        """Enter the adapter. Raises what it raises; the next call tries again."""
        async with self._opening:
            if self._stack is None:
                stack = AsyncExitStack()
                await stack.enter_async_context(self.site)
                self._stack = stack

    async def close(self) -> None:
        stack = self._stack
        self._stack = None
        if stack is not None:
            await stack.aclose()

    async def poll(self) -> SiteView:
        await self.open()
        return await self.site.poll()

    async def start(self, orders: Sequence[model.StartOrder]) -> OrderResults:
        self._must_be_open()
        return await self.site.start(orders)

    async def stop(self, orders: Sequence[model.StopOrder]) -> OrderResults:
        self._must_be_open()
        return await self.site.stop(orders)

    def _must_be_open(self) -> None:
        if self._stack is None:
            raise UnavailableError("it could not be connected yet")

    async def __aenter__(self) -> LazySite:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def adapter_of(site: Site) -> Site:
    """Return the adapter of a site, which has its optional methods."""
    return site.site if isinstance(site, LazySite) else site


_POLLED_KINDS = ("site", "overlay", "services")


@define
class PollTarget(Generic[View]):
    """The newest good view of one site or of a pool, and what went wrong since."""

    name: str
    poll: Callable[[], Awaitable[View]]
    deadline_s: float
    view: View | None = None
    fault: Fault | None = None
    in_flight: asyncio.Task[None] | None = None
    sanitizer: Sanitizer = factory(Sanitizer)
    kind: str = "site"
    """``site``, ``overlay`` or ``services``, for the log."""
    took_s: float = 0.0
    """Duration of the newest poll that ended, by the event loop."""
    _failure: UnavailableError | None = None
    """Error of the newest failed attempt of the poll under way."""

    async def once(self, clock: Clock, compute: ComputeThread) -> None:
        """Poll within one deadline, and note the view or the fault. Never raises."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        began = clock.now()
        before = self.fault
        kind = _POLLED_KINDS.index(self.kind)
        try:
            polled = await within(self.deadline_s, self._polled())
            view = await compute.run(self.sanitizer.sanitized, polled, began, clock.drift_s())
        except Exception as error:
            # the deadline says less than what an earlier attempt failed for
            timed_out = isinstance(error, TimeoutError)
            cause = self._failure if timed_out else None
            self.fault = fault = fault_of(cause or error, began)
            if before is None or before.message != fault.message:
                why = {"fault": fault.kind.value, "message": fault.message}
                log.warning(
                    ("site.poll_failed", "overlay.poll_failed", "services.poll_failed")[kind],
                    view=self.name,
                    **why,
                )
        else:
            self.view = view
            self.fault = None
            if before is not None:
                away_s = round(clock.now() - before.at, 1)
                log.info(
                    ("site.recovered", "overlay.recovered", "services.recovered")[kind],
                    view=self.name,
                    away_s=away_s,
                )
        self.took_s = loop.time() - started

    async def _polled(self) -> View:
        """Poll; again if the service does not answer. Adapters do not retry, and orders are never repeated."""
        self._failure = None
        attempts = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_may_pass),
            stop=tenacity.stop_after_attempt(POLL_ATTEMPTS),
            wait=tenacity.wait_fixed(RETRY_AFTER_S),
            reraise=True,
        )
        return await attempts(self._attempt)

    async def _attempt(self) -> View:
        try:
            return await self.poll()
        except UnavailableError as error:
            self._failure = error
            raise

    def close(self) -> None:
        """Break off what is in flight."""
        if self.in_flight is not None:
            self.in_flight.cancel()


CredentialSource = Callable[[], Iterable[Credential]]


@define
class CredentialReader:
    """The credentials of overlay, sites and web service, read anew at each tick in a thread: files may be far away."""

    sources: Mapping[str, Sequence[CredentialSource]] = factory(dict)
    """Functions that return them, by their user: ``overlay``, ``site:<name>``, ``web``."""
    known: tuple[Credential, ...] = ()
    renewed: frozenset[str] = frozenset()
    """Users that have another one, or one that can be used again, since the last tick."""
    _reading: asyncio.Task[None] | None = None

    async def refresh(self, group: asyncio.TaskGroup, now: float) -> None:
        """Read all, but wait no longer than a tick may for polls. ``now``: by the host's wall clock."""
        self.renewed = frozenset()
        if not self.sources:
            return
        if self._reading is None or self._reading.done():
            self._reading = group.create_task(self._read(now), name="credentials")
        await asyncio.wait([self._reading], timeout=TICK_WAIT_S)

    async def _read(self, now: float) -> None:
        before = {(each.used_by, each.name): each for each in self.known}
        self.known = await asyncio.to_thread(lambda: tuple(self._all()))
        changed = set()
        for each in self.known:
            old = before.get((each.used_by, each.name))
            if old is None or each.is_dead(now):
                continue
            if old.is_dead(now) or old.fingerprint != each.fingerprint:
                changed.add(each.used_by)
        self.renewed = frozenset(changed)

    def _all(self) -> Iterator[Credential]:
        for used_by, sources in self.sources.items():
            for source in sources:
                try:
                    yield from (replace(each, used_by=used_by) for each in source())
                except Exception as error:  # an adapter's own code may raise anything
                    why = limited_text(f"{type(error).__name__}: {error}")
                    yield Credential("credentials", used_by, problem=why, used_by=used_by)

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()


@define
class Poller:
    """All poll targets. Tasks live in the given group, so none outlives the service."""

    group: asyncio.TaskGroup
    clock: Clock
    compute: ComputeThread
    overlay: PollTarget[OverlayView]
    sites: dict[str, PollTarget[SiteView]] = factory(dict)
    services: PollTarget[ServicesView] | None = None
    first_wait_s: float = TICK_WAIT_S
    """Longest wait for the first polls of all."""
    credentials: CredentialReader = factory(CredentialReader)

    @property
    def unanswered(self) -> bool:
        """Return True while a first poll is under way."""
        sites = any(target.view is None and target.fault is None for target in self.sites.values())
        return sites or (self.overlay.view is None and self.overlay.fault is None)

    async def poll(self, breakers: Mapping[model.Scope, model.Breaker]) -> None:
        """Begin every poll that is due, and wait for those begun now. A banned site that did not answer is left out.

        One with a renewed credential is polled in spite of its ban. A target whose last poll took
        longer than a tick waits is not waited for, until it answers in time again: it would slow
        every tick.
        """
        await self.credentials.refresh(self.group, self.clock.now() + self.clock.drift_s())
        now = self.clock.now()
        banned = model.BreakerState.BANNED
        rests = {
            str(scope)
            for scope, breaker in breakers.items()
            if breaker.state is banned and now < breaker.until
        }
        rests -= {user.removeprefix("site:") for user in self.credentials.renewed}
        due: list[PollTarget[OverlayView] | PollTarget[ServicesView] | PollTarget[SiteView]]
        due = [self.overlay, *filter(None, [self.services])]
        due += [
            target
            for name, target in self.sites.items()
            if name not in rests or target.fault is None
        ]
        first = self.overlay.in_flight is None
        begun: list[asyncio.Task[None]] = []
        for target in due:
            if target.in_flight is None or target.in_flight.done():
                target.in_flight = self.group.create_task(
                    target.once(self.clock, self.compute), name=f"poll:{target.name}"
                )
                if target.took_s < TICK_WAIT_S:
                    begun.append(target.in_flight)
        if begun:
            await asyncio.wait(begun, timeout=self.first_wait_s if first else TICK_WAIT_S)

    def close(self) -> None:
        """Break off what is in flight."""
        self.credentials.close()
        self.overlay.close()
        if self.services is not None:
            self.services.close()
        for target in self.sites.values():
            target.close()

    def overlay_reading(self) -> PolledOverlay:
        return PolledOverlay(self.overlay.view, self.overlay.fault)

    def services_reading(self) -> PolledServices:
        target = self.services
        return PolledServices(target.view, target.fault) if target else PolledServices()

    def site_readings(self) -> dict[str, PolledSite]:
        return {name: PolledSite(name, w.view, w.fault) for name, w in self.sites.items()}
