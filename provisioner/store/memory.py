"""The store in memory, both sides: for simulations and tests. It keeps the values themselves, so it costs little."""

from __future__ import annotations

import math
import os
import socket
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Self

from provisioner.estimates import EstimateSamples
from provisioner.model import (
    Breaker,
    CompletedJob,
    DrainMode,
    Drone,
    DroneId,
    DroneState,
    OperatorRequest,
    Plan,
    RequestKind,
    Snapshot,
    StateChange,
)
from provisioner.store import (
    CommittedState,
    Event,
    ForgetRequest,
    Hazard,
    Holder,
    Store,
    StoreHeldError,
    Transition,
    Views,
)
from provisioner.store.changes import (
    RecordChange,
    change_by_plan,
    change_by_results,
    repeats,
    serial_of,
    state_after,
    state_after_plan,
    without_refreshes,
)
from provisioner.store.queries import FIND_LIMIT, as_serial, as_slot_names, is_plausible_id
from provisioner.store.statistics import hazards_of


@dataclass(slots=True)
class _Record:
    """The content that a store file would have."""

    state: CommittedState
    drones: dict[DroneId, Drone] = field(default_factory=dict)
    """Ended ones too."""
    steps: list[tuple[int, Transition]] = field(default_factory=list)
    histories: dict[DroneId, list[Transition]] = field(default_factory=dict)
    """The transitions of each drone."""
    words: dict[DroneId, tuple[float, str]] = field(default_factory=dict)
    """The last output of drones, and when it was reported."""
    completions: dict[tuple[float, str], CompletedJob] = field(default_factory=dict)
    """By end and job id."""
    last_step: int = 0
    plans: list[Plan] = field(default_factory=list)
    newest: Snapshot | None = None
    newest_at: float = 0.0
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    asked: dict[int, OperatorRequest] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    last_request: int = 0
    experience: EstimateSamples | None = None
    forgets: dict[int, ForgetRequest] = field(default_factory=dict)
    last_forget: int = 0
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=100_000))
    last_event: int = 0

    def pending(self) -> tuple[OperatorRequest, ...]:
        return tuple(request for number, request in self.asked.items() if number not in self.done)

    def prune(self, before: float) -> None:
        for drone_id in [d.id for d in self.drones.values() if d.state.ended and d.ended_at < before]:
            del self.drones[drone_id]
            self.histories.pop(drone_id, None)
            self.words.pop(drone_id, None)
        self.words = {drone_id: (at, text) for drone_id, (at, text) in self.words.items() if at >= before}
        self.steps = [(number, step) for number, step in self.steps if self._keeps(step, before)]
        self.histories = {
            drone_id: [s for s in history if self._keeps(s, before)] for drone_id, history in self.histories.items()
        }
        self.plans = [plan for plan in self.plans if plan.at >= before]
        self.events = deque((event for event in self.events if event.at >= before), self.events.maxlen)
        self.completions = {key: each for key, each in self.completions.items() if each.ended_at >= before}
        for number in [n for n in self.done if n in self.asked and self.asked[n].at < before]:
            del self.asked[number]
            self.done.remove(number)

    def _keeps(self, step: Transition, before: float) -> bool:
        """Return True for a young transition, or the first one of a drone on record, however old."""
        return step.drone_id in self.drones and (step.at >= before or step.was is None)


