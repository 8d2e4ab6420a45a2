"""The Slurm site with a fake cluster: failed starts, forgotten drones, duplicates.

Tests with real Slurm are in tests/live/test_contracts.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Self
from unittest.mock import AsyncMock

import pytest

from adapters.slurm import site as site_module
from adapters.slurm.records import Partition, Reservation, SlurmJob, SlurmNode, SlurmSubmission
from adapters.slurm.settings import SlurmSiteConfig
from adapters.slurm.site import SlurmSite
from provisioner import model
from provisioner.interfaces import (
    AdapterError,
    OutcomeUnknownError,
    RejectedError,
    UnavailableError,
)
from provisioner.planner.owner import FreeResources

A100 = model.DroneType(
    "hk", "a100", gpu_milli=1000, cpus=8, memory_mib=2048, disk_mib=10, walltime_s=3600.0
)
NODE = SlurmNode(
    "hkn0801", "IDLE", partitions=("accelerated",), cpus=152, memory_mib=512_000, gpus={"a100": 4}
)
FIRST = model.DroneId("kit-ab12-1")


class Remembered:
    """A cluster as far as the site can see it: jobs that were submitted, and what tests make of them."""

    def __init__(self) -> None:
        self.jobs: dict[str, SlurmJob] = {}
        self.submitted: list[SlurmSubmission] = []
        self.cancelled: list[tuple[str, bool]] = []
        self.asked: list[tuple[str, ...]] = []
        self.accounted: dict[str, SlurmJob] | None = {}
        self.most = 1000
        self.trouble: AdapterError | None = None
        self.carried_out = True
        self.accounting_trouble: AdapterError | None = None
        self.release = asyncio.Event()
        self.release.set()
        self.next = 100
        self.configured: Mapping[str, str] = {}
        self.visible: Sequence[SlurmJob] | None = None
        """Jobs of all users, as far as the account is shown them; None: no owner is configured."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def own_jobs(self) -> Sequence[SlurmJob]:
        return list(self.jobs.values())

    async def ended_jobs(
        self, remote_ids: Collection[str], since: float
    ) -> Sequence[SlurmJob] | None:
        self.asked.append(tuple(sorted(remote_ids)))
        if self.accounting_trouble is not None:
            raise self.accounting_trouble
        if self.accounted is None:
            return None
        return [
            job for job in self.accounted.values() if not remote_ids or job.remote_id in remote_ids
        ]

    async def active_jobs(self, partitions: Collection[str]) -> Sequence[SlurmJob]:
        assert self.visible is not None, "no owner is configured"
        return self.visible

    async def nodes(self, *, reserves: bool = False) -> Sequence[SlurmNode]:
        return [NODE]

    async def partitions(self) -> Sequence[Partition]:
        return [Partition("accelerated", nodes=(NODE.name,))]

    async def reservations(self) -> Sequence[Reservation]:
        return ()

    async def configuration(self) -> Mapping[str, str]:
        return self.configured

    def notices(self) -> Sequence[str]:
        return ()

    async def submit(self, submission: SlurmSubmission) -> int:
        await self.release.wait()
        trouble, self.trouble = self.trouble, None
        tasks = submission.tasks or (None,)
        if len(self.jobs) + len(tasks) > self.most:
            raise RejectedError("QOSMaxSubmitJobPerUserLimit", model.FaultKind.QUOTA)
        if trouble is None or self.carried_out:
            self.next += 1
            self.submitted.append(submission)
            for task in tasks:
                remote_id = str(self.next) if task is None else f"{self.next}_{task}"
                self.jobs[remote_id] = SlurmJob(
                    remote_id, submission.name, "PENDING", reason="Priority", user="drone"
                )
        if trouble is not None:
            raise trouble
        return self.next

    async def cancel(self, remote_ids: Sequence[str], *, kill: bool = False) -> None:
        self.cancelled += [(each, kill) for each in remote_ids]
        for each in remote_ids:
            self.jobs[each] = replace(self.jobs[each], state="CANCELLED", ends_at=time.time())

    def runs(self, remote_id: str) -> None:
        now = time.time()
        times = {"started_at": now - 5, "ends_at": now + 3595, "limit_s": 3600.0}
        self.jobs[remote_id] = replace(
            self.jobs[remote_id], state="RUNNING", nodes=(NODE.name,), **times
        )


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Remembered:
    found = Remembered()
    monkeypatch.setattr(site_module, "make_client", lambda config, name: found)
    return found


