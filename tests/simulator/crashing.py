"""Scenarios in which the controller is killed at chosen await boundaries and started again.

After its death a controller has no effect: its calls never return, and its clean-up code
(``finally``, ``except CancelledError``) does not reach store, sites or overlay, as after SIGKILL.
Orders that were sent stay sent.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Self, TypeVar

from provisioner.model import Plan
from provisioner.simulator.loop import rng_for, run_virtual
from provisioner.simulator.world import (
    START_EPOCH,
    RunRecord,
    Scenario,
    Simulation,
    SimulationOutcome,
    World,
    quiet,
)
from provisioner.store import Store
from tests.simulator.faults import FaultyScenario, ServiceFaultKind

T = TypeVar("T")
STORE_ACTS = frozenset({"record_results"})
"""Methods of the store that always change something; ``record`` does if its plan does."""
SITE_ACTS = frozenset({"start", "stop"})
OVERLAY_ACTS = frozenset({"drain", "bootstrap"})


@dataclass(frozen=True, slots=True)
class Crash:
    """A kill of the controller at its ``boundary``-th await boundary (from 1), with a restart ``down_s`` later.

    A boundary lies before and after each call of store, sites and overlay. ``acts_only`` counts
    only calls that change something.
    """

    boundary: int
    down_s: float = 5.0
    acts_only: bool = False


def crashes(seed: int, count: int, *, furthest: int, acts_only: bool = True) -> tuple[Crash, ...]:
    """Return ``count`` crashes at random boundaries, one for each life of the controller but the last."""
    rng = rng_for(seed, "crashes")
    return tuple(
        Crash(rng.randint(1, furthest), rng.uniform(0.5, 60.0), acts_only) for _ in range(count)
    )


@dataclass(frozen=True, slots=True)
class CrashScenario(FaultyScenario):
    """A scenario with the crashes that end each life of the controller but the last."""

    crashes: tuple[Crash, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashOutcome(SimulationOutcome):
    """The outcome of a scenario with crashes."""

    lives: tuple[str, ...]
    """How each life of the controller ended: a boundary's name, or ``stopped``."""
    boundaries: int
    """Await boundaries that the last life crossed."""
    act_boundaries: int
    """Those of them around calls that change something."""
    faults_met: Counter[ServiceFaultKind]
    """Calls that a fault has hit."""


def simulate(scenario: Scenario, open_store: Callable[[], Store] | None = None) -> CrashOutcome:
    """Run a scenario with its crashes.

    ``open_store`` is called for each life of the controller and must lead to the same record each
    time, as a file does; it may not use threads. By default, the record is kept in memory.
    """
    kept = Store()
    simulation = CrashSimulation(scenario, open_store or (lambda: kept))
    with quiet():
        outcome = run_virtual(simulation.run(), start_epoch=START_EPOCH)
    return CrashOutcome(
        **{field.name: getattr(outcome, field.name) for field in fields(SimulationOutcome)},
        lives=tuple(simulation.lives),
        boundaries=simulation.injector.crossed,
        act_boundaries=simulation.injector.acts_crossed,
        faults_met=scenario.faults_met if isinstance(scenario, FaultyScenario) else Counter(),
    )


