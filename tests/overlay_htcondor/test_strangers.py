"""A schedd that has nothing to do with us stops nothing; one that had answered is missed."""

from __future__ import annotations

import socket
import time
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import classad2
import pytest

from adapters.htcondor_overlay import pool
from adapters.shared.htcondor.ads import Ad
from provisioner.model import DroneId, Slot, SlotState
from provisioner.sites import SiteDenied, SiteDown


class Lab(pool.Pool):
    """A pool whose daemons are dictionaries: schedds by name, with what they raise, and the collector's own ad."""

    def __init__(self, diary: str = "", **schedds: BaseException | None) -> None:
        super().__init__("c:9618", "kit", (), "true", "AcctGroup", 300.0, 900.0, diary=diary)
        self.schedds = schedds
        self.asked: list[str] = []
        self.started: float | None = 1000.0
        self._collector = SimpleNamespace(query=self._listed, address="pool:9618")

    def _listed(self, kind: Any, **_: Any) -> list[Ad]:
        if kind == pool.htcondor2.AdType.Collector:
            return [] if self.started is None else [classad2.ClassAd({"MonitorSelfTime": self.started})]
        return [classad2.ClassAd({"Name": name, "LastHeardFrom": int(time.time())}) for name in self.schedds]

    def schedd(self, ad: Ad) -> Any:
        return SimpleNamespace(query=lambda *_, **__: self._answer(str(ad["Name"])))

    def _answer(self, name: str) -> list[Ad]:
        self.asked.append(name)
        error = self.schedds[name]
        if error is not None:
            raise error
        return []

    def queues(self) -> tuple[list[str], list[str]]:
        found, notices = self._queues()
        return [queue.name for queue in found], notices


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr(pool, "Reasons", lambda: SimpleNamespace(told=lambda _: nullcontext()))
    monkeypatch.setattr(pool.htcondor2, "Collector", lambda _: None)
    made = Lab(ours=None, stranger=SiteDenied("schedd stranger: READ denied"))
    monkeypatch.setattr(pool.htcondor2, "Schedd", made.schedd)
    return made


def test_a_schedd_that_denies_reading_is_left_out_with_a_notice_that_names_it(lab: Lab) -> None:
    names, (notice,) = lab.queues()
    assert names == ["ours"]
    assert notice.startswith("schedd stranger has never answered and is left out (schedd stranger: READ denied)")
    assert "`schedds`" in notice
    assert lab.queues() == (["ours"], [notice]) and lab.asked == ["ours", "stranger"], "and it is asked now and then"
    del lab.schedds["stranger"]
    assert lab.queues() == (["ours"], []), "once it has gone it is forgotten"


def test_once_it_answers_its_jobs_count(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.queues()
    lab.schedds["stranger"] = None
    monkeypatch.setattr(pool, "_STRANGER_AGAIN_S", 0.0)
    assert lab.queues() == (["ours", "stranger"], [])


def test_where_no_schedd_answers_nobody_knows_what_waits(lab: Lab) -> None:
    lab.schedds = {"stranger": SiteDenied("READ denied")}
    with pytest.raises(SiteDenied, match="READ denied"):
        lab.queues()


def test_a_schedd_that_had_answered_another_process_is_no_stranger(lab: Lab) -> None:
    lab._answered.update(["stranger"])
    assert lab.queues() == (["ours", "stranger"], []), "it is asked for its jobs, and that fails the look"


def test_a_schedd_that_had_jobs_and_is_gone_is_an_outage(lab: Lab) -> None:
    lab.queues()
    lab._had_jobs["ours"] = time.time()
    del lab.schedds["ours"]
    with pytest.raises(SiteDown, match="does not list ours"):
        lab.queues()


def test_no_connection_is_waited_for_behind_a_broker_and_little_elsewhere() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        pool.reachable(f"<127.0.0.1:{port}?addrs=127.0.0.1-{port}&alias=a>", 2.0)
    with pytest.raises(SiteDown, match=f"no connection to 127.0.0.1:{port}"):
        pool.reachable(f"<127.0.0.1:{port}?alias=a>", 2.0)
    pool.reachable(f"<127.0.0.1:{port}?CCBID=10.0.0.1:9618%3faddrs#7&alias=a>", 2.0)
    pool.reachable("", 2.0)


@pytest.mark.parametrize("address", ["<127.0.0.1:99999>", "<a..b:9618>", f"<{'x' * 300}:9618>"])
def test_an_address_that_cannot_be_one_is_no_connection(address: str) -> None:
    with pytest.raises(SiteDown, match="no connection"):
        pool.reachable(address, 2.0)


class Killed(BaseException):
    """The end of a process at the deadline of a look."""


def test_a_stranger_that_accepts_calls_and_never_answers_ends_one_look_and_is_asked_ever_more_rarely(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped schedd of others: each look waited for it until the deadline, so the pool could never be seen."""
    now = [1000.0]
    monkeypatch.setattr(pool.time, "monotonic", lambda: now[0])

    def process() -> Lab:
        made = Lab(str(tmp_path / "asked"), ours=None, stranger=Killed())
        monkeypatch.setattr(pool.htcondor2, "Schedd", made.schedd)
        return made

    asked_at = []
    looking = process()
    for _ in range(400):
        now[0] += 10
        try:
            names, (notice,) = looking.queues()
            assert names == ["ours"] and "no answer before the deadline" in notice
        except Killed:
            asked_at.append(now[0])
            looking = process()
    assert [later - at for at, later in pairwise(asked_at)] == [120, 240, 480, 900, 900, 900]
    looking.schedds["stranger"] = None
    now[0] += 900
    assert looking.queues() == (["ours", "stranger"], [])
    assert process()._tried == {}, "it has answered"


def slot(name: str) -> Slot:
    return Slot(DroneId(name), SlotState.IDLE, heard_at=0.0)


def test_a_missing_ad_of_the_collector_is_no_restart_and_leaves_no_ghosts(lab: Lab) -> None:
    one, two = (slot("kit-1"),), (slot("kit-2"),)
    assert lab._after_restart(one, 9000.0) == (one, [])
    for now, started in ((9010.0, None), (9020.0, 1000.0), (9030.0, None), (9040.0, 1000.0)):
        lab.started = started
        assert lab._after_restart(two, now) == (two, []), "the drone that left is gone, and nothing has started anew"


def test_slots_outlive_a_restart_whose_first_second_has_no_ad(lab: Lab) -> None:
    one = (slot("kit-1"),)
    lab._after_restart(one, 9000.0)
    lab.started = None
    assert lab._after_restart((), 9010.0) == ((), [])
    lab.started = 1110.0
    slots, (notice,) = lab._after_restart((), 9011.0)
    assert slots == one and notice.startswith("the collector has started anew")
