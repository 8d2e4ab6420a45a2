"""The interfaces of sites and overlays, and the four errors that their adapters may raise.

An adapter is a plain class with these methods; nothing is inherited. It is found by its entry point
(groups ``provisioner.sites`` and ``provisioner.overlays``) and built as ``cls(name, config, types,
controller)`` (site) or ``cls(config, controller)`` (overlay). ``config`` is an instance of the
class attribute ``Config``, a pydantic model with ``extra="forbid"``. Its class attribute
``interface_version`` is the :data:`INTERFACE_VERSION` that it was written for (1 without it).

``async with`` connects and disconnects. A site that cannot be connected is tried again at each
poll, and it may be left in another task than it was entered in. Calls overlap: a poll with an
order, a stop with a start. What an adapter may offer beyond these methods is a protocol of its own,
``Supports...``. Its caller asks by ``isinstance`` whether the adapter, or its options, has the
method.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, Self, runtime_checkable

from provisioner import model
from provisioner.model import (
    DroneId,
    DroneType,
    FaultKind,
    OrderResults,
    SitePolicy,
    SiteView,
    StartOrder,
    StopOrder,
)
from provisioner.values import frozen

INTERFACE_VERSION = 1
"""Version of the interfaces: it changes with each change that an adapter of before would not survive."""


OBSERVING: ContextVar[bool] = ContextVar("observing", default=False)
"""True in the polls of a standby: they change nothing and begin no housekeeping."""


class AdapterError(Exception):
    """Base of the four errors of adapters. ``kind`` decides how the controller backs off."""

    kind = FaultKind.UNKNOWN

    def __init__(self, message: str, kind: FaultKind | None = None) -> None:
        super().__init__(message)
        if kind is not None:
            self.kind = kind


class UnavailableError(AdapterError):
    """The site or overlay does not answer, and nothing was done: try later."""

    kind = FaultKind.DOWN


class RejectedError(AdapterError):
    """The orders were rejected (quota, capacity, bad request), and nothing was done."""

    kind = FaultKind.CAPACITY


class AuthError(AdapterError):
    """The credentials were rejected: a person has to act."""

    kind = FaultKind.DENIED


class OutcomeUnknownError(AdapterError):
    """The order may have been carried out."""


class AlwaysOpen:
    """Base of what has nothing to open or to close."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


class Site(Protocol):
    """A site that can run drones."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def poll(self) -> SiteView:
        """Return one listing of everything that carries this controller's tag. One that may be partial is an error.

        It includes every drone whose start was answered with ``OrderOutcome.OK`` before the call,
        ended drones for as long as the site remembers them, and free capacity where the site
        reports it.
        """
        ...

    async def start(self, orders: Sequence[StartOrder]) -> OrderResults:
        """Start drones, one result per order. Idempotent under the drone id. Raising concerns the whole batch."""
        ...

    async def stop(self, orders: Sequence[StopOrder]) -> OrderResults:
        """Stop drones with notice and grace (at once with ``kill``).

        Return when that is requested, not when they are gone. A drone that is already gone is
        ``OrderOutcome.OK``.
        """
        ...


@frozen
class AuditFinding:
    """A gap between a site's running configuration and the operator's policy."""

    node: str
    dimension: str
    """``cpus``, ``memory``, ``disk``, ``preemption``, ``grace``, ..."""
    message: str
    """The difference, the setting that was expected, and the remedy."""


@runtime_checkable
class SupportsAudit(Protocol):
    """A site that can report where it does not enforce the policy (``provisioner check --live``). Optional."""

    async def audit(self, policy: SitePolicy) -> Sequence[AuditFinding]:
        """Return every gap that can be seen from here; nothing is changed. The four errors as in ``poll``."""
        ...


@runtime_checkable
class SupportsProbe(Protocol):
    """An overlay that can report what would fail later (``provisioner check --live``). Optional."""

    async def probe(self, *, here: bool) -> Sequence[AuditFinding]:
        """Return every gap that can be found without changing anything. The four errors as in ``poll``.

        ``here``: drones will also run on this host, as the class of a site's adapter says by
        ``on_this_host``.
        """
        ...


@runtime_checkable
class SupportsForget(Protocol):
    """An overlay that can remove the slots of drones that died without leaving it. Optional.

    Without it jobs may be matched to the slot of a dead drone until the pool forgets that by
    itself.
    """

    async def forget(self, ended_at: Mapping[DroneId, float]) -> OrderResults:
        """Remove the slots of drones that their sites reported as ended, one result each.

        ``ended_at``: time of that report on the host's wall clock, by drone. A slot that the pool
        has heard from since then belongs to a drone that lives, and stays. The four errors as in
        ``poll``.
        """
        ...


@runtime_checkable
class SupportsOtherDrones(Protocol):
    """An overlay that can list the drones of other systems in the pool (``provisioner run --shadow``). Optional."""

    async def other_drones(self) -> Sequence[model.OtherDrones]:
        """Return the GPU drones that are not ours; nothing is changed. The four errors as in ``poll``."""
        ...


@runtime_checkable
class SupportsPastRuns(Protocol):
    """An overlay that can list runs from before those of its polls. Optional."""

    async def past_runs(self, since: float) -> tuple[Sequence[model.CompletedJob], Sequence[str]]:
        """Return the runs in drones of this controller that ended after ``since``, and what is missing.

        It may take minutes, during which polls are answered. The four errors as in ``poll``.
        """
        ...


@runtime_checkable
class SupportsRenderBlocking(Protocol):
    """A site adapter that can print the site's side of blocking (``provisioner render blocking``). Optional.

    Called on an adapter that was built and not entered: it must not call the site.
    """

    def render_blocking(self, policy: SitePolicy) -> str:
        """Return configuration in the site's language that enforces ``policy.blocking`` and the owner's priority."""
        ...


@runtime_checkable
class SupportsRenderAccess(Protocol):
    """A site adapter that can print the rights that it needs (``provisioner render kubernetes``). Optional.

    Called on an adapter that was built and not entered: it must not call the site.
    """

    def render_access(self, policy: SitePolicy) -> str:
        """Return objects in the site's language: accounts, rights, limits."""
        ...


