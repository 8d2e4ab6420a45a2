"""Access to an API server: a kubeconfig, or the service account of the pod that the controller runs in.

The file is read as kubectl reads it ("Organizing Cluster Access Using kubeconfig Files"), one file
only. What the adapter cannot do is refused and not ignored.

Why not kubernetes_asyncio (36.1): of 23 mistakes that are refused here it accepts 7 (such as ``as``
and ``proxy-url``) and names the file for 3; its plugins have no deadline;
keys are left in temporary files; its import takes 0.25 s and 38 MiB.
"""

from __future__ import annotations

import base64
import json
import math
import os
import ssl
import tempfile
import time
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from adapters.shared.commands.local import LocalRunner
from adapters.shared.json_records import Record, mapping, mappings, moment, text
from adapters.shared.printing import printable
from provisioner.config.messages import choices
from provisioner.interfaces import AdapterError, AuthError
from provisioner.model import FaultKind
from provisioner.values import frozen

if TYPE_CHECKING:
    from adapters.kubernetes.settings import KubernetesSiteConfig

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_REREAD_S = 60.0
"""Age at which a token file is read again: a kubelet rotates tokens long before they expire."""
_PLUGIN_DEADLINE_S = 30.0
_PLUGIN_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_REFUSED_KEYS = {
    "auth-provider": "providers were removed from Kubernetes 1.26: use `exec`",
    "username": "passwords were removed from Kubernetes 1.19: use a token",
    "as": "impersonation is not supported: use an account for the controller",
    "proxy-url": "proxies are not supported: use an address that can be reached directly",
    "tls-server-name": "another name is not supported: write a `server` that the certificate names",
}
"""Keys of a kubeconfig, with the remedy."""
_TYPES = {str: "text, in quotes", bool: "`true` or `false`", list: "a list", dict: "a mapping"}
T = TypeVar("T", str, bool, list[Any], dict[str, Any])


class KubeconfigError(AuthError):
    """Missing or wrong credentials; the message names file, key and repair, and never the secret."""

    kind = FaultKind.CONFIG


@frozen
class ServerAccess:
    """Address and credentials of an API server, good until ``until`` by the monotonic clock."""

    server: str
    namespace: str
    trust: ssl.SSLContext = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    until: float


@frozen
class Kubeconfig:
    """The keys of a context, its cluster, its user and the user's plugin together: no name occurs twice.

    The methods raise KubeconfigError for a value that cannot be used.
    """

    where: str
    directory: Path
    """Directory that relative paths start from."""
    values: Record = field(repr=False)

    def get(self, key: str, expected: type[T]) -> T:
        """Return a value; an empty one if there is none."""
        found = self.values.get(key)
        if found is not None and not isinstance(found, expected):
            raise KubeconfigError(
                f"{self.where}: `{key}` has the wrong type: write {_TYPES[expected]}"
            )
        return expected() if found is None else found

    def file(self, key: str) -> str:
        """Return the text of the file that a key names; empty if there is no such key."""
        if not (name := self.get(key, str)):
            return ""
        path = self.directory / name
        try:
            # comments of certificates have any encoding
            return path.read_text("ascii", "ignore").strip()
        except (OSError, ValueError) as error:
            why = f"{printable(str(path))} cannot be read: {getattr(error, 'strerror', error)}"
            raise KubeconfigError(f"{self.where}: `{key}`: {why}") from None

    def pem(self, key: str) -> str:
        """Return a certificate or key, which is in the kubeconfig or in a file. Raises ValueError too."""
        return base64.b64decode(self.get(f"{key}-data", str)).decode(
            "ascii", "ignore"
        ) or self.file(key)


def read_kubeconfig(settings: KubernetesSiteConfig) -> Kubeconfig:
    """Return the kubeconfig to use; the service account of our own pod is like one. Raises KubeconfigError."""
    named = settings.kubeconfig or os.environ.get("KUBECONFIG")
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if host and not named and (SERVICE_ACCOUNT / "token").exists():
        server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        files = {
            "tokenFile": "token",
            "certificate-authority": "ca.crt",
            "namespaceFile": "namespace",
        }
        given = {"server": server, "namespace": settings.namespace, **files}
        return Kubeconfig(f"the service account in {SERVICE_ACCOUNT}", SERVICE_ACCOUNT, given)
    path = Path(os.path.expanduser(named or "~/.kube/config"))
    tree = _tree(path)
    name = settings.context or text(tree, "current-context")
    if not name:
        known = choices("", [text(each, "name") for each in mappings(tree, "contexts")])
        raise KubeconfigError(
            f"{path}: it has no `current-context`: write `context: NAME`: {known}"
        )
    context = _named(path, tree, "context", name)
    user, cluster = (_named(path, tree, kind, text(context, kind)) for kind in ("user", "cluster"))
    namespace = settings.namespace or context.get("namespace")
    values = {**mapping(user, "exec"), **user, **cluster, "namespace": namespace}
    found = Kubeconfig(f"{path}: context `{printable(name, 80)}`", path.parent, values)
    _check_support(found)
    return found


