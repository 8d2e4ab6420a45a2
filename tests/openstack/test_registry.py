"""The servers of a project: what is listed, what is not, clocks that differ, and servers as drones.

The cloud here lists as Nova does: by its own clock, what has changed with deleted ones and without
what is deleted with them, servers of a cell that is down only where nothing is filtered.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from adapters.openstack.capacity import host_id
from adapters.openstack.registry import (
    RegistryView,
    ServerListing,
    ServerNames,
    ServerRegistry,
    listing,
)
from adapters.openstack.servers import Server, ServerFault
from provisioner.interfaces import UnavailableError
from provisioner.model import DroneId, EndKind, FaultKind, RemoteDrone, RemoteEnd, RemoteState

KEEP_S = 900.0
SEVEN, EIGHT = DroneId("kit-a1b2-7"), DroneId("kit-a1b2-8")
NAMES = ServerNames("kit", "cloud")


@dataclass
class Nova:
    """Its listings, and what people and hosts do there."""

    now: float = 1_800_000_000.0
    """By its clock."""
    rows: dict[str, Server] = field(default_factory=dict)
    cells: dict[str, str] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    broken: str = ""
    """``all`` or ``changes``: that listing fails."""

    async def servers(
        self, *, tag: str = "", name: str = "", since: float = 0.0
    ) -> Sequence[Server]:
        if self.broken == ("changes" if since else "all"):
            raise UnavailableError("no answer within 15 s")
        found = []
        for row in self.rows.values():
            gone = row.status in ("DELETED", "SOFT_DELETED")
            if self.cells.get(row.id) in self.down:
                if not (name or since or gone):
                    found.append(Server(row.id, "", "UNKNOWN", created_at=row.created_at))
            elif (not gone or since) and re.search(name, row.name) and row.updated_at >= since:
                found.append(replace(row, metadata={}) if row.status == "DELETED" else row)
        return found

    def boot(
        self, server_id: str, name: str = SEVEN, site: str = "cloud", controller: str = "kit"
    ) -> None:
        names, drone_id, at = ServerNames(controller, site), DroneId(name), self.now
        times = {"created_at": at, "updated_at": at, "launched_at": at}
        marks = names.metadata(drone_id, "a100")
        self.rows[server_id] = Server(
            server_id, name, "ACTIVE", power=1, host_id="ab" * 28, metadata=marks, **times
        )

    def change(self, server_id: str, **what: Any) -> None:
        self.rows[server_id] = replace(self.rows[server_id], updated_at=self.now, **what)


class Looks:
    """A registry that polls every 15 s a cloud with two servers."""

    def __init__(self, nova: Nova, skew: float = 0.0) -> None:
        self.nova, self.steady = nova, 50.0
        clocks: Any = {"clock": lambda: self.steady, "wall_clock": lambda: nova.now + skew}
        self.registry = ServerRegistry(NAMES, keep_s=KEEP_S, **clocks)

    def passes(self, seconds: float) -> None:
        self.steady += seconds
        self.nova.now += seconds

    async def after(self, seconds: float = 15.0) -> RegistryView:
        self.passes(seconds)
        return await self.registry.poll(self.nova)  # type: ignore[arg-type]  # it lists, and is asked for nothing else


@pytest.fixture
def nova() -> Nova:
    made = Nova()
    made.boot("s1")
    made.boot("s2", EIGHT)
    return made


@pytest.fixture
async def looks(nova: Nova) -> Looks:
    """Two servers are known."""
    made = Looks(nova)
    await made.after(0)
    return made


def statuses(view: RegistryView) -> dict[str, str]:
    return {server.id: server.status for server in view.servers}


@pytest.mark.parametrize("broken", ["all", "changes"])
async def test_nothing_is_merged_of_a_look_that_failed(
    nova: Nova, looks: Looks, broken: str
) -> None:
    nova.change("s1", status="DELETED")
    nova.broken = broken
    with pytest.raises(UnavailableError):
        await looks.after()
    nova.broken = ""
    found = await looks.after()
    assert (statuses(found), found.gone["s1"].status) == ({"s2": "ACTIVE"}, "DELETED")


@pytest.mark.parametrize("skew", [0.0, 7200.0, -30 * 86400.0])
@pytest.mark.parametrize(
    "ahead", [0.0, 250.0, 365 * 86400.0], ids=["", "a host is ahead", "one server of next year"]
)
async def test_clocks_may_differ(nova: Nova, skew: float, ahead: float) -> None:
    nova.rows["s2"] = replace(nova.rows["s2"], updated_at=nova.now + ahead)
    looks = Looks(nova, 0.0 if ahead > 250 else skew)
    await looks.after(0)
    looks.passes(40)
    nova.change("s1", status="DELETED")
    found = await looks.after()
    assert (statuses(found), found.gone["s1"].status) == ({"s2": "ACTIVE"}, "DELETED")


async def test_a_deleted_one_is_remembered_with_what_was_known_of_it(
    nova: Nova, looks: Looks
) -> None:
    before = nova.rows["s1"]
    nova.change("s1", status="DELETED", power=0, terminated_at=nova.now + 9)
    gone = (await looks.after()).gone["s1"]
    assert (gone.status, gone.metadata, gone.host_id, gone.power) == (
        "DELETED",
        before.metadata,
        before.host_id,
        1,
    )
    assert gone.terminated_at
    for _ in range(2):
        assert (await looks.after(300)).gone["s1"] == gone
    assert (await looks.after(KEEP_S)).gone == {}


async def test_a_restarted_controller_learns_who_was_deleted_meanwhile(nova: Nova) -> None:
    looks = Looks(nova)
    nova.boot("s3", "another-a1b2-8", controller="another")
    nova.boot("s4", "kitchen")
    nova.boot("s5", "kit-a1b2-5")
    nova.change("s5", status="DELETED")
    looks.passes(2 * KEEP_S)
    for server_id in ("s2", "s3", "s4"):
        nova.change(server_id, status="DELETED")
    looks.passes(600)
    nova.change("s1", power=1)  # other changes come later
    found = await looks.after()
    assert (statuses(found), set(found.gone)) == ({"s1": "ACTIVE"}, {"s2"})
    assert found.gone["s2"].name == EIGHT


async def test_what_is_deleted_does_not_come_back(nova: Nova, looks: Looks) -> None:
    """An old copy of Nova's tables shows it once more."""
    was = nova.rows["s1"]
    nova.change("s1", status="DELETED")
    await looks.after()
    nova.rows["s1"] = was
    found = await looks.after()
    assert (statuses(found), found.gone["s1"].status) == ({"s2": "ACTIVE"}, "DELETED")


