"""A controller that is killed: everything it can touch goes through a fuse, which blows at a chosen await boundary.

From then on the dead controller has no effect: its calls never come back, and what its code does while it is being
cleared away (``finally``, ``except CancelledError``) does not reach store, sites or overlay. SIGKILL runs no clean-up
either. Orders that were under way stay under way.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeVar

from provisioner.estimates import EstimateSamples
from provisioner.interfaces import Overlay, Site
from provisioner.model import (
    Bootstrap,
    Breaker,
    CompletedJob,
    DrainMode,
    Drone,
    DroneId,
    DroneState,
    DroneType,
    OperatorRequest,
    OrderResult,
    OverlayView,
    OwnerClaimBackoff,
    Plan,
    SiteView,
    Snapshot,
    StartOrder,
    StateChange,
    StopOrder,
)
from provisioner.simulator.faults import Crash
from provisioner.store import Forget, Store

T = TypeVar("T")


class Fuse:
    """Counts the boundaries that one life of the controller crosses, and ends that life at the one asked for."""

    def __init__(self, crash: Crash | None) -> None:
        self.crossed = 0
        self.acts_crossed = 0
        """Of these, the ones around calls that change something."""
        self.blown = asyncio.Event()
        self.blew_at = ""
        """The boundary's name: ``site.start before``."""
        self._crash = crash
        self._cleared_away = False

    def clear_away(self) -> None:
        """What still hangs on this fuse is about to be cancelled: it must not hang again."""
        self._cleared_away = True

    async def before(self, call: str, *, act: bool) -> None:
        if self._blows(act):
            await self._end(f"before {call}")

    async def after(self, call: str, *, act: bool) -> None:
        if self._blows(act):
            await self._end(f"after {call}")

    def _blows(self, act: bool) -> bool:
        """Whether this life ends at the boundary that is crossed now, or has ended before."""
        if not self.blown.is_set():
            self.crossed += 1
            self.acts_crossed += act
            return self._cleared_away or self._is_fatal(act)
        return True

    async def _end(self, boundary: str) -> None:
        if not self.blown.is_set() and not self._cleared_away:
            self.blew_at = boundary
            self.blown.set()
        if self._cleared_away:
            raise asyncio.CancelledError
        await asyncio.get_running_loop().create_future()

    def _is_fatal(self, act: bool) -> bool:
        if self._crash is None or (self._crash.acts_only and not act):
            return False
        return self._crash.boundary == (self.acts_crossed if self._crash.acts_only else self.crossed)


@dataclass(slots=True)
class Chronicle:
    """What the controller committed, written down by somebody else: a digest, ticks, births, refused plans."""

    ticks: int = 0
    births: dict[DroneId, int] = field(default_factory=dict)
    refused_plans: list[str] = field(default_factory=list)
    steps: int = 0
    live: Mapping[DroneId, Drone] = field(default_factory=dict)
    """On record and not ended, by the newest commit."""
    _digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def recorded(self, plan: Plan) -> None:
        self.ticks += 1
        for start in plan.starts:
            self.births[start.drone.id] = self.births.get(start.drone.id, 0) + 1
            self._write(plan.at, start.drone, None, start.reason.kind)
        for drain in plan.drains:
            self._write(plan.at, drain.drone, drain.was, drain.reason.kind)
        for stop in plan.stops:
            self._write(plan.at, stop.drone, stop.was, stop.reason.kind)
        for orphan in plan.orphans:
            self._digest.update(f"{plan.at!r} {orphan.site} {orphan.drone_id}\n".encode())
        self.moved(plan.moves)

    def moved(self, moves: Sequence[StateChange]) -> None:
        for move in moves:
            if move.drone.state is not move.was:
                self._write(move.drone.since, move.drone, move.was, move.reason.kind)

    def _write(self, at: float, drone: Drone, was: DroneState | None, why: str) -> None:
        self.steps += 1
        self._digest.update(f"{at!r} {drone.id} {drone.type} {was} {drone.state} {why}\n".encode())

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()


async def _through(fuse: Fuse, call: str, ask: Callable[[], Awaitable[T]]) -> T:
    """An acting call; an answer that is an error is a boundary too."""
    await fuse.before(call, act=True)
    try:
        answer = await ask()
    except Exception:
        await fuse.after(call, act=True)
        raise
    await fuse.after(call, act=True)
    return answer


