"""Tokens, and where the services are."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from adapters.openstack.nova import OpenStackCloud
from adapters.openstack.settings import CloudAccess
from provisioner.interfaces import AdapterError, AuthError, UnavailableError
from provisioner.model import FaultKind
from tests.openstack.clouded import PROJECT, USER, Clouded, access, fault, nobody, running


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUD_SECRET", "s3cret")


def cloud(settings: CloudAccess) -> OpenStackCloud:
    return OpenStackCloud(settings, deadline_s=30, parallel=8)


# ---------------------------------------------------------------------------------------------------------- who we are


async def test_who_we_are_is_known_from_the_first_call() -> None:
    async with running(Clouded()) as clouded, cloud(access(clouded)) as nova:
        assert (nova.project, nova.user) == ("", "")
        assert clouded.asked == []
        await nova.limits()
        assert (nova.project, nova.user) == (PROJECT, USER)


async def test_a_password_of_a_clouds_yaml(tmp_path: Path) -> None:
    async with running(Clouded()) as clouded:
        (tmp_path / "clouds.yaml").write_text(
            f"clouds: {{kit: {{auth: {{auth_url: '{clouded.url}/identity', username: drone, password: s3cret,"
            " user_domain_name: Default, project_id: p7}}}\n"
        )
        settings = CloudAccess.model_validate({"cloud": "kit", "clouds_file": str(tmp_path / "clouds.yaml")})
        sent: list[Any] = []

        async def listen(request: web.Request) -> None:
            if "/auth/tokens" in request.path:
                sent.append(await request.json())

        clouded.before = listen
        async with cloud(settings) as nova:
            await nova.servers()
            assert sent == [
                {
                    "auth": {
                        "identity": {
                            "methods": ["password"],
                            "password": {
                                "user": {"name": "drone", "domain": {"name": "Default"}, "password": "s3cret"}
                            },
                        },
                        "scope": {"project": {"id": "p7"}},
                    }
                }
            ]
            (tmp_path / "clouds.yaml").unlink()
            assert await nova.servers() == [], "a token that is good needs no file"
            clouded.tokens.clear()
            with pytest.raises(AuthError, match=r"clouds\.yaml: it cannot be read") as told:
                await nova.servers()
            assert told.value.kind is FaultKind.CONFIG


async def test_a_token_is_kept_until_its_last_minute() -> None:
    async with running(Clouded(life_s=3600)) as clouded, cloud(access(clouded)) as nova:
        await nova.servers()
        await nova.servers()
        assert clouded.logins == 1
    async with running(Clouded(life_s=59)) as clouded, cloud(access(clouded)) as nova:
        await nova.servers()
        await nova.servers()
        assert clouded.logins > 1


async def test_a_refused_credential_is_told_without_its_secret() -> None:
    async with running(Clouded(secret="other")) as clouded, cloud(access(clouded)) as nova:
        with pytest.raises(AuthError) as told:
            await nova.create({"name": "x"}, {}, deadline_s=30)
        words = (
            f"keystone at {clouded.url}/identity/v3: application credential abc (`auth` of the site file) is refused: "
        )
        assert str(told.value).startswith(words)
        assert "s3cret" not in str(told.value)


async def test_a_keystone_that_says_our_secret_again_is_not_quoted() -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.Response(status=400, text=f"cannot read {await request.text()}")

    async with running(Clouded(before=echo)) as clouded, cloud(access(clouded)) as nova:
        with pytest.raises(UnavailableError, match="does not understand") as told:
            await nova.servers()
        assert "s3cret" not in str(told.value)
        assert "***" in str(told.value)


async def test_a_keystone_that_is_not_there() -> None:
    async with running(Clouded()) as clouded, nobody() as url:
        clouded.url = url
        async with cloud(access(clouded)) as nova:
            for call in (nova.servers(), nova.create({}, {}, deadline_s=5), nova.delete("aa")):
                with pytest.raises(UnavailableError, match=r"keystone at .*: Cannot connect"):
                    await call


@pytest.mark.parametrize(
    ("answer", "error", "kind"),
    [
        (lambda: fault(403, "error", "The account is locked"), AuthError, FaultKind.DENIED),
        (lambda: web.Response(status=404, text="nginx"), UnavailableError, FaultKind.CONFIG),
        (lambda: web.json_response({"versions": {}}, status=300), UnavailableError, FaultKind.CONFIG),
        (lambda: web.Response(status=503), UnavailableError, FaultKind.DOWN),
        (lambda: fault(429, "error", "slower"), UnavailableError, FaultKind.THROTTLED),
        (lambda: web.json_response({"token": {}}, status=201), UnavailableError, FaultKind.DOWN),
        (
            lambda: web.Response(status=201, text="{", headers={"X-Subject-Token": "t"}),
            UnavailableError,
            FaultKind.DOWN,
        ),
        (
            lambda: web.json_response({"token": {"user": {"id": "u"}}}, status=201, headers={"X-Subject-Token": "t"}),
            AuthError,
            FaultKind.CONFIG,
        ),
    ],
)
async def test_a_keystone_that_gives_no_token(answer: Any, error: type[AdapterError], kind: FaultKind) -> None:
    async def instead(request: web.Request) -> web.Response:
        return answer()

    async with running(Clouded(before=instead)) as clouded, cloud(access(clouded)) as nova:
        with pytest.raises(error) as told:
            await nova.servers()
        assert told.value.kind is kind


async def test_who_gives_up_at_the_door_does_not_fail_who_waits_behind_him() -> None:
    """A login that a short deadline has cut off was nobody's refusal."""
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> None:
        if "/auth/tokens" in request.path and clouded.logins == 1:
            arrived.set()
            await go_on.wait()

    async with running(Clouded(before=slow)) as clouded, cloud(access(clouded)) as nova:
        first = asyncio.create_task(nova.servers())
        await arrived.wait()
        second = asyncio.create_task(nova.servers())
        await asyncio.sleep(0)
        first.cancel()
        assert await second == []
        go_on.set()
        await asyncio.gather(first, return_exceptions=True)