class MemoryStore(Store):
    """:class:`provisioner.store.Store` without a file. It may be entered again after it was left, as at a restart.

    ``birth`` is fixed, not drawn: the same run gives the same ids.
    """

    def __init__(self, controller: str, keep_s: float, snapshots: int, *, birth: str = "mem0") -> None:
        self._controller = controller
        self._keep_s = keep_s
        self._snapshots = snapshots
        self._record = _Record(CommittedState(birth))
        self._holder: Holder | None = None
        self._newest_plan: Plan | None = None

    def reader(self) -> MemoryReader:
        """Return the operator's side of the same record."""
        return MemoryReader(self._record, f"{self._controller}-{self.birth}", lambda: self._holder)

    @property
    def committed(self) -> CommittedState:
        return self._record.state

    async def __aenter__(self) -> Self:
        if self._holder is not None:
            raise StoreHeldError(f"the store in memory is held by pid {self._holder.pid} on {self._holder.host}")
        self._newest_plan = None
        self._holder = Holder(os.getpid(), socket.gethostname(), time.time())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._holder = None

    async def requests(self) -> tuple[OperatorRequest, ...]:
        return self._record.pending()

    async def record(self, plan: Plan, snapshot: Snapshot) -> None:
        record = self._record
        change = change_by_plan(plan)
        record.state = state_after_plan(record.state, change, plan, snapshot)
        self._apply(change)
        recorded_plan = without_refreshes(plan)
        if record.plans and repeats(recorded_plan, self._newest_plan):
            record.plans[-1] = recorded_plan
        else:
            record.plans.append(recorded_plan)
        self._newest_plan = recorded_plan
        record.newest, record.newest_at = snapshot, plan.at
        record.done.update(number for number in plan.requests_done if number in record.asked)
        if plan.acts and self._snapshots > 0:
            record.snapshots[plan.tick] = snapshot
            while len(record.snapshots) > self._snapshots:
                del record.snapshots[min(record.snapshots)]

    async def settle(
        self, tick: int, moves: Sequence[StateChange], breakers: Sequence[Breaker], *, set_to: float | None = None
    ) -> None:
        change = change_by_results(tick, moves, breakers)
        self._record.state = state_after(self._record.state, change)
        self._apply(change)
        if set_to is not None:
            self._record.state = replace(self._record.state, recorded_at=set_to, recorded_drift_s=0.0)

    async def event(self, at: float, name: str, fields: Mapping[str, str | int | float]) -> None:
        self._record.last_event += 1
        self._record.events.append(Event(self._record.last_event, at, name, dict(fields)))

    async def keep(self, at: float, words: Mapping[DroneId, str]) -> None:
        self._record.words |= {drone_id: (at, text) for drone_id, text in words.items()}

    async def completed(self, completions: Sequence[CompletedJob]) -> None:
        for each in completions:
            self._record.completions.setdefault((each.ended_at, each.job_id), each)

    async def experience(self) -> EstimateSamples | None:
        return self._record.experience

    async def learn(self, experience: EstimateSamples, forgotten: Sequence[int] = ()) -> None:
        self._record.experience = experience
        for number in forgotten:
            self._record.forgets.pop(number, None)

    async def forgets(self) -> tuple[ForgetRequest, ...]:
        return tuple(self._record.forgets.values())

    async def ended(self, drone_ids: Sequence[DroneId]) -> Mapping[DroneId, DroneState]:
        known = self._record.drones
        return {each: known[each].state for each in drone_ids if each in known and known[each].state.ended}

    async def prune(self, now: float) -> bool:
        if math.isfinite(self._keep_s):
            self._record.prune(now - self._keep_s)
        return False

    def _apply(self, change: RecordChange) -> None:
        record = self._record
        record.drones.update(change.drones)
        for step in change.transitions:
            record.last_step += 1
            record.steps.append((record.last_step, step))
            record.histories.setdefault(step.drone_id, []).append(step)


