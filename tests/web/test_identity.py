"""Accounts, tokens, certificates and the proxy give a role; everything else is refused."""

from __future__ import annotations

import asyncio
import base64
import datetime
import grp
import json
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from provisioner.answers.errors import VerbError
from provisioner.config import ConfigError, load_web
from provisioner.store.reader import Reader
from provisioner.web import identity, tokens
from tests.web.conftest import API, ME, Serve, free_port, until

RSA, OTHER_RSA, EC = (
    rsa.generate_private_key(65537, 2048),
    rsa.generate_private_key(65537, 2048),
    ec.generate_private_key(ec.SECP256R1()),
)
AUDIENCE = "https://drones.example.edu"


# ------------------------------------------------------------------------------------------
# accounts and loopback


async def test_loopback_may_look_and_change_nothing(serve: Serve, record: Path) -> None:
    served = await serve()
    assert (await served.ask(f"{API}/status")).status == 200
    refused = await served.change("/drones/1/kill", loopback=True)
    assert refused.status == 401 and refused.headers["WWW-Authenticate"] == "Bearer"
    assert not Reader(record).requests()


async def test_a_name_that_a_web_page_points_at_this_host_is_refused(serve: Serve) -> None:
    served = await serve()
    answer = await served.ask(f"{API}/status", headers={"Host": "rebound.example:8618"})
    assert answer.status == 421
    for host in ("a:b:c", "localhost:99999999", "["):
        assert (await served.ask(f"{API}/status", headers={"Host": host})).status == 421
    # an ssh tunnel
    assert (await served.ask(f"{API}/status", headers={"Host": "localhost:9000"})).status == 200


async def test_the_account_of_the_service_may_operate_and_is_on_record(
    serve: Serve, record: Path
) -> None:
    served = await serve()
    assert (served.path.stat().st_mode & 0o777) == 0o660
    assert (await served.change("/drones/1/kill")).status == 202
    assert Reader(record).requests()[0].by == ME


