"""Logins, addresses and tokens; a cloud's silence and its refusals; our token goes where it should and nowhere else."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import json
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from provisioner.interfaces import (
    AdapterError,
    AuthError,
    OutcomeUnknownError,
    RejectedError,
    UnavailableError,
)
from provisioner.model import FaultKind
from tests.openstack.fake_openstack import FakeCloud, Nova, connect, fault, nobody, running

SERVERS, LOGIN = "/servers", "/auth/tokens"


async def create(nova: Nova, deadline_s: float = 30.0) -> str:
    order = {"name": "kit-a-1", "flavorRef": "1", "imageRef": "2", "networks": "none"}
    return await nova.create(order, {}, deadline_s=deadline_s)


async def sleep(_: web.Request) -> None:
    await asyncio.sleep(60)


def abort(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


async def test_nobody_there_means_that_nothing_was_asked(fake: FakeCloud, nova: Nova) -> None:
    async with nobody() as url:
        fake.services["compute"] = ("nova", f"{url}/v2.1")
        for call in (nova.servers(), create(nova), nova.delete("aa"), nova.shut_down("aa")):
            with pytest.raises(UnavailableError, match="cannot connect"):
                await call


async def half(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(status=202, headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"server": {"id": "')
    abort(request)
    return response


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b'{"servers": ["')
    for _ in range(64):
        await response.write(b"x" * 1024**2)
    return response


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (abort, None),
        (half, None),
        (endless, "says more than 32 MiB"),
        # it may have passed the order on
        (lambda _: web.Response(status=502, text="<html>Bad Gateway"), "Bad G"),
    ],
)
async def test_without_a_reply_an_order_is_unsure_and_a_read_fails(
    fake: FakeCloud, nova: Nova, answer: Any, words: str | None
) -> None:
    fake.fail(SERVERS, answer)
    with pytest.raises(UnavailableError, match=words):
        await nova.servers()
    for call in (create(nova), nova.delete("aa")):
        with pytest.raises(OutcomeUnknownError, match=words):
            await call
    assert fake.asked.count("POST /compute/v2.1/servers") == 1, "an order is never said twice"


async def test_a_deadline_that_passes_leaves_an_order_unsure(fake: FakeCloud) -> None:
    fake.fail(SERVERS, sleep)
    async with connect(fake, deadline_s=1) as nova:
        await nova.limits()  # logged in, the version known
        with pytest.raises(UnavailableError, match="no answer within 1 s"):
            await nova.servers()
        with pytest.raises(OutcomeUnknownError, match=r"no answer within 0\.5 s"):
            await create(nova, deadline_s=0.5)


@pytest.mark.parametrize(
    "body",
    [b"[]", b'{"servers": [', b'{"servers": null}', b'{"servers": [1]}', b"[" * 100_000, b""],
)
async def test_half_an_answer_is_no_empty_listing(fake: FakeCloud, nova: Nova, body: bytes) -> None:
    fake.fail(SERVERS, lambda _: web.Response(body=body, status=200))
    with pytest.raises(UnavailableError):
        await nova.servers()


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"server": {"id": "../images"}}'])
async def test_a_taken_server_without_an_id_is_unsure(
    fake: FakeCloud, nova: Nova, body: bytes
) -> None:
    fake.fail(SERVERS, lambda _: web.Response(body=body, status=202), "POST")
    with pytest.raises(OutcomeUnknownError):
        await create(nova)


async def test_an_answer_that_is_packed_is_not_unpacked(fake: FakeCloud, nova: Nova) -> None:
    bomb = gzip.compress(json.dumps({"servers": [], "more": "0" * 100_000_000}).encode())
    fake.fail(SERVERS, lambda _: web.Response(body=bomb, headers={"Content-Encoding": "gzip"}))
    with pytest.raises(UnavailableError, match="no JSON object"):
        await nova.servers()


async def test_reads_and_orders_are_tried_once(fake: FakeCloud, nova: Nova) -> None:
    left = [503]
    fake.fail(SERVERS, lambda _: web.Response(status=left.pop(0), text="<html>") if left else None)
    with pytest.raises(UnavailableError):
        await nova.servers()
    left[:] = [503]
    with pytest.raises(UnavailableError):
        await create(nova)
    assert not fake.servers
    assert await create(nova) in fake.servers
    assert await nova.servers() != []


async def test_user_data_that_nova_repeats_are_not_quoted(fake: FakeCloud, nova: Nova) -> None:
    joins_with = "SGVyZSBpcyB0aGUgdG9rZW4=" * 20
    words = f"Invalid input for field/attribute user_data. Value: {joins_with}. '{joins_with}' is too long"
    fake.fail(SERVERS, lambda _: fault(400, "badRequest", words), "POST")
    with pytest.raises(RejectedError, match="user_data") as told:
        await create(nova)
    assert joins_with[:13] not in str(told.value)


async def test_a_refused_token_is_renewed_once(fake: FakeCloud, nova: Nova) -> None:
    await nova.servers()
    fake.tokens.clear()
    assert await create(nova) in fake.servers
    assert (len(fake.logins), fake.asked.count("POST /compute/v2.1/servers")) == (2, 2)
    assert len(fake.servers) == 1


async def test_an_order_refused_and_not_repeated_was_not_done(fake: FakeCloud, nova: Nova) -> None:
    await nova.servers()
    fake.tokens.clear()
    fake.fail(LOGIN, sleep)
    with pytest.raises(UnavailableError, match="no answer within 1 s"):
        await create(nova, deadline_s=1)


async def test_many_who_are_refused_at_a_time_log_in_once(
    fake: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def together(request: web.Request) -> None:
        if request.headers["X-Auth-Token"] not in fake.tokens:
            await waiting.wait()  # all of them are refused before one of them can log in

    async with connect(fake, parallel=32) as nova:
        for secret, answers in (("s3cret", [[]] * 20), ("another", AuthError)):
            waiting = asyncio.Barrier(20)
            await nova.servers()
            fake.tokens.clear()
            fake.logins.clear()
            fake.secret = secret
            fake.fail(SERVERS, together)
            found = await asyncio.gather(
                *(nova.servers() for _ in range(20)), return_exceptions=True
            )
            assert (
                found == answers
                if secret == "s3cret"
                else {type(each) for each in found} == {answers}
            )
            assert len(fake.logins) == 1, "a wrong password many times locks accounts"
            fake.heal()
        monkeypatch.setenv("CLOUD_SECRET", "another")  # it is read again
        assert await nova.servers() == []


async def test_a_token_follows_no_redirect(
    fake: FakeCloud, nova: Nova, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(FakeCloud()) as other:
        fake.fail(
            SERVERS, lambda _: web.Response(status=307, headers={"Location": f"{other.url}/x"})
        )
        monkeypatch.setenv("http_proxy", other.url)
        for call in (nova.servers(), create(nova)):
            with pytest.raises(UnavailableError):
                await call
        assert other.asked == []


async def test_the_newest_common_microversion_is_found_once(fake: FakeCloud, nova: Nova) -> None:
    await nova.servers()
    await nova.servers()
    assert fake.microversions == ["compute 2.90"] * 2
    assert fake.asked.count("GET /compute/v2.1/") == 1
    fake.tokens.clear()
    fake.newest = "2.60"
    with pytest.raises(UnavailableError, match=r"at least 2\.61 is wanted") as told:
        await create(nova)
    assert told.value.kind is FaultKind.CONFIG


def three(fake: FakeCloud, **more: Any) -> list[str]:
    fake.page = 1
    return [fake.add(f"kit-a-{number}", **more) for number in range(3)]


@pytest.mark.parametrize(
    "hostile",
    [
        lambda url: url.replace("http://127.0.0.1", "https://evil.example.org"),
        lambda url: url.replace("tags=mine", "tags=other&all_tenants=1"),
        lambda url: url.partition("?")[2].join(("?", "")),
    ],
)
async def test_only_the_marker_of_a_next_link_is_used(
    fake: FakeCloud, nova: Nova, hostile: Any
) -> None:
    ours, fake.next_link = three(fake, tags=["mine"]), hostile
    assert [each.id for each in await nova.servers(tag="mine")] == ours
    assert not any("all_tenants" in each for each in fake.asked)


@pytest.mark.parametrize(
    "lost",
    [
        lambda url: url.partition("marker")[0],
        lambda url: "http://[",
        # round in circles
        lambda url: f"{url.partition('?')[0]}?marker=00000000-0000-4000-8000-000000000001",
    ],
)
async def test_a_page_that_cannot_be_found_is_no_end(
    fake: FakeCloud, nova: Nova, lost: Any
) -> None:
    three(fake)
    fake.next_link = lost
    with pytest.raises(UnavailableError, match="lead nowhere"):
        await nova.servers()


@pytest.mark.parametrize("status", [401, 400])
async def test_a_keystone_that_repeats_our_secret_is_not_quoted(
    fake: FakeCloud, nova: Nova, status: int
) -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.Response(status=status, text=f"cannot read {await request.text()}")

    fake.fail("", echo)
    with pytest.raises(
        AuthError if status == 401 else UnavailableError, match=r"keystone at .*\*\*\*"
    ) as told:
        await nova.servers()
    assert "s3cret" not in str(told.value)


TOKEN = {"X-Subject-Token": "t"}
NO_PROJECT = {"token": {"user": {"id": "u"}}}


@pytest.mark.parametrize(
    ("answer", "error", "kind"),
    [
        (lambda _: fault(403, "error", "The account is locked"), AuthError, FaultKind.DENIED),
        (lambda _: web.Response(status=404, text="nginx"), UnavailableError, FaultKind.CONFIG),
        (lambda _: fault(429, "error", "slower"), UnavailableError, FaultKind.THROTTLED),
        (
            lambda _: web.Response(status=201, text="{", headers=TOKEN),
            UnavailableError,
            FaultKind.DOWN,
        ),
        (
            lambda _: web.json_response(NO_PROJECT, status=201, headers=TOKEN),
            AuthError,
            FaultKind.CONFIG,
        ),
    ],
)
async def test_a_keystone_that_gives_no_token(
    fake: FakeCloud, nova: Nova, answer: Any, error: type[AdapterError], kind: FaultKind
) -> None:
    fake.fail("", answer)
    with pytest.raises(error) as told:
        await nova.servers()
    assert told.value.kind is kind


async def test_a_cancelled_login_does_not_fail_who_waits_for_it(
    fake: FakeCloud, nova: Nova
) -> None:
    """A login that a short deadline has cut off was nobody's refusal."""
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: web.Request) -> None:
        if len(fake.logins) == 1:
            arrived.set()
            await go_on.wait()

    fake.fail(LOGIN, slow)
    first = asyncio.create_task(nova.servers())  # type: ignore[arg-type]
    await arrived.wait()
    second = asyncio.create_task(nova.servers())  # type: ignore[arg-type]
    await asyncio.sleep(0)
    first.cancel()
    assert await second == []
    go_on.set()
    await asyncio.gather(first, return_exceptions=True)


