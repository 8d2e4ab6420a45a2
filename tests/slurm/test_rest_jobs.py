"""The registry of jobs for slurmrestd: complete listings for one request per job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from adapters.slurm import rest as slurm_rest
from adapters.slurm.records import SlurmSubmission
from adapters.slurm.rest import SlurmRestClient
from provisioner.interfaces import UnavailableError
from provisioner.model import FaultKind
from tests.slurm.restd import Restd, rest_client, running


def cluster(restd: Restd, per_look: int = 1, deadline: str = "5s") -> SlurmRestClient:
    return rest_client(restd.url, deadline, max_job_details_per_poll=per_look)


@pytest.fixture
async def restd(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Restd]:
    monkeypatch.setenv("REST_TOKEN", "one")
    async with running(Restd()) as server:
        yield server


@pytest.fixture
async def slurm(restd: Restd) -> AsyncIterator[SlurmRestClient]:
    async with cluster(restd) as client:
        yield client


def states(jobs: object) -> dict[str, str]:
    assert isinstance(jobs, list)
    return {job.remote_id: job.state for job in jobs}


async def test_details_are_requested_once_and_after_each_change(restd: Restd, slurm: SlurmRestClient) -> None:
    restd.add(1)
    restd.add(2, "owner")
    restd.add(3, state="COMPLETED")
    assert states(await slurm.own_jobs()) == {"1": "PENDING", "3": "COMPLETED"}
    assert sorted(restd.looked_at()) == [1, 2, 3]

    restd.add(4)
    restd.add(2, "owner", "RUNNING")
    restd.add(3, state="COMPLETED")
    assert states(await slurm.own_jobs()) == {"1": "PENDING", "3": "COMPLETED", "4": "PENDING"}
    assert sorted(restd.looked_at()) == [1, 4], "the new one, and one of ours in turn"

    restd.add(4, state="RUNNING")
    assert states(await slurm.own_jobs()) == {"1": "PENDING", "3": "COMPLETED", "4": "RUNNING"}
    assert sorted(restd.looked_at()) == [1, 4]


async def test_a_task_keeps_its_name_when_it_starts_under_a_number_of_its_own(
    restd: Restd, slurm: SlurmRestClient
) -> None:
    restd.add_array(10, "0,1,2")
    assert states(await slurm.own_jobs()) == {"10_0": "PENDING", "10_1": "PENDING", "10_2": "PENDING"}

    restd.add_array(10, "2")
    restd.add_task(11, 10, 0)
    restd.add_task(12, 10, 1)
    assert states(await slurm.own_jobs()) == {"10_2": "PENDING", "10_0": "RUNNING", "10_1": "RUNNING"}

    restd.add_task(10, 10, 2)  # the last one takes the array's number along
    running_ones = await slurm.own_jobs()
    assert states(running_ones) == {"10_2": "RUNNING", "10_0": "RUNNING", "10_1": "RUNNING"}
    assert {job.nodes for job in running_ones} == {("hkn0802",)}


async def test_a_wholly_cancelled_array_is_listed_task_by_task_if_its_tasks_were_known(restd: Restd) -> None:
    async def starred(request: web.Request) -> object:
        line = {"job_id": "10_*", "state": ["CANCELLED"]}
        return {"jobs": [line], "errors": []} if "state" in request.path else None

    restd.add_array(10, "0,1")
    async with cluster(restd) as slurm, cluster(restd) as newcomer:
        await slurm.own_jobs()
        restd.add(10, state="CANCELLED", array_job_id=10)
        restd.before = starred
        assert states(await slurm.own_jobs()) == {"10_0": "CANCELLED", "10_1": "CANCELLED"}
        assert states(await newcomer.own_jobs()) == {}, "they never ran, and have ended"


async def test_one_request_reports_a_whole_array(restd: Restd, slurm: SlurmRestClient) -> None:
    restd.add_task(10, 10, 99)
    for task in range(50):
        restd.add_task(11 + task, 10, task)
    assert len(await slurm.own_jobs()) == 51
    assert len(restd.looked_at()) <= 7, "one, those begun beside it, and one in turn"


async def test_there_is_no_listing_until_the_details_of_every_job_are_known(restd: Restd) -> None:
    asked, let_in = 0, 10

    async def slow(request: web.Request) -> None:
        nonlocal asked
        if "/job/" in request.path:
            asked += 1
            if asked > let_in:
                await asyncio.sleep(60)

    for number in range(1, 31):
        restd.add(number, "drone" if number == 30 else "owner")
    restd.before = slow
    async with cluster(restd, deadline="3s") as slurm:
        with pytest.raises(UnavailableError, match="still learning which jobs are ours: 10 of 30"):
            await slurm.own_jobs()
        let_in = 1000
        restd.looked_at()
        assert states(await slurm.own_jobs()) == {"30": "PENDING"}
        assert sorted(set(restd.looked_at())) == list(range(11, 31)), "what was learnt is not asked again"


async def test_a_job_that_disappears_meanwhile_or_is_hidden_is_not_ours(restd: Restd, slurm: SlurmRestClient) -> None:
    restd.add(1)
    restd.add(2)

    async def gone(request: web.Request) -> web.Response | None:
        error = {"error_number": 2017, "error": "Invalid job id specified"}
        return web.json_response({"jobs": [], "errors": [error]}, status=404) if "/job/2" in request.path else None

    restd.before = gone
    assert states(await slurm.own_jobs()) == {"1": "PENDING"}
    restd.looked_at()
    assert states(await slurm.own_jobs()) == {"1": "PENDING"}
    assert restd.looked_at() == [1]


async def test_a_failed_request_fails_the_listing(restd: Restd, slurm: SlurmRestClient) -> None:
    restd.add(1)
    restd.add(2)

    async def failing(request: web.Request) -> web.Response | None:
        error = {"error_number": -1, "error": "Unspecified error"}
        return web.json_response({"jobs": [], "errors": [error]}, status=500) if "/job/2" in request.path else None

    restd.before = failing
    with pytest.raises(UnavailableError, match="Unspecified error"):
        await slurm.own_jobs()


async def test_of_many_changes_at_once_all_states_are_listed_and_some_details_requested(
    restd: Restd, slurm: SlurmRestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_rest, "_CHANGES_PER_POLL", 2)
    for number in range(1, 7):
        restd.add(number)
    await slurm.own_jobs()
    for number in range(1, 7):
        restd.add(number, state="RUNNING")
    followed = []
    for _ in range(2):
        jobs = await slurm.own_jobs()
        assert set(states(jobs).values()) == {"RUNNING"}
        assert not any(job.reason for job in jobs), "what it waited for, it waits for no longer"
        followed.append(sum(bool(job.nodes) for job in jobs))
    assert followed == [3, 6], "two that changed and one in turn"


async def test_an_own_job_is_listed_as_ended_only_with_its_exit_status(restd: Restd) -> None:
    async def slow(request: web.Request) -> None:
        if "/job/1" in request.path:
            await asyncio.sleep(60)

    restd.add(1, state="RUNNING")
    restd.add(2, "owner", "RUNNING")
    async with cluster(restd, deadline="1s") as slurm:
        await slurm.own_jobs()
        restd.add(2, "owner", "FAILED")
        restd.before = slow
        assert states(await slurm.own_jobs()) == {"1": "RUNNING"}
        restd.add(1, state="FAILED", exit_code={"return_code": {"set": True, "number": 3}})
        with pytest.raises(UnavailableError, match="1 of 2"):
            await slurm.own_jobs()
        restd.before = None
        assert [(job.state, job.exit_code) for job in await slurm.own_jobs()] == [("FAILED", 3)]


async def test_the_requests_in_turn_are_bounded_and_reach_every_job(restd: Restd) -> None:
    for number in range(1, 8):
        restd.add(number, state="RUNNING" if number > 4 else "PENDING")
    async with cluster(restd, per_look=2) as slurm:
        await slurm.own_jobs()
        restd.looked_at()
        turns = []
        for _ in range(4):
            await slurm.own_jobs()
            turns.append(restd.looked_at())
        assert [len(turn) for turn in turns] == [2, 2, 2, 2]
        assert {number for turn in turns for number in turn} == set(range(1, 8))


async def test_a_larger_started_array_is_requested_less_often(restd: Restd) -> None:
    restd.add_array(10, "9")
    for task in range(5):
        restd.add_task(11 + task, 10, task, state="COMPLETED")
    async with cluster(restd, per_look=2) as slurm:
        await slurm.own_jobs()
        restd.looked_at()
        turns = []
        for _ in range(7):
            await slurm.own_jobs()
            turns.append(restd.looked_at())
        assert [number for turn in turns for number in turn] == [10, 10, 10], (
            "six jobs are told of each time, and two are allowed"
        )


async def test_others_are_followed_only_where_they_are_asked_for(restd: Restd, slurm: SlurmRestClient) -> None:
    restd.add(1, "owner", partition="fast,slow")
    restd.add(2, "owner", partition="slow")
    restd.add(3, partition="fast")
    restd.add(4, "owner", "COMPLETED", partition="fast")
    assert states(await slurm.active_jobs(["fast"])) == {"1": "PENDING", "3": "PENDING"}
    restd.looked_at()

    restd.add(1, "owner", "RUNNING", partition="fast")
    restd.add(2, "owner", "RUNNING", partition="slow")
    assert states(await slurm.own_jobs()) == {"3": "PENDING"}
    seen = await slurm.active_jobs(["fast"])
    assert states(seen) == {"1": "RUNNING", "3": "PENDING"}
    assert [job.nodes for job in seen if job.remote_id == "1"] == [("hkn0802",)]
    assert sorted(restd.looked_at()) == [1, 3]


async def test_active_jobs_use_a_recent_listing(restd: Restd, slurm: SlurmRestClient) -> None:
    restd.add(1)
    await asyncio.gather(slurm.own_jobs(), slurm.active_jobs(["accelerated"]))
    assert sum("state" in each for each in restd.asked) == 1
    restd.add(2)
    assert states(await slurm.own_jobs()) == {"1": "PENDING", "2": "PENDING"}


async def test_a_socket_of_another_account_is_noticed_by_the_first_job(restd: Restd, slurm: SlurmRestClient) -> None:
    number = await slurm.submit(SlurmSubmission("c-b-0.t.s", b""))
    restd.add(number, "somebody")
    with pytest.raises(UnavailableError, match="write `user: somebody`") as told:
        await slurm.own_jobs()
    assert told.value.kind is FaultKind.CONFIG
