"""The record of the controller: drones with history, plans, breakers, requests, events, views, counters, time series.

:class:`Store` is the controller's side: it writes, and one controller at a time holds it. The
operator's side is :class:`provisioner.store.reader.Reader`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from provisioner import model, reasons
from provisioner.estimates import NO_ESTIMATES, Estimates, EstimateSamples
from provisioner.interfaces import AlwaysOpen
from provisioner.keys import serial_of as serial_of
from provisioner.model import (
    Breaker,
    Breakers,
    Drone,
    DroneId,
    DroneState,
    OperatorRequest,
    OwnerClaimBackoff,
    Plan,
    PolledOverlay,
    Snapshot,
    StateChange,
    TypeKey,
)
from provisioner.reasons import Reason
from provisioner.usage import RecordedRuns
from provisioner.values import factory, frozen

if TYPE_CHECKING:
    from provisioner.store.measures import MetricValues


class StoreError(Exception):
    """The store cannot be used; the message says why and what to do."""


class StoreHeldError(StoreError):
    """Another controller holds the store; the message says which process, where, since when."""


class StoreUnusableError(StoreError):
    """The store is damaged, of a newer schema, or cannot be written; the message names the repair."""


class EstimatesUnreadableError(StoreError):
    """The recorded estimates cannot be read; the message says why, and how to get them back."""


@frozen
class Transition:
    """One change of a drone's state."""

    drone_id: DroneId
    at: float
    was: DroneState | None
    state: DroneState
    reason: Reason
    tick: int


EventFields = Mapping[str, str | int | float]


@frozen
class Event:
    """A recorded log event that is no transition of a drone: a reload, a clock step, a rejected plan."""

    id: int
    at: float
    name: str
    fields: EventFields = factory(dict)


MAX_DELAYS = 1000
"""Newest starts of drones of which the delays are read."""


@frozen
class Holder:
    """The process that holds the store."""

    pid: int
    host: str
    since: float
    process: str = ""
    """Mark that distinguishes the process from any other with this pid, also in another container; empty if unknown."""


@frozen
class Views:
    """The views and estimates of the controller at its newest tick."""

    tick: int
    at: float
    policy: model.Policy
    types: tuple[model.DroneType, ...]
    overlay: PolledOverlay
    sites: Mapping[str, model.PolledSite]
    services: model.PolledServices = model.PolledServices()
    estimates: Estimates = NO_ESTIMATES
    credentials: tuple[model.Credential, ...] = ()


@frozen
class PastClass:
    """A job class that has left the queue, or of which no job waits any more."""

    id: str
    seen_at: float
    """Time of the newest tick that saw it, or jobs of it that waited."""
    job: model.JobClass
    reason: Reason | None
    """Weightiest reason of the newest plan that spoke of it; None: its jobs never waited."""


@frozen
class EstimateReset:
    """The request of an operator to forget estimates."""

    id: int
    at: float
    what: str
    """``all``, ``user:NAME`` or ``site:NAME``."""
    reason: str
    by: str


@frozen
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


@frozen
class RecordChange:
    """The last record of each drone concerned, and the transitions that led there, in order."""

    drones: Mapping[DroneId, Drone]
    transitions: tuple[Transition, ...]
    breakers: tuple[Breaker, ...]

    @classmethod
    def by_plan(cls, plan: Plan) -> RecordChange:
        """Return the change that has to be recorded before ``plan`` is acted on."""
        moves = [
            *plan.moves,
            *(StateChange(start.drone, None, start.reason) for start in plan.starts),
        ]
        moves += [StateChange(drain.drone, drain.was, drain.reason) for drain in plan.drains]
        moves += [StateChange(stop.drone, stop.was, stop.reason) for stop in plan.stops]
        return cls.by_results(plan.tick, moves, plan.breakers)

    @classmethod
    def by_results(
        cls, tick: int, moves: Sequence[StateChange], breakers: Sequence[Breaker]
    ) -> RecordChange:
        """Return the change by the results of the orders of tick ``tick``."""
        steps = [
            (move.drone, move.was, move.reason)
            for move in moves
            if move.was is not move.drone.state
        ]
        transitions = [
            Transition(drone.id, drone.since, was, drone.state, why, tick)
            for drone, was, why in steps
        ]
        return cls(
            {move.drone.id: move.drone for move in moves}, tuple(transitions), tuple(breakers)
        )


