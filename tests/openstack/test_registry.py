"""The servers of a project: what is listed when, what is not, clocks that differ, and servers as drones.

The cloud here lists as Nova does: by its own clock, what has changed with deleted ones and without what is deleted with
them, servers of a cell that is down only where nothing is filtered.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from adapters.openstack.capacity import host_id
from adapters.openstack.records import Server, ServerFault
from adapters.openstack.registry import MARGIN_S, RegistryView, ServerListing, ServerNames, ServerRegistry, listing
from provisioner.interfaces import UnavailableError
from provisioner.model import DroneId, EndKind, FaultKind, RemoteDrone, RemoteEnd, RemoteState

FULL_S, KEEP_S = 600.0, 900.0
SEVEN = DroneId("kit-a1b2-7")
NAMES = ServerNames("kit", "cloud")


@dataclass
class Nova:
    """Its listings, and what people and hosts do there."""

    now: float = 1_800_000_000.0
    """By its clock."""
    rows: dict[str, Server] = field(default_factory=dict)
    cells: dict[str, str] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    broken: bool = False

    async def servers(self, *, tag: str = "", name: str = "", since: float = 0.0) -> Sequence[Server]:
        if self.broken:
            raise UnavailableError("no answer within 15 s")
        self.asked.append(f"since {self.now - since:g} s ago" if since else "all")
        found = []
        for row in self.rows.values():
            gone = row.status in ("DELETED", "SOFT_DELETED")
            if self.cells.get(row.id) in self.down:
                if not (tag or name or since or gone):
                    found.append(Server(row.id, "", "UNKNOWN", created_at=row.created_at))
            elif (
                (not gone or since)
                and (not tag or tag in row.tags)
                and (not name or re.search(name, row.name))
                and row.updated_at >= since
            ):
                found.append(replace(row, tags=frozenset(), metadata={}) if row.status == "DELETED" else row)
        return found

    def boot(self, server_id: str, name: str = SEVEN, site: str = "cloud", controller: str = "kit") -> None:
        names, drone_id, at = ServerNames(controller, site), DroneId(name), self.now
        times = {"created_at": at, "updated_at": at, "launched_at": at}
        marks: Any = {"tags": frozenset(names.tags(drone_id)), "metadata": names.metadata(drone_id, "a100")}
        self.rows[server_id] = Server(server_id, name, "ACTIVE", power=1, host_id="ab" * 28, **times, **marks)

    def change(self, server_id: str, **what: Any) -> None:
        self.rows[server_id] = replace(self.rows[server_id], updated_at=self.now, **what)


class Looks:
    """A registry that polls every 15 s."""

    def __init__(self, nova: Nova, skew: float = 0.0) -> None:
        self.nova, self.steady = nova, 50.0
        clocks: Any = {"clock": lambda: self.steady, "wall_clock": lambda: nova.now + skew}
        self.registry = ServerRegistry(NAMES, full_s=FULL_S, keep_s=KEEP_S, **clocks)

    def passes(self, seconds: float) -> None:
        self.steady += seconds
        self.nova.now += seconds

    async def after(self, seconds: float = 15.0) -> RegistryView:
        self.passes(seconds)
        self.nova.asked.clear()
        return await self.registry.poll(self.nova)  # type: ignore[arg-type]  # it lists, and is asked for nothing else


@pytest.fixture
def nova() -> Nova:
    return Nova()


@pytest.fixture
def looks(nova: Nova) -> Looks:
    return Looks(nova)


@pytest.fixture
async def known_one(nova: Nova, looks: Looks) -> Looks:
    """One server is known."""
    nova.boot("s1")
    await looks.after(0)
    return looks


@pytest.fixture
async def two(nova: Nova, looks: Looks) -> Looks:
    """Two servers are known."""
    nova.boot("s1")
    nova.boot("s2", "kit-a1b2-8")
    await looks.after(0)
    return looks


def statuses(view: RegistryView) -> dict[str, str]:
    return {server.id: server.status for server in view.servers}


# ------------------------------------------------------------------------------------------------------ what is asked


async def test_all_are_listed_at_first_and_then_what_has_changed(nova: Nova, looks: Looks) -> None:
    nova.boot("s1")
    assert statuses(await looks.after(0)) == {"s1": "ACTIVE"}
    assert nova.asked == ["all", f"since {KEEP_S + MARGIN_S:g} s ago"]
    nova.boot("s2", "kit-a1b2-8")
    looks.passes(5)
    nova.change("s1", status="SHUTOFF", power=4)
    assert statuses(await looks.after(10)) == {"s1": "SHUTOFF", "s2": "ACTIVE"}
    assert nova.asked == [f"since {MARGIN_S + 15:g} s ago"]
    await looks.after(FULL_S)
    assert nova.asked[0] == "all"


async def test_an_empty_project_tells_no_time_to_ask_by(nova: Nova, looks: Looks) -> None:
    assert await looks.after() == RegistryView()
    assert nova.asked == ["all"]
    nova.boot("s1")
    assert statuses(await looks.after()) == {"s1": "ACTIVE"}
    await looks.after()
    assert nova.asked != ["all"]


async def test_nothing_is_merged_of_a_look_that_failed_and_the_next_one_is_full(nova: Nova, known_one: Looks) -> None:
    nova.broken = True
    with pytest.raises(UnavailableError):
        await known_one.after()
    nova.broken = False
    nova.change("s1", status="SHUTOFF")
    assert statuses(await known_one.after()) == {"s1": "SHUTOFF"}
    assert nova.asked[0] == "all"
    await known_one.after()
    assert len(nova.asked) == 1


async def test_half_a_full_look_is_none(nova: Nova, known_one: Looks) -> None:
    nova.change("s1", status="DELETED")
    listed = nova.servers

    async def cut(**how: Any) -> Sequence[Server]:
        if how.get("since"):
            raise UnavailableError("page 2 is missing")
        return await listed(**how)

    nova.servers = cut  # type: ignore[method-assign]
    with pytest.raises(UnavailableError):
        await known_one.after(FULL_S)
    nova.servers = listed  # type: ignore[method-assign]
    found = await known_one.after()
    assert (statuses(found), found.gone["s1"].status) == ({}, "DELETED")


async def test_what_nova_does_not_tell_as_a_change_is_found_by_a_full_look(nova: Nova, two: Looks) -> None:
    two.passes(MARGIN_S + 1)
    nova.change("s2")
    await two.after()
    nova.rows["s1"] = replace(nova.rows["s1"], status="SHUTOFF")  # and no time with it
    assert statuses(await two.after())["s1"] == "ACTIVE"
    assert statuses(await two.after(FULL_S))["s1"] == "SHUTOFF"


async def test_one_that_was_deleted_before_it_had_a_host_leaves_no_trace(nova: Nova, two: Looks) -> None:
    del nova.rows["s1"]
    assert "s1" in statuses(await two.after())
    two.registry.distrust()
    found = await two.after()
    assert statuses(found) == {"s2": "ACTIVE"}
    assert found.gone["s1"].status == "ACTIVE"  # nobody has said that it was deleted


# ------------------------------------------------------------------------------------------------------------- clocks


@pytest.mark.parametrize("skew", [0.0, 7200.0, -7200.0, 30 * 86400.0, -30 * 86400.0])
async def test_our_clock_may_be_wrong_by_any_time(nova: Nova, skew: float) -> None:
    looks = Looks(nova, skew)
    nova.boot("s1")
    nova.boot("s2", "kit-a1b2-8")
    await looks.after(0)
    looks.passes(40)
    nova.change("s1", status="SHUTOFF")
    assert statuses(await looks.after()) == {"s1": "SHUTOFF", "s2": "ACTIVE"}
    nova.change("s2", status="DELETED")
    found = await looks.after()
    assert (statuses(found), found.gone["s2"].status) == ({"s1": "SHUTOFF"}, "DELETED")
    assert len(nova.asked) == 1


async def test_hosts_of_the_cloud_whose_clocks_differ(nova: Nova, looks: Looks) -> None:
    nova.boot("s1")
    nova.boot("s2", "kit-a1b2-8")
    nova.now += 250
    nova.change("s2", power=1)  # by one whose clock is ahead
    nova.now -= 250
    await looks.after(0)
    nova.change("s1", status="SHUTOFF")
    assert statuses(await looks.after())["s1"] == "SHUTOFF"
    assert len(nova.asked) == 1


async def test_a_change_of_next_year_does_not_end_all_news(nova: Nova, looks: Looks) -> None:
    nova.boot("s1")
    nova.boot("s2", "kit-a1b2-8")
    nova.rows["s2"] = replace(nova.rows["s2"], updated_at=nova.now + 365 * 86400)
    await looks.after(0)
    nova.change("s1", status="SHUTOFF")
    assert statuses(await looks.after())["s1"] == "SHUTOFF"
    assert len(nova.asked) == 1


# ------------------------------------------------------------------------------------------------------ what has gone


async def test_a_deleted_one_is_remembered_with_what_was_known_of_it(nova: Nova, known_one: Looks) -> None:
    before = nova.rows["s1"]
    nova.change("s1", status="DELETED", power=0, terminated_at=nova.now + 9)
    found = await known_one.after()
    gone = found.gone["s1"]
    assert found.servers == ()
    assert (gone.status, gone.metadata, gone.host_id, gone.power) == ("DELETED", before.metadata, before.host_id, 1)
    assert gone.terminated_at
    for _ in range(3):
        assert (await known_one.after(FULL_S / 2)).gone.get("s1", gone) == gone
    assert (await known_one.after(KEEP_S)).gone == {}


async def test_a_restarted_controller_learns_who_was_deleted_meanwhile(nova: Nova, looks: Looks) -> None:
    nova.boot("s1")
    nova.boot("s2", "kit-a1b2-8")
    nova.boot("s3", "another-a1b2-8", controller="another")
    nova.boot("s4", "kitchen")
    nova.boot("s5", "kit-a1b2-5")
    nova.change("s5", status="DELETED")
    looks.passes(2 * KEEP_S)
    for server_id in ("s2", "s3", "s4"):
        nova.change(server_id, status="DELETED")
    looks.passes(10)
    nova.change("s1", power=1)
    found = await looks.after()
    assert (statuses(found), set(found.gone)) == ({"s1": "ACTIVE"}, {"s2"})
    assert found.gone["s2"].name == "kit-a1b2-8"


async def test_what_is_deleted_does_not_come_back(nova: Nova, two: Looks) -> None:
    """An old copy of Nova's tables shows it once more, and the next look is a full one."""
    was = nova.rows["s1"]
    nova.change("s1", status="DELETED")
    await two.after()
    now, nova.rows["s1"] = nova.rows["s1"], was
    assert statuses(await two.after()) == {"s2": "ACTIVE"}
    nova.rows["s1"] = now
    await two.after()
    assert nova.asked[0] == "all"


