"""A skeleton adapter keeps the contract of a site, and the suite finds the usual mistakes in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partialmethod
from typing import Any

import pytest

from provisioner.adapter_tests import SiteContract, SiteWorld
from provisioner.model import Bootstrap, DroneId, DroneType, StartOrder
from tests.adapter_tests.skeleton import LIVING, STUBBORN, PodApi, PodSite


class PodWorld:
    controller = "kit"
    kind = DroneType("k8s", "small", gpu_milli=1000, cpus=2, memory_mib=1024, disk_mib=10)
    impossible = DroneType("k8s", "huge", gpu_milli=9000, cpus=2, memory_mib=1024, disk_mib=10)
    grace_s = 0.5
    longest_wait_s = 3.0
    reports_free = False
    reports_exit_codes = True

    def __init__(self, mistake: str = "") -> None:
        self.api, self._mistake = PodApi(), mistake

    def site(self, controller: str | None = None) -> PodSite:
        return PodSite(self.api, controller or self.controller, mistake=self._mistake)

    def forgetful_site(self) -> PodSite:
        return PodSite(self.api, self.controller, keep_s=0.0, mistake=self._mistake)

    def living(self) -> Bootstrap:
        return Bootstrap(LIVING)

    def stubborn(self) -> Bootstrap:
        return Bootstrap(STUBBORN)

    def exiting(self, code: int) -> Bootstrap:
        return Bootstrap(str(code).encode())

    async def start_unseen(self, order: StartOrder) -> None:
        await self.api.create(self.controller, order, again=True)

    async def alive(self, drone_id: DroneId) -> int:
        pods = self.api.pods().values()
        return sum(pod.order.drone_id == drone_id and not pod.ended for pod in pods)

    async def anything_left(self, drone_id: DroneId) -> bool:
        return bool(await self.alive(drone_id))

    @asynccontextmanager
    async def _with(self, **faults: Any) -> AsyncIterator[None]:
        before = {name: getattr(self.api, name) for name in faults}
        vars(self.api).update(faults)
        try:
            yield
        finally:
            vars(self.api).update(before)

    broken = partialmethod(_with, down=True)
    lost_replies = partialmethod(_with, loses_replies=True)
    pages = partialmethod(_with, page=1)
    cut_listings = partialmethod(_with, cuts_listings=True)
    refused_starts = partialmethod(_with, has_no_room=True)

    def refused_stops(self, status: int) -> Any:
        return self._with(stop_status=status)

    async def objects(self, drone_id: DroneId) -> Sequence[str]:
        return [drone_id] if drone_id in self.api.pods() else []


class TestSkeleton(SiteContract):
    @pytest.fixture
    def world(self) -> SiteWorld:
        return PodWorld()


_NOT_STOPPED = "test_a_stop_that_the_site_does_not_carry_out_is_not_done"
_TWO_STARTS = "test_of_two_starts_of_one_drone_all_members_keep_the_same"
MUTANTS: Sequence[tuple[str, str, Mapping[str, int]]] = [
    ("lists late", "test_a_drone_is_started_listed_stopped_and_gone", {}),
    ("loses drones", "test_a_start_whose_reply_is_lost_is_unsure_and_never_refused", {}),
    ("reads one page", "test_all_pages_of_a_listing_are_read", {}),
    ("takes half a listing", "test_half_a_listing_is_never_taken_for_the_whole", {}),
    ("believes starts", "test_a_rejected_start_makes_nothing", {}),
    *(("believes stops", _NOT_STOPPED, {"status": status}) for status in (403, 500, 503)),
    *((each, _TWO_STARTS, {}) for each in ("keeps both", "lists the newest")),
    ("leaves pods", "test_nothing_of_an_ended_drone_is_left_at_the_site", {}),
]
"""Each mistake, and the test of the suite that finds it."""


@pytest.mark.parametrize(("mistake", "test", "arguments"), MUTANTS)
async def test_the_suite_finds_each_mutant(
    mistake: str, test: str, arguments: Mapping[str, int]
) -> None:
    with pytest.raises(AssertionError):
        await getattr(SiteContract(), test)(PodWorld(mistake), **arguments)