@pytest.fixture
async def site(cluster: Remembered) -> AsyncIterator[SlurmSite]:
    async with slurm_site() as found:
        yield found


def slurm_site(**more: object) -> SlurmSite:
    config = SlurmSiteConfig.model_validate({"partition": "accelerated", **more})
    return SlurmSite("hk", config, [A100], "kit")


async def end_of(site: SlurmSite, drone_id: model.DroneId = FIRST) -> model.RemoteEnd:
    end = (await site.poll()).drones[drone_id].end
    assert end is not None
    return end


async def test_with_select_linear_every_job_gets_a_whole_node(cluster: Remembered) -> None:
    for select, places in (("select/cons_tres", 4), ("select/linear", 1)):
        cluster.configured = {"SLURM_VERSION": "24.11.5", "SelectType": select}
        async with slurm_site() as site:
            [node] = (await site.poll()).nodes
            assert FreeResources.of([node], ()).count(A100) == places
            gaps = await site.audit(model.SitePolicy(site="hk"))
            assert any(gap.dimension == "exclusive" for gap in gaps) == (places == 1)


async def test_a_node_for_one_user_stays_free_for_drones_beside_ours(
    cluster: Remembered, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = replace(NODE, state="MIXED", used_cpus=8, used_gpus={"a100": 1})
    for_one_user = Partition("accelerated", nodes=(NODE.name,), exclusive_user=True)
    monkeypatch.setattr(cluster, "nodes", AsyncMock(return_value=[used]))
    monkeypatch.setattr(cluster, "partitions", AsyncMock(return_value=[for_one_user]))
    async with slurm_site() as site:
        assert [each.free_gpu_milli for each in (await site.poll()).nodes] == [0]
        await site.start([order(1)])
        cluster.runs("101")
        assert [each.free_gpu_milli for each in (await site.poll()).nodes] == [3000]


def order(serial: int, kind: model.DroneType = A100) -> model.StartOrder:
    return model.StartOrder(
        model.DroneId(f"kit-ab12-{serial}"), kind, 600.0, 30.0, model.Bootstrap(b"#!/bin/sh\n")
    )


async def test_a_limit_is_used_up_and_the_rest_is_rejected(
    cluster: Remembered, site: SlurmSite
) -> None:
    cluster.most = 5
    receipts = await site.start([order(n) for n in range(20)])
    assert len(cluster.jobs) == 5
    assert [r.answer for r in receipts] == [model.OrderOutcome.OK] * 5 + [
        model.OrderOutcome.REJECTED
    ] * 15
    assert {r.fault.kind for r in receipts if r.fault} == {model.FaultKind.QUOTA}
    assert len({(await site.poll()).drones[r.drone_id].remote_id for r in receipts[:5]}) == 5


async def test_an_order_that_is_rejected_costs_the_others_nothing(
    cluster: Remembered, site: SlurmSite
) -> None:
    bad = replace(order(2), drone_id=model.DroneId("other-ab12-2"))
    receipts = await site.start([order(1), bad, order(3)])
    assert [r.answer for r in receipts] == [
        model.OrderOutcome.OK,
        model.OrderOutcome.REJECTED,
        model.OrderOutcome.OK,
    ]
    assert receipts[1].fault and receipts[1].fault.kind is model.FaultKind.CONFIG
    cluster.trouble, cluster.carried_out = (
        RejectedError("Invalid partition", model.FaultKind.CONFIG),
        False,
    )
    receipts = await site.start([order(4), order(5, replace(A100, name="cpu", gpu_milli=0))])
    assert [r.answer for r in receipts] == [model.OrderOutcome.REJECTED, model.OrderOutcome.OK]


@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_submit_whose_answer_was_lost_is_not_made_again(
    cluster: Remembered, site: SlurmSite, carried_out: bool
) -> None:
    cluster.trouble, cluster.carried_out = OutcomeUnknownError("connection lost"), carried_out
    [receipt] = await site.start([order(1)])
    assert receipt.answer is model.OrderOutcome.UNKNOWN
    [again] = await site.start([order(1)])
    # It is there, or it may still come: it is never asked for twice.
    assert again.answer is (model.OrderOutcome.OK if carried_out else model.OrderOutcome.UNKNOWN)
    assert len(cluster.submitted) == (1 if carried_out else 0)
    [other] = await site.start([order(2)])
    assert other.answer is model.OrderOutcome.OK


async def test_a_start_that_is_cut_short_is_not_cut_in_the_middle_of_a_submit(
    cluster: Remembered, site: SlurmSite
) -> None:
    cluster.release.clear()
    orders = [order(1), order(2, replace(A100, name="cpu", gpu_milli=0))]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await site.start(orders)
    second = asyncio.ensure_future(site.start(orders))
    await asyncio.sleep(0.05)
    assert not second.done()  # it waits for what the first has under way
    cluster.release.set()
    assert [r.answer for r in await second] == [model.OrderOutcome.OK] * 2
    assert sorted(job.name for job in cluster.jobs.values()) == [
        "kit-ab12-1.a100.hk",
        "kit-ab12-2.cpu.hk",
    ]


async def test_a_controller_that_leaves_waits_for_the_submit_under_way(cluster: Remembered) -> None:
    cluster.release.clear()
    async with slurm_site() as site:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await site.start([order(1)])
        asyncio.get_running_loop().call_later(0.1, cluster.release.set)
    assert len(cluster.jobs) == 1


async def test_only_live_jobs_are_cancelled_and_politely_by_default(
    cluster: Remembered, site: SlurmSite
) -> None:
    await site.start([order(n) for n in (1, 2, 3, 4)])
    ids = {d: drone.remote_id for d, drone in (await site.poll()).drones.items()}
    one, two, three, four = (ids[model.DroneId(f"kit-ab12-{n}")] for n in (1, 2, 3, 4))
    cluster.jobs[three] = replace(cluster.jobs[three], state="COMPLETED", ends_at=time.time())
    cluster.jobs[four] = replace(cluster.jobs[four], state="COMPLETING")
    stops = [model.StopOrder(d, "", kill=d.endswith("-2")) for d in ids]
    receipts = await site.stop([*stops, model.StopOrder(model.DroneId("kit-ab12-99"), "")])
    assert [r.answer for r in receipts] == [model.OrderOutcome.OK] * 5
    assert cluster.cancelled == [(one, False), (two, True)]
    assert (await end_of(site)).kind is model.EndKind.STOPPED


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_stop_leaves_the_end_of_a_drone_that_had_ended(
    cluster: Remembered, site: SlurmSite, stopped: bool
) -> None:
    """A stop of a drone that an admin had cancelled made its end one of ours."""
    await site.start([order(1)])
    cluster.jobs["101"] = replace(cluster.jobs["101"], state="CANCELLED", ends_at=time.time() + 0.5)
    if stopped:
        [receipt] = await site.stop([model.StopOrder(FIRST, "101")])
        assert receipt.answer is model.OrderOutcome.OK
    else:
        await asyncio.sleep(0.6)
    end = await end_of(site)
    assert (end.kind, end.message) == (model.EndKind.FAULT, "cancelled by somebody else")


OWNER = {"owner": {"partitions": ["accelerated"]}}


async def test_private_data_hides_the_owner_and_is_reported(cluster: Remembered) -> None:
    """With `PrivateData=jobs` an account sees its own jobs only; the owner seemed to want nothing."""
    cluster.configured, cluster.visible = {"PrivateData": "accounts,jobs"}, []
    policy = model.SitePolicy("hk")
    async with slurm_site(**OWNER) as site:
        for _ in range(2):
            view = await site.poll()
            assert view.owner_runs is None
            assert [
                n for n in view.notices if "PrivateData=jobs" in n and "adminlevel=operator" in n
            ]
        assert [gap.dimension for gap in await site.audit(policy)] == ["owner"]
        cluster.visible = [SlurmJob("7", "train", "RUNNING", user="owner", partition="accelerated")]
        view = await site.poll()  # an operator's account sees all jobs
        assert view.owner_runs is not None
        assert not view.notices
        assert not await site.audit(policy)


async def test_a_drone_that_slurmctld_has_forgotten_is_asked_of_accounting(
    cluster: Remembered, site: SlurmSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of ours once, then only what is missed; also after hours without a poll. An end is reported for a while."""
    await site.start([order(1), order(2)])
    cluster.runs("101_0")
    await site.poll()
    now = time.time()
    ended = replace(cluster.jobs.pop("101_0"), state="COMPLETED", exit_code=0, ends_at=now + 100)
    cluster.accounted = {"101_0": ended}
    monkeypatch.setattr(time, "time", lambda: now + 4 * 3600)
    for _ in range(2):
        end = await end_of(site)
        assert (end.kind, end.at) == (model.EndKind.EXITED, now + 100)
    monkeypatch.setattr(time, "time", lambda: now + 5 * 3600)
    assert (await site.poll()).drones.keys() == {"kit-ab12-2"}
    assert cluster.asked == [(), ("101_0",)]


async def test_a_node_on_which_two_gpu_checks_failed_is_avoided_for_an_hour(
    cluster: Remembered, site: SlurmSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm would send the next drone to the same GPU again: it is free there."""
    now = time.time()
    for n in (1, 2):
        await site.start([order(n)])
        view = await site.poll()
        assert view.nodes and view.nodes[0].free_gpu_milli == 4000
        job = cluster.jobs[str(100 + n)]
        failed = {"state": "FAILED", "exit_code": 71, "nodes": (NODE.name,)}
        cluster.jobs[str(100 + n)] = replace(job, ends_at=now + 1, **failed)
    view = await site.poll()
    assert view.nodes and view.nodes[0].free_gpu_milli == 0
    assert any(f"node {NODE.name} is avoided" in each for each in view.notices)
    await site.start([order(3)])
    assert [each.options.get("exclude") for each in cluster.submitted] == [None, None, NODE.name]
    cluster.jobs.clear()
    monkeypatch.setattr(time, "time", lambda: now + 3700)
    view = await site.poll()
    assert view.nodes and view.nodes[0].free_gpu_milli == 4000
    await site.start([order(4)])
    assert "exclude" not in cluster.submitted[-1].options


async def test_forgotten_is_not_gone_while_accounting_does_not_answer(
    cluster: Remembered, site: SlurmSite
) -> None:
    await site.start([order(1)])
    cluster.runs("101")
    await site.poll()
    cluster.jobs.clear()
    cluster.accounting_trouble = UnavailableError("slurmdbd is down")
    view = await site.poll()
    assert view.drones[FIRST].state is model.RemoteState.UNKNOWN
    assert "slurmdbd is down" in view.notices[0]


async def test_a_task_cancelled_before_it_started_leaves_no_trace_and_has_ended(
    cluster: Remembered, site: SlurmSite
) -> None:
    await site.start([order(1), order(2)])
    await site.poll()
    await site.stop([model.StopOrder(FIRST, "")])
    cluster.jobs.clear()
    drones = (await site.poll()).drones
    assert drones.keys() == {FIRST}  # what became of the other is not known
    assert drones[FIRST].state is model.RemoteState.ENDED
    assert (await end_of(site)).kind is model.EndKind.STOPPED


async def test_without_accounting_a_forgotten_drone_is_not_listed(
    cluster: Remembered, site: SlurmSite
) -> None:
    cluster.accounted = None
    await site.start([order(1)])
    await site.poll()
    cluster.jobs.clear()
    assert (await site.poll()).drones == {}
    assert cluster.asked == [()]  # and it is not asked again


async def test_a_duplicate_drone_is_cancelled_after_the_poll(
    cluster: Remembered, site: SlurmSite
) -> None:
    for remote_id in ("90", "91"):
        cluster.jobs[remote_id] = SlurmJob(
            remote_id, "kit-ab12-1.a100.hk", "PENDING", reason="Priority"
        )
    await site.poll()
    await asyncio.sleep(0)
    assert cluster.cancelled == []  # who looks but once changes nothing
    view = await site.poll()
    assert view.drones[FIRST].remote_id == "90"
    assert "twice" in view.notices[0]
    await asyncio.sleep(0.01)
    assert cluster.cancelled == [("91", False)]
    assert (await site.poll()).drones[FIRST].remote_id == "90"