async def test_other_accounts_may_look_and_configured_ones_operate(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's word is replaced: the tests have one account."""
    by_group = await serve(operators={"groups": [grp.getgrgid(os.getegid()).gr_name]})
    by_name = await serve(operators={"users": [ME]})
    nobody = await serve()
    for stranger, served, status in (
        (65533, nobody, 403),
        (65533, by_group, 202),
        (65533, by_name, 403),
    ):
        monkeypatch.setattr(
            identity, "peer_of", lambda transport, uid=stranger: (uid, os.getegid())
        )
        assert (await served.ask(f"{API}/status", unix=served.path)).status == 200
        answer = await served.change("/drones/1/kill")
        assert answer.status == status, answer.text
        assert status == 202 or "uid 65533 may not operate here" in answer.json["detail"]


async def test_a_real_other_account_is_told_apart(serve: Serve) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another account")
    served = await serve()
    os.chmod(served.path, 0o666)
    for parent in (served.path.parent, *served.path.parent.parents):
        if parent != Path("/tmp"):
            os.chmod(parent, parent.stat().st_mode | 0o001)
    command = [
        "curl",
        "-s",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        "--unix-socket",
        str(served.path),
    ]
    change = [
        "-H",
        "Content-Type: application/json",
        "-d",
        '{"reason": "x"}',
        f"http://localhost{API}/drones/1/kill",
    ]
    for words, status in (([f"http://localhost{API}/status"], b"200"), (change, b"403")):
        process = await asyncio.create_subprocess_exec(
            *command, *words, user=65534, group=65534, extra_groups=[], stdout=-1
        )
        assert (await process.communicate())[0] == status


# --------------------------------------------------------------------------------------------------------
# tokens


class Issuer:
    """An OpenID provider that only publishes its keys, and mints what it is asked for."""

    def __init__(self) -> None:
        self.url = f"http://127.0.0.1:{free_port()}/iam"
        self.keys: dict[str, Any] = {"r1": RSA, "e1": EC}
        self.fetches, self.up, self.claimed = 0, True, self.url
        self.jwks_uri = f"{self.url}/jwk"
        self.answers = asyncio.Event()
        self.answers.set()

    async def discovery(self, request: web.Request) -> web.Response:
        self.fetches += 1
        await self.answers.wait()
        if not self.up:
            raise web.HTTPInternalServerError
        return web.json_response({"issuer": self.claimed, "jwks_uri": self.jwks_uri})

    async def jwks(self, request: web.Request) -> web.Response:
        found = []
        for name, key in self.keys.items():
            kind = (
                jwt.algorithms.ECAlgorithm
                if isinstance(key, ec.EllipticCurvePrivateKey)
                else jwt.algorithms.RSAAlgorithm
            )
            found.append(json.loads(kind.to_jwk(key.public_key())) | {"kid": name, "use": "sig"})
        return web.json_response({"keys": found})

    def token(
        self, *, kid: str | None = "r1", key: Any = None, alg: str = "RS256", **claims: Any
    ) -> str:
        now = time.time()
        usual = {
            "iss": self.url,
            "sub": "ann",
            "aud": AUDIENCE,
            "iat": now - 10,
            "nbf": now - 10,
            "exp": now + 600,
            "wlcg.ver": "1.0",
            "scope": "compute.read",
        }
        made = {name: value for name, value in (usual | claims).items() if value is not None}
        return jwt.encode(
            made, key or self.keys.get(kid or "r1", RSA), alg, headers={"kid": kid} if kid else {}
        )

    def section(self, **more: Any) -> dict[str, Any]:
        return {"tokens": ({"issuer": self.url, "audience": (AUDIENCE,), **more},)}

    async def start(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/iam/.well-known/openid-configuration", self.discovery)
        app.router.add_get("/iam/jwk", self.jwks)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", int(self.url.split(":")[2].split("/")[0])).start()
        return runner


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    made = Issuer()
    runner = await made.start()
    yield made
    await runner.cleanup()


def bearing(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    ("claims", "looks", "changes"),
    [
        ({"scope": "compute.read"}, 200, 403),
        ({"scope": "storage.read:/ compute.modify"}, 200, 202),
        ({"scope": "compute.cancel compute.read"}, 200, 202),
        ({"scope": "compute.read", "wlcg.ver": None, "ver": "scitoken:2.0"}, 200, 403),
        ({"kid": "e1", "alg": "ES256", "scope": "compute.modify"}, 200, 202),
        ({"aud": ["other", AUDIENCE]}, 200, 403),
        ({"scope": "storage.read:/ compute.create"}, 403, 403),
        ({"scope": "compute.readx"}, 403, 403),
        ({"scope": None}, 403, 403),
    ],
)
async def test_a_token_gives_what_its_scope_says(
    serve: Serve, record: Path, issuer: Issuer, claims: dict[str, Any], looks: int, changes: int
) -> None:
    served = await serve(**issuer.section())
    headers = bearing(issuer.token(**claims))
    assert (await served.ask(f"{API}/status", headers=headers)).status == looks
    answer = await served.change("/drones/1/kill", loopback=True, headers=headers)
    assert answer.status == changes, answer.text
    if changes == 202:
        assert Reader(record).requests()[0].by == f"ann of {issuer.url}"


HOUR = 3600.0
BAD: dict[str, Callable[[Issuer], str]] = {
    "no token": lambda issuer: "nonsense",
    "a key of another algorithm": lambda issuer: issuer.token(kid="e1", key=RSA),
    "three dots": lambda issuer: "a.b.c",
    "another audience": lambda issuer: issuer.token(aud="https://other.example"),
    "for any service": lambda issuer: issuer.token(aud="https://wlcg.cern.ch/jwt/v1/any"),
    "no audience": lambda issuer: issuer.token(aud=None),
    "another issuer": lambda issuer: issuer.token(iss="https://evil.example/"),
    "an issuer of no text": lambda issuer: issuer.token(iss=None),
    "expired": lambda issuer: issuer.token(exp=time.time() - 60),
    "no end": lambda issuer: issuer.token(exp=None),
    "not yet": lambda issuer: issuer.token(nbf=time.time() + 300),
    "too old": lambda issuer: issuer.token(
        iat=time.time() - 7 * HOUR, nbf=None, exp=time.time() + HOUR
    ),
    "no age": lambda issuer: issuer.token(iat=None),
    "issued in the future": lambda issuer: issuer.token(iat=time.time() + 600),
    "no subject": lambda issuer: issuer.token(sub=None),
    "a version not known": lambda issuer: issuer.token(**{"wlcg.ver": "7.0"}),
    "the key of another": lambda issuer: issuer.token(key=OTHER_RSA),
    "a key not known": lambda issuer: issuer.token(kid="invented", key=OTHER_RSA),
    "an end beyond all numbers": lambda issuer: issuer.token(exp=10**400),
    "an end without end": lambda issuer: issuer.token(exp=float("inf")),
    "an end that is no number": lambda issuer: issuer.token(exp=float("nan")),
    "a begin before all numbers": lambda issuer: issuer.token(iat=-(10**400)),
    "lists in lists": lambda issuer: nested(issuer),  # noqa: PLW0108
    "no key id": lambda issuer: issuer.token(kid=None),
    "algorithm none": lambda issuer: jwt.encode(
        {"iss": issuer.url, "sub": "a", "aud": AUDIENCE}, None, "none"
    ),
    "algorithm not in the list": lambda issuer: issuer.token(alg="RS512"),
    "public key as a secret": lambda issuer: hmac_with_public_key(issuer),  # noqa: PLW0108 - it is defined below
}


def hmac_with_public_key(issuer: Issuer) -> str:
    """The oldest trick: the public key, known to all, as the secret of a symmetric algorithm."""
    import hashlib
    import hmac

    pem = RSA.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    _, claims, _ = issuer.token(scope="compute.modify").split(".")
    header = (
        base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"r1","typ":"JWT"}').rstrip(b"=").decode()
    )
    signature = hmac.new(pem, f"{header}.{claims}".encode(), hashlib.sha256).digest()
    return f"{header}.{claims}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def nested(issuer: Issuer) -> str:
    """A token, signed by nobody, whose claims exceed the depth that Python parses."""
    head, _, signature = issuer.token().split(".")
    claims = base64.urlsafe_b64encode(b"[" * 3000).rstrip(b"=").decode()
    return f"{head}.{claims}.{signature}"


async def test_bytes_that_are_no_text_are_refused(serve: Serve) -> None:
    served = await serve()
    for field, status in (
        (b"Host: \xff", b"421"),
        (b"Host: localhost\r\nAuthorization: Bearer \xff", b"401"),
    ):
        reader, writer = await asyncio.open_connection(*served.section.listen.split(":"))
        writer.write(
            f"GET {API}/status HTTP/1.1\r\nConnection: close\r\n".encode() + field + b"\r\n\r\n"
        )
        assert (await reader.read()).split()[1] == status
        writer.close()


async def test_every_algorithm_of_the_list_is_verified(serve: Serve, issuer: Issuer) -> None:
    """Issuers may publish their keys without an algorithm."""
    served = await serve(**issuer.section())
    for alg, kid, status in (
        ("RS256", "r1", 200),
        ("ES256", "e1", 200),
        ("RS512", "r1", 401),
        ("PS256", "r1", 401),
    ):
        token = issuer.token(alg=alg, kid=kid)
        assert (await served.ask(f"{API}/status", headers=bearing(token))).status == status, alg


@pytest.mark.parametrize("kind", BAD)
async def test_a_bad_token_is_refused_even_where_all_may_look(
    serve: Serve, issuer: Issuer, kind: str
) -> None:
    served = await serve(**issuer.section())
    for unix in (None, served.path):
        answer = await served.ask(f"{API}/status", unix=unix, headers=bearing(BAD[kind](issuer)))
        assert answer.status == 401 and "invalid_token" in answer.headers["WWW-Authenticate"]
        assert "token refused" in answer.json["detail"]


async def test_keys_are_fetched_once_and_again_when_one_is_new(
    serve: Serve, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = await serve(**issuer.section())
    for _ in range(3):
        assert (await served.ask(f"{API}/status", headers=bearing(issuer.token()))).status == 200
    for _ in range(5):  # anybody can invent key ids: no reason to ask the issuer each time
        await served.ask(
            f"{API}/status", headers=bearing(issuer.token(kid="invented", key=OTHER_RSA))
        )
    assert issuer.fetches == 1
    issuer.keys = {"r2": OTHER_RSA}
    monkeypatch.setattr(tokens, "KEYS_RETRY_S", 0.0)
    assert (
        await served.ask(f"{API}/status", headers=bearing(issuer.token(kid="r2")))
    ).status == 200
    assert (
        await served.ask(f"{API}/status", headers=bearing(issuer.token(kid="r1", key=RSA)))
    ).status == 401


async def test_a_known_key_waits_for_no_other(
    serve: Serve, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens with key ids that somebody made up have the keys fetched from an issuer that does not answer."""
    served = await serve(**issuer.section())
    assert (await served.ask(f"{API}/status", headers=bearing(issuer.token()))).status == 200
    monkeypatch.setattr(tokens, "KEYS_RETRY_S", 0.0)
    issuer.answers.clear()
    forged = asyncio.create_task(
        served.ask(f"{API}/status", headers=bearing(issuer.token(kid="invented", key=OTHER_RSA)))
    )
    await until(lambda: issuer.fetches == 2)
    assert (await served.ask(f"{API}/status", headers=bearing(issuer.token()))).status == 200
    monkeypatch.setattr(tokens, "KEYS_KEPT_S", 0.0)
    assert (await served.ask(f"{API}/status", headers=bearing(issuer.token()))).status == 200, (
        "an old one neither"
    )
    assert not forged.done()
    issuer.answers.set()
    assert (await forged).status == 401


async def test_keys_that_an_issuer_withdrew_end(
    serve: Serve, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = await serve(**issuer.section())
    token = issuer.token()
    assert (await served.ask(f"{API}/status", headers=bearing(token))).status == 200
    issuer.keys = {"r2": OTHER_RSA}
    assert (await served.ask(f"{API}/status", headers=bearing(token))).status == 200, (
        "known for an hour"
    )
    monkeypatch.setattr(tokens, "KEYS_KEPT_S", 0.0)
    monkeypatch.setattr(tokens, "KEYS_RETRY_S", 0.0)
    assert (await served.ask(f"{API}/status", headers=bearing(token))).status == 401


async def test_keys_that_come_without_tls_are_not_believed(serve: Serve, issuer: Issuer) -> None:
    issuer.jwks_uri = issuer.jwks_uri.replace(
        "127.0.0.1", "0.0.0.0"
    )  # reaches this host, by a name that is no loopback
    served = await serve(**issuer.section())
    assert (await served.ask(f"{API}/status", headers=bearing(issuer.token()))).status == 503


async def test_an_issuer_that_does_not_answer(
    serve: Serve, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = await serve(**issuer.section())
    issuer.up = False
    assert (await served.ask(f"{API}/status", headers=bearing(issuer.token()))).status == 503
    issuer.up = True
    monkeypatch.setattr(tokens, "KEYS_RETRY_S", 0.0)
    assert (await served.ask(f"{API}/status", headers=bearing(issuer.token()))).status == 200
    issuer.up = False
    monkeypatch.setattr(tokens, "KEYS_KEPT_S", 0.0)
    assert (await served.ask(f"{API}/status", headers=bearing(issuer.token()))).status == 200
    monkeypatch.setattr(tokens, "KEYS_LOST_S", 0.0)
    assert (await served.ask(f"{API}/status", headers=bearing(issuer.token()))).status == 503


async def test_keys_of_no_known_form_are_a_failure_of_the_issuer(
    serve: Serve, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = await serve(**issuer.section())
    for keys in ([], "text", {"keys": [7]}):

        async def document(self: tokens.IssuerKeys, url: str, keys: Any = keys) -> Any:
            return (
                {"issuer": issuer.url, "jwks_uri": "x"} if url.endswith("configuration") else keys
            )

        monkeypatch.setattr(tokens.IssuerKeys, "_document", document)
        monkeypatch.setattr(tokens, "KEYS_RETRY_S", 0.0)
        assert (await served.ask(f"{API}/status", headers=bearing(issuer.token()))).status == 503


async def test_discovery_of_another_issuer_is_not_believed(serve: Serve, issuer: Issuer) -> None:
    issuer.claimed = "https://evil.example"
    served = await serve(**issuer.section())
    assert (await served.ask(f"{API}/status", headers=bearing(issuer.token()))).status == 503


# --------------------------------------------------------------------------------------------------
# certificates


class Authority:
    """A certificate authority of the test."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory, self.key = directory, ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._signed(self.name, self.key, ca=True)
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def _signed(self, subject: x509.Name, key: Any, ca: bool = False) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(
            self.name, subject, key.public_key(), x509.random_serial_number()
        )
        builder = builder.not_valid_before(now - datetime.timedelta(hours=1))
        builder = builder.not_valid_after(now + datetime.timedelta(hours=1))
        builder = builder.add_extension(x509.BasicConstraints(ca, None), critical=True)
        names = [x509.DNSName("localhost")]
        builder = (
            builder
            if ca
            else builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        )
        return builder.sign(self.key, hashes.SHA256())

    def issue(self, file: str, *subject: tuple[x509.ObjectIdentifier, str]) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._signed(x509.Name([x509.NameAttribute(*part) for part in subject]), key)
        certificate, private = self.directory / f"{file}.crt", self.directory / f"{file}.key"
        certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        form = (
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        private.write_bytes(key.private_bytes(*form))
        return certificate, private


ORG = ((NameOID.DOMAIN_COMPONENT, "org"), (NameOID.ORGANIZATION_NAME, "KIT"))


async def test_a_certificate_gives_the_role_of_its_subject(
    serve: Serve, record: Path, tmp_path: Path
) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    host = ours.issue("host", (NameOID.COMMON_NAME, "localhost"))
    port = free_port()
    subjects = (
        {"dn": "/DC=org/O=KIT/CN=Ann *", "role": "operate"},
        {"dn": "/DC=org/O=KIT/CN=*", "role": "read"},
    )
    tls = {
        "listen": f"127.0.0.1:{port}",
        "certificate": host[0],
        "key": host[1],
        "client_ca": ours.file,
        "subjects": subjects,
    }
    served = await serve(tls=tls)
    base = f"https://localhost:{port}"

    async def tried(pair: tuple[Path, Path] | None) -> tuple[int, int]:
        context = ssl.create_default_context(cafile=str(ours.file))
        if pair:
            context.load_cert_chain(*pair)
        look = await served.ask(f"{base}{API}/status", ssl=context)
        change = await served.ask(
            f"{base}{API}/drones/1/kill", method="POST", json={"reason": "x"}, ssl=context
        )
        return look.status, change.status

    assert await tried(ours.issue("ann", *ORG, (NameOID.COMMON_NAME, "Ann Example"))) == (200, 202)
    assert Reader(record).requests()[0].by == "/DC=org/O=KIT/CN=Ann Example"
    assert await tried(ours.issue("bob", *ORG, (NameOID.COMMON_NAME, "Bob"))) == (200, 403)
    longer = ours.issue(
        "longer", *ORG, (NameOID.COMMON_NAME, "Ann x"), (NameOID.COMMON_NAME, "proxy")
    )
    assert await tried(longer) == (403, 403)
    split = ours.issue(
        "split", (NameOID.DOMAIN_COMPONENT, "org/O=KIT"), (NameOID.COMMON_NAME, "Ann x")
    )
    assert await tried(split) == (403, 403), "a slash in a value is no part of its own"
    types = (
        (NameOID.ORGANIZATION_NAME, "org"),
        (NameOID.ORGANIZATION_NAME, "KIT"),
        (NameOID.COMMON_NAME, "Ann x"),
    )
    assert await tried(ours.issue("types", *types)) == (403, 403), "the same values of other types"
    assert await tried(None) == (401, 401)
    public = await served.ask(
        f"{base}/-/healthy", ssl=ssl.create_default_context(cafile=str(ours.file))
    )
    assert public.status == 200
    with pytest.raises(aiohttp.ClientError):
        await tried(theirs.issue("forged", *ORG, (NameOID.COMMON_NAME, "Ann Example")))


async def test_a_key_with_a_passphrase_is_refused_and_asks_nobody(
    serve: Serve, tmp_path: Path
) -> None:
    certificate, key = Authority(tmp_path, "ours").issue("host", (NameOID.COMMON_NAME, "localhost"))
    form = (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"x"),
    )
    key.write_bytes(serialization.load_pem_private_key(key.read_bytes(), None).private_bytes(*form))
    with pytest.raises(VerbError, match="has a passphrase"):
        await serve(
            tls={"listen": f"127.0.0.1:{free_port()}", "certificate": certificate, "key": key}
        )


# ---------------------------------------------------------------------------------------------------------
# proxy

ORIGIN = "https://drones.example.edu"
PROXY: dict[str, Any] = {
    "origin": ORIGIN,
    "users": (ME,),
    "groups": {"gpu-users": "read", "gpu-operators": "operate"},
}
ANN = {"X-Remote-User": "ann@example.edu", "X-Remote-Groups": "staff, gpu-operators"}


async def test_the_header_of_the_proxy_gives_the_role_of_a_group(
    serve: Serve, record: Path, tmp_path: Path
) -> None:
    socket = tmp_path / "proxy.sock"
    served = await serve(proxy={"socket": socket, **PROXY})
    assert (await served.ask(f"{API}/status", unix=socket, headers=ANN)).status == 200
    assert (
        await served.change("/drones/1/kill", unix=socket, headers=ANN | {"Origin": ORIGIN})
    ).status == 202
    assert Reader(record).requests()[0].by == "ann@example.edu"
    reads = ANN | {"X-Remote-Groups": "gpu-users", "Origin": ORIGIN}
    assert (await served.ask(f"{API}/status", unix=socket, headers=reads)).status == 200
    assert (await served.change("/drones/1/kill", unix=socket, headers=reads)).status == 403
    none = ANN | {"X-Remote-Groups": "students"}
    assert (await served.ask(f"{API}/status", unix=socket, headers=none)).status == 403
    assert (await served.ask(f"{API}/status", unix=socket)).status == 401
    assert (await served.ask("/-/healthy", unix=socket)).status == 200


async def test_a_separator_in_the_name_of_a_group_makes_no_second_group(
    serve: Serve, tmp_path: Path
) -> None:
    socket = tmp_path / "proxy.sock"
    served = await serve(proxy={"socket": socket, **PROXY, "group_separator": "|"})
    for groups, status in (("gpu-users|x,gpu-operators", 403), ("gpu-users | gpu-operators", 202)):
        headers = {"X-Remote-User": "ann", "X-Remote-Groups": groups, "Origin": ORIGIN}
        assert (await served.ask(f"{API}/status", unix=socket, headers=headers)).status == 200
        assert (
            await served.change("/drones/1/kill", unix=socket, headers=headers)
        ).status == status


async def test_a_page_elsewhere_cannot_use_the_log_in(
    serve: Serve, record: Path, tmp_path: Path
) -> None:
    socket = tmp_path / "proxy.sock"
    served = await serve(proxy={"socket": socket, **PROXY})
    for headers in (
        {},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://drones.example.edu"},
        {"Authorization": "Basic YTpi"},
    ):
        assert (
            await served.change("/drones/1/kill", unix=socket, headers=ANN | headers)
        ).status == 403
    assert not Reader(record).requests()


async def test_a_forged_header_is_believed_nowhere_else(
    serve: Serve, record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket = tmp_path / "proxy.sock"
    served = await serve(proxy={"socket": socket, **PROXY})
    forged = ANN | {
        "Origin": served.url,
        "X-Forwarded-For": "127.0.0.1",
        "Forwarded": "for=127.0.0.1",
    }
    assert (await served.change("/drones/1/kill", loopback=True, headers=forged)).status == 401
    monkeypatch.setattr(identity, "peer_of", lambda transport: (65533, 65533))
    assert (await served.change("/drones/1/kill", headers=ANN)).status == 403
    at_proxy = await served.ask(f"{API}/status", unix=socket, headers=ANN)
    assert at_proxy.status == 403 and "reverse proxy alone" in at_proxy.json["detail"]
    assert not Reader(record).requests()


async def test_a_proxy_that_lets_a_second_header_pass_is_told(serve: Serve, tmp_path: Path) -> None:
    socket = tmp_path / "proxy.sock"
    served = await serve(proxy={"socket": socket, **PROXY})
    twice = [
        ("X-Remote-User", "ann"),
        ("X-Remote-User", "root"),
        ("X-Remote-Groups", "gpu-operators"),
    ]
    assert (await served.ask(f"{API}/status", unix=socket, headers=twice)).status == 400
    groups = [
        ("X-Remote-User", "ann"),
        ("X-Remote-Groups", "gpu-operators"),
        ("X-Remote-Groups", "gpu-users"),
    ]
    assert (await served.ask(f"{API}/status", unix=socket, headers=groups)).status == 400


# -------------------------------------------------------------------------------------------------
# configuration

FILE = """\
controller: kit
store: {path: record.db}
overlay: {adapter: embedded, options: {path: queue.db}}
sites: [site-*.yaml]
web:
"""


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("listen: 0.0.0.0:8618", "everybody who reaches it may read"),
        ("listen: 127.0.0.1", "expected an address with a port"),
        ("tokens: [{issuer: 'http://iam.example/', audience: [x]}]", "over TLS"),
        ("tls: {certificate: a, key: b, subjects: [{dn: 'CN=Ann,O=KIT'}]}", "expected a DN"),
        ("proxy: {socket: p.sock, origin: 'https://x.example/path'}", "without a path"),
        (
            "proxy: {socket: p.sock, origin: 'https://x.example', groups: {'a,b': read}}",
            "has the `group_separator`",
        ),
    ],
)
def test_a_setting_that_is_not_safe_is_refused(tmp_path: Path, section: str, said: str) -> None:
    (tmp_path / "c.yaml").write_text(f"{FILE}  {section}\n")
    with pytest.raises(ConfigError) as error:
        load_web(tmp_path / "c.yaml")
    assert said in str(error.value) and "c.yaml:6:" in str(error.value)
