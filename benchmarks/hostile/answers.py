"""Ticks of a real controller whose site and pool lie: answers refused, partial, told twice, late, foreign, or none.

Unlike the other worlds these grow: what one tick believed is on record at the next. The host's
clock is set in between, the controller is restarted, and operators ask for things.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Self

from benchmarks.hostile import trouble
from benchmarks.hostile.trouble import NOW, one
from benchmarks.hostile.worlds import (
    modest,
    random_class,
    random_node,
    random_policy,
    random_remote,
    random_slot,
    random_types,
    spoiled,
)
from provisioner.controller.clock import SteadyClock
from provisioner.controller.loop import Controller
from provisioner.interfaces import AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import (
    Bootstrap,
    DrainMode,
    DroneId,
    DroneType,
    Fault,
    FaultKind,
    OrderOutcome,
    OrderResult,
    OverlayView,
    RemoteDrone,
    RemoteState,
    RequestKind,
    SiteView,
    StartOrder,
    StopOrder,
)
from provisioner.planner.safeguards import PlanFunction
from provisioner.simulator.loop import VirtualLoop, run_virtual
from tests.store.story import TemporaryStore

LIVES = 2
TICKS = 4
"""Steps in each life of the controller."""
ERRORS = (
    UnavailableError,
    AuthError,
    RejectedError,
    OutcomeUnknownError,
    ValueError,
    KeyError,
    TimeoutError,
    asyncio.CancelledError,
)


@dataclass(slots=True)
class Liar:
    """Share the faults of a lying site and a lying pool."""

    rng: Random
    types: Sequence[DroneType]
    running: dict[DroneId, RemoteDrone] = field(default_factory=dict)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def trouble(self, chance: float = 0.15) -> None:
        """Take long, or fail, now and then."""
        if self.rng.random() < chance:
            await asyncio.sleep(self.rng.choice((0.5, 6.0, 40.0, 500.0)))
        if self.rng.random() < chance:
            raise self.rng.choice(ERRORS)("odd \x1b[31m\ud800")

    def receipts(self, ids: Sequence[DroneId]) -> list[OrderResult]:
        """Return answers to orders for these drones: most of them, some twice and not the same, some for others."""
        answers = []
        for drone_id in [
            *ids,
            *self.rng.choices(ids, k=self.rng.randint(0, 2)),
            DroneId("other-1"),
        ]:
            kind, at = (
                self.rng.choice(list(FaultKind)),
                self.rng.choice((NOW, -1.0, float("nan"), 1e300)),
            )
            fault = Fault(kind, self.rng.choice(("no", "\ud800", "x" * 9000)), at)
            answer = OrderResult(
                drone_id,
                self.rng.choice(list(OrderOutcome)),
                self.rng.choice(("", "r", "\ud800")),
                fault,
            )
            answers.append(
                OrderResult(drone_id, OrderOutcome.OK, "r") if self.rng.random() < 0.6 else answer
            )
        self.rng.shuffle(answers)
        return answers if self.rng.random() < 0.7 else answers[: len(answers) // 2]


class LyingSite(Liar):
    """A site that starts some of what it is asked for, whatever it answers."""

    async def poll(self) -> SiteView:
        """Return a listing of before the wait, of some of the drones, with some that nobody asked for."""
        before = dict(self.running)
        await self.trouble()
        listed = {i: drone for i, drone in before.items() if self.rng.random() < 0.9}
        for drone_id in [i for i in listed if self.rng.random() < 0.3]:
            listed[drone_id] = spoiled(self.rng, random_remote(self.rng, drone_id))
        if self.rng.random() < 0.1:
            listed = {}
        if self.rng.random() < 0.2:
            stray = DroneId(f"kit-mem0-{self.rng.choice((1, 3, 50, 5_000_000, 'x', -1))}")
            listed[stray] = random_remote(self.rng, self.rng.choice((stray, DroneId("kit-mem0-2"))))
        names = tuple(kind.name for kind in self.types if kind.site == "a")
        nodes = tuple(
            random_node(self.rng, name, names) for name in one(self.rng, (), ("n1", "n2"))
        )
        return SiteView("a", NOW + asyncio.get_running_loop().time(), listed, None, nodes)

    async def start(self, orders: Sequence[StartOrder]) -> Sequence[OrderResult]:
        for order in orders:
            if self.rng.random() < 0.8:
                state = self.rng.choice((RemoteState.PENDING, RemoteState.RUNNING))
                self.running[order.drone_id] = RemoteDrone(order.drone_id, state, "r", node="n1")
        await self.trouble()
        return self.receipts([order.drone_id for order in orders])

    async def stop(self, orders: Sequence[StopOrder]) -> Sequence[OrderResult]:
        for order in orders:
            if self.rng.random() < 0.7:
                self.running.pop(order.drone_id, None)
        await self.trouble()
        return self.receipts([order.drone_id for order in orders])


class LyingPool(Liar):
    """A pool with jobs that nobody can please."""

    async def poll(self, types: Sequence[DroneType]) -> OverlayView:
        await self.trouble(0.05)
        rng, now = self.rng, NOW + asyncio.get_running_loop().time()
        classes = tuple(random_class(rng, f"c{n}", types) for n in range(3))
        classes += tuple(modest(job, types) for job in classes)
        ids = list(self.running)
        slots = tuple(
            replace(random_slot(rng, i), heard_at=now - 1) for i in ids if rng.random() < 0.8
        )
        slots = tuple(spoiled(rng, slot) if rng.random() < 0.2 else slot for slot in slots)
        done, failed = trouble.completions(rng, ids, 5), trouble.mishaps(rng, ids, 10)
        return OverlayView(
            now, classes, slots, now - 5, (), one(rng, None, ()), done, mishaps=failed
        )

    async def drain(
        self, drone_ids: Sequence[DroneId], mode: DrainMode, reason: str
    ) -> Sequence[OrderResult]:
        await self.trouble()
        return self.receipts(drone_ids)

    async def bootstrap(self, order: StartOrder) -> Bootstrap:
        await self.trouble(0.05)
        return Bootstrap(b"#!/bin/sh\n")


def play(seed: int, planner: PlanFunction) -> None:
    """Let a controller decide with ``planner`` for some ticks, the same for the same seed."""
    run_virtual(_lives(Random(seed), planner), start_epoch=NOW)


async def _lives(rng: Random, planner: PlanFunction) -> None:
    types = tuple(kind for kind in random_types(rng) if kind.site == "a")
    policy, running = random_policy(rng, ("a",), calm=True), dict[DroneId, RemoteDrone]()
    site, pool = LyingSite(rng, types, running), LyingPool(rng, types, running)
    ahead_s = 0.0
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)

    def wall() -> float:
        return NOW + loop.time() + ahead_s

    store = TemporaryStore("kit", 1e9, 0)
    for _ in range(LIVES):
        async with store:
            clock = SteadyClock(
                wall,
                loop.time,
                store.committed.recorded_at,
                store.committed.recorded_drift_s,
                lambda: rng.random() < 0.5,
            )
            async with Controller(
                "kit", policy, types, pool, {"a": site}, store, clock, planner=planner
            ) as controller:
                for _ in range(TICKS):
                    await controller.tick()
                    known = [*store.drones, DroneId("nobody-1")]
                    if rng.random() < 0.3:
                        kind = rng.choice(list(RequestKind))
                        ids = (
                            [DroneId("a")] if kind is RequestKind.RESET else rng.choices(known, k=2)
                        )
                        mode = rng.choice(list(DrainMode))
                        store.reader().ask(kind, ids, reason="why", by="me", at=wall(), mode=mode)
                    if rng.random() < 0.2:
                        ahead_s += one(rng, 50.0, -50.0, 1e4, -1e4, 1e7)
                    await asyncio.sleep(rng.choice((1.0, 15.0, 300.0, 4000.0)))
