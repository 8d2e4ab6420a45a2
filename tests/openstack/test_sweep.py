"""What is taken away of what deleted servers leave, when, and what is never touched."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.openstack.nova import OpenStackCloud
from adapters.openstack.records import Port, Server, Volume
from adapters.openstack.termination import ResourceCleanup, leftovers
from provisioner.interfaces import UnavailableError
from tests.openstack.clouded import Clouded, access, fault, running
from tests.openstack.stocked import stocked


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUD_SECRET", "s3cret")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def gone(server_id: str = "s1", status: str = "DELETED", *volumes: str) -> Server:
    return Server(server_id, "kit-a-1", status, volumes=volumes)


def port(port_id: str, server: str = "s1", owner: str = "compute:nova") -> dict[str, Any]:
    return {"id": port_id, "device_id": server, "device_owner": owner}


def test_only_what_was_a_drones_and_is_free_is_left_behind() -> None:
    ports = [
        Port("ours", "s1", "compute:nova"),
        Port("a-zone's", "s1", "compute:az-2"),
        Port("another's", "s9", "compute:nova"),
        Port("a-router's", "s1", "network:router_interface"),
        Port("nobody's", "", ""),
    ]
    volumes = [
        Volume("booted", "available"),
        Volume("failed", "error_deleting"),
        Volume("in-use", "in-use"),
        Volume("goes", "deleting"),
        Volume("a-person's", "available"),
    ]
    server = gone("s1", "DELETED", "booted", "failed", "in-use", "goes")
    assert leftovers({"s1": server}, ports, volumes) == (["ours", "a-zone's"], ["booted", "failed"])
    assert leftovers({}, ports, volumes) == ([], [])


def test_without_a_deleted_server_nobody_is_asked() -> None:
    sweeper = ResourceCleanup(600.0, Clock())
    assert not sweeper.due({})
    assert not sweeper.due({"s1": gone(status="ACTIVE")}), "merely not listed"
    assert sweeper.due({"s1": gone()})
    assert not ResourceCleanup(0.0, Clock()).due({"s1": gone()}), "0: never"


async def test_it_sweeps_now_and_again_until_it_is_late_enough() -> None:
    clock = Clock()
    sweeper = ResourceCleanup(600.0, clock)
    seen = {"s1": gone("s1", "DELETED", "v1")}
    async with running(stocked()) as clouded, cloud(clouded) as nova:
        clouded.lists["ports"] = [port("p1"), port("p9", "s9")]
        clouded.lists["volumes"] = [{"id": "v1", "status": "detaching"}, {"id": "v9", "status": "available"}]
        assert sweeper.due(seen)
        await sweeper.run(nova)
        assert left(clouded) == ["p9", "v1", "v9"]
        assert not sweeper.due(seen)
        clouded.lists["volumes"][0]["status"] = "available"
        clock.now += 601
        assert sweeper.due(seen), "Cinder was late"
        await sweeper.run(nova)
        assert left(clouded) == ["p9", "v9"]
        clock.now += 601
        assert not sweeper.due(seen), "it is enough"
        assert not sweeper.due({})
        assert sweeper.due({"s2": gone("s2")})


async def test_one_that_failed_is_tried_again_soon() -> None:
    clock = Clock()
    sweeper = ResourceCleanup(600.0, clock)
    async with running(stocked()) as clouded, cloud(clouded, deadline_s=0.2) as nova:
        clouded.lists["ports"] = [port("p1")]

        async def down(request: Any) -> Any:
            return fault(503, "x", "busy") if "/network" in request.path else None

        clouded.before = down
        assert sweeper.due({"s1": gone()})
        with pytest.raises(UnavailableError):
            await sweeper.run(nova)
        clouded.before = None
        clock.now += 61
        assert sweeper.due({"s1": gone()})
        await sweeper.run(nova)
        assert left(clouded) == []


def cloud(clouded: Clouded, deadline_s: float = 10) -> OpenStackCloud:
    return OpenStackCloud(access(clouded), deadline_s=deadline_s, parallel=4)


def left(clouded: Clouded) -> list[str]:
    return [each["id"] for each in (*clouded.lists["ports"], *clouded.lists["volumes"])]
