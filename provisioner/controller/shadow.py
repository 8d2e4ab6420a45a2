"""Shadow mode: adapters reduced to their polls, and plans without orders.

A shadow is the controller with other adapters and another planner. No order can leave it: what it has in the place of a
site or an overlay holds the adapter's ``poll`` and its connection, and nothing that starts, stops, drains or holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Self

from provisioner.interfaces import Overlay, RejectedError, Site, SupportsOtherDrones
from provisioner.model import DroneType, FaultKind, OtherDrones, OverlayView, Plan, Refusal, SiteView, Snapshot
from provisioner.planner import decide
from provisioner.reasons import ShadowOnly

SHADOW_SUFFIX = "-shadow"
"""Ends the name of a shadow: some adapters clean up at their polls, by the name of the controller."""


async def _refuse(*_: object) -> NoReturn:
    """Refuse an order. The planner of a shadow gives none."""
    raise RejectedError("this controller is a shadow: it gives no orders", FaultKind.CONFIG)


@dataclass(frozen=True, slots=True)
class ObservedAdapter:
    """Base of both: connects the adapter."""

    connection: AbstractAsyncContextManager[object]

    async def __aenter__(self) -> Self:
        await self.connection.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.connection.__aexit__(*exc)


@dataclass(frozen=True, slots=True)
class ObservedSite(ObservedAdapter):
    """A site that can only be polled."""

    poll: Callable[[], Coroutine[Any, Any, SiteView]]
    start = stop = staticmethod(_refuse)

    @classmethod
    def of(cls, site: Site) -> Self:
        return cls(site, site.poll)


@dataclass(frozen=True, slots=True)
class ObservedOverlay(ObservedAdapter):
    """An overlay that can only be polled; its view has the drones of other systems, too."""

    poll_pool: Callable[[Sequence[DroneType]], Coroutine[Any, Any, OverlayView]]
    poll_others: Callable[[], Coroutine[Any, Any, Sequence[OtherDrones]]] | None
    drain = bootstrap = staticmethod(_refuse)

    @classmethod
    def of(cls, overlay: Overlay) -> Self:
        return cls(overlay, overlay.poll, overlay.other_drones if isinstance(overlay, SupportsOtherDrones) else None)

    async def poll(self, types: Sequence[DroneType]) -> OverlayView:
        view = await self.poll_pool(types)
        return replace(view, others=tuple(await self.poll_others())) if self.poll_others else view


def decide_without_orders(snapshot: Snapshot) -> Plan:
    """Return the planner's decisions, with each start as a refusal and without other orders."""
    plan = decide(snapshot)
    starts = Counter((s.drone.for_class, s.drone.site, s.drone.type) for s in plan.starts)
    refusals = tuple(
        Refusal(f"class:{class_id}" if class_id else f"site:{site}", number, ShadowOnly(key, number))
        for (class_id, site, key), number in starts.items()
    )
    return replace(plan, starts=(), drains=(), stops=(), orphans=(), refusals=(*refusals, *plan.refusals))
