"""What the cloud lists becomes drones: states, reasons, notices, ends; what is one too many, what is to be cleared."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from adapters.openstack.capacity import host_id
from adapters.openstack.records import Server, ServerFault
from adapters.openstack.registry import RegistryView, ServerListing, listing, metadata, tags
from provisioner.model import DroneId, EndKind, FaultKind, RemoteDrone, RemoteEnd, RemoteState

NOW = 1_800_000_000.0
SEVEN = DroneId("kit-a1b2-7")
HOST = host_id("p", "gk-gpu-01")
PLACES = {HOST: "gk-gpu-01"}
RUNS = Server(
    "s1",
    SEVEN,
    "ACTIVE",
    power=1,
    created_at=NOW - 900,
    updated_at=NOW - 600,
    launched_at=NOW - 600,
    host_id=HOST,
    tags=frozenset(tags(SEVEN, "kit", "cloud")),
    metadata=metadata(SEVEN, "a100", "kit", "cloud"),
)
BUILDS = replace(RUNS, status="BUILD", power=0, launched_at=0.0, host_id="", task="scheduling")
NO_HOST = ServerFault(500, "No valid host was found. There are not enough hosts available.")
FAILED = replace(BUILDS, status="ERROR", task="", fault=NO_HOST)
OFF = replace(RUNS, status="SHUTOFF", power=4)
END = RemoteEnd(EndKind.EXITED, NOW - 30, 0, "idle: no claim for 600 s")


def listed(
    *servers: Server,
    gone: Collection[Server] = (),
    others: Collection[Server] = (),
    ends: Mapping[DroneId, RemoteEnd] | None = None,
    asked: Collection[DroneId] = (),
) -> ServerListing:
    muster = RegistryView(servers, {server.id: server for server in gone}, tuple(others))
    return listing(muster, ends or {}, asked, PLACES, "kit", "cloud", NOW)


def one(server: Server, **more: Any) -> RemoteDrone:
    [drone] = listed(server, **more).drones.values()
    return drone


# -------------------------------------------------------------------------------------------------------------- alive


def test_an_active_server_is_a_running_drone() -> None:
    found = listed(RUNS)
    assert found == ServerListing(
        {SEVEN: RemoteDrone(SEVEN, RemoteState.RUNNING, "s1", "a100", NOW - 600, node="gk-gpu-01", slot="s1@gk-gpu-01")}
    )


def test_a_host_that_nobody_names_is_told_by_its_id() -> None:
    unnamed = host_id("p", "gk-gpu-77")
    assert one(replace(RUNS, host_id=unnamed)).node == unnamed[:12]
    assert (one(BUILDS).node, one(BUILDS).slot) == ("", "")


def test_one_that_is_being_built_waits() -> None:
    drone = one(BUILDS)
    assert (drone.state, drone.reason, drone.started_at) == (RemoteState.PENDING, "is being built: scheduling", 0.0)
    assert (drone.blocked, drone.hopeless) == (None, False)


def test_one_that_found_no_host_waits_in_vain_and_others_would() -> None:
    drone = one(FAILED)
    assert (drone.state, drone.blocked, drone.final, drone.hopeless) == (
        RemoteState.PENDING,
        FaultKind.CAPACITY,
        True,
        True,
    )
    assert drone.reason == "No valid host was found. There are not enough hosts available."
    assert listed(FAILED).over == {}  # the core asks for its end


def test_a_clock_ahead_of_ours_starts_nothing_in_the_future() -> None:
    drone = one(replace(RUNS, launched_at=NOW + 500, updated_at=NOW + 500, task="deleting"))
    assert (drone.started_at, drone.notice_at) == (NOW, NOW)


def test_what_the_cloud_says_is_one_printable_line() -> None:
    drone = one(replace(FAILED, fault=ServerFault(500, "\x1b[2J bad\n" * 500)))
    assert drone.reason.isprintable()
    assert len(drone.reason) <= 300


# -------------------------------------------------------------------------------------------------------------- notice


def test_somebody_takes_its_place_back() -> None:
    drone = one(replace(RUNS, task="powering-off", updated_at=NOW - 3))
    assert (drone.state, drone.notice_at, drone.reason) == (RemoteState.RUNNING, NOW - 3, "is being shut down")


def test_our_own_request_is_no_notice() -> None:
    assert one(replace(RUNS, task="powering-off"), asked={SEVEN}).notice_at == 0.0


# -------------------------------------------------------------------------------------------------------- over and gone


@pytest.mark.parametrize("status", ["SHUTOFF", "SUSPENDED", "SHELVED_OFFLOADED"])
def test_one_that_is_over_is_to_be_looked_at_and_deleted(status: str) -> None:
    server = replace(OFF, status=status)
    found = listed(server)
    assert found.over == {SEVEN: server}
    assert (found.drones[SEVEN].state, found.drones[SEVEN].end) == (RemoteState.STOPPED, None)
    assert listed(server, ends={SEVEN: END}).drones == found.drones  # how it ended is told once it is gone


def test_one_that_is_gone_tells_its_end() -> None:
    drones = listed(gone=[replace(OFF, status="DELETED")], ends={SEVEN: END}).drones
    assert drones == {
        SEVEN: RemoteDrone(
            SEVEN, RemoteState.ENDED, "s1", "a100", NOW - 600, end=END, node="gk-gpu-01", slot="s1@gk-gpu-01"
        )
    }


def test_the_end_of_one_that_was_deleted_is_yet_to_be_found() -> None:
    gone = replace(RUNS, status="DELETED")
    found = listed(gone=[gone])
    assert found.unsettled == {SEVEN: gone}
    assert (found.drones[SEVEN].state, found.drones[SEVEN].end) == (RemoteState.STOPPED, None)


def test_one_that_is_merely_not_listed_is_left_to_the_core() -> None:
    found = listed(gone=[RUNS])
    assert (found.drones, found.unsettled) == ({}, {SEVEN: RUNS})
    assert listed(gone=[RUNS], ends={SEVEN: END}).drones[SEVEN].end == END


def test_a_deleted_one_of_which_only_the_name_is_told() -> None:
    bare = Server("s1", SEVEN, "DELETED", launched_at=NOW - 600)
    drone = listed(gone=[bare], ends={SEVEN: END}).drones[SEVEN]
    assert (drone.end, drone.type, drone.remote_id) == (END, "", "s1")
    assert listed(gone=[replace(bare, name="kitchen")], ends={SEVEN: END}).drones == {}


# -------------------------------------------------------------------------------------------------------------- doubles


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        (replace(RUNS, created_at=NOW - 5), RUNS),
        (BUILDS, replace(RUNS, created_at=NOW)),
        (FAILED, replace(BUILDS, created_at=NOW)),
        (OFF, replace(BUILDS, created_at=NOW)),
        (replace(OFF, created_at=NOW - 9999), FAILED),
        (replace(RUNS, status="PAUSED", power=3), replace(RUNS, created_at=NOW)),
        (replace(BUILDS, task="deleting", created_at=NOW), BUILDS),
    ],
)
def test_of_a_drone_that_is_there_twice_the_one_with_less_to_lose_goes(worse: Server, better: Server) -> None:
    worse, better = replace(worse, id="worse"), replace(better, id="better")
    for pair in ((worse, better), (better, worse)):
        found = listed(*pair)
        assert (found.drones[SEVEN].remote_id, found.surplus, found.over) == ("better", ("worse",), {})
        assert found.notices == (f"{SEVEN} is there twice, as better and worse",)


def test_none_goes_while_nobody_knows_which_is_better() -> None:
    unknown = replace(RUNS, id="s2", status="UNKNOWN", power=0)
    assert listed(BUILDS, unknown).surplus == ()


def test_one_that_is_there_counts_more_than_one_that_was() -> None:
    found = listed(RUNS, gone=[replace(OFF, id="s0", status="DELETED")], ends={SEVEN: END})
    assert (found.drones[SEVEN].state, found.unsettled) == (RemoteState.RUNNING, {})


def test_of_two_that_are_gone_the_one_that_ran_is_told() -> None:
    ran = replace(OFF, id="s0", status="DELETED", updated_at=NOW - 500)
    never = replace(BUILDS, status="DELETED", updated_at=NOW)
    for pair in ((ran, never), (never, ran)):
        assert listed(gone=pair).unsettled == {SEVEN: ran}


def test_what_carries_our_tag_and_is_no_drone_is_told() -> None:
    stray = replace(RUNS, metadata={**RUNS.metadata, "provisioner_drone": "kit\x1b7"})
    assert listed(others=[stray]).notices == ("server s1 carries our tag, and kit?7 as its drone id",)
    assert listed(others=[replace(stray, tags=frozenset({"web"}))]).notices == ()
