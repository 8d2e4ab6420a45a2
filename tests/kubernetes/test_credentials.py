"""Credentials: each form of a kubeconfig, plugins, rotation, and messages that name the place and the remedy."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapters.kubernetes import credentials
from adapters.kubernetes.credentials import KubeconfigError, access_by, read_access, read_kubeconfig
from adapters.kubernetes.settings import KubernetesSiteConfig
from provisioner.interfaces import AuthError

SECRET = "s3cret-token"
EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": "x"}


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate and its key."""
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    made = [
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=drones",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", *made], check=True, capture_output=True
    )
    return certificate, key


def kubeconfig(
    directory: Path, user: Mapping[str, Any], cluster: Mapping[str, Any] | None = None, **tree: Any
) -> KubernetesSiteConfig:
    path = directory / "config"
    content = {
        "current-context": "here",
        "clusters": [
            {"name": "c", "cluster": {"server": "https://127.0.0.1:6443/", **(cluster or {})}}
        ],
        "users": [{"name": "u", "user": dict(user)}],
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "drones"}}
        ],
        **tree,
    }
    path.write_text(yaml.safe_dump(content))
    return KubernetesSiteConfig(kubeconfig=path)


async def test_a_token(tmp_path: Path) -> None:
    access = await read_access(kubeconfig(tmp_path, {"token": SECRET}))
    assert (access.server, access.namespace) == ("https://127.0.0.1:6443", "drones")
    assert access.headers == {"Authorization": f"Bearer {SECRET}"}
    assert SECRET not in repr(access)


async def test_a_token_file_is_read_again(tmp_path: Path) -> None:
    settings = kubeconfig(tmp_path, {"tokenFile": "token"})
    for token in ("one", "two"):
        (tmp_path / "token").write_text(f"{token}\n")
        assert (await read_access(settings)).headers == {"Authorization": f"Bearer {token}"}