async def test_a_soft_deleted_one_may_be_restored(nova: Nova, known_one: Looks) -> None:
    nova.change("s1", status="SOFT_DELETED")
    found = await known_one.after()
    assert (found.servers, found.gone["s1"].status) == ((), "SOFT_DELETED")
    nova.change("s1", status="ACTIVE")
    found = await known_one.after()
    assert (statuses(found), found.gone) == ({"s1": "ACTIVE"}, {})


# ----------------------------------------------------------------------------------------------------- cells, strangers


async def test_servers_of_a_cell_that_is_down_are_alive(nova: Nova, looks: Looks) -> None:
    nova.boot("s1")
    nova.boot("s2", "kit-a1b2-8")
    nova.cells = {"s1": "cell1", "s2": "cell2"}
    await looks.after(0)
    known = nova.rows["s1"]
    nova.down = {"cell1"}
    assert statuses(await looks.after()) == {"s1": "ACTIVE", "s2": "ACTIVE"}  # by what has changed nobody knows it
    found = await looks.after(FULL_S)
    assert statuses(found) == {"s1": "UNKNOWN", "s2": "ACTIVE"}
    [unknown] = [server for server in found.servers if server.id == "s1"]
    assert unknown == replace(known, status="UNKNOWN", power=0)
    nova.down = set()
    assert statuses(await looks.after(FULL_S)) == {"s1": "ACTIVE", "s2": "ACTIVE"}


