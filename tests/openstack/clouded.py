"""A cloud for tests, in one process over loopback: Keystone, Nova, Neutron, Glance and Cinder as far as they are asked,
answering as Nova 34 and Keystone 30 were seen to, and breaking as they are told."""

from __future__ import annotations

import asyncio
import itertools
import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from adapters.openstack.settings import CloudAccess

PROJECT, USER = "79a929b39a1f4d79b2d4dd4184f373de", "3440e6de2d8a4ac0adb94520d4deec0e"
_SERVICES = {
    "compute": ("nova", "/compute/v2.1"),
    "network": ("neutron", "/network"),
    "image": ("glance", "/image"),
    "volumev3": ("cinderv3", f"/volume/v3/{PROJECT}"),
}


@dataclass
class Clouded:
    secret: str = "s3cret"
    life_s: float = 3600.0
    newest: str = "2.104"
    page: int = 1000
    services: dict[str, tuple[str, str]] = field(default_factory=lambda: dict(_SERVICES))
    regions: tuple[str, ...] = ("RegionOne",)
    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    deleted: dict[str, dict[str, Any]] = field(default_factory=dict)
    lists: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """What the other lists hold, by the last part of their path."""
    quota: int = 10
    next_link: Callable[[str], str] = lambda url: url
    """Makes the address of the next page of it."""
    before: Callable[[web.Request], Any] | None = None
    """Awaited before each answer to a call with a token; what it returns is the answer, None for the usual one."""
    asked: list[str] = field(default_factory=list)
    """Method and path with query of each call."""
    microversions: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    url: str = ""
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    @property
    def logins(self) -> int:
        return sum("/auth/tokens" in each for each in self.asked)

    def add(self, name: str, *, status: str = "ACTIVE", **more: Any) -> str:
        number = next(self.numbers)
        server_id = f"00000000-0000-4000-8000-{number:012}"
        self.servers[server_id] = {
            "id": server_id,
            "name": name,
            "status": status,
            "tenant_id": PROJECT,
            "metadata": {},
            "tags": [],
            "created": "2026-11-21T23:00:00Z",
            "updated": "2026-11-21T23:00:00Z",
            "OS-EXT-STS:task_state": None,
            "OS-EXT-STS:power_state": 1 if status == "ACTIVE" else 0,
            **more,
        }
        return server_id

    # ------------------------------------------------------------------------------------------------------ answering

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path_qs}")
        body = await request.json() if request.can_read_body else None
        if request.path == "/identity/v3/auth/tokens":
            return await self._token(request, body)
        if (told := request.headers.get("OpenStack-API-Version")) is not None:
            self.microversions.append(told)
        if body is not None:
            self.bodies.append(body)
        if self.before is not None and (special := await self.before(request)) is not None:
            return special if isinstance(special, web.StreamResponse) else web.json_response(special)
        if request.headers.get("X-Auth-Token") not in self.tokens:
            return fault(401, "error", "The request you have made requires authentication.")
        return self._served(request, body)

    async def _token(self, request: web.Request, body: Any) -> web.StreamResponse:
        if self.before is not None and (special := await self.before(request)) is not None:
            return special if isinstance(special, web.StreamResponse) else web.json_response(special)
        identity = body["auth"]["identity"]
        method = identity[identity["methods"][0]]
        if (method["user"]["password"] if "password" in identity else method["secret"]) != self.secret:
            return fault(401, "error", "The request you have made requires authentication.", title="Unauthorized")
        token = f"gAAAAA-token-{next(self.numbers)}"
        self.tokens.add(token)
        now = datetime(2001, 1, 1, tzinfo=UTC)  # its clock is not ours
        times = {"issued_at": now, "expires_at": now + timedelta(seconds=self.life_s)}
        told = {
            "methods": identity["methods"],
            "user": {"id": USER, "name": "drone", "domain": {"id": "default", "name": "Default"}},
            "project": {"id": PROJECT, "name": "grid"},
            "catalog": [
                {"type": kind, "name": name, "endpoints": [self._endpoint(path, region) for region in self.regions]}
                for kind, (name, path) in self.services.items()
            ],
            **{key: at.strftime("%Y-%m-%dT%H:%M:%S.%fZ") for key, at in times.items()},
        }
        return web.json_response({"token": told}, status=201, headers={"X-Subject-Token": token})

    def _endpoint(self, path: str, region: str) -> Mapping[str, str]:
        url = path if "://" in path else f"{self.url}{path}"
        return {"id": "e", "interface": "public", "region": region, "region_id": region, "url": url}

    def _served(self, request: web.Request, body: Any) -> web.StreamResponse:
        match request.method, request.path.strip("/").split("/"):
            case "GET", ["compute", "v2.1"]:
                version = {"id": "v2.1", "status": "CURRENT", "version": self.newest, "min_version": "2.1"}
                return web.json_response({"version": version})
            case "GET", ["compute", "v2.1", "servers", "detail"]:
                return self._page(request, "servers", self._filtered(request))
            case "GET", ["compute", "v2.1", "servers", server_id] if server_id in self.servers:
                return web.json_response({"server": self.servers[server_id]})
            case "POST", ["compute", "v2.1", "servers"]:
                return self._create(body)
            case "DELETE", ["compute", "v2.1", "servers", server_id] if server_id in self.servers:
                self.deleted[server_id] = {**self.servers.pop(server_id), "status": "DELETED", "tags": []}
                return web.Response(status=204)
            case "POST", ["compute", "v2.1", "servers", server_id, "action"] if server_id in self.servers:
                return self._act(self.servers[server_id], body)
            case "GET", ["compute", "v2.1", "limits"]:
                used = {"totalInstancesUsed": len(self.servers), "totalCoresUsed": 8, "totalRAMUsed": 2048}
                total = {"maxTotalInstances": self.quota, "maxTotalCores": -1, "maxTotalRAMSize": 1048576}
                return web.json_response({"limits": {"rate": [], "absolute": {**used, **total}}})
            case "GET", ["image", "v2", "images", image_id]:
                found = [each for each in self.lists.get("images", []) if each["id"] == image_id]
                return web.json_response(found[0]) if found else web.Response(status=404, text="404 Not Found")
            case "GET", ["compute", "v2.1", "servers", _, "os-instance-actions" as last]:
                return web.json_response({"instanceActions": self.lists[last]}) if last in self.lists else _none()
            case "GET", ["compute", "v2.1", "flavors", _, "os-extra_specs"]:
                return web.json_response({"extra_specs": {"pci_passthrough:alias": "h100:1"}})
            case "GET", [*_, last] if last in self.lists:
                return self._page(request, _KEYS.get(last, last.replace("-", "_")), self.lists[last])
            case "GET", ["compute", "v2.1", "flavors", "detail"]:
                return self._page(request, "flavors", self.lists.get("flavors", []))
            case "GET", ["volume", "v3", _, "volumes", "detail"]:
                return self._page(request, "volumes", self.lists.get("volumes", []))
            case "DELETE", [("network" | "volume"), *_, kind, thing]:
                left = [each for each in self.lists[kind] if each["id"] != thing]
                gone, self.lists[kind] = len(left) == len(self.lists[kind]), left
                return _none() if gone else web.Response(status=204 if kind == "ports" else 202)
        return _none()

    def _filtered(self, request: web.Request) -> list[dict[str, Any]]:
        found = list(self.servers.values())
        if since := request.query.get("changes-since"):
            found = [each for each in (*found, *self.deleted.values()) if each["updated"] >= since]
        if tag := request.query.get("tags"):
            found = [each for each in found if tag in each.get("tags", ())]
        return [each for each in found if re.search(request.query.get("name", ""), each.get("name", ""))]

    def _page(self, request: web.Request, key: str, found: list[dict[str, Any]]) -> web.Response:
        ids = [each.get("id", "") for each in found]
        marker = request.query.get("marker")
        start = ids.index(marker) + 1 if marker else 0
        limit = min(self.page, int(request.query.get("limit", self.page)))
        page = found[start : start + limit]
        body: dict[str, Any] = {key: page}
        if start + limit < len(found):
            link = self.next_link(str(request.url.update_query(marker=page[-1]["id"])))
            body |= {"next": link} if key == "images" else {f"{key}_links": [{"rel": "next", "href": link}]}
        return web.json_response(body)

    def _create(self, body: Any) -> web.Response:
        if (used := len(self.servers)) >= self.quota:
            words = f"Quota exceeded for instances: Requested 1, but already used {used} of {self.quota} instances"
            return fault(403, "forbidden", words)
        wanted = body["server"]
        told = {key: wanted[key] for key in ("tags", "metadata") if key in wanted}
        server_id = self.add(wanted["name"], status="BUILD", **told)
        return web.json_response({"server": {"id": server_id, "adminPass": "x", "links": []}}, status=202)

    def _act(self, server: dict[str, Any], body: Any) -> web.Response:
        match body:
            case {"os-stop": None}:
                if server["OS-EXT-STS:task_state"] == "scheduling":  # no cell has it yet
                    return fault(404, "itemNotFound", f"Instance {server['id']} could not be found.")
                if server["status"] != "ACTIVE" or server["OS-EXT-STS:task_state"]:
                    words = f"Cannot 'stop' instance {server['id']} while it is in vm_state {server['status'].lower()}"
                    return fault(409, "conflictingRequest", words)
                server |= {"OS-EXT-STS:task_state": "powering-off"}
                return web.Response(status=202)
            case {"os-getConsoleOutput": {"length": lines}}:
                if "console" not in server:
                    return fault(409, "conflictingRequest", f"Instance {server['id']} is not ready")
                return web.json_response({"output": "\n".join(server["console"].splitlines()[-lines:])})
        return fault(400, "badRequest", "There is no such action")


_KEYS = {"os-keypairs": "keypairs"}


def fault(status: int, key: str, message: str, **more: Any) -> web.Response:
    body = {key: {"code": status, "message": message, **more}}
    return web.json_response(body, status=status, headers={"X-Openstack-Request-Id": "req-1"})


def _none() -> web.Response:
    return fault(404, "itemNotFound", "The resource could not be found.")


@asynccontextmanager
async def running(cloud: Clouded, tls: ssl.SSLContext | None = None) -> AsyncIterator[Clouded]:
    """At a port of its own."""
    runner = web.ServerRunner(web.Server(cloud.answer), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    cloud.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield cloud
    finally:
        await runner.cleanup()


@asynccontextmanager
async def nobody() -> AsyncIterator[str]:
    """An address at which nobody listens."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    yield f"http://127.0.0.1:{port}"


def access(cloud: Clouded, **more: Any) -> CloudAccess:
    """Ours, with the secret in the environment (``CLOUD_SECRET``)."""
    auth = {
        "url": f"{cloud.url}/identity",
        "application_credential_id": "abc",
        "application_credential_secret": {"env": "CLOUD_SECRET"},
    }
    return CloudAccess.model_validate({"auth": auth, **more})