async def test_a_client_certificate_by_file_and_in_place(
    tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    certificate, key = pair
    by_file = {"client-certificate": certificate.name, "client-key": key.name}
    access = await read_access(
        kubeconfig(tmp_path, by_file, {"certificate-authority": certificate.name})
    )
    assert access.headers == {}
    in_place = {
        f"{n}-data": base64.b64encode((tmp_path / p).read_bytes()).decode()
        for n, p in by_file.items()
    }
    await read_access(kubeconfig(tmp_path, in_place))
    for data in (base64.b64encode(b"no key").decode(), "no base64", None):
        with pytest.raises(KubeconfigError, match="certificates or its key cannot be used"):
            await read_access(kubeconfig(tmp_path, {**in_place, "client-key-data": data}))


@pytest.mark.parametrize(
    "form", [["rsa", "-traditional"], ["pkcs8", "-topk8"]], ids=["traditional", "pkcs8"]
)
def test_an_encrypted_key_is_refused_and_nobody_is_asked(
    tmp_path: Path, pair: tuple[Path, Path], form: list[str]
) -> None:
    certificate, key = pair
    made = ["-in", str(key), "-out", str(tmp_path / "encrypted.key"), "-passout", "pass:word"]
    cipher = ["-aes256"] if form[0] == "rsa" else []
    subprocess.run(["openssl", *form, *cipher, *made], check=True, capture_output=True)
    user = {"client-certificate": certificate.name, "client-key": "encrypted.key"}
    with pytest.raises(
        KubeconfigError, match=r"encrypted key is not supported: decrypt it with `openssl pkey`"
    ):
        access_by(read_kubeconfig(kubeconfig(tmp_path, user)))


async def test_comments_of_authorities_have_any_encoding(
    tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    (tmp_path / "ca.crt").write_bytes("# Türktrust\n".encode() + pair[0].read_bytes())
    access = await read_access(kubeconfig(tmp_path, {}, {"certificate-authority": "ca.crt"}))
    assert len(access.trust.get_ca_certs()) == 1


def plugin(directory: Path, text: str, **more: Any) -> dict[str, Any]:
    program = directory / "login"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o700)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./login", **more}}


async def test_a_plugin(tmp_path: Path) -> None:
    status = {"token": SECRET, "expirationTimestamp": "2099-01-01T00:00:00Z"}
    text = f"""[ "$1 $WHO" = "--for drones" ] || exit 9
case $KUBERNETES_EXEC_INFO in *'"interactive": false'*) ;; *) exit 8 ;; esac
echo '{json.dumps({"kind": "ExecCredential", "status": status})}'"""
    user = plugin(tmp_path, text, args=["--for"], env=[{"name": "WHO", "value": "drones"}])
    user["exec"]["args"] = ["--for"]
    access = await read_access(kubeconfig(tmp_path, user))
    assert access.headers == {"Authorization": f"Bearer {SECRET}"}


async def test_a_plugin_gets_the_cluster_if_it_wants_it(
    tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    text = (
        f"""echo "$KUBERNETES_EXEC_INFO" >{tmp_path}/info; echo '{{"status": {{"token": "x"}}}}'"""
    )
    user = plugin(tmp_path, text, provideClusterInfo=True)
    await read_access(kubeconfig(tmp_path, user, {"certificate-authority": pair[0].name}))
    info = json.loads((tmp_path / "info").read_text())
    assert info["apiVersion"] == "client.authentication.k8s.io/v1"
    cluster = info["spec"]["cluster"]
    assert cluster["server"] == "https://127.0.0.1:6443/"
    assert (
        base64.b64decode(cluster["certificate-authority-data"]).decode().strip()
        == pair[0].read_text().strip()
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exit 3", "exit status 3"),
        ("echo no", "no ExecCredential of `.*login`"),
        ("echo '[]'", "holds no token and no certificate"),
        ("""echo '{"status": {"token": 5}}'""", "holds no token and no certificate"),
    ],
)
async def test_a_plugin_that_fails(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(AuthError, match=message):
        await read_access(kubeconfig(tmp_path, plugin(tmp_path, text)))


async def test_a_variable_that_no_program_can_have(tmp_path: Path) -> None:
    user = plugin(tmp_path, "true", env=[{"name": "A=B", "value": "x"}])
    with pytest.raises(
        AuthError, match=r"no ExecCredential of `.*login`: illegal environment variable name"
    ):
        await read_access(kubeconfig(tmp_path, user))


async def test_a_plugin_that_is_missing(tmp_path: Path) -> None:
    user = plugin(tmp_path, "true", installHint="apt install login")
    (tmp_path / "login").unlink()
    with pytest.raises(AuthError, match="apt install login"):
        await read_access(kubeconfig(tmp_path, user))


async def test_the_service_account_of_a_pod(
    tmp_path: Path, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in {
        "token": SECRET,
        "namespace": "drones",
        "ca.crt": pair[0].read_text(),
    }.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    access = await read_access(KubernetesSiteConfig())
    assert (access.server, access.namespace) == ("https://[fd00::1]:443", "drones")
    assert access.headers == {"Authorization": f"Bearer {SECRET}"}
    assert not list(KubernetesSiteConfig().host_warnings())
    (tmp_path / "ca.crt").write_text("no certificate")
    with pytest.raises(
        KubeconfigError, match=f"service account in {tmp_path}: its certificates .* cannot be used"
    ):
        await read_access(KubernetesSiteConfig())
    assert [at for at, _ in KubernetesSiteConfig().host_warnings()] == [()]


@pytest.mark.parametrize(
    ("user", "cluster", "tree", "message"),
    [
        (
            {"auth-provider": {"name": "gcp"}},
            {},
            {},
            "`auth-provider`: providers were removed .* use `exec`",
        ),
        ({"username": "x"}, {}, {}, "`username`: passwords were removed"),
        ({"as": "x"}, {}, {}, "`as`: impersonation is not supported"),
        ({}, {"proxy-url": "http://x"}, {}, "`proxy-url`: proxies are not supported"),
        ({}, {"server": "10.0.0.1"}, {}, "`server` of its cluster is no address"),
        ({}, {}, {"current-context": ""}, "no `current-context`: write `context: NAME`"),
        ({}, {}, {"current-context": "hre"}, "no context `hre`.*here"),
        ({}, {}, {"users": []}, "no user `u`"),
        ({"tokenFile": "nowhere"}, {}, {}, "`tokenFile`: .*nowhere cannot be read"),
        ({"tokenFile": "no\0file"}, {}, {}, "`tokenFile`: .* cannot be read"),
        (
            {"client-certificate": "~nobody/x"},
            {},
            {},
            "`client-certificate`: .*~nobody/x cannot be read",
        ),
        ({"client-certificate": 5}, {}, {}, "`client-certificate` has the wrong type: write text"),
        ({"client-key-data": ["x"]}, {}, {}, "`client-key-data` has the wrong type: write text"),
        ({"token": 5}, {}, {}, "`token` has the wrong type: write text, in quotes"),
        ({}, {"server": 5}, {}, "`server` has the wrong type"),
        (
            {},
            {"tls-server-name": "x"},
            {},
            "`tls-server-name`: .*write a `server` that the certificate names",
        ),
        (
            {},
            {"insecure-skip-tls-verify": "yes"},
            {},
            "`insecure-skip-tls-verify` .*: write `true` or `false`",
        ),
        ({"exec": 5}, {}, {}, "`exec` has the wrong type: write a mapping"),
        (
            {"exec": {"apiVersion": "v0", "command": "x"}},
            {},
            {},
            "`apiVersion` of `exec` is not supported: write",
        ),
        (
            {"exec": {**EXEC, "interactiveMode": "Always"}},
            {},
            {},
            "`interactiveMode`: .*: write `IfAvailable`",
        ),
        ({"exec": {**EXEC, "args": 5}}, {}, {}, "`args` has the wrong type: write a list"),
        ({"exec": {**EXEC, "env": {"A": "x"}}}, {}, {}, "`env` has the wrong type: write a list"),
        (
            {"exec": {**EXEC, "provideClusterInfo": "no"}},
            {},
            {},
            "`provideClusterInfo` has the wrong type",
        ),
    ],
)
async def test_mistakes_name_the_place_and_the_remedy(
    tmp_path: Path,
    user: Mapping[str, Any],
    cluster: Mapping[str, Any],
    tree: Mapping[str, Any],
    message: str,
) -> None:
    settings = kubeconfig(tmp_path, user, cluster, **tree)
    with pytest.raises(KubeconfigError, match=message) as error:
        await read_access(settings)
    assert str(tmp_path / "config") in str(error.value)
    assert all(words == str(error.value) for _, words in settings.host_warnings())


async def test_a_file_that_is_no_yaml_is_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(f"users:\n- token: '{SECRET}\n")
    with pytest.raises(KubeconfigError, match="is not YAML") as error:
        await read_access(KubernetesSiteConfig(kubeconfig=path))
    assert SECRET not in str(error.value)
    path.unlink()
    with pytest.raises(KubeconfigError, match="cannot be read: No such file"):
        await read_access(KubernetesSiteConfig(kubeconfig=path))


async def test_the_home_of_nobody_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "~nobody-here/config")
    with pytest.raises(
        KubeconfigError, match="~nobody-here/config: the kubeconfig cannot be read: No such file"
    ):
        await read_access(KubernetesSiteConfig())
