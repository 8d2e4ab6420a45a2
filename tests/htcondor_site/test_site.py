"""What the adapter does at a look and between looks; the cluster answers as a test says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Self

import classad2
import pytest

from adapters.htcondor import classads, site as site_module
from adapters.htcondor.classads import Ad
from adapters.htcondor.site import HTCondorSite, NodeRegistry
from adapters.htcondor.site.nodes import MACHINE_SLOTS
from adapters.htcondor.site.owner import OwnerJobQueue
from adapters.htcondor.site.submission import SubmitDescription
from provisioner.adapter_tests import eventually
from provisioner.interfaces import AuthError, UnavailableError
from provisioner.model import DroneId, DroneType, EndKind, RemoteState
from tests.htcondor_site.orders import A100, CONTROLLER, config, order
from tests.htcondor_site.slot_ads import pslot


class FakeCluster:
    """A pool of one node, with the jobs that a test puts into its queue."""

    def __init__(self) -> None:
        self.nodes: list[Ad] = [pslot()]
        self.queue: list[Ad] = []
        self.done: list[str] = []
        self.submitted: list[SubmitDescription] = []
        self.removal_fails = False
        """What was changed, and fetched."""
        self.collects_for_ever = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    async def ads(
        self, kind: str, constraint: str, projection: Sequence[str], schedd: str = ""
    ) -> Sequence[Ad]:
        return self.queue if kind == "jobs" else self.nodes if constraint == MACHINE_SLOTS else []

    async def owner_queue(
        self, schedd: str, constraint: str, names: Sequence[str]
    ) -> OwnerJobQueue:
        return OwnerJobQueue()

    async def submit(self, batch: SubmitDescription) -> int:
        self.done.append("submit")
        self.submitted.append(batch)
        return 1

    async def collect(self, job_ids: Mapping[DroneId, str]) -> Mapping[DroneId, str]:
        self.done.append("collect " + " ".join(job_ids.values()))
        if self.collects_for_ever:
            try:
                await asyncio.sleep(3600)
            finally:
                self.done.append("collected no more")
        return {}

    async def clean_up(self, inputs_in_use: Collection[str], drones: Collection[DroneId]) -> None:
        self.done.append("tidy")

    async def remove(self, job_ids: Sequence[str], why: str, *, force: bool = False) -> None:
        if job_ids and self.removal_fails:
            raise AuthError("remove: not authorized")
        self.done += [f"remove {each}" for each in job_ids]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    fake = FakeCluster()
    monkeypatch.setattr(site_module, "client_for", lambda *_: fake)
    return fake


def site(*types: DroneType, **options: object) -> HTCondorSite:
    return HTCondorSite("topas", config(**options), types or [A100], CONTROLLER)


def job(proc: int, **values: object) -> Ad:
    common = {
        "ClusterId": 7,
        "ProcId": proc,
        "DroneId": f"{CONTROLLER}-ab12-{proc}",
        "DroneType": "a100",
    }
    return classad2.ClassAd({**common, "ServerTime": time.time(), **values})


def spooling(proc: int, since_s: int) -> Ad:
    return job(proc, JobStatus=5, HoldReasonCode=16, EnteredCurrentStatus=time.time() - since_s)


def completed(proc: int) -> Ad:
    return job(proc, JobStatus=4, ExitCode=0, NumJobStarts=1, JobCurrentStartDate=time.time() - 60)


async def test_who_looks_but_once_changes_nothing(cluster: FakeCluster) -> None:
    """`provisioner check --live` is another process beside the controller."""
    cluster.queue = [spooling(1, since_s=3600), completed(2)]
    async with site() as it:
        await it.poll()
        await asyncio.sleep(0)
    assert cluster.done == []


async def test_a_node_on_which_two_gpu_checks_failed_is_avoided_for_an_hour(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTCondor would match the next drone with the same GPU again: it is free there."""
    bad, good = "topas-a100-1.etp.test", "topas-a100-2.etp.test"
    now = time.time()
    cluster.nodes = [pslot(bad), pslot(good)]

    def failed(proc: int) -> Ad:
        times = {"JobCurrentStartDate": now - 60, "CompletionDate": now}
        host = f"slot1_1@{bad}"
        return job(proc, JobStatus=4, ExitCode=71, NumJobStarts=1, LastRemoteHost=host, **times)

    async def free(it: HTCondorSite) -> dict[str, int]:
        view = await it.poll()
        assert any(f"node {bad} is avoided" in each for each in view.notices) is (
            len(cluster.queue) > 1
        )
        return {each.name: each.free_gpu_milli for each in view.nodes}

    async with site() as it:
        cluster.queue = [failed(1)]
        assert await free(it) == {bad: 8000, good: 8000}
        cluster.queue = [failed(1), failed(2)]
        assert await free(it) == {bad: 0, good: 8000}
        await it.start([order(3)])
        [batch] = cluster.submitted
        [line] = [
            each for each in batch.description.splitlines() if each.startswith("requirements")
        ]
        for name in (bad, good):
            slot = classad2.ClassAd({"Machine": name, "Arch": "X86_64"})
            met = classads.evaluated(line.partition(" = ")[2], classad2.ClassAd({}), slot)
            assert met is (name == good)
        cluster.queue = []
        monkeypatch.setattr(time, "time", lambda: now + 3700)
        assert await free(it) == {bad: 8000, good: 8000}