class MortalStore:
    """A store that outlives its controller: what was committed stays."""

    def __init__(self, store: Store, fuse: Fuse, chronicle: Chronicle) -> None:
        self._store = store
        self._fuse = fuse
        self._chronicle = chronicle

    @property
    def birth(self) -> str:
        return self._store.birth

    @property
    def drones(self) -> Mapping[DroneId, Drone]:
        return self._store.drones

    @property
    def breakers(self) -> Mapping[str, Breaker]:
        return self._store.breakers

    @property
    def next_serial(self) -> int:
        return self._store.next_serial

    @property
    def tick(self) -> int:
        return self._store.tick

    @property
    def patience(self) -> Mapping[str, OwnerClaimBackoff]:
        return self._store.patience

    @property
    def recorded_at(self) -> float:
        return self._store.recorded_at

    @property
    def recorded_drift_s(self) -> float:
        return self._store.recorded_drift_s

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._store.__aexit__(*exc)

    async def requests(self) -> tuple[OperatorRequest, ...]:
        await self._fuse.before("store.requests", act=False)
        found = await self._store.requests()
        await self._fuse.after("store.requests", act=False)
        return found

    async def record(self, plan: Plan, snapshot: Snapshot) -> None:
        act = plan.acts or bool(plan.moves)
        await self._fuse.before("store.record", act=act)
        await self._store.record(plan, snapshot)
        self._chronicle.recorded(plan)
        self._chronicle.live = self._store.drones
        await self._fuse.after("store.record", act=act)

    async def settle(
        self, tick: int, moves: Sequence[StateChange], breakers: Sequence[Breaker], *, set_to: float | None = None
    ) -> None:
        await self._fuse.before("store.settle", act=True)
        await self._store.settle(tick, moves, breakers, set_to=set_to)
        self._chronicle.moved(moves)
        self._chronicle.live = self._store.drones
        await self._fuse.after("store.settle", act=True)

    async def event(self, at: float, name: str, fields: Mapping[str, str | int | float]) -> None:
        if name == "plan.rejected":
            self._chronicle.refused_plans.append(f"{at:.1f}: {fields}")
        await self._fuse.before("store.event", act=False)
        await self._store.event(at, name, fields)
        await self._fuse.after("store.event", act=False)

    async def keep(self, at: float, words: Mapping[DroneId, str]) -> None:
        await self._fuse.before("store.keep", act=False)
        await self._store.keep(at, words)
        await self._fuse.after("store.keep", act=False)

    async def completed(self, completions: Sequence[CompletedJob]) -> None:
        await self._fuse.before("store.completed", act=False)
        await self._store.completed(completions)
        await self._fuse.after("store.completed", act=False)

    async def experience(self) -> EstimateSamples | None:
        await self._fuse.before("store.experience", act=False)
        found = await self._store.experience()
        await self._fuse.after("store.experience", act=False)
        return found

    async def learn(self, experience: EstimateSamples, forgotten: Sequence[int] = ()) -> None:
        await self._fuse.before("store.learn", act=False)
        await self._store.learn(experience, forgotten)
        await self._fuse.after("store.learn", act=False)

    async def forgets(self) -> tuple[Forget, ...]:
        await self._fuse.before("store.forgets", act=False)
        found = await self._store.forgets()
        await self._fuse.after("store.forgets", act=False)
        return found

    async def ended(self, drone_ids: Sequence[DroneId]) -> Mapping[DroneId, DroneState]:
        await self._fuse.before("store.ended", act=False)
        found = await self._store.ended(drone_ids)
        await self._fuse.after("store.ended", act=False)
        return found

    async def prune(self, now: float) -> bool:
        await self._fuse.before("store.prune", act=False)
        is_more = await self._store.prune(now)
        await self._fuse.after("store.prune", act=False)
        return is_more


class MortalSite:
    """A site as one life of the controller sees it."""

    def __init__(self, site: Site, fuse: Fuse) -> None:
        self._site = site
        self._fuse = fuse

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def poll(self) -> SiteView:
        await self._fuse.before("site.look", act=False)
        view = await self._site.poll()
        await self._fuse.after("site.look", act=False)
        return view

    async def start(self, orders: Sequence[StartOrder]) -> Sequence[OrderResult]:
        return await _through(self._fuse, "site.start", lambda: self._site.start(orders))

    async def stop(self, orders: Sequence[StopOrder]) -> Sequence[OrderResult]:
        return await _through(self._fuse, "site.stop", lambda: self._site.stop(orders))


class MortalOverlay:
    """The overlay as one life of the controller sees it."""

    def __init__(self, overlay: Overlay, fuse: Fuse) -> None:
        self._overlay = overlay
        self._fuse = fuse

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def poll(self, types: Sequence[DroneType]) -> OverlayView:
        await self._fuse.before("overlay.look", act=False)
        view = await self._overlay.poll(types)
        await self._fuse.after("overlay.look", act=False)
        return view

    async def drain(self, drone_ids: Sequence[DroneId], mode: DrainMode, reason: str) -> Sequence[OrderResult]:
        return await _through(self._fuse, "overlay.drain", lambda: self._overlay.drain(drone_ids, mode, reason))

    async def bootstrap(self, order: StartOrder) -> Bootstrap:
        return await _through(self._fuse, "overlay.admission", lambda: self._overlay.bootstrap(order))
