"""One process for each purpose: a look waits behind no order and behind nobody else's schedd."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import classad2
import htcondor2
import pytest

from adapters.htcondor.classads import Ad
from adapters.htcondor.daemons import Collectors
from adapters.htcondor.site import client
from adapters.htcondor.site.client import BindingsClient, BindingsWorker
from adapters.htcondor.site.nodes import SlotResources
from adapters.htcondor.site.owner import OwnerJobQueue
from adapters.htcondor.site.submission import SubmitDescription
from provisioner.interfaces import OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import DroneId, FaultKind
from tests.htcondor_site.orders import config

BATCH = SubmitDescription("", (DroneId("main-ab12-1"),), {"begin.sh": b""})


class SlowSide:
    """The work of the children; orders, and one of the owner's schedds, take for ever."""

    def __init__(self, collector: str, schedd: str) -> None:
        pass

    def ads(
        self, kind: str, constraint: str, projection: tuple[str, ...], schedd: str = ""
    ) -> list[Ad]:
        return [classad2.ClassAd({"Pid": os.getpid()})]

    def submit(self, *args: object) -> int:
        time.sleep(3600)
        return 1

    def owner_queue(self, schedd: str, constraint: str, names: tuple[str, ...]) -> OwnerJobQueue:
        if schedd == "silent":
            time.sleep(3600)
        return OwnerJobQueue(running=((schedd, SlotResources()),))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BindingsClient:
    monkeypatch.setattr(client, "BINDINGS_WORKER", "tests.htcondor_site.test_bindings:SlowSide")
    monkeypatch.setenv("T", "a.b.c")
    return BindingsClient(
        config(work_directory=str(tmp_path), deadline="60s", submit_deadline="100s"), "topas"
    )


async def asked(cluster: BindingsClient) -> int:
    [ad] = await cluster.ads("jobs", "true", ())
    return int(ad["Pid"])


async def test_a_look_waits_behind_no_submit_and_behind_no_silent_schedd(
    cluster: BindingsClient,
) -> None:
    async with cluster:
        looks = await asked(cluster)
        slow = [
            asyncio.create_task(cluster.submit(BATCH)),
            asyncio.create_task(cluster.owner_queue("silent", "true", ())),
        ]
        await asyncio.sleep(0.2)
        assert (await cluster.owner_queue("quick", "true", ())).running[0][0] == "quick"
        assert await asked(cluster) == looks
        assert not any(task.done() for task in slow)
        for task in slow:
            task.cancel()
        await asyncio.wait(slow)
        assert await asked(cluster) == looks, "that one is given up costs the looks no process"
    with pytest.raises(UnavailableError, match="not connected"):
        await asked(cluster)


SESSION_REJECTED = "Failed to connect to schedd, errmsg=SECMAN:2004:Server rejected our session id"
"""The bindings' words at the first submit after a restart of the schedd (23.9 and 25.14)."""


class Schedd:
    """A schedd that answers orders with these errors, one after the other, and takes them afterwards."""

    def __init__(self, log: Path, *errors: str) -> None:
        self._log, self.errors, self.orders, self.taken = log, list(errors), 0, list[str]()

    def submit(
        self, description: object, *, spool: bool, itemdata: Iterable[Mapping[str, str]]
    ) -> Any:
        drone_ids = [item["drone_id"] for item in itemdata]
        self._answer()
        self.taken += drone_ids
        return SimpleNamespace(cluster=lambda: 7)

    def act(self, action: object, which: list[str], reason: object) -> dict[str, int]:
        self._answer()
        self.taken += which
        return {}

    def _answer(self) -> None:
        self.orders += 1
        with self._log.open("a") as log:  # another worker's question: they have one log
            log.write("11/27/26 20:44:23 ERROR: SECMAN:2004:Server rejected our session id\n")
        if self.errors:
            raise htcondor2.HTCondorException(self.errors.pop(0))


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[BindingsWorker, Schedd]:
    log = tmp_path / "log"
    schedd = Schedd(log)
    monkeypatch.setitem(htcondor2.param, "TOOL_LOG", str(log))
    monkeypatch.setattr(Collectors, "schedds", lambda self: {"head": {}})
    monkeypatch.setattr("adapters.htcondor.htcondor2.Schedd", lambda ad: schedd)
    return BindingsWorker("127.0.0.1:9618", "head"), schedd


def test_a_restarted_schedd_gets_its_first_order_again(
    worker: tuple[BindingsWorker, Schedd],
) -> None:
    bindings, schedd = worker
    schedd.errors = [SESSION_REJECTED]
    assert bindings.submit("", ["a-1", "a-2"], False) == 7
    assert schedd.taken == ["a-1", "a-2"] and schedd.orders == 2


def test_a_restarted_schedd_gets_its_first_removal_again(
    worker: tuple[BindingsWorker, Schedd],
) -> None:
    bindings, schedd = worker
    schedd.errors = ["Error when performing action on the schedd."]
    bindings.remove(["1.0"], "idle", False)
    assert schedd.taken == ["1.0"]
    schedd.errors = ["Error when performing action on the schedd."] * 3
    with pytest.raises(UnavailableError):
        bindings.remove(["1.0"], "idle", False)
    assert schedd.orders == 4


@pytest.mark.parametrize(
    "error", ["Failed to commit jobs", "SCHEDD:1:x errmsg=Server rejected our session id", "?"]
)
def test_an_order_that_may_have_arrived_is_not_repeated(
    worker: tuple[BindingsWorker, Schedd], error: str
) -> None:
    bindings, schedd = worker
    schedd.errors = [error]
    with pytest.raises((OutcomeUnknownError, RejectedError)):
        bindings.submit("", ["a-1"], False)
    assert schedd.orders == 1 and not schedd.taken


def test_a_second_order_is_the_last(worker: tuple[BindingsWorker, Schedd]) -> None:
    bindings, schedd = worker
    schedd.errors = [SESSION_REJECTED, SESSION_REJECTED]
    with pytest.raises(RejectedError) as refused:
        bindings.submit("", ["a-1"], False)
    assert refused.value.kind is FaultKind.DOWN and schedd.orders == 2
    schedd.errors = [SESSION_REJECTED, "connection lost"]
    with pytest.raises(OutcomeUnknownError):
        bindings.submit("", ["a-1"], False)
    assert schedd.orders == 4 and not schedd.taken