async def test_house_is_kept_between_looks_and_holds_none_up(cluster: FakeCluster) -> None:
    cluster.queue, cluster.collects_for_ever = [completed(2)], True
    async with site() as it:
        for _ in range(4):
            assert (await it.poll()).drones
            await asyncio.sleep(0)
        assert cluster.done == ["collect 7.2"], "one errand at a time"
    assert cluster.done == ["collect 7.2", "collected no more"]
    assert len(asyncio.all_tasks()) == 1


async def test_files_that_are_just_being_sent_are_waited_for(cluster: FakeCluster) -> None:
    """45 s for a submit, and 15 more."""
    cluster.queue = [spooling(1, since_s=50), spooling(2, since_s=65)]
    async with site() as it:
        for _ in range(2):
            drones = (await it.poll()).drones
            waits, given_up = (
                drones[DroneId(f"{CONTROLLER}-ab12-1")],
                drones[DroneId(f"{CONTROLLER}-ab12-2")],
            )
            assert waits.state is given_up.state is RemoteState.PENDING
            assert "being sent" in waits.reason and "adapter removes it" in given_up.reason

        async def kept() -> bool:
            return "tidy" in cluster.done

        await eventually("house was kept", kept, 60)
    assert cluster.done == ["remove 7.2", "tidy"]


async def test_a_job_whose_files_never_came_counts_until_it_is_removed(
    cluster: FakeCluster,
) -> None:
    """A failing or late removal let the controller start another drone beside it, above the limit of the site."""
    given_up = DroneId(f"{CONTROLLER}-ab12-1")
    cluster.queue, cluster.collects_for_ever = [completed(2)], True
    async with site() as it:
        for _ in range(2):
            await it.poll()
            await asyncio.sleep(0)
        cluster.queue = [spooling(1, since_s=65), completed(2)]
        for _ in range(2):
            drone = (await it.poll()).drones[given_up]
            await asyncio.sleep(0)
            assert (drone.state, drone.end) == (RemoteState.PENDING, None)
        assert cluster.done == ["collect 7.2"], "it waits for its turn"
        removed = job(
            1,
            JobStatus=3,
            LastJobStatus=5,
            LastHoldReasonCode=16,
            RemoveReason="provisioner: no files",
        )
        cluster.queue = [removed, completed(2)]
        end = (await it.poll()).drones[given_up].end
        assert end is not None and end.kind is EndKind.STOPPED


async def test_of_two_jobs_of_one_drone_the_other_is_removed_once(cluster: FakeCluster) -> None:
    now = time.time()
    runs = {"JobStatus": 2, "RemoteHost": "slot1_1@n1", "NumJobStarts": 1}
    kept = job(1, **runs, JobCurrentStartDate=now - 60, QDate=now - 80)
    other = job(1, ClusterId=6, JobStatus=1, QDate=now - 90)
    cluster.queue = [other, kept]
    async with site() as it:
        for _ in range(5):
            [drone] = (await it.poll()).drones.values()
            assert (drone.remote_id, drone.state) == ("7.1", RemoteState.RUNNING)
            await asyncio.sleep(0.01)
            if "remove 6.1" in cluster.done:
                why = "provisioner: another job is the same drone"
                gone = job(1, ClusterId=6, JobStatus=3, RemoveReason=why, QDate=now - 90)
                cluster.queue = [gone, kept]
    assert cluster.done.count("remove 6.1") == 1 and "remove 7.1" not in cluster.done


async def test_a_removal_that_fails_is_a_notice_until_it_succeeds(cluster: FakeCluster) -> None:
    cluster.queue, cluster.removal_fails = [spooling(1, since_s=65)], True

    async def noticed() -> bool:
        return any(
            "not removed: remove: not authorized" in notice for notice in (await it.poll()).notices
        )

    async def silent() -> bool:
        return not await noticed()

    async with site() as it:
        assert not await noticed(), "none was tried yet"
        await eventually("a notice", noticed, 60)
        cluster.removal_fails = False
        await eventually("no notice", silent, 60)
    assert "remove 7.1" in cluster.done


async def test_where_no_node_was_ever_seen_nothing_is_free_but_behind_a_computing_element(
    cluster: FakeCluster,
) -> None:
    cluster.nodes = []
    async with site() as it, site(submit={"universe": "grid"}) as element:
        view, unknown = await it.poll(), await element.poll()
    assert (view.nodes, view.free, len(view.notices)) == ((), {"a100": 0}, 1)
    assert (unknown.nodes, unknown.free, unknown.notices) == ((), None, ())


def test_nodes_that_were_there_a_while_ago_do_not_vanish_unnoticed() -> None:
    now = [1000.0]
    registry = NodeRegistry("c.test:9618", 900.0, lambda: now[0])
    assert registry.notices("abcd") == registry.notices("ab") == ()
    assert registry.notices("a") == (
        "collector c.test:9618 lists 1 nodes (just started?); 3 are missed",
    )
    now[0] += 900
    for _ in range(2):
        with pytest.raises(UnavailableError, match="lists no slots"):
            registry.notices([])
    now[0] += 1
    assert registry.notices([]) == ("collector c.test:9618 lists no slots: nothing can start here",)
