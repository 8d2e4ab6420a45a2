"""An overlay adapter on one of the lab's pools, as an operator would configure it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from adapters.htcondor.overlay import HTCondorConfig, HTCondorOverlay
from provisioner.interfaces import UnavailableError
from provisioner.model import DroneType, JobClass, OverlayView, Slot, SlotState
from tests.labs.htcondor import LOOPBACK, PATIENCE, DroneProcess, Pool

A100 = DroneType("lab", "a100", 1000, 2, 512, 1024, 40536, "A100-SXM4-40GB", 80, walltime_s=3600.0)
"""The drone that ``start_drone`` starts."""


def config(pool: Pool, identity: str = "admin", **more: Any) -> HTCondorConfig:
    clients = pool.dir / "clients"
    return HTCondorConfig.model_validate(
        {
            "collector": pool.collector,
            "trust_domain": pool.domain,
            "token": {"file": str(clients / identity / "tokens" / identity)},
            "drone_token": {"file": str(clients / "drone" / "tokens" / "drone")},
            "client_config": LOOPBACK,
            "drain_tool": str(pool.condor.prefix / "usr/bin/condor_drain"),
            **more,
        }
    )


@contextlib.asynccontextmanager
async def overlay_on(
    pool: Pool, identity: str = "admin", **more: Any
) -> AsyncIterator[HTCondorOverlay]:
    async with HTCondorOverlay(config(pool, identity, **more), "kit") as overlay:
        yield overlay


async def seen(
    overlay: HTCondorOverlay,
    holds: Callable[[OverlayView], object],
    within_s: float = 60.0,
    types: Any = (A100,),
) -> OverlayView:
    """Poll until a view is as wanted. A poll may fail meanwhile."""
    limit, last = time.monotonic() + PATIENCE * within_s, "no poll"
    while time.monotonic() < limit:
        try:
            view = await overlay.poll(types)
            if holds(view):
                return view
            last = str(view)
        except UnavailableError as error:
            last = str(error)
        await asyncio.sleep(0.2)
    raise AssertionError(last)


def slot_of(view: OverlayView, drone_id: str) -> Slot | None:
    return next((slot for slot in view.slots if slot.drone_id == drone_id), None)


def in_state(state: SlotState, *drones: DroneProcess) -> Callable[[OverlayView], bool]:
    """Return a predicate: the slots of these drones are in a state."""
    ids = {each.id for each in drones}
    return lambda view: {slot.drone_id for slot in view.slots if slot.state is state} >= ids


def classes_of(view: OverlayView, owner: str = "alice") -> list[JobClass]:
    return [each for each in view.classes if each.owner == owner]
