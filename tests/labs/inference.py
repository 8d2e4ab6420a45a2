"""An inference service of a real controller: Tritons in drones of a local site, behind a real haproxy."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.labs.controller import (
    A100,
    LabController,
    Settings,
    SiteSettings,
    gpu_type,
    limits,
)
from tests.labs.haproxy import HaproxyPrograms, LabHaproxy, running_haproxy
from tests.labs.htcondor import processes_with, until
from tests.labs.ports import free_port
from tests.labs.triton import KEY, Load, TritonPrograms

MODEL = "deepmet:1"
TOKEN = "the-token-of-cms"
REQUEST_S = 0.03
IDLE_S = 12.0


class ServerSite(SiteSettings, Protocol):
    """A site with servers."""

    @property
    def tritons(self) -> TritonPrograms:
        """Programs of the clients."""
        ...


def server_settings(programs: TritonPrograms, directory: Path, request_s: float) -> Settings:
    """Return the ``server`` of a type, with files in a directory that its nodes have."""
    directory.mkdir(exist_ok=True)
    model, version = MODEL.split(":")
    return {
        "service": "cms",
        "models": [MODEL],
        "command": programs.command(directory, MODEL, request_s),
        "first_port": free_port(),
        "ports": 30,
        "ready": f"/v2/models/{model}/versions/{version}/ready",
    }


@dataclass(frozen=True)
class InferenceSite:
    """A ``local`` site with simulated GPUs, one for each server."""

    tritons: TritonPrograms
    gpus: int = 4
    name: str = "servers"
    request_s: float = REQUEST_S
    takes_jobs: bool = False
    """It has drones for jobs as well."""
    vram_mib: int = A100[1]
    """VRAM that the type with a server has, as its section says."""

    def settings(self, controller: LabController) -> Settings:
        server = server_settings(self.tritons, controller.directory / "tritons", self.request_s)
        gpu, vram, capability = A100
        gpus = {"model": gpu, "vram": f"{vram} MiB", "capability": capability, "simulate": 4}
        size = {"cpus": 1, "memory": "512 MiB", "disk": "1 GiB"}
        timeouts = {"order_deadline": "15s", "order_confirm": "20s", "missing": "5s"}
        return {
            "adapter": "local",
            "limits": limits(8),
            "timeouts": controller.timeouts(**timeouts, grace="10s"),
            "types": {
                "triton": gpu_type(gpu, self.vram_mib, capability, **size) | {"server": server},
                **({"a100": gpu_type(*A100, **size)} if self.takes_jobs else {}),
            },
            "options": {
                "root": "drones-servers",
                "retain_finished": "1h",
                "same_account": True,
                "cpus": 64,
                "memory": "64 GiB",
                "disk": "64 GiB",
                "gpus": [{"count": self.gpus, **gpus}],
            },
        }


@dataclass
class InferenceLab:
    """A controller with a service, its balancer, and clients."""

    controller: LabController
    tritons: TritonPrograms
    haproxy: LabHaproxy
    ports: Mapping[str, int]
    site: str = "servers"

    def load(self, protocol: str, rate: float, seconds: float, token: str = TOKEN) -> Load:
        """Begin to send requests."""
        return self.tritons.load(protocol, self.ports[protocol], MODEL, rate, seconds, token)

    def ask(self, protocol: str, token: str = TOKEN) -> Mapping[str, tuple[str, float]]:
        return self.tritons.ask(protocol, self.ports[protocol], token)

    def serving(self) -> int:
        """Servers to which the balancer sends requests."""
        return len(self.addresses())

    def addresses(self) -> list[str]:
        """Hosts of these servers, as the balancer knows them."""
        lines = self.haproxy.ask("show servers state cms-grpc").splitlines()
        rows = [line.split() for line in lines if " cms-grpc " in line]
        return [row[4] for row in rows if row[5] == "2" and int(row[6]) & 0b1001 == 0]

    def drones(self) -> list[dict[str, Any]]:
        """Servers' drones that live."""
        return [each for each in self.controller.live() if each["site"] == self.site]

    def ids(self) -> set[str]:
        return {each["id"] for each in self.drones()}

    def processes(self, drone_id: str, name: str = "") -> list[int]:
        """Processes of a drone whose command has ``name`` in it."""
        found = processes_with(f"PROVISIONER_DRONE_ID={drone_id}\0")
        return [pid for pid, command in found.items() if name in command]

    def until_serving(self, count: int, within_s: float = 60.0) -> None:
        until(lambda: self.serving() == count, within_s, what=f"{count} servers serve", every_s=0.3)


def service_settings(ports: Mapping[str, int], socket: object, **differ: Any) -> Settings:
    """Return the sections of the controller's file for the service ``cms`` with a token and a key."""
    service = {
        "name": "cms",
        "at_most": 4,
        "idle": f"{IDLE_S:g}s",
        "http_port": ports["http"],
        "grpc_port": ports["grpc"],
        "tokens": {"cms": {"file": "cms.token"}},
        "key": {"file": "servers.key"},
        **differ,
    }
    return {"services": [service], "balancer": {"socket": str(socket), "host": "127.0.0.1"}}


@contextmanager
def running_inference(
    controller: LabController, site: ServerSite, **differ: Any
) -> Iterator[InferenceLab]:
    """Set up the controller for a service, which may ``differ`` from the lab's, start both and haproxy."""
    programs = HaproxyPrograms.fetched()
    ports = {"http": free_port(), "grpc": free_port()}
    directory = controller.directory / "haproxy"
    socket = directory / "admin.sock"
    controller.directory.mkdir(exist_ok=True)
    controller.secret("cms.token", TOKEN)
    controller.secret("servers.key", KEY)
    controller.sites = (*controller.sites, site)
    controller.sections = service_settings(ports, socket, **differ)
    controller.write()
    controller.prints("render", "balancer", "--to", str(directory))
    programs.checked(directory / "haproxy.cfg")
    with running_haproxy(programs, directory, socket) as haproxy:
        try:
            controller.start()
            yield InferenceLab(controller, site.tritons, haproxy, ports, site.name)
        except BaseException:
            print(controller.story())
            raise
        finally:
            controller.clean_up()


@dataclass
class ServerCounts:
    """Numbers of servers that serve, at times since the epoch."""

    lab: InferenceLab
    rows: list[tuple[float, int]] = field(default_factory=list)

    def __call__(self) -> None:
        self.rows.append((time.time(), self.lab.serving()))

    def within(self, begin: float, end: float) -> list[int]:
        return [count for at, count in self.rows if begin <= at <= end]

    def first_at(self, count: int) -> float:
        """When so many served first."""
        return min(at for at, serving in self.rows if serving >= count)

    def last_at(self) -> float:
        """When a server served last."""
        return max(at for at, count in self.rows if count)
