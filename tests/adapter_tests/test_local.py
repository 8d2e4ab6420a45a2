"""The local site keeps the contract of a site, on a declared host with real processes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from adapters.local import LocalSite
from provisioner.adapter_tests import SiteContract, SiteWorld, eventually
from provisioner.model import DroneId, DroneType, OrderOutcome, StartOrder, StopOrder
from tests.labs.shell_drones import ShellDrones, unsupported
from tests.local.drones import HERE, HUGE, LIVING, SMALL, config, end_all_tagged, launchers, tagged


class LocalWorld(ShellDrones):
    controller = f"kit{os.getpid()}"
    kind: DroneType = SMALL
    impossible: DroneType = HUGE
    grace_s = 1.0
    longest_wait_s = 20.0
    reports_free = True
    reports_exit_codes = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self._serial = count(1)

    def site(self, controller: str | None = None, **options: str) -> LocalSite:
        return LocalSite(
            HERE, config(self.root, **options), [SMALL, HUGE], controller or self.controller
        )

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

    lost_replies = unsupported(
        "a launcher reports in a file of its own: there is no reply that could be lost"
    )
    pages = unsupported("a directory is read in one go")
    cut_listings = unsupported("a directory is read whole or not at all")
    refused_stops = unsupported("nothing between us and our processes could refuse")

    @asynccontextmanager
    async def refused_starts(self) -> AsyncIterator[None]:
        """Another controller holds all four GPUs."""
        ids = [DroneId(f"other{self.controller}-abcd-{next(self._serial)}") for _ in range(4)]
        orders = [StartOrder(drone_id, SMALL, 600, 1, LIVING) for drone_id in ids]
        async with self.site(f"other{self.controller}") as others:
            assert all(receipt.answer is OrderOutcome.OK for receipt in await others.start(orders))
            yield
            await others.stop([StopOrder(order.drone_id, "", kill=True) for order in orders])
            for order in orders:
                await eventually(
                    "its processes have ended",
                    lambda d=order.drone_id: self._ended(d),
                    self.longest_wait_s,
                )
            await others.poll()

    async def _ended(self, drone_id: DroneId) -> bool:
        return not await self.anything_left(drone_id)

    def forgetful_site(self) -> LocalSite:
        return self.site(retain_finished="0s")

    async def objects(self, drone_id: DroneId) -> Sequence[str]:
        return [
            str(self.root / name)
            for name in (drone_id, f".old-{drone_id}")
            if (self.root / name).exists()
        ]


class TestLocalSite(SiteContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[SiteWorld]:
        yield LocalWorld(tmp_path / "drones")
        left = end_all_tagged(LocalWorld.controller)
        assert not left, "the story left processes behind"
