"""The controller's side of the store without a record, for simulations: it keeps what a controller reads again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

from provisioner.estimates import EstimateSamples
from provisioner.model import (
    Breaker,
    CompletedJob,
    DroneId,
    DroneState,
    OperatorRequest,
    Plan,
    Snapshot,
    StateChange,
)
from provisioner.store import CommittedState, EstimateReset, Store
from provisioner.store.changes import RecordChange, change_by_plan, change_by_results, state_after, state_after_plan


class MemoryStore(Store):
    """Committed state alone. It may be entered again after it was left, as at a restart.

    ``birth`` is fixed, not drawn: the same run gives the same ids.
    """

    def __init__(self, birth: str = "mem0") -> None:
        self.waiting: list[OperatorRequest] = []
        """Requests that no plan has taken up."""
        self._state = CommittedState(birth)
        self._ended: dict[DroneId, DroneState] = {}
        self._samples: EstimateSamples | None = None

    @property
    def committed(self) -> CommittedState:
        return self._state

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    async def requests(self) -> tuple[OperatorRequest, ...]:
        return tuple(self.waiting)

    async def record(self, plan: Plan, snapshot: Snapshot) -> None:
        change = change_by_plan(plan)
        self._state = state_after_plan(self._state, change, plan, snapshot)
        self._note_ends(change)
        self.waiting = [request for request in self.waiting if request.id not in plan.requests_done]

    async def record_results(
        self, tick: int, moves: Sequence[StateChange], breakers: Sequence[Breaker], *, set_to: float | None = None
    ) -> None:
        change = change_by_results(tick, moves, breakers)
        self._state = state_after(self._state, change)
        self._note_ends(change)
        if set_to is not None:
            self._state = replace(self._state, recorded_at=set_to, recorded_drift_s=0.0)

    def _note_ends(self, change: RecordChange) -> None:
        for drone in change.drones.values():
            if drone.state.ended:
                self._ended[drone.id] = drone.state
            else:
                self._ended.pop(drone.id, None)

    async def event(self, at: float, name: str, fields: Mapping[str, str | int | float]) -> None:
        pass

    async def record_outputs(self, at: float, outputs: Mapping[DroneId, str]) -> None:
        pass

    async def record_completed(self, completions: Sequence[CompletedJob]) -> None:
        pass

    async def estimate_samples(self) -> EstimateSamples | None:
        return self._samples

    async def record_estimates(self, samples: EstimateSamples, resets: Sequence[int] = ()) -> None:
        self._samples = samples

    async def estimate_resets(self) -> tuple[EstimateReset, ...]:
        return ()

    async def ended(self, drone_ids: Sequence[DroneId]) -> Mapping[DroneId, DroneState]:
        return {each: self._ended[each] for each in drone_ids if each in self._ended}

    async def prune(self, now: float) -> bool:
        return False
