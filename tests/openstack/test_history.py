"""The past of a site by Nova's times of servers."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

from adapters.openstack.history import READING_S, past_servers, site_history
from adapters.openstack.nova import OpenStackCloud
from adapters.openstack.servers import Flavor, Server
from adapters.openstack.settings import OpenStackOwnerConfig
from adapters.openstack.site import OpenStackSite as Site
from provisioner.history import HISTORY_S, PastStart
from provisioner.interfaces import SupportsSiteHistory
from tests.openstack.fake_openstack import (
    A100,
    CONTROLLER,
    SITE,
    FakeCloud,
    drone,
    has,
    site_config,
)

NOW = 1_800_000_000.0
SINCE = NOW - HISTORY_S
GPU = Flavor("gpu.a100.1", 8, 20480, 0, {"pci_passthrough:alias": "a100:1"}, "f1")
OWNER = OpenStackOwnerConfig.model_construct(names="^etp-")
RUNS = Server(
    "1", "etp-1", "ACTIVE", created_at=NOW - 900, launched_at=NOW - 800, host_id="h", flavor=GPU
)


def gone(n: int, start_s: float, end_s: float, **more: Any) -> Server:
    times = {
        "created_at": NOW - start_s - 60,
        "launched_at": NOW - start_s,
        "terminated_at": NOW - end_s,
    }
    return replace(RUNS, id=f"{n}", status="DELETED", host_id="", **{**times, **more})


def steps(*theirs: Server) -> list[tuple[float, int]]:
    told = site_history((), {}, theirs, OWNER, {"h"}, SINCE, NOW)
    return [(at - NOW, gpu_milli // 1000) for at, gpu_milli in told.owner_steps]


def test_the_owners_servers_add_up_since_the_oldest_deletion() -> None:
    first, second = gone(2, 9000, 5000), gone(3, 3000, 700)
    assert steps(RUNS, first, second) == [(-5000, 0), (-3000, 1), (-800, 2), (-700, 1)]
    assert steps(RUNS) == [], "Nova may have forgotten the others"
    ours = replace(second, id="4", name="kit-ab12-1", metadata={"provisioner_drone": "kit-ab12-1"})
    elsewhere = replace(RUNS, id="5", host_id="other")
    other = replace(second, id="6", flavor=replace(GPU, name="gpu.v100"))
    assert steps(RUNS, first, second, ours, elsewhere, other) == steps(RUNS, first, second)


def test_times_that_make_no_sense_add_nothing() -> None:
    odd = [
        gone(3, 600, 900),
        gone(4, 600, 300, launched_at=0.0),
        gone(5, 600, 300, terminated_at=0.0),
    ]
    assert {
        gpus for _, gpus in steps(replace(RUNS, launched_at=0.0), gone(2, 9000, 5000), *odd)
    } == {0}
    never = replace(RUNS, id="9", status="ERROR", launched_at=0.0)
    early = replace(RUNS, id="8", launched_at=RUNS.created_at - 5)
    told = site_history(
        (RUNS, never, early, replace(RUNS, flavor=None)), {"a100": GPU}, (), None, (), SINCE, NOW
    )
    assert told.starts == (PastStart("a100", NOW - 800, 100.0),) and told.owner_steps == ()


def test_each_type_of_a_flavor_has_its_starts() -> None:
    told = site_history((RUNS,), {"a100": GPU, "mps": GPU}, (), None, (), SINCE, NOW)
    assert [start.type for start in told.starts] == ["a100", "mps"]


def test_of_a_list_that_was_cut_the_use_is_known_since_its_oldest_server() -> None:
    theirs = (RUNS, gone(2, 4000, 1000), gone(3, 3000, 2500))
    told = site_history((), {}, theirs, OWNER, {"h"}, SINCE, NOW, left_out=True)
    assert told.left_out and told.owner_steps[0][0] == NOW - 2500
    told = site_history(
        (), {}, (RUNS, gone(2, 1500, 1000)), OWNER, {"h"}, SINCE, NOW, left_out=True
    )
    assert told.owner_steps[0][0] == NOW - 1000


async def test_pages_are_read_as_long_as_there_is_time(
    fake: FakeCloud, nova: OpenStackCloud
) -> None:
    fake.page = 2
    for n in range(6):
        fake.add(f"etp-{n}")
    for step_s, pages in ((0.0, 3), (READING_S, 2)):
        fake.asked.clear()
        times = count(0.0, step_s)
        found, left_out = await past_servers(nova, 1.0, lambda times=times: next(times))  # type: ignore[misc]
        assert len(found) == 6 and left_out is (step_s > 0)
        assert len([each for each in fake.asked if "changes-since" in each]) == pages


async def test_deleted_servers_are_asked_for_and_nothing_is_changed(fake: FakeCloud) -> None:
    def moment(at: str) -> float:
        return datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp()

    more = {
        "flavor": {"original_name": "gpu.a100.1"},
        "OS-SRV-USG:launched_at": "2026-11-21T23:04:00.000000",
    }
    has(fake, drone(1), **more)
    server = has(fake, drone(2), **more)
    fake.deleted[server] = {
        **fake.servers.pop(server),
        "status": "DELETED",
        "tags": [],
        "metadata": {},
    }
    async with Site(SITE, site_config(fake), [A100], CONTROLLER) as site:
        assert isinstance(site, SupportsSiteHistory)
        past = await site.history(moment("2026-11-20T00:00:00"))
        assert past.starts == (PastStart("a100", moment("2026-11-21T23:04:00"), 240.0),) * 2
    assert not [each for each in fake.asked if each.split()[0] != "GET" and "/auth/" not in each]