class MemoryReader:
    """:class:`provisioner.store.Reader` of a :class:`MemoryStore`."""

    def __init__(self, record: _Record, id_prefix: str, holder: Callable[[], Holder | None]) -> None:
        self._record = record
        self._id_prefix = id_prefix
        self._holder = holder

    def holder(self) -> Holder | None:
        return self._holder()

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
        found = [
            drone
            for drone in (self._record.state.drones if ended is False else self._record.drones).values()
            if (ended is None or drone.state.ended is ended)
            and (not sites or drone.site in sites)
            and (not states or drone.state in states)
            and (not types or drone.type in types or drone.type.partition("/")[2] in types)
            and (not nodes or drone.node in nodes or drone.node.partition(".")[0] in nodes)
        ]
        found.sort(key=_request_order)
        return found if limit is None else found[max(0, len(found) - limit) :]

    def drone(self, drone_id: DroneId) -> Drone | None:
        return self._record.drones.get(drone_id)

    def find(self, any_id: str) -> list[DroneId]:
        known = self._record.drones
        if not is_plausible_id(any_id):
            return []
        if any_id in known:
            return [DroneId(any_id)]
        serial, slots = as_serial(any_id), as_slot_names(any_id)
        found = [
            drone
            for drone in known.values()
            if drone.remote_id == any_id
            or drone.site_slot == any_id
            or drone.slot in slots
            or (serial is not None and serial_of(drone.id) == serial)
        ] or [drone for drone in known.values() if any_id.isascii() and drone.id.startswith(any_id)]
        found = [drone for drone in found if not drone.state.ended] or found
        found.sort(key=_request_order, reverse=True)
        return [drone.id for drone in found[:FIND_LIMIT]]

    def last_words(self, drone_id: DroneId) -> str:
        return self._record.words.get(drone_id, (0.0, ""))[1]

    def history(self, drone_id: DroneId) -> list[Transition]:
        return list(self._record.histories.get(drone_id, ()))

    def hazards(self, since: float, now: float) -> list[Hazard]:
        known = self._record.drones.values()
        return hazards_of((d for d in known if not d.state.ended or d.ended_at >= since), since, now)

    def completions(self, since: float, until: float) -> list[CompletedJob]:
        known = self._record.completions
        return [known[key] for key in sorted(known) if since <= key[0] < until]

    def experience(self) -> EstimateSamples | None:
        return self._record.experience

    def forgets(self) -> tuple[ForgetRequest, ...]:
        return tuple(self._record.forgets.values())

    def plans(self, *, limit: int = 20, since: float = 0.0, acting: bool = False) -> list[Plan]:
        found: list[Plan] = []
        for plan in reversed(self._record.plans):
            if len(found) == limit:
                break
            if plan.at >= since and (plan.acts or not acting):
                found.append(plan)
        found.reverse()
        return found

    def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return [event for event in self._record.events if event.id > after][:limit]

    def transitions(self, *, since: float = 0.0, after: int = 0, limit: int = 1000) -> list[tuple[int, Transition]]:
        steps = self._record.steps
        first = bisect_right(steps, after, key=lambda numbered: numbered[0])
        found: list[tuple[int, Transition]] = []
        for number, step in islice(steps, first, None):
            if len(found) == limit:
                break
            if step.at >= since:
                found.append((number, step))
        return found

    def views(self) -> Views | None:
        seen = self._record.newest
        if seen is None:
            return None
        return Views(
            self._record.state.tick,
            self._record.newest_at,
            seen.policy,
            seen.types,
            seen.overlay,
            dict(seen.sites),
            seen.estimates,
        )

    def breakers(self) -> Mapping[str, Breaker]:
        return self._record.state.breakers

    def snapshot(self, tick: int | None = None) -> Snapshot | None:
        record = self._record
        if tick is not None:
            return record.snapshots.get(tick)
        if record.newest is None:
            return None
        return replace(
            record.newest,
            now=record.newest_at,
            tick=record.state.tick + 1,
            id_prefix=self._id_prefix,
            next_serial=record.state.next_serial,
            drones=dict(record.state.drones),
            breakers=dict(record.state.breakers),
            patience=dict(record.state.patience),
            requests=record.pending(),
        )

    def kept_snapshots(self) -> list[int]:
        return sorted(self._record.snapshots)

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
        record = self._record
        record.last_request += 1
        request = OperatorRequest(record.last_request, at, kind, tuple(drone_ids), reason, by, mode)
        record.asked[request.id] = request
        return request.id

    def forget(self, what: str, *, reason: str, by: str, at: float) -> None:
        record = self._record
        record.last_forget += 1
        record.forgets[record.last_forget] = ForgetRequest(record.last_forget, at, what, reason, by)

    def request_done(self, request: int) -> bool:
        record = self._record
        return 0 < request <= record.last_request and (request in record.done or request not in record.asked)


def _request_order(drone: Drone) -> tuple[float, int, str]:
    serial = serial_of(drone.id)
    return drone.requested_at, -1 if serial is None else serial, drone.id
