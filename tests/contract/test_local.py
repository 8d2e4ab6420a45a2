"""The local site keeps the contract of a site, on a declared host with real processes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adapters.local_site import LocalSite
from provisioner.contract import SiteContract, SiteWorld
from provisioner.model import Admission, DroneId, DroneType
from tests.local.drones import HERE, HUGE, LIVING, SMALL, STUBBORN, config, end_all_tagged, exiting, launchers, tagged


class LocalWorld:
    controller = f"kit{os.getpid()}"
    kind: DroneType = SMALL
    impossible: DroneType = HUGE
    grace_s = 1.0
    patience_s = 20.0
    tells_free = True
    tells_exit_codes = True

    def __init__(self, root: Path) -> None:
        self.root = root

    def site(self, controller: str | None = None) -> LocalSite:
        return LocalSite(HERE, config(self.root), [SMALL, HUGE], controller or self.controller)

    def living(self) -> Admission:
        return LIVING

    def stubborn(self) -> Admission:
        return STUBBORN

    def exiting(self, code: int) -> Admission:
        return exiting(code)

    async def alive(self, drone_id: DroneId) -> int:
        return len(launchers(drone_id))

    async def anything_left(self, drone_id: DroneId) -> bool:
        return bool(tagged(drone_id))

    @asynccontextmanager
    async def broken(self) -> AsyncIterator[None]:
        """The file system with the root is not there: not even root may look into a missing directory."""
        away = self.root.with_name("away")
        self.root.rename(away)
        self.root.write_text("not a directory")
        yield
        self.root.unlink()
        away.rename(self.root)


class TestLocalSite(SiteContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[SiteWorld]:
        yield LocalWorld(tmp_path / "drones")
        left = end_all_tagged(LocalWorld.controller)
        assert not left, "the story left processes behind"