async def test_a_soft_deleted_or_a_missing_one_may_come_back(nova: Nova, looks: Looks) -> None:
    missing = nova.rows.pop("s2")
    nova.change("s1", status="SOFT_DELETED")
    found = await looks.after()
    assert (found.servers, found.gone["s1"].status, found.gone["s2"].status) == (
        (),
        "SOFT_DELETED",
        "ACTIVE",
    )
    nova.change("s1", status="ACTIVE")
    nova.rows["s2"] = missing
    found = await looks.after()
    assert (statuses(found), found.gone) == ({"s1": "ACTIVE", "s2": "ACTIVE"}, {})


async def test_servers_of_a_cell_that_is_down_are_alive(nova: Nova) -> None:
    nova.boot("theirs", "web-1", controller="else")
    nova.cells = {"s1": "cell1", "s2": "cell2", "theirs": "cell1"}
    looks = Looks(nova)
    await looks.after(0)
    known, nova.down = nova.rows["s1"], {"cell1"}
    found = await looks.after()
    assert statuses(found) == {"s1": "UNKNOWN", "s2": "ACTIVE"}
    assert next(server for server in found.servers if server.id == "s1") == replace(
        known, status="UNKNOWN", power=0
    )
    assert [(server.id, server.name) for server in found.others] == [("theirs", "web-1")]
    nova.down = set()
    assert statuses(await looks.after()) == {"s1": "ACTIVE", "s2": "ACTIVE"}
    nova.boot("s3", "kit-a1b2-9")
    nova.cells["s3"], nova.down = "cell3", {"cell3"}
    with pytest.raises(UnavailableError, match="1 servers in it may be drones"):
        await looks.after()


async def test_ours_are_told_by_their_metadata(nova: Nova, looks: Looks) -> None:
    nova.boot("s3", EIGHT, site="another-cloud")
    nova.boot("s4", "kit-two-a1b2-8", controller="kit-two")
    nova.boot("s5", "kit-a1b2-9")
    nova.rows["s5"] = replace(nova.rows["s5"], metadata={})
    found = await looks.after()
    assert statuses(found) == {"s1": "ACTIVE", "s2": "ACTIVE"}
    assert {server.id for server in found.others} == {"s3", "s4", "s5"}


