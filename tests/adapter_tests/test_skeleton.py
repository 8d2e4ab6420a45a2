"""A skeleton adapter keeps the contract of a site, and the suite finds the usual mistakes in it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

from provisioner.adapter_tests import SiteContract, SiteWorld
from provisioner.model import DroneId, DroneType
from tests.adapter_tests import skeleton
from tests.adapter_tests.pods import PodServer
from tests.adapter_tests.skeleton import PodSite
from tests.labs.shell_drones import ShellDrones
from tests.local.drones import tagged

SMALL = DroneType("k8s", "small", gpu_milli=1000, cpus=2, memory_mib=1024, disk_mib=10)
HUGE = DroneType("k8s", "huge", gpu_milli=9000, cpus=2, memory_mib=1024, disk_mib=10)


class PodWorld(ShellDrones):
    controller = f"kit{os.getpid()}"
    kind: DroneType = SMALL
    impossible: DroneType = HUGE
    grace_s = 1.0
    patience_s = 20.0
    tells_free = False
    tells_exit_codes = True

    def __init__(self, server: PodServer, endpoint: str, adapter: type[PodSite] = PodSite) -> None:
        self.server, self._endpoint, self._adapter = server, endpoint, adapter

    def site(self, controller: str | None = None, **options: object) -> PodSite:
        config = skeleton.Config.model_validate({"endpoint": self._endpoint, **options})
        return self._adapter("k8s", config, [SMALL, HUGE], controller or self.controller)

    async def alive(self, drone_id: DroneId) -> int:
        pod = self.server.pod(drone_id)
        return int(pod is not None and pod.process.poll() is None)

    async def anything_left(self, drone_id: DroneId) -> bool:
        return bool(await self.alive(drone_id) or tagged(drone_id))

    @asynccontextmanager
    async def _with(self, **faults: Any) -> AsyncIterator[None]:
        before = {name: getattr(self.server, name) for name in faults}
        vars(self.server).update(faults)
        try:
            yield
        finally:
            vars(self.server).update(before)

    broken = partialmethod(_with, down=True)
    lost_replies = partialmethod(_with, loses_replies=True)
    pages = partialmethod(_with, page=1)
    cut_listings = partialmethod(_with, cuts_listings=True)
    refused_starts = partialmethod(_with, has_no_room=True)

    def refused_stops(self, status: int) -> Any:
        return self._with(stop_status=status)

    def forgetful_site(self) -> PodSite:
        return self.site(retain_finished="0s")

    async def objects(self, drone_id: DroneId) -> Sequence[str]:
        return [f"pod {drone_id}"] if self.server.pod(drone_id) else []


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[PodServer, str]]:
    server = PodServer(tmp_path / "pods")
    endpoint = await server.start()
    yield server, endpoint
    await server.stop()


class TestSkeleton(SiteContract):
    @pytest.fixture
    def world(self, server: tuple[PodServer, str]) -> SiteWorld:
        return PodWorld(*server)


_NOT_STOPPED = "test_a_stop_that_the_site_does_not_carry_out_is_not_done"
MUTANTS: Sequence[tuple[type[PodSite], str, Mapping[str, int]]] = [
    (skeleton.LosesDrones, "test_a_start_whose_reply_is_lost_is_unsure_and_never_refused", {}),
    (skeleton.ReadsOnePage, "test_all_pages_of_a_listing_are_read", {}),
    (skeleton.TakesHalf, "test_half_a_listing_is_never_taken_for_the_whole", {}),
    (skeleton.BelievesStarts, "test_a_rejected_start_makes_nothing", {}),
    *((skeleton.BelievesStops, _NOT_STOPPED, {"status": status}) for status in (403, 500, 503)),
    (skeleton.LeavesPods, "test_nothing_of_an_ended_drone_is_left_at_the_site", {}),
]
"""Each mutant, and the test of the suite that finds it."""


@pytest.mark.parametrize(("mutant", "test", "arguments"), MUTANTS)
async def test_the_suite_finds_each_mutant(
    mutant: type[PodSite], test: str, arguments: Mapping[str, int], server: tuple[PodServer, str]
) -> None:
    world = PodWorld(*server, mutant)
    world.patience_s = 3.0
    with pytest.raises(AssertionError):
        await getattr(SiteContract(), test)(world, **arguments)