@frozen
class CommittedState:
    """The part of the record that is kept in memory: replaced whole after a commit, never changed in place."""

    birth: str
    """Four random characters ``[a-z0-9]``, drawn when the store was created: keeps ids of a lost store apart."""
    tick: int = 0
    """Number of the newest recorded tick; 0 in a new store."""
    next_serial: int = 1
    """The first serial number never used in a drone id, whatever crashed in between."""
    drones: Mapping[DroneId, Drone] = factory(dict)
    """Recorded and not ended."""
    breakers: Breakers = factory(dict)
    patience: Mapping[str, OwnerClaimBackoff] = factory(dict)
    """Back-off of owners' claims by site, as the newest plan recorded it."""
    reserved: Mapping[str, reasons.NodeReserved] = factory(dict)
    """Reservations by site, likewise."""
    services: Mapping[str, model.ServiceState] = factory(dict)
    """States of inference services by name, likewise."""
    waiting_since: Mapping[str, float] = factory(dict)
    """By job class with idle jobs: time since which the record has seen some. Their own times may be made up."""
    recorded_at: float = 0.0
    """Time of the newest recorded tick, on the controller's clock; 0 in a new store."""
    recorded_drift_s: float = 0.0
    """Lead of the host's wall clock over that, in seconds."""

    def after_plan(self, change: RecordChange, plan: Plan, snapshot: Snapshot) -> CommittedState:
        """Return the state once ``plan``, made of ``snapshot``, is committed with its ``change``."""
        after = self.after(change, set_to=plan.at)
        return replace(
            after,
            tick=max(plan.tick, self.tick),
            next_serial=max(after.next_serial, snapshot.next_serial),
            recorded_drift_s=snapshot.drift_s,
            patience=patience_of(plan),
            reserved=reserved_of(plan),
            services=services_of(plan),
            waiting_since=waiting_since(snapshot.overlay),
        )

    def after(self, change: RecordChange, set_to: float | None = None) -> CommittedState:
        """Return the state once ``change`` is committed; ``set_to`` as for :meth:`Store.record_results`."""
        drones = {**self.drones, **change.drones}
        for drone_id, drone in change.drones.items():
            if drone.state.ended:
                del drones[drone_id]
        breakers = {**self.breakers, **{each.scope: each for each in change.breakers}}
        serials = [
            serial for drone_id in change.drones if (serial := serial_of(drone_id)) is not None
        ]
        return replace(
            self,
            next_serial=max([self.next_serial, *(serial + 1 for serial in serials)]),
            drones=drones,
            breakers={
                scope: breaker for scope, breaker in breakers.items() if not breaker.forgotten
            },
            recorded_at=self.recorded_at if set_to is None else set_to,
            recorded_drift_s=self.recorded_drift_s if set_to is None else 0.0,
        )


def patience_of(plan: Plan) -> Mapping[str, OwnerClaimBackoff]:
    """Return the back-off of owners' claims that ``plan`` leaves for the next tick, by site."""
    return {each.site: each for each in plan.patience}


def reserved_of(plan: Plan) -> Mapping[str, reasons.NodeReserved]:
    """Return the reservations that ``plan`` leaves for the next tick, by site."""
    found = (each.reason for each in plan.refusals)
    return {each.site: each for each in found if isinstance(each, reasons.NodeReserved)}


def services_of(plan: Plan) -> Mapping[str, model.ServiceState]:
    """Return the states of inference services that ``plan`` leaves for the next tick, by name."""
    return {each.name: each for each in plan.services}


def waiting_since(overlay: PolledOverlay | None) -> Mapping[str, float]:
    """Return since when each class with idle jobs waits, as the newest view on record says."""
    view = overlay.view if overlay is not None else None
    return (
        {job.id: job.oldest_at for job in view.classes if job.oldest_at} if view is not None else {}
    )


def without_refreshes(plan: Plan) -> Plan:
    """Return ``plan`` without moves that only refresh a drone's record."""
    moves = tuple(move for move in plan.moves if move.was is not move.drone.state)
    return plan if len(moves) == len(plan.moves) else replace(plan, moves=moves)