NOW = 1_800_000_000.0
HOST = host_id("p", "gk-gpu-01")
PLACES = {HOST: "gk-gpu-01"}
MARKS = NAMES.metadata(SEVEN, "a100")
BUILT = Server("s1", SEVEN, "ACTIVE", power=1, created_at=NOW - 900, host_id=HOST, metadata=MARKS)
RUNS = replace(BUILT, updated_at=NOW - 600, launched_at=NOW - 600)
BUILDS = replace(RUNS, status="BUILD", power=0, launched_at=0.0, host_id="", task="scheduling")
NO_HOST = ServerFault(500, "No valid host was found. There are not enough hosts available.")
FAILED = replace(BUILDS, status="ERROR", task="", fault=NO_HOST)
OFF = replace(RUNS, status="SHUTOFF", power=4)
END = RemoteEnd(EndKind.EXITED, NOW - 30, 0, "idle: no claim for 600 s")


def listed(
    *servers: Server,
    gone: Collection[Server] = (),
    ends: Mapping[DroneId, RemoteEnd] | None = None,
    asked: Collection[DroneId] = (),
) -> ServerListing:
    view = RegistryView(servers, {server.id: server for server in gone})
    return listing(view, ends or {}, asked, PLACES, NAMES, NOW)


def one(server: Server, **more: Any) -> RemoteDrone:
    [drone] = listed(server, **more).drones.values()
    return drone


IN_FUTURE = replace(RUNS, launched_at=NOW + 500, updated_at=NOW + 500, task="deleting")


@pytest.mark.parametrize(
    ("server", "state", "more"),
    [
        (
            RUNS,
            RemoteState.RUNNING,
            {"started_at": NOW - 600, "node": "gk-gpu-01", "slot": "s1@gk-gpu-01"},
        ),
        (
            BUILDS,
            RemoteState.PENDING,
            {"started_at": 0.0, "blocked": None, "hopeless": False, "node": "", "slot": ""},
        ),
        (
            BUILDS,
            RemoteState.PENDING,
            {"reason": "is being built: scheduling", "remote_id": "s1", "type": "a100"},
        ),
        (
            FAILED,
            RemoteState.PENDING,
            {"blocked": FaultKind.CAPACITY, "final": True, "hopeless": True},
        ),
        (IN_FUTURE, RemoteState.RUNNING, {"started_at": NOW, "notice_at": NOW}),
    ],
)
def test_a_server_that_is_there(
    server: Server, state: RemoteState, more: Mapping[str, Any]
) -> None:
    drone = one(server)
    assert {name: getattr(drone, name) for name in ("state", *more)} == {"state": state, **more}


def test_the_end_of_one_that_was_deleted_is_yet_to_be_found() -> None:
    gone = replace(RUNS, status="DELETED")
    found = listed(gone=[gone])
    assert found.unsettled == {SEVEN: gone}
    assert (found.drones[SEVEN].state, found.drones[SEVEN].end) == (RemoteState.STOPPED, None)


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        (replace(RUNS, created_at=NOW - 5), RUNS),
        (BUILDS, replace(RUNS, created_at=NOW)),
        (replace(OFF, created_at=NOW - 9999), FAILED),
    ],
)
def test_of_a_drone_that_is_there_twice_the_one_with_less_to_lose_goes(
    worse: Server, better: Server
) -> None:
    worse = replace(worse, id="worse", metadata=NAMES.metadata(SEVEN, "a100", 4))
    better = replace(better, id="better")
    for pair in ((worse, better), (better, worse)):
        found = listed(*pair)
        assert (found.drones[SEVEN].remote_id, found.surplus, found.over) == (
            "better",
            ("worse",),
            {},
        )
        assert found.notices == (
            f"{SEVEN} exists twice, as better and worse (epoch 4): the first is kept",
        )


def test_one_that_is_asked_to_leave_is_no_drone_beside_another_and_is_not_asked_again() -> None:
    leaves = replace(RUNS, id="leaves", task="deleting", created_at=NOW - 9999)
    found = listed(leaves, BUILDS)
    assert (found.drones[SEVEN].remote_id, found.surplus) == (BUILDS.id, ())


def test_none_goes_while_nobody_knows_which_is_better() -> None:
    unknown = replace(RUNS, id="s2", status="UNKNOWN", power=0)
    assert listed(BUILDS, unknown).surplus == ()


def test_one_that_is_there_counts_more_than_one_that_was() -> None:
    found = listed(RUNS, gone=[replace(OFF, id="s0", status="DELETED")], ends={SEVEN: END})
    assert (found.drones[SEVEN].state, found.unsettled) == (RemoteState.RUNNING, {})
