"""The owner's queues are asked together; a silent one holds up nothing, and its last word counts for a while."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from typing import cast

import pytest

from adapters.htcondor.classads import Ad
from adapters.htcondor.site import owner
from adapters.htcondor.site.client import HTCondorClient
from adapters.htcondor.site.nodes import PoolMachine, machines_of
from adapters.htcondor.site.owner import (
    OWNER_JOB_PROJECTION,
    OwnerJobQueue,
    OwnerQueuePoller,
    claims,
    group_jobs,
)
from adapters.htcondor.site.settings import HTCondorOwnerConfig
from provisioner.interfaces import UnavailableError
from provisioner.model import OwnerDemand
from tests.htcondor_site.slot_ads import A100, NOW, V100S, job, pslot

A, V = "topas-a100-1.etp.test", "topas-v100s-1.etp.test"
SITE = machines_of([pslot(A, gpu=A100), pslot(V, gpu=V100S)], 0)


class Schedds:
    """Queues that answer as a schedd does: with those attributes of their jobs that are asked for."""

    def __init__(self, **queues: Sequence[Ad]) -> None:
        self.queues = queues
        self.silent: set[str] = set()
        self.down: set[str] = set()
        self.asked: list[str] = []
        self.now = 0.0

    async def owner_queue(
        self, schedd: str, constraint: str, names: Sequence[str]
    ) -> OwnerJobQueue:
        self.asked.append(schedd)
        if schedd in self.silent:
            await asyncio.sleep(3600)
        if schedd in self.down:
            raise UnavailableError("it is down")
        asked = {name.lower() for name in (*OWNER_JOB_PROJECTION, *names)}
        ads = [pickle.loads(pickle.dumps(ad)) for ad in self.queues[schedd]]
        for ad in ads:
            for name in [name for name in ad if name.lower() not in asked]:
                del ad[name]
        return cast(OwnerJobQueue, pickle.loads(pickle.dumps(group_jobs(ads, names, NOW))))

    def as_owners(self) -> OwnerQueuePoller:
        return OwnerQueuePoller(
            cast(HTCondorClient, self),
            HTCondorOwnerConfig(schedds=tuple(self.queues)),
            lambda: self.now,
        )


async def seen(
    queues: OwnerQueuePoller, site: tuple[PoolMachine, ...] = SITE
) -> tuple[list[OwnerDemand], list[str]]:
    told, notices = await queues.query(site)
    return [claim for one in told for claim in claims(one.queue.groups, site).claims], list(notices)


async def test_silent_queues_cost_one_patience_and_no_claim_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, "OWNER_QUEUE_TIMEOUT_S", 0.05)
    schedds = Schedds(s1=[job(1)], s2=[job(2)], s3=[job(3, gpus=2)])
    schedds.silent = {"s1", "s2"}
    found, notices = await seen(schedds.as_owners())
    assert [claim.gpu_milli for claim in found] == [2000]
    assert notices == [
        f"owner's schedd {name}: its jobs are not seen: no answer within 0.05 s"
        for name in ("s1", "s2")
    ]


async def test_what_a_queue_said_last_counts_for_a_while() -> None:
    schedds = Schedds(s1=[job(1)])
    queues = schedds.as_owners()
    assert len((await seen(queues))[0]) == 1
    schedds.down = {"s1"}
    schedds.now = 100.0
    found, notices = await seen(queues)
    assert len(found) == 1, "drones would start in the room that is being made for it"
    assert notices == ["owner's schedd s1: what it said 100 s ago still counts: it is down"]
    schedds.now = 601.0
    found, notices = await seen(queues)
    assert found == []
    assert notices == [
        "owner's schedd s1: its jobs are not seen, what it said 601 s ago is too old: it is down"
    ]
    schedds.down, schedds.now = set(), 10_000.0
    assert ([c.count for c in (await seen(queues))[0]], (await seen(queues))[1]) == ([1], [])


async def test_a_silent_queue_is_asked_less_and_less_often() -> None:
    schedds = Schedds(s1=[])
    schedds.down = {"s1"}
    queues = schedds.as_owners()
    asked_at = []
    for second in range(0, 1500, 5):
        schedds.now, before = float(second), len(schedds.asked)
        await seen(queues)
        if len(schedds.asked) > before:
            asked_at.append(second)
    assert asked_at == [0, 30, 90, 210, 450, 750, 1050, 1350]


async def test_a_stopped_look_stops_the_questions() -> None:
    schedds = Schedds(s1=[], s2=[])
    schedds.silent = {"s1", "s2"}
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await seen(schedds.as_owners())
    assert len(asyncio.all_tasks()) == 1


async def test_what_start_looks_at_is_asked_for() -> None:
    start = 'TARGET.Project == "etp" && Allowed'
    site = machines_of([pslot(A, start=start, more="Allowed = TARGET.Paid"), pslot(V, gpus=1)], 0)
    schedds = Schedds(
        s1=[
            job(1, gpus=8, more='Project = "etp"\nPaid = true'),
            job(2, gpus=8, more='Project = "cms"'),
        ]
    )
    [claim], _ = await seen(schedds.as_owners(), site)
    assert (claim.count, claim.nodes) == (1, (A,)), "the other job would make drones leave in vain"


async def test_what_a_jobs_requirements_look_at_is_asked_for_until_all_is_known() -> None:
    wants = "TARGET.Machine == MY.Wanted"
    wanted = f'Wanted = ifThenElse(Best is undefined, "{A}", Best)'
    schedds = Schedds(s1=[job(1, requirements=wants, more=f'{wanted}\nBest = "{V}"')])
    queues = schedds.as_owners()
    [claim], _ = await seen(queues)
    assert claim.nodes == (V,)
    schedds.asked.clear()
    await seen(queues)
    assert schedds.asked == ["s1"], "it is remembered what to ask for"


def test_a_long_queue_comes_as_a_few_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = group_jobs([job(n, cpus=1 + n % 3, at=NOW - n) for n in range(300)], now=NOW)
    assert [len(group.submitted) for group in queue.groups] == [100, 100, 100]
    assert (queue.groups[0].submitted[0], queue.groups[0].submitted[-1]) == (NOW - 299, NOW - 2)
    monkeypatch.setattr(owner, "MOST_GROUPS", 5)
    queue = group_jobs([job(n, memory_mib=1000 + n, at=NOW - n) for n in range(8)], now=NOW)
    assert [group.ids for group in queue.groups] == [(f"{n}.0",) for n in (7, 6, 5, 4, 3)]
    [notice] = claims(queue.groups, SITE, queue.left_out).notices
    assert notice == "owner: 3 further shapes of waiting jobs are not looked at"