class Store(AlwaysOpen):
    """The controller's side of the record. Entering opens and locks it.

    This class keeps in memory what a controller reads again, which is enough for simulations; it
    may be entered again after it was left, as at a restart.
    :class:`provisioner.store.writer.SqlStore` keeps all of it in a file. Every method may raise
    :class:`StoreError`: then nothing of what it should record is recorded.
    """

    def __init__(self, birth: str = "mem0") -> None:
        """Take a fixed ``birth``: the same run gives the same ids."""
        self.waiting: list[OperatorRequest] = []
        """Requests that no plan has taken up."""
        self._state: CommittedState | None = CommittedState(birth)
        """Replaced after a commit; stays as it was when a write fails."""
        self._ended: dict[DroneId, DroneState] = {}
        self._joined: dict[DroneId, tuple[float, TypeKey, float, float]] = {}
        """By drone: time at which it joined, its type, queue time and boot time."""
        self._samples: EstimateSamples | None = None

    @property
    def committed(self) -> CommittedState:
        """The state as the newest commit left it, from memory."""
        if self._state is None:
            raise StoreError("the store is not open")
        return self._state

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
    def breakers(self) -> Breakers:
        return self.committed.breakers

    async def requests(self) -> tuple[OperatorRequest, ...]:
        """Return operators' requests that no plan has taken up yet."""
        return tuple(self.waiting)

    async def record(self, plan: Plan, snapshot: Snapshot) -> None:
        """Commit a plan before it is acted on, in one durable transaction.

        It holds state changes, intents, breakers, requests taken up, refusals, and the snapshot's
        views. If this raises (a full disk), nothing of it is recorded and nothing may be acted on.
        """
        change = RecordChange.by_plan(plan)
        self._state = self.committed.after_plan(change, plan, snapshot)
        self._note_ends(change)
        self.waiting = [request for request in self.waiting if request.id not in plan.requests_done]

    async def record_results(
        self,
        tick: int,
        moves: Sequence[StateChange],
        breakers: Sequence[Breaker],
        *,
        set_to: float | None = None,
    ) -> None:
        """Commit the results of a plan's orders as state changes, and the breakers that they changed.

        ``set_to``: the controller's clock was set to this time, which is the host's too, and times
        were moved.
        """
        change = RecordChange.by_results(tick, moves, breakers)
        self._state = self.committed.after(change, set_to)
        self._note_ends(change)

    def _note_ends(self, change: RecordChange) -> None:
        for drone in change.drones.values():
            if drone.joined_at and drone.started_at:
                delays = drone.started_at - drone.requested_at, drone.joined_at - drone.started_at
                self._joined[drone.id] = drone.joined_at, drone.type, *delays
            if drone.state.ended:
                self._ended[drone.id] = drone.state
            else:
                self._ended.pop(drone.id, None)

    async def event(self, at: float, name: str, fields: EventFields) -> None:
        """Commit a log event."""

    async def record_outputs(self, at: float, outputs: Mapping[DroneId, str]) -> None:
        """Commit the last output of drones, for as long as they are on record."""

    async def record_completed(self, completions: Sequence[model.CompletedJob]) -> None:
        """Commit ended runs of jobs. One that is on record already (by job id and end) stays as it is."""

    async def start_delays(self, since: float) -> Sequence[tuple[TypeKey, float, float]]:
        """Return type, queue time and boot time of the drones that came into the pool after ``since``, newest last."""
        after = sorted(
            (known[0], drone_id) for drone_id, known in self._joined.items() if known[0] > since
        )
        return [self._joined[drone_id][1:] for _, drone_id in after[-MAX_DELAYS:]]

    async def use(self, since: float, until: float) -> RecordedRuns:
        """Return what runs that ended in a period held and used of GPUs."""
        return RecordedRuns()

    async def estimate_samples(self) -> EstimateSamples | None:
        """Return the samples that :meth:`record_estimates` committed last. Raises :class:`EstimatesUnreadableError`."""
        return self._samples

    async def record_estimates(self, samples: EstimateSamples, resets: Sequence[int] = ()) -> None:
        """Commit samples in place of those before, and delete the requests to forget that were carried out."""
        self._samples = samples

    async def estimate_resets(self) -> tuple[EstimateReset, ...]:
        """Return the requests to forget that are not carried out yet, oldest first."""
        return ()

    async def ended(self, drone_ids: Sequence[DroneId]) -> Mapping[DroneId, DroneState]:
        """Return the final states of those of the given drones that are on record as ended."""
        return {each: self._ended[each] for each in drone_ids if each in self._ended}

    def count(self, counts: MetricValues) -> None:
        """Add to counters in the transaction of the next plan that is recorded. Not while a call is under way."""

    async def record_sample(self, at: float, gauges: MetricValues) -> None:
        """Commit a sample of gauges and counters for the time series."""

    async def prune(self, now: float) -> bool:
        """Delete a bounded part of what is older than the retention limit. Return True if there is more.

        That is: ended drones with their history, plans, events, completed jobs, requests and time
        series.
        """
        return False
