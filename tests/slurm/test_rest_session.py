"""The transport by slurmrestd: listings, and errors: nothing was done, the outcome is unknown, or access is denied."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from adapters.slurm.records import SlurmJob, SlurmSubmission
from adapters.slurm.rest import SlurmRestClient
from provisioner.interfaces import AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import FaultKind
from tests.slurm.restd import Restd, no_such_job, recorded, rest_client, running

DRONE = SlurmSubmission("c-b-0.t.s", b"#!/bin/sh\n")


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REST_TOKEN", "one")


@pytest.fixture
async def restd() -> AsyncIterator[Restd]:
    async with running(Restd()) as server:
        yield server


@pytest.fixture
async def slurm(restd: Restd) -> AsyncIterator[SlurmRestClient]:
    async with rest_client(restd.url) as client:
        yield client


def states(jobs: Sequence[SlurmJob]) -> dict[str, str]:
    return {job.remote_id: job.state for job in jobs}


async def test_details_of_others_are_requested_once_and_those_of_ours_while_they_live(
    restd: Restd, slurm: SlurmRestClient
) -> None:
    restd.add(1)
    restd.add(2, "owner")
    restd.add(3, state="COMPLETED")
    assert states(await slurm.own_jobs()) == {"1": "PENDING", "3": "COMPLETED"}
    assert sorted(restd.looked_at()) == [1, 2, 3]

    restd.add(4)
    restd.add(2, "owner", "RUNNING")
    restd.add(1, state="FAILED", exit_code={"return_code": {"set": True, "number": 3}})
    jobs = await slurm.own_jobs()
    assert states(jobs) == {"1": "FAILED", "3": "COMPLETED", "4": "PENDING"}
    assert [job.exit_code for job in jobs if job.remote_id == "1"] == [3]
    assert sorted(restd.looked_at()) == [1, 4]
    assert states(await slurm.own_jobs()) == {"1": "FAILED", "3": "COMPLETED", "4": "PENDING"}
    assert restd.looked_at() == [4]


async def test_a_task_keeps_its_name_when_it_starts_under_a_number_of_its_own(
    restd: Restd, slurm: SlurmRestClient
) -> None:
    restd.add_array(10, "0,1,2")
    assert states(await slurm.own_jobs()) == {
        "10_0": "PENDING",
        "10_1": "PENDING",
        "10_2": "PENDING",
    }

    restd.add_array(10, "2")
    restd.add_task(11, 10, 0)
    restd.add_task(12, 10, 1)
    assert states(await slurm.own_jobs()) == {
        "10_2": "PENDING",
        "10_0": "RUNNING",
        "10_1": "RUNNING",
    }

    restd.add_task(10, 10, 2)  # the last one takes the array's number along
    running_ones = await slurm.own_jobs()
    assert states(running_ones) == {"10_2": "RUNNING", "10_0": "RUNNING", "10_1": "RUNNING"}
    assert {job.nodes for job in running_ones} == {("hkn0802",)}


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
    async with rest_client(restd.url) as slurm:
        with pytest.raises(UnavailableError, match="reading the owners of jobs: 10 of 30"):
            await slurm.own_jobs()
        let_in = 1000
        restd.looked_at()
        assert states(await slurm.own_jobs()) == {"30": "PENDING"}
        assert sorted(restd.looked_at()) == list(range(11, 31)), (
            "what was learnt is not asked again"
        )
        let_in = 0
        with pytest.raises(UnavailableError, match="no complete listing within 2 s"):
            await slurm.own_jobs()


async def test_a_job_that_disappears_is_not_ours_and_an_error_fails_the_listing(
    restd: Restd, slurm: SlurmRestClient
) -> None:
    async def gone(request: web.Request) -> web.Response | None:
        return no_such_job() if "/job/2" in request.path else None

    async def failing(request: web.Request) -> object:
        error = {"error_number": -1, "error": "Unspecified error"}
        return {"jobs": [], "errors": [error]} if "/job/3" in request.path else None

    restd.add(1)
    restd.add(2)
    restd.before = gone
    assert states(await slurm.own_jobs()) == {"1": "PENDING"}
    restd.looked_at()
    assert states(await slurm.own_jobs()) == {"1": "PENDING"}
    assert restd.looked_at() == [1]
    restd.add(3)
    restd.before = failing
    with pytest.raises(UnavailableError, match="Unspecified error"):
        await slurm.own_jobs()


@pytest.mark.parametrize("odd", [{"job_state": []}, {"nodes": "hkn[0801"}])
async def test_a_job_that_cannot_be_read_is_an_error_and_not_left_out(
    restd: Restd, slurm: SlurmRestClient, odd: dict[str, Any]
) -> None:
    restd.add(1, "owner", **odd)
    with pytest.raises(UnavailableError, match=r"invalid|unknown format"):
        await slurm.own_jobs()


async def test_a_socket_of_another_account_is_noticed_by_the_first_job(
    restd: Restd, slurm: SlurmRestClient
) -> None:
    restd.add(await slurm.submit(DRONE), "somebody")
    with pytest.raises(UnavailableError, match="write `user: somebody`") as told:
        await slurm.own_jobs()
    assert told.value.kind is FaultKind.CONFIG


async def test_a_token_is_read_again_when_its_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("SLURM_JWT=one\n")  # as `scontrol token` prints it
    async with (
        running(Restd(token="one")) as restd,
        rest_client(restd.url, token={"file": str(file)}) as slurm,
    ):
        assert await slurm.own_jobs() == []
        restd.token = "two"
        file.write_text("two")
        assert await slurm.submit(DRONE) == 7
        restd.token = "three"
        with pytest.raises(AuthError, match=r"token of file .*/token is rejected"):
            await slurm.own_jobs()


async def test_the_newest_version_that_both_speak_is_chosen_once() -> None:
    async with (
        running(Restd(versions=("v0.0.40", "v0.0.43", "v0.0.99"))) as restd,
        rest_client(restd.url) as slurm,
    ):
        await slurm.own_jobs()
        await slurm.own_jobs()
        assert [each for each in restd.asked if "ping" not in each] == [
            "GET /slurm/v0.0.43/jobs/state/"
        ] * 2


async def test_a_server_without_a_supported_version_is_reported() -> None:
    async with (
        running(Restd(versions=("v0.0.37", "v0.0.38"))) as restd,
        rest_client(restd.url) as slurm,
    ):
        with pytest.raises(
            UnavailableError, match=r"no supported version .* v0\.0\.40 to v0\.0\.45"
        ) as told:
            await slurm.own_jobs()
        assert told.value.kind is FaultKind.CONFIG


async def test_another_release_in_its_place_is_found_out_at_the_next_call(
    restd: Restd, slurm: SlurmRestClient
) -> None:
    await slurm.own_jobs()
    restd.versions = ("v0.0.44",)
    with pytest.raises(UnavailableError):
        await slurm.own_jobs()
    assert await slurm.own_jobs() == []


async def cut(request: web.Request) -> None:
    if "ping" not in request.path:
        assert request.transport is not None
        request.transport.abort()


async def sleep(request: web.Request) -> None:
    if "ping" not in request.path:
        await asyncio.sleep(60)


@pytest.mark.parametrize("before", [cut, sleep])
async def test_silence_leaves_an_order_unsure_and_a_question_unanswered(
    before: Callable[[web.Request], Any],
) -> None:
    async with running(Restd(before=before)) as restd, rest_client(restd.url, "0.5s") as slurm:
        with pytest.raises(UnavailableError):
            await slurm.own_jobs()
        with pytest.raises(OutcomeUnknownError):
            await slurm.submit(DRONE)
        assert restd.asked.count("POST /slurm/v0.0.42/job/submit") == 1


NOT_BELIEVED = {
    "description": "Unable to query",
    "error_number": 1007,
    "error": "Protocol authentication error",
}


@pytest.mark.parametrize(
    ("status", "body", "of_order", "of_question"),
    [
        # from somebody between us
        (502, b"<html>Bad Gateway</html>", OutcomeUnknownError, UnavailableError),
        (400, b"Unable to parse query.", RejectedError, UnavailableError),
        (511, json.dumps({"jobs": None, "errors": [NOT_BELIEVED]}).encode(), AuthError, AuthError),
        *(
            # incomplete answers, or without a job's number
            (200, body, OutcomeUnknownError, UnavailableError)
            for body in (
                b"",
                b"[]",
                b'{"jobs": [',
                b'{"jobs": null}',
                b'{"jobs": [1]}',
                b"[" * 100_000,
            )
        ),
    ],
)
async def test_answers_that_are_none(
    status: int, body: bytes, of_order: type[Exception], of_question: type[Exception]
) -> None:
    async with running(Restd(reply=(status, body))) as restd, rest_client(restd.url) as slurm:
        with pytest.raises(of_order):
            await slurm.submit(DRONE)
        with pytest.raises(of_question):
            await slurm.own_jobs()


async def test_cancelling_and_killing(restd: Restd, slurm: SlurmRestClient) -> None:
    """A kill is for the steps first: SIGKILL to a whole job is a plain cancel. Jobs that have ended are no error."""
    await slurm.cancel([])
    with pytest.raises(ValueError, match="is not a job"):
        await slurm.cancel(["1,2"])
    assert restd.asked == []
    await slurm.cancel(["77", "1_77"])
    await slurm.cancel(["77"], kill=True)
    steps = {"jobs": ["77"], "signal": "KILL", "flags": ["FULL_STEPS_ONLY"]}
    assert restd.bodies == [{"jobs": ["77", "1_77"]}, steps, {"jobs": ["77"]}]


async def test_cancelling_a_job_of_somebody_else_is_denied() -> None:
    denied = json.dumps(recorded("denied-24.11")).encode()
    async with running(Restd(reply=(200, denied))) as restd, rest_client(restd.url) as slurm:
        with pytest.raises(AuthError, match="28: Access/permission denied"):
            await slurm.cancel(["28"])
