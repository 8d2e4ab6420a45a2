"""Work of the controller between two ticks."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping, Sequence
from typing import Protocol

from provisioner.controller.clock import Clock
from provisioner.controller.journal import read_store
from provisioner.interfaces import Overlay, Site
from provisioner.model import DroneType, OverlayView, Policy
from provisioner.store import Store
from provisioner.values import define, frozen

PRUNE_EVERY_S = 3600.0
COLLECT_ALL_EVERY_S = 86400.0
NEW_OBJECTS = 200_000
"""New objects after which garbage is collected within a tick, or between two that are far apart."""


@frozen
class WorkContext:
    """The configuration in force, the newest view of the pool, and the group for tasks of their own."""

    group: asyncio.TaskGroup
    policy: Policy
    types: Sequence[DroneType]
    sites: Mapping[str, Site]
    overlay: Overlay
    view: OverlayView | None


class PeriodicWork(Protocol):
    """Work that decides itself when it is due."""

    async def turn(self, work: WorkContext) -> None:
        """Do what is due. Never raises: it must not end the controller."""
        ...


@define
class Pruning:
    """Deletion of what is too old from the record, in steps that no tick has to wait for."""

    store: Store
    clock: Clock
    _pruned_at: float = 0.0
    _goes_on: bool = False
    """True while the record holds more to forget than one step should."""

    async def turn(self, work: WorkContext) -> None:
        now = self.clock.now()
        if self._goes_on or now - self._pruned_at > PRUNE_EVERY_S:
            self._pruned_at = now
            self._goes_on = await read_store("store.prune_failed", self.store.prune(now), False)


@define
class GarbageCollection:
    """Garbage collection between ticks, of the objects that are new since the last one; of all once a day.

    Left to itself, the interpreter walks through all objects amid decisions. With 100,000 drones
    that takes 0.5 s, in which no thread works, at three of four ticks; the new ones take 0.1 s.
    """

    clock: Clock
    _all_at: float = 0.0

    def __post_init__(self) -> None:
        gc.set_threshold(NEW_OBJECTS)

    async def turn(self, work: WorkContext) -> None:
        now = self.clock.now()
        if now - self._all_at > COLLECT_ALL_EVERY_S:
            self._all_at = now
            gc.unfreeze()
        gc.collect()
        gc.freeze()