# ------------------------------------------------------------------------------------------------------------ services


async def test_the_region_is_the_first_with_a_nova_and_others_are_found_by_name() -> None:
    async with running(Clouded(regions=("KA", "HD"))) as clouded:
        for region in ("", "KA", "HD"):
            async with cloud(access(clouded, region=region)) as nova:
                assert await nova.servers() == []
        async with cloud(access(clouded, region="KAA")) as nova:
            with pytest.raises(UnavailableError, match=r"there is no region `KAA`: did you mean `KA`\?") as told:
                await nova.servers()
            assert told.value.kind is FaultKind.CONFIG
        async with cloud(access(clouded, interface="internal")) as nova:
            with pytest.raises(UnavailableError, match="no service `compute`"):
                await nova.servers()


@pytest.mark.parametrize("name", ["block-storage", "volumev3", "block-store"])
async def test_a_service_is_found_by_any_of_its_names(name: str) -> None:
    async with running(Clouded()) as clouded, cloud(access(clouded)) as nova:
        clouded.services[name] = clouded.services.pop("volumev3")
        clouded.lists["volumes"] = [{"id": "v1", "status": "available"}]
        assert [each.id for each in await nova.volumes()] == ["v1"]


@pytest.mark.parametrize(
    "url", ["ftp://x/v2.1", "file:///etc/passwd", "http://me:pw@127.0.0.1/v2.1", "", "/compute/v2.1"]
)
async def test_only_addresses_of_the_web_are_gone_to(url: str) -> None:
    async with running(Clouded()) as clouded, cloud(access(clouded)) as nova:
        clouded.url, real = "", clouded.url
        clouded.services["compute"] = ("nova", url)
        clouded.services["image"] = ("glance", f"{real}/image")
        with pytest.raises(UnavailableError, match="no service `compute`"):
            await nova.servers()
        assert len(clouded.asked) == 1


async def test_a_nova_whose_address_names_the_project() -> None:
    async with running(Clouded()) as clouded, cloud(access(clouded)) as nova:
        clouded.services["compute"] = ("nova", f"/compute/v2.1/{PROJECT}/")
        with pytest.raises(UnavailableError):
            await nova.servers()  # what is there, the fake has not
        assert clouded.asked[1:] == ["GET /compute/v2.1/", f"GET /compute/v2.1/{PROJECT}/servers/detail"]


# ----------------------------------------------------------------------------------------------------------------- TLS


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A file with a certificate of 127.0.0.1 by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = tmp_path / "tls.pem"
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return file


async def test_a_certificate_is_believed_by_its_authority_or_not_at_all(certificate: Path, tmp_path: Path) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    async with running(Clouded(), tls) as clouded:
        async with cloud(access(clouded)) as nova:
            with pytest.raises(UnavailableError, match="certificate verify failed"):
                await nova.servers()
            assert clouded.asked == []
        async with cloud(access(clouded, ca=str(certificate))) as nova:
            assert await nova.servers() == []
        text = (
            f"clouds: {{kit: {{verify: false, auth: {{auth_url: '{clouded.url}/identity', application_credential_id: a,"
            " application_credential_secret: s3cret}}}\n"
        )
        (tmp_path / "clouds.yaml").write_text(text)
        settings = {"cloud": "kit", "clouds_file": str(tmp_path / "clouds.yaml")}
        async with cloud(CloudAccess.model_validate(settings)) as nova:
            assert await nova.servers() == []
