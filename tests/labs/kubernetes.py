"""A real Kubernetes control plane for a test: etcd, kube-apiserver, scheduler and controller manager on loopback.

The kubelets are a stand-in (``kubelet``). The adapter calls the API server through a front that can
fail on order. ``python -m tests.labs.kubernetes`` brings one up to play with.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.labs.htcondor import LabError, fetched, kill, lab_directory, living_in, until
from tests.labs.kueue import Kueue
from tests.labs.ports import free_port

NAMESPACE = "drones"
GPU, SHARED, SLICE = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
NODES: Sequence[Mapping[str, Any]] = (
    {
        "name": "gpu01",
        "resources": {GPU: "4", SLICE: "7"},
        "labels": {"nvidia.com/gpu.product": "A100"},
    },
    {
        "name": "gpu02",
        "resources": {GPU: "4", SHARED: "8"},
        "labels": {"nvidia.com/gpu.product": "H100"},
    },
)
MOST_GPUS = 8
"""Largest number of GPUs of one pod, by a LimitRange."""
_RIGHTS = (
    {
        "apiGroups": [""],
        "resources": ["pods", "secrets"],
        "verbs": ["get", "list", "watch", "create", "delete"],
    },
    {"apiGroups": [""], "resources": ["resourcequotas"], "verbs": ["get", "list", "watch"]},
    {
        "apiGroups": ["batch"],
        "resources": ["jobs"],
        "verbs": ["get", "list", "watch", "create", "delete"],
    },
)
_CLUSTER_RIGHTS = (
    {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]},
)
_RBAC = "rbac.authorization.k8s.io"
ROBOT = "robot-token"
ACCOUNT = "robot-account"


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """The programs that ``get-kubernetes.sh`` built."""

    prefix: Path

    @classmethod
    def cached(cls) -> Kubernetes:
        """As `make kubernetes` has built it. LabError says what is missing."""
        return cls(fetched("get-kubernetes.sh", "--cached"))


@dataclass
class Fault:
    """A fault of the front, for calls with this method and a path in which ``path`` is found."""

    method: str = ".*"
    path: str = ""
    cut: str = ""
    """``before``: the connection is cut and nothing passed on; ``after``: passed on, and the reply
    lost; ``half``: the reply breaks off in the middle."""
    status: int = 0
    body: Mapping[str, Any] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    """Replaces parts of the query."""
    late_s: float = 0.0
    """The reply comes this much later."""
    times: int | None = None
    hits: int = 0

    def fits(self, method: str, path: str) -> bool:
        if (
            self.times == 0
            or not re.fullmatch(self.method, method)
            or not re.search(self.path, path)
        ):
            return False
        if self.times is not None:
            self.times -= 1
        self.hits += 1
        return True


class Front:
    """A proxy between adapter and API server, in a thread of its own. It passes streams on as they come."""

    def __init__(self, upstream: str) -> None:
        self.upstream, self.port = upstream, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.faults: list[Fault] = []
        self.queue: Kueue | None = None
        self.calls: list[tuple[str, str]] = []
        self._loop = asyncio.new_event_loop()
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._serve(),), name="k8s-front"
        )
        self._open: list[web.Request] = []

    def start(self) -> None:
        self._thread.start()
        if not self._ready.wait(30):
            raise LabError("the front of Kubernetes does not start")

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    @contextmanager
    def failing(self, **fault: Any) -> Iterator[Fault]:
        """``Fault(**fault)`` holds inside; a cut concerns open watches as well."""
        each = Fault(**fault)
        self.faults.append(each)
        if each.cut == "before":
            self.cut_watches()
        try:
            yield each
        finally:
            self.faults.remove(each)

    def cut_watches(self) -> None:
        def cut() -> None:
            for request in list(self._open):
                _abort(request)

        self._loop.call_soon_threadsafe(cut)

    async def _serve(self) -> None:
        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        connector = aiohttp.TCPConnector(ssl=trust, limit=0)
        none = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(
            connector=connector, timeout=none, auto_decompress=False
        ) as self._client:
            app = web.Application(client_max_size=2**24)
            app.router.add_route("*", "/{path:.*}", self._pass_on)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self.port).start()
            self._ready.set()
            await self._stop.wait()
            self.cut_watches()
            await runner.cleanup()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        path = request.rel_url.raw_path
        self.calls.append((request.method, request.path_qs))
        fault = next(
            (each for each in self.faults if each.fits(request.method, request.path_qs)), Fault()
        )
        if fault.cut == "before":
            _abort(request)
            return web.Response()
        if fault.status:
            return web.json_response(fault.body, status=fault.status)
        query = {**request.query, **fault.query}
        body = await request.read()
        if self.queue is not None and body and path.endswith("/pods"):
            body = json.dumps(self.queue.incoming(json.loads(body))).encode()
        passed = (
            "authorization",
            "content-type",
            "accept",
            "accept-encoding" if self.queue is None else "",
        )
        kept = {name: value for name, value in request.headers.items() if name.lower() in passed}
        async with self._client.request(
            request.method,
            self.upstream + path,
            params=query,
            data=body or None,
            headers=kept,
            skip_auto_headers=["Accept-Encoding"],
        ) as reply:
            if fault.late_s:
                await asyncio.sleep(fault.late_s)
            if fault.cut == "after":
                await reply.read()
                _abort(request)
                return web.Response()
            told = {
                k: v
                for k, v in reply.headers.items()
                if k.lower() in ("content-type", "content-encoding")
            }
            answer = web.StreamResponse(status=reply.status, headers=told)
            self._open.append(request)
            try:
                await answer.prepare(request)
                if fault.cut == "half":
                    content = await reply.read()
                    await answer.write(content[: len(content) // 2])
                    _abort(request)
                    return answer
                async for piece in self._pieces(path, reply):
                    await answer.write(piece)
                await answer.write_eof()
            except (ConnectionError, aiohttp.ClientError):
                _abort(request)
            finally:
                self._open.remove(request)
            return answer

    async def _pieces(self, path: str, reply: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """Yield a reply as it comes; pods in lines, as events do, where a queue changes them."""
        if self.queue is None or "/pods" not in path or not reply.content_type.endswith("json"):
            async for piece in reply.content.iter_any():
                yield piece
            return
        rest = b""
        async for piece in reply.content.iter_any():
            *lines, rest = (rest + piece).split(b"\n")
            for line in filter(None, lines):
                yield self._seen(line)
        if rest:
            yield self._seen(rest)

    def _seen(self, line: bytes) -> bytes:
        found = json.loads(line)
        return (
            json.dumps(self.queue.outgoing(found) if self.queue is not None else found).encode()
            + b"\n"
        )


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


class KubernetesLab:
    """One cluster with the namespace ``drones``, a quota of GPUs, and a robot that may touch pods and secrets there."""

    def __init__(
        self, directory: Path, kubernetes: Kubernetes, nodes: Sequence[Mapping[str, Any]] = NODES
    ) -> None:
        self.directory, self.kubernetes, self.nodes = directory, kubernetes, nodes
        self.port, self.etcd, self.peer, self.manager, self.scheduler = (
            free_port() for _ in range(5)
        )
        self.url = f"https://127.0.0.1:{self.port}"
        self.front = Front(self.url)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    # ---------------------------------------------------------------------------------------------------------
    # life

    def start(self) -> KubernetesLab:
        directory = self.directory
        (directory / "log").mkdir()
        key, certificate = directory / "server.key", directory / "server.crt"
        names = "subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc"
        made = [
            "-nodes",
            "-days",
            "30",
            "-subj",
            "/CN=lab",
            "-addext",
            names,
            "-keyout",
            key,
            "-out",
            certificate,
        ]
        _run("openssl", "req", "-x509", "-newkey", "rsa:2048", *made)
        _run("openssl", "genrsa", "-out", directory / "sa.key", "2048")
        tokens = f'admin-token,admin,1,"system:masters"\n{ROBOT},robot,2,"drones"\nnode-token,node,3,"system:masters"\n'
        (directory / "tokens.csv").write_text(tokens)
        self.kubeconfig("admin", "admin-token", server=self.url)
        self._launch("etcd")
        self._launch("kube-apiserver")
        until(self.answers, 120, what="the API server is ready")
        for name in ("kube-controller-manager", "kube-scheduler"):
            self._launch(name)
        self.write("nodes.json", json.dumps(list(self.nodes)))
        (directory / "kubelet.json").write_text(
            json.dumps({"server": self.url, "token": "node-token"})
        )
        self._launch("kubelet")
        self._tenant()
        self.front.start()
        until(
            lambda: len(self.get("/api/v1/nodes")["items"]) == len(self.nodes),
            what="the nodes are there",
        )
        until(self._all_ready, what="the nodes are ready")
        return self

    def _all_ready(self) -> bool:
        nodes = self.get("/api/v1/nodes")["items"]
        states = [
            c["status"]
            for n in nodes
            for c in n["status"].get("conditions", ())
            if c["type"] == "Ready"
        ]
        return (
            len(states) == len(nodes)
            and set(states) == {"True"}
            and all(not n["spec"].get("taints") for n in nodes)
        )

    def stop(self) -> None:
        self.front.stop()
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        while left := living_in(self.directory):
            kill(*left)
            time.sleep(0.05)

    def _launch(self, name: str) -> None:
        out = (self.directory / f"log/{name}.out").open("ab")
        self.processes[name] = subprocess.Popen(
            self._command(name),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )

    def restart(self, name: str) -> None:
        self._launch(name)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def _command(self, name: str) -> list[str]:
        d = str(self.directory)
        config = f"--kubeconfig={d}/admin.kubeconfig"
        if name == "kubelet":
            return [sys.executable, "-m", "tests.labs.kubelet", d]
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.etcd, self.peer))
        arguments = {
            "etcd": [
                *(
                    f"--data-dir={d}/etcd",
                    f"--listen-client-urls={client}",
                    f"--advertise-client-urls={client}",
                ),
                *(
                    f"--listen-peer-urls={peer}",
                    f"--initial-advertise-peer-urls={peer}",
                    "--unsafe-no-fsync",
                ),
                f"--initial-cluster=default={peer}",
            ],
            "kube-apiserver": [
                *(
                    f"--etcd-servers={client}",
                    f"--secure-port={self.port}",
                    "--bind-address=127.0.0.1",
                ),
                *("--advertise-address=127.0.0.1", f"--tls-cert-file={d}/server.crt"),
                *(f"--tls-private-key-file={d}/server.key", f"--token-auth-file={d}/tokens.csv"),
                *("--authorization-mode=RBAC", f"--service-account-key-file={d}/sa.key"),
                f"--service-account-signing-key-file={d}/sa.key",
                *(
                    "--service-account-issuer=https://kubernetes.default.svc",
                    "--service-cluster-ip-range=10.0.0.0/24",
                ),
                *("--endpoint-reconciler-type=none", "--disable-admission-plugins=ServiceAccount"),
                # Soon from a lost node, but not from one whose lease was late after an outage of
                # the API server.
                *(
                    "--default-unreachable-toleration-seconds=15",
                    "--default-not-ready-toleration-seconds=60",
                ),
                *(
                    f"--cert-dir={d}/certs",
                    "--watch-cache=false",
                    f"--client-ca-file={d}/server.crt",
                ),
            ],
            "kube-controller-manager": [
                *(
                    config,
                    f"--service-account-private-key-file={d}/sa.key",
                    "--leader-elect=false",
                    "--port=0",
                ),
                *(
                    "--bind-address=127.0.0.1",
                    f"--secure-port={self.manager}",
                    f"--cert-dir={d}/certs",
                ),
                *(
                    "--node-monitor-grace-period=8s",
                    "--node-monitor-period=1s",
                    "--pod-eviction-timeout=5s",
                ),
            ],
            "kube-scheduler": [
                *(
                    config,
                    "--leader-elect=false",
                    "--bind-address=127.0.0.1",
                    f"--secure-port={self.scheduler}",
                ),
                *(f"--cert-dir={d}/certs", "--port=0"),
            ],
        }
        return [str(self.kubernetes.prefix / name), *arguments[name]]

    def _tenant(self) -> None:
        rbac = f"/apis/{_RBAC}/v1"
        self.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        self.post(
            f"{rbac}/namespaces/{NAMESPACE}/roles",
            {"metadata": {"name": "drones"}, "rules": _RIGHTS},
        )
        self.post(
            f"{rbac}/clusterroles", {"metadata": {"name": "drones"}, "rules": _CLUSTER_RIGHTS}
        )
        self.grant()
        # Without defaults, those who ask for no GPU would get the largest number.
        none = {GPU: "0"}
        limit = {
            "type": "Container",
            "max": {GPU: str(MOST_GPUS)},
            "default": none,
            "defaultRequest": none,
        }
        self.post(
            f"{self.ours}/limitranges", {"metadata": {"name": "gpus"}, "spec": {"limits": [limit]}}
        )
        hard = {"pods": "60", f"requests.{GPU}": "8"}
        self.post(
            f"{self.ours}/resourcequotas", {"metadata": {"name": "gpus"}, "spec": {"hard": hard}}
        )
        for name, value in (("gpu-drones", -10), ("owner", 100)):
            body = {"metadata": {"name": name}, "value": value}
            if value < 0:
                body["preemptionPolicy"] = "Never"
            self.post("/apis/scheduling.k8s.io/v1/priorityclasses", body)

    def grant(self) -> None:
        """Give the robot its rights, and a service account the same."""
        account = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "default"}
        subjects = [{"kind": "User", "name": "robot", "apiGroup": _RBAC}, account]
        for path, kind in (
            (f"namespaces/{NAMESPACE}/rolebindings", "Role"),
            ("clusterrolebindings", "ClusterRole"),
        ):
            reference = {"apiGroup": _RBAC, "kind": kind, "name": "drones"}
            body = {"metadata": {"name": "drones"}, "roleRef": reference, "subjects": subjects}
            self.post(f"/apis/{_RBAC}/v1/{path}", body)

    def revoke(self) -> None:
        """Take the robot's rights away."""
        for path in (f"namespaces/{NAMESPACE}/rolebindings", "clusterrolebindings"):
            self.call("DELETE", f"/apis/{_RBAC}/v1/{path}/drones")

    def token(self) -> str:
        """Return a token of the service account that is good until :meth:`expire`."""
        secrets, accounts = (
            "/api/v1/namespaces/default/secrets",
            "/api/v1/namespaces/default/serviceaccounts",
        )
        self.call("POST", accounts, {"metadata": {"name": ACCOUNT}})
        meta = {
            "generateName": f"{ACCOUNT}-",
            "annotations": {"kubernetes.io/service-account.name": ACCOUNT},
        }
        made = self.post(secrets, {"metadata": meta, "type": "kubernetes.io/service-account-token"})
        path = f"{secrets}/{made['metadata']['name']}"
        found = until(
            lambda: self.get(path).get("data", {}).get("token"), 30, what="the token is there"
        )
        return base64.b64decode(found).decode()

    def expire(self) -> None:
        """Delete all tokens of the service account; the API server refuses them a few seconds later."""
        for secret in self.get("/api/v1/namespaces/default/secrets")["items"]:
            if (
                secret["metadata"].get("annotations", {}).get("kubernetes.io/service-account.name")
                == ACCOUNT
            ):
                self.call(
                    "DELETE", f"/api/v1/namespaces/default/secrets/{secret['metadata']['name']}"
                )

    def reset(self) -> None:
        """Delete what tests have left. LabError tells that a program of the lab has ended; it is started again."""
        self.front.faults.clear()
        self.write("dead-nodes", "")
        ended = [name for name, process in self.processes.items() if process.poll() is not None]
        for name in ended:
            self._launch(name)
        now = {"gracePeriodSeconds": 1}
        for path in (
            f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs",
            "/api/v1/namespaces/default/pods",
        ):
            self.call("DELETE", path, {"propagationPolicy": "Background", **now})
        self.call("DELETE", f"{self.ours}/pods", now)
        until(
            lambda: not self.pods() and not self.get("/api/v1/namespaces/default/pods")["items"],
            what="no pods",
        )
        self.call("DELETE", f"{self.ours}/secrets", {})
        if ended:
            raise LabError(f"these had ended: {', '.join(ended)}\n{self.story()}")

    def write(self, name: str, content: str) -> None:
        """Write a file of the kubelets, which read it at any time, in one step."""
        new = self.directory / f"{name}.new"
        new.write_text(content)
        new.replace(self.directory / name)

    # --------------------------------------------------------------------------------------------------------
    # calls

    @property
    def ours(self) -> str:
        return f"/api/v1/namespaces/{NAMESPACE}"

    def kubeconfig(self, name: str, token: str, server: str = "") -> Path:
        """Write a kubeconfig; without ``server`` it leads to the front."""
        path = self.directory / f"{name}.kubeconfig"
        cluster = {"server": server or self.front.url}
        if server:
            cluster["certificate-authority"] = "server.crt"
        path.touch(mode=0o600)
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": name,
                    "clusters": [{"name": "lab", "cluster": cluster}],
                    "users": [{"name": name, "user": {"token": token}}],
                    "contexts": [
                        {
                            "name": name,
                            "context": {"cluster": "lab", "user": name, "namespace": NAMESPACE},
                        }
                    ],
                }
            )
        )
        return path

    def call(
        self, method: str, path: str, body: object = None, kind: str = "application/json"
    ) -> tuple[int, Mapping[str, Any]]:
        """Return status and document of a call as the administrator, past the front."""
        headers = {"Authorization": "Bearer admin-token", "Content-Type": kind}
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, method=method, headers=headers, data=data)
        trust = ssl.create_default_context(cafile=str(self.directory / "server.crt"))
        try:
            # The server itself ends a call after 60 s: to delete 5000 pods takes half of it on a
            # slow host.
            with urllib.request.urlopen(request, timeout=70, context=trust) as reply:
                return reply.status, json.loads(reply.read() or b"{}")
        except urllib.error.HTTPError as error:
            text = error.read()
            return error.code, json.loads(text) if text[:1] == b"{" else {
                "message": text.decode(errors="replace")
            }

    def get(self, path: str) -> Mapping[str, Any]:
        return self._must("GET", path)

    def post(self, path: str, body: object) -> Mapping[str, Any]:
        return self._must("POST", path, body)

    def _must(self, method: str, path: str, body: object = None) -> Mapping[str, Any]:
        status, document = self.call(method, path, body)
        if not 200 <= status < 300:
            raise LabError(f"{method} {path}: {status} {document.get('message')}")
        return document

    def pods(self) -> list[dict[str, Any]]:
        return list(self.get(f"{self.ours}/pods")["items"])

    @contextmanager
    def more_gpus(self, node: str, count: int) -> Iterator[None]:
        """Give a node so many GPUs, while inside."""
        file = self.directory / "nodes.json"
        nodes = json.loads(file.read_text())
        changed = [
            {**n, "resources": {**n["resources"], GPU: str(count)}} if n["name"] == node else n
            for n in nodes
        ]

        def there(wanted: str) -> bool:
            status = self.get(f"/api/v1/nodes/{node}")["status"]
            return bool(status["allocatable"][GPU] == wanted)

        before = next(n["resources"][GPU] for n in nodes if n["name"] == node)
        for content, wanted in ((changed, str(count)), (nodes, before)):
            self.write(file.name, json.dumps(content))
            until(lambda wanted=wanted: there(wanted), what=f"{node} has {wanted} GPUs")
            if content is changed:
                yield

    def compact(self) -> None:
        """Make etcd forget all old versions."""
        etcdctl = [
            str(self.kubernetes.prefix / "etcdctl"),
            f"--endpoints=http://127.0.0.1:{self.etcd}",
        ]
        env = {**os.environ, "ETCDCTL_API": "3"}
        told = subprocess.check_output(
            [*etcdctl, "endpoint", "status", "-w", "json"], env=env, text=True
        )
        revision = json.loads(told)[0]["Status"]["header"]["revision"]
        subprocess.run(
            [*etcdctl, "compact", str(revision)], env=env, check=True, capture_output=True
        )

    def answers(self, path: str = "/readyz") -> bool:
        request = urllib.request.Request(
            self.url + path, headers={"Authorization": "Bearer admin-token"}
        )
        trust = ssl.create_default_context(cafile=str(self.directory / "server.crt"))
        with suppress(OSError), urllib.request.urlopen(request, timeout=5, context=trust) as reply:
            return bool(reply.status == 200)
        return False

    def story(self) -> str:
        """The ends of all logs, for a failing test."""
        logs = {
            log.name: log.read_text(errors="replace")
            for log in sorted((self.directory / "log").iterdir())
        }
        told = [f"--- {name}\n" + "\n".join(text.splitlines()[-15:]) for name, text in logs.items()]
        return "\n".join(told)


def _run(*words: object) -> None:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise LabError(f"{words[0]}: {done.stderr}")


@contextmanager
def running_kubernetes(kubernetes: Kubernetes, **how: Any) -> Iterator[KubernetesLab]:
    """A cluster. Leaving ends it."""
    with lab_directory("kubernetes") as directory:
        lab = KubernetesLab(directory, kubernetes, **how)
        try:
            yield lab.start()
        except BaseException:
            print(lab.story(), file=sys.stderr)
            raise
        finally:
            lab.stop()


def main() -> None:
    with running_kubernetes(Kubernetes.cached()) as lab:
        print(
            f"Kubernetes is up; ctrl-D ends it\n  KUBECONFIG={lab.directory}/admin.kubeconfig",
            flush=True,
        )
        sys.stdin.read()


if __name__ == "__main__":
    os.umask(0o022)
    main()