@runtime_checkable
class SupportsRenderAccounting(Protocol):
    """An overlay that can print what accounting systems need of its pool (``provisioner render accounting``). Optional.

    Called on an adapter that was built and not entered: it must not call the pool.
    """

    def render_accounting(self, types: Sequence[DroneType]) -> Mapping[str, str]:
        """Return files by name: configuration of the pool and of exporters, and the meaning of what they record."""
        ...


@runtime_checkable
class SupportsClaim(Protocol):
    """A site at which controllers of one name can see each other. Optional."""

    async def claim(self, birth: str) -> Sequence[str]:
        """Claim the site for this process and its record, and return the others that hold a claim under our name.

        A claim ends with its process. Called before each tick.
        """
        ...


@runtime_checkable
class SupportsConsoleOutput(Protocol):
    """A site that can report the last output of a drone (a virtual machine's console). Optional."""

    def console_output(self) -> Mapping[DroneId, str]:
        """Return the output found since the last call, by drone.

        It is text for people, without secrets, a page or two at most. Called after each poll; it
        must not call the site.
        """
        ...


@runtime_checkable
class SupportsCredentials(Protocol):
    """Options that know more of their credentials than each Secret shows; or an adapter, after a login. Optional."""

    def credentials(self) -> Iterable[model.Credential]:
        """Return what is known of them now, without a secret. It is called at each poll and must not call the site."""
        ...


class Pool(Protocol):
    """A pool that drones join: the overlay, or the service pool."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def drain(
        self, drone_ids: Sequence[DroneId], mode: model.DrainMode, reason: str
    ) -> OrderResults:
        """Ask drones to leave the pool (or, with ``DrainMode.RESUME``, to stay), one result each."""
        ...

    async def bootstrap(self, order: StartOrder) -> model.Bootstrap:
        """Return what the drone needs to join, created as late as possible."""
        ...


class Overlay(Pool, Protocol):
    """The pool that jobs wait in and drones for jobs join."""

    async def poll(self, types: Sequence[DroneType]) -> model.OverlayView:
        """Return job classes (with the ``types`` that their own requirements refuse) and slots, taken at one time."""
        ...


class ServicePool(Pool, Protocol):
    """The pool that drones with inference servers join."""

    job_environment: Mapping[str, str]
    """Environment of drones without a server, from which their jobs get the address of a service."""

    async def poll(
        self, drones: Iterable[model.Drone], types: Sequence[DroneType]
    ) -> model.ServicesView:
        """Return the servers among the live ``drones`` that are ready, and the demand for the services of ``types``."""
        ...


OptionFinding = tuple[tuple[str | int, ...], str]
"""Keys that lead to an option, and what is wrong with it, with the remedy."""


@runtime_checkable
class SupportsTypeConflicts(Protocol):
    """Options of a site that must agree with its drone types. Optional, as all protocols for options.

    Methods of options are quick and do not call the site. They run at every start and by ``check``.
    """

    def type_conflicts(self, types: Sequence[DroneType]) -> Iterable[OptionFinding]:
        """Return what does not go together; keys begin at the site's file: ``("types", name, "gpus")``."""
        ...


@runtime_checkable
class SupportsTypesTooLarge(Protocol):
    """Options of a site whose drones run on this host."""

    def types_too_large(self, types: Sequence[DroneType]) -> Iterable[OptionFinding]:
        """Return types that this host can never hold; keys begin at the site's file."""
        ...


@runtime_checkable
class SupportsHostWarnings(Protocol):
    """Options that need something on this host, such as a program."""

    def host_warnings(self) -> Iterable[OptionFinding]:
        """Return what does not work on this host; keys begin below ``options``."""
        ...


@runtime_checkable
class SupportsDroneAccount(Protocol):
    """Options of a site that decide or know the account of its drones."""

    def drone_account(self) -> tuple[str, str | None]:
        """Return the key that sets the account of drones, and its name on the controller's host.

        Empty is the controller's own account; None is one that is not on this host. An account that
        can read a secret of the controller is an error unless the options have ``same_account: true``.
        """
        ...


@runtime_checkable
class SupportsKeptLife(Protocol):
    """Options of a site whose drones live shorter than their walltime, beside the grace."""

    def kept_life_s(self, walltime_s: float, grace_s: float) -> float:
        """Return by how many seconds."""
        ...


@runtime_checkable
class SupportsOneUser(Protocol):
    """Options of an overlay that may have one user alone."""

    def runs_jobs_of_others(self) -> bool:
        """Return True if another account may submit jobs."""
        ...


class SiteFactory(Protocol):
    """The class of a site adapter, as the loader sees it."""

    Config: type[Any]

    def __call__(
        self, name: str, config: Any, types: Sequence[DroneType], controller: str
    ) -> Site: ...


class OverlayFactory(Protocol):
    """The class of an overlay adapter, as the loader sees it."""

    Config: type[Any]

    def __call__(self, config: Any, controller: str) -> Overlay: ...
