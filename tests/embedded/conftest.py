"""A queue, an overlay on it, and drones that are gone when the story is over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.embedded import EmbeddedOverlay
from provisioner.model import DroneId, DroneType, StartOrder
from tests.embedded.drones import KIND, Drones, config


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def drones(tmp_path: Path) -> Iterator[Drones]:
    drones = Drones(tmp_path / "drones")
    yield drones
    drones.close()


@pytest.fixture
def begin(path: Path, drones: Drones) -> Callable[..., Awaitable[DroneId]]:
    """Begin drone ``serial``, with options of the overlay's configuration."""

    async def begin(
        serial: int = 1,
        kind: DroneType = KIND,
        idle_s: float = 600.0,
        grace_s: float = 2.0,
        env: Mapping[str, str] | None = None,
        **options: object,
    ) -> DroneId:
        overlay = EmbeddedOverlay(config(path, **options), "kit")
        async with overlay:
            order = StartOrder(DroneId(f"kit-abcd-{serial}"), kind, idle_s, grace_s)
            made = await overlay.bootstrap(order)
            drones.begin(replace(order, bootstrap=replace(made, env={**made.env, **(env or {})})))
        return order.drone_id

    return begin
