"""The seams: what a site and an overlay must offer, and the four errors they may raise.

An adapter is a plain class with these methods; nothing is inherited. It is found by its entry point (groups
``provisioner.sites`` and ``provisioner.overlays``) and built as ``cls(name, config, types, controller)`` (site) or
``cls(config, controller)`` (overlay), where ``config`` is an instance of the class attribute ``Config``, a pydantic
model with ``extra="forbid"``. ``async with`` connects and disconnects; a site that cannot be connected is tried again
at each look, and it may be left in another task than it was entered in. Calls overlap: a look with an order, a stop
with a start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

from provisioner.model import (
    Bootstrap,
    DrainMode,
    DroneId,
    DroneType,
    FaultKind,
    OrderResult,
    OverlayView,
    SitePolicy,
    SiteView,
    StartOrder,
    StopOrder,
)


class AdapterError(Exception):
    """Base of the four errors that cross a seam. ``kind`` decides how the controller backs off."""

    kind = FaultKind.UNKNOWN

    def __init__(self, message: str, kind: FaultKind | None = None) -> None:
        super().__init__(message)
        if kind is not None:
            self.kind = kind


class UnavailableError(AdapterError):
    """It does not answer, and nothing was done: try later."""

    kind = FaultKind.DOWN


class RejectedError(AdapterError):
    """It answered no to these orders (quota, capacity, bad request), and nothing was done."""

    kind = FaultKind.CAPACITY


class AuthError(AdapterError):
    """It does not accept our credentials: tell a human."""

    kind = FaultKind.DENIED


class OutcomeUnknownError(AdapterError):
    """It may have happened."""

    kind = FaultKind.UNKNOWN


class Site(Protocol):
    """A place where drones can run."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def poll(self) -> SiteView:
        """One listing of everything that carries this controller's tag, ended drones included for as long as the
        site remembers them, with free capacity where the site tells. A listing that may be partial is an error."""
        ...

    async def start(self, orders: Sequence[StartOrder]) -> Sequence[OrderResult]:
        """Start drones, one receipt per order. Idempotent under the drone id. Raising concerns the whole batch."""
        ...

    async def stop(self, orders: Sequence[StopOrder]) -> Sequence[OrderResult]:
        """End drones with notice and grace (at once with ``kill``); returns when asked for, not when gone.
        Already gone is ``Answer.OK``."""
        ...


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """Where a site's running configuration does not do what the operator's policy says."""

    node: str
    dimension: str
    """``cpus``, ``memory``, ``disk``, ``preemption``, ``grace``, ..."""
    message: str
    """What is so, what was wanted, and the repair."""


@runtime_checkable
class SupportsAudit(Protocol):
    """A site that can say where it does not enforce the policy (``provisioner check --live``). Optional."""

    async def audit(self, policy: SitePolicy) -> Sequence[AuditFinding]:
        """Every gap that can be seen from here; nothing is changed. The four errors as in ``poll``."""
        ...


@runtime_checkable
class SupportsProbe(Protocol):
    """An overlay that can say what would fail later (``provisioner check --live``). Optional."""

    async def probe(self, *, here: bool) -> Sequence[AuditFinding]:
        """Return every gap that can be found without changing anything. ``here``: drones will also run on this host, as
        the class of a site's adapter tells by ``on_this_host``. The four errors as in ``poll``."""
        ...


@runtime_checkable
class SupportsForget(Protocol):
    """An overlay that can remove the slots of drones that died without leaving it. Optional: without it jobs may be
    matched to the slot of a dead drone until the pool forgets that by itself."""

    async def forget(self, ended_at: Mapping[DroneId, float]) -> Sequence[OrderResult]:
        """Remove what the pool still lists of drones that their sites reported as ended, one receipt each.
        ``ended_at``: time of that report on the host's wall clock, by drone. A slot that the pool has heard from since
        then belongs to a drone that lives, and stays. The four errors as in ``poll``."""
        ...


@runtime_checkable
class SupportsRenderBlocking(Protocol):
    """A site adapter that can print the site's side of blocking (``provisioner render blocking``). Optional.
    Called on an adapter that was built and not entered: it must not call the site."""

    def render_blocking(self, policy: SitePolicy) -> str:
        """Configuration text, in the site's own language, that enforces ``policy.blocking`` and owner's priority."""
        ...


@runtime_checkable
class SupportsConsoleOutput(Protocol):
    """A site that can say what a drone said last (a virtual machine's console). Optional."""

    def last_words(self) -> Mapping[DroneId, str]:
        """By drone, what was found out since this was last called: text for people, without secrets, a page or two at
        most. It is asked after each look and must not call the site."""
        ...


class Overlay(Protocol):
    """The pool where jobs wait and drones join."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def poll(self, types: Sequence[DroneType]) -> OverlayView:
        """Job classes (with the ``types`` that their own requirements refuse) and slots, taken at one time."""
        ...

    async def drain(self, drone_ids: Sequence[DroneId], mode: DrainMode, reason: str) -> Sequence[OrderResult]:
        """Ask drones to leave the pool (or, ``DrainMode.RESUME``, to stay), one receipt each."""
        ...

    async def bootstrap(self, order: StartOrder) -> Bootstrap:
        """What the drone needs to join, minted as late as possible."""
        ...


class SiteFactory(Protocol):
    """A site adapter as the loader sees it."""

    Config: type[Any]

    def __call__(self, name: str, config: Any, types: Sequence[DroneType], controller: str) -> Site: ...


class OverlayFactory(Protocol):
    Config: type[Any]

    def __call__(self, config: Any, controller: str) -> Overlay: ...
