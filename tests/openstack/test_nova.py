"""The calls against a cloud that answers as Nova, Neutron, Glance and Cinder do, and the parsing of its answers."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st

from adapters.openstack import servers
from adapters.openstack.servers import Flavor, Server, ServerFault
from provisioner.interfaces import RejectedError, UnavailableError
from provisioner.model import FaultKind
from tests.openstack.fake_openstack import PROJECT, FakeCloud, Nova, fault

_FIELDS = (
    *(
        "id",
        "name",
        "status",
        "created",
        "updated",
        "created_at",
        "start_time",
        "tags",
        "metadata",
        "attachments",
    ),
    *(
        "OS-EXT-STS:task_state",
        "OS-EXT-STS:power_state",
        "os-extended-volumes:volumes_attached",
        "server_id",
    ),
    *("flavor", "original_name", "vcpus", "ram", "disk", "extra_specs", "fault", "code", "message"),
    *("maxTotalCores", "totalCoresUsed"),
)
NOV_21 = 1795302000.0
"""2026-11-21T23:00:00Z"""


async def test_a_server_is_made_and_found_by_its_tag(fake: FakeCloud, nova: Nova) -> None:
    wanted = {
        "name": "kit-a-1",
        "flavorRef": "1",
        "tags": ["gpu-drone", "kit.s"],
        "networks": "none",
    }
    made = await nova.create(wanted, {"group": "g7"}, deadline_s=30)
    fake.add("other")
    [found] = await nova.servers(tag="kit.s")
    assert (found.id, found.name, found.status) == (made, "kit-a-1", "BUILD")
    assert fake.bodies == [{"server": wanted, "os:scheduler_hints": {"group": "g7"}}]


async def test_what_has_changed_is_told_with_what_was_deleted(fake: FakeCloud, nova: Nova) -> None:
    fake.add("kit-a-0", updated="2026-11-21T22:59:59Z")
    gone, other = fake.add("kit-a-1"), fake.add("fzi-a-1")
    await nova.delete(gone)
    await nova.delete(other)
    assert [each.status for each in await nova.servers()] == ["ACTIVE"]
    [found] = await nova.servers(name="^kit-", since=NOV_21 + 0.9)
    assert (found.id, found.status) == (gone, "DELETED")
    assert "changes-since=2026-11-21T23:00:00Z" in fake.asked[-1].replace("%3A", ":")


async def test_what_is_gone_is_deleted(fake: FakeCloud, nova: Nova) -> None:
    server = fake.add("kit-a-1")
    await nova.delete(server)
    await nova.delete(server)
    await nova.shut_down(server)
    assert await nova.console(server, 10) == ""
    assert await nova.actions(server) == []


async def test_a_conflict_at_deletion_is_fine_if_it_is_being_deleted(
    fake: FakeCloud, nova: Nova
) -> None:
    fake.fail("", lambda _: fault(409, "conflictingRequest", "Instance x is locked"), "DELETE")
    await nova.delete(fake.add("kit-a-1", **{"OS-EXT-STS:task_state": "deleting"}))
    with pytest.raises(RejectedError, match="is locked") as told:
        await nova.delete(fake.add("kit-a-2"))
    assert told.value.kind is FaultKind.DENIED


async def test_a_guest_is_told_to_shut_down(fake: FakeCloud, nova: Nova) -> None:
    server = fake.add("kit-a-1")
    await nova.shut_down(server)
    assert fake.servers[server]["OS-EXT-STS:task_state"] == "powering-off"
    await nova.shut_down(server)  # on its way
    await nova.shut_down(fake.add("kit-a-2", status="SHUTOFF"))
    await nova.shut_down(fake.add("kit-a-3", status="ERROR"))
    with pytest.raises(RejectedError, match="while it is in vm_state build"):
        await nova.shut_down(fake.add("kit-a-4", status="BUILD"))
    scheduling = {"OS-EXT-STS:task_state": "scheduling"}
    with pytest.raises(RejectedError, match="could not be found") as told:
        await nova.shut_down(fake.add("kit-a-5", status="BUILD", **scheduling))
    assert told.value.kind is FaultKind.CAPACITY, "it passes"


async def test_a_cloud_without_networks_and_volumes_has_nothing_left_behind(
    fake: FakeCloud, nova: Nova
) -> None:
    del fake.services["network"], fake.services["volumev3"]
    assert (await nova.volumes(), await nova.ports()) == ({}, {})
    with pytest.raises(UnavailableError, match="no service `network`") as told:
        await nova.names_by_id("networks")
    assert told.value.kind is FaultKind.CONFIG


def test_a_server_in_full() -> None:
    told = {
        **{"id": "119683a1", "name": "kit-a-1", "status": "error", "tenant_id": PROJECT},
        "hostId": "888c",
        **{"created": "2026-11-21T23:00:00Z", "updated": "2026-11-21T23:00:01Z"},
        "OS-SRV-USG:launched_at": "2026-11-21T23:00:02.500000",
        **{"OS-EXT-STS:task_state": "deleting", "OS-EXT-STS:power_state": 4},
        "flavor": {
            "original_name": "gpu",
            "vcpus": 8,
            "ram": 20480,
            "disk": 80,
            "extra_specs": {"a": "b"},
        },
        "metadata": {"provisioner_drone": "kit-a-1"},
        "fault": {
            "code": 500,
            "created": "2026-11-21T23:00:03Z",
            "message": "No valid host was found. ",
        },
        "os-extended-volumes:volumes_attached": [{"id": "v1", "delete_on_termination": True}],
    }
    assert servers.parse_server(told) == Server(
        "119683a1",
        "kit-a-1",
        "ERROR",
        task="deleting",
        power=4,
        **{"created_at": NOV_21, "updated_at": NOV_21 + 1, "launched_at": NOV_21 + 2.5},
        host_id="888c",
        flavor=Flavor("gpu", 8, 20480, 81920, {"a": "b"}),
        metadata={"provisioner_drone": "kit-a-1"},
        fault=ServerFault(500, "No valid host was found. "),
        volumes=("v1",),
    )


def test_a_server_of_a_cell_that_is_down_is_unknown_and_not_gone() -> None:
    told = {
        "id": "b546af1e",
        "created": "2026-11-21T23:00:00Z",
        "tenant_id": PROJECT,
        "status": "UNKNOWN",
        "links": [],
    }
    assert servers.parse_server(told) == Server("b546af1e", "", "UNKNOWN", created_at=NOV_21)
    assert servers.parse_server({"id": "b546af1e"}).status == "UNKNOWN"


@pytest.mark.parametrize("odd", [None, "", 7, "..", "../x", "a?b", "a" * 300])
def test_a_server_without_an_id_is_no_server(odd: object) -> None:
    with pytest.raises(UnavailableError, match="a server without an id"):
        servers.parse_server({"id": odd, "status": "ACTIVE"})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_FIELDS), inner, max_size=6)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(_FIELDS), _JSON))
def test_no_answer_is_more_than_a_site_that_is_down(told: dict[str, Any]) -> None:
    servers.parse_limits(told)
    servers.parse_action(told)
    for kind in ("server", "flavor", "image"):
        with suppress(UnavailableError):
            getattr(servers, f"parse_{kind}")(told)
