"""A small API server that speaks the protocol of lists, watches and orders, and fails as a test requires."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from adapters.kubernetes import KubernetesSite
from adapters.kubernetes.settings import KubernetesSiteConfig
from provisioner.model import Bootstrap, DroneId, DroneType, SiteView, StartOrder

A100 = DroneType("cern", "a100", gpu_milli=1000, cpus=8, memory_mib=20480, disk_mib=10240)
NAMESPACED, JOBS = "/api/v1/namespaces/drones/", "/apis/batch/v1/namespaces/drones/"
PODS, SECRETS, QUOTAS = (NAMESPACED + each for each in ("pods", "secrets", "resourcequotas"))
Answer = Callable[[web.Request], Any]


def order(name: str = "kit-a-1") -> StartOrder:
    return StartOrder(DroneId(name), A100, 60.0, 30.0, Bootstrap(b"true", {}, {}))


def refusal(status: int, reason: str = "", message: str = "no", **headers: str) -> web.Response:
    """Return a refusal of an API server (Status, meta/v1)."""
    body = {
        "kind": "Status",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": status,
    }
    return web.json_response(body, status=status, headers=headers)


def abort(request: web.Request) -> web.Response:
    """Cut the connection without a reply."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@dataclass
class FakeCluster:
    """Objects by path, and the calls that were made. Objects of all namespaces are those of ``drones``."""

    directory: Path
    url: str = ""
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    """Method, path and body."""
    answers: dict[tuple[str, str], Answer] = field(default_factory=dict)
    """Answers instead of the usual ones by method, or ``WATCH``, and beginning of the path."""
    late: dict[str, Answer] = field(default_factory=dict)
    """Answers instead of the usual ones after an order was carried out, by path of the collection."""
    _version: int = 1
    _events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """All changes, with the path of their collection."""
    _watches: list[tuple[str, asyncio.Queue[dict[str, Any] | None]]] = field(default_factory=list)

    def put(self, path: str, found: Mapping[str, Any]) -> None:
        """Create or replace an object. Watches see it."""
        self._version += 1
        meta = {"namespace": "drones", "uid": f"uid-{self._version}", **found["metadata"]}
        made = {**found, "metadata": {**meta, "resourceVersion": str(self._version)}}
        kind = "MODIFIED" if f"{path}/{meta['name']}" in self.objects else "ADDED"
        self.objects[f"{path}/{meta['name']}"] = made
        self._tell(path, kind, made)

    def change(self, path: str, **parts: Any) -> None:
        """Merge parts into an object, one level deep."""
        found = self.objects[path]
        merged = {key: {**found.get(key, {}), **part} for key, part in parts.items()}
        self.put(path.rpartition("/")[0], {**found, **merged})

    def drop(self, path: str) -> None:
        self._version += 1
        found = self.objects.pop(path)
        meta = {**found["metadata"], "resourceVersion": str(self._version)}
        self._tell(path.rpartition("/")[0], "DELETED", {**found, "metadata": meta})

    def _tell(self, path: str, kind: str, found: Mapping[str, Any]) -> None:
        event = {"type": kind, "object": dict(found)}
        self._events.append((path + "/", event))
        for watched, queue in self._watches:
            if self._is_in(path + "/", watched):
                queue.put_nowait(event)

    @staticmethod
    def _is_in(path: str, collection: str) -> bool:
        return path.startswith(collection + "/") or (
            collection == "/api/v1/pods" and path.startswith(PODS + "/")
        )

    def cut_watches(self) -> None:
        for _, queue in self._watches:
            queue.put_nowait(None)

    def made(self, method: str, path: str = "") -> list[Any]:
        """Return the bodies of calls of a method whose path begins so."""
        return [
            body for each, where, body in self.calls if each == method and where.startswith(path)
        ]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path, body = request.path, json.loads(await request.read() or b"null")
        method = "WATCH" if "watch" in request.query else request.method
        self.calls.append((method, path, body))
        for (kind, beginning), answer in list(self.answers.items()):
            if kind == method and path.startswith(beginning):
                found = answer(request)
                return await found if asyncio.iscoroutine(found) else found
        if method == "WATCH":
            return await self._watch(request)
        if method == "GET" and path in self.objects:
            return web.json_response(self.objects[path])
        if method == "GET" and path.rpartition("/")[2] in (
            "pods",
            "jobs",
            "nodes",
            "resourcequotas",
        ):
            items = [each for where, each in self.objects.items() if self._is_in(where, path)]
            return web.json_response(
                {"items": items, "metadata": {"resourceVersion": str(self._version)}}
            )
        if method == "DELETE" and path in self.objects:
            wanted = (body or {}).get("preconditions", {}).get("uid")
            if wanted and wanted != self.objects[path]["metadata"]["uid"]:
                return refusal(409, "Conflict", "the UID in the precondition does not match")
            self.drop(path)
            return web.json_response({"kind": "Status", "status": "Success"})
        if method == "POST":
            return self._create(request, body)
        return refusal(404, "NotFound")

    def _create(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        if "dryRun" in request.query:
            return web.json_response(body, status=201)
        where = f"{request.path}/{body['metadata']['name']}"
        if where in self.objects:
            return refusal(409, "AlreadyExists")
        spec = {**body["spec"], "priority": -10} if "spec" in body else None
        self.put(request.path, {**body, "spec": spec, "status": {"phase": "Pending"}})
        late = self.late.get(request.path)
        return (
            late(request)
            if late is not None
            else web.json_response(self.objects[where], status=201)
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        since, entry = int(request.query["resourceVersion"]), (request.path, queue)
        for path, event in self._events:
            if (
                self._is_in(path, request.path)
                and int(event["object"]["metadata"]["resourceVersion"]) > since
            ):
                queue.put_nowait(event)
        self._watches.append(entry)
        try:
            while event := await queue.get():
                await response.write(json.dumps(event).encode() + b"\n")
            return abort(request)
        finally:
            self._watches.remove(entry)

    def site(self, **options: Any) -> KubernetesSite:
        path = self.directory / "kubeconfig"
        config = {
            "current-context": "x",
            "clusters": [{"name": "x", "cluster": {"server": self.url}}],
            "users": [{"name": "x", "user": {"token": "secret"}}],
            "contexts": [
                {"name": "x", "context": {"cluster": "x", "user": "x", "namespace": "drones"}}
            ],
        }
        path.write_text(json.dumps(config))
        path.chmod(0o600)
        given = {"kubeconfig": str(path), "image": "x", "deadline": "2s", **options}
        return KubernetesSite("cern", KubernetesSiteConfig.model_validate(given), [A100], "kit")


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[FakeCluster]:
    cluster = FakeCluster(directory)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", cluster.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    server = web.TCPSite(runner, "127.0.0.1", 0)
    await server.start()
    port = runner.addresses[0][1]
    cluster.url = f"http://127.0.0.1:{port}"
    try:
        yield cluster
    finally:
        await runner.cleanup()


async def polled(
    site: KubernetesSite, holds: Callable[[SiteView], bool], within_s: float = 5.0
) -> SiteView:
    """Poll until a condition holds."""
    async with asyncio.timeout(within_s):
        while True:
            if holds(view := await site.poll()):
                return view
            await asyncio.sleep(0.02)
