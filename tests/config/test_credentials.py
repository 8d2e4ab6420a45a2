"""Identity and expiry of each kind of credential, without its secret."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from adapters.htcondor.site import HTCondorSiteConfig
from adapters.kubernetes.settings import KubernetesSiteConfig
from adapters.shared.commands.settings import SshSettings
from adapters.slurm.settings import SlurmRestConfig
from provisioner.config.credentials import credentials_of
from provisioner.config.models import WebSection
from provisioner.config.units import Secret
from provisioner.model import Credential

NOW = time.time()
DAY_S = 86400.0


def certificate(name: str, from_d: float, to_d: float) -> bytes:
    """Return a certificate that is valid between these days from now."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    begins, ends = (
        datetime.fromtimestamp(NOW, UTC) + timedelta(days=each) for each in (from_d, to_d)
    )
    made = x509.CertificateBuilder(
        subject, subject, key.public_key(), x509.random_serial_number(), begins, ends
    )
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def jwt(**claims: object) -> str:
    parts = (
        base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=")
        for each in ({}, claims)
    )
    return ".".join((*parts, "c2lnbmF0dXJl"))


def of_web(file: Path) -> Credential:
    tls = {"certificate": file, "key": file}
    (found,) = credentials_of(WebSection.model_validate({"tls": tls}))
    return found


def test_the_certificate_of_the_web_service(tmp_path: Path) -> None:
    file = tmp_path / "cert.pem"
    file.write_bytes(certificate("drones.example.org", -30, 60))
    found = of_web(file)
    assert (found.name, found.identity, found.problem) == (
        "tls.certificate",
        "drones.example.org",
        "",
    )
    assert (
        found.not_after == pytest.approx(NOW + 60 * DAY_S, abs=2) and found.warning_s == 7 * DAY_S
    )
    file.write_bytes(
        certificate("drones.example.org", -30, 60) + certificate("an authority", -99, -1)
    )
    assert of_web(file).is_dead(NOW), "the first of a chain that ends decides"
    file.write_bytes(certificate("a proxy", -0.1, 0.4))
    assert 0 < of_web(file).warning_s < 0.1 * DAY_S, "a program renews what lives for hours"
    file.write_bytes(certificate("drones.example.org", 2, 60))
    assert of_web(file).problem.startswith("not valid before ")
    for content in (
        b"garbage",
        file.read_bytes().replace(b"\n", b"A", 1)[:90],
        b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
    ):
        file.write_bytes(content)
        assert of_web(file).problem == "no certificate in PEM form, or a damaged one"
    file.unlink()
    assert of_web(file).problem.endswith("cannot be read: No such file or directory")


def test_the_token_of_slurmrestd(tmp_path: Path) -> None:
    file = tmp_path / "jwt"
    config = SlurmRestConfig(url="http://x:6820", user="drones", token=Secret(file=file))
    for text, dead in (
        (jwt(sun="drones", exp=NOW + 900, iat=NOW - 900), False),
        (jwt(sun="drones", exp=NOW - 1), True),
    ):
        file.write_text(f"SLURM_JWT={text}\n")
        (found,) = credentials_of(config)
        assert (found.name, found.identity, found.is_dead(NOW)) == ("token", "drones", dead)
    file.write_text("garbage")
    (found,) = credentials_of(config)
    assert found.problem.startswith("no JSON Web Token: ")


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_a_key_of_ssh_and_its_certificate(tmp_path: Path, kind: str) -> None:
    key, authority = tmp_path / "id", tmp_path / "ca"
    for file in (key, authority):
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", file], check=True)
    sign = ["ssh-keygen", "-q", "-s", authority, "-I", "drones of kit", "-n", "drones"]
    subprocess.run([*sign, "-V", "-1d:+3d", f"{key}.pub"], check=True, capture_output=True)
    settings = SshSettings(host="login", user="drones", key=key)
    plain, signed = credentials_of(settings)
    assert (plain.name, plain.problem) == ("key", "") and (signed.name, signed.identity) == (
        "id-cert.pub",
        "drones of kit",
    )
    assert signed.not_after == pytest.approx(time.time() + 3 * DAY_S, abs=120)
    subprocess.run([*sign, f"{key}.pub"], check=True, capture_output=True)
    assert [each.not_after for each in credentials_of(settings)] == [0.0, 0.0], "one without an end"
    (tmp_path / "id-cert.pub").write_text("ssh-ed25519-cert-v01@openssh.com AAAA")
    key.unlink()
    plain, signed = credentials_of(settings)
    assert (
        plain.problem.endswith("No such file or directory")
        and signed.problem == "no OpenSSH certificate"
    )


def test_what_a_kubeconfig_holds(tmp_path: Path) -> None:
    file, text = tmp_path / "config", base64.b64encode(certificate("k8s", -9, -1)).decode()
    cluster = {"server": "https://x:6443", "certificate-authority-data": text}
    tree = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "b", "user": "c"}}],
        "clusters": [{"name": "b", "cluster": cluster}],
        "users": [
            {"name": "c", "user": {"token": jwt(sub="system:serviceaccount:a:b", exp=NOW + 99)}}
        ],
    }
    file.write_text(json.dumps(tree))
    token, authority = credentials_of(KubernetesSiteConfig(kubeconfig=file))
    assert (token.name, token.identity) == ("kubeconfig.token", "system:serviceaccount:a:b")
    assert token.not_after == NOW + 99 and authority.is_dead(NOW)
    file.unlink()
    (gone,) = credentials_of(KubernetesSiteConfig(kubeconfig=file))
    assert "cannot be read" in gone.problem and gone.doubtful


def test_tokens_and_proxies_of_an_htcondor_site(tmp_path: Path) -> None:
    """One good token in a directory is enough: HTCondor offers all of them."""
    tokens, proxy = tmp_path / "tokens", tmp_path / "proxy"
    tokens.mkdir()
    proxy.write_bytes(certificate("1234", -1, -0.1))
    config = HTCondorSiteConfig.model_validate(
        {
            "collector": "x:9618",
            "work_directory": tmp_path,
            "token_directory": tokens,
            "submit": {"x509userproxy": str(proxy)},
        }
    )
    (tokens / "old").write_text(jwt(iss="a", sub="old@a", exp=NOW - 1))
    old, ended = credentials_of(config)
    assert old.is_dead(NOW) and (ended.name, ended.is_dead(NOW)) == ("submit.x509userproxy", True)
    (tokens / "new").write_text(jwt(iss="a", sub="new@a", exp=time.time() + DAY_S))
    new, _ = credentials_of(config)
    assert (new.identity, new.is_dead(NOW)) == ("new@a", False)


def test_no_secret_is_in_what_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "jwt").write_text(text := jwt(sub="a", exp=1))
    config = SlurmRestConfig(
        url="http://x:6820", user="drones", token=Secret(file=tmp_path / "jwt")
    )
    told = repr(list(credentials_of(config)))
    assert not any(part in told for part in text.split(".")[1:])
