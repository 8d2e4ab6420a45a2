"""What a cloud's silence and its refusals mean, and that our token goes where it should and nowhere else."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest
from aiohttp import web

from adapters.openstack import session
from adapters.openstack.nova import OpenStackCloud
from provisioner.interfaces import AdapterError, AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import FaultKind
from tests.openstack.clouded import Clouded, access, fault, nobody, running

ORDER: dict[str, Any] = {"name": "kit-a-1", "flavorRef": "1", "imageRef": "2", "networks": "none"}


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUD_SECRET", "s3cret")
    monkeypatch.setattr(session, "_PAUSE_S", 0.001)


def cloud(clouded: Clouded, deadline_s: float = 30.0) -> OpenStackCloud:
    return OpenStackCloud(access(clouded), deadline_s=deadline_s, parallel=8)


async def create(nova: OpenStackCloud, deadline_s: float = 30.0) -> str:
    return await nova.create(ORDER, {}, deadline_s=deadline_s)


def of_servers(request: web.Request) -> bool:
    return "/servers" in request.path


# -------------------------------------------------------------------------------------------------------------- silence


async def test_nobody_there_means_that_nothing_was_asked() -> None:
    async with running(Clouded()) as clouded, nobody() as url:
        clouded.services["compute"] = ("nova", f"{url}/v2.1")
        async with cloud(clouded) as nova:
            for call in (nova.servers(), create(nova), nova.delete("aa"), nova.shut_down("aa")):
                with pytest.raises(UnavailableError, match="Cannot connect"):
                    await call


async def test_a_connection_that_is_cut_leaves_an_order_unsure_and_a_question_unanswered() -> None:
    async def cut(request: web.Request) -> None:
        if of_servers(request):
            assert request.transport is not None
            request.transport.abort()

    async with running(Clouded(before=cut)) as clouded, cloud(clouded) as nova:
        with pytest.raises(UnavailableError):
            await nova.servers()
        with pytest.raises(OutcomeUnknownError):
            await create(nova)
        with pytest.raises(OutcomeUnknownError):
            await nova.delete("aa")
        assert clouded.asked.count("POST /compute/v2.1/servers") == 1, "an order is never said twice"


async def test_a_connection_that_is_cut_within_the_answer_leaves_an_order_unsure() -> None:
    async def half(request: web.Request) -> web.StreamResponse | None:
        if not of_servers(request):
            return None
        response = web.StreamResponse(status=202, headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"server": {"id": "')
        assert request.transport is not None
        request.transport.abort()
        return response

    async with running(Clouded(before=half)) as clouded, cloud(clouded) as nova:
        with pytest.raises(OutcomeUnknownError):
            await create(nova)
        with pytest.raises(UnavailableError):
            await nova.servers()


async def test_a_deadline_that_passes_leaves_an_order_unsure() -> None:
    async def sleep(request: web.Request) -> None:
        if of_servers(request):
            await asyncio.sleep(60)

    async with running(Clouded(before=sleep)) as clouded, cloud(clouded, deadline_s=1) as nova:
        await nova.limits()  # logged in, the version known
        with pytest.raises(UnavailableError, match="no answer within 1 s"):
            await nova.servers()
        with pytest.raises(OutcomeUnknownError, match=r"no answer within 0\.5 s"):
            await create(nova, deadline_s=0.5)


async def test_a_deadline_that_passes_at_the_login_means_that_nothing_was_asked() -> None:
    async def sleep(request: web.Request) -> None:
        if "/auth/tokens" in request.path:
            await asyncio.sleep(60)

    async with running(Clouded(before=sleep)) as clouded, cloud(clouded) as nova:
        with pytest.raises(UnavailableError):
            await create(nova, deadline_s=0.5)
        assert not clouded.servers


@pytest.mark.parametrize(
    "body", [b"[]", b'{"servers": [', b'{"servers": null}', b'{"servers": [1]}', b"[" * 100_000, b""]
)
async def test_an_answer_that_is_not_whole_is_no_empty_listing(body: bytes) -> None:
    async def torn(request: web.Request) -> web.Response | None:
        return web.Response(body=body, status=200) if of_servers(request) else None

    async with running(Clouded(before=torn)) as clouded, cloud(clouded) as nova:
        with pytest.raises(UnavailableError):
            await nova.servers()


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"server": {"id": "../images"}}', b'{"server": {"id": 7}}'])
async def test_a_taken_server_without_an_id_is_unsure(body: bytes) -> None:
    async def odd(request: web.Request) -> web.Response | None:
        return web.Response(body=body, status=202) if request.method == "POST" and of_servers(request) else None

    async with running(Clouded(before=odd)) as clouded, cloud(clouded) as nova:
        with pytest.raises(OutcomeUnknownError):
            await create(nova)


async def test_an_answer_without_end_is_not_listened_to() -> None:
    written: list[int] = []

    async def endless(request: web.Request) -> web.StreamResponse | None:
        if not of_servers(request):
            return None
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"servers": ["')
        for _ in range(64):
            written.append(1)
            await response.write(b"x" * 1024**2)
        return response

    async with running(Clouded(before=endless)) as clouded, cloud(clouded) as nova:
        with pytest.raises(UnavailableError, match="says more than 32 MiB"):
            await nova.servers()
        assert len(written) < 64
        written.clear()
        with pytest.raises(OutcomeUnknownError, match="says more than 32 MiB"):
            await create(nova)


async def test_an_answer_that_is_packed_is_not_unpacked() -> None:
    bomb = gzip.compress(json.dumps({"servers": [], "more": "0" * 100_000_000}).encode())

    async def packed(request: web.Request) -> web.Response | None:
        return web.Response(body=bomb, headers={"Content-Encoding": "gzip"}) if of_servers(request) else None

    async with running(Clouded(before=packed)) as clouded, cloud(clouded) as nova:
        with pytest.raises(UnavailableError, match="no JSON object"):
            await nova.servers()


# ------------------------------------------------------------------------------------------------------------- refusals


async def test_a_service_that_stutters_is_asked_again_but_never_told_again() -> None:
    left = [503, 502, 503]

    async def stutter(request: web.Request) -> web.Response | None:
        return web.Response(status=left.pop(0), text="<html>") if left and of_servers(request) else None

    async with running(Clouded(before=stutter)) as clouded, cloud(clouded) as nova:
        left.pop()
        assert await nova.servers() == []
        left += [503, 503, 503]
        with pytest.raises(UnavailableError):
            await nova.servers()
        left[:] = [503]
        with pytest.raises(UnavailableError):
            await create(nova)
        assert not clouded.servers
        assert await create(nova) in clouded.servers


@pytest.mark.parametrize("status", [500, 502, 504])
async def test_somebody_between_us_may_have_passed_an_order_on(status: int) -> None:
    async def between(request: web.Request) -> web.Response | None:
        return web.Response(status=status, text="<html>Bad Gateway</html>") if of_servers(request) else None

    async with running(Clouded(before=between)) as clouded, cloud(clouded) as nova:
        with pytest.raises(OutcomeUnknownError, match="Bad Gateway"):
            await create(nova)
        with pytest.raises(UnavailableError):
            await nova.servers()


@pytest.mark.parametrize(
    ("answer", "error", "kind"),
    [
        (lambda: fault(403, "forbidden", "Quota exceeded for cores: Requested 8"), RejectedError, FaultKind.QUOTA),
        (
            lambda: fault(403, "forbidden", "Policy doesn't allow os_compute_api:servers:create to be performed."),
            AuthError,
            FaultKind.DENIED,
        ),
        (lambda: fault(400, "badRequest", "Flavor x could not be found."), RejectedError, FaultKind.CONFIG),
        (lambda: fault(429, "overLimit", "This request was rate-limited."), RejectedError, FaultKind.THROTTLED),
        (
            lambda: web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}),
            UnavailableError,
            FaultKind.CONFIG,
        ),
    ],
)
async def test_a_no_is_a_no(answer: Any, error: type[AdapterError], kind: FaultKind) -> None:
    async def refuse(request: web.Request) -> web.Response | None:
        return answer() if request.method == "POST" and of_servers(request) else None

    async with running(Clouded(before=refuse)) as clouded, cloud(clouded) as nova:
        with pytest.raises(error) as told:
            await create(nova)
        assert told.value.kind is kind


async def test_a_no_is_told_with_its_status_its_wait_and_its_id_in_the_clouds_own_log() -> None:
    async def slower(request: web.Request) -> web.Response | None:
        if not of_servers(request):
            return None
        response = fault(429, "overLimit", "Too many\x1b[31m requests")
        response.headers["Retry-After"] = "30"
        return response

    async with running(Clouded(before=slower)) as clouded, cloud(clouded) as nova:
        with pytest.raises(UnavailableError) as told:
            await nova.servers()
        assert str(told.value) == "compute: Too many?[31m requests (HTTP 429, try again after 30 s, req-1)"
        assert told.value.kind is FaultKind.THROTTLED


async def test_what_a_drone_joins_with_is_not_told_where_nova_says_it_again() -> None:
    joins_with = "SGVyZSBpcyB0aGUgdG9rZW4=" * 20

    async def echo(request: web.Request) -> web.Response | None:
        words = f"Invalid input for field/attribute user_data. Value: {joins_with}. '{joins_with}' is too long"
        return fault(400, "badRequest", words) if request.method == "POST" and of_servers(request) else None

    async with running(Clouded(before=echo)) as clouded, cloud(clouded) as nova:
        with pytest.raises(RejectedError, match="user_data") as told:
            await create(nova)
        assert joins_with[:13] not in str(told.value)


# -------------------------------------------------------------------------------------------------------------- tokens


async def test_a_token_that_is_refused_is_renewed_once_and_nobody_notices() -> None:
    async with running(Clouded()) as clouded, cloud(clouded) as nova:
        await nova.servers()
        clouded.tokens.clear()
        assert await create(nova) in clouded.servers
        assert (clouded.logins, clouded.asked.count("POST /compute/v2.1/servers")) == (2, 2)
        assert len(clouded.servers) == 1


async def test_an_order_that_was_refused_and_not_said_again_was_not_done() -> None:
    async def no_new_one(request: web.Request) -> None:
        if "/auth/tokens" in request.path:
            await asyncio.sleep(60)

    async with running(Clouded()) as clouded, cloud(clouded) as nova:
        await nova.servers()
        clouded.tokens.clear()
        clouded.before = no_new_one
        with pytest.raises(UnavailableError, match="no answer within 1 s"):
            await create(nova, deadline_s=1)


async def test_many_who_are_refused_at_a_time_log_in_once() -> None:
    waiting = asyncio.Barrier(20)

    async def refuse(request: web.Request) -> None:
        if of_servers(request) and request.headers["X-Auth-Token"] not in clouded.tokens:
            await waiting.wait()  # all of them are refused before one of them can log in

    async with running(Clouded()) as clouded, OpenStackCloud(access(clouded), deadline_s=30, parallel=32) as nova:
        await nova.servers()
        clouded.tokens.clear()
        clouded.before = refuse
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(nova.servers()) for _ in range(20)]
        assert [each.result() for each in answers] == [[]] * 20
        assert clouded.logins == 2


async def test_many_whose_credential_is_revoked_are_refused_by_one_login(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = asyncio.Barrier(20)

    async def refuse(request: web.Request) -> None:
        if of_servers(request):
            await waiting.wait()

    async with running(Clouded()) as clouded, OpenStackCloud(access(clouded), deadline_s=30, parallel=32) as nova:
        await nova.servers()
        clouded.tokens.clear()
        clouded.secret, clouded.before = "another", refuse
        answers = await asyncio.gather(*(nova.servers() for _ in range(20)), return_exceptions=True)
        assert {type(each) for each in answers} == {AuthError}
        assert clouded.logins == 2

        clouded.before = None
        monkeypatch.setenv("CLOUD_SECRET", "another")  # it is read again
        assert await nova.servers() == []


async def test_a_service_that_refuses_a_new_token_is_somebodys_business() -> None:
    async def refuse(request: web.Request) -> web.Response | None:
        return fault(401, "error", "no") if of_servers(request) else None

    async with running(Clouded(before=refuse)) as clouded, cloud(clouded) as nova:
        with pytest.raises(AuthError, match="refuses a token that Keystone has just given"):
            await create(nova)
        assert clouded.logins == 2


# ------------------------------------------------------------------------------------------------------- connections


async def test_no_more_calls_at_a_time_than_are_set() -> None:
    now: list[int] = []
    most = 0

    async def count(request: web.Request) -> None:
        nonlocal most
        if of_servers(request):
            now.append(1)
            most = max(most, len(now))
            await asyncio.sleep(0.02)
            now.pop()

    async with (
        running(Clouded(before=count)) as clouded,
        OpenStackCloud(access(clouded), deadline_s=30, parallel=3) as nova,
    ):
        await asyncio.gather(*(nova.servers() for _ in range(12)))
        assert most == 3


# ------------------------------------------------------------------------------------------------------------- versions


@pytest.mark.parametrize(
    ("newest", "spoken"), [("2.104", "2.90"), ("2.90", "2.90"), ("2.60", "2.60"), ("2.52", "2.52")]
)
async def test_the_newest_microversion_that_both_speak_is_found_once(newest: str, spoken: str) -> None:
    async with running(Clouded(newest=newest)) as clouded, cloud(clouded) as nova:
        await nova.servers()
        await nova.servers()
        assert clouded.microversions == [f"compute {spoken}"] * 2
        assert clouded.asked.count("GET /compute/v2.1/") == 1


@pytest.mark.parametrize("newest", ["2.51", "2.1", ""])
async def test_a_nova_that_is_too_old_is_told_so(newest: str) -> None:
    async with running(Clouded(newest=newest)) as clouded, cloud(clouded) as nova:
        with pytest.raises(UnavailableError, match=r"at least 2\.52 is wanted") as told:
            await create(nova)
        assert told.value.kind is FaultKind.CONFIG


async def test_another_release_in_its_place_is_found_out_at_the_next_call() -> None:
    async def older(request: web.Request) -> web.Response | None:
        if of_servers(request) and request.headers["OpenStack-API-Version"] != "compute 2.60":
            words = "Version 2.90 is not supported by the API. Minimum is 2.1 and maximum is 2.60."
            return web.json_response(
                {"errors": [{"status": 406, "title": "Not acceptable", "detail": words}]}, status=406
            )
        return None

    async with running(Clouded()) as clouded, cloud(clouded) as nova:
        await nova.servers()
        clouded.newest, clouded.before = "2.60", older
        with pytest.raises(UnavailableError, match=r"maximum is 2\.60"):
            await create(nova)
        assert await create(nova) in clouded.servers


# ---------------------------------------------------------------------------------------------------------------- pages


async def test_all_pages_are_read_with_the_same_question() -> None:
    async with running(Clouded(page=2)) as clouded, cloud(clouded) as nova:
        ours = [clouded.add(f"kit-a-{number}", tags=["mine"]) for number in range(5)]
        clouded.add("other")
        assert [each.id for each in await nova.servers(tag="mine")] == ours
        listings = [each for each in clouded.asked if "/servers/detail" in each]
        assert len(listings) == 3
        assert all("tags=mine" in each for each in listings)


@pytest.mark.parametrize(
    "hostile",
    [
        lambda url: url.replace("http://127.0.0.1", "https://evil.example.org"),
        lambda url: url.replace("/servers/detail", "/servers/all"),
        lambda url: url.replace("tags=mine", "tags=other&all_tenants=1"),
        lambda url: url.partition("?")[2].join(("?", "")),
    ],
)
async def test_of_a_link_to_the_next_page_only_its_marker_is_believed(hostile: Any) -> None:
    async with running(Clouded(page=1, next_link=hostile)) as clouded, cloud(clouded) as nova:
        ours = [clouded.add(f"kit-a-{number}", tags=["mine"]) for number in range(3)]
        assert [each.id for each in await nova.servers(tag="mine")] == ours
        assert not any("all_tenants" in each for each in clouded.asked)


@pytest.mark.parametrize("lost", [lambda url: url.partition("marker")[0], lambda url: "http://[", lambda url: "7"])
async def test_a_page_that_cannot_be_found_is_no_end(lost: Any) -> None:
    async with running(Clouded(page=1, next_link=lost)) as clouded, cloud(clouded) as nova:
        for number in range(3):
            clouded.add(f"kit-a-{number}")
        with pytest.raises(UnavailableError, match="lead nowhere"):
            await nova.servers()


async def test_pages_that_go_round_in_circles_are_left() -> None:
    async with running(Clouded(page=1)) as clouded, cloud(clouded) as nova:
        first = clouded.add("kit-a-0")
        clouded.add("kit-a-1")
        clouded.add("kit-a-2")
        clouded.next_link = lambda url: f"{url.partition('?')[0]}?marker={first}"
        with pytest.raises(UnavailableError, match="lead nowhere"):
            await nova.servers()


async def test_a_page_that_is_missing_makes_no_listing() -> None:
    async def cut(request: web.Request) -> web.Response | None:
        return web.Response(status=500, text="no") if "marker" in request.query else None

    async with running(Clouded(page=2, before=cut)) as clouded, cloud(clouded) as nova:
        for number in range(3):
            clouded.add(f"kit-a-{number}")
        with pytest.raises(UnavailableError):
            await nova.servers()


async def test_more_pages_than_there_can_be_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_MAX_PAGES", 2)
    async with running(Clouded(page=1)) as clouded, cloud(clouded) as nova:
        for number in range(3):
            clouded.add(f"kit-a-{number}")
        with pytest.raises(UnavailableError, match="more than 2 pages"):
            await nova.servers()


# ------------------------------------------------------------------------------------------------------------ redirects


async def test_our_token_does_not_follow_a_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(Clouded()) as other, running(Clouded()) as clouded:

        async def redirect(request: web.Request) -> web.Response | None:
            return web.Response(status=307, headers={"Location": f"{other.url}/x"}) if of_servers(request) else None

        clouded.before = redirect
        monkeypatch.setenv("http_proxy", other.url)
        async with cloud(clouded) as nova:
            with pytest.raises(UnavailableError):
                await nova.servers()
            with pytest.raises(UnavailableError):
                await create(nova)
        assert other.asked == []
