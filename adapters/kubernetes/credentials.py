"""ServerAccess to an API server: a kubeconfig, or the service account of the pod that the controller runs in.

The file is read as kubectl reads it ("Organizing Cluster ServerAccess Using kubeconfig Files"), one file only. What the
adapter cannot do is refused and not ignored.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from adapters.kubernetes.records import Record, mapping, mappings, text
from adapters.shared.commands.local import LocalRunner
from adapters.shared.printing import printable
from provisioner.config.messages import choices
from provisioner.interfaces import AdapterError, AuthError
from provisioner.model import FaultKind

if TYPE_CHECKING:
    from adapters.kubernetes.settings import KubernetesAccess

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_REREAD_S = 60.0
"""Age at which a token file is read again: a kubelet rotates tokens long before they expire."""
_PLUGIN_DEADLINE_S = 30.0
_PLUGIN_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_REFUSED_OF_USERS = {
    "auth-provider": "providers were removed from Kubernetes 1.26: use `exec`",
    "username": "passwords were removed from Kubernetes 1.19: use a token",
    "as": "impersonation is not supported: use an account of our own",
}
_REFUSED_OF_CLUSTERS = {"proxy-url": "proxies are not supported: use an address that can be reached directly"}


class KubeconfigError(AuthError):
    """Missing or wrong credentials; the message names file, key and repair, and never the secret."""

    kind = FaultKind.CONFIG


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """Address and credentials of an API server, good until ``until`` by the monotonic clock."""

    server: str
    namespace: str
    source: str
    """For people: where it is written."""
    trust: ssl.SSLContext | bool = field(repr=False)
    token: str = field(repr=False)
    until: float

    @property
    def headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


def kubeconfig_path(settings: KubernetesAccess) -> Path | None:
    """Return the kubeconfig to read; None in a pod, where nothing else is named."""
    if settings.kubeconfig is not None:
        return settings.kubeconfig
    if named := os.environ.get("KUBECONFIG", ""):
        return Path(named).expanduser()
    if os.environ.get("KUBERNETES_SERVICE_HOST") and (SERVICE_ACCOUNT / "token").exists():
        return None
    return Path("~/.kube/config").expanduser()


async def read_access(settings: KubernetesAccess) -> ServerAccess:
    """Return what is needed to call the API server. Raises KubeconfigError; AuthError if a plugin fails."""
    path = kubeconfig_path(settings)
    if path is None:
        return _in_cluster(settings)
    context = read_context(path, settings)
    user, where = context.user, context.where
    token, until = text(user, "token"), time.monotonic() + _REREAD_S
    if name := text(user, "tokenFile"):
        token = _file_content(path.parent / name, where, "tokenFile").decode("ascii", "replace").strip()
    if (plugin := mapping(user.get("exec"))) and not token:
        user, until = await _run_plugin(plugin, context)
        token = text(user, "token")
    namespace = settings.namespace or context.namespace or "default"
    return ServerAccess(context.server, namespace, where, _trust(context, user), token, until)


@dataclass(frozen=True, slots=True)
class KubeContext:
    """One context of a kubeconfig: a cluster, a user of it, and a namespace."""

    where: str
    directory: Path
    server: str
    namespace: str
    cluster: Record = field(repr=False)
    user: Record = field(repr=False)


def read_context(path: Path, settings: KubernetesAccess) -> KubeContext:
    """Return a context of a kubeconfig. Raises KubeconfigError."""
    try:
        tree = mapping(yaml.safe_load(path.read_text("utf-8-sig")))
    except OSError as error:
        message = f"{path}: the kubeconfig cannot be read: {error.strerror}: write `kubeconfig: PATH`"
        raise KubeconfigError(message) from None
    except yaml.MarkedYAMLError as error:  # its own words quote the file, which holds secrets
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise KubeconfigError(f"{path}{line}: the kubeconfig is not YAML") from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise KubeconfigError(f"{path}: the kubeconfig is not YAML") from None
    name = settings.context or text(tree, "current-context")
    if not name:
        known = choices("", [text(each, "name") for each in mappings(tree.get("contexts"))])
        raise KubeconfigError(f"{path}: it has no `current-context`: write `context: NAME`: {known}")
    context = _named(path, tree, "contexts", "context", name)
    where = f"{path}: context `{printable(name, 80)}`"
    cluster = _named(path, tree, "clusters", "cluster", text(context, "cluster"))
    user = _named(path, tree, "users", "user", text(context, "user"))
    for section, refused in ((user, _REFUSED_OF_USERS), (cluster, _REFUSED_OF_CLUSTERS)):
        for key, instead in refused.items():
            if section.get(key):
                raise KubeconfigError(f"{where}: `{key}`: {instead}")
    server = text(cluster, "server").rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise KubeconfigError(f"{where}: `server` of its cluster is no address: write `https://HOST:6443`")
    return KubeContext(where, path.parent, server, text(context, "namespace"), cluster, user)


def _named(path: Path, tree: Record, plural: str, singular: str, name: str) -> Record:
    entries = {text(each, "name"): each.get(singular) for each in mappings(tree.get(plural))}
    if name not in entries:
        message = f"{path}: there is no {singular} `{printable(name, 80)}`: {choices(name, entries)}"
        raise KubeconfigError(message)
    return mapping(entries[name])


def _in_cluster(settings: KubernetesAccess) -> ServerAccess:
    where = f"the service account in {SERVICE_ACCOUNT}"
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    token = _file_content(SERVICE_ACCOUNT / "token", where, "token").decode("ascii", "replace").strip()
    namespace = settings.namespace or _file_content(SERVICE_ACCOUNT / "namespace", where, "namespace").decode().strip()
    trust = ssl.create_default_context(cadata=_file_content(SERVICE_ACCOUNT / "ca.crt", where, "ca.crt").decode())
    address = f"[{host}]" if ":" in host else host
    return ServerAccess(f"https://{address}:{port}", namespace, where, trust, token, time.monotonic() + _REREAD_S)


def _trust(context: KubeContext, user: Record) -> ssl.SSLContext | bool:
    """Return the TLS settings of a context with the client certificate of a user."""
    cluster, where = context.cluster, context.where
    if not context.server.startswith("https://"):
        return True
    try:
        authorities = _content(cluster, "certificate-authority", context)
        found = ssl.create_default_context(cadata=authorities.decode() if authorities else None)
        if cluster.get("insecure-skip-tls-verify") is True:
            found.check_hostname, found.verify_mode = False, ssl.CERT_NONE
        certificate, key = (_content(user, name, context) for name in ("client-certificate", "client-key"))
        if certificate and key:
            with tempfile.NamedTemporaryFile() as pair:  # the ssl module reads them from files only
                pair.write(certificate + b"\n" + key)
                pair.flush()
                found.load_cert_chain(pair.name)
    except (ssl.SSLError, ValueError) as error:
        raise KubeconfigError(f"{where}: its certificates or its key cannot be used: {printable(str(error))}") from None
    return found


def _content(section: Record, key: str, context: KubeContext) -> bytes:
    """Return the content of a certificate or key, which is in the kubeconfig or in a file beside it."""
    if data := text(section, f"{key}-data"):
        return base64.b64decode(data)
    name = text(section, key)
    return _file_content(context.directory / Path(name).expanduser(), context.where, key) if name else b""


def _file_content(path: Path, where: str, key: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise KubeconfigError(f"{where}: `{key}`: {path} cannot be read: {error.strerror}") from None


async def _run_plugin(plugin: Record, context: KubeContext) -> tuple[Record, float]:
    """Run a credential plugin; return its user entry and until when it is good ("Client-go credential plugins")."""
    where, version = f"{context.where}: `exec`", text(plugin, "apiVersion")
    if version not in _PLUGIN_VERSIONS:
        raise KubeconfigError(f"{where}: `apiVersion` is not supported: it may be {' or '.join(_PLUGIN_VERSIONS)}")
    command = text(plugin, "command")
    if os.sep in command:  # relative to the kubeconfig, as kubectl does
        command = str(context.directory / command)
    spec = {"interactive": False}
    info = json.dumps({"apiVersion": version, "kind": "ExecCredential", "spec": spec})
    given = {text(each, "name"): text(each, "value") for each in mappings(plugin.get("env"))}
    runner = LocalRunner({**os.environ, **given, "KUBERNETES_EXEC_INFO": info})
    words = [str(each) for each in plugin.get("args") or []]
    try:
        done = await runner.run([command, *words], deadline_s=_PLUGIN_DEADLINE_S)
    except AdapterError as error:
        hint = text(plugin, "installHint")
        raise AuthError(f"{where}: {error}{f' ({printable(hint)})' if hint else ''}") from None
    if done.code:
        raise AuthError(f"{where}: `{printable(command)}`: exit status {done.code}")
    try:
        status = mapping(json.loads(done.out).get("status"))
    except (ValueError, AttributeError):
        raise AuthError(f"{where}: `{printable(command)}` printed no ExecCredential") from None
    user: dict[str, Any] = {"token": text(status, "token")}
    for key, name in (("client-certificate-data", "clientCertificateData"), ("client-key-data", "clientKeyData")):
        user[key] = base64.b64encode(text(status, name).encode()).decode()
    return user, time.monotonic() + _lifetime_s(text(status, "expirationTimestamp"))


def _lifetime_s(expires: str) -> float:
    try:
        left_s = datetime.fromisoformat(expires).timestamp() - time.time()
    except ValueError:  # no time: it is good until the API server refuses it
        return 86400.0
    return max(_REREAD_S, left_s - _REREAD_S)


def trial(settings: KubernetesAccess) -> str:
    """Return why the credentials cannot be used on this host, without a call of the API server; empty if they can."""
    path = kubeconfig_path(settings)
    try:
        if path is None:
            _in_cluster(settings)
        else:
            context = read_context(path, settings)
            _trust(context, context.user)
    except AdapterError as error:
        return str(error)
    return ""
