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
from adapters.kubernetes.credentials import KubeconfigError, read_access
from adapters.kubernetes.settings import KubernetesAccess
from provisioner.interfaces import AuthError

SECRET = "s3cret-token"


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate and its key."""
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    made = ["-nodes", "-days", "2", "-subj", "/CN=drones", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", *made], check=True, capture_output=True)
    return certificate, key


def kubeconfig(
    directory: Path, user: Mapping[str, Any], cluster: Mapping[str, Any] | None = None, **tree: Any
) -> KubernetesAccess:
    path = directory / "config"
    content = {
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:6443/", **(cluster or {})}}],
        "users": [{"name": "u", "user": dict(user)}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "drones"}}],
        **tree,
    }
    path.write_text(yaml.safe_dump(content))
    return KubernetesAccess(kubeconfig=path)


async def test_a_token(tmp_path: Path) -> None:
    access = await read_access(kubeconfig(tmp_path, {"token": SECRET}))
    assert (access.server, access.namespace) == ("https://127.0.0.1:6443", "drones")
    assert access.headers == {"Authorization": f"Bearer {SECRET}"}
    assert SECRET not in repr(access)


async def test_a_token_file_is_read_again(tmp_path: Path) -> None:
    settings = kubeconfig(tmp_path, {"tokenFile": "token"})
    for token in ("one", "two"):
        (tmp_path / "token").write_text(f"{token}\n")
        assert (await read_access(settings)).token == token


async def test_a_client_certificate_by_file_and_in_place(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    certificate, key = pair
    by_file = {"client-certificate": certificate.name, "client-key": key.name}
    access = await read_access(kubeconfig(tmp_path, by_file, {"certificate-authority": certificate.name}))
    assert access.headers == {}
    in_place = {f"{n}-data": base64.b64encode((tmp_path / p).read_bytes()).decode() for n, p in by_file.items()}
    await read_access(kubeconfig(tmp_path, in_place))
    broken = {**in_place, "client-key-data": base64.b64encode(b"no key").decode()}
    with pytest.raises(KubeconfigError, match="certificates or its key cannot be used"):
        await read_access(kubeconfig(tmp_path, broken))


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
    assert access.token == SECRET


@pytest.mark.parametrize(
    ("text", "message"), [("exit 3", "exit status 3"), ("echo no", "printed no ExecCredential")], ids=["fails", "talks"]
)
async def test_a_plugin_that_fails(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(AuthError, match=message):
        await read_access(kubeconfig(tmp_path, plugin(tmp_path, text)))


async def test_a_plugin_that_is_missing(tmp_path: Path) -> None:
    user = plugin(tmp_path, "true", installHint="apt install login")
    (tmp_path / "login").unlink()
    with pytest.raises(AuthError, match="apt install login"):
        await read_access(kubeconfig(tmp_path, user))


async def test_the_service_account_of_a_pod(
    tmp_path: Path, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in {"token": SECRET, "namespace": "drones", "ca.crt": pair[0].read_text()}.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    access = await read_access(KubernetesAccess())
    assert (access.server, access.namespace, access.token) == ("https://[fd00::1]:443", "drones", SECRET)
    assert credentials.trial(KubernetesAccess()) == ""


@pytest.mark.parametrize(
    ("user", "cluster", "tree", "message"),
    [
        ({"auth-provider": {"name": "gcp"}}, {}, {}, "`auth-provider`: providers were removed .* use `exec`"),
        ({"username": "x"}, {}, {}, "`username`: passwords were removed"),
        ({"as": "x"}, {}, {}, "`as`: impersonation is not supported"),
        ({}, {"proxy-url": "http://x"}, {}, "`proxy-url`: proxies are not supported"),
        ({}, {"server": "10.0.0.1"}, {}, "`server` of its cluster is no address"),
        ({}, {}, {"current-context": ""}, "no `current-context`: write `context: NAME`"),
        ({}, {}, {"current-context": "hre"}, "no context `hre`.*here"),
        ({}, {}, {"users": []}, "no user `u`"),
        ({"tokenFile": "nowhere"}, {}, {}, "`tokenFile`: .*nowhere cannot be read"),
        ({"exec": {"apiVersion": "v0", "command": "x"}}, {}, {}, "`apiVersion` is not supported"),
    ],
)
async def test_mistakes_name_the_place_and_the_remedy(
    tmp_path: Path, user: Mapping[str, Any], cluster: Mapping[str, Any], tree: Mapping[str, Any], message: str
) -> None:
    settings = kubeconfig(tmp_path, user, cluster, **tree)
    with pytest.raises(KubeconfigError, match=message) as error:
        await read_access(settings)
    assert str(tmp_path / "config") in str(error.value)


async def test_a_file_that_is_no_yaml_is_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(f"users:\n- token: '{SECRET}\n")
    with pytest.raises(KubeconfigError, match="is not YAML") as error:
        await read_access(KubernetesAccess(kubeconfig=path))
    assert SECRET not in str(error.value)
    path.unlink()
    with pytest.raises(KubeconfigError, match="cannot be read: No such file"):
        await read_access(KubernetesAccess(kubeconfig=path))
    assert "cannot be read" in credentials.trial(KubernetesAccess(kubeconfig=path))
