"""A cloud for tests, in one process over loopback: Keystone, Nova, Neutron, Glance and Cinder as
far as called, answering as Nova 34 and Keystone 30 were seen to, with a flavour, an image and a
network, and failing on order."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from adapters.openstack.nova import OpenStackCloud
from adapters.openstack.registry import ServerNames
from adapters.openstack.settings import CloudAccess, OpenStackSiteConfig
from provisioner.model import Bootstrap, DroneId, DroneType, StartOrder

Nova = OpenStackCloud
PROJECT, USER = "79a929b39a1f4d79b2d4dd4184f373de", "3440e6de2d8a4ac0adb94520d4deec0e"
IMAGE, NETWORK = "11111111-0000-4000-8000-000000000001", "22222222-0000-4000-8000-000000000001"
_SERVICES = {
    "compute": ("nova", "/compute/v2.1"),
    "network": ("neutron", "/network"),
    "image": ("glance", "/image"),
    "volumev3": ("cinderv3", f"/volume/v3/{PROJECT}"),
}


def flavor(name: str = "gpu.a100.1", **more: Any) -> dict[str, Any]:
    told = {"id": f"id-of-{name}", "name": name, "vcpus": 8, "ram": 16384, "disk": 10}
    return {**told, "extra_specs": {"pci_passthrough:alias": "a100:1"}, **more}


def image(number: int = 1, **more: Any) -> dict[str, Any]:
    told = {
        "id": f"{IMAGE[:-1]}{number}",
        "name": "drone",
        "status": "active",
        "min_disk": 0,
        "min_ram": 0,
    }
    return {**told, "created_at": f"2026-11-21T23:00:0{number}Z", **more}


def _lists() -> dict[str, list[dict[str, Any]]]:
    empty: dict[str, list[dict[str, Any]]] = {
        n: [] for n in ("security-groups", "os-keypairs", "ports", "volumes")
    }
    return {
        "flavors": [flavor()],
        "images": [image()],
        "networks": [{"id": NETWORK, "name": "drones"}],
        **empty,
    }


@dataclass
class FakeCloud:
    secret: str = "s3cret"
    newest: str = "2.104"
    page: int = 1000
    services: dict[str, tuple[str, str]] = field(default_factory=lambda: dict(_SERVICES))
    regions: tuple[str, ...] = ("RegionOne",)
    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    deleted: dict[str, dict[str, Any]] = field(default_factory=dict)
    lists: dict[str, list[dict[str, Any]]] = field(default_factory=_lists)
    """The content of the other lists, by the last part of their path."""
    quota: int = 10
    next_link: Callable[[str], str] = lambda url: url
    """Makes the address of the next page of it."""
    asked: list[str] = field(default_factory=list)
    """Method and path with query of each call."""
    microversions: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    """Bodies of all calls except logins."""
    logins: list[Any] = field(default_factory=list)
    """Bodies of logins."""
    tokens: set[str] = field(default_factory=set)
    url: str = ""
    numbers: Any = field(default_factory=lambda: itertools.count(1))
    _faults: list[tuple[str, str, Callable[[web.Request], Any]]] = field(default_factory=list)

    def fail(self, path: str, answer: Callable[[web.Request], Any], method: str = "") -> None:
        """Answer calls with ``path`` in theirs as ``answer`` does; the usual answer if that gives None."""
        self._faults.append((method, path, answer))

    def heal(self) -> None:
        self._faults.clear()

    def add(self, name: str, *, status: str = "ACTIVE", **more: Any) -> str:
        number = next(self.numbers)
        server_id = f"00000000-0000-4000-8000-{number:012}"
        told = {
            "id": server_id,
            "name": name,
            "status": status,
            "tenant_id": PROJECT,
            "metadata": {},
            "tags": [],
        }
        times = dict.fromkeys(("created", "updated"), "2026-11-21T23:00:00Z")
        states = {
            "OS-EXT-STS:task_state": None,
            "OS-EXT-STS:power_state": 1 if status == "ACTIVE" else 0,
        }
        self.servers[server_id] = {**told, **times, **states, **more}
        return server_id

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path_qs}")
        body = await request.json() if request.can_read_body else None
        is_login = request.path == "/identity/v3/auth/tokens"
        if is_login:
            self.logins.append(body)
        elif body is not None:
            self.bodies.append(body)
        if (version := request.headers.get("OpenStack-API-Version")) is not None:
            self.microversions.append(version)
        for method, path, answer in list(self._faults):
            if path in request.path and method in ("", request.method):
                special = answer(request)
                if inspect.isawaitable(special):
                    special = await special
                if special is not None:
                    return (
                        special
                        if isinstance(special, web.StreamResponse)
                        else web.json_response(special)
                    )
        if is_login:
            return self._token(body)
        if request.headers.get("X-Auth-Token") not in self.tokens:
            return fault(401, "error", "The request you have made requires authentication.")
        return self._served(request, body)

    def _token(self, body: Any) -> web.StreamResponse:
        identity = body["auth"]["identity"]
        if identity["application_credential"]["secret"] != self.secret:
            return fault(
                401,
                "error",
                "The request you have made requires authentication.",
                title="Unauthorized",
            )
        token = f"gAAAAA-token-{next(self.numbers)}"
        self.tokens.add(token)
        now = datetime(2001, 1, 1, tzinfo=UTC)  # its clock is not ours
        times = {"issued_at": now, "expires_at": now + timedelta(hours=1)}
        told = {
            "methods": identity["methods"],
            "user": {"id": USER, "name": "drone", "domain": {"id": "default", "name": "Default"}},
            "project": {"id": PROJECT, "name": "grid"},
            "catalog": [
                {
                    "type": kind,
                    "name": name,
                    "endpoints": [self._endpoint(path, region) for region in self.regions],
                }
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
                version = {
                    "id": "v2.1",
                    "status": "CURRENT",
                    "version": self.newest,
                    "min_version": "2.1",
                }
                return web.json_response({"version": version})
            case "GET", ["compute", "v2.1", "servers", "detail"]:
                return self._page(request, "servers", self._filtered(request))
            case "GET", ["compute", "v2.1", "servers", server_id] if server_id in self.servers:
                return web.json_response({"server": self.servers[server_id]})
            case "POST", ["compute", "v2.1", "servers"]:
                return self._create(body)
            case "DELETE", ["compute", "v2.1", "servers", server_id] if server_id in self.servers:
                self.deleted[server_id] = {
                    **self.servers.pop(server_id),
                    "status": "DELETED",
                    "tags": [],
                }
                return web.Response(status=204)
            case "POST", ["compute", "v2.1", "servers", server_id, "action"] if (
                server_id in self.servers
            ):
                return self._act(self.servers[server_id], body)
            case "GET", ["compute", "v2.1", "limits"]:
                used = {
                    "totalInstancesUsed": len(self.servers),
                    "totalCoresUsed": 8,
                    "totalRAMUsed": 2048,
                }
                total = {
                    "maxTotalInstances": self.quota,
                    "maxTotalCores": -1,
                    "maxTotalRAMSize": 1048576,
                }
                return web.json_response({"limits": {"rate": [], "absolute": {**used, **total}}})
            case "GET", ["image", "v2", "images", image_id]:
                found = [each for each in self.lists["images"] if each["id"] == image_id]
                return (
                    web.json_response(found[0])
                    if found
                    else web.Response(status=404, text="404 Not Found")
                )
            case "GET", ["compute", "v2.1", "servers", _, "os-instance-actions" as last]:
                return (
                    web.json_response({"instanceActions": self.lists[last]})
                    if last in self.lists
                    else _none()
                )
            case "GET", [*_, last] if last in self.lists:
                key = "keypairs" if last == "os-keypairs" else last.replace("-", "_")
                return self._page(request, key, self.lists[last])
            case "GET", [*_, ("flavors" | "volumes" as kind), "detail"]:
                return self._page(request, kind, self.lists[kind])
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
        return [
            each for each in found if re.search(request.query.get("name", ""), each.get("name", ""))
        ]

    def _page(self, request: web.Request, key: str, found: list[dict[str, Any]]) -> web.Response:
        ids = [each.get("id", "") for each in found]
        marker = request.query.get("marker")
        start = ids.index(marker) + 1 if marker else 0
        limit = min(self.page, int(request.query.get("limit", self.page)))
        page = found[start : start + limit]
        body: dict[str, Any] = {key: page}
        if start + limit < len(found):
            link = self.next_link(str(request.url.update_query(marker=page[-1]["id"])))
            body |= (
                {"next": link}
                if key == "images"
                else {f"{key}_links": [{"rel": "next", "href": link}]}
            )
        return web.json_response(body)

    def _create(self, body: Any) -> web.Response:
        if (used := len(self.servers)) >= self.quota:
            words = f"Quota exceeded for instances: Requested 1, but already used {used} of {self.quota} instances"
            return fault(403, "forbidden", words)
        wanted = body["server"]
        told = {key: wanted[key] for key in ("tags", "metadata") if key in wanted}
        server_id = self.add(wanted["name"], status="BUILD", **told)
        return web.json_response(
            {"server": {"id": server_id, "adminPass": "x", "links": []}}, status=202
        )

    def _act(self, server: dict[str, Any], body: Any) -> web.Response:
        match body:
            case {"os-stop": None}:
                if server["OS-EXT-STS:task_state"] == "scheduling":  # no cell has it yet
                    return fault(
                        404, "itemNotFound", f"Instance {server['id']} could not be found."
                    )
                if server["status"] != "ACTIVE" or server["OS-EXT-STS:task_state"]:
                    words = f"Cannot 'stop' instance {server['id']} while it is in vm_state {server['status'].lower()}"
                    return fault(409, "conflictingRequest", words)
                server |= {"OS-EXT-STS:task_state": "powering-off"}
                return web.Response(status=202)
            case {"os-getConsoleOutput": {"length": lines}}:
                if "console" not in server:
                    return fault(409, "conflictingRequest", f"Instance {server['id']} is not ready")
                return web.json_response(
                    {"output": "\n".join(server["console"].splitlines()[-lines:])}
                )
        return fault(400, "badRequest", "There is no such action")


def fault(status: int, key: str, message: str, **more: Any) -> web.Response:
    body = {key: {"code": status, "message": message, **more}}
    return web.json_response(body, status=status, headers={"X-Openstack-Request-Id": "req-1"})


def busy(_: web.Request) -> web.Response:
    return fault(503, "x", "busy")


def _none() -> web.Response:
    return fault(404, "itemNotFound", "The resource could not be found.")


@asynccontextmanager
async def running(fake: FakeCloud, tls: ssl.SSLContext | None = None) -> AsyncIterator[FakeCloud]:
    """At a port of its own."""
    runner = web.ServerRunner(web.Server(fake.answer), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    fake.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield fake
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


SITE, CONTROLLER = "cloud", "kit"
A100 = DroneType(
    SITE, "a100", gpu_milli=1000, cpus=8, memory_mib=16384, disk_mib=10240, walltime_s=3600.0
)


def auth(fake: FakeCloud) -> Mapping[str, Any]:
    """Ours, with the secret in the environment (``CLOUD_SECRET``)."""
    credential = {
        "application_credential_id": "abc",
        "application_credential_secret": {"env": "CLOUD_SECRET"},
    }
    return {"url": f"{fake.url}/identity", **credential}


def connect(
    fake: FakeCloud, *, deadline_s: float = 30, parallel: int = 8, **access: Any
) -> OpenStackCloud:
    settings = access if "cloud" in access else {"auth": auth(fake), **access}
    return OpenStackCloud(
        CloudAccess.model_validate(settings), deadline_s=deadline_s, parallel=parallel
    )


def site_config(fake: FakeCloud, **more: Any) -> OpenStackSiteConfig:
    options = {
        "image": "drone",
        "networks": ["drones"],
        "types": {"a100": {"flavor": "gpu.a100.1"}},
    }
    return OpenStackSiteConfig.model_validate(
        {"auth": auth(fake), **options, "deadline": "10s", **more}
    )


def drone(serial: int, controller: str = CONTROLLER) -> DroneId:
    return DroneId(f"{controller}-a1b2-{serial}")


def order(serial: int, **more: Any) -> StartOrder:
    """``more``: fields of :class:`Bootstrap`."""
    return StartOrder(
        drone(serial),
        A100,
        600.0,
        30.0,
        Bootstrap(**{"script": b"#!/bin/sh\nexec sleep 1000\n", **more}),
    )


def has(fake: FakeCloud, drone_id: DroneId, controller: str = CONTROLLER, **more: Any) -> str:
    """Give the cloud a server of a drone; its id."""
    names = ServerNames(controller, SITE)
    metadata = dict(names.metadata(drone_id, "a100"))
    return fake.add(drone_id, **{"tags": names.tags(drone_id), "metadata": metadata, **more})


def created(fake: FakeCloud) -> list[str]:
    """Names of the servers that were asked for."""
    return [body["server"]["name"] for body in fake.bodies if "server" in body]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now