class CrashInjector:
    """A counter of the boundaries that one life of the controller crosses, which ends that life at the chosen one."""

    def __init__(self, crash: Crash | None) -> None:
        self.crossed = 0
        self.acts_crossed = 0
        """Of these, the ones around calls that change something."""
        self.crashed = asyncio.Event()
        self.crashed_at = ""
        """The boundary's name: ``site.start before``."""
        self._crash = crash
        self._cleared_away = False

    def clear_away(self) -> None:
        """Let the calls that still wait be cancelled instead of waiting again."""
        self._cleared_away = True

    async def around(self, call: str, ask: Callable[[], Awaitable[T]], *, act: bool = False) -> T:
        """Make a call between two boundaries; an acting call that raises crosses the second one, too."""
        await self._cross(f"before {call}", act)
        try:
            answer = await ask()
        except Exception:
            if act:
                await self._cross(f"after {call}", act)
            raise
        await self._cross(f"after {call}", act)
        return answer

    async def _cross(self, boundary: str, act: bool) -> None:
        if not self.crashed.is_set():
            self.crossed += 1
            self.acts_crossed += act
            if not self._cleared_away and not self._is_fatal(act):
                return
        if not self.crashed.is_set() and not self._cleared_away:
            self.crashed_at = boundary
            self.crashed.set()
        if self._cleared_away:
            raise asyncio.CancelledError
        await asyncio.get_running_loop().create_future()

    def _is_fatal(self, act: bool) -> bool:
        if self._crash is None or (self._crash.acts_only and not act):
            return False
        return self._crash.boundary == (
            self.acts_crossed if self._crash.acts_only else self.crossed
        )


class CrashSimulation(Simulation):
    """A run of a scenario in which the controller has several lives."""

    def __init__(self, scenario: Scenario, open_store: Callable[[], Store]) -> None:
        super().__init__(scenario)
        self.lives: list[str] = []
        self.injector = CrashInjector(None)
        self._open_store = open_store

    async def control(self, world: World, over: asyncio.Task[None]) -> None:
        for crash in getattr(self.scenario, "crashes", ()):
            if not await self._live(world, over, crash):
                break
            await asyncio.wait({over}, timeout=crash.down_s)
        if not over.done() and not self.collapse:
            await self._live(world, over, None)

    async def _live(self, world: World, over: asyncio.Task[None], crash: Crash | None) -> bool:
        """Run one life of the controller; return whether it ended by the crash."""
        injector = self.injector = CrashInjector(crash)
        stop = asyncio.Event()
        store: Any = Crashable("store", self._open_store(), injector, STORE_ACTS, self.record)
        overlay: Any = Crashable("overlay", world.overlay, injector, OVERLAY_ACTS)
        sites: Any = {
            name: Crashable("site", site, injector, SITE_ACTS) for name, site in world.sites.items()
        }
        life = asyncio.create_task(
            self.serve(world, stop, store, overlay, sites), name=f"controller {len(self.lives) + 1}"
        )
        killed = asyncio.create_task(injector.crashed.wait(), name="killed")
        await asyncio.wait({life, killed, over}, return_when=asyncio.FIRST_COMPLETED)
        if injector.crashed.is_set():
            self.lives.append(injector.crashed_at)
            injector.clear_away()
            life.cancel()
            await asyncio.wait({life})
            return True
        killed.cancel()
        await self.end(life, stop)
        self.lives.append("collapsed" if self.collapse else "stopped")
        return False


class Crashable:
    """Store, site or overlay as one life of the controller sees it; what was committed stays."""

    def __init__(
        self,
        name: str,
        behind: Any,
        injector: CrashInjector,
        acts: frozenset[str],
        record: RunRecord | None = None,
    ) -> None:
        self._name = name
        self._behind = behind
        self._injector = injector
        self._acts = acts
        self._record = record

    async def __aenter__(self) -> Self:
        if self._record is not None:
            await self._behind.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._record is not None:
            await self._behind.__aexit__(*exc)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._behind, name)
        if not inspect.iscoroutinefunction(value):
            return value

        async def call(*args: Any, **options: Any) -> Any:
            act = name in self._acts
            if name == "record":
                plan: Plan = args[0]
                act = plan.acts or bool(plan.moves)
            ask = partial(self._committed, name, value, args, options)
            return await self._injector.around(f"{self._name}.{name}", ask, act=act)

        return call

    async def _committed(
        self, name: str, value: Callable[..., Awaitable[Any]], args: Any, options: Any
    ) -> Any:
        answer = await value(*args, **options)
        if self._record is not None:
            match name:
                case "record":
                    self._record.committed(args[0], self._behind.drones)
                case "record_results":
                    self._record.moved(args[1], self._behind.drones)
                case "event":
                    self._record.event(*args)
        return answer
