"""Work of the controller between two ticks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from provisioner.controller.clock import Clock
from provisioner.controller.journal import read_store
from provisioner.interfaces import Overlay, Site
from provisioner.model import DroneType, OverlayView, Policy
from provisioner.store import Store
from provisioner.values import frozen

PRUNE_EVERY_S = 3600.0


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


@dataclass(slots=True)
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
