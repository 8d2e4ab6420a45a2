"""One process for each purpose: a look waits behind no order and behind nobody else's schedd."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import classad2
import pytest

from adapters.htcondor.classads import Ad
from adapters.htcondor.site import client
from adapters.htcondor.site.client import BindingsClient
from adapters.htcondor.site.nodes import SlotResources
from adapters.htcondor.site.owner import OwnerJobQueue
from adapters.htcondor.site.submission import SubmitDescription
from provisioner.interfaces import UnavailableError
from provisioner.model import DroneId
from tests.htcondor_site.orders import config

BATCH = SubmitDescription("", (DroneId("main-ab12-1"),), {"begin.sh": b""})


class SlowSide:
    """The work of the children; orders, and one of the owner's schedds, take for ever."""

    def __init__(self, collector: str, schedd: str) -> None:
        pass

    def ads(self, kind: str, constraint: str, projection: tuple[str, ...], schedd: str = "") -> list[Ad]:
        return [classad2.ClassAd({"Pid": os.getpid()})]

    def history(self, *args: object) -> list[Ad]:
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
    return BindingsClient(config(work_directory=str(tmp_path), deadline="60s", submit_deadline="100s"), "topas")


async def asked(cluster: BindingsClient) -> int:
    [ad] = await cluster.ads("jobs", "true", ())
    return int(ad["Pid"])


async def test_a_history_leaves_no_process_behind(cluster: BindingsClient) -> None:
    async with cluster:
        looks = await asked(cluster)
        [ad] = await cluster.history("", "true", (), "false", 10)
        with pytest.raises(ProcessLookupError):
            os.kill(int(ad["Pid"]), 0)
        assert await asked(cluster) == looks


async def test_a_look_waits_behind_no_submit_and_behind_no_silent_schedd(cluster: BindingsClient) -> None:
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
