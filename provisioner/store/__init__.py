"""The record of the controller: drones and their history, plans with reasons, breakers, requests, events, newest views.

:class:`Store` is the controller's side: it writes, and one controller at a time holds it. The operator's side is
:class:`provisioner.store.reader.Reader`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from provisioner.estimates import NO_ESTIMATES, Estimates, EstimateSamples
from provisioner.model import (
    Breaker,
    CompletedJob,
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
    Snapshot,
    StateChange,
)
from provisioner.reasons import Reason


class StoreError(Exception):
    """The store cannot be used; the message says why and what to do."""


class StoreHeldError(StoreError):
    """Another controller holds the store; the message says which process, where, since when."""


class StoreUnusableError(StoreError):
    """The store is damaged, of a newer schema, or cannot be written; the message names the repair."""


class EstimatesUnreadableError(StoreError):
    """The recorded estimates cannot be read; the message says why, and how to get them back."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of a drone's state."""

    drone_id: DroneId
    at: float
    was: DroneState | None
    state: DroneState
    reason: Reason
    tick: int


@dataclass(frozen=True, slots=True)
class Event:
    """A recorded log event that is no transition of a drone: a reload, a clock step, a rejected plan."""

    id: int
    at: float
    name: str
    fields: Mapping[str, str | int | float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds the store."""

    pid: int
    host: str
    since: float
    process: str = ""
    """Mark that distinguishes the process from any other with this pid, also in another container; empty if unknown."""


@dataclass(frozen=True, slots=True)
class Views:
    """The views and estimates of the controller at its newest tick."""

    tick: int
    at: float
    policy: Policy
    types: tuple[DroneType, ...]
    overlay: PolledOverlay
    sites: Mapping[str, PolledSite]
    estimates: Estimates = NO_ESTIMATES


@dataclass(frozen=True, slots=True)
class EstimateReset:
    """The request of an operator to forget estimates."""

    id: int
    at: float
    what: str
    """``all``, ``user:NAME`` or ``site:NAME``."""
    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class Hazard:
    """Preemptions at a site, or of one of its drone types, in a period, and their cost."""

    scope: str
    """``<site>`` or ``<site>/<type>``, as of breakers."""
    drones: int
    """Number of drones that ran for some of the period."""
    run_s: float
    """Their run time within the period, summed."""
    preempted: int
    life_mean_s: float | None
    """Mean life of preempted drones, from start to end; None if there were none."""
    life_median_s: float | None
    grace_mean_s: float | None
    """From a notice to the end, of all that ended after one; None if there were none."""
    lost_gpu_s: float
    """Work of jobs lost at the end of GPU drones, in GPU-seconds."""
    lost_cpu_s: float
    """Work of jobs lost at the end of CPU drones, in CPU-seconds."""
    lost_jobs: int

    @property
    def per_1000_h(self) -> float | None:
        """Preemptions per 1000 hours of drones; None if all of them together ran for less than a second."""
        return self.preempted * 3_600_000.0 / self.run_s if self.run_s >= 1.0 else None


@dataclass(frozen=True, slots=True)
class CommittedState:
    """The part of the record that is kept in memory: replaced whole after a commit, never changed in place."""

    birth: str
    """Four random characters ``[a-z0-9]``, drawn when the store was created: keeps ids of a lost store apart."""
    tick: int = 0
    """Number of the newest recorded tick; 0 in a new store."""
    next_serial: int = 1
    """The first serial number never used in a drone id, whatever crashed in between."""
    drones: Mapping[DroneId, Drone] = field(default_factory=dict)
    """Recorded and not ended."""
    breakers: Mapping[str, Breaker] = field(default_factory=dict)
    patience: Mapping[str, OwnerClaimBackoff] = field(default_factory=dict)
    """Back-off of owners' claims by site, as the newest plan recorded it."""
    recorded_at: float = 0.0
    """Time of the newest recorded tick, on the controller's clock; 0 in a new store."""
    recorded_drift_s: float = 0.0
    """Lead of the host's wall clock over that, in seconds."""


class Store(ABC):
    """The controller's side. Entering opens and locks it.

    Every method may raise :class:`StoreError`: then nothing of what it should record is recorded.
    """

    @property
    @abstractmethod
    def committed(self) -> CommittedState:
        """The state as the newest commit left it, from memory."""

    @property
    def birth(self) -> str:
        return self.committed.birth

    @property
    def tick(self) -> int:
        return self.committed.tick

    @property
    def next_serial(self) -> int:
        return self.committed.next_serial

    @property
    def drones(self) -> Mapping[DroneId, Drone]:
        return self.committed.drones

    @property
    def breakers(self) -> Mapping[str, Breaker]:
        return self.committed.breakers

    @property
    def patience(self) -> Mapping[str, OwnerClaimBackoff]:
        return self.committed.patience

    @property
    def recorded_at(self) -> float:
        return self.committed.recorded_at

    @property
    def recorded_drift_s(self) -> float:
        return self.committed.recorded_drift_s

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(self, *exc: object) -> None: ...

    @abstractmethod
    async def requests(self) -> tuple[OperatorRequest, ...]:
        """Return operators' requests that no plan has taken up yet."""

    @abstractmethod
    async def record(self, plan: Plan, snapshot: Snapshot) -> None:
        """Commit a plan before it is acted on, in one durable transaction.

        It holds state changes, intents, breakers, requests taken up, refusals, and the snapshot's views. If this
        raises (a full disk), nothing of it is recorded and nothing may be acted on.
        """

    @abstractmethod
    async def record_results(
        self, tick: int, moves: Sequence[StateChange], breakers: Sequence[Breaker], *, set_to: float | None = None
    ) -> None:
        """Commit the results of a plan's orders as state changes, and the breakers that they changed.

        ``set_to``: the controller's clock was set to this time, which is the host's too, and times were moved.
        """

    @abstractmethod
    async def event(self, at: float, name: str, fields: Mapping[str, str | int | float]) -> None:
        """Commit a log event."""

    @abstractmethod
    async def record_outputs(self, at: float, outputs: Mapping[DroneId, str]) -> None:
        """Commit the last output of drones, for as long as they are on record."""

    @abstractmethod
    async def record_completed(self, completions: Sequence[CompletedJob]) -> None:
        """Commit completed jobs. One that is on record already (by job id and end) stays as it is."""

    @abstractmethod
    async def estimate_samples(self) -> EstimateSamples | None:
        """Return the samples that :meth:`record_estimates` committed last. Raises :class:`EstimatesUnreadableError`."""

    @abstractmethod
    async def record_estimates(self, samples: EstimateSamples, resets: Sequence[int] = ()) -> None:
        """Commit samples in place of those before, and delete the requests to forget that were carried out."""

    @abstractmethod
    async def estimate_resets(self) -> tuple[EstimateReset, ...]:
        """Return the requests to forget that are not carried out yet, oldest first."""

    @abstractmethod
    async def ended(self, drone_ids: Sequence[DroneId]) -> Mapping[DroneId, DroneState]:
        """Return the final states of those of the given drones that are on record as ended."""

    @abstractmethod
    async def prune(self, now: float) -> bool:
        """Delete a bounded part of what is older than the retention limit. Return True if there is more.

        That is: ended drones with their history, plans, events, completed jobs and requests.
        """
