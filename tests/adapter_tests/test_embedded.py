"""The embedded overlay keeps the contract of an overlay, with real drones."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adapters.embedded import EmbeddedOverlay, queue
from provisioner.adapter_tests import OverlayContract, OverlayWorld
from provisioner.model import DroneId, DroneType, StartOrder
from tests.embedded.drones import KIND, Drones, config


class EmbeddedWorld:
    kind: DroneType = KIND
    longest_wait_s = 20.0

    def __init__(self, root: Path) -> None:
        self.path = root / "queue.db"
        self.drones = Drones(root / "drones")

    def overlay(self) -> EmbeddedOverlay:
        return EmbeddedOverlay(config(self.path), "kit")

    async def submit(
        self, count: int, *, gpu_milli: int, cpus: int = 1, seconds: float = 0.0, vram_mib: int = 0
    ) -> None:
        queue.submit(
            self.path,
            ["sleep", str(seconds)],
            count=count,
            gpus=gpu_milli / 1000,
            cpus=cpus,
            vram_mib=vram_mib,
        )

    async def done(self) -> int:
        return queue.counts(self.path)[queue.JobState.DONE]

    async def begin(self, order: StartOrder) -> None:
        self.drones.begin(order)

    async def ended(self, drone_id: DroneId) -> bool:
        return self.drones.processes[drone_id].poll() == 0

    async def end(self, drone_id: DroneId) -> None:
        self.drones.signal(drone_id, signal.SIGTERM)
        assert await self.drones.status(drone_id) == 0

    @asynccontextmanager
    async def broken(self) -> AsyncIterator[None]:
        away = self.path.with_name("away.db")
        self.path.rename(away)
        yield
        away.rename(self.path)


class TestEmbeddedOverlay(OverlayContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[OverlayWorld]:
        world = EmbeddedWorld(tmp_path)
        yield world
        world.drones.close()
