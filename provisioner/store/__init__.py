"""The record: drones and their history, plans with reasons, breakers, operator requests, events, the newest views.

Two sides. :class:`Store` is the controller's: it writes, and one controller at a time holds it. :class:`Reader` is the
operator's: it reads beside a running controller or without one, and its only write is what an operator asks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from provisioner.estimates import NO_ESTIMATES, Estimates, EstimateSamples
from provisioner.model import (
    Breaker,
    CompletedJob,
    DrainMode,
    Drone,
    DroneId,
    DroneState,
    DroneType,
    OperatorRequest,
    OwnerClaimBackoff,
    Plan,
    Policy,
    PolledOverlay,
    PolledSite,
    RequestKind,
    Snapshot,
    StateChange,
)
from provisioner.reasons import Reason


class StoreError(Exception):
    """The record cannot be used; the message says why and what to do."""


class StoreHeld(StoreError):
    """Another controller holds the store; the message says which process, where, since when."""


class StoreBroken(StoreError):
    """The store is corrupted, of a newer schema, or cannot be written; the message names the repair."""


class ExperienceUnread(StoreError):
    """What was learned is on record and cannot be read; the message says why, and what to do who wants it back."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One step in a drone's life."""

    drone_id: DroneId
    at: float
    was: DroneState | None
    state: DroneState
    reason: Reason
    tick: int


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth a line that is not a drone's step: a reload, a clock step, a view lost and found."""

    id: int
    at: float
    name: str
    fields: Mapping[str, str | int | float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds the store."""

    pid: int
    host: str
    since: float
    process: str = ""
    """Mark that distinguishes the process from any other with this pid, also in another container; empty if unknown."""


@dataclass(frozen=True, slots=True)
class Views:
    """What the controller saw and knew at its newest tick."""

    tick: int
    at: float
    policy: Policy
    types: tuple[DroneType, ...]
    overlay: PolledOverlay
    sites: Mapping[str, PolledSite]
    estimates: Estimates = NO_ESTIMATES


@dataclass(frozen=True, slots=True)
class Forget:
    """What an operator wants forgotten of what was learned."""

    id: int
    at: float
    what: str
    """``all``, ``user:NAME`` or ``site:NAME``."""
    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class Hazard:
    """How often a site, or one drone type of it, took places of drones back since a time, and what that cost."""

    scope: str
    """``<site>`` or ``<site>/<type>``, as of breakers."""
    drones: int
    """That ran for some of the time."""
    run_s: float
    """How long they ran, all together, within the time."""
    preempted: int
    life_mean_s: float | None
    """Of the preempted, from start to end; None if there were none."""
    life_median_s: float | None
    grace_mean_s: float | None
    """From a notice to the end, of all that ended after one; None if there were none."""
    lost_gpu_s: float
    """Jobs' work that GPU drones' ends have cost, in GPU-seconds."""
    lost_cpu_s: float
    """The same of CPU drones, in CPU-seconds."""
    lost_jobs: int

    @property
    def per_1000_h(self) -> float | None:
        """Preemptions per 1000 hours of drones; None if all of them together ran for less than a second."""
        return self.preempted * 3_600_000.0 / self.run_s if self.run_s >= 1.0 else None


class Store(Protocol):
    """The controller's side. Entering opens and locks it (:class:`StoreHeld`, :class:`StoreBroken`).

    The live drones and breakers are kept in memory as well: the properties cost nothing, and change only when a write
    has been committed.
    """

    @property
    def birth(self) -> str:
        """Four random characters ``[a-z0-9]``, chosen when the store was made: keeps ids of a lost store apart."""
        ...

    @property
    def drones(self) -> Mapping[DroneId, Drone]:
        """Recorded and not ended."""
        ...

    @property
    def breakers(self) -> Mapping[str, Breaker]: ...

    @property
    def patience(self) -> Mapping[str, OwnerClaimBackoff]:
        """Return the patience with waiting owner's jobs that the newest plan recorded, by site."""

    @property
    def next_serial(self) -> int:
        """The first serial number never used in a drone id, whatever crashed in between."""
        ...

    @property
    def tick(self) -> int:
        """Number of the last recorded tick; 0 in a new store."""
        ...

    @property
    def recorded_at(self) -> float:
        """Return the time of the newest recorded tick, on the controller's clock; 0 in a new store."""
        ...

    @property
    def recorded_drift_s(self) -> float:
        """Return the lead of the host's wall clock over that, in seconds."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def requests(self) -> tuple[OperatorRequest, ...]:
        """Operators' requests that no plan has taken up yet."""
        ...

    async def record(self, plan: Plan, snapshot: Snapshot) -> None:
        """Commit a plan before it is acted on, in one transaction and durably: moves, intents, drains, stops,
        breakers, requests taken up, refusals, and the snapshot's views. Raises :class:`StoreBroken` if it cannot (a
        full disk): then nothing of it is recorded and nothing may be acted on."""
        ...

    async def settle(
        self, tick: int, moves: Sequence[StateChange], breakers: Sequence[Breaker], *, set_to: float | None = None
    ) -> None:
        """Commit what came of a plan: receipts as moves, breakers changed by them. Or, with ``set_to``, that the
        controller's clock was set to this time, which the host's wall clock tells as well, and times were moved."""
        ...

    async def event(self, at: float, name: str, fields: Mapping[str, str | int | float]) -> None: ...

    async def keep(self, at: float, words: Mapping[DroneId, str]) -> None:
        """Commit what drones said last, for as long as they are on record."""
        ...

    async def completed(self, completions: Sequence[CompletedJob]) -> None:
        """Commit jobs that were done. One that is on record already (by job id and end) stays as it is."""
        ...

    async def experience(self) -> EstimateSamples | None:
        """What :meth:`learn` committed last. Raises :class:`ExperienceUnread` if it cannot be made out."""
        ...

    async def learn(self, experience: EstimateSamples, forgotten: Sequence[int] = ()) -> None:
        """Commit what was learned, in the place of what was committed before. ``forgotten``: the numbers of what
        operators wanted forgotten and is not in it any more."""
        ...

    async def forgets(self) -> tuple[Forget, ...]:
        """What operators want forgotten and is not yet, in the order in which they asked."""
        ...

    async def ended(self, drone_ids: Sequence[DroneId]) -> Mapping[DroneId, DroneState]:
        """How drones on record ended, of those asked for that did."""
        ...

    async def prune(self, now: float) -> bool:
        """Forget what is older than the retention limit: ended drones with their history, plans, events, jobs that
        were done. It does a bounded part of it: True if there is more to forget, at the next tick."""
        ...


class Reader(Protocol):
    """The operator's side: synchronous, quick, never blocks the controller."""

    def holder(self) -> Holder | None:
        """The controller that runs now, if one does."""
        ...

    def drones(
        self,
        *,
        ended: bool | None = False,
        sites: Sequence[str] = (),
        states: Sequence[DroneState] = (),
        types: Sequence[str] = (),
        nodes: Sequence[str] = (),
        limit: int | None = None,
    ) -> list[Drone]:
        """Drones by request time, newest last. ``ended``: False only live ones, True only ended ones, None both.
        ``nodes`` by whole name or by the part before the first dot."""
        ...

    def drone(self, drone_id: DroneId) -> Drone | None: ...

    def find(self, any_id: str) -> list[DroneId]:
        """Drones that an id of any kind means: our drone id (or a unique prefix or its serial), the site's remote id,
        the overlay's slot name, the site's name of its place."""
        ...

    def history(self, drone_id: DroneId) -> list[Transition]: ...

    def last_words(self, drone_id: DroneId) -> str:
        """What it said last, as its site told; empty if it did not."""
        ...

    def hazards(self, since: float, now: float) -> list[Hazard]:
        """Per site and per drone type: preemptions, time run and work lost from ``since`` to ``now``, as far as the
        drones of that time are still on record. By scope."""
        ...

    def completions(self, since: float, until: float) -> list[CompletedJob]:
        """Jobs that ended from ``since`` on and before ``until``, in the order of their ends."""
        ...

    def experience(self) -> EstimateSamples | None:
        """What was learned, as the controller kept it last. Raises :class:`ExperienceUnread`."""
        ...

    def forgets(self) -> tuple[Forget, ...]:
        """What is to be forgotten and is not yet."""
        ...

    def plans(self, *, limit: int = 20, since: float = 0.0, acting: bool = False) -> list[Plan]:
        """Newest last. ``acting``: only those that did something."""
        ...

    def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]: ...

    def transitions(self, *, since: float = 0.0, after: int = 0, limit: int = 1000) -> list[tuple[int, Transition]]:
        """Steps of all drones with their sequence numbers, for following."""
        ...

    def views(self) -> Views | None: ...

    def breakers(self) -> Mapping[str, Breaker]: ...

    def snapshot(self, tick: int | None = None) -> Snapshot | None:
        """The snapshot of a recorded acting tick, as long as it is kept; None: as the next tick would begin, put
        together from the newest views and the drones on record."""
        ...

    def kept_snapshots(self) -> list[int]: ...

    def ask(
        self,
        kind: RequestKind,
        drone_ids: Sequence[DroneId],
        *,
        reason: str,
        by: str,
        at: float,
        mode: DrainMode = DrainMode.PEACEFUL,
    ) -> int:
        """Record an operator's request for the controller's next tick; its number."""
        ...

    def request_done(self, request: int) -> bool: ...

    def forget(self, what: str, *, reason: str, by: str, at: float) -> None:
        """Record that something of what was learned is to be forgotten: within a minute, or when a controller runs."""
        ...