def _tree(path: Path) -> Record:
    try:
        return mapping(yaml.safe_load(path.read_text("utf-8-sig")))
    except OSError as error:
        message = (
            f"{path}: the kubeconfig cannot be read: {error.strerror}: write `kubeconfig: PATH`"
        )
        raise KubeconfigError(message) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        # the message of the error quotes the file, which holds secrets
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise KubeconfigError(f"{path}{line}: the kubeconfig is not YAML") from None


def _check_support(found: Kubeconfig) -> None:
    """Raise KubeconfigError for what the adapter cannot do."""
    for key, remedy in _REFUSED_KEYS.items():
        if found.values.get(key):
            raise KubeconfigError(f"{found.where}: `{key}`: {remedy}")
    if not found.get("server", str).startswith(("https://", "http://")):
        raise KubeconfigError(
            f"{found.where}: `server` of its cluster is no address: write `https://HOST:6443`"
        )
    if found.get("exec", dict) and found.get("apiVersion", str) not in _PLUGIN_VERSIONS:
        raise KubeconfigError(
            f"{found.where}: `apiVersion` of `exec` is not supported: write `{_PLUGIN_VERSIONS[0]}`"
        )
    if found.get("interactiveMode", str) == "Always":
        raise KubeconfigError(
            f"{found.where}: `interactiveMode`: there is no terminal: write `IfAvailable`"
        )


def _named(path: Path, tree: Record, kind: str, name: str) -> Record:
    entries = {text(each, "name"): each.get(kind) for each in mappings(tree, f"{kind}s")}
    if name not in entries:
        raise KubeconfigError(
            f"{path}: there is no {kind} `{printable(name, 80)}`: {choices(name, entries)}"
        )
    return mapping(entries[name])


def access_by(found: Kubeconfig) -> ServerAccess:
    """Return what is needed to call the API server, without a plugin. Raises KubeconfigError."""
    try:
        certificate = found.pem("client-certificate")
        key = found.pem("client-key")
        trust = ssl.create_default_context(cadata=found.pem("certificate-authority") or None)
        if found.get("insecure-skip-tls-verify", bool):
            trust.check_hostname = False
            trust.verify_mode = ssl.CERT_NONE
        # the ssl module would ask on the terminal for its password
        if "ENCRYPTED" in certificate + key:
            raise ValueError("an encrypted key is not supported: decrypt it with `openssl pkey`")
        if certificate or key:
            # the ssl module reads them from files only
            with tempfile.NamedTemporaryFile("w") as pair:
                pair.write(f"{certificate}\n{key}\n")
                pair.flush()
                trust.load_cert_chain(pair.name)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        why = printable(str(error))
        raise KubeconfigError(
            f"{found.where}: its certificates or its key cannot be used: {why}"
        ) from None
    namespace = found.get("namespace", str) or found.file("namespaceFile") or "default"
    token = found.file("tokenFile") or found.get("token", str)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return ServerAccess(
        found.get("server", str).rstrip("/"),
        namespace,
        trust,
        headers,
        time.monotonic() + _REREAD_S,
    )


async def read_access(settings: KubernetesSiteConfig) -> ServerAccess:
    """Return what is needed to call the API server. Raises KubeconfigError; AuthError if a plugin fails."""
    found = read_kubeconfig(settings)
    access = access_by(found)
    return await _run_plugin(found) if found.get("exec", dict) and not access.headers else access


async def _run_plugin(found: Kubeconfig) -> ServerAccess:
    """Return access with the credentials of a plugin ("Client-go credential plugins")."""
    spec: dict[str, Any] = {"interactive": False}
    if found.get("provideClusterInfo", bool):
        known = {key: found.values.get(key) for key in ("server", "insecure-skip-tls-verify")}
        authorities = base64.b64encode(found.pem("certificate-authority").encode()).decode()
        spec["cluster"] = {**known, "certificate-authority-data": authorities}
    info = json.dumps(
        {"apiVersion": found.values["apiVersion"], "kind": "ExecCredential", "spec": spec}
    )
    given = {
        str(each.get("name")): str(each.get("value")) for each in mappings(found.get("env", list))
    }
    runner = LocalRunner({**os.environ, **given, "KUBERNETES_EXEC_INFO": info})
    command = found.get("command", str)
    args = map(str, found.get("args", list))
    if os.sep in command:  # relative to the kubeconfig, as kubectl does
        command = str(found.directory / command)
    try:
        done = await runner.run([command, *args], deadline_s=_PLUGIN_DEADLINE_S)
        if done.code:
            raise ValueError(f"exit status {done.code}")
        status = mapping(json.loads(done.out), "status")
        names = {
            "client-certificate-data": "clientCertificateData",
            "client-key-data": "clientKeyData",
        }
        new = {
            key: base64.b64encode(text(status, name).encode()).decode()
            for key, name in names.items()
        }
        new["token"] = text(status, "token")
        if not any(new.values()):
            raise ValueError("it holds no token and no certificate")
    except (AdapterError, ValueError, RecursionError) as error:
        hint = printable(found.get("installHint", str))
        message = f"{found.where}: `exec`: no ExecCredential of `{printable(command)}`: {error}"
        raise AuthError(f"{message} ({hint})" if hint else message) from None
    # without, it is good until the API server refuses it
    expires = moment(status, "expirationTimestamp") or math.inf
    until = time.monotonic() + max(_REREAD_S, expires - time.time() - _REREAD_S)
    return replace(access_by(replace(found, values={**found.values, **new})), until=until)