async def test_one_that_was_not_listed_for_a_while_is_there_again(nova: Nova, two: Looks) -> None:
    kept = nova.rows.pop("s1")
    found = await two.after(FULL_S)
    assert (statuses(found), found.gone["s1"].status) == ({"s2": "ACTIVE"}, "ACTIVE")
    nova.rows["s1"] = kept
    found = await two.after(FULL_S)
    assert (set(statuses(found)), found.gone) == ({"s1", "s2"}, {})


async def test_an_unknown_server_may_be_ours_and_then_the_listing_is_partial(nova: Nova, looks: Looks) -> None:
    nova.boot("s1")
    nova.cells, nova.down = {"s1": "cell1"}, {"cell1"}
    nova.boot("s2", "kit-a1b2-8")
    with pytest.raises(UnavailableError, match="1 servers in it may be ours"):
        await looks.after(0)
    nova.down = set()
    assert set(statuses(await looks.after())) == {"s1", "s2"}


async def test_a_neighbours_server_of_a_cell_that_is_down_is_known_to_be_his(nova: Nova, looks: Looks) -> None:
    nova.boot("s1")
    nova.boot("theirs", "web-1", controller="else")
    nova.cells = {"theirs": "cell1"}
    before = await looks.after(0)
    nova.down = {"cell1"}
    found = await looks.after(FULL_S)
    assert statuses(found) == {"s1": "ACTIVE"}
    assert found.others == before.others
    assert [server.id for server in found.others] == ["theirs"]


async def test_ours_are_told_by_their_metadata(nova: Nova, looks: Looks) -> None:
    nova.boot("s1")
    nova.boot("s2", "kit-a1b2-8", site="another-cloud")
    nova.boot("s3", "kit-two-a1b2-8", controller="kit-two")
    nova.boot("s4", "kit-a1b2-9")
    nova.rows["s4"] = replace(nova.rows["s4"], metadata={})
    found = await looks.after(0)
    assert statuses(found) == {"s1": "ACTIVE"}
    assert {server.id for server in found.others} == {"s2", "s3", "s4"}
    for server_id in ("s2", "s3", "s4"):
        nova.change(server_id, status="SHUTOFF")
    assert statuses(await looks.after()) == {"s1": "ACTIVE"}


NOW = 1_800_000_000.0
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
    tags=frozenset(NAMES.tags(SEVEN)),
    metadata=NAMES.metadata(SEVEN, "a100"),
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
    view = RegistryView(servers, {server.id: server for server in gone}, tuple(others))
    return listing(view, ends or {}, asked, PLACES, NAMES, NOW)


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
