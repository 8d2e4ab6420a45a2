"""Shadow mode: adapters reduced to their polls, and plans without orders.

A shadow is the controller with other adapters and another planner. No order can leave it: what it
has in the place of a site or an overlay holds the adapter's connection and its ``poll``, and
nothing that starts, stops or drains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, NoReturn, Self

from provisioner.interfaces import Overlay, RejectedError, Site, SupportsOtherDrones
from provisioner.keys import Subject
from provisioner.model import DroneType, FaultKind, OverlayView, Plan, Refusal, Snapshot
from provisioner.planner import decide
from provisioner.reasons import ShadowOnly
from provisioner.values import frozen

SHADOW_SUFFIX = "-shadow"
"""Ends the name of a shadow: some adapters clean up at their polls, by the name of the controller."""


async def _refuse(*_: object) -> NoReturn:
    """Refuse an order. The planner of a shadow gives none."""
    raise RejectedError("this controller is a shadow: it gives no orders", FaultKind.CONFIG)


@frozen
class ObservedAdapter:
    """A site or an overlay that can only be polled."""

    connection: AbstractAsyncContextManager[object]
    poll: Callable[..., Coroutine[Any, Any, Any]]
    start = stop = drain = bootstrap = staticmethod(_refuse)

    async def __aenter__(self) -> Self:
        await self.connection.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.connection.__aexit__(*exc)


def observed_site(site: Site) -> Site:
    """Return a site reduced to its poll."""
    return ObservedAdapter(site, site.poll)


def observed_overlay(overlay: Overlay) -> Overlay:
    """Return an overlay reduced to its poll, whose view has the drones of other systems, too."""
    if not isinstance(overlay, SupportsOtherDrones):
        return ObservedAdapter(overlay, overlay.poll)
    poll_pool = overlay.poll
    poll_others = overlay.other_drones

    async def poll(types: Sequence[DroneType]) -> OverlayView:
        return replace(await poll_pool(types), others=tuple(await poll_others()))

    return ObservedAdapter(overlay, poll)


def decide_without_orders(snapshot: Snapshot) -> Plan:
    """Return the planner's decisions, with each start as a refusal and without other orders."""
    plan = decide(snapshot)
    starts = Counter((s.drone.for_class, s.drone.site, s.drone.type) for s in plan.starts)
    refusals = tuple(
        Refusal(
            Subject("class", class_id) if class_id else Subject("site", site),
            number,
            ShadowOnly(key, number),
        )
        for (class_id, site, key), number in starts.items()
    )
    return replace(
        plan, starts=(), drains=(), stops=(), orphans=(), refusals=(*refusals, *plan.refusals)
    )