async def test_the_default_region_is_the_first_with_a_nova(fake: FakeCloud) -> None:
    fake.regions = ("KA", "HD")
    async with connect(fake) as nova:
        assert await nova.servers() == []
    async with connect(fake, region="KAA") as nova:
        with pytest.raises(
            UnavailableError, match=r"in region `KAA`.*\(there are HD, KA\)"
        ) as told:
            await nova.servers()
        assert told.value.kind is FaultKind.CONFIG


@pytest.mark.parametrize(
    "url",
    ["ftp://x/v2.1", "file:///etc/passwd", "http://me:pw@127.0.0.1/v2.1", "", "/compute/v2.1"],
)
async def test_only_addresses_of_the_web_are_gone_to(fake: FakeCloud, nova: Nova, url: str) -> None:
    fake.services = {"compute": ("nova", url), "image": ("glance", f"{fake.url}/image")}
    fake.url = ""
    with pytest.raises(UnavailableError, match="no service `compute`"):
        await nova.servers()
    assert len(fake.asked) == 1


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A file with a certificate of 127.0.0.1 by itself, and its key."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now, day = datetime.now(UTC), timedelta(days=1)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
    signed = made.add_extension(address, critical=False).sign(key, hashes.SHA256())
    pem, encoding = serialization.PrivateFormat.PKCS8, serialization.Encoding.PEM
    file = tmp_path / "tls.pem"
    private = key.private_bytes(encoding, pem, serialization.NoEncryption())
    file.write_bytes(private + signed.public_bytes(encoding))
    return file


async def test_a_certificate_is_believed_by_its_authority(
    certificate: Path, tmp_path: Path
) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    async with running(FakeCloud(), tls) as fake:
        async with connect(fake) as nova:
            with pytest.raises(UnavailableError, match="certificate verify failed"):
                await nova.servers()
            assert fake.asked == []
        async with connect(fake, ca=str(certificate)) as nova:
            assert await nova.servers() == []
        (tmp_path / "clouds.yaml").write_text(
            f"clouds: {{kit: {{verify: false, auth: {{auth_url: '{fake.url}/identity', application_credential_id: a,"
            " application_credential_secret: s3cret}}}\n"
        )
        async with connect(fake, cloud="kit", clouds_file=str(tmp_path / "clouds.yaml")) as nova:
            assert await nova.servers() == []


async def test_keystone_tells_when_the_application_credential_ends(
    fake: FakeCloud, nova: Nova
) -> None:
    fake.fail(
        "/application_credentials/",
        lambda _: {"application_credential": {"expires_at": "2026-12-01T00:00:00"}},
    )
    await nova.servers()
    assert (
        nova.credential is not None
        and nova.credential.not_after == datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    )
    assert "application credential" in nova.credential.identity
