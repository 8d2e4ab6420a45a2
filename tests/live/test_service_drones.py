"""Drones with an inference server at the local site, with the whole controller: from the start to the last request."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from provisioner.model import DroneId, InferenceServer
from provisioner.services.servers import server_ports
from tests.labs.controller import LabController, Settings, limits
from tests.labs.htcondor import lab_directory, until

SERVER = """
import http.server, os, pathlib, threading

requests = 0

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global requests
        body = b""
        if self.path == "/metrics":
            body = b'nv_inference_request_success{model="deepmet",version="3"} %d\\n' % requests
        if self.path == "/v2/models/deepmet/infer":
            requests += 1
        self.send_response(503 if pathlib.Path("unready").exists() else 200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

for port in os.environ["SERVICE_METRICS_PORT"], os.environ["SERVICE_HTTP_PORT"]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
    threading.Thread(target=server.serve_forever).start()
"""
FIRST_PORT = 23_000 + os.getpid() % 1000 * 30
MODELS = InferenceServer("cms", ("deepmet:3",), first_port=FIRST_PORT, ports=30)


@dataclass(frozen=True)
class ServerSite:
    """A ``local`` site of servers without a GPU."""

    name: str = "here"

    def settings(self, controller: LabController) -> Settings:
        program = controller.directory / "server.py"
        program.write_text(SERVER)
        program.chmod(0o644)
        server = {
            "service": MODELS.service,
            "models": MODELS.models,
            "command": f"exec /usr/bin/python3 -I {program}",
            "first_port": MODELS.first_port,
            "ports": MODELS.ports,
        }
        size = {"gpus": 0, "cpus": 1, "memory": "64 MiB", "disk": "1 MiB"}
        return {
            "adapter": "local",
            "limits": limits(4),
            "timeouts": controller.timeouts(missing="5s", grace="5s"),
            "types": {"triton": size | {"server": server}},
            "options": {
                "root": "drones",
                "same_account": True,
                "retain_finished": "1h",
                **{"cpus": 8, "memory": "8 GiB", "disk": "8 GiB", "gpus": []},
            },
        }


class ServiceController(LabController):
    """A controller of one service with one server, and a queue of its own without jobs."""

    def overlay_settings(self) -> Settings:
        return {"adapter": "embedded", "options": {"path": "queue.db"}}

    def write(self) -> None:
        super().write()
        settings = json.loads(self.config.read_text())
        service = {"name": "cms", "at_least": 1, "at_most": 2, "unready": "4s"}
        self.config.write_text(json.dumps(settings | {"services": [service]}))

    def server(self, *states: str) -> dict[str, Any]:
        """The only drone that does not leave, once it is in one of these states."""

        def found() -> dict[str, Any] | None:
            staying = [each for each in self.live() if not each["leaving"]]
            here = [each for each in staying if each["state"] in states]
            return here[0] if len(staying) == len(here) == 1 else None

        return until(found, 60, what=f"the server is {states}", every_s=0.3)

    def request(self, drone_id: str) -> None:
        port = server_ports(DroneId(drone_id), MODELS)[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/deepmet/infer", timeout=5):
            pass

    def ended(self, drone_id: str) -> dict[str, Any]:
        """The drone, once it has ended."""

        def gone() -> dict[str, Any] | None:
            return next((each for each in self.drones(ended=True) if each["id"] == drone_id), None)

        return until(gone, 60, what=f"{drone_id} has ended", every_s=0.3)

    def directory_of(self, drone_id: str) -> Path:
        return next((self.directory / "drones" / drone_id).rglob("service.sh")).parent


@pytest.fixture
def controller() -> Iterator[ServiceController]:
    with lab_directory("servers") as directory:
        made = ServiceController(None, directory / "c", (ServerSite(),))  # type: ignore[arg-type]
        try:
            yield made.start()
        except BaseException:
            print(made.story())
            raise
        finally:
            made.clean_up()


def test_a_server_boots_serves_and_is_drained(controller: ServiceController) -> None:
    first = controller.server("idle")
    controller.request(first["id"])
    assert controller.server("busy")["id"] == first["id"]
    assert controller.server("idle")["id"] == first["id"]
    controller.prints("drones", "drain", first["id"], "--reason", "test", "--yes")
    assert controller.ended(first["id"])["state"] == "done"
    second = controller.server("idle")
    assert second["id"] != first["id"]
    with pytest.raises(urllib.error.URLError):
        controller.request(first["id"])


def test_a_server_that_is_not_ready_any_more_is_replaced(controller: ServiceController) -> None:
    first = controller.server("idle")
    unready = controller.directory_of(first["id"]) / "unready"
    unready.touch()
    assert controller.ended(first["id"])["state"] == "lost"
    assert controller.server("idle")["id"] != first["id"]
    assert "left-pool" in controller.prints("drones", "show", first["id"], "-o", "json")


def test_a_server_that_is_killed_ends_its_drone_and_is_replaced(
    controller: ServiceController,
) -> None:
    first = controller.server("idle")
    (killed,) = [pid for pid, command in controller.processes().items() if "server.py" in command]
    os.kill(killed, signal.SIGKILL)
    gone = controller.ended(first["id"])
    assert gone["state"] == "failed" and "server-died" in json.dumps(gone)
    assert controller.server("idle")["id"] != first["id"]


def test_a_controller_that_starts_again_keeps_the_server(controller: ServiceController) -> None:
    first = controller.server("idle")
    controller.kill()
    controller.begin()
    controller.ticks(3)
    assert controller.server("idle")["id"] == first["id"]
